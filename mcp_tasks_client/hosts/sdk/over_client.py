"""A host's own client under ``TasksClient(client)``: a session, callbacks, and the options to use."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mcp import ClientSession
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ...engine.engine import Engine, OnAbandon
from ...engine.environment import Environment
from ...engine.tool_result import OutputSchema
from ...errors import MissingCapabilityError
from ...journal.base import Journal
from ...journal.sqlite.journal import choose_journal
from ...machine.record import Scope
from ...policy import PollPolicy
from ...questions.callbacks import Callbacks, ElicitationCallback, RootsCallback, SamplingCallback
from ...sessions.base import Limits
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
    def of(
        cls,
        client: Any,
        *,
        journal: Journal | str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        principal: str | None = None,
        application: str | None = None,
        elicitation: ElicitationCallback | None = None,
        sampling: SamplingCallback | None = None,
        roots: RootsCallback | None = None,
        poll: PollPolicy | None = None,
        on_abandon: OnAbandon | None = None,
        output_schema: OutputSchema | None = None,
        environment: Environment | None = None,
    ) -> OverClient:
        """Read a client. An option that is ``None`` is as in the client's :class:`TasksExtension`.

        Where the extension has none either, ``endpoint`` is the client's URL or command, and a callback is
        the client's own.

        Raises:
            TypeError: ``journal`` is none of those that are possible.
            ValueError: The server has no address, and no ``endpoint`` is given.
            MissingCapabilityError: A callback is given, and the client is connected at a version of the
                protocol in which a client says once what it can answer.
        """
        made_with = introspection.extensions_of(client)
        found = next((one for one in made_with if isinstance(one, TasksExtension)), None)
        theirs = found or TasksExtension(journal=journal)
        address = introspection.address_of(client)
        endpoint = endpoint or theirs.endpoint or (address.endpoint if address is not None else None)
        if endpoint is None:
            raise ValueError(
                "the journal needs a name for this server, which has neither URL nor command that could be "
                'seen; give it one that stays: TasksClient(client, endpoint="my-server")'
            )
        engine = Engine(
            journal=theirs.journal if found is None or journal is None else choose_journal(journal),
            policy=poll or theirs.engine.policy,
            on_abandon=on_abandon or theirs.engine.on_abandon,
            output_schema=output_schema or theirs.engine.output_schema,
            application=theirs.engine.application if application is None else application,
            environment=environment or theirs.engine.environment,
        )

        def current() -> ClientSession:
            session: ClientSession = client if isinstance(client, ClientSession) else client.session
            return session

        _check_useful(Callbacks(elicitation=elicitation, sampling=sampling, roots=roots), current)
        callbacks = Callbacks(
            elicitation=elicitation or theirs.callbacks.elicitation,
            sampling=sampling or theirs.callbacks.sampling,
            roots=roots or theirs.callbacks.roots,
        )
        session = SdkSession(
            current,
            endpoint=endpoint,
            ephemeral=address is not None and address.ephemeral,
            limits=Limits(tasks_in_flight=engine.policy.polls_in_flight),
            capabilities=callbacks.capabilities,
            sleep=engine.environment.clock.sleep,
        )
        scope = Scope(endpoint, theirs.principal if principal is None else principal)
        return cls(session=session, inputs=host_callbacks(current, callbacks), scope=scope, engine=engine)


def _check_useful(callbacks: Callbacks, current: Callable[[], ClientSession]) -> None:
    """Refuse callbacks that no server will ever ask. A client that is not connected yet tells nothing.

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
