"""Time that passes when nobody has anything left to do, and processes that can be held still."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Any

import anyio
import anyio.lowlevel

from mcp_tasks_client.old.clock import Clock

__all__ = ["ProcessClock", "WorldClock"]

_MOST_TURNS = 400


class WorldClock(Clock):
    """One time for all processes and the server, and one wall clock, which can be set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.offset = 0.0
        self._waiting: list[tuple[float, int, anyio.Event]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return 1_800_000_000.0 + self.now + self.offset

    def monotonic(self) -> float:
        return self.now

    async def wait(self, event: anyio.Event, timeout_s: float | None) -> None:
        if timeout_s is not None and timeout_s < float("inf"):
            heapq.heappush(self._waiting, (self.now + max(0.0, timeout_s), next(self._order), event))
        await event.wait()

    async def pass_to(self, end: float, over: anyio.Event) -> None:
        """Let time pass, from one moment that somebody waits for to the next."""
        await settled()
        while not over.is_set() and self._waiting and self._waiting[0][0] <= end:
            due, _, event = heapq.heappop(self._waiting)
            if event.is_set():
                continue
            self.now = max(self.now, due)
            event.set()
            await settled()
        self.now = max(self.now, end) if not over.is_set() else self.now


class ProcessClock(Clock):
    """The clocks as one process sees them. While it is suspended, nothing goes on."""

    def __init__(self, world: WorldClock) -> None:
        self._world = world
        self.awake = anyio.Event()
        self.awake.set()

    def time(self) -> float:
        return self._world.time()

    def monotonic(self) -> float:
        return self._world.monotonic()

    async def wait(self, event: anyio.Event, timeout_s: float | None) -> None:
        await self._world.wait(event, timeout_s)
        await self.awake.wait()

    def suspend(self) -> None:
        self.awake = anyio.Event()

    def go_on(self) -> None:
        self.awake.set()


async def settled() -> None:
    """Return when everything waits: for time to pass, for nobody, or for good."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # trio, which knows by itself
        await anyio.wait_all_tasks_blocked()
        return
    await _Idle(loop).wait()


class _Idle:
    """In the place of a loop's selector, which is asked at each turn, until nobody has anything to do.

    To be woken at each turn instead, in order to ask, would take a fifteenth of all the time.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._selector = loop._selector  # there is no public way to ask
        self._waiter = loop.create_future()
        self._turns = 0

    async def wait(self) -> None:
        self._loop._selector = self
        try:
            await self._waiter
        finally:
            self._loop._selector = self._selector

    def select(self, timeout: float | None) -> tuple[()]:
        """Nothing from outside. A time-out other than 0 says that nothing is ready."""
        self._turns += 1
        # A cancellation that a shield holds up is tried again at every turn.
        if (timeout != 0 or self._turns == _MOST_TURNS) and not self._waiter.done():
            self._waiter.set_result(None)
        return ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)
