"""What a model does in a host, turn by turn: it calls a tool, looks at what it is shown, and calls again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

__all__ = ["REFERENCE", "Turn", "follow", "references"]

REFERENCE: Final = "$reference"
"""Stands in arguments for the reference that the model was shown last."""

_REFERENCE: Final = re.compile(r"\b[0-9a-f]{32}\b")


@dataclass(frozen=True, slots=True)
class Turn:
    """A call of one tool."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def filled(self, shown: Sequence[str]) -> Turn:
        """The same turn with the last reference of ``shown`` in place of :data:`REFERENCE`."""
        known = references(shown)
        return Turn(
            self.tool,
            {
                name: known[-1] if value == REFERENCE and known else value
                for name, value in self.arguments.items()
            },
        )

    def document(self) -> dict[str, Any]:
        """As JSON, for a host in another language."""
        return asdict(self)


def references(shown: Sequence[str]) -> list[str]:
    """The references in texts that a model was shown, in their order."""
    return [found for text in shown for found in _REFERENCE.findall(text)]


def follow(wait_s: float = 60.0) -> Turn:
    """Ask for the result of the call whose reference was shown last."""
    return Turn("task_result", {"reference": REFERENCE, "wait_s": wait_s})
