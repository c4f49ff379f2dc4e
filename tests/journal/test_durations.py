"""How our journals note how long tasks ran: with one statement more, without a wait, in files made before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import psycopg
import pytest
from anyio import to_thread

from mcp_tasks_client import Journal, PostgresJournal, SqliteJournal, TaskRecord
from mcp_tasks_client.journal.postgres import thread as postgres_thread
from mcp_tasks_client.journal.row import tool_digest
from mcp_tasks_client.journal.sqlite.execution import STATEMENTS
from mcp_tasks_client.machine.states import Completed
from mcp_tasks_client.testing.samples import SCOPE, finished, observing, record
from tests.journal.files import Spy, commits_held, raw, timed

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

AT_ONCE: Final = 16
"""Works that one execution of each statement does."""


async def begin(journal: Journal, **changes: Any) -> TaskRecord:
    await journal.save(given := record(state=observing(), **changes))
    return given


def ended(given: TaskRecord, took_s: float | None) -> TaskRecord:
    return replace(given, state=finished(Completed(result={}, took_s=took_s)))


async def end_half(journal: Journal, begun: list[TaskRecord], took_s: float | None) -> None:
    """Save all of them at once: every other task goes on, the others have ended."""
    async with anyio.create_task_group() as tasks:
        for number, one in enumerate(begun):
            changed = ended(one, took_s) if number % 2 else replace(one, updated_at=9.0)
            tasks.start_soon(partial(journal.save, changed, known=True))


# ── one statement more ────────────────────────────────────────────────────────────────────────


async def test_a_commit_to_a_file_has_one_statement_more_however_many_tasks_end_in_it(
    path: Path, spy: Spy
) -> None:
    counts = {}
    with anyio.fail_after(30):
        async with SqliteJournal(path) as journal:
            for took_s in (None, 3.5):
                begun = [await begin(journal) for _ in range(AT_ONCE)]
                with commits_held(spy) as held:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(journal.save, record())
                        await to_thread.run_sync(held.wait, 10)  # what follows gathers
                        spy.statements.clear()
                        tasks.start_soon(end_half, journal, begun, took_s)
                        await anyio.wait_all_tasks_blocked()
                        spy.release.set()
                sent = [one.split()[:3] for one in spy.statements if not one.startswith("--")]
                counts[took_s] = sent[sent.index(["BEGIN", "IMMEDIATE"]) :]
            assert counts[3.5].pop(1) == ["INSERT", "INTO", "durations"]
            assert counts[3.5] == counts[None], "the rest is the same"
            assert len(await journal.durations(SCOPE, "report")) == AT_ONCE / 2


async def test_a_transaction_in_a_database_has_one_statement_more_however_many_tasks_end_in_it(
    postgres_journal: Callable[[], PostgresJournal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of more of one tool than there are places."""
    transactions: list[list[str]] = []
    execute = postgres_thread._execute

    def spied(connection: Any, statement: Any, **values: Any) -> Any:
        if "SELECT 1 / count" in statement.text:
            transactions.append([])
        else:
            transactions[-1].append("note" if ".durations (" in statement.text else "other")
        return execute(connection, statement, **values)

    timed(monkeypatch, gather_s=0.3)
    with anyio.fail_after(30):
        async with postgres_journal() as journal:
            begun = [await begin(journal) for _ in range(2 + 2 * 70)]
            await end_half(journal, begun[:2], None)  # from now on the thread lets works gather
            with monkeypatch.context() as patch:
                patch.setattr(postgres_thread, "_execute", spied)
                await end_half(journal, begun[2:], 3.5)
            assert await journal.durations(SCOPE, "report") == [3.5] * 50
    assert ["note", "other"] in transactions
    assert all(one in (["note", "other"], ["other"]) for one in transactions)
    assert len(transactions) < AT_ONCE, "works have gathered"


@pytest.mark.parametrize("rows", [1, 16])
async def test_it_is_found_by_its_key(path: Path, rows: int) -> None:
    async with SqliteJournal(path):
        pass
    with raw(path) as connection:
        filled = STATEMENTS("note_duration", rows=rows)
        marks = [None] * rows * len(filled.columns)
        steps = [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {filled.text}", marks)]
        assert any("SEARCH stored USING INDEX" in step for step in steps)
        assert "SEARCH noted USING PRIMARY KEY (tool_key=?)" in steps
        assert not any(step.startswith(("SCAN stored", "SCAN noted")) for step in steps)
        found = connection.execute(
            f"EXPLAIN QUERY PLAN {STATEMENTS('durations').text}", {"tool_key": ""}
        ).fetchall()
        assert "SEARCH durations USING PRIMARY KEY (tool_key=?)" in {step[3] for step in found}


# ── with the end, or not at all ───────────────────────────────────────────────────────────────


async def test_an_end_that_is_not_stored_is_not_noted(path: Path) -> None:
    with anyio.fail_after(30):
        async with SqliteJournal(path) as journal:
            given = await begin(journal)
            with raw(path) as connection:
                connection.execute(
                    "CREATE TRIGGER broken BEFORE UPDATE ON records BEGIN SELECT raise(ROLLBACK, 'no'); END"
                )
            with pytest.raises(Exception, match="no"):
                await journal.save(ended(given, 3.5), known=True)
            assert await journal.durations(SCOPE, "report") == []


async def test_no_commit_waits_for_another_process_that_notes_of_the_same_tool(
    postgres_journal: Callable[[], PostgresJournal], postgres: str, schema: str
) -> None:
    """The duration is left out, and the end is stored. The next one is noted again."""
    key = tool_digest(SCOPE, "report")
    with anyio.fail_after(30):
        async with postgres_journal() as journal:
            first, second = await begin(journal), await begin(journal)
            with closing(psycopg.connect(postgres)) as other:
                other.execute(
                    "SELECT pg_advisory_xact_lock(hashtextextended(%s || %s::uuid, 0))",
                    (f"{schema}.durations:", key),
                )
                await journal.save(ended(first, 3.5), known=True)
                await journal.save(ended(await begin(journal, tool="deploy"), 4.5), known=True)
                other.rollback()  # a server gives up the lock of a connection that is closed, but later
            await journal.save(ended(second, 7.0), known=True)
            assert await journal.durations(SCOPE, "report") == [7.0]
            assert await journal.durations(SCOPE, "deploy") == [4.5]
            stored = await journal.by_id(first.record_id)
            assert stored is not None
            assert stored.finished


# ── journals that were made before ────────────────────────────────────────────────────────────


async def test_a_file_of_an_earlier_version_gets_the_table(path: Path) -> None:
    with anyio.fail_after(30):
        async with SqliteJournal(path) as journal:
            given = await begin(journal)
        with raw(path) as connection:
            connection.execute("DROP TABLE durations")
        async with SqliteJournal(path) as journal:
            await journal.save(ended(given, 3.5), known=True)
            assert await journal.durations(SCOPE, "report") == [3.5]


async def test_a_database_of_an_earlier_version_gets_the_table(
    postgres_journal: Callable[[], PostgresJournal], postgres: str, schema: str
) -> None:
    with anyio.fail_after(30):
        async with postgres_journal() as journal:
            given = await begin(journal)
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"DROP TABLE {schema}.durations".encode())
        async with postgres_journal() as journal:
            await journal.save(ended(given, 3.5), known=True)
            assert await journal.durations(SCOPE, "report") == [3.5]


async def test_what_is_damaged_is_left_out(path: Path) -> None:
    with anyio.fail_after(30):
        async with SqliteJournal(path) as journal:
            for took_s in (3.5, 7.0):
                await journal.save(ended(await begin(journal), took_s), known=True)
            with raw(path) as connection:
                connection.execute("UPDATE durations SET took_s = 'x' WHERE number = 1")
            assert await journal.durations(SCOPE, "report") == [7.0]
