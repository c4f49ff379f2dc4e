"""Snapshots that come unasked: they only add, and polls keep their pace whatever comes."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import ConnectionLostError
from mcp_tasks_client.handle import TaskHandle
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.task import read_task
from mcp_tasks_client.sessions.base import ObservedTasks, Snapshot
from mcp_tasks_client.testing import (
    ManualClock,
    Notifies,
    ScriptedServer,
    Step,
    ask,
    complete,
    completed,
    fail,
    form,
    input_required,
    scripted_client,
    text_result,
    work,
    working,
)
from tests._results import text
from tests.engine.other_process import LEASE_S, invisible
from tests.engine.world import ASK, DONE, NO_JITTER, TASK, Asked, World
from tests.kit.probed_journal import Held, ProbedJournal
from tests.scripted_session import ScriptedSession

pytestmark = pytest.mark.anyio

HINT_S = 5.0
AT_WORK = working(TASK, poll_interval_ms=5000)


# ── what the engine makes of a snapshot ───────────────────────────────────────────────────────


class PushSession(ScriptedSession):
    """Delivers what the test tells it to."""

    observed: ObservedTasks

    async def run(self, observed: ObservedTasks) -> None:
        self.observed = observed
        await anyio.sleep_forever()

    def push(self, raw: Any, session_data: str | None = None) -> None:
        self.observed.deliver(Snapshot(read_task(raw), session_data))


def push_world(*gets: Any) -> tuple[World, PushSession, ProbedJournal]:
    world = World(PushSession, calls=[AT_WORK], gets={TASK: list(gets) or [AT_WORK]})
    world.journal = journal = ProbedJournal()
    return world, world.server, journal


async def test_a_task_is_observed_as_soon_as_the_server_has_made_it_and_for_as_long_as_it_is_driven() -> None:
    world, session, _ = push_world()
    async with world.client() as client, anyio.create_task_group() as tasks:
        await world.clock.advance(0)
        assert dict(session.observed.refs()) == {}
        changes: list[list[str]] = []

        async def watch() -> None:
            while True:
                await session.observed.changed()
                changes.append(list(session.observed.refs()))

        tasks.start_soon(watch)
        gives_up = anyio.CancelScope()

        async def call() -> None:
            with gives_up:
                await client.call_tool("tool", idempotency_key="k")

        tasks.start_soon(call)
        await world.clock.advance(0)
        assert changes == [[TASK]]
        assert session.observed.refs()[TASK].task_id == TASK
        gives_up.cancel()
        await world.clock.advance(0)
        assert dict(session.observed.refs()) == {}
        await client.resume()
        await world.clock.advance(0)
        assert changes[-1] == [TASK], "as soon as it is driven again"
        tasks.cancel_scope.cancel()


async def test_an_end_that_is_pushed_is_the_outcome_without_a_poll() -> None:
    world, session, _ = push_world()
    async with world.client() as client:
        handle = await client.start_tool("tool")
        session.push({**AT_WORK, "status": "completed"})  # an end that does not say how is left to the polls
        await world.clock.advance(0)
        assert (await client.records())[0].status == "working"
        session.push(DONE)
        session.push(AT_WORK)  # and is not undone by what comes right after it
        await world.clock.advance(0)
        assert handle.done
        assert text(await handle) == "done"
    assert world.polled_at() == []


async def test_a_question_that_is_pushed_is_asked_at_once_and_once() -> None:
    asking = input_required(TASK, {"k": ASK})
    world, session, _ = push_world(asking, DONE)
    asked = Asked()
    async with world.client(elicitation=asked) as client:
        await client.start_tool("tool")
        await world.clock.advance(1)
        for _ in range(2):
            session.push(asking)
            await world.clock.advance(0)
        assert asked.keys == ["k"]
        await world.clock.advance(60)
    assert asked.keys == ["k"]
    assert len(session.log("tasks/update")) == 1


async def test_what_is_pushed_makes_no_poll_come_earlier_or_later() -> None:
    world, session, _ = push_world(AT_WORK, AT_WORK, AT_WORK, DONE)
    async with world.client() as client:
        await client.start_tool("tool")
        for number in range(30):
            await world.clock.advance(0.9)
            session.push({**AT_WORK, "statusMessage": f"{number}"})
    assert world.polled_at() == [5.0, 10.0, 15.0, 20.0]


async def test_a_status_message_alone_is_published_and_costs_no_commit_pushed_or_polled() -> None:
    polled = [{**AT_WORK, "statusMessage": f"polled {number}"} for number in range(3)]
    world, session, journal = push_world(*polled)
    async with world.client() as client:
        handle = await client.start_tool("tool")
        saved = journal.counts["save"]
        for number in range(20):
            session.push({**AT_WORK, "statusMessage": f"pushed {number}"})
            await world.clock.advance(1)
            assert handle.task is not None
            if world.clock.monotonic() % HINT_S:
                assert handle.task.status_message == f"pushed {number}"
        assert handle.task is not None
        assert handle.task.status_message == "polled 2"
        assert journal.counts["save"] == saved


async def test_a_snapshot_that_is_older_than_what_is_known_changes_nothing() -> None:
    world, session, _ = push_world()

    def changed(ago_s: float, message: str) -> Any:
        at = datetime.fromtimestamp(world.clock.time() - ago_s, UTC).isoformat()
        return {**AT_WORK, "lastUpdatedAt": at, "statusMessage": message}

    async with world.client() as client:
        handle = await client.start_tool("tool")
        session.push(changed(0, "new"))
        session.push(changed(60, "old"))
        await world.clock.advance(0)
        assert handle.task is not None
        assert handle.task.status_message == "new"


async def test_of_many_snapshots_that_come_while_one_is_saved_eight_wait_and_the_others_are_dropped() -> None:
    world, session, journal = push_world(AT_WORK, DONE)
    seen: list[str | None] = []
    async with world.client(elicitation=Asked()) as client, anyio.create_task_group() as tasks:

        async def call() -> None:
            await client.call_tool("tool", on_update=lambda task: seen.append(task.status_message))

        tasks.start_soon(call)
        await world.clock.advance(0)
        commit = Held()
        journal.before("save", commit)
        session.push({**input_required(TASK, {"k": ASK}), "statusMessage": "a question"})
        await world.clock.advance(0)
        for number in range(100):
            session.push({**input_required(TASK, {f"{number}": ASK}), "statusMessage": f"{number}"})
        commit.go_on.set()
        await world.clock.advance(0)
        pushed = [message for message in seen if message is not None]
        assert pushed == ["a question", *(f"{number}" for number in range(8))]
        await world.clock.advance(60)
    assert len(world.polled_at()) == 2


async def test_what_is_pushed_of_a_task_that_nobody_drives_or_knows_is_ignored() -> None:
    world, session, journal = push_world(AT_WORK, DONE)
    asked = Asked()
    async with world.client(elicitation=asked) as client:
        with anyio.move_on_after(0.2):
            await client.call_tool("tool", idempotency_key="k")
        await world.clock.advance(0)
        (before,) = await client.records()
        saved = journal.counts["save"]
        session.push(input_required(TASK, {"k": ASK}))
        session.push(DONE)
        session.push(completed("somebody-else's", text_result("done")))
        await world.clock.advance(0)
        gc.collect()
        session.push(DONE)
        await world.clock.advance(0)
        assert await client.records() == [before]
        assert (asked.keys, journal.counts["save"]) == ([], saved)
        assert text(await world.call(client, idempotency_key="k")) == "done"


async def test_session_data_that_is_pushed_is_journaled_and_goes_with_the_next_request() -> None:
    world, session, journal = push_world(AT_WORK, DONE)
    async with world.client() as client:
        await client.start_tool("tool")
        saved = journal.counts["save"]
        session.push(AT_WORK, session_data="newer")
        await world.clock.advance(HINT_S)
        assert journal.counts["save"] == saved + 1
        assert session.log("tasks/get")[0].session_data == "newer"


@pytest.mark.parametrize(
    ("error", "level"),
    [(ConnectionLostError("The stream broke."), "INFO"), (RuntimeError("boom"), "WARNING")],
)
async def test_a_session_that_cannot_listen_leaves_everything_to_the_polls(
    error: Exception, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mcp_tasks_client")
    world = World()

    async def run(observed: ObservedTasks) -> None:
        raise error

    world.server.run = run  # type: ignore[method-assign]
    async with world.client() as client:
        assert text(await world.call(client)) == "done"
    assert [one.levelname for one in caplog.records if "tasks are polled" in one.message] == [level]


async def test_what_is_pushed_to_a_host_whose_task_another_has_taken_leaves_its_caller_following(
    tmp_path: Path,
) -> None:
    path, clock, other = tmp_path / "journal.sqlite3", ManualClock(), ManualClock()
    session = PushSession(clock=clock, calls=[AT_WORK], gets={TASK: [AT_WORK]})
    theirs = ScriptedSession(clock=other, gets={TASK: [AT_WORK] * 9 + [DONE]})
    results: list[str] = []

    async def call(client: TasksClient) -> None:
        results.append(text(await client.call_tool("tool", idempotency_key="k")))

    with anyio.fail_after(20):
        async with (
            invisible(session, clock, path, "first", elicitation=Asked()) as first,
            invisible(theirs, other, path, "second") as second,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(call, first)
            while not session.log("tools/call") or not dict(session.observed.refs()):
                await clock.advance(0.1)
            await other.advance(LEASE_S + 1)  # the first one's clock stands still
            assert len(await second.resume()) == 1
            session.push(input_required(TASK, {"k": ASK}))
            while not results:
                await clock.advance(1)
                await other.advance(1)
    assert results == ["done"]


# ── with a server that keeps its word, or does not ────────────────────────────────────────────


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> ScriptedServer:
    server = ScriptedServer(clock=clock)
    server.notifies = Notifies()
    options: dict[str, Any] = {"poll_interval_ms": 1000 * HINT_S, "ttl_ms": None}
    server.tool("half a minute", [work(32), complete(text_result("done"))], **options)
    return server


@asynccontextmanager
async def opened(server: ScriptedServer, **options: Any) -> AsyncIterator[TasksClient]:
    with anyio.fail_after(30):
        options = {"journal": MemoryJournal(), "poll": NO_JITTER, **options}
        async with scripted_client(server.session(), **options) as client:
            yield client
    server.witness.check()


def garble(params: JSONObject) -> list[JSONObject]:
    """Twice each, with another's task and with what makes no sense between."""
    return [params, {**params, "taskId": "somebody-else's"}, {"nothing": "of it"}, params]


def without_payloads(params: JSONObject) -> list[JSONObject]:
    return [{key: value for key, value in params.items() if key not in ("result", "error", "inputRequests")}]


EVERY_HINT = [5.0, 10.0, 15.0, 20.0, 25.0, 30.0]


@pytest.mark.parametrize(
    ("notifies", "done_at"),
    [
        pytest.param(Notifies(), 32.1, id="tells everything"),
        pytest.param(Notifies(distort=garble), 32.1, id="tells all of it badly"),
        pytest.param(Notifies(method="notifications/tasks/status"), 32.1, id="under its older name"),
        pytest.param(None, 35.1, id="refuses"),
        pytest.param(Notifies(at_most=0), 35.1, id="agrees to nothing"),
        pytest.param(Notifies(distort=lambda params: []), 35.1, id="says nothing"),
        pytest.param(Notifies(distort=without_payloads), 35.1, id="tells without payloads"),
        pytest.param(Notifies(breaks_after=0), 35.1, id="breaks"),
    ],
)
async def test_whatever_a_server_tells_an_end_is_seen_at_once_or_by_the_next_poll(
    server: ScriptedServer, clock: ManualClock, notifies: Notifies | None, done_at: float
) -> None:
    server.notifies = notifies
    async with opened(server) as client:
        handle = await client.start_tool("half a minute")
        await clock.advance(done_at)
        assert handle.done
        assert text(await handle) == "done"
    began = server.witness.log("tools/call")[0].at
    polled = [round(one.at - began, 1) for one in server.witness.log("tasks/get", handle.task_id)]
    assert polled == (EVERY_HINT if done_at < 35 else [*EVERY_HINT, 35.0])


async def test_an_error_and_a_cancellation_are_told_of_as_well(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("fails", [work(3), fail(-32000, "no")], poll_interval_ms=1000 * HINT_S)
    async with opened(server) as client:
        failing = await client.start_tool("fails")
        handle = await client.start_tool("half a minute")
        await clock.advance(3.1)
        assert failing.done
        await handle.cancel()
        await clock.advance(0.1)
        assert handle.done
    assert server.witness.log("tasks/get") == []


async def test_questions_are_asked_once_each_however_often_they_are_told(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.notifies = Notifies(distort=garble)
    asked: list[str] = []

    async def answer(context: Any, params: object) -> ElicitResult:
        asked.append(context.key)
        return ElicitResult(action="accept", content={"name": "Ada"})

    one, two = (ask(key, form(f"{key}?", name="string")) for key in ("one", "two"))
    steps: list[Step] = [work(8, "first"), one, work(6, "second"), two, work(9), complete({})]
    server.tool("asks", steps, poll_interval_ms=1000 * HINT_S)
    async with opened(server, elicitation=answer) as client:
        handle = await client.start_tool("asks", idempotency_key="k")
        await clock.advance(120)
        assert handle.done
    assert asked == ["one", "two"]
    server.witness.check(at_most_once=True)


async def test_a_task_that_is_attached_is_told_of() -> None:
    world, session, _ = push_world(AT_WORK)
    async with world.client() as client:
        handles: list[TaskHandle] = []

        async def attach() -> None:
            handles.append(await client.attach(TASK))

        await world.during(attach, 1)
        assert list(session.observed.refs()) == [TASK]
        session.push(DONE)
        await world.clock.advance(0.5)
        assert handles[0].done


async def test_a_pushed_end_is_the_last_snapshot_of_a_task() -> None:
    world, session, _ = push_world(AT_WORK)
    told: list[str] = []
    async with world.client() as client:
        handle = await client.start_tool("tool")
        listened: list[str] = []

        async def listen() -> None:
            listened.extend([task.status async for task in handle.updates()])

        async def call() -> None:
            await client.call_tool("tool", on_update=lambda task: told.append(task.status))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            await world.clock.advance(1)
            session.push(DONE)
        assert handle.task is not None
        assert handle.task.status == "completed"
        assert listened == ["working", "completed"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await world.clock.advance(1)
            session.push(DONE)
    assert told == ["working", "completed"]
