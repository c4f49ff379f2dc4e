"""``mcp-tasks call``: call a tool, and see its task through."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Final

import anyio
import typer

import mcp_tasks_client as tasks
from mcp_tasks_client.estimate import format_span
from mcp_tasks_client.progress import CallLine, show_progress, title_of

from .arguments import read_arguments
from .asking import QuestionsOption, callback_for
from .exits import CommandError, Exit
from .following import WISH_IN_JOURNAL, Receipts, follow
from .journal import JournalOption, KeysOption, PrincipalOption, SchemaOption, Where
from .output import Output
from .running import run
from .server import BearerOption, HeaderEnvOption, HeaderOption, ServerArgument, access_words, read_server
from .times import TimeoutOption

__all__ = ["call"]

_CANCEL_S: Final = 6.0
"""Seconds in which a server that is about to end may tell that it has cancelled a task."""


def call(
    server: ServerArgument,
    tool: Annotated[str, typer.Argument(help="The tool.")],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[k=v] [k:=json]", help="Arguments: texts, by the tool's schema, or JSON."),
    ] = None,
    input_json: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE|-", help="All arguments, as a JSON object.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="An idempotency key. The same line run again joins the call, or has its outcome."),
    ] = None,
    resend: Annotated[
        bool, typer.Option("--resend", help="Under --key: send a call of unknown outcome once more.")
    ] = False,
    label: Annotated[str | None, typer.Option(help="A short text that lists show beside the call.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once the server has a task.")] = False,
    timeout: TimeoutOption = None,
    questions: QuestionsOption = None,
    cancel_on_interrupt: Annotated[
        bool, typer.Option("--cancel-on-interrupt", help="Ctrl-C cancels the task. Without, it runs on.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The result as a JSON object.")] = False,
    header: HeaderOption = None,
    bearer_env: BearerOption = None,
    header_env: HeaderEnvOption = None,
    journal: JournalOption = None,
    schema: SchemaOption = None,
    keys: KeysOption = None,
    principal: PrincipalOption = None,
) -> None:
    """Call a tool, and write its result whenever it comes.

    Without --key each run of the line is a new call. Ctrl-C lets the task run on, and names the line that
    goes on with it.

    A server that is a command stands behind the rest: mcp-tasks call TOOL [k=v] -- COMMAND [ARG]. The
    command is started, and its tasks end with it.
    """
    journaled, output = Where(journal, schema, keys, principal), Output(as_json=json)

    async def main() -> Exit | None:
        target = read_server(server, header, bearer_env, header_env)
        if detach and not target.outlives_us:
            raise CommandError(
                Exit.USAGE,
                "--detach is for a server by its URL. The task of a command ends with the command.",
            )
        where = replace(journaled, access=access_words(target))
        receipts = Receipts(where, output)
        arguments: dict[str, Any] | None = None
        handle: tasks.TaskHandle | None = None
        began, progress = time.time(), show_progress()

        def read_line(now: float) -> CallLine | None:
            if handle is not None:
                return None  # it has a line of its own
            return CallLine(title_of(tool, label), "calling", format_span(now - began))

        if output.shows_progress:
            progress.add(read_line)
        async with target.client(where, callback_for(questions, progress.paused)) as client:
            try:
                async with progress:
                    with anyio.fail_after(timeout):
                        arguments = await read_arguments(client, tool, pairs or [], input_json)
                        starting = client.start_tool(
                            tool,
                            arguments,
                            idempotency_key=key,
                            on_unknown="resend" if resend else "raise",
                            label=label,
                        )
                        handle = await receipts.begin(starting, has_key=key is not None)
                        if output.shows_progress:
                            progress.add(handle)
                        if detach and not handle.done:
                            _detach(handle, receipts, output)
                            return None
                        end = await follow(handle, where)
            except TimeoutError:
                if arguments is None:
                    raise CommandError(
                        Exit.UNREACHABLE,
                        f"The server has not listed its tools within {timeout} s. The tool was not called.",
                    ) from None
                if handle is None:
                    raise receipts.time_out_before_task(timeout, has_key=key is not None) from None
                if not target.outlives_us:
                    await _end_with_server(handle, output)
                    raise CommandError(Exit.TIMED_OUT, f"No outcome within {timeout} s.") from None
                raise receipts.time_out(_record_of(handle), timeout) from None
            except asyncio.CancelledError:
                if handle is None:
                    if arguments is not None:
                        receipts.let_go_before_task(has_key=key is not None)
                elif not handle.done and not target.outlives_us:
                    await asyncio.shield(asyncio.ensure_future(_end_with_server(handle, output)))
                elif not handle.done:
                    await _let_go(handle, receipts, output, cancels=cancel_on_interrupt)
                raise
            if isinstance(end, CommandError) and not target.outlives_us:
                end.next = None  # a question, which no program could answer later
                await _end_with_server(handle, output)
            code = receipts.write(handle.reference["record_id"], end)
            if handle.done:
                await handle.acknowledge()
            return code

    run(main, output, journaled)


def _detach(handle: tasks.TaskHandle, receipts: Receipts, output: Output) -> None:
    """Write the ID of a call that goes on without the command."""
    record = _record_of(handle)
    if output.as_json:
        output.document({"record": record.record_id, "result": None})
    else:
        output.text(record.record_id)
    receipts.detach(record)


async def _let_go(handle: tasks.TaskHandle, receipts: Receipts, output: Output, *, cancels: bool) -> None:
    if cancels:
        try:
            await asyncio.shield(asyncio.ensure_future(handle.cancel()))
        except tasks.TasksClientError as error:
            in_journal = isinstance(error, tasks.SessionError)
            with suppress(OSError):
                output.note(f"{error} {WISH_IN_JOURNAL}" if in_journal else str(error))
        else:
            receipts.tell_cancelled(_record_of(handle))
            return
    receipts.let_go([_record_of(handle)])


def _record_of(handle: tasks.TaskHandle) -> tasks.TaskRecord:
    record = handle.record
    assert record is not None, "this handle is not detached"
    return record


async def _end_with_server(handle: tasks.TaskHandle, output: Output) -> None:
    """Cancel a task whose server ends with the command, so that the journal need not keep it as working."""
    with suppress(OSError):
        output.note("The task is cancelled, since its server ends now.")
    with suppress(tasks.TasksClientError, TimeoutError):
        async with asyncio.timeout(_CANCEL_S):
            await handle.cancel()
            await handle.peek()
            await handle.acknowledge()
