"""The requests about tasks of ours that are being answered: a reply is said until the server has it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Served:
    message: JSONObject
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


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
            del self._open[name]

    def withdraw(self, peer: Peer, request_id: RequestId, message: JSONObject | None = None) -> bool:
        """Do not answer what came under an ID, unless it is this message, which has come again.

        One server gives its IDs away again, so that another request would be answered by that.

        Returns:
            Whether anything was being answered that is not any more.
        """
        name = peer, id_text(request_id)
        if name in self._open and self._open[name].message != message:
            self._open.pop(name).scope.cancel()
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
