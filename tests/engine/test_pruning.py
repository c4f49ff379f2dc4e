"""What is forgotten by itself, and what never is."""

from __future__ import annotations

import pytest

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import JournalError
from mcp_tasks_client.journal.memory import MemoryJournal
from mcp_tasks_client.testing import working
from tests._requirements import requirement
from tests.engine.world import DONE, TASK, World, text

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0


async def keys(client: TasksClient) -> list[str | None]:
    return [record.idempotency_key for record in await client.records()]


@requirement("law:2")
async def test_an_outcome_is_kept_for_a_week_after_it_was_delivered_and_then_forgotten() -> None:
    world = World()
    async with world.client() as client:
        await world.call(client, within=10, idempotency_key="first")
    await world.clock.advance(6.9 * DAY_S)
    async with world.client() as client:
        await world.clock.advance(0)
        assert await keys(client) == ["first"]
    await world.clock.advance(0.2 * DAY_S)
    async with world.client() as client:
        await world.clock.advance(0)
        assert await keys(client) == []


async def test_a_client_that_stays_open_forgets_what_grows_old_meanwhile_when_it_delivers() -> None:
    world = World()
    async with world.client() as client:
        await world.call(client, within=10, idempotency_key="first")
        await world.clock.advance(7.1 * DAY_S)
        await world.call(client, within=10, idempotency_key="second")
        await world.clock.advance(0)
        assert await keys(client) == ["second"]


async def test_a_delivered_outcome_without_a_key_is_forgotten_at_once() -> None:
    world = World()
    async with world.client() as client:
        await world.call(client)
        assert await client.records() == []


@requirement("law:2")
async def test_what_was_never_delivered_is_never_forgotten() -> None:
    world = World()
    async with world.client() as client:
        await client.start_tool("tool", idempotency_key="unread")
        await world.clock.advance(10)
    await world.clock.advance(1000 * DAY_S)
    async with world.client() as client:
        assert await client.prune(0) == 0
        (handle,) = await client.resume()
        assert text(await handle.result()) == "done"
        await world.clock.advance(61)
        assert await client.prune(0) == 1
        assert await keys(client) == []


@pytest.mark.parametrize("ttl_ms", [60_000, None])
async def test_a_task_whose_time_to_live_passed_long_ago_is_forgotten_when_the_next_client_opens(
    ttl_ms: int | None,
) -> None:
    created = working(TASK, poll_interval_ms=1000, ttl_ms=ttl_ms)
    world = World(calls=[created], gets={TASK: [created]})
    async with world.client() as client:
        await client.start_tool("tool", idempotency_key="first")
    await world.clock.advance(6.9 * DAY_S)
    async with world.client() as client:
        await world.clock.advance(0)
        assert await keys(client) == ["first"]
    await world.clock.advance(0.2 * DAY_S)
    async with world.client() as client:
        await world.clock.advance(0)
        assert await keys(client) == ([] if ttl_ms else ["first"])


async def test_how_long_outcomes_are_kept_is_the_journals_own_to_say() -> None:
    world = World()
    world.journal = MemoryJournal(retention_s=120.0)
    async with world.client() as client:
        await world.call(client, within=10, idempotency_key="first")
        assert await client.prune() == 0
        await world.clock.advance(121)
        assert await client.prune() == 1


async def test_what_others_may_just_be_following_is_kept_for_a_minute() -> None:
    world = World()
    async with world.client() as client:
        await world.call(client, within=10, idempotency_key="first")
        assert await client.prune(0) == 0
        await world.clock.advance(61)
        assert await client.prune(0) == 1


async def test_a_journal_that_cannot_be_pruned_is_used_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    class Damaged(MemoryJournal):
        async def prune(self, before: float) -> int:
            raise JournalError("A page of an old record is damaged.")

    world = World(gets={TASK: [DONE]})
    world.journal = Damaged()
    async with world.client() as client:
        assert text(await world.call(client)) == "done"
        assert "pruned later: A page" in caplog.text
        with pytest.raises(JournalError):
            await client.prune()


async def test_an_age_cannot_be_negative() -> None:
    async with World().client() as client:
        with pytest.raises(ValueError, match="cannot be negative"):
            await client.prune(-1)
