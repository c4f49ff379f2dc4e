"""One step of one call: event → advance → commit → act. No loop of its own.

A :class:`Driver` feeds events to a drive and sends its requests; each request comes back as the
next event. Who calls the driver when is the scheduler's business, what an event means is the
machine's.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Final, ParamSpec, TypeVar

import anyio
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential, wait_random

from .clock import Clock, SystemClock
from .drive import Drive, driven_elsewhere, overtaken
from .errors import DrivenElsewhereError, JournalError, SessionError, TaskFailedError
from .events import (
    Action,
    AnswerReady,
    AnswerUnavailable,
    Ask,
    CallAgain,
    CallBegun,
    CallFailed,
    CallLost,
    CallRefused,
    CallReturned,
    CancelAcknowledged,
    CancelFailed,
    CancelRequested,
    Event,
    Forget,
    InputAsked,
    ObservationRefused,
    Observed,
    PollFailed,
    Resumed,
    Save,
    SendCall,
    TaskCreated,
    TaskMissing,
    Tick,
    UpdateAcknowledged,
    UpdateFailed,
    UpdateRejected,
)
from .inputs import InputContext, Inputs, NoAnswerError
from .journal.base import Journal, Scope, Taken, TaskRecord, typed
from .machine import advance
from .owners import LEASE_S, Place, Tenure
from .points import Point, Probe, passing
from .policy import PollPolicy
from .sessions.base import GATEWAY_STATUSES, INVALID_PARAMS, REFUSED_CODES, Leaving, Session, TaskRef
from .states import Observing
from .wire import Created, InputRequired, JSONObject, Returned, shorten

logger = logging.getLogger("mcp_tasks_client")

P = ParamSpec("P")
T = TypeVar("T")

_KEPT: Final = (AnswerReady, CallFailed, CallLost, CallReturned, InputAsked, TaskCreated)
"""Events that will not come again by themselves, as the reply to a poll does."""

_POINTS: Final[Mapping[type[Event], Point]] = {
    AnswerReady: Point.ANSWER_READY,
    CallAgain: Point.CALL_AGAIN,
    CallBegun: Point.CALL_BEGUN,
    CallFailed: Point.CALL_FAILED,
    CallLost: Point.CALL_LOST,
    CallRefused: Point.CALL_REFUSED,
    CallReturned: Point.CALL_RETURNED,
    CancelAcknowledged: Point.CANCEL_ACKNOWLEDGED,
    CancelFailed: Point.CANCEL_FAILED,
    CancelRequested: Point.CANCEL_REQUESTED,
    InputAsked: Point.INPUT_ASKED,
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


class Driver:
    """Commits events and sends requests, for all calls of one endpoint.

    Args:
        session: Where requests go.
        journal: Where states go first.
        inputs: Who answers questions.
        policy: When to poll.
        clock: Reads the time for events.
        jitter: Draws fractions from 0 to 1.
        probe: Told of every commit and every send.
        place: The process that we are; ``None`` finds out.
        lease_s: Seconds that its lease lasts.

    Attributes:
        owner: Our name in the journal, from now until :meth:`leave`.
    """

    def __init__(
        self,
        *,
        session: Session,
        journal: Journal,
        inputs: Inputs,
        policy: PollPolicy,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
        probe: Probe | None = None,
        place: Place | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self.session = session
        self.journal = journal
        self.inputs = inputs
        self.policy = policy
        self.clock = clock or SystemClock()
        self.jitter = jitter
        self.probe = probe
        self.tenure, self.owner = Tenure.enter(journal, place, lease_s)

    # ── committing ────────────────────────────────────────────────────────────────────────────

    async def feed(self, drive: Drive, event: Event) -> tuple[Action, ...]:
        """Advance the machine by one event, commit if it says so, and return what is to be done.

        Not cancellable, and bounded by the journal's own limits: between an event and its commit
        there is nothing to be gained by stopping. A reply or an answer that cannot be committed is
        kept and fed again when the drive is resumed, so that a full disk costs neither.

        Raises:
            JournalError: The commit failed; the state is what it was.
            DrivenElsewhereError: It was taken by another client; nothing is committed.
        """
        with anyio.CancelScope(shield=True):
            async with drive.lock:
                state, actions = advance(drive.record.state, event, self.policy)
                record = replace(drive.record, state=state)
                try:
                    with typed():
                        if any(isinstance(action, Save) for action in actions):
                            # Somebody else may be attaching it just now.
                            new = isinstance(event, TaskCreated) and event.attached
                            record = await self._save(drive, record, _POINTS[type(event)], new=new)
                        elif any(isinstance(action, Forget) for action in actions):
                            await self._remove(record, _POINTS[type(event)])
                except DrivenElsewhereError:
                    drive.owned = False
                    raise
                except JournalError:
                    if isinstance(event, _KEPT) and not any(event is kept for kept in drive.unsaved):
                        drive.unsaved.append(event)
                    raise
                drive.record = record
        return tuple(action for action in actions if not isinstance(action, Save | Forget))

    async def claim(self, drive: Drive) -> TaskRecord:
        """Journal the intent of a call, or find the call that its key stands for.

        Returns:
            The record that stands: the drive's, which is ours then, or another one.
        """
        with anyio.CancelScope(shield=True), typed():
            async with drive.lock:
                record = replace(drive.record, owner=self.owner, updated_at=self.clock.time())
                standing = record
                if record.idempotency_key is not None:
                    await self.tenure.enrol(self.clock)
                    standing = await self._passing(Point.CLAIM, self.journal.claim, record)
                if (standing.record_id, standing.fence) == (record.record_id, record.fence):
                    drive.record, drive.owned, drive.fence = record, True, record.fence
        return standing

    async def take_back(self, drive: Drive) -> None:
        """Forget the intent of a call that was not sent."""
        with anyio.CancelScope(shield=True), typed():
            await self._remove(drive.record, Point.TAKE_BACK)

    async def delivered(self, drive: Drive) -> None:
        """Commit that the host has the outcome. Nobody needs to own it any more."""
        with anyio.CancelScope(shield=True), typed():
            async with drive.lock:
                drive.owned = False
                record = replace(drive.record, delivered_at=self.clock.time())
                drive.record = await self._save(drive, record, Point.DELIVERED)

    async def _save(self, drive: Drive, record: TaskRecord, point: Point, *, new: bool = False) -> TaskRecord:
        owner = self.owner if drive.owned else None
        record = replace(record, owner=owner, updated_at=self.clock.time())
        # A plain call without a key costs no commit; its first is the one that holds a task ID.
        if record.idempotency_key is not None or record.task_id is not None:
            await self.tenure.enrol(self.clock)
            if new:
                standing = await self._passing(point, self.journal.claim, record)
                if (standing.owner, standing.fence) != (record.owner, record.fence):
                    raise driven_elsewhere(drive)
            else:
                await self._passing(point, self.journal.save, record)
        return record

    async def _remove(self, record: TaskRecord, point: Point) -> None:
        if record.idempotency_key is not None:  # or there is nothing
            await self._passing(point, self.journal.remove, record)

    # ── owning ────────────────────────────────────────────────────────────────────────────────

    async def take(self, drive: Drive, *, again: bool = False) -> bool:
        """Become the owner of a call, unless another client is who is not gone.

        Args:
            drive: It then holds the record as it stands.
            again: Although it is ours as far as we know.

        Returns:
            Whether it is ours.

        Raises:
            OvertakenError: It was another client's, who has taken it back.
        """
        with anyio.CancelScope(shield=True), typed():
            async with drive.lock:
                if drive.owned and not again:
                    return True
                await self.tenure.enrol(self.clock)
                judge = self.tenure.judge(self.clock.time())
                taken = await self._passing(
                    Point.TAKE, self.journal.take, drive.record.record_id, self.owner, judge
                )
                if taken is not None:
                    self._taken(drive, taken)
                elif drive.inherited:
                    raise overtaken(drive)
                else:
                    drive.owned = True  # nothing of it is journaled yet
        return drive.owned

    async def take_pending(self, scope: Scope, drive_of: Callable[[TaskRecord], Drive]) -> Sequence[Drive]:
        """Become the owner of all that is pending and free.

        Args:
            scope: Whose records.
            drive_of: Gives the one drive of a record.

        Returns:
            All that is pending and ours.
        """
        with anyio.CancelScope(shield=True), typed():
            await self.tenure.enrol(self.clock)
            judge = self.tenure.judge(self.clock.time())
            taken = await self._passing(
                Point.TAKE_PENDING, self.journal.take_pending, scope, self.owner, judge
            )
            drives = []
            for one in taken:
                drive = drive_of(one.record)
                async with drive.lock:
                    # One that was being let go of just then is taken by itself, when it is taken up.
                    if drive.fence is None or drive.fence < one.record.fence:
                        self._taken(drive, one)
                drives.append(drive)
        return drives

    async def release(self, drive: Drive) -> None:
        """Let go of a call that nobody here drives any more, so that others can take it."""
        with anyio.CancelScope(shield=True), typed():
            async with drive.lock:
                if drive.owned and not drive.running:
                    drive.owned = False
                    try:
                        drive.record = await self._save(drive, drive.record, Point.RELEASE)
                    except BaseException:
                        drive.owned = True
                        raise

    async def leave(self) -> None:
        """Own nothing any more.

        Raises:
            JournalError: The journal still says otherwise.
        """
        await self.tenure.leave(self.owner)

    def _taken(self, drive: Drive, taken: Taken) -> None:
        record = taken.record
        drive.owned = record.owner == self.owner
        if drive.owned and drive.fence is not None and record.fence == drive.fence + 1:
            # Nobody else had it since, so we know better than the journal, which holds only changes.
            drive.record = replace(drive.record, owner=record.owner, fence=record.fence)
            drive.inherited, drive.exact = False, True
        else:
            drive.record = record
            drive.inherited, drive.exact = True, taken.before in (None, self.owner)
        if drive.owned:
            drive.fence = record.fence

    async def _passing(
        self, point: Point, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await passing(self.probe, point, work, *args, **kwargs)

    # ── requests, each of which comes back as an event ────────────────────────────────────────

    async def call(self, drive: Drive, send: SendCall, leaving: Leaving) -> tuple[Event, Exception | None]:
        """Send ``tools/call``, once.

        Args:
            drive: Whose call.
            send: What this round adds to it.
            leaving: Awaited when the request is about to leave.

        Returns:
            The event, and for a refused or lost call the error to tell the caller.
        """
        assert drive.call is not None, "only a call that was made here can be sent"
        call = replace(drive.call, input_responses=send.input_responses, request_state=send.request_state)
        try:
            reply = await self._passing(Point.CALL, self.session.call, call, leaving)
        except SessionError as error:
            if error.not_executed:
                for_good = error.code in REFUSED_CODES and not error.retryable
                return CallRefused(for_good=for_good), _refusal(error)
            if error.code is not None and error.http_status not in GATEWAY_STATUSES:
                return CallFailed(code=error.code, message=error.remote_message, data=error.data), None
            return CallLost(), error
        except Exception as error:
            raise _foreign("tools/call", error) from error
        match reply:
            case Returned(result):
                return CallReturned(result=result), None
            case InputRequired(requests, state):
                return InputAsked(requests=requests, request_state=state), None
            case Created(task):
                return TaskCreated(task=task, now=self.clock.time(), jitter=self.jitter()), None

    async def poll(self, drive: Drive) -> Event:
        """Send ``tasks/get``, once."""
        try:
            task = await self._passing(Point.GET, self.session.get, _ref(drive))
        except SessionError as error:
            if _unknown(error):
                return TaskMissing(message=error.remote_message, now=self.clock.time())
            if error.retryable:
                logger.info("%s will be polled again: %s", _name(drive), error)
                return PollFailed(
                    now=self.clock.time(), jitter=self.jitter(), retry_after_s=error.retry_after_s
                )
            return ObservationRefused(error=error)
        except Exception as error:
            return ObservationRefused(error=_foreign("tasks/get", error))
        return Observed(task=task, now=self.clock.time(), jitter=self.jitter())

    async def update(self, drive: Drive, answers: Mapping[str, JSONObject]) -> Event:
        """Send ``tasks/update``, once."""
        keys = tuple(answers)
        try:
            await self._passing(Point.UPDATE, self.session.update, _ref(drive), answers)
        except SessionError as error:
            if _unknown(error):
                return UpdateRejected(keys=keys, message=error.remote_message)
            if error.retryable:
                logger.info("the answers to %s will be sent again: %s", _name(drive), error)
                return UpdateFailed(
                    keys=keys,
                    now=self.clock.time(),
                    jitter=self.jitter(),
                    retry_after_s=error.retry_after_s,
                )
            return ObservationRefused(error=error)
        except Exception as error:
            return ObservationRefused(error=_foreign("tasks/update", error))
        return UpdateAcknowledged(keys=keys)

    async def cancel(self, drive: Drive) -> tuple[Event | None, SessionError | None]:
        """Send ``tasks/cancel``; a few times if need be, since saying it twice does no harm.

        Returns:
            The event, if it is one, and the error to tell whoever wanted it cancelled.
        """
        attempts = AsyncRetrying(
            # A server that wants to be left alone is not asked again before the time that it names.
            retry=retry_if_exception(
                lambda e: isinstance(e, SessionError) and e.retryable and e.retry_after_s is None
            ),
            wait=wait_exponential(multiplier=0.1, max=1.0) + wait_random(0, 0.1),
            stop=stop_after_attempt(3),
            reraise=True,
        )
        try:
            await attempts(self._passing, Point.CANCEL, self.session.cancel, _ref(drive))
        except SessionError as error:
            if _unknown(error):
                # A task that the server no longer knows needs no cancelling; the next poll says so.
                return CancelAcknowledged(), None
            told = copy(error)
            told.__cause__ = error
            if not error.retryable:
                return None, told
            return CancelFailed(
                now=self.clock.time(), jitter=self.jitter(), retry_after_s=error.retry_after_s
            ), told
        except Exception as error:
            return None, _foreign("tasks/cancel", error)
        return CancelAcknowledged(), None

    async def ask(self, drive: Drive, ask: Ask) -> Event:
        """Put one question to the host."""
        context = InputContext(tool=drive.record.tool, key=ask.key, task=drive.record.task)
        try:
            answer = await self._passing(Point.ASK, self.inputs.answer, context, ask.request)
            return AnswerReady(key=ask.key, answer=answer, now=self.clock.time())
        except NoAnswerError as error:
            return AnswerUnavailable(key=ask.key, why=str(error), cause=error.__cause__)

    def tick(self) -> Event:
        """The event of a wait that is over."""
        return Tick(now=self.clock.time(), jitter=self.jitter())

    def resumed(self, drive: Drive) -> Event:
        """The event that takes a drive up again.

        The due time in the record is exact if its last owner let go of it in good order, or was us.
        """
        return Resumed(now=self.clock.time(), jitter=self.jitter(), due_is_exact=drive.exact)


def _refusal(error: SessionError) -> Exception:
    """A plain JSON-RPC error is the call's own failure, as it would be from a ``failed`` task."""
    if type(error) is not SessionError or error.code is None:
        return error
    failed = TaskFailedError(
        str(error), code=error.code, message=error.remote_message, data=error.data, handle=error.handle
    )
    failed.__cause__ = error
    return failed


def _unknown(error: SessionError) -> bool:
    """Whether the server does not know the task, or not what was said; a rate limiter cannot tell."""
    return error.code == INVALID_PARAMS and not error.retryable


def _foreign(method: str, cause: Exception) -> SessionError:
    """What a session, an auth flow or a hook raised of its own, as an error that carries the handle."""
    error = SessionError(
        f"{method} could not be sent: {type(cause).__name__}: {cause}. Mend what raised it, then resume the "
        "task."
    )
    error.__cause__ = cause
    return error


def _ref(drive: Drive) -> TaskRef:
    state = drive.record.state
    assert isinstance(state, Observing), "tasks/* is sent for tasks that are being observed"
    return TaskRef(state.task.task_id, state.request_state)


def _name(drive: Drive) -> str:
    task_id = drive.record.task_id
    return f"task {shorten(task_id)}" if task_id else f"the call of {drive.record.tool!r}"
