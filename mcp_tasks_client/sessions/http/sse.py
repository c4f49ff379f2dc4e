"""Server-sent events: bytes in, events out, wherever the bytes were split. Pure: it is fed and never waits.

The only parser of event streams, for a stream that holds one reply and for one that stays open for
hours. Each event is bounded; the stream is not. Since the parser never waits, no generator is left
half-way when a stream is let go.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Final

__all__ = ["EventParser", "EventTooLargeError"]

_MOST_DIGITS: Final = 9
"""Digits of a ``retry`` in milliseconds; a longer number is read as its first nine digits."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class EventTooLargeError(ValueError):
    """An event, or a line, of more bytes than allowed."""


class EventParser:
    """Parses one event stream.

    Args:
        max_bytes: Bytes of one event, or of one line, at most.

    Attributes:
        retry_s: Seconds that the server wants to pass before the stream is opened again; ``None`` if it
            named none.
        line_ended: Whether a line ended in the chunk that was fed last, be it a comment or an empty one.

    Source: WHATWG HTML, "Server-sent events".
    """

    def __init__(self, max_bytes: int) -> None:
        self.retry_s: float | None = None
        self.line_ended = False
        self._max_bytes = max_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._kind = b""
        self._size = 0
        self._first = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The data of each message event that these bytes complete.

        Events of other kinds than ``message``, and those without data, are not yielded.

        Raises:
            EventTooLargeError: An event is larger than ``max_bytes``.
        """
        self.line_ended = False
        if not chunk:
            return
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")  # the other half of a line's end
        self._after_cr = chunk.endswith(b"\r")
        begun, *others = _LINE_END.split(chunk)
        self._extend_line(begun)
        for part in others:
            yield from self._end_line()
            self._extend_line(part)

    def flush(self) -> Iterator[str]:
        """The last event, when no more bytes will come and its blank line is missing."""
        yield from self.feed(b"\n\n")

    def _extend_line(self, part: bytes) -> None:
        self._line += part
        if len(self._line) + self._size > self._max_bytes:
            raise EventTooLargeError(f"an event of more than {self._max_bytes} bytes")

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
                self.retry_s = int(value[:_MOST_DIGITS]) / 1000
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
