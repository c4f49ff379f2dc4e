"""Code of the host that runs inside ours: how it is called, and how its errors are told from ours."""

from __future__ import annotations

import contextvars
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

import anyio
from anyio.lowlevel import RunVar

from .uncut import in_loop, is_being_cancelled

__all__ = ["call_host", "describe", "is_async", "was_cancelled_from_inside"]

logger = logging.getLogger("mcp_tasks_client")

_MOST_THREADS: Final = 1000
_LIMITER: Final = RunVar[anyio.CapacityLimiter]("mcp_tasks_client_callbacks")


async def call_host(function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """Call a function of the host's: in the event loop if it is a coroutine function, or else in a thread.

    Args:
        function: Of the host's. A plain one may block, and may return something to await.
        name: Of the function, for the log.
        arguments: For the function.

    Raises:
        BaseException: That of the function.
    """
    if is_async(function):
        return await function(*arguments)
    result = await _in_thread(function, name, arguments)
    return await result if inspect.isawaitable(result) else result


def is_async(function: object) -> bool:
    """True for a coroutine function of the host's. False for a plain one."""
    called = getattr(type(function), "__call__", None)  # noqa: B004  # which of the two it is, not whether
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _threads() -> anyio.CapacityLimiter:
    # Not anyio's limiter for worker threads: the host's other threads must not wait for people who take their
    # time. A function whose caller has gone does not count.
    try:
        return _LIMITER.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_MOST_THREADS)
        _LIMITER.set(limiter)
        return limiter


async def _in_thread(function: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
    """Call a plain function in a thread. Its return value is not used if its caller no longer waits.

    Not by ``anyio.to_thread``, for whose threads the end of the process waits on asyncio: after Ctrl-C it
    would hang until the person has typed.
    """
    made, failed, abandoned = list[Any](), list[BaseException](), list[bool]()
    over, context = anyio.Event(), contextvars.copy_context()
    end = in_loop(over.set)

    def close() -> None:
        for one in made:
            if inspect.iscoroutine(one):
                one.close()  # or it would be said that it was never awaited

    def call() -> None:
        try:
            made.append(context.run(function, *arguments))
        except BaseException as error:
            failed.append(error)
        if abandoned:
            close()
        end()

    async with _threads():
        threading.Thread(target=call, name=f"mcp_tasks_client {name}", daemon=True).start()
        try:
            await over.wait()
        except anyio.get_cancelled_exc_class():
            abandoned.append(True)
            close()
            if not (made or failed):
                logger.warning(
                    "The %s has not returned yet. Nobody waits for it any more, but its thread goes on, at "
                    "most until the process ends",
                    name,
                )
            raise
    if failed:
        raise failed[0]
    return made[0]


def describe(error: Exception) -> str:
    """An exception of the host as a message tells it: its name, and its text if that can be read."""
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be read"
    return f"{type(error).__name__}: {text}"


def was_cancelled_from_inside() -> bool:
    """Whether the cancellation that was just caught began inside the awaited code of the host.

    The host may have cancelled something that its own callback awaited. Such a cancellation is passed on
    as an error, because it would otherwise look like the end of everything that surrounds the callback.
    False if the task that awaits is itself being stopped: then the cancellation has to be raised again.
    """
    if is_being_cancelled():
        return False
    import asyncio  # here, because an asyncio event loop has imported it already and trio needs none

    try:
        task = asyncio.current_task()
    except RuntimeError:  # no asyncio event loop runs in this thread
        return True
    return task is None or task.cancelling() == 0
