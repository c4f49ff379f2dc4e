"""The real SQLite journal without its thread, so that a history is the same each time it is played."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar
from unittest.mock import patch

from anyio.lowlevel import checkpoint

from mcp_tasks_client.old.errors import JournalError
from mcp_tasks_client.old.journal import sqlite_file
from mcp_tasks_client.old.journal.base import Judge, Scope, Taken, TaskRecord
from mcp_tasks_client.old.journal.sqlite import SqliteJournal
from mcp_tasks_client.old.journal.sqlite_file import connect, identity
from mcp_tasks_client.old.journal.sqlite_thread import Job, WriterThread

__all__ = ["InlineJournal", "Trouble"]

T = TypeVar("T")

Trouble = Callable[[], sqlite3.OperationalError | None]
"""Asked before each write: what the disk says to it, if anything."""


class Watch(Protocol):
    """Who is told of what is done to records."""

    def saved(self, record: TaskRecord, fence: int) -> None:
        """A record was stored over one with that fence."""

    def removed(self, record: TaskRecord) -> None:
        """A record is no more: its call was not made."""

    def taken(self, before: str | None, owner: str) -> None:
        """A record changed its owner."""

    def forgotten(self, tool: str, task_id: str | None, delivered_at: float | None) -> None:
        """A record was pruned."""


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
        watch: Told what each write and each taking does to a record.
    """

    def __init__(self, path: Path, trouble: Trouble = lambda: None, *, watch: Watch | None = None) -> None:
        super().__init__(path)
        self._trouble = trouble
        self._watch = watch
        self._users = 0
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        await checkpoint()
        if self._connection is None:
            # Nothing rots here, and to look for it would take a fifth of all the time.
            with patch.object(sqlite_file, "find_damage", lambda log: None):
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

    async def save(self, record: TaskRecord, *, known: bool = False) -> None:
        fence = self._stored("fence", record.record_id)
        await super().save(record, known=known)
        if self._watch is not None and fence is not None:
            self._watch.saved(record, fence)

    async def remove(self, record: TaskRecord) -> None:
        await super().remove(record)
        if self._watch is not None:
            self._watch.removed(record)

    async def take(self, record_id: str, owner: str, gone: Judge) -> Taken | None:
        taken = await super().take(record_id, owner, gone)
        if self._watch is not None and taken is not None and taken.record.owner == owner:
            self._watch.taken(taken.before, owner)
        return taken

    async def take_pending(self, scope: Scope, owner: str, gone: Judge) -> list[Taken]:
        every = await super().take_pending(scope, owner, gone)
        for taken in every if self._watch is not None else ():
            assert self._watch is not None
            self._watch.taken(taken.before, owner)
        return every

    async def prune(self, before: float) -> int:
        there = self._outcomes()
        found = await super().prune(before)
        if self._watch is not None and found:
            for record_id in there.keys() - self._outcomes().keys():
                self._watch.forgotten(*there[record_id])
        return found

    def _outcomes(self) -> dict[str, tuple[Any, ...]]:
        assert self._connection is not None
        rows = self._connection.execute("SELECT record_id, tool, task_id, delivered_at FROM records")
        return {row[0]: row[1:] for row in rows}

    def _stored(self, column: str, record_id: str) -> Any:
        assert self._connection is not None
        query = f"SELECT {column} FROM records WHERE record_id = ?"
        return (self._connection.execute(query, (record_id,)).fetchone() or [None])[0]

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
