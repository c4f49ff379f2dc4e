"""A journal's schema in PostgreSQL, examined by reading alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from ..examination import Examination, JournalUser
from .database import Connection, check_tables, explain, find_missing_right, version_of

__all__ = ["examine_schema"]

_SIZE = """SELECT sum(pg_total_relation_size(pg_class.oid))::bigint
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = %s AND relkind IN ('r', 'p')"""

_USERS = """SELECT application_name, host(client_addr), pid FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND application_name = current_setting('application_name') ORDER BY backend_start"""
"""Sessions say which program has opened them, and not which schema they use: those of other journals in the
same database are among them."""


def examine_schema(reach: Callable[[], Connection], name: str, schema: str) -> Examination:
    """Examine a schema.

    Args:
        reach: Makes a connection.
        name: Of the journal, without anything secret.
        schema: Of its tables.
    """
    found: dict[str, Any] = {
        "database": "PostgreSQL",
        "is_there": False,
        "version": None,
        "size": None,
        "users": (),
    }
    faults: list[str] = []
    is_usable = False
    try:
        with closing(reach()) as connection:
            _examine(connection, schema, found)
            check_tables(connection, schema, name)
            missing = find_missing_right(connection, schema, name)
        if missing is not None:
            faults.append(str(missing))
        is_usable = True
    except Exception as error:
        faults.append(str(explain(error, name)))
    return Examination(name=name, is_usable=is_usable, file_system=None, faults=tuple(faults), **found)


def _examine(connection: Connection, schema: str, found: dict[str, Any]) -> None:
    """Fill in the facts that can be found out before something fails.

    Raises:
        JournalError: The schema is another program's, or of another version.
        psycopg.Error: The database cannot be read.
    """
    found["database"] = f"PostgreSQL {connection.info.parameter_status('server_version')}"
    found["users"] = tuple(
        JournalUser(program=program, host=host, pid=pid)
        for program, host, pid in connection.execute(_USERS).fetchall()
    )
    version = version_of(connection, schema)
    found["is_there"] = version != 0
    found["version"] = version or None
    found["size"] = connection.execute(_SIZE, (schema,)).fetchall()[0][0]
