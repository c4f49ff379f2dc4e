"""One URL to POST JSON-RPC requests to: the HTTP client, its time-outs, redirects, clean ends.

The proxies, the credentials and the certificates are httpx's business; a client that is given is
used as it is and never closed. A redirect is followed only within the origin, since a task ID is
a credential, like the other one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import anyio
import httpx

from ..errors import ConnectionLostError, RemoteProtocolError, SessionError
from ..wire import JSONObject, RpcError
from .bodies import drain
from .endpoints import origin_of
from .faults import CREDENTIAL_STATUSES, Faults, retry_after_s
from .replies import read_reply

__all__ = ["HttpChannel", "Request"]

_CONNECT_S: Final = 10.0
_WRITE_S: Final = 30.0
_CLOSE_S: Final = 5.0
_MOST_REDIRECTS: Final = 5

# Servers drop idle connections after 5 seconds (uvicorn, Node). A request on a connection that
# is being dropped has an unknown outcome, so ours are dropped before.
_KEEPALIVE_S: Final = 4.0

# What httpx gives a client whose maker said nothing: no wish that we could honour.
_NO_WISH: Final = httpx.Timeout(5.0)


@dataclass(frozen=True, slots=True)
class Request:
    """One JSON-RPC request, ready to be sent, and sent again where it is redirected."""

    request_id: int
    method: str
    content: bytes = field(repr=False)
    headers: httpx.Headers = field(repr=False)
    faults: Faults = field(repr=False)


class _Body(httpx.AsyncByteStream):
    """A request's body. httpx's own is an async generator, which a cancelled request drops half-way."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Chunk(self._content)


class _Chunk(AsyncIterator[bytes]):
    def __init__(self, content: bytes) -> None:
        self._content: bytes | None = content

    async def __anext__(self) -> bytes:
        content, self._content = self._content, None
        if content is None:
            raise StopAsyncIteration
        return content


class HttpChannel:
    """Sends requests and reads their replies.

    Args:
        url: Absolute, as ``parse_url`` gives it.
        client: Used and left open; ``None`` makes one of our own when it is first needed.
        auth: For each request; ``None`` leaves it to the URL's user and password, then to the client.
        max_idle: Connections of our own client that may stay open unused.
        max_response_bytes: Bytes of one reply, decompressed, at most.
    """

    def __init__(
        self,
        url: httpx.URL,
        client: httpx.AsyncClient | None,
        auth: httpx.Auth | tuple[str, str] | None,
        *,
        max_idle: int,
        max_response_bytes: int,
    ) -> None:
        if auth is None and url.userinfo and (client is None or client.auth is None):
            auth = httpx.BasicAuth(url.username, url.password)
        # With the password left in it, each line that httpx logs would show it.
        self._url = url.copy_with(userinfo=b"", fragment=None)
        self._auth = auth
        self._given = client
        self._own: httpx.AsyncClient | None = None
        self._max_idle = max_idle
        self._max_response_bytes = max_response_bytes
        self._closed = False

    async def send(self, request: Request, read_timeout_s: float) -> JSONObject:
        """The result of one request, after at most five redirects.

        Args:
            request: Sent as it is.
            read_timeout_s: Seconds of silence before it is given up, unless the client says otherwise.

        Raises:
            SessionError: No result.
        """
        client = self._client(request)
        url = self._url
        with request.faults.mapped():
            for _ in range(_MOST_REDIRECTS + 1):
                answer = await self._post(client, url, request, read_timeout_s)
                if not isinstance(answer, httpx.URL):
                    return answer
                url = answer
        raise RemoteProtocolError(
            f"{request.method} was redirected more than {_MOST_REDIRECTS} times. Check the URL.",
            not_executed=True,
        )

    async def aclose(self) -> None:
        """Close the client, if it is our own. Further requests are refused."""
        self._closed = True
        client, self._own = self._own, None
        if client is not None:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await client.aclose()

    async def _post(
        self, client: httpx.AsyncClient, url: httpx.URL, request: Request, read_timeout_s: float
    ) -> JSONObject | httpx.URL:
        """One POST: the result, or the URL where to ask instead."""
        built = client.build_request(
            "POST",
            url,
            content=request.content,
            headers=request.headers,
            timeout=_timeout(client, read_timeout_s),
        )
        built.stream = _Body(request.content)
        response = await client.send(
            built,
            auth=httpx.USE_CLIENT_DEFAULT if self._auth is None else self._auth,
            follow_redirects=False,
            stream=True,
        )
        try:
            if 300 <= response.status_code < 400:
                await drain(response)
                return _target(response, url, request.faults)
            return await self._result(response, request)
        finally:
            # Shielded, because a response that stays open keeps its connection. And what goes wrong
            # from here on is no reason to lose what has arrived.
            with anyio.move_on_after(_CLOSE_S, shield=True), suppress(Exception):
                await response.aclose()

    async def _result(self, response: httpx.Response, request: Request) -> JSONObject:
        faults = request.faults
        if response.status_code in CREDENTIAL_STATUSES:
            await drain(response)
            raise faults.by_status(response)
        try:
            reply = await read_reply(response, request.request_id, self._max_response_bytes, faults)
        except (SessionError, httpx.HTTPError) as error:
            if response.is_success:
                raise
            # Of a page that tells about an error only the status matters.
            raise faults.by_status(response) from error
        if isinstance(reply, RpcError):
            raise faults.by_code(reply, response.status_code, retry_after_s(response.headers))
        return reply

    def _client(self, request: Request) -> httpx.AsyncClient:
        client = self._given or self._own
        if self._closed or (client is not None and client.is_closed):
            what = "session" if self._closed else "http_client"
            raise ConnectionLostError(
                f"{request.method} was not sent: the {what} is closed. Keep it open as long as it is used.",
                not_executed=True,
            )
        if client is None:
            # The session's caps are the limit. One more in the pool could only fill up, with the
            # connections that httpcore forgets when it is cancelled at the wrong moment.
            limits = httpx.Limits(
                max_connections=None,
                max_keepalive_connections=self._max_idle,
                keepalive_expiry=_KEEPALIVE_S,
            )
            client = self._own = httpx.AsyncClient(limits=limits, timeout=_NO_WISH)
        return client


def _timeout(client: httpx.AsyncClient, read_timeout_s: float) -> httpx.Timeout:
    if client.timeout != _NO_WISH:
        return client.timeout
    return httpx.Timeout(connect=_CONNECT_S, write=_WRITE_S, read=read_timeout_s, pool=None)


def _target(response: httpx.Response, url: httpx.URL, faults: Faults) -> httpx.URL:
    """Where a redirect leads, if it may be followed.

    Raises:
        RemoteProtocolError: It is none that repeats the request within the origin.
    """
    status = response.status_code
    if status not in (307, 308) or response.next_request is None:
        raise faults.redirected("in a way that does not repeat the request. Check the URL.", status)
    target = response.next_request.url
    if origin_of(target) != origin_of(url):
        raise faults.redirected(
            f"to {faults.clean(origin_of(target))}, another origin. The credential and the task ID stay "
            "here; if that is the right server, use its URL.",
            status,
        )
    # Only path and query are taken over: credentials in the Location are nobody's.
    return url.copy_with(raw_path=target.raw_path)
