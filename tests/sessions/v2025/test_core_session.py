"""The session at a server of 2025-11-25 whose every reply the test decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import httpx
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import (
    MemoryJournal,
    Session,
    Snapshot,
    TaskRef,
    TasksClient,
    TasksHttpTransport,
    ToolCall,
)
from mcp_tasks_client.errors import (
    ConnectionLostError,
    MissingCapabilityError,
    OutcomeUnknownError,
    RemoteProtocolError,
    SessionError,
)
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import Created, Returned
from mcp_tasks_client.questions.callbacks import Callbacks
from mcp_tasks_client.sessions.base import INVALID_PARAMS
from mcp_tasks_client.sessions.v2025.session_data import OpenQuestion, SessionData
from mcp_tasks_client.testing.clock import ManualClock
from tests._observed import Observed
from tests._requirements import requirement
from tests.kit.json_rpc_host import JsonRpcHost
from tests.kit.older_server import (
    LIMIT_S,
    RELATED,
    TASK,
    Arrived,
    OlderServer,
    Stream,
    question,
    refusal,
    text,
)

pytestmark = pytest.mark.anyio

ANSWER: Final[JSONObject] = {"action": "accept", "content": {"name": "Ada"}}
INPUT_REQUIRED: Final[JSONObject] = {"taskId": TASK, "status": "input_required", "ttl": 60_000}
COMPLETED: Final[JSONObject] = {"taskId": TASK, "status": "completed", "ttl": 60_000}
URL: Final = "http://server.example/mcp"
OLD: Final = refusal(-32600, "Bad Request: Unsupported protocol version", 400)
ANOTHERS: Final = "another process"
QUESTION_S: Final = "mcp_tasks_client.sessions.v2025.core_session._QUESTION_S"


async def nothing() -> None:
    pass


def asks(snapshot: Snapshot) -> bool:
    return bool(snapshot.task.input_requests)


def key_of(snapshot: Snapshot) -> str:
    (key,) = snapshot.task.input_requests or {}
    return str(key)


def data_of(snapshot: Snapshot) -> SessionData:
    return SessionData.read(snapshot.session_data)


@pytest.fixture
def wire() -> OlderServer:
    return OlderServer()


@pytest.fixture
def brief_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls that wait only briefly for a question that does not come."""
    monkeypatch.setattr(QUESTION_S, 0.02)


async def start(session: Session, observed: Observed | None = None) -> TaskRef:
    """A task, observed as the core does once it has committed the task's ID."""
    created = await session.call(ToolCall(name="slow"), nothing)
    assert isinstance(created, Created)
    ref = TaskRef(created.task.task_id, created.session_data)
    if observed is not None:
        observed.observe(ref)
    return ref


@asynccontextmanager
async def asking(
    wire: OlderServer, **options: Any
) -> AsyncIterator[tuple[Session, Observed, Stream, Snapshot]]:
    """A task whose ``tasks/result`` is open, and on it one question with the JSON-RPC ID 0."""
    observed = Observed()
    wire.task = INPUT_REQUIRED
    async with wire.session(observed, **options) as session:
        await start(session, observed)
        async with anyio.create_task_group() as tasks:
            snapshots: list[Snapshot] = []

            async def poll() -> None:
                snapshots.append(await session.get(observed.kept[TASK]))

            tasks.start_soon(poll)
            stream = await wire.wait_for_result()
            stream.event(question(0))
        observed.keep(snapshots[0])
        yield session, observed, stream, snapshots[0]


# ── calls ─────────────────────────────────────────────────────────────────────────────────────


@requirement("2025:capability", "2025:tool-support")
async def test_params_task_is_sent_only_where_tool_and_server_allow_it(wire: OlderServer) -> None:
    async with wire.session() as session:
        assert await session.call(ToolCall(name="plain"), nothing) == Returned(text("plain"))
        await start(session)
    plain, slow = wire.of("tools/call")
    assert "task" not in plain.params
    assert slow.params["task"] == {"ttl": 60_000}
    wire.capabilities["tasks"] = {}
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"), nothing)
    assert "task" not in wire.of("tools/call")[-1].params


async def test_a_task_in_the_metadata_of_an_empty_result_is_taken(wire: OlderServer) -> None:
    """FastMCP 2.14 answers so."""
    meta = {"modelcontextprotocol.io/task": wire.task}
    wire.replies["tools/call"] = lambda arrived: {"content": [], "_meta": meta}
    async with wire.session() as session:
        assert (await start(session)).task_id == TASK


async def test_the_immediate_response_stays_with_the_task(wire: OlderServer) -> None:
    meta = {"io.modelcontextprotocol/model-immediate-response": "soon"}
    wire.replies["tools/call"] = lambda arrived: {"task": wire.task, "_meta": meta}
    async with wire.session() as session:
        ref = await start(session)
        assert (await session.get(ref)).task.immediate_response == "soon"


@requirement("2025:progress")
async def test_progress_is_told_with_the_task_and_after_a_restart(wire: OlderServer) -> None:
    wire.server_stream, observed = Stream(), Observed()

    def tell(progress: int) -> None:
        assert wire.server_stream is not None
        token = wire.of("tools/call")[0].params["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": progress, "total": 3, "_meta": {"x": 1}}
        message = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        wire.server_stream.event(message)

    async with wire.session(observed) as session:
        await start(session, observed)
        tell(1)
        told = await observed.wait_until(lambda snapshot: snapshot.task.progress is not None)
        assert told.task.progress == {"progress": 1, "total": 3}
    wire.server_stream, observed.delivered = Stream(), []
    async with wire.session(observed) as session:
        await session.get(observed.kept[TASK])
        tell(2)
        told = await observed.wait_until(lambda snapshot: snapshot.task.progress is not None)
        assert told.task.progress == {"progress": 2, "total": 3}


@requirement("2025:lost-session")
@pytest.mark.parametrize(
    "denial",
    [
        refusal(-32600, "Session not found", 404, "server-error"),
        refusal(-32001, "Session not found", 404),
        refusal(-32000, "Bad Request: No valid session ID provided", 400),
        httpx.Response(404, text="no such session"),
        httpx.Response(404, text="default backend - 404"),
    ],
)
async def test_a_call_goes_again_in_a_new_session_if_its_own_has_ended(
    wire: OlderServer, denial: httpx.Response
) -> None:
    async with wire.session() as session:
        await session.tool("plain")
        wire.gone["s1"] = denial
        assert await session.call(ToolCall(name="plain"), nothing) == Returned(text("plain"))
    assert [one.session_id for one in wire.of("tools/call")] == ["s1", "s2"]


@requirement("2025:lost-session")
@pytest.mark.parametrize(
    "denial",
    [
        refusal(-32602, "no such city", 404),
        refusal(-32000, "Customer 7 was not found", 404),
        httpx.Response(400, text="bad request"),
        httpx.Response(503, text="later"),
    ],
)
async def test_a_call_that_may_have_run_is_not_sent_again(wire: OlderServer, denial: httpx.Response) -> None:
    wire.replies["tools/call"] = lambda arrived: denial
    async with wire.session() as session:
        with pytest.raises(SessionError):
            await session.call(ToolCall(name="plain"), nothing)
    assert len(wire.of("tools/call")) == 1


@requirement("2025:upgraded")
async def test_a_server_that_does_not_speak_this_generation_either_says_so_once_to_all(
    wire: OlderServer,
) -> None:
    wire.replies["initialize"] = lambda arrived: refusal(-32601, "Method not found", 404)
    raised: list[Exception] = []
    async with wire.session() as session:

        async def call() -> None:
            with pytest.raises(
                RemoteProtocolError, match=r"does not speak MCP 2025-11-25.*upgraded"
            ) as caught:
                await session.call(ToolCall(name="plain"), nothing)
            raised.append(caught.value)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(call)
    assert len(raised) == 3
    assert len(wire.of("initialize")) == 1, "whoever waited for it shares the failure"


async def test_request_ids_are_not_counted_because_another_process_may_be_in_the_session(
    wire: OlderServer,
) -> None:
    wire.task = COMPLETED
    async with wire.session() as session:
        await session.get(await start(session))
    ids = [one.message["id"] for one in wire.arrived if "id" in one.message]
    assert len(set(ids)) == len(ids) == 5
    assert all(isinstance(one, str) and len(one) >= 16 for one in ids)


@requirement("2025:lost-session")
async def test_a_session_that_a_caller_has_begun_before_leaving_is_the_next_callers(
    wire: OlderServer,
) -> None:
    handshake = Stream()
    wire.replies["initialize"] = lambda arrived: handshake
    async with wire.session() as session:
        async with anyio.create_task_group() as impatient:
            impatient.start_soon(session.tool, "slow")
            await wire.wait_for("initialize")
            impatient.cancel_scope.cancel()
            handshake.reply({"protocolVersion": "2025-11-25", "capabilities": {}})
        assert await session.tool("slow") is not None
    methods = [one.method for one in wire.arrived if one.method != "GET"]
    assert methods == ["initialize", "notifications/initialized", "tools/list"]


# ── snapshots ─────────────────────────────────────────────────────────────────────────────────


@requirement("2025:result")
async def test_a_task_that_is_over_holds_its_result_unchanged(wire: OlderServer) -> None:
    result = {"content": [], "isError": True, "own": {"x": 1}, "_meta": {RELATED: {"taskId": TASK}}}
    wire.task = {**COMPLETED, "status": "failed"}
    wire.replies["tasks/result"] = lambda arrived: result
    async with wire.session() as session:
        snapshot = await session.get(await start(session))
    assert (snapshot.task.status, snapshot.task.result) == ("completed", result)


@requirement("2025:failed")
async def test_a_task_that_failed_holds_its_error(wire: OlderServer) -> None:
    wire.task = {**COMPLETED, "status": "failed"}
    error = {"code": -32050, "message": "quota", "data": {"x": 1}}
    wire.replies["tasks/result"] = lambda arrived: httpx.Response(
        200, json={"jsonrpc": "2.0", "id": arrived.message["id"], "error": error}
    )
    async with wire.session() as session:
        snapshot = await session.get(await start(session))
    assert (snapshot.task.status, snapshot.task.error) == ("failed", error)


@requirement("2025:result")
@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_the_error_of_a_request_that_was_cancelled_is_not_the_end_of_its_task(
    wire: OlderServer, status: str
) -> None:
    """As another client of the journal, or we ourselves, may have cancelled the open ``tasks/result``."""
    async with asking(wire) as (session, observed, stream, snapshot):
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        wire.task = {**COMPLETED, "status": status}
        error = {"code": 0, "message": "Request cancelled"}
        stream.event({"jsonrpc": "2.0", "id": stream.request_id, "error": error})
        stream.end()
        await stream.closed_by_client.wait()
        await anyio.wait_all_tasks_blocked()
        ended = await session.get(observed.kept[TASK])
    assert ended.task.result == text("done")
    assert not wire.of("notifications/cancelled"), "what was answered is not open"


@requirement("2025:result")
async def test_a_reply_that_comes_while_the_task_goes_on_is_not_its_result(wire: OlderServer) -> None:
    clock = ManualClock()
    async with asking(wire, clock=clock) as (session, observed, stream, snapshot):
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        stream.reply({"_meta": {}})
        await stream.closed_by_client.wait()
        await anyio.wait_all_tasks_blocked()
        assert (await session.get(observed.kept[TASK])).task.status == "input_required"
        wire.task = COMPLETED
        assert (await session.get(observed.kept[TASK])).task.result == text("done")


@requirement("2025:result")
@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_completed_task_whose_result_is_refused_is_asked_again_a_few_times(
    wire: OlderServer, forgotten: bool
) -> None:
    wire.task = COMPLETED
    code = -32602 if forgotten else -32603
    wire.replies["tasks/result"] = lambda arrived: refusal(code, "not now", 200, arrived.message["id"])
    async with wire.session() as session:
        ref = await start(session)
        for _ in range(2):
            with pytest.raises(SessionError) as caught:
                await session.get(ref)
            assert caught.value.retryable is not forgotten
        if not forgotten:
            assert (await session.get(ref)).task.status == "failed"


@pytest.mark.parametrize(
    "raw", [{"status": "working"}, {"taskId": "", "status": "working"}, {"taskId": TASK}]
)
async def test_a_snapshot_that_is_none_is_a_malformed_reply(wire: OlderServer, raw: JSONObject) -> None:
    async with wire.session() as session:
        ref = await start(session)
        wire.task = raw
        if raw == {"status": "working"}:
            assert (await session.get(ref)).task.task_id == TASK  # it is clear of which task
        else:
            with pytest.raises(RemoteProtocolError, match="cannot be used") as caught:
                await session.get(ref)
            assert caught.value.retryable


@requirement("2025:unmarked-requests")
async def test_requests_about_a_task_bear_no_mark(wire: OlderServer) -> None:
    wire.task = COMPLETED
    async with wire.session() as session:
        await session.get(await start(session))
    for method in ("tasks/get", "tasks/result"):
        assert [one.params for one in wire.of(method)] == [{"taskId": TASK}]


@requirement("2025:notifications")
@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_an_end_that_the_server_tells_of_is_delivered_at_once(wire: OlderServer, status: str) -> None:
    wire.server_stream, observed = Stream(), Observed()
    async with wire.session(observed) as session:
        await start(session, observed)
        await wire.wait_for("GET")
        wire.task = {**COMPLETED, "status": status}
        wire.server_stream.event(
            {"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": wire.task}
        )
        ended = await observed.wait_until(lambda snapshot: snapshot.task.terminal)
    assert ended.task.result == text("done")
    assert not wire.of("tasks/get")


# ── questions ─────────────────────────────────────────────────────────────────────────────────


@requirement("2025:input-required", "2025:marked-answers")
async def test_a_question_on_the_stream_of_the_result_is_answered_by_its_request_id(
    wire: OlderServer,
) -> None:
    async with asking(wire) as (session, observed, _, snapshot):
        assert snapshot.task.status == "input_required"
        (request,) = (snapshot.task.input_requests or {}).values()
        assert request["params"]["message"] == "Name?"
        assert "_meta" not in request["params"]
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        (answered,) = wire.of("answer")
        assert answered.message["id"] == 0
        assert answered.message["result"] == {**ANSWER, "_meta": {RELATED: {"taskId": TASK}}}
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
    assert len(wire.of("answer")) == 1, "what the server has acknowledged is not sent again"


@requirement("2025:any-stream")
@pytest.mark.parametrize("marked", [True, False])
async def test_a_question_on_the_stream_of_the_session_is_its_tasks(wire: OlderServer, marked: bool) -> None:
    """FastMCP 3 sends it without a mark, and says right after that the task works."""
    wire.server_stream, observed = Stream(), Observed()
    async with wire.session(observed) as session:
        await start(session, observed)
        await wire.wait_for("GET")
        wire.server_stream.event(question(7, task_id=TASK if marked else None))
        delivered = await observed.wait_until(asks)
        polled = await session.get(observed.kept[TASK])
        assert key_of(polled) == key_of(delivered)
        assert polled.task.status == "input_required"
        await session.update(observed.kept[TASK], {key_of(polled): ANSWER})
        assert wire.of("answer")[0].message["id"] == 7
        assert (await session.get(observed.kept[TASK])).task.status == "working"


async def test_a_question_that_comes_later_than_the_poll_is_delivered_at_once(wire: OlderServer) -> None:
    clock, observed = ManualClock(), Observed()
    wire.task = INPUT_REQUIRED
    async with wire.session(observed, clock=clock) as session, anyio.create_task_group() as tasks:
        await start(session, observed)
        polled: list[Snapshot] = []

        async def poll() -> None:
            polled.append(await session.get(observed.kept[TASK]))

        tasks.start_soon(poll)
        stream = await wire.wait_for_result()
        await clock.advance(1.0)
        assert polled[0].task.input_requests == {}
        assert data_of(polled[0]).result_id == stream.request_id
        stream.event(question(0))
        assert data_of(await observed.wait_until(asks)).open


async def test_two_questions_are_shown_one_after_the_other(wire: OlderServer) -> None:
    async with asking(wire) as (session, observed, stream, snapshot):
        stream.event(question(1, "Dog?"))
        await observed.wait_until(lambda delivered: len(data_of(delivered).open) == 2)
        assert key_of(await session.get(observed.kept[TASK])) == key_of(snapshot)
        observed.delivered.clear()
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        second = await observed.wait_until(asks)
        assert key_of(second) != key_of(snapshot)
        await session.update(observed.kept[TASK], {key_of(second): ANSWER})
        assert [one.message["id"] for one in wire.of("answer")] == [0, 1]
    assert len(wire.of("tasks/result")) == 1


async def test_an_answer_that_the_task_has_not_used_two_snapshots_later_is_sent_once_more(
    wire: OlderServer,
) -> None:
    async with asking(wire, clock=ManualClock()) as (session, observed, stream, snapshot):
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        stream.end()  # so that no poll waits for a question
        for _ in range(4):
            await session.get(observed.kept[TASK])
    answers = [one.message for one in wire.of("answer")]
    assert len(answers) == 2
    assert answers[0] == answers[1]


async def test_an_answer_that_does_not_get_through_once_more_either_is_sent_until_it_does(
    wire: OlderServer,
) -> None:
    async with asking(wire, clock=ManualClock()) as (session, observed, stream, snapshot):
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        stream.end()
        wire.replies["answer"] = lambda arrived: httpx.Response(503)
        for _ in range(3):
            await session.get(observed.kept[TASK])
        wire.replies["answer"] = lambda arrived: httpx.Response(202)
        for _ in range(3):
            await session.get(observed.kept[TASK])
    assert len(wire.of("answer")) == 4, "the first, two that were refused, and the one that came"


async def test_an_answer_that_did_not_arrive_is_sent_again_by_the_core(wire: OlderServer) -> None:
    async with asking(wire) as (session, observed, _, snapshot):
        wire.replies["answer"] = lambda arrived: httpx.Response(503)
        with pytest.raises(SessionError) as caught:
            await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        assert caught.value.retryable
        assert key_of(await session.get(observed.kept[TASK])) == key_of(snapshot)
        wire.replies["answer"] = lambda arrived: httpx.Response(202)
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})


@pytest.mark.parametrize("status", [403, 413, 422])
async def test_a_question_whose_answer_is_refused_by_its_status_takes_another_one(
    wire: OlderServer, status: int
) -> None:
    """A reply to a request of the server's has no reply itself, so that only its status can refuse it."""
    async with asking(wire) as (session, observed, _, snapshot):
        wire.replies["answer"] = lambda arrived: httpx.Response(status)
        with pytest.raises(SessionError) as caught:
            await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        assert (caught.value.retryable, caught.value.http_status) == (False, status)
        assert key_of(await session.get(observed.kept[TASK])) == key_of(snapshot)
        wire.replies["answer"] = lambda arrived: httpx.Response(202)
        other = {"action": "decline"}
        await session.update(observed.kept[TASK], {key_of(snapshot): other})
    said = wire.of("answer")[-1].message["result"]
    assert said["action"] == "decline"


async def test_a_question_that_the_server_cancels_is_shown_no_more(wire: OlderServer) -> None:
    async with asking(wire) as (session, observed, stream, snapshot):
        params = {"requestId": 0}
        stream.event({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        await observed.wait_until(lambda delivered: delivered.task.input_requests == {})
        with pytest.raises(ConnectionLostError, match="kept until it asks again") as caught:
            await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        assert caught.value.retryable


async def test_a_task_that_asks_too_much_is_told_so(wire: OlderServer) -> None:
    async with asking(wire) as (_, observed, stream, _snapshot):
        stream.event(question(1, "x" * 2_000_000))
        (refused,) = await wire.wait_for("answer")
        assert refused.message["error"]["code"] == INVALID_PARAMS
        assert all(len(data_of(delivered).open) == 1 for delivered in observed.delivered)


async def test_a_question_of_a_plain_call_is_answered_by_the_host_at_once(wire: OlderServer) -> None:
    asked: list[Any] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        asked.append((context.task, params.message))
        return ElicitResult(action="decline")

    async def finish_call() -> None:
        answers = await wire.wait_for("answer", 3)
        said = {one.message["id"]: one.message.get("result", one.message.get("error")) for one in answers}
        assert said["q"] == {"action": "decline"}
        assert said["p"] == {}
        assert said["r"]["code"] == -32601
        call.reply(text("plain"))

    call = Stream()
    call.event(question("q", task_id=None))
    call.event({"jsonrpc": "2.0", "id": "p", "method": "ping"})
    call.event({"jsonrpc": "2.0", "id": "r", "method": "resources/list"})
    wire.replies["tools/call"] = lambda arrived: call
    inputs = Callbacks(elicitation=elicit)
    async with wire.session(Observed(), inputs=inputs) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(finish_call)
        assert await session.call(ToolCall(name="plain"), nothing) == Returned(text("plain"))
    assert asked == [(None, "Name?")]


async def test_a_reply_that_does_not_arrive_is_sent_twice_more_the_second_time_after_a_longer_wait(
    wire: OlderServer,
) -> None:
    clock, call = ManualClock(), Stream()
    call.event({"jsonrpc": "2.0", "id": "p", "method": "ping"})
    wire.replies["tools/call"] = lambda arrived: call
    wire.replies["answer"] = lambda arrived: httpx.ConnectError("not now")
    sent: list[int] = []
    async with wire.session(Observed(), clock=clock) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(session.call, ToolCall(name="plain"), nothing)
        await wire.wait_for("answer")
        for seconds in (0.9, 0.2, 1.7, 0.3, 60.0):
            await clock.advance(seconds)
            sent.append(len(wire.of("answer")))
        call.reply(text("plain"))
    assert sent == [1, 2, 2, 3, 3]


# ── takeover, closing, cancelling ─────────────────────────────────────────────────────────────


async def test_a_question_that_runs_in_the_context_of_tasks_result_is_never_aborted(
    wire: OlderServer,
) -> None:
    """mcpkit v1: ``notifications/cancelled`` of that request aborts the question, and the task ends by it."""

    def abort(arrived: Arrived) -> httpx.Response:
        if not wire.of("answer"):
            wire.task = COMPLETED
            wire.replies["tasks/result"] = lambda arrived: text("error: context cancelled")
        return httpx.Response(202)

    def use(arrived: Arrived) -> httpx.Response:
        wire.task = COMPLETED
        wire.results[-1].reply(text("Hello, Ada"))
        return httpx.Response(202)

    wire.replies |= {"notifications/cancelled": abort, "answer": use}
    async with asking(wire) as (session, observed, _, snapshot):
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        ended = await session.get(observed.kept[TASK])
    assert ended.task.result == text("Hello, Ada")
    assert not wire.of("notifications/cancelled")


async def test_a_client_that_closes_cancels_its_open_result(wire: OlderServer) -> None:
    async with asking(wire) as (session, observed, stream, snapshot):
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        request_id = stream.request_id
    (cancelled,) = wire.of("notifications/cancelled")
    assert cancelled.params == {"requestId": request_id}
    assert wire.arrived.index(wire.of("answer")[0]) < wire.arrived.index(cancelled)


async def test_a_client_that_closes_leaves_a_result_on_which_a_question_is_open(wire: OlderServer) -> None:
    async with asking(wire):
        pass
    assert not wire.of("notifications/cancelled")


async def test_the_result_of_a_task_that_nobody_observes_any_more_is_cancelled(wire: OlderServer) -> None:
    clock = ManualClock()
    async with asking(wire, clock=clock) as (session, observed, stream, snapshot):
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        del observed.kept[TASK]
        await clock.advance(1.0)
        assert wire.of("notifications/cancelled")[0].params == {"requestId": stream.request_id}
        await stream.closed_by_client.wait()


async def test_the_result_of_a_task_that_is_over_is_not_cancelled(wire: OlderServer) -> None:
    """mcp 1.30 ends the MCP session by a request that is cancelled in the instant in which it is answered."""
    clock, wire.server_stream = ManualClock(), Stream()
    async with asking(wire, clock=clock) as (session, observed, stream, snapshot):
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        wire.task = COMPLETED
        wire.server_stream.event(
            {"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": wire.task}
        )
        await observed.wait_until(lambda delivered: delivered.task.terminal)
        del observed.kept[TASK]
        await clock.advance(1.0)
        await stream.closed_by_client.wait()
    assert not wire.of("notifications/cancelled")


@pytest.mark.usefixtures("brief_polls")
@pytest.mark.parametrize("asked", [False, True], ids=["no question is open", "a question is open"])
async def test_the_next_process_cancels_the_result_of_a_dead_one_after_the_answer(
    wire: OlderServer, asked: bool
) -> None:
    request: JSONObject = {"method": "elicitation/create", "params": {"message": "Name?"}}
    left = SessionData(
        owner=ANOTHERS,
        session_id="s7",
        result_id="r",
        open=(OpenQuestion("k.0", 3, request),) if asked else (),
    )
    observed, ref = Observed(), TaskRef(TASK, left.write())
    observed.observe(ref)
    wire.task = INPUT_REQUIRED
    async with wire.session(observed) as session:
        if asked:
            polled = await session.get(ref)
            assert polled.task.input_requests == {"k.0": request}
            assert not wire.of("notifications/cancelled")
            observed.keep(polled)
            await session.update(observed.kept[TASK], {"k.0": ANSWER})
            assert wire.of("answer")[0].message["id"] == 3
        (cancelled,) = await wire.wait_for("notifications/cancelled")
        assert cancelled.params == {"requestId": "r"}
        await session.get(observed.kept[TASK])
        stream = await wire.wait_for_result()
        stream.event(question(4, "Dog?"))
        await observed.wait_until(asks)
    assert {one.session_id for one in wire.arrived} == {"s7"}, "no session is begun to go on with a task"


async def test_the_result_of_a_dead_process_is_not_cancelled_while_the_server_may_be_answering_it(
    wire: OlderServer,
) -> None:
    """mcp 1.30 ends the MCP session by a request that is cancelled in the instant in which it is answered."""
    asked = OpenQuestion("k.0", 3, {"method": "elicitation/create", "params": {"message": "Name?"}})
    ref = TaskRef(TASK, SessionData(owner=ANOTHERS, session_id="s7", result_id="r", open=(asked,)).write())
    observed, clock, is_done = Observed(), ManualClock(), Stream()
    observed.observe(ref)
    wire.task, wire.replies["ping"] = INPUT_REQUIRED, lambda arrived: is_done
    async with wire.session(observed, clock=clock) as session:
        observed.keep(await session.get(ref))
        await session.update(observed.kept[TASK], {"k.0": ANSWER})
        await wire.wait_for("ping")
        await anyio.wait_all_tasks_blocked()
        assert not wire.of("notifications/cancelled")
        is_done.reply({})
        (cancelled,) = await wire.wait_for("notifications/cancelled")
    assert cancelled.params == {"requestId": "r"}


@pytest.mark.parametrize("answered", ["before", "after"])
async def test_a_result_whose_stream_has_broken_is_cancelled_after_the_answer(
    wire: OlderServer, answered: str
) -> None:
    """mcp 1.30 would send the next question to the stream that nobody reads."""
    async with asking(wire, clock=ManualClock()) as (session, observed, stream, snapshot):
        if answered == "after":
            stream.end()
            await stream.closed_by_client.wait()
            await anyio.wait_all_tasks_blocked()
            assert not wire.of("notifications/cancelled"), "mcpkit would abort the question"
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        if answered == "before":
            stream.end()
        (cancelled,) = await wire.wait_for("notifications/cancelled")
    assert cancelled.params == {"requestId": stream.request_id}


async def test_an_answer_of_a_dead_process_is_sent_before_the_first_poll(wire: OlderServer) -> None:
    left = SessionData(owner=ANOTHERS, session_id="s7", open=(OpenQuestion("k.0", "q", {"method": "m"}),))
    async with wire.session(Observed()) as session:
        await session.update(TaskRef(TASK, left.write()), {"k.0": ANSWER})
    assert [one.method for one in wire.arrived] == ["answer"]


async def test_a_question_that_reads_like_one_that_another_client_has_answered_is_another(
    wire: OlderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(wire) as (session, observed, _, snapshot):
        data = await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
    monkeypatch.setattr(QUESTION_S, 0.02)
    assert SessionData.read(data).open == ()
    observed = Observed()
    observed.observe(TaskRef(TASK, data))
    async with wire.session(observed) as other:
        await other.get(observed.kept[TASK])
        stream = await wire.wait_for_result(2)
        stream.event(question(4))
        asked = await observed.wait_until(asks)
        assert asked.task.input_requests is not None
        assert list(asked.task.input_requests.values()) == list((snapshot.task.input_requests or {}).values())
        assert key_of(asked) != key_of(snapshot)


async def test_what_another_process_did_meanwhile_counts(
    wire: OlderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(wire) as (session, observed, _, snapshot):
        monkeypatch.setattr(QUESTION_S, 0.02)
        meanwhile = SessionData(owner=ANOTHERS, session_id="s1", answered={key_of(snapshot).split(".")[0]: 1})
        observed.kept[TASK] = TaskRef(TASK, meanwhile.write())
        assert (await session.get(observed.kept[TASK])).task.input_requests == {}
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
    assert not wire.of("answer"), "the other process has answered"


@requirement("2025:cancel")
async def test_a_task_of_a_server_that_cannot_cancel_is_not_cancelled(wire: OlderServer) -> None:
    wire.capabilities["tasks"] = {"requests": {"tools": {"call": {}}}}
    async with wire.session() as session:
        ref = await start(session)
        with pytest.raises(MissingCapabilityError, match=r"does not declare tasks\.cancel"):
            await session.cancel(ref)
    async with wire.session() as session:  # and the next process knows
        with pytest.raises(MissingCapabilityError):
            await session.cancel(ref)
    assert not wire.of("tasks/cancel")


@requirement("2025:cancel", "2025:cancelled-is-gone")
async def test_no_question_of_a_cancelled_task_is_answered(wire: OlderServer) -> None:
    """mcp 1.30 loses its session by such an answer."""
    async with asking(wire) as (session, observed, stream, snapshot):
        await session.cancel(observed.kept[TASK])
        with pytest.raises(SessionError) as caught:
            await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        assert caught.value.code == INVALID_PARAMS
        observed.delivered.clear()
        stream.event(question(1, "Dog?"))
        wire.task = {**INPUT_REQUIRED, "status": "cancelled"}
        assert (await session.get(observed.kept[TASK])).task.status == "cancelled"
    assert not wire.of("answer")
    assert not observed.delivered


@requirement("2025:cancel", "2025:cancelled-is-gone")
@pytest.mark.parametrize("method", ["elicitation/create", "tasks/get", "tasks/result"])
@pytest.mark.parametrize("heard", ["before", "after"])
async def test_nothing_is_sent_about_a_task_of_ours_once_the_task_that_needed_it_is_cancelled(
    wire: OlderServer, method: str, heard: str
) -> None:
    """A reply that did not arrive before is not sent again either."""

    async def decline(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    def ask(request_id: int, method: str, params: JSONObject) -> None:
        stream.event({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})

    clock, observed = ManualClock(), Observed()
    wire.task = INPUT_REQUIRED
    inputs = Callbacks(elicitation=decline)
    async with (
        wire.session(observed, clock=clock, inputs=inputs) as session,
        anyio.create_task_group() as tasks,
    ):
        await start(session, observed)
        tasks.start_soon(session.get, observed.kept[TASK])
        stream = await wire.wait_for_result()
        params = {**question(0)["params"], "task": {}}
        ask(0, "elicitation/create", params)
        (created,) = await wire.wait_for("answer")
        if method != "elicitation/create":
            params = {"taskId": created.message["result"]["task"]["taskId"]}
        wire.replies["answer"] = lambda arrived: httpx.ConnectError("not now")
        if heard == "before":
            ask(1, method, params)
            await wire.wait_for("answer", 2)
        sent = len(wire.of("answer"))
        await session.cancel(observed.kept[TASK])
        if heard == "after":
            ask(1, method, params)
        await clock.advance(10.0)
        assert len(wire.of("answer")) == sent


# ── MCP sessions that end ─────────────────────────────────────────────────────────────────────


@requirement("2025:lost-session")
@pytest.mark.parametrize(
    ("said", "lost"),
    [
        (refusal(-32600, "Session not found", 404, "server-error"), True),
        (refusal(-32000, "Bad Request: Server not initialized", 400), True),
        (refusal(-32602, "Task not found", 404), False),
        (refusal(-32000, "Bad Request: no such resource", 400), False),
        (httpx.Response(503, text="later"), False),
    ],
)
async def test_a_session_that_the_server_denies_is_lost_with_its_tasks(
    wire: OlderServer, said: httpx.Response, lost: bool
) -> None:
    def unknown_elsewhere(arrived: Arrived) -> Any:
        return (
            wire.task
            if arrived.session_id == "s1"
            else refusal(-32602, "Task not found", 200, arrived.message["id"])
        )

    wire.replies["tasks/get"] = unknown_elsewhere
    async with wire.session() as session:
        ref = await start(session)
        wire.gone["s1"] = said
        with pytest.raises(SessionError) as caught:
            await session.get(ref)
        assert len(wire.of("initialize")) == 1 + lost
        if lost:
            assert (caught.value.code, caught.value.retryable) == (INVALID_PARAMS, False)
            assert "ended the session that the task was made in" in caught.value.remote_message
        wire.gone.clear()
        if not lost:
            assert (await session.get(ref)).task.status == "working"


@requirement("2025:lost-session")
async def test_a_task_of_another_process_whose_session_has_just_ended_is_not_found(wire: OlderServer) -> None:
    """No other session has it that could be gone to, so that nobody is told to."""
    wire.replies["tasks/get"] = lambda arrived: refusal(-32602, "Task not found", 200, arrived.message["id"])
    async with wire.session() as session:
        await start(session)
        current = session._sessions.current
        assert current is not None
        assert current.session_id == "s1"
        current.lost = True  # by a call that was refused at the same time
        left = SessionData(owner=ANOTHERS, session_id="s1")
        with pytest.raises(SessionError) as caught:
            await session.get(TaskRef(TASK, left.write()))
        assert (caught.value.code, caught.value.retryable) == (INVALID_PARAMS, False)


@requirement("2025:lost-session")
async def test_a_session_that_was_denied_and_is_there_again_is_not_given_up_for_what_may_pass(
    wire: OlderServer,
) -> None:
    """The session that was begun meanwhile does not know the task, and its word would end it."""

    def reply(arrived: Arrived) -> Any:
        if arrived.session_id == "s1":
            return httpx.Response(503)
        return refusal(-32602, "Task not found", 200, arrived.message["id"])

    wire.replies["tasks/get"] = reply
    async with wire.session() as session:
        ref = await start(session)
        wire.gone["s1"] = refusal(-32600, "Session not found", 404)
        with pytest.raises(SessionError) as caught:
            await session.get(ref)
        assert caught.value.code == INVALID_PARAMS
        wire.gone.clear()
        with pytest.raises(SessionError) as caught:
            await session.get(ref)
        assert (caught.value.http_status, caught.value.retryable) == (503, True)


@requirement("2025:lost-session")
async def test_an_answer_that_goes_out_in_a_session_that_is_denied_is_not_refused(wire: OlderServer) -> None:
    """The session may be there again: one of several replicas has denied it."""
    async with asking(wire) as (session, observed, _, snapshot):
        wire.gone["s1"] = refusal(-32600, "Session not found", 404)
        with pytest.raises(SessionError) as caught:
            await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
        assert caught.value.retryable
        wire.gone.clear()
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})


@requirement("2025:lost-session")
async def test_a_client_that_closes_cancels_its_result_in_a_session_that_was_denied_and_is_there_again(
    wire: OlderServer,
) -> None:
    def reply(arrived: Arrived) -> Any:
        known = arrived.session_id == "s1"
        return wire.task if known else refusal(-32602, "Task not found", 200, arrived.message["id"])

    wire.replies["tasks/get"] = reply
    async with asking(wire) as (session, observed, stream, snapshot):
        wire.gone["s1"] = refusal(-32600, "Session not found", 404)
        with pytest.raises(SessionError):
            await session.get(observed.kept[TASK])
        wire.gone.clear()
        await session.update(observed.kept[TASK], {key_of(snapshot): ANSWER})
    assert [one.params["requestId"] for one in wire.of("notifications/cancelled")] == [stream.request_id]


@requirement("2025:lost-session")
async def test_the_stream_of_a_session_that_was_denied_and_answers_again_is_opened_again(
    wire: OlderServer,
) -> None:
    """Else its task would wait for ever for the answer to a question that nobody hears."""
    clock, observed = ManualClock(), Observed()
    streams = [Stream(), Stream()]
    wire.replies["GET"] = lambda arrived: streams[0] if arrived.session_id == "s1" else httpx.Response(405)
    wire.replies["tasks/get"] = lambda arrived: refusal(-32602, "Task not found", 200, arrived.message["id"])
    async with wire.session(observed, clock=clock) as session:
        ref = await start(session, observed)
        wire.gone["s1"] = refusal(-32600, "Session not found", 404)
        with pytest.raises(SessionError) as caught:
            await session.get(ref)
        assert caught.value.code == INVALID_PARAMS
        streams.pop(0).end()
        await clock.advance(2.0)
        wire.gone.clear()
        wire.replies["tasks/get"] = lambda arrived: INPUT_REQUIRED
        await clock.advance(10.0)
        streams[0].event(question(0))
        assert asks(await session.get(ref))


async def test_a_task_that_another_session_knows_goes_on_there(
    wire: OlderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where replicas share a store. What was asked is answered once the server asks it again."""
    async with asking(wire) as (session, observed, _, snapshot):
        wire.gone["s1"] = refusal(-32600, "Session not found", 404)
        monkeypatch.setattr(QUESTION_S, 0.02)
        moved = await session.get(observed.kept[TASK])
        assert data_of(moved).session_id == "s2"
        stream = await wire.wait_for_result(2)
        stream.event(question(8))
        again = await observed.wait_until(lambda one: asks(one) and data_of(one).session_id == "s2")
        assert key_of(again) == key_of(snapshot), "nobody is asked twice"
        await session.update(observed.kept[TASK], {key_of(again): ANSWER})
        assert wire.of("answer")[0].message["id"] == 8


@requirement("2025:upgraded")
async def test_a_task_of_another_version_is_not_asked_for(wire: OlderServer) -> None:
    """Its ``session_data`` is the ``requestState`` of a server that speaks this version since."""
    ref = TaskRef(TASK, "eyJzdGF0ZSI6IDF9")
    async with wire.session() as session:
        for send in (session.get(ref), session.update(ref, {"k": ANSWER}), session.cancel(ref)):
            with pytest.raises(RemoteProtocolError, match="made in another version") as caught:
                await send
            assert caught.value.not_executed
            assert not caught.value.retryable
        assert (await session.get(TaskRef(TASK))).task.status == "working"
    assert [one.method for one in wire.arrived if one.method.startswith("tasks/")] == ["tasks/get"]


# ── streams that break ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_call_whose_stream_ends_before_the_reply_may_have_run(
    wire: OlderServer, key: str | None
) -> None:
    """Also where the server closes it on purpose, after an event by which it could be resumed."""
    first = Stream()
    first.event(None, event_id="e1", retry_ms=1)
    first.end()
    wire.replies |= {"tools/call": lambda _: first, "server/discover": lambda _: OLD}
    kind = ConnectionLostError if key is None else OutcomeUnknownError
    with anyio.fail_after(LIMIT_S):
        async with (
            httpx.AsyncClient(transport=httpx.MockTransport(wire)) as http,
            TasksClient(URL, http_client=http, journal=MemoryJournal()) as client,
        ):
            for _ in range(1 if key is None else 2):
                with pytest.raises(kind) as caught:
                    await client.call_tool("plain", idempotency_key=key)
                assert not getattr(caught.value, "not_executed", False)
    assert len(wire.of("tools/call")) == 1
    assert not any("last-event-id" in one.headers for one in wire.of("GET"))


async def test_a_result_that_breaks_is_opened_again_by_polls_ever_more_rarely(wire: OlderServer) -> None:
    clock, observed = ManualClock(), Observed()
    wire.task = INPUT_REQUIRED
    wire.replies["tasks/result"] = lambda arrived: httpx.Response(502)
    opened: list[int] = []
    async with wire.session(observed, clock=clock) as session, anyio.create_task_group() as tasks:
        await start(session, observed)
        for _ in range(20):
            tasks.start_soon(session.get, observed.kept[TASK])
            await clock.advance(1.0)
            opened.append(len(wire.of("tasks/result")))
    assert opened[0] == 1
    assert 3 <= opened[-1] <= 6


@pytest.mark.parametrize(("status", "tries"), [(405, 1), (404, 5)])
async def test_a_server_without_a_stream_of_its_own_is_not_asked_for_ever(
    wire: OlderServer, status: int, tries: int
) -> None:
    clock, observed = ManualClock(), Observed()
    wire.replies["GET"] = lambda arrived: httpx.Response(status)
    async with wire.session(observed, clock=clock) as session:
        await start(session, observed)
        await clock.advance(600.0)
    assert len(wire.of("GET")) == tries


async def test_the_stream_of_the_session_is_opened_again_when_the_server_wants(wire: OlderServer) -> None:
    clock, observed = ManualClock(), Observed()
    streams: list[Stream] = []

    def open_stream(arrived: Arrived) -> Stream:
        streams.append(Stream())
        return streams[-1]

    wire.replies["GET"] = open_stream
    async with wire.session(observed, clock=clock) as session:
        await start(session, observed)
        await wire.wait_for("GET")
        streams[0].event(None, retry_ms=7000)
        streams[0].end()
        await anyio.wait_all_tasks_blocked()
        await clock.advance(6.9)
        assert len(streams) == 1
        await clock.advance(0.2)
        await wire.wait_for("GET", 2)


async def test_a_stream_of_the_session_that_is_refused_is_asked_for_again_after_the_servers_pause(
    wire: OlderServer,
) -> None:
    clock, observed = ManualClock(), Observed()
    observed.observe(TaskRef(TASK))
    wire.replies["GET"] = lambda arrived: httpx.Response(503, headers={"Retry-After": "20"})
    async with wire.session(observed, clock=clock):
        await wire.wait_for("GET")
        await anyio.wait_all_tasks_blocked()
        await clock.advance(19.0)
        assert len(wire.of("GET")) == 1
        await clock.advance(2.0)
        await wire.wait_for("GET", 2)


class OneStream:
    """The server's GET streams, of which it allows one at a time.

    Args:
        conflicts: Requests for a second one that are refused before the end of the first is noticed.
    """

    def __init__(self, conflicts: int) -> None:
        self.conflicts = conflicts
        self.streams: list[Stream] = []

    @property
    def is_open(self) -> bool:
        return bool(self.streams) and not self.streams[-1].closed_by_client.is_set()

    def __call__(self, arrived: Arrived) -> Stream | httpx.Response:
        if self.streams and self.conflicts:
            self.conflicts -= 1
            return httpx.Response(409)
        self.streams.append(Stream())
        return self.streams[-1]


@requirement("2025:any-stream")
@pytest.mark.parametrize("way", ["by URL", "beneath"])
async def test_a_call_goes_out_only_while_the_stream_is_there_that_may_carry_its_questions(
    wire: OlderServer, way: str
) -> None:
    """A server sends once what it has to say, and not to a stream that comes later."""
    get, heard, call = OneStream(conflicts=3), list[bool](), wire.replies["tools/call"]

    def take(arrived: Arrived) -> Any:
        heard.append(get.is_open)
        return call(arrived)

    wire.replies |= {"GET": get, "tools/call": take, "server/discover": lambda arrived: OLD}
    wire.task = COMPLETED
    inner = httpx.MockTransport(wire)
    with anyio.fail_after(LIMIT_S):
        if way == "by URL":
            http = httpx.AsyncClient(transport=inner)
            async with http, TasksClient(URL, http_client=http, journal=MemoryJournal()) as client:
                await client.call_tool("slow")
                get.streams[-1].end()
                await get.streams[-1].closed_by_client.wait()
                await client.call_tool("slow")
        else:
            transport = TasksHttpTransport(inner, journal=MemoryJournal())
            async with httpx.AsyncClient(transport=transport) as http:
                host = JsonRpcHost(http, url=URL, version="2025-11-25")
                for _ in range(2):
                    assert await host.text("slow") == "done"
    assert heard == [True, True]
    assert get.conflicts == 0


@requirement("2025:lost-session", "2025:any-stream")
async def test_a_call_that_waits_for_the_stream_of_a_session_that_ends_goes_out_on_that_of_the_next(
    wire: OlderServer,
) -> None:
    clock, observed, get, heard = ManualClock(), Observed(), OneStream(conflicts=3), list[str | None]()
    wire.replies["GET"] = get
    async with wire.session(observed, clock=clock) as session, anyio.create_task_group() as tasks:
        ref = await start(session, observed)

        def take(arrived: Arrived) -> Any:
            heard.append(arrived.session_id if get.is_open else None)
            return text("plain")

        wire.replies["tools/call"] = take
        get.streams[-1].end()
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(session.call, ToolCall(name="plain"), nothing)
        await anyio.wait_all_tasks_blocked()
        wire.gone["s1"] = refusal(-32001, "Session not found", 404)
        wire.replies["tasks/get"] = lambda arrived: refusal(INVALID_PARAMS, "No such task")
        with pytest.raises(SessionError, match="has ended the session"):
            await session.get(ref)
        await anyio.wait_all_tasks_blocked()
        assert get.conflicts
        await clock.advance(0.5)
    assert heard == ["s2"]


@pytest.mark.parametrize(
    ("why", "waited_s"), [("there is none", 0.0), ("another client has it", 5.0), ("it ends at once", 1.0)]
)
async def test_five_calls_wait_but_once_for_a_stream_that_does_not_stay(
    wire: OlderServer, why: str, waited_s: float
) -> None:
    clock, over = ManualClock(), list[float]()

    def get(arrived: Arrived) -> Any:
        stream = Stream()
        stream.end()
        statuses = {"there is none": 405, "another client has it": 409}
        return httpx.Response(statuses[why]) if why in statuses else stream

    wire.replies["GET"] = get
    async with wire.session(clock=clock) as session, anyio.create_task_group() as tasks:

        async def call() -> None:
            for _ in range(5):
                await session.call(ToolCall(name="plain"), nothing)
            over.append(clock.monotonic())

        tasks.start_soon(call)
        await clock.advance(60.0)
    assert over == [waited_s]
