"""The journal in PostgreSQL for histories: what it does takes no virtual time.

The event loop waits for the database, so that nothing else happens meanwhile, and nothing depends on how fast
the database is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import psycopg

from mcp_tasks_client import Instruction, Listener, PostgresJournal
from mcp_tasks_client.journal.medium import Medium
from mcp_tasks_client.journal.thread import JournalThread
from mcp_tasks_client.journal.work import Work

from .history import play

__all__ = ["AtOnce", "play_in_postgres"]


class _Blocking:
    """A caller that waits for a job and lets no other task run."""

    def __init__(self) -> None:
        self._done = threading.Event()

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        function(*args)

    def wake(self) -> None:
        self._done.set()

    def wait(self) -> None:
        assert self._done.wait(30)


class _Blocked:
    """The thread of a journal, which the event loop waits for."""

    def __init__(self, thread: JournalThread) -> None:
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thread, name)

    async def run(self, work: Work) -> Any:
        waiter = _Blocking()
        job = self._thread.put(work, waiter)  # type: ignore[arg-type]  # it is waited for otherwise
        waiter.wait()
        return self._thread.result_of(job)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """As within one process: nothing is heard of others, at moments that nobody foresees."""
        return JournalThread.listen(self._thread, listener)


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

    def _opened(self) -> Medium:
        medium = super()._opened()
        assert isinstance(medium, JournalThread)
        return _Blocked(medium)  # type: ignore[return-value]  # it passes on all else

    async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
        standing = await super().instruct(record_id, instruction)
        return instruction if standing == instruction else standing


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
