"""Works of a journal that are carried out together."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio import to_thread

from mcp_tasks_client import PostgresJournal
from mcp_tasks_client.journal.work import Work

__all__ = ["gathering"]


@asynccontextmanager
async def gathering(journal: PostgresJournal) -> AsyncIterator[None]:
    """Keep the thread of a journal busy: all that begins in the block is carried out together after it."""
    is_busy, have_gathered = threading.Event(), threading.Event()

    def wait(found: Any) -> None:
        is_busy.set()
        have_gathered.wait(20)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal._opened().run, Work(statements=(), writes=False, read=wait))
        await to_thread.run_sync(is_busy.wait, 20)
        try:
            yield
            await anyio.wait_all_tasks_blocked()
        finally:
            have_gathered.set()
