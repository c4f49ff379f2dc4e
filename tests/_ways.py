"""The ways in: the same host on the same server, each time through another client.

A *way* is a client and a mode. *Dropped in*, the host calls tools with its own client, which has
the extension; *wrapped*, with ``TasksClient(client)``. ``TasksClient(url)`` is the native one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import fastmcp
import mcp
from mcp.client.extension import ClaimContext
from mcp.client.streamable_http import streamable_http_client

from mcp_tasks_client import MemoryJournal, TasksClient, TasksExtension
from mcp_tasks_client.old.extension import ClaimedTask

from ._ways_hosts import LIMIT_S, Host, Way
from ._ways_servers import Refusals, Server

__all__ = ["Door", "Opened", "host_client", "made_client"]


def made_client(
    way: Way, address: Any, host: Host | None, extension: TasksExtension | None, **options: Any
) -> Any:
    """The host's own client, not yet connected; with callbacks and extension, if they are given."""
    extensions = [extension] if extension is not None else []
    if way.kind == "fastmcp-http":
        callbacks = host.fastmcps if host is not None else {}
        return fastmcp.Client(address, extensions=extensions, **callbacks, **options)
    assert way.kind.startswith("mcp-"), way
    callbacks = host.sdks if host is not None else {}
    return mcp.Client(address, extensions=extensions, **callbacks, **options)


@asynccontextmanager
async def host_client(
    way: Way, address: Any, host: Host | None, extension: TasksExtension | None, *, mode: str = "auto"
) -> AsyncIterator[Any]:
    """The host's own client or session, connected."""
    if way.kind != "session-http":
        async with made_client(way, address, host, extension, mode=mode) as client:
            yield client
        return
    options: dict[str, Any] = host.sdks if host is not None else {}
    if extension is not None:
        options["extensions"] = {extension.identifier: extension.settings()}
        options["result_claims"] = {extension.identifier: extension.claims()}
    async with (
        streamable_http_client(address) as (read, write),
        mcp.ClientSession(read, write, **options) as session,
    ):
        await (session.initialize() if mode == "legacy" else session.discover())
        yield session


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
        if self.ours is not None:
            return await self.ours.call_tool(
                tool,
                arguments,
                timeout=timeout,
                on_update=lambda task: heard.append(task.status_message) if task.status_message else None,
            )

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            heard.append(message or "")

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
        else:
            async with TasksClient(self.client) as ours:
                yield ours


def endpoint_of(way: Way) -> str | None:
    """What names the server where its address cannot be seen."""
    return "a server" if way.kind in ("mcp-in-process", "session-http") else None


@dataclass(frozen=True, slots=True)
class Door:
    """A way into a server."""

    way: Way
    server: Server
    journal: MemoryJournal = field(default_factory=MemoryJournal)

    @asynccontextmanager
    async def opened(
        self,
        host: Host | None = None,
        *,
        extension_host: Host | None = None,
        refusals: Refusals = frozenset(),
        **options: Any,
    ) -> AsyncIterator[Opened]:
        """Open it.

        Args:
            host: Whose callbacks the client is given.
            extension_host: Whose callbacks the extension is given.
            refusals: Codes of the errors that the strict server is to answer with.
            options: Of the extension, or of ``TasksClient`` on the native way.
        """
        way, address, host = self.way, self.server.address(self.way), host or Host()
        options = {"journal": self.journal, "endpoint": endpoint_of(way)} | options
        with self.server.watched(way, refusals):
            with anyio.fail_after(LIMIT_S):
                if way.kind == "native":
                    async with TasksClient(address, **host.ours, **options) as ours:
                        yield Opened(way, None, ours)
                    return
                callbacks = extension_host.ours if extension_host is not None else {}
                extension = TasksExtension(**callbacks, **options)
                async with host_client(way, address, host, extension) as client:
                    if way.mode == "dropped":
                        yield Opened(way, client, None)
                    else:
                        async with TasksClient(client) as ours:
                            yield Opened(way, client, ours)
