"""Names of the places where it matters if a process is stopped just there: commits and sends.

An engine passes a point before and after each of its commits and each of its sends. Nothing happens
there, unless a *probe* is given: :mod:`mcp_tasks_client.testing` has one that can stop, kill, delay
or fail at any of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec, TypeAlias, TypeVar, get_args

from ..machine.events import AnswerUnavailable, Event, ObservationRefused, PollCut, Tick

__all__ = ["POINTS", "Passage", "Point", "Probe", "commit_of"]

P = ParamSpec("P")
T = TypeVar("T")

Point: TypeAlias = str
"""``"commit: …"`` with the name of an event or of a journal operation; ``"send: …"`` with a method."""


def commit_of(event: type[Event]) -> Point:
    """The commit that an event can lead to."""
    return f"commit: {event.__name__}"


_NEVER_COMMITTED: Final = (Tick, PollCut, ObservationRefused, AnswerUnavailable)

CLAIM: Final = "commit: claim"
TAKE: Final = "commit: take"
TAKE_PENDING: Final = "commit: take pending"
RELEASE: Final = "commit: release"
ENROL: Final = "commit: enrol"
LEAVE: Final = "commit: leave"
PRUNE: Final = "commit: prune"

CALL: Final = "send: tools/call"
GET: Final = "send: tasks/get"
UPDATE: Final = "send: tasks/update"
CANCEL: Final = "send: tasks/cancel"
ASK: Final = "send: a question to the host"

POINTS: Final[tuple[Point, ...]] = (
    *(commit_of(event) for event in get_args(Event) if event not in _NEVER_COMMITTED),
    *(CLAIM, TAKE, TAKE_PENDING, RELEASE, ENROL, LEAVE, PRUNE),
    *(CALL, GET, UPDATE, CANCEL, ASK),
)
"""All of them."""


class Probe(ABC):
    """Told of each point that is passed, and able to hold it up or to raise there."""

    @abstractmethod
    async def before(self, point: Point) -> None:
        """It is about to be done."""

    @abstractmethod
    async def after(self, point: Point) -> None:
        """It is done, and what follows from it is not."""


class Passage:
    """The way past all points.

    Args:
        probe: Told before and after each; ``None`` tells nobody.
    """

    def __init__(self, probe: Probe | None) -> None:
        self._probe = probe

    def __call__(
        self, point: Point, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Do something that is a point, once it is awaited."""
        # No coroutine of its own where nobody is told: there is one of these for each request and commit.
        return work(*args, **kwargs) if self._probe is None else self._watched(point, work, *args, **kwargs)

    async def _watched(
        self, point: Point, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        assert self._probe is not None
        await self._probe.before(point)
        done = await work(*args, **kwargs)
        await self._probe.after(point)
        return done
