"""From an HTTP response to the JSON-RPC reply in it: JSON or an event stream.

The HTTP status says little about the reply, so it is not looked at here. Reading is lenient in
what does not matter (the content type, NaN, messages that are not for us) and strict in what
tells a reply from something else: JSON-RPC 2.0, an object, our id.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import httpx
from httpx_sse import EventSource

from ..wire import JSONObject, RequestId, RpcError, read_rpc_error
from .bodies import DRAIN_S, bounded_body, run_out
from .faults import Faults
from .transport import Response

__all__ = ["Reply", "is_event_stream", "parse", "read_reply", "reply_in"]

_OF_NOTHING: Final = frozenset({408, *range(500, 600)})
"""By which an error that names no request does not say that a tool was not called."""

Reply: TypeAlias = JSONObject | RpcError
"""The ``result`` of a JSON-RPC response, or its error."""


async def read_reply(response: Response, request_id: RequestId, max_bytes: int, faults: Faults) -> Reply:
    """The reply to request ``request_id``.

    Raises:
        RemoteProtocolError: The body is larger than ``max_bytes``, compressed in a way that was
            not offered, or no JSON-RPC reply to this request.
        ConnectionLostError: An event stream ended before the response.
        Exception: The body could not be read to its end; one of the transport's failures.
    """
    status = response.status
    chunks = bounded_body(response, max_bytes, faults)
    if is_event_stream(response):
        return await _from_events(chunks, request_id, status, faults)
    body = b"".join([chunk async for chunk in chunks])
    if not body.strip():
        raise faults.malformed(f"HTTP {status} with an empty body", status=status)
    try:
        message = parse(body)
    except ValueError as error:
        what = f"HTTP {status} with a body of type {_media_type(response) or 'unknown'} that is not JSON"
        raise faults.malformed(what, status=status) from error
    return reply_in(message, request_id, status, faults)


def is_event_stream(response: Response) -> bool:
    """Whether the reply is among events, which may go on for as long as the server likes."""
    return _media_type(response) == "text/event-stream"


def _media_type(response: Response) -> str:
    return response.header("content-type").partition(";")[0].strip().lower()


class _EventBytes(httpx.AsyncByteStream):
    """Chunks as the stream of a response, with an end to the last event if it lacks one.

    A truncated event cannot be mistaken for a whole one, as half an object is not JSON; but a
    whole one that lacks its blank line may carry a task ID.
    """

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        begun: bytes | None = b""
        async for chunk in self._chunks:
            if begun is None:
                yield chunk
                continue
            begun += chunk
            if len(begun) >= len(codecs.BOM_UTF8):
                yield begun.removeprefix(codecs.BOM_UTF8)  # it is no part of the stream
                begun = None
        yield (begun or b"") + b"\n\n"


async def _from_events(
    chunks: AsyncIterator[bytes], request_id: RequestId, status: int, faults: Faults
) -> Reply:
    # A response of its own, so that neither encoding nor charset of the original apply once more.
    source = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_EventBytes(chunks))
    events = EventSource(source).aiter_sse()
    try:
        async for event in events:
            if event.event != "message" or not event.data.strip():
                continue
            try:
                message = parse(event.data)
            except ValueError as error:
                raise faults.malformed("an event that is not JSON", status=status) from error
            if not isinstance(message, dict) or "method" not in message:
                return reply_in(message, request_id, status, faults)
    finally:
        await run_out(events, DRAIN_S)
    raise faults.ended_early(status)


def parse(text: str | bytes) -> Any:
    """JSON as the standard library reads it.

    Raises:
        ValueError: Not JSON, not Unicode, or nested or long beyond reason.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def reply_in(message: object, request_id: RequestId, status: int, faults: Faults) -> Reply:
    """The reply that a message is to request ``request_id``.

    Raises:
        RemoteProtocolError: It is none, or one to something else.
    """
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise faults.malformed(f"HTTP {status} with JSON that is not a JSON-RPC reply", status=status)
    reply_id, error, result = message.get("id"), message.get("error"), message.get("result")
    ours = reply_id == request_id and not isinstance(reply_id, bool)
    if isinstance(error, dict) and (
        ours or (reply_id is None and not (faults.of_call and status in _OF_NOTHING))
    ):
        return read_rpc_error(error)
    if not ours:
        raise faults.malformed("it answers another request", status=status)
    if error is not None or not isinstance(result, dict):
        raise faults.malformed("neither its result nor its error is an object", status=status)
    return result
