"""The client against a real FastMCP tasks server, over HTTP, on both event loops."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import FileUrl

from mcp_tasks_client import (
    MemoryJournal,
    MissingCapabilityError,
    PollPolicy,
    TaskCancelledError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClient,
    TasksClientError,
    ToolCall,
    ToolError,
)
from mcp_tasks_client.protocol import EXTENSION_ID
from mcp_tasks_client.protocol.replies import Returned
from mcp_tasks_client.sessions.http.http_session import HttpSession
from tests._results import text
from tests.kit.person import Person

from ._requirements import requirement
from .real_server import RealServer

pytestmark = pytest.mark.anyio


async def sample(context: Any, params: CreateMessageRequestParams) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="4"), model="m")


async def roots(context: Any) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri=FileUrl("file:///tmp"))])


@asynccontextmanager
async def opened(server: RealServer, **options: Any) -> AsyncIterator[TasksClient]:
    given: dict[str, Any] = {
        "journal": MemoryJournal(),
        "elicitation": Person().elicit,
        "sampling": sample,
        "roots": roots,
    } | options
    with anyio.fail_after(30):
        async with TasksClient(server.url, **given) as client:
            yield client


async def test_an_immediate_result(real_server: RealServer) -> None:
    async with opened(real_server) as client:
        assert text(await client.call_tool("plain", {"x": 1})) == "1"
        assert await client.records() == []


@requirement("create:either-result", "poll:until-terminal")
async def test_a_task_that_is_done_at_the_first_look(real_server: RealServer) -> None:
    async with opened(real_server) as client:
        result = await client.call_tool("fast", {"x": 3})
        assert result.structured_content == {"result": 3}


@requirement("poll:respect-interval")
async def test_a_slow_task_with_status_messages_is_polled_at_its_pace(real_server: RealServer) -> None:
    async with opened(real_server) as client:
        handle = await client.start_tool("slow", {"seconds": 60.0})
        assert handle.task_id is not None
        async for task in handle.updates():
            if task.status_message:
                break
        while len(polls := real_server.witness(handle.task_id, "tasks/get")) < 4:
            await anyio.sleep(0.02)
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await handle.result()
        assert text(await client.call_tool("slow", {"seconds": 0.2})) == "rested"
    assert min(later.at - earlier.at for earlier, later in pairwise(polls)) >= 0.05


@requirement("headers:mcp-name", "headers:mcp-method", "capability:per-request")
async def test_every_request_says_its_method_its_name_and_the_extension(real_server: RealServer) -> None:
    async with opened(real_server) as client:
        handle = await client.start_tool("ask_name")
        await handle.result()
    assert handle.task_id is not None
    seen = real_server.witness(handle.task_id)
    assert {entry.method for entry in seen} == {"tools/call", "tasks/get", "tasks/update"}
    for entry in seen:
        assert entry.mcp_method == entry.method
        assert entry.mcp_name == entry.subject
        assert entry.meta is not None
        capabilities = entry.meta["io.modelcontextprotocol/clientCapabilities"]
        assert capabilities["extensions"][EXTENSION_ID] == {}
        assert set(capabilities) == {"elicitation", "sampling", "roots", "extensions"}


@requirement("input:fulfil", "update:continue-observing", "update:outstanding-keys", "input:answer-once")
async def test_one_question(real_server: RealServer) -> None:
    async with opened(real_server) as client:
        handle = await client.start_tool("ask_name")
        assert text(await handle) == "Hello, Ada"
    assert handle.task_id is not None
    (update,) = real_server.witness(handle.task_id, "tasks/update")
    assert [key.startswith(handle.task_id) for key in update.input_keys] == [True]


async def test_several_questions_at_once_and_then_one_more(real_server: RealServer) -> None:
    async with opened(real_server) as client:
        handle = await client.start_tool("ask_many")
        assert text(await handle) == "XL and red: yes"
    assert handle.task_id is not None
    updates = real_server.witness(handle.task_id, "tasks/update")
    assert [len(update.input_keys) for update in updates] == [2, 1]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_person_may_decline_or_cancel(real_server: RealServer, action: Any) -> None:
    async with opened(real_server, elicitation=lambda *_: ElicitResult(action=action)) as client:
        assert action in text(await client.call_tool("ask_name"))


async def test_sampling_and_roots(real_server: RealServer) -> None:
    async with opened(real_server) as client:
        assert text(await client.call_tool("ask_model_and_roots")) == "4 in file:///tmp"


async def test_a_url_elicitation_is_put_to_the_host_and_nothing_is_opened(real_server: RealServer) -> None:
    urls: list[str] = []

    async def look(context: Any, params: Any) -> ElicitResult:
        urls.append(params.url)
        return ElicitResult(action="accept")

    async with opened(real_server, elicitation=look) as client:
        assert text(await client.call_tool("ask_url")) == "accept"
    assert len(urls) == 1


@requirement("mrtr:answers")
@pytest.mark.parametrize("tool", ["ask_plainly", "ask_then_task"])
async def test_questions_before_the_tool_begins(real_server: RealServer, tool: str) -> None:
    async with opened(real_server) as client:
        assert "flour" in text(await client.call_tool(tool, {"item": "flour"}))


async def test_a_tool_error_is_a_result(real_server: RealServer) -> None:
    async with opened(real_server) as client:
        result = await client.call_tool("fail_tool")
        assert result.is_error
        assert "no" in text(result)
        assert (await client.call_tool("no_such_tool")).is_error


@pytest.mark.parametrize("way", ["call_tool", "result", "outcome"])
async def test_a_tool_that_raised_is_an_error_if_asked_for(real_server: RealServer, way: str) -> None:
    async def wait(client: TasksClient) -> None:
        if way == "call_tool":
            await client.call_tool("fail_tool", raise_on_error=True)
        elif way == "result":
            await (await client.start_tool("fail_tool")).result(raise_on_error=True)
        else:
            async with (await client.start_tool("fail_tool")).outcome(raise_on_error=True):
                raise AssertionError("the block is not entered")

    async with opened(real_server) as client:
        with pytest.raises(ToolError, match="the tool said no") as caught:
            await wait(client)
        assert await client.resume() == []
    error = caught.value
    assert text(error.result) == "the tool said no"
    assert error.tool == "fail_tool"
    assert error.handle is not None
    assert error.handle.task_id is not None


async def test_a_json_rpc_failure_keeps_everything(real_server: RealServer) -> None:
    async with opened(real_server) as client:
        with pytest.raises(TaskFailedError) as caught:
            await client.call_tool("fail_rpc")
    error = caught.value
    assert (error.code, error.message, error.data) == (-32050, "quota exceeded", {"retryAfter": 7})


@requirement("cancel:tasks-cancel")
async def test_cancelling(real_server: RealServer) -> None:
    mark = real_server.mark()
    async with opened(real_server) as client:
        handle = await client.start_tool("cancelable")
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await handle.result()
    assert handle.task_id is not None
    methods = [entry.method for entry in real_server.witness(handle.task_id)]
    assert methods.count("tasks/cancel") == 1
    assert "notifications/cancelled" not in {entry.method for entry in real_server.witness(since=mark)}


async def test_abandoning_leaves_the_task_alone_or_cancels_it_as_wished(real_server: RealServer) -> None:
    for on_abandon, cancels in (("detach", 0), ("cancel", 1)):
        journal = MemoryJournal()
        async with opened(real_server, journal=journal, on_abandon=on_abandon) as client:
            with anyio.CancelScope() as caller:
                # Once there is a task, which a time limit could not tell.
                await client.call_tool("cancelable", on_update=lambda task: caller.cancel())
            assert caller.cancelled_caught
            (record,) = await client.records()
        assert record.task_id is not None
        assert len(real_server.witness(record.task_id, "tasks/cancel")) == cancels


async def test_a_tool_that_requires_tasks(real_server: RealServer) -> None:
    async with opened(real_server) as client:
        assert text(await client.call_tool("must_task", {"n": 4})) == "4"


async def test_a_missing_capability_is_told_from_other_errors(real_server: RealServer) -> None:
    async with httpx.AsyncClient(transport=Undeclared(), trust_env=False) as http_client:
        session = HttpSession(real_server.url, http_client=http_client)
        with anyio.fail_after(30):
            with pytest.raises(MissingCapabilityError):
                await session.call(ToolCall(name="must_task", arguments={"n": 4}), announce)
            reply = await session.call(ToolCall(name="fast", arguments={"x": 1}), announce)
            assert isinstance(reply, Returned)


async def announce() -> None:
    """What a session is told to do right before a call leaves: nothing."""


class Undeclared(httpx.AsyncHTTPTransport):
    """Takes the extension out of every request's capabilities: a client that knows nothing of tasks."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        message = json.loads(request.content)
        del message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"]
        headers = {k: v for k, v in request.headers.items() if k != "content-length"}
        stripped = httpx.Request("POST", request.url, headers=headers, json=message)
        stripped.extensions = request.extensions
        return await super().handle_async_request(stripped)


async def test_an_unknown_task(real_server: RealServer) -> None:
    async with opened(real_server) as client:
        handle = await client.attach("no-such-task-was-ever-made")
        with pytest.raises(TaskNotFoundError):
            await handle.result()


async def test_structured_output_is_checked_and_returned(real_server: RealServer) -> None:
    async with opened(real_server) as client:
        result = await client.call_tool("typed", {"name": "Oslo"})
        assert result.structured_content is not None
        assert set(result.structured_content) == {"name", "inhabitants"}


async def test_arguments_that_belong_into_headers_go_there_too(real_server: RealServer) -> None:
    for region in ("eu-west", "Tōkyō"):
        async with opened(real_server) as client:
            handle = await client.start_tool("routed", {"region": region})
            assert region in text(await handle)
    (seen, encoded) = [e for e in real_server.witness(method="tools/call") if e.subject == "routed"][-2:]
    assert seen.mcp_params == {"mcp-param-region": "eu-west"}
    assert encoded.mcp_params["mcp-param-region"].startswith("=?base64?")


async def test_many_at_once(real_server: RealServer) -> None:
    results: list[str] = []
    async with opened(real_server, poll=PollPolicy(polls_in_flight=4)) as client:

        async def one(n: int) -> None:
            results.append(text(await client.call_tool("fast", {"x": n})))

        async with anyio.create_task_group() as tasks:
            for n in range(40):
                tasks.start_soon(one, n)
    assert sorted(map(int, results)) == list(range(40))


async def test_a_callers_own_http_client_is_used_and_left_open(real_server: RealServer) -> None:
    async with httpx.AsyncClient(headers={"X-Mine": "1"}, trust_env=False) as http_client:
        async with opened(real_server, http_client=http_client) as client:
            assert text(await client.call_tool("fast", {"x": 1})) == "1"
        assert not http_client.is_closed


async def test_a_server_that_is_not_there(unused_url: str) -> None:
    with anyio.fail_after(30):
        async with TasksClient(unused_url, journal=MemoryJournal()) as client:
            with pytest.raises(TasksClientError, match="could not be sent"):
                await client.call_tool("plain")
