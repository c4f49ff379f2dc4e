"""Whose questions are whose, in a session that the host has and we use as well.

It lasts as long as that session, because a question does: who comes later can still answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol
from uuid import uuid4

import anyio

from ..wire import JSONObject, RequestId, RpcError
from .shapes_2025_11_25 import HOSTS_OWN, id_text, related_task, request_id_of

__all__ = ["GIVEN_AWAY", "AbandonedError", "Extension", "Switchboard", "taken_back"]

_MOST_ANSWERED: Final = 10_000
"""Questions, of which it is known that they have an answer."""

_CREATION_S: Final = 5.0
"""Seconds that a question waits for the reply by which its task may be one of ours."""

_NEVER: Final = object()
GIVEN_AWAY: Final = "$/given-away"
"""Of a request whose ID the server has used for another one; between us alone."""


class AbandonedError(Exception):
    """Nobody waits for the answer to a request. None may be given: its ID may be another one's by now."""


class Extension(Protocol):
    """One of us, at the switchboard."""

    creating: int
    """How many calls are under way that may become tasks."""

    def sees_to(self, task_id: str) -> bool:
        """Whether the questions of a task are for it."""

    def leave_to_others(self, task_id: str) -> None:
        """See to a task no more."""

    def hear(self, message: JSONObject) -> None:
        """Take a message."""


class _Waiting:
    """A question whose answer the server waits for."""

    def __init__(self, message: JSONObject) -> None:
        self.message = message
        self.answer: JSONObject | RpcError | None = None
        self.settled = anyio.Event()

    def settle(self, answer: JSONObject | RpcError | None) -> None:
        """Let it have its answer; ``None`` if it is to have none."""
        self.answer = answer
        self.settled.set()


class Switchboard:
    """Connects what one server asks with whoever sees to the task.

    Args:
        plug: Has :meth:`answer_to` asked before the host's callbacks, and :meth:`tell` told; returns what
            puts everything back.
        name: Of the host's session; ``None`` if it tells none.

    Attributes:
        name: Of the host's session, whoever comes.
    """

    def __init__(self, plug: Callable[[Switchboard], Callable[[], None]], name: str | None = None) -> None:
        self.name = name or f"{HOSTS_OWN}{uuid4().hex}"
        self._plug = plug
        self._unplug: Callable[[], None] | None = None
        self._peers: list[Extension] = []
        self._waiting: dict[str, _Waiting] = {}
        self._answered: dict[str, object] = {}
        self._settled = anyio.Event()

    def join(self, peer: Extension) -> None:
        """Let it have what is asked for its tasks."""
        self._peers.append(peer)
        if self._unplug is None:
            self._unplug = self._plug(self)

    def leave(self, peer: Extension) -> None:
        """Let it have nothing any more. What it was asked waits for another one."""
        if peer in self._peers:
            self._peers.remove(peer)
        if not self._peers and self._unplug is not None:
            self._unplug()
            self._unplug = None
            self._answered.clear()  # for what is asked from here on is not seen
        self.settled()

    def settled(self) -> None:
        """Note that a call has been answered, so that it is known whose task there may be."""
        self._settled.set()
        self._settled = anyio.Event()

    def sees_to(self, task_id: str) -> bool:
        """Whether the questions of a task are for one of us."""
        return any(peer.sees_to(task_id) for peer in self._peers)

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Take a notification."""
        request_id = request_id_of({"id": (params or {}).get("requestId")})
        if method == "notifications/cancelled" and request_id is not None:
            self.taken_back(request_id)
            return
        for peer in tuple(self._peers):
            peer.hear({"method": method, "params": dict(params or {})})

    def given_away(self, message: JSONObject) -> None:
        """Note that a request has come under its ID, whatever it is for: what had that before is over."""
        request_id = request_id_of(message)
        if request_id is None:
            return
        before = self._waiting.get(id_text(request_id))
        if before is not None and before.message != message:
            self.taken_back(request_id)
            before.settle(None)
        if self._answered.pop(id_text(request_id), _NEVER) is not _NEVER:
            for one in tuple(self._peers):
                one.hear({"method": GIVEN_AWAY, "params": {"requestId": request_id}})

    async def answer_to(
        self, message: JSONObject, scope: anyio.CancelScope | None = None
    ) -> JSONObject | RpcError | None:
        """The answer to a request of the server's, after however long; ``None`` if it is for the host.

        Args:
            message: The request.
            scope: What is cancelled if the server takes it back. What the end of the session cancels besides
                waits for who goes back to it. ``None`` if there is no telling.

        Raises:
            AbandonedError: It must not be answered.
        """
        task_id, request_id = related_task(message.get("params")), request_id_of(message)
        self.given_away(message)
        peer = await self._peer_of(task_id) if task_id is not None else None
        if peer is None or request_id is None:
            return None
        name = id_text(request_id)
        before = self._waiting.get(name)
        if before is not None:
            before.settle(None)  # of two copies, one is answered
        waiting = self._waiting[name] = _Waiting(message)
        try:
            peer.hear(message)
            await waiting.settled.wait()
        except anyio.get_cancelled_exc_class():
            is_taken_back = scope is None or scope.cancel_called
            if is_taken_back and self._waiting.get(name) is waiting:  # else the ID is another's by now
                self.taken_back(request_id)
            raise
        finally:
            if self._waiting.get(name) is waiting:
                del self._waiting[name]
        if waiting.answer is None:
            raise AbandonedError
        return waiting.answer

    def over(self, task_id: str) -> None:
        """Have nothing be answered that a task has asked, which is over."""
        for waiting in self._open(task_id):
            waiting.settle(None)

    def taken_back(self, request_id: RequestId) -> None:
        """Note that the server does not wait for an answer any more, given or not."""
        self._answered.pop(id_text(request_id), None)
        for one in tuple(self._peers):
            one.hear(taken_back(request_id))

    def questions(self, task_id: str) -> list[JSONObject]:
        """What is asked for a task, and has no answer yet."""
        return [waiting.message for waiting in self._open(task_id)]

    def _open(self, task_id: str) -> list[_Waiting]:
        waiting = (one for one in self._waiting.values() if not one.settled.is_set())
        return [one for one in waiting if related_task(one.message.get("params")) == task_id]

    def answer(self, request_id: RequestId, answer: JSONObject | RpcError) -> bool:
        """Give an answer; whether the server waits for one."""
        name = id_text(request_id)
        waiting = self._waiting.get(name)
        if waiting is None or waiting.settled.is_set():
            return False
        waiting.settle(answer)
        self._answered[name] = None
        if len(self._answered) > _MOST_ANSWERED:
            del self._answered[next(iter(self._answered))]
        return True

    def was_answered(self, request_id: RequestId) -> bool:
        """Whether an answer was given, and the server has neither taken that back nor asked anew."""
        return id_text(request_id) in self._answered

    def take_over(self, task_id: str, peer: Extension) -> None:
        """Let nobody else have what is asked for a task."""
        for one in self._peers:
            if one is not peer:
                one.leave_to_others(task_id)

    async def _peer_of(self, task_id: str) -> Extension | None:
        with anyio.move_on_after(_CREATION_S):
            while True:
                for peer in self._peers:
                    if peer.sees_to(task_id):
                        return peer
                if not any(peer.creating for peer in self._peers):
                    return None
                await self._settled.wait()  # a server may ask before it has said that there is a task
        return None


def taken_back(request_id: RequestId) -> JSONObject:
    """What a server says that does not wait for an answer any more."""
    return {"method": "notifications/cancelled", "params": {"requestId": request_id}}
