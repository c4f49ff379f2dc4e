"""The thread that writes a journal in PostgreSQL: a connection, and one transaction for gathered works.

Statements travel as a pipeline, so that a transaction takes one round trip, however many they are. A
transaction that fails changes nothing; its works are then done one by one, so that a work that is refused
fails alone. A work that waits for a row is tried again by itself, and lets the others pass.

**A connection that is lost** is made anew, for as long as a work can wait. The server may have committed the
transaction that was under way, or may be about to. So each transaction has a number, which it notes in the
table ``writers``. The new connection ends the old one's process of the server, waits for the old transaction
and forbids its number, which says in the same moment whether it was committed: nothing is guessed, and
nothing of the old connection is written later.

**Leases** are renewed by the thread that listens, over its own connection: no batch and no row holds it up.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Hashable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import psycopg

from ...aio.clock import elapsed_s
from ...errors import JournalError
from ...policy import growing_delay
from ..base import Lease, LeaseSource
from ..medium import Timing
from ..statements import Statement, Statements
from ..thread import JournalThread, note_renewal
from ..work import Job, also_of, group_jobs, note_results, release, renew_lease
from .clock import DatabaseClock
from .database import (
    SHORTEST_ANSWER_S,
    Backend,
    Connection,
    NotEnrolled,
    check_tables,
    end_backend,
    explain,
    find_missing_right,
    is_lost,
    make_tables,
    may_pass,
    send_all,
)
from .dialect import POSTGRES, rows_json
from .listener import Listener

__all__ = ["PostgresThread"]

logger = logging.getLogger("mcp_tasks_client")

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
"""Seconds between attempts to reach a database that is away: twice as many each time, up to these."""

_PAUSES: Final = 5
"""Or up to this part of the time that a work waits."""

_LOOK_S: Final = 5.0
"""Seconds between looks for instructions, in case that a notification was lost."""

_LOCKED_PAUSE_S: Final = 0.5
"""Seconds before a work that a lock or a full disk has refused is tried again."""

_ASKED: Final = "?"
"""The notification that a call has asked something; see the function tell_of_question."""

_Job: TypeAlias = Job[Any]
_Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]


@dataclass(slots=True)
class _Transaction:
    """A transaction that writes, and whether it is known to be committed though the reply was lost."""

    number: int
    was_committed: bool = False


class PostgresThread(JournalThread):
    """A connection to a database, and the thread it lives in.

    Args:
        key: Tells the journal from others in this process.
        connect: Makes a connection.
        name: The name of the journal in messages.
        schema: The schema of the journal.
        outage_s: Seconds for which works wait while the database is away.
        timing: Of the thread.
        existing: Whether nothing is to be made, and no right to write is needed.
    """

    def __init__(
        self,
        key: Hashable,
        connect: Callable[[], Connection],
        name: str,
        schema: str,
        outage_s: float,
        timing: Timing,
        *,
        existing: bool = False,
    ) -> None:
        self._existing = existing
        self._make_connection = connect
        self._schema = schema
        self._statements = Statements(POSTGRES, f'"{schema}"', channel=schema)
        self._connection: Connection | None = None
        self._backend: Backend | None = None  # of the last connection
        self._attempts = 0  # to connect, since the last transaction
        self._connect_at = 0.0  # when to try again, by the monotonic clock; until then:
        self._unreached: Exception | None = None
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

    # ── in the thread ─────────────────────────────────────────────────────────────────────────

    def _is_there(self) -> bool:
        return True

    def _open(self) -> None:
        until = time.monotonic() + self._patience_s
        while (error := self._reach()) is not None:
            pause_s = self._pause_after(error)
            if pause_s is None or time.monotonic() >= until:
                raise error
            time.sleep(pause_s)
        self._listener = Listener(
            self._make_connection, self._schema, self._hear, self._renew, self._timing.tick_s
        )

    def _close(self, names: list[str]) -> None:
        if self._listener is not None:
            self._listener.stop()
        if self._connection is not None:
            with closing(self._connection), suppress(psycopg.Error):
                if names:
                    self._transact([Job(release(names), None)])
                if self._writer_id is not None:
                    _execute(self._connection, self._statements("leave"), writer_id=self._writer_id)

    def _tidy_up(self) -> None:
        """Nothing is tidied up. The server does."""

    def _may_have_changed(self) -> bool:
        return True  # the listener hears it at once, but a notification may be lost

    def _pause_after(self, error: Exception) -> float | None:
        if not may_pass(error):
            return None
        return _LOCKED_PAUSE_S if self._connection else max(0.0, self._connect_at - time.monotonic())

    def _carry_out(self, jobs: list[_Job]) -> None:
        error = self._reach()
        if error is not None:
            for job in jobs:
                job.error = error
            return
        together, alone = _arrange(jobs)
        waiting = set(alone)
        if together and not self._try(together) and len(together) > 1:
            alone += together
        alone.sort(key=lambda job: job.number)
        waits, is_time = _Waits(), time.monotonic() >= self._again_at
        for job in alone:
            # By itself, so that it fails by itself.
            if self._connection is None:
                job.error = self._unreached
            elif job in waiting and job.tried is not None and not is_time:
                waits.add(job)
            elif waits.hold(job):
                job.error = waits.error
            elif not self._try([job]) and job.error is not None and may_pass(job.error):
                waits.add(job)

    def _try(self, jobs: list[_Job]) -> bool:
        """Do the jobs in one transaction. If it fails, each job has the error, and is tried alone then."""
        try:
            self._transact(jobs)
        except Exception as error:
            self._drop_if_lost(error)
            for job in jobs:
                job.error = error
                job.tried = job.tried or _Transaction(0)
            return False
        self._attempts = 0
        return True

    def _transact(self, jobs: list[_Job]) -> None:
        """Do everything in one transaction, and note the results once it is committed.

        Raises:
            psycopg.Error: Nothing was committed; unknown if the connection is lost.
        """
        connection = self._connection
        assert connection is not None
        was_committed = len(jobs) == 1 and jobs[0].tried is not None and jobs[0].tried.was_committed
        if any(job.work.writes for job in jobs):
            self._number += 1
            self._unsettled = _Transaction(self._number)
        if not was_committed:
            for job in jobs:
                job.tried = self._unsettled
        begun: _Cursor | None = None
        sent: list[tuple[list[_Job], list[_Cursor]]] = []
        failed: Exception | None = None
        sent_at = elapsed_s()
        try:
            with connection.answering_within(self._left_s(jobs)), connection.pipeline() as pipeline:
                # Raised after the pipeline is left, which would log further errors.
                try:
                    if self._unsettled is not None:
                        begun = _execute(
                            connection,
                            self._statements("begin"),
                            writer_id=self._writer_id,
                            number=self._number,
                        )
                    for run in group_jobs(jobs):
                        work = run[0].work
                        statements = (work.again if was_committed else None) or work.statements
                        if also := also_of(run):
                            self._send_also(connection, also, run)
                        cursors = [self._send(connection, name, run) for name in statements]
                        sent.append((run, cursors))
                    send_all(connection)
                    pipeline.sync()
                except Exception as error:
                    failed = error
                    if getattr(error, "sqlstate", None) is None:
                        # Not everything could be sent. The end of a pipeline would commit the part that was.
                        connection.close()
            if failed is not None:
                raise failed
        except Exception as error:
            failed = failed or error
            if isinstance(failed, IndexError):  # of psycopg, which expects no error at COMMIT
                failed = psycopg.OperationalError("the connection is out of step")
            if not is_lost(connection, failed):
                self._unsettled = None  # it was undone
            raise failed from None
        self._unsettled = None
        if begun is not None and elapsed_s() - sent_at < 1:
            self._clock.note(begun.fetchall()[0][1], sent_at)
        for run, cursors in sent:
            note_results(run, [one.fetchall() if one.description else [(one.rowcount,)] for one in cursors])

    def _left_s(self, jobs: list[_Job]) -> float:
        """Seconds to wait for the reply to these jobs. A look, for which no caller waits, gets the most."""
        asked_at = max(job.work.asked_at for job in jobs)
        if asked_at == -math.inf:
            return self._patience_s
        return max(SHORTEST_ANSWER_S, asked_at + self._patience_s - time.monotonic())

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

    def _send_also(self, connection: Connection, name: str, run: list[_Job]) -> None:
        statement = self._statements(name)
        given = [job.work.row or {} for job in run]
        rows = rows_json([{column: row.get(column) for column in statement.columns} for row in given])
        _execute(connection, statement, rows=rows)

    # ── the connection ────────────────────────────────────────────────────────────────────────

    def _reach(self) -> Exception | None:
        """Connect and get ready, unless there is a connection or it is too soon.

        Returns:
            The error if there is none.
        """
        if self._connection is not None:
            return None
        if time.monotonic() < self._connect_at:
            return self._unreached
        try:
            connection = self._make_connection()
            try:
                self._make_ready(connection)
            except BaseException:
                connection.close()
                raise
        except Exception as error:
            self._attempts += 1
            longest_s = max(_FIRST_PAUSE_S, min(_LONGEST_PAUSE_S, self._patience_s / _PAUSES))
            pause_s = growing_delay(_FIRST_PAUSE_S, self._attempts, longest_s)
            self._connect_at, self._unreached = time.monotonic() + pause_s, error
            return error
        self._connection, self._backend = connection, connection.backend
        return None

    def _make_ready(self, connection: Connection) -> None:
        """Settle whether the transaction of a lost connection was committed, and enrol as a writer."""
        if self._unsettled is not None:
            end_backend(connection, self._backend)
            number = self._unsettled.number
            settled = _execute(
                connection, self._statements("settle"), writer_id=self._writer_id, number=number
            )
            row = settled.fetchone()
            self._unsettled.was_committed = row == (True,)
            self._unsettled = None
            if row is None:
                self._writer_id = None
        if self._existing and self._writer_id is None:
            check_tables(connection, self._schema, str(self._name))
            self._read_only = find_missing_right(connection, self._schema, str(self._name))
        if self._writer_id is None and self._read_only is None:
            make_tables(connection, self._schema)
            writer_id, at = str(uuid.uuid4()), elapsed_s()
            (shown,) = _execute(connection, self._statements("enrol"), writer_id=writer_id).fetchall()[0]
            self._clock.note(shown, at)
            self._writer_id, self._number = writer_id, 0

    def _drop_if_lost(self, error: Exception) -> None:
        """Close the connection if the error means that it is lost."""
        connection = self._connection
        assert connection is not None
        if not is_lost(connection, error):
            return
        words = (
            "the database no longer knows this process as a writer"
            if isinstance(error, NotEnrolled)
            else str(error)
        )
        logger.warning("the connection to the journal %s was lost: %s", self._name, words.partition("\n")[0])
        connection.close()
        self._connection = None
        # The works that find no connection now are others than the one that has failed.
        self._unreached = psycopg.OperationalError(f"the connection was lost: {words}")
        # At once, unless the last connection was of no use either.
        self._connect_at = time.monotonic() + (_FIRST_PAUSE_S if self._attempts else 0.0)
        self._attempts += 1

    # ── in the listener's thread ──────────────────────────────────────────────────────────────

    def _hear(self, payloads: Collection[str]) -> None:
        """Tell of these records, or have the thread look for them if some may have been missed."""
        record_ids = [payload for payload in payloads if payload != _ASKED]
        if record_ids:
            self.tell(record_ids)
        if not payloads:
            self.look_for_instructions()
        elif len(record_ids) < len(payloads):
            self.tell_watchers()

    def _renewals(self) -> list[tuple[LeaseSource, Lease, _Job]]:
        return []  # the listener renews

    def _renew(self, connection: Connection) -> None:
        """Renew the leases that are due, each in a transaction of its own.

        Raises:
            psycopg.Error: The connection is lost, or the lease could not be stored.
        """
        for source, lease in self.due_leases():
            # So that another connection is tried before the lease runs out.
            limit_s = (lease.expires_at - lease.renewed_at) / 3
            job, sent_at = Job(renew_lease(lease), None), elapsed_s()
            with connection.answering_within(limit_s), connection.pipeline():
                cursors = [self._send(connection, name, [job]) for name in job.work.statements]
                shown = _execute(connection, self._statements("clock"))
            if elapsed_s() - sent_at < 1:
                self._clock.note(shown.fetchall()[0][0], sent_at)
            note_results([job], [one.fetchall() if one.description else [] for one in cursors])
            note_renewal(source, lease, had_lapsed=not job.result)
            with self._lock:
                was_given_up = lease.lease_id not in self._sources
            if was_given_up:  # meanwhile, so that its row may have been stored anew
                _execute(connection, self._statements("end_leases"), lease_ids=[lease.lease_id])


class _Waits:
    """Jobs that wait for a row, and the names that they touch: later jobs that touch one wait for them."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._touched: set[str] = set()
        self._are_some = False

    def add(self, job: _Job) -> None:
        """Note a job that waits."""
        self.error = job.error
        self._touched.update(job.work.touches)
        self._are_some = True

    def hold(self, job: _Job) -> bool:
        """Whether a job has to wait for one of these; it is then one of them."""
        is_held = not self._touched.isdisjoint(job.work.touches) or (
            self._are_some and job.work.writes and job.work.row is None
        )
        if is_held:
            self._touched.update(job.work.touches)
        return is_held


def _arrange(jobs: list[_Job]) -> tuple[list[_Job], list[_Job]]:
    """The jobs to be done together, and those to be done alone since they or their row have to wait."""
    together, alone, waits = list[_Job](), list[_Job](), _Waits()
    for job in jobs:
        if waits.hold(job):
            alone.append(job)
        elif job.tried is not None:
            alone.append(job)
            waits.add(job)
        else:
            together.append(job)
    return together, alone


def _execute(connection: Connection, statement: Statement, **values: Any) -> _Cursor:
    # As bytes, since psycopg takes text only as a literal. Prepared, since there are few.
    return connection.execute(statement.text.encode(), values, prepare=True)
