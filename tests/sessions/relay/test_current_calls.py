"""A session of the official SDK at 2026-07-28 above a :class:`TasksTransport`, at real servers."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import anyio
import mcp
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult

from mcp_tasks_client import MemoryJournal, TasksClient, TasksExtension, TasksTransport
from mcp_tasks_client.journal.base import Journal
from mcp_tasks_client.journal.record import Scope
from tests.real_server import RealServer

pytestmark = [
    pytest.mark.anyio,
    # The SDK's transport leaves a body that it gave up to the garbage collector, which trio tells.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]

LIMIT_S: Final = 30.0
STRICT: Final = Path(__file__).parents[2] / "servers" / "strict_server.py"


class Person:
    """Answers what it is asked, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        known = {"name": "Ada", "amount": "2 kg", "colour": "red", "size": "XL", "sure": "yes"}
        fields = params.requested_schema["properties"]
        return ElicitResult(action="accept", content={name: known[name] for name in fields})


@asynccontextmanager
async def client_at(
    url: str, person: Person, journal: Journal, *, asks: str = "host", **options: Any
) -> AsyncIterator[mcp.Client]:
    """An ``mcp.Client``; the person is behind its own callback, or behind that of the transport."""
    ours = {"elicitation": person.elicit} if asks == "transport" else {}
    its = {"elicitation_callback": person.elicit} if asks == "host" else {}
    transport = TasksTransport(streamable_http_client(url), endpoint=url, journal=journal, **ours, **options)
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(transport, **its) as client:
            yield client


def text(result: Any) -> str:
    return str(result.content[0].text)


async def pending(url: str, journal: Journal) -> list[str | None]:
    async with journal:
        return [record.tool for record in await journal.records(Scope(url), pending=True)]


@pytest.mark.parametrize("asks", ["host", "transport"])
async def test_a_client_gets_the_results_of_tasks(real_server: RealServer, asks: str) -> None:
    person, journal = Person(), MemoryJournal()
    async with client_at(real_server.url, person, journal, asks=asks) as client:
        assert client.session.protocol_version == "2026-07-28"
        assert text(await client.call_tool("must_task", {"n": 7})) == "7"
        assert text(await client.call_tool("slow", {"seconds": 0.2})) == "rested"
        assert text(await client.call_tool("plain", {"x": 3})) == "3"
        assert (await client.call_tool("typed", {})).structured_content == {
            "name": "Bern",
            "inhabitants": 137_000,
        }
        assert text(await client.call_tool("ask_name", {})) == "Hello, Ada"
        assert text(await client.call_tool("ask_many", {})) == "XL and red: yes"
        assert text(await client.call_tool("ask_plainly", {})) == "2 kg of item:tea"
        assert text(await client.call_tool("ask_then_task", {})) == "tea, after a question"
        refused = await client.call_tool("fail_tool", {})
        assert (refused.is_error, text(refused)) == (True, "the tool said no")
        with pytest.raises(MCPError) as failed:
            await client.call_tool("fail_rpc", {})
        assert (failed.value.code, failed.value.data) == (-32050, {"retryAfter": 7})
    assert len(person.asked) == len(["name", "colour", "size", "sure", "amount", "name"])
    assert await pending(real_server.url, journal) == []


async def test_calls_may_be_made_together(real_server: RealServer) -> None:
    person, said = Person(), list[str]()
    async with client_at(real_server.url, person, MemoryJournal()) as client, anyio.create_task_group() as g:

        async def call(tool: str, arguments: dict[str, Any]) -> None:
            said.append(text(await client.call_tool(tool, arguments)))

        for _ in range(4):
            g.start_soon(call, "slow", {"seconds": 0.2})
            g.start_soon(call, "ask_name", {})
    assert sorted(said) == ["Hello, Ada"] * 4 + ["rested"] * 4
    assert len(person.asked) == 4


async def test_a_call_that_the_client_gives_up_is_taken_up_by_url(real_server: RealServer) -> None:
    journal, token = MemoryJournal(), uuid4().hex
    async with client_at(real_server.url, Person(), journal) as client:
        with pytest.raises(MCPError, match="timed out"):
            await client.call_tool("count", {"token": token, "seconds": 1.0}, read_timeout_seconds=0.5)
        assert text(await client.call_tool("runs", {"token": token})) == "1"
    async with TasksClient(real_server.url, journal=journal) as durable:
        (handle,) = await durable.resume()
        assert text(await handle.result()) == "1"


async def test_a_key_in_the_metadata_joins_the_call(real_server: RealServer) -> None:
    token = uuid4().hex
    meta: Any = {"mcp-tasks-client/idempotency-key": token}
    async with client_at(real_server.url, Person(), MemoryJournal()) as client:
        for _ in range(2):
            assert text(await client.call_tool("count", {"token": token}, meta=meta)) == "1"
        assert text(await client.call_tool("count", {"token": token})) == "2"


async def test_who_is_given_to_the_transport_hears_each_change(real_server: RealServer) -> None:
    updates: list[str | None] = []
    async with client_at(
        real_server.url, Person(), MemoryJournal(), on_update=lambda task: updates.append(task.status)
    ) as client:
        assert text(await client.call_tool("slow", {"seconds": 0.3})) == "rested"
    assert updates[-1] == "completed"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_over_stdio_too() -> None:
    person, journal = Person(), MemoryJournal()
    parameters = StdioServerParameters(command=sys.executable, args=[str(STRICT), "stdio"])
    transport = TasksTransport(stdio_client(parameters), endpoint="strict", journal=journal)
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(transport, elicitation_callback=person.elicit) as client:
            assert client.session.protocol_version == "2026-07-28"
            assert text(await client.call_tool("slow", {}))
    assert await pending("strict", journal) == []


async def test_a_client_that_has_the_extension_as_well_makes_one_task_of_a_call(
    real_server: RealServer,
) -> None:
    journal, token = MemoryJournal(), uuid4().hex
    transport = TasksTransport(
        streamable_http_client(real_server.url), endpoint=real_server.url, journal=journal
    )
    extension = TasksExtension(journal=journal, endpoint=real_server.url)
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(transport, extensions=[extension]) as client:
            assert text(await client.call_tool("count", {"token": token})) == "1"
            assert text(await client.call_tool("runs", {"token": token})) == "1"
    assert await pending(real_server.url, journal) == []
