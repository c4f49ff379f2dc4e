"""A server behind the transport of a host's session.

Requests of ours travel among the host's, under IDs of ours, with the credential that the host's transport
adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import uuid4

import anyio
from mcp.shared.message import ClientMessageMetadata
from mcp_types import Tool

from ...protocol import PROTOCOL_VERSION, JSONObject
from ...protocol.params import request_meta
from ...protocol.replies import RpcError
from ...protocol.text import header_value
from ...questions.callbacks import Callbacks
from ...questions.context import CallContext
from ...sessions.base import BeforeSend, Limits
from ...sessions.wire import WireRequest, WireSession
from ..host_call import HostCall
from ..sdk.introspection import error_of
from .relay import Relay

__all__ = ["RelaySession", "RelayedCall"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RelayedCall(CallContext):
    """The host's request that is being served, over a relay."""

    call: HostCall
    headers: Mapping[str, str] = field(repr=False)


class RelaySession(WireSession):
    """A server behind the transport of a host's session.

    ``callbacks`` have capabilities that are declared besides the host's; ``None`` if there are none.
    """

    def __init__(self, relay: Relay, endpoint: str, limits: Limits, callbacks: Callbacks | None) -> None:
        super().__init__(endpoint, limits)
        self._relay = relay
        self._capabilities = {} if callbacks is None else callbacks.capabilities

    async def tool(
        self, name: str, *, fresh: bool = False, context: CallContext | None = None
    ) -> Tool | None:
        """``None``: the host's session knows the tools, and checks results itself."""
        return None

    async def exchange(self, request: WireRequest, before_send: BeforeSend) -> JSONObject:
        """Send one request among the host's, and return its result as it came.

        A caller that is cancelled takes the request back.
        """
        host = request.context if isinstance(request.context, RelayedCall) else None
        call, errors = request.call, request.errors
        declared = {**(host.call.capabilities or {} if host else {}), **self._capabilities}
        introduced = host.call.client_info or {} if host else {}
        meta = request_meta(introduced, declared, request.meta)
        # A transport over HTTP sends them; others ignore them.
        headers = {"mcp-protocol-version": PROTOCOL_VERSION, "mcp-method": request.method}
        if call is not None and host is not None:
            headers = dict(host.headers)
        elif request.name is not None:
            headers["mcp-name"] = header_value(request.name)
        timeout_s = None if request.patient else self.limits.task_timeout_s
        request_id, metadata = uuid4().hex, ClientMessageMetadata(headers=headers)
        await before_send()
        try:
            reply = await self._relay.request(
                errors, {**request.params, "_meta": meta}, timeout_s, request_id, metadata
            )
        except anyio.get_cancelled_exc_class():
            await self._relay.take_back(request_id)
            raise
        if isinstance(reply, RpcError):
            raise error_of(errors, reply)
        return reply
