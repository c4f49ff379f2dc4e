"""The thread that writes a journal in PostgreSQL: a connection, one transaction for all that has gathered.

Statements travel as a pipeline, so that a transaction takes one round trip, however many they are. A
transaction that fails changes nothing; its works are then done one by one, so that a work that is refused
fails alone.

**A connection that is lost** is made anew, for as long as somebody can wait. The server may have committed
the transaction that was under way, or may be about to. So each transaction has a number, which it notes in
the table ``writers``. The new connection waits for the old transaction and forbids its number, which says in
the same moment whether it was committed: nothing is guessed, and nothing of the old connection is written
later.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors

from ...errors import JournalError
from ...policy import growing_delay
from ..medium import Timing
from ..statements import Statement, Statements
from ..thread import JournalThread
from ..work import Job, group_jobs, note_results, release
from .clock import DatabaseClock
from .database import ENDS, Connection, NotEnrolled, explain, is_away, is_lost, make_tables, send_all
from .dialect import POSTGRES, rows_json
from .listener import Listener

__all__ = ["PostgresThread"]

logger = logging.getLogger("mcp_tasks_client")

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
"""Seconds between attempts to reach a database that is away: twice as many each time."""

_LOOK_S: Final = 5.0
"""Seconds between looks for instructions, in case that a notification was lost."""

_MAY_PASS: Final = (errors.DeadlockDetected, errors.SerializationFailure)

_Job: TypeAlias = Job[Any]
_Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]


@dataclass(slots=True)
class _Transaction:
    """A transaction that writes, and whether it is known to be committed though the reply was lost."""

    number: int
    was_committed: bool = False


@dataclass(slots=True)
class _Batch:
    """Jobs that are done in one transaction, and the one that was tried last."""

    jobs: list[_Job]
    tried: _Transaction | None = None

    @property
    def was_committed(self) -> bool:
        return self.tried is not None and self.tried.was_committed


class PostgresThread(JournalThread):
    """A connection to a database, and the thread it lives in.

    Args:
        key: Tells the journal from others in this process.
        connect: Makes a connection.
        name: The name of the journal in messages.
        schema: The schema of the journal.
        outage_s: Seconds for which works wait while the database is away.
        timing: Of the thread.
    """

    def __init__(
        self,
        key: Hashable,
        connect: Callable[[], Connection],
        name: str,
        schema: str,
        outage_s: float,
        timing: Timing,
    ) -> None:
        self._make_connection = connect
        self._schema = schema
        self._outage_s = outage_s
        self._statements = Statements(POSTGRES, schema)
        self._connection: Connection | None = None
        self._writer_id: str | None = None  # in the table of writers; none yet
        self._number = 0  # of the last transaction
        self._unsettled: _Transaction | None = None  # the one whose connection was lost
        self._listener: Listener | None = None
        self._clock = DatabaseClock.of(key)
        super().__init__(key, name, outage_s, timing)
        self._look_s = _LOOK_S

    # ── called by event loops ─────────────────────────────────────────────────────────────────

    def explain(self, error: Exception) -> JournalError:
        """The error to raise for one of the database's; see :func:`.database.explain`."""
        return explain(error, str(self._name))

    def listen(self, listener: Callable[[Collection[str]], object]) -> Callable[[], None]:
        """Tell of the records that have instructions, until the function that is returned is called."""
        stop = super().listen(listener)
        with self._lock:
            if self._listener is None:
                self._listener = Listener(self._make_connection, self._schema, self._hear)
        return stop

    def _hear(self, record_ids: Collection[str]) -> None:
        """Tell of these records, or have the thread look which there are if there is none."""
        if record_ids:
            self.tell(record_ids)
        else:
            self.look_for_instructions()

    # ── in the thread ─────────────────────────────────────────────────────────────────────────

    def _is_there(self) -> bool:
        return True

    def _open(self) -> None:
        self._connect(time.monotonic() + self._outage_s)

    def _close(self, names: list[str]) -> None:
        if self._listener is not None:
            self._listener.stop()
        if self._connection is not None:
            with suppress(psycopg.Error):
                if names:
                    self._transact(_Batch([Job(release(names), None)]))
                _execute(self._connection, self._statements("leave"), writer_id=self._writer_id)
            self._connection.close()

    def _tidy_up(self) -> None:
        """Nothing is tidied up. The server does."""

    def _may_have_changed(self) -> bool:
        return True  # the listener hears it at once, but a notification may be lost

    def _carry_out(self, jobs: list[_Job]) -> None:
        left = deque([_Batch(jobs)])
        while left:
            try:
                if self._connection is None:
                    asked_at = max(job.work.asked_at for batch in left for job in batch.jobs)
                    self._connect(asked_at + self._outage_s)
            except Exception as error:  # nobody waits any longer
                for job in (job for batch in left for job in batch.jobs):
                    job.error = error
                return
            batch = left.popleft()
            try:
                self._transact(batch)
            except Exception as error:
                left.extendleft(reversed(self._left_of(batch, error)))

    def _left_of(self, batch: _Batch, error: Exception) -> list[_Batch]:
        """The batches that are left of one that has failed: each job alone, so that it fails alone."""
        may_pass = self._drop_if_lost(error) or isinstance(error, _MAY_PASS)
        if len(batch.jobs) > 1:
            return [_Batch([job], batch.tried) for job in batch.jobs]
        (job,) = batch.jobs
        if may_pass and time.monotonic() < job.work.asked_at + self._outage_s:
            return [batch]
        job.error = error
        return []

    def _transact(self, batch: _Batch) -> None:
        """Do everything in one transaction, and note the results once it is committed.

        Raises:
            psycopg.Error: Nothing was committed; or nobody knows, if the connection is lost.
        """
        connection = self._connection
        assert connection is not None
        if any(job.work.writes for job in batch.jobs):
            self._number += 1
            self._unsettled = _Transaction(self._number)
        begun: _Cursor | None = None
        sent: list[tuple[list[_Job], list[_Cursor]]] = []
        was_committed, sent_at = batch.was_committed, time.monotonic()
        if not was_committed:
            batch.tried = self._unsettled
        try:
            with connection.pipeline() as pipeline, _all_or_nothing(connection):
                if self._unsettled is not None:
                    begun = _execute(
                        connection, self._statements("begin"), writer_id=self._writer_id, number=self._number
                    )
                for run in group_jobs(batch.jobs):
                    work = run[0].work
                    statements = (work.again if was_committed else None) or work.statements
                    cursors = [self._send(connection, name, run) for name in statements]
                    sent.append((run, cursors))
                send_all(connection)
                pipeline.sync()
        except psycopg.Error as error:
            if not is_lost(connection, error):
                self._unsettled = None  # it was undone
            raise
        self._unsettled = None
        if begun is not None and time.monotonic() - sent_at < 1:
            self._clock.note(begun.fetchall()[0][1], sent_at)
        for run, cursors in sent:
            note_results(run, [one.fetchall() if one.description else [(one.rowcount,)] for one in cursors])

    def _send(self, connection: Connection, name: str, run: list[_Job]) -> _Cursor:
        work = run[0].work
        statement = self._statements(name, in_scope="scope" in work.values)
        if not statement.columns:
            return _execute(connection, statement, **work.values)
        given = [job.work.row for job in run if job.work.row is not None]
        return _execute(
            connection,
            statement,
            rows=rows_json([{column: row[column] for column in statement.columns} for row in given]),
        )

    # ── the connection ────────────────────────────────────────────────────────────────────────

    def _connect(self, until: float) -> None:
        """Connect and get ready, again and again until then, by the monotonic clock.

        Raises:
            psycopg.Error: It could not be done.
            JournalError: The schema is none of ours.
        """
        for attempt in count(1):
            connection: Connection | None = None
            try:
                connection = self._make_connection()
                self._make_ready(connection)
                self._connection = connection
                return
            except Exception as error:
                if connection is None:
                    may_pass = is_away(error)
                else:
                    # A lock: what the server still does of a lost connection may last.
                    may_pass = is_lost(connection, error) or isinstance(error, errors.LockNotAvailable)
                    connection.close()
                if not may_pass or time.monotonic() >= until:
                    raise
            time.sleep(growing_delay(_FIRST_PAUSE_S, attempt, _LONGEST_PAUSE_S))

    def _make_ready(self, connection: Connection) -> None:
        """Find out what became of the transaction whose connection was lost, and be known as a writer."""
        if self._unsettled is not None:
            number = self._unsettled.number
            settled = _execute(
                connection, self._statements("settle"), writer_id=self._writer_id, number=number
            )
            row = settled.fetchone()
            self._unsettled.was_committed = row == (True,)
            self._unsettled = None
            if row is None:
                self._writer_id = None
        if self._writer_id is None:
            make_tables(connection, self._schema)
            writer_id, at = str(uuid.uuid4()), time.monotonic()
            (shown,) = _execute(connection, self._statements("enrol"), writer_id=writer_id).fetchall()[0]
            self._clock.note(shown, at)
            self._writer_id, self._number = writer_id, 0

    def _drop_if_lost(self, error: Exception) -> bool:
        """Close the connection if the error means that it is lost.

        Returns:
            Whether the work may be done again over a new one.
        """
        connection = self._connection
        assert connection is not None
        if not is_lost(connection, error):
            return False
        words = "it is not known there any more" if isinstance(error, NotEnrolled) else str(error)
        logger.warning("the connection to the journal %s was lost: %s", self._name, words.partition("\n")[0])
        connection.close()
        self._connection = None
        # Any other error is a mistake in what we send, which a new connection does not mend.
        return isinstance(error, (psycopg.OperationalError, *ENDS))


@contextmanager
def _all_or_nothing(connection: Connection) -> Iterator[None]:
    """Close the connection if not everything could be sent: the end of a pipeline commits what was sent."""
    try:
        yield
    except BaseException as error:
        if getattr(error, "sqlstate", None) is None:  # it is not the server that says so
            connection.close()
        raise


def _execute(connection: Connection, statement: Statement, **values: Any) -> _Cursor:
    # As bytes, which is what psycopg takes for SQL that was not typed in. Prepared, since there are few.
    return connection.execute(statement.text.encode(), values, prepare=True)
