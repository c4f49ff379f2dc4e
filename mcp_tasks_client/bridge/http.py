"""The bridge for hosts that take a URL: one process for many hosts, on the loopback.

A host shows a token with each request. A request without it is refused before any of it is read.

One HTTP request carries one message of a host. Its :class:`_Exchange` travels with it, so that replies of
different hosts cannot be taken for each other, however their messages are numbered.
"""

from __future__ import annotations

import hmac
import logging
import socket
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Final

import anyio
from mcp.shared.exceptions import MCPError
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .front import open_front
from .host_request import Reply
from .introspection import Context, Next, prepend_middleware
from .options import Options
from .service import Connect

__all__ = ["listen", "open_app", "serve_socket", "url_of"]

logger = logging.getLogger("mcp_tasks_client.bridge")

_LOOPBACK: Final = "127.0.0.1"
_PATH: Final = "/mcp"

_LARGEST_BODY: Final = 32 * 1024 * 1024
"""Bytes of one message, at most."""

_MOST_AT_ONCE: Final = 500
"""Requests that are served at the same time, at most, streams that stand open included."""

_MOST_SESSIONS: Final = 1_000
_IDLE_S: Final = 30 * 60.0
"""Seconds after which a session ends that has no request and no stream."""

_KEEP_ALIVE_S: Final = 75
"""Seconds for which an idle connection stays open: longer than hosts keep one. httpx keeps one for 5 s, and
uvicorn by default as well. A request is lost if the server closes its connection in that instant."""

_EXCHANGE: Final = "mcp_tasks_client.bridge"
_GONE: Final = -32000


@asynccontextmanager
async def open_app(
    connect: Connect, endpoint: str, options: Options, *, token: str
) -> AsyncIterator[ASGIApp]:
    """Serve hosts by an ASGI application, at ``/mcp``, as long as the block runs.

    Requests have to come by the loopback: others are refused by their ``Host`` and ``Origin``.

    Args:
        connect: Makes the client for one host.
        endpoint: Names the file of the server's introduction: any text that each bridge to the server gives.
        options: Of the bridge.
        token: A request is served if it has the header ``Authorization: Bearer TOKEN``. Visible ASCII.
    """
    async with open_front(connect, endpoint, options, _reply_to) as front:
        prepend_middleware(front.server, _until_gone)
        app = front.server.streamable_http_app(
            streamable_http_path=_PATH,
            host=_LOOPBACK,
            max_request_body_size=_LARGEST_BODY,
            max_sessions=_MOST_SESSIONS,
            session_idle_timeout=_IDLE_S,
        )
        async with front.server.session_manager.run():
            yield _Door(app, token)


def listen(port: int) -> socket.socket:
    """A socket that hosts on this machine alone can connect to.

    Args:
        port: Of 127.0.0.1; 0 takes a free one.

    Raises:
        OSError: The port is taken, or not for this user.
    """
    return socket.create_server((_LOOPBACK, port))


def url_of(listening: socket.socket) -> str:
    """The URL that hosts are given."""
    return f"http://{_LOOPBACK}:{listening.getsockname()[1]}{_PATH}"


async def serve_socket(
    connect: Connect, endpoint: str, listening: socket.socket, options: Options, *, token: str
) -> None:
    """Serve hosts at a socket of :func:`listen`, until cancelled. Otherwise as :func:`open_app`.

    On asyncio alone.
    """
    import uvicorn  # late: hosts that start the bridge as a command wait for no HTTP server

    class Server(uvicorn.Server):
        def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # no generator
            return nullcontext()  # a signal cancels this function, as it does any verb

    async with open_app(connect, endpoint, options, token=token) as app:
        config = uvicorn.Config(
            app,
            http="h11",  # which bounds the headers
            ws="none",
            lifespan="off",
            timeout_keep_alive=_KEEP_ALIVE_S,
            log_config=None,
            log_level=logging.CRITICAL,  # it reports each cancelled request as an error
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        await Server(config).serve([listening])


class _Exchange:
    """One HTTP request of a host, and its response."""

    def __init__(self) -> None:
        self.serving = anyio.CancelScope()
        """Around the message's treatment. It is cancelled once nothing more can be sent to the host."""
        self.reply = Reply()
        """It has left once the whole response has."""


def _exchange_of(context: Context) -> _Exchange:
    assert context.request is not None  # it came by HTTP
    exchange: _Exchange = context.request.scope[_EXCHANGE]
    return exchange


def _reply_to(context: Context) -> Reply:
    return _exchange_of(context).reply


async def _until_gone(context: Context, go_on: Next) -> Any:
    """Serve a request as long as its connection stands: a session of the SDK goes on without it."""
    if context.request_id is None:
        return await go_on(context)
    with _exchange_of(context).serving:
        return await go_on(context)
    raise MCPError(code=_GONE, message="The host has closed the connection.")


class _Door:
    """Lets requests with the token in, and a bounded number at once."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = token.encode()
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as an ASGI application."""
        if scope["type"] != "http":
            raise RuntimeError(f"The bridge serves HTTP alone, not {scope['type']}")
        if not self._has_token(scope):
            headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
            refused = PlainTextResponse("The token of the bridge is missing or wrong.", 401, headers)
        elif self._under_way >= _MOST_AT_ONCE:
            headers = {"Retry-After": "1", "Connection": "close"}
            refused = PlainTextResponse(f"More than {_MOST_AT_ONCE} requests are under way.", 503, headers)
        else:
            await self._serve(scope, receive, send)
            return
        await refused(scope, receive, send)

    def _has_token(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        return kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._expected)

    async def _serve(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        exchange = _Exchange()

        async def send_and_tell(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                exchange.reply.settle(True)

        self._under_way += 1
        try:
            await self._app({**scope, _EXCHANGE: exchange}, receive, send_and_tell)
        except Exception:
            logger.exception("A request of a host could not be served")
            raise
        finally:
            self._under_way -= 1
            exchange.serving.cancel()
            exchange.reply.settle(False)
