"""A clock that stands still until a test advances it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.lowlevel

from ..aio.clock import Clock
from ..aio.signal import Signal

__all__ = ["ManualClock"]


class ManualClock(Clock):
    """Stands still until a test advances it, so that hours pass in microseconds.

    Wall time and monotonic time pass together. :meth:`jump` sets the wall clock alone, as an
    administrator or a time server may.

    Args:
        start: Wall time at first, in seconds since the epoch.
    """

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = 0.0
        self._epoch = start
        self._waits: list[tuple[float, int, anyio.CancelScope]] = []
        self._order = itertools.count()
        self._busy = 0
        self._idle = anyio.Event()

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._epoch + self._now

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    async def wait(self, event: Signal, timeout_s: float | None) -> None:
        """Return when the event is set, or when the test has advanced the clock by so many seconds."""
        with anyio.CancelScope() as scope:
            if timeout_s is not None and timeout_s <= 0:
                scope.cancel()
            elif timeout_s is not None:
                heapq.heappush(self._waits, (self._now + timeout_s, next(self._order), scope))
            await event.wait()

    async def advance(self, seconds: float) -> None:
        """Let time pass, and stop at each moment that a task waits for.

        Returns when everything that was set in motion waits again. The work of a thread, such as a commit to
        SQLite, is waited for only within :meth:`busy`. Without it hours could pass meanwhile.
        """
        end = self._now + seconds
        await self._settle()
        while self._waits and self._waits[0][0] <= end:
            due, _, scope = heapq.heappop(self._waits)
            self._now = max(self._now, due)
            scope.cancel()
            await self._settle()
        self._now = end

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back. Monotonic time goes on as before."""
        self._epoch += seconds

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Hold :meth:`advance` for the length of the block, which waits for something real."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()
                self._idle = anyio.Event()

    async def _settle(self) -> None:
        """Return when every task waits for something, and no block of :meth:`busy` is entered."""
        while True:
            # On asyncio anyio looks only ten times a second. After a few turns all tasks mostly wait already.
            # Twice: of a task that has just ended asyncio tells the task that waits for it a turn later, and
            # at that moment all others seem to wait.
            for turns in (20, 5):
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                await anyio.wait_all_tasks_blocked()
            if not self._busy:
                return
            await self._idle.wait()
