"""Cancelling a call: before it is sent, in flight, while the server asks, and under somebody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import anyio
import anyio.abc
import pytest

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.engine.live_call import LiveCall
from mcp_tasks_client.errors import (
    CredentialRefusedError,
    InputUnansweredError,
    JournalError,
    OutcomeUnknownError,
    SessionError,
    TaskCancelledError,
    TasksClientError,
    WaitTimeoutError,
)
from mcp_tasks_client.handle import TaskHandle
from mcp_tasks_client.inbox import Inbox
from mcp_tasks_client.machine.record import TaskRecord
from mcp_tasks_client.machine.states import Gathering, Observing
from mcp_tasks_client.sessions.base import TaskRef
from mcp_tasks_client.testing import (
    FaultPlan,
    HttpError,
    ScriptedServer,
    cancelled,
    complete,
    input_required,
    raising,
    scripted_client,
    text_result,
    work,
    working,
)
from tests._requirements import requirement
from tests._results import text
from tests.engine.late_session import late_world
from tests.engine.world import ASK, DONE, LOST, TASK, YES, Asked, World
from tests.scripted_session import STALL, ScriptedSession

pytestmark = pytest.mark.anyio

KEY = "order-42"
ASKS_FIRST = {"resultType": "input_required", "inputRequests": {"k": ASK}, "requestState": "1"}
LATER = {"resultType": "input_required", "requestState": "1"}
EVERY_1200_MS = working(TASK, poll_interval_ms=1200)  # so that looks at another's call come in between
FULL = JournalError("The disk is full. Make room and try again.")
UNKNOWN = SessionError("Not known.", code=-32602, remote_message="Task not found")
IN_FLIGHT_S = 0.2  # on a busy machine the request is late


def methods(server: ScriptedSession) -> list[str]:
    return [sent.method for sent in server.sent]


async def handle_in_flight(client: TasksClient, key: str | None = None) -> TaskHandle:
    """Make a call, and go away before its reply has come."""
    with pytest.raises(WaitTimeoutError) as caught:
        await client.call_tool("tool", timeout=IN_FLIGHT_S, idempotency_key=key)
    assert caught.value.handle is not None
    return caught.value.handle


async def follow(handle: TaskHandle) -> None:
    async for _ in handle.updates():
        pass


async def is_cancelled(handle: TaskHandle) -> None:
    with pytest.raises(TaskCancelledError):
        await handle.result()


# ── before there is a task ────────────────────────────────────────────────────────────────────


@requirement("cancel:tasks-cancel")
@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("waits", [False, True], ids=["nobody waits", "somebody waits"])
async def test_a_cancel_while_the_call_is_in_flight_is_sent_as_soon_as_there_is_a_task(
    waits: bool, key: str | None
) -> None:
    world, server = late_world(gets={TASK: [cancelled(TASK)]})
    async with world.client() as client, anyio.create_task_group() as tasks:
        handle = await handle_in_flight(client, key)
        if waits:
            tasks.start_soon(is_cancelled, handle)
            await world.clock.advance(0)
        await handle.cancel()
        assert methods(server) == ["tools/call"]
        server.go.set()
        await world.clock.advance(0)
        assert methods(server)[:2] == ["tools/call", "tasks/cancel"]
        await world.during(lambda: is_cancelled(handle), 60)
    assert methods(server) == ["tools/call", "tasks/cancel", "tasks/get"]


async def test_a_cancel_in_flight_that_comes_to_nothing_leaves_the_result() -> None:
    world, server = late_world(calls=[{"resultType": "complete", **text_result("at once")}])
    async with world.client() as client:
        handle = await handle_in_flight(client)
        await handle.cancel()
        server.go.set()
        assert text(await handle.result()) == "at once"
    assert methods(server) == ["tools/call"]


async def test_a_cancel_in_flight_of_a_call_that_the_server_asks_about_first_ends_it_unasked() -> None:
    world, server = late_world(calls=[ASKS_FIRST])
    asked = Asked()
    async with world.client(elicitation=asked) as client:
        handle = await handle_in_flight(client)
        await handle.cancel()
        server.go.set()
        await is_cancelled(handle)
    assert (asked.keys, methods(server)) == ([], ["tools/call"])


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("waits", [False, True], ids=["nobody waits", "somebody waits"])
async def test_a_call_that_is_cancelled_before_it_has_left_is_never_sent(
    waits: bool, key: str | None
) -> None:
    world, server = late_world(leaves=False)
    async with world.client() as client, anyio.create_task_group() as tasks:
        handle = await handle_in_flight(client, key)
        if waits:
            tasks.start_soon(is_cancelled, handle)
            await anyio.wait_all_tasks_blocked()
        await handle.cancel()
        server.go.set()
        await is_cancelled(handle)
        assert [record.pending for record in await client.records()] == [False] * (key is not None)
    assert methods(server) == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_call_that_is_cancelled_while_its_key_is_claimed_again_is_never_sent(
    anyio_backend: str,
) -> None:
    """It had been taken back, and is wanted again. On trio it may leave before the wish is journaled."""
    world, server = late_world(leaves=False)
    async with world.client() as client, anyio.create_task_group() as tasks:
        handle = await handle_in_flight(client, KEY)
        while await client.records():
            await anyio.lowlevel.checkpoint()
        claim, is_claimed, may_go_on = world.journal.claim, anyio.Event(), anyio.Event()

        async def slow(record: TaskRecord) -> TaskRecord:
            is_claimed.set()
            await may_go_on.wait()
            return await claim(record)

        world.journal.claim = slow  # type: ignore[method-assign]  # for the test's length
        server.go.set()
        tasks.start_soon(follow, handle)  # which keeps the call, also when nobody waits any more
        await is_claimed.wait()
        tasks.start_soon(handle.cancel)
        await anyio.wait_all_tasks_blocked()
        may_go_on.set()
        await anyio.wait_all_tasks_blocked()
        await is_cancelled(handle)
        assert [record.status for record in await client.records()] == ["cancelled"]
    assert methods(server) == []


async def test_a_call_that_is_cancelled_between_two_rounds_is_not_sent_again() -> None:
    world = World(calls=[LATER, working(TASK)])
    async with world.client() as client, anyio.create_task_group() as tasks:
        handle = await handle_in_flight(client)  # the next round is sent a moment later
        tasks.start_soon(is_cancelled, handle)
        await anyio.wait_all_tasks_blocked()
        await handle.cancel()
        await world.clock.advance(60)
        assert handle.done
    assert methods(world.server) == ["tools/call"]


async def test_a_cancel_while_the_server_asks_before_it_begins_withdraws_the_question() -> None:
    world = World(calls=[ASKS_FIRST])
    shown, withdrawn = anyio.Event(), anyio.Event()

    async def person(context: Any, params: Any) -> Any:
        shown.set()
        try:
            await anyio.sleep_forever()
        finally:
            withdrawn.set()

    async with world.client(elicitation=person) as client, anyio.create_task_group() as tasks:
        handle = await handle_in_flight(client)
        shown, withdrawn = anyio.Event(), anyio.Event()  # of the prompt that the next waiter brings
        tasks.start_soon(is_cancelled, handle)
        await shown.wait()
        await handle.cancel()
        await withdrawn.wait()
    assert methods(world.server) == ["tools/call"]


async def test_a_call_that_is_parked_before_its_task_is_cancelled_by_another_client() -> None:
    world = World(calls=[ASKS_FIRST])
    async with world.client() as client:
        with pytest.raises(InputUnansweredError) as caught:
            await client.call_tool("tool", idempotency_key=KEY)
    assert caught.value.handle is not None
    async with world.client() as client:
        handle = await client.attach(caught.value.handle.reference)
        await handle.cancel()
        await is_cancelled(handle)
    assert (await world.only_record()).status == "cancelled"


QUIET = SessionError("slow down", retryable=True, http_status=429, retry_after_s=60.0)


@pytest.mark.parametrize(
    ("cancels", "times"),
    [([{}], 1), ([LOST], 1), ([UNKNOWN], 1), ([QUIET], 2), ([{}], 2)],
    ids=["told", "lost", "refused", "the server wants to be left alone", "told before"],
)
async def test_a_parked_call_that_was_cancelled_is_brought_to_its_end_by_another_client(
    cancels: list[Any], times: int
) -> None:
    asks = input_required(TASK, {"k": ASK}, poll_interval_ms=1000)
    world = World(gets={TASK: [asks]}, cancels=[*cancels, {}])
    async with world.client() as client, world.client() as other:
        error = await world.error_of(lambda: client.call_tool("tool"))
        assert isinstance(error, InputUnansweredError)
        assert isinstance(error.handle, TaskHandle)
        for _ in range(times):
            with suppress(SessionError):
                await world.during(error.handle.cancel, 10)
        assert (await world.only_record()).owner is None
        world.server.gets[TASK] = [cancelled(TASK)]
        (handle,) = await other.resume()
        await world.during(lambda: is_cancelled(handle), 120)


# ── under another client ──────────────────────────────────────────────────────────────────────


async def test_a_cancel_does_not_undo_the_result_that_another_client_has_journaled() -> None:
    world = World(calls=[EVERY_1200_MS], gets={TASK: [DONE]})
    async with world.client() as driver, world.client() as follower:
        handle = await driver.start_tool("tool", idempotency_key=KEY)
        other = await follower.attach(TASK)
        await world.clock.advance(1.3)
        with suppress(TasksClientError):
            await other.cancel()
        assert [record.status for record in await driver.records()] == ["completed"]
        assert text(await handle) == "done"
        del world.server.gets[TASK]
        await world.clock.advance(5)
        assert text(await other) == "done"


async def test_a_cancel_loses_neither_the_answer_nor_the_owner_of_another_clients_task() -> None:
    world = World(calls=[EVERY_1200_MS], gets={TASK: [input_required(TASK, {"k": ASK})]}, updates=[STALL])
    async with world.client(elicitation=Asked(YES)) as driver, world.client() as follower:
        await driver.start_tool("tool", idempotency_key=KEY)
        other = await follower.attach(TASK)
        await world.clock.advance(1.3)
        (before,) = await driver.records()
        await other.cancel()
        (after,) = await driver.records()
    assert (after.owner, after.fence) == (before.owner, before.fence)
    assert isinstance(before.state, Observing)
    assert isinstance(after.state, Observing)
    assert before.state.questions[0].answer is not None
    assert after.state.questions == before.state.questions
    assert len(world.server.log("tasks/cancel")) == 1, "the server was told all the same"


async def test_a_task_that_another_client_had_in_between_can_be_cancelled_by_its_handle() -> None:
    refusal = CredentialRefusedError("HTTP 401", http_status=401)
    world = World(gets={TASK: [refusal, working(TASK)]})
    async with world.client() as earlier:
        handle = await earlier.start_tool("tool", idempotency_key=KEY)
        await world.clock.advance(2)
        async with world.client() as later:
            await later.resume()
            await world.clock.advance(2)
        await handle.cancel()
        await world.clock.advance(2)
    assert len(world.server.log("tasks/cancel")) == 1


async def test_a_task_that_ended_in_another_client_has_nothing_to_cancel() -> None:
    refusal = CredentialRefusedError("HTTP 401", http_status=401)
    world = World(gets={TASK: [refusal, DONE]})
    async with world.client() as earlier:
        handle = await earlier.start_tool("tool", idempotency_key=KEY)
        await world.clock.advance(2)
        async with world.client() as later:
            assert text(await world.call(later, idempotency_key=KEY)) == "done"
        await handle.cancel()
        assert [record.status for record in await earlier.records()] == ["completed"]
    assert world.server.log("tasks/cancel") == []


# ── abandoned calls ───────────────────────────────────────────────────────────────────────────


async def test_an_abandoned_call_is_not_cancelled_under_somebody_else_who_waits_for_it() -> None:
    world = World(gets={TASK: [working(TASK)] * 3 + [DONE]})
    results: list[str] = []
    async with world.client(on_abandon="cancel") as client, anyio.create_task_group() as staying:
        call = partial(client.call_tool, "tool", idempotency_key=KEY)

        async def stay() -> None:
            results.append(text(await call()))

        staying.start_soon(stay)
        async with anyio.create_task_group() as going:
            going.start_soon(call)
            await world.clock.advance(1.5)
            going.cancel_scope.cancel()
        await world.clock.advance(60)
    assert world.server.log("tasks/cancel") == []
    assert results == ["done"]


async def test_an_abandoned_call_is_not_cancelled_under_another_client_that_drives_it() -> None:
    world = World(gets={TASK: [working(TASK)]})
    async with world.client() as driver, world.client(on_abandon="cancel") as follower:
        await driver.start_tool("tool", idempotency_key=KEY)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(follower.call_tool, "tool", idempotency_key=KEY))
            await world.clock.advance(0.7)
            (before,) = await driver.records()
            tasks.cancel_scope.cancel()
        assert await driver.records() == [before]
    assert world.server.log("tasks/cancel") == []


@pytest.mark.parametrize("at_once", [True, False], ids=["both at once", "one after the other"])
async def test_when_the_last_one_who_waits_goes_the_abandoned_call_is_cancelled_once(at_once: bool) -> None:
    world = World(gets={TASK: [working(TASK)]})
    async with world.client(on_abandon="cancel") as client:
        call = partial(client.call_tool, "tool", idempotency_key=KEY)
        async with anyio.create_task_group() as first:
            first.start_soon(call)
            async with anyio.create_task_group() as second:
                (first if at_once else second).start_soon(call)
                await world.clock.advance(1.5)
                second.cancel_scope.cancel()
            assert world.server.log("tasks/cancel") == []
            first.cancel_scope.cancel()
        assert [sent.task_id for sent in world.server.log("tasks/cancel")] == [TASK]


# ── what keeps a cancel from getting through ──────────────────────────────────────────────────


@pytest.mark.parametrize("fails", [False, True], ids=["", "the commit is made and seems to fail"])
async def test_a_cancel_that_was_left_in_the_journal_is_heeded_once(fails: bool) -> None:
    world, plan = World(gets={TASK: [EVERY_1200_MS]}), FaultPlan()
    if fails:
        plan.at("commit: CancelRequested", "after", raising(FULL))
    async with world.client(observer=plan) as client, Inbox(world.journal) as inbox:
        handle = await client.start_tool("tool")
        (record,) = await inbox.records()
        await inbox.cancel(record)
        await world.clock.advance(1)
        assert await world.journal.instructions(record.record_id) == []
        if fails:
            with pytest.raises(JournalError, match="full"):
                await handle.result()
            world.server.gets[TASK] = [cancelled(TASK)]
            await world.during(lambda: is_cancelled(handle), 60)
        else:
            await world.clock.advance(60)
    assert len(world.server.log("tasks/cancel")) == 1


class SlowToCancel(ScriptedSession):
    """A server whose first ``tasks/cancel`` fails, when it is told to."""

    fail: anyio.Event

    async def cancel(self, ref: TaskRef) -> None:
        await super().cancel(ref)
        if len(self.log("tasks/cancel")) == 1:
            await self.fail.wait()
            raise LOST


async def test_a_cancel_that_fails_once_its_client_has_let_the_task_go_is_not_repeated_there() -> None:
    script = {"calls": [EVERY_1200_MS], "gets": {TASK: [EVERY_1200_MS, cancelled(TASK)]}}
    world, plan = World(SlowToCancel, **script), FaultPlan()
    server = world.server
    server.fail = anyio.Event()

    async def fail() -> None:
        server.fail.set()

    plan.at("commit: release", "after", fail)

    async def begin() -> None:
        async with anyio.create_task_group() as tasks, world.client(observer=plan) as client:
            handle = await client.start_tool("tool")
            tasks.start_soon(told_that_it_failed, handle)
            await world.clock.advance(0)

    async def told_that_it_failed(handle: TaskHandle) -> None:
        with pytest.raises(TasksClientError):
            await handle.cancel()

    await world.during(begin, 60)
    assert len(server.log("tasks/cancel")) == 1
    async with world.client() as client:
        (handle,) = await client.resume()
        await world.during(lambda: is_cancelled(handle), 60)
    assert len(server.log("tasks/cancel")) == 2


async def test_a_cancel_that_raises_of_its_own_stops_no_poll_and_is_sent_again_when_resumed() -> None:
    world = World(gets={TASK: [working(TASK)]}, cancels=[RuntimeError("boom"), {}])
    async with world.client() as client:
        handle = await client.start_tool("tool")
        with pytest.raises(SessionError, match=r"tasks/cancel .*the host raised RuntimeError") as caught:
            await handle.cancel()
        assert caught.value.handle is not None
        assert caught.value.handle.reference == handle.reference
        await world.clock.advance(2)
        assert world.polled_at() != []
    world.server.gets[TASK] = [cancelled(TASK)]
    async with world.client() as client:
        (handle,) = await client.resume()
        await world.during(lambda: is_cancelled(handle), 60)
    assert len(world.server.log("tasks/cancel")) == 2


async def test_a_cancel_that_a_server_does_not_know_the_task_of_is_sent_again_if_the_task_goes_on() -> None:
    """One of several servers may not have heard of the task, which may wait for an answer for ever."""
    world = World(gets={TASK: [working(TASK, poll_interval_ms=1000)]}, cancels=[UNKNOWN, UNKNOWN, {}])
    async with world.client() as client:
        handle = await client.start_tool("tool")
        await handle.cancel()
        await world.clock.advance(10)
        world.server.gets[TASK] = [cancelled(TASK)]
        await world.during(lambda: is_cancelled(handle), 60)
    assert len(world.server.log("tasks/cancel")) == 3


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_task_that_could_not_be_journaled_is_cancelled_once_it_can_be(failures: int) -> None:
    world, plan = World(), FaultPlan()
    for nth in range(1, failures + 1):
        plan.at("commit: TaskCreated", "before", raising(FULL), nth=nth)
    async with world.client(observer=plan) as client:
        with pytest.raises(JournalError) as caught:
            await client.call_tool("tool", idempotency_key=KEY)
        handle = caught.value.handle
        assert handle is not None
        with pytest.raises(JournalError) if failures > 1 else nullcontext():
            await handle.cancel()
    assert len(world.server.log("tasks/cancel")) == 2 - failures


@pytest.mark.parametrize(
    ("method", "point"),
    [("tasks/get", "commit: PollFailed"), ("tasks/cancel", "commit: CancelFailed")],
)
async def test_a_silence_that_could_not_be_journaled_is_kept_by_who_cancels(method: str, point: str) -> None:
    world, plan = World(), FaultPlan()
    server = ScriptedServer(clock=world.clock)
    server.tool("slow", [work(100), complete(text_result("done"))], poll_interval_ms=5000)
    server.misbehave(method, HttpError(503, retry_after_s=600))
    plan.at(point, "before", raising(FULL))
    with anyio.fail_after(20):
        async with scripted_client(server.session(), journal=world.journal, observer=plan) as client:
            handle = await client.start_tool("slow", idempotency_key=KEY)
            await world.clock.advance(7)
            if method == "tasks/cancel":
                with pytest.raises(JournalError):
                    await handle.cancel()
            sent = len(server.witness.log("tasks/cancel"))
            with pytest.raises(SessionError, match="left alone"):
                await handle.cancel()
            assert len(server.witness.log("tasks/cancel")) == sent


# ── what was found by reading the engine ──────────────────────────────────────────────────────


@asynccontextmanager
async def gathering_again(
    world: World, client: TasksClient
) -> AsyncIterator[tuple[anyio.abc.TaskGroup, LiveCall]]:
    """A lost call that was sent again, and waits for its next round; its outcome becomes unknown."""
    with pytest.raises(OutcomeUnknownError):
        await client.call_tool("tool", idempotency_key=KEY)

    async def call_again() -> None:
        with pytest.raises(OutcomeUnknownError):
            await client.call_tool("tool", idempotency_key=KEY, on_unknown="resend")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call_again)
        await world.clock.advance(0.1)
        calls = client._engine.store.registry.live.values()
        (gathering,) = [call for call in calls if isinstance(call.record.state, Gathering)]
        yield tasks, gathering


async def test_a_call_that_is_cancelled_before_its_next_round_can_be_sent_again_under_its_key() -> None:
    at_once = {"resultType": "complete", **text_result("done")}
    world = World(calls=[LOST, LATER, at_once])
    async with world.client() as client:
        async with gathering_again(world, client) as (_, gathering):
            await client._opened().cancel(gathering)
            await world.clock.advance(1)
        assert text(await world.call(client, idempotency_key=KEY, on_unknown="resend")) == "done"


async def test_a_call_that_times_out_cancels_no_task_that_a_handle_keeps() -> None:
    world = World(gets={TASK: [working(TASK), DONE]})
    async with world.client(on_abandon="cancel") as client:
        handle = await client.start_tool("tool", idempotency_key=KEY)
        with pytest.raises(WaitTimeoutError):
            await client.call_tool("tool", idempotency_key=KEY, timeout=IN_FLIGHT_S)
        await world.during(handle.result, 60)
    assert not world.server.log("tasks/cancel")


async def test_a_resent_call_that_is_cancelled_as_its_next_round_begins_is_of_unknown_outcome() -> None:
    """The cancellation is being committed when the wait for the next round is over."""
    world = World(calls=[LOST, LATER, LOST])
    async with world.client() as client, gathering_again(world, client) as (tasks, gathering):
        save, may_go_on = world.journal.save, anyio.Event()

        async def slow(record: TaskRecord, **options: Any) -> None:
            await may_go_on.wait()
            await save(record, **options)

        world.journal.save = slow  # type: ignore[method-assign]  # for one commit
        tasks.start_soon(client._opened().cancel, gathering)
        await anyio.wait_all_tasks_blocked()
        world.journal.save = save  # type: ignore[method-assign]
        await world.clock.advance(1)
        may_go_on.set()


async def test_a_resent_call_that_is_cancelled_at_any_moment_of_its_next_round_ends_as_it_may() -> None:
    async def ended(moment: int) -> str:
        world = World(calls=[LOST, ASKS_FIRST, {"resultType": "complete", **text_result("at once")}])

        async def answer(context: Any, params: Any) -> Any:
            async def cancel() -> None:
                for _ in range(moment):
                    await anyio.lowlevel.checkpoint()
                await error.handle.cancel()

            tasks.start_soon(cancel)
            await anyio.lowlevel.checkpoint()
            return YES

        async with world.client(elicitation=answer) as client, anyio.create_task_group() as tasks:
            with pytest.raises(OutcomeUnknownError) as caught:
                await client.call_tool("tool", idempotency_key=KEY)
            error = caught.value
            assert error.handle is not None
            try:
                return text(await client.call_tool("tool", idempotency_key=KEY, on_unknown="resend"))
            except (OutcomeUnknownError, TaskCancelledError) as told:
                return type(told).__name__

    assert {await ended(moment) for moment in range(25)} == {"OutcomeUnknownError", "at once"}


async def test_a_call_of_unknown_outcome_that_is_cancelled_is_free_for_others() -> None:
    world = World(calls=[LOST])
    async with world.client() as client:
        with pytest.raises(OutcomeUnknownError) as caught:
            await client.call_tool("tool", idempotency_key=KEY)
        assert caught.value.handle is not None
        await caught.value.handle.cancel()
        assert (await world.only_record()).owner is None


async def test_a_handle_that_is_attached_while_its_call_is_being_stopped_has_it_driven_on() -> None:
    world = World(gets={TASK: [working(TASK), DONE]})
    async with world.client() as client:
        given_up = await handle_in_flight(client)
        handle = await client.attach(given_up.reference)
        await world.clock.advance(60)
        assert handle.done
