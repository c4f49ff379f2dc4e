"""The one part of a history that is no public name: the engine as a ``TasksExtension`` uses it.

``TasksExtension`` needs a ``ClientSession`` of the SDK. The SDK knows no virtual time, and hides the status
and the ``Retry-After`` of a reply, which a history goes by. So a dropped-in call enters the engine where the
extension does. A new engine changes this module alone.
"""

from __future__ import annotations

from typing import Any

from mcp_tasks_client import Scope, Session, Snapshot
from mcp_tasks_client.engine.endpoint import Endpoint, HostLine
from mcp_tasks_client.hosts.shared_options import SharedOptions

__all__ = ["DroppedIn"]


class DroppedIn:
    """Sees tasks through that another client has called for.

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
        return await self._endpoint.see_task_through(HostLine(), created, tool, timeout=None)
