"""Programs that are forked run as those that Python starts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ._forked import ADDRESS, ROOT, Program

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
        assert killed.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("shares", [True, False], ids=["all are forked from one", "it forks from its own"])
def test_a_program_ends_with_the_process_that_started_it(
    shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shares:
        monkeypatch.delenv(ADDRESS, raising=False)
    starts = """
from tests._forked import Program
program = Program("-c", "import time; time.sleep(60)")
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
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


if __name__ == "__main__":
    exec(TELLS)
