"""A ``tasks/result`` of 2025-11-25 that waits: for the end of a task, and for its questions before that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio

from ..errors import SessionError
from ..wire import JSONObject, RequestId
from .peer import Peer

__all__ = ["Retrieval"]

_LAST_REPLY_S: Final = 1.0
"""Seconds for a task that is over to be said so to who waits: to take that back meanwhile ends the session on
one official server."""

_ARRIVES_S: Final = 0.1
_LATEST_ARRIVAL_S: Final = 0.25
"""Seconds for one to arrive before it is taken back, over another connection; more where a snapshot takes
longer."""

_TAKEN_BACK_S: Final = 0.5
"""Seconds for the server to be told that nobody waits any more, while everything ends."""

_MAYBE_HEARD: Final = frozenset({None, 502, 504})
"""HTTP statuses of what the server may have heard, as it was somebody else who gave up."""

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
        needless: Whether the server need not be told that it waits no more: it knows, or finds out.
        refusal: By which the server wanted to be left alone, when it was told that this waits no more.
        doubtful: Whether it may wait no more, as the server was told so, which it may have heard.
        sent_at: When it was sent last.
        waits: Whether it waits, as far as we know, and not the last one still.
        said_at: When something was last asked while it waited; ``None`` if nothing was.
        arrived: Whether that came over it for sure, so that it had arrived.
        back: Set once the server has been told that it waits no more, or could not be; another one each time.
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
        self.doubtful = False
        self._telling = anyio.Lock()
        self.sent_at = 0.0
        self.waits = False
        self.said_at: float | None = None
        self.arrived = False
        self.refusal: SessionError | None = None
        self.back = anyio.Event()
        self.ended = anyio.Event()
        self.wanted = anyio.Event()
        self.reply: JSONObject | None = None

    @property
    def is_told_back(self) -> bool:
        """Whether the server is being told just now that it waits no more."""
        return self._telling.locked()

    @property
    def waits_under(self) -> RequestId:
        """The ID of what may wait: the last one, until that is taken back, for this one goes only then."""
        return self.request_id if self.before is None else self.before

    async def brings_others(self) -> None:
        """Wait for whatever is asked along with what it has brought."""
        if self.said_at is not None:
            await anyio.sleep(max(0.0, self.said_at + _OTHERS_S - anyio.current_time()))

    async def has_arrived(self, took_s: float) -> None:
        """Wait until it has arrived for sure: what is taken back before that, waits nevertheless.

        Args:
            took_s: Seconds that the latest snapshot took to come.
        """
        arrives_s = min(max(_ARRIVES_S, took_s), _LATEST_ARRIVAL_S)
        early_s = self.sent_at + arrives_s - anyio.current_time() if self.waits else 0.0
        if early_s > 0 and not self.arrived:
            with anyio.move_on_after(early_s):
                await self.ended.wait()

    async def tell_back(self, timeout_s: float) -> None:
        """Tell the server that it waits no more, once; or have it not begin to.

        Args:
            timeout_s: Seconds that that may take.

        Raises:
            SessionError: It may not have arrived.
        """
        async with self._telling:
            try:
                if not self.needless:
                    await self._tell_back(timeout_s)
            finally:
                self.back.set()

    async def _tell_back(self, timeout_s: float) -> None:
        self.doubtful = True
        if not self.waits:
            self.needless = True
            self.scope.cancel()
        try:
            await self.peer.take_back(self.waits_under, timeout_s)
        except SessionError as error:
            self.doubtful = error.http_status in _MAYBE_HEARD
            if error.retry_after_s is not None:
                self.refusal = error
            raise
        self.needless = True

    async def give_up(self, took_s: float, timeout_s: float) -> None:
        """Have the server not hand the next question to it, as nobody hears it any more: the task goes on."""
        if not (self.needless or self.peer.retracts):
            with anyio.move_on_after(_TAKEN_BACK_S, shield=True), suppress(SessionError):
                await self.has_arrived(took_s)
                await self.peer.take_back(self.waits_under, timeout_s)

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
