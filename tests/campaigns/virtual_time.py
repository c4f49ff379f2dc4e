"""Time that passes when nobody has anything left to do, and processes that can be suspended and killed."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import anyio

from mcp_tasks_client import Clock, Lease
from mcp_tasks_client.aio.signal import Signal
from mcp_tasks_client.engine.process import Process
from mcp_tasks_client.testing import KilledError

__all__ = ["ProcessClock", "VirtualProcess", "WorldClock"]

T = TypeVar("T")

_MOST_TURNS: Final = 400


class WorldClock(Clock):
    """The time of all processes and of the server, and one wall clock, which can be set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.offset = 0.0
        self._waiting: list[tuple[float, int, list[Signal]]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self.true_time() + self.offset

    def true_time(self) -> float:
        """The time that no wall clock shows which was set."""
        return 1_800_000_000.0 + self.now

    def monotonic(self) -> float:
        return self.now

    async def wait(self, event: Signal, timeout_s: float | None) -> None:
        waiting = [event]
        if timeout_s is not None and timeout_s < float("inf"):
            heapq.heappush(self._waiting, (self.now + max(0.0, timeout_s), next(self._order), waiting))
        try:
            await event.wait()
        finally:
            waiting.clear()

    async def pass_to(self, end: float, over: anyio.Event) -> None:
        """Let time pass, from one moment that somebody waits for to the next."""
        await settle()
        while not over.is_set() and self._waiting and self._waiting[0][0] <= end:
            due, _, waiting = heapq.heappop(self._waiting)
            if waiting:
                self.now = max(self.now, due)
                waiting[0].set()
                await settle()
        self.now = max(self.now, end) if not over.is_set() else self.now


class ProcessClock(Clock):
    """The clocks as one process sees them. While it is suspended, it waits; killed, it goes no further."""

    def __init__(self, world: WorldClock) -> None:
        self._world = world
        self._events: set[Signal] = set()
        self._scopes: set[anyio.CancelScope] = set()
        self.killed = False
        self.awake = anyio.Event()
        self.awake.set()

    def time(self) -> float:
        return self._world.time()

    def monotonic(self) -> float:
        return self._world.monotonic()

    async def wait(self, event: Signal, timeout_s: float | None) -> None:
        self._events.add(event)
        try:
            await self._world.wait(event, timeout_s)
        finally:
            self._events.discard(event)
        await self.pass_on()

    async def pass_on(self) -> None:
        """Return once the process runs.

        Raises:
            KilledError: The process was killed.
        """
        await self.awake.wait()
        if self.killed:
            raise KilledError("the process was killed")

    async def until_killed(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something that lasts no longer than the process, whatever shields it."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                done = await work()
                await self.pass_on()
                return done
            finally:
                self._scopes.discard(scope)
        raise KilledError("the process was killed")

    def suspend(self) -> None:
        self.awake = anyio.Event()

    def go_on(self) -> None:
        self.awake.set()

    def kill(self) -> None:
        """End whatever the process waits for."""
        self.killed = True
        self.awake.set()
        for event in list(self._events):
            event.set()
        for scope in list(self._scopes):
            scope.cancel()


@dataclass(frozen=True, slots=True)
class VirtualProcess(Process):
    """A process in virtual time. A function tells whether another one lives."""

    sees: Callable[[int], bool | None] = field(compare=False, default=lambda pid: None)
    """Whether the process of a number lives; ``None`` if that cannot be seen."""

    def sees_alive(self, lease: Lease) -> bool | None:
        return self.sees(lease.pid)

    def holds(self, lease: Lease) -> bool:
        return lease.pid == self.pid

    @classmethod
    def numbered(cls, pid: int, sees: Callable[[int], bool | None]) -> VirtualProcess:
        """The process of a number."""
        return cls("host", "boot", "", pid, 0.0, sees)


async def settle() -> None:
    """Return when everything waits: for time to pass, for nobody, or for good."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # trio, which knows by itself
        await anyio.wait_all_tasks_blocked()
        return
    await _Idle(loop).wait()


class _Idle:
    """Takes the place of a loop's selector until nothing is ready. The loop asks its selector at each turn.

    To be woken at each turn instead, in order to ask, would take a fifteenth of all the time.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._selector = loop._selector  # asyncio has no public way to ask
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
