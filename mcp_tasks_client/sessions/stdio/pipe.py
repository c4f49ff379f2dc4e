"""JSON-RPC with one process: requests of ours with their replies, and messages of the server's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio

from ...errors import ConnectionLostError
from ...protocol import JSONObject, RequestId
from ...protocol.replies import Reply, RpcError, read_rpc_error
from ..awaited import Awaited, UnreadReplyError
from ..json_text import encode_json, parse_json
from ..oddities import note_oddity
from ..request_errors import RequestErrors
from .lines import Line
from .process import ServerProcess
from .stdio_server import StdioServer

__all__ = ["NotStartedError", "Pipe", "encode_message"]

_CANCEL_S: Final = 5.0
"""Seconds that a ``notifications/cancelled`` may take to leave."""

_MOST_ENDS: Final = 3
"""Polls in a row during which the process ends, after which polling ends."""

_CANCELLED: Final = "notifications/cancelled"
_ID: Final = re.compile(rb'"id"\s*:\s*"([0-9a-f]+)"')


class NotStartedError(ConnectionLostError):
    """A process could not be started, or has not answered in time, or has ended before its first answer.

    Attributes:
        may_want_initialize: Whether it ended after a first message that was not ``initialize``.
    """

    may_want_initialize = False


class _NotSentError(Exception):
    pass


class Pipe:
    """A process that is spoken to. :meth:`run` is its life.

    Args:
        server: How the process is started.
        name: The server's, for the log.
        max_bytes: Bytes of one message of the server, at most.

    Attributes:
        hear: Called with each request and notification of the server.
        when_over: Called once, when nothing more can be sent.
        has_answered: Whether the server has sent a message.
    """

    def __init__(self, server: StdioServer, name: str, max_bytes: int) -> None:
        self.hear: Callable[[JSONObject], None] = lambda message: None
        self.when_over: Callable[[], None] = lambda: None
        self.has_answered = False
        self._server = server
        self._name = name
        self._max_bytes = max_bytes
        self._process = ServerProcess(server, name, max_bytes, self._take)
        self._awaited = Awaited()

    @property
    def is_over(self) -> bool:
        """True if nothing more can be sent."""
        return self._process.over.is_set()

    async def run(self) -> None:
        """Start the process, and return when it has ended."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._note_end)
            await self._process.run()

    async def _note_end(self) -> None:
        await self._process.over.wait()
        self.when_over()
        await self._process.ended.wait()
        self._awaited.end()

    def stop(self) -> None:
        """Have the process end."""
        self._process.stop()

    async def wait(self) -> None:
        """Return when the process has ended."""
        await self._process.ended.wait()

    # ── to the process ────────────────────────────────────────────────────────────────────────

    async def greet(self, errors: RequestErrors, line: bytes, request_id: RequestId) -> Reply:
        """Send the first request to a process, and wait for its reply. A process that gives none is ended.

        Raises:
            NotStartedError: There is no reply; ``not_executed``.
            RemoteProtocolError: It is too large.
        """
        limit_s, reply = self._server.start_timeout_s, None
        with suppress(_NotSentError):
            reply = await self._exchange(errors, line, request_id, limit_s)
        if reply is not None:
            return reply
        ends_by_itself = self.is_over
        self.stop()
        await self.wait()
        why = self._process.how if ends_by_itself else f"it gave no answer within {limit_s:g} seconds"
        error = NotStartedError(
            f"The server did not start: {errors.quote(why).rstrip('.')}. See that its command is right.",
            not_executed=True,
        )
        error.may_want_initialize = (
            ends_by_itself and self._process.was_started and errors.method != "initialize"
        )
        raise error

    async def request(
        self, errors: RequestErrors, line: bytes, request_id: RequestId, timeout_s: float | None
    ) -> Reply:
        """Send a request, and wait for its reply; without a ``timeout_s`` for as long as the process lives.

        Raises:
            ConnectionLostError: No reply came in time, or the process has ended.
            RemoteProtocolError: The reply is too large.
        """
        try:
            reply = await self._exchange(errors, line, request_id, timeout_s)
        except _NotSentError:
            await self.wait()
            raise ConnectionLostError(
                f"{errors.method} was not sent: the server's process is gone: {self._how(errors)}. The next "
                "request starts it again.",
                retryable=True,
                not_executed=True,
            ) from None
        if reply is not None:
            return reply
        if not self.is_over:
            assert timeout_s is not None
            raise errors.timed_out(timeout_s)
        await self.wait()
        error = errors.lost(f"the server's process is gone: {self._how(errors)}")
        error.patience = _MOST_ENDS, 0.0
        raise error

    async def take_back(self, request_id: RequestId) -> None:
        """Tell the server that a reply has no reader, even if the caller is cancelled meanwhile."""
        reason = "The client does not wait for the reply any more."
        with anyio.move_on_after(_CANCEL_S, shield=True):
            await self.send({"method": _CANCELLED, "params": {"requestId": request_id, "reason": reason}})

    async def send(self, fields: JSONObject) -> bool:
        """Send a message that has no reply. Returns whether the process was there for it.

        Raises:
            ValueError: The fields have no JSON form.
            TypeError: The fields hold something that has no JSON form.
        """
        return await self._process.send(encode_message(fields))

    def _how(self, errors: RequestErrors) -> str:
        return errors.quote(self._process.how).rstrip(".")

    async def _exchange(
        self, errors: RequestErrors, line: bytes, request_id: RequestId, timeout_s: float | None
    ) -> Reply | None:
        async def send() -> None:
            if not await self._process.send(line):
                raise _NotSentError

        try:
            return await self._awaited.ask(request_id, send, timeout_s)
        except UnreadReplyError:
            raise errors.too_large(self._max_bytes, None) from None

    # ── from the process ──────────────────────────────────────────────────────────────────────

    def _take(self, line: Line) -> None:
        if not line.is_whole:
            found = _ID.search(line.content)
            if found is None or not self._awaited.take(found[1].decode(), None):
                self._pass_over("a line that is too long")
            return
        try:
            said = parse_json(line.content)
        except (ValueError, RecursionError):
            if line.content.strip():
                self._pass_over("a line that is no JSON")
            return
        if not isinstance(said, dict) or said.get("jsonrpc") != "2.0":
            self._pass_over("JSON that is no JSON-RPC message")
            return
        self.has_answered = True
        if "method" in said:
            self.hear(said)
            return
        request_id, error, result = said.get("id"), said.get("error"), said.get("result")
        if request_id is None and error is not None:
            request_id = self._awaited.only_one()  # of a server that has not read the ID, nor the request
        reply: Reply = result if isinstance(result, dict) and error is None else _read_error(error)
        if not self._awaited.take(request_id, reply):
            self._pass_over("a reply to no request")

    def _pass_over(self, content: str) -> None:
        note_oddity(self._name, f"its stdout has {content}, which is passed over")


def _read_error(error: object) -> RpcError:
    if isinstance(error, dict):
        return read_rpc_error(error)
    return RpcError(None, "neither a result nor an error that is an object", None)


def encode_message(fields: JSONObject, method: str = "a message") -> bytes:
    """A JSON-RPC message of these fields.

    Raises:
        ValueError: They hold NaN, an infinity, themselves, or more levels than Python can follow.
        TypeError: They hold something that has no JSON form.
    """
    return encode_json({"jsonrpc": "2.0", **fields}, method).encode("ascii")
