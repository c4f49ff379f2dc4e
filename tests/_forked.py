"""Processes that begin with everything imported.

They are forked from a process that has opened nothing: each costs little. ``multiprocessing`` keeps one
such process. It imports what it is told to as it starts, and nothing later: hence one list for all tests.
"""

from __future__ import annotations

import multiprocessing
from typing import Any, Final

__all__ = ["forking"]

IMPORTED: Final = (
    "tests.campaigns.storm.host",
    "tests.crossings.host",
    # What those import on use. It would take most of their time.
    "aiohttp",
    "anyio._backends._asyncio",
    "anyio._backends._trio",
    "httpcore",
    "httpcore2",
    "importlib.resources",
    "jsonschema",
    "jsonschema_rs",
    "mcp_tasks_client.journal.sqlite.journal",
    "mcp_tasks_client.tasks_2025_11_25",
    "sqlite3",
)


def forking() -> Any:
    """The ``multiprocessing`` context that forks them; where a system has none, one that spawns them."""
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if hasattr(context, "set_forkserver_preload"):
        context.set_forkserver_preload([*IMPORTED])
    return context
