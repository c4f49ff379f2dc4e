"""Whether a server of 2025-11-25 is asked to make a task of a call, and for how long to keep it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from mcp_types import Tool

from ..errors import MissingCapabilityError

__all__ = ["TASK_TTL_S", "Preference", "TaskWish"]

Preference: TypeAlias = Literal["auto", "always", "never"]
"""When to ask for a task: wherever the tool and the server allow it; so, and call no other tool; or never."""

TASK_TTL_S: Final = 86_400.0
"""Seconds for which a task and its result are to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWish:
    """What is wished for with a call.

    Raises:
        ValueError: ``prefer`` is none of the three words, or the time is not positive.
    """

    prefer: Preference = "auto"
    ttl_s: float = TASK_TTL_S

    def __post_init__(self) -> None:
        if self.prefer not in ("auto", "always", "never"):
            raise ValueError(f'task_preference must be "auto", "always" or "never", got {self.prefer!r}')
        if not 0 < self.ttl_s < math.inf:
            raise ValueError(f"task_ttl_s must be more than 0, and a number, got {self.ttl_s}")

    @property
    def ttl_ms(self) -> int:
        """The time in milliseconds, as it is sent."""
        return math.ceil(self.ttl_s * 1000)

    def as_task(self, name: str, tool: Tool | None, makes_tasks: bool) -> bool:
        """Whether to ask for a task.

        Args:
            name: The tool's.
            tool: As the server lists it; ``None`` if it does not.
            makes_tasks: Whether the server makes tasks of any calls.

        Raises:
            MissingCapabilityError: It cannot be had, and nothing else is wanted.
        """
        support = tool.execution.task_support if tool is not None and tool.execution is not None else None
        allowed = makes_tasks and support in ("optional", "required")
        if self.prefer == "always" and not allowed:
            raise MissingCapabilityError(
                f"{name!r} was not called: the server does not make tasks of it. Call it with a client whose "
                'task_preference is "auto".',
                not_executed=True,
            )
        return allowed and self.prefer != "never"
