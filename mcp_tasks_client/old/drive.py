"""One call as it is being driven: what is known of it, who waits for it, what is under way for it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import anyio.lowlevel

from .errors import DrivenElsewhereError, JournalError, TasksClientError
from .events import CallRefused, Event, SendCall, TaskCreated
from .journal.base import TaskRecord
from .prompts import Prompts
from .sessions.base import ToolCall
from .signals import Signal, signal
from .states import Gathering, Observing
from .wire import Task

NEVER: Final = -math.inf
"""By the monotonic clock. One object, where thousands of drives have it."""


class CallUnderWay:
    """A ``tools/call``, from the decision to send it until its reply is journaled.

    What its caller's going away may cut short is only the waiting, and only after a grace; before
    it has left there is nothing to wait for.

    Attributes:
        begin: Begins it at once, though it is not its turn; ``None`` once it has begun.
    """

    __slots__ = ("begin", "has_left", "scope")

    def __init__(self) -> None:
        self.begin: Callable[[], None] | None = None
        self.has_left = False
        self.scope = anyio.CancelScope(shield=True)

    async def leaving(self) -> None:
        """Note that from here on the tool may run. A call that was cut goes no further than this."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        self.has_left = True

    def cut(self, grace_s: float) -> None:
        """Its callers are gone."""
        if self.has_left:
            self.scope.deadline = anyio.current_time() + grace_s
        else:
            self.scope.cancel()
            if self.begin is not None:
                self.begin()  # to be taken back

    def keep(self) -> None:
        """Somebody waits for it again."""
        self.scope.deadline = math.inf


class Lock:
    """One at a time, in the order in which they come: what was seen first is not to undo what was seen later.

    Hardly ever two come at once. It holds nothing until somebody has to wait.
    """

    __slots__ = ("_waiting", "locked")

    def __init__(self) -> None:
        self.locked = False
        self._waiting: deque[anyio.Event] | None = None

    async def __aenter__(self) -> None:
        if not self.locked:
            self.locked = True
            return
        turn = anyio.Event()
        self._waiting = self._waiting or deque()
        self._waiting.append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._pass_on()
            else:
                self._waiting.remove(turn)
            raise

    async def __aexit__(self, *raised: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._waiting, self.locked = None, False


class Drive:
    """One call, from the moment it is made or taken up.

    Attributes:
        record: What is known, and journaled as far as it has to be.
        call: What ``tools/call`` was given; ``None`` for a task that was resumed or attached.
        error: Why the drive is parked; ``None`` while it runs and once it is over.
        held: Reasons to go on driving: callers that wait, and the client itself for its handles.
        running: Whether it is being driven. ``held`` may be more than 0 while it is parked.
        following: Whether another client drives it, and we look on.
        followed: Whether we did, since the call was last begun here.
        owned: Whether the journal has us as its owner, as far as we know.
        fence: The one under which it was ours last; ``None`` if it never was.
        inherited: Whether somebody else has had it since it was ours, if it ever was.
        journaled: Whether the journal has, or had, a record of it.
        exact: Whether its record says when it is due: it was let go of in good order, or never left us.
        pending: The ``tools/call`` to begin with, if it was not sent yet.
        calling: The ``tools/call`` that is under way.
        waited_s: Seconds of the wait for the next poll.
        polled_at: When the last one was sent, by the monotonic clock.
        expected: When the next one is due at the server's pace, by the same clock; infinite while that is
            not known.
        prompts: What is put to the host; ``None`` before there is anything.
        told: What the server has told by itself and nobody has looked at yet; ``None`` while nobody looks.
        heard: How often it has told something.
        abandoned: Whether its caller went away before that.
        unsaved: Events whose commit failed, to be fed again; under the lock ``saving``, by one at a time.
    """

    __slots__ = (
        "__weakref__",
        "_changed",
        "_saving",
        "abandoned",
        "call",
        "calling",
        "due",
        "error",
        "error_seen",
        "exact",
        "expected",
        "fence",
        "followed",
        "following",
        "heard",
        "held",
        "inherited",
        "journaled",
        "lock",
        "owned",
        "pending",
        "polled_at",
        "polling",
        "polls",
        "prompts",
        "record",
        "refreshing",
        "running",
        "scopes",
        "told",
        "unsaved",
        "version",
        "waited_s",
    )

    def __init__(self, record: TaskRecord, call: ToolCall | None = None, *, ours: bool = False) -> None:
        self.record = record
        self.call = call
        self.owned = ours
        self.fence = record.fence if ours else None
        self.inherited = self.journaled = not ours
        self.exact = ours
        self.following = self.followed = False
        self.error: Exception | None = None
        self.error_seen = False
        self.held = 0
        self.running = False
        self.due = 0.0
        self.waited_s = 0.0
        self.polled_at = NEVER
        self.told: list[Task] | None = None
        self.heard = 0
        self.expected = math.inf
        self.version = 0
        self.unsaved: list[Event] = []
        self.prompts: Prompts | None = None  # as most have none
        self.scopes: tuple[anyio.CancelScope, ...] = ()  # few, mostly none; an empty set takes 200 bytes
        self.pending: SendCall | None = None
        self.calling: CallUnderWay | None = None
        self.abandoned = False
        self.polling = False
        self.polls = 0
        self.refreshing = 0
        self.lock = Lock()
        self._saving: Lock | None = None
        self._changed: Signal | None = None

    @property
    def task(self) -> Task | None:
        """The latest snapshot; also of a creation that could not be journaled."""
        created = [event.task for event in self.unsaved if isinstance(event, TaskCreated)]
        return created[-1] if created else self.record.task

    @property
    def task_id(self) -> str | None:
        """The ID of that task."""
        # Without its snapshot, which after the end would have to be put together for it.
        if not self.unsaved:
            return self.record.task_id
        return None if self.task is None else self.task.task_id

    @property
    def saving(self) -> Lock:
        """Held by whoever feeds what is unsaved again."""
        if self._saving is None:
            self._saving = Lock()
        return self._saving

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for: it ended, or it is parked with an error."""
        return self.record.finished or self.error is not None

    @property
    def sending(self) -> bool:
        """Whether ``tools/call`` is under way here, is about to be, or has a reply not yet journaled."""
        return self.pending is not None or self.calling is not None or self.running or bool(self.unsaved)

    def forget_refusals(self) -> None:
        """What was said of an earlier attempt does not count for the next, or is said in another way."""
        for event in [event for event in self.unsaved if isinstance(event, CallRefused)]:
            self.unsaved.remove(event)

    def park(self, error: Exception) -> None:
        """Stop for a reason that whoever waits has to hear."""
        self.error, self.error_seen = error, False
        self.pulse()

    def pulse(self) -> None:
        """Wake everybody who waits for a change."""
        self.version += 1
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def polled(self) -> None:
        """Count a poll, and tell those who wait for just that. The others sleep on."""
        self.polls += 1
        if self.refreshing:
            self.pulse()

    def is_open(self, key: str) -> bool:
        """Whether a question has no answer yet, and the server still waits for one."""
        state = self.record.state
        questions = state.questions if isinstance(state, Observing | Gathering) else ()
        if isinstance(state, Observing) and key not in (state.task.input_requests or {}):
            return False
        return any(q.key == key and q.unanswered for q in questions)

    def stop_asking(self) -> None:
        """Withdraw the prompts that are up, and those that wait."""
        if self.prompts is not None:
            self.prompts.stop()

    def change(self) -> Awaitable[object]:
        """Wait for the next pulse."""
        if self._changed is None:
            self._changed = signal()
        return self._changed.wait()

    def __repr__(self) -> str:
        return f"Drive({self.record!r})"


class OvertakenError(TasksClientError):
    """A call that its key stood for was taken back. Repeated, it joins the one that stands now, or begins."""


def overtaken(drive: Drive) -> OvertakenError:
    """What to tell about a call that is not made after all."""
    return OvertakenError(
        f"This call of {drive.record.tool!r} was taken back before it was sent. Repeat it, to begin it anew "
        "or to join the one that has begun under its key."
    )


def forgotten(drive: Drive) -> JournalError:
    """What to tell about a call whose outcome others have had, and nobody has any more."""
    return JournalError(
        f"The journal has forgotten the call of {drive.record.tool!r}: another client brought it to its end, "
        "and it was pruned. If the server still knows the task, attach its ID."
    )


def driven_elsewhere(drive: Drive) -> DrivenElsewhereError:
    """What to tell whoever waits for a call that is another client's now."""
    return DrivenElsewhereError(
        f"Another client has taken over the call of {drive.record.tool!r}, so it is not driven here any "
        "more. Await the handle again for what becomes of it there."
    )
