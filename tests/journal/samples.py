"""Records, leases and judges that the tests of journals share."""

from __future__ import annotations

from itertools import count
from typing import Any, Final

from mcp_tasks_client.journal.base import Journal, Lease
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.machine.states import Calling, Completed, Finished, Observing
from mcp_tasks_client.protocol.task import read_task

__all__ = ["SCOPE", "everybody", "finished", "lease", "observing", "only", "record", "without_lease"]

SCOPE: Final = Scope("https://mcp.example/", "alice")

_numbers = count()


def record(**changes: Any) -> TaskRecord:
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
    task = read_task({"taskId": task_id, "status": "working", **fields})
    return Observing(task=task, received_at=1.25, due_at=2.5, ttl_ms=ttl_ms)


def finished(outcome: Any = None) -> Finished:
    return Finished(outcome=outcome or Completed(result={"content": []}))


def lease(lease_id: str, *, renewed_at: float = 1_800_000_000.0) -> Lease:
    return Lease(lease_id, "host", "boot", "pids", 4711, 1.5, renewed_at, renewed_at + 30)


async def everybody(journal: Journal) -> set[str]:
    """All who own a record, to be taken for gone."""
    return set(await journal.owners())


async def without_lease(journal: Journal) -> set[str]:
    """Those of them whom no lease covers."""
    return {owner for owner, lease in (await journal.owners()).items() if lease is None}


async def only(journal: Journal, scope: Scope = SCOPE) -> TaskRecord:
    (found,) = await journal.records(scope)
    return found
