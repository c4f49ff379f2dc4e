"""Errors and handles that travel: through pickle, through JSON, and into logs.

A handle travels as its reference. The errors here are those of real drives, not made by hand, since
only those carry handles, records and causes.
"""

from __future__ import annotations

import copy
import json
import logging
import pickle
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client.errors import (
    ConnectionLostError,
    CredentialRefusedError,
    IdempotencyConflictError,
    InputUnansweredError,
    JournalError,
    MissingCapabilityError,
    OutcomeUnknownError,
    RemoteProtocolError,
    SessionError,
    TaskCancelledError,
    TaskExpiredError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClientError,
    ToolError,
    WaitTimeoutError,
)
from mcp_tasks_client.handle import TaskHandle, TaskReference
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.machine.record import TaskRecord
from mcp_tasks_client.testing import (
    cancelled,
    completed,
    failed,
    input_required,
    text_result,
    working,
)
from tests._requirements import requirement
from tests._results import text
from tests.engine.world import World
from tests.kit.probed_journal import ProbedJournal

pytestmark = pytest.mark.anyio

TASK = "hfWcnM9nILV_1MI9AytuHXEJLNNwF6lE8HXmpazeV2c"
KEY = f"{TASK}:0602359d90eb0aaa"  # servers put the task ID into their keys
AT_WORK = working(TASK, poll_interval_ms=1000)
DONE = completed(TASK, text_result("done"))
ASK = {
    "method": "elicitation/create",
    "params": {"message": "Go on?", "requestedSchema": {"type": "object"}},
}
UNKNOWN_TASK = SessionError("?", code=-32602, remote_message="Task not found")


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A way to fail, by what the server answers and how it is called."""

    error: type[TasksClientError]
    script: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)
    prepare: tuple[Any, ...] = ()
    """Arguments of a call that is made, and fails, before."""

    has_task: bool = True
    again: type[TasksClientError] | None = None
    """What waiting for the attached handle raises; ``None`` if it is the result."""


def get(*steps: Any) -> dict[str, Any]:
    return {"calls": [AT_WORK], "gets": {TASK: list(steps)}}


TROUBLES = {
    "failed task": Trouble(
        error=TaskFailedError,
        script=get(failed(TASK, -32050, "quota", {"left": [0, None]}, status_message="no more today")),
        again=TaskFailedError,
    ),
    "refused call": Trouble(
        error=TaskFailedError,
        script={"calls": [SessionError("no", code=-32602, remote_message="?", data=[1], not_executed=True)]},
        has_task=False,
    ),
    "cancelled task": Trouble(
        error=TaskCancelledError,
        script=get(cancelled(TASK, status_message="by admin")),
        again=TaskCancelledError,
    ),
    "expired task": Trouble(
        error=TaskExpiredError,
        script={**get(UNKNOWN_TASK), "calls": [working(TASK, poll_interval_ms=9000, ttl_ms=5000)]},
        again=TaskNotFoundError,  # its time-to-live was forgotten with its outcome
    ),
    "lost task": Trouble(error=TaskNotFoundError, script=get(UNKNOWN_TASK), again=TaskNotFoundError),
    "result without a result": Trouble(
        error=RemoteProtocolError,
        script=get({"taskId": TASK, "status": "completed"}),
        again=RemoteProtocolError,
    ),
    "result of the wrong shape": Trouble(
        error=RemoteProtocolError, script=get(completed(TASK, {"content": 3})), again=RemoteProtocolError
    ),
    "tool that raised": Trouble(
        error=ToolError,
        script=get(completed(TASK, text_result("no", is_error=True))),
        call={"raise_on_error": True},
    ),
    "time-out": Trouble(error=WaitTimeoutError, script=get(AT_WORK), call={"timeout": 1.0}),
    "question without a callback": Trouble(
        error=InputUnansweredError, script=get(input_required(TASK, {KEY: ASK}))
    ),
    "refused credential": Trouble(
        error=CredentialRefusedError,
        script=get(CredentialRefusedError("Log in again.", http_status=401, data={"realm": "a"})),
    ),
    "missing capability": Trouble(
        error=MissingCapabilityError,
        script=get(MissingCapabilityError("Declare it.", code=-32021, remote_message="sampling")),
    ),
    "server error": Trouble(
        error=SessionError, script=get(SessionError("No.", code=-32603, remote_message="oops", data=[1]))
    ),
    "lost reply": Trouble(
        error=ConnectionLostError, script={"calls": [ConnectionLostError("Gone.")]}, has_task=False
    ),
    "lost reply under a key": Trouble(
        error=OutcomeUnknownError,
        script={"calls": [ConnectionLostError("Gone.")]},
        call={"idempotency_key": "order-42"},
        has_task=False,
        again=OutcomeUnknownError,
    ),
    "another call under the same key": Trouble(
        error=IdempotencyConflictError,
        script={"calls": [working(TASK, poll_interval_ms=10**9)]},
        prepare=({"a": 1},),
        call={"idempotency_key": "order-42"},
        has_task=False,
    ),
}
EVERY = pytest.mark.parametrize("trouble", TROUBLES.values(), ids=list(TROUBLES))
WITH_A_TASK = pytest.mark.parametrize(
    "trouble",
    [trouble for trouble in TROUBLES.values() if trouble.has_task],
    ids=[name for name, trouble in TROUBLES.items() if trouble.has_task],
)


async def error_of(trouble: Trouble) -> tuple[TasksClientError, World]:
    """The error that a client of its own raised, and has been closed over; and its world."""
    world = World(**trouble.script)
    async with world.client() as client:
        if trouble.prepare:
            await client.start_tool("tool", *trouble.prepare, **trouble.call)
        if "timeout" in trouble.call:  # a time limit is by the loop's own clock, so none has to pass
            with pytest.raises(WaitTimeoutError) as caught:
                await client.call_tool("tool", **trouble.call)
            error: TasksClientError = caught.value
        else:
            error = await world.error_of(lambda: client.call_tool("tool", **trouble.call))
    assert type(error) is trouble.error
    return error, world


def travelled(error: TasksClientError, protocol: int = pickle.HIGHEST_PROTOCOL) -> TasksClientError:
    there = pickle.loads(pickle.dumps(error, protocol))
    assert isinstance(there, TasksClientError)
    return there


async def say_yes(context: object, params: object) -> ElicitResult:
    await anyio.lowlevel.checkpoint()
    return ElicitResult(action="accept")


# ── errors travel ─────────────────────────────────────────────────────────────────────────────


@EVERY
async def test_every_error_of_a_drive_pickles_with_all_that_it_carries(trouble: Trouble) -> None:
    error, _ = await error_of(trouble)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        there = travelled(error, protocol)
        assert type(there) is type(error)
        assert str(there) == str(error)
        assert there.args == error.args
        ours, theirs = vars(error).copy(), vars(there).copy()
        assert (ours.pop("handle") is None) == (theirs.pop("handle") is None)
        assert theirs == ours


@EVERY
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
async def test_every_error_of_a_drive_can_be_copied(trouble: Trouble, copied: Any) -> None:
    error, _ = await error_of(trouble)
    there = copied(error)
    assert (type(there), str(there)) == (type(error), str(error))
    assert (there.handle is None) == (error.handle is None)


async def test_the_attributes_of_a_failure_survive() -> None:
    error, _ = await error_of(TROUBLES["failed task"])
    there = travelled(error)
    assert isinstance(there, TaskFailedError)
    assert (there.code, there.message, there.data) == (-32050, "quota", {"left": [0, None]})
    assert there.status_message == "no more today"


async def test_the_record_of_an_unknown_outcome_survives() -> None:
    error, _ = await error_of(TROUBLES["lost reply under a key"])
    there = travelled(error)
    assert isinstance(there, OutcomeUnknownError)
    assert isinstance(there.record, TaskRecord)
    assert there.record.idempotency_key == "order-42"
    assert there.record.status == "outcome_unknown"


async def test_the_keys_of_unanswered_questions_survive() -> None:
    error, _ = await error_of(TROUBLES["question without a callback"])
    there = travelled(error)
    assert isinstance(there, InputUnansweredError)
    assert there.keys == (KEY,)


async def test_a_time_out_of_a_handle_carries_that_handle() -> None:
    world = World(**get(AT_WORK))
    async with world.client() as client:
        handle = await client.start_tool("tool")
        with pytest.raises(WaitTimeoutError) as caught:
            await handle.result(timeout=0.02)
    there = travelled(caught.value).handle
    assert there is not None
    assert there.reference == handle.reference


async def test_a_journal_error_of_a_drive_pickles_with_the_handle() -> None:
    """Even a task that could not be journaled can be told about elsewhere."""

    world = World(**get(DONE))
    world.journal = ProbedJournal("save")
    async with world.client() as client:
        error = await world.error_of(lambda: client.call_tool("tool"))
    there = travelled(error)
    assert type(there) is JournalError
    assert there.handle is not None
    assert there.handle.task_id == TASK


# ── handles travel ────────────────────────────────────────────────────────────────────────────


@WITH_A_TASK
async def test_the_handle_of_an_error_has_all_that_can_be_looked_at_after_the_journey(
    trouble: Trouble,
) -> None:
    error, _ = await error_of(trouble)
    here, there = error.handle, travelled(error).handle
    assert here is not None
    assert there is not None
    assert (there.task_id, there.tool) == (TASK, "tool")
    assert there.reference == here.reference
    assert there.task == here.task
    assert there.task is not None
    assert not there.done, "it can only be attached"


@WITH_A_TASK
async def test_the_handle_of_an_error_is_attached_by_its_reference(trouble: Trouble) -> None:
    error, world = await error_of(trouble)
    there = travelled(error).handle
    assert there is not None
    if trouble.again is None:
        world.server.gets[TASK] = [DONE]
    async with world.client(elicitation=say_yes) as client:
        attached: list[TaskHandle] = []

        async def attach() -> None:
            attached.append(await client.attach(there.reference))
            await attached[0].result()

        if trouble.again is None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(attach)
                await world.clock.advance(3600)
            assert text(await attached[0].result()) == "done"
        else:
            assert type(await world.error_of(attach)) is trouble.again
        assert (attached[0].task_id, attached[0].tool) == (TASK, "tool")
        assert await client.records() == [], "an outcome without a key is forgotten once it is delivered"
    assert len(world.server.log("tools/call")) == 1


async def test_the_handle_of_a_call_without_a_task_is_attached_by_its_record() -> None:
    """A call of unknown outcome has no task ID, and its reference finds it all the same."""
    error, world = await error_of(TROUBLES["lost reply under a key"])
    there = travelled(error).handle
    assert there is not None
    assert there.task_id is None
    async with world.client() as client:
        handle = await client.attach(there.reference)
        assert type(await world.error_of(handle.result)) is OutcomeUnknownError


async def test_a_handle_without_a_task_and_without_a_record_says_so_when_attached() -> None:
    error, world = await error_of(TROUBLES["lost reply"])
    there = travelled(error).handle
    assert there is not None
    async with world.client() as client:
        with pytest.raises(ValueError, match="holds nothing of its call"):
            await client.attach(there.reference)


async def test_a_reference_is_enough_where_the_journal_knows_nothing_of_the_task() -> None:
    error, world = await error_of(TROUBLES["question without a callback"])
    there = travelled(error).handle
    assert there is not None
    world.journal, world.server.gets[TASK] = MemoryJournal(), [DONE]
    async with world.client() as client:
        handle = await client.attach(there.reference)
        assert [(record.task_id, record.tool) for record in await client.records()] == [(TASK, "tool")]
        assert text(await handle.result()) == "done"
        assert (handle.task_id, handle.tool) == (TASK, "tool")


def in_another_process(handle: TaskHandle) -> TaskHandle:
    there = pickle.loads(pickle.dumps(handle))
    assert isinstance(there, TaskHandle)
    return there


async def started(world: World) -> TaskHandle:
    async with world.client() as client:
        return await client.start_tool("tool")


async def awaiting(handle: TaskHandle) -> None:
    await handle


async def waiting(handle: TaskHandle) -> None:
    await handle.result(timeout=1)


async def refreshing(handle: TaskHandle) -> None:
    await handle.refresh()


async def cancelling(handle: TaskHandle) -> None:
    await handle.cancel()


async def following(handle: TaskHandle) -> None:
    async for _ in handle.updates():
        pass


@pytest.mark.parametrize("use", [awaiting, waiting, refreshing, cancelling, following])
async def test_a_handle_from_another_process_says_how_to_attach_it_when_used(
    use: Callable[[TaskHandle], Awaitable[None]],
) -> None:
    handle = in_another_process(await started(World(**get(AT_WORK))))
    with pytest.raises(TasksClientError, match=r"await client\.attach\(handle\.reference\)") as caught:
        await use(handle)
    assert caught.value.handle is handle


async def kept() -> TaskHandle:
    """A handle of a task that was driven until its client closed."""
    return await started(World(**get(AT_WORK)))


async def let_go_of() -> TaskHandle:
    """A handle of a task that nobody waited for any more when its client closed."""
    error, _ = await error_of(TROUBLES["time-out"])
    assert error.handle is not None
    return error.handle


@pytest.mark.parametrize("made", [kept, let_go_of])
@pytest.mark.parametrize("use", [awaiting, waiting, refreshing, cancelling, following])
async def test_a_handle_whose_client_is_closed_is_carried_by_the_error_that_says_so(
    made: Callable[[], Awaitable[TaskHandle]], use: Callable[[TaskHandle], Awaitable[None]]
) -> None:
    handle = await made()
    with pytest.raises(TasksClientError, match=r"client (is|was) closed") as caught:
        await use(handle)
    there = travelled(caught.value).handle
    assert there is not None
    assert there.reference == handle.reference


async def test_a_handle_can_be_sent_while_its_client_is_open_and_the_original_goes_on() -> None:
    world = World(**get(DONE))
    async with world.client() as client:
        handle = await client.start_tool("tool")
        there = in_another_process(handle)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle.result)
            await world.clock.advance(60)
        assert text(await handle.result()) == "done"
        assert handle.done
        assert there.task is not None
        assert there.task.status == "working", "it is what it was when it left"
        assert text(await (await client.attach(there.reference)).result()) == "done"


async def test_a_handle_of_a_call_that_was_answered_at_once_travels_too() -> None:
    world = World(calls=[text_result("at once")])
    handle = in_another_process(await started(world))
    assert (handle.task_id, handle.tool, handle.task) == (None, "tool", None)


async def test_a_reference_is_json_and_is_attached_after_that_journey_too() -> None:
    world = World(**get(AT_WORK))
    sent = (await started(world)).reference
    received: TaskReference = json.loads(json.dumps(sent))
    assert received == sent
    assert set(sent) == {"endpoint", "principal", "tool", "task_id", "record_id"}
    world.server.gets[TASK] = [DONE]
    async with world.client() as client:
        attached: list[TaskHandle] = []

        async def attach() -> None:
            attached.append(await client.attach(received))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attach)
            await world.clock.advance(60)
        assert text(await attached[0].result()) == "done"


@pytest.mark.parametrize("options", [{"principal": "mallory"}, {"endpoint": "elsewhere"}])
async def test_a_reference_is_refused_by_a_client_for_another_endpoint_or_principal(
    options: dict[str, str],
) -> None:
    world = World(**get(AT_WORK))
    reference = (await started(world)).reference
    world.server.sent.clear()
    async with world.client(**options) as client:
        with pytest.raises(ValueError, match="attach it with a client for those") as caught:
            await client.attach(reference)
    assert TASK not in str(caught.value)
    assert world.server.sent == []


# ── nothing that is shown holds a whole task ID ───────────────────────────────────────────────


@requirement("law:9")
@EVERY
async def test_a_task_id_is_a_credential_that_neither_errors_nor_the_log_show(
    trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "mcp_tasks_client"):
        error, world = await error_of(trouble)
    shown = [caplog.text]
    for one in (error, travelled(error)):
        shown += [str(one), repr(one), *traceback.format_exception(one)]
        if one.handle is not None:
            shown += [str(one.handle), repr(one.handle), repr(one.handle.task), str(one.handle.task)]
        if isinstance(one, OutcomeUnknownError):
            shown += [str(one.record), repr(one.record)]
    async with world.client() as client:
        records = await client.records()
        shown += [repr(records), *map(str, records)]
    assert [line for line in shown if TASK in line] == []


async def test_what_is_shown_is_enough_to_recognise_the_task() -> None:
    world = World(**get(AT_WORK))
    handle = await started(world)
    async with world.client() as client:
        (record,) = await client.records()
    shown = "'hfWcnM9n…'"
    named = f"<TaskHandle {record.record_id[:8]}… tool='tool' task_id={shown}"
    assert repr(handle) == f"{named} working>"
    assert repr(in_another_process(handle)) == f"{named} detached>"
    assert f"task_id={shown}" in repr(record)
    assert f"task_id={shown}" in repr(handle.task)


async def test_the_log_of_a_bumpy_drive_shows_no_whole_task_id(caplog: pytest.LogCaptureFixture) -> None:
    lost = ConnectionLostError("Gone.", retryable=True)
    asking = input_required(TASK, {KEY: ASK})
    another_request = input_required(TASK, {KEY: {**ASK, "x-new": 1}})
    another_task = working(TASK[::-1])
    odd = {**AT_WORK, "status": "pondering", "createdAt": "2001-01-01T00:00:00Z"}
    gets = get(lost, another_task, odd, asking, asking, another_request, cancelled(TASK))
    world = World(**gets, updates=[lost, {}], cancels=[SessionError("no", code=-32603)])
    with caplog.at_level(logging.DEBUG, "mcp_tasks_client"):
        async with world.client(elicitation=say_yes, on_abandon="cancel") as client:
            await world.error_of(lambda: client.call_tool("tool"))
            world.server.gets[TASK] = [AT_WORK]
            with anyio.move_on_after(0.2):
                await client.call_tool("tool")
    said = caplog.text
    for words in ("polled again", "sent again", "another taskId", "pondering", "createdAt", "used again"):
        assert words in said
    assert "did not get through" in said
    assert TASK not in said
    assert TASK[::-1] not in said


REFUSED = SessionError("no", code=-32602, remote_message=f"no such key: {KEY}")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (get(failed(TASK, -1, f"{TASK} broke")), TaskFailedError),
        (get(cancelled(TASK, status_message=f"{TASK} was stopped")), TaskCancelledError),
        (get(completed(TASK, text_result(f"{TASK} broke", is_error=True))), ToolError),
        ({**get(input_required(TASK, {KEY: ASK})), "updates": [REFUSED]}, InputUnansweredError),
        (get(input_required(TASK, {KEY: {"method": f"x/{TASK}"}})), InputUnansweredError),
    ],
    ids=[
        "error message",
        "status message",
        "text of the tool",
        "refusal of an answer",
        "method of a request",
    ],
)
async def test_a_server_that_quotes_the_task_id_does_not_bring_it_into_the_message(
    script: dict[str, Any], expected: type[TasksClientError]
) -> None:
    world = World(**script)
    async with world.client(elicitation=say_yes) as client:
        error = await world.error_of(lambda: client.call_tool("tool", raise_on_error=True))
    assert type(error) is expected
    assert TASK not in str(error)


async def test_the_state_of_a_record_does_not_show_the_whole_task_id_either() -> None:
    _, world = await error_of(TROUBLES["question without a callback"])
    async with world.client() as client:
        (record,) = await client.records()
    assert TASK not in repr(record.state)
