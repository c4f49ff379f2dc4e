"""Time that obeys."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.lowlevel

from ..clock import Clock

__all__ = ["ManualClock"]


class ManualClock(Clock):
    """Stands still until told to advance.

    Wall time and monotonic time go together unless :meth:`jump` sets the wall clock, as an
    administrator or a time server may.
    """

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = 0.0
        self._epoch = start
        self._waiting: list[tuple[float, int, anyio.Event]] = []
        self._order = itertools.count()
        self._busy = 0
        self._idle = anyio.Event()

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._epoch + self._now

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    async def wait(self, event: anyio.Event, timeout_s: float | None) -> None:
        """Wait for the event, which passing time sets as well."""
        if timeout_s is not None:
            heapq.heappush(self._waiting, (self._now + timeout_s, next(self._order), event))
        await event.wait()

    async def advance(self, seconds: float) -> None:
        """Let time pass, stopping at each moment that somebody waits for.

        Returns when everything that this set in motion waits again. What a thread does (a SQLite
        commit) is waited for only if it is :meth:`busy`; hours could pass during it otherwise.
        """
        end = self._now + seconds
        await self._settled()
        while self._waiting and self._waiting[0][0] <= end:
            due, _, event = heapq.heappop(self._waiting)
            self._now = max(self._now, due)
            event.set()
            await self._settled()
        self._now = end

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back; the monotonic time does not notice."""
        self._epoch += seconds

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Have time stand still for as long as the block lasts, which waits for something real."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()
                self._idle = anyio.Event()

    async def _settled(self) -> None:
        while True:
            # anyio asks only ten times a second on asyncio; after a few turns there is mostly nothing to ask.
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            if not self._busy:
                return
            await self._idle.wait()
