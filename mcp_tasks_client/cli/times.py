"""Times as people read them, and as they type them."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from mcp_tasks_client.estimate import format_span

__all__ = ["TimeoutOption", "ago", "ahead", "exact", "iso", "read_span"]

_LAST: Final = datetime(9999, 12, 30, tzinfo=UTC).timestamp()
"""The last time that ``datetime`` can tell in every zone. A server may keep a task for longer."""

_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


def read_span(text: str) -> float:
    """A length of time in seconds, given as ``7d``, ``36h``, ``30m``, ``90s``, or several such as ``1d12h``.

    Raises:
        ValueError: It is no length of time.
    """
    if not re.fullmatch(r"(\d+[dhms])+", text):
        raise ValueError(f"{text!r} is no length of time. Write 7d, 36h, 30m, 90s or 1d12h.")
    return float(sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([dhms])", text)))


def _check_timeout(seconds: float | None) -> float | None:
    if seconds is not None and math.isnan(seconds):
        raise typer.BadParameter("it is not a number of seconds")
    return seconds


TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", help="Wait at most so long.", callback=_check_timeout),
]


def ago(at: float) -> str:
    """The span since a time."""
    return f"{format_span(time.time() - _bounded(at))} ago"


def ahead(at: float) -> str:
    """The span until a time, or since a time that has passed."""
    left = _bounded(at) - time.time()
    return f"in {format_span(left)}" if left > 0 else ago(at)


def exact(at: float) -> str:
    """A time by the local clock, with its zone."""
    if at > _LAST:
        return "at least the year 9999"
    return datetime.fromtimestamp(_bounded(at)).astimezone().isoformat(sep=" ", timespec="seconds")


def iso(at: float | None) -> str | None:
    """A time for programs: UTC, in ISO 8601; ``None`` if there is none, or it is after the year 9999."""
    if at is None or at != _bounded(at):
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _bounded(at: float) -> float:
    """A time as ``datetime`` can tell it."""
    return max(0.0, min(_LAST, at))
