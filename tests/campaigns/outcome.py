"""What became of a campaign: its figures, what may not happen at all, and the command that tells of it."""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Campaign", "arguments", "told"]

_TOLD: Final = 8
"""So many sentences of each figure are printed. All of them are written into the folder."""


@dataclass(slots=True, kw_only=True)
class Campaign:
    """What became of it.

    Attributes:
        broken: What did not hold, in sentences.
        figures: How often what happened, by its name.
        never: The names of those that must be 0.
    """

    broken: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    never: set[str] = field(default_factory=set)
    _first: dict[str, list[str]] = field(default_factory=dict)

    def expect_none(self, *names: str) -> None:
        """Have figures that must be 0."""
        for name in names:
            self.figures[name] = 0
            self.never.add(name)

    def breach(self, name: str, sentence: str) -> None:
        """Add to a figure that must be 0, and say why."""
        self.figures[name] += 1
        self.broken.append(sentence)
        first = self._first.setdefault(name, [])
        if len(first) < _TOLD:
            first.append(sentence)

    @property
    def first(self) -> list[str]:
        """Some of the sentences, of each figure."""
        return [sentence for sentences in self._first.values() for sentence in sentences]

    def table(self) -> str:
        """The figures, in Markdown. What must be 0 is said to."""
        rows = [
            f"| {name} | {number:,g} | {'must be 0' if name in self.never else ''} |"
            for name, number in self.figures.items()
        ]
        return "\n".join(["| figure | number | |", "|---|--:|---|", *rows])


def arguments(description: str | None, **numbers: int) -> argparse.ArgumentParser:
    """A parser with a number for each name, and the seed."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    return parser


def told(name: str, seed: int, play: Callable[[Path], Campaign]) -> int:
    """Play a campaign in a folder of its own, and print what became of it.

    Returns:
        The exit code: 1 if something broke. The folder with the logs is kept then.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    print(f"seed {seed}", flush=True)
    campaign = play(folder)
    print("\n".join([campaign.table(), "", f"{len(campaign.broken)} broken", *campaign.first]))
    if campaign.broken:
        (folder / "broken.txt").write_text("\n".join([campaign.table(), "", *campaign.broken, ""]))
        print(f"the evidence is in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0
