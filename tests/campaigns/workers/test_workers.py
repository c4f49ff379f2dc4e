"""Workers that are killed while others answer. The long form kills 200, and then one every few seconds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final, Literal, TypeAlias

import pytest

from .host import Through
from .run import run

Round: TypeAlias = tuple[int, int, tuple[float, float], int, Through | Literal["each"]]
"""Kills, tasks, for how long a worker lives, how many answer, and which ways in there are."""

SHORT: Final[tuple[Round, ...]] = ((1, 4, (0.1, 0.4), 1, "each"),)
LONG: Final[tuple[Round, ...]] = (
    (200, 300, (0.0, 0.6), 2, "client"),
    (100, 200, (0.0, 0.6), 2, "each"),
    (30, 300, (2.0, 4.0), 1, "client"),
)


def test_each_task_is_finished_once_with_the_one_answer_that_counts(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for kills, tasks, pause_s, who_answer, through in LONG if request.config.getoption("--long") else SHORT:
        seed, folder = random.SystemRandom().getrandbits(32), tmp_path / str(kills)
        folder.mkdir()
        campaign = run(
            folder,
            seed,
            kills=kills,
            tasks=tasks,
            pause_s=pause_s,
            who_answer=who_answer,
            through=through,
        )
        assert campaign.broken == [], f"seed {seed}, through {through}"
        assert campaign.figures["tasks delivered"] == campaign.figures["questions answered"] == tasks
        assert campaign.figures["workers killed"] == kills
