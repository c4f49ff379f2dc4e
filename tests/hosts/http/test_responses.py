"""Each response that a host gets through the transport keeps what httpx promises: read, closed, read anew."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, Final

import anyio
import httpx
import httpx2
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import MemoryJournal, TasksHttpTransport
from tests.kit.json_rpc_host import LIMIT_S, OLDER, QUICK, URL, JsonRpcHost
from tests.kit.older_server import OlderServer, Stream, question, refusal, text

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"]),
]

REQUESTS: Final = (
    "a result",
    "a result, in events",
    "an error",
    "an answer that does not fit",
    "an answer that does not fit, in events",
    "a call that is refused",
    "a call that passes",
    "a notification",
    "the stream of the session",
    "the end of the session",
)


async def misfit(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": 5})


def asks_at(wire: OlderServer) -> None:
    """Have the task ask for a name."""
    wire.task["status"] = "input_required"
    asked = question("q")
    asked["params"]["requestedSchema"] = {"type": "object", "properties": {"name": {"type": "string"}}}

    def result(arrived: Any) -> Stream:
        stream = Stream(arrived.message["id"])
        stream.event(asked)
        return stream

    wire.replies["tasks/result"] = result


class Sent:
    """What a host sends, over a client that has the transport, and what its hooks have seen."""

    def __init__(self, library: ModuleType, wire: OlderServer) -> None:
        self.library: Any = library
        self.bodies: list[tuple[str, bytes]] = []
        self._wire = wire

    async def serve(self, request: Any) -> Any:
        headers = list(request.headers.items())
        said = await self._wire(httpx.Request(request.method, URL, headers=headers, content=request.content))
        return self.library.Response(
            said.status_code,
            headers=list(said.headers.items()),
            stream=Relayed(self.library, said),
        )

    @asynccontextmanager
    async def client(self, *, hook_reads: bool) -> AsyncIterator[Any]:
        async def look_at_request(request: Any) -> None:
            self.bodies.append((request.method, request.content))

        async def look_at_response(response: Any) -> None:
            assert (response.request.method, response.request.content) == self.bodies[-1]
            if hook_reads:
                await response.aread()

        hooks = {"request": [look_at_request], "response": [look_at_response]}
        inner = self.library.MockTransport(self.serve)
        transport = TasksHttpTransport(inner, journal=MemoryJournal(), poll=QUICK, elicitation=misfit)
        with anyio.fail_after(LIMIT_S):
            async with self.library.AsyncClient(transport=transport, event_hooks=hooks) as client:
                yield client


def Relayed(library: Any, said: httpx.Response) -> Any:  # noqa: N802  # a class of either library
    class Body(library.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in said.stream:  # type: ignore[union-attr]
                yield chunk

        async def aclose(self) -> None:
            await said.aclose()

    return Body()


def request_for(what: str, client: Any, wire: OlderServer) -> Any:
    """The host's request, and how the server replies to it."""
    host = JsonRpcHost(client, version=OLDER)
    session = {"Mcp-Session-Id": "the host's"}
    if what == "the stream of the session":
        return client.build_request("GET", URL, headers={"Accept": "text/event-stream", **session})
    if what == "the end of the session":
        return client.build_request("DELETE", URL, headers={"Content-Type": "application/json", **session})
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    if what != "a notification":
        events = {"progressToken": 1} if "events" in what else None
        body = host.body("plain" if "passes" in what else "slow", meta=events)
    if "does not fit" in what:
        asks_at(wire)
    elif what == "an error":
        wire.replies["tools/call"] = lambda arrived: refusal(-32050, "no", request_id=arrived.message["id"])
    elif what == "a call that is refused":
        body["params"]["_meta"] = {"mcp-tasks-client/idempotency-key": 7}
    return client.build_request("POST", URL, content=json.dumps(body), headers=host.headers)


@pytest.fixture
def wire() -> OlderServer:
    wire = OlderServer()
    wire.replies["server/discover"] = lambda arrived: refusal(-32600, "Unsupported protocol version", 400)
    wire.replies["tasks/get"] = lambda arrived: {
        **wire.task,
        "status": "completed" if wire.task["status"] == "working" else wire.task["status"],
    }
    wire.replies["tasks/result"] = lambda arrived: text("done")
    return wire


@pytest.mark.parametrize("hook_reads", [False, True], ids=["", "a hook reads it"])
@pytest.mark.parametrize("what", REQUESTS)
async def test_a_response_is_read_closed_and_read_again(
    library: ModuleType, what: str, hook_reads: bool, wire: OlderServer
) -> None:
    sent = Sent(library, wire)
    lib: Any = library
    async with sent.client(hook_reads=hook_reads) as client:
        response = await client.send(request_for(what, client, wire), stream=True)
        if not (hook_reads or response.is_stream_consumed):
            with pytest.raises(lib.ResponseNotRead):
                response.content  # noqa: B018
        content = await response.aread()
        for _ in range(2):
            assert response.content == content == await response.aread()
            assert b"".join([chunk async for chunk in response.aiter_bytes()]) == content
            assert "".join([chunk async for chunk in response.aiter_text()]) == response.text
            await response.aclose()
        assert (response.is_closed, response.is_stream_consumed) == (True, True)
        assert response.elapsed.total_seconds() >= 0
        with pytest.raises(lib.StreamConsumed):
            [chunk async for chunk in response.aiter_raw()]
        if content and "stream of the session" not in what:
            assert b'"jsonrpc"' in content


@pytest.mark.parametrize("what", REQUESTS)
async def test_a_response_that_is_closed_unread_is_not_read_any_more(
    library: ModuleType, what: str, wire: OlderServer
) -> None:
    sent = Sent(library, wire)
    lib: Any = library
    async with sent.client(hook_reads=False) as client:
        response = await client.send(request_for(what, client, wire), stream=True)
        for _ in range(2):
            await response.aclose()
        if not response.is_stream_consumed:
            with pytest.raises(lib.StreamClosed):
                await response.aread()


@pytest.mark.parametrize("fails", ["an answer that does not fit", "an error", "a call that is refused"])
async def test_a_session_is_ended_after_a_call_that_failed(
    library: ModuleType, fails: str, wire: OlderServer
) -> None:
    sent = Sent(library, wire)
    async with sent.client(hook_reads=False) as client:
        async with client.stream("POST", URL, **given(request_for(fails, client, wire))) as failed:
            assert "error" in json.loads(await failed.aread())
        calls = len(wire.of("tools/call"))
        ended = await client.delete(URL, headers={"Mcp-Session-Id": "the host's"})
        assert (ended.status_code, ended.content, ended.text) == (200, b"", "")
        assert len(wire.of("DELETE")) == 1
    assert len(wire.of("tools/call")) == calls <= 1


def given(request: Any) -> dict[str, Any]:
    """The arguments of ``client.stream`` for a request."""
    return {"content": request.content, "headers": request.headers}
