"""Programs that are forked run as those that Python starts."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from ._forked import ADDRESS, ROOT, Program, make_command
from ._legacy_installs import python_with_legacy_sdk
from .legacy_servers import installed

LIMIT_S = 60.0

TELLS = """
import json, os, sys
print(json.dumps([__name__, sys.argv[1:], os.getcwd(), os.environ["TOLD"], sys.stdin.read()]))
"""


@pytest.mark.parametrize("how", ["source", "module", "script"])
def test_a_program_has_its_arguments_folder_environment_and_input(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLD", "once")
    script = tmp_path / "tells.py"
    script.write_text(TELLS)
    command = {"source": ["-c", TELLS], "module": ["-m", __name__], "script": [script]}[how]
    with Program(*command, "one", 2, cwd=tmp_path, text=True) as program:
        program.stdin.write("given")
        program.stdin.close()
        told = json.loads(program.stdout.read())
    assert program.returncode == 0
    assert told == ["__main__", ["one", "2"], str(tmp_path), "once", "given"]


def test_a_program_of_another_interpreter_has_what_is_installed_there(tmp_path: Path) -> None:
    python = installed(python_with_legacy_sdk)
    script = tmp_path / "tells.py"
    script.write_text("import sys, importlib.metadata as m; print(sys.executable, m.version('mcp'))")
    for interpreter, at_least, below in ((python, "1.", "2."), (Path(sys.executable), "2.", "3.")):
        with Program(script, interpreter=interpreter, text=True) as program:
            executable, version = program.stdout.read().split()
        assert executable == str(interpreter)
        assert at_least <= version < below


def test_a_command_that_others_start_has_its_streams_and_ends_as_the_program_does() -> None:
    source = """
import io, sys
out = io.TextIOWrapper(sys.stdout.buffer)  # as the SDK's server over stdio does
print(sys.argv, file=out, flush=True)
sys.stderr.write(input()[::-1])
sys.exit(3)
"""
    done = subprocess.run(
        make_command("-c", source, "one", "two"), input="given\n", capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("['-c', 'one', 'two']\n", "nevig", 3)


def test_a_program_ends_with_the_command_that_others_started() -> None:
    source = "import os; print(os.getpid(), flush=True); input()"
    with subprocess.Popen(
        make_command("-c", source), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert pid != process.pid
        process.kill()
    until_ended(pid)


def test_whoever_is_killed_while_it_orders_costs_the_others_nothing() -> None:
    for said in (b"", b"\0\0"):
        with Program("-c", "print('ready')") as program, socket.socket(socket.AF_UNIX) as line:
            assert program.stdout.read() == b"ready\n"
            line.connect(os.environ[ADDRESS])
            line.sendall(said)


def test_the_end_of_a_program_is_told_as_subprocess_does() -> None:
    with Program("-c", "import atexit; atexit.register(print, 'last'); raise SystemExit(3)") as ended:
        assert ended.stdout.read() == b"last\n"
    assert ended.returncode == 3
    with Program("-c", "print('ready', flush=True); input()") as killed:
        assert killed.stdout.readline() == b"ready\n"
        assert killed.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            killed.wait(0.01)
        killed.kill()
        assert killed.wait(LIMIT_S) == -signal.SIGKILL


def test_a_program_that_has_ended_in_that_instant_is_killed_without_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Program("-c", "pass") as ended:
        assert ended.wait(LIMIT_S) == 0
        monkeypatch.setattr(ended, "poll", lambda: None)  # as before its end was told
        ended.kill()


def test_the_end_of_a_program_is_told_beside_a_thousand_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1200
    if hard < wanted:
        pytest.skip(f"a process may open {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        with ExitStack() as opened:
            for _ in range(1024):
                opened.enter_context(Path(os.devnull).open())
            with Program("-c", "raise SystemExit(3)") as program:
                assert program.wait(LIMIT_S) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_program_ends_with_an_error_of_the_block_that_it_runs_in() -> None:
    with pytest.raises(KeyError), Program("-c", "import time; time.sleep(30)") as program:
        raise KeyError
    assert program.returncode == -signal.SIGKILL


@pytest.mark.parametrize("shares", [True, False], ids=["all are forked from one", "it forks from its own"])
def test_a_program_ends_with_the_process_that_started_it(
    shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shares:
        monkeypatch.delenv(ADDRESS, raising=False)
    starts = """
from tests._forked import Program
program = Program("-c", "import time; time.sleep(600)")
print(program.pid, flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", starts], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert psutil.pid_exists(pid)
        process.kill()
    until_ended(pid)


def until_ended(pid: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


if __name__ == "__main__":
    exec(TELLS)
