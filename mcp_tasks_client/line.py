"""Calls that wait for their turn: entries in a line, for coroutines would take ten times the memory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeAlias

from anyio.abc import TaskGroup

from .drive import CallUnderWay, Drive
from .events import SendCall

__all__ = ["Line"]

_Call: TypeAlias = tuple[Drive, SendCall, CallUnderWay]


class Line:
    """Begins calls in order, so many at once, each in its caller's context, whose trace it may belong to.

    Args:
        room: Calls that are begun at once, at most: as many as the session sends. ``None`` for any number.
        tasks: Where they run.
        call: Makes a call.
    """

    def __init__(
        self,
        room: int | None,
        tasks: TaskGroup,
        call: Callable[[Drive, SendCall, CallUnderWay], Coroutine[Any, Any, object]],
    ) -> None:
        self._room = room
        self._tasks = tasks
        self._call = call
        self._waiting: dict[CallUnderWay, tuple[Context, _Call]] = {}  # in order
        self._calling = 0

    def join(self, drive: Drive, send: SendCall, calling: CallUnderWay) -> None:
        """Make a call, now or when it is its turn; one that is cut before at once, to be taken back."""
        if self._room is None or self._calling < self._room:
            self._begin(drive, send, calling)
        else:
            calling.begin = lambda: self._begin(drive, send, calling)
            self._waiting[calling] = copy_context(), (drive, send, calling)

    def _begin(self, drive: Drive, send: SendCall, calling: CallUnderWay) -> None:
        calling.begin = None
        self._waiting.pop(calling, None)
        self._calling += 1
        self._tasks.start_soon(self._make, drive, send, calling)

    async def _make(self, drive: Drive, send: SendCall, calling: CallUnderWay) -> None:
        try:
            await self._call(drive, send, calling)
        finally:
            self._calling -= 1
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._room is not None and self._calling < self._room:
            context, call = next(iter(self._waiting.values()))
            context.run(self._begin, *call)
