"""``raise_on_error``: a tool that raised is told as an error, wherever its result is waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp_types import CallToolResult

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.engine.outcome import read_outcome
from mcp_tasks_client.errors import TaskFailedError, ToolError
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.machine.states import Completed, Finished
from mcp_tasks_client.testing import completed, failed, text_result
from tests._results import text

from .other_process import OnDisk
from .world import TASK, World

pytestmark = pytest.mark.anyio

KEY: Final = "order-42"
SAID_NO: Final = text_result("no such version", is_error=True) | {"x-new": {"a": 1}}

every_way = pytest.mark.parametrize("way", ["call_tool", "result", "outcome"])


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    world = World(gets={TASK: [completed(TASK, SAID_NO)]})
    if request.param == "sqlite":
        world.journal = OnDisk(tmp_path / "journal.sqlite3", world.clock)  # type: ignore[assignment]
    return world


async def wait(client: TasksClient, way: str, *, key: str | None = None, **options: Any) -> CallToolResult:
    """The result of the tool, waited for in one of the ways."""
    if way == "call_tool":
        return await client.call_tool("tool", idempotency_key=key, **options)
    handle = await client.start_tool("tool", idempotency_key=key)
    if way == "result":
        return await handle.result(**options)
    async with handle.outcome(**options) as result:
        assert not options or not result.is_error, "the block is not entered"
    return result


async def error_of(world: World, client: TasksClient, way: str, key: str | None = None) -> ToolError:
    error = await world.error_of(lambda: wait(client, way, key=key, raise_on_error=True))
    assert type(error) is ToolError
    return error


@every_way
@pytest.mark.parametrize("comes", ["as a task", "at once"])
async def test_a_tool_that_raised_is_an_error_if_asked_for_and_has_its_whole_result(
    way: str, comes: str
) -> None:
    world = World(gets={TASK: [completed(TASK, SAID_NO)]})
    if comes == "at once":
        world.server.calls = [SAID_NO]
    async with world.client() as client:
        error = await error_of(world, client, way)
        assert error.result.is_error
        assert text(error.result) == "no such version"
        assert error.result.model_extra == {"x-new": {"a": 1}}
        assert error.tool == "tool"
        assert error.handle is not None
        assert error.handle.task_id == (TASK if comes == "as a task" else None)
        assert str(error).startswith("The call of 'tool' returned an error: no such version. ")
        assert await error.handle.result() == error.result


@every_way
async def test_without_it_the_same_result_is_returned(world: World, way: str) -> None:
    returned: list[CallToolResult] = []
    async with world.client() as client:

        async def run() -> None:
            returned.append(await wait(client, way))

        await world.during(run, 60)
    assert returned[0].is_error
    assert text(returned[0]) == "no such version"


@every_way
async def test_a_result_that_is_no_error_is_returned_though_errors_are_asked_for(way: str) -> None:
    world = World()
    returned: list[CallToolResult] = []
    async with world.client() as client:

        async def run() -> None:
            returned.append(await wait(client, way, raise_on_error=True))

        await world.during(run, 60)
    assert text(returned[0]) == "done"


@every_way
@pytest.mark.parametrize("key", [KEY, None])
async def test_what_was_raised_counts_as_delivered_like_a_result_that_was_returned(
    world: World, way: str, key: str | None
) -> None:
    async with world.client() as client:
        await error_of(world, client, way, key)
        assert await client.resume() == []
    async with world.client() as client:
        assert await client.resume() == []
        delivered = [record.delivered_at is not None for record in await client.records()]
    assert delivered == ([True] if key else [])


@every_way
async def test_a_key_gives_the_same_result_again_and_raises_again_if_asked_to(world: World, way: str) -> None:
    async with world.client() as client:
        first = await error_of(world, client, "call_tool", KEY)
    async with world.client() as client:  # after a restart
        again = await error_of(world, client, way, KEY)
        assert again.result == first.result
        assert await wait(client, "call_tool", key=KEY) == first.result
    assert "under a new idempotency key" in str(first)
    assert len(world.server.log("tools/call")) == 1


async def test_two_who_wait_for_one_call_are_told_as_each_of_them_asked(world: World) -> None:
    returned: list[CallToolResult] = []
    async with world.client() as client:
        handle = await client.start_tool("tool", idempotency_key=KEY)

        async def both() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(raised)
                returned.append(await handle)

        async def raised() -> None:
            try:
                await client.call_tool("tool", idempotency_key=KEY, raise_on_error=True)
            except ToolError as error:
                returned.append(error.result)

        await world.during(both, 60)
    first, second = returned
    assert first == second


@every_way
async def test_a_task_that_failed_is_told_as_before(way: str) -> None:
    world = World(gets={TASK: [failed(TASK, -32050, "quota")]})
    async with world.client() as client:
        error = await world.error_of(lambda: wait(client, way, raise_on_error=True))
    assert type(error) is TaskFailedError


# ── what the tool said ────────────────────────────────────────────────────────────────────────


def block(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


IMAGE: Final = {"type": "image", "data": "", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([block("No.")], ": No"),
        ([IMAGE, block("No"), block("Never")], ": No"),
        ([block("a\n\x1b[2Jb\u202e")], ": a [2Jb"),
        ([block("x" * 10_000_000)], f": {'x' * 300}…"),
        ([block(" \n")], ""),
        ([IMAGE], ""),
        ([IMAGE] * 100 + [block("No")], ""),
        ([], ""),
    ],
    ids=["a text", "several", "a terminal's", "long", "blank", "no text", "far behind", "nothing"],
)
async def test_the_message_quotes_the_first_text_of_the_tool(content: Any, told: str) -> None:
    end = Finished(outcome=Completed(result={"content": content, "isError": True}))
    record = TaskRecord(
        record_id="r", scope=Scope("here"), tool="dig", state=end, created_at=0.0, updated_at=0.0
    )
    with pytest.raises(ToolError) as caught:
        await read_outcome(record, None, None, raise_on_error=True)
    assert str(caught.value) == (
        f"The call of 'dig' returned an error{told}. error.result has the whole result. To try again, make a "
        "new call."
    )
    assert len(caught.value.result.content) == len(content)
