"""The hosts of others before the bridge, and the servers of others behind it.

What a host can do is in its class in ``hosts``: whether its calls are limited, what moves the limit, whether
it can be asked, and whether it tells that it gave up. What a server can do is in its row in ``servers``. The
tests go by both. What the host alone decides is seen at one server of each generation.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import BlockingInbox
from tests._forked import make_command
from tests._legacy_installs import NotInstalled
from tests.legacy_servers import LegacyProgram
from tests.real_server import SCRIPT, RealServer, running_server

from .hosts import HOSTS, Host, Seen, Talk
from .servers import SERVERS, Opened, Server
from .turns import Turn, follow, references

ROOT: Final = Path(__file__).parents[2]
ENV: Final = shutil.which("env") or "env"
BRIDGE: Final = (
    f"PYTHONPATH={ROOT}",  # which the environment that hosts give to their servers does not have
    *(sys.executable, "-m", "mcp_tasks_client", "bridge"),
)
QUICK: Final = "typescript"
"""The host that runs without ``--long``, at the server of the current version."""

SOON: Final = ("--answer-within", "2")
NEVER: Final = ("--answer-within", "0")
SLOW_S: Final = 6.0
"""Longer than until the answer in between, and than it takes to kill somebody meanwhile."""

PATIENT_S: Final = 20.0
"""A limit that progress moves, which the bridge sends every three seconds, and later on a busy machine."""

LEAVES_S: Final = 30.0
"""A bridge ends within two seconds after its host, and later on a busy machine."""

at_each_generation = pytest.mark.parametrize("server", SERVERS[:2], ids=lambda one: one.name, indirect=True)


@dataclass
class Cell:
    """A host, the command of its bridge, and the server behind that."""

    host: Host
    server: Server
    opened: Opened
    folder: Path
    talks: int = 0

    @property
    def journal(self) -> Path:
        return self.folder / "journal.sqlite3"

    def talk(
        self, *turns: Turn, options: tuple[str, ...] = (), **setting: Any
    ) -> AbstractContextManager[Talk]:
        """Start the host. Its bridge is on the journal of the cell."""
        # In one folder for all talks: in another one the same words are another server.
        bridge = [
            ENV,
            f"--chdir={self.folder}",
            *BRIDGE,
            "--journal",
            str(self.journal),
            *options,
            *self.opened.words,
        ]
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
        return self.opened.methods().count("tools/call")

    def has_begun(self) -> bool:
        """True once the journal has a task, or a server that makes none was called."""
        return self.has_a_task() if self.server.makes_tasks else self.calls > 0

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


@pytest.fixture(params=SERVERS, ids=lambda server: server.name)
def server(request: pytest.FixtureRequest) -> Server:
    found = request.param
    assert isinstance(found, Server)
    return found


@pytest.fixture
def cell(request: pytest.FixtureRequest, host: Host, server: Server, tmp_path: Path) -> Cell:
    return Cell(host, server, server.open(request.getfixturevalue(server.fixture), tmp_path), tmp_path)


@pytest.fixture(scope="session")
def server_without_tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """The server on FastMCP without the extension, shared by the whole session."""
    log = tmp_path_factory.mktemp("server_without_tasks") / "stderr.log"
    with running_server(log, "--no-tasks") as running:
        yield running


@pytest.fixture(scope="session")
def fastmcp_command() -> list[str]:
    """The command of the server on FastMCP."""
    return make_command(SCRIPT, "--stdio")


@pytest.fixture(scope="session")
def legacy_python_command(legacy_python_program: LegacyProgram) -> list[str]:
    """The command of the server on the Python SDK 1.x."""
    return legacy_python_program.stdio()


def is_error(seen: Seen) -> bool:
    """False if the host says that it is none."""
    return seen.is_error is not False


def test_a_plain_tool_is_an_ordinary_one(cell: Cell) -> None:
    [seen] = cell.played(cell.server.turn("plain"))
    assert cell.server.tools.plain_text in seen.text
    assert not seen.is_error
    assert cell.calls == 1


def test_a_tool_that_requires_a_task_is_an_ordinary_one(cell: Cell) -> None:
    if not cell.server.makes_tasks:
        pytest.skip("it makes no tasks")
    [seen] = cell.played(cell.server.turn("requires"))
    assert "3" in seen.text
    assert not seen.is_error
    assert cell.calls == 1


def test_a_long_call_is_answered_in_between_and_its_result_comes_by_its_reference(cell: Cell) -> None:
    skip_if_the_call_ends_with_its_turn(cell)
    interim, *others = cell.played(cell.server.slow(SLOW_S), follow("rested"), options=SOON)
    assert references([interim.text])
    assert not interim.is_error
    assert "rested" in others[-1].text
    assert cell.calls == 1


@at_each_generation
def test_progress_keeps_a_host_patient(cell: Cell) -> None:
    if not cell.host.is_moved_by_progress:
        pytest.skip("progress does not move its limit")
    limit_s = max(PATIENT_S, cell.host.shortest_limit_s)
    [seen] = cell.played(cell.server.slow(limit_s + SLOW_S), options=NEVER, limit_s=limit_s, patient=True)
    assert "rested" in seen.text
    assert cell.calls == 1


@at_each_generation
def test_a_model_that_repeats_the_call_when_its_host_has_given_up_makes_no_second_task(cell: Cell) -> None:
    if not cell.host.is_limited:
        pytest.skip("its calls have no limit")
    if cell.host.is_always_patient:
        pytest.skip("progress moves its limit, always")
    if not cell.host.tells_that_it_gave_up:
        pytest.skip("it does not tell that it gave up: its repetition is a call beside the first one")
    limit_s = cell.host.shortest_limit_s
    again = cell.server.slow(2.5 * limit_s, until="rested")
    first, *others = cell.played(again, options=NEVER, limit_s=limit_s)
    assert is_error(first)
    assert "rested" not in first.text
    assert "rested" in others[-1].text
    assert cell.calls == 1


@at_each_generation
def test_a_model_that_repeats_the_call_instead_of_following_the_reference_makes_no_second_task(
    cell: Cell,
) -> None:
    first, *others = cell.played(cell.server.slow(SLOW_S, until="rested"), options=SOON)
    assert references([first.text])
    assert "rested" in others[-1].text
    assert cell.calls == 1


def test_a_question_reaches_the_person_at_the_host(cell: Cell) -> None:
    if not cell.host.can_be_asked:
        pytest.skip("it cannot be asked")
    with cell.talk(cell.server.turn("asks"), options=NEVER, answers={"name": "Ada"}) as talk:
        [seen] = talk.finish().seen
    assert "Hello, Ada" in seen.text
    assert cell.calls == cell.server.calls_to_ask


def test_a_question_that_the_host_cannot_ask_waits_for_a_person_elsewhere(cell: Cell) -> None:
    if not cell.server.makes_tasks:
        pytest.skip("it asks before there is a task, which only a host can answer")
    skip_if_the_call_ends_with_its_turn(cell)
    options = (*SOON, "--questions", "inbox") if cell.host.always_declares else SOON
    with cell.talk(cell.server.turn("asks"), follow("Hello"), options=options) as talk:
        talk.until(lambda: talk.has_shown("mcp-tasks answer"))
        talk.until(lambda: cell.answer("Ada"))
        interim, *others = talk.finish().seen
    assert "mcp-tasks answer" in interim.text
    assert "Hello, Ada" in others[-1].text
    assert cell.calls == 1


def test_an_error_of_the_tool_and_one_of_the_protocol_reach_the_model(cell: Cell) -> None:
    failed, broken = cell.played(cell.server.turn("fails"), cell.server.turn("breaks"))
    assert "the tool said no" in failed.text
    assert is_error(failed)
    assert "quota exceeded" in broken.text
    assert is_error(broken)
    assert cell.calls == 2


def test_a_bridge_that_is_killed_loses_nothing(cell: Cell) -> None:
    if not cell.server.keeps_calls:
        pytest.skip("its calls end with the bridge")
    with cell.talk(cell.server.slow(2 * SLOW_S), options=NEVER) as talk:
        talk.until(cell.has_a_task)
        talk.kill_bridge()
        [seen] = talk.finish().seen
    assert is_error(seen)
    assert "rested" not in seen.text
    finds_the_call(cell)


@at_each_generation
def test_a_host_that_is_killed_takes_its_bridge_along_and_loses_nothing(cell: Cell) -> None:
    with cell.talk(cell.server.slow(2 * SLOW_S), options=NEVER) as talk:
        talk.until(cell.has_a_task)
        bridges = talk.bridges()
        assert bridges
        talk.kill()
        _, alive = psutil.wait_procs(bridges, LEAVES_S)
        assert not alive
    finds_the_call(cell)


def test_a_call_that_ends_with_its_bridge_is_told_as_that_and_the_next_one_runs(cell: Cell) -> None:
    if cell.server.keeps_calls:
        pytest.skip("its calls go on when the bridge has ended")
    slow = cell.server.slow(SLOW_S, until="rested")
    with cell.talk(replace(slow, until=""), options=NEVER) as talk:
        talk.until(cell.has_begun)
        talk.kill_bridge()
        [seen] = talk.finish().seen
    assert is_error(seen)
    *told, seen = cell.played(slow, options=NEVER)
    assert ["died with the server's process" in one.text for one in told] == [True] * cell.server.makes_tasks
    assert "rested" in seen.text
    assert cell.calls == 2


def test_a_command_that_ends_is_started_again_for_the_next_call(cell: Cell) -> None:
    if not cell.server.is_command:
        pytest.skip("it is no command")
    with cell.talk(cell.server.slow(SLOW_S), cell.server.turn("plain"), options=NEVER) as talk:
        talk.until(cell.has_begun)
        talk.kill_server()
        lost, seen = talk.finish().seen
    assert "died with the server's process" in lost.text
    assert is_error(lost)
    assert cell.server.tools.plain_text in seen.text
    assert cell.calls == 2


def skip_if_the_call_ends_with_its_turn(cell: Cell) -> None:
    if cell.host.has_a_bridge_a_turn and not cell.server.keeps_calls:
        pytest.skip("each of its turns has a bridge of its own, with which the call ends")


def finds_the_call(cell: Cell) -> None:
    """See that the next host, on the same journal, gets the result of the only call."""
    listed, *others = cell.played(Turn("task_list"), follow("rested"), options=SOON)
    assert len(references([listed.text])) == 1
    assert "rested" in others[-1].text
    assert cell.calls == 1
