"""What happens by itself while a client is open: old outcomes are forgotten, nothing else is."""

from __future__ import annotations

import gc
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import JournalError, JournalLockedError, MemoryJournal, TaskRecord, TasksClient
from mcp_tasks_client.old.journal.base import Lease
from mcp_tasks_client.old.owners import LEASE_S
from mcp_tasks_client.old.testing import (
    FaultPlan,
    ManualClock,
    Point,
    ScriptedServer,
    Unreachable,
    ask,
    ask_first,
    complete,
    form,
    raising,
    scripted_client,
    text_result,
    work,
)

from ._requirements import requirement

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0


def world() -> tuple[ManualClock, ScriptedServer, Full]:
    clock = ManualClock()
    server = ScriptedServer(clock=clock)
    server.tool("quick", [work(2), complete(text_result("done"))])
    return clock, server, Full()


async def keys(client: TasksClient) -> list[str | None]:
    return [record.idempotency_key for record in await client.records()]


async def finished(clock: ManualClock, client: TasksClient, key: str) -> None:
    handle = await client.start_tool("quick", idempotency_key=key)
    await clock.advance(10)
    await handle.result()
    await clock.advance(0)


@requirement("law:2")
async def test_an_outcome_is_kept_for_a_week_after_it_was_delivered_and_then_forgotten() -> None:
    clock, server, journal = world()
    async with scripted_client(server.session(), journal=journal) as client:
        await finished(clock, client, "first")
    await clock.advance(6.9 * DAY_S)
    async with scripted_client(server.session(), journal=journal) as client:
        await clock.advance(0)
        assert await keys(client) == ["first"]
    await clock.advance(0.2 * DAY_S)
    async with scripted_client(server.session(), journal=journal) as client:
        await clock.advance(0)
        assert await keys(client) == []


async def test_a_client_that_stays_open_forgets_what_grows_old_meanwhile() -> None:
    clock, server, journal = world()
    client = scripted_client(server.session(), journal=journal)
    client._engine.lease_s = 900.0
    async with client:
        await finished(clock, client, "first")
        await clock.advance(6.9 * DAY_S)
        assert await keys(client) == ["first"]
        await clock.advance(0.2 * DAY_S)
        assert await keys(client) == []


@requirement("law:2")
async def test_what_was_never_delivered_is_never_forgotten() -> None:
    clock, server, journal = world()
    async with scripted_client(server.session(), journal=journal) as client:
        await client.start_tool("quick", idempotency_key="unread")
        await clock.advance(10)
    await clock.advance(1000 * DAY_S)
    async with scripted_client(server.session(), journal=journal) as client:
        assert await client.prune(0) == 0
        (handle,) = await client.resume()
        assert (await handle.result()).content[0].text == "done"  # type: ignore[union-attr]  # it is text
        await clock.advance(61)
        assert await client.prune(0) == 1
        assert await keys(client) == []


async def test_how_long_outcomes_are_kept_is_the_journals_own_to_say() -> None:
    clock, server, _ = world()
    journal = MemoryJournal(retention_s=60.0)
    async with scripted_client(server.session(), journal=journal) as client:
        await finished(clock, client, "first")
        assert await client.prune() == 0
        await clock.advance(61)
        assert await client.prune() == 1


class Full(MemoryJournal):
    """Can be made to refuse to renew a lease, or to do anything about owners."""

    renews = releases = removes = prunes = True
    renewing: anyio.Event | None = None

    async def renew(self, lease: Lease) -> bool:
        if not self.renews:
            raise JournalError("The disk is full. Make room and try again.")
        kept = await super().renew(lease)
        if self.renewing is not None:
            await self.renewing.wait()
        return kept

    async def save(self, record: TaskRecord, *, known: bool = False) -> None:
        if record.owner is None and not self.releases:
            raise JournalLockedError("The journal is locked. Try again.")
        await super().save(record, known=known)

    async def prune(self, before: float) -> int:
        if not self.prunes:
            raise JournalError("A page of an old record is damaged.")
        return await super().prune(before)

    async def remove(self, record: TaskRecord) -> None:
        if not self.removes:
            raise JournalError("The disk is full. Make room and try again.")
        await super().remove(record)

    async def release(self, *names: str) -> None:
        if not self.releases:
            raise JournalLockedError("The journal is locked. Try again.")
        await super().release(*names)


@requirement("law:3", "law:5")
@pytest.mark.parametrize("prunes", [True, False], ids=["", "and nothing can be pruned"])
@pytest.mark.parametrize("when", [ask, ask_first], ids=["of a task", "before a task"])
async def test_what_was_withdrawn_for_want_of_a_lease_is_asked_again(when: Any, prunes: bool) -> None:
    clock, journal = ManualClock(), Full()
    journal.prunes = prunes
    server = ScriptedServer(clock=clock)
    server.tool("slow", [when("who", form("Who?", name="string")), complete(text_result("done"))])
    asked: list[float] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(clock.monotonic())
        await clock.wait(anyio.Event(), 60)
        return ElicitResult(action="accept", content={"name": "Ada"})

    client = scripted_client(server.session(), journal=journal, elicitation=answer)
    client._engine.lease_s = LEASE_S
    async with client, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(client.call_tool, "slow", idempotency_key="k"))
        await clock.advance(3)
        journal.renews = False
        await clock.advance(40)
        journal.renews = True
        await clock.advance(100)
        assert len(asked) == 2
        assert [record.status for record in await client.records()] == ["completed"]


@requirement("law:5")
@pytest.mark.parametrize("others", [0, 1])
async def test_what_could_not_be_let_go_of_at_the_end_is_let_go_of_later(others: int) -> None:
    clock, server, journal = world()
    client, other = (scripted_client(server.session(), journal=journal) for _ in range(2))
    for one in (client, other):
        one._engine.lease_s = LEASE_S
    async with AsyncExitStack() as stack:
        if others:
            await stack.enter_async_context(other)
        async with client:
            await client.start_tool("quick")
            journal.releases = False
        journal.releases = True
        async with journal:
            (record,) = await journal.records(client._engine._scope)
            owner = record.owner
            assert owner is not None
            if not others:
                await stack.enter_async_context(other)
                await other.start_tool("quick")
            await clock.advance(LEASE_S)
            record, *_ = await journal.records(client._engine._scope)
            assert record.owner == f"{owner}/left"
            assert not [lease for lease in journal._leases.values() if lease.covers(record.owner)]


@requirement("law:5")
@pytest.mark.parametrize("failures", [1, 2])
async def test_what_could_not_be_let_go_of_at_the_end_is_tried_again_at_once(failures: int) -> None:
    _, server, journal = world()
    plan = FaultPlan()
    for point, times in ((Point.RELEASE, 2), (Point.LEAVE, failures)):
        for nth in range(1, times + 1):
            plan.at(point, "before", raising(JournalLockedError("The journal is locked.")), nth=nth)
    client = scripted_client(server.session(), journal=journal, probe=plan)
    async with journal:
        async with client:
            await client.start_tool("quick")
        (record,) = await journal.records(client._engine._scope)
    assert record.owner is not None
    assert record.owner.endswith("/left")
    assert journal._leases == {}


@requirement("law:5", "law:8")
async def test_what_could_not_be_let_go_of_is_let_go_of_later_though_its_host_forgot_it() -> None:
    clock, server, journal = world()
    server.tool("slow", [work(100), complete(text_result("done"))], poll_interval_ms=5000)
    first, second = (scripted_client(server.session(), journal=journal) for _ in range(2))
    results: list[Any] = []

    async def call(client: TasksClient) -> None:
        results.append(await client.call_tool("slow", idempotency_key="k"))

    first._engine.lease_s = second._engine.lease_s = LEASE_S
    async with first, second, anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as callers:
            callers.start_soon(call, first)
            await clock.advance(12)
            journal.releases = False
            callers.cancel_scope.cancel()
        await clock.advance(1)
        journal.releases = True
        gc.collect()
        await clock.advance(LEASE_S)
        assert [record.owner for record in await second.records()] == [None]
        tasks.start_soon(call, second)
        await clock.advance(100)
    assert len(results) == 1


@requirement("law:2", "law:5")
async def test_an_intent_that_could_not_be_taken_back_is_taken_back_later() -> None:
    clock, server, journal = world()
    first, second = (scripted_client(server.session(), journal=journal) for _ in range(2))
    first._engine.lease_s = second._engine.lease_s = LEASE_S
    async with first, second, anyio.create_task_group() as tasks:
        server.misbehave("tools/call", Unreachable())
        journal.removes = False
        with pytest.raises(JournalError):
            await first.call_tool("quick", idempotency_key="k")
        assert [record.status for record in await second.records()] == ["calling"]
        journal.removes = True
        await clock.advance(LEASE_S)
        assert await second.records() == []
        tasks.start_soon(partial(second.call_tool, "quick", idempotency_key="k"))
        await clock.advance(10)
        assert [record.status for record in await second.records()] == ["completed"]


@requirement("law:5")
async def test_that_the_lease_had_lapsed_is_not_lost_with_the_client_that_finds_it_out() -> None:
    clock, server, journal = world()
    first, second = (scripted_client(server.session(), journal=journal) for _ in range(2))
    first._engine.lease_s = second._engine.lease_s = LEASE_S
    closing, closed = anyio.Event(), anyio.Event()

    async def life() -> None:
        async with first:
            await closing.wait()
        closed.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(life)
        await clock.advance(0)
        async with second:
            await second.start_tool("quick")
            tenure = second._engine.scheduler.driver.commits.membership.tenure
            clock.jump(LEASE_S + 10)
            journal.renewing = anyio.Event()
            await clock.advance(LEASE_S / 3)
            closing.set()
            await clock.advance(0)
            journal.renewing.set()
            await closed.wait()
            assert tenure.lapses == 1


async def test_an_age_cannot_be_negative() -> None:
    _, server, journal = world()
    async with scripted_client(server.session(), journal=journal) as client:
        with pytest.raises(ValueError, match="cannot be negative"):
            await client.prune(-1)
