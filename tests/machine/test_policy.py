"""When to poll, when to retry, when a task's time is over."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_tasks_client.policy import (
    PollPolicy,
    ReceivePolicy,
    backoff_delay,
    early_look,
    growing_delay,
    hint_s,
    poll_delay,
    ttl_passed,
)

from .._requirements import requirement

DEFAULT = PollPolicy()
STEADY = PollPolicy(jitter=0.0)
EAGER = PollPolicy.eager()

# Everything that reading a hint can leave behind: nothing, zero, fractions, 2**53 - 1.
HINTS_MS = st.none() | st.just(0.0) | st.floats(1e-3, 2.0**53 - 1) | st.integers(1, 2**53 - 1)
COUNTS = st.integers(0, 2**80)
FRACTIONS = st.floats(0, 1)
SECONDS = st.floats(1e-3, 1e9)


@st.composite
def policies(draw: st.DrawFn) -> PollPolicy:
    floors = [draw(st.floats(1e-3, 1e3)) for _ in range(2)]
    ceilings = [floor * draw(st.floats(1, 1e4)) for floor in floors]
    return PollPolicy(
        floor_s=floors[0],
        ceiling_s=ceilings[0],
        backoff_floor_s=floors[1],
        backoff_ceiling_s=ceilings[1],
        jitter=draw(st.floats(0, 10)),
        early_looks=draw(st.integers(0, 4)),
        longest_wait_s=draw(st.floats(1e-3, 1e9)),
    )


# ── the policy itself ─────────────────────────────────────────────────────────────────────────


def test_the_default_never_looks_early_and_eager_looks_four_times() -> None:
    assert DEFAULT.early_looks == 0
    assert EAGER.early_looks == 4


def test_a_policy_cannot_be_changed_and_its_fields_have_names() -> None:
    with pytest.raises(AttributeError):
        DEFAULT.jitter = 0.5  # type: ignore[misc]  # that is the point
    with pytest.raises(TypeError):
        PollPolicy(1.0)  # type: ignore[call-arg]  # that is the point


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        *[
            ({name: seconds}, f"{name} must be more than 0 seconds, got {seconds}")
            for name in ("floor_s", "backoff_floor_s", "longest_wait_s", "call_grace_s", "cancel_timeout_s")
            for seconds in (0, -0.5, -math.inf)
        ],
        ({"floor_s": 31.0}, "ceiling_s must be at least floor_s"),
        ({"backoff_floor_s": 2.0, "backoff_ceiling_s": 1.9}, "backoff_ceiling_s must be at least"),
        ({"jitter": -0.1}, "cannot be negative"),
        ({"ttl_grace_s": -1}, "cannot be negative"),
        ({"wait_for_slot_s": -0.1}, "wait_for_slot_s cannot be negative, got -0.1"),
        ({"wait_for_slot_s": math.nan}, "wait_for_slot_s cannot be negative, got nan"),
        ({"early_looks": -1}, "early_looks must be between 0 and 4, got -1"),
        ({"early_looks": 5}, "early_looks must be between 0 and 4, got 5"),
        ({"polls_in_flight": 0}, "polls_in_flight must be at least 1"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_and_the_message_names_the_field(
    fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        PollPolicy(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"floor_s": 30.0},
        {"floor_s": 1e-9},
        {"backoff_floor_s": 60.0},
        {"jitter": 0, "ttl_grace_s": 0},
        {"early_looks": 4},
        {"wait_for_slot_s": math.inf},
        {"polls_in_flight": 1},
    ],
)
def test_the_limits_themselves_are_allowed(fields: dict[str, Any]) -> None:
    PollPolicy(**fields)


@pytest.mark.parametrize(
    "name",
    [
        "floor_s",
        "ceiling_s",
        "backoff_floor_s",
        "backoff_ceiling_s",
        "jitter",
        "ttl_grace_s",
        "longest_wait_s",
    ],
)
def test_a_policy_of_nan_is_refused(name: str) -> None:
    fields: dict[str, Any] = {name: math.nan}
    with pytest.raises(ValueError, match=name):
        PollPolicy(**fields)


# ── polls ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("hint_ms", "seconds"), [(None, None), (0, None), (0.0, None), (-5, None), (1, 0.001), (5000, 5.0)]
)
def test_a_hint_is_given_in_seconds_and_zero_or_less_is_none(
    hint_ms: float | None, seconds: float | None
) -> None:
    assert hint_s(hint_ms) == seconds


@pytest.mark.parametrize(
    ("hint_ms", "unchanged", "seconds"),
    [
        (5000, 0, 5.0),
        (5000, 1000, 5.0),
        (100, 0, 0.1),
        (1, 0, 0.026),
        (5, 1, 0.026),
        (50, 1, 0.05),
        (50, 2, 0.05),
        (5, 2, 0.026 * 1.7),
        (5, 4, 0.1),
        (99, 1000, 0.1),
        (101, 1000, 0.101),
        (3_600_000, 0, 3600.0),
        (None, 0, 0.026),
        (None, 1, 0.026),
        (None, 2, 0.026 * 1.7),
        (None, 5, 0.026 * 1.7**4),
        (None, 6, 0.026 * 1.7**4),
        (None, 7, 0.026 * 1.7**4 * 1.28),
        (None, 100, 30.0),
        (None, 10**30, 30.0),
        (0, 0, 0.026),
    ],
)
def test_the_hint_is_the_wait_and_without_one_or_beside_a_tiny_one_the_wait_grows(
    hint_ms: float | None, unchanged: int, seconds: float
) -> None:
    assert poll_delay(hint_ms, unchanged, DEFAULT, 0.0) == pytest.approx(seconds)


def test_a_policy_of_shorter_waits_takes_a_tiny_hint_by_its_word() -> None:
    quick = PollPolicy(floor_s=0.001, ceiling_s=0.001)
    assert poll_delay(5, 1000, quick, 0.0) == 0.005


@pytest.mark.parametrize(("duration_s", "most"), [(0.05, 3), (0.5, 6), (5.0, 15)])
def test_without_a_hint_few_polls_see_a_task_end_soon(duration_s: float, most: int) -> None:
    """Half of the jitter, and five milliseconds for each poll on its way."""
    at, polls = 0.0, 0
    while at < duration_s:
        at += poll_delay(None, polls, DEFAULT, 0.5) + 0.005
        polls += 1
    assert polls <= most
    assert at - duration_s <= duration_s / 4


@given(HINTS_MS, COUNTS, policies(), FRACTIONS)
@requirement("poll:respect-interval")
def test_a_wait_is_finite_and_never_shorter_than_the_hint(
    hint_ms: float | None, unchanged: int, policy: PollPolicy, jitter: float
) -> None:
    wait = poll_delay(hint_ms, unchanged, policy, jitter)
    assert 0 < wait < math.inf
    assert wait <= policy.longest_wait_s
    assert wait >= min(hint_s(hint_ms) or policy.floor_s, policy.longest_wait_s)


@given(HINTS_MS, COUNTS, policies(), FRACTIONS, FRACTIONS)
def test_jitter_only_adds_and_no_more_than_the_policy_s_fraction(
    hint_ms: float | None, unchanged: int, policy: PollPolicy, one: float, other: float
) -> None:
    still = poll_delay(hint_ms, unchanged, policy, 0.0)
    less, more = (poll_delay(hint_ms, unchanged, policy, j) for j in sorted((one, other)))
    assert still <= less <= more <= still * (1 + policy.jitter)


@given(COUNTS, COUNTS, policies(), FRACTIONS)
def test_without_a_hint_a_wait_never_shrinks_and_stays_between_floor_and_ceiling(
    one: int, other: int, policy: PollPolicy, jitter: float
) -> None:
    fewer, more = (poll_delay(None, n, policy, 0.0) for n in sorted((one, other)))
    assert min(policy.floor_s, policy.longest_wait_s) <= fewer <= more <= policy.ceiling_s


@pytest.mark.parametrize("jitter", [-0.01, 1.01, math.nan, math.inf])
def test_a_jitter_outside_zero_to_one_is_refused(jitter: float) -> None:
    with pytest.raises(ValueError, match="jitter must be between 0 and 1"):
        poll_delay(5000, 0, DEFAULT, jitter)
    with pytest.raises(ValueError, match="jitter must be between 0 and 1"):
        backoff_delay(5000, 1, None, DEFAULT, jitter)


def test_a_negative_count_of_polls_is_refused() -> None:
    with pytest.raises(ValueError, match="unchanged_polls cannot be negative"):
        poll_delay(5000, -1, DEFAULT, 0.0)


def test_the_smallest_hint_there_is_does_not_make_a_client_poll_without_pause() -> None:
    assert poll_delay(5e-324, 0, DEFAULT, 0.0) > 0


# ── retries ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("hint_ms", "failures", "retry_after_s", "seconds"),
    [
        (None, 1, None, 1.0),
        (None, 2, None, 2.0),
        (None, 7, None, 60.0),
        (None, 10**30, None, 60.0),
        (5000, 1, None, 5.0),
        (5000, 5, None, 16.0),
        (5000, 1, 7.0, 7.0),
        (5000, 1, 2.0, 5.0),
        (5000, 1, 0.0, 5.0),
        (None, 1, 3600.0, 3600.0),
        (0, 1, None, 1.0),
    ],
)
def test_after_a_failure_the_largest_of_hint_retry_after_and_back_off_counts(
    hint_ms: float | None, failures: int, retry_after_s: float | None, seconds: float
) -> None:
    assert backoff_delay(hint_ms, failures, retry_after_s, DEFAULT, 0.0) == seconds


@given(HINTS_MS, st.integers(1, 2**80), st.none() | st.just(0.0) | SECONDS, policies(), FRACTIONS)
@example(None, 1, math.nan, DEFAULT, 0.0)
@example(None, 1, -5.0, DEFAULT, 0.0)
def test_a_retry_keeps_every_floor_and_never_comes_at_once(
    hint_ms: float | None, failures: int, retry_after_s: float | None, policy: PollPolicy, jitter: float
) -> None:
    wait = backoff_delay(hint_ms, failures, retry_after_s, policy, jitter)
    assert wait <= policy.longest_wait_s
    floor = max(policy.backoff_floor_s, hint_s(hint_ms) or 0)
    assert wait >= min(floor, policy.longest_wait_s)
    assert not wait < min(retry_after_s or 0, policy.longest_wait_s)


@pytest.mark.parametrize(
    ("times", "factor", "seconds"),
    [
        (0, 2.0, 0.0),
        (1, 2.0, 0.5),
        (2, 2.0, 1.0),
        (3, 2.0, 2.0),
        (2, 1.5, 0.75),
        (9, 2.0, 60.0),
        (10**30, 1.1, 60.0),
    ],
)
def test_a_growing_delay_begins_with_the_first_and_ends_with_the_longest(
    times: int, factor: float, seconds: float
) -> None:
    assert growing_delay(0.5, times, 60.0, factor) == seconds


@given(st.integers(1, 2**80), st.integers(1, 2**80), policies(), FRACTIONS)
def test_back_off_never_shrinks_and_is_bounded(
    one: int, other: int, policy: PollPolicy, jitter: float
) -> None:
    fewer, more = (backoff_delay(None, n, None, policy, 0.0) for n in sorted((one, other)))
    assert min(policy.backoff_floor_s, policy.longest_wait_s) <= fewer <= more <= policy.backoff_ceiling_s
    assert backoff_delay(None, one, None, policy, jitter) <= policy.backoff_ceiling_s * (1 + policy.jitter)


@given(HINTS_MS, st.integers(1, 2**80), st.none() | SECONDS, policies(), FRACTIONS)
def test_jitter_only_adds_to_a_retry_as_well(
    hint_ms: float | None, failures: int, retry_after_s: float | None, policy: PollPolicy, jitter: float
) -> None:
    still = backoff_delay(hint_ms, failures, retry_after_s, policy, 0.0)
    wait = backoff_delay(hint_ms, failures, retry_after_s, policy, jitter)
    assert still <= wait <= still * (1 + policy.jitter)


@pytest.mark.parametrize("failures", [0, -1])
def test_a_retry_of_no_failure_is_refused(failures: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        backoff_delay(None, failures, None, DEFAULT, 0.0)


# ── early looks ───────────────────────────────────────────────────────────────────────────────


def test_the_default_takes_no_early_look() -> None:
    assert early_look(5000, 0, DEFAULT) is None


def test_without_a_usable_hint_there_is_no_early_look() -> None:
    assert early_look(None, 0, EAGER) is None
    assert early_look(0, 0, EAGER) is None


def test_eager_looks_at_a_sixteenth_an_eighth_a_quarter_and_a_half_of_the_first_interval() -> None:
    waits = [early_look(16_000, looks, EAGER) for looks in range(4)]
    assert waits == [1.0, 1.0, 2.0, 4.0]
    assert early_look(16_000, 4, EAGER) is None


@given(st.floats(1, 2.0**53 - 1), policies())
def test_early_looks_are_as_many_as_the_policy_says_all_within_the_first_interval(
    hint_ms: float, policy: PollPolicy
) -> None:
    waits = [early_look(hint_ms, looks, policy) for looks in range(policy.early_looks)]
    taken = [wait for wait in waits if wait is not None]
    assert len(taken) == policy.early_looks <= 4
    assert all(wait > 0 for wait in taken)
    assert sum(taken) <= hint_ms / 1000 / 2
    assert early_look(hint_ms, policy.early_looks, policy) is None
    assert early_look(hint_ms, 2**80, policy) is None


# ── the one bound on the server's pace ────────────────────────────────────────────────────────


@pytest.mark.parametrize("hint_ms", [None, 0, 5000, 3_700_000, 2**53 - 1])
def test_no_wait_is_longer_than_the_longest_whatever_a_server_says(hint_ms: float | None) -> None:
    patient = PollPolicy(early_looks=4, ceiling_s=10**9, backoff_ceiling_s=10**9)
    for policy, longest in ((patient, 3600.0), (PollPolicy(early_looks=4, longest_wait_s=0.01), 0.01)):
        waits = [
            *(poll_delay(hint_ms, n, policy, 1.0, first=n == 0) for n in (0, 10, 2**80)),
            *(backoff_delay(hint_ms, n, 10.0**12, policy, 1.0) for n in (1, 2**80)),
            *(early_look(hint_ms, n, policy) or 0.0 for n in range(4)),
        ]
        assert max(waits) == longest


# ── the end of a task's time ──────────────────────────────────────────────────────────────────


@requirement("ttl:backstop")
@pytest.mark.parametrize(
    ("ttl_ms", "age_s", "passed"),
    [
        (None, 10.0**12, False),
        (60_000, 0.0, False),
        (60_000, 54.9, False),
        (60_000, 55.0, True),
        (60_000, 61.0, True),
        (0, 0.0, True),
        (3_000, 0.0, True),
        (2**53 - 1, 10.0**9, False),
    ],
)
def test_a_task_s_time_is_over_after_its_ttl_less_the_grace_and_never_without_one(
    ttl_ms: float | None, age_s: float, passed: bool
) -> None:
    assert ttl_passed(1000.0, ttl_ms, 1000.0 + age_s, DEFAULT) is passed


@given(st.floats(0, 2e9), st.floats(0, 2.0**53 - 1), st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_time_once_over_stays_over(received_at: float, ttl_ms: float, one: float, other: float) -> None:
    sooner, later = (received_at + age for age in sorted((one, other)))
    assert ttl_passed(received_at, ttl_ms, sooner, STEADY) <= ttl_passed(received_at, ttl_ms, later, STEADY)


# ── tasks that the client runs ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", [field.name for field in fields(ReceivePolicy)])
def test_a_limit_of_what_a_server_has_the_client_run_is_more_than_zero(limit: str) -> None:
    ReceivePolicy(**{limit: 3_600_000})
    for value in (0, -1, 2**53):
        with pytest.raises(ValueError, match=f"{limit} must be more than 0"):
            ReceivePolicy(**{limit: value})


def test_a_task_is_not_kept_longer_by_default_than_at_most() -> None:
    with pytest.raises(ValueError, match="default_ttl_ms must be at most max_ttl_ms"):
        ReceivePolicy(default_ttl_ms=2, max_ttl_ms=1)
