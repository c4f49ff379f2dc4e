"""Records, leases and texts for the tests of journals, and functions that judge, listen and look."""

from __future__ import annotations

import threading
from collections.abc import Collection
from itertools import count
from typing import Any, Final

from anyio import to_thread

from ..journal.base import Journal, Lease
from ..machine.record import Scope, TaskRecord
from ..machine.states import Calling, Completed, Finished, Observing
from ..protocol.task import read_task

__all__ = [
    "SCOPE",
    "SURROGATE",
    "TEXTS",
    "Heard",
    "Source",
    "everybody",
    "finished",
    "lease",
    "observing",
    "only",
    "record",
    "with_key",
    "without_lease",
]

SCOPE: Final = Scope("https://mcp.example/", "alice")

SURROGATE: Final = "\ud83d"
"""A text that no encoding can carry, as JSON may hold it."""

TEXTS: Final = {
    "empty": "",
    "quotes": "'; DROP TABLE records; -- \"`",
    "newlines": "a\r\nb\n\tc\x0bd",
    "nul": "before\0after",
    "escapes": r"\x41 \u0041 \N{DASH} \\ %20",
    "other scripts": "Aufträge 注文 😀",
    "lone surrogate": f"a{SURROGATE}b",
    "two halves of a pair": "\ud83d\ude00",
    "64 KiB": "x" * 65_536,
    "like": "%_*?",
}
"""Texts that a medium may misread."""

_numbers = count()


def record(**changes: Any) -> TaskRecord:
    """A call that has just begun, with an ID of its own and these fields changed."""
    given: dict[str, Any] = {
        "record_id": f"record-{next(_numbers)}",
        "scope": SCOPE,
        "tool": "report",
        "state": Calling(),
        "created_at": 1_800_000_000.25,
        "updated_at": 1_800_000_001.5,
    }
    return TaskRecord(**given | changes)


def observing(task_id: str = "task-1", *, ttl_ms: float | None = None, **fields: Any) -> Observing:
    """The state of a task, with these fields of its snapshot. It was seen 1.25 seconds after the epoch."""
    task = read_task({"taskId": task_id, "status": "working", **fields})
    return Observing(task=task, received_at=1.25, due_at=2.5, ttl_ms=ttl_ms)


def finished(outcome: Any = None) -> Finished:
    """The state of a call that has its outcome, by itself an empty result."""
    return Finished(outcome=outcome or Completed(result={"content": []}))


def lease(lease_id: str, *, renewed_at: float = 1_800_000_000.0) -> Lease:
    """The lease of a process, for thirty seconds."""
    return Lease(lease_id, "host", "boot", "pids", 4711, 1.5, renewed_at, renewed_at + 30)


async def with_key(journal: Journal, scope: Scope, idempotency_key: str) -> TaskRecord | None:
    """The record of an idempotency key; ``None`` if there is none."""
    found = [one for one in await journal.records(scope) if one.idempotency_key == idempotency_key]
    assert len(found) <= 1, "two records hold one key"
    return found[0] if found else None


async def everybody(journal: Journal) -> set[str]:
    """The names of all owners of records, to be taken for gone."""
    return set(await journal.owners())


async def without_lease(journal: Journal) -> set[str]:
    """The names of the owners that no lease covers."""
    return {owner for owner, lease in (await journal.owners()).items() if lease is None}


async def only(journal: Journal, scope: Scope = SCOPE) -> TaskRecord:
    """The one record that a scope has."""
    (found,) = await journal.records(scope)
    return found


class Heard:
    """A listener in this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._of: list[str] = []

    def __call__(self, record_ids: Collection[str]) -> None:
        """Note that these records were told of."""
        with self._changed:
            self._of += record_ids
            self._changed.notify_all()

    async def wait_for(self, record_id: str, within_s: float = 10.0) -> bool:
        """Whether it is told of a record in time."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: record_id in self._of, within_s)

        return await to_thread.run_sync(wait)


class Source:
    """A source of a lease that is due when a test says so.

    Attributes:
        next: The lease that is due, or the error that :meth:`due` raises.
        told: For each renewal, when it was and whether the lease before had lapsed.
        is_held: Whether a client holds the lease.
        gone: Owners that have ended without a release, and that the journal is to release.
    """

    lease_id = "a"

    def __init__(self) -> None:
        self.next: Lease | Exception | None = None
        self.told: list[tuple[float, bool]] = []
        self.is_held = True
        self.gone: list[str] = []

    def due(self) -> Lease | None:
        """The lease that the test has set."""
        if isinstance(self.next, Exception):
            raise self.next
        return self.next

    def renewed(self, lease: Lease, *, had_lapsed: bool) -> None:
        """Note that the journal has stored it."""
        self.told.append((lease.renewed_at, had_lapsed))
        self.next = None  # last, for a test in another thread waits for it

    def ended(self) -> list[str]:
        """The owners that the test has set."""
        return self.gone.copy()

    def released(self, names: Collection[str]) -> None:
        """Note that the journal has released them."""
        self.gone = [name for name in self.gone if name not in names]

    def end(self) -> bool:
        """Give the lease up, unless a client holds it."""
        return not self.is_held
