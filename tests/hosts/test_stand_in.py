"""A :class:`TasksClient` where a framework takes a session: its words, and what a server may answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import anyio
import pytest
from mcp_types import PaginatedRequestParams

from mcp_tasks_client import MemoryJournal, RemoteProtocolError, SessionError, TasksClient, WaitTimeoutError
from mcp_tasks_client.testing import (
    ScriptedServer,
    complete,
    completed,
    scripted_client,
    text_result,
    work,
    working,
)
from tests._results import text
from tests.engine.world import TASK, World
from tests.scripted_session import ScriptedSession

pytestmark = pytest.mark.anyio

SERVER: Final = "io.modelcontextprotocol/serverInfo"


class Answering(ScriptedSession):
    """Answers whatever it is asked as it is told to."""

    def __init__(self, world: World, answer: dict[str, Any]) -> None:
        super().__init__(clock=world.clock)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answer = answer

    async def ask(self, method: str, params: dict[str, Any], *, context: object = None) -> dict[str, Any]:
        self.asked.append((method, params))
        return self.answer


@asynccontextmanager
async def client_at(answer: dict[str, Any]) -> AsyncIterator[tuple[TasksClient, Answering]]:
    session = Answering(World(), answer)
    with anyio.fail_after(20):
        async with scripted_client(session, journal=MemoryJournal()) as client:
            yield client, session


async def test_what_a_server_says_of_itself_has_the_shape_of_the_handshake() -> None:
    said = {
        "supportedVersions": ["2025-06-18", "2026-07-28"],
        "capabilities": {"tools": {"listChanged": True}, "extensions": {"a/b": {"c": 1}}},
        "instructions": "be kind",
        "_meta": {SERVER: {"name": "theirs", "version": "7"}},
    }
    async with client_at(said) as (client, session):
        result = await client.initialize()
    assert session.asked == [("server/discover", {})]
    assert result.protocol_version == "2026-07-28"
    assert result.model_dump(by_alias=True, exclude_none=True)["capabilities"] == said["capabilities"]
    assert (result.server_info.name, result.server_info.version) == ("theirs", "7")
    assert result.instructions == "be kind"


async def test_a_server_without_a_name_has_that_of_its_endpoint() -> None:
    async with client_at({"supportedVersions": ["2025-11-25"]}) as (client, _):
        result = await client.initialize()
    assert result.server_info.name == "scripted"
    assert result.protocol_version == "2025-11-25"


async def test_one_broken_tool_costs_only_itself_and_unknown_fields_stay() -> None:
    good = {"name": "good", "inputSchema": {"type": "object"}, "new": {"a": None}}
    marked = {"type": "object", "properties": {"n": {"type": "object", "x-mcp-header": "N"}}}
    page = {"tools": [{"name": 5}, {"name": "marked", "inputSchema": marked}, good], "nextCursor": "2"}
    async with client_at(page) as (client, session):
        listed = await client.list_tools()
        for again in (client.list_tools("1"), client.list_tools(params=PaginatedRequestParams(cursor="1"))):
            await again
    assert [params for _, params in session.asked] == [{}, {"cursor": "1"}, {"cursor": "1"}]
    assert listed.next_cursor == "2"
    (tool,) = listed.tools
    assert tool.name == "good"


@pytest.mark.parametrize("answer", [{}, {"tools": "none"}, {"tools": [], "nextCursor": 7}], ids=str)
async def test_a_list_that_is_none_is_a_typed_error(answer: dict[str, Any]) -> None:
    async with client_at(answer) as (client, _):
        with pytest.raises(RemoteProtocolError, match="tools/list"):
            await client.list_tools()


async def test_a_ping_asks_what_the_server_is() -> None:
    async with client_at({}) as (client, session):
        await client.send_ping()
    assert session.asked == [("server/discover", {})]


async def test_a_session_that_passes_nothing_on_says_so() -> None:
    async with World().client() as client:
        with pytest.raises(SessionError, match="does not pass it on") as caught:
            await client.send_ping()
    assert caught.value.not_executed


async def test_a_scripted_server_answers_a_host_as_real_ones_do() -> None:
    server = ScriptedServer()
    server.tool("deploy", [work(1), complete(text_result("done"))])
    async with scripted_client(server.session(), journal=MemoryJournal()) as client:
        assert (await client.initialize()).capabilities.tools is not None
        assert [tool.name for tool in (await client.list_tools()).tools] == ["deploy"]


@pytest.mark.parametrize("limit", [0.05, timedelta(seconds=0.05)], ids=str)
async def test_the_time_out_of_a_session_is_ours(limit: float | timedelta) -> None:
    world = World(gets={TASK: [working(TASK)]})
    async with world.client() as client:
        with pytest.raises(WaitTimeoutError, match=r"0\.05 seconds"):
            await client.call_tool("tool", {}, limit)


async def test_status_messages_are_told_to_the_progress_callback_and_snapshots_to_on_update() -> None:
    told, seen = list[Any](), list[str]()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))
        raise LookupError("a fault of the host's")

    one, two = (working(TASK, poll_interval_ms=1000, status_message=text) for text in ("one", "two"))
    finished = completed(TASK, text_result("done"), status_message="two")
    world = World(gets={TASK: [one, two, finished]})
    async with world.client() as client:
        result = await world.call(
            client, progress_callback=progress, on_update=lambda task: seen.append(task.status)
        )
    assert text(result) == "done"
    assert told == [(1, None, "one"), (2, None, "two")]
    assert seen == ["working", "working", "working", "completed"]
