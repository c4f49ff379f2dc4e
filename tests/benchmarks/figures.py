"""What is measured, and what each row of the table says about it.

The limits are promises. They are not adjusted to what is measured; what is missed is reported as missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, TypeAlias

from .server import NOTIFYING

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
    workload: str | None = None
    """What is done; ``None``: what the name says."""

    path: str = "/mcp"
    """Where the server is spoken to."""

    @property
    def work(self) -> str:
        return self.workload or self.name


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

DROPPED: Final = {
    "in-mcp": "`TasksExtension` in `mcp.Client`",
    "in-fastmcp": "`TasksExtension` in `fastmcp.Client`",
    "over-mcp": "`TasksClient(client)` over `mcp.Client`",
    "http-transport": "`TasksHttpTransport` under `mcp.Client`",
}
"""The ways in over a client of the host's own, by the names of those who are measured, and their titles."""

AGAINST_SDK: Final = {"http-transport": 1.2}
"""The limit of each burst against a bare loop over the SDK's session, where it is not 1.5. These polls
need no session."""

DROPPED_COUNTS: Final = (1000, 5000)

MEASUREMENTS: Final = (
    Measurement(name="imports", who=("ours", "dependencies"), count=1, quick=1, repetitions=11),
    Measurement(name="plain", who=("ours", "aiohttp", "fastmcp"), count=500, quick=100, repetitions=5),
    Measurement(
        name="calls",
        who=("ours-memory", "ours", "fastmcp", "mcp", "httpx", "aiohttp"),
        count=300,
        quick=60,
        repetitions=5,
    ),
    Measurement(
        name="polls",
        who=("ours", "fastmcp", "mcp", "httpx", "aiohttp"),
        count=1000,
        quick=100,
        repetitions=5,
    ),
    Measurement(name="lag", who=("ours", "ours-unjittered", "httpx"), count=400, quick=40, repetitions=3),
    Measurement(name="commits", who=("ours", "thread"), count=1000, quick=200, repetitions=9),
    Measurement(name="burst-1", workload="burst", who=("ours", "fastmcp"), count=1, quick=1, repetitions=5),
    Measurement(
        name="burst-100", workload="burst", who=("ours", "fastmcp"), count=100, quick=20, repetitions=5
    ),
    Measurement(
        name="burst-1000", workload="burst", who=("ours", "fastmcp"), count=1000, quick=100, repetitions=3
    ),
    Measurement(name="burst", who=("ours", "fastmcp"), count=5000, quick=200, repetitions=3),
    *(
        Measurement(
            name=f"dropped-{count}",
            workload="burst",
            who=(*DROPPED, "mcp", "fastmcp"),
            count=count,
            quick=100,
            repetitions=3,
        )
        for count in DROPPED_COUNTS
    ),
    Measurement(
        name="dropped-call",
        workload="calls",
        who=(*DROPPED, "mcp", "fastmcp"),
        count=300,
        quick=60,
        repetitions=5,
    ),
    Measurement(name="steady", who=("ours", "fastmcp"), count=5000, quick=60, repetitions=3),
    Measurement(name="notified", path=NOTIFYING, who=("ours",), count=300, quick=30, repetitions=3),
    *(
        Measurement(name=name, who=("ours",), count=200, quick=20, repetitions=3)
        for name in ("unhinted-50", "unhinted-500", "unhinted-5000")
    ),
    *(
        Measurement(name=name, who=("ours-eager",), count=200, quick=20, repetitions=3)
        for name in ("eager", "eager-long")
    ),
)

_CALL: Final = "CPU of a call with one poll"
_POLL: Final = "CPU of a sequential poll"
_OF_BURST: Final = "of 2 s at a 500 ms hint, all at once"
_BURST: Final = f"5,000 tasks {_OF_BURST}"
_STEADY: Final = "5,000 tasks of 30 s at a 5 s hint, begun within 30 s"
_LAG: Final = "lag beyond the hint's own schedule"
_NOTIFIED: Final = "tasks of 30 s at a 5 s hint that the server tells of"
_EAGER: Final = "`PollPolicy.eager()`"


def _burst(title: str, measurement: str, *, at_most: float | None = None) -> Iterator[Row]:
    """What there is to say of each burst, however large it is."""
    yield Row(
        title=f"{title}: wall",
        measurement=measurement,
        value=WALL,
        unit="s",
        against="fastmcp",
        limit=at_most,
    )
    yield Row(
        title=f"{title}: CPU",
        measurement=measurement,
        value=CPU,
        unit="ms",
        against="fastmcp",
        limit=at_most,
    )
    for what, name in (("calls that failed", "failures"), ("tasks that nobody brought home", "left")):
        yield Row(title=f"{title}: {what}", measurement=measurement, value=_plain(name), unit="", limit=0)


def _dropped(count: int) -> Iterator[Row]:
    """What there is to say of a burst over a client of the host's own."""
    tasks, measurement = f"{count:,} tasks {_OF_BURST}", f"dropped-{count}"
    for who, way in DROPPED.items():
        for against, at_most in (("mcp", AGAINST_SDK.get(who, 1.5)), ("fastmcp", 1.4)):
            for what, value, unit in (("wall", WALL, "s"), ("CPU", CPU, "ms")):
                yield Row(
                    title=f"{tasks}, {way}: {what}",
                    measurement=measurement,
                    value=value,
                    unit=unit,
                    who=who,
                    against=against,
                    limit=at_most,
                )
        yield Row(
            title=f"{tasks}, {way}: peak memory of a task",
            measurement=measurement,
            value=PEAK,
            unit="KB",
            who=who,
            limit=18,
        )
        for what, name in (("calls that failed", "failures"), ("tasks that nobody brought home", "left")):
            yield Row(
                title=f"{tasks}, {way}: {what}",
                measurement=measurement,
                value=_plain(name),
                unit="",
                who=who,
                limit=0,
            )
    for who in ("mcp", "fastmcp"):
        title = {"mcp": "loop over `mcp`'s session", "fastmcp": "FastMCP's client"}[who]
        yield Row(
            title=f"{tasks}, {title}: peak memory of a task",
            measurement=measurement,
            value=PEAK,
            unit="KB",
            who=who,
        )


def _dropped_call() -> Iterator[Row]:
    """What there is to say of one call over a client of the host's own."""
    for who, way in DROPPED.items():
        for against, at_most in (("mcp", 1.6), ("fastmcp", None)):
            yield Row(
                title=f"{_CALL}, durable journal, {way}",
                measurement="dropped-call",
                value=CPU,
                unit="ms",
                who=who,
                against=against,
                limit=at_most,
            )
        yield Row(
            title=f"journal operations of a call without a question, {way}",
            measurement="dropped-call",
            value=_plain("journal_operations"),
            unit="",
            who=who,
            limit=3,
        )


def _unhinted(duration: str, measurement: str, *, polls_at_most: int) -> Iterator[Row]:
    """What there is to say of tasks without a hint, however long they take."""
    title = f"tasks of {duration} without a hint"
    yield Row(
        title=f"{title}: lag, p50, in their durations",
        measurement=measurement,
        value=_plain("lag_p50_share"),
        unit="",
        limit=0.25,
    )
    yield Row(
        title=f"{title}: most polls of one",
        measurement=measurement,
        value=_plain("most_polls"),
        unit="",
        limit=polls_at_most,
    )


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
        title=f"{_CALL}, durable journal",
        measurement="calls",
        value=CPU,
        unit="ms",
        against="mcp",
        limit=0.80,
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
    Row(
        title=f"{_CALL}, memory journal",
        measurement="calls",
        value=CPU,
        unit="ms",
        who="ours-memory",
        against="aiohttp",
    ),
    Row(title=_POLL, measurement="polls", value=CPU, unit="ms", against="fastmcp", limit=0.35),
    Row(title=_POLL, measurement="polls", value=CPU, unit="ms", against="mcp"),
    Row(title=_POLL, measurement="polls", value=CPU, unit="ms", against="httpx"),
    Row(title=_POLL, measurement="polls", value=CPU, unit="ms", against="aiohttp"),
    Row(
        title="CPU of a call that makes no task",
        measurement="plain",
        value=CPU,
        unit="ms",
        against="aiohttp",
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
    *_burst("1 task of 2 s at a 500 ms hint", "burst-1"),
    *_burst(f"100 tasks {_OF_BURST}", "burst-100"),
    *_burst(f"1,000 tasks {_OF_BURST}", "burst-1000"),
    *_burst(_BURST, "burst", at_most=0.33),
    Row(title=f"{_BURST}: peak memory of a task", measurement="burst", value=PEAK, unit="KB", limit=12),
    Row(
        title=f"{_BURST}: peak memory of a task",
        measurement="burst",
        value=PEAK,
        unit="KB",
        against="fastmcp",
    ),
    *(row for count in DROPPED_COUNTS for row in _dropped(count)),
    *_dropped_call(),
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
        title=f"{_NOTIFIED}: lag, p50",
        measurement="notified",
        value=_plain("lag_p50_ms"),
        unit="ms",
        limit=20,
    ),
    Row(
        # Without a limit: what a server tells only adds, so that polls keep their pace.
        title=f"{_NOTIFIED}: most polls of one",
        measurement="notified",
        value=_plain("most_polls"),
        unit="",
    ),
    *_unhinted("50 ms", "unhinted-50", polls_at_most=3),
    *_unhinted("500 ms", "unhinted-500", polls_at_most=6),
    *_unhinted("5 s", "unhinted-5000", polls_at_most=15),
    Row(
        title=f"tasks of 200 ms at a 5 s hint, {_EAGER}: lag, p50",
        measurement="eager",
        value=_plain("lag_p50_ms"),
        unit="ms",
        who="ours-eager",
    ),
    Row(
        title=f"tasks of 200 ms at a 5 s hint, {_EAGER}: most polls of one",
        measurement="eager",
        value=_plain("most_polls"),
        unit="",
        who="ours-eager",
        limit=5,
    ),
    Row(
        title=f"tasks of 6 s at a 5 s hint, {_EAGER}: most polls of one before its first interval is over",
        measurement="eager-long",
        value=_plain("most_looks"),
        unit="",
        who="ours-eager",
        limit=4,
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
