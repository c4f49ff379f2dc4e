"""What only the journal in PostgreSQL promises: its schema, one transaction for many, word of others."""

from __future__ import annotations

import gc
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import psycopg
import pytest
from anyio import to_thread

from mcp_tasks_client import Instruction, PostgresJournal, Scope
from mcp_tasks_client.errors import JournalCorruptError, JournalError, JournalSchemaError
from mcp_tasks_client.journal.postgres.dialect import POSTGRES, rows_json
from mcp_tasks_client.journal.sqlite.journal import choose_journal
from mcp_tasks_client.journal.statements import Statements
from mcp_tasks_client.journal.work import Work, group_jobs
from mcp_tasks_client.machine.states import Completed
from mcp_tasks_client.testing.samples import SCOPE, Heard, finished, lease, observing, record, with_key
from tests.journal.files import note_listening, only_told, timed
from tests.journal.gathering import gathering

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

NAMES: Final = ("ada", "bob")

Run = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def run(postgres: str) -> Run:
    """Runs a statement, as any other program could."""

    def run(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def own_schema(run: Run) -> Iterator[str]:
    """The name of a schema that is not there."""
    name = f"own_{uuid.uuid4().hex}"
    yield name
    run(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture
def other_journal(postgres_journal: Callable[[], PostgresJournal], postgres: str, schema: str) -> Any:
    """Makes a journal with a connection of its own, as other processes have it."""
    return lambda: PostgresJournal(f"{postgres} options=''", schema=schema)


# ── the schema ────────────────────────────────────────────────────────────────────────────────


async def test_many_make_the_schema_at_the_same_moment(postgres: str, own_schema: str) -> None:
    journals = [
        PostgresJournal(f"{postgres} options='-c work_mem={64 + n}kB'", schema=own_schema) for n in range(4)
    ]
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for journal in journals:
                tasks.start_soon(journal.open)
        for journal in journals:
            await journal.save(record())
            await journal.aclose()


async def test_a_schema_of_a_newer_version_is_refused_and_left_as_it_is(
    postgres: str, own_schema: str, run: Run
) -> None:
    journal = PostgresJournal(postgres, schema=own_schema)
    with anyio.fail_after(30):
        async with journal:
            await journal.save(record())
        run(f"UPDATE {own_schema}.meta SET value = '1000'")
        before = run(f"SELECT * FROM {own_schema}.writers"), run(f"SELECT * FROM {own_schema}.records")
        with pytest.raises(JournalSchemaError, match=r"newer version .* upgrade mcp-tasks-client"):
            await journal.open()
        assert before == (
            run(f"SELECT * FROM {own_schema}.writers"),
            run(f"SELECT * FROM {own_schema}.records"),
        )


async def test_the_tables_of_another_program_are_refused_and_left_alone(
    postgres: str, own_schema: str, run: Run
) -> None:
    run(f"CREATE SCHEMA {own_schema}")
    run(f"CREATE TABLE {own_schema}.records (id integer)")
    with anyio.fail_after(30), pytest.raises(JournalSchemaError, match="another program's tables"):
        await PostgresJournal(postgres, schema=own_schema).open()
    assert run("SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace", own_schema) == [
        ("records",)
    ]


@pytest.mark.parametrize(
    "table",
    [
        "meta (id integer)",
        "meta (name text, value text)",
        "meta (name text, value text); CREATE TABLE {}.writers ()",
    ],
)
async def test_a_table_of_another_program_that_is_called_as_ours_is_left_alone(
    postgres: str, own_schema: str, run: Run, table: str
) -> None:
    run(f"CREATE SCHEMA {own_schema}")
    for statement in f"CREATE TABLE {{}}.{table}".split("; "):
        run(statement.format(own_schema))
    run(f"INSERT INTO {own_schema}.meta DEFAULT VALUES")
    tables = "SELECT count(*) FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"
    before = run(tables, own_schema)
    with anyio.fail_after(30), pytest.raises(JournalSchemaError, match="another program's tables"):
        await PostgresJournal(postgres, schema=own_schema).open()
    assert run(tables, own_schema) == before


async def test_a_schema_may_be_called_by_a_word_of_sql(
    postgres: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_told(monkeypatch)
    given = record(state=observing())
    heard = Heard()
    try:
        with anyio.fail_after(30):
            async with (
                PostgresJournal(postgres, schema="user") as first,
                PostgresJournal(f"{postgres} options=''", schema="user") as second,
            ):
                await first.save(given)
                stop = second.listen(heard)
                await anyio.sleep(1.5)
                await first.instruct(given.record_id, Instruction("answer", "{}", 7.0))
                assert await heard.wait_for(given.record_id, 20.0)
                stop()
    finally:
        run('DROP SCHEMA IF EXISTS "user" CASCADE')


async def test_no_password_is_told_to_anybody(postgres: str) -> None:
    given = "host=/nowhere dbname=tasks user=me password=s3cret"
    journal = PostgresJournal(given, outage_s=0.0)
    assert "s3cret" not in repr(journal)
    assert "s3cret" not in repr(journal.identity)
    for scheme in ("postgresql", "postgres", "redis"):
        with pytest.raises(ValueError, match=r"give a PostgresJournal\(address\)") as mistaken:
            choose_journal(f"{scheme}://me:s3cret@db.example/tasks")
        assert "s3cret" not in str(mistaken.value)
    with pytest.raises(JournalError, match="cannot be reached") as raised:
        await journal.open()
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        "host=/nowhere password=s3cret nonsense",
        "host=/nowhere s3cret",
        "postgresql+psycopg://me:s3cret@db.example/tasks",
        "POSTGRESQL://me:s3cret@db.example/tasks",
        "postgresql://me:s3cret/x@db.example/tasks",
        "postgresql://me:s3cret%zz@db.example/tasks",
        "postgresql://me:s3cret x@db.example/tasks",
        "postgresql://me:s3cret@[::1/tasks",
    ],
)
async def test_an_address_that_makes_no_sense_is_not_quoted(wrong: str) -> None:
    with pytest.raises(ValueError, match="dsn cannot be read: give host=") as refused:
        PostgresJournal(wrong)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong", [{"schema": "Robert'); DROP"}, {"schema": ""}, {"schema": "pg_x"}, {"outage_s": -1}]
)
async def test_what_makes_no_sense_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PostgresJournal("", **wrong)


async def test_a_password_that_is_none_is_refused_and_one_that_raises_is_told_by_its_type_alone() -> None:
    async def later() -> str:
        return "s3cret"

    def leak() -> str:
        raise SystemExit("s3cret")

    for wrong in ("s3cret", later):
        with pytest.raises(TypeError, match="password must be a function that returns the password") as told:
            PostgresJournal("", password=wrong)  # type: ignore[arg-type]
        assert "s3cret" not in str(told.value)
    with pytest.raises(JournalError, match=r"password\(\) returned no text, but int"):
        await PostgresJournal("", password=lambda: 7).open()  # type: ignore[arg-type,return-value]
    with pytest.raises(JournalError, match=r"password\(\) raised SystemExit") as raised:
        await PostgresJournal("", password=leak, outage_s=0.0).open()
    assert "s3cret" not in str(raised.value)


async def test_journals_of_one_schema_share_a_thread_and_nothing_stays_of_the_last(
    postgres: str, own_schema: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, linger_s=0.0)

    def make() -> PostgresJournal:
        return PostgresJournal(f"{postgres} application_name={own_schema}", schema=own_schema)

    def connections() -> int:
        found = run("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", own_schema)
        return int(found[0][0])

    before = set(threading.enumerate())

    def new_threads() -> set[threading.Thread]:
        return set(threading.enumerate()) - before

    with anyio.fail_after(30):
        for number in range(3):
            journal = make()
            await journal.open()
            async with make() as other:
                await other.save(record(record_id=f"one-{number}"))
                journal.listen(lambda found: None)
                assert connections() <= 2
            if number == 2:
                await journal.aclose()
            del journal, other
            gc.collect()
            while connections() or any(one.name.startswith("mcp-tasks") for one in new_threads()):
                await anyio.sleep(0.02)


async def test_a_commit_is_on_the_disk_whatever_the_server_would_rather_do(
    postgres: str, own_schema: str
) -> None:
    with anyio.fail_after(30):
        for given, expected in {"off": "on", "local": "local"}.items():
            options = f"options='-c synchronous_commit={given} -c default_transaction_isolation=serializable'"
            async with PostgresJournal(f"{postgres} {options}", schema=own_schema) as journal:
                assert journal._medium is not None
                connection = journal._medium._connection
                assert connection is not None
                settings = (
                    "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation')"
                )
                assert connection.execute(settings).fetchone() == (expected, "read committed")


# ── rows ──────────────────────────────────────────────────────────────────────────────────────


async def test_long_texts_of_any_kind_are_kept_and_found(
    postgres_journal: Callable[[], PostgresJournal],
) -> None:
    """Longer than an index takes, and of a kind that cannot be compressed to what it takes."""
    long = "".join(uuid.uuid4().hex for _ in range(1000))
    scope = Scope(long, long)
    given = record(scope=scope, idempotency_key=long, state=observing(long), label=long)
    with anyio.fail_after(30):
        async with postgres_journal() as journal:
            assert await journal.claim(given) == given
            assert await with_key(journal, scope, long) == given
            assert await journal.by_task_id(scope, long) == given
            assert await journal.records(scope, pending=True) == [given]
            assert await journal.claim(record(scope=scope, idempotency_key=long)) == given


async def test_a_damaged_record_is_passed_over_and_not_taken(
    postgres_journal: Callable[[], PostgresJournal], schema: str, run: Run
) -> None:
    damaged, *others = [record(state=observing(), created_at=float(number)) for number in range(3)]
    with anyio.fail_after(30):
        async with postgres_journal() as journal:
            for given in (damaged, *others):
                await journal.save(given)
            run(f"UPDATE {schema}.records SET state = '{{' WHERE record_id = %s", damaged.record_id)

            taken = await journal.take_pending(SCOPE, "a/1", limit=2)

            assert [one.record.record_id for one in taken] == [one.record_id for one in others]
            assert [one.record_id for one in await journal.records(SCOPE)] == [
                one.record_id for one in others
            ]
            with pytest.raises(JournalCorruptError):
                await journal.by_id(damaged.record_id)
            with pytest.raises(JournalCorruptError):
                await journal.take(damaged.record_id, "a/1")
            assert run(f"SELECT owner FROM {schema}.records WHERE record_id = %s", damaged.record_id) == [
                (None,)
            ]


async def test_what_another_one_is_about_to_take_is_passed_over(
    postgres_journal: Callable[[], PostgresJournal], postgres: str, schema: str
) -> None:
    first, second = (record(state=observing(), created_at=at) for at in (1.0, 2.0))
    with anyio.fail_after(30):
        async with postgres_journal() as journal:
            await journal.save(first)
            await journal.save(second)
            with psycopg.connect(postgres) as other:
                other.execute(
                    f"SELECT FROM {schema}.records WHERE record_id = %s FOR UPDATE".encode(),
                    (first.record_id,),
                )
                (taken,) = await journal.take_pending(SCOPE, "a/1", limit=1)
            assert taken.record.record_id == second.record_id


async def test_many_writes_share_few_transactions(
    postgres_journal: Callable[[], PostgresJournal], schema: str, run: Run
) -> None:
    with anyio.fail_after(30):
        async with postgres_journal() as journal:
            async with anyio.create_task_group() as tasks, gathering(journal):
                for number in range(1000):
                    tasks.start_soon(journal.save, record(state=observing(), created_at=float(number)))
            assert journal._medium is not None
            writer_id = journal._medium._writer_id
            assert run(f"SELECT committed < 20 FROM {schema}.writers WHERE writer_id = %s", writer_id) == [
                (True,)
            ]
            assert len(await journal.records(SCOPE)) == 1000


async def test_writes_that_are_more_than_a_socket_takes_at_once_are_committed_at_once(
    postgres_journal: Callable[[], PostgresJournal],
) -> None:
    """psycopg waits for replies to a pipeline of which it has sent only what the socket took."""
    large = finished(Completed(result={"content": [{"type": "text", "text": "x" * 50_000}]}))
    with anyio.fail_after(20):
        async with postgres_journal() as journal, anyio.create_task_group() as tasks:
            for _ in range(200):
                tasks.start_soon(journal.save, record(state=large))


async def test_an_answer_is_told_at_once_to_whoever_listens_elsewhere(
    postgres_journal: Callable[[], PostgresJournal],
    other_journal: Callable[[], PostgresJournal],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only_told(monkeypatch)
    given = record(record_id="r\u00e9cord", state=observing())
    heard = Heard()
    with anyio.fail_after(30):
        async with postgres_journal() as first, other_journal() as second:
            await first.save(given)
            stop = second.listen(heard)
            await anyio.sleep(1.5)  # it listens, and has looked
            await first.instruct(given.record_id, Instruction("answer", "{}", 7.0))
            assert await heard.wait_for(given.record_id)
            stop()


async def test_the_end_of_a_call_is_told_if_somebody_follows_it(
    postgres_journal: Callable[[], PostgresJournal],
    other_journal: Callable[[], PostgresJournal],
    schema: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listening = note_listening(monkeypatch)
    followed, alone = (record(state=observing(), owner="a/1") for _ in range(2))
    heard: list[str] = []
    with anyio.fail_after(30):
        async with postgres_journal() as first, other_journal() as second:
            for one in (followed, alone):
                await first.save(one)
            stop = second.listen(heard.extend)
            await second.follow(followed.record_id)
            await second.follow(followed.record_id)
            while len(listening) < 2:
                await anyio.sleep(0.01)
            await anyio.sleep(1.5)  # it has looked
            assert heard == []
            for one in (alone, followed):
                await first.save(replace(one, state=finished()), known=True)
            while not heard:
                await anyio.sleep(0.01)
            assert heard == [followed.record_id]
            await second.follow(alone.record_id)  # it has ended, so that there is nothing to tell any more
            assert run(f"SELECT count(*) FROM {schema}.instructions") == [(0,)]
            stop()


async def test_a_call_that_ends_at_the_moment_takes_no_answer(
    postgres_journal: Callable[[], PostgresJournal], postgres: str, schema: str, run: Run
) -> None:
    given = record(state=observing(), idempotency_key="order-42")
    with anyio.fail_after(30):
        async with postgres_journal() as journal:
            await journal.save(given)
            with psycopg.connect(postgres) as ending:
                ending.execute(
                    f"UPDATE {schema}.records SET due_at = NULL WHERE record_id = %s".encode(),
                    (given.record_id,),
                )
                told: list[Instruction | None] = []

                async def answer() -> None:
                    told.append(await journal.instruct(given.record_id, Instruction("answer", "{}", 7.0)))

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(answer)
                    await anyio.sleep(0.2)
                    await to_thread.run_sync(ending.commit)
    assert told == [None]
    assert run(f"SELECT count(*) FROM {schema}.instructions") == [(0,)]


async def test_instructions_of_a_call_come_in_the_order_in_which_they_were_committed(
    postgres_journal: Callable[[], PostgresJournal], postgres: str, schema: str
) -> None:
    """By it the driver tells whether an answer or a wish to cancel was first, and so does who answers."""
    given, answer = record(state=observing()), Instruction("answer", "{}", 7.0)
    statement = Statements(POSTGRES, schema, channel=schema)("instruct").text
    cancel = {"record_id": given.record_id, "name": "cancel", "body": "", "at": 6.0}
    with anyio.fail_after(30):
        async with postgres_journal() as journal:
            await journal.save(given)
            with psycopg.connect(postgres) as other:
                other.execute(statement.encode(), {"rows": rows_json([cancel])})
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(journal.instruct, given.record_id, answer)
                    while not _waits_for_a_lock(postgres):
                        await anyio.sleep(0.01)
                    await to_thread.run_sync(other.commit)
            left = await journal.instructions(given.record_id)
    assert [one.name for one in left] == ["cancel", "answer"]


def _waits_for_a_lock(postgres: str) -> bool:
    with psycopg.connect(postgres, autocommit=True) as connection:
        return connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is not None


async def test_a_user_who_may_create_nothing_is_given_a_schema(
    postgres: str, own_schema: str, run: Run
) -> None:
    user = f"app_{own_schema}"[:60]
    run(f"CREATE ROLE {user} LOGIN")
    journal = PostgresJournal(psycopg.conninfo.make_conninfo(postgres, user=user), schema=own_schema)
    try:
        with pytest.raises(JournalError, match="have somebody create it and grant all rights in it"):
            await journal.open()
        run(f"CREATE SCHEMA {own_schema}")
        run(f"GRANT ALL ON SCHEMA {own_schema} TO {user}")
        async with journal:
            await journal.save(given := record())
            assert await journal.records(None) == [given]
    finally:
        run(f"DROP SCHEMA IF EXISTS {own_schema} CASCADE")
        run(f"DROP ROLE {user}")


async def test_row_level_security_shows_each_principal_its_own(
    postgres: str, own_schema: str, run: Run
) -> None:
    """By the statements of the guide."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "tenants.md").read_text(encoding="utf-8")
    (statements,) = re.findall(r"```sql\n(.*?)```", page, flags=re.DOTALL)
    user = f"app_{own_schema}"[:60]
    statements = statements.replace("mcp_tasks_client", own_schema).replace("tasks_app", user)
    run(f"CREATE ROLE {user} LOGIN")

    def journal_of(principal: str) -> PostgresJournal:
        address = psycopg.conninfo.make_conninfo(postgres, user=user)
        return PostgresJournal(f"{address} options='-c tasks.principal={principal}'", schema=own_schema)

    try:
        with anyio.fail_after(30):
            async with PostgresJournal(postgres, schema=own_schema) as owners:
                run(statements)
                given = {
                    name: record(scope=replace(SCOPE, principal=name), state=observing()) for name in NAMES
                }
                async with journal_of("ada") as ada, journal_of("bob") as bob:
                    for name, journal in {"ada": ada, "bob": bob}.items():
                        await journal.save(given[name])
                        await journal.renew(lease(name))
                        await journal.instruct(given[name].record_id, Instruction("answer", "{}", 7.0))
                    assert await ada.records(None) == [given["ada"]]
                    assert await ada.by_id(given["bob"].record_id) is None
                    assert await ada.instructions(given["bob"].record_id) == []
                    assert await ada.take_pending(given["bob"].scope, "ada/1", {"bob/1"}) == []
                    await ada.remove(given["bob"])
                    with pytest.raises(JournalError, match="may not be written"):
                        await ada.save(record(scope=given["bob"].scope))
                    ended = finished(Completed(result={}, took_s=3.5))
                    await ada.save(replace(given["ada"], state=ended), known=True)
                    assert await ada.durations(given["ada"].scope, "report") == [3.5]
                    assert await bob.durations(given["ada"].scope, "report") == []
                assert len(await owners.records(None)) == 2
                assert len(await owners.instructions(given["bob"].record_id)) == 1
    finally:
        run(f"DROP SCHEMA {own_schema} CASCADE")
        run(f"DROP ROLE {user}")


# ── what one statement does ───────────────────────────────────────────────────────────────────


class Asked:
    def __init__(self, name: str, *touches: str, writes: bool = True) -> None:
        row = {"record_id": name} if touches else None
        self.work = Work(statements=(name,), row=row, touches=touches, writes=writes)


async def test_works_about_different_rows_are_done_together_and_those_about_one_in_their_order() -> None:
    save_a, save_b, save_a_again = Asked("save", "a"), Asked("save", "b"), Asked("save", "a")
    remove_b, save_c, save_d = Asked("remove", "b"), Asked("save", "c"), Asked("save", "d", "a")
    look, release, save_e = Asked("by_id", writes=False), Asked("release"), Asked("save", "e")
    asked = [save_a, look, save_b, save_a_again, remove_b, save_c, save_d, release, save_e]
    assert group_jobs(asked) == [
        [save_a, save_b, save_c],
        [save_a_again],
        [remove_b],
        [save_d],
        [release],
        [save_e],
        [look],
    ]


async def test_what_is_no_number_in_json_is_one_in_the_database(
    postgres_journal: Callable[[], PostgresJournal], schema: str, run: Run
) -> None:
    with anyio.fail_after(30):
        async with postgres_journal() as journal:
            state = observing(ttl_ms=float("inf"))
            await journal.save(given := record(state=state))
            assert run(f"SELECT expires_at = 'infinity' FROM {schema}.records") == [(True,)]
            assert await journal.records(SCOPE) == [given]
            await journal.save(record(state=finished()))
