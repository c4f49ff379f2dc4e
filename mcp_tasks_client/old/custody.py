"""The journal of the tasks that a server has us run: what is committed, and who may ask the host for it.

Whoever asks owns the record. A cancellation takes it away from its owner, whose answer then comes too late:
so it needs no lock, and it does not matter in which process that is. One that could not be stored gives it
back. Of two who ask all the same, the first answer counts.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final, TypeAlias

import anyio

from .clock import Clock
from .demands import RefusedError
from .errors import DrivenElsewhereError, JournalError, TasksClientError
from .journal.base import Journal, Lease, Scope, Taken, TaskRecord
from .journal.failures import typed
from .membership import Membership
from .owners import Place
from .points import Passage
from .received import abandoned, cancelled, expires_at, made_in, owed, owing_these, visible
from .states import Cancelled, Finished, Observing

__all__ = ["Custody"]

logger = logging.getLogger("mcp_tasks_client")

End: TypeAlias = Callable[[TaskRecord, float], TaskRecord]
"""Makes what a task ends as, at a time."""

_AGAIN_S: Final = 1.0
_LONGEST_AGAIN_S: Final = 60.0
_MOST_TRIES: Final = 3
_MOST_NOTES: Final = 100


class Custody:
    """The records of one scope, as one client has them.

    Args:
        journal: Where they are; open for as long as this is used.
        scope: Theirs alone.
        clock: Tells what is over.
        place: The process that we are; ``None`` finds out.
        lease_s: Seconds that its lease lasts.

    Raises:
        JournalError: From every method, if it does not say otherwise: nothing was stored.
    """

    def __init__(
        self, journal: Journal, scope: Scope, clock: Clock, place: Place | None, lease_s: float
    ) -> None:
        self.membership = Membership(journal, clock, Passage(None), place, lease_s)
        self._journal = journal
        self._scope = scope
        self._clock = clock
        self._taking = anyio.Lock()
        self._taken: str | None = None
        self._owed: dict[str, str] = {}

    async def records(self, party: str | None = None) -> list[TaskRecord]:
        """All of them, oldest first; or those of one session whose time is not over."""
        with typed:
            found: Sequence[TaskRecord] = await self._journal.records(self._scope)
        if party is None:
            return list(found)
        now = self._clock.time()
        return [record for record in found if made_in(record) == party and expires_at(record) > now]

    async def find(self, task_id: str, party: str) -> TaskRecord:
        """The task, as it now is.

        Raises:
            RefusedError: There is none for this session.
        """
        with typed:
            record = await self._journal.by_task_id(self._scope, task_id)
        return visible(record, party, self._clock.time())

    async def was_cancelled(self, calls: Scope, task_id: str) -> bool:
        """Whether the host has cancelled one of the server's own tasks, as far as the journal knows.

        Args:
            calls: Where those are.
            task_id: The task.
        """
        with typed:
            record = await self._journal.by_task_id(calls, task_id)
        state = None if record is None else record.state
        if isinstance(state, Finished):
            return isinstance(state.outcome, Cancelled)
        return isinstance(state, Observing) and state.cancel != "no"

    async def keep(self, record: TaskRecord) -> None:
        """Store a new task."""
        with anyio.CancelScope(shield=True), typed:
            await self.membership.enrol()
            await self._journal.save(record)

    async def take(self, record: TaskRecord) -> TaskRecord | None:
        """Become the owner of a task, unless another process is who lives.

        Returns:
            The record as it stands, if it is ours.
        """
        if record.record_id == self._taken:
            return None
        with anyio.CancelScope(shield=True), typed:
            await self._give_back(record)
            await self.membership.enrol()
            owner, judge = self.membership.owner, self.membership.judge()
            taken = await self._journal.take(record.record_id, owner, judge)
        return taken.record if taken is not None and taken.record.owner == owner else None

    async def end(self, ended: TaskRecord) -> bool:
        """Store how a task has ended, however long it takes: nobody is to be asked twice.

        Returns:
            False if it comes too late, and the task was cancelled or its time is over.
        """
        pause_s = _AGAIN_S
        while True:
            try:
                return await self._ended(ended)
            except JournalError as error:
                logger.warning("The answer of %r is kept until it can be journaled: %s", ended, error)
            await self._clock.wait(anyio.Event(), pause_s)
            pause_s = min(2 * pause_s, _LONGEST_AGAIN_S)

    async def _ended(self, ended: TaskRecord) -> bool:
        while True:
            with anyio.CancelScope(shield=True), typed:
                try:
                    await self._journal.save(ended, known=True)
                except DrivenElsewhereError:
                    taken = await self._taken_back(ended)
                else:
                    return True
            if taken is None:
                return False
            ended = replace(owing_these(owed(taken), ended), owner=taken.owner, fence=taken.fence)

    async def cancel(self, record: TaskRecord, uncancelled: Callable[[TaskRecord], None]) -> TaskRecord:
        """Have a task be cancelled, whoever owns it.

        Args:
            record: The task.
            uncancelled: Told of it as it is now, if it has been taken from its owner and goes on.

        Returns:
            It, cancelled.

        Raises:
            RefusedError: It has ended, or is forgotten.
            DrivenElsewhereError: Another process has just taken it up.
        """
        if record.finished:
            return cancelled(record, self._clock.time())
        return await self._taken_and_ended(record, cancelled, uncancelled)

    async def abandon(self, record: TaskRecord, goes_on: Callable[[TaskRecord], None]) -> None:
        """Have nobody be told of a task any more, whoever owns it.

        Args:
            record: The task, which has not ended.
            goes_on: Told of it as it is now, if it has been taken from its owner and goes on.
        """
        # It has ended meanwhile, or is forgotten; or is looked at again.
        with suppress(RefusedError, DrivenElsewhereError):
            await self._taken_and_ended(record, abandoned, goes_on)

    async def _taken_and_ended(
        self, record: TaskRecord, end: End, goes_on: Callable[[TaskRecord], None]
    ) -> TaskRecord:
        async with self._in_hand(record):
            for _ in range(_MOST_TRIES - 1):
                with suppress(DrivenElsewhereError):  # another process has stored something just then
                    return await self._take_and_end(record, end, goes_on)
            return await self._take_and_end(record, end, goes_on)

    async def _take_and_end(
        self, record: TaskRecord, end: End, goes_on: Callable[[TaskRecord], None]
    ) -> TaskRecord:
        with typed:
            taken = await self._taken_from_anybody(record)
        found = visible(taken and taken.record, made_in(record), self._clock.time())
        ended = end(found, self._clock.time())
        try:
            with typed:
                await self._journal.save(ended, known=True)
        except TasksClientError:
            goes_on(found)
            if taken is not None and taken.before is not None:
                self._owed[record.record_id] = taken.before
            raise
        self._owed.pop(record.record_id, None)
        return ended

    async def note(
        self,
        record: TaskRecord,
        change: Callable[[TaskRecord], TaskRecord],
        goes_on: Callable[[TaskRecord], None],
    ) -> None:
        """Note what the server knows of a task, or waits for, whoever owns it.

        Args:
            record: The task.
            change: Makes what it is then.
            goes_on: Told of that, if it goes on.
        """
        async with self._in_hand(record):
            for _ in range(_MOST_NOTES):
                with suppress(DrivenElsewhereError), typed:  # another process has stored something just then
                    if await self._noted(record, change, goes_on):
                        return
        raise JournalError("Others have stored the task again and again. Take it up once they are done.")

    async def _noted(
        self,
        record: TaskRecord,
        change: Callable[[TaskRecord], TaskRecord],
        goes_on: Callable[[TaskRecord], None],
    ) -> bool:
        found = await self._journal.by_task_id(self._scope, str(record.task_id))
        if found is None or found.delivered_at is not None:
            return True  # nobody waits for anything any more
        await self.membership.enrol()
        # In its owner's name, who may be asking the host for it, and has to be its owner at any time.
        owner = found.owner or self.membership.owner
        taken = await self._journal.take(found.record_id, owner, _nobody)
        if taken is None or taken.before != found.owner or taken.record.owner != owner:
            return False
        noted = replace(change(taken.record), owner=found.owner)
        if not noted.finished:
            goes_on(noted)
        await self._journal.save(noted, known=True)
        return True

    async def fetched(self, record: TaskRecord) -> None:
        """Note that the server has the result. It is kept until its time is over."""
        found: TaskRecord | None = record
        with anyio.CancelScope(shield=True), typed:
            for _ in range(_MOST_TRIES):
                if found is None or found.delivered_at is not None:
                    return
                # In the future: from then on the journal may prune it, though nobody of us be there.
                await self._journal.deliver(expires_at(found), {found.record_id: found.fence})
                # It may have been taken meanwhile, by whoever saw it before it had ended.
                found = await self._journal.by_task_id(self._scope, str(record.task_id))

    async def forget(self, record: TaskRecord) -> None:
        """Forget a task, unless somebody has taken it meanwhile."""
        self._owed.pop(record.record_id, None)
        with anyio.CancelScope(shield=True), typed:
            await self._journal.remove(record)

    async def give_up(self, record: TaskRecord) -> None:
        """Forget a task, unless it has ended meanwhile: what was answered is kept."""
        async with self._in_hand(record):
            with typed, suppress(DrivenElsewhereError):  # it ends just now
                taken = await self._taken_from_anybody(record)
                if taken is None or taken.record.owner != self.membership.owner:
                    return
                if taken.record.finished:
                    await self._journal.save(replace(taken.record, owner=taken.before), known=True)
                else:
                    await self._journal.remove(taken.record)

    async def leave(self) -> None:
        """Own nothing any more. Never raises: others come to see it by themselves."""
        with anyio.CancelScope(shield=True):
            try:
                await self.membership.leave()
            except JournalError as error:
                logger.warning("The journal does not know yet that no task is run here: %s", error)

    def owned(self, record: TaskRecord) -> TaskRecord:
        """A new record, as ours."""
        return replace(record, owner=self.membership.owner)

    @asynccontextmanager
    async def _in_hand(self, record: TaskRecord) -> AsyncIterator[None]:
        """Take and store a record in one go, as far as we are concerned."""
        async with self._taking:
            self._taken = record.record_id
            try:
                with anyio.CancelScope(shield=True):
                    yield
            finally:
                self._taken = None

    async def _taken_from_anybody(self, record: TaskRecord) -> Taken | None:
        await self.membership.enrol()
        return await self._journal.take(record.record_id, self.membership.owner, _everybody)

    async def _give_back(self, record: TaskRecord) -> None:
        """Have its former owner own a task again, if we have taken it and then could not cancel it."""
        owner = self._owed.get(record.record_id)
        if owner is not None:
            with suppress(DrivenElsewhereError):  # somebody has taken it meanwhile
                await self._journal.save(replace(record, owner=owner), known=True)
            del self._owed[record.record_id]

    async def _taken_back(self, ended: TaskRecord) -> TaskRecord | None:
        """Own a task that somebody else has now, but has not ended either; ``None`` if it has ended."""
        found = await self._journal.by_task_id(self._scope, str(ended.task_id))
        if found is None or found.finished:
            return None
        taken = await self._taken_from_anybody(found)
        return taken.record if taken is not None and not taken.record.finished else None


def _everybody(owner: str, lease: Lease | None) -> bool:
    return True


def _nobody(owner: str, lease: Lease | None) -> bool:
    return False
