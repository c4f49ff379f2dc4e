"""``subscriptions/listen``: a stream on which a server tells of tasks, for as long as it likes.

Its messages only ever add. Polls keep their pace, so a server that promises notifications and sends
none costs nothing, and no server has to be trusted. A server that refuses is not asked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final, Literal, Protocol, TypeAlias

import anyio

from ...errors import SessionError
from ...policy import growing_delay
from ...protocol import JSONObject, MalformedError
from ...protocol.task import read_task
from ..base import GATEWAY_STATUSES, ObservedTasks, Snapshot, latest_context
from ..request_errors import TOO_MANY_REQUESTS
from .channel import HttpChannel, Message

__all__ = [
    "ACKNOWLEDGED",
    "LISTEN",
    "LONGEST_PAUSE_S",
    "LONGEST_RETRY_AFTER_S",
    "MOMENT_S",
    "DeclinedError",
    "Subscription",
    "TakesMessages",
    "is_final",
    "keep_subscribed",
    "listen_params",
    "read_subscription",
]

LISTEN: Final = "subscriptions/listen"

_MOST_TASKS: Final = 1000
"""Task IDs that one stream names, at most. Further tasks are only polled."""

MOMENT_S: Final = 1.0
"""Seconds for which tasks are observed before a stream is opened, and between one stream and the next."""

LONGEST_PAUSE_S: Final = 60.0
LONGEST_RETRY_AFTER_S: Final = 3600.0

_SILENCE_S: Final = 300.0
"""Seconds without a line, from the acknowledgement on, after which a stream counts as broken."""

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_STATUS_NOTIFICATIONS: Final = frozenset({"notifications/tasks", "notifications/tasks/status"})
"""The name of the protocol, and that of a draft, which is still seen."""

_NOT_SUPPORTED: Final = frozenset({404, 501})
_LIMITED: Final = frozenset({TOO_MANY_REQUESTS, *GATEWAY_STATUSES})


def listen_params(task_ids: frozenset[str]) -> JSONObject:
    """``params`` of the request, without ``_meta``.

    Source: Tasks extension, "Task Status Notifications".
    """
    return {"notifications": {"taskIds": sorted(task_ids)}}


class Subscription:
    """One stream, by the tasks whose changes it was asked for. The ``observed`` get each snapshot that comes.

    Attributes:
        context: With which the stream is asked for.
        acknowledged: Whether the server has agreed to tell of one of the tasks.
        delivered: Whether a snapshot has come.
    """

    def __init__(self, task_ids: frozenset[str], observed: ObservedTasks) -> None:
        self.task_ids = task_ids
        self.context = latest_context(observed.refs())
        self.acknowledged = False
        self.delivered = False
        self._observed = observed

    def take(self, message: JSONObject) -> None:
        """Take a message of the stream. One that says nothing to us, or makes no sense, is ignored.

        Raises:
            DeclinedError: The server acknowledges the subscription, and none of the tasks.
        """
        if "id" in message:
            return  # a request, which no server may send here
        method, params = message.get("method"), message.get("params")
        if method == ACKNOWLEDGED and not self.acknowledged:
            if self.task_ids.isdisjoint(_ids_in(params)):
                raise DeclinedError
            self.acknowledged = True
        elif method in _STATUS_NOTIFICATIONS:
            try:
                task = read_task(params)
            except MalformedError:
                return
            self.delivered = True
            self._observed.deliver(Snapshot(task, task.request_state))


class DeclinedError(SessionError):
    """The server acknowledges nothing that was asked for."""

    def __init__(self) -> None:
        super().__init__("The server tells of nothing that was asked for.")


class TakesMessages(Protocol):
    """One stream, as :func:`read_subscription` sees it."""

    acknowledged: bool

    def take(self, message: JSONObject) -> None:
        """Take a message of the stream, or raise :class:`DeclinedError`."""


def _ids_in(params: object) -> list[str]:
    """The ``taskIds`` of an acknowledgement; none, unless they are a list of strings."""
    notifications = params.get("notifications") if isinstance(params, dict) else None
    task_ids = notifications.get("taskIds") if isinstance(notifications, dict) else None
    if not isinstance(task_ids, list) or not all(isinstance(one, str) for one in task_ids):
        return []
    return task_ids


async def read_subscription(
    channel: HttpChannel, message: Message, subscription: TakesMessages, timeout_s: float
) -> None:
    """Send the request, and pass messages on until the server ends the stream in order.

    The subscription takes each message in the caller's own task. ``timeout_s`` are the seconds of silence
    until the acknowledgement; twice as many in all.

    Raises:
        DeclinedError: The server tells of nothing that was asked for.
        SessionError: The server refused, or the stream broke or fell silent.
    """
    latest = anyio.current_time() + 2 * timeout_s

    def prolong() -> None:
        now = anyio.current_time()
        # A server that sends comments and never acknowledges is not waited for either.
        silence.deadline = now + _SILENCE_S if subscription.acknowledged else min(now + timeout_s, latest)

    read = channel.reader(message, subscription.take, prolong)
    with anyio.CancelScope() as silence:
        prolong()
        # The transport's own time-out counts bytes, so that it must always have the longer patience.
        await channel.exchange(message, read, silence_s=2 * (_SILENCE_S + timeout_s))
    if silence.cancelled_caught:
        raise message.errors.lost("its stream fell silent, as broken connections do")
    if not subscription.acknowledged:
        raise DeclinedError


async def keep_subscribed(
    open_stream: Callable[[Subscription], Awaitable[None]],
    observed: ObservedTasks,
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Keep one stream open for the tasks that are observed. Returns when the server offers none.

    A stream that breaks is opened again after a pause, which doubles up to a minute as long as no snapshot
    comes. A stream that lacks an observed task is replaced. ``open_stream`` reads one stream to its end, and
    raises as :func:`read_subscription` does.
    """
    pause_s, failures = MOMENT_S, 0
    while True:
        while not observed.refs():
            await observed.changed()
        await sleep(pause_s)
        task_ids = _choose(observed)
        if not task_ids:
            continue
        subscription = Subscription(task_ids, observed)
        match await _read_until_outgrown(open_stream, subscription, observed, sleep):
            case "outgrown":
                pause_s = 0.0
                continue
            case "ended":
                asked_s = 0.0
            case error:
                if is_final(error):
                    return
                asked_s = min(error.retry_after_s or 0.0, LONGEST_RETRY_AFTER_S)
        failures = 1 if subscription.delivered else failures + 1
        pause_s = max(growing_delay(MOMENT_S, failures, LONGEST_PAUSE_S), asked_s)


_Outcome: TypeAlias = SessionError | Literal["outgrown", "ended"]


async def _read_until_outgrown(
    open_stream: Callable[[Subscription], Awaitable[None]],
    subscription: Subscription,
    observed: ObservedTasks,
    sleep: Callable[[float], Awaitable[None]],
) -> _Outcome:
    outcome: _Outcome = "outgrown"

    async def watch() -> None:
        while _choose(observed) <= subscription.task_ids:
            await observed.changed()
            await sleep(MOMENT_S)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            await open_stream(subscription)
            outcome = "ended"
        except SessionError as error:
            outcome = error
        tasks.cancel_scope.cancel()
    return outcome


def _choose(observed: ObservedTasks) -> frozenset[str]:
    return frozenset(islice(observed.refs(), _MOST_TASKS))


def is_final(error: SessionError) -> bool:
    """Whether the server has refused, rather than been unreachable for a while."""
    if not error.retryable or error.http_status in _NOT_SUPPORTED:
        return True
    return error.code is not None and error.http_status not in _LIMITED
