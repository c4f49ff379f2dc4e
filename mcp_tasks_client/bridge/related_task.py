"""The task that a server of 2025-11-25 names in its messages, taken out of those for hosts.

The host knows of no task, and a task's ID is a credential.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["without_task"]

_RELATED_TASK: Final = "io.modelcontextprotocol/related-task"


def without_task(body: dict[str, Any]) -> dict[str, Any]:
    """A result, or the params of a notification, that names no task in its ``_meta``."""
    meta = body.get("_meta")
    if not (isinstance(meta, dict) and _RELATED_TASK in meta):
        return body
    return {**body, "_meta": {name: value for name, value in meta.items() if name != _RELATED_TASK}}
