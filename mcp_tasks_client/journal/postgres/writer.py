"""The thread that writes a journal in PostgreSQL: a connection, one transaction for all that has gathered.

Statements travel as a pipeline, so that a transaction takes one round trip, however many they are. A
transaction that fails changes nothing; what was in it is then done one by one, so that what is refused
fails alone.

**A connection that is lost** is made anew, for as long as somebody can wait. The server may have committed
the transaction that was under way, or may be about to. So each transaction has a number, which it notes in
the table ``writers``. The new connection waits for the old transaction and forbids its number, which says in
the same moment whether it was committed: nothing is guessed, and nothing of the old connection is written
later.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors

from ...errors import JournalError
from .. import thread
from ..base import Lease
from ..thread import Job, JournalThread
from .clock import DatabaseClock
from .database import Connection, connect, describe, explain, is_away, is_lost, migrate
from .listener import Listener
from .queries import Queries
from .work import Found, Work, in_turn, values_of

__all__ = ["PostgresThread"]

logger = logging.getLogger("mcp_tasks_client")

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
"""Seconds between attempts to reach a database that is away: twice as many each time."""

_ATTEMPTS: Final = 5
"""Times that something is tried which a deadlock or another process's lock prevents."""

_LONG_S: Final = 10.0
"""Seconds after which a transaction that loses its connection seems to be too long for the server."""

_LOOK_S: Final = 5.0
"""Seconds between looks for instructions, in case that a notification was lost."""

_MAY_PASS: Final = (errors.DeadlockDetected, errors.SerializationFailure)

_Job: TypeAlias = Job[Work, Any]


@dataclass(slots=True)
class _Batch:
    """Jobs that are done in one transaction."""

    jobs: list[_Job]
    was_committed: bool = False
    """Whether all of them are, though the replies were lost."""

    number: int | None = None
    """Of the transaction that was tried last."""

    attempts: int = 0
    sent_at: float = 0.0
    is_suspect: bool = False
    """Whether it is to be done one by one, so that what is at fault fails alone."""

    def one_by_one(self) -> list[_Batch]:
        """The same in as many batches as there are jobs."""
        return [_Batch([job], self.was_committed) for job in self.jobs]


class PostgresThread(JournalThread[Work]):
    """A connection to a database, and the thread it lives in.

    Args:
        key: What tells the journal from others in this process.
        dsn: Where the database is.
        schema: The schema of the journal.
        outage_s: Seconds for which what is asked for waits while the database is away.
        renewal: Makes the work that stores a lease.
        end_leases: Makes the work that forgets leases.
    """

    def __init__(
        self,
        key: Hashable,
        dsn: str,
        schema: str,
        outage_s: float,
        renewal: Callable[[Lease], Work],
        end_leases: Callable[[list[str]], Work],
    ) -> None:
        self._dsn = dsn
        self._schema = schema
        self._outage_s = outage_s
        self._make_renewal = renewal
        self._end_leases = end_leases
        self._queries = Queries(schema)
        self._connection: Connection | None = None
        self._writer_id: str | None = None  # in the table of writers; none yet
        self._number = 0  # of the last transaction
        self._unsettled: int | None = None  # the one whose connection was lost
        self._listener: Listener | None = None
        self._look_at = 0.0  # when to look whether others have left instructions
        self._clock = DatabaseClock.of(key)
        super().__init__(key, describe(dsn, schema), outage_s)

    # ── called by event loops ─────────────────────────────────────────────────────────────────

    def explain(self, error: Exception) -> JournalError:
        """The error to raise for one of the database's; see :func:`.database.explain`."""
        return explain(error, str(self._name))

    def listen(self, listener: Callable[[Collection[str]], object]) -> Callable[[], None]:
        """Tell of the records that have instructions, until the function that is returned is called."""
        stop = super().listen(listener)
        with self._lock:
            if self._listener is None:
                self._listener = Listener(self._dsn, self._schema, self._hear)
        return stop

    def _hear(self, record_ids: Collection[str]) -> None:
        """Tell of these records, or have the thread look which there are if there is none."""
        if record_ids:
            self.tell(record_ids)
        else:
            self.note_instruction()
            self._jobs.put(None)

    # ── in the thread ─────────────────────────────────────────────────────────────────────────

    def _is_there(self) -> bool:
        return True

    def _renewal(self, lease: Lease) -> Work:
        return self._make_renewal(lease)

    def _calling(self, function: Callable[[], object]) -> Work:
        return Work(statements=(), read=lambda found: function(), writes=False)

    def _open(self) -> None:
        until = time.monotonic() + self._outage_s
        self._connect(lambda: time.monotonic() < until, self._make_ready)

    def _make_ready(self, connection: Connection) -> None:
        migrate(connection, self._schema)
        self._enrol(connection)

    def _close(self, lease_ids: list[str]) -> None:
        if self._listener is not None:
            self._listener.stop()
        if self._connection is not None:
            with suppress(psycopg.Error):
                if lease_ids:
                    self._transact(_Batch([Job(self._end_leases(lease_ids), waiter=None)]))
                self._connection.execute(self._queries("leave"), {"writer_id": self._writer_id})
            self._connection.close()

    def _rest(self) -> None:
        """Nothing is tidied up. The server does."""

    def _instructed(self, is_to_tell: bool) -> Collection[str]:
        now = time.monotonic()
        if not is_to_tell and now < self._look_at:
            return ()
        self._look_at = now + _LOOK_S
        work = Work(
            statements=("instructed",),
            writes=False,
            read=lambda found: [key for (key,) in found[0]],
            asked_at=-math.inf,  # nobody waits while the database is away
        )
        look = Job[Work, list[str]](work, waiter=None)
        self._carry_out([look])
        if look.error is not None:
            self._look_at = now + thread._TICK_S
            logger.debug("instructions are looked for later: %s", look.error)
            return ()
        return look.result

    def _comes_later(self, work: Work) -> bool:
        return not work.writes  # what is long to read holds up nobody's commit

    def _carry_out(self, jobs: list[_Job]) -> None:
        batches = deque([_Batch(jobs)])
        while batches:
            batch = batches.popleft()
            try:
                self._reconnect(batch)
                if batch.is_suspect:
                    batches.extendleft(reversed(batch.one_by_one()))
                else:
                    self._transact(batch)
            except Exception as error:
                batches.extendleft(reversed(self._after(error, batch)))

    def _after(self, error: Exception, batch: _Batch) -> list[_Batch]:
        """What is left to do of a batch that has failed."""
        batch.attempts += 1
        if not batch.jobs:
            return []
        if self._note_loss(error) and isinstance(error, psycopg.OperationalError):
            if len(batch.jobs) > 1:
                # Once more together, unless one of them is what the server cannot do.
                batch.is_suspect = batch.attempts > 1 or time.monotonic() - batch.sent_at > _LONG_S
            elif batch.jobs[0].work.asked_at <= time.monotonic() - self._outage_s:
                batch.jobs[0].error = error
                return []
            return [batch]
        if isinstance(error, errors.DivisionByZero):  # nobody knows us as a writer any more
            self._writer_id = None
            if batch.attempts < _ATTEMPTS:
                return [batch]
        if len(batch.jobs) > 1:
            return batch.one_by_one()
        if isinstance(error, _MAY_PASS) and batch.attempts < _ATTEMPTS:
            return [batch]
        batch.jobs[0].error = error
        return []

    def _transact(self, batch: _Batch) -> None:
        """Do everything in one transaction, and note the results once it is committed.

        Raises:
            psycopg.Error: Nothing was committed; or nobody knows, if the connection is lost.
        """
        connection = self._connection
        if connection is None:
            raise errors.ConnectionDoesNotExist("the connection was lost")
        runs = in_turn(batch.jobs)
        if any(job.work.writes for job in batch.jobs):
            self._number += 1
            self._unsettled = batch.number = self._number
        begun: psycopg.Cursor[tuple[Any, ...]] | None = None
        sent: list[tuple[list[_Job], list[psycopg.Cursor[tuple[Any, ...]]]]] = []
        sent_at = batch.sent_at = time.monotonic()
        try:
            with connection.pipeline() as pipeline, _all_or_nothing(connection):
                if self._unsettled is not None:
                    values = {"writer_id": self._writer_id, "number": self._number}
                    begun = connection.execute(self._queries("begin"), values, prepare=True)
                for run in runs:
                    work = run[0].work
                    statements = (work.again if batch.was_committed else None) or work.statements
                    values = dict(values_of([job.work for job in run]))
                    cursors = [
                        connection.execute(self._queries(name, in_scope=work.in_scope), values, prepare=True)
                        for name in statements
                    ]
                    sent.append((run, cursors))
                pipeline.sync()
        except psycopg.Error as error:
            if not is_lost(connection, error):
                self._unsettled = None  # it was undone
            raise
        self._unsettled = None
        if begun is not None and time.monotonic() - sent_at < 1:
            self._clock.note(begun.fetchall()[0][1], sent_at)
        for run, cursors in sent:
            _note_results(run, [cursor.fetchall() if cursor.description else [] for cursor in cursors])

    # ── the connection ────────────────────────────────────────────────────────────────────────

    def _note_loss(self, error: Exception) -> bool:
        """Whether the connection is gone; then it is closed."""
        connection = self._connection
        if connection is not None and is_lost(connection, error):
            words = str(error).partition("\n")[0]
            logger.warning("the connection to the journal %s was lost: %s", self._name, words)
            connection.close()
            self._connection = None
        return self._connection is None

    def _reconnect(self, batch: _Batch) -> None:
        """Connect if need be. Whoever of a batch has waited too long gets the error.

        Raises:
            psycopg.Error: It could not be done, and nobody of the batch waits any longer.
        """
        if self._connection is not None and self._writer_id is not None:
            return

        def is_waited_for() -> bool:
            late = time.monotonic() - self._outage_s
            return any(job.work.asked_at > late for job in batch.jobs)

        def settle(connection: Connection) -> None:
            if self._writer_id is None:
                self._enrol(connection)
            elif self._unsettled is not None:
                values = {"writer_id": self._writer_id, "number": self._unsettled}
                row = connection.execute(self._queries("settle"), values).fetchone()
                if row == (True,) and batch.number == self._unsettled:  # else nobody waits for it any more
                    batch.was_committed = True
                self._unsettled = None

        try:
            self._connect(is_waited_for, settle)
        except psycopg.Error as error:
            for job in batch.jobs:
                job.error = error
            batch.jobs = []
            raise

    def _connect(self, is_waited_for: Callable[[], bool], make_ready: Callable[[Connection], None]) -> None:
        """Connect, again and again while somebody waits for it."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                if self._connection is None:
                    self._connection = connect(self._dsn)
                make_ready(self._connection)
                return
            except Exception as error:
                if self._connection is not None:
                    # A lock: what the server still does of a lost connection may last.
                    can_be_tried = is_lost(self._connection, error) or isinstance(
                        error, errors.LockNotAvailable
                    )
                    self._connection.close()
                    self._connection = None
                else:
                    can_be_tried = is_away(error)
                if not (can_be_tried and is_waited_for()):
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _enrol(self, connection: Connection) -> None:
        writer_id, at = str(uuid.uuid4()), time.monotonic()
        (shown,) = connection.execute(self._queries("enrol"), {"writer_id": writer_id}).fetchall()[0]
        self._clock.note(shown, at)
        self._writer_id, self._number, self._unsettled = writer_id, 0, None


@contextmanager
def _all_or_nothing(connection: Connection) -> Iterator[None]:
    """Close the connection if not everything could be sent: the end of a pipeline commits what was sent."""
    try:
        yield
    except BaseException as error:
        if getattr(error, "sqlstate", None) is None:  # it is not the server that says so
            connection.close()
        raise


def _note_results(run: Iterable[_Job], found: Found) -> None:
    """Give each job of a run what its statements returned, of which it gets its own rows."""
    rows_of: list[dict[str, list[tuple[Any, ...]]]] = []
    for rows in found:
        by_key: dict[str, list[tuple[Any, ...]]] = {}
        for row in rows:
            by_key.setdefault(row[0] if row else "", []).append(row[1:])
        rows_of.append(by_key)
    for job in run:
        work = job.work
        job.error = None
        try:
            job.result = work.read(
                found if work.row is None else [by_key.get(work.key, []) for by_key in rows_of]
            )
        except Exception as error:
            job.error = error
