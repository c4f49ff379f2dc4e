"""Journal files, seen as any other program sees them, and other processes that use them."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from sqlite3 import connect as sqlite_connect  # as it is, whatever a test makes of the journal's
from typing import Any, Final, cast

import anyio
import pytest

from mcp_tasks_client import MemoryJournal, PostgresJournal, SqliteJournal, TaskRecord
from mcp_tasks_client.journal.postgres.thread import PostgresThread
from tests._forked import Program

__all__ = [
    "SHORT_S",
    "OneLoop",
    "Spy",
    "child",
    "commits_held",
    "contents",
    "line",
    "mode",
    "note_listening",
    "opened",
    "posix_only",
    "raw",
    "rows_in_memory",
    "run_child",
    "said",
    "spy_on",
    "stored",
    "timed",
    "write",
]

posix_only = pytest.mark.skipif(os.name == "nt", reason="Windows has neither these rights nor these signals")
SHORT_S: Final = 0.05
"""A busy timeout for tests in which the lock is never released."""


class OneLoop:
    """Tests of files, in which the event loop makes no difference."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as any other program would see it."""
    with closing(sqlite_connect(path, isolation_level=None, timeout=0)) as connection:
        yield connection


def stored(path: Path) -> list[str]:
    with raw(path) as connection:
        return [row[0] for row in connection.execute("SELECT record_id FROM records ORDER BY sequence")]


async def write(path: Path, *records: TaskRecord) -> None:
    with anyio.fail_after(30):
        async with SqliteJournal(path) as journal:
            for one in records:
                await journal.save(one)


async def opened(path: Path, busy_timeout_s: float = SHORT_S) -> None:
    """Open and close, bounded."""
    with anyio.fail_after(30):
        async with SqliteJournal(path, busy_timeout_s=busy_timeout_s):
            pass


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that a folder holds: names, rights and bytes."""
    return {file.name: (file.stat().st_mode, file.read_bytes()) for file in folder.iterdir()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@dataclass
class Spy:
    """The connections that journals make, and the statements they are about to run."""

    connections: list[sqlite3.Connection] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.release.set()

    commits: int = 0
    _in_transaction: bool = False

    def __call__(self, statement: str) -> None:
        self.statements.append(statement)
        if statement.startswith("BEGIN"):
            self._in_transaction = True
        elif statement in ("COMMIT", "ROLLBACK"):
            self._in_transaction = False
        elif self._in_transaction or not statement.startswith(("INSERT", "UPDATE", "DELETE")):
            return  # no write, or not one that is a transaction by itself
        if statement.startswith(("BEGIN", "ROLLBACK")):
            return
        self.commits += 1
        self.held.set()
        self.release.wait(30)


def spy_on(monkeypatch: pytest.MonkeyPatch) -> Spy:
    spy, connect = Spy(), cast("Callable[..., sqlite3.Connection]", sqlite_connect)

    def spied(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = connect(*args, **kwargs, check_same_thread=False)
        connection.set_trace_callback(spy)
        spy.connections.append(connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", spied)
    return spy


def rows_in_memory(journal: MemoryJournal, query: str) -> list[tuple[Any, ...]]:
    """What a query finds in a journal in memory, which nobody else can look into."""
    return journal._memory._connection.execute(query).fetchall()


def timed(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Have journals that are made from now on wait for other times than those of :class:`Timing`."""
    for kind in (SqliteJournal, PostgresJournal):
        monkeypatch.setattr(kind, "_timing", replace(kind._timing, **seconds))


def only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have journals in a database, made from now on, learn from notifications alone what others write."""
    monkeypatch.setattr("mcp_tasks_client.journal.postgres.thread._LOOK_S", 1000.0)


def note_listening(monkeypatch: pytest.MonkeyPatch) -> list[PostgresThread]:
    """The threads of journals in a database, made from now on, whose listeners listen by now."""
    listening, hear = list[PostgresThread](), PostgresThread._hear

    def note(self: PostgresThread, payloads: Collection[str]) -> None:
        hear(self, payloads)
        if not payloads:  # as it is told once it listens
            listening.append(self)

    monkeypatch.setattr(PostgresThread, "_hear", note)
    return listening


@contextmanager
def commits_held(spy: Spy) -> Iterator[threading.Event]:
    """Stop the writing thread right before its next commit, and say when it is there."""
    spy.held.clear()
    spy.release.clear()
    try:
        yield spy.held
    finally:
        spy.release.set()


PREAMBLE: Final = """
import os, sys, warnings
warnings.simplefilter("error")
import anyio
from mcp_tasks_client.errors import JournalError
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.journal.postgres.journal import PostgresJournal
from mcp_tasks_client.journal.sqlite.journal import SqliteJournal
from mcp_tasks_client.testing.samples import SCOPE, finished, observing, record
path = sys.argv[1]
"""


@contextmanager
def child(path: Path, body: str) -> Iterator[Program]:
    """A process of its own that runs ``body``, an async function's, with the journal's ``path``."""
    lines = "\n    ".join(body.strip().splitlines())
    source = f"{PREAMBLE}\nasync def main():\n    {lines}\n\nanyio.run(main)\n"
    with Program("-c", source, path, text=True) as process:
        # What blocks on the child below ends with the child, and the child ends here at the latest.
        deadline = threading.Timer(60, process.kill)
        deadline.start()
        try:
            yield process
        finally:
            deadline.cancel()
            process.kill()


def said(process: Program) -> list[str]:
    """The words that a process says until it has ended."""
    process.stdin.close()
    words: list[str] = process.stdout.read().split()
    process.wait()
    return words


def run_child(path: Path, body: str) -> list[str]:
    with child(path, body) as process:
        output = said(process)
    assert process.returncode == 0
    return output


def line(process: Program) -> str:
    return process.stdout.readline().strip()
