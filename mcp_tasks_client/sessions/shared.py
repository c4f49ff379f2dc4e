"""An action that many callers need at the same time, and that is carried out once for all of them."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

from ..errors import SessionError
from ..questions.context import CallContext

__all__ = ["Shared"]

T = TypeVar("T")


class Shared(Generic[T]):
    """An action that concurrent callers share.

    The first caller carries it out, with its own context, and callers that come meanwhile get its outcome:
    its value, or a copy of its error. If the first is cancelled, one of the others begins anew.
    """

    def __init__(self, act: Callable[[CallContext | None], Awaitable[T]]) -> None:
        self._act = act
        self._attempt: _Attempt[T] | None = None

    async def run(self, context: CallContext | None) -> T:
        """The value of the action, carried out here or by the caller that does so already.

        Raises:
            SessionError: It failed. ``not_executed``, since no caller's own request has been sent.
        """
        while (attempt := self._attempt) is not None:
            await attempt.ended.wait()
            if attempt.error is not None:
                raise copy.copy(attempt.error) from attempt.error
            if attempt.values:
                return attempt.values[0]
        attempt = self._attempt = _Attempt(anyio.Event())
        try:
            value = await self._act(context)
            attempt.values.append(value)
            return value
        except SessionError as error:
            error.not_executed = True
            attempt.error = error
            raise
        finally:
            self._attempt = None
            attempt.ended.set()


@dataclass(slots=True)
class _Attempt(Generic[T]):
    ended: anyio.Event
    values: list[T] = field(default_factory=list)
    """One, if the action has succeeded."""

    error: SessionError | None = None
