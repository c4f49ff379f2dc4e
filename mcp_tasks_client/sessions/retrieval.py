"""A ``tasks/result`` of 2025-11-25 that waits: for the end of a task, and for its questions before that."""

from __future__ import annotations

from typing import Final

import anyio

from ..wire import JSONObject, RequestId
from .peer import Peer

__all__ = ["Retrieval"]

_LAST_REPLY_S: Final = 1.0
"""Seconds for a task that is over to be said so to who waits: to take that back meanwhile ends the session on
one official server."""


class Retrieval:
    """A ``tasks/result`` that waits for the end.

    Args:
        peer: Whom it is asked of.
        before: The ID of the last one, which may still wait there.
        stream: Of the last one, if nothing can have been lost since.

    Attributes:
        alone: Set once the last one waits no more, or could not be kept from it.
    """

    def __init__(self, peer: Peer, before: RequestId | None, stream: object | None = None) -> None:
        self.peer = peer
        self.before = before
        self.stream = stream or object()
        self.request_id = peer.new_request_id()
        self.alone = anyio.Event()
        self.scope = anyio.CancelScope()
        self.reply: JSONObject | None = None

    def end(self, *, over: bool) -> None:
        """Have it end, which may wait for ever, even for a task that is over."""
        if over and self.peer.retracts:
            self.scope.shield = True  # nor is it given up because everything else is
            self.scope.deadline = anyio.current_time() + _LAST_REPLY_S
        else:
            self.scope.cancel()
