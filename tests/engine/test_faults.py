"""Faults that a host's own code, its journal or its timing bring, and what the client makes of them.

Each of these once cost a result, a task or the whole client. The server plays by the rules here.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
import pytest
from mcp_types import CreateMessageResult, ElicitResult, ErrorData, ListRootsResult, TextContent, Tool

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import (
    ConnectionLostError,
    CredentialRefusedError,
    InputUnansweredError,
    JournalError,
    OutcomeUnknownError,
    RemoteProtocolError,
    SessionError,
    TaskCancelledError,
    TaskNotFoundError,
    TasksClientError,
    WaitTimeoutError,
)
from mcp_tasks_client.handle import TaskHandle
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.machine.states import Observing
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.protocol.task import Task
from mcp_tasks_client.sessions.base import BeforeSend
from mcp_tasks_client.testing import (
    HttpError,
    ManualClock,
    ScriptedServer,
    ask,
    cancelled,
    complete,
    completed,
    delay,
    form,
    input_required,
    raising,
    scripted_client,
    text_result,
    work,
    working,
)
from mcp_tasks_client.testing.samples import with_key
from tests._requirements import requirement
from tests._results import text
from tests.engine.late_session import late_world
from tests.engine.world import ASK, DONE, LOST, NO_JITTER, TASK, YES, Asked, World
from tests.kit.probed_journal import FULL_DISK, Held, ProbedJournal
from tests.scripted_session import STALL, ScriptedSession

pytestmark = pytest.mark.anyio

KEY = "order-42"
ACCEPTED = {"action": "accept", "content": {"n": 3}}
NOT_NOW = ErrorData(code=-1, message="not now")
FIRST_ROUND = {
    "resultType": "input_required",
    "inputRequests": {"a": ASK, "b": ASK},
    "requestState": "round-1",
}
POLLED_AT_ONCE = working(TASK, poll_interval_ms=1000)


def faulty(status: str, *, nth: int = 1, error: Exception = FULL_DISK) -> ProbedJournal:
    """A journal that fails one commit: the ``nth`` of a record in that status."""
    journal = ProbedJournal()
    # A copy, since an error keeps alive, by its traceback, whom it was raised at.
    journal.before("save", raising(copy(error)), when=lambda record, **_: record.status == status, nth=nth)
    return journal


async def cancelled_from_inside(loop: str) -> NoReturn:
    """Raise what awaiting a thing raises whose owner has cancelled it; nobody cancelled *us*."""
    if loop == "asyncio":
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
    leaked: list[BaseException] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class() as error:
            leaked.append(error)
            raise
    raise leaked[0]


async def result(world: World, handle: TaskHandle | None) -> str:
    """The handle's result, while time passes."""
    assert handle is not None
    await world.during(handle.result, 3600)
    return text(await handle.result())


async def together(*works: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async with anyio.create_task_group() as tasks:
        for work in works:
            tasks.start_soon(work)


def methods(world: World) -> list[str]:
    return [sent.method for sent in world.server.sent]


# ── cancelled from inside ─────────────────────────────────────────────────────────────────────


async def test_a_callback_that_is_cancelled_from_inside_gave_no_answer_and_the_client_lives_on(
    anyio_backend_name: str,
) -> None:
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [asking, asking, DONE]})
    mended = False

    async def elicit(context: Any, params: Any) -> Any:
        if not mended:
            await cancelled_from_inside(anyio_backend_name)
        return YES

    async with world.client(elicitation=elicit) as client:
        with pytest.raises(InputUnansweredError, match="callback was cancelled") as caught:
            await world.call(client)
        assert caught.value.keys == ("k",)
        assert caught.value.handle is not None
        assert caught.value.handle.task_id == TASK
        mended = True
        assert await result(world, caught.value.handle) == "done"
    assert [sent.answers for sent in world.server.log("tasks/update")] == [{"k": ACCEPTED}]


@pytest.mark.parametrize("verb", ["get", "update", "cancel"])
async def test_a_request_that_is_cancelled_from_inside_parks_the_task_and_the_client_lives_on(
    verb: str, anyio_backend_name: str
) -> None:
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [asking, DONE]})
    honest = getattr(world.server, verb)
    broken = True

    async def request(*args: Any) -> Any:
        if broken:
            await cancelled_from_inside(anyio_backend_name)
        return await honest(*args)

    setattr(world.server, verb, request)
    async with world.client(elicitation=Asked()) as client:
        handle = await client.start_tool("tool")
        told = handle.cancel if verb == "cancel" else partial(world.during, handle.result, 60)
        with anyio.fail_after(30), pytest.raises(TasksClientError, match="cancelled from inside") as caught:
            await told()
        assert caught.value.handle is not None
        broken = False
        assert await result(world, handle) == "done"


async def test_a_call_that_is_cancelled_from_inside_may_have_run_and_is_not_sent_again_by_itself(
    anyio_backend_name: str,
) -> None:
    world = World()
    sent = 0

    async def call(call: Any, before_send: BeforeSend) -> Any:
        nonlocal sent
        await before_send()
        sent += 1
        await cancelled_from_inside(anyio_backend_name)

    world.server.call = call  # type: ignore[method-assign]  # its transport awaits what is cancelled
    async with world.client() as client:
        with pytest.raises(TasksClientError) as caught:
            await world.call(client, idempotency_key=KEY)
        assert caught.value.handle is not None
        with pytest.raises(OutcomeUnknownError):
            await world.call(client, idempotency_key=KEY)
    assert sent == 1


# ── replies and answers that could not be journaled ───────────────────────────────────────────


async def by_key(world: World, client: TasksClient, error: TasksClientError) -> str:
    return text(await world.call(client, idempotency_key=KEY))


async def by_handle(world: World, client: TasksClient, error: TasksClientError) -> str:
    return await result(world, error.handle)


Again = Callable[[World, TasksClient, TasksClientError], Awaitable[str]]
AGAIN = pytest.mark.parametrize("again", [by_key, by_handle])


@AGAIN
@pytest.mark.parametrize(
    ("reply", "task_id", "status", "outcome"),
    [
        pytest.param(POLLED_AT_ONCE, TASK, "working", "done", id="task"),
        pytest.param(text_result("at once"), None, "completed", "at once", id="result"),
    ],
)
async def test_a_reply_that_could_not_be_journaled_is_kept_and_saved_when_the_call_is_taken_up(
    reply: Any, task_id: str | None, status: str, outcome: str, again: Again
) -> None:
    world = World(calls=[reply, text_result("a second call")])
    world.journal = faulty(status)
    async with world.client() as client:
        with pytest.raises(JournalError, match="disk is full") as caught:
            await world.call(client, idempotency_key=KEY)
        assert caught.value.handle is not None
        assert caught.value.handle.task_id == task_id
        assert await again(world, client, caught.value) == outcome
        assert len(world.server.log("tools/call")) == 1
        (record,) = await client.records()
        assert (record.status, record.task_id) == ("completed", task_id)


@pytest.mark.parametrize(
    ("reply", "status", "outcome"),
    [
        pytest.param(POLLED_AT_ONCE, "working", "done", id="task"),
        pytest.param(text_result("at once"), "completed", "at once", id="result"),
    ],
)
async def test_a_reply_that_could_not_be_journaled_is_kept_though_nobody_holds_a_handle(
    reply: Any, status: str, outcome: str
) -> None:
    world = World(calls=[reply, text_result("a second call")])
    world.journal = faulty(status)
    async with world.client() as client:
        with pytest.raises(JournalError):
            await world.call(client, idempotency_key=KEY)
        gc.collect()
        assert text(await world.call(client, idempotency_key=KEY)) == outcome
    assert len(world.server.log("tools/call")) == 1


@AGAIN
async def test_the_last_answer_of_a_round_that_could_not_be_journaled_sends_the_round_once(
    again: Again,
) -> None:
    world = World(calls=[FIRST_ROUND, POLLED_AT_ONCE])
    world.journal = faulty("gathering", nth=3)  # the questions, the answer to a, the answer to b
    asked = Asked()
    async with world.client(elicitation=asked) as client:
        with pytest.raises(JournalError) as caught:
            await world.call(client, idempotency_key=KEY)
        assert caught.value.handle is not None
        assert len(world.server.log("tools/call")) == 1, "no answer is sent that could be forgotten"
        assert await again(world, client, caught.value) == "done"
    rounds = [sent.call for sent in world.server.log("tools/call")]
    assert [call and dict(call.input_responses) for call in rounds] == [{}, {"a": ACCEPTED, "b": ACCEPTED}]
    assert asked.keys == ["a", "b"]


async def test_an_answer_that_is_being_journaled_is_no_instruction_that_is_left_over() -> None:
    """The driver, rung by it, would write the record once more, and park the call if that fails."""
    world = World(calls=[FIRST_ROUND, POLLED_AT_ONCE])
    world.journal = journal = faulty("gathering", nth=3)  # the questions, the answer to a, the answer to b
    asked = Asked()
    saved, b_is_asked = anyio.Event(), anyio.Event()

    async def let_it_save() -> None:
        await saved.wait()
        await b_is_asked.wait()

    async def note_save() -> None:
        saved.set()

    async def answer(context: Any, params: Any) -> ElicitResult:
        answered = await asked(context, params)
        if context.key == "b":
            b_is_asked.set()
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
        return answered

    # Between the two commits of the answer to a, the driver reads, if it may.
    driver_reads = anyio.wait_all_tasks_blocked
    journal.before("save", driver_reads, when=lambda record, **_: record.status == "gathering", nth=2)
    journal.after("save", note_save, when=lambda done, record, heeded=None, **_: heeded is not None)
    journal.after("instructions", let_it_save, when=lambda found, *_: bool(found))
    async with world.client(elicitation=answer) as client:
        with pytest.raises(JournalError) as caught:
            await world.call(client, idempotency_key=KEY)
        assert await by_handle(world, client, caught.value) == "done"
    assert asked.keys == ["a", "b"]


@AGAIN
@pytest.mark.parametrize("status", ["working", "input_required", "completed"])
async def test_whatever_a_journal_raises_is_a_journal_error_that_names_it_and_loses_nothing(
    status: str, again: Again
) -> None:
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [asking, DONE]})
    world.journal = faulty(status, error=RuntimeError("a bug in the plug-in"))
    asked = Asked()
    async with world.client(elicitation=asked) as client:
        with pytest.raises(JournalError, match="RuntimeError: a bug in the plug-in") as caught:
            await world.call(client, idempotency_key=KEY)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert caught.value.handle is not None
        assert caught.value.handle.task_id == TASK
        assert await again(world, client, caught.value) == "done"
    assert len(world.server.log("tools/call")) == 1


# ── cancelling what is no task ────────────────────────────────────────────────────────────────


@requirement("cancel:tasks-cancel")
@pytest.mark.parametrize("key", [None, KEY])
async def test_cancelling_while_the_call_is_under_way_is_told_to_the_server_when_there_is_a_task(
    key: str | None,
) -> None:
    world, reply = late_world(gets={TASK: [cancelled(TASK)]})
    async with world.client() as client:
        with pytest.raises(WaitTimeoutError) as caught:
            await client.call_tool("tool", timeout=0.2, idempotency_key=key)
        handle = caught.value.handle
        assert handle is not None
        assert handle.task_id is None
        assert reply.called.is_set()

        async def cancel() -> None:
            await handle.cancel()
            reply.go.set()

        await world.during(lambda: together(cancel, lambda: ended(handle)), 60)
        with pytest.raises(TaskCancelledError):
            await handle.result()
    # It may be sent twice: once by the wait that was over, once by the one that followed.
    assert list(dict.fromkeys(methods(world))) == ["tools/call", "tasks/cancel", "tasks/get"]


async def ended(handle: TaskHandle) -> None:
    with suppress(TaskCancelledError):
        await handle.result()


@pytest.mark.parametrize("parked", [True, False])
async def test_cancelling_while_questions_before_the_task_are_open_ends_the_call(parked: bool) -> None:
    world = World(calls=[FIRST_ROUND, POLLED_AT_ONCE])
    withdrawn = False

    async def elicit(context: Any, params: Any) -> Any:
        nonlocal withdrawn
        if parked:
            return NOT_NOW
        try:
            await anyio.sleep_forever()
        finally:
            withdrawn = True

    async with world.client(elicitation=elicit) as client:
        with pytest.raises((InputUnansweredError, WaitTimeoutError)) as caught:
            await client.call_tool("tool", timeout=0.2)
        handle = caught.value.handle
        assert handle is not None

        async def cancel() -> None:
            await anyio.wait_all_tasks_blocked()
            await handle.cancel()

        with anyio.fail_after(30):
            if parked:
                await handle.cancel()
            else:
                await together(lambda: ended(handle), cancel)
            with pytest.raises(TaskCancelledError):
                await handle.result()
    assert withdrawn is not parked
    assert methods(world) == ["tools/call"]


async def test_cancelling_a_call_of_unknown_outcome_sends_nothing_and_leaves_it_unknown() -> None:
    world = World(calls=[LOST])
    async with world.client() as client:
        with pytest.raises(OutcomeUnknownError) as caught:
            await world.call(client, idempotency_key=KEY)
        handle = caught.value.handle
        assert handle is not None
        await handle.cancel()
        reference = handle.reference
    async with world.client() as client:
        handle = await client.attach(reference)
        await handle.cancel()
        with pytest.raises(OutcomeUnknownError):
            await handle.result()
        assert [record.status for record in await client.records()] == ["outcome_unknown"]
    assert methods(world) == ["tools/call"]


@requirement("cancel:tasks-cancel")
async def test_a_callback_may_cancel_its_own_task_which_withdraws_it_and_tells_the_server_once() -> None:
    world = World(gets={TASK: [input_required(TASK, {"k": ASK}), cancelled(TASK)]})
    handles: list[TaskHandle] = []
    withdrawn = anyio.Event()
    told: list[str] = []

    async def cancel(ref: Any) -> None:
        await ScriptedSession.cancel(world.server, ref)
        told.append(ref.task_id)

    world.server.cancel = cancel  # type: ignore[method-assign]  # a request that is cut short tells nobody

    async def give_up(context: Any, params: Any) -> Any:
        try:
            await handles[0].cancel()
            await anyio.sleep_forever()
        finally:
            withdrawn.set()

    async with world.client(elicitation=give_up) as client:
        handles.append(await client.start_tool("tool"))
        await world.clock.advance(1.5)
        assert withdrawn.is_set()
        assert told == [TASK]
        with pytest.raises(TaskCancelledError):
            await world.during(handles[0].result, 60)
    assert methods(world) == ["tools/call", "tasks/get", "tasks/cancel", "tasks/get"]


# ── keys ──────────────────────────────────────────────────────────────────────────────────────


async def half_answered(world: World) -> Any:
    """Leave a keyed call behind that was asked ``a`` and ``b`` and answered ``a``; its reference."""
    async with world.client(elicitation=Asked(YES, NOT_NOW)) as client:
        with pytest.raises(InputUnansweredError) as caught:
            await world.call(client, arguments={"x": 1}, idempotency_key=KEY)
    assert caught.value.handle is not None
    return caught.value.handle.reference


async def test_the_keys_of_a_call_that_has_to_be_repeated_are_those_without_an_answer() -> None:
    world = World(calls=[FIRST_ROUND])
    reference = await half_answered(world)
    async with world.client() as client:
        handle = await client.attach(reference)
        with pytest.raises(InputUnansweredError) as caught:
            await handle.result()
    assert caught.value.keys == ("b",)


async def test_a_closed_client_journals_no_intent() -> None:
    world = World()
    async with world.journal:
        async with world.client() as client:
            pass
        for use in (client.call_tool, client.start_tool):
            with pytest.raises(TasksClientError, match="client is closed"):
                await use("tool", idempotency_key=KEY)
        assert await world.journal.records(Scope("scripted")) == []
    assert world.server.sent == []


async def test_a_closing_client_journals_no_intent() -> None:
    """It still waits for the reply to another call, and its journal is still open."""
    world, reply = late_world()

    async def call_and_call_again() -> None:
        try:
            with pytest.raises(TasksClientError, match="client was closed"):
                await client.call_tool("tool")
            with pytest.raises(TasksClientError, match="client is closed"):
                await client.call_tool("tool", idempotency_key=KEY)
        finally:
            reply.go.set()

    async with world.journal:
        async with anyio.create_task_group() as tasks, world.client() as client:
            tasks.start_soon(call_and_call_again)
            await reply.called.wait()
        assert await with_key(world.journal, Scope("scripted"), KEY) is None
    assert (await world.only_record()).task_id == TASK


@pytest.mark.parametrize("where", ["the same client", "another client"])
async def test_a_call_of_unknown_outcome_that_two_want_resent_is_sent_once_more(where: str) -> None:
    world = World(calls=[LOST, POLLED_AT_ONCE, working("another-task")])
    results: list[str] = []

    async def lose(client: TasksClient) -> None:
        with pytest.raises(OutcomeUnknownError):
            await world.call(client, idempotency_key=KEY)

    if where == "another client":
        async with world.client() as client:
            await lose(client)
    async with world.client() as client:
        if where == "the same client":
            await lose(client)

        async def resend() -> None:
            again = await client.call_tool("tool", idempotency_key=KEY, on_unknown="resend")
            results.append(text(again))

        await world.during(lambda: together(resend, resend), 60)
    assert results == ["done", "done"]
    assert len(world.server.log("tools/call")) == 2


# ── several at one task ───────────────────────────────────────────────────────────────────────


async def test_attaching_an_unknown_task_twice_at_once_is_one_record_and_one_series_of_polls() -> None:
    world = World(gets={TASK: [POLLED_AT_ONCE, POLLED_AT_ONCE, DONE]})
    handles: list[TaskHandle] = []
    async with world.client() as client:

        async def attach() -> None:
            handles.append(await client.attach(TASK))

        await world.during(lambda: together(attach, attach), 0)
        assert len(await client.records()) == 1
        assert [await result(world, handle) for handle in handles] == ["done", "done"]
    assert world.polled_at() == [0.0, 1.0, 2.0]


def refused_once() -> World:
    refusal = CredentialRefusedError("HTTP 401", http_status=401)
    return World(gets={TASK: [refusal, DONE]})


async def test_two_who_wait_for_a_parked_task_are_each_told_with_an_error_of_their_own() -> None:
    world = refused_once()
    async with world.client() as client:
        handle = await client.start_tool("tool")
        other = await client.attach(handle.reference)
        told: list[CredentialRefusedError] = []

        async def wait(handle: TaskHandle) -> None:
            with pytest.raises(CredentialRefusedError) as caught:
                await handle.result()
            told.append(caught.value)

        await world.during(lambda: together(lambda: wait(handle), lambda: wait(other)), 1)
    assert told[0] is not told[1]
    assert [error.http_status for error in told] == [401, 401]
    assert world.polled_at() == [1.0]


@pytest.mark.parametrize("waits", [True, False], ids=["while it waits", "afterwards"])
async def test_what_parked_a_task_is_told_once_and_the_next_result_tries_again(waits: bool) -> None:
    world = refused_once()
    async with world.client() as client:
        handle = await client.start_tool("tool")
        if not waits:
            await world.clock.advance(60)
        with pytest.raises(CredentialRefusedError):
            await world.during(handle.result, 60)
        assert world.polled_at() == [1.0]
        assert await result(world, handle) == "done"
        assert len(world.polled_at()) == 2


@pytest.mark.parametrize("again", ["handle", "key"])
async def test_a_lost_reply_that_could_not_be_journaled_at_first_is_told_and_never_waited_for(
    again: str,
) -> None:
    world = World(calls=[LOST])
    world.journal = faulty("outcome_unknown")
    async with world.client() as client:
        call = partial(world.call, client)
        with pytest.raises(JournalError) as caught:
            await call(idempotency_key=KEY)
        handle = caught.value.handle
        retry = partial(result, world, handle) if again == "handle" else partial(call, idempotency_key=KEY)
        with pytest.raises(OutcomeUnknownError):
            await retry()
    assert methods(world) == ["tools/call"]


async def test_an_intent_that_could_not_be_journaled_again_is_no_lost_call() -> None:
    first_round = {"resultType": "input_required", "inputRequests": {"a": ASK}, "requestState": "r"}
    world = World(calls=[first_round, text_result("done")])
    world.journal = faulty("calling", nth=1)
    async with world.client(elicitation=Asked(YES)) as client:
        with pytest.raises(JournalError) as caught:
            await world.call(client, idempotency_key=KEY)
        assert methods(world) == ["tools/call"]  # the second round never left
        assert await result(world, caught.value.handle) == "done"
    assert methods(world) == ["tools/call"] * 2


@pytest.mark.parametrize("comes_back", ["resume", "close"])
async def test_a_task_id_that_could_not_be_journaled_at_first_is_not_forgotten_with_its_caller(
    comes_back: str,
) -> None:
    world, reply = late_world(gets={TASK: [working(TASK)]})
    world.journal = journal = faulty("working")
    async with world.client() as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "tool")
            await reply.called.wait()
            tasks.cancel_scope.cancel()
        reply.go.set()
        while not journal.counts["save"]:
            await anyio.lowlevel.checkpoint()
        if comes_back == "resume":
            assert [handle.task_id for handle in await client.resume()] == [TASK]
            await world.clock.advance(0)
            assert len(await client.records()) == 1
    assert (await world.only_record()).task_id == TASK


async def test_a_journal_that_is_cancelled_from_inside_leaves_nobody_waiting(anyio_backend_name: str) -> None:
    world = World()
    claim, broken = world.journal.claim, True

    async def cut(record: TaskRecord) -> TaskRecord:
        if broken:
            await cancelled_from_inside(anyio_backend_name)
        return await claim(record)

    world.journal.claim = cut  # type: ignore[method-assign]  # its connection pool was closed, say
    async with world.client() as client:
        with anyio.fail_after(30), pytest.raises(TasksClientError, match="cancelled from inside"):
            await client.call_tool("tool", idempotency_key=KEY)
        broken = False
        assert text(await world.call(client, idempotency_key=KEY)) == "done"


@pytest.mark.parametrize("step", ["take", "save"])
@pytest.mark.parametrize("comes_back", ["attach", "resume"])
async def test_a_take_up_that_is_cancelled_from_inside_is_told_and_can_be_repeated(
    step: str, comes_back: str, anyio_backend_name: str
) -> None:
    world = World(calls=[working(TASK, poll_interval_ms=60_000)], gets={TASK: [DONE]})
    async with world.client() as client:
        await client.start_tool("tool")
    works, broken = getattr(world.journal, step), True

    async def cut(*args: Any, **options: Any) -> Any:
        if broken:
            await cancelled_from_inside(anyio_backend_name)
        return await works(*args, **options)

    setattr(world.journal, step, cut)
    async with world.client() as client:
        with anyio.fail_after(30):
            handle = await client.attach(TASK) if comes_back == "attach" else (await client.resume())[0]
            if comes_back == "attach" or step == "save":
                with pytest.raises(TasksClientError, match="cancelled from inside"):
                    await handle.result()
        broken = False
        await world.during(handle.result, 120)
        assert text(await handle.result()) == "done"


async def test_a_silence_is_kept_over_restarts_and_ends_after_the_longest_wait() -> None:
    silence = SessionError("busy", retryable=True, http_status=429, retry_after_s=1e307)
    world = World(calls=[POLLED_AT_ONCE], gets={TASK: [silence, DONE]})
    async with world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(2000)
    async with world.client() as client:
        (handle,) = await client.resume()
        await world.clock.advance(1500)
        assert world.polled_at() == [1.0]
        await world.clock.advance(200)
        assert handle.done
    assert world.polled_at() == [1.0, 3601.0]


# ── keys that are refused and taken up at once ────────────────────────────────────────────────


async def test_a_call_that_joins_one_that_is_just_being_refused_has_an_intent_of_its_own() -> None:
    """Or a third call with the key would find nothing, and run the tool once more."""
    world = World(gets={TASK: [working(TASK)]})
    world.journal, joined = ProbedJournal(), Held()
    journal = world.journal
    # A slow disk keeps back that the key is taken.
    journal.after("claim", joined, when=lambda standing, record: standing.record_id != record.record_id)
    refused = anyio.Event()
    intents: list[TaskRecord | None] = []

    async def call(call: Any, before_send: BeforeSend) -> Any:
        if refused.is_set():
            intents.append(await with_key(journal, Scope("scripted"), KEY))
            return await ScriptedSession.call(world.server, call, before_send)
        await before_send()
        await joined.reached.wait()
        refused.set()
        raise SessionError("Too many requests.", retryable=True, not_executed=True, http_status=429)

    world.server.call = call  # type: ignore[method-assign]  # the first is refused, while the second joins
    outcomes: list[object] = []
    async with world.client() as client:

        async def start() -> None:
            try:
                outcomes.append(await client.start_tool("tool", idempotency_key=KEY))
            except SessionError as error:
                outcomes.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            tasks.start_soon(start)
            while not outcomes:
                await anyio.lowlevel.checkpoint()
            joined.go_on.set()
        assert isinstance(outcomes[0], SessionError)
        await start()
        assert [getattr(handle, "task_id", None) for handle in outcomes[1:]] == [TASK, TASK]
        assert len(await client.records()) == 1
    assert [intent is not None and intent.status for intent in intents] == ["calling"]
    assert methods(world).count("tools/call") == 1


# ── what a host does beside a call ────────────────────────────────────────────────────────────


async def test_an_on_update_that_is_cancelled_from_inside_ends_nothing(anyio_backend_name: str) -> None:
    world = World(gets={TASK: [working(TASK), DONE]})

    async def on_update(task: Task) -> None:
        await cancelled_from_inside(anyio_backend_name)

    async with world.client(on_abandon="cancel") as client:
        assert text(await world.call(client, on_update=on_update)) == "done"
    assert "tasks/cancel" not in methods(world)


async def test_closing_during_resume_is_one_plain_error() -> None:
    world = World(gets={TASK: [working(TASK)]})
    async with world.client() as client:
        await client.start_tool("tool")
    raised: list[Exception] = []
    async with anyio.create_task_group() as tasks, world.client() as client:

        async def resume() -> None:
            try:
                await client.resume()
            except Exception as error:
                raised.append(error)

        tasks.start_soon(resume)
        await anyio.lowlevel.checkpoint()
    assert [type(error) for error in raised] in ([], [TasksClientError])


async def test_closing_while_resume_reads_the_journal_is_one_plain_error() -> None:
    world = World(gets={TASK: [working(TASK)]})
    world.journal, reading = ProbedJournal(), Held()

    async def resume() -> None:
        with pytest.raises(TasksClientError, match="The client is closed"):
            await client.resume()

    async with anyio.create_task_group() as tasks:
        async with world.client() as client:
            world.journal.before("owners", reading)
            tasks.start_soon(resume)
            await reading.reached.wait()
        reading.go_on.set()


async def test_a_cancel_is_told_to_the_server_though_nobody_waits_for_the_task_meanwhile() -> None:
    world = World(gets={TASK: [working(TASK)]})
    connecting, connected = anyio.Event(), anyio.Event()

    async def cancel(ref: Any) -> None:
        connecting.set()
        await connected.wait()
        await ScriptedSession.cancel(world.server, ref)

    world.server.cancel = cancel  # type: ignore[method-assign]  # takes a while
    async with world.client() as client:
        with pytest.raises(WaitTimeoutError) as caught:
            await client.call_tool("tool", timeout=0.05)
        handle = caught.value.handle
        assert handle is not None
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(handle.result)
                await anyio.lowlevel.checkpoint()
                tasks.start_soon(handle.cancel)
                await connecting.wait()
                waiting.cancel_scope.cancel()
            connected.set()
        # Once more where somebody takes the call up while the first is on its way, which does no harm.
        assert methods(world).count("tasks/cancel") in (1, 2)


async def test_a_cancel_that_closing_cut_off_says_so() -> None:
    world = World(gets={TASK: [working(TASK)]}, cancels=[STALL])
    async with (
        anyio.create_task_group() as tasks,
        world.client(poll=PollPolicy(cancel_timeout_s=0.05)) as client,
    ):
        handle = await client.start_tool("tool")

        async def cancel() -> None:
            with pytest.raises(TasksClientError, match="closed"):
                await handle.cancel()

        tasks.start_soon(cancel)
        while "tasks/cancel" not in methods(world):
            await anyio.lowlevel.checkpoint()


async def test_what_does_not_match_the_output_schema_is_quoted_without_the_task_id() -> None:
    schema = {"type": "object", "properties": {"job": {"type": "integer"}}}
    tool = Tool(name="tool", input_schema={"type": "object"}, output_schema=schema)
    result = {"content": [], "structuredContent": {"job": TASK}}
    world = World(gets={TASK: [completed(TASK, result)]}, tools=[tool])
    async with world.client() as client:
        with pytest.raises(RemoteProtocolError) as caught:
            await world.call(client)
    assert "$.job: the value is not of type" in str(caught.value)
    assert TASK not in str(caught.value)


@pytest.mark.parametrize("verb", ["get", "update"])
async def test_invalid_params_from_a_rate_limiter_say_nothing_about_the_task(verb: str) -> None:
    limited = SessionError("slow down", code=-32602, retryable=True, http_status=429, retry_after_s=1.0)
    asks = input_required(TASK, {"k": ASK})
    world = World(
        gets={TASK: [limited, asks, DONE] if verb == "get" else [asks, asks, asks, DONE]},
        updates=[limited, {}] if verb == "update" else [{}],
    )
    async with world.client(elicitation=Asked()) as client:
        assert text(await world.call(client)) == "done"
    assert len(world.server.log("tasks/update")) == (2 if verb == "update" else 1)


# ── two clients of one process, and closing in between ────────────────────────────────────────


async def test_who_lost_a_race_for_a_task_takes_it_up_when_the_winner_has_closed() -> None:
    world = World(gets={TASK: [working(TASK)]})
    async with world.client() as client:
        await client.start_tool("tool")
    async with world.client() as other:
        async with world.client() as first, anyio.create_task_group() as tasks:
            tasks.start_soon(first.resume)
            tasks.start_soon(other.resume)
        (handle,) = await other.resume()
        assert handle.task_id == TASK
        await world.clock.advance(3)
        assert not handle.done
        assert await other.attach(TASK) is not None


def _is_wish(record: TaskRecord, **options: Any) -> bool:
    return isinstance(record.state, Observing) and record.state.cancel != "no"


async def test_closing_while_a_wish_to_cancel_is_being_journaled_comes_to_an_end() -> None:
    world = World(gets={TASK: [working(TASK)]}, cancels=[STALL])
    world.journal, wish = ProbedJournal(), Held()
    world.journal.before("save", wish, when=_is_wish, nth=1)
    ended: list[TasksClientError] = []
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            brief = PollPolicy(cancel_timeout_s=0.05)
            async with world.client(poll=brief) as client:
                handle = await client.start_tool("tool")

                async def cancel() -> None:
                    try:
                        await handle.cancel()
                    except TasksClientError as error:
                        ended.append(error)

                tasks.start_soon(cancel)
                await wish.reached.wait()
                tasks.start_soon(set_soon, wish.go_on)
    assert len(ended) == 1


async def set_soon(event: anyio.Event) -> None:
    for _ in range(50):
        await anyio.lowlevel.checkpoint()
    event.set()


async def test_resume_names_a_task_once_whose_answer_could_not_be_journaled() -> None:
    world = World(gets={TASK: [input_required(TASK, {"k": ASK}), DONE]})
    world.journal = faulty("input_required", nth=2)
    async with world.client(elicitation=Asked(YES)) as client:
        with pytest.raises(JournalError):
            await world.call(client)
        assert [handle.task_id for handle in await client.resume()] == [TASK]


async def test_an_intent_that_could_not_be_claimed_again_never_leaves_without_one() -> None:
    """Taken back, wanted again at once, and the disk is full at that moment."""
    world = World()
    stalls = True
    seen: list[TaskRecord | None] = []

    async def call(call: Any, before_send: BeforeSend) -> Any:
        if stalls:
            await anyio.sleep_forever()
        seen.append(await with_key(world.journal, Scope("scripted"), KEY))
        return await ScriptedSession.call(world.server, call, before_send)

    world.server.call = call  # type: ignore[method-assign]  # something has to be asked for first
    async with world.client() as client:
        with pytest.raises(WaitTimeoutError) as caught:
            await client.call_tool("tool", timeout=0.01, idempotency_key=KEY)
        while await client.records():
            await anyio.lowlevel.checkpoint()
        stalls = False
        claim, failures = world.journal.claim, [JournalError("The disk is full.")]

        async def full(record: TaskRecord) -> TaskRecord:
            if failures:
                raise failures.pop()
            return await claim(record)

        world.journal.claim = full  # type: ignore[method-assign]  # for a moment
        handle = caught.value.handle
        assert handle is not None
        with pytest.raises(JournalError):
            await world.during(handle.result, 1)
        assert await result(world, handle) == "done"
    assert [intent is not None for intent in seen] == [True]


# ── prompts that are withdrawn ────────────────────────────────────────────────────────────────


@requirement("mrtr:answers")
@pytest.mark.parametrize("reply", ["comes", "is lost"])
async def test_a_second_answer_that_comes_while_the_call_is_under_way_is_ignored(reply: str) -> None:
    """A prompt in a thread cannot be withdrawn: repeating the call puts a second one beside it."""
    round_one = {**FIRST_ROUND, "inputRequests": {"a": ASK}}
    world, slow = late_world(calls=[round_one, text_result("done") if reply == "comes" else LOST])
    slow.go.set()  # the first round is not held back
    answers = [anyio.Event(), anyio.Event()]
    prompts = iter(answers)

    async def ask(context: Any, params: Any) -> ElicitResult:
        with anyio.CancelScope(shield=True):
            await next(prompts).wait()
        return YES

    async with world.client(elicitation=ask) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.call_tool("tool", idempotency_key=KEY))
            await world.clock.advance(0)
            tasks.cancel_scope.cancel()
        slow.called, slow.go = anyio.Event(), anyio.Event()
        handles: list[TaskHandle] = []

        async def call_again() -> None:
            if reply == "comes":
                assert text(await client.call_tool("tool", idempotency_key=KEY)) == "done"
                return
            with pytest.raises(OutcomeUnknownError) as caught:
                await client.call_tool("tool", idempotency_key=KEY)
            assert caught.value.handle is not None
            handles.append(caught.value.handle)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call_again)
            await world.clock.advance(0)
            answers[0].set()
            await slow.called.wait()
            if reply == "comes":
                answers[1].set()
            await world.clock.advance(0)
            slow.go.set()
            await world.clock.advance(0)
            answers[1].set()
            await world.clock.advance(0)
        for handle in handles:
            with pytest.raises(OutcomeUnknownError):
                await handle.result()
    assert len(world.server.log("tools/call")) == 2
    expected = "completed" if reply == "comes" else "outcome_unknown"
    assert (await world.only_record()).status == expected


async def test_a_prompt_that_makes_an_error_of_its_own_of_being_withdrawn_parks_nothing() -> None:
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [asking, asking, asking, DONE]})
    prompts = 0

    async def ask(context: Any, params: Any) -> ElicitResult:
        nonlocal prompts
        prompts += 1
        if prompts == 1:
            try:
                await anyio.sleep_forever()
            except BaseException:
                raise RuntimeError("prompt aborted") from None
        return YES

    async with world.client(elicitation=ask) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.call_tool("tool", idempotency_key=KEY))
            await world.clock.advance(2)
            tasks.cancel_scope.cancel()
        assert text(await world.call(client, idempotency_key=KEY)) == "done"
    assert prompts == 2


async def test_a_question_that_the_server_withdrew_is_asked_only_if_it_comes_again() -> None:
    both, second = (
        input_required(TASK, dict.fromkeys(keys, ASK), poll_interval_ms=1000) for keys in ("ab", "b")
    )
    world = World(gets={TASK: [both, POLLED_AT_ONCE, POLLED_AT_ONCE, second, second, DONE]})
    asked: list[str] = []
    answer_the_first = anyio.Event()

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(context.key)
        await answer_the_first.wait()
        return YES

    async with world.client(elicitation=ask) as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(2.5)
        answer_the_first.set()
        await world.clock.advance(0)
        assert asked == ["a"], "the other one is in the queue, and not wanted any more"
        assert await result(world, handle) == "done"
    assert asked == ["a", "b"]
    assert [key for sent in world.server.log("tasks/update") for key in sent.answers].count("b") == 1


SAMPLING = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "2 + 2?"}}],
        "maxTokens": 8,
    },
}


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_what_a_model_answers_does_not_wait_for_a_person(order: str) -> None:
    """The server may have set it a time limit. A person has one form at a time."""
    asks = {"a": ASK, "b": SAMPLING, "c": ASK}
    snapshot = input_required(TASK, {key: asks[key] for key in (*order, "c")}, poll_interval_ms=1000)
    world = World(gets={TASK: [snapshot, DONE]})
    asked: list[str] = []
    sampled = anyio.Event()

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(context.key)
        await sampled.wait()
        return YES

    async def sample(context: Any, params: Any) -> CreateMessageResult:
        assert asked in ([], ["a"])
        sampled.set()
        return CreateMessageResult(role="assistant", model="m", content=TextContent(type="text", text="4"))

    async with world.client(elicitation=ask, sampling=sample) as client:
        handle = await client.start_tool("tool")
        assert await result(world, handle) == "done"
    assert asked == ["a", "c"]


@pytest.mark.parametrize("who_fails", ["the model", "the person"])
async def test_a_question_without_an_answer_takes_no_other_away_from_who_is_before_it(who_fails: str) -> None:
    """It parks the call, once what is being said has been said; and nobody else is asked meanwhile."""
    asks = {"form": ASK, "model": SAMPLING, "more": ASK, "roots": {"method": "roots/list"}}
    asking = input_required(TASK, asks, poll_interval_ms=1000)
    world = World(gets={TASK: [asking, asking, asking, DONE]})
    up, asked, failed = set[str](), list[str](), anyio.Event()
    fails = {"the model": {"model"}, "the person": {"form"}}[who_fails]

    async def answered(key: str, answer: Any) -> Any:
        asked.append(key)
        up.add(key)
        while not up >= {"form", "model"}:
            await anyio.sleep(0.001)
        if key in fails and asked.count(key) == 1:
            failed.set()
            return ErrorData(code=-1, message="not now")
        await failed.wait()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        return answer

    async def ask(context: Any, params: Any) -> ElicitResult | ErrorData:
        return await answered(context.key, YES)  # type: ignore[no-any-return]

    async def sample(context: Any, params: Any) -> CreateMessageResult | ErrorData:
        four = TextContent(type="text", text="4")
        made = CreateMessageResult(role="assistant", model="m", content=four)
        return await answered("model", made)  # type: ignore[no-any-return]

    async def roots(context: Any) -> ListRootsResult:
        asked.append("roots")
        return ListRootsResult(roots=[])

    async with world.client(elicitation=ask, sampling=sample, roots=roots) as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(1.5)
        with anyio.fail_after(30), pytest.raises(InputUnansweredError, match="not now"):
            await handle.result()
        assert sorted(asked) == ["form", "model", "roots"]
        assert await result(world, handle) == "done"
    assert sorted(asked) == sorted([*asks, *fails]), "each once, but what had no answer"


async def test_what_was_held_back_for_an_answer_that_is_not_wanted_any_more_is_asked() -> None:
    first = input_required(TASK, {"form": ASK, "model": SAMPLING}, poll_interval_ms=1000)
    then = input_required(TASK, {"form": ASK, "more": ASK}, poll_interval_ms=1000)
    world = World(gets={TASK: [first, then, then, then, then, DONE]})
    asked: list[str] = []
    model_fails, typed = anyio.Event(), anyio.Event()

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(context.key)
        await typed.wait()
        return YES

    async def sample(context: Any, params: Any) -> ErrorData:
        await model_fails.wait()
        return ErrorData(code=-1, message="not now")

    async with world.client(elicitation=ask, sampling=sample) as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(2.5)
        model_fails.set()
        await anyio.wait_all_tasks_blocked()
        typed.set()
        await world.clock.advance(0)
        assert asked == ["form", "more"]
        assert await result(world, handle) == "done"


async def test_a_prompt_in_a_thread_stays_up_and_there_is_no_other_beside_it() -> None:
    """Whoever types would not know which of the two is meant."""
    first, then = (input_required(TASK, {key: ASK}, poll_interval_ms=1000) for key in "ab")
    world = World(gets={TASK: [first, then, then, then, DONE]})
    asked: list[str] = []
    typed = threading.Event()

    def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(context.key)
        assert typed.wait(10)
        return YES

    async with world.client(elicitation=ask) as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(1)
        while not asked:
            await anyio.sleep(0.001)
        await world.clock.advance(1.5)
        (record,) = await client.records()
        assert record.task is not None
        assert record.task.input_requests is not None
        assert [*record.task.input_requests] == ["b"]
        await anyio.sleep(0.05)
        assert asked == ["a"]
        typed.set()
        while asked != ["a", "b"]:
            await anyio.sleep(0.001)
        assert await result(world, handle) == "done"


async def test_what_a_prompt_says_because_it_was_withdrawn_is_no_answer() -> None:
    asking = input_required(TASK, {"k": ASK}, poll_interval_ms=1000)
    world = World(gets={TASK: [asking, asking, DONE]})
    asked = 0

    async def ask(context: Any, params: Any) -> ElicitResult:
        nonlocal asked
        asked += 1
        if asked == 1:
            try:
                await anyio.sleep_forever()
            except BaseException:
                return ElicitResult(action="cancel")
        return YES

    async with world.client(elicitation=ask) as client:
        await client.start_tool("tool")
        await world.clock.advance(1.5)
        assert asked == 1
    async with world.client(elicitation=ask) as client:
        (handle,) = await client.resume()
        assert await result(world, handle) == "done"
    assert asked == 2
    assert [sent.answers for sent in world.server.log("tasks/update")] == [{"k": ACCEPTED}]


# ── found, lost, and found again ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kept", [True, False], ids=["with the old handle", "without it"])
async def test_a_task_that_was_not_found_is_asked_for_again_when_it_is_attached_again(kept: bool) -> None:
    world = World(gets={})
    async with world.client() as client:
        handle: TaskHandle | None = await client.attach(TASK)
        assert handle is not None
        with pytest.raises(TaskNotFoundError):
            await handle.result()
        if not kept:
            handle = None
        world.server.gets[TASK] = [DONE]
        again = await client.attach(TASK)
        assert text(await again) == "done"
        if handle is not None:
            with pytest.raises(TaskNotFoundError):
                await handle.result()
    assert len(world.polled_at()) == 2


async def test_the_reference_of_a_call_under_way_is_attached_though_nothing_is_journaled() -> None:
    world, reply = late_world()
    async with world.client() as client:
        with pytest.raises(WaitTimeoutError) as caught:
            await client.call_tool("tool", timeout=0.05)
        assert caught.value.handle is not None
        handle = await client.attach(caught.value.handle.reference)
        reply.go.set()
        assert await result(world, handle) == "done"
    assert len(world.server.log("tools/call")) == 1


async def test_a_cancel_that_a_gateway_refused_as_invalid_is_said_again() -> None:
    limited = SessionError("no healthy upstream", code=-32602, retryable=True, retry_after_s=1.0)
    world = World(gets={TASK: [POLLED_AT_ONCE]}, cancels=[limited, {}])
    async with world.client() as client:
        handle = await client.start_tool("tool")
        with pytest.raises(SessionError, match="no healthy upstream"):
            await handle.cancel()
        await world.clock.advance(5)
    assert len(world.server.log("tasks/cancel")) == 2


async def test_a_lost_cancel_is_said_again_by_the_clock_of_the_client() -> None:
    world = World(gets={TASK: [working(TASK)]}, cancels=[LOST, {}])
    async with world.client() as client, anyio.create_task_group() as tasks:
        handle = await client.start_tool("tool")
        tasks.start_soon(handle.cancel)
        await world.clock.advance(0)
        assert len(world.server.log("tasks/cancel")) == 1
        await world.clock.advance(0.2)
        assert len(world.server.log("tasks/cancel")) == 2


async def test_a_cancel_that_is_lost_three_times_is_told_and_said_again_with_the_next_poll() -> None:
    world = World(gets={TASK: [working(TASK)]}, cancels=[LOST, LOST, LOST, {}])
    async with world.client() as client:
        handle = await client.start_tool("tool")
        with pytest.raises(ConnectionLostError):
            await world.during(handle.cancel, 0.9)
        assert len(world.server.log("tasks/cancel")) == 3
        await world.clock.advance(10)
        assert len(world.server.log("tasks/cancel")) == 4


async def test_a_lost_cancel_that_has_worked_is_no_error() -> None:
    over = {"taskId": TASK, "status": "cancelled", "ttlMs": None}
    often = working(TASK, poll_interval_ms=50)
    world = World(calls=[often], gets={TASK: [often, over]}, cancels=[LOST, {}])
    async with world.client() as client, anyio.create_task_group() as tasks:
        handle = await client.start_tool("tool")

        async def observe() -> None:
            with pytest.raises(TaskCancelledError):
                await handle.result()

        tasks.start_soon(observe)
        await world.clock.advance(0.06)
        tasks.start_soon(handle.cancel)
        await world.clock.advance(0.05)
        assert len(world.polled_at()) == 2, "the second, before the next attempt, finds that it is over"
        await world.clock.advance(0.2)
        assert len(world.server.log("tasks/cancel")) == 1


# ── a server that was deployed anew ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(("now", "fits"), [("amount", True), ("total", False)])
async def test_a_result_that_does_not_match_is_checked_against_the_schema_as_it_is_now(
    now: str, fits: bool
) -> None:
    old, new = (
        Tool(
            name="tool", input_schema={"type": "object"}, output_schema={"type": "object", "required": [name]}
        )
        for name in ("total", now)
    )
    raw = {"content": [], "structuredContent": {"amount": 1}}
    world = World(gets={TASK: [completed(TASK, raw)]}, tools=[old])
    looks: list[str] = []

    async def tool(name: str, *, fresh: bool = False, context: object = None) -> Tool:
        if fresh:
            looks.append("again")
        return new if fresh else old

    world.server.tool = tool  # type: ignore[method-assign]  # a list that is out of date
    async with world.client() as client:
        if fits:
            assert (await world.call(client)).structured_content == {"amount": 1}
        else:
            with pytest.raises(RemoteProtocolError, match='"total" is a required property') as caught:
                await world.call(client)
            assert caught.value.data == raw
    assert looks == ["again"]


@pytest.mark.parametrize("kind", [RuntimeError, OSError, "cancelled"])
async def test_what_opening_a_journal_raises_is_a_journal_error(kind: type[Exception] | str) -> None:
    trouble = anyio.get_cancelled_exc_class() if isinstance(kind, str) else kind
    if kind == "cancelled" and trouble.__module__.startswith("trio"):
        pytest.skip("trio's own cannot be made by hand")
    with pytest.raises(JournalError, match=r"^the journal"):
        async with scripted_client(ScriptedSession(), journal=ProbedJournal("open", error=trouble())):
            raise AssertionError("it must not open")


async def test_what_closing_a_journal_raises_ends_nobody(caplog: pytest.LogCaptureFixture) -> None:
    journal = ProbedJournal()
    journal.after("aclose", raising(RuntimeError("stuck")))
    with pytest.raises(ZeroDivisionError):
        async with scripted_client(ScriptedSession(), journal=journal):
            raise ZeroDivisionError
    assert "The journal could not be closed: the journal failed (RuntimeError: stuck)" in caplog.text


async def test_closing_while_the_journal_fails_waits_for_it_once_in_all_for_the_calls_that_are_left() -> None:
    journal, calls = ProbedJournal(), [working(f"task-{n}", poll_interval_ms=60_000) for n in range(5)]
    async with scripted_client(ScriptedSession(calls=calls), journal=journal) as client:
        for _ in calls:
            await client.start_tool("tool")
        await anyio.wait_all_tasks_blocked()
        journal.refuses = ("save", "release")  # as a database that is away
        journal.counts.clear()
    # Each driver as it ends, all at the same moment; then one call that is left; then the client.
    assert journal.counts["save"] + journal.counts["release"] == len(calls) + 1 + 1


async def test_what_an_auth_flow_raises_before_a_keyed_call_is_a_session_error() -> None:
    class Session(ScriptedSession):
        async def call(self, call: Any, before_send: BeforeSend) -> Any:
            raise RuntimeError("the token endpoint is down")

    async with scripted_client(Session(), journal=MemoryJournal()) as client:
        with (
            anyio.fail_after(30),
            pytest.raises(SessionError, match=r"tools/call could not be sent, .* raised RuntimeError"),
        ):
            await client.call_tool("tool", idempotency_key="k")
        assert await client.records() == []


async def test_a_poll_that_falls_due_while_a_silence_is_being_journaled_waits_for_its_end() -> None:
    clock = ManualClock()
    server = ScriptedServer(clock=clock)
    question = ask("q", form("?", name="string"))
    server.tool("tool", [work(0.1), question, work(100), complete(text_result("done"))], poll_interval_ms=200)
    server.misbehave("tasks/update", HttpError(429, retry_after_s=5))

    journal = ProbedJournal()
    first_silence = {"when": lambda record, **_: getattr(record.state, "quiet_until", 0), "nth": 1}
    journal.before("save", delay(clock, 0.3), **first_silence)

    async def answer(context: Any, params: Any) -> ElicitResult:
        await clock.sleep(0.185)
        return ElicitResult(action="accept", content={"name": "x"})

    async with scripted_client(
        server.session(), journal=journal, elicitation=answer, poll=NO_JITTER
    ) as client:
        await client.start_tool("tool")
        await clock.advance(4)
    assert not server.witness.early_polls
