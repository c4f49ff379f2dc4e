"""A server that plays lists of replies, its clock, and a journal that outlives clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp_types import CallToolResult, ElicitResult

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import ConnectionLostError, TasksClientError
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.testing import ManualClock, completed, scripted_client, text_result, working
from tests.kit.limit import limited
from tests.scripted_session import STALL, ScriptedSession

__all__ = ["ASK", "DONE", "LOST", "NO_JITTER", "TASK", "YES", "Asked", "World", "finish", "leave", "tasks_of"]

TASK = "task-0123456789abcdef"
SCOPE = Scope("scripted")
NO_JITTER = PollPolicy(jitter=0.0)
DONE = completed(TASK, text_result("done"))
ASK = {
    "method": "elicitation/create",
    "params": {
        "message": "How many?",
        "requestedSchema": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
        },
    },
}
YES = ElicitResult(action="accept", content={"n": 3})
LOST = ConnectionLostError("The connection broke.", retryable=True)


class World:
    """A server, its clock, and a journal that outlives clients.

    Args:
        session: Makes the server.
        script: What it plays.
    """

    def __init__(self, session: Callable[..., Any] = ScriptedSession, **script: Any) -> None:
        self.clock = ManualClock()
        script.setdefault("calls", [working(TASK, poll_interval_ms=1000)])
        script.setdefault("gets", {TASK: [DONE]})
        self.server = session(clock=self.clock, **script)
        self.journal = MemoryJournal()

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[TasksClient]:
        options = {"journal": self.journal, "poll": NO_JITTER, **options}
        with limited(60, lambda: [sent.method for sent in self.server.sent]):
            async with scripted_client(self.server, **options) as client:
                yield client

    async def call(self, client: TasksClient, *, within: float = 3600.0, **options: Any) -> CallToolResult:
        """``call_tool``, while time passes."""
        outcome: list[CallToolResult] = []

        async def run() -> None:
            outcome.append(await client.call_tool("tool", **options))

        await self.during(run, within)
        return outcome[0]

    async def during(self, work: Any, seconds: float) -> None:
        """Run something while time passes; exceptions come out as they are."""
        raised: list[Exception] = []

        async def guarded() -> None:
            try:
                await work()
            except Exception as error:
                raised.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guarded)
            await self.clock.advance(seconds)
        if raised:
            raise raised[0]

    async def error_of(self, work: Any) -> TasksClientError:
        """The error that something raises while an hour passes."""
        with pytest.raises(TasksClientError) as raised:
            await self.during(work, 3600)
        return raised.value

    def polled_at(self) -> list[float]:
        return [sent.at for sent in self.server.log("tasks/get")]

    async def only_record(self, scope: Scope = SCOPE) -> TaskRecord:
        async with self.journal:
            records = await self.journal.records(scope)
        assert len(records) == 1, records
        return records[0]


def tasks_of(
    count: int, *gets: Any, interval_ms: int = 1000, session: Callable[..., Any] = ScriptedSession
) -> World:
    """A world whose calls become tasks ``task-0``, ``task-1``, ..., at work unless told otherwise."""
    ids = [f"task-{number}" for number in range(count)]
    return World(
        session,
        calls=[working(one, poll_interval_ms=interval_ms) for one in ids],
        gets={one: list(gets) or [working(one, poll_interval_ms=interval_ms)] for one in ids},
    )


def finish(world: World, *task_ids: str) -> None:
    for one in task_ids:
        world.server.gets[one] = [completed(one, text_result(one))]


async def leave(world: World, count: int = 1, **options: Any) -> None:
    """Start tools in a client that closes at once."""
    async with world.client() as client:
        for _ in range(count):
            await client.start_tool("tool", **options)
            await world.clock.advance(0.01)


class Asked:
    """An elicitation callback that counts, and answers as told."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers) or [YES]
        self.keys: list[str] = []

    async def __call__(self, context: Any, params: Any) -> Any:
        self.keys.append(context.key)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await anyio.lowlevel.checkpoint()
        if answer is STALL:
            await anyio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        return answer
