"""What hosts set up in HTTP, over each library that may carry the requests: cookies, credentials, proxies."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.abc
import httpx
import httpx2
import pytest

from mcp_tasks_client.old.errors import ConnectionLostError, CredentialRefusedError, SessionError
from mcp_tasks_client.old.sessions import channel
from mcp_tasks_client.old.sessions.base import TaskRef
from mcp_tasks_client.old.sessions.http import HttpSession

pytestmark = pytest.mark.anyio

REF = TaskRef("task-0123456789")
TASK = {"resultType": "complete", "taskId": "task-0123456789", "status": "working"}
Reply = Callable[[dict[str, str], Any], tuple[str, dict[str, str]]]


@pytest.fixture(params=["asyncio-aiohttp", "asyncio-httpx", "trio-httpx"])
def anyio_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each event loop, with each library that may carry the requests on it."""
    loop, _, library = str(request.param).partition("-")
    if library != "aiohttp":
        monkeypatch.setattr(channel, "on_asyncio", lambda: False)
    return loop


class Server:
    """Answers polls; ``reply`` gives status and further header fields, and sees line and fields."""

    def __init__(self, reply: Reply) -> None:
        self.url = ""
        self.lines: list[str] = []
        self._reply = reply

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        buffer = b""
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    while b"\r\n\r\n" not in buffer:
                        buffer += await stream.receive()
                    head, _, buffer = buffer.partition(b"\r\n\r\n")
                    line, *rest = head.decode().split("\r\n")
                    fields = {name.lower(): value for name, _, value in (one.partition(": ") for one in rest)}
                    while len(buffer) < int(fields["content-length"]):
                        buffer += await stream.receive()
                    body = json.loads(buffer[: int(fields["content-length"])])
                    buffer = buffer[int(fields["content-length"]) :]
                    self.lines.append(line)
                    status, more = self._reply(fields, body)
                    content = json.dumps({"jsonrpc": "2.0", "id": body["id"], "result": TASK}).encode()
                    reply = [f"HTTP/1.1 {status}", "content-type: application/json"]
                    reply += [f"content-length: {len(content)}", *(f"{k}: {v}" for k, v in more.items())]
                    await stream.send("\r\n".join([*reply, "", ""]).encode() + content)


@asynccontextmanager
async def serving(reply: Reply) -> AsyncIterator[Server]:
    server = Server(reply)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        server.url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/mcp"
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(listener.serve, server.serve)
                yield server
                group.cancel_scope.cancel()


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[HttpSession]:
    session = HttpSession(url, **options)
    try:
        yield session
    finally:
        await session.aclose()


def plain(fields: dict[str, str], body: Any) -> tuple[str, dict[str, str]]:
    return "200 OK", {}


async def test_a_cookie_is_sent_back_to_an_address_too() -> None:
    """A load balancer keeps a client to one server by it."""
    cookies: list[str | None] = []

    def reply(fields: dict[str, str], body: Any) -> tuple[str, dict[str, str]]:
        cookies.append(fields.get("cookie"))
        return "200 OK", {"set-cookie": "server=Zm9v/YmFy+AbCd==; Path=/"}

    async with serving(reply) as server, connected(server.url) as session:
        await session.get(REF)
        await session.get(REF)
    assert cookies == [None, "server=Zm9v/YmFy+AbCd=="]


@pytest.mark.parametrize(
    "value",
    [
        '"Zm9v/YmFy=="',
        '"a b"',
        r'"a\073b"',
        r'"{\"id\": 7\054 \"w\": 1}"',
    ],
    ids=["quoted", "with a blank", "with a semicolon", "JSON"],
)
async def test_a_cookie_in_quotes_is_sent_back_as_it_came(value: str) -> None:
    """What it means is its server's business, which may compare it as it is."""
    cookies: list[str | None] = []

    def reply(fields: dict[str, str], body: Any) -> tuple[str, dict[str, str]]:
        cookies.append(fields.get("cookie"))
        return "200 OK", {"set-cookie": f"server={value}; Path=/"}

    async with serving(reply) as server, connected(server.url) as session:
        for _ in range(3):
            await session.get(REF)
    assert cookies == [None, f"server={value}", f"server={value}"]


@pytest.mark.parametrize("name", ["Cookie", "cookie"])
@pytest.mark.parametrize("own", ["auth=secret", 'auth="a b"; x=y@z,1; j={"a":1}'])
@pytest.mark.parametrize("set_", ["server=7", "auth=7"])
async def test_a_cookie_of_the_hosts_own_stays_as_it_is_whatever_the_server_sets(
    name: str, own: str, set_: str
) -> None:
    cookies: list[str | None] = []

    def reply(fields: dict[str, str], body: Any) -> tuple[str, dict[str, str]]:
        cookies.append(fields.get("cookie"))
        return "200 OK", {"set-cookie": f"{set_}; Path=/"}

    async with serving(reply) as server, connected(server.url, headers={name: own}) as session:
        await session.get(REF)
        await session.get(REF)
    assert cookies == [own, own]


@pytest.mark.parametrize("how", ["argument", "url"])
async def test_user_and_password_go_with_each_request_in_place_of_other_credentials(how: str) -> None:
    seen: list[list[str]] = []

    def reply(fields: dict[str, str], body: Any) -> tuple[str, dict[str, str]]:
        seen.append([value for name, value in fields.items() if name == "authorization"])
        return "200 OK", {}

    async with serving(reply) as server:
        url = server.url if how == "argument" else server.url.replace("http://", "http://m%C3%A9:s%20cret@")
        auth = ("mé", "s cret") if how == "argument" else None
        async with connected(url, auth=auth, headers={"authorization": "Bearer old"}) as session:
            await session.get(REF)
            await session.get(REF)
    assert seen == [["Basic " + base64.b64encode("mé:s cret".encode()).decode()]] * 2


async def test_a_redirect_within_the_origin_is_followed_with_all_it_had() -> None:
    def reply(fields: dict[str, str], body: Any) -> tuple[str, dict[str, str]]:
        if len(server.lines) == 1:
            return "307 Temporary Redirect", {"location": "/other?key=%41"}
        assert fields["mcp-name"] == REF.task_id
        return "200 OK", {}

    async with serving(reply) as server, connected(server.url) as session:
        assert (await session.get(REF)).task_id == REF.task_id
        assert server.lines == ["POST /mcp HTTP/1.1", "POST /other?key=%41 HTTP/1.1"]


@pytest.mark.parametrize("location", ["https://[", "http://127.0.0.1:port/", "http://x" + "x" * 70 + "/"])
async def test_a_location_that_is_no_url_of_ours_is_an_error(location: str) -> None:
    def reply(fields: dict[str, str], body: Any) -> tuple[str, dict[str, str]]:
        return "308 Permanent Redirect", {"location": location}

    async with serving(reply) as server, connected(server.url) as session:
        with pytest.raises(SessionError):
            await session.get(REF)


async def test_what_the_url_holds_is_in_no_error(unused_url: str) -> None:
    async with connected(f"{unused_url}?token=s3cret") as session:
        with pytest.raises(ConnectionLostError) as caught:
            await session.get(REF)
    assert caught.value.not_executed
    assert "s3cret" not in str(caught.value)


async def test_what_a_request_holds_is_in_no_traceback() -> None:
    """Which is where hosts let it be written: a reply that is no HTTP, and one that is silent."""

    def reply(fields: dict[str, str], body: Any) -> tuple[str, dict[str, str]]:
        return "200 OK", {"bad name\x01": "x"}

    async with serving(reply) as server:
        options = {"headers": {"Authorization": "Bearer s3cret"}}
        async with connected(f"{server.url}?token=s3cret", **options) as session:
            try:
                await session.get(REF)
            except SessionError as error:
                told = traceback.format_exc() + repr(error.__cause__)
    assert "s3cret" not in told
    assert REF.task_id not in told


async def test_a_head_that_is_longer_than_usual_is_read() -> None:
    def reply(fields: dict[str, str], body: Any) -> tuple[str, dict[str, str]]:
        return "200 OK", {"x-policy": "p" * 50_000}

    async with serving(reply) as server, connected(server.url) as session:
        assert (await session.get(REF)).task_id == REF.task_id


async def test_a_proxy_of_the_environments_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(plain) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/mcp"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with connected("http://server.example/mcp") as session:
            assert (await session.get(REF)).task_id == REF.task_id
    assert proxy.lines == ["POST http://server.example/mcp HTTP/1.1"]


# ── what the host brings ──────────────────────────────────────────────────────────────────────


def renewing(library: Any) -> Any:
    """An auth flow that answers a challenge."""

    class Renewing(library.Auth):  # type: ignore[misc]  # one class for two libraries
        def auth_flow(self, request: Any) -> Iterator[Any]:
            response = yield request
            if response.status_code == 401:
                request.headers["Authorization"] = "Bearer new"
                yield request

    return Renewing()


def challenge(fields: dict[str, str], body: Any) -> tuple[str, dict[str, str]]:
    known = fields.get("authorization") == "Bearer new"
    return ("200 OK" if known else "401 Unauthorized"), {}


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("given", [True, False])
async def test_an_auth_flow_of_either_library_may_answer_a_challenge(library: Any, given: bool) -> None:
    async with serving(challenge) as server, library.AsyncClient() as client:
        options = {"http_client": client} if given else {}
        async with connected(server.url, auth=renewing(library), **options) as session:
            assert (await session.get(REF)).task_id == REF.task_id
        async with connected(server.url, **options) as session:
            with pytest.raises(CredentialRefusedError):
                await session.get(REF)
        assert not client.is_closed


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_a_client_of_either_library_is_used_with_all_it_brings(library: Any) -> None:
    seen: list[dict[str, str]] = []

    def reply(fields: dict[str, str], body: Any) -> tuple[str, dict[str, str]]:
        seen.append(fields)
        return "200 OK", {}

    read: list[int] = []

    async def hook(response: Any) -> None:
        read.append(len(await response.aread()))

    client = library.AsyncClient(headers={"X-Own": "1"}, event_hooks={"response": [hook]})
    async with serving(reply) as server, client, connected(server.url, http_client=client) as session:
        assert (await session.get(REF)).task_id == REF.task_id
    assert (seen[0]["x-own"], len(read)) == ("1", 1)
    async with serving(reply) as server, connected(server.url, http_client=client) as session:
        with pytest.raises(ConnectionLostError, match="http_client is closed"):
            await session.get(REF)


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("status", ["503 Service Unavailable", "401 Unauthorized", "404 Not Found"])
async def test_what_a_hook_says_of_a_status_shows_the_query_in_no_traceback(
    library: Any, status: str
) -> None:
    """``raise_for_status`` quotes the whole URL."""

    async def hook(response: Any) -> None:
        response.raise_for_status()

    def reply(fields: dict[str, str], body: Any) -> tuple[str, dict[str, str]]:
        return status, {}

    async with serving(reply) as server, library.AsyncClient(event_hooks={"response": [hook]}) as client:
        session = HttpSession(f"{server.url}?token=s3cret", http_client=client)
        try:
            await session.get(REF)
        except SessionError as error:
            told, http_status = traceback.format_exc() + repr(error.__cause__), error.http_status
        await session.aclose()
    assert http_status == int(status[:3])
    assert "s3cret" not in told


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_what_either_library_raises_is_ours(library: Any, unused_url: str) -> None:
    async with library.AsyncClient() as client, connected(unused_url, http_client=client) as session:
        with pytest.raises(ConnectionLostError) as caught:
            await session.get(REF)
    assert caught.value.not_executed


def test_a_client_and_an_auth_of_two_libraries_are_refused() -> None:
    with pytest.raises(TypeError, match="http_client is of httpx2, but auth of httpx;"):
        HttpSession("http://x/mcp", http_client=httpx2.AsyncClient(), auth=renewing(httpx))
    with pytest.raises(TypeError, match="http_client is of httpx, but auth of httpx2;"):
        HttpSession("http://x/mcp", http_client=httpx.AsyncClient(), auth=renewing(httpx2))


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_only_what_is_used_is_imported(loop: str) -> None:
    """httpx2 is the host's to bring, and aiohttp does nothing on trio."""
    script = f"""
import sys, anyio
from mcp_tasks_client.old.sessions.base import TaskRef
from mcp_tasks_client.old.sessions.http import HttpSession

async def main():
    session = HttpSession("http://127.0.0.1:1/mcp")
    try:
        await session.get(TaskRef("t"))
    except Exception as error:
        print(type(error).__name__, "aiohttp" in sys.modules, "httpx2" in sys.modules)
    await session.aclose()

anyio.run(main, backend={loop!r})
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert ran.stdout.split() == ["ConnectionLostError", str(loop == "asyncio"), "False"]
