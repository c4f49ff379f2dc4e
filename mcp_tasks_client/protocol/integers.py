"""Integers of JSON-RPC, read alike wherever one comes: error codes, IDs, progress tokens. Pure."""

from __future__ import annotations

__all__ = ["read_integer"]


def read_integer(value: object) -> int | None:
    """The integer that a JSON value is; ``None`` if it is none.

    ``1.0`` is 1, since gateways that encode a message anew may write it so. ``true`` is no number, though
    Python has it for one.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None
