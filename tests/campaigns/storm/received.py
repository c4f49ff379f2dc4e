"""What became of the tasks that a server has had the client run, as far as the server could know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from .host import RELATED, mark
from .proxy import Look, Passed

__all__ = ["SEEN_S", "Errand", "answered_late", "errands", "unserved"]

SEEN_S: Final = 0.4
"""Seconds after which it is seen that a process has been killed."""

LATE_S: Final = 0.05
"""Seconds between a cancellation and a reply within which either may be the first."""


@dataclass(slots=True, kw_only=True)
class Errand:
    """One such task, which the server looks at from time to time until it has its result."""

    task_id: str
    mark: str
    """Of the server's own task that it is needed for."""

    session_id: str | None
    begun_at: float
    looks: list[tuple[Look, float | None]] = field(default_factory=list)
    """Each with the time at which a reply to it arrived, if one did."""

    @property
    def served(self) -> bool:
        """Whether the server has the result."""
        return any(look.message["method"] == "tasks/result" and at is not None for look, at in self.looks)


def errands(passed: Iterable[Passed]) -> list[Errand]:
    """All of them, from all that passed."""
    exchanges = list(passed)
    found: dict[str, Errand] = {}
    for one in exchanges:
        made = _result(one).get("task")
        if not one.method and made is not None and one.reached and made["taskId"] not in found:
            needed_for = _result(one)["_meta"][RELATED]["taskId"]
            found[made["taskId"]] = Errand(
                task_id=made["taskId"], mark=mark(needed_for), session_id=one.session_id, begun_at=one.at
            )
    for one in exchanges:
        for look in one.looks:
            errand = found.get(look.message["params"]["taskId"])
            if errand is not None:
                errand.looks.append((look, _replied_at(look, errand, exchanges)))
    return list(found.values())


def _replied_at(look: Look, errand: Errand, exchanges: list[Passed]) -> float | None:
    replies = (
        one.at
        for one in exchanges
        if not one.method
        and one.at > look.at
        and one.reached
        and one.session_id == errand.session_id
        and one.message.get("id") == look.message["id"]
    )
    return min(replies, default=None)


def unserved(kind: str, passed: Iterable[Passed], kills: Iterable[float]) -> bool:
    """Whether the server may wait for ever for what it asked about a task of ours.

    It has asked while nobody listened; or the process that heard it was killed before it could reply.
    Neither server asks again. The one in Python does not even say that it asks, where nobody listens.
    """
    exchanges, ends = list(passed), list(kills)
    for errand in errands(exchanges):
        if errand.served:
            continue
        looks = sorted(errand.looks, key=lambda one: one[0].at)
        for look, at in looks:
            killed = at is None and any(end > look.at - SEEN_S for end in ends)
            if not look.heard or killed:
                return True
        last = max([errand.begun_at, *(at for _, at in looks if at is not None)])
        replied = all(at is not None for _, at in looks)
        if kind == "python" and replied and _deaf(exchanges, errand, last):
            return True
    return False


def _deaf(exchanges: list[Passed], errand: Errand, since: float) -> bool:
    """Whether there was a time at which nobody listened to the stream of the session."""
    streams = [
        (one.at if one.replied_at is None else one.replied_at, one.until)
        for one in exchanges
        if one.method == "GET" and one.reached and one.session_id == errand.session_id
    ]
    heard_until = since
    for begun, until in sorted(streams):
        if begun > heard_until:
            return True
        heard_until = max(heard_until, until)
    return heard_until != float("inf")


def answered_late(passed: Iterable[Passed], cancelled: dict[str, float]) -> Iterator[str]:
    """Replies about what was needed for a task that had been cancelled, by its mark and when."""
    for errand in errands(passed):
        since = cancelled.get(errand.mark)
        for look, at in errand.looks:
            if since is not None and at is not None and at > since + LATE_S:
                yield f"{look.message['method']} answered after {errand.mark} was cancelled"


def _result(one: Passed) -> Any:
    return one.message.get("result") or {}
