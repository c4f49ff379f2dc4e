"""One task of a host opens a client, another closes it; and whatever goes wrong, nothing is left open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mcp_tasks_client import JournalError, TasksClientError
from mcp_tasks_client.aio.own_task import OwnTask
from mcp_tasks_client.testing import scripted_client
from tests._results import text
from tests.engine.world import NO_JITTER, World

pytestmark = pytest.mark.anyio

LIMIT_S = 30.0


class Group:
    """Something that only the task that entered it can leave."""

    def __init__(self, *, on_enter: Exception | None = None, on_exit: Exception | None = None) -> None:
        self.on_enter, self.on_exit = on_enter, on_exit
        self.entering = anyio.Event()
        self.go_on = anyio.Event()
        self.go_on.set()
        self.is_open = False

    async def __aenter__(self) -> Self:
        self.entering.set()
        await self.go_on.wait()
        if self.on_enter is not None:
            raise self.on_enter
        self.group = anyio.create_task_group()
        await self.group.__aenter__()
        self.is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.group.cancel_scope.cancel()
        try:
            await self.group.__aexit__(None, None, None)
        finally:
            self.is_open = False
        if self.on_exit is not None:
            raise self.on_exit


async def in_another_task(work: Any) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)


async def test_a_client_is_opened_in_one_task_and_closed_in_another() -> None:
    world = World()
    client = scripted_client(world.server, journal=world.journal, poll=NO_JITTER)
    with anyio.fail_after(LIMIT_S):
        await in_another_task(client.__aenter__)
        assert text(await world.call(client)) == "done"
        handle = await client.start_tool("tool")

        async def clean_up() -> None:
            await client.__aexit__(None, None, None)
            await client.__aexit__(None, None, None)

        await in_another_task(clean_up)
        with pytest.raises(TasksClientError, match="closed"):
            await handle.result()
        async with world.client() as later:
            (left,) = await later.resume()
            await world.during(left.result, 3600)


async def test_a_client_is_opened_once() -> None:
    world = World()
    with anyio.fail_after(LIMIT_S):
        async with world.client() as client:
            with pytest.raises(TasksClientError, match="opened once"):
                await client.__aenter__()
            assert text(await world.call(client)) == "done"


async def test_a_journal_that_cannot_be_opened_is_told_to_who_opens_the_client(tmp_path: Any) -> None:
    world = World()
    with anyio.fail_after(LIMIT_S), pytest.raises(JournalError):
        async with scripted_client(world.server, journal=tmp_path):
            raise AssertionError("it is open")


async def test_what_entering_raises_is_raised_and_so_is_what_leaving_raises() -> None:
    with anyio.fail_after(LIMIT_S):
        with pytest.raises(LookupError):
            await OwnTask(Group(on_enter=LookupError())).enter()
        own = OwnTask(Group(on_exit=LookupError()))
        await own.enter()
        with pytest.raises(LookupError):
            await own.leave()
        await own.leave()


async def test_what_ends_the_task_meanwhile_is_raised_on_leaving() -> None:
    group = Group()
    own = OwnTask(group)

    async def crash() -> None:
        raise LookupError

    with anyio.fail_after(LIMIT_S):
        await own.enter()
        group.group.start_soon(crash)
        while group.is_open:
            await checkpoint()
        with pytest.raises(BaseExceptionGroup):
            await own.leave()


async def test_a_crash_of_what_drives_a_call_is_no_hang_of_who_waits_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Crash(BaseException):
        pass

    def crash(task: Any) -> None:
        raise Crash

    world = World()
    client = scripted_client(world.server, journal=world.journal, poll=NO_JITTER)
    with anyio.fail_after(LIMIT_S):
        await client.__aenter__()
        with pytest.raises(TasksClientError, match=r"resume\(\)") as caught:
            await client.call_tool("tool", on_update=crash)
        await client.__aexit__(None, None, None)
    assert isinstance(caught.value.__cause__, Crash)
    assert "Crash" in caplog.text


async def test_a_caller_that_is_cancelled_while_entering_leaves_nothing_open() -> None:
    group = Group()
    group.go_on = anyio.Event()
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(OwnTask(group).enter)
            await group.entering.wait()
            tasks.cancel_scope.cancel()
            group.go_on.set()
    assert not group.is_open


async def test_entering_and_leaving_can_be_cut_short() -> None:
    went_on: list[str] = []

    @asynccontextmanager
    async def lingering(connect_s: float, leave_s: float) -> AsyncIterator[None]:
        await anyio.sleep(connect_s)
        went_on.append("connected")
        try:
            yield
        finally:
            await anyio.sleep(leave_s)
            went_on.append("left")

    with anyio.move_on_after(0.01):
        await OwnTask(lingering(0.3, 0.0)).enter()
    assert went_on == []
    own = OwnTask(lingering(0.0, 0.3))
    await own.enter()
    await own.leave(0.01)
    assert went_on == ["connected"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_native_cancellation_does_not_cut_the_leaving() -> None:
    group = Group()
    own = OwnTask(group)
    await own.enter()
    leaving = asyncio.ensure_future(own.leave())
    await checkpoint()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert not group.is_open


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_client_that_nobody_closes_is_closed_as_the_event_loop_ends(backend: Any) -> None:
    groups: list[Group] = []

    async def forget() -> None:
        groups.append(Group())
        await OwnTask(groups[0]).enter()
        assert groups[0].is_open

    await anyio.to_thread.run_sync(lambda: anyio.run(forget, backend=backend))
    assert not groups[0].is_open


@pytest.mark.parametrize("steps", range(4))
def test_an_event_loop_that_ends_while_something_is_entered_does_end(steps: int) -> None:
    async def enter_and_leave_the_loop() -> None:
        entering = asyncio.ensure_future(OwnTask(Group()).enter())
        for _ in range(steps):
            await asyncio.sleep(0)
        del entering

    thread = threading.Thread(target=asyncio.run, args=(enter_and_leave_the_loop(),), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
