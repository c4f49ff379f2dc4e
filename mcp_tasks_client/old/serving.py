"""The requests about tasks of ours that are being answered: a reply is said until the server has it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import anyio

from .clock import Clock
from .demands import Allowance, RefusedError
from .errors import SessionError
from .received import INTERNAL_ERROR, ReceivePolicy
from .sessions.peer import Peer
from .sessions.saying import say
from .sessions.shapes_2025_11_25 import id_text
from .wire import JSONObject, RequestId, RpcError

__all__ = ["Serving"]

logger = logging.getLogger("mcp_tasks_client")

_FOLLOWS_S: Final = 0.2
"""Seconds for the next request, which a server makes at once when it has a task of ours."""


@dataclass(slots=True)
class _Served:
    message: JSONObject
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    rests: anyio.Event = field(default_factory=anyio.Event)


class Serving:
    """Which they are.

    Args:
        policy: How many, at most, and how often.
        clock: Waits between two tries.
        timeout_s: Seconds that a reply may take to be taken.
    """

    def __init__(self, policy: ReceivePolicy, clock: Clock, timeout_s: float) -> None:
        self._policy = policy
        self._clock = clock
        self._timeout_s = timeout_s
        self._open: dict[tuple[Peer, str], _Served] = {}
        self._allowances: WeakKeyDictionary[Peer, Allowance] = WeakKeyDictionary()

    def begin(self, peer: Peer, request_id: RequestId, message: JSONObject) -> anyio.CancelScope | None:
        """Note a request. Returns what it is to be served in; ``None`` if it is not, or is already."""
        name = peer, id_text(request_id)
        if len(self._open) >= self._policy.max_requests:
            logger.warning("%r asks for too much at once; a request is left unanswered", peer)
        elif name not in self._open:  # or it has come twice
            served = self._open[name] = _Served(message)
            return served.scope
        return None

    def end(self, peer: Peer, request_id: RequestId, message: JSONObject) -> None:
        """Note that it is served no more."""
        name = peer, id_text(request_id)
        if name in self._open and self._open[name].message is message:
            self._open.pop(name).rests.set()

    def rest(self, peer: Peer, request_id: RequestId) -> None:
        """Note that a reply waits for the end of a task, of which the journal knows."""
        name = peer, id_text(request_id)
        if name in self._open:
            self._open[name].rests.set()

    async def at_rest(self) -> None:
        """Wait until all that has come is answered, or waits for the end of a task; and what follows that."""
        while moving := [one.rests for one in self._open.values() if not one.rests.is_set()]:
            await moving[0].wait()
            await anyio.sleep(_FOLLOWS_S)

    def withdraw(self, peer: Peer, request_id: RequestId, message: JSONObject | None = None) -> bool:
        """Do not answer what came under an ID, unless it is this message, which has come again.

        One server gives its IDs away again, so that another request would be answered by that.

        Returns:
            Whether anything was being answered that is not any more.
        """
        name = peer, id_text(request_id)
        if name in self._open and self._open[name].message != message:
            withdrawn = self._open.pop(name)
            withdrawn.scope.cancel()
            withdrawn.rests.set()
            return True
        return False

    def leave(self, peer: Peer) -> None:
        """Answer none of a session that is over."""
        for (whose, _), served in self._open.items():
            if whose is peer:
                served.scope.cancel()

    def check_pace(self, peer: Peer) -> None:
        """Note that a request has come.

        Raises:
            RefusedError: There were too many lately.
        """
        allowance = self._allowances.get(peer)
        if allowance is None:
            allowance = Allowance(self._policy.max_requests_per_s, self._clock.time())
            self._allowances[peer] = allowance
        if not allowance.take(self._clock.time()):
            logger.warning("%r asks about tasks more than %g times a second", peer, allowance.rate)
            raise RefusedError(INTERNAL_ERROR, "Too many requests about tasks; ask again in a second")

    async def say(
        self,
        peer: Peer,
        request_id: RequestId,
        reply: JSONObject | RpcError,
        wanted: Callable[[], bool] = lambda: True,
        tried: Callable[[], None] = lambda: None,
        failed: Callable[[], None] = lambda: None,
    ) -> bool:
        """Answer a request. Returns whether the server has that.

        Args:
            peer: Who asked.
            request_id: Of the request.
            reply: The answer.
            wanted: Whether anybody waits for it still.
            tried: Called after each try.
            failed: Called after each one after which there is another.
        """

        async def rest(seconds: float) -> None:
            failed()
            await self._clock.wait(anyio.Event(), seconds)

        try:
            return await say(peer, request_id, reply, self._timeout_s, rest=rest, wanted=wanted, tried=tried)
        except SessionError as error:
            logger.info("A reply about a task of the server's may not have arrived: %s", error)
            return False
