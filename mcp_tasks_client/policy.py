"""How long to wait: between polls, after failures (back-off, for HTTP 429 as for any other), for a TTL.

The server sets the pace: its hint, its ``Retry-After`` and our own back-off are floors, the
largest of them counts, and jitter only adds. :class:`PollPolicy` names the exceptions.
Pure: the time and the jitter are arguments. :class:`ReceivePolicy` has the limits of tasks that a server has
the client run.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Final, Literal, TypeAlias

__all__ = [
    "PollPolicy",
    "ReceivePolicy",
    "TaskPreference",
    "backoff_delay",
    "early_look",
    "growing_delay",
    "hint_s",
    "poll_delay",
    "ttl_passed",
]

TaskPreference: TypeAlias = Literal["auto", "always", "never"]
"""Where the client asks for tasks. ``auto`` does wherever tool and server allow it, ``always`` calls no other
tool, ``never`` asks for none."""

# Where in the first interval an eager client looks: a look costs half as much patience as the next.
_EARLY_LOOKS: Final = (1 / 16, 1 / 8, 1 / 4, 1 / 2)

# Without a hint: two equal waits, four that grow fast, and then for as long as it takes slowly.
_SHORT_WAITS: Final = 6
_STEEP: Final = 1.7
_GENTLE: Final = 1.28

_LONGEST_BESIDE_A_HINT_S: Final = 0.1
"""Seconds to which our own waits grow where the server's hint is shorter."""

# 2**53 - 1, the largest integer that every JSON reader agrees on.
_LARGEST_MS: Final = 2**53 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PollPolicy:
    """Latency against load.

    A poll comes no sooner than the server wishes, with these exceptions:

    - no wait is longer than ``longest_wait_s``;
    - the first poll of a task that was attached by its ID alone goes at once, since no hint is known;
    - after an acknowledged ``tasks/cancel`` the task is looked at within 5 seconds;
    - a wait of more than a minute is cut to the end of the task's ``ttlMs``, but to no less than a minute;
    - :meth:`eager` looks up to four times within the first interval.

    A ``Retry-After`` is shortened by ``longest_wait_s`` only.
    """

    floor_s: float = 0.026
    """Seconds before the first poll of a task without a hint; the next ones come at about 2, 4, 7, 12 and 20
    times that, and then each a quarter later than the last, until something changes.

    The same waits, up to a tenth of a second, stand beside a hint: ``pollIntervalMs: 5`` is a lower bound,
    and does not ask for 200 polls a second."""

    ceiling_s: float = 30.0
    """Seconds between polls of a task without a hint, at most. If below 0.1, it also bounds our own waits
    beside a hint."""

    jitter: float = 0.1
    """Largest fraction added to a wait that is our own choice (no hint, a retry, a restart), so that a
    fleet that starts together does not poll together. To the server's hint a tenth of it is added, and
    only before the first poll: tasks that begin together stay apart, and none is seen much too late."""

    backoff_floor_s: float = 1.0
    """Seconds before the retry of a first failed poll."""

    backoff_ceiling_s: float = 60.0
    """Seconds between retries of failing polls, at most. There is no last retry, unless the session hides why
    they fail (``SessionError.patience``)."""

    early_looks: int = 0
    """Polls within the first interval, at most 4. Set by :meth:`eager`."""

    longest_wait_s: float = 3600.0
    """Seconds of any wait for a server, at most, also where ``pollIntervalMs`` or ``Retry-After`` is longer.
    The one bound on the server's pace, so that a nonsensical hint cannot hold a task for ever."""

    polls_in_flight: int = 16
    """Polls under way at once at one endpoint."""

    wait_for_slot_s: float = 0.0
    """Seconds in all that a ``tools/call`` waits for a slot, where the server refuses it with HTTP 429.

    It goes again after the longer of the server's ``Retry-After`` and the back-off. If the next wait went
    beyond these seconds, the refusal is raised at once. 0 does not wait."""

    call_grace_s: float = 2.0
    """Seconds that ``tools/call`` is left to finish after its caller stopped waiting, so that a
    task ID on its way is still journaled."""

    cancel_timeout_s: float = 5.0
    """Seconds that the ``tasks/cancel`` of an abandoned call may take."""

    ttl_grace_s: float = 5.0
    """Seconds by which the server's clock may be ahead when it drops a task after its ``ttlMs``."""

    past_ttl_s: float = math.inf
    """Seconds after its ``ttlMs`` for which a task is polled that the server still calls ``working``.

    The call then ends in a :class:`TaskExpiredError`. By default the task is polled for as long as the server
    knows it, and one line in the log says so."""

    def __post_init__(self) -> None:
        # Each comparison is written so that NaN, of which all are false, is refused as well.
        for name in ("floor_s", "backoff_floor_s", "longest_wait_s", "call_grace_s", "cancel_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0 seconds, got {getattr(self, name)}")
        for floor, ceiling in (("floor_s", "ceiling_s"), ("backoff_floor_s", "backoff_ceiling_s")):
            if not getattr(self, ceiling) >= getattr(self, floor):
                raise ValueError(f"{ceiling} must be at least {floor}, got {getattr(self, ceiling)}")
        for name in ("wait_for_slot_s", "past_ttl_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} cannot be negative, got {getattr(self, name)}")
        for name in ("jitter", "ttl_grace_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} cannot be negative or endless, got {getattr(self, name)}")
        if not 0 <= self.early_looks <= len(_EARLY_LOOKS):
            raise ValueError(f"early_looks must be between 0 and {len(_EARLY_LOOKS)}, got {self.early_looks}")
        if not self.polls_in_flight >= 1:
            raise ValueError("polls_in_flight must be at least 1")

    @classmethod
    def eager(cls) -> PollPolicy:
        """Looks up to four times within the first interval, then keeps the server's pace.

        For tools that mostly finish long before their hint. Ends with the first request that
        fails.
        """
        return cls(early_looks=len(_EARLY_LOOKS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivePolicy:
    """Limits of the tasks that a server has the client run, as some older servers do.

    Raises:
        ValueError: A limit is not positive, or ``default_ttl_ms`` is longer than ``max_ttl_ms``.
    """

    default_ttl_ms: int = 3_600_000
    """Milliseconds for which a task is kept after its creation, if the server does not name a time."""

    max_ttl_ms: int = 86_400_000
    """Milliseconds for which a task is kept after its creation, at most, also where the server names more."""

    max_working: int = 32
    """Unfinished tasks of one session at once, at most. The host is asked about each of them."""

    max_kept: int = 1000
    """Tasks of one session at once, at most, finished ones included."""

    poll_interval_ms: int = 1000
    """The ``pollInterval`` that the server is told, in milliseconds."""

    page_size: int = 100
    """Tasks in one reply to ``tasks/list``, at most."""

    max_requests: int = 1000
    """Requests about tasks that are being answered at once, at most. A waiting ``tasks/result`` counts."""

    max_requests_per_s: int = 100
    """Requests about tasks per session and second, at most; ten times as many may come at once."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value <= _LARGEST_MS:
                raise ValueError(f"{name} must be more than 0 and at most {_LARGEST_MS}, got {value}")
        if self.default_ttl_ms > self.max_ttl_ms:
            raise ValueError(f"default_ttl_ms must be at most max_ttl_ms, got {self.default_ttl_ms}")


def hint_s(poll_interval_ms: float | None) -> float | None:
    """The server's hint in seconds; ``None`` if absent. Zero or less counts as absent."""
    seconds = poll_interval_ms / 1000 if poll_interval_ms is not None else 0.0
    # Asked of the quotient, because the smallest of all numbers divide to 0.
    return seconds if seconds > 0 else None


def poll_delay(
    poll_interval_ms: float | None,
    unchanged_polls: int,
    policy: PollPolicy,
    jitter: float,
    *,
    first: bool = False,
) -> float:
    """Seconds to wait before the next ``tasks/get``.

    The server's ``pollIntervalMs`` is a floor, up to ``longest_wait_s``. Without one the wait grows
    from ``floor_s`` to ``ceiling_s`` while nothing changes. Beside a hint it grows to a tenth of a second.

    Args:
        poll_interval_ms: Latest hint in milliseconds; ``None`` if absent.
        unchanged_polls: Polls since the task last changed; 0 at first.
        policy: Bounds, in seconds.
        jitter: A fraction drawn by the driver, ``0 <= jitter <= 1``.
        first: Whether it is the first wait of a task.

    Returns:
        Seconds, at least the hint, unless that is longer than ``longest_wait_s``.

    Raises:
        ValueError: ``unchanged_polls`` or ``jitter`` is out of range.

    Source: Tasks extension, "Task Polling" (SHOULD respect ``pollIntervalMs``); the growth and
    the jitter are ours.
    """
    if unchanged_polls < 0:
        raise ValueError("unchanged_polls cannot be negative")
    hint, wait = hint_s(poll_interval_ms), _unhinted(policy.floor_s, unchanged_polls, policy.ceiling_s)
    if hint is None:
        wait = _jittered(wait, policy.jitter if unchanged_polls >= _SHORT_WAITS else 0.0, jitter)
        return min(wait, policy.longest_wait_s)
    hint = max(hint, min(wait, _LONGEST_BESIDE_A_HINT_S))
    return min(_jittered(hint, policy.jitter / 10 if first else 0.0, jitter), policy.longest_wait_s)


def backoff_delay(
    poll_interval_ms: float | None,
    failures: int,
    retry_after_s: float | None,
    policy: PollPolicy,
    jitter: float,
) -> float:
    """Seconds to wait after a failed request: the largest of hint, ``Retry-After`` and back-off.

    Args:
        poll_interval_ms: Latest hint in milliseconds; ``None`` if absent.
        failures: Failures in a row, this one included; at least 1.
        retry_after_s: The server's own; ``None`` if there is none.
        policy: Bounds, in seconds.
        jitter: A fraction, ``0 <= jitter <= 1``.

    Raises:
        ValueError: ``failures`` or ``jitter`` is out of range.
    """
    if failures < 1:
        raise ValueError("failures counts this one, so it is at least 1")
    backoff = growing_delay(policy.backoff_floor_s, failures, policy.backoff_ceiling_s)
    wait = max(hint_s(poll_interval_ms) or 0.0, retry_after_s or 0.0, backoff)
    return min(_jittered(wait, policy.jitter, jitter), policy.longest_wait_s)


def early_look(poll_interval_ms: float | None, looks: int, policy: PollPolicy) -> float | None:
    """Seconds to the next early look, or ``None`` when there is none left to take.

    Args:
        poll_interval_ms: Latest hint in milliseconds.
        looks: Early looks already taken.
        policy: Says how many there may be.

    Returns:
        Seconds since the previous look, or ``None``: without a hint (it starts low anyway), or
        when the policy's looks are used up.
    """
    hint = hint_s(poll_interval_ms)
    if hint is None or looks >= policy.early_looks:
        return None
    wait = hint * (_EARLY_LOOKS[looks] - (_EARLY_LOOKS[looks - 1] if looks else 0.0))
    return min(wait, policy.longest_wait_s)


def ttl_passed(received_at: float, ttl_ms: float | None, now: float, policy: PollPolicy) -> bool:
    """Whether a task that is gone may be gone because of its age.

    The age is counted from when *we* first heard of the task, since the two clocks need not
    agree; the server's count started earlier, by the time the reply took, hence the grace.

    Args:
        received_at: Local wall clock, seconds, when the task was first received.
        ttl_ms: Latest ``ttlMs``; ``None`` is unlimited, and so never passed.
        now: Local wall clock, seconds.
        policy: Gives the grace.

    Source: Tasks extension, "Task Polling" (clients MAY treat the TTL as a backstop).
    """
    return ttl_ms is not None and now >= received_at + ttl_ms / 1000 - policy.ttl_grace_s


def _unhinted(floor_s: float, unchanged_polls: int, ceiling_s: float) -> float:
    """Seconds to wait where the server says nothing.

    Long tasks are worth fewer polls for their length, and short ones must not wait for polls meant for long
    ones: a task is seen when it is about a quarter older than at its end.
    """
    steep_s = growing_delay(floor_s, max(1, min(unchanged_polls, _SHORT_WAITS - 1)), ceiling_s, _STEEP)
    return growing_delay(steep_s, max(1, unchanged_polls - _SHORT_WAITS + 1), ceiling_s, _GENTLE)


def growing_delay(first_s: float, times: int, longest_s: float, factor: float = 2.0) -> float:
    """Seconds to wait before one more attempt, where each wait is longer than the one before.

    Args:
        first_s: Seconds before the second attempt.
        times: Attempts in a row that were in vain. 0 waits not at all.
        longest_s: Seconds, at most.
        factor: How many times as long each wait is as the one before.
    """
    if times <= 0:
        return 0.0
    # The exponent is bounded because powers overflow, and a task may be polled for weeks.
    return min(first_s * factor ** min(times - 1, 256), longest_s)


def _jittered(wait_s: float, most: float, jitter: float) -> float:
    if not 0 <= jitter <= 1:
        raise ValueError(f"jitter must be between 0 and 1, got {jitter}")
    return wait_s * (1 + most * jitter)
