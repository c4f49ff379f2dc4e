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

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final

import anyio

from ...aio.clock import Clock
from ...aio.own_task import OwnTask
from ...engine.audience import OnUpdate
from ...engine.engine import OnAbandon
from ...engine.environment import Environment
from ...engine.progress import ProgressByToken
from ...engine.tool_result import OutputSchema
from ...journal.base import Journal
from ...machine.record import Scope
from ...policy import PollPolicy, TaskPreference
from ...protocol import JSONObject
from ...questions.callbacks import ElicitationCallback, Inputs, RootsCallback, SamplingCallback
from ...sessions.http.endpoint_names import is_url, name_of_url, parse_url
from ...sessions.v2025.task_policy import TaskPolicy
from ..call_options import key_of
from ..host_call import is_current
from ..host_calls import MadeCall, make_limits
from ..shared_options import SharedOptions
from .core_router import TaskRouter
from .core_server import CoreServer
from .relay import HostStream, Relay
from .relayed_calls import RelayedCalls

__all__ = ["TasksTransport"]

_MAX_UNREAD: Final = 10_000
"""Messages that wait to be read by the host's session, at most. A session of mcp 1.x reads nothing while one
of its callbacks runs, and messages behind may be for us."""


class TasksTransport(AbstractAsyncContextManager[tuple[Any, ...]]):
    """A transport above which a session of mcp 1.x or 2.x need not know of tasks.

    Entered, it gives the wrapped transport's tuple. If the server makes a task of the session's
    ``tools/call``, the task is journaled and seen through here, and its result is the reply. The session may
    speak 2026-07-28 or 2025-11-25. The server's questions go to the callbacks given here, or to the session's
    own, once each. Everything else passes unchanged: a session at another version, and a call that the SDK
    resumes by a token. At 2025-11-25 a session that gives up waiting by a read time-out does not say so. Its
    task goes on to its end.

    An error that no server has sent is a JSON-RPC error -32603, whose message says what to do next.

    ``TasksClient(url).resume()`` takes up calls that a crash leaves unfinished. At 2025-11-25 a task outlives
    the process if its MCP session does. The SDK ends the session when the transport is left, unless told
    otherwise: ``streamable_http_client(url, terminate_on_close=False)``. Resuming needs the ID of the MCP
    session: mcp 1.x gives it with the transport, and on mcp 2.x the host passes ``session_id``.

    Args:
        transport: Such as ``streamable_http_client(url)`` or ``stdio_client(parameters)``, not entered yet.
        endpoint: The server's name in the journal. A URL is the one that :class:`TasksClient` would be given.
        journal: ``None`` is the user's default SQLite file; a path is another file; a
            :class:`Journal` is used as it is.
        principal: On whose behalf; records of one principal are never used for another.
        application: Names the program in the journal, as for :class:`TasksClient`.
        elicitation: Answers ``elicitation/create`` of tasks, and every other one if the session declares no
            callback of its own. ``None``, here and for the next two, leaves all of them to the session.
        sampling: Answers ``sampling/createMessage``.
        roots: Answers ``roots/list``.
        poll: Latency against load.
        on_abandon: Whether the task of a call goes on (``"detach"``) or is cancelled (``"cancel"``) if the
            session cancels the call, or waits for it when the transport is left.
        output_schema: How to treat a result that does not match its tool's output schema: ``"raise"`` an
            error that has it, ``"warn"`` in the log, or ``"off"``, without a look at the schema. At
            2026-07-28 that is left to the session, which knows the tools.
        on_update: Gets each changed :class:`Task` of every call.
        task_preference: Whether to ask for tasks, as for :class:`TasksClient`.
        task_ttl_s: Seconds for which the server is asked to keep a task and its result.
        session_id: The ``Mcp-Session-Id``, or a function that returns it once the session is initialized.
            ``None`` takes it from the transport, if that gives it. Means nothing at 2026-07-28.
        hide_task_support: Whether ``tools/list`` is shown to the session without ``execution.taskSupport``,
            for hosts that skip such tools.
        environment: Clock, jitter and process, for tests, and an observer; ``None`` is the real ones.

    Raises:
        TypeError: ``journal`` is none of the above.
        ValueError: ``on_abandon`` or ``task_preference`` is no word for it, ``application`` is no name, or
            ``task_ttl_s`` is not positive.
    """

    def __init__(
        self,
        transport: AbstractAsyncContextManager[Any],
        *,
        endpoint: str,
        journal: Journal | str | os.PathLike[str] | None = None,
        principal: str = "",
        application: str | None = None,
        elicitation: ElicitationCallback | None = None,
        sampling: SamplingCallback | None = None,
        roots: RootsCallback | None = None,
        poll: PollPolicy | None = None,
        on_abandon: OnAbandon = "detach",
        output_schema: OutputSchema = "raise",
        on_update: OnUpdate | None = None,
        task_preference: TaskPreference = "auto",
        task_ttl_s: float = 86_400.0,
        session_id: str | Callable[[], str | None] | None = None,
        hide_task_support: bool = False,
        environment: Environment | None = None,
    ) -> None:
        options = SharedOptions(
            journal=journal,
            endpoint=endpoint,
            principal=principal,
            application=application,
            elicitation=elicitation,
            sampling=sampling,
            roots=roots,
            poll=poll,
            on_abandon=on_abandon,
            output_schema=output_schema,
            environment=environment,
        )
        self._engine = options.make_engine()
        policy, clock = self._engine.policy, self._engine.environment.clock
        scope = Scope(name_of_url(parse_url(endpoint)) if is_url(endpoint) else endpoint, principal)
        limits = make_limits(policy)
        callbacks = options.callbacks
        self._transport = transport
        self._session_id = session_id
        self._leave_s = 2 * policy.cancel_timeout_s  # the reply with the task ID may be on its way
        self._relay = Relay()
        progress = ProgressByToken(self._relay.tell_host)
        self._router = _Router(
            callbacks,
            clock,
            progress=progress,
            serve=self._serve,
            hides_task_support=hide_task_support,
        )
        self._calls = RelayedCalls(
            self._relay,
            self._engine,
            callbacks=callbacks,
            scope=scope,
            limits=limits,
            progress=progress,
            on_update=on_update,
            core_server=CoreServer(
                self._relay,
                self._router,
                callbacks,
                endpoint=scope.endpoint,
                limits=limits,
                preference=TaskPolicy(prefer=task_preference, ttl_s=task_ttl_s),
                session_id=self._find_session_id,
                clock=clock,
            ),
        )
        self._given: tuple[Any, ...] = ()
        self._own: OwnTask | None = None

    async def __aenter__(self) -> tuple[Any, ...]:
        """Enter the wrapped transport, and open the journal.

        Returns:
            The transport's own tuple, with streams of ours in place of the first two.

        Raises:
            JournalError: The journal cannot be used; the message says why and what to do.
        """
        own = OwnTask(self._open(), self._engine.tasks)
        await own.enter()
        self._own = own
        return self._given

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Abandon the calls that still wait, close the journal, and leave the wrapped transport.

        Awaited by code of a call, such as a callback, it returns at once, and the leaving goes on.
        """
        assert self._own is not None
        await self._own.leave(2 * self._leave_s)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """The wrapped transport, the relay and the journal, all open.

        In a task of its own: a host that is cancelled may be in the middle of a call, and the reply with its
        task ID must find the wrapped transport open.
        """
        async with self._transport as (from_server, to_server, *more):
            if self._session_id is None and more and callable(more[0]):
                self._session_id = more[0]
            to_host, unread = anyio.create_memory_object_stream[Any](_MAX_UNREAD)
            host_writes, from_host = anyio.create_memory_object_stream[Any](0)
            host_reads = HostStream(unread)
            self._given = host_reads, host_writes, *more
            tasks = anyio.create_task_group()
            await tasks.__aenter__()
            tasks.start_soon(self._relay.run, self._router, (from_host, to_host), (from_server, to_server))
            try:
                # Messages that are sent on leaving have to arrive, so the relay runs until then.
                async with host_reads, host_writes, self._engine.using_journal():
                    try:
                        yield
                    finally:
                        with anyio.move_on_after(self._leave_s, shield=True):
                            await self._relay.abandon_calls()
                        with anyio.CancelScope(shield=True):  # bounded by the journal's own limits
                            await self._calls.aclose()
            finally:
                tasks.cancel_scope.cancel()
                # Without the block's own exception, which would come back wrapped in a group.
                await tasks.__aexit__(None, None, None)

    async def _serve(self, request: JSONObject, metadata: Any) -> MadeCall | None:
        return await self._calls.serve(request, metadata)

    def _find_session_id(self) -> str | None:
        return self._session_id() if callable(self._session_id) else self._session_id


class _Router(TaskRouter):
    """Takes the calls of a session at either version.

    ``hides_task_support``: the host's session does not learn which tools may become tasks.
    """

    def __init__(
        self,
        inputs: Inputs,
        clock: Clock,
        *,
        progress: ProgressByToken,
        serve: Callable[[JSONObject, Any], Awaitable[MadeCall | None]],
        hides_task_support: bool,
    ) -> None:
        super().__init__(inputs, clock)
        self._progress = progress
        self._serve = serve
        self._hides_task_support = hides_task_support

    def takes_call(self, params: JSONObject) -> bool:
        """True if calls of the session can become tasks, or this one has a key."""
        return is_current(params) or self.introduction is not None or key_of(params) is not None

    async def serve_call(self, request: JSONObject, metadata: Any) -> MadeCall | None:
        """See a call of the host's through."""
        return await self._serve(request, metadata)

    def takes_notification(self, method: str, params: JSONObject) -> bool:
        """Learn of a server's notification. Returns whether the host's session must not have it."""
        self._progress.hear(params)
        return super().takes_notification(method, params)

    def listed(self, result: JSONObject) -> JSONObject | None:
        """The list of tools without ``execution.taskSupport``, if that is hidden."""
        tools = result.get("tools")
        if not (self._hides_task_support and isinstance(tools, list)):
            return None
        return {**result, "tools": [_without_task_support(tool) for tool in tools]}


def _without_task_support(tool: Any) -> Any:
    if not (isinstance(tool, dict) and isinstance(tool.get("execution"), dict)):
        return tool
    execution = {name: value for name, value in tool["execution"].items() if name != "taskSupport"}
    return {**tool, "execution": execution}
