"""What each recipe must do, at a server of either generation: a cell of the table each."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tests._legacy_installs import python_with_legacy_sdk
from tests.legacy_servers import LegacyProgram
from tests.real_server import running_server

from .recipes import ROOT, Recipe

__all__ = ["CASES", "GENERATIONS", "CellServer", "Failed", "run_cell", "serving"]

CASES: Final = ("longer", "question", "kill")
GENERATIONS: Final = ("2026-07-28", "2025-11-25")
START_LIMIT_S: Final = 180.0
"""Importing a framework takes seconds, and far longer on a busy machine with cold caches."""

AFTER_KILL_S: Final = 4.0
"""How long the task of a killed recipe runs, so that the other process may find it unfinished."""

JOURNAL: Final = "agent.sqlite3"
"""The journal of each recipe, in the folder that it runs in."""

RESUME: Final = Path(__file__).with_name("resume.py")


class Failed(Exception):  # noqa: N818  # what a cell says, no error of ours
    """A cell failed; the text says why, with the end of the output."""


class Seen(Protocol):
    """A request, as far as both servers' witnesses tell of it."""

    @property
    def method(self) -> str | None: ...


class Witness(Protocol):
    """Both servers."""

    @property
    def url(self) -> str: ...

    def witness(self) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class CellServer:
    """A running server of one generation."""

    generation: str
    running: Witness

    def call(self, case: str, seconds: float) -> tuple[str, Mapping[str, Any]]:
        """The tool and the arguments of a case."""
        if case == "question":
            return "deploy", {"service": "web"}  # as at the tutorial's server
        if self.generation == GENERATIONS[0]:
            return "slow", {"seconds": seconds}
        return "slow", {"duration_ms": round(seconds * 1000), "hint_ms": 200}

    def methods(self) -> list[str]:
        """The methods that have arrived, oldest first."""
        return [seen.method for seen in self.running.witness() if seen.method is not None]


@contextmanager
def serving(generation: str, folder: Path) -> Iterator[CellServer]:
    """A server of its own.

    Raises:
        NotInstalled: The older one cannot be had.
    """
    log = folder / f"server-{generation}.txt"
    if generation == GENERATIONS[0]:
        with running_server(log) as newer:
            yield CellServer(generation, newer)
    else:
        script = ROOT / "tests" / "servers" / "legacy_python.py"
        with LegacyProgram("python", str(python_with_legacy_sdk()), script).listening(log) as older:
            yield CellServer(generation, older)


def run_cell(recipe: Recipe, python: Path, server: CellServer, case: str, folder: Path) -> str:
    """Run one, in a folder of its own. Returns what is worth telling of it.

    Raises:
        Failed: It did not do what it should.
    """
    before = len(server.methods())
    seconds = {"longer": float(recipe.longer_than_s), "question": 0.0, "kill": AFTER_KILL_S}[case]
    tool, arguments = server.call(case, seconds)
    command = [str(python), str(recipe.program), server.running.url, tool, json.dumps(arguments)]
    if case == "kill":
        killed_with_a_task(command, folder)
        said = output_of([str(python), str(RESUME), server.running.url, JOURNAL], folder, START_LIMIT_S)
        expected = "slow: rested"
    else:
        said = output_of(command, folder, START_LIMIT_S + seconds)
        expected = "web 1.2 is deployed" if case == "question" else "rested"
    told = said.strip().splitlines()
    if not told or told[-1] != expected:
        raise Failed(f"it should print {expected!r}:\n{end_of(said)}")
    methods = server.methods()[before:]
    if methods.count("tools/call") != 1:
        # The newer server asks in the task, so that its only tools/call is the host's.
        raise Failed(f"the server has seen tools/call {methods.count('tools/call')} times: {methods}")
    if not any(method.startswith("tasks/") for method in methods):
        raise Failed(f"the server was not asked for a task: {methods}")
    return f"{seconds:.0f} s" if case == "longer" else "yes"


def output_of(command: list[str], folder: Path, limit_s: float) -> str:
    """What a program prints that ends well."""
    with started(command, folder) as process:
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"no end within {limit_s:.0f} s:\n{printed(folder)}") from None
    if process.returncode != 0:
        raise Failed(f"it ended with {process.returncode}:\n{printed(folder)}")
    return (folder / "stdout.txt").read_text(errors="replace")


def killed_with_a_task(command: list[str], folder: Path) -> None:
    """Kill a recipe as soon as its journal has the ID of a task."""
    limit = time.monotonic() + START_LIMIT_S
    with started(command, folder) as process:
        while not has_a_task(folder):
            if process.poll() is not None:
                raise Failed(f"it ended before there was a task in the journal:\n{printed(folder)}")
            if time.monotonic() > limit:
                raise Failed(f"no task in the journal within {START_LIMIT_S:.0f} s:\n{printed(folder)}")
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode != -signal.SIGKILL:
        raise Failed(f"it was to be killed, and ended with {process.returncode}")


def has_a_task(folder: Path) -> bool:
    path = folder / JOURNAL
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT count(*) FROM records WHERE task_id IS NOT NULL")
            return bool(found.fetchone()[0])
    except sqlite3.OperationalError:  # it is not there, or is just being made
        return False


@contextmanager
def started(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs in a folder, and has its home there; killed if it has not ended."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),  # where this library is
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "OTEL_SDK_DISABLED": "true",  # some frameworks report their use
        "CREWAI_DISABLE_TELEMETRY": "true",
        "LOCALAPPDATA": str(folder / "state"),
        "PYTHONWARNINGS": "ignore",
        "GOOGLE_API_USE_CLIENT_CERTIFICATE": "false",  # else Google ADK looks for credentials beyond loopback
    }
    with (folder / "stdout.txt").open("wb") as out, (folder / "stderr.txt").open("wb") as err:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()


def printed(folder: Path) -> str:
    return end_of(
        "".join((folder / name).read_text(errors="replace") for name in ("stdout.txt", "stderr.txt"))
    )


def end_of(text: str) -> str:
    return text[-3000:].strip() or "(nothing was printed)"
