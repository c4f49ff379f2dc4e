"""A host that calls through a ``TasksHttpTransport``: JSON-RPC over httpx, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, Final, Literal

import httpx
from mcp_types import CallToolResult

from mcp_tasks_client import (
    OutcomeUnknownError,
    SessionError,
    TaskCancelledError,
    TaskExpiredError,
    TaskFailedError,
    TaskNotFoundError,
    TasksHttpTransport,
)
from mcp_tasks_client import idempotency_key as under_key
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.testing import ScriptedServer
from tests.sessions.under_host._host import Host

__all__ = ["HttpCaller", "calling_over_http"]

Ask = Callable[[Any, Any], Awaitable[Any]]

_SAID: Final = {
    'on_unknown="resend"': OutcomeUnknownError,
    "does not know the task": TaskNotFoundError,
    "time-to-live has passed": TaskExpiredError,
    "was cancelled": TaskCancelledError,
}
"""What a host knows the errors by that no server has sent: their words."""

_INTERNAL_ERROR: Final = -32603


class HttpCaller:
    """Calls a tool as a host does, and raises for an error what a ``TasksClient`` would raise.

    Args:
        host: Sends JSON-RPC.
        ask: Answers the questions that come to the host as the result of its call; ``None`` if none do.
        streamed: Whether replies are event streams.
    """

    def __init__(self, host: Host, ask: Ask | None, *, streamed: bool) -> None:
        self._host = host
        self._ask = ask
        self._meta = {"progressToken": "p"} if streamed else {}

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
    if code != _INTERNAL_ERROR:
        return TaskFailedError(message, code=code, message=message)
    kind = next((kind for words, kind in _SAID.items() if words in message), SessionError)
    return kind(message)


@asynccontextmanager
async def calling_over_http(
    server: ScriptedServer,
    ask: Ask,
    way: Literal["http", "http, streamed", "http, asked itself"],
    **options: Any,
) -> AsyncIterator[HttpCaller]:
    """A host whose HTTP client has the transport.

    Args:
        server: Where the calls go.
        ask: Answers questions: by the callback of the transport, or as the host itself.
        way: Which of them it is, and whether replies are event streams.
        options: Of the transport.
    """
    asks = way == "http, asked itself"
    # httpx, since a scripted server tells of a broken connection by an exception of that library.
    transport = TasksHttpTransport(
        httpx.ASGITransport(server.app),
        endpoint=server.session().endpoint,
        elicitation=None if asks else ask,
        **options,
    )
    async with httpx.AsyncClient(transport=transport) as client:
        yield HttpCaller(Host(client), ask if asks else None, streamed=way == "http, streamed")
