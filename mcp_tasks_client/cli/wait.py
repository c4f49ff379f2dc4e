"""``mcp-tasks wait``: see calls of any program to their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Annotated, Final

import anyio
import typer

import mcp_tasks_client as tasks
from mcp_tasks_client.progress import CallLine, line_of, show_progress

from .asking import Elicit, QuestionsOption, callback_for, park
from .completion import complete_record
from .exits import CommandError, Exit, as_command_error
from .following import End, Receipts, follow, waits_for
from .journal import (
    APPLICATION,
    JournalOption,
    KeysOption,
    PrincipalOption,
    SchemaOption,
    Where,
    find_record,
)
from .output import Output
from .running import run
from .server import BearerOption, HeaderEnvOption, HeaderOption, Reach, Server, ServerOption, read_reach
from .times import TimeoutOption

__all__ = ["Waiting", "receive", "wait"]

_LOOK_S: Final = 1.0
"""Seconds between looks at a call that another program drives."""


def wait(
    ids: Annotated[
        list[str], typer.Argument(help="Of calls; beginnings are enough.", autocompletion=complete_record)
    ],
    any_: Annotated[bool, typer.Option("--any", help="Until the first of them has ended.")] = False,
    take: Annotated[
        bool,
        typer.Option(
            "--take", help="Count the outcome as received, also for the program that made the call."
        ),
    ] = False,
    timeout: TimeoutOption = None,
    questions: QuestionsOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="One object; an array of them for several IDs.")
    ] = False,
    server: ServerOption = None,
    header: HeaderOption = None,
    bearer_env: BearerOption = None,
    header_env: HeaderEnvOption = None,
    journal: JournalOption = None,
    schema: SchemaOption = None,
    keys: KeysOption = None,
    principal: PrincipalOption = None,
) -> None:
    """Wait for calls, and write how they ended.

    A call that a living program drives is only followed. One that nobody drives is driven here, with the
    credential that the options give. The outcome of another program's call stays for that program, unless
    --take is given. Ctrl-C ends the waiting alone.
    """
    journaled, output = Where(journal, schema, keys, principal), Output(as_json=json)

    async def main() -> Exit:
        reach = read_reach(server, header, bearer_env, header_env)
        where = replace(journaled, access=reach.words)
        async with AsyncExitStack() as opened:
            inbox = await opened.enter_async_context(where.inbox())
            records = [await find_record(inbox, one) for one in ids]
            reach.check(records)
            progress = show_progress()
            asking = callback_for(questions, progress.paused)

            def tell(failure: CommandError) -> None:
                with progress.paused():
                    output.note(str(failure))
                    output.next(failure.next or "")

            waiting = Waiting(inbox, where, opened, reach, asking, tell)
            if output.shows_progress:
                for one in records:
                    progress.add(partial(waiting.read_line, one.record_id))
            receipts = Receipts(where, output, *(["--take"] if take else []))
            try:
                async with progress:
                    with anyio.move_on_after(timeout):
                        await waiting.wait_for(records, only_first=any_)
            except asyncio.CancelledError:
                receipts.let_go(one for one in waiting.seen.values() if not one.finished)
                raise
            ends = waiting.ends
            if not (any_ and ends):
                left = [one for key, one in waiting.seen.items() if key not in ends]
                ends |= {one.record_id: receipts.time_out(one, timeout) for one in left}
            code = receipts.write_all(records, ends)
            for record in records:
                if take or record.application == APPLICATION:
                    await receive(inbox, record, ends.get(record.record_id))
            return code

    run(main, output, journaled)


async def receive(inbox: tasks.Inbox, record: tasks.TaskRecord, written: End | None) -> None:
    """Count the outcome of a call as received, if it is an outcome that was written."""
    if written is None or isinstance(written, CommandError):
        return  # the call may have ended since
    seen = await inbox.record(record.record_id)
    if seen is not None and seen.finished and seen.delivered_at is None:
        await inbox.acknowledge(seen)


class Waiting:
    """Waits for calls of any server, and keeps their ends."""

    def __init__(
        self,
        inbox: tasks.Inbox,
        where: Where,
        opened: AsyncExitStack,
        reach: Reach,
        elicitation: Elicit,
        tell: Callable[[CommandError], None] = lambda failure: None,
    ) -> None:
        self.ends: dict[str, End] = {}
        self._followed: dict[str, tasks.TaskRecord] = {}
        self._handles: dict[str, tasks.TaskHandle] = {}
        self._estimates: dict[str, tasks.Estimate] = {}
        self._inbox, self._where, self._opened = inbox, where, opened
        self._reach, self._elicitation = reach, elicitation
        self._tell, self._told = tell, set[str]()
        self._clients: dict[tasks.Scope, tasks.TasksClient] = {}

    @property
    def seen(self) -> dict[str, tasks.TaskRecord]:
        """The newest record of each call that is waited for."""
        driven = {key: one.record for key, one in self._handles.items() if one.record is not None}
        return {**self._followed, **driven}

    def read_line(self, record_id: str, now: float) -> CallLine | None:
        """The line of progress of a call that is waited for."""
        record = self.seen.get(record_id)
        return None if record is None else line_of(record, now, estimate=self._estimates.get(record_id))

    async def wait_for(self, records: Sequence[tasks.TaskRecord], *, only_first: bool) -> None:
        """Wait until all calls have ended, or the first of them."""
        self._followed = {one.record_id: one for one in records}
        self._estimates = {one.record_id: await self._inbox.estimate(one) for one in records}
        async with anyio.create_task_group() as group:

            async def see(record: tasks.TaskRecord) -> None:
                try:
                    self.ends[record.record_id] = await self._see(record)
                except tasks.CredentialRefusedError as error:
                    self.ends[record.record_id] = self.refuse(record, error)
                except CommandError as error:
                    self.ends[record.record_id] = error
                except tasks.TasksClientError as error:
                    self.ends[record.record_id] = as_command_error(error)
                if only_first:
                    group.cancel_scope.cancel()

            for record in records:
                group.start_soon(see, record)

    async def cancel(self, record: tasks.TaskRecord) -> None:
        """Have a call cancelled: by the program that drives it, else from here.

        Raises:
            CommandError: No program drives it, and its server is not known.
            SessionError: The server could not be told. The wish is in the journal.
            JournalError: The wish could not be committed.
        """
        if await self._inbox.is_driven(record):
            await self._inbox.cancel(record)
        else:
            handle = await self._attach(record)
            await handle.cancel()

    def refuse(self, record: tasks.TaskRecord, error: tasks.CredentialRefusedError) -> CommandError:
        """The error of a call whose server has refused the credential.

        Raises:
            CommandError: Its server is not known.
        """
        server = self._reach.server_of(record)
        return server.refuse(error) if isinstance(server, Server) else as_command_error(error)

    async def _see(self, record: tasks.TaskRecord) -> End:
        """Follow a call to its end: by the journal while another program drives it, else over a client."""
        while not record.finished:
            handle = None if await self._inbox.is_driven(record) else await self._attach(record)
            if handle is not None:
                self._handles[record.record_id] = handle
                return await follow(handle, self._where)
            await self._look_for_question(record)
            await anyio.sleep(_LOOK_S)
            seen = await self._inbox.record(record.record_id)
            if seen is None:
                raise CommandError(
                    Exit.GONE,
                    "The call has ended, and its program has received the outcome. Without a key the journal "
                    "forgets it then.",
                    record=record.record_id,
                )
            record = self._followed[record.record_id] = seen
        outcome = await self._inbox.outcome(record)
        assert outcome is not None, "the call has ended"
        return outcome

    async def _look_for_question(self, record: tasks.TaskRecord) -> None:
        """Look at the questions of a call that another program drives, which has left them open.

        Raises:
            CommandError: One is open, and no person is asked here.
        """
        if self._elicitation == "later":
            return
        for question in await self._inbox.questions():
            if question.record_id != record.record_id or question.question_id in self._told:
                continue
            failure = waits_for(question, record.record_id, record.task_id, self._where)
            if self._elicitation is park:
                raise failure
            self._told.add(question.question_id)
            self._tell(failure)

    async def _attach(self, record: tasks.TaskRecord) -> tasks.TaskHandle:
        """Have a call driven here.

        Raises:
            CommandError: Its server cannot be reached.
        """
        client = self._clients.get(record.scope)
        if client is None:
            server = self._reach.server_of(record)
            made = server.client(self._where, self._elicitation, scope=record.scope)
            client = self._clients[record.scope] = await self._opened.enter_async_context(made)
        return await client.attach(record)
