"""What every session keeps to: one suite, and a table of the ways to reach a server.

A further session joins by one entry in ``WAYS``. Its server offers the tools ``plain``, ``fast``,
``ask_name``, ``cancelable`` and ``ask_plainly``, as :func:`scripted_server` does. What its version has not is
skipped.
"""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
import httpx
import mcp
import pytest
from mcp.client.extension import advertise
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult, Tool

from mcp_tasks_client import Limits, PollPolicy, Session, StdioServer, SystemClock, Task, TaskRef, ToolCall
from mcp_tasks_client.errors import ConnectionLostError, SessionError
from mcp_tasks_client.hosts.host_call import HostCall
from mcp_tasks_client.hosts.relay.relay_session import RelayedCall, RelaySession
from mcp_tasks_client.hosts.sdk.sdk_session import SdkSession
from mcp_tasks_client.protocol import EXTENSION_ID, PROTOCOL_VERSION, JSONObject
from mcp_tasks_client.protocol.replies import Created, InputRequired, Returned
from mcp_tasks_client.questions.callbacks import Callbacks
from mcp_tasks_client.sessions.base import INVALID_PARAMS, BeforeSend
from mcp_tasks_client.sessions.by_command.discovery import session_by_command
from mcp_tasks_client.sessions.by_url.discovery import DiscoveringSession
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.sessions.v2025.core_session import session_over
from mcp_tasks_client.sessions.wire import WireRequest
from mcp_tasks_client.testing import (
    ExpiringToken,
    ScriptedServer,
    ask,
    ask_first,
    cancelled,
    complete,
    completed,
    form,
    input_required,
    reply,
    text_result,
    work,
    working,
)
from tests.kit.older_server import TASK, Arrived, OlderServer, Reply, Stream, question, refusal, text

from .._forked import make_command
from .._observed import Observed
from ..hosts.relay._relay import relayed_to
from ..real_server import RealServer
from ..scripted_session import ScriptedSession

pytestmark = pytest.mark.anyio

FORM: JSONObject = {
    "method": "elicitation/create",
    "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
}
ANSWER: JSONObject = {"action": "accept", "content": {"name": "Ada"}}
CAPABILITIES: JSONObject = {"elicitation": {"form": {}, "url": {}}}

Open: TypeAlias = Callable[[pytest.FixtureRequest, str], AbstractAsyncContextManager[Session]]
"""Opens a session with a server for a test that calls one tool."""

Opened: TypeAlias = Callable[..., AbstractAsyncContextManager[Session]]


def scripted_server(**options: bool) -> ScriptedServer:
    """The tools as timelines."""
    server = ScriptedServer(**options)
    done = complete(text_result("1"))
    server.tool("plain", [reply(text_result("1"))])
    server.tool("fast", [work(0.05), done])
    server.tool("ask_name", [work(0.05), ask("k", FORM), done])
    server.tool("cancelable", [work(math.inf)])
    server.tool("ask_plainly", [ask_first("amount", form("?", amount="string")), reply(text_result("2 kg"))])
    return server


@asynccontextmanager
async def open_scripted(request: pytest.FixtureRequest, tool: str) -> AsyncIterator[Session]:
    calls = {
        "plain": [text_result("1")],
        "fast": [working("task-of-fast")],
        "ask_name": [working("task-of-ask")],
        "cancelable": [working("task-of-cancelable")],
        "ask_plainly": [
            {"resultType": "input_required", "inputRequests": {"amount": FORM}, "requestState": "s"},
            text_result("2 kg"),
        ],
    }
    gets = {
        "task-of-fast": [completed("task-of-fast", text_result("1"))],
        "task-of-ask": [
            input_required("task-of-ask", {"k": FORM}),
            completed("task-of-ask", text_result("Hello")),
        ],
        "task-of-cancelable": [cancelled("task-of-cancelable")],
    }
    tools = [Tool(name=name, input_schema={"type": "object"}) for name in calls]
    yield ScriptedSession(calls=calls[tool], gets=gets, tools=tools)


@asynccontextmanager
async def open_in_memory(request: pytest.FixtureRequest, tool: str) -> AsyncIterator[Session]:
    yield scripted_server().session()


async def doze(seconds: float) -> None:
    """Time passes a hundred times as fast."""
    await anyio.sleep(seconds / 100)


def open_app(**options: bool) -> Open:
    @asynccontextmanager
    async def open_session(request: pytest.FixtureRequest, tool: str) -> AsyncIterator[Session]:
        transport = httpx.ASGITransport(scripted_server(**options).app)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            yield HttpSession("http://server.test/mcp", http_client=client, sleep=doze)

    return open_session


@asynccontextmanager
async def open_guarded(request: pytest.FixtureRequest, tool: str) -> AsyncIterator[Session]:
    """Each token is good for one request, so that nearly every request is refused and goes again."""
    token = ExpiringToken(requests=1)
    transport = httpx.ASGITransport(token.guard(scripted_server().app))
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        yield HttpSession("http://server.test/mcp", http_client=client, headers=token.headers, sleep=doze)


@asynccontextmanager
async def open_http(request: pytest.FixtureRequest, tool: str) -> AsyncIterator[Session]:
    server: RealServer = request.getfixturevalue("real_server")

    def speak_other(http: HttpSession) -> Session:
        raise AssertionError("the server speaks 2026-07-28")

    yield DiscoveringSession(HttpSession(server.url, capabilities=CAPABILITIES, sleep=doze), speak_other)


@asynccontextmanager
async def open_sdk(request: pytest.FixtureRequest, tool: str) -> AsyncIterator[Session]:
    server: RealServer = request.getfixturevalue("real_server")

    async def elicit(context: object, params: object) -> ElicitResult:
        raise AssertionError("a session asks nobody")

    declared = [advertise(EXTENSION_ID)]
    async with mcp.Client(server.url, extensions=declared, elicitation_callback=elicit) as client:
        yield SdkSession(lambda: client.session, endpoint=server.url)


class HostedSession(RelaySession):
    """Sends each request for the sake of one call of a host."""

    host: RelayedCall

    async def exchange(self, request: WireRequest, before_send: BeforeSend) -> JSONObject:
        return await super().exchange(replace(request, context=self.host), before_send)


@asynccontextmanager
async def open_relay(request: pytest.FixtureRequest, tool: str) -> AsyncIterator[Session]:
    server: RealServer = request.getfixturevalue("real_server")

    async def elicit(context: object, params: object) -> ElicitResult:
        raise AssertionError("a session asks nobody")

    call = HostCall(
        request_id=1,
        tool_call=ToolCall(name=tool),
        is_current=True,
        client_info={"name": "host", "version": "1"},
    )
    headers = {"mcp-protocol-version": PROTOCOL_VERSION, "mcp-method": "tools/call", "mcp-name": tool}
    async with streamable_http_client(server.url) as streams, relayed_to(streams) as (relay, _):
        session = HostedSession(relay, server.url, Limits(), Callbacks(elicitation=elicit))
        session.host = RelayedCall(call=call, headers=headers)
        yield session


class OlderServerWithTools(OlderServer):
    """The tools at 2025-11-25, which has no questions before there is a task."""

    def __init__(self) -> None:
        super().__init__()
        tools = [
            {"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}
            for name, support in (
                ("plain", "forbidden"),
                ("fast", "required"),
                ("ask_name", "required"),
                ("cancelable", "required"),
            )
        ]
        self.replies |= {
            "server/discover": lambda arrived: refusal(-32600, "Unsupported protocol version", 400),
            "tools/list": lambda arrived: {"tools": tools},
            "tools/call": self._call,
            "tasks/get": self._get,
            "tasks/cancel": self._cancel,
            "answer": self._take_answer,
        }

    def _call(self, arrived: Arrived) -> Reply:
        tool = arrived.params["name"]
        if tool == "plain":
            return text("1")
        self.task |= {"status": "input_required" if tool == "ask_name" else "working", "tool": tool}
        return {"task": self.task}

    def _get(self, arrived: Arrived) -> Reply:
        if arrived.params["taskId"] != TASK:
            return refusal(INVALID_PARAMS, "no such task", request_id=arrived.message["id"])
        now = dict(self.task)
        if self.task.get("tool") == "fast":
            self.task["status"] = "completed"
        return now

    def _cancel(self, arrived: Arrived) -> Reply:
        if arrived.params["taskId"] == TASK:
            self.task["status"] = "cancelled"
        return self._get(arrived)

    def _result(self, arrived: Arrived) -> Reply:
        reply = super()._result(arrived)
        if isinstance(reply, Stream):
            reply.event(question(7))
        return reply

    def _take_answer(self, arrived: Arrived) -> Reply:
        assert arrived.message["result"]["content"] == ANSWER["content"]
        self.task["status"] = "completed"
        self.results[-1].reply(text("Hello"))
        return httpx.Response(202)


@asynccontextmanager
async def open_core(request: pytest.FixtureRequest, tool: str) -> AsyncIterator[Session]:
    def speak_other(http: HttpSession) -> Session:
        policy: dict[str, Any] = {"receive": None, "task_preference": "auto", "task_ttl_s": 60.0}
        return session_over(http, inputs=Callbacks(), clock=SystemClock(), **policy)

    async with httpx.AsyncClient(transport=httpx.MockTransport(OlderServerWithTools())) as client:
        http = HttpSession("http://server.test/mcp", http_client=client, sleep=doze)
        yield DiscoveringSession(http, speak_other)


def open_stdio(command: Callable[[], list[str]]) -> Open:
    """Opens a process that is a server."""

    @asynccontextmanager
    async def open_session(request: pytest.FixtureRequest, tool: str) -> AsyncIterator[Session]:
        program, *arguments = command()
        server = StdioServer(program, arguments)
        policy: dict[str, Any] = {"receive": None, "task_preference": "auto", "task_ttl_s": 60.0}
        inputs = Callbacks(elicitation=refuse_to_answer)
        yield session_by_command(server, inputs, PollPolicy(), SystemClock(), older=policy)

    return open_session


async def refuse_to_answer(context: object, params: object) -> ElicitResult:
    raise AssertionError("a session asks nobody")


SERVERS: Final = Path(__file__).parents[1] / "servers"


def scripted(*options: str) -> list[str]:
    """The command of a server that plays."""
    return [sys.executable, "-I", "-S", str(SERVERS / "scripted_stdio.py"), *options]


WAYS: Final[Mapping[str, Open]] = {
    "scripted": open_scripted,
    "server in memory": open_in_memory,
    "server as app": open_app(),
    "server as app, events": open_app(event_stream=True),
    "server as app, IDs as text": open_app(event_stream=True, ids_as_text=True),
    "server as app, sloppy": open_app(sloppy=True),
    "server as app, sloppy events": open_app(event_stream=True, ids_as_text=True, sloppy=True),
    "server behind a token that expires": open_guarded,
    "http": open_http,
    "sdk": open_sdk,
    "relay": open_relay,
    "core": open_core,
    "stdio": open_stdio(lambda: make_command(SERVERS / "fastmcp_server.py", "--stdio")),
    "core over stdio": open_stdio(lambda: scripted("2025-11-25")),
}


@pytest.fixture
def observed() -> Observed:
    """What is observed, and whatever the session delivers of it unasked."""
    return Observed()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def opened(request: pytest.FixtureRequest, way: str, observed: Observed) -> Opened:
    @asynccontextmanager
    async def open_session(tool: str = "plain") -> AsyncIterator[Session]:
        with anyio.fail_after(30):
            async with WAYS[way](request, tool) as session, anyio.create_task_group() as group:
                group.start_soon(session.run, observed)
                await anyio.wait_all_tasks_blocked()
                yield session
                group.cancel_scope.cancel()
                await session.aclose()

    return open_session


async def until(session: Session, ref: TaskRef, status: str) -> Task:
    while (found := await session.get(ref)).task.status != status:
        assert not found.task.terminal
        await anyio.sleep(0.02)  # the server's own hint; a session keeps no pace
    return found.task


async def create(session: Session, tool: str, observed: Observed) -> TaskRef:
    created = await session.call(ToolCall(name=tool), anyio.lowlevel.checkpoint)
    assert isinstance(created, Created)
    assert created.task.status in ("working", "input_required")
    ref = TaskRef(created.task.task_id, created.session_data)
    observed.observe(ref)
    return ref


async def test_a_call_may_return_at_once(opened: Opened) -> None:
    async with opened("plain") as session:
        returned = await session.call(ToolCall(name="plain"), anyio.lowlevel.checkpoint)
        assert isinstance(returned, Returned)
        assert returned.result["content"][0]["text"] == "1"


async def test_a_call_may_create_a_task_that_get_then_knows(opened: Opened, observed: Observed) -> None:
    async with opened("fast") as session:
        ref = await create(session, "fast", observed)
        task = await until(session, ref, "completed")
        assert task.task_id == ref.task_id
        assert task.result is not None


async def test_a_call_may_ask_first(opened: Opened, way: str) -> None:
    if way.startswith("core"):
        pytest.skip("2025-11-25 has no questions before there is a task")
    arguments = {"item": "flour"}
    async with opened("ask_plainly") as session:
        call = ToolCall(name="ask_plainly", arguments=arguments)
        asked = await session.call(call, anyio.lowlevel.checkpoint)
        assert isinstance(asked, InputRequired)
        assert set(asked.requests) == {"amount"}
        again = ToolCall(
            name="ask_plainly",
            arguments=arguments,
            input_responses={"amount": {"action": "accept", "content": {"amount": "2 kg"}}},
            request_state=asked.request_state,
        )
        assert isinstance(await session.call(again, anyio.lowlevel.checkpoint), Returned)


async def test_a_call_is_announced_once(opened: Opened) -> None:
    announced = 0

    async def announce() -> None:
        nonlocal announced
        announced += 1

    async with opened("plain") as session:
        await session.call(ToolCall(name="plain"), announce)
        assert announced == 1


async def test_a_call_whose_announcement_fails_is_not_sent(opened: Opened, observed: Observed) -> None:
    async def refuse() -> None:
        raise LookupError("the caller has gone")

    async with opened("cancelable") as session:
        for _ in range(70):  # more than the cap on calls: each gives its place back
            with pytest.raises(LookupError, match="the caller has gone"):
                await session.call(ToolCall(name="cancelable"), refuse)
        await create(session, "cancelable", observed)


async def test_an_update_is_acknowledged_and_moves_the_task(opened: Opened, observed: Observed) -> None:
    async with opened("ask_name") as session:
        ref = await create(session, "ask_name", observed)
        asking = await until(session, ref, "input_required")
        assert asking.input_requests
        async with anyio.create_task_group() as group:
            # Over some connections a snapshot is the acknowledgement.
            group.start_soon(session.update, ref, dict.fromkeys(asking.input_requests, ANSWER))
            await until(session, ref, "completed")


async def test_a_cancel_is_acknowledged(opened: Opened, observed: Observed) -> None:
    async with opened("cancelable") as session:
        ref = await create(session, "cancelable", observed)
        await session.cancel(ref)
        await until(session, ref, "cancelled")


async def test_what_a_server_tells_unasked_is_delivered_else_running_returns(
    opened: Opened, way: str, observed: Observed
) -> None:
    async with opened("ask_name") as session:
        ref = await create(session, "ask_name", observed)
        if not way.startswith("core"):  # here the servers tell nothing; see test_subscription, test_listening
            await session.run(observed)
            assert observed.delivered == []
        else:  # a question comes on the stream that a poll has opened
            async with anyio.create_task_group() as polls:
                polls.start_soon(session.get, ref)
                told = await observed.wait_until(lambda snapshot: bool(snapshot.task.input_requests))
            assert told.task.task_id == ref.task_id


@pytest.mark.parametrize("verb", ["get", "update", "cancel"])
async def test_an_unknown_task_is_invalid_params(opened: Opened, way: str, verb: str) -> None:
    if way.startswith("core") and verb == "update":
        pytest.skip("2025-11-25 has no tasks/update: an answer waits until the server asks")
    async with opened() as session:
        arguments = (TaskRef("nobody-knows-this"), *([{"k": ANSWER}] if verb == "update" else []))
        with pytest.raises(SessionError) as caught:
            await getattr(session, verb)(*arguments)
        assert caught.value.code == INVALID_PARAMS
        assert not caught.value.retryable


async def test_tools_are_described_by_name(opened: Opened, way: str) -> None:
    async with opened() as session:
        for fresh in (False, True):
            tool = await session.tool("plain", fresh=fresh)
            if way == "relay":
                assert tool is None, "the host's own session knows the tools"
                continue
            assert tool is not None
            assert tool.name == "plain"
            assert await session.tool("no such tool", fresh=fresh) is None


async def test_the_endpoint_and_the_limits_are_told(opened: Opened) -> None:
    async with opened() as session:
        assert session.endpoint
        assert session.limits.calls_in_flight >= 1


async def test_a_closed_session_refuses_requests_and_closes_once_more(opened: Opened, way: str) -> None:
    async with opened() as session:
        await session.tool("plain")  # which has asked whatever has to be asked first
        await session.aclose()
        await session.aclose()
        if way == "scripted":
            return  # it has nothing to close
        with pytest.raises(ConnectionLostError, match="closed") as caught:
            await session.get(TaskRef("t"))
        assert caught.value.not_executed
