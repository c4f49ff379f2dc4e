"""Over aiohttp: the default on asyncio, for hosts that bring no client, auth flow or proxy of their own.

A poll is a small request with a small reply, and nearly all of its cost is the library's: httpx with
its own pool takes some five times the CPU of aiohttp, and httpx over the ready-made aiohttp transport
two to three times. That transport also calls a server that hangs up without a reply a
connection that could not be made, by which a ``tools/call`` that may have run would be taken for one
that never left. So aiohttp is spoken to directly, and only here.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from http.cookies import BaseCookie
from typing import Final

import aiohttp
import anyio
import httpx
from yarl import URL

from .transport import CLOSE_S, CONNECT_S, KEEPALIVE_S, Failures, Request, Response, Transport

__all__ = ["OverAiohttp"]

# As much as h11 takes for the head of a response, where aiohttp would refuse a field of 8 KB.
_LONGEST_FIELD: Final = 100 * 1024


_NO_URL: Final = URL()


def _words(error: Exception) -> str:
    """What an error says, without the URL, whose query may be a credential."""
    match error:
        case aiohttp.ClientConnectorError():
            return str(error.os_error)
        case aiohttp.ServerDisconnectedError():
            return "the server disconnected without a reply"
        case aiohttp.ClientResponseError():
            return error.message
        case aiohttp.ServerTimeoutError() | aiohttp.InvalidURL():
            return ""
        case _:
            return str(error)


def _cause(error: Exception) -> Exception:
    """The error, or one in its place that does not hold the request with all its headers."""
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.ServerTimeoutError | aiohttp.InvalidURL):
        return aiohttp.ClientError(f"{type(error).__name__} {_words(error)}".strip())
    return error


class _Cookies(aiohttp.CookieJar):
    """Sends cookies back as they came: one of them may tell a load balancer which server we are to reach.

    On an address too, hence ``unsafe``. Of a value that came in quotes aiohttp would send what it means.
    """

    def filter_cookies(self, request_url: URL = _NO_URL) -> BaseCookie[str]:
        chosen: BaseCookie[str] = super().filter_cookies(request_url)
        for kept in self if chosen else ():
            sent = chosen.get(kept.key)
            if sent is not None and sent.value == kept.value and kept.coded_value.startswith('"'):
                dict.__setitem__(chosen, kept.key, kept)  # by itself it would be taken apart again
        return chosen


class OverAiohttp(Transport):
    """Sends requests with an ``aiohttp.ClientSession`` of our own. Made, used and closed in one asyncio loop.

    Args:
        basic: User and password to send with each request.
        user_agent: Who we are.
        secure: Whether certificates will be needed; loading them takes a moment.
        cookies: Whether to send back those that the server sets.
    """

    failures = Failures(
        not_sent=(aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError),
        bad_url=(aiohttp.InvalidURL, httpx.InvalidURL, UnicodeError),
        # TimeoutError and OSError: where asyncio's own come through.
        lost=(aiohttp.ClientError, TimeoutError, OSError),
        words=_words,
        cause=_cause,
    )

    def __init__(
        self, basic: tuple[str, str] | None, *, user_agent: str, secure: bool, cookies: bool
    ) -> None:
        self._basic = None if basic is None else _credential(*basic)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # the session's caps are the limit
                keepalive_timeout=KEEPALIVE_S,
                # The certificates that httpx would trust.
                ssl=httpx.create_ssl_context() if secure else True,
            ),
            cookie_jar=_Cookies(unsafe=True, quote_cookie=False) if cookies else aiohttp.DummyCookieJar(),
            headers={"User-Agent": user_agent},
            auto_decompress=False,
            max_line_size=_LONGEST_FIELD,
            max_field_size=_LONGEST_FIELD,
        )
        self._asked, self._read = httpx.URL(), _NO_URL
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}
        self._open: set[aiohttp.ClientResponse] = set()

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
        response = await self._session.request(
            request.verb,
            self._target(url),
            data=request.content,
            headers=headers,
            allow_redirects=False,
            timeout=self._timeout(request.read_timeout_s),
        )
        self._open.add(response)
        return _AiohttpResponse(response, self._open)

    async def aclose(self) -> None:
        """Close all connections."""
        for response in self._open:
            # Of a body under way aiohttp forgets both its reader and its time-out: it would hang for ever.
            response.content.set_exception(aiohttp.ClientConnectionError("the session was closed"))
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._session.close()

    def _target(self, url: httpx.URL) -> URL:
        if url is not self._asked:  # which it nearly always is, and reading it takes a while
            self._asked, self._read = url, URL(str(url), encoded=True)
        return self._read

    def _timeout(self, read_timeout_s: float) -> aiohttp.ClientTimeout:
        timeout = self._timeouts.get(read_timeout_s)
        if timeout is None:
            timeout = self._timeouts[read_timeout_s] = aiohttp.ClientTimeout(
                total=None, connect=CONNECT_S, sock_read=read_timeout_s
            )
        return timeout


class _AiohttpResponse(Response):
    __slots__ = ("_open", "_response")

    def __init__(self, response: aiohttp.ClientResponse, open_: set[aiohttp.ClientResponse]) -> None:
        self.status = response.status
        self._response = response
        self._open = open_

    def header(self, name: str) -> str:
        return ", ".join(self._response.headers.getall(name, ()))

    def chunks(self) -> AsyncIterator[bytes]:
        return _Chunks(self._response.content)

    async def aclose(self) -> None:
        self._open.discard(self._response)
        if not self._response.content.at_eof():
            self._response.close()  # with its connection
        self._response.release()


class _Chunks(AsyncIterator[bytes]):
    """What has arrived, as often as something has. No generator, which could be dropped half-way."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def __anext__(self) -> bytes:
        chunk = await self._content.readany()
        if not chunk:
            raise StopAsyncIteration
        return chunk


def _credential(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
