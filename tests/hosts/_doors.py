"""Clients of the SDK at a scripted server, with what a host puts into them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client

from mcp_tasks_client import TasksExtension, TasksTransport
from mcp_tasks_client.testing import ScriptedServer
from tests.kit.json_rpc_host import ENDPOINT, URL
from tests.kit.stream_host import StreamHost, over_streams

__all__ = ["extended", "streamed"]


@asynccontextmanager
async def extended(server: ScriptedServer, **options: Any) -> AsyncIterator[mcp.Client]:
    """A client with a ``TasksExtension`` of these options."""
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
