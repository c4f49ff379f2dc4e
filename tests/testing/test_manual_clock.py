"""The manual clock: time that passes when a test says so."""

from __future__ import annotations

import anyio
import pytest

from mcp_tasks_client.testing import ManualClock

pytestmark = pytest.mark.anyio


async def test_it_stops_at_each_moment_that_somebody_waits_for(clock: ManualClock) -> None:
    seen: list[float] = []

    async def tick() -> None:
        for _ in range(3):
            await clock.sleep(20)
            seen.append(clock.monotonic())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        await clock.advance(19)
        assert seen == []
        await clock.advance(100)
    assert seen == [20.0, 40.0, 60.0]
    assert clock.monotonic() == 119.0


async def test_a_wait_ends_with_its_event_or_its_time_and_never_sets_the_event(clock: ManualClock) -> None:
    event, ended = anyio.Event(), list[float | None]()

    async def wait(timeout_s: float | None) -> None:
        await clock.wait(event, timeout_s)
        ended.append(timeout_s)

    async with anyio.create_task_group() as tasks:
        for timeout_s in (None, 5.0, 50.0):
            tasks.start_soon(wait, timeout_s)
        await clock.advance(10)
        assert ended == [5.0]
        assert not event.is_set()
        event.set()
    assert sorted(ended, key=str) == [5.0, 50.0, None]


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
async def test_no_time_is_over_at_once(clock: ManualClock, timeout_s: float) -> None:
    with anyio.fail_after(30):
        await clock.wait(anyio.Event(), timeout_s)


async def test_wall_time_passes_too_and_may_be_set(clock: ManualClock) -> None:
    start = clock.time()
    await clock.advance(10)
    clock.jump(-3600)
    assert (clock.time() - start, clock.monotonic()) == (-3590.0, 10.0)


async def test_it_stands_still_while_something_real_is_under_way(clock: ManualClock) -> None:
    real, reached = anyio.Event(), list[float]()

    async def commit() -> None:
        await clock.sleep(1)
        with clock.busy():
            await real.wait()
        reached.append(clock.monotonic())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(commit)
        tasks.start_soon(clock.advance, 100)
        with anyio.fail_after(30):
            while not clock.monotonic():  # on trio advance() waits for the same moment as this test
                await anyio.wait_all_tasks_blocked()
        await anyio.wait_all_tasks_blocked()
        assert clock.monotonic() == 1.0
        real.set()
    assert reached == [1.0]
