"""A journal file as a medium that is read and written whole."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from ..row import Row
from ..sqlite.file import connect, explain
from .medium import Instructed, Medium

__all__ = ["SqliteMedium"]

_BUSY_TIMEOUT_S: Final = 5.0

_COLUMNS: Final = ", ".join(Row._fields)


class SqliteMedium(Medium):
    """A journal file.

    Args:
        path: Of the file; it is made where there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._connection: sqlite3.Connection

    def __str__(self) -> str:
        return str(self._path)

    def is_there(self) -> bool:
        """Whether there is a file."""
        return self._path.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep everybody else from writing."""
        try:
            with closing(connect(self._path, _BUSY_TIMEOUT_S)) as self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise explain(error, self._path) from error

    def in_use(self) -> Sequence[tuple[str, int, float]]:
        """The processes that drive calls there, or adopt."""
        now = time.time()
        query = "SELECT host, pid, expires_at - ? FROM leases WHERE expires_at >= ?"
        return self._connection.execute(query, (now, now)).fetchall()

    def count(self) -> int:
        """How many records it has."""
        return int(self._connection.execute("SELECT count(*) FROM records").fetchone()[0])

    def records(self) -> Iterator[Row]:
        """The rows of all records."""
        query = f"SELECT {_COLUMNS} FROM records ORDER BY sequence"
        return map(Row._make, self._connection.execute(query))

    def instructions(self) -> Iterator[Instructed]:
        """All instructions."""
        query = "SELECT record_id, name, body, at, heeded FROM instructions ORDER BY sequence"
        return iter(self._connection.execute(query))

    def write(self, records: Sequence[Row], instructions: Sequence[Instructed]) -> None:
        """Add some."""
        marks = ", ".join("?" * len(Row._fields))
        self._connection.executemany(f"INSERT INTO records ({_COLUMNS}) VALUES ({marks})", records)
        self._connection.executemany(
            "INSERT INTO instructions (record_id, name, body, at, heeded) VALUES (?, ?, ?, ?, ?)",
            instructions,
        )
