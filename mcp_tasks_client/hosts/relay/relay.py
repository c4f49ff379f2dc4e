"""A proxy between a host's session and its transport.

A transport of the official SDK is a pair of streams of messages. The relay stands between these streams and
the session. Every message passes unchanged, except those that its :class:`Interceptor` takes: calls of the
host's that the interceptor makes, and requests and notifications of the server's. Requests of our own travel
over the same connection, under JSON-RPC IDs that the host's session never uses.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias
from uuid import uuid4

import anyio
from anyio.abc import ObjectReceiveStream, TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp_types import INTERNAL_ERROR

from ...protocol import JSONObject, RequestId
from ...protocol.replies import Reply, RpcError, id_in, reply_fields
from ...protocol.text import quote
from ...sessions.awaited import Awaited
from ...sessions.request_errors import RequestErrors
from ..call_options import without_options
from ..host_calls import MadeCall
from ..sdk.introspection import unread_in
from .messages import make_message, read_message

__all__ = ["HostStream", "Interceptor", "Passage", "Relay"]

logger = logging.getLogger("mcp_tasks_client")

Passage: TypeAlias = Literal["to host", "kept"]
"""The way of a server's request that is not answered at once: the host's session gets it, or the
interceptor has kept it and answers later by :meth:`Relay.answer`."""

_CANCEL_S: Final = 5.0
"""Seconds that a ``notifications/cancelled`` may take to leave."""

_CLOSED: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError)


class Interceptor(ABC):
    """Decides which messages a relay takes."""

    @abstractmethod
    def initialize(self, params: JSONObject) -> JSONObject:
        """The params of ``initialize`` to send in place of the host's."""

    @abstractmethod
    def initialized(self, result: JSONObject) -> None:
        """Learn how the server has answered ``initialize``."""

    @abstractmethod
    def takes_call(self, params: JSONObject) -> bool:
        """Whether a ``tools/call`` of the host's goes to :meth:`serve_call`."""

    @abstractmethod
    async def serve_call(self, request: JSONObject, metadata: Any) -> MadeCall | None:
        """The end of a host's ``tools/call``; ``None`` leaves the call to the server.

        Args:
            request: With ``id`` and ``params``.
            metadata: The SDK's notes on the message, such as its HTTP headers.
        """

    def listed(self, result: JSONObject) -> JSONObject | None:
        """A result for the host in place of one with ``tools``; ``None`` leaves the result as it is."""
        return None

    @abstractmethod
    def takes_request(self, request: JSONObject) -> bool:
        """Whether a server's request goes to :meth:`serve_request`."""

    @abstractmethod
    async def serve_request(self, request: JSONObject) -> Reply | Passage:
        """The reply to a server's request, or the passage of the request.

        Cancelled when the server cancels the request, or uses its ID for another one.
        """

    @abstractmethod
    def takes_notification(self, method: str, params: JSONObject) -> bool:
        """Learn of a server's notification. Returns whether the host's session must not have it."""


@dataclass(frozen=True, slots=True)
class _Unread:
    """A reply to the host, and the event that is set once the host has read it."""

    message: Any
    read: anyio.Event


class HostStream(ObjectReceiveStream[Any]):
    """The stream of the relay's messages that the host's session reads."""

    def __init__(self, stream: MemoryObjectReceiveStream[Any]) -> None:
        self._stream = stream

    async def receive(self) -> Any:
        """The next message."""
        message = await self._stream.receive()
        if isinstance(message, _Unread):
            message.read.set()
            return message.message
        return message

    async def aclose(self) -> None:
        """Stop reading."""
        await self._stream.aclose()

    def close(self) -> None:
        """Stop reading."""
        self._stream.close()


class Relay:
    """Passes messages on, and sends some of its own.

    Attributes:
        closed: Set when the connection to the server is gone.
    """

    _interceptor: Interceptor

    def __init__(self) -> None:
        self.closed = anyio.Event()
        self._to_server: Any = None
        self._to_host: Any = None
        self._tasks: TaskGroup | None = None
        self._initialize_id: RequestId | None = None
        self._awaited = Awaited()
        self._calls: dict[RequestId, anyio.CancelScope] = {}
        self._call_ended = anyio.Event()
        self._requests: dict[RequestId, tuple[anyio.CancelScope, JSONObject]] = {}
        self._unreadable: Exception | None = None

    async def run(self, interceptor: Interceptor, host: tuple[Any, Any], server: tuple[Any, Any]) -> None:
        """Pass messages on, until cancelled.

        Args:
            interceptor: Decides which messages do not pass.
            host: The stream that the host's session writes to, and the one that :class:`HostStream` reads.
            server: The transport's streams: from the server, and to the server.
        """
        self._interceptor = interceptor
        (from_host, self._to_host), (from_server, self._to_server) = host, server
        async with from_host, self._to_host, anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._pump_server, from_server)
            with suppress(*_CLOSED):
                async for message in from_host:
                    await self._take_from_host(message)
            # The host's session has ended. The transport ends when the host leaves it.
            await anyio.sleep_forever()

    async def abandon_calls(self) -> None:
        """Cancel every call that :meth:`Interceptor.serve_call` is serving. Returns when they have ended."""
        while self._calls:
            for scope in self._calls.values():
                scope.cancel()
            await self._call_ended.wait()

    # ── requests of ours ──────────────────────────────────────────────────────────────────────

    async def request(
        self,
        errors: RequestErrors,
        params: JSONObject,
        timeout_s: float | None,
        request_id: RequestId | None = None,
        metadata: Any = None,
    ) -> Reply:
        """Send a request to the server, and wait for its reply.

        Args:
            errors: Makes the errors of this request, and has its method.
            params: Sent unchanged.
            timeout_s: Seconds to wait for the reply; ``None`` waits for as long as there is a connection.
            request_id: A random text, since the host's session numbers its requests; ``None`` makes one.
            metadata: For the transport, as the SDK has it.

        Raises:
            SessionError: No reply came within the time, or the connection is gone.
        """
        sent, reply, before = not self.closed.is_set(), None, self._unreadable
        try:
            reply = await self._ask(self._to_server, errors.method, params, timeout_s, request_id, metadata)
        except _CLOSED:
            self.closed.set()
        if reply is not None:
            return reply
        if self.closed.is_set():
            raise errors.closed("connection of the host's session", sent=sent)
        # Transports of mcp 1.x report a reply that they cannot read, but not the request that it answers.
        unread = unread_in(str(self._unreadable)) if self._unreadable is not before else None
        if unread is not None:
            raise errors.unread(unread)
        raise errors.hidden(f"none came within {timeout_s or 0.0:g} seconds")

    async def ask_host(self, method: str, params: JSONObject | None) -> Reply:
        """Send a request to the host's session, as if the server had asked, and wait for the reply.

        A caller that is cancelled takes the request back.
        """
        reply, request_id = None, uuid4().hex
        with suppress(*_CLOSED):
            try:
                reply = await self._ask(self._to_host, method, params, None, request_id)
            except anyio.get_cancelled_exc_class():
                await self._take_back(self._to_host, request_id)
                raise
        return RpcError(INTERNAL_ERROR, "the host's session has ended", None) if reply is None else reply

    def tell_host(self, message: JSONObject) -> None:
        """Send the host's session a notification, unless it does not keep up with reading."""
        with suppress(anyio.WouldBlock, *_CLOSED):
            self._to_host.send_nowait(make_message(message))

    async def answer(self, request_id: RequestId, reply: Reply) -> bool:
        """Answer a request of the server's. Returns whether there was a connection to do so."""
        return await self._send(self._to_server, {"id": request_id, **reply_fields(reply)})

    async def notify(self, method: str, params: JSONObject) -> bool:
        """Send a notification to the server. Returns whether there was a connection to do so."""
        return await self._send(self._to_server, {"method": method, "params": params})

    async def take_back(self, request_id: RequestId) -> None:
        """Tell the server that a reply has no reader, even if the caller is cancelled meanwhile."""
        await self._take_back(self._to_server, request_id)

    async def _ask(
        self,
        stream: Any,
        method: str,
        params: JSONObject | None,
        timeout_s: float | None,
        request_id: RequestId | None,
        metadata: Any = None,
    ) -> Reply | None:
        if self.closed.is_set():
            return None
        request_id = uuid4().hex if request_id is None else request_id
        given = {} if params is None else {"params": params}
        message = make_message({"id": request_id, "method": method, **given}, metadata)
        return await self._awaited.ask(request_id, partial(stream.send, message), timeout_s)

    async def _take_back(self, stream: Any, request_id: RequestId) -> None:
        params = {"requestId": request_id, "reason": "The client does not wait for the reply any more."}
        with anyio.move_on_after(_CANCEL_S, shield=True):
            await self._send(stream, {"method": "notifications/cancelled", "params": params})

    async def _send(self, stream: Any, fields: JSONObject) -> bool:
        if self.closed.is_set():
            return False
        with suppress(*_CLOSED):
            await stream.send(make_message(fields))
            return True
        return False

    # ── messages of the host ──────────────────────────────────────────────────────────────────

    async def _take_from_host(self, message: Any) -> None:
        said = read_message(message)
        params: JSONObject = said.get("params") or {}
        match said.get("method"):
            case None if self._take_reply(said):
                return
            case "initialize":
                self._initialize_id = said["id"]
                fields = {
                    "id": said["id"],
                    "method": "initialize",
                    "params": self._interceptor.initialize(params),
                }
                message = make_message(fields, message.metadata)
            case "tools/call":
                passing = without_options(params)
                if passing is not None:
                    message = make_message({**said, "params": passing}, message.metadata)
                if self._interceptor.takes_call(params) and not _resumes(message):
                    assert self._tasks is not None, "the relay runs"
                    # Noted before it begins, since the host may take it back at once.
                    self._calls[said["id"]] = scope = anyio.CancelScope()
                    self._tasks.start_soon(self._serve_call, {**said, "params": params}, message, scope)
                    return
            case "notifications/cancelled" if id_in(params, "requestId") in self._calls:
                self._calls[params["requestId"]].cancel()
                return
        with suppress(*_CLOSED):
            await self._to_server.send(message)

    async def _serve_call(self, request: JSONObject, message: Any, scope: anyio.CancelScope) -> None:
        request_id, made, is_read = request["id"], None, False
        try:
            with scope, suppress(*_CLOSED):
                try:
                    made = await self._interceptor.serve_call(request, message.metadata)
                except Exception as error:  # a fault of ours costs one call, and not the connection
                    logger.exception("A tools/call of the host could not be seen through")
                    text = f"mcp_tasks_client failed: {type(error).__name__}: {error}"
                    made = MadeCall(RpcError(INTERNAL_ERROR, text, None))
                if made is None:
                    await self._to_server.send(message)
                    return
                reply = _Unread(make_message({"id": request_id, **reply_fields(made.reply)}), anyio.Event())
                await self._to_host.send(reply)
                await reply.read.wait()
                is_read = True
                made.deliver()
        finally:
            try:
                if made is not None and not is_read:
                    await made.drop()
            finally:
                if self._calls.get(request_id) is scope:  # else the host has given its ID to another call
                    del self._calls[request_id]
                self._call_ended.set()
                self._call_ended = anyio.Event()

    # ── messages of the server ────────────────────────────────────────────────────────────────

    async def _pump_server(self, from_server: Any) -> None:
        try:
            with suppress(*_CLOSED):
                async for message in from_server:
                    passed = self._take_from_server(message)
                    if passed is not None:
                        await self._pass_to_host(passed)
        finally:
            self.closed.set()
            self._awaited.end()
            for scope in self._calls.values():
                scope.cancel()
            self._to_host.close()

    async def _pass_to_host(self, message: Any) -> None:
        with suppress(*_CLOSED):  # the host has stopped reading
            await self._to_host.send(message)

    def _take_from_server(self, message: Any) -> Any | None:
        """The message that the host's session gets in place of the server's; ``None`` is nothing.

        A message is passed on even if this code fails to read it.
        """
        if isinstance(message, Exception):
            self._unreadable = message
            return message
        try:
            said = read_message(message)
            if "method" not in said:
                if "result" in said and said.get("id") == self._initialize_id:
                    self._interceptor.initialized(said["result"])
                return None if self._take_reply(said) else self._rewrite_list(said, message)
            if "id" in said:
                is_taken = self._take_request(said, message)
            else:
                is_taken = self._take_notification(said["method"], said.get("params") or {})
            return None if is_taken else message
        except Exception as error:
            logger.warning(
                "A message of the server could not be read: %s: %s", type(error).__name__, quote(str(error))
            )
            return message

    def _rewrite_list(self, said: JSONObject, message: Any) -> Any:
        """A reply for the host, in which a list of tools is as the interceptor wants it."""
        result = said.get("result")
        if not isinstance(result, dict) or "tools" not in result:
            return message
        listed = self._interceptor.listed(result)
        return message if listed is None else make_message({"id": said["id"], "result": listed})

    def _take_request(self, said: JSONObject, message: Any) -> bool:
        scope, before = self._requests.get(said["id"], (None, None))
        if before == said:
            return True  # the same request over a second stream
        if scope is not None:
            scope.cancel()  # the server has given its ID to another request
        if not self._interceptor.takes_request(said):
            return False
        assert self._tasks is not None, "the relay runs"
        scope = anyio.CancelScope()
        self._requests[said["id"]] = scope, said
        self._tasks.start_soon(self._serve_request, said, message, scope)
        return True

    async def _serve_request(self, said: JSONObject, message: Any, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                reply = await self._interceptor.serve_request(said)
            finally:
                if self._requests.get(said["id"], (None,))[0] is scope:
                    del self._requests[said["id"]]
            if reply == "to host":
                await self._pass_to_host(message)
            elif reply != "kept":
                await self.answer(said["id"], reply)

    def _take_notification(self, method: str, params: JSONObject) -> bool:
        if method == "notifications/cancelled" and params.get("requestId") in self._requests:
            self._requests[params["requestId"]][0].cancel()
            return True
        return self._interceptor.takes_notification(method, params)

    def _take_reply(self, said: JSONObject) -> bool:
        """Take the reply to a request of ours, even if nobody waits for it."""
        return self._awaited.take(said.get("id"), said.get("error") or said.get("result", {}))


def _resumes(message: Any) -> bool:
    """True if the SDK continues a call that was sent before, by a resumption token."""
    return getattr(message.metadata, "resumption_token", None) is not None
