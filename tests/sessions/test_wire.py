"""What sessions keep to at a server whose every reply the test decides.

The table ``WIRES`` holds the ways in which requests travel. A further session joins by one entry. The session
of 2025-11-25, ``core``, keeps to all that its version has. Replies are written as those of 2026-07-28.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeAlias, cast

import anyio
import anyio.lowlevel
import httpx
import mcp
import pytest
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY, ElicitResult, Tool

from mcp_tasks_client import Limits, Session, SystemClock, TaskRef, ToolCall
from mcp_tasks_client.errors import (
    ConnectionLostError,
    DrivenElsewhereError,
    MissingCapabilityError,
    RemoteProtocolError,
    SessionError,
)
from mcp_tasks_client.hosts.relay.relay_session import RelaySession
from mcp_tasks_client.hosts.sdk.sdk_session import SdkSession
from mcp_tasks_client.protocol import EXTENSION_ID, PROTOCOL_VERSION, JSONObject
from mcp_tasks_client.protocol.replies import Created, InputRequired, Returned
from mcp_tasks_client.questions.callbacks import Callbacks
from mcp_tasks_client.sessions import tool_catalogue
from mcp_tasks_client.sessions.base import OTHER_VERSION
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.sessions.v2025.core_session import session_over
from mcp_tasks_client.testing.faults import ErrorReply
from mcp_tasks_client.testing.memory_session import ServerSession
from mcp_tasks_client.testing.request_handler import Arrival, Exchange, RequestHandler
from tests.kit.current_server import (
    ACKNOWLEDGED,
    NEVER,
    TASK_ID,
    TOOL,
    WORKING,
    Answer,
    CurrentServer,
    Fault,
    in_memory,
    working,
)
from tests.kit.limit import limited

from .._observed import Observed
from .._requirements import requirement
from ..hosts.relay._relay import relayed_to

pytestmark = pytest.mark.anyio

URL: Final = "http://server.test/mcp"
DECLARED: Final[JSONObject] = {"elicitation": {"form": {}}}
CALL: Final = ToolCall(name="tool", arguments={"a": 1})
REF: Final = TaskRef(TASK_ID)
ANSWERS: Final[Mapping[str, JSONObject]] = {"k": {"action": "decline"}}
SNAPSHOT: Final[JSONObject] = {**WORKING, "resultType": "complete"}
FEW: Final = Limits(tasks_in_flight=2, calls_in_flight=3)

# ── the ways ──────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def http_client(answer: Answer) -> AsyncIterator[httpx.AsyncClient]:
    async def respond(request: httpx.Request) -> httpx.Response:
        message = json.loads(request.content or "{}")
        if "id" not in message:
            return httpx.Response(202 if message else 405)
        said: JSONObject
        try:
            said = {"result": await answer(message["method"], message["params"])}
        except Fault as fault:
            said = {"error": {"code": fault.code, "message": fault.message, "data": fault.data}}
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": message["id"], **said})

    async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
        yield client


async def doze(seconds: float) -> None:
    """Between two attempts at a list no time passes."""
    await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def over_http(server: CurrentServer, limits: Limits) -> AsyncIterator[Session]:
    async with http_client(server) as client:
        yield HttpSession(URL, http_client=client, limits=limits, capabilities=DECLARED, sleep=doze)


@asynccontextmanager
async def over_the_sdk(server: CurrentServer, limits: Limits) -> AsyncIterator[Session]:
    async with mcp.Client(in_memory(server)) as client:
        options: dict[str, Any] = {"limits": limits, "capabilities": DECLARED, "sleep": doze}
        yield SdkSession(lambda: client.session, endpoint="server", **options)


async def nobody(context: object, params: object) -> ElicitResult:
    raise AssertionError("a session asks nobody")


@asynccontextmanager
async def over_a_relay(server: CurrentServer, limits: Limits) -> AsyncIterator[Session]:
    async with in_memory(server) as streams, relayed_to(streams) as (relay, _):
        yield RelaySession(relay, "server", limits, Callbacks(elicitation=nobody))


def of_older(task: JSONObject) -> JSONObject:
    """A task of 2026-07-28 as one of 2025-11-25."""
    renamed = {"ttlMs": "ttl", "pollIntervalMs": "pollInterval"}
    return {renamed.get(name, name): value for name, value in task.items() if name != "resultType"}


@asynccontextmanager
async def at_2025_11_25(server: CurrentServer, limits: Limits) -> AsyncIterator[Session]:
    async def answer(method: str, params: JSONObject) -> JSONObject:
        if method == "initialize":
            tasks = {"cancel": {}, "requests": {"tools": {"call": {}}}}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "tasks": tasks}}
        reply = await server(method, params)
        match method:
            case "tools/list":
                tools = [{**tool, "execution": {"taskSupport": "required"}} for tool in reply["tools"]]
                return {**reply, "tools": tools}
            case "tools/call":
                return {"task": of_older(reply)} if "task" in params and "taskId" in reply else reply
            case _:
                return of_older(reply)

    async with http_client(answer) as client, anyio.create_task_group() as tasks:
        http = HttpSession(URL, http_client=client, limits=limits)
        policy: dict[str, Any] = {"receive": None, "task_preference": "auto", "task_ttl_s": 60.0}
        session = session_over(http, inputs=Callbacks(), clock=SystemClock(), **policy)
        tasks.start_soon(session.run, Observed())  # a call waits until the server can be heard
        yield session
        tasks.cancel_scope.cancel()


class Handler:
    """A scripted server without a script: what a :class:`ServerSession` needs of one."""

    def __init__(self, server: CurrentServer) -> None:
        self.clock = SystemClock()
        self._server = server

    def receive(self, method: str, params: JSONObject) -> Exchange:
        reply = self._server.take(method, params)
        said = ErrorReply(reply.code, reply.message, reply.data) if isinstance(reply, Fault) else reply
        arrival = Arrival(method=method, params=params, at=0.0, headers=None)
        return Exchange(
            arrival=arrival, reply=said, after_s=math.inf if reply is NEVER else self._server.pause_s
        )

    def note_reply(self, exchange: Exchange) -> None: ...

    def listed_tool(self, name: str) -> Tool:
        listed = cast("JSONObject", self._server.replies["tools/list"])
        return Tool.model_validate(listed["tools"][0])


@asynccontextmanager
async def within_memory(server: CurrentServer, limits: Limits) -> AsyncIterator[Session]:
    yield ServerSession(cast("RequestHandler", Handler(server)), "server", limits)


WIRES: Final[Mapping[str, Callable[[CurrentServer, Limits], AbstractAsyncContextManager[Session]]]] = {
    "http": over_http,
    "sdk": over_the_sdk,
    "relay": over_a_relay,
    "memory": within_memory,
    "core": at_2025_11_25,
}

TASK_METHODS: Final = ("tasks/get", "tasks/update", "tasks/cancel")
METHODS: Final = ("tools/call", *TASK_METHODS)


def has(way: str, method: str) -> bool:
    return (way, method) != ("core", "tasks/update")  # 2025-11-25 answers the server's own request


def ways(*without: str) -> pytest.MarkDecorator:
    """Parametrise a test over the ways but some."""
    return pytest.mark.parametrize("way", [way for way in WIRES if way not in without], indirect=True)


def ways_and(*methods: str, without: str = "") -> pytest.MarkDecorator:
    """Parametrise a test over the ways, and those of the methods that each has."""
    pairs = [(way, method) for way in WIRES for method in methods if has(way, method) and way != without]
    return pytest.mark.parametrize(("way", "method"), pairs, indirect=["way"])


Opened: TypeAlias = Callable[..., AbstractAsyncContextManager[Session]]


@pytest.fixture
def server() -> CurrentServer:
    return CurrentServer(gets=[WORKING])


@pytest.fixture(params=WIRES)
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def opened(way: str, server: CurrentServer) -> Opened:
    @asynccontextmanager
    async def open_session(limits: Limits | None = None) -> AsyncIterator[Session]:
        with limited(60, lambda: server.methods):
            async with WIRES[way](server, limits or Limits()) as session:
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


# ── what is sent ──────────────────────────────────────────────────────────────────────────────


@ways("core")
async def test_what_is_sent_is_what_the_protocol_has(opened: Opened, server: CurrentServer) -> None:
    """``requestState`` is what the server gave last, and goes back as it came."""
    server.replies["tools/call"] = {**WORKING, "requestState": "one"}
    server.replies["tasks/get"] = {**SNAPSHOT, "requestState": "two"}
    async with opened() as session:
        call = ToolCall(name="tool", arguments={"a": [1, None]}, input_responses=ANSWERS, request_state="s")
        created = await session.call(call, anyio.lowlevel.checkpoint)
        assert isinstance(created, Created)
        assert (created.task.task_id, created.session_data) == (TASK_ID, "one")
        assert (await session.get(TaskRef(TASK_ID, "one"))).session_data == "two"
        await session.update(TaskRef(TASK_ID, "two"), ANSWERS)
        await session.cancel(REF)
    sent = [
        (method, {name: value for name, value in params.items() if name != "_meta"})
        for method, params in server.requests
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


async def test_a_call_carries_its_arguments_and_metadata_as_given(
    opened: Opened, server: CurrentServer
) -> None:
    arguments = {"a": [1, None], "ü": {}}
    async with opened() as session:
        call = ToolCall(name="tool", arguments=arguments, meta={"x/y": ["z"]})
        await session.call(call, anyio.lowlevel.checkpoint)
    ((_, params),) = server.requests
    assert (params["name"], params["arguments"], params["_meta"]["x/y"]) == ("tool", arguments, ["z"])


@ways("core", "memory")
async def test_each_request_declares_the_version_the_extension_and_what_the_host_answers(
    opened: Opened, server: CurrentServer
) -> None:
    async with opened() as session:
        for method in METHODS:
            await send(session, method)
    assert len(server.requests) == len(METHODS)
    for _, params in server.requests:
        assert params["_meta"][PROTOCOL_VERSION_META_KEY] == PROTOCOL_VERSION
        declared = params["_meta"][CLIENT_CAPABILITIES_META_KEY]
        assert declared["extensions"] == {EXTENSION_ID: {}}
        assert set(DECLARED) <= set(declared)


@ways_and(*TASK_METHODS)
async def test_what_a_session_of_another_version_noted_does_not_reach_the_server(
    opened: Opened, way: str, server: CurrentServer, method: str
) -> None:
    """It may be a credential, such as the ID of an MCP session."""
    noted = "a requestState" if way == "core" else OTHER_VERSION + "the ID of an MCP session"
    async with opened() as session:
        with pytest.raises(RemoteProtocolError, match="made in another version") as caught:
            await send(session, method, TaskRef(TASK_ID, noted))
    assert (caught.value.retryable, caught.value.not_executed, caught.value.code) == (False, True, None)
    assert server.requests == []


@ways_and(*TASK_METHODS)
async def test_a_request_of_a_task_is_confirmed_after_the_wait_for_its_turn(
    opened: Opened, server: CurrentServer, method: str
) -> None:
    taken = DrivenElsewhereError("another process drives the call")

    async def confirm() -> None:
        raise taken

    async with opened(FEW) as session:
        server.replies[method], reply = NEVER, server.replies[method]
        async with anyio.create_task_group() as requests:
            for _ in range(2):
                requests.start_soon(send, session, method)
            await anyio.wait_all_tasks_blocked()
            before = server.counts[method]
            requests.start_soon(refused, session, method, TaskRef(TASK_ID, before_send=confirm))
            await anyio.wait_all_tasks_blocked()
            requests.cancel_scope.cancel()
        server.replies[method] = reply
        await refused(session, method, TaskRef(TASK_ID, before_send=confirm))
        assert server.counts[method] == before


async def refused(session: Session, method: str, ref: TaskRef) -> None:
    with pytest.raises(DrivenElsewhereError):
        await send(session, method, ref)


@ways_and(*TASK_METHODS, without="core")
async def test_a_task_id_that_no_message_can_carry_is_not_sent(
    opened: Opened, server: CurrentServer, method: str
) -> None:
    async with opened() as session:
        with pytest.raises(RemoteProtocolError, match="no UTF-8 form") as caught:
            await send(session, method, TaskRef("task-\ud800"))
    assert (caught.value.retryable, caught.value.not_executed) == (False, True)
    assert server.requests == []


async def test_another_request_goes_and_comes_back_as_it_is(opened: Opened, server: CurrentServer) -> None:
    server.replies["own/method"] = {**ACKNOWLEDGED, "own": [None]}
    async with opened() as session:
        assert (await session.ask("own/method", {"n": [1]}))["own"] == [None]
    ((method, params),) = server.requests
    assert (method, params["n"]) == ("own/method", [1])


# ── the caps ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "hanging", [("tools/call",), ("tasks/get",), ("tasks/update", "tasks/cancel")], ids=str
)
async def test_so_many_requests_are_under_way_at_once_and_those_of_other_kinds_pass(
    opened: Opened, way: str, server: CurrentServer, hanging: tuple[str, ...]
) -> None:
    hanging = tuple(method for method in hanging if has(way, method))
    async with opened(FEW) as session:
        await session.tool("tool")
        replies = dict(server.replies)

        async def fill() -> None:
            """Take all places, and give everything up."""
            before = sum(server.counts[method] for method in hanging)
            server.replies |= dict.fromkeys(hanging, NEVER)
            async with anyio.create_task_group() as requests:
                for method in hanging * 4:
                    requests.start_soon(send, session, method)
                await anyio.wait_all_tasks_blocked()
                for method in METHODS:
                    if method not in hanging and has(way, method):
                        await send(session, method)
                places = 3 if "tools/call" in hanging else 2
                assert sum(server.counts[method] for method in hanging) == before + places
                requests.cancel_scope.cancel()

        await fill()
        # Those that were given up have given their places back, and so do those that fail or succeed.
        server.replies |= dict.fromkeys(hanging, Fault(-32603, "Boom"))
        for method in hanging * 4:
            with pytest.raises(SessionError):
                await send(session, method)
        server.replies = dict(replies)
        for method in hanging * 5:
            await send(session, method)
        await fill()  # those that were given up before they had a place have given none back


@ways("relay", "memory", "core")
async def test_a_call_that_fails_before_it_has_a_place_gives_none_back(
    opened: Opened, server: CurrentServer
) -> None:
    async with opened(FEW) as session:
        listed, server.replies["tools/list"] = server.replies["tools/list"], Fault(-32602, "Boom")
        for _ in range(4):
            with pytest.raises(SessionError):
                await send(session, "tools/call")
        assert server.requests == []
        server.replies |= {"tools/list": listed, "tools/call": NEVER}
        async with anyio.create_task_group() as requests:
            for _ in range(4):
                requests.start_soon(send, session, "tools/call")
            await server.wait_for("tools/call", 3)
            await anyio.wait_all_tasks_blocked()
            assert server.counts["tools/call"] == 3
            requests.cancel_scope.cancel()


async def test_a_call_is_announced_when_it_has_a_place_and_gives_it_back_if_that_fails(
    opened: Opened, server: CurrentServer
) -> None:
    announced = 0

    async def announce() -> None:
        nonlocal announced
        announced += 1

    async def refuse() -> None:
        raise LookupError("the caller has gone")

    async with opened(FEW) as session:
        for _ in range(4):
            with pytest.raises(LookupError):
                await session.call(CALL, refuse)
        assert server.requests == []
        server.replies["tools/call"] = NEVER
        async with anyio.create_task_group() as requests:
            for _ in range(4):
                requests.start_soon(session.call, CALL, announce)
            await server.wait_for("tools/call", 3)
            await anyio.wait_all_tasks_blocked()
            assert announced == 3
            requests.cancel_scope.cancel()


async def test_a_call_is_announced_after_all_that_is_asked_first_and_before_it_leaves(
    opened: Opened, server: CurrentServer
) -> None:
    asked_first: list[list[str]] = []

    async def announce() -> None:
        asked_first.append([*server.methods])

    async with opened() as session:
        await session.call(CALL, announce)
    (asked,) = asked_first
    assert server.methods == [*asked, "tools/call"]


@ways_and(*METHODS, "server/discover", without="core")  # see test_session_contract, whose channel is another
async def test_a_session_that_is_closed_sends_nothing_more(
    opened: Opened, server: CurrentServer, method: str
) -> None:
    async with opened() as session:
        await session.aclose()
        with pytest.raises(ConnectionLostError, match="closed") as caught:
            await send(session, method)
    assert caught.value.not_executed
    assert server.requests == []


# ── what comes back ───────────────────────────────────────────────────────────────────────────


@requirement("create:unsupported-request")
@ways("core")
@pytest.mark.parametrize("method", ["tasks/update", "tasks/cancel", "server/discover"])
async def test_a_task_is_no_reply_but_to_a_call(opened: Opened, server: CurrentServer, method: str) -> None:
    """MUST interpret this as an invalid response to the request (Capability Negotiation)."""
    async with opened() as session:
        await session.tool("tool")
        server.replies[method] = WORKING
        with pytest.raises(RemoteProtocolError, match="only tools/call"):
            await send(session, method)


@pytest.mark.parametrize(
    ("way", "method", "reply"),
    [
        (way, method, reply)
        for way in WIRES
        for method, reply in (
            ("tools/call", {"resultType": "input_required"}),
            ("tools/call", {**WORKING, "taskId": 7}),
            ("tasks/get", {**SNAPSHOT, "taskId": None}),
            ("tasks/get", {**SNAPSHOT, "status": ""}),
        )
        if (way, method) != ("core", "tools/call")  # a result without a task there is what the tool returned
    ],
    indirect=["way"],
)
async def test_a_reply_that_is_none_may_be_asked_for_again(
    opened: Opened, server: CurrentServer, method: str, reply: JSONObject
) -> None:
    server.replies[method] = reply
    async with opened() as session:
        with pytest.raises(RemoteProtocolError, match="cannot be used") as caught:
            await send(session, method)
    assert (caught.value.retryable, caught.value.not_executed) == (True, False)


async def test_what_a_tool_returned_is_passed_on_as_it_came(opened: Opened, server: CurrentServer) -> None:
    content = [{"type": "text", "text": "no", "own": {"a": None}}]
    result = {"content": content, "isError": True, "_meta": {"own": None}, "own": [None, 0]}
    server.replies["tools/call"] = {**ACKNOWLEDGED, **result}
    async with opened() as session:
        returned = await send(session, "tools/call")
    assert isinstance(returned, Returned)
    assert {**returned.result, **ACKNOWLEDGED} == {**ACKNOWLEDGED, **result}


@ways("core")
async def test_a_call_may_be_answered_with_questions(opened: Opened, server: CurrentServer) -> None:
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


@ways_and(*METHODS)
@pytest.mark.parametrize("code", ERRORS)
async def test_an_error_of_the_server_means_the_same_on_each_way(
    opened: Opened, server: CurrentServer, code: int, method: str
) -> None:
    server.replies[method] = Fault(code, "The words of the server", {"x": 1})
    async with opened() as session:
        with pytest.raises(SessionError) as caught:
            await send(session, method)
    error = caught.value
    assert (type(error), error.retryable, error.not_executed) == ERRORS[code]
    assert (error.code, error.remote_message, error.data) == (code, "The words of the server", {"x": 1})
    assert f"{method} was answered with JSON-RPC error {code}: 'The words of the server'." in str(error)


@ways_and(*METHODS, without="memory")  # whose errors are no JSON
async def test_an_error_code_that_a_gateway_has_written_as_a_float_is_that_code(
    opened: Opened, server: CurrentServer, method: str
) -> None:
    server.replies[method] = Fault(cast("int", -32602.0), "no")
    async with opened() as session:
        with pytest.raises(SessionError) as caught:
            await send(session, method)
    assert (caught.value.code, caught.value.not_executed) == (-32602, True)


@ways_and(*TASK_METHODS)
async def test_what_a_server_says_is_quoted_short_and_without_the_task_id(
    opened: Opened, server: CurrentServer, method: str
) -> None:
    server.replies[method] = Fault(-32603, f"\x1b[31m{TASK_ID} " + "x" * 100_000)
    async with opened() as session:
        with pytest.raises(SessionError) as caught:
            await send(session, method)
    assert TASK_ID not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500


@ways_and(*TASK_METHODS)
async def test_a_task_whose_server_says_nothing_is_asked_for_again_later(
    opened: Opened, server: CurrentServer, method: str
) -> None:
    server.replies[method] = NEVER
    async with opened(Limits(task_timeout_s=0.05)) as session:
        with pytest.raises(ConnectionLostError) as caught:
            await send(session, method)
    assert (caught.value.retryable, caught.value.not_executed) == (True, False)


async def test_a_call_may_take_longer_than_a_poll(opened: Opened, server: CurrentServer) -> None:
    async with opened() as session:
        await send(session, "tools/call")  # all that is asked first has been
        session.limits = Limits(task_timeout_s=0.05)
        server.pause_s = 0.2
        assert isinstance(await send(session, "tools/call"), Created)


@ways("core")
async def test_a_request_state_is_bounded_and_costs_no_task(opened: Opened, server: CurrentServer) -> None:
    longest, longer = "s" * 2**20, "s" * (2**20 + 1)
    async with opened() as session:
        server.replies["tools/call"] = [working(requestState=longest), working(requestState=longer)]
        kept, dropped = await send(session, "tools/call"), await send(session, "tools/call")
        server.replies["tasks/get"] = {**SNAPSHOT, "requestState": longer}
        snapshot = await session.get(REF)
        server.replies["tools/call"] = {"resultType": "input_required", "requestState": longer}
        with pytest.raises(RemoteProtocolError, match="requestState of more than 1048576 characters"):
            await send(session, "tools/call")
    assert isinstance(kept, Created)
    assert kept.session_data == longest
    assert isinstance(dropped, Created)
    assert (dropped.task.task_id, dropped.session_data) == (TASK_ID, None)
    assert (snapshot.task.task_id, snapshot.session_data) == (TASK_ID, None)


# ── the tools ─────────────────────────────────────────────────────────────────────────────────


@ways("relay")
async def test_a_list_is_kept_and_fetched_again_if_asked_for(
    opened: Opened, way: str, server: CurrentServer
) -> None:
    async with opened() as session:
        await session.tool("tool")
        server.list_tool({**TOOL, "description": "another"})
        kept, fetched = await session.tool("tool"), await session.tool("tool", fresh=True)
    assert kept is not None
    assert (kept.description is None) == (way != "memory"), "whose server is asked whenever it is looked up"
    assert fetched is not None
    assert fetched.description == "another"


@ways("relay", "memory")
@pytest.mark.parametrize("heavy", ["schema", "cursor", "description"])
async def test_all_pages_of_a_list_together_are_bounded(
    opened: Opened, server: CurrentServer, heavy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a megabyte a page, without an end."""
    assert tool_catalogue._MOST_BYTES == 2**26
    monkeypatch.setattr(tool_catalogue, "_MOST_BYTES", 2**22)
    text, pages = "x" * 2**19, 0

    def list_page(method: str, params: JSONObject) -> JSONObject:
        nonlocal pages
        pages += 1
        schema = {"type": "object", "examples": [text]} if heavy == "schema" else {"type": "object"}
        described = {"description": text} if heavy == "description" else {}
        cursor = f"{pages}{text if heavy == 'cursor' else ''}"
        tool = {"name": f"tool{pages}", "inputSchema": schema, **described}
        return {**ACKNOWLEDGED, "tools": [tool], "nextCursor": cursor, "ttlMs": 0, "cacheScope": "public"}

    server.replies["tools/list"] = list_page
    async with opened() as session:
        first, none = await session.tool("tool1"), await session.tool("none")
    assert first is not None
    assert none is None
    assert pages < 2 * 10, "the name that was not found was looked for once more"


@ways("relay", "memory")
async def test_a_tool_that_is_too_large_costs_itself_and_not_the_list(
    opened: Opened, server: CurrentServer
) -> None:
    large = {"name": "large", "inputSchema": {"type": "object", "examples": [0] * 2**15}}
    listed = {**ACKNOWLEDGED, "tools": [large, TOOL], "ttlMs": 0, "cacheScope": "public"}
    server.replies["tools/list"] = listed
    async with opened() as session:
        assert await session.tool("large") is None
        assert await session.tool("tool") is not None


@ways("relay", "memory")
async def test_a_list_that_does_not_come_is_given_up(opened: Opened, server: CurrentServer) -> None:
    server.replies["tools/list"] = NEVER
    async with opened(Limits(task_timeout_s=0.05)) as session:
        with pytest.raises(ConnectionLostError) as caught:
            await send(session, "tools/call")
    assert (caught.value.retryable, caught.value.not_executed) == (True, True)
    assert server.requests == []


@ways("relay", "memory")
@pytest.mark.parametrize("failures", [1, 3])
async def test_a_page_that_fails_for_a_moment_does_not_end_the_list(
    opened: Opened, server: CurrentServer, failures: int
) -> None:
    """Or headers and schemas of the second half would be missing, for as long as the list is kept."""
    listed = {**ACKNOWLEDGED, "ttlMs": 0, "cacheScope": "public"}
    first, second = ({**listed, "tools": [{**TOOL, "name": name}]} for name in ("first", "second"))
    first["nextCursor"] = "2"
    server.replies["tools/list"] = [first, *[Fault(-32603, "Boom")] * failures, second, first, second]
    async with opened() as session:
        if failures == 3:  # as often as it is asked for
            with pytest.raises(SessionError, match="Boom") as caught:
                await session.tool("second")
            assert caught.value.retryable
            server.replies["tools/list"] = [first, second]
        for name in ("second", "first"):
            assert await session.tool(name) is not None, name
    assert server.counts["tools/list"] == (3 if failures == 1 else 6)


@ways("relay", "memory", "core")
async def test_a_list_that_the_server_refuses_headers_by_is_out_of_date(
    opened: Opened, server: CurrentServer
) -> None:
    async with opened() as session:
        await send(session, "tools/call")
        server.list_tool({**TOOL, "description": "another"})
        server.replies["tools/call"] = Fault(-32020, "Header mismatch")
        with pytest.raises(RemoteProtocolError):
            await send(session, "tools/call")
        tool = await session.tool("tool")
    assert tool is not None
    assert tool.description == "another"


@ways("relay", "memory", "core")
async def test_a_session_that_is_closed_lists_nothing_more(opened: Opened, server: CurrentServer) -> None:
    async with opened() as session:
        await send(session, "tools/call")
        await session.aclose()
        server.received.clear()
        with pytest.raises(ConnectionLostError, match="closed"):
            await session.tool("tool", fresh=True)
    assert server.methods == []
