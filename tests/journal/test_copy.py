"""A journal that moves from a file to a database, and back."""

from __future__ import annotations

import re
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import anyio
import psycopg
import pytest

from mcp_tasks_client import (
    Instruction,
    Journal,
    Lease,
    Origin,
    PostgresJournal,
    Scope,
    SqliteJournal,
    TaskRecord,
)
from mcp_tasks_client.journal.copy.__main__ import _medium, copy, main
from mcp_tasks_client.machine.states import Completed
from mcp_tasks_client.questions.question import as_heeded
from mcp_tasks_client.testing.samples import finished, observing, record, with_key
from tests.journal.files import raw

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

SCHEMA = f"copied_{uuid.uuid4().hex}"
YES, NO = Instruction("answer", '{"a":1}', 7.0), Instruction("answer", "{}", 8.0)
AS_HEEDED = as_heeded(YES)


@pytest.fixture(autouse=True)
def no_schema(postgres: str) -> Iterator[None]:
    yield
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE".encode())


async def fill(journal: Journal) -> list[TaskRecord]:
    given = [
        record(state=observing("t\u00e4sk\0"), scope=Scope("https://b\u00fccher.example/", "alice")),
        record(
            state=finished(),
            idempotency_key="order-42",
            delivered_at=5.0,
            label="\ud83d\0",
            arguments_digest="ab" * 32,
            origin=Origin("worker.py", "web-1", 4711),
        ),
        record(state=observing(ttl_ms=1e300), owner="gone/1", fence=2**62, application="payroll"),
        *(record(created_at=2e9 - n) for n in range(1200)),
    ]
    async with journal, anyio.create_task_group() as tasks:
        for one in given[:3]:
            await journal.save(one)
        for one in given[3:]:
            tasks.start_soon(journal.save, one)
    async with journal:
        await journal.instruct(given[0].record_id, YES)
        await journal.save(replace(given[0]), known=True, heeded=AS_HEEDED)
        await journal.instruct(given[2].record_id, YES)
        for took_s in (7.0, 3.5):
            await journal.save(
                ends := record(state=observing(), scope=given[0].scope, idempotency_key=str(took_s))
            )
            ends = replace(ends, state=finished(Completed(result={}, took_s=took_s)))
            await journal.save(ends, known=True)
            given.append(ends)
    return given


async def test_all_of_a_file_is_in_the_database_and_comes_back(postgres: str, path: Path) -> None:
    file, database = SqliteJournal(path), PostgresJournal(postgres, schema=SCHEMA)
    back = SqliteJournal(path.with_name("back.sqlite3"))
    with anyio.fail_after(50):
        given = await fill(file)
        assert main([str(path), postgres, "--schema", SCHEMA]) == 0
        assert main([postgres, str(back.path), "--schema", SCHEMA]) == 0
        async with file, database, back:
            expected = await file.records(None)
            assert len(expected) == len(given)
            for journal in (database, back):
                assert await journal.records(None) == expected
                assert await with_key(journal, given[1].scope, "order-42") == given[1]
                assert await journal.instructions(given[0].record_id) == []
                assert await journal.instruct(given[0].record_id, NO) == AS_HEEDED
                assert await journal.instructions(given[2].record_id) == [YES]
                assert await journal.durations(given[0].scope, "report") == [7.0, 3.5]
    with raw(path) as there, raw(back.path) as returned:
        for table in ("records", "instructions"):  # columns besides, by which records are found
            rows = f"SELECT * FROM {table} ORDER BY sequence"
            assert returned.execute(rows).fetchall() == there.execute(rows).fetchall()
        rows = "SELECT * FROM durations ORDER BY number"
        assert returned.execute(rows).fetchall() == there.execute(rows).fetchall()


class Intruder:
    """A codec that tries to write to both journals while they are copied."""

    def __init__(self, file: Path, database: str) -> None:
        self.file, self.database, self.tried = file, database, 0

    def encode(self, value: bytes) -> bytes:
        with raw(self.file) as connection, pytest.raises(sqlite3.OperationalError, match="is locked"):
            connection.execute("DELETE FROM records")
        with psycopg.connect(self.database, autocommit=True) as other:
            other.execute("SET lock_timeout = 50")
            for table in ("records", "instructions", "leases", "durations"):
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    other.execute(f"DELETE FROM {SCHEMA}.{table}".encode())
        self.tried += 1
        return value

    def decode(self, value: bytes) -> bytes:
        return value


async def test_nobody_writes_to_either_journal_while_it_is_copied(postgres: str, path: Path) -> None:
    back = path.with_name("back.sqlite3")
    with anyio.fail_after(50):
        async with SqliteJournal(path) as journal:
            await journal.save(record())
        for source, target, file in ((str(path), postgres, path), (postgres, str(back), back)):
            intruder = Intruder(file, postgres)
            decoder = None if source == str(path) else intruder
            copied = copy(_medium(source, SCHEMA), _medium(target, SCHEMA), decoder=decoder, encoder=intruder)
            assert (copied, intruder.tried) == ((1, 0), 1)


@pytest.mark.parametrize(
    "damage",
    [
        "record_id = CAST(CASE sequence WHEN 1 THEN x'fe' ELSE x'ff' END AS TEXT)",  # both are read alike
        "idempotency_key = 'order-42'",  # whose digest is that of the other
        "endpoint = x'00ff'",
    ],
    ids=["record_id", "idempotency_key", "endpoint"],
)
async def test_no_record_is_left_out_of_a_copy_without_a_word(
    path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = SqliteJournal(path.with_name("target.sqlite3"))
    with anyio.fail_after(30):
        async with SqliteJournal(path) as journal:
            for key in ("order-41", "order-42"):
                await journal.save(record(idempotency_key=key))
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE records SET {damage}")
        assert main([str(path), str(target.path)]) == 1
        assert "journal" in capsys.readouterr().err
        async with target:
            assert await target.records(None) == []


async def test_nothing_is_copied_while_anybody_drives_or_where_there_is_a_journal_already(
    postgres: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, database = SqliteJournal(path), PostgresJournal(postgres, schema=SCHEMA)
    now = time.time()
    lease = Lease("lease", "web-1:00ff", "boot", "pids", 4711, 1.5, now, now + 30)
    command = [str(path), postgres, "--schema", SCHEMA]
    with anyio.fail_after(50):
        for journal in (file, database):
            async with journal:
                await file.open()
                await file.save(record(record_id="r"))
                await file.aclose()
                await journal.renew(lease)
            assert main(command) == 1
            said = capsys.readouterr().err
            assert re.search(
                "in use by process 4711 on web-1; stop it, or wait [0-9]+ seconds if it has died", said
            )
            async with journal:
                await journal.release("lease")
        async with database:
            assert await database.records(None) == []
        assert main(command) == 0
        assert main(command) == 1
        assert "has 1 records already; copy to an empty one" in capsys.readouterr().err
        assert main([str(path), "postgresql:///nowhere?host=/nowhere"]) == 1
        assert "cannot be reached" in capsys.readouterr().err


async def test_what_is_no_journal_is_not_copied_and_none_is_made_there(
    postgres: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = path.with_name("target.sqlite3")
    assert main([str(path), str(target)]) == 1
    assert f"there is no journal {path}; see to the address" in capsys.readouterr().err
    assert not path.exists()
    assert main([postgres, str(target), "--schema", SCHEMA]) == 1
    assert f"there is no journal {SCHEMA} in" in capsys.readouterr().err
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (SCHEMA,)).fetchall() == []
    async with SqliteJournal(path):
        pass
    assert main([str(path), str(path)]) == 1
    assert "cannot be copied to itself" in capsys.readouterr().err
    assert main([str(path), "environment=prod"]) == 1
    assert "a file of such a name is ./environment=prod" in capsys.readouterr().err
    assert not target.exists()
    with pytest.raises(SystemExit):
        main([str(path), postgres, "--schema", "Robert'); DROP"])
    assert "schema must be a name of a-z" in capsys.readouterr().err
