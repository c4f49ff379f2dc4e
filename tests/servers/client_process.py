"""A host in a process of its own, for the tests to kill: stops at a named point and says so.

Usage: ``client_process.py URL JOURNAL STOP``. Prints a line when it has reached the point, and then
does nothing until it is killed; it ends by itself when its stdin closes.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import anyio
from mcp_types import ElicitResult

from mcp_tasks_client import TasksClient
from mcp_tasks_client.old.scheduler import Scheduler
from mcp_tasks_client.old.sessions.base import ToolCall
from mcp_tasks_client.old.sessions.http import HttpSession

ANSWER = ElicitResult(action="accept", content={"name": "Ada"})


async def reached(*_: Any) -> Any:
    print("reached", flush=True)
    await anyio.sleep_forever()


async def answer(context: Any, params: Any) -> ElicitResult:
    print("asked", flush=True)
    return ANSWER


async def main(url: str, journal: str, stop: str) -> None:
    callback: Any = answer
    match stop:
        case "call-sent":  # the request has arrived, its reply has not been looked at
            send = HttpSession.call

            async def call(self: HttpSession, call: Any, leaving: Any) -> Any:
                await send(self, call, leaving)
                await reached()

            HttpSession.call = call  # type: ignore[method-assign]  # the point to stop at
        case "question-open":
            callback = reached
        case "answer-committed":
            HttpSession.update = reached  # type: ignore[method-assign]  # the point to stop at
        case "update-sent":  # the server has the answer, we have no acknowledgement
            post = HttpSession.update

            async def update(self: HttpSession, ref: Any, answers: Any) -> None:
                await post(self, ref, answers)
                await reached()

            HttpSession.update = update  # type: ignore[method-assign]  # the point to stop at
        case "result-committed":
            Scheduler.wait = reached  # type: ignore[method-assign]  # nobody gets the result
    async with TasksClient(url, journal=journal, elicitation=callback) as client:
        if stop == "task-created":
            await client.start_tool("ask_name", {"seconds": 0.3}, idempotency_key="k")
            await reached()
        if stop == "result-committed":
            call = ToolCall(name="ask_name", arguments={"seconds": 0.3})
            drive = await client._engine._begin(call, "k", "raise")
            await client._engine.scheduler.keep(drive)
            while not drive.record.finished:
                await drive.change()
            await reached()
        await client.call_tool("ask_name", {"seconds": 0.3}, idempotency_key="k")


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    anyio.run(main, *sys.argv[1:])
