"""One step of one call: event → advance → commit. And who may commit: the owner of its record.

Everything that this package writes to a journal is written here, and each commit is a
:class:`Point`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

import anyio

from .clock import Clock
from .drive import Drive, driven_elsewhere, forgotten, overtaken
from .errors import DrivenElsewhereError, JournalError
from .events import (
    Action,
    AnswerReady,
    CallFailed,
    CallLost,
    CallRefused,
    CallReturned,
    CancelFailed,
    Event,
    Forget,
    InputAsked,
    Notified,
    PollFailed,
    Save,
    TaskCreated,
    UpdateFailed,
)
from .journal.base import Journal, Scope, Taken, TaskRecord
from .journal.failures import typed
from .machine import advance
from .membership import Membership
from .owners import LEASE_S, Place
from .points import COMMITS, Passage, Point, Probe
from .policy import PollPolicy
from .states import Calling, OutcomeUnknown

logger = logging.getLogger("mcp_tasks_client")

_REPLIES: Final = (CallFailed, CallLost, CallRefused, CallReturned, InputAsked, TaskCreated)

_KEPT: Final = (AnswerReady, *_REPLIES)
"""Events that will not come again by themselves, as the reply to a poll does."""

_WRITES: Final = (Save, Forget)

_SPARED_S: Final = 60.0
"""Seconds after its delivery for which an outcome is kept in any case."""


class Commits:
    """The journal, for all calls of one client.

    Args:
        journal: Where states go.
        policy: What the machine decides by.
        clock: Stamps records.
        probe: Told of every commit.
        place: The process that we are; ``None`` finds out.
        lease_s: Seconds that its lease lasts.

    Attributes:
        membership: That of our client in it.
        owner: Our name in the journal.
    """

    def __init__(
        self,
        journal: Journal,
        policy: PollPolicy,
        clock: Clock,
        *,
        probe: Probe | None = None,
        place: Place | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self.journal = journal
        self._policy = policy
        self._clock = clock
        self._passing = Passage(probe)
        self.membership = Membership(journal, clock, self._passing, place, lease_s)
        self.owner = self.membership.owner

    async def feed(self, drive: Drive, event: Event) -> tuple[Action, ...]:
        """Advance the machine by one event, commit if it says so, and return what is to be done.

        Not cancellable, and bounded by the journal's own limits: between an event and its commit
        there is nothing to be gained by stopping. A reply or an answer that cannot be committed is
        kept and fed again when the drive is resumed, so that a full disk costs neither.

        Raises:
            JournalError: The commit failed; the state is what it was.
            DrivenElsewhereError: It was taken by another client, which may have gone beyond what happened
                here; nothing is committed.
        """
        step = None if drive.lock.locked else self._advanced(drive, event)
        if step is not None and not (step[0].kept and any(isinstance(one, _WRITES) for one in step[1])):
            # Nothing to wait for, as after nearly every poll, and in a call without key and task.
            drive.record = step[0]
            return _to_do(step[1])
        with anyio.CancelScope(shield=True):
            async with drive.lock:  # which is free at once if it was free, so that the step stands
                record, actions = step or self._advanced(drive, event)
                try:
                    with typed:
                        if any(isinstance(action, Save) for action in actions):
                            # Somebody else may be attaching it just now.
                            new = isinstance(event, TaskCreated) and event.attached
                            record = await self._save(drive, record, COMMITS[type(event)], new=new)
                        elif any(isinstance(action, Forget) for action in actions):
                            await self._remove(drive, record, COMMITS[type(event)])
                except DrivenElsewhereError:
                    drive.owned = False
                    if isinstance(event, TaskCreated) and event.attached:
                        drive.unsaved.clear()  # theirs is the one that stands
                    elif isinstance(event, _REPLIES):
                        _keep(drive, event)  # until it is known what the others make of the call
                    raise
                except JournalError:
                    if _kept(event):
                        _keep(drive, event)
                    raise
                drive.record = record
        return _to_do(actions)

    def note(self, drive: Drive, event: Event) -> bool:
        """Advance by an event, unless something is being saved just then. Nothing is done, or saved.

        Returns:
            Whether it has advanced.
        """
        if not drive.lock.locked:
            drive.record, _ = self._advanced(drive, event)
            return True
        return False

    def _advanced(self, drive: Drive, event: Event) -> tuple[TaskRecord, tuple[Action, ...]]:
        """The record as the event leaves it, and what is to be done."""
        if _too_late(drive, event):
            raise driven_elsewhere(drive)
        state, actions = advance(drive.record.state, event, self._policy)
        return drive.record.with_state(state), actions

    async def catch_up(self, drive: Drive) -> tuple[Action, ...]:
        """Feed the first event that could not be committed again. A reply that comes too late is dropped.

        Raises:
            JournalError: It could not be committed this time either.
        """
        event = drive.unsaved[0]
        actions: tuple[Action, ...] = ()
        if not _too_late(drive, event):
            actions = await self.feed(drive, event)
        if drive.unsaved and drive.unsaved[0] is event:  # only now, so that its task can be seen meanwhile
            del drive.unsaved[0]
        return actions

    async def claim(self, drive: Drive) -> TaskRecord:
        """Journal the intent of a call, or find the call that its key stands for.

        Returns:
            The record that stands. The drive is owned if that is its own, and as we left it.
        """
        with anyio.CancelScope(shield=True), typed:
            async with drive.lock:
                record = replace(drive.record, owner=self.owner, updated_at=self._clock.time())
                standing = record
                if record.idempotency_key is not None:
                    await self.membership.enrol()
                    standing = await self._passing(Point.CLAIM, self.journal.claim, record)
                if (standing.record_id, standing.fence) == (record.record_id, record.fence):
                    drive.record, drive.owned, drive.fence = record, True, record.fence
                    drive.journaled = record.idempotency_key is not None
                else:
                    drive.owned = False
        return standing

    async def take_back(self, drive: Drive) -> None:
        """Forget the intent of a call that was not sent."""
        with anyio.CancelScope(shield=True), typed:
            await self._remove(drive, drive.record, Point.TAKE_BACK)

    async def delivered(self, drives: Collection[Drive]) -> None:
        """Commit that the host has these outcomes. Nobody needs to own them any more.

        Raises:
            JournalError: It could not be written, and they will be delivered again after a crash.
        """
        for drive in drives:
            if drive.record.owner not in (None, self.owner):
                with anyio.CancelScope(shield=True), typed:
                    async with drive.lock:
                        taken = await self._wanted(drive)
                        if taken is not None:  # else it was forgotten, and there is nothing to note
                            self._taken(drive, taken)
        now = self._clock.time()
        # What another client drives, and is not gone, is its own to note.
        ours = [drive for drive in drives if drive.record.owner in (None, self.owner)]
        fences = {drive.record.record_id: drive.record.fence for drive in ours}
        with anyio.CancelScope(shield=True), typed:
            await self._passing(Point.DELIVERED, self.journal.deliver, now, fences)
        for drive in ours:
            if drive.record.fence == fences[drive.record.record_id]:  # it was not taken meanwhile
                drive.owned = False
                drive.record = replace(drive.record, delivered_at=now, updated_at=now, owner=None)

    async def _save(self, drive: Drive, record: TaskRecord, point: Point, *, new: bool = False) -> TaskRecord:
        if drive.record.owner not in (None, self.owner):
            raise driven_elsewhere(drive)  # whoever only looks on has the same fence
        owner = self.owner if drive.owned else None
        record = record.stamped(owner, self._clock.time())
        # A plain call without a key costs no commit; its first is the one that holds a task ID.
        if record.kept:
            await self.membership.enrol()
            if new:
                standing = await self._passing(point, self.journal.claim, record)
                if (standing.owner, standing.fence) != (record.owner, record.fence):
                    raise driven_elsewhere(drive)
            else:
                await self._passing(point, self.journal.save, record, known=drive.journaled)
            drive.journaled = True
        return record

    async def _remove(self, drive: Drive, record: TaskRecord, point: Point) -> None:
        if record.idempotency_key is not None:  # or there is nothing
            await self._passing(point, self.journal.remove, record)
            drive.journaled = False

    # ── owning ────────────────────────────────────────────────────────────────────────────────

    async def take(self, drive: Drive, *, again: bool = False) -> bool:
        """Become the owner of a call, unless another client is who is not gone.

        Args:
            drive: It then holds the record as it stands.
            again: Although it is ours as far as we know.

        Returns:
            Whether it is ours.

        Raises:
            OvertakenError: It was another client's, who has taken it back.
            JournalError: Another client has brought it to its end, and it was forgotten.
        """
        with anyio.CancelScope(shield=True), typed:
            async with drive.lock:
                if drive.owned and not again:
                    return True
                taken = await self._wanted(drive)
                if taken is not None:
                    self._taken(drive, taken)
                elif drive.inherited and isinstance(drive.record.state, Calling):
                    raise overtaken(drive)
                elif drive.journaled and not any(isinstance(event, _REPLIES) for event in drive.unsaved):
                    drive.unsaved.clear()
                    raise forgotten(drive)
                else:
                    drive.owned, drive.journaled = True, False  # what it holds is journaled nowhere
        return drive.owned

    async def take_pending(self, scope: Scope, drive_of: Callable[[TaskRecord], Drive]) -> Sequence[Drive]:
        """Become the owner of all that is pending and free.

        Args:
            scope: Whose records.
            drive_of: Gives the one drive of a record.

        Returns:
            All that is pending and ours.
        """
        with anyio.CancelScope(shield=True), typed:
            await self.membership.enrol()
            judge = self.membership.judge()
            taken = await self._passing(
                Point.TAKE_PENDING, self.journal.take_pending, scope, self.owner, judge
            )
            drives = []
            for one in taken:
                drive = drive_of(one.record)
                async with drive.lock:
                    # One that was being let go of just then is taken by itself, when it is taken up.
                    if drive.fence is None or drive.fence < one.record.fence:
                        self._taken(drive, one)
                drives.append(drive)
        return drives

    async def release(self, drive: Drive) -> None:
        """Let go of a call that nobody here drives any more, so that others can take it."""
        with anyio.CancelScope(shield=True), typed:
            async with drive.lock:
                # One that may just be sent again is on its way to be driven. And what a commit that was
                # waited for here could not write, others do not know and must not go on without.
                stands = not drive.running and not isinstance(drive.record.state, Calling)
                if drive.owned and stands and not drive.unsaved:
                    drive.owned = False
                    try:
                        drive.record = await self._save(drive, drive.record, Point.RELEASE)
                    except DrivenElsewhereError:
                        pass  # somebody has taken it already
                    except BaseException:
                        drive.owned = True
                        raise

    async def forget(self, before: float) -> int:
        """Forget what was delivered before a time (wall clock, seconds), a little at a time.

        Not what was delivered just now.

        Returns:
            How many records.

        Raises:
            JournalError: It could not be done, or not all of it.
        """
        forgotten = 0
        # Who follows a call looks every few seconds, and must see its end.
        before = min(before, self._clock.time() - _SPARED_S)
        with typed:
            while found := await self._passing(Point.FORGET, self.journal.prune, before):
                forgotten += found
        return forgotten

    async def _wanted(self, drive: Drive) -> Taken | None:
        """A record as it stands when we have asked for it; ``None`` if there is none."""
        await self.membership.enrol()
        judge = self.membership.judge()
        return await self._passing(Point.TAKE, self.journal.take, drive.record.record_id, self.owner, judge)

    def _taken(self, drive: Drive, taken: Taken) -> None:
        record = taken.record
        drive.owned = record.owner == self.owner
        if drive.owned and drive.fence is not None and record.fence == drive.fence + 1:
            # Nobody else had it since, so we know better than the journal, which holds only changes.
            drive.record = replace(drive.record, owner=record.owner, fence=record.fence)
            drive.inherited, drive.exact = False, True
        else:
            # Unless it was delivered here just now, under the fence before this one.
            had = drive.record.delivered_at if drive.owned else None
            drive.record = record if had is None else replace(record, delivered_at=had)
            drive.inherited, drive.exact = True, taken.before is None
            drive.pending = None  # it was to be sent as things stood before
            drive.unsaved = [_without_memo(event) for event in drive.unsaved]
        if drive.owned:
            drive.fence = record.fence


def _without_memo(event: Event) -> Event:
    """What was told of a task that another client has had since, which knows better how to go on with it."""
    if isinstance(event, Notified):
        return replace(event, task=event.task.model_copy(update={"request_state": None}))
    return event


def _too_late(drive: Drive, event: Event) -> bool:
    """Whether it is the reply to a call that another client has given up meanwhile, and gone beyond."""
    late = isinstance(event, _REPLIES) and not isinstance(drive.record.state, Calling | OutcomeUnknown)
    if late:
        logger.warning("The reply to an earlier call comes too late: %r", drive.record)
    return late


def _to_do(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """What is left when the commit is done."""
    return tuple(action for action in actions if not isinstance(action, _WRITES))


def _keep(drive: Drive, event: Event) -> None:
    if not any(event is kept for kept in drive.unsaved):
        drive.unsaved.append(event)


def _kept(event: Event) -> bool:
    """Whether it must not be forgotten though it could not be committed."""
    match event:
        case PollFailed() | UpdateFailed() | CancelFailed():
            return event.retry_after_s is not None  # the server wants to be left alone for so long
        case _:
            return isinstance(event, _KEPT)
