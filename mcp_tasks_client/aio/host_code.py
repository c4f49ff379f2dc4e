"""Exceptions of the host's code inside ours (a callback, its own journal), told from our own errors."""

from __future__ import annotations

from .uncut import is_being_cancelled

__all__ = ["describe", "was_cancelled_from_inside"]


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
