"""The sessions in which a server has us run tasks, and whether they are there still.

That one is denied twice within milliseconds may be the word of a replica that has never heard of it; what a
person has said must not be lost by that. So it is looked for again some times, before it is taken for gone.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

import anyio

from .clock import Clock
from .errors import SessionError
from .sessions.peer import Peer

__all__ = ["Adopt", "Attend", "Parties"]

logger = logging.getLogger("mcp_tasks_client")

Adopt: TypeAlias = Callable[[str], Peer]
"""Gives the peer of a session that there was before, by its ID."""

Attend: TypeAlias = Callable[[Peer], None]
"""Has it be heard what the server says to a peer."""

_LOOK_S: Final = 10.0
"""Seconds that a look for a session takes, at most, and between two of them, at least."""

_DENIALS: Final = 3
"""Looks in a row that have to find none, before there is none."""

_SESSION: Final = "session:"
_CONNECTION: Final = "connection:"


@dataclass(slots=True)
class _Search:
    denials: int
    looked_at: float


class Parties:
    """Which of them are there.

    Args:
        clock: Tells when to look again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._present: dict[str, Peer] = {}
        self._searches: dict[str, _Search] = {}
        self._names: WeakKeyDictionary[Peer, str] = WeakKeyDictionary()

    def name(self, peer: Peer) -> str:
        """By which a session is known, also to other processes of ours if it has a name."""
        if peer.session_id is not None:
            return _SESSION + peer.session_id
        return _CONNECTION + self._names.setdefault(peer, uuid.uuid4().hex)

    def heard(self, peer: Peer) -> None:
        """Note that it is there: it has asked for something."""
        party = self.name(peer)
        self._present[party] = peer
        self._searches.pop(party, None)

    def of(self, party: str) -> Peer | None:
        """The one of that name, if it was there when it was heard of last."""
        return self._present.get(party)

    def was_ended(self, party: str) -> bool:
        """Whether it is a session that the server has ended."""
        search = self._searches.get(party)
        return search is not None and search.denials >= _DENIALS

    def is_gone(self, party: str) -> bool:
        """Whether it is such a one, or a connection that has ended."""
        return self.was_ended(party) or not (party.startswith(_SESSION) or party in self._present)

    async def find(self, party: str, adopt: Adopt, attend: Attend) -> Peer | None:
        """The one of that name, if it is there just now.

        Args:
            party: Its name.
            adopt: Gives its peer, if it is one of before.
            attend: Has it be heard again what the server says there.
        """
        peer = self._present.get(party)
        if peer is not None and not peer.lost:
            return peer
        if self.is_gone(party):
            return None
        search, now = self._searches.setdefault(party, _Search(0, -math.inf)), self._clock.monotonic()
        if now < search.looked_at + _LOOK_S:
            return None
        search.looked_at = now
        peer = adopt(party.removeprefix(_SESSION)) if peer is None else peer
        try:
            with anyio.fail_after(_LOOK_S):  # as a whole: what keeps a stream alive may never reply
                await (peer.look_again() if peer.lost else peer.request("ping", {}, _LOOK_S))
        except TimeoutError:
            logger.info("The server does not reply in a session in which it has us run something.")
            return None
        except SessionError as error:
            answered = error.code is not None and not error.retryable  # one need not know a ping
            if not peer.lost and not answered:
                logger.info("The server cannot be reached for what it has us run: %s", error)
                return None
        if peer.lost:
            search.denials += 1
            return None
        self.heard(peer)
        attend(peer)
        return peer
