"""A server of 2025-11-25 over a session that the host has, and uses as well.

The server asks the host's own callbacks. What it asks for a task that we see to is taken before it gets
there, so that the question is journaled, asked once, and answered however long that takes. Everything else
goes where it went: what belongs to no task, and to tasks that the host has made by itself.

Such a session cannot be had again once it has ended. A server that binds its tasks to it has lost them then.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

import anyio
from anyio.lowlevel import checkpoint
from mcp_types import CreateMessageResult, CreateMessageResultWithTools, ElicitResult, ListRootsResult
from pydantic import TypeAdapter

from ..errors import ConnectionLostError
from ..wire import JSONObject, RequestId, RpcError
from .faults import Faults
from .peer import Peer, Told
from .shapes_2025_11_25 import HOSTS_OWN, created_task, id_text, related_task, request_id_of

__all__ = ["ANSWERS", "HostPeer", "Line", "SessionLine", "Switchboard"]

SessionT = TypeVar("SessionT")

ANSWERS: Final[Mapping[str, TypeAdapter[Any]]] = {
    "elicitation/create": TypeAdapter(ElicitResult),
    "sampling/createMessage": TypeAdapter(CreateMessageResult | CreateMessageResultWithTools),
    "roots/list": TypeAdapter(ListRootsResult),
}
"""What a host's session may answer, by what it was asked."""

_OVER: Final = frozenset({"completed", "failed"})
_MOST_TASKS: Final = 10_000
"""Whose questions are ours, at most: of some that were cancelled or let go, nobody says when they end."""


class _Waiting:
    """A question whose answer the server waits for."""

    def __init__(self, message: JSONObject) -> None:
        self.message = message
        self.answer: JSONObject | RpcError | None = None
        self.answered = anyio.Event()


class Switchboard:
    """Connects what one server asks with whoever sees to the task.

    It lasts as long as the host's session, because a question does: who comes later can still answer it.

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
        self._peers: list[HostPeer] = []
        self._waiting: dict[str, _Waiting] = {}
        self._answered: dict[str, None] = {}
        self._settled = anyio.Event()

    def join(self, peer: HostPeer) -> None:
        """Let it have what is asked for its tasks."""
        self._peers.append(peer)
        if self._unplug is None:
            self._unplug = self._plug(self)

    def leave(self, peer: HostPeer) -> None:
        """Let it have nothing any more. What it was asked waits for another one."""
        if peer in self._peers:
            self._peers.remove(peer)
        if not self._peers and self._unplug is not None:
            self._unplug()
            self._unplug = None
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

    async def answer_to(self, message: JSONObject) -> JSONObject | RpcError | None:
        """The answer to a request of the server's, after however long; ``None`` if it is for the host."""
        task_id, request_id = related_task(message.get("params")), request_id_of(message)
        peer = await self._peer_of(task_id) if task_id is not None else None
        if peer is None or request_id is None:
            return None
        name = id_text(request_id)
        self._answered.pop(name, None)
        waiting = self._waiting[name] = _Waiting(message)
        try:
            peer.hear(message)
            await waiting.answered.wait()
        except anyio.get_cancelled_exc_class():
            self.taken_back(request_id)
            raise
        finally:
            if self._waiting.get(name) is waiting:
                del self._waiting[name]
        return waiting.answer

    def taken_back(self, request_id: RequestId) -> None:
        """Note that the server does not wait for an answer any more, given or not."""
        self._answered.pop(id_text(request_id), None)
        for one in tuple(self._peers):
            one.hear(_taken_back(request_id))

    def questions(self, task_id: str) -> list[JSONObject]:
        """What is asked for a task, and has no answer yet."""
        asked = (one.message for one in self._waiting.values() if one.answer is None)
        return [message for message in asked if related_task(message.get("params")) == task_id]

    def answer(self, request_id: RequestId, answer: JSONObject | RpcError) -> bool:
        """Give an answer; whether the server waits for one."""
        name = id_text(request_id)
        waiting = self._waiting.get(name)
        if waiting is None or waiting.answer is not None:
            return False
        waiting.answer = answer
        waiting.answered.set()
        self._answered[name] = None
        if len(self._answered) > _MOST_TASKS:
            del self._answered[next(iter(self._answered))]
        return True

    def was_answered(self, request_id: RequestId) -> bool:
        """Whether an answer was given, and the server has neither taken that back nor asked anew."""
        return id_text(request_id) in self._answered

    async def _peer_of(self, task_id: str) -> HostPeer | None:
        while True:
            for peer in self._peers:
                if peer.sees_to(task_id):
                    return peer
            if not any(peer.creating for peer in self._peers):
                return None
            await self._settled.wait()  # a server may ask before it has said that there is a task


class Line(ABC):
    """A host's session as it is now.

    Attributes:
        board: Where its questions go.
    """

    board: Switchboard

    @property
    @abstractmethod
    def is_up(self) -> bool:
        """Whether the host still uses this session, and no other."""

    @property
    @abstractmethod
    def introduction(self) -> JSONObject:
        """What the server said of itself in the handshake."""

    @abstractmethod
    async def send(
        self, method: str, params: JSONObject, timeout_s: float | None, faults: Faults
    ) -> JSONObject:
        """Send a request, and return its result.

        Args:
            method: JSON-RPC method.
            params: Its params.
            timeout_s: Seconds after which it is given up; ``None`` leaves that to the host's session.
            faults: Names its failures.

        Raises:
            SessionError: No result.
        """

    @abstractmethod
    async def say_again(self, request_id: RequestId, answer: JSONObject | RpcError) -> None:
        """Answer a request that the host's session has given an answer of ours to, as it may be lost."""


class SessionLine(Line, Generic[SessionT]):
    """A session of the SDK's, whichever generation.

    Args:
        current: That session. What it raises says why there is none.
        boards: The switchboards of the sessions that there are.
        plug: Puts a switchboard before a session's callbacks; returns what takes it away again. Holds on
            to neither.

    Attributes:
        session: The session.

    Raises:
        ConnectionLostError: There is none.
    """

    def __init__(
        self,
        current: Callable[[], SessionT],
        boards: MutableMapping[SessionT, Switchboard],
        plug: Callable[[weakref.ref[SessionT], Switchboard], Callable[[], None]],
    ) -> None:
        self._current = current
        try:
            self.session = current()
        except RuntimeError as error:
            raise ConnectionLostError(
                "The host's client is not connected. Connect it again; then repeat the call, or resume() "
                "what is unfinished.",
                not_executed=True,
            ) from error
        found = boards.get(self.session)
        if found is None:
            found = boards[self.session] = Switchboard(partial(plug, weakref.ref(self.session)))
        self.board = found

    @property
    def is_up(self) -> bool:
        """Whether the host still uses this session, and no other."""
        try:
            return self._current() is self.session
        except RuntimeError:
            return True  # and closed, as the next request says


class HostPeer(Peer):
    """A server, as a session of the host's has it.

    Args:
        line: The session.
        told: Called with each request that is taken, each notification that comes, and with us.
        session_id: The name of a session that there was before, which may be gone.

    Attributes:
        creating: How many calls are under way that may become tasks.
    """

    retracts = True
    acknowledges = False

    def __init__(self, line: Line, told: Told, session_id: str | None = None) -> None:
        super().__init__(session_id or line.board.name)
        self.creating = 0
        self._line = line
        self._told = told
        self._tasks: dict[str, None] = {}
        self._foreign = self.session_id != line.board.name
        if not self._foreign:
            line.board.join(self)

    @property
    def lost(self) -> bool:
        """Whether it is a session that the host does not have any more."""
        return self._foreign or not self._line.is_up

    @lost.setter
    def lost(self, lost: bool) -> None:
        pass  # the host's connection tells

    async def initialize(self, params: JSONObject, timeout_s: float) -> JSONObject:
        """What the server said when the host began the session."""
        await checkpoint()
        return self._line.introduction

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
            silence_s: Seconds after which it is given up, unless it is a call: that is the host's to say.
            task_id: The task that it is about, for the errors.
            request_id: Of no use, since the host's session numbers its requests itself.

        Raises:
            SessionError: No result. :attr:`lost` says whether that is because the session is over.
        """
        if self.lost:
            raise ConnectionLostError(
                f"{method} was not sent: the host's client has another connection now.",
                retryable=True,
                not_executed=True,
            )
        faults = Faults(method, task_id)
        if method == "tools/call":
            with self._maybe_creating("task" in params):
                result = await self._line.send(method, params, None, faults)
                self._see_to((created_task(result) or {}).get("taskId"))
            return result
        if method == "tasks/get":
            self._see_to(task_id)
        result = await self._line.send(method, params, silence_s, faults)
        if method == "tasks/get" and result.get("status") in _OVER:
            self._tasks.pop(str(task_id), None)  # of a cancelled one, a question may still be on its way
        return result

    async def answer(
        self,
        request_id: RequestId,
        answer: JSONObject | RpcError,
        timeout_s: float,
        task_id: str | None = None,
    ) -> None:
        """Answer a request of the server's. Nobody says whether that arrives: the SDK is silent of it.

        Raises:
            SessionError: The server does not wait for it.
        """
        await checkpoint()
        board = self._line.board
        if board.was_answered(request_id):
            with anyio.move_on_after(timeout_s):
                await self._line.say_again(request_id, answer)
        elif not board.answer(request_id, answer):
            self.hear(_taken_back(request_id))
            raise ConnectionLostError(
                "The answer was not sent: the server does not wait for it any more.", retryable=True
            )

    async def take_back(self, request_id: RequestId, timeout_s: float) -> None:
        """Nothing: the host's session does so itself with each request that it gives up."""
        await checkpoint()

    def leave(self) -> None:
        """Take no questions any more."""
        self._line.board.leave(self)

    def sees_to(self, task_id: str) -> bool:
        """Whether the questions of a task are for us."""
        return task_id in self._tasks

    def hear(self, message: JSONObject) -> None:
        """Take a message."""
        self._told(self, message)

    def _see_to(self, task_id: object) -> None:
        if isinstance(task_id, str) and task_id not in self._tasks:
            self._tasks[task_id] = None
            if len(self._tasks) > _MOST_TASKS:
                del self._tasks[next(iter(self._tasks))]
            for message in self._line.board.questions(task_id):
                self.hear(message)  # asked while somebody else saw to it

    @contextmanager
    def _maybe_creating(self, creating: bool) -> Iterator[None]:
        self.creating += creating
        try:
            yield
        finally:
            self.creating -= creating
            self._line.board.settled()


def _taken_back(request_id: RequestId) -> JSONObject:
    return {"method": "notifications/cancelled", "params": {"requestId": request_id}}
