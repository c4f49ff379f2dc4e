"""What a process does that adopts calls and sees them through, and the log that it keeps of it."""

from __future__ import annotations

import json
from typing import Final

import anyio

from mcp_tasks_client import DrivenElsewhereError, TaskHandle, TasksClient, TasksClientError

from .torture.evidence import Log

__all__ = ["adopt_all"]

_PAUSE_S: Final = 0.5


async def adopt_all(client: TasksClient, log: Log, limit: int | None = None) -> None:
    """Adopt calls, as many at once as ``limit``. What fails is written down, and tried again."""

    async def see(handle: TaskHandle) -> None:
        while True:
            try:
                async with handle.outcome() as result:
                    told = json.loads(result.content[0].text)  # type: ignore[union-attr]  # a text
                    log.write("delivered", task_id=handle.task_id, **told)
                log.write("acknowledged", task_id=handle.task_id, **told)
                return
            except TasksClientError as error:
                log.write("lost", task_id=handle.task_id, text=repr(error))
                # Whoever has it now sees it through. Awaited again, it would give us the outcome as well.
                if handle.done or isinstance(error, DrivenElsewhereError):
                    return
                await anyio.sleep(_PAUSE_S)

    async with anyio.create_task_group() as tasks:
        print("ready", flush=True)
        adopted = client.adopt(limit=limit)
        while True:
            try:
                async for handle in adopted:
                    log.write("resumed", task_id=handle.task_id)
                    tasks.start_soon(see, handle)
            except TasksClientError as error:
                log.write("lost", text=repr(error))
                await anyio.sleep(_PAUSE_S)
