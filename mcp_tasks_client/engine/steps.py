"""One step of one call: event → advance → commit.

The steps write the record of a call, and the request that is to be sent for it. Each commit is a crash point.
A scope that is cancelled waits for the end of a step. After a native ``Task.cancel()`` the journal still
finishes the write, and the release of an unfinished task writes its state once more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

import anyio

from ..aio.uncut import run_to_its_end
from ..errors import DrivenElsewhereError, JournalError
from ..journal.base import Instruction
from ..journal.guarded import GuardedJournal
from ..journal.row import driven_elsewhere
from ..machine import Step, advance
from ..machine import actions as act
from ..machine import events as ev
from ..machine.record import TaskRecord
from ..machine.replacing import replace
from ..machine.states import Calling, OutcomeUnknown
from ..policy import PollPolicy
from ..protocol import JSONObject
from ..questions.question import CANCEL, answer_instruction, as_heeded, asked_under, leave_answer
from ..sessions.base import ToolCall
from . import observer
from .call_log import log_commit
from .environment import Environment
from .live_call import LiveCall, Theirs, Turn
from .owning import REPLIES, Owning
from .registry import Registry

__all__ = ["Steps"]

logger = logging.getLogger("mcp_tasks_client")


class Steps:
    """The steps of all calls of one client."""

    def __init__(
        self,
        journal: GuardedJournal,
        registry: Registry,
        owning: Owning,
        policy: PollPolicy,
        environment: Environment,
    ) -> None:
        self._journal = journal
        self._registry = registry
        self._owning = owning
        self._policy = policy
        self._clock = environment.clock
        self._observed = observer.ObservedSteps(environment.observer)

    async def apply(self, call: LiveCall, event: ev.Event) -> tuple[act.Action, ...]:
        """Advance the machine by one event, commit if it says so, and return the actions that are left.

        Not cancellable, and bounded by the journal's own limits. A reply or an answer whose commit fails is
        kept in ``call.uncommitted``, so that a full disk costs neither. Where another client has taken the
        record, only replies are kept. If the journal has another answer already, that one is
        committed.

        Raises:
            JournalError: The commit failed; the state is unchanged.
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
                _note(call, record, event, actions)
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
            self._registry.note_saved(call)
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
            # A step that had to wait for other steps is taken from where they have left the call.
            state, actions = step or self._advance(call, event)
            record, saves = call.record, any(isinstance(action, act.Save) for action in actions)
            heeded: Instruction | None = None
            try:
                if saves and call.journaled and isinstance(event, ev.AnswerReady):
                    event, heeded = await self._find_first(call, event)
                    state, actions = self._advance(call, event)
                elif saves and isinstance(event, ev.CancelRequested):
                    heeded = Instruction(CANCEL, "", event.now)
                point = observer.commit_of(type(event))
                record = replace(call.record, state=state)
                if isinstance(call.ownership, Theirs):
                    raise driven_elsewhere(call.record.tool)
                if saves:
                    # Somebody else may be attaching the same task just now.
                    new = isinstance(event, ev.TaskCreated) and event.attached
                    record = await self._owning.save(call, record, point, new=new, heeded=heeded)
                elif any(isinstance(action, act.Forget) for action in actions):
                    await self._forget(call, point)
            except DrivenElsewhereError:
                call.ownership, call.next_send = Theirs(), None  # it was to be sent as things stood before
                if isinstance(event, ev.TaskCreated) and event.attached:
                    call.uncommitted, call.journaled = (), True  # the other client's record stands
                elif isinstance(event, REPLIES):
                    # Until the other client has gone on with the call.
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
            before = call.record
            _note(call, record, event, actions)
            if saves:
                log_commit(before, record, event)
        return _to_do(actions)

    async def _forget(self, call: LiveCall, point: observer.Point) -> None:
        if call.journaled:
            await self._observed(call, point, self._journal.remove, call.record)
            call.journaled = False

    async def _find_first(
        self, call: LiveCall, event: ev.AnswerReady
    ) -> tuple[ev.AnswerReady | ev.CancelRequested, Instruction]:
        """The step that counts, and its instruction: this answer, or the instruction that came first."""
        asked = asked_under(call.record, event.key)
        assert asked is not None, "an answer to nothing is no step"
        left = answer_instruction(call.record.record_id, asked, event.answer, event.now)
        if event.by_instruction:
            return event, as_heeded(left)
        names = [one.name for one in await self._journal.instructions(call.record.record_id)]
        if CANCEL in names and left.name not in names[: names.index(CANCEL)]:
            return ev.CancelRequested(now=event.now, by_instruction=True), Instruction(CANCEL, "", event.now)
        standing = await self.instruct(call, left) or left
        if not (standing.heeded or standing.body == left.body):  # heeded by another client, the commit fails
            event = replace(event, answer=json.loads(standing.body))
        return event, as_heeded(standing)

    def _note_uncommitted(self, call: LiveCall, event: ev.Event) -> None:
        if not any(kept is event for kept in call.uncommitted):
            if isinstance(event, ev.AnswerReady):
                event = replace(event, held=True)  # the client that commits it later resumes the call then
            call.uncommitted = (*call.uncommitted, event)
        self._registry.note_unsaved(call)

    # ── the request to send ────────────────────────────────────────────────────────────────────

    @staticmethod
    def take_send(call: LiveCall) -> act.SendCall:
        """The ``tools/call`` that is to be sent, which is to be sent no longer."""
        send, call.next_send = call.next_send, None
        assert send is not None, "a call that is not sent is not driven"
        return send

    @staticmethod
    def put_back(call: LiveCall, send: act.SendCall) -> None:
        """Have a ``tools/call`` sent after all that has not left: for the next caller, or after a fault."""
        call.next_send = send

    @staticmethod
    def drop_send(call: LiveCall) -> None:
        """Have no ``tools/call`` sent: its caller has gone."""
        call.next_send = None

    @staticmethod
    def give_arguments(call: LiveCall, tool_call: ToolCall) -> None:
        """Note with which arguments a call can be sent, unless they are known here."""
        if call.tool_call is None:
            call.tool_call = tool_call

    # ── instructions ──────────────────────────────────────────────────────────────────────────

    async def instruct(self, call: LiveCall, instruction: Instruction) -> Instruction | None:
        """Leave an instruction for the driver of a call; see :meth:`Journal.instruct`."""
        return await self._observed(
            call, observer.INSTRUCT, self._journal.instruct, call.record.record_id, instruction
        )

    async def leave_answer(self, record: TaskRecord | None, name: str, answer: JSONObject) -> None:
        """Leave an answer for the driver of a call.

        Raises:
            TasksClientError: As from :func:`mcp_tasks_client.questions.question.leave_answer`.
        """
        now = self._clock.time()
        await self._observed(None, observer.INSTRUCT, leave_answer, self._journal, record, name, answer, now)

    async def read_instructions(self, call: LiveCall) -> Sequence[Instruction]:
        """The instructions that the journal has for the driver of a call, oldest first.

        One that a step of this client is just heeding is not among them.

        Raises:
            JournalError: The journal could not be read.
        """
        call.notice_instructions()
        async with Turn(call):
            return await self._journal.instructions(call.record.record_id)

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
                call.record = await self._owning.save(call, call.record, observer.INSTRUCT, heeded=heeded)


def _is_late(call: LiveCall, event: ev.Event) -> bool:
    """Whether an event is the reply to a ``tools/call`` that has no caller left."""
    return isinstance(event, REPLIES) and not isinstance(call.record.state, Calling | OutcomeUnknown)


def _note(call: LiveCall, record: TaskRecord, event: ev.Event, actions: tuple[act.Action, ...]) -> None:
    """Note the outcome of a step: the record, and the request that is to be sent."""
    call.record = record
    for action in actions:
        if isinstance(action, act.SendCall):
            call.next_send = action
    if isinstance(event, ev.TaskCreated):
        call.tool_call = None  # it is not sent again, and its arguments may be large
    elif isinstance(event, ev.Resumed):
        call.due_is_exact = True


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
