"""What is written to the journal when nobody waits for it, and tried again when it could not be.

That a call is let go of, taken back or delivered is such a write. And what a commit that failed has left
behind (a reply, an answer) is not forgotten here, until the journal has it: whoever drives the call
again writes that first; for one that stands still it is written now and then, and at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import anyio
from anyio.abc import TaskGroup

from .clock import Clock
from .commits import Commits
from .drive import Drive, driven_elsewhere
from .errors import DrivenElsewhereError
from .events import CallRefused, Event
from .states import Calling, Finished

logger = logging.getLogger("mcp_tasks_client")

_GATHERED_S: Final = 0.005
"""Seconds for which deliveries gather, so that one commit does for many."""


class Afterwards:
    """Writes what can wait, for the drives of one endpoint.

    Args:
        commits: Where it is written.
        tasks: Where that runs.
        clock: Tells how long to wait for more of it.
        drives: All that there are.
    """

    def __init__(self, commits: Commits, tasks: TaskGroup, clock: Clock, drives: Mapping[str, Drive]) -> None:
        self._commits = commits
        self._tasks = tasks
        self._clock = clock
        self._drives = drives
        self._unsaved: set[Drive] = set()  # hold what no journal does, and must not be forgotten
        self._unreleased: set[Drive] = set()  # nobody else's, as long as the journal says that they are ours
        self._delivered: set[Drive] = set()
        self._gathering = False
        self._enough = anyio.Event()
        self._closed = False

    @property
    def unsaved(self) -> list[Drive]:
        """Drives that hold what could not be journaled."""
        return list(self._unsaved)

    def remember(self, drive: Drive, error: Exception) -> None:
        """Do not forget a drive that holds what could not be journaled, and why it could not."""
        self._unsaved.add(drive)
        logger.warning("What the server said of %r is not journaled yet: %s", drive.record, error)
        if self._closed:
            self._tasks.start_soon(self._save, drive)

    def saved(self, drive: Drive) -> None:
        """Note that somebody has journaled what it held."""
        self._unsaved.discard(drive)

    def release(self, drive: Drive) -> None:
        """Let go of what is ours, so that others can take it."""
        # A call that was not sent is taken back instead, and an outcome is ours until it is delivered.
        # What waits to be committed must be, before somebody else goes on from what is.
        if drive.owned and not drive.unsaved and not isinstance(drive.record.state, Calling | Finished):
            self._unreleased.add(drive)
            self._tasks.start_soon(self._release, drive)

    def delivered(self, drive: Drive) -> None:
        """Note that the host has the outcome now. Only after it has: a crash delivers it again."""
        record = drive.record
        if record.kept and record.delivered_at is None and not self._closed:
            self._delivered.add(drive)
            self._note_soon()

    def taken(self, drive: Drive) -> None:
        """Note a delivery again that was noted under an old fence, just when the drive was taken anew."""
        if drive.owned and drive.record.delivered_at is not None:
            self._delivered.add(drive)
            self._note_soon()

    def was_delivered(self, drive: Drive) -> bool:
        """Whether the host has its outcome, though the journal may not say so yet."""
        return drive in self._delivered or drive.record.delivered_at is not None

    async def note(self) -> bool:
        """Journal what was delivered until now; false if that could not be."""
        try:
            if drives := list(self._delivered):
                await self._commits.delivered(drives)
                # One that was taken anew meanwhile has another fence, under which it is noted next.
                self._delivered -= {drive for drive in drives if not drive.owned}
        except Exception as error:  # also a foreign one, which would end the client
            logger.warning("%d deliveries are not journaled yet: %s", len(self._delivered), error)
            return False
        return True

    def keep(self, drive: Drive, event: Event) -> None:
        """Journal what has happened to a call that nobody here drives."""
        drive.unsaved.append(event)
        self._unsaved.add(drive)
        self._tasks.start_soon(self._save, drive)

    def forget(self, drive: Drive) -> None:
        """Take back the intent of a call that nobody is going to send."""
        drive.abandoned = True
        if drive.pending is not None and drive.record.idempotency_key is not None and not self._closed:
            self._tasks.start_soon(self._remove, drive)

    def write_again(self) -> None:
        """Try once more what could not be written about drives that stand still."""
        self._note_soon()
        self._unreleased = {drive for drive in self._unreleased if drive.owned and not drive.held}
        self._unsaved = {drive for drive in self._unsaved if drive.unsaved}
        still = [
            drive
            for drive in self._drives.values()
            if not (drive.held or drive.running or drive.following or drive.calling)
        ]
        for drive in still:
            if drive.pending is not None and drive in self._unsaved:
                drive.forget_refusals()
                self.forget(drive)  # it was refused, and nobody has asked for it since
            elif drive in self._unsaved:
                self._tasks.start_soon(self._save, drive)
            elif drive.owned and drive.pending is None:
                self.release(drive)

    def close(self) -> None:
        """Write what is still to be written, now or never."""
        self._closed = True
        self._enough.set()
        self._note_soon()
        for drive in self._unsaved:
            self._tasks.start_soon(self._save, drive)

    async def _release(self, drive: Drive) -> None:
        try:
            await self._commits.release(drive)
        except Exception as error:  # also a foreign one, which would end the client
            logger.warning("%r could not be brought up to date: %s", drive.record, error)

    def _note_soon(self) -> None:
        if self._delivered and not self._gathering:
            self._gathering = True
            self._tasks.start_soon(self._gather)

    async def _gather(self) -> None:
        try:
            with anyio.CancelScope(shield=True):
                noted = True
                while self._delivered and noted:
                    last = self._closed
                    if not last:
                        self._enough = anyio.Event()
                        await self._clock.wait(self._enough, _GATHERED_S)
                    # What failed just before the end is tried once more at the end.
                    noted = await self.note() or (self._closed and not last)
        finally:
            self._gathering = False

    async def _remove(self, drive: Drive) -> None:
        with anyio.CancelScope(shield=True):
            try:
                state = drive.record.state
                if not drive.held and isinstance(state, Calling):
                    await self._commits.feed(drive, CallRefused())
                    if state.again:  # it stays, and has to be allowed again
                        drive.pending = None
                        await self._commits.release(drive)
            except Exception as error:  # as above
                logger.warning("%r was never sent, and could not be removed: %s", drive.record, error)
                if drive.unsaved:
                    self._unsaved.add(drive)  # or nobody would try it again

    async def _save(self, drive: Drive) -> None:
        """Journal what could not be, and let go of it."""
        with anyio.CancelScope(shield=True):
            try:
                async with drive.saving:
                    if drive.running or drive.calling:
                        return  # somebody goes on from there
                    ours = await self._commits.take(drive)
                    if not ours and not drive.record.finished:
                        raise driven_elsewhere(drive)  # it was taken from us, and is not free again
                    while drive.unsaved:
                        await self._commits.catch_up(drive)
                await self._commits.release(drive)
            except Exception as error:  # whatever it is, it must not hold up the end
                if self._closed and isinstance(error, DrivenElsewhereError):
                    logger.warning("%r is another client's now, which was not told of this", drive.record)
                elif self._closed:
                    logger.error("What the server said of %r was never journaled: %s", drive.record, error)
                else:
                    logger.debug("What the server said of %r is not journaled yet: %s", drive.record, error)
