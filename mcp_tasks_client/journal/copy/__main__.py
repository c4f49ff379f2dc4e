"""``python -m mcp_tasks_client.journal.copy FROM TO``: copies a journal, while no process uses it.

Each is the path of a SQLite file or the address of a PostgreSQL database. The journal at ``TO`` has to be
empty. The one at ``FROM`` stays as it is: use it no longer, since both would see to the same tasks. A process
that drives calls or adopts is noticed; one that merely has the journal open is not.

Rows are copied as they are, damaged ones included. If TO cannot hold a damaged row, nothing is copied.
Encoded records stay encoded, unless ``--decrypt`` or ``--encrypt`` names a file of keys.
"""

from __future__ import annotations

import argparse
import re
import sqlite3
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...errors import JournalError, JournalLockedError
from ..codec import Codec, decoded, encoded
from ..encryption import FernetCodec
from ..postgres.dialect import POSTGRES, check_schema, rows_json
from ..row import Row, columns_of_row
from ..sqlite.execution import STATEMENTS
from ..sqlite.file import connect, explain
from ..statements import Statements

if TYPE_CHECKING:
    from ..postgres.database import Connection

__all__ = ["copy", "main"]

_AT_ONCE: Final = 500
"""Rows that are written by one statement."""

_BUSY_TIMEOUT_S: Final = 5.0
_INSTRUCTION: Final = ("record_id", "name", "body", "at", "heeded")
_DURATION: Final = ("tool_key", "slot", "number", "endpoint", "principal", "tool", "took_s")


class _File:
    """A SQLite file, which is made where there is none. Statements run within :meth:`locked`."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._connection: sqlite3.Connection

    def __str__(self) -> str:
        return str(self._path)

    def is_there(self) -> bool:
        """True if there is a journal, empty or not. None is made."""
        return self._path.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process from it, and keep the writes if the block does not fail."""
        try:
            with closing(connect(self._path, _BUSY_TIMEOUT_S)) as self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise explain(error, self._path) from error

    def read(self, statement: str) -> Iterator[Sequence[Any]]:
        return self._connection.execute(STATEMENTS(statement).text)

    def write(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        filled = STATEMENTS(statement, rows=len(rows))
        self._connection.execute(filled.text, [row[name] for row in rows for name in filled.columns])


class _Database:
    """A schema of a PostgreSQL database, which is made where there is none. Like :class:`_File`.

    Raises:
        ValueError: libpq cannot read ``dsn``.
        ImportError: psycopg is not installed.
    """

    def __init__(self, dsn: str, schema: str) -> None:
        from ..postgres import database  # imported on use: a copy from file to file needs no psycopg

        database.parse(dsn)
        self._database = database
        self._dsn = dsn
        self._schema = schema
        self._statements = Statements(POSTGRES, f'"{schema}"', channel=schema)
        self._connection: Connection

    def __str__(self) -> str:
        return self._database.describe(self._dsn, self._schema)

    def is_there(self) -> bool:
        with self._explained(), self._database.connect(self._dsn) as connection:
            table = f'"{self._schema}".meta'
            found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
        return found == (True,)

    @contextmanager
    def locked(self) -> Iterator[None]:
        # As long as it takes: a copy is one transaction.
        with self._explained(), self._database.connect(self._dsn, limit_s=None) as self._connection:
            self._database.make_tables(self._connection, self._schema)
            with self._connection.transaction():
                self._connection.execute(self._statements("lock_all").text.encode())
                yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            raise self._database.explain(error, str(self)) from error

    def read(self, statement: str) -> Iterator[Sequence[Any]]:
        with self._connection.cursor(name=f"copy_{uuid.uuid4().hex}") as cursor:
            yield from cursor.execute(self._statements(statement).text.encode())

    def write(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        filled = self._statements(statement)
        given = [{name: row[name] for name in filled.columns} for row in rows]
        self._connection.execute(filled.text.encode(), {"rows": rows_json(given)})


def copy(
    source: _File | _Database,
    target: _File | _Database,
    *,
    decoder: Codec | None = None,
    encoder: Codec | None = None,
) -> tuple[int, int]:
    """Copy a journal.

    Args:
        source: The journal to read.
        target: The empty journal to write.
        decoder: Decodes the records of the source.
        encoder: Encodes those of the target. Without both codecs, records are copied as they are.

    Returns:
        How many records and instructions.

    Raises:
        JournalLockedError: A process drives calls of one of them, or adopts.
        JournalCodecError: A record is not encoded by ``decoder``. The target stays as it was.
        JournalError: There is no source, the target is not empty, or one of them could not be read or
            written. The target stays as it was.
    """
    if str(source) == str(target):
        raise JournalError(f"the journal {source} cannot be copied to itself; give another TO")
    if not source.is_there():
        raise JournalError(f"there is no journal {source}; see to the address, and to --schema of a database")
    with source.locked(), target.locked():
        for journal in (source, target):
            for host, pid, left_s in journal.read("in_use"):
                raise JournalLockedError(
                    f"the journal {journal} is in use by process {pid} on {host.partition(':')[0]}; stop it, "
                    f"or wait {left_s:.0f} seconds if it has died"
                )
        ((count,),) = target.read("count")
        if count:
            raise JournalError(f"the journal {target} has {count} records already; copy to an empty one")
        try:
            return _copy_all(source, target, decoder, encoder)
        except (TypeError, ValueError, AttributeError) as error:
            raise JournalError(
                f"the journal {source} has a damaged row that {target} cannot hold ({type(error).__name__}), "
                "so nothing was copied; remove the row, or restore the journal from a backup"
            ) from None  # the words of that error may quote the row


def _copy_all(
    source: _File | _Database, target: _File | _Database, decoder: Codec | None, encoder: Codec | None
) -> tuple[int, int]:
    recodes = decoder is not None or encoder is not None
    records = instructions = 0
    for rows in _some(map(Row._make, source.read("all_records"))):
        recoded = (row.recoded(decoder, encoder) if recodes else row for row in rows)
        target.write("copy_records", [columns_of_row(row) for row in recoded])
        records += len(rows)
    for left in _some(dict(zip(_INSTRUCTION, one, strict=True)) for one in source.read("all_instructions")):
        for one in left if recodes else ():
            one["body"] = encoded(decoded(one["body"], decoder, one["record_id"]), encoder)
        target.write("copy_instructions", left)
        instructions += len(left)
    for noted in _some(dict(zip(_DURATION, one, strict=True)) for one in source.read("all_durations")):
        target.write("copy_durations", [{**one, "tool_key": _hex(one["tool_key"])} for one in noted])
    return records, instructions


def _hex(digest: str | uuid.UUID) -> str:
    return digest.hex if isinstance(digest, uuid.UUID) else digest


def _some(rows: Iterable[Any]) -> Iterator[list[Any]]:
    rows = iter(rows)
    while found := list(islice(rows, _AT_ONCE)):
        yield found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 if everything was copied, and 1 if nothing was."""
    parser = argparse.ArgumentParser(
        prog="python -m mcp_tasks_client.journal.copy",
        description="Copy a journal from a SQLite file to PostgreSQL or back. Stop all that use it first.",
    )
    where = "path of a SQLite file, or postgresql://user@host/database"
    parser.add_argument("source", metavar="FROM", help=where)
    parser.add_argument("target", metavar="TO", help=f"{where}; it has to be empty")
    parser.add_argument(
        "--schema", default="mcp_tasks_client", type=_schema, help="of the journal in PostgreSQL"
    )
    keys = "a file of Fernet keys, one a line;"
    parser.add_argument("--decrypt", metavar="KEYS", type=_codec, help=f"{keys} FROM is encrypted with these")
    parser.add_argument("--encrypt", metavar="KEYS", type=_codec, help=f"{keys} the first one encrypts TO")
    given = parser.parse_args(arguments)
    try:
        records, instructions = copy(
            *(_medium(where, given.schema) for where in (given.source, given.target)),
            decoder=given.decrypt,
            encoder=given.encrypt,
        )
    except JournalError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(
        f"{records} records and {instructions} instructions were copied. Have every process use the new "
        "journal, and remove the old one: a process that opens it would see to the same tasks.\n"
    )
    return 0


def _schema(name: str) -> str:
    try:
        check_schema(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def _codec(path: str) -> FernetCodec:
    try:
        return FernetCodec(*Path(path).read_text().split())
    except (OSError, ValueError, ImportError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _medium(where: str, schema: str) -> _File | _Database:
    """The medium of an address: a database if it looks like one, or else a file."""
    if re.match(r"postgres(ql)?://|\w+ *=", where):
        try:
            return _Database(where, schema)
        except ImportError as error:
            raise JournalError(f"{error}: a database needs psycopg (pip install 'psycopg[binary]')") from None
        except ValueError as error:
            raise JournalError(f"{error}; a file of such a name is ./{where}") from None
    return _File(Path(where))


if __name__ == "__main__":
    raise SystemExit(main())
