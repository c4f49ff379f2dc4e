"""The server of a measurement: its settings, and what it has spent until now."""

from __future__ import annotations

import re
import time
from typing import Any, Final

import psutil
import psycopg

from tests.postgres import PostgresServer

__all__ = ["Spent", "ask", "change", "logged_statements", "sync_commits"]

_TOLD_S: Final = 1.5
"""So late a process of the server may tell how many transactions it has committed."""


def ask(server: PostgresServer, statement: str) -> Any:
    """The first column of the first row that a statement gives, if it gives any."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        found = connection.execute(statement.encode())
        row = found.fetchone() if found.description else None
    return None if row is None else row[0]


def change(server: PostgresServer, **settings: str) -> None:
    """Change settings of the server that need no restart."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for name, value in settings.items():
            connection.execute(f"ALTER SYSTEM SET {name} = {value}".encode())
        connection.execute("SELECT pg_reload_conf()")
    time.sleep(0.5)  # until all processes have heard


def sync_commits(server: PostgresServer) -> None:
    """Have each commit synced, which tests do without."""
    change(server, fsync="on", full_page_writes="on")


def logged_statements(server: PostgresServer) -> int:
    """How many statements of journals have been logged, while ``log_statement`` is ``all``."""
    return len(re.findall(r"LOG:  (?:execute|statement)", server.log.read_text(errors="replace")))


class Spent:
    """What server processes have spent, and what was committed and written, since this was made."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._before = self._now()
        self._at = time.monotonic()

    def _now(self) -> tuple[float, float, float]:
        time.sleep(_TOLD_S)
        first = psutil.Process(self._server.pid)
        cpu_s = sum(
            sum(process.cpu_times()[:2]) for process in (first, *first.children(recursive=True))
        ) + sum(first.cpu_times()[2:4])  # and those that have ended
        written = ask(self._server, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        commits = ask(self._server, "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'")
        return cpu_s, float(written), float(commits)

    def until_now(self) -> tuple[float, float, float, float]:
        """Seconds by the clock, seconds of CPU, bytes of WAL, and transactions."""
        cpu_s, written, commits = self._now()
        before = self._before
        return (
            time.monotonic() - self._at,
            cpu_s - before[0],
            written - before[1],
            commits - before[2],
        )
