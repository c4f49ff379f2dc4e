"""The contract of a peer: one session at a server of 2025-11-25, in which either side may ask the other.

What the messages mean is the business of :mod:`.tasks_2025_11_25`; how they travel, of a peer.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from ..errors import SessionError
from ..wire import JSONObject, RequestId, RpcError, shorten
from .shapes_2025_11_25 import CORE_TASKS_VERSION

__all__ = ["SESSION_STATUSES", "SILENCE_S", "Peer", "Told"]

SESSION_STATUSES: Final = frozenset({400, 404})
"""By which a server over HTTP says that it does not know a session, if it says so in words."""

SILENCE_S: Final = 300.0
"""Seconds without a sign of life after which what may stay open counts as broken."""


class Peer(ABC):
    """A server, as one session has it.

    Attributes:
        session_id: What the server has called the session; ``None`` where it needs no name.
        version: The protocol version that was agreed on.
        lost: Whether the server does not know the session any more.
        listening: Set once what the server says outside of responses is heard, or never will be.
        listened: How many times it has begun to be.
        rest_s: Seconds that are to pass before that is heard again, as the server wants it.
        retracts: Whether a request that is given up is taken back by that alone.
        acknowledges: Whether an answer has arrived when :meth:`answer` returns; else nobody knows.
    """

    retracts = False
    acknowledges = True

    def __init__(self, session_id: str | None) -> None:
        self.session_id = session_id
        self.version = CORE_TASKS_VERSION
        self.lost = False
        self.listening = anyio.Event()
        self.listened = 0
        self.rest_s = 0.0

    def __repr__(self) -> str:
        name = shorten(self.session_id) if self.session_id else "without a session ID"
        return f"<{type(self).__name__} {name}>"

    @abstractmethod
    async def initialize(self, params: JSONObject, timeout_s: float) -> JSONObject:
        """Begin the session, and return what the server says of itself.

        Args:
            params: ``capabilities`` and ``clientInfo``.
            timeout_s: Seconds of silence after which it is given up.

        Raises:
            SessionError: The server does not want to.
        """

    @abstractmethod
    async def request(
        self,
        method: str,
        params: JSONObject,
        silence_s: float,
        *,
        task_id: str | None = None,
        request_id: RequestId | None = None,
    ) -> JSONObject:
        """Send a request once, and return its result.

        Args:
            method: JSON-RPC method.
            params: Its params.
            silence_s: Seconds of silence after which it is given up.
            task_id: The task that it is about, for the errors.
            request_id: By which another process can take it back; ``None`` for one of our own.

        Raises:
            SessionError: No result. :attr:`lost` says whether that is because the session is over.
        """

    def new_request_id(self) -> RequestId:
        """An ID for a request, which no other of the session has, whichever process made it."""
        return secrets.token_hex(8)

    @abstractmethod
    async def answer(
        self,
        request_id: RequestId,
        answer: JSONObject | RpcError,
        timeout_s: float,
        task_id: str | None = None,
    ) -> None:
        """Answer a request of the server's. The same answer may be given again.

        Raises:
            SessionError: It may not have arrived.
        """

    @abstractmethod
    async def take_back(self, request_id: RequestId, timeout_s: float) -> None:
        """Tell the server that nobody waits for the reply to a request any more.

        Raises:
            SessionError: It may not have arrived.
        """

    def denied(self, error: SessionError) -> bool:
        """Whether a request was not read, as the server has said that it does not know the session."""
        return False

    async def look_again(self) -> None:
        """Ask whether a session that is lost is there after all. It is not :attr:`lost` then."""
        await checkpoint()

    async def notify(self, method: str, timeout_s: float, params: JSONObject | None = None) -> None:
        """Send a notification, where that can be done: nobody relies on one.

        Raises:
            SessionError: It may not have arrived.
        """
        await checkpoint()

    async def listen(self) -> None:
        """Hear what the server says outside of responses, until it ends that.

        Raises:
            SessionError: It does not offer that, or the stream broke.
        """
        self.listening.set()
        await anyio.sleep_forever()  # where it needs nothing to be heard


Told: TypeAlias = Callable[[Peer, JSONObject], None]
"""Takes each request and notification that comes, and from whom."""
