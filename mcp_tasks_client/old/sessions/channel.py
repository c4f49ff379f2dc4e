"""One URL to send JSON-RPC requests to: which HTTP library, redirects, and from responses to replies.

The proxies, the credentials and the certificates are the library's business; a client that is given is
used as it is and never closed. A redirect is followed only within the origin, since a task ID is
a credential, like the other one.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, TypeAlias
from urllib.request import getproxies

import httpx

from ..errors import ConnectionLostError, RemoteProtocolError, SessionError
from ..signals import on_asyncio
from ..wire import JSONObject, RequestId, RpcError
from .bodies import drain
from .endpoints import origin_of
from .faults import CREDENTIAL_STATUSES, Faults, retry_after_s
from .over_httpx import OverHttpx, library_of
from .replies import Reply, read_reply
from .transport import Errors, Request, Response, Transport

__all__ = ["Basic", "HttpChannel", "Message", "Read", "encoded"]

_MOST_REDIRECTS: Final = 5

Basic: TypeAlias = tuple[str, str]
"""User and password."""

Read: TypeAlias = Callable[[Response], Awaitable[Reply]]
"""Reads a response to its end, or as far as it is wanted."""


@dataclass(frozen=True, slots=True)
class Message:
    """One JSON-RPC request, ready to be sent, and sent again where it is redirected."""

    request_id: RequestId
    method: str
    content: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    faults: Faults = field(repr=False)
    verb: str = "POST"


class HttpChannel:
    """Sends messages and reads their replies.

    Args:
        url: Absolute, as ``parse_url`` gives it.
        client: Of httpx or httpx2; used and left open. ``None`` makes a transport of our own when it is
            first needed.
        auth: For each request, as the library takes it; ``None`` leaves it to the URL's user and
            password, then to the client.
        user_agent: Who we are, unless a client says something else.
        max_idle: Connections of our own that may stay open unused.
        max_response_bytes: Bytes of one reply, decompressed, at most.

    Raises:
        TypeError: The client is neither library's, or the auth not the client's.
    """

    def __init__(
        self,
        url: httpx.URL,
        client: Any | None,
        auth: Any | None,
        *,
        user_agent: str,
        max_idle: int,
        max_response_bytes: int,
    ) -> None:
        library = _library(client, auth)
        if auth is None and url.userinfo and (client is None or client.auth is None):
            auth = (url.username, url.password)
        # With the password left in it, each line that httpx logs would show it.
        self._url = url.copy_with(userinfo=b"", fragment=None)
        self._auth = auth
        self._library = library
        self._user_agent = user_agent
        self._max_idle = max_idle
        self._max_response_bytes = max_response_bytes
        self._closed = False
        self._given = client is not None
        self._transport: Transport | None = None
        if client is not None:
            self._transport = OverHttpx(library, client, auth, max_idle=max_idle)

    async def send(self, message: Message, read_timeout_s: float) -> JSONObject:
        """The result of one message, after at most five redirects.

        Args:
            message: Sent as it is.
            read_timeout_s: Seconds of silence before it is given up, unless the client says otherwise.

        Raises:
            SessionError: No result.
        """

        def read(response: Response) -> Awaitable[Reply]:
            return read_reply(response, message.request_id, self._max_response_bytes, message.faults)

        return await self.exchange(message, read, read_timeout_s)

    async def exchange(self, message: Message, read: Read, read_timeout_s: float) -> JSONObject:
        """The result of one message, whose response is read in a way of its own.

        Raises:
            SessionError: No result.
        """
        transport = self._open(message)
        request = Request(message.content, message.headers, read_timeout_s, message.verb)
        url = self._url
        with message.faults.mapped(transport.failures):
            for _ in range(_MOST_REDIRECTS + 1):
                answer = await self._once(transport, url, request, message, read)
                if not isinstance(answer, httpx.URL):
                    return answer
                url = answer
        raise RemoteProtocolError(
            f"{message.method} was redirected more than {_MOST_REDIRECTS} times. Check the URL.",
            not_executed=True,
        )

    async def aclose(self) -> None:
        """Close what is our own. Further requests are refused."""
        self._closed = True
        if self._transport is not None:
            await self._transport.aclose()

    async def _once(
        self, transport: Transport, url: httpx.URL, request: Request, message: Message, read: Read
    ) -> JSONObject | httpx.URL:
        """One request: the result, or the URL where to ask instead."""
        response = await transport.send(url, request)
        try:
            if 300 <= response.status < 400:
                await drain(response)
                return _target(response, url, message.faults)
            return await self._result(response, message.faults, transport, read)
        finally:
            await response.aclose()

    @staticmethod
    async def _result(response: Response, faults: Faults, transport: Transport, read: Read) -> JSONObject:
        unread: Errors = (SessionError, *transport.failures.lost)
        if response.status in CREDENTIAL_STATUSES:
            await drain(response)
            raise faults.by_status(response.status, _wait_s(response))
        try:
            reply = await read(response)
        except unread as error:
            if 200 <= response.status < 300:
                raise
            # Of a page that tells about an error only the status matters.
            raise faults.by_status(response.status, _wait_s(response)) from error
        if isinstance(reply, RpcError):
            raise faults.by_code(reply, response.status, _wait_s(response))
        return reply

    def _open(self, message: Message) -> Transport:
        if self._closed or (self._transport is not None and self._transport.closed):
            what = "session" if self._closed or not self._given else "http_client"
            raise ConnectionLostError(
                f"{message.method} was not sent: the {what} is closed. Keep it open as long as it is used.",
                not_executed=True,
            )
        if self._transport is None:
            self._transport = self._made(message)
        return self._transport

    def _made(self, message: Message) -> Transport:
        """A transport of our own: the fast one, where it can do what is wanted."""
        if isinstance(self._auth, tuple | None) and on_asyncio() and not _proxied(self._url):
            from .over_aiohttp import OverAiohttp  # half as long to import as all the rest

            # Besides a cookie of the host's own, which comes with each message, httpx sends no other either.
            return OverAiohttp(
                self._auth,
                user_agent=self._user_agent,
                secure=self._url.scheme == "https",
                cookies="cookie" not in map(str.lower, message.headers),
            )
        return OverHttpx(self._library, None, self._auth, max_idle=self._max_idle)


def _library(client: object, auth: object) -> ModuleType:
    """The one whose client and auth these are; httpx, if they are nobody's.

    Raises:
        TypeError: There is no such.
    """
    library = None if client is None else library_of(client, "AsyncClient")
    if client is not None and library is None:
        raise TypeError(
            f"http_client must be an httpx.AsyncClient or an httpx2.AsyncClient, not {type(client).__name__}"
        )
    of_auth = library_of(auth, "Auth")
    if library is not None and of_auth not in (None, library):
        raise TypeError(
            f"http_client is of {library.__name__}, but auth of {of_auth.__name__}; give both of one library"
        )
    return library or of_auth or httpx


def _proxied(url: httpx.URL) -> bool:
    """Whether the environment names a proxy that may be meant for this URL. Which, httpx knows best."""
    proxies = getproxies()
    return url.scheme in proxies or "all" in proxies


def _wait_s(response: Response) -> float | None:
    return retry_after_s(response.header("retry-after"))


def _target(response: Response, url: httpx.URL, faults: Faults) -> httpx.URL:
    """Where a redirect leads, if it may be followed.

    Raises:
        RemoteProtocolError: It is none that repeats the request within the origin.
        Exception: It is no URL.
    """
    status, location = response.status, response.header("location")
    if status not in (307, 308) or not location:
        raise faults.redirected("in a way that does not repeat the request. Check the URL.", status)
    target = url.join(location)
    if origin_of(target) != origin_of(url):
        raise faults.redirected(
            f"to {faults.clean(origin_of(target))}, another origin. The credential and the task ID stay "
            "here; if that is the right server, use its URL.",
            status,
        )
    # Only path and query are taken over: credentials in the Location are nobody's.
    return url.copy_with(raw_path=target.raw_path)


_JSON: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))  # json.dumps would make one each time


def encoded(params: JSONObject, method: str) -> str:
    """Params, or a part of them, as JSON in ASCII, so that a lone surrogate survives it.

    Raises:
        ValueError: It holds NaN, an infinity, itself, or more levels than Python can follow.
        TypeError: It holds something that has no JSON form.
    """
    what = f"the params of {method}"
    try:
        return _JSON.encode(params)
    except RecursionError:
        raise ValueError(f"{what} are nested too deeply for JSON") from None
    except ValueError as error:
        raise ValueError(f"{what} must be plain JSON: {error}") from error
    except TypeError as error:
        raise TypeError(f"{what} must be plain JSON: {error}") from error
