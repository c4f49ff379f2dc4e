"""Stop, kill, delay or fail a client at any of its commits and sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Literal, NoReturn, TypeAlias

import anyio

from ..clock import Clock
from ..points import Point, Probe

__all__ = ["Deed", "FaultPlan", "KilledError", "Moment", "delay", "kill", "raising"]

Moment: TypeAlias = Literal["before", "after"]

Deed: TypeAlias = Callable[[], Awaitable[None]]
"""What is done at a point."""


class KilledError(BaseException):
    """A client was killed: what ends a process, for one that shares its process with a test."""


class FaultPlan(Probe):
    """What is to happen at which point.

    ::

        plan = FaultPlan()
        plan.at(Point.ANSWER_READY, "after", kill)
        with pytest.raises(BaseExceptionGroup):
            async with scripted_client(server.session(), journal="tasks.sqlite3", probe=plan) as client:
                await client.call_tool("deploy", idempotency_key="deploy-42")

    *Killed*, a client commits and sends nothing any more, and everything that it had under way unwinds
    by :class:`KilledError`. What its journal file holds is what a process that was killed would have left.

    Attributes:
        passed: The points that were passed, in order.
        killed: Whether the client is dead.
    """

    def __init__(self) -> None:
        self.passed: list[tuple[Moment, Point]] = []
        self.killed = False
        self._counts: Counter[tuple[Moment, Point]] = Counter()
        self._deeds: dict[tuple[Moment, Point, int], Deed] = {}
        self._deeds_by_number: dict[int, Deed] = {}

    def at(self, point: Point, moment: Moment, deed: Deed, *, nth: int = 1) -> None:
        """Have something done at a point.

        Args:
            point: Which one.
            moment: ``before``: nothing of it has happened yet. ``after``: all of it has, and nobody
                was told.
            deed: :func:`kill`, :func:`delay`, :func:`raising`, ``anyio.sleep_forever`` to stop there, or
                any coroutine function.
            nth: At which time that it is passed, from 1.
        """
        self._deeds[moment, point, nth] = deed

    def at_number(self, number: int, deed: Deed) -> None:
        """Have something done at the passing of that number, from 0: see :attr:`passed`."""
        self._deeds_by_number[number] = deed

    async def before(self, point: Point) -> None:
        """Do what is planned before it."""
        await self._pass("before", point)

    async def after(self, point: Point) -> None:
        """Do what is planned after it."""
        await self._pass("after", point)

    async def _pass(self, moment: Moment, point: Point) -> None:
        if self.killed:
            raise KilledError(f"killed before this: {point}")
        number = len(self.passed)
        self.passed.append((moment, point))
        self._counts[moment, point] += 1
        deed = self._deeds_by_number.get(number) or self._deeds.get(
            (moment, point, self._counts[moment, point])
        )
        if deed is not None:
            try:
                await deed()
            except KilledError:
                self.killed = True
                raise
            if self.killed:  # meanwhile
                raise KilledError(f"killed at {moment} {point}")


async def kill() -> NoReturn:
    """Kill the client here."""
    raise KilledError("killed here")


def delay(clock: Clock, seconds: float) -> Deed:
    """Hold it up for so many seconds of a clock."""

    async def held_up() -> None:
        await clock.wait(anyio.Event(), seconds)

    return held_up


def raising(error: Exception) -> Deed:
    """Raise there, as the journal or the session would: a :class:`JournalError`, a :class:`SessionError`."""

    async def raised() -> NoReturn:
        raise error

    return raised
