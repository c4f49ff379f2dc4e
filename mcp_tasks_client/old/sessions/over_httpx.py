"""Over httpx or httpx2: the host's own client, or one of ours where aiohttp cannot serve.

The two libraries share their names, so one adapter serves both; which one it is, the client's class
tells.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

import anyio
import httpx

from .transport import CLOSE_S, CONNECT_S, KEEPALIVE_S, Request, Response, Transport, of_httpx

__all__ = ["OverHttpx", "library_of"]

_WRITE_S: Final = 30.0
_LIBRARIES: Final = ("httpx", "httpx2")


def library_of(thing: object, kind: str) -> ModuleType | None:
    """The library whose ``kind`` this is an instance of; ``None`` if it is neither's."""
    for name in _LIBRARIES:
        library = sys.modules.get(name)  # or nobody can have an instance
        if library is not None and isinstance(thing, getattr(library, kind)):
            return library
    return None


class OverHttpx(Transport):
    """Sends requests with an ``AsyncClient``.

    Args:
        library: The module ``httpx`` or ``httpx2``.
        client: Used with all that it brings, and left open. ``None``: one of our own.
        auth: For each request, as the library takes it; ``None`` leaves it to the client.
        max_idle: Connections of our own client that may stay open unused.
    """

    def __init__(self, library: ModuleType, client: Any | None, auth: Any | None, *, max_idle: int) -> None:
        self.failures = of_httpx(library)
        self._library: Any = library
        self._auth = self._library.USE_CLIENT_DEFAULT if auth is None else auth
        # What a client has whose maker said nothing: no wish that we could honour.
        self._no_wish = self._library.Timeout(5.0)
        self._body = type("Body", (_Body, self._library.AsyncByteStream), {})
        self._ours = client is None
        # The session's caps are the limit. One more in the pool could only fill up, with the
        # connections that httpcore forgets when it is cancelled at the wrong moment.
        self._client = client or self._library.AsyncClient(
            limits=self._library.Limits(
                max_connections=None, max_keepalive_connections=max_idle, keepalive_expiry=KEEPALIVE_S
            ),
            timeout=self._no_wish,
        )

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return bool(self._client.is_closed)

    async def send(self, url: httpx.URL, request: Request) -> Response:
        """Send a request through the client, its auth and its hooks."""
        built = self._client.build_request(
            request.verb,
            str(url),
            content=request.content,
            headers=request.headers,
            timeout=self._timeout(request.read_timeout_s),
        )
        built.stream = self._body(request.content)
        response = await self._client.send(built, auth=self._auth, follow_redirects=False, stream=True)
        return _HttpxResponse(response)

    async def aclose(self) -> None:
        """Close the client, if it is our own."""
        if self._ours:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self._client.aclose()

    def _timeout(self, read_timeout_s: float) -> Any:
        if self._client.timeout != self._no_wish:
            return self._client.timeout
        return self._library.Timeout(connect=CONNECT_S, write=_WRITE_S, read=read_timeout_s, pool=None)


class _HttpxResponse(Response):
    __slots__ = ("_response",)

    def __init__(self, response: Any) -> None:
        self.status = response.status_code
        self._response = response

    def header(self, name: str) -> str:
        value: str = self._response.headers.get(name, "")
        return value

    @property
    def content(self) -> bytes | None:
        content: bytes | None = self._response.content if self._response.is_stream_consumed else None
        return content

    def chunks(self) -> AsyncIterator[bytes]:
        # Not response.aiter_raw(), which closes the response by itself at its end: there it could be
        # cancelled, and the response, taken for closed, would stay open.
        iterator: AsyncIterator[bytes] = aiter(self._response.stream)
        return iterator

    async def aclose(self) -> None:
        # Shielded, because a response that stays open keeps its connection. And what goes wrong
        # from here on is no reason to lose what has arrived.
        with anyio.move_on_after(CLOSE_S, shield=True), suppress(Exception):
            await self._response.aclose()


class _Body:
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
