"""The requests about tasks of ours that are being answered: a reply is said until the server has it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from .clock import Clock
from .errors import SessionError
from .sessions.peer import Peer
from .sessions.saying import say
from .sessions.shapes_2025_11_25 import id_text, request_id_of
from .wire import JSONObject, RequestId, RpcError

__all__ = ["Serving"]

logger = logging.getLogger("mcp_tasks_client")


class Serving:
    """Which they are.

    Args:
        most: How many, at most.
        clock: Waits between two tries.
        timeout_s: Seconds that a reply may take to be taken.
    """

    def __init__(self, most: int, clock: Clock, timeout_s: float) -> None:
        self._most = most
        self._clock = clock
        self._timeout_s = timeout_s
        self._scopes: dict[tuple[int, str], anyio.CancelScope] = {}

    def begin(self, peer: Peer, request_id: RequestId) -> anyio.CancelScope | None:
        """Note a request. Returns what it is to be served in; ``None`` if it is not, or is already."""
        name = _name(peer, request_id)
        if len(self._scopes) >= self._most:
            logger.warning("%r asks for too much at once; a request is left unanswered", peer)
        elif name not in self._scopes:  # or it has come twice
            scope = self._scopes[name] = anyio.CancelScope()
            return scope
        return None

    def end(self, peer: Peer, request_id: RequestId) -> None:
        """Note that it is served no more."""
        del self._scopes[_name(peer, request_id)]

    def withdraw(self, peer: Peer, params: object) -> None:
        """Do not answer a request that the server does not wait for any more. Its task goes on."""
        request_id = request_id_of({"id": params.get("requestId")} if isinstance(params, dict) else {})
        scope = None if request_id is None else self._scopes.get(_name(peer, request_id))
        if scope is not None:
            scope.cancel()

    def leave(self, peer: Peer) -> None:
        """Answer none of a session that is over."""
        for (whose, _), scope in self._scopes.items():
            if whose == id(peer):
                scope.cancel()

    async def say(
        self,
        peer: Peer,
        request_id: RequestId,
        reply: JSONObject | RpcError,
        wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Answer a request. Returns whether the server has that."""
        try:
            return await say(peer, request_id, reply, self._timeout_s, rest=self._rest, wanted=wanted)
        except SessionError as error:
            logger.info("A reply about a task of the server's may not have arrived: %s", error)
            return False

    async def _rest(self, seconds: float) -> None:
        await self._clock.wait(anyio.Event(), seconds)


def _name(peer: Peer, request_id: RequestId) -> tuple[int, str]:
    return id(peer), id_text(request_id)
