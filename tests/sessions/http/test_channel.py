"""One URL: the host's client, auth and time-outs, redirects, and what an HTTP library raises."""

from __future__ import annotations

import base64
import logging
import ssl
from collections.abc import Generator
from typing import Any

import anyio
import anyio.abc
import httpcore
import httpcore2
import httpx
import httpx2
import pytest

from mcp_tasks_client import Limits
from mcp_tasks_client.errors import ConnectionLostError, RemoteProtocolError, SessionError
from mcp_tasks_client.sessions.http.http_session import HttpSession

from .scripted import REF, TASK, TASK_ID, URL, Answer, HttpAnswers, fail_to_get, http, result, send_call

pytestmark = pytest.mark.anyio


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_a_given_client_is_used_with_all_it_brings_and_never_closed(server: HttpAnswers) -> None:
    async with server.client(
        headers={"X-Own": "1", "Accept": "*/*"}, auth=("u", "p"), params={"key": "k"}
    ) as client:
        session = server.session(http_client=client)
        await session.get(REF)
        await session.aclose()
        assert not client.is_closed
    assert server.last.headers["x-own"] == "1"
    assert server.last.headers["accept"] == "application/json, text/event-stream"
    assert server.last.headers["authorization"] == basic("u", "p")
    assert server.last.url.params["key"] == "k"


async def test_auth_of_the_session_comes_before_that_of_the_client(server: HttpAnswers) -> None:
    async with server.client(auth=("u", "p")) as client:
        await server.session(http_client=client, auth=("x", "y")).get(REF)
    assert server.last.headers["authorization"] == basic("x", "y")


@pytest.mark.parametrize("client_auth", [None, ("u", "p")])
async def test_a_password_in_the_url_becomes_basic_auth_unless_there_is_other(
    server: HttpAnswers, client_auth: tuple[str, str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with server.client(auth=client_auth) as client:
        await HttpSession("https://me:s%20cret@server.example/mcp", http_client=client).get(REF)
    expected = basic("me", "s cret") if client_auth is None else basic("u", "p")
    assert server.last.headers["authorization"] == expected
    assert "cret" not in caplog.text.replace(expected, "")


async def test_an_auth_flow_may_answer_a_challenge(server: HttpAnswers) -> None:
    class Renewing(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
            response = yield request
            if response.status_code == 401:
                request.headers["Authorization"] = "Bearer new"
                yield request

    server.answers("tasks/get", http(401), result(TASK))
    assert (await server.session(auth=Renewing()).get(REF)).task.task_id == TASK_ID
    assert server.last.headers["authorization"] == "Bearer new"


async def test_nothing_is_sent_after_closing_which_may_be_repeated(server: HttpAnswers) -> None:
    await HttpSession(URL).aclose()
    session = server.session()
    await session.get(REF)
    await session.aclose()
    await session.aclose()
    refused = await fail_to_get(session)
    assert type(refused) is ConnectionLostError
    assert refused.not_executed
    assert not refused.retryable
    assert "session is closed" in str(refused)
    assert len(server.requests) == 1


async def test_a_client_that_its_owner_closed_is_told_of(server: HttpAnswers) -> None:
    client = server.client()
    await client.aclose()
    refused = await fail_to_get(server.session(http_client=client))
    assert refused.not_executed
    assert "http_client is closed" in str(refused)


async def test_only_tools_call_may_be_silent_for_long(server: HttpAnswers) -> None:
    session = server.session(limits=Limits(task_timeout_s=7.0, call_read_timeout_s=70.0))
    await send_call(session)
    await session.get(REF)
    ours = {"connect": 10.0, "write": 30.0, "pool": None}
    assert [r.extensions["timeout"] for r in server.requests] == [
        {**ours, "read": 7.0},
        {**ours, "read": 7.0},
        {**ours, "read": 70.0},
        {**ours, "read": 7.0},
    ]


async def test_timeouts_that_a_client_was_given_count(server: HttpAnswers) -> None:
    async with server.client(timeout=httpx.Timeout(6.0, read=None)) as client:
        session = server.session(http_client=client)
        await send_call(session)
        await session.get(REF)
    theirs = {"connect": 6.0, "write": 6.0, "pool": 6.0, "read": None}
    assert [r.extensions["timeout"] for r in server.requests] == [theirs] * 4


def redirect(status: int, location: str | None) -> Answer:
    return lambda _: httpx.Response(status, headers={} if location is None else {"location": location})


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize(
    "location", ["/other/?a=b", "https://server.example/other/?a=b", "//server.example:443/other/?a=b"]
)
async def test_a_redirect_within_the_origin_is_followed_with_all_that_was_sent(
    server: HttpAnswers, status: int, location: str
) -> None:
    server.answers("tasks/get", redirect(status, location), result(TASK))
    await server.session(auth=("u", "p")).get(REF)
    first, second = server.requests
    assert second.method == "POST"
    assert second.url == "https://server.example/other/?a=b"
    assert second.content == first.content
    assert second.headers == first.headers
    assert second.headers["authorization"] == basic("u", "p")


@pytest.mark.parametrize("auth", [None, ("u", "p")])
async def test_credentials_in_a_location_are_not_taken_over(
    server: HttpAnswers, auth: tuple[str, str] | None
) -> None:
    server.answers("tasks/get", redirect(307, "https://eve:x@server.example/other"), result(TASK))
    await server.session(auth=auth).get(REF)
    assert server.last.headers.get("authorization") == (None if auth is None else basic(*auth))
    assert server.last.url == "https://server.example/other"


async def test_redirects_have_an_end(server: HttpAnswers, session: HttpSession) -> None:
    server.answers("tasks/get", *[redirect(307, f"/{i}") for i in range(5)], result(TASK))
    assert (await session.get(REF)).task.task_id == TASK_ID
    server.answers("tasks/get", redirect(307, "/mcp"))
    server.requests.clear()
    lost = await fail_to_get(session)
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
async def test_nothing_is_sent_to_another_origin(server: HttpAnswers, location: str, follow: bool) -> None:
    server.answers("tasks/get", redirect(308, location))
    async with server.client(follow_redirects=follow) as client:
        refused = await fail_to_get(server.session(http_client=client, auth=("u", "p")))
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
    server: HttpAnswers, session: HttpSession, status: int, location: str | None
) -> None:
    server.answers("tasks/get", redirect(status, location))
    refused = await fail_to_get(session)
    assert type(refused) is RemoteProtocolError
    assert not refused.retryable
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "location", ["http://xn--zzzzzz99999/", "::", "\x7f", "javascript:alert(1)", "x" * 70_000]
)
async def test_a_location_that_is_no_url_is_an_error_of_ours(
    server: HttpAnswers, session: HttpSession, location: str
) -> None:
    server.answers("tasks/get", redirect(307, location))
    assert isinstance(await fail_to_get(session), RemoteProtocolError | ConnectionLostError)


@pytest.mark.parametrize(
    ("raised", "kind", "retryable", "not_executed"),
    [
        (httpx.ConnectError("refused"), ConnectionLostError, True, False),
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
        lost = await fail_to_get(HttpSession(URL, http_client=client))
    assert type(lost) is kind
    assert (lost.retryable, lost.not_executed) == (retryable, not_executed)
    assert "secret" not in str(lost)
    assert lost.code is None


@pytest.mark.parametrize(
    "name", ["ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"]
)
@pytest.mark.parametrize(
    ("library", "core"), [(httpx, httpcore), (httpx2, httpcore2)], ids=["httpx", "httpx2"]
)
async def test_a_request_never_left_only_where_httpcore_says_so(library: Any, core: Any, name: str) -> None:
    """Other transports raise the same classes for a server that hangs up on a request that it has read."""
    causes = {
        "httpcore": getattr(core, name)("?"),
        "nothing": None,
        "another library": ConnectionResetError("?"),
        "a namesake in another library": type(name, (OSError,), {"__module__": "another.core"})("?"),
        "another failure": core.ReadError("?"),
    }
    believed = {}
    for what, cause in causes.items():

        def handle(_: Any, cause: Exception | None = cause) -> Any:
            raise getattr(library, name)("?") from cause

        async with library.AsyncClient(transport=library.MockTransport(handle)) as client:
            failed = await fail_to_get(HttpSession(URL, http_client=client))
        assert (type(failed), failed.retryable) == (ConnectionLostError, True)
        believed[what] = failed.not_executed
    assert believed == {
        "httpcore": True,
        "nothing": False,
        "another library": False,
        "a namesake in another library": False,
        "another failure": False,
    }


async def test_text_of_the_transport_does_not_tell_the_task_id() -> None:
    def handle(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError(f"lost {TASK_ID}")

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        assert "lost 786512e2…" in str(await fail_to_get(HttpSession(URL, http_client=client)))


class Failing(httpx.Auth):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        self._fail()
        yield request

    def _fail(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    "raised", [KeyError("token"), OSError("keyring"), UnicodeEncodeError("a", "", 0, 1, "x")]
)
async def test_an_auth_flow_of_the_callers_fails_as_it_likes(server: HttpAnswers, raised: Exception) -> None:
    with pytest.raises(type(raised)) as caught:
        await server.session(auth=Failing(raised)).get(REF)
    assert caught.value is raised


async def test_an_httpx_error_in_an_auth_flow_is_mapped(server: HttpAnswers) -> None:
    lost = await fail_to_get(server.session(auth=Failing(httpx.ConnectError("token endpoint"))))
    assert type(lost) is ConnectionLostError
    response = httpx.Response(503, request=httpx.Request("POST", "https://login.example?secret=1"))
    failed = httpx.HTTPStatusError(
        "https://login.example?secret=1", request=response.request, response=response
    )
    lost = await fail_to_get(server.session(auth=Failing(failed)))
    assert (lost.retryable, lost.http_status) == (True, 503)
    assert "secret" not in str(lost)


async def test_a_header_that_cannot_be_sent_is_not_quoted() -> None:
    """The check is h11's, so this goes over a real connection pool (which never connects)."""

    class Bad(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
            request.headers["Authorization"] = "Bearer secret\n"
            yield request

    async def accept(stream: anyio.abc.SocketStream) -> None:
        await stream.aclose()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with anyio.create_task_group() as group:
        group.start_soon(listener.serve, accept)
        session = HttpSession(f"http://127.0.0.1:{port}/", auth=Bad())
        refused = await fail_to_get(session)
        await session.aclose()
        group.cancel_scope.cancel()
    await listener.aclose()
    assert type(refused) is SessionError
    assert not refused.retryable
    assert "secret" not in f"{refused}{refused.__cause__}"
