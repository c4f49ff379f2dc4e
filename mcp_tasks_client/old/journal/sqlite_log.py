"""The bytes of a write-ahead log: whether it holds commits that SQLite would pass over in silence.

SQLite reads a log up to the first frame whose checksum is wrong and takes that for its end, for so a
crash leaves it. But a crash can spoil no more than the last commit, the one that was not synced yet:
where a commit lies behind a spoilt frame, and another one was added to it, it was synced, and
promised, and the frame was damaged later. The format is described at https://www.sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["LOG_HEADER", "Damage", "find_damage"]

LOG_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_ORDERS: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""The magic number says in which byte order the checksums add up their words."""

_sound: Final[dict[Path, bytes]] = {}
"""The header of each log that was looked through here, for that takes 0.1 s for each 4 MB."""

_Sums = tuple[int, int]


class Damage(NamedTuple):
    """Where a log was spoilt, and which log it was."""

    header: bytes
    at: int
    """Offset of the header or of the frame, in bytes."""


def find_damage(log: Path) -> Damage | None:
    """Look for a spoilt frame with synced commits behind it.

    Nothing can be said of a log that ends too early, even between two commits.
    """
    found = _look(log)
    # Somebody may be writing to it, and what was read in two halves looks spoilt as well. But not twice.
    return found if found is not None and found == _look(log) else None


def _look(log: Path) -> Damage | None:
    try:
        content = log.read_bytes()
    except FileNotFoundError:  # somebody else has just closed the journal, as the last one
        return None
    header = content[:LOG_HEADER]
    if len(content) < LOG_HEADER + _FRAME_HEADER or _sound.get(log) == header:
        return None
    magic, _, page_size, _ = struct.unpack_from(">4I", header)
    order = _ORDERS.get(magic, "<")
    sums = _add(order, (0, 0), header[:24])
    if magic not in _ORDERS or sums != struct.unpack_from(">2I", header, 24):
        return Damage(header, 0)  # it is synced before the first frame is written
    damage: Damage | None = None
    ended, said = False, (0, 0)  # of the frame before: whether it ends a commit, and its checksum
    for start, frame in _frames(content, page_size + _FRAME_HEADER):
        ours = frame[8:16] == header[16:24]
        if damage is None:
            sums = _add(order, _add(order, sums, frame[:8]), frame[_FRAME_HEADER:])
            if ours and sums == struct.unpack_from(">2I", frame, 16):
                continue
            damage = Damage(header, start)
        # Only a commit that was promised has anything added to it. One that failed, or whose process was
        # killed in it, may leave its frames too, and so may what an earlier use of the same file held.
        sums = _add(order, _add(order, said, frame[:8]), frame[_FRAME_HEADER:])
        said = struct.unpack_from(">2I", frame, 16)
        if ours and ended and sums == said:
            return damage
        ended = ours and struct.unpack_from(">I", frame, 4)[0] != 0
    _sound[log] = header
    return None


def _frames(content: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    for start in range(LOG_HEADER, len(content) - size + 1, size):
        yield start, content[start : start + size]


def _add(order: str, sums: _Sums, content: bytes) -> _Sums:
    first, second = sums
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
