"""Who is driven, when, and by how many at once: stopping, taking up again, sharing, closing.

Each test is of something that was once wrong, or could be without any other test noticing. All of it
is ours; the specification says nothing of it.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ElicitResult

from mcp_tasks_client import (
    ConnectionLostError,
    InputUnansweredError,
    JournalError,
    MemoryJournal,
    OutcomeUnknownError,
    PollPolicy,
    RemoteProtocolError,
    SessionError,
    SqliteJournal,
    TaskExpiredError,
    TaskFailedError,
    TaskHandle,
    TaskNotFoundError,
    TasksClient,
    TasksClientError,
)
from mcp_tasks_client.old.drive import Drive
from mcp_tasks_client.old.journal.base import TaskRecord
from mcp_tasks_client.old.sessions.base import Leaving, TaskRef, ToolCall
from mcp_tasks_client.old.states import Observing
from mcp_tasks_client.old.testing import (
    STALL,
    Delayed,
    ManualClock,
    ScriptedServer,
    ScriptedSession,
    complete,
    completed,
    form,
    input_required,
    scripted_client,
    text_result,
    work,
    working,
)
from mcp_tasks_client.old.turns import together
from mcp_tasks_client.old.wire import CallReply, JSONObject, Task, read_task

from ._requirements import requirement
from ._stops import watched
from .test_client import ASK, DONE, LOST, NO_JITTER, TASK, YES, Asked, FullDisk, World, text

pytestmark = pytest.mark.anyio

DAY_S: Final = 86_400.0
FOUND_OUT_S: Final = 10.0
"""Seconds of real time after which something that should have happened is taken for missing."""


@contextmanager
def nothing_outlives() -> Iterator[None]:
    """Every task that was started within the block has ended with it."""
    with watched(lambda _: None) as watch:
        yield
        assert watch.alive == {}, f"these outlived the client: {[*watch.alive.values()]}"


# ── a poll that is slow to stop ───────────────────────────────────────────────────────────────


class SlowToStop:
    """``tasks/get`` whose clean-up takes until ``cleaned_up`` is set, whatever cancels it.

    Attributes:
        most: Polls under way at once, at most.
    """

    def __init__(self, world: World) -> None:
        self.cleaned_up = anyio.Event()
        self.most = 0
        self._server = world.server
        self._now = 0
        world.server.get = self._get  # type: ignore[method-assign]  # an instance's own verb

    async def _get(self, ref: TaskRef) -> Task:
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            return await ScriptedSession.get(self._server, ref)
        finally:
            with anyio.CancelScope(shield=True):
                await self.cleaned_up.wait()
            self._now -= 1


async def abandoned_while_it_polls(world: World, client: TasksClient) -> None:
    """Make a call whose caller goes away a quarter of a second after its first poll began."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.call_tool, "tool")
        await world.clock.advance(1.25)
        assert world.polled_at() == [1.0]
        tasks.cancel_scope.cancel()


@requirement("law:4", "law:8")
@pytest.mark.parametrize(
    ("clean_up_s", "polled_again_at"),
    [
        pytest.param(10.0, 11.25, id="clean-up ends after the next poll is due"),
        pytest.param(0.25, 2.25, id="clean-up ends before the next poll is due"),
    ],
)
async def test_a_task_taken_up_again_while_its_poll_is_being_stopped_is_polled_again(
    clean_up_s: float, polled_again_at: float
) -> None:
    world = World(gets={TASK: [STALL, DONE]})
    poll = SlowToStop(world)
    async with world.client() as client:
        try:
            await abandoned_while_it_polls(world, client)
            (handle,) = await client.resume()
            await world.clock.advance(clean_up_s)
            assert world.polled_at() == [1.0], "not while the first one is still under way"
        finally:
            poll.cleaned_up.set()
        await world.clock.advance(60)
        assert world.polled_at() == [1.0, polled_again_at]
        assert text(await handle) == "done"
    assert poll.most == 1


@requirement("law:4")
async def test_the_end_of_a_stopped_poll_does_not_bring_the_next_one_forward() -> None:
    """The task is being taken up again just then, and its journal takes its time."""
    world = World(gets={TASK: [STALL, DONE]})
    world.journal = journal = SlowJournal()
    poll = SlowToStop(world)
    async with world.client() as client, anyio.create_task_group() as tasks:
        try:
            await abandoned_while_it_polls(world, client)
            await world.clock.advance(0)
            journal.writes = anyio.Event()
            tasks.start_soon(client.resume)
            await world.clock.advance(0)
        finally:
            poll.cleaned_up.set()
        await world.clock.advance(0.25)
        journal.writes.set()
        await world.clock.advance(60)
        first, second = world.polled_at()
        assert second - first >= 1.0
    assert poll.most == 1


class SlowJournal(MemoryJournal):
    """Saves when ``writes`` is set."""

    writes: anyio.Event | None = None

    async def save(self, record: TaskRecord, *, known: bool = False) -> None:
        if self.writes is not None:
            await self.writes.wait()
        await super().save(record, known=known)


async def test_a_poll_whose_call_was_let_go_of_takes_the_next_poll_not_along() -> None:
    """The commit of what a poll has brought is not stopped, so it ends as one that was, and is not."""
    other = "task-fedcba9876543210"
    world = World(
        calls=[working(TASK, poll_interval_ms=1000), working(other, poll_interval_ms=2000)],
        gets={
            TASK: [working(TASK, status_message="half")],
            other: [completed(other, text_result("done"))],
        },
    )
    world.journal = journal = SlowJournal()
    async with world.client(poll=PollPolicy(jitter=0.0, polls_in_flight=1)) as client:
        async with anyio.create_task_group() as callers:
            callers.start_soon(client.call_tool, "first")
            await world.clock.advance(0)
            handle = await client.start_tool("second")
            journal.writes = anyio.Event()
            await world.clock.advance(5)
            assert len(world.server.log("tasks/get")) == 1
            callers.cancel_scope.cancel()
        await world.clock.advance(0)
        journal.writes.set()
        await world.clock.advance(0)
        assert handle.done
        assert text(await handle.result()) == "done"


@requirement("law:4")
async def test_a_refresh_while_the_task_is_being_taken_up_keeps_the_pace_that_was_set_before() -> None:
    world = World(calls=[working(TASK, poll_interval_ms=60_000)], gets={TASK: [working(TASK)]})
    world.journal = journal = SlowJournal()
    async with world.client() as client:
        reference = (await client.start_tool("tool")).reference
        await world.clock.advance(5)
    async with world.client() as client, anyio.create_task_group() as tasks:

        async def refresh() -> None:
            await (await client.attach(reference)).refresh()

        journal.writes = anyio.Event()
        tasks.start_soon(client.attach, reference)
        await world.clock.advance(0)
        tasks.start_soon(refresh)
        await world.clock.advance(0)
        heap = client._engine.scheduler.performer.turns._heap
        assert heap == [], "or it would hold the drive for ever"
        journal.writes.set()
        await world.clock.advance(54)
        assert world.polled_at() == []
        await world.clock.advance(2)
        assert len(world.polled_at()) == 1


@requirement("law:4")
async def test_a_refresh_after_a_poll_that_was_cut_keeps_the_pace_that_was_set_with_it() -> None:
    clock, journal = ManualClock(), SlowJournal()
    server = ScriptedServer(clock=clock)
    server.tool("tool", [work(3.5), complete(text_result("done"))], poll_interval_ms=1000)
    server.misbehave("tasks/get", Delayed(1.0))
    async with scripted_client(server.session(), journal=journal, poll=NO_JITTER) as client:
        async with anyio.create_task_group() as callers:
            callers.start_soon(client.call_tool, "tool")
            await clock.advance(1.3)
            (drive,) = client._engine.scheduler.drives.values()
            callers.cancel_scope.cancel()
        await clock.advance(0)
        handle = TaskHandle(client._engine.scheduler, drive)
        journal.writes = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle.result)
            await clock.advance(0)
            tasks.start_soon(handle.refresh)
            await clock.advance(0)
            journal.writes.set()
            await clock.advance(10)
    server.witness.check()


@requirement("law:4", "law:5")
async def test_what_a_poll_was_planned_for_before_a_task_was_let_go_of_counts_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(calls=[working(TASK, poll_interval_ms=1000)], gets={TASK: [working(TASK)]})
    take, may_take = world.journal.take, anyio.Event()

    async def slow(*args: Any) -> Any:
        await may_take.wait()
        return await take(*args)

    async with world.client() as client:
        async with anyio.create_task_group() as callers:
            callers.start_soon(client.call_tool, "tool")
            await world.clock.advance(0.5)
            (drive,) = client._engine.scheduler.drives.values()
            callers.cancel_scope.cancel()
        await world.clock.advance(0)
        monkeypatch.setattr(world.journal, "take", slow)
        async with anyio.create_task_group() as callers:
            callers.start_soon(TaskHandle(client._engine.scheduler, drive).result)
            await world.clock.advance(1)
            running, polling = drive.running, drive.polling
            turns = client._engine.scheduler.performer.turns
            turns.wake(drive, math.inf)
            heap = list(turns._heap)
            may_take.set()
            callers.cancel_scope.cancel()
    assert running
    assert not polling, "somebody else may have it"
    assert heap == [], "or it would be held for ever"


@requirement("law:1", "law:3", "law:4")
async def test_what_is_known_of_a_task_that_is_let_go_of_while_it_is_being_saved_is_saved_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, scope = World(calls=[working(TASK, poll_interval_ms=1000)], gets={TASK: []}), anyio.CancelScope()
    asks = input_required(TASK, {"who": form("Who?", name="string")})

    async def call() -> None:
        with scope:
            await client.call_tool("tool")

    async def held(ref: object) -> Any:
        await anyio.sleep_forever()

    async with world.client() as client, anyio.create_task_group() as tasks:
        session = client._engine._session
        monkeypatch.setattr(session, "get", held)
        tasks.start_soon(call)
        await world.clock.advance(5.5)
        monkeypatch.setattr(session, "told", lambda task_id: read_task(asks))
        (drive,) = client._engine.scheduler.drives.values()
        assert drive.polling
        async with drive.lock:  # as while an answer is being journaled
            scope.cancel()
            await world.clock.advance(0)
        await world.clock.advance(0)
        (record,) = await client.records()
        assert isinstance(record.state, Observing)
        assert [question.key for question in record.state.questions] == ["who"]
        assert record.state.due_at == world.clock.time() + 1.0, "the poll may be seen only now"
        assert record.owner is None


# ── abandoned calls ───────────────────────────────────────────────────────────────────────────


@requirement("law:8")
async def test_an_abandoned_call_is_not_cancelled_under_somebody_else_who_waits_for_it() -> None:
    world = World(gets={TASK: [working(TASK)] * 3 + [DONE]})
    results: list[str] = []
    async with world.client(on_abandon="cancel") as client:
        call = partial(client.call_tool, "tool", idempotency_key="k")

        async def stays() -> None:
            results.append(text(await call()))

        async with anyio.create_task_group() as staying:
            staying.start_soon(stays)
            async with anyio.create_task_group() as going:
                going.start_soon(call)
                await world.clock.advance(1.5)
                going.cancel_scope.cancel()
            await world.clock.advance(60)
    assert world.server.log("tasks/cancel") == []
    assert results == ["done"]


@requirement("law:8")
@pytest.mark.parametrize("at_once", [True, False], ids=["both at once", "one after the other"])
async def test_when_the_last_one_who_waits_goes_the_abandoned_call_is_cancelled_once(at_once: bool) -> None:
    world = World(gets={TASK: [working(TASK)]})
    async with world.client(on_abandon="cancel") as client:
        call = partial(client.call_tool, "tool", idempotency_key="k")
        async with anyio.create_task_group() as first:
            first.start_soon(call)
            async with anyio.create_task_group() as second:
                (first if at_once else second).start_soon(call)
                await world.clock.advance(1.5)
                second.cancel_scope.cancel()
            assert world.server.log("tasks/cancel") == []
            first.cancel_scope.cancel()
        assert [sent.task_id for sent in world.server.log("tasks/cancel")] == [TASK]


async def no_longer_than_it_takes_to_find_out(server: ScriptedSession, verb: str, *args: object) -> Any:
    """A request that stalls fails in the end; what is shielded could be stopped by nothing else."""
    with anyio.move_on_after(FOUND_OUT_S):
        return await getattr(ScriptedSession, verb)(server, *args)
    raise AssertionError(f"{verb} was waited for without end")


@requirement("law:8", "law:9")
@pytest.mark.parametrize(
    ("script", "said", "asked"),
    [
        pytest.param(
            {"cancels": [STALL]}, "could not be cancelled in time", 1, id="no reply to tasks/cancel"
        ),
        pytest.param({"calls": [STALL]}, "could not be cancelled in time", 0, id="no reply to tools/call"),
        pytest.param({"cancels": [SessionError("No.")]}, "could not be cancelled: No.", 1, id="refused"),
    ],
)
async def test_an_abandoned_call_that_could_not_be_cancelled_is_logged(
    script: dict[str, Any], said: str, asked: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(**{"gets": {TASK: [working(TASK)]}, **script})
    for verb in ("call", "cancel"):
        setattr(world.server, verb, partial(no_longer_than_it_takes_to_find_out, world.server, verb))
    # Not so little time for a refusal, which comes at once, but on a busy machine.
    policy = PollPolicy(jitter=0.0, cancel_timeout_s=0.05 if "time" in said else 5.0, call_grace_s=0.05)
    with caplog.at_level(logging.WARNING, "mcp_tasks_client"):
        opened = world.client(on_abandon="cancel", poll=policy)
        async with opened as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "tool")
            await world.clock.advance(0.5)
            tasks.cancel_scope.cancel()
    assert said in caplog.text
    assert TASK not in caplog.text
    assert len(world.server.log("tasks/cancel")) == asked


# ── what a session raises of its own ──────────────────────────────────────────────────────────


def foreign(method: str, error: SessionError) -> TaskHandle:
    """The handle of an error that says which request failed, and of what."""
    assert method in str(error)
    assert "RuntimeError: boom" in str(error)
    assert isinstance(error.__cause__, RuntimeError)
    assert error.handle is not None
    return error.handle


def causes(error: BaseException | None) -> Iterator[type[BaseException]]:
    while error is not None:
        yield type(error)
        error = error.__cause__


@requirement("law:7")
async def test_what_tasks_get_raises_of_its_own_is_a_session_error_and_the_task_goes_on() -> None:
    world = World(gets={TASK: [RuntimeError("boom"), DONE]})
    async with world.client() as client:
        with pytest.raises(SessionError) as caught:
            await world.call(client)
        handle = foreign("tasks/get", caught.value)
        assert (await world.only_record()).pending
        await world.during(handle.result, 60)
        assert text(await handle) == "done"


@requirement("law:3", "law:7")
async def test_what_tasks_update_raises_of_its_own_is_a_session_error_and_the_answer_goes_again() -> None:
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [asking, asking, DONE]}, updates=[RuntimeError("boom"), {}])
    asked = Asked(YES, ElicitResult(action="decline"))
    async with world.client(elicitation=asked) as client:
        with pytest.raises(SessionError) as caught:
            await world.call(client)
        handle = foreign("tasks/update", caught.value)
        assert (await world.only_record()).pending
        await world.during(handle.result, 60)
        assert text(await handle) == "done"
    assert [sent.answers for sent in world.server.log("tasks/update")] == [
        {"k": {"action": "accept", "content": {"n": 3}}}
    ] * 2
    assert asked.keys == ["k"]


@requirement("law:7", "law:8")
async def test_what_tasks_cancel_raises_of_its_own_is_a_session_error_and_the_wish_is_kept() -> None:
    world = World(gets={TASK: [working(TASK), DONE]}, cancels=[RuntimeError("boom"), {}])
    async with world.client() as client:
        handle = await client.start_tool("tool")
        with pytest.raises(SessionError) as caught:
            await handle.cancel()
        assert foreign("tasks/cancel", caught.value) is handle
        assert (await world.only_record()).pending
    async with world.client() as client:
        (handle,) = await client.resume()
        await world.during(handle.result, 60)
        assert text(await handle) == "done"
    assert len(world.server.log("tasks/cancel")) == 2


@requirement("law:7", "law:8")
async def test_what_tasks_cancel_raises_of_its_own_does_not_stop_the_polls() -> None:
    """A cancel that did not get through changes nothing about the task, as with a SessionError."""
    world = World(gets={TASK: [working(TASK), DONE]}, cancels=[RuntimeError("boom")])
    async with world.client() as client:
        handle = await client.start_tool("tool")
        with pytest.raises(SessionError):
            await handle.cancel()
        await world.clock.advance(60)
        assert handle.done


@requirement("law:2")
async def test_what_tools_call_raises_of_its_own_under_a_key_is_an_unknown_outcome() -> None:
    world = World(calls=[RuntimeError("boom"), text_result("again")])
    async with world.client() as client:
        with pytest.raises(OutcomeUnknownError) as caught:
            await world.call(client, idempotency_key="k")
        assert RuntimeError in causes(caught.value)
        assert caught.value.handle is not None
        assert (await world.only_record()).status == "outcome_unknown"
        again = await world.call(client, idempotency_key="k", on_unknown="resend")
        assert text(again) == "again"


@requirement("law:2")
async def test_what_tools_call_raises_of_its_own_without_a_key_is_a_session_error() -> None:
    world = World(calls=[RuntimeError("boom")])
    async with world.client() as client:
        with pytest.raises(SessionError) as caught:
            await world.call(client)
    assert foreign("tools/call", caught.value).task_id is None


@requirement("law:2")
@pytest.mark.parametrize("key", ["k", None], ids=["under a key", "without a key"])
async def test_what_is_raised_before_tools_call_has_left_is_a_session_error_and_no_unknown_outcome(
    key: str | None,
) -> None:
    """As an auth flow may while the tools are being listed."""
    world = World(calls=[text_result("now")])
    fails = [True]

    async def call(call: ToolCall, leaving: Leaving = anyio.lowlevel.checkpoint) -> CallReply:
        if fails[0]:
            raise RuntimeError("boom")
        return await ScriptedSession.call(world.server, call, leaving)

    world.server.call = call  # type: ignore[method-assign]  # an instance's own verb
    async with world.client() as client:
        with pytest.raises(SessionError) as caught:
            await world.call(client, idempotency_key=key)
        foreign("tools/call", caught.value)
        assert await client.records() == []
        fails[0] = False
        assert text(await world.call(client, idempotency_key=key)) == "now"


@requirement("law:6")
async def test_what_tools_list_raises_of_its_own_does_not_cost_the_result() -> None:
    """As with a SessionError: the output is then not checked against the tool's schema."""
    world = World()

    async def tool(name: str) -> None:
        raise RuntimeError("boom")

    world.server.tool = tool  # type: ignore[method-assign]  # an instance's own verb
    async with world.client() as client:
        assert text(await world.call(client)) == "done"


# ── people who take their time ────────────────────────────────────────────────────────────────


class Person:
    """A plain function as a callback: it blocks its thread until there is an answer.

    Attributes:
        answered: How often it has returned.
        back: Set when it has.
    """

    def __init__(self, patience_s: float = 5.0) -> None:
        self.answered = 0
        self.back = threading.Event()
        self._patience_s = patience_s  # so that a test that fails ends as well
        self._answers = threading.Event()
        self._asked = 0
        self._came = anyio.Event()

    def __call__(self, context: Any, params: Any) -> ElicitResult:
        anyio.from_thread.run_sync(self._ask)
        self._answers.wait(self._patience_s)
        self.answered += 1
        self.back.set()
        return YES

    def answer(self) -> None:
        self._answers.set()

    async def asked(self, times: int = 1) -> None:
        """Wait until so many questions are before it."""
        while self._asked < times:
            self._came = anyio.Event()
            await self._came.wait()

    def _ask(self) -> None:
        self._asked += 1
        self._came.set()


@requirement("law:1")
async def test_many_prompts_at_once_hold_up_neither_the_hosts_own_threads_nor_the_journal(
    tmp_path: Path,
) -> None:
    threads = int(anyio.to_thread.current_default_thread_limiter().total_tokens)
    task_ids = [f"task-{n:016}" for n in range(threads + 5)]
    asking = [{**input_required(task_id, {"k": ASK}), "resultType": "task"} for task_id in task_ids]
    done = {task_id: [completed(task_id, text_result("done"))] for task_id in task_ids}
    world = World(calls=asking, gets=done)
    person = Person(patience_s=2 * FOUND_OUT_S)
    journal = SqliteJournal(tmp_path / "journal.sqlite3")
    async with world.client(journal=journal, elicitation=person) as client:
        try:
            with anyio.fail_after(FOUND_OUT_S):
                for _ in task_ids:
                    await client.start_tool("tool")
                await person.asked(threads)
                assert await anyio.to_thread.run_sync(int, abandon_on_cancel=True) == 0
                await person.asked(len(task_ids))
                assert {record.task_id for record in await client.records()} == {*task_ids}
                async with SqliteJournal(tmp_path / "another.sqlite3"):
                    pass
            assert person.answered == 0
        finally:
            person.answer()


# ── errors of whatever stands before the server ───────────────────────────────────────────────


URL: Final = "https://server.example/mcp"


class ErrorsOverHttp:
    """Answers each ``tools/call`` with one JSON-RPC error under one HTTP status."""

    def __init__(self, status: int, code: int = -32603) -> None:
        self.calls = 0
        self._status = status
        self._code = code

    def __call__(self, request: httpx.Request) -> httpx.Response:
        message = json.loads(request.content)
        reply: JSONObject = {"jsonrpc": "2.0", "id": message["id"]}
        match message["method"]:
            case "server/discover":
                reply["result"] = {"supportedVersions": ["2026-07-28"]}
            case "tools/list":
                reply["result"] = {"tools": [{"name": "tool", "inputSchema": {"type": "object"}}]}
            case "tools/call":
                self.calls += 1
                reply["error"] = {"code": self._code, "message": "upstream"}
                return httpx.Response(self._status, json=reply)
        return httpx.Response(200, json=reply)


@pytest.fixture
def answered_with(over_httpx: None) -> Iterator[Callable[..., ErrorsOverHttp]]:
    with respx.mock(assert_all_called=False) as router:

        def serve(status: int, code: int = -32603) -> ErrorsOverHttp:
            server = ErrorsOverHttp(status, code)
            router.route(host="server.example").mock(side_effect=server)
            return server

        yield serve


@requirement("law:2")
@pytest.mark.parametrize("status", [502, 503, 504])
@pytest.mark.parametrize("code", [-32603, -32600, -32601, -32602, -32003, -32020])
async def test_a_gateways_error_to_tools_call_says_nothing_about_the_tool(
    status: int, code: int, answered_with: Callable[..., ErrorsOverHttp]
) -> None:
    server = answered_with(status, code)
    with anyio.fail_after(FOUND_OUT_S):
        async with TasksClient(URL, journal=MemoryJournal()) as client:
            with pytest.raises(SessionError) as unkeyed:
                await client.call_tool("tool")
            assert unkeyed.value.http_status == status
            for _ in range(2):
                with pytest.raises(OutcomeUnknownError):
                    await client.call_tool("tool", idempotency_key="k")
            (record,) = await client.records()
    assert record.status == "outcome_unknown"
    assert server.calls == 2, "what may have run is not sent again"


@requirement("law:2")
@pytest.mark.parametrize("status", [200, 500])
async def test_a_servers_own_error_to_tools_call_is_how_the_call_ended(
    status: int, answered_with: Callable[..., ErrorsOverHttp]
) -> None:
    server = answered_with(status)
    with anyio.fail_after(FOUND_OUT_S):
        async with TasksClient(URL, journal=MemoryJournal()) as client:
            for _ in range(2):
                with pytest.raises(TaskFailedError) as caught:
                    await client.call_tool("tool", idempotency_key="k")
                assert (caught.value.code, caught.value.message) == (-32603, "upstream")
            with pytest.raises(TaskFailedError):
                await client.call_tool("tool")
    assert server.calls == 2, "one under the key, which then replays it, and one without"


# ── a later round that is refused ─────────────────────────────────────────────────────────────

FIRST_ROUND: Final[JSONObject] = {
    "resultType": "input_required",
    "inputRequests": {"k": ASK},
    "requestState": "s1",
}
ANSWER: Final = {"k": {"action": "accept", "content": {"n": 3}}}

REFUSED_FOR_GOOD: Final = [
    pytest.param(
        RemoteProtocolError("HeaderMismatch", code=-32020, not_executed=True),
        RemoteProtocolError,
        id="header mismatch",
    ),
    pytest.param(
        SessionError("invalid", code=-32602, remote_message="stale state", not_executed=True),
        TaskFailedError,
        id="invalid params",
    ),
]
REFUSED_FOR_NOW: Final = [
    pytest.param(
        SessionError("busy", retryable=True, http_status=429, not_executed=True), SessionError, id="429"
    ),
    pytest.param(
        SessionError("busy", code=-32000, retryable=True, http_status=429, not_executed=True),
        SessionError,
        id="429 with a JSON-RPC error",
    ),
    pytest.param(
        SessionError("busy", code=-32602, retryable=True, http_status=429, not_executed=True),
        SessionError,
        id="429 with a JSON-RPC error of refusal",
    ),
]


def rounds(world: World) -> list[tuple[JSONObject, str | None]]:
    """What each ``tools/call`` brought along."""
    calls = [sent.call for sent in world.server.log("tools/call")]
    return [(dict(call.input_responses), call.request_state) for call in calls if call is not None]


@requirement("law:2", "law:3", "mrtr:answers")
@pytest.mark.parametrize("same_client", [True, False], ids=["same client", "another client"])
@pytest.mark.parametrize(("refusal", "error"), REFUSED_FOR_GOOD)
async def test_answers_that_the_server_will_not_have_are_dropped_and_the_key_begins_anew(
    refusal: SessionError, error: type[Exception], same_client: bool
) -> None:
    world = World(calls=[FIRST_ROUND, refusal, FIRST_ROUND, working(TASK, poll_interval_ms=1000)])
    asked = Asked()
    async with world.client(elicitation=asked) as client:
        with pytest.raises(error):
            await world.call(client, idempotency_key="k")
        assert await client.records() == []
        if same_client:
            assert text(await world.call(client, idempotency_key="k")) == "done"
    if not same_client:
        async with world.client(elicitation=asked) as client:
            assert text(await world.call(client, idempotency_key="k")) == "done"
    assert rounds(world) == [({}, None), (ANSWER, "s1")] * 2
    assert asked.keys == ["k", "k"]


@requirement("law:2", "law:3", "mrtr:answers")
@pytest.mark.parametrize("same_client", [True, False], ids=["same client", "another client"])
@pytest.mark.parametrize(("refusal", "error"), REFUSED_FOR_NOW)
async def test_answers_of_a_round_that_was_not_let_through_are_kept_and_sent_under_the_key_again(
    refusal: SessionError, error: type[Exception], same_client: bool
) -> None:
    world = World(calls=[FIRST_ROUND, refusal, working(TASK, poll_interval_ms=1000)])
    asked = Asked(YES, ElicitResult(action="decline"))
    async with world.client(elicitation=asked) as client:
        with pytest.raises(error):
            await world.call(client, idempotency_key="k")
        (record,) = await client.records()
        assert record.status == "gathering"
        if same_client:
            assert text(await world.call(client, idempotency_key="k")) == "done"
    if not same_client:
        async with world.client(elicitation=asked) as client:
            assert text(await world.call(client, idempotency_key="k")) == "done"
    assert rounds(world) == [({}, None), (ANSWER, "s1"), (ANSWER, "s1")]
    assert asked.keys == ["k"]


@requirement("law:3", "mrtr:answers")
async def test_answers_are_kept_when_it_is_only_the_list_of_tools_that_is_refused() -> None:
    """As by a server that is being deployed, after a restart of the host."""
    world = World(
        calls=[FIRST_ROUND, SessionError("busy", retryable=True, not_executed=True), text_result("ok")]
    )
    asked = Asked(YES, ElicitResult(action="decline"))
    async with world.client(elicitation=asked) as client:
        with pytest.raises(SessionError):
            await world.call(client, idempotency_key="k")

    async def unlisted(call: ToolCall, leaving: Leaving = anyio.lowlevel.checkpoint) -> CallReply:
        raise RemoteProtocolError("server/discover: no such method", code=-32601, not_executed=True)

    plays, world.server.call = world.server.call, unlisted  # type: ignore[method-assign]
    async with world.client(elicitation=asked) as client:
        with pytest.raises(RemoteProtocolError):
            await world.call(client, idempotency_key="k")
    world.server.call = plays  # type: ignore[method-assign]
    async with world.client(elicitation=asked) as client:
        assert text(await world.call(client, idempotency_key="k")) == "ok"
    assert rounds(world) == [({}, None), (ANSWER, "s1"), (ANSWER, "s1")]
    assert asked.keys == ["k"]


# ── a resend that comes to nothing ────────────────────────────────────────────────────────────


NOT_EXECUTED = [
    pytest.param(
        ConnectionLostError("connection refused", retryable=True, not_executed=True), id="not connected"
    ),
    pytest.param(SessionError("busy", retryable=True, http_status=429, not_executed=True), id="429"),
    pytest.param(SessionError("invalid", code=-32602, not_executed=True), id="refused for good"),
]


async def nobody_sends_it_again_unasked(world: World, sent: int) -> None:
    """Whoever repeats the call, here or elsewhere, is told that it may have run."""
    assert (await world.only_record()).status == "outcome_unknown"
    for _ in range(2):
        async with world.client() as client:
            for _ in range(2):
                with pytest.raises(OutcomeUnknownError):
                    await world.call(client, idempotency_key="k")
    assert len(world.server.log("tools/call")) == sent
    async with world.client() as client:
        assert text(await world.call(client, idempotency_key="k", on_unknown="resend")) == "again"


@requirement("law:2")
@pytest.mark.parametrize("refusal", NOT_EXECUTED)
async def test_a_resend_that_is_refused_leaves_unknown_what_became_of_the_first_call(
    refusal: SessionError,
) -> None:
    world = World(calls=[LOST, refusal, text_result("again")])
    async with world.client() as client:
        with pytest.raises(OutcomeUnknownError):
            await world.call(client, idempotency_key="k")
        with pytest.raises(TasksClientError) as caught:
            await world.call(client, idempotency_key="k", on_unknown="resend")
        assert not isinstance(caught.value, OutcomeUnknownError), "this time it is known that it did not run"
        with pytest.raises(OutcomeUnknownError):
            await world.call(client, idempotency_key="k")
    await nobody_sends_it_again_unasked(world, sent=2)


@requirement("law:2")
async def test_a_resend_that_is_refused_in_a_later_round_leaves_it_unknown_as_well() -> None:
    refusal = SessionError("stale state", code=-32602, not_executed=True)
    world = World(calls=[LOST, FIRST_ROUND, refusal, text_result("again")])
    async with world.client(elicitation=Asked()) as client:
        with pytest.raises(OutcomeUnknownError):
            await world.call(client, idempotency_key="k")
        with pytest.raises(TaskFailedError):
            await world.call(client, idempotency_key="k", on_unknown="resend")
    await nobody_sends_it_again_unasked(world, sent=3)


@requirement("law:2")
@pytest.mark.parametrize("how", ["stopped", "timed out", "closed"])
async def test_a_resend_that_is_stopped_before_it_leaves_leaves_it_unknown(how: str) -> None:
    """As while a tools/list is being waited for that does not come."""
    world = World(calls=[LOST, text_result("again")])
    waits, stopped = anyio.Event(), anyio.CancelScope()

    async def call(call: ToolCall, leaving: Leaving = anyio.lowlevel.checkpoint) -> CallReply:
        waits.set()
        await anyio.sleep_forever()
        raise AssertionError("for ever is over")

    async with anyio.create_task_group() as tasks, world.client() as client:
        with pytest.raises(OutcomeUnknownError):
            await world.call(client, idempotency_key="k")
        plays, world.server.call = world.server.call, call  # type: ignore[method-assign]
        errors: list[TasksClientError] = []

        async def resend() -> None:
            timeout = 0.05 if how == "timed out" else None
            with stopped:
                try:
                    await client.call_tool("tool", idempotency_key="k", on_unknown="resend", timeout=timeout)
                except TasksClientError as error:
                    errors.append(error)

        tasks.start_soon(resend)
        await waits.wait()
        if how == "stopped":
            stopped.cancel()
        while how == "timed out" and not errors:
            await anyio.lowlevel.checkpoint()
        if how != "closed":
            await world.clock.advance(0)
            world.server.call = plays  # type: ignore[method-assign]
            with pytest.raises(OutcomeUnknownError):
                await world.call(client, idempotency_key="k")
        for error in errors:
            assert error.handle is not None
            with pytest.raises(OutcomeUnknownError):
                await error.handle.result()
    world.server.call = plays  # type: ignore[method-assign]
    await nobody_sends_it_again_unasked(world, sent=1)


@requirement("law:2")
async def test_a_resend_whose_refusal_could_not_be_journaled_leaves_it_unknown_after_closing() -> None:
    world = World(calls=[LOST, text_result("again")])
    world.journal = journal = FullDisk()

    async def refused(call: ToolCall, leaving: Leaving = anyio.lowlevel.checkpoint) -> CallReply:
        journal.full = True
        raise SessionError("busy", retryable=True, not_executed=True)

    async with world.client() as client:
        with pytest.raises(OutcomeUnknownError):
            await world.call(client, idempotency_key="k")
        plays, world.server.call = world.server.call, refused  # type: ignore[method-assign]
        with pytest.raises(JournalError) as caught:
            await world.call(client, idempotency_key="k", on_unknown="resend")
        world.server.call = plays  # type: ignore[method-assign]
        journal.full = False
        assert caught.value.handle is not None, "kept, so that the client still knows of the call"
    await nobody_sends_it_again_unasked(world, sent=1)


# ── parked while nobody listens ───────────────────────────────────────────────────────────────


@requirement("law:10")
async def test_what_parked_a_task_in_the_background_is_told_once_and_then_it_is_tried_again() -> None:
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [asking, asking, DONE]})
    asked = Asked(RuntimeError("boom"), YES)
    async with world.client(elicitation=asked) as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(60)
        assert asked.keys == ["k"]
        assert world.polled_at() == [1.0], "a parked task is not polled"
        with pytest.raises(InputUnansweredError, match="boom") as caught:
            await handle.result()
        assert caught.value.handle is handle
        assert asked.keys == ["k"], "nobody is asked again before the host knows"
        await world.during(handle.result, 60)
        assert text(await handle) == "done"
    assert asked.keys == ["k", "k"]


# ── updates beside those who only wait for a while ───────────────────────────────────────────


@requirement("law:8")
@pytest.mark.parametrize("waits", [False, True], ids=["reads later", "waits already"])
async def test_updates_go_on_when_others_have_heard_what_parked_the_task_and_gone(waits: bool) -> None:
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [working(TASK), asking, asking, asking, DONE]})
    async with world.client(elicitation=Asked(RuntimeError("UI not ready"), STALL)) as client:
        handle = await client.start_tool("tool")
        updates = handle.updates()
        seen = [(await anext(updates)).status]
        await world.clock.advance(5)
        with pytest.raises(InputUnansweredError):
            await handle.result()

        async def follow() -> None:
            seen.extend([task.status async for task in updates])

        patience = anyio.CancelScope()

        async def wait() -> None:
            with patience:
                await handle.result()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await world.clock.advance(0.5)
            if waits:
                tasks.start_soon(follow)
                await world.clock.advance(0)
            patience.cancel()
            await world.clock.advance(0)
            if not waits:
                tasks.start_soon(follow)
            await world.clock.advance(60)
            assert seen == ["working", "input_required", "completed"]
            tasks.cancel_scope.cancel()


# ── closing in the middle of things ───────────────────────────────────────────────────────────


class Ended:
    """Notes what ended, in order: the requests of one verb, and the session.

    Attributes:
        begun: Set by the test when a request is under way.
    """

    def __init__(self, server: ScriptedSession) -> None:
        self.order: list[str] = []
        self.begun = anyio.Event()
        self._server = server
        self._aclose = server.aclose
        server.aclose = self._closed  # type: ignore[method-assign]  # an instance's own verb

    async def noted(self, verb: Callable[..., Any], *args: object) -> Any:
        try:
            return await verb(self._server, *args)
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
            self.order.append("request")

    async def _closed(self) -> None:
        self.order.append("session")
        await self._aclose()


@requirement("law:8")
async def test_closing_ends_a_poll_under_way_and_then_the_session() -> None:
    world = World(gets={TASK: [STALL]})
    ended = Ended(world.server)

    async def get(ref: TaskRef) -> Task:
        ended.begun.set()
        task = await ended.noted(ScriptedSession.get, ref)
        assert isinstance(task, Task)
        return task

    world.server.get = get  # type: ignore[method-assign]  # an instance's own verb
    with nothing_outlives():
        async with world.client() as client:
            await client.start_tool("tool")
            await world.clock.advance(1.5)
            assert ended.begun.is_set()
    assert ended.order == ["request", "session"]
    record = await world.only_record()
    assert record.pending
    assert record.owner is None
    await world.clock.advance(3600)
    assert world.polled_at() == [1.0]


@requirement("law:2", "law:8")
@pytest.mark.parametrize("in_time", [True, False], ids=["the reply comes", "no reply comes"])
async def test_closing_leaves_a_call_under_way_its_grace_and_its_caller_none(in_time: bool) -> None:
    world = World()
    ended = Ended(world.server)
    reply = anyio.Event()

    async def late(server: ScriptedSession, call: ToolCall, leaving: Leaving) -> CallReply:
        await leaving()
        ended.begun.set()
        with anyio.move_on_after(FOUND_OUT_S):  # nothing else ends a call that is left its grace for ever
            await reply.wait()
        return await ScriptedSession.call(server, call)

    async def call(call: ToolCall, leaving: Leaving = anyio.lowlevel.checkpoint) -> Any:
        return await ended.noted(late, call, leaving)

    async def caller(client: TasksClient) -> None:
        with pytest.raises(TasksClientError, match="closed"):
            await client.call_tool("tool", idempotency_key="k")
        if in_time:
            reply.set()

    world.server.call = call  # type: ignore[method-assign]  # an instance's own verb
    policy = PollPolicy(jitter=0.0, call_grace_s=FOUND_OUT_S if in_time else 0.05)
    with nothing_outlives():
        async with anyio.create_task_group() as host, world.client(poll=policy) as client:
            host.start_soon(caller, client)
            await ended.begun.wait()
    assert ended.order == ["request", "session"]
    record = await world.only_record()
    assert record.owner is None
    if in_time:
        assert record.task_id == TASK
        assert record.pending
    else:
        assert record.status == "outcome_unknown"
    assert world.polled_at() == []


@requirement("law:3", "law:8")
async def test_closing_does_not_wait_for_a_person_and_does_not_use_a_late_answer() -> None:
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [asking, asking, DONE]})
    ended = Ended(world.server)
    person = Person()
    try:
        with nothing_outlives():
            async with world.client(elicitation=person) as client:
                await client.start_tool("tool")
                await world.clock.advance(1.5)
                await person.asked()
        assert person.answered == 0, "the person's thread was waited for"
    finally:
        person.answer()
    assert await anyio.to_thread.run_sync(person.back.wait, FOUND_OUT_S)
    assert ended.order == ["session"]
    assert [sent.method for sent in world.server.sent] == ["tools/call", "tasks/get"]
    asked = Asked()
    async with world.client(elicitation=asked) as client:
        (handle,) = await client.resume()
        await world.during(handle.result, 60)
        assert text(await handle) == "done"
    assert asked.keys == ["k"]


# ── the cap ───────────────────────────────────────────────────────────────────────────────────


@requirement("law:4")
async def test_no_more_polls_are_under_way_than_allowed_and_the_earliest_due_goes_first() -> None:
    hints = [7, 3, 9, 1, 10, 2, 8, 4, 6, 5]
    task_ids = {hint: f"task-{hint:016}" for hint in hints}
    world = World(
        calls=[working(task_ids[hint], poll_interval_ms=hint * 1000) for hint in hints],
        gets={task_id: [completed(task_id, text_result("done"))] for task_id in task_ids.values()},
    )
    under_way: list[anyio.Event] = []
    polled: list[str] = []
    most = 0

    async def get(ref: TaskRef) -> Task:
        nonlocal most
        polled.append(ref.task_id)
        under_way.append(replied := anyio.Event())
        most = max(most, len(under_way))
        await replied.wait()
        under_way.remove(replied)
        return await ScriptedSession.get(world.server, ref)

    world.server.get = get  # type: ignore[method-assign]  # replies when told to
    async with world.client(poll=PollPolicy(jitter=0.0, polls_in_flight=2)) as client:
        handles = [await client.start_tool("tool") for _ in hints]
        await world.clock.advance(60)
        assert len(under_way) == 2, "as many as there may be"
        while under_way:
            under_way[0].set()
            await world.clock.advance(0)
        assert most == 2
        assert polled == [task_ids[hint] for hint in sorted(hints)]
        assert all(handle.done for handle in handles)


@pytest.mark.parametrize("apart_s", [0, 3], ids=["together", "one after the other"])
async def test_whoever_has_polled_polls_again_and_keeps_nothing_of_what_it_polled(
    apart_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_ids = [f"task-{number:016}" for number in range(6)]
    world = World(
        calls=[working(task_id, poll_interval_ms=1000) for task_id in task_ids],
        gets={task_id: [working(task_id), completed(task_id, text_result("done"))] for task_id in task_ids},
    )
    async with world.client(poll=PollPolicy(jitter=0.0, polls_in_flight=2)) as client:
        turns = client._engine.scheduler.performer.turns
        begun: list[object] = []
        works = turns._work

        def counted(drive: Any) -> Any:
            begun.append(None)
            return works(drive)

        monkeypatch.setattr(turns, "_work", counted)
        seen: list[weakref.ref[Drive]] = []
        for _ in task_ids:
            handle = await client.start_tool("tool")
            assert handle._drive is not None
            seen.append(weakref.ref(handle._drive))
            await world.clock.advance(apart_s)
        await world.clock.advance(10)
        await handle.result()
        del handle
        await world.clock.advance(1)
        gc.collect()
        assert len(world.polled_at()) == 2 * len(task_ids)
        assert 1 <= len(begun) <= 2
        assert [one() for one in seen] == [None] * len(task_ids)


@requirement("law:4")
@given(st.floats(0, 1e9), st.floats(0, sys.float_info.max))
def test_a_poll_is_due_a_moment_later_at_most_and_never_sooner(now: float, after_s: float) -> None:
    due = together(now + after_s, after_s)
    assert now + after_s <= due <= now + after_s * 1.004 + 1e-6
    assert after_s > 1 or due <= now + after_s + after_s**2 / 1024 + 1e-6
    assert after_s > 1e9 or due - (now + after_s) <= 1 / 64


@requirement("law:4")
async def test_polls_that_are_due_at_nearly_the_same_time_need_one_wake_up() -> None:
    task_ids = [f"task-{number:016}" for number in range(8)]
    world = World(
        calls=[working(task_id, poll_interval_ms=5000) for task_id in task_ids],
        gets={task_id: [working(task_id)] for task_id in task_ids},
    )
    async with world.client(poll=PollPolicy(jitter=0.001)) as client:
        for _ in task_ids:
            await client.start_tool("tool")
            await world.clock.advance(0.0001)
        await world.clock.advance(6)
    polled = world.polled_at()
    assert len(polled) == len(task_ids)
    assert len(set(polled)) <= 2


# ── a wall clock that jumps ───────────────────────────────────────────────────────────────────

JUMPS: Final = pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S], ids=["a day forward", "a day back"])
TWO_CALLS: Final = [working(TASK, poll_interval_ms=1000), working("another-task", poll_interval_ms=3_600_000)]
"""The second makes the scheduler look at what is due just then."""


@requirement("law:4")
@JUMPS
async def test_polls_keep_their_pace_when_the_wall_clock_jumps_between_them(jump_s: float) -> None:
    world = World(calls=TWO_CALLS, gets={TASK: [working(TASK)] * 4 + [DONE]})
    async with world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(1.5)
        world.clock.jump(jump_s)
        await client.start_tool("another")
        await world.clock.advance(60)
    assert world.polled_at() == [1.0, 2.0, 3.0, 4.0, 5.0]


@requirement("law:4")
@JUMPS
async def test_polls_keep_their_pace_when_the_wall_clock_jumps_during_one(jump_s: float) -> None:
    world = World(gets={TASK: [working(TASK)] * 4 + [DONE]})

    async def get(ref: TaskRef) -> Task:
        if len(world.polled_at()) == 1:
            world.clock.jump(jump_s)
        return await ScriptedSession.get(world.server, ref)

    world.server.get = get  # type: ignore[method-assign]  # an administrator just then
    async with world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(60)
    assert world.polled_at() == [1.0, 2.0, 3.0, 4.0, 5.0]


@requirement("law:4")
@JUMPS
async def test_a_silence_that_the_server_asked_for_lasts_as_long_when_the_wall_clock_jumps(
    jump_s: float,
) -> None:
    busy = SessionError("busy", retryable=True, http_status=429, retry_after_s=30.0)
    world = World(calls=TWO_CALLS, gets={TASK: [busy, DONE]})
    async with world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(1.5)
        world.clock.jump(jump_s)
        await client.start_tool("another")
        await world.clock.advance(60)
    assert world.polled_at() == [1.0, 31.0]


@requirement("law:7", "ttl:backstop")
@pytest.mark.parametrize(
    ("ttl_ms", "jump_s", "expected"),
    [
        pytest.param(45_000, 0.0, TaskExpiredError, id="no jump, it has passed"),
        pytest.param(45_000, -DAY_S, TaskNotFoundError, id="a day back, it has not"),
        pytest.param(10_000_000, 0.0, TaskNotFoundError, id="no jump, it has not"),
        pytest.param(10_000_000, DAY_S, TaskExpiredError, id="a day forward, it has"),
    ],
)
async def test_the_time_to_live_counts_by_the_wall_clock_and_only_names_the_end(
    ttl_ms: int, jump_s: float, expected: type[Exception]
) -> None:
    """It has to outlive processes, so nothing else can count it. It never ends a task by itself."""
    gone = SessionError("?", code=-32602, remote_message="not found")
    created = working(TASK, poll_interval_ms=20_000, ttl_ms=ttl_ms)
    world = World(calls=[created], gets={TASK: [created, created, gone]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(1)
        world.clock.jump(jump_s)
        await world.clock.advance(50)
        assert world.polled_at() == [20.0, 40.0]
        await world.clock.advance(50)
        with pytest.raises(expected) as caught:
            await handle.result()
    assert type(caught.value) is expected
    assert world.polled_at() == [20.0, 40.0, 60.0]


@requirement("law:4")
@pytest.mark.parametrize(
    ("jump_s", "polled_at"),
    [
        pytest.param(-DAY_S, 80.0, id="a day back, at most one interval"),
        pytest.param(DAY_S, 20.0, id="a day forward, overdue"),
    ],
)
async def test_after_a_restart_and_a_jump_the_wait_is_an_interval_at_most(
    jump_s: float, polled_at: float
) -> None:
    world = World(calls=[working(TASK, poll_interval_ms=60_000)])
    async with world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(20)
    world.clock.jump(jump_s)
    async with world.client(poll=NO_JITTER) as client:
        (handle,) = await client.resume()
        await world.clock.advance(120)
        assert handle.done
    assert world.polled_at() == [polled_at]
