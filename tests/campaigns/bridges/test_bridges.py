"""Bridges and hosts that are killed. The long form kills 200."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from ..torture.evidence import Line, Request
from .host import BY_A_MODEL
from .run import run
from .verdict import BY_NOBODY, DIFFER, ERRORS, FOREIGN, LOST, TWICE, UNFINISHED, WINDOWS, Evidence, judge

SHORT: Final = ((2, "fastmcp"),)
LONG: Final = ((150, "fastmcp"), (50, "scripted"))


def test_what_was_promised_is_kept_and_nothing_runs_twice(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for kills, endpoint in LONG if request.config.getoption("--long") else SHORT:
        seed, folder = random.SystemRandom().getrandbits(32), tmp_path / endpoint
        folder.mkdir()
        campaign = run(folder, seed, kills=kills, endpoint=endpoint)
        assert campaign.broken == [], f"seed {seed}"
        assert campaign.figures["hosts killed"] + campaign.figures["bridges killed"] == kills
        assert campaign.figures["results delivered"]


# ── the verdict ──


def _call(at: float, bridge: int = 1001, task: str = "t", **more: Any) -> Request:
    return Request(
        **{
            "method": "tools/call",
            "at": at,
            "life": bridge,
            "intent": "1-1",
            "task_id": task,
            "answered_at": at,
            "kind": "task",
            **more,
        }
    )


def _poll(at: float, bridge: int = 1001, made: str | None = None, task: str = "t") -> Request:
    return Request(method="tasks/get", at=at, life=bridge, task_id=task, answered_at=at, made=made)


def _said(at: float, what: Any, **more: Any) -> tuple[int, Line]:
    return 1, Line(at=at, what=what, intent="1-1", **more)


RUN: Final = (_call(1.0), _poll(2.0), _poll(3.0, made="m"))
HEARD: Final = (_said(0.9, "begun"), _said(1.5, "promised", text="r", committed=True))
DELIVERED: Final = (*HEARD, _said(3.1, "delivered", made="m"))


def _judged(requests: Sequence[Request], lines: Sequence[tuple[int, Line]], **more: Any) -> dict[str, float]:
    kinds = {1: (0, "alpha"), 2: (1, "beta")}
    given: dict[str, Any] = {"hosts_killed_at": {}, "bridges_killed_at": {}, **more}
    evidence = Evidence(lines=[*lines], requests=[*requests], kind_of=kinds, **given)
    return {name: number for name, number in judge(evidence).figures.items() if number}


def test_a_good_run_breaks_nothing() -> None:
    found = _judged(RUN, DELIVERED)
    assert not found.keys() & {LOST, TWICE, BY_NOBODY, DIFFER, FOREIGN, UNFINISHED, ERRORS, *WINDOWS}


AGAIN: Final = (_call(4.0, task="u"), _poll(5.0, made="n", task="u"))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (LOST, lambda: _judged(RUN, HEARD)),
        (LOST, lambda: _judged(RUN, [*HEARD, _said(2.5, "gone"), _said(3.1, "delivered", made="m")])),
        (UNFINISHED, lambda: _judged(RUN, HEARD[:1])),
        (TWICE, lambda: _judged([*RUN, *AGAIN], [*DELIVERED, _said(5.1, "delivered", made="n")])),
        # The bridge was killed, but the task was committed.
        (
            TWICE,
            lambda: _judged(
                [*RUN[:2], _call(4.0, 1002, "u"), _poll(5.0, 1002, "n", "u")],
                [*HEARD, _said(5.1, "delivered", made="n")],
                bridges_killed_at={1001: 3.0},
            ),
        ),
        (BY_NOBODY, lambda: _judged([*RUN, _poll_with(BY_A_MODEL)], DELIVERED)),
        (
            DIFFER,
            lambda: _judged(
                [*RUN, _poll_with("Ada"), _poll_with("Bob")],
                [*DELIVERED, _said(2.0, "answered", text="Ada"), _said(2.0, "answered", text="Bob")],
            ),
        ),
        (FOREIGN, lambda: _judged(RUN, [*HEARD, _said(3.1, "delivered", made="another")])),
        (FOREIGN, lambda: _judged(RUN, [*DELIVERED, (2, Line(at=4.0, what="listed", text="r"))])),
        (ERRORS, lambda: _judged(RUN, [*DELIVERED, _said(4.0, "error", text="?")])),
    ],
)
def test_the_verdict_tells_what_may_not_happen(name: str, found: Callable[[], dict[str, float]]) -> None:
    assert name in found()


def _poll_with(words: str) -> Request:
    answers = {"k": {"action": "accept", "content": {"name": words}}}
    return Request(method="tasks/update", at=2.5, life=1001, task_id="t", answers=answers)


def test_a_kill_before_the_reply_is_a_window() -> None:
    lines = [_said(0.9, "begun"), _said(5.1, "delivered", made="n")]
    found = _judged(
        [_call(1.0), _call(4.0, 1002, "u"), _poll(5.0, 1002, "n", "u")],
        lines,
        bridges_killed_at={1001: 2.0},
    )
    assert found[f"run again: {WINDOWS[0]}"] == 1
    assert TWICE not in found
