"""The statements of ``queries.sql`` by their names, and the scripts of ``schema/``, for one schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields as fields_of
from functools import cache
from importlib import resources
from typing import Final

from ..base import Lease
from ..row import Row

__all__ = ["Queries", "check_schema", "scripts", "texts"]

_NAME: Final = re.compile(r"^-- name: (\w+)$")
_SCHEMA: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_SCRIPTS: Final = ("0001.sql",)

_LEASE: Final = tuple(field.name for field in fields_of(Lease))
_PARTS: Final = {
    "columns": ", ".join(Row._fields),
    "stored_columns": ", ".join(f"stored.{name}" for name in Row._fields),
    "lease_columns": ", ".join(_LEASE),
    # While the database was down nobody could renew a lease. A lease that expired less than a day before the
    # database was started lasts its whole duration again from that start.
    "their_lease": ", ".join(f"lease.{name}" for name in _LEASE[:-1])
    + """, CASE WHEN lease.expires_at > started.at - 86400
        THEN greatest(lease.expires_at, started.at + lease.expires_at - lease.renewed_at)
        ELSE lease.expires_at END""",
    "started": """(SELECT extract(epoch FROM pg_postmaster_start_time())::double precision AS at)
        AS started""",
}


def check_schema(schema: str) -> None:
    """Accept the name of a schema.

    Raises:
        ValueError: It would have to be quoted, is too long, or is PostgreSQL's own.
    """
    if not _SCHEMA.fullmatch(schema):
        raise ValueError(
            f"schema must be a name of a-z, 0-9 and _, at most 63 of them, which does not begin with pg_, "
            f"not {schema!r}"
        )


@cache
def scripts(schema: str) -> tuple[str, ...]:
    """The SQL that makes and migrates a journal: number n, from 0, takes version n to n + 1.

    A released script is never edited; a change is another script at the end.
    """
    folder = resources.files(__package__) / "schema"
    texts = (folder.joinpath(name).read_text(encoding="utf-8") for name in _SCRIPTS)
    return tuple(text.replace("{schema}", schema) for text in texts)


class Queries:
    """The statements for one schema, as bytes, which is what psycopg takes for SQL that was not typed in.

    Args:
        schema: Its name.
    """

    def __init__(self, schema: str) -> None:
        self._parts = {"schema": schema, "channel": schema, **_PARTS}
        self._filled: dict[tuple[str, str], bytes] = {}

    def __call__(self, name: str, *, in_scope: bool = True) -> bytes:
        """A statement.

        Args:
            name: Its name in ``queries.sql``.
            in_scope: Whether it is about one scope, where it may be about all.
        """
        parts = {**self._parts, "in_scope": "scope = %(scope)s" if in_scope else "true"}
        key = name, parts["in_scope"]
        if key not in self._filled:
            self._filled[key] = re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], texts()[name]).encode()
        return self._filled[key]


@cache
def texts() -> Mapping[str, str]:
    """The text of each statement, without its comments."""
    texts: dict[str, str] = {}
    name = ""
    for line in (resources.files(__package__) / "queries.sql").read_text(encoding="utf-8").splitlines():
        if found := _NAME.match(line):
            name = found[1]
            texts[name] = ""
        elif line and not line.startswith("--"):
            texts[name] += line + "\n"
    return texts
