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

from mcp_tasks_client import InputContext, Limits, TaskRef, ToolCall
from mcp_tasks_client.errors import (
    ConnectionLostError,
    RemoteProtocolError,
    SessionError,
)
from mcp_tasks_client.hosts.sdk.sdk_session import SdkSession, host_callbacks
from mcp_tasks_client.protocol import EXTENSION_ID, JSONObject
from mcp_tasks_client.protocol.replies import Created
from mcp_tasks_client.questions.callbacks import Callbacks
from tests.kit.current_server import (
    DONE,
    LIMIT_S,
    NEVER,
    QUESTION,
    TASK_ID,
    WORKING,
    CurrentServer,
    Fault,
    Http,
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
    async with session_at(in_memory(CurrentServer(calls=[reply]))) as session:
        created = await session.call(CALL, nothing)
    assert isinstance(created, Created)
    assert created.task.task_id == TASK_ID


@pytest.mark.parametrize("task_id", [None, 7, ""])
async def test_a_task_without_an_id_is_a_breach_of_the_protocol(task_id: object) -> None:
    async with session_at(in_memory(CurrentServer(calls=[{**WORKING, "taskId": task_id}]))) as session:
        with pytest.raises(RemoteProtocolError, match="taskId"):
            await session.call(CALL, nothing)


# ── sent once, and when ───────────────────────────────────────────────────────────────────────────


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
    "no reply in time": NEVER,
    "a result that is none": {"resultType": "complete", "_meta": 5},
}


@pytest.mark.parametrize("fault", LOSSES.values(), ids=LOSSES)
async def test_a_reply_that_says_nothing_of_the_request_may_come_later_and_settles_no_call(
    fault: Any,
) -> None:
    server = CurrentServer(calls=[fault], gets=[fault])
    limit_s = 2.0 if fault is NEVER else LIMIT_S  # of the handshake, too
    async with (
        at_loopback(server) as url,
        session_at(url, limits=Limits(task_timeout_s=limit_s), read_timeout_seconds=limit_s) as session,
    ):
        for request in (session.get(REF), session.call(CALL, nothing)):
            with pytest.raises(SessionError) as caught:
                await request
            error = caught.value
            assert (error.retryable, error.not_executed, error.code) == (True, False, None)


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
    server = CurrentServer(calls=[fault], gets=[fault])
    said = None if fault.message == "Connection closed" else (fault.code, fault.message, fault.data)
    async with at_loopback(server) as url, session_at(url if at_port else in_memory(server)) as session:
        for request in (session.get(REF), session.call(CALL, nothing)):
            with pytest.raises(SessionError) as caught:
                await request
            error = caught.value
            assert (error.retryable, error.not_executed) == REFUSALS[fault]
            assert said in (None, (error.code, error.remote_message, error.data))


# ── connections ───────────────────────────────────────────────────────────────────────────────────


async def test_a_connection_that_is_closed_is_found_by_the_next_request_and_by_those_under_way() -> None:
    server = CurrentServer(gets=[NEVER])
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
    server = CurrentServer(gets=[DONE])
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
    server, clients = CurrentServer(), list[mcp.Client]()
    session = SdkSession(lambda: clients[-1].session, endpoint=ENDPOINT)
    with anyio.fail_after(LIMIT_S):
        for _ in range(2):
            clients.append(mcp.Client(in_memory(server), extensions=[advertise(EXTENSION_ID)]))
            async with clients[-1]:
                await session.call(CALL, nothing)
    assert server.counts["tools/list"] == 2


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


# ── tools ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_call_whose_tools_cannot_be_listed_was_surely_not_executed() -> None:
    async def answer(method: str, params: JSONObject) -> JSONObject:
        if method == "tools/list":
            raise Fault(-32603, "Boom")
        return await server(method, params)

    server = CurrentServer()
    async with session_at(in_memory(answer)) as session:
        with pytest.raises(SessionError) as caught:
            await session.call(CALL, nothing)
    assert caught.value.not_executed
    assert server.counts["tools/call"] == 0


async def test_arguments_that_belong_into_headers_go_there_too() -> None:
    region = {"type": "string", "x-mcp-header": "Region"}
    server = CurrentServer(
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
            in_memory(CurrentServer()), elicitation_callback=theirs, list_roots_callback=no_roots
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
