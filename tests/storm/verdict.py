"""What became of a voyage, against what was promised."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from .host import CALLS
from .proxy import Lane, Passed

__all__ = ["Noted", "Voyage", "breaches", "read_log", "unheard"]

JOURNALED_S: Final = 0.5
"""Seconds after which what the server has asked is in the journal, however busy the machine is."""

SEEN_S: Final = 0.1
"""Seconds after which it is seen that a process has been killed."""


@dataclass(frozen=True, slots=True)
class Noted:
    """What a process wrote down, at ``time.monotonic()`` seconds."""

    at: float
    life: int
    event: str
    text: str


@dataclass(slots=True, kw_only=True)
class Voyage:
    """One call, from its beginning to its end, over several lives."""

    seed: int
    kind: str
    call: str
    lane: Lane
    interval_s: float = 0.0
    kills: list[float] = field(default_factory=list)
    """When a process was killed."""

    died: list[int] = field(default_factory=list)
    """The lives that ended with an error that is none of ours."""

    cancels: bool
    ended: bool = False
    """Whether the last process came to an end."""

    log: list[Noted] = field(default_factory=list)

    def told(self) -> str:
        """All of it, line by line."""
        lines = [(one.at, f"  {one.life} {one.event} {one.text}") for one in self.log]
        lines += [(at, "  killed") for at in self.kills]
        for one in self.lane.passed:
            shown = json.dumps(one.message.get("params") or one.message.get("result") or one.message)
            what = f"{one.life} > {one.method or 'reply'} id={one.message.get('id')!r} {shown[:110]}"
            lines.append((one.at, f"{what} · {one.fate.what} {one.fate.seconds:.2f}"))
            to_nobody = " to nobody" if one.swallowed else ""
            lines += [(at, f"  < id={one.message.get('id')!r} asks{to_nobody}") for at in one.asks]
        begun = min(at for at, _ in lines)
        return "\n".join(f"{at - begun:8.3f} {line}" for at, line in sorted(lines))


def read_log(path: Path) -> list[Noted]:
    """What the processes wrote; the last line of one that was killed may be half of one."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Noted(**json.loads(line)) for line in lines if line.endswith("}")]


def breaches(voyage: Voyage) -> Iterator[str]:
    """The promises that were not kept."""
    lane = f"v{voyage.seed}"
    for life in voyage.died:
        yield f"life {life} died of itself"
    if not voyage.ended and not unheard(voyage):
        yield "hangs"
    wanted = CALLS[voyage.call][2].format(lane)
    outcomes = [one for one in voyage.log if one.event in ("result", "error")]
    for one in outcomes:
        cancelled = voyage.cancels and one.text.startswith("TaskCancelledError")
        if not cancelled and (one.event, one.text) != ("result", wanted):
            yield f"{one.event}: {one.text}"
    yield from _asked_again(voyage)
    yield from _answered_late(voyage)
    yield from _polled_early(voyage)


def unheard(voyage: Voyage) -> bool:
    """Whether the server has asked what nobody could have journaled: it waits for ever then."""
    asks = [at for one in voyage.lane.passed for at in one.asks]
    killed = any(-SEEN_S < kill - at < JOURNALED_S for at in asks for kill in voyage.kills)
    return killed or any(one.swallowed for one in voyage.lane.passed)


def _asked_again(voyage: Voyage) -> Iterator[str]:
    in_one_life = Counter((one.life, one.text) for one in voyage.log if one.event == "asked")
    for (life, whose), times in in_one_life.items():
        if times > 1:
            yield f"asked {times} times in life {life}: {whose}"
    for passed in voyage.lane.passed:
        whose = _answers(passed)
        again = [
            one for one in voyage.log if one.event == "asked" and one.text == whose and one.at > passed.at
        ]
        if again:
            yield f"asked again in life {again[0].life}, though its answer was sent in {passed.life}: {whose}"


def _answered_late(voyage: Voyage) -> Iterator[str]:
    """A reply to a question that the server had been told not to wait for any more."""
    cancelled = [
        one.replied_at
        for one in voyage.lane.passed
        if one.method == "tasks/cancel"
        and one.replied_at is not None
        and one.fate.what in ("passes", "delayed")
    ]
    for passed in voyage.lane.passed:
        if cancelled and _answers(passed) is not None and passed.at > cancelled[0] + 0.05:
            yield f"answered after the task was cancelled: {_answers(passed)}"


def _polled_early(voyage: Voyage) -> Iterator[str]:
    polls = [one for one in voyage.lane.passed if one.method == "tasks/get" and one.reached]
    for before, after in pairwise(polls):
        passed_s = after.at - before.at
        same = before.life == after.life and before.session_id == after.session_id
        if same and passed_s < 0.9 * voyage.interval_s:
            yield f"polled after {passed_s:.3f} s in life {after.life}"


def _answers(passed: Passed) -> str | None:
    """Whose name a reply of the client's gives; ``None`` if it is none."""
    result: Any = passed.message.get("result")
    if passed.method or not isinstance(result, dict):
        return None
    content = result.get("content") or {}
    said = content.get("name") or content.get("text")
    return str(said).rpartition("-")[2] if said else None
