"""The MCP session of a host: requests of ours travel among the host's, over a relay.

Such a session cannot be begun again here. Once it has ended, another process can go on with its tasks, if
the server gave the session an ID and keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Final

import anyio
from anyio.lowlevel import checkpoint

from ...errors import ConnectionLostError, SessionError
from ...protocol import JSONObject, RequestId
from ...protocol.replies import RpcError
from ...sessions.request_errors import RequestErrors
from ...tasks_2025_11_25.connection import Connection, Hear, Source, StreamCursor
from ...tasks_2025_11_25.shapes import read_created_task
from .core_router import TaskRouter
from .introspection import denies_session
from .relay import Relay, error_of

__all__ = ["RelayConnection"]

_PING_S: Final = 10.0


class RelayConnection(Connection):
    """The host's MCP session. No context is of use to it, since its messages travel among the host's.

    Args:
        relay: Carries the messages.
        router: Knows how the session began, and whose question is whose.
        hear: Called with each question of a task of ours, and each notification.
        session_id: What the transport calls the session; ``None`` if that cannot be seen.
    """

    acknowledges: ClassVar[bool] = False

    def __init__(self, relay: Relay, router: TaskRouter, hear: Hear, session_id: str | None) -> None:
        super().__init__(session_id)
        self._relay = relay
        self._router = router
        router.hear = lambda message: hear(self, message, Source("the host's session"))

    async def initialize(self, capabilities: JSONObject, client_info: JSONObject, timeout_s: float) -> None:
        """Read how the host began the session. The host's ``initialize`` told what the client declares."""
        await checkpoint()
        self.cancels_tasks = self._router.cancels_tasks
        self.makes_tasks = self._router.makes_tasks
        self.introduction = self._router.introduction or {}

    async def request(
        self,
        method: str,
        params: JSONObject,
        silence_s: float,
        *,
        context: object,
        total_s: float | None = None,
        task_id: str | None = None,
        request_id: RequestId | None = None,
        cursor: StreamCursor | None = None,
    ) -> JSONObject:
        """Send a request once, and return its result.

        Args:
            method: JSON-RPC method.
            params: Its params.
            silence_s: Seconds after which the request is given up. ``tools/call`` and ``tasks/result`` may
                take for ever: the host's transport tells when the connection is gone.
            context: Ignored.
            total_s: Ignored, since nothing can be seen of a reply before it is there.
            task_id: The task that the request is about.
            request_id: Its JSON-RPC ID, by which another process can cancel it; ``None`` makes one.
            cursor: Ignored. The host's transport resumes its streams itself.

        Raises:
            SessionError: No result.
        """
        timeout_s = None if method in ("tools/call", "tasks/result") else silence_s
        errors = RequestErrors(method, task_id, (self.session_id,) if self.session_id else ())
        if method != "tools/call":
            return await self._ask(errors, params, timeout_s, request_id)
        with self._router.creating():
            result = await self._ask(errors, params, timeout_s, request_id)
            created = read_created_task(result)
            if created is not None:
                self._router.add(created["taskId"])
            return result

    async def _ask(
        self, errors: RequestErrors, params: JSONObject, timeout_s: float | None, request_id: RequestId | None
    ) -> JSONObject:
        reply = await self._relay.request(errors, params, timeout_s, request_id)
        if not isinstance(reply, RpcError):
            return reply
        if not denies_session(reply):
            raise error_of(errors, reply)
        # One of several servers may not have heard of the session, so that one word does not end it.
        if await self._denies_ping():
            raise ConnectionLostError(
                f"The server has ended the session of the host, and has not read {errors.method}. "
                "Connect again; TasksClient(url).resume() looks for the tasks that are unfinished.",
                not_executed=True,
            )
        raise errors.lost(reply.message)

    async def _denies_ping(self) -> bool:
        with suppress(SessionError):
            again = await self._relay.request(RequestErrors("ping"), {}, _PING_S)
            return isinstance(again, RpcError) and denies_session(again)
        return False

    async def resume(
        self,
        method: str,
        params: JSONObject,
        silence_s: float,
        *,
        context: object,
        task_id: str | None,
        request_id: RequestId,
        cursor: StreamCursor,
    ) -> JSONObject:
        """Refuse: streams are the business of the host's transport.

        Raises:
            ConnectionLostError: Always.
        """
        await checkpoint()
        raise RequestErrors(method, task_id).lost("its stream cannot be resumed over a host's session")

    async def respond(
        self,
        request_id: RequestId,
        answer: JSONObject | RpcError,
        timeout_s: float,
        *,
        context: object,
        task_id: str | None = None,
    ) -> None:
        """Answer a request of the server's. Nobody tells whether the answer arrives: the SDK does not.

        So the answer is journaled until a snapshot shows that the task goes on.

        Raises:
            SessionError: There is no connection any more.
        """
        errors = RequestErrors("an answer", task_id)
        with anyio.move_on_after(timeout_s):
            if await self._relay.answer(request_id, answer):
                return
            raise errors.closed("connection of the host's session", sent=False)
        raise errors.timed_out(timeout_s)

    async def notify(
        self, method: str, params: JSONObject | None, timeout_s: float, *, context: object
    ) -> None:
        """Send a notification. Nothing is raised if there is no connection any more."""
        with anyio.move_on_after(timeout_s):
            await self._relay.notify(method, params or {})

    async def listen(self, context: Callable[[], object]) -> None:
        """Return when the connection ends. What the server sends on its own account comes over the relay."""
        self.listening.set()
        await self._relay.closed.wait()
