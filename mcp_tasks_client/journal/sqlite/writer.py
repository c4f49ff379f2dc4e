"""The thread that writes a journal's SQLite file, and group commit.

The thread runs all that writes in one transaction, so that a thousand callers share one sync of the disk.

A run of equal writes is one statement. With each statement Python's lock is given away, and a busy event loop
gives it back up to 5 ms later.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from ...errors import JournalError
from .. import thread
from ..base import Lease
from ..row import RowWrite
from ..thread import Job, JournalThread
from .file import connect, explain, give_back, identity

__all__ = ["SqliteThread"]

T = TypeVar("T")

_RUNS: Final = (256, 64, 16, 4)
"""How many equal writes become one statement. Few numbers, since each makes a statement that is compiled once
and kept; to compile it costs far more than to run it."""

_INSTRUCTED: Final = "SELECT DISTINCT record_id FROM instructions WHERE heeded = 0"

_FREE_PAGES_KEPT: Final = 256
"""Free pages that stay in the file while it is in use (1 MB), for the next records."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Something to be done with the connection."""

    run: Callable[[sqlite3.Connection], Any]
    writes: bool
    row: RowWrite | None = None


_Job: TypeAlias = Job[Operation, Any]


class SqliteThread(JournalThread[Operation]):
    """A connection to a file, and the thread it lives in.

    Args:
        path: The file, without symbolic links.
        busy_timeout_s: Seconds to wait while another process writes.
        renew: Stores a lease; returns false if it had run out or was not there.
        end_lease: Forgets a lease.
    """

    def __init__(
        self,
        path: Path,
        busy_timeout_s: float,
        renew: Callable[[sqlite3.Connection, Lease], bool],
        end_lease: Callable[[sqlite3.Connection, str], object],
    ) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._renew = renew
        self._end_lease = end_lease
        self._connection: sqlite3.Connection
        self._file: tuple[int, int] | None = None  # what was opened; nothing yet
        self._seen_version = -1  # of the file, when instructions were looked for last
        self._look_at = 0.0  # when to look whether others have left any
        super().__init__(path, path, busy_timeout_s)

    def explain(self, error: Exception) -> JournalError:
        """The error to raise for one of SQLite's; see :func:`.file.explain`."""
        return explain(error, self._path)

    def run(
        self, operation: Callable[[sqlite3.Connection], T], *, writes: bool, row: RowWrite | None = None
    ) -> Job[Operation, T]:
        """Queue an operation. It will run, whether or not anybody waits for it.

        Args:
            operation: What the thread runs.
            writes: Whether it needs a transaction.
            row: The same as a write of one row, where it is one.

        Raises:
            JournalError: The journal is not open, or the process was forked since it was opened.
        """
        return self.put(Operation(operation, writes, row))

    def run_unattended(self, operation: Callable[[sqlite3.Connection], object], row: RowWrite | None) -> None:
        """Queue a write that nobody waits for. It comes before whatever is queued later.

        Raises:
            JournalError: As from :meth:`run`.
        """
        self.put_unattended(Operation(operation, writes=True, row=row))

    def _is_there(self) -> bool:
        return self._file is None or identity(self._path) == self._file

    def _renewal(self, lease: Lease) -> Operation:
        return Operation(lambda connection: self._renew(connection, lease), writes=True)

    def _calling(self, function: Callable[[], object]) -> Operation:
        return Operation(lambda connection: function(), writes=False)

    # ── in the thread ─────────────────────────────────────────────────────────────────────────

    def _open(self) -> None:
        self._connection = connect(self._path, self._busy_timeout_s)
        self._file = identity(self._path)

    def _close(self, lease_ids: list[str]) -> None:
        while give_back(self._connection, keep=0):
            pass
        with suppress(sqlite3.Error):  # everything is committed; the next opening tidies up
            for lease_id in lease_ids:
                self._end_lease(self._connection, lease_id)
            self._connection.close()

    def _tidy_up(self) -> None:
        # Not in between, since looking for pages costs as much as a commit.
        give_back(self._connection, keep=_FREE_PAGES_KEPT)

    def _comes_later(self, work: Operation) -> bool:
        # After the commit, and outside of it: a reader needs no lock, and may see everything.
        return not work.writes

    def _carry_out(self, jobs: list[_Job]) -> None:
        if jobs[0].work.writes:
            self._commit(jobs)
        else:
            for job in jobs:
                _run(self._connection, job)

    def _commit(self, jobs: list[_Job]) -> None:
        """Run what writes in one transaction: what fails by itself fails alone, a commit for all."""
        connection = self._connection
        try:
            if not _transact(connection, _runs(jobs)):
                _transact(connection, ([job] for job in jobs))
            if not self._is_there():
                raise JournalError(
                    f"the journal {self._path} was removed or replaced while it was in use, so what is "
                    "written now would be lost; put it back, or close and open it to begin an empty one"
                )
        except Exception as error:
            with suppress(sqlite3.Error):  # none is open if SQLite gave it up itself
                connection.execute("ROLLBACK")
            for job in jobs:
                job.error = error

    def _instructed(self, is_to_tell: bool) -> Collection[str]:
        now = time.monotonic()
        if not is_to_tell and now < self._look_at:
            return ()
        self._look_at = now + thread.TICK_S
        # Changes with each commit of another connection, and costs less than any look at a table.
        version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version == self._seen_version and not is_to_tell:
            return ()
        self._seen_version = -1  # should the look fail, it is taken again
        found = [key for (key,) in self._connection.execute(_INSTRUCTED)]
        self._seen_version = version
        return found


def _run(connection: sqlite3.Connection, job: _Job) -> None:
    """Run an operation. What it raises is kept for whoever waits."""
    job.error = None
    try:
        job.result = job.work.run(connection)
    except Exception as error:
        job.error = error


def _runs(jobs: list[_Job]) -> Iterator[list[_Job]]:
    """The jobs in their order, with equal writes that follow each other together."""
    for statement, group in groupby(jobs, lambda job: job.work.row and job.work.row.statement):
        run = list(group)
        while run:
            size = next((size for size in _RUNS if statement is not None and size <= len(run)), 1)
            yield run[:size]
            del run[:size]


def _transact(connection: sqlite3.Connection, runs: Iterable[list[_Job]]) -> bool:
    """Run jobs in one transaction. If not each of a run changes its row, nothing is written.

    Returns:
        Whether it is committed.
    """
    connection.execute("BEGIN IMMEDIATE")
    for run in runs:
        if len(run) == 1:
            _run(connection, run[0])
            if run[0].error is not None and not connection.in_transaction:
                raise run[0].error  # a full disk, for one, undoes the whole transaction
        elif not _write_at_once(connection, run):
            connection.execute("ROLLBACK")
            return False
    connection.execute("COMMIT")
    return True


def _write_at_once(connection: sqlite3.Connection, run: list[_Job]) -> bool:
    rows = [job.work.row for job in run if job.work.row is not None]
    values = [value for row in rows for value in row.values]
    try:
        changed = connection.execute(rows[0].statement(len(rows)), values).rowcount
    except sqlite3.Error:
        if not connection.in_transaction:
            raise
        return False  # one of them is refused; one by one it is seen which
    for job in run:
        job.error, job.result = None, None
    return changed == len(run)
