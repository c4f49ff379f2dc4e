"""MCP 2026-07-28 Tasks on the wire: shapes, readers and writers. Pure: no clock, no I/O, no randomness.

Reading is lenient and writing is exact. A defect in an optional field never costs the task ID.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

__all__ = ["EXTENSION_ID", "OLDER_VERSION", "PROTOCOL_VERSION", "JSONObject", "MalformedError", "RequestId"]

JSONObject: TypeAlias = dict[str, Any]
"""An object as ``json`` reads it."""

RequestId: TypeAlias = str | int | float

PROTOCOL_VERSION: Final = "2026-07-28"
OLDER_VERSION: Final = "2025-11-25"
"""The version before, which has tasks of another kind."""

EXTENSION_ID: Final = "io.modelcontextprotocol/tasks"


class MalformedError(ValueError):
    """A value that the protocol does not allow. The message says why."""
