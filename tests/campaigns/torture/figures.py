"""What is counted in a round, and what may not happen at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Self

__all__ = ["NEVER", "Figures", "Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How often. The metadata is what the table calls it, and ``never`` what may not happen at all."""

    killed: int = field(default=0, metadata={"as": "processes killed"})
    calls: int = field(default=0, metadata={"as": "calls begun, with a key and without"})
    started: int = field(default=0, metadata={"as": "tasks started"})
    delivered: int = field(default=0, metadata={"as": "calls whose result was delivered"})
    given_up: int = field(default=0, metadata={"as": "calls that the host gave up"})
    lost: int = field(default=0, metadata={"as": "tasks lost", "never": True})
    unseen: int = field(default=0, metadata={"as": "unkeyed calls killed between the reply and its commit"})
    unknown: int = field(default=0, metadata={"as": "keyed calls reported as of unknown outcome"})
    unknown_ran: int = field(default=0, metadata={"as": "of these, the server had got the call"})
    unfounded: int = field(
        default=0, metadata={"as": "of these, nobody was killed and no reply lost", "never": True}
    )
    resent: int = field(default=0, metadata={"as": "calls of unknown outcome that the host had sent again"})
    ran_twice: int = field(
        default=0, metadata={"as": "tools run again though the host had not asked for it", "never": True}
    )
    questions: int = field(default=0, metadata={"as": "questions put to the host"})
    reopened: int = field(default=0, metadata={"as": "asked again: killed before the answer"})
    uncommitted: int = field(
        default=0, metadata={"as": "asked again: killed between the answer and its commit"}
    )
    asked_anew: int = field(default=0, metadata={"as": "asked again: by a call that was sent again"})
    asked_twice: int = field(
        default=0, metadata={"as": "asked again: although the answer was committed", "never": True}
    )
    asked_at_once: int = field(default=0, metadata={"as": "asked by two processes at once", "never": True})
    answers_differ: int = field(
        default=0, metadata={"as": "different answers to one question", "never": True}
    )
    put_off: int = field(default=0, metadata={"as": "questions that a host left to others"})
    given: int = field(default=0, metadata={"as": "answers from outside that were told to count"})
    given_at_once: int = field(
        default=0, metadata={"as": "answers from outside that were told to come second, or too late"}
    )
    inherited: int = field(
        default=0, metadata={"as": "answers from outside, sent by a process that began only later"}
    )
    untrue: int = field(
        default=0, metadata={"as": "answers that were told to count, and were not sent", "never": True}
    )
    unanswerable: int = field(
        default=0, metadata={"as": "questions that nobody could answer from outside", "never": True}
    )
    resumed_again: int = field(default=0, metadata={"as": "results that resume() delivered again"})
    delivered_twice: int = field(
        default=0, metadata={"as": "of these, though the first host lived on", "never": True}
    )
    replayed: int = field(default=0, metadata={"as": "results had again under their key"})
    replays_differ: int = field(default=0, metadata={"as": "of these, other than the first", "never": True})
    foreign: int = field(default=0, metadata={"as": "results that are not the server's", "never": True})
    polls: int = field(default=0, metadata={"as": "polls"})
    early: int = field(default=0, metadata={"as": "polls before their time", "never": True})
    left: int = field(
        default=0, metadata={"as": "records unfinished or undelivered after the end", "never": True}
    )
    errors: int = field(default=0, metadata={"as": "other errors, and other complaints", "never": True})

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            **{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        )

    def rows(self) -> Iterator[tuple[str, int, bool]]:
        """What the table calls it, how often, and whether it may not happen at all."""
        for one in fields(self):
            yield one.metadata["as"], getattr(self, one.name), one.metadata.get("never", False)


NEVER = tuple(one.name for one in fields(Figures) if one.metadata.get("never"))
"""The figures that must be 0."""


@dataclass(slots=True)
class Verdict:
    """The figures of a round, and each breach in a sentence."""

    figures: Figures = field(default_factory=Figures)
    breaches: list[str] = field(default_factory=list)

    def __iadd__(self, other: Verdict) -> Self:
        self.figures += other.figures
        self.breaches += other.breaches
        return self

    def count(self, **more: int) -> None:
        """Add to figures."""
        self.figures += Figures(**more)

    def breach(self, figure: str, sentence: str) -> None:
        """Add to a figure that must be 0, and say why."""
        self.count(**{figure: 1})
        self.breaches.append(f"{figure}: {sentence}")
