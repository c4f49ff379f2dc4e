"""Time, passed in: two readings and one way to wait.

The machine never reads a clock; the driver does, through this contract, so that a test can put
:class:`mcp_tasks_client.testing.ManualClock` in its place and let hours pass in microseconds.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import anyio


class Clock(ABC):
    """Wall time for what is written down, monotonic time for what is waited for."""

    @abstractmethod
    def time(self) -> float:
        """Seconds since the epoch. May jump; comparable between processes and after a restart."""

    @abstractmethod
    def monotonic(self) -> float:
        """Seconds since some start. Never jumps; means nothing outside this process."""

    @abstractmethod
    async def wait(self, event: anyio.Event, timeout_s: float | None) -> None:
        """Return when the event is set or the seconds have passed; ``None`` waits for the event only."""


class SystemClock(Clock):
    """The machine's clock, and the event loop's."""

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """The event loop's own time, which its deadlines are in."""
        return anyio.current_time()

    async def wait(self, event: anyio.Event, timeout_s: float | None) -> None:
        """Wait for the event or for the time to pass."""
        with anyio.move_on_after(timeout_s):
            await event.wait()
