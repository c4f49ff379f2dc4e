"""The one thread of this process that touches a journal's file, and group commit.

However many journals of a process keep the same file, they share its thread and its connection. Callers
leave an operation and wait for it. The thread takes whatever has gathered, runs all that writes in one
transaction and wakes the callers once that is committed, so that a thousand of them share one sync of the
disk. SQLite's calls block, which nothing in an event loop may do; a thread for each call, or a commit for
each, is ten times slower.

What nobody waits for shares those transactions: deliveries, and the renewal of leases.

A run of equal writes is one statement. With each statement Python's lock is given away, and a busy event loop
gives it back up to 5 ms later.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import os
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeAlias, TypeVar

import anyio

from ..errors import DrivenElsewhereError, JournalError
from ..uncut import caller_of_loop, on_asyncio
from .base import Lease, LeaseSource
from .row import RowWrite, not_open
from .sqlite_file import connect, explain, give_back, identity

__all__ = ["Job", "WriterThread"]

logger = logging.getLogger("mcp_tasks_client")

T = TypeVar("T")
Operation: TypeAlias = Callable[[sqlite3.Connection], T]

_LINGER_S: Final = 10.0
"""Seconds for which a file stays open after its last user has left without waiting."""

_GATHER_S: Final = 0.005
"""Seconds for which the thread lets more gather, if several waited already when it came to look. Who is
alone never waits for that. It saves an eighth of the CPU of 2,000 dropped-in tasks."""

_TICK_S: Final = 1.0
"""Seconds after which the thread looks, by itself, at the leases, at what nobody waits for, and whether
anybody is left who has the file open."""

_RUNS: Final = (256, 64, 16, 4)
"""How many equal writes become one statement. Few numbers, since each makes a statement that is compiled once
and kept; to compile it costs far more than to run it."""

_CLOSING_S: Final = 10.0
"""Seconds that the last user's leaving allows the disk."""

_EXIT_S: Final = 2.0
"""Seconds for which the end of the interpreter waits for the thread, and so does a fork."""

_INSTRUCTED: Final = "SELECT DISTINCT record_id FROM instructions WHERE heeded = 0"

_FREE_PAGES_KEPT: Final = 256
"""Free pages that stay in the file while it is in use (1 MB), for the next records."""


class Waiter:
    """A task of some event loop that waits for the thread."""

    def __init__(self) -> None:
        self.call_soon = caller_of_loop()
        """Has the event loop call a function; may be called from any thread."""

        # On asyncio an event costs three times as much as a future.
        self._done: asyncio.Future[None] | anyio.Event = (
            asyncio.get_running_loop().create_future() if on_asyncio() else anyio.Event()
        )

    def wake(self) -> None:
        """End :meth:`wait`. To be called in the event loop."""
        if isinstance(self._done, anyio.Event):
            self._done.set()
        elif not self._done.done():  # cancelled, with the task
            self._done.set_result(None)

    async def wait(self) -> None:
        """Return once the thread is done."""
        if isinstance(self._done, anyio.Event):
            await self._done.wait()
        else:
            await self._done


class Job(Generic[T]):
    """An operation on the connection, and who waits for it.

    Args:
        operation: What the thread runs.
        writes: Whether it needs a transaction.
        waiter: Who waits; ``None`` if nobody does.
        row: The same as a write of one row, where it is one.
    """

    def __init__(
        self, operation: Operation[T], *, writes: bool, waiter: Waiter | None, row: RowWrite | None = None
    ) -> None:
        self.writes = writes
        self.waiter = waiter
        self.row = row
        self.error: Exception | None = None
        self.result: T
        self._operation = operation

    def run(self, connection: sqlite3.Connection) -> None:
        """Run the operation. What it raises is kept for whoever waits."""
        self.error = None
        try:
            self.result = self._operation(connection)
        except Exception as error:
            self.error = error

    async def wait(self, path: Path) -> T:
        """Wait until the operation is done and, if it writes, committed.

        Raises:
            JournalError: It failed, or its commit did.
        """
        assert self.waiter is not None
        await self.waiter.wait()
        match self.error:
            case None:
                return self.result
            case DrivenElsewhereError():
                raise self.error
            case JournalError():
                raise explain(self.error, path)
            case _:
                raise explain(self.error, path) from self.error


class WriterThread:
    """A connection and the thread it lives in, from the opening of a file to its closing.

    Its users are the journals of this process that have the file open. :meth:`joined` makes it.

    Args:
        path: The file, without symbolic links.
        busy_timeout_s: Seconds to wait while another process writes.
        renew: Stores a lease; returns false if it had run out or was not there.
        end_lease: Forgets a lease.

    Attributes:
        is_ready: Whether the file is open.
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
        self._file: tuple[int, int] | None = None  # what was opened; nothing yet
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._users = 0
        self._close_at = math.inf
        self._ended = False
        self.is_ready = False
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()  # None: look what else there is to do
        self._unattended: list[Job[Any]] = []
        self._failing = False  # the last write that nobody waits for has failed
        self._sources: dict[str, LeaseSource] = {}  # by lease_id
        self._closing: list[Waiter] = []
        self._listeners: dict[object, Callable[[Collection[str]], object]] = {}
        self._is_to_tell = False  # a listener is new, or this process has left an instruction
        self._seen_version = -1  # of the file, when instructions were looked for last
        self._look_at = 0.0  # when to look whether others have left any
        # A daemon, so that a journal that nobody closed does not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._serve, name="mcp-tasks-journal", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    # ── called by event loops ─────────────────────────────────────────────────────────────────

    @classmethod
    def joined(
        cls,
        path: Path,
        busy_timeout_s: float,
        renew: Callable[[sqlite3.Connection, Lease], bool],
        end_lease: Callable[[sqlite3.Connection, str], object],
    ) -> WriterThread:
        """The thread of a file, with one more user: the one that there is in this process, or a new one.

        Args: see the class. Those of whoever came first count.
        """
        with _table:
            writer = _WRITERS.get(path)
            if writer is None or not writer._enter():
                writer = _WRITERS[path] = cls(path, busy_timeout_s, renew, end_lease)
                writer._enter()
            return writer

    def _enter(self) -> bool:
        """Count one more user. False if the thread has ended, or its file is not at its path any more."""
        with self._lock:
            if self._ended or (self._file is not None and identity(self._path) != self._file):
                return False
            self._users += 1
            self._close_at = math.inf
            for waiter in self._closing:  # the file stays open after all
                self._put_barrier(waiter)
            self._closing = []
            return True

    def leave_soon(self) -> None:
        """Count one user less. The last one's leaving closes the file some seconds later."""
        self._leave(_LINGER_S)

    def leave_unseen(self) -> None:
        """Have the thread do :meth:`leave_soon`.

        For finalizers. They run in the middle of anything, also while this thread holds the lock.
        """
        self._jobs.put(Job(lambda connection: self.leave_soon(), writes=False, waiter=None))

    async def leave(self) -> None:
        """Count one user less, and finish what is queued. The last one's leaving closes the file."""
        if os.getpid() != self._pid:
            return  # the thread is the parent's
        waiter = Waiter()
        self._leave(0, waiter)
        # Twice a wait for another process's lock, and time for the disk; shielded, since background
        # work must not outlive the scope it belongs to.
        with anyio.move_on_after(2 * self._busy_timeout_s + _CLOSING_S, shield=True):
            await waiter.wait()

    def put(self, operation: Operation[T], *, writes: bool, row: RowWrite | None = None) -> Job[T]:
        """Queue an operation. It will run, whether or not anybody waits for it.

        Args:
            operation: What the thread runs.
            writes: Whether it needs a transaction.
            row: The same as a write of one row, where it is one.

        Raises:
            JournalError: The journal is not open, or the process was forked since it was opened.
        """
        with self._lock:
            self._check_open()
            job = Job(operation, writes=writes, waiter=Waiter(), row=row)
            self._jobs.put(job)
        return job

    def put_unattended(self, operation: Operation[object], row: RowWrite | None) -> None:
        """Queue a write that nobody waits for. It comes before whatever is queued later.

        Raises:
            JournalError: As from :meth:`put`.
        """
        with self._lock:
            self._check_open()
            self._unattended.append(Job(operation, writes=True, waiter=None, row=row))

    def keep_renewing(self, source: LeaseSource) -> None:
        """Store the lease of ``source`` whenever it is due.

        Raises:
            JournalError: As from :meth:`put`.
        """
        with self._lock:
            self._check_open()
            self._sources[source.lease_id] = source

    def stop_renewing(self, lease_id: str) -> None:
        """Forget who renews a lease that was given up."""
        with self._lock:
            self._sources.pop(lease_id, None)

    def listen(self, listener: Callable[[Collection[str]], object]) -> Callable[[], None]:
        """Tell of the records that have instructions, until the function that is returned is called.

        Raises:
            JournalError: As from :meth:`put`.
        """
        token = object()
        with self._lock:
            self._check_open()
            self._listeners[token] = listener
            self._is_to_tell = True  # of those that there are, within a second

        def stop() -> None:
            with self._lock:
                self._listeners.pop(token, None)

        return stop

    def note_instruction(self) -> None:
        """Have the listeners told once the present transaction is committed. For operations."""
        self._is_to_tell = True

    def check_process(self) -> None:
        """Refuse to be used in a process that was forked since.

        Raises:
            JournalError: This is such a one.
        """
        if os.getpid() != self._pid:
            raise JournalError(
                f"the journal {self._path} was opened in another process, before a fork; "
                "fork before it is opened, or start this process by spawn"
            )

    def _check_open(self) -> None:
        self.check_process()
        if not self._users:
            raise not_open(self._path)

    def _leave(self, after_s: float, waiter: Waiter | None = None) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                if waiter is not None:
                    self._put_barrier(waiter)
                return
            self._close_at = time.monotonic() + after_s
            if waiter is not None:
                self._closing.append(waiter)
                self._jobs.put(None)

    def _put_barrier(self, waiter: Waiter) -> None:
        """Have one woken when all is done that is queued by now."""
        self._jobs.put(Job(lambda connection: None, writes=False, waiter=waiter))

    def _close_at_exit(self) -> None:
        """Write what nobody waits for, even if the interpreter ends before it was time."""
        with self._lock:
            self._users = 0
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Close the file at once, if its last user has left, and wait for that."""
        with self._lock:
            if self._users:
                return
            self._close_at = -math.inf
            self._jobs.put(None)
        self._thread.join(_EXIT_S)  # returns at once in a child of the process, where the thread is not

    # ── the thread ────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        try:
            connection = connect(self._path, self._busy_timeout_s)
        except Exception as error:
            self._refuse_all(error)
            return
        self._file = identity(self._path)
        self.is_ready = True
        while not self._try_to_end():
            jobs = self._take()
            writing = [job for job in jobs if job.writes]
            has_written = self._commit(connection, self._take_unattended(), writing)
            _wake_for(writing)
            # After the commit, and outside of it: a reader needs no lock, and may see everything.
            reading = [job for job in jobs if not job.writes]
            for job in reading:
                job.run(connection)
            _wake_for(reading)
            self._tell_of_instructions(connection)
            if not (jobs or has_written):  # not in between, since looking for pages costs as much as a commit
                give_back(connection, keep=_FREE_PAGES_KEPT)
        while give_back(connection, keep=0):
            pass
        with suppress(sqlite3.Error):  # everything is committed; the next opening tidies up
            # Those of clients that were dropped, and that nobody therefore gave up.
            for lease_id in [lease_id for lease_id, source in self._sources.items() if source.end()]:
                self._end_lease(connection, lease_id)
            connection.close()
        self._end()

    def _refuse_all(self, error: Exception) -> None:
        """Answer everything with the error of opening, until those who asked have left."""
        while not self._try_to_end():
            jobs = self._take()
            self._take_unattended()
            for job in jobs:
                job.error = error
            _wake_for(jobs)
        self._end()

    def _try_to_end(self) -> bool:
        """Whether the file is to be closed and nothing is left to do; then nobody can enter any more."""
        with self._lock:
            if self._close_at > time.monotonic():
                return False
            self._ended = self._jobs.empty() and not self._unattended
            return self._ended

    def _end(self) -> None:
        atexit.unregister(self._close_at_exit)
        with _table:
            if _WRITERS.get(self._path) is self:  # else its file was opened anew meanwhile
                del _WRITERS[self._path]
        _wake(self._closing)

    def _take(self) -> list[Job[Any]]:
        """Wait for jobs. None come back where only what nobody waits for is to be done."""
        if self._jobs.qsize() > 1:
            time.sleep(_GATHER_S)
        try:
            job = self._jobs.get(timeout=min(_TICK_S, max(0.0, self._close_at - time.monotonic())))
        except Empty:
            return []
        jobs = [job, *(self._jobs.get() for _ in range(self._jobs.qsize()))]
        return [job for job in jobs if job is not None]

    def _take_unattended(self) -> list[Job[Any]]:
        with self._lock:
            taken, self._unattended = self._unattended, []
        return taken

    def _commit(
        self,
        connection: sqlite3.Connection,
        unattended: list[Job[Any]],
        awaited: list[Job[Any]],
    ) -> bool:
        """Run what writes in one transaction: what fails by itself fails alone, a commit for all.

        Returns:
            Whether there was anything to write.
        """
        with self._lock:
            sources = list(self._sources.values())
        renewals = [(source, lease, self._renewal(lease)) for source, lease in _due_leases(sources)]
        unattended = [*unattended, *(job for *_, job in renewals)]
        jobs = [*unattended, *awaited]
        if not jobs:
            return False
        try:
            if not _transact(connection, _runs(jobs)):
                _transact(connection, ([job] for job in jobs))
            if identity(self._path) != self._file:
                raise JournalError(
                    f"the journal {self._path} was removed or replaced while it was in use, so what is "
                    "written now would be lost; put it back, or close and open it to begin an empty one"
                )
        except Exception as error:
            with suppress(sqlite3.Error):  # none is open if SQLite gave it up itself
                connection.execute("ROLLBACK")
            for job in jobs:
                job.error = error
        self._tell(next((job.error for job in unattended if job.error is not None), None))
        for source, lease, job in renewals:
            if job.error is None:
                with _logged("the renewal of a lease"):
                    source.renewed(lease, had_lapsed=not job.result)
        return True

    def _tell_of_instructions(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            listeners = list(self._listeners.values())
            is_to_tell, self._is_to_tell = self._is_to_tell, False
        now = time.monotonic()
        if not listeners or not (is_to_tell or now >= self._look_at):
            return
        self._look_at = now + _TICK_S
        with _logged("instructions"):
            # Changes with each commit of another connection, and costs less than any look at a table.
            version = connection.execute("PRAGMA data_version").fetchone()[0]
            if version == self._seen_version and not is_to_tell:
                return
            self._seen_version = -1  # should the look fail, it is taken again
            found = [key for (key,) in connection.execute(_INSTRUCTED)]
            self._seen_version = version
            for listener in listeners if found else ():
                with _logged("instructions"):  # one that fails, such as that of a loop that has ended
                    listener(found)

    def _renewal(self, lease: Lease) -> Job[bool]:
        return Job(lambda connection: self._renew(connection, lease), writes=True, waiter=None)

    def _tell(self, error: Exception | None) -> None:
        """Log the first failure of a row."""
        if error is not None and not self._failing:
            logger.warning(
                "leases will be tried again, and what was delivered may be given out once more: %s",
                explain(error, self._path),
            )
        self._failing = error is not None


_WRITERS: Final[dict[Path, WriterThread]] = {}
"""The threads of this process, by their files."""

_table = threading.Lock()


def _close_unused() -> None:
    for writer in list(_WRITERS.values()):
        writer._close_if_unused()


def _make_new_locks() -> None:
    """In a child of the process nobody would release what another thread held at the fork."""
    global _table
    _table = threading.Lock()
    for writer in _WRITERS.values():
        writer._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # A child cannot open what its parent has open: SQLite in it would count on locks that it does not have.
    os.register_at_fork(before=_close_unused, after_in_child=_make_new_locks)


def _runs(jobs: list[Job[Any]]) -> Iterator[list[Job[Any]]]:
    """The jobs in their order, with equal writes that follow each other together."""
    for statement, group in groupby(jobs, lambda job: job.row and job.row.statement):
        run = list(group)
        while run:
            size = next((size for size in _RUNS if statement is not None and size <= len(run)), 1)
            yield run[:size]
            del run[:size]


def _transact(connection: sqlite3.Connection, runs: Iterable[list[Job[Any]]]) -> bool:
    """Run jobs in one transaction. If not each of a run changes its row, nothing is written.

    Returns:
        Whether it is committed.
    """
    connection.execute("BEGIN IMMEDIATE")
    for run in runs:
        if len(run) == 1:
            run[0].run(connection)
            if run[0].error is not None and not connection.in_transaction:
                raise run[0].error  # a full disk, for one, undoes the whole transaction
        elif not _write_at_once(connection, run):
            connection.execute("ROLLBACK")
            return False
    connection.execute("COMMIT")
    return True


def _write_at_once(connection: sqlite3.Connection, run: list[Job[Any]]) -> bool:
    rows = [job.row for job in run if job.row is not None]
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


def _due_leases(sources: Iterable[LeaseSource]) -> Iterator[tuple[LeaseSource, Lease]]:
    for source in sources:
        with _logged("the lease of this process"):
            lease = source.due()
            if lease is not None:
                yield source, lease


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Keep the thread alive, whatever the code of others raises."""
    try:
        yield
    except Exception:
        logger.exception("%s could not be looked after", what)


def _wake_for(jobs: Iterable[Job[Any]]) -> None:
    _wake(job.waiter for job in jobs if job.waiter is not None)


def _wake(waiters: Iterable[Waiter]) -> None:
    """Wake those who wait, with one call for each event loop."""
    loops: defaultdict[Callable[..., object], list[Waiter]] = defaultdict(list)
    for waiter in waiters:
        loops[waiter.call_soon].append(waiter)
    for call_soon, sleeping in loops.items():
        # Both loops say by a RuntimeError that they have closed: nobody waits there any more.
        with suppress(RuntimeError):
            call_soon(_wake_each, sleeping)


def _wake_each(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        waiter.wake()
