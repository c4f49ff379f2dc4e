"""What the server tells of tasks by itself in one history, and what becomes of that on its way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias

from mcp_tasks_client.testing import Notifies

__all__ = ["Grapevine", "Telling", "draw_telling"]

JSONObject: TypeAlias = dict[str, Any]

_TROUBLES: Final = ("lost", "late", "again", "bare", "stale", "stale", "foreign")
_PAYLOADS: Final = ("result", "error", "inputRequests")


@dataclass(frozen=True, slots=True)
class Telling:
    """What those who listen get to hear, all of it drawn from the seed."""

    offers: tuple[tuple[float, Notifies | None], ...]
    """From when on the server answers ``subscriptions/listen`` how. With each but the first it starts again,
    and every open stream breaks."""

    down_s: float
    """Seconds after each restart in which nobody reaches the server."""

    trouble: float
    """Share of the notifications that something becomes of on their way."""

    stamped: bool
    """Whether notifications have a ``lastUpdatedAt``."""

    @property
    def anything(self) -> bool:
        """Whether anything is ever told."""
        return any(offer is not None for _, offer in self.offers)

    def is_down(self, now: float) -> bool:
        """Whether the server is just starting again."""
        return any(at <= now < at + self.down_s for at, _ in self.offers[1:])


_NOTHING: Final = Telling(offers=((0.0, None),), down_s=0.0, trouble=0.0, stamped=True)


def draw_telling(random: Random, until: float) -> Telling:
    """What is told in a history. The server starts again in its first half, if at all.

    It goes on when the history calms down, since nothing may depend on what is told.
    """
    if random.random() < 0.35:
        return _NOTHING
    restarts = sorted(random.uniform(0, until / 2) for _ in range(random.choice([0, 0, 1, 1, 2])))
    return Telling(
        offers=tuple((at, _draw_offer(random)) for at in (0.0, *restarts)),
        down_s=random.choice([0.0, 0.0, 3.0]),
        trouble=random.choice([0.0, 0.2, 0.6]),
        stamped=random.random() < 0.7,
    )


def _draw_offer(random: Random) -> Notifies | None:
    if random.random() < 0.1:
        return None
    return Notifies(
        at_most=random.choice([*[None] * 10, 0, 1]),
        ends_after=random.choice([*[None] * 10, 0, 1, 3]),
        breaks_after=random.choice([*[None] * 10, 0, 1, 3]),
        method=random.choice(["notifications/tasks", "notifications/tasks/status"]),
    )


class Grapevine:
    """Between the server and all who listen to it.

    Args:
        random: Says what becomes of each notification.
        how: How often something does.
        tell: Told of everything that is sent.
    """

    def __init__(self, random: Random, how: Telling, tell: Callable[[str], None]) -> None:
        self._random = random
        self._how = how
        self._tell = tell
        self._told: defaultdict[str, list[JSONObject]] = defaultdict(list)
        self._held: list[JSONObject] = []

    def distort(self, params: JSONObject) -> Iterable[JSONObject]:
        """What is sent in place of a notification; see :attr:`Notifies.distort`."""
        params = self._stamped(params)
        self._told[params["taskId"]].append(params)
        held, self._held = self._held, []
        sent = [*self._becomes(params), *held]
        for one in sent:
            self._tell(f"told of {one['taskId']}: {one['status']}")
        return sent

    def note_reply(self, params: JSONObject) -> None:
        """Remember what a poll was answered, since that may be told late."""
        self._told[params["taskId"]].append(self._stamped(params))

    def results(self, task_id: str) -> list[JSONObject]:
        """What a task was said to have resulted in, as often as it was said."""
        return [params["result"] for params in self._told[task_id] if params.get("result") is not None]

    def _becomes(self, params: JSONObject) -> list[JSONObject]:
        if self._random.random() >= self._how.trouble:
            return [params]
        match self._random.choice(_TROUBLES):
            case "lost":
                return []
            case "late":
                self._held.append(params)
                return []
            case "again":
                return [params, params]
            case "bare":
                return [{name: value for name, value in params.items() if name not in _PAYLOADS}]
            case "stale":
                return [params, self._random.choice(self._told[params["taskId"]])]
            case _:  # the last that was said of any task, whoever asked for it
                return [self._told[self._random.choice(list(self._told))][-1], params]

    def _stamped(self, params: JSONObject) -> JSONObject:
        if self._how.stamped:
            return params
        return {name: value for name, value in params.items() if name != "lastUpdatedAt"}
