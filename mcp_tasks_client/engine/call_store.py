"""One step of one call: event → advance → commit. And who may commit: the owner of the record.

Everything that an engine writes to the journal is written here, and each commit is a crash point.
A scope that is cancelled waits for the end of a step. After a native ``Task.cancel()`` the journal still
finishes the write, and the release of an unfinished task writes its state once more.
"""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel

from ..aio.uncut import run_to_its_end
from ..errors import DrivenElsewhereError, JournalError, TasksClientError
from ..journal.base import Instruction, Taken
from ..journal.guarded import GuardedJournal
from ..journal.row import driven_elsewhere
from ..machine import Step, advance
from ..machine import actions as act
from ..machine import events as ev
from ..machine.record import Scope, TaskRecord
from ..machine.states import Calling, Finished, Gathering, OutcomeUnknown
from ..policy import PollPolicy
from ..protocol import JSONObject
from ..questions.question import CANCEL, answer_instruction, asked_under, leave_answer
from ..sessions.base import ToolCall
from . import observer
from .call_log import log_commit, log_delivery
from .environment import Environment
from .live_call import LiveCall, Nobody, Ours, Theirs, forgotten, overtaken
from .process_lease import ProcessLease

__all__ = ["BATCH", "CallStore"]

logger = logging.getLogger("mcp_tasks_client")

_REPLIES: Final = (ev.CallFailed, ev.CallLost, ev.CallRefused, ev.CallReturned, ev.InputAsked, ev.TaskCreated)

_SPARED_S: Final = 60.0
"""Seconds after its delivery for which an outcome is kept in any case: others may follow the same call."""

BATCH: Final = 50
"""Calls that are taken up between two moments in which the event loop is free for others."""


class CallStore:
    """The journal, for all calls of one client.

    Attributes:
        live: The live call of each record, by ``record_id``. Weak: calls that nobody needs are forgotten.
        joining: Held while a caller joins the call that its key stands for, so that one at a time decides.
    """

    def __init__(self, journal: GuardedJournal, policy: PollPolicy, environment: Environment) -> None:
        self.journal = journal
        self.live: WeakValueDictionary[str, LiveCall] = WeakValueDictionary()
        self.joining = anyio.Lock()
        self._policy = policy
        self._clock = environment.clock
        self._observed = observer.ObservedSteps(environment.observer)
        self._lease, self._owner = ProcessLease.join(journal, environment)
        # A client that is dropped without being closed is gone as well, and so is what it owns. The finalizer
        # holds nothing but the names: a clock of the host's may know who keeps this alive.
        weakref.finalize(self, self._lease.owners.discard, self._owner).atexit = False
        self._remembering = 0
        self._remembered: set[LiveCall] = set()
        self._unsaved: set[LiveCall] = set()  # hold what no journal has, and must not be forgotten
        # Those of them without a driver. Kept, since each call that begins would have to walk over all.
        self._left: set[LiveCall] = set()

    @property
    def unsaved(self) -> list[LiveCall]:
        """Calls that hold what could not be committed: replies, answers, or a state that was not released."""
        return list(self._unsaved)

    def add(self, call: LiveCall) -> LiveCall:
        """The live call of a record: the one given, unless there is one already."""
        call = self.live.setdefault(call.record.record_id, call)
        if self._remembering:
            self._remembered.add(call)
        return call

    def new_call(self, record: TaskRecord, tool_call: ToolCall | None = None) -> LiveCall:
        """The live call of a record that no journal has yet."""
        return LiveCall(record, Ours(0, self._lease.lapses), tool_call)

    def live_of(self, record: TaskRecord) -> LiveCall:
        """The live call of a record that was read from the journal."""
        return self.add(LiveCall(record, Nobody(ours_until=None)))

    def learn(self, call: LiveCall, record: TaskRecord) -> None:
        """Take over the journal's record of a call that was refused here, and whose record was removed.

        Another client may have owned the record before it was removed, a journal that was set back may have
        it again, or it was read before its removal. :meth:`take` finds out whether it is there.
        """
        call.record, call.ownership, call.journaled = record, Nobody(ours_until=None), True

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Keep every live call while records are read and matched with them.

        A record that was read a moment ago may be out of date; its live call never is.
        """
        self._remembering += 1
        self._remembered.update(self.live.values())
        try:
            yield
        finally:
            self._remembering -= 1
            if not self._remembering:
                self._remembered.clear()

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    async def apply(self, call: LiveCall, event: ev.Event) -> tuple[act.Action, ...]:
        """Advance the machine by one event, commit if it says so, and return what is to be done.

        Not cancellable, and bounded by the journal's own limits. A reply or an answer whose commit fails is
        kept in ``call.uncommitted``, so that a full disk costs neither. Where another client has taken the
        record, only replies are kept. If somebody has left another answer in the journal before, that one is
        committed.

        Raises:
            JournalError: The commit failed; the state is what it was.
            DrivenElsewhereError: Another client has taken the record. Nothing is committed.
        """
        step: Step | None = None
        if call.committing is None:
            step = state, actions = self._advance(call, event)
            record = replace(call.record, state=state)
            if not record.kept or not any(isinstance(action, act.Save | act.Forget) for action in actions):
                # Nothing to wait for, as after nearly every poll, and in a call without key and task.
                if isinstance(call.ownership, Theirs):
                    raise driven_elsewhere(call.record.tool)
                call.record = record
                return _to_do(actions)
        with anyio.CancelScope(shield=True):
            actions = await self._commit(call, event, step)
        return actions  # noqa: RET504  # mypy takes every context manager for one that may swallow errors

    async def apply_uncommitted(self, call: LiveCall) -> tuple[act.Action, ...]:
        """Retry the first event of ``call.uncommitted``. A reply that no longer fits the state is dropped."""
        event = call.uncommitted[0]
        actions: tuple[act.Action, ...] = ()
        if _is_late(call, event):
            logger.warning("The reply to an earlier call comes too late: %r", call.record)
        else:
            actions = await self.apply(call, event)
        call.uncommitted = tuple(kept for kept in call.uncommitted if kept is not event)
        if not call.uncommitted:
            self._note_saved(call)
        return actions

    async def settle(self, call: LiveCall) -> None:
        """Wait for the step that is being committed, if there is one."""
        if call.committing is not None:
            async with _Turn(call):
                pass

    def _advance(self, call: LiveCall, event: ev.Event) -> Step:
        if _is_late(call, event):
            raise driven_elsewhere(call.record.tool)  # another client has given the call up, and gone beyond
        return advance(call.record.state, event, self._policy)

    async def _commit(self, call: LiveCall, event: ev.Event, step: Step | None) -> tuple[act.Action, ...]:
        async with _Turn(call):
            # A step that had to wait for others is taken from where they have left the call.
            state, actions = step or self._advance(call, event)
            record, saves = call.record, any(isinstance(action, act.Save) for action in actions)
            point, heeded = observer.commit_of(type(event)), None
            try:
                if saves and call.journaled and isinstance(event, ev.AnswerReady):
                    event, heeded = await self._find_first_answer(call, event)
                    state, actions = self._advance(call, event)
                elif saves and isinstance(event, ev.CancelRequested):
                    heeded = CANCEL
                record = replace(call.record, state=state)
                if isinstance(call.ownership, Theirs):
                    raise driven_elsewhere(call.record.tool)
                if saves:
                    # Somebody else may be attaching the same task just now.
                    new = isinstance(event, ev.TaskCreated) and event.attached
                    record = await self._save(call, record, point, new=new, heeded=heeded)
                elif any(isinstance(action, act.Forget) for action in actions):
                    await self._remove(call, point)
            except DrivenElsewhereError:
                call.ownership, call.next_send = Theirs(), None  # it was to be sent as things stood before
                if isinstance(event, ev.TaskCreated) and event.attached:
                    call.uncommitted, call.journaled = (), True  # the other client's record stands
                elif isinstance(event, _REPLIES):
                    # Until it is known what the other client makes of the call.
                    self._note_uncommitted(call, event)
                raise
            except JournalError:
                if _does_not_come_again(event):
                    self._note_uncommitted(call, event)
                raise
            except anyio.get_cancelled_exc_class():
                # A native Task.cancel(), which no shield stops. The journal finishes the write all the same,
                # and release(), which follows, writes this state once more.
                call.record = record
                call.uncommitted = tuple(kept for kept in call.uncommitted if kept is not event)
                raise
            before, call.record = call.record, record
            if saves:
                log_commit(before, record, event)
        return _to_do(actions)

    async def _find_first_answer(self, call: LiveCall, event: ev.AnswerReady) -> tuple[ev.AnswerReady, str]:
        """The answer that counts, and the name of its instruction: this one, unless one was left before."""
        asked = asked_under(call.record, event.key)
        assert asked is not None, "an answer to nothing is no step"
        left = answer_instruction(call.record.record_id, asked, event.answer, event.now)
        standing = await self.instruct(call, left)
        if standing is None or standing.heeded or standing.body == left.body:
            return event, left.name  # if another client has heeded it, the commit fails
        return replace(event, answer=json.loads(standing.body)), left.name

    async def instruct(self, call: LiveCall, instruction: Instruction) -> Instruction | None:
        """Leave an instruction for the driver of a call; see :meth:`Journal.instruct`."""
        return await self._observed(
            call, observer.INSTRUCT, self.journal.instruct, call.record.record_id, instruction
        )

    async def leave_answer(self, record: TaskRecord | None, name: str, answer: JSONObject) -> None:
        """Leave an answer for the driver of a call.

        Raises:
            TasksClientError: As from :func:`mcp_tasks_client.questions.question.leave_answer`.
        """
        now = self._clock.time()
        await self._observed(None, observer.INSTRUCT, leave_answer, self.journal, record, name, answer, now)

    async def forget_instruction(self, call: LiveCall, name: str) -> None:
        """Forget an instruction that has become pointless.

        Raises:
            JournalError: The journal could not be written.
            DrivenElsewhereError: Another client has taken the record.
        """
        await run_to_its_end(self._forget_instruction, call, name)

    async def _forget_instruction(self, call: LiveCall, name: str) -> None:
        async with _Turn(call):
            if call.ours and not call.record.finished:
                call.record = await self._save(call, call.record, observer.INSTRUCT, heeded=name)

    def _note_uncommitted(self, call: LiveCall, event: ev.Event) -> None:
        if not any(kept is event for kept in call.uncommitted):
            if isinstance(event, ev.AnswerReady):
                event = replace(event, held=True)  # whoever commits it later resumes the call then
            call.uncommitted = (*call.uncommitted, event)
        self.remember_unsaved(call)

    def remember_unsaved(self, call: LiveCall) -> None:
        """Hold on to a call with events that no journal has, until they are committed."""
        if call.uncommitted:
            self._note_unsaved(call)

    def note_driver(self, call: LiveCall) -> None:
        """Note that the driver of a call has begun or ended.

        A driver commits all that its call holds. Without one, :meth:`commit_left` does.
        """
        if call.driver is None and call in self._unsaved:
            self._left.add(call)
        else:
            self._left.discard(call)

    def _note_unsaved(self, call: LiveCall) -> None:
        self._unsaved.add(call)
        self.note_driver(call)

    def _note_saved(self, call: LiveCall) -> None:
        self._unsaved.discard(call)
        self._left.discard(call)

    async def _save(
        self,
        call: LiveCall,
        record: TaskRecord,
        point: str,
        *,
        new: bool = False,
        new_owner: str | None = None,
        heeded: str | None = None,
    ) -> TaskRecord:
        owner = self._owner if call.ours else new_owner
        record = replace(record, owner=owner, updated_at=self._clock.time())
        # A plain call without a key costs no commit; its first is the one that holds a task ID.
        if record.kept:
            await self._enrol()
            if new:
                standing = await self._observed(call, point, self.journal.claim, record)
                if (standing.owner, standing.fence) != (record.owner, record.fence):
                    raise driven_elsewhere(call.record.tool)
            else:
                await self._observed(
                    call, point, self.journal.save, record, known=call.journaled, heeded=heeded
                )
            call.journaled = True
        return record

    async def _remove(self, call: LiveCall, point: str) -> None:
        if call.journaled:
            await self._observed(call, point, self.journal.remove, call.record)
            call.journaled = False

    # ── owning ────────────────────────────────────────────────────────────────────────────────

    async def claim(self, call: LiveCall) -> TaskRecord:
        """Journal the intent of a keyed call, or find the call that the key stands for.

        Returns:
            The record that stands in the journal. If it is the call's own, this client owns the call.
        """
        return await run_to_its_end(self._claim, call)

    async def _claim(self, call: LiveCall) -> TaskRecord:
        async with _Turn(call):
            record = replace(call.record, owner=self._owner, updated_at=self._clock.time())
            await self._enrol()
            lapses = self._lease.lapses
            standing = await self._observed(call, observer.CLAIM, self.journal.claim, record)
            if (standing.record_id, standing.fence, standing.owner) == (
                record.record_id,
                record.fence,
                record.owner,
            ):
                call.record, call.ownership, call.journaled = record, Ours(record.fence, lapses), True
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
            JournalError: Another client has brought it to its end, and it was forgotten.
        """
        while not call.ours:
            # To its end: cut in two, the journal would name us as the owner, ``call.ownership`` would not.
            await run_to_its_end(self._take, call)
            if isinstance(call.ownership, Theirs):
                return False
        return True  # a driver that was leaving has released it in between, and then it is taken once more

    async def _take(self, call: LiveCall) -> None:
        async with _Turn(call):
            await self._enrol()
            lapses = self._lease.lapses
            taken = await self._observed(call, observer.TAKE, self._take_if_free, call.record.record_id)
            if taken is not None:
                self._note_taken(call, taken, lapses)
            elif not call.journaled or any(isinstance(event, _REPLIES) for event in call.uncommitted):
                call.ownership, call.journaled = Ours(call.record.fence, lapses), False
            elif isinstance(call.record.state, Calling | Gathering):
                raise overtaken(call)
            else:
                raise forgotten(call)

    async def _take_if_free(self, record_id: str) -> Taken | None:
        taken = await self.journal.take(record_id, self._owner)
        if taken is None or taken.record.owner in (None, self._owner):
            return taken
        gone = await self._lease.gone(self.journal, taken.record.owner)
        return await self.journal.take(record_id, self._owner, gone) if gone else taken

    async def confirm(self, call: LiveCall) -> None:
        """Check that another client has not taken a call, if our lease has run out since the last check.

        A poll that shows nothing new writes nothing, so that no fence is compared which would tell.

        Raises:
            DrivenElsewhereError: Another client has taken the record.
        """
        seen, lapses = call.ownership, self._lease.lapses
        if not isinstance(seen, Ours) or seen.lapses == lapses or not call.journaled:
            return
        try:
            record = await self.journal.by_id(call.record.record_id)
        except JournalError:
            return  # polls go on without a journal, and the next poll looks again
        if call.ownership is not seen:
            return  # it was released or taken again meanwhile
        if record is not None and record.fence > seen.fence:
            call.ownership, call.next_send = Theirs(), None
            raise driven_elsewhere(call.record.tool)
        call.ownership = replace(seen, lapses=lapses)

    async def is_driven(self, record: TaskRecord) -> bool:
        """Whether the owner of a record lives. An owner in this process lives while its client is open.

        Raises:
            JournalError: The leases could not be read.
        """
        owner = record.owner
        return owner is not None and not await self._lease.gone(self.journal, owner)

    async def learn_end(self, call: LiveCall) -> None:
        """Learn whether another client has brought a call to its end that is parked here."""
        if call.ours:
            return
        with suppress(JournalError):  # then what parked the call is told
            record = await self.journal.by_id(call.record.record_id)
            if record is not None and record.finished and not call.ours:
                call.record, call.error, call.ownership = record, None, Nobody(ours_until=None)

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
        await self._enrol()
        lapses = self._lease.lapses
        gone = await self._lease.gone(self.journal)
        take = partial(self.journal.take_pending, application=application, limit=limit, leave=leave)
        taken = await self._observed(None, observer.TAKE_PENDING, take, scope, self._owner, gone)
        calls = []
        for number, one in enumerate(taken, 1):
            if number % BATCH == 0:
                await anyio.lowlevel.checkpoint()  # thousands of them must not hold the event loop
            call = self.live_of(one.record)
            async with _Turn(call):
                # A call that was being released just then is taken by itself, when it is driven again.
                if _fence_of(call) < one.record.fence:
                    self._note_taken(call, one, lapses)
            calls.append(call)
        return calls

    def _note_taken(self, call: LiveCall, taken: Taken, lapses: int) -> None:
        """Note the journal's answer to the wish to own a record.

        ``lapses`` is how often our lease had run out before the journal was asked.
        """
        record = taken.record
        if record.owner != self._owner:
            call.ownership, call.record = Theirs(), record
            return
        # Each who takes a record raises its fence by one.
        nobody_had_it_since = _fence_of(call) >= 0 and record.fence == _fence_of(call) + 1
        if nobody_had_it_since:
            # The journal has no unchanged polls, so that our own record may be the newer one.
            call.record = replace(call.record, owner=record.owner, fence=record.fence)
            call.due_is_exact = True
        else:
            call.record = record
            call.due_is_exact = taken.before is None
            call.next_send = None  # it was to be sent as things stood before
        call.ownership, call.journaled = Ours(record.fence, lapses), True

    async def release_unfinished(self, call: LiveCall, *, to_process: bool = False) -> None:
        """Release a call that has no driver here, unless it is about to be sent, or is finished.

        An outcome stays ours until it is delivered.
        """
        if not isinstance(call.record.state, Calling | Finished):
            await self.release(call, to_process=to_process)

    async def release(self, call: LiveCall, *, to_process: bool = False) -> None:
        """Give up ownership, so that another client can take the record. Logged if it cannot be written.

        Does nothing while replies or answers are uncommitted, since others would go on without them. A call
        that was taken back has no record, and gets none by this.

        ``to_process`` leaves the record to the clients of this process, for as long as this store is open and
        the process lives.
        """
        was_taken_back = isinstance(call.record.state, Calling) and not call.journaled
        if call.ours and not call.uncommitted and not was_taken_back:
            new_owner = self._lease.name_for_process(self._owner) if to_process else None
            await run_to_its_end(self._release, call, new_owner)

    async def _release(self, call: LiveCall, new_owner: str | None) -> None:
        async with _Turn(call):
            before = call.ownership
            if not isinstance(before, Ours):
                return
            call.ownership = Nobody(ours_until=before.fence)
            try:
                call.record = await self._save(call, call.record, observer.RELEASE, new_owner=new_owner)
            except DrivenElsewhereError:
                call.ownership = Theirs()
            except JournalError as error:
                # Its state may not be in the journal either, if its last commit was cut. close() tries again.
                call.ownership = before
                self._note_unsaved(call)
                logger.warning("%r could not be released: %s", call.record, error)
            else:
                self._note_saved(call)

    def deliver(self, *calls: LiveCall, may_be_lost: bool = False) -> None:
        """Note that the host has these outcomes. Only after it has: a crash delivers them again.

        ``may_be_lost`` is for an outcome that was passed to a session which may lose it. The outcome is then
        kept for a while, although it has no key.
        """
        now = self._clock.time()
        keep_s = self.journal.keep_delivered_s if may_be_lost else 0
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
            self.journal.deliver(now, fences, keep_until=now + keep_s if keep_s > 0 else None)
        except JournalError as error:  # the host has the outcome, and that is what counts
            logger.warning("What was delivered may be given out once more: %s", error)

    async def acknowledge(self, call: LiveCall) -> bool:
        """Note that the host has an outcome, even if another client owns it. Durable when this returns.

        Returns:
            Whether there is an outcome. If not, nothing is noted.

        Raises:
            JournalError: It could not be written.
        """
        return await run_to_its_end(self._acknowledge, call)

    async def _acknowledge(self, call: LiveCall) -> bool:
        async with _Turn(call):
            # As the journal has it: another client may have brought it to its end, or taken it just now.
            while call.journaled:
                record = await self.journal.by_id(call.record.record_id)
                if record is None or record.delivered_at is not None:
                    break  # some host has had it
                if not record.finished:
                    return False
                with suppress(DrivenElsewhereError):
                    await self._observed(call, observer.ACKNOWLEDGE, self._save_delivered, record)
                    log_delivery(record)
            if call.record.delivered_at is None and call.record.finished:
                self._note_delivered(call, self._clock.time())
            return call.journaled or call.record.finished

    async def _save_delivered(self, record: TaskRecord) -> None:
        if record.idempotency_key is None:
            await self.journal.remove(record)
        else:
            now = self._clock.time()
            record = replace(record, owner=None, updated_at=now, delivered_at=now)
            await self.journal.save(record, known=True)

    @staticmethod
    def _note_delivered(call: LiveCall, at: float) -> None:
        call.record = replace(call.record, delivered_at=at, owner=None)
        call.ownership = Nobody(ours_until=call.record.fence)

    def begin_prune(self) -> bool:
        """Whether the caller has to prune old records now; see :meth:`ProcessLease.begin_prune`."""
        return self._lease.begin_prune()

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
        before = now - max(_SPARED_S, self.journal.retention_s if older_than_s is None else older_than_s)
        gone = await self._lease.gone(self.journal, of_process=True)
        while found := await self._observed(None, observer.PRUNE, self.journal.prune, before, now, gone):
            forgotten_records += found
        return forgotten_records

    async def commit_left(self) -> None:
        """Commit what could not be committed before, of calls that nobody drives, and release those.

        Stops at the first that fails again, and leaves the others for the next time.
        """
        while self._left:
            call = next(iter(self._left))
            try:
                await self._commit_left(call)
            except TasksClientError as error:
                logger.warning("%r still cannot be journaled: %s", call.record, error)
            if call in self._unsaved:
                return

    async def _commit_left(self, call: LiveCall) -> None:
        if await self.take(call):
            while call.uncommitted:
                await self.apply_uncommitted(call)
            if call.driver is None:
                await self.release(call)

    # ── the end of the client ─────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Commit once more what could not be committed before, and release everything."""
        await run_to_its_end(self._close)

    async def _close(self) -> None:
        why: Exception | None = None
        for call in list(self._unsaved):
            try:
                await self._commit_left(call)
            except Exception as error:  # of any kind: it must not hold up the end
                why = error
            if call in self._unsaved:
                break  # a journal that fails has waited already, and would do so for each of them
        for call in self._unsaved:
            if call.uncommitted:
                logger.error("The reply to %r was never journaled: %s", call.record, why)
        names = self._lease.leave(self._owner)
        try:
            await self._observed(None, observer.LEAVE, self.journal.release, *names)
        except JournalError as error:
            logger.warning("The journal does not know yet that this client has ended: %s", error)

    async def _enrol(self) -> None:
        if self._lease.is_short:
            await self._observed(None, observer.ENROL, self._lease.enrol, self.journal)
        # Each time: the journal that renewed it until now may have closed, and this one may be opened anew.
        self.journal.keep_renewing(self._lease)


class _Turn:
    """The turn of one step of a call, in the order of arrival. Nearly always nobody else is there."""

    def __init__(self, call: LiveCall) -> None:
        self._call = call
        call.committing = self._lock = call.committing or anyio.Lock(fast_acquire=True)

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *raised: object) -> None:
        self._lock.release()
        if not self._lock.locked():  # else it has been handed to the next step
            self._call.committing = None


def _fence_of(call: LiveCall) -> int:
    """The fence under which a call is, or was, ours; -1 if it never was."""
    match call.ownership:
        case Ours(fence=fence):
            return fence
        case Nobody(ours_until=fence) if fence is not None:
            return fence
        case _:
            return -1


def _is_late(call: LiveCall, event: ev.Event) -> bool:
    """Whether an event is the reply to a ``tools/call`` that has no caller left."""
    return isinstance(event, _REPLIES) and not isinstance(call.record.state, Calling | OutcomeUnknown)


def _to_do(actions: tuple[act.Action, ...]) -> tuple[act.Action, ...]:
    """The actions that are left to do after the commit."""
    return tuple(action for action in actions if not isinstance(action, act.Save | act.Forget))


def _does_not_come_again(event: ev.Event) -> bool:
    """Whether an event would be lost if it is forgotten, as the reply to a poll is not."""
    match event:
        case ev.PollFailed() | ev.UpdateFailed() | ev.CancelFailed():
            return event.retry_after_s is not None  # the server wants to be left alone for so long
        case ev.CancelRequested():
            return event.by_instruction  # it may be marked as heeded all the same
        case _:
            return isinstance(event, (ev.AnswerReady, *_REPLIES))
