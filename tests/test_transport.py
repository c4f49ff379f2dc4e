"""A transport of ours, between a host and a server that say what they are told to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
import pytest
from mcp.shared.message import ClientMessageMetadata
from mcp_types import ElicitResult, ErrorData

from mcp_tasks_client import ConnectionLostError, MemoryJournal, PollPolicy, SessionError, TasksTransport
from mcp_tasks_client.old.journal.base import Scope
from mcp_tasks_client.old.sessions.faults import Faults
from mcp_tasks_client.old.sessions.messages import read as _read
from mcp_tasks_client.old.sessions.relay import Relay
from mcp_tasks_client.old.sessions.shapes_2025_11_25 import Memo
from mcp_tasks_client.old.states import Observing
from mcp_tasks_client.old.transport import _wrapped
from mcp_tasks_client.old.wire import JSONObject, RpcError

from ._requirements import requirement

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 4.0
TASK: Final = "task-1"
MARK: Final = {"io.modelcontextprotocol/related-task": {"taskId": TASK}}
QUICK: Final = PollPolicy(floor_s=0.01, jitter=0.0)
TASKS: Final = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
FORM: Final = {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object", "properties": {}}}
RESULT: Final = {
    "content": [{"type": "text", "text": "done", "new": {"a": None}}],
    "isError": False,
    "_meta": {"seen": None},
    "more": [None, {"b": None}],
}

Reply: TypeAlias = JSONObject | RpcError | None


class Wire:
    """A server at the end of a transport, whose every reply can be another.

    Attributes:
        arrived: What has come, in order.
        metadata: What the SDK has noted of each.
        task: The task that there is, as it is now.
        answers: What the server was answered, by the ID of its request.
    """

    def __init__(self) -> None:
        self.arrived: list[JSONObject] = []
        self.metadata: list[Any] = []
        self.answers: dict[Any, Any] = {}
        self.task: JSONObject = {"taskId": TASK, "status": "working", "ttl": 60_000, "pollInterval": 10}
        self.capabilities: JSONObject = {"tasks": TASKS}
        self.version = "2025-11-25"
        self.replies: dict[str, Callable[[JSONObject], Reply]] = {
            "initialize": lambda params: {
                "protocolVersion": self.version,
                "capabilities": self.capabilities,
                "serverInfo": {"name": "s", "version": "1"},
            },
            "tools/list": lambda params: {
                "tools": [
                    {"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}
                    for name, support in (("plain", "forbidden"), ("slow", "required"))
                ]
            },
            "tools/call": lambda params: {"task": self.task} if "task" in params else {"content": []},
            "tasks/get": lambda params: self.task,
            "tasks/result": lambda params: RESULT if self.task["status"] == "completed" else None,
            "tasks/cancel": self._cancelled,
            "ping": lambda params: {},
        }
        self.entered = self.left = 0
        self._send: Any = None

    def of(self, method: str) -> list[JSONObject]:
        """The requests and notifications of a method, in order."""
        return [one for one in self.arrived if one.get("method") == method]

    async def say(self, message: JSONObject) -> None:
        await self._send(message)

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            await anyio.sleep(0.005)

    def _cancelled(self, params: JSONObject) -> JSONObject:
        self.task["status"] = "cancelled"
        return self.task

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[tuple[Any, ...]]:
        to_client, client_reads = anyio.create_memory_object_stream[Any](0)
        client_writes, from_client = anyio.create_memory_object_stream[Any](0)

        async def send(message: Any) -> None:
            said = message if isinstance(message, Exception) else _wrapped({"jsonrpc": "2.0", **message})
            with suppress(anyio.ClosedResourceError):  # it has hung up
                await to_client.send(said)

        async def serve() -> None:
            async for message in from_client:
                said = _read(message)
                self.metadata.append(message.metadata)
                self.arrived.append(said)
                if "method" not in said:
                    self.answers[said["id"]] = said.get("error", said.get("result"))
                elif "id" in said:
                    reply = self.replies[said["method"]](said.get("params") or {})
                    if isinstance(reply, RpcError):
                        error = {"code": reply.code, "message": reply.message, "data": reply.data}
                        await send({"id": said["id"], "error": error})
                    elif reply is not None:
                        await send({"id": said["id"], "result": reply})

        self._send, self.hang_up = send, to_client.close
        self.entered += 1
        async with to_client, client_reads, client_writes, from_client, anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            try:
                yield client_reads, client_writes, lambda: "the-session"
            finally:
                self.left += 1
                tasks.cancel_scope.cancel()


class Session:
    """What a host's session does, as far as it matters: it numbers its requests, and reads what comes.

    Attributes:
        heard: What came besides replies.
        relay: What stands between it and the server.
        ended: Set once nothing comes any more.
    """

    relay: Relay

    def __init__(self, read: Any, write: Any) -> None:
        self.heard: list[Any] = []
        self.ended = anyio.Event()
        self.asleep = False
        self._read, self._write = read, write
        self._next_id = 0
        self._replies: dict[Any, Any] = {}
        self._came = anyio.Event()

    async def run(self) -> None:
        with suppress(anyio.ClosedResourceError):
            async for message in self._read:
                if self.asleep:
                    await anyio.sleep_forever()
                self._take(message if isinstance(message, Exception) else _read(message))
        self.ended.set()

    def _take(self, said: Any) -> None:
        if isinstance(said, dict) and "method" not in said:
            assert said["id"] not in self._replies, "answered twice"
            self._replies[said["id"]] = said.get("error", said.get("result"))
        else:
            self.heard.append(said)
        self._came.set()
        self._came = anyio.Event()

    async def say(self, message: JSONObject) -> None:
        await self._write.send(_wrapped({"jsonrpc": "2.0", **message}))

    async def send(self, method: str, params: JSONObject | None = None) -> int:
        self._next_id += 1
        await self.say(
            {"id": self._next_id, "method": method, **({} if params is None else {"params": params})}
        )
        return self._next_id

    async def reply_to(self, request_id: int) -> Any:
        while request_id not in self._replies:
            await self._came.wait()
        return self._replies[request_id]

    async def ask(self, method: str, params: JSONObject | None = None) -> Any:
        return await self.reply_to(await self.send(method, params))

    async def hears(self, method: str) -> JSONObject:
        while True:
            for one in self.heard:
                if isinstance(one, dict) and one["method"] == method:
                    self.heard.remove(one)
                    return one
            await self._came.wait()


@asynccontextmanager
async def connected(
    wire: Wire, capabilities: JSONObject | None = None, **options: Any
) -> AsyncIterator[Session]:
    options = {"endpoint": "a-server", "journal": MemoryJournal(), "poll": QUICK, **options}
    transport = TasksTransport(wire.transport(), **options)
    with anyio.fail_after(LIMIT_S):
        async with transport as (read, write, session_id), anyio.create_task_group() as tasks:
            assert session_id() == "the-session"
            session = Session(read, write)
            session.relay = transport._relay
            tasks.start_soon(session.run)
            params = {
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities or {},
                "clientInfo": {"name": "host", "version": "1"},
            }
            assert (await session.ask("initialize", params))["protocolVersion"] == wire.version
            await session.say({"method": "notifications/initialized"})
            yield session
            tasks.cancel_scope.cancel()


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    # How long a poll waits for a question, and a last reply is waited for, is shown elsewhere.
    monkeypatch.setattr("mcp_tasks_client.old.sessions.hearing._QUESTION_S", 0.05)
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrieval._LAST_REPLY_S", 0.05)
    return Wire()


def question(request_id: Any, **more: Any) -> JSONObject:
    return {"id": request_id, "method": "elicitation/create", "params": {**FORM, **more}}


async def accept(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={})


# ── what passes ───────────────────────────────────────────────────────────────────────────────


async def test_what_is_no_business_of_ours_passes_both_ways(wire: Wire) -> None:
    wire.replies["ping"] = lambda params: {"pong": None}
    wire.replies["resources/list"] = lambda params: RpcError(-32601, "no", {"why": None})
    async with connected(wire) as session:
        assert await session.ask("ping") == {"pong": None}
        assert await session.ask("resources/list", {"cursor": None}) == RpcError(-32601, "no", {"why": None})
        assert wire.of("resources/list")[0]["params"] == {"cursor": None}
        await session.say({"method": "notifications/roots/list_changed"})
        await wire.say({"method": "notifications/message", "params": {"level": "info", "data": 1}})
        assert (await session.hears("notifications/message"))["params"]["data"] == 1
        broken = ValueError("not JSON")
        await wire.say(broken)  # type: ignore[arg-type]  # as transports tell of what they could not read
        await wire.say({"method": "notifications/message", "params": {"level": "info", "data": 2}})
        await session.hears("notifications/message")
        assert broken in session.heard
    assert wire.of("notifications/roots/list_changed")
    assert (wire.entered, wire.left) == (1, 1)


async def test_a_plain_call_goes_as_the_host_has_sent_it(wire: Wire) -> None:
    params = {"name": "plain", "arguments": {"a": None}, "_meta": {"progressToken": 7}}
    async with connected(wire) as session:
        assert await session.ask("tools/call", params) == {"content": []}
    (call,) = wire.of("tools/call")
    assert call["params"] == params
    assert isinstance(call["id"], int)


@pytest.mark.parametrize(("version", "capabilities"), [("2025-06-18", {"tasks": TASKS}), ("2025-11-25", {})])
async def test_where_there_are_no_tasks_every_call_is_plain(
    wire: Wire, version: str, capabilities: JSONObject
) -> None:
    wire.version, wire.capabilities = version, capabilities
    async with connected(wire) as session:
        assert await session.ask("tools/call", {"name": "slow", "arguments": {}}) == {"content": []}
    assert "task" not in wire.of("tools/call")[0]["params"]


async def test_a_call_is_not_hindered_by_a_list_that_cannot_be_had(wire: Wire) -> None:
    wire.replies["tools/list"] = lambda params: RpcError(-32603, "broken", None)
    async with connected(wire) as session:
        assert await session.ask("tools/call", {"name": "slow", "arguments": {}}) == {"content": []}


@pytest.mark.parametrize("capabilities", [{}, {"tasks": TASKS}])
async def test_a_call_does_not_wait_for_a_list_that_does_not_come(
    wire: Wire, capabilities: JSONObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.transport._LOOK_S", 0.1 if capabilities else LIMIT_S)
    wire.capabilities = capabilities
    wire.replies["tools/list"] = lambda params: None
    async with connected(wire) as session:
        assert await session.ask("tools/call", {"name": "slow", "arguments": {}}) == {"content": []}


async def test_a_task_of_the_hosts_own_is_the_hosts(wire: Wire) -> None:
    async with connected(wire, {"elicitation": {}}) as session:
        created = await session.ask("tools/call", {"name": "slow", "task": {"ttl": 1000}})
        assert created == {"task": wire.task}
        await wire.say(question("q", _meta=MARK))
        assert (await session.hears("elicitation/create"))["id"] == "q"
        await session.say({"id": "q", "result": {"action": "decline"}})
        await wire.say({"method": "notifications/tasks/status", "params": wire.task})
        assert (await session.hears("notifications/tasks/status"))["params"]["taskId"] == TASK
        await wire.until(lambda: wire.answers)
        assert wire.answers == {"q": {"action": "decline"}}


async def test_what_a_server_wants_as_a_task_of_the_hosts_is_the_hosts(wire: Wire) -> None:
    async with connected(wire, {"elicitation": {}}) as session:
        await session.send("tools/call", {"name": "slow"})
        await wire.until(lambda: wire.of("tasks/get"))
        await wire.say(question("q", _meta=MARK, task={"ttl": 1}))
        assert (await session.hears("elicitation/create"))["id"] == "q"


async def test_what_the_sdk_notes_of_a_message_stays_with_it(wire: Wire) -> None:
    transport = TasksTransport(wire.transport(), endpoint="s", journal=MemoryJournal())
    with anyio.fail_after(LIMIT_S):
        async with transport as (_, write, *_):
            message = _wrapped({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}})
            message.metadata = noted = object()
            await write.send(message)
            await wire.until(lambda: wire.arrived)
    assert wire.metadata == [noted]


async def test_a_host_that_reads_nothing_for_a_while_keeps_nobody_from_polling(wire: Wire) -> None:
    async with connected(wire) as session:
        await session.send("tools/call", {"name": "slow"})
        await wire.until(lambda: wire.of("tasks/get"))
        session.asleep = True
        for number in range(3):
            params = {"level": "info", "data": number}
            await wire.say({"method": "notifications/message", "params": params})
        polls = len(wire.of("tasks/get"))
        await wire.until(lambda: len(wire.of("tasks/get")) > polls + 2)


# ── calls ─────────────────────────────────────────────────────────────────────────────────────


@requirement("law:6")
async def test_the_result_of_a_task_is_the_reply_and_nothing_of_it_is_changed(wire: Wire) -> None:
    journal = MemoryJournal()
    params = {"name": "slow", "arguments": {"x": [None]}, "_meta": {"progressToken": 3, "a/b": 1}}
    async with connected(wire, journal=journal, principal="ada") as session:
        request_id = await session.send("tools/call", params)
        await wire.until(lambda: len(wire.of("tasks/get")) > 1)
        await wire.say({"method": "notifications/tasks/status", "params": wire.task})
        wire.task["status"] = "completed"
        assert await session.reply_to(request_id) == RESULT
        assert session.heard == [], "the host has no such task"
    (call,) = wire.of("tools/call")
    ttl = call["params"].pop("task")
    assert ttl["ttl"] > 0
    assert call["params"] == params
    async with journal:
        (record,) = await journal.records(Scope("a-server", "ada"))
    assert (record.task_id, record.generation) == (TASK, "2025-11-25")
    assert record.delivered_at is not None


@pytest.mark.parametrize("leaves", [True, False], ids=["has-left", "does-not-read"])
async def test_a_result_that_the_host_has_not_read_is_not_delivered(wire: Wire, leaves: bool) -> None:
    journal = MemoryJournal()
    async with connected(wire, journal=journal) as session:
        await session.send("tools/call", {"name": "slow"})
        await wire.until(lambda: wire.of("tasks/get"))
        if leaves:
            await session._read.aclose()
        else:
            session.asleep = True
            await wire.say({"method": "notifications/message", "params": {"level": "info", "data": 1}})
        wire.task["status"] = "completed"
        await wire.until(lambda: wire.of("tasks/result"))
        await anyio.wait_all_tasks_blocked()
    async with journal:
        (record,) = await journal.records(Scope("a-server", ""))
    assert record.finished
    assert record.delivered_at is None


@requirement("law:2")
async def test_a_call_that_goes_on_by_a_token_of_the_sdks_is_not_made_again(wire: Wire) -> None:
    async with connected(wire) as session:
        call = {"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": {"name": "slow"}}
        message = _wrapped(call)
        message.metadata = ClientMessageMetadata(resumption_token="event-17")
        await session._write.send(message)
        assert await session.reply_to(99) == {"content": []}
    assert [one["id"] for one in wire.of("tools/call")] == [99]


@requirement("law:6")
async def test_an_error_of_the_servers_is_the_reply_as_it_was_said(wire: Wire) -> None:
    wire.replies["tools/call"] = lambda params: RpcError(-32042, "first this", {"urls": [None]})
    async with connected(wire) as session:
        said = await session.ask("tools/call", {"name": "slow", "arguments": {}})
    assert said == RpcError(-32042, "first this", {"urls": [None]})


async def test_what_no_server_has_said_tells_what_to_do_next(wire: Wire) -> None:
    async with connected(wire) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        await wire.until(lambda: wire.of("tasks/get"))
        wire.replies["tasks/get"] = lambda params: RpcError(-32602, "no such task", None)
        said = await session.reply_to(request_id)
    assert said.code == -32603
    assert "does not know the task" in said.message


async def test_a_host_says_for_how_long_a_task_is_to_be_kept(wire: Wire) -> None:
    async with connected(wire, task_ttl_s=5.0) as session:
        wire.task["status"] = "completed"
        assert await session.ask("tools/call", {"name": "slow"}) == RESULT
    assert wire.of("tools/call")[0]["params"]["task"] == {"ttl": 5000}


async def test_where_nothing_but_tasks_is_wanted_another_tool_is_not_called(wire: Wire) -> None:
    async with connected(wire, task_preference="always") as session:
        said = await session.ask("tools/call", {"name": "plain"})
    assert "was not called" in said.message
    assert not wire.of("tools/call")


@pytest.mark.parametrize("on_abandon", ["cancel", "detach"])
@requirement("law:8")
async def test_a_call_that_is_taken_back_gets_no_reply(wire: Wire, on_abandon: str) -> None:
    async with connected(wire, on_abandon=on_abandon) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        await wire.until(lambda: wire.of("tasks/get"))
        await session.say({"method": "notifications/cancelled", "params": {"requestId": request_id}})
        await wire.until(lambda: on_abandon == "detach" or wire.of("tasks/cancel"))
        wire.replies["ping"] = lambda params: {}
        await session.ask("ping")
        assert request_id not in session._replies
    assert not wire.of("notifications/cancelled"), "the server has never heard of that request"
    assert len(wire.of("tasks/cancel")) == (1 if on_abandon == "cancel" else 0)


@requirement("law:8")
async def test_a_call_that_is_taken_back_at_once_is_not_made(wire: Wire) -> None:
    async with connected(wire) as session:
        for _ in range(10):
            request_id = await session.send("tools/call", {"name": "slow"})
            await session.say({"method": "notifications/cancelled", "params": {"requestId": request_id}})
        wire.replies["ping"] = lambda params: {}
        await session.ask("ping")
        await anyio.wait_all_tasks_blocked()
    assert not wire.of("tools/call")
    assert not wire.of("notifications/cancelled")


@requirement("law:8")
async def test_a_call_that_is_waited_for_when_the_transport_is_left_is_abandoned(wire: Wire) -> None:
    async with connected(wire, on_abandon="cancel") as session:
        await session.send("tools/call", {"name": "slow"})
        await wire.until(lambda: wire.of("tasks/get"))
    assert len(wire.of("tasks/cancel")) == 1
    assert wire.left == 1


@pytest.mark.parametrize("hint_ms", [10, 3_600_000])
async def test_a_call_that_waits_when_the_connection_ends_is_journaled(wire: Wire, hint_ms: int) -> None:
    journal = MemoryJournal()
    wire.task["pollInterval"] = hint_ms
    async with connected(wire, journal=journal) as session:
        await session.send("tools/call", {"name": "slow"})
        await wire.until(lambda: wire.of("tools/call"))
        await anyio.wait_all_tasks_blocked()
        wire.hang_up()
        await session.ended.wait()
        await wire.until(lambda: not session.relay._serving)
    async with journal:
        (record,) = await journal.records(Scope("a-server", ""))
    assert not record.finished


async def test_who_has_called_is_told_how_the_task_goes(wire: Wire) -> None:
    told: list[Any] = []
    async with connected(wire, on_update=told.append) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        await wire.until(lambda: told)
        wire.task["status"] = "completed"
        await session.reply_to(request_id)
    assert [task.status for task in told] == ["working", "completed"]


async def test_the_servers_words_are_passed_on_where_it_refuses_as_well(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any, **options: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        raise SessionError("no", code=-32001, remote_message="not you", data={"a": None})

    monkeypatch.setattr("mcp_tasks_client.old.engine.Engine.call_raw", refused)
    async with connected(wire) as session:
        said = await session.ask("tools/call", {"name": "slow"})
    assert said == RpcError(-32001, "not you", {"a": None})


# ── requests of ours ──


async def test_a_request_that_is_given_up_is_taken_back_only_if_questions_hang_on_it(wire: Wire) -> None:
    wire.replies["tasks/get"] = lambda params: None
    async with connected(wire) as session:
        ours = session.relay.new_request_id()
        for method, request_id in (("tasks/get", None), ("tasks/result", None), ("tasks/result", ours)):
            with pytest.raises(ConnectionLostError, match="no whole reply"):
                await session.relay.request(method, {}, 0.05, Faults(method), request_id)
        await wire.until(lambda: wire.of("notifications/cancelled"))
    (taken_back,) = wire.of("notifications/cancelled")
    assert taken_back["params"]["requestId"] == ours, (
        "what asks for the end of a task does not wait for questions"
    )


@pytest.mark.parametrize("code", [32600, -32600])  # as the SDK says it for the server, and as servers do
async def test_a_session_that_the_server_has_ended_is_no_error_of_the_tools(wire: Wire, code: int) -> None:
    wire.replies["tasks/get"] = lambda params: RpcError(code, "Session terminated", None)
    async with connected(wire) as session:
        with pytest.raises(ConnectionLostError, match="ended the session"):
            await session.relay.request("tasks/get", {}, LIMIT_S, Faults("tasks/get"))


@pytest.mark.parametrize(
    "said",
    [
        RpcError(-32603, "Server returned an error response", None),
        RpcError(-32000, "SSE stream ended without a response", None),
        RpcError(-32600, "Unexpected content type: text/html", None),
    ],
)
async def test_what_the_sdk_says_for_a_server_that_has_not_answered_is_no_outcome(
    wire: Wire, said: RpcError
) -> None:
    wire.replies["tasks/get"] = lambda params: said
    async with connected(wire) as session:
        with pytest.raises(ConnectionLostError) as lost:
            await session.relay.request("tasks/get", {}, LIMIT_S, Faults("tasks/get"))
        assert lost.value.retryable
        wire.replies["tasks/get"] = lambda params: replace(said, data={"of": "the server's own"})
        with pytest.raises(SessionError) as refused:
            await session.relay.request("tasks/get", {}, LIMIT_S, Faults("tasks/get"))
        assert refused.value.code == said.code


@requirement("law:3")
async def test_a_wait_that_broke_under_the_session_is_taken_back_before_the_next(wire: Wire) -> None:
    waits: list[RpcError] = [RpcError(-32000, "SSE stream ended without a response", None)]
    wire.task["status"] = "input_required"
    wire.replies["tasks/result"] = lambda params: waits.pop() if waits else None
    async with connected(wire) as session:
        await session.send("tools/call", {"name": "slow"})
        await wire.until(lambda: len(wire.of("tasks/result")) == 2)
        (taken_back,) = wire.of("notifications/cancelled")
        assert taken_back["params"]["requestId"] == wire.of("tasks/result")[0]["id"]


async def test_a_request_ends_with_the_connection(wire: Wire) -> None:
    wire.replies["tasks/get"] = lambda params: None

    async def hang_up() -> None:
        await wire.until(lambda: wire.of("tasks/get"))
        wire.hang_up()

    async with connected(wire) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(hang_up)
        for _ in range(2):  # while it waits, and when there is no connection any more
            with pytest.raises(ConnectionLostError, match="the connection is closed"):
                await session.relay.request("tasks/get", {}, None, Faults("tasks/get"))


# ── questions ─────────────────────────────────────────────────────────────────────────────────


@requirement("law:3", "2025:marked-answers")
async def test_a_question_of_a_task_is_asked_of_the_hosts_session_and_answered_with_the_mark(
    wire: Wire,
) -> None:
    async with connected(wire, {"elicitation": {}}) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        await wire.until(lambda: wire.of("tasks/get"))
        wire.task["status"] = "input_required"
        await wire.until(lambda: wire.of("tasks/result"))
        for _ in range(2):  # over two streams
            await wire.say(question("q", _meta=MARK))
        asked = await session.hears("elicitation/create")
        assert asked["params"] == FORM, "no task of the session's"
        await session.say({"id": asked["id"], "result": {"action": "accept", "content": {}}})
        await wire.until(lambda: wire.answers)
        wire.task["status"] = "completed"
        assert await session.reply_to(request_id) == RESULT
        assert session.heard == []
    assert wire.answers == {"q": {"action": "accept", "content": {}, "_meta": MARK}}


@requirement("law:3")
async def test_an_answer_that_has_shown_no_effect_is_kept_to_be_sent_again(wire: Wire) -> None:
    journal = MemoryJournal()
    async with connected(wire, elicitation=accept, journal=journal) as session:
        await session.send("tools/call", {"name": "slow"})
        wire.task["status"] = "input_required"
        await wire.until(lambda: wire.of("tasks/result"))
        await wire.say(question("q", _meta=MARK))
        await wire.until(lambda: wire.answers)
        wire.hang_up()
        await session.ended.wait()
    async with journal:
        (record,) = await journal.records(Scope("a-server", ""))
    assert isinstance(record.state, Observing)
    (asked,) = record.state.questions
    assert asked.stage != "acknowledged"
    assert asked.answer == {"action": "accept", "content": {}}


@requirement("law:1", "law:3")
async def test_what_waits_for_a_question_can_be_taken_back_by_another_process(wire: Wire) -> None:
    journal = MemoryJournal()
    async with connected(wire, journal=journal) as session:
        await session.send("tools/call", {"name": "slow"})
        wire.task["status"] = "input_required"
        await wire.until(lambda: wire.of("tasks/result"))
        await wire.until(lambda: len(wire.of("tasks/get")) > 3)
        (record,) = await journal.records(Scope("a-server", ""))
        assert isinstance(record.state, Observing)
        memo = Memo.read(record.state.task.request_state)
        assert [memo.retrieval] == [one["id"] for one in wire.of("tasks/result")]
        wire.hang_up()
        await session.ended.wait()


@requirement("law:1", "law:3")
@pytest.mark.parametrize(
    "ends", ["the connection breaks", "the host goes", "all is stopped", "the server takes it back"]
)
async def test_what_was_asked_before_the_session_ended_can_be_answered_by_another_process(
    wire: Wire, ends: str
) -> None:
    """It goes back to the session, where the server waits for just that, unless it has taken it back."""
    journal, prompted, everything = MemoryJournal(), anyio.Event(), anyio.CancelScope()

    async def ask(context: Any, params: Any) -> ElicitResult:
        prompted.set()
        return await anyio.sleep_forever()

    with everything:
        async with connected(wire, elicitation=ask, journal=journal) as session:
            await session.send("tools/call", {"name": "slow"})
            wire.task["status"] = "input_required"
            await wire.until(lambda: wire.of("tasks/result"))
            await wire.say(question("q", _meta=MARK))
            await prompted.wait()
            if ends == "the server takes it back":
                await wire.say({"method": "notifications/cancelled", "params": {"requestId": "q"}})
                looks = len(wire.of("tasks/get"))
                await wire.until(lambda: len(wire.of("tasks/get")) > looks + 3)
            if ends == "all is stopped":
                everything.cancel()
                await anyio.sleep_forever()
            elif ends != "the host goes":
                wire.hang_up()
                await session.ended.wait()
    async with journal:
        (record,) = await journal.records(Scope("a-server", ""))
    assert isinstance(record.state, Observing)
    (open_question,) = record.state.questions
    asked = {open_question.key: ["q"]} if ends != "the server takes it back" else {}
    assert Memo.read(record.state.request_state).asked == asked


async def test_calls_without_a_reply_hold_up_no_other(wire: Wire) -> None:
    wire.replies["tools/call"] = lambda params: None
    async with connected(wire) as session:
        for _ in range(70):  # which the session may have given up, without a word
            await session.send("tools/call", {"name": "slow"})
        await wire.until(lambda: len(wire.of("tools/call")) == 70)


@requirement("law:3")
async def test_an_answer_without_effect_is_said_again(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.answering._AGAIN_S", 0.02)
    prompts: list[str] = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        prompts.append(params.message)
        return await accept(context, params)

    async with connected(wire, elicitation=ask) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        wire.task["status"] = "input_required"
        await wire.until(lambda: wire.of("tasks/result"))
        await wire.say(question("q", _meta=MARK))
        await wire.until(lambda: wire.answers)
        first = wire.answers.pop("q")
        await wire.until(lambda: wire.answers)
        assert wire.answers == {"q": first}
        wire.task["status"] = "completed"
        assert await session.reply_to(request_id) == RESULT
    assert prompts == ["Name?"]


@requirement("law:3")
async def test_what_comes_under_the_id_of_an_open_question_is_asked_and_gets_its_own_answer(
    wire: Wire,
) -> None:
    asked: list[str] = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        if params.message == "A?":
            await anyio.sleep_forever()
        return ElicitResult(action="accept", content={"to": params.message})

    async with connected(wire, elicitation=ask) as session:
        await session.send("tools/call", {"name": "slow"})
        wire.task["status"] = "input_required"
        await wire.until(lambda: wire.of("tasks/result"))
        await wire.say(question("x", message="A?", _meta=MARK))
        await wire.until(lambda: asked)
        await wire.say(question("x", message="B?", _meta=MARK))  # the tool has given the first one up
        await wire.until(lambda: wire.answers)
        assert wire.answers["x"]["content"] == {"to": "B?"}
    assert asked == ["A?", "B?"]


@requirement("law:3")
async def test_an_answer_is_not_said_again_to_a_plain_question_with_its_id(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.answering._AGAIN_S", 0.02)
    async with connected(wire, {"elicitation": {}}, elicitation=accept) as session:
        await session.send("tools/call", {"name": "slow"})
        wire.task["status"] = "input_required"
        await wire.until(lambda: wire.of("tasks/result"))
        await wire.say(question("q", _meta=MARK))
        await wire.until(lambda: wire.answers.pop("q", None))
        await wire.say(question("q", message="Delete everything?"))
        assert (await session.hears("elicitation/create"))["id"] == "q"
        looks = len(wire.of("tasks/get"))
        await wire.until(lambda: len(wire.of("tasks/get")) > looks + 5)
        await anyio.sleep(0.1)
        assert not wire.answers


@requirement("law:3")
async def test_an_answer_that_a_withdrawal_has_crossed_is_kept_for_the_next_asking(wire: Wire) -> None:
    asked: list[str] = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return await accept(context, params)

    async with connected(wire, elicitation=ask) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        wire.task["status"] = "input_required"
        await wire.until(lambda: wire.of("tasks/result"))
        await wire.say(question("q", _meta=MARK))
        await wire.until(lambda: "q" in wire.answers)
        await wire.say({"method": "notifications/cancelled", "params": {"requestId": "q"}})
        await wire.say(question("again", _meta=MARK))
        await wire.until(lambda: "again" in wire.answers)
        wire.task["status"] = "completed"
        assert await session.reply_to(request_id) == RESULT
    assert asked == ["Name?"]


async def test_what_can_be_answered_here_is_declared_and_answered_here(wire: Wire) -> None:
    async with connected(wire, {"roots": {"listChanged": True}}, elicitation=accept) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        wire.task["status"] = "input_required"
        await wire.until(lambda: wire.of("tasks/result"))
        await wire.say(question(0, _meta=MARK))
        await wire.until(lambda: wire.answers)
        wire.task["status"] = "completed"
        await session.reply_to(request_id)
        assert session.heard == []
    declared = wire.of("initialize")[0]["params"]["capabilities"]
    assert declared == {"roots": {"listChanged": True}, "elicitation": {"form": {}, "url": {}}}


@pytest.mark.parametrize("method", ["elicitation/create", "roots/list"])
async def test_what_only_we_have_declared_is_answered_here_though_no_task_asks_for_it(
    wire: Wire, method: str
) -> None:
    async with connected(wire, {"roots": {}}, elicitation=accept, roots=accept) as session:
        await wire.say({**question("q"), "method": method})
        if method == "roots/list":
            assert (await session.hears(method))["id"] == "q"
        else:
            await wire.until(lambda: wire.answers)
            assert wire.answers == {"q": {"action": "accept", "content": {}}}


@pytest.mark.parametrize(
    ("said", "code"), [(ValueError("no"), -32603), (ErrorData(code=-1, message="no"), -1)]
)
async def test_what_cannot_be_answered_here_is_refused(wire: Wire, said: Any, code: int) -> None:
    async def refusing(context: Any, params: Any) -> Any:
        if isinstance(said, Exception):
            raise said
        return said

    async with connected(wire, elicitation=refusing):
        await wire.say(question("q"))
        await wire.until(lambda: wire.answers)
    assert wire.answers["q"].code == code


@requirement("law:3")
async def test_what_we_answer_in_the_hosts_place_does_not_go_to_what_has_taken_its_id(wire: Wire) -> None:
    asked, thought = anyio.Event(), anyio.Event()

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.set()
        with anyio.CancelScope(shield=True):
            await thought.wait()
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with connected(wire, {"sampling": {}}, elicitation=ask) as session:
        await wire.say(question("q"))
        await asked.wait()
        await wire.say({"id": "q", "method": "sampling/createMessage", "params": {}})
        await session.hears("sampling/createMessage")
        thought.set()
        wire.replies["ping"] = lambda params: {}
        await session.ask("ping")
        assert wire.answers == {}


async def test_a_question_that_the_host_refuses_leaves_the_task_waiting(wire: Wire) -> None:
    async with connected(wire, {"elicitation": {}}) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        wire.task["status"] = "input_required"
        await wire.until(lambda: wire.of("tasks/result"))
        await wire.say(question("q", _meta=MARK))
        asked = await session.hears("elicitation/create")
        await session.say({"id": asked["id"], "error": {"code": -1, "message": "nobody at home"}})
        said = await session.reply_to(request_id)
    assert said.code == -32603
    assert "nobody at home" in said.message


async def test_a_question_that_the_server_takes_back_is_taken_back_from_the_host(wire: Wire) -> None:
    async with connected(wire, {"elicitation": {}}) as session:
        await session.send("tools/call", {"name": "slow"})
        wire.task["status"] = "input_required"
        await wire.until(lambda: wire.of("tasks/result"))
        await wire.say(question("q", _meta=MARK))
        asked = await session.hears("elicitation/create")
        await wire.say({"method": "notifications/cancelled", "params": {"requestId": "q"}})
        wire.task["status"] = "cancelled"
        taken_back = await session.hears("notifications/cancelled")
        assert taken_back["params"]["requestId"] == asked["id"], "whose ID the host knows"
        await session.say({"id": asked["id"], "result": {"action": "decline"}})  # too late
        await wire.say({"method": "notifications/cancelled", "params": {"requestId": "unheard-of"}})
        assert (await session.hears("notifications/cancelled"))["params"]["requestId"] == "unheard-of"
    assert wire.answers == {}


async def test_a_late_reply_to_a_request_of_ours_is_nobodys(wire: Wire) -> None:
    async with connected(wire) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        wire.task["status"] = "input_required"
        await wire.until(lambda: wire.of("tasks/result"))
        wire.task["status"] = "completed"
        (waiting, *_) = wire.of("tasks/result")
        await session.reply_to(request_id)
        await wire.until(lambda: wire.of("notifications/cancelled"))
        await wire.say({"id": waiting["id"], "result": {}})
        wire.replies["ping"] = lambda params: {}
        await session.ask("ping")
        assert waiting["id"] not in session._replies


# ── what goes wrong here ──────────────────────────────────────────────────────────────────────


async def test_a_fault_of_ours_costs_the_host_one_call_and_not_its_connection(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(wire) as session:
        monkeypatch.setattr("mcp_tasks_client.old.engine.Engine.call_raw", None)
        said = await session.ask("tools/call", {"name": "slow"})
        assert "TypeError" in said.message
        monkeypatch.setattr("mcp_tasks_client.old.sessions.relay.related_task", None)
        await wire.say(question("q", _meta=MARK))
        assert (await session.hears("elicitation/create"))["id"] == "q"


async def test_a_host_that_reads_no_more_does_not_end_what_we_say_on_leaving(wire: Wire) -> None:
    async with TasksTransport(
        wire.transport(), endpoint="s", journal=MemoryJournal(), poll=QUICK, on_abandon="cancel"
    ) as (read, write, *_):
        session = Session(read, write)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.run)
            params = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "host", "version": "1"},
            }
            await session.ask("initialize", params)
            await session.send("tools/call", {"name": "slow"})
            await wire.until(lambda: wire.of("tasks/get"))
            tasks.cancel_scope.cancel()
        read.close()
        write.close()
        await wire.say({"method": "notifications/message", "params": {"level": "info", "data": 1}})
    assert len(wire.of("tasks/cancel")) == 1


async def test_a_url_names_the_server_as_it_does_for_every_other_way_in(wire: Wire) -> None:
    journal = MemoryJournal()
    url = "https://user:secret@Server.Example:443/mcp#x"
    async with connected(wire, endpoint=url, journal=journal) as session:
        wire.task["status"] = "completed"
        assert await session.ask("tools/call", {"name": "slow"}) == RESULT
    async with journal:
        assert await journal.records(Scope("https://server.example/mcp", ""))
