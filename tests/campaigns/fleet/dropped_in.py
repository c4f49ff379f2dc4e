"""A host's own client, with the library dropped into it: how calls are made, and how replicas adopt them.

Only a ``TasksClient`` adopts. ``TasksHttpTransport``, ``TasksTransport`` and ``TasksExtension`` cannot: each
sees the calls through that its host makes over it, and there is no request that the result of another call
would be the reply to. A ``TasksClient`` beside them adopts what they leave, by URL or over the same client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from mcp_tasks_client import Environment, TasksExtension, TasksTransport, tasks_http_client

from ..torture.evidence import LIFE_HEADER

if TYPE_CHECKING:
    import mcp

__all__ = ["WAYS", "Through", "opened"]

Through: TypeAlias = Literal["client", "http", "transport", "extension"]
"""A ``TasksClient`` by URL; an ``mcp.Client`` over ``tasks_http_client`` or a ``TasksTransport``, or with a
``TasksExtension``, and a ``TasksClient`` over that."""

WAYS: Final[tuple[Through, ...]] = ("client", "http", "transport", "extension")


@asynccontextmanager
async def opened(
    through: Through, url: str, journal: str, life: int, environment: Environment
) -> AsyncIterator[mcp.Client]:
    """A host's own client. It leaves every question to others."""
    # Imported by this way only, since it takes as long again as all that the other way needs.
    import httpx2
    import mcp
    from mcp.client.streamable_http import streamable_http_client

    options: dict[str, Any] = {"journal": journal, "elicitation": "later", "environment": environment}
    plain = {"headers": {LIFE_HEADER: str(life)}, "verify": False, "trust_env": False}
    if through == "http":
        http = tasks_http_client(endpoint=url, **plain, **options)
    else:
        http = httpx2.AsyncClient(**plain, timeout=None)
    async with http:
        transport: Any = streamable_http_client(url, http_client=http)
        if through == "transport":
            transport = TasksTransport(transport, endpoint=url, **options)
        extensions = [TasksExtension(endpoint=url, **options)] if through == "extension" else None
        async with mcp.Client(transport, extensions=extensions) as client:
            await client.list_tools()  # else the SDK does so while it holds a result
            yield client
