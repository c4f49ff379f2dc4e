"""What becomes of a result that does not match its tool's output schema, by each way in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client

from mcp_tasks_client import (
    MemoryJournal,
    RemoteProtocolError,
    TasksClient,
    TasksExtension,
    TasksHttpTransport,
    TasksTransport,
)
from mcp_tasks_client.testing import ScriptedServer, complete, work
from tests.kit.json_rpc_host import ENDPOINT, QUICK, URL
from tests.kit.ways import Way, around, beneath, by_client, by_client_with_extension

pytestmark = pytest.mark.anyio

WRONG = {"content": [], "structuredContent": {"n": "three"}, "isError": False}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def wrong_server() -> ScriptedServer:
    server = ScriptedServer(endpoint=ENDPOINT)
    server.tool("tool", [work(0.01), complete(WRONG)], poll_interval_ms=1, output_schema=SCHEMA)
    return server


each_way = pytest.mark.parametrize("way", [by_client, by_client_with_extension, beneath])


@each_way
async def test_a_wrong_result_is_an_error_by_default(way: Way) -> None:
    async with way(wrong_server(), journal=MemoryJournal(), poll=QUICK) as call:
        with pytest.raises(RemoteProtocolError, match="does not match the tool's output schema") as raised:
            await call("tool")
        assert "It is in the error's data" in str(raised.value)
        assert raised.value.data["structuredContent"] == {"n": "three"}


@each_way
async def test_a_wrong_result_may_be_a_line_in_the_log(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    async with way(wrong_server(), journal=MemoryJournal(), poll=QUICK, output_schema="warn") as call:
        assert (await call("tool"))["structuredContent"] == {"n": "three"}
    assert sum("does not match the tool's output schema" in told for told in caplog.messages) == 1


@each_way
async def test_a_schema_may_be_left_unread(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    async with way(wrong_server(), journal=MemoryJournal(), poll=QUICK, output_schema="off") as call:
        assert (await call("tool"))["structuredContent"] == {"n": "three"}
    assert not [told for told in caplog.messages if "output schema" in told]


@pytest.mark.parametrize("option", [{}, {"output_schema": "warn"}, {"output_schema": "off"}])
async def test_at_2026_07_28_a_host_s_session_checks_what_comes_through_its_transport(option: Any) -> None:
    async with around(wrong_server(), journal=MemoryJournal(), poll=QUICK, **option) as call:
        assert (await call("tool"))["structuredContent"] == {"n": "three"}


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: TasksClient(URL, **options),
        TasksExtension,
        lambda **options: TasksHttpTransport(httpx2.AsyncHTTPTransport(), **options),
        lambda **options: TasksTransport(streamable_http_client(URL), endpoint=URL, **options),
    ],
)
def test_a_word_that_it_cannot_be_is_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match='output_schema must be "raise", "warn" or "off"'):
        make(journal=MemoryJournal(), output_schema="never")
