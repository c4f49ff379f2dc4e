"""How long calls take, as clients note and say it: at both versions, over takeovers, for each principal."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
import httpx
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import (
    BlockingInbox,
    BlockingTasksClient,
    Estimate,
    Inbox,
    Journal,
    MemoryJournal,
    TasksClient,
    TasksClientError,
)
from mcp_tasks_client.engine.environment import Environment
from mcp_tasks_client.testing import (
    ManualClock,
    ScriptedServer,
    Step,
    abort,
    ask,
    complete,
    fail,
    form,
    hint,
    scripted_client,
    text_result,
    work,
)
from tests.kit.older_server import OlderServer, question
from tests.real_server import RealServer

pytestmark = pytest.mark.anyio

DONE: Final = complete(text_result("done"))
WHO: Final = ask("name", form("Who?", name="string"))
ADA: Final = ElicitResult(action="accept", content={"name": "Ada"})


class World:
    """A server that polls are allowed at once a minute, and a journal that outlives clients."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = ScriptedServer(clock=self.clock)
        self.journal: Journal = MemoryJournal()

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[TasksClient]:
        with anyio.fail_after(30):
            async with scripted_client(
                self.server.session(), journal=self.journal, jitter=lambda: 0.0, **options
            ) as client:
                yield client

    def tool(self, *steps: Step, name: str = "build") -> None:
        """Have calls take these steps from now on."""
        self.server.tool(name, [hint(poll_interval_ms=60_000), *steps])

    async def run(self, client: TasksClient, *steps: Step, tool: str = "build") -> None:
        """Call a tool, and let an hour pass."""
        self.tool(*steps, name=tool)
        handle = await client.start_tool(tool)
        await self.clock.advance(3600.0)
        try:
            await handle.result()
        except TasksClientError:
            assert handle.done

    async def durations(self, **options: Any) -> tuple[float, ...]:
        """In the order of their length."""
        async with self.client(**options) as client:
            return tuple((await client.estimate("build")).durations)


async def answer_late(world: World, seconds: float) -> ElicitResult:
    """Like a person who is away."""
    await world.clock.sleep(seconds)
    return ADA


# ── what is noted ─────────────────────────────────────────────────────────────────────────────


async def test_the_time_at_the_server_counts_and_no_wait_between_polls() -> None:
    world = World()
    async with world.client() as client:
        for seconds in (7.0, 65.0, 30.0):
            await world.run(client, work(seconds), DONE)
    assert await world.durations() == (7.0, 30.0, 65.0)


async def test_the_time_in_which_no_client_ran_does_not_count() -> None:
    world = World()
    world.tool(work(90.0), DONE)
    async with world.client() as client:
        await client.start_tool("build")
        await world.clock.advance(10.0)
    await world.clock.advance(5000.0)
    async with world.client() as client:
        (handle,) = await client.resume()
        await world.clock.advance(100.0)
        assert handle.done
    assert await world.durations() == (90.0,)


async def test_the_time_in_which_somebody_is_asked_does_not_count() -> None:
    world = World()

    async def elicit(context: Any, params: Any) -> ElicitResult:
        return await answer_late(world, 600.0)

    async with world.client(elicitation=elicit) as client:
        await world.run(client, work(30.0), WHO, work(20.0), DONE)
    (took_s,) = await world.durations()
    assert took_s == pytest.approx(50.0, abs=0.2)  # the server takes a moment over the answer


async def test_it_does_not_count_if_another_client_asked_and_another_one_goes_on() -> None:
    """The server has asked while no client ran, which was long before anybody was asked."""
    world = World()
    world.tool(work(30.0), WHO, work(20.0), DONE)
    async with world.client(elicitation="later") as client:
        await client.start_tool("build")
        await world.clock.advance(10.0)
    await world.clock.advance(2000.0)
    async with world.client(elicitation="later") as client:
        (handle,) = await client.resume()
        await world.clock.advance(100.0)
        (asked,) = await client.questions()
    await world.clock.advance(2000.0)
    async with world.client(elicitation="later") as client:
        await client.answer(asked.question_id, ADA)
        (handle,) = await client.resume()
        await world.clock.advance(1000.0)
        assert handle.done
    (took_s,) = await world.durations()
    assert took_s == pytest.approx(50.0, abs=0.2)


@pytest.mark.parametrize(
    "end",
    [fail(1, "no"), abort(), complete(text_result("no", is_error=True))],
    ids=["failed", "cancelled", "an error of the tool"],
)
async def test_no_other_end_counts(end: Step) -> None:
    world = World()
    async with world.client() as client:
        await world.run(client, work(30.0), end)
    assert await world.durations() == ()


async def test_a_call_counts_for_its_own_tool_and_principal() -> None:
    world = World()
    async with world.client(principal="ada") as client:
        await world.run(client, work(30.0), DONE)
        await world.run(client, work(40.0), DONE, tool="deploy")
        assert (await client.estimate("deploy")).durations == (40.0,)
    assert await world.durations(principal="ada") == (30.0,)
    assert await world.durations(principal="bob") == ()
    assert await world.durations() == ()


async def test_a_tool_that_got_slower_is_followed_within_fifty_calls() -> None:
    world = World()
    async with world.client() as client:
        for _ in range(60):
            await world.run(client, work(10.0), DONE)
        for number in range(50):
            await world.run(client, work(100.0), DONE)
            if number == 25:
                assert (await client.estimate("build")).half_s == 100.0
        estimate = await client.estimate("build")
    assert set(estimate.durations) == {100.0}
    assert str(estimate) == "half within 2 min, 9 of 10 within 2 (50 calls)"


# ── at 2025-11-25 ─────────────────────────────────────────────────────────────────────────────


PAUSE_S: Final = 0.25


class Older(OlderServer):
    """A server whose task is a hundred seconds old when it is created, as after a wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.made = datetime.now(UTC) - timedelta(seconds=100)
        self.stands("working")

    def stands(self, status: str) -> None:
        times = {"createdAt": self.made.isoformat(), "lastUpdatedAt": datetime.now(UTC).isoformat()}
        self.task = {**self.task, "status": status, **times}


@pytest.mark.parametrize("told_by", ["a poll", "tasks/result"])
async def test_at_the_older_version_the_time_in_which_somebody_is_asked_does_not_count_either(
    told_by: str,
) -> None:
    """An end that comes with the result itself has no time of the server's."""
    began, wire = time.monotonic(), Older()

    async def elicit(context: Any, params: Any) -> ElicitResult:
        await anyio.sleep(PAUSE_S)
        return ADA

    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(wire)) as http,
        TasksClient(
            "http://server.example/mcp",
            http_client=http,
            protocol="2025-11-25",
            journal=MemoryJournal(),
            elicitation=elicit,
        ) as client,
    ):
        with anyio.fail_after(20):
            handle = await client.start_tool("slow")
            await wire.wait_for("tasks/get")
            wire.stands("input_required")
            stream = await wire.wait_for_result()
            stream.event(question("q-1"))
            await wire.wait_for("answer")
            if told_by == "a poll":
                wire.stands("completed")
            else:
                stream.reply(wire.result)
            await handle.result()
            lasted_s = time.monotonic() - began
            (took_s,) = (await client.estimate("slow")).durations
    before_s = 100.0 if told_by == "a poll" else 0.0
    assert before_s <= took_s <= before_s + lasted_s - PAUSE_S


# ── what is said ──────────────────────────────────────────────────────────────────────────────


async def known(world: World, *seconds: float) -> None:
    async with world.client() as client:
        for one in seconds:
            await world.run(client, work(one), DONE)


async def test_a_call_that_runs_is_compared_with_those_that_lasted_as_long() -> None:
    world = World()
    await known(world, 5.0, 6.0, *[300.0] * 6)
    world.tool(work(1000.0), DONE)
    environment = Environment(clock=world.clock)
    async with world.client() as client, Inbox(world.journal, environment=environment) as inbox:
        handle = await client.start_tool("build")
        await world.clock.advance(30.0)
        (record,) = await inbox.records()
        assert record.ran_s(world.clock.time()) == pytest.approx(30.0)
        for estimate in (await handle.estimate(), await inbox.estimate(record)):
            assert (estimate.calls, estimate.shorter) == (6, 2)
            assert estimate.half_s == pytest.approx(270.0)
            assert str(estimate) == "30s · half within 5 min, 9 of 10 within 5 (6 calls)"
        await world.clock.advance(300.0)
        assert str(await handle.estimate()) == "5m30s · longer than 8 of 8"


async def test_of_fewer_than_five_calls_and_of_a_task_without_a_tool_nothing_is_said() -> None:
    world = World()
    await known(world, 5.0, 6.0, 7.0, 8.0)
    async with world.client() as client:
        assert str(await client.estimate("build")) == ""
    await known(world, 9.0)
    world.tool(work(1000.0), DONE)
    async with world.client() as client:
        assert str(await client.estimate("build")) == "half within 10 s, 9 of 10 within 10 (5 calls)"
        handle = await client.start_tool("build")
        task_id = handle.task_id
        assert task_id is not None
    world.journal = MemoryJournal()
    async with world.client() as client:
        attached = await client.attach(task_id)
        assert str(await attached.estimate()) == ""


async def test_an_inbox_says_nothing_of_a_call_that_it_does_not_show() -> None:
    world = World()
    world.tool(work(1000.0), DONE)
    async with world.client(principal="ada") as client, Inbox(world.journal, principal="bob") as inbox:
        await client.start_tool("build")
        (record,) = await client.records()
        with pytest.raises(ValueError, match="for other calls"):
            await inbox.estimate(record)


class Forgetful(MemoryJournal):
    """A journal of a user's own that keeps no durations."""

    durations = Journal.durations


async def test_a_client_goes_on_without_estimates_where_the_journal_keeps_none() -> None:
    world = World()
    world.journal = Forgetful()
    await known(world, *[5.0] * 6)
    async with world.client() as client:
        assert await client.estimate("build") == Estimate()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_blocking_client_has_them_too(real_server: RealServer, anyio_backend: str) -> None:
    def use() -> None:
        journal = MemoryJournal()
        with BlockingTasksClient(real_server.url, journal=journal) as client, BlockingInbox(journal) as inbox:
            assert client.estimate("build") == Estimate()
            handle = client.start_tool("build", {"service": "web"})
            assert str(handle.estimate()) == ""
            for record in inbox.records():
                assert str(inbox.estimate(record)) == ""

    await anyio.to_thread.run_sync(use)
