"""A replica that cannot reach the database any more, beside one that can: one of them polls, and one asks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import psycopg
import pytest
from anyio import to_thread
from mcp_types import ElicitResult
from psycopg.conninfo import conninfo_to_dict

from mcp_tasks_client import Environment, PostgresJournal, TaskHandle, TasksClient
from mcp_tasks_client.engine.process import Process
from mcp_tasks_client.testing import input_required, working
from tests.campaigns.fleet.ways import Way, Ways
from tests.engine.world import ASK, YES
from tests.scripted_session import ScriptedSession

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

TASK: Final = "task-0123456789abcdef"
LEASE_S: Final = 1.5
HINT_MS: Final = 200
LIMIT_S: Final = 40.0


@pytest.fixture
def schema(postgres: str) -> Iterator[str]:
    name = f"parted_{uuid.uuid4().hex}"
    yield name
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


@pytest.fixture
def way(postgres: str) -> Iterator[Way]:
    socket = Path(str(conninfo_to_dict(postgres)["host"]), ".s.PGSQL.5432")
    if not socket.exists():
        pytest.skip("a way of its own leads to the socket of a database on this machine")
    with Ways(socket) as ways:
        way = ways.new()
        yield way
        way.close()


class Replica:
    """A client on a host of its own, with a person."""

    def __init__(self, host: str, dsn: str, schema: str, outage_s: float, *, asks: bool) -> None:
        task = working(TASK, poll_interval_ms=HINT_MS)
        shown = input_required(TASK, {"q": ASK}, poll_interval_ms=HINT_MS) if asks else task
        self.session = ScriptedSession(calls=[task], gets={TASK: [shown]})
        self.asked: list[float] = []
        self.withdrawn: list[float] = []

        async def ask(context: Any, params: Any) -> ElicitResult:
            self.asked.append(time.monotonic())
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                self.withdrawn.append(time.monotonic())
                raise
            return YES

        self.client = TasksClient(
            self.session,
            journal=PostgresJournal(dsn, schema=schema, outage_s=outage_s),
            elicitation=ask,
            environment=Environment(process=replace(Process.current(), host=host), lease_s=LEASE_S),
        )

    def polls(self, *, since: float) -> int:
        return sum(sent.at > since for sent in self.session.log("tasks/get"))

    async def takes_over(self) -> TaskHandle:
        while not (taken := await self.client.resume()):
            await anyio.sleep(0.05)
        return taken[0]


def lose_reply(way: Way) -> None:
    assert way.lose_reply(LIMIT_S / 4)


@pytest.mark.parametrize("asks", [False, True], ids=["polls", "asks"])
@pytest.mark.parametrize(
    ("part", "outage_s"),
    [(Way.refuse, 0.5), (Way.swallow, 2 * LEASE_S), (lose_reply, 0.5)],
    ids=[
        "refused, told before the lease is over",
        "swallowed, told after it",
        "the reply to a renewal is lost",
    ],
)
async def test_of_two_replicas_that_were_parted_one_goes_on(
    postgres: str, schema: str, way: Way, part: Callable[[Way], None], outage_s: float, asks: bool
) -> None:
    first = Replica("a", way.dsn, schema, outage_s, asks=asks)
    second = Replica("b", postgres, schema, outage_s, asks=asks)
    with anyio.fail_after(LIMIT_S):
        async with first.client, second.client:
            await first.client.start_tool("tool")
            while asks and not first.asked:
                await anyio.sleep(0.02)
            await to_thread.run_sync(part, way)
            await second.takes_over()
            taken_at = time.monotonic()
            while second.polls(since=taken_at) < 5 or (asks and not second.asked):
                await anyio.sleep(0.05)
            await to_thread.run_sync(way.mend)
            mended_at = time.monotonic()
            while second.polls(since=mended_at) < 2 * LEASE_S / HINT_MS * 1000:
                await anyio.sleep(0.05)
            assert first.polls(since=taken_at) == 0
            assert first.session.log("tasks/update") == []
            if asks:
                assert len(first.asked) == len(first.withdrawn) == len(second.asked) == 1
                assert first.withdrawn[0] < second.asked[0]


async def test_a_replica_that_was_cut_off_goes_on_once_the_database_is_back(
    postgres: str, schema: str, way: Way
) -> None:
    alone = Replica("a", way.dsn, schema, 0.5, asks=False)
    with anyio.fail_after(LIMIT_S):
        async with alone.client:
            await alone.client.start_tool("tool")
            way.refuse()
            await anyio.sleep(LEASE_S + 0.5)
            stopped_at = time.monotonic()
            await anyio.sleep(1.0)
            assert alone.polls(since=stopped_at) == 0
            way.mend()
            while alone.polls(since=stopped_at) < 5:
                await anyio.sleep(0.05)
