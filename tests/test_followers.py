"""Who only looks on while another client drives a call changes nothing. Some ends of replies, and forks."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from contextlib import suppress

import anyio
import httpx
import pytest

from mcp_tasks_client import CredentialRefusedError, TasksClient, TasksClientError
from mcp_tasks_client.old.states import Observing
from mcp_tasks_client.old.testing import STALL, input_required, working

from ._requirements import requirement
from .test_client import ASK, DONE, TASK, YES, Asked, World, text
from .test_client_faults import KEY, refused_once
from .test_http_session import REF, RawResponse, ScriptedServer, rpc_id, server, session

__all__ = ["server", "session"]

pytestmark = pytest.mark.anyio

EVERY_1200_MS = working(TASK, poll_interval_ms=1200)  # so that looks, every half second, come in between


@requirement("law:2", "law:5", "law:6")
async def test_cancelling_what_another_client_drives_does_not_undo_what_that_one_has_journaled() -> None:
    world = World(calls=[EVERY_1200_MS], gets={TASK: [DONE]})
    async with world.client() as driver, world.client() as follower:
        handle = await driver.start_tool("tool", idempotency_key=KEY)
        other = await follower.attach(TASK)
        await world.clock.advance(1.3)
        assert [record.status for record in await driver.records()] == ["completed"]
        with suppress(TasksClientError):
            await other.cancel()
        assert [record.status for record in await driver.records()] == ["completed"]
        assert text(await handle) == "done"
        del world.server.gets[TASK]
        await world.clock.advance(5)
        assert text(await other) == "done"


@requirement("law:1", "law:3", "law:5")
async def test_cancelling_what_another_client_drives_loses_neither_its_answer_nor_its_owner() -> None:
    world = World(calls=[EVERY_1200_MS], gets={TASK: [input_required(TASK, {"k": ASK})]}, updates=[STALL])
    async with world.client(elicitation=Asked(YES)) as driver, world.client() as follower:
        await driver.start_tool("tool", idempotency_key=KEY)
        other = await follower.attach(TASK)
        await world.clock.advance(1.3)
        (before,) = await driver.records()
        with suppress(TasksClientError):
            await other.cancel()
        (after,) = await driver.records()
        assert (after.owner, after.fence) == (before.owner, before.fence)
        assert isinstance(before.state, Observing)
        assert isinstance(after.state, Observing)
        assert before.state.questions[0].answer is not None
        assert after.state.questions == before.state.questions


@requirement("law:5", "law:8")
async def test_an_abandoned_call_is_not_cancelled_under_another_client_that_drives_it() -> None:
    world = World(gets={TASK: [working(TASK), working(TASK), DONE]})
    async with world.client() as driver, world.client(on_abandon="cancel") as follower:
        handle = await driver.start_tool("tool", idempotency_key=KEY)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: follower.call_tool("tool", idempotency_key=KEY))
            await world.clock.advance(0.7)
            (before,) = await driver.records()
            tasks.cancel_scope.cancel()
        assert await driver.records() == [before]
        assert world.server.log("tasks/cancel") == []
        await world.during(handle.result, 60)


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


async def test_cancelling_what_a_later_client_brought_home_is_no_error() -> None:
    """As of a task that ended here: a finished one has nothing to cancel."""
    world = refused_once()
    async with world.client() as earlier:
        handle = await earlier.start_tool("tool", idempotency_key=KEY)
        await world.clock.advance(2)
        async with world.client() as later:
            assert text(await world.call(later, idempotency_key=KEY)) == "done"
        await handle.cancel()
    assert world.server.log("tasks/cancel") == []


@requirement("law:2")
async def test_a_call_that_was_followed_is_not_repeated_when_its_outcome_is_forgotten() -> None:
    world = World(gets={TASK: [working(TASK), DONE]})
    results: list[str] = []

    async def call(client: TasksClient) -> None:
        results.append(text(await client.call_tool("tool", idempotency_key=KEY)))

    async with world.client() as driver, world.client() as follower, anyio.create_task_group() as tasks:
        tasks.start_soon(call, driver)
        await world.clock.advance(0.1)
        tasks.start_soon(call, follower)
        for _ in range(100):
            await world.clock.advance(0.1)
            await driver.prune(0)
    assert results == ["done", "done"]
    assert len(world.server.log("tools/call")) == 1


async def test_attaching_what_another_client_is_just_attaching_returns_before_the_end_of_the_task() -> None:
    world = World(gets={TASK: [working(TASK)]})
    async with world.client() as first, world.client() as second:
        attached: list[str | None] = []

        async def attach(client: TasksClient) -> None:
            attached.append((await client.attach(TASK)).task_id)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attach, first)
            tasks.start_soon(attach, second)
            await world.clock.advance(60)
            tasks.cancel_scope.cancel()
        assert attached == [TASK, TASK]


async def test_refreshing_what_another_client_drives_returns_before_the_end_of_the_task() -> None:
    world = World(gets={TASK: [working(TASK)]})
    async with world.client() as driver, world.client() as follower:
        await driver.start_tool("tool", idempotency_key=KEY)
        other = await follower.attach(TASK)
        refreshed = False
        async with anyio.create_task_group() as tasks:

            async def refresh() -> None:
                nonlocal refreshed
                with suppress(TasksClientError):  # or it says who is at it
                    await other.refresh()
                refreshed = True

            tasks.start_soon(refresh)
            await world.clock.advance(60)
            tasks.cancel_scope.cancel()
        assert refreshed


CHILD = """
import os, signal, warnings
from mcp_tasks_client import BlockingTasksClient, MemoryJournal
from mcp_tasks_client.old.testing import ScriptedSession
warnings.simplefilter("ignore", DeprecationWarning)
with BlockingTasksClient(ScriptedSession(), journal=MemoryJournal()) as client:
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0) == (pid, 0), "the child hung"
print("parent and child have left", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_that_leaves_the_block_of_its_parents_client_just_leaves_it() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "parent and child have left\n", ran.stderr


@pytest.mark.parametrize(("size", "compressed"), [(1, False), (10, True)])
async def test_a_byte_order_mark_is_no_part_of_an_event_stream_in_whatever_pieces_it_comes(
    server: ScriptedServer, session: object, size: int, compressed: bool
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        reply = {"jsonrpc": "2.0", "id": rpc_id(request), "result": {"taskId": "t", "status": "working"}}
        body = b"\xef\xbb\xbfdata: " + json.dumps(reply).encode() + b"\n\n"
        body = gzip.compress(body) if compressed else body
        return RawResponse(
            200,
            *(body[at : at + size] for at in range(0, len(body), size)),
            content_type="text/event-stream",
            content_encoding="gzip" if compressed else "identity",
        )

    server.answers("tasks/get", answer)
    assert (await session.get(REF)).task_id == "t"  # type: ignore[attr-defined]


async def test_zeros_after_a_gzip_file_are_padding(server: ScriptedServer, session: object) -> None:
    """As gzip(1) and Python's own module take them."""

    def answer(request: httpx.Request) -> httpx.Response:
        reply = {"jsonrpc": "2.0", "id": rpc_id(request), "result": {"taskId": "t", "status": "working"}}
        return RawResponse(200, gzip.compress(json.dumps(reply).encode()) + bytes(8), content_encoding="gzip")

    server.answers("tasks/get", answer)
    assert (await session.get(REF)).task_id == "t"  # type: ignore[attr-defined]
