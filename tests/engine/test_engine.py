"""An engine that is not entered: calls are driven while somebody waits for them."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any

import anyio
import pytest

from mcp_tasks_client.engine.call_store import CallStore
from mcp_tasks_client.engine.endpoint import Endpoint, HostLine
from mcp_tasks_client.engine.engine import Engine
from mcp_tasks_client.engine.environment import Environment
from mcp_tasks_client.errors import InputUnansweredError, JournalLockedError
from mcp_tasks_client.journal.base import Journal
from mcp_tasks_client.journal.guarded import GuardedJournal
from mcp_tasks_client.machine.record import Scope
from mcp_tasks_client.machine.states import questions_of
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.protocol.task import read_task
from mcp_tasks_client.questions.callbacks import Callbacks
from mcp_tasks_client.sessions.base import Snapshot, ToolCall
from mcp_tasks_client.testing import completed, input_required, text_result, working
from tests._results import text
from tests.engine.world import ASK
from tests.kit.probed_journal import Held, ProbedJournal
from tests.scripted_session import ScriptedSession

pytestmark = pytest.mark.anyio

SCOPE = Scope("scripted")


def locked() -> ProbedJournal:
    """A journal that refuses nothing yet."""
    return ProbedJournal(error=JournalLockedError("locked"))


def dropped_in(journal: Journal, session: ScriptedSession) -> Endpoint:
    engine = Engine(journal=journal, policy=PollPolicy(), on_abandon="detach")
    return Endpoint(engine, session, Callbacks(), SCOPE)


@pytest.mark.parametrize("refused", ["open", "save"])
async def test_a_task_that_a_journal_could_not_take_is_journaled_with_the_next_call(refused: str) -> None:
    journal = locked()
    session = ScriptedSession(gets={"second": [completed("second", text_result("done"))]})
    endpoint = dropped_in(journal, session)

    async def see_through(task_id: str, line: HostLine) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
        return await endpoint.see_task_through(line, created, "tool", timeout=None)

    journal.refuses, line = (refused,), HostLine()
    with pytest.raises(JournalLockedError):
        await see_through("first", line)
    assert line.begun.task_id == "first"
    journal.refuses = ()
    assert text(await see_through("second", HostLine())) == "done"
    assert endpoint.engine.store.registry.unsaved == set()
    async with journal:
        assert "first" in [record.task_id for record in await journal.records(SCOPE)]


async def test_an_answer_that_a_journal_could_not_take_is_journaled_with_the_next_call() -> None:
    """Nobody drives the call: the host has answered, and has not called again yet."""
    journal = locked()
    asking, done = input_required("first", {"k": ASK}), completed("second", text_result("done"))
    endpoint = dropped_in(journal, ScriptedSession(gets={"first": [asking], "second": [done]}))

    async def see_through(task_id: str, line: HostLine) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
        return await endpoint.see_task_through(line, created, "tool", timeout=None)

    line = HostLine()
    with pytest.raises(InputUnansweredError):
        await see_through("first", line)
    record_id = line.begun.record.record_id
    journal.refuses = ("save",)
    answers = {"k": {"action": "accept", "content": {"n": 3}}}
    async with endpoint.engine.using_journal():
        with pytest.raises(JournalLockedError):
            await endpoint.answer_and_continue(ToolCall(name="tool"), record_id, answers)
    journal.refuses = ()
    assert text(await see_through("second", HostLine())) == "done"
    async with journal:
        record = await journal.by_id(record_id)
    assert record is not None
    assert record.owner is None
    assert [question.answer for question in questions_of(record.state)] == list(answers.values())


async def test_a_commit_that_fails_for_one_call_leaves_the_others_their_own() -> None:
    journal = locked()
    session = ScriptedSession(gets={"first": [working("first", poll_interval_ms=60_000)]})
    endpoint = dropped_in(journal, session)

    async def see_through(task_id: str) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=60_000)))
        return await endpoint.see_task_through(HostLine(), created, "tool", timeout=None)

    async with journal, anyio.create_task_group() as tasks:
        tasks.start_soon(see_through, "first")
        await anyio.wait_all_tasks_blocked()
        journal.refuses = ("save",)
        with pytest.raises(JournalLockedError):
            await see_through("second")
        journal.refuses = ()
        another = CallStore(GuardedJournal(journal), PollPolicy(), Environment())
        assert await another.owning.take_pending(SCOPE) == []
        tasks.cancel_scope.cancel()
    async with journal:
        assert [call.task_id for call in await another.owning.take_pending(SCOPE)] == ["first"]
        await another.close()


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
        journal, answers = locked(), anyio.Event()
        journal.before("save", answers.wait)  # as a slow disk answers
        ids = [f"task-{number}" for number in range(calls)]
        session = ScriptedSession(gets={name: [completed(name, text_result("done"))] for name in ids})
        endpoint = dropped_in(journal, session)

        async def see_through(task_id: str) -> None:
            created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
            await endpoint.see_task_through(HostLine(), created, "tool", timeout=None)

        with Steps() as steps:
            async with journal, anyio.create_task_group() as tasks:
                for task_id in ids:
                    tasks.start_soon(see_through, task_id)
                await anyio.wait_all_tasks_blocked()
                assert len(endpoint.engine.store.registry.unsaved) == calls
                answers.set()
        return steps.count

    few, many = await steps_of(10), await steps_of(100)
    assert many < 11 * few


@pytest.mark.parametrize("refused", [None, "save"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio has no cancellation but that of scopes
async def test_a_native_cancellation_waits_for_the_commit_of_the_task(refused: str | None) -> None:
    journal, commit = locked(), Held()
    journal.before("save", commit)  # as a thread whose disk is slow
    session = ScriptedSession(gets={"second": [completed("second", text_result("done"))]})
    endpoint = dropped_in(journal, session)

    async def see_through(task_id: str) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
        return await endpoint.see_task_through(HostLine(), created, "tool", timeout=None)

    journal.refuses = () if refused is None else (refused,)
    caller = asyncio.ensure_future(see_through("first"))
    await anyio.wait_all_tasks_blocked()
    caller.cancel()
    await anyio.wait_all_tasks_blocked()
    assert not caller.done()
    commit.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    journal.refuses = ()
    assert text(await see_through("second")) == "done"
    async with journal:
        assert [(record.task_id, record.owner) for record in await journal.records(SCOPE, pending=True)] == [
            ("first", None)
        ]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio has no cancellation but that of scopes
async def test_a_native_cancellation_waits_once_for_a_journal_that_is_away() -> None:
    """For the release of the call. Each attempt may take as long as an outage."""
    journal = ProbedJournal()
    polled = anyio.Event()
    session = ScriptedSession(gets={"first": [working("first", poll_interval_ms=60_000)]})
    endpoint = dropped_in(journal, session)

    async def see_through() -> Any:
        created = Snapshot(read_task(working("first", poll_interval_ms=1)))
        line = HostLine([lambda task: polled.set()])
        return await endpoint.see_task_through(line, created, "tool", timeout=None)

    caller = asyncio.ensure_future(see_through())
    await polled.wait()
    await anyio.wait_all_tasks_blocked()
    journal.refuses, before = ("save",), journal.counts["save"]
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert journal.counts["save"] == before + 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio has no cancellation but that of scopes
async def test_a_call_that_is_cancelled_while_it_commits_what_another_left_journals_its_own_task() -> None:
    journal, commit = locked(), Held()
    session = ScriptedSession(gets={"third": [completed("third", text_result("done"))]})
    endpoint = dropped_in(journal, session)

    async def see_through(task_id: str) -> Any:
        created = Snapshot(read_task(working(task_id, poll_interval_ms=1)))
        return await endpoint.see_task_through(HostLine(), created, "tool", timeout=None)

    journal.refuses = ("save",)
    with pytest.raises(JournalLockedError):
        await see_through("first")
    journal.refuses = ()
    journal.before("save", commit)
    caller = asyncio.ensure_future(see_through("second"))  # waits for the commit of the first
    await anyio.wait_all_tasks_blocked()
    caller.cancel()
    await anyio.wait_all_tasks_blocked()
    commit.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    del caller
    assert text(await see_through("third")) == "done"
    async with journal:
        assert {record.task_id for record in await journal.records(SCOPE, pending=True)} == {
            "first",
            "second",
        }
