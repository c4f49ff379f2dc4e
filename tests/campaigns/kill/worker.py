"""A worker in a process of its own, to be killed: it adopts calls, sees them through, and says so.

``python -m tests.campaigns.kill.worker URL JOURNAL LIMIT`` goes on until it is killed.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import anyio
from mcp_types import ElicitResult

from mcp_tasks_client import TaskHandle, TasksClient
from mcp_tasks_client.engine.environment import Environment

__all__ = ["LEASE_S"]

LEASE_S: Final = 5.0


async def answer(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def see(handle: TaskHandle) -> None:
    async with handle.outcome() as result:
        text = result.content[0].text  # type: ignore[union-attr]  # a text
    print(f"done {handle.task_id} {text}", flush=True)


async def main(url: str, journal: str, limit: str) -> None:
    environment = Environment(lease_s=LEASE_S)
    async with (
        TasksClient(url, journal=journal, elicitation=answer, environment=environment) as client,
        anyio.create_task_group() as tasks,
    ):
        print("ready", flush=True)
        async for handle in client.adopt(int(limit)):
            print(f"adopted {handle.task_id}", flush=True)
            tasks.start_soon(see, handle)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
