"""An answer on its way over a connection that does not tell whether it has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import anyio

from ..wire import RequestId

__all__ = ["Said"]

PeerT = TypeVar("PeerT")


class Said(Generic[PeerT]):
    """An answer that was said, of which nobody tells whether it has arrived.

    Attributes:
        requests: What it was said to, and who had asked.
        arrived: Whether it has; ``None`` while that is not known.
        looks: How many snapshots have shown the server waiting for it since it was said last.
        news: Set when one of these two changes; there is another one for the next change then.
    """

    def __init__(self, requests: Sequence[tuple[PeerT, RequestId]]) -> None:
        self.requests = requests
        self.arrived: bool | None = None
        self.looks = 0
        self.news = anyio.Event()

    def ends(self, *, arrived: bool) -> None:
        """Note what has become of it."""
        self.arrived = arrived
        self.news.set()

    def looked(self) -> None:
        """Note that the server waits for it still."""
        self.looks += 1
        self.news.set()
        self.news = anyio.Event()
