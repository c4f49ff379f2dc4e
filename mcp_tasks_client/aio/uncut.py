"""Work that no cancellation may cut in two: a commit, and the notes of it in memory.

``anyio`` scopes can be shielded against. ``asyncio.Task.cancel()`` knows no shield: it raises at
the present await of the task. So on asyncio the work runs in a task of its own, which no code cancels while
the event loop runs, since no other code knows it. ``asyncio.run`` cancels every task once its coroutine is
done; it waits for this one instead.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import anyio

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "caller_of_loop",
    "in_loop",
    "is_being_cancelled",
    "on_asyncio",
    "run_to_its_end",
    "running_loop",
    "weakly_in_loop",
]

P = ParamSpec("P")
T = TypeVar("T")


async def run_to_its_end(work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``work(*args, **kwargs)`` and return only when it has ended, even if the caller is cancelled.

    A cancelled ``anyio`` scope around the caller takes effect at the next checkpoint after the return.
    A native ``Task.cancel()`` of the caller is remembered, and raised in place of the result or
    error of the work once that has ended: let the work itself note facts that must not be forgotten.

    Raises:
        asyncio.CancelledError: The caller was cancelled natively, or the work cancelled itself.
    """
    with anyio.CancelScope(shield=True):
        result = await (_in_uncut_task(work(*args, **kwargs)) if on_asyncio() else work(*args, **kwargs))
    return result  # noqa: RET504  # mypy takes every context manager for one that may swallow errors


async def _in_uncut_task(work: Awaitable[T]) -> T:
    """Await the work in a task that no code cancels, and return its result."""
    import asyncio

    async def run() -> T:
        return await work

    task: asyncio.Task[T] = _uncut_task()(run())
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:  # ours: wait() never raises that of the task
            cancelled = error
    if cancelled is None:
        return task.result()
    # The error of the work is read in any case, or asyncio would log that it was not.
    raise cancelled from (None if task.cancelled() else task.exception())


@cache
def _uncut_task() -> type[asyncio.Task[Any]]:
    """A class of tasks that the end of the event loop cannot cancel. Time-outs within the tasks can."""
    import asyncio

    class UncutTask(asyncio.Task[Any]):
        def cancel(self, msg: Any = None) -> bool:
            # asyncio.run and its like cancel all tasks while the loop stands still, and then wait for them.
            return self.get_loop().is_running() and super().cancel(msg)

    return UncutTask


def is_being_cancelled() -> bool:
    """Whether a cancelled scope surrounds the caller, so that its next checkpoint raises."""
    return anyio.current_effective_deadline() == -math.inf


def running_loop() -> Any:
    """The event loop that runs us: asyncio's, or trio's token. One object for each loop."""
    # anyio names no public function for this in all the versions that the package allows.
    if on_asyncio():
        import asyncio  # loaded already by the event loop that runs us

        return asyncio.get_running_loop()
    import trio

    return trio.lowlevel.current_trio_token()


def caller_of_loop() -> Callable[..., object]:
    """A function that has the event loop that runs us call another function. Any thread may use it."""
    loop = running_loop()
    call_soon: Callable[..., object] = getattr(loop, _call_soon(loop))
    return call_soon


def _call_soon(loop: object) -> str:
    """The name of the method by which any thread has an event loop call a function."""
    return "call_soon_threadsafe" if hasattr(loop, "call_soon_threadsafe") else "run_sync_soon"


def in_loop(function: Callable[..., object]) -> Callable[..., None]:
    """A function that has the event loop that runs us call ``function``. Any thread may use it.

    Once the loop has ended, it does nothing.
    """
    call_soon = caller_of_loop()

    def call(*args: object) -> None:
        with suppress(RuntimeError):  # by which both loops say that they have ended
            call_soon(function, *args)

    return call


def weakly_in_loop(method: Callable[..., object]) -> Callable[..., None]:
    """Like :func:`in_loop`, for a bound method. It keeps neither the method's object nor the loop alive.

    A thread that has this function keeps no client: a loop refers to its tasks, and they to their client.
    """
    running, weak = running_loop(), weakref.WeakMethod(method)
    loop, name = weakref.ref(running), _call_soon(running)

    def call(*args: object) -> None:
        runner, bound = loop(), weak()
        if runner is not None and bound is not None:
            with suppress(RuntimeError):  # as above
                getattr(runner, name)(bound, *args)

    return call


def on_asyncio() -> bool:
    """Whether asyncio runs the caller, and no other event loop on top of asyncio."""
    import asyncio  # loaded by now if it runs us; importing this module need not load it

    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False
