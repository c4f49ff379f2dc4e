"""When the next request for a task may go: the policy, applied to the task's state.

``due_at`` is for polls, ``quiet_until`` for everything: while a ``Retry-After`` runs, the server is
left alone, whichever request it answered. Both remember how long a wait they end, so that a clock that is set
back never makes a wait longer than it was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from .policy import PollPolicy, backoff_delay, early_look, poll_delay
from .states import Observing

_OF_OLD_TASKS_S: Final = 1.0


def after_poll(state: Observing, now: float, jitter: float, policy: PollPolicy) -> Observing:
    """A poll is about to be sent; its reply may never be seen, but the server will have seen it.

    The wait before it is over, and with it any silence, whatever the wall clock says.
    """
    wait_s = poll_delay(state.poll_interval_ms, state.unchanged, policy, jitter)
    return replace(state, quiet_s=0.0, due_at=now + wait_s, wait_s=wait_s)


def after_cut(state: Observing, now: float, policy: PollPolicy) -> Observing:
    """The reply to a poll is not waited for any more. The server may see it only now, and answer a hint."""
    return _due(state, now, max(_interval(state, policy), quiet(state, now)))


def after_reply(
    state: Observing, now: float, jitter: float, policy: PollPolicy, *, news: bool, first: bool = False
) -> Observing:
    """A snapshot arrived: the server's pace, or an early look, but no sound while it is to be quiet.

    Without ``news`` nothing is journaled, so the next poll comes no sooner than was planned when this
    one was sent: that plan may have been journaled, and another process would trust it.
    """
    look = early_look(state.poll_interval_ms, state.looks, policy)
    if look is not None:
        state = replace(state, looks=state.looks + 1)
    wait = look or poll_delay(state.poll_interval_ms, state.unchanged, policy, jitter, first=first)
    if state.failures:
        # Polls get through, but an answer does not; it goes with them, and has to back off.
        wait = max(wait, backoff_delay(state.poll_interval_ms, state.failures, None, policy, jitter))
    planned = _left(state.due_at, state.wait_s, now) if look is None and not news else 0.0
    return _due(state, now, max(wait, planned, quiet(state, now)))


def after_failure(
    state: Observing, now: float, jitter: float, retry_after_s: float | None, policy: PollPolicy
) -> Observing:
    """A request failed: back off, obey ``Retry-After``, and take no early looks any more."""
    failures = state.failures + 1
    wait = backoff_delay(state.poll_interval_ms, failures, retry_after_s, policy, jitter)
    state = replace(state, failures=failures, looks=policy.early_looks)
    if retry_after_s is not None:
        # Two of them may run at once; the longer one counts.
        wait = max(wait, quiet(state, now))
        state = replace(state, quiet_until=now + wait, quiet_s=wait)
    return _due(state, now, max(wait, quiet(state, now)))


def later(state: Observing, other: Observing, now: float) -> Observing:
    """Due no sooner than the other."""
    return _due(state, now, max(state.wait_s, _left(other.due_at, other.wait_s, now)))


def after_restart(
    state: Observing, now: float, jitter: float, policy: PollPolicy, *, exact: bool
) -> Observing:
    """The drive is taken up: what was set before counts.

    Args:
        state: As it was left.
        now: Local wall clock, seconds.
        jitter: Spreads the polls of many tasks that are all past due.
        policy: Gives the interval, and how far to spread.
        exact: False after a crash. Unchanged polls are not journaled, so the last one may have been
            just now, and a due time that has passed says nothing.
    """
    silence = quiet(state, now)
    # Anchored anew, or a clock that was set back would begin it again at every restart.
    state = replace(state, quiet_until=now + silence, quiet_s=silence)
    wait = _left(state.due_at, state.wait_s, now)
    if wait <= 0 and exact:
        wait = policy.jitter * jitter * min(_interval(state, policy), 1.0)
    elif wait <= 0:
        wait = _interval(state, policy) * (1 + policy.jitter * jitter)
    wait = max(wait, silence)
    # How many early looks a crash has cost is not known, and the first interval is over or nearly so.
    return _due(replace(state, failures=0, looks=policy.early_looks), now, wait)


def _interval(state: Observing, policy: PollPolicy) -> float:
    """Seconds between polls of a task of unknown age. Without a hint not those of a new one."""
    interval = poll_delay(state.poll_interval_ms, 0, policy, 0.0)
    return interval if state.poll_interval_ms else max(interval, _OF_OLD_TASKS_S)


def quiet(state: Observing, now: float) -> float:
    """Seconds for which nothing may be sent; 0 if it may."""
    return _left(state.quiet_until, state.quiet_s, now)


def _left(until: float, wait_s: float, now: float) -> float:
    return max(0.0, min(until - now, wait_s))


def _due(state: Observing, now: float, wait_s: float) -> Observing:
    return replace(state, due_at=now + wait_s, wait_s=wait_s)
