"""Durable tasks under a session of the SDK's, at a server of 2025-11-25: around its transport.

::

    inner = streamable_http_client(url, terminate_on_close=False)  # the tasks live in the session
    async with (
        TasksTransport(inner, endpoint=url) as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        result = await session.call_tool("deploy", {"service": "web"})

The session sends ``tools/call`` and waits for the reply, as it does anyhow. What the server makes a task of
is seen through here, and its result is the reply.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Final

import anyio
import mcp_types
from anyio.abc import ObjectReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage
from pydantic import BaseModel, TypeAdapter

from .engine import Engine, OnAbandon, OnUpdate
from .errors import MissingCapabilityError, SessionError, TaskFailedError, TasksClientError
from .inputs import Callbacks, ElicitationCallback, InputContext, RootsCallback, SamplingCallback
from .journal.base import Journal, Scope
from .journal.sqlite import chosen_journal
from .policy import PollPolicy
from .sessions.base import ToolCall
from .sessions.limits import Limits
from .sessions.lines import ANSWERS
from .sessions.relay import Relay, Served
from .sessions.relay_session import RelaySession
from .sessions.task_wish import TASK_TTL_S, Preference, TaskWish
from .wire import JSONObject, RpcError

__all__ = ["TasksTransport"]

_MESSAGE: Final[TypeAdapter[Any]] = TypeAdapter(JSONRPCMessage)
_MOST_UNREAD: Final = 10_000
"""Messages for the host's session that wait to be read, at most: a session of 1.x reads nothing while it asks
somebody, and what comes meanwhile may be for us."""

_LOOK_S: Final = 10.0
"""Seconds that a call waits for the server's list of tools, at most."""

_INTERNAL_ERROR: Final = -32603
_ANY_CALLS: Final = 2**31
"""The session limits them itself, and may wait no more for some without a word."""


class TasksTransport(AbstractAsyncContextManager[tuple[Any, ...]]):
    """A transport whose session need not know of tasks: of the SDK's 1.x, or of its 2.x at 2025-11-25.

    Entered, it gives what the transport gives. Once the session has been initialized at 2025-11-25, its
    ``tools/call`` of a tool that the server makes tasks of returns the task's result; the task is
    journaled, and the server's questions go to the callbacks given here, or to the session's own, once each.
    Everything else passes unchanged, and so does a call that is to be resumed by a token of the SDK's. A
    session that gives up waiting, by a read time-out, does not say so: its task goes on to its end, which
    counts as delivered when it is read.

    An error that no server has sent comes as JSON-RPC error -32603, with a text that says what to do next.

    Over Streamable HTTP a task outlives the process, if its session does, which the SDK ends when the
    transport is left: ``streamable_http_client(url, terminate_on_close=False)``. Then
    ``TasksClient(url).resume()`` takes up what is unfinished, or has ended and was not read.

    Args:
        transport: Such as ``streamable_http_client(url)`` or ``stdio_client(parameters)``, not entered yet.
        endpoint: Names the server in the journal. A URL is that which :class:`TasksClient` would be given.
        journal: ``None`` is the user's default SQLite file; a path is another file; a
            :class:`Journal` is used as it is.
        principal: On whose behalf; records of one principal are never used for another.
        elicitation: Answers ``elicitation/create``, for tasks; and for all else, if the session declares no
            callback of its own. Like the next two, ``None`` leaves it to that one.
        sampling: Answers ``sampling/createMessage``.
        roots: Answers ``roots/list``.
        poll: Latency against load.
        on_abandon: What happens to the task of a call that the session takes back, or that is waited for when
            the transport is left.
        on_update: Gets each changed :class:`Task` of every call.
        task_preference: Whether to ask for tasks, as for :class:`TasksClient`.
        task_ttl_s: Seconds for which the server is asked to keep a task and its result.

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
    ) -> None:
        self._transport = transport
        self._on_update = on_update
        own = Callbacks(elicitation=elicitation, sampling=sampling, roots=roots)
        self._relay = Relay(wrapped=_wrapped, serve=self._serve, inputs=own)
        policy = poll or PollPolicy()
        self._leaving_s = 2 * policy.cancel_timeout_s  # one for the reply with the ID, to be sure
        name = _named(endpoint)
        inputs = Callbacks(
            elicitation=elicitation or self._elicit,
            sampling=sampling or self._sample,
            roots=roots or self._list_roots,
        )
        self._session = RelaySession(
            self._relay,
            endpoint=name,
            inputs=inputs,
            limits=Limits.of_host(policy.polls_in_flight, _ANY_CALLS),
            wish=TaskWish(prefer=task_preference, ttl_s=task_ttl_s),
        )
        self._engine = Engine(
            session=self._session,
            journal=chosen_journal(journal),
            inputs=inputs,
            policy=policy,
            scope=Scope(name, principal),
            on_abandon=on_abandon,
        )
        self._entered: AbstractAsyncContextManager[tuple[Any, ...]] = nullcontext(())

    async def __aenter__(self) -> tuple[Any, ...]:
        """Enter the transport, and open the journal.

        Returns:
            The transport's own, with streams of ours for the two that messages travel on.

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
        """Let go of every task, and leave the transport."""
        return await self._entered.__aexit__(exc_type, exc, traceback)

    @asynccontextmanager
    async def _enter(self) -> AsyncIterator[tuple[Any, ...]]:
        async with self._transport as (from_server, to_server, *more):
            to_host, unread = anyio.create_memory_object_stream[Any](_MOST_UNREAD)
            host_reads = Reading(unread, self._relay.read)
            host_writes, from_host = anyio.create_memory_object_stream[Any](0)
            session_id = more[0] if more and callable(more[0]) else _session_of(self._transport)
            tasks = anyio.create_task_group()
            await tasks.__aenter__()
            tasks.start_soon(self._relay.run, (from_host, to_host), (from_server, to_server), session_id)
            try:
                # What is said on leaving has to arrive, and so the messages pass until then.
                async with host_reads, host_writes, self._engine:
                    try:
                        yield host_reads, host_writes, *more
                    finally:
                        with anyio.move_on_after(self._leaving_s, shield=True):
                            await self._relay.let_go()
            finally:
                tasks.cancel_scope.cancel()
                # Without the block's own exception, which would come back wrapped in a group.
                await tasks.__aexit__(None, None, None)

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    async def _serve(self, params: JSONObject) -> Served | None:
        name, arguments, meta = params.get("name"), params.get("arguments"), params.get("_meta")
        if not isinstance(name, str) or "task" in params:
            return None  # the host follows this one itself
        try:
            makes_task = False
            with anyio.move_on_after(_LOOK_S):
                makes_task = await self._session.makes_task(name)
            if not makes_task:
                return None
        except MissingCapabilityError as error:
            return Served(_refusal(error))
        except SessionError:
            return None  # what hinders us may not hinder the call
        try:
            call = ToolCall(name=name, arguments=arguments or {}, meta=meta)
            outcome, had = await self._engine.call_raw(call, on_update=self._on_update)
        except TasksClientError as error:
            return Served(_refusal(error))
        return Served(_refusal(outcome) if isinstance(outcome, TasksClientError) else outcome, had)

    # ── questions ─────────────────────────────────────────────────────────────────────────────

    async def _elicit(self, context: InputContext, params: mcp_types.ElicitRequestParams) -> Any:
        return await self._asked("elicitation/create", params)

    async def _sample(self, context: InputContext, params: mcp_types.CreateMessageRequestParams) -> Any:
        return await self._asked("sampling/createMessage", params)

    async def _list_roots(self, context: InputContext) -> Any:
        return await self._asked("roots/list", None)

    async def _asked(self, method: str, params: BaseModel | None) -> Any:
        """Have the host's session ask, by a request that it takes for the server's."""
        said = None if params is None else params.model_dump(by_alias=True, mode="json", exclude_unset=True)
        answer = await self._relay.ask_host(method, said)
        if isinstance(answer, RpcError):
            code = _INTERNAL_ERROR if answer.code is None else answer.code
            return mcp_types.ErrorData(code=code, message=answer.message, data=answer.data)
        return ANSWERS[method].validate_python(answer, by_name=False)


class Reading(ObjectReceiveStream[Any]):
    """What a host's session reads, where it is noted what it has read.

    Args:
        stream: Brings the messages.
        read: Told of each when it has been taken.
    """

    def __init__(self, stream: MemoryObjectReceiveStream[Any], read: Callable[[Any], None]) -> None:
        self._stream = stream
        self._read = read

    async def receive(self) -> Any:
        """The next message."""
        message = await self._stream.receive()
        self._read(message)
        return message

    async def aclose(self) -> None:
        """Read no more."""
        await self._stream.aclose()

    def close(self) -> None:
        """The same, without waiting for anything."""
        self._stream.close()


def _session_of(transport: Any) -> Callable[[], str | None] | None:
    """What tells the ID of a transport's session, where the SDK's 2.x has it: in the frame of its own."""
    frame = getattr(getattr(transport, "gen", None), "ag_frame", None)
    for value in () if frame is None else frame.f_locals.values():
        if "Transport" in type(value).__name__ and hasattr(value, "session_id"):
            return partial(getattr, value, "session_id", None)
    return None


def _wrapped(message: JSONObject) -> Any:
    return SessionMessage(_MESSAGE.validate_python(message))


def _named(endpoint: str) -> str:
    """The name in the journal, which is the one that every other way in would give a URL."""
    if not endpoint.lower().startswith(("http://", "https://")):
        return endpoint
    # Imported on use: it needs httpx, which a host over stdio does not.
    from .sessions.endpoints import parse_url, url_endpoint

    return url_endpoint(parse_url(endpoint))


def _refusal(error: TasksClientError) -> RpcError:
    """What the host's session is told: the server's own words, where it has said them."""
    if isinstance(error, TaskFailedError) and error.code is not None:
        return RpcError(error.code, error.message, error.data)
    if isinstance(error, SessionError) and error.code is not None:
        return RpcError(error.code, error.remote_message, error.data)
    return RpcError(_INTERNAL_ERROR, str(error), None)
