"""What a model does in a host, turn by turn: it calls a tool, looks at what it is shown, and calls again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

__all__ = ["REFERENCE", "Turn", "follow", "next_turn", "references"]

REFERENCE: Final = "$reference"
"""Stands in arguments for the reference that the model was shown last."""

_REFERENCE: Final = re.compile(r"\b[0-9a-f]{32}\b")


@dataclass(frozen=True, slots=True)
class Turn:
    """A call of one tool.

    Attributes:
        tool: The server's name of it, or the bridge's.
        arguments: JSON values.
        is_repeated: The call is made again, for as long as what comes back has a reference in it.
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    is_repeated: bool = False

    def document(self) -> dict[str, Any]:
        """As JSON, for a host in another language."""
        return asdict(self)


def follow(wait_s: float = 60.0) -> Turn:
    """Ask for the result of the call whose reference was shown last, until it is there."""
    return Turn("task_result", {"reference": REFERENCE, "wait_s": wait_s}, is_repeated=True)


def references(shown: Sequence[str]) -> list[str]:
    """The references in texts that a model was shown, in their order."""
    return [found for text in shown for found in _REFERENCE.findall(text)]


def next_turn(turns: Sequence[Turn], shown: Sequence[str]) -> Turn | None:
    """The turn after these results, with its reference filled in; ``None`` if all are played."""
    left = [*turns]
    for text in shown:
        if not (left[0].is_repeated and references([text])):
            left.pop(0)
        if not left:
            return None
    known = references(shown)
    filled = {
        name: known[-1] if value == REFERENCE and known else value
        for name, value in left[0].arguments.items()
    }
    return Turn(left[0].tool, filled)
