"""The calls of a host's session at 2025-11-25, whose messages pass through a relay."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import anyio
import mcp_types
from mcp_types import CreateMessageResult, CreateMessageResultWithTools, ElicitResult, ListRootsResult
from pydantic import BaseModel, TypeAdapter

from ...callbacks import Callbacks, InputContext
from ...engine.cancellation import OnAbandon
from ...engine.engine import Engine
from ...engine.environment import Environment
from ...engine.live_call import OnUpdate
from ...engine.outcome import as_rpc_error
from ...engine.progress import ProgressByToken
from ...errors import MissingCapabilityError, SessionError, TasksClientError
from ...handle import detach
from ...journal.base import Journal
from ...machine.record import Scope
from ...policy import PollPolicy, ReceivePolicy
from ...protocol import JSONObject
from ...protocol.replies import RpcError, id_in
from ...sessions.base import Limits, ToolCall
from ...sessions.http.endpoint_names import is_url
from ...tasks_2025_11_25.connection import Hear
from ...tasks_2025_11_25.core_session import CoreTasksSession
from ...tasks_2025_11_25.receiver import Receiver
from ...tasks_2025_11_25.task_preference import TaskPreference
from .core_connection import RelayConnection
from .core_router import TaskRouter
from .messages import INTERNAL_ERROR
from .relay import Relay, Served

__all__ = ["CoreTasksCalls"]

logger = logging.getLogger("mcp_tasks_client")

_LIST_S: Final = 10.0
"""Seconds that a call waits for the server's list of tools, at most."""

_ANSWERS: Final[dict[str, TypeAdapter[Any]]] = {
    "elicitation/create": TypeAdapter(ElicitResult),
    "sampling/createMessage": TypeAdapter(CreateMessageResult | CreateMessageResultWithTools),
    "roots/list": TypeAdapter(ListRootsResult),
}


class CoreTasksCalls:
    """Makes the calls of the host's that may become tasks, and brings their replies.

    Args:
        relay: Carries our requests.
        router: Knows how the session began, and whose question is whose.
        callbacks: Answer the server's questions. What these do not answer goes to the host's session.
        journal: Keeps the calls.
        policy: Latency against load.
        scope: Under which the journal keeps the calls.
        limits: The bounds to keep.
        on_abandon: What becomes of the task of a call that the host's session gives up.
        progress: Of the host's calls.
        on_update: Told of each changed snapshot; may be ``None``.
        preference: Whether to ask for tasks.
        session_id: Gives the ``Mcp-Session-Id``; ``None`` while it cannot be seen.
        environment: Clock, jitter, process and probe.

    Attributes:
        engine: Sees the calls through. To be entered.
    """

    def __init__(
        self,
        relay: Relay,
        router: TaskRouter,
        callbacks: Callbacks,
        *,
        journal: Journal,
        policy: PollPolicy,
        scope: Scope,
        limits: Limits,
        on_abandon: OnAbandon,
        progress: ProgressByToken,
        on_update: OnUpdate | None,
        preference: TaskPreference,
        session_id: Callable[[], str | None],
        environment: Environment,
    ) -> None:
        self._relay = relay
        self._router = router
        self._progress = progress
        self._listeners = () if on_update is None else (on_update,)
        self._preference = preference
        self._session_id = session_id
        inputs = Callbacks(
            elicitation=callbacks.elicitation or self._elicit,
            sampling=callbacks.sampling or self._sample,
            roots=callbacks.roots or self._list_roots,
        )
        self._session = CoreTasksSession(
            self._connect,
            endpoint=scope.endpoint,
            limits=limits,
            client_info={},  # the host has introduced itself
            inputs=inputs,
            # What the server has a client run as tasks is the business of the host's session.
            receiver=Receiver(Callbacks(), ReceivePolicy(), environment.clock),
            preference=preference,
            clock=environment.clock,
        )
        self.engine = Engine(
            session=self._session,
            journal=journal,
            inputs=inputs,
            policy=policy,
            scope=scope,
            on_abandon=on_abandon,
            handle_of=detach,
            environment=environment,
        )

    async def serve(self, params: JSONObject) -> Served | None:
        """See a ``tools/call`` through; ``None`` if the host's own request is to go to the server."""
        name, arguments, meta = params.get("name"), params.get("arguments"), params.get("_meta")
        if not isinstance(name, str) or "task" in params:
            return None  # the host follows a task of its own itself
        try:
            if not await self._wants_task(name):
                return None
        except MissingCapabilityError as error:
            return Served(as_rpc_error(error))
        call = ToolCall(name=name, arguments=arguments or {}, meta=meta)
        try:
            with self._progress.telling(id_in(meta, "progressToken")) as tell:
                outcome, delivered = await self.engine.call_raw(call, listeners=(*self._listeners, *tell))
        except TasksClientError as error:
            return Served(as_rpc_error(error))
        return Served(as_rpc_error(outcome) if isinstance(outcome, TasksClientError) else outcome, delivered)

    async def _wants_task(self, name: str) -> bool:
        tool, makes_tasks = None, self._router.makes_tasks
        if makes_tasks:
            # A list of tools that cannot be had is no reason to hold up a call.
            with anyio.move_on_after(_LIST_S), suppress(SessionError):
                tool = await self._session.tool(name)
        return self._preference.wants_task(name, tool, server_makes_tasks=makes_tasks)

    def _connect(self, hear: Hear, session_id: str | None) -> RelayConnection:
        # The only MCP session here is the host's, whichever a record names.
        current = self._session_id()
        if current is None and self._router.makes_tasks and is_url(self._session.endpoint):
            logger.warning(
                "The ID of the MCP session at %s cannot be seen, so that its tasks end with this process. "
                "Give TasksTransport session_id= where the host's transport knows it.",
                self._session.endpoint,
            )
        return RelayConnection(self._relay, self._router, hear, current)

    # ── questions ─────────────────────────────────────────────────────────────────────────────

    async def _elicit(self, context: InputContext, params: mcp_types.ElicitRequestParams) -> Any:
        return await self._ask_host("elicitation/create", params)

    async def _sample(self, context: InputContext, params: mcp_types.CreateMessageRequestParams) -> Any:
        return await self._ask_host("sampling/createMessage", params)

    async def _list_roots(self, context: InputContext) -> Any:
        return await self._ask_host("roots/list", None)

    async def _ask_host(self, method: str, params: BaseModel | None) -> Any:
        """Have the host's session ask its own callback, by a request that it takes for the server's."""
        wire = None if params is None else params.model_dump(by_alias=True, mode="json", exclude_unset=True)
        answer = await self._relay.ask_host(method, wire)
        if isinstance(answer, RpcError):
            code = INTERNAL_ERROR if answer.code is None else answer.code
            return mcp_types.ErrorData(code=code, message=answer.message, data=answer.data)
        return _ANSWERS[method].validate_python(answer, by_name=False)
