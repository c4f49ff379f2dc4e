"""Messages from an event stream, as they come: one that may stay open for hours, and not only hold the reply.

Unlike the reply to a simple request such a stream is endless: each event is bounded and the stream is not.
So it has a reader of its own, that is fed and never waits: no generator is ever left half-way, whenever
the stream is let go.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ..errors import RemoteProtocolError
from ..wire import JSONObject
from .bodies import DRAIN_S, encodings_of, run_out
from .channel import Message
from .faults import Faults
from .replies import Reply, is_event_stream, parse, read_reply, reply_in
from .transport import Response

__all__ = ["read_messages"]

_MOST_DIGITS: Final = 9
"""Of a pause in milliseconds; more are read as these."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


async def read_messages(
    response: Response,
    message: Message,
    told: Callable[[JSONObject], None],
    max_bytes: int,
    alive: Callable[[], None],
    rests: Callable[[float], None] = lambda seconds: None,
) -> Reply:
    """The reply that ends the stream, or that came in place of one.

    Args:
        response: Whose body it is.
        message: What it is the response to.
        told: Called with each request and notification that comes before the reply.
        max_bytes: Bytes of one event, or of a reply that is no stream, at most.
        alive: Called whenever a line has come.
        rests: Called with the seconds that the server wants to pass before the stream is opened again.

    Raises:
        SessionError: There is no reply.
        Exception: The body could not be read to its end; one of the transport's failures.
    """
    faults = message.faults
    if not (is_event_stream(response) and 200 <= response.status < 300):
        return await read_reply(response, message.request_id, max_bytes, faults)
    events = _Events(max_bytes, response.status, faults, rests)
    if response.content is not None:
        reply = _take(events.fed(response.content), message, told, response.status)
        return _last(events, message, told, response.status) if reply is None else reply
    if encodings_of(response):
        raise faults.wrong_encoding(response.status)
    return await _follow(response, message, told, events, alive)


async def _follow(
    response: Response,
    message: Message,
    told: Callable[[JSONObject], None],
    events: _Events,
    alive: Callable[[], None],
) -> Reply:
    chunks, patience_s = response.chunks(), 0.0
    try:
        async for chunk in chunks:
            reply = _take(events.fed(chunk), message, told, response.status)
            if reply is not None:
                patience_s = DRAIN_S  # its connection can then be used again
                return reply
            if events.line_ended:
                alive()
    finally:
        await run_out(chunks, patience_s)
    return _last(events, message, told, response.status)


def _take(
    events: Iterable[str], message: Message, told: Callable[[JSONObject], None], status: int
) -> Reply | None:
    """Pass on what is told, up to the reply, if that is there."""
    for event in events:
        try:
            one = parse(event)
        except ValueError as error:
            raise message.faults.malformed("an event that is not JSON", status=status) from error
        if not isinstance(one, dict) or "method" not in one:
            return reply_in(one, message.request_id, status, message.faults)
        told(one)
    return None


def _last(events: _Events, message: Message, told: Callable[[JSONObject], None], status: int) -> Reply:
    """The reply in an event that lacks its end, which a stream that is over may do."""
    try:
        reply = _take(events.flushed(), message, told, status)
    except RemoteProtocolError:
        reply = None  # it was cut off there
    if reply is None:
        raise message.faults.ended_early(status)
    return reply


class _Events:
    """Bytes in, the data of events out, wherever the bytes were split.

    Only that of events which are whole, and of the kind that carries messages.

    Args:
        max_bytes: Bytes of one event, or of one line, at most.
        status: HTTP status, for the error.
        faults: Tells that there were more.
        rests: Called with a wish for a pause, in seconds.

    Attributes:
        line_ended: Whether a line ended in what was fed last, be it a comment or an empty one.

    Source: WHATWG HTML, "Server-sent events".
    """

    def __init__(self, max_bytes: int, status: int, faults: Faults, rests: Callable[[float], None]) -> None:
        self.line_ended = False
        self._max_bytes = max_bytes
        self._status = status
        self._faults = faults
        self._rests = rests
        self._line = bytearray()
        self._data: list[bytes] = []
        self._kind = b""
        self._size = 0
        self._first = True
        self._after_cr = False

    def fed(self, chunk: bytes) -> Iterator[str]:
        """What has become whole by these bytes.

        Raises:
            RemoteProtocolError: An event is too large.
        """
        self.line_ended = False
        if not chunk:
            return
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")  # the other half of a line's end
        self._after_cr = chunk.endswith(b"\r")
        begun, *others = _LINE_END.split(chunk)
        self._extend(begun)
        for part in others:
            yield from self._end_line()
            self._extend(part)

    def flushed(self) -> Iterator[str]:
        """What is left when no more bytes will come, as if it were whole."""
        yield from self.fed(b"\n\n")

    def _extend(self, part: bytes) -> None:
        self._line += part
        if len(self._line) + self._size > self._max_bytes:
            raise self._faults.too_large(self._max_bytes, self._status)

    def _end_line(self) -> Iterator[str]:
        line = bytes(self._line)
        self._line.clear()
        self.line_ended = True
        if self._first:
            line, self._first = line.removeprefix(codecs.BOM_UTF8), False  # it is no part of the stream
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
                self._size += len(value) + 1
            case b"event":
                self._kind = value
            case b"retry" if value.isdigit():
                self._rests(int(value[:_MOST_DIGITS]) / 1000)
            case b"" if not line:
                yield from self._end_event()
            case _:
                pass  # a comment, or a field that says nothing to us

    def _end_event(self) -> Iterator[str]:
        data, kind = b"\n".join(self._data), self._kind
        self._data.clear()
        self._kind, self._size = b"", 0
        if kind in (b"", b"message") and data.strip():
            yield data.decode("utf-8", "replace")
