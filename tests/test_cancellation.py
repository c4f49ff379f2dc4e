"""Stopped anywhere, nothing is left behind and nothing is lost: both event loops, every await.

Each scenario is a whole life of a client. It is run again and again, and stopped at its first
moment, its second, and so on until it ends before it is stopped; see :mod:`tests._stops` for what
a moment is. After each stop a second life over the same journal must bring it to its result.
"""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import anyio
import pytest
import trio
from mcp_types import CallToolResult

from mcp_tasks_client import TaskCancelledError, TasksClient, WaitTimeoutError

from ._one_task import RESULT, TASK_ID, World
from ._stops import LIMIT_S, TIMEOUT_S, How, Stop, Watch, watched

pytestmark = pytest.mark.anyio

Life: TypeAlias = Callable[[World, TasksClient], Awaitable[None]]

KEY: Final = "order-42"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A life, and how a second one takes up what is left of it."""

    name: str
    act: Life
    again: Life
    keeps: bool = False
    """Whether the client goes on with it after the stop, for the handles that it gave out."""

    covers: frozenset[str]
    """What must have been under way at some stop, or the test has become empty."""

    options: dict[str, Any] = field(default_factory=dict)
    before: Life | None = None
    """A life before that is not stopped."""

    timed: bool = False
    """Whether it can time out."""


def check(result: CallToolResult) -> None:
    assert result.structured_content == RESULT["structuredContent"]


# ── lives ─────────────────────────────────────────────────────────────────────────────────────


async def call(world: World, client: TasksClient) -> None:
    check(await client.call_tool("tool", {"a": 1}, timeout=world.timeout))


async def call_with_updates(world: World, client: TasksClient) -> None:
    async def on_update(task: object) -> None:
        await anyio.lowlevel.checkpoint()

    check(await client.call_tool("tool", {"a": 1}, timeout=world.timeout, on_update=on_update))


async def call_with_key(world: World, client: TasksClient) -> None:
    check(await client.call_tool("tool", {"a": 1}, timeout=world.timeout, idempotency_key=KEY))


async def start(world: World, client: TasksClient) -> None:
    handle = await client.start_tool("tool", {"a": 1})
    assert handle.task_id == TASK_ID
    statuses = [task.status async for task in handle.updates()]
    assert statuses[-1] == "completed"
    check(await handle.result())


async def start_and_leave(world: World, client: TasksClient) -> None:
    await client.start_tool("tool", {"a": 1})


async def start_and_cancel(world: World, client: TasksClient) -> None:
    handle = await client.start_tool("tool", {"a": 1})
    await handle.cancel()
    with pytest.raises(TaskCancelledError):
        await handle.result()


async def resume(world: World, client: TasksClient) -> None:
    handles = await client.resume()
    if not world.server.created:
        assert handles == []
    for handle in handles:
        check(await handle.result())


async def resume_what_there_is(world: World, client: TasksClient) -> None:
    """After a life whose outcome may have been delivered already."""
    for handle in await client.resume():
        check(await handle.result())


async def resume_cancelled(world: World, client: TasksClient) -> None:
    for handle in await client.resume():
        try:
            check(await handle.result())
        except TaskCancelledError:
            assert world.server.cancels


async def attach(world: World, client: TasksClient) -> None:
    world.server.create()
    handle = await client.attach(TASK_ID)
    check(await handle.result())


ALL: Final = frozenset({"tools/call", "tasks/get", "tasks/update", "tools/list", "asking", "journal"})

SCENARIOS: Final = [
    Scenario(name="call", act=call, again=resume, covers=ALL, timed=True),
    Scenario(name="call with updates", act=call_with_updates, again=resume, covers=ALL, timed=True),
    Scenario(name="call with a key", act=call_with_key, again=call_with_key, covers=ALL, timed=True),
    Scenario(
        name="rounds before the task",
        act=call_with_key,
        again=call_with_key,
        covers=ALL,
        options={"rounds": ["question", "state", "question"]},
        timed=True,
    ),
    Scenario(
        name="result at once under a key",
        act=call_with_key,
        again=call_with_key,
        covers=frozenset({"tools/call", "tools/list", "journal"}),
        options={"at_once": True},
        timed=True,
    ),
    Scenario(name="start and follow", act=start, again=resume, covers=ALL, keeps=True),
    Scenario(
        name="start and cancel",
        act=start_and_cancel,
        again=resume_cancelled,
        covers=frozenset({"tools/call", "tasks/cancel", "tasks/get", "journal"}),
        keeps=True,
    ),
    Scenario(
        name="resume", before=start_and_leave, act=resume, again=resume, covers=ALL - {"tools/call"}, keeps=True
    ),
    Scenario(name="attach", act=attach, again=attach, covers=ALL - {"tools/call"}, keeps=True),
    Scenario(
        name="abandoned means cancelled",
        act=call,
        again=resume_cancelled,
        covers=ALL,
        options={"on_abandon": "cancel"},
        timed=True,
    ),
]


# ── stopping ──────────────────────────────────────────────────────────────────────────────────


async def lived(watch: Watch, life: Callable[[], Awaitable[None]]) -> None:
    """Live a life in a task of its own, which is then the last one."""
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(life)
    assert watch.alive == {}, "these outlived the client"


async def stopped(scenario: Scenario, how: How, at: int) -> Stop:
    """One run, stopped at moment ``at``, and the life after it."""
    world = World(**scenario.options)
    if how is How.TIMEOUT:
        world.timeout = TIMEOUT_S
    if scenario.before is not None:
        async with world.client() as client:
            await scenario.before(world, client)
    stop = Stop(how, at, world.doings.now)
    ended = False

    async def first() -> None:
        nonlocal ended
        async with stop.block(), world.client() as client:
            idle = set(watch.alive)
            unfinished: WaitTimeoutError | None = None
            async with stop.call():
                try:
                    await scenario.act(world, client)
                    ended = True
                except WaitTimeoutError as error:
                    assert stop.fired
                    unfinished = error
            if how.whole:
                return
            await watch.until(lambda: set(watch.alive) <= idle)
            world.at_rest()
            world.timeout = None
            if unfinished is not None and unfinished.handle is not None and "on_abandon" not in scenario.options:
                check(await unfinished.handle.result())
            elif not ended:
                await scenario.again(world, client)

    async def second() -> None:
        async with world.client() as client:
            await scenario.again(world, client)

    try:
        with watched(stop.moment) as watch:
            await lived(watch, first)
            await world.let_go()
            world.timeout = None
            if how.whole and not ended:
                await lived(watch, second)
                await world.let_go()
        world.promises()
        delivered = [record for record in await world.records() if record.pending]
        assert delivered == [], "still to be delivered"
        assert stop.fired or ended
    except Exception as error:
        error.add_note(f"stopped at moment {at}, {stop.where}; under way: {sorted(stop.meanwhile)}")
        raise
    return stop


def said(error: BaseException) -> str:
    """An error, and what is in it, in one line."""
    inner = getattr(error, "exceptions", ())
    text = "; ".join(map(said, inner)) or f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return " ".join([text, *getattr(error, "__notes__", ())])


async def stopped_everywhere(scenario: Scenario, how: How, monkeypatch: pytest.MonkeyPatch) -> int:
    """Stop at every moment there is.

    Returns:
        How many there were.
    """
    seen: set[str] = set()
    failures: list[str] = []
    for at in itertools.count(1):
        # Trio runs what is ready in an order of chance, of which a failure could not be repeated.
        monkeypatch.setattr(trio._core._run, "_r", random.Random(at))
        try:
            stop = await stopped(scenario, how, at)
        except Exception as error:
            failures.append(said(error))
            if len(failures) >= MOST_FAILURES:
                break
            continue
        if not stop.fired:
            break
        seen |= stop.meanwhile
    gc.collect()  # whatever was dropped half-way complains now, and not in another test
    assert failures == []
    assert scenario.covers <= seen
    return at - 1


MOST_FAILURES: Final = 5


@pytest.mark.parametrize("how", How, ids=lambda how: how.value)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_stopped_at_any_moment_nothing_is_left_and_nothing_is_lost(
    scenario: Scenario,
    how: How,
    anyio_backend_name: str,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    if how.native and anyio_backend_name == "trio":
        pytest.skip("trio has no other cancellation than that of scopes")
    if how is How.TIMEOUT and not scenario.timed:
        pytest.skip("nothing in it takes a timeout")
    stops = await stopped_everywhere(scenario, how, monkeypatch)
    assert stops > 20
    record_property("stops", stops)
    print(f"{stops} stops")
