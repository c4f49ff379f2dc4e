"""FastMCP's client with durable tasks: the extension takes the place of FastMCP's own.

::

    pip install -e ".[examples]"
    python examples/fastmcp_client.py

Orders coffee from ``demo_server.py`` with FastMCP's ``call_tool``, and then with a handle and an
idempotency key through the same connection.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from fastmcp import Client
from shared import running_server

from mcp_tasks_client import TasksClient, TasksExtension


async def ask_person(message: str, response_type: Any, params: Any, context: Any) -> dict[str, str]:
    """FastMCP's elicitation handler, as the host has it anyway."""
    print(f"     ? {message}")
    return {"milk": "oat"}


async def show(progress: float, total: float | None, message: str | None) -> None:
    """FastMCP's progress handler; it hears what a task is doing."""
    print(f"     {message}")


async def main(url: str, journal: Path) -> None:
    """Use the client as ever, and then for a little more."""
    tasks = TasksExtension(journal=journal)
    async with Client(url, extensions=[tasks], elicitation_handler=ask_person) as client:
        print("1  An order, waited for:")
        result = await client.call_tool("brew", {"cups": 2}, progress_handler=show)
        print(f"     → {result.data}")

        print("2  The same with a key: however often this runs, there is one order.")
        async with TasksClient(client) as durable:
            for _ in range(2):
                again = await durable.call_tool("brew", {"cups": 1}, idempotency_key="order-42")
                print(f"     → {again.structured_content}")


if __name__ == "__main__":
    with TemporaryDirectory(prefix="fastmcp-client-") as folder, running_server(Path(folder) / "log") as at:
        anyio.run(main, at, Path(folder) / "journal.db")
