"""Signals: set once, waited for by many, and nothing is left of those who have stopped waiting."""

from __future__ import annotations

import anyio
import pytest

from mcp_tasks_client.signals import signal

pytestmark = pytest.mark.anyio


async def test_all_who_wait_are_woken_and_one_who_stops_takes_nobody_along() -> None:
    told, woken = signal(), []

    async def wait(number: int) -> None:
        await told.wait()
        woken.append(number)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(wait, number)
            with anyio.move_on_after(0.01):
                await told.wait()
            assert woken == []
            told.set()
    assert sorted(woken) == [0, 1, 2]


async def test_nothing_is_left_of_those_who_have_stopped_waiting() -> None:
    told = signal()
    for _ in range(50):
        with anyio.move_on_after(0):
            await told.wait()
    left = getattr(told, "_waiting", [])  # an event of anyio's looks after itself
    assert len(left) <= 4


async def test_whoever_waits_for_what_has_happened_does_not_wait() -> None:
    told = signal()
    told.set()
    with anyio.fail_after(5):
        await told.wait()
        await told.wait()
