"""From an HTTP response to the JSON-RPC reply in it: JSON or an event stream.

The HTTP status says little about the reply, so it is hardly looked at here. Reading is lenient in
what does not matter (the content type, NaN, messages that are not for us) and strict in what
tells a reply from something else: JSON-RPC 2.0, an object, our id.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, TypeAlias

from ...errors import RemoteProtocolError
from ...protocol import JSONObject, RequestId
from ...protocol.replies import RpcError, read_rpc_error
from ..request_errors import RequestErrors
from .body import DRAIN_S, finish, read_bounded, read_uncompressed
from .sse import EventParser, EventTooLargeError
from .transport import Response

__all__ = ["Reply", "is_event_stream", "read_messages", "read_reply"]

_UNDECIDED: Final = frozenset({408, *range(500, 600)})
"""Statuses with which an error that names no request does not say that a tool was not called."""

Reply: TypeAlias = JSONObject | RpcError
"""The ``result`` of a JSON-RPC response, or its error."""


async def read_reply(
    response: Response, request_id: RequestId, max_bytes: int, errors: RequestErrors
) -> Reply:
    """The reply to request ``request_id``, in a body that ends soon.

    Raises:
        RemoteProtocolError: The body is larger than ``max_bytes``, compressed in a way that was
            not offered, or no JSON-RPC reply to this request.
        ConnectionLostError: An event stream ended before the response.
        Exception: The body could not be read to its end; one of the transport's failures.
    """
    status = response.status
    chunks = read_bounded(response, max_bytes, errors)
    if is_event_stream(response):
        reader = _StreamReader(request_id, status, EventParser(max_bytes), max_bytes, errors)
        return await reader.read(chunks)
    body = b"".join([chunk async for chunk in chunks])
    if not body.strip():
        raise errors.malformed(f"HTTP {status} with an empty body", status=status)
    what = f"HTTP {status} with a body of type {_media_type(response) or 'unknown'}"
    return _reply_in(_parse(body, what, status, errors), request_id, status, errors)


async def read_messages(
    response: Response,
    request_id: RequestId,
    max_bytes: int,
    errors: RequestErrors,
    on_message: Callable[[JSONObject], None],
    *,
    events: EventParser | None = None,
    on_line: Callable[[], None] | None = None,
) -> Reply:
    """The reply to a request, in a stream that may stay open for hours, or in place of one.

    Args:
        response: Whose body is read.
        request_id: The request's ID.
        max_bytes: Bytes of one event, or of a reply that is no stream, at most.
        errors: Of the request.
        on_message: Called with each request and notification that comes before the reply.
        events: Parses the stream; tells afterwards the ID of the last event, and the server's ``retry``.
        on_line: Called whenever a line has come.

    Raises:
        RemoteProtocolError: As :func:`read_reply`, or the stream is compressed.
        ConnectionLostError: The stream ended before the reply.
        Exception: The body could not be read to its end; one of the transport's failures.
    """
    if not (is_event_stream(response) and 200 <= response.status < 300):
        return await read_reply(response, request_id, max_bytes, errors)
    reader = _StreamReader(
        request_id, response.status, events or EventParser(max_bytes), max_bytes, errors, on_message, on_line
    )
    return await reader.read(read_uncompressed(response, errors))


def is_event_stream(response: Response) -> bool:
    """Whether the reply is among events, which may go on for as long as the server likes."""
    return _media_type(response) == "text/event-stream"


def _parse(text: str | bytes, what: str, status: int, errors: RequestErrors) -> Any:
    """JSON as the standard library reads it, but an integer of too many digits is infinity, as a float is.

    Raises:
        RemoteProtocolError: ``what`` is not JSON; or it is nested too deeply, which does not pass.
    """
    try:
        try:
            return json.loads(text)
        except ValueError as error:
            if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
                raise errors.malformed(f"{what} that is not JSON", status=status) from error
            # Python converts 4,300 digits. A task ID must not be lost for a number beside it.
            return json.loads(text, parse_int=_read_integer)
    except RecursionError:
        raise errors.too_deep(status) from None


def _read_integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        return float(digits)


def _media_type(response: Response) -> str:
    return response.header("content-type").partition(";")[0].strip().lower()


class _StreamReader:
    """Reads one event stream up to the reply."""

    def __init__(
        self,
        request_id: RequestId,
        status: int,
        events: EventParser,
        max_bytes: int,
        errors: RequestErrors,
        on_message: Callable[[JSONObject], None] | None = None,
        on_line: Callable[[], None] | None = None,
    ) -> None:
        self._request_id = request_id
        self._status = status
        self._events = events
        self._max_bytes = max_bytes
        self._errors = errors
        self._on_message = on_message
        self._on_line = on_line

    async def read(self, chunks: AsyncIterator[bytes]) -> Reply:
        """The reply.

        Raises:
            SessionError: There is none.
            Exception: One of the transport's failures.
        """
        drain_s = 0.0
        try:
            async for chunk in chunks:
                reply = self._take(self._events.feed(chunk))
                if reply is not None:
                    drain_s = DRAIN_S
                    return reply
                if self._on_line is not None and self._events.line_ended:
                    self._on_line()
        finally:
            await finish(chunks, drain_s)
        try:
            # A whole event that lacks its blank line may carry a task ID. A truncated one is no JSON.
            reply = self._take(self._events.flush())
        except RemoteProtocolError:
            reply = None
        if reply is None:
            raise self._errors.stream_ended(self._status)
        return reply

    def _take(self, events: Iterable[str]) -> Reply | None:
        """Pass messages on, up to the reply; ``None`` if it has not come yet."""
        try:
            for event in events:
                message = _parse(event, "an event", self._status, self._errors)
                if not isinstance(message, dict) or "method" not in message:
                    return _reply_in(message, self._request_id, self._status, self._errors)
                if self._on_message is not None:
                    self._on_message(message)
        except EventTooLargeError:
            raise self._errors.too_large(self._max_bytes, self._status) from None
        return None


def _reply_in(message: object, request_id: RequestId, status: int, errors: RequestErrors) -> Reply:
    """The reply that a message is to request ``request_id``.

    Raises:
        RemoteProtocolError: The message is no reply, or one to another request.
    """
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise errors.malformed(f"HTTP {status} with JSON that is not a JSON-RPC reply", status=status)
    reply_id, error, result = message.get("id"), message.get("error"), message.get("result")
    ours = reply_id == request_id and not isinstance(reply_id, bool)
    if isinstance(error, dict) and (ours or (reply_id is None and not _may_have_run(errors, status))):
        return read_rpc_error(error)
    if not ours:
        raise errors.malformed("it answers another request", status=status)
    if error is not None or not isinstance(result, dict):
        raise errors.malformed("neither its result nor its error is an object", status=status)
    return result


def _may_have_run(errors: RequestErrors, status: int) -> bool:
    return errors.method == "tools/call" and status in _UNDECIDED
