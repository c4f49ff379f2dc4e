"""Voyages: each a call through bad weather, in processes that are killed on the way."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from tests._forked import Program
from tests.legacy_servers import LegacyServer

from . import host
from .host import AS_TASK, CALLS, Life, Way
from .proxy import Lane, Proxy
from .verdict import Voyage, hidden, read_log, unheard
from .weather import DENIALS, Weather, What

__all__ = ["is_for_us", "storm"]

AT_ONCE: Final = 10
START_LIMIT_S: Final = 60.0
CLEARS_AFTER_S: Final = 6.0
"""Seconds of the last life after which the weather is fair."""

LAST_LIMIT_S: Final = 40.0
"""Seconds that the last life may take."""

FOR_EVER_S: Final = 15.0
"""The same, where the server may wait for an answer to what nobody heard."""

MANY_DENIALS: Final = 12
"""Of one session, where what is lost with it is the session alone."""

OF_REPLICAS: Final[tuple[tuple[What, ...], ...]] = ((), tuple(sorted(DENIALS)))
"""What happens to those: anything, or that some of them have not heard of a session."""

FORGETFUL: Final = 0.1
"""Of the voyages, on so many the server forgets the session that there was, with its tasks."""

WAYS: Final[tuple[Way, ...]] = ("url", "transport")
BREAKING: Final = 0.3
"""Of the voyages with a session of the SDK's, in so many its connections break, which ends it."""

FOR_US: Final = 0.5
"""Of the voyages with clients of our own, in so many what the server asks is to be a task of ours."""

IMPATIENT: Final = 0.4
"""Of the processes with clients of our own, in so many callers wait in slices."""

REOPENING: Final = 0.3
"""Of the processes with clients of our own, so many close it now and then."""

TWO: Final = 0.4
"""Of the processes with clients of our own, so many have two of them over one journal."""

LOOKS_MS: Final = 1000
LOOK_S: Final = 0.02


async def storm(
    seeds: Sequence[int],
    servers: Sequence[LegacyServer],
    folder: Path,
    *,
    interval_ms: int,
    debug: bool = False,
) -> AsyncIterator[Voyage]:
    """Make voyages, some at once.

    Args:
        seeds: One for each.
        servers: Taken in turn.
        folder: For journals and logs.
        interval_ms: Between polls, as the servers say.
        debug: Write what the clients log as well.
    """
    room = asyncio.Semaphore(AT_ONCE)
    proxies = [Proxy(server.url) for server in servers]

    async def one(seed: int) -> Voyage:
        async with room:
            which = seed % len(servers)
            made = await voyage(seed, servers[which].kind, proxies[which], folder, debug)
            made.interval_s = interval_ms / 1000
            return made

    async with AsyncExitStack() as running:
        for proxy in proxies:
            await running.enter_async_context(proxy.listening())
        for done in asyncio.as_completed([one(seed) for seed in seeds]):
            yield await done


async def voyage(seed: int, kind: str, proxy: Proxy, folder: Path, debug: bool) -> Voyage:
    drawn, moods = random.Random(f"voyage {seed}"), random.Random(f"moods {seed}")
    plainly = sorted(CALLS.keys() - set(AS_TASK.values()))
    calls = tuple(drawn.choices(plainly, k=drawn.choice((1, 1, 2, 4))))
    weather = Weather(seed, drawn.choice((0.0, 0.1, 0.3, 0.6)))
    if kind == "anywhere":
        weather = Weather(seed, weather.rate, most_denials=MANY_DENIALS, of=drawn.choice(OF_REPLICAS))
    lane = Lane(weather)
    if drawn.random() < FORGETFUL:
        lane.forgets_at = time.monotonic() + drawn.uniform(0.5, 4.0)
    proxy.lanes[f"v{seed}"] = lane
    lives, cancels = drawn.choice((1, 1, 2, 3)), drawn.random() < 0.15
    duration_ms, log = drawn.choice((0, 50, 400, 1500)), folder / f"{seed}.log"
    # No host can go back to a session of the SDK's, in which it was asked something for a task that goes on.
    way: Way = "url" if kind == "anywhere" else way_of(seed)
    for_us = is_for_us(seed) and kind != "anywhere"
    if for_us:  # for what is run for a server is its session's
        calls = tuple(AS_TASK.get(one, one) for one in calls)
        lives = 1  # what is run for a server lives in the memory of one client
    if way != "url":
        lane.weather.breaks = drawn.random() < BREAKING
        lane.weather.most_denials = 1  # for it cannot be gone back to
        cancels = False
    made = Voyage(seed=seed, kind=kind, way=way, calls=calls, lane=lane, cancels=cancels)
    ways = planned(way, lives)
    for number, (this, killed) in enumerate(ways, 1):
        lane.life = number
        cancel_after_s = drawn.uniform(0.0, 1.0) if cancels and number == len(ways) else None
        life = Life(
            way=this,
            url=proxy.url(f"v{seed}"),
            journal=str(folder / f"{seed}.db"),
            log=str(log),
            life=number,
            calls=calls,
            duration_ms=duration_ms,
            cancel_after_s=cancel_after_s,
            looks_ms=LOOKS_MS,
            seed=seed,
            impatient=moods.random() < IMPATIENT and this == "url",
            reopens=moods.random() < REOPENING and this == "url" and not for_us,
            two=random.Random(f"two {seed} {number}").random() < TWO and this == "url" and not for_us,
            debug=str(folder / f"{seed}.debug") if debug else None,
        )
        process = await asyncio.to_thread(Program, "-m", host.__name__, life.dump())
        with process:
            by_itself = await (_kill(process, drawn, log, made) if killed else _end(process, log, made))
        made.ended = by_itself or killed
        if by_itself and process.returncode != 0:
            made.died.append((number, process.returncode))
        if not made.ended:
            break
    made.log = read_log(log)
    return made


def way_of(seed: int) -> Way:
    """How the host of a voyage reaches the server."""
    return random.Random(f"way {seed}").choice(WAYS)


def is_for_us(seed: int) -> bool:
    """Whether what the server asks on a voyage is to be a task of ours."""
    return way_of(seed) == "url" and random.Random(f"as task {seed}").random() < FOR_US


def planned(way: Way, lives: int) -> list[tuple[Way, bool]]:
    """How each life does that, and whether it is to be killed."""
    if way == "transport":  # what it leaves is seen through by others
        resumed: list[tuple[Way, bool]] = [("resume", True)] * (lives - 2)
        return [(way, lives > 1), *resumed, ("resume", False)]
    return [*[(way, True)] * (lives - 1), (way, False)]


async def _kill(process: Program, drawn: random.Random, log: Path, made: Voyage) -> bool:
    """Have a process be killed some time after it has its task, or what it was asked is before somebody.

    Returns:
        Whether it ended by itself before that.
    """
    after, seconds = drawn.choice(("created", "created", "asked", "answered")), drawn.uniform(0.0, 1.0)
    seconds *= drawn.choice((0.01, 0.1, 1.0))
    until = time.monotonic() + START_LIMIT_S
    life = made.lane.life
    while process.poll() is None and time.monotonic() < until:
        noted = {(one.life, one.event): one.at for one in reversed(read_log(log))}
        if (life, "created") in noted:
            until = min(until, noted[life, "created"] + 2.0)
        if (life, after) in noted and time.monotonic() >= noted[life, after] + seconds:
            break
        await asyncio.sleep(LOOK_S if seconds > LOOK_S else 0.005)
    killed = process.poll() is None
    if killed:
        process.kill()
        made.kills.append(time.monotonic())
    await asyncio.to_thread(process.wait)
    return not killed


async def _end(process: Program, log: Path, made: Voyage) -> bool:
    """Have the last process come to its end, which the weather does not keep it from for ever.

    Returns:
        Whether it did.
    """
    begun, limit_s = time.monotonic(), FOR_EVER_S
    while process.poll() is None:
        if time.monotonic() > begun + limit_s:
            made.log = read_log(log)
            if limit_s == LAST_LIMIT_S or unheard(made) or hidden(made):
                break
            limit_s = LAST_LIMIT_S
        made.lane.weather.fair = time.monotonic() > begun + CLEARS_AFTER_S
        await asyncio.sleep(LOOK_S)
    ended = process.poll() is not None
    process.kill()
    await asyncio.to_thread(process.wait)
    return ended
