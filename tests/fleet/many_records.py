"""A journal with many records: those of tasks that wait, and those of tasks that have finished."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg

from mcp_tasks_client import Journal, Lease, PostgresJournal, SqliteJournal, TaskRecord
from mcp_tasks_client.machine.states import Completed, Finished
from mcp_tasks_client.testing import text_result
from tests.benchmarks.commits import _record
from tests.postgres import PostgresServer

from .commits import percentile
from .database import Spent, ask

__all__ = ["finished", "waiting"]

FINISHED: Final = 1_000_000
WAITING: Final = (10_000, 100_000)
REPLICAS: Final = 10
TIMES: Final = 20
SCHEMA: Final = "many"


def _copy(server: PostgresServer, of: TaskRecord, count: int, changes: dict[str, str]) -> int:
    """Have so many records like one that is stored, each with an ID and a key of its own.

    Returns:
        How many bytes they take.
    """
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        names = [
            str(name)
            for (name,) in connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = %s "
                "AND table_name = 'records' AND is_identity = 'NO' ORDER BY ordinal_position",
                (SCHEMA,),
            )
        ]
        shown = {name: name for name in names} | {
            "record_id": "'copy-' || n",
            "task_id": "'task-' || md5(n::text)",
            "idempotency_key": "'call-' || n",
            "key": "md5(n::text)::uuid",
            "created_at": "created_at + n / 1e6",
            **changes,
        }
        connection.execute(
            f"INSERT INTO {SCHEMA}.records ({', '.join(names)}) SELECT {', '.join(shown.values())} "
            f"FROM {SCHEMA}.records, generate_series(1, {count}) AS n WHERE record_id = %s".encode(),
            (of.record_id,),
        )
        connection.execute(f"DELETE FROM {SCHEMA}.records WHERE record_id = %s".encode(), (of.record_id,))
        connection.execute(f"VACUUM ANALYZE {SCHEMA}.records".encode())
        connection.execute("CHECKPOINT")
    size: int = ask(server, f"SELECT pg_total_relation_size('{SCHEMA}.records')")
    return size


def _copy_in_file(file: Path, of: TaskRecord, count: int, changes: dict[str, str]) -> int:
    """The same in a journal file."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        names = [str(row[1]) for row in connection.execute("PRAGMA table_info(records)") if not row[5]]
        shown = {name: name for name in names} | {
            "record_id": "'copy-' || n",
            "task_id": "'task-' || hex(randomblob(16))",
            "idempotency_key": "'call-' || n",
            "created_at": "created_at + n / 1e6",
            **changes,
        }
        connection.execute(
            f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}) "
            f"INSERT INTO records ({', '.join(names)}) SELECT {', '.join(shown.values())} "
            "FROM records, numbers WHERE record_id = ?",
            (of.record_id,),
        )
        connection.execute("DELETE FROM records WHERE record_id = ?", (of.record_id,))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file.stat().st_size


async def _timed(call: Callable[[], Awaitable[Any]], times: int = TIMES) -> tuple[float, float]:
    """Of the time that a call takes the 50th and 99th percentile, in milliseconds."""
    taken = list[float]()
    for _ in range(times):
        began = time.perf_counter()
        await call()
        taken.append(1e3 * (time.perf_counter() - began))
    return percentile(taken, 0.5), percentile(taken, 0.99)


def _lease(number: int) -> Lease:
    now = time.time()
    return Lease(
        lease_id=f"replica-{number}",
        host=f"host-{number}",
        boot="",
        pids="",
        pid=1,
        started=0.0,
        renewed_at=now,
        expires_at=now + 3600,
    )


def waiting(server: PostgresServer, size: float) -> list[list[str]]:
    """The table: what the looks of a replica cost while so many tasks wait, shared by ten replicas."""
    table = [["tasks that wait", "their table", "a look by a replica that has none", "CPU of the server"]]
    table[0] += ["a look by one that has a tenth", "CPU of the server", "a list of 1,000 open questions"]
    for count in WAITING:
        table.append(asyncio.run(_waiting(server, max(1000, round(count * size)))))
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE".encode())
    return table


async def _waiting(server: PostgresServer, count: int) -> list[str]:
    record = _record(0)
    scope = record.scope
    async with PostgresJournal(server.dsn, schema=SCHEMA) as journal:
        for number in range(REPLICAS):
            await journal.renew(_lease(number))
        await journal.claim(replace(record, owner="replica-0/1"))
        _copy(server, record, count, {"owner": f"'replica-' || mod(n, {REPLICAS}) || '/1'"})

        async def look(owner: str) -> None:
            """What a step of adopt() asks for that finds nothing new."""
            await journal.asking(scope)
            await journal.owners()
            await journal.take_pending(scope, owner, (), limit=25)

        cells = list[str]()
        for owner in ("replica-0/2", "replica-0/1"):  # the second one has a tenth
            spent = Spent(server)
            p50, _ = await _timed(partial(look, owner))
            _, cpu_s, _, _ = spent.until_now()
            cells += [f"{p50:,.0f} ms", f"{1e3 * cpu_s / TIMES:,.0f} ms"]
        ask(
            server,
            f"UPDATE {SCHEMA}.records SET status = 'input_required' WHERE record_id IN "
            f"(SELECT record_id FROM {SCHEMA}.records LIMIT 1000)",
        )
        asking, _ = await _timed(lambda: journal.asking(scope), 5)
        size = ask(server, f"SELECT pg_total_relation_size('{SCHEMA}.records')")
    return [f"{count:,}", f"{size / 2**20:.0f} MB", *cells, f"{asking:.0f} ms"]


def finished(server: PostgresServer, size: float) -> list[list[str]]:
    """The table: what is done while a million finished records are kept, here and in a file beside it."""
    count = round(FINISHED * size)
    with tempfile.TemporaryDirectory(dir=".") as folder:  # /tmp may be in memory
        file = Path(folder, "journal.sqlite3")
        columns = [
            asyncio.run(_finished(PostgresJournal(server.dsn, schema=SCHEMA), partial(_copy, server), count)),
            asyncio.run(_finished(SqliteJournal(file), partial(_copy_in_file, file), count)),
        ]
    rows = [[operation, *cells, *columns[1][operation]] for operation, cells in columns[0].items()]
    return [["operation", "p50", "p99", "of SQLite: p50", "p99"], *rows]


async def _finished(
    journal: Journal, copy: Callable[[TaskRecord, int, dict[str, str]], int], count: int
) -> dict[str, tuple[str, str]]:
    """What each operation takes, p50 and p99; of some only a figure.

    Args:
        journal: Which is empty.
        copy: Has so many records like one that is stored, and tells how many bytes they take.
        count: How many records there are.
    """
    record, now = _record(0), time.time()
    scope = record.scope
    result = text_result("x" * 500)
    record = replace(record, state=Finished(task=record.state.task, outcome=Completed(result=result)))  # type: ignore[union-attr]
    table = dict[str, tuple[str, str]]()

    async def measure(name: str, call: Callable[[], Awaitable[Any]], times: int = TIMES) -> None:
        p50, p99 = await _timed(call, times)
        table[name] = f"{p50:.1f} ms", f"{p99:.1f} ms"

    async with journal:
        await journal.claim(record)
        over_a_month = f"{now} - 2592000.0 * n / {count}"
        stored = copy(record, count, {"pending": "0", "delivered_at": over_a_month})
        pending = [replace(_record(number), record_id=f"free-{number}") for number in range(1, 101)]
        for one in pending:
            await journal.save(one)
        numbers = iter(range(1, count))
        await measure("commit a record", lambda: journal.save(pending[0], known=True), 200)
        await measure("find a record by its task", lambda: journal.by_task_id(scope, "none"), 200)
        await measure("find a record by its ID", lambda: journal.by_id(f"copy-{next(numbers)}"), 200)
        await measure("list 100 that are pending", lambda: journal.records(scope, pending=True))
        owners = iter(range(count))
        gone = [f"gone-{number}" for number in range(TIMES + 1)]
        await measure(
            "take 100 that are free",
            lambda: journal.take_pending(scope, gone[number := next(owners)], gone[:number]),
        )
        await measure(
            "list the 1,000 delivered last",
            lambda: journal.records(scope, delivered_since=now - 2592000 * 1000 / count),
            5,
        )
        began, pruned = time.perf_counter(), 0
        steps = list[float]()
        while True:
            at = time.perf_counter()
            found = await journal.prune(now + 1, now)
            steps.append(1e3 * (time.perf_counter() - at))
            pruned += found
            if not found:
                break
        seconds = time.perf_counter() - began
    table["forget 5,000"] = f"{percentile(steps, 0.5):.0f} ms", f"{percentile(steps, 0.99):.0f} ms"
    table["forget all, a second"] = f"{pruned / seconds:,.0f}", ""
    table["bytes of a record with its indexes"] = f"{stored / count:,.0f}", ""
    return table
