"""What code of the host may raise inside ours (a callback, its own journal), told from our own errors."""

from __future__ import annotations

from .errors import SessionError
from .uncut import is_being_cancelled

__all__ = ["foreign_error", "was_cancelled_from_inside"]


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


def foreign_error(method: str, cause: Exception, then: str) -> SessionError:
    """What a session, an auth flow or a hook raised of its own, as a typed error.

    Args:
        method: The request that was to be sent.
        cause: What was raised.
        then: What to do once that is mended.
    """
    # Its text may quote a credential, and the journal keeps what is told here.
    error = SessionError(
        f"{method} could not be sent, since code of the host raised {type(cause).__name__}. The error's "
        f"__cause__ says more. Mend that, then {then}."
    )
    error.__cause__ = cause
    return error
