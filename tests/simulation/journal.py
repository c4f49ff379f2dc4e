"""The real SQLite journal without its thread, so that a history is the same each time it is played."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from anyio.lowlevel import checkpoint

from mcp_tasks_client.errors import JournalError
from mcp_tasks_client.journal.sqlite import SqliteJournal
from mcp_tasks_client.journal.sqlite_file import connect, identity
from mcp_tasks_client.journal.sqlite_thread import Job, WriterThread

__all__ = ["InlineJournal", "Trouble"]

T = TypeVar("T")

Trouble = Callable[[], sqlite3.OperationalError | None]
"""Asked before each write: what the disk says to it, if anything."""


def disk_trouble(code: int) -> sqlite3.OperationalError:
    """The error that SQLite raises for one of its codes."""
    error = sqlite3.OperationalError({sqlite3.SQLITE_FULL: "database or disk is full"}.get(code, "busy"))
    error.sqlite_errorcode = code
    return error


class InlineJournal(SqliteJournal):
    """Runs each operation where it is asked for, in a transaction of its own.

    Args:
        path: The file.
        trouble: Lets writes fail.
    """

    def __init__(self, path: Path, trouble: Trouble = lambda: None) -> None:
        super().__init__(path)
        self._trouble = trouble
        self._users = 0
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        await checkpoint()
        if self._connection is None:
            self._connection = connect(self.path, 0.0)
            # The operating system lives on, and a sync costs more than all the rest of a history.
            self._connection.execute("PRAGMA synchronous = OFF")
            self._opened = identity(self.path)
        self._users += 1

    async def aclose(self) -> None:
        self._users -= 1
        if self._users == 0:
            self.let_go()

    def let_go(self) -> None:
        """Close the file, as the end of a process does."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _run(self, operation: Callable[[sqlite3.Connection], T], *, writes: bool) -> T:
        await checkpoint()
        if self._connection is None:
            raise JournalError("the journal is not open")
        job: Job[Any] = Job(operation, writes=writes)
        if not writes:
            job.run(self._connection)
        elif (trouble := self._trouble()) is not None:
            job.error = trouble
        else:
            WriterThread._commit(self, self._connection, [job], self._opened)  # type: ignore[arg-type]  # it needs only the path
        job.done.set()
        result: T = await job.wait(self.path)
        return result


def empty_journal(folder: Path) -> Path:
    """A file to copy, since making one takes longer than most histories."""
    path = folder / "empty.sqlite3"
    connect(path, 0.0).close()
    return path


def copy_of(empty: Path, path: Path) -> Path:
    shutil.copyfile(empty, path)
    return path
