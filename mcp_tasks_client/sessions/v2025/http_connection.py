"""One MCP session at a server of 2025-11-25, over Streamable HTTP.

The server's own messages come among the events of any response, and on the stream that a GET opens. Servers
allow one such stream a session, and do not repeat messages of the time without one.

The stream of the session is opened again when it ends, after the ``retry`` that the server named. A reply
whose stream ends before it is lost: no stream is resumed by its last event.

Servers bind tasks to a session, and end them with it, so that a DELETE ends only one in which none lives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

import anyio

from ...aio.clock import Clock
from ...errors import SessionError
from ...policy import growing_delay
from ...protocol import JSONObject, RequestId
from ...protocol.replies import Reply, reply_fields
from ...questions.context import CallContext
from ..http.body import drain
from ..http.channel import HttpChannel, Message, ReadResponse
from ..http.headers import FIXED_HEADERS
from ..http.replies import ReplyReader
from ..http.transport import Response
from ..json_text import encode_json
from ..request_errors import CREDENTIAL_STATUSES
from .connection import (
    GET_STREAM,
    SILENCE_S,
    Connection,
    Hear,
    OwnRequest,
    offer,
    read_agreed_version,
)
from .shapes import CORE_TASKS_VERSION

__all__ = ["HttpConnection"]

_SESSION_ID: Final = "Mcp-Session-Id"
_VERSION: Final = "MCP-Protocol-Version"
_EVENTS: Final = "text/event-stream"

_NOT_FOUND: Final = 404
_BAD_REQUEST: Final = 400
_SESSION_WORDS: Final = re.compile(r"\bsession\b|\bnot initialized\b", re.IGNORECASE)
"""Words of the messages with which servers deny an MCP session."""

_NOT_ABOUT_SESSIONS: Final = frozenset({-32601, -32602})
"""JSON-RPC errors that are about the method or its params, also where they come with HTTP 404."""


_RETRY_S: Final = 1.0
_CONFLICT: Final = 409
_CONFLICT_RETRY_S: Final = 0.05
"""Seconds before a GET stream is asked for again that the server refuses because it takes the one before for
open. It notices within milliseconds that we have closed that one."""

_LONGEST_RETRY_S: Final = 30.0
_LONGEST_PAUSE_S: Final = 3600.0

_NO_STREAM: Final = frozenset({400, 404, 405, 406, 501}) | CREDENTIAL_STATUSES
"""HTTP statuses with which a server says that it has no GET stream."""

_MOST_REFUSALS: Final = 5
"""Refusals in a row, since one may be a gateway's."""


class HttpConnection(Connection):
    """One MCP session over HTTP.

    Args:
        channel: Sends the requests, with the host's headers.
        hear: Called with each request and notification that comes.
        timeout_s: Seconds of silence for most requests; twice as many in all.
        clock: By which the reopening of the GET stream waits.
        session_id: Of an MCP session that another process began; ``None`` begins one with :meth:`initialize`.
    """

    def __init__(
        self,
        channel: HttpChannel,
        hear: Hear,
        *,
        timeout_s: float,
        clock: Clock,
        session_id: str | None = None,
    ) -> None:
        super().__init__(session_id, timeout_s)
        self._channel = channel
        self.server = channel.server
        self._hear = hear
        self._clock = clock
        self._version = None if session_id is None else CORE_TASKS_VERSION  # once the session has begun

    async def _shake_hands(self, capabilities: JSONObject, client_info: JSONObject) -> JSONObject:
        own = offer(capabilities, client_info, self.context)
        message = self._post(own)

        async def read(response: Response) -> Reply:
            self.session_id = response.header(_SESSION_ID) or None
            return await self._reader(own, message)(response)

        result = await self._send(message, read, own.silence_s)
        self._version = read_agreed_version(result)
        initialized = OwnRequest("notifications/initialized", context=self.context)
        await self._tell(initialized, {"method": initialized.method})
        return result

    async def request(self, own: OwnRequest) -> JSONObject:
        """The result of a request, which is sent at most once."""
        message = self._post(own)
        return await self._send(message, self._reader(own, message), own.silence_s)

    async def answer(
        self, request_id: RequestId, reply: Reply, context: CallContext | None, task_id: str | None
    ) -> None:
        """Answer a request of the server's. Returns when the server has acknowledged that."""
        own = OwnRequest("an answer", context=context, task_id=task_id)
        await self._tell(own, {"id": request_id, **reply_fields(reply)})

    async def notify(self, method: str, params: JSONObject, context: CallContext | None) -> None:
        """Send a notification. Returns when the server has acknowledged it."""
        await self._tell(OwnRequest(method, context=context), {"method": method, "params": params})

    async def listen(self, context: Callable[[], CallContext | None]) -> None:
        """Keep the GET stream open. Returns when the server has none, or the session has ended.

        A message that the server sends while the stream is closed may be lost.
        """
        retry_s, refusals, failures = 0.0, 0, 0
        while True:
            begun, asked_s = self._clock.monotonic(), 0.0
            own = OwnRequest(GET_STREAM, context=context())
            message = self._get(own)
            reader = self._reader(own, message)
            try:
                await self._open_stream(message, reader)
            except SessionError as error:
                asked_s, status = error.retry_after_s or 0.0, error.http_status
                refusals = refusals + 1 if status in _NO_STREAM else 0
            else:
                refusals, status = 0, None
            failures = 0 if self._clock.monotonic() - begun > _RETRY_S else failures + 1
            conflict = status == _CONFLICT
            if refusals or (failures > 1 and not conflict):
                self.listening.set()  # no call has to wait for a stream that does not stay
            if refusals >= _MOST_REFUSALS or status == 405:
                return
            if reader.events.retry_s is not None:
                retry_s = reader.events.retry_s
            backoff_s = growing_delay(_CONFLICT_RETRY_S if conflict else _RETRY_S, failures, _LONGEST_RETRY_S)
            await self._clock.sleep(min(max(backoff_s, retry_s, asked_s), _LONGEST_PAUSE_S))

    async def end(self) -> None:
        """End the session by a DELETE, if the server gave it an ID."""
        if self.session_id is None:
            return
        own = OwnRequest("the end of the session", context=self.context)
        headers = self._own_headers()
        headers.pop("Content-Type", None)
        message = Message(own.request_id, b"", headers, self.errors_of(own), "DELETE", own.context)
        await self._channel.exchange(message, self._no_reply(message), silence_s=self._timeout_s)

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    async def _open_stream(self, message: Message, reader: ReplyReader) -> None:
        """Read the GET stream to its end."""

        async def read(response: Response) -> Reply:
            if not 200 <= response.status < 300:
                return await reader(response)
            self.listening.set()
            try:
                return await reader(response)
            finally:
                self.listening = anyio.Event()

        await self._channel.exchange(message, read, silence_s=SILENCE_S)

    def _reader(self, own: OwnRequest, message: Message) -> ReplyReader:
        """Reads the reply to a request, and passes on the server's messages before it."""
        return self._channel.reader(message, lambda said: self._hear(self, said, own))

    async def _tell(self, own: OwnRequest, body: JSONObject) -> None:
        """Send a message that has no reply."""
        message = self._post(own, body)
        await self._send(message, self._no_reply(message), None)

    def _no_reply(self, message: Message) -> ReadResponse:
        """Reads the response to such a message."""

        async def read(response: Response) -> Reply:
            if not 200 <= response.status < 300:
                return await self._channel.reader(message)(response)
            await drain(response)
            return {}

        return read

    async def _send(self, message: Message, read: ReadResponse, silence_s: float | None) -> JSONObject:
        # Most are bounded as a whole: a server that drips, byte by byte, would hold the request for ever.
        total_s = 2 * self._timeout_s if silence_s is None else math.inf
        silence_s = self._timeout_s if silence_s is None else silence_s
        try:
            reply = await self._channel.exchange(message, read, silence_s=silence_s, total_s=total_s)
        except SessionError as error:
            is_named = self.session_id is not None and self._version is not None
            self.lost = is_named and _denies_session(error)
            if self.lost:
                error.retryable = True
                error.not_executed = error.code is None or _names_session(error)
                self.listening.set()
            raise
        self.lost = False
        return reply

    def _get(self, own: OwnRequest) -> Message:
        headers = {**self._own_headers(), "Accept": _EVENTS, "Accept-Encoding": "identity"}
        headers.pop("Content-Type", None)
        return Message(own.request_id, b"", headers, self.errors_of(own), "GET", own.context)

    def _post(self, own: OwnRequest, body: JSONObject | None = None) -> Message:
        body = body or {"id": own.request_id, "method": own.method, "params": own.params}
        content = encode_json({"jsonrpc": "2.0", **body}, own.method).encode("ascii")
        headers, errors = self._own_headers(), self.errors_of(own)
        return Message(own.request_id, content, headers, errors, context=own.context)

    def _own_headers(self) -> dict[str, str]:
        headers = dict(FIXED_HEADERS)
        headers.pop(_VERSION, None)
        if self._version is not None:
            headers[_VERSION] = self._version
        if self.session_id is not None:
            headers[_SESSION_ID] = self.session_id
        return headers


def _denies_session(error: SessionError) -> bool:
    """Whether an error says that there is no such MCP session, as HTTP 404 does by itself.

    Source: 2025-11-25, Streamable HTTP, "Session Management", rules 3 and 4.
    """
    if error.http_status == _NOT_FOUND:
        return error.code not in _NOT_ABOUT_SESSIONS
    return error.http_status == _BAD_REQUEST and _names_session(error)


def _names_session(error: SessionError) -> bool:
    """Whether the words of a refusal are about the session, so that they are not those of a tool."""
    return _SESSION_WORDS.search(error.remote_message) is not None
