"""Results beyond the 1 MiB that clients of the SDK read of one event. None is lost, whichever way it came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from mcp_tasks_client import (
    MemoryJournal,
    RemoteProtocolError,
    TasksClient,
    TasksExtension,
    TasksHttpTransport,
    TasksTransport,
)
from mcp_tasks_client.testing import ScriptedServer, complete, text_result, work
from tests.kit.json_rpc_host import LIMIT_S, QUICK, URL, count, resume

pytestmark = [
    pytest.mark.anyio,
    # On trio the SDK leaves generators of httpx2 to the garbage collector.
    pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True),
]

LARGE: Final = "x" * (1024 * 1024)
"""With the JSON around it, more than one event may have."""


@pytest.fixture
def server() -> ScriptedServer:
    server = ScriptedServer(endpoint=URL, event_stream=True)
    steps = [work(0.05, "half way"), work(0.05, "nearly"), complete(text_result(LARGE))]
    server.tool("large", steps, poll_interval_ms=1)
    return server


@asynccontextmanager
async def calling(
    way: str, server: ScriptedServer, journal: MemoryJournal, **options: Any
) -> AsyncIterator[Any]:
    """The ``call_tool`` of a host. ``options`` are of the SDK's Streamable HTTP."""
    given: Any = {"journal": journal, "poll": QUICK}
    inner: Any = httpx2.ASGITransport(server.app)
    if way == "TasksHttpTransport":
        inner = TasksHttpTransport(inner, **given)
    async with httpx2.AsyncClient(transport=inner) as http_client:
        connection: Any = streamable_http_client(URL, http_client=http_client, **options)
        if way == "TasksTransport":
            connection = TasksTransport(connection, endpoint=URL, **given)
        extensions = [TasksExtension(endpoint=URL, **given)] if way == "TasksExtension" else []
        async with mcp.Client(connection, extensions=extensions) as client:
            if way != "TasksClient":
                yield client.call_tool
                return
            async with TasksClient(client, endpoint=URL, **given) as ours:
                yield ours.call_tool


async def ignore(progress: float, total: float | None, message: str | None) -> None:
    """Progress, which makes a stream of the reply of a ``TasksHttpTransport``."""


WAYS: Final = ("TasksClient", "TasksExtension", "TasksTransport", "TasksHttpTransport")


@pytest.mark.parametrize("way", WAYS)
async def test_a_result_that_the_hosts_session_does_not_read_is_found_by_resume(
    way: str, server: ScriptedServer
) -> None:
    journal = MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with calling(way, server, journal) as call_tool:
            with pytest.raises((RemoteProtocolError, MCPError)) as caught:
                await call_tool("large", {}, progress_callback=ignore)
        assert "1048576 byte" in str(caught.value)
        if way != "TasksHttpTransport":  # there the words are the SDK's
            assert "raise max_sse_event_size" in str(caught.value)
        assert await resume(server, journal) == [LARGE]
        assert await resume(server, journal) == []
    assert count(server, "tools/call") == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_host_that_raises_the_limit_gets_it(way: str, server: ScriptedServer) -> None:
    with anyio.fail_after(LIMIT_S):
        async with calling(way, server, MemoryJournal(), max_sse_event_size=2 * len(LARGE)) as call_tool:
            result = await call_tool("large", {}, progress_callback=ignore)
    assert result.content[0].text == LARGE
