"""A bridge between a host and a server, in this process."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx

import mcp_tasks_client as tasks
from mcp_tasks_client.bridge import Options, serve_streams

from .behind import URL
from .memory_host import LIMIT_S, MemoryHost

__all__ = ["QUICK", "bridged"]

QUICK = tasks.PollPolicy(
    floor_s=0.001, ceiling_s=0.001, jitter=0.0, backoff_floor_s=0.001, backoff_ceiling_s=0.01
)


class _Pipe:
    """The stream to a host, of which a test sees each reply before it is written."""

    def __init__(self, inner: Any, host: MemoryHost, before_reply: Callable[[str], Awaitable[None]]) -> None:
        self._inner = inner
        self._host = host
        self._before_reply = before_reply

    async def send(self, item: Any) -> None:
        if not hasattr(item.message, "method"):
            await self._before_reply(self._host.method_of(item.message.id))
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def bridged(
    wire: httpx.AsyncBaseTransport,
    host: MemoryHost,
    journal: Any = None,
    *,
    url: str = URL,
    principal: str = "ada",
    told: list[Any] | None = None,
    before_reply: Callable[[str], Awaitable[None]] | None = None,
    introduces: bool = True,
    **options: Any,
) -> AsyncIterator[MemoryHost]:
    """A host over a bridge, which ends as the block ends.

    Args:
        wire: Leads to the server.
        host: Not introduced yet.
        journal: As of a client; ``None`` is one in memory.
        url: Of the server.
        principal: As of a client.
        told: Gets the function by which the server's notifications come.
        before_reply: Called with the method of each request whose reply is about to be written.
        introduces: Whether the host has introduced itself when the block begins.
        options: Of the bridge.
    """
    journal = tasks.MemoryJournal() if journal is None else journal
    to_bridge, bridge_reads = anyio.create_memory_object_stream[Any](math.inf)
    bridge_writes, from_bridge = anyio.create_memory_object_stream[Any](math.inf)
    writes: Any = bridge_writes
    if before_reply is not None:
        writes = _Pipe(bridge_writes, host, before_reply)
    async with httpx.AsyncClient(transport=wire) as http:

        def connect(application: str, **callbacks: Any) -> tuple[tasks.TasksClient, tasks.Inbox]:
            tell = callbacks.pop("on_notification")
            if told is not None:
                told.append(tell)
            client = tasks.TasksClient(
                url,
                journal=journal,
                principal=principal,
                application=application,
                http_client=http,
                poll=QUICK,
                output_schema="off",
                **callbacks,
            )
            inbox = tasks.Inbox(
                journal, endpoint=client.endpoint, principal=principal, application=application
            )
            return client, inbox

        made = Options(**{"answer_within_s": 0, **options})
        with anyio.fail_after(LIMIT_S):
            async with to_bridge, from_bridge, anyio.create_task_group() as group:

                async def serve() -> None:
                    await serve_streams(connect, url, bridge_reads, writes, made)

                group.start_soon(serve)
                group.start_soon(host.read, to_bridge, from_bridge)
                await anyio.wait_all_tasks_blocked()
                if introduces:
                    await host.introduce()
                yield host
                await to_bridge.aclose()
