"""One server, for one principal, over one session: calls are made there, seen through, and found again."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
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
from .outcome import read_outcome, read_raw_outcome
from .performer import Performer
from .push import Push
from .record_maker import RecordMaker
from .recovery import Recovery
from .registry import BATCH
from .requests import Requests
from .runner import Runner
from .time_limit import TimeLimit

__all__ = ["Endpoint", "Line"]

logger = logging.getLogger("mcp_tasks_client")


class Line:
    """A line of a host that makes a call: which call it has begun, and who waits in it.

    Attributes:
        call: The call, once it has begun.
        listeners: Told of each changed snapshot.
        context: Of the caller; see :mod:`mcp_tasks_client.sessions.base`.
        on_unknown: Under a key, what to do about an earlier call whose reply was lost.
        limit: For how long the line waits; ``None`` is as long as it takes.
    """

    __slots__ = ("call", "context", "limit", "listeners", "on_unknown")

    def __init__(
        self,
        listeners: Sequence[OnUpdate] = (),
        context: object = None,
        on_unknown: OnUnknown = "raise",
        limit: TimeLimit | None = None,
    ) -> None:
        self.call: LiveCall | None = None
        self.listeners = listeners
        self.context = context
        self.on_unknown: OnUnknown = on_unknown
        self.limit = limit

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
        push = Push(requests, engine.tasks, performer) if hears else None
        self._runner = Runner(engine, requests, performer, instructions, self.answering, push)
        self._maker = RecordMaker(scope, engine.application, environment)
        self._idempotency = Idempotency(self._store, self._maker, environment)
        self._recovery = Recovery(self._store, self._maker, environment)

    def hear(self) -> None:
        """Have the session heard until the engine is left, and not only while calls are driven."""
        assert self._runner.push is not None, "an endpoint that hears its session"
        self._runner.push.join()

    # ── calling ───────────────────────────────────────────────────────────────────────────────

    async def enter(
        self,
        line: Line,
        begin: Callable[[], Awaitable[LiveCall]],
        *,
        in_background: bool = False,
    ) -> None:
        """Begin a call, and wait until it is finished: the one entrance of all ways in.

        Being cancelled meanwhile abandons the call. The observer is told of this as ``LINE``.

        Args:
            line: Gets the call, before it is waited for.
            begin: Gives the call, once more if it was overtaken.
            in_background: Wait only until there is a task, and have it observed in the background then.

        Raises:
            TasksClientError: The call is parked, or was not made.
        """
        await self._observed(line, LINE, self._enter, line, begin, in_background)

    async def _enter(self, line: Line, begin: Callable[[], Awaitable[LiveCall]], in_background: bool) -> None:
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

    async def _wait_in(self, line: Line, call: LiveCall, in_background: bool) -> None:
        self.hold(call, line.listeners, line.context)
        try:
            if in_background:
                await self.wait(call, lambda c: c.task is not None)
                self.drive_in_background(call)
            else:
                await self.wait(call)
        except anyio.get_cancelled_exc_class():
            # Not under others who wait for the same call, and not another client's task.
            alone = call.audience.waiters == 1 and not (in_background or call.audience.in_background)
            if self.engine.on_abandon == "cancel" and alone and call.ours and not self.engine.closed:
                await run_to_its_end(self._cancellation.cancel_abandoned, call)
            raise
        finally:
            await self.let_go(call, line.listeners, line.context)

    async def _enter_within(
        self,
        line: Line,
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
        tool_call: ToolCall,
        *,
        key: str | None = None,
        on_unknown: OnUnknown = "raise",
        timeout: float | None = None,
        timeout_excludes_questions: bool = False,
        raise_on_error: bool = False,
        listeners: Sequence[OnUpdate] = (),
    ) -> CallToolResult:
        """Make a call and wait for its result; see :meth:`TasksClient.call_tool`."""
        line = Line(listeners, on_unknown=on_unknown)
        begin = partial(self.begin, tool_call, key, on_unknown)
        deadline = await self._enter_within(line, begin, timeout, timeout_excludes_questions)
        return await self.deliver(line.begun, deadline, raise_on_error=raise_on_error)

    async def start(
        self, tool_call: ToolCall, *, key: str | None, on_unknown: OnUnknown, record_id: str | None = None
    ) -> LiveCall:
        """Make a call and observe its task in the background; see :meth:`TasksClient.start_tool`."""
        line = Line(on_unknown=on_unknown)
        begin = partial(self.begin, tool_call, key, on_unknown, record_id)
        await self.enter(line, begin, in_background=True)
        if line.begun.record.finished:
            self._store.registry.ring(line.begun)  # once more: no caller may be left that waits for it
        return line.begun

    async def begin(
        self, tool_call: ToolCall, key: str | None, on_unknown: OnUnknown, record_id: str | None = None
    ) -> LiveCall:
        """The live call of a tool call: a new one, or the one that its key stands for.

        Raises:
            TasksClientError: As from :meth:`Idempotency.begin`.
        """
        while True:
            with suppress(OvertakenError):  # what the key stood for was taken back just then
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
        created: Snapshot,
        tool: str,
        *,
        label: str | None = None,
        timeout: float | None,
        timeout_excludes_questions: bool = False,
        listeners: Sequence[OnUpdate],
    ) -> CallToolResult:
        """Wait for the result of a task that the reply to another client's ``tools/call`` has created.

        The task is journaled before anything else. The result is not checked against the output schema.

        Args:
            created: The task, as the reply to ``tools/call`` describes it.
            tool: The name of the tool.
            label: A short text for people.
            timeout: Seconds to wait; ``None`` waits as long as it takes.
            timeout_excludes_questions: Whether the time does not count in which the host is asked.
            listeners: Told of each changed snapshot.

        Raises:
            TasksClientError: As :meth:`TasksClient.call_tool`; ``.handle`` always names the task.
        """
        now, jitter = self.engine.environment.clock.time(), self.engine.environment.jitter()
        first = TaskCreated(task=created.task, session_data=created.session_data, now=now, jitter=jitter)
        record = self._maker.make(tool, now, label=label)
        call = self._store.owning.new_call(record, first=first)
        self._store.registry.note_unsaved(call)

        async def begin() -> LiveCall:
            return call

        try:
            # The driver begins before anything is waited for. It commits the task, though its caller may go.
            await self._enter_within(Line(listeners), begin, timeout, timeout_excludes_questions)
            async with self.engine.using_journal():
                return await self.deliver(call, None)
        except BaseException as error:
            if isinstance(error, TasksClientError):
                error.handle = self.engine.handle_of(self, call)
            if call.record.finished:
                await run_to_its_end(self._release_outcome, call)
            raise

    async def _release_outcome(self, call: LiveCall) -> None:
        async with self.engine.using_journal():
            await self.release(call)

    async def put_back(self, call: LiveCall) -> None:
        """Release an outcome that did not reach the host, unless others here look after the call."""
        if not (self.engine.closed or call.looked_after):
            await run_to_its_end(self._release_outcome, call)

    # ── what handles use ──────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def held(self, call: LiveCall) -> AsyncIterator[None]:
        """Have a call driven for as long as the block lasts, and on if others wait for it too.

        Raises:
            TasksClientError: The client is closed.
        """
        self.hold(call)
        try:
            yield
        finally:
            await self.let_go(call)

    def hold(self, call: LiveCall, listeners: Sequence[OnUpdate] = (), context: object = None) -> None:
        """Have a call driven until :meth:`let_go`. The listeners are told of each changed snapshot.

        Raises:
            TasksClientError: The client is closed.
        """
        self.check_open(call)
        call.audience.add(listeners, context)
        self._runner.begin(call)

    async def let_go(
        self, call: LiveCall, listeners: Sequence[OnUpdate] = (), context: object = None
    ) -> None:
        """Wait for a call no longer. If nobody else does, it is stopped. Takes what :meth:`hold` was given.

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
            self._runner.keep(call)

    async def go_on(self, call: LiveCall) -> None:
        """Have a call driven in the background once more, unless what parked it has yet to be told."""
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
        """An error of a call, for one of those who wait for it."""
        if isinstance(error, TasksClientError):
            error = copy.copy(error)
            error.handle = self.engine.handle_of(self, call)
        if isinstance(error, InputUnansweredError):
            error.questions = tuple(self.answering.open_questions(call.record))
        return error

    async def deliver(
        self, call: LiveCall, deadline: float | None, *, raise_on_error: bool = False
    ) -> CallToolResult:
        """Give the host the outcome of a finished call, and only then note that the host has it.

        Until the deadline the output schema may be asked for; ``None`` leaves the result unchecked.

        Raises:
            TasksClientError: The end is an error.
        """
        result = await self.read(call, deadline, raise_on_error=raise_on_error)
        self.note_delivery(call)
        return result

    async def read(
        self, call: LiveCall, deadline: float | None, *, raise_on_error: bool = False
    ) -> CallToolResult:
        """The result of a finished call, checked as by :meth:`deliver`. Only an error counts as delivered.

        Raises:
            TasksClientError: The end is an error.
        """
        with self.awaited(call):
            try:
                return await self._read(call, deadline, raise_on_error=raise_on_error)
            except TasksClientError:
                self.note_delivery(call)
                raise

    @contextmanager
    def awaited(self, call: LiveCall) -> Iterator[None]:
        """Count a caller that reads the outcome of a finished call, so that no store gets it meanwhile."""
        call.audience.add()
        try:
            yield
        finally:
            call.audience.remove()

    async def read_end(self, call: LiveCall) -> CallToolResult | TasksClientError:
        """The result of a finished call, or the error that it ended in. Nothing is noted.

        The error has no handle: a store that keeps the error would keep the call from being taken up again.
        """
        try:
            return await self._read(call, math.inf)
        except TasksClientError as error:
            error.handle = None
            return error

    async def _read(
        self, call: LiveCall, deadline: float | None, *, raise_on_error: bool = False
    ) -> CallToolResult:
        session = None if self.engine.closed else self.session
        try:
            return await read_outcome(
                call.record,
                session,
                deadline,
                output_schema=self.engine.output_schema,
                raise_on_error=raise_on_error,
            )
        except TasksClientError as error:
            error.handle = self.engine.handle_of(self, call)
            raise

    async def read_raw(self, call: LiveCall, context: object = None) -> JSONObject:
        """The result of a finished call as it came, checked as by :meth:`deliver`. Nothing is noted.

        Raises:
            TasksClientError: The end is an error.
        """
        return await read_raw_outcome(call.record, self.session, context, self.engine.output_schema)

    def note_delivery(self, call: LiveCall) -> None:
        """Note that the host has the outcome of a call."""
        if not self.engine.closed:  # else the journal is closed, and the next client hands it out again
            # What is dropped into a host's client has passed the outcome to a session, which may lose it.
            self._store.ends.deliver(call, may_be_lost=not self.engine.in_background)

    async def acknowledge(self, call: LiveCall, *, keep: bool = False) -> None:
        """Note for good that the host has an outcome; see :meth:`TaskHandle.acknowledge`.

        Raises:
            TasksClientError: The call has not ended, or the client is closed.
        """
        self.check_open(call)
        if not await self._store.ends.acknowledge(call, keep=keep):
            raise TasksClientError(
                f"The call of {name_tool(call.record.tool)} has not ended, so that there is no outcome to "
                "acknowledge. Await error.handle.result() first.",
                handle=self.engine.handle_of(self, call),
            )

    async def acknowledge_record(
        self, scope: Scope, record_id: str, record: TaskRecord | None = None, *, keep: bool = False
    ) -> None:
        """Note for good that the host has the outcome of a record; see :meth:`TasksClient.acknowledge`.

        ``record`` is as the host has read it, if it has.

        Raises:
            TasksClientError: As :meth:`acknowledge`; or a record that the journal would keep is not shown.
            ValueError: The record is of another scope.
        """
        if scope != self.scope:
            raise ValueError(
                f"the call belongs to endpoint {scope.endpoint!r} and principal {scope.principal!r}; "
                "acknowledge it with a client for those"
            )
        call = await self._recovery.find_record(record_id)
        if call is not None:
            await self.acknowledge(call, keep=keep)
        elif record is not None and record.delivered_at is None:
            check_forgotten(record)

    async def release(self, call: LiveCall) -> None:
        """Give up a call whose outcome or question did not reach the host. Any process may resume it.

        Not cancellable.
        """
        if call.wanted:
            return
        try:
            if call.record.finished or await self._store.owning.take(call):
                await self._store.owning.release(call)
        except TasksClientError as error:
            logger.warning("%r could not be released: %s", call.record, error)

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
        self.check_open(call)
        try:
            await self._cancellation.cancel(call)
        except TasksClientError as error:
            error.handle = self.engine.handle_of(self, call)
            raise

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
        return WaitTimeoutError(message, last_failure=failure, handle=self.engine.handle_of(self, call))

    # ── what the journal holds ────────────────────────────────────────────────────────────────

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
        ]  # before the first pause, for others resume as well
        await self.take_up(calls)
        del in_hand  # the handles are made in this very moment
        return calls

    async def take_free(self, limit: int | None, leave: Collection[str]) -> Sequence[LiveCall]:
        """Take what nobody drives, with what is ours already; see :meth:`Recovery.take_free`."""
        return await self._recovery.take_free(limit, leave)

    async def take_up(self, calls: Sequence[LiveCall]) -> None:
        """Have calls driven in the background that were taken."""
        for call in calls:
            if not call.is_driven:
                call.excuse()  # taken up again, for whichever reason it was parked
            self._runner.keep(call)
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
        """Forget what is old; see :meth:`TasksClient.prune`."""
        return await self._store.ends.prune(older_than_s)

    def check_open(self, call: LiveCall) -> None:
        """Refuse to begin anything about a call after the end.

        Raises:
            TasksClientError: The client is closed. It carries the handle of the call.
        """
        try:
            self.engine.check_open()
        except TasksClientError as error:
            error.handle = self.engine.handle_of(self, call)
            raise
