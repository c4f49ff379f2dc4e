"""Ownership of records: only the owner of a call writes its record, and sends requests and questions for it.

Writes have a fence in the journal: a write with an old fence is refused. Requests and questions leave the
process without passing the journal, so that this module is their fence:

- while the lease of this process lasts by its own clock, no other process takes its calls;
- once the lease has run out, the journal is asked before each request whether the call is still ours, which
  reads the fence and writes nothing, and no question is before a person until the lease is renewed;
- once the lease is renewed, the client has another name, and stores each record under it before a request.

On one machine each process sees the others. No process goes by a lease there, and polls go on.

Two windows are left. A process that is suspended after the check and before its request has left sends that
request when it goes on. And in a virtual machine that was paused no clock tells of the pause, until the lease
is renewed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

import anyio.lowlevel

from ..aio.loops import Loops
from ..aio.uncut import run_to_its_end
from ..errors import (
    DrivenElsewhereError,
    InputUnansweredError,
    JournalCodecError,
    JournalCorruptError,
    JournalError,
)
from ..journal.base import LEFT, Instruction, Taken
from ..journal.guarded import GuardedJournal
from ..journal.row import driven_elsewhere
from ..machine import events as ev
from ..machine.actions import SendCall
from ..machine.record import Scope, TaskRecord
from ..machine.replacing import replace
from ..machine.states import Calling, Finished, Gathering
from ..policy import growing_delay
from ..questions.question import open_questions
from ..sessions.base import ToolCall
from . import observer
from .call_log import log_doubt
from .environment import Environment
from .live_call import LiveCall, Nobody, Ours, Theirs, Turn, forgotten, overtaken
from .process_lease import ProcessLease
from .registry import BATCH, Registry

__all__ = ["REPLIES", "Owning"]

logger = logging.getLogger("mcp_tasks_client")

REPLIES: Final = (ev.CallFailed, ev.CallLost, ev.CallRefused, ev.CallReturned, ev.InputAsked, ev.TaskCreated)
"""The replies to ``tools/call``."""

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
"""Seconds between attempts to read the journal, doubling each time."""

_SHORTEST_WAIT_S: Final = 0.01
_LONGEST_WAIT_S: Final = 10.0
"""Seconds between two looks at the lease while a question is before the host. The event loop's clock may
stand still while the machine is suspended."""

_STALE_S: Final = 1.0
"""Seconds that the journal may take to confirm a call whose lease has run out. A longer look is repeated."""


class Owning:
    """The records that one client owns.

    Attributes:
        owner: The name of the client in the journal.
        lease: The lease of its process.
        loops: The event loops that the client runs in.
    """

    def __init__(self, journal: GuardedJournal, registry: Registry, environment: Environment) -> None:
        self._journal = journal
        self._registry = registry
        self._clock = environment.clock
        self._observed = observer.ObservedSteps(environment.observer)
        self._environment = environment
        self._former: set[str] = set()  # names that the client had in earlier tenures
        self._has_left = False
        self.loops = Loops()
        self._join()

    def enter_loop(self) -> None:
        """Note that the event loop that runs us is one of the client's; before anything is owned there."""
        if self.loops.have_closed():  # under calls, whose drivers stand still for ever
            self.loops = Loops()
            self._registry.forget_all()
            self._join()
        self.loops.note_running()

    def _join(self) -> None:
        # A client that is dropped, or whose loops are closed under it, is gone: others take its records.
        self.lease, self.owner = ProcessLease.join(self._journal, self._environment)
        self.lease.watch(self.owner, self, self.loops.have_closed)
        self._tenure = self.lease.tenure

    # ── before a request, and before a question ───────────────────────────────────────────────

    def is_in_doubt(self, call: LiveCall) -> bool:
        """Whether another process may have taken a call that is ours as far as is known here."""
        owned = call.ownership
        return isinstance(owned, Ours) and call.journaled and not self.lease.vouches_for(owned.tenure)

    async def confirm(self, call: LiveCall) -> None:
        """Return when no other process drives a call: at once, unless it is in doubt.

        As long as the journal cannot be read, the caller waits: the other processes go by the lease alone.

        Raises:
            DrivenElsewhereError: Another client has taken the record.
            JournalError: The record is there and cannot be read.
        """
        failures = 0
        while self.is_in_doubt(call):
            seen, tenure, began = call.ownership, self.lease.tenure, self._clock.elapsed()
            assert isinstance(seen, Ours)
            record: TaskRecord | None = call.record
            try:
                if self.lease.is_watched and self.lease.left_s > 0:
                    await run_to_its_end(self._own_anew, call, seen)
                    continue
                record = await self._journal.by_id(call.record.record_id)
            except (JournalCorruptError, JournalCodecError):
                raise  # no wait makes the record readable
            except JournalError as error:
                if self.lease.is_watched:  # else the other processes of this machine see that this one lives
                    failures += 1
                    call.audience.count_poll(error)
                    if failures == 1:
                        log_doubt(call.record, error)
                    await self._clock.sleep(growing_delay(_FIRST_PAUSE_S, failures, _LONGEST_PAUSE_S))
                    continue
            if call.ownership is not seen:
                continue  # it was released, saved or taken again meanwhile
            if record is None or record.fence > seen.fence:
                call.ownership, call.next_send = Theirs(), None
                raise driven_elsewhere(call.record.tool)
            call.ownership = replace(seen, tenure=tenure)
            if self._clock.elapsed() - began <= _STALE_S:
                break  # also if the lease has run out: no client has taken the call
        if isinstance(call.ownership, Theirs):
            raise driven_elsewhere(call.record.tool)  # as was found out for another request meanwhile

    async def _own_anew(self, call: LiveCall, seen: Ours) -> None:
        """Store the record of a call once more, under the name that the client has in this tenure.

        Another process may have judged the former name to be gone, and be about to take its records.
        """
        async with Turn(call):
            if call.ownership is seen:
                try:
                    call.record = await self.save(call, call.record, observer.TAKE)
                except DrivenElsewhereError:
                    call.ownership, call.next_send = Theirs(), None
                    raise

    async def wait_until_sure(self, call: LiveCall) -> None:
        """Return when no other process can take a call: the lease lasts, and the call was confirmed.

        Raises:
            DrivenElsewhereError: Another client has taken the record.
        """
        while self.is_in_doubt(call):
            await self.confirm(call)
            if self.is_in_doubt(call):
                await self._clock.sleep(_LONGEST_PAUSE_S)

    async def wait_for_withdrawal(self, call: LiveCall) -> None:
        """Return when a question of a call has to be withdrawn, since another process may put it to its host.

        Where other processes go by the lease, that is when the lease was not renewed in time. On one machine
        it is when another process has taken the call.
        """
        with suppress(DrivenElsewhereError, JournalError):
            while True:
                while not self.is_in_doubt(call):
                    left_s = self.lease.left_s if self.lease.is_watched else _LONGEST_WAIT_S
                    await self._clock.sleep(max(_SHORTEST_WAIT_S, min(left_s, _LONGEST_WAIT_S)))
                if self.lease.is_watched:
                    return
                await self.confirm(call)

    # ── writing under the fence ───────────────────────────────────────────────────────────────

    async def enrol(self) -> None:
        """Have the lease of this process in the journal, and renewed, before anything is owned.

        Raises:
            JournalError: It could not be stored.
        """
        if self.lease.is_short:
            await self._observed(None, observer.ENROL, self.lease.enrol, self._journal)
        if self.lease.is_watched and self._tenure != self.lease.tenure:
            # Other processes may have judged the name to be gone, and take its records a moment later.
            self._former.add(self.owner)
            self._join()
        # Each time: the journal that renewed it until now may have closed, and this one may be opened anew.
        self._journal.keep_renewing(self.lease)

    async def save(
        self,
        call: LiveCall,
        record: TaskRecord,
        point: observer.Point,
        *,
        new: bool = False,
        new_owner: str | None = None,
        heeded: Instruction | None = None,
    ) -> TaskRecord:
        """Store the record of a call, if it is one that is kept. Returns it as it was stored.

        Args:
            call: In its turn.
            record: As it is to be.
            point: Of the step.
            new: Another client may be storing it at this moment.
            new_owner: The owner of a record that is released.
            heeded: See :meth:`Journal.save`.

        Raises:
            JournalError: It could not be stored.
            DrivenElsewhereError: Another client has taken the record.
        """
        owned = call.ownership
        # A plain call without a key costs no commit; its first is the one that holds a task ID.
        if record.kept:
            await self.enrol()
        owner = self.owner if isinstance(owned, Ours) else new_owner
        record = replace(record, owner=owner, updated_at=self._clock.time())
        if record.kept:
            tenure = self.lease.tenure
            if new:
                standing = await self._observed(call, point, self._journal.claim, record)
                if (standing.owner, standing.fence) != (record.owner, record.fence):
                    raise driven_elsewhere(call.record.tool)
            else:
                await self._observed(
                    call, point, self._journal.save, record, known=call.journaled, heeded=heeded
                )
            call.journaled = True
            if call.ownership is owned and isinstance(owned, Ours) and owned.tenure != tenure:
                call.ownership = replace(owned, tenure=tenure)  # the journal has compared the fence
        return record

    # ── taking and releasing ──────────────────────────────────────────────────────────────────

    def new_call(
        self, record: TaskRecord, tool_call: ToolCall | None = None, first: ev.TaskCreated | None = None
    ) -> LiveCall:
        """A live call of this client that no journal has yet.

        It begins with a ``tools/call`` that is to be sent, or with a task, which is committed before anything
        else is done about it.
        """
        ours = Ours(0, self.lease.tenure)
        if first is not None:
            return self._registry.add(LiveCall(record, ours, uncommitted=(first,)))
        return self._registry.add(LiveCall(record, ours, tool_call=tool_call, next_send=SendCall()))

    async def claim(self, call: LiveCall) -> TaskRecord:
        """Journal the intent of a keyed call, or find the call that the key stands for.

        Returns:
            The record that stands in the journal. If it is the call's own, this client owns the call.
        """
        return await run_to_its_end(self._claim, call)

    async def _claim(self, call: LiveCall) -> TaskRecord:
        async with Turn(call):
            await self.enrol()
            record = replace(call.record, owner=self.owner, updated_at=self._clock.time())
            tenure = self.lease.tenure
            standing = await self._observed(call, observer.CLAIM, self._journal.claim, record)
            if (standing.record_id, standing.fence, standing.owner) == (
                record.record_id,
                record.fence,
                record.owner,
            ):
                call.record, call.ownership, call.journaled = record, Ours(record.fence, tenure), True
            else:
                call.ownership = Theirs()
            return standing

    async def take(self, call: LiveCall) -> bool:
        """Become the owner of a call, unless another client owns it that is not gone.

        Returns:
            Whether this client owns the call. Its record is then the one in the journal.

        Raises:
            OvertakenError: The journal has no record of the call, which had no task yet: another client has
                taken it back.
            CallForgottenError: Another client has brought it to its end, and it was forgotten.
        """
        while not call.ours:
            # To its end: cut in two, the journal would name us as the owner, ``call.ownership`` would not.
            await run_to_its_end(self._take, call)
            if isinstance(call.ownership, Theirs):
                return False
        return True  # a driver that was leaving has released it in between, and then it is taken once more

    async def _take(self, call: LiveCall) -> None:
        async with Turn(call):
            await self.enrol()
            tenure = self.lease.tenure
            taken = await self._observed(call, observer.TAKE, self._take_if_free, call.record.record_id)
            if taken is not None:
                self._note_taken(call, taken, tenure)
            elif not call.journaled or any(isinstance(event, REPLIES) for event in call.uncommitted):
                call.ownership, call.journaled = Ours(call.record.fence, tenure), False
            elif isinstance(call.record.state, Calling | Gathering):
                raise overtaken(call)
            else:
                raise forgotten(call)

    async def _take_if_free(self, record_id: str) -> Taken | None:
        taken = await self._journal.take(record_id, self.owner, self._former)
        if taken is None or taken.record.owner in (None, self.owner):
            return taken
        gone = await self.lease.gone(self._journal, taken.record.owner)
        return await self._journal.take(record_id, self.owner, gone) if gone else taken

    async def take_pending(
        self,
        scope: Scope,
        application: str | None = None,
        limit: int | None = None,
        leave: Collection[str] = (),
    ) -> Sequence[LiveCall]:
        """Become the owner of every free record of a scope that has a task, or an undelivered outcome.

        Args:
            scope: Endpoint and principal.
            application: Its records are taken besides those of no application.
            limit: Records, at most.
            leave: The ``record_id`` of records that are left alone.

        Returns:
            The calls of all such records that this client owns, oldest first.
        """
        return await run_to_its_end(self._take_pending, scope, application, limit, leave)

    async def _take_pending(
        self, scope: Scope, application: str | None, limit: int | None, leave: Collection[str]
    ) -> Sequence[LiveCall]:
        taken, tenure = await self._take_free(scope, application, limit, leave)
        if self._has_left:  # meanwhile: no coroutine would drive them, and this process may live on
            await self.leave()
            return []
        calls = []
        for number, one in enumerate(taken, 1):
            if number % BATCH == 0:
                await anyio.lowlevel.checkpoint()  # thousands of them must not hold the event loop
            call = self._registry.live_of(one.record)
            await self._note_free(call, one, tenure)
            calls.append(call)
        return calls

    async def _take_free(
        self, scope: Scope, application: str | None, limit: int | None, leave: Collection[str]
    ) -> tuple[Sequence[Taken], int]:
        while True:
            await self.enrol()
            tenure = self.lease.tenure
            gone = await self._gone()
            taken = await self._observed(
                None,
                observer.TAKE_PENDING,
                self._journal.take_pending,
                scope,
                self.owner,
                gone,
                application=application,
                limit=limit,
                leave=leave,
            )
            if self.lease.vouches_for(tenure):
                return taken, tenure
            # This process was suspended meanwhile. Others may have brought these calls to their ends.

    async def _gone(self) -> set[str]:
        """The owners whose records this client may take."""
        gone = await self.lease.gone(self._journal)
        gone |= {owner + LEFT for owner in gone}  # which the journal may be releasing just now
        return gone | self._former

    async def principals(self, endpoint: str, application: str | None) -> list[str]:
        """The principals with pending records at a server that no other process has.

        Raises:
            JournalError: The journal could not be read.
        """
        await self.enrol()
        takeable = await self._gone() | {*self.lease.owners}
        return await self._journal.principals(endpoint, takeable, application=application)

    async def _note_free(self, call: LiveCall, taken: Taken, tenure: int) -> None:
        """Note that this client owns a record, unless more is known of it here.

        A call that was being released just then is taken by itself, when it is driven again.
        """
        async with Turn(call):
            if _fence_of(call) < taken.record.fence and call.record.fence <= taken.record.fence:
                self._note_taken(call, taken, tenure)

    def _note_taken(self, call: LiveCall, taken: Taken, tenure: int) -> None:
        """Note the journal's answer to the wish to own a record.

        ``tenure`` is that of our lease before the journal was asked.
        """
        record = taken.record
        if record.owner != self.owner:
            call.ownership, call.record = Theirs(), record
            return
        # Each taking of a record raises its fence by one.
        nobody_had_it_since = _fence_of(call) >= 0 and record.fence == _fence_of(call) + 1
        if nobody_had_it_since:
            # The journal has no unchanged polls, so that our own record may be the newer one.
            call.record = replace(call.record, owner=record.owner, fence=record.fence)
            call.due_is_exact = True
        else:
            call.record = record
            call.due_is_exact = taken.before is None
            call.next_send = None  # it was to be sent as things stood before
        call.ownership, call.journaled = Ours(record.fence, tenure), True

    async def release_unfinished(self, call: LiveCall, *, to_process: bool = False) -> None:
        """Release a call that has no driver here, unless it is about to be sent, or is finished.

        An outcome stays ours until it is delivered.
        """
        if not isinstance(call.record.state, Calling | Finished):
            await self.release(call, to_process=to_process)

    async def release(self, call: LiveCall, *, to_process: bool = False) -> None:
        """Give up ownership, so that another client can take the record. Logged if it cannot be written.

        Does nothing while replies or answers are uncommitted, since other clients would go on without them. A
        call that was taken back has no record, and gets none by this.

        ``to_process`` leaves the record to the clients of this process, for as long as this store is open and
        the process lives.
        """
        was_taken_back = isinstance(call.record.state, Calling) and not call.journaled
        if call.ours and not call.uncommitted and not was_taken_back:
            await run_to_its_end(self._release, call, to_process)

    async def _release(self, call: LiveCall, to_process: bool) -> None:
        try:
            if await self._give_up(call, to_process):
                self._registry.note_saved(call)
        except JournalError as error:
            # Its state may not be in the journal either, if its last commit was cut. close() tries again.
            self._registry.note_unsaved(call)
            logger.warning("%r could not be released: %s", call.record, error)

    async def _give_up(self, call: LiveCall, to_process: bool) -> bool:
        """Give up ownership in the journal, with the state of the call.

        Returns:
            Whether the record was ours.

        Raises:
            JournalError: It could not be written, and the record is still ours.
        """
        async with Turn(call):
            before = call.ownership
            if not isinstance(before, Ours):
                return False
            call.ownership = Nobody(ours_until=before.fence)
            new_owner = self.lease.name_for_process(self.owner) if to_process else None
            try:
                call.record = await self.save(call, call.record, observer.RELEASE, new_owner=new_owner)
            except DrivenElsewhereError:
                call.ownership = Theirs()
                return False
            except JournalError:
                call.ownership = before
                raise
            return True

    @staticmethod
    def learn(call: LiveCall, record: TaskRecord) -> None:
        """Take over the journal's record of a call that was refused here, and whose record was removed.

        Another client may have owned the record before it was removed, a journal that was set back may have
        it again, or it was read before its removal. :meth:`take` finds out whether it is there.
        """
        call.record, call.ownership, call.journaled = record, Nobody(ours_until=None), True

    async def look_again(self, call: LiveCall) -> bool:
        """Look whether the reason for which a call is parked, and of which no caller was told, still holds.

        Another client may have ended the call, whose end is then known here, or a person has answered.

        Returns:
            Whether it was answered, so that the call can be begun anew.
        """
        parked = call.error
        if parked is None or call.audience.told or call.ours:
            return False
        with suppress(JournalError):  # then the caller is told that reason
            record = await self._journal.by_id(call.record.record_id)
            left = {one.name for one in await self._journal.instructions(call.record.record_id)}
            if call.ours or call.error is not parked:
                return False
            if record is not None and record.finished:
                call.record, call.ownership = record, Nobody(ours_until=None)
            elif isinstance(parked, InputUnansweredError):
                asked = {one.question_id for one in open_questions(call.record, None)}
                still_open = {one.question_id for one in open_questions(record or call.record, None, left)}
                if asked and still_open.isdisjoint(asked):
                    call.excuse()
                    return True
        return False

    async def is_driven(self, record: TaskRecord) -> bool:
        """Whether the owner of a record lives. An owner in this process lives while its client is open.

        Raises:
            JournalError: The leases could not be read.
        """
        owner = record.owner
        return owner is not None and not await self.lease.gone(self._journal, owner)

    async def leave(self) -> None:
        """Release all that is ours. With the last client of this process the lease is given up.

        Raises:
            JournalError: The journal could not be written.
        """
        self._has_left = True
        was_enrolled = self.lease.is_stored
        names = [name for owner in (*self._former, self.owner) for name in self.lease.leave(owner)]
        if was_enrolled:  # else no name is in the journal, which an inbox may have no right to write
            await self._observed(None, observer.LEAVE, self._journal.release, *names)


def _fence_of(call: LiveCall) -> int:
    """The fence under which a call is, or was, ours; -1 if it never was."""
    match call.ownership:
        case Ours(fence=fence):
            return fence
        case Nobody(ours_until=fence) if fence is not None:
            return fence
        case _:
            return -1
