"""Calls that nobody drives any more, taken up without being asked for: ``adopt()``."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.engine.environment import Environment
from mcp_tasks_client.engine.process import Process
from mcp_tasks_client.errors import (
    InputUnansweredError,
    JournalError,
    SessionError,
    TasksClientError,
    WaitTimeoutError,
)
from mcp_tasks_client.handle import TaskHandle
from mcp_tasks_client.journal.base import Instruction, Listener
from mcp_tasks_client.machine.record import Scope
from mcp_tasks_client.questions.question import answer_instruction, asked_under
from mcp_tasks_client.testing import (
    FaultPlan,
    ManualClock,
    completed,
    input_required,
    raising,
    text_result,
    working,
)
from tests._requirements import requirement
from tests._results import text
from tests.engine.other_process import LEASE_S, Hosts, OnDisk
from tests.engine.world import ASK, DONE, NO_JITTER, TASK, YES, Asked, World, finish, leave, tasks_of
from tests.kit.probed_journal import ProbedJournal
from tests.scripted_session import STALL, ScriptedSession

pytestmark = pytest.mark.anyio

LOOK_S = LEASE_S / 2
AT_WORK = working(TASK, poll_interval_ms=1000)
ANSWER = {"action": "accept", "content": {"n": 3}}
ASKS = input_required(TASK, {"k": ASK}, poll_interval_ms=1000)


class Adopter:
    """Iterates, and keeps the handles."""

    def __init__(self, adopted: AsyncIterator[TaskHandle]) -> None:
        self.adopted = adopted
        self.handles: list[TaskHandle] = []
        self.outcomes: list[Any] = []
        self.ended = False

    @property
    def ids(self) -> list[str | None]:
        return [handle.task_id for handle in self.handles]

    async def have(self, *task_ids: str, clock: ManualClock) -> None:
        """Let time pass until these are adopted, by a journal whose thread works by no clock of ours."""
        while self.ids != list(task_ids):
            assert self.ids == list(task_ids)[: len(self.ids)]
            await clock.advance(1)
            await anyio.sleep(0.005)

    async def have_by_now(self, count: int) -> None:
        """Let the journal's thread end what it does, without letting time pass, until so many are adopted."""
        while len(self.handles) < count:
            await anyio.sleep(0.001)
        assert len(self.handles) == count

    async def run(self) -> None:
        async for handle in self.adopted:
            self.handles.append(handle)
            del handle  # so that nobody has it once it is taken out of the list
        self.ended = True

    async def work(self) -> None:
        """The same, and have the outcome of each."""
        async with anyio.create_task_group() as tasks:
            async for handle in self.adopted:
                self.handles.append(handle)
                tasks.start_soon(self._see, handle)

    async def _see(self, handle: TaskHandle) -> None:
        try:
            self.outcomes.append(text(await handle.result()))
        except TasksClientError as error:
            self.outcomes.append(error)


@asynccontextmanager
async def adopting(client: TasksClient, limit: int | None = None) -> AsyncIterator[Adopter]:
    adopter = Adopter(client.adopt(limit))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(adopter.run)
        yield adopter
        tasks.cancel_scope.cancel()


# ── what is adopted ───────────────────────────────────────────────────────────────────────────


@requirement("persist:task-ids")
async def test_what_is_pending_is_adopted_at_once_the_oldest_first() -> None:
    world = tasks_of(3)
    finish(world, "task-1")
    async with world.client() as client:
        for _ in range(3):
            await client.start_tool("tool", idempotency_key=str(world.clock.monotonic()))
            await world.clock.advance(1.5)
    async with world.client() as client, adopting(client) as adopter:
        await world.clock.advance(0)
        assert adopter.ids == ["task-0", "task-1", "task-2"]
        assert [handle.done for handle in adopter.handles] == [False, True, False]
        finish(world, "task-0", "task-2")
        await world.clock.advance(2)
        assert [text(await handle) for handle in adopter.handles] == adopter.ids
        await world.clock.advance(10 * LEASE_S)
        assert len(adopter.handles) == 3, "each once"


async def test_what_another_client_releases_is_adopted_within_half_a_lease() -> None:
    world = tasks_of(2)
    async with world.client() as client, adopting(client) as adopter:
        async with world.client() as other:
            await other.start_tool("tool")
            await world.clock.advance(3 * LEASE_S)
            assert adopter.handles == [], "another client drives it"
        await world.clock.advance(LOOK_S + 0.1)
        assert adopter.ids == ["task-0"]
        await leave(world)
        await world.clock.advance(LOOK_S + 0.1)
        assert adopter.ids == ["task-0", "task-1"]


@pytest.mark.parametrize("way", ["call_tool", "start_tool", "start_tool, dropped", "finished", "resumed"])
async def test_what_this_client_drives_is_not_adopted(way: str) -> None:
    world = World(gets={TASK: [AT_WORK]})
    if way == "resumed":
        await leave(world)
    async with world.client() as client, anyio.create_task_group() as tasks:
        kept: Any = None
        match way:
            case "call_tool":
                tasks.start_soon(client.call_tool, "tool")
                await world.clock.advance(0.1)
            case "resumed":
                await client.resume()
            case _:
                kept = await client.start_tool("tool")
        if way == "start_tool, dropped":
            kept = None
        if way == "finished":
            world.server.gets[TASK] = [DONE]
            await world.clock.advance(5)
            assert kept.done
        async with adopting(client) as adopter:
            await world.clock.advance(3 * LEASE_S)
            assert adopter.handles == []
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("way", ["the handle is dropped", "the block fails"])
async def test_an_outcome_that_nobody_has_had_is_adopted_again_with_the_next_look(
    way: str, limit: int | None
) -> None:
    world, count = tasks_of(2), 2
    finish(world, "task-0", "task-1")
    async with world.client() as client:
        for number in range(count):
            await client.start_tool("tool", idempotency_key=str(number))
        await world.clock.advance(5)
        async with adopting(client, limit) as adopter:
            for _ in range(3):
                await world.clock.advance(0)
                assert [handle.done for handle in adopter.handles] == [True] * count
                if way == "the handle is dropped":
                    adopter.handles.clear()
                while adopter.handles:
                    with pytest.raises(OSError, match="full"):
                        async with adopter.handles.pop().outcome():
                            raise OSError("The disk of the host is full.")
                gc.collect()  # of the task that has iterated
                await world.clock.advance(LOOK_S - 1)
                assert adopter.handles == []
                await world.clock.advance(1)
            for handle in adopter.handles:
                async with handle.outcome() as result:
                    assert text(result) == handle.task_id
            adopter.handles.clear()
            await world.clock.advance(3 * LEASE_S)
            assert adopter.handles == []
    assert len(world.server.log("tools/call")) == count


async def test_what_a_host_has_that_is_not_heard_of_is_adopted_within_two_leases(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    theirs = ScriptedSession(clock=hosts.clock, calls=[working(TASK, poll_interval_ms=600_000)])
    ours = ScriptedSession(clock=hosts.other_clock, gets={TASK: [DONE]})
    with anyio.fail_after(20):
        async with hosts.first(theirs) as first, hosts.second(ours) as second, adopting(second) as adopter:
            await hosts.other_clock.advance(1)
            await first.start_tool("tool")
            await hosts.other_clock.advance(LEASE_S - 2)
            assert adopter.handles == []
            await hosts.other_clock.advance(LEASE_S + 2)
            await adopter.have_by_now(1)
            assert adopter.ids == [TASK]
            await hosts.other_clock.advance(600)
            assert text(await adopter.handles[0]) == "done"


async def test_an_owner_that_wakes_up_again_follows_whoever_has_adopted_its_call(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    theirs = ScriptedSession(clock=hosts.clock, calls=[AT_WORK], gets={TASK: [AT_WORK]})
    ours = ScriptedSession(clock=hosts.other_clock, gets={TASK: [AT_WORK]})
    with anyio.fail_after(20):
        async with hosts.first(theirs) as first, hosts.second(ours) as second:
            handle = await first.start_tool("tool", idempotency_key="k")
            async with adopting(second) as adopter, adopting(first, limit=1) as awake:
                await adopter.have(TASK, clock=hosts.other_clock)
                await hosts.clock.advance(3)  # it polls, and is refused the write
                ours.gets[TASK] = theirs.gets[TASK] = [DONE]
                await hosts.other_clock.advance(3)
                assert text(await adopter.handles[0]) == "done"
                while not handle.done:
                    await hosts.clock.advance(1)
                    await anyio.sleep(0.001)  # the journal's thread works meanwhile, by no clock of ours
                assert text(await handle) == "done"
                await hosts.clock.advance(3 * LEASE_S)
                await hosts.other_clock.advance(3 * LEASE_S)
                assert (len(adopter.handles), awake.handles) == (1, [])
            assert await second.resume() == []
            assert await first.resume() == []
    assert len(theirs.log("tools/call")) == 1


# ── a limit ───────────────────────────────────────────────────────────────────────────────────


async def test_no_more_than_the_limit_are_unfinished_at_once() -> None:
    world = tasks_of(5)
    await leave(world, 5)
    async with world.client() as client, adopting(client, limit=2) as adopter:
        await world.clock.advance(3 * LEASE_S)
        assert adopter.ids == ["task-0", "task-1"]
        finish(world, "task-1")
        await world.clock.advance(1.1)
        assert adopter.ids == ["task-0", "task-1", "task-2"], "without waiting for the next look"
        finish(world, "task-0", "task-2", "task-3", "task-4")
        await world.clock.advance(5)
        assert adopter.ids == [f"task-{number}" for number in range(5)]


async def test_what_another_host_has_taken_meanwhile_counts_for_no_limit(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    script: dict[str, Any] = {
        "calls": [working("task-0", poll_interval_ms=1000), working("task-1", poll_interval_ms=1000)],
        "gets": {one: [working(one, poll_interval_ms=1000)] for one in ("task-0", "task-1")},
    }
    first_server = ScriptedSession(clock=hosts.clock, **script)
    second_server = ScriptedSession(clock=hosts.other_clock, **script)
    with anyio.fail_after(20):
        async with hosts.first(first_server) as first:
            await first.start_tool("tool")
        async with (
            hosts.first(first_server) as first,
            hosts.second(second_server) as second,
            adopting(first, limit=1) as adopter,
        ):
            await adopter.have("task-0", clock=hosts.clock)
            async with adopting(second, limit=1) as other:
                await other.have("task-0", clock=hosts.other_clock)
                # The first host cannot write what it sees: it does not have the task any more.
                first_server.gets["task-0"] = [completed("task-0", text_result("done"))]
                await hosts.clock.advance(2)
                async with hosts.first(first_server) as third:
                    await third.start_tool("tool")
                await adopter.have("task-0", "task-1", clock=hosts.clock)


async def test_outcomes_that_are_there_count_for_no_limit() -> None:
    world = tasks_of(5)
    finish(world, "task-0", "task-1", "task-2")
    async with world.client() as client:
        for number in range(5):
            await client.start_tool("tool", idempotency_key=str(number))
        await world.clock.advance(5)
    async with world.client() as client, adopting(client, limit=1) as adopter:
        await world.clock.advance(LEASE_S)
        assert adopter.ids == [f"task-{number}" for number in range(4)]


async def test_replicas_with_a_limit_share_what_there_is() -> None:
    world = tasks_of(6)
    await leave(world, 6)
    async with (
        world.client() as first,
        world.client() as second,
        adopting(first, limit=3) as one,
        adopting(second, limit=3) as other,
    ):
        await world.clock.advance(LEASE_S)
        assert (len(one.handles), len(other.handles)) == (3, 3)
        assert not {*one.ids} & {*other.ids}
    assert len(world.server.log("tools/call")) == 6


@pytest.mark.parametrize("limit", [0, -1, 0.5, 1.5, "3"])
async def test_a_limit_of_nothing_is_refused(limit: Any) -> None:
    async with World().client() as client:
        with pytest.raises(ValueError, match="at least 1"):
            client.adopt(limit)


# ── what parks ────────────────────────────────────────────────────────────────────────────────


async def test_what_parks_for_want_of_an_answer_is_adopted_once_by_each_replica() -> None:
    world = World(gets={TASK: [ASKS]})
    await leave(world)
    async with (
        world.client() as first,
        world.client() as second,
        adopting(first) as one,
        adopting(second) as other,
    ):
        await world.clock.advance(20 * LEASE_S)
        assert (one.ids, other.ids) == ([TASK], [TASK])
        with pytest.raises(InputUnansweredError):
            await one.handles[0].result()
    assert len(world.server.log("tasks/get")) < 10


@pytest.mark.parametrize("where", ["memory", "sqlite", "another journal on the file"])
async def test_what_has_parked_is_adopted_again_once_its_answer_is_there(where: str, tmp_path: Path) -> None:
    world = World(gets={TASK: [ASKS]})
    if where != "memory":
        world.journal = OnDisk(tmp_path / "journal.sqlite3", world.clock)  # type: ignore[assignment]
    await leave(world)
    answering = world.journal
    if where == "another journal on the file":
        answering = OnDisk(tmp_path / "journal.sqlite3", world.clock)  # type: ignore[assignment]
    async with world.client() as client, adopting(client) as adopter, answering:
        await world.clock.advance(3)
        assert adopter.ids == [TASK]
        with pytest.raises(InputUnansweredError):
            await adopter.handles[0].result()
        await world.clock.advance(3 * LEASE_S)
        (record,) = await client.records()
        for number in range(2):
            answer = Instruction(f"about: {number}", "{}", world.clock.time())
            assert await answering.instruct(record.record_id, answer) == answer
            with anyio.fail_after(30):  # at once, by no clock
                while len(adopter.handles) < 2 + number:
                    await anyio.sleep(0.01)
            # Nothing here heeds it, so that the call parks again, and rests again.
            await world.clock.advance(10 * LEASE_S)
            assert len(adopter.handles) == 2 + number


async def test_what_parks_is_adopted_again_if_its_answer_came_just_before() -> None:
    world, plan = World(gets={TASK: [ASKS]}), FaultPlan()
    await leave(world)

    async def answer() -> None:
        (record,) = await world.journal.records(Scope("scripted"))
        world.server.gets[TASK] = [DONE]
        asked = asked_under(record, "k")
        assert asked is not None
        left = answer_instruction(record.record_id, asked, ANSWER, 1.0)
        await world.journal.instruct(record.record_id, left)

    plan.at("commit: release", "before", answer)
    async with world.client(observer=plan) as client, adopting(client) as adopter:
        await world.clock.advance(3)
        assert len(adopter.handles) == 2
        assert text(await adopter.handles[1]) == "done"
    assert [sent.answers for sent in world.server.log("tasks/update")] == [{"k": ANSWER}]


async def test_what_one_answers_another_adopts() -> None:
    """A worker without a callback, and a web service that drives nothing."""
    world = World(gets={TASK: [ASKS]})
    async with world.client() as worker, world.client() as service, adopting(worker) as adopter:
        await leave(world)
        await world.clock.advance(LOOK_S + 3)
        with pytest.raises(InputUnansweredError):
            await adopter.handles[0].result()
        world.server.gets[TASK] = [DONE]
        (question,) = await service.questions()
        await question.answer(YES)
        await world.clock.advance(2)
        assert text(await adopter.handles[1].result()) == "done"
        assert await service.resume() == []
    assert [sent.answers for sent in world.server.log("tasks/update")] == [{"k": ANSWER}]


async def test_what_others_have_gone_on_with_and_released_is_adopted_again() -> None:
    world = World(gets={TASK: [ASKS]})
    await leave(world)
    async with world.client() as client, adopting(client) as adopter:
        await world.clock.advance(3)
        assert len(adopter.handles) == 1
        world.server.gets[TASK] = [ASKS, AT_WORK]
        async with world.client(elicitation=Asked()) as other:
            await other.resume()
            await world.clock.advance(5)
        await world.clock.advance(LOOK_S + 1)
        assert len(adopter.handles) == 2


async def test_what_asks_something_else_after_others_have_gone_on_with_it_is_adopted_again() -> None:
    world = World(gets={TASK: [ASKS]})
    await leave(world)
    async with world.client() as client, adopting(client) as adopter:
        await world.clock.advance(3)
        assert len(adopter.handles) == 1
        world.server.gets[TASK] = [input_required(TASK, {"k2": ASK}, poll_interval_ms=1000)]
        async with world.client() as other:
            await other.resume()
            await world.clock.advance(5)
        for _ in range(3):
            await world.clock.advance(LOOK_S + 1)
            assert len(adopter.handles) == 2


async def test_what_parks_and_is_waited_for_in_vain_is_adopted_again() -> None:
    world = World(gets={TASK: [ASKS]})
    await leave(world)
    async with world.client() as client, adopting(client) as adopter:
        await world.clock.advance(3)
        (handle,) = adopter.handles
        with pytest.raises(InputUnansweredError):
            await handle.result()
        world.server.gets[TASK] = [AT_WORK]
        with pytest.raises(WaitTimeoutError):
            await handle.result(timeout=0.05)
        await world.clock.advance(2 * LOOK_S)
        assert adopter.handles == [handle, handle]


async def test_what_another_takes_that_dies_is_adopted_again(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    theirs = ScriptedSession(clock=hosts.clock, calls=[AT_WORK], gets={TASK: [ASKS]})
    ours = ScriptedSession(clock=hosts.other_clock, gets={TASK: [ASKS]})
    with anyio.fail_after(20):
        async with hosts.first(theirs) as first:
            await first.start_tool("tool", idempotency_key="k")
        async with hosts.second(ours) as second, adopting(second) as adopter:
            await hosts.other_clock.advance(3)
            await adopter.have_by_now(1)
            async with hosts.first(theirs, elicitation=Asked(STALL)) as first:
                (handle,) = await first.resume()  # with the question before somebody
                assert handle.task_id == TASK
                await hosts.clock.advance(1)
                await hosts.other_clock.advance(LOOK_S)
                assert len(adopter.handles) == 1
                await hosts.other_clock.advance(2 * LEASE_S)
                await adopter.have_by_now(2)


async def test_what_parks_for_another_reason_is_tried_again_later_and_holds_up_no_other() -> None:
    world = tasks_of(2)
    refused = SessionError("no", code=-32000, remote_message="no")
    world.server.gets["task-0"] = [refused]
    await leave(world, 2)
    async with world.client() as client, adopting(client, limit=1) as adopter:
        await world.clock.advance(3)
        assert adopter.ids == ["task-0", "task-1"]
        finish(world, "task-1")
        await world.clock.advance(LOOK_S - 4)
        assert adopter.ids == ["task-0", "task-1"]
        await world.clock.advance(5)
        assert adopter.ids == ["task-0", "task-1", "task-0"]


# ── how it ends ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("there_is_something", [False, True])
async def test_the_loop_ends_when_the_client_closes(there_is_something: bool) -> None:
    world = World(gets={TASK: [AT_WORK]})
    if there_is_something:
        await leave(world)
    async with anyio.create_task_group() as tasks:
        async with world.client() as client:
            adopter = Adopter(client.adopt())
            tasks.start_soon(adopter.run)
            await world.clock.advance(1)
            assert not adopter.ended
        with anyio.fail_after(30):
            while not adopter.ended:
                await anyio.lowlevel.checkpoint()
        assert [handle async for handle in adopter.adopted] == []
    async with world.client() as client:
        assert len(await client.resume()) == int(there_is_something)


@pytest.mark.parametrize("when", ["before it looks", "while it looks"])
async def test_a_client_that_closes_keeps_nothing_that_it_takes_at_that_moment(when: str) -> None:
    world, plan, closing = tasks_of(3), FaultPlan(), anyio.Event()
    async with world.journal, world.client() as stays, anyio.create_task_group() as tasks:
        await stays.resume()

        async def close_meanwhile() -> None:
            closing.set()
            await world.clock.sleep(1)

        async with world.client(observer=plan) as client:
            adopter = Adopter(client.adopt())
            tasks.start_soon(adopter.run)
            await world.clock.advance(1)
            await leave(world, 3)
            if when == "while it looks":
                plan.at("commit: take pending", "before", close_meanwhile, nth=2)
                tasks.start_soon(world.clock.advance, LOOK_S)
                await closing.wait()
        with anyio.fail_after(30):
            while not adopter.ended:
                await world.clock.advance(0.1)
        # A process that sees nothing of ours but the lease, which a client of ours still holds.
        elsewhere = Environment(
            clock=world.clock, jitter=lambda: 0.0, process=replace(Process.current(), host="elsewhere")
        )
        async with (
            TasksClient(world.server, journal=world.journal, poll=NO_JITTER, environment=elsewhere) as other,
            adopting(other) as adopter,
        ):
            await world.clock.advance(0.1)
            assert len(adopter.handles) == 3


@pytest.mark.parametrize("how", ["left", "cancelled"])
async def test_nothing_is_adopted_when_the_loop_has_been_left(how: str) -> None:
    world = tasks_of(3)
    await leave(world, 2)
    async with world.client() as client:
        if how == "left":
            async for handle in client.adopt():
                assert handle.task_id == "task-0"
                break
        else:
            async with adopting(client) as adopter:
                await world.clock.advance(0)
            adopter.handles.clear()
            gc.collect()  # of the task that has iterated
        await leave(world)
        await world.clock.advance(3 * LEASE_S)
        # What was taken and never handed out, or dropped, and what nobody has taken.
        assert {handle.task_id for handle in await client.resume()} >= {"task-1", "task-2"}


async def test_a_loop_that_is_cancelled_while_it_looks_loses_nothing() -> None:
    world, plan, count = tasks_of(120), FaultPlan(), 120
    scope = anyio.CancelScope()

    async def cancel() -> None:
        scope.cancel()

    plan.at("commit: take pending", "after", cancel)
    await leave(world, count)
    async with world.client(observer=plan) as client:
        adopter = Adopter(client.adopt())
        with scope:
            await adopter.run()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(adopter.run)
            await world.clock.advance(0)
            assert sorted(map(str, adopter.ids)) == sorted(f"task-{number}" for number in range(count))
            finish(world, *map(str, adopter.ids))
            await world.clock.advance(5)
            assert all(handle.done for handle in adopter.handles)
            tasks.cancel_scope.cancel()


async def test_the_tasks_of_a_pool_may_share_one_loop() -> None:
    world = tasks_of(4)
    await leave(world, 2)
    async with world.client() as client, anyio.create_task_group() as tasks:
        adopted = client.adopt()
        workers = [Adopter(adopted) for _ in range(3)]
        for worker in workers:
            tasks.start_soon(worker.run)
        await world.clock.advance(1)
        await leave(world, 2)
        await world.clock.advance(LEASE_S)
        assert sorted(str(one) for worker in workers for one in worker.ids) == [
            f"task-{number}" for number in range(4)
        ]
        tasks.cancel_scope.cancel()


async def test_a_journal_that_fails_is_said_and_the_loop_may_be_taken_up_again() -> None:
    world, plan = World(gets={TASK: [AT_WORK]}), FaultPlan()
    plan.at("commit: take pending", "before", raising(JournalError("The disk is full.")))
    await leave(world)
    async with world.client(observer=plan) as client:
        adopter = Adopter(client.adopt())
        with pytest.raises(JournalError, match="full"):
            await adopter.run()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(adopter.run)
            await world.clock.advance(LOOK_S + 1)
            assert adopter.ids == [TASK]
            tasks.cancel_scope.cancel()


class HeardJournal(ProbedJournal):
    """A journal that knows its listeners."""

    listeners: tuple[Listener, ...] = ()

    def listen(self, listener: Listener) -> Callable[[], None]:
        self.listeners += (listener,)
        return super().listen(listener)


async def test_what_others_are_told_to_do_is_looked_for_once() -> None:
    world = World(gets={TASK: [AT_WORK]})
    world.journal = journal = HeardJournal()
    async with world.client() as other, world.client() as client, adopting(client) as adopter:
        await other.start_tool("tool")
        await world.clock.advance(1)
        before = journal.counts["take_pending"]
        (record,) = await client.records()
        await journal.instruct(record.record_id, Instruction("answer: k", "{}", 1.0))
        for _ in range(5):
            journal.listen(lambda ids: None)()
            for listener in journal.listeners:
                listener([record.record_id, "of another endpoint"])
            await world.clock.advance(0.1)
        assert journal.counts["take_pending"] - before <= 2, "once for each record"
        await world.clock.advance(LOOK_S)
        before = journal.counts["take_pending"]
        await journal.instruct(record.record_id, Instruction("answer: k2", "{}", 2.0))
        await world.clock.advance(0.1)
        assert journal.counts["take_pending"] - before == 1, "what comes later is looked for as well"
        assert adopter.handles == []
    async with journal:
        assert len(await journal.records(Scope("scripted"))) == 1


async def test_early_looks_take_a_fifth_of_the_time_at_most_however_often_calls_end() -> None:
    world = tasks_of(20, interval_ms=100)
    for number in range(10, 20):  # which nobody has to see ending, so that the clock stops seldom for them
        later = working(f"task-{number}", poll_interval_ms=60_000)
        world.server.calls[number], world.server.gets[f"task-{number}"] = later, [later]
    world.journal = journal = ProbedJournal()
    takes_s = [0.0]
    journal.before("take_pending", lambda: world.clock.sleep(takes_s[0]), when=lambda *_, **__: takes_s[0])
    await leave(world, 20)
    async with world.client() as client, adopting(client, limit=10) as adopter:
        await world.clock.advance(0.2)
        assert len(adopter.handles) == 10
        takes_s[0], before = 0.1, journal.counts["take_pending"]
        for number in range(10):
            finish(world, f"task-{number}")
            await world.clock.advance(0.2)
        looks, takes_s[0] = journal.counts["take_pending"] - before, 0.0
        await world.clock.advance(1)  # or whoever looks could not leave
        assert 3 <= looks <= 2 / 0.5 + 1
        assert len(adopter.handles) == 20, "whatever has ended makes room"
        before = journal.counts["take_pending"]
        await world.clock.advance(2 * LOOK_S)
        assert journal.counts["take_pending"] - before <= 2, "nothing has ended since"
