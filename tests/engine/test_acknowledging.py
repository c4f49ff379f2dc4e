"""Outcomes that the host says it has: acknowledged, or read in a block that it left without an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import JournalError, TaskFailedError, TasksClientError, WaitTimeoutError
from mcp_tasks_client.handle import TaskHandle
from mcp_tasks_client.inbox import Inbox
from mcp_tasks_client.journal.row import driven_elsewhere
from mcp_tasks_client.journal.sqlite.journal import SqliteJournal
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.testing import FaultPlan, ManualClock, failed, raising, scripted_client, working
from tests._results import text
from tests.engine.other_process import OnDisk
from tests.engine.world import DONE, NO_JITTER, TASK, World
from tests.scripted_session import ScriptedSession

pytestmark = pytest.mark.anyio

KEY = "order-42"
AT_WORK = working(TASK, poll_interval_ms=1000)


async def finished(world: World, client: TasksClient, key: str | None = KEY) -> TaskHandle:
    """A handle of a call that has ended, and whose outcome nobody has had."""
    handle = await client.start_tool("tool", idempotency_key=key)
    await world.clock.advance(10)
    assert handle.done
    return handle


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    world = World()
    if request.param == "sqlite":
        world.journal = OnDisk(tmp_path / "journal.sqlite3", world.clock)  # type: ignore[assignment]
    return world


# ── acknowledge ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["handle", "client, by handle", "client, by record"])
@pytest.mark.parametrize("key", [KEY, None])
async def test_what_is_acknowledged_counts_as_delivered(world: World, key: str | None, way: str) -> None:
    async with world.client() as client:
        handle = await finished(world, client, key)
        (record,) = await client.records()
        for _ in range(2):  # may be said again
            if way == "handle":
                await handle.acknowledge()
            else:
                await client.acknowledge(handle if way == "client, by handle" else record)
        assert [record.delivered_at is not None for record in await client.records()] == (
            [True] if key else []
        )
        assert text(await handle) == "done"
        del handle
        assert await client.resume() == []
    async with world.client() as client:
        assert await client.resume() == []
        if key:
            assert text(await client.call_tool("tool", idempotency_key=key)) == "done"
    assert len(world.server.log("tools/call")) == 1


@pytest.mark.parametrize("way", ["handle", "client, by handle", "client, by record"])
async def test_what_may_be_lost_on_its_way_can_be_had_again_for_a_while(world: World, way: str) -> None:
    async with world.client() as client:
        handle = await finished(world, client, None)
        (record,) = await client.records()
        for _ in range(2):  # may be said again
            if way == "handle":
                await handle.acknowledge(keep=True)
            else:
                await client.acknowledge(handle if way == "client, by handle" else record, keep=True)
        reference = handle.reference
        del handle
        assert await client.resume() == []
    async with world.client() as client:
        assert await client.resume() == []
        (again,) = await client.resume(delivered_within_s=60)
        assert again.reference == reference
        assert text(await (await client.attach(reference)).result()) == "done"
        del again
        await world.clock.advance(world.journal.keep_delivered_s - 1)
        await client.prune()
        assert len(await client.records()) == 1
        await world.clock.advance(2)
        await client.prune()
        assert await client.records() == []


async def test_a_journal_that_keeps_nothing_forgets_what_may_be_lost_as_well() -> None:
    world = World()
    world.journal = MemoryJournal(keep_delivered_s=0)
    async with world.client() as client:
        handle = await finished(world, client, None)
        await handle.acknowledge(keep=True)
        assert await client.records() == []


@pytest.mark.parametrize("key", [KEY, None])
async def test_an_acknowledgement_is_on_the_disk_when_it_returns(tmp_path: Path, key: str | None) -> None:
    clock, path = ManualClock(), tmp_path / "journal.sqlite3"
    session = ScriptedSession(clock=clock, calls=[AT_WORK], gets={TASK: [DONE]})
    copy = tmp_path / "copy.sqlite3"
    with anyio.fail_after(20):
        async with scripted_client(session, journal=OnDisk(path, clock), poll=NO_JITTER) as client:
            handle = await client.start_tool("tool", idempotency_key=key)
            await clock.advance(10)
            await handle.acknowledge(keep=True)
            for suffix in ("", "-wal"):  # what a machine would find that lost its power here
                Path(f"{copy}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
        async with SqliteJournal(copy) as journal:
            (record,) = await journal.records(Scope("scripted"))
    assert record.delivered_at is not None


async def test_what_has_not_ended_cannot_be_acknowledged(world: World) -> None:
    world.server.gets[TASK] = [AT_WORK]
    async with world.client() as client:
        handle = await client.start_tool("tool", idempotency_key=KEY)
        (record,) = await client.records()
        for acknowledge in (handle.acknowledge, lambda: client.acknowledge(record)):
            with pytest.raises(TasksClientError, match="has not ended") as caught:
                await acknowledge()
            assert caught.value.handle is not None
            assert caught.value.handle.task_id == TASK
        world.server.gets[TASK] = [DONE]
        await world.clock.advance(10)
        await client.acknowledge(record)  # an old record of what has ended since
        assert handle.done
    async with world.client() as client:
        assert await client.resume() == []


async def test_what_belongs_to_another_user_cannot_be_acknowledged(world: World) -> None:
    async with world.client() as client:
        handle = await finished(world, client)
        (record,) = await client.records()
        async with world.client(principal="somebody else") as other:
            for theirs in (record, handle):
                with pytest.raises(ValueError, match="principal ''"):
                    await other.acknowledge(theirs)
            with pytest.raises(TypeError, match="not str"):
                await other.acknowledge("order-42")  # type: ignore[arg-type]
        assert (await client.records())[0].delivered_at is None


async def test_a_call_that_is_not_in_the_journal_can_be_acknowledged_once_it_has_ended() -> None:
    world = World(calls=[{"resultType": "complete", "content": [{"type": "text", "text": "at once"}]}])
    async with world.client() as client:
        handle = await client.start_tool("tool")
        await handle.acknowledge()
        await client.acknowledge(handle)
        assert text(await handle) == "at once"
        assert await client.records() == []


@pytest.mark.parametrize("way", ["handle", "client", "inbox"])
@pytest.mark.parametrize("key", [KEY, None])
async def test_what_the_journal_does_not_show_is_acknowledged_only_where_that_forgets_it(
    world: World, key: str | None, way: str
) -> None:
    """A record that was removed, or that row-level security hides: a keyed one would have stayed."""
    async with world.client() as client, Inbox(world.journal) as inbox:
        handle = await finished(world, client, key)
        (record,) = await client.records()
        acknowledge = {
            "handle": handle.acknowledge,
            "client": lambda: client.acknowledge(record),
            "inbox": lambda: inbox.acknowledge(record),
        }[way]
        await world.journal.remove(record)
        if key is None:
            await acknowledge()
            return
        with pytest.raises(JournalError, match=r"does not show the call of 'tool'.*Nothing was noted"):
            await acknowledge()


@pytest.mark.parametrize("key", [KEY, None])
async def test_a_journal_that_shows_a_call_and_does_not_let_it_be_written_is_told_of(key: str | None) -> None:
    """As where row-level security lets a user read, and not write."""

    class ReadOnly(MemoryJournal):
        is_open_to_writes = True

        async def save(self, record: TaskRecord, **options: Any) -> None:
            if not self.is_open_to_writes:
                raise driven_elsewhere(record.tool)
            await super().save(record, **options)

        async def remove(self, record: TaskRecord) -> None:
            if self.is_open_to_writes:
                await super().remove(record)

    world = World()
    world.journal = journal = ReadOnly()
    async with world.client() as client, Inbox(journal) as inbox:
        await finished(world, client, key)
        (record,) = await inbox.records()
        journal.is_open_to_writes = False
        with anyio.fail_after(30), pytest.raises(JournalError, match=r"may write\. Nothing was noted"):
            await inbox.acknowledge(record)
        journal.is_open_to_writes = True


@pytest.mark.parametrize("key", [KEY, None])
async def test_the_outcome_of_another_living_client_can_be_acknowledged(
    world: World, key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.client() as first, world.client() as second:
        handle = await finished(world, first, key)
        (record,) = await second.records()
        await second.acknowledge(record)
        for client in (first, second):
            assert [one.delivered_at is not None for one in await client.records()] == ([True] if key else [])
        assert text(await handle.result()) == "done"
        await handle.acknowledge()
        del handle
        assert await first.resume() == []
    async with world.client() as third:
        assert await third.resume() == []
    assert "DrivenElsewhere" not in caplog.text


async def test_what_changes_hands_just_then_is_acknowledged_all_the_same(world: World) -> None:
    plan = FaultPlan()

    async def take_it() -> None:
        taken = await world.journal.take(record.record_id, "another/1", set(await world.journal.owners()))
        assert taken is not None
        assert taken.record.owner == "another/1"

    plan.at("commit: acknowledge", "before", take_it)
    async with world.client(observer=plan) as client:
        handle = await finished(world, client)
        (record,) = await client.records()
        await handle.acknowledge()
        (record,) = await client.records()
        assert record.delivered_at is not None
        assert record.owner is None


async def test_an_acknowledgement_that_cannot_be_written_says_so_and_can_be_said_again(world: World) -> None:
    plan = FaultPlan()
    plan.at("commit: acknowledge", "before", raising(JournalError("The disk is full.")))
    async with world.client(observer=plan) as client:
        handle = await finished(world, client)
        with pytest.raises(JournalError, match="full"):
            await handle.acknowledge()
        assert (await client.records())[0].delivered_at is None
        await handle.acknowledge()
        assert (await client.records())[0].delivered_at is not None


async def test_a_client_that_is_closed_acknowledges_nothing(world: World) -> None:
    async with world.client() as client:
        handle = await finished(world, client)
    with pytest.raises(TasksClientError, match="closed"):
        await handle.acknowledge()
    async with world.client() as client:
        (handle,) = await client.resume()
        assert text(await handle) == "done"


# ── outcome ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", [KEY, None])
async def test_an_outcome_is_delivered_when_its_block_is_left(world: World, key: str | None) -> None:
    async with world.client() as client:
        handle = await client.start_tool("tool", idempotency_key=key)

        async def use() -> None:
            async with handle.outcome() as result:
                assert text(result) == "done"
                (record,) = await client.records()
                assert record.delivered_at is None
            assert [one.delivered_at is not None for one in await client.records()] == ([True] if key else [])

        await world.during(use, 60)
        assert text(await handle) == "done"
    async with world.client() as client:
        assert await client.resume() == []


class RefusedError(Exception):
    """The host's own database is full."""


@pytest.mark.parametrize("left_by", ["an error", "a cancellation"])
@pytest.mark.parametrize("again", ["resumed", "by another", "resumed by the next", "called under its key"])
async def test_an_outcome_whose_block_was_left_otherwise_comes_again(
    world: World, left_by: str, again: str
) -> None:
    async with world.client() as client:
        handle = await finished(world, client)
        if left_by == "an error":
            with pytest.raises(RefusedError):
                async with handle.outcome():
                    raise RefusedError
        else:
            with anyio.move_on_after(0) as scope:
                async with handle.outcome():
                    scope.cancel()
                    await anyio.sleep_forever()
            assert scope.cancelled_caught
        (record,) = await client.records()
        assert record.delivered_at is None
        if again == "resumed":
            (resumed,) = await client.resume()
            assert text(await resumed) == "done"
        elif again == "by another":
            async with world.client() as other:
                (theirs,) = await other.resume()
                async with theirs.outcome() as result:
                    assert text(result) == "done"
            assert text(await handle) == "done"
        elif again == "called under its key":
            assert text(await client.call_tool("tool", idempotency_key=KEY)) == "done"
    async with world.client() as client:
        assert len(await client.resume()) == (1 if again == "resumed by the next" else 0)


async def test_an_outcome_that_one_of_two_handles_has_not_got_stays_with_the_other(world: World) -> None:
    async with world.client() as client:
        handle = await finished(world, client)
        other = await client.start_tool("tool", idempotency_key=KEY)
        with pytest.raises(RefusedError):
            async with handle.outcome():
                raise RefusedError
        async with world.client() as another:
            assert await another.resume() == []
        async with other.outcome() as result:
            assert text(result) == "done"
        (record,) = await client.records()
        assert record.delivered_at is not None


async def test_an_end_that_is_an_error_is_raised_before_the_block_and_counts_as_delivered(
    world: World,
) -> None:
    world.server.gets[TASK] = [failed(TASK, -32050, "quota")]
    async with world.client() as client:
        handle = await finished(world, client)
        with pytest.raises(TaskFailedError):
            async with handle.outcome():
                raise AssertionError("there is no result")
        (record,) = await client.records()
        assert record.delivered_at is not None


async def test_a_block_is_not_entered_if_the_time_is_over_before(world: World) -> None:
    world.server.gets[TASK] = [AT_WORK]
    async with world.client() as client:
        handle = await client.start_tool("tool")
        with pytest.raises(WaitTimeoutError):
            async with handle.outcome(0.01):
                raise AssertionError("there is no result")
        world.server.gets[TASK] = [DONE]

        async def use() -> None:
            async with handle.outcome(timeout=None) as result:
                assert text(result) == "done"

        await world.during(use, 60)


async def test_an_outcome_comes_again_if_its_client_was_closed_within_the_block(world: World) -> None:
    async with world.client() as client:
        handle = await finished(world, client)
        block = handle.outcome()
        assert text(await block.__aenter__()) == "done"
    with pytest.raises(TasksClientError, match="closed"):
        await block.__aexit__(None, None, None)
    async with world.client() as client:
        (handle,) = await client.resume()
        assert text(await handle) == "done"
