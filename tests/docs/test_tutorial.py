"""The tutorial, followed as a reader follows it: its programs saved, started, killed, and started again."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from mcp_tasks_client import BlockingInbox

from .browser import wait_for
from .pages import PORT, TUTORIAL, programs
from .server import running

LIMIT_S: Final = 120.0


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The reader's folder, with every program saved; the server runs.

    It takes seconds for each step of its work. In a step programs are killed.
    """
    with running(tmp_path_factory.mktemp("server"), {"STEP_S = 10 ": "STEP_S = 2 "}) as at:
        for name, source in programs().items():
            if name != "server.py":
                assert PORT in source or name == "answer.py"
                (tmp_path / name).write_text(source.replace(PORT, at), encoding="utf-8")
        yield tmp_path


def run(folder: Path, program: str, typed: str = "") -> str:
    """What a program prints."""
    done = subprocess.run(
        [sys.executable, program], cwd=folder, input=typed, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running_until(line: str, folder: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has printed a line."""
    command = [sys.executable, "-u", program]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ends_at = time.monotonic() + LIMIT_S
            for printed in process.stdout:
                assert time.monotonic() < ends_at
                if printed.startswith(line):
                    break
            yield process
        finally:
            process.kill()


def kill_at_work(folder: Path, program: str, at: str = "working building") -> None:
    """Start a program, and kill it once it shows that its task is at work."""
    with running_until(at, folder, program) as process:
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_the_tutorial_goes_as_it_says(folder: Path) -> None:
    assert list(programs()) == [
        *("lost.py", "kept.py", "server.py", "look.py", "second.py"),
        *("first.py", "later.py", "answer.py", "keyed.py"),
    ]
    told = re.findall(r"```text\n(.*?)\n```", TUTORIAL.read_text(encoding="utf-8"), flags=re.DOTALL)
    look, built, first, second, later, keyed = told
    assert run(folder, "lost.py").endswith(f"{built}\n")
    kill_at_work(folder, "lost.py", "To kill")
    assert run(folder, "look.py") == "", "nothing names the task"
    with (
        BlockingInbox(folder / "tasks.sqlite3") as inbox,
        running_until("To kill", folder, "kept.py") as kept,
    ):
        wait_for(inbox.records)
        kept.kill()
    assert run(folder, "look.py") == f"{look}\n"
    assert run(folder, "second.py") == f"{built}\n"
    assert run(folder, "look.py") == ""
    assert run(folder, "first.py", "1.2\n").endswith(f"{first}\n")
    kill_at_work(folder, "first.py")
    assert run(folder, "second.py", "1.3\n").endswith(f"{second}\n")
    assert run(folder, "look.py") == ""
    with running_until("input_required", folder, "later.py") as caller:
        run(folder, "answer.py", "1.4\n")
        assert caller.communicate(timeout=LIMIT_S)[0].endswith(f"{later}\n")
    with running_until("input_required", folder, "later.py") as caller:
        caller.kill()
        run(folder, "answer.py", "1.4\n")
    assert run(folder, "second.py") == f"{later}\n"
    assert [run(folder, "keyed.py") for _ in range(2)] == [f"{keyed}\n"] * 2
