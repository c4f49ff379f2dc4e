"""``python -m tests.fleet.commits``: commits a second of PostgreSQL beside SQLite, each of them synced.

Of three runs each the best one counts. A commit is the write of a record that is known.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

import psycopg

from mcp_tasks_client import Journal, PostgresJournal, SqliteJournal
from tests.benchmarks.commits import _record
from tests.postgres import running_postgres

SIZES: Final = ((1, 200), (10, 100), (100, 30), (1000, 10))
"""How many tasks write at once, and how often each does."""

RUNS: Final = 3


async def measure(journal: Journal, tasks: int, rounds: int) -> tuple[float, float, float]:
    """Commits a second, and of the time of each the 50th and 99th percentile in milliseconds."""
    taken: list[float] = []

    async def write(number: int) -> None:
        record = _record(number)
        for round_number in range(rounds):
            began = time.perf_counter()
            await journal.save(record, known=round_number > 0)
            taken.append(time.perf_counter() - began)

    async with journal:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(tasks):
                group.create_task(write(number))
        seconds = time.perf_counter() - began
    taken.sort()
    return len(taken) / seconds, 1e3 * taken[len(taken) // 2], 1e3 * taken[int(len(taken) * 0.99)]


def main() -> None:
    with running_postgres() as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            for name in ("fsync", "full_page_writes"):
                connection.execute(f"ALTER SYSTEM SET {name} = on".encode())
            connection.execute("SELECT pg_reload_conf()")
        for tasks, rounds in SIZES:
            for name in ("sqlite", "postgres"):
                folder = Path(tempfile.mkdtemp(dir="."))
                runs = []
                for run in range(RUNS):
                    journal: Journal = (
                        SqliteJournal(folder / f"{run}.sqlite3")
                        if name == "sqlite"
                        else PostgresJournal(server.dsn, schema=f"commits_{tasks}_{run}")
                    )
                    runs.append(asyncio.run(measure(journal, tasks, rounds)))
                shutil.rmtree(folder)
                rate, p50, p99 = max(runs)
                print(
                    f"{tasks:5} {name:9} {rate:8.0f} commits/s  p50 {p50:7.2f} ms  p99 {p99:7.2f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
