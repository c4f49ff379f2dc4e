"""Names of all the places where it would matter if we were stopped just there.

A driver passes one before and after each of its commits and each of its sends. Nothing happens
there, unless a *probe* is given: :mod:`mcp_tasks_client.old.testing` has one that can stop, kill, delay
or fail at any of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum, unique
from typing import Final, ParamSpec, TypeVar

from .events import (
    AnswerReady,
    CallAgain,
    CallBegun,
    CallFailed,
    CallLost,
    CallNoted,
    CallRefused,
    CallReturned,
    CancelAcknowledged,
    CancelFailed,
    CancelRequested,
    Event,
    InputAsked,
    Notified,
    Observed,
    PollFailed,
    Resumed,
    TaskCreated,
    TaskMissing,
    UpdateAcknowledged,
    UpdateFailed,
    UpdateRejected,
)

P = ParamSpec("P")
T = TypeVar("T")


@unique
class Point(StrEnum):
    """A commit to the journal, or something sent to the server or put to the host."""

    CLAIM = "commit: the intent of a keyed call"
    TAKE_BACK = "commit: the intent of a call that was not sent is taken back"
    CALL_REFUSED = "commit: the server refused the call"
    CALL_BEGUN = "commit: the next round of a call begins"
    CALL_RETURNED = "commit: a result at once"
    CALL_FAILED = "commit: an error at once"
    CALL_LOST = "commit: the reply to a call is lost"
    CALL_AGAIN = "commit: a call of unknown outcome is sent again"
    INPUT_ASKED = "commit: questions before there is a task"
    TASK_CREATED = "commit: a task ID"
    OBSERVED = "commit: a changed snapshot"
    NOTIFIED = "commit: the server told of the task unasked"
    POLL_FAILED = "commit: the server wants to be left alone"
    TASK_MISSING = "commit: the server does not know the task"
    ANSWER_READY = "commit: an answer"
    UPDATE_ACKNOWLEDGED = "commit: answers that were acknowledged"
    UPDATE_FAILED = "commit: the server wants to be left alone, said to answers"
    UPDATE_REJECTED = "commit: answers that were refused"
    CANCEL_REQUESTED = "commit: the wish to cancel"
    CANCEL_ACKNOWLEDGED = "commit: a cancellation that was acknowledged"
    CANCEL_FAILED = "commit: the server wants to be left alone, said to a cancellation"
    RESUMED = "commit: a task is taken up"
    TAKE = "commit: the owner of one record"
    TAKE_PENDING = "commit: the owner of all that is pending"
    RELEASE = "commit: a task is let go of"
    DELIVERED = "commit: the outcome was delivered"
    RENEW = "commit: the lease"
    LEAVE = "commit: the client has ended"
    FORGET = "commit: what is old is forgotten"

    CALL = "send: tools/call"
    GET = "send: tasks/get"
    UPDATE = "send: tasks/update"
    CANCEL = "send: tasks/cancel"
    LISTEN = "send: subscriptions/listen"
    ASK = "send: a question to the host"


COMMITS: Final[Mapping[type[Event], Point]] = {
    AnswerReady: Point.ANSWER_READY,
    CallAgain: Point.CALL_AGAIN,
    CallBegun: Point.CALL_BEGUN,
    CallFailed: Point.CALL_FAILED,
    CallNoted: Point.CALL_BEGUN,
    CallLost: Point.CALL_LOST,
    CallRefused: Point.CALL_REFUSED,
    CallReturned: Point.CALL_RETURNED,
    CancelAcknowledged: Point.CANCEL_ACKNOWLEDGED,
    CancelFailed: Point.CANCEL_FAILED,
    CancelRequested: Point.CANCEL_REQUESTED,
    InputAsked: Point.INPUT_ASKED,
    Notified: Point.NOTIFIED,
    Observed: Point.OBSERVED,
    PollFailed: Point.POLL_FAILED,
    Resumed: Point.RESUMED,
    TaskCreated: Point.TASK_CREATED,
    TaskMissing: Point.TASK_MISSING,
    UpdateAcknowledged: Point.UPDATE_ACKNOWLEDGED,
    UpdateFailed: Point.UPDATE_FAILED,
    UpdateRejected: Point.UPDATE_REJECTED,
}
"""The commit that each event can lead to."""


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
