"""What is known of a campaign when it is over. The verdict stands on nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from ..torture.evidence import Line, Request

__all__ = ["EVIDENCE", "Disturbance", "Evidence"]

EVIDENCE: Final = "evidence.json"
"""The file that a campaign leaves in its folder."""


@dataclass(slots=True, kw_only=True)
class Disturbance:
    """Something that was done to replicas, in seconds of ``time.monotonic()``."""

    what: str
    lives: list[int]
    """Of these; of all if there are none."""

    at: float
    until: float = math.inf

    def concerns(self, *lives: int | None) -> bool:
        """Whether it was done to one of these."""
        return not self.lives or any(life in self.lives for life in lives)

    @property
    def stops_process(self) -> bool:
        """Whether the process does nothing meanwhile, and goes on after it in the middle of a line."""
        return self.what.startswith("suspended")


@dataclass(slots=True, kw_only=True)
class Evidence:
    """One campaign."""

    lease_s: float
    began: float
    tasks: int
    """How many calls were made."""

    calm_since: float | None
    """When the replicas were begun that nobody disturbs; ``None`` if there are none."""

    lines: list[tuple[int, Line]]
    """What replicas wrote down, each with its life, in the order of time."""

    requests: list[Request]
    """What reached the server, in the order of time."""

    disturbances: list[Disturbance]
    ended_at: dict[int, float] = field(default_factory=dict)
    """When a replica was killed, or had stopped."""

    killed_at: dict[int, float] = field(default_factory=dict)
    late_to_stop: list[int] = field(default_factory=list)
    """Replicas that had not stopped after three times ``outage_s``."""

    twins: list[int] = field(default_factory=list)
    """Replicas on equal hosts."""

    unfinished: int = 0
    """How many records were not delivered in the end."""

    on_one_machine: bool = False
    """Whether replicas share a file, and see one another. Nothing keeps them from their journal then."""

    def save(self, path: Path) -> None:
        """Write it down, to be judged again."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote."""
        raw = json.loads(path.read_text(encoding="utf-8"))
        read = {
            "lines": [(life, Line(**line)) for life, line in raw["lines"]],
            "requests": [Request(**one) for one in raw["requests"]],
            "disturbances": [Disturbance(**one) for one in raw["disturbances"]],
            **{name: {int(life): at for life, at in raw[name].items()} for name in ("ended_at", "killed_at")},
        }
        return cls(**raw | read)
