"""Over aiohttp: the default on asyncio, for hosts that bring no client, auth flow or proxy of their own.

A poll is a small request with a small reply, so nearly all of its cost is the library's. httpx with
its own pool takes some five times the CPU of aiohttp, and httpx over the ready-made aiohttp transport
two to three times. That transport also reports a server that hangs up without a reply as a
connection that could not be made, so that a ``tools/call`` that may have run would be taken for one
that never left. So aiohttp is spoken to directly, and only here.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Final

import aiohttp
import anyio
import httpx
from yarl import URL

from .transport import CLOSE_S, CONNECT_S, JUST_USED_S, KEEPALIVE_S, Failures, Request, Response, Transport

__all__ = ["AiohttpTransport"]

# As much as h11 takes for the head of a response, where aiohttp would refuse a field of 8 KB.
_LONGEST_FIELD: Final = 100 * 1024


def _never_left(error: Exception) -> bool:
    return isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)


def _describe(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorError():
            return str(error.os_error)
        case aiohttp.ServerDisconnectedError():
            return "the server disconnected without a reply"
        case aiohttp.ClientResponseError():
            return error.message
        case aiohttp.ServerTimeoutError() | aiohttp.InvalidURL():
            return ""  # they say the URL
        case _:
            return str(error)


def _as_cause(error: Exception) -> Exception:
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.ServerTimeoutError | aiohttp.InvalidURL):
        return aiohttp.ClientError(f"{type(error).__name__} {_describe(error)}".strip())
    return error


class AiohttpTransport(Transport):
    """Sends requests with an ``aiohttp.ClientSession`` of our own. Made, used and closed in one asyncio loop.

    Cookies are kept and sent back as httpx does it, by httpx's own jar: one of them may tell a load
    balancer which server the session is to reach, and aiohttp's jar would take the quotes off its value.

    Args:
        basic: User and password to send with each request.
        user_agent: The ``User-Agent`` header.
        certificates: For ``https``; ``None`` if the URL is not ``https``.
    """

    failures = Failures(
        not_sent=_never_left,
        bad_url=(aiohttp.InvalidURL, httpx.InvalidURL, UnicodeError),
        # TimeoutError and OSError: where asyncio's own come through.
        lost=(aiohttp.ClientError, TimeoutError, OSError),
        describe=_describe,
        as_cause=_as_cause,
    )

    def __init__(
        self, basic: tuple[str, str] | None, *, user_agent: str, certificates: ssl.SSLContext | None
    ) -> None:
        self._basic = None if basic is None else _credential(*basic)
        # Two, since only a connector as a whole says for how long its connections may be idle.
        self._session, self._session_for_once = (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,  # the session's caps are the limit
                    keepalive_timeout=idle_s,
                    ssl=True if certificates is None else certificates,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": user_agent},
                auto_decompress=False,
                max_line_size=_LONGEST_FIELD,
                max_field_size=_LONGEST_FIELD,
            )
            for idle_s in (KEEPALIVE_S, JUST_USED_S)
        )
        self._cookies = httpx.Cookies()
        self._has_cookies = False
        self._parsed = (httpx.URL(), URL())
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}

    @property
    def closed(self) -> bool:
        """Whether the session is closed."""
        return self._session.closed

    async def send(self, url: httpx.URL, request: Request) -> Response:
        """Send a request over a connection that is free, or a new one."""
        headers = request.headers
        if self._basic is not None:
            headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
            headers["Authorization"] = self._basic
        if self._has_cookies:
            headers = self._add_cookies(url, headers)
        session = self._session_for_once if request.once else self._session
        response = await session.request(
            request.verb,
            self._target(url),
            data=request.content,
            headers=headers,
            allow_redirects=False,
            timeout=self._timeout(request.silence_s),
        )
        if "Set-Cookie" in response.headers:
            self._keep_cookies(url, response)
        return _AiohttpResponse(response)

    async def aclose(self) -> None:
        """Close all connections. aiohttp does not tell the readers of bodies under way: cancel them."""
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._session.close()
            await self._session_for_once.close()

    def _add_cookies(self, url: httpx.URL, headers: Mapping[str, str]) -> Mapping[str, str]:
        request = httpx.Request("POST", url)
        self._cookies.set_cookie_header(request)
        cookie = request.headers.get("cookie")
        if cookie is None or "cookie" in map(str.lower, headers):  # the host's own cookie replaces them
            return headers
        return {**headers, "Cookie": cookie}

    def _keep_cookies(self, url: httpx.URL, response: aiohttp.ClientResponse) -> None:
        fields = [("set-cookie", value) for value in response.headers.getall("Set-Cookie")]
        self._cookies.extract_cookies(
            httpx.Response(response.status, headers=fields, request=httpx.Request("POST", url))
        )
        self._has_cookies = True

    def _target(self, url: httpx.URL) -> URL:
        if url is not self._parsed[0]:  # it nearly always is, and parsing takes a while
            self._parsed = url, URL(str(url), encoded=True)
        return self._parsed[1]

    def _timeout(self, silence_s: float) -> aiohttp.ClientTimeout:
        timeout = self._timeouts.get(silence_s)
        if timeout is None:
            timeout = self._timeouts[silence_s] = aiohttp.ClientTimeout(
                total=None, connect=CONNECT_S, sock_read=silence_s
            )
        return timeout


class _AiohttpResponse(Response):
    __slots__ = ("_response",)

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self._response = response

    def header(self, name: str) -> str:
        return ", ".join(self._response.headers.getall(name, ()))

    def chunks(self) -> AsyncIterator[bytes]:
        return _Chunks(self._response.content)

    async def aclose(self) -> None:
        self._response.release()  # which closes the connection of a body that was not read to its end


class _Chunks(AsyncIterator[bytes]):
    """The bytes that have arrived, chunk by chunk. No generator, which could be dropped half-way."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def __anext__(self) -> bytes:
        chunk = await self._content.readany()
        if not chunk:
            raise StopAsyncIteration
        return chunk


def _credential(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
