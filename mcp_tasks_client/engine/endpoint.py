"""One server, for one principal, over one session: calls are made there, seen through, and found again."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from weakref import WeakSet

import anyio
import anyio.lowlevel
from mcp_types import CallToolResult

from ..aio.uncut import run_to_its_end
from ..errors import (
    InputUnansweredError,
    JournalError,
    OutcomeUnknownError,
    TasksClientError,
    WaitTimeoutError,
)
from ..machine.events import TaskCreated
from ..machine.record import Scope, TaskRecord, TaskReference
from ..machine.states import Calling
from ..protocol import JSONObject
from ..protocol.text import digest, name_tool
from ..questions.callbacks import Inputs
from ..questions.context import CallContext
from ..questions.question import open_questions
from ..sessions.base import Session, Snapshot, ToolCall
from .answering import Answering
from .audience import OnUpdate
from .cancellation import Cancellation
from .engine import Engine
from .idempotency import Idempotency, OnUnknown, check_repeatable
from .instructions import Instructions
from .live_call import LiveCall, OvertakenError, check_forgotten
from .observer import LINE, ObservedSteps
from .outcomes import Outcomes
from .performer import Performer
from .push import Push
from .record_maker import RecordMaker
from .recovery import Recovery
from .registry import BATCH
from .requests import Requests
from .runner import Runner
from .time_limit import TimeLimit

__all__ = ["Endpoint", "HostLine"]

logger = logging.getLogger("mcp_tasks_client")


class HostLine:
    """A line of a host that makes a call: the call that it has begun, and how it waits.

    Attributes:
        call: The call, once it has begun.
        listeners: Told of each changed snapshot.
        context: Of the caller; see :mod:`mcp_tasks_client.sessions.base`.
        on_unknown: Under a key, whether a call goes again whose reply was lost.
        limit: For how long the line waits; ``None`` is as long as it takes.
    """

    __slots__ = ("call", "context", "limit", "listeners", "on_unknown")

    def __init__(
        self,
        listeners: Sequence[OnUpdate] = (),
        context: CallContext | None = None,
        on_unknown: OnUnknown = "raise",
    ) -> None:
        self.call: LiveCall | None = None
        self.listeners = listeners
        self.context = context
        self.on_unknown: OnUnknown = on_unknown
        self.limit: TimeLimit | None = None

    @property
    def begun(self) -> LiveCall:
        """The call, where it has begun."""
        assert self.call is not None, "the call has begun"
        return self.call

    @property
    def record(self) -> TaskRecord | None:
        """The record of the call, once it has begun."""
        return None if self.call is None else self.call.record


class Endpoint:
    """The calls of one principal at one server. Thousands of them share it.

    ``hears`` says whether the session is heard while calls are driven. ``adopted`` are the calls that an
    :class:`Adoption` has taken up.

    Attributes:
        answering: The open questions of the calls, and their answers.
        outcomes: The outcomes of the calls, as hosts receive them.
    """

    def __init__(
        self,
        engine: Engine,
        session: Session,
        inputs: Inputs,
        scope: Scope,
        *,
        hears: bool = False,
    ) -> None:
        self.engine = engine
        self.session = session
        self.inputs = inputs
        self.scope = scope
        self.adopted: WeakSet[LiveCall] = WeakSet()
        self._store, environment = engine.store, engine.environment
        self._observed = ObservedSteps(environment.observer)
        requests = Requests(session, inputs, self._store.owning, environment, engine.application)
        performer = Performer(self._store.steps, requests, engine.policy, environment)
        self._cancellation = Cancellation(engine, performer)
        instructions = Instructions(self._store, performer, self._cancellation, environment.clock)
        self.answering = Answering(engine, scope, performer, instructions)
        self.outcomes = Outcomes(engine, session)
        push = Push(requests, engine.tasks, performer) if hears else None
        self._runner = Runner(engine, requests, performer, instructions, self.answering, push)
        self._maker = RecordMaker(scope, engine.application, environment)
        self._idempotency = Idempotency(self._store, self._maker, environment)
        self._recovery = Recovery(self._store, self._maker, environment)

    def hear_session(self) -> None:
        """Have the session heard until the engine is left, and not only while calls are driven."""
        assert self._runner.push is not None, "an endpoint that hears its session"
        self._runner.push.join()

    # ── calling ───────────────────────────────────────────────────────────────────────────────

    def enter(
        self,
        line: HostLine,
        begin: Callable[[], Awaitable[LiveCall]],
        *,
        in_background: bool = False,
    ) -> Awaitable[None]:
        """Begin a call, and wait until it is finished, once this is awaited: the one entrance of all ways in.

        Being cancelled meanwhile abandons the call. The observer is told of this as ``LINE``.

        Args:
            line: Gets the call, before it is waited for.
            begin: Gives the call, once more if it was overtaken.
            in_background: Wait only until there is a task, and have it observed in the background then.

        Raises:
            TasksClientError: The call is parked, or was not made.
        """
        return self._observed(line, LINE, self._enter, line, begin, in_background)

    async def _enter(
        self, line: HostLine, begin: Callable[[], Awaitable[LiveCall]], in_background: bool
    ) -> None:
        while True:
            call = line.call = await begin()
            if line.limit is not None:
                line.limit.count_for(call)
            if call.record.finished:
                return
            try:
                await self._wait_in(line, call, in_background)
                return
            except (OvertakenError, OutcomeUnknownError) as error:
                check_repeatable(error, call, line.on_unknown)
                if isinstance(error, OvertakenError):
                    line.call = None  # it was not made

    async def _wait_in(self, line: HostLine, call: LiveCall, in_background: bool) -> None:
        self.hold(call, line.listeners, line.context)
        try:
            if in_background:
                await self.wait(call, lambda c: c.task is not None)
                self.drive_in_background(call)
            else:
                await self.wait(call)
        except anyio.get_cancelled_exc_class():
            # Not while other callers wait for the same call, and not another client's task.
            alone = call.audience.waiters == 1 and not (in_background or call.audience.in_background)
            if self.engine.on_abandon == "cancel" and alone and call.ours and not self.engine.closed:
                await run_to_its_end(self._cancellation.cancel_abandoned, call)
            raise
        finally:
            await self.let_go(call, line.listeners, line.context)

    async def _enter_within(
        self,
        line: HostLine,
        begin: Callable[[], Awaitable[LiveCall]],
        timeout: float | None,
        excludes_questions: bool,
    ) -> float:
        """Begin a call, and wait for its end for so many seconds.

        Returns:
            Until when there is time, by the event loop's clock.

        Raises:
            WaitTimeoutError: The time is over.
            TasksClientError: As from :meth:`enter`.
        """
        if timeout is None:  # without a scope for each call that waits
            await self.enter(line, begin)
            return math.inf
        with TimeLimit(timeout, excludes_questions=excludes_questions) as limit:
            line.limit = limit
            await self.enter(line, begin)
        if line.call is None:
            raise WaitTimeoutError(f"The journal took longer than {timeout} seconds; nothing was sent.")
        if not line.call.record.finished:
            raise self.timed_out(line.call, timeout)
        return limit.deadline

    async def call(
        self,
        line: HostLine,
        tool_call: ToolCall,
        *,
        key: str | None = None,
        timeout: float | None = None,
        timeout_excludes_questions: bool = False,
        raise_on_error: bool = False,
    ) -> CallToolResult:
        """Make a call and wait for its result; see :meth:`TasksClient.call_tool`."""
        begin = partial(self.begin, tool_call, key, line.on_unknown)
        deadline = await self._enter_within(line, begin, timeout, timeout_excludes_questions)
        return await self.outcomes.deliver(line.begun, deadline, raise_on_error=raise_on_error)

    async def start(
        self, line: HostLine, tool_call: ToolCall, *, key: str | None, record_id: str | None = None
    ) -> LiveCall:
        """Make a call and observe its task in the background; see :meth:`TasksClient.start_tool`."""
        begin = partial(self.begin, tool_call, key, line.on_unknown, record_id)
        await self.enter(line, begin, in_background=True)
        if line.begun.record.finished:
            self._store.registry.ring_bells(line.begun)  # once more: no caller may be left that waits for it
        return line.begun

    async def begin(
        self, tool_call: ToolCall, key: str | None, on_unknown: OnUnknown, record_id: str | None = None
    ) -> LiveCall:
        """The live call of a tool call: a new one, or the one that its key stands for.

        Raises:
            TasksClientError: As from :meth:`Idempotency.begin`.
        """
        while True:
            with suppress(OvertakenError):  # the call of the key was taken back just then
                return await self._idempotency.begin(tool_call, key, on_unknown, record_id)

    async def answer_and_continue(
        self, tool_call: ToolCall, record_id: str, answers: Mapping[str, JSONObject]
    ) -> LiveCall:
        """Commit a host's answers to the open questions of a call, and give the call, which goes on.

        The tool call is the host's, made once more. The answers are by the key of the question; first answers
        stay.

        Raises:
            TasksClientError: There is no such call, or another client has it.
            ValueError: An answer does not fit its question. None of them was taken.
        """
        call = await self._recovery.find_record(record_id)
        if call is None or call.record.tool != tool_call.name:
            raise TasksClientError(
                "There is no such call any more: its outcome was delivered, or it is in another journal. "
                "Make a new call."
            )
        if call.record.arguments_digest not in (None, digest(tool_call.arguments)):
            raise TasksClientError("The answers belong to a call with other arguments. Repeat those.")
        self._store.steps.give_arguments(call, tool_call)
        try:
            await self.answering.answer_all(call, answers)
        except BaseException:
            if not call.wanted:
                await self._store.owning.release_unfinished(call)
            raise
        return call

    async def see_task_through(
        self,
        line: HostLine,
        created: Snapshot,
        tool: str,
        *,
        label: str | None = None,
        timeout: float | None,
        timeout_excludes_questions: bool = False,
    ) -> CallToolResult:
        """Wait for the result of a task that the reply to another client's ``tools/call`` has created.

        The task is journaled before anything else. The result is not checked against the output schema.

        Args:
            line: Of the host.
            created: The task, as the reply to ``tools/call`` describes it.
            tool: The name of the tool.
            label: A short text for people.
            timeout: Seconds to wait; ``None`` waits as long as it takes.
            timeout_excludes_questions: Whether the time does not count in which the host is asked.

        Raises:
            TasksClientError: As :meth:`TasksClient.call_tool`.
        """
        now, jitter = self.engine.environment.clock.time(), self.engine.environment.jitter()
        call = line.call = self._store.owning.new_call(
            self._maker.make(tool, now, label=label),
            first=TaskCreated(task=created.task, session_data=created.session_data, now=now, jitter=jitter),
        )
        self._store.registry.note_unsaved(call)

        async def begin() -> LiveCall:
            return call

        try:
            # The driver begins before anything is waited for. It commits the task, though its caller may go.
            await self._enter_within(line, begin, timeout, timeout_excludes_questions)
            async with self.engine.using_journal():
                return await self.outcomes.deliver(call, None)
        except BaseException:
            if call.record.finished:
                await run_to_its_end(self.outcomes.release_anew, call)
            raise

    # ── waiting ──────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def held(self, call: LiveCall) -> AsyncIterator[None]:
        """Have a call driven for as long as the block lasts, and on if other callers wait for it.

        Raises:
            TasksClientError: The client is closed.
        """
        self.hold(call)
        try:
            yield
        finally:
            await self.let_go(call)

    def hold(
        self, call: LiveCall, listeners: Sequence[OnUpdate] = (), context: CallContext | None = None
    ) -> None:
        """Have a call driven until :meth:`let_go`. The listeners are told of each changed snapshot.

        Raises:
            TasksClientError: The client is closed.
        """
        self.engine.check_open()
        call.audience.add(listeners, context)
        self._runner.begin(call)

    async def let_go(
        self, call: LiveCall, listeners: Sequence[OnUpdate] = (), context: CallContext | None = None
    ) -> None:
        """Wait for a call no longer. Without other callers it stops. Takes the arguments of :meth:`hold`.

        Where nothing goes on in the background, it has ended when this returns.
        """
        call.audience.remove(listeners, context)
        if call.wanted:
            return
        call.excuse()
        self._runner.stop(call)
        if not self.engine.in_background and (call.is_driven or not call.over):
            await run_to_its_end(self._runner.wait_for_stop, call)

    def drive_in_background(self, call: LiveCall) -> None:
        """Have a call driven until it ends, parks, or the client closes."""
        if not call.record.finished and not self.engine.closed:
            self._runner.begin(call)
            self._runner.keep_driving(call)

    async def drive_anew(self, call: LiveCall) -> None:
        """Have a call driven in the background anew, unless a caller has yet to be told why it parked."""
        await self._store.owning.look_again(call)
        self.drive_in_background(call)

    async def wait(self, call: LiveCall, until: Callable[[LiveCall], bool] = lambda call: call.over) -> None:
        """Wait, while the call is held, until it is over, or a condition is met before that.

        Raises:
            Exception: The error that parked the call; a copy, since several callers may wait for one call.
        """
        if await self._store.owning.look_again(call):
            self._runner.begin(call)  # anew
        while not call.over and not until(call):
            if not call.is_driven:
                self._runner.begin(call)  # the caller that had it driven has gone
            await call.audience.change()
        if not call.record.finished and call.error is not None:
            error = call.error
            call.excuse()
            raise self._as_told(call, error) from error.__cause__

    def _as_told(self, call: LiveCall, error: Exception) -> Exception:
        """An error of a call, for one of the callers that wait for it."""
        if isinstance(error, TasksClientError):
            error = copy.copy(error)
        if isinstance(error, InputUnansweredError):
            error.questions = tuple(self.answering.open_questions(call.record))
        return error

    async def refresh(self, call: LiveCall) -> None:
        """Wait for the next poll of a call. It keeps the server's pace.

        Raises:
            Exception: The error that parked the call, or that the poll failed with.
        """
        async with self.held(call):
            with call.audience.refreshing():
                polls = call.audience.polls
                await self.wait(call, lambda c: c.audience.polls > polls)
        failed = call.audience.poll_failed
        if failed is not None and not call.record.finished:
            raise self._as_told(call, failed) from failed.__cause__

    async def cancel(self, call: LiveCall) -> None:
        """Cancel a call: journal the wish, and tell the server; see :meth:`TaskHandle.cancel`.

        Raises:
            SessionError: The server could not be told. After a failure that may pass, the polls send the wish
                again; after a refusal, only :meth:`resume` does.
            JournalError: The wish could not be journaled, and was not sent.
        """
        self.engine.check_open()
        await self._cancellation.cancel(call)

    def timed_out(self, call: LiveCall, timeout: float | None) -> WaitTimeoutError:
        """The error of a waiting that has ended before the call."""
        tool = call.record.tool
        failure = call.record.last_failure
        if call.task_id is None and failure is not None:
            message = f"The call of {tool!r} has not begun within {timeout} seconds: {failure}"
        elif call.task_id is None:
            message = (
                f"The server has not answered the call of {tool!r} within {timeout} seconds. Await "
                "error.handle.result() at once to wait on; with an idempotency_key the call can be repeated."
            )
        else:
            message = (
                f"No outcome of {name_tool(tool)} within {timeout} seconds. Unless it was cancelled, the "
                "task goes on: await error.handle.result(), or resume() later."
            )
        if any(open_questions(call.record, None)):
            message = f"{message} It waits for an answer: await error.handle.questions()."
        if call.task_id is not None and failure is not None:
            message = f"{message} The task is not seen: {failure}"
        return WaitTimeoutError(message, last_failure=failure)

    # ── finding again ────────────────────────────────────────────────────────────────

    async def resume(self, delivered_within_s: float | None = None) -> Sequence[LiveCall]:
        """Take up every task and undelivered outcome that is free; see :meth:`TasksClient.resume`."""
        try:
            calls = await self._recovery.take_pending(delivered_within_s)
        except JournalError:
            self.engine.check_open()  # closing has closed the journal
            raise
        self.engine.check_open()
        in_hand = [
            call.audience.take_in_hand() for call in calls
        ]  # before the first pause, for other tasks resume as well
        await self.drive_taken(calls)
        del in_hand  # the handles are made in this very moment
        return calls

    async def take_free(self, limit: int | None, leave: Collection[str]) -> Sequence[LiveCall]:
        """Take the calls that no client drives, with those that are ours; see :meth:`Recovery.take_free`."""
        return await self._recovery.take_free(limit, leave)

    async def drive_taken(self, calls: Sequence[LiveCall]) -> None:
        """Have calls driven in the background that were taken."""
        for call in calls:
            if not call.is_driven:
                call.excuse()  # taken up again, for whichever reason it was parked
            self._runner.keep_driving(call)
        for number, call in enumerate(calls, 1):
            self.drive_in_background(call)
            if number % BATCH == 0:
                await anyio.lowlevel.checkpoint()  # thousands of them must not hold the event loop

    async def attach(self, wanted: str | TaskReference, label: str | None = None) -> LiveCall:
        """Observe a task that is known by its ID or reference; see :meth:`TasksClient.attach`."""
        call = await self._recovery.find(wanted, label)
        is_new = isinstance(call.record.state, Calling) and bool(call.uncommitted)
        self.drive_in_background(call)
        if is_new:
            # Nothing is known of the task yet, so a first look is taken; an error waits for result().
            with call.audience.refreshing():
                while not call.audience.polls and not call.over:
                    await call.audience.change()
        return call

    async def find_end(
        self, scope: Scope, record_id: str, record: TaskRecord | None = None
    ) -> LiveCall | None:
        """The call whose outcome a host has from elsewhere; ``None`` if it was delivered, and is forgotten.

        ``record`` is as the host has read it, if it has.

        Raises:
            JournalError: The journal could not be read, or does not show a record that it would keep.
            ValueError: The record is of another scope.
        """
        if scope != self.scope:
            raise ValueError(
                f"the call belongs to endpoint {scope.endpoint!r} and principal {scope.principal!r}; "
                "acknowledge it with a client for those"
            )
        call = await self._recovery.find_record(record_id)
        if call is None and record is not None and record.delivered_at is None:
            check_forgotten(record)
        return call

    async def records(self, *, pending: bool) -> list[TaskRecord]:
        """The journal's records of this endpoint and principal; see :meth:`TasksClient.records`."""
        return await self.engine.journal.records(self.scope, pending=pending)

    def ran_s(self, call: LiveCall) -> float:
        """For how long the task of a call has run; see :meth:`TaskRecord.ran_s`."""
        return call.record.ran_s(self.engine.environment.clock.time())

    async def durations(self, tool: str | None) -> list[float]:
        """How long the last completed tasks of a tool ran; see :meth:`Journal.durations`.

        Raises:
            JournalError: The journal could not be read.
            TasksClientError: The client is closed.
        """
        self.engine.check_open()
        return [] if tool is None else await self.engine.journal.durations(self.scope, tool)

    async def prune(self, older_than_s: float | None) -> int:
        """Forget old records; see :meth:`TasksClient.prune`."""
        return await self._store.ends.prune(older_than_s)
