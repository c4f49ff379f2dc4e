"""A database that goes away: what was committed is known, and nothing is written late."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import anyio
import psutil
import psycopg
import pytest
from anyio import to_thread

from mcp_tasks_client import Instruction, Lease, PostgresJournal, TaskRecord
from mcp_tasks_client.errors import AlreadyAnsweredError, DrivenElsewhereError, JournalError
from mcp_tasks_client.journal import statements
from mcp_tasks_client.journal.work import Work
from mcp_tasks_client.machine.states import AskedQuestion
from mcp_tasks_client.questions.question import as_heeded, leave_answer, open_questions
from mcp_tasks_client.testing.samples import SCOPE, Heard, everybody, finished, lease, observing, only, record
from tests.journal.gathering import gathering
from tests.postgres import PostgresServer, running_postgres

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

SCHEMA: Final = "outage"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture
async def journal(server: PostgresServer) -> AsyncIterator[PostgresJournal]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE".encode())
    with anyio.fail_after(40):
        async with PostgresJournal(server.dsn, schema=SCHEMA, outage_s=10.0) as journal:
            yield journal


def run(server: PostgresServer, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run a statement, as any other program could."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


def cut_all(server: PostgresServer) -> None:
    run(
        server,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mcp-tasks-client'",
    )


# ── while much is written ─────────────────────────────────────────────────────────────────────


async def write_until(journal: PostgresJournal, is_over: threading.Event, written: list[TaskRecord]) -> None:
    """Several tasks that write records and change them, until it is over, and note what they have written."""

    async def write(number: int) -> None:
        while not is_over.is_set():
            given = record(state=observing(), owner="a/1", created_at=float(len(written)))
            if number % 2:
                await journal.save(given)
            else:
                assert await journal.claim(replace(given, idempotency_key=given.record_id)) is not None
                given = replace(given, idempotency_key=given.record_id)
            given = replace(given, updated_at=9.0, state=finished())
            await journal.save(given, known=True)
            written.append(given)

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(write, number)


@pytest.mark.parametrize("how", ["fast", "immediate", "cut"])
async def test_whatever_was_asked_for_is_written_once_the_database_is_back(
    journal: PostgresJournal, server: PostgresServer, how: Literal["fast", "immediate", "cut"]
) -> None:
    is_over, written = threading.Event(), list[TaskRecord]()

    def disturb() -> None:
        for _ in range(3):
            write_more()
            if how == "cut":
                cut_all(server)
            else:
                server.stop(how)
                time.sleep(0.2)
                server.start()
        write_more()
        is_over.set()

    def write_more() -> None:
        before = len(written)
        time.sleep(0.2)
        while len(written) <= before:
            time.sleep(0.01)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(to_thread.run_sync, disturb)
        await write_until(journal, is_over, written)

    found = {one.record_id: one for one in await journal.records(SCOPE)}
    assert found == {one.record_id: one for one in written}


async def test_after_an_outage_nobody_is_taken_for_gone_before_it_could_renew_its_lease(
    journal: PostgresJournal, server: PostgresServer
) -> None:
    now = time.time()
    lasts = Lease("a", "host", "boot", "pids", 4711, 1.5, now - 40, now - 10)
    long_gone = replace(lasts, lease_id="b", renewed_at=now - 100_000, expires_at=now - 99_970)
    await journal.renew(lasts)
    await journal.renew(long_gone)
    server.stop("fast")
    server.start()
    owners = await journal.owners("a/1", "b/1")
    covering = owners["a/1"]
    assert covering is not None
    assert covering.expires_at == pytest.approx(now + 30, abs=10)
    assert replace(covering, expires_at=lasts.expires_at) == lasts
    assert owners["b/1"] == long_gone


async def test_a_write_waits_for_a_server_that_takes_none(
    journal: PostgresJournal, server: PostgresServer
) -> None:
    """As after a failover, when the connection is to the server that was the first."""

    def read_only(on: bool) -> None:
        run(server, f"ALTER SYSTEM SET default_transaction_read_only = {'on' if on else 'off'}")
        run(server, "SELECT pg_reload_conf()")

    await to_thread.run_sync(read_only, True)
    await anyio.sleep(0.1)
    again = threading.Timer(0.5, read_only, [False])
    again.start()
    try:
        await journal.save(given := record())
        assert await journal.records(SCOPE) == [given]
    finally:
        again.join()


async def test_the_password_is_asked_for_with_each_connection(server: PostgresServer) -> None:
    """It is changed, and those who keep it are away for a moment."""
    rules = server.data / "pg_hba.conf"
    rules.write_text(f"local all rotating scram-sha-256\n{rules.read_text()}")
    run(server, "CREATE ROLE rotating LOGIN PASSWORD 'first'")
    run(server, "GRANT CREATE ON DATABASE postgres TO rotating")
    run(server, "SELECT pg_reload_conf()")
    answers: list[str | Exception] = ["first", OSError("no route"), "second"]
    heard = Heard()

    def password() -> str:
        assert threading.current_thread().name.startswith("mcp-tasks-"), "where it may block"
        answer = answers[0]
        if len(answers) == 2:
            del answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    with anyio.fail_after(40):
        journal = PostgresJournal(f"{server.dsn} user=rotating", password=password, schema=f"{SCHEMA}_7")
        async with journal:
            await journal.save(given := record(state=observing()))
            stop = journal.listen(heard)
            run(server, "ALTER ROLE rotating PASSWORD 'second'")
            del answers[0]
            cut_all(server)
            await journal.instruct(given.record_id, Instruction("answer", "{}", 7.0))
            assert await heard.wait_for(given.record_id)
            stop()
            answers[:] = ["third"]
            cut_all(server)
            with pytest.raises(JournalError, match="password authentication failed") as raised:
                await journal.save(record())
            assert "third" not in str(raised.value)


async def test_a_process_that_was_idle_for_so_long_that_it_was_forgotten_goes_on(
    journal: PostgresJournal, server: PostgresServer
) -> None:
    await journal.save(first := record(created_at=1.0))
    run(server, f"DELETE FROM {SCHEMA}.writers")
    await journal.save(second := record(created_at=2.0))
    assert await journal.records(SCOPE) == [first, second]


async def test_what_is_read_waits_as_well(journal: PostgresJournal, server: PostgresServer) -> None:
    await journal.save(given := record())
    server.stop("fast")
    threading.Timer(0.5, server.start).start()
    assert await journal.by_id(given.record_id) == given


async def test_after_a_bounded_time_there_is_a_typed_error_and_later_it_works_again(
    server: PostgresServer,
) -> None:
    with anyio.fail_after(40):
        async with PostgresJournal(server.dsn, schema=f"{SCHEMA}_2", outage_s=3.0) as journal:
            await journal.save(first := record())
            server.stop("immediate")
            try:
                began = time.monotonic()
                with pytest.raises(JournalError, match=r"cannot be reached .* see that the database runs"):
                    await journal.save(record())
                assert time.monotonic() - began < 20.0
                with pytest.raises(JournalError, match="cannot be reached"):
                    await PostgresJournal(server.dsn, schema=f"{SCHEMA}_3", outage_s=0.1).open()
            finally:
                server.start()
            await journal.save(second := record())
            assert await journal.records(SCOPE) == [first, second]


async def test_a_journal_is_opened_once_the_database_is_there(server: PostgresServer) -> None:
    server.stop("fast")
    threading.Timer(0.5, server.start).start()
    with anyio.fail_after(40):
        async with PostgresJournal(server.dsn, schema=SCHEMA) as journal:
            await journal.save(record())


async def test_whoever_listens_hears_of_what_was_left_meanwhile(
    journal: PostgresJournal, server: PostgresServer
) -> None:
    heard = Heard()
    await journal.save(given := record(state=observing()))
    stop = journal.listen(heard)
    server.stop("fast")
    server.start()
    run(
        server,
        f"INSERT INTO {SCHEMA}.instructions (record_id, name, body, at, heeded) VALUES (%s, 'a', '', 1, 0)",
        given.record_id,
    )
    assert await heard.wait_for(given.record_id)
    stop()


# ── a commit whose outcome is unknown ─────────────────────────────────────────────────────────


@contextmanager
def cut_at_the_next_commit(
    monkeypatch: pytest.MonkeyPatch, when: str, meanwhile: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """The connection breaks right before, or right after, a transaction is committed.

    Or psycopg finds it in disorder afterwards, though it is there.
    """
    sync, pipeline = psycopg.Pipeline.sync, psycopg.Connection.pipeline
    cuts = [when]

    def cut(self: psycopg.Pipeline) -> None:
        if cuts in ([], ["in disorder"]) or threading.current_thread().name != "mcp-tasks-journal":
            sync(self)
            return
        if cuts.pop() == "committed":
            sync(self)
        self._conn.close()
        meanwhile()
        raise psycopg.OperationalError("the connection was cut")

    @contextmanager
    def in_disorder(self: psycopg.Connection[Any]) -> Iterator[psycopg.Pipeline]:
        with pipeline(self) as entered:
            yield entered
        if cuts == ["in disorder"] and threading.current_thread().name == "mcp-tasks-journal":
            cuts.clear()
            meanwhile()
            raise psycopg.OperationalError("cannot exit pipeline mode while busy")

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Pipeline, "sync", cut)
        patch.setattr(psycopg.Connection, "pipeline", in_disorder)
        yield
    assert not cuts


each = pytest.mark.parametrize("when", ["not committed", "committed", "in disorder"])


@each
async def test_each_write_is_done_once_and_told_as_it_was(
    journal: PostgresJournal, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    given = record(state=observing(), owner="a/1", idempotency_key="order-42")
    with cut_at_the_next_commit(monkeypatch, when):
        assert await journal.claim(given) == given
    with cut_at_the_next_commit(monkeypatch, when):
        assert await journal.claim(record(idempotency_key="order-42")) == given
    with cut_at_the_next_commit(monkeypatch, when):
        await journal.save(given := replace(given, updated_at=5.0), known=True)
    answer = Instruction("answer", "{}", 7.0)
    with cut_at_the_next_commit(monkeypatch, when):
        assert await journal.instruct(given.record_id, answer) == answer
    with cut_at_the_next_commit(monkeypatch, when):
        assert await journal.instruct(given.record_id, answer._replace(body="[]")) == answer
    with cut_at_the_next_commit(monkeypatch, when):
        await journal.save(given, known=True, heeded=answer)
    assert await journal.instructions(given.record_id) == []
    taken = await journal.take(given.record_id, "b/1", await everybody(journal))
    assert taken is not None
    with cut_at_the_next_commit(monkeypatch, when), pytest.raises(DrivenElsewhereError):
        await journal.save(given, known=True)
    ended = replace(taken.record, state=finished())
    with cut_at_the_next_commit(monkeypatch, when):
        await journal.save(ended, known=True)
    assert await only(journal) == ended
    with cut_at_the_next_commit(monkeypatch, when):
        await journal.release("b/1")
    assert await only(journal) == replace(ended, owner=None)
    with cut_at_the_next_commit(monkeypatch, when):
        await journal.remove(ended)
    assert await journal.records(SCOPE) == []


@pytest.mark.parametrize("said", ["accept", "decline"])
async def test_who_is_cut_off_while_the_answer_is_heeded_is_told_whose_it_was(
    journal: PostgresJournal, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    requests = {
        "k": {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": "", "url": "https://x.example/", "elicitationId": "1"},
        }
    }
    asked = AskedQuestion(key="k", digest="d", request=requests["k"])
    state = observing(status="input_required", inputRequests=requests)
    given = record(state=replace(state, questions=(asked,)))
    await journal.save(given)
    (question,) = open_questions(given, None)
    first = Instruction(question.question_id, json.dumps({"action": said}), 7.0)

    def heed() -> None:
        run(
            server,
            f"UPDATE {SCHEMA}.instructions SET body = %s, heeded = 1",
            as_heeded(first).body,
        )

    if said == "decline":
        await journal.instruct(given.record_id, first)
    with cut_at_the_next_commit(monkeypatch, "committed", heed):
        answering = leave_answer(journal, given, question.question_id, {"action": "accept"}, 7.0)
        if said == "accept":
            await answering
            return
        with pytest.raises(AlreadyAnsweredError) as late:
            await answering
    assert not late.value.same


@each
async def test_whoever_takes_is_told_that_it_has(
    journal: PostgresJournal, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    await journal.save(first := record(state=observing(), created_at=1.0))
    await journal.save(second := record(state=observing(), created_at=2.0))
    medium = journal._medium
    assert medium is not None
    do = medium.run

    async def cut_the_take(work: Any) -> Any:
        if work.statements not in (("owner_before", "take", "record"), ("take_free",)):
            return await do(work)
        monkeypatch.setattr(medium, "run", do)
        with cut_at_the_next_commit(monkeypatch, when):
            return await do(work)

    monkeypatch.setattr(medium, "run", cut_the_take)
    taken = await journal.take_pending(SCOPE, "a/1", limit=1)
    assert [(one.record.record_id, one.record.owner) for one in taken] == [(first.record_id, "a/1")]

    monkeypatch.setattr(medium, "run", cut_the_take)
    found = await journal.take(second.record_id, "b/1", await everybody(journal))
    assert found is not None
    assert found.record == await journal.by_id(second.record_id)
    assert found.record.owner == "b/1"
    assert found.record.fence == second.fence + 1
    assert found.before is None


@each
async def test_a_lease_that_had_lapsed_is_never_taken_for_one_that_was_kept(
    journal: PostgresJournal, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    with cut_at_the_next_commit(monkeypatch, when):
        assert not await journal.renew(lease("a"))
    assert await journal.renew(lease("a"))


@pytest.mark.parametrize("when", ["committed", "in disorder"])
async def test_what_was_committed_and_is_forgotten_since_is_not_stored_anew(
    journal: PostgresJournal, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Another host has brought two calls to their end before the connection was back."""
    refused: list[DrivenElsewhereError] = []

    def forget() -> None:
        assert run(server, f"DELETE FROM {SCHEMA}.records RETURNING 1") == [(1,), (1,)]

    async def save() -> None:
        try:
            await journal.save(record(state=observing()))
        except DrivenElsewhereError as error:
            refused.append(error)

    with ExitStack() as cutting:
        async with anyio.create_task_group() as both, gathering(journal):
            cutting.enter_context(cut_at_the_next_commit(monkeypatch, when, forget))
            for _ in range(2):
                both.start_soon(save)
    assert len(refused) == 2
    assert await journal.records(SCOPE) == []


async def test_what_became_of_a_commit_is_nothing_to_what_is_asked_for_later(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked for the commit does not wait any longer when it is known."""
    with anyio.fail_after(40):
        async with PostgresJournal(server.dsn, schema=f"{SCHEMA}_4", outage_s=3.0) as journal:
            stop = partial(server.stop, "fast")
            with cut_at_the_next_commit(monkeypatch, "committed", stop), pytest.raises(JournalError):
                await journal.save(first := record(created_at=1.0))
            server.start()
            await journal.save(second := record(created_at=2.0))
            assert await journal.records(SCOPE) == [first, second]


async def test_a_schema_that_is_dropped_fails_who_asks_and_nobody_else(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = f"{SCHEMA}_5"

    def drop() -> None:
        run(server, f"DROP SCHEMA {schema} CASCADE")

    with anyio.fail_after(40):
        journal = PostgresJournal(server.dsn, schema=schema, outage_s=5.0)
        async with journal:
            await journal.save(record())
            with cut_at_the_next_commit(monkeypatch, "committed", drop), pytest.raises(JournalError):
                await journal.save(record())
            with pytest.raises(JournalError, match="could not be read or written"):
                await journal.save(record())
        async with journal:
            await journal.save(given := record())
            assert await journal.records(SCOPE) == [given]


async def test_what_takes_too_long_is_ended_by_the_server_and_holds_up_nobody(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {**statements.texts("postgres"), "sleep": "SELECT pg_sleep(30)"}
    monkeypatch.setattr(statements, "texts", lambda folder: texts)
    failed: list[JournalError] = []
    with anyio.fail_after(40):
        async with PostgresJournal(server.dsn, schema=f"{SCHEMA}_6", outage_s=6.0) as journal:

            async def sleep(writes: bool) -> None:
                try:
                    await journal._opened().run(Work(statements=("sleep",), writes=writes))
                except JournalError as error:
                    failed.append(error)

            given = [record(created_at=float(number)) for number in range(5)]
            async with anyio.create_task_group() as tasks:
                for writes in (False, True):
                    tasks.start_soon(sleep, writes)
                for one in given:
                    tasks.start_soon(journal.save, one)
            assert len(failed) == 2
            assert await journal.records(SCOPE) == given


async def test_a_deadlock_with_others_fails_nobody(journal: PostgresJournal, server: PostgresServer) -> None:
    first, second = (record(state=observing(), created_at=at) for at in (1.0, 2.0))
    for one in (first, second):
        await journal.save(one)
    lock = f"UPDATE {SCHEMA}.records SET label = 'x' WHERE record_id = %s".encode()
    with psycopg.connect(server.dsn) as other:
        other.execute("SET deadlock_timeout = '30s'")
        other.execute(lock, (second.record_id,))

        async def save() -> None:
            async with anyio.create_task_group() as both:
                for one in (first, second):
                    both.start_soon(lambda one=one: journal.save(replace(one, updated_at=9.0), known=True))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(save)
            await until_somebody_waits(server)
            await to_thread.run_sync(other.execute, lock, (first.record_id,))  # until the server ends ours
            await to_thread.run_sync(other.commit)
    assert [one.updated_at for one in await journal.records(SCOPE)] == [9.0, 9.0]


async def test_nothing_of_a_connection_that_was_lost_is_written_later(
    journal: PostgresJournal, server: PostgresServer
) -> None:
    """The server still has the transaction, which waits for a lock, when the client has gone on."""
    await journal.save(given := record(state=observing(), owner="a/1"))
    await journal.save(other := record(state=observing(), owner="a/1"))
    early, late = (replace(given, updated_at=at) for at in (5.0, 6.0))
    with psycopg.connect(server.dsn) as blocking:
        blocking.execute(
            f"SELECT FROM {SCHEMA}.records WHERE record_id = %s FOR UPDATE".encode(), (given.record_id,)
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: journal.save(early, known=True))
            await until_somebody_waits(server)
            cut_quietly(journal)
            tasks.start_soon(lambda: journal.save(late, known=True))
            tasks.start_soon(lambda: journal.save(replace(other, updated_at=7.0), known=True))
            await anyio.sleep(0.3)
            blocking.rollback()
    for _ in range(5):
        assert await journal.by_id(given.record_id) == late
        await anyio.sleep(0.05)


async def test_nothing_of_a_connection_that_was_lost_is_begun_later(
    journal: PostgresJournal, server: PostgresServer
) -> None:
    """The process of the server that has the transaction is slow to look at it."""
    await journal.save(given := record(state=observing(), owner="a/1"))
    early, late = (replace(given, updated_at=at) for at in (5.0, 6.0))
    assert journal._medium is not None
    assert journal._medium._connection is not None
    backend = psutil.Process(journal._medium._connection.info.backend_pid)
    backend.suspend()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: journal.save(early, known=True))
            await anyio.sleep(0.2)  # it is sent
            cut_quietly(journal)
        await journal.save(late, known=True)
    finally:
        backend.resume()
    await to_thread.run_sync(backend.wait, 30)  # it reads all that it was sent before it notices
    assert await journal.by_id(given.record_id) == late


async def until_somebody_waits(server: PostgresServer) -> None:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while not await to_thread.run_sync(run, server, waiting):
        await anyio.sleep(0.02)


def cut_quietly(journal: PostgresJournal) -> None:
    """Cut the connection so that the server, which is busy, does not see it."""
    assert journal._medium is not None
    connection = journal._medium._connection
    assert connection is not None
    with socket.socket(fileno=os.dup(connection.fileno())) as its:
        its.shutdown(socket.SHUT_RDWR)


async def test_a_transaction_that_is_refused_refuses_one_write_alone(journal: PostgresJournal) -> None:
    await journal.save(first := record(idempotency_key="order-42"))
    refused: list[JournalError] = []
    given = [record(idempotency_key="order-42" if n == 7 else str(n), created_at=3.0 + n) for n in range(20)]

    async def save(one: TaskRecord) -> None:
        try:
            await journal.save(one)
        except JournalError as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        for one in given:
            tasks.start_soon(save, one)
    assert len(refused) == 1
    del given[7]
    assert [one.record_id for one in await journal.records(SCOPE)] == [
        one.record_id for one in [*given, first]
    ]


async def test_a_server_that_does_not_answer_is_away(server: PostgresServer) -> None:
    """Its network is there, as where it waits for a standby that is gone."""
    with anyio.fail_after(60):
        async with PostgresJournal(server.dsn, schema=f"{SCHEMA}_8", outage_s=16) as journal:
            await journal.save(given := record(state=observing(), owner="a/1"))
            assert journal._medium is not None
            assert journal._medium._connection is not None
            backend = psutil.Process(journal._medium._connection.info.backend_pid)
            backend.suspend()
            try:
                await journal.save(late := replace(given, updated_at=5.0), known=True)
                assert await journal.by_id(given.record_id) == late
            finally:
                backend.resume()
