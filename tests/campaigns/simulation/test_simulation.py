"""Whole lives under virtual time and seeded faults, and mutants: proof that the histories would tell.

``--long`` plays 10,000 histories, and looks for each mutant in up to 5,000. The short form plays some, and
for each mutant the history that is known to show it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Final

import anyio
import psycopg
import pytest

from .__main__ import play_many
from .history import play
from .in_postgres import play_in_postgres
from .mutants import MUTANTS

PARTS: Final = 10
SHORT: Final = 300
LONG: Final = 10_000
ENOUGH: Final = 5_000
"""Histories in which each mutant has to be noticed."""

TELLING: Final[dict[str, int]] = {
    "a_callback_is_not_withdrawn_when_another_has_answered": 57,
    "a_cancel_before_there_is_a_task_is_forgotten": 450,
    "a_cancel_from_outside_is_forgotten": 418,
    "a_cancel_that_was_lost_is_not_said_again": 450,
    "a_cancel_under_retry_after_is_dropped": 17,
    "a_cancel_while_the_call_is_in_flight_is_not_journaled": 450,
    "a_cancelled_task_asks_what_it_is_told": 17,
    "a_cancelled_task_is_answered": 1629,
    "a_credential_that_expired_is_not_renewed": 199,
    "a_host_whose_lease_has_run_out_goes_on": 458,
    "a_heeded_answer_forgets_whose_it_was": 2595,
    "a_late_owner_may_write": 41,
    "a_lost_call_is_sent_again_without_leave": 53,
    "a_lost_reply_to_an_answer_is_forgotten": 100,
    "a_poll_that_fails_ends_the_task": 65,
    "a_question_stands_though_the_lease_has_run_out": 458,
    "a_question_that_is_asked_anew_has_its_old_name": 11,
    "a_refused_resend_forgets_the_first_call": 39,
    "a_reply_that_could_not_be_committed_is_dropped": 233,
    "a_restart_forgets_when_the_next_poll_is_due": 2,
    "a_tick_polls_though_told_to_wait": 450,
    "acting_comes_before_the_commit": 119,
    "an_answer_is_marked_as_heeded_before_it_is_part_of_the_state": 225,
    "an_answer_that_a_cancel_has_beaten_is_told_to_count": 17604,
    "an_answer_that_may_have_been_taken_is_opened_again": 100,
    "an_answer_that_was_acknowledged_and_lost_is_not_sent_again": 139,
    "an_answer_that_was_not_acknowledged_is_asked_for_again": 4,
    "an_end_that_is_told_without_its_result_is_believed": 307,
    "an_id_that_comes_back_as_text_is_another": 13,
    "an_outcome_that_nobody_has_is_not_found_again": 3,
    "answers_are_not_journaled": 1,
    "each_notification_asks_anew": 161,
    "every_other_owner_is_taken_for_gone": 5,
    "forms_come_all_at_once": 12,
    "nobody_who_drives_is_told_of_answers": 47,
    "one_more_than_the_limit_is_taken": 2,
    "one_refusal_by_a_replica_ends_the_wait": 38,
    "questions_stay_up_after_a_cancel": 577,
    "retry_after_is_ignored": 65,
    "the_callback_answers_though_another_was_first": 158,
    "the_last_answer_counts": 67,
    "the_lease_is_never_renewed": 11,
    "the_outcome_is_delivered_before_it_is_journaled": 2,
    "tools_call_is_repeated": 12,
    "what_another_application_has_made_is_taken_up": 69,
    "what_comes_free_later_is_not_adopted": 277,
    "what_is_to_be_left_alone_is_taken": 135,
    "what_is_told_of_another_task_is_believed": 2,
    "what_is_told_of_is_not_polled": 76,
    "what_is_unfinished_takes_no_room": 2,
    "what_nobody_answers_is_declined": 12,
    "what_nobody_has_had_is_forgotten": 13,
    "what_others_hold_is_taken_up": 5,
    "what_was_adopted_is_adopted_again": 2,
    "what_was_had_just_now_is_forgotten": 9,
    "what_was_released_is_not_taken_up": 2,
    "who_goes_away_from_a_dropped_in_call_cancels_nothing": 171,
    "whoever_answers_sends_it_too": 67,
    "whoever_is_late_is_told_that_it_counts": 67,
    "whoever_takes_a_call_up_does_not_read_what_was_left": 73,
}
"""Seeds of histories that show a mutant; the first one shows all others. They change with the library, and
``--long`` finds new ones."""


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--long"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What goes wrong in a history is told by the history."""
    logger = logging.getLogger("mcp_tasks_client")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_law_holds_in_every_history(part: int, long: bool) -> None:
    count = (LONG if long else SHORT) // PARTS
    broken = anyio.run(play_many, part * count, count)
    assert not broken, f"python -m tests.campaigns.simulation --seed {broken[0][0]}"


def test_every_law_holds_on_trio(long: bool) -> None:
    assert not anyio.run(play_many, 0, 100 if long else 20, backend="trio")


def test_every_law_holds_over_postgresql(postgres: str, long: bool) -> None:
    schema = f"simulation_{uuid.uuid4().hex}"
    try:
        assert not anyio.run(play_in_postgres, postgres, schema, range(1000 if long else 8))
    finally:
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


def test_a_history_is_the_same_each_time_it_is_played() -> None:
    """On asyncio: trio shuffles its tasks, so that nobody relies on their order."""

    async def told(seed: int) -> list[tuple[float, str]]:
        return (await play(seed)).log

    for seed in range(1, 8):
        assert anyio.run(told, seed) == anyio.run(told, seed)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_guarantee_is_noticed(mutant: str, long: bool) -> None:
    async def find() -> int | None:
        for seed in (TELLING.get(mutant, 0), *range(ENOUGH if long else 0)):
            with anyio.move_on_after(20) as too_long:
                history = await play(seed, parts=MUTANTS[mutant])
            if too_long.cancelled_caught or history.broken:
                return int(seed)
        return None

    seed: int | None = anyio.run(find)
    assert seed is not None, "no history shows it; --long looks in more"
