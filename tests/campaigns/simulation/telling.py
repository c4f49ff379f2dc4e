"""What the server tells of tasks by itself in one history, and what becomes of that on its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

import anyio
from anyio.abc import TaskGroup

from mcp_tasks_client.old.testing import Notifies
from mcp_tasks_client.old.testing.faults import RefusedError
from mcp_tasks_client.old.testing.timeline import Timeline
from mcp_tasks_client.old.wire import Task, read_task

from .clock import ProcessClock

__all__ = ["Grapevine", "Telling", "telling"]

Heard: TypeAlias = Callable[[Task], None]

_TROUBLES: Final = ("lost", "late", "again", "bare", "stale", "stale", "foreign")
_PAYLOADS: Final = ("result", "error", "input_requests")


@dataclass(frozen=True, slots=True)
class Telling:
    """What those who listen get to hear, all of it drawn from the seed."""

    offers: tuple[tuple[float, Notifies | None], ...]
    """From when on the server answers ``subscriptions/listen`` how. With each but the first it starts again,
    and every stream that is open breaks."""

    down_s: float
    """Seconds after each restart in which nobody reaches it."""

    trouble: float
    """Share of the notifications that something becomes of on their way."""

    stamped: bool
    """Whether notifications have a ``lastUpdatedAt``."""

    @property
    def anything(self) -> bool:
        """Whether anything is ever told."""
        return any(offer is not None for _, offer in self.offers)

    def is_down(self, now: float) -> bool:
        """Whether it is just starting again."""
        return any(at <= now < at + self.down_s for at, _ in self.offers[1:])


_NOTHING: Final = Telling(offers=((0.0, None),), down_s=0.0, trouble=0.0, stamped=True)


def telling(random: Random, until: float) -> Telling:
    """What is told in a history, in which the server begins anew in its first half, if at all.

    When the history calms down, this does not: nothing may depend on what is told.
    """
    if random.random() < 0.35:
        return _NOTHING
    restarts = sorted(random.uniform(0, until / 2) for _ in range(random.choice([0, 0, 1, 1, 2])))
    return Telling(
        offers=tuple((at, _offer(random)) for at in (0.0, *restarts)),
        down_s=random.choice([0.0, 0.0, 3.0]),
        trouble=random.choice([0.0, 0.2, 0.6]),
        stamped=random.random() < 0.7,
    )


def _offer(random: Random) -> Notifies | None:
    if random.random() < 0.1:
        return None
    return Notifies(
        at_most=random.choice([*[None] * 10, 0, 1]),
        silent=random.random() < 0.1,
        ends_after=random.choice([*[None] * 10, 0, 1, 3]),
        breaks_after=random.choice([*[None] * 10, 0, 1, 3]),
        breaks_after_s=random.choice([*[None] * 5, random.uniform(0, 60.0)]),
        method=random.choice(["notifications/tasks", "notifications/tasks/status"]),
        payloads=random.random() > 0.15,
        twice=random.random() < 0.15,
        swapped=random.random() < 0.15,
        foreign=random.choice([(), (), (), ("task-of-nobody",)]),
        ping_s=random.choice([60.0, 60.0, None]),
    )


class Grapevine:
    """Between the server and all who listen to it.

    Args:
        random: Says what becomes of each notification.
        how: How often something does.
        now: Seconds of the server's monotonic clock.
        tasks: What the server knows, by ID.
        tell: Told of everything that is heard.
    """

    def __init__(
        self,
        random: Random,
        how: Telling,
        now: Callable[[], float],
        tasks: Mapping[str, Timeline],
        tell: Callable[[str], None],
    ) -> None:
        self._random = random
        self._how = how
        self._now = now
        self._tasks = tasks
        self._tell = tell
        self._told: dict[str, list[Task]] = {}

    def passed_on(self, name: str, clock: ProcessClock, heard: Heard, late: TaskGroup) -> Heard:
        """What is told to somebody, as it gets there.

        Args:
            name: Whose log entry it is.
            clock: Of the process, which hears nothing while it is suspended.
            heard: Where it goes.
            late: For what comes later; cancelled with the stream.
        """

        def hear(task: Task) -> None:
            self._tell(f"{name} is told of {task.task_id}: {task.status}")
            heard(task)

        async def hear_later(task: Task, after_s: float) -> None:
            if after_s:
                await clock.wait(anyio.Event(), after_s)
            await clock.awake.wait()
            hear(task)

        def pass_on(task: Task) -> None:
            for one, after_s in self._becomes(task):
                if after_s or not clock.awake.is_set():
                    late.start_soon(hear_later, one, after_s)
                else:
                    hear(one)

        return pass_on

    def _becomes(self, task: Task) -> list[tuple[Task, float]]:
        """What is heard instead of it, and in how many seconds."""
        task = self._stamped(task)
        before = self._told.setdefault(task.task_id, [])
        before.append(task)
        if self._random.random() >= self._how.trouble:
            return [(task, 0.0)]
        after_s = self._random.choice([0.0, 0.05, 0.3, 3.0, 20.0])
        match self._random.choice(_TROUBLES):
            case "lost":
                return []
            case "late":
                return [(task, after_s)]
            case "again":
                return [(task, 0.0), (task, after_s)]
            case "bare":
                return [(task.model_copy(update=dict.fromkeys(_PAYLOADS)), 0.0)]
            case "stale":
                return [(task, 0.0), (self._stale(task, before), after_s)]
            case _:
                return [*self._foreign(), (task, 0.0)]

    def _stale(self, task: Task, told: list[Task]) -> Task:
        """What was once told of a task, or said to a poll."""
        timeline = self._tasks.get(task.task_id)
        polled = timeline.sent if timeline is not None else []  # it is none of this server's
        number = self._random.randrange(len(told) + len(polled))
        if number < len(told):
            return told[number]
        return self._stamped(read_task(polled[number - len(told)]))

    def _foreign(self) -> list[tuple[Task, float]]:
        """The truth about any task, whoever asked for it."""
        timeline = self._tasks[self._random.choice(list(self._tasks))]
        try:
            timeline.catch_up(self._now())
        except RefusedError:
            return []
        return [(self._stamped(read_task(timeline.described(self._now()))), 0.0)]

    def _stamped(self, task: Task) -> Task:
        return task if self._how.stamped else task.model_copy(update={"last_updated_at": None})
