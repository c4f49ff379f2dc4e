"""Tasks of ours, whose parent is no task of the host.

A host cancels and leaves tasks of its own. Work that must not be cut by that runs in a task of
ours: the driving of a call, or a context manager that one task of the host enters (``connect()``) and another
one leaves (``cleanup()``).
"""

from __future__ import annotations

import contextvars
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from functools import partial

import anyio

from .loops import Loops
from .uncut import on_asyncio, run_to_its_end

__all__ = ["OwnTask", "OwnTasks", "Working", "spawn"]

logger = logging.getLogger("mcp_tasks_client")

_working: ContextVar[_Work | None] = ContextVar("mcp_tasks_client_working", default=None)


class _Work:
    """Work under way, noted in the context of all that it calls: tasks and threads have it from there."""

    __slots__ = ("_token", "around", "ended", "of")

    def __init__(self, of: Working) -> None:
        self.of = of
        self.ended = False

    def __enter__(self) -> None:
        self.around = _working.get()
        self._token = _working.set(self)

    def __exit__(self, *raised: object) -> None:
        self.ended = True
        _working.reset(self._token)


class Working:
    """Something whose end waits for the end of its work.

    If that work itself asks for the end, the end returns at once. It would wait for itself.
    """

    def work(self) -> AbstractContextManager[None]:
        """Note that the block is work of this object."""
        return _Work(self)

    def awaits_caller(self) -> bool:
        """True if work of this object that is under way has called the caller."""
        work = _working.get()
        while work is not None and (work.ended or work.of is not self):
            work = work.around
        return work is not None


class OwnTasks(Working):
    """The tasks that one client has started. An exception of one of them is logged."""

    def __init__(self) -> None:
        self._running: dict[anyio.CancelScope, object] = {}
        self._waited_for: anyio.Event | None = None

    def start(
        self,
        work: Callable[[], Awaitable[None]],
        ended: Callable[[anyio.CancelScope], object] = lambda _: None,
    ) -> anyio.CancelScope:
        """Run ``work()`` in a task of its own, and return the scope that cancels it.

        ``ended`` is called with the scope when the task has ended, also if the loop ended before the task
        began.
        """
        scope = anyio.CancelScope()

        def forget(_: object) -> None:
            self._running.pop(scope, None)
            if self._waited_for is not None and not self._running:
                self._waited_for.set()
            ended(scope)

        self._running[scope] = None
        # Kept, because asyncio forgets a task that no other code holds.
        self._running[scope] = spawn(partial(self._run, work, scope), forget)
        return scope

    def cancel(self) -> None:
        """Cancel all of them."""
        for scope in list(self._running):
            scope.cancel()

    async def wait(self) -> None:
        """Return when all tasks have ended."""
        while self._running:
            self._waited_for = anyio.Event()
            await self._waited_for.wait()

    async def _run(self, work: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
        try:
            with scope, self.work():
                await work()
        except (anyio.get_cancelled_exc_class(), KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # trio ends the program if another one leaves a task without a parent
            logger.exception("a task of this package failed")


class OwnTask(Working):
    """Enters a context manager, and leaves it, in a task of its own.

    If the event loop ends without the leaving, it cancels that task, which then leaves as well.

    Args:
        manager: Is told of no exception of the caller's on leaving.
        tasks: For whose end the leaving of the manager waits.
    """

    def __init__(self, manager: AbstractAsyncContextManager[object], tasks: OwnTasks | None = None) -> None:
        self._manager = manager
        self._tasks = tasks
        self._loops = Loops()
        self._entered = anyio.Event()
        self._leaving = anyio.Event()
        self._left = anyio.Event()
        self._scope = anyio.CancelScope()
        self._error: BaseException | None = None
        self._task: object = None

    def start(self) -> None:
        """Begin to enter, and wait for nothing. An exception of the entering is raised by :meth:`leave`."""
        # Kept, because asyncio forgets a task that no other code holds.
        self._loops.note_running()
        self._task = spawn(self._run, self._end)

    def awaits_caller(self) -> bool:
        """True if the leaving would wait for the caller."""
        return super().awaits_caller() or (self._tasks is not None and self._tasks.awaits_caller())

    async def enter(self) -> None:
        """Enter. A caller that is cancelled meanwhile has the entering cancelled, and waits for its end."""
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
        """Leave, and return when that is done, even if the caller is cancelled meanwhile. May be repeated.

        It returns at once if the leaving would await the caller, and if the event loop has closed.

        Args:
            limit_s: Seconds after which the leaving is cancelled.

        Raises:
            BaseException: That of the leaving, or the one that ended the task before. It is raised once.
        """
        if self._loops.have_closed():
            return
        self._scope.deadline = anyio.current_time() + limit_s
        self._leaving.set()
        if self.awaits_caller():
            return
        await run_to_its_end(self._left.wait)
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def _run(self) -> None:
        try:
            with self._scope, self.work():
                async with self._manager:
                    self._entered.set()
                    await self._leaving.wait()
        except anyio.get_cancelled_exc_class():
            raise  # the event loop ends
        except BaseException as error:
            self._error = error
        finally:
            self._end()

    def _end(self, _: object = None) -> None:
        self._left.set()
        self._entered.set()


def spawn(work: Callable[[], Awaitable[None]], ended: Callable[[object], object]) -> object:
    """Run ``work()`` in a task that no other task is the parent of, in a copy of the caller's context.

    Args:
        work: Runs in the task. On trio it must raise nothing but a cancellation.
        ended: Called with the task when it has ended, also if the event loop ended before the task began.

    Returns:
        The task, to be kept for as long as it runs.
    """
    if on_asyncio():
        import asyncio

        task = asyncio.ensure_future(work())
        task.add_done_callback(ended)
        return task
    import trio

    async def run() -> None:
        try:
            await work()
        finally:
            ended(trio.lowlevel.current_task())

    return trio.lowlevel.spawn_system_task(run, context=contextvars.copy_context())
