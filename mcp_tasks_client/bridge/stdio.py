"""stdin and stdout of this process as the streams of one connection, with bounds.

- stdin is read in a thread that keeps no process alive. A line that is too long, or is no message, is
  answered with an error, and the next line is read.
- stdout is the protocol's alone: its descriptor is taken away, and prints of others reach stderr.
- A request over the most that are served at once is refused. So a flood costs no memory.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from anyio import to_thread
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)

from .introspection import replied_id

__all__ = ["open_stdio"]

_LONGEST_LINE: Final = 32 * 1024 * 1024
"""Bytes of one message, at most."""

_MOST_AT_ONCE: Final = 1_000
"""Requests that are served at the same time, at most."""

_TOO_LONG: Final = "The message is too long."
_CHUNK: Final = 64 * 1024
_BUSY: Final = -32000


@asynccontextmanager
async def open_stdio() -> AsyncIterator[tuple[ObjectReceiveStream[Any], ObjectSendStream[Any]]]:
    """Take stdin and stdout over. Gives the stream of the host's messages, and that of the replies."""
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
    own = os.dup(number)
    if flags == os.O_WRONLY:
        os.dup2(2, number)
    else:
        nothing = os.open(os.devnull, flags)
        os.dup2(nothing, number)
        os.close(nothing)
    return own


class _Lines:
    """The lines of a descriptor, read ahead by one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | JSONRPCError | None] = queue.Queue(1)
        threading.Thread(target=self._read, name="bridge stdin", daemon=True).start()

    async def next(self) -> bytes | JSONRPCError | None:
        """The next line without its end, or the error to reply with if it is too long; ``None`` at the end."""
        return await to_thread.run_sync(self._lines.get, abandon_on_cancel=True)

    def _read(self) -> None:
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                chunk = os.read(self._descriptor, _CHUNK)
            except OSError:
                chunk = b""
            if not chunk:
                self._lines.put(None)
                return
            *ended, rest = chunk.split(b"\n")
            for one in ended:
                is_too_long = size + len(one) > _LONGEST_LINE
                self._lines.put(
                    _error(None, PARSE_ERROR, _TOO_LONG) if is_too_long else b"".join([*parts, one])
                )
                parts, size = [], 0
            size += len(rest)
            parts = [*parts, rest] if size <= _LONGEST_LINE else []


class _Writer(ObjectSendStream[Any]):
    """Writes messages to a descriptor. A message that was sent has left this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._turn = anyio.Lock()
        self._is_closed = False
        self.under_way: set[Any] = set()

    async def send(self, item: Any) -> None:
        """Write one message.

        Raises:
            BrokenResourceError: The host reads no more.
        """
        self.under_way.discard(replied_id(item))
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        async with self._turn:
            if self._is_closed:
                raise anyio.ClosedResourceError
            try:
                with anyio.CancelScope(shield=True):  # half a line would spoil all that follow
                    await to_thread.run_sync(self._write, text.encode() + b"\n", abandon_on_cancel=True)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Write no more."""
        self._is_closed = True

    def _write(self, content: bytes) -> None:
        left = memoryview(content)
        while left:
            left = left[os.write(self._descriptor, left) :]


async def _pump(lines: _Lines, to_server: ObjectSendStream[Any], writer: _Writer) -> None:
    async with to_server:
        while True:
            line = await lines.next()
            if line is None:
                return
            message = _read(line) if isinstance(line, bytes) else line
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
                writer.under_way.add(message.id)
            await to_server.send(SessionMessage(message))


def _read(line: bytes) -> Any:
    """The message in a line; ``None`` in a blank one; the error to reply with, if it is none."""
    if not line.strip():
        return None
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
