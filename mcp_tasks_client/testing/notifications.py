"""``subscriptions/listen``: the notifications that a scripted server sends, and their faults.

The session or the HTTP application plays a :class:`Stream` to the client, on the server's clock. It waits
until one of its tasks changes by itself, and is woken when a request has changed one.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import anyio

from ..aio.clock import Clock
from ..protocol import JSONObject
from .faults import RefusedError
from .timeline import Timeline
from .witness import Ending, Listening, Witness

__all__ = ["LISTEN", "Notifies", "Stream"]

LISTEN: Final = "subscriptions/listen"

SendMessage: TypeAlias = Callable[[JSONObject], Awaitable[None]]
"""Carries one JSON-RPC notification to the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifies:
    """How a server answers ``subscriptions/listen``. With the defaults it keeps all its promises.

    A stream acknowledges the tasks that it will tell of. It then sends a snapshot of a task whenever
    anything but its times has changed. Faults of the request itself come before the stream, by
    ``misbehave`` and ``on_request``, as for any request.
    """

    at_most: int | None = None
    """How many tasks one stream acknowledges, the first ones that were asked for. 0 tells of none."""

    ends_after: int | None = None
    """Notifications after which the stream ends with its result. 0 ends right after the acknowledgement."""

    breaks_after: int | None = None
    """Notifications after which the connection breaks."""

    method: str = "notifications/tasks"
    """The notification. Formerly ``notifications/tasks/status``."""

    distort: Callable[[JSONObject], Iterable[JSONObject]] = lambda params: (params,)
    """Turns the params of each notification into those that are sent in its place, such as the same ones
    twice, late, without the result, of another task, or not at all."""

    def __post_init__(self) -> None:
        for name in ("at_most", "ends_after", "breaks_after"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} must be 0 or more, got {value}")


class Stream:
    """One answer to ``subscriptions/listen``, ready to be played.

    Args:
        notifies: How the stream goes.
        task_ids: The tasks that the client asked for.
        tasks: Those of them that the server knows, by ID.
        clock: The server's.
        witness: Told of every notification that leaves.
        playing: The server's streams. Holds this one while it is played.
    """

    def __init__(
        self,
        notifies: Notifies,
        task_ids: Sequence[str],
        tasks: Mapping[str, Timeline],
        clock: Clock,
        witness: Witness,
        playing: set[Stream],
    ) -> None:
        self._notifies = notifies
        self._clock = clock
        self._witness = witness
        self._playing = playing
        self._woken = anyio.Event()
        self._cut = False
        self._count = 0
        now = clock.monotonic()
        agreed = [task_id for task_id in dict.fromkeys(task_ids) if task_id in tasks][: notifies.at_most]
        self._tasks = {task_id: tasks[task_id] for task_id in agreed}
        self._seen = {task_id: task.visible(now) for task_id, task in self._tasks.items()}
        self.log = Listening(task_ids=tuple(task_ids), agreed=tuple(agreed), began_at=now)
        """The witness's entry of this stream."""

    def wake(self) -> None:
        """Look at the tasks again, because a request may have changed one."""
        self._woken.set()

    def cut(self) -> None:
        """Break the connection."""
        self._cut = True
        self._woken.set()

    async def play(self, send: SendMessage) -> Ending:
        """Send the notifications that are due, until the stream is over."""
        self._witness.listenings.append(self.log)
        self._playing.add(self)
        self.log.began_at = self._clock.monotonic()
        ending: Ending = "left"  # holds if this is cancelled
        try:
            ending = await self._play(send)
        finally:
            self._playing.discard(self)
            self.log.ending, self.log.ended_at = ending, self._clock.monotonic()
        return ending

    async def _play(self, send: SendMessage) -> Ending:
        agreed: JSONObject = {"taskIds": list(self.log.agreed)} if self.log.agreed else {}
        await send(_notification("notifications/subscriptions/acknowledged", {"notifications": agreed}))
        while True:
            self._woken = anyio.Event()
            for params in self._news():
                if self._ending() is not None:
                    break
                self._count += 1
                self._witness.note_notification(self.log, params, self._clock.monotonic())
                await send(_notification(self._notifies.method, params))
            ending, now = self._ending(), self._clock.monotonic()
            if ending is not None:
                return ending
            due = min((task.changes_at(now) for task in self._tasks.values()), default=math.inf)
            await self._clock.wait(self._woken, None if math.isinf(due) else due - now)

    def _ending(self) -> Ending | None:
        if self._cut or _reached(self._count, self._notifies.breaks_after):
            return "broken"
        return "in order" if _reached(self._count, self._notifies.ends_after) else None

    def _news(self) -> Iterator[JSONObject]:
        """The params of the notifications that are due."""
        now = self._clock.monotonic()
        for task_id, task in list(self._tasks.items()):
            try:
                task.catch_up(now)
            except RefusedError:
                del self._tasks[task_id]  # nothing is told of a task that is gone
                continue
            if self._seen[task_id] != task.visible(now):
                self._seen[task_id] = task.visible(now)
                yield from self._notifies.distort(task.describe(now))


def _reached(count: int, limit: int | None) -> bool:
    return limit is not None and count >= limit


def _notification(method: str, params: JSONObject) -> JSONObject:
    return {"jsonrpc": "2.0", "method": method, "params": params}
