"""How a finished call is told to the host: its result, or the error that its end is."""

from __future__ import annotations

import math
from typing import Final, assert_never

from mcp_types import INTERNAL_ERROR, CallToolResult, TextContent

from ..errors import (
    RemoteProtocolError,
    SessionError,
    TaskCancelledError,
    TaskExpiredError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClientError,
    ToolError,
)
from ..machine.record import TaskRecord
from ..machine.states import Cancelled, Completed, Failed, Finished, Gone, Violated
from ..protocol import OLDER_VERSION, JSONObject
from ..protocol.replies import RpcError
from ..protocol.task import UNKNOWN
from ..protocol.text import name_tool, quote
from ..questions.context import CallContext
from ..sessions.base import GATEWAY_STATUSES, Session
from .tool_result import OutputSchema, read_result

__all__ = ["as_rpc_error", "read_outcome", "read_raw_outcome"]

_LOOKED_AT: Final = 100
"""Blocks in which the words of a tool that raised are looked for. There may be a million."""


async def read_outcome(
    record: TaskRecord,
    session: Session | None,
    deadline: float | None,
    context: CallContext | None = None,
    output_schema: OutputSchema = "raise",
    *,
    raise_on_error: bool = False,
) -> CallToolResult:
    """The result of a finished call.

    Args:
        record: Of the call.
        session: Knows the tool's output schema; ``None`` if nothing can be asked.
        deadline: Until when the schema may be asked for, by the event loop's clock; ``None`` leaves the
            result unchecked.
        context: Of the call.
        output_schema: Whether a result that does not match it is raised, logged or passed.
        raise_on_error: Raise a result that has ``is_error``.

    Raises:
        TaskError: The call ended otherwise: failed, cancelled, expired, not found.
        ToolError: The tool raised, and ``raise_on_error`` is true.
        RemoteProtocolError: The result is none, or does not match the tool's output schema.
    """
    state = record.state
    assert isinstance(state, Finished)
    tool, task_id = name_tool(record.tool), record.task_id
    again = "make a new call" + (" under a new idempotency key" if record.idempotency_key is not None else "")
    match state.outcome:
        case Completed(result=raw):
            result = await read_result(raw, record.tool, task_id, session, deadline, context, output_schema)
            if not (raise_on_error and result.is_error):
                return result
            words = quote(_first_text(result), task_id).rstrip(".")
            said = f": {words}" if words else ""
            raise ToolError(
                f"The call of {tool} returned an error{said}. error.result has the whole result. To try "
                f"again, {again}.",
                result=result,
                tool=record.tool,
            )
        case Failed() as failed:
            why = "failed without saying why" if failed.code is None else f"ended in error {failed.code}"
            said = f": {quote(failed.message, task_id).rstrip('.')}" if failed.message else ""
            raise TaskFailedError(
                f"The call of {tool} {why}{said}. To try again, {again}.",
                code=failed.code,
                message=failed.message,
                data=failed.data,
                status_message=failed.status_message,
            )
        case Cancelled(status_message=message):
            said = f": {quote(message, task_id).rstrip('.')}" if message else ""
            raise TaskCancelledError(f"The task of {tool} was cancelled{said}. To try again, {again}.")
        case Gone(why="expired", message=message):
            said = f" ({quote(message, task_id).rstrip('.')})" if message else ""
            raise TaskExpiredError(
                f"The task of {tool} is gone: its time-to-live has passed{said}. Resume tasks before "
                f"their ttlMs is over, or {again}.",
            )
        case Gone(message=message):
            said = f" ({quote(message, task_id).rstrip('.')})" if message else ""
            lost = "It may have lost it in a restart"
            if session is not None and session.ephemeral:
                lost = "It died with the server's process, which ended with an earlier connection"
            elif state.task is not None and state.task.status == UNKNOWN:
                raise TaskNotFoundError(
                    f"The server does not know the task of {tool}{said}, and it was never seen here. Check "
                    f"its ID and the URL. A task of MCP {OLDER_VERSION} may live in an MCP session that is "
                    "not known here: attach it with the journal that its call was made with.",
                )
            raise TaskNotFoundError(
                f"The server does not know the task of {tool}{said}. {lost}; "
                f"{again} if the tool may run again. attach(task_id) looks for the task once more.",
            )
        case Violated(message=message):
            raise RemoteProtocolError(f"{message} Report it to the server's author.")
        case _ as never:
            assert_never(never)


def _first_text(result: CallToolResult) -> str:
    blocks = result.content[:_LOOKED_AT]
    return next((block.text for block in blocks if isinstance(block, TextContent)), "")


async def read_raw_outcome(
    record: TaskRecord,
    session: Session | None,
    context: CallContext | None = None,
    output_schema: OutputSchema = "raise",
) -> JSONObject:
    """The result of a finished call as it came, checked as :func:`read_outcome` does.

    Raises:
        TasksClientError: As :func:`read_outcome`.
    """
    await read_outcome(record, session, math.inf, context, output_schema)
    state = record.state
    assert isinstance(state, Finished)
    assert isinstance(state.outcome, Completed), "all else has raised"
    return state.outcome.result


def as_rpc_error(error: TasksClientError) -> RpcError:
    """The JSON-RPC error for a host that waits for a reply: the server's own words, if the server sent it.

    Not a result with ``isError``. It counts as the word of the tool: hosts hand it to their model, which may
    call again. An error of ours is for the people who run the host, and hosts raise or log a JSON-RPC error.
    """
    if isinstance(error, TaskFailedError) and error.code is not None:
        return RpcError(error.code, error.message, error.data)
    if isinstance(error, SessionError) and error.code is not None:
        # A gateway does not know what became of the call, and our message says so.
        passed_on = error.http_status in GATEWAY_STATUSES
        return RpcError(error.code, str(error) if passed_on else error.remote_message, error.data)
    return RpcError(INTERNAL_ERROR, str(error), error.data if isinstance(error, SessionError) else None)
