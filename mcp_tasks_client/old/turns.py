"""Whose turn it is: the due times of waiting drives in a heap, and the cap on polls in flight.

Whoever has polled goes on with the next drive that is due, the earliest first, and waits when there is
none. So there are never more of them than polls in flight, and none is made anew for a poll.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio.abc import TaskGroup

from .clock import Clock
from .drive import Drive
from .signals import signal

_REST_S: Final = 0.02
"""Seconds of rest after each poll while there is a press of calls. Nearly always it is the processor that
they wait for, and a call that has not begun goes before a poll, which would only be late. Should it be the
server that is slow, 16 pollers still make 800 polls a second."""

_SHORT_S: Final = 0.001
_LONG_S: Final = 1e9
_FAR_APART: Final = -6
"""Binary logarithm of the seconds between the moments at which polls are due, at most."""


def together(due: float, after_s: float) -> float:
    """Up to 0.4 % of the wait later, where many are due at once. A wake-up costs as much as a poll."""
    if not _SHORT_S < after_s < _LONG_S:
        return due  # where it would not matter, or could not be reckoned
    # A power of two, so that drives with nearly the same wait meet, and nothing is rounded down. It grows
    # with the square of the wait: of a task that is soon over even a millisecond counts.
    apart_s = math.ldexp(1.0, min(2 * math.frexp(after_s)[1] - 12, _FAR_APART))
    return math.ceil(due / apart_s) * apart_s


class _Idle:
    """Somebody who can poll and has nothing to poll."""

    __slots__ = ("called", "drive")

    def __init__(self) -> None:
        self.called = signal()
        self.drive: Drive | None = None


class Turns:
    """Polls each drive when it is due; the earliest first, never two polls of one drive.

    Args:
        clock: Monotonic time.
        in_flight: Polls under way at once, at most.
        tasks: Where they run.
        poll: Polls a drive, which may cancel the scope that this runs in. Returns whether whoever ran it is
            fit for another: not, if it was cancelled from inside.
        pressed: Whether calls wait to be made.
    """

    def __init__(
        self,
        clock: Clock,
        in_flight: int,
        tasks: TaskGroup,
        poll: Callable[[Drive, anyio.CancelScope], Awaitable[bool]],
        pressed: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._in_flight = in_flight
        self._tasks = tasks
        self._poll = poll
        self._pressed = pressed
        self._heap: list[tuple[float, int, Drive]] = []
        self._order = itertools.count()
        self._polling = 0
        self._idle: list[_Idle] = []
        self._alarm = anyio.Event()
        self._sleeps_until = -math.inf

    async def run(self) -> None:
        """Start what is due, as far as the cap allows, for ever."""
        while True:
            self._alarm = anyio.Event()
            while (drive := self._next()) is not None:
                self._begin(drive)
            del drive  # or the last one would never be forgotten
            full = self._polling >= self._in_flight  # whoever ends a poll then goes on with the next
            self._sleeps_until = self._heap[0][0] if self._heap and not full else math.inf
            wait_s = self._sleeps_until - self._clock.monotonic() if self._sleeps_until < math.inf else None
            await self._clock.wait(self._alarm, wait_s)

    def wake(self, drive: Drive, after_s: float) -> None:
        """Make a drive due in so many seconds; whatever it was due for before no longer counts."""
        if drive.running:
            drive.due = together(self._clock.monotonic() + after_s, after_s)
            self._push(drive)

    def clear(self) -> None:
        """Nobody is due any more."""
        self._heap.clear()

    def _push(self, drive: Drive) -> None:
        if drive.due == math.inf:
            return  # and nothing holds it
        heapq.heappush(self._heap, (drive.due, next(self._order), drive))
        if not drive.polling:  # or whoever polls it looks next
            self._alarm_if_sooner()

    def _alarm_if_sooner(self) -> None:
        if self._heap and self._heap[0][0] < self._sleeps_until and self._polling < self._in_flight:
            self._alarm.set()

    def _next(self) -> Drive | None:
        """The drive that is to be polled now, if there is one, and room for it under the cap."""
        now = self._clock.monotonic()
        while self._heap and self._polling < self._in_flight:
            due, _, drive = self._heap[0]
            # Entries of drives that stopped, were woken otherwise, or have a poll in flight
            # (whose reply sets the next due time) are passed over.
            stands = drive.running and due == drive.due
            if stands and due > now:
                return None
            heapq.heappop(self._heap)
            if stands and not drive.polling:
                self._polling += 1
                drive.polling = True
                drive.due = math.inf  # until the reply, or a new start, says when
                return drive
        return None

    def _begin(self, drive: Drive) -> None:
        if self._idle:
            idle = self._idle.pop()
            idle.drive = drive
            idle.called.set()
        else:
            self._tasks.start_soon(self._work, drive)

    async def _work(self, drive: Drive | None) -> None:
        """Poll this one, and then what is due, for as long as that goes well."""
        fit = True
        # One for all, as a scope for each would be a tenth of what a poll costs. Whoever cancels it ends us.
        with anyio.CancelScope() as scope:
            while fit:
                # None while it waits, so that what it polled last can be forgotten.
                drive = drive or await self._called()
                fit = False
                try:
                    fit = await self._polled(drive, scope)
                finally:
                    self._polling -= 1
                    # Not what another drive's end would stop.
                    fit = fit and not scope.cancel_called
                    drive = self._next() if fit else None
                    if drive is None:
                        self._alarm_if_sooner()

    async def _polled(self, drive: Drive, scope: anyio.CancelScope) -> bool:
        """Poll it, and rest a little if others are in a hurry. Returns whether all went well."""
        try:
            fit = await self._poll(drive, scope)
        finally:
            drive.polling = False
            if drive.running and drive.due <= self._clock.monotonic():
                # Taken up again while this poll was being stopped, and passed over since.
                self._push(drive)
        if fit and self._pressed():
            await self._clock.wait(anyio.Event(), _REST_S)
        return fit

    async def _called(self) -> Drive:
        """Wait to be given something to poll."""
        idle = _Idle()
        self._idle.append(idle)
        await idle.called.wait()
        assert idle.drive is not None
        return idle.drive
