"""The journal by itself: how long a commit takes when a thousand tasks want one, and how many there were."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from mcp_tasks_client import Journal, TaskRecord

__all__ = ["JOURNALS", "OPERATIONS", "WRITES", "counting_journal"]

ROUNDS: Final = 3
"""Commits that each task makes, one after the other."""

WRITES: Final = ("claim", "save", "deliver", "remove")
"""Methods of a journal that write a record."""

OPERATIONS: Final = (
    *WRITES,
    *("by_id", "by_task_id", "records", "prune"),
    *("renew", "owners", "take", "take_pending", "release"),
)
"""Methods of a journal that are counted: all that reach its medium, the lease's renewal among them."""

Commit: TypeAlias = "Callable[[TaskRecord], Awaitable[None]]"


def counting_journal(path: Path) -> Journal:
    """A SQLite journal whose ``operations`` counts, by name, what it was asked to do."""
    from mcp_tasks_client import SqliteJournal

    operations: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        method = getattr(SqliteJournal, name)

        def count(self: Journal, *args: Any, **kwargs: Any) -> Any:
            operations[name] += 1
            return method(self, *args, **kwargs)

        return count

    members = {name: counted(name) for name in OPERATIONS}
    journal: Journal = type("CountingJournal", (SqliteJournal,), {**members, "operations": operations})(path)
    return journal


async def in_groups(folder: Path, tasks: int) -> list[float]:
    """Seconds of each commit, through the journal."""
    from mcp_tasks_client import SqliteJournal

    async with SqliteJournal(folder / "journal.sqlite3") as journal:
        return await _all(journal.save, tasks)


async def one_by_one(folder: Path, tasks: int) -> list[float]:
    """Seconds of each commit, as a transaction of its own in one thread, equally durable."""
    from mcp_tasks_client.machine.record import dump_state

    with ThreadPoolExecutor(1) as thread:
        loop = asyncio.get_running_loop()
        connection = await loop.run_in_executor(thread, _connect, folder / "rows.sqlite3")

        def write(record: TaskRecord) -> None:
            row = record.record_id, dump_state(record.state)
            with connection:
                connection.execute("INSERT OR REPLACE INTO records VALUES (?, ?)", row)

        async def commit(record: TaskRecord) -> None:
            await loop.run_in_executor(thread, write, record)

        try:
            return await _all(commit, tasks)
        finally:
            await loop.run_in_executor(thread, connection.close)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    with closing(connection.cursor()) as cursor:
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("CREATE TABLE records (record_id TEXT PRIMARY KEY, state TEXT)")
    return connection


async def _all(commit: Commit, tasks: int) -> list[float]:
    taken: list[float] = []

    async def write(number: int) -> None:
        record = _record(number)
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            await commit(record)
            taken.append(time.perf_counter() - begun)

    async with asyncio.TaskGroup() as group:
        for number in range(tasks):
            group.create_task(write(number))
    return taken


def _record(number: int) -> TaskRecord:
    from mcp_tasks_client import Scope, Task, TaskRecord
    from mcp_tasks_client.machine.states import Observing

    now = time.time()
    task = Task.model_validate(
        {
            "taskId": f"task-{number:08x}",
            "status": "working",
            "createdAt": "2026-01-01T00:00:00Z",
            "lastUpdatedAt": "2026-01-01T00:00:00Z",
            "ttlMs": 900_000,
            "pollIntervalMs": 1000,
        }
    )
    return TaskRecord(
        record_id=f"record-{number}",
        scope=Scope("http://127.0.0.1/mcp"),
        tool="work",
        state=Observing(task=task, received_at=now, due_at=now + 1),
        created_at=now,
        updated_at=now,
    )


JOURNALS: Final = {"ours": in_groups, "thread": one_by_one}
"""Ways to commit, by the name that the command line knows them by."""
