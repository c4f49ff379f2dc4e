"""A reply that a host reads as an event stream while its call still goes on.

A stream has to be read while the call goes on, so the call runs in a task of its own. The task ends with the
response: at its end, when the host closes it, or when the host's client is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import uuid4

import anyio
import anyio.lowlevel
from mcp_types import INTERNAL_ERROR

from ...aio.clock import Clock
from ...aio.own_task import spawn
from ...aio.signal import Signal, make_signal
from ...protocol import JSONObject
from ...protocol.replies import Reply, RpcError
from ...sessions.awaited import Awaited
from ..host_call import as_event, encode_message

__all__ = ["ReplyStream", "is_own_request"]

_COMMENT_S: Final = 5.0
"""Seconds of silence after which a comment is sent, so that no time-out of silence fires."""

_COMMENT: Final = b": the call goes on\n\n"

_OURS: Final = "mcp-tasks-client-"
"""Begins the IDs of our requests to hosts."""

_MOST_UNREAD: Final = 1000
"""Messages that may wait to be read. Further progress is dropped; questions are not."""


def is_own_request(request_id: object) -> bool:
    """True if the ID is that of a request of ours to a host."""
    return isinstance(request_id, str) and request_id.startswith(_OURS)


class ReplyStream:
    """The events of one reply, among them requests to the host, as before 2026-07-28.

    ``work`` makes the call, and raises only if it is cancelled natively. The clock times comments.
    """

    def __init__(self, work: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self._unread: deque[bytes] = deque()
        self._changed: Signal = anyio.Event()
        self._over = anyio.Event()
        self._asked = Awaited()
        self._task: object = None  # an event loop holds its tasks weakly

    @property
    def over(self) -> bool:
        """Whether the call has ended."""
        return self._over.is_set()

    @property
    def begun(self) -> bool:
        """Whether there is anything to read."""
        return bool(self._unread)

    def send(self, message: JSONObject) -> None:
        """Give the host a message."""
        if len(self._unread) < _MOST_UNREAD or "id" in message:
            self._unread.append(as_event(encode_message(message)))
            self._changed.set()

    async def ask(self, request: JSONObject) -> Reply:
        """The host's reply to a request of the server's."""
        request_id = f"{_OURS}{uuid4().hex}"
        message: JSONObject = {"jsonrpc": "2.0", "id": request_id, "method": request.get("method")}
        if "params" in request:
            message["params"] = request["params"]

        async def send() -> None:
            self.send(message)

        reply = None
        try:
            if not self.over:
                reply = await self._asked.ask(request_id, send, None)
        except anyio.get_cancelled_exc_class():  # there is another answer, or another process may ask
            params = {"requestId": request_id, "reason": "The question needs no answer here any more."}
            self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
            raise
        return RpcError(INTERNAL_ERROR, "the host's request has ended", None) if reply is None else reply

    def take_reply(self, request_id: object, reply: Reply) -> bool:
        """Take the host's reply to :meth:`ask`. Returns whether it was asked on this stream."""
        return self._asked.take(request_id, reply)

    # ── the task of the call ──────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Begin the call, and return when there is something to read, or the call has ended."""
        self._changed = make_signal()
        # The host may read the response after all its task groups have ended.
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

    def _end(self, _: object = None) -> None:
        self._over.set()
        self._changed.set()
        self._asked.end()

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
