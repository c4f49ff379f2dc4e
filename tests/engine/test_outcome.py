"""How the end of a call is told."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tasks_client.engine.outcome import read_outcome
from mcp_tasks_client.errors import TaskFailedError
from mcp_tasks_client.machine.record import Scope, TaskRecord
from mcp_tasks_client.machine.states import Failed, Finished

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
