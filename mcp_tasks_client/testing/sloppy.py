"""Replies as some servers and gateways send them: not the protocol's, and not to be misunderstood."""

from __future__ import annotations

from typing import Any, Final

from ..protocol import JSONObject

__all__ = ["STRAYS", "as_sloppy_result"]

STRAYS: Final[tuple[Any, ...]] = (
    None,
    [],
    {"jsonrpc": "2.0", "id": "nobody's", "result": {}},
)
"""Messages that stray onto an event stream before the reply."""


def as_sloppy_result(method: str, result: JSONObject) -> JSONObject:
    """A result with its task under ``task``, or as a list that ends with an empty cursor."""
    if method == "tools/call" and result.get("resultType") == "task":
        task = {name: value for name, value in result.items() if name != "resultType"}
        return {"resultType": "task", "task": task}
    return {**result, "nextCursor": ""} if method == "tools/list" else result
