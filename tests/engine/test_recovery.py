"""Calls found again: all that is pending after a restart, by a task's ID, by a reference."""

from __future__ import annotations

import gc
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import pytest

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.engine.registry import BATCH
from mcp_tasks_client.errors import JournalCorruptError, TaskNotFoundError, WaitTimeoutError
from mcp_tasks_client.handle import TaskHandle
from mcp_tasks_client.journal.sqlite.journal import SqliteJournal
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.machine.states import Completed, Finished, Observing
from mcp_tasks_client.protocol.task import read_task
from mcp_tasks_client.sessions.base import Snapshot, TaskRef
from mcp_tasks_client.testing import ManualClock, completed, scripted_client, text_result, working
from tests._results import text
from tests.engine.other_process import OnDisk
from tests.engine.world import DONE, NO_JITTER, TASK, World
from tests.kit.probed_journal import Held, ProbedJournal
from tests.scripted_session import STALL, ScriptedSession

pytestmark = pytest.mark.anyio

KEY = "order-42"
AT_WORK = working(TASK, poll_interval_ms=1000)


# ── resume ────────────────────────────────────────────────────────────────────────────────────


async def test_a_record_that_cannot_be_read_withholds_no_other_from_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "journal.sqlite3", ManualClock()
    session = ScriptedSession(
        clock=clock,
        calls=[working("task-1"), working("task-2")],
        gets={"task-1": [working("task-1")], "task-2": [completed("task-2", text_result("done"))]},
    )
    with anyio.fail_after(20):
        async with scripted_client(session, journal=OnDisk(path, clock)) as client:
            await client.start_tool("tool")
            await client.start_tool("tool")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE records SET state = '{' WHERE task_id = 'task-1'")
            connection.commit()
        async with scripted_client(session, journal=OnDisk(path, clock)) as client:
            (handle,) = await client.resume()
            assert handle.task_id == "task-2"
            while not handle.done:
                await clock.advance(1)
            assert text(await handle) == "done"
            assert [record.task_id for record in await client.records()] == []
            with pytest.raises(JournalCorruptError):
                await client.attach("task-1")
    assert "cannot be read" in caplog.text


async def test_what_is_delivered_while_all_is_taken_up_is_not_handed_out_again() -> None:
    world, other = World(), "task-fedcba9876543210"
    world.server.calls = [AT_WORK, working(other, poll_interval_ms=1000)]
    world.server.gets[other] = [completed(other, text_result("done"))]
    world.journal = journal = ProbedJournal()
    async with world.client() as client:
        first = await client.start_tool("tool", idempotency_key=KEY)
        await client.start_tool("tool")
        await world.clock.advance(10)
        taking = Held()
        journal.after("take_pending", taking)
        resumed: list[TaskHandle] = []

        async def resume() -> None:
            resumed.extend(await client.resume())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resume)
            await world.clock.advance(0)
            await first.result()
            taking.go_on.set()
        assert [handle.task_id for handle in resumed] == [other]
        resumed.clear()  # or its handle would be enough
        assert [handle.task_id for handle in await client.resume()] == [other]


async def drop(client: TasksClient) -> None:
    """Start a tool, and have no handle of it."""
    await client.start_tool("tool")


@pytest.mark.parametrize("way", ["call_tool", "start_tool", "attach"])
async def test_what_this_client_drives_for_somebody_is_not_resumed_as_well(way: str) -> None:
    world = World(gets={TASK: [AT_WORK, DONE]})
    results: list[str] = []

    async def use(client: TasksClient) -> None:
        if way == "call_tool":
            results.append(text(await client.call_tool("tool")))
            return
        handle = await (client.start_tool("tool") if way == "start_tool" else client.attach(TASK))
        await anyio.lowlevel.checkpoint()
        await world.clock.sleep(5)  # the outcome comes while nobody waits, and the handle is there
        results.append(text(await handle.result()))

    async with world.client() as client, anyio.create_task_group() as tasks:
        tasks.start_soon(use, client)
        for _ in range(8):
            await world.clock.advance(0.5)
            assert await client.resume() == []
        await world.clock.advance(5)
        assert results == ["done"]
        assert await client.resume() == []


async def test_what_was_resumed_is_not_resumed_again_until_its_handle_is_gone() -> None:
    world, other = World(gets={TASK: [AT_WORK, DONE]}), "task-fedcba9876543210"
    world.server.calls = [AT_WORK, working(other, poll_interval_ms=1000)]
    world.server.gets[other] = [completed(other, text_result("other"))]
    async with world.client() as client:
        await drop(client)
    async with world.client() as client:
        (handle,) = await client.resume()
        assert await client.resume() == []
        await drop(client)
        (new,) = await client.resume()
        assert new.task_id == other
        del handle
        (handle,) = await client.resume()
        assert handle.task_id == TASK
        await world.clock.advance(10)
        assert (handle.done, new.done) == (True, True)
        assert await client.resume() == [], "an outcome that somebody has a handle of"
        del handle, new
        assert [text(await one) for one in await client.resume()] == ["done", "other"]
        assert await client.resume() == []
    assert len(world.server.log("tools/call")) == 2


@pytest.mark.parametrize("way", ["call_tool", "result"])
async def test_what_a_caller_gave_up_is_resumed_unless_it_is_driven_for_a_handle(way: str) -> None:
    world = World(gets={TASK: [AT_WORK, AT_WORK, DONE]})
    async with world.client() as client:

        async def give_up() -> None:
            if way == "call_tool":
                await client.call_tool("tool", timeout=0.3)
            else:
                await (await client.start_tool("tool")).result(0.3)

        with pytest.raises(WaitTimeoutError) as caught:
            await give_up()
        again = await client.resume()
        if way == "result":
            assert again == []
            again = [caught.value.handle]  # type: ignore[list-item]
        (handle,) = again
        await world.during(handle.result, 60)
        assert text(await handle) == "done"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_two_that_resume_at_the_same_time_share_what_there_is(anyio_backend: str) -> None:
    clock, count = ManualClock(), 300
    async with MemoryJournal() as journal:
        for number in range(count):
            await journal.save(pending(number, clock.time() + HINT_S))
        resumed: list[TaskHandle] = []

        async def resume(client: TasksClient) -> None:
            resumed.extend(await client.resume())

        with anyio.fail_after(20):
            async with scripted_client(ScriptedSession(clock=clock), journal=journal) as client:
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(resume, client)
                assert len({handle.task_id for handle in resumed}) == len(resumed) == count


HINT_S: Final = 60.0


def pending(number: int, due_at: float) -> TaskRecord:
    task = read_task(working(f"task-{number}", poll_interval_ms=1000 * HINT_S))
    state = Observing(
        task=task, received_at=0.0, due_at=due_at, poll_interval_ms=1000 * HINT_S, wait_s=HINT_S
    )
    return record(f"pending-{number}", state, number)


def record(record_id: str, state: Any, number: int, **fields: Any) -> TaskRecord:
    return TaskRecord(
        record_id=record_id,
        scope=Scope("scripted"),
        tool="tool",
        state=state,
        created_at=float(number),
        updated_at=float(number),
        **fields,
    )


async def test_many_tasks_are_taken_up_in_order_and_none_is_polled_before_it_is_due() -> None:
    clock, count = ManualClock(), 500
    due_at = [clock.time() + HINT_S * number / count for number in range(count)]
    polled: dict[str, float] = {}

    class Noting(ScriptedSession):
        async def get(self, ref: TaskRef) -> Snapshot:
            polled.setdefault(ref.task_id, clock.time())
            return Snapshot(read_task(working(ref.task_id, poll_interval_ms=1000 * HINT_S)), None)

    async with MemoryJournal() as journal:
        for number in range(count):
            await journal.save(pending(number, due_at[number]))
        with anyio.fail_after(60):
            async with scripted_client(Noting(clock=clock), journal=journal, poll=NO_JITTER) as client:
                handles = await client.resume()
                assert [handle.task_id for handle in handles] == [f"task-{n}" for n in range(count)]
                await clock.advance(HINT_S + 1)
    assert len(polled) == count
    assert not [n for n in range(count) if polled[f"task-{n}"] < due_at[n]]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_resuming_thousands_beside_many_finished_holds_the_event_loop_for_no_long_step(
    tmp_path: Path, anyio_backend: str
) -> None:
    count, finished = 2000, 20_000
    path = tmp_path / "journal.sqlite3"
    now = time.time()
    async with SqliteJournal(path) as journal:
        await journal.save(pending(0, now + 3600))
        await journal.save(
            record(
                "finished-0",
                Finished(outcome=Completed(result=text_result("done"))),
                0,
                idempotency_key="key-0",
                delivered_at=now,
            )
        )
    with closing(sqlite3.connect(path)) as connection:
        multiply(connection, "pending-0", count)
        multiply(connection, "finished-0", finished)
        connection.commit()
    # What the tests before have left takes the garbage collector 50 ms. It stays frozen, as does what
    # `conftest.py` has frozen.
    gc.collect()
    gc.freeze()
    # A busy machine makes one step or another long. What is long of itself is long each time: 20,000 records
    # that are read in one step.
    longest: list[float] = []
    for _ in range(4):
        steps: list[Step] = []
        session = ScriptedSession(gets={"task-0": [STALL]})
        with anyio.fail_after(120):
            async with (
                TasksClient(session, journal=SqliteJournal(path)) as client,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(note_steps, client, steps)
                await anyio.sleep(0)
                handles = await client.resume()
                tasks.cancel_scope.cancel()
        assert len(handles) == count
        assert 0 < max(step.taken for step in steps) <= BATCH
        assert 0 < max(step.begun for step in steps) <= BATCH
        longest.append(max(step.seconds for step in steps))
        if longest[-1] < 0.25:
            return
    pytest.fail(f"each time there was a step as long as this, in seconds: {longest}")


class Step(NamedTuple):
    """What happens between two turns of the event loop."""

    seconds: float
    """Of the thread's own time: what a busy machine gives to others is not the library's."""

    taken: int
    """Calls that the client has more."""

    begun: int
    """Calls that it drives more."""


async def note_steps(client: TasksClient, steps: list[Step]) -> None:
    calls = client._engine.store.registry.live
    before = Step(time.thread_time(), 0, 0)
    while True:
        await anyio.sleep(0)
        driven = sum(call.is_driven for call in calls.values())
        after = Step(time.thread_time(), len(calls), driven)
        steps.append(Step(*(new - old for new, old in zip(after, before, strict=True))))
        before = Step(time.thread_time(), *after[1:])


def multiply(connection: sqlite3.Connection, record_id: str, count: int) -> None:
    """Copy a row, under other IDs."""
    cursor = connection.execute("SELECT * FROM records WHERE record_id = ?", (record_id,))
    names = [column[0] for column in cursor.description]
    row = dict(zip(names, cursor.fetchone(), strict=True))
    del row["sequence"]
    name = record_id.partition("-")[0]
    rows = []
    for number in range(1, count):
        copied = {**row, "record_id": f"{name}-{number}", "created_at": float(number)}
        if row["idempotency_key"] is not None:
            copied["idempotency_key"] = copied["key"] = f"key-{number}"
        rows.append(tuple(copied.values()))
    columns, marks = ", ".join(row), ", ".join("?" * len(row))
    connection.executemany(f"INSERT INTO records ({columns}) VALUES ({marks})", rows)


# ── attach ────────────────────────────────────────────────────────────────────────────────────


async def reference_of(world: World, **options: Any) -> Any:
    async with world.client() as client:
        handle = await client.start_tool("tool", **options)
    return json.loads(json.dumps(handle.reference))


async def test_attaching_a_bare_id_takes_a_first_look_before_it_returns() -> None:
    world = World(gets={TASK: [{**AT_WORK, "statusMessage": "half"}, DONE]})
    async with world.client() as client:
        handle = await client.attach(TASK)
        assert handle.task is not None
        assert (handle.task.status, handle.task.status_message) == ("working", "half")
        assert handle.tool is None
        await world.during(handle.result, 60)
        assert text(await handle) == "done"
    assert world.polled_at() == [0.0, 1.0]


async def test_attaching_what_this_client_observes_already_is_the_same_call() -> None:
    world = World(gets={TASK: [AT_WORK, DONE]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        by_id, by_reference = await client.attach(TASK), await client.attach(handle.reference)
        await world.clock.advance(10)
        assert [text(await one) for one in (handle, by_id, by_reference)] == ["done"] * 3
    assert world.polled_at() == [1.0, 2.0]


@pytest.mark.parametrize("key", [KEY, None])
async def test_a_reference_finds_its_task_after_a_restart_and_keeps_its_pace(key: str | None) -> None:
    world = World()
    reference = await reference_of(world, idempotency_key=key)
    await world.clock.advance(0.5)
    async with world.client() as client:
        handle = await client.attach(reference)
        assert (handle.task_id, handle.tool) == (TASK, "tool")
        await world.during(handle.result, 60)
        assert text(await handle) == "done"
    assert world.polled_at() == [1.0]


async def test_a_reference_finds_its_task_with_another_journal_as_well() -> None:
    world = World()
    reference = await reference_of(world, idempotency_key=KEY)
    world.journal = MemoryJournal()
    async with world.client() as client:
        handle = await client.attach(reference)
        assert [(one.task_id, one.tool) for one in await client.records()] == [(TASK, "tool")]
        assert text(await handle) == "done"


async def test_a_reference_without_a_task_is_found_by_its_own_journal_only() -> None:
    world = World(calls=[{"resultType": "complete", **text_result("at once")}])
    reference = await reference_of(world, idempotency_key=KEY)
    assert reference["task_id"] is None
    async with world.client() as client:
        assert text(await (await client.attach(reference)).result()) == "at once"
    world.journal = MemoryJournal()
    async with world.client() as client:
        with pytest.raises(ValueError, match="attach it with the journal that the call was made with"):
            await client.attach(reference)


async def test_a_task_that_was_gone_is_asked_for_again_by_its_id_and_stays_gone_by_its_reference() -> None:
    world = World(gets={})
    async with world.client() as client:
        world.server.gets.clear()
        world.server.calls = [AT_WORK]
        handle = await client.start_tool("tool", idempotency_key=KEY)
        del world.server.gets[TASK]
        with pytest.raises(TaskNotFoundError):
            await world.during(handle.result, 60)
        world.server.gets[TASK] = [DONE]
        with pytest.raises(TaskNotFoundError):
            await (await client.attach(handle.reference)).result()
        assert text(await (await client.attach(TASK)).result()) == "done"
    assert len(world.server.log("tools/call")) == 1


async def test_attaching_what_nobody_answers_for_can_be_given_up_and_is_not_forgotten() -> None:
    world = World(gets={TASK: [STALL, DONE]})
    async with world.client() as client:
        with anyio.move_on_after(0.2) as scope:
            await client.attach(TASK)
        assert scope.cancelled_caught
        assert [one.task_id for one in await client.records()] == [TASK]
    async with world.client() as client:
        (handle,) = await client.resume()
        await world.during(handle.result, 60)
        assert text(await handle) == "done"


async def test_an_empty_task_id_is_refused() -> None:
    async with World().client() as client:
        with pytest.raises(ValueError, match="cannot be empty"):
            await client.attach("")
