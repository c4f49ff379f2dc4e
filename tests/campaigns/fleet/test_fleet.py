"""A fleet that is disturbed, in the long form only: ``tests/fleet`` shows piece by piece what it takes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .run import run


def test_each_task_is_finished_once_whatever_happens_to_replicas_and_database(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("takes minutes; --long runs it")
    seed = random.SystemRandom().getrandbits(32)
    campaign = run(tmp_path, seed, tasks=500, disturbances=24, calm=400, lease_s=8.0)
    assert campaign.broken == [], f"seed {seed}"
    assert campaign.figures["tasks finished"] == 900
