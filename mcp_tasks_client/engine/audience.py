"""The audience of one call: the callers that wait for it, its handles, and the errors that they were told."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias, TypeVar

from ..aio.signal import Signal, make_signal
from ..protocol.task import Task
from ..questions.context import CallContext

__all__ = ["Audience", "InHand", "OnUpdate"]

T = TypeVar("T")

OnUpdate: TypeAlias = Callable[[Task], Awaitable[None] | None]


class InHand:
    """An empty object that every handle of a call refers to.

    The audience refers to it weakly: it lives exactly as long as one of the handles.
    """

    __slots__ = ("__weakref__",)


class Limit(Protocol):
    """A limit of time of a caller that waits for a call."""

    def adjust(self) -> None:
        """Have the time count while no question of the call is before the host."""


class Audience:
    """The callers and handles of one call.

    Attributes:
        waiters: How many callers wait for the call.
        listeners: Told of each changed snapshot, where its step is taken.
        limits: Told whenever a question comes before the host, or is before it no longer.
        in_background: Whether the client has the call driven for handles that it gave out, though no caller
            waits.
        told: True if a caller was told why the call is parked.
        polls: How many polls have ended, with a snapshot or a failure. A look at a record that another
            client drives counts as well.
        poll_failed: The error that the last of them failed with.
    """

    __slots__ = (
        "_changed",
        "_contexts",
        "_in_hand",
        "_refreshing",
        "in_background",
        "limits",
        "listeners",
        "poll_failed",
        "polls",
        "told",
        "waiters",
    )

    def __init__(self) -> None:
        self.waiters = 0
        self.listeners: tuple[OnUpdate, ...] = ()
        self.limits: tuple[Limit, ...] = ()
        self.in_background = False
        self.told = False
        self._refreshing = 0
        self.polls = 0
        self.poll_failed: Exception | None = None
        self._contexts: tuple[CallContext, ...] = ()
        self._in_hand: weakref.ref[InHand] | None = None
        self._changed: Signal | None = None

    # ── the callers that wait ─────────────────────────────────────────────────────────────────

    def add(self, listeners: Sequence[OnUpdate] = (), context: CallContext | None = None) -> None:
        """Count one more caller that waits for the call.

        Args:
            listeners: Told of each changed snapshot, until :meth:`remove`.
            context: Of the caller; ``None`` if it has none. The newest waiter's is used.
        """
        self.waiters += 1
        self.listeners = (*self.listeners, *listeners)
        if context is not None:
            self._contexts = (*self._contexts, context)

    def remove(self, listeners: Sequence[OnUpdate] = (), context: CallContext | None = None) -> None:
        """Count one caller less. Takes the arguments that :meth:`add` took."""
        self.waiters -= 1
        # Each once, since two waiters may have given the same.
        self.listeners = _without(self.listeners, listeners)
        if context is not None:
            self._contexts = _without(self._contexts, (context,))

    @property
    def context(self) -> CallContext | None:
        """The context of the newest caller that waits and has one; ``None`` if there is none."""
        return self._contexts[-1] if self._contexts else None

    def add_limit(self, limit: Limit) -> None:
        """Tell a limit of time, until :meth:`remove_limit`, when the host is asked."""
        self.limits = (*self.limits, limit)

    def remove_limit(self, limit: Limit) -> None:
        """Tell a limit of time no longer."""
        self.limits = _without(self.limits, (limit,))

    # ── handles ───────────────────────────────────────────────────────────────────────────────

    def take_in_hand(self) -> InHand:
        """The object that one more handle of the call has to hold on to."""
        in_hand = None if self._in_hand is None else self._in_hand()
        if in_hand is None:
            in_hand = InHand()
            self._in_hand = weakref.ref(in_hand)
        return in_hand

    @property
    def has_handle(self) -> bool:
        """True while a host holds a handle of the call."""
        return self._in_hand is not None and self._in_hand() is not None

    # ── telling the callers ───────────────────────────────────────────────────────────────────

    def publish(self) -> None:
        """Wake each caller that waits for a change."""
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
        if self._refreshing:
            self.publish()

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Count a caller that waits for the next poll, for the length of the block."""
        self._refreshing += 1
        try:
            yield
        finally:
            self._refreshing -= 1


def _without(present: tuple[T, ...], leaving: Sequence[T]) -> tuple[T, ...]:
    left = list(present)
    for one in leaving:
        left.remove(one)
    return tuple(left)
