"""Real client processes, killed with SIGKILL at named points, and a second life over their journal."""

from __future__ import annotations

import queue
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest
from mcp_types import ElicitResult, TextContent

from mcp_tasks_client import OutcomeUnknownError, TaskHandle, TasksClient
from tests._forked import Program
from tests._requirements import requirement
from tests.real_server import RealServer

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 30.0
ARGUMENTS: Final = {"seconds": 0.3}


def live_and_die(url: str, journal: Path, stop: str) -> list[str]:
    """Run a host until it says that it has reached the point; kill it; return what it said."""
    lines: queue.Queue[str] = queue.Queue()
    said: list[str] = []
    with Program("-m", "tests.campaigns.kill.host", url, journal, stop, text=True) as process:
        reader = threading.Thread(
            target=lambda out: [*map(lines.put, map(str.strip, out))], args=[process.stdout]
        )
        reader.start()
        try:
            while "reached" not in said:
                said.append(lines.get(timeout=LIMIT_S))
        finally:
            process.kill()
            reader.join(LIMIT_S)
    return said


class Second:
    """The second life: counts what it is asked."""

    def __init__(self, server: RealServer, journal: Path) -> None:
        self.server = server
        self.journal = journal
        self.asked = 0

    async def answer(self, context: Any, params: Any) -> ElicitResult:
        self.asked += 1
        return ElicitResult(action="accept", content={"name": "Grace"})

    def client(self) -> TasksClient:
        return TasksClient(self.server.url, journal=self.journal, elicitation=self.answer)

    async def task_id(self) -> str | None:
        """What the dead process left in the journal."""
        async with self.client() as client:
            (record,) = await client.records()
        return record.task_id

    async def resumed(self) -> tuple[TaskHandle, str]:
        with anyio.fail_after(LIMIT_S):
            async with self.client() as client:
                (handle,) = await client.resume()
                (block,) = (await handle.result()).content
                assert isinstance(block, TextContent)
                return handle, block.text


@requirement("persist:task-ids")
@pytest.mark.parametrize(
    ("stop", "first", "second", "greeted", "anyio_backend"),
    [
        ("task-created", 0, 1, "Grace", "trio"),
        ("question-open", 0, 1, "Grace", "asyncio"),
        ("answer-committed", 1, 0, "Ada", "trio"),
        ("update-sent", 1, 0, "Ada", "asyncio"),
        ("result-committed", 1, 0, "Ada", "asyncio"),
        ("in-the-block", 1, 0, "Ada", "trio"),
    ],
)
async def test_a_killed_process_is_carried_on_by_another_with_the_same_task(
    real_server: RealServer,
    tmp_path: Path,
    stop: str,
    first: int,
    second: int,
    greeted: str,
    anyio_backend: str,
) -> None:
    journal = tmp_path / "journal.sqlite3"
    said = await anyio.to_thread.run_sync(live_and_die, real_server.url, journal, stop)
    assert said.count("asked") == first
    life = Second(real_server, journal)
    task_id = await life.task_id()
    assert task_id is not None
    handle, result = await life.resumed()
    assert handle.task_id == task_id, "the same task"
    assert result == f"Hello, {greeted}"
    assert life.asked == second
    assert len(real_server.witness(task_id, "tools/call")) == 1
    answers = real_server.witness(task_id, "tasks/update")
    assert {tuple(update.input_keys) for update in answers} == {tuple(answers[0].input_keys)}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_process_killed_between_call_and_reply_leaves_an_unknown_outcome(
    real_server: RealServer, tmp_path: Path, anyio_backend: str
) -> None:
    journal = tmp_path / "journal.sqlite3"
    await anyio.to_thread.run_sync(live_and_die, real_server.url, journal, "call-sent")
    life = Second(real_server, journal)
    assert await life.task_id() is None
    with anyio.fail_after(LIMIT_S):
        async with life.client() as client:
            with pytest.raises(OutcomeUnknownError) as caught:
                await client.call_tool("ask_name", ARGUMENTS, idempotency_key="k")
            assert caught.value.record is not None
            assert await client.resume() == []
            result = await client.call_tool("ask_name", ARGUMENTS, idempotency_key="k", on_unknown="resend")
            assert not result.is_error


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_second_life_polls_no_sooner_than_the_first_would_have(
    real_server: RealServer, tmp_path: Path, anyio_backend: str
) -> None:
    journal = tmp_path / "journal.sqlite3"
    await anyio.to_thread.run_sync(live_and_die, real_server.url, journal, "question-open")
    life = Second(real_server, journal)
    task_id = await life.task_id()
    await life.resumed()
    polls = [poll.at for poll in real_server.witness(task_id, "tasks/get")]
    assert min(later - earlier for earlier, later in pairwise(polls)) >= 0.05
