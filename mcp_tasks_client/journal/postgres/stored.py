"""A row as the tables have it: with what stands in an index for texts that may be too long for one."""

from __future__ import annotations

import hashlib
import uuid
from itertools import count
from typing import Any

from ...machine.record import Scope
from ..row import Row, escape

__all__ = ["key_digest", "scope_digest", "to_columns"]

_arrivals = count()
"""The order in which new records are given, for those that one statement stores."""


def to_columns(row: Row) -> dict[str, Any]:
    """The columns of a row, and ``sequence``, ``scope`` and ``key``, which only this table has."""
    where = row.endpoint, row.principal
    return {
        **row._asdict(),
        "sequence": next(_arrivals),  # the table numbers by itself, in this order
        "scope": _digest(*where),
        "key": None if row.idempotency_key is None else _digest(*where, row.idempotency_key),
    }


def scope_digest(scope: Scope) -> str:
    """The digest of endpoint and principal, as in the column ``scope``."""
    return _digest(escape(scope.endpoint), escape(scope.principal))


def key_digest(scope: Scope, idempotency_key: str) -> str:
    """The digest of endpoint, principal and idempotency key, as in the column ``key``."""
    return _digest(escape(scope.endpoint), escape(scope.principal), escape(idempotency_key))


def _digest(*texts: str) -> str:
    # A line break is in none of them, since they are escaped.
    return str(uuid.UUID(bytes=hashlib.sha256("\n".join(texts).encode()).digest()[:16]))
