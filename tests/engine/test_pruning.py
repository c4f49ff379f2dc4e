"""What is forgotten by itself, and what never is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import JournalError
from mcp_tasks_client.handle import TaskHandle, TaskReference
from mcp_tasks_client.journal.base import Journal
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.testing import completed, text_result, working
from tests._requirements import requirement
from tests._results import text
from tests.engine.other_process import OnDisk
from tests.engine.world import ASK, DONE, TASK, World
from tests.kit.probed_journal import ProbedJournal

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0


async def keys(client: TasksClient) -> list[str | None]:
    return [record.idempotency_key for record in await client.records()]


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


@pytest.mark.parametrize("by", ["hand", "the timer", "another client", "another journal object"])
async def test_a_running_call_is_not_forgotten_when_the_wall_clock_steps(by: str, tmp_path: Path) -> None:
    """The time-to-live of its task is over, as it seems, and the week after that."""
    quick, slow = (
        working("quick", poll_interval_ms=1000),
        working(TASK, poll_interval_ms=1000, ttl_ms=600_000),
    )
    world = World(
        calls=[slow, quick],
        gets={TASK: [slow] * 9 + [DONE], "quick": [completed("quick", text_result("quick"))]},
    )
    clock = world.clock

    def journal() -> Journal:
        return (
            OnDisk(tmp_path / "journal.sqlite3", clock) if by == "another journal object" else world.journal
        )

    async with world.client(journal=journal()) as client:
        running = await client.start_tool("tool", idempotency_key="slow")
        clock.jump(30 * DAY_S)
        match by:
            case "hand":
                assert await client.prune(0) == 0
            case "the timer":
                await clock.advance(600)
                await world.call(client, within=3, idempotency_key="quick")
            case _:
                async with world.client(journal=journal()) as other:
                    await clock.advance(0)
                    assert await other.prune(0) == 0
        await clock.advance(20)
        assert running.task_id == TASK
        assert text(await running.result()) == "done"
        again = await client.call_tool("tool", idempotency_key="slow")
        assert text(again) == "done", "its key stands for it as before"
    assert len(world.server.log("tools/call")) == (2 if by == "the timer" else 1)


async def test_a_call_that_waits_for_the_hosts_person_is_not_forgotten_when_the_wall_clock_steps() -> None:
    """It was left to the process, and any client of this process may go on with it."""
    asking = {**working(TASK, ttl_ms=600_000), "status": "input_required", "inputRequests": {"k": ASK}}
    world = World(gets={TASK: [asking]})
    async with world.client() as client:
        store = client._engine.store
        handle = await client.start_tool("tool", idempotency_key="slow")
        await world.clock.advance(2)
        call = store.registry.live[handle.reference["record_id"]]
        await store.owning.take(call)
        await store.owning.release(call, to_process=True)
        world.clock.jump(30 * DAY_S)
        assert await client.prune(0) == 0
        assert await keys(client) == ["slow"]
    assert (await world.only_record()).idempotency_key == "slow"
    async with world.client() as client:
        await world.clock.advance(0)
        assert await keys(client) == [], "and forgotten once its process does not keep it any more"


async def test_of_all_clients_in_a_process_one_prunes_now_and_then() -> None:
    world = World()
    world.journal = journal = ProbedJournal()
    async with world.client() as one, world.client() as two:
        for client in (one, two, one, two):
            await world.call(client, within=10)
        assert journal.counts["prune"] == 1
        await world.clock.advance(600)
        for client in (one, two, one, two):
            await world.call(client, within=10)
        assert journal.counts["prune"] == 2


# ── outcomes that were passed to a host's own session ─────────────────────────────────────────


async def passed_on(client: TasksClient, world: World, **options: Any) -> TaskReference:
    """A finished call whose outcome was passed to a session that may lose it."""
    handle = await client.start_tool("tool", **options)
    await world.clock.advance(10)
    store = client._engine.store
    store.ends.deliver(store.registry.live[handle.reference["record_id"]], may_be_lost=True)
    return handle.reference


async def delivered_within(client: TasksClient, seconds: float) -> list[str]:
    endpoint = client._opened()
    calls = await endpoint._recovery.take_pending(seconds)
    return [text(await TaskHandle(endpoint, call).result()) for call in calls]


@requirement("law:15")
@pytest.mark.parametrize("key", [None, "first"])
async def test_an_outcome_that_was_passed_on_can_be_had_again_for_ten_minutes(
    key: str | None,
) -> None:
    world = World()
    async with world.client() as client:
        reference = await passed_on(client, world, idempotency_key=key)
    async with world.client() as client:
        assert await client.resume() == [], "not again and again"
        assert len(await client.records()) == 1
        assert text(await (await client.attach(reference)).result()) == "done"
        assert text(await (await client.attach(TASK)).result()) == "done"
        for _ in range(2):
            assert await delivered_within(client, 60) == ["done"]
        await world.clock.advance(61)
        assert await delivered_within(client, 60) == []
        assert await delivered_within(client, 600) == ["done"]
        await world.clock.advance(540)
        await world.call(client, within=10)
        await world.clock.advance(0)
        assert len(await client.records()) == (1 if key else 0)


async def test_how_long_it_can_be_had_again_is_the_journals_own_to_say() -> None:
    world = World()
    world.journal = MemoryJournal(keep_delivered_s=0)
    async with world.client() as client:
        await passed_on(client, world)
        assert await client.records() == []


async def test_an_outcome_in_hand_is_not_lost_to_a_journal_that_cannot_note_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.journal = ProbedJournal("deliver", error=OSError("no such disk"))
    async with world.client() as client:
        assert text(await world.call(client)) == "done"
    assert "may be given out once more" in caplog.text
    async with world.client() as client:
        (handle,) = await client.resume()
        assert text(await handle.result()) == "done"


async def test_a_journal_that_cannot_be_pruned_is_used_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    world = World(gets={TASK: [DONE]})
    world.journal = ProbedJournal("prune", error=JournalError("A page of an old record is damaged."))
    async with world.client() as client:
        assert text(await world.call(client)) == "done"
        assert "pruned later: A page" in caplog.text
        with pytest.raises(JournalError):
            await client.prune()


async def test_an_age_cannot_be_negative() -> None:
    async with World().client() as client:
        with pytest.raises(ValueError, match="cannot be negative"):
            await client.prune(-1)
