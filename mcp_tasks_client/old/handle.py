"""A task in the host's hands: look at it, wait for it, cancel it, find it again elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypedDict

import anyio
from mcp_types import CallToolResult

from .drive import Drive
from .errors import (
    RemoteProtocolError,
    TaskCancelledError,
    TaskExpiredError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClientError,
    WaitTimeoutError,
)
from .results import read_result
from .scheduler import Scheduler
from .sessions.base import Session
from .states import Cancelled, Completed, Failed, Finished, Gone, Violated
from .wire import JSONObject, Task, redact, shorten

__all__ = ["TaskHandle", "TaskReference"]


class TaskReference(TypedDict):
    """What it takes to find a task again: JSON, for a queue, a database row, another process.

    It holds the task ID, with which anybody who can reach the server can act on the task.
    """

    endpoint: str
    principal: str
    tool: str | None
    task_id: str | None
    record_id: str


class TaskHandle:
    """One call of one tool, whether or not the server made a task of it.

    ``await handle`` is ``await handle.result()``. A handle pickles as its reference; the other
    side attaches that with :meth:`TasksClient.attach`.

    Handles come from :class:`TasksClient`; there is no use in making one.
    """

    __slots__ = ("_drive", "_reference", "_scheduler", "_task")

    def __init__(self, scheduler: Scheduler, drive: Drive) -> None:
        self._scheduler: Scheduler | None = scheduler
        self._drive: Drive | None = drive
        self._reference: TaskReference | None = None
        self._task: Task | None = None

    @property
    def reference(self) -> TaskReference:
        """A token for :meth:`TasksClient.attach`, here or elsewhere."""
        if self._drive is None:
            assert self._reference is not None
            return self._reference
        record = self._drive.record
        return TaskReference(
            endpoint=record.scope.endpoint,
            principal=record.scope.principal,
            tool=record.tool,
            task_id=self._drive.task_id,
            record_id=record.record_id,
        )

    @property
    def task_id(self) -> str | None:
        """The server's ID; ``None`` while there is no task, or if the server answered at once."""
        return self.reference["task_id"]

    @property
    def tool(self) -> str | None:
        """The tool's name; ``None`` if the task was attached by its bare ID."""
        return self.reference["tool"]

    @property
    def task(self) -> Task | None:
        """The latest snapshot; ``None`` if there is no task."""
        return self._task if self._drive is None else self._drive.task

    @property
    def immediate_response(self) -> str | None:
        """What the server would have the model be told while the task goes on; ``None`` if nothing."""
        return self.task.immediate_response if self.task is not None else None

    @property
    def done(self) -> bool:
        """Whether the outcome is known; ``result()`` then returns or raises at once."""
        return self._drive is not None and self._drive.record.finished

    async def result(self, timeout: float | None = None) -> CallToolResult:
        """Wait for the outcome and return it, as often as you like.

        Args:
            timeout: Seconds to wait, requests included; ``None`` waits as long as it takes.

        Returns:
            The server's result, unchanged; ``is_error`` is a result like any other. Fields that
            ``CallToolResult`` does not name are in ``model_extra``, at every level.

        Raises:
            TaskError: The task ended otherwise: failed, cancelled, expired, not found.
            WaitTimeoutError: The time is over. The task goes on.
            InputUnansweredError: The server asked something that got no answer. The task goes on.
            SessionError: The server refused to be asked, or broke the protocol.
            JournalError: A step could not be made durable, and was therefore not taken.
        """
        scheduler, drive = self._live()
        with anyio.move_on_after(timeout) as waiting:
            await self._settle(scheduler, drive)
        if not drive.record.finished:
            raise self._timed_out(timeout)
        return await self._deliver(scheduler, drive, waiting.deadline)

    async def refresh(self) -> Task:
        """The snapshot that the next poll brings.

        The poll keeps the server's pace, so this takes up to one ``pollIntervalMs``. Once the task
        is over it returns the last snapshot at once.

        Raises:
            TasksClientError: As :meth:`result`; also if the server made no task of the call.
        """
        scheduler, drive = self._live()
        if drive.record.finished and drive.task is not None:
            return drive.task
        async with self._held(scheduler, drive):
            polls, drive.refreshing = drive.polls, drive.refreshing + 1
            scheduler.performer.hasten(drive)
            try:
                await self._wait(scheduler, drive, lambda d: d.polls > polls)
            finally:
                drive.refreshing -= 1
        if drive.task is None:
            raise TasksClientError("The server answered this call at once; there is no task.", handle=self)
        return drive.task

    def updates(self) -> AsyncIterator[Task]:
        """The task as it changes: the latest snapshot first, the final one last.

        A slow reader misses intermediate snapshots, never the latest. Leaving the loop does not
        stop the task, nor its observation.

        Raises:
            TasksClientError: While iterating: what parked the task, as :meth:`result` says. An end that
                is no result (failed, cancelled) just ends the loop.
        """
        return Updates(self, keep=True)

    async def cancel(self) -> None:
        """Ask the server to cancel the task.

        Cancelling is cooperative: ``result()`` then raises :class:`TaskCancelledError`, or returns
        a result that was faster. Questions that are open are withdrawn. A call without a task, and
        a finished one, have nothing to cancel. While a ``Retry-After`` runs, the server is told
        after it.

        Raises:
            SessionError: The server could not be told. The wish is journaled, and repeated with the
                polls or by resuming; unless another client drives the task, then say it again.
            JournalError: The wish could not be journaled, and was not sent.
        """
        scheduler, drive = self._live()
        with self._named():
            await scheduler.cancel(drive)

    def __await__(self) -> Generator[Any, Any, CallToolResult]:
        return self.result().__await__()

    def __repr__(self) -> str:
        task_id = shorten(self.task_id) if self.task_id else None
        status = "detached" if self._drive is None else self._quoted(self._drive.record.status)
        return f"<TaskHandle tool={self.tool!r} task_id={task_id!r} {status}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return detached_handle, (self.reference, self.task)

    # ── inside ────────────────────────────────────────────────────────────────────────────────

    def _live(self) -> tuple[Scheduler, Drive]:
        if self._scheduler is None or self._drive is None:
            raise TasksClientError(
                "This handle came from another process. Use: await client.attach(handle.reference)",
                handle=self,
            )
        return self._scheduler, self._drive

    async def _settle(self, scheduler: Scheduler, drive: Drive) -> None:
        if not drive.record.finished:
            async with self._held(scheduler, drive):
                await self._wait(scheduler, drive, lambda _: False)

    @asynccontextmanager
    async def _held(self, scheduler: Scheduler, drive: Drive) -> AsyncIterator[None]:
        with self._named():
            async with scheduler.hold(drive):
                yield

    async def _wait(self, scheduler: Scheduler, drive: Drive, until: Callable[[Drive], bool]) -> None:
        try:  # and no context manager, for each call that waits is here
            await scheduler.wait(drive, until)
        except TasksClientError as error:
            error.handle = self
            raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Have errors carry this handle."""
        try:
            yield
        except TasksClientError as error:
            error.handle = self
            raise

    async def _deliver(self, scheduler: Scheduler, drive: Drive, deadline: float | None) -> CallToolResult:
        """Give the host what became of the call, and only then note that it has it.

        Without a ``deadline`` the result is not checked against the output schema.
        """
        state = drive.record.state
        assert isinstance(state, Finished)
        try:
            result = await self._outcome(scheduler, state, deadline)
        except TasksClientError:
            scheduler.afterwards.delivered(drive)
            raise
        scheduler.afterwards.delivered(drive)
        return result

    async def _outcome_as_it_came(
        self, scheduler: Scheduler, drive: Drive, deadline: float
    ) -> tuple[JSONObject | TasksClientError, Callable[[], None]]:
        """What became of the call, and what notes that the host has it."""
        state = drive.record.state
        assert isinstance(state, Finished)
        outcome: JSONObject | TasksClientError
        try:
            await self._outcome(scheduler, state, deadline)
            assert isinstance(state.outcome, Completed), "all else has raised"
            outcome = state.outcome.result
        except TasksClientError as error:
            outcome = error
        return outcome, partial(scheduler.afterwards.delivered, drive)

    async def _outcome(self, scheduler: Scheduler, state: Finished, deadline: float | None) -> CallToolResult:
        match state.outcome:
            case Completed(result=raw):
                with self._named():
                    return await read_result(raw, self.tool, self.task_id, _session(scheduler), deadline)
            case Failed() as failed:
                raise TaskFailedError(
                    f"The call of {self.tool!r} ended in error {failed.code}: "
                    f"{self._quoted(failed.message)}. To try again, {self._again()}.",
                    code=failed.code,
                    message=failed.message,
                    data=failed.data,
                    status_message=failed.status_message,
                    handle=self,
                )
            case Cancelled(status_message=message):
                said = f": {self._quoted(message).rstrip('.')}" if message else ""
                raise TaskCancelledError(
                    f"The task of {self.tool!r} was cancelled{said}. To try again, {self._again()}.",
                    handle=self,
                )
            case Gone(why="expired"):
                raise TaskExpiredError(
                    f"The task of {self.tool!r} is gone: its time-to-live has passed. Resume tasks before "
                    f"their ttlMs is over, or {self._again()}.",
                    handle=self,
                )
            case Gone(message=message):
                said = f" ({self._quoted(message).rstrip('.')})" if message else ""
                lost = "It may have lost it in a restart"
                if scheduler.driver.session.ephemeral:
                    lost = "It died with the server's process, which ended with an earlier connection"
                raise TaskNotFoundError(
                    f"The server does not know the task of {self.tool!r}{said}. {lost}; "
                    f"{self._again()} if the tool may run again.",
                    handle=self,
                )
            case Violated(message=message):
                raise RemoteProtocolError(f"{message} Report it to the server's author.", handle=self)

    def _timed_out(self, timeout: float | None) -> WaitTimeoutError:
        if self.task_id is None:
            return WaitTimeoutError(
                f"The server has not answered the call of {self.tool!r} within {timeout} seconds. Await "
                "error.handle.result() at once to wait on; with an idempotency_key the call can be repeated.",
                handle=self,
            )
        return WaitTimeoutError(
            f"No outcome of {self.tool!r} within {timeout} seconds. Unless it was cancelled, the task goes "
            "on: await error.handle.result(), or resume() later.",
            handle=self,
        )

    def _again(self) -> str:
        keyed = self._drive is not None and self._drive.record.idempotency_key is not None
        return "make a new call under a new idempotency key" if keyed else "make a new call"

    def _quoted(self, text: str) -> str:
        return redact(text, self.task_id)


class Updates(AsyncIterator[Task]):
    """Follows one drive. A class, because an abandoned async generator is a warning on trio."""

    def __init__(self, handle: TaskHandle, *, keep: bool) -> None:
        self._handle = handle
        self._scheduler, self._drive = handle._live()
        self._keep = keep
        self._seen: Task | None = None
        self._ended = False

    async def __anext__(self) -> Task:
        """Return the next snapshot that differs from the last one returned."""
        drive = self._drive
        while not self._ended:
            if self._keep and not (drive.over or drive.running or drive.following):
                with self._handle._named():
                    await self._scheduler.keep(drive)
            self._ended, task, version = drive.over, drive.task, drive.version
            if self._ended:
                await self._handle._wait(self._scheduler, drive, lambda _: True)
            if task is not None and task != self._seen:
                self._seen = task
                return task
            if not self._ended and drive.version == version:
                await drive.change()
        raise StopAsyncIteration


def _session(scheduler: Scheduler) -> Session | None:
    return None if scheduler.closed else scheduler.driver.session


def detached_handle(reference: TaskReference, task: Task | None) -> TaskHandle:
    """A handle that has to be attached first, as those from other processes."""
    handle = object.__new__(TaskHandle)
    handle._scheduler, handle._drive = None, None
    handle._reference, handle._task = reference, task
    return handle
