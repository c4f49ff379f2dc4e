"""One MCP session at a server of 2025-11-25 that is a process of ours. It lives as long as the process."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from ...errors import ConnectionLostError
from ...protocol import JSONObject, RequestId
from ...protocol.replies import Reply, RpcError, reply_fields
from ...questions.context import CallContext
from ..stdio.current_process import CurrentProcess
from ..stdio.pipe import Pipe, encode_message
from .connection import GET_STREAM, Connection, Hear, OwnRequest, offer, read_agreed_version

__all__ = ["StdioConnection"]


class StdioConnection(Connection):
    """One MCP session over the standard streams of a process. No context is of use to it.

    The server's own messages come beside the replies, so that none is known to be about a request.

    Args:
        process: The process, which is started if it does not run.
        hear: Called with each request and notification that comes.
        timeout_s: Seconds after which a request is given up. ``tools/call``, and the ``tasks/result`` of a
            task that goes on, may take as long as the process lives.
    """

    def __init__(self, process: CurrentProcess, hear: Hear, timeout_s: float) -> None:
        super().__init__(None, timeout_s)
        self._process = process
        self._hear = hear
        self._pipe: Pipe | None = None

    async def _shake_hands(self, capabilities: JSONObject, client_info: JSONObject) -> JSONObject:
        own = offer(capabilities, client_info, self.context)
        pipe = self._pipe = await self._process.pipe(own.method)
        source = OwnRequest(GET_STREAM, context=self.context)
        pipe.hear = lambda message: self._hear(self, message, source)
        pipe.when_over = self._lose
        result = await self.request(own)
        read_agreed_version(result)
        await self.notify("notifications/initialized", {}, self.context)
        self.listening.set()
        return result

    async def request(self, own: OwnRequest) -> JSONObject:
        """The result of a request, which is sent at most once."""
        assert self._pipe is not None, "the session has begun"
        errors = self.errors_of(own)
        fields = {"id": own.request_id, "method": own.method, "params": own.params}
        line = encode_message(fields, own.method)
        if self._pipe.has_answered:
            timeout_s = self._timeout_s if own.silence_s is None else None
            reply = await self._pipe.request(errors, line, own.request_id, timeout_s)
        else:
            reply = await self._pipe.greet(errors, line, own.request_id)
        if isinstance(reply, RpcError):
            raise errors.for_rpc_error(reply)
        return reply

    async def answer(
        self, request_id: RequestId, reply: Reply, context: CallContext | None, task_id: str | None
    ) -> None:
        """Answer a request of the server's. The process has the answer unless it ends."""
        await self._send({"id": request_id, **reply_fields(reply)}, OwnRequest("an answer", task_id=task_id))

    async def notify(self, method: str, params: JSONObject, context: CallContext | None) -> None:
        """Send a notification."""
        await self._send({"method": method, "params": params}, OwnRequest(method))

    async def listen(self, context: Callable[[], CallContext | None]) -> None:
        """Return when the process ends. Messages of the server on its own account come among the replies."""
        if self._pipe is not None:
            await self._pipe.wait()

    async def _send(self, fields: JSONObject, own: OwnRequest) -> None:
        assert self._pipe is not None, "the session has begun"
        errors = self.errors_of(own)
        with anyio.move_on_after(self._timeout_s):
            if await self._pipe.send(fields):
                return
            raise ConnectionLostError(
                f"{own.method} was not sent: the server's process has ended.",
                retryable=True,
                not_executed=True,
            )
        raise errors.timed_out(self._timeout_s)

    def _lose(self) -> None:
        self.lost = True
        self.listening.set()
