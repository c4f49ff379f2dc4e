"""Requests that wait for their replies over one connection, on which messages come in any order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import anyio

from ..protocol import RequestId
from ..protocol.replies import Reply

__all__ = ["Awaited", "UnreadReplyError"]

_MAX_GIVEN_UP: Final = 1000
"""Requests that were given up and may be answered late, at most."""


class UnreadReplyError(Exception):
    """The reply to a request has come, and could not be read."""


@dataclass(slots=True, eq=False)
class _Waiting:
    came: anyio.Event = field(default_factory=anyio.Event)
    reply: Reply | None = None
    is_unread: bool = False


class Awaited:
    """The requests of ours over one connection, by their IDs."""

    def __init__(self) -> None:
        self._waiting: dict[RequestId, _Waiting] = {}
        self._given_up: dict[RequestId, None] = {}  # a set that keeps its order

    async def ask(
        self, request_id: RequestId, send: Callable[[], Awaitable[object]], timeout_s: float | None
    ) -> Reply | None:
        """Send a request, and wait for its reply.

        Args:
            request_id: No other request's.
            send: Sends it. Its exceptions are passed on.
            timeout_s: Seconds to wait, the sending included; ``None`` waits until :meth:`end`.

        Returns:
            The reply; ``None`` if it has not come in time, or never will.

        Raises:
            UnreadReplyError: It has come, and could not be read.
        """
        waiting = self._waiting[request_id] = _Waiting()
        try:
            with anyio.move_on_after(timeout_s):
                await send()
                await waiting.came.wait()
        finally:
            del self._waiting[request_id]
            if waiting.reply is None and not waiting.is_unread:  # it may come late, and is no other's
                self._given_up[request_id] = None
                if len(self._given_up) > _MAX_GIVEN_UP:
                    del self._given_up[next(iter(self._given_up))]
        if waiting.is_unread:
            raise UnreadReplyError
        return waiting.reply

    def take(self, request_id: object, reply: Reply | None) -> bool:
        """Take the reply to a request, also if its caller has stopped waiting.

        Args:
            request_id: As the reply names it.
            reply: ``None`` if it could not be read.

        Returns:
            Whether :meth:`ask` sent the request, and it is not forgotten.
        """
        if not isinstance(request_id, str):
            return False
        if request_id in self._given_up:
            del self._given_up[request_id]
            return True
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return False
        waiting.reply, waiting.is_unread = reply, reply is None
        waiting.came.set()
        return True

    def only_one(self) -> RequestId | None:
        """The request that waits; ``None`` if several do, or none."""
        return next(iter(self._waiting)) if len(self._waiting) == 1 else None

    def end(self) -> None:
        """End all waiting: the connection is gone."""
        for waiting in self._waiting.values():
            waiting.came.set()
