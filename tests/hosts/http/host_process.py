"""A host in a process of its own, to be killed.

``python -m tests.hosts.http.host_process URL JOURNAL TOOL``. An ``mcp.Client`` whose HTTP client has the
transport calls the tool. Prints ``asked`` when asked, and does not answer.
"""

from __future__ import annotations

import sys
from typing import Any

import anyio
import mcp
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from mcp_tasks_client import tasks_http_client


async def ask(context: Any, params: Any) -> ElicitResult:
    print("asked", flush=True)
    await anyio.sleep_forever()
    raise AssertionError("for ever is over")


async def main(url: str, journal: str, tool: str) -> None:
    http = tasks_http_client(journal=journal, elicitation=ask)
    async with http, mcp.Client(streamable_http_client(url, http_client=http)) as client:
        await client.call_tool(tool, {})


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
