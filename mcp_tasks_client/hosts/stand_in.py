"""The methods of an MCP session besides ``call_tool``, over a :class:`Session` of ours.

So a :class:`TasksClient` can be given where a framework takes a session. Results have the SDK's own shapes.
"""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from mcp_types import SERVER_INFO_META_KEY, EmptyResult, InitializeResult, ListToolsResult
from pydantic import BaseModel, ValidationError

from ..errors import RemoteProtocolError
from ..protocol import PROTOCOL_VERSION, JSONObject
from ..protocol.text import quote
from ..sessions.base import Session
from ..sessions.tool_catalogue import ListedTool, read_tool

__all__ = ["introduce", "list_tools", "ping"]

logger = logging.getLogger("mcp_tasks_client")

ModelT = TypeVar("ModelT", bound=BaseModel)


async def introduce(session: Session) -> InitializeResult:
    """Ask the server for its introduction. A server that gives no name has that of the endpoint.

    Raises:
        SessionError: The server could not be asked, or its answer makes no sense.
    """
    said = await session.ask("server/discover", {})
    offered = said.get("supportedVersions") or [PROTOCOL_VERSION]
    named = (said.get("_meta") or {}).get(SERVER_INFO_META_KEY)
    return _read(
        InitializeResult,
        "server/discover",
        {
            "protocolVersion": PROTOCOL_VERSION if PROTOCOL_VERSION in offered else offered[0],
            "capabilities": said.get("capabilities") or {},
            "serverInfo": named or {"name": session.endpoint, "version": ""},
            "instructions": said.get("instructions"),
        },
    )


async def list_tools(session: Session, cursor: str | None) -> ListToolsResult:
    """Ask for one page of the server's tools. Tools that the protocol has clients reject are left out.

    Raises:
        SessionError: The server could not be asked, or its answer is no list.
    """
    page = await session.ask("tools/list", {} if cursor is None else {"cursor": cursor})
    entries, tools, faults = page.get("tools"), dict[str, ListedTool](), list[str]()
    listed = _read(
        ListToolsResult, "tools/list", {**page, "tools": []} if isinstance(entries, list) else page
    )
    for entry in entries or []:
        read_tool(entry, tools, faults)
    if faults:
        logger.warning(
            "%s: %d tools are left out, the first one %s", session.endpoint, len(faults), faults[0]
        )
    listed.tools = [one.tool for one in tools.values() if one.fault is None]
    return listed


async def ping(session: Session) -> EmptyResult:
    """Check that the server answers. 2026-07-28 has no ping, so it is asked for its introduction.

    Raises:
        SessionError: The server does not answer.
    """
    await session.ask("server/discover", {})
    return EmptyResult()


def _read(model: type[ModelT], method: str, said: JSONObject) -> ModelT:
    try:
        return model.model_validate(said, by_name=False)
    except ValidationError as error:
        problem: Any = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise RemoteProtocolError(
            f"The reply to {method} cannot be used: {quote(where)}: {quote(problem['msg'])}. Report it to "
            "the server's author.",
            retryable=True,
        ) from None
