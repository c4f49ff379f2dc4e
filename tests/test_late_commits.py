"""What was found by stopping hosts everywhere: commits that come late, and those who wait for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import MemoryJournal, TasksClient
from mcp_tasks_client.old.errors import JournalError
from mcp_tasks_client.old.journal.base import Judge, Taken
from mcp_tasks_client.old.points import Point
from mcp_tasks_client.old.testing import (
    FaultPlan,
    HttpError,
    ManualClock,
    ScriptedServer,
    ask,
    complete,
    delay,
    form,
    raising,
    scripted_client,
    text_result,
    work,
)
from tests._crash_scenarios import _ASKS, SCENARIOS, Fate, Scenario, calls, calls_a_little_later, recover
from tests.test_crash_points import course, folder, led

__all__ = ["folder"]
pytestmark = pytest.mark.anyio
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.mark.parametrize("closes", [True, False])
async def test_a_follower_is_told_what_its_driver_delivered_between_two_looks(closes: bool) -> None:
    class Looked(MemoryJournal):
        looks = 0

        async def take(self, record_id: str, owner: str, gone: Judge) -> Taken | None:
            self.looks += 1
            return await super().take(record_id, owner, gone)

    clock, journal = ManualClock(), Looked()
    server = ScriptedServer(clock=clock)
    server.tool("slow", [work(20), complete(text_result("done"))], poll_interval_ms=7_000)
    told: list[str] = []

    async def calls_it(client: TasksClient) -> None:
        result = await client.call_tool("slow", idempotency_key="k")
        told.append(result.content[0].text)  # type: ignore[union-attr]  # it is text

    async def starts_it(client: TasksClient) -> None:
        result = await (await client.start_tool("slow", idempotency_key="k"))
        told.append(result.content[0].text)  # type: ignore[union-attr]  # it is text

    with anyio.fail_after(10):
        async with (
            scripted_client(server.session(), journal=journal) as follower,
            anyio.create_task_group() as tasks,
        ):
            async with scripted_client(server.session(), journal=journal) as driver:
                tasks.start_soon(calls_it, driver)
                await clock.advance(1)
                tasks.start_soon(calls_it, follower)
                tasks.start_soon(starts_it, follower)
                await clock.advance(25)
                if not closes:
                    await clock.advance(10)
            await clock.advance(10)
            assert told == ["done", "done", "done"]
            looks = journal.looks
            await clock.advance(60)
            assert journal.looks == looks


async def comes_back_after_the_lease(life):
    await life.sleep(32.0)
    await recover(life)


FOLLOW = Scenario(programs=(calls, calls_a_little_later), steps=_ASKS, answer_s=1.0)
STALL = replace(
    SCENARIOS["stands still for longer than its lease"], programs=(calls, comes_back_after_the_lease)
)


async def calls_and_stands_still(life):
    async def wake():
        await life.world.clock.wait(anyio.Event(), 36.0)
        life.clock.go_on()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls, life)
        await life.sleep(0.5)
        tasks.start_soon(wake)
        life.clock.suspend()


@ON_ASYNCIO
async def test_a_task_id_that_is_committed_late_is_no_impossible_event(
    folder: Path, anyio_backend: str
) -> None:
    scenario = replace(
        SCENARIOS["stands still for longer than its lease"],
        programs=(calls_and_stands_still, comes_back_after_the_lease),
        stands_still=None,
        steps=(work(50.0), complete(text_result("{}"))),
    )
    passed = []
    for number in range(20):
        fate = Fate("fails", number)
        found = await led(scenario, folder, fate, Fate())
        if fate.stopped_at and fate.stopped_at[1] is Point.TASK_CREATED:
            passed.append(fate.stopped_at)
            assert not [one for one in found if "Impossible" in one], found
    assert len(passed) == 2


@ON_ASYNCIO
@pytest.mark.parametrize("how", ["killed", "fails"])
@pytest.mark.parametrize(
    "scenario",
    [FOLLOW, replace(FOLLOW, mortal=1), STALL, replace(STALL, mortal=1)],
    ids=["followed", "following", "stalled", "taking over"],
)
async def test_following_to_the_end(scenario, how, folder: Path, anyio_backend: str) -> None:
    await every_number(scenario, how, folder)


async def every_number(scenario, how, folder):
    broken = {}
    for number, point in enumerate(await course(scenario, folder)):
        found = await led(scenario, folder, Fate(how, number), Fate())
        if found:
            broken[f"{number}, {' '.join(point)}"] = found
    assert not broken, "\n".join(f"{where}: {found}" for where, found in broken.items())


async def answer(context, params):
    return ElicitResult(action="accept", content={"n": 1})


@pytest.mark.parametrize("point", [Point.UPDATE_FAILED])
async def test_a_tick_that_waits_for_the_commit_of_a_silence_keeps_it(point: Point) -> None:
    clock, plan = ManualClock(), FaultPlan()
    server = ScriptedServer(clock=clock)
    server.tool("t", [ask("q", form("?", n="integer")), complete(text_result("done"))])
    server.misbehave("tasks/update", HttpError(503, retry_after_s=30.0))
    plan.at(point, "before", delay(clock, 1.5))  # a slow disk
    async with scripted_client(
        server.session(), journal=MemoryJournal(), probe=plan, elicitation=answer
    ) as client:
        handle = await client.start_tool("t")
        await clock.advance(60)
        await handle.result(timeout=5)
    server.witness.check()


async def test_an_answer_whose_commit_failed_once_is_sent_once() -> None:
    clock, plan = ManualClock(), FaultPlan()
    server = ScriptedServer(clock=clock)
    server.tool("t", [ask("q", form("?", n="integer")), complete(text_result("done"))])
    plan.at(Point.ANSWER_READY, "before", raising(JournalError("the disk is full")))
    async with scripted_client(
        server.session(), journal=MemoryJournal(), probe=plan, elicitation=answer
    ) as client:
        handle = await client.start_tool("t")
        await clock.advance(2)
        with pytest.raises(JournalError):
            await handle.result(timeout=5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle.result, 5)
            await clock.advance(5)
    assert len(server.witness.log("tasks/update")) == 1
