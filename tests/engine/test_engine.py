"""An engine that is not entered: calls are driven while somebody waits for them."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any

import anyio
import pytest

from mcp_tasks_client.engine.call_store import CallStore
from mcp_tasks_client.engine.endpoint import Endpoint
from mcp_tasks_client.engine.engine import Engine
from mcp_tasks_client.engine.environment import Environment
from mcp_tasks_client.errors import InputUnansweredError, JournalLockedError
from mcp_tasks_client.handle import detached
from mcp_tasks_client.journal.base import Journal
from mcp_tasks_client.journal.guarded import GuardedJournal
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.machine.states import questions_of
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.protocol.task import read_task
from mcp_tasks_client.questions.callbacks import Callbacks
from mcp_tasks_client.sessions.base import Snapshot, ToolCall
from mcp_tasks_client.testing import completed, input_required, text_result, working
from tests._results import text
from tests.engine.world import ASK
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

    async def save(self, record: TaskRecord, *, known: bool = False, heeded: str | None = None) -> None:
        if self.refuses == "save":
            raise JournalLockedError("locked")
        await super().save(record, known=known, heeded=heeded)


def dropped_in(journal: Journal, session: ScriptedSession) -> Endpoint:
    engine = Engine(journal=journal, policy=PollPolicy(), on_abandon="detach", handle_of=detached)
    return Endpoint(engine, session, Callbacks(), SCOPE)


@pytest.mark.parametrize("refused", ["open", "save"])
async def test_a_task_that_a_journal_could_not_take_is_journaled_with_the_next_call(refused: str) -> None:
    journal = Locked()
    session = ScriptedSession(gets={"second": [completed("second", text_result("done"))]})
    endpoint = dropped_in(journal, session)

    async def see_through(task_id: str) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
        return await endpoint.see_task_through(created, "tool", timeout=None, listeners=())

    journal.refuses = refused
    with pytest.raises(JournalLockedError) as caught:
        await see_through("first")
    assert caught.value.handle.task_id == "first"
    journal.refuses = None
    assert text(await see_through("second")) == "done"
    assert endpoint.engine.store.unsaved == []
    async with journal:
        assert "first" in [record.task_id for record in await journal.records(SCOPE)]


async def test_an_answer_that_a_journal_could_not_take_is_journaled_with_the_next_call() -> None:
    """Nobody drives the call: the host has answered, and has not called again yet."""
    journal = Locked()
    asking, done = input_required("first", {"k": ASK}), completed("second", text_result("done"))
    endpoint = dropped_in(journal, ScriptedSession(gets={"first": [asking], "second": [done]}))

    async def see_through(task_id: str) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
        return await endpoint.see_task_through(created, "tool", timeout=None, listeners=())

    with pytest.raises(InputUnansweredError) as caught:
        await see_through("first")
    record_id = caught.value.handle.reference["record_id"]
    journal.refuses = "save"
    answers = {"k": {"action": "accept", "content": {"n": 3}}}
    async with endpoint.engine.using_journal():
        with pytest.raises(JournalLockedError):
            await endpoint.answer_and_continue(ToolCall(name="tool"), record_id, answers)
    journal.refuses = None
    assert text(await see_through("second")) == "done"
    async with journal:
        record = await journal.by_id(record_id)
    assert record is not None
    assert record.owner is None
    assert [question.answer for question in questions_of(record.state)] == list(answers.values())


async def test_a_commit_that_fails_for_one_call_leaves_the_others_their_own() -> None:
    journal = Locked()
    session = ScriptedSession(gets={"first": [working("first", poll_interval_ms=60_000)]})
    endpoint = dropped_in(journal, session)

    async def see_through(task_id: str) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=60_000)))
        return await endpoint.see_task_through(created, "tool", timeout=None, listeners=())

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


class Slow(Locked):
    """Its commits answer when they are told to, as those of a thread whose disk is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = anyio.Event()

    async def save(self, record: TaskRecord, *, known: bool = False, heeded: str | None = None) -> None:
        await self.answers.wait()
        await super().save(record, known=known, heeded=heeded)


class Steps:
    """Counts the lines of the engine that run in this thread while the block lasts."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Steps:
        self._before = sys.gettrace()
        sys.settrace(self._enter_frame)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.settrace(self._before)

    def _enter_frame(self, frame: FrameType, event: str, detail: object) -> Any:
        return self._note_line if "/mcp_tasks_client/engine/" in frame.f_code.co_filename else None

    def _note_line(self, frame: FrameType, event: str, detail: object) -> Any:
        self.count += event == "line"
        return self._note_line


async def test_a_call_takes_as_many_steps_however_many_others_wait_for_their_first_commit() -> None:
    async def steps_of(calls: int) -> int:
        journal = Slow()
        ids = [f"task-{number}" for number in range(calls)]
        session = ScriptedSession(gets={name: [completed(name, text_result("done"))] for name in ids})
        endpoint = dropped_in(journal, session)

        async def see_through(task_id: str) -> None:
            created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
            await endpoint.see_task_through(created, "tool", timeout=None, listeners=())

        with Steps() as steps:
            async with journal, anyio.create_task_group() as tasks:
                for task_id in ids:
                    tasks.start_soon(see_through, task_id)
                await anyio.wait_all_tasks_blocked()
                assert len(endpoint.engine.store.unsaved) == calls
                journal.answers.set()
        return steps.count

    few, many = await steps_of(10), await steps_of(100)
    assert many < 11 * few


@pytest.mark.parametrize("refused", [None, "save"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio has no cancellation but that of scopes
async def test_a_native_cancellation_waits_for_the_commit_of_the_task(refused: str | None) -> None:
    journal = Slow()
    session = ScriptedSession(gets={"second": [completed("second", text_result("done"))]})
    endpoint = dropped_in(journal, session)

    async def see_through(task_id: str) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
        return await endpoint.see_task_through(created, "tool", timeout=None, listeners=())

    journal.refuses = refused
    caller = asyncio.ensure_future(see_through("first"))
    await anyio.wait_all_tasks_blocked()
    caller.cancel()
    await anyio.wait_all_tasks_blocked()
    assert not caller.done()
    journal.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    journal.refuses = None
    assert text(await see_through("second")) == "done"
    async with journal:
        assert [(record.task_id, record.owner) for record in await journal.records(SCOPE, pending=True)] == [
            ("first", None)
        ]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio has no cancellation but that of scopes
async def test_a_call_that_is_cancelled_while_it_commits_what_another_left_journals_its_own_task() -> None:
    journal = Slow()
    session = ScriptedSession(gets={"third": [completed("third", text_result("done"))]})
    endpoint = dropped_in(journal, session)

    async def see_through(task_id: str) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
        return await endpoint.see_task_through(created, "tool", timeout=None, listeners=())

    journal.refuses = "save"
    journal.answers.set()
    with pytest.raises(JournalLockedError):
        await see_through("first")
    journal.refuses, journal.answers = None, anyio.Event()
    caller = asyncio.ensure_future(see_through("second"))  # waits for the commit of the first
    await anyio.wait_all_tasks_blocked()
    caller.cancel()
    await anyio.wait_all_tasks_blocked()
    journal.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    del caller
    assert text(await see_through("third")) == "done"
    async with journal:
        assert {record.task_id for record in await journal.records(SCOPE, pending=True)} == {
            "first",
            "second",
        }
