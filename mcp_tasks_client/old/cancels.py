"""The life of one ``tasks/cancel``: journaled as a wish, told to the server, told again if need be.

Telling is neither the caller's business nor the drive's: once asked for, it goes on whoever goes
away, until the client has closed, and then a little longer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from .drive import Drive
from .driver import Driver
from .errors import JournalError, SessionError, TasksClientError
from .events import Action, CancelRequested, SendCancel
from .pace import quiet
from .states import Observing

logger = logging.getLogger("mcp_tasks_client")


class Cancels:
    """Cancels the tasks of one endpoint.

    Args:
        driver: Takes the steps.
        tasks: Where the telling runs.
        perform: Does what a step says is to be done.
        park: Stops a drive, for a reason.
        release: Lets others take a call that nobody here drives.
    """

    def __init__(
        self,
        driver: Driver,
        tasks: TaskGroup,
        *,
        perform: Callable[[Drive, tuple[Action, ...]], Awaitable[None]],
        park: Callable[[Drive, Exception], None],
        release: Callable[[Drive], None],
    ) -> None:
        self._driver = driver
        self._commits = driver.commits
        self._tasks = tasks
        self._perform = perform
        self._park = park
        self._release = release
        self._telling: set[anyio.CancelScope] = set()
        self._closed = False

    async def wish(self, drive: Drive) -> Callable[[], Awaitable[None]] | None:
        """Journal the wish, and begin to tell the server.

        Returns:
            What waits until the server was told, and raises if it could not be; ``None`` if there is
            no task to cancel, or the server is to be left alone and is told later.

        Raises:
            SessionError: The server is to be left alone, and there is nobody here to tell it later.
            JournalError: The wish could not be journaled, and was not sent.
        """
        ours = drive.record.finished or await self._commits.take(drive)
        if ours and drive.pending is None:  # or a refusal would take back the intent of what is to be sent
            # There may be a task in it that is to be cancelled, or that the server is to be left alone.
            async with drive.saving:
                while drive.unsaved:
                    await self._commits.catch_up(drive)
        state = drive.record.state
        if not isinstance(state, Observing):
            if not drive.running:
                self._release(drive)
            return None
        if not ours:
            silence = quiet(state, self._driver.clock.time())
            if silence:
                raise _left_alone(silence, "another client drives the task. Cancel it later.")
            return self._telling_of(drive)  # whoever drives it will see what comes of it
        try:
            actions = await self._commits.feed(drive, CancelRequested(now=self._driver.clock.time()))
        except BaseException:
            if not drive.running:
                self._release(drive)
            raise
        await self._perform(drive, tuple(a for a in actions if not isinstance(a, SendCancel)))
        if any(isinstance(action, SendCancel) for action in actions):
            return self._telling_of(drive)
        if not drive.running and isinstance(drive.record.state, Observing):
            silence = quiet(drive.record.state, self._driver.clock.time())
            self._release(drive)
            if silence:
                raise _left_alone(silence, "nobody drives the task here. Resuming it cancels it.")
        return None

    def _telling_of(self, drive: Drive) -> Callable[[], Awaitable[None]]:
        told = anyio.Event()
        failed: list[TasksClientError] = []
        self._tasks.start_soon(self._tell, drive, told, failed)

        async def wait() -> None:
            await told.wait()
            if failed:
                raise failed[0]

        return wait

    async def again(self, drive: Drive) -> None:
        """Tell the server once more, on the drive's own behalf."""
        try:
            if drive.running:
                await self._send(drive)
        except TasksClientError as error:
            logger.warning("tasks/cancel for %r did not get through: %s", drive.record, error)

    def close(self) -> None:
        """Leave what is being told its last seconds, and what is told from now on as well."""
        self._closed = True
        for telling in self._telling:
            self._limit(telling)

    def _limit(self, telling: anyio.CancelScope) -> None:
        telling.deadline = anyio.current_time() + self._driver.policy.cancel_timeout_s

    async def _tell(self, drive: Drive, told: anyio.Event, failed: list[TasksClientError]) -> None:
        telling = anyio.CancelScope(shield=True)
        self._telling.add(telling)
        if self._closed:
            self._limit(telling)
        try:
            with telling:
                await self._send(drive)
            if telling.cancelled_caught:
                failed.append(TasksClientError("The client was closed first; resuming cancels the task."))
        except TasksClientError as error:
            failed.append(error)
        except anyio.get_cancelled_exc_class():
            failed.append(TasksClientError("tasks/cancel was cancelled from inside; it is said again."))
        finally:
            self._telling.discard(telling)
            if not drive.running:
                self._release(drive)
            told.set()

    async def _send(self, drive: Drive) -> None:
        if isinstance(drive.record.state, Observing):
            event, error = await self._driver.cancel(drive)
            if event is not None and drive.owned:
                try:
                    await self._perform(drive, await self._commits.feed(drive, event))
                except JournalError as failed:
                    self._park(drive, failed)  # the server may have asked to be left alone
                    raise
            if error is not None:
                raise error


def _left_alone(silence_s: float, and_then: str) -> SessionError:
    return SessionError(
        f"The server wants to be left alone for {silence_s:.0f} s, and {and_then}",
        retryable=True,
        retry_after_s=silence_s,
    )
