"""The private names of the engine that the simulation uses. A new engine changes this file alone."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final
from unittest.mock import patch

from mcp_tasks_client.engine import prompts
from mcp_tasks_client.engine.endpoint import Endpoint, Line
from mcp_tasks_client.engine.owning import Owning
from mcp_tasks_client.hosts.shared_options import SharedOptions
from mcp_tasks_client.machine.record import Scope
from mcp_tasks_client.sessions.base import Session, Snapshot

__all__ = ["PRIVATE", "DroppedIn", "replaced"]

PRIVATE: Final[dict[str, tuple[object, str]]] = {
    # The machine emits the questions of a snapshot in one step, and the host sees one callback at a time. The
    # engine orders them in between, where a client, a session, a journal and an observer see nothing.
    "the method of the questions that are put one after another": (prompts, "_ELICITATION"),
    # Requests and questions leave the process without passing the journal.
    "is a call in doubt": (Owning, "is_in_doubt"),
    "wait until a call is in doubt": (Owning, "wait_for_withdrawal"),
}
"""The private names that mutants replace, each by a description: the module or class, and the name in it."""


def replaced(what: str, other: object) -> AbstractContextManager[Any]:
    """Replace something private, by its description."""
    owner, name = PRIVATE[what]
    return patch.object(owner, name, other)


class DroppedIn:
    """The engine as a ``TasksExtension`` uses it. There is no SDK here, since the SDK knows no virtual time.

    Args:
        session: Where requests go.
        elicitation: As for ``TasksExtension``, like all that follow.
    """

    def __init__(
        self,
        session: Session,
        *,
        journal: Any,
        poll: Any,
        on_abandon: Any,
        application: Any,
        environment: Any,
        elicitation: Any = None,
        sampling: Any = None,
        roots: Any = None,
    ) -> None:
        options = SharedOptions(
            journal=journal,
            poll=poll,
            on_abandon=on_abandon,
            application=application,
            environment=environment,
            elicitation=elicitation,
            sampling=sampling,
            roots=roots,
        )
        self._endpoint = Endpoint(options.make_engine(), session, options.callbacks, Scope(session.endpoint))

    async def see_through(self, created: Snapshot, tool: str) -> Any:
        """The result of a task that ``tools/call`` was answered with."""
        return await self._endpoint.see_task_through(Line(), created, tool, timeout=None)
