"""How the ``tasks/result`` of 2025-11-25 have failed that waited for tasks, and how often."""

from __future__ import annotations

from collections import Counter
from typing import Final

from ..errors import SessionError
from .base import INVALID_PARAMS

__all__ = ["Failures"]

_MOST_UNHEEDED: Final = 3
"""Times in a row that the last one of a task cannot be taken back, before the next one goes nevertheless."""


class Failures:
    """Those of the tasks of one session of ours."""

    def __init__(self) -> None:
        self._latest: dict[str, SessionError | None] = {}
        self._refused = Counter[str]()
        self._unheeded = Counter[str]()

    def note(self, task_id: str, error: SessionError | None) -> None:
        """Note that the one for a task has broken; by what, if that is known."""
        self._latest[task_id] = error

    def looked(self, task_id: str) -> None:
        """Note a snapshot of a task."""
        self._latest.pop(task_id, None)

    def lately(self, task_id: str) -> bool:
        """Whether the latest one for a task broke, and no snapshot has come since."""
        return task_id in self._latest

    def is_unknown(self, task_id: str) -> bool:
        """Whether the latest one for a task broke, as the server knows none of that ID in its session."""
        failure = self._latest.get(task_id)
        return failure is not None and failure.code == INVALID_PARAMS

    def refused_too_often(self, task_id: str, most: int) -> bool:
        """Note that a result was refused; whether it has been so often as to be final."""
        self._refused[task_id] += 1
        return self._refused[task_id] >= most

    def unheeded_too_often(self, task_id: str) -> bool:
        """Note that one could not be taken back; whether the next one goes nevertheless.

        What the server hands to the last one is lost then. Without a next one, all that it asks would be.
        """
        self._unheeded[task_id] += 1
        return self._unheeded[task_id] >= _MOST_UNHEEDED

    def heeded(self, task_id: str) -> None:
        """Note that one was taken back, or that the next one went."""
        del self._unheeded[task_id]

    def forget(self, task_id: str) -> None:
        """Forget a task that nobody observes any more."""
        self._latest.pop(task_id, None)
        del self._refused[task_id], self._unheeded[task_id]
