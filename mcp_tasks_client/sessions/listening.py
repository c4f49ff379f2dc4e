"""``subscriptions/listen``: a stream on which a server tells of tasks, for as long as it likes.

Two rooms. :class:`Subscription` knows what the messages mean and nothing of how they travel, so that a
session without HTTP can use it too. The rest reads them from an event stream, which unlike the reply to
any other request is endless: each event is bounded and the stream is not, and it is given up for its
silence, not for its length. So it has a reader of its own, that is fed and never waits: no generator is
ever left half-way, whenever the stream is let go.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import anyio

from ..errors import RemoteProtocolError
from ..wire import JSONObject, MalformedError, Task, read_task
from .bodies import DRAIN_S, encodings_of, run_out
from .channel import HttpChannel, Message
from .faults import Faults
from .replies import Reply, is_event_stream, parse, read_reply, reply_in
from .transport import Response

__all__ = ["LISTEN", "LISTEN_SILENCE_S", "Subscription", "listen", "listen_params"]

LISTEN: Final = "subscriptions/listen"

LISTEN_SILENCE_S: Final = 300.0
"""Seconds without a line, from the acknowledgement on, after which a stream counts as broken."""

_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_OF_TASKS: Final = frozenset({"notifications/tasks", "notifications/tasks/status"})
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


def listen_params(task_ids: Sequence[str]) -> JSONObject:
    """``params`` of the request, without ``_meta``.

    Source: Tasks extension, "Task Status Notifications".
    """
    return {"notifications": {"taskIds": list(task_ids)}}


class Subscription:
    """What one listener asked for, and whom to tell what has come of it.

    Args:
        task_ids: Whose changes were asked for.
        agreed: Called once, with those of them that the server has agreed to tell of.
        heard: Called with each snapshot that comes.

    Attributes:
        acknowledged: Whether ``agreed`` has been called.
    """

    def __init__(
        self, task_ids: Sequence[str], agreed: Callable[[frozenset[str]], None], heard: Callable[[Task], None]
    ) -> None:
        self.acknowledged = False
        self._task_ids = frozenset(task_ids)
        self._agreed = agreed
        self._heard = heard

    def notified(self, message: JSONObject) -> None:
        """Take a notification. One that says nothing to us, or makes no sense, is ignored."""
        method, params = message.get("method"), message.get("params")
        if method == _ACKNOWLEDGED:
            self._acknowledge(self._task_ids & _ids_in(params))
        elif method in _OF_TASKS:
            try:
                task = read_task(params)
            except MalformedError:
                return
            self._heard(task)

    def ended(self) -> None:
        """Take note that nothing more will come, though nothing is wrong."""
        self._acknowledge(frozenset())

    def _acknowledge(self, task_ids: frozenset[str]) -> None:
        if not self.acknowledged:
            self.acknowledged = True
            self._agreed(task_ids)


def _ids_in(params: object) -> frozenset[str]:
    """The ``taskIds`` of an acknowledgement; none, unless they are a list of strings."""
    notifications = params.get("notifications") if isinstance(params, dict) else None
    task_ids = notifications.get("taskIds") if isinstance(notifications, dict) else None
    if not isinstance(task_ids, list) or not all(isinstance(one, str) for one in task_ids):
        return frozenset()
    return frozenset(task_ids)


async def listen(
    channel: HttpChannel, message: Message, subscription: Subscription, timeout_s: float, max_bytes: int
) -> None:
    """Send the request, and pass on what is told until the server ends it in order.

    Args:
        channel: Sends it.
        message: The request.
        subscription: Told of everything, in our own task.
        timeout_s: Seconds of silence until the acknowledgement; twice as many in all.
        max_bytes: Bytes of one event, or of a reply that is no stream, at most.

    Raises:
        SessionError: The server refused, or the stream broke or fell silent.
    """
    latest = anyio.current_time() + 2 * timeout_s

    async def read(response: Response) -> Reply:
        return await _read(response, message, subscription, max_bytes, alive)

    def alive() -> None:
        now = anyio.current_time()
        # A server that pings and never comes to the point is not waited for either.
        silence.deadline = (
            now + LISTEN_SILENCE_S if subscription.acknowledged else min(now + timeout_s, latest)
        )

    with anyio.CancelScope() as silence:
        alive()
        # The transport's own time-out counts bytes, so that it always has the longer patience.
        await channel.exchange(message, read, 2 * (LISTEN_SILENCE_S + timeout_s))
        subscription.ended()
    if silence.cancelled_caught:
        raise message.faults.fell_silent()


async def _read(
    response: Response,
    message: Message,
    subscription: Subscription,
    max_bytes: int,
    alive: Callable[[], None],
) -> Reply:
    """The reply that ends the stream, or that came in place of one."""
    faults = message.faults
    if not (is_event_stream(response) and 200 <= response.status < 300):
        return await read_reply(response, message.request_id, max_bytes, faults)
    events = _Events(max_bytes, response.status, faults)
    if response.content is not None:
        reply = _take(events.fed(response.content), message, subscription, response.status)
        return _last(events, message, subscription, response.status) if reply is None else reply
    if encodings_of(response):
        raise faults.wrong_encoding(response.status)
    return await _follow(response, message, subscription, events, alive)


async def _follow(
    response: Response,
    message: Message,
    subscription: Subscription,
    events: _Events,
    alive: Callable[[], None],
) -> Reply:
    chunks, patience_s = response.chunks(), 0.0
    try:
        async for chunk in chunks:
            reply = _take(events.fed(chunk), message, subscription, response.status)
            if reply is not None:
                patience_s = DRAIN_S  # its connection can then be used again
                return reply
            if events.line_ended:
                alive()
    finally:
        await run_out(chunks, patience_s)
    return _last(events, message, subscription, response.status)


def _take(events: Iterable[str], message: Message, subscription: Subscription, status: int) -> Reply | None:
    """Pass on what is told, up to the reply, if that is there."""
    for event in events:
        try:
            told = parse(event)
        except ValueError as error:
            raise message.faults.malformed("an event that is not JSON", status=status) from error
        if not isinstance(told, dict) or "method" not in told:
            return reply_in(told, message.request_id, status, message.faults)
        if "id" not in told:  # or it would be a request, which no server may send here
            subscription.notified(told)
    return None


def _last(events: _Events, message: Message, subscription: Subscription, status: int) -> Reply:
    """The reply in an event that lacks its end, which a stream that is over may do."""
    try:
        reply = _take(events.flushed(), message, subscription, status)
    except RemoteProtocolError:
        reply = None  # it was cut off there
    if reply is None:
        raise message.faults.ended_early(status)
    return reply


class _Events:
    """Bytes in, the data of events out, wherever the bytes were split.

    Only that of events which are whole, and of the kind that carries messages.

    Args:
        max_bytes: Bytes of one event, or of one line, at most.
        status: HTTP status, for the error.
        faults: Tells that there were more.

    Attributes:
        line_ended: Whether a line ended in what was fed last, be it a comment or an empty one.

    Source: WHATWG HTML, "Server-sent events".
    """

    def __init__(self, max_bytes: int, status: int, faults: Faults) -> None:
        self.line_ended = False
        self._max_bytes = max_bytes
        self._status = status
        self._faults = faults
        self._line = bytearray()
        self._data: list[bytes] = []
        self._kind = b""
        self._size = 0
        self._first = True
        self._after_cr = False

    def fed(self, chunk: bytes) -> Iterator[str]:
        """What has become whole by these bytes.

        Raises:
            RemoteProtocolError: An event is too large.
        """
        self.line_ended = False
        if not chunk:
            return
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")  # the other half of a line's end
        self._after_cr = chunk.endswith(b"\r")
        begun, *others = _LINE_END.split(chunk)
        self._extend(begun)
        for part in others:
            yield from self._end_line()
            self._extend(part)

    def flushed(self) -> Iterator[str]:
        """What is left when no more bytes will come, as if it were whole."""
        yield from self.fed(b"\n\n")

    def _extend(self, part: bytes) -> None:
        self._line += part
        if len(self._line) + self._size > self._max_bytes:
            raise self._faults.too_large(self._max_bytes, self._status)

    def _end_line(self) -> Iterator[str]:
        line = bytes(self._line)
        self._line.clear()
        self.line_ended = True
        if self._first:
            line, self._first = line.removeprefix(codecs.BOM_UTF8), False  # it is no part of the stream
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
                self._size += len(value) + 1
            case b"event":
                self._kind = value
            case b"" if not line:
                yield from self._end_event()
            case _:
                pass  # a comment, or a field that says nothing to us

    def _end_event(self) -> Iterator[str]:
        data, kind = b"\n".join(self._data), self._kind
        self._data.clear()
        self._kind, self._size = b"", 0
        if kind in (b"", b"message") and data.strip():
            yield data.decode("utf-8", "replace")
