"""One small host, which runs on every release that is supported: ``python host.py WAY URL JOURNAL``.

It makes a call that asks, abandons another one, and resumes that over the journal. ``transport`` is for
releases of ``mcp`` that know no extensions; the other ways need those.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

sys.path[0] = str(Path(__file__).parents[3])  # where the library is

from mcp_tasks_client import PollPolicy, TasksClient  # noqa: E402  # found only now

LIMIT_S = 60.0
POLL = PollPolicy(floor_s=0.05)


def answer(context: Any, params: Any) -> Any:
    from mcp_types import ElicitResult

    return ElicitResult(action="accept", content={"name": "Ada"})


async def answer_sdk(context: Any, params: Any) -> Any:
    from mcp.types import ElicitResult  # of the host's own release

    return ElicitResult(action="accept", content={"name": "Ada"})


@asynccontextmanager
async def connect(way: str, url: str, journal: str) -> AsyncIterator[Any]:
    """What the host calls tools with."""
    if way == "url":
        async with TasksClient(url, journal=journal, elicitation=answer, poll=POLL) as client:
            yield client
    elif way == "transport":
        from mcp import ClientSession
        from mcp.client import streamable_http

        from mcp_tasks_client import TasksTransport

        # The name of the first releases, which the last ones have still.
        connecting: Any = vars(streamable_http)["streamablehttp_client"](url, terminate_on_close=False)
        transport = TasksTransport(connecting, endpoint=url, journal=journal, poll=POLL)
        async with (
            transport as (read, write, *_),
            ClientSession(read, write, elicitation_callback=answer_sdk) as session,
        ):
            await session.initialize()
            yield session
    else:
        import importlib

        from mcp_tasks_client import TasksExtension

        tasks = TasksExtension(journal=journal, elicitation=answer, poll=POLL)
        async with importlib.import_module(way).Client(url, extensions=[tasks]) as client:
            yield client


async def main(way: str, url: str, journal: str) -> None:
    asking, resting = ("asks", "slow") if way == "transport" else ("ask", "rest")
    duration: dict[str, Any] = {"duration_ms": 2_000} if way == "transport" else {}
    with anyio.fail_after(LIMIT_S):
        async with connect(way, url, journal) as client:
            (block,) = (await client.call_tool(asking)).content
            assert block.text == "Hello, Ada", block
            with anyio.move_on_after(1.0):
                await client.call_tool(resting, duration)
                raise AssertionError("the call was not abandoned")
            if way in ("mcp", "fastmcp"):
                async with TasksClient(client) as tasks:
                    await resume(tasks)
        if way in ("url", "transport"):
            async with TasksClient(url, journal=journal, poll=POLL) as tasks:
                await resume(tasks)
    print("ok")


async def resume(tasks: TasksClient) -> None:
    (handle,) = await tasks.resume()
    (block,) = (await handle.result()).content
    assert block.text == "rested", block  # type: ignore[union-attr]  # it is text


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
