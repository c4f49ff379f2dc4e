"""The places of one session's requests: how many of each kind may be under way at once."""

from __future__ import annotations

import anyio

from .base import Limits

__all__ = ["Slots"]


class Slots:
    """One semaphore a kind of request.

    Long calls never starve the polls, and polls that hang never keep an answer or a cancellation from
    leaving. No event loop is needed to make one.

    Attributes:
        polls: Of ``tasks/get``.
        task_requests: Of the other ``tasks/*``.
        calls: Of ``tools/call``.
    """

    __slots__ = ("calls", "polls", "task_requests")

    def __init__(self, limits: Limits) -> None:
        self.polls = anyio.Semaphore(limits.tasks_in_flight, fast_acquire=True)
        self.task_requests = anyio.Semaphore(limits.tasks_in_flight, fast_acquire=True)
        self.calls = anyio.Semaphore(limits.calls_in_flight, fast_acquire=True)
