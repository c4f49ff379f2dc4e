"""stdin and stdout of this process as the streams of one connection, with bounds.

- stdin is read in a thread that keeps no process alive. A line that is too long, or is no message, is
  answered with an error, and the next line is read.
- stdout is the protocol's alone: its descriptor is taken away, and prints of others reach stderr. It is
  written in another such thread, so that a host that does not read holds up its replies and nothing else.
- A request over the most that are served at once is refused, and one of a host that does not read is dropped.
  So a flood costs no memory.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, suppress
from queue import SimpleQueue
from typing import Any, Final

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from anyio.from_thread import BlockingPortal
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
from pydantic_core import PydanticSerializationError

from .halves import without_halves
from .introspection import replied_id

__all__ = ["open_stdio"]

_LONGEST_LINE: Final = 32 * 1024 * 1024
"""Bytes of one message, at most."""

_MOST_AT_ONCE: Final = 1_000
"""Requests that are served at the same time, at most. While as many messages wait for the host to read,
notifications are dropped."""

_MOST_UNREAD: Final = 20_000
"""Messages that wait for the host to read, at most. A host that reads late has all its refusals."""

_FLUSH_S: Final = 0.3
"""Seconds that the end waits for the host to read, at most."""

_CHUNK: Final = 64 * 1024
_BUSY: Final = -32000


@asynccontextmanager
async def open_stdio(
    at_end: Callable[[], None] = lambda: None,
) -> AsyncIterator[tuple[ObjectReceiveStream[Any], ObjectSendStream[Any]]]:
    """Take stdin and stdout over. Gives the stream of the host's messages, and that of the replies.

    ``at_end`` is called at the end of stdin.
    """
    reading, writing = _take(0, os.O_RDONLY), _take(1, os.O_WRONLY)
    to_server, from_host = anyio.create_memory_object_stream[Any](0)
    async with BlockingPortal() as portal, to_server, from_host:
        writer = _Writer(writing, portal)

        async def take(line: bytes | None) -> None:
            if line is None:
                at_end()
                to_server.close()
                return
            message = _accept(line, writer)
            if message is not None:
                with suppress(anyio.BrokenResourceError):  # the server has ended
                    await to_server.send(SessionMessage(message))

        def read() -> None:
            with suppress(RuntimeError, CancelledError):  # the portal is closed
                _read_lines(reading, lambda line: portal.call(take, line))

        threading.Thread(target=read, name="bridge stdin", daemon=True).start()
        try:
            yield from_host, writer
        finally:
            with anyio.move_on_after(_FLUSH_S, shield=True), suppress(anyio.BrokenResourceError):
                await writer.flush()
            await portal.stop(cancel_remaining=True)


def _take(number: int, flags: int) -> int:
    """A descriptor of our own for a standard stream, in whose place there is another file from now on."""
    own = os.dup(number)
    if os.name != "nt":
        os.set_blocking(own, True)  # another program that has the file open may have made it otherwise
    if flags == os.O_WRONLY:
        os.dup2(2, number)
    else:
        nothing = os.open(os.devnull, flags)
        os.dup2(nothing, number)
        os.close(nothing)
    return own


def _read_lines(descriptor: int, take: Callable[[bytes | None], None]) -> None:
    """Hand on each line without its end, cut off if it is too long; and ``None`` at the end of the file."""
    with suppress(OSError), os.fdopen(descriptor, "rb", buffering=_CHUNK) as file:
        while line := file.readline(_LONGEST_LINE + 1):
            if not line.endswith(b"\n") and len(line) <= _LONGEST_LINE:
                break  # the file ends in the middle of it
            take(line.removesuffix(b"\n"))
            while line and not line.endswith(b"\n"):
                line = file.readline(_CHUNK)
    take(None)


def _accept(line: bytes, writer: _Writer) -> Any:
    """The message in a line for the server; ``None`` if there is none, of which the host is told."""
    if not line.strip():
        return None
    try:
        message = _read(line)
    except _BadLineError as error:
        writer.refuse(error.request_id, error.code, str(error))
        return None
    if isinstance(message, JSONRPCRequest):
        if len(writer.under_way) >= _MOST_AT_ONCE:
            text = f"More than {_MOST_AT_ONCE} requests are under way. Wait for a reply."
            writer.refuse(message.id, _BUSY, text)
            return None
        writer.under_way.add(str(message.id))
    elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
        writer.under_way.discard(str((message.params or {}).get("requestId")))  # it gets no reply
    return message


class _BadLineError(Exception):
    def __init__(self, request_id: Any, code: int, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.code = code


def _read(line: bytes) -> Any:
    """The message in a line.

    Raises:
        _BadLineError: It is none.
    """
    if len(line) > _LONGEST_LINE:
        raise _BadLineError(None, PARSE_ERROR, f"The message is longer than {_LONGEST_LINE} bytes.")
    message = None
    with suppress(ValueError):
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    if message is not None and not isinstance(message, JSONRPCNotification):
        return message
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        raise _BadLineError(None, PARSE_ERROR, "The line is no JSON, or is nested too deeply.") from None
    if message is not None and "id" not in said:
        return message
    # The SDK takes a request whose ID is of another type for a notification, which nobody answers.
    name = said.get("id") if isinstance(said, dict) else None
    is_name = isinstance(name, str | int) and not isinstance(name, bool)
    raise _BadLineError(name if is_name else None, INVALID_REQUEST, "The line is no JSON-RPC message.")


class _Writer(ObjectSendStream[Any]):
    """Writes messages to a descriptor. A message that was sent has left this process.

    Attributes:
        under_way: The requests that have no reply yet, by their IDs as text.
    """

    def __init__(self, descriptor: int, portal: BlockingPortal) -> None:
        self.under_way: set[str] = set()
        self._descriptor = descriptor
        self._portal = portal
        self._waiting: SimpleQueue[tuple[bytes, anyio.Event | None]] = SimpleQueue()
        self._is_gone = False
        threading.Thread(target=self._write_all, name="bridge stdout", daemon=True).start()

    async def send(self, item: Any) -> None:
        """Write one message. A notification is dropped if the host does not read.

        Raises:
            BrokenResourceError: The host reads no more.
        """
        if isinstance(item.message, JSONRPCNotification) and self._waiting.qsize() >= _MOST_AT_ONCE:
            return
        try:
            await self._put(_encode(item.message))
        finally:
            self.under_way.discard(str(replied_id(item)))

    def refuse(self, request_id: Any, code: int, message: str) -> None:
        """Have an error written in reply to a line. It is dropped if the host does not read."""
        if self._waiting.qsize() < _MOST_UNREAD:
            error = JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))
            self._waiting.put((_encode(error), None))

    async def flush(self) -> None:
        """Return once all is written that was sent until now.

        Raises:
            BrokenResourceError: The host reads no more.
        """
        await self._put(b"")

    async def aclose(self) -> None:
        """There is nothing to close."""

    async def _put(self, content: bytes) -> None:
        done = anyio.Event()
        self._waiting.put((content, done))
        await done.wait()
        if self._is_gone:
            raise anyio.BrokenResourceError

    def _write_all(self) -> None:
        with suppress(RuntimeError):  # the portal is closed
            while True:
                content, done = self._waiting.get()
                left = memoryview(b"" if self._is_gone else content)
                try:
                    while left:
                        left = left[os.write(self._descriptor, left) :]
                except OSError:
                    self._is_gone = True
                if done is not None:
                    self._portal.start_task_soon(done.set)


def _encode(message: Any) -> bytes:
    try:
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
    except PydanticSerializationError:  # it is a question or a notification: replies have no halves
        text = json.dumps(without_halves(message.model_dump(by_alias=True, exclude_unset=True)))
    return f"{text}\n".encode()
