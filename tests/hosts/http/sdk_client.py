"""Clients of the official SDK over each way in that works beneath or around their transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Literal, TypeAlias

import anyio
import mcp
from mcp.client.streamable_http import streamable_http_client

from mcp_tasks_client import Journal, MemoryJournal, Scope, TasksTransport, tasks_http_client
from tests.kit.person import Person

__all__ = ["LIMIT_S", "Way", "client_at", "pending"]

LIMIT_S: Final = 30.0

Way: TypeAlias = Literal["beneath", "beneath, legacy", "around"]
"""``TasksHttpTransport`` beneath the SDK's transport, or ``TasksTransport`` around it. With ``legacy``, the
SDK negotiates the version before 2026-07-28."""


@asynccontextmanager
async def client_at(
    url: str,
    person: Person | None = None,
    journal: Journal | None = None,
    *,
    way: Way = "beneath",
    asks: str = "host",
    **options: Any,
) -> AsyncIterator[mcp.Client]:
    """An ``mcp.Client``; the person is behind its own callbacks, or behind those of the way in."""
    person, journal = person or Person(), journal or MemoryJournal()
    ours, its = {}, {}
    if asks == "host":
        its = {"elicitation_callback": person.elicit, "sampling_callback": person.sample}
    else:
        ours = {"elicitation": person.elicit, "sampling": person.sample}
    with anyio.fail_after(LIMIT_S):
        async with AsyncExitStack() as stack:
            if way == "around":
                inner = streamable_http_client(url)
                transport: Any = TasksTransport(inner, endpoint=url, journal=journal, **ours, **options)
            else:
                client = tasks_http_client(journal=journal, trust_env=False, **ours, **options)
                http = await stack.enter_async_context(client)
                transport = streamable_http_client(url, http_client=http)
            mode = "legacy" if way == "beneath, legacy" else "auto"
            yield await stack.enter_async_context(mcp.Client(transport, mode=mode, **its))


async def pending(url: str, journal: Journal) -> list[str | None]:
    """The tools whose calls a journal still has."""
    async with journal:
        return [record.tool for record in await journal.records(Scope(url), pending=True)]
