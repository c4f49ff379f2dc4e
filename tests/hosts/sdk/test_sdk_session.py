"""Requests over a session of the SDK: what comes back, and what is made of what goes wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import mcp
import pytest
from mcp.client.extension import advertise
from mcp.server.mcpserver import MCPServer
from mcp_types import ElicitResult, ErrorData

from mcp_tasks_client.callbacks import Callbacks, InputContext
from mcp_tasks_client.errors import (
    ConnectionLostError,
    MissingCapabilityError,
    RemoteProtocolError,
    SessionError,
)
from mcp_tasks_client.hosts.sdk.sdk_session import SdkSession, host_callbacks
from mcp_tasks_client.protocol import EXTENSION_ID, JSONObject
from mcp_tasks_client.protocol.replies import Created, InputRequired, Returned
from mcp_tasks_client.sessions.base import Limits, TaskRef, ToolCall

from .server import (
    DONE,
    LIMIT_S,
    NEVER,
    RESULT,
    TASK_ID,
    TOOL,
    WORKING,
    Fault,
    Http,
    SdkServer,
    at_loopback,
    in_memory,
)

pytestmark = [
    pytest.mark.anyio,
    # The SDK's transport leaves a body that it gave up to the garbage collector, which trio tells.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]

ENDPOINT: Final = "a-server"
CALL: Final = ToolCall(name="tool", arguments={"a": 1})
REF: Final = TaskRef(TASK_ID)
QUESTION: Final[JSONObject] = {
    "method": "elicitation/create",
    "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
}


async def nothing() -> None:
    pass


@asynccontextmanager
async def session_at(
    transport: Any, *, limits: Limits | None = None, **options: Any
) -> AsyncIterator[SdkSession]:
    """A session of ours over a client of the SDK's, which waits for nothing between two attempts."""

    async def doze(seconds: float) -> None:
        await anyio.lowlevel.checkpoint()

    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(transport, extensions=[advertise(EXTENSION_ID)], **options) as client:
            yield SdkSession(lambda: client.session, endpoint=ENDPOINT, limits=limits, sleep=doze)


# ── replies ───────────────────────────────────────────────────────────────────────────────────────

ODD: Final[dict[str, JSONObject]] = {
    "nothing but an ID": {"status": ...},
    "a status that is null": {"status": None},
    "a new status": {"status": "dreaming"},
    "numbers as text": {"ttlMs": "soon", "pollIntervalMs": [1]},
    "a negative ttlMs": {"ttlMs": -5},
    "null metadata": {"_meta": None},
    "content that is none": {"content": 5, "isError": "maybe", "structuredContent": "x"},
    "requestState that is a number": {"requestState": 5},
    "inputRequests that are a list": {"inputRequests": [1]},
    "an unknown input request": {"inputRequests": {"k": {"method": "nope"}}},
    "metadata that is text, with content": {"_meta": "x", "content": []},
}


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
async def test_not_even_a_reply_that_the_sdk_takes_for_broken_costs_a_task(changes: JSONObject) -> None:
    reply = {name: value for name, value in {**WORKING, **changes}.items() if value is not ...}
    async with session_at(in_memory(SdkServer(calls=[reply]))) as session:
        created = await session.call(CALL, nothing)
    assert isinstance(created, Created)
    assert created.task.task_id == TASK_ID


@pytest.mark.parametrize("task_id", [None, 7, ""])
async def test_a_task_without_an_id_is_a_breach_of_the_protocol(task_id: object) -> None:
    async with session_at(in_memory(SdkServer(calls=[{**WORKING, "taskId": task_id}]))) as session:
        with pytest.raises(RemoteProtocolError, match="taskId"):
            await session.call(CALL, nothing)


async def test_a_call_may_return_at_once_or_ask_first() -> None:
    asks = {"resultType": "input_required", "inputRequests": {"k": QUESTION}, "requestState": "s"}
    server = SdkServer(calls=[asks, {**RESULT, "resultType": "complete"}])
    async with session_at(in_memory(server)) as session:
        first = await session.call(CALL, nothing)
        assert first == InputRequired({"k": QUESTION}, "s")
        again = ToolCall(name="tool", input_responses={"k": {"action": "decline"}}, request_state="s")
        second = await session.call(again, nothing)
    assert isinstance(second, Returned)
    assert second.result["structuredContent"] == {"n": 1}
    assert server.received[-1][1]["inputResponses"] == {"k": {"action": "decline"}}
    assert server.received[-1][1]["requestState"] == "s"


async def test_a_call_carries_arguments_and_metadata_as_given_and_every_request_the_capability() -> None:
    server = SdkServer()
    async with session_at(in_memory(server)) as session:
        await session.call(ToolCall(name="tool", arguments={"a": [1, None]}, meta={"x/y": "z"}), nothing)
        await session.get(REF)
    sent = dict(server.received)
    assert sent["tools/call"]["arguments"] == {"a": [1, None]}
    assert sent["tools/call"]["_meta"]["x/y"] == "z"
    for method in ("tools/call", "tasks/get"):
        capabilities = sent[method]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        assert EXTENSION_ID in capabilities["extensions"]


# ── sent once, and when ───────────────────────────────────────────────────────────────────────────


async def test_a_caller_is_told_right_before_a_call_leaves_and_may_still_take_it_back() -> None:
    server = SdkServer()
    seen: list[str] = []

    async def note() -> None:
        seen.extend(method for method, _ in server.received)

    async def refuse() -> None:
        raise LookupError("changed my mind")

    async with session_at(in_memory(server)) as session:
        with pytest.raises(LookupError):
            await session.call(CALL, refuse)
        assert server.counts["tools/call"] == 0
        await session.call(CALL, note)
    assert seen == ["server/discover", "tools/list"]
    assert server.counts["tools/call"] == 1


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────────

EVENTS: Final = ["Content-Type: text/event-stream"]
JSON: Final = ["Content-Type: application/json"]
LOSSES: Final[dict[str, JSONObject | Exception]] = {
    "503 without a body": Http("503 Service Unavailable", headers=["Retry-After: 1"]),
    "429 as text": Http("429 Too Many Requests", b"slow down", ["Content-Type: text/plain"]),
    "404 without a body": Http("404 Not Found"),
    "401 without a body": Http("401 Unauthorized"),
    "a page of HTML": Http("200 OK", b"<html>", ["Content-Type: text/html"]),
    "JSON that ends early": Http("200 OK", b'{"jsonrpc": "2.0", "id"', JSON),
    "JSON that is no reply": Http("200 OK", b"[]", JSON),
    "an event stream that ends early": Http("200 OK", b": hello\n\n", EVENTS),
    "an event that is no reply": Http("200 OK", b"data: {\n\n", EVENTS),
    "202 Accepted": Http("202 Accepted"),
    "a redirect that is not followed": Http("303 See Other", headers=["Location: http://127.0.0.1:9/"]),
    "no reply in time": NEVER,
    "a result that is none": {"resultType": "complete", "_meta": 5},
}


@pytest.mark.parametrize("fault", LOSSES.values(), ids=LOSSES)
async def test_a_reply_that_says_nothing_of_the_request_may_come_later_and_settles_no_call(
    fault: Any,
) -> None:
    server = SdkServer(calls=[fault], gets=[fault])
    async with (
        at_loopback(server) as url,
        session_at(url, limits=Limits(task_timeout_s=0.25), read_timeout_seconds=0.25) as session,
    ):
        for request in (session.get(REF), session.call(CALL, nothing)):
            with pytest.raises(SessionError) as caught:
                await request
            error = caught.value
            assert (error.retryable, error.not_executed, error.code) == (True, False, None)


async def test_a_poll_without_a_reply_is_given_up_by_the_limits_though_the_client_has_none() -> None:
    limits = Limits(task_timeout_s=0.1)
    async with session_at(in_memory(SdkServer(gets=[NEVER])), limits=limits) as session:
        with pytest.raises(ConnectionLostError) as caught:
            await session.get(REF)
    assert caught.value.retryable


REFUSALS: Final = {
    Fault(-32602, "Unknown task", {"task": "t"}): (False, True),
    Fault(-32601, "No tools here"): (False, True),
    Fault(-32603, "Boom", {"trace": [1]}): (True, False),
    Fault(-32000, "Busy"): (True, False),
    Fault(-32000, "Connection closed"): (True, False),  # a proxy's words, about a connection of its own
    Fault(7, "A code of its own"): (True, False),
}


@pytest.mark.parametrize("at_port", [True, False], ids=["http", "in memory"])
@pytest.mark.parametrize("fault", REFUSALS, ids=str)
async def test_an_error_that_the_server_answers_is_kept_as_it_is(fault: Fault, at_port: bool) -> None:
    server = SdkServer(calls=[fault], gets=[fault])
    said = None if fault.message == "Connection closed" else (fault.code, fault.message, fault.data)
    async with at_loopback(server) as url, session_at(url if at_port else in_memory(server)) as session:
        for request in (session.get(REF), session.call(CALL, nothing)):
            with pytest.raises(SessionError) as caught:
                await request
            error = caught.value
            assert (error.retryable, error.not_executed) == REFUSALS[fault]
            assert said in (None, (error.code, error.remote_message, error.data))


async def test_a_capability_that_the_server_misses_ends_the_request() -> None:
    server = SdkServer(calls=[Fault(-32021, "Missing", {"requiredCapabilities": {"sampling": {}}})])
    async with session_at(in_memory(server)) as session:
        with pytest.raises(
            MissingCapabilityError, match=r"Give TasksClient or the host's client a callback"
        ) as caught:
            await session.call(CALL, nothing)
    assert (caught.value.retryable, caught.value.not_executed) == (False, True)


# ── connections ───────────────────────────────────────────────────────────────────────────────────


async def test_a_connection_that_is_closed_is_found_by_the_next_request_and_by_those_under_way() -> None:
    server = SdkServer(gets=[NEVER])
    errors: list[SessionError] = []

    async def request(send: Callable[[], Awaitable[object]]) -> None:
        try:
            await send()
        except SessionError as error:
            errors.append(error)

    with anyio.fail_after(LIMIT_S):
        client = mcp.Client(in_memory(server), extensions=[advertise(EXTENSION_ID)])
        async with anyio.create_task_group() as requests, client:
            sdk = client.session
            session = SdkSession(lambda: sdk, endpoint=ENDPOINT)
            requests.start_soon(request, lambda: session.get(REF))
            await server.waiting.wait()
        await request(lambda: session.get(REF))
    assert len(errors) == 2
    for error in errors:
        assert isinstance(error, ConnectionLostError)
        assert not error.retryable
        assert "resume()" in str(error)


async def test_without_a_connection_nothing_is_sent_and_another_one_serves_as_well() -> None:
    server = SdkServer(gets=[DONE])
    client = mcp.Client(in_memory(server), extensions=[advertise(EXTENSION_ID)])
    session = SdkSession(lambda: client.session, endpoint=ENDPOINT)
    with pytest.raises(ConnectionLostError, match="not connected") as caught:
        await session.get(REF)
    assert caught.value.not_executed
    with anyio.fail_after(LIMIT_S):
        async with client:
            assert (await session.get(REF)).task.status == "completed"


async def test_over_another_connection_the_tools_are_listed_again() -> None:
    """The SDK forgets with each connection which arguments travel as headers."""
    server, clients = SdkServer(), list[mcp.Client]()
    session = SdkSession(lambda: clients[-1].session, endpoint=ENDPOINT)
    with anyio.fail_after(LIMIT_S):
        for _ in range(2):
            clients.append(mcp.Client(in_memory(server), extensions=[advertise(EXTENSION_ID)]))
            async with clients[-1]:
                await session.call(CALL, nothing)
    assert server.counts["tools/list"] == 2


async def test_a_session_that_is_closed_sends_nothing_more_though_its_client_is_connected() -> None:
    server = SdkServer()
    async with session_at(in_memory(server)) as session:
        await session.aclose()
        with pytest.raises(ConnectionLostError, match="session is closed"):
            await session.get(REF)
    assert server.counts["tasks/get"] == 0


async def test_over_an_older_connection_the_error_names_the_two_ways_that_are_left() -> None:
    older = mcp.Client(MCPServer("older"), mode="legacy", extensions=[advertise(EXTENSION_ID)])
    with anyio.fail_after(LIMIT_S):
        async with older as client:
            session = SdkSession(lambda: client.session, endpoint=ENDPOINT)
            for request in (session.call(CALL, nothing), session.get(REF), session.tool("tool")):
                with pytest.raises(
                    RemoteProtocolError, match=r"TasksTransport.*TasksClient\(url\)"
                ) as caught:
                    await request
                assert (caught.value.retryable, caught.value.not_executed) == (False, True)


async def test_requests_of_ours_declare_the_extension_that_the_client_was_made_without() -> None:
    server = SdkServer()
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(in_memory(server)) as client:
            session = SdkSession(lambda: client.session, endpoint=ENDPOINT, capabilities={"roots": {}})
            assert isinstance(await session.call(CALL, nothing), Created)
            await session.get(REF)
            await session.update(REF, {})
            await session.cancel(REF)
    for method, params in server.received:
        if "tasks/" in method or method == "tools/call":
            capabilities = params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
            assert capabilities == {"roots": {}, "extensions": {EXTENSION_ID: {}}}, method


# ── tools ─────────────────────────────────────────────────────────────────────────────────────────


async def test_the_list_of_tools_is_fetched_once_and_again_when_it_is_to_be_fresh() -> None:
    tool = dict(TOOL)
    server = SdkServer(tool=tool)

    async def required(session: SdkSession, *, fresh: bool = False) -> object:
        listed = await session.tool("tool", fresh=fresh)
        assert listed is not None
        return (listed.output_schema or {}).get("required")

    async with session_at(in_memory(server)) as session:
        assert await required(session) == ["n"]
        tool["outputSchema"] = {"type": "object", "required": ["amount"]}
        assert await required(session) == ["n"]
        assert await required(session, fresh=True) == ["amount"]
        assert server.counts["tools/list"] == 2
        assert await session.tool("no-such-tool") is None


async def test_callers_who_wait_for_one_list_share_it_or_its_failure() -> None:
    async def answer(method: str, params: JSONObject) -> JSONObject:
        reply = await server(method, params)
        if method == "tools/list":
            await anyio.lowlevel.checkpoint()
            if server.counts[method] <= 3:
                raise Fault(-32603, "Boom")
        return reply

    async def find(session: SdkSession) -> None:
        try:
            found.append(await session.tool("tool"))
        except SessionError as error:
            found.append(error)

    server, found = SdkServer(), list[Any]()
    async with session_at(in_memory(answer)) as session:
        for _ in range(2):
            async with anyio.create_task_group() as callers:
                for _ in range(5):
                    callers.start_soon(find, session)
    assert server.counts["tools/list"] == 4, "asked three times, and then once more"
    assert [type(one).__name__ for one in found] == ["SessionError"] * 5 + ["Tool"] * 5


async def test_a_call_whose_tools_cannot_be_listed_was_surely_not_executed() -> None:
    async def answer(method: str, params: JSONObject) -> JSONObject:
        if method == "tools/list":
            raise Fault(-32603, "Boom")
        return await server(method, params)

    server = SdkServer()
    async with session_at(in_memory(answer)) as session:
        with pytest.raises(SessionError) as caught:
            await session.call(CALL, nothing)
    assert caught.value.not_executed
    assert server.counts["tools/call"] == 0


async def test_a_tool_that_is_not_listed_is_looked_for_once_and_can_be_called() -> None:
    server = SdkServer()
    async with session_at(in_memory(server)) as session:
        await session.tool("tool")
        for _ in range(3):
            await session.call(ToolCall(name="unlisted"), nothing)
    assert server.counts["tools/call"] == 3
    assert server.counts["tools/list"] == 2


async def test_a_list_of_tools_that_does_not_end_is_given_up() -> None:
    async def answer(method: str, params: JSONObject) -> JSONObject:
        reply = await SdkServer()(method, params)
        return {**reply, "nextCursor": "more"} if method == "tools/list" else reply

    async with session_at(in_memory(answer)) as session:
        with pytest.raises(RemoteProtocolError, match="does not end"):
            await session.tool("tool")


async def test_a_call_that_is_refused_for_its_headers_has_the_tools_listed_again() -> None:
    server = SdkServer(calls=[Fault(-32020, "Header mismatch"), WORKING])
    async with session_at(in_memory(server)) as session:
        with pytest.raises(RemoteProtocolError, match="call again") as caught:
            await session.call(CALL, nothing)
        assert caught.value.not_executed
        await session.call(CALL, nothing)
    assert server.counts["tools/list"] == 2


async def test_arguments_that_belong_into_headers_go_there_too() -> None:
    region = {"type": "string", "x-mcp-header": "Region"}
    server = SdkServer(
        tool={"name": "tool", "inputSchema": {"type": "object", "properties": {"region": region}}}
    )
    async with at_loopback(server, heads := list[str]()) as url, session_at(url) as session:
        await session.call(ToolCall(name="tool", arguments={"region": "eu"}), nothing)
        await session.get(REF)
    assert any("mcp-param-region: eu" in head for head in heads)
    assert any(f"mcp-name: {TASK_ID}" in head for head in heads)


# ── the host's own callbacks ──────────────────────────────────────────────────────────────────────


async def test_a_question_goes_to_the_hosts_own_callback_unless_another_one_is_given() -> None:
    asked: list[str] = []

    async def theirs(context: Any, params: Any) -> ElicitResult:
        asked.append(f"theirs {context.request_id} {params.message}")
        return ElicitResult(action="accept", content={})

    async def ours(context: InputContext, params: Any) -> ElicitResult:
        asked.append(f"ours {context.key} {params.message}")
        return ElicitResult(action="accept", content={})

    async def no_roots(context: Any) -> ErrorData:
        asked.append("roots")
        return ErrorData(code=7, message="none")

    context = InputContext(tool="tool", key="k", task=None)
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(
            in_memory(SdkServer()), elicitation_callback=theirs, list_roots_callback=no_roots
        ) as client:
            inputs = host_callbacks(lambda: client.session, Callbacks())
            assert await inputs.answer(context, QUESTION) == {"action": "accept", "content": {}}
            inputs = host_callbacks(lambda: client.session, Callbacks(elicitation=ours))
            await inputs.answer(context, QUESTION)
            with pytest.raises(Exception, match="refused with error 7"):
                await inputs.answer(context, {"method": "roots/list", "params": {}})
    assert asked == ["theirs k ?", "ours k ?", "roots"]


def test_a_session_says_what_it_is() -> None:
    session = SdkSession(lambda: NotImplemented, endpoint=ENDPOINT, ephemeral=True)
    assert (session.endpoint, session.ephemeral, session.limits) == (ENDPOINT, True, Limits())
    assert repr(session) == "<SdkSession a-server>"
