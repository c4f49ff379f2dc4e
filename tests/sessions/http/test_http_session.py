"""What a session sends, how many requests at once, and what it makes of the results."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from mcp_tasks_client import TaskRef, ToolCall
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import Returned
from mcp_tasks_client.sessions.http.http_session import HttpSession

from .scripted import (
    REF,
    TASK,
    TASK_ID,
    URL,
    HttpAnswers,
    events,
    result,
    rpc_id,
    send_call,
)

pytestmark = pytest.mark.anyio

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "host", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}


@pytest.mark.parametrize(
    "url", ["", "server.example/mcp", "ftp://x/", "http://", "/mcp", "http://h:port/", "x\n"]
)
def test_a_url_that_is_none_is_refused_with_advice(url: str) -> None:
    with pytest.raises(ValueError, match="https://host/mcp"):
        HttpSession(url)


def test_a_synchronous_client_is_refused() -> None:
    with httpx.Client() as client, pytest.raises(TypeError, match=r"httpx2\.AsyncClient, not Client"):
        HttpSession(URL, http_client=client)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["secret\n", " secret", "sécret", "secret\r\nX: y", "secret\0"])
def test_a_header_that_cannot_be_sent_is_refused_without_being_quoted(value: str) -> None:
    with pytest.raises(ValueError, match="'X-Key' cannot be sent") as caught:
        HttpSession(URL, headers={"X-Key": value})
    assert "cret" not in str(caught.value)


def test_a_header_name_must_be_a_token() -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        HttpSession(URL, headers={"X Key": "v"})


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://server.example/mcp", "https://server.example/mcp"),
        ("HTTPS://Server.EXAMPLE:443/MCP/", "https://server.example/MCP/"),
        ("HTTP://server.example:80", "http://server.example/"),
        ("http://server.example:8000/a/../b", "http://server.example:8000/b"),
        ("http://user:secret@server.example/mcp#secret", "http://server.example/mcp"),
        ("http://[::1]:8000/mcp", "http://[::1]:8000/mcp"),
        ("https://é.example/é", "https://xn--9ca.example/%C3%A9"),
        ("https://server.example/mcp?", "https://server.example/mcp"),
        (
            "https://server.example/mcp?key=secret",
            "https://server.example/mcp?sha256=" + hashlib.sha256(b"key=secret").hexdigest()[:16],
        ),
    ],
)
def test_the_endpoint_is_the_url_in_a_normal_form_without_secrets(url: str, endpoint: str) -> None:
    session = HttpSession(url)
    assert session.endpoint == endpoint
    assert "secret" not in repr(session)


def test_the_endpoint_can_be_given() -> None:
    assert HttpSession(URL, endpoint="prod").endpoint == "prod"


PROTOCOL_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
    "accept-encoding": "gzip, deflate",
    "mcp-protocol-version": "2026-07-28",
}


async def get(session: HttpSession) -> None:
    await session.get(TaskRef("t", "state"))


async def update(session: HttpSession) -> None:
    await session.update(TaskRef("t"), {"name": {"action": "accept", "content": {"name": "Ü"}}})


async def cancel(session: HttpSession) -> None:
    await session.cancel(TaskRef("t", "state"))


async def call(session: HttpSession) -> None:
    await send_call(
        session,
        ToolCall(
            name="deploy",
            arguments={"a": [1, None]},
            meta={"trace": 1, "io.modelcontextprotocol/clientInfo": {}},
        ),
    )


async def later_round(session: HttpSession) -> None:
    await send_call(
        session, ToolCall(name="deploy", input_responses={"k": {"action": "decline"}}, request_state="")
    )


@pytest.mark.parametrize(
    ("send", "method", "name", "params"),
    [
        (get, "tasks/get", "t", {"taskId": "t", "requestState": "state", "_meta": META}),
        (
            update,
            "tasks/update",
            "t",
            {
                "taskId": "t",
                "inputResponses": {"name": {"action": "accept", "content": {"name": "Ü"}}},
                "_meta": META,
            },
        ),
        (cancel, "tasks/cancel", "t", {"taskId": "t", "requestState": "state", "_meta": META}),
        (
            call,
            "tools/call",
            "deploy",
            {"name": "deploy", "arguments": {"a": [1, None]}, "_meta": {"trace": 1, **META}},
        ),
        (
            later_round,
            "tools/call",
            "deploy",
            {
                "name": "deploy",
                "arguments": {},
                "inputResponses": {"k": {"action": "decline"}},
                "requestState": "",
                "_meta": META,
            },
        ),
    ],
)
async def test_a_request_is_exactly_what_the_protocol_says(
    server: HttpAnswers,
    session: HttpSession,
    send: Callable[[HttpSession], Awaitable[None]],
    method: str,
    name: str,
    params: dict[str, Any],
) -> None:
    await send(session)
    assert server.last.method == "POST"
    assert server.last.url == URL
    assert server.sent == {"jsonrpc": "2.0", "id": rpc_id(server.last), "method": method, "params": params}
    expected = {**PROTOCOL_HEADERS, "mcp-method": method, "mcp-name": name}
    assert {k: server.last.headers.get_list(k) for k in expected} == {k: [v] for k, v in expected.items()}


async def test_requests_that_name_nothing_have_no_mcp_name(server: HttpAnswers, session: HttpSession) -> None:
    await session.tool("deploy")
    assert server.methods == ["server/discover", "tools/list"]
    assert [json.loads(r.content)["params"] for r in server.requests] == [{"_meta": META}] * 2
    assert [r.headers.get("mcp-name") for r in server.requests] == [None, None]
    assert [r.headers["mcp-method"] for r in server.requests] == server.methods


async def test_every_request_has_an_id_of_its_own(server: HttpAnswers, session: HttpSession) -> None:
    await send_call(session)
    await session.get(REF)
    await session.get(REF)
    ids = [rpc_id(request) for request in server.requests]
    assert len(set(ids)) == len(ids) == 5


async def test_capabilities_and_client_are_declared_with_each_request(server: HttpAnswers) -> None:
    session = server.session(capabilities={"sampling": {}, "extensions": {"x/y": {"z": 1}}})
    await session.get(REF)
    meta = server.sent["params"]["_meta"]
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {
        "sampling": {},
        "extensions": {"x/y": {"z": 1}, "io.modelcontextprotocol/tasks": {}},
    }
    info = meta["io.modelcontextprotocol/clientInfo"]
    assert info["name"] == "mcp-tasks-client"
    assert isinstance(info["version"], str)


@pytest.mark.parametrize(
    "task_id",
    [
        pytest.param("x" * 65536, id="64 KiB"),
        pytest.param("two\r\nlines", id="newline"),
        pytest.param("\x00", id="NUL"),
        pytest.param("💼 tâche", id="not ASCII"),
        'say "hi"',
        " blank ",
        "=?base64?eA==?=",
        "a'b\\c",
    ],
)
async def test_any_task_id_arrives_byte_for_byte(
    server: HttpAnswers, session: HttpSession, task_id: str
) -> None:
    await session.get(TaskRef(task_id))
    header = server.last.headers["mcp-name"]
    if header != task_id:
        assert header.startswith("=?base64?")
        assert header.endswith("?=")
        header = base64.b64decode(header[9:-2]).decode()
    assert header == server.sent["params"]["taskId"] == task_id


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"x", {(1,): 2}])
async def test_arguments_that_are_not_json_are_refused_before_anything_is_sent(
    server: HttpAnswers, session: HttpSession, value: object
) -> None:
    with pytest.raises((ValueError, TypeError), match="params of tools/call must be plain JSON"):
        await send_call(session, ToolCall(name="deploy", arguments={"a": value}))
    with pytest.raises((ValueError, TypeError), match="params of tasks/update must be plain JSON"):
        await session.update(REF, {"a": {"content": value}})
    assert server.requests == []


async def test_arguments_without_end_are_refused_before_anything_is_sent(
    server: HttpAnswers, session: HttpSession
) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        await send_call(session, ToolCall(name="deploy", arguments={"a": deep}))
    circle: dict[str, Any] = {}
    circle["circle"] = circle
    with pytest.raises(ValueError, match="must be plain JSON"):
        await send_call(session, ToolCall(name="deploy", arguments=circle))
    assert server.requests == []


async def test_a_tool_name_without_utf_8_form_is_the_callers_mistake(
    server: HttpAnswers, session: HttpSession
) -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        await send_call(session, ToolCall(name="\ud800"))
    assert server.requests == []


async def test_a_lone_surrogate_in_an_argument_is_sent(server: HttpAnswers, session: HttpSession) -> None:
    await send_call(session, ToolCall(name="deploy", arguments={"a": "\ud800"}))
    assert server.sent["params"]["arguments"] == {"a": "\ud800"}


async def test_headers_are_added_but_never_replace_the_protocols(server: HttpAnswers) -> None:
    session = server.session(
        headers={"X-Tenant": "t", "mcp-METHOD": "other", "Accept": "*/*", "accept-encoding": "br"}
    )
    await session.get(REF)
    assert server.last.headers["x-tenant"] == "t"
    assert server.last.headers.get_list("mcp-method") == ["tasks/get"]
    assert {k: server.last.headers.get_list(k) for k in PROTOCOL_HEADERS} == {
        k: [v] for k, v in PROTOCOL_HEADERS.items()
    }


async def test_any_result_acknowledges(server: HttpAnswers, session: HttpSession) -> None:
    for method in ("tasks/update", "tasks/cancel"):
        server.answers(method, result({"resultType": "complete", "_meta": {}, "content": [], "status": 7}))
    await session.update(REF, {"k": {}})
    await session.cancel(REF)


async def test_a_snapshot_may_call_itself_a_task(server: HttpAnswers, session: HttpSession) -> None:
    server.answers("tasks/get", result({**TASK, "resultType": "task"}))
    assert (await session.get(REF)).task.task_id == TASK_ID


async def test_who_calls_hears_what_comes_before_the_reply_on_a_stream_that_nothing_holds_back(
    server: HttpAnswers, session: HttpSession
) -> None:
    told = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}
    reply = '{"jsonrpc": "2.0", "id": ID, "result": {"content": [], "resultType": "complete"}}'
    server.answers("tools/call", events(f"data: {json.dumps(told)}\n\n", f"data: {reply}\n\n"))
    heard: list[JSONObject] = []
    assert isinstance(await send_call(session, ToolCall(name="deploy", hear=heard.append)), Returned)
    assert heard == [told]
    assert server.last.headers["accept-encoding"] == "identity"
    assert isinstance(await send_call(session), Returned)
    assert heard == [told]
