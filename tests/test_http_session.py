"""The native session against a scripted server: what it sends, and what it makes of each reply."""

from __future__ import annotations

import base64
import datetime
import email.utils
import gzip
import hashlib
import json
import logging
import pickle
import ssl
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import httpx
import mcp_types
import pytest
import respx

from mcp_tasks_client.old.errors import (
    ConnectionLostError,
    CredentialRefusedError,
    MissingCapabilityError,
    RemoteProtocolError,
    SessionError,
)
from mcp_tasks_client.old.sessions import catalogue
from mcp_tasks_client.old.sessions.base import TaskRef, ToolCall
from mcp_tasks_client.old.sessions.faults import retry_after_s
from mcp_tasks_client.old.sessions.http import HttpSession
from mcp_tasks_client.old.wire import Created, InputRequired, Returned

from ._requirements import requirement

pytestmark = pytest.mark.anyio

URL = "https://server.example/mcp"
TASK_ID = "786512e2-9e0d-44bd-8f29-789f320fe840"
REF = TaskRef(TASK_ID)
TASK = {"resultType": "complete", "taskId": TASK_ID, "status": "working", "pollIntervalMs": 5000}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "host", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}

Answer = Callable[[httpx.Request], httpx.Response | Awaitable[httpx.Response]]


def rpc_id(request: httpx.Request) -> Any:
    return json.loads(request.content)["id"]


def result(value: object, status: int = 200, **headers: str) -> Answer:
    """Answers with a JSON-RPC result."""

    def answer(request: httpx.Request) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": rpc_id(request), "result": value}
        return httpx.Response(status, json=body, headers=headers)

    return answer


def error(
    code: object, status: int = 200, message: str = "no", data: object = None, **headers: str
) -> Answer:
    """Answers with a JSON-RPC error."""

    def answer(request: httpx.Request) -> httpx.Response:
        body = {
            "jsonrpc": "2.0",
            "id": rpc_id(request),
            "error": {"code": code, "message": message, "data": data},
        }
        return httpx.Response(status, json=body, headers=headers)

    return answer


def http(status: int, content: bytes | str = b"", media_type: str = "text/html", **headers: str) -> Answer:
    """Answers with plain HTTP."""
    return lambda _: httpx.Response(status, content=content, headers={"content-type": media_type, **headers})


def events(*texts: str, status: int = 200) -> Answer:
    """Answers with an event stream; ``ID`` stands for the request's id."""

    def answer(request: httpx.Request) -> httpx.Response:
        stream = "".join(texts).replace("ID", str(rpc_id(request)))
        return httpx.Response(status, content=stream.encode(), headers={"content-type": "text/event-stream"})

    return answer


class ScriptedServer:
    """Answers by method and keeps what it was sent. Several answers are given in turn, the last for ever."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self._answers: dict[str, list[Answer]] = {}
        self.answers("server/discover", result({"supportedVersions": ["2025-11-25", "2026-07-28"]}))
        self.answers("tools/list", result({"tools": [{"name": "deploy", "inputSchema": {"type": "object"}}]}))
        self.answers("tools/call", result({"content": [], "resultType": "complete"}))
        self.answers("tasks/get", result(TASK))
        self.answers("tasks/update", result({}))
        self.answers("tasks/cancel", result({}))

    def answers(self, method: str, *answers: Answer) -> None:
        self._answers[method] = list(answers)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        waiting = self._answers[json.loads(request.content)["method"]]
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        response = answer(request)
        return response if isinstance(response, httpx.Response) else await response

    @property
    def methods(self) -> list[str]:
        return [json.loads(request.content)["method"] for request in self.requests]

    @property
    def last(self) -> httpx.Request:
        return self.requests[-1]

    @property
    def sent(self) -> dict[str, Any]:
        """Body of the last request."""
        body = json.loads(self.last.content)
        assert isinstance(body, dict)
        return body


@pytest.fixture
def server(over_httpx: None) -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    with respx.mock(assert_all_called=False) as router:
        router.route(host="server.example").mock(side_effect=scripted)
        yield scripted


@pytest.fixture
def session(server: ScriptedServer) -> HttpSession:
    """Made outside of any event loop, as hosts do at import time."""
    return HttpSession(URL, client_info={"name": "host", "version": "1"})


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were slept; nobody really sleeps."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(anyio, "sleep", sleep)
    return slept


async def fails(session: HttpSession, ref: TaskRef = REF) -> SessionError:
    """The error of a poll, which must pickle and must not tell the task ID."""
    with anyio.fail_after(5), pytest.raises(SessionError) as caught:
        await session.get(ref)
    assert type(pickle.loads(pickle.dumps(caught.value))) is type(caught.value)
    assert TASK_ID not in str(caught.value)
    return caught.value


# ── making one ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url", ["", "server.example/mcp", "ftp://x/", "http://", "/mcp", "http://h:port/", "x\n"]
)
def test_a_url_that_is_none_is_refused_with_advice(url: str) -> None:
    with pytest.raises(ValueError, match="https://host/mcp"):
        HttpSession(url)


def test_a_synchronous_client_is_refused() -> None:
    with httpx.Client() as client, pytest.raises(TypeError, match=r"httpx2\.AsyncClient, not Client"):
        HttpSession(URL, http_client=client)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "limit",
    ["max_response_bytes", "tasks_in_flight", "calls_in_flight", "task_timeout_s", "call_read_timeout_s"],
)
def test_limits_must_be_positive(limit: str) -> None:
    with pytest.raises(ValueError, match=f"{limit} must be more than 0"):
        HttpSession(URL, **{limit: 0})  # type: ignore[arg-type]


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


# ── what goes over the wire ───────────────────────────────────────────────────────────────────

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
    await session.call(
        ToolCall(
            name="deploy",
            arguments={"a": [1, None]},
            meta={"trace": 1, "io.modelcontextprotocol/clientInfo": {}},
        )
    )


async def later_round(session: HttpSession) -> None:
    await session.call(
        ToolCall(name="deploy", input_responses={"k": {"action": "decline"}}, request_state="")
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
    server: ScriptedServer,
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


async def test_requests_that_name_nothing_have_no_mcp_name(
    server: ScriptedServer, session: HttpSession
) -> None:
    await session.tool("deploy")
    assert server.methods == ["server/discover", "tools/list"]
    assert [json.loads(r.content)["params"] for r in server.requests] == [{"_meta": META}] * 2
    assert [r.headers.get("mcp-name") for r in server.requests] == [None, None]
    assert [r.headers["mcp-method"] for r in server.requests] == server.methods


async def test_every_request_has_an_id_of_its_own(server: ScriptedServer, session: HttpSession) -> None:
    await session.call(ToolCall(name="deploy"))
    await session.get(REF)
    await session.get(REF)
    ids = [rpc_id(request) for request in server.requests]
    assert len(set(ids)) == len(ids) == 5


async def test_capabilities_and_client_are_declared_with_each_request(server: ScriptedServer) -> None:
    session = HttpSession(URL, capabilities={"sampling": {}, "extensions": {"x/y": {"z": 1}}})
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
    server: ScriptedServer, session: HttpSession, task_id: str
) -> None:
    await session.get(TaskRef(task_id))
    header = server.last.headers["mcp-name"]
    if header != task_id:
        assert header.startswith("=?base64?")
        assert header.endswith("?=")
        header = base64.b64decode(header[9:-2]).decode()
    assert header == server.sent["params"]["taskId"] == task_id


@pytest.mark.parametrize("send", [HttpSession.get, HttpSession.cancel])
async def test_a_task_id_that_no_header_can_carry_is_the_servers_fault(
    server: ScriptedServer, session: HttpSession, send: Callable[[HttpSession, TaskRef], Awaitable[object]]
) -> None:
    with pytest.raises(RemoteProtocolError, match="no HTTP header can carry") as caught:
        await send(session, TaskRef("\ud800" * 9))
    assert caught.value.not_executed
    assert not caught.value.retryable
    assert server.requests == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"x", {(1,): 2}])
async def test_arguments_that_are_not_json_are_refused_before_anything_is_sent(
    server: ScriptedServer, session: HttpSession, value: object
) -> None:
    with pytest.raises((ValueError, TypeError), match="params of tools/call must be plain JSON"):
        await session.call(ToolCall(name="deploy", arguments={"a": value}))
    with pytest.raises((ValueError, TypeError), match="params of tasks/update must be plain JSON"):
        await session.update(REF, {"a": {"content": value}})
    assert server.requests == []


async def test_arguments_without_end_are_refused_before_anything_is_sent(
    server: ScriptedServer, session: HttpSession
) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        await session.call(ToolCall(name="deploy", arguments={"a": deep}))
    circle: dict[str, Any] = {}
    circle["circle"] = circle
    with pytest.raises(ValueError, match="must be plain JSON"):
        await session.call(ToolCall(name="deploy", arguments=circle))
    assert server.requests == []


async def test_a_tool_name_without_utf_8_form_is_the_callers_mistake(
    server: ScriptedServer, session: HttpSession
) -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        await session.call(ToolCall(name="\ud800"))
    assert server.requests == []


async def test_a_lone_surrogate_in_an_argument_is_sent(server: ScriptedServer, session: HttpSession) -> None:
    await session.call(ToolCall(name="deploy", arguments={"a": "\ud800"}))
    assert server.sent["params"]["arguments"] == {"a": "\ud800"}


async def test_headers_are_added_but_never_replace_the_protocols(server: ScriptedServer) -> None:
    session = HttpSession(
        URL, headers={"X-Tenant": "t", "mcp-METHOD": "other", "Accept": "*/*", "accept-encoding": "br"}
    )
    await session.get(REF)
    assert server.last.headers["x-tenant"] == "t"
    assert server.last.headers.get_list("mcp-method") == ["tasks/get"]
    assert {k: server.last.headers.get_list(k) for k in PROTOCOL_HEADERS} == {
        k: [v] for k, v in PROTOCOL_HEADERS.items()
    }


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_a_given_client_is_used_with_all_it_brings_and_never_closed(server: ScriptedServer) -> None:
    async with httpx.AsyncClient(
        headers={"X-Own": "1", "Accept": "*/*"}, auth=("u", "p"), params={"key": "k"}
    ) as client:
        session = HttpSession(URL, http_client=client)
        await session.get(REF)
        await session.aclose()
        assert not client.is_closed
    assert server.last.headers["x-own"] == "1"
    assert server.last.headers["accept"] == PROTOCOL_HEADERS["accept"]
    assert server.last.headers["authorization"] == basic("u", "p")
    assert server.last.url.params["key"] == "k"


async def test_auth_of_the_session_comes_before_that_of_the_client(server: ScriptedServer) -> None:
    async with httpx.AsyncClient(auth=("u", "p")) as client:
        await HttpSession(URL, http_client=client, auth=("x", "y")).get(REF)
    assert server.last.headers["authorization"] == basic("x", "y")


@pytest.mark.parametrize("client_auth", [None, ("u", "p")])
async def test_a_password_in_the_url_becomes_basic_auth_unless_there_is_other(
    server: ScriptedServer, client_auth: tuple[str, str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with httpx.AsyncClient(auth=client_auth) as client:
        await HttpSession("https://me:s%20cret@server.example/mcp", http_client=client).get(REF)
    expected = basic("me", "s cret") if client_auth is None else basic("u", "p")
    assert server.last.headers["authorization"] == expected
    assert "cret" not in caplog.text.replace(expected, "")


async def test_an_auth_flow_may_answer_a_challenge(server: ScriptedServer) -> None:
    class Renewing(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]
            response = yield request
            if response.status_code == 401:
                request.headers["Authorization"] = "Bearer new"
                yield request

    server.answers("tasks/get", http(401), result(TASK))
    assert (await HttpSession(URL, auth=Renewing()).get(REF)).task_id == TASK_ID
    assert server.last.headers["authorization"] == "Bearer new"


async def test_our_own_client_is_made_when_needed_and_closed_with_the_session(server: ScriptedServer) -> None:
    session = HttpSession(URL)
    await session.aclose()
    session = HttpSession(URL)
    await session.get(REF)
    await session.aclose()
    await session.aclose()
    refused = await fails(session)
    assert type(refused) is ConnectionLostError
    assert refused.not_executed
    assert not refused.retryable
    assert "session is closed" in str(refused)
    assert len(server.requests) == 1


async def test_a_client_that_its_owner_closed_is_told_of(server: ScriptedServer) -> None:
    client = httpx.AsyncClient()
    await client.aclose()
    refused = await fails(HttpSession(URL, http_client=client))
    assert refused.not_executed
    assert "http_client is closed" in str(refused)


@pytest.mark.parametrize("client", [None, httpx.AsyncClient])
async def test_only_tools_call_may_be_silent_for_long(
    server: ScriptedServer, client: type[httpx.AsyncClient] | None
) -> None:
    given = client() if client is not None else None
    session = HttpSession(URL, http_client=given, task_timeout_s=7.0, call_read_timeout_s=70.0)
    await session.call(ToolCall(name="deploy"))
    await session.get(REF)
    ours = {"connect": 10.0, "write": 30.0, "pool": None}
    assert [r.extensions["timeout"] for r in server.requests] == [
        {**ours, "read": 7.0},
        {**ours, "read": 7.0},
        {**ours, "read": 70.0},
        {**ours, "read": 7.0},
    ]


async def test_timeouts_that_a_client_was_given_count(server: ScriptedServer) -> None:
    async with httpx.AsyncClient(timeout=httpx.Timeout(6.0, read=None)) as client:
        session = HttpSession(URL, http_client=client)
        await session.call(ToolCall(name="deploy"))
        await session.get(REF)
    theirs = {"connect": 6.0, "write": 6.0, "pool": 6.0, "read": None}
    assert [r.extensions["timeout"] for r in server.requests] == [theirs] * 4


# ── the catalogue ─────────────────────────────────────────────────────────────────────────────


async def test_version_and_tools_are_asked_for_once_before_the_first_call(
    server: ScriptedServer, session: HttpSession
) -> None:
    await session.call(ToolCall(name="deploy"))
    await session.call(ToolCall(name="deploy"))
    assert server.methods == ["server/discover", "tools/list", "tools/call", "tools/call"]


async def test_tasks_never_wait_for_the_catalogue(server: ScriptedServer, session: HttpSession) -> None:
    await session.get(REF)
    await session.update(REF, {})
    await session.cancel(REF)
    assert server.methods == ["tasks/get", "tasks/update", "tasks/cancel"]


async def test_calls_that_begin_together_share_one_catalogue(
    server: ScriptedServer, session: HttpSession
) -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(session.call, ToolCall(name="deploy"))
                group.start_soon(session.call, ToolCall(name="unlisted"))
    assert server.methods.count("server/discover") == 1
    assert server.methods.count("tools/list") <= 2
    assert server.methods.count("tools/call") == 10


async def test_the_tools_of_all_pages_are_known(server: ScriptedServer, session: HttpSession) -> None:
    def page(name: str, cursor: object) -> Answer:
        return result({"tools": [{"name": name, "inputSchema": {}, "x-own": 1}], "nextCursor": cursor})

    server.answers("tools/list", page("a", ""), page("b", "2"), page("c", None))
    tool = await session.tool("b")
    assert isinstance(tool, mcp_types.Tool)
    assert tool.name == "b"
    assert await session.tool("a") is not None
    assert await session.tool("c") is not None
    assert server.methods == ["server/discover", "tools/list", "tools/list", "tools/list"]
    cursors = [json.loads(r.content)["params"].get("cursor") for r in server.requests[1:]]
    assert cursors == [None, "", "2"]


async def test_a_name_that_is_not_listed_is_looked_for_once_more_in_a_new_list(
    server: ScriptedServer, session: HttpSession
) -> None:
    assert await session.tool("later") is None
    assert server.methods == ["server/discover", "tools/list"]
    server.answers("tools/list", result({"tools": [{"name": "later", "inputSchema": {}}]}))
    assert await session.tool("later") is not None
    assert await session.tool("later") is not None
    assert server.methods == ["server/discover", "tools/list", "tools/list"]


async def test_a_tool_that_is_not_listed_can_be_called(server: ScriptedServer, session: HttpSession) -> None:
    assert isinstance(await session.call(ToolCall(name="hidden")), Returned)


async def test_a_server_without_tools_list_has_no_tools(server: ScriptedServer, session: HttpSession) -> None:
    server.answers("tools/list", error(-32601, 404))
    assert await session.tool("deploy") is None
    assert isinstance(await session.call(ToolCall(name="deploy")), Returned)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        {},
        {"name": "broken"},
        {"name": 1, "inputSchema": {}},
        {"name": "broken", "input_schema": {}},
        {"name": "broken", "inputSchema": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}},
    ],
)
async def test_a_broken_entry_costs_itself_and_not_the_list(
    server: ScriptedServer, session: HttpSession, entry: object, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers("tools/list", result({"tools": [entry, {"name": "deploy", "inputSchema": {}}]}))
    assert await session.tool("deploy") is not None
    assert await session.tool("broken") is None
    logged = [r for r in caplog.records if r.name == "mcp_tasks_client"]
    assert {r.levelno for r in logged} == {logging.WARNING}
    assert URL in logged[0].getMessage()


async def test_a_tool_with_marks_that_are_not_allowed_is_not_called_until_they_are_mended(
    server: ScriptedServer, session: HttpSession
) -> None:
    """MUST reject tool definitions whose x-mcp-header breaks the rules (Streamable HTTP)."""
    marked = {"name": "deploy", "inputSchema": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}}
    mended = {"name": "deploy", "inputSchema": {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}}
    server.answers("tools/list", result({"tools": [marked]}), result({"tools": [mended]}))
    with pytest.raises(RemoteProtocolError, match="x-mcp-header") as caught:
        await session.call(ToolCall(name="deploy", arguments={"a": "x"}))
    assert caught.value.not_executed
    assert not caught.value.retryable
    assert "tools/call" not in server.methods
    await session.call(ToolCall(name="deploy", arguments={"a": "x"}))
    assert server.requests[-1].headers["mcp-param-a"] == "x"


@pytest.mark.parametrize(
    "page",
    [{}, {"tools": None}, {"tools": {}}, {"tools": [], "nextCursor": 7}, {"tools": [], "resultType": "task"}],
)
async def test_a_list_that_is_none_is_refused(
    server: ScriptedServer, session: HttpSession, page: object, naps: list[float]
) -> None:
    server.answers("tools/list", result(page))
    with pytest.raises(RemoteProtocolError) as caught:
        await session.call(ToolCall(name="deploy"))
    assert caught.value.retryable
    assert caught.value.not_executed


async def test_a_list_that_starts_again_is_refused(server: ScriptedServer, session: HttpSession) -> None:
    server.answers("tools/list", *(result({"tools": [], "nextCursor": c}) for c in ("a", "b", "a")))
    with pytest.raises(RemoteProtocolError, match="does not end") as caught:
        await session.tool("deploy")
    assert not caught.value.retryable
    assert server.methods.count("tools/list") == 3


async def test_a_list_without_end_is_refused(
    server: ScriptedServer, session: HttpSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert catalogue._MOST_PAGES == 1000
    monkeypatch.setattr(catalogue, "_MOST_PAGES", 7)
    server.answers("tools/list", *(result({"tools": [], "nextCursor": str(i)}) for i in range(20)))
    with pytest.raises(RemoteProtocolError, match="does not end"):
        await session.tool("deploy")
    assert server.methods.count("tools/list") == 7


@pytest.mark.parametrize(
    "answer",
    [
        result({"supportedVersions": ["2025-11-25", "2026-11-30"]}),
        result({"supportedVersions": "2026-07-28"}),
        result({}),
        error(-32601, 404),
        error(-32601),
        error(-32022, 400, data={"supported": ["2025-11-25"], "requested": "2026-07-28"}),
        error(-32022, 400, data="?"),
        error(-32000, 400),
        error(-32600),
        http(404),
        http(400),
        http(405),
    ],
)
async def test_a_server_of_another_version_is_told_from_a_broken_one(
    server: ScriptedServer, session: HttpSession, answer: Answer
) -> None:
    server.answers("server/discover", answer)
    with pytest.raises(RemoteProtocolError, match="does not speak MCP 2026-07-28") as caught:
        await session.call(ToolCall(name="deploy"))
    assert not caught.value.retryable
    assert caught.value.not_executed
    assert server.methods == ["server/discover"]
    server.answers("server/discover", result({"supportedVersions": ["2026-07-28"]}))
    await session.call(ToolCall(name="deploy"))


async def test_the_versions_that_are_offered_instead_are_told(
    server: ScriptedServer, session: HttpSession
) -> None:
    server.answers("server/discover", result({"supportedVersions": ["2025-11-25", 7, "x" * 99]}))
    with pytest.raises(RemoteProtocolError, match=r"it offers 2025-11-25, x{20}\)"):
        await session.tool("deploy")


async def test_what_may_pass_is_asked_again_before_the_first_call(
    server: ScriptedServer, session: HttpSession, naps: list[float]
) -> None:
    server.answers("server/discover", http(503), http(502), result({"supportedVersions": ["2026-07-28"]}))
    server.answers("tools/list", error(-32603), result({"tools": []}))
    await session.call(ToolCall(name="deploy"))
    assert server.methods == ["server/discover"] * 3 + ["tools/list"] * 2 + ["tools/call"]
    assert len(naps) == 3
    assert all(0.2 <= nap <= 2.2 for nap in naps)


async def test_a_server_that_refuses_the_version_that_it_offers_is_asked_again(
    server: ScriptedServer, session: HttpSession, naps: list[float]
) -> None:
    """A client should choose a mutually supported version of the error's list and retry."""
    refused = error(-32022, 400, data={"supported": ["2026-07-28"], "requested": "2026-07-28"})
    server.answers("server/discover", refused, result({"supportedVersions": ["2026-07-28"]}))
    await session.call(ToolCall(name="deploy"))
    assert server.methods == ["server/discover"] * 2 + ["tools/list", "tools/call"]
    assert len(naps) == 1


async def test_a_server_that_keeps_refusing_the_version_that_it_offers_is_given_up(
    server: ScriptedServer, session: HttpSession, naps: list[float]
) -> None:
    server.answers("server/discover", error(-32022, 400, data={"supported": ["2026-07-28"]}))
    with pytest.raises(RemoteProtocolError, match="-32022") as caught:
        await session.call(ToolCall(name="deploy"))
    assert caught.value.not_executed
    assert server.methods == ["server/discover"] * 3


async def test_asking_again_has_an_end_and_nothing_was_executed(
    server: ScriptedServer, session: HttpSession, naps: list[float]
) -> None:
    server.answers("server/discover", http(503))
    with pytest.raises(SessionError, match="HTTP 503") as caught:
        await session.call(ToolCall(name="deploy"))
    assert caught.value.retryable
    assert caught.value.not_executed
    assert server.methods == ["server/discover"] * 3


async def test_asking_again_waits_as_long_as_the_server_wishes(
    server: ScriptedServer, session: HttpSession, naps: list[float]
) -> None:
    good = result({"supportedVersions": ["2026-07-28"]})
    server.answers("server/discover", http(429, **{"retry-after": "9"}), good)
    await session.tool("deploy")
    assert naps == [9.0]


async def test_a_long_wait_is_left_to_the_caller(
    server: ScriptedServer, session: HttpSession, naps: list[float]
) -> None:
    server.answers("server/discover", http(429, **{"retry-after": "3600"}))
    with pytest.raises(SessionError) as caught:
        await session.tool("deploy")
    assert caught.value.retry_after_s == 3600
    assert server.methods == ["server/discover"]


@pytest.mark.parametrize("answer", [http(401), error(-32021, 400), error(-32020, 400)])
async def test_what_will_not_pass_is_not_asked_again(
    server: ScriptedServer, session: HttpSession, answer: Answer
) -> None:
    server.answers("server/discover", answer)
    with pytest.raises(SessionError):
        await session.tool("deploy")
    assert server.methods == ["server/discover"]


async def test_the_version_is_kept_although_the_list_failed(
    server: ScriptedServer, session: HttpSession
) -> None:
    server.answers("tools/list", http(403), result({"tools": []}))
    with pytest.raises(CredentialRefusedError):
        await session.tool("deploy")
    await session.tool("deploy")
    assert server.methods == ["server/discover", "tools/list", "tools/list"]


async def test_a_call_is_never_repeated(server: ScriptedServer, session: HttpSession) -> None:
    server.answers("tools/call", http(503), result({"content": []}))
    with pytest.raises(SessionError) as caught:
        await session.call(ToolCall(name="deploy"))
    assert not caught.value.not_executed
    assert server.methods.count("tools/call") == 1


MARKED = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


async def test_marked_arguments_also_travel_as_headers(server: ScriptedServer, session: HttpSession) -> None:
    server.answers("tools/list", result({"tools": [{"name": "deploy", "inputSchema": MARKED}]}))
    await session.call(ToolCall(name="deploy", arguments={"region": "eu ü"}))
    assert (
        server.last.headers["mcp-param-region"] == f"=?base64?{base64.b64encode('eu ü'.encode()).decode()}?="
    )
    await session.call(ToolCall(name="deploy", arguments={}))
    assert "mcp-param-region" not in server.last.headers


async def test_a_header_mismatch_makes_the_next_call_fetch_the_tools_again(
    server: ScriptedServer, session: HttpSession
) -> None:
    server.answers("tools/call", error(-32020, 400), result({"content": []}))
    with pytest.raises(RemoteProtocolError, match="-32020") as caught:
        await session.call(ToolCall(name="deploy"))
    assert caught.value.not_executed
    server.answers("tools/list", result({"tools": [{"name": "deploy", "inputSchema": MARKED}]}))
    await session.call(ToolCall(name="deploy", arguments={"region": "eu"}))
    assert server.last.headers["mcp-param-region"] == "eu"
    assert server.methods == ["server/discover", "tools/list", "tools/call", "tools/list", "tools/call"]


async def test_what_the_server_has_listed_can_be_forgotten(
    server: ScriptedServer, session: HttpSession
) -> None:
    assert session.listed("deploy") is None
    assert await session.tool("deploy") is not None
    assert session.listed("deploy") == await session.tool("deploy")
    schema = {"type": "object", "required": ["amount"]}
    new = {"name": "deploy", "inputSchema": {"type": "object"}, "outputSchema": schema}
    server.answers("tools/list", result({"tools": [new]}))
    listed = await session.tool("deploy")
    assert listed is not None
    assert listed.output_schema is None, "one list for all who ask"
    session.forget_tools()
    assert session.listed("deploy") is None
    listed = await session.tool("deploy")
    assert listed is not None
    assert listed.output_schema == schema
    assert server.methods == ["server/discover", "tools/list", "tools/list"]


# ── how many at once ──────────────────────────────────────────────────────────────────────────


class Turnstile:
    """Answers when told, and counts how many wait for that."""

    def __init__(self, value: object) -> None:
        self._answer = result(value)
        self.inside = self.most = 0
        self.open = anyio.Event()
        self.changed = anyio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.changed.set()
        try:
            await self.open.wait()
        finally:
            self.inside -= 1
        response = self._answer(request)
        assert isinstance(response, httpx.Response)
        return response

    async def holds(self, count: int) -> None:
        while self.inside != count:
            self.changed = anyio.Event()
            await self.changed.wait()
        await anyio.wait_all_tasks_blocked()


@pytest.mark.parametrize("verb", ["tasks", "calls"])
async def test_no_more_requests_are_under_way_than_allowed(server: ScriptedServer, verb: str) -> None:
    session = HttpSession(URL, tasks_in_flight=3, calls_in_flight=4)
    await session.tool("deploy")
    gate = Turnstile(TASK)
    for method in ("tasks/get", "tasks/cancel", "tools/call"):
        server.answers(method, gate)
    allowed = 3 if verb == "tasks" else 4
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                if verb == "tasks":
                    group.start_soon(session.get, REF)
                else:
                    group.start_soon(session.call, ToolCall(name="deploy"))
            await gate.holds(allowed)
            assert gate.inside == allowed
            gate.open.set()
    assert gate.most == allowed


async def test_long_calls_do_not_starve_the_polls(server: ScriptedServer) -> None:
    session = HttpSession(URL, tasks_in_flight=1, calls_in_flight=1)
    await session.tool("deploy")
    gate = Turnstile({"content": []})
    server.answers("tools/call", gate)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(session.call, ToolCall(name="deploy"))
            await gate.holds(1)
            assert (await session.get(REF)).status == "working"
            gate.open.set()


async def test_polls_that_hang_starve_neither_cancellations_nor_answers(server: ScriptedServer) -> None:
    session = HttpSession(URL, tasks_in_flight=1)
    gate = Turnstile(TASK)
    server.answers("tasks/get", gate)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(session.get, REF)
            await gate.holds(1)
            await session.cancel(REF)
            await session.update(REF, {"k": {"action": "decline"}})
            gate.open.set()


@pytest.mark.parametrize("verb", ["cancel", "update"])
async def test_no_more_words_to_tasks_are_under_way_than_allowed(server: ScriptedServer, verb: str) -> None:
    session = HttpSession(URL, tasks_in_flight=2)
    gate = Turnstile({})
    server.answers(f"tasks/{verb}", gate)
    arguments: tuple[Any, ...] = (REF, {}) if verb == "update" else (REF,)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(getattr(session, verb), *arguments)
            await gate.holds(2)
            gate.open.set()
    assert gate.most == 2


async def test_a_slot_is_given_back_after_a_failure_and_after_cancellation(server: ScriptedServer) -> None:
    session = HttpSession(URL, tasks_in_flight=1)
    server.answers("tasks/get", http(500))
    await fails(session)
    gate = Turnstile(TASK)
    server.answers("tasks/get", gate)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(session.get, REF)
            group.start_soon(session.get, REF)
            await gate.holds(1)
            group.cancel_scope.cancel()
        server.answers("tasks/get", result(TASK))
        await session.get(REF)


# ── redirects ─────────────────────────────────────────────────────────────────────────────────


def redirect(status: int, location: str | None) -> Answer:
    return lambda _: httpx.Response(status, headers={} if location is None else {"location": location})


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize(
    "location", ["/other/?a=b", "https://server.example/other/?a=b", "//server.example:443/other/?a=b"]
)
async def test_a_redirect_within_the_origin_is_followed_with_all_that_was_sent(
    server: ScriptedServer, status: int, location: str
) -> None:
    server.answers("tasks/get", redirect(status, location), result(TASK))
    await HttpSession(URL, auth=("u", "p")).get(REF)
    first, second = server.requests
    assert second.method == "POST"
    assert second.url == "https://server.example/other/?a=b"
    assert second.content == first.content
    assert second.headers == first.headers
    assert second.headers["authorization"] == basic("u", "p")


@pytest.mark.parametrize("auth", [None, ("u", "p")])
async def test_credentials_in_a_location_are_not_taken_over(
    server: ScriptedServer, auth: tuple[str, str] | None
) -> None:
    server.answers("tasks/get", redirect(307, "https://eve:x@server.example/other"), result(TASK))
    await HttpSession(URL, auth=auth).get(REF)
    assert server.last.headers.get("authorization") == (None if auth is None else basic(*auth))
    assert server.last.url == "https://server.example/other"


async def test_redirects_have_an_end(server: ScriptedServer, session: HttpSession) -> None:
    server.answers("tasks/get", *[redirect(307, f"/{i}") for i in range(5)], result(TASK))
    assert (await session.get(REF)).task_id == TASK_ID
    server.answers("tasks/get", redirect(307, "/mcp"))
    server.requests.clear()
    lost = await fails(session)
    assert type(lost) is RemoteProtocolError
    assert not lost.retryable
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    "location",
    [
        "https://evil.example/mcp",
        "//evil.example/mcp",
        "http://server.example/mcp",
        "https://server.example:8443/mcp",
        "https://server.example.evil.example/mcp",
        "https://server.example@evil.example/mcp",
    ],
)
@pytest.mark.parametrize("follow", [False, True])
async def test_nothing_is_sent_to_another_origin(server: ScriptedServer, location: str, follow: bool) -> None:
    server.answers("tasks/get", redirect(308, location))
    async with httpx.AsyncClient(follow_redirects=follow) as client:
        refused = await fails(HttpSession(URL, http_client=client, auth=("u", "p")))
    assert type(refused) is RemoteProtocolError
    assert not refused.retryable
    assert refused.http_status == 308
    assert refused.not_executed
    assert "another origin" in str(refused)
    assert "stay here" in str(refused)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "location"),
    [
        (301, "/x"),
        (302, "/x"),
        (303, "/x"),
        (300, None),
        (304, None),
        (307, None),
        (308, None),
        (307, "mailto:x"),
    ],
)
async def test_no_other_redirect_is_followed(
    server: ScriptedServer, session: HttpSession, status: int, location: str | None
) -> None:
    server.answers("tasks/get", redirect(status, location))
    refused = await fails(session)
    assert type(refused) is RemoteProtocolError
    assert not refused.retryable
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "location", ["http://xn--zzzzzz99999/", "::", "\x7f", "javascript:alert(1)", "x" * 70_000]
)
async def test_a_location_that_is_no_url_is_an_error_of_ours(
    server: ScriptedServer, session: HttpSession, location: str
) -> None:
    server.answers("tasks/get", redirect(307, location))
    assert isinstance(await fails(session), RemoteProtocolError | ConnectionLostError)


# ── reading replies ───────────────────────────────────────────────────────────────────────────

REPLY = 'data: {"jsonrpc":"2.0","id":ID,"result":{"taskId":"t","status":"working"}}'


@pytest.mark.parametrize(
    "stream",
    [
        [REPLY, "\n\n"],
        ["event: message\r\n", REPLY, "\r\n\r\n"],
        [REPLY, "\n"],
        [REPLY],
        ["id: 1\nretry: 5\ndata:\n\n", ": ping\n\n", REPLY, "\n\n"],
        ['data: {"jsonrpc":"2.0","method":"notifications/tasks","params":{}}\n\n', REPLY, "\n\n"],
        ['data: {"jsonrpc":"2.0","id":ID,"method":"ping"}\n\n', REPLY, "\n\n"],
        ["event: ping\ndata: not json\n\n", REPLY, "\n\n"],
        ['data: {"jsonrpc":"2.0","id":ID,\n', 'data: "result":{"taskId":"t","status":"working"}}\n\n'],
        [REPLY, "\n\n", "data: garbage after the reply\n\n"],
    ],
)
async def test_the_response_is_found_in_an_event_stream(
    server: ScriptedServer, session: HttpSession, stream: list[str]
) -> None:
    server.answers("tasks/get", events(*stream))
    assert (await session.get(REF)).task_id == "t"


async def test_only_line_ends_end_a_line_of_an_event_stream(
    server: ScriptedServer, session: HttpSession
) -> None:
    """Python's ``splitlines`` knows more of them than the format does; JSON may hold those as they are."""
    said = "a\u2028b\u2029c\u0085d"
    reply = REPLY.replace('"working"', f'"working","statusMessage":"{said}"')
    server.answers("tasks/get", events(reply, "\n\n"))
    assert (await session.get(REF)).status_message == said


async def test_a_byte_order_mark_is_no_part_of_an_event_stream(
    server: ScriptedServer, session: HttpSession
) -> None:
    server.answers("tasks/get", events("\ufeff", REPLY, "\n\n"))
    assert (await session.get(REF)).task_id == "t"
    message = REPLY.replace('"working"', '"working","statusMessage":"\ufeffsic"')
    server.answers("tasks/get", events(message, "\n\n"))
    assert (await session.get(REF)).status_message == "\ufeffsic"


@pytest.mark.parametrize(
    "stream", ["", ": ping\n\n", 'data: {"jsonrpc":"2.0","method":"x"}\n\n', "data:\n\n"]
)
async def test_a_stream_that_ends_before_the_response_has_lost_it(
    server: ScriptedServer, session: HttpSession, stream: str
) -> None:
    server.answers("tasks/get", events(stream))
    lost = await fails(session)
    assert type(lost) is ConnectionLostError
    assert lost.retryable
    assert not lost.not_executed


@pytest.mark.parametrize(
    "stream",
    [
        "data: {\n\n",
        "data: []\n\n",
        REPLY[:-9],
        'data: {"jsonrpc":"2.0","id":"other","result":{}}\n\n',
        'data: {"jsonrpc":"1.0","id":ID,"result":{}}\n\n',
    ],
)
async def test_a_stream_with_something_else_in_it_is_malformed(
    server: ScriptedServer, session: HttpSession, stream: str
) -> None:
    server.answers("tasks/get", events(stream))
    malformed = await fails(session)
    assert type(malformed) is RemoteProtocolError
    assert malformed.retryable


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "text/plain", "Application/JSON", ""]
)
async def test_a_reply_is_read_whatever_its_content_type(
    server: ScriptedServer, session: HttpSession, media_type: str
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.dumps({"jsonrpc": "2.0", "id": rpc_id(request), "result": TASK}).encode()
        return httpx.Response(200, content=body, headers={"content-type": media_type})

    server.answers("tasks/get", answer)
    assert (await session.get(REF)).task_id == TASK_ID


@pytest.mark.parametrize("status", [200, 202, 400, 404, 500])
async def test_a_reply_is_read_whatever_the_status(
    server: ScriptedServer, session: HttpSession, status: int
) -> None:
    server.answers("tasks/get", result(TASK, status))
    assert (await session.get(REF)).task_id == TASK_ID


async def test_json_that_only_python_reads_is_read(server: ScriptedServer, session: HttpSession) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = '{"jsonrpc":"2.0","id":%d,"result":{"taskId":"t","status":"working","x":NaN,"y":"\\ud800"}}'
        return httpx.Response(200, content=(body % rpc_id(request)).encode())

    server.answers("tasks/get", answer)
    assert ((await session.get(REF)).model_extra or {})["y"] == "\ud800"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n",
        b"<html>Welcome to our hotel</html>",
        b'{"jsonrpc":"2.0","id":ID,"result":{"taskId"',
        b'[{"jsonrpc":"2.0","id":ID,"result":{}}]',
        b"null",
        b'"text"',
        b"{}",
        b'{"id":ID,"result":{"taskId":"t","status":"working"}}',
        b'{"jsonrpc":"2.0","id":ID}',
        b'{"jsonrpc":"2.0","id":ID,"result":null}',
        b'{"jsonrpc":"2.0","id":ID,"result":[]}',
        b'{"jsonrpc":"2.0","id":ID,"error":"no"}',
        b'{"jsonrpc":"2.0","id":ID,"error":"no","result":{"taskId":"t","status":"working"}}',
        b'{"jsonrpc":"2.0","id":99,"result":{"taskId":"t","status":"working"}}',
        b'{"jsonrpc":"2.0","id":null,"result":{"taskId":"t","status":"working"}}',
        b'{"jsonrpc":"2.0","id":true,"result":{"taskId":"t","status":"working"}}',
        b'{"jsonrpc":"2.0","id":"ID","result":{"taskId":"t","status":"working"}}',
        b'{"jsonrpc":"2.0","id":99,"error":{"code":-32602,"message":"another task is unknown"}}',
        b'{"jsonrpc":"2.0","method":"notifications/tasks","params":{}}',
        b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":ID,"result":{"taskId":"t","status":"working","x":' + b"9" * 5000 + b"}}",
        b"\xff\xfe\xff",
        b'{"jsonrpc":"2.0","id":ID,"result":{"status":"working"}}',
        b'{"jsonrpc":"2.0","id":ID,"result":{"taskId":"t"}}',
        b'{"jsonrpc":"2.0","id":ID,"result":{"taskId":"","status":"working"}}',
    ],
)
async def test_a_success_that_is_no_reply_is_malformed_and_may_pass(
    server: ScriptedServer, session: HttpSession, body: bytes
) -> None:
    server.answers("tasks/get", lambda r: httpx.Response(200, content=body.replace(b"ID", b"%d" % rpc_id(r))))
    malformed = await fails(session)
    assert type(malformed) is RemoteProtocolError
    assert malformed.retryable
    assert not malformed.not_executed
    assert "try again" in str(malformed)
    assert ("empty body" in str(malformed)) == (not body.strip())


def bare_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", bare_deflate),
        ("identity", bytes),
        ("Identity, gzip", gzip.compress),
    ],
)
async def test_the_compressions_that_were_offered_are_read(
    server: ScriptedServer, session: HttpSession, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.dumps({"jsonrpc": "2.0", "id": rpc_id(request), "result": TASK}).encode()
        return httpx.Response(200, content=pack(body), headers={"content-encoding": encoding})

    server.answers("tasks/get", answer)
    assert (await session.get(REF)).task_id == TASK_ID


class RawResponse(httpx.Response):
    """Not decoded when it is made, as httpx does with content that it is given."""

    def __init__(self, status: int, *content: bytes, **headers: str) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for chunk in content:
                yield chunk

        super().__init__(
            status, content=chunks(), headers={k.replace("_", "-"): v for k, v in headers.items()}
        )


def two_members(data: bytes) -> bytes:
    """A gzip file of more than one part, as ``cat`` makes of two."""
    return gzip.compress(data[:20]) + gzip.compress(data[20:])


@pytest.mark.parametrize("size", [1, 2, 7, 1_000_000])
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("x-gzip", gzip.compress),
        ("gzip", two_members),
        ("deflate", zlib.compress),
        ("deflate", bare_deflate),
    ],
)
async def test_a_compressed_reply_is_read_in_whatever_pieces_it_comes(
    server: ScriptedServer, session: HttpSession, encoding: str, pack: Callable[[bytes], bytes], size: int
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = pack(json.dumps({"jsonrpc": "2.0", "id": rpc_id(request), "result": TASK}).encode())
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        return RawResponse(200, *pieces, content_encoding=encoding)

    server.answers("tasks/get", answer)
    assert (await session.get(REF)).task_id == TASK_ID


@pytest.mark.parametrize("first", [10, 1001], ids=["first part small", "first part as large as allowed"])
async def test_a_bomb_in_a_later_part_of_a_gzip_file_does_not_go_off(
    server: ScriptedServer, first: int
) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    server.answers(
        "tasks/get", lambda _: RawResponse(200, gzip.compress(b" " * first) + bomb, content_encoding="gzip")
    )
    tracemalloc.start()
    try:
        refused = await fails(HttpSession(URL, max_response_bytes=1000))
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert "larger than 1000 bytes" in str(refused)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "gzip, br", "compress", "gzip, gzip, gzip"])
async def test_no_other_compression_is_read(
    server: ScriptedServer, session: HttpSession, encoding: str
) -> None:
    server.answers("tasks/get", lambda _: RawResponse(200, b"\x00", content_encoding=encoding))
    refused = await fails(session)
    assert type(refused) is RemoteProtocolError
    assert not refused.retryable
    assert "Content-Encoding" in str(refused)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("gzip", b"no gzip"), ("gzip", b"\x1f\x8b\x08\x00" + b"\xff" * 99), ("deflate", b"\xff" * 99)],
)
async def test_damaged_compression_is_malformed(
    server: ScriptedServer, session: HttpSession, encoding: str, body: bytes
) -> None:
    server.answers("tasks/get", lambda _: RawResponse(200, body, content_encoding=encoding))
    malformed = await fails(session)
    assert type(malformed) is RemoteProtocolError
    assert malformed.retryable


async def test_a_body_that_a_hook_of_the_callers_has_read_is_read_all_the_same(
    server: ScriptedServer,
) -> None:
    async def read(response: httpx.Response) -> None:
        await response.aread()

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.dumps({"jsonrpc": "2.0", "id": rpc_id(request), "result": TASK}).encode()
        return RawResponse(200, gzip.compress(body), content_encoding="gzip")

    server.answers("tasks/get", answer)
    async with httpx.AsyncClient(event_hooks={"response": [read]}) as client:
        assert (await HttpSession(URL, http_client=client).get(REF)).task_id == TASK_ID
        refused = await fails(HttpSession(URL, http_client=client, max_response_bytes=40))
        assert "raise max_response_bytes" in str(refused)


@pytest.mark.parametrize("as_events", [False, True])
async def test_a_reply_may_be_as_large_as_allowed_and_no_larger(
    server: ScriptedServer, as_events: bool
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        head = b'{"jsonrpc":"2.0","id":%d,"result":{"taskId":"t","status":"working","x":"' % rpc_id(request)
        lead = b"data: " if as_events else b""
        body = lead + head + b"x" * (2000 - len(lead) - len(head) - 3) + b'"}}'
        kind = "text/event-stream" if as_events else "application/json"
        return httpx.Response(200, content=body, headers={"content-type": kind})

    server.answers("tasks/get", answer)
    assert (await HttpSession(URL, max_response_bytes=2000).get(REF)).task_id == "t"
    refused = await fails(HttpSession(URL, max_response_bytes=1999))
    assert type(refused) is RemoteProtocolError
    assert not refused.retryable
    assert "larger than 1999 bytes; raise max_response_bytes" in str(refused)


# ── what a call answers ───────────────────────────────────────────────────────────────────────


async def test_a_call_answers_with_a_result_a_task_or_questions(
    server: ScriptedServer, session: HttpSession
) -> None:
    returned = {"content": [], "isError": True, "x-own": [1]}
    asked = {"resultType": "input_required", "inputRequests": {"k": {"method": "x"}}, "requestState": "s"}
    created = {**TASK, "resultType": "task", "content": []}
    server.answers("tools/call", result(returned), result(asked), result(created))
    assert await session.call(ToolCall(name="deploy")) == Returned(returned)
    assert await session.call(ToolCall(name="deploy")) == InputRequired({"k": {"method": "x"}}, "s")
    reply = await session.call(ToolCall(name="deploy"))
    assert isinstance(reply, Created)
    assert reply.task.task_id == TASK_ID


@pytest.mark.parametrize(
    "value", [{"resultType": "task", "status": "working"}, {"resultType": "input_required"}]
)
async def test_a_call_reply_that_cannot_be_read_is_malformed(
    server: ScriptedServer, session: HttpSession, value: object
) -> None:
    server.answers("tools/call", result(value))
    with pytest.raises(RemoteProtocolError) as caught:
        await session.call(ToolCall(name="deploy"))
    assert caught.value.retryable
    assert not caught.value.not_executed


async def test_any_result_acknowledges(server: ScriptedServer, session: HttpSession) -> None:
    for method in ("tasks/update", "tasks/cancel"):
        server.answers(method, result({"resultType": "complete", "_meta": {}, "content": [], "status": 7}))
    await session.update(REF, {"k": {}})
    await session.cancel(REF)


async def test_a_snapshot_may_call_itself_a_task(server: ScriptedServer, session: HttpSession) -> None:
    server.answers("tasks/get", result({**TASK, "resultType": "task"}))
    assert (await session.get(REF)).task_id == TASK_ID


@requirement("create:unsupported-request")
@pytest.mark.parametrize("method", ["server/discover", "tools/list", "tasks/update", "tasks/cancel"])
async def test_nothing_but_a_call_may_be_answered_with_a_task(
    server: ScriptedServer, session: HttpSession, method: str, naps: list[float]
) -> None:
    """MUST interpret this as an invalid response to the request (Capability Negotiation)."""
    server.answers(
        method, result({**TASK, "resultType": "task", "supportedVersions": ["2026-07-28"], "tools": []})
    )
    with pytest.raises(RemoteProtocolError, match="only tools/call"):
        await {
            "tasks/update": lambda: session.update(REF, {}),
            "tasks/cancel": lambda: session.cancel(REF),
        }.get(method, lambda: session.tool("deploy"))()  # type: ignore[no-untyped-call]


# ── errors ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("raised", "kind", "retryable", "not_executed"),
    [
        (httpx.ConnectError("refused"), ConnectionLostError, True, True),
        (httpx.ConnectTimeout("slow"), ConnectionLostError, True, True),
        (httpx.PoolTimeout("full"), ConnectionLostError, True, True),
        (httpx.ProxyError("407"), ConnectionLostError, True, True),
        (httpx.UnsupportedProtocol("socks"), ConnectionLostError, True, True),
        (httpx.ReadError("reset"), ConnectionLostError, True, False),
        (httpx.ReadTimeout("slow"), ConnectionLostError, True, False),
        (httpx.WriteError("reset"), ConnectionLostError, True, False),
        (httpx.WriteTimeout("slow"), ConnectionLostError, True, False),
        (httpx.CloseError("?"), ConnectionLostError, True, False),
        (httpx.RemoteProtocolError("gone"), ConnectionLostError, True, False),
        (ssl.SSLError("tlsv13 alert certificate required"), ConnectionLostError, True, False),
        (httpx.DecodingError("bad"), RemoteProtocolError, True, False),
        (httpx.LocalProtocolError("Illegal header value b'secret'"), SessionError, False, False),
        (httpx.InvalidURL("no"), RemoteProtocolError, False, False),
    ],
)
async def test_what_httpx_raises_becomes_an_error_of_ours(
    raised: Exception, kind: type[SessionError], retryable: bool, not_executed: bool
) -> None:
    def handle(_: httpx.Request) -> httpx.Response:
        raise raised

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        lost = await fails(HttpSession(URL, http_client=client))
    assert type(lost) is kind
    assert (lost.retryable, lost.not_executed) == (retryable, not_executed)
    assert "secret" not in str(lost)
    assert lost.code is None


async def test_text_of_the_transport_does_not_tell_the_task_id() -> None:
    def handle(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError(f"lost {TASK_ID}")

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        assert "lost 786512e2…" in str(await fails(HttpSession(URL, http_client=client)))


class Failing(httpx.Auth):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]
        raise self._error
        yield request


@pytest.mark.parametrize(
    "raised", [KeyError("token"), OSError("keyring"), UnicodeEncodeError("a", "", 0, 1, "x")]
)
async def test_an_auth_flow_of_the_callers_fails_as_it_likes(
    server: ScriptedServer, raised: Exception
) -> None:
    with pytest.raises(type(raised)) as caught:
        await HttpSession(URL, auth=Failing(raised)).get(REF)
    assert caught.value is raised


async def test_an_httpx_error_in_an_auth_flow_is_mapped(server: ScriptedServer) -> None:
    lost = await fails(HttpSession(URL, auth=Failing(httpx.ConnectError("token endpoint"))))
    assert type(lost) is ConnectionLostError
    response = httpx.Response(503, request=httpx.Request("POST", "https://login.example?secret=1"))
    failed = httpx.HTTPStatusError(
        "https://login.example?secret=1", request=response.request, response=response
    )
    lost = await fails(HttpSession(URL, auth=Failing(failed)))
    assert (lost.retryable, lost.http_status) == (True, 503)
    assert "secret" not in str(lost)


async def test_a_header_that_cannot_be_sent_is_not_quoted() -> None:
    """The check is h11's, so this goes over a real connection pool (which never connects)."""

    class Bad(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]
            request.headers["Authorization"] = "Bearer secret\n"
            yield request

    async def accept(stream: anyio.abc.SocketStream) -> None:
        await stream.aclose()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with anyio.create_task_group() as group:
        group.start_soon(listener.serve, accept)
        session = HttpSession(f"http://127.0.0.1:{port}/", auth=Bad())
        refused = await fails(session)
        await session.aclose()
        group.cancel_scope.cancel()
    await listener.aclose()
    assert type(refused) is SessionError
    assert not refused.retryable
    assert "secret" not in f"{refused}{refused.__cause__}"


@pytest.mark.parametrize(
    ("status", "kind", "retryable", "not_executed"),
    [
        (400, SessionError, False, False),
        (401, CredentialRefusedError, False, True),
        (403, CredentialRefusedError, False, True),
        (404, SessionError, True, False),
        (405, SessionError, False, False),
        (408, SessionError, True, False),
        (409, SessionError, True, False),
        (410, SessionError, False, False),
        (413, SessionError, False, False),
        (425, SessionError, True, False),
        (429, SessionError, True, True),
        (451, SessionError, False, False),
        (500, SessionError, True, False),
        (502, SessionError, True, False),
        (503, SessionError, True, False),
        (504, SessionError, True, False),
        (599, SessionError, True, False),
    ],
)
async def test_a_status_counts_where_there_is_no_reply(
    server: ScriptedServer, status: int, kind: type[SessionError], retryable: bool, not_executed: bool
) -> None:
    no_replies = [b"", b"<html>", b'{"error": {"code": -32602, "message": "?"}}', b"x" * 5000, b"{", b"[]"]
    session = HttpSession(URL, max_response_bytes=4000)
    for body in no_replies:
        server.answers("tasks/get", http(status, body, "application/json", **{"retry-after": "7"}))
        failed = await fails(session)
        assert type(failed) is kind
        assert (failed.retryable, failed.not_executed) == (retryable, not_executed)
        assert (failed.http_status, failed.retry_after_s, failed.code) == (status, 7.0, None)
        assert str(status) in str(failed)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_credential_is_that_whatever_the_body(
    server: ScriptedServer, session: HttpSession, status: int
) -> None:
    server.answers("tasks/get", error(-32603, status), result(TASK, status))
    assert type(await fails(session)) is CredentialRefusedError
    assert type(await fails(session)) is CredentialRefusedError


@pytest.mark.parametrize("stream", ["", "data: {\n\n"])
async def test_a_status_counts_where_an_event_stream_holds_no_reply(
    server: ScriptedServer, session: HttpSession, stream: str
) -> None:
    server.answers("tasks/get", events(stream, status=429))
    failed = await fails(session)
    assert (type(failed), failed.http_status, failed.not_executed) == (SessionError, 429, True)


@pytest.mark.parametrize(
    ("code", "kind", "retryable", "not_executed"),
    [
        (-32700, SessionError, False, True),
        (-32600, SessionError, False, True),
        (-32601, SessionError, False, True),
        (-32602, SessionError, False, True),
        (-32603, SessionError, True, False),
        (-32000, SessionError, True, False),
        (-32003, MissingCapabilityError, False, True),
        (-32021, MissingCapabilityError, False, True),
        (-32020, RemoteProtocolError, False, True),
        (-32022, RemoteProtocolError, False, True),
        (7, SessionError, True, False),
        ("text", SessionError, True, False),
    ],
)
async def test_a_json_rpc_error_keeps_all_the_server_said(
    server: ScriptedServer,
    session: HttpSession,
    code: object,
    kind: type[SessionError],
    retryable: bool,
    not_executed: bool,
) -> None:
    for status in (200, 400, 404, 500):
        server.answers("tasks/get", error(code, status, f"about {TASK_ID}!", {"id": TASK_ID}))
        failed = await fails(session)
        assert type(failed) is kind
        assert (failed.retryable, failed.not_executed) == (retryable, not_executed)
        assert failed.code == (code if isinstance(code, int) else None)
        assert (failed.remote_message, failed.data) == (f"about {TASK_ID}!", {"id": TASK_ID})
        assert failed.http_status == status
        assert "about 786512e2…!" in str(failed)


@pytest.mark.parametrize("head", ['"id":null,', ""])
@pytest.mark.parametrize("as_events", [False, True])
async def test_an_error_may_come_without_our_id(
    server: ScriptedServer, session: HttpSession, head: str, as_events: bool
) -> None:
    body = '{"jsonrpc":"2.0",' + head + '"error":{"code":-32602,"message":"unknown"}}'
    server.answers("tasks/get", events(f"data: {body}\n\n") if as_events else http(400, body))
    assert (await fails(session)).code == -32602


@requirement("law:2")
@pytest.mark.parametrize("status", [408, 500, 503])
@pytest.mark.parametrize("code", [-32600, -32603])
async def test_an_error_of_the_servers_that_names_no_request_says_nothing_of_what_became_of_ours(
    server: ScriptedServer, session: HttpSession, status: int, code: int
) -> None:
    said = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "Internal server error"}}
    server.answers("tools/call", http(status, json.dumps(said)))
    with pytest.raises(SessionError) as raised:
        await session.call(ToolCall(name="t"))
    failed = raised.value
    assert (failed.code, failed.http_status, failed.retryable) == (None, status, True)
    assert not failed.not_executed
    server.answers("tasks/get", http(status, json.dumps(said)))
    assert (await fails(session)).code == code, "what can be asked again does no harm"


async def test_an_error_beside_an_empty_result_is_an_error(
    server: ScriptedServer, session: HttpSession
) -> None:
    body = '{"jsonrpc":"2.0","id":%d,"result":null,"error":{"code":-32602,"message":"unknown"}}'
    server.answers("tasks/get", lambda r: httpx.Response(200, content=body % rpc_id(r)))
    assert (await fails(session)).code == -32602
    body = '{"jsonrpc":"2.0","id":%d,"error":null,"result":{"taskId":"t","status":"working"}}'
    assert (await session.get(REF)).task_id == "t"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("code", [-32000, -32600, -32601, -32602, -32003, -32020, -32022])
async def test_a_limited_request_may_be_repeated_whatever_its_code(
    server: ScriptedServer, session: HttpSession, status: int, code: int
) -> None:
    server.answers("tasks/get", error(code, status, **{"retry-after": "12"}))
    failed = await fails(session)
    assert type(failed) is SessionError
    assert (failed.retryable, failed.retry_after_s, failed.code) == (True, 12.0, code)
    assert "Try again later." in str(failed), "the server itself has said nothing of the task"
    assert failed.not_executed == (status == 429), "a gateway cannot know what became of the request"


async def test_an_id_that_the_server_quotes_as_a_header_is_shortened(
    server: ScriptedServer, session: HttpSession
) -> None:
    task_id = "tâche-0123456789-0123456789"
    quoted = f"=?base64?{base64.b64encode(task_id.encode()).decode()}?="
    server.answers("tasks/get", error(-32020, 400, f"Mcp-Name {quoted} is not {task_id}"))
    failed = await fails(session, TaskRef(task_id))
    assert "Mcp-Name tâche-01… is not tâche-01…" in str(failed)


async def test_a_long_text_of_the_servers_is_cut_in_the_message_alone(
    server: ScriptedServer, session: HttpSession
) -> None:
    server.answers("tasks/get", error(-32603, 200, "x" * 9999))
    failed = await fails(session)
    assert len(str(failed)) < 600
    assert failed.remote_message == "x" * 9999


@pytest.fixture
def somewhere_else(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone in which a local time cannot be taken for GMT."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XYZ+7")
        time.tzset()
        yield
    time.tzset()


NOW = datetime.datetime.now(datetime.UTC)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("0", 0, 0),
        ("120", 120, 120),
        (" 1.5 ", 1.5, 1.5),
        ("-5", 0, 0),
        (email.utils.format_datetime(NOW + datetime.timedelta(hours=1), usegmt=True), 3000, 3600),
        (email.utils.format_datetime(NOW - datetime.timedelta(hours=1), usegmt=True), 0, 0),
        (time.strftime("%A, %d-%b-%y %H:%M:%S GMT", time.gmtime(NOW.timestamp() + 3600)), 3000, 3600),
        (time.asctime(time.gmtime(NOW.timestamp() + 3600)), 3000, 3600),
    ],
    ids=["none", "whole", "fraction", "negative", "in an hour", "an hour ago", "older form", "oldest form"],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(
    value: str, low: float, high: float, somewhere_else: None
) -> None:
    seconds = retry_after_s(value)
    assert seconds is not None
    assert low <= seconds <= high


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "nan",
        "inf",
        "1e9",
        "9" * 400,
        "Thu, 99 Foo 2026 00:00:00 GMT",
        "1 2",
        "0x10",
        f"{10**30} Jan 2026 00:00:00 GMT",
    ],
)
def test_a_retry_after_that_makes_no_sense_counts_as_absent(value: str) -> None:
    assert retry_after_s(value) is None
    assert retry_after_s("") is None
