"""Ends that a client gives to its host's own store: ``deliver()``."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp_types import CallToolResult, Tool

from mcp_tasks_client.aio.uncut import on_asyncio
from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import JournalError, TaskCancelledError, TaskFailedError, TasksClientError
from mcp_tasks_client.machine.record import TaskRecord
from mcp_tasks_client.testing import (
    FaultPlan,
    cancelled,
    completed,
    failed,
    input_required,
    raising,
    scripted_client,
    text_result,
    working,
)
from tests._results import text
from tests.engine.other_process import LEASE_S, Hosts
from tests.engine.world import ASK, NO_JITTER, TASK, Asked, World, finish, leave, tasks_of
from tests.kit.probed_journal import ProbedJournal
from tests.scripted_session import STALL, ScriptedSession

pytestmark = pytest.mark.anyio

LOOK_S = LEASE_S / 2


class Ends:
    """A store that keeps ends by the ``record_id``, and counts how often it is asked for each task.

    Args:
        fault: Of a task, whether the store raises for it now.
    """

    def __init__(self, fault: Callable[[str | None], bool] = lambda task_id: False) -> None:
        self.fault = fault
        self.asked: list[str | None] = []
        self.rows: dict[str, tuple[str | None, str]] = {}

    async def __call__(self, record: TaskRecord, outcome: CallToolResult | TasksClientError) -> None:
        await anyio.lowlevel.checkpoint()
        self.asked.append(record.task_id)
        if self.fault(record.task_id):
            raise OSError("The disk of the host is full.")
        said = text(outcome) if isinstance(outcome, CallToolResult) else type(outcome).__name__
        self.rows.setdefault(record.record_id, (record.task_id, said))

    @property
    def stored(self) -> list[str]:
        return [said for _, said in self.rows.values()]


@asynccontextmanager
async def delivering(client: TasksClient, store: Any, **options: Any) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: client.deliver(store, **options))
        yield
        tasks.cancel_scope.cancel()


# ── each end, once ────────────────────────────────────────────────────────────────────────────


async def test_each_end_is_stored_and_acknowledged_whoever_has_begun_the_call() -> None:
    world, ends = tasks_of(4), Ends()
    await leave(world, 2)
    async with world.client() as client, delivering(client, ends):
        await client.start_tool("tool", idempotency_key="k")
        await client.start_tool("tool")
        await world.clock.advance(1.5)
        assert ends.asked == []
        finish(world, "task-0", "task-1", "task-2", "task-3")
        await world.clock.advance(2.5)
        assert sorted(ends.stored) == ["task-0", "task-1", "task-2", "task-3"], "without waiting for a look"
        assert await client.records(pending=True) == []
        await world.clock.advance(5 * LEASE_S)
        assert len(ends.asked) == 4
    async with world.client() as client:
        assert await client.resume() == []


@pytest.mark.parametrize("keeps_s", [0.0, 0.5])
async def test_the_end_of_a_call_that_the_server_answers_at_once_is_stored_within_a_second_or_so(
    keeps_s: float,
) -> None:
    world, ends = World(calls=[{"resultType": "complete", **text_result("quick")}]), Ends()
    async with world.client() as client, delivering(client, ends):
        await world.clock.advance(1)
        for number in range(3):
            handle = await client.start_tool("tool", idempotency_key=str(number))
            await world.clock.advance(keeps_s)
            del handle
            await world.clock.advance(1.1)
            assert len(ends.asked) == number + 1
        assert ends.stored == ["quick"] * 3


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (failed(TASK, -32000, "The tool broke."), TaskFailedError),
        (cancelled(TASK), TaskCancelledError),
    ],
)
async def test_an_end_that_is_an_error_is_stored_as_the_error_that_result_raises(
    end: Any, expected: type[Exception]
) -> None:
    world, outcomes = World(gets={TASK: [end]}), list[Any]()

    async def store(record: TaskRecord, outcome: Any) -> None:
        outcomes.append((record, outcome))

    await leave(world, idempotency_key="k")
    async with world.client() as client, delivering(client, store):
        await world.clock.advance(2)
        ((record, error),) = outcomes
        assert (type(error), record.idempotency_key, record.task_id) == (expected, "k", TASK)
        assert error.handle is None, "a store that keeps the error would keep the call"
        (known,) = await client.records()
        assert known.delivered_at is not None
        with pytest.raises(expected):
            await client.call_tool("tool", idempotency_key="k")


async def test_a_plain_function_stores_in_a_thread() -> None:
    world, stored = tasks_of(1), list[Any]()
    finish(world, "task-0")
    await leave(world)

    def store(record: TaskRecord, outcome: Any) -> None:
        with pytest.raises(RuntimeError):
            anyio.lowlevel.current_token()  # no event loop runs here
        stored.append(text(outcome))

    async with world.client() as client, delivering(client, store):
        with anyio.fail_after(30):
            while await client.records(pending=True):
                await world.clock.advance(1)
                await anyio.sleep(0.001)
    assert stored == ["task-0"]


# ── a store that fails ────────────────────────────────────────────────────────────────────────


async def test_a_store_that_raises_is_asked_again_after_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, at = tasks_of(1), list[float]()
    finish(world, "task-0")
    await leave(world)

    def is_down(task_id: str | None) -> bool:
        at.append(world.clock.monotonic())
        return len(at) <= 8

    ends = Ends(is_down)
    async with world.client() as client, delivering(client, ends):
        await world.clock.advance(300)
        pauses = [round(after - before) for before, after in itertools.pairwise(at)]
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
        assert ends.stored == ["task-0"]
        assert await client.records(pending=True) == []
    assert "The disk of the host is full" in caplog.text


async def test_an_end_that_is_never_stored_holds_up_no_other() -> None:
    world, ends = tasks_of(3), Ends(lambda task_id: task_id == "task-0")
    finish(world, "task-0")
    await leave(world, 3)
    async with world.client() as client, delivering(client, ends, limit=1):
        await world.clock.advance(3)
        finish(world, "task-1", "task-2")
        await world.clock.advance(5)
        assert ends.stored == ["task-1", "task-2"]
        assert [record.task_id for record in await client.records(pending=True)] == ["task-0"]


async def test_a_store_that_does_not_return_holds_up_no_other_and_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_tasks_client.engine.delivery._PATIENCE_S", 0.05)
    world, ends, asked = tasks_of(2), Ends(), list[str | None]()
    finish(world, "task-0", "task-1")
    await leave(world, 2)

    async def store(record: TaskRecord, outcome: Any) -> None:
        asked.append(record.task_id)
        if asked.count("task-0") == 1 and record.task_id == "task-0":
            await anyio.sleep_forever()
        await ends(record, outcome)

    async with world.client() as client, delivering(client, store):
        with anyio.fail_after(30):
            while len(ends.stored) < 2:
                await world.clock.advance(1)
                await anyio.sleep(0.001)
        assert (asked, ends.stored) == (["task-0", "task-1", "task-0"], ["task-1", "task-0"])


async def test_a_bounded_number_of_ends_are_stored_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_tasks_client.engine.delivery._AT_ONCE", 3)
    world, ids, at_once, most = tasks_of(10), [f"task-{number}" for number in range(10)], 0, 0
    finish(world, *ids)
    await leave(world, 10)

    async def store(record: TaskRecord, outcome: Any) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await world.clock.sleep(1)
        at_once -= 1

    async with world.client() as client, delivering(client, store):
        await world.clock.advance(10)
        assert await client.records(pending=True) == []
    assert most == 3


async def test_the_thread_of_a_plain_store_that_hangs_is_waited_for_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mcp_tasks_client.engine.delivery._PATIENCE_S", 0.05)
    monkeypatch.setattr("mcp_tasks_client.engine.delivery._AT_ONCE", 1)
    world, asked, goes_on = tasks_of(3), list[str | None](), threading.Event()
    finish(world, "task-0", "task-1", "task-2")
    await leave(world, 3)

    def store(record: TaskRecord, outcome: Any) -> None:
        asked.append(record.task_id)
        if record.task_id == "task-0":
            goes_on.wait(20)

    async with world.client() as client, delivering(client, store):
        with anyio.fail_after(15):
            while len(await client.records(pending=True)) > 1:
                await world.clock.advance(1)
                await anyio.sleep(0.005)
            assert sorted(map(str, asked)) == ["task-0", "task-1", "task-2"]
            assert "the store has not returned yet" in caplog.text
            goes_on.set()
            while await client.records(pending=True):
                await world.clock.advance(1)
                await anyio.sleep(0.005)
    assert len(asked) == 3, "its thread was waited for"


async def test_an_answer_waits_for_no_room() -> None:
    world, ends = tasks_of(2), Ends()
    world.server.gets["task-0"] = [input_required("task-0", {"k": ASK}, poll_interval_ms=1000)]
    await leave(world, 2)
    async with world.client() as client, delivering(client, ends, limit=1):
        await world.clock.advance(LOOK_S + 3)  # the first parks, and the second takes its place
        (question,) = await client.questions()
        finish(world, "task-0")
        await question.accept({"n": 3})
        await world.clock.advance(3)
        assert ends.stored == ["task-0"]


async def test_an_answer_waits_for_no_older_call_that_comes_free_with_it() -> None:
    world, ends = tasks_of(3), Ends()
    world.server.gets["task-2"] = [input_required("task-2", {"k": ASK}, poll_interval_ms=1000)]
    async with AsyncExitStack() as stack:
        held = scripted_client(world.server, journal=world.journal, poll=NO_JITTER)
        other = await stack.enter_async_context(held)
        for _ in range(2):
            await other.start_tool("tool")
            await world.clock.advance(0.01)
        await leave(world)
        async with world.client() as client, delivering(client, ends, limit=1):
            await world.clock.advance(3)  # it parks
            (question,) = await client.questions()
            await stack.aclose()
            finish(world, "task-2")
            await question.accept({"n": 3})
            await world.clock.advance(3)
            assert ends.stored == ["task-2"]


async def test_an_acknowledgement_that_fails_brings_the_end_again() -> None:
    world, ends, plan = tasks_of(1), Ends(), FaultPlan()
    finish(world, "task-0")
    await leave(world)
    plan.at("commit: acknowledge", "before", raising(JournalError("The disk is full.")))
    async with world.client(observer=plan) as client, delivering(client, ends):
        await world.clock.advance(1)
        assert ends.asked == ["task-0"]
        assert len(await client.records(pending=True)) == 1
        await world.clock.advance(LOOK_S)
        assert (ends.asked, ends.stored) == (["task-0", "task-0"], ["task-0"])
        assert await client.records(pending=True) == []


@pytest.mark.parametrize("times", [1, 3])
async def test_a_journal_that_fails_ends_no_delivery(times: int, caplog: pytest.LogCaptureFixture) -> None:
    world, ends, plan = tasks_of(1), Ends(), FaultPlan()
    finish(world, "task-0")
    await leave(world)
    for number in range(times):
        plan.at("commit: take pending", "before", raising(JournalError("The disk is full.")), nth=1 + number)
    async with world.client(observer=plan) as client, delivering(client, ends):
        await world.clock.advance(4 * LEASE_S)
        assert ends.stored == ["task-0"]
    assert caplog.text.count("No call can be taken up") == times


# ── which ends ────────────────────────────────────────────────────────────────────────────────


class SlowTools(ScriptedSession):
    """A server that takes its time to list its tools, at first."""

    turns: Iterator[int] = iter(())

    async def tool(self, name: str, **options: Any) -> Tool | None:
        for _ in range(next(self.turns, 0)):
            await anyio.lowlevel.checkpoint()
        return await super().tool(name, **options)


@pytest.mark.parametrize("turns", [[], [50, 0], [0, 50], [50, 50]])
async def test_an_end_that_a_caller_awaits_goes_to_the_caller(turns: list[int]) -> None:
    world, ends = tasks_of(1, session=SlowTools), Ends()
    world.server.turns = iter(turns)
    await leave(world, idempotency_key="k")
    async with world.client() as client, delivering(client, ends), anyio.create_task_group() as tasks:
        await world.clock.advance(1)
        got = list[str]()

        async def call() -> None:
            got.append(text(await client.call_tool("tool", idempotency_key="k")))

        tasks.start_soon(call)
        await world.clock.advance(1)
        finish(world, "task-0")
        await world.clock.advance(3 * LEASE_S)
        assert (got, ends.asked) == (["task-0"], [])


async def test_an_end_whose_caller_gives_up_is_stored() -> None:
    world, ends, failed = tasks_of(1), Ends(), list[OSError]()
    await leave(world, idempotency_key="k")
    async with world.client() as client, delivering(client, ends), anyio.create_task_group() as tasks:
        await world.clock.advance(1)

        async def take() -> None:
            handle = await client.start_tool("tool", idempotency_key="k")
            try:
                async with handle.outcome():
                    await world.clock.sleep(30)  # as if it wrote it down
                    raise OSError("The disk of the caller is full.")
            except OSError as error:
                failed.append(error)

        tasks.start_soon(take)
        await world.clock.advance(1)
        finish(world, "task-0")
        await world.clock.advance(29)
        assert (failed, ends.asked) == ([], []), "it goes to the caller"
        await world.clock.advance(4)
        assert len(failed) == 1
        failed.clear()  # it holds the handle
        await world.clock.advance(LOOK_S)
        assert ends.stored == ["task-0"]


async def test_an_end_that_a_caller_has_had_meanwhile_is_stored_no_more() -> None:
    world, ends = tasks_of(1), Ends(lambda task_id: True)
    finish(world, "task-0")
    await leave(world, idempotency_key="k")
    async with world.client() as client, delivering(client, ends):
        await world.clock.advance(5)
        asked = len(ends.asked)
        assert asked > 1
        assert text(await client.call_tool("tool", idempotency_key="k")) == "task-0"
        await world.clock.advance(3 * LEASE_S)
        assert len(ends.asked) == asked


async def test_a_call_whose_handle_the_host_keeps_is_left_to_the_host() -> None:
    world, ends = tasks_of(1), Ends()
    async with world.client() as client, delivering(client, ends):
        handle = await client.start_tool("tool")
        finish(world, "task-0")
        await world.clock.advance(3 * LEASE_S)
        assert (ends.asked, text(await handle)) == ([], "task-0")


async def test_calls_that_are_awaited_cause_no_look() -> None:
    world = tasks_of(3)
    finish(world, "task-0", "task-1", "task-2")
    world.journal = journal = ProbedJournal()
    async with world.client() as client, delivering(client, Ends()):
        await world.clock.advance(1)
        before = journal.counts["take_pending"]
        for number in range(3):
            assert text(await world.call(client, within=2)) == f"task-{number}"
        assert journal.counts["take_pending"] == before


async def test_calls_of_another_application_are_left_alone() -> None:
    world, ours, theirs = tasks_of(2), Ends(), Ends()
    finish(world, "task-0", "task-1")
    async with world.client(application="ours") as client:
        await client.start_tool("tool")
    async with world.client(application="theirs") as client:
        await client.start_tool("tool")
    async with (
        world.client(application="ours") as one,
        world.client(application="theirs") as other,
        delivering(one, ours),
        delivering(other, theirs),
    ):
        await world.clock.advance(3 * LEASE_S)
    assert (ours.stored, theirs.stored) == (["task-0"], ["task-1"])


async def test_a_call_that_parks_for_want_of_an_answer_is_delivered_once_it_is_answered() -> None:
    world, ends = World(gets={TASK: [input_required(TASK, {"k": ASK}, poll_interval_ms=1000)]}), Ends()
    await leave(world)
    async with world.client() as client, delivering(client, ends):
        await world.clock.advance(3 * LEASE_S)
        assert ends.asked == []
        (question,) = await client.questions()
        world.server.gets[TASK] = [completed(TASK, text_result("done"))]
        await question.accept({"n": 3})
        await world.clock.advance(3)
        assert ends.stored == ["done"]


# ── several users ─────────────────────────────────────────────────────────────────────────────


class Users:
    """A client for each principal, opened once, and which principals were asked for."""

    def __init__(self, world: World, stack: AsyncExitStack) -> None:
        self.world, self.stack = world, stack
        self.asked: list[str] = []
        self.clients: dict[str, TasksClient] = {}

    async def client(self, principal: str) -> TasksClient:
        self.asked.append(principal)
        if principal not in self.clients:
            # Not world.client(), whose time limit would be left in another task.
            client = scripted_client(
                self.world.server, journal=self.world.journal, poll=NO_JITTER, principal=principal
            )
            self.clients[principal] = await self.stack.enter_async_context(client)
        return self.clients[principal]


@pytest.mark.parametrize("way", ["left by another process", "begun here"])
async def test_the_ends_of_each_user_are_delivered_by_the_client_of_that_user(way: str) -> None:
    world, ends = tasks_of(3), Ends()
    async with AsyncExitStack() as stack:
        users = Users(world, stack)
        service = await stack.enter_async_context(world.client())
        if way == "left by another process":
            for principal in ("ada", "bob", ""):
                async with world.client(principal=principal) as client:
                    await client.start_tool("tool")
        else:
            for principal in ("ada", "bob"):
                await (await users.client(principal)).start_tool("tool")
            await service.start_tool("tool")
            users.asked.clear()
        async with delivering(service, ends, client_of=users.client):
            await world.clock.advance(2)
            assert sorted(users.asked) == ["ada", "bob"]
            finish(world, "task-0", "task-1", "task-2")
            await world.clock.advance(2)
            assert sorted(ends.stored) == ["task-0", "task-1", "task-2"]
            await world.clock.advance(3 * LEASE_S)
            assert sorted(users.asked) == ["ada", "bob"], "once, as long as their clients are open"
            async with world.client(principal="carol") as client:
                await client.start_tool("tool")
            await world.clock.advance(2.1)
            assert users.asked[2:] == ["carol"], "within some seconds"
    polls = {sent.task_id for sent in world.server.sent if sent.method == "tasks/get"}
    assert polls >= {"task-0", "task-1", "task-2"}


async def test_the_limit_is_one_for_the_client_of_each_user() -> None:
    world = tasks_of(4)
    for principal in ("ada", "ada", "bob", "bob"):
        async with world.client(principal=principal) as client:
            await client.start_tool("tool")
    async with (
        AsyncExitStack() as stack,
        world.client() as service,
        delivering(service, Ends(), client_of=Users(world, stack).client, limit=1),
    ):
        assert await unfinished(world) == {"task-0", "task-2"}


async def test_the_calls_of_a_user_that_another_process_drives_open_no_client(tmp_path: Path) -> None:
    hosts, asked = Hosts(tmp_path), list[str]()

    async def client_of(principal: str) -> None:
        asked.append(principal)

    theirs = ScriptedSession(clock=hosts.clock, calls=[working(TASK, poll_interval_ms=1000)])
    ours = ScriptedSession(clock=hosts.other_clock)
    with anyio.fail_after(20):
        async with hosts.first(theirs, principal="ada") as first, hosts.second(ours) as second:
            await first.start_tool("tool", idempotency_key="k")
            async with delivering(second, Ends(), client_of=client_of):
                await hosts.other_clock.advance(1)
                await second.records()
                await anyio.sleep(0.05)
                assert asked == []
                while not asked:  # its lease runs out, since its clock stands still
                    await hosts.other_clock.advance(1)
                    await anyio.sleep(0.001)
    assert asked[0] == "ada"


@pytest.mark.parametrize(
    "fault",
    [
        *("raises", "None", "of another user", "of another journal", "of another application"),
        *("no client", "hangs", "is cancelled"),
    ],
)
async def test_a_user_without_a_client_is_asked_for_again_and_holds_up_no_other(
    fault: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.engine.delivery._PATIENCE_S", 0.05)
    world, ends, asked = tasks_of(2), Ends(), list[str]()
    finish(world, "task-0", "task-1")
    for principal in ("ada", "bob"):
        async with world.client(principal=principal) as client:
            await client.start_tool("tool")
    other = World()
    async with AsyncExitStack() as stack:
        users = Users(world, stack)
        service = await stack.enter_async_context(world.client())
        wrong: dict[str, Any] = {
            "None": None,
            "of another user": service,
            "of another application": await stack.enter_async_context(
                scripted_client(world.server, journal=world.journal, principal="ada", application="other")
            ),
            "of another journal": await stack.enter_async_context(other.client(principal="ada")),
            "no client": "ada",
        }

        async def client_of(principal: str) -> Any:
            asked.append(principal)
            if principal == "bob" or asked.count("ada") > 2:
                return await users.client(principal)
            if fault == "raises":
                raise LookupError("There is no token for this user.")
            if fault == "hangs":
                await anyio.sleep_forever()
            if fault == "is cancelled":
                raise anyio.get_cancelled_exc_class()() if on_asyncio() else LookupError
            return wrong[fault]

        async with delivering(service, ends, client_of=client_of):
            with anyio.fail_after(30):
                while ends.stored != ["task-1", "task-0"]:
                    await world.clock.advance(1)
                    await anyio.sleep(0.01)
        assert asked.count("bob") == 1
    assert ("left alone for now" in caplog.text) == (fault != "None")


async def test_a_user_whose_client_was_closed_is_asked_for_again() -> None:
    world, ends = tasks_of(2), Ends()
    async with world.client(principal="ada") as client:
        await client.start_tool("tool")
    async with world.client() as service, AsyncExitStack() as stack:
        users = Users(world, stack)
        async with delivering(service, ends, client_of=users.client):
            async with AsyncExitStack() as users.stack:
                await world.clock.advance(3)
            users.clients.clear()
            users.stack = stack
            finish(world, "task-0")
            await world.clock.advance(LOOK_S + 3)
            assert (users.asked, ends.stored) == (["ada", "ada"], ["task-0"])


async def test_with_client_of_deliver_returns_when_the_client_is_closed() -> None:
    world = tasks_of(1)
    async with world.client(principal="ada") as client:
        await client.start_tool("tool")
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        users, returned = Users(world, stack), anyio.Event()
        async with world.client() as service:

            async def run() -> None:
                await service.deliver(Ends(), client_of=users.client)
                returned.set()

            tasks.start_soon(run)
            await world.clock.advance(1)
        with anyio.fail_after(30):
            await returned.wait()
        assert users.asked == ["ada"]


async def test_a_journal_that_cannot_name_the_users_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    world, ends = tasks_of(1), Ends()
    world.journal = journal = ProbedJournal()
    journal.before("principals", raising(JournalError("The disk is full.")), nth=1)
    finish(world, "task-0")
    async with world.client(principal="ada") as client:
        await client.start_tool("tool")
    async with (
        AsyncExitStack() as stack,
        world.client() as service,
        delivering(service, ends, client_of=Users(world, stack).client),
    ):
        await world.clock.advance(LOOK_S + 3)
        assert ends.stored == ["task-0"]
    assert "No calls of other users can be looked for" in caplog.text


# ── when it stops ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stage", ["at work", "being stored", "waiting to be stored again"])
async def test_a_client_that_stops_hands_over_within_half_a_lease(stage: str) -> None:
    world, ends = tasks_of(1), Ends(lambda task_id: True)
    taken = Ends()

    async def store(record: TaskRecord, outcome: Any) -> None:
        if stage == "being stored":
            await anyio.sleep_forever()
        await ends(record, outcome)

    if stage != "at work":
        finish(world, "task-0")
    async with world.client() as other:
        await leave(world)
        async with world.client() as client, delivering(client, store):
            await world.clock.advance(2)
            async with delivering(other, taken):
                await world.clock.advance(LOOK_S + 0.1)
                assert taken.asked == [], "another client drives it"
        finish(world, "task-0")
        async with delivering(other, taken):
            await world.clock.advance(LOOK_S + 0.1)
            assert taken.stored == ["task-0"]


async def test_deliver_returns_when_the_client_is_closed() -> None:
    world, returned = tasks_of(1), anyio.Event()
    finish(world, "task-0")
    await leave(world)
    async with anyio.create_task_group() as tasks:
        async with world.client() as client:

            async def run() -> None:
                await client.deliver(Ends(lambda task_id: True))
                returned.set()

            tasks.start_soon(run)
            await world.clock.advance(1)
        with anyio.fail_after(30):
            await returned.wait()


async def test_what_deliver_has_left_behind_is_delivered_by_the_next_deliver() -> None:
    world, ends = tasks_of(2), Ends()
    await leave(world, 2)
    async with world.client() as client:
        async with delivering(client, ends):
            await world.clock.advance(2)
        finish(world, "task-0")
        await world.clock.advance(2)
        async with delivering(client, ends):
            await world.clock.advance(0)
            assert ends.stored == ["task-0"]
            finish(world, "task-1")
            await world.clock.advance(2)
            assert ends.stored == ["task-0", "task-1"]


# ── what is no delivery ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("client_of", [None, {}.get])
@pytest.mark.parametrize("limit", [0, -1, 0.5, "3"])
async def test_a_limit_of_nothing_is_refused(limit: Any, client_of: Any) -> None:
    async with World().client() as client:
        with pytest.raises(ValueError, match="at least 1"):
            await client.deliver(Ends(), limit=limit, client_of=client_of)


async def test_a_store_that_is_no_function_is_refused() -> None:
    async with World().client() as client:
        with pytest.raises(TypeError, match="store must be a function"):
            await client.deliver("ends")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="client_of must be a function"):
            await client.deliver(Ends(), client_of="ada")  # type: ignore[arg-type]


# ── the limit of a client ─────────────────────────────────────────────────────────────────────


async def unfinished(world: World) -> set[str | None]:
    """The tasks that are polled in the next three seconds."""
    before = len(world.server.sent)
    await world.clock.advance(3)
    return {sent.task_id for sent in world.server.sent[before:] if sent.method == "tasks/get"}


async def test_the_limit_is_one_for_all_that_a_client_iterates_and_begins_anew() -> None:
    world = tasks_of(9)
    await leave(world, 9)
    async with world.client() as client:
        async for _handle in client.adopt(limit=2):
            break
        async with delivering(client, Ends(), limit=2):
            await world.clock.advance(3 * LEASE_S)
        async with delivering(client, Ends(), limit=2):
            await world.clock.advance(3 * LEASE_S)
            assert await unfinished(world) == {"task-0", "task-1"}


@pytest.mark.parametrize("when", ["before it is taken up", "afterwards"])
async def test_a_call_that_waits_for_a_person_takes_no_place(when: str) -> None:
    world, ends = tasks_of(3), Ends()
    asks = [input_required("task-0", {"k": ASK}, poll_interval_ms=1000)]
    if when == "before it is taken up":
        world.server.gets["task-0"] = asks
    async with world.client(elicitation="later") as client:
        for _ in range(3):
            await client.start_tool("tool")
        await world.clock.advance(3)
    async with world.client(elicitation="later") as client, delivering(client, ends, limit=1):
        await world.clock.advance(3)
        world.server.gets["task-0"] = asks
        await world.clock.advance(3)
        finish(world, "task-1", "task-2")
        await world.clock.advance(4)
        assert sorted(ends.stored) == ["task-1", "task-2"]
        (question,) = await client.questions()
        finish(world, "task-0")
        await question.accept({"n": 3})
        await world.clock.advance(3)
        assert sorted(ends.stored) == ["task-0", "task-1", "task-2"]


async def test_a_call_whose_question_is_before_the_host_takes_a_place() -> None:
    world = tasks_of(2)
    for one in ("task-0", "task-1"):
        world.server.gets[one] = [input_required(one, {"k": ASK}, poll_interval_ms=1000)]
    await leave(world, 2)
    asked = Asked(STALL)
    async with world.client(elicitation=asked) as client, delivering(client, Ends(), limit=1):
        await world.clock.advance(5 * LEASE_S)
        assert len(asked.keys) == 1
