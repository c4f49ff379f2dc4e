"""An action that many callers need at the same time, and that is carried out once for all of them."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from ..errors import SessionError

__all__ = ["Shared"]


class Shared:
    """An action that concurrent callers share.

    The first caller carries it out, with its own context, and those who come meanwhile get its outcome:
    that it has succeeded, or a copy of its error. If the first is cancelled, one of the others begins anew.
    """

    def __init__(self, act: Callable[[object], Awaitable[None]]) -> None:
        self._act = act
        self._attempt: _Attempt | None = None

    async def run(self, context: object) -> None:
        """Carry the action out, or wait for the caller that does.

        Raises:
            SessionError: It failed. ``not_executed``, since no caller's own request has been sent.
        """
        while (attempt := self._attempt) is not None:
            await attempt.ended.wait()
            if attempt.error is not None:
                raise copy.copy(attempt.error) from attempt.error
            if attempt.succeeded:
                return
        attempt = self._attempt = _Attempt(anyio.Event())
        try:
            await self._act(context)
            attempt.succeeded = True
        except SessionError as error:
            error.not_executed = True
            attempt.error = error
            raise
        finally:
            self._attempt = None
            attempt.ended.set()


@dataclass(slots=True)
class _Attempt:
    ended: anyio.Event
    succeeded: bool = False
    error: SessionError | None = None
