"""Times as people read them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from mcp_tasks_client.progress import span

__all__ = ["ago", "ahead", "exact", "iso"]


def ago(at: float) -> str:
    """How long a time has passed."""
    return f"{span(time.time() - at)} ago"


def ahead(at: float) -> str:
    """How long it is until a time, or has been since then."""
    left = at - time.time()
    return f"in {span(left)}" if left > 0 else ago(at)


def exact(at: float) -> str:
    """A time as the clock on the wall has it, with its zone."""
    return datetime.fromtimestamp(at).astimezone().isoformat(sep=" ", timespec="seconds")


def iso(at: float | None) -> str | None:
    """A time for programs: UTC, in ISO 8601; ``None`` if there is none."""
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
