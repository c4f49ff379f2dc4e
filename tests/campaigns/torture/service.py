"""A service in a process of its own, to be killed: it delivers the ends of all users to a store that fails.

``python -m tests.campaigns.torture.service URL JOURNAL DATABASE`` goes on until it is killed. The store fails
half of the times, before its commit or after it.
"""

from __future__ import annotations

import random
import sqlite3
import sys
from collections import Counter
from contextlib import AsyncExitStack, closing
from typing import Any, Final

import anyio
from mcp_types import CallToolResult, ElicitResult

from mcp_tasks_client import Environment, PostgresJournal, TaskRecord, TasksClient, TasksClientError

__all__ = ["LEASE_S", "journal_at", "make_client", "make_table", "read"]

LEASE_S: Final = 3.0
MOST_FAULTS: Final = 3
"""Attempts to store one end that may fail in one process."""


def journal_at(journal: str) -> PostgresJournal | str:
    """The journal in a database, or the path of its file."""
    return PostgresJournal(journal) if "dbname=" in journal else journal


def make_client(url: str, journal: str, principal: str) -> TasksClient:
    """A client of one user, on a file or a database."""
    return TasksClient(
        url,
        journal=journal_at(journal),
        principal=principal,
        elicitation=answer,
        environment=Environment(lease_s=LEASE_S),
    )


def make_table(path: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode = wal")
        database.execute("CREATE TABLE ends (record_id PRIMARY KEY, principal, key, status, said)")
        database.execute("CREATE TABLE asked (record_id, failed)")


def read(path: str, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(f"SELECT * FROM {table}").fetchall()


async def answer(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def main(url: str, journal: str, path: str) -> None:
    clients: dict[str, TasksClient] = {}
    attempts = Counter[str]()

    async def client_of(principal: str) -> TasksClient:
        if principal not in clients:
            clients[principal] = await stack.enter_async_context(make_client(url, journal, principal))
        return clients[principal]

    def store(record: TaskRecord, outcome: CallToolResult | TasksClientError) -> None:
        said = outcome.content[0].text if isinstance(outcome, CallToolResult) else str(outcome)  # type: ignore[union-attr]
        row = (record.record_id, record.scope.principal, record.idempotency_key, record.status, said)
        attempts[record.record_id] += 1
        # The pauses grow up to a minute: one that fails seven times in a row is stored after two minutes.
        fault = (
            random.choice(["before", "after", "", ""]) if attempts[record.record_id] <= MOST_FAULTS else ""
        )
        with closing(sqlite3.connect(path, timeout=30)) as database:
            with database:
                database.execute("INSERT INTO asked VALUES (?, ?)", (record.record_id, fault))
            if fault == "before":
                raise OSError("The database of the service is away.")
            with database:
                database.execute("INSERT INTO ends VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
            if fault == "after":
                raise OSError("The reply of the database was lost.")

    async with AsyncExitStack() as stack:
        client = await client_of("")
        print("ready", flush=True)
        await client.deliver(store, limit=4, client_of=client_of)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
