"""One key, one call: from several clients of a process, and from several processes."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import anyio
import pytest

from mcp_tasks_client import idempotency_key
from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import (
    ConnectionLostError,
    IdempotencyConflictError,
    JournalError,
    OutcomeUnknownError,
    SessionError,
)
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.protocol.replies import CallReply
from mcp_tasks_client.sessions.base import BeforeSend, ToolCall
from mcp_tasks_client.testing import FaultPlan, text_result, working
from tests._results import text
from tests.engine.late_session import late_world
from tests.engine.world import DONE, LOST, TASK, World
from tests.scripted_session import ScriptedSession

pytestmark = pytest.mark.anyio

KEY = "order-42"
AT_ONCE = {"resultType": "complete", **text_result("at once")}


async def call(client: TasksClient, results: list[str], **options: Any) -> None:
    results.append(text(await client.call_tool("tool", idempotency_key=KEY, **options)))


# ── clients of one process ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("when", ["while the call is in flight", "while the task is polled"])
async def test_two_clients_that_call_under_one_key_make_one_call_and_have_one_result(when: str) -> None:
    world, server = late_world()
    results: list[str] = []
    async with world.client() as one, world.client() as other, anyio.create_task_group() as tasks:
        tasks.start_soon(call, one, results)
        await server.called.wait()
        if when == "while the task is polled":
            server.go.set()
            await world.clock.advance(0.1)
        tasks.start_soon(call, other, results)
        await world.clock.advance(0.5)
        server.go.set()
        await world.clock.advance(30)
    assert results == ["done", "done"]
    assert len(server.log("tools/call")) == 1
    assert len(server.log("tasks/get")) == 1


@pytest.mark.parametrize("how", ["closes", "gives up"])
async def test_a_follower_drives_the_call_on_when_its_owner_lets_go(how: str) -> None:
    world, server = late_world()
    server.go.set()
    results: list[str] = []
    async with world.client() as other, anyio.create_task_group() as tasks:
        async with world.client() as owner:
            async with anyio.create_task_group() as callers:
                callers.start_soon(call, owner, [])
                await world.clock.advance(0.2)
                tasks.start_soon(call, other, results)
                await world.clock.advance(0.2)
                assert world.polled_at() == []
                callers.cancel_scope.cancel()
            if how == "gives up":
                await world.clock.advance(10)
                assert results == ["done"]
        await world.clock.advance(10)
    assert results == ["done"]
    assert len(server.log("tools/call")) == 1


async def test_a_call_that_is_taken_back_just_as_another_client_joins_it_is_made_by_the_other() -> None:
    world, server = late_world(leaves=False, calls=[AT_ONCE])
    gives_up, results = anyio.CancelScope(), list[str]()

    class Slow(MemoryJournal):
        async def take(self, record_id: str, owner: str, gone: Any = ()) -> Any:
            gives_up.cancel()
            while await self.by_id(record_id) is not None:
                await anyio.lowlevel.checkpoint()
            server.leaves = True
            server.go.set()
            return await super().take(record_id, owner, gone)

    world.journal = Slow()
    async with world.client() as first, world.client() as second, anyio.create_task_group() as tasks:

        async def give_up() -> None:
            with gives_up:
                await call(first, results)

        tasks.start_soon(give_up)
        await server.called.wait()
        tasks.start_soon(call, second, results)
        await world.clock.advance(10)
    assert results == ["at once"]
    assert len(server.log("tools/call")) == 1


class Interrupted(FaultPlan):
    """Cancels a task natively, once a point is passed."""

    def __init__(self, point: str) -> None:
        super().__init__()
        self.task: asyncio.Task[Any] | None = None
        self.at(point, "before", self._interrupt)

    async def _interrupt(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_is_cancelled_natively_while_a_call_is_to_be_sent_again_leaves_the_key_to_others(
    anyio_backend: str,
) -> None:
    plan = Interrupted("commit: CallAgain")
    world = World(calls=[LOST, AT_ONCE])
    results: list[str] = []
    async with world.client(observer=plan) as first, world.client() as second:
        with pytest.raises(OutcomeUnknownError):
            await first.call_tool("tool", idempotency_key=KEY)
        plan.task = asyncio.ensure_future(call(first, [], on_unknown="resend"))
        await asyncio.wait([plan.task])
        assert plan.task.cancelled()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: call(second, results, on_unknown="resend"))
            await world.clock.advance(60)
            tasks.cancel_scope.cancel()
    assert results == ["at once"]
    assert len(world.server.log("tools/call")) == 2


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_is_cancelled_natively_while_the_key_is_claimed_leaves_the_key_to_others(
    anyio_backend: str,
) -> None:
    plan = Interrupted("commit: claim")
    world = World(calls=[AT_ONCE])
    results: list[str] = []
    async with world.client(observer=plan) as first, world.client() as second:
        plan.task = asyncio.ensure_future(call(first, []))
        await asyncio.wait([plan.task])
        assert plan.task.cancelled()
        await call(second, results)
    assert results == ["at once"]
    assert len(world.server.log("tools/call")) == 1


async def test_a_refused_call_whose_intent_could_not_be_removed_leaves_none_in_the_end() -> None:
    world = World(calls=[SessionError("busy", retryable=True, not_executed=True)])
    remove, failures = world.journal.remove, [JournalError("The disk is full.")]

    async def full(record: TaskRecord) -> None:
        if failures:
            raise failures.pop()
        await remove(record)

    world.journal.remove = full  # type: ignore[method-assign]  # for a moment
    async with world.client() as client:
        with pytest.raises(JournalError):
            await client.call_tool("tool", idempotency_key=KEY)
    async with world.journal:
        assert await world.journal.records(Scope("scripted")) == []


# ── a resend that comes to nothing ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(
            ConnectionLostError("connection refused", retryable=True, not_executed=True), id="not connected"
        ),
        pytest.param(SessionError("busy", retryable=True, http_status=429, not_executed=True), id="429"),
        pytest.param(SessionError("invalid", code=-32602, not_executed=True), id="refused for good"),
    ],
)
async def test_a_resend_that_is_refused_leaves_unknown_what_became_of_the_first_call(
    refusal: SessionError,
) -> None:
    world = World(calls=[LOST, refusal, AT_ONCE])
    async with world.client() as client:
        with pytest.raises(OutcomeUnknownError):
            await client.call_tool("tool", idempotency_key=KEY)
        with pytest.raises(Exception, match=r"refused|busy|invalid") as caught:
            await client.call_tool("tool", idempotency_key=KEY, on_unknown="resend")
        assert not isinstance(caught.value, OutcomeUnknownError), "this time it is known that it did not run"
    await nobody_sends_it_again_unasked(world, sent=2)


@pytest.mark.parametrize("how", ["stopped", "closed"])
async def test_a_resend_that_is_stopped_before_it_leaves_leaves_it_unknown(how: str) -> None:
    """As while a tools/list is being waited for that does not come."""
    world = World(calls=[LOST, AT_ONCE])
    waits = anyio.Event()

    async def unsent(call: ToolCall, before_send: BeforeSend) -> CallReply:
        waits.set()
        await anyio.sleep_forever()
        raise AssertionError("for ever is over")

    async with anyio.create_task_group() as tasks, world.client() as client:
        with pytest.raises(OutcomeUnknownError):
            await client.call_tool("tool", idempotency_key=KEY)
        plays, world.server.call = world.server.call, unsent  # type: ignore[method-assign]
        stopped = anyio.CancelScope()

        async def resend() -> None:
            with stopped, pytest.raises(Exception, match="closed"):
                await client.call_tool("tool", idempotency_key=KEY, on_unknown="resend")

        tasks.start_soon(resend)
        await waits.wait()
        if how == "stopped":
            stopped.cancel()
            await world.clock.advance(0)
    world.server.call = plays  # type: ignore[method-assign]
    await nobody_sends_it_again_unasked(world, sent=1)


async def nobody_sends_it_again_unasked(world: World, sent: int) -> None:
    """Whoever repeats the call is told that it may have run."""
    assert (await world.only_record()).status == "outcome_unknown"
    async with world.client() as client:
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError):
                await client.call_tool("tool", idempotency_key=KEY)
        assert len(world.server.log("tools/call")) == sent
        results: list[str] = []
        await call(client, results, on_unknown="resend")
        assert results == ["at once"]


async def test_a_resend_that_did_not_leave_can_be_repeated() -> None:
    class Unlisted(ScriptedSession):
        """The second ``tools/call`` fails before it leaves, as where the tools cannot be listed."""

        calls_made = 0

        async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
            self.calls_made += 1
            if self.calls_made == 2:
                raise ConnectionLostError("cannot list tools", retryable=True, not_executed=True)
            return await super().call(call, before_send)

    world = World(Unlisted, calls=[LOST, working(TASK, poll_interval_ms=1000)])
    kept: list[Exception] = []  # so that the live call stays, as it does while a host handles the error
    async with world.client() as client:
        for on_unknown, error in (("raise", OutcomeUnknownError), ("resend", ConnectionLostError)):
            with pytest.raises(error) as caught:
                await world.call(client, idempotency_key="k", on_unknown=on_unknown)
            kept.append(caught.value)
        assert text(await world.call(client, idempotency_key="k", on_unknown="resend")) == "done"


@pytest.mark.parametrize("way", ["block", "meta"])
async def test_a_key_that_is_no_argument_is_the_same_key(way: str) -> None:
    world = World(calls=[working(TASK)], gets={TASK: [DONE]})
    async with world.client() as client:
        with idempotency_key(KEY) if way == "block" else nullcontext():
            meta = {"x": 1} if way == "block" else {"mcp-tasks-client/idempotency-key": KEY, "x": 1}
            assert text(await world.call(client, meta=meta)) == "done"
        assert text(await world.call(client, idempotency_key=KEY)) == "done"
    (sent,) = world.server.log("tools/call")
    assert sent.call.meta == {"x": 1}


@pytest.mark.parametrize(("again", "joins"), [(1.0, True), (1, True), (True, False), ("1", False)])
async def test_a_number_that_is_written_otherwise_is_the_same_argument(again: Any, joins: bool) -> None:
    world = World(gets={TASK: [DONE]})
    async with world.client() as client:
        await world.call(client, arguments={"n": 1}, idempotency_key=KEY)
        with nullcontext() if joins else pytest.raises(IdempotencyConflictError):
            await world.call(client, arguments={"n": again}, idempotency_key=KEY)
        await world.call(client, arguments={"n": 1.0})
    sent = [repr(one.call.arguments) for one in world.server.log("tools/call")]
    assert sent == ["{'n': 1}", "{'n': 1.0}"], "what is sent is as it was given"
