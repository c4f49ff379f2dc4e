"""The releases that are supported, the environments that they live in, and one run in each."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests._legacy_installs import (
    NODE_SERVER,
    NotInstalled,
    environment_elsewhere,
    kept,
    python_with_legacy_sdk,
)
from tests.real_server import listening

__all__ = ["MATRIX", "Case", "run_case", "serve"]

ROOT: Final = Path(__file__).parents[3]
FOLDER: Final = ROOT / ".pytest_cache" / "versions"
LIMIT_S: Final = 120.0
INSTALL_LIMIT_S: Final = 600.0

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
OLDEST: Final = PYTHONS[0]


@dataclass(frozen=True, slots=True)
class Case:
    """One environment, and one way in.

    Attributes:
        way: ``url``, ``mcp``, ``fastmcp`` or ``transport``; see :mod:`.host`.
        packages: What is installed besides the library's own dependencies.
        python: Its version.
    """

    way: str
    packages: tuple[str, ...] = ()
    python: str = OLDEST

    def __str__(self) -> str:
        return f"{self.way} on Python {self.python} with {', '.join(self.packages) or 'nothing else'}"


MATRIX: Final = (
    *(Case("url", python=python) for python in PYTHONS),
    *(Case("mcp", ("mcp>=2,<3",), python) for python in PYTHONS[1:]),
    *(Case("mcp", (f"mcp=={minor}.*",)) for minor in ("2.0", "2.1", "2.2", "2.3")),
    *(Case("fastmcp", (f"fastmcp=={exact}",)) for exact in ("4.0.0", "4.0.11", "4.1.0")),
    *(Case("fastmcp", ("fastmcp>=4,<5",), python) for python in PYTHONS),
    *(Case("transport", (f"mcp=={minor}.*",)) for minor in (f"1.{number}" for number in range(23, 31))),
)


def run_case(case: Case, url: str) -> str:
    """Run the host of a case. Returns what was wrong; empty if nothing was.

    Raises:
        NotInstalled: Its environment cannot be made.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [_interpreter(case), Path(__file__).with_name("host.py"), case.way, url]
        ended = subprocess.run(
            [*map(str, command), str(Path(folder) / "journal.sqlite3")],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    return "" if ended.returncode == 0 and ended.stdout.endswith("ok\n") else ended.stderr[-2000:]


@contextmanager
def serve(way: str) -> Iterator[str]:
    """The URL of the server for a way: of 2025-11-25 for ``transport``, else of 2026-07-28."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.txt"
        if way == "transport":
            script, interpreter = NODE_SERVER.parent / "legacy_python.py", python_with_legacy_sdk()
            options: tuple[str, ...] = ("--poll-interval-ms", "50", "http")
        else:
            script, interpreter, options = Path(__file__).with_name("server.py"), Path(sys.executable), ()
        with listening(script, log, *options, interpreter=interpreter) as (url, _):
            yield url


def _interpreter(case: Case) -> Path:
    """The interpreter of a case's environment, which is made once and kept."""
    python = shutil.which(f"python{case.python}")
    if python is None:
        raise NotInstalled(f"there is no python{case.python} on the path")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = [*case.packages, *project["dependencies"]]
    name = "-".join([case.way, case.python, *("".join(filter(str.isalnum, one)) for one in case.packages)])

    def make(folder: Path) -> None:
        _run([python, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _run([*pip, "--disable-pip-version-check", *packages])

    return kept(FOLDER / name, f"{python} {' '.join(packages)}", make) / "bin" / "python"


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(
            command,
            check=True,
            env=environment_elsewhere(),
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = str(getattr(error, "stderr", "") or error)
        raise NotInstalled(said[-1000:]) from error
