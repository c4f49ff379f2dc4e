"""Time, passed in: two readings and one way to wait. And whether our own time is up.

The machine never reads a clock; the driver does, through this contract, so that a test can put
:class:`mcp_tasks_client.old.testing.ManualClock` in its place and let hours pass in microseconds.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from typing import Final

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
        """The machine's, which every event loop counts seconds by."""
        return time.monotonic()

    async def wait(self, event: anyio.Event, timeout_s: float | None) -> None:
        """Wait for the event or for the time to pass."""
        with anyio.move_on_after(timeout_s):
            await event.wait()


class _Endless:
    """As a scope that never ends."""

    deadline = math.inf

    def __enter__(self) -> _Endless:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing was begun."""


_ENDLESS: Final = _Endless()


def within(timeout_s: float | None) -> anyio.CancelScope | _Endless:
    """A scope that ends after so many seconds. ``None`` costs nothing: thousands of calls wait in one."""
    return _ENDLESS if timeout_s is None else anyio.move_on_after(timeout_s)


def being_stopped() -> bool:
    """Whether a cancellation that was just caught is ours to pass on.

    Otherwise it came from inside: something that was awaited was cancelled by its owner. Passed on,
    that would look like the end of everything around it.
    """
    if anyio.current_effective_deadline() == -math.inf:
        return True
    import asyncio  # not before it is used: an event loop brings it, importing us need not

    try:
        task = asyncio.current_task()
    except RuntimeError:  # another event loop
        return False
    return task is not None and task.cancelling() > 0
