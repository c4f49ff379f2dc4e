"""The ways in, at a scripted server without sockets. Each gives a function that calls a tool as hosts do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import httpx
import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client

from mcp_tasks_client import Environment, RemoteProtocolError, TasksClient, TasksExtension, TasksTransport
from mcp_tasks_client.hosts.call_options import META_KEY
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.testing import ScriptedServer, scripted_client

from .json_rpc_host import ENDPOINT, URL, JsonRpcHost, hosted
from .stream_host import StreamHost, over_streams

__all__ = [
    "Call",
    "Way",
    "around",
    "beneath",
    "by_client",
    "by_client_with_extension",
    "by_url",
    "by_wrapped_client",
    "extended",
    "result_of",
    "streamed",
]

Call: TypeAlias = Callable[..., Awaitable[JSONObject]]
"""``call(tool, key=None)``: the result of a call as JSON. An error that a host reads is raised."""

Way: TypeAlias = Callable[..., AbstractAsyncContextManager[Call]]
"""``way(server, journal=…, **options)``: the options are those of the way in."""


def result_of(answer: JSONObject) -> JSONObject:
    """The result in a JSON-RPC response.

    Raises:
        RemoteProtocolError: The response is an error.
    """
    if "error" in answer:
        error = answer["error"]
        raise RemoteProtocolError(error["message"], code=error["code"], data=error.get("data"))
    result: JSONObject = answer["result"]
    return result


def _calling(client: TasksClient) -> Call:
    async def call(tool: str, key: str | None = None) -> JSONObject:
        result = await client.call_tool(tool, idempotency_key=key)
        return result.model_dump(by_alias=True, mode="json")

    return call


def _calling_as(host: JsonRpcHost) -> Call:
    async def call(tool: str, key: str | None = None) -> JSONObject:
        return result_of(await host.call(tool, meta={} if key is None else {META_KEY: key}))

    return call


@asynccontextmanager
async def by_client(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    """A ``TasksClient`` in memory."""
    async with scripted_client(server.session(), **options) as client:
        yield _calling(client)


@asynccontextmanager
async def by_url(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    """A ``TasksClient`` over HTTP."""
    options.setdefault("environment", Environment(clock=server.clock))
    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(server.app)) as http,
        TasksClient(URL, http_client=http, **options) as client,
    ):
        yield _calling(client)


@asynccontextmanager
async def by_wrapped_client(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    """A ``TasksClient`` over a client of the SDK."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(server.app)) as http:
        sdk = mcp.Client(streamable_http_client(URL, http_client=http))
        async with sdk, TasksClient(sdk, endpoint=ENDPOINT, **options) as client:
            yield _calling(client)


@asynccontextmanager
async def by_client_with_extension(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    """A ``TasksClient`` over a client of the SDK with a ``TasksExtension``, which has the options."""
    async with extended(server, **options) as sdk, TasksClient(sdk) as client:
        yield _calling(client)


@asynccontextmanager
async def beneath(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    """A host over an HTTP client with a ``TasksHttpTransport``."""
    async with hosted(server, options.pop("journal"), **options) as host:
        yield _calling_as(host)


@asynccontextmanager
async def around(server: ScriptedServer, **options: Any) -> AsyncIterator[Call]:
    """A host over a ``TasksTransport``."""
    async with streamed(server, **options) as host:
        yield _calling_as(host)


@asynccontextmanager
async def extended(server: ScriptedServer, **options: Any) -> AsyncIterator[mcp.Client]:
    """A client of the SDK with a ``TasksExtension`` of these options."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(server.app)) as http:
        extension = TasksExtension(endpoint=ENDPOINT, **options)
        sdk = mcp.Client(streamable_http_client(URL, http_client=http), extensions=[extension])
        async with sdk as client:
            yield client


@asynccontextmanager
async def streamed(server: ScriptedServer, **options: Any) -> AsyncIterator[StreamHost]:
    """A host over a ``TasksTransport`` of these options."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(server.app)) as http:
        inner = streamable_http_client(URL, http_client=http)
        async with over_streams(TasksTransport(inner, endpoint=ENDPOINT, **options)) as host:
            yield host
