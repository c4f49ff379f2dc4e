"""A host's own client under ``TasksClient(client)``: a session, callbacks, and the options to use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mcp import ClientSession
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ...engine.engine import Engine
from ...errors import MissingCapabilityError
from ...machine.record import Scope
from ...questions.callbacks import Callbacks
from ...sessions.base import Limits
from ..shared_options import SharedOptions
from . import introspection
from .extension import TasksExtension
from .sdk_session import SdkSession, host_callbacks

__all__ = ["OverClient"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverClient:
    """The parts of a :class:`TasksClient` over a host's client.

    The client may be an ``mcp.Client``, a ``fastmcp.Client`` or a ``ClientSession``, connected or not yet.
    """

    session: SdkSession
    inputs: Callbacks
    scope: Scope
    engine: Engine

    @classmethod
    def of(cls, client: Any, given: SharedOptions) -> OverClient:
        """Read a client. An option that is not given is as in the client's :class:`TasksExtension`.

        Where the extension has none either, ``endpoint`` is the client's URL or command, and a callback is
        the client's own.

        Raises:
            TypeError: ``journal`` is neither a journal nor a path.
            ValueError: The server has no address, and no ``endpoint`` is given.
            MissingCapabilityError: A callback is given, and the client is connected at a version of the
                protocol in which a client declares once which questions it can answer.
        """
        made_with = introspection.extensions_of(client)
        found = next((one for one in made_with if isinstance(one, TasksExtension)), None)
        options = given if found is None else given.or_else(found.options)
        address = introspection.address_of(client)
        endpoint = options.endpoint or (address.endpoint if address is not None else None)
        if endpoint is None:
            raise ValueError(
                "the journal needs a name for this server, which has neither URL nor command that could be "
                'seen; give it one that stays: TasksClient(client, endpoint="my-server")'
            )
        engine = options.make_engine()

        def current() -> ClientSession:
            session: ClientSession = client if isinstance(client, ClientSession) else client.session
            return session

        _check_useful(given.callbacks, current)
        callbacks = options.callbacks
        session = SdkSession(
            current,
            endpoint=endpoint,
            ephemeral=address is not None and address.ephemeral,
            limits=Limits(tasks_in_flight=engine.policy.polls_in_flight),
            capabilities=callbacks.capabilities,
            sleep=engine.environment.clock.sleep,
        )
        scope = Scope(endpoint, options.principal or "")
        return cls(session=session, inputs=host_callbacks(current, callbacks), scope=scope, engine=engine)


def _check_useful(callbacks: Callbacks, current: Callable[[], ClientSession]) -> None:
    """Refuse callbacks that no server will ever ask. A client that is not connected yet passes.

    Raises:
        MissingCapabilityError: The connection was negotiated at an older version of the protocol.
    """
    if not callbacks.capabilities:
        return
    with suppress(RuntimeError):  # not connected
        version = current().protocol_version
        if version is not None and version not in MODERN_PROTOCOL_VERSIONS:
            names = " and ".join(callbacks.capabilities)
            raise MissingCapabilityError(
                f"The {names} given here cannot work, because the connection was negotiated at {version}, "
                "where a client says once what it can answer. Give them to a TasksTransport around the "
                "client's transport, or to TasksClient(url)."
            )
