"""Times as people read them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from mcp_tasks_client.estimate import format_span

__all__ = ["ago", "ahead", "exact", "iso", "read_span"]

_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


def read_span(text: str) -> float:
    """A length of time in seconds, given as ``7d``, ``36h``, ``30m``, ``90s``, or several such as ``1d12h``.

    Raises:
        ValueError: It is none.
    """
    if not re.fullmatch(r"(\d+[dhms])+", text):
        raise ValueError(f"{text!r} is no length of time. Write 7d, 36h, 30m, 90s or 1d12h.")
    return float(sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([dhms])", text)))


def ago(at: float) -> str:
    """How long a time has passed."""
    return f"{format_span(time.time() - at)} ago"


def ahead(at: float) -> str:
    """How long it is until a time, or has been since then."""
    left = at - time.time()
    return f"in {format_span(left)}" if left > 0 else ago(at)


def exact(at: float) -> str:
    """A time as the clock on the wall has it, with its zone."""
    return datetime.fromtimestamp(at).astimezone().isoformat(sep=" ", timespec="seconds")


def iso(at: float | None) -> str | None:
    """A time for programs: UTC, in ISO 8601; ``None`` if there is none."""
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
