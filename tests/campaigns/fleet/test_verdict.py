"""The verdict notices what may not happen, and allows what the guides say may happen."""

from __future__ import annotations

import math
from typing import Any, Final

import pytest

from ..torture.evidence import Line, Request, What
from .evidence import Disturbance, Evidence
from .verdict import ALONE, STRAYS, WINDOW_S, judge

LEASE_S: Final = 8.0
QUESTION: Final = "call-0: name?"
EARLY: Final = "early polls"
TWICE: Final = "questions put to two persons at a time"
AFTER: Final = "questions put to somebody after the answer was committed"
HANDED: Final = "acknowledged outcomes that were handed out again"


def request(at: float, life: int | None, method: str, **fields: Any) -> Request:
    given: dict[str, Any] = {"sent_at": at - 0.001, "answered_at": at + 0.001, "kind": "task", "task_id": "t"}
    return Request(**{"at": at, "life": life, "method": method, **given, **fields})


def poll(at: float, life: int, **fields: Any) -> Request:
    return request(at, life, "tasks/get", poll_interval_ms=500, **fields)


def answer(at: float, life: int, text: str = "Ada") -> Request:
    return request(at, life, "tasks/update", answers={"name": {"content": {"name": text}}})


def line(life: int, at: float, what: What) -> tuple[int, Line]:
    return life, Line(at=at, what=what, intent="call-0", question=QUESTION, task_id="t")


def done(what: str, at: float, until: float, *lives: int) -> Disturbance:
    return Disturbance(what=what, lives=list(lives), at=at, until=until)


CALL: Final = request(0.0, None, "tools/call", intent="call-0")
LIFE: Final = [
    *(line(1, 1.0, "resumed"), line(1, 3.0, "asked"), line(1, 4.0, "answered")),
    *(line(1, 6.0, "delivered"), line(1, 6.1, "acknowledged")),
]


def figures(
    *requests: Request,
    lines: list[tuple[int, Line]] = LIFE,
    disturbances: list[Disturbance] = [],  # noqa: B006  # nobody changes it
    **others: Any,
) -> dict[str, float]:
    """The figures that are not what they should be, and those of the window."""
    campaign = judge(
        Evidence(
            lease_s=LEASE_S,
            began=0.0,
            tasks=1,
            calm_since=None,
            lines=sorted(lines, key=lambda pair: pair[1].at),
            requests=sorted([CALL, *requests], key=lambda one: one.at),
            disturbances=disturbances,
            **others,
        )
    )
    found = {name: campaign.figures[name] for name in campaign.never if campaign.figures[name]}
    assert sum(found.values()) == len(campaign.broken)
    return found | {name: n for name, n in campaign.figures.items() if name.endswith("in the window")}


@pytest.mark.parametrize("calls", [0, 2])
def test_a_tool_is_called_once(calls: int) -> None:
    extra = [CALL] if calls == 2 else []
    tasks = 1 if calls == 2 else 2
    campaign = judge(
        Evidence(
            lease_s=LEASE_S,
            began=0.0,
            tasks=tasks,
            calm_since=None,
            lines=LIFE,
            requests=[CALL, *extra],
            disturbances=[],
        )
    )
    assert campaign.figures["tools called twice, or never"] == 1


def test_a_task_is_finished() -> None:
    assert figures(lines=[]) == {"tasks that nobody finished": 1}
    assert figures(unfinished=3) == {"tasks that nobody finished": 1}


def test_a_question_has_one_answer() -> None:
    assert figures(answer(4.0, 1), answer(5.0, 2)) == {}
    assert figures(answer(4.0, 1), answer(5.0, 2, "Eve")) == {"questions with two answers": 1}


@pytest.mark.parametrize("life", [1, 2])
def test_a_poll_keeps_its_distance_from_the_last_one_of_any_replica(life: int) -> None:
    assert figures(poll(1.0, 1), poll(1.5, life)) == {}
    assert figures(poll(1.0, 1), poll(1.4, life)) == {EARLY: 1}
    assert figures(poll(1.0, 1), poll(1.4, life), disturbances=[done("swallowed", 0.5, 9.0, 1)]) == {EARLY: 1}


def test_a_poll_on_the_wire_as_its_process_was_stopped_is_in_the_window() -> None:
    stop = [done("suspended", 1.0, 20.0, 1)]
    window = {f"{EARLY}: in the window": 1}
    assert figures(poll(14.9, 2), poll(15.0, 1, sent_at=0.99), disturbances=stop) == window
    assert figures(poll(14.9, 2), poll(15.0, 1, sent_at=0.99), killed_at={1: 1.0}) == window
    assert figures(poll(14.9, 2), poll(15.0, 1, sent_at=14.99), disturbances=stop) == {EARLY: 1}


def test_the_first_poll_after_a_process_was_woken_is_in_the_window_and_no_other() -> None:
    stop = [done("suspended", 1.0, 15.0, 1)]
    polls = [poll(14.9, 2), poll(15.1, 1)]
    assert figures(*polls, disturbances=stop) == {f"{EARLY}: in the window": 1}
    late = [poll(15.2 + WINDOW_S, 2), poll(15.3 + WINDOW_S, 1)]
    assert figures(*late, disturbances=stop) == {EARLY: 1}
    many = [one for n in range(4) for one in (poll(14.9, 2, task_id=str(n)), poll(15.1, 1, task_id=str(n)))]
    assert figures(*many, disturbances=stop) == {EARLY: 4 - STRAYS, f"{EARLY}: in the window": STRAYS}
    again = [*polls, poll(15.16, 2), poll(15.2, 1)]
    assert figures(*again, disturbances=stop) == {EARLY: 1, f"{EARLY}: in the window": 2}


def prompts(until: float, what: What = "withdrawn") -> list[tuple[int, Line]]:
    """One that stands from 2 s on before life 1, and another one from 12 to 13 s before life 2."""
    first = [line(1, 1.0, "resumed"), line(1, 2.0, "asked"), line(1, until, what)]
    second = [line(2, 11.0, "resumed"), line(2, 12.0, "asked"), line(2, 13.0, "answered")]
    return [*first, *second, line(2, 14.0, "delivered"), line(2, 14.1, "acknowledged")]


@pytest.mark.parametrize("what", ["cut off", "suspended"])
def test_a_question_stands_before_one_person_at_a_time(what: str) -> None:
    disturbances = [done(what, 3.0, 11.0, 1)]
    assert figures(lines=prompts(11.9), disturbances=disturbances) == {}
    assert figures(lines=prompts(12.1), disturbances=disturbances) == {f"{TWICE}: in the window": 1}
    assert figures(lines=prompts(12.9, "answered"), disturbances=disturbances) == {TWICE: 1}


def test_a_prompt_in_a_suspended_process_is_before_nobody_until_it_is_woken() -> None:
    assert figures(lines=prompts(16.0), disturbances=[done("suspended", 3.0, 15.9, 1)]) == {}
    assert figures(lines=prompts(12.9), disturbances=[done("suspended", 3.0, 12.2, 1)])[TWICE] == 1


def test_a_prompt_of_a_process_that_was_killed_is_before_nobody() -> None:
    lines, killed = prompts(12.9)[:2] + prompts(12.9)[3:], {1: 3.0}
    disturbances = [done("killed", 3.0, 3.1, 1)]
    assert figures(lines=lines, killed_at=killed, ended_at=killed, disturbances=disturbances) == {}
    assert TWICE in figures(lines=lines, disturbances=disturbances)


@pytest.mark.parametrize(
    ("what", "text", "wrong"),
    [
        ("given", "Ada", 0),
        ("given", "Eve", 1),
        ("came second", "Ada", 1),
        ("came second", "Eve", 0),
        ("came late", "Ada", 1),
    ],
)
def test_who_answers_from_outside_is_told_what_was_sent(what: What, text: str, wrong: int) -> None:
    told = 7, Line(at=5.0, what=what, intent="call-0", question=QUESTION, text=text)
    found = figures(answer(4.0, 1), lines=[*LIFE, told])
    assert sum(found.values()) == wrong


def test_an_answered_question_is_not_shown_again() -> None:
    assert figures(lines=[*LIFE, line(7, 5.0, "shown again")]) == {"answered questions shown again": 1}


def test_nobody_is_asked_after_the_answer_was_committed() -> None:
    disturbances = [done("suspended", 3.0, 11.0, 1)]
    lines = prompts(11.5)
    assert figures(answer(12.5, 2), lines=lines, disturbances=disturbances) == {}
    assert figures(answer(11.6, 1), lines=lines, disturbances=disturbances) == {AFTER: 1}
    for at, found in ((12.0 - 2 * WINDOW_S, AFTER), (12.0 - WINDOW_S / 2, f"{AFTER}: in the window")):
        given = 7, Line(at=at, what="given", intent="call-0", question=QUESTION, text="Ada")
        assert figures(answer(14.0, 1), lines=[*lines, given], disturbances=disturbances) == {found: 1}
    just_woken = [*disturbances, done("suspended", 11.2, 11.9, 2)]
    assert figures(answer(11.6, 1), lines=lines, disturbances=just_woken) == {f"{AFTER}: in the window": 1}


def test_a_question_or_an_outcome_comes_again_only_after_a_disturbance() -> None:
    again = [*LIFE[:-1], line(2, 16.0, "resumed"), line(2, 17.0, "delivered")]
    assert figures(lines=again) == {"outcomes delivered again, and nobody was disturbed": 1}
    assert figures(lines=again, disturbances=[done("killed", 6.05, 6.1, 1)]) == {}
    asked = prompts(2.5, "answered")
    assert figures(lines=asked) == {"questions asked again, and nobody was disturbed": 1}
    assert figures(lines=asked, disturbances=[done("cut off", 2.2, 20.0, 1)]) == {}


@pytest.mark.parametrize("first", [1, 2])
def test_each_of_two_hosts_that_follow_one_call_may_get_its_outcome(first: int) -> None:
    lines = [
        *(line(1, 1.0, "resumed"), line(2, 30.0, "resumed")),
        *(line(first, 31.0, "delivered"), line(3 - first, 31.01, "delivered")),
    ]
    assert figures(lines=lines, disturbances=[done("cut off", 2.0, 20.0, 1)]) == {}
    assert len(figures(lines=lines, disturbances=[done("cut off", 2.0, 20.0, 3)])) == 1


def test_an_outcome_that_was_acknowledged_is_not_handed_out_again() -> None:
    stop = [done("suspended in a look", 5.0, 16.0, 2)]
    delivered = line(2, 17.0, "delivered")
    assert figures(lines=[*LIFE, line(2, 16.1, "resumed"), delivered], disturbances=stop)[HANDED] == 1
    assert figures(lines=[*LIFE, line(2, 0.5, "resumed"), delivered], disturbances=stop) == {}


def test_an_outcome_that_a_look_took_before_it_was_acknowledged_is_in_the_window() -> None:
    lines = [*LIFE, line(2, 6.05, "looked"), line(2, 6.9, "resumed"), line(2, 7.0, "delivered")]
    cut = done("cut off", 1.0, 5.0, 1)
    assert figures(lines=lines, disturbances=[cut]) == {f"{HANDED}: in the window": 1}
    in_a_look = done("suspended in a look", 6.06, 6.8, 2)
    assert figures(lines=lines, disturbances=[cut, in_a_look]) == {HANDED: 1}


def test_a_task_is_not_left_alone() -> None:
    at = 2.0 + ALONE * LEASE_S
    assert figures(poll(1.0, 1), poll(at - 1.5, 2)) == {}
    assert len(figures(poll(1.0, 1), poll(at, 2))) == 1
    assert figures(poll(1.0, 1), poll(at, 2), disturbances=[done("database away", 2.0, 4.0)]) == {}


def test_a_call_of_a_killed_replica_is_adopted_within_two_leases() -> None:
    had = [line(1, 1.0, "resumed"), line(2, 3.0 + 2 * LEASE_S, "resumed"), line(2, math.inf, "delivered")]
    late = "takeovers from the dead later than within two leases"
    assert figures(lines=had, killed_at={1: 2.9}) == {late: 1}
    assert figures(lines=had, killed_at={1: 3.1}) == {}
    assert figures(lines=had, killed_at={1: 2.9}, disturbances=[done("cut off", 4.0, 9.0, 3)]) == {}
