"""A server of raw connections, and the HTTP libraries with which a session may reach it."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import fields, replace
from typing import Any, Final

import anyio
import anyio.abc
import anyio.lowlevel
import httpx
import httpx2
import pytest

from mcp_tasks_client import Limits, TaskRef
from mcp_tasks_client.errors import ConnectionLostError, SessionError
from mcp_tasks_client.sessions.http import channel
from mcp_tasks_client.sessions.http.http_session import HttpSession

REF = TaskRef("task-0123456789")
TASK = {"resultType": "task", "taskId": "task-0123456789", "status": "working"}

LIBRARIES: Final = ("asyncio-aiohttp", "asyncio-httpx", "trio-httpx")

also_over_httpx2 = pytest.mark.parametrize("anyio_backend", [*LIBRARIES, "asyncio-httpx2"], indirect=True)
"""For what a transport has to get right. httpx and httpx2 share one, and all that is above it."""

over_a_given_client = pytest.mark.parametrize("anyio_backend", ["asyncio-httpx", "trio-httpx"], indirect=True)
"""For what brings an httpx client of its own, which none of our own libraries then stands in for."""


@pytest.fixture(params=LIBRARIES)
def anyio_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each event loop, with each library that may carry the requests on it."""
    loop, _, library = str(request.param).partition("-")
    if library != "aiohttp":
        monkeypatch.setattr(channel, "on_asyncio", lambda: False)
    if library == "httpx2":
        chosen = channel._library
        monkeypatch.setattr(channel, "_library", lambda *given: chosen(*given) if any(given) else httpx2)
    return loop


class Connection:
    """One accepted connection, from the server's side."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._buffer = b""
        self.head = b""
        self.body: dict[str, Any] = {}

    async def request(self) -> bool:
        """Read one request; false if the client has closed instead."""
        try:
            while b"\r\n\r\n" not in self._buffer:
                self._buffer += await self._stream.receive()
            self.head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            length = int(self.header("content-length"))
            while len(self._buffer) < length:
                self._buffer += await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return False
        self.body, self._buffer = json.loads(self._buffer[:length]), self._buffer[length:]
        return True

    def header(self, name: str) -> str:
        lines = self.head.decode().split("\r\n")[1:]
        return next(
            value for key, _, value in (line.partition(": ") for line in lines) if key.lower() == name
        )

    async def send(self, *parts: bytes) -> None:
        await self._stream.send(b"".join(parts))

    async def reset(self) -> None:
        """Close so that the other side sees a reset instead of an end."""
        raw = self._stream.extra(anyio.abc.SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self._stream.aclose()

    async def closed_by_client(self) -> bool:
        try:
            while True:
                await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return True

    def result(self, value: object = None) -> bytes:
        """A JSON-RPC result for the request that was read."""
        method = self.body["method"]
        if method == "server/discover":
            value = {"supportedVersions": ["2026-07-28"]}
        elif method == "tools/list":
            value = {"tools": [{"name": "deploy", "inputSchema": {}}]}
        return json.dumps({"jsonrpc": "2.0", "id": self.body["id"], "result": value or TASK}).encode()


def head(length: int | None, *lines: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return "\r\n".join([f"HTTP/1.1 {status}", f"content-type: {kind}", framing, *lines, "", ""]).encode()


def whole(body: bytes, *lines: str, status: str = "200 OK") -> bytes:
    return head(len(body), *lines, status=status) + body


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


SSE = head(None, kind="text/event-stream")
END = chunk(b"")


class SocketServer:
    """Runs ``script`` for each connection, with the number of the connection."""

    def __init__(self, script: Callable[[Connection, int], Awaitable[None]]) -> None:
        self.script = script
        self.connections = 0
        self.url = ""

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        self.connections += 1
        async with stream:
            # The client, or the script itself, may close the connection at any time.
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
                await self.script(Connection(stream), self.connections)


@asynccontextmanager
async def serving(script: Callable[[Connection, int], Awaitable[None]]) -> AsyncIterator[SocketServer]:
    server = SocketServer(script)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        server.url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/mcp"
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(listener.serve, server.serve)
                yield server
                group.cancel_scope.cancel()


@asynccontextmanager
async def connected(server: SocketServer, **options: Any) -> AsyncIterator[HttpSession]:
    limits = {each.name: options.pop(each.name) for each in fields(Limits) if each.name in options}
    session = HttpSession(server.url, limits=Limits(**limits), **options)
    try:
        yield session
    finally:
        await session.aclose()


async def hurry(session: HttpSession, task_timeout_s: float) -> None:
    """Bound a session's requests from now on. A first one has made the transport by then."""
    await session.get(REF)
    session.limits = replace(session.limits, task_timeout_s=task_timeout_s)


async def lost(script: Callable[[Connection, int], Awaitable[None]], **options: Any) -> SessionError:
    """How a poll fails."""
    async with serving(script) as server, connected(server, **options) as session:
        with pytest.raises(SessionError) as caught:
            await session.get(REF)
    return caught.value


def is_lost_reply(error: SessionError) -> bool:
    return type(error) is ConnectionLostError and error.retryable and not error.not_executed


class Interrupted(httpx.AsyncBaseTransport):
    """Cancels a scope at the ``n``-th point where a transport waits, and counts the bodies that stay open.

    Args:
        kind: Of the bodies.
        respond: The pieces of a body.
        n: From 1.
        scope: What is cancelled.
    """

    def __init__(
        self,
        kind: str,
        respond: Callable[[httpx.Request], list[bytes]],
        n: int,
        scope: anyio.CancelScope,
    ) -> None:
        self._kind = kind
        self._respond = respond
        self._left = n
        self._scope = scope
        self.open = 0

    async def wait(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()
        await anyio.lowlevel.checkpoint()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await self.wait()
        self.open += 1
        body = InterruptedBody(self, self._respond(request))
        return httpx.Response(200, headers={"content-type": self._kind}, stream=body)


class InterruptedBody(httpx.AsyncByteStream):
    def __init__(self, transport: Interrupted, pieces: list[bytes]) -> None:
        self._transport = transport
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await self._transport.wait()
            yield piece
        await self._transport.wait()

    async def aclose(self) -> None:
        await self._transport.wait()
        self._transport.open -= 1
