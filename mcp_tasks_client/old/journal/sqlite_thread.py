"""The one thread that touches a journal's file, and group commit.

Callers leave an operation and wait for it. The thread takes whatever has gathered, runs all
that writes in one transaction and wakes the callers once that is committed, so that a thousand
of them share one sync of the disk. SQLite's calls block, which nothing in an event loop may do;
a thread for each call, or a commit for each, is ten times slower.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeAlias, TypeVar

import anyio

from ..errors import DrivenElsewhereError, JournalError
from ..signals import Signal, signal
from .sqlite_file import connect, explain, identity, note_use

__all__ = ["Job", "WriterThread"]

T = TypeVar("T")
_Soon: TypeAlias = Callable[..., object]

_CLOSING_S: Final = 10.0


class Job(Generic[T]):
    """An operation on the connection that a task of some event loop waits for."""

    def __init__(self, operation: Callable[[sqlite3.Connection], T], *, writes: bool) -> None:
        self.operation = operation
        self.writes = writes
        self.error: Exception | None = None
        self.soon = _soon()
        self.done = signal()
        self._result: list[T] = []

    def run(self, connection: sqlite3.Connection) -> None:
        """Run the operation. What it raises is kept for whoever waits."""
        try:
            self._result = [self.operation(connection)]
        except Exception as error:
            self.error = error

    async def wait(self, path: Path) -> T:
        """Wait until the operation is done and, if it writes, committed.

        Raises:
            JournalError: It failed, or its commit did.
        """
        await self.done.wait()
        match self.error:
            case None:
                return self._result[0]
            case DrivenElsewhereError():
                raise self.error
            case JournalError():
                raise explain(self.error, path)
            case _:
                raise explain(self.error, path) from self.error


class WriterThread:
    """A connection and the thread it lives in, from the opening of a file to its closing.

    Attributes:
        users: How many have it open; kept by the journal.
    """

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.users = 0
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._jobs: SimpleQueue[Job[Any]] = SimpleQueue()
        self._last: Job[None] | None = None
        # A daemon, so that a journal that nobody closed does not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._serve, name="mcp-tasks-journal", daemon=True)
        self._thread.start()

    def put(self, operation: Callable[[sqlite3.Connection], T], *, writes: bool) -> Job[T]:
        """Queue an operation. It will run, whether or not anybody waits for it.

        Raises:
            JournalError: The process was forked since the journal was opened.
        """
        if not self._thread.is_alive():
            raise JournalError(
                f"the journal {self._path} was opened in another process, before a fork; "
                "fork before it is opened, or start this process by spawn"
            )
        job = Job(operation, writes=writes)
        self._jobs.put(job)
        return job

    async def stop(self) -> None:
        """Finish what is queued, close the file and end the thread. Nothing may be put afterwards."""
        if not self._thread.is_alive():
            return  # it is that of the process we were forked from
        job = Job(_nothing, writes=False)
        self._last = job
        self._jobs.put(job)
        # Twice a wait for another process's lock, and time for the disk; shielded, for background
        # work must not outlive the scope it belongs to.
        with anyio.move_on_after(2 * self._busy_timeout_s + _CLOSING_S, shield=True):
            await job.done.wait()
            self._thread.join(1.0)  # it has only to return

    def _serve(self) -> None:
        try:
            connection = connect(self._path, self._busy_timeout_s)
        except Exception as error:
            self._fail(error)
            return
        opened = identity(self._path)
        note_use(opened)
        batch: list[Job[Any]] = []
        while self._last not in batch:
            _wake(batch)
            batch = self._take()
            self._commit(connection, [job for job in batch if job.writes], opened)
            # After the commit, and outside of it: a reader needs no lock, and may see everything.
            for job in batch:
                if not job.writes:
                    job.run(connection)
        with suppress(sqlite3.Error):  # everything is committed; the next opening tidies up
            connection.close()
        note_use(opened, ended=True)
        _wake(batch)

    def _fail(self, error: Exception) -> None:
        """Answer everything with the error of opening, until those who asked have let go."""
        batch: list[Job[Any]] = []
        while self._last not in batch:
            batch = self._take()
            for job in batch:
                job.error = error
            _wake(batch)

    def _take(self) -> list[Job[Any]]:
        first = self._jobs.get()
        return [first, *(self._jobs.get() for _ in range(self._jobs.qsize()))]

    def _commit(
        self, connection: sqlite3.Connection, jobs: list[Job[Any]], opened: tuple[int, int] | None
    ) -> None:
        """Run what writes in one transaction: what fails by itself fails alone, a commit for all."""
        if not jobs:
            return
        try:
            connection.execute("BEGIN IMMEDIATE")
            for job in jobs:
                job.run(connection)
                if job.error is not None and not connection.in_transaction:
                    raise job.error  # a full disk, for one, undoes the whole transaction
            connection.execute("COMMIT")
            if identity(self._path) != opened:
                raise JournalError(
                    f"the journal {self._path} was removed or replaced while it was in use, so what is "
                    "written now would be lost; put it back, or close and open it to begin an empty one"
                )
        except Exception as error:
            with suppress(sqlite3.Error):  # none is open if SQLite gave it up itself
                connection.execute("ROLLBACK")
            for job in jobs:
                job.error = error


def _nothing(connection: sqlite3.Connection) -> None:
    pass


def _soon() -> _Soon:
    """The function by which another thread has this event loop call something."""
    # anyio names no public function for this in all the versions we allow, nor needs sniffio in
    # all of them. Trio first, as it may run as a guest inside of asyncio.
    if "trio" in sys.modules:
        import trio

        with suppress(RuntimeError):
            trio.lowlevel.current_task()  # its host has a token as well, one that ends before the host does
            return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


def _wake(jobs: Iterable[Job[Any]]) -> None:
    """Wake those who wait, with one call for each event loop."""
    loops: defaultdict[_Soon, list[Signal]] = defaultdict(list)
    for job in jobs:
        loops[job.soon].append(job.done)
    for soon, events in loops.items():
        # Both loops say by a RuntimeError that they have closed: nobody waits there any more.
        with suppress(RuntimeError):
            soon(_set, events)


def _set(events: list[Signal]) -> None:
    for event in events:
        event.set()
