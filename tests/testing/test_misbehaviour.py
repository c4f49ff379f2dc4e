"""What goes wrong with a request because the test says so: the same in memory and over HTTP."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from mcp_tasks_client import Limits, Session, Task
from mcp_tasks_client.errors import ConnectionLostError, RemoteProtocolError, SessionError
from mcp_tasks_client.testing import (
    Arrival,
    Delayed,
    ErrorReply,
    Fault,
    Garbled,
    HttpError,
    LostReply,
    LostRequest,
    ManualClock,
    ScriptedServer,
    Stale,
    Stalled,
    Unreachable,
    ask,
    complete,
    reply,
    work,
)
from tests.testing.asking import DONE, NAME, call, catch, get, over_asgi, start

pytestmark = pytest.mark.anyio


FAULTS: list[tuple[Fault, type[SessionError], dict[str, Any]]] = [
    (LostRequest(), ConnectionLostError, {"retryable": True}),
    (LostReply(), ConnectionLostError, {"retryable": True}),
    (Unreachable(), ConnectionLostError, {"retryable": True, "not_executed": True}),
    (HttpError(500), SessionError, {"retryable": True, "http_status": 500}),
    (HttpError(500, acted=True), SessionError, {"retryable": True, "http_status": 500}),
    (HttpError(503, 1.5), SessionError, {"retryable": True, "http_status": 503, "retry_after_s": 1.5}),
    (
        HttpError(429, 1_000_000),
        SessionError,
        {"retryable": True, "not_executed": True, "http_status": 429, "retry_after_s": 1e6},
    ),
    (HttpError(401), SessionError, {"not_executed": True, "http_status": 401}),
    (
        ErrorReply(-32603, "Internal error", {"why": 1}),
        SessionError,
        {"retryable": True, "code": -32603, "data": {"why": 1}, "http_status": 200},
    ),
    (
        ErrorReply(-32602, "slow down", http_status=429, retry_after_s=7),
        SessionError,
        {"retryable": True, "not_executed": True, "code": -32602, "http_status": 429, "retry_after_s": 7},
    ),
    (
        ErrorReply(-32602, "no such upstream", http_status=502),
        SessionError,
        {"retryable": True, "code": -32602, "http_status": 502},
    ),
    (ErrorReply(-32000, "who are you", http_status=403), SessionError, {"http_status": 403}),
    (Garbled(), RemoteProtocolError, {"retryable": True, "http_status": 200}),
]
TOLD = ("retryable", "not_executed", "code", "remote_message", "data", "http_status", "retry_after_s")


@pytest.mark.parametrize("verb", ["tools/call", "tasks/get", "tasks/update", "tasks/cancel"])
@pytest.mark.parametrize(("fault", "kind", "told"), FAULTS, ids=lambda value: str(value)[:40])
async def test_a_fault_is_in_memory_what_it_is_over_http(
    clock: ManualClock, verb: str, fault: Fault, kind: type[SessionError], told: dict[str, Any]
) -> None:
    errors = []
    for face in ("memory", "http"):
        server = ScriptedServer(clock=clock)
        server.tool("tool", [ask("name", NAME), complete(DONE)])
        async with over_asgi(server) as http:
            session: Session = server.session() if face == "memory" else http
            ref = await start(session)
            server.misbehave(verb, fault)
            with anyio.fail_after(30):
                errors.append(await catch(session, verb, ref))
        acted = {
            "tools/call": server.witness.calls.total() == 2,
            "tasks/update": bool(server.witness.questions_answered),
        }
        assert acted.get(verb, fault.acted) == fault.acted
        assert server.witness.arrivals[-1].fault is fault
    memory, http_error = errors
    assert type(memory) is type(http_error)
    assert isinstance(memory, kind)
    seen = {name: getattr(memory, name) for name in TOLD}
    assert seen == {name: getattr(http_error, name) for name in TOLD}
    assert {name: seen[name] for name in told} == told
    assert memory.retryable == told.get("retryable", False)
    assert memory.not_executed == (told.get("not_executed", False) or seen["http_status"] == 403)


async def test_faults_come_in_order_and_then_all_is_well(server: ScriptedServer) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session()
    ref = await start(session)
    server.misbehave("tasks/get", HttpError(500), None, HttpError(502))
    seen = []
    for _ in range(4):
        try:
            seen.append((await get(session, ref)).status)
        except SessionError as error:
            seen.append(str(error.http_status))
    assert seen == ["500", "working", "502", "working"]


async def test_on_request_is_asked_about_whatever_is_not_said_beforehand(server: ScriptedServer) -> None:
    server.tool("tool", [work(math.inf)])
    asked: list[tuple[str, str | None, str | None, float]] = []

    def on_request(arrival: Arrival) -> Fault | None:
        asked.append((arrival.method, arrival.tool, arrival.task_id, arrival.at))
        return HttpError(500) if arrival.method == "tasks/cancel" else None

    server.on_request = on_request
    session = server.session()
    ref = await start(session)
    server.misbehave("tasks/get", HttpError(503))
    assert (await catch(session, "tasks/get", ref)).http_status == 503
    assert (await catch(session, "tasks/cancel", ref)).http_status == 500
    assert asked == [("tools/call", "tool", None, 0.0), ("tasks/cancel", None, ref.task_id, 0.0)]


@pytest.mark.parametrize("face", ["memory", "http"])
async def test_a_delayed_reply_takes_its_time_on_the_clock(
    server: ScriptedServer, clock: ManualClock, face: str
) -> None:
    server.tool("tool", [work(1), complete(DONE)])
    got: list[Task] = []
    async with over_asgi(server) as http:
        session: Session = server.session() if face == "memory" else http
        ref = await start(session)
        server.misbehave("tasks/get", Delayed(5))

        async def poll() -> None:
            got.append(await get(session, ref))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll)
                await clock.advance(4.9)
                assert not got
                await clock.advance(0.1)
    assert [task.status for task in got] == ["working"]  # as it was when the request came
    arrival = server.witness.log("tasks/get")[0]
    assert (arrival.at, arrival.answered_at) == (0.0, 5.0)


@pytest.mark.parametrize("fault", [Delayed(31), Stalled()])
async def test_a_reply_that_takes_longer_than_the_time_out_is_lost(
    server: ScriptedServer, clock: ManualClock, fault: Fault
) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session(limits=Limits(task_timeout_s=30))
    ref = await start(session)
    server.misbehave("tasks/cancel", fault)
    errors: list[SessionError] = []

    async def cancel() -> None:
        errors.append(await catch(session, "tasks/cancel", ref))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel)
            await clock.advance(29)
            assert not errors
            await clock.advance(1)
    assert isinstance(errors[0], ConnectionLostError)
    assert errors[0].retryable
    assert not errors[0].not_executed
    assert server.witness.arrivals[-1].answered_at is None
    assert (await get(session, ref)).status == "cancelled"


async def test_a_stalled_request_over_http_ends_with_its_client(server: ScriptedServer) -> None:
    server.tool("tool", [work(math.inf)])
    async with over_asgi(server) as session:
        ref = await start(session)
        session.limits = Limits(task_timeout_s=0.5)
        server.misbehave("tasks/get", Stalled())
        with anyio.fail_after(30):
            error = await catch(session, "tasks/get", ref)
    assert isinstance(error, ConnectionLostError)
    assert server.witness.arrivals[-1].answered_at is None


async def test_a_reply_that_nobody_waits_for_any_more_was_not_given(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session()
    ref = await start(session)
    server.misbehave("tasks/get", Delayed(5))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.get, ref)
        await clock.advance(1)
        tasks.cancel_scope.cancel()
    await clock.advance(10)
    assert server.witness.arrivals[-1].answered_at is None


async def test_a_stale_snapshot_is_one_that_was_sent_before(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("tool", [work(1, "one"), work(1, "two"), work(1, "three"), work(math.inf, "four")])
    session = server.session()
    ref = await start(session)
    server.misbehave("tasks/get", None, None, Stale(), Stale(back=2), None, Stale(back=9))
    seen = []
    for _ in range(6):
        await clock.advance(1)
        seen.append((await get(session, ref)).status_message)
    assert seen == ["two", "three", "three", "three", "four", "one"]


async def test_a_closed_session_sends_nothing(server: ScriptedServer) -> None:
    server.tool("tool", [reply(DONE)])
    session = server.session()
    await session.aclose()
    with pytest.raises(ConnectionLostError) as raised:
        await call(session, "tool")
    assert raised.value.not_executed
    assert server.witness.arrivals == []


async def test_a_request_in_memory_can_be_cancelled_on_its_way_there_and_on_its_way_back(
    server: ScriptedServer,
) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session()
    ref = await start(session)
    there, back = anyio.CancelScope(), anyio.CancelScope()
    there.cancel()
    with there:
        await session.get(ref)
    assert there.cancelled_caught
    assert server.witness.log("tasks/get") == []
    server.on_request = lambda arrival: back.cancel()
    with back:
        await session.get(ref)
    assert back.cancelled_caught
    assert len(server.witness.log("tasks/get")) == 1


@pytest.mark.parametrize(
    ("make", "arguments"), [(HttpError, (200,)), (Stale, (0,)), (work, (-1,)), (work, (math.nan,))]
)
def test_what_makes_no_sense_is_refused(make: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="got"):
        make(*arguments)
