"""Every branch of the pure rooms is taken by their own tests, by examples and not by chance.

Other tests drive these rooms as well, which would hide a branch that no example is about; hence a
run of its own. For the same reason the random histories of ``machine/test_histories.py`` and whatever
hypothesis makes up are left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TESTS = (
    "test_errors.py",
    "test_forms.py",
    "protocol",
    "machine/test_record.py",
    "machine/test_replacing.py",
    "machine/test_task.py",
    "machine/test_policy.py",
    "machine/test_running_time.py",
    "test_estimate.py",
)


def run(*args: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *args],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{args} failed:\n{done.stdout}\n{done.stderr}"


def test_the_tests_of_the_pure_rooms_take_every_branch_of_them(tmp_path: Path) -> None:
    data, report = f"--data-file={tmp_path / 'data'}", tmp_path / "report.json"
    library = HERE.parent / "mcp_tasks_client"
    rooms = [library / f"{name}.py" for name in ("errors", "estimate", "forms", "policy")]
    rooms += library.glob("protocol/*.py")
    rooms += library.glob("machine/*.py")
    include = ",".join(map(str, rooms))
    files = [str(HERE / name) for name in TESTS]
    run(
        "coverage",
        "run",
        "--branch",
        data,
        f"--include={include}",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--numprocesses=0",  # what is measured runs in this process
        "-m",
        "not hypothesis",
        *files,
    )
    run("coverage", "json", data, "-o", str(report))

    measured = json.loads(report.read_text(encoding="utf-8"))["files"]
    assert {Path(name).name for name in measured} == {room.name for room in rooms}
    untaken = {
        Path(name).name: (room["missing_lines"], room["missing_branches"])
        for name, room in measured.items()
        if room["missing_lines"] or room["missing_branches"]
    }
    assert not untaken, "lines and branches that no example takes"
