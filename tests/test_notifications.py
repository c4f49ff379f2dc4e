"""Notifications of a server's that concern no task, told to the host."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.lowlevel
import httpx
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp_types import LOG_LEVEL_META_KEY

from mcp_tasks_client import BlockingTasksClient, MemoryJournal, StdioServer, TasksClient
from mcp_tasks_client.testing import ScriptedServer
from tests._results import text
from tests.kit.current_server import ACKNOWLEDGED, DISCOVERED, CurrentServer, Http, at_loopback
from tests.kit.older_server import RELATED, OlderServer, Stream

from .legacy_servers import LegacyServer
from .telling_server import SCRIPT

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 60.0
README: Final = "file:///readme.txt"
LISTENS: Final = "subscriptions/listen"
URL: Final = "http://server.example/mcp"


class Told:
    """Takes notifications, and waits for them."""

    def __init__(self) -> None:
        self.all: list[tuple[str, dict[str, Any]]] = []
        self._news = anyio.Event()

    def __call__(self, method: str, params: dict[str, Any]) -> None:
        self.all.append((method, params))
        self._news.set()
        self._news = anyio.Event()

    def of(self, method: str) -> list[dict[str, Any]]:
        return [params for name, params in self.all if name == method]

    async def wait_for(self, method: str, count: int = 1) -> None:
        while len(self.of(method)) < count:
            await self._news.wait()


def notification(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}


PROGRESS: Final = {"progressToken": "theirs", "progress": 1}
SAID: Final = [
    ("notifications/message", {"level": "info", "data": "line 1"}),
    ("notifications/progress", PROGRESS),
    ("notifications/tools/list_changed", {}),
    ("notifications/resources/updated", {"uri": README}),
    ("acme/unknown", {"a": [None]}),
]
"""Each is the host's to know."""

OURS: Final = [
    ("notifications/tasks", {"taskId": "t"}),
    ("notifications/tasks/status", {"taskId": "t"}),
    ("notifications/cancelled", {"requestId": 7}),
]
"""None is."""


@asynccontextmanager
async def client_at(server: OlderServer, told: Any, **options: Any) -> AsyncIterator[TasksClient]:
    with anyio.fail_after(LIMIT_S):
        async with (
            httpx.AsyncClient(transport=httpx.MockTransport(server)) as http,
            TasksClient(
                URL, http_client=http, journal=MemoryJournal(), on_notification=told, **options
            ) as client,
        ):
            yield client


def server_of(version: str, lists: dict[str, Any] | None = None) -> OlderServer:
    """A server of either version, whose streams the test writes."""
    server = OlderServer()
    if version == "2026-07-28":
        capabilities = {**DISCOVERED["capabilities"], **(lists or {})}
        server.replies["server/discover"] = lambda arrived: {**DISCOVERED, "capabilities": capabilities}
        tool = {"name": "plain", "inputSchema": {"type": "object"}}
        server.replies["tools/list"] = lambda arrived: {**ACKNOWLEDGED, "tools": [tool]}
    return server


def options_of(version: str) -> dict[str, Any]:
    return {"protocol": "2025-11-25"} if version == "2025-11-25" else {}


CHANGING: Final = {"tools": {"listChanged": True}, "resources": {"listChanged": True, "subscribe": True}}


async def acknowledge(server: OlderServer, stream: Stream, number: int = 1) -> dict[str, Any]:
    """Acknowledge the stream that a client has asked for. Returns what it was asked for."""
    asked: dict[str, Any] = (await server.wait_for(LISTENS, number))[-1].params["notifications"]
    stream.event(notification("notifications/subscriptions/acknowledged", {"notifications": asked}))
    return asked


# ── on the streams of replies ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("method", ["tools/call", "resources/read"])
async def test_what_comes_before_a_reply_is_told_before_the_reply(version: str, method: str) -> None:
    server, stream, told = server_of(version), Stream(), Told()
    server.replies[method] = lambda arrived: stream
    for name, params in (*SAID, *OURS):
        stream.event(notification(name, params))
    stream.event(notification("acme/bare"))
    stream.event({"jsonrpc": "2.0", "id": 99, "method": "acme/request"})
    stream.reply({"resultType": "complete", "content": [], "contents": []})
    async with client_at(server, told, **options_of(version)) as client:
        if method == "tools/call":
            await client.call_tool("plain", meta={"progressToken": "theirs"})
        else:
            await client.request(method, {"uri": README, "_meta": {"progressToken": "theirs"}})
        assert told.all == [*SAID, ("acme/bare", {})]


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_a_callback_that_raises_is_logged_and_harms_nothing(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, stream = server_of(version), Stream()
    server.replies["tools/call"] = lambda arrived: stream
    told: list[str] = []

    def fail(method: str, params: dict[str, Any]) -> None:
        told.append(method)
        raise KeyError("no such window")

    for name, params in SAID:
        stream.event(notification(name, params))
    stream.reply({"resultType": "complete", "content": [{"type": "text", "text": "done"}]})
    async with client_at(server, fail, **options_of(version)) as client:
        assert text(await client.call_tool("plain")) == "done"
    assert told == [name for name, _ in SAID]
    assert caplog.text.count("on_notification raised") == len(SAID)
    assert "no such window" in caplog.text


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_a_changed_list_of_tools_is_fetched_again(version: str) -> None:
    server, stream, told = server_of(version), Stream(), Told()
    server.replies["resources/read"] = lambda arrived: stream
    stream.event(notification("notifications/tools/list_changed"))
    stream.reply({"resultType": "complete"})
    async with client_at(server, told, **options_of(version)) as client:
        await client.call_tool("plain")
        before = len(server.of("tools/list"))
        await client.call_tool("plain")
        assert len(server.of("tools/list")) == before
        await client.request("resources/read", {"uri": README})
        await client.call_tool("plain")
        assert len(server.of("tools/list")) == before + 1


async def test_a_flood_leaves_the_event_loop_its_turns() -> None:
    """A callback is called at once, so that nothing is kept. What has not been read waits on the socket."""
    server, count = CurrentServer(), 50_000
    reply = {"jsonrpc": "2.0", "id": "any", "result": {"resultType": "complete"}}
    lines = [json.dumps(notification("acme/x"))] * count + [json.dumps(reply)]
    body = "".join(f"data: {line}\n\n" for line in lines).encode()
    server.replies["resources/read"] = Http("200 OK", body, ["Content-Type: text/event-stream"])
    seen = at_once = most_at_once = 0

    def told(method: str, params: dict[str, Any]) -> None:
        nonlocal seen, at_once, most_at_once
        seen, at_once = seen + 1, at_once + 1
        most_at_once = max(most_at_once, at_once)

    async def take_turns() -> None:
        nonlocal at_once
        while True:
            at_once = 0
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(LIMIT_S):
        async with (
            at_loopback(server) as url,
            TasksClient(url, journal=MemoryJournal(), on_notification=told) as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(take_turns)
            await client.request("resources/read", {"uri": README})
            tasks.cancel_scope.cancel()
    assert seen == count
    assert most_at_once < count / 4


# ── changed lists at 2026-07-28 ───────────────────────────────────────────────────────────────────


async def test_changed_lists_are_told_on_a_stream_of_their_own_that_stays_open() -> None:
    server, streams, told = server_of("2026-07-28", CHANGING), [Stream(), Stream()], Told()
    server.replies[LISTENS] = lambda arrived: streams[len(server.of(LISTENS)) - 1]
    async with client_at(server, told) as client:
        await client.call_tool("plain")
        asked = await acknowledge(server, streams[0])
        assert asked == {"toolsListChanged": True, "resourcesListChanged": True}
        streams[0].event(notification("notifications/tools/list_changed"))
        await told.wait_for("notifications/tools/list_changed")
        streams[0].end()  # a connection that breaks is opened again
        await acknowledge(server, streams[1], 2)
        streams[1].event(notification("notifications/resources/list_changed"))
        await told.wait_for("notifications/resources/list_changed")
        assert len(server.of(LISTENS)) == 2
    assert [name for name, _ in told.all] == [
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
    ]
    await streams[1].closed_by_client.wait()


@pytest.mark.parametrize(
    ("lists", "wanted"),
    [
        (CHANGING, False),
        ({"tools": {"listChanged": False}, "prompts": {}, "resources": None}, True),
        ({"tools": {"listChanged": "yes"}}, True),
    ],
)
async def test_no_stream_is_asked_for_that_nobody_wants_or_offers(
    lists: dict[str, Any], wanted: bool
) -> None:
    server, told = server_of("2026-07-28", lists), Told()
    async with client_at(server, told if wanted else None) as client:
        await client.call_tool("plain")
        await anyio.wait_all_tasks_blocked()
        await client.call_tool("plain")
        await anyio.wait_all_tasks_blocked()
    assert server.of(LISTENS) == []


@pytest.mark.parametrize(
    "refusal",
    [
        lambda: httpx.Response(404),
        lambda: httpx.Response(
            200, json={"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "no such method"}}
        ),
        "declined",
    ],
)
async def test_a_server_that_refuses_the_stream_is_not_asked_again(
    refusal: Callable[[], httpx.Response] | str,
) -> None:
    server, told, stream = server_of("2026-07-28", CHANGING), Told(), Stream()
    server.replies[LISTENS] = lambda arrived: refusal() if callable(refusal) else stream
    stream.event(notification("notifications/subscriptions/acknowledged", {"notifications": {}}))
    async with client_at(server, told) as client:
        await client.call_tool("plain")
        await server.wait_for(LISTENS)
        with anyio.move_on_after(2.5):  # the pause before a second attempt is one second
            await server.wait_for(LISTENS, 2)
        assert len(server.of(LISTENS)) == 1
        await client.call_tool("plain")


# ── at 2025-11-25 ─────────────────────────────────────────────────────────────────────────────────


async def test_an_older_server_is_heard_on_its_own_stream_from_the_first_request_on() -> None:
    server, told = OlderServer(), Told()
    server.server_stream = Stream()
    server.replies["resources/subscribe"] = lambda arrived: {}
    async with client_at(server, told, protocol="2025-11-25") as client:
        await client.request("resources/subscribe", {"uri": README})
        methods = [one.method for one in server.arrived]
        assert methods.index("GET") < methods.index("resources/subscribe")
        for name, params in (*SAID, *OURS):
            server.server_stream.event(notification(name, params))
        await told.wait_for("acme/unknown")
    assert told.all == SAID


@pytest.mark.parametrize("token", ["theirs", None])
async def test_progress_is_told_under_the_hosts_tokens_alone(token: str | None) -> None:
    """At 2025-11-25 a call that may become a task has a token of ours, where the host gives none."""
    server, told = OlderServer(), Told()
    server.server_stream = Stream()
    server.task = {"taskId": "task-1", "status": "working", "ttl": 60_000, "pollInterval": 50}
    async with client_at(server, told, protocol="2025-11-25") as client:
        meta = None if token is None else {"progressToken": token}
        await client.start_tool("slow", meta=meta)
        sent = server.of("tools/call")[0].params["_meta"]["progressToken"]
        params = {"progressToken": sent, "progress": 1, "_meta": {RELATED: {"taskId": "task-1"}}}
        server.server_stream.event(notification("notifications/progress", params))
        server.server_stream.event(notification("acme/last"))
        await told.wait_for("acme/last")
    assert told.of("notifications/progress") == ([params] if token else [])


# ── options ───────────────────────────────────────────────────────────────────────────────────────


async def test_only_a_plain_function_at_a_url_is_told() -> None:
    async def later(method: str, params: dict[str, Any]) -> None:
        raise AssertionError("it is never called")

    for wrong in (later, 7):
        with pytest.raises(TypeError, match="plain function"):
            TasksClient(URL, on_notification=wrong)  # type: ignore[arg-type]
    for server in (ScriptedServer().session(), mcp.Client(streamable_http_client(URL))):
        with pytest.raises(ValueError, match="by its URL or its command"):
            TasksClient(server, endpoint="s", on_notification=Told())


# ── real servers ──────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def client_of(url: str | StdioServer, told: Told, protocol: Any = None) -> AsyncIterator[TasksClient]:
    with anyio.fail_after(LIMIT_S):
        async with TasksClient(
            url, protocol=protocol, journal=MemoryJournal(), on_notification=told
        ) as client:
            yield client


@pytest.mark.parametrize("protocol", [None, "2025-11-25"])
@pytest.mark.parametrize("kind", ["sdk", "fastmcp"])
async def test_a_tool_of_a_real_server_tells_the_host(
    request: pytest.FixtureRequest, kind: str, protocol: Any
) -> None:
    told = Told()
    async with client_of(request.getfixturevalue(f"telling_{kind}"), told, protocol) as client:
        meta = {"progressToken": "theirs", LOG_LEVEL_META_KEY: "info"}
        assert text(await client.call_tool("tell", {"count": 3}, meta=meta)) == "told"
        await told.wait_for("notifications/progress", 3)
        await told.wait_for("notifications/message", 3)
    assert [params["progress"] for params in told.of("notifications/progress")] == [1, 2, 3]
    assert {params["progressToken"] for params in told.of("notifications/progress")} == {"theirs"}
    assert [params["level"] for params in told.of("notifications/message")] == ["info"] * 3


@pytest.mark.parametrize("protocol", [None, "2025-11-25"])
async def test_a_real_server_tells_of_changed_lists(telling_sdk: str, protocol: Any) -> None:
    told = Told()
    async with client_of(telling_sdk, told, protocol) as client:
        while not told.of("notifications/tools/list_changed"):  # until the stream is open
            await client.call_tool("change")
            with anyio.move_on_after(0.5):
                await told.wait_for("notifications/tools/list_changed")


@pytest.mark.parametrize("protocol", [None, "2025-11-25"])
@pytest.mark.parametrize("kind", ["sdk", "fastmcp"])
async def test_a_server_by_its_command_tells_the_host(kind: str, protocol: Any) -> None:
    told = Told()
    server = StdioServer(sys.executable, [str(SCRIPT), "--kind", kind, "--stdio"])
    async with client_of(server, told, protocol) as client:
        got = await client.request("prompts/get", {"name": "tell_first", "_meta": {"progressToken": "p"}})
        assert "Say hello" in json.dumps(got)
        await told.wait_for("notifications/progress")
        assert told.of("notifications/progress")[0]["progressToken"] == "p"
        meta = {"progressToken": "theirs", LOG_LEVEL_META_KEY: "info"}
        assert text(await client.call_tool("tell", {"count": 3}, meta=meta)) == "told"
        await told.wait_for("notifications/progress", 4)
        await told.wait_for("notifications/message", 3)
    assert {params["progressToken"] for params in told.of("notifications/progress")[1:]} == {"theirs"}


async def test_a_real_server_of_an_earlier_sdk_tells_the_host(legacy_python_server: LegacyServer) -> None:
    told = Told()
    async with client_of(legacy_python_server.url, told) as client:
        await client.request("tools/list")
        result = await client.call_tool("plain", meta={"progressToken": "theirs"})
        assert not result.is_error
    assert all(params["progressToken"] == "theirs" for params in told.of("notifications/progress"))


def test_a_client_without_an_event_loop_is_told(telling_sdk: str) -> None:
    told: list[str] = []
    with BlockingTasksClient(
        telling_sdk, journal=MemoryJournal(), on_notification=lambda method, params: told.append(method)
    ) as client:
        client.call_tool("tell", {"count": 2}, meta={"progressToken": "theirs"})
    assert told.count("notifications/progress") == 2
