"""Calls that go again since they certainly did not run: when, how long, and over the death of a process."""

from __future__ import annotations

import math
import re
from typing import Any

import anyio
import pytest

from mcp_tasks_client import LastFailure
from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import (
    ConnectionLostError,
    JournalError,
    OutcomeUnknownError,
    SessionError,
    TaskCancelledError,
    WaitTimeoutError,
)
from mcp_tasks_client.handle import TaskHandle
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.testing import FaultPlan, KilledError, kill, raising, text_result, working
from mcp_tasks_client.testing.probes import Moment
from tests._results import text
from tests.engine.world import LOST, TASK, Asked, World

pytestmark = pytest.mark.anyio

KEY = "order-42"
CALLED_S = 1.0
"""Of real time: within so many seconds the first call has been made and refused, unless the machine is
busy."""
AT_ONCE = {"resultType": "complete", **text_result("done")}


def patient(wait_for_slot_s: float = 60.0, **options: Any) -> PollPolicy:
    return PollPolicy(jitter=0.0, wait_for_slot_s=wait_for_slot_s, **options)


def busy(retry_after_s: float | None = None) -> SessionError:
    return SessionError(
        "slow down", retryable=True, not_executed=True, http_status=429, retry_after_s=retry_after_s
    )


def called_at(world: World) -> list[float]:
    return [sent.at for sent in world.server.log("tools/call")]


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_call_goes_again_when_the_server_has_said_and_else_after_the_back_off(
    key: str | None,
) -> None:
    world = World(calls=[busy(30.0), busy(), busy(0.5), AT_ONCE])
    async with world.client(poll=patient()) as client:
        assert text(await world.call(client, idempotency_key=key)) == "done"
    assert called_at(world) == [0.0, 30.0, 32.0, 36.0]


async def test_the_wait_is_before_a_task_as_well() -> None:
    world = World(calls=[busy(), working(TASK, poll_interval_ms=1000)])
    async with world.client(poll=patient()) as client:
        handle = None

        async def start() -> None:
            nonlocal handle
            handle = await client.start_tool("tool")

        await world.during(start, 10)
        assert handle is not None
        assert handle.task_id == TASK
    assert called_at(world) == [0.0, 1.0]


async def test_no_wait_is_longer_than_the_longest() -> None:
    world = World(calls=[busy(7200.0), AT_ONCE])
    async with world.client(poll=patient(math.inf, longest_wait_s=60.0)) as client:
        assert text(await world.call(client)) == "done"
    assert called_at(world) == [0.0, 60.0]


@pytest.mark.parametrize(("retry_after_s", "sent_at"), [(None, [0.0, 1.0, 3.0]), (11.0, [0.0])])
async def test_who_would_wait_too_long_is_told_at_once_and_the_key_is_free(
    retry_after_s: float | None, sent_at: list[float]
) -> None:
    world = World(calls=[busy(retry_after_s)] * len(sent_at) + [AT_ONCE])
    async with world.client(poll=patient(5.0)) as client:
        with pytest.raises(SessionError, match="slow down") as raised:
            await world.call(client, idempotency_key=KEY)
        assert raised.value.retry_after_s == retry_after_s
        assert called_at(world) == sent_at
        assert await client.records() == []
        assert text(await world.call(client, idempotency_key=KEY)) == "done"


async def test_only_a_429_is_waited_for() -> None:
    for error in (LOST, SessionError("HTTP 503", retryable=True, http_status=503, retry_after_s=1.0)):
        world = World(calls=[error, AT_ONCE])
        async with world.client(poll=patient()) as client:
            with pytest.raises(OutcomeUnknownError):
                await world.call(client, idempotency_key=KEY)
        assert len(called_at(world)) == 1
    refused = ConnectionLostError("not sent", not_executed=True)
    world = World(calls=[refused, AT_ONCE])
    async with world.client(poll=patient()) as client:
        with pytest.raises(ConnectionLostError):
            await world.call(client)


# ── who goes away ─────────────────────────────────────────────────────────────────────────────


async def time_out(world: World, client: TasksClient, key: str | None) -> WaitTimeoutError:
    """Call, and give up while the call waits for its slot."""
    timeout = CALLED_S
    with anyio.fail_after(20):
        while True:
            with pytest.raises(WaitTimeoutError) as raised:
                await client.call_tool("tool", idempotency_key=key, timeout=timeout)
            if called_at(world):
                assert called_at(world) == [0.0]
                return raised.value
            timeout *= 2


async def stop_waiting(world: World, client: TasksClient, key: str | None) -> TaskHandle:
    """The handle of a call that was given up while it waited for its slot."""
    handle = (await time_out(world, client, key)).handle
    assert isinstance(handle, TaskHandle)
    return handle


@pytest.mark.parametrize("key", [None, KEY])
async def test_whoever_waits_for_a_slot_can_see_why(
    key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(calls=[busy(30.0), AT_ONCE])
    begun = world.clock.time()
    with caplog.at_level("INFO", "mcp_tasks_client"):
        async with world.client(poll=patient()) as client:
            error = await time_out(world, client, key)
            assert re.search(r"not begun.*slow down", str(error))
            failure = LastFailure(message="slow down", count=1, since=begun)
            assert error.last_failure == failure
            if key is not None:
                (record,) = await client.records()
                assert (record.status, record.last_failure) == ("gathering", failure)
    events = [getattr(told, "mcp_event", None) for told in caplog.records]
    assert events.count("waiting") == (key is not None)
    assert "unreachable" not in events


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_caller_that_stops_waiting_sends_nothing_more_and_can_wait_on(key: str | None) -> None:
    world = World(calls=[busy(30.0), AT_ONCE])
    async with world.client(poll=patient()) as client:
        handle = await stop_waiting(world, client, key)
        await world.clock.advance(10)
        await world.during(handle.result, 25)
    assert called_at(world) == [0.0, 30.0], "at the time that the server has named"


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("somebody_waits", [False, True])
async def test_a_call_that_waits_for_a_slot_can_be_cancelled_and_ends_at_once(
    key: str | None, somebody_waits: bool
) -> None:
    world = World(calls=[busy(30.0), AT_ONCE])
    ended = anyio.Event()

    async def wait(handle: TaskHandle) -> None:
        with pytest.raises(TaskCancelledError):
            await handle.result()
        ended.set()

    async with world.client(poll=patient()) as client, anyio.create_task_group() as tasks:
        handle = await stop_waiting(world, client, key)
        if somebody_waits:
            tasks.start_soon(wait, handle)
            await world.clock.advance(1)
        await handle.cancel()
        if not somebody_waits:
            tasks.start_soon(wait, handle)
        await ended.wait()
        await world.clock.advance(100)
    assert called_at(world) == [0.0]


async def test_who_does_not_allow_a_second_run_does_not_go_on_with_the_call_of_somebody_who_did() -> None:
    world = World(calls=[LOST, busy(2.0), AT_ONCE])
    async with world.client(poll=patient()) as client:
        for options in ({}, {"on_unknown": "resend", "timeout": CALLED_S}, {}, {}):
            with pytest.raises(WaitTimeoutError if options else OutcomeUnknownError):
                await client.call_tool("tool", idempotency_key=KEY, **options)
        assert len(called_at(world)) == 2
        assert text(await world.call(client, idempotency_key=KEY, on_unknown="resend")) == "done"
    async with world.client() as later:
        assert text(await later.call_tool("tool", idempotency_key=KEY)) == "done"


async def test_of_two_clients_that_wait_under_one_key_the_other_calls_when_one_has_given_up() -> None:
    world = World(calls=[busy(2.0), busy(5.0), AT_ONCE])
    async with world.client(poll=patient(3.0)) as one, world.client(poll=patient()) as other:
        results: list[str] = []

        async def call_too() -> None:
            results.append(text(await other.call_tool("tool", idempotency_key=KEY)))

        async def give_up() -> None:
            with pytest.raises(SessionError, match="slow down"):
                await one.call_tool("tool", idempotency_key=KEY)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up)
            await world.clock.advance(1)
            tasks.start_soon(call_too)
            await world.clock.advance(100)
        assert results == ["done"]


async def test_a_handle_of_a_wait_that_another_client_went_on_with_cancels_the_task() -> None:
    world = World(calls=[busy(30.0), working(TASK, poll_interval_ms=1000)], gets={TASK: [working(TASK)]})
    async with world.client(poll=patient()) as one, world.client(poll=patient()) as other:
        handle = await stop_waiting(world, one, KEY)
        await world.during(lambda: other.start_tool("tool", idempotency_key=KEY), 60)
        await handle.cancel()
        await world.clock.advance(1)
        assert len(world.server.log("tasks/cancel")) == 1


async def test_a_resent_call_that_is_cancelled_while_it_waits_for_a_slot_ends_at_once() -> None:
    """What became of the first one stays unknown."""
    world = World(calls=[LOST, busy(30.0), AT_ONCE])
    async with world.client(poll=patient()) as client, anyio.create_task_group() as tasks:
        with pytest.raises(OutcomeUnknownError):
            await client.call_tool("tool", idempotency_key=KEY)
        with pytest.raises(WaitTimeoutError) as raised:
            await client.call_tool("tool", idempotency_key=KEY, on_unknown="resend", timeout=CALLED_S)
        handle, ended = raised.value.handle, anyio.Event()
        assert isinstance(handle, TaskHandle)

        async def wait() -> None:
            with pytest.raises(OutcomeUnknownError):
                await handle.result()
            ended.set()

        tasks.start_soon(wait)
        await world.clock.advance(1)
        await handle.cancel()
        await ended.wait()


# ── a process that dies ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("moment", "point"), [("after", "commit: CallRefused"), ("before", "commit: CallBegun")]
)
async def test_a_process_that_is_killed_while_it_waits_leaves_its_key_usable(
    moment: Moment, point: str
) -> None:
    world, plan = World(calls=[busy(30.0), AT_ONCE]), FaultPlan()
    plan.at(point, moment, kill)
    with pytest.raises((KilledError, BaseExceptionGroup)):
        async with world.client(poll=patient(), observer=plan) as client:
            await world.call(client, idempotency_key=KEY, within=30.0)
    before = world.clock.monotonic()
    assert len(called_at(world)) == 1
    # The next process waits for no slot of its own, and for this one as long as the server has said.
    async with world.client() as client:
        assert text(await world.call(client, idempotency_key=KEY)) == "done"
    _, again = called_at(world)
    assert again == pytest.approx(30.0 if point == "commit: CallRefused" else before, abs=0.3)


async def test_a_process_that_is_killed_once_the_call_goes_again_leaves_its_outcome_unknown() -> None:
    world, plan = World(calls=[busy(30.0), AT_ONCE]), FaultPlan()
    plan.at("commit: CallBegun", "after", kill)
    with pytest.raises((KilledError, BaseExceptionGroup)):
        async with world.client(poll=patient(), observer=plan) as client:
            await world.call(client, idempotency_key=KEY)
    async with world.client() as client:
        with pytest.raises(OutcomeUnknownError):
            await world.call(client, idempotency_key=KEY)


async def test_a_wait_that_could_not_be_journaled_is_an_error_and_the_key_stays_usable() -> None:
    world, plan = World(calls=[busy(30.0), AT_ONCE]), FaultPlan()
    plan.at("commit: CallRefused", "before", raising(JournalError("The disk is full.")))
    async with world.client(poll=patient(), observer=plan) as client:
        with pytest.raises(JournalError):
            await world.call(client, idempotency_key=KEY)
        assert text(await world.call(client, idempotency_key=KEY)) == "done"
    assert len(called_at(world)) == 2


async def test_a_process_that_is_killed_while_a_person_visits_a_url_leaves_its_key_usable() -> None:
    entry = {"mode": "url", "message": "Authorize.", "url": "https://auth.test", "elicitationId": "1"}
    refused = SessionError("no", retryable=True, code=-32042, data={"elicitations": [entry]})
    world, plan = World(calls=[refused, AT_ONCE]), FaultPlan()
    plan.at("send: a question to the host", "before", kill)
    with pytest.raises((KilledError, BaseExceptionGroup)):
        async with world.client(elicitation=Asked(), observer=plan) as client:
            await world.call(client, idempotency_key=KEY)
    async with world.client() as client:
        assert text(await world.call(client, idempotency_key=KEY)) == "done"
    assert len(called_at(world)) == 2
