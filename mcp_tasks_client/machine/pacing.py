"""When the next request for a task may go: the policy, applied to the state of an observed task.

``due_at`` is for polls, ``quiet_until`` for every request: while a ``Retry-After`` runs, nothing is sent.
Both remember the length of the wait that they end, so that a clock that is set back never makes a wait
longer than it was.
"""

from __future__ import annotations

from typing import Final

from ..policy import PollPolicy, backoff_delay, early_look, poll_delay
from .replacing import replace
from .states import Observing

__all__ = [
    "due_after_cancel",
    "due_after_cut",
    "due_after_failure",
    "due_after_poll",
    "due_after_reply",
    "due_after_restart",
    "due_no_sooner",
    "quiet_left",
]

_OF_OLD_TASKS_S: Final = 1.0
"""Seconds between polls of a task of unknown age that came without a hint, at least."""

_AFTER_CANCEL_S: Final = 5.0
"""Seconds after an answer to a cancellation within which the task is looked at."""

_BEFORE_EXPIRY_S: Final = 60.0
"""Seconds to which the end of a time-to-live may shorten a wait, at least: shorter hints are obeyed."""


def due_after_poll(state: Observing, now: float, jitter: float, policy: PollPolicy) -> Observing:
    """A poll is about to be sent. The next is due a whole interval later, should the reply never be seen."""
    wait_s = poll_delay(state.poll_interval_ms, state.unchanged, policy, jitter)
    return replace(state, quiet_s=0.0, due_at=now + wait_s, wait_s=wait_s)


def due_after_cut(state: Observing, now: float, policy: PollPolicy) -> Observing:
    """A poll was cut off. The server may see it only now, so the interval begins now."""
    return _due(state, now, max(_interval(state, policy), quiet_left(state, now)))


def due_after_reply(
    state: Observing, now: float, jitter: float, policy: PollPolicy, *, saved: bool, first: bool = False
) -> Observing:
    """A snapshot arrived. The next poll is due at the server's pace, or at an early look.

    If the step is not ``saved``, the next poll waits at least until the due time that was set at the last
    ``Tick``, since another process may read that time from the journal. ``first`` is for the snapshot of the
    creation.
    """
    look = early_look(state.poll_interval_ms, state.looks, policy)
    if look is not None:
        state = replace(state, looks=state.looks + 1)
    wait = look or poll_delay(state.poll_interval_ms, state.unchanged, policy, jitter, first=first)
    if state.failure is not None:
        # Polls get through, but an answer does not. The answer goes with the polls, and has to back off.
        wait = max(wait, backoff_delay(state.poll_interval_ms, state.failure.count, None, policy, jitter))
    planned = _left(state.due_at, state.wait_s, now) if look is None and not saved else 0.0
    wait = _until_expiry(state, now, max(wait, planned), policy)
    return _due(state, now, max(wait, quiet_left(state, now)))


def due_after_failure(
    state: Observing, now: float, jitter: float, retry_after_s: float | None, policy: PollPolicy
) -> Observing:
    """A request failed, as the state says: back off, obey ``Retry-After``, and take no more early looks."""
    assert state.failure is not None
    wait = backoff_delay(state.poll_interval_ms, state.failure.count, retry_after_s, policy, jitter)
    state = replace(state, looks=policy.early_looks)
    if retry_after_s is not None:
        # Two of them may run at once; the longer one counts.
        wait = max(wait, quiet_left(state, now))
        state = replace(state, quiet_until=now + wait, quiet_s=wait)
    return _due(state, now, max(wait, quiet_left(state, now)))


def due_after_cancel(state: Observing, now: float) -> Observing:
    """The server has answered the cancellation. The task is looked at within 5 s, or sooner if it is due."""
    wait = max(min(_left(state.due_at, state.wait_s, now), _AFTER_CANCEL_S), quiet_left(state, now))
    return _due(state, now, wait)


def due_after_restart(
    state: Observing, now: float, jitter: float, policy: PollPolicy, *, exact: bool
) -> Observing:
    """A call is taken up again. The due time that was set before counts.

    The jitter spreads the polls of many tasks that are all past due. ``exact`` is false after a crash:
    unchanged polls are not journaled, so the last one may have been just now, and a due time that has passed
    says nothing.
    """
    silence = quiet_left(state, now)
    # Anchored anew, or a clock that was set back would begin it again at every restart.
    state = replace(state, quiet_until=now + silence, quiet_s=silence)
    wait = _left(state.due_at, state.wait_s, now)
    if wait <= 0 and exact:
        wait = policy.jitter * jitter * min(_interval(state, policy), 1.0)
    elif wait <= 0:
        wait = _interval(state, policy) * (1 + policy.jitter * jitter)
    wait = max(wait, silence)
    # How many early looks a crash has cost is not known, and the first interval is over or nearly so.
    return _due(replace(state, failure=None, looks=policy.early_looks), now, wait)


def due_no_sooner(state: Observing, other: Observing, now: float) -> Observing:
    """``state``, due no sooner than ``other``."""
    return _due(state, now, max(state.wait_s, _left(other.due_at, other.wait_s, now)))


def quiet_left(state: Observing, now: float) -> float:
    """Seconds for which nothing may be sent; 0 if it may."""
    return _left(state.quiet_until, state.quiet_s, now)


def _until_expiry(state: Observing, now: float, wait_s: float, policy: PollPolicy) -> float:
    """``wait_s``, cut to the end of the task's time-to-live: a task that may be gone is looked at."""
    if state.ttl_ms is None:
        return wait_s
    left = state.received_at + state.ttl_ms / 1000 + policy.ttl_grace_s - now
    return min(wait_s, max(left, _BEFORE_EXPIRY_S)) if left > 0 else wait_s


def _interval(state: Observing, policy: PollPolicy) -> float:
    """Seconds between polls of a task whose age is not known.

    Without a hint it is a second at least: the short waits of the policy are for new tasks.
    """
    interval = poll_delay(state.poll_interval_ms, 0, policy, 0.0)
    return interval if state.poll_interval_ms else max(interval, _OF_OLD_TASKS_S)


def _left(until: float, wait_s: float, now: float) -> float:
    return max(0.0, min(until - now, wait_s))


def _due(state: Observing, now: float, wait_s: float) -> Observing:
    return replace(state, due_at=now + wait_s, wait_s=wait_s)
