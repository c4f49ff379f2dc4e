"""Something that one task of the host enters and another leaves, as with ``connect()`` and ``cleanup()``.

A task group must be left by the task that entered it. So both happen in a third task, which does nothing
else and ends with the leaving.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import anyio

from .uncut import on_asyncio, run_to_its_end

__all__ = ["OwnTask"]


class OwnTask:
    """Enters a context manager, and leaves it, in a task of its own.

    If the event loop ends without the leaving, it cancels that task, which then leaves as well.

    Args:
        manager: Is told of no exception of the caller's on leaving.
    """

    def __init__(self, manager: AbstractAsyncContextManager[object]) -> None:
        self._manager = manager
        self._entered = anyio.Event()
        self._leaving = anyio.Event()
        self._left = anyio.Event()
        self._scope = anyio.CancelScope()
        self._error: BaseException | None = None
        self._task: object = None

    def start(self) -> None:
        """Begin to enter, and wait for nothing. What entering raises, :meth:`leave` raises."""
        self._task = _spawn(self._run)  # kept, because asyncio forgets a task that nobody else knows

    async def enter(self) -> None:
        """Enter. A caller that is cancelled meanwhile has the entering cancelled, and waits for its end.

        Raises:
            BaseException: What entering raised.
        """
        self.start()
        try:
            await self._entered.wait()
        except anyio.get_cancelled_exc_class():
            self._scope.cancel()
            await run_to_its_end(self._left.wait)
            raise
        if self._left.is_set():
            await self.leave()

    async def leave(self, limit_s: float = math.inf) -> None:
        """Leave, and return when that is done, whoever is cancelled meanwhile. May be repeated.

        Args:
            limit_s: Seconds after which the leaving is cancelled.

        Raises:
            BaseException: What leaving raised, or what ended the task before. It is raised once.
        """
        self._scope.deadline = anyio.current_time() + limit_s
        self._leaving.set()
        await run_to_its_end(self._left.wait)
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def _run(self) -> None:
        try:
            with self._scope:
                async with self._manager:
                    self._entered.set()
                    await self._leaving.wait()
        except anyio.get_cancelled_exc_class():
            raise  # the event loop ends
        except BaseException as error:
            self._error = error
        finally:
            self._left.set()
            self._entered.set()


def _spawn(work: Callable[[], Awaitable[None]]) -> object:
    """Start a task that no other task is the parent of."""
    if on_asyncio():
        import asyncio

        return asyncio.ensure_future(work())
    import trio

    return trio.lowlevel.spawn_system_task(work, context=contextvars.copy_context())
