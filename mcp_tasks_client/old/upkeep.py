"""What is done now and then while a client is open: keep its lease, forget what is old."""

from __future__ import annotations

import logging
import math
from typing import Final

import anyio

from .clock import Clock
from .drive import Drive, driven_elsewhere
from .errors import JournalError
from .events import SendCall
from .performer import gathers, observed
from .scheduler import Scheduler

__all__ = ["Upkeep"]

logger = logging.getLogger("mcp_tasks_client")

_FORGET_EVERY_S: Final = 3600.0


class Upkeep:
    """Keeps the lease of this process and bounds the growth of the journal.

    Args:
        scheduler: Whose drives depend on the lease.
        clock: Tells when it is time.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._commits = scheduler.driver.commits
        self._tenure = self._commits.membership.tenure
        self._lapses = self._tenure.lapses
        self._forgot_at = -math.inf

    async def run(self) -> None:
        """Do what is due, for ever."""
        renew_s = self._tenure.renew_s
        while True:
            try:
                await self._commits.membership.renew()
            except JournalError as error:
                logger.warning("The lease in the journal could not be renewed: %s", error)
                if self._tenure.expires_before(self._clock.time() + renew_s):
                    self._withdraw_questions()
            else:
                if self._lapses != self._tenure.lapses:
                    self._lapses = self._tenure.lapses
                    self._take_all_again()
                await self._forget()
            self._scheduler.afterwards.write_again()
            await self._clock.wait(anyio.Event(), renew_s if renew_s < math.inf else None)

    async def _forget(self) -> None:
        now = self._clock.time()
        if not 0 <= now - self._forgot_at < _FORGET_EVERY_S:
            self._forgot_at = now
            try:
                await self._commits.forget(now - self._commits.journal.retention_s)
            except JournalError as error:
                logger.warning("The journal is pruned later: %s", error)

    def _withdraw_questions(self) -> None:
        """Others may soon take what is ours, and must be the only ones who ask.

        What is asked of the host is asked again when we have another lease.
        """
        for drive in list(self._scheduler.drives.values()):
            drive.stop_asking()
        self._lapses = -1

    def _take_all_again(self) -> None:
        """Our lease had run out, or nearly so: others may have taken what is ours."""
        for drive in list(self._scheduler.drives.values()):
            if drive.owned:
                self._scheduler.performer.spawn(drive, self._take_again)

    async def _take_again(self, drive: Drive) -> None:
        ours = await self._commits.take(drive, again=True)
        self._scheduler.afterwards.taken(drive)
        if not ours and drive.running:
            self._scheduler.park(drive, driven_elsewhere(drive))
        elif observed(drive) or gathers(drive):
            actions = await self._commits.feed(drive, self._scheduler.driver.resumed(drive))
            # A round whose last question has just been answered is begun by whoever asked it.
            actions = tuple(one for one in actions if not isinstance(one, SendCall))
            await self._scheduler.performer.perform(drive, actions)
