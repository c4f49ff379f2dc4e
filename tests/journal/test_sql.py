"""What the journals in a database promise of the moments between two of their statements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_tasks_client import MemoryJournal, PostgresJournal, SqliteJournal
from mcp_tasks_client.journal.sql import SqlJournal
from mcp_tasks_client.testing.samples import SCOPE, finished, observing, record

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlJournal]:
    made: SqlJournal = MemoryJournal()
    if request.param == "sqlite":
        made = SqliteJournal(tmp_path / "journal.sqlite3")
    elif request.param == "postgres":
        made = request.getfixturevalue("postgres_journal")()
        assert isinstance(made, PostgresJournal)
    with anyio.fail_after(30):
        async with made:
            yield made


async def test_a_record_that_is_delivered_after_the_look_is_not_taken(
    journal: SqlJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await journal.save(given := record(state=finished(), idempotency_key="order-42"))
    look = journal._row

    async def look_too_early(*args: Any, **values: str) -> Any:
        monkeypatch.undo()
        row = await look(*args, **values)
        journal.deliver(9.0, {given.record_id: 0})
        return row

    monkeypatch.setattr(journal, "_row", look_too_early)
    taken = await journal.take(given.record_id, "a/1")
    assert taken == (replace(given, delivered_at=9.0, updated_at=9.0), None)


async def test_a_record_that_another_takes_after_the_look_is_the_others(
    journal: SqlJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await journal.save(given := record(state=observing()))
    look = journal._row

    async def look_too_early(*args: Any, **values: str) -> Any:
        monkeypatch.undo()
        row = await look(*args, **values)
        await journal.take(given.record_id, "b/1")
        return row

    monkeypatch.setattr(journal, "_row", look_too_early)
    taken = await journal.take(given.record_id, "a/1")
    assert taken == (replace(given, owner="b/1", fence=1), "b/1")


async def test_of_many_a_record_that_is_delivered_after_the_look_is_not_taken(
    journal: SqlJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await journal.save(ends := record(state=finished(), idempotency_key="order-42", created_at=1.0))
    await journal.save(waits := record(state=observing(), created_at=2.0))
    rows = journal._rows

    async def look_too_early(statement: str, **values: Any) -> Any:
        found = await rows(statement, **values)
        if statement == "free":
            journal.deliver(9.0, {ends.record_id: 0})
        return found

    monkeypatch.setattr(journal, "_rows", look_too_early)
    taken = await journal.take_pending(SCOPE, "a/1")
    assert [one.record.record_id for one in taken] == [waits.record_id]
    monkeypatch.undo()
    assert await journal.by_id(ends.record_id) == replace(ends, delivered_at=9.0, updated_at=9.0)


async def test_of_many_a_record_that_another_takes_after_the_look_is_the_others(
    journal: SqlJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [record(state=observing(), created_at=float(number)) for number in range(3)]
    for one in given:
        await journal.save(one)
    rows = journal._rows

    async def look_too_early(statement: str, **values: Any) -> Any:
        found = await rows(statement, **values)
        if statement == "free":
            await journal.take(given[0].record_id, "b/1")
        return found

    monkeypatch.setattr(journal, "_rows", look_too_early)
    taken = await journal.take_pending(SCOPE, "a/1")
    assert [(one.record, one.before) for one in taken] == [
        (replace(one, owner="a/1", fence=1), None) for one in given[1:]
    ]
    assert await journal.by_id(given[0].record_id) == replace(given[0], owner="b/1", fence=1)
