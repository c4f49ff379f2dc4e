"""What a journal raises, as whoever calls it must take it: a plug-in may raise anything."""

from __future__ import annotations

from typing import Final

import anyio

from ..clock import being_stopped
from ..errors import JournalError, TasksClientError

__all__ = ["typed"]


class _Typed:
    # No generator, which would take thrice as long: each commit is in such a block.
    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        match error:
            case None | TasksClientError():
                pass
            case Exception():
                raise JournalError(
                    f"The journal failed, {type(error).__name__}: {error}. Mend it, and take up the task."
                ) from error
            case _ if isinstance(error, anyio.get_cancelled_exc_class()) and not being_stopped():
                # Passed on it would look like the end of whoever waits for the journal, of the client even.
                raise JournalError("The journal was cancelled from inside. Take up the task.") from error


typed: Final = _Typed()
"""Turns what a journal raises of its own into :class:`JournalError`, and what cancels it from inside."""
