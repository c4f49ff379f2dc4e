"""The database's clock, by which leases and due times of different hosts are compared."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final
from weakref import WeakValueDictionary

from ...aio.clock import elapsed_s

__all__ = ["DatabaseClock"]


class DatabaseClock:
    """The time that the clock of a database shows now, going by when it was read last.

    It is read with each transaction that writes, and with each renewal of a lease. In between a clock of this
    host counts on, which no wall clock that is set can move. In a virtual machine that is paused it stands
    still: then the time is too early here, so that others seem to live.
    """

    def __init__(self) -> None:
        self._read: tuple[float, float] | None = None  # its time, and our own clock's then

    @classmethod
    def of(cls, journal: Hashable) -> DatabaseClock:
        """The one of a journal, by its ``identity``, for all who have the journal in this process."""
        return _CLOCKS.setdefault(journal, cls())

    def note(self, shown: float, at: float) -> None:
        """Note what the clock showed, in seconds since the epoch.

        Args:
            shown: Its time, in seconds since the epoch.
            at: When, by :func:`elapsed_s`.
        """
        self._read = shown, at

    def time(self) -> float | None:
        """Seconds since the epoch; ``None`` while the clock was never read."""
        read = self._read
        return None if read is None else read[0] + elapsed_s() - read[1]


_CLOCKS: Final[WeakValueDictionary[Hashable, DatabaseClock]] = WeakValueDictionary()
