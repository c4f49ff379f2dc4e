"""What is done now and then while a client is open: keep its lease, forget what is old."""

from __future__ import annotations

import logging
import math
from typing import Final

import anyio

from .clock import Clock
from .errors import JournalError
from .journal.base import Journal, typed
from .scheduler import Scheduler

__all__ = ["forget_old", "keep_up"]

logger = logging.getLogger("mcp_tasks_client")

_FORGET_EVERY_S: Final = 3600.0


async def keep_up(scheduler: Scheduler, journal: Journal, clock: Clock) -> None:
    """Renew the lease of this process and bound the growth of the journal, for ever."""
    tenure = scheduler.driver.commits.tenure
    lapses, forgot_at = tenure.lapses, -math.inf
    while True:
        try:
            await tenure.renew(clock)
            if not 0 <= clock.time() - forgot_at < _FORGET_EVERY_S:
                forgot_at = clock.time()
                await forget_old(journal, clock.time() - journal.retention_s)
        except JournalError as error:
            logger.warning("The upkeep of the journal is put off: %s", error)
        if lapses != tenure.lapses:
            lapses = tenure.lapses
            scheduler.lapsed()
        scheduler.release_unheld()
        await clock.wait(anyio.Event(), tenure.renew_s if tenure.renew_s < math.inf else None)


async def forget_old(journal: Journal, before: float) -> int:
    """Forget what was delivered before a time (wall clock, seconds), a little at a time.

    Returns:
        How many records.

    Raises:
        JournalError: It could not be done, or not all of it.
    """
    forgotten = 0
    with typed():
        while found := await journal.prune(before):
            forgotten += found
    return forgotten
