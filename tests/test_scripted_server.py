"""The public scripted server: its timelines, its faults on request, its witness, and both of its faces."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from mcp_types import ElicitResult

from mcp_tasks_client import (
    ConnectionLostError,
    MemoryJournal,
    RemoteProtocolError,
    SessionError,
    TaskNotFoundError,
)
from mcp_tasks_client.old.sessions.base import INVALID_PARAMS, Session, TaskRef, ToolCall
from mcp_tasks_client.old.sessions.http import HttpSession
from mcp_tasks_client.old.testing import (
    Arrival,
    Delayed,
    ErrorReply,
    Fault,
    Garbled,
    HttpError,
    HungUp,
    LostReply,
    LostRequest,
    ManualClock,
    ScriptedServer,
    ServerSession,
    Stale,
    Stalled,
    Step,
    Unreachable,
    abort,
    ask,
    ask_first,
    complete,
    fail,
    form,
    hint,
    reply,
    scripted_client,
    text_result,
    vanish,
    work,
)
from mcp_tasks_client.old.wire import Created, InputRequired, JSONObject, Returned, Task

pytestmark = pytest.mark.anyio

DONE = text_result("done")
NAME = form("Who?", name="string")
ADA: JSONObject = {"action": "accept", "content": {"name": "Ada"}}
BOB: JSONObject = {"action": "accept", "content": {"name": "Bob"}}
URL = "http://server.test/mcp"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> ScriptedServer:
    return ScriptedServer(clock=clock)


async def start(session: Session, tool: str = "tool", **arguments: Any) -> TaskRef:
    created = await session.call(ToolCall(name=tool, arguments=arguments))
    assert isinstance(created, Created)
    return TaskRef(created.task.task_id, created.task.request_state)


@contextmanager
def refused(code: int, words: str | None = None) -> Iterator[None]:
    with pytest.raises(SessionError, match=words) as caught:
        yield
    assert caught.value.code == code


@asynccontextmanager
async def over_asgi(server: ScriptedServer, **options: Any) -> AsyncIterator[HttpSession]:
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        yield HttpSession(URL, http_client=client, **options)


async def answer(context: object, params: object) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


# ── a task's timeline ─────────────────────────────────────────────────────────────────────────


async def test_a_task_is_wherever_its_timeline_is(server: ScriptedServer, clock: ManualClock) -> None:
    greeting = complete(lambda answers: text_result(f"Hello, {answers['name']['content']['name']}"))
    server.tool("tool", [work(30, "building"), ask("name", NAME), work(5), greeting], ttl_ms=60_000)
    session = server.session()
    ref = await start(session)

    first = await session.get(ref)
    assert (first.status, first.status_message) == ("working", "building")
    assert (first.poll_interval_ms, first.ttl_ms) == (1000, 60_000)
    assert first.created_at == first.last_updated_at == "2027-01-15T08:00:00.000Z"
    await clock.advance(29.9)
    assert (await session.get(ref)).status == "working"

    await clock.advance(0.1)
    asking = await session.get(ref)
    assert asking.status == "input_required"
    assert asking.input_requests == {"name": NAME}
    assert asking.last_updated_at == "2027-01-15T08:00:30.000Z"

    await session.update(ref, {"name": ADA})
    await clock.advance(5)
    assert (await session.get(ref)).status == "working"
    await clock.advance(0.1)
    done = await session.get(ref)
    assert done.status == "completed"
    assert done.result == text_result("Hello, Ada")


async def test_the_same_question_shows_until_its_answer_has_settled(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("tool", [ask("name", NAME), complete(DONE)], settle_s=2)
    session = server.session()
    ref = await start(session)
    before = await session.get(ref)
    await session.update(ref, {"name": ADA})
    assert (await session.get(ref)).input_requests == before.input_requests
    await clock.advance(1.9)
    assert (await session.get(ref)).input_requests == before.input_requests
    await clock.advance(0.1)
    assert (await session.get(ref)).status == "completed"


async def test_a_partial_answer_leaves_the_rest_pending(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("tool", [ask({"a": NAME, "b": NAME}), complete(DONE)])
    session = server.session()
    ref = await start(session)
    await session.get(ref)
    await session.update(ref, {"a": ADA})
    await clock.advance(1)
    assert (await session.get(ref)).input_requests == {"b": NAME}
    await session.update(ref, {"b": BOB})
    await clock.advance(1)
    assert (await session.get(ref)).status == "completed"
    assert server.witness.questions_answered == {(ref.task_id, "a"), (ref.task_id, "b")}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"action": "accept", "content": {"name": 3}}, "string"),
        ({"action": "accept", "content": {}}, "required"),
        ({"action": "accept"}, "required"),
        ({"roots": []}, "none to elicitation/create"),
    ],
)
async def test_an_answer_of_the_wrong_shape_is_refused_and_the_task_waits_on(
    server: ScriptedServer, clock: ManualClock, bad: JSONObject, why: str
) -> None:
    server.tool("tool", [ask({"a": NAME, "b": NAME}), complete(DONE)])
    session = server.session()
    ref = await start(session)
    with refused(INVALID_PARAMS, f"'b'.*{why}"):
        await session.update(ref, {"a": ADA, "b": bad})
    await clock.advance(1)
    assert set((await session.get(ref)).input_requests or ()) == {"a", "b"}
    assert server.witness.questions_answered == set()


@pytest.mark.parametrize(
    ("request_", "good"),
    [
        (NAME, {"action": "decline"}),
        ({"method": "roots/list"}, {"roots": [{"uri": "file:///tmp"}]}),
        (
            {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}},
            {"role": "assistant", "content": {"type": "text", "text": "4"}, "model": "m"},
        ),
    ],
)
async def test_every_kind_of_question_takes_its_kind_of_answer(
    server: ScriptedServer, clock: ManualClock, request_: JSONObject, good: JSONObject
) -> None:
    server.tool("tool", [ask("key", request_), complete(DONE)])
    session = server.session()
    ref = await start(session)
    await session.update(ref, {"key": good})
    await clock.advance(1)
    assert (await session.get(ref)).status == "completed"


@pytest.mark.parametrize("after_s", [1, 100])
async def test_answers_to_a_task_that_has_moved_on_are_refused_unless_it_is_lenient(
    server: ScriptedServer, clock: ManualClock, after_s: float
) -> None:
    steps = [ask("a", NAME), ask("b", NAME), work(10), complete(DONE)]
    server.tool("strict", steps)
    server.tool("lenient", steps, late_answers=True)
    session = server.session()
    strict, lenient = await start(session, "strict"), await start(session, "lenient")
    for ref in (strict, lenient):
        await session.update(ref, {"a": ADA})
        await session.update(ref, {"a": ADA})  # not settled yet, so not late
    await clock.advance(1)
    if after_s == 100:
        for ref in (strict, lenient):
            await session.update(ref, {"b": ADA})
    await clock.advance(after_s)
    await session.update(lenient, {"a": BOB})
    with refused(INVALID_PARAMS, "does not wait"):
        await session.update(strict, {"a": BOB})


async def test_what_is_not_asked_is_acknowledged_and_ignored(server: ScriptedServer) -> None:
    server.tool("tool", [ask("a", NAME), complete(DONE)])
    session = server.session()
    ref = await start(session)
    await session.update(ref, {})
    await session.update(ref, {"nonsense": {"any": "thing"}})
    assert (await session.get(ref)).input_requests == {"a": NAME}
    assert server.witness.unasked == {(ref.task_id, "nonsense")}
    assert server.witness.questions_answered == set()
    with pytest.raises(AssertionError, match="never asked 'nonsense'"):
        server.witness.check()


async def test_the_first_answer_counts(server: ScriptedServer, clock: ManualClock) -> None:
    result = complete(lambda answers: text_result(answers["a"]["content"]["name"]))
    server.tool("tool", [ask("a", NAME), result])
    session = server.session()
    ref = await start(session)
    await session.update(ref, {"a": ADA})
    await session.update(ref, {"a": BOB})
    await clock.advance(1)
    assert (await session.get(ref)).result == text_result("Ada")


async def test_a_cancel_is_acknowledged_before_the_task_ends(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("tool", [work(math.inf)], settle_s=2)
    session = server.session()
    ref = await start(session)
    await session.cancel(ref)
    assert (await session.get(ref)).status == "working"
    await clock.advance(2)
    assert (await session.get(ref)).status == "cancelled"
    await session.cancel(ref)
    assert (await session.get(ref)).status == "cancelled"


@pytest.mark.parametrize("options", [{"cancellable": False}, {"settle_s": 11}])
async def test_a_task_may_complete_although_it_was_cancelled(
    server: ScriptedServer, clock: ManualClock, options: dict[str, Any]
) -> None:
    server.tool("tool", [work(10), complete(DONE)], **options)
    session = server.session()
    ref = await start(session)
    await session.cancel(ref)
    await clock.advance(10)
    assert (await session.get(ref)).status == "completed"
    await clock.advance(10)
    assert (await session.get(ref)).status == "completed"


async def test_a_cancelled_question_is_over(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("tool", [ask("a", NAME), complete(DONE)])
    session = server.session()
    ref = await start(session)
    await session.cancel(ref)
    await clock.advance(1)
    assert (await session.get(ref)).status == "cancelled"
    with refused(INVALID_PARAMS):
        await session.update(ref, {"a": ADA})


async def test_a_task_may_fail_and_may_be_cancelled_by_the_server(server: ScriptedServer) -> None:
    server.tool("failing", [fail(-32050, "quota", {"left": 0})])
    server.tool("aborted", [abort("out of paper")])
    session = server.session()
    failed = await session.get(await start(session, "failing"))
    assert failed.error == {"code": -32050, "message": "quota", "data": {"left": 0}}
    assert (failed.status, failed.status_message) == ("failed", "quota")
    aborted = await session.get(await start(session, "aborted"))
    assert (aborted.status, aborted.status_message) == ("cancelled", "out of paper")


async def test_a_task_that_vanishes_is_unknown_to_every_verb(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("tool", [work(5), vanish()])
    session = server.session()
    ref = await start(session)
    assert (await session.get(ref)).status == "working"
    await clock.advance(4.95)
    await session.cancel(ref)  # too late to take effect
    await clock.advance(1)
    for verb in (session.get(ref), session.update(ref, {}), session.cancel(ref)):
        with refused(INVALID_PARAMS, "not found"):
            await verb


async def test_the_time_to_live_deletes_the_task_unless_it_is_extended_in_time(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("short", [work(math.inf)], ttl_ms=10_000)
    server.tool("done", [complete(DONE)], ttl_ms=10_000)
    server.tool("extended", [work(9), hint(ttl_ms=60_000), work(math.inf)], ttl_ms=10_000)
    server.tool("too late", [work(11), hint(ttl_ms=60_000), work(math.inf)], ttl_ms=10_000)
    session = server.session()
    refs = {name: await start(session, name) for name in ("short", "done", "extended", "too late")}
    await clock.advance(9.9)
    for ref in refs.values():
        await session.get(ref)
    await clock.advance(10)
    assert (await session.get(refs.pop("extended"))).ttl_ms == 60_000
    for ref in refs.values():
        with refused(INVALID_PARAMS, "expired"):
            await session.get(ref)


async def test_hints_may_change(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool(
        "tool", [work(5), hint(poll_interval_ms=250), work(5), hint(poll_interval_ms=None), complete(DONE)]
    )
    session = server.session()
    ref = await start(session)
    seen = []
    for _ in range(3):
        seen.append((await session.get(ref)).poll_interval_ms)
        await clock.advance(5)
    assert seen == [1000, 250, None]


async def test_a_task_that_is_over_at_its_creation_has_its_result_in_a_poll_only(
    server: ScriptedServer,
) -> None:
    server.tool("tool", [complete(DONE)])
    session = server.session()
    created = await session.call(ToolCall(name="tool"))
    assert isinstance(created, Created)
    assert (created.task.status, created.task.result) == ("completed", None)
    assert (await session.get(TaskRef(created.task.task_id))).result == DONE


# ── before there is a task ────────────────────────────────────────────────────────────────────


async def test_rounds_come_before_the_task_and_their_answers_reach_it(server: ScriptedServer) -> None:
    both = complete(lambda answers: text_result(" and ".join(answers)))
    server.tool("tool", [ask_first("a", NAME), ask_first({}), both])
    session = server.session()
    first = await session.call(ToolCall(name="tool", arguments={"x": 1}))
    assert isinstance(first, InputRequired)
    assert first.requests == {"a": NAME}
    second = await session.call(
        ToolCall(
            name="tool", arguments={"x": 1}, input_responses={"a": ADA}, request_state=first.request_state
        )
    )
    assert isinstance(second, InputRequired)
    assert second.requests == {}
    third = await session.call(ToolCall(name="tool", arguments={"x": 1}, request_state=second.request_state))
    assert isinstance(third, Created)
    assert (await session.get(TaskRef(third.task.task_id))).result == text_result("a")
    assert server.witness.calls.total() == 1
    assert server.witness.answers == {(first.request_state, "a"): [ADA]}
    assert server.witness.questions_answered == {(first.request_state, "a")}


@pytest.mark.parametrize(
    "change",
    [
        {"request_state": "another"},
        {"arguments": {"x": 2}},
        {"name": "other"},
        {"input_responses": {}},
        {"input_responses": {"a": ADA, "b": ADA}},
        {"input_responses": {"a": {"action": "accept", "content": {}}}},
    ],
)
async def test_a_round_takes_back_only_what_it_handed_out(
    server: ScriptedServer, change: dict[str, Any]
) -> None:
    for name in ("tool", "other"):
        server.tool(name, [ask_first("a", NAME), reply(DONE)])
    session = server.session()
    first = await session.call(ToolCall(name="tool", arguments={"x": 1}))
    assert isinstance(first, InputRequired)
    good: dict[str, Any] = {
        "name": "tool",
        "arguments": {"x": 1},
        "input_responses": {"a": ADA},
        "request_state": first.request_state,
    }
    with refused(INVALID_PARAMS):
        await session.call(ToolCall(**{**good, **change}))
    assert server.witness.calls.total() == 0
    assert isinstance(await session.call(ToolCall(**good)), Returned)


async def test_a_plan_may_be_made_of_the_arguments(server: ScriptedServer) -> None:
    def plan(arguments: JSONObject) -> list[Step]:
        return [reply(text_result(arguments["text"]))]

    server.tool("echo", plan)
    returned = await server.session().call(ToolCall(name="echo", arguments={"text": "hi"}))
    assert isinstance(returned, Returned)
    assert returned.result == text_result("hi")


async def test_an_unknown_tool_is_invalid_params(server: ScriptedServer) -> None:
    with refused(INVALID_PARAMS, "Unknown tool"):
        await server.session().call(ToolCall(name="nobody"))


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([], "last step"),
        ([work(5)], "last step"),
        ([complete(DONE), work(5), complete(DONE)], "no step can follow complete"),
        ([work(math.inf), complete(DONE)], "no step can follow work"),
        ([work(5), ask_first("a", NAME), complete(DONE)], "stands before all other"),
        ([work(5), reply(DONE)], "answers at once"),
        ([ask("a", NAME), ask("a", NAME), complete(DONE)], "used once"),
    ],
)
def test_steps_that_cannot_be_taken_are_refused(steps: list[Step], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ScriptedServer().tool("tool", steps)


async def test_a_task_with_a_request_state_is_unknown_without_one_of_its_own(
    server: ScriptedServer,
) -> None:
    server.tool("tool", [work(math.inf)], request_state=True)
    session = server.session()
    ref = await start(session)
    later = await session.get(ref)
    assert later.request_state not in (None, ref.request_state)
    await session.get(TaskRef(ref.task_id, later.request_state))
    await session.get(ref)  # a reply may have been lost, so an older one is fine
    server.witness.early_polls.clear()
    server.witness.check()
    for state in (None, "forged"):
        with refused(INVALID_PARAMS, "requestState"):
            await session.get(TaskRef(ref.task_id, state))
    assert server.witness.lost_states == [ref.task_id] * 2
    with pytest.raises(AssertionError, match="without its requestState"):
        server.witness.check()


# ── what goes wrong on request ────────────────────────────────────────────────────────────────

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


async def caught(session: Session, verb: str, task_id: str) -> SessionError:
    ref = TaskRef(task_id)
    does: Mapping[str, Callable[[], Any]] = {
        "tools/call": lambda: session.call(ToolCall(name="tool")),
        "tasks/get": lambda: session.get(ref),
        "tasks/update": lambda: session.update(ref, {"name": ADA}),
        "tasks/cancel": lambda: session.cancel(ref),
    }
    with pytest.raises(SessionError) as raised:
        await does[verb]()
    return raised.value


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
            with anyio.fail_after(10):
                errors.append(await caught(session, verb, ref.task_id))
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
            seen.append((await session.get(ref)).status)
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
    assert (await caught(session, "tasks/get", ref.task_id)).http_status == 503
    assert (await caught(session, "tasks/cancel", ref.task_id)).http_status == 500
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

        async def get() -> None:
            got.append(await session.get(ref))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(get)
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
    session = server.session(task_timeout_s=30)
    ref = await start(session)
    server.misbehave("tasks/cancel", fault)
    errors: list[SessionError] = []

    async def cancel() -> None:
        errors.append(await caught(session, "tasks/cancel", ref.task_id))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel)
            await clock.advance(29)
            assert not errors
            await clock.advance(1)
    assert isinstance(errors[0], ConnectionLostError)
    assert errors[0].retryable
    assert not errors[0].not_executed
    assert server.witness.arrivals[-1].answered_at is None
    assert (await session.get(ref)).status == "cancelled"


async def test_a_stalled_request_over_http_ends_with_its_client(server: ScriptedServer) -> None:
    server.tool("tool", [work(math.inf)])
    async with over_asgi(server, task_timeout_s=0.01) as session:
        ref = await start(session)
        server.misbehave("tasks/get", Stalled())
        with anyio.fail_after(10):
            error = await caught(session, "tasks/get", ref.task_id)
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
        seen.append((await session.get(ref)).status_message)
    assert seen == ["two", "three", "three", "three", "four", "one"]


async def test_a_server_that_hangs_up_is_gone_until_the_session_reconnects(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("tool", [work(math.inf)])
    session, other = server.session(), server.session()
    ref = await start(session)
    server.misbehave("tasks/get", Delayed(5), HungUp())
    ends: list[str] = []

    async def watch() -> None:
        await session.watch(list[Task]().append)
        ends.append("watch")

    async def under_way() -> None:
        error = await caught(session, "tasks/get", ref.task_id)
        ends.append(str(error.retryable))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            tasks.start_soon(under_way)
            await anyio.wait_all_tasks_blocked()
            error = await caught(session, "tasks/get", ref.task_id)
    assert sorted(ends) == ["False", "watch"]
    assert isinstance(error, ConnectionLostError)
    assert not error.retryable
    assert (await caught(session, "tasks/get", ref.task_id)).not_executed
    assert (await other.get(ref)).status == "working"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await anyio.wait_all_tasks_blocked()
        assert ends.count("watch") == 1  # once each time
        tasks.cancel_scope.cancel()
    session.reconnect()
    assert (await session.get(ref)).status == "working"


async def test_a_closed_session_sends_nothing(server: ScriptedServer) -> None:
    server.tool("tool", [reply(DONE)])
    session = server.session()
    await session.aclose()
    with pytest.raises(ConnectionLostError) as raised:
        await session.call(ToolCall(name="tool"))
    assert raised.value.not_executed
    assert server.witness.arrivals == []


@pytest.mark.parametrize(
    ("make", "arguments"), [(HttpError, (200,)), (Stale, (0,)), (work, (-1,)), (work, (math.nan,))]
)
def test_what_makes_no_sense_is_refused(make: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="got"):
        make(*arguments)


# ── the witness ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("wait_s", "early"), [(0.0, True), (0.99, True), (0.9995, False), (1.0, False)])
@pytest.mark.parametrize("polls", [0, 1])
async def test_a_poll_before_the_hint_of_the_last_reply_is_early(
    server: ScriptedServer, clock: ManualClock, wait_s: float, early: bool, polls: int
) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session()
    ref = await start(session)
    for _ in range(polls):
        await clock.advance(1)
        await session.get(ref)
    await clock.advance(wait_s)
    await session.get(ref)
    assert [poll.not_before for poll in server.witness.early_polls] == ([polls + 1.0] if early else [])
    if early:
        with pytest.raises(AssertionError, match="too early"):
            server.witness.check()
    else:
        server.witness.check()


@pytest.mark.parametrize("fault", [LostRequest(), LostReply(), HttpError(500)])
async def test_a_poll_that_failed_counts_as_one(
    server: ScriptedServer, clock: ManualClock, fault: Fault
) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session()
    ref = await start(session)
    await clock.advance(1)
    server.misbehave("tasks/get", fault)
    await caught(session, "tasks/get", ref.task_id)
    await clock.advance(0.5)
    await session.get(ref)
    assert [poll.at for poll in server.witness.early_polls] == [1.5]


async def test_the_hint_that_counts_is_the_last_one_that_arrived(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool(
        "tool", [work(10), hint(poll_interval_ms=100), work(5), hint(poll_interval_ms=None), work(math.inf)]
    )
    session = server.session()
    ref = await start(session)
    await clock.advance(10)
    server.misbehave("tasks/get", LostReply())
    await caught(session, "tasks/get", ref.task_id)
    await clock.advance(0.5)
    await session.get(ref)  # nobody has heard of the shorter hint
    assert len(server.witness.early_polls) == 1
    await clock.advance(0.1)
    await session.get(ref)
    await clock.advance(5)
    await session.get(ref)
    await session.get(ref)  # no hint, no haste
    assert len(server.witness.early_polls) == 1


async def test_a_poll_before_a_retry_after_is_early(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("tool", [work(math.inf)], poll_interval_ms=None)
    session = server.session()
    ref = await start(session)
    server.misbehave("tasks/get", HttpError(503, retry_after_s=30))
    await caught(session, "tasks/get", ref.task_id)
    await session.get(ref)
    await clock.advance(29)
    await session.get(ref)
    assert [poll.at for poll in server.witness.early_polls] == [0.0, 29.0]
    await clock.advance(1)
    await session.get(ref)
    await clock.advance(0.1)
    await session.get(ref)
    assert len(server.witness.early_polls) == 2


async def test_the_retry_after_of_another_request_counts_for_polls_too_but_not_for_one_under_way(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("tool", [work(math.inf)], poll_interval_ms=None)
    session = server.session()
    ref = await start(session)
    server.misbehave("tasks/update", ErrorReply(-32000, "slow down", http_status=429, retry_after_s=30))
    await caught(session, "tasks/update", ref.task_id)
    await session.get(ref)
    assert server.witness.early_polls == []
    await clock.advance(1)
    await session.get(ref)
    assert [poll.not_before for poll in server.witness.early_polls] == [30.0]


async def test_a_retry_after_that_was_lost_does_not_count(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session()
    ref, other = await start(session), await start(session)
    server.misbehave("tasks/cancel", HttpError(503, retry_after_s=30))
    await caught(session, "tasks/cancel", other.task_id)
    await clock.advance(1)
    await session.get(ref)  # it was about another task
    server.witness.check()


async def test_answers_are_kept_by_question_and_must_not_differ(server: ScriptedServer) -> None:
    server.tool("tool", [ask("name", NAME), complete(DONE)])
    session = server.session()
    ref = await start(session)
    for fault, payload in ((LostRequest(), ADA), (None, ADA), (None, ADA)):
        server.misbehave("tasks/update", fault)
        try:
            await session.update(ref, {"name": payload})
        except ConnectionLostError:
            assert fault is not None
    assert server.witness.answers == {(ref.task_id, "name"): [ADA]}
    server.witness.check()
    await session.update(ref, {"name": BOB})
    assert server.witness.answers == {(ref.task_id, "name"): [ADA, BOB]}
    with pytest.raises(AssertionError, match="answered in 2 ways"):
        server.witness.check()


async def test_calls_are_counted_by_intent_as_far_as_they_ran(clock: ManualClock) -> None:
    server = ScriptedServer(clock=clock)
    server.tool("task", [work(math.inf)])
    server.tool("plain", [ask_first({}), reply(DONE)])
    session = server.session()
    ref = await start(session, "task", b=1, a=2)
    server.misbehave("tools/call", LostRequest(), LostReply())
    for _ in range(2):
        with pytest.raises(ConnectionLostError):
            await session.call(ToolCall(name="task", arguments={"a": 2, "b": 1}))
    await session.call(ToolCall(name="plain"))
    intent = ("task", '{"a":2,"b":1}')
    assert server.witness.calls == {intent: 2}
    assert server.witness.created[ref.task_id] == intent
    server.witness.check()
    with pytest.raises(AssertionError, match=r'task \{"a":2,"b":1\} ran 2 times'):
        server.witness.check(at_most_once=True)


async def test_the_host_may_say_what_an_intent_is(clock: ManualClock) -> None:
    server = ScriptedServer(clock=clock, identify=lambda tool, arguments: arguments["order"])
    server.tool("task", [reply(DONE)])
    for attempt in range(2):
        await server.session().call(ToolCall(name="task", arguments={"order": 42, "attempt": attempt}))
    assert server.witness.calls == {42: 2}


async def test_everything_that_arrived_is_in_the_log(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session()
    ref, other = await start(session, x=1), await start(session)
    await clock.advance(3)
    for one in (ref, other):
        await session.get(one)
    with refused(INVALID_PARAMS):
        await session.get(TaskRef("nobody"))
    calls, polls = server.witness.log("tools/call"), server.witness.log("tasks/get")
    assert calls[0].params == {"name": "tool", "arguments": {"x": 1}}
    assert [poll.task_id for poll in polls] == [ref.task_id, other.task_id, "nobody"]
    assert [poll.error for poll in polls] == [None, None, INVALID_PARAMS]
    assert [poll.at for poll in server.witness.log("tasks/get", ref.task_id)] == [3.0]
    assert polls[0].headers is None


# ── over HTTP ─────────────────────────────────────────────────────────────────────────────────

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}
HEADERS = {
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tasks/get",
    "Mcp-Name": "task-1",
    "Accept": "application/json, text/event-stream",
}
GET: JSONObject = {"method": "tasks/get", "params": {"taskId": "task-1", "_meta": META}}


async def post(server: ScriptedServer, message: object, headers: Mapping[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        content = message if isinstance(message, bytes) else json.dumps(message).encode()
        client.headers.clear()
        return await client.post(URL, content=content, headers=headers)


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in HEADERS.items() if key != name}


@pytest.mark.parametrize(
    ("headers", "meta", "code", "name"),
    [
        (HEADERS, META, None, None),
        (HEADERS | {"Mcp-Name": "=?base64?dGFzay0x?="}, META, None, None),
        (without("Mcp-Name"), META, -32020, "Mcp-Name"),
        (HEADERS | {"Mcp-Name": "task-2"}, META, -32020, "Mcp-Name"),
        (HEADERS | {"Mcp-Name": "=?base64?*?="}, META, -32020, "Mcp-Name"),
        (without("Mcp-Method"), META, -32020, "Mcp-Method"),
        (HEADERS | {"Mcp-Method": "tasks/cancel"}, META, -32020, "Mcp-Method"),
        (without("MCP-Protocol-Version"), META, -32020, "MCP-Protocol-Version"),
        (HEADERS | {"MCP-Protocol-Version": "2025-11-25"}, META, -32022, "MCP-Protocol-Version"),
        (HEADERS | {"Accept": "application/json"}, META, -32020, "Accept"),
        (HEADERS, {}, -32020, "_meta io.modelcontextprotocol/protocolVersion"),
        (
            HEADERS,
            {"io.modelcontextprotocol/protocolVersion": "2026-07-28"},
            -32021,
            "_meta io.modelcontextprotocol/tasks",
        ),
    ],
)
async def test_what_a_request_over_http_lacks_is_refused_and_written_down(
    server: ScriptedServer,
    clock: ManualClock,
    headers: dict[str, str],
    meta: JSONObject,
    code: int | None,
    name: str | None,
) -> None:
    server.tool("tool", [work(math.inf)])
    await start(server.session())
    await clock.advance(1)
    response = await post(
        server, {"jsonrpc": "2.0", "id": 7, **GET, "params": {"taskId": "task-1", "_meta": meta}}, headers
    )
    message = response.json()
    assert message["id"] == 7
    if code is None:
        assert response.status_code == 200
        assert message["result"]["status"] == "working"
        server.witness.check()
    else:
        assert response.status_code == 400
        assert message["error"]["code"] == code
        assert server.witness.missing_headers[0].name == name
        with pytest.raises(AssertionError, match=name):
            server.witness.check()


async def test_arguments_that_are_marked_have_to_travel_as_headers_too(server: ScriptedServer) -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    server.tool("tool", [reply(DONE)], input_schema=schema)
    async with over_asgi(server) as session:
        await session.call(ToolCall(name="tool", arguments={"region": "Türkiye"}))
    server.witness.check()
    params = {"name": "tool", "arguments": {"region": "eu"}, "_meta": META}
    headers = HEADERS | {"Mcp-Method": "tools/call", "Mcp-Name": "tool"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    assert (await post(server, message, headers)).status_code == 400
    assert (await post(server, message, headers | {"Mcp-Param-Region": "us"})).status_code == 400
    assert [one.found for one in server.witness.missing_headers] == [None, "us"]
    assert (await post(server, message, headers | {"Mcp-Param-Region": "eu"})).status_code == 200


async def test_no_task_is_made_for_a_client_without_the_capability(server: ScriptedServer) -> None:
    server.tool("task", [work(math.inf)])
    server.tool("plain", [reply(DONE)])
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    codes = {}
    for name in ("task", "plain"):
        params = {"name": name, "arguments": {}, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answered = await post(server, message, HEADERS | {"Mcp-Method": "tools/call", "Mcp-Name": name})
        codes[name] = answered.json().get("error", {}).get("code")
    assert codes == {"task": -32021, "plain": None}
    assert list(server.witness.calls) == [("plain", "{}")]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"[]", 400, -32600),
        (b'{"jsonrpc": "2.0", "method": "notifications/cancelled"}', 202, None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tasks/list"}', 400, -32020),
    ],
)
async def test_what_is_no_request_is_told_so(
    server: ScriptedServer, body: bytes, status: int, code: int | None
) -> None:
    response = await post(server, body, {})
    assert response.status_code == status
    if code is not None:
        assert response.json()["error"]["code"] == code


async def test_an_unknown_method_is_not_found(server: ScriptedServer) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": {"_meta": META}}
    response = await post(server, message, HEADERS | {"Mcp-Method": "tasks/list"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, -32601)


async def test_only_posts_are_answered(server: ScriptedServer) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app), trust_env=False) as client:
        response = await client.get(URL)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


async def test_responses_are_json_or_event_streams_as_wished(server: ScriptedServer) -> None:
    server.tool("tool", [work(math.inf)])
    await start(server.session())
    message = {"jsonrpc": "2.0", "id": 1, **GET}
    plain = await post(server, message, HEADERS)
    assert plain.headers["content-type"] == "application/json"
    server.event_stream = True
    streamed = await post(server, message, HEADERS)
    assert streamed.headers["content-type"] == "text/event-stream"
    data = streamed.text.partition("event: message\ndata: ")[2]
    assert json.loads(data) == plain.json()


async def test_the_catalogue_tells_the_version_and_the_tools(server: ScriptedServer) -> None:
    output = {"type": "object", "required": ["n"]}
    server.tool("tool", [reply(DONE)], output_schema=output)
    async with over_asgi(server) as session:
        tool = await session.tool("tool")
        assert tool is not None
        assert tool.output_schema == output
        assert tool == await server.session().tool("tool")
    assert [arrival.method for arrival in server.witness.arrivals] == ["server/discover", "tools/list"]
    server.witness.check()


@contextmanager
def served(server: ScriptedServer) -> Iterator[str]:
    """The server behind real sockets, in a thread with an event loop of its own."""
    config = uvicorn.Config(
        server.app, port=0, log_config=None, log_level="critical", lifespan="on", ws="none"
    )
    listener = config.bind_socket()
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        running.should_exit = True
        thread.join(10)
        listener.close()
    assert not thread.is_alive()


@pytest.mark.parametrize("event_stream", [False, True])
async def test_over_real_sockets_a_lost_reply_is_a_broken_connection(event_stream: bool) -> None:
    server = ScriptedServer(event_stream=event_stream)
    server.tool("tool", [work(math.inf)])
    with served(server) as url, anyio.fail_after(30):
        session = HttpSession(url)
        ref = await start(session)
        for fault in (LostRequest(), LostReply(), Unreachable(), HungUp()):
            server.misbehave("tasks/get", fault)
            error = await caught(session, "tasks/get", ref.task_id)
            assert isinstance(error, ConnectionLostError)
            assert error.retryable
            assert not error.not_executed
            assert (await session.get(ref)).status == "working"
        server.misbehave("tasks/cancel", LostReply())
        await caught(session, "tasks/cancel", ref.task_id)
        while (await session.get(ref)).status != "cancelled":
            await anyio.sleep(0.02)
        await session.aclose()
    assert server.witness.missing_headers == []


async def test_over_real_sockets_a_client_that_gives_up_gets_no_reply() -> None:
    server = ScriptedServer()
    server.tool("tool", [work(math.inf)])
    with served(server) as url, anyio.fail_after(30):
        session = HttpSession(url, task_timeout_s=0.1)
        ref = await start(session)
        server.misbehave("tasks/get", Stalled())
        assert isinstance(await caught(session, "tasks/get", ref.task_id), ConnectionLostError)
        assert (await session.get(ref)).status == "working"
        await session.aclose()
    assert [poll.answered_at is None for poll in server.witness.log("tasks/get")] == [True, False]


# ── with a client ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("face", ["memory", "http"])
async def test_a_host_sees_a_task_through_whatever_goes_wrong_and_the_witness_has_no_complaint(
    server: ScriptedServer, clock: ManualClock, face: str
) -> None:
    greeting = complete(lambda answers: text_result(f"Hello, {answers['name']['content']['name']}"))
    server.tool(
        "deploy",
        [ask_first("sure", NAME), work(3600, "building"), ask("name", NAME), work(60), greeting],
        poll_interval_ms=60_000,
        request_state=True,
    )
    server.misbehave("tasks/get", HttpError(503, retry_after_s=300), None, LostReply(), Garbled(), Stale())
    server.misbehave("tasks/update", LostReply(), HttpError(429, retry_after_s=90))
    asked: list[str] = []

    async def elicit(context: Any, params: object) -> ElicitResult:
        asked.append(context.key)
        return ElicitResult(action="accept", content={"name": f"Ada {len(asked)}"})

    async with over_asgi(server) as http:
        session: Session = server.session() if face == "memory" else http
        client = scripted_client(session, clock=clock, journal=MemoryJournal(), elicitation=elicit)
        with anyio.fail_after(30):
            async with client:
                handle = await client.start_tool("deploy", {"service": "web"}, idempotency_key="deploy-42")
                await clock.advance(6000)
                result = await handle.result()
    assert result.content[0].text == "Hello, Ada 2"  # type: ignore[union-attr]  # it is a text
    assert asked == ["sure", "name"]
    server.witness.check(at_most_once=True)
    assert {arrival.fault for arrival in server.witness.arrivals} > {LostReply(), Garbled(), Stale()}


async def test_a_host_is_told_of_a_task_that_vanished(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("tool", [work(10), vanish()])
    async with scripted_client(server.session(), journal=MemoryJournal()) as client:
        handle = await client.start_tool("tool")
        await clock.advance(30)
        with pytest.raises(TaskNotFoundError):
            await handle.result()


async def test_a_session_is_on_the_clock_of_its_server(server: ScriptedServer, clock: ManualClock) -> None:
    session = server.session()
    assert isinstance(session, ServerSession)
    assert session.clock is clock
