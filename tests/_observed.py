"""The tasks that are observed at a session, as the engine has them, and what the session delivers of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import anyio

from mcp_tasks_client import ObservedTasks, Snapshot, Task, TaskRef

__all__ = ["Observed"]


class Observed(ObservedTasks):
    """Keeps the latest ``session_data`` of each task, as the journal does.

    Args:
        refs: What is observed from the first.

    Attributes:
        kept: What is observed, by task ID.
        delivered: The snapshots that came unasked.
    """

    def __init__(self, *refs: TaskRef) -> None:
        self.kept = {ref.task_id: ref for ref in refs}
        self.delivered: list[Snapshot] = []
        self._added, self._news = anyio.Event(), anyio.Event()

    # ── as a session sees it ──

    def refs(self) -> Mapping[str, TaskRef]:
        return dict(self.kept)

    async def changed(self) -> None:
        await self._added.wait()
        self._added = anyio.Event()

    def deliver(self, snapshot: Snapshot) -> None:
        self.delivered.append(snapshot)
        self.keep(snapshot)
        self._news.set()
        self._news = anyio.Event()

    # ── as a test does ──

    def keep(self, snapshot: Snapshot) -> None:
        """Keep what a snapshot says for the next request."""
        ref = self.kept.get(snapshot.task.task_id)
        if ref is not None and snapshot.session_data is not None:
            self.kept[ref.task_id] = replace(ref, session_data=snapshot.session_data)

    def observe(self, ref: TaskRef) -> None:
        self.kept[ref.task_id] = ref
        self._added.set()

    @property
    def tasks(self) -> list[Task]:
        return [snapshot.task for snapshot in self.delivered]

    @property
    def seen(self) -> list[tuple[str, str]]:
        """ID and status of each delivered task."""
        return [(task.task_id, task.status) for task in self.tasks]

    async def wait_until(self, holds: Callable[[Snapshot], bool]) -> Snapshot:
        """The first delivered snapshot of which something holds."""
        while True:
            for snapshot in self.delivered:
                if holds(snapshot):
                    return snapshot
            await self._news.wait()

    async def until(self, count: int) -> None:
        """Return when so many have been delivered."""
        while len(self.delivered) < count:
            await self._news.wait()
