"""Instructions: what whoever does not drive a call leaves in the journal for whoever does."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from mcp_tasks_client.errors import DrivenElsewhereError, JournalError
from mcp_tasks_client.journal.base import Instruction, Journal
from mcp_tasks_client.journal.sqlite import writer as sqlite_writer
from mcp_tasks_client.journal.sqlite.journal import SqliteJournal
from mcp_tasks_client.machine.states import Gathering
from tests._requirements import requirement
from tests.journal.samples import everybody, finished, observing, record

pytestmark = pytest.mark.anyio

YES = Instruction("answer: name", '{"action":"accept"}', 1_800_000_002.0)
NO = Instruction("answer: name", '{"action":"decline"}', 1_800_000_003.0)
CANCEL = Instruction("cancel", "{}", 1_800_000_004.0)
SURROGATE = Instruction("answer: \ud83d\0'", '"\\ud83d"', 1_800_000_005.0)


class Heard:
    """Whoever listens, in this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._of: list[str] = []

    def __call__(self, record_ids: Collection[str]) -> None:
        with self._changed:
            self._of += record_ids
            self._changed.notify_all()

    async def wait_for(self, record_id: str, within_s: float = 10.0) -> bool:
        """Whether it is told of a record in time."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: record_id in self._of, within_s)

        return await to_thread.run_sync(wait)


@requirement("law:3")
async def test_the_first_instruction_of_a_name_is_the_one_that_counts(journal: Journal) -> None:
    given = record(state=observing())
    await journal.save(given)

    assert await journal.instruct(given.record_id, YES) == YES
    assert await journal.instruct(given.record_id, NO) == YES
    assert await journal.instruct(given.record_id, CANCEL) == CANCEL
    assert await journal.instruct(given.record_id, SURROGATE) == SURROGATE
    assert await journal.instructions(given.record_id) == [YES, CANCEL, SURROGATE]


@requirement("law:3")
async def test_of_many_at_once_one_counts_and_all_are_told_the_same(journal: Journal) -> None:
    given = record(state=observing())
    await journal.save(given)
    told: list[Instruction | None] = []

    async def answer(number: int) -> None:
        told.append(await journal.instruct(given.record_id, YES._replace(body=str(number))))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(answer, number)

    assert len(set(told)) == 1
    assert await journal.instructions(given.record_id) == [told[0]]


@requirement("law:3")
async def test_what_was_heeded_still_counts_and_its_body_is_gone(journal: Journal) -> None:
    given = record(state=observing())
    await journal.save(given)
    await journal.instruct(given.record_id, YES)
    await journal.instruct(given.record_id, CANCEL)

    await journal.save(replace(given, updated_at=5.0), known=True, heeded=YES.name)

    assert await journal.instructions(given.record_id) == [CANCEL]
    assert await journal.instruct(given.record_id, NO) == YES._replace(body="", heeded=True)


@requirement("law:5")
async def test_whoever_does_not_own_a_record_heeds_nothing(journal: Journal) -> None:
    given = record(state=observing())
    await journal.save(given)
    await journal.instruct(given.record_id, YES)
    await journal.take(given.record_id, "host/1", await everybody(journal))

    with pytest.raises(DrivenElsewhereError):
        await journal.save(given, known=True, heeded=YES.name)

    assert await journal.instructions(given.record_id) == [YES]


async def test_a_call_that_asks_before_there_is_a_task_takes_instructions(journal: Journal) -> None:
    given = record(state=Gathering(round=0, request_state=None, questions=()), idempotency_key="order-42")
    await journal.save(given)

    assert await journal.instruct(given.record_id, YES) == YES


@pytest.mark.parametrize("delivered", [False, True])
async def test_a_call_that_has_ended_takes_none_and_keeps_none(journal: Journal, delivered: bool) -> None:
    given = record(state=observing(), idempotency_key="order-42")
    await journal.save(given)
    await journal.instruct(given.record_id, YES)

    ended = replace(given, state=finished(), delivered_at=6.0 if delivered else None)
    await journal.save(ended, known=True)

    assert await journal.instructions(given.record_id) == []
    assert await journal.instruct(given.record_id, NO) is None


async def test_a_record_that_is_not_there_takes_none(journal: Journal) -> None:
    assert await journal.instruct("nobody's", YES) is None
    assert await journal.instructions("nobody's") == []


async def test_a_record_that_is_forgotten_leaves_none(journal: Journal) -> None:
    given = record(state=observing())
    await journal.save(given)
    await journal.instruct(given.record_id, YES)
    await journal.remove(given)
    await journal.save(given)

    assert await journal.instructions(given.record_id) == []
    assert await journal.instruct(given.record_id, NO) == NO


async def test_a_time_that_is_none_is_refused(journal: Journal) -> None:
    given = record(state=observing())
    await journal.save(given)
    with pytest.raises(ValueError, match="finite"):
        await journal.instruct(given.record_id, YES._replace(at=float("nan")))
    assert await journal.instructions(given.record_id) == []


# ── who is told ───────────────────────────────────────────────────────────────────────────────


async def test_whoever_listens_is_told_at_once_of_what_is_left_in_this_process(journal: Journal) -> None:
    given, heard = record(state=observing()), Heard()
    await journal.save(given)
    stop = journal.listen(heard)
    await journal.instruct(given.record_id, YES)
    assert await heard.wait_for(given.record_id)
    stop()


async def test_whoever_begins_to_listen_is_told_of_what_there_is(journal: Journal) -> None:
    first, second, heard = record(state=observing("a")), record(state=observing("b")), Heard()
    for given in (first, second):
        await journal.save(given)
        await journal.instruct(given.record_id, YES)
    await journal.save(first, known=True, heeded=YES.name)
    stop = journal.listen(heard)
    assert await heard.wait_for(second.record_id)
    assert not await heard.wait_for(first.record_id, 0.1)
    stop()


async def test_whoever_has_stopped_to_listen_is_told_nothing(journal: Journal) -> None:
    given, heard, other = record(state=observing()), Heard(), Heard()
    await journal.save(given)
    journal.listen(heard)()
    stop = journal.listen(other)
    await journal.instruct(given.record_id, YES)
    assert await other.wait_for(given.record_id)
    assert not await heard.wait_for(given.record_id, 0.1)
    stop()


async def test_a_journal_that_is_not_open_is_not_listened_to(journal: Journal) -> None:
    await journal.aclose()
    with pytest.raises(JournalError, match="not open"):
        journal.listen(Heard())
    await journal.open()


async def test_another_process_is_told_within_seconds(tmp_path: Path) -> None:
    given, heard = record(state=observing()), Heard()
    async with SqliteJournal(tmp_path / "journal.sqlite3") as journal:
        await journal.save(given)
        stop = journal.listen(heard)
        assert not await heard.wait_for(given.record_id, 0.1)
        await to_thread.run_sync(leave_from_outside, journal.path, given.record_id)
        assert await heard.wait_for(given.record_id, 10.0)
        stop()


async def test_a_look_at_what_others_left_that_fails_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given, heard, query = record(state=observing()), Heard(), sqlite_writer._INSTRUCTED
    async with SqliteJournal(tmp_path / "journal.sqlite3") as journal:
        await journal.save(given)
        stop = journal.listen(heard)
        assert not await heard.wait_for(given.record_id, 1.5), "it has looked already, and found nothing"
        monkeypatch.setattr(sqlite_writer, "_INSTRUCTED", "SELECT 1 FROM nowhere")
        await to_thread.run_sync(leave_from_outside, journal.path, given.record_id)
        with anyio.fail_after(10):
            while "no such table: nowhere" not in caplog.text:
                await anyio.sleep(0.05)
        monkeypatch.setattr(sqlite_writer, "_INSTRUCTED", query)
        assert await heard.wait_for(given.record_id)
        stop()


def leave_from_outside(path: Path, record_id: str) -> None:
    """Leave an instruction by another connection to the file, as another process has it."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO instructions (record_id, name, body, at, heeded) VALUES (?, ?, ?, ?, 0)",
            (record_id, *YES[:3]),
        )
