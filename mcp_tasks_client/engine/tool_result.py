"""A result as it came, read and checked against the output schema of its tool, where that is known."""

from __future__ import annotations

import logging
from typing import Any, Final

import anyio
from mcp_types import CallToolResult
from pydantic import ValidationError

from ..errors import RemoteProtocolError
from ..protocol.json_schema import UnusableSchemaError, find_mismatch
from ..sessions.base import Session
from ..protocol import JSONObject
from ..protocol.text import redact

__all__ = ["output_schema", "read_result"]

logger = logging.getLogger("mcp_tasks_client")

_SCHEMA_TIMEOUT_S: Final = 5.0
"""Seconds that a finished result waits for its tool's output schema, at most."""


async def read_result(
    raw: JSONObject, tool: str | None, task_id: str | None, session: Session | None, deadline: float | None
) -> CallToolResult:
    """The result of a call.

    Args:
        raw: As it came.
        tool: What was called; ``None`` if that is not known.
        task_id: Shortened, should a message quote it.
        session: Knows the tool's schema; ``None`` if nothing can be asked any more.
        deadline: Until when the schema may be asked for; ``None`` leaves the result unchecked.

    Raises:
        RemoteProtocolError: It is none, or does not match the schema. Its data is what came.
    """
    try:
        result = CallToolResult.model_validate(raw, extra="allow")
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise RemoteProtocolError(
            f"The result of {tool!r} is not a CallToolResult, {where}: {problem['msg']}. It is "
            "in the error's data as it came; report it to the server's author.",
            data=raw,
        ) from None
    if deadline is None or result.is_error:
        return result
    found = await _problem(result, raw, tool, session, deadline, fresh=False)
    if found is not None and session is not None:
        # The schema may have changed since the tools were listed.
        found = await _problem(result, raw, tool, session, deadline, fresh=True)
    if found is not None:
        raise RemoteProtocolError(
            f"The result of {tool!r} does not match the tool's output schema, {redact(found, task_id)}. "
            "It is in the error's data as it came; report it to the server's author.",
            data=raw,
        )
    return result


async def output_schema(tool: str | None, session: Session | None, deadline: float, *, fresh: bool) -> dict[str, Any] | None:
    """What the tool promised to return, where that can be known soon enough."""
    if session is None or tool is None:
        return None
    deadline = min(deadline, anyio.current_time() + _SCHEMA_TIMEOUT_S)
    with anyio.CancelScope(deadline=deadline):
        try:
            described = await session.tool(tool, fresh=fresh)
            return described.output_schema if described is not None else None
        except Exception as error:
            logger.info("The output of %r is not checked against its schema: %s", tool, error)
            return None
    logger.info("The output of %r is not checked: tools/list takes too long", tool)
    return None


async def _problem(
    result: CallToolResult, raw: JSONObject, tool: str | None, session: Session | None, deadline: float, *, fresh: bool
) -> str | None:
    """Why the result does not match the tool's schema; ``None`` if it does, or nothing can be said."""
    schema = await output_schema(tool, session, deadline, fresh=fresh)
    if schema is None:
        return None
    if "structuredContent" not in raw:
        return "it has no structuredContent"
    try:
        return find_mismatch(result.structured_content, schema)
    except UnusableSchemaError as error:
        logger.info("The output of %r is not checked, its schema is unusable: %s", tool, error)
        return None
