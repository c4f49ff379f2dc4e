"""The clients behind the doors: the same host at the same server, each time through another client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import fastmcp
import mcp
import trio
from mcp.client.extension import ClaimContext
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from mcp_tasks_client import (
    Journal,
    MemoryJournal,
    SqliteJournal,
    TasksClient,
    TasksExtension,
    TasksTransport,
    tasks_http_client,
)
from mcp_tasks_client.hosts.sdk.extension import ClaimedTask
from tests._clients_on_1 import client_on_1
from tests.kit.json_rpc_client import JsonRpcClient
from tests.kit.person import Person

from .axes import Way
from .servers import LIMIT_S, Refusals, WaysServer

__all__ = ["Door", "Opened", "open_client"]


@contextmanager
def closing_quietly() -> Iterator[None]:
    """Pass over what the SDK's own stream raises on trio when a client is closed under a reply.

    The reply of a request that was given up is read by a task of the stream. On trio the SDK sometimes
    closes the place to put it first, and the task ends with an error.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        if not trio.lowlevel.in_trio_run():
            raise
        _, others = group.split(anyio.BrokenResourceError)
        if others is not None:
            raise others from None


@asynccontextmanager
async def open_client(
    way: Way, address: Any, host: Person | None, extension: TasksExtension
) -> AsyncIterator[Any]:
    """Connect the host's own client or session.

    Args:
        way: Which client.
        address: Of the server, as :meth:`WaysServer.address` has it for this way.
        host: Whose callbacks the client is given; ``None`` gives it none.
        extension: What it is made with.
    """
    if way.kind == "session-http":
        with closing_quietly():
            async with (
                streamable_http_client(address) as (read, write),
                mcp.ClientSession(
                    read,
                    write,
                    extensions={extension.identifier: extension.settings()},
                    result_claims={extension.identifier: extension.claims()},
                    **(host.sdks if host is not None else {}),
                ) as session,
            ):
                await session.discover()
                yield session
        return
    client: Any
    if way.kind == "fastmcp-http":
        client = fastmcp.Client(address, extensions=[extension], **(host.fastmcps if host else {}))
    else:
        client = mcp.Client(address, extensions=[extension], **(host.sdks if host else {}))
    with closing_quietly():
        async with client:
            yield client


@asynccontextmanager
async def open_under_host(
    way: Way, address: Any, host: Person, options: Mapping[str, Any], clients_on_1: str | None
) -> AsyncIterator[Any]:
    """Connect a client that knows nothing of tasks.

    Args:
        way: Which client.
        address: Of the server, as :meth:`WaysServer.address` has it for this way.
        host: Whose callbacks the client is given.
        options: Of the transport.
        clients_on_1: Where the process with the clients of mcp 1.x listens.
    """
    async with AsyncExitStack() as stack:
        if way.on_1:
            assert clients_on_1 is not None
            journal = options["journal"]
            assert isinstance(journal, SqliteJournal), "which the other process can open as well"
            given = {**options, "journal": str(journal.path)}
            if way.mode == "around":
                given["endpoint"] = address if way.over_http else "a command"
            server = address if way.over_http else [address.command, *address.args]
            yield await stack.enter_async_context(client_on_1(clients_on_1, way.mode, server, host, given))
            return
        if way.kind in ("httpx", "httpx2"):
            client = tasks_http_client(library=way.kind, trust_env=False, timeout=LIMIT_S, **options)
            yield JsonRpcClient(await stack.enter_async_context(client), address, host)
            return
        if way.mode == "beneath":
            http_client = await stack.enter_async_context(tasks_http_client(trust_env=False, **options))
            transport: Any = streamable_http_client(address, http_client=http_client)
        else:
            inner = streamable_http_client(address) if way.over_http else stdio_client(address)
            name = {"endpoint": address if way.over_http else "a command"}
            transport = TasksTransport(inner, **{**options, **name})
        with closing_quietly():
            yield await stack.enter_async_context(mcp.Client(transport, **host.sdks))
            await stack.aclose()  # here, where what the SDK raises on closing is passed over


@dataclass(frozen=True, slots=True)
class Opened:
    """A way in that is open.

    Attributes:
        client: The host's own client; ``None`` on the native way.
        ours: The ``TasksClient`` that tools are called with; ``None`` where the extension is dropped in.
    """

    way: Way
    client: Any
    ours: TasksClient | None
    by_url: TasksClient | None = None
    """What a host resumes with whose own client knows nothing of us."""

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        said: list[str] | None = None,
    ) -> Any:
        """Call a tool as a host does on this way.

        Args:
            tool: Which.
            arguments: Its arguments.
            timeout: Seconds for all of it.
            said: Gets the status messages.
        """
        arguments = dict(arguments or {})
        heard = said if said is not None else []

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            heard.append(message or "")

        if self.ours is not None:
            return await self.ours.call_tool(tool, arguments, timeout=timeout, progress_callback=progress)
        if self.way.on_1 or self.way.kind in ("httpx", "httpx2"):
            assert timeout is None
            return await self.client.call_tool(tool, arguments, progress_callback=progress)
        if self.way.kind == "fastmcp-http":
            return await self.client.call_tool(
                tool, arguments, timeout=timeout, progress_handler=progress, raise_on_error=False
            )
        options = {"read_timeout_seconds": timeout, "progress_callback": progress}
        if self.way.kind != "session-http":
            return await self.client.call_tool(tool, arguments, **options)
        result = await self.client.call_tool(tool, arguments, allow_claimed=True, **options)
        if isinstance(result, ClaimedTask):
            # What mcp.Client does with it, and what a host over a bare session has to do itself.
            claim = self.client._active_claims["task"]
            context = ClaimContext(session=self.client, tool_name=tool, read_timeout_seconds=timeout)
            result = await claim.resolve(result, context)
        return result

    @asynccontextmanager
    async def durable(self) -> AsyncIterator[TasksClient]:
        """Handles, whatever the mode."""
        if self.ours is not None:
            yield self.ours
        elif self.by_url is not None:
            async with self.by_url as ours:
                yield ours
        else:
            async with TasksClient(self.client) as ours:
                yield ours


def endpoint_of(way: Way) -> str | None:
    """The name of a server whose address the client cannot see."""
    return "a server" if way.kind in ("mcp-in-process", "session-http") else None


@dataclass(frozen=True, slots=True)
class Door:
    """A way into a server."""

    way: Way
    server: WaysServer
    journal: Journal = field(default_factory=MemoryJournal)
    clients_on_1: str | None = None
    """Where the process with the clients of mcp 1.x listens."""

    @asynccontextmanager
    async def opened(
        self, host: Person | None = None, *, refusals: Refusals = frozenset(), **options: Any
    ) -> AsyncIterator[Opened]:
        """Open it.

        Args:
            host: Whose callbacks the client is given.
            refusals: Codes of the errors that the strict server is to answer with.
            options: Of the extension, or of ``TasksClient`` on the native way.
        """
        way, address, host = self.way, self.server.address(self.way), host or Person()
        options = {"journal": self.journal, "endpoint": endpoint_of(way)} | options
        with self.server.watched(way, refusals), anyio.fail_after(LIMIT_S):
            if way.kind == "native":
                async with TasksClient(address, **host.ours, **options) as ours:
                    yield Opened(way, None, ours)
                return
            if way.mode in ("beneath", "around"):
                async with open_under_host(way, address, host, options, self.clients_on_1) as client:
                    by_url = TasksClient(address, **host.ours, **options) if way.over_http else None
                    yield Opened(way, client, None, by_url)
                return
            async with open_client(way, address, host, TasksExtension(**options)) as client:
                if way.mode == "dropped":
                    yield Opened(way, client, None)
                else:
                    async with TasksClient(client) as ours:
                        yield Opened(way, client, ours)
