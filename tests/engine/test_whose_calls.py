"""Calls of one tool are told apart: by labels, applications and origins, and by handles that compare."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks_client import BlockingTaskHandle, SqliteJournal, TaskHandle, TasksClient
from mcp_tasks_client.engine.environment import Environment
from mcp_tasks_client.engine.process import Process
from mcp_tasks_client.errors import SessionError, TaskNotFoundError, WaitTimeoutError
from mcp_tasks_client.machine.record import Origin, Scope
from mcp_tasks_client.testing import working
from tests._results import text
from tests.engine.world import TASK, World, finish

pytestmark = pytest.mark.anyio

OTHER = "another-0123456789abcdef"
TWO_CALLS: dict[str, Any] = {
    "calls": [working(TASK, poll_interval_ms=1000), working(OTHER, poll_interval_ms=1000)],
    "gets": {TASK: [working(TASK, poll_interval_ms=1000)], OTHER: [working(OTHER, poll_interval_ms=1000)]},
}


# ── labels ────────────────────────────────────────────────────────────────────────────────────


async def test_two_calls_of_one_tool_are_told_apart_by_their_labels() -> None:
    world = World(**TWO_CALLS)
    async with world.client() as client:
        handles = [await client.start_tool("deploy", label=label) for label in ("of Ada", "of Bob")]
        records = await client.records()
    assert [one.label for one in records] == [one.label for one in handles] == ["of Ada", "of Bob"]
    for shown in (handles, records):
        assert [label in repr(one) for one in shown for label in ("of Ada", "of Bob")] == [1, 0, 0, 1]


async def test_two_calls_without_a_label_are_told_apart_too() -> None:
    world = World(**TWO_CALLS)
    async with world.client() as client:
        one, other = [await client.start_tool("deploy") for _ in range(2)]
        records = await client.records()
    assert repr(one).replace(TASK[:8], OTHER[:8]) != repr(other)
    for handle, record in zip((one, other), records, strict=True):
        assert record.record_id[:8] in repr(record)
        assert record.record_id[:8] in repr(handle)


async def test_a_label_stays_with_its_call_in_a_later_process_and_in_the_handle_of_an_error() -> None:
    world = World(**TWO_CALLS)
    async with world.client() as client:
        with pytest.raises(WaitTimeoutError) as caught:
            await world.call(client, within=5, timeout=0.5, label="of Ada")
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.handle.label == "of Ada"
    async with world.client() as client:
        (handle,) = await client.resume()
        assert handle.label == "of Ada"
        assert (await client.attach(handle.reference)).label == "of Ada"


async def test_a_call_that_joins_another_one_leaves_its_label() -> None:
    world = World(**TWO_CALLS)
    async with world.client() as client:
        await client.start_tool("deploy", idempotency_key="k", label="first")
        handle = await client.start_tool("deploy", idempotency_key="k", label="second")
        assert handle.label == "first"


async def test_a_task_that_is_attached_gets_a_label_unless_it_is_known() -> None:
    world = World(**TWO_CALLS)
    async with world.client() as client:
        known = await client.start_tool("deploy", label="known")
        handles: list[TaskHandle] = []

        async def attach() -> None:
            handles.extend([await client.attach(task_id, label="attached") for task_id in (TASK, OTHER)])
            for wanted in (TASK, "a-third-task"):
                with pytest.raises(ValueError, match="a label is a text"):
                    await client.attach(wanted, label="x" * 201)

        await world.during(attach, 5)
        assert [one.label for one in handles] == ["known", "attached"]
        assert handles[0] == known
        assert [one.label for one in await client.records()] == ["known", "attached"]


@pytest.mark.parametrize("label", ["x" * 201, 7, b"x"])
async def test_what_is_no_label_is_refused_before_anything_is_sent(label: Any) -> None:
    world = World()
    async with world.client() as client:
        for make in (client.call_tool, client.start_tool):
            with pytest.raises(ValueError, match="a label is a text of at most 200 characters"):
                await make("deploy", label=label)
        assert await client.records() == []
    assert world.server.log("tools/call") == []


# ── applications and origins ──────────────────────────────────────────────────────────────────


async def test_what_was_delivered_lately_is_resumed_by_its_own_application_alone() -> None:
    world = World()
    async with world.client(application="payroll") as client:
        assert text(await world.call(client, idempotency_key="k")) == "done"
    found = []
    for name in ("billing", None, "payroll"):
        async with world.client(application=name) as client:
            found.append(len(await client.resume(delivered_within_s=7200)))
    assert found == [0, 0, 1]


async def test_a_key_is_one_for_all_applications_and_a_reference_needs_no_name() -> None:
    world = World()
    async with world.client(application="payroll") as client:
        handle = await client.start_tool("deploy", idempotency_key="k")
    async with world.client(application="billing") as client:
        assert await client.resume() == []
        assert await client.attach(handle.reference) == handle
        await client.start_tool("deploy", idempotency_key="k")
        (record,) = await client.records()
    assert record.application == "payroll"
    assert len(world.server.log("tools/call")) == 1


@pytest.mark.parametrize("its", ["payroll", None])
async def test_an_outcome_that_another_program_has_looked_at_is_free_for_its_own_at_once(
    its: str | None,
) -> None:
    world = World()
    async with world.client(application=its) as client:
        handle = await client.start_tool("deploy", idempotency_key="k")
    async with world.client(application="billing") as looking:
        attached = await looking.attach(handle.reference)
        await world.during(attached.peek, 60)
        async with world.client(application=its) as client:
            (found,) = await client.resume()
            assert text(await found.result()) == "done"
        assert text(await attached.peek()) == "done"
        await attached.acknowledge()


@pytest.mark.parametrize("its", ["payroll", None])
async def test_a_client_of_another_application_ends_no_task_that_its_credential_may_not_see(
    its: str | None,
) -> None:
    """A call without a name is anybody's, also to be ended."""
    missing = SessionError("?", code=-32602, remote_message="not found")
    world = World(gets={TASK: [working(TASK, poll_interval_ms=1000), missing]})
    async with world.client(application=its) as client:
        handle = await client.start_tool("deploy", idempotency_key="k")
    async with world.client(application="billing") as looking:
        attached = await looking.attach(handle.reference)
        error = await world.error_of(attached.result)
        assert isinstance(error, SessionError if its else TaskNotFoundError)
        assert ("to this credential" in str(error)) == (its is not None)
    async with world.client(application=its) as client:
        (record,) = await client.records()
        assert record.finished == (its is None)
        if its:
            finish(world, TASK)
            (found,) = await client.resume()
            assert text(await found.result()) == TASK


async def test_the_origin_is_the_process_that_the_environment_names() -> None:
    world = World(**TWO_CALLS)
    process = Process("a-host:0123456789ab", "boot", "", 4711, 1.0)
    environment = Environment(clock=world.clock, process=process)
    async with TasksClient(world.server, journal=world.journal, environment=environment) as client:
        await client.start_tool("deploy")
        (record,) = await client.records()
    assert record.origin == Origin(Process.current().origin.program, "a-host", 4711)


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        (["deploy_worker.py"], "deploy_worker.py"),
        (["-m", "deploying"], "deploying"),
        (["-m", "deploying.worker"], "deploying.worker"),
        (["-c", "exec(open('deploy_worker.py').read())"], Path(sys.executable).name),
    ],
)
def test_a_program_is_called_by_its_script_or_module(
    arguments: list[str], program: str, tmp_path: Path
) -> None:
    body = """
from dataclasses import astuple
from mcp_tasks_client.engine.process import Process
print(*astuple(Process.current().origin))
"""
    (tmp_path / "deploying").mkdir()
    for name in ("deploy_worker.py", "deploying/__main__.py", "deploying/worker.py"):
        (tmp_path / name).write_text(body)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        said = process.communicate(timeout=50)[0].split()
    assert said == [program, Process.current().origin.host, str(process.pid)]


# ── users and servers ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("task_id", [None, "a-task-of-hers"])
async def test_a_reference_with_the_record_id_of_another_user_finds_nothing_of_that_user(
    task_id: str | None,
) -> None:
    world = World(**TWO_CALLS)
    async with world.client(principal="ada") as ada:
        handle = await ada.start_tool("deploy", label="of Ada")
    before = await world.only_record(Scope("scripted", "ada"))
    async with world.client(principal="eve") as eve:
        forged: Any = {**handle.reference, "principal": "eve", "task_id": task_id}
        if task_id is None:
            with pytest.raises(ValueError, match="holds nothing of its call"):
                await eve.attach(forged)
        else:
            found: list[TaskHandle] = []
            await world.during(partial(_attach, eve, forged, found), 5)
            assert [(one.task_id, one.label) for one in found] == [(task_id, None)]
        assert [one.task_id for one in await eve.records()] == ([] if task_id is None else [task_id])
        with pytest.raises(ValueError, match="belongs to endpoint 'scripted' and principal 'ada'"):
            await eve.attach(handle.reference)
    assert await world.only_record(Scope("scripted", "ada")) == before


@pytest.mark.parametrize("other", [{"principal": "eve"}, {"endpoint": "elsewhere"}], ids=["user", "server"])
async def test_a_task_id_that_another_user_or_server_has_is_attached_as_a_task_of_its_own(
    other: dict[str, str],
) -> None:
    world = World(gets={TASK: [working(TASK, poll_interval_ms=1000)]})
    theirs = World(
        gets={TASK: [working(TASK, poll_interval_ms=1000)]}, endpoint=other.get("endpoint", "scripted")
    )
    theirs.clock, theirs.server.clock, theirs.journal = world.clock, world.clock, world.journal
    found: list[TaskHandle] = []
    async with (
        world.client(principal="ada") as ada,
        theirs.client(principal=other.get("principal", "ada")) as eve,
    ):
        for client in (ada, eve):
            await world.during(partial(_attach, client, TASK, found), 5)
        assert found[0] != found[1]
        records = [*await ada.records(), *await eve.records()]
    assert [one.record_id for one in records] == [one.reference["record_id"] for one in found]
    assert len({one.scope for one in records}) == 2


async def _attach(client: TasksClient, wanted: Any, found: list[TaskHandle]) -> None:
    found.append(await client.attach(wanted))


# ── handles ───────────────────────────────────────────────────────────────────────────────────


async def test_handles_of_one_call_are_equal_wherever_they_are() -> None:
    world = World(**TWO_CALLS)
    async with world.client() as client:
        one, other = [await client.start_tool("deploy", label="same") for _ in range(2)]
        again = await client.attach(one.reference)
        travelled = pickle.loads(pickle.dumps(one))
        assert one == again == travelled
        assert len({one, again, travelled}) == 1
        assert one != other
        assert one != one.reference
        assert BlockingTaskHandle(one, None) == BlockingTaskHandle(travelled, None)  # type: ignore[arg-type]
        assert len({BlockingTaskHandle(h, None) for h in (one, other, travelled)}) == 2  # type: ignore[arg-type]
        assert BlockingTaskHandle(one, None) != one  # type: ignore[arg-type]
    async with world.client() as later:
        assert await later.resume() == [one, other]


async def test_a_record_on_disk_says_the_same_as_one_in_memory(tmp_path: Path) -> None:
    world = World(**TWO_CALLS)
    journal = SqliteJournal(tmp_path / "journal.sqlite3")
    async with world.client(journal=journal, application="payroll") as client:
        await client.start_tool("deploy", label="of Ada", idempotency_key="k")
        (record,) = await client.records()
    assert (record.label, record.application) == ("of Ada", "payroll")
    assert record.origin == Process.current().origin
    assert record.due_at is not None
