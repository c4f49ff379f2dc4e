"""Who waits for a call, who goes away, who comes back; and what is left when nobody does."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.engine import live_call
from mcp_tasks_client.errors import (
    InputUnansweredError,
    SessionError,
    TaskExpiredError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClientError,
    WaitTimeoutError,
)
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.sessions.base import Snapshot, TaskRef
from mcp_tasks_client.testing import failed, input_required, working
from tests._requirements import requirement
from tests._results import text
from tests.engine.late_session import late_world
from tests.engine.world import ASK, DONE, NO_JITTER, TASK, YES, Asked, World
from tests.kit.probed_journal import Held, ProbedJournal
from tests.scripted_session import STALL, ScriptedSession

pytestmark = pytest.mark.anyio

KEY = "order-42"
DAY_S = 86_400.0
FOREVER = working(TASK, poll_interval_ms=1000)
HOURLY = working(TASK, poll_interval_ms=3_600_000)


class Waiter:
    """A caller that can be stopped natively on asyncio, and by a scope anywhere."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self.scope = anyio.CancelScope()
        self.outcome: Any = None
        self._task: asyncio.Task[Any] | None = None
        self._work = work

    async def run(self) -> None:
        with self.scope:
            self.outcome = await self._work()

    async def run_natively(self) -> None:
        self._task = asyncio.ensure_future(self._work())
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self.outcome = self._task.result()

    def stop(self) -> None:
        self.scope.cancel() if self._task is None else self._task.cancel()


# ── a second waiter ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["scope", "Task.cancel()", "time-out"])
@pytest.mark.parametrize("when", ["before the call has left", "in flight", "while it is polled"])
async def test_the_first_waiter_that_goes_away_takes_the_call_from_no_other(
    how: str, when: str, anyio_backend_name: str
) -> None:
    if how == "Task.cancel()" and anyio_backend_name == "trio":
        pytest.skip("there is none on trio")
    world, server = late_world(leaves=when != "before the call has left", gets={TASK: [FOREVER, DONE]})
    async with world.client() as client, anyio.create_task_group() as tasks:
        timeout = 0.05 if how == "time-out" else None
        first = Waiter(partial(client.call_tool, "tool", idempotency_key=KEY, timeout=timeout))
        second = Waiter(partial(client.call_tool, "tool", idempotency_key=KEY))

        async def run_first() -> None:
            if how == "time-out":
                with pytest.raises(WaitTimeoutError):
                    await first.run()
            else:
                await (first.run() if how == "scope" else first.run_natively())
            gone.set()

        gone = anyio.Event()
        tasks.start_soon(run_first)
        await server.called.wait()
        if when == "while it is polled":
            server.go.set()
        tasks.start_soon(second.run)
        await world.clock.advance(0.5)
        if how != "time-out":
            first.stop()
        await gone.wait()
        server.go.set()
        await world.clock.advance(10)
        assert first.outcome is None
        assert text(second.outcome) == "done"
    assert len(server.log("tools/call")) == 1


@pytest.mark.parametrize(
    ("clean_up_s", "polled_again_at"),
    [
        pytest.param(10.0, 12.25, id="clean-up ends after the next poll is due"),
        pytest.param(0.25, 2.5, id="clean-up ends before the next poll is due"),
    ],
)
@pytest.mark.parametrize("way", ["resume", "key"])
async def test_who_comes_while_the_driver_is_being_stopped_is_driven_for(
    way: str, clean_up_s: float, polled_again_at: float
) -> None:
    """The next poll keeps the server's pace from the end of the one that was stopped."""
    world = World(gets={TASK: [STALL, DONE]})
    cleaned_up, under_way, most = anyio.Event(), 0, 0

    async def get(ref: TaskRef) -> Snapshot:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await ScriptedSession.get(world.server, ref)
        finally:
            with anyio.CancelScope(shield=True):
                await cleaned_up.wait()
            under_way -= 1

    world.server.get = get  # type: ignore[method-assign]  # a poll that is slow to stop
    async with world.client() as client, anyio.create_task_group() as tasks:
        first = Waiter(partial(client.call_tool, "tool", idempotency_key=KEY))
        tasks.start_soon(first.run)
        await world.clock.advance(1.25)
        assert world.polled_at() == [1.0]
        first.stop()
        await world.clock.advance(0)
        if way == "resume":
            (handle,) = await client.resume()
            second = Waiter(handle.result)
        else:
            second = Waiter(partial(client.call_tool, "tool", idempotency_key=KEY))
        tasks.start_soon(second.run)
        await world.clock.advance(clean_up_s)
        assert world.polled_at() == [1.0], "not while the first poll is still under way"
        cleaned_up.set()
        await world.clock.advance(60)
        assert world.polled_at() == [1.0, polled_again_at]
        assert text(second.outcome) == "done"
    assert most == 1


async def test_who_stops_waiting_while_its_call_is_being_taken_follows_it_for_nobody() -> None:
    world, taking = World(gets={TASK: [FOREVER]}), Held()
    world.journal = ProbedJournal()
    world.journal.before("take", taking)
    async with world.client() as second:
        async with world.client() as first:
            await first.start_tool("tool", idempotency_key=KEY)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(second.call_tool, "tool", idempotency_key=KEY))
                await world.clock.advance(0.5)
                tasks.cancel_scope.cancel()
                taking.go_on.set()
            await world.clock.advance(2)
        polls = len(world.polled_at())
        await world.clock.advance(60)
        assert len(world.polled_at()) == polls
        assert (await world.only_record()).owner is None


@pytest.mark.parametrize("waits", [False, True], ids=["reads later", "waits already"])
async def test_updates_go_on_when_others_have_heard_what_parked_the_task_and_gone(waits: bool) -> None:
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [working(TASK), asking, asking, asking, DONE]})
    async with (
        world.client(elicitation=Asked(RuntimeError("UI not ready"), STALL)) as client,
        anyio.create_task_group() as tasks,
    ):
        handle = await client.start_tool("tool")
        updates = handle.updates()
        seen = [(await anext(updates)).status]
        await world.clock.advance(5)
        with pytest.raises(InputUnansweredError):
            await handle.result()

        async def follow() -> None:
            seen.extend([task.status async for task in updates])

        patient = Waiter(handle.result)
        tasks.start_soon(patient.run)
        await world.clock.advance(0.5)
        if waits:
            tasks.start_soon(follow)
            await world.clock.advance(0)
        patient.stop()
        await world.clock.advance(0)
        if not waits:
            tasks.start_soon(follow)
        await world.clock.advance(60)
        assert seen == ["working", "input_required", "completed"]
        tasks.cancel_scope.cancel()


# ── what is left of an abandoned call ─────────────────────────────────────────────────────────


@pytest.fixture
def live_calls(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[Any]:
    """Every live call that is made from now on, for as long as anybody holds it."""
    made: weakref.WeakSet[Any] = weakref.WeakSet()
    init = live_call.LiveCall.__init__

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.add(self)

    monkeypatch.setattr(live_call.LiveCall, "__init__", noted)
    return made


@pytest.mark.parametrize("hint", [FOREVER, HOURLY], ids=["a second's hint", "an hour's hint"])
async def test_abandoned_calls_leave_memory_at_once(hint: Any, live_calls: weakref.WeakSet[Any]) -> None:
    world = World(calls=[hint], gets={TASK: [hint]})
    async with world.client() as client:
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "tool")
                await world.clock.advance(0.5)
                assert len(live_calls) == 1
                tasks.cancel_scope.cancel()
            await world.clock.advance(0)
            gc.collect()
            assert len(live_calls) == 0
        assert len(await client.records()) == 3


async def test_a_call_whose_outcome_was_delivered_leaves_memory(live_calls: weakref.WeakSet[Any]) -> None:
    world = World()
    async with world.client() as client:
        handle = await client.start_tool("tool", idempotency_key=KEY)
        await world.clock.advance(5)
        await handle.result()
        del handle
        gc.collect()
        assert len(live_calls) == 0


async def test_an_end_that_is_an_error_leaves_memory_once_it_was_told(
    live_calls: weakref.WeakSet[Any],
) -> None:
    world = World(gets={TASK: [failed(TASK, -32000, "The tool broke.")]})
    async with world.client() as client:
        handle = await client.start_tool("tool", idempotency_key=KEY)
        await world.clock.advance(5)
        gc.collect()
        gc.disable()
        try:
            with suppress(TaskFailedError):
                await handle.result()
            del handle
            await world.clock.advance(0)
            assert len(live_calls) == 0, "without a collection"
        finally:
            gc.enable()


# ── the pace ──────────────────────────────────────────────────────────────────────────────────


async def test_a_refresh_of_a_task_that_is_being_taken_up_keeps_the_pace_that_was_set_before() -> None:
    world = World(calls=[working(TASK, poll_interval_ms=60_000)], gets={TASK: [working(TASK)]})
    async with world.client() as client:
        reference = (await client.start_tool("tool")).reference
        await world.clock.advance(5)
    async with world.client() as client, anyio.create_task_group() as tasks:

        async def refresh() -> None:
            await (await client.attach(reference)).refresh()

        tasks.start_soon(refresh)
        tasks.start_soon(refresh)
        await world.clock.advance(54)
        assert world.polled_at() == []
        await world.clock.advance(2)
        assert world.polled_at() == [60.0]


async def test_refreshing_what_another_client_drives_returns_before_the_end_of_the_task() -> None:
    world = World(gets={TASK: [FOREVER]})
    async with world.client() as driver, world.client() as follower, anyio.create_task_group() as tasks:
        await driver.start_tool("tool", idempotency_key=KEY)
        waiter = Waiter((await follower.attach(TASK)).refresh)
        tasks.start_soon(waiter.run)
        await world.clock.advance(60)
        assert waiter.outcome.status == "working"


JUMPS = pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S], ids=["a day forward", "a day back"])


@JUMPS
@pytest.mark.parametrize("during", [False, True], ids=["between polls", "during a poll"])
async def test_polls_keep_their_pace_when_the_wall_clock_jumps(jump_s: float, during: bool) -> None:
    world = World(gets={TASK: [FOREVER] * 4 + [DONE]})

    async def get(ref: TaskRef) -> Snapshot:
        if during and len(world.polled_at()) == 1:
            world.clock.jump(jump_s)
        return await ScriptedSession.get(world.server, ref)

    world.server.get = get  # type: ignore[method-assign]  # an administrator just then
    async with world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(1.5)
        if not during:
            world.clock.jump(jump_s)
        await world.clock.advance(60)
    assert world.polled_at() == [1.0, 2.0, 3.0, 4.0, 5.0]


@JUMPS
async def test_a_silence_that_the_server_asked_for_lasts_as_long_when_the_wall_clock_jumps(
    jump_s: float,
) -> None:
    busy = SessionError("busy", retryable=True, http_status=429, retry_after_s=30.0)
    world = World(gets={TASK: [busy, DONE]})
    async with world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(1.5)
        world.clock.jump(jump_s)
        await world.clock.advance(60)
    assert world.polled_at() == [1.0, 31.0]


@requirement("ttl:backstop")
@pytest.mark.parametrize(
    ("ttl_ms", "jump_s", "expected"),
    [
        pytest.param(45_000, 0.0, TaskExpiredError, id="no jump, it has passed"),
        pytest.param(45_000, -DAY_S, TaskNotFoundError, id="a day back, it has not"),
        pytest.param(10_000_000, 0.0, TaskNotFoundError, id="no jump, it has not"),
        pytest.param(10_000_000, DAY_S, TaskExpiredError, id="a day forward, it has"),
    ],
)
async def test_the_time_to_live_counts_by_the_wall_clock_and_only_names_the_end(
    ttl_ms: int, jump_s: float, expected: type[Exception]
) -> None:
    """It has to outlive processes, so nothing else can count it. It never ends a task by itself."""
    gone = SessionError("?", code=-32602, remote_message="not found")
    created = working(TASK, poll_interval_ms=20_000, ttl_ms=ttl_ms)
    world = World(calls=[created], gets={TASK: [created, created, gone]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(1)
        world.clock.jump(jump_s)
        await world.clock.advance(100)
        with pytest.raises(expected) as caught:
            await handle.result()
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("jump_s", "polled_at"),
    [
        pytest.param(-DAY_S, 80.0, id="a day back, at most one interval"),
        pytest.param(DAY_S, 20.0, id="a day forward, overdue"),
    ],
)
async def test_after_a_restart_and_a_jump_the_wait_is_an_interval_at_most(
    jump_s: float, polled_at: float
) -> None:
    world = World(calls=[working(TASK, poll_interval_ms=60_000)])
    async with world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(20)
    world.clock.jump(jump_s)
    async with world.client(poll=NO_JITTER) as client:
        (handle,) = await client.resume()
        await world.clock.advance(120)
        assert handle.done
    assert world.polled_at() == [polled_at]


# ── closing in the middle of things ───────────────────────────────────────────────────────────


def note_order(server: ScriptedSession, verb: str) -> list[str]:
    """What ends, in order: the requests of one verb, and the session."""
    order: list[str] = []
    request, aclose = getattr(server, verb), server.aclose

    async def noted(*args: Any) -> Any:
        try:
            return await request(*args)
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
            order.append("request")

    async def closed() -> None:
        order.append("session")
        await aclose()

    setattr(server, verb, noted)
    server.aclose = closed  # type: ignore[method-assign]
    return order


async def test_closing_ends_a_poll_that_is_under_way_and_then_the_session() -> None:
    world = World(gets={TASK: [STALL]})
    order = note_order(world.server, "get")
    async with world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(1.5)
    assert order == ["request", "session"]
    record = await world.only_record()
    assert (record.pending, record.owner) == (True, None)
    await world.clock.advance(3600)
    assert world.polled_at() == [1.0]


@pytest.mark.parametrize("in_time", [True, False], ids=["the reply comes", "no reply comes"])
async def test_closing_leaves_a_call_in_flight_its_grace_and_its_caller_none(in_time: bool) -> None:
    world, server = late_world()
    order = note_order(server, "call")

    async def caller(client: TasksClient) -> None:
        with pytest.raises(TasksClientError, match="closed"):
            await client.call_tool("tool", idempotency_key=KEY)
        if in_time:
            server.go.set()

    policy = PollPolicy(jitter=0.0, call_grace_s=10.0 if in_time else 0.05)
    async with anyio.create_task_group() as host, world.client(poll=policy) as client:
        host.start_soon(caller, client)
        await server.called.wait()
    assert order == ["request", "session"]
    record = await world.only_record()
    assert record.owner is None
    assert (record.task_id, record.status) == ((TASK, "working") if in_time else (None, "outcome_unknown"))
    assert world.polled_at() == []


async def test_a_waiter_that_has_gone_is_told_of_nothing_and_another_with_the_same_function_still_is() -> (
    None
):
    said = [working(TASK, status_message=message) for message in ("one", "two", "three")]
    world, heard = World(gets={TASK: [*said, FOREVER]}), list[str]()

    def on_update(task: Any) -> None:
        heard.append(task.status_message or "")

    async with anyio.create_task_group() as host, world.client() as client:
        call = partial(client.call_tool, "tool", idempotency_key=KEY, on_update=on_update)
        first = anyio.CancelScope()

        async def call_first() -> None:
            with first:
                await call()

        host.start_soon(call_first)
        await world.clock.advance(1.5)
        host.start_soon(call)
        await world.clock.advance(1.0)
        first.cancel()
        await world.clock.advance(1.0)
        host.cancel_scope.cancel()
    assert heard[-4:] == ["one", "two", "two", "three"]


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "while on_update is being told"])
async def test_a_caller_whose_client_closes_is_told_so_and_nothing_else(slow: bool) -> None:
    world = World(gets={TASK: [working(TASK, status_message="half")]})
    told, errors = anyio.Event(), list[BaseException]()

    async def on_update(task: Any) -> None:
        if task.status_message and slow:
            told.set()
            await anyio.sleep_forever()

    async def call(client: TasksClient) -> None:
        try:
            await client.call_tool("tool", on_update=on_update)
        except TasksClientError as error:
            errors.append(error)

    async with anyio.create_task_group() as host, world.client() as client:
        host.start_soon(call, client)
        await world.clock.advance(1.5)
        if slow:
            await told.wait()
    (error,) = errors
    assert "closed" in str(error)


async def test_on_update_may_use_the_client_that_is_just_closing_and_is_told_that_it_is_closed() -> None:
    world = World(gets={TASK: [working(TASK, status_message="half")]})
    told, errors = anyio.Event(), list[Exception]()

    async def on_update(task: Any) -> None:
        if not task.status_message:
            return
        told.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for use in (client.records, client.resume, partial(client.call_tool, "tool")):
                    try:
                        await use()
                    except Exception as error:
                        errors.append(error)

    async def call(client: TasksClient) -> None:
        with pytest.raises(TasksClientError, match="closed"):
            await client.call_tool("tool", on_update=on_update)

    async with anyio.create_task_group() as host, world.client() as client:
        host.start_soon(call, client)
        await world.clock.advance(1.5)
        await told.wait()
    assert [type(error) for error in errors] == [TasksClientError] * 3


@pytest.mark.parametrize("verb", ["result", "refresh", "cancel", "updates"])
@pytest.mark.parametrize("parked", [False, True], ids=["at work", "parked"])
async def test_a_handle_that_is_used_after_the_close_says_so(verb: str, parked: bool) -> None:
    world = World(gets={TASK: [input_required(TASK, {"k": ASK}) if parked else FOREVER]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(1.5)

    async def use() -> None:
        if verb == "updates":
            async for _ in handle.updates():
                pass
        else:
            await getattr(handle, verb)()

    for _ in range(2):
        with pytest.raises(TasksClientError, match=r"closed|got no answer"):
            await use()
    assert handle.task_id == TASK


async def test_a_question_is_put_again_for_whoever_waits_again_beside_another_waiter() -> None:
    """The first waiter to hear that the call parked waits again before the second has heard."""
    asks_first = {"resultType": "input_required", "inputRequests": {"q": ASK}, "requestState": "s"}
    world = World(calls=[asks_first, working(TASK, poll_interval_ms=1000)])
    asked = Asked(RuntimeError("nobody is there"), YES)
    outcomes: list[str] = []

    async with world.client(elicitation=asked) as client:

        async def insist() -> None:
            with pytest.raises(InputUnansweredError) as caught:
                await client.call_tool("tool", idempotency_key="k")
            outcomes.append(text(await caught.value.handle.result()))

        async def join() -> None:
            with suppress(InputUnansweredError):
                outcomes.append(text(await client.call_tool("tool", idempotency_key="k")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(insist)
            tasks.start_soon(join)
            for _ in range(10):
                await world.clock.advance(1.0)
            tasks.cancel_scope.cancel()
    assert asked.keys == ["q", "q"]
    assert "done" in outcomes


async def test_the_result_of_a_finished_task_is_there_after_the_client_has_closed() -> None:
    world = World()
    async with world.client() as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(5)
        assert handle.done
    for _ in range(2):
        assert text(await handle.result()) == "done"
    # The journal was closed by then, so that the next client hands the outcome out once more.
    assert not (await world.only_record()).delivered_at


@pytest.mark.parametrize("hint_ms", [5, 1, 0.001])
async def test_a_tiny_hint_does_not_ask_for_hundreds_of_polls_a_second(hint_ms: Any) -> None:
    """A tenth of a second after the first few, until something changes."""
    busy = working(TASK, poll_interval_ms=hint_ms)
    world = World(calls=[busy], gets={TASK: [*[busy] * 1_000, DONE]})
    async with world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(10)
        assert 95 <= len(world.polled_at()) <= 106
