"""One call as it lives in this process: its record, who owns it, who waits for it, what it does next."""

from __future__ import annotations

import math
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import anyio

from ..aio.clock import Clock
from ..aio.signal import Signal, make_signal
from ..errors import CallForgottenError, JournalError, TasksClientError
from ..machine.actions import Ask, SendCall
from ..machine.events import Event, TaskCreated
from ..machine.record import TaskRecord
from ..machine.states import Observing, questions_of
from ..protocol import JSONObject
from ..protocol.task import Task
from ..protocol.text import name_tool
from ..sessions.base import TaskRef, ToolCall
from .call_log import log_park
from .tool_call import ToolCallAttempt

__all__ = [
    "InHand",
    "LiveCall",
    "Nobody",
    "OnUpdate",
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


class InHand:
    """An empty object that every handle of a call refers to.

    The call refers to it weakly: it lives exactly as long as one of the handles.
    """

    __slots__ = ("__weakref__",)


class Limit(Protocol):
    """A limit of time of somebody who waits for a call."""

    def adjust(self) -> None:
        """Have the time count while no question of the call is before the host."""


T = TypeVar("T")

OnUpdate: TypeAlias = Callable[[Task], Awaitable[None] | None]

Ownership: TypeAlias = Ours | Theirs | Nobody


class LiveCall:
    """One call, from the moment at which it is made or taken up.

    Attributes:
        record: All that is known of the call, journaled as far as it has to be.
        tool_call: The tool and its arguments; ``None`` for a task that was resumed or attached.
        ownership: Whether the record is ours to write, another client's, or nobody's.
        journaled: Whether the journal has the record, as far as is known here.
        due_is_exact: Whether the record's due time counts every poll that was sent. False after a crash of
            the owner, since unchanged polls are not journaled.
        next_send: The ``tools/call`` to send next; ``None`` if there is none to send.
        attempt: The ``tools/call`` that is under way; ``None`` if there is none.
        asked: The questions that are before the host: the scope of each callback, by the key.
        limits: Told whenever that changes.
        asks: Questions that the machine wants asked, and that are not before the host yet.
        uncommitted: Events that are not in the journal: those whose commit failed, and the creation of a task
            that begins here. The driver applies them first of all, and the store once more when it closes.
        due: When the next poll is due, by the monotonic clock.
        error: Why the call is parked; ``None`` while it is driven, and once it is finished.
        listeners: Told of each changed snapshot, where its step is taken.
        error_told: Whether anybody has been told of the error. The next waiter starts the call anew then.
        instructed: Whether the journal has instructions for the driver, as far as is known here.
        followed: True if another client has owned the call since ``tools/call`` was last sent here.
        refreshing: How many callers wait for the next poll.
        polls: How many polls have ended, with a snapshot or a failure. A look at a record that another
            client drives counts as well.
        waiters: How many callers wait for the call.
        prompts: The scopes of the tasks that ask; ``None`` while nothing puts questions to the host.
        in_background: Whether the client drives it for handles that it gave out, though nobody waits.
        committing: Held while a step is committed; ``None`` while nothing is.
        driver: The scope of the coroutine that drives the call; ``None`` while there is none.
    """

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_changed",
        "_contexts",
        "_in_hand",
        "asked",
        "asks",
        "attempt",
        "committing",
        "driver",
        "due",
        "due_is_exact",
        "error",
        "error_told",
        "followed",
        "in_background",
        "instructed",
        "journaled",
        "limits",
        "listeners",
        "next_send",
        "ownership",
        "poll_failed",
        "polls",
        "prompts",
        "record",
        "refreshing",
        "tool_call",
        "uncommitted",
        "waiters",
    )

    def __init__(self, record: TaskRecord, ownership: Ownership, tool_call: ToolCall | None = None) -> None:
        self.record = record
        self.tool_call = tool_call
        self._contexts: tuple[object, ...] = ()
        self._in_hand: weakref.ref[InHand] | None = None
        self.ownership: Ownership = ownership
        self.journaled = not isinstance(ownership, Ours)
        self.due_is_exact = isinstance(ownership, Ours)
        self.next_send: SendCall | None = None
        self.attempt: ToolCallAttempt | None = None
        self.asks: tuple[Ask, ...] = ()
        self.asked: dict[str, anyio.CancelScope] | None = None
        self.limits: set[Limit] = set()
        self.prompts: set[anyio.CancelScope] | None = None
        self.uncommitted: tuple[Event, ...] = ()
        self.due = math.inf
        self.error: Exception | None = None
        self.error_told = False
        self.instructed = False
        self.followed = False
        self.polls = 0
        self.poll_failed: Exception | None = None
        self.refreshing = 0
        self.listeners: tuple[OnUpdate, ...] = ()
        self.waiters = 0
        self.in_background = False
        self.driver: anyio.CancelScope | None = None
        self._alarm: Signal | None = None
        self._changed: Signal | None = None
        self.committing: anyio.Lock | None = None

    # ── what is known ─────────────────────────────────────────────────────────────────────────

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
    def context(self) -> object:
        """The context of the newest caller that waits, or else of the one that made the call. Opaque here."""
        if self._contexts:
            return self._contexts[-1]
        return None if self.tool_call is None else self.tool_call.context

    @property
    def ref(self) -> TaskRef:
        """The task as the session needs it for a request."""
        state = self.record.state
        assert isinstance(state, Observing), "tasks/* is sent for tasks that are being observed"
        return TaskRef(state.task.task_id, state.session_data, self.context)

    @property
    def ours(self) -> bool:
        """Whether the journal has us as the owner."""
        return isinstance(self.ownership, Ours)

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for: the call is finished, or parked with an error."""
        return self.record.finished or self.error is not None

    @property
    def wanted(self) -> bool:
        """Whether anybody waits for the call, or the client drives it for its handles."""
        return self.waiters > 0 or self.in_background

    @property
    def looked_after(self) -> bool:
        """Whether the outcome reaches the host by itself: somebody waits, or has a handle that gets it."""
        in_hand = self._in_hand is not None and self._in_hand() is not None
        return self.waiters > 0 or (in_hand and (self.in_background or self.record.finished))

    @property
    def awaits_person(self) -> bool:
        """True if a question of the call waits for an answer, and the host's own code is not asked for it."""
        if self.asks or self.prompts is not None:
            return False
        return any(self.is_open(asked.key) for asked in questions_of(self.record.state))

    def is_open(self, key: str, refusals: int | None = None) -> bool:
        """Whether a question has no answer yet, and the server still waits for one.

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

    # ── what changes ──────────────────────────────────────────────────────────────────────────

    def take_in_hand(self) -> InHand:
        """The object that one more handle of the call has to hold on to."""
        in_hand = None if self._in_hand is None else self._in_hand()
        if in_hand is None:
            in_hand = InHand()
            self._in_hand = weakref.ref(in_hand)
        return in_hand

    def add_waiter(self, listeners: Sequence[OnUpdate] = (), context: object = None) -> None:
        """Count one more caller that waits for the call.

        Args:
            listeners: Told of each changed snapshot, until :meth:`remove_waiter`.
            context: Of the caller; ``None`` if it has none. The newest waiter's is used.
        """
        self.waiters += 1
        self.listeners = (*self.listeners, *listeners)
        if context is not None:
            self._contexts = (*self._contexts, context)

    def remove_waiter(self, listeners: Sequence[OnUpdate] = (), context: object = None) -> None:
        """Count one caller less. Takes what :meth:`add_waiter` was given."""
        self.waiters -= 1
        # Each once, since two waiters may have given the same.
        self.listeners = _without(self.listeners, listeners)
        if context is not None:
            self._contexts = _without(self._contexts, (context,))

    def publish(self) -> None:
        """Wake everybody who waits for a change."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def change(self) -> Awaitable[object]:
        """Wait for the next change."""
        if self._changed is None:
            self._changed = make_signal()
        return self._changed.wait()

    def count_poll(self, failed: Exception | None = None) -> None:
        """Count a poll that has ended, or failed with this error.

        Only the callers that wait for just that are woken.
        """
        self.polls += 1
        self.poll_failed = failed
        if self.refreshing:
            self.publish()

    def park(self, error: Exception) -> None:
        """Stop driving, for a reason that every waiting caller has to hear. The task lives on."""
        log_park(self.record, error)
        self.error, self.error_told = error, False
        self.stop_asking()
        self.ring()
        self.publish()

    def begin_asking(self, key: str, prompt: anyio.CancelScope) -> None:
        """Note that a question is before the host."""
        self.asked = {**(self.asked or {}), key: prompt}
        for limit in self.limits:
            limit.adjust()

    def end_asking(self, prompt: anyio.CancelScope) -> None:
        """Note that a question is before the host no longer."""
        self.asked = {key: other for key, other in (self.asked or {}).items() if other is not prompt} or None
        for limit in self.limits:
            limit.adjust()

    def stop_asking(self) -> None:
        """Withdraw the questions that are before the host, and those that wait for their turn."""
        self.asks = ()
        for prompt in self.prompts or ():
            prompt.cancel()

    def withdraw(self, key: str) -> None:
        """Withdraw one question that is before the host: it was answered elsewhere."""
        if self.asked and key in self.asked:
            self.asked[key].cancel()

    # ── when it goes on ───────────────────────────────────────────────────────────────────────

    def set_due(self, at: float) -> None:
        """Make the next poll due, by the monotonic clock."""
        sooner = at < self.due
        self.due = at
        if sooner:
            self.ring()

    def ring(self) -> None:
        """Have the coroutine that drives the call look up from its waiting."""
        if self._alarm is not None:
            self._alarm.set()

    def instruct(self) -> None:
        """Have the driver read the instructions that the journal has for it."""
        self.instructed = True
        self.ring()

    async def wait_until_due(self, clock: Clock) -> bool:
        """Wait until the next poll is due, or something else needs the driver. Returns whether it is due."""
        if self.instructed:
            return False
        left_s = self.due - clock.monotonic()
        if left_s <= 0:
            return True
        await self.wait_for_ring(clock, left_s if left_s < math.inf else None)
        return self.due <= clock.monotonic()

    async def wait_for_ring(self, clock: Clock, timeout_s: float | None) -> None:
        """Wait until somebody rings, or the seconds have passed. With instructions there is no wait."""
        if not self.instructed:
            self._alarm = make_signal()
            await clock.wait(self._alarm, timeout_s)
            self._alarm = None

    def __repr__(self) -> str:
        return f"LiveCall({self.record!r})"


class Turn:
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


def _without(present: tuple[T, ...], leaving: Sequence[T]) -> tuple[T, ...]:
    left = list(present)
    for one in leaving:
        left.remove(one)
    return tuple(left)


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
