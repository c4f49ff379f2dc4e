"""Stands between clients and a server, lets the weather happen, and writes down what passed."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from .weather import Fate, Weather

__all__ = ["Lane", "Look", "Passed", "Proxy"]

STALL_S: Final = 2.0
LINGER_S: Final = 60.0
CHUNK: Final = 65536
LAST_CHUNK: Final = b"0\r\n\r\n"


@dataclass(slots=True, kw_only=True)
class Passed:
    """One exchange. ``at`` and ``replied_at`` are ``time.monotonic()`` seconds."""

    at: float
    life: int
    method: str
    """Of JSON-RPC; ``"GET"``, or empty for a reply of the client's."""

    session_id: str | None
    message: dict[str, Any]
    fate: Fate
    reached: bool = False
    """Whether the server may have seen it."""

    replied_at: float | None = None
    """When the client was told a status; ``None`` if it never was."""

    asks: list[Look] = field(default_factory=list)
    """What the server has asked in its response."""

    looks: list[Look] = field(default_factory=list)
    """What the server has asked in its response about tasks that it has us run."""

    until: float = math.inf
    """When the client heard no more of the response."""


@dataclass(frozen=True, slots=True)
class Look:
    """A request of the server's, a question or about a task of ours, at ``time.monotonic()`` seconds."""

    at: float
    message: dict[str, Any]
    heard: bool


@dataclass
class Lane:
    """The way of one client, from life to life.

    Attributes:
        weather: What happens on it.
        life: The number of the process that is on it.
        forgets_at: When the server forgets all sessions that there were, in ``time.monotonic()`` seconds.
        forgotten: Those.
        passed: What was.
    """

    weather: Weather
    life: int = 0
    forgets_at: float = math.inf
    forgotten: set[str] = field(default_factory=set)
    passed: list[Passed] = field(default_factory=list)

    def fate(self, method: str, session_id: str | None) -> Fate:
        """What happens to the next exchange."""
        fate = self.weather.fate(method, session_id)
        if session_id is None:
            return fate
        if time.monotonic() < self.forgets_at:
            self.forgotten.add(session_id)
            return fate
        return Fate("no_session") if session_id in self.forgotten else fate


class Proxy:
    """One server's.

    Args:
        upstream: The server's URL.

    Attributes:
        lanes: By the first part of the path.
    """

    def __init__(self, upstream: str) -> None:
        where = urlsplit(upstream)
        self._host, self._port, self._path = where.hostname or "", where.port or 80, where.path
        self._own_port = 0
        self.lanes: dict[str, Lane] = {}

    def url(self, lane: str) -> str:
        """Where a client finds the server."""
        return f"http://127.0.0.1:{self._own_port}/{lane}"

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Be there for the length of the block."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", limit=1 << 20)
        self._own_port = server.sockets[0].getsockname()[1]
        async with server:
            yield

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled once the voyages are over: asyncio's own callback would complain of that.
        ends = (asyncio.IncompleteReadError, ConnectionError, TimeoutError, asyncio.CancelledError)
        try:
            with suppress(*ends):
                await self._exchange(reader, writer)
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        verb, path, _ = line.split(" ")
        headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in fields)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        message = json.loads(body) if body else {}
        lane = self.lanes[path.lstrip("/")]
        method = message.get("method", "") if verb == "POST" else verb
        session_id = headers.get("mcp-session-id")
        passed = Passed(
            at=time.monotonic(),
            life=lane.life,
            method=method,
            session_id=session_id,
            message=message,
            fate=lane.fate(method, session_id),
        )
        lane.passed.append(passed)
        kept = [f"{name}: {value}" for name, value in headers.items() if name not in _OF_THE_WAY]
        head = [
            f"{verb} {self._path} HTTP/1.1",
            f"Host: {self._host}:{self._port}",
            "Connection: close",
            *kept,
        ]
        request = "\r\n".join([*head, "", ""]).encode("latin-1") + body
        way = _Way(self._host, self._port, passed, writer)
        forwarding = asyncio.create_task(way.forward(request))
        gone = asyncio.create_task(reader.read(1))
        await asyncio.wait([forwarding, gone], return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        way.end()
        # What the server says from here on is heard by nobody, but it should be known. A session has one
        # stream only, and its server is told when that is cut, or there would be no other one.
        linger_s = LINGER_S if method != "GET" else STALL_S if passed.fate.what == "stalled" else 0.0
        async with asyncio.timeout(linger_s):
            await forwarding


class _Way:
    """To the server and back, for one exchange."""

    def __init__(self, host: str, port: int, passed: Passed, writer: asyncio.StreamWriter) -> None:
        self.open = True
        self._host, self._port = host, port
        self._passed = passed
        self._writer = writer

    async def forward(self, request: bytes) -> None:
        fate, passed = self._passed.fate, self._passed
        if fate.what == "unread":
            self._writer.transport.abort()
            return
        if fate.what in _REFUSALS:
            passed.replied_at = time.monotonic()
            await self._say(refusal(fate, passed.message.get("id")))
            return
        if fate.what == "delayed":
            await asyncio.sleep(fate.seconds)
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            passed.reached = True
            writer.write(request)
            await writer.drain()
            await self._back(reader)
        finally:
            writer.transport.abort()

    async def _back(self, reader: asyncio.StreamReader) -> None:
        fate, passed = self._passed.fate, self._passed
        head = await reader.readuntil(b"\r\n\r\n")
        if fate.what == "unanswered":
            self._cut()
        if fate.what == "delayed":
            await asyncio.sleep(fate.seconds)
        if self.open:
            passed.replied_at = time.monotonic()
        await self._say(closing(head))
        ends_s = fate.seconds if fate.what in _CUT else None
        with suppress(TimeoutError):
            async with asyncio.timeout(ends_s):
                await self._copy(reader)
                return
        match fate.what:
            case "ended":
                await self._say(LAST_CHUNK)
                self.end()
                self._writer.close()
            case "stalled":
                self.end()
                asyncio.get_running_loop().call_later(STALL_S, self._writer.transport.abort)
            case _:
                self._cut()
        await self._copy(reader)

    async def _copy(self, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(CHUNK):
            said = [Look(time.monotonic(), message, self.open) for message in messages(chunk)]
            self._passed.asks += [one for one in said if one.message.get("method") in _ASKS]
            self._passed.looks += [one for one in said if one.message.get("method") in _LOOKS]
            await self._say(chunk)

    async def _say(self, data: bytes) -> None:
        if self.open:
            self._writer.write(data)
            with suppress(ConnectionError):
                await self._writer.drain()

    def _cut(self) -> None:
        self.end()
        self._writer.transport.abort()

    def end(self) -> None:
        """Nobody hears any more what the server says here."""
        self.open = False
        self._passed.until = min(self._passed.until, time.monotonic())


_OF_THE_WAY: Final = frozenset({"host", "connection"})
_ASKS: Final = frozenset({"elicitation/create", "sampling/createMessage"})
_LOOKS: Final = frozenset({"tasks/get", "tasks/result"})
_CUT: Final = frozenset({"cut", "stalled", "ended"})
_REFUSALS: Final = frozenset({"unavailable", "no_session", "not_found"})


def messages(chunk: bytes) -> list[dict[str, Any]]:
    """Those of an event stream that are in a chunk of it; the servers write each at once."""
    found = []
    for line in chunk.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line.removeprefix(b"data:")))
    return [one for one in found if isinstance(one, dict)]


def closing(head: bytes) -> bytes:
    """The head of a response after which the connection ends, whatever the server says of that."""
    lines = [one for one in head.split(b"\r\n") if not one.lower().startswith(b"connection:")]
    return b"\r\n".join([lines[0], b"Connection: close", *lines[1:]])


def refusal(fate: Fate, request_id: object) -> bytes:
    """The response that is made here."""
    error = {"code": -32001, "message": "Session not found"}
    match fate.what:
        case "unavailable":
            status, kind, body = "503 Service Unavailable", "text/plain", b"busy"
        case "no_session":
            status, kind = "404 Not Found", "application/json"
            body = json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode()
        case _:
            status, kind, body = "404 Not Found", "text/html", b"<h1>Not found</h1>"
    wait = f"Retry-After: {fate.seconds:.0f}\r\n" if fate.what == "unavailable" and fate.seconds else ""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{wait}"
    return f"{head}Connection: close\r\n\r\n".encode() + body
