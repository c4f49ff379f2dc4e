"""Ctrl-C and SIGTERM let a task go, SIGKILL loses nothing, and an outcome that cannot be written stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from mcp_tasks_client import SqliteJournal, TaskRecord
from mcp_tasks_client.cli.exits import Exit
from mcp_tasks_client.machine.states import Completed
from mcp_tasks_client.testing.samples import finished, record
from tests.cli.test_drive import end, running
from tests.cli.test_exits import world
from tests.kit.command import Command
from tests.kit.current_server import WORKING, Fault
from tests.kit.terminal import COMMAND, in_terminal, run_command, surroundings
from tests.real_server import RealServer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tests have a terminal on POSIX alone")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.mark.parametrize("has_key", [False, True])
def test_ctrl_c_lets_the_task_run_on_and_names_the_line_that_goes_on(
    real_server: RealServer, journal: Path, has_key: bool
) -> None:
    since = real_server.mark()
    key = ["--key", "k"] if has_key else []
    with in_terminal(journal, "call", real_server.url, "slow", "seconds=8", *key) as terminal:
        terminal.wait_until(lambda: bool(real_server.witness(method="tasks/get", since=since)))
        terminal.interrupt()
        assert terminal.wait() == Exit.INTERRUPTED
        assert terminal.echoes
        terminal.see("Let go. The task runs on.", "The server keeps it until", "mcp-tasks wait ")
        line = terminal.text.rpartition("mcp-tasks wait ")[2].split()[0]
    assert run_command(journal, "wait", line).out == "rested\n"
    assert not real_server.witness(method="tasks/cancel", since=since)
    assert len(real_server.witness(method="tools/call", since=since)) == 1


def test_ctrl_c_twice_ends_the_program_and_cancels_nothing(real_server: RealServer, journal: Path) -> None:
    since = real_server.mark()
    with in_terminal(journal, "call", real_server.url, "slow", "seconds=8") as terminal:
        terminal.wait_until(lambda: bool(real_server.witness(method="tasks/get", since=since)))
        terminal.interrupt()
        terminal.interrupt()
        assert terminal.wait() in (Exit.INTERRUPTED, -signal.SIGINT)
        assert terminal.echoes
    (seen,) = run_command(journal, "ls", "--json").document
    assert run_command(journal, "wait", seen["record"]).code == 0
    assert not real_server.witness(method="tasks/cancel", since=since)


@pytest.mark.parametrize("has_key", [False, True])
def test_ctrl_c_before_there_is_a_task_says_that_the_tool_may_have_run(
    real_server: RealServer, journal: Path, has_key: bool
) -> None:
    token, since = uuid4().hex, real_server.mark()
    line = [
        "call",
        real_server.url,
        "nap",
        f"token={token}",
        "seconds=20",
        *(["--key", "k"] if has_key else []),
    ]
    with in_terminal(journal, *line) as terminal:
        terminal.wait_until(lambda: bool(real_server.witness(method="tools/call", since=since)))
        terminal.interrupt()
        assert terminal.wait() == Exit.INTERRUPTED
        terminal.see("The tool may have run.")
        assert ("The same line, run again" in terminal.text) == has_key
    if has_key:
        again = run_command(journal, *line)
        assert again.code == Exit.OUTCOME_UNKNOWN
        assert len(real_server.witness(method="tools/call", since=since)) == 1


def test_a_task_is_cancelled_by_ctrl_c_only_where_the_line_says_so(
    real_server: RealServer, journal: Path
) -> None:
    since = real_server.mark()
    line = ["call", real_server.url, "cancelable", "--cancel-on-interrupt"]
    with in_terminal(journal, *line) as terminal:
        terminal.wait_until(lambda: bool(real_server.witness(method="tasks/get", since=since)))
        terminal.interrupt()
        assert terminal.wait() == Exit.INTERRUPTED
        terminal.see("The server was asked to cancel the task.", "mcp-tasks wait ")
        name = terminal.text.rpartition("mcp-tasks wait ")[2].split()[0]
    assert real_server.witness(method="tasks/cancel", since=since)
    assert run_command(journal, "wait", name).code == Exit.CANCELLED


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_that_cannot_be_told_of_ctrl_c_leaves_the_wish_in_the_journal(tmp_path: Path) -> None:
    async with world(tmp_path, gets=[WORKING]) as here:
        here.server.replies["tasks/cancel"] = Fault(-32000, "not now")
        with running(here.journal, "call", here.url, "tool", "--cancel-on-interrupt") as process:
            await here.server.wait_for("tasks/get", 1)
            code, err = await end(process, signal.SIGINT)
    assert (code, "The server was asked" in err) == (Exit.INTERRUPTED, False)
    assert "The wish is in the journal, and goes with the next poll:" in err
    assert "Let go. The task runs on." in err


def test_a_wait_that_is_let_go_names_the_calls_that_have_not_ended(
    real_server: RealServer, journal: Path
) -> None:
    def begin(seconds: int) -> str:
        line = ("call", real_server.url, "slow", f"seconds={seconds}", "--detach", "--json")
        return str(run_command(journal, *line).document["record"])

    short, long = begin(1), begin(300)
    with in_terminal(journal, "wait", short, long) as terminal:
        terminal.wait_until(
            lambda: run_command(journal, "show", short, "--json").document["state"] == "completed"
        )
        terminal.interrupt()
        assert terminal.wait() == Exit.INTERRUPTED
        terminal.see("Let go. The task runs on.", f"mcp-tasks wait {long[:8]}")
        assert f"mcp-tasks wait {short[:8]}" not in terminal.text
    run_command(journal, "cancel", long)


def test_sigterm_lets_the_task_run_on_as_well(real_server: RealServer, journal: Path) -> None:
    since = real_server.mark()
    with in_terminal(journal, "call", real_server.url, "slow", "seconds=20") as terminal:
        terminal.wait_until(lambda: bool(real_server.witness(method="tasks/get", since=since)))
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.wait() == Exit.TERMINATED
        terminal.see("Let go. The task runs on.", "mcp-tasks wait ")


@pytest.mark.parametrize("at", ["tools/call", "tasks/get"])
def test_a_line_with_a_key_that_was_killed_is_safe_to_run_again(
    real_server: RealServer, journal: Path, at: str
) -> None:
    token, since = uuid4().hex, real_server.mark()
    line = ["call", real_server.url, "count", f"token={token}", "seconds=6", "--key", "nightly"]
    with in_terminal(journal, *line) as terminal:
        terminal.wait_until(lambda: bool(real_server.witness(method=at, since=since)))
        if at == "tools/call":  # its reply is on its way: the task is journaled before anything else is done
            terminal.wait_until(lambda: bool(real_server.witness(method="tasks/get", since=since)))
        terminal.kill()
        assert terminal.wait() == -signal.SIGKILL
    for _ in range(2):
        again = run_command(journal, *line)
        assert (again.code, again.out) == (0, "1\n")
    assert len(real_server.witness(method="tools/call", since=since)) == 1


def buffered(journal: Path) -> dict[str, str]:
    """The environment, in which a stream keeps the text that it cannot write."""
    return {name: value for name, value in surroundings(journal).items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize("closed", ["stdout", "full", "stderr"])
def test_an_outcome_that_cannot_be_written_stays(real_server: RealServer, journal: Path, closed: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    tool = ["fail_tool"] if closed == "stderr" else ["fast"]
    try:
        ran = subprocess.run(
            [*COMMAND, "call", real_server.url, *tool],
            stdout={"stdout": writer, "full": full}.get(closed, subprocess.DEVNULL),
            stderr=writer if closed == "stderr" else subprocess.PIPE,
            env=buffered(journal),
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
        os.close(full)
    assert ran.returncode == Exit.UNEXPECTED
    assert b"Traceback" not in (ran.stderr or b"")
    (seen,) = run_command(journal, "ls", "--json").document
    assert seen["state"] == "completed"
    assert seen["delivered_at"] is None
    assert run_command(journal, "wait", seen["record"]).code == (
        Exit.TOOL_FAILED if closed == "stderr" else 0
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_outcome_whose_reader_leaves_in_the_middle_stays(over_file: Command, unbuffered: str) -> None:
    """A pipe takes the beginning of the text, and the disk of a file may, without an error."""
    over_file.write(ended_with("x" * 3_000_000))
    with subprocess.Popen(
        [*COMMAND, "wait", "ended"],
        stdout=subprocess.PIPE,
        env=surroundings(over_file.journal, **over_file.variables, PYTHONUNBUFFERED=unbuffered),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(10) == b"xxxxxxxxxx"
        process.stdout.close()
        assert process.wait(60) == Exit.UNEXPECTED
    (seen,) = over_file("ls", "--json").document
    assert seen["delivered_at"] is None


def test_a_result_is_written_to_its_end(over_file: Command) -> None:
    text = "\t" + "x" * 3_000_000
    over_file.write(ended_with(text))
    ran = over_file("wait", "ended")
    assert (ran.code, ran.out) == (0, text.expandtabs(4) + "\n")


def ended_with(text: str) -> TaskRecord:
    """A call of the command's own, whose result nobody has received."""
    result = {"content": [{"type": "text", "text": text}]}
    return record(record_id="ended", application="mcp-tasks", state=finished(Completed(result=result)))


@pytest.mark.parametrize("tool", ["fast", "fail_tool"])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_from_the_beginning(
    real_server: RealServer, journal: Path, closed: str, tool: str
) -> None:
    ran = run_under(f'"$@" {closed}', journal, "call", real_server.url, tool)
    assert "Traceback" not in ran.stdout + ran.stderr
    has_end, has_words = tool == "fast", Exit.RESULT if tool == "fast" else Exit.TOOL_FAILED
    is_received = ">&-" not in closed.split()
    assert ran.returncode == (has_words if is_received else Exit.UNEXPECTED)
    assert not has_end or (ran.stdout == "") == (not is_received)
    left = run_command(journal, "ls", "--json").document
    assert [(one["state"], one["delivered_at"]) for one in left] == (
        [] if is_received else [("completed", None)]
    )


@pytest.mark.parametrize("closed", ["<&-", "2>&-"])
def test_a_question_is_not_asked_where_a_stream_is_closed(
    real_server: RealServer, journal: Path, closed: str
) -> None:
    ran = run_under(f'"$@" {closed}', journal, "call", real_server.url, "ask_name")
    assert ran.returncode == Exit.QUESTION_WAITS
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("line", [("--help",), ("--version",), ("ls", "--help"), ("ls", "--all", "--json")])
@pytest.mark.parametrize("full", [">/dev/full", ">&-"])
def test_what_cannot_be_written_is_an_error(journal: Path, line: tuple[str, ...], full: str) -> None:
    make_journal(journal)
    ran = run_under(f'"$@" {full}', journal, *line)
    assert ran.returncode == Exit.UNEXPECTED
    assert "The output could not be written" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_an_error_has_its_code_without_a_word(journal: Path, closed: str) -> None:
    assert run_under(f'"$@" {closed}', journal, "nonsense").returncode == Exit.USAGE
    assert run_under(f'"$@" {closed}', journal, "show", "abc").returncode == Exit.JOURNAL_UNUSABLE


def run_under(line: str, journal: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as ``"$@"`` of a line of the shell."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *COMMAND, *arguments],
        env=buffered(journal),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def make_journal(journal: Path) -> None:
    async def make() -> None:
        async with SqliteJournal(journal):
            pass

    anyio.run(make)


def test_a_list_whose_reader_has_gone_ends_without_a_word(real_server: RealServer, journal: Path) -> None:
    run_command(journal, "call", real_server.url, "fast", "--key", "k")
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [*COMMAND, "ls", "--all"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=surroundings(journal),
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert ran.returncode == Exit.UNEXPECTED
    assert ran.stderr == b""


def test_the_record_says_that_the_command_made_the_call(real_server: RealServer, journal: Path) -> None:
    run_command(journal, "call", real_server.url, "fast", "--key", "k", "--label", "Nightly")
    (seen,) = run_command(journal, "ls", "--all", "--json").document
    assert seen["origin"]["program"] == "mcp-tasks"
    assert (seen["application"], seen["label"], seen["key"]) == ("mcp-tasks", "Nightly", "k")


def test_a_message_breaks_between_words_in_a_narrow_terminal(real_server: RealServer, journal: Path) -> None:
    run_command(journal, "call", real_server.url, "fast", "--key", "k")
    with in_terminal(journal, "show", "nosuch", columns=33) as terminal:
        assert terminal.wait() == Exit.GONE
        said = " ".join(terminal.text.split("\n"))
    assert "is forgotten once its program has received the outcome." in said


def test_the_help_names_each_exit_code(journal: Path) -> None:
    said = " ".join(run_command(journal, "--help").out.split())
    for code in Exit:
        assert f"{code.value} {code.name.lower().replace('_', ' ')}" in said
