"""The calls of a host's session whose messages pass through a relay, at either version."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from ...engine.audience import OnUpdate
from ...engine.endpoint import Endpoint
from ...engine.engine import Engine
from ...engine.outcome import as_rpc_error
from ...engine.progress import ProgressByToken
from ...errors import MissingCapabilityError
from ...machine.record import Scope
from ...protocol import JSONObject
from ...questions.callbacks import Callbacks
from ...sessions.base import Limits
from ..host_call import HostCall, read_host_call
from ..host_calls import HostCalls, MadeCall, refuse
from ..questions import HostInputs
from .core_server import CoreServer
from .relay import Relay
from .relay_session import RelayedCall, RelaySession

__all__ = ["RelayedCalls"]


_NO_TASKS: Final = (
    "A call with an idempotency key was not made, since the key cannot be kept: the session is at a version "
    "without tasks. Call without a key, or by a TasksClient."
)


class RelayedCalls:
    """Makes each ``tools/call`` of the host's in a task of the relay's, and brings its reply.

    Questions that the callbacks do not answer go to the host's session. ``core_server`` makes the calls of a
    session at 2025-11-25.
    """

    def __init__(
        self,
        relay: Relay,
        engine: Engine,
        *,
        callbacks: Callbacks,
        scope: Scope,
        limits: Limits,
        progress: ProgressByToken,
        on_update: OnUpdate | None,
        core_server: CoreServer,
    ) -> None:
        self._engine = engine
        self._callbacks = callbacks if callbacks.capabilities else None
        self._scope = scope
        self._listeners = () if on_update is None else (on_update,)
        self._calls = HostCalls(engine)
        self._session = RelaySession(relay, scope.endpoint, limits, self._callbacks)
        self._progress = progress
        self._core_server = core_server
        self._endpoints: dict[frozenset[str], Endpoint] = {}

    async def serve(self, request: JSONObject, metadata: Any) -> MadeCall | None:
        """The end of a call; ``None`` leaves it to the server.

        Raises:
            Exception: Faults of ours only.
        """
        call = read_host_call({"jsonrpc": "2.0", "method": "tools/call", **request}, "", "application/json")
        if call is None:
            return None  # a task that the host sees through itself
        if call.fault is None and call.key is not None and not (call.is_current or self._core_server.is_met):
            call = replace(call, fault=_NO_TASKS)
        if call.loses_key:
            return refuse(call.fault or "")
        host = RelayedCall(call=call, headers=dict(getattr(metadata, "headers", None) or {}))
        tool_call, token = replace(call.tool_call, context=host), call.progress_token
        try:
            if not call.is_current and not await self._core_server.takes(call):
                return None
        except MissingCapabilityError as error:
            return MadeCall(as_rpc_error(error))
        if token is not None:  # the server's own progress passes to the host
            tool_call = replace(tool_call, meta={**(tool_call.meta or {}), "progressToken": token})
        endpoint = self._find_endpoint(call) if call.is_current else self._core_endpoint
        with self._progress.telling(token) as tell:
            listeners = (*self._listeners, *tell)
            return await self._calls.make(replace(call, tool_call=tool_call), endpoint, listeners)

    async def aclose(self) -> None:
        """Release everything, once all calls have ended."""
        await self._calls.aclose()
        await self._core_server.session.aclose()

    def _find_endpoint(self, call: HostCall) -> Endpoint:
        """The endpoint for a call of a session at 2026-07-28. Calls that declare the same share it."""
        inputs = self._callbacks or HostInputs(call.capabilities or {})
        asked = frozenset(inputs.capabilities)
        if asked not in self._endpoints:
            self._endpoints[asked] = Endpoint(self._engine, self._session, inputs, self._scope)
        return self._endpoints[asked]

    @cached_property
    def _core_endpoint(self) -> Endpoint:
        """The endpoint for the calls of a session at 2025-11-25."""
        server = self._core_server
        return Endpoint(self._engine, server.session, server.inputs, self._scope, hears=True)
