"""What could not be written at once is written later, and not over what has begun since."""

from __future__ import annotations

import gc
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import (
    JournalError,
    MemoryJournal,
    SessionError,
    TaskCancelledError,
    TaskHandle,
    TasksClient,
    TasksClientError,
)
from mcp_tasks_client.old.drive import Drive, OvertakenError
from mcp_tasks_client.old.errors import ConnectionLostError
from mcp_tasks_client.old.journal.base import Judge, Scope, Taken, TaskRecord
from mcp_tasks_client.old.owners import LEASE_S
from mcp_tasks_client.old.sessions.base import Leaving, ToolCall
from mcp_tasks_client.old.testing import (
    Delayed,
    FaultPlan,
    HttpError,
    ManualClock,
    Point,
    ScriptedServer,
    ask,
    ask_first,
    complete,
    form,
    raising,
    scripted_client,
    text_result,
    work,
)
from mcp_tasks_client.old.upkeep import Upkeep
from mcp_tasks_client.old.wire import CallReply

from ._requirements import requirement

pytestmark = pytest.mark.anyio

UNREACHABLE = ConnectionLostError("tools/list was refused", retryable=True, not_executed=True)


def full() -> JournalError:
    return JournalError("The disk is full. Make room and try again.")


class Troubled(MemoryJournal):
    """Does not take back intents, note deliveries, let go, or give away, while it is told not to."""

    removes = releases = wishes = True
    refused_notes = 0
    taking: anyio.Event | None = None
    noting: anyio.Event | None = None
    taking_all: anyio.Event | None = None
    claiming: anyio.Event | None = None

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    async def deliver(self, at: float, fences: Mapping[str, int]) -> None:
        if self.noting is not None:
            await self.noting.wait()
        if self.refused_notes:
            self.refused_notes -= 1
            raise RuntimeError("a bug in the plug-in")
        await super().deliver(at, fences)
        self.noted.append(len(fences))

    async def claim(self, record: TaskRecord) -> TaskRecord:
        standing = await super().claim(record)
        if self.claiming is not None:
            await self.claiming.wait()
        return standing

    async def remove(self, record: TaskRecord) -> None:
        if not self.removes:
            raise full()
        await super().remove(record)

    async def save(self, record: TaskRecord, *, known: bool = False) -> None:
        if not self.wishes and getattr(record.state, "cancel", "no") != "no":
            raise full()
        await super().save(record, known=known)

    async def take_pending(self, scope: Scope, owner: str, gone: Judge) -> list[Taken]:
        taken = await super().take_pending(scope, owner, gone)
        if self.taking_all is not None:
            await self.taking_all.wait()
        return taken

    async def take(self, record_id: str, owner: str, gone: Judge) -> Taken | None:
        taken = await super().take(record_id, owner, gone)
        if self.taking is not None and taken is not None and taken.record.owner == owner:
            await self.taking.wait()
        return taken


class World:
    """Clients that share a journal, at a server with one slow tool."""

    def __init__(self) -> None:
        self.clock, self.journal = ManualClock(), Troubled()
        self.server = ScriptedServer(clock=self.clock)
        self.server.tool("slow", [work(100), complete(text_result("done"))], poll_interval_ms=5000)
        self.results: list[str] = []

    def client(self, **options: Any) -> TasksClient:
        client = scripted_client(self.server.session(), journal=self.journal, **options)
        client._engine.lease_s = LEASE_S
        return client

    async def call(self, client: TasksClient) -> None:
        result = await client.call_tool("slow", idempotency_key="k")
        self.results.append(result.content[0].text)  # type: ignore[union-attr]  # it is text

    async def refused(self, client: TasksClient) -> Any:
        """Refuse a call before it leaves, and its intent cannot be taken back either; its handle."""
        send = replaced(client, unreachable)
        self.journal.removes = False
        with pytest.raises(JournalError) as caught:
            await client.call_tool("slow", idempotency_key="k")
        self.journal.removes = True
        replaced(client, send)
        return caught.value.handle

    def once(self) -> None:
        self.server.witness.check(at_most_once=True)


async def unreachable(call: ToolCall, leaving: Leaving) -> CallReply:
    await anyio.lowlevel.checkpoint()
    raise UNREACHABLE


async def unsent(call: ToolCall, leaving: Leaving) -> CallReply:
    await anyio.sleep_forever()
    raise AssertionError


def replaced(client: TasksClient, call: Callable[..., Any]) -> Callable[..., Any]:
    """Have calls made in another way; returns the one until now."""
    before = client._engine._session.call
    client._engine._session.call = call  # type: ignore[method-assign]  # as a server that comes and goes
    return before


@requirement("law:1", "law:2")
async def test_a_call_whose_intent_was_taken_back_later_is_not_made_without_one() -> None:
    world = World()
    async with world.client() as first, world.client() as second:
        handle = await world.refused(first)
        await world.clock.advance(LEASE_S)
        assert await second.records() == []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.call, second)
            await world.clock.advance(5)
            with pytest.raises(OvertakenError):
                await handle.result()
            await world.clock.advance(120)
    assert world.results == ["done"]
    world.once()


@requirement("law:2", "law:8")
@pytest.mark.parametrize("starts", [False, True])
async def test_a_call_that_is_taken_back_just_as_another_joins_it_is_made_by_the_other(starts: bool) -> None:
    world, gives_up = World(), anyio.CancelScope()
    async with world.client() as first, world.client() as second:
        replaced(first, unsent)
        take = second._engine.scheduler.driver.commits.take

        async def late(drive: Drive, *, again: bool = False) -> bool:
            gives_up.cancel()
            while any(record.record_id == drive.record.record_id for record in await second.records()):
                await anyio.lowlevel.checkpoint()
            return await take(drive, again=again)

        second._engine.scheduler.driver.commits.take = late  # type: ignore[method-assign]  # a slow journal

        async def call() -> None:
            with gives_up:
                await world.call(first)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            if starts:
                handle = await second.start_tool("slow", idempotency_key="k")
                tasks.start_soon(handle.result)
            else:
                tasks.start_soon(world.call, second)
            await world.clock.advance(120)
    assert gives_up.cancelled_caught
    assert world.results == ([] if starts else ["done"])
    world.once()


@requirement("law:1", "law:2")
async def test_the_intent_of_a_call_that_is_under_way_is_not_taken_back_for_an_earlier_refusal() -> None:
    world = World()
    replied = anyio.Event()
    async with world.client() as first, world.client() as second:
        await world.refused(first)

        async def slow(call: ToolCall, leaving: Leaving) -> CallReply:
            reply: CallReply = await send(call, leaving)
            await replied.wait()
            return reply

        send = replaced(first, slow)
        gives_up = anyio.CancelScope()

        async def call() -> None:
            with gives_up:
                await world.call(first)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await world.clock.advance(LEASE_S / 3 - 1)
            gives_up.cancel()  # it is left its grace, in which the upkeep has its turn
            await world.clock.advance(2)
            assert [record.status for record in await second.records()] == ["calling"]
            replied.set()
            tasks.start_soon(world.call, second)
            await world.clock.advance(200)
    assert world.results == ["done"]
    world.once()


async def test_a_refusal_that_was_never_journaled_is_forgotten_with_the_next_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    async with world.client() as first:
        await world.refused(first)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.call, first)
            await world.clock.advance(200)
        assert world.results == ["done"]
        assert "too late" not in caplog.text
        assert await first.resume() == []
        caplog.clear()
        await world.clock.advance(3600)
        assert not [line for line in caplog.records if line.levelno >= logging.INFO]
        assert first._engine.scheduler.afterwards.unsaved == []


async def test_deliveries_gather_for_a_moment_and_share_a_commit() -> None:
    world = World()
    async with world.client() as client:
        handles = [await client.start_tool("slow") for _ in range(5)]
        await world.clock.advance(200)
        for handle in handles:
            await handle.result()
        assert await client.resume() == [], "the host has them, though the journal does not know yet"
        assert world.journal.noted == []
        await world.clock.advance(0.02)
        assert world.journal.noted == [5]
        await handles[0].result()
        await world.clock.advance(0.02)
        assert world.journal.noted == [5], "once"


async def test_whoever_followed_does_not_note_the_delivery_for_the_owner() -> None:
    world = World()
    async with world.client() as owner, world.client() as follower:
        handle = await owner.start_tool("slow", idempotency_key="k")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.call, follower)
            await world.clock.advance(200)
        assert world.results == ["done"]
        (record,) = await follower.records()
        assert record.delivered_at is None
        await handle.result()
        (record,) = await owner.records()
        assert record.delivered_at is not None


async def test_records_say_what_was_delivered_a_moment_ago() -> None:
    world = World()
    async with world.client() as client:
        handle = await client.start_tool("slow")
        await world.clock.advance(200)
        await handle.result()
        (record,) = await client.records()
        assert record.delivered_at == world.clock.time()


async def test_what_is_taken_anew_while_its_delivery_is_being_noted_is_noted_all_the_same() -> None:
    world = World()
    async with world.client() as client:
        handle = await client.start_tool("slow")
        await world.clock.advance(200)
        await handle.result()
        world.journal.noting = anyio.Event()
        await world.clock.advance(0.02)
        # As the upkeep does after the lease had run out.
        assert await client._engine.scheduler.driver.commits.take(handle._drive, again=True)
        world.journal.noting.set()
        await world.clock.advance(0.02)
        (record,) = await client.records()
        assert record.fence > 0
        assert record.delivered_at is not None


async def test_a_delivery_that_could_not_be_noted_is_noted_later() -> None:
    world = World()
    world.journal.refused_notes = 1
    async with world.client() as client:
        handle = await client.start_tool("slow")
        await world.clock.advance(200)
        await handle.result()
        await world.clock.advance(1)
        assert world.journal.refused_notes == 0
        assert world.journal.noted == []
        assert await client.resume() == []
        await world.clock.advance(LEASE_S)
        assert world.journal.noted == [1]


@pytest.mark.parametrize("waited_s", [0, 0.01])
@pytest.mark.parametrize("failures", [0, 1, 2])
async def test_what_was_delivered_is_noted_at_once_when_the_client_closes(
    failures: int, waited_s: float
) -> None:
    world = World()
    with anyio.fail_after(10):
        async with world.client() as client:
            handle = await client.start_tool("slow")
            await world.clock.advance(200)
            world.journal.refused_notes = failures
            await handle.result()
            await world.clock.advance(failures or waited_s)
        assert len(world.journal.noted) == (failures < 2)
    async with world.client() as client:
        assert len(await client.resume()) == (failures == 2), "what was not noted is delivered again"


async def test_what_could_not_be_noted_just_before_the_client_closed_is_tried_once_more() -> None:
    world = World()
    world.journal.refused_notes = 1
    world.journal.noting = anyio.Event()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:

            async def live() -> None:
                async with world.client() as client:
                    handle = await client.start_tool("slow")
                    await world.clock.advance(200)
                    await handle.result()
                    await world.clock.advance(1)

            tasks.start_soon(live)
            await anyio.wait_all_tasks_blocked()
            world.journal.noting.set()
    assert world.journal.noted == [1]


async def test_what_is_noted_while_all_is_taken_up_is_not_handed_out_again() -> None:
    world = World()
    async with world.client() as client:
        handle = await client.start_tool("slow")
        await world.clock.advance(200)
        await handle.result()
        world.journal.taking_all = anyio.Event()
        resumed: list[Any] = [None]

        async def resume() -> None:
            resumed.extend(await client.resume())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resume)
            await world.clock.advance(1)
            assert world.journal.noted == [1]
            world.journal.taking_all.set()
        assert resumed == [None]


async def test_what_is_delivered_while_all_is_taken_up_is_not_handed_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    save, may_save = world.journal.save, anyio.Event()

    async def slow(record: TaskRecord, *, known: bool = False) -> None:
        await may_save.wait()
        await save(record, known=known)

    async with world.client() as client:
        for _ in range(2):
            await client.start_tool("slow")
            await world.clock.advance(100)
    async with world.client() as client:
        first, second = await client.resume()
        assert first.done
    async with world.client() as client:
        reference = first.reference
        monkeypatch.setattr(world.journal, "save", slow)
        resumed: list[Any] = []

        async def resume() -> None:
            resumed.extend(await client.resume())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resume)
            await world.clock.advance(0)
            assert resumed == []
            await (await client.attach(reference)).result()
            may_save.set()
        assert [handle.task_id for handle in resumed] == [second.task_id]


async def test_a_delivery_noted_just_when_its_drive_was_taken_anew_is_noted_again() -> None:
    world = World()
    async with world.client() as client:
        handle = await client.start_tool("slow")
        await world.clock.advance(200)
        await handle.result()
        world.journal.taking = anyio.Event()
        assert handle._drive is not None
        async with anyio.create_task_group() as tasks:
            scheduler = client._engine.scheduler
            tasks.start_soon(Upkeep(scheduler, world.clock)._take_again, handle._drive)
            await world.clock.advance(1)
            assert world.journal.noted == [1], "under the fence that was"
            world.journal.taking.set()
            await world.clock.advance(1)
        (record,) = await client.records()
        assert record.delivered_at is not None


async def test_a_delivery_noted_just_when_all_was_taken_anew_is_noted_again() -> None:
    world = World()
    async with world.client() as client:
        handle = await client.start_tool("slow")
        await world.clock.advance(200)
        await handle.result()
        await world.journal.release(client._engine.scheduler.driver.commits.owner)
        world.journal.taking_all = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.resume)
            await world.clock.advance(1)
            assert world.journal.noted == [1], "under the fence that was"
            world.journal.taking_all.set()
            await world.clock.advance(1)
        (record,) = await client.records()
        assert record.delivered_at is not None


async def test_a_delivery_of_what_was_found_in_the_journal_is_noted_though_all_is_taken_just_then() -> None:
    world = World()
    async with world.client() as first:
        await first.start_tool("slow", idempotency_key="k")
        await world.clock.advance(200)
    async with world.client() as second:
        await world.call(second)
        assert world.results == ["done"]
        world.journal.taking_all = anyio.Event()
        found: list[TaskHandle] = []

        async def resume() -> None:
            found.extend(await second.resume())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resume)
            await world.clock.advance(1)
            assert world.journal.noted == [1], "under the fence that was"
            world.journal.taking_all.set()
            await world.clock.advance(1)
        assert found == []
        (record,) = await second.records()
        assert record.delivered_at is not None


async def test_an_intent_that_could_not_be_taken_back_is_taken_back_later() -> None:
    world = World()
    async with world.client() as first, world.client() as second:
        world.journal.claiming = anyio.Event()
        world.journal.removes = False
        gives_up = anyio.CancelScope()

        async def call() -> None:
            with gives_up:
                await first.call_tool("slow", idempotency_key="k")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await world.clock.advance(1)
            gives_up.cancel()
        world.journal.claiming.set()
        await world.clock.advance(1)
        world.journal.claiming, world.journal.removes = None, True
        assert [record.status for record in await second.records()] == ["calling"]
        assert await first.resume() == [], "a call that was never sent is not sent for having been resumed"
        await world.clock.advance(LEASE_S)
        assert await second.records() == []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.call, second)
            await world.clock.advance(200)
    assert world.results == ["done"]
    world.once()


async def ada(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


def full_when(late: anyio.Event) -> Callable[[], Awaitable[None]]:
    """What fails a commit as a full disk does, but not at once."""

    async def fails() -> None:
        await late.wait()
        raise full()

    return fails


@requirement("law:2", "law:5")
async def test_a_round_that_could_not_be_begun_has_an_owner_when_it_is_begun_after_all() -> None:
    world, plan = World(), FaultPlan()
    world.server.tool(
        "slow", [ask_first("who", form("Who?", name="string")), work(5), complete(text_result("done"))]
    )
    plan.at(Point.CALL_BEGUN, "before", raising(full()))
    async with (
        world.client(probe=plan, elicitation=ada) as first,
        world.client() as second,
        anyio.create_task_group() as tasks,
    ):
        with pytest.raises(JournalError):
            await first.call_tool("slow", idempotency_key="k")
        await world.clock.advance(1)
        world.server.misbehave("tools/call", Delayed(10))
        tasks.start_soon(world.call, first)
        await world.clock.advance(1)
        tasks.start_soon(world.call, second)
        await world.clock.advance(60)
    assert world.results == ["done", "done"]
    world.once()


@requirement("law:3", "law:5")
async def test_an_answer_that_could_not_be_journaled_is_not_let_go_of_when_its_caller_goes() -> None:
    world, plan, fails = World(), FaultPlan(), anyio.Event()
    world.server.tool("slow", [ask("who", form("Who?", name="string")), complete(text_result("done"))])
    asked: list[str] = []
    gives_up = anyio.CancelScope()

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(context.key)
        return await ada(context, params)

    async def call(client: TasksClient) -> None:
        with gives_up:
            await world.call(client)

    plan.at(Point.ANSWER_READY, "before", full_when(fails))
    async with (
        world.client(probe=plan, elicitation=answer) as first,
        world.client(elicitation=answer) as second,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(call, first)
        await world.clock.advance(6)
        gives_up.cancel()
        await world.clock.advance(0)
        fails.set()
        await world.clock.advance(0)
        tasks.start_soon(world.call, second)
        await world.clock.advance(60)
    assert world.results == ["done"]
    assert asked == ["who"]


@requirement("law:2")
@pytest.mark.parametrize("key", ["k", None])
async def test_a_task_id_that_comes_after_the_close_is_journaled_at_the_second_try(key: str | None) -> None:
    world, plan, ends, replied = World(), FaultPlan(), anyio.Event(), anyio.Event()
    plan.at(Point.TASK_CREATED, "before", raising(full()))
    client = world.client(probe=plan)

    async def slow(call: ToolCall, leaving: Leaving) -> CallReply:
        reply: CallReply = await send(call, leaving)
        await replied.wait()
        return reply

    send = replaced(client, slow)

    async def host() -> None:
        async with client, anyio.create_task_group() as callers:
            callers.start_soon(partial(client.call_tool, "slow", idempotency_key=key))
            await ends.wait()
            callers.cancel_scope.cancel()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host)
            await world.clock.advance(1)
            ends.set()
            await world.clock.advance(0)
            replied.set()
        async with world.client() as later:
            (handle,) = await later.resume()
            assert handle.task_id is not None


@requirement("law:3")
async def test_an_answer_that_comes_with_the_close_is_journaled_at_the_second_try() -> None:
    world, plan, ends, fails = World(), FaultPlan(), anyio.Event(), anyio.Event()
    world.server.tool("slow", [ask("who", form("Who?", name="string")), complete(text_result("done"))])
    plan.at(Point.ANSWER_READY, "before", full_when(fails))

    async def host() -> None:
        async with world.client(probe=plan, elicitation=ada) as first:
            await first.start_tool("slow", idempotency_key="k")
            await ends.wait()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host)
            await world.clock.advance(6)
            ends.set()
            await world.clock.advance(0)
            fails.set()
        async with world.client() as second, anyio.create_task_group() as tasks:  # which cannot answer
            tasks.start_soon(world.call, second)
            await world.clock.advance(60)
    assert world.results == ["done"]


@requirement("law:2")
async def test_a_call_that_had_not_left_when_its_client_closed_is_taken_back_at_the_second_try() -> None:
    world, plan = World(), FaultPlan()
    plan.at(Point.CALL_REFUSED, "before", raising(full()))

    async def call() -> None:
        with pytest.raises(TasksClientError):  # that it was closed, or that the disk is full
            await first.call_tool("slow", idempotency_key="k")

    async def never_leaves(call: ToolCall, leaving: Leaving) -> CallReply:
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks, world.client(probe=plan) as first:
            replaced(first, never_leaves)
            tasks.start_soon(call)
            await world.clock.advance(1)
        async with world.client() as second:
            assert await second.records() == []


@requirement("law:5")
async def test_a_cancel_that_could_not_be_journaled_keeps_nobody_from_going_on() -> None:
    world = World()
    async with world.client() as first, world.client() as second:
        handle = await first.start_tool("slow", idempotency_key="k")
        assert handle._drive is not None
        first._engine.scheduler._let_go(handle._drive)  # as when it is parked
        await world.clock.advance(LEASE_S)
        world.journal.wishes = False
        with suppress(JournalError):
            await handle.cancel()
        del handle
        gc.collect()
        world.journal.wishes = True
        await world.clock.advance(LEASE_S)
        assert [record.owner for record in await second.records()] == [None]


@requirement("law:1")
@pytest.mark.parametrize("failures", [1, 2])
async def test_a_task_that_could_not_be_journaled_at_first_is_cancelled_or_an_error_says_that_it_is_not(
    failures: int,
) -> None:
    world, plan = World(), FaultPlan()
    for nth in range(1, failures + 1):
        plan.at(Point.TASK_CREATED, "before", raising(full()), nth=nth)
    async with world.client(probe=plan) as client:
        with pytest.raises(JournalError) as caught:
            await client.call_tool("slow", idempotency_key="k")
        handle = caught.value.handle
        assert handle is not None
        with pytest.raises(JournalError) if failures > 1 else nullcontext():
            await handle.cancel()
        assert len(world.server.witness.log("tasks/cancel")) == (0 if failures > 1 else 1)


@requirement("law:1", "law:2")
async def test_cancelling_a_call_that_was_refused_takes_nothing_back_of_its_next_attempt() -> None:
    world = World()
    async with (
        world.client() as first,
        world.client() as second,
        anyio.create_task_group() as tasks,
    ):
        handle = await world.refused(first)
        await handle.cancel()
        world.server.misbehave("tools/call", Delayed(10))
        tasks.start_soon(handle.result)
        await world.clock.advance(1)
        assert [record.status for record in await second.records()] == ["calling"]
        await world.clock.advance(200)
    assert handle.done


@requirement("law:4")
@pytest.mark.parametrize(
    ("method", "point"), [("tasks/get", Point.POLL_FAILED), ("tasks/cancel", Point.CANCEL_FAILED)]
)
async def test_a_silence_that_could_not_be_journaled_is_kept_by_who_cancels(
    method: str, point: Point
) -> None:
    world, plan = World(), FaultPlan()
    world.server.misbehave(method, HttpError(503, retry_after_s=600))
    plan.at(point, "before", raising(full()))
    async with world.client(probe=plan) as client:
        handle = await client.start_tool("slow", idempotency_key="k")
        await world.clock.advance(7)
        if method == "tasks/cancel":
            with pytest.raises(JournalError):
                await handle.cancel()
        sent = len(world.server.witness.log("tasks/cancel"))
        with pytest.raises(SessionError, match="left alone"):
            await handle.cancel()
        assert len(world.server.witness.log("tasks/cancel")) == sent


@requirement("law:4")
async def test_a_silence_that_could_not_be_journaled_does_not_cut_a_later_one_short() -> None:
    world, plan = World(), FaultPlan()
    for silence_s in (3, 60):
        world.server.misbehave("tasks/cancel", HttpError(503, retry_after_s=silence_s))
    plan.at(Point.CANCEL_FAILED, "before", raising(full()))
    client = world.client(probe=plan)
    client._engine.jitter = lambda: 0.0
    async with client, anyio.create_task_group() as tasks:
        handle = await client.start_tool("slow", idempotency_key="k")
        await world.clock.advance(6)
        for error in (JournalError, SessionError):
            await world.clock.advance(5)  # before the upkeep has its turn
            with pytest.raises(error):
                await handle.cancel()
        with pytest.raises(JournalError):
            await handle.result()  # of the first time, when nobody was told
        tasks.start_soon(is_cancelled, handle)
        await world.clock.advance(100)
    world.once()


async def is_cancelled(handle: TaskHandle) -> None:
    with pytest.raises(TaskCancelledError):
        await handle.result()


@requirement("law:5")
async def test_who_takes_over_for_a_caller_that_has_just_gone_lets_go_again() -> None:
    world = World()
    gives_up = {client: anyio.CancelScope() for client in ("first", "second")}

    async def call(client: TasksClient, name: str) -> None:
        with gives_up[name]:
            await world.call(client)

    async with (
        world.client() as first,
        world.client() as second,
        world.client() as third,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(call, first, "first")
        await world.clock.advance(2)
        tasks.start_soon(call, second, "second")
        await world.clock.advance(20)
        world.journal.taking = anyio.Event()
        gives_up["first"].cancel()
        await world.clock.advance(6)
        gives_up["second"].cancel()  # which is about to take it
        await world.clock.advance(1)
        world.journal.taking.set()
        world.journal.taking = None
        await world.clock.advance(1)
        gc.collect()  # of the second one nobody holds anything
        await world.clock.advance(LEASE_S)
        assert [record.owner for record in await third.records()] == [None]
        tasks.start_soon(world.call, third)
        await world.clock.advance(200)
    assert world.results == ["done"]


async def test_time_stands_still_while_something_real_is_waited_for() -> None:
    clock, done = ManualClock(), anyio.Event()
    ended_at: list[float] = []

    async def on_the_disk() -> None:
        with clock.busy():
            await done.wait()
            ended_at.append(clock.monotonic())

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on_the_disk)
            tasks.start_soon(clock.advance, 10.0)
            await anyio.wait_all_tasks_blocked()
            assert clock.monotonic() == 0.0
            done.set()
    assert (ended_at, clock.monotonic()) == ([0.0], 10.0)
