"""For how long a caller waits for a call, with or without the time in which the host is asked."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Self

import anyio

from .live_call import LiveCall

__all__ = ["TimeLimit"]


class TimeLimit:
    """Cancels a block when its seconds are over, as ``anyio.move_on_after`` does. ``None`` is no limit.

    ``excludes_questions``: the time does not count in which a question of the call is before the host in
    this process.
    """

    def __init__(self, seconds: float | None, *, excludes_questions: bool = False) -> None:
        self.seconds = seconds
        self._excludes_questions = excludes_questions
        self._scope: anyio.CancelScope  # from the entering on
        self._left: float | None = None  # while it does not count
        self._call: LiveCall | None = None

    @property
    def deadline(self) -> float:
        """When the time is over, by the event loop's clock; infinite while it does not count."""
        return self._scope.deadline

    def __enter__(self) -> Self:
        self._scope = anyio.move_on_after(self.seconds)
        self._scope.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._leave()
        return self._scope.__exit__(exc_type, exc, traceback)

    def count_for(self, call: LiveCall) -> None:
        """Count the time of this call: it may be one that has begun long ago, and asks just now."""
        if self._excludes_questions and self.seconds is not None:
            self._leave()
            self._call = call
            call.audience.add_limit(self)
            self.adjust()

    def adjust(self) -> None:
        """Have the time count while no question of the call is before the host."""
        asks, now = self._call is not None and self._call.prompts, anyio.current_time()
        if not asks and self._left is not None:
            self._scope.deadline, self._left = now + self._left, None
        elif asks and self._left is None:
            self._left, self._scope.deadline = self._scope.deadline - now, math.inf

    def _leave(self) -> None:
        if self._call is not None:
            self._call.audience.remove_limit(self)
            self._call = None
