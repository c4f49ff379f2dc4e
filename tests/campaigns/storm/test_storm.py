"""The storm finds what it is for, and finds nothing. ``--long`` makes 400 voyages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.legacy_servers import LegacyProgram, LegacyServer, anywhere

from .host import RELATED, Way
from .proxy import Lane, Look, Passed
from .received import errands
from .run import WAYS, storm
from .verdict import Noted, Voyage, breaches, unheard
from .weather import BREAKS, DENIALS, Fate, Weather, What

SHORT: Final = 4
LONG: Final = 400
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
    ],
)
def test_a_promise_that_is_broken_is_seen(goes_wrong: Callable[[Voyage], None], told: str) -> None:
    voyage = good()
    assert list(breaches(voyage)) == []
    goes_wrong(voyage)
    assert told in list(breaches(voyage))


def above(way: Way, *log: Noted) -> Voyage:
    """A voyage with a session of the SDK's."""
    voyage = good()
    voyage.way = way
    voyage.calls = ("asks", "asks")
    voyage.log = [Noted(0.0, 1, "created", -1, "t1"), Noted(0.0, 1, "created", -1, "t2"), *log]
    return voyage


HELLO: Final = Noted(2.0, 1, "result", 0, "Hello, t1-name")
RESUMED: Final = Noted(3.0, 2, "resumed", -1, "asks t2 Hello, t2-name")


def test_what_a_host_has_left_that_knows_nothing_of_tasks_is_brought_home() -> None:
    assert list(breaches(above("transport", HELLO, RESUMED))) == []
    (lost,) = breaches(above("transport", HELLO))
    assert lost == "nobody was told how these ended: ['t2']"
    read = above("transport", HELLO)
    read.lane.passed.append(exchange(2.5, "tools/list", message={"id": 6}))
    assert list(breaches(read)) == [lost]
    read.kills.append(2.6)
    assert list(breaches(read)) == []
    read = above("transport", HELLO)
    read.lane.passed.append(answered(2.5))
    read.kills.append(2.6)
    assert list(breaches(read)) == [], "its session had the result before it could say so"
    (mixed,) = breaches(above("transport", HELLO, replace(RESUMED, text="asks t2 Hello, t1-name")))
    assert mixed == "resumed of -1: asks t2 Hello, t1-name"
    assert "2 calls end with Hello, t1-name" in breaches(above("transport", HELLO, replace(HELLO, call=1)))


def test_a_session_of_the_sdks_may_end_with_what_it_could_not_send_and_only_then() -> None:
    down = Noted(2.5, 1, "down", -1, "ConnectError: refused")
    said = "MCPError: closed"
    voyage = above("transport", HELLO, replace(HELLO, call=1, event="error", text=said), down)
    voyage.calls = ("asks", "slow")
    assert list(breaches(voyage)) == [f"error of 1: {said}", "down of -1: ConnectError: refused"]
    voyage.lane.passed.append(exchange(1.5, "tasks/result", what="unread"))
    assert list(breaches(voyage)) == []


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


def test_a_reply_that_is_lost_twice_is_waited_for_for_ever_and_one_that_is_lost_once_is_not() -> None:
    voyage = good()
    hangs(voyage)
    lost = replace(answered(1.6), reached=False)
    voyage.lane.passed[2:] = [lost]
    assert not unheard(voyage)
    voyage.lane.passed.append(lost)
    assert unheard(voyage)


def ask(at: float, request_id: int = 1, *, heard: bool = True) -> Look:
    params = {"_meta": {RELATED: {"taskId": "t1"}}, "message": "What is your name?"}
    return Look(at, {"method": "elicitation/create", "id": request_id, "params": params}, heard)


def swallowed(voyage: Voyage) -> None:
    voyage.lane.passed[0].asks.append(ask(0.2, heard=False))


def killed_at_once(voyage: Voyage) -> None:
    voyage.lane.passed[0].asks.append(ask(0.2))
    voyage.kills.append(0.21)


def down_at_once(voyage: Voyage) -> None:
    voyage.lane.passed[0].asks.append(ask(0.2))
    voyage.log.append(Noted(0.21, 1, "down", -1, "ExceptionGroup"))
    voyage.way = "transport"
    voyage.lane.passed.insert(0, exchange(0.0, "tasks/result", what="unread"))


def closed_at_once(voyage: Voyage) -> None:
    """A session of the SDK's that cannot send a notification ends without an exception."""
    voyage.lane.passed[0].asks.append(ask(0.2))
    voyage.log.append(Noted(0.21, 1, "closes", -1, ""))
    voyage.way = "transport"


def look(at: float, method: str = "tasks/get", request_id: int = 1, *, heard: bool = True) -> Look:
    return Look(at, {"method": method, "id": request_id, "params": {"taskId": "ours"}}, heard)


def asked_as_it_was_cancelled(voyage: Voyage) -> None:
    voyage.lane.passed += [
        exchange(0.1, "tasks/result", message={"id": "r"}, looks=[look(0.2)]),
        exchange(0.21, "notifications/cancelled", message={"params": {"requestId": "r"}}),
    ]


def test_what_is_asked_long_before_a_cancellation_is_heard() -> None:
    voyage = good()
    asked_as_it_was_cancelled(voyage)
    assert unheard(voyage)
    voyage.lane.passed[-1].at = 0.3
    assert not unheard(voyage)


def test_a_session_of_mcp_1_30_may_end_with_a_result_that_is_cancelled_and_only_then() -> None:
    voyage = good()
    fails(voyage)
    voyage.kind = "python"
    assert list(breaches(voyage))
    asked_as_it_was_cancelled(voyage)
    assert list(breaches(voyage)) == []
    voyage.kind = "node"
    assert list(breaches(voyage))


@pytest.mark.parametrize(
    "happens", [swallowed, killed_at_once, down_at_once, closed_at_once, asked_as_it_was_cancelled]
)
def test_who_waits_for_a_question_that_nobody_heard_waits_for_ever(happens: Callable[[Voyage], None]) -> None:
    voyage = good()
    hangs(voyage)
    happens(voyage)
    assert unheard(voyage)
    assert list(breaches(voyage)) == []


def on_an_errand(*looks: Look) -> Voyage:
    """A voyage with a task of ours, of which the server has been told at 0.5 s."""
    voyage = good()
    hangs(voyage)
    voyage.kind = "python"
    made = {"id": 9, "result": {"task": {"taskId": "ours"}, "_meta": {RELATED: {"taskId": "t1"}}}}
    stream = exchange(0.1, "GET", looks=list(looks))
    voyage.lane.passed += [stream, exchange(0.5, "", message=made)]
    return voyage


def says(at: float, request_id: int, **more: Any) -> Passed:
    return exchange(at, "", message={"id": request_id, "result": {}}, **more)


def cut_between(voyage: Voyage) -> None:
    voyage.lane.passed[-2].until = 0.8


def cut_and_opened_again(voyage: Voyage) -> None:
    cut_between(voyage)
    voyage.lane.passed.append(exchange(0.9, "GET"))


def cut_and_heard_before(voyage: Voyage) -> None:
    voyage.lane.passed.append(exchange(0.7, "GET"))
    cut_between(voyage)


def killed_before_it_replied(voyage: Voyage) -> None:
    voyage.lane.passed[-2].looks.append(look(0.6))
    voyage.kills.append(0.9)


def closed_before_it_replied(voyage: Voyage) -> None:
    voyage.lane.passed[-2].looks.append(look(0.6))
    voyage.log.append(Noted(0.9, 1, "closes", -1, ""))


def not_heard(voyage: Voyage) -> None:
    voyage.lane.passed[-2].looks.append(look(0.6, heard=False))


def replied_in_vain(voyage: Voyage) -> None:
    voyage.lane.passed[-2].looks.append(look(0.6))
    voyage.lane.passed.append(says(0.7, 1, what="unavailable"))
    voyage.lane.passed[-1].reached = False


def replied(voyage: Voyage) -> None:
    voyage.lane.passed[-2].looks.append(look(0.6))
    voyage.lane.passed.append(says(0.7, 1))


@pytest.mark.parametrize(
    ("happens", "waits"),
    [
        (cut_between, True),
        (cut_and_opened_again, True),
        (cut_and_heard_before, False),
        (killed_before_it_replied, True),
        (closed_before_it_replied, True),
        (not_heard, True),
        (replied_in_vain, False),
        (replied, False),
    ],
)
def test_a_server_waits_for_ever_for_what_nobody_could_reply_to_and_else_not(
    happens: Callable[[Voyage], None], waits: bool
) -> None:
    voyage = on_an_errand()
    assert "hangs" in list(breaches(voyage))
    happens(voyage)
    assert unheard(voyage) == waits
    assert ("hangs" in list(breaches(voyage))) != waits


def test_a_task_of_ours_that_was_served_is_waited_for_by_nobody() -> None:
    voyage = on_an_errand(look(0.6, "tasks/result"))
    voyage.lane.passed.append(says(0.7, 1))
    cut_between(voyage)
    assert [one.served for one in errands(voyage.lane.passed)] == [True]
    assert not unheard(voyage)


def test_a_reply_about_a_task_of_ours_that_was_needed_for_a_cancelled_one_is_seen() -> None:
    voyage = on_an_errand(look(0.6))
    voyage.lane.passed.append(says(0.7, 1))
    assert not any("was cancelled" in one for one in breaches(voyage))
    cancelled = exchange(0.55, "tasks/cancel", message={"params": {"taskId": "t1"}})
    voyage.lane.passed.append(cancelled)
    assert "tasks/get answered after t1 was cancelled" in list(breaches(voyage))


@pytest.mark.parametrize(("killed_at", "seen"), [(3.0, True), (1.3, False)])
def test_what_was_answered_and_journaled_is_not_to_be_asked_again(killed_at: float, seen: bool) -> None:
    voyage = good()
    voyage.lane.passed.pop()  # nothing was sent
    voyage.log[2:] = [Noted(1.2, 1, "answered", -1, "t1-name"), Noted(4.0, 2, "asked", -1, "t1-name")]
    voyage.kills.append(killed_at)
    told = "asked again in life 2, though it was answered in 1: t1-name"
    assert (told in list(breaches(voyage))) == seen


def test_an_answer_that_is_lost_may_be_hidden_by_the_other_over_a_session_of_the_sdks() -> None:
    voyage = good()
    hangs(voyage)
    voyage.calls = ("together",)
    voyage.log.pop()
    voyage.lane.passed[-1].fate = Fate("unavailable")
    assert list(breaches(voyage)) == ["hangs"]
    voyage.way = "transport"
    assert "hangs" not in list(breaches(voyage))
    voyage.lane.passed[-1].fate = Fate("delayed")
    assert "hangs" in list(breaches(voyage))


@pytest.mark.parametrize(("created_at", "excused"), [(0.0, False), (4.0, True)])
def test_what_became_of_a_call_is_unknown_only_before_its_task_is_known(
    created_at: float, excused: bool
) -> None:
    """A later life may find the task in the server's list, where it could not be listed before."""
    voyage = good()
    voyage.kills = [0.5]
    voyage.log[0] = replace(voyage.log[0], at=created_at)
    voyage.log[-1] = replace(voyage.log[-1], event="error", text="OutcomeUnknownError: nobody has its reply")
    assert (not list(breaches(voyage))) is excused


def test_a_question_that_was_journaled_once_is_known_to_whoever_is_killed_later() -> None:
    voyage = good()
    hangs(voyage)
    voyage.lane.passed[0].asks.append(ask(0.2))
    voyage.log.append(Noted(4.0, 2, "created", 0, "t1"))
    voyage.kills.append(4.1)
    assert not unheard(voyage)
    assert list(breaches(voyage)) == ["hangs"]


@pytest.mark.parametrize(("killed_at", "waits"), [(1.05, True), (1.15, False)])
def test_a_question_that_was_put_to_the_host_is_in_the_journal(killed_at: float, waits: bool) -> None:
    voyage = good()
    hangs(voyage)
    voyage.lane.passed[0].asks.append(ask(1.0))
    voyage.kills.append(killed_at)
    assert unheard(voyage) == waits


@pytest.mark.parametrize(("pets", "withdrawn", "waits"), [(1, 0, True), (2, 0, False), (2, 1, True)])
def test_of_questions_that_are_alike_each_is_in_the_journal_once_it_was_put(
    pets: int, withdrawn: int, waits: bool
) -> None:
    voyage = good()
    hangs(voyage)
    voyage.calls = ("alike",)
    voyage.log[1:] = of_pets("t1-pet#1.0", "t1-pet#1.1")[:pets]
    voyage.log += [replace(voyage.log[1], event="withdrawn")] * withdrawn
    params = {"_meta": {RELATED: {"taskId": "t1"}}, "message": "What is the name of your pet?"}
    looks = [replace(ask(0.8), message={"params": params}), replace(ask(0.9), message={"params": params})]
    voyage.lane.passed[0].asks += looks
    voyage.kills.append(1.05)
    assert unheard(voyage) == waits


def test_what_is_alike_and_right_is_no_breach() -> None:
    voyage = good()
    gives_an_answer_to_two(voyage)
    voyage.log[-1] = replace(voyage.log[-1], text="t1-pet#1.1 and t1-pet#1.0")
    assert list(breaches(voyage)) == []


def test_what_was_taken_away_from_a_person_may_be_asked_again_once() -> None:
    voyage = good()
    voyage.log.insert(2, Noted(1.2, 1, "withdrawn", -1, "t1-name"))
    asks_twice(voyage)
    assert list(breaches(voyage)) == []
    asks_twice(voyage)
    assert list(breaches(voyage)) == ["asked 2 times in life 1: t1-name"]
    voyage = good()
    asks_for_a_third(voyage)
    voyage.log.insert(2, Noted(1.2, 1, "withdrawn", -1, "t1-pet#1.0"))
    assert list(breaches(voyage)) == []


def test_a_task_that_was_cancelled_may_say_so() -> None:
    voyage = good()
    fails(voyage)
    voyage.log[-1] = replace(voyage.log[-1], text="TaskCancelledError: no more")
    assert list(breaches(voyage))
    voyage.cancels = True
    assert list(breaches(voyage)) == []


def fates(weather: Weather, method: str) -> list[Fate]:
    return [weather.fate(method) for _ in range(50)]


def test_a_task_may_be_lost_with_its_session_and_only_then() -> None:
    voyage = good()
    fails(voyage)
    assert list(breaches(voyage))
    voyage.lane.forgets_at = 1.0
    assert list(breaches(voyage)) == []


@pytest.mark.parametrize(
    ("replied_to", "forgotten", "waits"),
    [(7, {"s"}, False), (8, {"s"}, True), (8, {"another"}, False), (8, set[str](), False)],
)
def test_where_tasks_are_known_anywhere_only_questions_are_lost_with_a_session(
    replied_to: int, forgotten: set[str], waits: bool
) -> None:
    voyage = good()
    voyage.kind = "anywhere"
    voyage.lane.forgets_at = 1.2
    voyage.lane.forgotten = forgotten
    voyage.lane.passed[0].asks.append(ask(0.2, 7))
    voyage.lane.passed[-1].message["id"] = replied_to
    hangs(voyage)
    assert unheard(voyage) == waits
    assert list(breaches(voyage)) == ([] if waits else ["hangs"])
    voyage.ended = True
    fails(voyage)
    assert list(breaches(voyage)) == ["error of 0: TaskNotFoundError: gone"]


def test_a_session_is_forgotten_for_good_and_the_next_one_is_not() -> None:
    lane = Lane(Weather(1, 0.0))
    assert lane.fate("tasks/get", "s1").what == "passes"
    lane.forgets_at = 0.0
    assert [lane.fate("tasks/get", "s1").what for _ in range(3)] == ["no_session"] * 3
    assert {lane.fate("tasks/get", name).what for name in (None, "s2")} == {"passes"}


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
    # The judge has to know when a host stopped listening.
    assert all(one.kills or ended(one) for one in voyages if one.way == "transport")
    found = {one.seed: list(breaches(one)) for one in voyages}
    assert not any(found.values()), [(one.told(), found[one.seed]) for one in voyages if found[one.seed]]


def ended(voyage: Voyage) -> bool:
    """Whether its host has said that it left its session."""
    return any(one.event in ("closes", "down") for one in voyage.log)


async def make_voyages(count: int, servers: list[LegacyServer], folder: Path) -> list[Voyage]:
    seeds = range(SEED, SEED + count)
    return [one async for one in storm(seeds, servers, folder, interval_ms=LEGACY_INTERVAL_MS)]
