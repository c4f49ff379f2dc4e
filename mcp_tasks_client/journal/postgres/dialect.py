"""SQL as PostgreSQL has it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields as fields_of
from typing import Any, Final

from ..base import Lease
from ..statements import Dialect

__all__ = ["POSTGRES", "check_schema", "rows_json"]

_COLUMN_TYPES: Final = {
    **dict.fromkeys(("fence", "pid", "number"), "bigint"),
    **dict.fromkeys(("pending", "heeded", "slot"), "smallint"),
    **dict.fromkeys(("scope", "key", "tool_key"), "uuid"),
    **dict.fromkeys(
        ("created_at", "updated_at", "delivered_at", "due_at", "expires_at", "at", "keep_until"),
        "double precision",
    ),
    **dict.fromkeys(("started", "renewed_at", "took_s"), "double precision"),
}
"""The types of columns in given rows that are not text."""

_SCHEMA: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")


def _given(columns: Sequence[str], rows: int) -> str:
    typed = ", ".join(f"{name} {_COLUMN_TYPES.get(name, 'text')}" for name in columns)
    return f"json_to_recordset(%(rows)s::json) AS given ({typed})"


POSTGRES: Final = Dialect(
    folder="postgres",
    value="%({name})s",
    member="= ANY (%({name})s::text[])",
    given=_given,
    parts={
        "skip_locked": "FOR UPDATE SKIP LOCKED",
        # A renewal that has waited for the database must not replace a later one of the other connection.
        "unless_older": "WHERE leases.expires_at <= excluded.expires_at",
        "in_turn": "FOR NO KEY UPDATE OF stored",
        "unless_noting": """AND pg_try_advisory_xact_lock(
          hashtextextended('{schema}.durations:' || given.tool_key, 0))""",
        "changed": "RETURNING stored.record_id",
        # Sent to the listeners when the transaction is committed. A payload has 8,000 bytes at most.
        "notify": "RETURNING record_id, pg_notify('{schema}', left(record_id, 1000))",
        "now": "extract(epoch FROM clock_timestamp())::double precision",
        # While the database was down no process could renew a lease. A lease that expired less than a day
        # before the database was started lasts its whole duration again from that start.
        "their_lease": ", ".join(f"lease.{field.name}" for field in fields_of(Lease)[:-1])
        + """, CASE WHEN lease.expires_at > started.at - 86400
          THEN greatest(lease.expires_at, started.at + lease.expires_at - lease.renewed_at)
          ELSE lease.expires_at END""",
        "database_start": """CROSS JOIN
          (SELECT extract(epoch FROM pg_postmaster_start_time())::double precision AS at) AS started""",
    },
)


def check_schema(schema: str) -> None:
    """Accept the name of a schema.

    Raises:
        ValueError: It would have to be quoted, is too long, or is PostgreSQL's own.
    """
    if not _SCHEMA.fullmatch(schema):
        raise ValueError(
            "schema must be a name of a-z, 0-9 and _, at most 63 of them, which begins with a letter or _, "
            f"and not with pg_, not {schema!r}"
        )


def rows_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """Given rows as one JSON text, so that the statement is the same for any number of rows."""
    try:
        return json.dumps(rows, allow_nan=False, separators=(",", ":"))
    except ValueError:  # JSON has no infinity, but the database reads the word
        return json.dumps([{name: _finite(value) for name, value in row.items()} for row in rows])


def _finite(value: object) -> object:
    return str(value) if isinstance(value, float) and value - value != 0 else value
