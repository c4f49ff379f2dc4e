"""Arguments that are no plain JSON, by each way in that takes Python values."""

from __future__ import annotations

import contextvars
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeAlias

import anyio.to_thread
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from pydantic import BaseModel, Field

from mcp_tasks_client import (
    BlockingTasksClient,
    IdempotencyConflictError,
    MemoryJournal,
    TasksClient,
    TasksExtension,
    tasks_http_client,
)
from tests.kit.current_server import QUICK, RESULT, TOOL, CurrentServer, at_loopback
from tests.kit.json_rpc_host import JsonRpcHost

pytestmark = [
    pytest.mark.anyio,
    # The SDK's transport leaves a body that it has read to the garbage collector, which trio tells.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]


class Colour(Enum):
    RED = "red"


class Order(BaseModel):
    order_id: int = Field(alias="orderId")
    note: str | None = None


@dataclass
class Place:
    x: int
    y: int


ID: Final = uuid.UUID("0b5f1f9a-6c2e-4f44-9a7e-0e4f3f9f8a11")
ARGUMENTS: Final[dict[str, Any]] = {
    "at": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "for": timedelta(seconds=3),
    "id": ID,
    "price": Decimal("1.50"),
    "colour": Colour.RED,
    "order": Order(orderId=7),
    "orders": [Order(orderId=8)],
    "place": Place(1, 2),
    "pair": (1, 2),
    "by_id": {ID: None},
}
ENCODED: Final[dict[str, Any]] = {
    "at": "2026-01-02T03:04:00Z",
    "day": "2026-01-02",
    "for": "PT3S",
    "id": str(ID),
    "price": "1.50",
    "colour": "red",
    "order": {"orderId": 7},
    "orders": [{"orderId": 8}],
    "place": {"x": 1, "y": 2},
    "pair": [1, 2],
    "by_id": {str(ID): None},
}
REPLY: Final = {**RESULT, "resultType": "complete"}
MARKED: Final = {
    **TOOL,
    "inputSchema": {"type": "object", "properties": {"id": {"type": "string", "x-mcp-header": "Id"}}},
}

Call: TypeAlias = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def by_the_sdk(url: str) -> AsyncIterator[Call]:
    async with mcp.Client(streamable_http_client(url)) as client:
        yield client.call_tool


@asynccontextmanager
async def by_url(url: str) -> AsyncIterator[Call]:
    async with TasksClient(url, journal=MemoryJournal(), poll=QUICK) as client:
        yield client.call_tool


@asynccontextmanager
async def by_url_without_waiting(url: str) -> AsyncIterator[Call]:
    async with TasksClient(url, journal=MemoryJournal(), poll=QUICK) as client:
        yield client.start_tool


@asynccontextmanager
async def blocking(url: str) -> AsyncIterator[Call]:
    async def elsewhere(function: Callable[..., Any]) -> Any:
        """In a thread that knows nothing of this event loop, as that of a host without one."""
        return await anyio.to_thread.run_sync(contextvars.Context().run, function)

    client = await elsewhere(lambda: BlockingTasksClient(url, journal=MemoryJournal(), poll=QUICK))
    await elsewhere(client.__enter__)

    async def call(*arguments: Any, **options: Any) -> Any:
        return await elsewhere(lambda: client.call_tool(*arguments, **options))

    yield call
    await elsewhere(lambda: client.__exit__(None, None, None))


@asynccontextmanager
async def by_client(url: str) -> AsyncIterator[Call]:
    async with (
        mcp.Client(streamable_http_client(url)) as sdk,
        TasksClient(sdk, endpoint="server", journal=MemoryJournal(), poll=QUICK) as client,
    ):
        yield client.call_tool


@asynccontextmanager
async def by_extension(url: str) -> AsyncIterator[Call]:
    extension = TasksExtension(endpoint="server", journal=MemoryJournal(), poll=QUICK)
    async with mcp.Client(streamable_http_client(url), extensions=[extension]) as client:
        yield client.call_tool


OURS: Final = [by_url, by_url_without_waiting, blocking, by_client]


@pytest.mark.parametrize("way", [by_the_sdk, by_extension, *OURS])
async def test_arguments_are_sent_as_the_sdk_encodes_them(way: Any) -> None:
    server, heads = CurrentServer(calls=[REPLY], tool=MARKED), list[str]()
    async with at_loopback(server, heads) as url, way(url) as call:
        await call("tool", ARGUMENTS)
    (sent,) = [params["arguments"] for method, params in server.received if method == "tools/call"]
    assert sent == ENCODED
    # The SDK itself sends such headers for what has been listed.
    marked = [head for head in heads if f"mcp-param-id: {ID}" in head]
    assert len(marked) == (1 if way in OURS else 0)


@pytest.mark.parametrize("way", OURS)
async def test_a_key_stands_for_the_arguments_as_they_are_sent(way: Any) -> None:
    server = CurrentServer(calls=[REPLY])
    async with at_loopback(server) as url, way(url) as call:
        for arguments in (ARGUMENTS, ENCODED, ARGUMENTS):
            await call("tool", arguments, idempotency_key="key")
        with pytest.raises(IdempotencyConflictError):
            await call("tool", {**ARGUMENTS, "day": date(2026, 1, 3)}, idempotency_key="key")
    assert server.counts["tools/call"] == 1


@pytest.mark.parametrize("way", OURS)
@pytest.mark.parametrize("argument", [object(), b"\xff", float("nan"), {"a": lambda: None}])
async def test_what_nobody_can_encode_is_refused_and_not_sent(way: Any, argument: object) -> None:
    server = CurrentServer(calls=[REPLY])
    async with at_loopback(server) as url, way(url) as call:
        with pytest.raises(ValueError, match="the arguments of 'tool' cannot be sent as JSON"):
            await call("tool", {"argument": argument})
    assert server.counts["tools/call"] == 0


# ── arguments that also travel as headers ─────────────────────────────────────────────────────


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("way", [by_url, by_url_without_waiting, blocking])
async def test_an_argument_that_no_header_can_carry_is_named(way: Any, key: str | None) -> None:
    server = CurrentServer(calls=[REPLY], tool=MARKED)
    async with at_loopback(server) as url, way(url) as call:
        options = {} if key is None else {"idempotency_key": key}
        with pytest.raises(ValueError, match=r"argument 'id' .*no UTF-8 form"):
            await call("tool", {"id": "\ud83d"}, **options)
        assert server.counts["tools/call"] == 0
        await call("tool", {"id": "\N{GRINNING FACE}"}, **options)  # nothing stands under the key
    assert server.counts["tools/call"] == 1


async def test_a_host_with_an_http_client_is_told_which_argument_no_header_can_carry() -> None:
    server = CurrentServer(calls=[REPLY], tool=MARKED)
    async with at_loopback(server) as url, tasks_http_client(journal=MemoryJournal(), poll=QUICK) as http:
        answer = await JsonRpcHost(http, url=url).call("tool", {"id": "\ud83d"})
    assert answer["error"]["code"] == -32602
    assert "argument 'id'" in answer["error"]["message"]
    assert server.counts["tools/call"] == 0
