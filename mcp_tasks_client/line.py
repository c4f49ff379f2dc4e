"""Calls that wait for their turn: entries in a line, for coroutines would take ten times the memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from anyio.abc import TaskGroup

from .drive import CallUnderWay, Drive
from .events import SendCall

__all__ = ["Line"]

_AHEAD: Final = 4
"""How many times as many calls are begun as can be sent at once: the others' replies are being journaled."""


class Line:
    """Begins calls in order, so many at once.

    Args:
        in_flight: Requests that the session sends at once; ``None`` for any number.
        tasks: Where they run.
        call: Makes a call. Returns whether whoever ran it is fit for another.
    """

    def __init__(
        self,
        in_flight: int | None,
        tasks: TaskGroup,
        call: Callable[[Drive, SendCall, CallUnderWay], Coroutine[Any, Any, bool]],
    ) -> None:
        self._room = None if in_flight is None else _AHEAD * in_flight
        self._tasks = tasks
        self._call = call
        self._waiting: deque[tuple[Drive, SendCall, CallUnderWay]] = deque()
        self._calling = 0

    def join(self, drive: Drive, send: SendCall, calling: CallUnderWay) -> None:
        """Make a call, now or when it is its turn; one that is cut before at once, to be taken back."""
        if self._room is None or self._calling < self._room:
            self._calling += 1
            self._tasks.start_soon(self._work, drive, send, calling)
        else:

            def begin() -> None:
                calling.begin = None
                self._tasks.start_soon(self._call, drive, send, calling)

            calling.begin = begin
            self._waiting.append((drive, send, calling))

    async def _work(self, drive: Drive, send: SendCall, calling: CallUnderWay) -> None:
        """Make this call, and then those in line, for as long as that goes well."""
        try:
            while await self._call(drive, send, calling):
                following = self._next()
                if following is None:
                    return
                drive, send, calling = following
        finally:
            self._calling -= 1
            if following := self._next():
                self._calling += 1
                self._tasks.start_soon(self._work, *following)

    def _next(self) -> tuple[Drive, SendCall, CallUnderWay] | None:
        while self._waiting:
            drive, send, calling = self._waiting.popleft()
            if calling.begin is not None:
                calling.begin = None
                return drive, send, calling
        return None
