"""Calls that change hands: owners that cannot be seen and whose lease runs out, and who wait for them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_tasks_client import (
    DrivenElsewhereError,
    JournalCorruptError,
    JournalError,
    OutcomeUnknownError,
    TaskHandle,
    TasksClient,
    TasksClientError,
)
from mcp_tasks_client.old.errors import ConnectionLostError
from mcp_tasks_client.old.events import Notified
from mcp_tasks_client.old.idempotency import OnUnknown
from mcp_tasks_client.old.journal.base import Judge, Taken
from mcp_tasks_client.old.owners import LEASE_S, Place
from mcp_tasks_client.old.sessions.base import Leaving, ToolCall
from mcp_tasks_client.old.testing import (
    FaultPlan,
    ManualClock,
    Point,
    ScriptedSession,
    completed,
    delay,
    input_required,
    raising,
    scripted_client,
    text_result,
    working,
)
from mcp_tasks_client.old.wire import CallReply, read_call_reply, read_task

from ._on_disk import OnDisk
from ._requirements import requirement
from .test_client import ASK, DONE, TASK, Asked, World, text

pytestmark = pytest.mark.anyio

KEY = "order-42"
AT_ONCE = {"resultType": "complete", **text_result("at once")}
DONE_THERE = completed("task-theirs", text_result("done"))
LOST = ConnectionLostError("The connection broke.", retryable=True)


def invisible(
    session: ScriptedSession, clock: ManualClock, path: Path, name: str, **options: Any
) -> TasksClient:
    """A client in a process of its own that no other can see, on clocks of its own."""
    client = scripted_client(session, clock=clock, journal=OnDisk(path, clock), **options)
    client._engine.place = replace(Place.here(), host=name)
    client._engine.lease_s = LEASE_S
    return client


class Late(ScriptedSession):
    """Answers ``tools/call`` when it is told to."""

    def __init__(self, **script: Any) -> None:
        super().__init__(**script)
        self.called, self.go = anyio.Event(), anyio.Event()

    async def call(self, call: ToolCall, leaving: Leaving = anyio.lowlevel.checkpoint) -> CallReply:
        await leaving()
        self._log("tools/call", call=call)
        self.called.set()
        await self.go.wait()
        return read_call_reply(working(TASK, poll_interval_ms=1000))


@requirement("law:2", "law:5")
async def test_a_task_id_that_comes_when_the_call_was_given_up_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    late, clock, other = Late(gets={TASK: [DONE]}), ManualClock(), ManualClock()
    caught: list[DrivenElsewhereError] = []
    async with (
        invisible(late, clock, path, "first") as first,
        invisible(ScriptedSession(), other, path, "second") as second,
    ):
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(overtaken, first, caught)
                await late.called.wait()
                await other.advance(LEASE_S + 1)  # the first one's clocks stand still
                with pytest.raises(OutcomeUnknownError):
                    await second.call_tool("tool", idempotency_key=KEY)
                late.go.set()
            (error,) = caught
            assert error.handle is not None
            assert error.handle.task_id == TASK
            handle = error.handle
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(handle.result)
                while not handle.done:
                    await clock.advance(1)
            assert text(await handle.result()) == "done"
        assert [record.task_id for record in await second.records()] == [TASK]


@requirement("law:2")
async def test_a_task_id_is_not_lost_that_comes_when_the_call_was_repeated_elsewhere_and_is_forgotten(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.sqlite3"
    late, clock, other = Late(gets={TASK: [DONE]}), ManualClock(), ManualClock()
    with anyio.fail_after(20):
        async with (
            invisible(late, clock, path, "first") as first,
            invisible(ScriptedSession(calls=[AT_ONCE]), other, path, "second") as second,
        ):
            caught: list[DrivenElsewhereError] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(overtaken, first, caught)
                await late.called.wait()
                await other.advance(LEASE_S + 1)  # the first one's clock stands still
                result = await second.call_tool("tool", idempotency_key=KEY, on_unknown="resend")
                assert text(result) == "at once"
                await other.advance(61)
                assert await second.prune(0) == 1
                late.go.set()
            handle = caught[0].handle
            assert handle is not None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(handle.result)
                await clock.advance(5)
            assert text(await handle.result()) == "done"
            assert [record.task_id for record in await second.records()] == [TASK]


async def overtaken(client: TasksClient, caught: list[DrivenElsewhereError]) -> None:
    with pytest.raises(DrivenElsewhereError) as raised:
        await client.call_tool("tool", idempotency_key=KEY)
    caught.append(raised.value)


@requirement("law:2")
async def test_a_task_id_that_comes_when_the_call_was_given_up_is_journaled_by_who_leaves_then(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.sqlite3"
    late, clock, other = Late(gets={TASK: [DONE]}), ManualClock(), ManualClock()
    answers = ScriptedSession(clock=other, gets={TASK: [DONE]})
    caught: list[DrivenElsewhereError] = []

    async def host() -> None:
        async with invisible(late, clock, path, "first") as first:
            await overtaken(first, caught)

    with anyio.fail_after(20):
        async with invisible(answers, other, path, "second") as second:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(host)
                await late.called.wait()
                await other.advance(LEASE_S + 1)  # the first one's clock stands still
                with pytest.raises(OutcomeUnknownError):
                    await second.call_tool("tool", idempotency_key=KEY)
                await other.advance(0)
                late.go.set()
            assert len(caught) == 1
            (handle,) = await second.resume()
            assert handle.task_id == TASK


@requirement("law:2", "law:5")
@pytest.mark.parametrize("meanwhile", ["when that is known", "while that is being found out", "at its end"])
async def test_a_reply_that_comes_when_another_has_gone_beyond_its_call_is_no_impossible_event(
    tmp_path: Path, meanwhile: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock, other = tmp_path / "journal.sqlite3", ManualClock(), ManualClock()
    late, plan = Late(), FaultPlan()
    theirs = ScriptedSession(clock=other, calls=[working("task-theirs")], gets={"task-theirs": [DONE_THERE]})
    results: list[str] = []

    async def host() -> None:
        handle: TaskHandle | None = None
        while not results:
            try:
                waits = handle.result() if handle else first.call_tool("tool", idempotency_key=KEY)
                results.append(text(await waits))
            except DrivenElsewhereError as error:
                handle = error.handle

    if meanwhile == "while that is being found out":
        plan.at(Point.TAKE, "before", delay(clock, 1.0))
    with anyio.fail_after(20):
        async with (
            invisible(late, clock, path, "first", probe=plan) as first,
            invisible(theirs, other, path, "second") as second,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(host)
            await late.called.wait()
            await other.advance(LEASE_S + 1)  # the first one's clock stands still
            await second.start_tool("tool", idempotency_key=KEY, on_unknown="resend")
            if meanwhile == "at its end":
                await other.advance(5)
            clock.jump(LEASE_S + 1)
            await clock.advance(LEASE_S / 3)
            late.go.set()
            while not results:
                await clock.advance(1)
                await other.advance(1)
    assert results == ["done"]
    assert "too late" in caplog.text


@requirement("law:5", "cancel:tasks-cancel")
async def test_a_task_that_another_drives_is_cancelled_though_an_answer_of_ours_was_never_journaled(
    tmp_path: Path,
) -> None:
    path, clock, other = tmp_path / "journal.sqlite3", ManualClock(), ManualClock()
    plan = FaultPlan()
    plan.at(Point.ANSWER_READY, "before", raising(JournalError("The disk is full. Make room and try again.")))
    asks = input_required(TASK, {"k": ASK})
    late = ScriptedSession(clock=clock, calls=[working(TASK)], gets={TASK: [asks]})
    with anyio.fail_after(20):
        async with (
            invisible(late, clock, path, "first", probe=plan, elicitation=Asked()) as first,
            invisible(ScriptedSession(gets={TASK: [working(TASK)]}), other, path, "second") as second,
        ):
            handle = await first.start_tool("tool", idempotency_key=KEY)
            await clock.advance(5)
            await other.advance(LEASE_S + 6)  # the first one's clock stands still
            assert len(await second.resume()) == 1
            assert handle._drive is not None
            assert handle._drive.unsaved
            handle._drive.owned = False  # as when it has heard of that
            await handle.cancel()
    assert len(late.log("tasks/cancel")) == 1


class SlowLater(ScriptedSession):
    """Loses the reply to the first ``tools/call``, and takes its time for the next."""

    async def call(self, call: ToolCall, leaving: Leaving = anyio.lowlevel.checkpoint) -> CallReply:
        await leaving()
        self._log("tools/call", call=call)
        if len(self.log("tools/call")) == 1:
            raise LOST
        await self.clock.wait(anyio.Event(), 30)
        return read_call_reply(AT_ONCE)


@requirement("law:2", "law:5")
async def test_a_call_that_is_just_being_sent_again_is_not_let_go_of_by_the_upkeep(tmp_path: Path) -> None:
    path, clock = tmp_path / "journal.sqlite3", ManualClock()
    plan = FaultPlan()
    plan.at(Point.CALL_AGAIN, "before", delay(clock, 4.0))  # during which the upkeep has its turn
    first = scripted_client(SlowLater(clock=clock), journal=OnDisk(path, clock), probe=plan)
    second = scripted_client(ScriptedSession(clock=clock), journal=OnDisk(path, clock))
    results: list[str] = []

    async def call(client: TasksClient, on_unknown: OnUnknown) -> None:
        results.append(text(await client.call_tool("tool", idempotency_key=KEY, on_unknown=on_unknown)))

    first._engine.lease_s = LEASE_S
    with anyio.fail_after(20):
        async with first, second, anyio.create_task_group() as tasks:
            await clock.advance(8)
            with pytest.raises(OutcomeUnknownError):
                await first.call_tool("tool", idempotency_key=KEY)
            await clock.advance(0)
            tasks.start_soon(call, first, "resend")
            await clock.advance(5)
            tasks.start_soon(call, second, "raise")
            await clock.advance(60)
    assert results == ["at once", "at once"]


@pytest.mark.parametrize("key", [KEY, None])
@requirement("law:5", "law:6")
async def test_a_late_owner_does_not_bring_back_what_another_delivered_and_has_had_forgotten(
    tmp_path: Path, key: str | None
) -> None:
    path, clock, other = tmp_path / "journal.sqlite3", ManualClock(), ManualClock()
    late = ScriptedSession(clock=clock, calls=[working(TASK, poll_interval_ms=1000)], gets={TASK: [DONE]})
    with anyio.fail_after(20):
        async with (
            invisible(late, clock, path, "first") as first,
            invisible(ScriptedSession(gets={TASK: [DONE]}), other, path, "second") as second,
        ):
            handle = await first.start_tool("tool", idempotency_key=key)
            await other.advance(LEASE_S + 1)  # the first one's clock stands still
            (theirs,) = await second.resume()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(theirs.result)
                await other.advance(5)
            await other.advance(61)
            assert await second.prune(0) == 1
            for expected in (DrivenElsewhereError, JournalError, JournalError):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(refused, handle, expected)
                    await clock.advance(5)
            assert await second.records() == []


async def refused(handle: TaskHandle, expected: type[TasksClientError]) -> None:
    with pytest.raises(expected) as raised:
        await handle.result()
    assert type(raised.value) is expected
    assert raised.value.handle is handle


@requirement("law:2", "law:5")
async def test_a_caller_that_allows_it_has_a_call_sent_again_whose_owner_it_had_followed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.sqlite3"
    late, clock, other = Late(), ManualClock(), ManualClock()
    answers = ScriptedSession(calls=[AT_ONCE])
    results: list[str] = []

    async def follow() -> None:
        result = await second.call_tool("tool", idempotency_key=KEY, on_unknown="resend")
        results.append(text(result))

    with anyio.fail_after(20):
        async with (
            invisible(answers, other, path, "second") as second,
            invisible(late, clock, path, "first") as first,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(overtaken, first, [])
            await late.called.wait()
            tasks.start_soon(follow)
            await other.advance(LEASE_S - 1)
            assert results == []  # it looks on
            await other.advance(10)  # the first one's clock stands still
            assert results == ["at once"]
            late.go.set()
    assert len(answers.log("tools/call")) == 1


LATER = {"resultType": "input_required", "requestState": "1"}


@requirement("law:2", "law:5")
async def test_a_round_that_another_took_over_before_it_left_is_not_sent_as_well(tmp_path: Path) -> None:
    path, clock, other = tmp_path / "journal.sqlite3", ManualClock(), ManualClock()
    late = ScriptedSession(clock=clock, calls=[LATER, AT_ONCE])
    theirs = ScriptedSession(clock=other, calls=[working(TASK)], gets={TASK: [DONE]})
    with anyio.fail_after(20):
        async with (
            invisible(late, clock, path, "first") as first,
            invisible(theirs, other, path, "second") as second,
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(first.call_tool, "tool", idempotency_key=KEY))
                await clock.advance(0.1)  # the next round is to be sent in a moment
                await other.advance(LEASE_S + 1)
                await second.start_tool("tool", idempotency_key=KEY, on_unknown="resend")
                tasks.cancel_scope.cancel()
            await clock.advance(0)
            caught: list[DrivenElsewhereError] = []
            for _ in range(2):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(overtaken, first, caught)
                    await clock.advance(1)
            handle = caught[-1].handle
            assert handle is not None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(handle.result)
                while not handle.done:
                    await other.advance(1)
                    await clock.advance(1)
            assert text(await handle.result()) == "done"
    assert len(late.log("tools/call")) == 1


class Unreachable(ScriptedSession):
    """Cannot send the first ``tools/call``."""

    unreachable = True

    async def call(self, call: ToolCall, leaving: Leaving = anyio.lowlevel.checkpoint) -> CallReply:
        if self.unreachable:
            self.unreachable = False
            raise ConnectionLostError("No connection came about.", retryable=True, not_executed=True)
        return await super().call(call, leaving)


@requirement("law:2", "law:5")
async def test_what_was_not_yet_sent_is_not_sent_any_more_when_another_has_had_the_call(
    tmp_path: Path,
) -> None:
    path, clock, other = tmp_path / "journal.sqlite3", ManualClock(), ManualClock()
    plan = FaultPlan()
    plan.at(Point.CALL_REFUSED, "before", raising(JournalError("The disk is full. Make room and try again.")))
    late = Unreachable(clock=clock, calls=[AT_ONCE])
    with anyio.fail_after(20):
        async with (
            invisible(late, clock, path, "first", probe=plan) as first,
            invisible(ScriptedSession(clock=other, calls=[LOST]), other, path, "second") as second,
        ):
            with pytest.raises(JournalError) as caught:
                await first.call_tool("tool", idempotency_key=KEY)
            await other.advance(LEASE_S + 1)  # the first one's clocks stand still
            with pytest.raises(OutcomeUnknownError):
                await second.call_tool("tool", idempotency_key=KEY, on_unknown="resend")
            await other.advance(0)
            clock.jump(LEASE_S + 1)
            await clock.advance(LEASE_S)
            handle = caught.value.handle
            assert handle is not None
            with pytest.raises(OutcomeUnknownError):
                await handle.result()
    assert late.log("tools/call") == []


@requirement("law:5", "law:8")
async def test_who_stops_waiting_while_it_asks_for_a_task_does_not_follow_it_for_nobody() -> None:
    world = World(gets={TASK: [working(TASK)]})
    plan = FaultPlan()
    plan.at(Point.TAKE, "before", delay(world.clock, 1.0))
    async with world.client(probe=plan) as second:
        async with world.client() as first:
            await first.start_tool("tool", idempotency_key=KEY)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(second.call_tool, "tool", idempotency_key=KEY))
                await world.clock.advance(0.5)
                tasks.cancel_scope.cancel()
            await world.clock.advance(2)
        polls = len(world.polled_at())
        await world.clock.advance(60)
        assert len(world.polled_at()) == polls
        assert (await world.only_record()).owner is None


@requirement("law:2", "law:5")
async def test_who_stops_waiting_while_a_call_is_being_sent_again_leaves_the_key_to_others(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "journal.sqlite3", ManualClock()
    plan = FaultPlan()
    plan.at(Point.CALL_AGAIN, "before", delay(clock, 1.0))
    session = ScriptedSession(clock=clock, calls=[LOST, AT_ONCE])
    async with (
        scripted_client(session, journal=OnDisk(path, clock), probe=plan) as first,
        scripted_client(session, journal=OnDisk(path, clock)) as second,
    ):
        with pytest.raises(OutcomeUnknownError):
            await first.call_tool("tool", idempotency_key=KEY)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(first.call_tool, "tool", idempotency_key=KEY, on_unknown="resend"))
                while (("before", Point.CALL_AGAIN)) not in plan.passed:
                    await clock.advance(0)
                tasks.cancel_scope.cancel()
            while not [record for record in await second.records() if record.owner is None]:
                await clock.advance(1)
            with pytest.raises(OutcomeUnknownError):
                await second.call_tool("tool", idempotency_key=KEY)
            result = await second.call_tool("tool", idempotency_key=KEY, on_unknown="resend")
        assert text(result) == "at once"
    assert len(session.log("tools/call")) == 2


@requirement("law:5", "law:7")
async def test_a_record_that_cannot_be_read_has_nobody_take_the_others(tmp_path: Path) -> None:
    path, clock = tmp_path / "journal.sqlite3", ManualClock()
    session = ScriptedSession(
        clock=clock,
        calls=[working("task-1"), working("task-2")],
        gets={"task-1": [working("task-1")], "task-2": [completed("task-2", text_result("done"))]},
    )
    async with scripted_client(session, journal=OnDisk(path, clock)) as client:
        await client.start_tool("tool")
        await client.start_tool("tool")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE records SET state = '{' WHERE task_id = 'task-1'")
        connection.commit()
    async with scripted_client(session, journal=OnDisk(path, clock)) as client:
        with pytest.raises(JournalCorruptError):
            await client.resume()
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT DISTINCT owner FROM records").fetchall() == [(None,)]


@requirement("law:5")
async def test_letting_go_of_what_another_has_taken_already_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock, other = tmp_path / "journal.sqlite3", ManualClock(), ManualClock()
    late = ScriptedSession(clock=clock, calls=[working(TASK)], gets={TASK: [working(TASK)]})
    with anyio.fail_after(20):
        async with (
            invisible(late, clock, path, "first") as first,
            invisible(ScriptedSession(gets={TASK: [working(TASK)]}), other, path, "second") as second,
        ):
            handle = await first.start_tool("tool")
            await other.advance(LEASE_S + 1)  # the first one's clock stands still
            assert len(await second.resume()) == 1
            assert handle._drive is not None
            first._engine.scheduler._let_go(handle._drive)
            await clock.advance(0)
            assert not handle._drive.owned
            assert "could not be brought up to date" not in caplog.text


@requirement("law:3", "law:7")
@pytest.mark.parametrize("between", [True, False])
async def test_of_what_was_told_before_another_client_had_the_task_its_memo_is_out_of_date(
    tmp_path: Path, between: bool
) -> None:
    path, clock, other = tmp_path / "journal.sqlite3", ManualClock(), ManualClock()
    session = ScriptedSession(calls=[working(TASK)], gets={TASK: [working(TASK)] * 9})
    theirs = ScriptedSession(gets={TASK: [working(TASK)] * 9})
    async with (
        invisible(session, clock, path, "first") as first,
        invisible(theirs, other, path, "second") as second,
    ):
        handle = await first.start_tool("tool", idempotency_key=KEY)
        drive, scheduler = handle._drive, first._engine.scheduler
        assert drive is not None
        scheduler._let_go(drive)
        await clock.advance(0)
        told = read_task({**working(TASK), "requestState": "as it was then"})
        drive.unsaved.append(Notified(task=told, now=clock.time()))
        if between:
            await second.attach(TASK)
            await other.advance(0)
            for one in list(second._engine.scheduler.drives.values()):
                second._engine.scheduler._let_go(one)
            await other.advance(0)
        assert await scheduler.driver.commits.take(drive)
        (event,) = drive.unsaved
        assert isinstance(event, Notified)
        assert event.task.request_state == (None if between else "as it was then")


@requirement("law:5")
@pytest.mark.parametrize("way", ["key", "attach"])
async def test_an_outcome_that_a_dead_client_left_is_delivered_for_good(tmp_path: Path, way: str) -> None:
    path = tmp_path / "journal.sqlite3"
    session = ScriptedSession(calls=[working(TASK)], gets={TASK: [DONE]})
    clock, other = ManualClock(), ManualClock()
    async with (
        invisible(session, clock, path, "first") as first,
        invisible(ScriptedSession(), other, path, "second") as second,
    ):
        handle = await first.start_tool("tool", idempotency_key=KEY)
        while not handle.done:
            await clock.advance(1)
        await clock.advance(1)
        await other.advance(LEASE_S + 1)  # the first one's clocks stand still, as those of the dead do
        if way == "key":
            result = await second.call_tool("tool", idempotency_key=KEY)
        else:
            result = await (await second.attach(TASK)).result()
        assert text(result) == "done"
        await other.advance(1)
        (record,) = await second.records()
        assert record.delivered_at is not None
        assert await second.resume() == []


@requirement("law:5")
async def test_a_dead_clients_outcome_is_noted_later_if_it_could_not_be_taken_at_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    session = ScriptedSession(calls=[working(TASK)], gets={TASK: [DONE]})
    clock, other = ManualClock(), ManualClock()
    async with (
        invisible(session, clock, path, "first") as first,
        invisible(ScriptedSession(), other, path, "second") as second,
    ):
        handle = await first.start_tool("tool", idempotency_key=KEY)
        while not handle.done:
            await clock.advance(1)
        await clock.advance(1)
        await other.advance(LEASE_S + 1)  # the first one's clocks stand still, as those of the dead do
        journal = second._engine.journal
        take, failures = journal.take, [JournalError("The disk is full.")]

        async def full_once(record_id: str, owner: str, gone: Judge) -> Taken | None:
            if failures:
                raise failures.pop()
            return await take(record_id, owner, gone)

        journal.take = full_once  # type: ignore[method-assign]  # as a disk that is full for a moment
        assert text(await second.call_tool("tool", idempotency_key=KEY)) == "done"
        await other.advance(LEASE_S)
        assert failures == []
        (record,) = await second.records()
        assert record.delivered_at is not None
