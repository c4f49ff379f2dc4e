"""The journal in a SQLite file: what survives the death of the process.

Write-ahead log with ``synchronous=FULL``, one writing thread and group commit
(:mod:`.writer`); the file itself is the business of :mod:`.file`, and its columns
are described in ``schema/``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, replace
from dataclasses import fields as fields_of
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...errors import JournalCodecError, JournalCorruptError, JournalError
from ...machine.record import Scope, TaskRecord
from ..base import LEASES_KEPT_S, Instruction, Journal, Lease, Taken
from ..codec import Codec, encoded
from ..row import (
    ASKING,
    Row,
    RowWrite,
    checked_time,
    driven_elsewhere,
    escape,
    read_instruction,
    read_instructions,
    read_rows,
    unescape,
)
from ..threaded import ThreadedJournal

if TYPE_CHECKING:
    import sqlite3

    from .writer import SqliteThread  # noqa: F401  # named as text, in the base class

__all__ = ["SqliteJournal", "choose_journal"]

T = TypeVar("T")

_COLUMNS: Final = ", ".join(Row._fields)
_INSERT: Final = f"INSERT INTO records ({_COLUMNS}) VALUES ({', '.join('?' * len(Row._fields))})"
_CHANGES: Final = ", ".join(f"{name} = excluded.{name}" for name in Row._fields if name != "record_id")

_CLAIM: Final = f"{_INSERT} ON CONFLICT DO NOTHING"
# The write of an owner whose record was taken changes no row.
_ON_CONFLICT_SAVE: Final = f"""ON CONFLICT (record_id) DO UPDATE SET {_CHANGES}
    WHERE records.fence = excluded.fence"""
_SAVE: Final = f"{_INSERT} {_ON_CONFLICT_SAVE}"

# What a record was made with stays as it is, and so do the indexes of that.
_MADE_WITH: Final = (
    *("endpoint", "principal", "tool", "arguments_digest", "idempotency_key", "created_at"),
    *("label", "application", "origin"),
)
_CHANGING: Final = tuple(name for name in Row._fields if name not in (*_MADE_WITH, "record_id", "fence"))
_SAVE_KNOWN: Final = f"""UPDATE records SET {", ".join(f"{name} = ?" for name in _CHANGING)}
    WHERE record_id = ? AND fence = ?"""


def _save_rows(count: int) -> str:
    return f"INSERT INTO records ({_COLUMNS}) VALUES {_marks(len(Row._fields), count)} {_ON_CONFLICT_SAVE}"


def _save_known_rows(count: int) -> str:
    # By UPDATE as its first word, or Python would not count the rows.
    changes = ", ".join(f"{name} = new.column{number}" for number, name in enumerate(_CHANGING, 1))
    columns = len(_CHANGING) + 2
    return f"""UPDATE records SET {changes} FROM (VALUES {_marks(columns, count)}) AS new
        WHERE records.record_id = new.column{columns - 1} AND records.fence = new.column{columns}"""


def _forget_delivered_rows(count: int) -> str:
    # CROSS: each record by its ID. SQLite would look through all that is pending.
    return f"""DELETE FROM records WHERE sequence IN
        (SELECT sequence FROM (VALUES {_marks(2, count)}) AS had CROSS JOIN records
        WHERE record_id = had.column1 AND fence = had.column2
        AND +pending = 1 AND due_at IS NULL AND idempotency_key IS NULL)"""


def _marks(columns: int, count: int) -> str:
    return ", ".join([f"({', '.join('?' * columns)})"] * count)


_UNDELIVERED: Final = "record_id = ? AND fence = ? AND pending = 1 AND due_at IS NULL"
_FORGET_DELIVERED: Final = f"DELETE FROM records WHERE {_UNDELIVERED} AND idempotency_key IS NULL"
# An outcome does not expire. Its column says until when it is kept instead.
_DELIVER: Final = f"""UPDATE records SET delivered_at = ?, updated_at = ?, owner = NULL, pending = 0,
    expires_at = CASE WHEN idempotency_key IS NULL THEN ? END WHERE {_UNDELIVERED}"""
_REMOVE: Final = "DELETE FROM records WHERE record_id = ? AND fence = ?"
_PRUNE_DELIVERED: Final = """DELETE FROM records WHERE sequence IN (SELECT sequence FROM records
    WHERE delivered_at < ? OR (expires_at < ? AND delivered_at IS NOT NULL) LIMIT 5000)"""
_PRUNE_EXPIRED: Final = """DELETE FROM records WHERE sequence IN (SELECT sequence FROM records
    WHERE expires_at < ? AND delivered_at IS NULL
    AND (owner IS NULL OR owner IN (SELECT value FROM json_each(?))) LIMIT 5000)"""

_ASKS: Final = f"status IN {ASKING}"  # word for word as in the schema, so that its index serves
_SELECT: Final = f"SELECT {_COLUMNS} FROM records"
_BY_ID: Final = f"{_SELECT} WHERE record_id = ?"
_BY_KEY: Final = f"{_SELECT} WHERE endpoint = ? AND principal = ? AND idempotency_key = ?"
_BY_TASK: Final = f"""{_SELECT} WHERE endpoint = ? AND principal = ? AND task_id = ?
    ORDER BY created_at DESC, sequence DESC LIMIT 1"""
_ALL: Final = f"{_SELECT} WHERE endpoint = ? AND principal = ? ORDER BY created_at, sequence"
_PENDING: Final = f"""{_SELECT} WHERE endpoint = ? AND principal = ? AND pending = 1
    ORDER BY created_at, sequence"""
_ASKING: Final = (
    f"""{_SELECT} WHERE endpoint = ? AND principal = ? AND {_ASKS} ORDER BY created_at, sequence"""
)
_DELIVERED_SINCE: Final = f"""{_SELECT} WHERE +endpoint = ? AND +principal = ? AND delivered_at >= ?
    ORDER BY created_at, sequence"""
_OF_ALL_SCOPES: Final = {
    _ALL: f"{_SELECT} ORDER BY created_at, sequence",
    _PENDING: f"{_SELECT} WHERE pending = 1 ORDER BY created_at, sequence",
    _ASKING: f"{_SELECT} WHERE {_ASKS} ORDER BY created_at, sequence",
    _DELIVERED_SINCE: f"{_SELECT} WHERE delivered_at >= ? ORDER BY created_at, sequence",
}
_FREE_FOR: Final = f"""{_SELECT} WHERE endpoint = ? AND principal = ? AND pending = 1
    AND (application IS NULL OR application = ?) ORDER BY created_at, sequence"""

_LEASE: Final = tuple(field.name for field in fields_of(Lease))
_RENEW: Final = f"""INSERT OR REPLACE INTO leases ({", ".join(_LEASE)})
    VALUES ({", ".join("?" * len(_LEASE))})"""
_OWNERS: Final = "SELECT DISTINCT owner FROM records WHERE owner IS NOT NULL"
_LEASE_BY_ID: Final = f"SELECT {', '.join(_LEASE)} FROM leases WHERE lease_id = ?"
_OLD_LEASES: Final = "DELETE FROM leases WHERE expires_at < ?"
_END_LEASE: Final = "DELETE FROM leases WHERE lease_id = ?"
_TAKE: Final = "UPDATE records SET owner = ?, fence = fence + 1 WHERE record_id = ?"
_RELEASE: Final = """UPDATE records SET owner =
    CASE WHEN pending = 1 AND due_at IS NULL THEN NULL ELSE owner || '/left' END WHERE owner = ?"""

_INSTRUCT: Final = """INSERT INTO instructions (record_id, name, body, at, heeded)
    SELECT record_id, ?, ?, ?, 0 FROM records
    WHERE record_id = ? AND delivered_at IS NULL AND NOT (pending = 1 AND due_at IS NULL)
    ON CONFLICT DO NOTHING"""
_INSTRUCTION: Final = "SELECT name, body, at, heeded FROM instructions WHERE record_id = ? AND name = ?"
_INSTRUCTIONS: Final = """SELECT name, body, at, heeded FROM instructions
    WHERE record_id = ? AND heeded = 0 ORDER BY sequence"""
_HEED: Final = "UPDATE instructions SET body = '', heeded = 1 WHERE record_id = ? AND name = ?"

_LONGEST_TIMEOUT_S: Final = 86_400.0


class SqliteJournal(ThreadedJournal["SqliteThread"]):
    """A journal in a SQLite file, which any number of processes may share.

    A coroutine that writes returns once the write is synced to the disk. Several event loops of one
    process may use one journal. All journals of a process that keep the same file share one thread and one
    connection, so that one for each call costs hardly more than one for all. A process must not be forked
    while the file is open.

    Args:
        path: The file; it and missing folders are made for the user alone. ``None`` is
            ``mcp-tasks-client/journal.sqlite3`` in the user's folder for state.
        busy_timeout_s: Seconds to wait while another process writes. Of several journals of a process that
            have the file open, the one counts that opened it first.
        codec: Encodes results, questions, answers and digests of arguments before they are stored, such as a
            :class:`FernetCodec`; ``None`` stores them as they are. Each journal reads what its own codec can.
        retention_s: Seconds for which the outcome of a keyed call is kept after it was delivered, and
            a task after its time-to-live.
        keep_delivered_s: Seconds for which the outcome of a call without a key is kept at least, once it was
            delivered to a host's own session; 0 forgets it at once.

    Raises:
        ValueError: ``path`` is ``":memory:"``, or ``busy_timeout_s`` is not between 0 and a day.
        JournalError: There is no ``path``, and no home folder, as in some containers.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        busy_timeout_s: float = 5.0,
        codec: Codec | None = None,
        retention_s: float = Journal.retention_s,
        keep_delivered_s: float = Journal.keep_delivered_s,
    ) -> None:
        if not 0 <= busy_timeout_s <= _LONGEST_TIMEOUT_S:
            raise ValueError(
                f"busy_timeout_s must be between 0 and {_LONGEST_TIMEOUT_S}, not {busy_timeout_s}"
            )
        if path == ":memory:":
            raise ValueError("SqliteJournal keeps a file; use MemoryJournal() for one in memory")
        if path is None:
            path = _users_own()
        self.retention_s = retention_s
        self.keep_delivered_s = keep_delivered_s
        self._path = Path(path).absolute()
        self._file = Path(os.path.realpath(self._path))
        # Imported on use, and SQLite with it: who keeps a journal in memory needs neither. Here, since
        # opening happens in an event loop, and fails with a JournalError or not at all.
        from .writer import SqliteThread

        make = partial(SqliteThread, self._file, busy_timeout_s, _renew, _end_lease)
        super().__init__(self._path, partial(SqliteThread.joined, self._file, make), codec)

    @property
    def path(self) -> Path:
        """The file, as an absolute path."""
        return self._path

    @property
    def identity(self) -> Hashable:
        """Equal for journals in the same file."""
        return self._file

    def __repr__(self) -> str:
        return f"SqliteJournal({str(self._path)!r})"

    async def claim(self, record: TaskRecord) -> TaskRecord:
        """Store a new record, unless its key is taken; returns the one that stands."""
        row = Row.of(record, self._codec)

        def operation(connection: sqlite3.Connection) -> Row:
            if connection.execute(_CLAIM, row).rowcount:
                return row
            standing = _one(connection, _BY_KEY, row.endpoint, row.principal, row.idempotency_key)
            # Without a key, or under another one, it can only be this very record.
            return standing or _one(connection, _BY_ID, row.record_id) or row

        standing = await self._run(operation, writes=True)
        return record if standing is row else standing.record(self._codec)

    async def save(self, record: TaskRecord, *, known: bool = False, heeded: str | None = None) -> None:
        """Store a record as it now is, new or not, and sync it to the disk."""
        row = Row.of(record, self._codec)
        values: tuple[object, ...] = row
        statement, statement_of_rows = _SAVE, _save_rows
        if known:
            values = (*(getattr(row, name) for name in _CHANGING), row.record_id, row.fence)
            statement, statement_of_rows = _SAVE_KNOWN, _save_known_rows

        def operation(connection: sqlite3.Connection) -> None:
            if not connection.execute(statement, values).rowcount:
                raise driven_elsewhere(record.tool)
            if heeded is not None:
                connection.execute(_HEED, (row.record_id, escape(heeded)))

        one_of_many = None if heeded is not None else RowWrite(statement_of_rows, values)
        await self._run(operation, writes=True, row=one_of_many)

    def deliver(self, at: float, fences: Mapping[str, int], *, keep_until: float | None = None) -> None:
        """Note that hosts have had these outcomes: with the next write, within a second, or on closing."""
        checked_time(at)
        for record_id, fence in fences.items():
            outcome = escape(record_id), fence

            def operation(connection: sqlite3.Connection, outcome: tuple[str, int] = outcome) -> None:
                if keep_until is not None or not connection.execute(_FORGET_DELIVERED, outcome).rowcount:
                    connection.execute(_DELIVER, (at, at, keep_until, *outcome))

            forget = None if keep_until is not None else RowWrite(_forget_delivered_rows, outcome)
            self._opened().run_unattended(operation, forget)

    async def remove(self, record: TaskRecord) -> None:
        """Forget a record, if there is one and it was not taken since."""
        arguments = (escape(record.record_id), record.fence)

        def operation(connection: sqlite3.Connection) -> None:
            connection.execute(_REMOVE, arguments)

        await self._run(operation, writes=True)

    async def by_id(self, record_id: str) -> TaskRecord | None:
        """The record of this ``record_id``."""
        return await self._find(_BY_ID, escape(record_id))

    async def by_key(self, scope: Scope, idempotency_key: str) -> TaskRecord | None:
        """The record of an idempotency key."""
        return await self._find(_BY_KEY, *_scope(scope), escape(idempotency_key))

    async def by_task_id(self, scope: Scope, task_id: str) -> TaskRecord | None:
        """The newest record of a task."""
        return await self._find(_BY_TASK, *_scope(scope), escape(task_id))

    async def records(
        self,
        scope: Scope | None,
        *,
        pending: bool = False,
        asking: bool = False,
        delivered_since: float | None = None,
    ) -> list[TaskRecord]:
        """The records of a scope, oldest first; if only some are wanted, by an index of those alone."""
        arguments: tuple[str | float, ...] = () if scope is None else _scope(scope)
        query = _ASKING if asking else _PENDING if pending else _ALL
        if delivered_since is not None:
            assert not pending, "what is pending was not delivered"
            query, arguments = _DELIVERED_SINCE, (*arguments, delivered_since)
        if scope is None:
            query = _OF_ALL_SCOPES[query]
        rows = await self._run(lambda connection: _all(connection, query, *arguments), writes=False)
        return [record for _, record in await read_rows(rows, self.identity, self._codec)]

    async def prune(self, before: float, now: float, gone: Collection[str] = ()) -> int:
        """Forget what is old, at most 10,000 records, and old leases."""
        owners = json.dumps([escape(owner) for owner in gone])

        def operation(connection: sqlite3.Connection) -> int:
            connection.execute(_OLD_LEASES, (before - LEASES_KEPT_S,))
            count = connection.execute(_PRUNE_DELIVERED, (before, now)).rowcount
            return count + connection.execute(_PRUNE_EXPIRED, (before, owners)).rowcount

        return await self._run(operation, writes=True)

    # ── who drives what ───────────────────────────────────────────────────────────────────────

    async def renew(self, lease: Lease) -> bool:
        """Store a lease; false if it had run out, or was not there."""
        return await self._run(lambda connection: _renew(connection, lease), writes=True)

    async def owners(self, *names: str) -> dict[str, Lease | None]:
        """Owners, and their leases."""

        def operation(connection: sqlite3.Connection) -> dict[str, Lease | None]:
            of_lease = cache(partial(_lease, connection))
            owning = names or [unescape(owner) for (owner,) in connection.execute(_OWNERS)]
            return {name: of_lease(name.rpartition("/")[0]) for name in owning}

        return await self._run(operation, writes=False)

    async def take(self, record_id: str, owner: str, gone: Collection[str] = ()) -> Taken | None:
        """Become the owner of a record that is free."""
        key, mine, free = escape(record_id), escape(owner), set(map(escape, gone))

        def look(connection: sqlite3.Connection) -> tuple[Row, Row] | None:
            row = _one(connection, _BY_ID, key)
            return None if row is None else (row, row.taken(mine, free))

        def take(connection: sqlite3.Connection) -> tuple[Row, Row] | None:
            found = look(connection)
            _store_taken(connection, mine, [] if found is None else [found])
            return found

        # Who only follows the call of another looks often, and must not hold up those who write.
        found = await self._run(look, writes=False)
        if found is not None and found[0] != found[1]:
            found[0].record(self._codec)  # what cannot be read is not taken
            found = await self._run(take, writes=True)
        return None if found is None else Taken(found[1].record(self._codec), unescape(found[0].owner))

    async def take_pending(
        self,
        scope: Scope,
        owner: str,
        gone: Collection[str] = (),
        *,
        application: str | None = None,
        limit: int | None = None,
        leave: Collection[str] = (),
    ) -> list[Taken]:
        """Become the owner of whatever is pending, free and can be read."""
        arguments, mine = (*_scope(scope), escape(application)), escape(owner)
        free, left_alone = set(map(escape, gone)), set(map(escape, leave))

        def choose(
            connection: sqlite3.Connection, can_be_read: Callable[[Row], bool]
        ) -> list[tuple[Row, Row]]:
            chosen, left = [], math.inf if limit is None else limit
            for row in _all(connection, _FREE_FOR, *arguments):
                is_left = row.owner == mine or left <= 0 or row.record_id in left_alone
                after = row if is_left else row.taken(mine, free)
                if after.owner == mine and can_be_read(row):
                    chosen.append((row, after))
                    left -= after is not row
            return chosen

        # Read before the transaction, since others wait for the end of that.
        found = await self._run(lambda connection: choose(connection, lambda row: True), writes=False)
        records = dict(await read_rows([row for row, _ in found], self.identity, self._codec))

        def read(row: Row) -> bool:
            if row not in records:  # it has changed since, or cannot be read
                with suppress(JournalCorruptError, JournalCodecError):
                    records[row] = row.record(self._codec)
            return row in records

        def operation(connection: sqlite3.Connection) -> list[tuple[Row, Row]]:
            taken = choose(connection, read)
            _store_taken(connection, mine, taken)
            return taken

        taken = await self._run(operation, writes=True)
        return [
            Taken(replace(records[before], owner=owner, fence=after.fence), unescape(before.owner))
            for before, after in taken
        ]

    async def release(self, *names: str) -> None:
        """Release what these owners have, and forget these leases."""
        owners, leases = [(escape(name),) for name in names], [(name,) for name in names]
        for name in names:
            self._opened().stop_renewing(name)

        def operation(connection: sqlite3.Connection) -> None:
            connection.executemany(_RELEASE, owners)
            connection.executemany(_END_LEASE, leases)

        await self._run(operation, writes=True)

    # ── instructions ──────────────────────────────────────────────────────────────────────────

    async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
        """Leave an instruction, unless there is one of that name; returns the one that stands."""
        key, name = escape(record_id), escape(instruction.name)
        body = encoded(escape(instruction.body), self._codec)
        values = name, body, checked_time(instruction.at), key
        writer = self._opened()

        def operation(connection: sqlite3.Connection) -> Any:
            if connection.execute(_INSTRUCT, values).rowcount:
                writer.note_instruction()
            return connection.execute(_INSTRUCTION, (key, name)).fetchone()

        row = await self._run(operation, writes=True)
        return None if row is None else read_instruction(row, key, self._codec)

    async def instructions(self, record_id: str) -> list[Instruction]:
        """The instructions of a record that are to be heeded, oldest first."""
        key = escape(record_id)

        def operation(connection: sqlite3.Connection) -> list[Any]:
            return connection.execute(_INSTRUCTIONS, (key,)).fetchall()

        rows = await self._run(operation, writes=False)
        return read_instructions(rows, key, self.identity, self._codec)

    async def _find(self, query: str, *arguments: str) -> TaskRecord | None:
        row = await self._run(lambda connection: _one(connection, query, *arguments), writes=False)
        return None if row is None else row.record(self._codec)

    async def _run(
        self, operation: Callable[[sqlite3.Connection], T], *, writes: bool, row: RowWrite | None = None
    ) -> T:
        writer = self._opened()
        return await writer.run(operation, writes=writes, row=row).wait(writer.explain)


def _users_own() -> Path:
    """The file of whoever names none.

    Raises:
        JournalError: The user has no home folder.
    """
    import platformdirs  # imported on use: only who names no file needs it

    try:
        return platformdirs.user_state_path("mcp-tasks-client", appauthor=False) / "journal.sqlite3"
    except RuntimeError as error:
        raise JournalError(
            f"there is no home folder for the journal ({error}); give a path that lasts, by journal="
        ) from error


def choose_journal(journal: Journal | str | os.PathLike[str] | None) -> Journal:
    """The journal that an argument stands for: itself, a file, or the user's own if ``None``.

    Raises:
        TypeError: It is none of these.
        ValueError: It is the address of a database, or another URL.
        JournalError: It is ``None``, and the user has no home folder.
    """
    if isinstance(journal, Journal):
        return journal
    if isinstance(journal, str) and "://" in journal:  # without the address, which may hold a password
        raise ValueError("journal is the path of a file; for a database give a PostgresJournal(address)")
    if journal is None or isinstance(journal, str | os.PathLike):
        return SqliteJournal(journal)
    raise TypeError(f"journal must be a path, a Journal or None, not {type(journal).__name__}")


def _store_taken(connection: sqlite3.Connection, owner: str, taken: Iterable[tuple[Row, Row]]) -> None:
    changed = [(owner, after.record_id) for before, after in taken if after is not before]
    connection.executemany(_TAKE, changed)


def _renew(connection: sqlite3.Connection, lease: Lease) -> bool:
    before = _lease(connection, lease.lease_id)
    connection.execute(_RENEW, astuple(lease))
    return before is not None and before.expires_at >= lease.renewed_at


def _lease(connection: sqlite3.Connection, lease_id: str) -> Lease | None:
    row = connection.execute(_LEASE_BY_ID, (lease_id,)).fetchone()
    return None if row is None else Lease(*row)


def _end_lease(connection: sqlite3.Connection, lease_id: str) -> None:
    connection.execute(_END_LEASE, (lease_id,))


def _scope(scope: Scope) -> tuple[str, str]:
    return escape(scope.endpoint), escape(scope.principal)


def _one(connection: sqlite3.Connection, query: str, *arguments: str | None) -> Row | None:
    row = connection.execute(query, arguments).fetchone()
    return None if row is None else Row._make(row)


def _all(connection: sqlite3.Connection, query: str, *arguments: str | float | None) -> list[Row]:
    return [Row._make(row) for row in connection.execute(query, arguments)]
