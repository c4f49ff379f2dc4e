"""Work runs to its end under every kind of cancellation."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from mcp_tasks_client.aio.uncut import in_loop, run_to_its_end, weakly_in_loop

pytestmark = pytest.mark.anyio

LIMIT_S = 30.0


class Work:
    """Begins, waits to be let go on, and ends."""

    def __init__(self) -> None:
        self.began = anyio.Event()
        self.go_on = anyio.Event()
        self.ended = False

    async def __call__(self, result: object) -> object:
        self.began.set()
        await self.go_on.wait()
        await checkpoint()
        self.ended = True
        if isinstance(result, BaseException):
            raise result
        return result


async def test_a_result_is_returned_and_an_error_raised() -> None:
    async def divide(dividend: int, *, by: int) -> float:
        await checkpoint()
        return dividend / by

    assert await run_to_its_end(divide, 6, by=2) == 3
    with pytest.raises(ZeroDivisionError):
        await run_to_its_end(divide, 6, by=0)


async def test_a_cancelled_scope_neither_cuts_the_work_nor_loses_its_result() -> None:
    work = Work()
    returned: list[object] = []
    after: list[str] = []

    async def caller() -> None:
        returned.append(await run_to_its_end(work, "done"))
        await checkpoint()
        after.append("not reached")

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller)
            await work.began.wait()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for _ in range(5):
                    await checkpoint()
                assert not returned
                work.go_on.set()
    assert (work.ended, returned, after) == (True, ["done"], [])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_native_cancel_is_raised_once_the_work_has_ended(times: int) -> None:
    work = Work()
    task = asyncio.ensure_future(run_to_its_end(work, "done"))
    async with asyncio.timeout(LIMIT_S):
        await work.began.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not task.done()
        work.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert work.ended


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_error_of_the_work_is_the_cause_of_a_native_cancel_that_came_first() -> None:
    work = Work()
    task = asyncio.ensure_future(run_to_its_end(work, OSError("disk")))
    async with asyncio.timeout(LIMIT_S):
        await work.began.wait()
        task.cancel()
        await asyncio.sleep(0)
        work.go_on.set()
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_native_timeout_ends_as_one() -> None:
    work = Work()
    async with asyncio.timeout(LIMIT_S):
        asyncio.get_running_loop().call_later(0.01, work.go_on.set)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_to_its_end(work, "done"), 0.001)
    assert work.ended


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_work_that_cancels_itself_is_no_cancel_of_the_caller() -> None:
    async def cancelled_from_inside() -> None:
        raise asyncio.CancelledError

    caller = asyncio.current_task()
    assert caller is not None
    with pytest.raises(asyncio.CancelledError):
        await run_to_its_end(cancelled_from_inside)
    assert caller.cancelling() == 0


@pytest.mark.parametrize("steps", range(8))
def test_an_event_loop_that_ends_cuts_no_work_that_has_begun(steps: int) -> None:
    """``asyncio.run`` cancels every task once its coroutine is done, and waits for them."""
    noted: list[str] = []

    async def work() -> None:
        noted.append("began")
        for _ in range(3):
            await asyncio.sleep(0)
        noted.append("ended")

    async def leave_after_some_steps() -> None:
        caller = asyncio.create_task(run_to_its_end(work))
        for _ in range(steps):
            await asyncio.sleep(0)
        callers.append(caller)

    callers: list[asyncio.Task[None]] = []
    asyncio.run(leave_after_some_steps())
    assert noted in ([], ["began", "ended"])
    assert callers[0].cancelled() == (steps < 6)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("limit", [asyncio.timeout, anyio.fail_after])
async def test_a_time_out_within_the_work_ends_what_it_bounds(limit: Callable[[float], Any]) -> None:
    async def work() -> None:
        if limit is asyncio.timeout:
            async with limit(0.001):
                await asyncio.sleep(LIMIT_S)
        with limit(0.001):
            await asyncio.sleep(LIMIT_S)

    with pytest.raises(TimeoutError):
        await run_to_its_end(work)


async def test_the_caller_waits_for_work_that_began_in_a_cancelled_scope(
    anyio_backend_name: str,
) -> None:
    done: list[str] = []

    async def work(note: Callable[[str], None]) -> None:
        await checkpoint()
        note(anyio_backend_name)

    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_to_its_end(work, done.append)
    assert done == [anyio_backend_name]


async def test_an_event_loop_is_called_from_any_thread() -> None:
    called, here = list[object](), threading.get_ident()
    over = anyio.Event()

    def call(argument: object) -> None:
        called.append((argument, threading.get_ident()))
        over.set()

    await anyio.to_thread.run_sync(in_loop(call), "argument")
    with anyio.fail_after(LIMIT_S):
        await over.wait()
    assert called == [("argument", here)]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_event_loop_that_has_ended_is_called_no_more(backend: str) -> None:
    called = list[str]()

    async def give() -> Callable[..., None]:
        return in_loop(called.append)

    anyio.run(give, backend=backend)("argument")
    assert called == []


class Listens:
    """Has a method that a thread calls."""

    def __init__(self, called: list[object], over: anyio.Event) -> None:
        self.called, self.over = called, over

    def hear(self, argument: object) -> None:
        self.called.append((argument, threading.get_ident()))
        self.over.set()


async def test_an_object_is_called_from_any_thread_for_as_long_as_somebody_has_it() -> None:
    called, over = list[object](), anyio.Event()
    listens = Listens(called, over)
    call = weakly_in_loop(listens.hear)
    await anyio.to_thread.run_sync(call, "argument")
    with anyio.fail_after(LIMIT_S):
        await over.wait()
    assert called == [("argument", threading.get_ident())]
    del listens
    gc.collect()
    await anyio.to_thread.run_sync(call, "nobody")
    await checkpoint()
    assert len(called) == 1


def test_a_function_that_calls_a_loop_weakly_does_not_keep_it() -> None:
    called, loop = list[object](), asyncio.new_event_loop()

    async def make() -> tuple[Listens, Callable[..., None]]:
        listens = Listens(called, anyio.Event())
        return listens, weakly_in_loop(listens.hear)

    (listens, call), weak = loop.run_until_complete(make()), weakref.ref(loop)
    loop.close()
    call("closed")
    del loop
    gc.collect()
    assert weak() is None
    call("gone")
    assert listens.called == []
