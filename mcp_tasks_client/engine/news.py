"""New questions and ends of calls in a journal, each given once, for as long as a program iterates.

Nothing runs between two steps of the iteration. Within one, a look reads all that there is. The journal tells
when there may be more, and every few seconds a look is taken in any case. After a look that took long, the
next one waits for four times as long, up to five seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, Generic, TypeVar

import anyio

from ..aio.clock import Clock
from ..aio.signal import Signal, make_signal
from ..aio.uncut import weakly_in_loop
from ..errors import TasksClientError
from ..journal.base import Journal

__all__ = ["News"]

T = TypeVar("T")

_LOOK_S: Final = 5.0
"""Seconds between looks while the journal tells nothing."""

_REMEMBERED: Final = 10_000
"""Names that are remembered, at least: one may be found again after a look that did not find it."""

_REST_FACTOR: Final = 4
"""A look comes at least so many times the duration of the look before it after that look."""


class News(AsyncIterator[T], Generic[T]):
    """Gives each thing once. Several tasks may iterate over one.

    Args:
        journal: It is open.
        clock: Waits.
        look: All that there is at the moment, by its name, in the order in which it is to be given.
        is_open: Says that the iteration goes on. When that changes, :meth:`wake` is called.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        look: Callable[[], Awaitable[Mapping[str, T]]],
        is_open: Callable[[], bool],
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._look = look
        self._is_open = is_open
        self._turn = anyio.Lock()
        self._alarm: Signal | None = None
        self._found: deque[T] = deque()
        self._given: dict[str, None] = {}  # the names of the last ones, oldest first
        self._rests_until = -math.inf

    async def __anext__(self) -> T:
        """Return the next thing, once there is one.

        Raises:
            JournalError: The journal could not be read. Iterating may go on.
        """
        async with self._turn:
            try:
                if self._is_open() and not self._found:
                    stop = self._journal.watch(weakly_in_loop(self.wake))
                    try:
                        await self._find()
                    finally:
                        stop()
            except TasksClientError:
                if self._is_open():
                    raise
            if not self._is_open():
                raise StopAsyncIteration
            return self._found.popleft()

    async def _find(self) -> None:
        await self._rest()
        while self._is_open():  # it may have closed during the rest
            self._alarm = make_signal()
            began = self._clock.monotonic()
            rest_s = 1.0  # after a look that fails
            try:
                found = await self._look()
                rest_s = min(_REST_FACTOR * (self._clock.monotonic() - began), _LOOK_S)
            finally:
                self._rests_until = self._clock.monotonic() + rest_s
            self._found.extend(one for name, one in found.items() if name not in self._given)
            for name in found:
                self._given[name] = self._given.pop(name, None)  # as the newest
            for name in list(self._given)[: len(self._given) - max(len(found), _REMEMBERED)]:
                del self._given[name]
            if self._found:
                return
            await self._clock.wait(self._alarm, _LOOK_S)
            await self._rest()

    async def _rest(self) -> None:
        """Wait until the next look may be taken. It reads everything, so that no news is lost meanwhile."""
        while self._is_open() and (left_s := self._rests_until - self._clock.monotonic()) > 0:
            self._alarm = make_signal()
            await self._clock.wait(self._alarm, left_s)

    def wake(self) -> None:
        """Look at once, or end."""
        if self._alarm is not None:
            self._alarm.set()
