"""Replicas on hosts of their own over one journal in PostgreSQL, as real processes."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import anyio
import psycopg
import pytest

from mcp_tasks_client import Environment, Inbox, Instruction, PostgresJournal, SystemClock, TasksClient
from mcp_tasks_client.engine import runner
from mcp_tasks_client.engine.process import Process
from mcp_tasks_client.testing import completed, text_result, working
from tests._results import text
from tests.journal.files import only_told
from tests.real_server import RealServer
from tests.scripted_session import ScriptedSession

from .replica import LEASE_S, LIMIT_S, journal_of, replica

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture
def schema(postgres: str) -> Iterator[str]:
    """A schema for one test alone."""
    name = f"fleet_{uuid.uuid4().hex}"
    yield name
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


async def start(postgres: str, schema: str, url: str, count: int, seconds: float) -> list[str]:
    """Start tools in a process that leaves them: ours."""
    async with TasksClient(url, journal=journal_of(postgres, schema), elicitation="later") as client:
        handles = [
            await client.start_tool("ask_name", {"seconds": seconds}, idempotency_key=str(number))
            for number in range(count)
        ]
        return [str(handle.task_id) for handle in handles]


async def test_two_replicas_that_call_under_one_key_at_once_call_once(
    postgres: str, schema: str, real_server: RealServer
) -> None:
    token = uuid.uuid4().hex
    with ExitStack() as stack:
        both = [
            stack.enter_context(replica(postgres, schema, real_server.url, host, "call", "order-42", token))
            for host in ("a", "b")
        ]
        for one in both:
            await one.until(lambda one=one: one.words("done"))
        assert [one.words("done") for one in both] == [["1"], ["1"]]
    async with TasksClient(real_server.url, journal=journal_of(postgres, schema)) as client:
        assert text(await client.call_tool("runs", {"token": token})) == "1"


def client_on(
    host: str, postgres: str, schema: str, session: ScriptedSession, clock: SystemClock | None = None
) -> TasksClient:
    """A client of this process that is on another host, as far as others can tell."""
    process = replace(Process.current(), host=host)
    environment = Environment(process=process, clock=clock or SystemClock())
    return TasksClient(session, journal=journal_of(postgres, schema), environment=environment)


async def test_whoever_follows_a_call_elsewhere_is_woken_by_its_end(
    postgres: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("_FIRST_LOOK_S", "_LONGEST_LOOK_S"):
        monkeypatch.setattr(runner, bound, 60.0)  # or else it may look at the right moment
    take, looks = PostgresJournal.take, 0

    async def look(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return await take(*args)

    monkeypatch.setattr(PostgresJournal, "take", look)
    only_told(monkeypatch)
    task = working("task-1", poll_interval_ms=1000)
    driving = ScriptedSession(calls=[task], gets={"task-1": [task, completed("task-1", text_result("done"))]})
    following = ScriptedSession()
    results: list[str] = []
    with anyio.fail_after(LIMIT_S):
        async with (
            client_on("a", postgres, schema, driving) as first,
            client_on("b", postgres, schema, following) as second,
        ):
            handle = await first.start_tool("tool", idempotency_key="order-42")

            async def follow() -> None:
                results.append(text(await second.call_tool("tool", idempotency_key="order-42")))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                await anyio.sleep(0.5)
                (record,) = await first.records()
                async with journal_of(postgres, schema) as journal:  # of which both are told
                    await journal.instruct(record.record_id, Instruction("nothing", "{}", 7.0))
                await handle.result()
    assert results == ["done"]
    assert following.sent == []
    assert looks < 10


async def test_what_a_killed_replica_had_is_adopted_within_two_leases(
    postgres: str, schema: str, real_server: RealServer
) -> None:
    url, lease_s = real_server.url, 2 * LEASE_S
    with (
        replica(postgres, schema, url, "a", "adopt", str(lease_s)) as first,
        replica(postgres, schema, url, "b", "adopt", str(lease_s)) as second,
    ):
        for one in (first, second):
            await one.until(lambda one=one: one.said)
        started = await start(postgres, schema, url, 4, seconds=2.5 * lease_s)
        await first.until(lambda: len(first.words("adopted")) + len(second.words("adopted")) == 4)
        victim, other = (first, second) if first.words("adopted") else (second, first)
        theirs = victim.words("adopted")
        assert not {*theirs} & {*other.words("adopted")}
        victim.process.kill()
        killed_at = time.monotonic()
        await other.until(lambda: {*theirs} <= {*other.words("adopted")})
        assert time.monotonic() - killed_at < 2 * lease_s + 0.5
        await other.until(lambda: len(other.words("done")) == 4)
        assert victim.words("done") == []
    for one in started:
        assert len(real_server.witness(one, "tools/call")) == 1


async def test_what_a_replica_had_that_is_told_to_stop_is_adopted_within_half_a_lease(
    postgres: str, schema: str, real_server: RealServer
) -> None:
    url, lease_s = real_server.url, 20.0  # two thirds of it, in which nothing lapses, are more than the limit
    with replica(postgres, schema, url, "a", "adopt", str(lease_s)) as first:
        await first.until(lambda: first.said)
        started = await start(postgres, schema, url, 2, seconds=10 * lease_s)
        await first.until(lambda: len(first.words("adopted")) == 2)
        with replica(postgres, schema, url, "b", "adopt", str(lease_s)) as second:
            await second.until(lambda: second.said)
            first.process.send_signal(signal.SIGTERM)
            told_at = time.monotonic()
            await second.until(lambda: len(second.words("adopted")) == 2)
            assert time.monotonic() - told_at < lease_s / 2 + 3.0
            assert first.process.wait(LIMIT_S) == 0
            assert {*first.words("adopted")} == {*second.words("adopted")} == {*started}


async def test_a_replica_that_was_suspended_can_write_nothing_after_another_has_taken_over(
    postgres: str, schema: str, real_server: RealServer
) -> None:
    url = real_server.url
    with replica(postgres, schema, url, "a", "adopt") as first:
        await first.until(lambda: first.said)
        (task_id,) = await start(postgres, schema, url, 1, seconds=2 * LEASE_S)
        await first.until(lambda: first.words("adopted"))
        first.process.send_signal(signal.SIGSTOP)
        with replica(postgres, schema, url, "b", "adopt") as second:
            await second.until(lambda: second.words("done"))
            assert second.words("adopted") == [task_id]
            with anyio.fail_after(LIMIT_S):
                while (before := stored(postgres, schema))[0][-1] is None:
                    await anyio.sleep(0.05)  # a delivery is written a moment after the host has the outcome
            first.process.send_signal(signal.SIGCONT)
            await first.until(lambda: first.words("lost") or first.words("done"))
            await anyio.sleep(0.5)
            after = stored(postgres, schema)
        assert after == before
        assert len(before) == 1
    assert len(real_server.witness(task_id, "tasks/update")) == 1, "answered once"


def stored(postgres: str, schema: str) -> list[Any]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        return connection.execute(
            f"SELECT record_id, owner, fence, state, delivered_at FROM {schema}.records ORDER BY 1".encode()
        ).fetchall()


async def test_two_machines_of_one_name_leave_each_others_calls_alone(postgres: str, schema: str) -> None:
    """As the first containers of two hosts, or machines that were cloned."""

    def client(boot: str, task_id: str) -> TasksClient:
        session = ScriptedSession(calls=[working(task_id, poll_interval_ms=600_000)])
        environment = Environment(process=replace(Process.current(), boot=boot))
        return TasksClient(session, journal=journal_of(postgres, schema), environment=environment)

    with anyio.fail_after(LIMIT_S):
        async with client("a", "task-1") as first, client("b", "task-2") as second:
            await first.start_tool("tool")
            await second.start_tool("tool")
            for one, own in ((first, "task-1"), (second, "task-2")):
                assert [handle.task_id for handle in await one.resume()] == [own]
            async with Inbox(journal_of(postgres, schema)) as inbox:
                assert [await inbox.is_driven(one) for one in await inbox.records()] == [True, True]


class Ahead(SystemClock):
    """A wall clock that goes wrong."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def time(self) -> float:
        return super().time() + self._ahead_s


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
async def test_a_host_whose_clock_goes_wrong_takes_nobodys_calls_and_loses_none(
    postgres: str, schema: str, ahead_s: float
) -> None:
    """Leases and due times go by the database's clock."""

    def client(host: str, clock: SystemClock, task_id: str) -> TasksClient:
        session = ScriptedSession(calls=[working(task_id, poll_interval_ms=600_000)])
        return client_on(host, postgres, schema, session, clock)

    with anyio.fail_after(LIMIT_S):
        async with (
            client("right", SystemClock(), "task-1") as right,
            client("wrong", Ahead(ahead_s), "task-2") as wrong,
        ):
            await right.start_tool("tool")
            await wrong.start_tool("tool")
            for one in (right, wrong):
                assert [handle.task_id for handle in await one.resume()] == [
                    "task-1" if one is right else "task-2"
                ]
            records = await right.records()
    times = [record.created_at for record in records]
    assert abs(times[0] - times[1]) < 60
