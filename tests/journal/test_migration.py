"""A journal that version 0.1.0 wrote is read, in whatever state its calls were."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_tasks_client.errors import JournalCorruptError
from mcp_tasks_client.journal.row import Row
from mcp_tasks_client.journal.sqlite import file as sqlite_file
from mcp_tasks_client.journal.sqlite.file import scripts
from mcp_tasks_client.journal.sqlite.journal import SqliteJournal
from mcp_tasks_client.machine.record import TaskRecord, dump_state
from mcp_tasks_client.machine.states import (
    Calling,
    Completed,
    Finished,
    Gathering,
    Gone,
    Observing,
    OutcomeUnknown,
    Question,
)
from mcp_tasks_client.protocol.task import read_task
from mcp_tasks_client.testing.samples import SCOPE, everybody, observing, record
from tests.journal.files import OneLoop, raw

pytestmark = pytest.mark.anyio

QUESTION = Question(
    key="q",
    digest="d",
    stage="answered",
    request={"method": "elicitation/create", "params": {"request_state": "not ours", "singly": True}},
    answer={"action": "accept"},
)


def given(number: int, state: Any, **changes: Any) -> TaskRecord:
    times = {"created_at": 1000.0 + number, "updated_at": 1001.5 + number}
    return record(record_id=f"record-{number}", state=state, **times, **changes)


ASKED = Observing(
    task=read_task(
        {
            "taskId": "task-4",
            "status": "input_required",
            "createdAt": "2026-07-28T00:00:00Z",
            "ttlMs": 60_000,
            "pollIntervalMs": 500,
            "inputRequests": {"q": {"method": "elicitation/create", "params": {"n": float("nan")}}},
        }
    ),
    received_at=1004.25,
    due_at=1005.0,
    wait_s=0.5,
    poll_interval_ms=500.0,
    ttl_ms=60_000.0,
    session_data="a session \ud83d",
    unchanged=3,
    questions=(QUESTION,),
    cancel="requested",
    reported=("x",),
)

EXPECTED = [
    given(
        1,
        Calling(round=2),
        idempotency_key="order-1",
        arguments_digest="ab" * 32,
        owner="lease/1",
        fence=1,
    ),
    given(
        2,
        Gathering(round=1, request_state="server's", questions=(QUESTION,)),
        idempotency_key="order-2",
    ),
    given(3, OutcomeUnknown(), idempotency_key="order-3"),
    given(4, ASKED, owner="lease/1", fence=7),
    given(
        5,
        Observing(
            task=read_task({"taskId": "task-5", "status": "working"}), received_at=1005.25, due_at=1006.0
        ),
    ),
    given(
        6,
        Finished(
            outcome=Completed(result={"content": [], "memo": "the server's", "singly": 1}),
            task=read_task({"taskId": "task-6", "status": "completed"}),
        ),
        idempotency_key="Bücher",
        delivered_at=1010.0,
    ),
    given(7, Finished(outcome=Gone(why="expired", message="gone"))),
]


@pytest.fixture
def old(path: Path) -> Path:
    script = Path(__file__).with_name("version_0_1_0.sql").read_text(encoding="utf-8")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def comparable(one: TaskRecord) -> tuple[TaskRecord, str]:
    """NaN is not equal to itself, but its text is."""
    return replace(one, state=Calling()), dump_state(one.state)


class TestVersion010(OneLoop):
    async def test_its_records_are_as_they_were(self, old: Path) -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(old) as journal:
                found = await journal.records(SCOPE)
                by_key = await journal.by_key(SCOPE, "Bücher")
                with pytest.raises(JournalCorruptError):
                    await journal.by_id("record-8")
                leased = {owner for owner, lease in (await journal.owners()).items() if lease is not None}
                taken = await journal.take("record-4", "new/1", leased)

        assert [comparable(one) for one in found] == [comparable(one) for one in EXPECTED]
        assert by_key == EXPECTED[5]
        assert taken is not None
        assert (taken.before, taken.record.fence) == ("lease/1", 8)

    async def test_its_states_lose_what_no_state_has_any_more_and_its_tasks_get_their_expiry(
        self, old: Path
    ) -> None:
        with raw(old) as connection:
            (unreadable,) = connection.execute(
                "SELECT state FROM records WHERE record_id = 'record-8'"
            ).fetchone()
        with anyio.fail_after(30):
            async with SqliteJournal(old):
                pass
        with raw(old) as connection:
            columns = [row[1] for row in connection.execute("PRAGMA table_info(records)")]
            rows = connection.execute("SELECT record_id, state, expires_at FROM records ORDER BY sequence")
            states = {record_id: (state, expires_at) for record_id, state, expires_at in rows}
            assert connection.execute("PRAGMA user_version").fetchone() == (len(scripts()),)
        assert "generation" not in columns
        assert states.pop("record-8") == (unreadable, None)
        keys = {name: set(json.loads(state)) for name, (state, _) in states.items()}
        assert not any({"memo", "singly"} & found for found in keys.values())
        assert "request_state" in keys["record-2"]
        assert "request_state" not in keys["record-4"]
        expiries = {name: expires_at for name, (_, expires_at) in states.items() if expires_at is not None}
        assert expiries == {"record-4": 1064.25}

    async def test_its_old_tasks_can_be_forgotten(self, old: Path) -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(old) as journal:
                assert await journal.prune(1064.5, 1064.5, await everybody(journal)) == 2
                pending = await journal.take_pending(SCOPE, "new/1", await everybody(journal))
        assert [one.record.record_id for one in pending] == ["record-5", "record-7"]


@pytest.mark.parametrize("version", [1, 2, 3])
class TestNames(OneLoop):
    """Records of older versions say neither whose they are nor who made them, and are everybody's."""

    async def test_a_record_of_an_older_version_has_none(
        self, path: Path, version: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given, known = record(state=observing(), idempotency_key="order-42"), scripts()
        row = Row.of(given)._asdict()
        added = {"label", "application", "origin"} | ({"expires_at"} if version < 3 else set())
        row = {name: value for name, value in row.items() if name not in added}
        row |= {"generation": ""} if version < 3 else {}
        with monkeypatch.context() as patched, anyio.fail_after(30):
            patched.setattr(sqlite_file, "scripts", lambda: known[:version])
            async with SqliteJournal(path):
                pass
        with raw(path) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (version,)
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO records ({', '.join(row)}) VALUES ({marks})", [*row.values()])
            connection.commit()

        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                assert await journal.records(SCOPE) == [given]
                (taken,) = await journal.take_pending(
                    SCOPE, "a/1", await everybody(journal), application="payroll"
                )
        assert taken.record.record_id == given.record_id
        assert (given.label, given.application, given.origin) == (None, None, None)
