"""Calls in line: none beyond the cap, each in its caller's context; one that is cut is taken back."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from mcp_tasks_client import MemoryJournal, PollPolicy, TasksClient, WaitTimeoutError
from mcp_tasks_client.old.drive import Drive
from mcp_tasks_client.old.line import Line
from mcp_tasks_client.old.sessions.base import Leaving, ToolCall
from mcp_tasks_client.old.testing import ManualClock, ScriptedServer, complete, text_result, work
from mcp_tasks_client.old.testing.client import scripted_client

pytestmark = pytest.mark.anyio

CAP = 4
"""Of the session."""

trace: ContextVar[int] = ContextVar("trace")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> ScriptedServer:
    server = ScriptedServer(clock=clock)
    server.tool("tool", [work(2), complete(text_result("done"))], poll_interval_ms=1000)
    return server


@asynccontextmanager
async def capped(
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    seen: dict[str, Any],
    poll: PollPolicy | None = None,
) -> AsyncIterator[TasksClient]:
    """A client whose session sends four calls at once, and holds each until it may go."""
    session = server.session()
    call = session.call

    async def held(made: ToolCall, leaving: Leaving) -> Any:
        seen["under_way"].append(trace.get(-1))
        await seen["may_go"].wait()
        return await call(made, leaving)

    monkeypatch.setattr(type(session), "calls_in_flight", property(lambda self: CAP))
    monkeypatch.setattr(session, "call", held)
    with anyio.fail_after(20):
        async with scripted_client(session, journal=MemoryJournal(), poll=poll) as client:
            yield client


async def test_no_more_calls_are_begun_than_there_is_room_for_and_each_in_its_own_context(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[int] = []
    may_go = anyio.Event()

    async def one(number: int) -> None:
        trace.set(number)
        await client.call_tool("tool")

    async with (
        capped(server, monkeypatch, {"under_way": under_way, "may_go": may_go}) as client,
        anyio.create_task_group() as callers,
    ):
        for number in range(40):
            callers.start_soon(one, number)
            await clock.advance(0)
        assert under_way == list(range(CAP))
        may_go.set()
        await clock.advance(10)
    assert sorted(under_way) == list(range(40))  # trio begins what is ready in any order
    assert sum(server.witness.calls.values()) == 40


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_call_that_is_cut_while_it_waits_in_line_is_taken_back_at_once(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    under_way: list[int] = []
    may_go = anyio.Event()
    async with (
        capped(server, monkeypatch, {"under_way": under_way, "may_go": may_go}) as client,
        anyio.create_task_group() as callers,
    ):
        for _ in range(CAP):
            callers.start_soon(client.call_tool, "tool")
        await clock.advance(0)
        with pytest.raises(WaitTimeoutError):
            await client.call_tool("tool", timeout=0.05, idempotency_key=key)
        await clock.advance(0)
        assert all(record.idempotency_key is None for record in await client.records())
        may_go.set()
        await clock.advance(10)
    assert sum(server.witness.calls.values()) == CAP


async def test_a_client_that_closes_sends_nothing_of_what_is_in_line(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[int] = []
    may_go = anyio.Event()
    handles = []
    async with (
        capped(server, monkeypatch, {"under_way": under_way, "may_go": may_go}) as client,
        anyio.create_task_group() as callers,
    ):
        for _ in range(10 * CAP):
            callers.start_soon(client.call_tool, "tool")
        await clock.advance(0)
        handles.append(len(under_way))
        callers.cancel_scope.cancel()
    assert handles == [CAP]
    assert len(under_way) <= 10 * CAP
    assert sum(server.witness.calls.values()) == 0


async def test_a_call_that_was_cut_in_line_and_is_wanted_again_is_made_once(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[int] = []
    may_go = anyio.Event()
    async with (
        capped(server, monkeypatch, {"under_way": under_way, "may_go": may_go}) as client,
        anyio.create_task_group() as callers,
    ):
        for _ in range(CAP):
            callers.start_soon(client.call_tool, "tool")
        await clock.advance(0)
        with pytest.raises(WaitTimeoutError) as given_up:
            await client.call_tool("tool", timeout=0.05, idempotency_key="key")
        assert given_up.value.handle is not None
        callers.start_soon(given_up.value.handle.result)
        await clock.advance(0)
        may_go.set()
        await clock.advance(10)
    assert sum(server.witness.calls.values()) == CAP + 1


async def test_while_calls_wait_in_line_each_poll_is_followed_by_a_rest(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[int] = []
    may_go = anyio.Event()
    may_go.set()
    seen: dict[str, Any] = {"under_way": under_way, "may_go": may_go}
    policy = PollPolicy(jitter=0.0, polls_in_flight=2)

    def polls() -> int:
        return len(server.witness.log("tasks/get"))

    async with (
        capped(server, monkeypatch, seen, policy) as client,
        anyio.create_task_group() as callers,
    ):
        for _ in range(20):
            await client.start_tool("tool")
        seen["may_go"] = anyio.Event()
        for _ in range(CAP + 1):
            callers.start_soon(client.call_tool, "tool")
        await clock.advance(1)
        assert polls() == 2, "as many as may be under way"
        for rests in range(1, 4):
            await clock.advance(0.02)
            assert polls() == 2 + 2 * rests
        seen["may_go"].set()
        await clock.advance(0.02)
        assert polls() == 20, "nobody is in a hurry any more"
        await clock.advance(10)


async def test_what_is_cut_in_line_is_not_kept(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arguments may be large, and the calls before it may take hours."""

    def drives() -> int:
        gc.collect()
        return len([one for one in gc.get_objects() if isinstance(one, Drive)])

    before = drives()  # tests that have failed before keep theirs
    under_way: list[int] = []
    may_go = anyio.Event()
    async with (
        capped(server, monkeypatch, {"under_way": under_way, "may_go": may_go}) as client,
        anyio.create_task_group() as callers,
    ):
        for _ in range(CAP):
            callers.start_soon(client.call_tool, "tool")
        await clock.advance(0)
        async with anyio.create_task_group() as others:
            for _ in range(20):
                others.start_soon(client.call_tool, "tool")
            await clock.advance(0)
            others.cancel_scope.cancel()
        await clock.advance(0)
        assert drives() - before == CAP
        may_go.set()
        await clock.advance(10)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # it knows nothing of the event loop
async def test_the_last_of_many_calls_in_line_costs_no_more_to_begin_than_the_first() -> None:
    """What has left the line must not be passed on the way to what is next.

    Nothing of that can be counted, so the processor's time is compared: that of this thread alone, with
    its own, and the least of many measurements.
    """
    many, some = 30_000, 500
    begun: deque[Any] = deque()

    class Tasks:
        def start_soon(self, *work: Any) -> None:
            begun.append(work)

    class Calling:
        begin: Any = None

    async def call(*given: Any) -> None:
        pass

    line = Line(1, Tasks(), call)  # type: ignore[arg-type]  # all that it wants of them
    for _ in range(many):
        line.join(None, None, Calling())  # type: ignore[arg-type]  # it looks at none of them
    costs: list[float] = []
    for _ in range(many // some):
        began = time.thread_time()
        for _ in range(some):
            work, *given = begun.popleft()
            await work(*given)
        costs.append(time.thread_time() - began)
    assert not begun
    quarter = len(costs) // 4
    assert min(costs[-quarter:]) < 3 * min(costs[:quarter])
