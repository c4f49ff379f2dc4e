"""SQL as SQLite has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields as fields_of
from typing import Final

from ..base import Lease
from ..statements import Dialect

__all__ = ["SQLITE"]


def _given(columns: Sequence[str], rows: int) -> str:
    # Bound values, and not JSON as for PostgreSQL, which takes SQLite twice the time: 10 and not 5 µs a row.
    named = ", ".join(f"column{number} AS {name}" for number, name in enumerate(columns, 1))
    marks = ", ".join([f"({', '.join('?' * len(columns))})"] * rows)
    return f"(SELECT {named} FROM (VALUES {marks})) AS given"


SQLITE: Final = Dialect(
    folder="sqlite",
    value=":{name}",
    member="IN (SELECT value FROM json_each(:{name}))",
    given=_given,
    parts={
        "their_lease": ", ".join(f"lease.{field.name}" for field in fields_of(Lease)),
        "now": "((julianday('now') - 2440587.5) * 86400)",
        # One process writes at a time.
        **dict.fromkeys(
            (
                *("database_start", "skip_locked", "in_turn", "notify", "changed", "unless_older"),
                "unless_noting",
            ),
            "",
        ),
    },
)
