"""What is done now and then while a client is open: keep its lease, forget what is old."""

from __future__ import annotations

import logging
import math
from typing import Final

import anyio

from .clock import Clock
from .errors import JournalError
from .scheduler import Scheduler

__all__ = ["keep_up"]

logger = logging.getLogger("mcp_tasks_client")

_FORGET_EVERY_S: Final = 3600.0


async def keep_up(scheduler: Scheduler, clock: Clock) -> None:
    """Renew the lease of this process and bound the growth of the journal, for ever."""
    commits = scheduler.driver.commits
    tenure = commits.tenure
    lapses, forgot_at = tenure.lapses, -math.inf
    while True:
        try:
            await commits.renew()
            if not 0 <= clock.time() - forgot_at < _FORGET_EVERY_S:
                forgot_at = clock.time()
                await commits.forget(clock.time() - commits.journal.retention_s)
        except JournalError as error:
            logger.warning("The upkeep of the journal is put off: %s", error)
            if tenure.expires_before(clock.time() + tenure.renew_s):
                # Others may soon take what is ours, and must be the only ones who ask.
                scheduler.withdraw_questions()
                lapses = -1
        else:
            if lapses != tenure.lapses:
                lapses = tenure.lapses
                scheduler.lapsed()
        scheduler.release_unheld()
        await clock.wait(anyio.Event(), tenure.renew_s if tenure.renew_s < math.inf else None)
