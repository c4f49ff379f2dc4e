"""The journal by itself: how long a commit takes when a thousand tasks want one, and how many there were."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, TypeAlias

from mcp_tasks_client import SqliteJournal, Task, TaskRecord
from mcp_tasks_client.old.journal.base import Scope, dump_state
from mcp_tasks_client.old.states import Observing

__all__ = ["JOURNALS", "CountingJournal"]

ROUNDS: Final = 3
"""Commits that each task makes, one after the other."""

Commit: TypeAlias = Callable[[TaskRecord], Awaitable[None]]


class CountingJournal(SqliteJournal):
    """Counts the records that it is told to write; not the lease, which is the process's and no call's."""

    writes = 0

    async def claim(self, record: TaskRecord) -> TaskRecord:
        self.writes += 1
        return await super().claim(record)

    async def save(self, record: TaskRecord, *, known: bool = False) -> None:
        self.writes += 1
        await super().save(record, known=known)

    async def deliver(self, at: float, fences: Mapping[str, int]) -> None:
        self.writes += len(fences)
        await super().deliver(at, fences)

    async def remove(self, record: TaskRecord) -> None:
        self.writes += 1
        await super().remove(record)


async def in_groups(folder: Path, tasks: int) -> list[float]:
    """Seconds of each commit, through the journal."""
    async with SqliteJournal(folder / "journal.sqlite3") as journal:
        return await _all(journal.save, tasks)


async def one_by_one(folder: Path, tasks: int) -> list[float]:
    """Seconds of each commit, as a transaction of its own in one thread, equally durable."""
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
