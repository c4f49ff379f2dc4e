"""Stop, kill, delay or fail a client at any of its commits and sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Literal, NoReturn, TypeAlias

from ..aio.clock import Clock
from ..engine.observer import DRIVE, POINTS, Observer, Point
from ..machine.record import TaskRecord

__all__ = ["Deed", "FaultPlan", "KilledError", "Moment", "delay", "kill", "raising"]

Moment: TypeAlias = Literal["before", "after"]

Deed: TypeAlias = Callable[[], Awaitable[None]]
"""Done by a plan at a point."""


class KilledError(BaseException):
    """Ends a client as a kill ends a process, for clients that share a process with their test."""


class FaultPlan(Observer):
    """Deeds at the points of a client.

    ::

        plan = FaultPlan()
        plan.at("commit: AnswerReady", "after", kill)
        session = server.session()
        with pytest.raises(BaseExceptionGroup):
            async with scripted_client(session, journal="tasks.sqlite3", observer=plan) as client:
                await client.call_tool("deploy", idempotency_key="deploy-42")

    A client that was *killed* commits and sends nothing after that, and all that it had under way ends with
    :class:`KilledError`. Its journal file is as a killed process would have left it.

    Attributes:
        passed: The points that were passed, in order.
        killed: Whether the client was killed.
    """

    def __init__(self) -> None:
        self.passed: list[tuple[Moment, Point]] = []
        self.killed = False
        self._counts: Counter[tuple[Moment, Point]] = Counter()
        self._deeds: dict[tuple[Moment, Point, int], Deed] = {}
        self._deeds_by_number: dict[int, Deed] = {}

    def at(self, point: Point, moment: Moment, deed: Deed, *, nth: int = 1) -> None:
        """Plan a deed at a point.

        Args:
            point: One of :data:`POINTS`.
            moment: ``before``: nothing of the commit or send has happened yet. ``after``: all of it has,
                and the client has not acted on it.
            deed: :func:`kill`, :func:`delay`, :func:`raising`, ``anyio.sleep_forever`` to stop there, or
                any coroutine function.
            nth: The time that the point is passed, from 1.

        Raises:
            ValueError: There is no such point, so that the plan would never come true.
        """
        if point not in POINTS:
            raise ValueError(f"{point!r} is no point; POINTS lists them all")
        self._deeds[moment, point, nth] = deed

    def at_number(self, number: int, deed: Deed) -> None:
        """Plan a deed for an index of ``passed``, at any point."""
        self._deeds_by_number[number] = deed

    async def before(self, point: Point, record: TaskRecord | None) -> None:
        """Do the deed that is planned before the point."""
        if point != DRIVE:
            await self._pass("before", point)

    async def after(self, point: Point, record: TaskRecord | None) -> None:
        """Do the deed that is planned after the point."""
        if point != DRIVE:
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
            if self.killed:  # by another deed, while this one waited
                raise KilledError(f"killed at {moment} {point}")


async def kill() -> NoReturn:
    """Kill the client at the point."""
    raise KilledError("killed here")


def delay(clock: Clock, seconds: float) -> Deed:
    """Hold the client up at the point, for so many seconds of a clock."""

    async def hold_up() -> None:
        await clock.sleep(seconds)

    return hold_up


def raising(error: Exception) -> Deed:
    """Raise at the point, as the journal (``JournalError``) or the session (``SessionError``) would."""

    async def raise_it() -> NoReturn:
        raise error

    return raise_it
