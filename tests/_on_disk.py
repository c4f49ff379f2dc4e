"""A journal on a disk, for tests whose time obeys."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mcp_tasks_client import SqliteJournal
from mcp_tasks_client.old.testing import ManualClock

__all__ = ["OnDisk"]

T = TypeVar("T")


class OnDisk(SqliteJournal):
    """A journal whose commits take no time of a clock, however slow the disk is."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        super().__init__(path)
        self._clock = clock

    async def _run(self, operation: Callable[[sqlite3.Connection], T], *, writes: bool) -> T:
        with self._clock.busy():
            return await super()._run(operation, writes=writes)
