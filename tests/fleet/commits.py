"""Commits a second of PostgreSQL beside SQLite, each of them synced.

Of three runs each the best one counts. A commit is the write of a record that is known.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mcp_tasks_client import Journal, PostgresJournal, SqliteJournal
from tests.benchmarks.commits import _record
from tests.postgres import PostgresServer

__all__ = ["percentile", "rows"]

SIZES: Final = ((1, 200), (10, 100), (100, 30), (1000, 10))
"""How many tasks write at once, and how often each does."""

RUNS: Final = 3


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of them lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


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
    return len(taken) / seconds, 1e3 * percentile(taken, 0.5), 1e3 * percentile(taken, 0.99)


def rows(server: PostgresServer, size: float) -> list[list[str]]:
    """The table: for so many tasks at once, what each journal does."""
    head = ["tasks that write at once", "commits a second", "p50", "p99", "of SQLite", "p50", "p99"]
    table = [head]
    with tempfile.TemporaryDirectory(dir=".") as folder:  # /tmp may be in memory
        for tasks, rounds in SIZES:
            table.append([f"{tasks:,}"])
            for name in ("postgres", "sqlite"):
                runs = []
                for run in range(RUNS):
                    journal: Journal = (
                        SqliteJournal(Path(folder, f"{tasks}-{run}.sqlite3"))
                        if name == "sqlite"
                        else PostgresJournal(server.dsn, schema=f"commits_{tasks}_{run}")
                    )
                    runs.append(asyncio.run(measure(journal, tasks, max(2, round(rounds * size)))))
                rate, p50, p99 = max(runs)
                table[-1] += [f"{rate:,.0f}", f"{p50:.1f} ms", f"{p99:.1f} ms"]
    return table
