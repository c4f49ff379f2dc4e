"""Lines of bounded length in a stream of bytes. Pure: it is fed and never waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["HEAD_BYTES", "Line", "LineSplitter"]

HEAD_BYTES: Final = 4096
"""Bytes that are kept of a line that is too long."""


class Line(NamedTuple):
    """A line without its end, or the beginning of one that is too long."""

    content: bytes
    is_whole: bool = True


class LineSplitter:
    """Splits data into lines. Of a line of more than ``max_bytes`` only the beginning is given, once."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._begun = bytearray()
        self._skips = False

    def feed(self, data: bytes) -> Iterator[Line]:
        """The lines that end in the data, or become too long in it."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            yield from self._add(part)
            if not self._skips:
                yield Line(bytes(self._begun))
            self._begun.clear()
            self._skips = False
        yield from self._add(rest)

    def flush(self) -> Iterator[Line]:
        """The last line, if it lacks its end."""
        if self._begun:
            yield Line(bytes(self._begun))
            self._begun.clear()

    def _add(self, part: bytes) -> Iterator[Line]:
        if self._skips:
            return
        self._begun += part
        if len(self._begun) > self._max_bytes:
            yield Line(bytes(self._begun[:HEAD_BYTES]), is_whole=False)
            self._begun.clear()
            self._skips = True
