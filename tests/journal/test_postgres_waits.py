"""What waits in a PostgreSQL journal: for a row, a connection, a disk; and what never waits."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import anyio
import psycopg
import pytest
from anyio import to_thread

from mcp_tasks_client import Instruction, Lease, PostgresJournal, TaskRecord
from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import JournalError, JournalLockedError
from mcp_tasks_client.journal import statements
from mcp_tasks_client.journal.postgres.database import Backend, Connection, connect, end_backend
from mcp_tasks_client.journal.postgres.thread import PostgresThread
from mcp_tasks_client.journal.work import LEASE_STATEMENTS, Work
from mcp_tasks_client.testing import ScriptedServer, complete, text_result, work
from mcp_tasks_client.testing.samples import SCOPE, Heard, Source, lease, observing, record
from tests.journal.files import timed
from tests.journal.gathering import gathering
from tests.journal.relay import Relay, relayed
from tests.postgres import PostgresServer, running_postgres

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

SCHEMA: Final = "waits"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def relay(server: PostgresServer) -> Iterator[Relay]:
    with relayed(server.dsn) as relay:
        yield relay


@pytest.fixture
async def journal(server: PostgresServer) -> AsyncIterator[PostgresJournal]:
    drop(server)
    with anyio.fail_after(40):
        async with PostgresJournal(server.dsn, schema=SCHEMA, outage_s=10.0) as journal:
            yield journal


def drop(server: PostgresServer) -> None:
    run(server, f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def run(server: PostgresServer, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run a statement, as any other program could."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def locked(server: PostgresServer, *given: TaskRecord) -> Iterator[psycopg.Connection[Any]]:
    """A forgotten session that has these rows, or the whole table."""
    with psycopg.connect(server.dsn) as other:
        if given:
            ids = [one.record_id for one in given]
            rows = f"SELECT FROM {SCHEMA}.records WHERE record_id = ANY (%s) FOR UPDATE"
            other.execute(rows.encode(), (ids,))
        else:
            other.execute(f"LOCK TABLE {SCHEMA}.records".encode())
        yield other


async def until(condition: Any, within_s: float = 20.0) -> None:
    with anyio.fail_after(within_s):
        while not condition():
            await anyio.sleep(0.02)


async def stored(journal: PostgresJournal, count: int) -> list[TaskRecord]:
    given = [record(state=observing(), created_at=float(number)) for number in range(count)]
    for one in given:
        await journal.save(one)
    return given


def is_waited_for(server: PostgresServer) -> bool:
    return bool(run(server, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


# ── leases ────────────────────────────────────────────────────────────────────────────────────


async def test_a_lease_is_renewed_while_every_write_waits_for_a_row(
    journal: PostgresJournal, server: PostgresServer
) -> None:
    given = await stored(journal, 10)
    source = Source()
    journal.keep_renewing(source)
    with locked(server, *given):
        async with anyio.create_task_group() as tasks:
            for one in given:
                tasks.start_soon(lambda one=one: journal.save(replace(one, updated_at=9.0), known=True))
            await until(lambda: is_waited_for(server))
            source.next = lease("a", renewed_at=100.0)
            await until(lambda: source.next is None)
            tasks.cancel_scope.cancel()
    assert source.told == [(100.0, True)]


async def test_a_lease_is_stored_before_what_waits_for_a_row(
    journal: PostgresJournal, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``renew``, which a client waits for before it owns anything."""
    given = await stored(journal, 40)
    transact, written = PostgresThread._transact, list[str]()

    def note(self: PostgresThread, jobs: list[Any]) -> None:
        if any(job.work.writes for job in jobs):
            written.append("lease" if jobs[0].work.statements == LEASE_STATEMENTS else "rows")
        transact(self, jobs)

    async def renew() -> None:
        assert not await journal.renew(lease("a"))
        tasks.cancel_scope.cancel()

    monkeypatch.setattr(PostgresThread, "_transact", note)
    with locked(server, *given):
        async with anyio.create_task_group() as tasks, gathering(journal):
            for one in given:
                tasks.start_soon(lambda one=one: journal.save(replace(one, updated_at=9.0), known=True))
            tasks.start_soon(renew)
    assert written[0] == "lease"


class Polling(Source):
    """Of a process that writes nothing: it is due again after so long by the journal's clock."""

    def __init__(self, journal: PostgresJournal, lasts_s: float, due_after_s: float) -> None:
        super().__init__()
        self._clock, self._lasts_s, self._due_after_s = journal.clock, lasts_s, due_after_s
        self._renewed_at = self._now()

    def _now(self) -> float:
        now = self._clock()
        assert now is not None
        return now

    def due(self) -> Lease | None:
        now = self._now()
        if now < self._renewed_at + self._due_after_s:
            return None
        return replace(lease("a", renewed_at=now), expires_at=now + self._lasts_s)

    def renewed(self, lease: Lease, *, had_lapsed: bool) -> None:
        self._renewed_at = lease.renewed_at
        super().renewed(lease, had_lapsed=had_lapsed)


async def test_a_process_that_only_polls_renews_its_lease(
    journal: PostgresJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the database's clock, which is read with a renewal at the latest, and counts on in between."""
    source = Polling(journal, lasts_s=60.0, due_after_s=1.0)
    before = source._now()
    journal.keep_renewing(source)
    await until(lambda: len(source.told) >= 3)
    told = source.told[:3]
    times = [at for at, _ in told]
    assert times == sorted(times)
    assert times[0] >= before + 0.5
    assert [lapsed for _, lapsed in told] == [True, False, False], "the first one was not there"
    assert journal._medium is not None
    clock = journal._medium._clock
    assert clock._read is not None
    assert clock._read[0] > times[-1] - 0.4, "the clock was read with the renewal"


@pytest.mark.parametrize("outage_s", [8.0, 40.0], ids=["shorter than a lease", "longer than a lease"])
async def test_a_lease_is_renewed_in_time_over_another_connection_if_one_does_not_answer(
    server: PostgresServer, relay: Relay, outage_s: float
) -> None:
    drop(server)
    with anyio.fail_after(40):
        async with PostgresJournal(relay.dsn, schema=SCHEMA, outage_s=outage_s) as journal:
            source = Polling(journal, lasts_s=18.0, due_after_s=3.0)
            journal.keep_renewing(source)
            await until(lambda: len(source.told) >= 1)
            await to_thread.run_sync(relay.freeze)
            before = len(source.told)
            await until(lambda: len(source.told) > before, within_s=30.0)
            told = source.told[: before + 1]
            ((row,),) = run(server, f"SELECT renewed_at FROM {SCHEMA}.leases")
            assert row >= told[-1][0]
            assert [lapsed for _, lapsed in told] == [True, *[False] * before], "it had not run out"


async def test_a_renewal_that_has_waited_replaces_no_later_one(journal: PostgresJournal) -> None:
    """Two connections renew a lease: the writer before the first take, and the listener."""
    later = lease("a", renewed_at=200.0)
    await journal.renew(later)
    await journal.renew(lease("a", renewed_at=100.0))
    assert await journal.owners("a/1") == {"a/1": later}


async def test_a_lease_that_is_given_up_while_it_is_renewed_is_not_there_afterwards(
    journal: PostgresJournal, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, within = Source(), Connection.answering_within
    reached, go_on = threading.Event(), threading.Event()

    @contextmanager
    def wait_before(self: Connection, limit_s: float) -> Iterator[None]:
        reached.set()
        go_on.wait(20)
        with within(self, limit_s):
            yield

    monkeypatch.setattr(Connection, "answering_within", wait_before)
    journal.keep_renewing(source)
    source.next = lease("a", renewed_at=100.0)
    await to_thread.run_sync(reached.wait, 20)
    await journal.release("a")
    go_on.set()
    await until(lambda: bool(source.told))
    await until(lambda: run(server, f"SELECT lease_id FROM {SCHEMA}.leases") == [])


async def test_what_is_heard_with_the_reply_to_a_renewal_is_told_at_once(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = record(state=observing())
    heard, renew = Heard(), PostgresThread._renew
    is_told = threading.Event()

    def renew_and_hear(self: PostgresThread, connection: Connection) -> None:
        renew(self, connection)
        if is_told.is_set():
            is_told.clear()
            run(server, f"NOTIFY {SCHEMA}, '{given.record_id}'")
            connection.execute("SELECT 1")  # whose reply comes with the notification
            assert self._listener is not None
            self._listener._tick_s = 1000.0  # no later reply tells of it

    drop(server)
    with anyio.fail_after(30):
        monkeypatch.setattr(PostgresThread, "_renew", renew_and_hear)
        monkeypatch.setattr(PostgresThread, "_may_have_changed", lambda self: False)
        timed(monkeypatch, tick_s=2.0)
        async with PostgresJournal(server.dsn, schema=SCHEMA) as other:
            stop = other.listen(heard)
            await anyio.sleep(0.5)
            is_told.set()
            await until(lambda: not is_told.is_set())
            assert await heard.wait_for(given.record_id, 20.0)
            stop()


# ── what others have ──────────────────────────────────────────────────────────────────────────


async def test_a_lock_of_a_table_is_waited_for_within_the_time_of_an_outage(
    server: PostgresServer,
) -> None:
    drop(server)
    with anyio.fail_after(60):
        async with PostgresJournal(server.dsn, schema=SCHEMA, outage_s=30.0) as journal:
            given, other = await stored(journal, 2)
            with locked(server) as session:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(lambda: journal.save(replace(given, updated_at=9.0), known=True))
                    tasks.start_soon(journal.by_id, other.record_id)
                    await anyio.sleep(6.0)
                    session.rollback()
            assert (await journal.by_id(given.record_id)) == replace(given, updated_at=9.0)


async def test_what_waits_for_too_long_is_told_what_it_waits_for(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop(server)
    texts = {**statements.texts("postgres"), "sleep": "SELECT pg_sleep(30)"}
    monkeypatch.setattr(statements, "texts", lambda folder: texts)
    with anyio.fail_after(40):
        async with PostgresJournal(server.dsn, schema=SCHEMA, outage_s=1.0) as journal:
            (given,) = await stored(journal, 1)
            began = time.monotonic()
            with locked(server), pytest.raises(JournalLockedError, match="pg_locks"):
                await journal.save(replace(given, updated_at=9.0), known=True)
            assert 1.0 <= time.monotonic() - began < 10.0
            fill_the_disk(server)
            began = time.monotonic()
            with pytest.raises(JournalError, match=r"disk of the database is full, .*make room"):
                await journal.save(record())
            assert 1.0 <= time.monotonic() - began < 10.0
            with pytest.raises(JournalError, match=r"taken too long .*pg_stat_activity"):
                await journal._opened().run(Work(statements=("sleep",), writes=False))


def fill_the_disk(server: PostgresServer) -> None:
    """Have new records refused as by a full disk, until the table ``room`` has a row."""
    run(server, f"CREATE TABLE {SCHEMA}.room (made boolean)")
    run(
        server,
        f"""CREATE FUNCTION {SCHEMA}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NOT EXISTS (SELECT FROM {SCHEMA}.room) THEN
          RAISE EXCEPTION 'kein Platz' USING ERRCODE = '53100';
        END IF; RETURN NEW; END $$""",
    )
    run(
        server,
        f"""CREATE TRIGGER full_disk BEFORE INSERT ON {SCHEMA}.records FOR EACH ROW
        EXECUTE FUNCTION {SCHEMA}.refuse()""",
    )


async def test_a_full_disk_is_waited_for(journal: PostgresJournal, server: PostgresServer) -> None:
    fill_the_disk(server)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.save, given := record())
        await anyio.sleep(1.0)
        await to_thread.run_sync(run, server, f"INSERT INTO {SCHEMA}.room VALUES (true)")
    assert await journal.records(SCOPE) == [given]


async def test_who_waits_for_a_row_holds_up_nobody_but_those_who_want_the_same(
    journal: PostgresJournal, server: PostgresServer
) -> None:
    given, other = await stored(journal, 2)
    done: list[float] = []

    async def save(at: float) -> None:
        await journal.save(replace(given, updated_at=at), known=True)
        done.append(at)

    with locked(server, given) as session:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(save, 5.0)
            await until(lambda: is_waited_for(server))
            tasks.start_soon(save, 6.0)
            for number in range(10):  # the first one would fail before it let them pass
                await journal.save(replace(other, updated_at=float(number)), known=True)
            await anyio.sleep(1.0)
            assert done == []
            session.rollback()
    assert sorted(done) == [5.0, 6.0]
    assert (await journal.by_id(given.record_id)) == replace(given, updated_at=6.0)


async def test_writes_of_one_row_keep_their_order_though_the_first_one_waits(
    journal: PostgresJournal, server: PostgresServer
) -> None:
    """The second one comes when the row is free, and before the first one is tried again."""
    (given,) = await stored(journal, 1)
    medium = journal._medium
    assert medium is not None
    with locked(server, given) as session:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: journal.save(replace(given, updated_at=5.0), known=True))
            await until(lambda: bool(medium._again))
            session.rollback()
            await journal.save(replace(given, updated_at=6.0), known=True)
    assert (await journal.by_id(given.record_id)) == replace(given, updated_at=6.0)


async def test_an_error_at_commit_fails_nobody_else(journal: PostgresJournal, server: PostgresServer) -> None:
    """As of a queue of notifications that is full."""
    await stored(journal, 1)
    run(
        server,
        f"""CREATE FUNCTION {SCHEMA}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.label = 'x' THEN RAISE EXCEPTION 'too many notifications'; END IF; RETURN NULL; END $$""",
    )
    run(
        server,
        f"""CREATE CONSTRAINT TRIGGER late AFTER INSERT ON {SCHEMA}.records DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION {SCHEMA}.refuse()""",
    )
    for _ in range(20):  # in some of them the connection is out of step
        with pytest.raises(JournalError, match="too many notifications"):
            await journal.save(record(label="x"))
        await journal.save(record())
    assert len(await journal.records(SCOPE)) == 21


# ── each write has its own time ───────────────────────────────────────────────────────────────


async def test_each_write_waits_for_its_own_time(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked for first does not give up with what was asked for last, and the other way about."""
    drop(server)
    with anyio.fail_after(40):
        async with PostgresJournal(server.dsn, schema=SCHEMA, outage_s=6.0) as journal:
            given, ended = record(), list[float]()
            medium = journal._opened()
            assert isinstance(medium, PostgresThread)
            put = medium.put

            def put_as_if_later(work: Work, waiter: Any) -> Any:
                return put(replace(work, asked_at=work.asked_at + 30.0), waiter)

            async def fail() -> None:
                with pytest.raises(JournalError, match="cannot be reached"):
                    await journal.save(record())
                ended.append(time.monotonic())

            await to_thread.run_sync(server.stop, "fast")
            began = time.monotonic()
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(fail)
                    await anyio.wait_all_tasks_blocked()
                    monkeypatch.setattr(medium, "put", put_as_if_later)
                    tasks.start_soon(journal.save, given)
                    await until(lambda: bool(ended))
                    await to_thread.run_sync(server.start)
            finally:
                if (server.data.parent / "down").exists():
                    server.start()
            assert 6.0 <= ended[0] - began < 30.0
            assert await journal.records(SCOPE) == [given]


@pytest.mark.parametrize("outage_s", [8.0, 16.0])
async def test_what_waits_for_a_reply_is_tried_over_another_connection_in_time(
    server: PostgresServer, relay: Relay, outage_s: float
) -> None:
    """The network swallows what is sent, and keeps both ends."""
    drop(server)
    with anyio.fail_after(40):
        async with PostgresJournal(relay.dsn, schema=SCHEMA, outage_s=outage_s) as journal:
            await stored(journal, 1)
            await to_thread.run_sync(relay.freeze)
            began = time.monotonic()
            await journal.save(given := record())
            assert time.monotonic() - began < outage_s
            assert given in await journal.records(SCOPE)


@pytest.mark.parametrize("how", ["down", "deaf"])
async def test_closing_a_client_takes_three_times_what_a_write_waits_at_most(
    server: PostgresServer, relay: Relay, how: str
) -> None:
    """A call that it drives is committed once more and released, and then its owner."""
    drop(server)
    outage_s = 1.0
    scripted = ScriptedServer()
    scripted.tool("build", [work(1000), complete(text_result("done"))])
    journal = PostgresJournal(relay.dsn, schema=SCHEMA, outage_s=outage_s)
    with anyio.fail_after(60):
        try:
            async with TasksClient(scripted.session(), journal=journal) as client:
                for number in range(5):
                    await client.start_tool("build", {"n": number}, idempotency_key=str(number))
                await anyio.sleep(0.3)
                if how == "down":
                    await to_thread.run_sync(server.stop, "immediate")
                else:
                    await to_thread.run_sync(relay.go_deaf)
                began = time.monotonic()
            took_s = time.monotonic() - began
        finally:
            if how == "down":
                server.start()
    assert took_s <= 3 * (outage_s + 5), "as the guide of fleets says"
    if how == "down":
        assert took_s <= 3 * outage_s + 6, "a connection that is refused is no attempt that lasts"


async def test_a_lost_connection_is_told_once(
    journal: PostgresJournal, server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """And not by psycopg as well, whose warnings name no journal."""
    await stored(journal, 1)
    caplog.clear()
    ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    run(server, ours, "mcp-tasks-client")
    await stored(journal, 1)
    (told,) = [one for one in caplog.records if one.levelname != "DEBUG"]
    assert told.name == "mcp_tasks_client"
    assert f"connection to the journal {SCHEMA}" in told.getMessage()


async def test_a_replica_that_cannot_renew_says_so_and_writes_on(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The database has one connection for it, and not two."""
    drop(server)
    run(server, "CREATE ROLE single LOGIN CONNECTION LIMIT 1")
    run(server, "GRANT CREATE ON DATABASE postgres TO single")
    source = Source()
    with anyio.fail_after(40):
        async with PostgresJournal(f"{server.dsn} user=single", schema=SCHEMA) as journal:
            journal.keep_renewing(source)
            source.next = lease("a", renewed_at=100.0)
            await journal.save(record())
            await until(lambda: bool(caplog.records))
            (told,) = caplog.records
            assert re.search("lease of this process in .* cannot be renewed.* too many", told.getMessage())
            assert source.told == []
            await journal.save(record())
            run(server, "ALTER ROLE single CONNECTION LIMIT 2")
            await until(lambda: source.told == [(100.0, True)])


# ── a connection that is gone ─────────────────────────────────────────────────────────────────


async def test_a_connection_that_broke_holds_no_row_once_there_is_a_new_one(
    server: PostgresServer, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server itself has not noticed: the transaction has done its statements, and is not committed."""
    drop(server)
    sync = psycopg.Pipeline.sync
    cuts = [True]

    def cut(self: psycopg.Pipeline) -> None:
        if threading.current_thread().name != "mcp-tasks-journal" or not cuts:
            sync(self)
            return
        cuts.clear()
        self._conn.pgconn.send_flush_request()
        self._conn.pgconn.flush()
        lock = f"SELECT FROM {SCHEMA}.records WHERE record_id = '{given.record_id}' FOR UPDATE SKIP LOCKED"
        while run(server, lock):
            time.sleep(0.02)
        relay.abandon()
        raise psycopg.OperationalError("the connection was cut")

    with anyio.fail_after(40):
        async with PostgresJournal(relay.dsn, schema=SCHEMA, outage_s=10.0) as journal:
            (given,) = await stored(journal, 1)
            monkeypatch.setattr(psycopg.Pipeline, "sync", cut)
            began = time.monotonic()
            await journal.save(replace(given, updated_at=9.0), known=True)
            assert not cuts
            assert time.monotonic() - began < 9.0
            assert (await journal.by_id(given.record_id)) == replace(given, updated_at=9.0)


async def test_no_other_process_of_the_server_is_ended(server: PostgresServer) -> None:
    """A PID is used again, and not every user may end a process."""
    run(server, "CREATE ROLE unprivileged LOGIN")
    run(server, "GRANT pg_read_all_stats TO unprivileged")  # it sees the process
    with connect(server.dsn) as first, connect(server.dsn) as second:
        backend = first.backend
        assert backend is not None
        end_backend(second, None)
        end_backend(second, Backend(backend.pid, "2001-01-01 00:00:00.000000"))
        with connect(f"{server.dsn} user=unprivileged") as third:
            end_backend(third, backend)
            end_backend(third, Backend(backend.pid, backend.started))
        assert first.execute("SELECT 1").fetchone() == (1,)
        end_backend(second, backend)
        with pytest.raises(psycopg.OperationalError):
            first.execute("SELECT 1")


async def test_the_server_notices_a_client_that_is_gone(server: PostgresServer) -> None:
    """And no default of a role, a database or the server decides how long."""
    bad = "-c statement_timeout=2s -c idle_session_timeout=1h -c lock_timeout=0 -c extra_float_digits=-7"
    with connect(f"{server.dsn} options='{bad}'", limit_s=10.0) as connection:
        names = (
            *("statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"),
            *("idle_session_timeout", "lock_timeout", "client_connection_check_interval"),
        )
        found = connection.execute(
            "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", ([*names],)
        ).fetchall()
        assert dict(found) == dict(zip(names, ("8000", "10000", "10000", "0", "100", "5000"), strict=True))


async def test_floats_are_what_they_were_whatever_the_server_would_rather_show(
    server: PostgresServer,
) -> None:
    drop(server)
    heard, at = Heard(), 1_764_288_000.123456
    address = f"{server.dsn} options='-c extra_float_digits=-7'"
    with anyio.fail_after(30):
        async with PostgresJournal(address, schema=SCHEMA) as journal:
            await journal.save(given := record(state=observing(), created_at=at, updated_at=at))
            stop = journal.listen(heard)
            await anyio.sleep(1.5)
            answer = Instruction("answer", "{}", at)
            assert await journal.instruct(given.record_id, answer) == answer
            assert await heard.wait_for(given.record_id, 0.5)
            assert await journal.by_id(given.record_id) == given
            stop()


# ── who listens ───────────────────────────────────────────────────────────────────────────────


async def test_who_listens_hears_at_once_also_after_its_connection_was_lost(
    journal: PostgresJournal, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (given,) = await stored(journal, 1)
    heard = Heard()
    monkeypatch.setattr(PostgresThread, "_may_have_changed", lambda self: False)
    stop = journal.listen(heard)
    listening = "SELECT pid FROM pg_stat_activity WHERE query LIKE %s AND application_name = %s"
    this = (f'LISTEN "{SCHEMA}"%', "mcp-tasks-client")
    for _ in range(2):
        await until(lambda: bool(run(server, listening, *this)))
        ((pid,),) = run(server, listening, *this)
        run(server, "SELECT pg_terminate_backend(%s)", pid)
        await until(lambda pid=pid: run(server, listening, *this) not in ([], [(pid,)]))
    await anyio.sleep(0.5)  # it has looked by itself, as after each connection
    run(server, f"NOTIFY {SCHEMA}, '{given.record_id}'")
    assert await heard.wait_for(given.record_id, 20.0)
    stop()


async def test_a_notification_that_was_lost_is_looked_for(
    journal: PostgresJournal, server: PostgresServer
) -> None:
    (given,) = await stored(journal, 1)
    heard = Heard()
    stop = journal.listen(heard)
    await anyio.sleep(1.5)  # it has looked
    run(
        server,
        f"INSERT INTO {SCHEMA}.instructions (record_id, name, body, at, heeded) VALUES (%s, 'a', '', 1, 0)",
        given.record_id,
    )
    assert await heard.wait_for(given.record_id, 20.0)
    stop()
