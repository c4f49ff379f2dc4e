"""For how long a task has run, without the time in which its server waited for answers. Pure.

Of a task that has ended the server's own times count where it gives both, so that neither a wait between
polls nor the time in which no client ran is part of it. Otherwise the local wall clock counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.task import Task
from .states import AskedQuestion, Observing

__all__ = ["find_ran_s", "find_took_s", "find_wait_began"]


def find_ran_s(state: Observing, now: float) -> float:
    """Seconds for which a task has run so far, by the local wall clock. They stand still while it asks."""
    return max(0.0, now - state.received_at - _asked_s(state.questions, state.received_at, now))


def find_took_s(state: Observing, now: float) -> float | None:
    """Seconds for which a task ran whose last snapshot shows its end.

    ``None`` where it is unknown: a question had no answer, or one whose time an earlier version of this
    package did not note.
    """
    if any(question.unanswered or not question.answered_at for question in state.questions):
        return None
    # Some servers never move lastUpdatedAt.
    lasted_s = state.task.age_s or max(0.0, now - state.received_at)
    return max(0.0, lasted_s - _asked_s(state.questions, state.received_at, now))


def find_wait_began(state: Observing, task: Task, now: float) -> float:
    """When the server began to wait for the first question of a snapshot, by the local wall clock.

    That is now, or earlier if the server says that the task has changed before: no client may have looked.
    """
    seen_s, age_s = state.task.age_s, task.age_s
    if seen_s is None or age_s is None or age_s <= seen_s:
        return now
    return min(now, state.received_at + age_s)


def _asked_s(questions: Sequence[AskedQuestion], since: float, now: float) -> float:
    """Seconds in which at least one question had no answer."""
    asked_s, until = 0.0, since
    for begin, end in sorted(
        (question.waits_from or question.asked_at, now if question.unanswered else question.answered_at)
        for question in questions
    ):
        asked_s += max(0.0, end - max(begin, until))
        until = max(until, end)
    return asked_s
