"""How a scripted server answers ``subscriptions/listen``: what it tells of tasks, and what it gets wrong.

A stream is played in the task of whoever carries it to the client, on the server's clock. It waits for the
next moment at which one of its tasks will change by itself, and is stirred when a request changes one.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import anyio

from ..clock import Clock
from ..wire import JSONObject
from .faults import RefusedError
from .timeline import Timeline
from .witness import Ending, Listening, Witness

__all__ = ["Notifies", "Stream"]

Tell: TypeAlias = Callable[[JSONObject | None], Awaitable[None]]
"""Carries a JSON-RPC notification to the client; ``None`` is a sign of life without words."""

_PAYLOADS: Final = frozenset({"result", "error", "inputRequests"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifies:
    """How ``subscriptions/listen`` is answered; as it is, by a server that keeps its word.

    Each stream acknowledges the tasks that it will tell of, and sends a snapshot of one whenever anything
    but its times has changed since the last. What can go wrong with any request can with this one too, by
    ``misbehave`` and ``on_request``, before the stream begins.
    """

    at_most: int | None = None
    """Tasks of one stream; the first ones that were asked for. 0 acknowledges without ``taskIds``."""

    silent: bool = False
    """Acknowledge, and never tell anything."""

    ends_after: int | None = None
    """Notifications of tasks after which the stream ends in order; 0 is right after the acknowledgement."""

    breaks_after: int | None = None
    """Notifications of tasks after which the connection breaks."""

    breaks_after_s: float | None = None
    """Seconds after which the connection breaks."""

    method: str = "notifications/tasks"
    """Formerly ``notifications/tasks/status``."""

    payloads: bool = True
    """Whether a snapshot has its ``result``, its ``error`` or its ``inputRequests``."""

    twice: bool = False
    """Send each notification two times."""

    swapped: bool = False
    """Hold every other one back, and send it after the next; a last one is never sent."""

    foreign: Sequence[str] = ()
    """IDs of others' tasks: before each notification, the same is told of each of them."""

    ping_s: float | None = 60.0
    """Seconds of silence after which a sign of life is sent; ``None`` for never."""

    def __post_init__(self) -> None:
        for name in ("at_most", "ends_after", "breaks_after", "breaks_after_s"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} must be 0 or more, got {value}")
        if self.ping_s is not None and not self.ping_s > 0:
            raise ValueError(f"ping_s must be more than 0, got {self.ping_s}")


class Stream:
    """One answer to ``subscriptions/listen``, ready to be played.

    Args:
        notifies: How.
        task_ids: What was asked for.
        tasks: Those of them that the server knows, by ID.
        clock: Whose time it is in.
        witness: Told of everything that leaves.
        playing: Where it is to be found while it plays.
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
        self._stirred = anyio.Event()
        self._cut = False
        self._count = 0
        self._held: JSONObject | None = None
        now = clock.monotonic()
        agreed = [task_id for task_id in dict.fromkeys(task_ids) if task_id in tasks][: notifies.at_most]
        self._tasks = {task_id: tasks[task_id] for task_id in agreed}
        self._faces = {task_id: task.face(now) for task_id, task in self._tasks.items()}
        self.log = Listening(task_ids=tuple(task_ids), agreed=tuple(agreed), began_at=now)
        """What the witness has of it."""

    def stir(self) -> None:
        """Look once more: something has happened to a task."""
        self._stirred.set()

    def cut(self) -> None:
        """Break the connection."""
        self._cut = True
        self._stirred.set()

    async def play(self, tell: Tell, patience_s: float = math.inf) -> Ending:
        """Tell what there is to tell, until the stream is over.

        Args:
            tell: Carries it to the client.
            patience_s: Seconds of silence after which the client leaves.
        """
        self._witness.listenings.append(self.log)
        self._playing.add(self)
        self.log.began_at = self._clock.monotonic()
        ending: Ending = "left"  # unless we get to know better, we are cancelled
        try:
            ending = await self._play(tell, patience_s)
        finally:
            self._playing.discard(self)
            self.log.ending, self.log.ended_at = ending, self._clock.monotonic()
        return ending

    async def _play(self, tell: Tell, patience_s: float) -> Ending:
        agreed: JSONObject = {"taskIds": list(self.log.agreed)} if self.log.agreed else {}
        await tell(_notification("notifications/subscriptions/acknowledged", {"notifications": agreed}))
        spoke_at = self._clock.monotonic()
        while True:
            self._stirred = anyio.Event()
            for params in self._news():
                if self._ending() is not None:
                    break
                self._note(params)
                await tell(_notification(self._notifies.method, params))
                spoke_at = self._clock.monotonic()
            ending, now = self._ending(), self._clock.monotonic()
            if ending is not None:
                return ending
            if now >= spoke_at + patience_s:
                return "left"
            if now >= self._ping_at(spoke_at):
                await tell(None)
                spoke_at = self._clock.monotonic()
            due = min(self._due(), self._ping_at(spoke_at), spoke_at + patience_s)
            await self._clock.wait(self._stirred, None if math.isinf(due) else max(0.0, due - now))

    def _ending(self) -> Ending | None:
        how = self._notifies
        if self._cut or self._clock.monotonic() >= self._breaks_at or _reached(self._count, how.breaks_after):
            return "broken"
        return "in order" if _reached(self._count, how.ends_after) else None

    @property
    def _breaks_at(self) -> float:
        after_s = self._notifies.breaks_after_s
        return math.inf if after_s is None else self.log.began_at + after_s

    def _ping_at(self, spoke_at: float) -> float:
        return math.inf if self._notifies.ping_s is None else spoke_at + self._notifies.ping_s

    def _due(self) -> float:
        """When there may be something to tell, or to break, if nobody stirs."""
        now, tasks = self._clock.monotonic(), () if self._notifies.silent else self._tasks.values()
        return min(self._breaks_at, *(task.changes_at(now) for task in tasks), math.inf)

    def _news(self) -> Iterator[JSONObject]:
        """The params of the notifications that are due."""
        now = self._clock.monotonic()
        for task_id, task in [] if self._notifies.silent else list(self._tasks.items()):
            try:
                task.catch_up(now)
            except RefusedError:
                del self._tasks[task_id]  # of a task that is gone there is nothing to tell
                continue
            if self._faces[task_id] != task.face(now):
                self._faces[task_id] = task.face(now)
                yield from self._as_sent(task.described(now))

    def _as_sent(self, params: JSONObject) -> Iterator[JSONObject]:
        how = self._notifies
        if not how.payloads:
            params = {name: value for name, value in params.items() if name not in _PAYLOADS}
        if how.swapped and self._held is None:
            self._held = params
            return
        for one in [params] if self._held is None else [params, self._held]:
            yield from ({**one, "taskId": task_id} for task_id in how.foreign)
            yield from [one] * (2 if how.twice else 1)
        self._held = None

    def _note(self, params: JSONObject) -> None:
        self._count += 1
        self._witness.notified(self.log, params, self._clock.monotonic())


def _reached(count: int, limit: int | None) -> bool:
    return limit is not None and count >= limit


def _notification(method: str, params: JSONObject) -> JSONObject:
    return {"jsonrpc": "2.0", "method": method, "params": params}
