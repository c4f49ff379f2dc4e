"""A host that calls through a transport of ours: JSON-RPC over httpx or over streams, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, Final, Literal, TypeAlias

import httpx
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp_types import URL_ELICITATION_REQUIRED, CallToolResult

from mcp_tasks_client import (
    InputUnansweredError,
    OutcomeUnknownError,
    SessionError,
    TaskCancelledError,
    TaskExpiredError,
    TaskFailedError,
    TaskNotFoundError,
    TasksHttpTransport,
    TasksTransport,
)
from mcp_tasks_client import idempotency_key as under_key
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.testing import ScriptedServer
from tests.kit.json_rpc_host import URL, JsonRpcHost
from tests.kit.stream_host import over_streams

__all__ = ["HostCaller", "HostWay", "calling_as_host"]

HostWay: TypeAlias = Literal[
    "http", "http, streamed", "http, asked itself", "transport", "transport, asked itself"
]
"""Through a ``TasksHttpTransport`` or a ``TasksTransport``; whether the host reads event streams, or is asked
itself."""

Ask = Callable[[Any, Any], Awaitable[Any]]

_SAID: Final = {
    'on_unknown="resend"': OutcomeUnknownError,
    "does not know the task": TaskNotFoundError,
    "time-to-live has passed": TaskExpiredError,
    "was cancelled": TaskCancelledError,
}
"""What a host knows the errors by that no server has sent: their words."""

_INTERNAL_ERROR: Final = -32603


class HostCaller:
    """Calls a tool as a host does, and raises for an error what a ``TasksClient`` would raise.

    Args:
        host: Sends JSON-RPC.
        ask: Answers the questions that come to the host as the result of its call; ``None`` if none do.
        progress: Whether it wants progress, so that replies over HTTP are event streams.
    """

    def __init__(self, host: JsonRpcHost, ask: Ask | None, *, progress: bool) -> None:
        self._host = host
        self._ask = ask
        self._meta = {"progressToken": "p"} if progress else {}

    async def call_tool(
        self, tool: str, *, idempotency_key: str | None, on_unknown: Literal["raise", "resend"]
    ) -> CallToolResult:
        """Call a tool, and call again with answers while it asks."""
        further: JSONObject = {}
        with nullcontext() if idempotency_key is None else under_key(idempotency_key, on_unknown=on_unknown):
            while True:
                reply = await self._host.call(tool, meta=self._meta, **further)
                if "error" in reply:
                    raise _error_of(reply["error"])
                result = reply["result"]
                if result["resultType"] != "input_required":
                    return CallToolResult.model_validate(result)
                further = {"inputResponses": await self._answers(result["inputRequests"])}
                if "requestState" in result:
                    further["requestState"] = result["requestState"]

    async def _answers(self, requests: JSONObject) -> JSONObject:
        assert self._ask is not None, "its transport has a callback"
        answers = {}
        for key, request in requests.items():
            answer = await self._ask(SimpleNamespace(key=key), request["params"])
            answers[key] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
        return answers


def _error_of(error: JSONObject) -> Exception:
    code, message = error["code"], error["message"]
    if code == URL_ELICITATION_REQUIRED:
        return InputUnansweredError(message)
    if code != _INTERNAL_ERROR:
        return TaskFailedError(message, code=code, message=message)
    kind = next((kind for words, kind in _SAID.items() if words in message), SessionError)
    return kind(message)


@asynccontextmanager
async def calling_as_host(
    server: ScriptedServer, ask: Ask, way: HostWay, **options: Any
) -> AsyncIterator[HostCaller]:
    """A host whose HTTP client, or whose MCP transport, is one of ours.

    Args:
        server: Where the calls go.
        ask: Answers questions: by the callback of the transport, or as the host itself.
        way: Which of them it is.
        options: Of the transport.
    """
    asks = way.endswith("asked itself")
    options |= {"endpoint": server.session().endpoint, "elicitation": None if asks else ask}
    host: JsonRpcHost
    async with AsyncExitStack() as stack:
        if way.startswith("http"):
            # httpx, since a scripted server tells of a broken connection by an exception of that library.
            beneath = TasksHttpTransport(httpx.ASGITransport(server.app), **options)
            host = JsonRpcHost(await stack.enter_async_context(httpx.AsyncClient(transport=beneath)))
        else:
            http = httpx2.AsyncClient(transport=httpx2.ASGITransport(server.app))
            await stack.enter_async_context(http)
            around = TasksTransport(streamable_http_client(URL, http_client=http), **options)
            host = await stack.enter_async_context(over_streams(around))
        host.capabilities = {"elicitation": {"form": {}, "url": {}}}
        yield HostCaller(host, ask if asks else None, progress=way in ("http, streamed", "transport"))
