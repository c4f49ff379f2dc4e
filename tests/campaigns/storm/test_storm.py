"""The storm finds what it is for, and finds nothing. ``--long`` makes 100 voyages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.legacy_servers import LegacyProgram, LegacyServer, anywhere

from .host import RELATED
from .proxy import Lane, Look, Passed
from .run import WAYS, storm
from .verdict import Noted, Voyage, breaches
from .weather import BREAKS, DENIALS, Fate, Weather, What

SHORT: Final = 4
LONG: Final = 100
"""At 400, calls at the third server hung. The slowest of these voyages, made alone at new servers, did not.
So the server probably falls behind: it looks every 50 ms at each question that nobody heard.
``python -m tests.campaigns.storm`` makes 400, at servers that look every 150 ms."""

SEED: Final = 20_000
LEGACY_INTERVAL_MS: Final = 50
ANSWER: Final = {"action": "accept", "content": {"name": "t1-name"}}


def exchange(at: float, method: str, *, life: int = 1, what: Any = "passes", **more: Any) -> Passed:
    message = {"params": {"taskId": "t1"}}
    passed = Passed(at=at, life=life, method=method, session_id="s", message=message, fate=Fate(what))
    return replace(passed, reached=True, replied_at=at, **more)


def answered(at: float, life: int = 1) -> Passed:
    return exchange(at, "", life=life, message={"id": 0, "result": ANSWER})


def good() -> Voyage:
    """One on which all went well."""
    passed = [exchange(0.0, "tasks/get"), exchange(1.0, "tasks/get"), answered(1.5)]
    log = [Noted(0.0, 1, "created", 0, "t1"), Noted(1.1, 1, "asked", -1, "t1-name")]
    log.append(Noted(2.0, 1, "result", 0, "Hello, t1-name"))
    lane = Lane(Weather(1, 0.0), 1, passed=passed)
    return Voyage(
        seed=1,
        kind="node",
        way="url",
        calls=("asks",),
        lane=lane,
        interval_s=1.0,
        cancels=False,
        ended=True,
        log=log,
    )


def hangs(voyage: Voyage) -> None:
    voyage.ended = False


def dies(voyage: Voyage) -> None:
    voyage.died.append((1, -11))


def has_another_result(voyage: Voyage) -> None:
    voyage.log[-1] = replace(voyage.log[-1], text="Hello, t2-name")


def fails(voyage: Voyage) -> None:
    voyage.log[-1] = replace(voyage.log[-1], event="error", text="TaskNotFoundError: gone")


def asks_twice(voyage: Voyage) -> None:
    voyage.log.append(Noted(1.2, 1, "asked", -1, "t1-name"))


def asks_what_was_answered(voyage: Voyage) -> None:
    voyage.log.append(Noted(3.0, 2, "asked", -1, "t1-name"))


def of_pets(*texts: str, life: int = 1, event: str = "asked") -> list[Noted]:
    return [Noted(1.0, life, event, -1, text) for text in texts]


def gives_an_answer_to_two(voyage: Voyage) -> None:
    voyage.calls = ("alike",)
    voyage.log[1:] = of_pets("t1-pet#1.0", "t1-pet#1.1")
    voyage.log.append(Noted(2.0, 1, "result", 0, "t1-pet#1.0 and t1-pet#1.0"))


def asks_for_a_third(voyage: Voyage) -> None:
    voyage.calls = ("alike",)
    voyage.log[1:] = of_pets("t1-pet#1.0", "t1-pet#1.1", "t1-pet#1.2")
    voyage.log.append(Noted(2.0, 1, "result", 0, "t1-pet#1.1 and t1-pet#1.2"))


def has_three_answers(voyage: Voyage) -> None:
    voyage.calls = ("alike",)
    voyage.log[1:] = of_pets("t1-pet#1.0", "t1-pet#2.0", "t1-pet#2.1", event="answered")
    voyage.log.append(Noted(2.0, 1, "result", 0, "t1-pet#2.0 and t1-pet#2.1"))


def answers_what_was_cancelled(voyage: Voyage) -> None:
    voyage.lane.passed.append(exchange(1.2, "tasks/cancel", message={"params": {"taskId": "t1"}}))


def polls_early(voyage: Voyage) -> None:
    voyage.lane.passed.insert(1, exchange(0.5, "tasks/get"))


HELLO: Final = Noted(2.0, 1, "result", 0, "Hello, t1-name")
RESUMED: Final = Noted(3.0, 2, "resumed", -1, "asks t2 Hello, t2-name")


def over_the_sdk(voyage: Voyage, *log: Noted) -> None:
    """Two calls over a session of the SDK's, whose host knows nothing of tasks."""
    voyage.way, voyage.calls = "transport", ("asks", "asks")
    voyage.log = [Noted(0.0, 1, "created", -1, "t1"), Noted(0.0, 1, "created", -1, "t2"), *log]


def leaves_a_task(voyage: Voyage) -> None:
    over_the_sdk(voyage, HELLO)
    voyage.lane.passed.append(exchange(2.5, "tools/list", message={"id": 6}))


def resumes_another_result(voyage: Voyage) -> None:
    over_the_sdk(voyage, HELLO, replace(RESUMED, text="asks t2 Hello, t1-name"))


def gives_two_calls_one_result(voyage: Voyage) -> None:
    over_the_sdk(voyage, HELLO, replace(HELLO, call=1))


def ends_a_session_of_the_sdks(voyage: Voyage) -> None:
    over_the_sdk(voyage, HELLO, replace(HELLO, call=1, event="error", text="MCPError: closed"))
    voyage.calls = ("asks", "slow")


# ── what is near to an excuse, and none ──


def fails_after_one_denial(voyage: Voyage) -> None:
    fails(voyage)
    voyage.lane.passed.append(exchange(2.0, "tasks/get", what="no_session"))


@pytest.mark.parametrize(
    ("polls", "lost"),
    [
        (["no_session"], False),
        (["no_session", "passes", "not_found"], False),
        (["no_session", "unavailable", "not_found"], True),
        (["no_session", "not_found"], True),
    ],
)
def test_a_session_that_is_denied_to_two_polls_in_a_row_is_taken_for_lost(
    polls: list[What], lost: bool
) -> None:
    voyage = good()
    fails(voyage)
    voyage.log[-1] = replace(voyage.log[-1], at=9.0)
    voyage.lane.passed += [
        exchange(2.0 + number, "tasks/get", what=what) for number, what in enumerate(polls)
    ]
    assert bool(list(breaches(voyage))) is not lost


def test_a_poll_that_the_client_gave_up_is_none_of_the_two_in_a_row() -> None:
    voyage = good()
    fails(voyage)
    voyage.log[-1] = replace(voyage.log[-1], at=9.0)
    given_up = replace(exchange(3.0, "tasks/get", what="delayed"), replied_at=None)
    denied = [exchange(at, "tasks/get", what="not_found") for at in (2.0, 4.0)]
    voyage.lane.passed += [denied[0], given_up, denied[1]]
    assert not list(breaches(voyage))


def fails_where_tasks_are_known_anywhere(voyage: Voyage) -> None:
    fails(voyage)
    voyage.kind = "anywhere"
    voyage.lane.forgets_at = 1.2


def fails_after_a_cancellation_at_another_server(voyage: Voyage) -> None:
    fails(voyage)
    look = Look(0.2, {"method": "tasks/get", "id": 1, "params": {"taskId": "ours"}}, True)
    voyage.lane.passed += [
        exchange(0.1, "tasks/result", message={"id": "r"}, looks=[look]),
        exchange(0.21, "notifications/cancelled", message={"params": {"requestId": "r"}}),
    ]


def does_not_know_a_call_whose_task_it_knew(voyage: Voyage) -> None:
    voyage.kills = [0.5]
    voyage.log[-1] = replace(voyage.log[-1], event="error", text="OutcomeUnknownError: nobody has its reply")


def says_cancelled_though_nobody_cancels(voyage: Voyage) -> None:
    voyage.log[-1] = replace(voyage.log[-1], event="error", text="TaskCancelledError: no more")


def asks_twice_after_one_withdrawal(voyage: Voyage) -> None:
    voyage.log.insert(2, Noted(1.2, 1, "withdrawn", -1, "t1-name"))
    asks_twice(voyage)
    asks_twice(voyage)


def asks_what_was_journaled(voyage: Voyage) -> None:
    voyage.lane.passed.pop()  # nothing was sent
    voyage.log[2:] = [Noted(1.2, 1, "answered", -1, "t1-name"), Noted(4.0, 2, "asked", -1, "t1-name")]
    voyage.kills.append(3.0)


def ask(at: float, question: str = "What is your name?") -> Look:
    params = {"_meta": {RELATED: {"taskId": "t1"}}, "message": question}
    return Look(at, {"method": "elicitation/create", "id": 1, "params": params}, True)


def hangs_after_one_lost_reply(voyage: Voyage) -> None:
    hangs(voyage)
    voyage.lane.passed[2:] = [replace(answered(1.6), reached=False)]


def hangs_with_a_lost_answer(voyage: Voyage) -> None:
    hangs(voyage)
    voyage.calls = ("together",)
    voyage.log.pop()
    voyage.lane.passed[-1].fate = Fate("unavailable")


def hangs_with_a_question_that_was_put(voyage: Voyage) -> None:
    hangs(voyage)
    voyage.lane.passed[0].asks.append(ask(1.0))
    voyage.kills.append(1.15)


def hangs_with_a_question_that_was_journaled(voyage: Voyage) -> None:
    hangs(voyage)
    voyage.lane.passed[0].asks.append(ask(0.2))
    voyage.log.append(Noted(4.0, 2, "created", 0, "t1"))
    voyage.kills.append(4.1)


def hangs_with_two_that_are_alike_and_were_put(voyage: Voyage) -> None:
    hangs(voyage)
    voyage.calls = ("alike",)
    voyage.log[1:] = of_pets("t1-pet#1.0", "t1-pet#1.1")
    voyage.lane.passed[0].asks += [ask(at, "What is the name of your pet?") for at in (0.8, 0.9)]
    voyage.kills.append(1.05)


def on_an_errand(voyage: Voyage, *looks: Look) -> Passed:
    """There is a task of ours, of which the server has been told at 0.5 s. Returns the stream."""
    hangs(voyage)
    voyage.kind = "python"
    made = {"id": 9, "result": {"task": {"taskId": "ours"}, "_meta": {RELATED: {"taskId": "t1"}}}}
    stream = exchange(0.1, "GET", looks=list(looks))
    voyage.lane.passed += [stream, exchange(0.5, "", message=made)]
    return stream


LOOK: Final = Look(0.6, {"method": "tasks/get", "id": 1, "params": {"taskId": "ours"}}, True)


def hangs_though_a_stream_was_there(voyage: Voyage) -> None:
    stream = on_an_errand(voyage)
    voyage.lane.passed.append(exchange(0.7, "GET"))
    stream.until = 0.8


def hangs_though_it_was_replied_to(voyage: Voyage) -> None:
    on_an_errand(voyage, LOOK)
    voyage.lane.passed.append(exchange(0.7, "", message={"id": 1, "result": {}}))


def replies_for_a_cancelled_task(voyage: Voyage) -> None:
    hangs_though_it_was_replied_to(voyage)
    voyage.lane.passed.append(exchange(0.55, "tasks/cancel", message={"params": {"taskId": "t1"}}))


@pytest.mark.parametrize(
    ("goes_wrong", "told"),
    [
        (hangs, "hangs"),
        (dies, "life 1 died of itself, with exit code -11"),
        (has_another_result, "result of 0: Hello, t2-name"),
        (fails, "error of 0: TaskNotFoundError: gone"),
        (asks_twice, "asked 2 times in life 1: t1-name"),
        (gives_an_answer_to_two, "one answer to two questions: t1-pet#1.0 and t1-pet#1.0"),
        (asks_for_a_third, "asked 3 times in life 1: t1-pet"),
        (has_three_answers, "answered 3 times: t1-pet"),
        (asks_what_was_answered, "asked again in life 2, though its answer was sent in 1: t1-name"),
        (answers_what_was_cancelled, "answered after the task was cancelled: t1-name"),
        (polls_early, "polled after 0.500 s in life 1"),
        (leaves_a_task, "nobody was told how these ended: ['t2']"),
        (resumes_another_result, "resumed of -1: asks t2 Hello, t1-name"),
        (gives_two_calls_one_result, "2 calls end with Hello, t1-name"),
        (ends_a_session_of_the_sdks, "error of 1: MCPError: closed"),
        (fails_after_one_denial, "error of 0: TaskNotFoundError: gone"),
        (fails_where_tasks_are_known_anywhere, "error of 0: TaskNotFoundError: gone"),
        (fails_after_a_cancellation_at_another_server, "error of 0: TaskNotFoundError: gone"),
        (does_not_know_a_call_whose_task_it_knew, "error of 0: OutcomeUnknownError: nobody has its reply"),
        (says_cancelled_though_nobody_cancels, "error of 0: TaskCancelledError: no more"),
        (asks_twice_after_one_withdrawal, "asked 2 times in life 1: t1-name"),
        (asks_what_was_journaled, "asked again in life 2, though it was answered in 1: t1-name"),
        (hangs_after_one_lost_reply, "hangs"),
        (hangs_with_a_lost_answer, "hangs"),
        (hangs_with_a_question_that_was_put, "hangs"),
        (hangs_with_a_question_that_was_journaled, "hangs"),
        (hangs_with_two_that_are_alike_and_were_put, "hangs"),
        (hangs_though_a_stream_was_there, "hangs"),
        (hangs_though_it_was_replied_to, "hangs"),
        (replies_for_a_cancelled_task, "tasks/get answered after t1 was cancelled"),
    ],
)
def test_a_promise_that_is_broken_is_seen(goes_wrong: Callable[[Voyage], None], told: str) -> None:
    voyage = good()
    assert list(breaches(voyage)) == []
    goes_wrong(voyage)
    assert told in list(breaches(voyage))


def fates(weather: Weather, method: str) -> list[Fate]:
    return [weather.fate(method) for _ in range(50)]


def test_the_weather_is_drawn_by_a_seed_and_spares_what_there_is_no_call_without() -> None:
    for seed in range(50):
        drawn = [
            [one.fate("tasks/get") for _ in range(50)] for one in (Weather(seed, 1.0), Weather(seed, 1.0))
        ]
        assert drawn[0] == drawn[1]
        assert sum(one.what in DENIALS for one in drawn[0]) <= 3
        weather = Weather(seed, 1.0)
        assert {one.what for one in fates(weather, "initialize")} == {"passes"}
        assert {one.what for one in fates(weather, "tools/call")} <= {"passes", "delayed"}
        weather.breaks = False
        assert not {one.what for one in fates(weather, "tasks/get")} & BREAKS
        weather.fair = True
        assert weather.fate("tasks/get") == Fate()


def test_no_promise_is_broken_in_a_storm(
    legacy_python_server: LegacyServer,
    legacy_node_server: LegacyServer,
    legacy_node_program: LegacyProgram,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    count = LONG if request.config.getoption("--long") else SHORT
    with anywhere(legacy_node_program).listening(tmp_path / "anywhere") as third:
        servers = [legacy_python_server, legacy_node_server, third]
        voyages = asyncio.run(make_voyages(count, servers, tmp_path))
    assert {one.kind for one in voyages} == {"python", "node", "anywhere"}
    assert {one.way for one in voyages} == set(WAYS)
    assert any(exchange.fate.what != "passes" for one in voyages for exchange in one.lane.passed)
    # The judge has to know when a host stopped listening. One that waits for ever never did.
    assert all(one.kills or ended(one) or not one.ended for one in voyages if one.way == "transport")
    found = {one.seed: list(breaches(one)) for one in voyages}
    assert not any(found.values()), [(one.told(), found[one.seed]) for one in voyages if found[one.seed]]


def ended(voyage: Voyage) -> bool:
    """Whether its host has said that it left its session."""
    return any(one.event in ("closes", "down") for one in voyage.log)


async def make_voyages(count: int, servers: list[LegacyServer], folder: Path) -> list[Voyage]:
    seeds = range(SEED, SEED + count)
    return [one async for one in storm(seeds, servers, folder, interval_ms=LEGACY_INTERVAL_MS)]
