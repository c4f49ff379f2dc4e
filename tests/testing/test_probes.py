"""Fault plans: what is done at which point."""

from __future__ import annotations

import anyio
import pytest

from mcp_tasks_client.testing import POINTS, FaultPlan, KilledError, ManualClock, delay, kill, raising

pytestmark = pytest.mark.anyio

GET = "send: tasks/get"


async def test_a_deed_is_done_the_nth_time_at_its_point_and_moment() -> None:
    plan = FaultPlan()
    plan.at(GET, "after", raising(OSError("disk")), nth=2)
    for _ in range(2):
        await plan.before(GET, None)
        if plan.passed.count(("before", GET)) == 2:
            with pytest.raises(OSError, match="disk"):
                await plan.after(GET, None)
        else:
            await plan.after(GET, None)
    assert plan.passed == [("before", GET), ("after", GET)] * 2
    assert not plan.killed


async def test_who_was_killed_passes_no_point_any_more() -> None:
    plan = FaultPlan()
    plan.at_number(1, kill)
    await plan.before(GET, None)
    with pytest.raises(KilledError):
        await plan.after(GET, None)
    assert plan.killed
    with pytest.raises(KilledError):
        await plan.before("commit: claim", None)
    assert len(plan.passed) == 2


async def test_a_client_is_held_up_by_the_clock_that_is_given(clock: ManualClock) -> None:
    plan, passed_at = FaultPlan(), list[float]()
    plan.at(GET, "before", delay(clock, 60))

    async def poll() -> None:
        await plan.before(GET, None)
        passed_at.append(clock.monotonic())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poll)
        await clock.advance(100)
    assert passed_at == [60.0]


def test_a_point_that_does_not_exist_is_refused() -> None:
    assert GET in POINTS
    with pytest.raises(ValueError, match="no point"):
        FaultPlan().at("send: tasks/gett", "before", kill)
