"""The JSON-RPC reply in an HTTP response: JSON or an event stream.

The HTTP status says little about the reply, so it is hardly looked at here. Reading is lenient where nothing
depends on it (the content type, NaN, messages that are not for us), and strict in the marks of a reply:
JSON-RPC 2.0, and an object.

Gateways change JSON-RPC IDs. The text of the number that was sent is that ID. A body in JSON is the only
reply to its request, so that it cannot be another's, even if its ID differs. So is the only reply among the
events of a stream that has ended. Beside a reply under our ID, or beside each other, replies under other IDs
are passed over. A reply that is whole counts, even if the body breaks off after it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from functools import cached_property
from typing import Any, TypeGuard

from ...errors import RemoteProtocolError, SessionError
from ...protocol import JSONObject, RequestId
from ...protocol.replies import Reply, read_rpc_error
from ..json_text import parse_json
from ..oddities import note_oddity
from ..request_errors import UNDECIDED_STATUSES, RequestErrors
from .body import DRAIN_S, finish, read_bounded, read_uncompressed
from .sse import EventParser, EventTooLargeError
from .transport import Response

__all__ = ["ReplyReader"]


class ReplyReader:
    """Reads the reply to one request.

    Args:
        request_id: The request's ID.
        max_bytes: Bytes of one event of a stream, or of a whole body, at most.
        errors: Of the request.
        on_message: Called with each request and notification that comes before the reply, in the stream of a
            success. Any other body ends soon: it is bounded as a whole, and may be compressed.
        on_line: Called whenever a line of a stream has come.
    """

    def __init__(
        self,
        request_id: RequestId,
        max_bytes: int,
        errors: RequestErrors,
        on_message: Callable[[JSONObject], None] | None = None,
        on_line: Callable[[], None] | None = None,
    ) -> None:
        self._request_id = request_id
        self._max_bytes = max_bytes
        self._errors = errors
        self._on_message = on_message
        self._on_line = on_line
        self._status = 0
        self._hears = False
        self._refusal: JSONObject | None = None
        self._strays: list[JSONObject] = []

    @cached_property
    def events(self) -> EventParser:
        """Parses the stream; tells afterwards the server's ``retry``."""
        return EventParser(self._max_bytes)

    async def __call__(self, response: Response) -> Reply:
        """The reply in a response.

        Raises:
            RemoteProtocolError: The body is too large, compressed in a way that was not offered, or no
                JSON-RPC reply to this request.
            ConnectionLostError: An event stream ended before the reply.
            Exception: The body could not be read to its end; one of the transport's failures.
        """
        self._status = status = response.status
        media_type = response.header("content-type").partition(";")[0].strip().lower()
        is_stream = media_type == "text/event-stream"
        self._hears = self._on_message is not None and 200 <= status < 300
        if is_stream and self._hears and response.content is None:
            return await self._read_events(read_uncompressed(response, self._errors))
        chunks = read_bounded(response, self._max_bytes, self._errors)
        return await (self._read_events(chunks) if is_stream else self._read_body(chunks, media_type))

    async def _read_body(self, chunks: AsyncIterator[bytes], media_type: str) -> Reply:
        read, broken = list[bytes](), None
        try:
            async for chunk in chunks:
                read.append(chunk)
        except SessionError:
            raise
        except Exception as error:
            broken = error
        try:
            body = b"".join(read)
            if not body.strip():
                raise self._malformed("an empty body")
            message = self._read_message(body, f"a body of type {media_type or 'unknown'}")
            reply = self._read_only_reply(message)
        except RemoteProtocolError:
            if broken is not None:
                raise broken from None
            raise
        if broken is not None:
            self._note_break()
        return reply

    async def _read_events(self, chunks: AsyncIterator[bytes]) -> Reply:
        drain_s, events, broken = 0.0, self.events, None
        try:
            async for chunk in chunks:
                reply = self._take(events.feed(chunk))
                if reply is not None:
                    drain_s = DRAIN_S
                    return reply
                if self._on_line is not None and self._hears and events.line_ended:
                    self._on_line()
        except SessionError:
            raise
        except Exception as error:
            broken = error
        finally:
            await finish(chunks, drain_s)
        try:
            # A whole event that lacks its blank line may carry a task ID. A truncated one is no JSON.
            reply = self._take(events.flush())
        except RemoteProtocolError:
            reply = None  # it has not come
        if reply is None:
            reply = self._read_unnamed_reply(broken)
        if reply is None and broken is not None:
            raise broken
        if reply is None:
            raise self._errors.lost("its stream ended before it", self._status)
        if broken is not None:
            self._note_break()
        return reply

    def _read_unnamed_reply(self, broken: Exception | None) -> Reply | None:
        """The reply of a stream that has ended without one under our ID; ``None`` if there is none."""
        if self._refusal is not None and broken is None:  # else our reply may have been on its way
            return self._read_reply(self._refusal)
        if len(self._strays) == 1 and self._status < 300:
            return self._read_only_reply(self._strays[0])
        if self._strays:
            self._note_stray()
        return None

    def _note_break(self) -> None:
        note_oddity(self._errors.server, "a response breaks off, and holds a whole reply")

    def _note_stray(self) -> None:
        note_oddity(self._errors.server, "a stream has messages that belong to no request of it")

    def _take(self, events: Iterable[str]) -> Reply | None:
        """Pass messages on, up to the reply; ``None`` if it has not come yet."""
        try:
            for event in events:
                message = self._read_message(event, "an event")
                if _is_reply(message) and self._is_ours(message):
                    if self._strays:
                        self._note_stray()
                    return self._read_reply(message)
                if _is_reply(message) and self._is_refusal(message):
                    self._refusal = message  # unless our reply follows
                elif _is_reply(message) and len(self._strays) < 2:
                    self._strays.append(message)  # the only one may be ours
                elif not isinstance(message, dict) or "method" not in message:
                    self._note_stray()
                elif self._on_message is not None and self._hears:
                    self._on_message(message)
        except EventTooLargeError:
            raise self._errors.too_large(self._max_bytes, self._status) from None
        return None

    def _read_message(self, text: str | bytes, source: str) -> Any:
        """The value of a JSON text. A batch of one message is that message."""
        message = self._parse(text, source)
        return message[0] if isinstance(message, list) and len(message) == 1 else message

    def _parse(self, text: str | bytes, source: str) -> Any:
        """The value of a JSON text.

        Raises:
            RemoteProtocolError: ``source`` is not JSON; or it is nested too deeply, which does not pass.
        """
        try:
            return parse_json(text)
        except ValueError as error:
            raise self._malformed(f"{source} that is not JSON") from error
        except RecursionError:
            raise self._errors.too_deep(self._status) from None

    def _read_only_reply(self, message: object) -> Reply:
        if not _is_reply(message):
            raise self._malformed("JSON that is not a JSON-RPC reply")
        if not (self._is_ours(message) or self._is_refusal(message)):
            if self._status >= 400:  # then the status says more: the SDK's servers have the ID "server-error"
                raise self._malformed("an error that names another request, or none")
            note_oddity(self._errors.server, "the reply to a request has another JSON-RPC ID than that")
        return self._read_reply(message)

    def _read_reply(self, message: JSONObject) -> Reply:
        error, result = message.get("error"), message.get("result")
        if isinstance(error, dict):
            return read_rpc_error(error)
        if error is not None or not isinstance(result, dict):
            raise self._malformed("neither a result nor an error that is an object")
        return result

    def _is_ours(self, message: JSONObject) -> bool:
        """Whether a reply has the ID of the request."""
        reply_id = message.get("id")
        if reply_id == self._request_id and not isinstance(reply_id, bool):
            return True
        if isinstance(self._request_id, int) and reply_id == str(self._request_id):
            note_oddity(self._errors.server, "a JSON-RPC ID that is a number comes back as text")
            return True
        return False

    def _is_refusal(self, message: JSONObject) -> bool:
        """Whether it is the error of a server that has not read the request's ID, nor the request."""
        unnamed = isinstance(message.get("error"), dict) and message.get("id") is None
        return unnamed and not self._may_have_run

    @property
    def _may_have_run(self) -> bool:
        """Whether an error that does not name the request leaves open whether it was carried out."""
        return self._errors.runs_tool and self._status in UNDECIDED_STATUSES

    def _malformed(self, fault: str) -> RemoteProtocolError:
        return self._errors.malformed(f"HTTP {self._status} with {fault}", status=self._status)


def _is_reply(message: object) -> TypeGuard[JSONObject]:
    return isinstance(message, dict) and message.get("jsonrpc") == "2.0" and "method" not in message
