"""Waiting by the machine's clock."""

from __future__ import annotations

import anyio
import pytest

from mcp_tasks_client import SystemClock
from mcp_tasks_client.aio.signal import make_signal

pytestmark = pytest.mark.anyio


async def test_a_waiter_that_has_run_out_of_time_wakes_nobody_else() -> None:
    clock, signal, woken = SystemClock(), make_signal(), list[str]()

    async def wait(name: str, timeout_s: float | None) -> None:
        await clock.wait(signal, timeout_s)
        woken.append(name)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, "without a limit", None)
            tasks.start_soon(wait, "with a limit", 0.01)
            while not woken:
                await anyio.sleep(0.005)
            await anyio.wait_all_tasks_blocked()
            assert woken == ["with a limit"]
            signal.set()
    assert woken == ["with a limit", "without a limit"]
