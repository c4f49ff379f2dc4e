"""The statements of ``statements.sql`` by their names, in the dialect of one database."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as fields_of
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

from .base import Lease
from .row import CHANGING, Row

__all__ = ["Dialect", "Statement", "Statements"]

_LEASE: Final = tuple(field.name for field in fields_of(Lease))
_PARTS: Final = {
    "columns": ", ".join(Row._fields),
    "stored_columns": ", ".join(f"stored.{name}" for name in Row._fields),
    "all_changes": ", ".join(
        f"{name} = excluded.{name}"
        for name in (*Row._fields, "scope", "key")
        if name not in ("record_id", "fence")
    ),
    "changes": ", ".join(f"{name} = given.{name}" for name in CHANGING),
    "lease_columns": ", ".join(_LEASE),
    "has_outcome": "stored.pending = 1 AND stored.due_at IS NULL",
}
_GIVEN: Final = {
    "*": (*Row._fields, "scope", "key"),
    "changing": ("record_id", "fence", *CHANGING),
}
_NAME: Final = re.compile(r"^-- name: (\w+)$")
_PART: Final = re.compile(r"\{(:|in |given )?([\w, *]+)\}")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The SQL of one database, where databases differ."""

    folder: str
    """The folder of the database. Its ``statements.sql``, if any, has statements of this database only."""

    value: str
    """A value of a statement, by its ``{name}``."""

    member: str
    """The condition that a column is in the list ``{name}``."""

    given: Callable[[Sequence[str], int], str]
    """The table ``given``, of these columns and this number of rows."""

    parts: Mapping[str, str]
    """Further parts of statements, by their names."""


class Statement(NamedTuple):
    """A statement in the SQL of one database."""

    text: str
    columns: tuple[str, ...]
    """The columns of the given rows; empty if the statement takes values instead."""

    is_counted: bool
    """True if the caller needs to know which of the given rows the statement changed."""


class Statements:
    """The statements for one schema.

    Args:
        dialect: Of the database.
        schema: The schema of the tables, as an identifier of SQL; empty for the connection's own.
        channel: Tells the listeners of other processes.
    """

    def __init__(self, dialect: Dialect, schema: str, *, channel: str = "") -> None:
        self._dialect = dialect
        self._table = f"{schema}." if schema else ""
        self._parts = {**_PARTS, **dialect.parts, "schema": channel}
        self._filled: dict[tuple[str, bool, int], Statement] = {}

    def __call__(self, name: str, *, in_scope: bool = True, rows: int = 1) -> Statement:
        """A statement.

        Args:
            name: Its name in ``statements.sql``.
            in_scope: True for a statement about one scope, false for all scopes.
            rows: How many rows are given.
        """
        key = name, in_scope, rows
        if key not in self._filled:
            text = texts(self._dialect.folder)[name].replace("{schema}.", self._table)
            self._filled[key] = self._fill(text, in_scope, rows)
        return self._filled[key]

    def _fill(self, text: str, in_scope: bool, rows: int) -> Statement:
        columns: tuple[str, ...] = ()

        def fill(found: re.Match[str]) -> str:
            nonlocal columns
            match found[1], found[2]:
                case ":", name:
                    return self._dialect.value.format(name=name)
                case "in ", name:
                    return self._dialect.member.format(name=name)
                case "given ", names:
                    columns = _GIVEN.get(names) or tuple(names.split(", "))
                    return self._dialect.given(columns, rows)
                case _, "in_scope":
                    return f"scope = {self._dialect.value.format(name='scope')}" if in_scope else "true"
                case _, part:
                    return self._parts[part].format(schema=self._parts["schema"])

        return Statement(_PART.sub(fill, text), columns, is_counted="{changed}" in text)


@cache
def texts(folder: str) -> Mapping[str, str]:
    """The text of each statement of a dialect, without its comments."""
    package = resources.files(__package__)
    files = [package / "statements.sql", package / folder / "statements.sql"]
    texts: dict[str, str] = {}
    name = ""
    for file in (file for file in files if file.is_file()):
        for line in file.read_text(encoding="utf-8").splitlines():
            if found := _NAME.match(line):
                name = found[1]
                texts[name] = ""
            elif line and not line.startswith("--"):
                texts[name] += line.removesuffix(";") + "\n"
    return texts
