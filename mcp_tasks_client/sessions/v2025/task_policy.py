"""The policy of asking a server of 2025-11-25 to make a task of a call, and to keep it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mcp_types import Tool

from ...errors import MissingCapabilityError
from ...policy import TaskPreference

__all__ = ["TaskPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPolicy:
    """The host's wishes for its calls.

    Raises:
        ValueError: ``prefer`` is none of the three words, or ``ttl_s`` is not positive.
    """

    prefer: TaskPreference = "auto"
    ttl_s: float = 86_400.0

    def __post_init__(self) -> None:
        if self.prefer not in ("auto", "always", "never"):
            raise ValueError(f'task_preference must be "auto", "always" or "never", got {self.prefer!r}')
        if not 0 < self.ttl_s < math.inf:
            raise ValueError(f"task_ttl_s must be more than 0, and a number, got {self.ttl_s}")

    @property
    def ttl_ms(self) -> int:
        """``ttl_s`` in whole milliseconds, as it is sent."""
        return math.ceil(self.ttl_s * 1000)

    def wants_task(self, name: str, tool: Tool | None, *, server_makes_tasks: bool) -> bool:
        """Whether to send ``params.task`` with a call.

        The tool is as the server lists it, and ``None`` if it does not. ``server_makes_tasks``: the server
        declares ``tasks.requests.tools.call``.

        Raises:
            MissingCapabilityError: The host wants tasks always, and the server makes none of this tool.
        """
        support = tool.execution.task_support if tool is not None and tool.execution is not None else None
        allowed = server_makes_tasks and support in ("optional", "required")
        if self.prefer == "always" and not allowed:
            raise MissingCapabilityError(
                f"{name!r} was not called: the server does not make tasks of it. Call it with a client whose "
                'task_preference is "auto".',
                not_executed=True,
            )
        return allowed and self.prefer != "never"
