"""What holds a call together: signals, set once and waited for by many; its lock; its prompts."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from mcp_tasks_client.old.drive import Lock
from mcp_tasks_client.old.prompts import Prompts
from mcp_tasks_client.old.signals import signal

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


class Counted(asyncio.Future[None]):
    """A future that counts how often one of its kind is looked at."""

    looks = 0

    def done(self) -> bool:
        Counted.looks += 1
        return super().done()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Counts from 0 what is looked at, once the loop has been told to make such futures."""

    def count() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "create_future", lambda: Counted(loop=loop))

    monkeypatch.setattr(Counted, "looks", 0)
    return count


ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # on trio it is an event of anyio's


@ON_ASYNCIO
async def test_each_who_waits_costs_the_same_however_many_wait(counted: Any) -> None:
    many = 2000
    told, woken = signal(), 0

    async def wait() -> None:
        nonlocal woken
        await told.wait()
        woken += 1

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            counted()
            for _ in range(many):
                tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            told.set()
    assert woken == many
    assert 0 < Counted.looks <= 10 * many


@ON_ASYNCIO
async def test_those_who_come_and_go_cost_the_same_however_many_stay(counted: Any) -> None:
    many = 1000
    told = signal()

    async def stay() -> None:
        await told.wait()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            counted()
            for _ in range(many):
                tasks.start_soon(stay)
            await anyio.wait_all_tasks_blocked()
            for _ in range(many):
                with anyio.move_on_after(0):
                    await told.wait()
            told.set()
    assert 0 < Counted.looks <= 20 * many


# ── the lock of a call ────────────────────────────────────────────────────────────────────────


async def test_whoever_comes_first_is_let_in_first_though_the_one_before_comes_back_at_once() -> None:
    lock, order = Lock(), list[str]()

    async def enter(name: str) -> None:
        async with lock:
            order.append(name)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            async with lock:
                for name in ("first", "second"):
                    tasks.start_soon(enter, name)
                    await anyio.wait_all_tasks_blocked()
            await enter("again")
    assert order == ["first", "second", "again"]
    assert not lock.locked


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio cancels nobody whose turn has come
async def test_whoever_is_cancelled_by_asyncio_when_it_is_their_turn_passes_it_on() -> None:
    lock = Lock()

    async def enter() -> None:
        async with lock:
            pass

    async with lock:
        first, second = asyncio.create_task(enter()), asyncio.create_task(enter())
        await anyio.wait_all_tasks_blocked()
    first.cancel()
    with anyio.fail_after(5):
        await asyncio.wait([first, second])
    assert first.cancelled()
    assert not second.cancelled()
    assert not lock.locked


@pytest.mark.parametrize("when", ["while it waits", "when it is its turn"])
async def test_whoever_goes_away_holds_up_nobody(when: str) -> None:
    lock, entered = Lock(), list[str]()
    scope = anyio.CancelScope()

    async def enter(name: str, within: anyio.CancelScope) -> None:
        with within:
            async with lock:
                entered.append(name)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            async with lock:
                tasks.start_soon(enter, "goes away", scope)
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(enter, "stays", anyio.CancelScope())
                await anyio.wait_all_tasks_blocked()
                if when == "while it waits":
                    scope.cancel()
                    await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert entered[-1:] == ["stays"]
    assert "goes away" not in entered or when == "when it is its turn"
    assert not lock.locked


# ── prompts of a call ─────────────────────────────────────────────────────────────────────────


async def test_after_a_stop_nothing_is_held_back_by_who_waited_before() -> None:
    prompts = Prompts()
    persons, programs = prompts.queues
    with anyio.fail_after(5), persons.at_work():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prompts.others_rest, programs)
            await anyio.wait_all_tasks_blocked()
            assert prompts.held_by is programs
            prompts.stop()
            assert prompts.held_by is None
            tasks.cancel_scope.cancel()


async def test_of_two_without_an_answer_neither_waits_for_the_other() -> None:
    prompts = Prompts()
    persons, programs = prompts.queues
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            with persons.at_work():
                tasks.start_soon(prompts.others_rest, programs)
                await anyio.wait_all_tasks_blocked()
            await prompts.others_rest(persons)
    assert prompts.held_by is None
