"""Works carried out over a connection to SQLite, a run of equal works by one execution of each statement."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any, Final

from ..statements import Statement, Statements
from ..work import Found, Job, also_of, group_jobs
from .dialect import SQLITE

__all__ = ["STATEMENTS", "execute", "runs_of"]

STATEMENTS: Final = Statements(SQLITE, schema="")

_RUNS: Final = (256, 64, 16, 4, 1)
"""How many works one execution does. Few numbers, since each makes a statement that is compiled once and
kept; to compile it costs far more than to run it."""


def runs_of(jobs: list[Job[Any]]) -> Iterator[list[Job[Any]]]:
    """The jobs in lists, each of which one execution does, in the order in which they are executed."""
    for group in group_jobs(jobs):
        while group:
            size = next(size for size in _RUNS if size <= len(group))
            yield group[:size]
            group = group[size:]


def execute(connection: sqlite3.Connection, run: list[Job[Any]]) -> Found | None:
    """Execute the statements of equal works; ``None`` if they have to be executed one by one.

    Raises:
        sqlite3.Error: A statement failed.
    """
    work, found = run[0].work, []
    if also := also_of(run):
        statement = STATEMENTS(also, rows=len(run))
        rows = [job.work.row or {} for job in run]
        connection.execute(statement.text, [row.get(name) for row in rows for name in statement.columns])
    for name in work.statements:
        statement = STATEMENTS(name, in_scope="scope" in work.values, rows=len(run))
        cursor = connection.execute(statement.text, _arguments(statement, run))
        if cursor.description is not None:
            found.append(cursor.fetchall())
        elif not statement.is_counted:
            found.append([(cursor.rowcount,)])
        elif len(run) > 1 and cursor.rowcount != len(run):
            return None  # SQLite does not say which
        else:
            found.append([(job.work.key,) for job in run if cursor.rowcount])
    return found


def _arguments(statement: Statement, run: list[Job[Any]]) -> Any:
    if statement.columns:
        return [job.work.row[name] for job in run if job.work.row is not None for name in statement.columns]
    values = run[0].work.values
    return {name: json.dumps(value) if isinstance(value, list) else value for name, value in values.items()}
