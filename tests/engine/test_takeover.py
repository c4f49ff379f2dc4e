"""Calls that change hands: owners that cannot be seen and whose lease runs out, and who waits for them."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import (
    CallForgottenError,
    ConnectionLostError,
    JournalError,
    OutcomeUnknownError,
    TasksClientError,
)
from mcp_tasks_client.handle import TaskHandle
from mcp_tasks_client.journal.sqlite.journal import SqliteJournal
from mcp_tasks_client.protocol.replies import CallReply
from mcp_tasks_client.sessions.base import BeforeSend, ToolCall
from mcp_tasks_client.testing import (
    FaultPlan,
    ManualClock,
    completed,
    delay,
    input_required,
    raising,
    scripted_client,
    text_result,
    working,
)
from tests._results import text
from tests.engine.late_session import LateSession
from tests.engine.other_process import LEASE_S, Hosts, OnDisk
from tests.engine.world import ASK, DONE, LOST, TASK, Asked, World
from tests.scripted_session import STALL, ScriptedSession

pytestmark = pytest.mark.anyio

KEY = "order-42"
AT_ONCE = {"resultType": "complete", **text_result("at once")}
AT_WORK = working(TASK, poll_interval_ms=1000)
LATER = {"resultType": "input_required", "requestState": "1"}
FULL = JournalError("The disk is full. Make room and try again.")


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


async def call(client: TasksClient, outcomes: list[Any], handle: TaskHandle | None = None) -> None:
    """Call under the key, or wait for the handle; what comes of it."""
    try:
        waits = handle.result() if handle else client.call_tool("tool", idempotency_key=KEY)
        outcomes.append(text(await waits))
    except TasksClientError as error:
        outcomes.append(error)


# ── a lease that runs out ─────────────────────────────────────────────────────────────────────


async def test_a_task_of_a_host_that_cannot_be_seen_is_followed_and_taken_over_when_its_lease_runs_out(
    hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mcp_tasks_client")
    theirs = ScriptedSession(clock=hosts.clock, calls=[working(TASK, poll_interval_ms=600_000)])
    ours = ScriptedSession(clock=hosts.other_clock, gets={TASK: [DONE]})
    outcomes: list[Any] = []
    with anyio.fail_after(20):
        async with (
            hosts.first(theirs) as first,
            hosts.second(ours) as second,
            anyio.create_task_group() as tasks,
        ):
            await first.start_tool("tool", idempotency_key=KEY)
            tasks.start_soon(call, second, outcomes)
            await hosts.outlast(LEASE_S - 1)
            assert await second.resume() == []
            assert (outcomes, ours.sent) == ([], [])
            while not outcomes:
                await hosts.outlast()
            assert outcomes == ["done"]
    assert ours.log("tools/call") == []
    turns = [getattr(line, "mcp_event", None) for line in caplog.records]
    assert turns.index("created") < turns.index("taken over") < turns.index("ended")
    assert turns.count("taken over") == 1


@pytest.mark.parametrize("then", ["awaited again", "closed"])
async def test_a_task_id_that_comes_when_the_call_was_given_up_elsewhere_is_not_lost(
    hosts: Hosts, then: str
) -> None:
    late = LateSession(clock=hosts.clock, calls=[AT_WORK], gets={TASK: [DONE]})
    outcomes: list[Any] = []
    with anyio.fail_after(20):
        async with hosts.second(ScriptedSession(gets={TASK: [DONE]})) as second:
            async with hosts.first(late) as first, anyio.create_task_group() as tasks:
                tasks.start_soon(call, first, outcomes)
                await late.called.wait()
                await hosts.outlast()
                with pytest.raises(OutcomeUnknownError):
                    await second.call_tool("tool", idempotency_key=KEY)
                late.go.set()
                if then == "awaited again":
                    await hosts.until(lambda: outcomes)
                else:
                    tasks.cancel_scope.cancel()
            if then == "awaited again":
                assert outcomes == ["done"]
            (record,) = await second.records()
            assert record.task_id == TASK
    assert len(late.log("tools/call")) == 1


@pytest.mark.parametrize("at_its_end", [False, True])
async def test_a_reply_that_comes_when_another_host_has_called_again_is_dropped_for_that_ones_result(
    hosts: Hosts, at_its_end: bool, caplog: pytest.LogCaptureFixture
) -> None:
    late = LateSession(clock=hosts.clock, calls=[AT_WORK])
    theirs = ScriptedSession(
        clock=hosts.other_clock,
        calls=[working("task-theirs", poll_interval_ms=1000)],
        gets={"task-theirs": [completed("task-theirs", text_result("theirs"))]},
    )
    outcomes: list[Any] = []
    with anyio.fail_after(20):
        async with (
            hosts.first(late) as first,
            hosts.second(theirs) as second,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(call, first, outcomes)
            await late.called.wait()
            await hosts.outlast()
            await second.start_tool("tool", idempotency_key=KEY, on_unknown="resend")
            if at_its_end:
                await hosts.outlast(5)
            late.go.set()
            await hosts.until(lambda: outcomes)
    assert outcomes == ["theirs"]
    assert "too late" in caplog.text


async def test_a_call_that_another_client_received_and_the_journal_forgot_has_an_error_of_its_own(
    hosts: Hosts,
) -> None:
    async with hosts.first(ScriptedSession(clock=hosts.clock, calls=[AT_WORK])) as first:
        await first.start_tool("tool")
    plan, session = FaultPlan(), ScriptedSession(clock=hosts.other_clock)
    with anyio.fail_after(20):
        async with hosts.second(session, observer=plan) as second, SqliteJournal(hosts.path) as journal:
            (record,) = await second.records()
            plan.at("commit: take", "before", partial(journal.remove, record))
            attached = await second.attach(record)
            with pytest.raises(CallForgottenError, match="another client brought it to its end"):
                await attached.result()
    assert session.log("tasks/get") == []


async def test_a_caller_that_allows_it_has_a_call_sent_again_whose_owner_it_had_followed(
    hosts: Hosts,
) -> None:
    late = LateSession(clock=hosts.clock, calls=[AT_WORK])
    ours = ScriptedSession(clock=hosts.other_clock, calls=[AT_ONCE])
    outcomes: list[Any] = []

    async def follow(client: TasksClient) -> None:
        outcomes.append(text(await client.call_tool("tool", idempotency_key=KEY, on_unknown="resend")))

    with anyio.fail_after(20):
        async with (
            hosts.second(ours) as second,
            hosts.first(late) as first,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(call, first, [])
            await late.called.wait()
            tasks.start_soon(follow, second)
            await hosts.outlast(LEASE_S - 1)
            assert outcomes == []  # it looks on
            while not outcomes:
                await hosts.outlast(1)
                await anyio.sleep(0.001)  # the journal's thread works meanwhile, by no clock of ours
            assert outcomes == ["at once"]
            tasks.cancel_scope.cancel()
            late.go.set()
    assert len(ours.log("tools/call")) == 1


async def test_a_round_that_another_host_took_over_before_it_left_is_not_sent_as_well(hosts: Hosts) -> None:
    late = ScriptedSession(clock=hosts.clock, calls=[LATER, AT_ONCE])
    theirs = ScriptedSession(clock=hosts.other_clock, calls=[AT_WORK], gets={TASK: [DONE]})
    outcomes: list[Any] = []
    with anyio.fail_after(20):
        async with (
            hosts.first(late) as first,
            hosts.second(theirs) as second,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(call, first, outcomes)
            await hosts.clock.advance(0.1)  # the next round is to be sent in a moment
            await hosts.outlast()
            tasks.start_soon(call, second, [])
            while not theirs.log("tools/call"):
                await hosts.outlast(1)
                await anyio.sleep(0.001)  # the journal's thread works meanwhile, by no clock of ours
            await hosts.until(lambda: outcomes)
    assert outcomes == ["done"]
    assert len(late.log("tools/call")) == 1


@pytest.mark.parametrize("made", ["a loss", "a loss, and it may run twice", "a task"])
async def test_a_key_stands_for_what_another_host_has_made_of_a_call_that_was_then_refused_here(
    hosts: Hosts, made: str
) -> None:
    refused = ConnectionLostError("No connection came about.", retryable=True, not_executed=True)
    late = LateSession(clock=hosts.clock, calls=[refused, AT_ONCE], gets={TASK: [DONE]})
    theirs = ScriptedSession(
        clock=hosts.other_clock, calls=[AT_WORK if made == "a task" else LOST], gets={TASK: [STALL]}
    )
    outcomes: list[Any] = []
    with anyio.fail_after(20):
        async with hosts.first(late) as first, anyio.create_task_group() as tasks:
            tasks.start_soon(call, first, outcomes)
            await late.called.wait()
            await hosts.outlast()
            async with hosts.second(theirs) as second:
                with suppress(OutcomeUnknownError):
                    await second.start_tool("tool", idempotency_key=KEY, on_unknown="resend")
            late.go.set()
            await hosts.until(lambda: outcomes)
            assert isinstance(outcomes[0], ConnectionLostError)
            with anyio.fail_after(30):
                again = partial(first.call_tool, "tool", idempotency_key=KEY)
                if made == "a task":
                    tasks.start_soon(call, first, outcomes)
                    await hosts.until(lambda: outcomes[1:])
                    assert outcomes[1:] == ["done"]
                elif made == "a loss":
                    with pytest.raises(OutcomeUnknownError):
                        await again()
                else:
                    assert text(await again(on_unknown="resend")) == "at once"


async def test_a_journal_that_was_set_back_to_before_a_call_was_refused_leaves_its_outcome_unknown() -> None:
    """As after the failover to a standby that had not heard of the last commit."""
    refused = ConnectionLostError("No connection came about.", retryable=True, not_executed=True)
    world = World(calls=[refused, AT_ONCE])
    async with world.client() as client:
        world.journal.remove = lambda record: anyio.lowlevel.checkpoint()  # type: ignore[method-assign]
        outcomes: list[Any] = []
        await call(client, outcomes)
        with anyio.fail_after(30), pytest.raises(OutcomeUnknownError):
            await client.call_tool("tool", idempotency_key=KEY)
        assert isinstance(outcomes[0], ConnectionLostError), "which keeps the call"
        again = await client.call_tool("tool", idempotency_key=KEY, on_unknown="resend")
        assert text(again) == "at once"


class Unreachable(ScriptedSession):
    """Cannot send the first ``tools/call``."""

    unreachable = True

    async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
        if self.unreachable:
            self.unreachable = False
            raise ConnectionLostError("No connection came about.", retryable=True, not_executed=True)
        return await super().call(call, before_send)


async def test_what_was_not_yet_sent_is_not_sent_any_more_when_another_host_has_had_the_call(
    hosts: Hosts,
) -> None:
    plan = FaultPlan()
    for nth in (1, 2):  # or the intent is taken back, and there is nothing to take over
        plan.at("commit: CallRefused", "before", raising(FULL), nth=nth)
    late = Unreachable(clock=hosts.clock, calls=[AT_ONCE])
    with anyio.fail_after(20):
        async with (
            hosts.first(late, observer=plan) as first,
            hosts.second(ScriptedSession(clock=hosts.other_clock, calls=[LOST])) as second,
        ):
            with pytest.raises(JournalError) as caught:
                await first.call_tool("tool", idempotency_key=KEY)
            await hosts.outlast()
            with pytest.raises(OutcomeUnknownError):
                await second.call_tool("tool", idempotency_key=KEY, on_unknown="resend")
            with anyio.fail_after(30):  # its release is written a moment after its error is told
                while (await second.records())[0].owner is not None:
                    await anyio.sleep(0.01)
            outcomes: list[Any] = []
            for _ in range(2):
                await call(first, outcomes, caught.value.handle)
            assert isinstance(outcomes[-1], OutcomeUnknownError), outcomes
    assert late.log("tools/call") == []


@pytest.mark.parametrize("key", [KEY, None])
async def test_a_late_owner_does_not_bring_back_what_another_host_delivered_and_had_forgotten(
    hosts: Hosts, key: str | None
) -> None:
    late = ScriptedSession(clock=hosts.clock, calls=[AT_WORK], gets={TASK: [DONE]})
    with anyio.fail_after(20):
        async with hosts.first(late) as first, hosts.second(ScriptedSession(gets={TASK: [DONE]})) as second:
            handle = await first.start_tool("tool", idempotency_key=key)
            await hosts.outlast()
            (theirs,) = await second.resume()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(theirs.result)
                await hosts.outlast(5)
            await hosts.outlast(61)
            assert await second.prune(0) == (1 if key else 0), "without a key it is forgotten at once"
            for _ in range(2):
                outcomes: list[Any] = []
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call, first, outcomes, handle)
                    await hosts.clock.advance(5)
                assert isinstance(outcomes[0], JournalError), outcomes
            assert await second.records() == []


@pytest.mark.parametrize("way", ["key", "attach"])
async def test_an_outcome_that_a_dead_host_left_is_delivered_for_good(hosts: Hosts, way: str) -> None:
    session = ScriptedSession(clock=hosts.clock, calls=[AT_WORK], gets={TASK: [DONE]})
    with anyio.fail_after(20):
        async with hosts.first(session) as first, hosts.second(ScriptedSession()) as second:
            handle = await first.start_tool("tool", idempotency_key=KEY)
            while not handle.done:
                await hosts.clock.advance(1)
            await hosts.outlast()
            if way == "key":
                result = await second.call_tool("tool", idempotency_key=KEY)
            else:
                result = await (await second.attach(TASK)).result()
            assert text(result) == "done"
            (record,) = await second.records()
            assert record.delivered_at is not None
            assert await second.resume() == []


async def test_a_task_that_another_host_has_taken_is_cancelled_though_an_answer_was_never_journaled(
    hosts: Hosts,
) -> None:
    plan = FaultPlan()
    plan.at("commit: AnswerReady", "before", raising(FULL))
    driving = ScriptedSession(gets={TASK: [working(TASK)]})
    late = ScriptedSession(
        clock=hosts.clock, calls=[AT_WORK], gets={TASK: [input_required(TASK, {"k": ASK})]}
    )
    with anyio.fail_after(20):
        async with (
            hosts.first(late, observer=plan, elicitation=Asked()) as first,
            hosts.second(driving) as second,
        ):
            handle = await first.start_tool("tool", idempotency_key=KEY)
            await hosts.clock.advance(5)
            await hosts.outlast(LEASE_S + 6)
            assert len(await second.resume()) == 1
            outcomes: list[Any] = []
            await call(first, outcomes, handle)  # of the full disk
            await handle.cancel()
            await hosts.until(lambda: driving.log("tasks/cancel"))
    assert not late.log("tasks/cancel")  # only the owner sends


# ── clients of one process ────────────────────────────────────────────────────────────────────


async def test_who_stops_waiting_while_a_call_is_being_sent_again_leaves_the_key_to_others(
    tmp_path: Path,
) -> None:
    path, clock, plan = tmp_path / "journal.sqlite3", ManualClock(), FaultPlan()
    plan.at("commit: CallAgain", "before", delay(clock, 1.0))
    session = ScriptedSession(clock=clock, calls=[LOST, AT_ONCE])
    resend = partial(TasksClient.call_tool, name="tool", idempotency_key=KEY, on_unknown="resend")
    async with (
        scripted_client(session, journal=OnDisk(path, clock), observer=plan) as first,
        scripted_client(session, journal=OnDisk(path, clock)) as second,
    ):
        with anyio.fail_after(20):
            with pytest.raises(OutcomeUnknownError):
                await first.call_tool("tool", idempotency_key=KEY)
            gives_up = anyio.CancelScope()

            async def give_up() -> None:
                with gives_up:
                    await resend(first)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(give_up)
                while ("before", "commit: CallAgain") not in plan.passed:
                    await clock.advance(0)
                gives_up.cancel()
                await clock.advance(1)
            assert text(await resend(second)) == "at once"
    assert len(session.log("tools/call")) == 2
