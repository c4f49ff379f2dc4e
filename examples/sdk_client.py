"""The official SDK's client with durable tasks: one argument, and ``call_tool`` as it always was.

::

    pip install -e ".[examples]"
    python examples/sdk_client.py

Orders coffee twice from ``demo_server.py``. The first order is waited for. The second is given up
after half a second, by the host's own time-out, and picked up again from the journal.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from mcp import Client
from mcp_types import CallToolResult, ElicitResult, TextContent
from shared import running_server

from mcp_tasks_client import TasksClient, TasksExtension, WaitTimeoutError


async def ask_person(context: object, params: object) -> ElicitResult:
    """The callback that the host has anyway; the questions of tasks come to it as well."""
    return ElicitResult(action="accept", content={"milk": "oat"})


async def show(progress: float, total: float | None, message: str | None) -> None:
    """The host's progress callback; it hears what a task is doing."""
    print(f"     {message}")


async def main(url: str, journal: Path) -> None:
    """Use the client as ever."""
    tasks = TasksExtension(journal=journal)
    async with Client(url, extensions=[tasks], elicitation_callback=ask_person) as client:
        print("1  An order, waited for:")
        result = await client.call_tool("brew", {"cups": 2}, progress_callback=show)
        print(f"     → {text_of(result)}")

        print("2  An order that the host has no patience for:")
        try:
            await client.call_tool("brew", {"cups": 1}, read_timeout_seconds=0.5, progress_callback=show)
        except WaitTimeoutError as error:
            print(f"     {error}")

    print("3  Later, on another connection, what is left unfinished:")
    async with (
        Client(url, extensions=[tasks], elicitation_callback=ask_person) as client,
        TasksClient(client) as durable,
    ):
        for handle in await durable.resume():
            print(f"     → {text_of(await handle.result())}")


def text_of(result: CallToolResult) -> str:
    """What the tool said."""
    return " ".join(block.text for block in result.content if isinstance(block, TextContent))


if __name__ == "__main__":
    with TemporaryDirectory(prefix="sdk-client-") as folder, running_server(Path(folder) / "log") as address:
        anyio.run(main, address, Path(folder) / "journal.db")
