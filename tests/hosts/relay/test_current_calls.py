"""A session of the official SDK at 2026-07-28 above a :class:`TasksTransport`, at real servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import anyio
import httpx2
import mcp
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import ClientMessageMetadata

from mcp_tasks_client import MemoryJournal, TasksExtension, TasksTransport
from mcp_tasks_client.hosts.relay.messages import make_message
from tests._forked import make_command
from tests._results import text
from tests.hosts.http.sdk_client import LIMIT_S, client_at, pending
from tests.kit.json_rpc_host import CURRENT, QUICK, URL, JsonRpcHost, asking_server, recorded
from tests.kit.person import Person
from tests.kit.stream_host import over_streams
from tests.real_server import RealServer

pytestmark = [
    pytest.mark.anyio,
    # The SDK's transport leaves a body that it gave up to the garbage collector, which trio tells.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]

STRICT: Final = Path(__file__).parents[2] / "servers" / "strict_server.py"


async def test_who_is_given_to_the_transport_hears_each_change(real_server: RealServer) -> None:
    updates: list[str | None] = []
    told: dict[str, Any] = {"on_update": lambda task: updates.append(task.status)}
    async with client_at(real_server.url, way="around", **told) as client:
        assert text(await client.call_tool("slow", {"seconds": 0.3})) == "rested"
    assert updates[-1] == "completed"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_over_stdio_too() -> None:
    person, journal = Person(), MemoryJournal()
    command, *arguments = make_command(STRICT, "stdio")
    parameters = StdioServerParameters(command=command, args=arguments)
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


async def test_a_result_that_the_session_does_not_read_is_free_once_the_call_is_taken_back() -> None:
    server, journal = asking_server(), MemoryJournal()
    params = JsonRpcHost(None).body("slow")["params"]
    headers = {"mcp-protocol-version": CURRENT, "mcp-method": "tools/call", "mcp-name": "slow"}
    call = make_message(
        {"id": 1, "method": "tools/call", "params": params}, ClientMessageMetadata(headers=headers)
    )
    taken_back = make_message({"method": "notifications/cancelled", "params": {"requestId": 1}})

    async def until(owned: bool) -> None:
        while not [
            one for one in await recorded(journal) if one.finished and (one.owner is not None) is owned
        ]:
            await anyio.sleep(0.005)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(server.app)) as http:
        inner = streamable_http_client(URL, http_client=http)
        with anyio.fail_after(LIMIT_S):
            async with TasksTransport(inner, endpoint=URL, journal=journal, poll=QUICK) as (_, write, *_):
                await write.send(call)
                await until(owned=True)
                await write.send(taken_back)
                await until(owned=False)
    (record,) = await recorded(journal, pending=True)
    assert record.finished


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_time_out_around_the_connection_is_no_end_without_an_error() -> None:
    async def wait() -> None:
        inner = streamable_http_client("http://server.test/")
        async with (
            asyncio.timeout(None) as limit,
            over_streams(TasksTransport(inner, endpoint="s", journal=MemoryJournal())),
        ):
            limit.reschedule(0.0)
            await anyio.sleep_forever()

    async def connect() -> None:
        with pytest.raises(TimeoutError):
            await wait()

    for _ in range(4):  # in which order tasks are cancelled is left to chance
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connect)
