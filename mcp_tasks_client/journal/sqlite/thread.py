"""The thread that has a journal's SQLite file open, and group commit.

All works that write and have gathered are one transaction, so that a thousand callers share one sync of the
disk.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from ...errors import JournalError
from ..medium import Timing
from ..thread import JournalThread
from ..work import Found, Job, note_results, release
from .execution import execute, runs_of
from .file import (
    check_readable,
    close_untouched,
    connect,
    explain,
    find_missing_right,
    give_back,
    identity,
    identity_of_log,
    read_unwritable,
)

__all__ = ["SqliteReader", "SqliteThread", "thread_of_existing"]

_FREE_PAGES_KEPT: Final = 256
"""Free pages that stay in the file while it is in use (1 MB), for the next records."""


_AT_ONCE_S: Final = 0.1
"""Seconds after which a work counts as one that has waited for another."""

_BUSY_PAUSE_S: Final = 0.02


def thread_of_existing(path: Path, busy_timeout_s: float, timing: Timing) -> SqliteThread:
    """A thread for an existing file, which writes it if this process has the right.

    Raises:
        JournalError: There is no journal, or it cannot be seen.
    """
    missing = find_missing_right(path)
    if missing is None:
        return SqliteThread(path, busy_timeout_s, timing)
    return SqliteReader(path, busy_timeout_s, timing, missing)


_Done: TypeAlias = "tuple[list[Job[Any]], Found | Exception | None]"
"""A run with its results, or with its error."""


class SqliteThread(JournalThread):
    """A connection to a file, and the thread it lives in.

    Args:
        path: The file, without symbolic links.
        busy_timeout_s: Seconds to wait while another process writes.
        timing: Of the thread.
    """

    def __init__(self, path: Path, busy_timeout_s: float, timing: Timing) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection
        self._file: tuple[int, int] | None = None  # the file that was opened; none yet
        self._log: tuple[object, ...] = ()
        self._has_lost_log = False
        self._wait_s = busy_timeout_s  # as SQLite knows it
        self._seen_version = -1  # of the file, when instructions were looked for last
        super().__init__(path, path, busy_timeout_s, timing)

    def explain(self, error: Exception) -> JournalError:
        """The error to raise for one of SQLite's; see :func:`.file.explain`."""
        return explain(error, self._path)

    def _is_there(self) -> bool:
        return self._file is None or identity(self._path) == self._file

    def _open(self) -> None:
        self._connection = connect(self._path, self._busy_timeout_s)
        self._file, self._log = identity(self._path), identity_of_log(self._path)

    def leave_soon(self, journal: object) -> None:
        """Count a journal out. A file whose log was lost is opened anew once the last one has left."""
        self._leave(journal, 0 if self._has_lost_log else self._timing.linger_s)

    def _check_files(self) -> None:
        """Refuse a write that no other connection would see.

        Raises:
            JournalError: The file, or its log, is not the one that was opened.
        """
        if not self._is_there():
            raise JournalError(
                f"the journal {self._path} was removed or replaced while it was in use, so what is "
                "written now would be lost; put it back, or close and open it to begin an empty one"
            )
        # As long as a connection is open in this process, SQLite gives a second one the log that was lost.
        self._has_lost_log = self._has_lost_log or identity_of_log(self._path) != self._log
        if self._has_lost_log:
            raise JournalError(
                f"the log beside the journal {self._path} (-wal, -shm) was removed or replaced while it was "
                "in use, so what is written now would be lost; close everything that has the journal open, "
                "in every process, and open it again"
            )

    def _close(self, names: list[str]) -> None:
        if self._has_lost_log:
            close_untouched(self._connection, self._path)
            return
        while give_back(self._connection, keep=0):
            pass
        with suppress(sqlite3.Error):  # everything is committed; the next opening tidies up
            if names:
                self._set_wait(time.monotonic())
                execute(self._connection, [Job(release(names), None)])
            self._connection.close()

    def _tidy_up(self) -> None:
        # Not in between, since looking for pages costs as much as a commit.
        give_back(self._connection, keep=_FREE_PAGES_KEPT)

    def _carry_out(self, jobs: list[Job[Any]]) -> None:
        if not jobs[0].work.writes:  # a reader needs no lock, and sees all that is committed
            for run in runs_of(jobs):
                _note(run, self._try(run))
            return
        done: list[_Done] | None
        self._set_wait(min(job.work.asked_at for job in jobs))
        try:
            if self._has_lost_log:
                self._check_files()
            if len(jobs) == 1 and jobs[0].work.is_single:  # SQLite makes a transaction of it
                done = [(jobs, execute(self._connection, jobs))]
            else:
                done = self._transact(runs_of(jobs))
            if done is None:
                done = self._transact([job] for run in runs_of(jobs) for job in run)
            self._check_files()
        except Exception as error:
            with suppress(sqlite3.Error):  # none is open if SQLite gave it up itself
                self._connection.execute("ROLLBACK")
            for job in jobs:
                job.error = error
            return
        for run, found in done or ():
            _note(run, found)

    def _set_wait(self, asked_at: float) -> None:
        """Have SQLite wait for other processes until the time of the oldest work is over."""
        left_s = asked_at + self._busy_timeout_s - time.monotonic()
        wait_s = self._busy_timeout_s if left_s > self._busy_timeout_s - _AT_ONCE_S else max(0.0, left_s)
        if wait_s != self._wait_s:
            self._connection.execute(f"PRAGMA busy_timeout = {round(wait_s * 1000)}")
            self._wait_s = wait_s

    def _transact(self, runs: Iterable[list[Job[Any]]]) -> list[_Done] | None:
        """Execute works in one transaction. A work that fails by itself fails alone.

        Returns:
            Each run with its results or its error, once all is committed; ``None`` if nothing was written,
            since a run of several works has to be executed one by one.
        """
        done: list[_Done] = []
        self._connection.execute("BEGIN IMMEDIATE")
        for run in runs:
            found = self._try(run)
            if isinstance(found, Exception) and not self._connection.in_transaction:
                raise found  # a full disk, for one, undoes the whole transaction
            if found is None or (isinstance(found, Exception) and len(run) > 1):
                self._connection.execute("ROLLBACK")
                return None
            done.append((run, found))
        self._connection.execute("COMMIT")
        return done

    def _try(self, run: list[Job[Any]]) -> Found | Exception | None:
        try:
            return execute(self._connection, run)
        except Exception as error:
            return error

    def _pause_after(self, error: Exception) -> float | None:
        is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
        return _BUSY_PAUSE_S if is_busy else None  # SQLite has waited for the oldest work

    def _may_have_changed(self) -> bool:
        # Changes with each commit of another connection, and costs less than any look at a table.
        version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        seen, self._seen_version = self._seen_version, version
        return bool(seen != version)


class SqliteReader(SqliteThread):
    """A file that this process may only read, and the thread that reads it.

    It opens the file anew for each read, and leaves nothing beside it.

    Args:
        path: The file, without symbolic links.
        busy_timeout_s: Seconds to wait while another process holds the file.
        timing: Of the thread.
        missing: Says which right to write is missing.
    """

    def __init__(self, path: Path, busy_timeout_s: float, timing: Timing, missing: JournalError) -> None:
        super().__init__(path, busy_timeout_s, timing)
        self._read_only = missing

    def explain(self, error: Exception) -> JournalError:
        """The error to raise for one of SQLite's; see :func:`.file.explain`."""
        return explain(error, self._path, writes=False)

    def _open(self) -> None:
        check_readable(self._path)
        self._file = identity(self._path)

    def _carry_out(self, jobs: list[Job[Any]]) -> None:
        done: list[_Done] = []

        def read(connection: sqlite3.Connection) -> None:
            self._connection = connection
            done[:] = [(run, self._try(run)) for run in runs_of(jobs)]

        try:
            read_unwritable(self._path, self._busy_timeout_s, read)
        except Exception as error:
            for job in jobs:
                job.error = error
            return
        for run, found in done:
            _note(run, found)

    def _may_have_changed(self) -> bool:
        return True

    def _tidy_up(self) -> None:
        """Nothing is tidied up."""

    def _close(self, names: list[str]) -> None:
        """Nothing is open."""


def _note(run: list[Job[Any]], found: Found | Exception | None) -> None:
    """Note the results of a run, or the error that all of it failed with."""
    assert found is not None, "reads are not counted"
    if isinstance(found, Exception):
        for job in run:
            job.error = found
    else:
        note_results(run, found)
