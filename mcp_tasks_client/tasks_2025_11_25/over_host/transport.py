"""Durable tasks under a session of the official SDK at a server of 2025-11-25: around its transport.

::

    inner = streamable_http_client(url, terminate_on_close=False)  # the tasks live in the MCP session
    async with (
        TasksTransport(inner, endpoint=url) as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        result = await session.call_tool("deploy", {"service": "web"})

The session sends ``tools/call`` and waits for the reply, as it always does. If the server makes a task of the
call, the task is seen through here, and its result is the reply.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from types import TracebackType
from typing import Any, Final

import anyio
import mcp_types
from mcp_types import CreateMessageResult, CreateMessageResultWithTools, ElicitResult, ListRootsResult
from pydantic import BaseModel, TypeAdapter

from ...callbacks import Callbacks, ElicitationCallback, InputContext, RootsCallback, SamplingCallback
from ...engine.cancellation import OnAbandon
from ...engine.engine import Engine
from ...engine.environment import Environment
from ...engine.live_call import OnUpdate
from ...engine.outcome import as_rpc_error
from ...errors import MissingCapabilityError, SessionError, TasksClientError
from ...handle import detach
from ...journal.base import Journal
from ...journal.record import Scope
from ...journal.sqlite import choose_journal
from ...policy import PollPolicy, ReceivePolicy
from ...protocol import JSONObject
from ...protocol.replies import RpcError
from ...sessions.base import Limits, ToolCall
from ...sessions.http.endpoint_names import name_of_url, parse_url
from ...sessions.relay.messages import INTERNAL_ERROR
from ...sessions.relay.relay import HostStream, Relay, Served
from ..connection import Hear
from ..receiver import Receiver
from ..session import CoreTasksSession
from ..task_preference import TASK_TTL_S, Preference, TaskPreference
from .connection import RelayConnection
from .router import TaskRouter

__all__ = ["TasksTransport"]

_MAX_UNREAD: Final = 10_000
"""Messages that wait to be read by the host's session, at most. A session of mcp 1.x reads nothing while one
of its callbacks runs, and what comes meanwhile may be for us."""

_LIST_S: Final = 10.0
"""Seconds that a call waits for the server's list of tools, at most."""

_CALLS_IN_FLIGHT: Final = 2**31
"""The host's session limits its calls itself. It may have stopped waiting for some of them without a word."""

_ANSWERS: Final[dict[str, TypeAdapter[Any]]] = {
    "elicitation/create": TypeAdapter(ElicitResult),
    "sampling/createMessage": TypeAdapter(CreateMessageResult | CreateMessageResultWithTools),
    "roots/list": TypeAdapter(ListRootsResult),
}


class TasksTransport(AbstractAsyncContextManager[tuple[Any, ...]]):
    """A transport above which a session of mcp 1.x or 2.x at 2025-11-25 need not know of tasks.

    Entered, it gives what the wrapped transport gives. Once the session has been initialized at 2025-11-25,
    its ``tools/call`` of a tool that the server makes tasks of returns the task's result. The task is
    journaled. The server's questions go to the callbacks given here, or to the session's own, once each.
    Everything else passes unchanged: a session at another version, and a call that the SDK resumes by a
    token. A session that gives up waiting by a read time-out tells nobody so. Its task goes on to its end.

    An error that no server has sent is a JSON-RPC error -32603, whose message says what to do next.

    Over Streamable HTTP a task outlives the process if its MCP session does. The SDK ends the session when
    the transport is left, unless told otherwise: ``streamable_http_client(url, terminate_on_close=False)``.
    Then ``TasksClient(url).resume()`` takes up what is unfinished. It needs the ID of the MCP session: mcp
    1.x gives it with the transport, and on mcp 2.x the host passes ``session_id``.

    Args:
        transport: Such as ``streamable_http_client(url)`` or ``stdio_client(parameters)``, not entered yet.
        endpoint: The server's name in the journal. A URL is the one that :class:`TasksClient` would be given.
        journal: ``None`` is the user's default SQLite file; a path is another file; a
            :class:`Journal` is used as it is.
        principal: On whose behalf; records of one principal are never used for another.
        elicitation: Answers ``elicitation/create`` of tasks, and every other one if the session declares no
            callback of its own. ``None``, here and for the next two, leaves all of them to the session.
        sampling: Answers ``sampling/createMessage``.
        roots: Answers ``roots/list``.
        poll: Latency against load.
        on_abandon: What happens to the task of a call that the session cancels, or waits for when the
            transport is left: ``"detach"`` or ``"cancel"``.
        on_update: Gets each changed :class:`Task` of every call.
        task_preference: Whether to ask for tasks, as for :class:`TasksClient`.
        task_ttl_s: Seconds for which the server is asked to keep a task and its result.
        session_id: The ``Mcp-Session-Id``, or what returns it once the session is initialized. ``None``
            takes it from the transport, if that gives it.

    Raises:
        TypeError: ``journal`` is none of the above.
        ValueError: ``on_abandon`` or ``task_preference`` is no word for it, or ``task_ttl_s`` not positive.
    """

    def __init__(
        self,
        transport: AbstractAsyncContextManager[Any],
        *,
        endpoint: str,
        journal: Journal | str | os.PathLike[str] | None = None,
        principal: str = "",
        elicitation: ElicitationCallback | None = None,
        sampling: SamplingCallback | None = None,
        roots: RootsCallback | None = None,
        poll: PollPolicy | None = None,
        on_abandon: OnAbandon = "detach",
        on_update: OnUpdate | None = None,
        task_preference: Preference = "auto",
        task_ttl_s: float = TASK_TTL_S,
        session_id: str | Callable[[], str | None] | None = None,
    ) -> None:
        policy, environment = poll or PollPolicy(), Environment()
        self._transport = transport
        self._on_update = on_update
        self._session_id = session_id
        self._preference = TaskPreference(prefer=task_preference, ttl_s=task_ttl_s)
        self._leave_s = 2 * policy.cancel_timeout_s  # the reply with the task ID may be on its way
        own = Callbacks(elicitation=elicitation, sampling=sampling, roots=roots)
        self._router = TaskRouter(own, self._serve_call, environment.clock)
        self._relay = Relay(self._router)
        inputs = Callbacks(
            elicitation=elicitation or self._elicit,
            sampling=sampling or self._sample,
            roots=roots or self._list_roots,
        )
        name = _name_of(endpoint)
        self._session = CoreTasksSession(
            self._connect,
            endpoint=name,
            limits=Limits(tasks_in_flight=policy.polls_in_flight, calls_in_flight=_CALLS_IN_FLIGHT),
            client_info={},  # the host has introduced itself
            inputs=inputs,
            # What the server has a client run as tasks is the business of the host's session.
            receiver=Receiver(Callbacks(), ReceivePolicy(), environment.clock),
            preference=self._preference,
            clock=environment.clock,
        )
        self._engine = Engine(
            session=self._session,
            journal=choose_journal(journal),
            inputs=inputs,
            policy=policy,
            scope=Scope(name, principal),
            on_abandon=on_abandon,
            handle_of=detach,
            environment=environment,
        )
        self._entered: AbstractAsyncContextManager[tuple[Any, ...]] = nullcontext(())

    async def __aenter__(self) -> tuple[Any, ...]:
        """Enter the wrapped transport, and open the journal.

        Returns:
            What the transport gave, with streams of ours in place of the first two.

        Raises:
            JournalError: The journal cannot be used; the message says why and what to do.
        """
        self._entered = self._enter()
        return await self._entered.__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Abandon the calls that still wait, close the journal, and leave the wrapped transport."""
        return await self._entered.__aexit__(exc_type, exc, traceback)

    @asynccontextmanager
    async def _enter(self) -> AsyncIterator[tuple[Any, ...]]:
        async with self._transport as (from_server, to_server, *more):
            if self._session_id is None and more and callable(more[0]):
                self._session_id = more[0]
            to_host, unread = anyio.create_memory_object_stream[Any](_MAX_UNREAD)
            host_writes, from_host = anyio.create_memory_object_stream[Any](0)
            host_reads = HostStream(unread)
            tasks = anyio.create_task_group()
            await tasks.__aenter__()
            tasks.start_soon(self._relay.run, (from_host, to_host), (from_server, to_server))
            try:
                # What is said on leaving has to arrive, so the relay runs until then.
                async with host_reads, host_writes, self._engine:
                    try:
                        yield host_reads, host_writes, *more
                    finally:
                        with anyio.move_on_after(self._leave_s, shield=True):
                            await self._relay.abandon_calls()
            finally:
                tasks.cancel_scope.cancel()
                # Without the block's own exception, which would come back wrapped in a group.
                await tasks.__aexit__(None, None, None)

    def _connect(self, hear: Hear, session_id: str | None) -> RelayConnection:
        # The only MCP session here is the host's, whichever a record names.
        current = self._session_id() if callable(self._session_id) else self._session_id
        return RelayConnection(self._relay, self._router, hear, current)

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    async def _serve_call(self, params: JSONObject) -> Served | None:
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
            outcome, delivered = await self._engine.call_raw(call, on_update=self._on_update)
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


def _name_of(endpoint: str) -> str:
    """The name in the journal: of a URL, the one that every other way in gives it."""
    if not endpoint.lower().startswith(("http://", "https://")):
        return endpoint
    return name_of_url(parse_url(endpoint))
