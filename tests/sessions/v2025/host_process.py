"""A host at a server of 2025-11-25, in a process of its own, for the tests to kill where it says so.

Usage: ``host_process.py URL JOURNAL STOP TOOL``. Prints ``reached`` at the point, and then does nothing until
it is killed.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Final

import anyio
from mcp_types import ElicitResult

from mcp_tasks_client import TasksClient
from mcp_tasks_client.machine.states import Observing
from mcp_tasks_client.sessions.v2025.connection import OwnRequest
from mcp_tasks_client.sessions.v2025.http_connection import HttpConnection
from mcp_tasks_client.sessions.v2025.session_data import SessionData

CALLS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "asks": ("asks", {"hint_ms": 100}),
    "asks_twice": ("asks_twice", {"hint_ms": 100}),
    # The next question comes when the host is dead, and its successor is there.
    "asks_one_by_one": ("asks_twice", {"together": False, "duration_ms": 6000, "hint_ms": 100}),
}


async def reached(*_: Any, **__: Any) -> Any:
    print("reached", flush=True)
    await anyio.sleep_forever()


async def main(url: str, journal: str, stop: str, tool: str) -> None:
    name, arguments = CALLS[tool]
    questions = 2 if tool == "asks_twice" else 1

    async def answer(context: Any, params: Any) -> ElicitResult:
        while stop == "question-open":
            (record,) = await client.records()
            assert isinstance(record.state, Observing)
            # Of two questions the second comes right behind the first. Until it is journaled, it can be lost.
            if len(SessionData.read(record.state.session_data).open) == questions:
                await reached()
            await anyio.sleep(0.01)
        return ElicitResult(action="accept", content={"name": "Ada"})

    send_answer, request = HttpConnection.answer, HttpConnection.request

    async def responded(self: HttpConnection, *args: Any, **options: Any) -> None:
        await send_answer(self, *args, **options)
        await reached()

    async def requested(self: HttpConnection, own: OwnRequest) -> Any:
        await (anyio.sleep_forever() if own.method.startswith("tasks/") else anyio.sleep(0))
        return await request(self, own)

    match stop:
        case "task-created":
            HttpConnection.request = requested  # type: ignore[method-assign]
        case "answer-committed":
            HttpConnection.answer = reached  # type: ignore[method-assign]
        case "answer-sent":
            HttpConnection.answer = responded  # type: ignore[method-assign]
    async with TasksClient(url, journal=journal, elicitation=answer) as client:
        await client.start_tool(name, arguments, idempotency_key="k")
        await (reached() if stop == "task-created" else anyio.sleep_forever())


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
