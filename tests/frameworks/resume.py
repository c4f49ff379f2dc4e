"""The other process: ``resume.py URL FILE`` brings home what a killed recipe has left in its journal."""

from __future__ import annotations

import asyncio
import sys

from mcp_tasks_client import TasksClient


async def main(url: str, journal: str) -> None:
    async with TasksClient(url, journal=journal) as client:
        for handle in await client.resume():
            result = await handle.result()
            print(f"{handle.tool}:", *(getattr(block, "text", block.type) for block in result.content))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
