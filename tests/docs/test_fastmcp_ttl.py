"""How long FastMCP keeps a question, as the page about servers says, by its own example."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from mcp_tasks_client import BlockingTasksClient

from .browser import wait_for
from .pages import ROOT, blocks_of
from .server import running

PAGE: Final = ROOT / "docs" / "guides" / "what-servers-do.md"
GIVEN: Final = 'mcp.add_extension(TasksExtension(url="memory://"))\n'


@pytest.mark.parametrize(("raised", "minutes"), [(False, 15), (True, 60)])
def test_a_question_waits_for_15_minutes_unless_the_server_says_otherwise(
    raised: bool, minutes: int, tmp_path: Path
) -> None:
    (example,) = [block for block in blocks_of(PAGE) if "execution_ttl" in block]
    longer = f'{example}\nmcp.add_extension(LongerTasks(url="memory://"))\n'
    with (
        running(tmp_path, {GIVEN: longer} if raised else None) as at,
        BlockingTasksClient(f"{at}mcp", journal=tmp_path / "journal.sqlite3", elicitation="later") as client,
    ):
        client.start_tool("deploy", {"service": "web"})
        (question,) = wait_for(client.questions)
        assert question.expires_at is not None
        assert minutes - 1 < (question.expires_at - time.time()) / 60 < minutes + 1
