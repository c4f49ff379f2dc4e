"""What every session keeps to: the scripted ones and the real one, over the same tests."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import anyio
import httpx
import pytest
from mcp_types import Tool

from mcp_tasks_client import SessionError
from mcp_tasks_client.sessions.base import INVALID_PARAMS, Session, TaskRef, ToolCall
from mcp_tasks_client.sessions.http import HttpSession
from mcp_tasks_client.testing import (
    ScriptedServer,
    ScriptedSession,
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
from mcp_tasks_client.wire import Created, InputRequired, JSONObject, Returned, Task

from .real_server import RealServer

pytestmark = pytest.mark.anyio

FORM: JSONObject = {
    "method": "elicitation/create",
    "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
}
ANSWER: JSONObject = {"action": "accept", "content": {"name": "Ada"}}
Opened = Callable[..., AbstractAsyncContextManager[Session]]


def scripted(tool: str) -> ScriptedSession:
    """The same tools as the real server's, as scripts."""
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
    return ScriptedSession(calls=calls.get(tool, [text_result("?")]), gets=gets, tools=tools)


def scripted_server(*, event_stream: bool = False) -> ScriptedServer:
    """The same tools once more, as timelines."""
    server = ScriptedServer(event_stream=event_stream)
    done = complete(text_result("1"))
    server.tool("plain", [reply(text_result("1"))])
    server.tool("fast", [work(0.05), done])
    server.tool("ask_name", [work(0.05), ask("k", FORM), done])
    server.tool("cancelable", [work(math.inf)])
    server.tool("ask_plainly", [ask_first("amount", form("?", amount="string")), reply(text_result("2 kg"))])
    return server


@pytest.fixture(params=["scripted", "server in memory", "server as app", "server as app, events", "http"])
def opened(request: pytest.FixtureRequest) -> Opened:
    @asynccontextmanager
    async def open_session(tool: str = "plain") -> AsyncIterator[Session]:
        session: Session
        async with AsyncExitStack() as stack:
            match request.param:
                case "scripted":
                    session = scripted(tool)
                case "server in memory":
                    session = scripted_server().session()
                case "http":
                    server: RealServer = request.getfixturevalue("real_server")
                    session = HttpSession(server.url, capabilities={"elicitation": {"form": {}, "url": {}}})
                case kind:
                    app = scripted_server(event_stream="events" in kind).app
                    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), trust_env=False)
                    await stack.enter_async_context(client)
                    session = HttpSession("http://server.test/mcp", http_client=client)
            with anyio.fail_after(30):
                yield session
                await session.aclose()

    return open_session


async def until(session: Session, ref: TaskRef, status: str) -> Task:
    while (task := await session.get(ref)).status != status:
        assert not task.terminal
        await anyio.sleep(0.02)  # the server's own hint; a session keeps no pace
    return task


async def created(session: Session, name: str) -> TaskRef:
    reply = await session.call(ToolCall(name=name))
    assert isinstance(reply, Created)
    assert reply.task.status == "working"
    return TaskRef(reply.task.task_id)


async def test_a_call_may_return_at_once(opened: Opened) -> None:
    async with opened("plain") as session:
        reply = await session.call(ToolCall(name="plain", arguments={"x": 1}))
        assert isinstance(reply, Returned)
        assert reply.result["content"][0]["text"] == "1"


async def test_a_call_may_create_a_task_that_get_then_knows(opened: Opened) -> None:
    async with opened("fast") as session:
        ref = await created(session, "fast")
        task = await until(session, ref, "completed")
        assert task.task_id == ref.task_id
        assert task.result is not None


async def test_a_call_may_ask_first(opened: Opened) -> None:
    async with opened("ask_plainly") as session:
        reply = await session.call(ToolCall(name="ask_plainly", arguments={"item": "flour"}))
        assert isinstance(reply, InputRequired)
        assert set(reply.requests) == {"amount"}
        answer = {"action": "accept", "content": {"amount": "2 kg"}}
        again = await session.call(
            ToolCall(
                name="ask_plainly",
                arguments={"item": "flour"},
                input_responses={"amount": answer},
                request_state=reply.request_state,
            )
        )
        assert isinstance(again, Returned)


async def test_an_update_is_acknowledged_and_moves_the_task(opened: Opened) -> None:
    async with opened("ask_name") as session:
        ref = await created(session, "ask_name")
        asking = await until(session, ref, "input_required")
        assert asking.input_requests is not None
        await session.update(ref, dict.fromkeys(asking.input_requests, ANSWER))
        await until(session, ref, "completed")


async def test_a_cancel_is_acknowledged(opened: Opened) -> None:
    async with opened("cancelable") as session:
        ref = await created(session, "cancelable")
        await session.cancel(ref)
        await until(session, ref, "cancelled")


async def test_who_listens_is_granted_something_or_nothing_or_refused_and_polls_go_on(opened: Opened) -> None:
    async with opened("fast") as session:
        ref = await created(session, "fast")
        agreed: list[frozenset[str]] = []
        heard: list[Task] = []
        refusal: SessionError | None = None
        try:
            await session.listen([ref.task_id], agreed.append, heard.append)
        except SessionError as error:
            refusal = error
        assert agreed == ([] if refusal else [frozenset()])
        assert refusal is None or (refusal.code, refusal.retryable) == (-32601, False)
        assert heard == []
        await until(session, ref, "completed")


@pytest.mark.parametrize("verb", ["get", "update", "cancel"])
async def test_an_unknown_task_is_invalid_params(opened: Opened, verb: str) -> None:
    async with opened() as session:
        arguments = (TaskRef("nobody-knows-this"), *([{"k": ANSWER}] if verb == "update" else []))
        with pytest.raises(SessionError) as caught:
            await getattr(session, verb)(*arguments)
        assert caught.value.code == INVALID_PARAMS
        assert not caught.value.retryable


async def test_tools_are_described_by_name(opened: Opened) -> None:
    async with opened() as session:
        tool = await session.tool("plain")
        assert tool is not None
        assert tool.name == "plain"
        assert await session.tool("no such tool") is None


async def test_the_endpoint_has_a_name(opened: Opened) -> None:
    async with opened() as session:
        assert session.endpoint
