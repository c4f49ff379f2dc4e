"""A server behind the transport of a host's session.

Requests of ours travel among the host's, under IDs of ours, with the credential that the host's transport
adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import anyio
from mcp.shared.message import ClientMessageMetadata
from mcp_types import Tool

from ...callbacks import Callbacks
from ...errors import RemoteProtocolError
from ...protocol import PROTOCOL_VERSION, JSONObject, MalformedError
from ...protocol.params import call_params, request_meta, task_params
from ...protocol.replies import CallReply, RpcError, read_call_reply
from ...protocol.task import read_task
from ...protocol.text import header_value
from ...sessions.base import BeforeSend, Limits, Session, Snapshot, TaskRef, ToolCall
from ...sessions.http.http_errors import RequestErrors
from ..host_call import HostCall
from .relay import Relay, error_of

__all__ = ["RelaySession", "RelayedCall", "relayed"]

_CANCEL_S: Final = 5.0
"""Seconds that a ``notifications/cancelled`` may take to leave."""


@dataclass(frozen=True, slots=True)
class RelayedCall:
    """The host's request for whose sake requests of ours are sent."""

    call: HostCall
    headers: Mapping[str, str] = field(repr=False)


relayed: Final[ContextVar[RelayedCall]] = ContextVar("mcp_tasks_client_relayed")
"""The host's request that is being served, since all of a host's calls share one session."""


class RelaySession(Session):
    """A server behind the transport of a host's session.

    Args:
        relay: Carries the messages.
        endpoint: The server's name in the journal.
        limits: The bounds to keep.
        callbacks: Whose capabilities are declared besides the host's; may be ``None``.
    """

    def __init__(self, relay: Relay, endpoint: str, limits: Limits, callbacks: Callbacks | None) -> None:
        self._relay = relay
        self.endpoint = endpoint
        self.limits = limits
        self._capabilities = {} if callbacks is None else callbacks.capabilities
        self._polls = anyio.Semaphore(limits.tasks_in_flight, fast_acquire=True)

    async def tool(self, name: str, *, fresh: bool = False, context: object = None) -> Tool | None:
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
        result = await self._send(errors, params, call.meta, relayed.get().headers, None)
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
        result = await self._send(errors, params, None, headers, self.limits.task_timeout_s)
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
        host = relayed.get().call
        capabilities = {**(host.capabilities or {}), **self._capabilities}
        params["_meta"] = request_meta(host.client_info or {}, capabilities, meta)
        request_id = uuid4().hex
        metadata = ClientMessageMetadata(headers=dict(headers))
        try:
            reply = await self._relay.request(errors, params, timeout_s, request_id, metadata)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(_CANCEL_S, shield=True):
                await self._relay.cancel_request(request_id)
            raise
        if isinstance(reply, RpcError):
            raise error_of(errors, reply)
        return reply
