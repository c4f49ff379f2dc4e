"""Requests that may go again: up to three times, at growing intervals, as long as the failure may pass.

A session repeats nothing by itself, since a tool could run twice. These requests change nothing at the
server, or nothing more when they are said twice. Polls are repeated by the machine, without an end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from ..errors import SessionError
from ..policy import growing_delay

__all__ = ["repeat"]

T = TypeVar("T")

_ATTEMPTS: Final = 3


async def repeat(
    send: Callable[[], Awaitable[T]],
    sleep: Callable[[float], Awaitable[None]],
    *,
    first_s: float,
    longest_s: float,
    jitter: Callable[[], float] = lambda: 0.0,
    may_go_again: Callable[[SessionError], bool] = lambda error: True,
) -> T:
    """Send a request, and send it again if its failure may pass. A ``Retry-After`` is a floor of the wait.

    Args:
        send: Sends the request once.
        sleep: Waits, in seconds.
        first_s: Seconds before the second attempt, and the most that the jitter adds to each wait.
        longest_s: Seconds between two attempts, at most, before jitter and ``Retry-After``.
        jitter: Draws fractions from 0 to 1.
        may_go_again: Whether a request whose failure may pass goes again after all.

    Raises:
        SessionError: That of the last attempt.
    """

    def wait_s(attempt: RetryCallState) -> float:
        pause_s = growing_delay(first_s, attempt.attempt_number, longest_s) + first_s * jitter()
        error = attempt.outcome and attempt.outcome.exception()
        asked_s = error.retry_after_s if isinstance(error, SessionError) else None
        return max(pause_s, asked_s or 0.0)

    async def attempt() -> T:
        return await send()

    attempts = AsyncRetrying(
        retry=retry_if_exception(lambda e: isinstance(e, SessionError) and e.retryable and may_go_again(e)),
        wait=wait_s,
        stop=stop_after_attempt(_ATTEMPTS),
        sleep=sleep,
        reraise=True,
    )
    return await attempts(attempt)
