"""One step of one call: event → advance → commit.

Everything that an engine writes to the journal is written here, and each commit is a crash point.
A scope that is cancelled waits for the end of a step. After a native ``Task.cancel()`` the journal still
finishes the write, and the release of an unfinished task writes its state once more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel

from ..aio.uncut import run_to_its_end
from ..errors import DrivenElsewhereError, InputUnansweredError, JournalError, TasksClientError
from ..journal.base import Instruction
from ..journal.guarded import GuardedJournal
from ..journal.row import driven_elsewhere
from ..machine import Step, advance
from ..machine import actions as act
from ..machine import events as ev
from ..machine.record import Scope, TaskRecord
from ..machine.states import Calling, Finished, OutcomeUnknown
from ..policy import PollPolicy
from ..protocol import JSONObject
from ..questions.question import (
    CANCEL,
    answer_instruction,
    as_heeded,
    asked_under,
    leave_answer,
    open_questions,
)
from ..sessions.base import ToolCall
from . import observer
from .call_log import log_commit, log_delivery
from .environment import Environment
from .live_call import LiveCall, Nobody, Ours, Theirs, Turn, check_forgotten, unwritable
from .owning import REPLIES, Owning

__all__ = ["BATCH", "CallStore"]

logger = logging.getLogger("mcp_tasks_client")

_SPARED_S: Final = 60.0
"""Seconds after its delivery for which an outcome is kept in any case: others may follow the same call."""

BATCH: Final = 50
"""Calls that are taken up between two moments in which the event loop is free for others."""


class CallStore:
    """The journal, for all calls of one client.

    Attributes:
        live: The live call of each record, by ``record_id``. Weak: calls that nobody needs are forgotten.
        joining: Held while a caller joins the call that its key stands for, so that one at a time decides.
        owning: Which records are this client's.
        bells: Told of each call that has come to rest or awaits a person; ``None`` when the engine is left.
    """

    def __init__(self, journal: GuardedJournal, policy: PollPolicy, environment: Environment) -> None:
        self.journal = journal
        self.live: WeakValueDictionary[str, LiveCall] = WeakValueDictionary()
        self.joining = anyio.Lock()
        self._policy = policy
        self._clock = environment.clock
        self._observed = observer.ObservedSteps(environment.observer)
        self.owning = Owning(journal, environment)
        self.bells: set[Callable[[LiveCall | None], None]] = set()
        self._has_closed = False
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
        return LiveCall(record, Ours(0, self.owning.lease.tenure), tool_call)

    def live_of(self, record: TaskRecord) -> LiveCall:
        """The live call of a record that was read from the journal."""
        return self.add(LiveCall(record, Nobody(ours_until=None)))

    def learn(self, call: LiveCall, record: TaskRecord) -> None:
        """Take over the journal's record of a call that was refused here, and whose record was removed.

        Another client may have owned the record before it was removed, a journal that was set back may have
        it again, or it was read before its removal. :meth:`take` finds out whether it is there.
        """
        call.record, call.ownership, call.journaled = record, Nobody(ours_until=None), True

    def ring(self, call: LiveCall | None) -> None:
        """Tell that a call has come to rest, or waits for a person; ``None`` that the engine is left."""
        for bell in list(self.bells):
            bell(call)

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
            async with Turn(call):
                pass

    def _advance(self, call: LiveCall, event: ev.Event) -> Step:
        if _is_late(call, event):
            raise driven_elsewhere(call.record.tool)  # another client has given the call up, and gone beyond
        return advance(call.record.state, event, self._policy)

    async def _commit(self, call: LiveCall, event: ev.Event, step: Step | None) -> tuple[act.Action, ...]:
        async with Turn(call):
            # A step that had to wait for others is taken from where they have left the call.
            state, actions = step or self._advance(call, event)
            record, saves = call.record, any(isinstance(action, act.Save) for action in actions)
            point = observer.commit_of(type(event))
            heeded: Instruction | None = None
            try:
                if saves and call.journaled and isinstance(event, ev.AnswerReady):
                    event, heeded = await self._find_first_answer(call, event)
                    state, actions = self._advance(call, event)
                elif saves and isinstance(event, ev.CancelRequested):
                    heeded = Instruction(CANCEL, "", event.now)
                record = replace(call.record, state=state)
                if isinstance(call.ownership, Theirs):
                    raise driven_elsewhere(call.record.tool)
                if saves:
                    # Somebody else may be attaching the same task just now.
                    new = isinstance(event, ev.TaskCreated) and event.attached
                    record = await self.owning.save(call, record, point, new=new, heeded=heeded)
                elif any(isinstance(action, act.Forget) for action in actions):
                    await self._remove(call, point)
            except DrivenElsewhereError:
                call.ownership, call.next_send = Theirs(), None  # it was to be sent as things stood before
                if isinstance(event, ev.TaskCreated) and event.attached:
                    call.uncommitted, call.journaled = (), True  # the other client's record stands
                elif isinstance(event, REPLIES):
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

    async def _find_first_answer(
        self, call: LiveCall, event: ev.AnswerReady
    ) -> tuple[ev.AnswerReady, Instruction]:
        """The answer that counts, and its instruction: this one, unless one was left before."""
        asked = asked_under(call.record, event.key)
        assert asked is not None, "an answer to nothing is no step"
        left = answer_instruction(call.record.record_id, asked, event.answer, event.now)
        standing = await self.instruct(call, left) or left
        if not (standing.heeded or standing.body == left.body):  # heeded by another client, the commit fails
            event = replace(event, answer=json.loads(standing.body))
        return event, as_heeded(standing)

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

    async def forget_instruction(self, call: LiveCall, instruction: Instruction) -> None:
        """Forget an instruction that has become pointless.

        Raises:
            JournalError: The journal could not be written.
            DrivenElsewhereError: Another client has taken the record.
        """
        await run_to_its_end(self._forget_instruction, call, as_heeded(instruction))

    async def _forget_instruction(self, call: LiveCall, heeded: Instruction) -> None:
        async with Turn(call):
            if call.ours and not call.record.finished:
                call.record = await self.owning.save(call, call.record, observer.INSTRUCT, heeded=heeded)

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

    async def _remove(self, call: LiveCall, point: str) -> None:
        if call.journaled:
            await self._observed(call, point, self.journal.remove, call.record)
            call.journaled = False

    # ── owning ────────────────────────────────────────────────────────────────────────────────

    async def look_again(self, call: LiveCall) -> bool:
        """Look whether what parked a call, and nobody was told yet, still holds.

        Another client may have ended the call, whose end is then known here, or somebody has answered.

        Returns:
            Whether it was answered, so that the call can be begun anew.
        """
        parked = call.error
        if parked is None or call.error_told or call.ours:
            return False
        with suppress(JournalError):  # then what parked the call is told
            record = await self.journal.by_id(call.record.record_id)
            left = {one.name for one in await self.journal.instructions(call.record.record_id)}
            if call.ours or call.error is not parked:
                return False
            if record is not None and record.finished:
                call.record, call.error, call.ownership = record, None, Nobody(ours_until=None)
            elif isinstance(parked, InputUnansweredError) and parked.questions:
                still_open = {one.question_id for one in open_questions(record or call.record, None, left)}
                call.error_told = still_open.isdisjoint(one.question_id for one in parked.questions)
        return call.error is parked and call.error_told

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
        taken, tenure = await self.owning.take_free(scope, application, limit, leave)
        if self._has_closed:  # meanwhile: nobody here would drive them, and this process may live on
            await self.owning.leave()
            return []
        calls = []
        for number, one in enumerate(taken, 1):
            if number % BATCH == 0:
                await anyio.lowlevel.checkpoint()  # thousands of them must not hold the event loop
            call = self.live_of(one.record)
            await self.owning.note_free(call, one, tenure)
            calls.append(call)
        return calls

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
            await run_to_its_end(self._release, call, to_process)

    async def _release(self, call: LiveCall, to_process: bool) -> None:
        try:
            if await self.owning.release(call, to_process=to_process):
                self._note_saved(call)
        except JournalError as error:
            # Its state may not be in the journal either, if its last commit was cut. close() tries again.
            self._note_unsaved(call)
            logger.warning("%r could not be released: %s", call.record, error)

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

    async def acknowledge(self, call: LiveCall, *, keep: bool = False) -> bool:
        """Note that the host has an outcome, even if another client owns it. Durable when this returns.

        ``keep`` is what ``may_be_lost`` of :meth:`deliver` is.

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
                record = await self.journal.by_id(call.record.record_id)
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
        now, keep_s = self._clock.time(), self.journal.keep_delivered_s if keep else 0
        delivered = replace(record, owner=None, updated_at=now, delivered_at=now)
        if record.idempotency_key is not None:
            await self.journal.save(delivered, known=True)
        elif keep_s > 0:
            await self.journal.save(delivered, known=True, keep_until=now + keep_s)
        else:
            await self.journal.remove(record)

    @staticmethod
    def _note_delivered(call: LiveCall, at: float) -> None:
        call.record = replace(call.record, delivered_at=at, owner=None)
        call.ownership = Nobody(ours_until=call.record.fence)

    def begin_prune(self) -> bool:
        """Whether the caller has to prune old records now; see :meth:`ProcessLease.begin_prune`."""
        return self.owning.lease.begin_prune()

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
        gone = await self.owning.lease.gone(self.journal, of_process=True)
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
        if await self.owning.take(call):
            while call.uncommitted:
                await self.apply_uncommitted(call)
            if call.driver is None:
                await self.release(call)

    # ── the end of the client ─────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Commit once more what could not be committed before, and release everything."""
        await run_to_its_end(self._close)

    async def _close(self) -> None:
        self._has_closed = True
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
        try:
            await self.owning.leave()
        except JournalError as error:
            logger.warning("The journal does not know yet that this client has ended: %s", error)


def _is_late(call: LiveCall, event: ev.Event) -> bool:
    """Whether an event is the reply to a ``tools/call`` that has no caller left."""
    return isinstance(event, REPLIES) and not isinstance(call.record.state, Calling | OutcomeUnknown)


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
            return isinstance(event, (ev.AnswerReady, *REPLIES))
