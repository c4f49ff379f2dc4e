"""A session at a server of 2025-11-25 over Streamable HTTP.

Requests of the server come among the events of any response, or of the stream that a GET opens.

A session is never ended by a DELETE: servers bind tasks to it, and end them with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import anyio

from ..errors import RemoteProtocolError, SessionError
from ..wire import JSONObject, RequestId, RpcError, read_rpc_error
from .bodies import bounded_body, drain
from .channel import HttpChannel, Message, Read, encoded
from .event_stream import read_messages
from .faults import Faults, may_deny_session
from .peer import SESSION_STATUSES, SILENCE_S, Peer, Told
from .replies import Reply, parse, read_reply
from .shapes_2025_11_25 import HANDSHAKE_VERSIONS
from .transport import Response

__all__ = ["HttpPeer"]

_SESSION_ID: Final = "Mcp-Session-Id"
_VERSION: Final = "MCP-Protocol-Version"
_PING_S: Final = 10.0
_OF_THE_SDKS: Final = ("Session not found", "No valid session ID provided")
"""What most of their servers say. Other words may be a tool's own, if the session is there."""

_OF_A_TASK: Final = re.compile(r"\btasks?\b", re.IGNORECASE)
_NOT_OF_SESSIONS: Final = frozenset({-32601, -32602})
_EVENTS: Final = "text/event-stream"


class HttpPeer(Peer):
    """A server, as one session over HTTP has it.

    Args:
        channel: Sends the requests.
        headers: Sent with each of them.
        told: Called with each request and notification that comes, and with us.
        max_bytes: Bytes of one event, or of one reply, at most.
        session_id: Of a session that there was before; ``None`` begins one with ``initialize``.
    """

    def __init__(
        self,
        channel: HttpChannel,
        headers: Mapping[str, str],
        told: Told,
        *,
        max_bytes: int,
        session_id: str | None = None,
    ) -> None:
        super().__init__(session_id)
        self._begun = session_id is not None
        self._channel = channel
        self._headers = headers
        self._told = told
        self._max_bytes = max_bytes

    async def initialize(self, params: JSONObject, timeout_s: float) -> JSONObject:
        """Begin the session.

        Raises:
            SessionError: The server does not want to.
        """
        result = await self.request("initialize", {"protocolVersion": self.version, **params}, timeout_s)
        agreed = result.get("protocolVersion")
        if not isinstance(agreed, str) or agreed not in HANDSHAKE_VERSIONS:
            raise RemoteProtocolError(
                f"initialize was answered in version {str(agreed)[:20]!r}, which nobody has offered. "
                "Report it to the server's author.",
                not_executed=True,
            )
        self.version = agreed
        self._begun = True
        await self.notify("notifications/initialized", timeout_s)
        return result

    async def request(
        self,
        method: str,
        params: JSONObject,
        silence_s: float,
        *,
        task_id: str | None = None,
        request_id: RequestId | None = None,
    ) -> JSONObject:
        """Send a request once, and return its result.

        Args:
            method: JSON-RPC method.
            params: Its params.
            silence_s: Seconds of silence after which it is given up.
            task_id: The task that it is about, for the errors.
            request_id: By which another process can take it back; ``None`` for one of our own.

        Raises:
            SessionError: No result. :attr:`lost` says whether that is because the session is over.
        """
        # Another process may be in this session as well, and servers tell requests apart by their IDs alone.
        request_id = self.new_request_id() if request_id is None else request_id
        message = self._message(method, {"id": request_id, "method": method, "params": params}, task_id)

        async def read(response: Response) -> Reply:
            if method == "initialize":
                self.session_id = response.header(_SESSION_ID) or None
            return await read_messages(response, message, self._heard, self._max_bytes, _nothing)

        return await self._exchange(message, read, silence_s)

    async def take_back(self, request_id: RequestId, timeout_s: float) -> None:
        """Tell the server that nobody waits for the reply to a request any more.

        Raises:
            SessionError: It may not have arrived.
        """
        await self.notify("notifications/cancelled", timeout_s, {"requestId": request_id})

    async def notify(self, method: str, timeout_s: float, params: JSONObject | None = None) -> None:
        """Send a notification.

        Raises:
            SessionError: It may not have arrived.
        """
        said = {"method": method} if params is None else {"method": method, "params": params}
        await self._say(self._message(method, said, None), timeout_s)

    async def answer(
        self,
        request_id: RequestId,
        answer: JSONObject | RpcError,
        timeout_s: float,
        task_id: str | None = None,
    ) -> None:
        """Answer a request of the server's.

        Raises:
            SessionError: It may not have arrived.
        """
        said: JSONObject
        if isinstance(answer, RpcError):
            data = {} if answer.data is None else {"data": answer.data}
            said = {"error": {"code": answer.code, "message": answer.message, **data}}
        else:
            said = {"result": answer}
        await self._say(self._message("an answer", {"id": request_id, **said}, task_id), timeout_s)

    async def listen(self) -> None:
        """Hear what the server says outside of responses, until it ends that.

        Raises:
            SessionError: It does not offer that, or the stream broke.
        """
        headers = {**self._own_headers(), "Accept": _EVENTS, "Accept-Encoding": "identity"}
        headers.pop("Content-Type", None)
        message = Message(0, "the GET stream", b"", headers, Faults("the GET stream"), "GET")

        async def read(response: Response) -> Reply:
            if 200 <= response.status < 300:
                self.listened, self.rest_s = self.listened + 1, 0.0
                self.listening.set()
            return await read_messages(response, message, self._heard, self._max_bytes, _nothing, self._rests)

        # A server need not have it, and whatever it says instead says nothing of the session.
        await self._channel.exchange(message, read, SILENCE_S)

    async def _say(self, message: Message, timeout_s: float) -> None:
        async def read(response: Response) -> Reply:
            if not 200 <= response.status < 300:
                return await read_reply(response, message.request_id, self._max_bytes, message.faults)
            await drain(response)
            return {}

        with anyio.move_on_after(2 * timeout_s):
            await self._exchange(message, read, timeout_s)
            return
        raise message.faults.overdue(2 * timeout_s)

    async def _exchange(self, message: Message, read: Read, silence_s: float) -> JSONObject:
        try:
            return await self._judged(message, read, silence_s)
        except SessionError as error:
            if self.session_id is not None and _denies_session(error):
                self.lost = await self._is_over()
                denied = self.denied(error)
                if self.lost and not denied and message.method == "tools/call":
                    # In words that may be a tool's: neither is it known that it was called.
                    said = f"HTTP {error.http_status}, {error.remote_message!r}"
                    raise message.faults.lost(said) from error
                if self.lost or denied:
                    error.not_executed = error.retryable = True
                elif message.method != "tools/call" and (
                    _denies_in_words(error) or not _OF_A_TASK.search(error.remote_message)
                ):
                    error.retryable = True  # one of several servers has never heard of the session
            raise

    async def _judged(self, message: Message, read: Read, silence_s: float) -> JSONObject:
        async def judged(response: Response) -> Reply:
            if response.status in SESSION_STATUSES:
                return await _refusal(response, message, self._max_bytes)
            return await read(response)

        return await self._channel.exchange(message, judged, silence_s)

    def denied(self, error: SessionError) -> bool:
        """Whether a request was not read, as the server says that it does not know the session."""
        bare = error.http_status == 404 and error.code is None
        if self.lost:
            return bare or _denies_in_words(error)
        return error.remote_message.endswith(_OF_THE_SDKS) and _denies_in_words(error)

    async def look_again(self) -> None:
        """Ask whether a session that is lost is there after all. It is not :attr:`lost` then."""
        self.lost = self.lost and await self._is_over()

    async def _is_over(self) -> bool:
        """Whether the server says once more that it does not know the session.

        Said once it may be that of a gateway, or of a replica that has never heard of it.
        """
        ping = self._message("ping", {"id": self.new_request_id(), "method": "ping", "params": {}}, None)

        async def read(response: Response) -> Reply:
            return await read_messages(response, ping, self._heard, self._max_bytes, _nothing)

        with anyio.move_on_after(_PING_S):
            try:
                await self._judged(ping, read, _PING_S)
            except SessionError as again:
                return _denies_session(again)
        return False

    def _rests(self, seconds: float) -> None:
        self.rest_s = seconds

    def _heard(self, message: JSONObject) -> None:
        self._told(self, message)

    def _message(self, method: str, body: JSONObject, task_id: str | None) -> Message:
        content = encoded({"jsonrpc": "2.0", **body}, method).encode("ascii")
        request_id = body["id"] if "params" in body and "id" in body else 0
        # A session's ID is a credential like a task's, and shortened where it is quoted.
        faults = Faults(method, task_id, (self.session_id,) if self.session_id else ())
        return Message(request_id, method, content, self._own_headers(), faults)

    def _own_headers(self) -> dict[str, str]:
        headers = dict(self._headers)
        if self._begun:
            headers[_VERSION] = self.version
        else:
            headers.pop(_VERSION, None)
        if self.session_id is not None:
            headers[_SESSION_ID] = self.session_id
        return headers


def _denies_session(error: SessionError) -> bool:
    return _denies_in_words(error) or (error.http_status == 404 and error.code not in _NOT_OF_SESSIONS)


def _denies_in_words(error: SessionError) -> bool:
    said = RpcError(error.code, error.remote_message, error.data)
    return error.http_status in SESSION_STATUSES and may_deny_session(said)


async def _refusal(response: Response, message: Message, max_bytes: int) -> Reply:
    """What a server says to a request that it has not read, whatever ID it gives it."""
    body = b"".join([chunk async for chunk in bounded_body(response, max_bytes, message.faults)])
    try:
        said = parse(body)
    except ValueError as error:
        raise message.faults.malformed("its body is not JSON", status=response.status) from error
    if not isinstance(said, dict) or not isinstance(said.get("error"), dict):
        raise message.faults.malformed("its body is no JSON-RPC error", status=response.status)
    return read_rpc_error(said["error"])


def _nothing() -> None:
    pass
