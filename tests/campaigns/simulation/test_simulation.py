"""Whole lives under virtual time and seeded faults: 2,000 histories, and proof that they would tell.

``MCP_TASKS_SIMULATIONS=10000 pytest tests/test_simulation.py`` plays more; ``python -m tests.simulation
--seed N`` plays one and tells all of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import anyio
import pytest

from ._requirements import requirement
from .simulation.__main__ import files, histories
from .simulation.journal import empty_journal
from .simulation.mutants import MUTANTS
from .simulation.world import play

HISTORIES: Final = int(os.environ.get("MCP_TASKS_SIMULATIONS", "2000"))
PARTS: Final = 20
ENOUGH: Final = 2000
"""Histories in which each mutant has to be noticed."""

TELLING: Final = {
    "a_cancel_that_was_lost_is_not_said_again": 450,
    "a_cancel_under_retry_after_is_dropped": 17,
    "a_cancelled_task_asks_what_it_is_told": 133,
    "a_cancelled_task_is_answered": 1430,
    "a_late_owner_may_write": 69,
    "a_lost_call_is_sent_again_without_leave": 60,
    "a_refused_resend_forgets_the_first_call": 155,
    "acting_comes_before_the_commit": 59,
    "an_outcome_that_nobody_has_is_not_found_again": 133,
    "an_update_that_was_lost_is_not_sent_again": 352,
    "each_notification_asks_anew": 16,
    "each_poll_asks_anew": 12,
    "questions_stay_up_after_a_cancel": 1390,
    "what_was_let_go_of_is_still_asked": 103,
}
"""Seeds of histories that show what few do, to begin with. They change with the package."""

pytestmark = pytest.mark.usefixtures("schemas_checked_once")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What goes wrong in a history is told by the history."""
    logger = logging.getLogger("mcp_tasks_client")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with files() as where:
        yield where


@requirement("law:1", "law:2", "law:3", "law:4", "law:5", "law:6", "law:7")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_law_holds_in_every_history(part: int, folder: Path) -> None:
    count = HISTORIES // PARTS
    broken = anyio.run(histories, part * count, count, folder)
    assert not broken, f"python -m tests.simulation --seed {broken[0][0]}"


def test_every_law_holds_on_trio(folder: Path) -> None:
    assert not anyio.run(histories, 0, 100, folder, backend="trio")


def test_a_history_is_the_same_each_time_it_is_played(folder: Path) -> None:
    """On asyncio: trio shuffles its tasks, so that nobody relies on their order."""
    empty = empty_journal(folder)

    async def told(seed: int) -> list[tuple[float, str]]:
        return (await play(seed, folder, empty)).log

    for seed in range(1, 15):
        assert anyio.run(told, seed) == anyio.run(told, seed)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_guarantee_is_noticed(mutant: str, folder: Path) -> None:
    empty = empty_journal(folder)

    async def noticed() -> bool:
        for seed in (TELLING.get(mutant, 0), *range(ENOUGH)):
            with MUTANTS[mutant](), anyio.move_on_after(20) as too_long:
                world = await play(seed, folder, empty)
            if too_long.cancelled_caught or world.broken:
                return True
        return False

    assert anyio.run(noticed), f"{ENOUGH} histories show nothing of it"


def test_there_are_at_least_a_dozen_mutants() -> None:
    assert len(MUTANTS) >= 12
