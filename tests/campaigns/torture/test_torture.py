"""Processes killed at named stops and at random instants; and the check itself, on made-up evidence."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests._requirements import requirement

from .evidence import Evidence, Life, Line, Request, What
from .figures import NEVER, Verdict
from .run import Through, torture
from .stops import STOPS
from .verdict import judge

SHORT: Final[dict[Through, int]] = {"each": 3}
LONG: Final[dict[Through, int]] = {"client": 500, "http": 200, "transport": 200, "extension": 200}

Change = Callable[[Evidence], Evidence]


@requirement("persist:task-ids")
def test_no_promise_is_broken_to_hosts_that_are_killed_at_stops_and_at_random_instants(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    is_long = request.config.getoption("--long")
    for through, kills in (LONG if is_long else SHORT).items():
        seed, verdict, reached = random.SystemRandom().getrandbits(32), Verdict(), set[str]()
        folder = tmp_path / through
        folder.mkdir()
        for evidence in torture(kills, seed, folder, through):
            verdict += judge(evidence)
            reached |= {one.text for life in evidence.lives for one in life.lines if one.what == "reached"}
        figures = verdict.figures
        assert verdict.breaches == [], f"seed {seed}, through {through}"
        assert {name: getattr(figures, name) for name in NEVER} == dict.fromkeys(NEVER, 0)
        assert reached == {*STOPS}
        assert figures.killed == len(STOPS) + kills
        assert figures.given_up or not is_long
        assert min(figures.started, figures.delivered, figures.questions, figures.polls) > kills, (
            "there was something to lose"
        )
        # At few random instants there may be nobody between a question and its answer.
        assert not is_long or (figures.replayed and figures.reopened and figures.uncommitted)


# ── the check, on a round in which two processes are killed and nothing is broken ──


def line(at: float, what: What, **fields: Any) -> Line:
    return Line(at=at, what=what, **fields)


def asked(method: str, at: float, life: int, **fields: Any) -> Request:
    reply: dict[str, Any] = {"answered_at": at + 0.01, "kind": "complete"}
    return Request(method=method, at=at, life=life, **reply | fields)


def form(**content: str) -> dict[str, Any]:
    return {"action": "accept", "content": content}


NAME: dict[str, Any] = {"intent": "k", "question": "k: name?", "key": "name", "task_id": "T"}
AGE: dict[str, Any] = NAME | {"question": "k: age?", "key": "age"}
FIRST, SECOND, LAST = 1, 2, 3

GOOD = Evidence(
    scenario="made up",
    lives=[
        Life(
            number=FIRST,
            killed_at=10.0,
            lines=[
                line(1.0, "resuming"),
                line(1.1, "resumed"),
                line(1.2, "begun", intent="k", keyed=True),
                line(1.3, "begun", intent="seen"),
                line(1.4, "task", intent="seen", task_id="S"),
                line(9.9, "asked", **NAME),
                line(9.99, "begun", intent="unseen"),
                line(9.999, "answered", **NAME),  # and not committed
            ],
        ),
        Life(
            number=SECOND,
            killed_at=20.0,
            lines=[
                line(11.0, "resuming"),
                line(11.1, "resumed"),
                line(11.2, "asked", **NAME),
                line(11.5, "answered", **NAME),
                line(19.999, "delivered", intent="k", made="m", by="resume"),  # and not noted
            ],
        ),
        Life(
            number=LAST,
            lines=[
                line(21.0, "resuming"),
                line(21.1, "resumed"),
                line(21.2, "begun", intent="k", keyed=True),
                line(21.3, "delivered", intent="k", made="m", by="key"),
                line(21.4, "delivered", intent="k", made="m", by="resume"),
                line(21.5, "delivered", intent="seen", made="s", by="resume"),
                line(21.6, "done"),
            ],
        ),
    ],
    requests=[
        asked("tools/call", 1.21, FIRST, intent="k", task_id="T", kind="task", poll_interval_ms=100),
        asked("tools/call", 1.31, FIRST, intent="seen", task_id="S", kind="task", poll_interval_ms=100),
        asked("tools/call", 9.995, FIRST, intent="unseen", task_id="U", kind="task", poll_interval_ms=100),
        asked("tasks/get", 9.8, FIRST, task_id="T", poll_interval_ms=100),
        asked("tasks/update", 11.6, SECOND, task_id="T", answers={"name": form(name="Ada")}),
        asked("tasks/update", 11.7, SECOND, task_id="T", answers={"name": form(name="Ada")}),
        asked("tasks/get", 11.8, SECOND, task_id="T", poll_interval_ms=100, made="m"),
        asked("tasks/get", 21.2, LAST, task_id="S", poll_interval_ms=100, made="s"),
    ],
)


def said(life: int, *lines: Line) -> Change:
    """Let a process have written more."""

    def change(evidence: Evidence) -> Evidence:
        lives = [
            replace(one, lines=sorted([*one.lines, *lines], key=lambda line: line.at))
            if one.number == life
            else one
            for one in evidence.lives
        ]
        return replace(evidence, lives=lives)

    return change


def unsaid(what: What, intent: str | None = None) -> Change:
    """Let nobody have written such a line."""

    def change(evidence: Evidence) -> Evidence:
        lives = [
            replace(one, lines=[said for said in one.lines if (said.what, said.intent) != (what, intent)])
            for one in evidence.lives
        ]
        return replace(evidence, lives=lives)

    return change


def sent(*requests: Request) -> Change:
    """Let more have reached the server."""
    return lambda evidence: replace(evidence, requests=[*evidence.requests, *requests])


def unpolled(task_id: str) -> Change:
    """Let nobody have polled a task."""
    return lambda evidence: replace(
        evidence, requests=[r for r in evidence.requests if (r.method, r.task_id) != ("tasks/get", task_id)]
    )


OUTSIDE = 901


def outside(*lines: Line, trouble: str = "") -> Change:
    """Let a process have answered from outside."""
    return lambda evidence: replace(
        evidence, others=[*evidence.others, Life(number=OUTSIDE, lines=[*lines], trouble=trouble)]
    )


def answers(at: float, question: str, words: str, end: What) -> Change:
    """Let somebody outside have answered, and been told so."""
    about = {"intent": "k", "question": question, "question_id": question, "text": words}
    return outside(line(at, "giving", **about), line(at + 0.01, end, **about))


def survived(number: int) -> Change:
    """Let a process not have been killed."""

    def change(evidence: Evidence) -> Evidence:
        lives = [replace(one, killed_at=None) if one.number == number else one for one in evidence.lives]
        return replace(evidence, lives=lives)

    return change


def ended(number: int, trouble: str) -> Change:
    def change(evidence: Evidence) -> Evidence:
        lives = [replace(one, trouble=trouble) if one.number == number else one for one in evidence.lives]
        return replace(evidence, lives=lives)

    return change


def both(*changes: Change) -> Change:
    def change(evidence: Evidence) -> Evidence:
        for one in changes:
            evidence = one(evidence)
        return evidence

    return change


def call(at: float, intent: str, **fields: Any) -> Request:
    return asked("tools/call", at, LAST, intent=intent, **fields)


FORM: dict[str, Any] = {"intent": "f", "question": "f: item?", "key": "item"}
"""A question before there is a task."""

ASKED_FIRST = both(
    said(FIRST, line(2.0, "begun", intent="f", keyed=True), line(9.0, "asked", **FORM)),
    said(FIRST, line(9.1, "answered", **FORM)),
    sent(asked("tools/call", 2.01, FIRST, intent="f")),
    said(SECOND, line(12.0, "asked", **FORM), line(12.1, "answered", **FORM)),
    said(LAST, line(21.25, "unknown", intent="f", keyed=True)),
)

SENT_FIRST = sent(
    asked("tools/call", 9.2, FIRST, intent="f", request_state="r", answers={"item": form(item="tea")})
)

AGE_SENT = sent(asked("tasks/update", 19.0, SECOND, task_id="T", answers={"age": form(age="9")}))

BREACHES: dict[str, tuple[str, Change]] = {
    "a keyed call without an end": ("lost", unsaid("delivered", "k")),
    "a task that the host knew": ("lost", unsaid("delivered", "seen")),
    "a task that was polled": ("lost", both(unsaid("delivered", "seen"), unsaid("task", "seen"))),
    "a task whose host was stopped": (
        "lost",
        both(
            unsaid("delivered", "seen"),
            unsaid("task", "seen"),
            unpolled("S"),
            said(FIRST, line(1.5, "reached", intent="seen")),
        ),
    ),
    "a task whose host lived on": (
        "lost",
        both(
            said(LAST, line(21.3, "begun", intent="u")),
            sent(call(21.31, "u", kind="task", task_id="V")),
        ),
    ),
    "a record that is left": ("left", said(LAST, line(21.55, "left", text="a record"))),
    "a call that came twice": ("ran_twice", sent(call(21.2, "k"))),
    "an unkeyed call that came twice": ("ran_twice", sent(call(21.2, "seen"))),
    "a call that came more often than it was sent again": (
        "ran_twice",
        both(
            said(LAST, line(21.21, "resend", intent="k", keyed=True)),
            sent(call(21.22, "k"), call(21.23, "k")),
        ),
    ),
    "a round that came twice": (
        "ran_twice",
        sent(call(2.0, "k", request_state="r"), call(3.0, "k", request_state="r")),
    ),
    "a question whose answer the journal had": (
        "asked_twice",
        said(LAST, line(21.2, "asked", committed=True, **NAME), line(21.25, "answered", **NAME)),
    ),
    "a question whose answer was sent": (
        "asked_twice",
        said(LAST, line(21.2, "asked", **NAME), line(21.25, "answered", **NAME)),
    ),
    "a question whose answer was sent in a round": (
        "asked_twice",
        both(ASKED_FIRST, SENT_FIRST),
    ),
    "a question of a call that was sent again, whose answer was sent": (
        "asked_twice",
        both(
            ASKED_FIRST,
            said(FIRST, line(8.0, "resend", intent="f", keyed=True)),
            sent(asked("tools/call", 8.1, FIRST, intent="f")),
            SENT_FIRST,
        ),
    ),
    "a question that was answered before a stop": (
        "asked_twice",
        both(
            said(
                FIRST,
                line(8.0, "asked", **AGE),
                line(8.1, "answered", **AGE),
                line(9.0, "reached", intent="k"),
            ),
            said(SECOND, line(12.0, "asked", **AGE)),
        ),
    ),
    "a question that was answered by one who lives": (
        "asked_twice",
        said(SECOND, line(11.55, "asked", **NAME), line(11.56, "answered", **NAME)),
    ),
    "a question before two at once": (
        "asked_at_once",
        both(
            said(FIRST, line(9.0, "asked", **AGE)),
            said(SECOND, line(9.5, "asked", **AGE)),
        ),
    ),
    "two answers to one question": (
        "answers_differ",
        sent(asked("tasks/update", 11.9, SECOND, task_id="T", answers={"name": form(name="Grace")})),
    ),
    "a question that was answered from outside before the process began": (
        "asked_twice",
        both(
            answers(10.5, "k: age?", "9", "given"),
            said(SECOND, line(12.0, "asked", **AGE), line(12.1, "withdrawn", **AGE)),
            AGE_SENT,
        ),
    ),
    "a question that was answered from outside long ago": (
        "asked_twice",
        both(
            answers(13.0, "k: age?", "9", "given"),
            said(SECOND, line(16.0, "asked", **AGE), line(16.1, "withdrawn", **AGE)),
            AGE_SENT,
        ),
    ),
    "a question that its client has left to others": (
        "asked_twice",
        both(
            said(SECOND, line(12.0, "asked", client=1, **AGE), line(12.1, "put off", client=1, **AGE)),
            said(SECOND, line(13.0, "asked", client=1, **AGE), line(13.1, "put off", client=1, **AGE)),
        ),
    ),
    "a question that is shown though an answer counts": (
        "asked_twice",
        both(answers(12.0, "k: age?", "9", "given"), answers(12.0, "k: age?", "9", "shown again"), AGE_SENT),
    ),
    "an answer from outside that counts, and another was sent": (
        "untrue",
        answers(11.4, "k: name?", "Grace", "given"),
    ),
    "an answer from outside that counts, and none was sent": (
        "untrue",
        answers(12.0, "k: age?", "9", "given"),
    ),
    "two answers from outside that count": (
        "untrue",
        both(answers(11.4, "k: name?", "Ada", "given"), answers(11.4, "k: name?", "Grace", "given")),
    ),
    "an answer from outside that came second, and none was first": (
        "unanswerable",
        answers(12.0, "k: age?", "9", "came second"),
    ),
    "an answer from outside that fails": ("unanswerable", answers(12.0, "k: age?", "9", "error")),
    "a process that answers and ends": ("errors", outside(trouble="ended with code 1")),
    "a result that was delivered again without a crash": (
        "delivered_twice",
        both(
            unsaid("delivered", "k"),
            said(SECOND, line(12.0, "delivered", intent="k", made="m", by="resume")),
            said(LAST, line(21.4, "delivered", intent="k", made="m", by="resume")),
            survived(SECOND),
        ),
    ),
    "a replay that differs": (
        "replays_differ",
        both(
            said(LAST, line(21.35, "delivered", intent="k", made="n", by="key")),
            sent(asked("tasks/get", 21.3, LAST, task_id="T", made="n")),
        ),
    ),
    "a result that the server never gave": (
        "foreign",
        both(unsaid("delivered", "seen"), said(LAST, line(21.5, "delivered", intent="seen", made="x"))),
    ),
    "a poll before its time": ("early", sent(asked("tasks/get", 11.85, SECOND, task_id="T"))),
    "a poll too soon after one that got no reply": (
        "early",
        sent(
            asked("tasks/get", 12.0, SECOND, task_id="T", answered_at=None),
            asked("tasks/get", 12.05, SECOND, task_id="T"),
        ),
    ),
    "a reply that is said to be lost, and was not": ("errors", said(FIRST, line(9.0, "lost", intent="seen"))),
    "a result that is not known any more": (
        "unfounded",
        said(LAST, line(21.55, "unknown", intent="k", keyed=True)),
    ),
    "an outcome that is unknown for no reason": (
        "unfounded",
        both(
            said(LAST, line(21.21, "begun", intent="w", keyed=True)),
            said(LAST, line(21.25, "unknown", intent="w", keyed=True)),
        ),
    ),
    "another error": ("errors", said(LAST, line(21.55, "error", text="KeyError"))),
    "a complaint": ("errors", lambda evidence: replace(evidence, complaints=["a header was missing"])),
    "a host that ended by itself": ("errors", ended(FIRST, "ended with code 1")),
    "a last process that did not end": ("errors", unsaid("done")),
}


@pytest.mark.parametrize(("figure", "change"), BREACHES.values(), ids=list(BREACHES))
def test_the_check_notices(figure: str, change: Change) -> None:
    verdict = judge(change(GOOD))
    counted = {name: getattr(verdict.figures, name) for name in NEVER}
    assert counted == {name: int(name == figure) for name in NEVER}
    (sentence,) = verdict.breaches
    assert sentence.startswith(f"made up: {figure}: ")
