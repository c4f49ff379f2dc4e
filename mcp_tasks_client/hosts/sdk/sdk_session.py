"""A session of the official SDK as ours: that of ``mcp.Client``, of ``fastmcp.Client``, or a bare one.

The connection, its credentials and its callbacks are the host's. Two decisions of the SDK show here.
It tells neither HTTP status nor ``Retry-After``, so every refusal over HTTP that is no JSON-RPC error
looks like one that may pass. And over Streamable HTTP, a connection that breaks during a request ends
the whole client: the journal outlives that, see :meth:`TasksClient.resume`. For the same reason
:meth:`SdkSession.run` stays the default: a server must be polled anyway, and no client is risked for less.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
from mcp import ClientSession
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import HEADER_MISMATCH, PaginatedRequestParams, Request, Tool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from ...errors import ConnectionLostError, RemoteProtocolError, SessionError
from ...protocol import PROTOCOL_VERSION, JSONObject
from ...protocol.replies import RpcError
from ...questions.callbacks import Callbacks, InputContext
from ...questions.context import CallContext
from ...questions.kinds import KINDS, Kind
from ...sessions.base import BeforeSend, Limits
from ...sessions.request_errors import RequestErrors
from ...sessions.tool_catalogue import ListedTool, ToolCatalogue
from ...sessions.wire import WireRequest, WireSession
from . import introspection

__all__ = ["SdkSession", "host_callbacks"]

introspection.send_request_code()  # fails now, not in the first call, if this SDK cannot be looked into

_RAW: Final[TypeAdapter[Any]] = TypeAdapter(Any)
"""Has the SDK return a result unchanged."""


class _Request(Request[dict[str, Any], str]):
    """A request whose params go as they are."""

    def model_dump(self, **_: Any) -> JSONObject:
        """The request, for the SDK's session to stamp and send."""
        return {"method": self.method, "params": self.params}


class _TaskRequest(_Request):
    """A ``tasks/*`` request."""

    name_param = "taskId"


class SdkSession(WireSession):
    """A server that is reached through a session of the SDK.

    A connection that is closed is found by the next request, which raises :class:`ConnectionLostError`.
    Each of our requests declares the extension, though the SDK's session be made without it. Requests of the
    host itself declare no more than before, so that the host meets no task it did not ask for.

    Args:
        current: The SDK's session as it is now. A ``RuntimeError`` says why there is none.
        endpoint: The server's name in the journal.
        ephemeral: Whether the server's tasks end with the connection, as with stdio.
        limits: The bounds to keep. How long a ``tools/call`` may take, and how large a reply may be, are
            decisions of the host's own client, so these two are not used.
        capabilities: Declared by our requests besides those of the SDK's session.
        sleep: Waits, in seconds, before a list of tools is asked for again.
    """

    def __init__(
        self,
        current: Callable[[], ClientSession],
        *,
        endpoint: str,
        ephemeral: bool = False,
        limits: Limits | None = None,
        capabilities: JSONObject | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        super().__init__(endpoint, limits)
        self._current = current
        self._capabilities = capabilities or {}
        self._ephemeral = ephemeral
        self._catalogue = ToolCatalogue(self._look_up, endpoint, sleep)
        self._listed_over: Callable[[], ClientSession | None] = lambda: None

    @property
    def ephemeral(self) -> bool:
        """Whether the server's tasks end with the connection."""
        return self._ephemeral

    async def tool(
        self, name: str, *, fresh: bool = False, context: CallContext | None = None
    ) -> Tool | None:
        """The tool's description, as the server lists it; ``None`` if it lists none of that name.

        Raises:
            SessionError: The server could not be asked.
        """
        listed = await self._find_tool(name, fresh=fresh)
        return None if listed is None else listed.tool

    async def exchange(self, request: WireRequest, before_send: BeforeSend) -> JSONObject:
        """Send one request over the SDK's session, and return its result as it came."""
        method, params, call = request.method, request.params, request.call
        if call is not None:
            # The SDK takes from its last list which arguments also travel as headers.
            await self._find_tool(call.name)
        await before_send()
        session = self.connected(method)
        params = {**params, "_meta": introspection.DeclaringMeta(request.meta or {}, self._capabilities)}
        kind = _Request if request.ref is None else _TaskRequest
        timeout_s = None if request.patient else self.limits.task_timeout_s  # else the SDK's own counts
        try:
            return await self._send(
                session,
                kind(method=method, params=params),
                timeout_s,
                request.errors,
            )
        except SessionError as error:
            if error.code == HEADER_MISMATCH:
                self._catalogue.forget_tools()
            raise

    def connected(self, method: str) -> ClientSession:
        """The SDK's session, if ``method`` can be sent over it now.

        Raises:
            ConnectionLostError: The host's client is not connected.
            RemoteProtocolError: It was connected at a version of the protocol without this extension.
        """
        self.check_open(method)
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

    async def _find_tool(self, name: str, *, fresh: bool = False) -> ListedTool | None:
        connection = self.connected("tools/list")
        if self._listed_over() is not connection:
            # The SDK forgets with each connection which arguments travel as headers.
            self._listed_over = weakref.ref(connection)
            self._catalogue.forget_tools()
        return await self._catalogue.find(name, None, fresh=fresh)

    async def _look_up(self, method: str, params: JSONObject, context: CallContext | None) -> JSONObject:
        session = self.connected(method)
        if method == "server/discover":
            return {"supportedVersions": [PROTOCOL_VERSION]}  # as was agreed on when the host connected
        page = PaginatedRequestParams(cursor=params["cursor"]) if params else None
        try:
            with anyio.fail_after(self.limits.task_timeout_s):
                listed = await session.list_tools(params=page)
        except Exception as error:
            raise _session_error(error, session, RequestErrors(method)) from error
        return {"tools": listed.tools, "nextCursor": listed.next_cursor}

    async def _send(
        self,
        session: ClientSession,
        request: Request[Any, str],
        timeout_s: float | None,
        errors: RequestErrors,
    ) -> JSONObject:
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
            raise _session_error(error, session, errors) from error
        return raw


def host_callbacks(current: Callable[[], ClientSession], given: Callbacks) -> Callbacks:
    """Callbacks as given. Where there is none, the one that the host gave to its own client is asked."""

    def asking(kind: Kind) -> Callable[[InputContext, Any], Awaitable[Any]]:
        async def ask(asked: InputContext, params: Any) -> Any:
            theirs = ClientRequestContext(session=current(), request_id=asked.key)
            request: Any = kind.request() if params is None else kind.request(params=params)
            return await theirs.session.dispatch_input_request(theirs, request)

        return ask

    return Callbacks(**{kind.name: getattr(given, kind.name) or asking(kind) for kind in KINDS.values()})


# ── exceptions of the SDK as our errors ───────────────────────────────────────────────────────────


def _session_error(error: Exception, session: ClientSession, errors: RequestErrors) -> SessionError:
    """The error of ours that the exception of the SDK stands for."""
    method = errors.method
    match error:
        case MCPError(code=code, message=message, data=None) if introspection.is_closed(
            session, code, message
        ):
            return ConnectionLostError(
                f"{method} has no reply, because the connection is closed. Connect again, and resume() what "
                "is unfinished."
            )
        case MCPError(code=code, message=message, data=data):
            return introspection.error_of(errors, RpcError(code, message, data))
        case ValidationError():
            return errors.malformed(f"it does not fit the core protocol, {error.error_count()} errors")
        case TimeoutError() | OSError() | anyio.BrokenResourceError() | anyio.ClosedResourceError():
            return errors.lost(f"{type(error).__name__} {error}")
        case _:
            words = errors.quote(f"{type(error).__name__} {error}")
            return SessionError(f"{method} failed in the SDK: {words}. Report it with its traceback.")
