"""The calls of a host's session at 2026-07-28, whose messages pass through a relay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...callbacks import Callbacks
from ...engine.inline import InlineEngine
from ...engine.live_call import OnUpdate
from ...engine.progress import ProgressByToken
from ...engine.runner import Runner
from ...machine.record import Scope
from ...protocol import PROTOCOL_VERSION, JSONObject
from ...sessions.base import Limits
from ..host_call import ASKED_BY, HostCall, read_host_call
from ..host_calls import HostCalls
from ..questions import HostInputs
from .relay import Relay, Served
from .relay_session import RelayedCall, RelaySession, relayed

__all__ = ["CurrentCalls"]


class CurrentCalls:
    """Makes each ``tools/call`` of the host's in a task of the relay's, and brings its reply.

    Args:
        relay: Carries our requests.
        engine: Sees the calls through.
        callbacks: Answer the server's questions; ``None`` leaves them to the host, in the replies to its
            calls.
        scope: Under which the journal keeps the calls.
        limits: The bounds to keep.
        progress: Of the host's calls.
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
        progress: ProgressByToken,
        on_update: OnUpdate | None,
    ) -> None:
        self._engine = engine
        self._callbacks = callbacks
        self._scope = scope
        self._listeners = () if on_update is None else (on_update,)
        self._calls = HostCalls(engine, asks_host=callbacks is None)
        self._session = RelaySession(relay, scope.endpoint, limits, callbacks)
        self._progress = progress
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
        relayed.set(RelayedCall(call, headers=dict(getattr(metadata, "headers", None) or {})))
        tool_call, token = call.tool_call, call.progress_token
        if token is not None:  # the server's own progress passes to the host
            tool_call = replace(tool_call, meta={**(tool_call.meta or {}), "progressToken": token})
        with self._progress.telling(token) as tell:
            made = await self._calls.make(
                call,
                tool_call,
                runner=self._runner(call),
                scope=self._scope,
                record_id=call.record_id,
                listeners=(*self._listeners, *tell),
            )
        return Served(made.reply, lambda: self._calls.deliver(made), lambda: self._calls.drop(made))

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
