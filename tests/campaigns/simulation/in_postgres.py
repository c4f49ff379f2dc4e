"""The journal in PostgreSQL for histories: what it does takes no virtual time.

The event loop waits for the database, so that nothing else happens meanwhile, and nothing depends on how fast
the database is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any

import psycopg

from mcp_tasks_client.journal.base import Instruction, Listener
from mcp_tasks_client.journal.postgres.journal import PostgresJournal
from mcp_tasks_client.journal.postgres.work import Work
from mcp_tasks_client.journal.row import unescape
from mcp_tasks_client.journal.thread import Job, JournalThread

from .history import play

__all__ = ["AtOnce", "play_in_postgres"]


class _Blocking:
    """Who waits for a job and lets nobody else run."""

    def __init__(self) -> None:
        self._done = threading.Event()

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        function(*args)

    def wake(self) -> None:
        self._done.set()

    async def wait(self) -> None:
        assert self._done.wait(30)


class AtOnce(PostgresJournal):
    """A journal in an empty schema, by the clock of whoever uses it."""

    def __init__(self, dsn: str, schema: str) -> None:
        super().__init__(dsn, schema=schema)
        self._dsn = dsn
        self._schema = schema

    @property
    def clock(self) -> None:  # type: ignore[override]  # time is virtual here
        return None

    async def empty(self) -> None:
        """Forget what an earlier history has left."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for table in ("records", "leases", "instructions"):
                connection.execute(f"DELETE FROM {self._schema}.{table}".encode())

    async def _do(self, work: Work) -> Any:
        writer = self._opened()
        job = Job[Work, Any](work, waiter=_Blocking())  # type: ignore[arg-type]  # it waits otherwise
        writer._jobs.put(job)
        return await job.wait(writer.explain)

    async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
        standing = await super().instruct(record_id, instruction)
        return instruction if standing == instruction else standing

    def listen(self, listener: Listener) -> Callable[[], None]:
        """As within one process: nothing is heard of others, at moments that nobody foresees."""

        def hear(keys: Collection[str]) -> None:
            listener([unescape(key) for key in keys])

        return JournalThread.listen(self._opened(), hear)


async def play_in_postgres(dsn: str, schema: str, seeds: Iterable[int]) -> list[tuple[int, list[str]]]:
    """Play histories; the seeds of those that broke something, and what."""
    broken: list[tuple[int, list[str]]] = []
    async with PostgresJournal(dsn, schema=schema):  # the connection stays from one history to the next
        for seed in seeds:
            journal = AtOnce(dsn, schema)
            await journal.empty()
            history = await play(seed, journal)
            await journal.aclose()  # what the history has opened
            if history.broken:
                broken.append((seed, history.broken))
    return broken
