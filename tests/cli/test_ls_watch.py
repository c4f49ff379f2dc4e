"""``ls --watch``: the list goes on, in a terminal, as JSON and as lines, until nobody reads on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import BlockingInbox, BlockingTasksClient, SqliteJournal
from mcp_tasks_client.cli.exits import Exit
from tests.kit.current_server import LIMIT_S
from tests.kit.terminal import COMMAND, in_terminal, run_command, surroundings
from tests.real_server import RealServer, first_line

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tests have a terminal on POSIX alone")

YES = ElicitResult(action="accept", content={"name": "Ada"})


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.fixture
def agent(real_server: RealServer, journal: Path) -> Iterator[BlockingTasksClient]:
    """Another program, whose calls are watched."""
    with BlockingTasksClient(
        real_server.url, journal=SqliteJournal(journal), application="agent", elicitation="later"
    ) as client:
        yield client


class Watching:
    """``ls --watch`` whose output is read through a pipe."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def line(self) -> str:
        """The next line."""
        assert self.process.stdout is not None
        line = first_line(self.process.stdout, 2 * LIMIT_S)
        assert line, "no line came"
        return line.rstrip("\n") if isinstance(line, str) else line.decode().rstrip("\n")

    def document(self) -> dict[str, Any]:
        """The next line, which is a JSON object."""
        document: dict[str, Any] = json.loads(self.line())
        return document

    def interrupt(self) -> int:
        """Send SIGINT. Returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(LIMIT_S)


@contextmanager
def watching(journal: Path, *options: str) -> Iterator[Watching]:
    process = subprocess.Popen(
        [*COMMAND, "ls", "--watch", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=surroundings(journal),
    )
    try:
        yield Watching(process)
    finally:
        process.kill()
        process.communicate()


def test_each_change_of_a_call_is_an_object_as_ls_has_it(agent: BlockingTasksClient, journal: Path) -> None:
    handle = agent.start_tool("ask_name", idempotency_key="k")
    with BlockingInbox(SqliteJournal(journal)) as inbox:
        question = next(inbox.asked())
    (listed,) = run_command(journal, "ls", "--json").document
    with watching(journal, "--json") as watch:
        first = watch.document()
        assert first == listed
        assert first["state"] == "input_required"
        assert [one["question"] for one in first["questions"]] == [question.question_id]
        agent.answer(question.question_id, YES)
        states = [first["state"]]
        while "completed" not in states:
            seen = watch.document()
            assert (seen.keys(), seen["record"]) == (first.keys(), first["record"])
            states.append(seen["state"])
        handle.result()
        last = watch.document()
        assert (last["state"], last["delivered_at"] is not None) == ("completed", True)
        assert watch.interrupt() == Exit.INTERRUPTED
        assert watch.process.stdout is not None
        assert watch.process.stdout.read() == b"", "it has left the list"
        assert watch.process.stderr is not None
        assert watch.process.stderr.read() == b""


def test_a_call_that_the_journal_forgets_has_a_last_object(agent: BlockingTasksClient, journal: Path) -> None:
    handle = agent.start_tool("slow", {"seconds": 1.0})
    with watching(journal, "--json") as watch:
        first = watch.document()
        handle.result()
        seen = watch.document()
        if seen["state"] == "completed":  # seen between its end and its delivery
            seen = watch.document()
        assert seen["state"] == "forgotten"
        assert (seen.keys(), seen["record"]) == (first.keys(), first["record"])
        later = agent.start_tool("cancelable", label="Later")
        assert watch.document()["record"] == later.reference["record_id"]


def test_a_call_that_fits_the_filters_no_longer_is_told_of_once_more(
    agent: BlockingTasksClient, journal: Path
) -> None:
    handle = agent.start_tool("cancelable")
    agent.start_tool("slow", {"seconds": 60.0})
    with watching(journal, "--json", "--state", "working", "--tool", "cancelable") as watch:
        assert watch.document()["state"] == "working"
        handle.cancel()
        while (seen := watch.document())["state"] == "working":
            pass  # something else of it has changed
        assert seen["state"] == "cancelled"
        assert watch.interrupt() == Exit.INTERRUPTED


def test_without_a_terminal_each_change_is_a_line(agent: BlockingTasksClient, journal: Path) -> None:
    agent.start_tool("cancelable", label="Nightly")
    with watching(journal) as watch:
        name, said = watch.line().split("  ", 1)
        assert len(name) == 8
        assert said.startswith("cancelable: Nightly  working  ")
        agent.start_tool("ask_name")
        assert "  ask_name  " in watch.line()
        assert watch.interrupt() == Exit.INTERRUPTED


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["lines", "json"])
def test_it_ends_by_itself_once_its_reader_has_gone(
    agent: BlockingTasksClient, journal: Path, options: tuple[str, ...]
) -> None:
    agent.start_tool("cancelable")
    with watching(journal, *options) as watch:
        assert watch.line()
        assert watch.process.stdout is not None
        watch.process.stdout.close()
        watch.process.wait(LIMIT_S)
        assert watch.process.stderr is not None
        assert watch.process.stderr.read() == b"", "as with | head: nothing is wrong"


def test_a_terminal_has_the_table_which_stays_after_ctrl_c(agent: BlockingTasksClient, journal: Path) -> None:
    handle = agent.start_tool("cancelable", label="[red]Nightly[/red] \x1b[2J")
    with in_terminal(journal, "ls", "--watch") as terminal:
        terminal.see("ID", "STATE", "working", "cancelable: [red]Nightly[/red] [2J")
        asking = agent.start_tool("ask_name").reference["record_id"]
        terminal.see(asking[:8], "input_required", "ask_name", "waits for")
        handle.cancel()
        terminal.see("cancelled", "not received")
        terminal.interrupt()
        assert terminal.wait() == Exit.INTERRUPTED
        assert terminal.echoes
        assert terminal.text.count("STATE") == 1, "one table, drawn anew in its place"
        assert asking[:8] in terminal.text
        assert "Traceback" not in terminal.text
        assert b"\x1b[?1049h" not in terminal.raw


def test_a_table_is_no_higher_than_the_screen(agent: BlockingTasksClient, journal: Path) -> None:
    for number in range(9):
        agent.start_tool("cancelable", label=f"number {number}")
    with in_terminal(journal, "ls", "--watch", "--limit", "8", lines=9) as terminal:
        terminal.see("STATE", "number 4", "number 8", "… and 3 more, which are older")
        agent.start_tool("cancelable", label="number 9")
        terminal.see("STATE", "number 5", "number 9", "… and 3 more, which are older")
        assert terminal.text.count("STATE") == 1, "nothing has left the screen"
        terminal.interrupt()
        terminal.wait()


def test_a_list_without_calls_says_so_and_goes_on(agent: BlockingTasksClient, journal: Path) -> None:
    with in_terminal(journal, "ls", "--watch") as terminal:
        terminal.see("No call is open.")
        agent.start_tool("cancelable")
        terminal.see("working", "cancelable")
        terminal.interrupt()
        assert terminal.wait() == Exit.INTERRUPTED


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "TERM"])
def test_nothing_moves_in_a_terminal_that_is_to_keep_still(
    agent: BlockingTasksClient, journal: Path, variable: dict[str, str]
) -> None:
    agent.start_tool("cancelable")
    with in_terminal(journal, "ls", "--watch", more=variable) as terminal:
        terminal.see("cancelable  working")
        agent.start_tool("ask_name")
        terminal.see("cancelable  working", "ask_name  ")
        assert b"\x1b" not in terminal.raw
        terminal.interrupt()
        assert terminal.wait() == Exit.INTERRUPTED
