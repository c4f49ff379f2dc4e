"""Who shows questions or ends is told when there may be new ones, also of those of other processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_tasks_client import Instruction, Journal, MemoryJournal, PostgresJournal, SqliteJournal
from mcp_tasks_client.journal.guarded import GuardedJournal
from mcp_tasks_client.testing.samples import finished, observing, record
from tests.engine.world import ASK
from tests.journal.files import only_told
from tests.journal.test_instructions import leave_from_outside

pytestmark = pytest.mark.anyio

SOON_S = 30.0


class Told:
    """A watcher that counts."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1

    async def wait_for(self, times: int) -> None:
        with anyio.fail_after(SOON_S):
            while self.times < times:
                await anyio.sleep(0.005)


def asking() -> Any:
    return observing(status="input_required", inputRequests={"k": ASK})


@pytest.fixture(params=["memory", "sqlite", "postgres", "guarded"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    if request.param == "postgres":
        made: PostgresJournal = request.getfixturevalue("postgres_journal")()
        return made
    if request.param == "sqlite":
        return SqliteJournal(tmp_path / "journal.sqlite3")
    return MemoryJournal() if request.param == "memory" else GuardedJournal(MemoryJournal())


async def test_a_save_that_asks_or_ends_is_told_at_once_within_the_process(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_told(monkeypatch)
    async with journal:
        told, working = Told(), record(state=observing(), owner="a/1")
        stop = journal.watch(told)
        await journal.save(working)
        await anyio.sleep(0.05)
        seen = told.times  # a thread tells once when it looks for the first time
        for number, state in enumerate((asking(), finished()), 1):
            await journal.save(replace(working, state=state), known=True)
            await told.wait_for(seen + number)
        stop()
        stop()
        seen = told.times
        await journal.save(record(state=asking()))
        await anyio.sleep(0.05)
        assert told.times == seen


async def test_a_commit_of_another_process_is_told_within_seconds(tmp_path: Path) -> None:
    told, given = Told(), record(state=observing())
    async with SqliteJournal(tmp_path / "journal.sqlite3") as journal:
        await journal.save(given)
        stop = journal.watch(told)
        await told.wait_for(1)  # it has looked for the first time
        seen = told.times
        await anyio.sleep(1.2)
        assert told.times == seen, "nothing has changed"
        await anyio.to_thread.run_sync(leave_from_outside, journal.path, given.record_id)
        await told.wait_for(seen + 1)
        stop()


async def test_a_question_of_another_host_is_told_at_once(
    postgres: str,
    postgres_journal: Callable[[], PostgresJournal],
    schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only_told(monkeypatch)
    told, given = Told(), record(state=observing(), owner="a/1")
    async with (
        postgres_journal() as first,
        PostgresJournal(f"{postgres} options=''", schema=schema) as second,
    ):
        assert first.identity != second.identity
        await first.save(given)
        stop = second.watch(told)
        await told.wait_for(1)  # it listens, and has looked
        await anyio.sleep(1.5)
        seen = told.times
        await first.save(replace(given, state=asking()), known=True)
        await told.wait_for(seen + 1)
        stop()


async def test_an_end_of_another_host_is_told_within_seconds(
    postgres: str, postgres_journal: Callable[[], PostgresJournal], schema: str
) -> None:
    told, given = Told(), record(state=observing(), owner="a/1")
    async with (
        postgres_journal() as first,
        PostgresJournal(f"{postgres} options=''", schema=schema) as second,
    ):
        await first.save(given)
        stop = second.watch(told)
        await told.wait_for(1)
        seen = told.times
        await first.save(replace(given, state=finished()), known=True)
        await told.wait_for(seen + 1)
        stop()


async def test_who_listens_for_instructions_is_told_nothing_of_questions(
    postgres: str, postgres_journal: Callable[[], PostgresJournal], schema: str
) -> None:
    heard, given = list[str](), record(state=observing(), owner="a/1")
    async with (
        postgres_journal() as first,
        PostgresJournal(f"{postgres} options=''", schema=schema) as second,
    ):
        await first.save(given)
        stop = second.listen(heard.extend)
        await anyio.sleep(1.5)
        await first.save(replace(given, state=asking()), known=True)
        await first.instruct(given.record_id, Instruction("answer", "{}", 7.0))
        with anyio.fail_after(SOON_S):
            while not heard:
                await anyio.sleep(0.01)
        assert {*heard} == {given.record_id}
        stop()


async def test_a_watcher_that_raises_holds_up_no_other(tmp_path: Path) -> None:
    told = Told()

    def fail() -> None:
        raise OSError("The page is gone.")

    async with SqliteJournal(tmp_path / "journal.sqlite3") as journal:
        for watcher in (fail, told):
            journal.watch(watcher)
        await journal.save(record(state=asking()))
        await told.wait_for(1)
