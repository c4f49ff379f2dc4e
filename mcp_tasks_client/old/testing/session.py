"""A scripted server, in memory: no HTTP, and what can go wrong over it all the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
import httpx
from anyio.lowlevel import checkpoint
from mcp_types import Tool

from ..clock import Clock
from ..errors import ConnectionLostError, SessionError
from ..params import call_params, task_params
from ..sessions.base import Leaving, Session, TaskRef, ToolCall
from ..sessions.faults import CREDENTIAL_STATUSES, Faults, retry_after_s
from ..sessions.listening import LISTEN, LISTEN_SILENCE_S, Subscription, listen_params
from ..wire import (
    CallReply,
    JSONObject,
    RpcError,
    Task,
    read_call_reply,
    read_task,
)
from .faults import (
    ErrorReply,
    Garbled,
    HttpError,
    HungUp,
    LostReply,
    LostRequest,
    Reply,
    Unreachable,
    retry_after,
)
from .notifying import Stream

if TYPE_CHECKING:
    from .server import ScriptedServer

__all__ = ["ServerSession"]


class ServerSession(Session):
    """One connection to a :class:`ScriptedServer`; any number of them can be open.

    A request yields to the event loop before the server gets it, and again before its reply is had, so
    that it can be cancelled on both ways. Looking up a tool is no request.

    Attributes:
        clock: The server's.
        closed: Whether the client has closed it.
    """

    def __init__(self, server: ScriptedServer, *, task_timeout_s: float, call_read_timeout_s: float) -> None:
        self.clock: Clock = server.clock
        self.closed = False
        self._server = server
        self._task_timeout_s = task_timeout_s
        self._call_read_timeout_s = call_read_timeout_s
        self._connection = 1
        self._connected = True
        self._hung_up: anyio.Event | None = None
        self._waiting: set[anyio.Event] = set()
        self._streams: set[Stream] = set()

    @property
    def endpoint(self) -> str:
        """The server's."""
        return self._server.endpoint

    async def tool(self, name: str) -> Tool | None:
        """The tool as it is listed."""
        await checkpoint()
        return self._server.listed(name)

    async def call(self, call: ToolCall, leaving: Leaving = checkpoint) -> CallReply:
        """Send ``tools/call`` once."""
        params = call_params(
            call.name, call.arguments, input_responses=call.input_responses, request_state=call.request_state
        )
        if call.meta:
            params["_meta"] = dict(call.meta)
        self._check_open("tools/call")
        await leaving()
        return read_call_reply(await self._send("tools/call", params, self._call_read_timeout_s))

    async def get(self, ref: TaskRef) -> Task:
        """Send ``tasks/get`` once."""
        return read_task(await self._ask("tasks/get", ref))

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        """Send ``tasks/update`` once."""
        await self._ask("tasks/update", ref, answers)

    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once."""
        await self._ask("tasks/cancel", ref)

    async def listen(
        self, task_ids: Sequence[str], agreed: Callable[[frozenset[str]], None], heard: Callable[[Task], None]
    ) -> None:
        """Send ``subscriptions/listen`` once, and pass on what is told."""
        subscription = Subscription(task_ids, agreed, heard)
        reply = await self._outcome(LISTEN, listen_params(task_ids), self._task_timeout_s)
        assert isinstance(reply, Stream), "who listens gets a stream or an error"
        await self._follow(reply, subscription, Faults(LISTEN, task_ids=task_ids))

    async def watch(self, heard: Callable[[Task], None]) -> None:
        """Return when the server hangs up, once each time."""
        if self._hung_up is None:
            self._hung_up = anyio.Event()
        await self._hung_up.wait()

    def hang_up(self) -> None:
        """Close the connection from the server's side. Whatever is under way is lost."""
        self._connected = False
        self._connection += 1
        for event in (self._hung_up, *self._waiting):
            if event is not None:
                event.set()
        self._hung_up = None
        self._cut()

    def reconnect(self) -> None:
        """Connect again, after the server has hung up."""
        self._connected = True

    async def aclose(self) -> None:
        """Refuse further requests, and end what is listened to."""
        self.closed = True
        self._cut()

    async def _ask(
        self, method: str, ref: TaskRef, answers: Mapping[str, JSONObject] | None = None
    ) -> JSONObject:
        params = task_params(ref.task_id, request_state=ref.request_state, input_responses=answers)
        return await self._send(method, params, self._task_timeout_s)

    async def _follow(self, stream: Stream, subscription: Subscription, faults: Faults) -> None:
        connection = self._connection

        async def tell(message: JSONObject | None) -> None:
            await checkpoint()
            if message is not None:
                subscription.notified(message)

        self._streams.add(stream)
        try:
            ending = await stream.play(tell, LISTEN_SILENCE_S)
        finally:
            self._streams.discard(stream)
        if connection != self._connection:
            raise faults.disconnected()
        if ending == "left":
            raise faults.fell_silent()
        if ending == "broken":
            raise _error(httpx.ReadError("the connection broke"), faults)

    def _cut(self) -> None:
        for stream in self._streams:
            stream.cut()

    async def _send(self, method: str, params: JSONObject, limit_s: float) -> JSONObject:
        reply = await self._outcome(method, params, limit_s)
        assert isinstance(reply, dict), "only who listens gets a stream"
        return reply

    async def _outcome(self, method: str, params: JSONObject, limit_s: float) -> JSONObject | Stream:
        await checkpoint()
        self._check_open(method)
        connection = self._connection
        exchange = self._server.receive(method, params)
        await self._wait(min(exchange.after_s, limit_s))
        reply = exchange.reply
        if connection == self._connection and exchange.after_s < limit_s:
            if not isinstance(reply, LostRequest | LostReply | Unreachable | HungUp):
                self._server.replied(exchange)
            if isinstance(reply, dict | Stream):
                return reply
        faults = Faults(method, exchange.arrival.task_id)
        if isinstance(reply, HungUp):
            self.hang_up()
        if connection != self._connection:
            raise faults.disconnected()
        raise _error(httpx.ReadTimeout("") if exchange.after_s >= limit_s else reply, faults)

    async def _wait(self, seconds: float) -> None:
        if not seconds:
            await checkpoint()
            return
        over = anyio.Event()
        self._waiting.add(over)
        try:
            await self.clock.wait(over, seconds)
        finally:
            self._waiting.discard(over)

    def _check_open(self, method: str) -> None:
        if self.closed or not self._connected:
            what = "session is closed" if self.closed else "server has hung up; reconnect() the session"
            raise ConnectionLostError(f"{method} was not sent: the {what}.", not_executed=True)


def _as_read(wait_s: float | None) -> float | None:
    """What comes of a wait on its way through a header."""
    return retry_after_s(retry_after(wait_s).get("retry-after", ""))


def _error(reply: Reply | Stream | httpx.HTTPError, faults: Faults) -> SessionError:
    """What :class:`HttpSession` would raise."""
    match reply:
        case httpx.HTTPError():
            try:
                with faults.mapped():
                    raise reply
            except SessionError as error:
                return error
        case Unreachable():
            return _error(httpx.ConnectError("connection refused"), faults)
        case HttpError(status, wait_s):
            return faults.by_status(status, _as_read(wait_s))
        case ErrorReply(code, message, data, status, wait_s):
            if status in CREDENTIAL_STATUSES:
                return faults.by_status(status, _as_read(wait_s))
            return faults.by_code(RpcError(code, message, data), status, _as_read(wait_s))
        case Garbled():
            return faults.malformed("HTTP 200 with a body of type text/html that is not JSON", status=200)
        case _:
            return _error(httpx.ReadError("the connection broke"), faults)
