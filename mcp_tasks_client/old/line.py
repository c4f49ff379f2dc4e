"""Calls that wait for their turn: entries in a line, for coroutines would take ten times the memory."""

from __future__ import annotations

from collections import OrderedDict
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
        in_flight: Requests that the session sends at once; ``None`` for any number.
        tasks: Where they run.
        call: Makes a call.
    """

    def __init__(
        self,
        in_flight: int | None,
        tasks: TaskGroup,
        call: Callable[[Drive, SendCall, CallUnderWay], Coroutine[Any, Any, object]],
    ) -> None:
        self._room = in_flight
        self._tasks = tasks
        self._call = call
        self._waiting: OrderedDict[CallUnderWay, tuple[Context, _Call]] = OrderedDict()
        self._calling = 0

    @property
    def waits(self) -> bool:
        """Whether any call has to wait for its turn."""
        return bool(self._waiting)

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
