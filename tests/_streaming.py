"""An ASGI application behind httpx, with responses that come as they are sent.

``httpx.ASGITransport`` waits for their end.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import anyio
import anyio.lowlevel
import httpx

from mcp_tasks_client.old.testing.app import ASGIApp

__all__ = ["StreamingTransport"]


class StreamingTransport(httpx.AsyncBaseTransport):
    """Runs each request of the application in a task of its own, until it is done or its client is gone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._group = anyio.create_task_group()

    async def __aenter__(self) -> StreamingTransport:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(*exc_info)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(self._app, request, await request.aread())
        self._group.start_soon(exchange.run)
        try:
            return await exchange.response()
        except BaseException:
            exchange.gone.set()
            raise


class _Exchange:
    def __init__(self, app: ASGIApp, request: httpx.Request, body: bytes) -> None:
        self._app = app
        self._request = request
        self._body: bytes | None = body
        self._begun = anyio.Event()
        self._start: MutableMapping[str, Any] = {}
        self._send, self.chunks = anyio.create_memory_object_stream[bytes](math.inf)
        self.gone = anyio.Event()
        self.error: httpx.TransportError | None = None

    async def response(self) -> httpx.Response:
        await self._begun.wait()
        if self.error is not None and not self._start:
            raise self.error
        return httpx.Response(self._start["status"], headers=self._start["headers"], stream=_Body(self))

    async def run(self) -> None:
        scope = {
            "type": "http",
            "method": self._request.method,
            "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
        }
        try:
            await self._app(scope, self._receive, self._sent)
        except httpx.TransportError as error:
            self.error = error
        finally:
            self._send.close()
            self._begun.set()

    async def _receive(self) -> MutableMapping[str, Any]:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _sent(self, message: MutableMapping[str, Any]) -> None:
        await anyio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            self._start = message
            self._begun.set()
        elif message["body"] and not self.gone.is_set():
            self._send.send_nowait(message["body"])


class _Body(httpx.AsyncByteStream, AsyncIterator[bytes]):
    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._exchange.chunks.receive()
        except anyio.EndOfStream:
            raise self._exchange.error or StopAsyncIteration from None

    async def aclose(self) -> None:
        self._exchange.gone.set()
        self._exchange.chunks.close()
