"""What a model does in a host, turn by turn: it calls a tool, looks at what it is shown, and calls again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

__all__ = ["MOST", "REFERENCE", "Turn", "follow", "next_turn", "references"]

REFERENCE: Final = "$reference"
"""Stands in arguments for the reference that the model was shown last."""

MOST: Final = 20

_REFERENCE: Final = re.compile(r"\b[0-9a-f]{32}\b")


@dataclass(frozen=True, slots=True)
class Turn:
    """A call of one tool.

    Attributes:
        tool: The server's name of it, or the bridge's.
        arguments: JSON values.
        until: The call is made again until what comes back has this text, :data:`MOST` times at most.
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    until: str = ""

    def document(self) -> dict[str, Any]:
        """As JSON, for a host in another language."""
        return {**asdict(self), "most": MOST if self.until else 1}


def follow(until: str, wait_s: float = 60.0) -> Turn:
    """Ask for the result of the call whose reference was shown last, until it is there."""
    return Turn("task_result", {"reference": REFERENCE, "wait_s": wait_s}, until)


def references(shown: Sequence[str]) -> list[str]:
    """The references in texts that a model was shown, in their order."""
    return [found for text in shown for found in _REFERENCE.findall(text)]


def next_turn(turns: Sequence[Turn], shown: Sequence[str]) -> Turn | None:
    """The turn after these results, with its reference filled in; ``None`` if all are played."""
    left, times = [*turns], 0
    for text in shown:
        times += 1
        if left[0].until in text or times == MOST:
            left.pop(0)
            times = 0
        if not left:
            return None
    known = references(shown)
    filled = {
        name: known[-1] if value == REFERENCE and known else value
        for name, value in left[0].arguments.items()
    }
    return Turn(left[0].tool, filled)
