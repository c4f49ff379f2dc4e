"""Whoever waits can see why: what fails, how often, and since when."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from mcp_tasks_client import LastFailure
from mcp_tasks_client.errors import (
    CredentialRefusedError,
    InputUnansweredError,
    SessionError,
    TaskExpiredError,
    TaskNotFoundError,
    WaitTimeoutError,
)
from mcp_tasks_client.testing import input_required, working
from tests._requirements import requirement
from tests._results import text
from tests.engine.world import ASK, DONE, LOST, TASK, YES, Asked, World

pytestmark = pytest.mark.anyio

REFUSED = CredentialRefusedError("HTTP 401.")
MISSING = SessionError("Not known.", code=-32602, retryable=False)
FOREVER = working(TASK, poll_interval_ms=1000)


def unreachable(*after: Any) -> World:
    """A server whose task is not to be seen for three polls, and then is."""
    return World(gets={TASK: [LOST, LOST, LOST, *after]})


@requirement("law:16")
async def test_a_waiting_caller_sees_what_fails_and_since_when() -> None:
    world = unreachable(FOREVER)
    begun = world.clock.time()
    async with world.client() as client:
        handle = await client.start_tool("tool")
        assert handle.last_failure is None
        await world.clock.advance(1.5)
        failure = handle.last_failure
        assert failure == LastFailure(message="The connection broke.", count=1, since=begun + 1.0)
        (record,) = await client.records()
        assert record.last_failure == failure, "the journal is written when it begins"
        await world.clock.advance(1.0)
        failure = handle.last_failure
        assert failure == LastFailure(message="The connection broke.", count=2, since=begun + 1.0)
        await world.clock.advance(60)
        assert handle.last_failure is None
        (record,) = await client.records()
        assert record.last_failure is None, "and when it ends"


async def test_a_wait_that_is_over_says_why_the_task_was_not_seen() -> None:
    world = World(gets={TASK: [LOST]})
    async with world.client() as client:
        with pytest.raises(WaitTimeoutError, match=r"requests fail .*The last one: The conn") as caught:
            await world.during(lambda: client.call_tool("tool", timeout=2.0), 3.5)
        assert caught.value.last_failure is not None
        assert caught.value.last_failure.count >= 2
        assert pickle.loads(pickle.dumps(caught.value)).last_failure == caught.value.last_failure


async def test_a_wait_that_is_over_says_nothing_of_failures_where_there_were_none() -> None:
    world = World(gets={TASK: [FOREVER]})
    async with world.client() as client:
        with pytest.raises(WaitTimeoutError) as caught:
            await world.during(lambda: client.call_tool("tool", timeout=2.0), 3.5)
    assert caught.value.last_failure is None
    assert "failed" not in str(caught.value)


@pytest.mark.parametrize("failing", [LOST, MISSING, REFUSED], ids=["lost", "not known, once", "refused"])
async def test_a_refresh_whose_poll_failed_raises_what_it_failed_with(failing: SessionError) -> None:
    world = World(gets={TASK: [failing, FOREVER]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        with pytest.raises(type(failing), match=str(failing)) as caught:
            await world.during(handle.refresh, 1.5)
        assert caught.value.handle is not None
        assert caught.value.handle.task_id == TASK
        await world.during(handle.refresh, 60)


async def test_a_refresh_that_finds_the_task_gone_says_so() -> None:
    world = World(gets={TASK: [FOREVER, MISSING]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        await world.during(handle.refresh, 1.5)
        with pytest.raises(SessionError, match="Not known"):
            await world.during(handle.refresh, 1)
        for _ in range(2):
            with pytest.raises(TaskNotFoundError, match=r"attach\(task_id\) looks for the task once more"):
                await world.during(handle.refresh, 60)


async def test_a_call_that_a_refused_credential_parked_says_so_in_another_process() -> None:
    world = World(gets={TASK: [REFUSED]})
    begun = world.clock.time()
    async with world.client() as client:
        with pytest.raises(CredentialRefusedError):
            await world.call(client)
    record = await world.only_record()
    assert record.last_failure == LastFailure(message="HTTP 401.", count=1, since=begun + 1.0)


async def test_a_refresh_and_a_wait_end_with_the_time_to_live_though_the_hint_is_an_hour() -> None:
    created = working(TASK, poll_interval_ms=3_600_000, ttl_ms=120_000)
    world = World(calls=[created], gets={TASK: [MISSING]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        with pytest.raises(TaskExpiredError):
            await world.during(handle.refresh, 130)
        with pytest.raises(TaskExpiredError):
            await handle.result()


# ── an old error is not told before a look ────────────────────────────────────────────────────


async def test_a_handle_whose_task_another_client_brought_home_has_its_result_and_not_an_old_error() -> None:
    world = World(gets={TASK: [input_required(TASK, {"n": ASK}), DONE]})
    async with world.client() as stale, world.client(elicitation=Asked(YES)) as other:
        handle = await stale.start_tool("tool")
        await world.clock.advance(2)  # nobody answers, and the call parks
        await other.resume()
        await world.clock.advance(5)
        assert not handle.done
        assert text(await handle.result()) == "done"


async def test_a_handle_whose_task_nobody_went_on_with_tells_what_parked_it() -> None:
    world = World(gets={TASK: [input_required(TASK, {"n": ASK})]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(2)
        with pytest.raises(InputUnansweredError):
            await handle.result()


# ── what can be attached ──────────────────────────────────────────────────────────────────────


async def test_what_is_no_reference_is_refused_with_what_a_reference_is() -> None:
    world = World()
    async with world.client() as client:
        handle = await client.start_tool("tool")
        whole = dict(handle.reference)
        for wrong in (
            None,
            42,
            handle,
            b"task",
            {},
            {**whole, "task_id": 7},
            {**whole, "record_id": None},
            {name: value for name, value in whole.items() if name != "endpoint"},
            list(whole.items()),
        ):
            with pytest.raises(ValueError, match=r"a task ID, or a reference as handle\.reference gives it"):
                await client.attach(wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="without endpoint, principal, record_id, task_id, tool"):
            await client.attach({})  # type: ignore[typeddict-item]
        assert (await client.attach(handle.reference)).task_id == TASK


async def test_an_end_of_a_task_that_was_attached_by_its_id_names_no_tool_called_none() -> None:
    world = World(gets={TASK: [MISSING]})
    async with world.client() as client:
        handle = await client.attach(TASK)
        with pytest.raises(Exception, match="the task of an unknown tool"):
            await world.during(handle.result, 60)
