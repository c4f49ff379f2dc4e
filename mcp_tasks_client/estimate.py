"""How long calls of a tool take, judged by those that have completed; and spans of time for people. Pure.

An estimate is no promise and no countdown. Its times are those of earlier calls, and its line rounds them up.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

__all__ = ["Estimate", "format_span"]

_FEWEST: Final = 5
"""Calls below which nothing is said."""

_ROUND_TIMES: Final = (
    ("s", 1.0, (1, 2, 3, 5, 10, 15, 20, 30, 45)),
    ("min", 60.0, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 45)),
    ("h", 3600.0, (1, 2, 3, 4, 5, 6, 8, 10, 12, 18)),
)
"""Units, their seconds, and the numbers to which times in them are rounded up. Few, so that no text ticks."""

_DAY_S: Final = 86_400.0

_SPAN_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long calls of a tool take, by the last ones of it that have completed.

    ``str(estimate)`` is a line for people: ``half within 3 min, 9 of 10 within 9 (23 calls)``; see
    :meth:`after` for a call that runs. It is empty while fewer than five calls are known.

    A time is that of the task at the server, without the time in which the server waited for answers.
    """

    durations: Sequence[float] = ()
    """Seconds, the shortest first. Of one endpoint, principal and tool, and 50 at most."""

    elapsed_s: float = 0.0
    """Seconds for which the call has run that this is about; 0 is a call that begins."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "durations", tuple(sorted(_usable(self.durations))))

    def after(self, elapsed_s: float) -> Estimate:
        """The estimate for a call that has run for so long: only calls count that lasted as long.

        ``str(estimate.after(252))`` is ``4m12s · half within 3 min, 9 of 10 within 9 (23 calls)``: of 23
        calls that lasted 4m12s or longer, half have completed within three minutes from there. Where fewer
        than five lasted as long it is ``4m12s · longer than 21 of 23``.

        Args:
            elapsed_s: Seconds for which the call has run, as of :meth:`TaskRecord.ran_s`.
        """
        return replace(self, elapsed_s=max(0.0, elapsed_s))

    @property
    def calls(self) -> int:
        """How many of the known calls lasted at least as long as this one has run."""
        return len(self.durations) - self.shorter

    @property
    def shorter(self) -> int:
        """How many of the known calls were over sooner."""
        return bisect_left(self.durations, self.elapsed_s)

    @property
    def half_s(self) -> float | None:
        """Seconds from now within which half of those calls completed; ``None`` for fewer than five calls."""
        return self._within(0.5)

    @property
    def nine_of_ten_s(self) -> float | None:
        """Seconds from now within which nine of ten completed; ``None`` for fewer than five calls.

        Of fewer than nine it is the longest one.
        """
        return self._within(0.9)

    def _within(self, part: float) -> float | None:
        calls = self.calls
        if calls < _FEWEST:
            return None
        # A further call is as likely to come before all of them, between any two, or after all. So it is one
        # of this part if it is no longer than the call at this place.
        place = min(calls, math.ceil(part * (calls + 1)))
        return self.durations[self.shorter + place - 1] - self.elapsed_s

    @property
    def text(self) -> str:
        """The line without the time that has passed; empty while fewer than five calls are known."""
        if len(self.durations) < _FEWEST:
            return ""
        half_s, nine_of_ten_s = self.half_s, self.nine_of_ten_s
        if half_s is None or nine_of_ten_s is None:
            return f"longer than {self.shorter} of {len(self.durations)}"
        half, most = _round_up(half_s), _round_up(nine_of_ten_s)
        unit = "" if most.unit == half.unit else f" {most.unit}"
        return f"half within {half}, 9 of 10 within {most.number}{unit} ({self.calls} calls)"

    def __str__(self) -> str:
        elapsed = format_span(self.elapsed_s) if self.elapsed_s and self.text else ""
        return " · ".join(part for part in (elapsed, self.text) if part)


class _Rounded(NamedTuple):
    number: int
    unit: str

    def __str__(self) -> str:
        return f"{self.number} {self.unit}"


def _round_up(seconds: float) -> _Rounded:
    for unit, unit_s, numbers in _ROUND_TIMES:
        for number in numbers:
            if seconds <= number * unit_s:
                return _Rounded(number, unit)
    return _Rounded(math.ceil(seconds / _DAY_S), "d")


def format_span(seconds: float) -> str:
    """A span of time in its two largest units, such as ``4m12s`` or ``2d2h``; in one where the other is 0."""
    left = max(0, round(seconds))
    for (size, name), (smaller, below) in pairwise(_SPAN_UNITS):
        if left >= size:
            rest = left % size // smaller
            return f"{left // size}{name}{rest}{below}" if rest else f"{left // size}{name}"
    return f"{left}s"


def _usable(durations: Iterable[float]) -> Iterable[float]:
    return (one for one in durations if math.isfinite(one) and one >= 0)
