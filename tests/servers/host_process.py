"""A host with a client of its own in a process of its own, for the tests to kill.

Usage: ``host_process.py URL JOURNAL STOP CLIENT``, where the client is ``mcp`` or ``fastmcp``. Prints a
line when it has reached the point, and then does nothing until it is killed; it ends by itself when its
stdin closes.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import anyio
from mcp_types import ElicitResult

from mcp_tasks_client import TasksExtension
from mcp_tasks_client.old.sessions.sdk import SdkSession

ANSWER = ElicitResult(action="accept", content={"name": "Ada"})


async def reached(*_: Any) -> Any:
    print("reached", flush=True)
    await anyio.sleep_forever()


def asked() -> ElicitResult:
    print("asked", flush=True)
    return ANSWER


async def main(*arguments: str) -> None:
    url, journal, stop, kind = arguments
    question_open = stop == "question-open"
    match stop:
        case "task-created":  # it is journaled before anything else is done with it
            SdkSession.get = reached  # type: ignore[method-assign, assignment]  # the point to stop at
        case "answer-committed":
            SdkSession.update = reached  # type: ignore[method-assign, assignment]  # the point to stop at
        case "update-sent":  # the server has the answer, we have no acknowledgement
            post = SdkSession.update

            async def update(self: SdkSession, ref: Any, answers: Any) -> None:
                await post(self, ref, answers)
                await reached()

            SdkSession.update = update  # type: ignore[method-assign]  # the point to stop at

    async def answer(context: Any, params: Any) -> ElicitResult:
        return await reached() if question_open else asked()

    extensions = [TasksExtension(journal=journal)]
    client: Any
    if kind == "fastmcp":
        import fastmcp

        async def handle(message: str, response_type: Any, params: Any, context: Any) -> Any:
            # FastMCP before 4.1 takes the SDK's own ElicitResult for the content.
            return (await answer(context, params)).content

        client = fastmcp.Client(url, extensions=extensions, elicitation_handler=handle)
    else:
        import mcp

        client = mcp.Client(url, extensions=extensions, elicitation_callback=answer)
    async with client:
        await client.call_tool("ask_name", {"seconds": 0.3})


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    anyio.run(main, *sys.argv[1:])
