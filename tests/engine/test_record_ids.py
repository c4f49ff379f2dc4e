"""A host that gives a call's record its ID, so that the ID can be told before the server has answered."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

import anyio
import pytest

from mcp_tasks_client.testing import working
from tests._results import text
from tests.engine.late_session import late_world
from tests.engine.world import DONE, SCOPE, TASK, World, leave

pytestmark = pytest.mark.anyio

KEY = "order-42"


async def test_a_call_is_found_by_its_id_before_the_server_has_answered() -> None:
    world, server = late_world()
    told = uuid4().hex
    async with world.client() as client, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(client.start_tool, "tool", record_id=told))
        await server.called.wait()
        reference = {"record_id": told, "endpoint": SCOPE.endpoint, "principal": "", "task_id": None}
        handle = await client.attach({**reference, "tool": "tool"})  # type: ignore[typeddict-item]
        server.go.set()
        await world.clock.advance(30)
        assert text(await handle) == "done"


@pytest.mark.parametrize("key", [KEY, None])
async def test_a_later_process_finds_a_call_by_the_id_that_it_was_given(key: str | None) -> None:
    world, told = World(), uuid4().hex
    await leave(world, record_id=told, idempotency_key=key)
    async with world.client() as client:
        (handle,) = await client.resume()
        assert handle.reference["record_id"] == told


async def test_a_call_that_joins_another_one_under_its_key_leaves_that_ones_id() -> None:
    world = World()
    async with world.client() as client:
        first = await client.start_tool("tool", idempotency_key=KEY)
        second = await client.start_tool("tool", idempotency_key=KEY, record_id=uuid4().hex)
        assert second == first
    assert len(world.server.log("tools/call")) == 1


@pytest.mark.parametrize("client", ["the same client", "a later client"])
async def test_a_call_that_repeats_its_key_and_its_id_is_one_call(client: str) -> None:
    world, told = World(), uuid4().hex
    async with world.client() as one:
        await one.start_tool("tool", idempotency_key=KEY, record_id=told)
        if client == "the same client":
            await one.start_tool("tool", idempotency_key=KEY, record_id=told)
    async with world.client() as later:
        again = await later.start_tool("tool", idempotency_key=KEY, record_id=told)
        assert again.reference["record_id"] == told
        await world.clock.advance(30)
        assert text(await again) == "done"
    assert len(world.server.log("tools/call")) == 1


@pytest.mark.parametrize("taken_by", ["a call of this client", "a call in the journal", "a call in flight"])
@pytest.mark.parametrize("key", [KEY, None])
async def test_an_id_that_is_another_calls_is_refused_before_anything_is_sent(
    key: str | None, taken_by: str
) -> None:
    world, server = late_world(calls=[working(TASK, poll_interval_ms=1000)], gets={TASK: [DONE]})
    told = uuid4().hex
    async with world.client() as client, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(client.start_tool, "tool", record_id=told))
        await server.called.wait()
        if taken_by != "a call in flight":
            server.go.set()
            await world.clock.advance(0.1)
        if taken_by == "a call in the journal":
            async with world.client() as other:
                with pytest.raises(ValueError, match="another call's"):
                    await other.start_tool("tool", idempotency_key=key, record_id=told)
        else:
            with pytest.raises(ValueError, match="another call's"):
                await client.start_tool("tool", idempotency_key=key, record_id=told)
        server.go.set()
        await world.clock.advance(0.1)
    assert len(world.server.log("tools/call")) == 1
    assert (await world.only_record()).task_id == TASK


@pytest.mark.parametrize("wrong", ["", "build-42", "0" * 31, "0" * 33, "A" * 32, "0" * 32 + "\n", 7])
async def test_what_is_no_id_is_refused(wrong: str) -> None:
    world = World()
    async with world.client() as client:
        with pytest.raises(ValueError, match="32 digits"):
            await client.start_tool("tool", record_id=wrong)
    assert world.server.sent == []
