"""A host in a process of its own, which makes one call and leaves its questions to whoever has the journal.

``python -m tests.other_host URL JOURNAL TOOL`` prints ``asked`` once the tool has asked something or has
begun, and then how the call ends: the text of its result, or the name of the error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
from anyio import to_thread

from mcp_tasks_client import TasksClient, TasksClientError
from tests._forked import Program
from tests._results import text
from tests.real_server import START_LIMIT_S, first_line

__all__ = ["OtherHost"]


class OtherHost:
    """The process, as a test sees it."""

    def __init__(self, process: Program) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def calling(cls, url: str, journal: Path, tool: str) -> Iterator[OtherHost]:
        """Start it. It is killed at the end of the block if it still runs."""
        with Program("-m", __name__, url, journal, tool) as process:
            try:
                yield cls(process)
            finally:
                process.kill()

    async def line(self) -> str:
        """The next line that it prints; empty if there is none."""
        line = await to_thread.run_sync(first_line, self._process.stdout, START_LIMIT_S)
        return line.decode().strip()

    def kill(self) -> None:
        """End it by SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()


async def main(url: str, journal: str, tool: str) -> None:
    async with TasksClient(url, journal=journal, elicitation="later") as client:
        handle = await client.start_tool(tool)
        async for task in handle.updates():
            if task.status == "input_required" or tool == "cancelable":
                break
        print("asked", flush=True)
        try:
            print(text(await handle), flush=True)
        except TasksClientError as error:
            print(type(error).__name__, flush=True)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
