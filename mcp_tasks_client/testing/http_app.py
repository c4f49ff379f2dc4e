"""A scripted server as an ASGI application: Streamable HTTP of MCP 2026-07-28, at any path.

For ``httpx.ASGITransport`` and for any ASGI server. A reply that is to be lost begins, and then breaks
off with an exception of httpx. An ASGI server closes the connection when the application raises, and
``httpx.ASGITransport`` passes the exception on as if the connection had raised it.

``httpx.ASGITransport`` gives a response only when it is whole. A stream of notifications therefore needs
an ASGI server, or a transport that streams.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import anyio
from mcp_types import INVALID_REQUEST

from ..protocol import JSONObject
from .faults import ErrorReply, Garbled, HttpError, Reply, Unreachable, retry_after
from .notifications import Stream
from .request_handler import Exchange, RequestHandler
from .sloppy import STRAYS, as_sloppy_result
from .witness import Ending

__all__ = ["HttpApp"]

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_PARSE_ERROR: Final = -32700
_PRIMING: Final = b"id: 0\ndata:\n\n"
_SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"


class HttpApp:
    """The ASGI application.

    Args:
        requests: Answers the requests.
        event_stream: Whether responses are event streams instead of JSON.
        ids_as_text: Whether a JSON-RPC ID that is a number comes back as text, as from some gateways.
        sloppy: Whether other messages precede the reply on an event stream, and JSON responses are batches
            of one; and as :mod:`.sloppy` says.

    Attributes:
        event_stream: As given. Holds for the responses from now on.
        ids_as_text: The same.
        sloppy: The same.
    """

    def __init__(
        self, requests: RequestHandler, *, event_stream: bool, ids_as_text: bool, sloppy: bool
    ) -> None:
        self.event_stream = event_stream
        self.ids_as_text = ids_as_text
        self.sloppy = sloppy
        self._requests = requests

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request, or the application's lifespan."""
        match scope["type"]:
            case "http":
                await self._serve(scope, receive, send)
            case "lifespan":
                await _serve_lifespan(receive, send)
            case other:
                raise ValueError(f"a scripted server speaks HTTP and not {other}")

    async def _serve(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        if body is None:
            return
        if scope["method"] != "POST":
            await _respond(send, 405, b"", {"allow": "POST"})
            return
        try:
            message = json.loads(body)
        except ValueError:
            await _respond_json(send, 400, None, error={"code": _PARSE_ERROR, "message": "Parse error"})
            return
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            await _respond_json(
                send, 400, None, error={"code": INVALID_REQUEST, "message": "Invalid request"}
            )
            return
        if "id" not in message:
            await _respond(send, 202, b"", {})
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        request_id = str(message["id"]) if self.ids_as_text else message["id"]
        params = message.get("params")
        exchange = self._requests.receive(
            message["method"], params if isinstance(params, dict) else {}, headers
        )
        if exchange.after_s:
            async with _until_disconnected(receive) as gone:
                await self._requests.clock.sleep(exchange.after_s)
            if gone.is_set():
                return
        if isinstance(exchange.reply, Stream):
            self._requests.note_reply(exchange)
            await _play_stream(exchange.reply, request_id, receive, send)
        else:
            await self._reply(exchange, exchange.reply, request_id, send)

    async def _reply(self, exchange: Exchange, reply: Reply, request_id: Any, send: Send) -> None:
        if isinstance(reply, dict | ErrorReply | HttpError | Garbled):
            # Noted before it is sent, so that no client has a reply that the witness does not know of.
            self._requests.note_reply(exchange)
        if isinstance(reply, dict) and self.sloppy:
            reply = as_sloppy_result(exchange.arrival.method, reply)
        match reply:
            case dict() as result if self.event_stream:
                await _begin_events(send)
                for stray in STRAYS if self.sloppy else ():
                    await _send_part(send, _event(_encode(stray)))
                await _send_part(send, _event(_encode_response(request_id, {"result": result})), last=True)
            case dict() as result if self.sloppy:
                batch = b"[" + _encode_response(request_id, {"result": result}) + b"]"
                await _respond(send, 200, batch, {"content-type": "application/json"})
            case dict() as result:
                await _respond_json(send, 200, request_id, result=result)
            case ErrorReply(code, message, data, status, wait_s):
                error = {"code": code, "message": message} | ({} if data is None else {"data": data})
                await _respond_json(send, status, request_id, retry_after(wait_s), error=error)
            case HttpError(status, wait_s):
                await _respond(send, status, b"Sorry", {"content-type": "text/plain", **retry_after(wait_s)})
            case Garbled():
                await _respond(send, 200, b"<html>Welcome</html>", {"content-type": "text/html"})
            case lost:
                await send(_start(200, {"content-type": "application/json", "content-length": "1000"}))
                await _send_part(send, b"{")
                await _break_connection(before_request=isinstance(lost, Unreachable))


async def _serve_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _read_body(receive: Receive) -> bytes | None:
    """The request's body; ``None`` if the client went away before its end."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


@asynccontextmanager
async def _until_disconnected(receive: Receive) -> AsyncIterator[anyio.Event]:
    """Cancel the block when the client goes away, which the event then says."""
    gone = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        yield gone
        tasks.cancel_scope.cancel()


async def _play_stream(stream: Stream, request_id: Any, receive: Receive, send: Send) -> None:
    meta = {_SUBSCRIPTION: request_id}

    async def send_message(message: JSONObject) -> None:
        params = {**message["params"], "_meta": meta}
        await _send_part(send, _event(_encode({**message, "params": params})))

    ending: Ending = "left"
    await _begin_events(send)
    async with _until_disconnected(receive):
        ending = await stream.play(send_message)
    if ending == "broken":
        await _break_connection()
    if ending == "in order":
        result = {"resultType": "complete", "_meta": meta}
        await _send_part(send, _event(_encode_response(request_id, {"result": result})), last=True)


async def _break_connection(*, before_request: bool = False) -> None:
    # Imported on use, because they take longer to import than all of this package.
    import httpcore
    import httpx

    if before_request:  # as httpx raises it, since it is only believed where httpcore says so
        raise httpx.ConnectError("connection refused") from httpcore.ConnectError()
    raise httpx.ReadError("the connection broke")


async def _respond_json(
    send: Send, status: int, request_id: Any, headers: Mapping[str, str] | None = None, **outcome: JSONObject
) -> None:
    body = _encode_response(request_id, outcome)
    await _respond(send, status, body, {"content-type": "application/json", **(headers or {})})


async def _respond(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    await send(_start(status, {**headers, "content-length": str(len(body))}))
    await send({"type": "http.response.body", "body": body})


async def _begin_events(send: Send) -> None:
    await send(_start(200, {"content-type": "text/event-stream", "cache-control": "no-cache"}))
    await _send_part(send, _PRIMING)


async def _send_part(send: Send, body: bytes, *, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})


def _start(status: int, headers: Mapping[str, str]) -> Message:
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


def _event(message: bytes) -> bytes:
    return b"event: message\ndata: " + message + b"\n\n"


def _encode_response(request_id: Any, outcome: JSONObject) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": request_id, **outcome})


def _encode(message: object) -> bytes:
    return json.dumps(message).encode("ascii")
