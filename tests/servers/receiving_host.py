"""A host that runs tasks for a server of 2025-11-25, in a process of its own, for the tests to kill.

Usage: ``receiving_host.py URL JOURNAL STOP TOOL``. Prints a line when it has reached the point, and then does
no more than it did before until it is killed; it ends by itself when its stdin closes.

The server looks only every two seconds, so that another process is there before it does so again: what one
of the servers says to nobody is lost.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import anyio
from mcp_types import ElicitResult

from mcp_tasks_client import ReceivePolicy, TasksClient
from mcp_tasks_client.old.custody import Custody

POLL_INTERVAL_MS = 2000


async def reached() -> None:
    print("reached", flush=True)
    await anyio.sleep_forever()


async def main(url: str, journal: str, stop: str, tool: str) -> None:
    async def answer(context: Any, params: Any) -> ElicitResult:
        await anyio.sleep(0.3)  # the server has looked once by then
        if stop == "asked":
            await reached()
        return ElicitResult(action="accept", content={"name": "Ada"})

    end, keep = Custody.end, Custody.keep

    async def kept(self: Custody, record: Any) -> None:
        await keep(self, record)
        await reached()

    async def ended(self: Custody, record: Any) -> bool:
        await end(self, record)
        await reached()
        return True

    if stop == "answered":
        Custody.end = ended  # type: ignore[method-assign]  # the point to stop at
    if stop == "made":
        Custody.keep = kept  # type: ignore[method-assign]
    receive = ReceivePolicy(poll_interval_ms=POLL_INTERVAL_MS)
    async with TasksClient(url, journal=journal, elicitation=answer, receive=receive) as client:
        await client.call_tool(tool)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    anyio.run(main, *sys.argv[1:])
