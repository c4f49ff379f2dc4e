"""A server of 2025-11-25 over a session that the host has, and uses as well.

The server asks the host's own callbacks. What it asks for a task that we see to is taken before it gets
there, so that the question is journaled, asked once, and answered however long that takes. Everything else
goes where it went: what belongs to no task, and to tasks that the host has made by itself.

Such a session cannot be had again once it has ended. A server that binds its tasks to it has lost them then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from ..errors import ConnectionLostError, SessionError
from ..wire import TERMINAL_STATUSES, JSONObject, RequestId, RpcError
from .base import INVALID_PARAMS
from .faults import Faults, may_deny_session
from .lines import Line
from .peer import Peer, Told
from .shapes_2025_11_25 import created_task
from .switchboard import taken_back

__all__ = ["HostPeer"]

_PING_S: Final = 10.0
_ABOUT_ONE: Final = frozenset({"tasks/get", "tasks/cancel"})
_MOST_TASKS: Final = 10_000
"""Whose questions are ours, at most: of some that were cancelled or let go, nobody says when they end."""


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
        self._left = anyio.Event()
        self._foreign = self.session_id != line.board.name
        if not self._foreign:
            line.board.join(self)

    @property
    def lost(self) -> bool:
        """Whether it is a session that the host does not have any more."""
        return self._foreign or self._left.is_set() or not self._line.is_up

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
            request_id: By which another process can take it back, where that can get there.

        Raises:
            SessionError: No result. :attr:`lost` says whether that is because the session is over.
        """
        if self.lost:
            raise ConnectionLostError(
                f"{method} was not sent: the host's client has another connection now.",
                retryable=True,
                not_executed=True,
            )
        if method == "tools/call":
            with self._maybe_creating("task" in params):
                result = await self._sent(method, params, None, None, None)
                self._see_to((created_task(result) or {}).get("taskId"))
            return result
        if method == "tasks/get" and task_id is not None:
            self._line.board.take_over(task_id, self)  # who looks last is who waits
            self._see_to(task_id)
        try:
            result = await self._sent(method, params, silence_s, task_id, request_id)
        except SessionError as error:
            if error.code == INVALID_PARAMS and method in _ABOUT_ONE and task_id is not None:
                self._over(task_id, cancelled=True)  # there is no such task, or it is over, as may be
            raise
        status = "completed" if method == "tasks/result" else result.get("status")
        if status in TERMINAL_STATUSES and task_id is not None:
            self._over(task_id, cancelled=status == "cancelled")
        return result

    async def _sent(
        self,
        method: str,
        params: JSONObject,
        timeout_s: float | None,
        task_id: str | None,
        request_id: RequestId | None,
    ) -> JSONObject:
        faults = Faults(method, task_id)
        try:
            return await self._line.send(method, params, timeout_s, faults, request_id)
        except SessionError as error:
            said = RpcError(error.code, error.remote_message, error.data)
            denial = faults.denial or (said if may_deny_session(said) else None)
            if denial is not None and await self._is_over():
                raise faults.session_ended(denial) from error
            if faults.denial is None:
                raise
            raise faults.denied_once(faults.denial) from error

    def denied(self, error: SessionError) -> bool:
        """Whether a request was not read, as the host has another session, or the server not this one."""
        return self.lost and error.not_executed and error.code is None

    async def _is_over(self) -> bool:
        """Whether it is said once more that there is no such session: one replica's word does not end it."""
        ping = Faults("ping")
        try:
            await self._line.send("ping", {}, _PING_S, ping)
        except SessionError as error:
            said = RpcError(error.code, error.remote_message, error.data)
            return ping.denial is not None or may_deny_session(said)
        return False

    def _over(self, task_id: str, *, cancelled: bool = False) -> None:
        self._line.board.over(task_id)
        if not cancelled:  # else a question may still be on its way, which nobody must answer
            self._tasks.pop(task_id, None)

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
            self.hear(taken_back(request_id))
            raise ConnectionLostError(
                "The answer was not sent: the server does not wait for it any more.", retryable=True
            )

    async def take_back(self, request_id: RequestId, timeout_s: float) -> None:
        """Tell the server that nobody waits for a reply that was lost.

        With each request that it gives up the host's session does so by itself.
        """
        with anyio.move_on_after(timeout_s):
            await self._line.take_back(request_id)

    def new_request_id(self) -> RequestId:
        """An ID for a request that another process may have to take back."""
        request_id = self._line.new_request_id()
        return super().new_request_id() if request_id is None else request_id

    async def listen(self) -> None:
        """Hear what the server says, until nobody wants to any more."""
        self.listening.set()
        await self._left.wait()

    def leave(self) -> None:
        """Take no questions any more."""
        self._line.board.leave(self)
        self._left.set()

    def sees_to(self, task_id: str) -> bool:
        """Whether the questions of a task are for us."""
        return task_id in self._tasks

    def leave_to_others(self, task_id: str) -> None:
        """See to a task no more."""
        self._tasks.pop(task_id, None)

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
