"""The servers of the generation before extensions do what tests of a client need of them.

Nothing of the client is here: a client written by hand speaks to them.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
import httpx
import pytest
from anyio.abc import Process, TaskGroup, TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream
from httpx_sse import EventSource

from tests.legacy_servers import LegacyProgram, LegacyServer

pytestmark = pytest.mark.anyio

JSONObject: TypeAlias = dict[str, Any]
Answers: TypeAlias = dict[str, Callable[[JSONObject], JSONObject]]

LIMIT_S: Final = 20.0
RELATED: Final = "io.modelcontextprotocol/related-task"
IMMEDIATE: Final = "io.modelcontextprotocol/model-immediate-response"
CLIENT: Final = {"name": "bare", "version": "1"}
CAPABILITIES: Final[JSONObject] = {
    "elicitation": {"form": {}},
    "sampling": {},
    "tasks": {
        "list": {},
        "cancel": {},
        "requests": {"elicitation": {"create": {}}, "sampling": {"createMessage": {}}},
    },
}
SUPPORT: Final = {
    "plain": "forbidden",
    "slow": "optional",
    "must": "required",
    "fails": "required",
    "asks": "required",
    "asks_twice": "required",
    "asks_in_branches": "required",
    "samples": "required",
    "progresses": "required",
    "immediate": "required",
    "crashes": "required",
    "asks_as_task": "forbidden",
    "samples_as_task": "forbidden",
    "asks_as_task_inside": "required",
    "samples_as_task_inside": "required",
}


@pytest.fixture
def anyio_backend() -> str:
    """One event loop is enough, as what is tested is in other processes."""
    return "asyncio"


@pytest.fixture(autouse=True)
async def limit() -> AsyncIterator[None]:
    with anyio.fail_after(LIMIT_S):
        yield


class Refused(Exception):  # noqa: N818  # a reply
    """A JSON-RPC error."""

    def __init__(self, error: JSONObject) -> None:
        super().__init__(error["message"])
        self.code = error["code"]


class Unanswered(Exception):  # noqa: N818  # likewise
    """A stream that ended without the response."""


@dataclass
class Bare:
    """A client by hand.

    Attributes:
        answers: What it answers to the server's requests, by method.
        came: What the server sent besides responses: the stream on which it came, and the message.
            A stream is named by the method of the request to which it belongs; the session's is ``"GET"``.
        server: What ``initialize`` gave.
    """

    http: httpx.AsyncClient
    url: str
    group: TaskGroup
    answers: Answers = field(default_factory=dict)
    came: list[tuple[str, JSONObject]] = field(default_factory=list)
    session_id: str | None = None
    server: JSONObject = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=count)

    @property
    def headers(self) -> dict[str, str]:
        session = {"Mcp-Session-Id": self.session_id} if self.session_id else {}
        accept = "application/json, text/event-stream"
        return {"Accept": accept, "MCP-Protocol-Version": "2025-11-25", **session}

    async def initialize(self, capabilities: JSONObject) -> None:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": CLIENT,
        }
        self.server = await self.request("initialize", params)
        await self.post({"method": "notifications/initialized"})

    async def request(self, method: str, params: JSONObject | None = None) -> JSONObject:
        """The result of a request, of which the server may ask something meanwhile."""
        message = {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": params or {}}
        async with self.http.stream("POST", self.url, json=message, headers=self.headers) as response:
            self.session_id = response.headers.get("mcp-session-id", self.session_id)
            async for received in messages(response):
                if "method" not in received:
                    if "error" in received:
                        raise Refused(received["error"])
                    assert received["id"] == message["id"]
                    return dict(received["result"])
                self.took(method, received)
        raise Unanswered(method)

    async def listen(self, *, task_status: TaskStatus[None]) -> None:
        """The session's own stream."""
        # A server that dies, or its session, closes it in the middle.
        with suppress(httpx.RemoteProtocolError):
            async with self.http.stream("GET", self.url, headers=self.headers) as response:
                task_status.started()
                async for received in messages(response):
                    self.took("GET", received)

    def took(self, stream: str, received: JSONObject) -> None:
        self.came.append((stream, received))
        if "id" in received:
            result = self.answers[received["method"]](received.get("params", {}))
            self.group.start_soon(self.post, {"id": received["id"], "result": result})

    async def post(self, message: JSONObject) -> None:
        reply = await self.http.post(self.url, json={"jsonrpc": "2.0", **message}, headers=self.headers)
        assert reply.status_code == 202, reply.text

    async def call(self, tool: str, **arguments: Any) -> JSONObject:
        return await self.request("tools/call", {"name": tool, "arguments": arguments})

    async def create(self, tool: str, token: str | None = None, **arguments: Any) -> JSONObject:
        """The result of a call that makes a task."""
        meta = {"_meta": {"progressToken": token}} if token else {}
        params = {"name": tool, "arguments": arguments, "task": {"ttl": 60_000}, **meta}
        return await self.request("tools/call", params)

    async def start(self, tool: str, **arguments: Any) -> str:
        """The ID of the task that a call makes."""
        return str((await self.create(tool, **arguments))["task"]["taskId"])

    async def task(self, method: str, task_id: str) -> JSONObject:
        return await self.request(f"tasks/{method}", {"taskId": task_id})

    async def text(self, task_id: str) -> str:
        """The text of the result, for which the server waits."""
        result = await self.task("result", task_id)
        assert result["_meta"][RELATED] == {"taskId": task_id}
        return str(result["content"][0]["text"])

    async def ended(self, task_id: str) -> JSONObject:
        """The task after its end."""
        while True:
            task = await self.task("get", task_id)
            if task["status"] not in ("working", "input_required"):
                return task
            await anyio.sleep(task["pollInterval"] / 1000)


async def messages(response: httpx.Response) -> AsyncIterator[JSONObject]:
    if response.headers["content-type"].startswith("text/event-stream"):
        async for event in EventSource(response).aiter_sse():
            if event.data:
                yield json.loads(event.data)
    else:
        yield json.loads(await response.aread())


@asynccontextmanager
async def connected(
    server: LegacyServer, answers: Answers | None = None, capabilities: JSONObject = CAPABILITIES
) -> AsyncIterator[Bare]:
    """A client with a session of its own, and its stream."""
    async with (
        httpx.AsyncClient(trust_env=False, verify=False, timeout=LIMIT_S) as http,
        anyio.create_task_group() as group,
    ):
        client = Bare(http, server.url, group, answers or {})
        await client.initialize(capabilities)
        await group.start(client.listen)
        yield client
        group.cancel_scope.cancel()


@dataclass
class Receiver:
    """What a client answers that has tasks itself: they end at the second poll.

    Attributes:
        result: Of each of its tasks.
    """

    result: JSONObject
    tasks: dict[str, JSONObject] = field(default_factory=dict)

    @property
    def answers(self) -> Answers:
        return {
            "elicitation/create": self.create,
            "sampling/createMessage": self.create,
            "tasks/get": self.get,
            "tasks/result": self.end,
            "tasks/list": lambda params: {"tasks": [*self.tasks.values()]},
            "tasks/cancel": self.cancel,
        }

    def create(self, params: JSONObject) -> JSONObject:
        task = {
            "taskId": f"of-the-client-{len(self.tasks)}",
            "status": "working",
            "createdAt": "2025-11-25T00:00:00Z",
            "lastUpdatedAt": "2025-11-25T00:00:00Z",
            "ttl": params["task"].get("ttl"),
            "pollInterval": 10,
        }
        self.tasks[task["taskId"]] = task
        return {"task": {**task}}

    def get(self, params: JSONObject) -> JSONObject:
        task = self.tasks[params["taskId"]]
        seen = {**task}
        if task["status"] == "working":
            task["status"] = "completed"
        return seen

    def end(self, params: JSONObject) -> JSONObject:
        return {**self.result, "_meta": {RELATED: {"taskId": params["taskId"]}}}

    def cancel(self, params: JSONObject) -> JSONObject:
        self.tasks[params["taskId"]]["status"] = "cancelled"
        return self.tasks[params["taskId"]]


def with_name(name: str) -> Callable[[JSONObject], JSONObject]:
    """Accepts a form, with the task's mark where there is one."""

    def accept(params: JSONObject) -> JSONObject:
        mark = {key: value for key, value in params.get("_meta", {}).items() if key == RELATED}
        return {"action": "accept", "content": {"name": name}, "_meta": mark}

    return accept


def said_by_model(params: JSONObject) -> JSONObject:
    return {"role": "assistant", "model": "m", "content": {"type": "text", "text": "4"}}


# ── tools and tasks ──


async def test_it_declares_tasks_and_which_tools_make_them(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        tools = (await client.request("tools/list"))["tools"]
        assert client.session_id
        assert client.server["protocolVersion"] == "2025-11-25"
        assert client.server["capabilities"]["tasks"] == {
            "list": {},
            "cancel": {},
            "requests": {"tools": {"call": {}}},
        }
    supports = {tool["name"]: tool.get("execution", {}).get("taskSupport", "forbidden") for tool in tools}
    assert supports == SUPPORT


async def test_a_task_runs_to_its_end_and_its_result_can_be_had_twice(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        created = (await client.create("must", n=3, hint_ms=20))["task"]
        assert (created["status"], created["ttl"], created["pollInterval"]) == ("working", 60_000, 20)
        assert (await client.ended(created["taskId"]))["status"] == "completed"
        for _ in range(2):
            result = await client.task("result", created["taskId"])
            assert result["structuredContent"] == {"n": 3}


async def test_a_result_is_waited_for(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        task_id = await client.start("slow", duration_ms=100)
        assert (await client.task("get", task_id))["status"] == "working"
        assert await client.text(task_id) == "rested"
        assert (await client.task("get", task_id))["status"] == "completed"


async def test_a_result_can_be_waited_for_twice_at_once(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        task_id = await client.start("slow", duration_ms=100)
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(client.text, task_id)
            waiting.start_soon(client.text, task_id)


async def test_a_task_can_be_forgotten_while_its_result_is_waited_for(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        task_id = await client.start("slow", duration_ms=10_000, ttl_ms=50)
        with pytest.raises(Refused) as refused:
            await client.task("result", task_id)
        assert refused.value.code == -32602


async def test_without_a_task_a_tool_answers_itself_unless_it_needs_one(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        assert (await client.call("plain"))["content"][0]["text"] == "plain"
        assert (await client.call("slow"))["content"][0]["text"] == "rested"
        assert (await client.call("must"))["isError"]


async def test_a_task_can_be_over_at_its_creation(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        created = (await client.create("slow", finish_first=True, duration_ms=1))["task"]
        assert created["status"] == "completed"
        assert await client.text(created["taskId"]) == "rested"


async def test_a_creation_can_say_something_to_the_model(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        assert "result comes later" in (await client.create("immediate"))["_meta"][IMMEDIATE]


async def test_a_task_can_be_forgotten(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        created = (await client.create("slow", duration_ms=1, ttl_ms=50))["task"]
        assert created["ttl"] == 50
        assert (await refusal(lambda: client.task("get", created["taskId"]))).code == -32602


async def refusal(request: Callable[[], Awaitable[Any]]) -> Refused:
    """The first error that comes of a request sent again and again."""
    while True:
        try:
            await request()
        except (Unanswered, httpx.RemoteProtocolError):
            continue  # the session has died under it
        except Refused as refused:
            return refused


@pytest.mark.parametrize(
    ("how", "status", "message"),
    [
        ("message", "failed", "quota exceeded"),
        ("result", "failed", "the tool failed"),
        ("completed", "completed", None),
    ],
)
async def test_a_task_can_fail_in_three_ways(
    legacy_server: LegacyServer, how: str, status: str, message: str | None
) -> None:
    async with connected(legacy_server) as client:
        task = await client.ended(await client.start("fails", how=how))
        assert (task["status"], task.get("statusMessage")) == (status, message)
        if how != "message":
            result = await client.task("result", task["taskId"])
            assert result["isError"]
            assert result["content"][0]["text"] == "the tool said no"
        elif legacy_server.kind == "python":
            assert await client.task("result", task["taskId"]) == {
                "_meta": {RELATED: {"taskId": task["taskId"]}}
            }
        else:
            with pytest.raises(Refused, match="has no result stored"):
                await client.task("result", task["taskId"])


async def test_tasks_are_listed(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        started = [await client.start("slow", duration_ms=1) for _ in range(12)]
        listed, cursor = [], None
        while True:
            page = await client.request("tasks/list", {"cursor": cursor} if cursor else {})
            listed += [task["taskId"] for task in page["tasks"]]
            if (cursor := page.get("nextCursor")) is None:
                break
        assert listed == started


async def test_a_task_is_cancelled_once(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        task_id = await client.start("slow", duration_ms=50)
        assert (await client.task("cancel", task_id))["status"] == "cancelled"
        with pytest.raises(Refused) as refusal:
            await client.task("cancel", task_id)
        assert refusal.value.code == -32602
        await client.text(
            await client.start("slow", duration_ms=100)
        )  # the work of the other has ended meanwhile
        assert (await client.task("get", task_id))["status"] == "cancelled"


@pytest.mark.parametrize("method", ["get", "result", "cancel"])
async def test_an_unknown_task_is_refused(legacy_server: LegacyServer, method: str) -> None:
    async with connected(legacy_server) as client:
        with pytest.raises(Refused) as refusal:
            await client.task(method, "unknown")
        assert refusal.value.code == -32602


# ── what a task asks and says ──


async def test_a_question_comes_on_the_stream_of_the_result(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server, {"elicitation/create": with_name("Ada")}) as client:
        task_id = await client.start("asks")
        while (await client.task("get", task_id))["status"] != "input_required":
            await anyio.lowlevel.checkpoint()
        assert await client.text(task_id) == "Hello, Ada"
        [(stream, question)] = [(stream, sent) for stream, sent in client.came if "id" in sent]
        assert stream == "tasks/result"
        assert question["params"]["_meta"][RELATED] == {"taskId": task_id}
        assert isinstance(question["id"], str if legacy_server.kind == "python" else int)


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_question_can_go_unanswered(legacy_server: LegacyServer, action: str) -> None:
    async with connected(legacy_server, {"elicitation/create": lambda params: {"action": action}}) as client:
        said = {"decline": "declined", "cancel": "cancelled"}[action]
        assert await client.text(await client.start("asks")) == f"Hello, {said}"


@pytest.mark.parametrize("together", [True, False])
async def test_a_task_asks_twice(legacy_server: LegacyServer, together: bool) -> None:
    asked: list[str] = []

    def answer(params: JSONObject) -> JSONObject:
        pet = "cat" if "cat" in params["message"] else "dog"
        asked.append(pet)
        return with_name({"cat": "Tom", "dog": "Rex"}[pet])(params)

    async with connected(legacy_server, {"elicitation/create": answer}) as client:
        assert await client.text(await client.start("asks_twice", together=together)) == "Tom and Rex"
    assert asked == ["cat", "dog"]


@pytest.mark.parametrize("stagger_ms", [0, 20])
async def test_a_task_asks_in_branches(legacy_server: LegacyServer, stagger_ms: int) -> None:
    asked: list[str] = []

    def answer(params: JSONObject) -> JSONObject:
        asked.append(params["message"].rstrip("?").split()[-1])
        return with_name(asked[-1])(params)

    async with connected(legacy_server, {"elicitation/create": answer}) as client:
        task_id = await client.start("asks_in_branches", stagger_ms=stagger_ms, duration_ms=50)
        assert await client.text(task_id) == "cat, kitten and dog"
    assert asked == ["cat", "dog", "kitten"]


async def test_a_task_has_the_model_asked(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server, {"sampling/createMessage": said_by_model}) as client:
        assert await client.text(await client.start("samples")) == "4"


@pytest.mark.parametrize(("where", "stream"), [("session", "GET"), ("result", "tasks/result")])
async def test_progress_comes_on_either_stream(legacy_server: LegacyServer, where: str, stream: str) -> None:
    async with connected(legacy_server) as client:
        created = (await client.create("progresses", token="mine", where=where, duration_ms=1))["task"]
        assert await client.text(created["taskId"]) == "progressed"
        while len(progress := sent(client, "notifications/progress")) < 3:
            await anyio.lowlevel.checkpoint()
    assert [where for where, _ in progress] == [stream] * 3
    assert [params["progress"] for _, params in progress] == [1, 2, 3]
    assert {params["progressToken"] for _, params in progress} == {"mine"}


async def test_the_status_of_a_task_is_told_on_the_stream_of_the_session(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        task_id = await client.start("slow")
        while len(told := sent(client, "notifications/tasks/status")) < 2:
            await anyio.lowlevel.checkpoint()
    assert [stream for stream, _ in told] == ["GET", "GET"]
    assert [params["status"] for _, params in told] == ["working", "completed"]
    assert {params["taskId"] for _, params in told} == {task_id}


async def test_a_status_changes_with_what_a_task_asks(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server, {"elicitation/create": with_name("Ada")}) as client:
        await client.text(await client.start("asks_twice"))
        statuses: list[str] = []
        while "completed" not in statuses:
            await anyio.lowlevel.checkpoint()
            statuses = [params["status"] for _, params in sent(client, "notifications/tasks/status")]
    told = {"python": ["completed"], "node": ["input_required", "input_required", "working", "completed"]}
    assert statuses == told[legacy_server.kind]


def sent(client: Bare, method: str) -> list[tuple[str, JSONObject]]:
    return [(stream, message["params"]) for stream, message in client.came if message["method"] == method]


# ── the client as the one who has tasks ──


NAMED: Final = {"action": "accept", "content": {"name": "Ada"}}
FOUR: Final = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "4"}}


@pytest.mark.parametrize(("tool", "result"), [("asks_as_task", NAMED), ("samples_as_task", FOUR)])
async def test_it_follows_a_task_of_the_clients_to_its_end(
    legacy_server: LegacyServer, tool: str, result: JSONObject
) -> None:
    receiver = Receiver(result)
    async with connected(legacy_server, receiver.answers) as client:
        told = (await client.call(tool, list=True, ttl_ms=5_000))["structuredContent"]
        methods = [message["method"] for _, message in client.came]
    assert told["created"]["ttl"] == 5_000
    assert [task["taskId"] for task in told["listed"]] == [*receiver.tasks]
    assert told["polled"] == ["working", "completed"]
    assert {**told["result"], **result} == told["result"]
    assert methods[1:] == ["tasks/list", "tasks/get", "tasks/get", "tasks/result"]


@pytest.mark.parametrize(("tool", "result"), [("asks_as_task", NAMED), ("samples_as_task", FOUR)])
async def test_it_cancels_a_task_of_the_clients(
    legacy_server: LegacyServer, tool: str, result: JSONObject
) -> None:
    receiver = Receiver(result)
    async with connected(legacy_server, receiver.answers) as client:
        told = (await client.call(tool, cancel=True))["structuredContent"]
    assert told["cancelled"]["status"] == "cancelled"
    assert told["polled"] == ["cancelled"]


@pytest.mark.parametrize(
    ("tool", "result"), [("asks_as_task_inside", NAMED), ("samples_as_task_inside", FOUR)]
)
async def test_it_follows_a_task_of_the_clients_from_inside_one_of_its_own(
    legacy_server: LegacyServer, tool: str, result: JSONObject
) -> None:
    receiver = Receiver(result)
    async with connected(legacy_server, receiver.answers) as client:
        task_id = await client.start(tool)
        told = (await client.task("result", task_id))["structuredContent"]
        stream, question = next((stream, sent) for stream, sent in client.came if "id" in sent)
    assert {**told["result"], **result} == told["result"]
    assert stream == "tasks/result"
    assert question["params"]["_meta"][RELATED] == {"taskId": task_id}
    assert question["params"]["task"] == {"ttl": 60_000}


# ── sessions and processes ──


async def test_a_task_is_its_sessions_alone(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as owner, connected(legacy_server) as other:
        task_id = await owner.start("slow", duration_ms=100)
        with pytest.raises(Refused) as refusal:
            await other.task("get", task_id)
        assert refusal.value.code == -32602
        assert (await other.request("tasks/list"))["tasks"] == []

        assert (await other.http.delete(other.url, headers=other.headers)).status_code == 200
        assert await owner.text(task_id) == "rested"
        assert await owner.text(await owner.start("slow")) == "rested"


async def test_a_lost_session_is_not_found(legacy_server: LegacyServer) -> None:
    async with connected(legacy_server) as client:
        await client.http.delete(client.url, headers=client.headers)
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await client.http.post(client.url, json=ping, headers=client.headers)).status_code == 404


async def test_what_arrived_can_be_seen(legacy_server: LegacyServer) -> None:
    before = time.monotonic()
    async with connected(legacy_server, {"elicitation/create": with_name("Ada")}) as client:
        task_id = await client.start("asks")
        await client.text(task_id)
        seen = legacy_server.witness(session_id=client.session_id)
        [began] = [entry for entry in legacy_server.witness("initialize") if entry.at >= before]
    assert (began.verb, began.session_id) == ("POST", None)
    assert [(entry.verb, entry.method) for entry in seen] == [
        ("POST", "notifications/initialized"),
        ("GET", None),
        ("POST", "tools/call"),
        ("POST", "tasks/result"),
        ("POST", None),
    ]
    *_, call, wait, answer = seen
    [(_, question)] = [(stream, message) for stream, message in client.came if "id" in message]
    assert wait.params == {"taskId": task_id}
    assert answer.result == with_name("Ada")({"_meta": {RELATED: {"taskId": task_id}}})
    assert (call.id, wait.id, answer.id) == (1, 2, question["id"])
    assert answer.http_status == 202
    assert before <= call.at <= wait.at <= answer.at <= time.monotonic()


async def test_a_server_can_answer_in_json(legacy_program: LegacyProgram, tmp_path: Path) -> None:
    with legacy_program.listening(tmp_path / "stderr.log", "--json-response") as server:
        async with connected(server) as client:
            ping = {"jsonrpc": "2.0", "id": "a", "method": "ping"}
            reply = await client.http.post(server.url, json=ping, headers=client.headers)
            assert reply.headers["content-type"].startswith("application/json")
            assert await client.text(await client.start("slow")) == "rested"


async def test_a_server_can_crash(legacy_program: LegacyProgram, tmp_path: Path) -> None:
    with legacy_program.listening(tmp_path / "stderr.log", "--poll-interval-ms", "10") as server:
        async with (
            httpx.AsyncClient(trust_env=False, verify=False) as http,
            anyio.create_task_group() as group,
        ):
            client = Bare(http, server.url, group)
            await client.initialize(CAPABILITIES)
            created = (await client.create("crashes", duration_ms=200))["task"]
            assert created["pollInterval"] == 10
            with pytest.raises(httpx.TransportError):
                await client.task("result", created["taskId"])


async def test_it_speaks_over_stdio(legacy_program: LegacyProgram) -> None:
    async with await anyio.open_process(legacy_program.stdio(), stderr=None) as process:
        client = Lines(process, {"elicitation/create": with_name("Ada")})
        params = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "clientInfo": CLIENT}
        assert "tasks" in (await client.request("initialize", params))["capabilities"]
        await client.send({"method": "notifications/initialized"})
        call = {"name": "asks", "arguments": {}, "task": {"ttl": 60_000}}
        task = (await client.request("tools/call", call))["task"]
        result = await client.request("tasks/result", {"taskId": task["taskId"]})
        assert result["content"][0]["text"] == "Hello, Ada"
        await process.stdin.aclose()
        assert await process.wait() == 0


class Lines:
    """A client by hand, over stdin and stdout."""

    def __init__(self, process: Process, answers: Answers) -> None:
        self.process = process
        self.answers = answers
        self.received = BufferedByteReceiveStream(process.stdout)
        self.ids = count()

    async def send(self, message: JSONObject) -> None:
        await self.process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def request(self, method: str, params: JSONObject) -> JSONObject:
        message_id = next(self.ids)
        await self.send({"id": message_id, "method": method, "params": params})
        while True:
            message = json.loads(await self.received.receive_until(b"\n", 1 << 20))
            if "method" not in message:
                assert message["id"] == message_id
                return dict(message["result"])
            if "id" in message:
                result = self.answers[message["method"]](message["params"])
                await self.send({"id": message["id"], "result": result})


async def test_the_faults_of_the_sdk_can_be_had(legacy_python_program: LegacyProgram, tmp_path: Path) -> None:
    with legacy_python_program.listening(tmp_path / "stderr.log", "--as-shipped") as server:
        async with connected(server) as client:
            async with connected(server) as other:
                await other.http.delete(other.url, headers=other.headers)
            refused = await client.create("slow")
            assert "TaskSupport not running" in refused["content"][0]["text"]
        async with connected(server) as client:
            await client.task("cancel", await client.start("slow", duration_ms=50))
            while str(await refusal(lambda: client.call("plain"))) != "Session not found":
                await anyio.lowlevel.checkpoint()
