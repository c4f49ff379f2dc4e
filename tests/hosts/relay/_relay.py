"""A relay that passes everything on, between a server and a host that says nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from mcp_tasks_client.hosts.relay.relay import Interceptor, Relay
from mcp_tasks_client.protocol import JSONObject

__all__ = ["relayed_to"]


class _PassAll(Interceptor):
    """Takes nothing."""

    def initialize(self, params: JSONObject) -> JSONObject:
        return params

    def initialized(self, result: JSONObject) -> None: ...

    def takes_call(self, params: JSONObject) -> bool:
        return False

    async def serve_call(self, request: JSONObject, metadata: Any) -> None: ...

    def takes_request(self, request: JSONObject) -> bool:
        return False

    async def serve_request(self, request: JSONObject) -> Any: ...

    def takes_notification(self, method: str, params: JSONObject) -> bool:
        return False


@asynccontextmanager
async def relayed_to(streams: tuple[Any, ...]) -> AsyncIterator[tuple[Relay, Any]]:
    """A relay before the streams of a transport of the SDK, and what the host would read."""
    to_host, host_reads = anyio.create_memory_object_stream[Any](10)
    host_writes, from_host = anyio.create_memory_object_stream[Any](0)
    relay = Relay()
    async with host_reads, host_writes, anyio.create_task_group() as tasks:
        tasks.start_soon(relay.run, _PassAll(), (from_host, to_host), streams[:2])
        await anyio.wait_all_tasks_blocked()
        yield relay, host_reads
        tasks.cancel_scope.cancel()
