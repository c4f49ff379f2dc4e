"""The official SDK's session as ours: ``mcp.Client``, ``fastmcp.Client`` and ``ClientSession``.

The connection, its credentials and its callbacks are the host's. Decisions that are the SDK's and
show here: it tells no HTTP status and no ``Retry-After``, so every refusal over HTTP that is no
JSON-RPC error looks like one that may pass; and over Streamable HTTP, a connection that breaks
during a request ends the whole client. The journal outlives that, see :meth:`TasksClient.resume`.
That is why nobody listens here: a server must be polled anyway, and no client is risked for less.
"""

from __future__ import annotations

import inspect
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint
from mcp import ClientSession
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
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

from ..errors import ConnectionLostError, MissingCapabilityError, RemoteProtocolError, SessionError
from ..inputs import Callbacks, ElicitationCallback, InputContext, RootsCallback, SamplingCallback
from ..params import call_params, task_params
from ..wire import (
    EXTENSION_ID,
    PROTOCOL_VERSION,
    CallReply,
    JSONObject,
    MalformedError,
    RpcError,
    Task,
    header_value,
    read_call_reply,
    read_task,
)
from .base import Leaving, Session, TaskRef, ToolCall
from .catalogue import Catalogue
from .faults import HEADER_MISMATCH, Faults

__all__ = ["SdkSession", "host_callbacks"]

_RAW: Final = TypeAdapter(dict[str, Any])
_CLOSED: Final = "Connection closed"

# What the SDK itself answers in the server's name, with codes that a server may use as well. They
# say nothing about what the server has done.
_SYNTHETIC: Final = (
    (-32603, "Server returned an error response"),
    (-32601, "Not Found"),
    (-32700, "Failed to parse"),
    (-32600, "Unexpected content type"),
    (-32600, "server answered a request with 202"),
    (-32600, "Session terminated"),
    (-32600, "Redirect to "),
    (-32000, "SSE stream "),
    (-32001, "Request '"),  # … timed out
    (-32001, "Timed out after "),
)
_CONNECTION_CLOSED: Final = -32000

_WATCH_S: Final = 0.5

SEND_REQUEST: Final = getattr(inspect.unwrap(ClientSession.send_request), "__code__", None)
"""The SDK's code that has a reply in its hands, to be known again among our callers."""

_HOW: Final = (
    "Make the client with extensions=[TasksExtension()] (from mcp_tasks_client import TasksExtension)."
)


class _CallTool(Request[dict[str, Any], str]):
    """``tools/call``; the params are plain JSON, so that they go as they are."""


class _TaskRequest(Request[dict[str, Any], str]):
    """One of ``tasks/*``."""

    name_param = "taskId"


class SdkSession(Session):
    """A server reached through a session of the SDK's.

    Args:
        current: The session as it is now. What it raises says why there is none.
        endpoint: The server's name in the journal.
        ephemeral: Whether the server's tasks end with the connection, as with stdio.
        tasks_in_flight: Polls under way at once, at most, and as many other ``tasks/*`` requests.
        calls_in_flight: ``tools/call`` requests under way at once, at most.
        task_timeout_s: Seconds after which a request other than ``tools/call`` is given up. For
            that one the time-out of the host's session counts.
    """

    def __init__(
        self,
        current: Callable[[], ClientSession],
        *,
        endpoint: str,
        ephemeral: bool = False,
        tasks_in_flight: int = 16,
        calls_in_flight: int = 64,
        task_timeout_s: float = 30.0,
    ) -> None:
        self._current = current
        self._endpoint = endpoint
        self._ephemeral = ephemeral
        self._task_timeout_s = task_timeout_s
        self._poll_slots = anyio.Semaphore(tasks_in_flight)
        self._word_slots = anyio.Semaphore(tasks_in_flight)
        self._call_slots = anyio.Semaphore(calls_in_flight)
        self._catalogue = Catalogue(self._look_up, endpoint)
        self._listed: Callable[[], ClientSession | None] = lambda: None

    def __repr__(self) -> str:
        return f"<SdkSession {self._endpoint}>"

    @property
    def endpoint(self) -> str:
        """As given."""
        return self._endpoint

    @property
    def ephemeral(self) -> bool:
        """As given."""
        return self._ephemeral

    async def tool(self, name: str) -> Tool | None:
        """The tool's description, as the server lists it; ``None`` if it lists none of that name.

        Raises:
            SessionError: The server could not be asked.
        """
        return await self._catalogue.description(name)

    def forget_tools(self) -> None:
        """Have the next question about a tool fetch the list again."""
        self._catalogue.forget_tools()

    async def call(self, call: ToolCall, leaving: Leaving = checkpoint) -> CallReply:
        """Send ``tools/call`` once. Never repeats it, whatever happens.

        Over a connection of a generation without this extension, it is a plain call.

        Raises:
            SessionError: No result. ``not_executed`` is set if nothing can have happened.
        """
        params = call_params(
            call.name,
            call.arguments,
            input_responses=call.input_responses,
            request_state=call.request_state,
        )
        if call.meta:
            params["_meta"] = dict(call.meta)
        self._session("tools/call")
        # The SDK takes from its last list which arguments also travel as headers.
        await self._catalogue.to_call(call.name)
        faults = Faults("tools/call")
        async with self._call_slots:
            session = self._session("tools/call")
            await leaving()
            try:
                with _mapped(faults, session):
                    raw = await _sent(session, _CallTool(method="tools/call", params=params), None)
            except SessionError as error:
                if error.code == HEADER_MISMATCH:
                    self._catalogue.forget_tools()
                raise
        try:
            return read_call_reply(raw)
        except MalformedError as error:
            raise faults.malformed(str(error)) from None

    async def get(self, ref: TaskRef) -> Task:
        """Send ``tasks/get`` once.

        Raises:
            SessionError: No snapshot; its code is -32602 if the server does not know the task.
        """
        raw, faults = await self._ask_task("tasks/get", ref)
        try:
            return read_task(raw)
        except MalformedError as error:
            raise faults.malformed(str(error)) from None

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        """Send ``tasks/update`` once.

        Raises:
            SessionError: No acknowledgement.
        """
        await self._ask_task("tasks/update", ref, answers)

    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once.

        Raises:
            SessionError: No acknowledgement.
        """
        await self._ask_task("tasks/cancel", ref)

    async def watch(self) -> None:
        """Return when there was a connection and there is none. Another one instead goes on."""
        was_open = False
        while True:
            is_open = False
            with suppress(RuntimeError):
                is_open = not _is_closed(self._current())
            if was_open and not is_open:
                return
            was_open = is_open
            await anyio.sleep(_WATCH_S)

    async def aclose(self) -> None:
        """Nothing: the SDK's session is the host's."""

    async def _ask_task(
        self, method: str, ref: TaskRef, answers: Mapping[str, JSONObject] | None = None
    ) -> tuple[JSONObject, Faults]:
        params = task_params(ref.task_id, request_state=ref.request_state, input_responses=answers)
        try:
            header_value(ref.task_id)
        except MalformedError as error:
            raise RemoteProtocolError(
                f"{method} cannot be sent: the server issued a task ID that has no UTF-8 form ({error}). "
                "The task can only be reached in another way.",
                not_executed=True,
            ) from None
        faults = Faults(method, ref.task_id)
        async with self._poll_slots if method == "tasks/get" else self._word_slots:
            session = self._session(method)
            if session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                raise RemoteProtocolError(
                    f"{method} cannot be sent: the connection was negotiated at {session.protocol_version}, "
                    f"and the task belongs to {PROTOCOL_VERSION}. Connect to a server that speaks that.",
                    not_executed=True,
                )
            with _mapped(faults, session):
                request = _TaskRequest(method=method, params=params)
                raw = await _sent(session, request, self._task_timeout_s)
        if method != "tasks/get" and raw.get("resultType") == "task":
            raise faults.malformed("a task, which only tools/call may be answered with")
        return raw, faults

    async def _look_up(self, method: str, params: JSONObject) -> JSONObject:
        if method == "server/discover":
            return {"supportedVersions": [PROTOCOL_VERSION]}  # the SDK has negotiated already
        faults = Faults(method)
        session = self._session(method)
        with _mapped(faults, session), anyio.move_on_after(self._task_timeout_s):
            page = PaginatedRequestParams(cursor=params["cursor"]) if params else None
            listed = await session.list_tools(params=page)
            return listed.model_dump(by_alias=True, mode="json", exclude_none=True)
        raise faults.overdue(self._task_timeout_s)

    def _session(self, method: str) -> ClientSession:
        """The session to send with, as it is now.

        Raises:
            ConnectionLostError: There is none.
            MissingCapabilityError: It does not declare the extension.
        """
        try:
            session = self._current()
        except RuntimeError as error:
            raise ConnectionLostError(
                f"{method} was not sent: the host's client is not connected. Connect it again; then repeat "
                "the call, or resume() what is unfinished.",
                not_executed=True,
            ) from error
        if self._listed() is not session:
            # The SDK forgets with each connection which arguments travel as headers.
            self._listed = weakref.ref(session)
            self._catalogue.forget_tools()
        # The capability goes with each request, and only a session that was made with it declares it.
        if EXTENSION_ID not in (session._extensions or {}):
            raise MissingCapabilityError(
                f"{method} was not sent: the host's client was made without the tasks extension, so that "
                f"the server would never make a task. {_HOW}",
                not_executed=True,
            )
        return session


def host_callbacks(
    current: Callable[[], ClientSession],
    *,
    elicitation: ElicitationCallback | None,
    sampling: SamplingCallback | None,
    roots: RootsCallback | None,
) -> Callbacks:
    """Callbacks as given; where there is none, the one that the host gave to its own client."""

    def asked(context: InputContext) -> tuple[ClientSession, ClientRequestContext]:
        session = current()
        return session, ClientRequestContext(session=session, request_id=context.key)

    async def elicit(context: InputContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        session, theirs = asked(context)
        return await session.dispatch_input_request(theirs, ElicitRequest(params=params))  # type: ignore[return-value]  # checked later

    async def sample(
        context: InputContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | CreateMessageResultWithTools | ErrorData:
        session, theirs = asked(context)
        return await session.dispatch_input_request(theirs, CreateMessageRequest(params=params))  # type: ignore[return-value]  # as above

    async def list_roots(context: InputContext) -> ListRootsResult | ErrorData:
        session, theirs = asked(context)
        return await session.dispatch_input_request(theirs, ListRootsRequest())  # type: ignore[return-value]  # as above

    return Callbacks(
        elicitation=elicitation or elicit, sampling=sampling or sample, roots=roots or list_roots
    )


async def _sent(session: ClientSession, request: Request[Any, str], timeout_s: float | None) -> JSONObject:
    send: Any = session.send_request  # takes any type adapter, though its annotation wants a model's
    try:
        raw: JSONObject = await send(request, _RAW, request_read_timeout_seconds=timeout_s)
    except ValidationError as error:
        # Checked by the SDK against the core protocol first. A task in it must not be lost for that.
        whole = _whole_result(error)
        if whole is None:
            raise
        return whole
    return raw


def _whole_result(error: ValidationError) -> JSONObject | None:
    """The task that did not pass, as it came: the error tells of its faults, the SDK's own frame has all."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        raw = frame.f_locals.get("raw") if frame.f_code is SEND_REQUEST else None
        if isinstance(raw, dict) and raw.get("resultType") == "task":
            return raw
    return None


@contextmanager
def _mapped(faults: Faults, session: ClientSession) -> Iterator[None]:
    """Turn what the SDK raises into :class:`SessionError`."""
    try:
        yield
    except ValidationError as error:
        raise faults.malformed(f"it does not fit the core protocol, {error.error_count()} errors") from None
    except MCPError as error:
        said = RpcError(error.code, error.message, error.data)
        raise _fault(faults, said, closed=_is_closed(session)) from error


def _is_closed(session: ClientSession) -> bool:
    """Whether the connection has ended; the SDK shows it nowhere else."""
    group = session._task_group
    return (
        group is None
        or group.cancel_scope.cancel_called
        or bool(getattr(session._dispatcher, "_closed", False))
    )


def _fault(faults: Faults, error: RpcError, *, closed: bool) -> SessionError:
    if error.data is None and (error.code, error.message) == (_CONNECTION_CLOSED, _CLOSED):
        # The same words may be a proxy's, about a connection of its own.
        return faults.disconnected() if closed else faults.lost(error.message)
    if error.data is None and any(
        error.code == code and error.message.startswith(text) for code, text in _SYNTHETIC
    ):
        return faults.lost(error.message)
    return faults.by_code(error, None, None)
