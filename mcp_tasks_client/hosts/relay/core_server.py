"""A server of 2025-11-25 behind the transport of a host's session, and the answers to its questions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import anyio

from ...aio.clock import Clock
from ...errors import MissingCapabilityError, SessionError
from ...policy import ReceivePolicy
from ...protocol import JSONObject
from ...questions.callbacks import Callbacks, InputContext, Inputs
from ...questions.kinds import KINDS, is_declared
from ...sessions.base import Limits
from ...sessions.http.endpoint_names import is_url
from ...sessions.v2025.connection import Hear
from ...sessions.v2025.core_session import CoreTasksSession
from ...sessions.v2025.receiver import Receiver
from ...sessions.v2025.shapes import declares_tasks
from ...sessions.v2025.task_policy import TaskPolicy
from ..host_call import HostCall
from ..questions import read_answer
from .core_connection import RelayConnection
from .core_router import TaskRouter
from .relay import Relay

__all__ = ["CoreServer"]

logger = logging.getLogger("mcp_tasks_client")

_LIST_S: Final = 10.0
"""Seconds that a call waits for the server's list of tools, at most."""


class CoreServer:
    """The server behind a session at 2025-11-25.

    Questions that the callbacks do not answer go to the host's session. ``session_id`` gives the
    ``Mcp-Session-Id``, and ``None`` while it cannot be seen.

    Attributes:
        session: Sends the requests.
        inputs: Answers the questions.
    """

    def __init__(
        self,
        relay: Relay,
        router: TaskRouter,
        callbacks: Callbacks,
        *,
        endpoint: str,
        limits: Limits,
        preference: TaskPolicy,
        session_id: Callable[[], str | None],
        clock: Clock,
    ) -> None:
        self._relay = relay
        self._router = router
        self._preference = preference
        self._session_id = session_id
        self.inputs = _RelayInputs(callbacks, relay)
        self.session = CoreTasksSession(
            self._connect,
            endpoint=endpoint,
            limits=limits,
            client_info={},  # the host has introduced itself
            inputs=self.inputs,
            # Tasks that the server has a client run are run by the host's session.
            receiver=Receiver(Callbacks(), ReceivePolicy(), clock),
            preference=preference,
            clock=clock,
        )

    @property
    def is_met(self) -> bool:
        """Whether the host's session was negotiated at 2025-11-25."""
        return self._router.introduction is not None

    async def takes(self, call: HostCall) -> bool:
        """Whether a call is made here, and not left to the host's own request.

        Raises:
            MissingCapabilityError: The host wants tasks always, and the server makes none of the tool.
        """
        if call.key is not None:
            return True
        # A list of tools that cannot be had is no reason to hold up a call.
        with anyio.move_on_after(_LIST_S):
            try:
                return await self.session.may_make_task(call.tool_call.name)
            except MissingCapabilityError:
                raise
            except SessionError as error:
                logger.info("tools/call passes as it is, since the server could not be asked: %s", error)
        return self._preference.prefer == "always"

    def _connect(self, hear: Hear, session_id: str | None) -> RelayConnection:
        # The only MCP session here is the host's, whichever a record names.
        current = self._session_id()
        makes_tasks = declares_tasks(self._router.introduction, "requests", "tools", "call")
        if current is None and makes_tasks and is_url(self.session.endpoint):
            logger.warning(
                "The ID of the MCP session at %s cannot be seen, so that its tasks end with this process. "
                "Give TasksTransport session_id= where the host's transport knows it.",
                self.session.endpoint,
            )
        return RelayConnection(self._relay, self._router, hear, current, self.session.limits.task_timeout_s)


class _RelayInputs(Inputs):
    """Asks the transport's callbacks, and the host's session if there is no callback for a question."""

    def __init__(self, callbacks: Callbacks, relay: Relay) -> None:
        self._callbacks = callbacks
        self._relay = relay

    @property
    def capabilities(self) -> JSONObject:
        """All kinds, since the host's session itself refuses those that it cannot answer."""
        return {kind.name: {} for kind in KINDS.values()} | self._callbacks.capabilities

    async def answer(self, context: InputContext, request: JSONObject) -> JSONObject | None:
        """The answer of a callback, or of the host's session, which takes the request for the server's."""
        method = str(request.get("method"))
        if is_declared(method, self._callbacks.capabilities):
            return await self._callbacks.answer(context, request)
        return read_answer(request, await self._relay.ask_host(method, request.get("params")))
