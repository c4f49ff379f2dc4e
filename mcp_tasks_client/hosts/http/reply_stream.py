"""A reply that a host reads as an event stream while its call still goes on.

A stream has to be read while the call goes on, so the call runs in a task of its own. The task ends with the
response: at its end, when the host closes it, or when the host's client is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

import anyio
import anyio.lowlevel
from mcp_types import INTERNAL_ERROR

from ...aio.clock import Clock
from ...aio.own_task import spawn
from ...aio.signal import Signal, make_signal
from ...protocol import JSONObject
from ...protocol.replies import Reply, RpcError, read_rpc_error
from ..host_call import as_event, encode_message

__all__ = ["ReplyStream", "StreamedQuestions"]

_COMMENT_S: Final = 5.0
"""Seconds of silence after which a comment is sent, so that no time-out of silence fires."""

_COMMENT: Final = b": the call goes on\n\n"

_OURS: Final = "mcp-tasks-client-"
"""Begins the IDs of our requests to hosts."""

_MOST_UNREAD: Final = 1000
"""Messages that wait to be read, at most, but for questions. Progress beyond that is not told."""


class ReplyStream:
    """The events of one reply.

    ``work`` makes the call, and never raises but when it is cancelled natively. The clock times comments.
    """

    def __init__(self, work: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self._unread: deque[bytes] = deque()
        self._changed: Signal = anyio.Event()
        self._over = anyio.Event()
        self._asked: list[anyio.Event] = []
        self._task: object = None  # an event loop holds its tasks weakly

    @property
    def over(self) -> bool:
        """Whether the call has ended."""
        return self._over.is_set()

    @property
    def begun(self) -> bool:
        """Whether there is anything to read."""
        return bool(self._unread)

    async def answered(self, came: anyio.Event) -> None:
        """Return when an answer of the host's has come, or none can come any more."""
        self._asked.append(came)
        try:
            if not self.over:
                await came.wait()
        finally:
            self._asked.remove(came)

    def send(self, message: JSONObject) -> None:
        """Give the host a message."""
        if len(self._unread) < _MOST_UNREAD or "id" in message:
            self._unread.append(as_event(encode_message(message)))
            self._changed.set()

    # ── the task of the call ──────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Begin the call, and return when there is something to read, or the call has ended."""
        self._changed = make_signal()
        # No block of the host's outlasts the reading of the response.
        self._task = spawn(self._run, self._end)
        while not (self.over or self._unread):
            await self._wait_for_change(None)

    async def wait(self) -> None:
        """Return when the call has ended."""
        await self._over.wait()

    async def _run(self) -> None:
        try:
            await self._work()
        finally:
            self._end()

    def _end(self) -> None:
        self._over.set()
        self._changed.set()
        for came in self._asked:
            came.set()

    # ── the reading ───────────────────────────────────────────────────────────────────────────

    async def next(self) -> bytes | None:
        """The next event or comment; ``None`` once the call has ended and all was read."""
        if not self._unread and not self.over:
            await self._wait_for_change(_COMMENT_S)
        if self._unread:
            return self._unread.popleft()
        return None if self.over else _COMMENT

    async def _wait_for_change(self, limit_s: float | None) -> None:
        self._changed = make_signal()
        await self._clock.wait(self._changed, limit_s)


class StreamedQuestions:
    """The server's questions, put to hosts by requests on the streams of replies, as before 2026-07-28."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[anyio.Event, list[Reply]]] = {}

    async def ask(self, stream: ReplyStream, request: JSONObject) -> Reply:
        """The host's reply to a request."""
        request_id = f"{_OURS}{uuid4().hex}"
        came, answer = self._asked[request_id] = anyio.Event(), list[Reply]()
        message: JSONObject = {"jsonrpc": "2.0", "id": request_id, "method": request.get("method")}
        if "params" in request:
            message["params"] = request["params"]
        try:
            stream.send(message)
            await stream.answered(came)
        except anyio.get_cancelled_exc_class():  # somebody else has answered, or another process may ask
            params = {"requestId": request_id, "reason": "The question needs no answer here any more."}
            stream.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
            raise
        finally:
            del self._asked[request_id]
        return answer[0] if answer else RpcError(INTERNAL_ERROR, "the host's request has ended", None)

    def take(self, message: JSONObject) -> bool:
        """Take a message of the host's, if it is a reply to one of our requests. A late one goes nowhere."""
        request_id: Any = message.get("id")
        if "method" in message or not (isinstance(request_id, str) and request_id.startswith(_OURS)):
            return False
        if request_id not in self._asked:
            return True
        came, answer = self._asked[request_id]
        result = message.get("result")
        answer.append(result if isinstance(result, dict) else read_rpc_error(message.get("error")))
        came.set()
        return True
