"""Requests of a host's that concern neither a call nor a task, passed on as they are."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import anyio
import httpx
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
)

from mcp_tasks_client import (
    BlockingTasksClient,
    ConnectionLostError,
    Limits,
    MemoryJournal,
    RemoteProtocolError,
    SessionError,
    TasksClient,
)
from mcp_tasks_client.protocol import EXTENSION_ID, JSONObject
from mcp_tasks_client.protocol.replies import RpcError
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.testing import ScriptedServer, scripted_client
from tests.kit.current_server import NEVER, CurrentServer, Fault, at_loopback
from tests.kit.older_server import OlderServer, Stream

from .legacy_servers import LegacyServer

pytestmark = [
    pytest.mark.anyio,
    # The SDK's transport leaves a body that it has read to the garbage collector, which trio tells.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]

LIMIT_S: Final = 60.0
URI: Final = "file:///naïve file.txt"
READ: Final[JSONObject] = {
    "resultType": "complete",
    "contents": [{"uri": URI, "text": "t", "x": {"y": [1]}}],
    "ttlMs": 0,
    "cacheScope": "public",
    "unknown": {"kept": True},
}
ASKS: Final[JSONObject] = {
    "resultType": "input_required",
    "inputRequests": {"who": {"method": "roots/list"}},
    "requestState": "s",
}


@asynccontextmanager
async def client_at(url: str, way: str = "by URL", **options: Any) -> AsyncIterator[TasksClient]:
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(LIMIT_S))
        server: Any = url
        if way == "over a client":
            server = await stack.enter_async_context(mcp.Client(streamable_http_client(url)))
            options["endpoint"] = "server"
        yield await stack.enter_async_context(TasksClient(server, journal=MemoryJournal(), **options))


# ── at 2026-07-28 ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["by URL", "over a client"])
@pytest.mark.parametrize(
    ("method", "params", "result"),
    [
        ("resources/read", {"uri": URI}, READ),
        ("resources/read", {"uri": URI}, ASKS),
        ("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}, ASKS),
        ("acme/unknown", {"a": [1, None]}, {"resultType": "complete", "b": None}),
    ],
)
async def test_a_result_comes_back_as_the_server_sent_it(
    way: str, method: str, params: JSONObject, result: JSONObject
) -> None:
    server = CurrentServer()
    server.replies[method] = result
    async with at_loopback(server) as url, client_at(url, way) as client:
        assert await client.request(method, params) == result
    (sent,) = [sent for name, sent in server.received if name == method]
    assert {name: value for name, value in sent.items() if name != "_meta"} == params


@pytest.mark.parametrize("way", ["by URL", "over a client"])
async def test_a_result_that_does_not_fit_the_protocol_is_the_hosts_to_judge_unless_the_sdk_does(
    way: str,
) -> None:
    server = CurrentServer()
    server.replies["completion/complete"] = {"odd": 1}
    params = {"ref": {"type": "ref/prompt", "name": "p"}}
    async with at_loopback(server) as url, client_at(url, way) as client:
        if way == "by URL":
            assert await client.request("completion/complete", params) == {"odd": 1}
        else:
            with pytest.raises(RemoteProtocolError, match="does not fit the core protocol"):
                await client.request("completion/complete", params)


@pytest.mark.parametrize("way", ["by URL", "over a client"])
@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("resources/read", {"uri": "file:///a.txt"}, "file:///a.txt"),
        ("resources/read", {"uri": "file:///é"}, "=?base64?ZmlsZTovLy/DqQ==?="),
        ("prompts/get", {"name": "greet"}, "greet"),
        ("resources/list", {"name": "no name"}, None),
        ("acme/unknown", {"uri": "no name"}, None),
    ],
)
async def test_the_header_names_what_a_request_is_about(
    way: str, method: str, params: JSONObject, name: str | None
) -> None:
    """MCP 2026-07-28, Streamable HTTP: ``Mcp-Name`` is the name of a prompt, the URI of a resource."""
    server, heads = CurrentServer(), list[str]()
    server.replies[method] = ASKS
    async with at_loopback(server, heads) as url, client_at(url, way) as client:
        try:
            await client.request(method, params)
        except RemoteProtocolError:
            assert way == "over a client"  # the SDK checks the result, which these tests do not care for
    (head,) = [one for one in heads if f"mcp-method: {method}" in one]
    named = [line for line in head.splitlines() if line.startswith("mcp-name:")]
    assert named == ([] if name is None else [f"mcp-name: {name.lower()}"])


@pytest.mark.parametrize("way", ["by URL", "over a client"])
async def test_the_hosts_meta_is_sent_with_ours_and_replaces_none_of_it(way: str) -> None:
    server = CurrentServer()
    server.replies["resources/read"] = READ
    theirs = {"progressToken": "p-1", LOG_LEVEL_META_KEY: "info", PROTOCOL_VERSION_META_KEY: "1999-01-01"}
    async with at_loopback(server) as url, client_at(url, way) as client:
        await client.request("resources/read", {"uri": URI, "_meta": theirs})
    (sent,) = [sent for name, sent in server.received if name == "resources/read"]
    meta = sent["_meta"]
    assert meta["progressToken"] == "p-1"
    assert meta[LOG_LEVEL_META_KEY] == "info"
    assert meta[PROTOCOL_VERSION_META_KEY] == "2026-07-28"
    assert EXTENSION_ID in meta[CLIENT_CAPABILITIES_META_KEY]["extensions"]
    assert meta[CLIENT_INFO_META_KEY]["name"]


@pytest.mark.parametrize("way", ["by URL", "over a client"])
async def test_an_error_of_the_servers_comes_back_with_all_that_it_says(way: str) -> None:
    server = CurrentServer()
    server.replies["resources/read"] = Fault(-32050, "quota exceeded", {"retryAfter": 7})
    async with at_loopback(server) as url, client_at(url, way) as client:
        with pytest.raises(SessionError) as caught:
            await client.request("resources/read", {"uri": URI})
        assert (caught.value.code, caught.value.remote_message) == (-32050, "quota exceeded")
        assert caught.value.data == {"retryAfter": 7}
        with pytest.raises(SessionError) as caught:
            await client.request("acme/unknown")
        assert caught.value.code == -32601
    assert server.counts["resources/read"] == 1, "it is sent once"


async def test_a_request_of_the_hosts_may_take_as_long_as_a_call() -> None:
    server = CurrentServer()
    server.replies["resources/read"] = NEVER
    limits = Limits(task_timeout_s=0.2, call_read_timeout_s=3.0)
    async with at_loopback(server) as url:
        session = HttpSession(url, limits=limits)
        with anyio.fail_after(LIMIT_S):
            async with TasksClient(session, journal=MemoryJournal()) as client:
                began = anyio.current_time()
                with pytest.raises(ConnectionLostError):
                    await client.request("resources/read", {"uri": URI})
                assert anyio.current_time() - began > 2.5


async def test_a_client_over_an_older_connection_says_that_it_passes_nothing_on(telling_sdk: str) -> None:
    with anyio.fail_after(LIMIT_S):
        async with (
            mcp.Client(streamable_http_client(telling_sdk), mode="legacy") as theirs,
            TasksClient(theirs, endpoint="s", journal=MemoryJournal()) as client,
        ):
            with pytest.raises(RemoteProtocolError, match="negotiated at 2025-11-25"):
                await client.request("resources/read", {"uri": URI})


# ── whichever version ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "params", "why"),
    [
        ("tools/call", {"name": "build"}, r"call_tool\(\)"),
        ("tasks/get", {"taskId": "t"}, r"call_tool\(\)"),
        ("initialize", {}, "does that itself"),
        ("subscriptions/listen", {}, "does that itself"),
        ("notifications/cancelled", {}, "does that itself"),
        ("", {}, "a method is"),
        ('a","method":"tools/call', {}, "a method is"),
        ("a b", {}, "a method is"),
        ("prompts/get", {"name": {1}, "n": float("nan")}, "params of 'prompts/get' cannot be sent"),
        ("prompts/get", {"_meta": 7}, "must be a mapping"),
    ],
)
async def test_what_is_no_request_of_a_hosts_is_refused(method: str, params: Any, why: str) -> None:
    server = CurrentServer()
    async with at_loopback(server) as url, client_at(url) as client:
        with pytest.raises(ValueError, match=why):
            await client.request(method, params)
    assert server.received == []


async def test_a_scripted_server_sees_what_a_host_passes_on() -> None:
    server = ScriptedServer()
    async with scripted_client(server.session(), journal=MemoryJournal()) as client:
        with pytest.raises(SessionError) as caught:
            await client.request("prompts/get", {"name": "greet", "_meta": {"progressToken": 7}})
    assert caught.value.code == -32601
    (arrived,) = [one for one in server.witness.arrivals if one.method == "prompts/get"]
    assert arrived.params["_meta"]["progressToken"] == 7


# ── at 2025-11-25 ─────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def client_at_older(server: OlderServer) -> AsyncIterator[TasksClient]:
    with anyio.fail_after(LIMIT_S):
        async with (
            httpx.AsyncClient(transport=httpx.MockTransport(server)) as http,
            TasksClient(
                "http://server.example/mcp",
                http_client=http,
                protocol="2025-11-25",
                journal=MemoryJournal(),
            ) as client,
        ):
            yield client


async def test_an_older_server_gets_the_params_as_they_are() -> None:
    server = OlderServer()
    server.replies["resources/read"] = lambda arrived: {"contents": [], "unknown": 1}
    server.replies["logging/setLevel"] = lambda arrived: RpcError(-32050, "quota", {"after": 7})
    async with client_at_older(server) as client:
        params = {"uri": URI, "_meta": {"progressToken": "p-1"}}
        assert await client.request("resources/read", params) == {"contents": [], "unknown": 1}
        assert server.of("resources/read")[0].params == params
        with pytest.raises(SessionError) as caught:
            await client.request("logging/setLevel", {"level": "info"})
        assert (caught.value.code, caught.value.remote_message) == (-32050, "quota")
        said = await client.request("server/discover")
        assert said["supportedVersions"] == ["2025-11-25"]


async def test_the_stream_of_an_older_servers_reply_may_stay_open() -> None:
    server, stream = OlderServer(), Stream()
    server.replies["resources/read"] = lambda arrived: stream
    async with client_at_older(server) as client, anyio.create_task_group() as tasks:
        results: list[JSONObject] = []

        async def read() -> None:
            results.append(await client.request("resources/read", {"uri": URI}))

        tasks.start_soon(read)
        await server.wait_for("resources/read")
        stream.reply({"contents": []})
    assert results == [{"contents": []}]


# ── real servers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", [None, "2025-11-25"])
@pytest.mark.parametrize("kind", ["sdk", "fastmcp"])
async def test_a_real_server_is_read_through_the_client(
    request: pytest.FixtureRequest, kind: str, protocol: Any
) -> None:
    url = request.getfixturevalue(f"telling_{kind}")
    async with client_at(url, protocol=protocol) as client:
        read = await client.request("resources/read", {"uri": "file:///readme.txt"})
        assert read["contents"][0]["text"] == "Read me"
        got = await client.request("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}})
        assert "hello to Ada" in json.dumps(got)
        slow = await client.request("resources/read", {"uri": "file:///slow.txt"})
        assert slow["contents"][0]["text"] == "at last"
        names = [one["name"] for one in (await client.request("resources/list"))["resources"]]
        assert "readme" in names
        with pytest.raises(SessionError) as caught:
            await client.request("resources/read", {"uri": "file:///nothing.txt"})
        assert caught.value.code is not None
        said = await client.request("server/discover")
        assert (protocol or "2026-07-28") in said["supportedVersions"]


async def test_a_real_server_of_an_earlier_sdk_is_asked_through_the_client(
    legacy_python_server: LegacyServer,
) -> None:
    async with client_at(legacy_python_server.url) as client:
        tools = (await client.request("tools/list"))["tools"]
        assert any(tool.get("execution", {}).get("taskSupport") == "required" for tool in tools)
        with pytest.raises(SessionError) as caught:
            await client.request("prompts/list")
        assert caught.value.code == -32601


def test_a_client_without_an_event_loop_passes_requests_on(telling_sdk: str) -> None:
    with BlockingTasksClient(telling_sdk, journal=MemoryJournal()) as client:
        read = client.request("resources/read", {"uri": "file:///readme.txt"})
    assert read["contents"][0]["text"] == "Read me"
