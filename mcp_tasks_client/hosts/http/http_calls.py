"""The calls that hosts make over one HTTP client, and the HTTP response to each.

A reply is JSON where the host reads that, and its call is made in the caller's own task. Where the host wants
progress, or may be asked itself, the reply is an event stream, which is read while its call still goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final

import anyio
from mcp_types import INTERNAL_ERROR

from ...aio.own_task import Working
from ...aio.uncut import run_to_its_end
from ...engine.audience import OnUpdate
from ...engine.engine import Engine
from ...engine.outcome import as_rpc_error
from ...engine.progress import Progress
from ...errors import CredentialRefusedError, IdempotencyConflictError, SessionError
from ...protocol import JSONObject, RequestId
from ...protocol.replies import Reply, RpcError, read_rpc_error
from ...sessions.http.transport_httpx import class_in
from ..host_call import HostCall, as_event, encode_reply, questions_for
from ..host_calls import HostCalls, MadeCall, refuse
from .own_requests import HostRequest
from .reply_stream import ReplyStream, is_own_request
from .servers import Server, Servers

__all__ = ["HttpCalls"]


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a call as an HTTP response."""

    made: MadeCall
    status: int = 200
    challenge: str = ""

    record_id: str | None = None
    """The record of the call to continue once the host's auth flow has renewed a refused credential."""


_GIVEN_UP: Final = _End(
    MadeCall(
        RpcError(INTERNAL_ERROR, "The host has given the call up. If there is a task, it goes on.", None)
    )
)
"""The end of a call that its host has given up."""


class HttpCalls(Working):
    """The calls of the hosts of one HTTP client. The servers are closed with them.

    Attributes:
        tasks: Runs the drivers of the calls.
        closed: Whether further calls are refused.
        body_class: :class:`_Body`, as a class of the host's library.
    """

    def __init__(self, library: ModuleType, engine: Engine, servers: Servers) -> None:
        self.library: Any = library
        self.servers = servers
        self.clock = engine.environment.clock
        self.host_calls = HostCalls(engine)
        self.closed = False
        self.tasks = engine.tasks
        self.body_class: type[_Body] = class_in(library, "AsyncByteStream", _Body)
        self._under_way: dict[Hashable, list[_HttpCall]] = {}
        self._call_ended = anyio.Event()

    async def respond_to(self, host: HostRequest, call: HostCall) -> Any | None:
        """The response to a call; ``None`` leaves the call to the host's own request."""
        if self.closed and call.key is None:
            return None
        if self.closed and call.fault is None:
            call = replace(call, fault="A call with an idempotency key was not made: the client is closed.")
        return await _HttpCall(self, host, call).respond()

    def begin(self, call: _HttpCall) -> None:
        """Note that a call is under way."""
        self._under_way.setdefault(call.name, []).append(call)
        call.server.calls += 1

    def end(self, call: _HttpCall) -> None:
        """Note that a call has ended."""
        call.server.calls -= 1
        calls = self._under_way[call.name]
        calls.remove(call)
        if not calls:
            del self._under_way[call.name]
        self._call_ended.set()

    def abandon(self, host: HostRequest, request_id: RequestId | None) -> bool:
        """End the call that a host has given up by a notification. Returns whether there is one.

        Two sessions of a host without session IDs may use one JSON-RPC ID at the same time. It is unknown
        then which call is given up, so both go on.
        """
        calls = self._under_way.get(host.name(request_id), [])
        if len(calls) == 1:
            calls[0].scope.cancel()
        return bool(calls)

    def take_reply(self, message: JSONObject) -> bool:
        """Take a message if it is a host's reply to a question of ours. A late reply is dropped."""
        request_id = message.get("id")
        if "method" in message or not is_own_request(request_id):
            return False
        result = message.get("result")
        reply = result if isinstance(result, dict) else read_rpc_error(message.get("error"))
        for calls in self._under_way.values():
            for call in calls:
                if call.take_reply(request_id, reply):
                    return True
        return True

    def awaits_caller(self) -> bool:
        """Whether closing would wait for the caller."""
        return super().awaits_caller() or self.tasks.awaits_caller()

    async def aclose(self) -> None:
        """End the calls that still wait. Their tasks go on."""
        self.closed = True
        await run_to_its_end(self._end_calls)

    async def _end_calls(self) -> None:
        for calls in self._under_way.values():
            for call in calls:
                call.scope.cancel()
        while self._under_way:
            self._call_ended = anyio.Event()
            await self._call_ended.wait()
        await self.host_calls.aclose()
        await self.servers.aclose()


class _HttpCall:
    """One call, from the host's request to the response.

    Attributes:
        scope: Cancelled to end the call.
        server: Where the call is made.
        stream: The events of the reply, if it is an event stream.
    """

    server: Server

    def __init__(self, calls: HttpCalls, host: HostRequest, call: HostCall) -> None:
        self._calls = calls
        self._host = host
        self._call = call
        self._was_refused = host.was_refused
        self._end: _End | None = None
        self.scope = anyio.CancelScope()
        self.stream: ReplyStream | None = None

    @property
    def name(self) -> Hashable:
        """By which :meth:`HttpCalls.abandon` finds the call. At 2026-07-28 a host closes the response."""
        return self if self._call.is_current else self._host.name(self._call.request_id)

    async def respond(self) -> Any | None:
        """The response, once it can begin; ``None`` leaves the call to the host's own request."""
        if self._call.loses_key:
            self._end = _End(refuse(self._call.fault or ""))
            return self._respond_at_once()
        try:
            self.server = self._calls.servers.find(self._host, self._call)
        except IdempotencyConflictError as error:
            self._end = _End(MadeCall(as_rpc_error(error)))
            return self._respond_at_once()
        self.server.calls += 1  # keeps the session open while it is asked for its version
        try:
            return await self._respond_by_server()
        finally:
            self.server.calls -= 1

    async def _respond_by_server(self) -> Any | None:
        call = self._call
        try:
            if not await self.server.takes(call, self._host):
                return None
        except CredentialRefusedError as error:
            self._end = self._refuse(error)
        except SessionError as error:
            self._end = _End(MadeCall(as_rpc_error(error)))
        else:
            inputs = self.server.inputs
            asks = inputs.leaves_questions and not call.is_current and bool(inputs.capabilities)
            if call.reads_events and (call.progress_token is not None or asks or not call.reads_json):
                return await self._respond_by_events(asks=asks)
            await self._make()
        return self._respond_at_once()

    async def _respond_by_events(self, *, asks: bool) -> Any:
        """The reply as an event stream; or as JSON, if the call has ended before there was any event."""
        self.stream = stream = ReplyStream(self._make, self._calls.clock)
        if asks:
            self._host = replace(self._host, ask=stream.ask)
        try:
            await stream.start()
        except BaseException:
            await self.close(is_read=False)
            raise
        if stream.over and not stream.begun and self._call.reads_json:
            self.stream = None
            return self._respond_at_once()
        headers = {"content-type": "text/event-stream", "cache-control": "no-store"}
        body = self._calls.body_class(self, None)
        return self._calls.library.Response(200, headers=headers, stream=body)

    def _respond_at_once(self) -> Any:
        """The response to a call that has ended: JSON, or one event for a host that reads no JSON."""
        library = self._calls.library
        if self._end is None and self._calls.closed:
            raise library.ReadError(
                "The client was closed under a call. If there is a task, it goes on: "
                "TasksClient(url).resume() takes it up.",
                request=self._host.request,
            )
        end = self._end or _GIVEN_UP
        by_event = self._call.reads_events and not self._call.reads_json
        content = as_event(self.encode_reply()) if by_event else self.encode_reply()
        kind = "text/event-stream" if by_event else "application/json"
        headers = {"content-type": kind, "content-length": str(len(content))}
        if end.challenge:
            headers["www-authenticate"] = end.challenge
        status = 200 if self._calls_again(end) else end.status
        return library.Response(status, headers=headers, stream=self._calls.body_class(self, content))

    def take_reply(self, request_id: object, reply: Reply) -> bool:
        """Take the host's reply to a question. Returns whether this call has asked it."""
        return self.stream is not None and self.stream.take_reply(request_id, reply)

    # ── making the call ───────────────────────────────────────────────────────────────────────

    async def _make(self) -> None:
        """Make the call, and see it through to its end, unless it is given up."""
        call, host = self._call, self._host
        tool_call, listeners = replace(call.tool_call, context=host), list[OnUpdate]()
        if self.stream is not None and call.progress_token is not None:
            progress = Progress(call.progress_token, self.stream.send)
            listeners.append(progress.tell)
            if not self.server.is_older:
                meta = {**(tool_call.meta or {}), "progressToken": call.progress_token}
                tool_call = replace(tool_call, meta=meta, hear=progress.hear)
        call = replace(call, tool_call=tool_call, record_id=host.record_id or call.record_id)
        self._calls.begin(self)
        try:
            with self.scope, self._calls.work():
                made = await self._calls.host_calls.make(call, self.server.endpoint, listeners)
                self._end = _End(made)
        except CredentialRefusedError as error:
            self._end = self._refuse(error)
        finally:
            self._calls.end(self)

    def _refuse(self, error: CredentialRefusedError) -> _End:
        """The end for a refused credential. The host's auth flow may send the request again."""
        record_id = self._call.record_id
        if error.handle is not None and error.handle.task_id is not None:
            record_id = error.handle.reference["record_id"]
        self._host.note_refusal(record_id)
        return _End(MadeCall(as_rpc_error(error)), error.http_status or 401, error.challenge, record_id)

    # ── the reply ─────────────────────────────────────────────────────────────────────────────

    def encode_reply(self) -> bytes:
        """The reply to the host, once the call has ended."""
        end = self._end or _GIVEN_UP
        reply = end.made.reply
        if self._calls_again(end):
            reply = questions_for({}, state=None, record_id=end.record_id)
        return encode_reply(self._call.request_id, reply)

    def _calls_again(self, end: _End) -> bool:
        """True if a result without questions tells the session to call again, in place of 401 or 403.

        The auth flow gets that status as the reply to the next call. In this one it is too late for a status
        if the event stream has begun, or if the credential was renewed, accepted, and has expired again: an
        auth flow sends a request again only once.
        """
        is_too_late = self.stream is not None or (
            self._was_refused and self._calls.servers.requests.has_accepted(self._host)
        )
        return end.record_id is not None and is_too_late and self._call.is_current

    async def close(self, *, is_read: bool) -> None:
        """End the call, if it has not ended. A reply that the host has read delivers the outcome."""
        if self.stream is not None and not self.stream.over:
            self.scope.cancel()
            await run_to_its_end(self.stream.wait)
        if self._end is not None and is_read:
            self._end.made.deliver()
        elif self._end is not None:
            await self._end.made.drop()


class _Body(AsyncIterator[bytes]):
    """The body of the response to a call, which is closed with it.

    ``content`` is the whole body; ``None`` is the events of the call's stream, and then the reply.
    """

    def __init__(self, call: _HttpCall, content: bytes | None) -> None:
        self._call = call
        self._rest = None if content is None else [content]

    async def __anext__(self) -> bytes:
        if self._rest is None:
            assert self._call.stream is not None
            event = await self._call.stream.next()
            if event is not None:
                return event
            event = as_event(self._call.encode_reply())
            # In two pieces: a session that refuses an event for its size does not take the second.
            self._rest = [event[:-1], event[-1:]]
        if not self._rest:
            raise StopAsyncIteration
        return self._rest.pop(0)

    async def aclose(self) -> None:
        """End the call, if it has not ended, and note whether the host has read its outcome."""
        await self._call.close(is_read=self._rest == [])
