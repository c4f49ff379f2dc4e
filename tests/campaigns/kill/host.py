"""A host in a process of its own, to be killed: it stops at a named point and says so.

``python -m tests.campaigns.kill.host URL JOURNAL STOP`` prints a line when it has reached the point, and then
does nothing until it is killed.
"""

from __future__ import annotations

import sys
from typing import Any, Final, Literal, NoReturn

import anyio
from mcp_types import ElicitResult

from mcp_tasks_client import Task, TasksClient
from mcp_tasks_client.engine.environment import Environment
from mcp_tasks_client.engine.observer import Observer, Point
from mcp_tasks_client.machine.record import TaskRecord

Stop = tuple[Literal["before", "after"], Point]

STOPS: Final[dict[str, Stop]] = {
    "task-created": ("after", "commit: TaskCreated"),
    "call-sent": ("after", "send: tools/call"),  # the reply has come, and has not been looked at
    "question-open": ("before", "send: a question to the host"),
    "answer-committed": ("after", "commit: AnswerReady"),
    "update-sent": ("after", "send: tasks/update"),
}
"""Besides, ``result-committed``: the host is told of the end, and has not got the result; and
``in-the-block``: it has got the result, in a block that is not left."""


async def reach() -> NoReturn:
    print("reached", flush=True)
    await anyio.sleep_forever()
    raise AssertionError("for ever is over")


class StopAt(Observer):
    """Stops at one point."""

    def __init__(self, stop: Stop | None) -> None:
        self._stop = stop

    async def before(self, point: Point, record: TaskRecord | None) -> None:
        if self._stop == ("before", point):
            await reach()

    async def after(self, point: Point, record: TaskRecord | None) -> None:
        if self._stop == ("after", point):
            await reach()


async def answer(context: Any, params: Any) -> ElicitResult:
    print("asked", flush=True)
    return ElicitResult(action="accept", content={"name": "Ada"})


async def main(url: str, journal: str, stop: str) -> None:
    async def on_update(task: Task) -> None:
        if stop == "result-committed" and task.terminal:
            await reach()

    environment = Environment(observer=StopAt(STOPS.get(stop)))
    async with TasksClient(url, journal=journal, elicitation=answer, environment=environment) as client:
        if stop == "in-the-block":
            handle = await client.start_tool("ask_name", {"seconds": 0.3}, idempotency_key="k")
            async with handle.outcome():
                await anyio.sleep(1.5)  # the journal has written by itself what it writes a little later
                await reach()
        await client.call_tool("ask_name", {"seconds": 0.3}, idempotency_key="k", on_update=on_update)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
