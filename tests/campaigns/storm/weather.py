"""What happens to one exchange over HTTP: drawn by a seed, and nothing any more once the weather is fair."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

__all__ = ["BREAKS", "DENIALS", "FAIR", "Fate", "Weather", "What"]

What: TypeAlias = Literal[
    "passes",
    "delayed",
    "unavailable",
    "no_session",
    "not_found",
    "unread",
    "unanswered",
    "cut",
    "stalled",
    "ended",
]

_CUT: Final[tuple[What, ...]] = ("cut", "stalled", "ended")
_REFUSED: Final[tuple[What, ...]] = ("unavailable", "no_session", "not_found")
_BROKEN: Final[tuple[What, ...]] = ("unread", "unanswered")
BREAKS: Final = frozenset(_BROKEN)
_SPARED: Final = frozenset({"server/discover", "initialize", "notifications/initialized", "tools/list"})
"""Without them there is no call."""

DENIALS: Final[frozenset[What]] = frozenset({"no_session", "not_found"})
FAIR: Final[frozenset[What]] = frozenset({"passes", "delayed"})
_OF_CALLS: Final[tuple[What, ...]] = ("delayed",)
"""Whether a call whose connection breaks was carried out is another matter."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to an exchange.

    Attributes:
        what: ``passes``; ``delayed``, both ways; ``unavailable``, 503, with a ``Retry-After`` if
            ``seconds`` is not 0; ``no_session`` or ``not_found``, 404 in the SDKs' words or in a
            gateway's; ``unread``, so that the server never sees it; ``unanswered``, which it has seen;
            ``cut`` or ``stalled`` in the middle of the response, or ``ended`` there in good order.
        seconds: Of the delay, before the cut, or as above.
    """

    what: What = "passes"
    seconds: float = 0.0


@dataclass
class Weather:
    """Draws what happens, for one client.

    Attributes:
        seed: Of all that is drawn.
        rate: Of the exchanges to which anything happens, from 0 to 1.
        fair: Whether nothing happens any more.
        breaks: Whether connections break before there is a status.
        most_denials: Of one session. One that is denied more often is lost, and so are the tasks in it.
        of: What there is, besides delays; drawn as well if that is nothing.
    """

    seed: int
    rate: float
    fair: bool = False
    breaks: bool = True
    most_denials: int = 3
    of: tuple[What, ...] = ()
    _random: random.Random = field(init=False)
    _denials: Counter[str | None] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(f"weather {self.seed}")
        mostly = self._random.choice([(*_REFUSED, *_BROKEN, *_CUT, "delayed"), _REFUSED, _BROKEN, _CUT])
        mostly = self.of or mostly
        self._choices: tuple[What, ...] = (*mostly, "delayed")

    def fate(self, method: str, session_id: str | None = None) -> Fate:
        """What happens to the next exchange.

        Args:
            method: Its JSON-RPC method; ``"GET"`` opens a stream, and ``""`` is a reply of the client's.
            session_id: The session that it is in.
        """
        happens, what = self._random.random() < self.rate, self._random.choice(self._choices)
        seconds, retry_after = self._random.uniform(0.0, 0.4), self._random.choice((0.0, 0.0, 1.0))
        if self.fair or not happens or method in _SPARED:
            return Fate()
        if method == "tools/call" and what not in _OF_CALLS:
            return Fate()
        if what in BREAKS and not self.breaks:
            return Fate("delayed", seconds)
        self._denials[session_id] += what in DENIALS
        if what in DENIALS and self._denials[session_id] > self.most_denials:
            return Fate()
        return Fate(what, retry_after if what == "unavailable" else seconds)
