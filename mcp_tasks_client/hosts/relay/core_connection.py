"""The MCP session of a host, in which our requests travel among the host's, over a relay.

Such a session cannot be begun again here. Once it has ended, another process can go on with its tasks, if
the server gave the session an ID and keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

import anyio
from anyio.lowlevel import checkpoint

from ...errors import ConnectionLostError
from ...protocol import JSONObject, RequestId
from ...protocol.replies import Reply, RpcError
from ...questions.context import CallContext
from ...sessions.v2025.connection import Connection, Hear, OwnRequest
from ...sessions.v2025.shapes import read_created_task
from ..sdk.introspection import error_of
from .core_router import TaskRouter
from .introspection import denies_session
from .relay import Relay

__all__ = ["RelayConnection"]

_MOST_DENIALS: Final = 2
"""Polls in a row that the server answers by denying the session. Then observation ends."""


class RelayConnection(Connection):
    """The host's MCP session. It needs no context, since its messages travel among the host's.

    The host's transport tells when the connection is gone.

    Args:
        relay: Carries the messages.
        router: Knows how the session began, and which questions are of tasks of ours.
        hear: Called with each question of a task of ours, and each notification.
        session_id: The transport's name of the session; ``None`` if that cannot be seen.
        timeout_s: Seconds after which a request is given up. ``tools/call``, and the ``tasks/result`` of a
            task that goes on, may take for ever, since a reply cannot be seen coming.
    """

    acknowledges: ClassVar[bool] = False
    reaches_others: ClassVar[bool] = False

    def __init__(
        self, relay: Relay, router: TaskRouter, hear: Hear, session_id: str | None, timeout_s: float
    ) -> None:
        super().__init__(session_id, timeout_s)
        self._relay = relay
        self._router = router
        source = OwnRequest("the host's session")
        router.hear = lambda message: hear(self, message, source)

    async def _shake_hands(self, capabilities: JSONObject, client_info: JSONObject) -> JSONObject:
        # The host has begun the session, and its ``initialize`` had the client's capabilities.
        await checkpoint()
        return self._router.introduction or {}

    async def request(self, own: OwnRequest) -> JSONObject:
        """The result of a request, which is sent at most once."""
        if own.method != "tools/call":
            return await self._ask(own)
        with self._router.creating():
            result = await self._ask(own)
            created = read_created_task(result)
            if created is not None:
                self._router.add(created["taskId"])
            return result

    async def _ask(self, own: OwnRequest) -> JSONObject:
        errors = self.errors_of(own)
        timeout_s = self._timeout_s if own.silence_s is None else None
        reply = await self._relay.request(errors, own.params, timeout_s, own.request_id)
        if not isinstance(reply, RpcError):
            return reply
        if not denies_session(reply):
            raise error_of(errors, reply)
        denied = ConnectionLostError(
            f"The server has ended the session of the host, and has not read {errors.method}. "
            "Connect again; TasksClient(url).resume() looks for the tasks that are unfinished.",
            retryable=True,
            not_executed=True,
        )
        denied.patience = _MOST_DENIALS, 0.0  # one of several replicas may not know the session
        raise denied

    async def answer(
        self, request_id: RequestId, reply: Reply, context: CallContext | None, task_id: str | None
    ) -> None:
        """Answer a request of the server's. The SDK does not tell whether the answer arrives.

        So the answer is journaled until a snapshot shows that the task goes on.
        """
        errors = self.errors_of(OwnRequest("an answer", task_id=task_id))
        with anyio.move_on_after(self._timeout_s):
            if await self._relay.answer(request_id, reply):
                return
            raise errors.closed("connection of the host's session", sent=False)
        raise errors.timed_out(self._timeout_s)

    async def notify(self, method: str, params: JSONObject, context: CallContext | None) -> None:
        """Send a notification. Nothing is raised if the connection is gone."""
        with anyio.move_on_after(self._timeout_s):
            await self._relay.notify(method, params)

    async def listen(self, context: Callable[[], CallContext | None]) -> None:
        """Return when the connection ends. Messages of the server on its own account come over the relay."""
        self.listening.set()
        await self._relay.closed.wait()
