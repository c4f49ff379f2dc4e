"""The observer of each step of each call: its driving, its commits, its sends. Each way in has the same.

Each step is a *point*, and it matters if a process is stopped just there. So the probes of the tests are
observers (:class:`mcp_tasks_client.testing.FaultPlan` stops, kills, delays or fails a client at a point), and
so are logs, counters and traces of calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeAlias, TypeVar, get_args

from ..machine.events import AnswerUnavailable, CancelRejected, Event, ObservationRefused, PollCut
from ..machine.record import TaskRecord

__all__ = ["DRIVE", "LINE", "POINTS", "ObservedSteps", "Observer", "Point", "commit_of"]

P = ParamSpec("P")
T = TypeVar("T")

Point: TypeAlias = str
"""``"commit: …"`` with the name of an event or of a journal operation; ``"send: …"`` with a method;
:data:`DRIVE`; or :data:`LINE`."""


def commit_of(event: type[Event]) -> Point:
    """The commit that an event can lead to."""
    return f"commit: {event.__name__}"


_NEVER_COMMITTED: Final = (PollCut, ObservationRefused, AnswerUnavailable, CancelRejected)

CLAIM: Final = "commit: claim"
TAKE: Final = "commit: take"
TAKE_PENDING: Final = "commit: take pending"
RELEASE: Final = "commit: release"
ENROL: Final = "commit: enrol"
LEAVE: Final = "commit: leave"
PRUNE: Final = "commit: prune"
ACKNOWLEDGE: Final = "commit: acknowledge"
INSTRUCT: Final = "commit: instruct"

CALL: Final = "send: tools/call"
GET: Final = "send: tasks/get"
UPDATE: Final = "send: tasks/update"
CANCEL: Final = "send: tasks/cancel"
ASK: Final = "send: a question to the host"

LINE: Final = "call"
"""The line of a host that makes a call: from its begin until the call has ended, or the line waits no longer.
Of ``start_tool`` it lasts until there is a task."""

DRIVE: Final = "drive"
"""The driving of a call here: until it has ended, parks, or has lost its last caller.
Most other points of the call lie within. A call that is taken up again is driven again."""

POINTS: Final[tuple[Point, ...]] = (
    *(commit_of(event) for event in get_args(Event) if event not in _NEVER_COMMITTED),
    *(CLAIM, TAKE, TAKE_PENDING, RELEASE, ENROL, LEAVE, PRUNE, ACKNOWLEDGE, INSTRUCT),
    *(CALL, GET, UPDATE, CANCEL, ASK),
)
"""All commits and sends."""


class Observer:
    """Told of each step. Override the methods of interest; by default they do nothing.

    An observer runs where the step does, and holds it up for as long as it takes. The step raises its
    exceptions.
    """

    async def before(self, point: Point, record: TaskRecord | None) -> None:
        """A step is about to be done.

        Args:
            point: Which.
            record: Of the call, as it is now; ``None`` if the step is about no single call.
        """

    async def after(self, point: Point, record: TaskRecord | None) -> None:
        """A step is done, and its consequences are not.

        Args:
            point: Which.
            record: Of the call, as it is now. A commit becomes part of it only after this.
        """

    def failed(self, point: Point, record: TaskRecord | None, error: BaseException) -> None:
        """A step has raised an error, or was cancelled."""


class HasRecord(Protocol):
    """A live call, or a line of a host that makes one."""

    @property
    def record(self) -> TaskRecord | None:
        """The record, once there is one."""


class ObservedSteps:
    """Does each step, and tells the observer of it, if there is one."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer

    def __call__(
        self,
        call: HasRecord | None,
        point: Point,
        work: Callable[P, Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Awaitable[T]:
        """Do a step of a call, once this is awaited."""
        # No coroutine of its own without an observer: there is one of these for each request and commit.
        if self._observer is None:
            return work(*args, **kwargs)
        return self._tell(self._observer, call, point, partial(work, *args, **kwargs))

    @staticmethod
    async def _tell(
        observer: Observer, call: HasRecord | None, point: Point, step: Callable[[], Awaitable[T]]
    ) -> T:
        try:
            await observer.before(point, None if call is None else call.record)
            done = await step()
        except BaseException as error:
            observer.failed(point, None if call is None else call.record, error)
            raise
        await observer.after(point, None if call is None else call.record)
        return done
