"""The database's clock, by which leases and due times of different hosts are compared."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final
from weakref import WeakValueDictionary

from ...aio.clock import elapsed_s

__all__ = ["DatabaseClock"]


class DatabaseClock:
    """The time by the clock of a database, counted on from its last reading.

    It is read with each transaction that writes, and with each renewal of a lease. In between a clock of this
    host counts on, which setting the wall clock does not move. In a paused virtual machine it stands still:
    then the time is too early here, so that dead processes seem to live.
    """

    def __init__(self) -> None:
        self._read: tuple[float, float] | None = None  # its time, and our own clock's then

    @classmethod
    def of(cls, journal: Hashable) -> DatabaseClock:
        """The clock of a journal, by its ``identity``; its users in this process share it."""
        return _CLOCKS.setdefault(journal, cls())

    def note(self, shown: float, at: float) -> None:
        """Note a reading of the clock.

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
