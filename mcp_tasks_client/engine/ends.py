"""Ends of calls that a host has: noted as delivered, kept while they may be asked for, and pruned."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from ..aio.uncut import run_to_its_end
from ..errors import DrivenElsewhereError, JournalError
from ..journal.guarded import GuardedJournal
from ..machine.record import TaskRecord
from ..machine.replacing import replace
from ..machine.states import Finished
from . import observer
from .call_log import log_delivery
from .environment import Environment
from .live_call import LiveCall, Nobody, Theirs, Turn, check_forgotten, unwritable
from .owning import Owning

__all__ = ["Ends"]

logger = logging.getLogger("mcp_tasks_client")

_SPARED_S: Final = 60.0
"""Seconds after its delivery for which an outcome is kept in any case: others may follow the same call."""


class Ends:
    """The ends of all calls of one client."""

    def __init__(self, journal: GuardedJournal, owning: Owning, environment: Environment) -> None:
        self._journal = journal
        self._owning = owning
        self._clock = environment.clock
        self._observed = observer.ObservedSteps(environment.observer)

    def deliver(self, *calls: LiveCall, may_be_lost: bool = False) -> None:
        """Note that the host has these outcomes. Only after it has: a crash delivers them again.

        ``may_be_lost`` is for an outcome that was passed to a session which may lose it. The outcome is then
        kept for a while, although it has no key.
        """
        now = self._clock.time()
        keep_s = self._journal.keep_delivered_s if may_be_lost else 0
        fences = {}
        for call in calls:
            if call.record.delivered_at is None and isinstance(call.record.state, Finished):
                if call.journaled and not isinstance(call.ownership, Theirs):
                    fences[call.record.record_id] = call.record.fence
                    log_delivery(call.record)
                self._note_delivered(call, now)
        if not fences:
            return
        try:
            self._journal.deliver(now, fences, keep_until=now + keep_s if keep_s > 0 else None)
        except JournalError as error:  # the host has the outcome, so that nothing is lost
            logger.warning("An outcome that was delivered may be given out once more: %s", error)

    async def acknowledge(self, call: LiveCall, *, keep: bool = False) -> bool:
        """Note that the host has an outcome, even if another client owns it. Durable when this returns.

        ``keep`` has the meaning of ``may_be_lost`` in :meth:`deliver`.

        Returns:
            Whether there is an outcome. If not, nothing is noted.

        Raises:
            JournalError: It could not be written.
        """
        return await run_to_its_end(self._acknowledge, call, keep)

    async def _acknowledge(self, call: LiveCall, keep: bool) -> bool:
        async with Turn(call):
            # As the journal has it: another client may have brought it to its end, or taken it just now.
            refused_at = -1
            while call.journaled:
                record = await self._journal.by_id(call.record.record_id)
                if record is None and call.record.delivered_at is None:
                    check_forgotten(call.record)
                if record is None or record.delivered_at is not None:
                    break  # some host has had it
                if not record.finished:
                    return False
                if record.fence == refused_at:
                    raise unwritable(record)
                refused_at = record.fence  # unless it is written now
                with suppress(DrivenElsewhereError):
                    await self._observed(call, observer.ACKNOWLEDGE, self._save_delivered, record, keep)
                    log_delivery(record)
            if call.record.delivered_at is None and call.record.finished:
                self._note_delivered(call, self._clock.time())
            return call.journaled or call.record.finished

    async def _save_delivered(self, record: TaskRecord, keep: bool) -> None:
        now, keep_s = self._clock.time(), self._journal.keep_delivered_s if keep else 0
        delivered = replace(record, owner=None, updated_at=now, delivered_at=now)
        if record.idempotency_key is not None:
            await self._journal.save(delivered, known=True)
        elif keep_s > 0:
            await self._journal.save(delivered, known=True, keep_until=now + keep_s)
        else:
            await self._journal.remove(record)

    @staticmethod
    def _note_delivered(call: LiveCall, at: float) -> None:
        call.record = replace(call.record, delivered_at=at, owner=None)
        call.ownership = Nobody(ours_until=call.record.fence)

    async def prune_old(self) -> None:
        """Delete the records that need no longer be kept. A failure is logged, and the next prune goes on."""
        try:
            await self.prune()
        except JournalError as error:
            logger.warning("The journal is pruned later: %s", error)

    async def prune(self, older_than_s: float | None = None) -> int:
        """Delete records that were delivered so long ago, a few at a time, and return how many.

        A record that a living client drives stays, however old it seems to be.

        Args:
            older_than_s: Seconds; ``None`` is the journal's ``retention_s``.

        Raises:
            JournalError: Not all of them could be deleted.
            ValueError: ``older_than_s`` is negative.
        """
        if older_than_s is not None and not older_than_s >= 0:
            raise ValueError(f"older_than_s cannot be negative, got {older_than_s}")
        forgotten_records, now = 0, self._clock.time()
        before = now - max(_SPARED_S, self._journal.retention_s if older_than_s is None else older_than_s)
        gone = await self._owning.lease.gone(self._journal, of_process=True)
        while found := await self._observed(None, observer.PRUNE, self._journal.prune, before, now, gone):
            forgotten_records += found
        return forgotten_records
