"""Ten thousand unfinished tasks taken up at once: no burst above the cap, and none of them early."""

from __future__ import annotations

from typing import Any, Final

import anyio
import pytest

from mcp_tasks_client import MemoryJournal, PollPolicy
from mcp_tasks_client.old.journal.base import Scope, TaskRecord
from mcp_tasks_client.old.sessions.base import TaskRef
from mcp_tasks_client.old.states import Observing
from mcp_tasks_client.old.testing import ManualClock, ScriptedSession, scripted_client, working
from mcp_tasks_client.old.wire import Task, read_task

from ._requirements import requirement

pytestmark = pytest.mark.anyio

TASKS: Final = {"asyncio": 10_000, "trio": 500}
"""Fewer on trio, as the second time shows no more and takes as long."""

CAP: Final = 16
HINT_S: Final = 60.0
REPLY_S: Final = 0.05


class Slow(ScriptedSession):
    """Takes its time for each poll, and counts those under way."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self._manual = clock
        self.now = self.most = 0
        self.polled: dict[str, float] = {}
        self._answered = anyio.Event()

    async def answer(self) -> None:
        """Answer what has gathered, now and again. All at once, or the clock would stop at each."""
        while True:
            await self._manual.wait(anyio.Event(), REPLY_S)
            answered, self._answered = self._answered, anyio.Event()
            answered.set()

    async def get(self, ref: TaskRef) -> Task:
        self.now += 1
        self.most = max(self.most, self.now)
        self.polled.setdefault(ref.task_id, self._manual.time())
        await self._answered.wait()
        self.now -= 1
        return read_task(working(ref.task_id, poll_interval_ms=1000 * HINT_S))


def due(clock: ManualClock, number: int, count: int) -> float:
    """Half of them are overdue, the others within the next minute."""
    return clock.time() + (-3600.0 if number % 2 else HINT_S * number / count)


async def journal_with_tasks(clock: ManualClock, count: int) -> MemoryJournal:
    journal = MemoryJournal()
    async with journal:
        for number in range(count):
            task = read_task(working(f"task-{number}", poll_interval_ms=1000 * HINT_S))
            fields: dict[str, Any] = {"poll_interval_ms": 1000 * HINT_S, "wait_s": HINT_S}
            state = Observing(task=task, received_at=0.0, due_at=due(clock, number, count), **fields)
            await journal.save(
                TaskRecord(
                    record_id=str(number),
                    scope=Scope("scripted"),
                    tool="tool",
                    state=state,
                    created_at=float(number),
                    updated_at=float(number),
                )
            )
    return journal


@requirement("law:4")
async def test_ten_thousand_tasks_are_taken_up_without_a_burst_and_none_of_them_early(
    anyio_backend_name: str,
) -> None:
    count = TASKS[anyio_backend_name]
    clock = ManualClock()
    journal = await journal_with_tasks(clock, count)
    session = Slow(clock)
    due_at = [due(clock, number, count) for number in range(count)]
    policy = PollPolicy(polls_in_flight=CAP)
    async with (
        anyio.create_task_group() as tasks,
        scripted_client(session, journal=journal, poll=policy) as client,
    ):
        tasks.start_soon(session.answer)
        handles = await client.resume()
        assert len(handles) == count
        await clock.advance(1.0)
        overdue = [session.polled[task] for task in session.polled]
        assert len(overdue) <= CAP * (1.0 / REPLY_S + 1), "the cap bounds what goes at once"
        await clock.advance(HINT_S)
        tasks.cancel_scope.cancel()
    assert session.most == CAP
    assert len(session.polled) == count
    assert not [number for number in range(count) if session.polled[f"task-{number}"] < due_at[number]]
