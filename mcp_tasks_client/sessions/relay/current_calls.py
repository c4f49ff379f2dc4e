"""The calls of a host's session at 2026-07-28, whose messages pass through a relay.

Requests of ours travel among the host's, under IDs of ours, with the credential that the host's transport
adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

import anyio
from mcp.shared.message import ClientMessageMetadata
from mcp_types import PROTOCOL_VERSION_META_KEY, Tool

from ...callbacks import Callbacks
from ...engine.inline import InlineEngine
from ...engine.live_call import OnUpdate
from ...engine.runner import Runner
from ...errors import RemoteProtocolError, SessionError
from ...journal.record import Scope
from ...protocol import PROTOCOL_VERSION, JSONObject, MalformedError, RequestId
from ...protocol.replies import CallReply, RpcError, read_call_reply
from ...protocol.requests import call_params, request_meta, task_params
from ...protocol.task import read_task
from ...protocol.text import header_value
from ..base import BeforeSend, Limits, Session, Snapshot, TaskRef, ToolCall
from ..http.http_errors import RequestErrors
from ..sdk.introspection import was_made_up
from ..under_host.host_call import ASKED_BY, HostCall, read_host_call
from ..under_host.host_calls import HostCalls
from ..under_host.progress import PROGRESS, Progress
from ..under_host.questions import HostInputs
from .relay import Relay, Served

__all__ = ["CurrentCalls", "is_current"]

_CANCEL_S: Final = 5.0
"""Seconds that a ``notifications/cancelled`` may take to leave."""


def is_current(params: JSONObject) -> bool:
    """Whether a request is one of a session at 2026-07-28 or later. Versions are dates."""
    meta = params.get("_meta")
    version = meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
    return isinstance(version, str) and version >= PROTOCOL_VERSION


class CurrentCalls:
    """Makes each ``tools/call`` of the host's in a task of the relay's, and brings its reply.

    Args:
        relay: Carries our requests.
        engine: Sees the calls through.
        callbacks: Answer the server's questions; ``None`` leaves them to the host, in the replies to its
            calls.
        scope: Under which the journal keeps the calls.
        limits: The bounds to keep.
        on_update: Told of each changed snapshot; may be ``None``.
    """

    def __init__(
        self,
        relay: Relay,
        engine: InlineEngine,
        *,
        callbacks: Callbacks | None,
        scope: Scope,
        limits: Limits,
        on_update: OnUpdate | None,
    ) -> None:
        self._relay = relay
        self._engine = engine
        self._callbacks = callbacks
        self._scope = scope
        self._listeners = () if on_update is None else (on_update,)
        self._calls = HostCalls(engine, asks_host=callbacks is None)
        self._session = _RelaySession(relay, scope.endpoint, limits, callbacks)
        self._progress: dict[RequestId, Progress] = {}
        self._runners: dict[frozenset[str], Runner] = {}

    async def serve(self, request: JSONObject, metadata: Any) -> Served | None:
        """The end of a call; ``None`` leaves it to the server, as a task that the host sees through itself.

        Raises:
            Exception: Faults of ours only.
        """
        message = {"jsonrpc": "2.0", "method": "tools/call", **request}
        call = read_host_call(message, PROTOCOL_VERSION, "application/json")
        if call is None:
            return None
        headers = dict(getattr(metadata, "headers", None) or {})
        _serving.set(_Serving(call, headers))
        tool_call = call.tool_call
        listeners, token = list(self._listeners), call.progress_token
        if token is not None:  # the server's own progress passes to the host
            tool_call = replace(tool_call, meta={**(tool_call.meta or {}), "progressToken": token})
            progress = self._progress[token] = Progress(token, self._relay.tell_host)
            listeners.append(progress.tell)
        try:
            made = await self._calls.make(
                call,
                tool_call,
                runner=self._runner(call),
                scope=self._scope,
                record_id=call.record_id,
                listeners=listeners,
            )
        finally:
            if token is not None:
                self._progress.pop(token, None)
        live = made.live
        if live is None:
            return Served(made.reply)
        return Served(made.reply, lambda: self._calls.deliver(live), lambda: self._calls.drop(live))

    def hear(self, method: str, params: JSONObject) -> None:
        """Learn of a notification that passes to the host."""
        token = params.get("progressToken")
        if method == PROGRESS and isinstance(token, str | int) and token in self._progress:
            self._progress[token].note({"method": method, "params": params})

    async def aclose(self) -> None:
        """Own nothing any more, once all calls have ended."""
        await self._calls.aclose()

    def _runner(self, call: HostCall) -> Runner:
        declared = call.capabilities or {}
        asked = {name: declared[name] for name in ASKED_BY.values() if name in declared}
        runner = self._runners.get(frozenset(asked))
        if runner is None:
            inputs = self._callbacks or HostInputs(asked)
            runner = self._runners[frozenset(asked)] = self._engine.make_runner(self._session, inputs)
        return runner


@dataclass(frozen=True, slots=True)
class _Serving:
    """The host's call for whose sake requests of ours are sent."""

    call: HostCall
    headers: Mapping[str, str] = field(repr=False)


_serving: Final[ContextVar[_Serving]] = ContextVar("mcp_tasks_client_relayed")


class _RelaySession(Session):
    """A server behind a host's transport."""

    def __init__(self, relay: Relay, endpoint: str, limits: Limits, callbacks: Callbacks | None) -> None:
        self._relay = relay
        self._endpoint = endpoint
        self._limits = limits
        self._capabilities = {} if callbacks is None else callbacks.capabilities
        self._polls = anyio.Semaphore(limits.tasks_in_flight, fast_acquire=True)

    @property
    def endpoint(self) -> str:
        """As given."""
        return self._endpoint

    @property
    def limits(self) -> Limits:
        """As given."""
        return self._limits

    async def tool(self, name: str, *, fresh: bool = False) -> Tool | None:
        """Nothing: the host's session knows the tools, and checks results itself."""
        return None

    async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
        """Send ``tools/call`` once.

        Raises:
            SessionError: No reply.
        """
        params = call_params(
            call.name, call.arguments, input_responses=call.input_responses, request_state=call.request_state
        )
        errors = RequestErrors("tools/call")
        await before_send()
        result = await self._send(errors, params, call.meta, _serving.get().headers, None)
        try:
            return read_call_reply(result)
        except MalformedError as error:
            raise errors.malformed(str(error)) from None

    async def get(self, ref: TaskRef) -> Snapshot:
        """Send ``tasks/get`` once.

        Raises:
            SessionError: No snapshot.
        """
        async with self._polls:
            result = await self._send_task("tasks/get", ref, None)
        try:
            task = read_task(result)
        except MalformedError as error:
            raise RequestErrors("tasks/get", ref.task_id).malformed(str(error)) from None
        return Snapshot(task, task.request_state)

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        """Send ``tasks/update`` once.

        Raises:
            SessionError: No acknowledgement.
        """
        await self._send_task("tasks/update", ref, answers)

    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once.

        Raises:
            SessionError: No acknowledgement.
        """
        await self._send_task("tasks/cancel", ref, None)

    async def aclose(self) -> None:
        """Close nothing: the connection is the host's."""

    async def _send_task(
        self, method: str, ref: TaskRef, answers: Mapping[str, JSONObject] | None
    ) -> JSONObject:
        errors = RequestErrors(method, ref.task_id)
        try:
            named = header_value(ref.task_id)
        except MalformedError as error:
            raise RemoteProtocolError(
                f"{method} cannot be sent: the server issued a task ID that no message can carry ({error}). "
                "Report it to the server's author.",
                not_executed=True,
            ) from None
        params = task_params(ref.task_id, request_state=ref.session_data, input_responses=answers)
        # A transport over HTTP sends them; others ignore them.
        headers = {"mcp-protocol-version": PROTOCOL_VERSION, "mcp-method": method, "mcp-name": named}
        result = await self._send(errors, params, None, headers, self._limits.task_timeout_s)
        if method != "tasks/get" and result.get("resultType") == "task":
            raise errors.malformed("a task, which only tools/call may be answered with")
        return result

    async def _send(
        self,
        errors: RequestErrors,
        params: JSONObject,
        meta: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        timeout_s: float | None,
    ) -> JSONObject:
        host = _serving.get().call
        capabilities = {**(host.capabilities or {}), **self._capabilities}
        params["_meta"] = request_meta(host.client_info or {}, capabilities, meta)
        request_id, sent = uuid4().hex, not self._relay.closed.is_set()
        metadata = ClientMessageMetadata(headers=dict(headers))
        try:
            reply = await self._relay.request(errors.method, params, timeout_s, request_id, metadata)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(_CANCEL_S, shield=True):
                await self._relay.cancel_request(request_id)
            raise
        if reply is None:
            if self._relay.closed.is_set():
                raise errors.closed("connection of the host's session", sent=sent)
            raise errors.timed_out(timeout_s or 0.0)
        if isinstance(reply, RpcError):
            raise _error_of(errors, reply)
        return reply


def _error_of(errors: RequestErrors, reply: RpcError) -> SessionError:
    if reply.data is None and reply.code is not None and was_made_up(reply.code, reply.message):
        return errors.lost(reply.message)
    return errors.for_rpc_error(reply)
