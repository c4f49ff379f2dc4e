"""Requests that may go again: how often, and after how long."""

from __future__ import annotations

import pytest

from mcp_tasks_client.errors import SessionError
from mcp_tasks_client.sessions.repetition import repeat

pytestmark = pytest.mark.anyio


class Line:
    """Fails as it is told, and then answers. Notes how long was waited before each further attempt."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.waits: list[float] = []
        self.sent = 0

    async def send(self) -> str:
        self.sent += 1
        if self.failures:
            raise self.failures.pop(0)
        return "sent"

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def may_pass(retry_after_s: float | None = None) -> SessionError:
    return SessionError("busy", retryable=True, retry_after_s=retry_after_s)


async def test_a_failure_that_may_pass_is_followed_by_two_more_attempts_at_growing_intervals() -> None:
    line = Line(may_pass(), may_pass())
    assert await repeat(line.send, line.sleep, first_s=0.5, longest_s=10.0) == "sent"
    assert line.waits == [0.5, 1.0]


async def test_the_third_failure_is_the_last_and_is_raised_as_it_is() -> None:
    last = may_pass()
    line = Line(may_pass(), may_pass(), last, may_pass())
    with pytest.raises(SessionError) as raised:
        await repeat(line.send, line.sleep, first_s=0.5, longest_s=0.75)
    assert raised.value is last
    assert line.waits == [0.5, 0.75]


async def test_the_server_s_retry_after_is_a_floor_and_the_jitter_adds_a_part_of_the_first_wait() -> None:
    line = Line(may_pass(retry_after_s=7.0), may_pass(retry_after_s=0.1))
    await repeat(line.send, line.sleep, first_s=0.5, longest_s=10.0, jitter=lambda: 0.5)
    assert line.waits == [7.0, 1.25]


@pytest.mark.parametrize("failure", [SessionError("no"), ValueError("no")])
async def test_a_failure_that_does_not_pass_is_raised_at_once(failure: Exception) -> None:
    line = Line(failure)
    with pytest.raises(type(failure), match="no"):
        await repeat(line.send, line.sleep, first_s=0.5, longest_s=10.0)
    assert line.sent == 1


async def test_a_caller_can_say_that_a_request_does_not_go_again() -> None:
    line = Line(may_pass())
    with pytest.raises(SessionError):
        await repeat(line.send, line.sleep, first_s=0.5, longest_s=10.0, may_go_again=lambda error: False)
    assert line.sent == 1
