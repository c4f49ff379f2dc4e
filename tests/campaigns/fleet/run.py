"""Starts tasks while a fleet is disturbed, and collects the evidence."""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import psycopg

from mcp_tasks_client import PostgresJournal, TasksClient, TasksClientError
from tests.postgres import PostgresServer, running_postgres

from ..lives import LIMIT_S
from ..outcome import Campaign
from ..torture.run import servers
from .disturbances import EACH_ROUND, OF_A_REPLICA, OF_THE_DATABASE, TWINS
from .evidence import EVIDENCE, Evidence
from .fleet import REPLICAS, Fleet
from .host import Place, http_client
from .verdict import judge
from .ways import Ways

__all__ = ["run"]

WORK_S: Final = 0.3
WORKS_LONG: Final = 0.3
"""The share of tasks that work for up to two leases before they ask, and once more after that."""

AT_WORK: Final = 100
"""No more calls are made while so many are unfinished, so that a busy machine is not overloaded as well."""

LIMIT: Final = AT_WORK // 2
"""How many calls a replica sees to at once. Half of the replicas have room for all."""

CALM_LIMIT: Final = 25
"""How many in the end, so that there is something left for others."""

LONGEST: Final = 10
"""Leases within which each task ends: it works twice for two of them, a person thinks for two, and what they
have done may be lost."""

FROM_OUTSIDE: Final = 0.3
"""The share of questions that are answered from outside, should no person be faster."""

KILLED_FIRST: Final = 3
"""So many replicas are killed before anything else is done, to see how soon their calls are taken over."""

AT_ONCE: Final = 50
"""How many calls are made before they are left, since who makes them polls them until then."""

PAUSE_S: Final = 0.5


def run(
    folder: Path,
    seed: int,
    *,
    tasks: int,
    disturbances: int,
    calm: int,
    lease_s: float,
    without: Collection[str] = (),
) -> Campaign:
    """Disturb four replicas and their database again and again, while calls are made.

    Args:
        folder: For logs, and for the evidence.
        seed: Decides about what happens, and when.
        tasks: How many calls are made in all, as the disturbances go on.
        disturbances: How many there are.
        calm: How many calls are made in the end, for four new replicas that nobody disturbs, to see how they
            are shared.
        lease_s: The length of a lease.
        without: Disturbances, by their names, that are left out.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        database = stack.enter_context(running_postgres())
        server = stack.enter_context(servers(seed, folder))
        ways = stack.enter_context(Ways(database.data / ".s.PGSQL.5432"))
        url, has_twins = server.endpoint("scripted"), TWINS not in without
        fleet = Fleet(url, database, folder, lease_s=lease_s, ways=ways, has_twins=has_twins)
        stack.callback(fleet.close)
        _disturb_all(fleet, tasks, disturbances, seed, without)
        calm_since: float | None = None
        if fleet.wait_for_deliveries(tasks, limit_s=LIMIT_S + LONGEST * lease_s) and calm:
            calm_since = time.monotonic()
            tasks += calm
            _be_calm(fleet, range(tasks - calm, tasks))
        # A replica that was killed between a delivery and its commit has left it to others.
        deadline = time.monotonic() + 3 * lease_s
        while (unfinished := _unfinished(database)) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        evidence = Evidence(
            lease_s=lease_s,
            began=began,
            tasks=tasks,
            calm_since=calm_since,
            lines=fleet.lines(),
            requests=server.ledger(),
            disturbances=fleet.disturbances,
            ended_at=fleet.ended_at,
            killed_at=fleet.killed_at,
            late_to_stop=fleet.late_to_stop,
            twins=sorted(fleet.twins),
            unfinished=unfinished,
        )
        evidence.save(folder / EVIDENCE)
        campaign = judge(evidence)
        campaign.figures["seconds in all"] = round(time.monotonic() - began)
        return campaign


def _disturb_all(fleet: Fleet, tasks: int, disturbances: int, seed: int, without: Collection[str]) -> None:
    """Make calls, and begin a disturbance with each share of them. Returns when all disturbances are over."""
    chance, started = random.Random(seed), 0
    plan = [] if "killed" in without else ["killed"] * KILLED_FIRST
    with ThreadPoolExecutor(1) as starter:
        others = fleet.answer(share=FROM_OUTSIDE, longest_s=2 * fleet.lease_s)  # as late as persons may
        for life in [others, *(fleet.replica(LIMIT) for _ in range(REPLICAS))]:
            fleet.wait_for(life)
        for number in range(disturbances + 1):
            fleet.wait_for_deliveries(started - AT_WORK)
            share = tasks * (number + 1) // (disturbances + 1)
            starting = starter.submit(anyio.run, _start, fleet, range(started, share), seed)
            started = share
            if number == KILLED_FIRST:
                fleet.last(2 * fleet.lease_s)
            if number < disturbances:
                plan = plan or _plan(chance, without)
                time.sleep(chance.uniform(0.0, 1.0))
                _disturb(fleet, plan.pop(), random.Random(chance.random()))
            starting.result()
    fleet.wait_for_calm()


def _plan(chance: random.Random, without: Collection[str]) -> list[str]:
    """What is done in a round."""
    plan = [what for what, times in EACH_ROUND.items() for _ in range(times) if what not in without]
    chance.shuffle(plan)
    return plan


def _disturb(fleet: Fleet, what: str, chance: random.Random) -> None:
    """Begin one disturbance, as soon as there is room for it."""
    if what in OF_THE_DATABASE:
        fleet.wait_for_database()
        fleet.begin_disturbing(None, partial(OF_THE_DATABASE[what], fleet, chance))
    elif what == "killed":
        OF_A_REPLICA[what](fleet, fleet.choose(chance, disturbed=True), chance)
        fleet.replica(LIMIT)
    else:
        life = fleet.choose(chance)
        fleet.begin_disturbing(life, partial(OF_A_REPLICA[what], fleet, life, chance))
        if what == "told to stop":
            fleet.replica(LIMIT)


def _be_calm(fleet: Fleet, numbers: range) -> None:
    """Make calls, have new replicas see them through, and disturb nobody."""
    for life in fleet.replicas:
        fleet.stop(life)
    fleet.end()  # the process that answers
    for first in numbers[::AT_ONCE]:
        anyio.run(_start, fleet, range(first, min(first + AT_ONCE, numbers.stop)), None)
    for life in [fleet.replica(CALM_LIMIT) for _ in range(REPLICAS)]:
        fleet.wait_for(life)
    fleet.wait_for_deliveries(numbers.stop)


async def _start(fleet: Fleet, numbers: range, seed: int | None) -> None:
    """Make calls in a process that leaves them: ours. Without a seed, all are short."""
    place = Place(life=0, host="start", boot="", lease_s=fleet.lease_s, outage_s=LIMIT_S, limit=0)
    http = http_client()
    async with (
        http,
        TasksClient(
            fleet.url,
            journal=PostgresJournal(fleet.journal, outage_s=place.outage_s),
            elicitation="later",
            http_client=http,
            environment=place.environment,
        ) as client,
        anyio.create_task_group() as calls,
    ):
        for number in numbers:
            calls.start_soon(_call, client, number, seed, 2 * fleet.lease_s)


async def _call(client: TasksClient, number: int, seed: int | None, longest_s: float) -> None:
    key, chance = f"call-{number}", random.Random(f"{seed} {number}")
    is_long = seed is not None and chance.random() < WORKS_LONG
    arguments = {"intent": key, "seconds": chance.uniform(WORK_S, longest_s) if is_long else WORK_S}
    with anyio.fail_after(LIMIT_S):
        while True:
            try:
                await client.start_tool("vigil", arguments, idempotency_key=key)
                return
            except TasksClientError:  # a reply that was not journaled is kept by the client, for the key
                await anyio.sleep(PAUSE_S)


def _unfinished(database: PostgresServer) -> int:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM mcp_tasks_client.records WHERE delivered_at IS NULL"
        ).fetchone()
    assert row is not None
    return int(row[0])
