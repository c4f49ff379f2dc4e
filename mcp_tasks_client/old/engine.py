"""What all ways in share: one session, one journal, one scheduler, from opening to closing.

:class:`TasksClient` is an engine that its host opens; the SDK's extension opens one for each task
that it is handed. Nothing of an engine runs outside its ``async with`` block.
"""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self, TypeAlias

import anyio
from anyio.abc import TaskGroup
from mcp_types import CallToolResult

from .clock import Clock, being_stopped, within
from .drive import Drive, OvertakenError
from .driver import Driver
from .errors import JournalError, OutcomeUnknownError, TasksClientError, WaitTimeoutError
from .handle import TaskHandle, TaskReference, Updates
from .idempotency import Intents, OnUnknown
from .inputs import Inputs
from .journal.base import Journal, Scope, TaskRecord
from .journal.failures import typed
from .owners import LEASE_S, Place
from .points import Probe
from .policy import PollPolicy
from .recovery import Recovery
from .results import output_schema
from .scheduler import Scheduler
from .sessions.base import Session, ToolCall
from .states import Calling, Observing
from .upkeep import Upkeep
from .wire import JSONObject, Task

__all__ = ["Engine", "OnAbandon", "OnUpdate"]

logger = logging.getLogger("mcp_tasks_client")

OnAbandon: TypeAlias = Literal["detach", "cancel"]
OnUpdate: TypeAlias = Callable[[Task], Awaitable[None] | None]


class Engine:
    """Makes calls and sees tasks through, at one endpoint and for one principal.

    Args:
        session: Where requests go; closed with the engine.
        journal: Where states go first; closed with the engine, as often as it was opened.
        inputs: Who answers questions.
        policy: Latency against load.
        scope: Under which the journal keeps what is done here.
        on_abandon: What happens to the task of a call that nobody waits for any more.
        clock: ``None`` is the system's.
        probe: Told of every commit and every send.
        place: The process that we are; ``None`` finds out.
        lease_s: Seconds that its lease lasts.
        jitter: Draws fractions from 0 to 1.

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
        clock: Clock | None = None,
        probe: Probe | None = None,
        place: Place | None = None,
        lease_s: float = LEASE_S,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if on_abandon not in ("detach", "cancel"):
            raise ValueError(f'on_abandon must be "detach" or "cancel", got {on_abandon!r}')
        self.clock = clock
        self.probe = probe
        self.place = place
        self.lease_s = lease_s
        self.jitter = jitter
        self.journal = journal
        self._session = session
        self._inputs = inputs
        self._policy = policy
        self._scope = scope
        self._on_abandon = on_abandon
        self._running: Scheduler | None = None
        self._intents: Intents | None = None
        self._recovery: Recovery | None = None
        self._tasks: TaskGroup | None = None

    # ── calling ───────────────────────────────────────────────────────────────────────────────

    async def call(
        self,
        call: ToolCall,
        *,
        timeout: float | None,
        key: str | None,
        on_unknown: OnUnknown,
        on_update: OnUpdate | None,
    ) -> CallToolResult:
        """Make a call and wait for its result; see :meth:`TasksClient.call_tool`."""
        handle, drive, deadline = await self._called(call, timeout, key, on_unknown, on_update)
        return await handle._deliver(self.scheduler, drive, deadline)

    async def call_raw(
        self, call: ToolCall, *, on_update: OnUpdate | None
    ) -> tuple[JSONObject | TasksClientError, Callable[[], None]]:
        """Make a call and wait for its end, on behalf of somebody who is yet to be told.

        Returns:
            The result, checked and as it came, or the error that it is; and what notes that it was had.

        Raises:
            TasksClientError: There is no end yet.
        """
        handle, drive, deadline = await self._called(call, None, None, "raise", on_update)
        return await handle._outcome_as_it_came(self.scheduler, drive, deadline)

    async def _called(
        self,
        call: ToolCall,
        timeout: float | None,
        key: str | None,
        on_unknown: OnUnknown,
        on_update: OnUpdate | None,
    ) -> tuple[TaskHandle, Drive, float]:
        """Make a call and wait for its outcome; and until when there is time to check it."""
        handle = drive = None
        wanted: ToolCall | None = call
        del call  # the drive has it for as long as it is of use, and then its arguments can go
        listeners = (on_update,) if on_update is not None else ()
        with within(timeout) as waiting:
            while wanted is not None:
                drive, wanted = await self._begin(wanted, key, on_unknown), None
                handle = TaskHandle(self.scheduler, drive)
                try:
                    await self._see_through(handle, drive, listeners)
                except (OvertakenError, OutcomeUnknownError) as error:
                    _check_repeatable(error, drive, on_unknown)
                    wanted = drive.call
                    if wanted is None:
                        raise  # it has been made, and is not made again
        if handle is None or drive is None:
            raise WaitTimeoutError(f"The journal took longer than {timeout} seconds; nothing was sent.")
        if not handle.done:
            raise handle._timed_out(timeout)
        return handle, drive, waiting.deadline

    async def start(self, call: ToolCall, *, key: str | None, on_unknown: OnUnknown) -> TaskHandle:
        """Make a call and observe its task in the background; see :meth:`TasksClient.start_tool`."""
        while True:
            drive = await self._begin(call, key, on_unknown)
            handle = TaskHandle(self.scheduler, drive)
            if drive.record.finished:
                return handle
            try:
                async with self.scheduler.hold(drive):
                    await handle._wait(self.scheduler, drive, lambda d: d.task is not None)
                    await self.scheduler.keep(drive)
                return handle
            except (OvertakenError, OutcomeUnknownError) as error:
                _check_repeatable(error, drive, on_unknown)

    async def see_through(
        self, task: Task, tool: str, *, timeout: float | None, listeners: Sequence[OnUpdate]
    ) -> CallToolResult:
        """Wait for the result of a task that somebody else's ``tools/call`` was answered with.

        It is journaled before anything else. The result is not checked against the output schema.

        Raises:
            TasksClientError: As :meth:`TasksClient.call_tool`; ``.handle`` always names the task.
        """
        drive = self.recovery.drive_of(task, tool)
        handle = TaskHandle(self.scheduler, drive)
        try:
            with within(timeout) as waiting:
                await self._see_through(handle, drive, listeners)
            if not handle.done:
                raise WaitTimeoutError(
                    f"No outcome of {tool!r} within {timeout} seconds. Unless it was cancelled, the task "
                    "goes on: TasksClient(client).resume() takes it up.",
                    handle=handle,
                )
            # The SDK checks the result, for which it needs the tool; asked for here, the time is bounded.
            await output_schema(tool, self._session, waiting.deadline)
            return await handle._deliver(self.scheduler, drive, deadline=None)
        except TasksClientError as error:
            error.handle = error.handle or handle
            raise

    async def _begin(self, call: ToolCall, key: str | None, on_unknown: OnUnknown) -> Drive:
        self.scheduler.check_open()
        assert self._intents is not None  # it comes with the scheduler
        while True:
            with suppress(OvertakenError):  # what the key stood for was taken back just then
                return await self._intents.begin(call, key, on_unknown)

    async def _see_through(self, handle: TaskHandle, drive: Drive, listeners: Sequence[OnUpdate]) -> None:
        """Hold the drive until it is over. Being stopped here is what abandons a call."""
        if drive.record.finished:
            return
        with self.scheduler.held(drive):
            try:
                await self.scheduler.take_up(drive)
                if listeners:
                    async for task in Updates(handle, keep=False):
                        for listener in listeners:
                            await _tell(listener, task)
                # Not by way of the handle: one frame less for each call that waits.
                await self.scheduler.wait(drive, _never)
            except TasksClientError as error:
                error.handle = handle
                raise
            except anyio.get_cancelled_exc_class():
                # Not under others who wait for the same call.
                alone = drive.held == 1 and not drive.following
                if self._on_abandon == "cancel" and alone and not self.scheduler.closed:
                    with anyio.CancelScope(shield=True):
                        await self.scheduler.to_its_end(self._cancel_abandoned, drive)
                raise

    async def _cancel_abandoned(self, drive: Drive) -> None:
        deadline = anyio.current_time() + self._policy.cancel_timeout_s
        with anyio.CancelScope(shield=True, deadline=deadline) as scope:
            try:
                # The reply with the task ID may be on its way.
                await self.scheduler.wait(drive, lambda d: not isinstance(d.record.state, Calling))
                await self.scheduler.cancel(drive)
                state = drive.record.state
                if isinstance(state, Observing) and state.cancel == "requested":
                    logger.warning("The abandoned %r is cancelled when it is resumed", drive.record)
            except TasksClientError as error:
                logger.warning("The abandoned %r could not be cancelled: %s", drive.record, error)
        if scope.cancelled_caught:
            logger.warning("The abandoned %r could not be cancelled in time; its task goes on", drive.record)

    # ── what the journal holds ────────────────────────────────────────────────────────────────

    async def resume(self) -> list[TaskHandle]:
        """Take up every unfinished task; see :meth:`TasksClient.resume`."""
        drives = await self.recovery.resume()
        return [TaskHandle(self.scheduler, drive) for drive in drives]

    async def attach(self, wanted: str | TaskReference) -> TaskHandle:
        """Observe a task that is known by its ID or reference; see :meth:`TasksClient.attach`."""
        return TaskHandle(self.scheduler, await self.recovery.attach(wanted))

    async def records(self, *, pending: bool, listed: bool) -> list[TaskRecord]:
        """What the journal knows of this endpoint and principal; see :meth:`TasksClient.records`."""
        return await self.recovery.records(pending=pending, listed=listed)

    async def prune(self, older_than_s: float | None) -> int:
        """Forget delivered outcomes; see :meth:`TasksClient.prune`."""
        age_s = self.journal.retention_s if older_than_s is None else older_than_s
        driver = self.scheduler.driver
        return await driver.commits.forget(driver.clock.time() - age_s)

    # ── opening and closing ───────────────────────────────────────────────────────────────────

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, once the engine is open.

        Raises:
            TasksClientError: It is not open yet.
        """
        if self._running is None:
            raise TasksClientError("The client is not open. Use: async with TasksClient(...) as client")
        return self._running

    @property
    def recovery(self) -> Recovery:
        """What finds calls again, once the engine is open.

        Raises:
            TasksClientError: It is not open yet, or no more.
        """
        self.scheduler.check_open()
        assert self._recovery is not None  # it comes with the scheduler
        return self._recovery

    async def __aenter__(self) -> Self:
        """Open the journal, which proves that it can be written. Nothing is sent yet.

        Raises:
            JournalError: The journal cannot be used; the message says why and what to do.
        """
        if self._running is not None:
            raise TasksClientError("A client is opened once. Make another one.")
        # Shielded, since it is bounded, and who opens an engine for a task must get to journal it.
        with anyio.CancelScope(shield=True), typed:
            await self.journal.open()
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        driver = Driver(
            session=self._session,
            journal=self.journal,
            inputs=self._inputs,
            policy=self._policy,
            clock=self.clock,
            probe=self.probe,
            place=self.place,
            lease_s=self.lease_s,
            jitter=self.jitter,
        )
        self._running = Scheduler(driver, tasks)
        self._intents = Intents(self._running, self._scope)
        self._recovery = Recovery(self._running, self.journal, self._scope)
        tasks.start_soon(self._running.run)
        tasks.start_soon(self._running.performer.listener.run)
        tasks.start_soon(self._watch)
        tasks.start_soon(Upkeep(self._running, driver.clock).run)
        self._tasks = tasks
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let go of every task, finish what has to be written, close."""
        assert self._tasks is not None
        try:
            try:
                await self.scheduler.let_go_of_all()
            finally:
                self.scheduler.close()
                # Without the block's own exception, which would come back wrapped in a group.
                await self._tasks.__aexit__(None, None, None)
        finally:
            # In a task of its own, which asyncio's own cancellation of this one does not stop.
            async with anyio.create_task_group() as closing:
                closing.start_soon(self._close)

    async def _watch(self) -> None:
        while True:
            await self._session.watch(self.scheduler.performer.hearsay.heard)
            self.scheduler.disconnected()

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self.scheduler.driver.commits.membership.leave()
            except JournalError as error:
                logger.warning("The journal does not know yet that this client has ended: %s", error)
            finally:
                try:
                    with typed:
                        await self.journal.aclose()
                except JournalError as error:  # all that it was asked to write, it has said that it has
                    logger.error("The journal could not be closed: %s", error)
                finally:
                    await self._session.aclose()


def _never(drive: Drive) -> bool:
    return False


def _check_repeatable(
    error: OvertakenError | OutcomeUnknownError, drive: Drive, on_unknown: OnUnknown
) -> None:
    """Let a call be begun once more, if what it had joined came to nothing."""
    if isinstance(error, OutcomeUnknownError):
        # Of another client's call, which is gone: what its own caller allows is not known yet.
        if on_unknown != "resend" or not drive.followed:
            raise error
        drive.followed = False


async def _tell(on_update: OnUpdate, task: Task) -> None:
    try:
        told = on_update(task)
        if inspect.isawaitable(told):
            await told
    except anyio.get_cancelled_exc_class():
        if being_stopped():
            raise
        logger.warning("on_update was cancelled; the call goes on")
    except Exception:
        logger.exception("on_update raised; the call goes on")
