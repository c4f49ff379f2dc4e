"""``mcp-tasks cancel``: ask the server of a call to cancel the call's task."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

import mcp_tasks_client as tasks
from mcp_tasks_client.progress import show_progress

from .completion import complete_record
from .exits import CommandError, Exit, as_command_error
from .following import WISH_IN_JOURNAL, Receipts
from .journal import (
    APPLICATION,
    JournalOption,
    KeysOption,
    PrincipalOption,
    SchemaOption,
    Where,
    find_record,
)
from .lines import short_id
from .output import Output
from .running import run
from .seen import look_at
from .server import BearerOption, HeaderEnvOption, HeaderOption, ServerOption, read_reach
from .wait import Waiting, receive

__all__ = ["cancel"]


def cancel(
    id: Annotated[
        str, typer.Argument(help="Of the call; a beginning is enough.", autocompletion=complete_record)
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the call, and write how it ended.")] = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON object.")] = False,
    server: ServerOption = None,
    header: HeaderOption = None,
    bearer_env: BearerOption = None,
    header_env: HeaderEnvOption = None,
    journal: JournalOption = None,
    schema: SchemaOption = None,
    keys: KeysOption = None,
    principal: PrincipalOption = None,
) -> None:
    """Ask the server to cancel a task. A server may finish the task all the same.

    The program that drives the call asks the server. If none does, this command asks, with the credential
    that the options give. Open questions of the call are withdrawn.
    """
    journaled, output = Where(journal, schema, keys, principal), Output(as_json=json)

    async def main() -> Exit | None:
        reach = read_reach(server, header, bearer_env, header_env)
        where = replace(journaled, access=reach.words)
        async with AsyncExitStack() as opened:
            inbox = await opened.enter_async_context(where.inbox())
            record = await find_record(inbox, id)
            receipts = Receipts(where, output)
            waiting = Waiting(inbox, where, opened, reach, "later")
            is_asked = not record.finished
            if is_asked:
                await _check_reply(inbox, record, where)
                await _ask(waiting, record, where)
            if not wait:
                await _tell(inbox, record, receipts, where, output, is_asked=is_asked)
                return None
            output.note("The task is to be cancelled." if is_asked else "The call had ended before.")
            progress = show_progress()
            if output.shows_progress:
                progress.add(partial(waiting.read_line, record.record_id))
            try:
                async with progress:
                    await waiting.wait_for([record], only_first=False)
            except asyncio.CancelledError:
                receipts.let_go(one for one in waiting.seen.values() if not one.finished)
                raise
            code = receipts.write_all([record], waiting.ends)
            if record.application == APPLICATION:
                await receive(inbox, record, waiting.ends[record.record_id])
            return code

    run(main, output, journaled)


async def _check_reply(inbox: tasks.Inbox, record: tasks.TaskRecord, where: Where) -> None:
    """Refuse a call whose program ended before the server had replied: no task of it is known.

    Raises:
        CommandError: The call is such a one.
        JournalError: The journal could not be read.
    """
    (seen,) = await look_at(inbox, [record])
    if seen.state == "outcome_unknown":
        raise CommandError(
            Exit.OUTCOME_UNKNOWN,
            "Its program ended before the server had replied. The tool may have run, and no task of it is "
            "known that could be cancelled.",
            record=record.record_id,
            next=where.line("show", short_id(record.record_id)),
        )


async def _ask(waiting: Waiting, record: tasks.TaskRecord, where: Where) -> None:
    """Have a call cancelled.

    Raises:
        CommandError: The server is not known, or could not be told.
        JournalError: The wish could not be committed.
    """
    try:
        await waiting.cancel(record)
    except tasks.SessionError as error:
        failure = as_command_error(error)
        if isinstance(error, tasks.CredentialRefusedError):
            failure = waiting.refuse(record, error)
        if failure.exit is Exit.UNEXPECTED and error.retryable:
            failure.exit = Exit.UNREACHABLE
        raise CommandError(
            failure.exit,
            f"{error} {WISH_IN_JOURNAL}",
            record=record.record_id,
            next=failure.next or where.line("wait", short_id(record.record_id)),
        ) from error


async def _tell(
    inbox: tasks.Inbox,
    before: tasks.TaskRecord,
    receipts: Receipts,
    where: Where,
    output: Output,
    *,
    is_asked: bool,
) -> None:
    """Say how far a wish to cancel has come."""
    record = await inbox.record(before.record_id) or before
    (seen,) = await look_at(inbox, [record])
    go_on = where.line("wait", short_id(record.record_id))
    if output.as_json:
        document: dict[str, Any] = {"record": record.record_id, "asked": is_asked, "state": seen.state}
        output.document({**document, "next": go_on})
    elif is_asked:
        receipts.tell_cancelled(record)
    else:
        output.note(f"The call had ended before: {seen.state}. Its outcome:")
        output.next(go_on)
