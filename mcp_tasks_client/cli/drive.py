"""``mcp-tasks drive``: drive the calls at one server that no program drives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

import anyio
import typer
from anyio.abc import TaskGroup

import mcp_tasks_client as tasks
from mcp_tasks_client.foreign_text import one_line

from .asking import Questions, callback_for
from .exits import CommandError, Exit, as_command_error
from .following import name_question
from .journal import APPLICATION, JournalOption, KeysOption, PrincipalOption, SchemaOption, Where
from .lines import short_id
from .output import Output
from .running import run
from .seen import SeenCall
from .server import (
    BearerOption,
    HeaderEnvOption,
    HeaderOption,
    ServerArgument,
    access_words,
    name_server,
    read_server,
)

__all__ = ["drive"]

_LOOK_S: Final = 5.0
"""Seconds between looks for calls that no program drives."""

_REST_S: Final = 15.0
"""Seconds before a call is taken up again after its server has refused a request about it."""


def drive(
    server: ServerArgument,
    application: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Whose calls: of programs that give this name, besides those that give none. May be "
            "repeated. Without it, the name is mcp-tasks.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when no call is left that nobody drives.")
    ] = False,
    questions: Annotated[
        Questions | None,
        typer.Option(
            "--questions",
            help="`ask` here; `leave` them to others; `fail`: leave the call alone, with exit code 6 under "
            "--once. Without it: `ask` in a terminal, else `leave`.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="A JSON object a line on stdout.")] = False,
    header: HeaderOption = None,
    bearer_env: BearerOption = None,
    header_env: HeaderEnvOption = None,
    journal: JournalOption = None,
    schema: SchemaOption = None,
    keys: KeysOption = None,
    principal: PrincipalOption = None,
) -> None:
    """Bring home the calls at a server that nobody drives.

    It goes on until Ctrl-C. Outcomes stay for the programs that made the calls, which have them from
    resume() or deliver(), and for `mcp-tasks wait`. A program that is started meanwhile does not get a call
    by resume() before it has ended.
    Calls of other applications than those that are named are left alone.
    """
    journaled, output = Where(journal, schema, keys, principal), Output(as_json=json)

    async def main() -> Exit:
        target = read_server(server, header, bearer_env, header_env)
        where = replace(journaled, access=access_words(target))
        chosen = [word for name in application or () for word in ("--application", name)]
        chosen += [] if questions is None else ["--questions", questions.value]
        chosen += [] if principal is None else ["--principal", principal]
        lines = _Lines()
        async with (
            target.client(where, callback_for(questions, lines.paused, Questions.LEAVE)) as client,
            where.inbox() as inbox,
        ):
            driving = _Driving(client, inbox, where, output, application or [APPLICATION], lines, once=once)
            try:
                return await driving.run()
            except asyncio.CancelledError:
                if driving.count and target.outlives_us:
                    with suppress(OSError):
                        output.note(f"Let go of {driving.count}. The tasks run on. To go on:")
                        output.next(where.line("drive", *name_server(target), *target.words, *chosen))
                raise

    run(main, output, journaled)


class _Lines:
    """Lines that are kept back while a form is open, since they would be written into its prompt."""

    def __init__(self) -> None:
        self._kept: list[Callable[[], None]] | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep lines back, and write them afterwards."""
        kept = self._kept = []
        try:
            yield
        finally:
            self._kept = None
            for write in kept:
                write()

    def write(self, write: Callable[[], None]) -> None:
        """Write a line, now or after the form.

        Raises:
            OSError: The output could not be written.
        """
        if self._kept is None:
            write()
        else:
            self._kept.append(write)


class _Driving:
    """Takes up calls at one server, and sees each to its end, which it leaves to others."""

    def __init__(
        self,
        client: tasks.TasksClient,
        inbox: tasks.Inbox,
        where: Where,
        output: Output,
        applications: Sequence[str],
        lines: _Lines,
        *,
        once: bool,
    ) -> None:
        self._client, self._inbox, self._where, self._output = client, inbox, where, output
        self._applications, self._once = (None, *applications), once
        self._lines = lines
        self._under_way: set[str] = set()
        # Calls that cannot go on: until when; and with which open questions, if that is the reason.
        self._resting: dict[str, tuple[float, frozenset[str] | None]] = {}
        self._changed = asyncio.Event()
        self._code = Exit.RESULT
        self._failure: Exception | None = None

    @property
    def count(self) -> str:
        """How many calls are driven here; empty if none is."""
        number = len(self._under_way)
        return "" if not number else "1 call" if number == 1 else f"{number} calls"

    async def run(self) -> Exit:
        """Drive until this is cancelled; or, with ``once``, until no call is left.

        Raises:
            TasksClientError: The journal, the connection or the credential cannot be used.
            OSError: The output could not be written.
        """
        async with anyio.create_task_group() as group:
            while self._failure is None:
                self._changed.clear()
                await self._take_up(group)
                if self._once and not self._under_way:
                    break
                with anyio.move_on_after(_LOOK_S):
                    await self._changed.wait()
            group.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        return self._code

    async def _take_up(self, group: TaskGroup) -> None:
        try:
            found = await self._find()
        except tasks.TasksClientError as error:
            self._failure = error
            return
        for record in found:
            self._under_way.add(record.record_id)
            group.start_soon(self._see_through, record)

    async def _find(self) -> list[tasks.TaskRecord]:
        """The calls that no program drives."""
        # By the journal, and not by adopt(), which would take outcomes away from their programs.
        records = [
            one
            for one in await self._client.records(pending=True)
            if not one.finished
            and one.record_id not in self._under_way
            and one.application in self._applications
        ]
        asked = await self._asked() if any(one.record_id in self._resting for one in records) else {}
        now, free = anyio.current_time(), []
        for record in records:
            until, questions = self._resting.get(record.record_id, (now, None))
            if now < until and questions in (None, asked.get(record.record_id, frozenset())):
                continue
            if not await self._inbox.is_driven(record):
                free.append(record)
        return free

    async def _asked(self) -> dict[str, frozenset[str]]:
        """The open questions of each call."""
        asked: dict[str, frozenset[str]] = {}
        for one in await self._inbox.questions():
            asked[one.record_id] = asked.get(one.record_id, frozenset()) | {one.question_id}
        return asked

    async def _see_through(self, record: tasks.TaskRecord) -> None:
        try:
            self._tell("taken_up", record)
            await self._drive(record)
        except (tasks.DrivenElsewhereError, tasks.CallForgottenError):
            pass  # another process was faster
        except (
            tasks.JournalError,
            tasks.CredentialRefusedError,
            tasks.ConnectionLostError,
            OSError,
        ) as error:
            self._failure = error
        # Not if it is cancelled: it is then a call that is let go.
        self._under_way.discard(record.record_id)
        self._changed.set()

    async def _drive(self, record: tasks.TaskRecord) -> None:
        try:
            handle = await self._client.attach(record)
            end = await handle.peek()
        except (
            tasks.JournalError,
            tasks.CredentialRefusedError,
            tasks.ConnectionLostError,
            tasks.DrivenElsewhereError,
        ):
            raise
        except tasks.InputUnansweredError as error:
            questions = frozenset(one.question_id for one in error.questions)
            self._park(record, name_question(error, self._where), math.inf, questions)
        except tasks.TasksClientError as error:
            until = math.inf if self._once else anyio.current_time() + _REST_S
            self._park(record, as_command_error(error), until)
        else:
            failure = as_command_error(end) if isinstance(end, tasks.TasksClientError) else None
            self._tell("ended", handle.record or record, failure)

    def _park(
        self,
        record: tasks.TaskRecord,
        failure: CommandError,
        until: float,
        questions: frozenset[str] | None = None,
    ) -> None:
        """Leave alone a call that cannot go on."""
        self._resting[record.record_id] = until, questions
        self._code = self._code or failure.exit
        self._tell("parked", record, failure)

    def _tell(self, event: str, record: tasks.TaskRecord, failure: CommandError | None = None) -> None:
        """Tell of an event of a call, in one line.

        Raises:
            OSError: The output could not be written.
        """
        name, seen = short_id(record.record_id), SeenCall(record, (), is_driven=True)
        if event == "ended":
            line = self._where.line("wait", name)
        else:
            line = "" if failure is None else failure.next or ""
        if self._output.as_json:
            self._lines.write(partial(self._output.document, _document_of(event, seen, failure, line)))
            return
        words = seen.state if event == "ended" else event.replace("_", " ")
        reason = "" if failure is None else f": {one_line(str(failure))}"
        told = f"{name}  {seen.title}  {words}{reason}  {line}".rstrip()
        self._lines.write(partial(self._output.note, told))


def _document_of(event: str, seen: SeenCall, failure: CommandError | None, line: str) -> dict[str, Any]:
    """An event for programs."""
    record = seen.record
    if failure is not None:
        failure.record = record.record_id
    return {
        "event": event,
        "record": record.record_id,
        "tool": record.tool,
        "label": record.label,
        "application": record.application,
        "state": seen.state,
        "error": None if failure is None else failure.document(),
        "next": line or None,
    }
