"""The journal in a SQLite file: what survives the death of the process.

Write-ahead log with ``synchronous=FULL``, one writing thread and group commit
(:mod:`.sqlite_thread`); the file itself is the business of :mod:`.sqlite_file`, and its columns
are described in ``schema.sql``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import astuple
from dataclasses import fields as fields_of
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ..errors import JournalError
from .base import LEASES_KEPT_S, Journal, Judge, Lease, Scope, Taken, TaskRecord
from .row import Row, checked_time, escape, overtaken

if TYPE_CHECKING:
    import sqlite3

    from .sqlite_thread import WriterThread

__all__ = ["SqliteJournal", "chosen_journal"]

T = TypeVar("T")

_COLUMNS: Final = ", ".join(Row._fields)
_INSERT: Final = f"INSERT INTO records ({_COLUMNS}) VALUES ({', '.join('?' * len(Row._fields))})"
_CHANGES: Final = ", ".join(f"{name} = excluded.{name}" for name in Row._fields if name != "record_id")

_CLAIM: Final = f"{_INSERT} ON CONFLICT DO NOTHING"
# A late owner's write changes no row.
_SAVE: Final = f"""{_INSERT} ON CONFLICT (record_id) DO UPDATE SET {_CHANGES}
    WHERE records.fence = excluded.fence"""
_SAVE_KNOWN: Final = f"""UPDATE records SET ({_COLUMNS}) = ({", ".join("?" * len(Row._fields))})
    WHERE record_id = ? AND fence = ?"""
_DELIVER: Final = """UPDATE records SET delivered_at = ?, updated_at = ?, owner = NULL, pending = 0
    WHERE record_id = ? AND fence = ? AND pending = 1 AND due_at IS NULL"""
_REMOVE: Final = "DELETE FROM records WHERE record_id = ? AND fence = ?"
_PRUNE: Final = """DELETE FROM records WHERE sequence IN
    (SELECT sequence FROM records WHERE delivered_at < ? LIMIT 5000)"""

_SELECT: Final = f"SELECT {_COLUMNS} FROM records"
_BY_ID: Final = f"{_SELECT} WHERE record_id = ?"
_BY_KEY: Final = f"{_SELECT} WHERE endpoint = ? AND principal = ? AND idempotency_key = ?"
_BY_TASK: Final = f"""{_SELECT} WHERE endpoint = ? AND principal = ? AND task_id = ?
    ORDER BY created_at DESC, sequence DESC LIMIT 1"""
_ALL: Final = f"{_SELECT} WHERE endpoint = ? AND principal = ? ORDER BY created_at, sequence"
_PENDING: Final = f"""{_SELECT} WHERE endpoint = ? AND principal = ? AND pending = 1
    ORDER BY created_at, sequence"""

_LEASE: Final = tuple(field.name for field in fields_of(Lease))
_RENEW: Final = f"""INSERT OR REPLACE INTO leases ({", ".join(_LEASE)})
    VALUES ({", ".join("?" * len(_LEASE))})"""
_LEASES: Final = f"SELECT {', '.join(_LEASE)} FROM leases"
_OLD_LEASES: Final = "DELETE FROM leases WHERE expires_at < ?"
_END_LEASE: Final = "DELETE FROM leases WHERE lease_id = ?"
_TAKE: Final = "UPDATE records SET owner = ?, fence = fence + 1 WHERE record_id = ?"
_RELEASE: Final = """UPDATE records SET owner =
    CASE WHEN pending = 1 AND due_at IS NULL THEN NULL ELSE owner || '/left' END WHERE owner = ?"""

_LONGEST_TIMEOUT_S: Final = 86_400.0


class SqliteJournal(Journal):
    """A journal in a SQLite file, which any number of processes may share.

    A method that writes returns once the write is synced to the disk. Several event loops of one
    process may use one journal. Across a fork it may not be carried, nor its file be opened anew.

    Args:
        path: The file; it and missing folders are made for the user alone. ``None`` is
            ``mcp-tasks-client/journal.sqlite3`` in the user's folder for state.
        busy_timeout_s: Seconds to wait while another process writes.
        retention_s: Seconds for which an outcome is kept after it was delivered.

    Raises:
        ValueError: ``path`` is ``":memory:"``, or ``busy_timeout_s`` is not between 0 and a day.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        busy_timeout_s: float = 5.0,
        retention_s: float = Journal.retention_s,
    ) -> None:
        if not 0 <= busy_timeout_s <= _LONGEST_TIMEOUT_S:
            raise ValueError(
                f"busy_timeout_s must be between 0 and {_LONGEST_TIMEOUT_S}, not {busy_timeout_s}"
            )
        if path == ":memory:":
            raise ValueError("SqliteJournal keeps a file; use MemoryJournal() for one in memory")
        if path is None:
            import platformdirs  # imported on use: only who names no file needs it

            path = platformdirs.user_state_path("mcp-tasks-client", appauthor=False) / "journal.sqlite3"
        self.retention_s = retention_s
        self._path = Path(path).absolute()
        # Imported on use, and SQLite with it: who keeps a journal in memory needs neither. Here, since
        # opening happens in an event loop, and fails with a JournalError or not at all.
        from .sqlite_thread import WriterThread

        self._new_thread = partial(WriterThread, self._path, busy_timeout_s)
        self._lock = threading.Lock()
        self._thread: WriterThread | None = None

    @property
    def path(self) -> Path:
        """The file, as an absolute path."""
        return self._path

    @property
    def identity(self) -> Hashable:
        """Equal for journals in the same file."""
        return self._path

    def __repr__(self) -> str:
        return f"SqliteJournal({str(self._path)!r})"

    async def open(self) -> None:
        """Make or check the file, and commit a first write to it.

        Raises:
            JournalLockedError: Another process held it for ``busy_timeout_s``, or has it open in an
                older version of this package.
            JournalCorruptError: It is damaged, or no database. It is left as it is.
            JournalSchemaError: It is another program's or a newer version's. It is left as it is.
            JournalError: It cannot be opened for writing, or is no file.
        """
        with self._lock:
            if self._thread is None:
                self._thread = self._new_thread()
            thread = self._thread
            thread.users += 1
        try:
            # The first thing the thread answers, or refuses, once it has opened the file.
            await thread.put(lambda connection: None, writes=False).wait(self._path)
        except BaseException:
            await self._let_go(thread)
            raise

    async def aclose(self) -> None:
        """Count one user less; the last one's leaving finishes every write and closes the file."""
        if self._thread is not None:
            await self._let_go(self._thread)

    async def claim(self, record: TaskRecord) -> TaskRecord:
        """Store a new record, unless its key is taken; returns the one that stands."""
        row = Row.of(record)

        def operation(connection: sqlite3.Connection) -> TaskRecord:
            if connection.execute(_CLAIM, row).rowcount:
                return record
            key = (row.endpoint, row.principal, row.idempotency_key)
            standing = connection.execute(_BY_KEY, key).fetchone()
            # Without a key, or under another one, it can only be this very record.
            return Row(*(standing or connection.execute(_BY_ID, (row.record_id,)).fetchone())).record()

        return await self._run(operation, writes=True)

    async def save(self, record: TaskRecord, *, known: bool = False) -> None:
        """Store a record as it now is, new or not, and sync it to the disk."""
        row = Row.of(record)
        statement = (_SAVE_KNOWN, (*row, row.record_id, row.fence)) if known else (_SAVE, row)

        def operation(connection: sqlite3.Connection) -> None:
            if not connection.execute(*statement).rowcount:
                raise overtaken(row)

        await self._run(operation, writes=True)

    async def deliver(self, at: float, fences: Mapping[str, int]) -> None:
        """Note that hosts have had these outcomes, and sync it to the disk."""
        checked_time(at)
        arguments = [(at, at, escape(record_id), fence) for record_id, fence in fences.items()]

        def operation(connection: sqlite3.Connection) -> None:
            connection.executemany(_DELIVER, arguments)

        await self._run(operation, writes=True)

    async def remove(self, record: TaskRecord) -> None:
        """Forget a record, if there is one and it was not taken since."""
        arguments = (escape(record.record_id), record.fence)

        def operation(connection: sqlite3.Connection) -> None:
            connection.execute(_REMOVE, arguments)

        await self._run(operation, writes=True)

    async def by_key(self, scope: Scope, idempotency_key: str) -> TaskRecord | None:
        """The record of an idempotency key."""
        arguments = (*_scope(scope), escape(idempotency_key))
        return await self._run(lambda connection: _one(connection, _BY_KEY, arguments), writes=False)

    async def by_task_id(self, scope: Scope, task_id: str) -> TaskRecord | None:
        """The newest record of a task."""
        arguments = (*_scope(scope), escape(task_id))
        return await self._run(lambda connection: _one(connection, _BY_TASK, arguments), writes=False)

    async def records(self, scope: Scope, *, pending: bool = False) -> list[TaskRecord]:
        """The records of a scope, oldest first; with ``pending`` by an index of those alone."""
        query, arguments = _PENDING if pending else _ALL, _scope(scope)

        def operation(connection: sqlite3.Connection) -> list[TaskRecord]:
            return [Row(*row).record() for row in connection.execute(query, arguments)]

        return await self._run(operation, writes=False)

    async def prune(self, before: float) -> int:
        """Forget what was delivered before a time, at most 5,000 records of it, and old leases."""

        def operation(connection: sqlite3.Connection) -> int:
            connection.execute(_OLD_LEASES, (before - LEASES_KEPT_S,))
            return connection.execute(_PRUNE, (before,)).rowcount

        return await self._run(operation, writes=True)

    # ── who drives what ───────────────────────────────────────────────────────────────────────

    async def renew(self, lease: Lease) -> bool:
        """Store a lease; false if it had run out, or was not there."""

        def operation(connection: sqlite3.Connection) -> bool:
            before = connection.execute(f"{_LEASES} WHERE lease_id = ?", (lease.lease_id,)).fetchone()
            connection.execute(_RENEW, astuple(lease))
            return before is not None and Lease(*before).expires_at >= lease.renewed_at

        return await self._run(operation, writes=True)

    async def take(self, record_id: str, owner: str, gone: Judge) -> Taken | None:
        """Become the owner of a record that is free."""
        escaped = escape(record_id)

        def look(connection: sqlite3.Connection) -> list[_Take]:
            rows = connection.execute(_BY_ID, (escaped,)).fetchall()
            return _judged(connection, map(Row._make, rows), owner, gone)

        # Who only follows looks often, and must not hold up those who write.
        taken = await self._run(look, writes=False)
        if taken and taken[0].changes:
            taken = await self._run(
                lambda connection: _take(connection, look(connection), owner), writes=True
            )
        return taken[0].read() if taken else None

    async def take_pending(self, scope: Scope, owner: str, gone: Judge) -> list[Taken]:
        """Become the owner of whatever is pending and free."""
        arguments = _scope(scope)

        def operation(connection: sqlite3.Connection) -> list[_Take]:
            rows = [Row._make(row) for row in connection.execute(_PENDING, arguments)]
            others = [row for row in rows if row.owner != owner]
            taken = iter(_take(connection, _judged(connection, others, owner, gone), owner))
            all_of_them = (_Take(row, row, None) if row.owner == owner else next(taken) for row in rows)
            return [take for take in all_of_them if take.after.owner == owner]

        # What cannot be read is not taken, nor anything else then. And outside of the transaction, for
        # others wait for its end.
        await self.records(scope, pending=True)
        taken = await self._run(operation, writes=True)
        return await self._run(lambda _: [take.read() for take in taken], writes=False)

    async def release(self, *names: str) -> None:
        """Let go of what these owners have, and forget these leases."""
        arguments = [(name,) for name in names]

        def operation(connection: sqlite3.Connection) -> None:
            connection.executemany(_RELEASE, arguments)
            connection.executemany(_END_LEASE, arguments)

        await self._run(operation, writes=True)

    async def _run(self, operation: Callable[[sqlite3.Connection], T], *, writes: bool) -> T:
        with self._lock:  # so that nothing is queued behind the thread's last job
            if self._thread is None:
                raise JournalError(
                    f"the journal {self._path} is not open; open it first (async with journal)"
                )
            job = self._thread.put(operation, writes=writes)
        return await job.wait(self._path)

    async def _let_go(self, thread: WriterThread) -> None:
        with self._lock:
            thread.users -= 1
            if thread.users > 0:
                return
            if self._thread is thread:
                self._thread = None
        await thread.stop()


def chosen_journal(journal: Journal | str | os.PathLike[str] | None) -> Journal:
    """The journal that an argument stands for: itself, a file, or the user's own if ``None``.

    Raises:
        TypeError: It is none of these.
    """
    if isinstance(journal, Journal):
        return journal
    if journal is None or isinstance(journal, str | os.PathLike):
        return SqliteJournal(journal)
    raise TypeError(f"journal must be a path, a Journal or None, not {type(journal).__name__}")


class _Take(NamedTuple):
    """A row that somebody wanted to own, before and after."""

    before: Row
    after: Row
    lease: Lease | None

    @property
    def changes(self) -> bool:
        return self.after is not self.before

    def read(self) -> Taken:
        return Taken(self.after.record(), self.before.owner, self.lease)


def _judged(connection: sqlite3.Connection, rows: Iterable[Row], owner: str, gone: Judge) -> list[_Take]:
    """What becomes of these rows if ``owner`` takes those that are free."""
    leases = [Lease(*row) for row in connection.execute(_LEASES)]

    @cache
    def judged(other: str | None) -> tuple[bool, Lease | None]:
        if other is None or other == owner:
            return True, None
        lease = next((lease for lease in leases if lease.covers(other)), None)
        return gone(other, lease), lease

    takes = []
    for row in rows:
        free, lease = judged(row.owner) if row.delivered_at is None else (False, None)
        after = row._replace(owner=owner, fence=row.fence + 1) if free else row
        takes.append(_Take(row, after, lease))
    return takes


def _take(connection: sqlite3.Connection, takes: list[_Take], owner: str) -> list[_Take]:
    """Do it."""
    taken = ((owner, take.after.record_id) for take in takes if take.changes)
    connection.executemany(_TAKE, taken)
    return takes


def _scope(scope: Scope) -> tuple[str, str]:
    return escape(scope.endpoint), escape(scope.principal)


def _one(connection: sqlite3.Connection, query: str, arguments: tuple[str | None, ...]) -> TaskRecord | None:
    row = connection.execute(query, arguments).fetchone()
    return None if row is None else Row(*row).record()
