"""Over httpx or httpx2: the host's own client, or one of ours where aiohttp cannot serve.

The two libraries share their names, so one transport serves both. The client's class tells which
library it is of.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import cache
from http.cookiejar import CookieJar
from types import ModuleType
from typing import Any, Final

import anyio
import anyio.lowlevel
import httpx

from .transport import (
    CLOSE_S,
    CONNECT_S,
    JUST_USED_S,
    KEEPALIVE_S,
    Request,
    Response,
    Transport,
    failures_of_httpx,
)
from .variables import load_certificates, transports_by_pattern

__all__ = ["WRITE_S", "HttpxResponse", "HttpxTransport", "body_class", "class_in", "library_of"]

WRITE_S: Final = 30.0
"""Seconds that sending a request may take."""

_SLICE: Final = 500
"""Chunks that are read before the event loop gets its turn. One takes some 5 microseconds."""

_LIBRARIES: Final = ("httpx", "httpx2")


def library_of(thing: object, kind: str) -> ModuleType | None:
    """The library whose ``kind`` this is an instance of; ``None`` if it is neither library's."""
    for name in _LIBRARIES:
        library = sys.modules.get(name)  # a library that is not loaded has no instances
        if library is not None and isinstance(thing, getattr(library, kind)):
            return library
    return None


@cache
def class_in(library: Any, base: str, cls: Any) -> type[Any]:
    """``cls`` as a class of a library, since the library's clients want instances of its ``base``."""
    named = {"__doc__": cls.__doc__, "__module__": cls.__module__}
    return type(cls.__name__, (cls, getattr(library, base)), named)


class HttpxTransport(Transport):
    """Sends requests with an ``AsyncClient``.

    Args:
        library: The module ``httpx`` or ``httpx2``.
        client: Used with all that it brings, and left open. ``None``: of our own, whose making loads
            certificates, so do that in a thread.
        auth: For each request, as the library takes it; ``None`` leaves it to the client.
        max_idle: Connections of our own that may stay open unused.

    Raises:
        ValueError: An environment variable names a proxy or certificates that cannot be used.
    """

    def __init__(self, library: ModuleType, client: Any | None, auth: Any | None, *, max_idle: int) -> None:
        self.failures = failures_of_httpx(library)
        self._library: Any = library
        self._auth = self._library.USE_CLIENT_DEFAULT if auth is None else auth
        # The library's default. A client with this time-out has chosen none, and gets ours.
        self._default_timeout = self._library.Timeout(5.0)
        self._body = body_class(library)
        self._ours = client is None
        if client is not None:
            self._client = self._client_for_once = client
        else:
            certificates, cookies = load_certificates(library), CookieJar()
            # Two, since only a client as a whole says for how long its connections may be idle.
            self._client, self._client_for_once = (
                self._make_client(certificates, cookies, max_idle, idle_s)
                for idle_s in (KEEPALIVE_S, JUST_USED_S)
            )

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return bool(self._client.is_closed)

    async def send(self, url: httpx.URL, request: Request) -> Response:
        """Send a request through the client, its auth and its hooks."""
        client = self._client_for_once if request.once else self._client
        built = client.build_request(
            request.verb,
            str(url),
            content=request.content,
            headers=request.headers,
            timeout=self._timeout(request.silence_s),
        )
        sent = self._library.Request(
            built.method,
            built.url,
            headers=built.headers,
            stream=self._body(request.content),
            extensions=built.extensions,
        )
        sent.read()  # so that hooks and auth flows see its content
        response = await client.send(sent, auth=self._auth, follow_redirects=False, stream=True)
        return HttpxResponse(response)

    async def aclose(self) -> None:
        """Close the client, if it is our own."""
        if self._ours:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self._client.aclose()
                await self._client_for_once.aclose()

    def _make_client(
        self, certificates: ssl.SSLContext, cookies: CookieJar, max_idle: int, idle_s: float
    ) -> Any:
        # The session's caps are the limit. One more in the pool could only fill up, with the
        # connections that httpcore forgets when it is cancelled at the wrong moment.
        limits = self._library.Limits(
            max_connections=None, max_keepalive_connections=max_idle, keepalive_expiry=idle_s
        )

        def make_transport(proxy: str | None = None) -> Any:
            return self._library.AsyncHTTPTransport(verify=certificates, limits=limits, proxy=proxy)

        return self._library.AsyncClient(
            transport=make_transport(),
            mounts=transports_by_pattern(self._library, make_transport),
            cookies=cookies,
            timeout=self._default_timeout,
        )

    def _timeout(self, silence_s: float) -> Any:
        if self._client.timeout != self._default_timeout:
            return self._client.timeout
        return self._library.Timeout(connect=CONNECT_S, write=WRITE_S, read=silence_s, pool=None)


class HttpxResponse(Response):
    """A response of either library."""

    __slots__ = ("_response",)

    def __init__(self, response: Any) -> None:
        self.status = response.status_code
        self._response = response

    def header(self, name: str) -> str:
        """A header's value."""
        value: str = self._response.headers.get(name, "")
        return value

    @property
    def content(self) -> bytes | None:
        """The body, if a hook has read it."""
        content: bytes | None = self._response.content if self._response.is_stream_consumed else None
        return content

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        # The stream itself, not response.aiter_raw(), which closes the response at its end: cancelled
        # there, the response would count as closed and its connection would stay open.
        return _Chunks(aiter(self._response.stream))

    async def aclose(self) -> None:
        """Close the response."""
        # Shielded, because a response that stays open keeps its connection. And a failure from here on is no
        # reason to lose a reply.
        with anyio.move_on_after(CLOSE_S, shield=True), suppress(Exception):
            await self._response.aclose()


class _Chunks(AsyncIterator[bytes]):
    """A body, between whose chunks the event loop gets its turn, also where it does not wait for them."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._count = 0

    async def __anext__(self) -> bytes:
        self._count += 1
        if self._count % _SLICE == 0:
            # Cancelled here, httpx's generators would be dropped half-way.
            await anyio.lowlevel.cancel_shielded_checkpoint()
        return await anext(self._chunks)


def body_class(library: Any) -> Any:
    """The class of a request's body, for either library."""
    return type("Body", (library.ByteStream,), {"__aiter__": _chunk_of})


def _chunk_of(stream: Any) -> AsyncIterator[bytes]:
    """A request's body. httpx's own is an async generator, which a cancelled request drops half-way."""
    return _Chunk(b"".join(stream))


class _Chunk(AsyncIterator[bytes]):
    def __init__(self, content: bytes) -> None:
        self._content: bytes | None = content

    async def __anext__(self) -> bytes:
        content, self._content = self._content, None
        if content is None:
            raise StopAsyncIteration
        return content
