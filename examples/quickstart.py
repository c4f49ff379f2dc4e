"""Kill a client in the middle of a tool call, and let another bring the result home.

::

    pip install -e ".[examples]"
    python examples/quickstart.py

Starts a real FastMCP server (``demo_server.py``) on loopback. A first client calls its slow tool
and is killed without warning. A second client, in a process of its own, finds the call in the
journal, answers the server's question and gets the result.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from shared import ask_person, narrator, python, running_server, text_of

from mcp_tasks_client import TasksClient


async def call(url: str, journal: str) -> None:
    """The first client makes an ordinary call. It will not live to see the result."""
    async with TasksClient(url, journal=journal, elicitation=ask_person) as client:
        result = await client.call_tool("brew", {"cups": 2}, on_update=narrator())
        print(text_of(result))


async def look(url: str, journal: str) -> None:
    """What the journal holds. Nothing is sent to the server."""
    async with TasksClient(url, journal=journal) as client:
        records = await client.records()
        for record in records:
            # A task ID is a credential: never all of it.
            print(f"     {record.tool}  task {(record.task_id or '-')[:6]}…  {record.status}")
        if not records:
            print("     nothing")


async def resume(url: str, journal: str) -> None:
    """The second client takes up whatever the journal holds."""
    async with TasksClient(url, journal=journal, elicitation=ask_person) as client:
        for handle in await client.resume():
            print(f"     {handle.tool}  task {(handle.task_id or '-')[:6]}…")
            print(f"     → {text_of(await handle.result())}")


def main() -> None:
    """Play the whole story."""
    with TemporaryDirectory(prefix="quickstart-") as folder:
        journal = str(Path(folder, "journal.db"))
        print("1  A coffee machine starts: a FastMCP server, in a process of its own.")
        with running_server(Path(folder, "server.log")) as url:
            print("2  A client orders two cups, which takes a while …")
            with python(__file__, "call", url, journal, stdout=subprocess.PIPE, text=True) as first:
                for line in first.stdout or ():
                    print(line, end="")
                    if "working: " in line:
                        break  # the end of the block kills it
            print("   … and is killed with SIGKILL. Its journal holds:")
            anyio.run(look, url, journal)
            print("3  A second client opens the same journal, and finds the task.")
            with python(__file__, "resume", url, journal) as second:
                if second.wait(timeout=60):
                    sys.exit("the second client failed; its error is above")
            print("4  The coffee is that of order 1: there was no other. The journal holds:")
            anyio.run(look, url, journal)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # three processes tell this story
    match sys.argv[1:]:
        case ["call", url, journal]:
            anyio.run(call, url, journal)
        case ["resume", url, journal]:
            anyio.run(resume, url, journal)
        case _:
            main()
