"""The hosts of others behind the bridge: each of them in each situation, at a server of either generation.

What a host can do is in its class in ``hosts``: whether its calls are limited, what moves the limit, whether
it can be asked, and whether it tells that it gave up. The tests go by that.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import BlockingInbox
from tests._legacy_installs import NotInstalled
from tests.legacy_servers import LegacyServer
from tests.real_server import RealServer

from .hosts import HOSTS, Host, Seen, Talk
from .turns import Turn, follow, references

ROOT: Final = Path(__file__).parents[2]
BRIDGE: Final = (
    shutil.which("env") or "env",
    f"PYTHONPATH={ROOT}",  # which the environment that hosts give to their servers does not have
    *(sys.executable, "-m", "mcp_tasks_client", "bridge"),
)
QUICK: Final = "typescript"
"""The host that runs without ``--long``, at the server of the current version."""

CURRENT: Final = "2026-07-28"
OLDER: Final = "2025-11-25"
SOON: Final = ("--answer-within", "2")
NEVER: Final = ("--answer-within", "0")
SLOW_S: Final = 6.0
"""Longer than until the answer in between, and than it takes to kill somebody meanwhile."""

PATIENT_S: Final = 20.0
"""A limit that progress moves, which the bridge sends every three seconds, and later on a busy machine."""

LEAVES_S: Final = 30.0
"""A bridge ends within two seconds after its host, and later on a busy machine."""

Tool = tuple[str, Mapping[str, Any]]
TOOLS: Final[Mapping[str, Mapping[str, Tool]]] = {
    CURRENT: {
        "plain": ("plain", {"x": 3}),
        "requires": ("must_task", {"n": 3}),
        "asks": ("ask_name", {}),
        "fails": ("fail_tool", {}),
        "breaks": ("fail_rpc", {}),
    },
    OLDER: {
        "plain": ("plain", {}),
        "requires": ("must", {"n": 3}),
        "asks": ("asks", {}),
        "fails": ("fails", {"how": "completed"}),
        "breaks": ("fails", {"how": "message"}),
    },
}


@dataclass
class Cell:
    """A host, the command of its bridge, and the server behind that."""

    host: Host
    version: str
    server: RealServer | LegacyServer
    folder: Path
    already: int
    talks: int = 0

    @property
    def journal(self) -> Path:
        return self.folder / "journal.sqlite3"

    def turn(self, what: str, **more: Any) -> Turn:
        tool, arguments = TOOLS[self.version][what]
        return Turn(tool, arguments, **more)

    def slow(self, seconds: float, **more: Any) -> Turn:
        given = {"seconds": seconds} if self.version == CURRENT else {"duration_ms": round(seconds * 1000)}
        return Turn("slow", given, **more)

    def talk(
        self, *turns: Turn, options: tuple[str, ...] = (), **setting: Any
    ) -> AbstractContextManager[Talk]:
        """Start the host. Its bridge is on the journal of the cell."""
        bridge = [*BRIDGE, self.server.url, "--journal", str(self.journal), *options]
        self.talks += 1
        return self.host.talk(turns, bridge, self.folder / f"talk-{self.talks}", **setting)

    def played(self, *turns: Turn, options: tuple[str, ...] = (), **setting: Any) -> list[Seen]:
        """What the host has seen of turns that it plays to their end."""
        with self.talk(*turns, options=options, **setting) as talk:
            seen = talk.finish().seen
            assert seen, f"the host has seen nothing:\n{talk.told()}"
            return seen

    @property
    def calls(self) -> int:
        """How often the server was called."""
        methods = [one.method for one in self.server.witness()[self.already :]]
        return methods.count("tools/call")

    def has_a_task(self) -> bool:
        """True once the journal has a task."""
        try:
            with closing(sqlite3.connect(f"{self.journal.as_uri()}?mode=ro", uri=True)) as connection:
                found = connection.execute("SELECT count(*) FROM records WHERE task_id IS NOT NULL")
                return bool(found.fetchone()[0])
        except sqlite3.OperationalError:  # it is not there, or is just being made
            return False

    def answer(self, name: str) -> bool:
        """Answer what is asked, as a person elsewhere does. False if nothing is asked yet."""
        if not self.has_a_task():
            return False
        with BlockingInbox(self.journal) as inbox:
            questions = inbox.questions()
            for question in questions:
                inbox.answer(question.question_id, ElicitResult(action="accept", content={"name": name}))
        return bool(questions)


@pytest.fixture(params=HOSTS, ids=lambda host: host.name)
def host(request: pytest.FixtureRequest) -> Host:
    found = request.param
    assert isinstance(found, Host)
    if found.name != QUICK and not request.config.getoption("--long"):
        pytest.skip("takes a host of its own, or long; --long runs it")
    try:
        found.prepare()
    except NotInstalled as reason:
        pytest.skip(f"{found.name} cannot be installed: {reason}")
    return found


@pytest.fixture(params=[CURRENT, OLDER])
def cell(request: pytest.FixtureRequest, host: Host, tmp_path: Path) -> Cell:
    version = request.param
    if version == OLDER and not request.config.getoption("--long"):
        pytest.skip("takes a server of its own; --long runs it")
    server = request.getfixturevalue("real_server" if version == CURRENT else "legacy_python_server")
    return Cell(host, version, server, tmp_path, len(server.witness()))


def is_error(seen: Seen) -> bool:
    """False if the host says that it is none."""
    return seen.is_error is not False


def test_a_plain_tool_is_an_ordinary_one(cell: Cell) -> None:
    [seen] = cell.played(cell.turn("plain"))
    assert ("3" if cell.version == CURRENT else "plain") in seen.text
    assert not seen.is_error
    assert cell.calls == 1


def test_a_tool_that_requires_a_task_is_an_ordinary_one(cell: Cell) -> None:
    [seen] = cell.played(cell.turn("requires"))
    assert "3" in seen.text
    assert not seen.is_error
    assert cell.calls == 1


def test_a_long_call_is_answered_in_between_and_its_result_comes_by_its_reference(cell: Cell) -> None:
    interim, *others = cell.played(cell.slow(SLOW_S), follow("rested"), options=SOON)
    assert references([interim.text])
    assert not interim.is_error
    assert "rested" in others[-1].text
    assert cell.calls == 1


def test_progress_keeps_a_host_patient(cell: Cell) -> None:
    if not cell.host.is_moved_by_progress:
        pytest.skip("progress does not move its limit")
    limit_s = max(PATIENT_S, cell.host.shortest_limit_s)
    [seen] = cell.played(cell.slow(limit_s + SLOW_S), options=NEVER, limit_s=limit_s, patient=True)
    assert "rested" in seen.text
    assert cell.calls == 1


def test_a_model_that_repeats_the_call_when_its_host_has_given_up_makes_no_second_task(cell: Cell) -> None:
    if not cell.host.is_limited:
        pytest.skip("its calls have no limit")
    if cell.host.is_always_patient:
        pytest.skip("progress moves its limit, always")
    if not cell.host.tells_that_it_gave_up:
        pytest.skip("it does not tell that it gave up: its repetition is a call beside the first one")
    limit_s = cell.host.shortest_limit_s
    again = cell.slow(2.5 * limit_s, until="rested")
    first, *others = cell.played(again, options=NEVER, limit_s=limit_s)
    assert is_error(first)
    assert "rested" not in first.text
    assert "rested" in others[-1].text
    assert cell.calls == 1


def test_a_model_that_repeats_the_call_instead_of_following_the_reference_makes_no_second_task(
    cell: Cell,
) -> None:
    first, *others = cell.played(cell.slow(SLOW_S, until="rested"), options=SOON)
    assert references([first.text])
    assert "rested" in others[-1].text
    assert cell.calls == 1


def test_a_question_reaches_the_person_at_the_host(cell: Cell) -> None:
    if not cell.host.can_be_asked:
        pytest.skip("it cannot be asked")
    with cell.talk(cell.turn("asks"), options=NEVER, answers={"name": "Ada"}) as talk:
        [seen] = talk.finish().seen
    assert "Hello, Ada" in seen.text
    assert cell.calls == 1


def test_a_question_that_the_host_cannot_ask_waits_for_a_person_elsewhere(cell: Cell) -> None:
    options = (*SOON, "--questions", "inbox") if cell.host.always_declares else SOON
    with cell.talk(cell.turn("asks"), follow("Hello"), options=options) as talk:
        talk.until(lambda: talk.has_shown("mcp-tasks answer"))
        talk.until(lambda: cell.answer("Ada"))
        interim, *others = talk.finish().seen
    assert "mcp-tasks answer" in interim.text
    assert "Hello, Ada" in others[-1].text
    assert cell.calls == 1


def test_an_error_of_the_tool_and_one_of_the_protocol_reach_the_model(cell: Cell) -> None:
    failed, broken = cell.played(cell.turn("fails"), cell.turn("breaks"))
    assert "the tool said no" in failed.text
    assert is_error(failed)
    assert "quota exceeded" in broken.text
    assert is_error(broken)
    assert cell.calls == 2


def test_a_bridge_that_is_killed_loses_nothing(cell: Cell) -> None:
    with cell.talk(cell.slow(2 * SLOW_S), options=NEVER) as talk:
        talk.until(cell.has_a_task)
        talk.kill_bridge()
        [seen] = talk.finish().seen
    assert is_error(seen)
    assert "rested" not in seen.text
    finds_the_call(cell)


def test_a_host_that_is_killed_takes_its_bridge_along_and_loses_nothing(cell: Cell) -> None:
    with cell.talk(cell.slow(2 * SLOW_S), options=NEVER) as talk:
        talk.until(cell.has_a_task)
        bridges = talk.bridges()
        assert bridges
        talk.kill()
        _, alive = psutil.wait_procs(bridges, LEAVES_S)
        assert not alive
    finds_the_call(cell)


def finds_the_call(cell: Cell) -> None:
    """See that the next host, on the same journal, gets the result of the only call."""
    listed, *others = cell.played(Turn("task_list"), follow("rested"), options=SOON)
    assert len(references([listed.text])) == 1
    assert "rested" in others[-1].text
    assert cell.calls == 1
