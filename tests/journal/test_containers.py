"""A journal whose file nobody names, in containers: no home folder, or one that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 54_321
"""A user ID that no user has."""

PROGRAM = f"""
import asyncio, os, sys
import platformdirs
from mcp_tasks_client import JournalError, TasksClient

async def main(journal=None):
    try:
        async with TasksClient("http://127.0.0.1:9/mcp", journal=journal):
            pass
    except JournalError as error:
        print(error)

asyncio.run(main(sys.argv[1]))  # imports what is imported on use, which nobody may be allowed to read
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
asyncio.run(main())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may write to. Those of pytest are below one that only root may enter."""
    with tempfile.TemporaryDirectory() as made:
        path = Path(made)
        path.chmod(0o777)
        yield path


@pytest.mark.skipif(
    sys.platform == "win32" or os.getuid() != 0, reason="only root can run a program as a user who is unknown"
)
@pytest.mark.parametrize("home", ["none", "empty", "missing", "read-only"])
def test_a_journal_that_has_no_place_is_an_error_that_says_how_to_give_it_one(
    home: str, folder: Path, tmp_path: Path
) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HOME", "XDG"))}
    match home:
        case "empty":
            environ["HOME"] = ""
        case "missing":
            environ["HOME"] = "/nonexistent"
        case "read-only":
            environ["HOME"] = "/"
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "journal.sqlite3")],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "journal=" in ran.stdout, ran.stdout
    assert list(folder.iterdir()) == []
