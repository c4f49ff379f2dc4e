"""stdin and stdout of this process as the streams of one connection, with bounds.

- stdin is read, and stdout written, in threads that keep no process alive: a host may leave stdin open, or
  read no more. A line that is too long, or is no message, is answered with an error, and the next is read.
- stdout is the protocol's alone: its descriptor is taken away, and prints of others reach stderr.
- A request over the most that are served at once is refused. So a flood costs no memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)

from .introspection import replied_id

__all__ = ["open_stdio"]

_LONGEST_LINE: Final = 32 * 1024 * 1024
"""Bytes of one message, at most."""

_MOST_AT_ONCE: Final = 1_000
"""Requests that are served at the same time, at most."""

_CHUNK: Final = 64 * 1024
_BUSY: Final = -32000


@asynccontextmanager
async def open_stdio() -> AsyncIterator[tuple[ObjectReceiveStream[Any], ObjectSendStream[Any]]]:
    """Take stdin and stdout over. Gives the stream of the host's messages, and that of the replies.

    On asyncio alone.
    """
    reading, writing = _take(0, os.O_RDONLY), _take(1, os.O_WRONLY)
    lines = _Lines(reading)
    writer = _Writer(writing)
    to_server, from_host = anyio.create_memory_object_stream[Any](0)
    async with anyio.create_task_group() as group:
        group.start_soon(_pump, lines, to_server, writer)
        try:
            yield from_host, writer
        finally:
            group.cancel_scope.cancel()


def _take(number: int, flags: int) -> int:
    """A descriptor of our own for a standard stream, in whose place there is another file from now on."""
    own = _own(number)
    if flags == os.O_WRONLY:
        os.dup2(2, number)
    else:
        nothing = os.open(os.devnull, flags)
        os.dup2(nothing, number)
        os.close(nothing)
    return own


def _own(number: int) -> int:
    own = os.dup(number)
    if os.name != "nt":
        os.set_blocking(own, True)  # another program that has the file open may have made it otherwise
    return own


class _Lines:
    """The lines of a descriptor, read ahead by one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(1)
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="bridge stdin", daemon=True).start()

    async def next(self) -> bytes | None:
        """The next line without its end; empty for one that was too long; ``None`` at the end of stdin."""
        line = await self._lines.get()
        self._room.release()
        return line

    def _put(self, line: bytes | None) -> None:
        self._room.acquire()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    def _read(self) -> None:
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                chunk = os.read(self._descriptor, _CHUNK)
            except OSError:
                chunk = b""
            if not chunk:
                self._put(None)
                return
            *ended, rest = chunk.split(b"\n")
            for one in ended:
                parts.append(one)
                self._put(b"" if size + len(one) > _LONGEST_LINE else b"".join(parts))
                parts, size = [], 0
            size += len(rest)
            parts = [*parts, rest] if size <= _LONGEST_LINE else []


class _Writer(ObjectSendStream[Any]):
    """Writes messages to a descriptor. A message that was sent has left this process.

    Attributes:
        under_way: The requests of the host that have no reply yet, by their IDs as texts.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self.under_way: set[str] = set()
        threading.Thread(target=self._write, name="bridge stdout", daemon=True).start()

    async def send(self, item: Any) -> None:
        """Write one message. If this is cancelled, it may be written whole all the same, or not at all.

        Raises:
            BrokenResourceError: The host reads no more.
        """
        self.under_way.discard(str(replied_id(item)))
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        if self._is_closed:
            raise anyio.ClosedResourceError
        written = self._loop.create_future()
        self._waiting.put((text.encode() + b"\n", written))
        try:
            await written
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Write no more."""
        self._is_closed = True
        self._waiting.put(None)

    def _write(self) -> None:
        while (one := self._waiting.get()) is not None:
            content, written = one
            if written.cancelled():
                continue
            failure: OSError | None = None
            try:
                left = memoryview(content)
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError as error:
                failure = error
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_settle, written, failure)


def _settle(written: asyncio.Future[None], failure: OSError | None) -> None:
    if written.cancelled():
        return
    if failure is None:
        written.set_result(None)
    else:
        written.set_exception(failure)


async def _pump(lines: _Lines, to_server: ObjectSendStream[Any], writer: _Writer) -> None:
    async with to_server:
        while True:
            line = await lines.next()
            if line is None:
                return
            message = _read(line)
            if isinstance(message, JSONRPCError):
                await writer.send(SessionMessage(message))
                continue
            if message is None:
                continue
            if isinstance(message, JSONRPCRequest):
                if len(writer.under_way) >= _MOST_AT_ONCE:
                    text = f"More than {_MOST_AT_ONCE} requests are under way. Wait for a reply."
                    refused = JSONRPCError(
                        jsonrpc="2.0", id=message.id, error=ErrorData(code=_BUSY, message=text)
                    )
                    await writer.send(SessionMessage(refused))
                    continue
                writer.under_way.add(str(message.id))
            elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
                # A request that was taken back has no reply.
                writer.under_way.discard(str((message.params or {}).get("requestId")))
            await to_server.send(SessionMessage(message))


def _read(line: bytes) -> Any:
    """The message in a line; ``None`` in an empty one; the error to reply with, if it is none."""
    if not line.strip():
        return _error(None, PARSE_ERROR, "The message is too long.") if line == b"" else None
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        pass
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return _error(None, PARSE_ERROR, "The line is no JSON.")
    name = said.get("id") if isinstance(said, dict) else None
    is_name = isinstance(name, str | int) and not isinstance(name, bool)
    return _error(name if is_name else None, INVALID_REQUEST, "The line is no JSON-RPC message.")


def _error(name: Any, code: int, message: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=name, error=ErrorData(code=code, message=message))
