"""Questions in a real terminal: each kind of field, two terminals, and programs that are killed."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks_client.cli.exits import Exit
from tests.kit.terminal import COMMAND, Terminal, in_terminal, run_command
from tests.real_server import RealServer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tests have a terminal on POSIX alone")

TALL = 60


@pytest.fixture(params=["sqlite", "postgres"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """A file, or the address of a database in which the schema of the test is."""
    if request.param == "sqlite":
        return tmp_path / "journal.sqlite3"
    dsn: str = request.getfixturevalue("postgres")
    return dsn


@pytest.fixture
def options(request: pytest.FixtureRequest, journal: Path | str) -> dict[str, str]:
    """The environment that names the schema of a database."""
    if isinstance(journal, Path):
        return {}
    return {"MCP_TASKS_SCHEMA": "cli_" + re.sub(r"\W", "_", request.node.name.lower())[:40]}


def fill(terminal: Terminal, *fields: Sequence[str]) -> None:
    """Type values into each field, of which the last one is taken."""
    for name, *values in fields:
        terminal.see(f"Field │ {name}")
        for value in values:
            terminal.type(value)


GOOD = (
    ("Your name", "Ann\r"),
    ("email", "ann@example.org\r"),
    ("born", "2001-02-03\r"),
    ("age", "25\r"),
    ("height", "\r"),
    ("news", "\r"),
    ("colour", "2\r"),
    ("size", "Large\r"),
    ("days", "mo, we\r"),
    ("note", "\r"),
)
CONTENT = {
    "age": 25,
    "born": "2001-02-03",
    "colour": "green",
    "days": ["mo", "we"],
    "email": "ann@example.org",
    "height": 1.75,
    "name": "Ann",
    "news": True,
    "size": "l",
}


def result_of(terminal: Terminal) -> dict[str, Any]:
    """The JSON that the tool answered, which stands in the last lines."""
    text = "".join(terminal.lines)
    found: dict[str, Any] = json.loads(text[text.rindex("{") : text.rindex("}") + 1])
    return found


def test_a_form_has_each_kind_of_field_and_is_reviewed_before_it_is_sent(
    real_server: RealServer, tmp_path: Path
) -> None:
    with in_terminal(
        tmp_path / "journal.sqlite3", "call", real_server.url, "register", lines=TALL
    ) as terminal:
        terminal.see("A server asks you something.", real_server.url, "register", "Who are you?")
        wrong = {
            "Your name": ["A\r", "nn\r"],
            "age": ["200\r", "\b\b\b25\r"],
            "colour": ["blue\r", "\b\b\b\b2\r"],
        }
        fill(terminal, *((name, *wrong.get(name, values)) for name, *values in GOOD))
        terminal.see("Review. Nothing has been sent.", "s: send")
        assert not real_server.witness(method="tasks/update", since=real_server.mark())
        terminal.type("c")
        terminal.see("Which one, 1 to 10?")
        terminal.type("4\r")
        terminal.see("4 of 10 > 25")
        terminal.type("\b6\r")
        terminal.see("Review.", "Review.", "s: send")
        terminal.type("s")
        assert terminal.wait() == 0
        assert result_of(terminal) == {"action": "accept", **CONTENT, "age": 26}
        assert terminal.echoes


def test_keys_pressed_before_the_question_is_shown_answer_nothing(
    real_server: RealServer, tmp_path: Path
) -> None:
    with in_terminal(
        tmp_path / "journal.sqlite3", "call", real_server.url, "register", lines=TALL
    ) as terminal:
        terminal.type("Typed ahead\rsecond\x1b[A")
        fill(terminal, *GOOD)
        terminal.see("Review. Nothing has been sent.", "s: send")
        terminal.type("s")
        assert terminal.wait() == 0
        assert result_of(terminal) == {"action": "accept", **CONTENT}


@pytest.mark.parametrize(("key", "action"), [("d", "decline"), ("x", "cancel")])
def test_declining_is_a_key_and_each_word_is_a_value(
    real_server: RealServer, tmp_path: Path, key: str, action: str
) -> None:
    with in_terminal(
        tmp_path / "journal.sqlite3", "call", real_server.url, "register", lines=TALL
    ) as terminal:
        terminal.see("Field │ Your name")
        terminal.type("decline\r")
        terminal.see("Field │ email")
        terminal.type("\x04")
        terminal.see("Review.", "decline", "c: go on")
        terminal.type(key)
        assert terminal.wait() == 0
        assert result_of(terminal) == {"action": action}


def test_a_second_terminal_answers_while_the_first_one_asks(
    real_server: RealServer, journal: Path | str, options: dict[str, str]
) -> None:
    since = real_server.mark()
    with in_terminal(journal, "call", real_server.url, "ask_name", lines=TALL, more=options) as terminal:
        terminal.see("Field │ name", "1 of 1 >")
        terminal.type("half a na")
        (asked,) = run_command(journal, "questions", "--json", **options).document
        answered = run_command(journal, "answer", asked["question"], "name=Bob", **options)
        assert answered.code == 0, answered
        terminal.see("This question waits for you no longer")
        assert terminal.wait() == 0
        assert terminal.text.endswith("Hello, Bob")
        assert terminal.echoes
    assert len(real_server.witness(method="tasks/update", since=since)) == 1
    late = run_command(journal, "answer", asked["question"], "name=Eve", **options)
    assert late.code == Exit.GONE


def test_a_question_of_a_program_that_was_killed_is_answered_from_another_terminal(
    real_server: RealServer, journal: Path | str, options: dict[str, str]
) -> None:
    since = real_server.mark()
    with in_terminal(journal, "call", real_server.url, "ask_name", lines=TALL, more=options) as terminal:
        terminal.see("Field │ name", "1 of 1 >")
        terminal.kill()
        terminal.wait()
    (seen,) = run_command(journal, "ls", "--json", **options).document
    assert (seen["state"], seen["driven"]) == ("input_required", False)
    with in_terminal(journal, "answer", seen["record"][:8], lines=TALL, more=options) as second:
        second.see("What is your name?", "Field │ name", "1 of 1 >")
        second.type("Cid\r")
        second.see("Review.", "s: send")
        second.type("s")
        assert second.wait() == 0
        second.see("mcp-tasks wait ")
    waited = run_command(journal, "wait", seen["record"], **options)
    assert (waited.code, waited.out) == (0, "Hello, Cid\n")
    assert len(real_server.witness(method="tools/call", since=since)) == 1
    assert len(real_server.witness(method="tasks/update", since=since)) == 1


def test_ctrl_c_in_a_form_leaves_the_question_open(real_server: RealServer, tmp_path: Path) -> None:
    journal, since = tmp_path / "journal.sqlite3", real_server.mark()
    with in_terminal(journal, "call", real_server.url, "ask_name", lines=TALL) as terminal:
        terminal.see("1 of 1 >")
        terminal.interrupt()
        assert terminal.wait() == Exit.INTERRUPTED
        assert terminal.echoes
        terminal.see("Let go. The task runs on.", "mcp-tasks wait ")
    assert not real_server.witness(method="tasks/update", since=since)
    assert len(run_command(journal, "questions", "--json").document) == 1


@pytest.mark.parametrize("way", ["signal", "timeout"])
def test_a_form_that_ends_with_its_program_does_not_say_that_its_question_was_answered(
    real_server: RealServer, tmp_path: Path, way: str
) -> None:
    journal, line = tmp_path / "journal.sqlite3", ["call", real_server.url, "ask_name"]
    options = ["--timeout", "12"] if way == "timeout" else []
    with in_terminal(journal, *line, *options, lines=TALL) as terminal:
        terminal.see("1 of 1 >")
        if way == "signal":
            os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.wait() == (Exit.TERMINATED if way == "signal" else Exit.TIMED_OUT)
        terminal.see("The task runs on.", "mcp-tasks wait ")
        assert ("no longer" in terminal.text) == (way == "timeout")
        assert ("waiting is over" in terminal.text.replace("\n", " ")) == (way == "timeout")


def test_arguments_from_a_pipe_and_a_question_that_nobody_sits_there_to_answer(
    real_server: RealServer, tmp_path: Path
) -> None:
    journal = tmp_path / "journal.sqlite3"
    ran = run_command(
        journal, "call", real_server.url, "deploy", "--input-json", "-", "--json", given='{"service": "web"}'
    )
    assert ran.code == Exit.QUESTION_WAITS
    assert ran.error["next"].startswith("mcp-tasks answer ")
    assert "Which version of web?" in ran.error["message"]
    question = ran.error["next"].split()[-1]
    assert run_command(journal, "answer", question, "version=1.2").code == 0
    waited = run_command(journal, "wait", ran.error["record"])
    assert waited.out == "web 1.2 is deployed\n"


def test_a_question_that_is_left_waits_for_another_terminal(real_server: RealServer, tmp_path: Path) -> None:
    journal = tmp_path / "journal.sqlite3"
    line = ["call", real_server.url, "ask_name", "--questions", "leave"]
    with in_terminal(journal, *line, lines=TALL) as terminal:
        terminal.wait_until(lambda: "question" in run_command(journal, "questions", "--json").out)
        assert run_command(journal, "answer", "", "name=Dee").code == Exit.GONE, (
            "no beginning names no question"
        )
        (asked,) = run_command(journal, "questions", "--json").document
        assert run_command(journal, "answer", asked["question"], "name=Dee").code == 0
        assert terminal.wait() == 0
        assert terminal.text.endswith("Hello, Dee")


def test_ctrl_z_stops_the_program_in_a_form_and_it_goes_on_where_it_was(
    real_server: RealServer, tmp_path: Path
) -> None:
    shell = ("bash", "--norc", "--noprofile", "-i")  # without one no process is stopped
    with in_terminal(tmp_path / "journal.sqlite3", lines=TALL, program=shell) as terminal:
        terminal.type(f"{shlex.join(COMMAND)} call {real_server.url} ask_name\r")
        terminal.see("1 of 1 >")
        terminal.type("Fa")
        terminal.see("1 of 1 > Fa")
        terminal.type("\x1a")
        terminal.see("Stopped")
        terminal.type("fg\r")
        terminal.see("Stopped", "1 of 1 > Fa")
        terminal.type("y\r")
        terminal.see("Review.", "Fay", "s: send")
        terminal.type("s")
        terminal.see("Hello, Fay")
