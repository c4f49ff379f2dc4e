"""What is measured, and what each row of the table says about it.

The limits are promises. They are not adjusted to what is measured; what is missed is reported as missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, TypeAlias

__all__ = ["MEASUREMENTS", "ROWS", "Found", "Measurement", "Row", "Runs"]

Found: TypeAlias = Mapping[str, Any]
Value: TypeAlias = Callable[[Found], float | None]
Runs: TypeAlias = Mapping[str, list[Found]]
"""What each client's runs found, in order, by the client's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One thing that several clients do, one after the other, and again."""

    name: str
    who: tuple[str, ...]
    count: int
    quick: int
    """The count with ``--quick``; then it is done once."""

    repetitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: a ratio if there is somebody ``against`` whom, else a value."""

    title: str
    measurement: str | None
    """Its name; ``None`` sums over all that were made."""

    value: Value
    unit: str
    who: str = "ours"
    against: str | None = None
    limit: float | None = None
    """At most; ``None`` is for information."""

    def result(self, runs: Runs) -> float | None:
        """The median ratio over pairs of runs, or the median value; ``None`` if it was not measured."""
        own = [self.value(found) for found in runs.get(self.who, [])]
        if self.against is None:
            values = [one for one in own if one is not None]
            return None if not values else sum(values) if self.measurement is None else median(values)
        others = [self.value(found) for found in runs.get(self.against, [])]
        ratios = [one / other for one, other in zip(own, others, strict=False) if one is not None and other]
        return median(ratios) if ratios else None

    def missed(self, result: float | None) -> bool:
        """Whether the result is beyond the limit. One that is no number is."""
        return result is not None and self.limit is not None and not result <= self.limit


def _plain(name: str, factor: float = 1.0) -> Value:
    def value(found: Found) -> float | None:
        one = found.get(name)
        return None if one is None else factor * one

    return value


def _each(name: str, factor: float = 1.0) -> Value:
    """Per call, task or poll."""

    def value(found: Found) -> float | None:
        one = found.get(name)
        return None if one is None else factor * one / found["count"]

    return value


CPU: Final = _each("cpu_s", 1000)
WALL: Final = _plain("wall_s")
PEAK: Final = _each("peak_kb")

MEASUREMENTS: Final = (
    Measurement(name="imports", who=("ours", "dependencies"), count=1, quick=1, repetitions=11),
    Measurement(name="plain", who=("ours", "by-hand", "fastmcp"), count=500, quick=100, repetitions=5),
    Measurement(
        name="calls",
        who=("ours-memory", "ours", "fastmcp", "mcp", "httpx"),
        count=300,
        quick=60,
        repetitions=5,
    ),
    Measurement(name="polls", who=("ours", "fastmcp", "mcp", "httpx"), count=1000, quick=100, repetitions=5),
    Measurement(name="lag", who=("ours", "ours-unjittered", "httpx"), count=400, quick=40, repetitions=3),
    Measurement(name="commits", who=("ours", "thread"), count=1000, quick=200, repetitions=9),
    Measurement(name="burst", who=("ours", "fastmcp"), count=5000, quick=200, repetitions=3),
    Measurement(name="steady", who=("ours", "fastmcp"), count=5000, quick=60, repetitions=3),
)

_CALL: Final = "CPU of a call with one poll"
_POLL: Final = "CPU of a sequential poll"
_BURST: Final = "tasks of 2 s at a 500 ms hint, all at once"
_STEADY: Final = "tasks of 30 s at a 5 s hint, begun within 30 s"
_LAG: Final = "lag beyond the hint's own schedule"

ROWS: Final = (
    Row(
        title=f"{_CALL}, memory journal",
        measurement="calls",
        value=CPU,
        unit="ms",
        who="ours-memory",
        against="fastmcp",
        limit=0.45,
    ),
    Row(
        title=f"{_CALL}, durable journal",
        measurement="calls",
        value=CPU,
        unit="ms",
        against="fastmcp",
        limit=0.70,
    ),
    Row(
        title=f"{_CALL}, memory journal",
        measurement="calls",
        value=CPU,
        unit="ms",
        who="ours-memory",
        against="mcp",
    ),
    Row(
        title=f"{_CALL}, memory journal",
        measurement="calls",
        value=CPU,
        unit="ms",
        who="ours-memory",
        against="httpx",
    ),
    Row(title=_POLL, measurement="polls", value=CPU, unit="ms", against="fastmcp", limit=0.35),
    Row(title=_POLL, measurement="polls", value=CPU, unit="ms", against="mcp"),
    Row(title=_POLL, measurement="polls", value=CPU, unit="ms", against="httpx"),
    Row(
        title="CPU of a call that makes no task",
        measurement="plain",
        value=CPU,
        unit="ms",
        against="by-hand",
        limit=1.25,
    ),
    Row(
        title="CPU of a call that makes no task", measurement="plain", value=CPU, unit="ms", against="fastmcp"
    ),
    Row(
        title="commits of calls that make no task",
        measurement="plain",
        value=_plain("journal_writes"),
        unit="",
        limit=0,
    ),
    Row(title=f"{_BURST}: wall", measurement="burst", value=WALL, unit="s", against="fastmcp", limit=0.40),
    Row(title=f"{_BURST}: CPU", measurement="burst", value=CPU, unit="ms", against="fastmcp"),
    Row(
        title=f"{_BURST}: calls that failed",
        measurement="burst",
        value=_plain("failures"),
        unit="",
        limit=0,
    ),
    Row(
        title=f"{_BURST}: tasks that nobody brought home",
        measurement="burst",
        value=_plain("left"),
        unit="",
        limit=0,
    ),
    Row(title=f"{_BURST}: peak memory of a task", measurement="burst", value=PEAK, unit="KB", limit=7),
    Row(
        title=f"{_BURST}: peak memory of a task",
        measurement="burst",
        value=PEAK,
        unit="KB",
        against="fastmcp",
    ),
    Row(title=f"{_STEADY}: CPU", measurement="steady", value=CPU, unit="ms", against="fastmcp", limit=0.25),
    Row(
        title=f"{_STEADY}: polls",
        measurement="steady",
        value=_each("polls"),
        unit="a task",
        against="fastmcp",
    ),
    Row(title=f"{_LAG}, p50", measurement="lag", value=_plain("lag_p50_ms"), unit="ms", limit=10),
    Row(title=f"{_LAG}, p99", measurement="lag", value=_plain("lag_p99_ms"), unit="ms", limit=25),
    Row(
        title=f"{_LAG}, p50, no jitter",
        measurement="lag",
        value=_plain("lag_p50_ms"),
        unit="ms",
        who="ours-unjittered",
        against="httpx",
    ),
    Row(
        title=f"{_LAG}, p99, no jitter",
        measurement="lag",
        value=_plain("lag_p99_ms"),
        unit="ms",
        who="ours-unjittered",
        against="httpx",
    ),
    Row(
        title="durable commit for concurrent tasks, p50",
        measurement="commits",
        value=_plain("commit_p50_ms"),
        unit="ms",
        against="thread",
        limit=0.10,
    ),
    Row(
        title="CPU of the import",
        measurement="imports",
        value=_plain("cpu_s", 1000),
        unit="ms",
        against="dependencies",
        limit=1.25,
    ),
    Row(
        title="mcp, fastmcp or aiohttp imported along",
        measurement="imports",
        value=_plain("foreign"),
        unit="",
        limit=0,
    ),
    Row(title="early polls, all of the above", measurement=None, value=_plain("early"), unit="", limit=0),
    Row(
        title="requests without their Mcp-Name or Mcp-Method, all of the above",
        measurement=None,
        value=_plain("headless"),
        unit="",
        limit=0,
    ),
)
