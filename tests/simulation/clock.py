"""Time that passes when nobody has anything left to do, and processes that can be held still."""

from __future__ import annotations

import asyncio
import heapq
import itertools

import anyio
import anyio.lowlevel

from mcp_tasks_client.clock import Clock

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
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # there is no public way to ask
    except RuntimeError:  # trio, which knows by itself
        await anyio.wait_all_tasks_blocked()
        return
    for _ in range(_MOST_TURNS):  # a cancellation that a shield holds up is tried again at every turn
        await asyncio.sleep(0)
        if not ready:
            return
