"""What ``call`` and ``wait`` show while a task runs: in a terminal beside a form, and where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_tasks_client import BlockingTasksClient, SqliteJournal
from mcp_tasks_client.cli.exits import Exit
from tests.kit.current_server import LIMIT_S
from tests.kit.terminal import COMMAND, in_terminal, run_command, surroundings
from tests.real_server import RealServer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tests have a terminal on POSIX alone")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.mark.parametrize("stdout", ["terminal", "file"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_terminal_shows_how_a_call_gets_on_and_nothing_of_it_stays(
    real_server: RealServer, journal: Path, tmp_path: Path, stdout: str, as_json: bool
) -> None:
    line = [
        "call",
        real_server.url,
        "slow",
        "seconds=6",
        "--label",
        "Nightly",
        *(["--json"] if as_json else []),
    ]
    out = tmp_path / "out"
    with out.open("wb") as file:
        target = file.fileno() if stdout == "file" else None
        with in_terminal(journal, *line, stdout=target) as terminal:
            terminal.see("slow: Nightly  working  ", "step ", " of 4")
            assert terminal.wait() == 0
            shown = terminal.text
    written = out.read_text() if stdout == "file" else shown
    assert "step" not in shown + written
    assert ("rested" in written) if as_json else written.strip() == "rested"
    assert stdout == "terminal" or shown == ""


def test_a_call_that_the_server_has_not_answered_is_shown_as_well(
    real_server: RealServer, journal: Path
) -> None:
    with in_terminal(journal, "call", real_server.url, "nap", "token=t", "seconds=3") as terminal:
        terminal.see("nap  calling  ")
        assert terminal.wait() == 0
        assert terminal.text == "rested"


def test_a_form_has_the_terminal_to_itself(real_server: RealServer, journal: Path) -> None:
    line = ["call", real_server.url, "ask_name", "seconds=8"]
    with in_terminal(journal, *line, lines=40) as terminal:
        terminal.see("ask_name  working  ", "thinking of a question")
        terminal.see("What is your name?")
        terminal.wait_until(lambda: "working" not in terminal.text)
        terminal.type("Ada\r")
        terminal.see("Review.", "s: send")
        assert "input_required" not in terminal.text
        terminal.type("s")
        terminal.see("ask_name  working  ", "greeting")
        assert terminal.wait() == 0
        assert "greeting" not in terminal.text
        assert terminal.text.endswith("Hello, Ada")


def test_wait_shows_calls_that_another_program_drives(real_server: RealServer, journal: Path) -> None:
    with BlockingTasksClient(
        real_server.url, journal=SqliteJournal(journal), application="agent", elicitation="later"
    ) as agent:
        handles = [agent.start_tool("slow", {"seconds": 6.0}), agent.start_tool("ask_name")]
        names = [one.reference["record_id"] for one in handles]
        with in_terminal(journal, "wait", *names, "--any", "--questions", "leave") as terminal:
            terminal.see("slow      working", "ask_name  input_required", "waits for an answer for")
            assert terminal.wait() == 0
            assert terminal.text == "rested"


@pytest.mark.parametrize("as_json", [False, True])
def test_without_a_terminal_a_long_call_has_a_line_unless_a_program_reads_stderr(
    real_server: RealServer, journal: Path, as_json: bool
) -> None:
    options = ["--json"] if as_json else []
    ran = run_command(journal, "call", real_server.url, "slow", "seconds=16", *options)
    assert ran.code == 0
    if as_json:
        assert ran.err == ""
    else:
        (told,) = ran.err.splitlines()
        assert told.startswith("slow  working  1")
        assert told.endswith(" of 4")
        assert ran.out == "rested\n"


def test_a_stderr_that_is_closed_costs_no_outcome(real_server: RealServer, journal: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [*COMMAND, "call", real_server.url, "slow", "seconds=12"],
        stdout=subprocess.PIPE,
        stderr=writer,
        env=surroundings(journal),
        timeout=2 * LIMIT_S,
        check=False,
    )
    os.close(writer)
    assert (ran.returncode, ran.stdout) == (Exit.RESULT, b"rested\n")
