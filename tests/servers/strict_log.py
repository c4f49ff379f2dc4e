"""What the strict server writes down. Imports nothing of it, so that tests can read a log cheaply."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

JSONObject: TypeAlias = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Entry:
    """One message, as it reached the server. ``at`` and ``answered_at`` are ``time.monotonic()`` seconds.

    Linux and macOS share that clock between processes, so the times compare with a test's own.
    """

    method: str | None
    """``None`` if it was no JSON-RPC message."""

    params: JSONObject | None
    headers: dict[str, str] = field(default_factory=dict)
    """``mcp-*``, ``accept`` and ``content-type`` over HTTP, by lower-case name; empty elsewhere."""

    at: float
    answered_at: float | None = None
    http_status: int | None = None
    error: int | None = None
    """Code of the JSON-RPC error that it was answered with."""

    early: bool = False
    """A poll before ``pollIntervalMs`` were over since the last reply that named it."""

    ignored_keys: list[str] = field(default_factory=list)
    """Of a ``tasks/update``: keys that were not (or no longer) asked for."""

    task_id: str | None = None
    """The task that it is about, or that it created."""

    @property
    def refused(self) -> bool:
        """Whether it was answered with an error."""
        return self.error is not None or (self.http_status or 200) >= 400


def entry_of(method: object, params: object, headers: Mapping[str, str], at: float | None = None) -> Entry:
    params = copy.deepcopy(dict(params)) if isinstance(params, Mapping) else None
    task_id = (params or {}).get("taskId")
    return Entry(
        method=method if isinstance(method, str) else None,
        params=params,
        headers={
            name: value
            for name, value in headers.items()
            if name.startswith("mcp-") or name in ("accept", "content-type")
        },
        at=time.monotonic() if at is None else at,
        task_id=task_id if isinstance(task_id, str) else None,
    )
