"""Time: of the machine, of a test, or of a database that several machines share."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio

from .signal import FutureSignal, Signal

if TYPE_CHECKING:
    import asyncio

__all__ = ["Clock", "SharedClock", "SystemClock", "elapsed_s"]


class Clock(ABC):
    """Wall time for records, monotonic time for waits.

    Every wait between two requests goes by this clock. How long one request may last, and how long one is
    seen through after its caller has gone, are limits of the event loop's own clock, as those of HTTP are.
    """

    @abstractmethod
    def time(self) -> float:
        """Seconds since the epoch. May jump; comparable between processes and after a restart."""

    @abstractmethod
    def monotonic(self) -> float:
        """Seconds since some start. Never jumps; means nothing outside this process."""

    def elapsed(self) -> float:
        """Seconds since some start, those included in which the machine was suspended.

        Leases go by it. The default is :meth:`monotonic`, for a clock that knows of no suspension.
        """
        return self.monotonic()

    @abstractmethod
    async def wait(self, event: Signal, timeout_s: float | None) -> None:
        """Return when the event is set or the seconds have passed; ``None`` waits for the event only."""

    async def sleep(self, seconds: float) -> None:
        """Return when the seconds have passed."""
        await self.wait(anyio.Event(), seconds)


_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed_s() -> float:
    """Seconds of the machine's clock that counts on while the machine is suspended.

    Linux has one. The monotonic clock of Windows counts on too. That of macOS stands still. In a virtual
    machine that is paused every clock stands still.
    """
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class SystemClock(Clock):
    """The machine's clock, and the event loop's."""

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """The machine's, by which every event loop counts seconds."""
        return time.monotonic()

    def elapsed(self) -> float:
        """Seconds of the machine's clock that counts on during a suspension, where there is one."""
        return elapsed_s()

    async def wait(self, event: Signal, timeout_s: float | None) -> None:
        """Wait for the event or for the time to pass."""
        if timeout_s is None:
            await event.wait()
        elif isinstance(event, FutureSignal):
            future = event.wait()
            timer = future.get_loop().call_later(timeout_s, _end, future)
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


def _end(future: asyncio.Future[None]) -> None:
    """End one waiting, and no other that waits for the same signal."""
    if not future.done():
        future.set_result(None)


class SharedClock(Clock):
    """A clock whose time is that of a journal which several machines share.

    Args:
        own: The clock that waits, and that tells the time while the journal knows none.
        shared: Gives the journal's time; see :attr:`Journal.clock`.
    """

    def __init__(self, own: Clock, shared: Callable[[], float | None]) -> None:
        self._own = own
        self._shared = shared

    def time(self) -> float:
        """Seconds since the epoch, by the journal's clock."""
        now = self._shared()
        return self._own.time() if now is None else now

    def monotonic(self) -> float:
        """Seconds of the clock that waits."""
        return self._own.monotonic()

    def elapsed(self) -> float:
        """Seconds of the clock that waits, suspensions included."""
        return self._own.elapsed()

    async def wait(self, event: Signal, timeout_s: float | None) -> None:
        """Wait for the event or for the time to pass."""
        await self._own.wait(event, timeout_s)

    async def sleep(self, seconds: float) -> None:
        """Wait for the time to pass."""
        await self._own.sleep(seconds)
