"""What an engine is given from outside: time, chance, process, and who observes calls."""

from __future__ import annotations

import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import anyio

from ..journal.base import Journal
from .observer import Observer
from .process import Process
from .signal import FutureSignal, Signal

__all__ = ["LEASE_S", "Clock", "Environment", "SystemClock"]

LEASE_S: Final = 30.0
"""Seconds after which a process that has not renewed its lease counts as gone, if it cannot be seen."""


class Clock(ABC):
    """Wall time for what is written down, monotonic time for what is waited for.

    Every wait between two requests goes by this clock. How long one request may last, and how long one is
    seen through after its caller has gone, are limits of the event loop's own clock, as those of HTTP are.
    """

    @abstractmethod
    def time(self) -> float:
        """Seconds since the epoch. May jump; comparable between processes and after a restart."""

    @abstractmethod
    def monotonic(self) -> float:
        """Seconds since some start. Never jumps; means nothing outside this process."""

    @abstractmethod
    async def wait(self, event: Signal, timeout_s: float | None) -> None:
        """Return when the event is set or the seconds have passed; ``None`` waits for the event only."""

    async def sleep(self, seconds: float) -> None:
        """Return when the seconds have passed."""
        await self.wait(anyio.Event(), seconds)


class SystemClock(Clock):
    """The machine's clock, and the event loop's."""

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """The machine's, by which every event loop counts seconds."""
        return time.monotonic()

    async def wait(self, event: Signal, timeout_s: float | None) -> None:
        """Wait for the event or for the time to pass."""
        if timeout_s is None:
            await event.wait()
        elif isinstance(event, FutureSignal):
            future = event.wait()
            timer = future.get_loop().call_later(timeout_s, event.set)
            try:
                await future
            finally:
                timer.cancel()
        else:
            with anyio.move_on_after(timeout_s):
                await event.wait()

    async def sleep(self, seconds: float) -> None:
        """Wait for the time to pass."""
        await anyio.sleep(seconds if seconds < math.inf else math.inf)


class SharedClock(Clock):
    """A clock whose time is that of a journal which several machines share.

    Args:
        own: What is waited by, and told while the journal knows no time.
        shared: Of the journal; see :attr:`Journal.clock`.
    """

    def __init__(self, own: Clock, shared: Callable[[], float | None]) -> None:
        self._own = own
        self._shared = shared

    def time(self) -> float:
        """Seconds since the epoch, by the journal's clock."""
        now = self._shared()
        return self._own.time() if now is None else now

    def monotonic(self) -> float:
        """That of the clock which is waited by."""
        return self._own.monotonic()

    async def wait(self, event: Signal, timeout_s: float | None) -> None:
        """Wait for the event or for the time to pass."""
        await self._own.wait(event, timeout_s)

    async def sleep(self, seconds: float) -> None:
        """Wait for the time to pass."""
        await self._own.sleep(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Passed in once per client. The defaults are the real ones."""

    clock: Clock = field(default_factory=SystemClock)
    jitter: Callable[[], float] = random.random
    """Draws fractions from 0 to 1."""

    process: Process | None = None
    """The process that we are; ``None`` asks the operating system."""

    observer: Observer | None = None
    """Told of each step of each call; ``None`` tells nobody."""

    lease_s: float = LEASE_S
    """Seconds for which the lease of this process lasts, after which others may take its calls over. Of
    several clients of a process on one journal, the one counts that opened it first."""

    def around(self, journal: Journal) -> Environment:
        """The same, by the clock of all who share a journal, if it has one."""
        if journal.clock is None:
            return self
        return replace(self, clock=SharedClock(self.clock, journal.clock))
