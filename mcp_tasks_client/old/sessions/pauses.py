"""When no ``tasks/result`` of 2025-11-25 is to begin to wait for a task.

Not while the server wants to be left alone; nor while it is given an answer, with which the task goes on: it
would be handed the next question, though this process were killed by then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio

__all__ = ["Pauses"]

_REST_S: Final = 10.0
"""Seconds for which nothing waits after an answer, if the server says that the task works. It may hide that
it asks something: one says so as soon as any of two questions has its answer."""


class Pauses:
    """For the tasks of one session of ours."""

    def __init__(self) -> None:
        self._quiet_until: dict[str, float] = {}
        self._answering = Counter[str]()
        self._answered_at: dict[str, float] = {}
        self._rests_since: dict[str, float] = {}

    def now(self, task_id: str) -> bool:
        """Whether there is one."""
        return anyio.current_time() < self._quiet_until.get(task_id, 0.0) or self.is_answering(task_id)

    def quiet(self, task_id: str, seconds: float) -> None:
        """Note that the server wants to be left alone."""
        until = anyio.current_time() + seconds
        self._quiet_until[task_id] = max(until, self._quiet_until.get(task_id, until))

    @contextmanager
    def answering(self, task_id: str) -> Iterator[None]:
        """Note that an answer leaves."""
        self._answering[task_id] += 1
        self._answered_at[task_id] = anyio.current_time()
        try:
            yield
        finally:
            self._answering -= Counter([task_id])
            if task_id in self._answered_at:
                self._answered_at[task_id] = self._rests_since[task_id] = anyio.current_time()

    def is_answering(self, task_id: str) -> bool:
        """Whether an answer leaves just now."""
        return self._answering[task_id] > 0

    def is_outdated(self, task_id: str, since: float) -> bool:
        """Whether a snapshot may show a task waiting for what was answered after it had been asked for.

        Args:
            task_id: The task.
            since: When the snapshot was asked for.
        """
        return self.is_answering(task_id) or since < self._answered_at.get(task_id, since)

    def was_answered(self, task_id: str) -> None:
        """Note that an answer has left; before this process has, if it is not known when."""
        self._rests_since.setdefault(task_id, anyio.current_time())

    def has_rested(self, task_id: str) -> bool:
        """Whether an answer has left, and none for a while. Then it is for as long not so again."""
        rested = anyio.current_time() >= self._rests_since.get(task_id, math.inf) + _REST_S
        if rested:
            self._rests_since[task_id] = anyio.current_time()
        return rested

    def forget(self, task_id: str) -> None:
        """Forget a task that nobody observes any more."""
        self._quiet_until.pop(task_id, None)
        self._answered_at.pop(task_id, None)
        self._rests_since.pop(task_id, None)
