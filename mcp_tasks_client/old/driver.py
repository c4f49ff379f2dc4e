"""What is done for one call: its requests, each of which comes back as the next event.

Who calls the driver when is the scheduler's business, what an event means is the machine's, and
what is made durable between the two is :mod:`commits`'.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Final

import anyio
from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
)
from tenacity.stop import stop_base

from .clock import Clock, SystemClock
from .commits import Commits
from .drive import Drive
from .errors import SessionError, TaskFailedError
from .events import (
    AnswerReady,
    AnswerUnavailable,
    Ask,
    CallFailed,
    CallLost,
    CallNoted,
    CallRefused,
    CallReturned,
    CancelAcknowledged,
    CancelFailed,
    Event,
    InputAsked,
    Notified,
    ObservationRefused,
    Observed,
    PollCut,
    PollFailed,
    Resumed,
    SendCall,
    TaskCreated,
    TaskMissing,
    Tick,
    UpdateAcknowledged,
    UpdateFailed,
    UpdateRejected,
)
from .inputs import InputContext, Inputs, NoAnswerError
from .journal.base import Journal
from .journal.failures import typed
from .owners import LEASE_S, Place
from .pace import quiet
from .points import Passage, Point, Probe
from .policy import PollPolicy
from .sessions.base import GATEWAY_STATUSES, INVALID_PARAMS, REFUSED_CODES, Leaving, Session, TaskRef
from .states import Calling, Observing, OutcomeUnknown
from .wire import Created, InputRequired, JSONObject, Returned, Task, shorten

logger = logging.getLogger("mcp_tasks_client")

_LOOKED_S: Final = 3.0
"""Seconds after which what could not be found is not looked for again."""


class Driver:
    """Sends requests and puts questions, for all calls of one endpoint.

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
        commits: Where every step goes first.
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
        self.inputs = inputs
        self.policy = policy
        self.clock = clock or SystemClock()
        self.jitter = jitter
        self.commits = Commits(journal, policy, self.clock, probe=probe, place=place, lease_s=lease_s)
        self._passing = Passage(probe)

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
        call = drive.call
        if isinstance(drive.record.state, Calling) and drive.record.state.memo is not None:
            call = replace(call, memo=drive.record.state.memo)
        if send.input_responses or send.request_state is not None:
            call = replace(call, input_responses=send.input_responses, request_state=send.request_state)
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
            case Created(task, generation):
                if generation != drive.record.generation:
                    drive.record = replace(drive.record, generation=generation)
                return TaskCreated(task=task, now=self.clock.time(), jitter=self.jitter()), None

    async def note_call(self, drive: Drive) -> None:
        """Journal where the task of a call is to be looked for, if there is such a place.

        Raises:
            SessionError: The server could not be reached; nothing was sent.
            JournalError: It could not be journaled.
        """
        state = drive.record.state
        if isinstance(state, Calling) and state.memo is None:
            try:
                memo = await self.session.before_call()
            except SessionError:
                raise
            except Exception as error:
                raise _foreign("tools/call", error) from error
            if memo is not None:
                await self.commits.feed(drive, CallNoted(memo=memo))

    async def find(self, drive: Drive) -> Event | None:
        """Look for the task of a call whose reply is lost; never takes one that may be another call's."""
        record = drive.record
        memo = record.state.memo if isinstance(record.state, OutcomeUnknown) else None
        if memo is None:
            return None
        try:
            attempts = self._retrying(stop_after_attempt(3) | stop_after_delay(_LOOKED_S))
            listed: Sequence[Created] = await attempts(self.session.created_since, memo, record.created_at)
        except Exception as error:  # also a session's or an auth flow's own: the outcome just stays unknown
            logger.info("The task of %r could not be looked for: %s", record.tool, error)
            return None
        with typed:
            known = [await self.commits.journal.by_task_id(record.scope, one.task.task_id) for one in listed]
        found = [one for one, its in zip(listed, known, strict=True) if its is None]
        if len(found) == 1:
            drive.record = replace(drive.record, generation=found[0].generation)
            return TaskCreated(task=found[0].task, now=self.clock.time(), jitter=self.jitter())
        if found:
            logger.warning("The lost call of %r may have made any of %d tasks", record.tool, len(found))
        return None

    async def poll(self, drive: Drive) -> Event:
        """Send ``tasks/get``, once."""
        ref = _ref(drive)
        try:
            task = await self._passing(Point.GET, self.session.get, ref)
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
        singly = self.session.takes_each_answer(ref)
        return Observed(task=task, now=self.clock.time(), jitter=self.jitter(), singly=singly)

    async def listen(
        self,
        task_ids: Sequence[str],
        agreed: Callable[[frozenset[str]], None],
        heard: Callable[[Task], None],
    ) -> None:
        """Send ``subscriptions/listen``, and hear what comes of it until it ends.

        Raises:
            Exception: Anything that a session, an auth flow or a hook raises.
        """
        await self._passing(Point.LISTEN, self.session.listen, task_ids, agreed, heard)

    def may_agree(self, drive: Drive) -> bool:
        """Whether the server may agree to tell of a drive's task."""
        return isinstance(drive.record.state, Observing) and self.session.may_agree(_ref(drive))

    def attend(self, drive: Drive) -> None:
        """Begin to take back what waits at the server and nobody hears, though no poll is due yet."""
        state = drive.record.state
        if isinstance(state, Observing) and not quiet(state, self.clock.time()):
            self.session.attend(_ref(drive), inherited=drive.inherited)

    def told(self, drive: Drive) -> Event | None:
        """The event of what the server has said by itself, and nobody may have been told."""
        task = self.session.told(str(drive.task_id)) if isinstance(drive.record.state, Observing) else None
        return None if task is None else self.notified(drive, task)

    def notified(self, drive: Drive, task: Task) -> Event:
        """The event of a snapshot that came unasked."""
        singly = self.session.takes_each_answer(_ref(drive))
        return Notified(task=task, now=self.clock.time(), singly=singly)

    async def update(
        self, drive: Drive, answers: Mapping[str, JSONObject], *, within_s: float = math.inf
    ) -> Event:
        """Send ``tasks/update``, once. Past the limit it may still arrive, and counts as failed."""
        keys = tuple(answers)
        try:
            with anyio.move_on_after(within_s) as limited:
                await self._passing(Point.UPDATE, self.session.update, _ref(drive), answers)
        except SessionError as error:
            if _unknown(error):
                return UpdateRejected(keys=keys, message=error.remote_message)
            if error.retryable:
                logger.info("the answers to %s will be sent again: %s", _name(drive), error)
                return self._not_updated(keys, error.retry_after_s)
            return ObservationRefused(error=error)
        except Exception as error:
            return ObservationRefused(error=_foreign("tasks/update", error))
        return self._not_updated(keys) if limited.cancelled_caught else UpdateAcknowledged(keys=keys)

    def _not_updated(self, keys: tuple[str, ...], retry_after_s: float | None = None) -> Event:
        now, jitter = self.clock.time(), self.jitter()
        return UpdateFailed(keys=keys, now=now, jitter=jitter, retry_after_s=retry_after_s)

    async def cancel(self, drive: Drive) -> tuple[Event | None, SessionError | None]:
        """Send ``tasks/cancel``; a few times if need be, since saying it twice does no harm.

        Returns:
            The event, if it is one, and the error to tell whoever wanted it cancelled.
        """

        async def send() -> None:
            if isinstance(drive.record.state, Observing):  # else a poll has found that it is over
                await self._passing(Point.CANCEL, self.session.cancel, _ref(drive))

        try:
            await self._retrying(stop_after_attempt(3))(send)
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

    def _retrying(self, stop: stop_base) -> AsyncRetrying:
        """Tries what somebody waits for, and what nobody polls for, a few times."""
        back_off = wait_exponential(multiplier=0.1, max=1.0)
        return AsyncRetrying(
            # A server that wants to be left alone is not asked again before the time that it names.
            retry=retry_if_exception(
                lambda e: isinstance(e, SessionError) and e.retryable and e.retry_after_s is None
            ),
            wait=lambda attempt: back_off(attempt) + 0.1 * self.jitter(),
            stop=stop,
            # By the client's clock and at its jitter, like everything else that it waits for.
            sleep=self._rest,
            reraise=True,
        )

    async def _rest(self, seconds: float) -> None:
        await self.clock.wait(anyio.Event(), seconds)

    async def ask(self, drive: Drive, ask: Ask) -> Event:
        """Put one question to the host."""
        context = InputContext(tool=drive.record.tool, key=ask.key, task=drive.record.task)
        try:
            answer = await self._passing(Point.ASK, self.inputs.answer, context, ask.request)
            return AnswerReady(key=ask.key, answer=answer, now=self.clock.time())
        except NoAnswerError as error:
            return AnswerUnavailable(key=ask.key, why=str(error), cause=error.__cause__)

    def tick(self, drive: Drive) -> Event:
        """The event of a wait that is over."""
        state = drive.record.state
        due_at = state.due_at if isinstance(state, Observing) else None
        return Tick(now=self.clock.time(), jitter=self.jitter(), due_at=due_at)

    def poll_cut(self) -> Event:
        """The event of a poll whose reply is not waited for."""
        return PollCut(now=self.clock.time())

    def resumed(self, drive: Drive) -> Event:
        """The event that takes a drive up again.

        The due time in the record is exact if its last owner let go of it in good order, or was us.
        """
        return Resumed(now=self.clock.time(), jitter=self.jitter(), due_is_exact=drive.exact)


def _refusal(error: SessionError) -> Exception:
    """A plain JSON-RPC error is the call's own failure, as it would be from a ``failed`` task."""
    if type(error) is not SessionError or error.code is None or error.retryable:
        return error  # also a rate limiter's, which may speak JSON-RPC: the call was not made, and can be
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
    return TaskRef(state.task.task_id, state.request_state, drive.record.generation, state.questions)


def _name(drive: Drive) -> str:
    task_id = drive.record.task_id
    return f"task {shorten(task_id)}" if task_id else f"the call of {drive.record.tool!r}"
