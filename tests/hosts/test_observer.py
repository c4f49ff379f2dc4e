"""What an observer is told, by every way in."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from mcp_tasks_client import Environment, MemoryJournal, Observer, Point, TaskRecord
from mcp_tasks_client.engine.observer import DRIVE, GET, LINE
from mcp_tasks_client.testing import POINTS, HttpError, Stalled
from tests.kit.json_rpc_host import LIMIT_S, QUICK, asking_server
from tests.kit.ways import Way, around, beneath, by_client_with_extension, by_url, by_wrapped_client

pytestmark = pytest.mark.anyio


class Spans(Observer):
    """The steps that have begun and not ended, and those that have failed."""

    def __init__(self) -> None:
        self.begun: list[Point] = []
        self.open: Counter[Point] = Counter()
        self.failures: list[tuple[Point, BaseException]] = []
        self.polls = anyio.Event()

    async def before(self, point: Point, record: TaskRecord | None) -> None:
        self.begun.append(point)
        self.open[point] += 1
        if point == GET:
            self.polls.set()

    async def after(self, point: Point, record: TaskRecord | None) -> None:
        self.open[point] -= 1

    def failed(self, point: Point, record: TaskRecord | None, error: BaseException) -> None:
        self.open[point] -= 1
        self.failures.append((point, error))


@pytest.mark.parametrize("way", [by_url, by_wrapped_client, by_client_with_extension, beneath, around])
@pytest.mark.parametrize("fate", ["it ends", "a request fails", "a request is cancelled"])
async def test_each_step_that_begins_is_told_to_have_ended_or_failed(way: Way, fate: str) -> None:
    server, spans = asking_server(), Spans()
    if fate != "it ends":
        server.misbehave(
            "tasks/get", *([Stalled()] if fate == "a request is cancelled" else [HttpError(503)])
        )
    environment = Environment(clock=server.clock, observer=spans)
    opened = way(server, journal=MemoryJournal(), poll=QUICK, environment=environment)
    with anyio.fail_after(LIMIT_S):
        async with opened as call, anyio.create_task_group() as tasks:
            tasks.start_soon(call, "slow")
            if fate == "a request is cancelled":
                await spans.polls.wait()
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
    assert {DRIVE, GET, LINE} <= set(spans.begun) <= {DRIVE, LINE, *POINTS}
    assert +spans.open == Counter()
    assert min(spans.open.values()) == 0, "none has ended twice"
    failed = {point: isinstance(error, Exception) for point, error in spans.failures}
    assert (
        failed.get(GET) == {"it ends": None, "a request fails": True, "a request is cancelled": False}[fate]
    )
    assert (DRIVE in failed) == (fate == "a request is cancelled")
