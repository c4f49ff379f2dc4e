"""One URL to send JSON-RPC requests to: the choice of the HTTP library, redirects, and replies.

The proxies, the credentials and the certificates are the library's business. A client that is given is
used as it is and never closed. A redirect is followed only within the origin, since a task ID is
a credential, like the other one.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
import httpx
from anyio import to_thread

from ...aio.uncut import on_asyncio
from ...errors import CredentialRefusedError, RemoteProtocolError, SessionError
from ...protocol import JSONObject, RequestId
from ...protocol.replies import Reply, RpcError
from ...questions.context import CallContext
from ..request_errors import CREDENTIAL_STATUSES, RequestErrors
from .body import drain
from .endpoint_names import origin_of
from .headers import HostHeaders
from .http_errors import raise_for, read_retry_after
from .replies import ReplyReader
from .transport import Errors, Request, Response, Transport
from .transport_httpx import HttpxTransport, library_of
from .variables import is_proxied, load_certificates

if TYPE_CHECKING:
    from .transport_aiohttp import AiohttpTransport

__all__ = ["HttpChannel", "Message", "ReadResponse"]

_MOST_REDIRECTS: Final = 5
_UNAUTHORIZED: Final = 401

ReadResponse: TypeAlias = Callable[[Response], Awaitable[Reply]]
"""Reads a response to its end, or as far as it is wanted."""


@dataclass(frozen=True, slots=True)
class Message:
    """One request, most often a JSON-RPC request in a POST, ready to be sent."""

    request_id: RequestId
    """The JSON-RPC ID; means nothing where ``content`` is no JSON-RPC request."""

    content: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    errors: RequestErrors = field(repr=False)
    verb: str = "POST"
    context: CallContext | None = field(default=None, repr=False)


class HttpChannel:
    """Sends messages and reads their replies.

    Args:
        url: Absolute, as ``parse_url`` gives it.
        client: Of httpx or httpx2; used and left open. A :class:`Transport` is used as it is. ``None``
            makes a transport of our own when it is first needed.
        auth: For each request, as the library takes it; ``None`` leaves it to the URL's user and
            password, then to the client.
        headers: Of the host, for each request.
        user_agent: The ``User-Agent`` header, unless a client has one.
        max_idle: Connections of our own that may stay open unused.
        max_response_bytes: Bytes of one reply, decompressed, at most.

    Raises:
        TypeError: The client is neither library's, or the auth not of the client's library.
    """

    def __init__(
        self,
        url: httpx.URL,
        client: Any | None,
        auth: Any | None,
        headers: HostHeaders,
        *,
        user_agent: str,
        max_idle: int,
        max_response_bytes: int,
    ) -> None:
        given = client if isinstance(client, Transport) else None
        library = httpx if given is not None else _library(client, auth)
        if given is None and auth is None and url.userinfo and (client is None or client.auth is None):
            auth = (url.username, url.password)
        # With the password left in it, each line that httpx logs would show it.
        self._url = url.copy_with(userinfo=b"", fragment=None)
        self._auth = auth
        self._headers = headers
        self._library = library
        self._user_agent = user_agent
        self._max_idle = max_idle
        self._max_response_bytes = max_response_bytes
        self._given = client is not None
        self._transport = given
        if client is not None and given is None:
            self._transport = HttpxTransport(library, client, auth, max_idle=max_idle)
        self._opening = anyio.Lock()
        self._under_way: set[anyio.CancelScope] = set()
        self._closed = False

    @property
    def server(self) -> str:
        """Scheme, host and port that requests go to."""
        return origin_of(self._url)

    def reader(
        self,
        message: Message,
        on_message: Callable[[JSONObject], None] | None = None,
        on_line: Callable[[], None] | None = None,
    ) -> ReplyReader:
        """Reads the reply to a message, see :class:`ReplyReader`."""
        limit, errors = self._max_response_bytes, message.errors
        return ReplyReader(message.request_id, limit, errors, on_message, on_line)

    async def exchange(
        self,
        message: Message,
        read: ReadResponse | None = None,
        *,
        silence_s: float,
        total_s: float = math.inf,
    ) -> JSONObject:
        """The result of one request, after at most five redirects.

        Args:
            message: Sent as it is.
            read: Reads each response that is neither a redirect nor HTTP 401 or 403; ``None`` takes it for
                one that ends soon. Its error about an unreadable body counts only where the status is a
                success: else the status is the error.
            silence_s: Seconds without a byte before it is given up, unless the client says otherwise.
            total_s: Seconds for all of it.

        Raises:
            SessionError: No result.
        """
        read = read or self.reader(message)
        scope = anyio.CancelScope(deadline=anyio.current_time() + total_s)
        self._under_way.add(scope)
        try:
            with scope:
                return await self._exchange(message, read, silence_s)
        finally:
            self._under_way.discard(scope)
        raise (
            message.errors.closed("session", sent=True) if self._closed else message.errors.timed_out(total_s)
        )

    async def aclose(self) -> None:
        """Close our own transport, and end the requests under way. Further requests are refused."""
        self._closed = True
        for scope in self._under_way:
            scope.cancel()
        with anyio.CancelScope(shield=True):
            async with self._opening:  # a transport that is being made is made first
                if self._transport is not None:
                    await self._transport.aclose()

    async def _exchange(self, message: Message, read: ReadResponse, silence_s: float) -> JSONObject:
        transport = self._transport or await self._open(message)
        if self._closed or transport.closed:
            subject = "http_client" if self._given and not self._closed else "session"
            raise message.errors.closed(subject, sent=False)
        try:
            return await self._send_with_headers(transport, message, read, silence_s)
        except CredentialRefusedError as error:
            if error.http_status != _UNAUTHORIZED or not self._headers.may_change:
                raise
        return await self._send_with_headers(transport, message, read, silence_s)  # nothing has run

    async def _send_with_headers(
        self, transport: Transport, message: Message, read: ReadResponse, silence_s: float
    ) -> JSONObject:
        headers = await self._headers.add_to(message.headers, message.errors.method)
        once = message.errors.runs_tool
        request = Request(message.content, headers, silence_s, message.verb, message.context, once)
        url = self._url
        try:
            for _ in range(_MOST_REDIRECTS + 1):
                answer = await self._send_once(transport, url, request, message, read)
                if not isinstance(answer, httpx.URL):
                    return answer
                url = answer
        except SessionError:
            raise
        except Exception as error:
            raise_for(message.errors, error, transport.failures)
        raise RemoteProtocolError(
            f"{message.errors.method} was redirected more than {_MOST_REDIRECTS} times. Check the URL.",
            not_executed=True,
        )

    async def _send_once(
        self, transport: Transport, url: httpx.URL, request: Request, message: Message, read: ReadResponse
    ) -> JSONObject | httpx.URL:
        """The result, or the URL that the request is redirected to."""
        response = await transport.send(url, request)
        try:
            if 300 <= response.status < 400:
                await drain(response)
                return _redirect_target(response, url, message.errors)
            return await self._result(response, message.errors, transport, read)
        finally:
            await response.aclose()

    @staticmethod
    async def _result(
        response: Response, errors: RequestErrors, transport: Transport, read: ReadResponse
    ) -> JSONObject:
        if response.status in CREDENTIAL_STATUSES:
            await drain(response)
            challenge = response.header("www-authenticate")
            raise errors.for_status(response.status, _retry_after(response), challenge)
        unreadable: Errors = (SessionError, *transport.failures.lost)
        try:
            reply = await read(response)
        except unreadable as error:
            if 200 <= response.status < 300:
                raise
            # Of an error page only the status matters.
            raise errors.for_status(response.status, _retry_after(response)) from error
        if isinstance(reply, RpcError):
            raise errors.for_rpc_error(reply, response.status, _retry_after(response))
        return reply

    async def _open(self, message: Message) -> Transport:
        """The transport of our own. Made once, when it is first needed."""
        async with self._opening:
            if self._transport is None:
                if self._closed:
                    raise message.errors.closed("session", sent=False)
                try:
                    self._transport = await self._make_transport()
                except ValueError as error:
                    raise SessionError(
                        f"{message.errors.method} was not sent: {error}", not_executed=True
                    ) from error
        return self._transport

    async def _make_transport(self) -> Transport:
        # In a thread, because loading certificates and importing aiohttp take a tenth of a second.
        if isinstance(self._auth, tuple | None) and on_asyncio() and not is_proxied(self._url.scheme):
            secure = self._url.scheme == "https"
            transport, certificates = await to_thread.run_sync(_load_aiohttp, secure)
            return transport(self._auth, user_agent=self._user_agent, certificates=certificates)
        make = partial(HttpxTransport, self._library, None, self._auth, max_idle=self._max_idle)
        return await to_thread.run_sync(make)


def _load_aiohttp(secure: bool) -> tuple[type[AiohttpTransport], ssl.SSLContext | None]:
    from .transport_aiohttp import AiohttpTransport  # its import takes half as long as all the rest

    # The certificates that httpx would trust.
    return AiohttpTransport, load_certificates(httpx) if secure else None


def _library(client: object, auth: object) -> ModuleType:
    """The library that client and auth are of; httpx, if there is neither.

    Raises:
        TypeError: They are of different libraries, or the client is of neither.
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


def _retry_after(response: Response) -> float | None:
    return read_retry_after(response.header("retry-after"))


def _redirect_target(response: Response, url: httpx.URL, errors: RequestErrors) -> httpx.URL:
    """The target of a redirect, if it may be followed.

    Raises:
        RemoteProtocolError: It does not repeat the request, or leaves the origin.
        Exception: The location is no URL.
    """
    status, location = response.status, response.header("location")
    if status not in (307, 308) or not location:
        raise errors.redirected("in a way that does not repeat the request. Check the URL.", status)
    target = url.join(location)
    if origin_of(target) != origin_of(url):
        raise errors.redirected(
            f"to {errors.quote(origin_of(target))}, another origin. The credential and the task ID stay "
            "here; if that is the right server, use its URL.",
            status,
        )
    # Only path and query are taken over, and no credentials in the Location.
    return url.copy_with(raw_path=target.raw_path)
