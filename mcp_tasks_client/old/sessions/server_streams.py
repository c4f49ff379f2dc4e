"""The streams on which servers of 2025-11-25 speak outside of responses, one for each session."""

from __future__ import annotations

from typing import Final

import anyio

from ..errors import SessionError
from .background import Background
from .peer import Peer

__all__ = ["ServerStreams"]

_STREAM_S: Final = 1.0
"""Seconds for a stream to open on which a server speaks by itself."""

_AGAIN_S: Final = 1.0
_SOON_S: Final = 0.1
_LONGEST_AGAIN_S: Final = 60.0
_LONGEST_REST_S: Final = 3600.0
_NEVER: Final = frozenset({401, 403, 405, 501})
_NONE: Final = frozenset({400, 404, 406}) | _NEVER
"""By which a server says that it has none, unless it says more than that. Some may be a gateway's."""

_MOST_REFUSALS: Final = 5


class ServerStreams:
    """Keeps them open, where servers offer them, until their sessions are lost.

    Args:
        background: In which that is done.
    """

    def __init__(self, background: Background) -> None:
        self._background = background
        self._peers: set[Peer] = set()

    def attend(self, peer: Peer) -> None:
        """Have it be heard what a server says by itself."""
        if self._background.runs and peer not in self._peers:
            self._peers.add(peer)
            self._background.begin(self._attend, peer)

    async def attended(self, peer: Peer) -> None:
        """The same, before anything is asked: what it says to nobody is lost."""
        self.attend(peer)
        if self._background.runs and not peer.listening.is_set():
            with anyio.move_on_after(_STREAM_S):
                await peer.listening.wait()
            peer.listening.set()  # nobody else waits for it

    async def _attend(self, peer: Peer) -> None:
        try:
            await self._keep_open(peer)
        finally:
            if peer.lost:
                self._peers.discard(peer)  # there will be no other

    async def _keep_open(self, peer: Peer) -> None:
        pause_s, refusals = _AGAIN_S / 2, 0
        while not peer.lost:
            begun, wanted_s, answered = anyio.current_time(), 0.0, False
            try:
                await peer.listen()
            except SessionError as error:
                wanted_s = error.retry_after_s or 0.0
                answered = error.http_status not in (None, 200)
                refused = error.http_status in _NONE and error.code is None
                refusals = refusals + 1 if refused else 0
                if error.http_status in _NONE:
                    peer.listening.set()  # nobody need wait for it
                final = error.http_status in _NEVER or refusals > _MOST_REFUSALS
                if refused and final and not peer.listened:
                    return
            # What is said before the next one is open is lost, with whoever waits for a reply to it. At first
            # that may be refused, by a server that has not seen yet that this one has broken.
            at_once = not answered and anyio.current_time() - begun > _AGAIN_S
            pause_s = 0.0 if at_once else min(max(_SOON_S, 2 * pause_s), _LONGEST_AGAIN_S)
            await anyio.sleep(max(pause_s, min(max(wanted_s, peer.rest_s), _LONGEST_REST_S)))
