"""Watch a tool call live by its handle, and cancel one.

::

    pip install -e ".[examples]"
    python examples/progress.py

Orders coffee from ``demo_server.py`` and shows each step as it comes. A second order is cancelled at its
first step.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import anyio
from mcp_types import ElicitResult
from shared import running_server, text_of

from mcp_tasks_client import TaskCancelledError, TaskHandle, TasksClient


async def ask_person(context: object, params: object) -> ElicitResult:
    """The server's question, answered by the program itself."""
    return ElicitResult(action="accept", content={"milk": "oat"})


async def main(url: str, journal: Path) -> None:
    """Watch one order to its end, and cancel another one."""
    async with TasksClient(url, journal=journal, elicitation=ask_person) as client:
        print("1  An order, watched:")
        handle = await client.start_tool("brew", {"cups": 2})
        await watch(handle)
        print(f"     → {text_of(await handle.result())}")

        print("2  An order, cancelled at its first step:")
        handle = await client.start_tool("brew", {"cups": 9})
        await watch(handle, until_first_step=True)
        await handle.cancel()
        try:
            await handle.result()
        except TaskCancelledError as error:
            print(f"     → {error}")


async def watch(handle: TaskHandle, *, until_first_step: bool = False) -> None:
    """Show each change of a task with the seconds since the start. The loop ends with the task."""
    started = monotonic()
    async for task in handle.updates():
        print(f"     {monotonic() - started:4.1f} s  {task.status:<15} {task.status_message or ''}")
        if until_first_step and task.status_message:
            return  # the task goes on


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # stdout is a TextIOWrapper
    with TemporaryDirectory(prefix="progress-") as folder, running_server(Path(folder) / "log") as address:
        anyio.run(main, address, Path(folder) / "journal.db")
