"""A session of the official SDK as ours: that of ``mcp.Client``, of ``fastmcp.Client``, or a bare one.

The connection, its credentials and its callbacks are the host's. Two decisions of the SDK show here.
It tells neither HTTP status nor ``Retry-After``, so every refusal over HTTP that is no JSON-RPC error
looks like one that may pass. And over Streamable HTTP, a connection that breaks during a request ends
the whole client: the journal outlives that, see :meth:`TasksClient.resume`. For the same reason
:meth:`SdkSession.run` stays the default: a server must be polled anyway, and no client is risked for less.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Final

import anyio
from mcp import ClientSession
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ListRootsRequest,
    ListRootsResult,
    PaginatedRequestParams,
    Request,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from ...callbacks import Callbacks, ElicitationCallback, InputContext, RootsCallback, SamplingCallback
from ...errors import ConnectionLostError, MissingCapabilityError, RemoteProtocolError, SessionError
from ...protocol import PROTOCOL_VERSION, JSONObject, MalformedError
from ...protocol.params import call_params, task_params
from ...protocol.replies import CallReply, read_call_reply
from ...protocol.task import read_task
from ...protocol.text import is_encodable, quote
from ...sessions.base import (
    INVALID_PARAMS,
    OTHER_VERSION,
    REFUSED_CODES,
    BeforeSend,
    Limits,
    Session,
    Snapshot,
    TaskRef,
    ToolCall,
    made_in_another,
)
from . import introspection

__all__ = ["SdkSession", "host_callbacks"]

introspection.send_request_code()

_RAW: Final[TypeAdapter[Any]] = TypeAdapter(Any)
"""Has the SDK hand over a result as it came."""

_MOST_PAGES: Final = 1000
_MISSING_CAPABILITY: Final = frozenset({MISSING_REQUIRED_CLIENT_CAPABILITY, -32003})  # now, and formerly


class _Request(Request[dict[str, Any], str]):
    """A request whose params go as they are."""

    def model_dump(self, **_: Any) -> JSONObject:
        """What the SDK's session is to stamp and send."""
        return {"method": self.method, "params": self.params}


class _TaskRequest(_Request):
    """One of ``tasks/*``."""

    name_param = "taskId"


class SdkSession(Session):
    """A server that is reached through a session of the SDK.

    A connection that is closed is found by the next request, which raises :class:`ConnectionLostError`.
    Each of our requests declares the extension, whatever the SDK's session was made with. What the host sends
    over its session itself declares what it did before, so that the host meets no task it did not ask for.

    Args:
        current: The SDK's session as it is now. A ``RuntimeError`` says why there is none.
        endpoint: The server's name in the journal.
        ephemeral: Whether the server's tasks end with the connection, as with stdio.
        limits: The bounds to keep. How long a ``tools/call`` may take, and how large a reply may be, are
            decisions of the host's own client, so these two are not used.
        capabilities: What our requests declare besides what the SDK's session declares.
    """

    def __init__(
        self,
        current: Callable[[], ClientSession],
        *,
        endpoint: str,
        ephemeral: bool = False,
        limits: Limits | None = None,
        capabilities: JSONObject | None = None,
    ) -> None:
        self._current = current
        self._capabilities = capabilities or {}
        self.endpoint = endpoint
        self._ephemeral = ephemeral
        self.limits = limits or Limits()
        # Polls that hang must starve neither answers nor cancellations.
        self._polls = anyio.Semaphore(self.limits.tasks_in_flight, fast_acquire=True)
        self._words = anyio.Semaphore(self.limits.tasks_in_flight, fast_acquire=True)
        self._calls = anyio.Semaphore(self.limits.calls_in_flight, fast_acquire=True)
        self._tools = _ToolList(self)
        self._closed = False

    def __repr__(self) -> str:
        return f"<SdkSession {self.endpoint}>"

    @property
    def ephemeral(self) -> bool:
        """As given."""
        return self._ephemeral

    async def tool(self, name: str, *, fresh: bool = False, context: object = None) -> Tool | None:
        """The tool's description, as the server lists it; ``None`` if it lists none of that name.

        Raises:
            SessionError: The server could not be asked.
        """
        return await self._tools.find(name, fresh=fresh)

    async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
        """Send ``tools/call`` once. Never repeats it, whatever happens.

        Raises:
            SessionError: No reply. ``not_executed`` is set if nothing can have happened.
        """
        params = call_params(
            call.name,
            call.arguments,
            input_responses=call.input_responses,
            request_state=call.request_state,
        )
        params["_meta"] = introspection.DeclaringMeta(call.meta or {}, self._capabilities)
        try:
            # The SDK takes from its last list which arguments also travel as headers.
            await self._tools.find(call.name)
        except SessionError as error:
            error.not_executed = True
            raise
        async with self._calls:
            session = self.connected("tools/call")
            await before_send()
            try:
                raw = await self._send(session, _Request(method="tools/call", params=params), None, None)
            except SessionError as error:
                if error.code == HEADER_MISMATCH:
                    self._tools.forget()
                raise
        try:
            return read_call_reply(raw)
        except MalformedError as error:
            raise _malformed("tools/call", str(error), None) from None

    async def get(self, ref: TaskRef) -> Snapshot:
        """Send ``tasks/get`` once.

        Raises:
            SessionError: No snapshot; its code is -32602 if the server does not know the task.
        """
        async with self._polls:
            raw = await self._send_task("tasks/get", ref, None)
        try:
            task = read_task(raw)
        except MalformedError as error:
            raise _malformed("tasks/get", str(error), ref.task_id) from None
        return Snapshot(task, task.request_state)

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        """Send ``tasks/update`` once. Returns when the server has acknowledged the answers.

        Raises:
            SessionError: No acknowledgement.
        """
        await self._send_word("tasks/update", ref, answers)

    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once.

        Raises:
            SessionError: No acknowledgement.
        """
        await self._send_word("tasks/cancel", ref, None)

    async def ask(self, method: str, params: JSONObject, *, context: object = None) -> JSONObject:
        """Send a request that concerns neither a call nor a task once, and return its result as it came.

        Raises:
            SessionError: No result.
        """
        request = _Request(method=method, params=params)
        return await self._send(self.connected(method), request, self.limits.task_timeout_s, None)

    async def aclose(self) -> None:
        """Send nothing more. The SDK's session stays open, because it is the host's."""
        self._closed = True

    def connected(self, method: str) -> ClientSession:
        """The SDK's session, if ``method`` can be sent over it now.

        Raises:
            ConnectionLostError: There is none.
            RemoteProtocolError: It was negotiated at a version of the protocol without this extension.
        """
        if self._closed:
            raise ConnectionLostError(
                f"{method} was not sent, because the session is closed. Open a new TasksClient.",
                not_executed=True,
            )
        try:
            session = self._current()
            version = session.protocol_version
            if version is None:
                raise RuntimeError("The session has not been initialized yet.")
        except RuntimeError as error:
            raise ConnectionLostError(
                f"{method} was not sent, because the host's client is not connected. Connect it; then "
                "repeat the call, or resume() what is unfinished.",
                not_executed=True,
            ) from error
        if version not in MODERN_PROTOCOL_VERSIONS:
            raise RemoteProtocolError(
                f"{method} was not sent, because the connection was negotiated at {version}, and tasks here "
                f"need {PROTOCOL_VERSION}. Give the session a TasksTransport, or use TasksClient(url).",
                not_executed=True,
            )
        return session

    async def list_tools(self, cursor: str | None) -> tuple[list[Tool], str | None]:
        """Send ``tools/list`` once, for the first page or a later one. Returns the next cursor as well.

        Raises:
            SessionError: No list.
        """
        session, page = self.connected("tools/list"), None
        if cursor is not None:
            page = PaginatedRequestParams(cursor=cursor)
        try:
            with anyio.fail_after(self.limits.task_timeout_s):
                listed = await session.list_tools(params=page)
        except Exception as error:
            raise _session_error(error, "tools/list", session, None) from error
        return listed.tools, listed.next_cursor

    async def _send_word(self, method: str, ref: TaskRef, answers: Mapping[str, JSONObject] | None) -> None:
        async with self._words:
            raw = await self._send_task(method, ref, answers)
        if raw.get("resultType") == "task":
            raise _malformed(method, "it is a task, which only tools/call is answered with", ref.task_id)

    async def _send_task(
        self, method: str, ref: TaskRef, answers: Mapping[str, JSONObject] | None
    ) -> JSONObject:
        if not is_encodable(ref.task_id):
            raise RemoteProtocolError(
                f"{method} cannot be sent, because the server issued a task ID that has no UTF-8 form. "
                "Report it to the server's author.",
                not_executed=True,
            )
        if (ref.session_data or "").startswith(OTHER_VERSION):
            raise made_in_another(PROTOCOL_VERSION)
        session = self.connected(method)
        params = task_params(ref.task_id, request_state=ref.session_data, input_responses=answers)
        params["_meta"] = introspection.DeclaringMeta({}, self._capabilities)
        request = _TaskRequest(method=method, params=params)
        return await self._send(session, request, self.limits.task_timeout_s, ref.task_id)

    async def _send(
        self, session: ClientSession, request: Request[Any, str], timeout_s: float | None, task_id: str | None
    ) -> JSONObject:
        """Send a request and return its result as it came. Without a time-out, that of the session counts."""
        try:
            raw: JSONObject = await session.send_request(
                request, _RAW, request_read_timeout_seconds=timeout_s
            )
        except Exception as error:
            # A reply that the SDK takes for broken may hold a task, and no task may be lost.
            whole = (
                introspection.result_of_invalid_reply(error) if isinstance(error, ValidationError) else None
            )
            if whole is not None and whole.get("resultType") == "task":
                return whole
            raise _session_error(error, request.method, session, task_id) from error
        return raw


class _ToolList:
    """The server's tools, as they were listed last over the present connection."""

    def __init__(self, session: SdkSession) -> None:
        self._session = session
        self._lock = anyio.Lock()
        self._over: Callable[[], ClientSession | None] = lambda: None
        self._tools: dict[str, Tool] | None = None
        self._attempts = 0
        self._failure: SessionError | None = None

    def forget(self) -> None:
        """Have the next question fetch the list again."""
        self._tools = None

    async def find(self, name: str, *, fresh: bool = False) -> Tool | None:
        """The tool of that name. A name that is not in the list yet is looked for in a new list.

        Callers who wait for one and the same request share its list, or its failure.

        Raises:
            SessionError: The list could not be fetched.
        """
        connection = self._session.connected("tools/list")
        if self._over() is not connection:
            # The SDK forgets with each connection which arguments travel as headers.
            self._over, self._tools = weakref.ref(connection), None
        if self._tools is None or fresh or name not in self._tools:
            attempts = self._attempts
            async with self._lock:
                if self._attempts == attempts:
                    await self._fetch()
                elif self._failure is not None:
                    raise copy(self._failure)
        return (self._tools or {}).get(name)

    async def _fetch(self) -> None:
        try:
            self._tools, self._failure = await self._pages(), None
        except SessionError as error:
            self._failure = error
            raise
        finally:
            self._attempts += 1

    async def _pages(self) -> dict[str, Tool]:
        tools: dict[str, Tool] = {}
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page, cursor = await self._session.list_tools(cursor)
            tools |= {tool.name: tool for tool in page}
            if cursor is None:
                return tools
        raise RemoteProtocolError(
            f"The server's list of tools does not end after {_MOST_PAGES} pages. Report it to the server's "
            "author.",
            not_executed=True,
        )


def host_callbacks(
    current: Callable[[], ClientSession],
    *,
    elicitation: ElicitationCallback | None = None,
    sampling: SamplingCallback | None = None,
    roots: RootsCallback | None = None,
) -> Callbacks:
    """Callbacks as given. Where one is ``None``, the one that the host gave to its own client is asked."""

    def context_of(asked: InputContext) -> ClientRequestContext:
        return ClientRequestContext(session=current(), request_id=asked.key)

    async def elicit(asked: InputContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        theirs = context_of(asked)
        return await theirs.session.dispatch_input_request(theirs, ElicitRequest(params=params))  # type: ignore[return-value]  # checked by Callbacks

    async def sample(
        asked: InputContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | CreateMessageResultWithTools | ErrorData:
        theirs = context_of(asked)
        return await theirs.session.dispatch_input_request(theirs, CreateMessageRequest(params=params))  # type: ignore[return-value]  # as above

    async def list_roots(asked: InputContext) -> ListRootsResult | ErrorData:
        theirs = context_of(asked)
        return await theirs.session.dispatch_input_request(theirs, ListRootsRequest())  # type: ignore[return-value]  # as above

    return Callbacks(
        elicitation=elicitation or elicit, sampling=sampling or sample, roots=roots or list_roots
    )


# ── what the SDK raises, as our errors ────────────────────────────────────────────────────────────


def _session_error(
    error: Exception, method: str, session: ClientSession, task_id: str | None
) -> SessionError:
    """What the SDK raised, as ours."""
    match error:
        case MCPError(code=code, message=message, data=None) if introspection.is_closed(
            session, code, message
        ):
            return ConnectionLostError(
                f"{method} has no reply, because the connection is closed. Connect again, and resume() what "
                "is unfinished."
            )
        case MCPError(code=code, message=message, data=None) if introspection.was_made_up(code, message):
            return _lost(method, message, task_id)
        case MCPError():
            return _answered(method, error, task_id)
        case ValidationError():
            what = f"it does not fit the core protocol, {error.error_count()} errors"
            return _malformed(method, what, task_id)
        case TimeoutError() | OSError() | anyio.BrokenResourceError() | anyio.ClosedResourceError():
            return _lost(method, f"{type(error).__name__} {error}", task_id)
        case _:
            words = quote(f"{type(error).__name__} {error}", task_id)
            return SessionError(f"{method} failed in the SDK: {words}. Report it with its traceback.")


def _answered(method: str, error: MCPError, task_id: str | None) -> SessionError:
    """The error that the server answered."""
    refused = error.code in REFUSED_CODES
    kind, advice = SessionError, "Try again later."
    if error.code in _MISSING_CAPABILITY:
        kind = MissingCapabilityError
        advice = (
            "Give TasksClient or the host's client a callback for the capability that the error's data "
            "names, because only what has a callback is declared."
        )
    elif error.code == HEADER_MISMATCH:
        kind = RemoteProtocolError
        advice = "Headers were changed on the way, or the tool's schema was: call again."
    elif error.code == INVALID_PARAMS and task_id is not None:
        advice = "The server does not know the task, or does not take that in its present state."
    elif refused:
        advice = "The same request would be refused again: change it."
    said = quote(error.message, task_id)
    return kind(
        f"{method} was answered with JSON-RPC error {error.code}: {said!r}. {advice}",
        retryable=not refused,
        not_executed=refused,
        code=error.code,
        remote_message=error.message,
        data=error.data,
    )


def _lost(method: str, reason: str, task_id: str | None) -> ConnectionLostError:
    return ConnectionLostError(
        f"The reply to {method} was lost: {quote(reason, task_id).rstrip('. ')}. The server may have acted "
        "on it; a request that may be repeated can be sent again.",
        retryable=True,
    )


def _malformed(method: str, what: str, task_id: str | None) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"The reply to {method} cannot be used: {quote(what, task_id)}. Something between here and the "
        "server may have answered: try again, then check the URL.",
        retryable=True,
    )
