"""A worker in a process of its own: it adopts calls, sees them through, and leaves every question to others.

``python -m tests.campaigns.workers.host THROUGH URL JOURNAL LOG LIFE``. It prints ``ready``, writes down what
it gets to know, and goes on until it is killed.

Only a ``TasksClient`` adopts. ``TasksHttpTransport``, ``TasksTransport`` and ``TasksExtension`` cannot: each
sees the calls through that its host makes over it, and there is no request that the result of another call
would be the reply to. A ``TasksClient`` beside them adopts what they leave, by URL or over the same client.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import anyio
import httpx

from mcp_tasks_client import Environment, TasksClient, TasksExtension, TasksTransport, tasks_http_client

from ..adopting import adopt_all
from ..torture.evidence import LIFE_HEADER, Log

if TYPE_CHECKING:
    import mcp

__all__ = ["LEASE_S", "WAYS", "Through", "opened"]

Through: TypeAlias = Literal["client", "http", "transport", "extension"]
"""A ``TasksClient`` by URL; an ``mcp.Client`` over ``tasks_http_client`` or a ``TasksTransport``, or with a
``TasksExtension``, and a ``TasksClient`` over that."""

WAYS: Final[tuple[Through, ...]] = ("client", "http", "transport", "extension")
LEASE_S: Final = 5.0


@asynccontextmanager
async def opened(through: Through, url: str, journal: str, life: str) -> AsyncIterator[mcp.Client]:
    """A host's own client, into which the library is dropped. It leaves every question to others."""
    # Imported by this way only, since it takes as long again as all that the other way needs.
    import httpx2
    import mcp
    from mcp.client.streamable_http import streamable_http_client

    options: dict[str, Any] = {"journal": journal, "elicitation": "later"}
    options["environment"] = Environment(lease_s=LEASE_S)
    plain = {"headers": {LIFE_HEADER: life}, "verify": False, "trust_env": False}
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


async def main(through: Through, url: str, journal: str, path: str, life: str) -> None:
    log = Log(Path(path))
    options: dict[str, Any] = {"journal": journal, "elicitation": "later"}
    options["environment"] = Environment(lease_s=LEASE_S)
    if through == "client":
        # No TLS: reading the system's certificates takes longer than most of these processes live.
        http = httpx.AsyncClient(verify=False, trust_env=False)
        client = TasksClient(url, http_client=http, headers={LIFE_HEADER: life}, **options)
        async with http, client:
            await adopt_all(client, log)
    else:
        async with (
            opened(through, url, journal, life) as session,
            TasksClient(session, endpoint=url, **options) as client,
        ):
            await adopt_all(client, log)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
