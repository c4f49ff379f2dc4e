"""What a client is made to do while it is measured. Each returns what it found, besides what it took."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from typing import Any, Final, TypeAlias

from .commits import WRITES
from .meter import metered
from .peers import Arguments, Peer

__all__ = ["WITHOUT_IDLING", "WORKLOADS", "Found", "quantile"]

Found: TypeAlias = dict[str, Any]
Workload: TypeAlias = Callable[[Peer, int], Awaitable[Found]]

WARM_UP: Final = 20

BURST: Final[Arguments] = {"duration_ms": 2_000, "hint_ms": 500}
STEADY: Final[Arguments] = {"duration_ms": 30_000, "hint_ms": 5_000}
LAG_HINT_MS: Final = 500
LAG_HINTS: Final = 4
"""Tasks that lag is measured with take one to so many hints."""

LAG_A_SECOND: Final = 40
"""Tasks that are begun each second; few enough for every client to keep up."""

NOTIFIED: Final[Arguments] = STEADY
NOTIFIED_WITHIN_S: Final = 3.0
"""Seconds in which tasks to be told of are begun: fewer than the hint, so that the server has agreed to tell
of the last one before the first is polled. What changes before the agreement, only a poll finds."""

UNHINTED_MS: Final = (50, 500, 5_000)
EAGER: Final[Arguments] = {"duration_ms": 200, "hint_ms": 5_000}
EAGER_LONG: Final[Arguments] = {"duration_ms": 6_000, "hint_ms": 5_000}
"""Not over in its first interval, so that it has all the early polls that a client makes."""

SPREAD_A_SECOND: Final = 20


async def calls(peer: Peer, count: int) -> Found:
    """Calls one after the other, each with a task that is over at its first poll."""
    return await _one_by_one(peer, "work", _at_once(peer), count)


async def plain(peer: Peer, count: int) -> Found:
    """Calls one after the other that make no task."""
    return await _one_by_one(peer, "plain", {}, count)


async def polls(peer: Peer, count: int) -> Found:
    """One task, over at its last poll; the call that makes it is not counted, but measured along."""
    await peer.poll(WARM_UP)
    with metered() as spent:
        await peer.poll(count)
    return asdict(spent)


async def burst(peer: Peer, count: int) -> Found:
    """All calls at once."""
    return await _many(peer, [(0.0, BURST)] * count)


async def steady(peer: Peer, count: int) -> Found:
    """Calls spread evenly over the time that each takes, so that half of them are under way on average."""
    apart_s = STEADY["duration_ms"] / 1000 / count
    return await _many(peer, [(number * apart_s, STEADY) for number in range(count)])


async def lag(peer: Peer, count: int) -> Found:
    """Calls spread thinly; how long after the end of each the caller has its result.

    Each task ends when a poll is due that keeps exactly to the hint, so that the lag is beyond that ideal.
    """
    scripts = [
        {"duration_ms": LAG_HINT_MS * (1 + number % LAG_HINTS), "hint_ms": LAG_HINT_MS}
        for number in range(count)
    ]
    return await _lagging(peer, [(number / LAG_A_SECOND, script) for number, script in enumerate(scripts)])


async def notified(peer: Peer, count: int) -> Found:
    """Calls begun within a few seconds, at a server that tells of their end."""
    apart_s = NOTIFIED_WITHIN_S / count
    return await _lagging(peer, [(number * apart_s, NOTIFIED) for number in range(count)])


def spread(script: Arguments) -> Workload:
    """Calls of one kind, spread so thinly that none waits for another."""

    async def workload(peer: Peer, count: int) -> Found:
        found = await _lagging(peer, [(number / SPREAD_A_SECOND, script) for number in range(count)])
        return {**found, "lag_p50_share": found["lag_p50_ms"] / script["duration_ms"]}

    return workload


def quantile(values: Iterable[float], fraction: float) -> float:
    """The value that this fraction of them does not exceed.

    Raises:
        ValueError: There are none.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured")
    return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)]


def _at_once(peer: Peer) -> Arguments:
    """Over at the first poll, whether a client waits for the hint or not."""
    return {"duration_ms": 0, "hint_ms": peer.shortest_hint_ms}


async def _one_by_one(peer: Peer, tool: str, arguments: Arguments, count: int) -> Found:
    for _ in range(WARM_UP):
        await peer.call(tool, arguments)
    before = peer.journal_operations()
    with metered() as spent:
        for _ in range(count):
            await peer.call(tool, arguments)
    operations = peer.journal_operations() - before
    return {
        **asdict(spent),
        "journal_writes": sum(operations[name] for name in WRITES),
        # Whole ones: those that come once in many calls, as the renewal of a lease, are no call's.
        "journal_operations": sum(round(times / count) for times in operations.values()),
        "operations": dict(operations),
    }


async def _lagging(peer: Peer, scripts: list[tuple[float, Arguments]]) -> Found:
    """The same as ``_many``, and how long after the end of each task its caller had the result."""
    lags: list[float] = []
    found = await _many(peer, scripts, lags)
    return {**found, "lag_p50_ms": 1000 * quantile(lags, 0.50), "lag_p99_ms": 1000 * quantile(lags, 0.99)}


async def _many(peer: Peer, scripts: list[tuple[float, Arguments]], lags: list[float] | None = None) -> Found:
    """Calls that each begin so many seconds after the start. What fails is counted by the error's name."""
    failures: Counter[str] = Counter()

    async def call(begin_s: float, script: Arguments) -> None:
        await asyncio.sleep(begin_s)
        try:
            answered_at = float(await peer.call("work", script))
        except Exception as error:
            failures[type(error).__name__] += 1
        else:
            if lags is not None:
                lags.append(time.monotonic() - answered_at - script["duration_ms"] / 1000)

    async with asyncio.TaskGroup() as warm_up:
        for _ in range(WARM_UP):
            warm_up.create_task(call(0.0, _at_once(peer)))
    if lags is not None:
        lags.clear()
    with metered() as spent:
        async with asyncio.TaskGroup() as group:
            for begin_s, script in scripts:
                group.create_task(call(begin_s, script))
    return {
        **asdict(spent),
        "failures": failures.total(),
        "failed_with": dict(failures),
        "unfinished": await peer.unfinished(),
    }


WORKLOADS: Final[dict[str, Workload]] = {
    "calls": calls,
    "polls": polls,
    "plain": plain,
    "burst": burst,
    "steady": steady,
    "lag": lag,
    "notified": notified,
    **{f"unhinted-{duration_ms}": spread({"duration_ms": duration_ms}) for duration_ms in UNHINTED_MS},
    "eager": spread(EAGER),
    "eager-long": spread(EAGER_LONG),
}
"""Every workload by the name that the command line knows it by."""

WITHOUT_IDLING: Final = ("calls", "polls")
"""Those that measure the CPU of requests. A client that sleeps between them finds the caches cold."""
