"""Calls that are driven in their callers' own tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from mcp_tasks_client.callbacks import Callbacks
from mcp_tasks_client.engine.call_store import CallStore
from mcp_tasks_client.engine.environment import Environment
from mcp_tasks_client.engine.inline import InlineEngine
from mcp_tasks_client.errors import JournalLockedError
from mcp_tasks_client.handle import detach
from mcp_tasks_client.journal.guarded import GuardedJournal
from mcp_tasks_client.journal.memory import MemoryJournal
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.protocol.task import read_task
from mcp_tasks_client.sessions.base import Snapshot
from mcp_tasks_client.testing import completed, text_result, working
from tests.engine.world import text
from tests.scripted_session import ScriptedSession

pytestmark = pytest.mark.anyio

SCOPE = Scope("scripted")


class Locked(MemoryJournal):
    """Refuses one of its methods for as long as it is told to."""

    refuses: str | None = None

    async def open(self) -> None:
        if self.refuses == "open":
            raise JournalLockedError("locked")
        await super().open()

    async def save(self, record: TaskRecord, *, known: bool = False) -> None:
        if self.refuses == "save":
            raise JournalLockedError("locked")
        await super().save(record, known=known)


@pytest.mark.parametrize("refused", ["open", "save"])
async def test_a_task_that_a_journal_could_not_take_is_journaled_with_the_next_call(refused: str) -> None:
    journal = Locked()
    session = ScriptedSession(gets={"second": [completed("second", text_result("done"))]})
    engine = InlineEngine(journal=journal, policy=PollPolicy(), on_abandon="detach", handle_of=detach)
    runner = engine.make_runner(session, Callbacks())

    async def see_through(task_id: str) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
        return await engine.see_through(created, "tool", runner=runner, scope=SCOPE)

    journal.refuses = refused
    with pytest.raises(JournalLockedError) as caught:
        await see_through("first")
    assert caught.value.handle.task_id == "first"
    journal.refuses = None
    assert text(await see_through("second")) == "done"
    async with journal:
        assert "first" in [record.task_id for record in await journal.records(SCOPE)]


async def test_a_commit_that_fails_for_one_call_leaves_the_others_their_own() -> None:
    journal = Locked()
    session = ScriptedSession(gets={"first": [working("first", poll_interval_ms=60_000)]})
    engine = InlineEngine(journal=journal, policy=PollPolicy(), on_abandon="detach", handle_of=detach)
    runner = engine.make_runner(session, Callbacks())

    async def see_through(task_id: str) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=60_000)))
        return await engine.see_through(created, "tool", runner=runner, scope=SCOPE)

    async with journal, anyio.create_task_group() as tasks:
        tasks.start_soon(see_through, "first")
        await anyio.wait_all_tasks_blocked()
        journal.refuses = "save"
        with pytest.raises(JournalLockedError):
            await see_through("second")
        journal.refuses = None
        another = CallStore(GuardedJournal(journal), PollPolicy(), Environment())
        assert await another.take_pending(SCOPE) == []
        tasks.cancel_scope.cancel()
    async with journal:
        assert [call.task_id for call in await another.take_pending(SCOPE)] == ["first"]
        await another.close()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio has no cancellation but that of scopes
async def test_a_task_whose_commit_was_cut_and_failed_is_journaled_with_the_next_call() -> None:
    class Cut(Locked):
        """Its first commit never answers, as that of a thread whose disk hangs."""

        first = True

        async def save(self, record: TaskRecord, *, known: bool = False) -> None:
            if self.first:
                self.first = False
                await anyio.sleep_forever()
            await super().save(record, known=known)

    journal = Cut()
    session = ScriptedSession(gets={"second": [completed("second", text_result("done"))]})
    engine = InlineEngine(journal=journal, policy=PollPolicy(), on_abandon="detach", handle_of=detach)
    runner = engine.make_runner(session, Callbacks())

    async def see_through(task_id: str) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
        return await engine.see_through(created, "tool", runner=runner, scope=SCOPE)

    journal.refuses = "save"
    caller = asyncio.ensure_future(see_through("first"))
    await anyio.wait_all_tasks_blocked()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    journal.refuses = None
    assert text(await see_through("second")) == "done"
    async with journal:
        assert "first" in [record.task_id for record in await journal.records(SCOPE)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio has no cancellation but that of scopes
async def test_a_task_that_was_cut_before_its_first_commit_is_journaled_with_the_next_call() -> None:
    class Hung(Locked):
        """Its commits do not answer for as long as it is told to, as those of a thread whose disk hangs."""

        hangs = False

        async def save(self, record: TaskRecord, *, known: bool = False) -> None:
            if self.hangs:
                await anyio.sleep_forever()
            await super().save(record, known=known)

    journal = Hung()
    session = ScriptedSession(gets={"third": [completed("third", text_result("done"))]})
    engine = InlineEngine(journal=journal, policy=PollPolicy(), on_abandon="detach", handle_of=detach)
    runner = engine.make_runner(session, Callbacks())

    async def see_through(task_id: str) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
        return await engine.see_through(created, "tool", runner=runner, scope=SCOPE)

    journal.refuses = "save"
    with pytest.raises(JournalLockedError):
        await see_through("first")
    journal.refuses, journal.hangs = None, True
    caller = asyncio.ensure_future(see_through("second"))  # waits for the commit of the first
    await anyio.wait_all_tasks_blocked()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    del caller
    journal.hangs = False
    assert text(await see_through("third")) == "done"
    async with journal:
        assert {record.task_id for record in await journal.records(SCOPE)} >= {"first", "second"}
