"""A fleet of replicas that are disturbed on hosts of their own, and killed on one machine.

The former runs in the long form only: ``tests/fleet`` shows piece by piece what it takes.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final, Literal, TypeAlias

import pytest

from .dropped_in import Through
from .machine import run_on_one_machine
from .run import run

Round: TypeAlias = tuple[int, int, tuple[float, float], int, Through | Literal["each"]]
"""Kills, tasks, for how long a replica lives, how many answer, and which ways in there are."""

SHORT: Final[tuple[Round, ...]] = ((1, 4, (0.1, 0.4), 1, "each"),)
LONG: Final[tuple[Round, ...]] = (
    (200, 300, (0.0, 0.6), 2, "client"),
    (100, 200, (0.0, 0.6), 2, "each"),
    (30, 300, (2.0, 4.0), 1, "client"),
)


def test_each_task_is_finished_once_whatever_happens_to_replicas_and_database(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("takes minutes; --long runs it")
    seed = random.SystemRandom().getrandbits(32)
    campaign = run(tmp_path, seed, tasks=500, disturbances=24, calm=400, lease_s=8.0)
    assert campaign.broken == [], f"seed {seed}"
    assert campaign.figures["tasks finished"] == 900


def test_each_task_is_finished_once_with_the_one_answer_that_counts_on_one_machine(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for kills, tasks, pause_s, who_answer, through in LONG if request.config.getoption("--long") else SHORT:
        seed, folder = random.SystemRandom().getrandbits(32), tmp_path / str(kills)
        folder.mkdir()
        campaign = run_on_one_machine(
            folder,
            seed,
            kills=kills,
            tasks=tasks,
            pause_s=pause_s,
            who_answer=who_answer,
            through=through,
        )
        assert campaign.broken == [], f"seed {seed}, through {through}"
        figures = campaign.figures
        assert figures["tasks finished"] == figures["answers from outside that count"] == tasks
        assert figures["disturbances: killed"] == kills
