"""A session with a scripted server in memory: no HTTP, and the same errors as over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint
from mcp_types import Tool

from ..aio.clock import Clock
from ..errors import ConnectionLostError, SessionError
from ..protocol import JSONObject
from ..protocol.replies import RpcError
from ..questions.context import CallContext
from ..sessions.base import BeforeSend, Limits, ObservedTasks
from ..sessions.request_errors import CREDENTIAL_STATUSES, RequestErrors
from ..sessions.wire import WireRequest, WireSession
from .faults import ErrorReply, Garbled, HttpError, LostReply, Reply, Unreachable
from .notifications import LISTEN, Stream
from .request_handler import RequestHandler
from .sloppy import as_sloppy_result

if TYPE_CHECKING:
    from ..sessions.http.subscription import Subscription

__all__ = ["ServerSession"]


class ServerSession(WireSession):
    """One of any number of sessions with a :class:`ScriptedServer`.

    Each request yields to the event loop before the server gets it, and again before its reply arrives,
    so that it can be cancelled on both ways. Looking up a tool sends no request.

    Attributes:
        clock: The server's.
    """

    def __init__(
        self, requests: RequestHandler, endpoint: str, limits: Limits, *, sloppy: bool = False
    ) -> None:
        super().__init__(endpoint, limits)
        self._sloppy = sloppy
        self.clock: Clock = requests.clock
        self._requests = requests
        self._streams: set[Stream] = set()

    async def tool(
        self, name: str, *, fresh: bool = False, context: CallContext | None = None
    ) -> Tool | None:
        """The tool as it is listed now."""
        await checkpoint()
        return self._requests.listed_tool(name)

    async def exchange(self, request: WireRequest, before_send: BeforeSend) -> JSONObject:
        """Have the server answer one request."""
        params = request.params
        if request.meta:
            params = {**params, "_meta": dict(request.meta)}
        await before_send()
        reply = await self._exchange(request.method, params, patient=request.patient)
        assert isinstance(reply, dict), "only subscriptions/listen is answered with a stream"
        return reply

    async def run(self, observed: ObservedTasks) -> None:
        """Deliver the server's notifications of ``subscriptions/listen``, on its clock, as over HTTP."""
        # Imported on use, because it imports an HTTP library.
        from ..sessions.http.subscription import keep_subscribed

        await keep_subscribed(self._listen, observed, self.clock.sleep)

    async def _listen(self, subscription: Subscription) -> None:
        from ..sessions.http.subscription import listen_params

        stream = await self._exchange(LISTEN, listen_params(subscription.task_ids))
        assert isinstance(stream, Stream), "subscriptions/listen is answered with a stream or an error"

        async def take(message: JSONObject) -> None:
            await checkpoint()
            subscription.take(message)

        self._streams.add(stream)
        try:
            if await stream.play(take) == "broken":
                raise _error(LISTEN, None, LostReply())
        finally:
            self._streams.discard(stream)

    async def aclose(self) -> None:
        """Refuse further requests, and end the streams."""
        await super().aclose()
        for stream in self._streams:
            stream.cut()

    async def _exchange(
        self, method: str, params: JSONObject, *, patient: bool = False
    ) -> JSONObject | Stream:
        await checkpoint()
        self.check_open(method)
        timeout_s = self.limits.call_read_timeout_s if patient else self.limits.task_timeout_s
        exchange = self._requests.receive(method, params)
        if exchange.after_s:
            await self.clock.sleep(min(exchange.after_s, timeout_s))
        else:
            await checkpoint()
        if exchange.after_s >= timeout_s:
            raise ConnectionLostError(
                f"{method} had no whole reply within {timeout_s:g} seconds. Try again later.", retryable=True
            )
        reply = exchange.reply
        if isinstance(reply, dict | Stream | ErrorReply | HttpError | Garbled):
            self._requests.note_reply(exchange)
        if isinstance(reply, dict):
            return as_sloppy_result(method, reply) if self._sloppy else reply
        if isinstance(reply, Stream):
            return reply
        raise _error(method, exchange.arrival.task_id, reply)


def _error(method: str, task_id: str | None, reply: Reply) -> SessionError:
    """The error that a session over HTTP would raise for a reply that is not a result."""
    errors = RequestErrors(method, task_id)
    match reply:
        case HttpError(status, wait_s):
            return errors.for_status(status, wait_s)
        case ErrorReply(http_status=status, retry_after_s=wait_s) if status in CREDENTIAL_STATUSES:
            return errors.for_status(status, wait_s)
        case ErrorReply(code, message, data, status, wait_s):
            return errors.for_rpc_error(RpcError(code, message, data), status, wait_s)
        case Garbled():
            return errors.malformed("HTTP 200 with a page of HTML", status=200)
        case Unreachable():
            why = "connection refused. Check the URL and the network, then try again."
            return ConnectionLostError(
                f"{method} could not be sent: {why}", retryable=True, not_executed=True
            )
        case _:
            return errors.lost("the connection broke")
