"""A credential that expires in the middle of a task, by each way in and at both versions of the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import ModuleType
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client

from mcp_tasks_client import (
    BlockingTasksClient,
    Clock,
    ConnectionLostError,
    CredentialRefusedError,
    MemoryJournal,
    PollPolicy,
    SessionError,
    SystemClock,
    TasksClient,
    TasksExtension,
    TasksTransport,
    tasks_http_client,
)
from mcp_tasks_client.testing import (
    ExpiringToken,
    ManualClock,
    ScriptedServer,
    complete,
    reply,
    text_result,
    work,
)
from tests._results import text
from tests.kit.older_server import OlderServer, as_app, refusal
from tests.testing.asking import serve_app

pytestmark = pytest.mark.anyio

URL: Final = "http://server.test/mcp"
LIMIT_S: Final = 20.0
QUICK: Final = PollPolicy(floor_s=0.001, ceiling_s=0.001, jitter=0.0)
CURRENT, OLDER = "2026-07-28", "2025-11-25"


class PollCount(SystemClock):
    """A clock on which each poll takes a second. A server in a thread of its own has no use for more."""

    now = 0.0

    def time(self) -> float:
        return 1_800_000_000.0 + self.now

    def monotonic(self) -> float:
        return self.now


def scripted(clock: Clock) -> ScriptedServer:
    """The task ends with the tenth poll, each of which takes a second."""
    server = ScriptedServer(clock=clock)
    server.tool("slow", [work(9.5), complete(text_result("done"))], poll_interval_ms=1)
    return server


def older() -> OlderServer:
    wire = OlderServer()
    polls = iter(range(1, 1000))

    def get(arrived: Any) -> Any:
        wire.task["status"] = "completed" if next(polls) == 10 else "working"
        return dict(wire.task)

    wire.task["pollInterval"] = 1
    wire.replies["tasks/get"] = get
    wire.replies["initialize"] = lambda arrived: {
        "protocolVersion": OLDER,
        "capabilities": wire.capabilities,
        "serverInfo": {"name": "older", "version": "1"},
    }
    wire.replies["server/discover"] = lambda arrived: refusal(-32600, "Unsupported protocol version", 400)
    return wire


class Guarded:
    """A server whose token expires so many times while a task is polled."""

    def __init__(self, version: str, expires: int) -> None:
        self.token = ExpiringToken()
        self.expires = expires
        self._polls = 0
        self._clock = PollCount()
        app = scripted(self._clock).app if version == CURRENT else as_app(older())
        self._app = self.token.guard(app)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = await read_body(receive)
        if b'"tasks/get"' in body:
            self._polls += 1
            self._clock.now += 1
            if self.expires and self._polls % 2:  # the request that comes again finds it valid
                self.expires -= 1
                self.token.expire()

        async def once() -> Any:
            return {"type": "http.request", "body": body}

        await self._app(scope, once, send)

    def auth(self, library: Any) -> Any:
        """An auth flow that renews the token when it is refused."""
        token, value = self.token, self.token.value

        def flow(self: Any, request: Any) -> Any:
            nonlocal value
            request.headers["Authorization"] = f"Bearer {value}"
            response = yield request
            if response.status_code == 401:
                value = token.value
                request.headers["Authorization"] = f"Bearer {value}"
                yield request

        return type("Auth", (library.Auth,), {"auth_flow": flow})()

    def http(self, library: Any, **options: Any) -> Any:
        return library.AsyncClient(transport=library.ASGITransport(self), trust_env=False, **options)


async def read_body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


@asynccontextmanager
async def by_headers(server: Guarded, library: Any, version: str) -> AsyncIterator[Any]:
    http = server.http(library)
    client = TasksClient(
        URL, http_client=http, headers=server.token.headers, journal=MemoryJournal(), poll=QUICK
    )
    async with http, client:
        yield client


@asynccontextmanager
async def by_auth(server: Guarded, library: Any, version: str) -> AsyncIterator[Any]:
    http = server.http(library)
    client = TasksClient(
        URL, http_client=http, auth=server.auth(library), journal=MemoryJournal(), poll=QUICK
    )
    async with http, client:
        yield client


@asynccontextmanager
async def by_extension(server: Guarded, library: Any, version: str) -> AsyncIterator[Any]:
    extension = TasksExtension(endpoint=URL, journal=MemoryJournal(), poll=QUICK)
    async with server.http(library, auth=server.auth(library)) as http:
        transport = streamable_http_client(URL, http_client=http)
        async with mcp.Client(transport, extensions=[extension]) as client:
            yield client


@asynccontextmanager
async def by_http_transport(server: Guarded, library: Any, version: str) -> AsyncIterator[Any]:
    http = tasks_http_client(
        library=library.__name__,
        transport=library.ASGITransport(server),
        auth=server.auth(library),
        journal=MemoryJournal(),
        poll=QUICK,
    )
    async with http, mcp.Client(streamable_http_client(URL, http_client=http)) as client:
        yield client


@asynccontextmanager
async def by_transport(server: Guarded, library: Any, version: str) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(server.http(library, auth=server.auth(library)))
        inner = streamable_http_client(URL, http_client=http, terminate_on_close=False)
        transport = TasksTransport(inner, endpoint=URL, journal=MemoryJournal(), poll=QUICK)
        yield await stack.enter_async_context(mcp.Client(transport))


WAYS: Final = [
    (by_headers, httpx, (CURRENT, OLDER)),
    (by_headers, httpx2, (CURRENT, OLDER)),
    (by_auth, httpx, (CURRENT, OLDER)),
    (by_auth, httpx2, (CURRENT, OLDER)),
    (by_extension, httpx2, (CURRENT,)),  # the SDK asks no extension at 2025-11-25
    (by_http_transport, httpx2, (CURRENT, OLDER)),
    (by_transport, httpx2, (CURRENT, OLDER)),
]


@pytest.mark.parametrize(
    ("way", "library", "version"),
    [
        pytest.param(way, library, version, id=f"{way.__name__}-{library.__name__}-{version}")
        for way, library, versions in WAYS
        for version in versions
    ],
)
async def test_a_task_outlives_the_credential_that_it_began_with(
    way: Callable[..., Any], library: ModuleType, version: str, anyio_backend_name: str
) -> None:
    if version == OLDER and anyio_backend_name == "trio" and way in (by_http_transport, by_transport):
        pytest.skip("the SDK's own stream at 2025-11-25 leaves generators of httpx2 unclosed on trio")
    # At 2025-11-25 the session cannot be told to call again, and its auth flow renews a token once a call.
    server = Guarded(version, expires=1 if way is by_http_transport and version == OLDER else 3)
    with anyio.fail_after(LIMIT_S):
        async with way(server, library, version) as client:
            assert text(await client.call_tool("slow")) == "done"
    assert server.expires == 0
    assert server.token.refused


# ── headers that are asked for ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [CURRENT, OLDER])
async def test_a_plain_function_and_the_default_transport_serve_a_blocking_client(version: str) -> None:
    server = Guarded(version, expires=3)

    def call(url: str) -> str:
        headers = server.token.headers
        with BlockingTasksClient(url, headers=headers, journal=MemoryJournal(), poll=QUICK) as client:
            return text(client.call_tool("slow"))

    with serve_app(server, lifespan="off") as url, anyio.fail_after(LIMIT_S):
        assert await anyio.to_thread.run_sync(call, url) == "done"
    assert (server.expires, server.token.refused) == (0, 3), "each refusal was answered by the next token"


class Asked:
    """A coroutine function that gives one token after the other, and the last for ever."""

    def __init__(self, *tokens: str | Exception) -> None:
        self._tokens = list(tokens)
        self.times = 0

    async def __call__(self) -> dict[str, str]:
        await anyio.lowlevel.checkpoint()
        self.times += 1
        token = self._tokens.pop(0) if len(self._tokens) > 1 else self._tokens[0]
        if isinstance(token, Exception):
            raise token
        return {"authorization": f"Bearer {token}"}


@asynccontextmanager
async def asking(headers: Any, journal: Any = None, status: int = 401) -> AsyncIterator[tuple[Any, Any]]:
    """A client, and a server that takes ``Bearer good`` for the calls of tools."""
    scripted_server = scripted(ManualClock())
    send = httpx.ASGITransport(scripted_server.app).handle_async_request

    async def guard(request: httpx.Request) -> httpx.Response:
        if b'"tools/call"' in request.content and request.headers["authorization"] != "Bearer good":
            return httpx.Response(status)
        return await send(request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(guard)) as http:
        client = TasksClient(URL, http_client=http, headers=headers, journal=journal or MemoryJournal())
        with anyio.fail_after(LIMIT_S):
            async with client:
                yield client, scripted_server


@pytest.mark.parametrize("asked", [False, True])
async def test_what_is_given_cannot_replace_what_the_protocol_has(asked: bool) -> None:
    given = {"accept": "text/plain", "MCP-NAME": "x", "mcp-param-region": "us", "X-One": "1", "x-one": "2"}
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    server = ScriptedServer()
    server.tool("there", [reply(text_result("done"))], input_schema=schema)
    headers: Any = (lambda: given) if asked else given
    sent: list[httpx.Headers] = []

    async def note(request: httpx.Request) -> None:
        sent.append(request.headers)

    transport, hooks = httpx.ASGITransport(server.app), {"request": [note]}
    async with httpx.AsyncClient(transport=transport, event_hooks=hooks) as http:
        client = TasksClient(URL, http_client=http, headers=headers, journal=MemoryJournal())
        async with client:
            await client.call_tool("there", {"region": "eu"})
    assert not server.witness.missing_headers
    _, listed, called = sent
    assert "mcp-name" not in listed
    assert called.get_list("mcp-param-region") == ["eu"]
    assert called.get_list("x-one") == ["2"]


async def test_a_call_that_is_refused_twice_was_not_made_and_its_key_stays_usable() -> None:
    headers = Asked("any", "any", "bad", "bad", "good")  # of which two are for the version and the list
    async with asking(headers) as (client, server):
        with pytest.raises(CredentialRefusedError) as caught:
            await client.call_tool("slow", idempotency_key="k")
        assert (caught.value.not_executed, headers.times) == (True, 4)
        assert await client.records() == []
        await client.start_tool("slow", idempotency_key="k")
        assert len(server.witness.log("tools/call")) == 1


async def test_only_a_401_is_asked_about_again() -> None:
    headers = Asked("bad")
    async with asking(headers, status=403) as (client, _):
        with pytest.raises(CredentialRefusedError):
            await client.call_tool("slow")
    assert headers.times == 3


@pytest.mark.parametrize("fault", [RuntimeError("no token to be had"), "two\nlines"])
async def test_a_call_whose_headers_cannot_be_had_was_not_made(fault: Any) -> None:
    headers = Asked("good", "good", fault, "good")
    async with asking(headers) as (client, server):
        with pytest.raises(SessionError, match="tools/call could not be sent") as caught:
            await client.call_tool("slow", idempotency_key="k")
        assert caught.value.not_executed
        assert "two" not in str(caught.value)
        assert await client.records() == []
        await client.start_tool("slow", idempotency_key="k")
        assert len(server.witness.log("tools/call")) == 1


async def test_a_task_whose_headers_cannot_be_had_waits_until_it_is_resumed() -> None:
    headers = Asked("good", "good", "good", RuntimeError("no token to be had"), "good")
    async with asking(headers) as (client, _):
        with pytest.raises(SessionError, match="code of the host raised RuntimeError") as caught:
            await client.call_tool("slow")
        assert "no token" not in str(caught.value), "it may quote a credential"
        assert caught.value.handle is not None
        (handle,) = await client.resume()
        assert (await handle.refresh()).status == "working"


async def test_headers_that_cannot_be_had_now_delay_a_poll_if_their_function_says_so() -> None:
    away = ConnectionLostError("the identity provider is away", retryable=True)
    headers, failures = Asked("good", "good", "good", away, "good"), list[ConnectionLostError]()
    async with asking(headers) as (client, server):
        handle = await client.start_tool("slow")
        with anyio.fail_after(LIMIT_S):
            while not (failures and headers.times > 5):
                try:
                    await handle.refresh()
                except ConnectionLostError as error:
                    failures.append(error)
        assert str(failures[0]) == "the identity provider is away"
        assert failures[0].not_executed
        assert not away.not_executed, "each request has an error of its own"
        assert not handle.done
        assert len(server.witness.log("tools/call")) == 1


async def test_a_credential_that_its_function_calls_refused_is_not_asked_for_again() -> None:
    headers = Asked("good", "good", CredentialRefusedError("log in again"))
    async with asking(headers) as (client, server):
        with pytest.raises(CredentialRefusedError, match="log in again"):
            await client.call_tool("slow", idempotency_key="k")
        assert headers.times == 3
        assert not server.witness.log("tools/call")


@pytest.mark.parametrize("version", [CURRENT, OLDER])
@pytest.mark.parametrize("plain", [True, False])
async def test_the_headers_are_asked_for_once_at_a_time_and_shared_by_those_that_wait(
    version: str, plain: bool
) -> None:
    """A refresh token that is used twice costs the whole family of tokens."""
    asked, inside, most, gate = 0, 0, 0, anyio.Event()
    gate.set()

    async def headers() -> dict[str, str]:
        nonlocal asked, inside, most
        asked, inside = asked + 1, inside + 1
        most = max(most, inside)
        try:
            await gate.wait()
        finally:
            inside -= 1
        if asked == failing:
            raise OSError("the identity provider is away")
        return {"Authorization": f"Bearer {server.token.value}"}

    failing, server = 0, Guarded(version, expires=0)
    given: dict[str, Any] = {
        "headers": (lambda: headers()) if plain else headers
    }  # a plain function may return an awaitable
    async with (
        server.http(httpx) as http,
        TasksClient(URL, http_client=http, journal=MemoryJournal(), poll=QUICK, **given) as client,
    ):
        await client.list_tools()
        gate, before = anyio.Event(), asked
        results: list[object] = []

        async def list_tools() -> None:
            try:
                results.append(await client.list_tools())
            except SessionError as error:
                results.append(error)

        async def list_together() -> None:
            results.clear()
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(list_tools)
                await anyio.wait_all_tasks_blocked()
                gate.set()

        with anyio.fail_after(LIMIT_S):
            await list_together()
            assert (asked - before, most, len(results)) == (1, 1, 20)
            assert not [one for one in results if isinstance(one, Exception)]
            gate, failing = anyio.Event(), asked + 1
            await list_together()
        assert asked == failing, "a failure is shared as well"
        assert {type(getattr(one, "__cause__", None)) for one in results} == {OSError}
        assert {getattr(one, "not_executed", None) for one in results} == {True}
