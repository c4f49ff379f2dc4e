"""A host that knows nothing but JSON-RPC over httpx or httpx2, at a scripted server without sockets."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, Final

import httpx
import httpx2

from mcp_tasks_client import (
    Environment,
    Journal,
    MemoryJournal,
    PollPolicy,
    Scope,
    TaskRecord,
    TasksClient,
    TasksHttpTransport,
)
from mcp_tasks_client.testing import (
    ScriptedServer,
    ask,
    ask_first,
    complete,
    fail,
    form,
    reply,
    text_result,
    work,
)

from .limit import limited

__all__ = [
    "CURRENT",
    "ENDPOINT",
    "LIMIT_S",
    "OLDER",
    "QUICK",
    "URL",
    "JsonRpcHost",
    "OlderJsonRpcHost",
    "asking_server",
    "count",
    "hosted",
    "recorded",
    "resume",
]

LIMIT_S: Final = 60.0
URL: Final = "http://server.test/mcp"
ENDPOINT: Final = URL
CURRENT: Final = "2026-07-28"
OLDER: Final = "2025-11-25"
QUICK: Final = PollPolicy(floor_s=0.001, ceiling_s=0.001, jitter=0.0)
CAPABILITIES: Final[dict[str, Any]] = {"elicitation": {"form": {}}, "roots": {}}

SAMPLING: Final[dict[str, Any]] = {
    "method": "sampling/createMessage",
    "params": {"messages": [], "maxTokens": 16},
}

_META: Final = "io.modelcontextprotocol/"


def asking_server(**options: Any) -> ScriptedServer:
    """A server with one tool for each way in which a call can go."""
    server = ScriptedServer(endpoint=ENDPOINT, **options)
    done = complete(text_result("done"))
    server.tool("plain", [reply(text_result("plain"))])
    server.tool("slow", [work(0.01, "half way"), work(0.01, "nearly"), done], poll_interval_ms=1)
    server.tool("bad", [work(0.01), complete({**text_result("no"), "isError": True})], poll_interval_ms=1)
    server.tool("fails", [work(0.01), fail(-32050, "quota exceeded", {"retryAfter": 7})], poll_interval_ms=1)
    server.tool("for_ever", [work(math.inf)], poll_interval_ms=1)
    server.tool("asks", [ask("name", form("Who?", name="string")), done], poll_interval_ms=1, settle_s=0.0)
    server.tool(
        "asks_twice",
        [
            ask({"a": form("A?", a="string"), "b": form("B?", b="string")}),
            ask("c", form("C?", c="string")),
            done,
        ],
        poll_interval_ms=1,
        settle_s=0.0,
    )
    first = ask_first("name", form("Who?", name="string"))
    server.tool("asks_first", [first, work(0.01), done], poll_interval_ms=1)
    server.tool("asks_model", [ask("m", SAMPLING), done], poll_interval_ms=1)
    return server


class JsonRpcHost:
    """Sends ``tools/call`` as a session of a version does, and reads the reply.

    Args:
        client: Of httpx or httpx2.
        version: Of the protocol.
        accept: The ``Accept`` header.
    """

    def __init__(
        self,
        client: Any,
        *,
        version: str = CURRENT,
        accept: str = "application/json, text/event-stream",
        capabilities: dict[str, Any] = CAPABILITIES,
        url: str = URL,
    ) -> None:
        self.client = client
        self.version = version
        self.accept = accept
        self.capabilities = capabilities
        self.url = url
        self.notified: list[dict[str, Any]] = []
        self._ids = itertools.count(0)

    def body(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> dict[str, Any]:
        own = dict(meta or {})
        if self.version == CURRENT:
            own |= {
                f"{_META}protocolVersion": CURRENT,
                f"{_META}clientInfo": {"name": "a host", "version": "1"},
                f"{_META}clientCapabilities": self.capabilities,
            }
        given = {"name": name, "arguments": arguments or {}, **({"_meta": own} if own else {}), **params}
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": "tools/call", "params": given}

    @property
    def headers(self) -> dict[str, str]:
        return {
            "Accept": self.accept,
            "MCP-Protocol-Version": self.version,
            "Content-Type": "application/json",
        }

    async def post(self, body: dict[str, Any], **headers: str) -> Any:
        given = {**self.headers, "Mcp-Method": body.get("method", ""), **headers}
        if body.get("method") == "tools/call" and body["params"]["name"].isascii():
            given["Mcp-Name"] = body["params"]["name"]
        return await self.client.post(self.url, content=json.dumps(body), headers=given)

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """The JSON-RPC response, which has the ID of the request; what came before is in ``notified``."""
        body = self.body(name, arguments, **params)
        response = await self.post(body)
        assert response.status_code == 200, response.text
        assert json.loads(response.request.content) == body, "stays readable"
        answer = self.read(response)
        assert answer["id"] == body["id"]
        assert type(answer["id"]) is type(body["id"])
        return answer

    def read(self, response: Any) -> dict[str, Any]:
        if response.headers["content-type"] == "application/json":
            answer: dict[str, Any] = json.loads(response.content)
            return answer
        assert response.headers["content-type"] == "text/event-stream"
        data = [
            line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")
        ]
        *before, last = map(json.loads, data)
        self.notified += before
        assert isinstance(last, dict)
        return last

    async def text(self, name: str, arguments: dict[str, Any] | None = None, **params: Any) -> str:
        answer = await self.call(name, arguments, **params)
        return str(answer["result"]["content"][0]["text"])


class OlderJsonRpcHost:
    """A host whose session is asked on the stream of the call's reply."""

    def __init__(
        self,
        host: JsonRpcHost,
        answers: Mapping[str, dict[str, Any]],
        capabilities: dict[str, Any] | None = None,
    ) -> None:
        self.host = host
        self.asked: list[dict[str, Any]] = []
        self._answers = answers
        self._capabilities = {"elicitation": {}} if capabilities is None else capabilities

    async def initialize(self) -> None:
        params = {"protocolVersion": OLDER, "capabilities": self._capabilities, "clientInfo": {"name": "h"}}
        await self.host.post({"jsonrpc": "2.0", "id": "init", "method": "initialize", "params": params})

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The ``result`` or the ``error`` that a request of the server is answered with."""
        return self._answers[request["method"]]

    async def call(
        self, tool: str, arguments: dict[str, Any] | None = None, meta: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The JSON-RPC response."""
        host, body, replies = self.host, self.host.body(tool, arguments, meta), list[dict[str, Any]]()
        stream = host.client.stream("POST", host.url, content=json.dumps(body), headers=host.headers)
        async with stream as response:
            async for line in response.aiter_lines():
                if line.startswith(("{", "data: ")):
                    message = json.loads(line.removeprefix("data: "))
                    if "method" not in message:
                        replies.append(message)
                    elif "id" in message:
                        self.asked.append(message)
                        reply = {"jsonrpc": "2.0", "id": message["id"], **await self.answer(message)}
                        assert (await self.host.post(reply)).status_code == 202
        (reply,) = replies
        assert reply["id"] == body["id"]
        return reply


@asynccontextmanager
async def hosted(
    server: ScriptedServer,
    journal: Journal | None = None,
    *,
    library: ModuleType = httpx2,
    inner: Any = None,
    client_options: Mapping[str, Any] | None = None,
    host_options: Mapping[str, Any] | None = None,
    limit_s: float = LIMIT_S,
    **options: Any,
) -> AsyncIterator[JsonRpcHost]:
    """A host whose client has the transport."""
    options = {"journal": journal if journal is not None else MemoryJournal(), "poll": QUICK, **options}
    options.setdefault("environment", Environment(clock=server.clock))
    lib: Any = library
    transport = TasksHttpTransport(inner or lib.ASGITransport(server.app), **options)
    with limited(limit_s, lambda: [request.method for request in server.witness.arrivals]):
        async with lib.AsyncClient(transport=transport, **(client_options or {})) as client:
            yield JsonRpcHost(client, **(host_options or {}))


def count(server: ScriptedServer, method: str) -> int:
    """How many requests of a method have reached the server."""
    return len(server.witness.log(method))


async def recorded(journal: Journal, *, pending: bool = False) -> list[TaskRecord]:
    async with journal:
        return await journal.records(Scope(ENDPOINT), pending=pending)


async def resume(
    server: ScriptedServer, journal: Journal, *, delivered_within_s: float | None = None, **options: Any
) -> list[str]:
    """The results of what is left, as another client of the journal gets them."""
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport) as http:
        options = {"poll": QUICK, "environment": Environment(clock=server.clock), **options}
        async with TasksClient(URL, http_client=http, journal=journal, **options) as client:
            results = [
                await handle.result() for handle in await client.resume(delivered_within_s=delivered_within_s)
            ]
    return [str(result.content[0].text) for result in results]  # type: ignore[union-attr]  # texts
