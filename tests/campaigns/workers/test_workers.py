"""Workers that are killed while others answer. The long form kills 200, and then one every few seconds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests._requirements import requirement

from .run import run

SHORT = ((1, 4, (0.1, 0.4), 1),)
LONG = ((200, 300, (0.0, 0.6), 2), (30, 300, (2.0, 4.0), 1))


@requirement("law:1", "law:2", "law:3", "law:5")
def test_each_task_is_finished_once_with_the_one_answer_that_counts(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for kills, tasks, pause_s, who_answer in LONG if request.config.getoption("--long") else SHORT:
        seed, folder = random.SystemRandom().getrandbits(32), tmp_path / str(kills)
        folder.mkdir()
        campaign = run(folder, seed, kills=kills, tasks=tasks, pause_s=pause_s, who_answer=who_answer)
        assert campaign.broken == [], f"seed {seed}"
        assert campaign.figures["tasks delivered"] == campaign.figures["questions answered"] == tasks
        assert campaign.figures["workers killed"] == kills
