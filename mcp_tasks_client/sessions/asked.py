"""What a server asks on behalf of its tasks, in requests of its own: each question under a name that lasts.

A request has an ID only while its connection lives, and a question may be asked again over another. So it
goes by what it asks, and by how many times that was answered before: the same question asked again is the
same, and so are two of them at once; once it was answered, it is a new one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

from ..wire import JSONObject, RequestId, digest
from .shapes_2025_11_25 import RELATED_TASK, id_text

__all__ = ["Asked"]

PeerT = TypeVar("PeerT")

_VOLATILE = frozenset({RELATED_TASK, "progressToken"})


@dataclass(frozen=True, slots=True)
class _Request(Generic[PeerT]):
    peer: PeerT
    request_id: RequestId
    question: JSONObject = field(repr=False)
    digest: str


class Asked(Generic[PeerT]):
    """The open questions of one task.

    Attributes:
        news: Set when there is one; replaced by whoever waits for the next.
    """

    def __init__(self) -> None:
        self.news = anyio.Event()
        self._requests: dict[tuple[int, str], _Request[PeerT]] = {}
        self._answered: set[str] = set()
        self._withdrawn: set[tuple[int, str]] = set()

    @property
    def open(self) -> bool:
        """Whether anything is."""
        return bool(self._requests)

    def add(self, peer: PeerT, request_id: RequestId, method: str, params: JSONObject) -> None:
        """Note a request, which may have come before."""
        self._withdrawn.discard(_name(peer, request_id))
        self._add(peer, request_id, {"method": method, "params": _lasting(params)})
        self.news.set()

    def restore(
        self, peer: PeerT, key: str, request_ids: Collection[RequestId], question: JSONObject
    ) -> None:
        """Note the requests behind a question as another process had them, unless they are over since."""
        if key not in self._answered:
            for request_id in request_ids:
                if _name(peer, request_id) not in self._withdrawn:
                    self._add(peer, request_id, question)

    def _add(self, peer: PeerT, request_id: RequestId, question: JSONObject) -> None:
        self._requests[_name(peer, request_id)] = _Request(peer, request_id, question, digest(question))

    def withdraw(self, peer: PeerT, request_id: object) -> None:
        """Forget a request that the server does not wait for any more."""
        for name, one in tuple(self._requests.items()):
            if one.peer is peer and one.request_id == request_id:
                del self._requests[name]
                self._withdrawn.add(name)

    def was_withdrawn(self, peer: PeerT, request_id: RequestId) -> bool:
        """Whether the server has taken a request back, and made none under its ID since."""
        return _name(peer, request_id) in self._withdrawn

    def questions(self, answered: Collection[str]) -> JSONObject:
        """What is asked, by key.

        Args:
            answered: Keys of this task that were answered before, as the journal has them.
        """
        return {self._key(one, answered): one.question for one in self._requests.values()}

    def request_ids(self, answered: Collection[str]) -> dict[str, list[RequestId]]:
        """The IDs of the requests behind what is asked, by key."""
        found: dict[str, list[RequestId]] = {}
        for one in self._requests.values():
            found.setdefault(self._key(one, answered), []).append(one.request_id)
        return found

    def waiting(self, key: str, answered: Collection[str]) -> list[tuple[PeerT, RequestId]]:
        """The requests that an answer is for, with those who sent them."""
        before = {one for one in answered if one != key}
        found = (one for one in self._requests.values() if self._key(one, before) == key)
        return [(one.peer, one.request_id) for one in found]

    def answered(self, key: str, peer: PeerT, request_id: RequestId) -> None:
        """Note that a request has its answer."""
        self._requests = {
            name: one
            for name, one in self._requests.items()
            # Another question may have come under this ID by now: one server gives it away again at once.
            if not (one.peer is peer and one.request_id == request_id and key.startswith(one.digest))
        }
        self._answered.add(key)

    def was_answered(self, key: str) -> bool:
        """Whether an answer under this key has gone out already."""
        return key in self._answered

    def lose(self, peer: PeerT) -> None:
        """Forget what was asked over a connection that is gone; it may be asked again over another."""
        self._requests = {name: one for name, one in self._requests.items() if one.peer is not peer}

    def _key(self, request: _Request[PeerT], answered: Collection[str]) -> str:
        key, times = request.digest, 1
        while key in answered or key in self._answered:
            key, times = f"{request.digest}#{times}", times + 1
        return key


def _name(peer: object, request_id: RequestId) -> tuple[int, str]:
    return id(peer), id_text(request_id)


def _lasting(params: JSONObject) -> JSONObject:
    """Params without what differs each time that they come."""
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        return params
    kept = {name: value for name, value in meta.items() if name not in _VOLATILE}
    rest = {name: value for name, value in params.items() if name != "_meta"}
    return {**rest, "_meta": kept} if kept else rest
