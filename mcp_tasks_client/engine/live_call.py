"""One call as it lives in this process: its entry, its audience, and its driving.

Three owners write a call, each its own part:

- the store writes the *entry*, which is :class:`LiveCall` itself: the record, its owner, and the request that
  is to be sent;
- the callers that wait, and the handles, write its :class:`Audience`;
- the coroutine that drives the call writes its :class:`Drive`, and with each driving there is a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import anyio

from ..errors import CallForgottenError, JournalError, TasksClientError
from ..machine.actions import Ask, SendCall
from ..machine.events import Event, TaskCreated
from ..machine.record import TaskRecord
from ..machine.states import Observing, questions_of
from ..protocol import JSONObject
from ..protocol.task import Task
from ..protocol.text import name_tool
from ..questions.context import CallContext
from ..sessions.base import BeforeSend, TaskRef, ToolCall
from .audience import Audience
from .call_log import log_park
from .drive import Drive, OpenPrompts
from .tool_call import ToolCallAttempt

__all__ = [
    "LiveCall",
    "Nobody",
    "Ours",
    "OvertakenError",
    "Ownership",
    "Theirs",
    "Turn",
    "check_forgotten",
    "forgotten",
    "overtaken",
    "unwritable",
]


@dataclass(frozen=True, slots=True)
class Ours:
    """The journal has our client as the owner.

    Attributes:
        fence: The fencing token.
        tenure: The tenure of our lease in which the journal said so last; see :class:`ProcessLease`.
    """

    fence: int
    tenure: int


@dataclass(frozen=True, slots=True)
class Theirs:
    """Another client is the owner, and not gone."""


@dataclass(frozen=True, slots=True)
class Nobody:
    """No client is the owner, as far as we know.

    Attributes:
        ours_until: The fence under which the record was ours last; ``None`` if it never was.
    """

    ours_until: int | None


Ownership: TypeAlias = Ours | Theirs | Nobody


class LiveCall:
    """One call, from the moment at which it is made or taken up.

    Attributes:
        record: All that is known of the call, journaled as far as it has to be.
        ownership: Whether the record is ours to write, another client's, or no client's.
        journaled: Whether the journal has the record, as far as is known here.
        due_is_exact: Whether the record's due time counts every poll that was sent. False after a crash of
            the owner, since unchanged polls are not journaled.
        instructed: Whether the journal has instructions for the driver, as far as is known here.
        uncommitted: Events that are not in the journal: those whose commit failed, and the creation of a task
            that begins here. The driver applies them first of all, and the store once more when it closes.
        committing: Held while a step is committed; ``None`` while nothing is.
        tool_call: The tool and its arguments, while they may be sent; ``None`` for a task that was resumed or
            attached.
        next_send: The ``tools/call`` to send next; ``None`` if there is none to send. It outlives a driving:
            one that was taken back before it left goes out for the next caller.
        audience: The callers that wait, and the handles.
        drive: The driving of the call, which stays once it has parked, for its error; else ``None`` while the
            call is not driven.
    """

    __slots__ = (
        "__weakref__",
        "audience",
        "committing",
        "drive",
        "due_is_exact",
        "instructed",
        "journaled",
        "next_send",
        "ownership",
        "record",
        "tool_call",
        "uncommitted",
    )

    def __init__(
        self,
        record: TaskRecord,
        ownership: Ownership,
        *,
        tool_call: ToolCall | None = None,
        next_send: SendCall | None = None,
        uncommitted: tuple[Event, ...] = (),
    ) -> None:
        self.record = record
        self.ownership: Ownership = ownership
        self.journaled = not isinstance(ownership, Ours)
        self.due_is_exact = isinstance(ownership, Ours)
        self.instructed = False
        self.uncommitted = uncommitted
        self.committing: anyio.Lock | None = None
        self.tool_call = tool_call
        self.next_send = next_send
        self.audience = Audience()
        self.drive: Drive | None = None

    # ── the journal's view ────────────────────────────────────────────────────────────────────

    @property
    def task(self) -> Task | None:
        """The latest snapshot; also that of a creation that could not be journaled."""
        created = [event.task for event in self.uncommitted if isinstance(event, TaskCreated)]
        return created[-1] if created else self.record.task

    @property
    def task_id(self) -> str | None:
        """The ID of the task."""
        if self.uncommitted:
            return None if self.task is None else self.task.task_id
        return self.record.task_id

    @property
    def ours(self) -> bool:
        """True if the journal has us as the owner."""
        return isinstance(self.ownership, Ours)

    def is_open(self, key: str, refusals: int | None = None) -> bool:
        """True if a question has no answer yet, and the server still waits for one.

        ``refusals`` is how many answers were refused when it was asked; ``None`` leaves that open.
        """
        state = self.record.state
        if isinstance(state, Observing) and key not in state.outstanding:
            return False
        return any(
            q.key == key and q.unanswered and refusals in (None, q.refusals) for q in questions_of(state)
        )

    def answer_to(self, key: str) -> JSONObject | None:
        """The answer that a question has, sent or not; ``None`` if it has none."""
        questions = questions_of(self.record.state)
        return next((q.answer or {} for q in questions if q.key == key and not q.unanswered), None)

    # ── who needs it ──────────────────────────────────────────────────────────────────────────

    @property
    def context(self) -> CallContext | None:
        """The context of the newest caller that waits, or else of the one that made the call."""
        context = self.audience.context
        return self.tool_call.context if context is None and self.tool_call is not None else context

    def make_ref(self, before_send: BeforeSend | None = None) -> TaskRef:
        """The task as the session needs it for a request."""
        state = self.record.state
        assert isinstance(state, Observing), "tasks/* is sent for tasks that are being observed"
        return TaskRef(state.task.task_id, state.session_data, self.context, before_send)

    @property
    def error(self) -> Exception | None:
        """Why the call is parked; ``None`` while it is driven, and once it is finished."""
        return None if self.drive is None else self.drive.error

    @property
    def over(self) -> bool:
        """True if the call is finished, or parked with an error: no caller has anything to wait for."""
        return self.record.finished or self.error is not None

    @property
    def drivable(self) -> bool:
        """True if the call can be driven. A parked one is driven anew once a caller was told why."""
        return not self.record.finished and (self.error is None or self.audience.told)

    @property
    def is_driven(self) -> bool:
        """True while a coroutine drives the call, or is about to."""
        return self.drive is not None and (self.drive.error is None or self.drive.scope is not None)

    @property
    def attempt(self) -> ToolCallAttempt | None:
        """The ``tools/call`` that is under way; ``None`` if there is none."""
        return None if self.drive is None else self.drive.attempt

    @property
    def wanted(self) -> bool:
        """True if a caller waits for the call, or the client drives it for its handles."""
        return self.audience.waiters > 0 or self.audience.in_background

    @property
    def looked_after(self) -> bool:
        """True if the outcome reaches the host by itself: a caller waits, or has a handle that gets it."""
        audience = self.audience
        in_hand = audience.has_handle and (audience.in_background or self.record.finished)
        return audience.waiters > 0 or in_hand

    @property
    def prompts(self) -> Mapping[str, anyio.CancelScope]:
        """The questions of the call that are before the host: the scope of each callback, by the key."""
        return {} if self.drive is None or self.drive.open_prompts is None else self.drive.open_prompts.by_key

    @property
    def awaits_person(self) -> bool:
        """True if a question of the call waits for an answer, and the host's own code is not asked for it."""
        if self.drive is not None and (self.drive.asks or self.drive.open_prompts is not None):
            return False
        return any(self.is_open(asked.key) for asked in questions_of(self.record.state))

    # ── telling the driver and the callers ────────────────────────────────────────────────────

    def park(self, error: Exception) -> None:
        """Stop driving, for a reason that every waiting caller has to hear. The task lives on."""
        log_park(self.record, error)
        if self.drive is None:
            self.drive = Drive()
        self.drive.park(error)
        self.audience.told = False
        self.audience.publish()

    def excuse(self) -> None:
        """Have the next caller drive the call anew, though it is parked."""
        self.audience.told = True

    def announce_instructions(self) -> None:
        """Have the driver read the instructions that the journal has for it."""
        self.instructed = True
        self.ring()

    def notice_instructions(self) -> bool:
        """Take note of the instructions that the journal has. Returns whether any were known here."""
        was_instructed, self.instructed = self.instructed, False
        return was_instructed

    def ring(self) -> None:
        """Have the coroutine that drives the call look up from its waiting."""
        if self.drive is not None:
            self.drive.ring()

    def set_due(self, at: float) -> None:
        """Make the next poll due, by the monotonic clock. A call that is not driven has no next poll."""
        if self.drive is not None:
            self.drive.set_due(at)

    def put_aside(self, ask: Ask) -> None:
        """Have the driver put a question to the host. A call that is resumed asks anew."""
        if self.drive is not None:
            self.drive.asks = (*self.drive.asks, ask)
            self.drive.ring()

    def stop_asking(self) -> None:
        """Withdraw the questions that are before the host, and those that wait for their turn."""
        if self.drive is not None:
            self.drive.stop_asking()

    def withdraw(self, key: str) -> None:
        """Withdraw one question that is before the host: it was answered elsewhere."""
        if self.drive is not None and self.drive.open_prompts is not None:
            self.drive.open_prompts.withdraw(key)

    def begin_asking(self, prompts: OpenPrompts, key: str, prompt: anyio.CancelScope) -> None:
        """Note that a question is before the host."""
        prompts.by_key[key] = prompt
        self._adjust_limits()

    def end_asking(self, prompts: OpenPrompts, key: str, prompt: anyio.CancelScope) -> None:
        """Note that a question is before the host no longer."""
        if prompts.by_key.get(key) is prompt:  # else it was put anew
            del prompts.by_key[key]
        self._adjust_limits()

    def _adjust_limits(self) -> None:
        for limit in self.audience.limits:
            limit.adjust()

    def __repr__(self) -> str:
        return f"LiveCall({self.record!r})"


class Turn:
    """The turn of one step of a call, in the order of arrival. Nearly always no other step is there."""

    def __init__(self, call: LiveCall) -> None:
        self._call = call
        call.committing = self._lock = call.committing or anyio.Lock(fast_acquire=True)

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *raised: object) -> None:
        self._lock.release()
        if not self._lock.locked():  # else it has been handed to the next step
            self._call.committing = None


class OvertakenError(TasksClientError):
    """The call was not made. Repeated, it begins, or joins the one that stands under its key now."""


def overtaken(call: LiveCall) -> OvertakenError:
    """The error of a call that is not made after all."""
    return OvertakenError(
        f"This call of {call.record.tool!r} was not made: it was refused, or taken back before it was sent. "
        "Repeat it, to begin it anew or to join the one that has begun under its key."
    )


def forgotten(call: LiveCall) -> CallForgottenError:
    """The error of a call that the journal had, and has no more."""
    return CallForgottenError(
        f"The journal has forgotten the call of {name_tool(call.record.tool)}: another client brought it to "
        "its end, or the journal was set back (by a failover, or from a backup). If the server still knows "
        "the task, attach its ID."
    )


def check_forgotten(record: TaskRecord) -> None:
    """Accept that a journal does not show a record whose outcome was not delivered, as far as is known here.

    Without an idempotency key, the delivery has forgotten it.

    Raises:
        JournalError: It has a key, with which it would be kept.
    """
    if record.idempotency_key is not None:
        raise JournalError(
            f"The journal does not show the call of {name_tool(record.tool)}: it was removed, or pruned "
            "after its delivery, or the user of the database may not see it. Nothing was noted."
        )


def unwritable(record: TaskRecord) -> JournalError:
    """The error for a record that a journal shows, and does not let be written."""
    return JournalError(
        f"The journal shows the call of {name_tool(record.tool)}, and takes nothing that is noted of it: see "
        "what the user of the database may write. Nothing was noted."
    )
