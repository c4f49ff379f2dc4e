"""The servers that a host calls over HTTP: a session for each URL, user, and set of declared capabilities."""

from __future__ import annotations

import json
import logging
from typing import Any, Final, TypeVar

import anyio

from ...engine.endpoint import Endpoint
from ...engine.engine import Engine
from ...errors import IdempotencyConflictError, SessionError
from ...machine.record import Scope
from ...protocol import JSONObject
from ...questions.callbacks import Callbacks, Inputs
from ...questions.kinds import KINDS
from ...sessions.by_url.discovery import DiscoveringSession, session_by_url
from ...sessions.http.http_session import HttpSession
from ..host_call import HostCall
from ..host_calls import make_limits
from ..questions import HostInputs
from .own_requests import HostRequest, InnerTransport

__all__ = ["Server", "Servers"]

logger = logging.getLogger("mcp_tasks_client")

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

_MOST_SERVERS: Final = 64
"""Sessions that are kept, unless more have calls under way."""

_MOST_NOTED: Final = 10_000
"""Idempotency keys whose user is remembered, and likewise users whose declared capabilities are."""

_OLDER: Final[dict[str, Any]] = {"receive": None, "task_preference": "auto", "task_ttl_s": 86_400.0}


class Servers:
    """Finds the session for a call. All calls of one user at one URL that declare the same share it.

    No list of tools and no MCP session of one credential is used for another. An idempotency key is refused
    to another credential than it first came with, for as long as that is remembered here.

    Without ``callbacks`` the host is asked. ``endpoint`` names each server in the journal; ``None`` derives
    the name from the URL. A ``principal`` that is not empty makes all requests those of one user, with any
    credential.
    """

    def __init__(
        self,
        engine: Engine,
        requests: InnerTransport,
        callbacks: Callbacks | None,
        endpoint: str | None,
        principal: str,
    ) -> None:
        self._engine = engine
        self.requests = requests
        self._callbacks = callbacks
        self._endpoint = endpoint
        self._principal = principal
        self._limits = make_limits(engine.policy)
        self._servers: dict[tuple[str, str, str], Server] = {}
        self._declared: dict[tuple[str, str], JSONObject] = {}
        self._key_users: dict[tuple[str, str], str] = {}

    def note_declared(self, host: HostRequest, message: JSONObject) -> None:
        """Note the capabilities that a host declares in ``initialize``."""
        params = message.get("params")
        capabilities = params.get("capabilities") if isinstance(params, dict) else None
        declared = capabilities if isinstance(capabilities, dict) else {}
        _remember(self._declared, (host.url, host.user), declared)

    def find(self, host: HostRequest, call: HostCall) -> Server:
        """The session for a call of a host's.

        Raises:
            IdempotencyConflictError: The call's key was first used with another credential at this server.
        """
        declared = call.capabilities
        if declared is None:
            declared = self._declared.get((host.url, host.user), {})
        askable = {kind.name for kind in KINDS.values()}
        capabilities = {name: value for name, value in declared.items() if name not in {*askable, "tasks"}}
        if not call.is_current:
            capabilities.pop("extensions", None)
        if self._callbacks is not None:
            capabilities |= self._callbacks.capabilities
        elif call.is_current or call.reads_events:
            capabilities |= {name: value for name, value in declared.items() if name in askable}
        key = host.url, host.user, json.dumps([capabilities, call.client_info], sort_keys=True)
        server = self._servers.pop(key, None)
        if server is None:
            self._close_idle()
            inputs = self._callbacks or HostInputs(capabilities)
            session = session_by_url(
                host.url,
                inputs,
                self._engine.policy,
                self._engine.environment.clock,
                older=_OLDER,
                capabilities=capabilities,
                limits=self._limits,
                http_client=self.requests,
                endpoint=self._endpoint,
                client_info=call.client_info,
            )
            server = Server(session, inputs, Scope(session.endpoint, self._principal), self._engine)
        self._servers[key] = server  # behind those that were used before
        self._check_key(host, call, server.session.endpoint)
        return server

    def _check_key(self, host: HostRequest, call: HostCall, endpoint: str) -> None:
        """Refuse a key that another user has used there. With a principal all requests are of one user."""
        if not isinstance(call.key, str) or self._principal:
            return
        key = endpoint, call.key
        if self._key_users.get(key, host.user) != host.user and not host.was_refused:
            raise IdempotencyConflictError(
                f"The idempotency key {call.key!r} was used with another credential over this HTTP client. "
                "If all its requests are of one user, name the user by principal=. If not, give each user a "
                "client."
            )
        _remember(self._key_users, key, host.user)

    def _close_idle(self) -> None:
        """Close the session that was not used for the longest time, if there are too many."""
        if len(self._servers) < _MOST_SERVERS:
            return
        idle = next((key for key, server in self._servers.items() if not server.calls), None)
        if idle is not None:
            self._engine.tasks.start(self._servers.pop(idle).session.aclose)

    async def aclose(self) -> None:
        """Close all sessions at the same time, since each may wait for its server."""
        async with anyio.create_task_group() as closing:
            for server in self._servers.values():
                closing.start_soon(server.session.aclose)


class Server:
    """A session at a server, and the calls that are made over it.

    Attributes:
        calls: How many are under way.
    """

    def __init__(
        self, session: DiscoveringSession[HttpSession], inputs: Inputs, scope: Scope, engine: Engine
    ) -> None:
        self.session = session
        self.inputs = inputs
        self.calls = 0
        self.is_older = False
        self._scope = scope
        self._engine = engine
        self._endpoint: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Makes the calls, once :meth:`takes` has found out the version."""
        assert self._endpoint is not None
        return self._endpoint

    async def takes(self, call: HostCall, host: HostRequest) -> bool:
        """Whether a call is made here, and not left to the host's own request."""
        keyed = call.key is not None
        try:
            self.is_older = await self.session.other(context=host) is not None
            if self._endpoint is None:
                self._endpoint = Endpoint(
                    self._engine, self.session, self.inputs, self._scope, hears=self.is_older
                )
            # At an older server a plain call may concern the host's own MCP session.
            name = call.tool_call.name
            return keyed or not self.is_older or await self.session.may_make_task(name, context=host)
        except SessionError as error:
            if keyed:
                raise
            logger.info("tools/call passes as it is, since the server could not be asked: %s", error)
            return False


def _remember(noted: dict[KeyT, ValueT], key: KeyT, value: ValueT) -> None:
    """Note a value, and forget the oldest ones."""
    noted.pop(key, None)
    noted[key] = value
    if len(noted) > _MOST_NOTED:
        del noted[next(iter(noted))]
