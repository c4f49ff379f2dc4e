"""A schema of a PostgreSQL database as a medium that is read and written whole."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from ..postgres.database import Connection, connect, describe, explain, migrate, parse
from ..postgres.queries import Queries
from ..postgres.stored import to_columns
from ..postgres.work import row_json
from ..row import Row
from .medium import Instructed, Medium

__all__ = ["PostgresMedium"]


class PostgresMedium(Medium):
    """A schema of a database.

    Args:
        dsn: Where the database is.
        schema: Its name; it is made where there is none.

    Raises:
        ValueError: libpq cannot read ``dsn``.
    """

    def __init__(self, dsn: str, schema: str) -> None:
        parse(dsn)
        self._dsn = dsn
        self._schema = schema
        self._queries = Queries(schema)
        self._connection: Connection

    def __str__(self) -> str:
        return describe(self._dsn, self._schema)

    def is_there(self) -> bool:
        """Whether the schema holds a journal."""
        try:
            with connect(self._dsn) as connection:
                table = f"{self._schema}.meta"
                found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
        except psycopg.Error as error:
            raise explain(error, str(self)) from error
        return found == (True,)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep everybody else from writing."""
        try:
            # As long as it takes: a copy is one transaction.
            with connect(self._dsn, limit_s=None) as self._connection:
                migrate(self._connection, self._schema)
                with self._connection.transaction():
                    self._connection.execute(self._queries("lock"))
                    yield
        except psycopg.Error as error:
            raise explain(error, str(self)) from error

    def in_use(self) -> Sequence[tuple[str, int, float]]:
        """The processes that drive calls there, or adopt."""
        return self._run("in_use")

    def count(self) -> int:
        """How many records it has."""
        return int(self._run("count")[0][0])

    def records(self) -> Iterator[Row]:
        """The rows of all records."""
        return map(Row._make, self._read("all_records"))

    def instructions(self) -> Iterator[Instructed]:
        """All instructions."""
        return map(tuple, self._read("all_instructions"))

    def write(self, records: Sequence[Row], instructions: Sequence[Instructed]) -> None:
        """Add some."""
        rows = ",".join(row_json(to_columns(row)) for row in records)
        self._run("claim", rows=f"[{rows}]")
        names = "record_id", "name", "body", "at", "heeded"
        rows = ",".join(
            row_json({"n": n, **dict(zip(names, one, strict=True))}) for n, one in enumerate(instructions)
        )
        self._run("instruct_copied", rows=f"[{rows}]")

    def _run(self, name: str, **values: Any) -> list[Any]:
        cursor = self._connection.execute(self._queries(name), values)
        return cursor.fetchall() if cursor.description else []

    def _read(self, name: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query that may have very many."""
        with self._connection.cursor(name=f"copy_{uuid.uuid4().hex}") as cursor:
            yield from cursor.execute(self._queries(name))
