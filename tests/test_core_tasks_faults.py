"""The older generation over a wire on which things go wrong: what is lost, what is not, what goes twice."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
import httpx
import pytest

from mcp_tasks_client import MemoryJournal, OutcomeUnknownError, SessionError, TasksClient, WaitTimeoutError
from mcp_tasks_client.old.errors import ConnectionLostError, RemoteProtocolError
from mcp_tasks_client.old.inputs import Callbacks
from mcp_tasks_client.old.sessions import answering
from mcp_tasks_client.old.sessions.base import INVALID_PARAMS, TaskRef, ToolCall
from mcp_tasks_client.old.sessions.generations import AnyGenerationSession, session_at
from mcp_tasks_client.old.sessions.http_peer import HttpPeer
from mcp_tasks_client.old.sessions.listing import listed_tasks
from mcp_tasks_client.old.sessions.shapes_2025_11_25 import RELATED_TASK, Memo
from mcp_tasks_client.old.states import Observing, Question
from mcp_tasks_client.old.wire import Created, JSONObject, RequestId, Returned, Task, digest

from ._requirements import requirement

pytestmark = pytest.mark.anyio

URL: Final = "http://server.example/mcp"
TASK: Final = "task-1"
OLDER: Final = TaskRef(TASK, str(Memo(session_id="s1")), "2025-11-25")
LIMIT_S: Final = 20.0
NOT_FOUND: Final = {"code": -32602, "message": "Task not found"}

Reply: TypeAlias = JSONObject | httpx.Response | Exception


def refusal(code: int, message: str, status: int, request_id: object = None) -> httpx.Response:
    error = {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
    return httpx.Response(status, json=error)


def text(said: str) -> JSONObject:
    return {"content": [{"type": "text", "text": said}]}


Answers: TypeAlias = Callable[[httpx.Request], Awaitable[httpx.Response]]


def waiting() -> httpx.Response:
    """What a ``tasks/result`` gets while its task goes on: a stream on which nothing comes."""

    async def silent() -> AsyncIterator[bytes]:
        yield b": nothing to say\n\n"
        await anyio.sleep_forever()

    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=silent())


class Wire:
    """A server of 2025-11-25 whose every reply can be another."""

    def __init__(self) -> None:
        self.sessions = 0
        self.lists = True
        self.noted: Callable[[], int] = lambda: 202
        self.gone: dict[str | None, httpx.Response] = {}
        self.arrived: list[tuple[str, str | None]] = []
        self.heard: list[Task] = []
        self.task: JSONObject = {"taskId": TASK, "status": "working", "ttl": 60_000, "pollInterval": 50}
        self.replies: dict[str, Callable[[JSONObject, str | None], Reply]] = {
            "tools/list": lambda params, session: {
                "tools": [
                    {"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}
                    for name, support in (("plain", "forbidden"), ("slow", "required"))
                ]
            },
            "tools/call": lambda params, session: (
                {"task": self.task} if params["name"] == "slow" else text("plain")
            ),
            "tasks/get": lambda params, session: self.task,
            "tasks/result": lambda params, session: text("done"),
            "ping": lambda params, session: {},
        }

    def of(self, method: str) -> list[str | None]:
        """The sessions of the requests of a method, in order."""
        return [session for one, session in self.arrived if one == method]

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        await anyio.lowlevel.checkpoint()
        session = request.headers.get("mcp-session-id")
        message = json.loads(request.content) if request.content else {}
        method = message.get("method", request.method)
        self.arrived.append((method, session))
        if session in self.gone:
            return self.gone[session]
        if "id" not in message or "method" not in message:
            return self._noted(request)
        if method == "server/discover" and method not in self.replies:
            return refusal(-32601, "Method not found", 404)
        if method == "initialize":
            self.sessions += 1
            tasks = {
                "cancel": {},
                "requests": {"tools": {"call": {}}},
                **({"list": {}} if self.lists else {}),
            }
            said: Reply = {"protocolVersion": "2025-11-25", "capabilities": {"tasks": tasks}}
            headers = {"mcp-session-id": f"s{self.sessions}"}
        else:
            said, headers = self.replies[method](message.get("params", {}), session), {}
        if isinstance(said, Exception):
            raise said
        if isinstance(said, httpx.Response):
            return said
        return httpx.Response(
            200, json={"jsonrpc": "2.0", "id": message["id"], "result": said}, headers=headers
        )

    def _noted(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            answer = self.replies.get("GET")
            said = answer({}, None) if answer is not None else httpx.Response(405)
            assert isinstance(said, httpx.Response)
            return said
        return httpx.Response(self.noted())

    @asynccontextmanager
    async def client(self) -> AsyncIterator[TasksClient]:
        with anyio.fail_after(LIMIT_S):
            async with (
                httpx.AsyncClient(transport=httpx.MockTransport(self)) as http,
                TasksClient(URL, journal=MemoryJournal(), http_client=http) as client,
            ):
                yield client

    @asynccontextmanager
    async def session(self, answers: Answers | None = None) -> AsyncIterator[AnyGenerationSession]:
        with anyio.fail_after(LIMIT_S):
            async with httpx.AsyncClient(transport=httpx.MockTransport(answers or self)) as http:
                session = session_at(URL, inputs=Callbacks(), http_client=http)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(session.watch, self.heard.append)
                    await anyio.wait_all_tasks_blocked()
                    yield session
                    tasks.cancel_scope.cancel()


@pytest.fixture
def wire() -> Wire:
    return Wire()


# ── sessions ──────────────────────────────────────────────────────────────────────────────────


@requirement("2025:lost-session", "law:7")
@pytest.mark.parametrize(
    ("said", "lost"),
    [
        (refusal(-32600, "Session not found", 404, "server-error"), True),
        (refusal(-32001, "Session not found", 404), True),
        (refusal(-32000, "Bad Request: No valid session ID provided", 400), True),
        (refusal(-32000, "Bad Request: Server not initialized", 400), True),
        (refusal(-32602, "Task not found", 404), False),
        (refusal(-32603, "booked, but could not close the database session", 400), False),
        (httpx.Response(503, text="later"), False),
    ],
)
async def test_a_session_is_lost_only_if_the_server_says_so(
    wire: Wire, said: httpx.Response, lost: bool
) -> None:
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        wire.gone["s1"] = said
        with nullcontext() if lost else pytest.raises(SessionError):
            await session.get(OLDER)
        assert (wire.sessions == 2) is lost
        wire.gone.clear()
        assert (await session.get(OLDER)).status == "working"


@requirement("2025:lost-session", "law:7")
@pytest.mark.parametrize(
    "said", [refusal(-32001, "Session not found", 404), httpx.Response(404, text="none")]
)
async def test_a_session_that_only_one_request_does_not_find_has_what_was_asked_there(
    wire: Wire, said: httpx.Response
) -> None:
    replies: list[Reply] = [said]
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        session._older._hearing.told(await session._older.connect(), asked_of_us(7))
        wire.replies["tasks/get"] = lambda params, session: replies.pop() if replies else wire.task
        with pytest.raises(SessionError):  # as by a replica that has never heard of it
            await session.get(OLDER)
        assert (await session.get(OLDER)).input_requests == {KEY: QUESTION}
    assert wire.sessions == 1


@requirement("2025:lost-session", "law:2")
@pytest.mark.parametrize(("status", "code"), [(400, -32602), (404, -32602), (400, -32600), (404, -32600)])
async def test_a_call_that_a_tool_has_refused_is_not_sent_again(wire: Wire, status: int, code: int) -> None:
    wire.replies["tools/call"] = lambda params, session: refusal(code, "no such city", status)
    async with wire.session() as session:
        with pytest.raises(SessionError):
            await session.call(ToolCall(name="plain"))
    assert wire.of("tools/call") == ["s1"]


@requirement("2025:lost-session", "law:2")
@pytest.mark.parametrize(
    "said",
    [
        refusal(-32602, "charged, but the address is odd", 200),
        httpx.Response(404, text="default backend - 404"),
    ],
)
async def test_a_call_that_a_tool_has_refused_is_not_sent_again_because_the_session_was_lost_meanwhile(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, said: httpx.Response
) -> None:
    async with wire.session() as session:
        peer = await session._older.connect()

        def refused(params: JSONObject, session_id: str | None) -> Reply:
            peer.lost = True  # as another request has found
            return said

        def replied(params: JSONObject, session_id: str | None) -> Reply:
            peer.lost = False
            return {}

        wire.replies |= {"tools/call": refused, "ping": replied}
        with pytest.raises(SessionError) as raised:
            await session.call(ToolCall(name="plain"))
        assert not raised.value.not_executed or raised.value.code == -32602
        monkeypatch.setattr(
            peer, "denied", lambda error: not error.not_executed
        )  # as by what is found meanwhile
        with pytest.raises(SessionError):
            await session.call(ToolCall(name="plain"))
    assert len(wire.of("tools/call")) == 2, "each of them once"


@requirement("law:6")
async def test_the_ids_of_requests_are_no_other_process_in_the_session_has(wire: Wire) -> None:
    ids = list[Any]()

    async def noted(request: httpx.Request) -> httpx.Response:
        message = json.loads(request.content or b"{}")
        if "method" in message and request.headers.get("mcp-session-id") == "s1" and "id" in message:
            ids.append(message["id"])
        return await wire(request)

    wire.task["status"] = "completed"
    async with wire.session(noted) as session:
        await session.call(ToolCall(name="plain"))
        await session.get(OLDER)
    assert len(ids) == len(set(ids)) == 4
    # Both official servers hand a reply to the latest request with its ID, whoever has sent that.
    assert all(isinstance(one, str) and len(one) >= 16 for one in ids), "not counted"


@requirement("2025:lost-session", "law:2")
@pytest.mark.parametrize("data", [None, {"of": "the tool"}])
@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (400, -32000, "charged, but the browser session has expired"),
        (404, -32000, "Customer 7 was not found"),
    ],
)
async def test_what_a_tool_may_have_said_does_not_have_it_called_again(
    wire: Wire, status: int, code: int, said: str, data: Any
) -> None:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": said, "data": data}}
    wire.replies["tools/call"] = lambda params, session: httpx.Response(status, json=error)
    if status == 404:
        wire.replies["ping"] = lambda params, session: httpx.Response(404, text="no ping here")
    async with wire.session() as session:
        with pytest.raises(SessionError) as raised:
            await session.call(ToolCall(name="plain"))
        assert not raised.value.not_executed
        # Where the session may have ended as well, nobody knows which it was; else the tool has failed by it.
        assert isinstance(raised.value, ConnectionLostError) is (status == 404)
    assert wire.of("tools/call") == ["s1"]


@requirement("2025:lost-session", "law:2")
@pytest.mark.parametrize(
    "said",
    [
        refusal(-32600, "Session not found or has expired.", 404),
        refusal(-32600, "Not Found: Invalid or expired session ID", 404),
        refusal(-32000, "Bad Request: No valid session ID provided", 400),
        httpx.Response(404, text="no such session"),
    ],
)
async def test_a_call_goes_again_in_another_session_if_its_own_has_ended(
    wire: Wire, said: httpx.Response
) -> None:
    async with wire.session() as session:
        await session.tool("plain")
        wire.gone["s1"] = said
        assert await session.call(ToolCall(name="plain")) == Returned(text("plain"))
    assert wire.of("tools/call") == ["s1", "s2"]


@requirement("2025:lost-session", "law:2")
async def test_a_call_goes_again_if_a_replica_got_it_that_has_never_heard_of_the_session(
    wire: Wire,
) -> None:
    replies: list[Reply] = [refusal(-32001, "Session not found", 404)]
    wire.replies["tools/call"] = lambda params, session: replies.pop() if replies else text("plain")
    async with wire.session() as session:
        assert await session.call(ToolCall(name="plain")) == Returned(text("plain"))
        replies.append(httpx.Response(404, text="default backend - 404"))
        with pytest.raises(SessionError) as raised:
            await session.call(ToolCall(name="plain"))
        assert not raised.value.not_executed, "of this one nobody knows who has said so"
        replies.append(httpx.Response(404, text="default backend - 404"))
        wire.replies["ping"] = lambda params, session: httpx.Response(404, text="default backend - 404")
        assert await session.call(ToolCall(name="plain")) == Returned(text("plain"))
    assert wire.of("tools/call") == ["s1", "s1", "s1", "s1", "s2"]


async def test_a_session_that_two_requests_in_a_row_do_not_find_is_lost_without_a_word(wire: Wire) -> None:
    gone = httpx.Response(404, text="not here")
    wire.replies["tasks/get"] = lambda params, session: gone if session == "s1" else wire.task
    wire.replies["ping"] = wire.replies["tasks/get"]
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        assert (await session.get(OLDER)).status == "working"
    assert wire.of("tasks/get") == ["s1", "s2"]


@requirement("law:7")
async def test_a_session_that_was_out_of_reach_for_a_moment_has_its_tasks(wire: Wire) -> None:
    rounds = [True, False, True, False, False]  # what the session that it was made in says: not found, or it

    def get(params: JSONObject, session: str | None) -> Reply:
        if session == "s1":
            return refusal(-32600, "Session not found", 404) if rounds.pop(0) else wire.task
        return refusal(-32602, "Task not found", 200)

    wire.replies["tasks/get"] = get
    wire.replies["ping"] = lambda params, session: refusal(-32600, "Session not found", 404)
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        peer = await session._older.connect()
        for _ in range(3):
            assert (await session.get(OLDER)).status == "working"
        assert session._older._peers.adopt("s1") is peer, "what it was asked is known still"
    assert wire.of("tasks/get") == ["s1", "s2", "s1", "s1", "s2", "s1", "s1"]
    assert wire.sessions == 2


@requirement("law:3", "2025:lost-session")
async def test_a_session_that_is_found_again_has_what_was_asked_there_a_moment_before(wire: Wire) -> None:
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    known = wire.replies["tasks/get"]
    wire.replies["tasks/get"] = lambda params, session: (
        known(params, session) if session == "s1" else found_again()
    )

    def found_again() -> httpx.Response:
        wire.gone.clear()
        return refusal(-32602, "Task not found", 200)

    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        session._older._hearing.told(await session._older.connect(), asked_of_us(7))
        wire.gone["s1"] = refusal(-32001, "Session not found", 404)
        assert (await session.get(OLDER)).input_requests == {KEY: QUESTION}, "which is in no journal yet"
        await session.update(OLDER, {KEY: {"action": "decline"}})
        assert wire.of("POST") == ["s1"]


@requirement("law:7")
@pytest.mark.parametrize(
    "said",
    [
        "Session not found or has expired.",
        "Not Found: Session has been terminated",
        "Bad Request: Missing session ID",
        "Bad Request: Server not initialized",
        "Session does not exist",
        "Not found",
        "Unknown session (method: tasks/get)",
        "Invalid session: tasks are bound to the session that they were made in",
    ],
)
async def test_a_session_that_one_of_several_servers_denies_in_its_own_words_is_asked_again(
    wire: Wire, said: str
) -> None:
    wire.replies["tasks/get"] = lambda params, session: refusal(-32600, said, 404)
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        with pytest.raises(SessionError) as raised:
            await session.get(OLDER)
        assert raised.value.retryable, "for a ping is answered"
        wire.replies["tasks/get"] = lambda params, session: refusal(-32600, "There is no such task", 404)
        with pytest.raises(SessionError) as raised:
            await session.get(OLDER)
        assert not raised.value.retryable, "that is said of no session"
    assert wire.sessions == 1


async def test_a_session_that_was_denied_by_mistake_can_be_found_again(wire: Wire) -> None:
    denied = refusal(-32001, "Session not found", 404)
    answers: list[Reply] = [{}, httpx.Response(503), denied]
    wire.replies["ping"] = lambda params, session: answers.pop()
    async with wire.session() as session:
        peer = await session._older.connect()
        found = []
        for lost in (True, True, True, False):
            peer.lost = lost
            await peer.look_again()
            found.append(not peer.lost)
        assert found == [False, True, True, True], "that it is out of reach says nothing"
    assert not answers, "one that is there is not looked for"


@requirement("law:3")
@pytest.mark.parametrize("denied_to", ["a poll", "a call", "a call that has just seen it"])
@pytest.mark.parametrize("back", ["at the third time", "not heard of", "never", "without the task"])
async def test_what_was_asked_in_a_session_that_is_denied_can_be_answered_there_alone(
    wire: Wire, back: str, denied_to: str
) -> None:
    # The server knows its tasks in whichever session; but it has asked in one, and waits there.
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    denied, requests = refusal(-32001, "Session not found", 404), list[bool]()

    def deny(params: JSONObject, session: str | None) -> Reply:
        if session != "s1":
            return wire.task
        requests.append(True)
        if back == "at the third time" and len(requests) > 2:
            return wire.task
        if back == "without the task" and len(requests) > 2:
            return refusal(-32602, "Task not found", 200)
        return httpx.Response(503) if back == "not heard of" and len(requests) == 3 else denied

    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        session._older._hearing.told(await session._older.connect(), asked_of_us(7))
        left = replace(OLDER, request_state=(await session.get(OLDER)).request_state)
        wire.replies["tasks/get"] = wire.replies["ping"] = deny
        if denied_to == "a call":
            plain = wire.replies["tools/call"]
            wire.replies["tools/call"] = lambda params, session: (
                plain(params, session) if session != "s1" else deny(params, session)
            )
            assert await session.call(ToolCall(name="plain")) == Returned(text("plain"))
        elif denied_to != "a poll":
            (await session._older.connect()).lost = True
            requests += [True, True]
        if back == "not heard of":
            with pytest.raises(SessionError):  # nor is the task taken for one of another session
                await session.get(left)
            wire.replies["tasks/get"] = lambda params, session: wire.task
        if back == "without the task" and denied_to == "a call that has just seen it":
            with pytest.raises(SessionError) as raised:
                await session.get(left)
            assert raised.value.code == INVALID_PARAMS, "there is no other session to ask in"
            return
        task = await session.get(left)
        if back in ("never", "without the task"):
            assert Memo.read(task.request_state).session_id == "s2"
            assert task.input_requests == {}
        else:
            assert task.input_requests == {KEY: QUESTION}
            await session.update(left, {KEY: {"action": "decline"}})
            assert wire.of("POST") == ["s1"]


@requirement("law:7")
@pytest.mark.parametrize("found_by", ["a poll", "a call"])
async def test_a_session_that_is_out_of_reach_is_not_waited_for_for_ever(wire: Wire, found_by: str) -> None:
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    denied = [refusal(-32001, "Session not found", 404)] * 2

    def gone(params: JSONObject, session: str | None) -> Reply:
        if session != "s1":
            return text("plain") if "name" in params else wire.task
        return denied.pop() if denied else httpx.Response(502)

    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        session._older._hearing.told(await session._older.connect(), asked_of_us(7))
        left = replace(OLDER, request_state=(await session.get(OLDER)).request_state)
        wire.replies["tasks/get"] = wire.replies["ping"] = wire.replies["tools/call"] = gone
        if found_by == "a call":
            assert await session.call(ToolCall(name="plain")) == Returned(text("plain"))
        with pytest.raises(SessionError) as raised:
            await session.get(left)
        assert raised.value.retryable
        task = await session.get(left)
        assert Memo.read(task.request_state).session_id == "s2"
        wire.arrived.clear()
        await session.get(replace(left, request_state=task.request_state))
        assert wire.of("tasks/get") == ["s2"]


@requirement("law:3", "law:7")
@pytest.mark.parametrize(
    "shown", [refusal(-32603, "Internal error", 200), httpx.Response(429, headers={"Retry-After": "1"})]
)
async def test_a_session_that_says_anything_else_is_not_gone(wire: Wire, shown: httpx.Response) -> None:
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    replies: list[Reply] = [*[shown] * 3, *[refusal(-32001, "Session not found", 404)] * 2]

    def get(params: JSONObject, session: str | None) -> Reply:
        return replies.pop() if session == "s1" and replies else wire.task

    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        session._older._hearing.told(await session._older.connect(), asked_of_us(7))
        left = replace(OLDER, request_state=(await session.get(OLDER)).request_state)
        wire.replies["tasks/get"] = wire.replies["ping"] = get
        for _ in range(3):
            with pytest.raises(SessionError):
                await session.get(left)
        assert (await session.get(left)).input_requests == {KEY: QUESTION}
        assert wire.of("tasks/get")[-3:] == ["s1"] * 3


@requirement("law:1", "law:3")
async def test_what_waits_for_a_question_is_told_before_the_first_poll_of_a_process_has_ended(
    wire: Wire,
) -> None:
    wire.task["status"] = "input_required"
    waits: list[str] = []

    async def slowly(request: httpx.Request) -> httpx.Response:
        if b"tasks/result" in request.content:
            waits.append(json.loads(request.content)["id"])
            await anyio.sleep_forever()
        return await wire(request)

    async with wire.session(slowly) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(session.get, OLDER)
        with anyio.fail_after(LIMIT_S):
            while not waits or waits[0] not in [Memo.read(one.request_state).retrieval for one in wire.heard]:
                await anyio.sleep(0.01)
        assert not session._older._hearing.asked(TASK).silences, "it waits for a question still"
        assert not session._older._hearing.asked(TASK).seen.is_set(), "no answer goes before that is known"
        tasks.cancel_scope.cancel()


async def test_a_first_poll_that_cannot_be_read_is_a_malformed_reply_whatever_it_waits_for(
    wire: Wire,
) -> None:
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    wire.replies["tasks/get"] = lambda params, session: {"status": "input_required"}
    async with wire.session() as session:
        with pytest.raises(RemoteProtocolError):
            await session.get(OLDER)


@requirement("law:7")
@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("shown", [refusal(-32603, "Internal error", 200), "busy"])
async def test_a_session_that_is_never_well_again_is_not_waited_for_for_ever(
    wire: Wire, shown: httpx.Response | str, over: bool
) -> None:
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    denied = [refusal(-32001, "Session not found", 404)] * 2

    def get(params: JSONObject, session: str | None) -> Reply:
        if session != "s1":
            return wire.task
        busy = httpx.Response(503, headers={"Retry-After": "1"}) if shown == "busy" else shown
        return denied.pop() if denied else busy

    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        session._older._hearing.told(await session._older.connect(), asked_of_us(7))
        left = replace(OLDER, request_state=(await session.get(OLDER)).request_state)
        wire.replies["tasks/get"] = wire.replies["ping"] = get
        if over:
            wire.task["status"] = "completed"
            wire.replies["tasks/result"] = lambda params, session: text("done")
            assert (await session.get(left)).status == "completed"
            return
        for _ in range(5):
            with pytest.raises(SessionError):
                await session.get(left)
        assert Memo.read((await session.get(left)).request_state).session_id == "s2"


@requirement("law:3", "law:7")
@pytest.mark.parametrize("given_up", [False, True])
async def test_what_another_process_was_asked_in_a_session_that_is_denied_waits_there(
    wire: Wire, given_up: bool
) -> None:
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    denied = [refusal(-32001, "Session not found", 404)] * 2

    def get(params: JSONObject, session: str | None) -> Reply:
        return denied.pop() if session == "s1" and denied else wire.task

    wire.sessions = 1  # of the process before us
    wire.replies["tasks/get"] = wire.replies["ping"] = get
    async with wire.session() as session:
        if given_up:
            session._older._hearing.give_up(TASK)
        task = await session.get(LEFT)
        where = Memo.read(task.request_state).session_id
        assert (where, task.input_requests) == (("s2", {}) if given_up else ("s1", {KEY: QUESTION}))


@requirement("law:3", "law:7")
async def test_a_session_that_was_out_of_reach_is_looked_for_again_while_nothing_else_is_asked(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.hearing._BACK_S", 0.3)
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    denied = [httpx.Response(502)] * 2 + [refusal(-32001, "Session not found", 404)] * 2

    def gone(params: JSONObject, session: str | None) -> Reply:
        return denied.pop() if session == "s1" and denied else wire.task

    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        session._older._hearing.told(await session._older.connect(), asked_of_us(7))
        left = replace(OLDER, request_state=(await session.get(OLDER)).request_state)
        wire.replies["tasks/get"] = wire.replies["ping"] = gone
        with pytest.raises(SessionError):
            await session.get(left)
        other = replace(left, request_state=(await session.get(left)).request_state)
        assert Memo.read(other.request_state).session_id == "s2"
        denied.append(httpx.Response(502))  # and is still
        session._older._peers.adopt("of another task")
        with anyio.fail_after(LIMIT_S):
            while not (task := await session.get(other)).input_requests:
                assert Memo.read(task.request_state).session_id == "s2"
        assert not denied
        assert Memo.read(task.request_state).session_id == "s1"
        back = replace(left, request_state=task.request_state)
        assert Memo.read((await session.get(back)).request_state).asked == {KEY: [7]}
        await session.update(back, {KEY: {"action": "decline"}})
        assert wire.of("POST") == ["s1"]


@requirement("law:7")
async def test_a_look_that_is_cut_short_does_not_bring_a_session_back(wire: Wire) -> None:
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    waits = anyio.Event()

    async def slowly(request: httpx.Request) -> httpx.Response:
        if request.headers.get("mcp-session-id") == "s1" and b"tasks/get" in request.content and denied:
            waits.set()
            await anyio.sleep_forever()
        return await wire(request)

    denied = False
    async with wire.session(slowly) as session, anyio.create_task_group() as tasks:
        await session.call(ToolCall(name="slow"))
        peer = await session._older.connect()
        session._older._hearing.told(peer, asked_of_us(7))
        left = replace(OLDER, request_state=(await session.get(OLDER)).request_state)
        denied = peer.lost = True
        tasks.start_soon(session.get, left)
        await waits.wait()
        tasks.cancel_scope.cancel()
    assert peer.lost


async def test_a_session_that_is_lost_before_another_could_be_begun_is_the_same_still(wire: Wire) -> None:
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        peer = await session._older.connect()
        wire.gone["s1"] = refusal(-32001, "Session not found", 404)
        wire.gone[None] = httpx.Response(503)
        with pytest.raises(SessionError):
            await session.get(OLDER)
        assert peer.lost
        assert session._older._peers.adopt("s1") is peer
        wire.gone.clear()
        assert (await session.get(OLDER)).status == "working"
    assert wire.of("tasks/get") == ["s1", "s2"]


@requirement("law:7")
async def test_a_task_is_not_lost_because_another_has_found_their_session_again_meanwhile(wire: Wire) -> None:
    other = replace(OLDER, task_id="other")
    asked, found, unknown = anyio.Event(), anyio.Event(), refusal(-32602, "Task not found", 200)

    def get(params: JSONObject, session: str | None) -> Reply:
        if session != "s1":
            return unknown
        return {**wire.task, "taskId": params["taskId"]}

    async def slowly(request: httpx.Request) -> httpx.Response:
        reply = await wire(request)
        if b'"other"' in request.content and request.headers["mcp-session-id"] == "s2":
            asked.set()
            await found.wait()
        return reply

    wire.replies["tasks/get"] = get
    async with wire.session(slowly) as session, anyio.create_task_group() as tasks:
        await session.call(ToolCall(name="slow"))
        wire.gone["s1"] = refusal(-32600, "Session not found", 404)
        tasks.start_soon(session.get, other)
        await asked.wait()
        wire.gone.clear()
        assert (await session.get(OLDER)).status == "working"
        found.set()  # had it been told that its task is lost, this would have raised
    assert wire.of("tasks/get") == ["s1", "s2", "s2", "s1", "s1"]


@requirement("law:7")
async def test_a_task_is_not_lost_before_the_session_that_it_was_made_in_says_so(wire: Wire) -> None:
    unknown, busy = refusal(-32602, "Task not found", 200), httpx.Response(503)
    elsewhere: list[Reply] = [unknown, unknown, unknown, httpx.ReadError("lost")]
    at_home: list[Reply] = [wire.task, busy]
    wire.replies["tasks/get"] = lambda params, session: (at_home if session == "s1" else elsewhere).pop()
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        wire.gone["s1"] = refusal(-32600, "Session not found", 404)
        with pytest.raises(ConnectionLostError):
            await session.get(OLDER)
        del wire.gone["s1"]
        with pytest.raises(SessionError) as raised:  # s2 says that there is no such task, s1 nothing
            await session.get(OLDER)
        assert raised.value.http_status == 503
        assert (await session.get(OLDER)).status == "working"
        wire.gone["s1"] = refusal(-32600, "Session not found", 404)
        with pytest.raises(SessionError) as raised:
            await session.get(OLDER)
        assert "has ended the session" in raised.value.remote_message
        assert raised.value.code == INVALID_PARAMS


@requirement("law:2")
async def test_a_call_is_not_made_again_because_another_request_found_the_session_lost(wire: Wire) -> None:
    calls = 0

    def call(params: JSONObject, session: str | None) -> Reply:
        nonlocal calls
        calls += 1
        peer.lost = True  # as a poll finds that comes between
        return httpx.ReadError("the reply was lost")

    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        peer = await session._older.connect()
        wire.replies["tools/call"] = call
        with pytest.raises(ConnectionLostError):
            await session.call(ToolCall(name="plain"))
        assert peer.lost
    assert calls == 1


@requirement("2025:tool-support")
async def test_a_call_that_has_waited_for_its_turn_knows_its_tool_still(wire: Wire) -> None:
    asked_for: list[bool] = []

    def call(params: JSONObject, session: str | None) -> Reply:
        asked_for.append("task" in params)
        return {"task": wire.task}

    wire.replies["tools/call"] = call
    async with wire.session() as session, anyio.create_task_group() as tasks:
        await session.call(ToolCall(name="slow"))
        core = session._older
        core._call_slots = anyio.Semaphore(0)
        tasks.start_soon(core.call, ToolCall(name="slow"))
        await anyio.wait_all_tasks_blocked()
        core.forget_tools()  # as the server says that its list has changed
        core._call_slots.release()
    assert asked_for == [True, True]


@requirement("2025:lost-session")
@pytest.mark.parametrize(("status", "times"), [(405, 1), (401, 1), (403, 1), (404, 6)])
async def test_a_server_without_a_stream_of_its_own_keeps_its_tasks(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, status: int, times: int
) -> None:
    wire.replies["GET"] = lambda params, session: httpx.Response(status)
    monkeypatch.setattr("mcp_tasks_client.old.sessions.server_streams._SOON_S", 0.001)
    monkeypatch.setattr("mcp_tasks_client.old.sessions.server_streams._AGAIN_S", 0.001)
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            assert (await session.get(OLDER)).status == "working"
            await anyio.wait_all_tasks_blocked()
        await anyio.sleep(0.2)
        assert len(wire.of("GET")) == times, "it has said that there is none"
    assert wire.sessions == 1


@requirement("2025:lost-session")
@pytest.mark.parametrize(
    "refused",
    [
        refusal(-32001, "Session not found", 404),
        httpx.Response(404, text="default backend - 404"),
    ],
)
async def test_a_stream_is_tried_again_unless_it_is_said_that_there_is_none(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, refused: httpx.Response
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.server_streams._AGAIN_S", 0.01)
    replies = [httpx.Response(405), refused]
    wire.replies["GET"] = lambda params, session: replies.pop()
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        while replies:
            await anyio.sleep(0.01)
        await anyio.sleep(0.05)
        assert len(wire.of("GET")) == 2


async def test_a_stream_that_was_there_once_is_not_given_up_for_what_happens_now_and_then(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.server_streams._AGAIN_S", 0.001)
    monkeypatch.setattr("mcp_tasks_client.old.sessions.server_streams._LONGEST_AGAIN_S", 0.01)
    refused, opened = httpx.Response(404, text="default backend"), {"content-type": "text/event-stream"}
    never = [httpx.Response(status) for status in (405, 401, 403)]
    replies = [refused, *never, *[refused] * 7, httpx.Response(200, headers=opened), *[refused] * 5]
    wire.replies["GET"] = lambda params, session: replies.pop() if replies else refused
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        with anyio.fail_after(LIMIT_S):
            while replies:
                await anyio.sleep(0.01)


@requirement("law:3")
async def test_a_stream_that_lasted_is_opened_again_at_once(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One server waits for ever for the reply to what it says meanwhile.
    monkeypatch.setattr("mcp_tasks_client.old.sessions.server_streams._AGAIN_S", 0.1)
    opened, ends = {"content-type": "text/event-stream"}, 3
    begun: list[float] = []

    async def lasting() -> AsyncIterator[bytes]:
        yield b": here\n\n"
        await anyio.sleep(0.2 if len(begun) <= ends else 60.0)

    def get(params: JSONObject, session: str | None) -> httpx.Response:
        begun.append(anyio.current_time())
        return httpx.Response(200, headers=opened, content=lasting())

    wire.replies["GET"] = get
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        with anyio.fail_after(LIMIT_S):
            while len(begun) <= ends:
                await anyio.sleep(0.01)
        assert (await session._older.connect()).listened >= ends
    gaps = [later - earlier - 0.2 for earlier, later in pairwise(begun)]
    assert min(gaps) < 0.1, gaps


@requirement("law:4")
async def test_a_stream_is_not_opened_again_before_the_server_wants_it(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.server_streams._AGAIN_S", 0.1)
    begun: list[float] = []

    async def lasting() -> AsyncIterator[bytes]:
        yield b"retry: 600\nretry: soon\n\n" if len(begun) == 1 else b": here\n\n"
        await anyio.sleep(0.2)

    def get(params: JSONObject, session: str | None) -> httpx.Response:
        begun.append(anyio.current_time())
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=lasting())

    wire.replies["GET"] = get
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        with anyio.fail_after(LIMIT_S):
            while len(begun) < 3:
                await anyio.sleep(0.01)
    gaps = [later - earlier for earlier, later in pairwise(begun)]
    assert gaps[0] >= 0.8
    assert gaps[1] < 0.6, "it has not said so again"


@requirement("law:3", "law:7")
async def test_a_stream_that_is_refused_is_opened_ever_more_rarely_but_soon_at_first_if_it_was_open(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.server_streams._AGAIN_S", 0.4)
    monkeypatch.setattr("mcp_tasks_client.old.sessions.server_streams._SOON_S", 0.05)
    begun: list[float] = []

    async def lasting() -> AsyncIterator[bytes]:
        yield b": here\n\n"
        await anyio.sleep(0.6)

    async def get(request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            return await wire(request)
        begun.append(anyio.current_time())
        if len(begun) == 2:
            opened = {"content-type": "text/event-stream"}
            return httpx.Response(200, headers=opened, content=lasting())
        if len(begun) == 4:
            await anyio.sleep(0.6)  # a refusal that takes long is no stream
        return httpx.Response(409)

    async with wire.session(get) as session:
        await session.call(ToolCall(name="slow"))
        with anyio.fail_after(LIMIT_S):
            while len(begun) < 6:
                await anyio.sleep(0.01)
    gaps = [round(later - earlier, 2) for earlier, later in pairwise(begun)]
    assert gaps[0] >= 0.4
    assert 0.6 <= gaps[1] < 0.95, "at once"
    assert 0.05 <= gaps[2] < 0.4, "soon"
    assert gaps[3] >= 0.7, "and more rarely"
    assert gaps[4] >= 0.2


async def test_a_gateway_that_is_at_a_loss_for_a_moment_does_not_change_the_generation(wire: Wire) -> None:
    answers: list[Reply] = [httpx.Response(404, text="default backend - 404")]
    modern = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
    wire.replies["server/discover"] = lambda params, session: answers.pop() if answers else modern
    async with wire.session() as session:
        assert await session.call(ToolCall(name="plain")) == Returned(text("plain"))
    assert wire.of("tools/call") == [None], "without a session, as in 2026-07-28"


async def test_those_who_wait_for_a_session_share_its_failure(wire: Wire) -> None:
    go = anyio.Event()

    async def slowly(request: httpx.Request) -> httpx.Response:
        message = json.loads(request.content)
        if message["method"] == "initialize":
            wire.sessions += 1
            await go.wait()
            return httpx.Response(503)
        return refusal(-32601, "Method not found", 404)

    errors: list[SessionError] = []
    async with httpx.AsyncClient(transport=httpx.MockTransport(slowly)) as http:
        older = session_at(URL, inputs=Callbacks(), http_client=http)._older

        async def connect() -> None:
            try:
                await older.connect()
            except SessionError as error:
                errors.append(error)

        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(connect)
                await anyio.wait_all_tasks_blocked()
                go.set()
    assert len(errors) == 5
    assert wire.sessions == 1


async def test_a_task_that_the_server_cancels_while_it_asks_is_cancelled(wire: Wire) -> None:
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        peer = await session._older.connect()
        mark = {"io.modelcontextprotocol/related-task": {"taskId": TASK}}
        params = {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object"}, "_meta": mark}
        session._older._hearing.told(peer, {"id": 7, "method": "elicitation/create", "params": params})
        assert (await session.get(OLDER)).input_requests
        wire.task["status"] = "cancelled"
        assert (await session.get(OLDER)).status == "cancelled"


@requirement("2025:cancelled-is-gone")
async def test_a_cancelled_task_that_is_not_kept_is_over_all_the_same(wire: Wire) -> None:
    wire.replies["tasks/cancel"] = lambda params, session: {**wire.task, "status": "cancelled"}
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        await session.cancel(OLDER)
        wire.replies["tasks/get"] = lambda params, session: refusal(-32602, "Task not found", 200)
        with pytest.raises(SessionError) as caught:
            await session.get(OLDER)
    assert (caught.value.code, caught.value.retryable) == (-32602, False)


@requirement("2025:list")
async def test_what_the_server_lists_can_be_among_the_records(wire: Wire) -> None:
    def listed(params: JSONObject, session: str | None) -> Reply:
        done = {**wire.task, "taskId": "done", "status": "completed"}
        return {"tasks": [wire.task, {**wire.task, "taskId": "other"}, done, {"taskId": 7}]}

    wire.replies["tasks/list"] = listed
    async with wire.client() as client:
        await client.start_tool("slow")
        assert [(one.tool, one.task_id) for one in await client.records()] == [("slow", TASK)]
        records = await client.records(listed=True)
        assert [(one.tool, one.task_id) for one in records] == [
            ("slow", TASK),
            (None, "other"),
            (None, "done"),
        ]
        assert {one.generation for one in records} == {"2025-11-25"}
        pending = await client.records(listed=True, pending=True)
        assert {one.task_id for one in pending} >= {TASK, "other"}
        assert len(await client.records()) == 1, "nothing is journaled by looking"
        handle = await client.attach("other")
        assert handle.task is not None


@requirement("2025:list")
async def test_a_server_that_lists_nothing_adds_nothing(wire: Wire) -> None:
    wire.lists = False
    async with wire.client() as client:
        await client.start_tool("slow")
        assert len(await client.records(listed=True)) == 1
    assert not wire.of("tasks/list")


@requirement("2025:progress")
async def test_the_next_process_hears_how_far_a_task_is(wire: Wire) -> None:
    left = TaskRef(TASK, str(Memo(session_id="s1", progress="token")), "2025-11-25")
    async with wire.session() as session:
        task = await session.get(left)
        assert Memo.read(task.request_state).progress == "token", "and the one after that"
        peer = await session._older.connect()
        params = {"progressToken": "token", "progress": 2, "message": "half-way"}
        session._older._hearing.told(peer, {"method": "notifications/progress", "params": params})
        assert [one.progress for one in wire.heard] == [{"progress": 2, "message": "half-way"}]
        assert (await session.get(left)).progress == {"progress": 2, "message": "half-way"}


# ── what a process has left that was killed ──

QUESTION: Final = {"method": "elicitation/create", "params": {"mode": "form", "message": "Name?"}}
KEY: Final = digest(QUESTION)
LEFT: Final = TaskRef(
    TASK,
    str(Memo(session_id="s1", retrieval="of-the-dead", asked={KEY: [7]})),
    "2025-11-25",
    questions=(Question(key=KEY, digest=KEY, request=QUESTION, stage="unsent"),),
)


@requirement("law:3", "2025:input-required")
async def test_an_answer_is_sent_once_the_dead_process_waits_no_more(wire: Wire) -> None:
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    async with wire.session() as session:
        await session.call(ToolCall(name="plain"))
        wire.arrived.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.update, LEFT, {KEY: {"action": "decline"}})
            await anyio.wait_all_tasks_blocked()
            assert wire.arrived == [], "the next poll tells, and it comes when it is time"
            await session.get(LEFT)
    said = [one for one, _ in wire.arrived if one not in ("GET", "tasks/result")]
    assert said == ["tasks/get", "notifications/cancelled", "POST"]


@requirement("law:3")
@pytest.mark.parametrize("known_elsewhere", [False, True])
async def test_a_task_that_is_not_known_to_who_waits_for_it_is_looked_for_before_its_answer_is_given_up(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, known_elsewhere: bool
) -> None:
    monkeypatch.setattr(answering, "_POLL_S", 0.05)
    unknown = refusal(-32602, "Task not found", 200)
    wire.replies["tasks/result"] = lambda params, session: unknown
    wire.replies["tasks/get"] = lambda params, session: wire.task if known_elsewhere else unknown
    async with wire.session() as session:
        await session.call(ToolCall(name="plain"))
        with pytest.raises(SessionError) as caught:
            await session.update(LEFT, {KEY: {"action": "decline"}})
        assert (caught.value.code, caught.value.retryable) == (
            (None, True) if known_elsewhere else (-32602, False)
        )
    assert wire.of("POST") == []


async def test_it_is_known_how_far_away_the_server_is(wire: Wire) -> None:
    def slowly(params: JSONObject, session: str | None) -> JSONObject:
        time.sleep(0.2)
        return wire.task

    async with wire.session() as session:
        await session.call(ToolCall(name="plain"))
        wire.replies["tasks/get"] = slowly
        await session.get(OLDER)
        assert 0.2 <= session._older._hearing.retrievals.took_s < 2.0


@requirement("law:3", "law:4")
@pytest.mark.parametrize("is_over", [False, True])
async def test_an_answer_to_what_another_process_was_asked_needs_no_poll(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """The server may want none for hours. What waits for the end of the task tells how it is."""
    monkeypatch.setattr(answering, "_POLL_S", 0.05)
    wire.task["status"] = "input_required"
    if not is_over:
        wire.replies["tasks/result"] = lambda params, session: waiting()
    async with wire.session() as session:
        await session.call(ToolCall(name="plain"))
        await session.update(LEFT, {KEY: {"action": "decline"}})
    assert len(wire.of("POST")) == (0 if is_over else 1)
    assert len(wire.of("tasks/result")) == 1
    assert wire.of("tasks/get") == []


@requirement("law:3")
async def test_an_answer_to_what_another_process_was_asked_is_kept_while_nobody_tells_how_the_task_is(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "_POLL_S", 0.05)
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    async with wire.session() as session:
        await session.call(ToolCall(name="plain"))
        with pytest.raises(ConnectionLostError, match="kept until the server asks") as caught:
            await session.update(LEFT, {KEY: {"action": "decline"}})
        assert caught.value.retryable
    assert wire.of("POST") == wire.of("tasks/get") == []


@requirement("law:3")
@pytest.mark.parametrize(("stage", "is_new"), [("open", False), ("unsent", True)])
async def test_an_answer_that_has_arrived_is_none_to_the_same_words_in_any_later_process(
    wire: Wire, stage: Any, is_new: bool
) -> None:
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    other = {**asked_of_us(7), "params": {**asked_of_us(7)["params"], "message": "Colour?"}}
    left = replace(LEFT, questions=(Question(key=KEY, digest=KEY, request=QUESTION, stage=stage),))
    async with wire.session() as session:
        await session.get(left)
        for one in (other, asked_of_us(8)):
            session._older._hearing.told(session._older._peers.adopt("s1"), one)
        task = await session.get(left)
    again = f"{KEY}#1" if is_new else KEY
    assert set(task.input_requests or {}) - {again} != set()
    assert again in (task.input_requests or {})
    memo = Memo.read(task.request_state)
    assert memo.answered == ((KEY,) if is_new else ())
    async with wire.session() as session:
        then = replace(left, request_state=str(Memo(session_id="s1", answered=memo.answered)))
        await session.get(then)
        session._older._hearing.told(session._older._peers.adopt("s1"), asked_of_us(9))
        assert [*((await session.get(then)).input_requests or {})] == [again]


@requirement("law:8")
async def test_no_answer_of_another_process_is_sent_for_a_task_that_was_cancelled_meanwhile(
    wire: Wire,
) -> None:
    async with wire.session() as session:
        await session.call(ToolCall(name="plain"))
        wire.replies["tasks/cancel"] = lambda params, session: {**wire.task, "status": "cancelled"}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.update, LEFT, {KEY: {"action": "decline"}})
            await anyio.wait_all_tasks_blocked()
            await session.cancel(LEFT)
        assert wire.of("POST") == []


@requirement("law:3", "2025:input-required")
async def test_what_a_dead_process_waited_with_is_taken_back_before_the_next_question(wire: Wire) -> None:
    left = TaskRef(TASK, str(Memo(session_id="s1", retrieval="of-the-dead")), "2025-11-25")
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        statuses = iter((503, 202))
        wire.noted = lambda: next(statuses)
        for still_there in (True, False):
            task = await session.get(left)
            assert task.status == "working"
            assert Memo.read(task.request_state).retrieval == ("of-the-dead" if still_there else None)
        assert len(wire.of("notifications/cancelled")) == 2


@requirement("law:3", "2025:input-required")
async def test_a_question_is_open_for_another_process_though_the_server_says_that_it_works(
    wire: Wire,
) -> None:
    """As mcp 1.30 does when one of two has its answer."""
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    async with wire.session() as session:
        task = await session.get(LEFT)
        assert (task.status, task.input_requests) == ("input_required", {KEY: QUESTION})
        assert Memo.read(task.request_state).asked == {KEY: [7]}, "and for the one after that"
        looks = len(wire.of("tasks/get"))
        await session.update(LEFT, {KEY: {"action": "decline"}})
        assert wire.arrived[-1] == ("POST", "s1")
        assert len(wire.of("tasks/get")) == looks


@requirement("law:3")
async def test_what_was_answered_once_before_another_process_is_asked_again_as_another_question(
    wire: Wire,
) -> None:
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    left = replace(LEFT, questions=(Question(key=KEY, digest=KEY, stage="acknowledged"),))
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        peer = await session._older.connect()
        params = {**QUESTION["params"], "_meta": {RELATED_TASK: {"taskId": TASK}}}
        session._older._hearing.told(peer, {"id": 8, "method": QUESTION["method"], "params": params})
        assert (await session.get(left)).input_requests == {f"{KEY}#1": QUESTION}


@requirement("law:3")
@pytest.mark.parametrize(
    "stage",
    ["open", "asking", "answered", "sending", "unsent"],
)
async def test_what_another_process_was_asked_is_not_what_is_asked_next(wire: Wire, stage: Any) -> None:
    """And has an answer of its own, though it reads the same."""
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    left = replace(LEFT, questions=(Question(key=KEY, digest=KEY, request=QUESTION, stage=stage),))
    async with wire.session() as session:
        await session.get(left)
        session._older._hearing.told(session._older._peers.adopt("s1"), asked_of_us(8))
        assert (await session.get(left)).input_requests == {KEY: QUESTION, f"{KEY}#1": QUESTION}
        session._older._hearing.told(session._older._peers.adopt("s1"), asked_of_us(7))
        assert len((await session.get(left)).input_requests or {}) == 2, "the first one, told again"


def asked_of_us(request_id: int, task_id: str | None = TASK) -> JSONObject:
    meta = {"_meta": {RELATED_TASK: {"taskId": task_id}}} if task_id else {}
    return {"id": request_id, "method": QUESTION["method"], "params": {**QUESTION["params"], **meta}}


@requirement("law:3")
@pytest.mark.parametrize("whose", [TASK, "another", None], ids=["the task's", "another task's", "nobody's"])
async def test_an_answer_whose_id_is_given_away_while_it_is_under_way_has_arrived(
    wire: Wire, whose: str | None
) -> None:
    """And what has the ID now is another question, though it reads the same."""
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        hearing, peer = session._older._hearing, await session._older.connect()
        hearing.told(peer, asked_of_us(7))
        assert (await session.get(OLDER)).input_requests == {KEY: QUESTION}

        def noted() -> int:
            if wire.arrived[-1][0] != "POST":
                return 202  # what waits is taken back first
            wire.noted = lambda: 202
            hearing.told(peer, asked_of_us(7, whose))
            return 202

        wire.noted = noted
        left = replace(OLDER, questions=(Question(key=KEY, digest=KEY, request=QUESTION, stage="sending"),))
        await session.update(left, {KEY: {"action": "decline"}})
        if whose != TASK:
            hearing.told(peer, asked_of_us(8))
        assert (await session.get(left)).input_requests == {f"{KEY}#1": QUESTION}


@requirement("law:3")
@pytest.mark.parametrize(
    ("request_id", "over_another", "is_new"),
    [(7, True, False), (7, False, True), (8, True, True), (8, False, True)],
    ids=["over another stream", "under its ID", "under another ID over another stream", "under another ID"],
)
async def test_what_is_asked_in_the_same_words_while_an_answer_leaves_that_is_lost_is_another_question(
    wire: Wire, request_id: int, over_another: bool, is_new: bool
) -> None:
    """Unless it comes under its own ID over another stream, as from a server that tells it again."""
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: waiting()
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        hearing, peer = session._older._hearing, await session._older.connect()
        hearing.told(peer, asked_of_us(7))
        task = await session.get(OLDER)

        def noted() -> int:
            if wire.arrived[-1][0] != "POST":
                return 202  # what waits is taken back first
            peer.listened += over_another
            hearing.told(peer, asked_of_us(request_id))
            return 504

        wire.noted = noted
        question = Question(key=KEY, digest=KEY, request=QUESTION, stage="sending")
        left = replace(OLDER, request_state=task.request_state, questions=(question,))
        with pytest.raises(SessionError):
            await session.update(left, {KEY: {"action": "decline"}})
        arrived = is_new and request_id == 7
        open_now = ({} if arrived else {KEY: QUESTION}) | ({f"{KEY}#1": QUESTION} if is_new else {})
        assert (await session.get(left)).input_requests == open_now
        wire.noted = lambda: 202
        wire.arrived.clear()
        await session.update(left, {KEY: {"action": "decline"}})
        assert len(wire.of("POST")) == (not arrived), "to none but what it was said to before"


@requirement("law:3")
async def test_a_wait_in_a_session_that_is_lost_ends_though_its_stream_lasts(wire: Wire) -> None:
    waiting = anyio.Event()

    async def lasting() -> AsyncIterator[bytes]:
        while True:
            yield b": a proxy keeps it alive\n\n"
            waiting.set()
            await anyio.sleep(0.01)

    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(
        200, headers={"content-type": "text/event-stream"}, content=lasting()
    )
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        task = await session.get(OLDER)
        await waiting.wait()
        wire.gone["s1"] = refusal(-32001, "Session not found", 404)
        for _ in range(2):
            task = await session.get(replace(OLDER, request_state=task.request_state))
        assert wire.of("tasks/result") == ["s1", "s2"]


@requirement("law:3", "law:7")
async def test_a_wait_goes_on_though_another_task_finds_the_session_lost_for_a_moment(wire: Wire) -> None:
    other = replace(OLDER, task_id="other")
    waiting = anyio.Event()

    async def slowly(request: httpx.Request) -> httpx.Response:
        if b"tasks/result" in request.content:
            wire.arrived.append(("tasks/result", request.headers["mcp-session-id"]))
            waiting.set()
            await anyio.sleep_forever()
        return await wire(request)

    wire.task["status"] = "input_required"
    denials = [refusal(-32001, "Session not found", 404)] * 2
    async with wire.session(slowly) as session:
        await session.call(ToolCall(name="slow"))
        await session.get(other)
        await waiting.wait()
        wire.replies["ping"] = lambda params, session: denials.pop()
        unknown = refusal(-32602, "Task not found", 200)
        wire.replies["tasks/get"] = lambda params, session: (
            unknown if session == "s2" else denials.pop() if denials else wire.task
        )
        await session.get(OLDER)
        await session.get(other)
        assert wire.of("tasks/get") == ["s1", "s1", "s2", "s1", "s1"]
        assert wire.of("tasks/result") == ["s1", "s1"], "one for each task"
        assert wire.of("notifications/cancelled") == []


@requirement("law:3")
@pytest.mark.parametrize("by", ["another task", "a plain request", "a withdrawal", "nobody"])
async def test_a_question_from_before_is_over_when_its_id_was_given_away_since(wire: Wire, by: str) -> None:
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    async with wire.session() as session:
        hearing, peer = session._older._hearing, await session._older.connect()
        match by:
            case "another task":
                hearing.told(peer, asked_of_us(7, "another"))
            case "a plain request":
                hearing.told(peer, {"id": 7, "method": "ping"})
            case "a withdrawal":
                hearing.told(peer, {"method": "notifications/cancelled", "params": {"requestId": 7}})
        task = await session.get(LEFT)
        assert task.status == ("input_required" if by == "nobody" else "working")
        if by == "another task":
            assert hearing.asked("another").request_ids() == {KEY: [7]}


@requirement("law:3")
async def test_an_answer_from_before_is_not_given_to_what_comes_as_soon_as_somebody_waits(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.task["status"] = "input_required"
    async with wire.session() as session:
        peer = await session._older.connect()
        hearing = session._older._hearing

        def result(params: JSONObject, session_id: str | None) -> Reply:
            other = asked_of_us(7)
            other["params"] = {**other["params"], "message": "Delete everything?"}
            hearing.told(peer, other)
            return waiting()

        wire.replies["tasks/result"] = result
        monkeypatch.setattr(answering, "_POLL_S", 0.0)
        with pytest.raises(ConnectionLostError, match="kept until the server asks"):
            await session.update(LEFT, {KEY: {"action": "accept"}})
        assert wire.of("POST") == []


async def test_what_is_said_of_one_task_that_nobody_knows_is_nothing_to_the_others(wire: Wire) -> None:
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    wire.replies["tasks/get"] = lambda params, session: (
        wire.task if params["taskId"] == TASK else refusal(-32602, "Task not found", 200)
    )
    async with wire.session() as session:
        own = TaskRef(TASK, str(Memo(session_id="of-before")), "2025-11-25")
        await session.get(own)
        peer = session._older._peers.adopt("of-before")
        session._older._hearing.told(peer, asked_of_us(7))
        with pytest.raises(SessionError) as caught:
            await session.get(replace(own, task_id="unknown"))
        assert caught.value.code == -32602
        assert session._older._hearing.asked(TASK).waiting(KEY) == [(peer, 7)]


@requirement("law:4")
@pytest.mark.parametrize("verb", ["update", "cancel"])
async def test_whatever_a_server_says_that_it_is_busy_to_is_obeyed_for_the_task(
    wire: Wire, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "_POLL_S", 0.0)  # nobody polls
    busy = httpx.Response(429, headers={"Retry-After": "60"})
    wire.replies["tasks/result"] = lambda params, session: busy
    wire.replies["tasks/cancel"] = lambda params, session: busy
    async with wire.session() as session:
        peer = await session._older.connect()
        hearing = session._older._hearing
        with pytest.raises(SessionError):
            await (session.update(LEFT, {KEY: {}}) if verb == "update" else session.cancel(LEFT))
        assert not hearing.retrievals.may_begin(TASK)
        assert hearing.retrievals.may_begin("another")
        assert not peer.lost


@requirement("law:3")
@pytest.mark.parametrize("fails", [False, True])
async def test_who_sends_an_answer_that_is_being_sent_waits_for_what_becomes_of_it(
    wire: Wire, fails: bool
) -> None:
    """The server may have asked something else under its ID by the time of the second."""
    go, sent = anyio.Event(), list[object]()
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        peer = await session._older.connect()
        session._older._hearing.told(peer, asked_of_us(7))
        answer = peer.answer

        async def slowly(request_id: Any, *args: Any, **options: Any) -> None:
            sent.append(request_id)
            await go.wait()
            if fails and len(sent) == 1:
                raise ConnectionLostError("broken", retryable=True)
            await answer(request_id, *args, **options)

        peer.answer = slowly  # type: ignore[method-assign]  # a slow connection

        async def update() -> None:
            try:
                await session.update(OLDER, {KEY: {"action": "decline"}})
            except ConnectionLostError:
                assert fails

        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(update)
                tasks.start_soon(update)
                await anyio.wait_all_tasks_blocked()
                assert sent == [7]
                go.set()
        assert sent == ([7, 7] if fails else [7])
        assert not session._older._hearing.asks(TASK)
        assert not session._older._answering._turns


@requirement("law:4")
async def test_nobody_looks_before_the_time_for_an_answer_that_nobody_waits_for_just_now(wire: Wire) -> None:
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        with pytest.raises(ConnectionLostError, match="kept until the server asks"):
            await session.update(OLDER, {KEY: {"action": "decline"}})
        assert wire.of("tasks/get") == []


@requirement("law:4")
async def test_a_server_that_wants_to_be_left_alone_is_not_asked_for_a_result_either(wire: Wire) -> None:
    busy = httpx.Response(429, headers={"Retry-After": "60"})
    async with wire.session() as session:
        older = session._older
        await session.call(ToolCall(name="slow"))
        peer = await older.connect()
        params = {**wire.task, "status": "completed"}
        told = {"method": "notifications/tasks/status", "params": params}
        wire.replies["tasks/get"] = lambda params, session: busy
        with pytest.raises(SessionError):
            await session.get(OLDER)
        older._hearing.told(peer, told)
        await anyio.wait_all_tasks_blocked()
        assert wire.of("tasks/result") == []


@requirement("law:4")
async def test_a_wait_that_broke_is_not_begun_again_by_what_a_server_says_but_by_a_poll(wire: Wire) -> None:
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    async with wire.session() as session:
        older = session._older
        await session.call(ToolCall(name="slow"))
        peer = await older.connect()
        told = {"method": "notifications/tasks/status", "params": {**wire.task, "status": "completed"}}
        for times in (1, 2):
            for _ in range(5):
                older._hearing.told(peer, told)
                await anyio.sleep(0.01)
            assert len(wire.of("tasks/result")) == times
            await session.get(OLDER)


@requirement("law:3")
@pytest.mark.parametrize("found_by", ["a poll", "the answer", "another call"])
async def test_an_answer_reaches_a_server_that_has_lost_the_session_and_asks_in_another(
    wire: Wire, found_by: str
) -> None:
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    async with wire.session() as session:
        hearing = session._older._hearing
        await session.call(ToolCall(name="slow"))

        async def asked_in(session_id: str, request_id: int) -> Task:
            peer = await session._older.connect()
            assert peer.session_id == session_id
            params = {**QUESTION["params"], "_meta": {RELATED_TASK: {"taskId": TASK}}}
            hearing.told(peer, {"id": request_id, "method": QUESTION["method"], "params": params})
            return await session.get(left)

        left = OLDER
        task = await asked_in("s1", 1)
        left = replace(
            OLDER,
            request_state=task.request_state,
            questions=(Question(key=KEY, digest=KEY, request=QUESTION, stage="unsent"),),
        )
        wire.gone["s1"] = refusal(-32001, "Session not found", 404)
        match found_by:
            case "a poll":
                await session.get(left)
            case "another call":
                await session.call(ToolCall(name="plain"))
            case _:
                with pytest.raises(SessionError):
                    await session.update(left, {KEY: {"action": "decline"}})
                await session.get(left)
        await asked_in("s2", 2)
        wire.arrived.clear()
        await session.update(left, {KEY: {"action": "decline"}})
        assert wire.of("POST") == ["s2"]


async def test_what_waits_in_a_session_that_is_gone_is_not_taken_back_in_another(wire: Wire) -> None:
    wire.gone["s9"] = httpx.Response(
        404, json={"jsonrpc": "2.0", "error": {"code": -32001, "message": "Session not found"}}
    )
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        left = TaskRef(TASK, str(Memo(session_id="s9", retrieval="of-the-dead")), "2025-11-25")
        assert (await session.get(left)).status == "working"
        assert not wire.of("notifications/cancelled")


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
async def test_nothing_is_taken_back_from_a_task_that_is_over(wire: Wire, status: str) -> None:
    wire.task["status"] = status
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        wire.arrived.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.update, LEFT, {KEY: {"action": "decline"}})
            await anyio.wait_all_tasks_blocked()
            await session.get(LEFT)
        await anyio.wait_all_tasks_blocked()
    assert [one for one, _ in wire.arrived if one not in ("GET", "tasks/result")] == ["tasks/get"]


# ── ends ──────────────────────────────────────────────────────────────────────────────────────


@requirement("2025:result", "law:7")
async def test_a_result_that_cannot_be_had_just_now_is_asked_for_again(wire: Wire) -> None:
    answers: list[Reply] = [refusal(-32603, "database is locked", 500)]
    wire.task["status"] = "completed"
    wire.replies["tasks/result"] = lambda params, session: answers.pop() if answers else text("done")
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        with pytest.raises(SessionError) as caught:
            await session.get(OLDER)
        assert caught.value.retryable
        assert (await session.get(OLDER)).result == text("done")


@requirement("law:6", "law:7")
@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("completed", -32600), ("failed", 0)])
async def test_what_is_completed_has_a_result_which_may_be_had_later(
    wire: Wire, status: str, code: int
) -> None:
    wire.task["status"] = status
    wire.replies["tasks/result"] = lambda params, session: refusal(code, "redis: connection reset", 200)
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        for _ in range(5 if status == "completed" else 0):
            with pytest.raises(SessionError) as passing:
                await session.get(OLDER)
            assert passing.value.retryable
        task = await session.get(OLDER)
        assert task.error == {"code": code, "message": "redis: connection reset"}, "it is how it ended, then"
        assert not session._older._hearing.retrievals.failures._refused


async def test_what_is_said_in_a_session_that_is_lost_is_no_outcome(wire: Wire) -> None:
    wire.task["status"] = "failed"
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        peer = await session._older.connect()

        def late(params: JSONObject, session_id: str | None) -> Reply:
            peer.lost = True
            return refusal(-32603, "shutting down", 200)

        wire.replies["tasks/result"] = late
        with pytest.raises(SessionError):
            await session.get(OLDER)


async def test_a_wait_for_the_end_that_fails_says_nothing_of_the_end(wire: Wire) -> None:
    wire.task["status"] = "input_required"
    answers: list[Reply] = [refusal(-32603, "not completed yet", 200)]
    wire.replies["tasks/result"] = lambda params, session: answers.pop() if answers else text("done")
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        assert (await session.get(OLDER)).input_requests == {}
        wire.task["status"] = "completed"
        assert (await session.get(OLDER)).result == text("done")


@requirement("law:4")
async def test_a_server_that_wants_to_be_left_alone_is_not_asked_for_results(wire: Wire) -> None:
    wire.task["status"] = "input_required"
    busy = httpx.Response(429, headers={"retry-after": "60"})
    wire.replies["tasks/result"] = lambda params, session: busy
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        for _ in range(3):
            await session.get(OLDER)
    assert len(wire.of("tasks/result")) == 1


@requirement("law:3", "law:4")
async def test_what_waits_for_a_dead_process_is_taken_back_before_a_poll_is_due(wire: Wire) -> None:
    """And none waits in its place before somebody can be asked what comes there."""
    ref = replace(OLDER, request_state=str(Memo(session_id="s1", retrieval="of-the-dead")))
    async with wire.session() as session:
        for other in (OLDER, replace(ref, generation="2026-07-28")):
            session.attend(other, inherited=False)  # nothing waits for that
        session.attend(ref, inherited=False)
        while not wire.arrived:
            await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        assert wire.arrived == [("notifications/cancelled", "s1")]


@requirement("law:3", "law:7")
@pytest.mark.parametrize("inherited", [True, False])
async def test_what_waits_for_us_is_not_relied_on_once_another_client_has_had_the_task(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, inherited: bool
) -> None:
    """That has taken it back, to which one official server says nothing."""
    request = HttpPeer.request

    async def held(self: HttpPeer, method: str, *args: Any, **options: Any) -> Any:
        if method == "tasks/result":
            wire.arrived.append((method, self.session_id))
            await anyio.sleep_forever()
        return await request(self, method, *args, **options)

    monkeypatch.setattr(HttpPeer, "request", held)
    wire.task["status"] = "input_required"
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        await session.get(OLDER)
        session.let_go(TASK)
        session.attend(OLDER, inherited=inherited)
        await session.get(OLDER)
        await anyio.wait_all_tasks_blocked()
        assert len(wire.of("tasks/result")) == 1 + inherited


@requirement("law:3", "law:8")
@pytest.mark.parametrize("arrives", [True, False])
async def test_an_answer_that_is_on_its_way_goes_on_for_a_moment_when_nobody_waits_for_that(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """Or it would be said again, under an ID that may be another question's by then."""
    monkeypatch.setattr(answering, "_LAST_WORD_S", LIMIT_S / 2 if arrives else 0.05)
    go, sent = anyio.Event(), list[object]()
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        hearing = session._older._hearing
        peer = await session._older.connect()
        hearing.told(peer, asked_of_us(7))
        answer = peer.answer

        async def slowly(request_id: Any, *args: Any, **options: Any) -> None:
            sent.append(request_id)
            await go.wait()
            await answer(request_id, *args, **options)

        peer.answer = slowly  # type: ignore[method-assign]  # a slow connection
        scope = anyio.CancelScope()

        async def update() -> None:
            with scope:
                await session.update(OLDER, {KEY: {"action": "decline"}})

        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(update)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
                await anyio.wait_all_tasks_blocked()
                if arrives:
                    go.set()
        assert sent == [7]
        assert hearing.asks(TASK) == (not arrives)


async def test_what_goes_wrong_with_an_answer_is_told_as_it_is(wire: Wire) -> None:
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        peer = await session._older.connect()
        session._older._hearing.told(peer, asked_of_us(7))

        async def fails(*args: Any, **options: Any) -> None:
            raise RuntimeError("a foreign one")

        peer.answer = fails  # type: ignore[method-assign]  # somebody else's fault
        with pytest.raises(RuntimeError, match="a foreign one"):
            await session.update(OLDER, {KEY: {"action": "decline"}})


@requirement("law:3", "law:8")
async def test_a_reply_that_comes_just_as_its_task_is_let_go_of_brings_no_question_back(wire: Wire) -> None:
    """What its poll knew of the answers may be out of date by then."""
    polling = anyio.CancelScope()

    question = Question(key=KEY, digest=KEY, stage="sending", answer={"action": "decline"}, request=QUESTION)
    memo = str(Memo(session_id="s1", asked={KEY: [7]}))
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        older = session._older
        peer = await older.connect()
        ask = older._peers.ask

        async def asked(method: str, ref: TaskRef) -> Any:
            with anyio.CancelScope(shield=True):  # it has come, and who waits for it has not gone on yet
                found = await ask(method, ref)
            polling.cancel()
            older.let_go(TASK)
            return found

        older._peers.ask = asked  # type: ignore[method-assign]  # a race
        with polling:
            await session.get(replace(OLDER, request_state=memo, questions=(question,)))
        assert polling.cancelled_caught
        assert not older._hearing.asks(TASK)
        assert not peer.lost


@requirement("law:3", "law:8")
async def test_what_was_heard_is_kept_while_nobody_observes_the_task(wire: Wire) -> None:
    asks = {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object"}}
    params = {**asks, "_meta": {RELATED_TASK: {"taskId": TASK}}}
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        older = session._older
        older._hearing.told(older._peers._now, {"id": 7, "method": "elicitation/create", "params": params})
        session.let_go(TASK)
        wire.task["status"] = "input_required"
        task = await session.get(OLDER)
        assert [one["params"]["message"] for one in (task.input_requests or {}).values()] == ["Name?"]


async def test_nothing_is_kept_of_a_task_that_nobody_observes_any_more(wire: Wire) -> None:
    wire.task["status"] = "input_required"
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        await session.get(OLDER)
        hearing = session._older._hearing
        assert hearing.hints.seen or hearing.retrievals._now
        session.let_go(TASK)
        rooms = (hearing.retrievals, hearing.retrievals.pauses, hearing.retrievals.failures)
        retrievals = [kept for room in rooms for kept in vars(room).values() if isinstance(kept, dict)]
        assert len(retrievals) == 13
        with anyio.fail_after(LIMIT_S):
            while any(retrievals):  # it was answered at once, and nobody wants that
                await anyio.sleep(0.001)
        assert not any((hearing.hints.seen, hearing.hints._seen_in, hearing._asked, hearing._given_up))


@requirement("law:1", "law:3", "law:8")
@pytest.mark.parametrize("answers", [True, False])
async def test_what_is_asked_just_as_a_client_is_closed_is_journaled(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """The server hands it to who waits, until it knows that nobody does."""
    wire.task |= {"status": "input_required", "pollInterval": 10}
    request, take_back, journal = HttpPeer.request, HttpPeer.take_back, MemoryJournal()

    async def held(self: HttpPeer, method: str, *args: Any, **options: Any) -> Any:
        if method == "tasks/result":
            wire.arrived.append((method, self.session_id))
            await anyio.sleep_forever()
        return await request(self, method, *args, **options)

    async def asks_before_it_knows(self: HttpPeer, request_id: RequestId, timeout_s: float) -> None:
        self._told(self, asked_of_us(7))
        if not answers:
            await anyio.sleep_forever()
        await take_back(self, request_id, timeout_s)

    monkeypatch.setattr(HttpPeer, "request", held)
    async with httpx.AsyncClient(transport=httpx.MockTransport(wire)) as http:
        client = TasksClient(URL, journal=journal, http_client=http)
        with anyio.fail_after(LIMIT_S):
            async with client:
                await client.start_tool("slow")
                while not wire.of("tasks/result"):
                    await anyio.sleep(0.001)
                monkeypatch.setattr(HttpPeer, "take_back", asks_before_it_knows)
    async with journal:
        (record,) = await journal.records(client._engine._scope)
    assert isinstance(record.state, Observing)
    assert [question.key for question in record.state.questions] == [KEY]
    assert Memo.read(record.state.request_state).asked == {KEY: [7]}
    assert record.owner is None


@requirement("2025:progress")
async def test_progress_is_told_of_a_call_that_was_made_in_a_session_begun_anew(wire: Wire) -> None:
    async with wire.session() as session:
        older = session._older
        await session.tool("slow")
        wire.gone["s1"] = refusal(-32600, "Session not found", 404)

        def reply(params: JSONObject, session_id: str | None) -> Reply:
            progress = {"progressToken": params["_meta"]["progressToken"], "progress": 1}
            peer = older._peers._now
            older._hearing.told(peer, {"method": "notifications/progress", "params": progress})
            return {"task": wire.task}

        wire.replies["tools/call"] = reply
        created = await session.call(ToolCall(name="slow"))
        assert isinstance(created, Created)
        assert wire.of("tools/call") == ["s1", "s2"]
        assert created.task.progress == {"progress": 1}
        session.let_go(TASK)
        assert not any(vars(older._hearing.progress).values())


async def test_no_token_is_kept_of_a_call_that_is_over(wire: Wire) -> None:
    async with wire.session() as session:
        kept = vars(session._older._hearing.progress).values()
        await session.call(ToolCall(name="slow"))
        assert any(kept)
        session.let_go(TASK)
        assert not any(kept)
        wire.replies["tools/call"] = lambda params, session: text("at once")
        await session.call(ToolCall(name="slow"))
        wire.replies["tools/call"] = lambda params, session: refusal(-32603, "no", 200)
        with pytest.raises(SessionError):
            await session.call(ToolCall(name="slow"))
        assert not any(kept)


async def test_a_client_tells_when_it_observes_a_task_no_more(wire: Wire) -> None:
    wire.task["pollInterval"] = 10
    async with httpx.AsyncClient(transport=httpx.MockTransport(wire)) as http:
        client = TasksClient(URL, journal=MemoryJournal(), http_client=http)
        with anyio.fail_after(LIMIT_S):
            async with client:
                session = client._engine._session
                assert isinstance(session, AnyGenerationSession)
                with pytest.raises(WaitTimeoutError):
                    await client.call_tool("slow", timeout=0.5)
                assert wire.of("tasks/get")
                assert not session._older._hearing.hints.seen


@pytest.mark.parametrize("cursors", [["a", "a"], ["a", "b", "a"]])
async def test_a_list_that_goes_in_a_circle_ends(wire: Wire, cursors: list[str]) -> None:
    pages = iter(cursors)
    wire.replies["tasks/list"] = lambda params, session: {
        "tasks": [wire.task, 7],
        "nextCursor": next(pages),
    }
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        with pytest.raises(RemoteProtocolError, match="does not end"):
            await listed_tasks(await session._older.connect(), LIMIT_S)


@requirement("law:2", "2025:list")
async def test_a_lost_task_is_known_by_a_time_to_live_that_no_other_call_asked_for(wire: Wire) -> None:
    async with wire.session() as session:
        await session.tool("slow")
        memo, other = await session.before_call(), await session.before_call()
        assert memo is not None
        assert other is not None
        ttls = [Memo.read(one).ttl_ms for one in (memo, other)]
        assert len(set(ttls)) == 2
        asked: list[Any] = []

        def call(params: JSONObject, session: str | None) -> Reply:
            asked.append(params["task"]["ttl"])
            return {"task": {**wire.task, "ttl": ttls[0]}}

        wire.replies["tools/call"] = call
        await session.call(ToolCall(name="slow", memo=memo))
        assert asked == ttls[:1]
        wire.replies["tasks/list"] = lambda params, session: {
            "tasks": [{**wire.task, "ttl": ttls[0]}, {**wire.task, "taskId": "another", "ttl": 60_000}]
        }
        assert [one.task.task_id for one in await session.created_since(memo, 0.0)] == [TASK]
        assert list(await session.created_since(other, 0.0)) == []
        (await session._older.connect()).lost = True  # as two replicas have said
        assert [one.task.task_id for one in await session.created_since(memo, 0.0)] == [TASK]
        ended = str(Memo(session_id="ended", ttl_ms=ttls[0]))
        wire.gone["ended"] = refusal(-32600, "Session not found", 404)
        with pytest.raises(SessionError):
            await session.created_since(ended, 0.0)
        assert list(await session.created_since(ended, 0.0)) == [], "another session's are another's"


@requirement("law:2")
@pytest.mark.parametrize("refusals", [2, 3])
async def test_a_lost_task_is_looked_for_again_if_the_list_cannot_be_had(wire: Wire, refusals: int) -> None:
    refused: list[Reply] = [httpx.Response(503)] * refusals
    ttls = list[int]()

    def call(params: JSONObject, session: str | None) -> Reply:
        ttls.append(params["task"]["ttl"])
        return httpx.ReadError("lost")

    wire.task["status"] = "completed"
    wire.replies["tools/call"] = call
    wire.replies["tasks/list"] = lambda params, session: (
        refused.pop() if refused else {"tasks": [{**wire.task, "ttl": ttls[0]}]}
    )
    async with wire.client() as client:
        if refusals == 2:
            assert (await client.call_tool("slow", idempotency_key="k")).content
        else:
            with pytest.raises((OutcomeUnknownError, ConnectionLostError)):
                await client.call_tool("slow", idempotency_key="k")
    assert len(ttls) == 1


@requirement("law:3")
async def test_an_answer_is_not_kept_from_its_session_by_another_that_is_lost(wire: Wire) -> None:
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        core = session._older
        lost, asked = await core.connect(), core._hearing.asked(TASK)
        core._hearing.told(lost, asked_of_us(0))
        lost.lost = True
        here = await core._peers.now()
        core._hearing.told(here, asked_of_us(0))
        wire.gone["s1"] = refusal(-32600, "Session not found", 404)
        asked.find(lost)  # as what was asked before it was lost
        assert core._hearing.hints.memo(here, TASK).asked == {KEY: [0]}, "what are IDs in that session"
        ref = replace(OLDER, request_state=str(Memo(session_id="s2")))
        await session.update(ref, {KEY: {"action": "decline"}})
        core._hearing.told(lost, asked_of_us(1))
        assert not core._hearing.asks(TASK), "nobody could answer there"
        core._hearing.find(lost)
        assert core._hearing.asks(TASK)


@requirement("law:3")
async def test_a_question_asked_over_two_sessions_is_answered_when_both_have_the_answer(wire: Wire) -> None:
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params, session: httpx.Response(503)
    mark = {"io.modelcontextprotocol/related-task": {"taskId": TASK}}
    params = {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object"}, "_meta": mark}
    async with wire.session() as session:
        await session.call(ToolCall(name="slow"))
        peer, other = await session._older.connect(), session._older._peers.adopt("s2")
        for request_id, whose in ((7, peer), (8, other)):
            session._older._hearing.told(
                whose, {"id": request_id, "method": "elicitation/create", "params": params}
            )
        task = await session.get(OLDER)
        assert task.input_requests is not None
        (key,) = task.input_requests
        answered: list[object] = []
        answer = peer.answer

        async def once(request_id: Any, *args: Any, **options: Any) -> None:
            answered.append(request_id)
            if answered.count(8) == 1 and request_id == 8:
                raise ConnectionLostError("broken", retryable=True)
            await answer(request_id, *args, **options)

        for one in (peer, other):
            one.answer = once  # type: ignore[method-assign]  # a connection that breaks at the second
        with pytest.raises(ConnectionLostError):
            await session.update(OLDER, {key: {"action": "decline"}})
        again = await session.get(OLDER)
        assert list(again.input_requests or {}) == [key], "it is the same question still"
        await session.update(OLDER, {key: {"action": "decline"}})
        assert answered == [7, 8, 7, 8]
        assert not session._older._hearing.asks(TASK)
