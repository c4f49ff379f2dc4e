"""Where the legacy servers live: each with its generation of an SDK, in a folder that is made once and kept.

The folders are in pytest's cache folder of the repository, which git ignores, but not among what
``--cache-clear`` clears: with several workers, one of them would clear what another makes.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

__all__ = [
    "CERTIFICATES_ELSEWHERE",
    "NODE_SERVER",
    "NotInstalled",
    "environment_elsewhere",
    "kept",
    "node_modules",
    "python_with_legacy_sdk",
]

FOLDER: Final = Path(__file__).parents[1] / ".pytest_cache" / "legacy-servers"
LEGACY_SDK: Final = "mcp==1.30.0"
NODE_SERVER: Final = Path(__file__).parent / "servers" / "legacy_node"
INSTALL_LIMIT_S: Final = 300.0
CERTIFICATES_ELSEWHERE: Final = "TESTS_SSL_CERT_FILE"
"""Variable with what ``SSL_CERT_FILE`` was when the tests began. ``conftest.py`` sets both."""

LOCK_LIMIT_S: Final = 2 * INSTALL_LIMIT_S


class NotInstalled(Exception):  # noqa: N818  # a reason to skip, not an error
    """There is no server; the text says why."""


def python_with_legacy_sdk() -> Path:
    """The interpreter of an environment with the SDK's last 1.x, and with all that our package depends on.

    One for the server and for hosts of that generation: what it takes to make it is most of what they cost.
    It sees the packages of this interpreter. pip installs only the SDK, and what the SDK alone needs.

    Raises:
        NotInstalled: The environment cannot be made, such as without a network.
    """
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]
    packages = [LEGACY_SDK, "trio", *project["dependencies"]]
    ours = sysconfig.get_path("purelib")

    def make(folder: Path) -> None:
        run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        its = sysconfig.get_path("purelib", "venv", {"base": str(folder)})
        (Path(its) / "ours.pth").write_text(ours)
        pip = [sys.executable, "-m", "pip", "--python", str(interpreter(folder)), "install", "--quiet"]
        run([*pip, "--disable-pip-version-check", "--retries", "1", *packages])

    return interpreter(kept(FOLDER / "python", f"{' '.join(packages)} {sys.version} {ours}", make))


def interpreter(environment: Path) -> Path:
    folder = Path(sysconfig.get_path("scripts", "venv", {"base": str(environment)}))
    return folder / Path(sys.executable).name


def node_modules() -> Path:
    """The folder with what ``legacy_node/package.json`` names.

    Raises:
        NotInstalled: There is no Node, or its packages cannot be had.
    """
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        raise NotInstalled("there is no node, or no npm")

    def make(folder: Path) -> None:
        folder.mkdir()
        shutil.copy(NODE_SERVER / "package.json", folder)
        quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
        soon = ["--fetch-retries=1", "--fetch-timeout=30000"]
        run([npm, "install", "--prefix", str(folder), *quiet, *soon])

    return kept(FOLDER / "node", (NODE_SERVER / "package.json").read_text(), make)


def run(command: Sequence[str]) -> None:
    try:
        subprocess.run(
            command,
            check=True,
            env=environment_elsewhere(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=INSTALL_LIMIT_S,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = " ".join((error.stderr or b"").decode(errors="replace").split())
        raise NotInstalled(f"{type(error).__name__} of {Path(command[0]).name}: {said[:300]}") from error


def environment_elsewhere() -> dict[str, str]:
    """For what fetches something from elsewhere: with the authorities that the tests do without."""
    environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_DIR"}
    if certificates := environment.get(CERTIFICATES_ELSEWHERE):
        environment["SSL_CERT_FILE"] = certificates
    return environment


def kept(folder: Path, contents: str, make: Callable[[Path], None]) -> Path:
    """A folder that is whole and holds what it should; made, or made anew, if it does not.

    Args:
        folder: Beside it there are its lock and what was noted of it.
        contents: What it should hold. What holds something else is made anew.
        make: Makes it, where there is nothing yet.

    Raises:
        NotInstalled: It cannot be made, now or earlier in the same run of the tests.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    whole, failure = folder.with_suffix(".whole"), folder.with_suffix(".failure")
    with locked(folder.with_suffix(".lock")):
        if read(whole) == contents and folder.is_dir():
            return folder
        run_id, _, reason = read(failure).partition("\n")
        if run_id and run_id == os.environ.get("PYTEST_XDIST_TESTRUNUID"):
            raise NotInstalled(reason)  # another worker has waited for it already
        whole.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            make(folder)
        except NotInstalled as error:
            failure.write_text(f"{os.environ.get('PYTEST_XDIST_TESTRUNUID', '')}\n{error}")
            raise
        whole.write_text(contents)
    return folder


def read(note: Path) -> str:
    return note.read_text() if note.exists() else ""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time. SQLite's lock works on every platform, and a process that dies lets go of it."""
    with closing(sqlite3.connect(path, timeout=LOCK_LIMIT_S, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
