"""A result as it came, read and checked against the output schema of its tool, where that is known."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread
from mcp_types import CallToolResult
from pydantic import ValidationError

from ..errors import RemoteProtocolError
from ..protocol import JSONObject, MalformedError
from ..protocol.json_schema import MAX_STEPS, TooCostlyError, UnusableSchemaError, find_mismatch
from ..protocol.text import name_tool, quote
from ..questions.context import CallContext
from ..sessions.base import Session
from ..sessions.oddities import note_oddity

__all__ = ["OutputSchema", "check_output_schema", "read_result"]

logger = logging.getLogger("mcp_tasks_client")

OutputSchema: TypeAlias = Literal["raise", "warn", "off"]
"""What becomes of a result that does not match its tool's output schema. It is an error, or a line in the
log, or is passed on without a look at the schema."""

_SCHEMA_TIMEOUT_S: Final = 5.0
"""Seconds that a finished result waits for its tool's output schema, at most."""

_SLICE: Final = 500
"""Content blocks that are read before the event loop gets its turn; a block takes about 20 µs."""


async def read_result(
    raw: JSONObject,
    tool: str | None,
    task_id: str | None,
    session: Session | None,
    deadline: float | None,
    context: CallContext | None = None,
    output_schema: OutputSchema = "raise",
) -> CallToolResult:
    """The result of a call.

    Args:
        raw: As it came.
        tool: Its name; ``None`` if that is not known.
        task_id: Shortened, should a message quote it.
        session: Knows the tool's schema; ``None`` if nothing can be asked any more.
        deadline: Until when the schema may be asked for, by the event loop's clock; ``None`` leaves the
            result unchecked.
        context: Of the call.
        output_schema: What becomes of a result that does not match the tool's output schema. A schema that is
            not valid, or that costs too much to check, says nothing about the result.

    Raises:
        RemoteProtocolError: It is no result; or as ``output_schema`` says. The error's data is the reply.
    """
    try:
        result = await _read(raw)
    except MalformedError as error:
        raise RemoteProtocolError(
            f"The result of {name_tool(tool)} is not a CallToolResult, {quote(str(error), task_id)}. It is "
            "in the error's data as it came; report it to the server's author.",
            data=raw,
        ) from None
    if deadline is None or session is None or tool is None or result.is_error or output_schema == "off":
        return result
    fault = await _find_fault(
        raw,
        tool,
        task_id,
        partial(_output_schema, tool, session, deadline, context),
        partial(_note_pattern, session.endpoint),
    )
    if fault is not None and output_schema == "raise":
        raise RemoteProtocolError(f"{fault} It is in the error's data as it came.", data=raw)
    if fault is not None:
        logger.warning("%s It is passed on as it came.", fault)
    return result


async def _find_fault(
    raw: JSONObject,
    tool: str,
    task_id: str | None,
    schema_of: Callable[..., Awaitable[JSONObject | None]],
    pass_over: Callable[[str], object],
) -> str | None:
    """How a result breaks the output schema of its tool; ``None`` if it does not, or no schema is usable."""
    try:
        mismatch = await _find_mismatch(raw, await schema_of(), pass_over)
        if mismatch is not None:
            # The server may have changed the schema since its tools were listed.
            mismatch = await _find_mismatch(raw, await schema_of(fresh=True), pass_over)
    except UnusableSchemaError as error:
        logger.info("The output of %r is not checked: %s", tool, quote(str(error), task_id))
        return None
    if mismatch is None:
        return None
    return (
        f"The result of {tool!r} does not match the tool's output schema, {quote(mismatch, task_id)}. "
        "Report it to the server's author."
    )


def check_output_schema(output_schema: str) -> None:
    """Refuse a word that ``output_schema`` cannot be.

    Raises:
        ValueError: It is none of ``"raise"``, ``"warn"`` and ``"off"``.
    """
    if output_schema not in ("raise", "warn", "off"):
        raise ValueError(f'output_schema must be "raise", "warn" or "off", got {output_schema!r}')


async def _read(raw: JSONObject) -> CallToolResult:
    """``raw`` as a model. The event loop gets its turn after each slice of the content."""
    content = raw.get("content")
    if not isinstance(content, list) or len(content) <= _SLICE:
        return _validate(raw)
    result = _validate({**raw, "content": content[:_SLICE]})
    for start in range(_SLICE, len(content), _SLICE):
        await anyio.lowlevel.checkpoint()
        result.content += _validate({"content": content[start : start + _SLICE]}, start).content
    return result


def _validate(raw: JSONObject, start: int = 0) -> CallToolResult:
    try:
        return CallToolResult.model_validate(raw, extra="allow")
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        # Of a name that has no UTF-8 form, such as half a surrogate pair, pydantic does not say where it is.
        first, *rest = problem["loc"] or ("the name of a member",)
        # The first number counts the blocks of this slice.
        numbers = [rest[0] + start, *rest[1:]] if rest and isinstance(rest[0], int) else rest
        where = ".".join(map(str, (first, *numbers)))
        raise MalformedError(f"{where}: {problem['msg']}") from None


async def _output_schema(
    tool: str, session: Session, deadline: float, context: CallContext | None, *, fresh: bool = False
) -> JSONObject | None:
    """The output schema of the tool, where it can be known soon enough."""
    with anyio.CancelScope(deadline=min(deadline, anyio.current_time() + _SCHEMA_TIMEOUT_S)):
        try:
            described = await session.tool(tool, fresh=fresh, context=context)
        except Exception as error:
            logger.info("The output of %r is not checked against its schema: %s", tool, quote(str(error)))
            return None
        return described.output_schema if described is not None else None
    logger.info("The output of %r is not checked: tools/list takes too long", tool)
    return None


async def _find_mismatch(
    raw: JSONObject, schema: JSONObject | None, pass_over: Callable[[str], object]
) -> str | None:
    """Why the result does not match the tool's schema; ``None`` if it does, or there is no schema."""
    if schema is None:
        return None
    if "structuredContent" not in raw:
        return "it has no structuredContent"
    value: Any = raw["structuredContent"]
    try:
        return find_mismatch(value, schema, pass_over=pass_over)
    except TooCostlyError:
        # Too much to let the event loop wait for it.
        return await anyio.to_thread.run_sync(find_mismatch, value, schema, MAX_STEPS, pass_over)


def _note_pattern(endpoint: str, pattern: str) -> None:
    note_oddity(endpoint, f"an output schema has the pattern {quote(pattern)}, which cannot be read here")
