"""The official SDK's session as ours: ``mcp.Client``, ``fastmcp.Client`` and ``ClientSession``.

The connection, its credentials and its callbacks are the host's. Decisions that are the SDK's and
show here: it tells no HTTP status and no ``Retry-After``, so every refusal over HTTP that is no
JSON-RPC error looks like one that may pass; and over Streamable HTTP, a connection that breaks
during a request ends the whole client. The journal outlives that, see :meth:`TasksClient.resume`.
That is why nobody listens here: a server must be polled anyway, and no client is risked for less.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import anyio
from anyio.lowlevel import checkpoint
from mcp import ClientSession
from mcp.client.session import ClientRequestContext
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
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ..errors import ConnectionLostError, MissingCapabilityError, RemoteProtocolError, SessionError
from ..inputs import Callbacks, ElicitationCallback, InputContext, RootsCallback, SamplingCallback
from ..params import call_params, task_params
from ..wire import (
    EXTENSION_ID,
    PROTOCOL_VERSION,
    CallReply,
    JSONObject,
    MalformedError,
    Task,
    header_value,
    read_call_reply,
    read_task,
)
from .base import Leaving, Session, TaskRef, ToolCall
from .catalogue import Catalogue
from .faults import HEADER_MISMATCH, Faults
from .sdk_requests import RawRequest, is_closed, mapped, sent

__all__ = ["SdkSession", "host_callbacks"]

_WATCH_S: Final = 0.5

_HOW: Final = (
    "Make the client with extensions=[TasksExtension()] (from mcp_tasks_client import TasksExtension)."
)


class _TaskRequest(RawRequest):
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
                with mapped(faults, session):
                    raw = await sent(session, RawRequest(method="tools/call", params=params), None)
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

    async def watch(self, heard: Callable[[Task], None]) -> None:
        """Return when there was a connection and there is none. Another one instead goes on."""
        was_open = False
        while True:
            is_open = False
            with suppress(RuntimeError):
                is_open = not is_closed(self._current())
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
            with mapped(faults, session):
                request = _TaskRequest(method=method, params=params)
                raw = await sent(session, request, self._task_timeout_s)
        if method != "tasks/get" and raw.get("resultType") == "task":
            raise faults.malformed("a task, which only tools/call may be answered with")
        return raw, faults

    async def _look_up(self, method: str, params: JSONObject) -> JSONObject:
        if method == "server/discover":
            return {"supportedVersions": [PROTOCOL_VERSION]}  # the SDK has negotiated already
        faults = Faults(method)
        session = self._session(method)
        with mapped(faults, session), anyio.move_on_after(self._task_timeout_s):
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
