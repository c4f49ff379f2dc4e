"""The bridge for hosts that take a URL: several hosts at one process, and what is refused.

The bridge and the server behind it are processes. Clients of the official SDK (of both generations) and of
FastMCP are hosts, and so is plain HTTP where a host does what these do not do.
"""

from __future__ import annotations

import json
import signal
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Final

import anyio
import fastmcp
import httpx
import httpx2
import pytest
from fastmcp.client.transports import StreamableHttpTransport
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import Server
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, Implementation

import mcp_tasks_client as tasks
from mcp_tasks_client.bridge import Options
from mcp_tasks_client.bridge import http as bridge_http
from mcp_tasks_client.bridge.host_request import Host, HostRefusedError, Prompt, Reply
from mcp_tasks_client.bridge.http import listen, open_app, url_of
from mcp_tasks_client.bridge.in_hand import Call
from mcp_tasks_client.bridge.introspection import Context, Next, replace_middleware, when_ended
from tests._forked import Program
from tests.kit.command import until
from tests.kit.ports import unused_port
from tests.real_server import RealServer

LIMIT_S: Final = 60.0
"""Seconds that a test may wait for anything."""

OLDER: Final = "2025-11-25"
CURRENT: Final = "2026-07-28"
TOKEN: Final = "a-token-of-the-tests"
TOKEN_VARIABLE: Final = "TOKEN_OF_A_BRIDGE"
NEVER: Final = ("--answer-within", "0")

on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""Of tests whose bridge is a process, and of hosts that know no other event loop."""


# ── the bridge, and hosts ─────────────────────────────────────────────────────────────────────────


@dataclass
class Bridge:
    """A process of the bridge."""

    process: Program
    log: Path

    @property
    def entry(self) -> dict[str, Any]:
        """The entry for hosts that it has written."""
        line = next(one for one in self.log.read_text().splitlines() if "mcpServers" in one)
        entry: dict[str, Any] = json.loads(line)["mcpServers"]["bridge"]
        return entry

    @property
    def url(self) -> str:
        return str(self.entry["url"])

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {TOKEN}"}

    @property
    def port(self) -> int:
        return int(httpx.URL(self.url).port or 0)

    def end(self, number: int) -> int:
        """How it ends by a signal."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


@contextmanager
def bridging(server: RealServer, folder: Path, *options: str, port: int = 0) -> Iterator[Bridge]:
    """A bridge that listens, on the journal of a folder."""
    log = folder / f"{uuid.uuid4()}.log"
    arguments = [server.url, "--journal", folder / "journal.sqlite3", "--http", port, *options]
    with log.open("wb") as stderr, running(*arguments, stderr=stderr) as process:
        until(lambda: "mcpServers" in log.read_text() or process.poll() is not None, LIMIT_S)
        assert process.poll() is None, log.read_text()
        yield Bridge(process, log)


@contextmanager
def running(*arguments: object, stderr: IO[bytes]) -> Iterator[Program]:
    """The command, killed as the block ends if it still runs."""
    with Program("-m", "mcp_tasks_client", "bridge", *arguments, stderr=stderr) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)


@pytest.fixture
def bridge(real_server: RealServer, tmp_path: Path) -> Iterator[Bridge]:
    with bridging(real_server, tmp_path, *NEVER, "--token-env", TOKEN_VARIABLE) as bridge:
        yield bridge


@asynccontextmanager
async def sdk_host(
    bridge: Bridge, name: str, version: str, *, answer: str | None = "nobody"
) -> AsyncIterator[Client]:
    """A host on the official SDK. ``answer`` is what its user enters; ``None`` is a host without forms."""

    async def enter(context: Any, params: Any) -> ElicitResult:
        (field_name,) = params.requested_schema["properties"]
        return ElicitResult(action="accept", content={field_name: answer})

    limits = httpx2.Limits(max_connections=None)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            httpx2.AsyncClient(headers=bridge.headers, timeout=LIMIT_S, limits=limits, trust_env=False)
        )
        yield await stack.enter_async_context(
            Client(
                streamable_http_client(bridge.url, http_client=http),
                mode="legacy" if version == OLDER else "auto",
                client_info=Implementation(name=name, version="1"),
                elicitation_callback=None if answer is None else enter,
            )
        )


def text_of(result: Any) -> str:
    content = result["content"] if isinstance(result, dict) else result.content
    first = content[0]
    return str(first["text"] if isinstance(first, dict) else first.text)


@dataclass
class PlainHost:
    """A host that speaks HTTP and JSON-RPC, with JSON-RPC IDs of its choice.

    Attributes:
        session: The headers of its session.
    """

    http: httpx.AsyncClient
    url: str
    name: str
    version: str
    session: dict[str, str] = field(default_factory=dict)

    async def introduce(self) -> None:
        """Open a session, if the version has any."""
        if self.version == CURRENT:
            return
        await self.open_session()
        reply = await self.post({"method": "notifications/initialized"})
        assert reply.status_code == 202, reply.text

    async def open_session(self) -> None:
        """Begin to introduce itself."""
        params = {
            "protocolVersion": self.version,
            "capabilities": {},
            "clientInfo": {"name": self.name, "version": "1"},
        }
        reply = await self.post({"id": 0, "method": "initialize", "params": params})
        assert reply.status_code == 200, reply.text
        self.session = {"mcp-session-id": reply.headers["mcp-session-id"]}

    async def post(self, message: dict[str, Any]) -> httpx.Response:
        return await self.http.send(self._request(message))

    async def call(self, request_id: int, tool: str, arguments: Any, **meta: Any) -> dict[str, Any]:
        """The result of a call."""
        reply = await self.post(self._call(request_id, tool, arguments, meta))
        return self.read(reply, request_id)

    @asynccontextmanager
    async def calling(self, tool: str, arguments: Any) -> AsyncIterator[None]:
        """A call whose connection is closed as the block ends."""
        request = self._request(self._call(1, tool, arguments, {}))
        async with anyio.create_task_group() as group:

            async def send() -> None:
                with suppress(httpx.TransportError):  # the bridge may be ended meanwhile
                    await self.http.send(request)

            group.start_soon(send)
            yield
            group.cancel_scope.cancel()

    def read(self, reply: httpx.Response, request_id: int) -> dict[str, Any]:
        """The result in a response, and nothing else in it."""
        assert reply.status_code == 200, (reply.status_code, reply.text)
        if reply.headers["content-type"].startswith("application/json"):
            messages = [reply.json()]
        else:
            lines = reply.text.splitlines()
            messages = [json.loads(one.removeprefix("data:")) for one in lines if one.startswith("data:")]
        (answer,) = (one for one in messages if "method" not in one)
        assert answer["id"] == request_id
        result: dict[str, Any] = answer["result"]
        return result

    def _call(self, request_id: int, tool: str, arguments: Any, meta: dict[str, Any]) -> dict[str, Any]:
        if self.version == CURRENT:
            own = "io.modelcontextprotocol/"
            meta = {
                **meta,
                f"{own}protocolVersion": CURRENT,
                f"{own}clientInfo": {"name": self.name, "version": "1"},
                f"{own}clientCapabilities": {},
            }
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        return {"id": request_id, "method": "tools/call", "params": params}

    def _request(self, message: dict[str, Any]) -> httpx.Request:
        headers = {"Accept": "application/json, text/event-stream", **self.session}
        if self.version == CURRENT:
            headers["MCP-Method"] = message["method"]
            if message["method"] == "tools/call":
                headers["MCP-Name"] = message["params"]["name"]
        if message["method"] != "initialize":
            headers["MCP-Protocol-Version"] = self.version
        return self.http.build_request("POST", self.url, json={"jsonrpc": "2.0", **message}, headers=headers)


@asynccontextmanager
async def plain_host(bridge: Bridge, name: str, version: str) -> AsyncIterator[PlainHost]:
    async with httpx.AsyncClient(headers=bridge.headers, timeout=LIMIT_S, trust_env=False) as http:
        host = PlainHost(http, bridge.url, name, version)
        await host.introduce()
        yield host


def records(folder: Path, **which: Any) -> list[tasks.TaskRecord]:
    """The records of the bridge's journal; none before it has made one."""
    with suppress(tasks.JournalError), tasks.BlockingInbox(folder / "journal.sqlite3") as inbox:
        return inbox.records(**which)
    return []


async def until_async(look: Callable[[], Any]) -> None:
    await anyio.to_thread.run_sync(until, look, LIMIT_S)


# ── hosts at once ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.anyio
@on_asyncio
async def test_hosts_of_each_kind_are_served_at_once(bridge: Bridge, tmp_path: Path) -> None:
    seen: dict[str, list[str]] = {}

    async def play(name: str, number: int, call: Callable[..., Any]) -> None:
        told: list[Any] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            told.append(progress)

        for tool, arguments in (("plain", {"x": number}), ("must_task", {"n": number}), ("ask_name", {})):
            seen.setdefault(name, []).append(text_of(await call(tool, arguments)))
        handler = {"progress_handler" if name == "fastmcp" else "progress_callback": hear}
        seen[name].append(text_of(await call("slow", {"seconds": 4.0 + number / 100}, **handler)))
        assert told, "no progress"

    async def enter(message: str, kind: Any, params: Any, context: Any) -> Any:
        return {"name": "Cy"}

    transport = StreamableHttpTransport(bridge.url, headers=bridge.headers)
    async with (
        sdk_host(bridge, "older", OLDER, answer="Ada") as older,
        sdk_host(bridge, "current", CURRENT, answer="Bob") as current,
        fastmcp.Client(
            transport,
            elicitation_handler=enter,
            client_info=Implementation(name="fastmcp", version="1"),
        ) as fast,
    ):
        assert older.protocol_version == OLDER
        assert current.protocol_version == CURRENT
        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as group:
                group.start_soon(play, "older", 1, older.call_tool)
                group.start_soon(play, "current", 2, current.call_tool)
                group.start_soon(play, "fastmcp", 3, fast.call_tool)
    assert seen == {
        "older": ["1", "1", "Hello, Ada", "rested"],
        "current": ["2", "2", "Hello, Bob", "rested"],
        "fastmcp": ["3", "3", "Hello, Cy", "rested"],
    }
    assert {one.application for one in records(tmp_path)} == {"older", "current", "fastmcp"}
    await until_async(lambda: not records(tmp_path, pending=True))  # each host has received its own


@pytest.mark.anyio
@on_asyncio
@pytest.mark.parametrize("version", [OLDER, CURRENT])
async def test_equal_request_ids_of_two_hosts_are_told_apart(bridge: Bridge, version: str) -> None:
    results: dict[tuple[int, int], str] = {}

    async def play(host: PlainHost, number: int) -> None:
        for request_id in range(1, 11):
            arguments = {"x": 100 * number + request_id}
            results[number, request_id] = text_of(await host.call(request_id, "fast", arguments))

    async with AsyncExitStack() as stack:
        hosts = [
            await stack.enter_async_context(plain_host(bridge, name, version))
            for name in ("one", "two", "two")
        ]
        async with anyio.create_task_group() as group:
            for number, host in enumerate(hosts):
                group.start_soon(play, host, number)
    assert results == {(host, one): str(100 * host + one) for host in range(3) for one in range(1, 11)}


@pytest.mark.anyio
@on_asyncio
@pytest.mark.parametrize("version", [OLDER, CURRENT])
async def test_two_hundred_requests_at_once_are_served(bridge: Bridge, version: str) -> None:
    results: dict[int, str] = {}

    async with sdk_host(bridge, "busy", version) as host:

        async def call(number: int) -> None:
            results[number] = text_of(await host.call_tool("plain", {"x": number}))

        with anyio.fail_after(2 * LIMIT_S):
            async with anyio.create_task_group() as group:
                for number in range(200):
                    group.start_soon(call, number)
    assert results == {number: str(number) for number in range(200)}


def test_a_host_closes_an_idle_connection_before_the_bridge_does(bridge: Bridge) -> None:
    url = httpx.URL(bridge.url)
    with closing(HTTPConnection(url.host, bridge.port, timeout=LIMIT_S)) as connection:
        connection.connect()
        kept = connection.sock
        for pause_s in (0.0, 6.0):  # httpx keeps it for 5 s
            time.sleep(pause_s)
            connection.request("GET", url.path, headers=bridge.headers)
            connection.getresponse().read()
            assert connection.sock is kept


@pytest.mark.anyio
@on_asyncio
@pytest.mark.parametrize("version", [OLDER, CURRENT])
async def test_an_interim_answer_is_for_the_host_that_has_called(
    real_server: RealServer, tmp_path: Path, version: str
) -> None:
    token = uuid.uuid4().hex
    with bridging(real_server, tmp_path, "--answer-within", "1", "--token-env", TOKEN_VARIABLE) as bridge:
        async with (
            sdk_host(bridge, "one", version) as one,
            sdk_host(bridge, "two", CURRENT) as two,
        ):
            interim = text_of(await one.call_tool("count", {"token": token, "seconds": 4.0}))
            assert "is still running" in interim
            await until_async(lambda: records(tmp_path))  # the server may have made no task yet
            (record,) = records(tmp_path)
            assert record.record_id in interim

            assert record.record_id in text_of(await one.call_tool("task_list", {}))
            assert text_of(await two.call_tool("task_list", {})).startswith("No call is running")
            asked = {"reference": record.record_id}
            assert "There is no call" in text_of(await two.call_tool("task_result", asked))
            assert "There is no call" in text_of(await two.call_tool("task_cancel", asked))

            with anyio.fail_after(LIMIT_S):
                while "is still running" in (shown := text_of(await one.call_tool("task_result", asked))):
                    pass
            assert shown == "1"


@pytest.mark.anyio
@on_asyncio
async def test_a_host_is_asked_though_another_of_its_name_cannot_be(bridge: Bridge) -> None:
    async with (
        sdk_host(bridge, "editor", OLDER, answer=None) as mute,
        sdk_host(bridge, "editor", OLDER, answer="Ada") as able,
        sdk_host(bridge, "editor", CURRENT, answer="Bob") as current,
    ):
        assert text_of(await mute.call_tool("plain", {"x": 1})) == "1"
        with anyio.fail_after(LIMIT_S):
            assert text_of(await able.call_tool("ask_name", {})) == "Hello, Ada"
            assert text_of(await current.call_tool("ask_name", {})) == "Hello, Bob"


@pytest.mark.anyio
async def test_the_host_is_asked_that_understands_the_question() -> None:
    """Of several that wait for one call: a model may have the reference of another host's call."""
    asked: list[str] = []

    def waiting(name: str, **capabilities: Any) -> Any:
        async def ask(prompt: Prompt) -> dict[str, Any]:
            asked.append(name)
            return {"action": "decline"}

        return SimpleNamespace(host=Host(name, capabilities, OLDER), ask=ask)

    call = Call("reference", "tool", None)
    form = ElicitRequestFormParams(message="?", requested_schema={"type": "object", "properties": {}})
    call.requests = [waiting("mute"), waiting("able", elicitation={})]
    with anyio.fail_after(LIMIT_S):
        await call.ask_host(Prompt("question", ElicitRequest(params=form)))
        assert asked == ["able"]
        call.requests = [waiting("mute")]
        with pytest.raises(HostRefusedError):
            await call.ask_host(Prompt("question", ElicitRequest(params=form)))


@pytest.mark.anyio
async def test_the_end_of_a_connection_is_told() -> None:
    """By which the bridge forgets the sessions that it tells of changed lists."""
    server: Server[Any] = Server("a server")
    opened, ended = anyio.Event(), anyio.Event()

    async def watch(context: Context, go_on: Next) -> Any:
        if context.method == "notifications/initialized":
            when_ended(context.session, ended.set)
            opened.set()
        return await go_on(context)

    replace_middleware(server, watch)
    with anyio.fail_after(LIMIT_S):
        async with Client(server, mode="legacy"):
            await opened.wait()
            assert not ended.is_set()
        await ended.wait()


# ── repetitions ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.anyio
@on_asyncio
@pytest.mark.parametrize("version", [OLDER, CURRENT])
async def test_a_host_whose_connection_was_lost_joins_its_call(
    bridge: Bridge, tmp_path: Path, version: str
) -> None:
    arguments = {"token": uuid.uuid4().hex, "seconds": 4.0}
    async with plain_host(bridge, "unlucky", version) as host, host.calling("count", arguments):
        await until_async(lambda: [one for one in records(tmp_path) if one.task_id])
    async with plain_host(bridge, "unlucky", version) as host:
        result = await host.call(1, "count", arguments)
    assert text_of(result) == "1"
    assert "was not called a second time" in result["content"][-1]["text"]
    assert len(records(tmp_path)) == 1


@pytest.mark.anyio
@on_asyncio
@pytest.mark.parametrize("version", [OLDER, CURRENT])
async def test_a_killed_bridge_loses_no_call(real_server: RealServer, tmp_path: Path, version: str) -> None:
    arguments = {"token": uuid.uuid4().hex, "seconds": 10.0}
    options = (*NEVER, "--token-env", TOKEN_VARIABLE)
    with bridging(real_server, tmp_path, *options, port=unused_port()) as bridge:
        async with plain_host(bridge, "faithful", version) as host, anyio.create_task_group() as group:

            async def call() -> None:
                with pytest.raises(httpx.TransportError):
                    await host.call(1, "count", arguments)

            group.start_soon(call)
            await until_async(lambda: [one for one in records(tmp_path) if one.task_id])
            port, session = bridge.port, host.session
            bridge.process.kill()
            bridge.process.wait()
    with bridging(real_server, tmp_path, *options, port=port) as again:
        assert again.port == port
        async with plain_host(again, "faithful", version) as host:
            if version == OLDER:
                opened, host.session = host.session, session
                assert (await host.post({"id": 1, "method": "tools/list"})).status_code == 404
                host.session = opened
            assert text_of(await host.call(1, "count", arguments)) == "1"
    assert len(records(tmp_path)) == 1


@pytest.mark.anyio
@on_asyncio
@pytest.mark.parametrize("version", [OLDER, CURRENT])
async def test_equal_call_ids_of_two_sessions_are_two_calls(
    bridge: Bridge, tmp_path: Path, version: str
) -> None:
    token = uuid.uuid4().hex
    results: list[str] = []
    async with (
        plain_host(bridge, "twin", version) as one,
        plain_host(bridge, "twin", version) as two,
        anyio.create_task_group() as group,
    ):

        async def call(host: PlainHost) -> None:
            arguments = {"token": token, "seconds": 2.0}
            results.append(text_of(await host.call(1, "count", arguments, callId="call_0")))

        group.start_soon(call, one)
        group.start_soon(call, two)
    assert len(records(tmp_path)) == 2


@pytest.mark.anyio
async def test_a_reply_to_a_connection_that_has_ended_is_told_as_not_sent() -> None:
    """Also if the call ends as the connection does, so that nothing is left to be sent."""
    reply, told = Reply(), list[bool]()
    reply.when_settled(told.append)
    assert told == []
    reply.settle(False)
    assert told == [False]
    reply.when_settled(told.append)
    assert told == [False, False]


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "shown",
    [None, "", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN],
)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "OPTIONS"])
def test_a_request_without_the_token_is_refused(bridge: Bridge, method: str, shown: str | None) -> None:
    headers = {"Accept": "application/json, text/event-stream"}
    if shown is not None:
        headers["Authorization"] = shown
    for path in ("/mcp", "/", "/.well-known/oauth-protected-resource"):
        url = httpx.URL(bridge.url, path=path)
        reply = httpx.request(method, url, headers=headers, timeout=LIMIT_S, trust_env=False)
        assert reply.status_code == 401
        assert TOKEN not in reply.text


def test_a_request_without_the_token_is_not_read(bridge: Bridge) -> None:
    with socket.create_connection(("127.0.0.1", bridge.port), LIMIT_S) as connection:
        head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{bridge.port}\r\nContent-Length: 1000\r\n\r\n"
        connection.sendall(head.encode())  # and no body
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")
        while connection.recv(1000):
            pass  # it is closed


@pytest.mark.parametrize("version", [OLDER, CURRENT])
@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("Origin", "http://evil.test", 403),
        ("Origin", "null", 403),
        ("Host", "evil.test", 421),
        ("Host", "evil.test:{port}", 421),
        ("Host", "127.0.0.1.evil.test:{port}", 421),
    ],
)
def test_a_foreign_page_is_refused(bridge: Bridge, version: str, name: str, value: str, status: int) -> None:
    headers = {
        **bridge.headers,
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": version,
        name: value.format(port=bridge.port),
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    reply = httpx.post(bridge.url, json=message, headers=headers, timeout=LIMIT_S, trust_env=False)
    assert reply.status_code == status


def test_only_this_machine_can_connect() -> None:
    with listen(0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
        assert url_of(listening) == f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"


# ── the process ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.anyio
@on_asyncio
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_signal_ends_it_though_hosts_are_there(
    bridge: Bridge, tmp_path: Path, number: int, code: int
) -> None:
    """Within two seconds, or longer on a busy machine. Without the signal the call takes an hour."""
    async with (
        plain_host(bridge, "older", OLDER) as older,
        plain_host(bridge, "current", CURRENT) as current,
    ):
        stream = older.http.build_request(
            "GET", bridge.url, headers={"Accept": "text/event-stream", **older.session}
        )
        response = await older.http.send(stream, stream=True)
        assert response.status_code == 200
        arguments = {"token": uuid.uuid4().hex, "seconds": 3600.0}
        async with older.calling("count", arguments), current.calling("count", arguments):
            await until_async(lambda: len([one for one in records(tmp_path) if one.task_id]) == 2)
            began = time.monotonic()
            assert await anyio.to_thread.run_sync(bridge.end, number) == code
            assert time.monotonic() - began < LIMIT_S / 3
        await response.aclose()
    assert "Traceback" not in bridge.log.read_text()
    assert len([one for one in records(tmp_path) if not one.finished]) == 2


def test_a_token_is_made_and_told_once(real_server: RealServer, tmp_path: Path) -> None:
    with bridging(real_server, tmp_path) as bridge:
        shown = bridge.entry["headers"]["Authorization"]
        assert len(shown) > 40
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for headers, status in ((bridge.entry["headers"], 400), (bridge.headers, 401)):
            reply = httpx.post(bridge.url, json=message, headers=headers, timeout=LIMIT_S, trust_env=False)
            assert (reply.status_code == 401) == (status == 401)
        assert bridge.log.read_text().count(shown) == 1


def test_a_token_of_the_environment_is_not_told(bridge: Bridge) -> None:
    assert bridge.entry["headers"] == {"Authorization": f"Bearer ${{{TOKEN_VARIABLE}}}"}
    assert TOKEN not in bridge.log.read_text()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--http", "{taken}"], "cannot be used"),
        (["--http", "0", "--token-env", "UNSET_VARIABLE"], "UNSET_VARIABLE"),
        (["--token-env", TOKEN_VARIABLE], "--http"),
    ],
)
def test_options_that_make_no_sense_are_told(tmp_path: Path, options: list[str], told: str) -> None:
    with listen(0) as taken, (tmp_path / "log").open("wb") as stderr:
        given = [one.format(taken=taken.getsockname()[1]) for one in options]
        arguments = ["http://127.0.0.1:9/mcp", "--journal", tmp_path / "journal.sqlite3", *given]
        with running(*arguments, stderr=stderr) as process:
            assert process.wait(LIMIT_S) == 2
    assert told in (tmp_path / "log").read_text()


# ── bounds, in this process ───────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def host_of_an_app(version: str = OLDER) -> AsyncIterator[PlainHost]:
    """A host at the application alone, behind which no server can be reached."""

    def connect(application: str, **callbacks: Any) -> tuple[tasks.TasksClient, tasks.Inbox]:
        journal = tasks.MemoryJournal()
        url = "http://127.0.0.1:9/mcp"
        client = tasks.TasksClient(url, journal=journal, application=application, **callbacks)
        return client, tasks.Inbox(journal, endpoint=url)

    async with (
        open_app(connect, "http://127.0.0.1:9/mcp", Options(), token=TOKEN) as app,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app),
            headers={"Authorization": f"bearer {TOKEN}"},
            timeout=LIMIT_S,
        ) as http,
    ):
        yield PlainHost(http, "http://127.0.0.1:1/mcp", "a host", version)


@pytest.mark.anyio
async def test_a_message_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_http, "_LARGEST_BODY", 1_000)
    async with host_of_an_app() as host:
        await host.introduce()
        reply = await host.post({"id": 1, "method": "ping", "params": {"_meta": {"x": "x" * 1_000}}})
        assert reply.status_code == 413
        assert (await host.post({"id": 1, "method": "ping"})).status_code == 200


@pytest.mark.anyio
async def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_http, "_MOST_SESSIONS", 1)
    async with host_of_an_app() as host:
        await host.introduce()
        opened, host.session = host.session, {}
        initialize = {
            "protocolVersion": OLDER,
            "capabilities": {},
            "clientInfo": {"name": "b", "version": "1"},
        }
        reply = await host.post({"id": 0, "method": "initialize", "params": initialize})
        assert reply.status_code == 503
        assert (await host.http.delete(host.url, headers=opened)).status_code == 200
        await host.introduce()


@pytest.mark.anyio
async def test_an_idle_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_http, "_IDLE_S", 0.05)
    async with host_of_an_app() as host:
        await host.open_session()  # which may have ended before anything else comes
        with anyio.fail_after(LIMIT_S):
            while (await host.post({"id": 1, "method": "ping"})).status_code == 200:
                await anyio.sleep(0.2)  # longer than a session may be idle
        assert (await host.post({"id": 1, "method": "ping"})).status_code == 404


@pytest.mark.anyio
async def test_requests_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_http, "_MOST_AT_ONCE", 2)
    goes_on = anyio.Event()
    statuses: list[int] = []

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await goes_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    transport = httpx.ASGITransport(app=bridge_http._Door(wait, TOKEN))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, headers=headers) as http:

        async def get() -> None:
            statuses.append((await http.get("http://127.0.0.1:1/mcp")).status_code)
            goes_on.set()  # the refused one is the first that has a reply

        with anyio.fail_after(LIMIT_S / 3):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(get)
        assert statuses == [503, 200, 200]
        assert (await http.get("http://127.0.0.1:1/mcp")).status_code == 200


@pytest.mark.anyio
async def test_hosts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_tasks_client.bridge.front._MOST_HOSTS", 1)
    async with host_of_an_app() as host:
        await host.introduce()
        host.name, host.session = "another", {}
        params = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": {"name": "b", "version": "1"}}
        reply = await host.post({"id": 0, "method": "initialize", "params": params})
        assert "serves 1 hosts" in reply.text
