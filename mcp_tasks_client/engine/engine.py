"""What a :class:`TasksClient` opens: a journal, a session, and calls driven in a task group of its own.

A call is driven for as long as anybody waits for it, or the client keeps it for the handles that it gave
out. The driving itself is :meth:`Runner.drive`.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from mcp_types import CallToolResult

from ..callbacks import Inputs
from ..errors import JournalError, OutcomeUnknownError, TasksClientError, WaitTimeoutError
from ..host_code import was_cancelled_from_inside
from ..journal.base import Journal
from ..journal.guarded import GuardedJournal
from ..machine.record import Scope, TaskRecord, TaskReference
from ..machine.states import Calling
from ..policy import PollPolicy
from ..protocol import JSONObject
from ..sessions.base import Session, ToolCall
from ..uncut import run_to_its_end
from .call_store import BATCH, CallStore
from .cancellation import OnAbandon, check_on_abandon
from .environment import Environment
from .idempotency import Idempotency, OnUnknown, check_repeatable
from .live_call import HandleOf, LiveCall, OnUpdate, OvertakenError
from .outcome import read_outcome, read_raw_outcome
from .push import Push
from .recovery import Recovery
from .requests import Requests
from .runner import Runner

__all__ = ["Engine"]

logger = logging.getLogger("mcp_tasks_client")


class Engine:
    """Makes calls and sees tasks through, at one endpoint and for one principal.

    Args:
        session: Where requests go; closed with the engine.
        journal: Where states go first; closed with the engine, as often as it was opened.
        inputs: Who answers questions.
        policy: Latency against load.
        scope: Under which the journal keeps what is done here.
        on_abandon: What happens to the task of a call that nobody waits for any more.
        handle_of: Makes the handle that errors about a call carry.
        environment: Clock, jitter, process and probe.

    Raises:
        ValueError: ``on_abandon`` is neither word.
    """

    def __init__(
        self,
        *,
        session: Session,
        journal: Journal,
        inputs: Inputs,
        policy: PollPolicy,
        scope: Scope,
        on_abandon: OnAbandon,
        handle_of: HandleOf,
        environment: Environment | None = None,
    ) -> None:
        check_on_abandon(on_abandon)
        self.handle_of = handle_of
        self.session = session
        self._journal = GuardedJournal(journal)
        self._inputs = inputs
        self._policy = policy
        self._scope = scope
        self._on_abandon = on_abandon
        self._environment = environment or Environment()
        self._clock = self._environment.clock
        self._tasks: TaskGroup | None = None
        self._closed = False

    # ── calling ───────────────────────────────────────────────────────────────────────────────

    async def call(
        self,
        tool_call: ToolCall,
        *,
        timeout: float | None,
        key: str | None,
        on_unknown: OnUnknown,
        listeners: Sequence[OnUpdate],
    ) -> CallToolResult:
        """Make a call and wait for its result; see :meth:`TasksClient.call_tool`."""
        call, deadline = await self._call_within(tool_call, timeout, key, on_unknown, listeners)
        return await self.deliver(call, deadline)

    async def call_raw(
        self, tool_call: ToolCall, *, listeners: Sequence[OnUpdate]
    ) -> tuple[JSONObject | TasksClientError, Callable[[], None]]:
        """Make a call and wait for its end, on behalf of somebody who is yet to be told.

        Returns:
            The result, checked and as it came, or the error that it is; and what notes that it was had.

        Raises:
            TasksClientError: There is no end yet.
        """
        call, _ = await self._call_within(tool_call, None, None, "raise", listeners)
        outcome: JSONObject | TasksClientError
        try:
            outcome = await read_raw_outcome(call.record, self.session)
        except TasksClientError as error:
            error.handle = self.handle_of(call)
            outcome = error
        return outcome, partial(self._delivered, call)

    async def start(self, tool_call: ToolCall, *, key: str | None, on_unknown: OnUnknown) -> LiveCall:
        """Make a call and observe its task in the background; see :meth:`TasksClient.start_tool`."""
        while True:
            call = await self._begin(tool_call, key, on_unknown)
            try:
                if not call.record.finished:
                    with self.held(call):
                        await self.wait(call, lambda c: c.task is not None)
                        self.keep(call)
                return call
            except (OvertakenError, OutcomeUnknownError) as error:
                check_repeatable(error, call, on_unknown)

    async def _call_within(
        self,
        tool_call: ToolCall,
        timeout: float | None,
        key: str | None,
        on_unknown: OnUnknown,
        listeners: Sequence[OnUpdate],
    ) -> tuple[LiveCall, float]:
        """Make a call and wait for its end. Returns it, and until when there is time to check the result."""
        if timeout is None:  # without a scope for each call that waits
            return await self._call_and_wait(tool_call, key, on_unknown, listeners, []), math.inf
        begun: list[LiveCall] = []
        with anyio.move_on_after(timeout) as waiting:
            await self._call_and_wait(tool_call, key, on_unknown, listeners, begun)
        if not begun:
            raise WaitTimeoutError(f"The journal took longer than {timeout} seconds; nothing was sent.")
        if not begun[-1].record.finished:
            raise self.timed_out(begun[-1], timeout)
        return begun[-1], waiting.deadline

    async def _call_and_wait(
        self,
        tool_call: ToolCall,
        key: str | None,
        on_unknown: OnUnknown,
        listeners: Sequence[OnUpdate],
        begun: list[LiveCall],
    ) -> LiveCall:
        while True:
            call = await self._begin(tool_call, key, on_unknown)
            begun.append(call)
            try:
                with call.telling(listeners):
                    await self._see_through(call)
                return call
            except (OvertakenError, OutcomeUnknownError) as error:
                check_repeatable(error, call, on_unknown)

    async def _begin(self, tool_call: ToolCall, key: str | None, on_unknown: OnUnknown) -> LiveCall:
        self.check_open()
        while True:
            with suppress(OvertakenError):  # what the key stood for was taken back just then
                return await self.idempotency.begin(tool_call, key, on_unknown)

    async def _see_through(self, call: LiveCall) -> None:
        """Wait until a call is finished. Being cancelled here is what abandons a call."""
        if call.record.finished:
            return
        self._hold(call)
        try:
            await self.wait(call, _never)
        except anyio.get_cancelled_exc_class():
            # Not under others who wait for the same call, and not another client's task.
            if (
                self._on_abandon == "cancel"
                and call.waiters == 1
                and not call.kept
                and call.ours
                and not self._closed
            ):
                await run_to_its_end(self.runner.cancellation.cancel_abandoned, call)
            raise
        finally:
            self._let_go(call)

    # ── what handles use ──────────────────────────────────────────────────────────────────────

    @contextmanager
    def held(self, call: LiveCall) -> Iterator[None]:
        """Have a call driven for as long as the block lasts, and on if others wait for it too.

        Raises:
            TasksClientError: The client is closed.
        """
        self._hold(call)
        try:
            yield
        finally:
            self._let_go(call)

    def _hold(self, call: LiveCall) -> None:
        self.check_open(call)
        call.waiters += 1
        self._drive(call)

    def _let_go(self, call: LiveCall) -> None:
        call.waiters -= 1
        if not call.wanted:
            self._stop(call)

    def keep(self, call: LiveCall) -> None:
        """Have a call driven until it ends, parks, or the client closes."""
        if not call.over and not self._closed:
            call.kept = True
            self._drive(call)

    async def wait(self, call: LiveCall, until: Callable[[LiveCall], bool]) -> None:
        """Wait, while the call is held, until a condition is met or the call is over.

        Raises:
            Exception: What parked the call; a copy, since several callers may wait for one call.
        """
        while not until(call) and not call.over:
            await call.change()
        if not call.record.finished and call.error is not None:
            call.error_told = True
            error = call.error
            if isinstance(error, TasksClientError):
                error = copy.copy(error)
                error.handle = self.handle_of(call)
            raise error from call.error.__cause__

    async def deliver(self, call: LiveCall, deadline: float | None) -> CallToolResult:
        """Give the host the outcome of a finished call, and only then note that the host has it.

        Args:
            call: The call.
            deadline: Until when the output schema may be asked for; ``None`` leaves the result unchecked.

        Raises:
            TasksClientError: The end is an error.
        """
        session = None if self._closed else self.session
        try:
            result = await read_outcome(call.record, session, deadline)
        except TasksClientError as error:
            error.handle = self.handle_of(call)
            self._delivered(call)
            raise
        self._delivered(call)
        return result

    async def refresh(self, call: LiveCall) -> None:
        """Wait for the next poll of a call. It keeps the server's pace.

        Raises:
            Exception: What parked the call.
        """
        with self.held(call):
            polls, call.refreshing = call.polls, call.refreshing + 1
            try:
                await self.wait(call, lambda c: c.polls > polls)
            finally:
                call.refreshing -= 1

    async def cancel(self, call: LiveCall) -> None:
        """Cancel a call: journal the wish, and tell the server; see :meth:`TaskHandle.cancel`.

        Raises:
            SessionError: The server could not be told. What may pass is sent again with the polls; what the
                server refused, only when the call is resumed.
            JournalError: The wish could not be journaled, and was not sent.
        """
        self.check_open(call)
        try:
            await self._cancel(call)
        except TasksClientError as error:
            error.handle = self.handle_of(call)
            raise

    async def _cancel(self, call: LiveCall) -> None:
        done = anyio.Event()
        failed: list[TasksClientError] = []

        async def send() -> None:
            try:
                with anyio.CancelScope(shield=True) as scope:
                    self._cancelling.add(scope)
                    if self._closed:  # closing has set the deadlines of all others already
                        scope.deadline = anyio.current_time() + self._policy.cancel_timeout_s
                    await self.runner.cancellation.send(call)
                if scope.cancelled_caught:
                    failed.append(TasksClientError("The client was closed first; resuming cancels the task."))
            except TasksClientError as error:
                failed.append(error)
            except anyio.get_cancelled_exc_class():
                if not was_cancelled_from_inside():
                    raise
                failed.append(TasksClientError("tasks/cancel was cancelled from inside of the session."))
            finally:
                self._cancelling.discard(scope)
                if call.driver is None:
                    await self.store.release_unfinished(call)
                done.set()

        async def begin() -> bool:
            wished = await self.runner.cancellation.wish(call)
            if wished and self._closed:
                raise TasksClientError("The client was closed first; resuming cancels the task.")
            if wished:
                assert self._tasks is not None
                self._tasks.start_soon(send)  # goes on though the caller goes away
            return wished

        try:
            # In a task of its own: a wish that is journaled as being sent is sent by nobody else.
            if not await run_to_its_end(begin):
                return
        except TasksClientError:
            if call.driver is None:
                await self.store.release_unfinished(call)  # whoever else takes the call up cancels it
            raise
        await done.wait()
        if failed:
            raise failed[0]

    def timed_out(self, call: LiveCall, timeout: float | None) -> WaitTimeoutError:
        """The error of a waiting that has ended before the call."""
        tool = call.record.tool
        if call.task_id is None:
            message = (
                f"The server has not answered the call of {tool!r} within {timeout} seconds. Await "
                "error.handle.result() at once to wait on; with an idempotency_key the call can be repeated."
            )
        else:
            message = (
                f"No outcome of {tool!r} within {timeout} seconds. Unless it was cancelled, the task goes "
                "on: await error.handle.result(), or resume() later."
            )
        return WaitTimeoutError(message, handle=self.handle_of(call))

    # ── what the journal holds ────────────────────────────────────────────────────────────────

    async def resume(self) -> Sequence[LiveCall]:
        """Take up every task and undelivered outcome that is free; see :meth:`TasksClient.resume`."""
        self.check_open()
        calls = await self.recovery.take_pending()
        self.check_open()
        for number, call in enumerate(calls, 1):
            if call.driver is None:
                call.error = None  # taken up again, whatever it was parked for
            self.keep(call)
            if number % BATCH == 0:
                await anyio.lowlevel.checkpoint()  # thousands of them must not hold the event loop
        return calls

    async def attach(self, wanted: str | TaskReference) -> LiveCall:
        """Observe a task that is known by its ID or reference; see :meth:`TasksClient.attach`."""
        self.check_open()
        if wanted == "":
            raise ValueError("a task ID cannot be empty")
        call = await self.recovery.find(wanted)
        is_new = isinstance(call.record.state, Calling) and bool(call.uncommitted)
        self.keep(call)
        if is_new:
            # Nothing is known of the task yet, so a first look is taken; an error waits for result().
            call.refreshing += 1
            try:
                while not call.polls and not call.over:
                    await call.change()
            finally:
                call.refreshing -= 1
        return call

    async def records(self, *, pending: bool) -> list[TaskRecord]:
        """What the journal knows of this endpoint and principal; see :meth:`TasksClient.records`."""
        self.check_open()
        return await self._journal.records(self._scope, pending=pending)

    async def prune(self, older_than_s: float | None) -> int:
        """Forget what is old; see :meth:`TasksClient.prune`."""
        self.check_open()
        age_s = self._journal.retention_s if older_than_s is None else older_than_s
        return await self.store.prune(self._clock.time() - age_s)

    # ── driving ───────────────────────────────────────────────────────────────────────────────

    def _drive(self, call: LiveCall) -> None:
        """See to it that a call is driven."""
        if call.record.finished or (call.error is not None and not call.error_told):
            return  # what parked the call while nobody listened is told first
        if call.error is not None:
            call.error = None
            if call.driver is not None:
                call.driver.cancel()  # it is still leaving what the call parked in, and begins anew
        if call.attempt is not None:
            call.attempt.keep()
        if call.driver is None:
            assert self._tasks is not None
            call.driver = anyio.CancelScope()
            self._tasks.start_soon(self._keep_driving, call)

    async def _keep_driving(self, call: LiveCall) -> None:
        """Drive a call for as long as it is wanted, also by somebody who comes while it is being stopped."""
        try:
            while True:
                assert call.driver is not None
                with call.driver:
                    await self.runner.drive(call)
                if call.over or not call.wanted or self._closed:
                    break
                call.driver = anyio.CancelScope()
        finally:
            call.driver = None
            call.kept = False
            call.publish()

    def _stop(self, call: LiveCall) -> None:
        """Stop driving a call that nobody waits for: no poll, no prompt. It is released."""
        if call.attempt is not None:
            call.attempt.cut(self._policy.call_grace_s)
        if call.driver is not None:
            call.driver.cancel()

    def _delivered(self, call: LiveCall) -> None:
        if not self._closed:  # else the journal is closed, and the next client hands the outcome out again
            self.store.deliver(call)
            self._prune_now_and_then()

    def _prune_now_and_then(self) -> None:
        if self._tasks is not None and self.store.begin_hourly_prune():
            self._tasks.start_soon(self.store.prune_old)

    # ── opening and closing ───────────────────────────────────────────────────────────────────

    def check_open(self, call: LiveCall | None = None) -> None:
        """Refuse to begin anything before the opening and after the end.

        Raises:
            TasksClientError: The client is not open. It carries the handle of ``call``.
        """
        if self._tasks is None:
            raise TasksClientError("The client is not open. Use: async with TasksClient(...) as client")
        if self._closed:
            raise TasksClientError(
                "The client is closed. Open one again and attach the handle's reference, or resume().",
                handle=None if call is None else self.handle_of(call),
            )

    async def __aenter__(self) -> Self:
        """Open the journal, which proves that it can be written. Nothing is sent yet.

        Raises:
            JournalError: The journal cannot be used; the message says why and what to do.
        """
        if self._tasks is not None:
            raise TasksClientError("A client is opened once. Make another one.")
        opened: list[bool] = []

        async def open_journal() -> None:
            await self._journal.open()
            opened.append(True)

        try:
            await run_to_its_end(open_journal)
            self.store = CallStore(self._journal, self._policy, self._environment)
            requests = Requests(self.session, self._inputs, self._environment)
            self.runner = Runner(self.store, requests, self._policy, self._environment)
            self.idempotency = Idempotency(self.store, self._scope, self._environment)
            self.recovery = Recovery(self.store, self._scope, self._environment)
            tasks = anyio.create_task_group()
            await tasks.__aenter__()
        except BaseException:
            if opened:  # the block is not entered, so that nobody else would close it
                await run_to_its_end(self._journal.aclose)
            raise
        self._cancelling: set[anyio.CancelScope] = set()
        self._tasks = tasks
        self.push = Push(self.store, requests, self.runner, tasks)
        self.runner.on_observe = self.push.add
        tasks.start_soon(self.push.run)
        self._prune_now_and_then()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop driving every call, finish what has to be written, close."""
        assert self._tasks is not None
        self._closed = True
        for call in list(self.store.live.values()):
            if call.driver is not None or (call.waiters and not call.over):  # whose driver has crashed
                call.park(TasksClientError("The client was closed. The task goes on; resume() it."))
                self._stop(call)
        for scope in self._cancelling:
            scope.deadline = anyio.current_time() + self._policy.cancel_timeout_s
        try:
            self._tasks.cancel_scope.cancel()
            # Without the block's own exception, which would come back wrapped in a group.
            await self._tasks.__aexit__(None, None, None)
        finally:
            await run_to_its_end(self._close)

    async def _close(self) -> None:
        try:
            await self.store.close()
        finally:
            try:
                await self._journal.aclose()
            except JournalError as error:  # all that it was asked to write, it has said that it has
                logger.error("The journal could not be closed: %s", error)
            finally:
                await self.session.aclose()


def _never(call: LiveCall) -> bool:
    return False
