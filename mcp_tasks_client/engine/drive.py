"""One driving of a call: the state that begins with it, and is gone with its end."""

from __future__ import annotations

import math

import anyio

from ..aio.clock import Clock
from ..aio.signal import Signal, make_signal
from ..machine.actions import Ask
from .tool_call import ToolCallAttempt

__all__ = ["Drive", "OpenPrompts"]


class OpenPrompts:
    """The questions of one call that are before the host, and those that wait for their turn.

    Attributes:
        by_key: The scope of each callback of the host, by the key of its question.
        scopes: The scopes of the tasks that ask.
    """

    __slots__ = ("by_key", "scopes")

    def __init__(self) -> None:
        self.by_key: dict[str, anyio.CancelScope] = {}
        self.scopes: set[anyio.CancelScope] = set()

    def withdraw(self, key: str) -> None:
        """Withdraw one question, if it is before the host."""
        if key in self.by_key:
            self.by_key[key].cancel()

    def stop(self) -> None:
        """Withdraw each question."""
        for scope in self.scopes:
            scope.cancel()


class Drive:
    """One driving of a call, from its beginning until the call ends, parks, or is wanted by no caller.

    Attributes:
        scope: Of the coroutine that drives; ``None`` before it runs, and after its end.
        error: Why the driving ended without an end of the call, which is parked then.
        attempt: The ``tools/call`` that is under way.
        asks: Questions that the machine wants asked, and that are not before the host yet.
        open_prompts: The questions before the host; ``None`` while there is none.
        due: When the next poll is due, by the monotonic clock.
        followed: True if another client has owned the call meanwhile, and ``tools/call`` has not left since.
    """

    __slots__ = ("_alarm", "asks", "attempt", "due", "error", "followed", "open_prompts", "scope")

    def __init__(self) -> None:
        self.scope: anyio.CancelScope | None = None
        self.error: Exception | None = None
        self.attempt: ToolCallAttempt | None = None
        self.asks: tuple[Ask, ...] = ()
        self.open_prompts: OpenPrompts | None = None
        self.due = math.inf
        self.followed = False
        self._alarm: Signal | None = None

    def park(self, error: Exception) -> None:
        """Come to an end for this reason. The task lives on."""
        self.error = error
        self.stop_asking()
        self.ring()

    def stop(self, grace_s: float) -> None:
        """Come to an end, since no caller waits: no poll, no prompt.

        A ``tools/call`` that is under way has so many seconds for its reply.
        """
        if self.attempt is not None:
            self.attempt.cut(grace_s)
        if self.scope is not None:
            self.scope.cancel()

    def stop_asking(self) -> None:
        """Withdraw the questions that are before the host, and those that wait for their turn."""
        self.asks = ()
        if self.open_prompts is not None:
            self.open_prompts.stop()

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

    async def wait_for_ring(self, clock: Clock, timeout_s: float | None) -> None:
        """Wait until :meth:`ring`, or until so many seconds have passed."""
        self._alarm = make_signal()
        await clock.wait(self._alarm, timeout_s)
        self._alarm = None

    async def wait_until_due(self, clock: Clock) -> bool:
        """Wait until the next poll is due, or :meth:`ring`. Returns whether it is due."""
        left_s = self.due - clock.monotonic()
        if left_s <= 0:
            return True
        await self.wait_for_ring(clock, left_s if left_s < math.inf else None)
        return self.due <= clock.monotonic()
