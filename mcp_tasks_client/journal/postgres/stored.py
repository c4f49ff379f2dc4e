"""A row as the tables have it: with what stands in an index for texts that may be too long for one."""

from __future__ import annotations

import hashlib
import uuid
from itertools import count
from typing import Any

from ...machine.record import Scope
from ..row import Row, escape

__all__ = ["key_digest", "scope_digest", "whole"]

_arrivals = count()
"""The order in which new records are given, for those that one statement stores."""


def whole(row: Row) -> dict[str, Any]:
    """A row with all that the table has."""
    where = row.endpoint, row.principal
    return {
        **row._asdict(),
        "sequence": next(_arrivals),  # the table numbers by itself, in this order
        "scope": _digest(*where),
        "key": None if row.idempotency_key is None else _digest(*where, row.idempotency_key),
    }


def scope_digest(scope: Scope) -> str:
    """What stands for endpoint and principal."""
    return _digest(escape(scope.endpoint), escape(scope.principal))


def key_digest(scope: Scope, idempotency_key: str) -> str:
    """What stands for both and a key."""
    return _digest(escape(scope.endpoint), escape(scope.principal), escape(idempotency_key))


def _digest(*texts: str) -> str:
    # A line break is in none of them, since they are escaped.
    return str(uuid.UUID(bytes=hashlib.sha256("\n".join(texts).encode()).digest()[:16]))
