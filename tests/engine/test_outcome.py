"""How the end of a call is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_tasks_client import Journal, MemoryJournal
from mcp_tasks_client.engine.outcome import read_outcome
from mcp_tasks_client.errors import RemoteProtocolError, TaskFailedError
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.machine.states import Failed, Finished
from mcp_tasks_client.testing import completed, text_result

from .other_process import OnDisk
from .world import TASK, World

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("code", "message", "told"),
    [
        (-32000, "No disk.", "ended in error -32000: No disk. To"),
        (-32000, "", "ended in error -32000. To"),
        (None, "No disk", "failed without saying why: No disk. To"),
        (None, "", "failed without saying why. To"),
    ],
)
async def test_a_failure_is_told_as_far_as_the_server_has_explained_it(
    code: Any, message: str, told: str
) -> None:
    end = Finished(outcome=Failed(code=code, message=message))
    record = TaskRecord(
        record_id="r", scope=Scope("here"), tool="dig", state=end, created_at=0.0, updated_at=0.0
    )
    with pytest.raises(TaskFailedError) as caught:
        await read_outcome(record, None, None)
    assert str(caught.value) == f"The call of 'dig' {told} try again, make a new call."


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_result_that_is_none_is_told_once_and_not_by_each_resume(kind: str, tmp_path: Path) -> None:
    """Half of a character in a member's name: no text that could be stored or shown has that."""
    memory = MemoryJournal()

    def journal() -> Journal:
        return memory if kind == "memory" else OnDisk(tmp_path / "journal.db", world.clock)

    world = World(gets={TASK: [completed(TASK, {**text_result("done"), "\ud800": 1})]})
    async with world.client(journal=journal()) as client:
        await client.start_tool("tool")
    async with world.client(journal=journal()) as client:
        (handle,) = await client.resume()
        with pytest.raises(RemoteProtocolError, match="the name of a member"):
            await world.during(handle.result, 60)
    async with world.client(journal=journal()) as client:
        assert await client.resume() == []
