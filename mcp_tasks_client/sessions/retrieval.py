"""A ``tasks/result`` of 2025-11-25 that waits: for the end of a task, and for its questions before that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from ..wire import JSONObject, RequestId
from .peer import Peer

__all__ = ["Retrieval"]

_LAST_REPLY_S: Final = 1.0
"""Seconds for a task that is over to be said so to who waits: to take that back meanwhile ends the session on
one official server."""

_OTHERS_S: Final = 0.1
"""Seconds for other questions to come behind one, before an answer to that leaves."""


class Retrieval:
    """A ``tasks/result`` that waits for the end.

    Args:
        peer: Whom it is asked of.
        before: The ID of the last one, which may still wait there.

    Attributes:
        alone: Set once the last one waits no more, or could not be kept from it.
        goes: Called right before it is sent, for what waits has another ID from then on.
        wanted: Set if it is not to be put off.
        needless: Whether the server need not be told that it waits no more.
        sent_at: When it was sent last.
        waits: Whether it waits, as far as we know, and not the last one still.
        said_at: When something was last asked over it, so that it had arrived; ``None`` if nothing was.
        back: Set once the server has been told that it waits no more, or could not be.
        ended: Set once nothing more is heard of it.
    """

    def __init__(self, peer: Peer, before: RequestId | None) -> None:
        self.peer = peer
        self.before = before
        self.stream = object()
        self.request_id = peer.new_request_id()
        self.alone = anyio.Event()
        self.goes: Callable[[], None] = lambda: None
        self.scope = anyio.CancelScope()
        self.needless = False
        self.sent_at = 0.0
        self.waits = False
        self.said_at: float | None = None
        self.back = anyio.Event()
        self.ended = anyio.Event()
        self.wanted = anyio.Event()
        self.reply: JSONObject | None = None

    @property
    def waits_under(self) -> RequestId:
        """The ID of what may wait: the last one, until that is taken back, for this one goes only then."""
        return self.request_id if self.before is None else self.before

    async def brings_others(self) -> None:
        """Wait for whatever is asked along with what it has brought."""
        if self.said_at is not None:
            await anyio.sleep(max(0.0, self.said_at + _OTHERS_S - anyio.current_time()))

    def renew(self, *, unbroken: bool) -> None:
        """Have another one take its place.

        Args:
            unbroken: Whether nothing can have been lost on the way.
        """
        self.waits = False
        self.before, self.request_id = self.request_id, self.peer.new_request_id()
        if not unbroken:
            self.stream = object()

    def end(self, *, over: bool) -> None:
        """Have it end, which may wait for ever, even for a task that is over."""
        self.needless |= over
        if over and self.peer.retracts:
            self.scope.shield = True  # nor is it given up because everything else is
            self.scope.deadline = anyio.current_time() + _LAST_REPLY_S
        else:
            self.scope.cancel()
