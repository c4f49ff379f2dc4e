"""Clients in processes of their own that no other can see, on clocks of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.engine.environment import LEASE_S, Environment
from mcp_tasks_client.engine.observer import Observer
from mcp_tasks_client.engine.process import Process
from mcp_tasks_client.journal.medium import Medium
from mcp_tasks_client.journal.sqlite.journal import SqliteJournal
from mcp_tasks_client.journal.work import Work
from mcp_tasks_client.sessions.base import Session
from mcp_tasks_client.testing import ManualClock

__all__ = ["LEASE_S", "Hosts", "OnDisk", "invisible"]


class OnDisk(SqliteJournal):
    """A journal whose commits take no time of a clock, however slow the disk is."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        super().__init__(path)
        self._manual_clock = clock

    def _opened(self) -> Medium:
        return _Timeless(super()._opened(), self._manual_clock)  # type: ignore[return-value]  # it passes all on


class _Timeless:
    """A medium whose works take no time of a clock."""

    def __init__(self, medium: Medium, clock: ManualClock) -> None:
        self._medium = medium
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._medium, name)

    async def run(self, work: Work) -> Any:
        with self._clock.busy():
            return await self._medium.run(work)


def invisible(
    session: Session,
    clock: ManualClock,
    path: Path,
    name: str,
    *,
    observer: Observer | None = None,
    **options: Any,
) -> TasksClient:
    """A client on another host. While its clock stands still, it renews no lease."""
    environment = Environment(
        clock=clock,
        jitter=lambda: 0.0,
        process=replace(Process.current(), host=name),
        observer=observer,
        lease_s=LEASE_S,
    )
    return TasksClient(session, journal=OnDisk(path, clock), environment=environment, **options)


class Hosts:
    """Two hosts that share a journal, and cannot see each other. Each has its own clock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.sqlite3"
        self.clock, self.other_clock = ManualClock(), ManualClock()

    def first(self, session: Session, **options: Any) -> TasksClient:
        return invisible(session, self.clock, self.path, "first", **options)

    def second(self, session: Session, **options: Any) -> TasksClient:
        return invisible(session, self.other_clock, self.path, "second", **options)

    async def outlast(self, seconds: float = LEASE_S + 1) -> None:
        """Time that passes for the second host only."""
        await self.other_clock.advance(seconds)

    async def until(self, done: Any) -> None:
        while not done():
            await self.clock.advance(1)
            await self.other_clock.advance(1)
