"""What a server asks on behalf of its tasks, in requests of its own: each question under a name that lasts.

A request has an ID only while its connection lives, and a question may be asked again over another. So it
goes by what it asks, and by how many times that is asked: in one session under each ID once, for a server
that wants to know the same twice has two requests; and anew once it was answered. Over another connection the
same words are the same question.

From the moment at which an answer leaves it may have arrived, whatever is said of that. What comes over the
same stream under the ID of what it answers is a new question then, though it read the same.

Not every connection tells whether an answer has arrived. Where it does not, an answer has when the task does
not wait for it any more; until then it counts as said, and what it was said to is kept.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeAlias, TypeVar

import anyio

from ..wire import JSONObject, RequestId, digest
from .said import Said
from .shapes_2025_11_25 import id_text, lasting

__all__ = ["Asked"]

PeerT = TypeVar("PeerT")

_MOST: Final = 1000
"""Requests of one task that are open, and that were withdrawn, at most; a server with more is hostile."""

_UNKNOWN: Final = object()


@dataclass(frozen=True, slots=True)
class _Request(Generic[PeerT]):
    peer: PeerT
    request_id: RequestId
    question: JSONObject = field(repr=False)
    digest: str
    key: str | None = None
    """Its question's; ``None`` before anybody wanted to know."""

    left_during: object | None = None
    """On which stream the task's questions came when an answer left for it, which may have arrived."""

    came: object = field(default_factory=object, repr=False)
    """Another one each time that it comes, under whichever ID."""


Behind: TypeAlias = "Sequence[_Request[PeerT]]"
"""The requests behind a question."""


class Asked(Generic[PeerT]):
    """The open questions of one task.

    Attributes:
        news: Set when there is one; replaced by whoever waits for the next.
        seen: Set once it is known how the task is.
        silences: How many looks in a row have shown the server waiting for an answer to nothing.
        looked_back_at: When it was last looked whether a connection is gone over which something was asked.
        over: Whether the task is over, or its questions are.
        several: Whether it has asked something while something else had no answer.
    """

    def __init__(self) -> None:
        self.news = anyio.Event()
        self.seen = anyio.Event()
        self.silences = 0
        self.looked_back_at = -math.inf
        self._requests: dict[tuple[int, str], _Request[PeerT]] = {}
        self._answered: set[str] = set()
        self._concluded: dict[str, None] = {}
        self._before: frozenset[str] = frozenset()
        self._said: dict[str, tuple[Said[PeerT], list[_Request[PeerT]]]] = {}
        self._lost: dict[tuple[int, str], _Request[PeerT]] = {}
        self._withdrawn: dict[tuple[int, str], None] = {}
        self.over = False
        self.several = False
        self._vain: tuple[PeerT | None, int] = (None, 0)

    @property
    def open(self) -> bool:
        """Whether anything has no answer."""
        return bool(self._requests)

    @property
    def concluded(self) -> tuple[str, ...]:
        """The keys of questions whose answers have arrived, though nobody said so."""
        return tuple(self._concluded)

    def learn(self, answered: Collection[str], concluded: Collection[str] = ()) -> None:
        """Note the keys of questions that have an answer as the journal has it, whoever gave it.

        Args:
            answered: Those.
            concluded: What another process had as :attr:`concluded`.
        """
        self._before = frozenset(answered)
        self._conclude(*concluded)
        for name, one in tuple(self._requests.items()):
            if one.key not in self._before and one.key not in concluded:
                continue
            if one.left_during is not None:
                del self._requests[name]  # its answer had left, and has arrived
            else:
                self._requests[name] = replace(one, key=None)  # it was asked since, before that was known

    def add(
        self,
        peer: PeerT,
        request_id: RequestId,
        method: str,
        params: JSONObject,
        stream: object | None = None,
    ) -> None:
        """Note a request, which may have come before; unless there are far too many.

        Args:
            peer: Who asks.
            request_id: Under which ID.
            method: JSON-RPC method.
            params: Its params.
            stream: On which the task's questions come; ``None`` if that is not known.
        """
        name, question = _name(peer, request_id), lasting(method, params)
        self._withdrawn.pop(name, None)
        self._has_answer(name)
        if len(self._requests) >= _MOST and name not in self._requests:
            return
        request, before = _Request(peer, request_id, question, digest(question)), self._requests.get(name)
        if before is not None and before.digest == request.digest:
            request = replace(before, came=object())
            if stream is not None and stream == before.left_during:
                # Another one, should the answer to the first arrive after all; for sure over the same stream.
                request = replace(request, key=None, left_during=None)
        if before is not None and before.left_during is not None and request.key != before.key:
            self._conclude(str(before.key))
        self._requests[name] = request
        self._count()
        self.news.set()

    def restore(
        self,
        peer: PeerT,
        key: str,
        request_ids: Collection[RequestId],
        question: JSONObject,
        *,
        answered: bool = False,
    ) -> None:
        """Note the requests behind a question as another process had them, unless they are over since.

        Args:
            peer: Who has asked.
            key: The question's.
            request_ids: Their IDs.
            question: What they ask.
            answered: Whether there was an answer, which may have arrived.
        """
        if key in self._answered:
            return
        left_during = _UNKNOWN if answered else None
        for request_id in request_ids:
            name = _name(peer, request_id)
            if name not in self._withdrawn and name not in self._requests:
                request = _Request(peer, request_id, question, digest(question), key, left_during)
                self._requests[name] = request
        self._count()

    def given_away(self, peer: PeerT, request_id: RequestId) -> None:
        """Note that a request has come under an ID: what had it before is over, and has any answer to it."""
        name = _name(peer, request_id)
        before = self._requests.pop(name, None)
        if before is not None and before.left_during is not None:
            self._conclude(str(before.key))
        self._lost.pop(name, None)
        self._has_answer(name)

    def withdraw(self, peer: PeerT, request_id: RequestId) -> None:
        """Forget a request that the server does not wait for any more."""
        gone = _name(peer, request_id)
        self._lost.pop(gone, None)
        for name, one in self._all():
            if name == gone:
                self._withdrawn[name] = None
                if len(self._withdrawn) > _MOST:
                    del self._withdrawn[next(iter(self._withdrawn))]
                self._drop(name, one)

    def was_withdrawn(self, peer: PeerT, request_id: RequestId) -> bool:
        """Whether the server has taken a request back, and made none under its ID since."""
        return _name(peer, request_id) in self._withdrawn

    def questions(self) -> JSONObject:
        """What is asked, by key, with what was said and may not have arrived."""
        return {key: one.question for key, one in self._keyed()}

    def request_ids(self, peer: PeerT | None = None) -> dict[str, list[RequestId]]:
        """The IDs of the requests behind what is asked, by key.

        Args:
            peer: Whose, where they are IDs, though the connection may be gone: another process may go back to
                the session. ``None`` for all over connections that are there.
        """
        found = defaultdict[str, list[RequestId]](list)
        over = {None, *self._before, *self._answered}
        put_aside = [(one.key, one) for one in self._lost.values() if one.key not in over]
        for key, one in [*self._keyed(), *(put_aside if peer is not None else ())]:
            if peer is None or one.peer is peer:
                found[key].append(one.request_id)
        return dict(found)

    def waiting(self, key: str) -> list[tuple[PeerT, RequestId]]:
        """The requests that an answer is for, with those who sent them."""
        return [(one.peer, one.request_id) for one in self.behind(key)]

    # ── answers ───────────────────────────────────────────────────────────────────────────────

    def behind(self, key: str) -> Behind[PeerT]:
        """The requests that an answer is for, as they are now."""
        self._name_all()
        return [one for one in self._requests.values() if one.key == key]

    def leaves(self, key: str, stream: object | None) -> Behind[PeerT]:
        """Note that an answer leaves now, and may have arrived from here on. Returns what it is for.

        Args:
            key: The question's.
            stream: On which the task's questions come; ``None`` if that is not known.
        """
        for one in self.behind(key):
            self._requests[_name(one.peer, one.request_id)] = replace(one, left_during=stream or _UNKNOWN)
        return self.behind(key)

    def answered(self, key: str, requests: Behind[PeerT]) -> None:
        """Note that requests have their answer. What came under one of their IDs meanwhile is another one."""
        for one in requests:
            name = _name(one.peer, one.request_id)
            self._lost.pop(name, None)
            found = self._requests.get(name)
            if found is not None and found.came is one.came:
                del self._requests[name]
            elif found is not None and found.key == key:
                self._requests[name] = replace(found, key=None, left_during=None)
        self._answered.add(key)

    def says(self, key: str, requests: Sequence[tuple[PeerT, RequestId]]) -> Said[PeerT]:
        """Note that an answer is said to requests now. What is asked from here on is another question."""
        said, behind = Said(requests), [*self.behind(key)]
        self.answered(key, behind)
        self._said[key] = said, behind
        if self.over:
            self._end(said, arrived=True)
        return said

    def unsaid(self, said: Said[PeerT]) -> None:
        """Note that it could not be said after all."""
        if said.arrived is None:
            self._end(said, arrived=False)

    def was_answered(self, key: str) -> bool:
        """Whether an answer under this key has gone out already."""
        return key in self._answered

    def said(self, key: str) -> Said[PeerT] | None:
        """The answer under this key, if it was said and it is not known to have arrived."""
        found = self._said.get(key)
        return found[0] if found is not None else None

    def all_said(self) -> tuple[Said[PeerT], ...]:
        """The answers that may not have arrived."""
        return tuple(said for said, _ in self._said.values())

    def looked(self, said: Collection[Said[PeerT]], waits: bool) -> None:
        """Note a snapshot that was asked for when these had been said.

        Args:
            said: The answers.
            waits: Whether the task waits for one. It need not be one of these, if something else is open.
        """
        for one in said:
            if one.arrived is None and not waits:
                self._end(one, arrived=True)
            elif one.arrived is None:
                one.looked()

    def lose(self, peer: PeerT) -> None:
        """Put aside what was asked over a connection that is gone; it may be asked again over another."""
        lost = {name: one for name, one in self._all() if one.peer is peer}
        if lost:
            # Of another before nobody has heard for as long as this one lasted.
            self._lost = {name: one for name, one in self._lost.items() if one.peer is peer} | lost
        for name, one in lost.items():
            self._drop(name, one)

    def was_asked_in(self, peer: PeerT) -> bool:
        """Whether anything is put aside that was asked over a connection."""
        return any(one.peer is peer for one in self._lost.values())

    def put_aside(self) -> PeerT | None:
        """The connection that is gone, over which something was asked that has no answer; the latest one."""
        return next((one.peer for one in self._lost.values()), None)

    def looks_in_vain(self, peer: PeerT) -> int:
        """How often a connection was looked for that could not be reached, with this time."""
        self._vain = (peer, 1 + (self._vain[1] if self._vain[0] is peer else 0))
        return self._vain[1]

    def find(self, peer: PeerT) -> None:
        """Have what was put aside be asked again: the connection was not gone after all."""
        self._vain = (None, 0)
        found = {name: one for name, one in self._lost.items() if one.peer is peer}
        for name, one in found.items():
            del self._lost[name]
            if name not in self._withdrawn:
                # What was answered elsewhere, where it was asked as well, is another question now.
                is_new = one.key in self._answered
                self._requests.setdefault(name, replace(one, key=None) if is_new else one)
                self.news.set()

    def close(self) -> None:
        """Have nobody wait any more for what becomes of an answer, now or later: they are over."""
        self.over = True
        self.seen.set()
        for one in self.all_said():
            self._end(one, arrived=True)

    def leave(self) -> bool:
        """Have nobody wait for what becomes of an answer. Returns whether any question has none.

        From here on somebody else may answer what is open.
        """
        for said in self.all_said():
            self._end(said, arrived=False)
        for name, one in self._requests.items():
            self._requests[name] = replace(one, left_during=one.left_during or _UNKNOWN)
        return self.open or self.put_aside() is not None

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def _count(self) -> None:
        self.several |= sum(one.left_during is None for one in self._requests.values()) > 1

    def _all(self) -> list[tuple[tuple[int, str], _Request[PeerT]]]:
        said = ((_name(one.peer, one.request_id), one) for _, each in self._said.values() for one in each)
        return [*self._requests.items(), *said]

    def _keyed(self) -> list[tuple[str, _Request[PeerT]]]:
        self._name_all()
        said = [(key, one) for key, (_, requests) in self._said.items() for one in requests]
        return [*said, *((str(one.key), one) for one in self._requests.values())]

    def _has_answer(self, name: tuple[int, str]) -> None:
        for said, requests in tuple(self._said.values()):
            if any(_name(one.peer, one.request_id) == name for one in requests):
                self._end(said, arrived=True)

    def _drop(self, name: tuple[int, str], one: _Request[PeerT]) -> None:
        if self._requests.get(name) is one:
            del self._requests[name]
        for said, requests in tuple(self._said.values()):
            if one in requests:
                requests.remove(one)
                self._end(said, arrived=False)

    def _end(self, said: Said[PeerT], *, arrived: bool) -> None:
        key, requests = next((key, left) for key, (one, left) in self._said.items() if one is said)
        del self._said[key]
        if not arrived:
            self._answered.discard(key)  # so that it is the same question, should it be asked again
            again = (replace(one, left_during=one.left_during or _UNKNOWN) for one in requests)
            self._requests = {_name(one.peer, one.request_id): one for one in again} | self._requests
        said.ends(arrived=arrived)

    def _conclude(self, *keys: str) -> None:
        self._answered.update(keys)
        self._concluded |= dict.fromkeys(keys)

    def _name_all(self) -> None:
        """Give each request its question's key, by which it goes from here on."""
        taken = {(one.peer, one.key) for one in self._requests.values()}
        for name, one in self._requests.items():
            if one.key is None:
                key, times = one.digest, 1
                while key in self._before or key in self._answered or (one.peer, key) in taken:
                    key, times = f"{one.digest}#{times}", times + 1
                taken.add((one.peer, key))
                self._requests[name] = replace(one, key=key)


def _name(peer: object, request_id: RequestId) -> tuple[int, str]:
    return id(peer), id_text(request_id)
