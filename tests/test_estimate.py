"""What is said of how long a call will take, and that it holds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from mcp_tasks_client import Estimate
from mcp_tasks_client.estimate import format_span

SEED: Final = 54
CALLS: Final = 4000
TOLERANCE: Final = 0.03
"""By which the part of calls that end in time may differ from what is said, where nine or more are known."""

DRAWS: Final[dict[str, Callable[[random.Random], float]]] = {
    "about the same": lambda chance: chance.gauss(60.0, 5.0),
    "now and then much longer": lambda chance: chance.lognormvariate(4.0, 1.0),
    "of two kinds": lambda chance: (
        chance.gauss(10.0, 1.0) if chance.random() < 0.7 else chance.gauss(600, 50)
    ),
}
"""How long calls of a tool take."""


def drawn(chance: random.Random, draw: Callable[[random.Random], float], calls: int) -> list[float]:
    return [max(0.0, draw(chance)) for _ in range(calls)]


# ── that it holds ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("known", [9, 19, 23, 50])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_half_and_nine_of_ten_end_within_what_is_said(
    draw: Callable[[random.Random], float], known: int
) -> None:
    """As often as is said, or a little more often, since there are so few calls to go by."""
    chance = random.Random(SEED)
    in_half = in_most = 0
    for _ in range(CALLS):
        estimate = Estimate(drawn(chance, draw, known))
        (took_s,) = drawn(chance, draw, 1)
        assert estimate.half_s is not None
        assert estimate.nine_of_ten_s is not None
        in_half += took_s <= estimate.half_s
        in_most += took_s <= estimate.nine_of_ten_s
    least = 1 / (known + 1)  # the step between two places
    assert 0.5 - TOLERANCE <= in_half / CALLS <= 0.5 + least + TOLERANCE
    assert 0.9 - TOLERANCE <= in_most / CALLS <= 0.9 + least + TOLERANCE


@pytest.mark.parametrize("known", [5, 8])
def test_of_a_few_calls_the_longest_stands_for_nine_of_ten(known: int) -> None:
    """It is right less often: in five of six cases where five are known."""
    chance = random.Random(SEED)
    draw = DRAWS["now and then much longer"]
    estimates = [Estimate(drawn(chance, draw, known)) for _ in range(CALLS)]
    held = sum(draw(chance) <= (one.nine_of_ten_s or 0.0) for one in estimates)
    assert all(one.nine_of_ten_s == max(one.durations) for one in estimates)
    assert abs(held / CALLS - known / (known + 1)) <= TOLERANCE


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_it_holds_for_a_call_that_runs_as_well(draw: Callable[[random.Random], float]) -> None:
    """Of calls that have run for some time. Fewer are known of those, so that more is on the safe side."""
    chance = random.Random(SEED)
    in_half = in_most = asked = 0
    for _ in range(CALLS):
        known, (took_s,) = drawn(chance, draw, 50), drawn(chance, draw, 1)
        elapsed_s = 12.0
        estimate = Estimate(known).after(elapsed_s)
        if took_s < elapsed_s or estimate.calls < 9:
            continue
        assert estimate.half_s is not None
        assert estimate.nine_of_ten_s is not None
        asked += 1
        in_half += took_s <= elapsed_s + estimate.half_s
        in_most += took_s <= elapsed_s + estimate.nine_of_ten_s
    assert asked > CALLS / 5
    assert 0.5 - TOLERANCE <= in_half / asked <= 0.5 + 0.1 + TOLERANCE
    assert 0.9 - TOLERANCE <= in_most / asked <= 1.0


# ── numbers ───────────────────────────────────────────────────────────────────────────────────


def minutes(*numbers: float) -> list[float]:
    return [number * 60.0 for number in numbers]


@pytest.mark.parametrize("known", range(5))
@pytest.mark.parametrize("elapsed_s", [0.0, 30.0, 1e6])
def test_of_fewer_than_five_calls_nothing_is_said(known: int, elapsed_s: float) -> None:
    estimate = Estimate([30.0] * known).after(elapsed_s)
    assert (str(estimate), estimate.text) == ("", "")
    assert (estimate.half_s, estimate.nine_of_ten_s) == (None, None)


def test_of_five_calls_something_is_said() -> None:
    estimate = Estimate([5.0, 1.0, 4.0, 2.0, 3.0])
    assert estimate.durations == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert (estimate.calls, estimate.half_s, estimate.nine_of_ten_s) == (5, 3.0, 5.0)


def test_only_calls_that_lasted_as_long_as_this_one_count() -> None:
    known = [1.0] * 30 + [100.0, 110.0, 120.0, 130.0, 140.0]
    estimate = Estimate(known).after(100.0)
    assert (estimate.calls, estimate.shorter) == (5, 30)
    assert (estimate.half_s, estimate.nine_of_ten_s) == (20.0, 40.0)
    assert Estimate(known).after(100.5).half_s is None, "four lasted longer"


def test_what_is_no_time_does_not_count() -> None:
    assert Estimate([math.nan, math.inf, -1.0, 2.0]).durations == (2.0,)
    assert Estimate().after(-1.0).elapsed_s == 0.0


# ── words ─────────────────────────────────────────────────────────────────────────────────────

LASTED: Final = minutes(1, 2, 2, 3, 4) + [
    252.0 + more for more in minutes(*[0.5] * 11, *[2.5] * 9, 5, 8.5, 8.5)
]
"""Of 23 that lasted 4m12s or longer, the twelfth ended within 2.5 minutes more."""


@pytest.mark.parametrize(
    ("known", "elapsed_s", "said"),
    [
        (LASTED, 252.0, "4m12s · half within 3 min, 9 of 10 within 9 (23 calls)"),
        ([20.0] * 9 + [60.0] * 3, 0.0, "half within 20 s, 9 of 10 within 1 min (12 calls)"),
        ([7200.0] * 6, 3660.0, "1h1m · half within 1 h, 9 of 10 within 1 (6 calls)"),
        ([3 * 86_400.0] * 6, 0.0, "half within 3 d, 9 of 10 within 3 (6 calls)"),
        ([0.0] * 6, 0.0, "half within 1 s, 9 of 10 within 1 (6 calls)"),
        ([1.0] * 9 + [100.0], 12.0, "12s · longer than 9 of 10"),
        ([1.0] * 21 + [100.0, 100.0], 12.0, "12s · longer than 21 of 23"),
        ([1.0] * 5, 12.0, "12s · longer than 5 of 5"),
    ],
)
def test_the_line_says_it_in_a_few_words(known: Sequence[float], elapsed_s: float, said: str) -> None:
    assert str(Estimate(known).after(elapsed_s)) == said


def test_a_time_that_is_said_is_never_too_short_and_does_not_tick() -> None:
    units = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
    said = set()
    for seconds in range(1, 200_000, 7):
        number, unit = Estimate([float(seconds)] * 5).text.removeprefix("half within ").split(",")[0].split()
        said.add((number, unit))
        assert seconds <= int(number) * units[unit] <= seconds * 2 + 1
    assert len(said) < 45


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((-1.0, "0s"), (0.0, "0s"), (0.4, "0s"), (12.9, "13s"), (59.6, "1m"), (60.0, "1m")),
        *((252.0, "4m12s"), (7200.0, "2h"), (7500.0, "2h5m"), (86_400.0 * 3 + 4 * 3600 + 1, "3d4h")),
    ],
)
def test_a_span_is_said_in_two_units_at_most(seconds: float, said: str) -> None:
    assert format_span(seconds) == said
