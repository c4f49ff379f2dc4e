"""What all sessions of MCP 2026-07-28 keep to at a server whose every reply the test decides.

The table ``WIRES`` holds the ways in which requests travel. A further session joins by one entry.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeAlias, cast

import anyio
import anyio.lowlevel
import httpx
import mcp
import pytest
from mcp.client.extension import advertise

from mcp_tasks_client.engine.environment import SystemClock
from mcp_tasks_client.errors import (
    ConnectionLostError,
    MissingCapabilityError,
    RemoteProtocolError,
    SessionError,
)
from mcp_tasks_client.hosts.relay.relay_session import RelaySession
from mcp_tasks_client.hosts.sdk.sdk_session import SdkSession
from mcp_tasks_client.protocol import EXTENSION_ID, JSONObject
from mcp_tasks_client.protocol.replies import Created, InputRequired
from mcp_tasks_client.sessions.base import OTHER_VERSION, Limits, Session, TaskRef, ToolCall
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.testing.faults import ErrorReply
from mcp_tasks_client.testing.memory_session import ServerSession
from mcp_tasks_client.testing.request_handler import Arrival, Exchange, RequestHandler

from .._requirements import requirement
from ..hosts.relay._relay import relayed_to
from ..hosts.sdk.server import DISCOVERED, TASK_ID, TOOL, WORKING, Fault, in_memory

pytestmark = pytest.mark.anyio

CALL: Final = ToolCall(name="tool", arguments={"a": 1})
REF: Final = TaskRef(TASK_ID)
ANSWERS: Final[Mapping[str, JSONObject]] = {"k": {"action": "decline"}}
ACKNOWLEDGED: Final[JSONObject] = {"resultType": "complete"}
SNAPSHOT: Final[JSONObject] = {**WORKING, "resultType": "complete"}
FEW: Final = Limits(tasks_in_flight=2, calls_in_flight=2)

NEVER: Final[JSONObject] = {}
"""A reply that never comes."""

Reply: TypeAlias = JSONObject | Fault


class Server:
    """Answers each request as the test wants, and keeps what has come.

    Attributes:
        replies: By method.
        received: The requests, without those for the version and the tools.
    """

    def __init__(self) -> None:
        self.received: list[tuple[str, JSONObject]] = []
        self.replies: dict[str, Reply] = {
            "server/discover": DISCOVERED,
            "tools/list": {**ACKNOWLEDGED, "tools": [TOOL], "ttlMs": 0, "cacheScope": "public"},
            "tools/call": WORKING,
            "tasks/get": SNAPSHOT,
            "tasks/update": ACKNOWLEDGED,
            "tasks/cancel": ACKNOWLEDGED,
        }
        self._news = anyio.Event()

    def take(self, method: str, params: JSONObject) -> Reply:
        if method not in ("server/discover", "tools/list") and not method.startswith("notifications/"):
            self.received.append((method, params))
            self._news.set()
            self._news = anyio.Event()
        return self.replies.get(method, Fault(-32601, "Method not found"))

    async def answer(self, method: str, params: JSONObject) -> JSONObject:
        reply = self.take(method, params)
        if isinstance(reply, Fault):
            raise reply
        if reply is NEVER:
            await anyio.sleep_forever()
        return reply

    @property
    def counts(self) -> Counter[str]:
        return Counter(method for method, _ in self.received)

    async def wait_for(self, method: str, count: int) -> None:
        while self.counts[method] < count:
            await self._news.wait()


# ── the ways ──────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def over_http(server: Server, limits: Limits) -> AsyncIterator[Session]:
    async def respond(request: httpx.Request) -> httpx.Response:
        message = json.loads(request.content)
        said: JSONObject
        try:
            said = {"result": await server.answer(message["method"], message["params"])}
        except Fault as fault:
            said = {"error": {"code": fault.code, "message": fault.message, "data": fault.data}}
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": message["id"], **said})

    async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
        yield HttpSession("http://server.test/mcp", http_client=client, limits=limits)


@asynccontextmanager
async def over_the_sdk(server: Server, limits: Limits) -> AsyncIterator[Session]:
    async with mcp.Client(in_memory(server.answer), extensions=[advertise(EXTENSION_ID)]) as client:
        yield SdkSession(lambda: client.session, endpoint="server", limits=limits)


@asynccontextmanager
async def over_a_relay(server: Server, limits: Limits) -> AsyncIterator[Session]:
    async with in_memory(server.answer) as streams, relayed_to(streams) as (relay, _):
        yield RelaySession(relay, "server", limits, None)


class Handler:
    """A scripted server without a script: what a :class:`ServerSession` needs of one."""

    def __init__(self, server: Server) -> None:
        self.clock = SystemClock()
        self._server = server

    def receive(self, method: str, params: JSONObject) -> Exchange:
        reply = self._server.take(method, params)
        said = ErrorReply(reply.code, reply.message, reply.data) if isinstance(reply, Fault) else reply
        arrival = Arrival(method=method, params=params, at=0.0, headers=None)
        return Exchange(arrival=arrival, reply=said, after_s=math.inf if reply is NEVER else 0.0)

    def note_reply(self, exchange: Exchange) -> None: ...

    def listed_tool(self, name: str) -> None: ...


@asynccontextmanager
async def within_memory(server: Server, limits: Limits) -> AsyncIterator[Session]:
    yield ServerSession(cast("RequestHandler", Handler(server)), "server", limits)


WIRES: Final[Mapping[str, Callable[[Server, Limits], AbstractAsyncContextManager[Session]]]] = {
    "http": over_http,
    "sdk": over_the_sdk,
    "relay": over_a_relay,
    "memory": within_memory,
}

Opened: TypeAlias = Callable[..., AbstractAsyncContextManager[Session]]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture(params=WIRES)
def opened(request: pytest.FixtureRequest, server: Server) -> Opened:
    @asynccontextmanager
    async def open_session(limits: Limits | None = None) -> AsyncIterator[Session]:
        with anyio.fail_after(20):
            async with WIRES[request.param](server, limits or Limits()) as session:
                yield session
                await session.aclose()

    return open_session


async def send(session: Session, method: str, ref: TaskRef = REF) -> object:
    """A request of that method."""
    match method:
        case "tools/call":
            return await session.call(CALL, anyio.lowlevel.checkpoint)
        case "tasks/get":
            return await session.get(ref)
        case "tasks/update":
            return await session.update(ref, ANSWERS)
        case "tasks/cancel":
            return await session.cancel(ref)
        case _:
            return await session.ask(method, {})


TASK_METHODS: Final = ("tasks/get", "tasks/update", "tasks/cancel")
METHODS: Final = ("tools/call", *TASK_METHODS)


# ── what is sent ──────────────────────────────────────────────────────────────────────────────


async def test_what_is_sent_is_what_the_protocol_has(opened: Opened, server: Server) -> None:
    """``requestState`` is what the server gave last, and goes back as it came."""
    server.replies["tools/call"] = {**WORKING, "requestState": "one"}
    server.replies["tasks/get"] = {**SNAPSHOT, "requestState": "two"}
    async with opened() as session:
        call = ToolCall(
            name="tool",
            arguments={"a": [1, None]},
            meta={"x/y": "z"},
            input_responses=ANSWERS,
            request_state="s",
        )
        created = await session.call(call, anyio.lowlevel.checkpoint)
        assert isinstance(created, Created)
        assert (created.task.task_id, created.session_data) == (TASK_ID, "one")
        assert (await session.get(TaskRef(TASK_ID, "one"))).session_data == "two"
        await session.update(TaskRef(TASK_ID, "two"), ANSWERS)
        await session.cancel(REF)
    sent = [
        (method, {name: value for name, value in params.items() if name != "_meta"})
        for method, params in server.received
    ]
    assert sent == [
        (
            "tools/call",
            {
                "name": "tool",
                "arguments": {"a": [1, None]},
                "inputResponses": ANSWERS,
                "requestState": "s",
            },
        ),
        ("tasks/get", {"taskId": TASK_ID, "requestState": "one"}),
        ("tasks/update", {"taskId": TASK_ID, "inputResponses": ANSWERS, "requestState": "two"}),
        ("tasks/cancel", {"taskId": TASK_ID}),
    ]
    assert server.received[0][1]["_meta"]["x/y"] == "z"


@pytest.mark.parametrize("method", TASK_METHODS)
async def test_what_a_session_of_another_version_noted_does_not_reach_the_server(
    opened: Opened, server: Server, method: str
) -> None:
    """It may be a credential, such as the ID of an MCP session."""
    async with opened() as session:
        with pytest.raises(RemoteProtocolError, match="made in another version") as caught:
            await send(session, method, TaskRef(TASK_ID, OTHER_VERSION + "secret"))
    assert (caught.value.retryable, caught.value.not_executed, caught.value.code) == (False, True, None)
    assert server.received == []


@pytest.mark.parametrize("method", TASK_METHODS)
async def test_a_task_id_that_no_message_can_carry_is_not_sent(
    opened: Opened, server: Server, method: str
) -> None:
    async with opened() as session:
        with pytest.raises(RemoteProtocolError, match="no UTF-8 form") as caught:
            await send(session, method, TaskRef("task-\ud800"))
    assert (caught.value.retryable, caught.value.not_executed) == (False, True)
    assert server.received == []


# ── the caps ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "hanging", [("tools/call",), ("tasks/get",), ("tasks/update", "tasks/cancel")], ids=str
)
async def test_so_many_requests_are_under_way_at_once_and_those_of_other_kinds_pass(
    opened: Opened, server: Server, hanging: tuple[str, ...]
) -> None:
    async with opened(FEW) as session:
        await session.tool("tool")
        replies = dict(server.replies)
        async with anyio.create_task_group() as requests:
            server.replies |= dict.fromkeys(hanging, NEVER)
            for method in hanging * 4:
                requests.start_soon(send, session, method)
            await anyio.wait_all_tasks_blocked()
            for method in METHODS:
                if method not in hanging:
                    await send(session, method)
            assert sum(server.counts[method] for method in hanging) == 2
            requests.cancel_scope.cancel()
        # Those that were given up have given their places back, and so do those that fail.
        server.replies |= dict.fromkeys(hanging, Fault(-32603, "Boom"))
        for method in hanging * 3:
            with pytest.raises(SessionError):
                await send(session, method)
        server.replies = replies
        for method in hanging:
            await send(session, method)


async def test_a_call_is_announced_when_it_has_a_place_and_gives_it_back_if_that_fails(
    opened: Opened, server: Server
) -> None:
    announced = 0

    async def announce() -> None:
        nonlocal announced
        announced += 1

    async def refuse() -> None:
        raise LookupError("the caller has gone")

    async with opened(FEW) as session:
        for _ in range(3):
            with pytest.raises(LookupError):
                await session.call(CALL, refuse)
        assert server.received == []
        server.replies["tools/call"] = NEVER
        async with anyio.create_task_group() as requests:
            for _ in range(3):
                requests.start_soon(session.call, CALL, announce)
            await server.wait_for("tools/call", 2)
            await anyio.wait_all_tasks_blocked()
            assert announced == 2
            requests.cancel_scope.cancel()


@pytest.mark.parametrize("method", METHODS)
async def test_a_session_that_is_closed_sends_nothing_more(
    opened: Opened, server: Server, method: str
) -> None:
    async with opened() as session:
        await session.aclose()
        with pytest.raises(ConnectionLostError, match="closed") as caught:
            await send(session, method)
    assert caught.value.not_executed
    assert server.received == []


# ── what comes back ───────────────────────────────────────────────────────────────────────────


@requirement("create:unsupported-request")
@pytest.mark.parametrize("method", ["tasks/update", "tasks/cancel", "server/discover"])
async def test_a_task_is_no_reply_but_to_a_call(opened: Opened, server: Server, method: str) -> None:
    """MUST interpret this as an invalid response to the request (Capability Negotiation)."""
    async with opened() as session:
        await session.tool("tool")
        server.replies[method] = WORKING
        with pytest.raises(RemoteProtocolError, match="only tools/call"):
            await send(session, method)


@pytest.mark.parametrize(
    ("method", "reply"),
    [
        ("tools/call", {"resultType": "input_required"}),
        ("tools/call", {**WORKING, "taskId": 7}),
        ("tasks/get", {**SNAPSHOT, "taskId": None}),
        ("tasks/get", {**SNAPSHOT, "status": ""}),
    ],
)
async def test_a_reply_that_is_none_may_be_asked_for_again(
    opened: Opened, server: Server, method: str, reply: JSONObject
) -> None:
    server.replies[method] = reply
    async with opened() as session:
        with pytest.raises(RemoteProtocolError, match="cannot be used") as caught:
            await send(session, method)
    assert (caught.value.retryable, caught.value.not_executed) == (True, False)


async def test_a_call_may_be_answered_with_questions(opened: Opened, server: Server) -> None:
    params = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
    requests = {"k": {"method": "elicitation/create", "params": params}}
    server.replies["tools/call"] = {
        "resultType": "input_required",
        "inputRequests": requests,
        "requestState": "s",
    }
    async with opened() as session:
        asked = await send(session, "tools/call")
    assert asked == InputRequired(requests, "s")


ERRORS: Final = {
    # code: the kind of error, whether it may pass, whether nothing can have happened
    -32602: (SessionError, False, True),
    -32601: (SessionError, False, True),
    -32600: (SessionError, False, True),
    -32603: (SessionError, True, False),
    -32050: (SessionError, True, False),
    -32021: (MissingCapabilityError, False, True),
    -32003: (MissingCapabilityError, False, True),
    -32020: (RemoteProtocolError, False, True),
    -32022: (RemoteProtocolError, False, True),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("code", ERRORS)
async def test_an_error_of_the_server_means_the_same_on_each_way(
    opened: Opened, server: Server, code: int, method: str
) -> None:
    server.replies[method] = Fault(code, "The words of the server", {"x": 1})
    async with opened() as session:
        with pytest.raises(SessionError) as caught:
            await send(session, method)
    error = caught.value
    assert (type(error), error.retryable, error.not_executed) == ERRORS[code]
    assert (error.code, error.remote_message, error.data) == (code, "The words of the server", {"x": 1})
    assert f"{method} was answered with JSON-RPC error {code}: 'The words of the server'." in str(error)


@pytest.mark.parametrize("method", TASK_METHODS)
async def test_what_a_server_says_is_quoted_short_and_without_the_task_id(
    opened: Opened, server: Server, method: str
) -> None:
    server.replies[method] = Fault(-32603, f"\x1b[31m{TASK_ID} " + "x" * 100_000)
    async with opened() as session:
        with pytest.raises(SessionError) as caught:
            await send(session, method)
    assert TASK_ID not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("method", TASK_METHODS)
async def test_a_task_whose_server_says_nothing_is_asked_for_again_later(
    opened: Opened, server: Server, method: str
) -> None:
    server.replies[method] = NEVER
    async with opened(Limits(task_timeout_s=0.05)) as session:
        with pytest.raises(ConnectionLostError) as caught:
            await send(session, method)
    assert (caught.value.retryable, caught.value.not_executed) == (True, False)
