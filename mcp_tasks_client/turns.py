"""Whose turn it is: the due times of waiting drives in a heap, and the cap on polls in flight."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

import anyio

from .clock import Clock
from .drive import Drive


class Turns:
    """Starts the poll of each drive when it is due; the earliest first, never two of one drive.

    Args:
        clock: Monotonic time.
        in_flight: Polls under way at once, at most.
        start: Begins a poll, which :meth:`over` ends.
    """

    def __init__(self, clock: Clock, in_flight: int, start: Callable[[Drive], None]) -> None:
        self._clock = clock
        self._in_flight = in_flight
        self._start = start
        self._heap: list[tuple[float, int, Drive]] = []
        self._order = itertools.count()
        self._polling = 0
        self._alarm = anyio.Event()

    async def run(self) -> None:
        """Start what is due, as far as the cap allows, for ever."""
        while True:
            self._alarm = anyio.Event()
            now = self._clock.monotonic()
            while self._heap and self._polling < self._in_flight:
                due, _, drive = self._heap[0]
                # Entries of drives that stopped, were woken otherwise, or have a poll in flight
                # (whose reply sets the next due time) are passed over.
                if drive.running and due == drive.due:
                    if due > now:
                        del drive
                        break
                    if not drive.polling:
                        self._polling += 1
                        drive.polling = True
                        drive.due = math.inf  # until the reply, or a new start, says when
                        self._start(drive)
                heapq.heappop(self._heap)
                del drive  # or the last one would never be forgotten
            free = self._heap and self._polling < self._in_flight
            await self._clock.wait(self._alarm, self._heap[0][0] - now if free else None)

    def wake(self, drive: Drive, after_s: float) -> None:
        """Make a drive due in so many seconds; whatever it was due for before no longer counts."""
        if drive.running:
            drive.due = self._clock.monotonic() + after_s
            heapq.heappush(self._heap, (drive.due, next(self._order), drive))
            self._alarm.set()

    def over(self, drive: Drive) -> None:
        """End the poll of a drive, which makes room for another."""
        drive.polling = False
        self._polling -= 1
        self._alarm.set()
        if drive.running and drive.due <= self._clock.monotonic():
            # Taken up again while this poll was being stopped, and passed over since.
            heapq.heappush(self._heap, (drive.due, next(self._order), drive))

    def clear(self) -> None:
        """Nobody is due any more."""
        self._heap.clear()
