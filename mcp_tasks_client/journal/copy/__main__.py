"""``python -m mcp_tasks_client.journal.copy FROM TO``: copies a journal, while nobody uses it.

Each is the path of a SQLite file or the address of a PostgreSQL database. The journal at ``TO`` has to be
empty. The one at ``FROM`` stays as it is: use it no longer, since both would see to the same tasks. A process
that drives calls or adopts is noticed; one that merely has the journal open is not.

Encoded records are copied as they are, unless ``--decrypt`` or ``--encrypt`` names a file of keys.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ...errors import JournalError
from ..encryption import FernetCodec
from ..postgres.queries import check_schema
from .file import SqliteMedium
from .medium import Medium, copy

__all__ = ["main"]


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
        "journal, and remove the old one: whoever opens it would see to the same tasks.\n"
    )
    return 0


def _schema(name: str) -> str:
    """The name of a schema."""
    try:
        check_schema(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def _codec(path: str) -> FernetCodec:
    """The codec of a file of keys."""
    try:
        return FernetCodec(*Path(path).read_text().split())
    except (OSError, ValueError, ImportError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _medium(where: str, schema: str) -> Medium:
    """The medium of an address: a database if it looks like one, or else a file."""
    if re.match(r"postgres(ql)?://|\w+ *=", where):
        try:
            from .database import PostgresMedium  # imported on use: not everybody has psycopg
        except ImportError as error:
            raise JournalError(f"{error}: a database needs psycopg (pip install 'psycopg[binary]')") from None

        try:
            return PostgresMedium(where, schema)
        except ValueError as error:
            raise JournalError(f"{error}; a file of such a name is ./{where}") from None
    return SqliteMedium(Path(where))


if __name__ == "__main__":
    raise SystemExit(main())
