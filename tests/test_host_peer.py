"""A server of 2025-11-25 over the host's own session: what a real server does not do on demand.

The server is the test itself, at the other end of two streams in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import anyio
import pytest
from anyio.abc import TaskGroup
from mcp import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    ElicitResult,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from mcp_tasks_client import (
    ConnectionLostError,
    MemoryJournal,
    PollPolicy,
    RemoteProtocolError,
    SessionError,
    TaskFailedError,
    TasksClient,
    TasksClientError,
    WaitTimeoutError,
)
from mcp_tasks_client.old.inputs import Callbacks
from mcp_tasks_client.old.journal.base import Scope
from mcp_tasks_client.old.sessions import answering, hearing, retrievals, sdk_line
from mcp_tasks_client.old.sessions.asked import Asked
from mcp_tasks_client.old.sessions.base import TaskRef, ToolCall
from mcp_tasks_client.old.sessions.faults import Faults
from mcp_tasks_client.old.sessions.host_peer import HostPeer
from mcp_tasks_client.old.sessions.host_session import HostSession
from mcp_tasks_client.old.sessions.lines import Line
from mcp_tasks_client.old.sessions.sdk_line import SdkLine
from mcp_tasks_client.old.sessions.sdk_requests import mapped
from mcp_tasks_client.old.sessions.shapes_2025_11_25 import Memo
from mcp_tasks_client.old.sessions.switchboard import AbandonedError, Switchboard
from mcp_tasks_client.old.states import Observing
from mcp_tasks_client.old.wire import Created, JSONObject, RequestId, RpcError, Task

from ._requirements import requirement
from ._ways_hosts import Host

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 10.0
QUICK: Final = PollPolicy(
    floor_s=0.001, ceiling_s=0.001, jitter=0.0, backoff_floor_s=0.001, backoff_ceiling_s=0.01
)
RELATED: Final = "io.modelcontextprotocol/related-task"
TASK_ID: Final = "task-1"
FORM: Final = {"type": "object", "properties": {"name": {"type": "string"}}}
RESULT: Final = {"content": [{"type": "text", "text": "done"}]}
CAPABILITIES: Final = {"tools": {}, "tasks": {"list": {}, "requests": {"tools": {"call": {}}}}}
TIMES: Final = {"createdAt": "2025-11-25T10:00:00Z", "lastUpdatedAt": "2025-11-25T10:00:00Z"}
HELD: Final[JSONObject] = {}
"""A reply that never goes out."""

Reply = Callable[[JSONObject], JSONObject]


def task(status: str = "working", **more: Any) -> JSONObject:
    return {"taskId": TASK_ID, "status": status, "ttl": 60_000, "pollInterval": 1, **TIMES, **more}


def question(task_id: str | None = TASK_ID, message: str = "Name?") -> JSONObject:
    mark = {"_meta": {RELATED: {"taskId": task_id}}} if task_id is not None else {}
    return {"mode": "form", "message": message, "requestedSchema": FORM, **mark}


class Server:
    """The server's end, and what it got.

    Attributes:
        replies: By method.
        arrived: The requests.
        held: The ID of the latest request without a reply, by method.
        ids: Of the requests, by method.
        answers: The host's responses to requests of the server's, by ID, as they come.
    """

    def __init__(self) -> None:
        self.to_host, self.host_reads = anyio.create_memory_object_stream[SessionMessage | Exception](100)
        self.host_writes, self.from_host = anyio.create_memory_object_stream[SessionMessage](100)
        self.arrived: list[tuple[str, JSONObject]] = []
        self.held: dict[str, str | int] = {}
        self.ids: defaultdict[str, list[str | int]] = defaultdict(list)
        self.answers: dict[str | int, JSONObject] = {}
        self._news = anyio.Event()
        tool = {"name": "tool", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
        self.replies: dict[str, Reply] = {
            "initialize": lambda params: {
                "protocolVersion": "2025-11-25",
                "capabilities": CAPABILITIES,
                "serverInfo": {"name": "hand", "version": "1"},
            },
            "tools/list": lambda params: {"tools": [tool]},
            "tools/call": lambda params: {"task": task()} if "task" in params else RESULT,
            "tasks/get": lambda params: task(),
            "tasks/result": lambda params: HELD,
            "tasks/list": lambda params: {"tasks": [task()]},
            "ping": lambda params: {},
        }

    async def run(self) -> None:
        async for item in self.from_host:
            message = item.message
            if isinstance(message, JSONRPCRequest):
                params = dict(message.params or {})
                self.arrived.append((message.method, params))
                self.ids[message.method].append(message.id)
                reply = self.replies[message.method](params)
                if reply is HELD:
                    self.held[message.method] = message.id
                else:
                    await self.send({"id": message.id, **(reply if "error" in reply else {"result": reply})})
            elif isinstance(message, JSONRPCNotification):
                self.arrived.append((message.method, dict(message.params or {})))
            elif message.id is not None:
                assert isinstance(message, JSONRPCResponse | JSONRPCError)
                self.arrived.append(("an answer", {"at": anyio.current_time()}))
                self.answers[message.id] = message.model_dump(by_alias=True, mode="json", exclude_none=True)
            self._news.set()
            self._news = anyio.Event()

    async def send(self, message: Mapping[str, Any]) -> None:
        whole = jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **message}, by_name=False)
        await self.to_host.send(SessionMessage(whole))

    async def ask(self, request_id: str | int, params: JSONObject) -> None:
        await self.send({"id": request_id, "method": "elicitation/create", "params": params})

    async def tell(self, status: str, **more: Any) -> None:
        await self.send({"method": "notifications/tasks/status", "params": task(status, **more)})

    async def answer(self, request_id: str | int) -> JSONObject:
        await self.until(lambda: request_id in self.answers)
        return self.answers[request_id]

    async def was_heard(self) -> None:
        """Wait until all that was sent has been taken."""
        await self.send({"method": "ping", "id": "ping"})
        await self.answer("ping")

    async def got(self, method: str) -> None:
        await self.until(lambda: method in [name for name, _ in self.arrived])

    def count(self, method: str) -> int:
        """How many requests of a method have arrived, or answers."""
        return [name for name, _ in self.arrived].count(method)

    async def until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            await self._news.wait()

    def ends(self) -> None:
        self.replies["tasks/get"] = lambda params: task("completed")
        self.replies["tasks/result"] = lambda params: RESULT


@asynccontextmanager
async def connected(host: Host) -> AsyncIterator[tuple[ClientSession, Server, TaskGroup]]:
    server = Server()
    ends = server.to_host, server.from_host, server.host_reads, server.host_writes
    with anyio.fail_after(LIMIT_S), ExitStack() as stack:
        for end in ends:
            stack.enter_context(end)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run)
            async with ClientSession(server.host_reads, server.host_writes, **host.sdks) as session:
                await session.initialize()
                yield session, server, tasks
            tasks.cancel_scope.cancel()


def ours(session: ClientSession, journal: MemoryJournal | None = None, **options: Any) -> TasksClient:
    return TasksClient(
        session, journal=journal or MemoryJournal(), endpoint="hand", **{"poll": QUICK, **options}
    )


def content(answer: JSONObject) -> Any:
    return answer["result"]["content"]


async def test_a_host_says_for_how_long_a_task_is_to_be_kept() -> None:
    async with connected(Host()) as (session, server, _), ours(session, task_ttl_s=5.0) as durable:
        await durable.start_tool("tool")
        (params,) = [params for method, params in server.arrived if method == "tools/call"]
        assert params["task"] == {"ttl": 5000}


async def test_a_question_of_a_task_is_answered_with_its_mark() -> None:
    host = Host()
    async with connected(host) as (session, server, _), ours(session) as durable:
        handle = await durable.start_tool("tool")
        await server.ask(0, question())
        answer = await server.answer(0)
        assert content(answer) == {"name": "Ada"}
        assert answer["result"]["_meta"] == {RELATED: {"taskId": TASK_ID}}
        server.ends()
        assert (await handle.result()).content
    assert host.asked == ["Name?"]


async def test_a_question_that_comes_before_its_task_waits_for_it() -> None:
    host = Host()
    async with connected(host) as (session, server, tasks), ours(session) as durable:
        server.replies["tools/call"] = lambda params: HELD
        tasks.start_soon(durable.start_tool, "tool")
        await server.got("tools/call")
        await server.ask("early", question())
        await server.was_heard()
        assert host.asked == []
        await server.send({"id": server.held["tools/call"], "result": {"task": task()}})
        assert content(await server.answer("early")) == {"name": "Ada"}
    assert host.asked == ["Name?"]


@pytest.mark.parametrize("mark", [None, "a task that the host has made itself"])
async def test_every_other_question_goes_to_the_host_at_once(mark: str | None) -> None:
    host, contexts = Host(), []
    real = host.elicit

    async def elicit(context: Any, params: Any) -> Any:
        contexts.append((context.request_id, params.message))
        return await real(context, params)

    host.elicit = elicit  # type: ignore[method-assign]  # to see what it is given
    async with connected(host) as (session, server, _), ours(session) as durable:
        await durable.start_tool("tool")
        await server.ask("plain", question(mark))
        assert content(await server.answer("plain")) == {"name": "Ada"}
    assert contexts == [("plain", "Name?")]


@pytest.mark.parametrize("hook", ["_on_notify_intercept", "_none"])
async def test_a_question_that_was_taken_back_gets_no_answer_until_it_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setattr(sdk_line, "_HOOK", hook)
    host, known = Host(), anyio.Event()
    real = host.elicit

    async def elicit(context: Any, params: Any) -> Any:
        answer = await real(context, params)
        await known.wait()
        return answer

    host.elicit = elicit  # type: ignore[method-assign]  # to answer when it is too late
    async with connected(host) as (session, server, _), ours(session) as durable:
        await durable.start_tool("tool")
        await server.ask(7, question())
        await host.prompted.wait()
        await server.send({"method": "notifications/cancelled", "params": {"requestId": 7}})
        await server.was_heard()
        known.set()
        await server.ask(8, question())
        assert content(await server.answer(8)) == {"name": "Ada"}
        assert 7 not in server.answers
    assert host.asked == ["Name?"]


async def test_what_is_open_when_our_client_closes_is_answered_by_the_next() -> None:
    host, journal = Host(hesitates=True), MemoryJournal()
    async with connected(host) as (session, server, _):
        async with ours(session, journal) as durable:
            await durable.start_tool("tool")
            await server.ask("q", question())
            await host.prompted.wait()
        await host.withdrawn.wait()
        assert "q" not in server.answers
        host.hesitates = False
        async with ours(session, journal) as durable:
            await durable.resume()
            assert content(await server.answer("q")) == {"name": "Ada"}


async def test_after_our_client_the_host_has_all_questions() -> None:
    host = Host()
    async with connected(host) as (session, server, _):
        async with ours(session) as durable:
            await durable.start_tool("tool")
        await server.ask("q", question())
        assert "_meta" not in (await server.answer("q"))["result"]


async def test_who_has_replaced_a_callback_after_us_keeps_it() -> None:
    async def another(*args: Any) -> Any: ...

    async with connected(Host()) as (session, _, _tasks):
        async with ours(session) as durable:
            await durable.start_tool("tool")
            session._elicitation_callback = another
        assert session._elicitation_callback is another


@pytest.mark.parametrize(
    "created",
    [
        {"task": {"taskId": TASK_ID, "status": "working"}},
        {"task": task(ttl=None), "content": "broken"},
        {"task": task(extra={"a": [1]}), "content": []},
    ],
    ids=["bare", "with a content that is none", "with more than there should be"],
)
async def test_a_task_is_not_lost_to_what_the_sdk_makes_of_it(created: JSONObject) -> None:
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        server.replies["tools/call"] = lambda params: created
        server.ends()
        handle = await durable.start_tool("tool")
        assert handle.task_id == TASK_ID
        assert (await handle.result()).content


async def test_a_result_that_is_neither_is_an_error() -> None:
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        server.replies["tools/call"] = lambda params: {"content": "broken"}
        with pytest.raises(TasksClientError):
            await durable.call_tool("tool")


async def test_a_status_that_is_told_is_looked_at_before_the_next_poll() -> None:
    rare = PollPolicy(floor_s=3600.0, ceiling_s=3600.0, jitter=0.0)
    async with connected(Host()) as (session, server, _), ours(session, poll=rare) as durable:
        server.replies["tools/call"] = lambda params: {"task": task(pollInterval=3_600_000)}
        handle = await durable.start_tool("tool")
        updates = handle.updates()
        async with anyio.create_task_group() as telling:
            telling.start_soon(tell_on, server)
            while (await anext(updates)).status_message is None:
                pass
            telling.cancel_scope.cancel()
        server.ends()
        await server.tell("completed")
        assert (await handle.result()).content
    assert "tasks/get" not in [method for method, _ in server.arrived]


async def tell_on(server: Server) -> None:
    while True:  # nobody listens for a task that is younger than a moment
        await server.tell("working", statusMessage="busy")
        await anyio.sleep(0.05)


async def test_who_waits_for_a_question_hears_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "_QUESTION_S", 3600.0)
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        server.replies["tasks/get"] = lambda params: task("input_required")
        handle = await durable.start_tool("tool")
        await server.got("tasks/result")
        held = server.held["tasks/result"]
        server.ends()
        await server.send({"id": held, "result": RESULT})
        assert (await handle.result()).content


async def stage_of(durable: TasksClient) -> tuple[str, bool]:
    """How far the answer to the only question is, and whether it is kept."""
    (record,) = await durable.records()
    assert isinstance(record.state, Observing)
    (asked,) = record.state.questions
    return asked.stage, asked.answer is not None


@requirement("law:3")
async def test_an_answer_has_arrived_when_the_task_does_not_wait_for_it_any_more() -> None:
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        server.replies["tasks/get"] = lambda params: task("input_required")
        await durable.start_tool("tool")
        await server.ask("q", question())
        await server.answer("q")
        server.arrived.clear()
        await server.until(lambda: server.count("tasks/get") > 3)
        assert await stage_of(durable) == ("sending", True)
        server.replies["tasks/get"] = lambda params: task()
        while await stage_of(durable) != ("acknowledged", False):
            await anyio.sleep(0.001)
        assert server.count("an answer") == 0, "it was said once"


@requirement("law:3")
async def test_an_answer_without_effect_is_said_again_under_the_same_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answering, "_AGAIN_S", 0.02)
    host = Host()
    async with connected(host) as (session, server, _), ours(session) as durable:
        server.replies["tasks/get"] = lambda params: task("input_required")
        handle = await durable.start_tool("tool")
        await server.ask("q", question())
        first = await server.answer("q")
        del server.answers["q"]  # as if a gateway had refused it
        assert await server.answer("q") == first
        await server.until(lambda: server.count("an answer") == 3)
        _, second, third = (params["at"] for name, params in server.arrived if name == "an answer")
        assert third - second >= 0.04, "ever more rarely"
        server.ends()
        assert (await handle.result()).content
    assert host.asked == ["Name?"]


async def test_an_answer_is_not_said_again_before_two_snapshots_have_waited_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answering, "_AGAIN_S", 0.0)
    monkeypatch.setattr("mcp_tasks_client.old.listener._FIRST_S", 0.0)
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        server.replies["tools/call"] = lambda params: {"task": task(pollInterval=500)}
        server.replies["tasks/get"] = lambda params: task("input_required", pollInterval=500)
        handle = await durable.start_tool("tool")
        ours_: Any = durable._engine._session
        while ours_._older._hearing.hints.heard is None:
            await anyio.sleep(0.001)
        await server.ask("q", question())  # heard of before any snapshot, and so before a tasks/result
        await server.answer("q")
        assert server.count("tasks/get") == 0
        await server.until(lambda: server.count("an answer") == 2)
        assert server.count("tasks/get") == 2
        server.ends()
        assert (await handle.result()).content


async def test_an_answer_is_not_said_again_where_another_question_may_have_its_id_by_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answering, "_AGAIN_S", 0.02)
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        server.replies["tasks/get"] = lambda params: task("input_required")
        await durable.start_tool("tool")
        await server.got("tasks/result")
        await server.ask("q", question())
        await server.answer("q")
        # Where it would have come, and where it may have been said.
        await server.send({"id": server.held["tasks/result"], "error": {"code": -1, "message": "broken"}})
        server.arrived.clear()
        await server.until(lambda: server.count("tasks/result") and server.count("tasks/get") > 3)
        await anyio.sleep(0.1)
        assert server.count("an answer") == 0
        assert await stage_of(durable) == ("sending", True)


async def test_without_the_sdks_way_to_answer_it_is_said_that_an_answer_may_be_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(answering, "_AGAIN_S", 0.0)
    monkeypatch.setattr(sdk_line, "_WRITES", ("_a_way_that_there_is_not",))
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        server.replies["tasks/get"] = lambda params: task("input_required")
        handle = await durable.start_tool("tool")
        await server.ask("q", question())
        await server.answer("q")
        while "cannot say it again" not in caplog.text:
            await anyio.sleep(0.001)
        assert server.count("an answer") == 1
        server.ends()
        assert (await handle.result()).content


async def test_what_is_said_again_may_be_an_error() -> None:
    async with connected(Host()) as (session, server, tasks):
        peer = HostPeer(SdkLine(lambda: session), lambda peer, message: None)
        tasks.start_soon(partial(peer.request, "tasks/get", {}, LIMIT_S, task_id=TASK_ID))
        await server.got("tasks/get")
        await server.ask(7, question())
        await server.was_heard()
        for number in (1, 2):
            await peer.answer(7, RpcError(None, "nobody is there", None), LIMIT_S)
            await server.until(lambda number=number: server.count("an answer") == number + 1)  # and to ping
        assert server.answers[7]["error"] == {"code": -32603, "message": "nobody is there"}
        # It was taken back, and then asked anew.
        await server.send({"method": "notifications/cancelled", "params": {"requestId": 7}})
        await server.was_heard()
        with pytest.raises(ConnectionLostError, match="does not wait for it"):
            await peer.answer(7, {}, LIMIT_S)
        peer.leave()


@requirement("law:3")
@pytest.mark.parametrize("whose", [None, "a task that the host has made itself"])
async def test_an_answer_is_not_said_again_to_what_else_has_its_id_by_now(
    monkeypatch: pytest.MonkeyPatch, whose: str | None
) -> None:
    monkeypatch.setattr(answering, "_AGAIN_S", 0.02)
    host, thinking = Host(), anyio.Event()
    real = host.elicit

    async def elicit(context: Any, params: Any) -> Any:
        if params.message == "Delete everything?":
            thinking.set()
            await anyio.sleep_forever()
        return await real(context, params)

    host.elicit = elicit  # type: ignore[method-assign]  # to have one question take its time
    async with connected(host) as (session, server, _), ours(session) as durable:
        server.replies["tasks/get"] = lambda params: task("input_required")
        await durable.start_tool("tool")
        await server.got("tasks/result")
        await server.ask(5, question())
        await server.answer(5)
        del server.answers[5]
        await server.ask(5, question(whose, "Delete everything?"))
        await thinking.wait()
        while await stage_of(durable) != ("acknowledged", False):
            await anyio.sleep(0.001)  # whoever gives an ID away again has the answer
        await anyio.sleep(0.1)
        assert not server.answers


@requirement("law:3")
async def test_an_answer_of_a_client_that_was_closed_is_not_said_to_what_has_its_id_by_now() -> None:
    host, journal, thinking = Host(), MemoryJournal(), anyio.Event()
    real = host.elicit

    async def elicit(context: Any, params: Any) -> Any:
        if params.message == "Delete everything?":
            thinking.set()
            await anyio.sleep_forever()
        return await real(context, params)

    host.elicit = elicit  # type: ignore[method-assign]  # to have one question take its time
    async with connected(host) as (session, server, _):
        server.replies["tasks/get"] = lambda params: task("input_required")
        async with ours(session, journal) as durable:
            await durable.start_tool("tool")
            await server.got("tasks/result")
            await server.ask(5, question())
            await server.answer(5)
            del server.answers[5]
        await server.ask(5, question(message="Delete everything?"))
        await thinking.wait()
        server.arrived.clear()
        async with ours(session, journal) as durable:
            await durable.resume()
            await server.until(lambda: server.count("tasks/get") > 5)
            assert not server.answers


@requirement("law:3")
@pytest.mark.parametrize("whose", ["other", None], ids=["another task's", "a plain one"])
async def test_an_answer_does_not_cross_to_what_came_under_its_id_while_somebody_thought(
    whose: str | None,
) -> None:
    host, going, prompted = Host(), anyio.Event(), list[str]()

    async def elicit(context: Any, params: Any) -> Any:
        prompted.append(params.message)
        await (going.wait() if params.message == "A?" else anyio.sleep_forever())
        return ElicitResult(action="accept", content={"name": "for A"})

    host.elicit = elicit  # type: ignore[method-assign]  # to have both open at once
    ids = iter(("one", "other"))
    async with connected(host) as (session, server, _), ours(session) as durable:
        server.replies["tools/call"] = lambda params: {"task": {**task(), "taskId": next(ids)}}
        server.replies["tasks/get"] = lambda params: {**task("input_required"), **params}
        await durable.start_tool("tool")
        await durable.start_tool("tool")
        await server.got("tasks/result")
        await server.ask(5, question("one", "A?"))
        while prompted != ["A?"]:
            await anyio.sleep(0.001)
        await server.ask(5, question(whose, "Delete everything?"))
        while len(prompted) < 2:
            await anyio.sleep(0.001)
        going.set()
        await anyio.sleep(0.1)
        assert not server.answers


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The questions whose callbacks the SDK waits for."""
    unsettled, real = list[Any](), sdk_line._asking

    def asking(board: Any, method: str) -> Any:
        def around(callback: Any) -> Any:
            asked = real(board, method)(callback)

            async def counted(*given: Any) -> Any:
                unsettled.append(given)
                try:
                    return await asked(*given)
                finally:
                    unsettled.remove(given)

            return counted

        return around

    monkeypatch.setattr(sdk_line, "_asking", asking)
    return unsettled


@requirement("2025:cancelled-is-gone")
async def test_what_a_cancelled_task_asks_that_the_server_has_forgotten_is_answered_by_nobody() -> None:
    host = Host()
    async with connected(host) as (session, server, _), ours(session) as durable:
        handle = await durable.start_tool("tool")
        server.replies["tasks/cancel"] = lambda params: task("cancelled")
        missing = {"error": {"code": -32602, "message": "no such task"}}
        server.replies["tasks/get"] = lambda params: missing
        await handle.cancel()
        with pytest.raises(TasksClientError):
            await handle.result()
        await server.ask("late", question())
        await server.was_heard()
        assert "late" not in server.answers
    assert host.asked == []


async def test_what_two_requests_under_one_id_may_share_is_ended_by_neither(
    monkeypatch: pytest.MonkeyPatch, unsettled: list[Any]
) -> None:
    shared = SimpleNamespace(scope=anyio.CancelScope())
    monkeypatch.setattr(sdk_line, "_entry", lambda context: shared)
    host = Host(hesitates=True)
    async with connected(host) as (session, server, _), ours(session) as durable:
        await durable.start_tool("tool")
        await server.ask(5, question())
        await host.prompted.wait()
        host.hesitates = False
        await server.ask(5, question(None, "the host's own"))
        assert content(await server.answer(5)) == {"name": "Ada"}
        assert not shared.scope.cancel_called
    assert not sdk_line._holders


@requirement("law:3")
async def test_of_a_question_that_comes_twice_one_is_answered() -> None:
    board, heard, ended = Switchboard(lambda board: lambda: None), list[JSONObject](), dict[int, Any]()
    peer = SimpleNamespace(creating=0, sees_to=lambda task_id: True, hear=heard.append)
    board.join(peer)

    async def asked(number: int) -> None:
        try:
            ended[number] = await board.answer_to({"id": 5, "params": question()})
        except AbandonedError:
            ended[number] = None

    async with anyio.create_task_group() as tasks:
        for number in (1, 2):
            tasks.start_soon(asked, number)
            await anyio.wait_all_tasks_blocked()
        assert ended == {1: None}
        assert board.answer(5, RESULT)
    assert ended == {1: None, 2: RESULT}
    assert len(heard) == 2, "and no withdrawal"


@requirement("law:3")
@pytest.mark.parametrize("ends", ["the session", "the question", "who knows"])
async def test_a_question_whose_session_ends_is_not_taken_back_by_that(ends: str) -> None:
    board, heard = Switchboard(lambda board: lambda: None), list[JSONObject]()
    board.join(SimpleNamespace(creating=0, sees_to=lambda task_id: True, hear=heard.append))
    scope = anyio.CancelScope()

    async def asked() -> None:
        with scope:
            await board.answer_to({"id": 5, "params": question()}, None if ends == "who knows" else scope)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asked)
        await anyio.wait_all_tasks_blocked()
        (scope if ends == "the question" else tasks.cancel_scope).cancel()
    assert len(heard) == (1 if ends == "the session" else 2)


@requirement("law:1", "law:3")
async def test_what_was_asked_before_the_hosts_session_ended_can_be_answered_by_another_process() -> None:
    host, journal, prompted = Host(), MemoryJournal(), anyio.Event()

    async def elicit(context: Any, params: Any) -> Any:
        prompted.set()
        await anyio.sleep_forever()

    host.elicit = elicit  # type: ignore[method-assign]  # a person who thinks
    with anyio.CancelScope() as everything:
        async with connected(host) as (session, server, _), ours(session, journal) as durable:
            await durable.start_tool("tool")
            server.replies["tasks/get"] = lambda params: task("input_required")
            await server.got("tasks/result")
            await server.ask(7, question())
            await prompted.wait()
            everything.cancel()
            await anyio.sleep_forever()
    async with journal:
        (record,) = await journal.records(Scope("hand", ""))
    assert isinstance(record.state, Observing)
    (asked,) = record.state.questions
    assert Memo.read(record.state.request_state).asked == {asked.key: [7]}


async def test_sessions_that_a_host_has_left_are_let_go_of() -> None:
    now: list[ClientSession | None] = [None]

    def current() -> ClientSession:
        assert now[0] is not None
        return now[0]

    session = HostSession(current, endpoint="hand", inputs=Callbacks())
    state: str | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session._older.watch, list[Task]().append)
        for _ in range(4):
            async with connected(Host()) as (now[0], _server, _tasks):
                if state is None:
                    created = await session.call(ToolCall(name="tool"))
                    assert isinstance(created, Created)
                    state = created.task.request_state
                state = (await session.get(TaskRef(TASK_ID, state, "2025-11-25"))).request_state
        assert len(session._older._peers._adopted) == 1
        tasks.cancel_scope.cancel()


@requirement("law:3")
async def test_what_comes_under_the_id_of_an_open_question_is_asked_though_somebody_still_thinks(
    unsettled: list[Any],
) -> None:
    host, real, prompted, withdrawn = Host(), Host().elicit, list[str](), list[str]()

    async def elicit(context: Any, params: Any) -> Any:
        prompted.append(params.message)
        if params.message == "A?":
            try:
                await anyio.sleep_forever()
            finally:
                withdrawn.append(params.message)
        return await real(context, params)

    host.elicit = elicit  # type: ignore[method-assign]  # to have one who never answers
    async with connected(host) as (session, server, _), ours(session) as durable:
        server.replies["tasks/get"] = lambda params: task("input_required")
        await durable.start_tool("tool")
        await server.got("tasks/result")
        await server.ask(5, question(message="A?"))
        while prompted != ["A?"]:
            await anyio.sleep(0.001)
        await server.ask(5, question(message="B?"))
        assert content(await server.answer(5)) == {"name": "Ada"}
        while unsettled:
            await anyio.sleep(0.001)
        assert server.count("an answer") == 1
    assert prompted == ["A?", "B?"]
    assert withdrawn == ["A?"]


@requirement("law:3", "2025:cancelled-is-gone")
@pytest.mark.parametrize("end", ["completed", "cancelled", "told by its result", "not found", "given up"])
async def test_what_a_task_that_is_over_has_asked_gets_no_answer_and_leaves_nothing_behind(
    unsettled: list[Any], end: str
) -> None:
    host = Host(hesitates=True)
    async with connected(host) as (session, server, _), ours(session) as durable:
        server.replies["tasks/get"] = lambda params: task("input_required")
        handle = await durable.start_tool("tool")
        await server.ask("q", question())
        await host.prompted.wait()
        assert unsettled
        if end == "told by its result":
            await server.got("tasks/result")
            await server.send({"id": server.held["tasks/result"], "result": RESULT})
        elif end == "given up":
            server.replies["tasks/cancel"] = lambda params: task("cancelled")
            server.replies["tasks/get"] = lambda params: HELD
            await handle.cancel()
        elif end == "not found":
            server.replies["tasks/get"] = lambda params: {
                "error": {"code": -32602, "message": "no such task"}
            }
        else:
            server.ends()
            server.replies["tasks/get"] = lambda params: task(end)
        while "q" in [context.request_id for context, _ in unsettled]:
            await anyio.sleep(0.001)
        await server.was_heard()
        assert "q" not in server.answers
        await server.ask("q", question("the host's own"))  # the session is as good as before
        host.hesitates = False
        assert content(await server.answer("q")) == {"name": "Ada"}


@requirement("law:3")
async def test_who_looks_at_a_task_last_is_asked_for_it() -> None:
    host, journal = Host(), MemoryJournal()
    async with connected(host) as (session, server, _), ours(session, journal) as first:
        with pytest.raises(WaitTimeoutError) as caught:
            await first.call_tool("tool", timeout=0.05)
        assert caught.value.handle is not None
        async with ours(session, journal) as second:
            await second.attach(caught.value.handle.reference)
            server.arrived.clear()
            await server.got("tasks/get")
            await server.ask("q", question())
            assert content(await server.answer("q")) == {"name": "Ada"}
    assert host.asked == ["Name?"]


async def test_a_question_for_a_task_of_the_hosts_waits_only_so_long_for_a_reply_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.switchboard._CREATION_S", 0.05)
    async with connected(Host()) as (session, server, tasks), ours(session) as durable:
        server.replies["tools/call"] = lambda params: HELD
        tasks.start_soon(durable.start_tool, "tool")
        await server.got("tools/call")
        await server.ask("theirs", question("a task that the host has made itself"))
        assert content(await server.answer("theirs")) == {"name": "Ada"}
        await server.send({"id": server.held["tools/call"], "result": {"task": task()}})
        await server.got("tasks/get")  # it has begun


@requirement("law:3")
async def test_an_answer_is_said_again_though_its_stream_was_given_up_in_good_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answering, "_AGAIN_S", 0.02)
    monkeypatch.setattr(retrievals, "SILENCE_S", 0.05)
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        server.replies["tasks/get"] = lambda params: task("input_required")
        await durable.start_tool("tool")
        await server.got("tasks/result")
        await server.ask("q", question())
        await server.until(lambda: server.count("tasks/result") > 3 and server.count("an answer") > 2)


@requirement("law:3", "2025:input-required")
async def test_a_wait_that_broke_is_taken_back_under_the_id_that_the_server_knows() -> None:
    """As over Streamable HTTP, where the SDK says by itself that there is no reply, and goes on."""
    lost = {"error": {"code": -32000, "message": "SSE stream ended without a response"}}
    replies = [lost]
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        server.replies["tasks/get"] = lambda params: task("input_required", pollInterval=60_000)
        server.replies["tasks/result"] = lambda params: replies.pop() if replies else HELD
        await durable.start_tool("tool")
        await server.until(lambda: server.count("tasks/result") == 2)
        (taken_back,) = [params for method, params in server.arrived if method == "notifications/cancelled"]
        assert taken_back["requestId"] == server.ids["tasks/result"][0]
        assert len(set(server.ids["tasks/result"])) == 2


@requirement("law:10")
async def test_a_poll_that_nobody_waits_for_any_more_is_not_taken_back_and_the_hosts_requests_are() -> None:
    """One official server ends the session by what is taken back just as it is answered."""
    async with connected(Host()) as (session, server, tasks), ours(session) as durable:
        server.replies["tasks/get"] = lambda params: HELD
        tasks.start_soon(session.send_ping)
        handle = await durable.start_tool("tool")
        await server.tell("completed")
        await server.got("tasks/result")
        await server.got("tasks/get")
        await server.send({"id": server.held["tasks/result"], "result": RESULT})
        assert (await handle.result()).content
        server.replies["ping"] = lambda params: HELD
        with anyio.move_on_after(0.01):
            await session.send_ping()
        await server.was_heard()
        taken_back = [params for method, params in server.arrived if method == "notifications/cancelled"]
        assert [one["requestId"] for one in taken_back] == [server.held["ping"]]


@requirement("law:10")
async def test_a_result_that_nobody_waits_for_any_more_is_not_taken_back() -> None:
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        server.replies["tasks/get"] = lambda params: task("completed")
        handle = await durable.start_tool("tool")
        await server.tell("completed")
        await server.until(lambda: server.count("tasks/result") == 2)  # what waits, and the poll's own
        waits = durable._engine._session._older._hearing.retrievals.request_id(TASK_ID)  # type: ignore[attr-defined]
        await server.send({"id": waits, "result": RESULT})
        assert (await handle.result()).content
        await server.was_heard()
        assert server.count("notifications/cancelled") == 0


@requirement("law:8")
async def test_over_a_hosts_session_too_nothing_begins_to_wait_once_a_client_is_closed() -> None:
    async with connected(Host()) as (session, _, _):
        async with ours(session) as durable:
            host_session = durable._engine._session
            assert isinstance(host_session, HostSession)
        assert not host_session._older._hearing.retrievals.may_begin(TASK_ID)


@requirement("law:3", "law:8")
@pytest.mark.parametrize("method", ["tools/call", "tasks/result"])
async def test_of_a_call_or_a_wait_that_is_given_up_the_server_is_told(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.retrievals._HEARD_ON_S", 0.0)
    async with connected(Host()) as (session, server, _):
        async with ours(session, poll=replace(QUICK, call_grace_s=0.01)) as durable:
            server.replies["tasks/get"] = lambda params: task("input_required")
            server.replies[method] = lambda params: HELD
            with anyio.CancelScope() as waiting:
                async with anyio.create_task_group() as calls:
                    calls.start_soon(durable.call_tool, "tool")
                    await server.got(method)
                    waiting.cancel()
            await server.got("notifications/cancelled")
        taken_back = [params for name, params in server.arrived if name == "notifications/cancelled"]
        assert server.held[method] in [one["requestId"] for one in taken_back]


async def test_of_a_session_that_the_host_has_no_more_nothing_is_kept() -> None:
    async with connected(Host()) as (one, _, _), connected(Host()) as (other, _, _):
        now = [one]
        session = HostSession(lambda: now[0], endpoint="hand", inputs=Callbacks())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session._older.watch, list[Task]().append)
            assert isinstance(await session.call(ToolCall(name="tool")), Created)
            await anyio.wait_all_tasks_blocked()
            streams = session._older._hearing.streams._peers
            (before,) = streams
            now[0] = other
            assert isinstance(await session.call(ToolCall(name="tool")), Created), "it asks for one here too"
            here = now.pop()  # neither is there a connection while the host makes another one
            while before in streams:
                await anyio.sleep(0.01)
            now.append(here)
            assert len(streams) == 1
            tasks.cancel_scope.cancel()
        await session.aclose()


class StuckLine(Line):
    """A session that takes no second answer."""

    is_up = True
    introduction: JSONObject = {}  # noqa: RUF012  # nothing is written to it

    def __init__(self) -> None:
        self.board = Switchboard(lambda board: lambda: None)

    async def send(self, *request: Any) -> JSONObject:
        return task()

    async def say_again(self, request_id: RequestId, answer: JSONObject | RpcError) -> None:
        await anyio.sleep_forever()


async def test_what_cannot_be_said_again_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.switchboard._MOST_ANSWERED", 2)
    line = StuckLine()
    peer = HostPeer(line, lambda peer, message: None)
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            await peer.request("tasks/get", {}, LIMIT_S, task_id=TASK_ID)
            for number in range(3):
                asked = {"id": number, "method": "elicitation/create", "params": question()}
                tasks.start_soon(line.board.answer_to, asked)
                await anyio.wait_all_tasks_blocked()
                await peer.answer(number, {}, LIMIT_S)
        await peer.answer(2, {}, 0.01)
    assert [line.board.was_answered(number) for number in range(3)] == [False, True, True], "of the latest"


async def test_without_the_sdks_hook_polls_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk_line, "_HOOK", "_a_hook_that_there_is_not")
    host = Host()
    async with connected(host) as (session, server, _), ours(session) as durable:
        handle = await durable.start_tool("tool")
        await server.ask("q", question())
        await server.answer("q")
        server.ends()
        assert (await handle.result()).content


async def test_what_is_told_still_reaches_the_host() -> None:
    told: list[Any] = []

    async with connected(Host()) as (session, server, _), ours(session) as durable:
        hook: Any = session._dispatcher

        def before(method: str, params: Any) -> bool:
            told.append(method)
            return False

        hook._on_notify_intercept = before
        await durable.start_tool("tool")
        await server.send({"method": "notifications/message", "params": {"level": "info", "data": 1}})
        await server.was_heard()
        assert told == ["notifications/message"]


USUAL: Final = [
    (-32600, "Session terminated"),
    (-32600, "Session not found"),
    (-32001, "Session not found"),
]
DENIALS: Final = [
    *USUAL,
    (-32000, "Bad Request: No valid session ID provided"),
    (-32600, "Unknown session"),
]


@pytest.mark.parametrize(("code", "said"), DENIALS)
async def test_a_session_that_has_ended_is_no_error_of_the_tools(code: int, said: str) -> None:
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        handle = await durable.start_tool("tool")
        denial = {"error": {"code": code, "message": said}}
        server.replies |= dict.fromkeys(("tasks/get", "tools/call", "ping"), lambda params: denial)
        with pytest.raises(ConnectionLostError, match="ended the session"):
            await handle.result()
        with pytest.raises(ConnectionLostError, match="ended the session") as unknown:
            await durable.call_tool("tool")
        assert unknown.value.not_executed == (said == "Session terminated")


@requirement("law:7")
@pytest.mark.parametrize(("code", "said"), USUAL)
async def test_what_one_replica_says_does_not_end_a_session(code: int, said: str) -> None:
    denial = {"error": {"code": code, "message": said}}
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        handle = await durable.start_tool("tool")
        polls, ends = [task(), denial, task(), denial], [RESULT, denial]
        server.replies["tasks/get"] = lambda params: polls.pop() if polls else task("completed")
        server.replies["tasks/result"] = lambda params: ends.pop()
        assert (await handle.result()).content[0].text == "done"
        assert server.count("ping") == 3
        server.replies["tools/call"] = lambda params: denial
        with pytest.raises(ConnectionLostError) as refused:
            await durable.call_tool("tool")
        assert refused.value.retryable
        assert not refused.value.not_executed, "a tool may have said it"


@requirement("law:6", "law:7")
@pytest.mark.parametrize(("code", "said"), USUAL)
async def test_what_one_replica_says_is_not_how_a_task_has_failed(code: int, said: str) -> None:
    denial = {"error": {"code": code, "message": said}}
    replies = [{**RESULT, "isError": True}, denial, denial]
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        handle = await durable.start_tool("tool")
        server.replies["tasks/get"] = lambda params: task("failed")
        server.replies["tasks/result"] = lambda params: replies.pop()
        assert (await handle.result()).is_error


@pytest.mark.parametrize(
    ("version", "code", "said", "ended"),
    [
        ("2025-06-18", -32001, "Session not found", True),
        ("2026-07-28", -32001, "Session not found", False),
        ("2026-07-28", -32600, "Session terminated", True),
        ("2026-07-28", -32000, "Session terminated", False),
        ("2025-06-18", -32000, "Invalid session token", False),
    ],
)
def test_only_the_sdks_very_words_deny_a_session_where_nobody_asks_again(
    version: str, code: int, said: str, ended: bool
) -> None:
    async def call() -> None:
        session: Any = SimpleNamespace(protocol_version=version)
        with mapped(Faults("tools/call"), session):
            raise MCPError(code, said)

    with pytest.raises(SessionError) as raised:
        anyio.run(call)
    assert isinstance(raised.value, ConnectionLostError) is ended
    assert raised.value.not_executed is (code == -32600)
    assert raised.value.code == (None if ended else code)


@requirement("law:7")
@pytest.mark.parametrize("said", ["Session terminated", "Unknown session for this task"])
async def test_what_is_refused_for_good_in_such_words_is_refused(said: str) -> None:
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        handle = await durable.start_tool("tool")
        server.replies["tasks/get"] = lambda params: task("failed")
        server.replies["tasks/result"] = lambda params: {"error": {"code": -32600, "message": said}}
        with pytest.raises(TaskFailedError):
            await handle.result()
        handle = await durable.start_tool("tool")
        server.replies["tasks/get"] = lambda params: {"error": {"code": -32600, "message": "Unknown session"}}
        with pytest.raises(SessionError) as refused:
            await handle.result()
        assert refused.value.code == -32600


async def test_a_call_that_was_not_sent_goes_over_the_session_that_the_host_has_by_now() -> None:
    async with connected(Host()) as (session, server, _):
        peer = HostPeer(SdkLine(lambda: session), lambda peer, message: None)
        peer.leave()
        with pytest.raises(ConnectionLostError) as unsent:
            await peer.request("tools/call", {}, LIMIT_S)
        assert peer.denied(unsent.value)
        assert not peer.denied(SessionError("no", code=-32602, not_executed=True))
        assert server.count("tools/call") == 0


@pytest.mark.parametrize("said", ["Browser session expired", "Session not found"])
async def test_a_tool_may_say_of_sessions_of_its_own_that_there_is_none(said: str) -> None:
    denial = {"error": {"code": -32001, "message": said}}
    async with connected(Host()) as (session, server, _), ours(session) as durable:
        handle = await durable.start_tool("tool")
        server.replies["tasks/get"] = lambda params: task("failed")
        server.replies["tasks/result"] = lambda params: denial
        with pytest.raises(TaskFailedError) as failed:
            await handle.result()
        assert (failed.value.code, failed.value.message) == (-32001, said)


async def test_a_request_that_is_not_waited_for_any_more_is_forgotten() -> None:
    async with connected(Host()) as (session, _, _tasks):
        heard: list[JSONObject] = []
        peer = HostPeer(SdkLine(lambda: session), lambda peer, message: heard.append(message))
        with pytest.raises(ConnectionLostError):
            await peer.answer(7, {}, LIMIT_S)
        assert heard == [{"method": "notifications/cancelled", "params": {"requestId": 7}}]
        asked, form = Asked[HostPeer](), question()
        asked.add(peer, 7, "elicitation/create", form)
        ((key, whole),) = asked.questions().items()
        asked.withdraw(peer, 7)
        asked.restore(peer, key, [7], whole)
        assert not asked.open
        asked.restore(peer, key, [8], whole)
        assert asked.open
        peer.leave()


async def test_nothing_is_sent_over_a_connection_that_the_host_has_left() -> None:
    async with connected(Host()) as (first, server, _), connected(Host()) as (second, _, _more):
        now = [first]
        peer = HostPeer(SdkLine(lambda: now[0]), lambda *heard: None)
        now[0] = second
        with pytest.raises(ConnectionLostError) as lost:
            await peer.request("tools/call", {"name": "tool"}, LIMIT_S)
        assert lost.value.retryable
        assert lost.value.not_executed
        assert "tools/call" not in [method for method, _ in server.arrived]
        peer.leave()


async def test_who_sees_to_a_task_does_so_until_it_is_over() -> None:
    async with connected(Host()) as (session, server, _):
        peer = HostPeer(SdkLine(lambda: session), lambda *heard: None)
        await peer.request("tasks/get", {"taskId": TASK_ID}, LIMIT_S, task_id=TASK_ID)
        assert peer.sees_to(TASK_ID)
        server.ends()
        await peer.request("tasks/get", {"taskId": TASK_ID}, LIMIT_S, task_id=TASK_ID)
        assert not peer.sees_to(TASK_ID)
        peer.leave()


async def test_what_is_kept_of_tasks_that_were_let_go_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.host_peer._MOST_TASKS", 2)
    async with connected(Host()) as (session, _, _):
        peer = HostPeer(SdkLine(lambda: session), lambda *heard: None)
        for task_id in ("1", "2", "3"):
            await peer.request("tasks/get", {"taskId": task_id}, LIMIT_S, task_id=task_id)
        assert [peer.sees_to(task_id) for task_id in ("1", "2", "3")] == [False, True, True]
        peer.leave()


async def test_a_lost_task_is_looked_for_in_its_own_session_alone() -> None:
    async with connected(Host()) as (first, its, _tasks), connected(Host()) as (second, server, _more):
        now = [first]
        session = HostSession(lambda: now[0], endpoint="hand", inputs=Callbacks())
        memo = await session.before_call()
        assert memo is not None
        assert not await session.created_since(memo, 0.0), "it bears the time-to-live of another call"
        its.replies["tasks/list"] = lambda params: {"tasks": [task(ttl=Memo.read(memo).ttl_ms)]}
        assert [one.task.task_id for one in await session.created_since(memo, 0.0)] == [TASK_ID]
        now[0] = second
        assert not await session.created_since(memo, 0.0)
        assert "tasks/list" not in [method for method, _ in server.arrived]
        await session.aclose()


@requirement("law:3")
@pytest.mark.parametrize(
    ("spoken", "made_in", "singly"),
    [("2025-11-25", "2025-11-25", True), ("2025-11-25", "", True), ("2026-07-28", "2026-07-28", False)],
)
async def test_answers_wait_for_each_other_only_where_the_server_may_want_them_together(
    spoken: str, made_in: str, singly: bool
) -> None:
    its: Any = SimpleNamespace(protocol_version=spoken)
    session = HostSession(lambda: its, endpoint="hand", inputs=Callbacks())
    assert session.takes_each_answer(TaskRef(TASK_ID, generation=made_in)) == singly


async def test_after_an_upgrade_of_the_server_it_is_said_that_the_task_is_out_of_reach() -> None:
    upgraded: Any = SimpleNamespace(protocol_version="2026-07-28")
    session = HostSession(lambda: upgraded, endpoint="hand", inputs=Callbacks())
    with pytest.raises(RemoteProtocolError, match="upgraded"):
        await session.get(TaskRef(TASK_ID, generation="2025-11-25"))


async def test_another_connection_is_noticed_by_the_next_request() -> None:
    async with connected(Host()) as (first, _, _tasks), connected(Host()) as (second, server, _more):
        now = [first]
        session = HostSession(lambda: now[0], endpoint="hand", inputs=Callbacks())
        ref = TaskRef(TASK_ID, generation="2025-11-25")
        assert (await session.get(ref)).status == "working"
        now[0] = second
        assert (await session.get(ref)).status == "working"
        assert "tasks/get" in [method for method, _ in server.arrived]
        await session.aclose()
        for one in (first, second):
            assert one._elicitation_callback.__qualname__.startswith("Host.")  # type: ignore[attr-defined]  # a method
