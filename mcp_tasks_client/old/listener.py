"""Being told by the server: one stream for all tasks that are observed, where the server offers that.

No server that we know of tells of tasks yet, and some promise it and then say nothing. So nothing depends
on it. One attempt is made, once there is a task that lives longer than a moment; without an agreement, or
with a stream that ends without having told anything, it was the last. What is told is a shortcut: polls
go on, only more rarely, and as soon as one of them finds what nobody told of, they keep the server's pace
again.

A task is *told of* from the first poll that was sent after the server's agreement: what changed before
that, no notification may have carried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup

from .clock import being_stopped
from .drive import Drive
from .driver import Driver
from .errors import SessionError
from .states import Observing
from .wire import Task

__all__ = ["Listener"]

logger = logging.getLogger("mcp_tasks_client")

_FIRST_S: Final = 0.25
"""Seconds before the first attempt: most tasks that end sooner are never listened for."""

_AGAIN_S: Final = 1.0
"""Seconds between two openings, at least; doubled while the streams break."""

_LONGEST_AGAIN_S: Final = 60.0

_MOST_IDS: Final = 1000
"""Tasks of one stream. Whatever is beyond is polled as ever."""

_MOMENT_S: Final = 0.05
"""Seconds in which further news may gather."""

_DOUBT_S: Final = 2.0
"""Seconds for a notification to arrive after a poll has found what it should have told."""

_SILENCES: Final = 1
"""Changes that a server which tells of tasks may pass over in silence. It may tell only of some of them."""

_CALM: Final = frozenset({"open", "asking", "acknowledged"})


class _Stream:
    """One ``subscriptions/listen``."""

    def __init__(self, task_ids: list[str]) -> None:
        self.task_ids = task_ids
        self.agreed: frozenset[str] = frozenset()
        self.agreed_at = 0.0
        self.notified = 0
        self.over = False
        self.settled = anyio.Event()
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()


class Listener:
    """Listens for the drives of one endpoint.

    Args:
        driver: Sends the requests.
        told: Gets each snapshot that is about one of our drives.
        hasten: Has a drive polled at the server's pace again.
    """

    def __init__(
        self, driver: Driver, *, told: Callable[[Drive, Task], None], hasten: Callable[[Drive], None]
    ) -> None:
        self._driver = driver
        self._clock = driver.clock
        self._told = told
        self._hasten = hasten
        self._drives: WeakValueDictionary[str, Drive] = WeakValueDictionary()
        self._stream: _Stream | None = None
        self._in_vain = False
        self._doubts: dict[Drive, int] = {}  # how much had been told of each when its doubt arose
        self._silences = 0
        self._news = anyio.Event()

    async def run(self) -> None:
        """Listen while there is anything to listen for, and for as long as it is of use."""
        async with anyio.create_task_group() as streams:
            await self._listen(streams)
            streams.cancel_scope.cancel()
        self._in_vain = True
        if self._stream is not None:
            self._forget(self._stream)
        self._drives.clear()

    def add(self, drive: Drive, after_s: float) -> None:
        """Listen for a task, soon, unless it is polled as soon as that or the server is sure not to tell."""
        task_id = drive.record.task_id
        if self._in_vain or after_s < _FIRST_S or task_id in self._drives:
            return
        if task_id is not None and self._driver.may_agree(drive):
            self._drives[task_id] = drive
            self._news.set()

    def patience(self, drive: Drive, after_s: float) -> float:
        """Seconds to the next poll of a drive that would be due after so many."""
        if self._stream is None or drive.refreshing or not self.tells(drive):
            return after_s
        longest = max(after_s, self._driver.policy.backstop_s)
        # One that has told nothing yet is believed a little more with each poll.
        return longest if self._stream.notified else min(2 * max(after_s, drive.waited_s), longest)

    def tells(self, drive: Drive) -> bool:
        """Whether the server has told of all changes since the last poll, if it keeps its word."""
        stream, state = self._stream, drive.record.state
        return (
            stream is not None
            and isinstance(state, Observing)
            and not stream.over
            and state.task.task_id in stream.agreed
            and self._drives.get(state.task.task_id) is drive  # two calls may have one task
            and drive.polled_at > stream.agreed_at
            # What has to be said again is said with the next poll.
            and not state.failures
            and state.cancel in ("no", "acknowledged")
            and all(question.stage in _CALM for question in state.questions)
        )

    def doubt(self, drive: Drive) -> None:
        """Note that a poll has found something new, which should have been told."""
        if self._stream is not None:
            self._doubts.setdefault(drive, drive.heard)
            self._news.set()

    # ── streams ───────────────────────────────────────────────────────────────────────────────

    async def _listen(self, streams: TaskGroup) -> None:
        pause_s = _FIRST_S
        while True:
            while not self._missing():
                await self._more()
            await self._clock.wait(anyio.Event(), pause_s)
            stream = _Stream(self._chosen())
            if stream.task_ids:
                streams.start_soon(self._open, stream)
                await stream.settled.wait()
                if not stream.agreed:
                    stream.scope.cancel()
                    return await self._to_its_end(stream)
                self._replace(stream)
                pause_s = max(pause_s, _AGAIN_S)
            while self._stream is not None and not self._missing():
                if not await self._of_use(self._stream):
                    return None
                lasted_s = self._clock.monotonic() - self._stream.agreed_at
                if lasted_s > _LONGEST_AGAIN_S:
                    pause_s = _AGAIN_S
                elif self._stream.over:
                    pause_s = min(2 * pause_s, _LONGEST_AGAIN_S)
                if self._stream.over:
                    self._forget(self._stream)

    async def _to_its_end(self, refused: _Stream) -> None:
        """Listen on to what there is; there will be no more."""
        await refused.ended.wait()
        while self._stream is not None and await self._of_use(self._stream) and not self._stream.over:
            pass

    async def _of_use(self, stream: _Stream) -> bool:
        """Wait for news, and say whether this stream has been worth its while."""
        if self._doubts:
            doubts, self._doubts = self._doubts, {}
            await self._clock.wait(anyio.Event(), _DOUBT_S)
            self._silences += sum(drive.heard == heard for drive, heard in doubts.items())
            if self._silences > (_SILENCES if stream.notified else 0):
                logger.info("The server agreed to tell of tasks, and does not; they are polled")
                return False
        elif not stream.over:
            await self._more()
        return not stream.over or stream.notified > 0

    async def _more(self) -> None:
        await self._clock.wait(self._news, None)
        await self._clock.wait(anyio.Event(), _MOMENT_S)
        self._news = anyio.Event()

    async def _open(self, stream: _Stream) -> None:
        with stream.scope:
            try:
                await self._driver.listen(stream.task_ids, *self._ears(stream))
            except SessionError as error:
                logger.info("The server does not tell of tasks, or no more; they are polled: %s", error)
            except anyio.get_cancelled_exc_class():
                if being_stopped():
                    raise
            except Exception as error:
                logger.warning("Listening failed, and tasks are polled: %s: %s", type(error).__name__, error)
        stream.over = True
        self._hasten_all(stream)
        stream.settled.set()
        stream.ended.set()
        self._news.set()

    def _ears(self, stream: _Stream) -> tuple[Callable[[frozenset[str]], None], Callable[[Task], None]]:
        def agreed(task_ids: frozenset[str]) -> None:
            stream.agreed, stream.agreed_at = task_ids, self._clock.monotonic()
            stream.settled.set()

        def heard(task: Task) -> None:
            drive = self._drives.get(task.task_id)
            if drive is not None:
                stream.notified += 1
                drive.heard += 1  # also after the end, which a poll may have found a moment before
                self._told(drive, task)

        return agreed, heard

    def _replace(self, stream: _Stream) -> None:
        """Listen to this one; only now can the one before go."""
        before, self._stream = self._stream, stream
        if before is not None:
            stream.notified += before.notified
            before.scope.cancel()

    def _forget(self, stream: _Stream) -> None:
        """Listen to it no more."""
        self._stream = None
        self._doubts.clear()  # they hold their drives
        self._hasten_all(stream)

    def _hasten_all(self, stream: _Stream) -> None:
        """What it told of has waited longer than the server asked for, and its end may be told nowhere."""
        for task_id in stream.agreed:
            drive = self._drives.get(task_id)
            if drive is not None:
                self._hasten(drive)

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    def _missing(self) -> bool:
        """Whether there are tasks that the present stream was not asked for."""
        wanted = self._chosen()
        asked = frozenset(self._stream.task_ids) if self._stream is not None else frozenset()
        return not asked.issuperset(wanted)

    def _chosen(self) -> list[str]:
        """The oldest of our tasks that are being observed."""
        observed = (task_id for task_id, drive in self._drives.items() if drive.running)
        return [task_id for task_id, _ in zip(observed, range(_MOST_IDS), strict=False)]
