"""``subscriptions/listen``: a stream on which a server tells of tasks, for as long as it likes.

Two rooms. :class:`Subscription` knows what the messages mean and nothing of how they travel, so that a
session without HTTP can use it too. The other has them read from the response, which is endless, and gives
it up for its silence, not for its length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import anyio

from ..wire import JSONObject, MalformedError, Task, read_task
from .channel import HttpChannel, Message
from .event_stream import read_messages
from .replies import Reply
from .transport import Response

__all__ = ["LISTEN", "LISTEN_SILENCE_S", "Subscription", "listen", "listen_params"]

LISTEN: Final = "subscriptions/listen"

LISTEN_SILENCE_S: Final = 300.0
"""Seconds without a line, from the acknowledgement on, after which a stream counts as broken."""

_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_OF_TASKS: Final = frozenset({"notifications/tasks", "notifications/tasks/status"})


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
        if "id" in message:
            return  # a request, which no server may send here
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
        return await read_messages(response, message, subscription.notified, max_bytes, alive)

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
