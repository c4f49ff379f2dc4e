"""A host at a server of 2025-11-25, in a process of its own, for the tests to kill where it says so.

Usage: ``core_tasks_host.py URL JOURNAL STOP TOOL``. Prints a line when it has reached the point, and then
does nothing until it is killed; it ends by itself when its stdin closes.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
from mcp_types import ElicitResult

from mcp_tasks_client import TaskRecord, TasksClient
from mcp_tasks_client.old.sessions.http_peer import HttpPeer
from mcp_tasks_client.old.sessions.shapes_2025_11_25 import Memo
from mcp_tasks_client.old.states import Observing

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    # The next question comes when the host is dead, and the one who goes on is not there yet, or just so.
    # The server sets a time-to-live of its own, and a task does not tell whose it is.
    "slow_for_a_minute": ("slow", {"duration_ms": 300, "ttl_ms": 60_000}),
    "asks_unhurriedly": ("asks", {"hint_ms": 3000}),
    "asks_one_by_one": ("asks_twice", {"together": False, "duration_ms": 3000}),
    "asks_soon_after": ("asks_twice", {"together": False, "duration_ms": 1000}),
}

ANSWER = ElicitResult(action="accept", content={"name": "Ada"})


async def reached(*_: Any) -> Any:
    print("reached", flush=True)
    await anyio.sleep_forever()


async def answer(context: Any, params: Any) -> ElicitResult:
    print(f"asked: {params.message}", flush=True)
    return ANSWER


def questions(record: TaskRecord) -> int:
    return len(record.state.questions) if isinstance(record.state, Observing) else 0


def at_rest(record: TaskRecord) -> bool:
    """Whether its question has its answer, and nothing waits at the server, as far as the journal knows."""
    return (
        isinstance(record.state, Observing)
        and [one.stage for one in record.state.questions] == ["acknowledged"]
        and Memo.read(record.state.request_state).retrieval is None
    )


async def main(url: str, journal: str, stop: str, tool: str) -> None:
    callback: Any = answer

    async def think(context: Any, params: Any) -> Any:
        # Of two questions the second may come right behind the first: until it is journaled, it can be lost.
        while questions(*await client.records()) < (2 if tool == "asks_twice" else 1):
            await anyio.sleep(0.01)
        await reached()

    match stop:
        case "task-created":
            request = HttpPeer.request

            async def created(self: HttpPeer, method: str, *args: Any, **options: Any) -> Any:
                # What the server tells at once may have the question fetched, which then is lost.
                await (anyio.sleep_forever() if method.startswith("tasks/") else anyio.lowlevel.checkpoint())
                return await request(self, method, *args, **options)

            HttpPeer.request = created  # type: ignore[method-assign]  # the point to stop at
        case "question-open":
            callback = think
        case "reply-lost" | "replies-lost":
            request = HttpPeer.request

            async def lost(self: HttpPeer, method: str, *args: Any, **options: Any) -> Any:
                reply = await request(self, method, *args, **options)
                if method == "tools/call":
                    lost_replies.append(reply)
                    await (reached() if len(lost_replies) == wanted else anyio.sleep_forever())
                return reply

            wanted, lost_replies = (1 if stop == "reply-lost" else 2), list[Any]()
            HttpPeer.request = lost  # type: ignore[method-assign]  # the point to stop at
        case "answer-committed":
            HttpPeer.answer = reached  # type: ignore[method-assign]  # the point to stop at
        case "answer-sent":
            send = HttpPeer.answer

            async def sent(self: HttpPeer, *args: Any, **options: Any) -> None:
                await send(self, *args, **options)
                await reached()

            HttpPeer.answer = sent  # type: ignore[method-assign]  # the point to stop at
    async with TasksClient(url, journal=journal, elicitation=callback) as client:
        name, arguments = CALLS.get(tool, (tool, {"duration_ms": 300}))
        async with anyio.create_task_group() as others:
            if stop == "replies-lost":
                others.start_soon(partial(client.start_tool, name, arguments, idempotency_key="other"))
            await client.start_tool(name, arguments, idempotency_key="k")
        if stop == "task-created":
            await reached()
        while stop == "at-rest" and not at_rest(*await client.records()):
            await anyio.sleep(0.01)
        await (reached() if stop == "at-rest" else anyio.sleep_forever())


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    anyio.run(main, *sys.argv[1:])
