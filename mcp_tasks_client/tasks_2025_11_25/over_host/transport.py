"""Durable tasks under a session of the official SDK: around its transport.

::

    inner = streamable_http_client(url, terminate_on_close=False)  # at 2025-11-25 tasks live in the session
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

import logging
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
from ...engine.inline import InlineEngine
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
from ...sessions.relay.current_calls import CurrentCalls, is_current
from ...sessions.relay.messages import INTERNAL_ERROR
from ...sessions.relay.relay import HostStream, Relay, Served
from ..connection import Hear
from ..receiver import Receiver
from ..session import CoreTasksSession
from ..task_preference import TASK_TTL_S, Preference, TaskPreference
from .connection import RelayConnection
from .router import TaskRouter

__all__ = ["TasksTransport"]

logger = logging.getLogger("mcp_tasks_client")

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
    """A transport above which a session of mcp 1.x or 2.x need not know of tasks.

    Entered, it gives what the wrapped transport gives. If the server makes a task of the session's
    ``tools/call``, the task is journaled and seen through here, and its result is the reply. The session may
    speak 2026-07-28 or 2025-11-25. The server's questions go to the callbacks given here, or to the session's
    own, once each. Everything else passes unchanged: a session at another version, and a call that the SDK
    resumes by a token. At 2025-11-25 a session that gives up waiting by a read time-out tells nobody so. Its
    task goes on to its end.

    An error that no server has sent is a JSON-RPC error -32603, whose message says what to do next.

    ``TasksClient(url).resume()`` takes up what a crash leaves unfinished. At 2025-11-25 a task outlives the
    process if its MCP session does. The SDK ends the session when the transport is left, unless told
    otherwise: ``streamable_http_client(url, terminate_on_close=False)``. Resuming needs the ID of the MCP
    session: mcp 1.x gives it with the transport, and on mcp 2.x the host passes ``session_id``.

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
            takes it from the transport, if that gives it. Means nothing at 2026-07-28.
        hide_task_support: Whether ``tools/list`` is shown to the session without ``execution.taskSupport``,
            for hosts that skip such tools.
        environment: Clock, jitter, process and probe, for tests; ``None`` is the real ones.

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
        hide_task_support: bool = False,
        environment: Environment | None = None,
    ) -> None:
        policy, environment = poll or PollPolicy(), environment or Environment()
        journal = choose_journal(journal)
        self._transport = transport
        self._on_update = on_update
        self._session_id = session_id
        self._preference = TaskPreference(prefer=task_preference, ttl_s=task_ttl_s)
        self._leave_s = 2 * policy.cancel_timeout_s  # the reply with the task ID may be on its way
        own = Callbacks(elicitation=elicitation, sampling=sampling, roots=roots)
        self._router = _Router(own, self._serve_call, environment.clock)
        self._router.hides_task_support = hide_task_support
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
            journal=journal,
            inputs=inputs,
            policy=policy,
            scope=Scope(name, principal),
            on_abandon=on_abandon,
            handle_of=detach,
            environment=environment,
        )
        self._router.current = self._current = CurrentCalls(
            self._relay,
            InlineEngine(
                journal=journal,
                policy=policy,
                on_abandon=on_abandon,
                handle_of=detach,
                environment=environment,
            ),
            callbacks=own if elicitation or sampling or roots else None,
            scope=Scope(name, principal),
            limits=Limits(tasks_in_flight=policy.polls_in_flight, calls_in_flight=_CALLS_IN_FLIGHT),
            on_update=on_update,
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
                        with anyio.CancelScope(shield=True):  # bounded by the journal's own limits
                            await self._current.aclose()
            finally:
                tasks.cancel_scope.cancel()
                # Without the block's own exception, which would come back wrapped in a group.
                await tasks.__aexit__(None, None, None)

    def _connect(self, hear: Hear, session_id: str | None) -> RelayConnection:
        # The only MCP session here is the host's, whichever a record names.
        current = self._session_id() if callable(self._session_id) else self._session_id
        if current is None and self._router.makes_tasks and _is_url(self._session.endpoint):
            logger.warning(
                "The ID of the MCP session at %s cannot be seen, so that its tasks end with this process. "
                "Give TasksTransport session_id= where the host's transport knows it.",
                self._session.endpoint,
            )
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


class _Router(TaskRouter):
    """Takes the calls of a session at either version.

    Attributes:
        current: Serves the calls of a session at 2026-07-28.
        hides_task_support: Whether the host's session does not learn which tools may become tasks.
    """

    current: CurrentCalls
    hides_task_support = False

    def takes_call(self, params: JSONObject) -> bool:
        """Whether the session is one in which calls can become tasks."""
        return is_current(params) or super().takes_call(params)

    async def serve_call(self, request: JSONObject, metadata: Any) -> Served | None:
        """See a call of the host's through."""
        if is_current(request["params"]):
            return await self.current.serve(request, metadata)
        return await super().serve_call(request, metadata)

    def takes_notification(self, method: str, params: JSONObject) -> bool:
        """Learn of a server's notification. Returns whether the host's session must not have it."""
        self.current.hear(method, params)
        return super().takes_notification(method, params)

    def listed(self, result: JSONObject) -> JSONObject | None:
        """The list of tools without what it says of tasks."""
        tools = result.get("tools")
        if not (self.hides_task_support and isinstance(tools, list)):
            return None
        return {**result, "tools": [_without_task_support(tool) for tool in tools]}


def _without_task_support(tool: Any) -> Any:
    if not (isinstance(tool, dict) and isinstance(tool.get("execution"), dict)):
        return tool
    execution = {name: value for name, value in tool["execution"].items() if name != "taskSupport"}
    return {**tool, "execution": execution}


def _name_of(endpoint: str) -> str:
    """The name in the journal: of a URL, the one that every other way in gives it."""
    return name_of_url(parse_url(endpoint)) if _is_url(endpoint) else endpoint


def _is_url(endpoint: str) -> bool:
    return endpoint.lower().startswith(("http://", "https://"))
