"""Instructions that other processes leave in a journal file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import anyio
import pytest
from anyio import to_thread

from mcp_tasks_client import Instruction, SqliteJournal
from mcp_tasks_client.journal.sqlite.execution import STATEMENTS
from mcp_tasks_client.testing.samples import Heard, observing, record

INSTRUCTED: Final = "instructed", False, 1

pytestmark = pytest.mark.anyio

YES = Instruction("answer: name", '{"action":"accept"}', 1_800_000_002.0)


async def test_another_process_is_told_within_seconds(tmp_path: Path) -> None:
    given, heard = record(state=observing()), Heard()
    async with SqliteJournal(tmp_path / "journal.sqlite3") as journal:
        await journal.save(given)
        stop = journal.listen(heard)
        assert not await heard.wait_for(given.record_id, 0.1)
        await to_thread.run_sync(leave_from_outside, journal.path, given.record_id)
        assert await heard.wait_for(given.record_id, 30.0)
        stop()


async def test_a_look_at_what_others_left_that_fails_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given, heard, statement = record(state=observing()), Heard(), STATEMENTS("instructed", in_scope=False)
    async with SqliteJournal(tmp_path / "journal.sqlite3") as journal:
        await journal.save(given)
        stop = journal.listen(heard)
        assert not await heard.wait_for(given.record_id, 1.5), "it has looked already, and found nothing"
        monkeypatch.setitem(STATEMENTS._filled, INSTRUCTED, statement._replace(text="SELECT 1 FROM nowhere"))
        await to_thread.run_sync(leave_from_outside, journal.path, given.record_id)
        with anyio.fail_after(30):
            while "no such table: nowhere" not in caplog.text:
                await anyio.sleep(0.05)
        monkeypatch.setitem(STATEMENTS._filled, INSTRUCTED, statement)
        assert await heard.wait_for(given.record_id)
        stop()


def leave_from_outside(path: Path, record_id: str) -> None:
    """Leave an instruction by another connection to the file, as another process has it."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO instructions (record_id, name, body, at, heeded) VALUES (?, ?, ?, ?, 0)",
            (record_id, *YES[:3]),
        )
