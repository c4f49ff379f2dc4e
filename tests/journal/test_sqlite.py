"""What only the journal on disk promises: durability, one file for many processes, and care with files."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from sqlite3 import connect as sqlite_connect  # as it is, whatever a test makes of the journal's
from typing import Any, Final
from unittest.mock import Mock

import anyio
import platformdirs
import pytest
import trio
from anyio import to_thread

from mcp_tasks_client import Instruction, MemoryJournal, Origin, SqliteJournal, TaskRecord
from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import JournalCorruptError, JournalError, JournalLockedError, JournalSchemaError
from mcp_tasks_client.journal import sql, thread
from mcp_tasks_client.journal.row import Row, columns_of, read_rows, scope_digest
from mcp_tasks_client.journal.sqlite import file as sqlite_file
from mcp_tasks_client.journal.sqlite import thread as sqlite_thread
from mcp_tasks_client.journal.sqlite.execution import STATEMENTS
from mcp_tasks_client.journal.sqlite.file import APPLICATION_ID, VERSION, schema_sql
from mcp_tasks_client.journal.sqlite.journal import choose_journal
from mcp_tasks_client.machine.states import Completed
from mcp_tasks_client.testing import completed, text_result, working
from mcp_tasks_client.testing.samples import (
    SCOPE,
    Heard,
    Source,
    everybody,
    finished,
    lease,
    observing,
    record,
)
from tests.journal.files import (
    SHORT_S,
    OneLoop,
    Spy,
    child,
    commits_held,
    contents,
    line,
    mode,
    opened,
    posix_only,
    raw,
    run_child,
    said,
    stored,
    timed,
    write,
)
from tests.scripted_session import ScriptedSession

pytestmark = pytest.mark.anyio


class TestDurability:
    @posix_only
    def test_what_was_saved_survives_sigkill(self, path: Path) -> None:
        body = """
journal = SqliteJournal(path)
await journal.open()
await journal.claim(record(record_id="claimed", idempotency_key="order-42"))
await journal.save(record(record_id="saved", state=observing()))
print("done", flush=True)
os.read(0, 1)
"""
        with child(path, body) as process:
            assert line(process) == "done"
            process.send_signal(signal.SIGKILL)
            process.wait()

        assert stored(path) == ["claimed", "saved"]

    @pytest.mark.parametrize("method", ["save", "claim", "remove"])
    async def test_nobody_is_woken_before_the_commit(self, path: Path, spy: Spy, method: str) -> None:
        returned = anyio.Event()

        async def call() -> None:
            await getattr(journal, method)(record(record_id="r"))
            returned.set()

        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                with commits_held(spy) as held:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(call)
                        await to_thread.run_sync(held.wait, 30)
                        await anyio.wait_all_tasks_blocked()
                        woken = returned.is_set()
                        spy.release.set()
                assert returned.is_set()
                assert not woken

    async def test_the_log_is_synced_at_every_commit(self, path: Path, spy: Spy) -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(path):
                writing = spy.connections[-1]
                assert writing.execute("PRAGMA journal_mode").fetchone() == ("wal",)
                assert writing.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
                assert writing.execute("PRAGMA fullfsync").fetchone() == (1,)

    async def test_many_writers_share_a_commit(self, path: Path, spy: Spy) -> None:
        given = [record() for _ in range(200)]
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                before = spy.commits
                async with anyio.create_task_group() as tasks:
                    for one in given:
                        tasks.start_soon(journal.save, one)
                commits = spy.commits - before

        assert sorted(stored(path)) == sorted(one.record_id for one in given)
        assert 1 <= commits <= 20

    @pytest.mark.parametrize("write", ["new", "known", "deliver"])
    async def test_a_run_of_equal_writes_is_a_few_statements(self, path: Path, spy: Spy, write: str) -> None:
        """At each statement a busy event loop may keep Python's lock for 5 ms."""
        given = [record(record_id=f"r-{n}", state=finished()) for n in range(300)]
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                if write != "new":
                    async with anyio.create_task_group() as tasks:
                        for one in given:
                            tasks.start_soon(journal.save, one)
                with commits_held(spy) as held:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(journal.save, record(record_id="first"))
                        await to_thread.run_sync(held.wait, 30)
                        spy.statements.clear()
                        for one in given:
                            if write == "deliver":
                                journal.deliver(9.0, {one.record_id: 0})
                            else:
                                tasks.start_soon(partial(journal.save, one, known=write == "known"))
                        await anyio.wait_all_tasks_blocked()
                        spy.release.set()
                await journal.records(SCOPE)
        assert len(stored(path)) == (1 if write == "deliver" else 301)
        # 256, 16 twice, and 4 thrice; a delivery is forgotten, or else kept
        begins = "INSERT INTO records", "UPDATE records", "DELETE FROM records"
        # A trigger that runs is traced as the statement once more.
        writes = {one for one in spy.statements if one.startswith(begins)}
        assert len(writes) == (12 if write == "deliver" else 6)

    async def test_a_write_of_what_is_known_leaves_alone_what_the_record_was_made_with(
        self, path: Path, spy: Spy
    ) -> None:
        """And so the indexes of that, which are most of the pages that a commit writes."""
        given = record(state=observing(), idempotency_key="order-42")
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                await journal.save(given)
                spy.statements.clear()
                await journal.save(replace(given, state=finished()), known=True)
                assert await journal.by_id(given.record_id) == replace(given, state=finished())
        (update,) = {one for one in spy.statements if one.startswith("UPDATE")}
        assert "idempotency_key" not in update

    async def test_who_writes_alone_does_not_wait_for_others(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        timed(monkeypatch, gather_s=1000.0)
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                for _ in range(200):  # the next one is often there before the thread looks
                    await journal.save(record(record_id="r"))

    async def test_readers_need_no_transaction(self, path: Path, spy: Spy) -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(path, busy_timeout_s=SHORT_S) as journal:
                await journal.save(given := record(state=observing()))
                spy.statements.clear()
                with raw(path) as other:
                    other.execute("BEGIN EXCLUSIVE")
                    assert await journal.records(SCOPE, pending=True) == [given]
                assert not [one for one in spy.statements if one.startswith("BEGIN")]

    async def test_closing_finishes_what_is_queued_even_when_cancelled(self, path: Path, spy: Spy) -> None:
        closed = anyio.Event()

        async def abandon() -> None:
            with anyio.CancelScope() as scope:
                async with journal:
                    scope.cancel()
                    await journal.save(record(record_id="r"))
            closed.set()

        journal = SqliteJournal(path)
        await opened(path)
        with anyio.fail_after(30), commits_held(spy) as held:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(abandon)
                await to_thread.run_sync(held.wait, 30)
                await anyio.wait_all_tasks_blocked()
                too_soon = closed.is_set()
                spy.release.set()

        assert not too_soon
        assert stored(path) == ["r"]
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_a_loop_that_has_closed_is_not_waited_for(self, path: Path, spy: Spy, backend: str) -> None:
        """The write lands, and the journal serves the next loop."""
        journal, given = SqliteJournal(path), record()

        async def abandon(held: threading.Event) -> None:
            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(journal.save, given)
                    await to_thread.run_sync(held.wait, 30)
                    tasks.cancel_scope.cancel()

        async def go_on() -> list[TaskRecord]:
            with anyio.fail_after(30):
                records = await journal.records(SCOPE)
                await journal.aclose()
            return records

        anyio.run(journal.open, backend=backend)
        with commits_held(spy) as held:
            anyio.run(abandon, held, backend=backend)
        assert anyio.run(go_on, backend=backend) == [given]

    def test_a_guest_trio_and_its_host_each_wake_their_own(self, path: Path, spy: Spy) -> None:
        journal = SqliteJournal(path)

        async def host() -> None:
            with anyio.fail_after(30):
                async with journal:
                    (await guest(journal.save, record(record_id="guest"))).unwrap()
                    with commits_held(spy):
                        async with anyio.create_task_group() as tasks:
                            ended = guest(trio.lowlevel.checkpoint)
                            tasks.start_soon(journal.save, record(record_id="host"))
                            await anyio.wait_all_tasks_blocked()
                            (await ended).unwrap()  # gone when the host is to be woken
                            spy.release.set()

        def guest(function: Callable[..., Awaitable[None]], *arguments: Any) -> asyncio.Future[Any]:
            loop = asyncio.get_running_loop()
            ended: asyncio.Future[Any] = loop.create_future()
            trio.lowlevel.start_guest_run(
                function,
                *arguments,
                run_sync_soon_threadsafe=loop.call_soon_threadsafe,
                done_callback=ended.set_result,
                host_uses_signal_set_wakeup_fd=True,
            )
            return ended

        asyncio.run(host())

        assert stored(path) == ["guest", "host"]

    @posix_only
    def test_a_journal_that_nobody_closed_does_not_keep_the_process(self, path: Path) -> None:
        body = """
await SqliteJournal(path).open()
print("end")
"""
        assert run_child(path, body) == ["end"]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_a_fork_cannot_use_its_parents_journal_and_waits_for_nothing_of_it(self, path: Path) -> None:
        """Not even for what another thread of the parent held at that moment."""
        body = """
import atexit, signal, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside a thread: that is the point
locks = []
os.register_at_fork(  # before the module of the writing thread does, so that ours comes after it
    before=lambda: [lock.acquire() for lock in locks],
    after_in_parent=lambda: [lock.release() for lock in locks],
)
journal = SqliteJournal(path)
await journal.open()
from mcp_tasks_client.journal import thread
thread._CLOSING_S = 1000.0
locks += [journal._medium._lock, thread._threads_lock]
async def say(use, *args):
    try:
        await use(*args)
        said = "done"
    except JournalError as error:
        said = "refused" if "before a fork" in str(error) else str(error)
    os.write(1, f"{said}\\n".encode())  # at once, for both write to the same pipe
pid = os.fork()
if pid == 0:
    signal.alarm(20)  # what waits ends by this signal
    await say(journal.open)
    await say(journal.save, record(record_id="child"))
    await say(SqliteJournal(path).open)
    await say(journal.aclose)
    atexit._run_exitfuncs()
    os._exit(0)
print(os.waitpid(pid, 0)[1], flush=True)
await say(journal.save, record(record_id="parent"))
await journal.aclose()
"""
        assert run_child(path, body) == ["refused", "refused", "refused", "done", "0", "done"]
        assert stored(path) == ["parent"]


async def until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds, which the writing thread brings about."""
    with anyio.fail_after(20):
        while not condition():
            await anyio.sleep(0.005)


def outcome(record_id: str, **changes: Any) -> TaskRecord:
    return record(record_id=record_id, state=finished(), **changes)


class TestDeliveries:
    async def test_every_read_sees_what_was_delivered_before(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        timed(monkeypatch, tick_s=1000.0)
        reads: dict[str, Callable[[SqliteJournal], Awaitable[Any]]] = {
            "records": lambda journal: journal.records(SCOPE),
            "by_id": lambda journal: journal.by_id("by_id"),
            "take_pending": lambda journal: journal.take_pending(SCOPE, "a/1", {"b/1"}),
            "take": lambda journal: journal.take("take", "a/1", {"b/1"}),
        }
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal, SqliteJournal(path) as other:
                journal.keep_renewing(Source())  # so that the thread looks at deliveries by itself, and late
                for name, read in reads.items():
                    await journal.save(outcome(name, owner="a/1"))
                    journal.deliver(9.0, {name: 0})
                    assert not await read(other), name

    async def test_a_delivery_shares_a_transaction_that_it_does_not_begin(
        self, path: Path, spy: Spy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        timed(monkeypatch, tick_s=1000.0)
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                journal.keep_renewing(Source())
                await journal.save(outcome("keyed", idempotency_key="order-42", owner="a/1"))
                await journal.save(outcome("unkeyed"))
                await journal.save(outcome("kept"))
                before = spy.commits
                journal.deliver(9.0, {"keyed": 0}, keep_until=19.0)
                journal.deliver(9.0, {"unkeyed": 0})
                journal.deliver(9.0, {"kept": 0}, keep_until=19.0)
                await anyio.sleep(SHORT_S)
                assert spy.commits == before
                await journal.save(record(record_id="next"))
                assert spy.commits == before + 1
                with raw(path) as other:
                    columns = "record_id, delivered_at, owner, pending, expires_at"
                    rows = other.execute(f"SELECT {columns} FROM records").fetchall()
                assert rows == [
                    ("keyed", 9.0, None, 0, None),
                    ("kept", 9.0, None, 0, 19.0),
                    ("next", None, None, 0, None),
                ]

    @pytest.mark.parametrize("moment", ["get", "qsize"])
    async def test_a_delivery_comes_after_its_save_though_both_come_while_the_thread_takes_its_jobs(
        self, path: Path, moment: str
    ) -> None:
        async with SqliteJournal(path) as journal:
            await journal.save(given := record(state=observing(), idempotency_key="order-42"))
            medium: Any = journal._opened()
            jobs, may_save, has_looked = medium._jobs, threading.Event(), threading.Event()

            def look(*args: Any, **options: Any) -> Any:
                try:
                    return getattr(jobs, moment)(*args, **options)
                finally:
                    if not has_looked.is_set():
                        has_looked.set()
                        may_save.wait(20)

            medium._jobs = Mock(wraps=jobs, **{f"{moment}.side_effect": look})
            if moment == "qsize":  # the thread need not look at it while nothing has come
                medium.look_for_instructions()
            assert await to_thread.run_sync(has_looked.wait, 20)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(journal.save, replace(given, state=finished()), known=True))
                await anyio.wait_all_tasks_blocked()
                journal.deliver(9.0, {given.record_id: 0})
                may_save.set()

            assert (await journal.by_id(given.record_id)).delivered_at == 9.0

    async def test_a_delivery_is_written_by_itself(self, path: Path) -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                await journal.save(outcome("unkeyed"))
                journal.deliver(9.0, {"unkeyed": 0})
                await until(lambda: stored(path) == [])

    async def test_closing_finishes_a_delivery(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        timed(monkeypatch, tick_s=1000.0)
        with anyio.fail_after(30):
            async with SqliteJournal(path):
                async with SqliteJournal(path) as journal:
                    journal.keep_renewing(Source())
                    await journal.save(outcome("unkeyed"))
                    journal.deliver(9.0, {"unkeyed": 0})
                assert stored(path) == []

    async def test_closing_soon_finishes_a_delivery_that_comes_during_a_commit(
        self, path: Path, spy: Spy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        timed(monkeypatch, linger_s=0.0)
        journal = SqliteJournal(path)
        with anyio.fail_after(30):
            await journal.open()
            await journal.save(outcome("unkeyed"))
            async with anyio.create_task_group() as tasks:
                with commits_held(spy) as held:
                    tasks.start_soon(journal.save, record(record_id="next"))
                    await to_thread.run_sync(held.wait, 30)
                    journal.deliver(9.0, {"unkeyed": 0})
                    journal.aclose_soon()
            await until(lambda: path not in thread._THREADS)
        assert stored(path) == ["next"]

    async def test_a_delivery_that_fails_is_logged_and_its_outcome_is_given_out_once_more(
        self, path: Path, spy: Spy, caplog: pytest.LogCaptureFixture
    ) -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(path, busy_timeout_s=SHORT_S) as journal:
                await journal.save(outcome("unkeyed"))
                with raw(path) as other:
                    other.execute("BEGIN EXCLUSIVE")
                    journal.deliver(9.0, {"unkeyed": 0})
                    journal.deliver(9.0, {"unkeyed": 0})
                    with pytest.raises(JournalLockedError):
                        await journal.save(record(record_id="refused"))
                    other.execute("COMMIT")
                await journal.save(record(record_id="next"))
                assert stored(path) == ["unkeyed", "next"]
                journal.deliver(9.0, {"unkeyed": 0})
        assert stored(path) == ["next"]
        (told,) = caplog.records
        assert "may be given out twice" in told.getMessage()

    async def test_a_delivery_to_a_file_that_cannot_be_opened_keeps_no_thread(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        go_on = threading.Event()

        def refuse(*_: object) -> None:
            go_on.wait(20)
            raise OSError("no such disk")

        monkeypatch.setattr(sqlite_thread, "connect", refuse)
        journal, threads = SqliteJournal(path), list[threading.Thread]()

        async def deliver() -> None:
            while journal._medium is None:
                await anyio.sleep(0.001)
            threads.append(journal._medium._thread)  # type: ignore[attr-defined]  # it is a thread's
            journal.deliver(9.0, {"unkeyed": 0})
            go_on.set()

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(deliver)
                with pytest.raises(JournalError, match="no such disk"):
                    await journal.open()
            await until(lambda: not threads[0].is_alive())

    def test_a_delivery_is_not_lost_with_the_end_of_the_interpreter(self, path: Path) -> None:
        body = """
journal = SqliteJournal(path)
await journal.open()
await journal.save(record(record_id="unkeyed", state=finished()))
journal.deliver(9.0, {"unkeyed": 0})
journal.aclose_soon()
"""
        assert run_child(path, body) == []
        assert [file.name for file in path.parent.iterdir()] == [path.name]
        assert stored(path) == []


class TestLingering:
    async def test_the_file_is_closed_some_time_after_the_last_user_has_left(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        timed(monkeypatch, linger_s=0.3)
        journal = SqliteJournal(path)
        with anyio.fail_after(30):
            await journal.open()
            assert len(list(path.parent.iterdir())) == 3
            left_at = time.monotonic()
            journal.aclose_soon()
            await until(lambda: [file.name for file in path.parent.iterdir()] == [path.name])
            assert time.monotonic() - left_at >= 0.3
            async with journal:
                await journal.save(record(record_id="r"))
        assert stored(path) == ["r"]

    async def test_the_file_is_not_opened_anew_for_one_who_comes_back(
        self, path: Path, spy: Spy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        timed(monkeypatch, linger_s=1000.0)
        journal = SqliteJournal(path)
        with anyio.fail_after(30):
            await journal.open()
            other = path.with_name("other")
            for _ in range(3):
                journal.aclose_soon()
                await write(other)  # as long as it would take to close
                before = len(spy.connections)
                await journal.open()
                assert len(spy.connections) == before
            journal.aclose_soon()
            async with journal:  # who does not want to wait
                pass
        assert {file.name for file in path.parent.iterdir()} == {path.name, other.name}

    async def test_one_who_comes_while_it_closes_finds_it_open(
        self, path: Path, spy: Spy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(thread, "_CLOSING_S", 1000.0)
        journal = SqliteJournal(path)

        async def come() -> None:
            await journal.open()
            await journal.save(record(record_id="late"))

        with anyio.fail_after(30):
            await journal.open()
            with commits_held(spy) as held:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(journal.save, record(record_id="early"))
                    await to_thread.run_sync(held.wait, 30)
                    tasks.start_soon(journal.aclose)
                    await anyio.wait_all_tasks_blocked()
                    tasks.start_soon(come)
                    await anyio.wait_all_tasks_blocked()
                    spy.release.set()
            await journal.aclose()
        assert stored(path) == ["early", "late"]


class TestOneOfEach(OneLoop):
    """All journals of a process that keep the same file share what serves it."""

    async def test_they_share_a_connection_by_whatever_path_and_it_closes_with_the_last(
        self, path: Path, spy: Spy
    ) -> None:
        link = path.with_name("link")
        link.symlink_to(path)
        one, other = SqliteJournal(path), SqliteJournal(link)
        assert one.identity == other.identity
        assert other.path == link
        with anyio.fail_after(30):
            async with one:
                before = len(spy.connections)
                async with other:
                    await other.save(given := record())
                    assert await one.by_id(given.record_id) == given
                with pytest.raises(JournalError, match="is not open"):
                    await other.records(SCOPE)
                assert await one.records(SCOPE) == [given]
                assert len(spy.connections) == before
        assert {file.name for file in path.parent.iterdir()} == {path.name, "link"}

    async def test_closing_finishes_what_was_asked_for_though_another_has_the_file_open(
        self, path: Path, spy: Spy
    ) -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(path) as other:
                one = SqliteJournal(path)
                await one.open()
                with commits_held(spy) as held, anyio.CancelScope() as scope:
                    scope.cancel()
                    with anyio.CancelScope(shield=True), anyio.move_on_after(SHORT_S):
                        await one.save(record(record_id="given up"))
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(one.aclose)
                        with anyio.CancelScope(shield=True):
                            await to_thread.run_sync(held.wait, 30)
                            spy.release.set()
                assert stored(path) == ["given up"]
                await other.save(record())

    async def test_one_that_is_dropped_while_it_is_open_leaves_nothing(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        timed(monkeypatch, linger_s=0.0)
        with anyio.fail_after(30):
            async with SqliteJournal(path) as stays:
                for _ in range(3):
                    journal = SqliteJournal(path)
                    await journal.open()
                    await journal.open()
                    del journal
                    gc.collect()
                await stays.save(record())
            await until(lambda: path not in thread._THREADS)
            journal = SqliteJournal(path)
            await journal.open()
            del journal
            gc.collect()
            await until(lambda: path not in thread._THREADS)
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    async def test_one_that_was_closed_and_is_dropped_then_takes_nothing_from_another(
        self, path: Path
    ) -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(path) as stays:
                journal = SqliteJournal(path)
                async with journal:
                    pass
                del journal
                gc.collect()
                for _ in range(2):  # the thread does first what it was told of a journal that is dropped
                    await stays.save(record())

    @posix_only
    async def test_a_file_in_place_of_another_is_opened_though_the_other_is_not_closed_yet(
        self, path: Path
    ) -> None:
        with anyio.fail_after(30):
            one = SqliteJournal(path)
            await one.open()
            await one.save(record(record_id="removed"))
            one.aclose_soon()
            for file in path.parent.iterdir():
                file.unlink()
            await write(path, record(record_id="new"))
        assert stored(path) == ["new"]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_a_fork_cannot_open_what_its_parent_has_open(self, path: Path) -> None:
        """SQLite in the child would count on locks that only the parent has."""
        body = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside a thread: that is the point
async with SqliteJournal(path):
    pid = os.fork()
    if pid == 0:
        try:
            await SqliteJournal(path).open()
            said = "opened"
        except JournalError as error:
            said = "refused" if "before a fork" in str(error) else str(error)
        os.write(1, said.encode())
        os._exit(0)
    os.waitpid(pid, 0)
"""
        assert run_child(path, body) == ["refused"]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_what_everybody_has_left_is_closed_before_a_fork(self, path: Path) -> None:
        body = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside a thread: that is the point
journal = SqliteJournal(path)
await journal.open()
await journal.save(record(record_id="parent"))
journal.aclose_soon()
async def write(name):
    async with SqliteJournal(path) as mine:
        await mine.save(record(record_id=name))
pid = os.fork()
if pid == 0:  # in a thread, for the event loop of this one is the parent's
    import threading
    thread = threading.Thread(target=anyio.run, args=(write, "child"))
    thread.start()
    thread.join(20)
    os._exit(0)
await write("parent again")
print(os.waitpid(pid, 0)[1])
"""
        assert run_child(path, body) == ["0"]
        assert sorted(stored(path)) == ["child", "parent", "parent again"]


class TestLeases:
    async def test_the_lease_of_a_process_is_renewed_by_itself_when_it_is_due(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        timed(monkeypatch, tick_s=0.01)
        source = Source()
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                journal.keep_renewing(source)
                for renewed_at, had_lapsed in ((100.0, True), (130.0, False), (160.5, True)):
                    source.next = lease("a", renewed_at=renewed_at)
                    await until(lambda: source.next is None)
                    assert source.told[-1] == (renewed_at, had_lapsed)
                with raw(path) as other:
                    rows = other.execute("SELECT lease_id, renewed_at, expires_at FROM leases").fetchall()
                assert rows == [("a", 160.5, 190.5)]
        assert len(source.told) == 3

    async def test_a_renewal_shares_the_transaction_of_what_else_is_written(
        self, path: Path, spy: Spy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        timed(monkeypatch, tick_s=1000.0)
        source = Source()
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                journal.keep_renewing(source)
                await journal.save(record())
                before = spy.commits
                source.next = lease("a", renewed_at=100.0)
                await journal.save(record())
                assert spy.commits == before + 1
                assert source.told == [(100.0, True)]

    async def test_a_lease_that_could_not_be_stored_is_stored_later(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        timed(monkeypatch, tick_s=0.01)
        source = Source()
        with anyio.fail_after(30):
            async with SqliteJournal(path, busy_timeout_s=SHORT_S) as journal:
                journal.keep_renewing(source)
                with raw(path) as other:
                    other.execute("BEGIN EXCLUSIVE")
                    source.next = lease("a", renewed_at=100.0)
                    await until(lambda: bool(caplog.records))
                    assert source.told == []
                    other.execute("COMMIT")
                await until(lambda: source.told == [(100.0, True)])
        assert len(caplog.records) == 1

    async def test_a_lease_that_is_given_up_is_not_renewed_any_more(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = Source()
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal, SqliteJournal(path) as other:
                journal.keep_renewing(source)
                other.keep_renewing(source)
                source.next = lease("a", renewed_at=100.0)
                await journal.save(record())
                await other.release("a")
                source.next = lease("a", renewed_at=110.0)
                await journal.save(record())
                with raw(path) as connection:
                    assert connection.execute("SELECT * FROM leases").fetchall() == []
        assert source.told == [(100.0, True)]

    async def test_a_source_that_fails_does_not_stop_the_journal(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        source = Source()
        source.next = RuntimeError("no clock")
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                journal.keep_renewing(source)
                await journal.save(record(record_id="r"))
        assert stored(path) == ["r"]
        assert "no clock" in caplog.text

    async def test_only_the_lease_that_covers_an_owner_is_looked_up(self, path: Path, spy: Spy) -> None:
        """Those of processes that crashed may be many."""
        given = [record(state=observing(), owner=f"{name}/1") for name in "ab"]
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                for one in given:
                    await journal.save(one)
                    await journal.renew(lease(str(one.owner)[0]))
                spy.statements.clear()
                await journal.owners()
                await journal.owners("a/1")
        looked = [one for one in spy.statements if "FROM leases" in one]
        assert looked
        asked_for = {one.partition("json_each(")[2] for one in looked}
        assert {frozenset(re.findall(r'"(\w)"', one)) for one in asked_for} == {
            frozenset("ab"),
            frozenset("a"),
        }


class TestUnreadableRows(OneLoop):
    @pytest.mark.parametrize(
        "damage",
        [
            "state = '{}'",
            "state = 'nonsense'",
            "state = x'00ff'",
            "state = CAST(x'ff' AS TEXT)",
            f"state = '{'[' * 100_000}'",
            "created_at = 'yesterday'",
            "tool = CAST(x'ff' AS TEXT)",
        ],
        ids=["{}", "nonsense", "blob", "no UTF-8", "nested", "time", "tool"],
    )
    async def test_a_row_that_cannot_be_read_withholds_no_other(
        self, path: Path, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        bad = record(record_id="bad", idempotency_key="order-42", state=observing("bad"))
        good = record(record_id="good", state=observing("good"))
        await write(path, bad, good)
        with raw(path) as connection:
            connection.execute(f"UPDATE records SET {damage} WHERE record_id = 'bad'")
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                for _ in range(2):
                    assert await journal.records(SCOPE) == [good]
                    assert await journal.records(SCOPE, pending=True) == [good]
                    (taken,) = await journal.take_pending(SCOPE, "a/1", await everybody(journal))
                    good = taken.record
                reads: list[Callable[[], Awaitable[object]]] = [
                    lambda: journal.by_id("bad"),
                    lambda: journal.by_task_id(SCOPE, "bad"),
                    lambda: journal.claim(record(idempotency_key="order-42")),
                    lambda: journal.take("bad", "a/1", {"b/1"}),
                ]
                for read in reads:
                    with pytest.raises(JournalCorruptError, match="record 'bad' cannot be read"):
                        await read()
                with raw(path) as connection:
                    query = "SELECT owner, fence FROM records WHERE record_id = 'bad'"
                    assert connection.execute(query).fetchone() == (None, 0)
                await journal.save(bad)
                assert await journal.by_id("bad") == bad
        (told,) = caplog.records
        assert "record 'bad' cannot be read" in told.getMessage()

    @pytest.mark.parametrize("damage", ["CAST(x'ff' AS TEXT)", "CAST(x'410042' AS TEXT)", "x'00ff'"])
    async def test_a_damaged_id_holds_up_no_search(self, path: Path, damage: str) -> None:
        given = [record(state=observing(), created_at=float(number)) for number in range(3)]
        await write(path, *given)
        with raw(path) as connection:
            connection.execute(f"UPDATE records SET record_id = {damage} WHERE created_at = 0.0")
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                for one in given[1:]:
                    (taken,) = await journal.take_pending(
                        SCOPE, "a/1", limit=1, leave=[other.record_id for other in given if other != one]
                    )
                    assert taken.record.record_id == one.record_id
                    await journal.release("a/1")
                    await journal.save(replace(one, fence=1))

    @pytest.mark.parametrize("damage", ["CAST(x'ff' AS TEXT)", "x'00ff'", "'\\x'"])
    async def test_a_damaged_lease_or_owner_withholds_no_other(self, path: Path, damage: str) -> None:
        given = [record(state=observing(), owner=f"{name}/1", created_at=1.0) for name in "abc"]
        await write(path, *given)
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                for name in "abc":
                    await journal.renew(lease(name))
                with raw(path) as connection:
                    connection.execute(f"UPDATE leases SET host = {damage} WHERE lease_id = 'b'")
                    connection.execute(f"UPDATE records SET owner = {damage} WHERE owner = 'c/1'")
                assert await journal.owners() == {"a/1": lease("a"), "b/1": None}

    @pytest.mark.parametrize("damage", ["CAST(x'ff' AS TEXT)", "x'00ff'", "'\\x'"])
    @pytest.mark.parametrize("column", ["record_id", "name", "body"])
    async def test_a_damaged_instruction_withholds_no_other(
        self, path: Path, damage: str, column: str
    ) -> None:
        heard, given = Heard(), [record(record_id=name, state=observing()) for name in ("one", "other")]
        await write(path, *given)
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                for one in given:
                    for name in ("first", "second"):
                        await journal.instruct(one.record_id, Instruction(name, "{}", 1.0))
            with raw(path) as connection:
                connection.execute(
                    f"UPDATE instructions SET {column} = {damage} WHERE record_id = 'one' AND name = 'first'"
                )
            async with SqliteJournal(path) as journal:
                journal.listen(heard)
                assert await heard.wait_for("other")
                assert [left.name for left in await journal.instructions("one")] == ["second"]

    async def test_an_error_about_a_row_does_not_quote_it(self, path: Path) -> None:
        secret = '{"kind": "observing", "task": "my secret"}'
        await write(path, given := record(state=observing()))
        with raw(path) as connection:
            connection.execute("UPDATE records SET state = ?", (secret,))

        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                with pytest.raises(JournalCorruptError) as by_journal:
                    await journal.by_id(given.record_id)
        with pytest.raises(JournalCorruptError) as by_row:
            Row.of(given)._replace(state=secret).record()

        for caught in (by_journal, by_row):
            assert "my secret" not in "".join(traceback.format_exception(caught.value))

    async def test_reading_many_rows_lets_others_run(self, path: Path) -> None:
        await write(path)
        with raw(path) as connection:
            connection.execute("BEGIN")
            for number in range(500):
                row = columns_of(record(record_id=str(number), state=observing()))
                marks = ", ".join(f":{name}" for name in row)
                connection.execute(f"INSERT INTO records ({', '.join(row)}) VALUES ({marks})", row)
            connection.execute("COMMIT")
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await anyio.sleep(0)
                turns += 1

        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal, anyio.create_task_group() as tasks:
                with raw(path) as connection:
                    rows = connection.execute(STATEMENTS("all", in_scope=False).text).fetchall()
                tasks.start_soon(count_turns)
                read = await read_rows(map(Row._make, rows), journal.identity)
                during = turns
                tasks.cancel_scope.cancel()
        assert len(read) == 500
        assert during >= 9

    async def test_a_row_that_changes_while_it_is_read_is_taken_as_it_is_then(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = record(state=observing(), owner="a/1")
        changed = replace(given, state=observing(status="input_required"))

        async def read_slowly(rows: Iterable[Row], *options: Any) -> list[tuple[Row, TaskRecord]]:
            read = await read_rows(rows, *options)
            await journal.save(changed)
            return read

        monkeypatch.setattr(sql, "read_rows", read_slowly)
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                await journal.save(given)
                assert await journal.take_pending(SCOPE, "a/1", await everybody(journal)) == [
                    (changed, "a/1")
                ]

    async def test_a_row_that_cannot_be_read_takes_the_place_of_no_other(self, path: Path) -> None:
        damaged, sound = (record(state=observing(), created_at=float(number)) for number in (1, 2))
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                for one in (damaged, sound):
                    await journal.save(one)
                with closing(sqlite3.connect(path)) as connection:
                    connection.execute("UPDATE records SET state = '{' WHERE created_at = 1.0")
                    connection.commit()
                (taken,) = await journal.take_pending(SCOPE, "a/1", await everybody(journal), limit=1)
        assert taken.record.record_id == sound.record_id


class TestFreePages(OneLoop):
    async def test_pages_of_what_is_forgotten_are_given_back(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_thread, "_FREE_PAGES_KEPT", 4)
        large = finished(Completed(result={"text": "x" * 100_000}))
        given = [record(state=large, idempotency_key=str(number), delivered_at=5.0) for number in range(20)]

        def pages() -> int:
            with raw(path) as connection:
                return int(connection.execute("PRAGMA page_count").fetchone()[0])

        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                empty = pages()
                for one in given:
                    await journal.save(one)
                assert pages() > 400
                assert await journal.prune(6.0, 6.0, await everybody(journal)) == 20
                await until(lambda: pages() <= empty + 10)
                await journal.save(replace(given[0], record_id="one more"))
                await journal.prune(6.0, 6.0, await everybody(journal))
        with raw(path) as connection:
            assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert path.stat().st_size <= (empty + 4) * 4096

    async def test_a_file_that_cannot_give_back_keeps_them(self, path: Path) -> None:
        """As one that version 0.1 made."""
        with raw(path) as connection:
            connection.execute("CREATE TABLE waste (x)")
            connection.execute("INSERT INTO waste VALUES (zeroblob(1000000))")
            connection.execute("DROP TABLE waste")
        await write(path, record(record_id="r"))
        with raw(path) as connection:
            assert connection.execute("PRAGMA freelist_count").fetchone()[0] > 200
        assert stored(path) == ["r"]


class TestFailures(OneLoop):
    async def test_a_record_that_cannot_be_stored_fails_alone(self, path: Path, spy: Spy) -> None:
        holder, good = record(idempotency_key="order-42"), [record() for _ in range(4)]
        failed: list[JournalError] = []

        async def refused() -> None:
            with pytest.raises(JournalError) as caught:
                await journal.save(record(idempotency_key="order-42"))
            failed.append(caught.value)

        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                await journal.save(holder)
                before = spy.commits
                with commits_held(spy) as held:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(journal.save, record(record_id="first"))
                        await to_thread.run_sync(held.wait, 30)
                        for one in good[:2]:
                            tasks.start_soon(journal.save, one)
                        tasks.start_soon(refused)
                        tasks.start_soon(refused)
                        for one in good[2:]:
                            tasks.start_soon(journal.save, one)
                        await anyio.wait_all_tasks_blocked()
                        spy.release.set()
                commits = spy.commits - before

        assert commits == 2  # the first one's, and one that all the others share
        assert set(stored(path)) == {holder.record_id, "first", *(one.record_id for one in good)}
        assert len({id(error) for error in failed}) == 2

    async def test_a_commit_that_fails_fails_for_all_of_it_and_the_next_one_works(
        self, path: Path, spy: Spy
    ) -> None:
        big = finished(Completed(result={"text": "x" * 100_000}))
        failed: list[str] = []

        async def refused(one: TaskRecord) -> None:
            try:
                await journal.save(one)
            except JournalError as error:
                failed.append(str(error))

        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                await journal.save(record(record_id="before"))
                connection = spy.connections[-1]
                (pages,) = connection.execute("PRAGMA page_count").fetchone()
                connection.execute(f"PRAGMA max_page_count = {pages}")

                async with anyio.create_task_group() as tasks:
                    for _ in range(5):
                        tasks.start_soon(refused, record(state=big))
                assert [one.record_id for one in await journal.records(SCOPE)] == ["before"]
                connection.execute("PRAGMA max_page_count = 1000000")
                await journal.save(record(record_id="after", state=big))

        assert len(failed) == 5
        assert all("no room left" in message and str(path) in message for message in failed)
        assert stored(path) == ["before", "after"]

    async def test_a_commit_that_is_refused_leaves_no_transaction_behind(self, path: Path, spy: Spy) -> None:
        """SQLite gives up a transaction itself after some errors, and keeps it after others."""

        def refuse(action: int, argument: str | None, *_: str | None) -> int:
            commits = action == sqlite3.SQLITE_TRANSACTION and argument == "COMMIT"
            return sqlite3.SQLITE_DENY if commits else sqlite3.SQLITE_OK

        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                spy.connections[-1].set_authorizer(refuse)
                with pytest.raises(JournalError, match="not authorized"):
                    await journal.claim(record(record_id="lost"))  # in BEGIN and COMMIT
                spy.connections[-1].set_authorizer(None)
                await journal.save(record(record_id="after"))
                assert not spy.connections[-1].in_transaction

        assert stored(path) == ["after"]

    async def test_a_statement_that_is_refused_leaves_no_transaction_behind(
        self, path: Path, spy: Spy
    ) -> None:
        def refuse(action: int, *_: str | int | None) -> int:
            return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_INSERT else sqlite3.SQLITE_OK

        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                spy.connections[-1].set_authorizer(refuse)
                with pytest.raises(JournalError, match="not authorized"):
                    await journal.save(record(record_id="lost"))
                spy.connections[-1].set_authorizer(None)
                await journal.save(record(record_id="after"))
                assert not spy.connections[-1].in_transaction

        assert stored(path) == ["after"]

    @posix_only
    def test_a_disk_that_fails_is_an_error_and_can_recover(self, path: Path) -> None:
        """A limit on the size of files makes SQLite's own write fail, as an I/O error does."""
        body = """
import resource
journal = SqliteJournal(path)
await journal.open()
await journal.save(record(record_id="before"))
size = os.stat(path + "-wal").st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
try:
    await journal.save(record(record_id="lost"))
except JournalError as error:
    print(type(error).__name__)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
await journal.save(record(record_id="after"))
print(*[one.record_id for one in await journal.records(SCOPE)])
await journal.aclose()
"""
        assert run_child(path, body) == ["JournalError", "before", "after"]
        assert stored(path) == ["before", "after"]

    async def test_a_file_removed_or_replaced_under_us_is_an_error(self, path: Path) -> None:
        for replaced in (False, True):
            with anyio.fail_after(30):
                async with SqliteJournal(path) as journal:
                    await journal.save(record())
                    path.unlink()
                    if replaced:
                        path.touch()
                    with pytest.raises(JournalError, match="removed or replaced"):
                        await journal.save(record())
            for file in path.parent.iterdir():
                file.unlink()

    @pytest.mark.parametrize("suffixes", [("-wal",), ("-shm",), ("-wal", "-shm")], ids="+".join)
    async def test_a_log_removed_under_us_is_an_error_until_all_have_closed(
        self, path: Path, suffixes: tuple[str, ...]
    ) -> None:
        """What was committed before is there afterwards, and no tool is called for what cannot be seen."""
        server = ScriptedSession(calls=[working("task-1", poll_interval_ms=1)])
        server.gets = {"task-1": [completed("task-1", text_result("x"))]}
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal, TasksClient(server, journal=path) as client:
                await journal.save(record(record_id="before"))
                for suffix in suffixes:
                    path.with_name(path.name + suffix).unlink()
                with pytest.raises(JournalError, match=r"log beside the journal .* was removed"):
                    await client.call_tool("tool", idempotency_key="key")
                async with SqliteJournal(path) as another:
                    with pytest.raises(JournalError, match="log beside the journal"):
                        await another.save(record())
            assert server.log("tools/call") == []
            async with SqliteJournal(path) as journal:
                await journal.save(record(record_id="after"))
        assert stored(path) == ["before", "after"]

    async def test_a_log_that_others_have_begun_is_left_to_them(self, path: Path) -> None:
        body = """
journal = SqliteJournal(path)
await journal.open()
await journal.save(record(record_id="theirs"))
os._exit(0)
"""
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                await journal.save(record(record_id="ours"))
                for suffix in ("-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink()
                run_child(path, body)
                with pytest.raises(JournalError, match="log beside the journal"):
                    await journal.save(record())
        assert stored(path) == ["theirs"]

    async def test_after_a_long_reader_the_log_does_not_stay_as_long_as_it_grew(self, path: Path) -> None:
        log, large = path.with_name(path.name + "-wal"), "x" * 1_000_000
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                with raw(path) as reader:
                    reader.execute("BEGIN")
                    reader.execute("SELECT * FROM records").fetchall()
                    for number in range(12):
                        await journal.save(record(record_id=f"r{number}", tool=large))
                    assert log.stat().st_size > 12_000_000
                for _ in range(3):  # one moves the log into the file, the next begins it anew
                    await journal.save(record())
                assert log.stat().st_size < 5_000_000


async def connected(path: Path, count: int) -> None:
    """Open a file by many connections at once, and close them."""

    def connect() -> None:
        with closing(sqlite_file.connect(path, 30)):
            together.wait(20)

    together = threading.Barrier(count)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(to_thread.run_sync, connect)


class TestSharing(OneLoop):
    async def test_of_two_processes_that_claim_a_key_one_wins(self, path: Path) -> None:
        body = """
journal = SqliteJournal(path)
await journal.open()
print("ready", flush=True)
os.read(0, 1)
for number in range(50):
    given = record(record_id=f"{os.getpid()}-{number}", idempotency_key=f"order-{number}")
    print((await journal.claim(given)).record_id, flush=True)
await journal.aclose()
"""
        with child(path, body) as one, child(path, body) as other:
            for process in (one, other):
                assert line(process) == "ready"
            for process in (one, other):
                process.stdin.write("go")
                process.stdin.flush()
            told = [said(process) for process in (one, other)]

        assert told[0] == told[1] == stored(path)
        assert len(told[0]) == 50

    @posix_only
    async def test_a_second_journal_of_this_process_costs_the_first_no_write(self, path: Path) -> None:
        """Closing a file that SQLite has open would drop its locks.

        Another process that closes then takes itself for the last one and deletes the write-ahead
        log that the first journal is still writing.
        """
        passer_by = (
            "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM meta').fetchall()"
        )
        with anyio.fail_after(30):
            async with SqliteJournal(path) as first:
                async with SqliteJournal(path):
                    subprocess.run([sys.executable, "-c", passer_by, str(path)], check=True)
                await first.save(record(record_id="r"))
                subprocess.run([sys.executable, "-c", passer_by, str(path)], check=True)
                copy = path.with_name("copy.sqlite3")
                for suffix in ("", "-wal"):
                    copied = path.with_name(path.name + suffix).read_bytes()
                    copy.with_name(copy.name + suffix).write_bytes(copied)
                assert stored(copy) == ["r"]

    async def test_many_can_open_a_new_file_at_once(self, path: Path) -> None:
        """As many processes do. In this one they would share a connection."""
        await connected(path, 8)
        await write(path, record(record_id="r"))
        assert stored(path) == ["r"]

    async def test_a_lock_of_another_process_is_waited_for_and_then_reported(self, path: Path) -> None:
        await write(path)
        with anyio.fail_after(30):
            async with SqliteJournal(path, busy_timeout_s=SHORT_S) as journal:
                with raw(path) as other:
                    other.execute("BEGIN EXCLUSIVE")
                    for call in (journal.save(record()), journal.claim(record()), journal.remove(record())):
                        with pytest.raises(JournalLockedError, match="held by another process"):
                            await call
                    other.execute("COMMIT")
                await journal.save(record(record_id="r"))
        assert stored(path) == ["r"]

    async def test_each_write_waits_for_a_lock_for_its_own_time(self, path: Path, spy: Spy) -> None:
        """What was asked for while another write waits does not wait for as long again."""
        waited: list[float] = []

        async def fail(journal: SqliteJournal) -> None:
            began = time.monotonic()
            with pytest.raises(JournalLockedError, match="held by another process"):
                await journal.save(record())
            waited.append(time.monotonic() - began)

        with anyio.fail_after(30):
            async with SqliteJournal(path, busy_timeout_s=3.0) as journal:
                spy.statements.clear()
                with raw(path) as other:
                    other.execute("BEGIN IMMEDIATE")
                    async with anyio.create_task_group() as tasks:
                        with commits_held(spy) as held:
                            tasks.start_soon(fail, journal)
                            await to_thread.run_sync(held.wait, 30)
                            await anyio.sleep(0.5)
                            for _ in range(2):
                                tasks.start_soon(fail, journal)
                            await anyio.wait_all_tasks_blocked()
                    other.execute("COMMIT")
                told = [one.partition("busy_timeout = ")[2] for one in spy.statements]
                await journal.save(record(record_id="r"))
        assert [one >= 3.0 for one in waited] == [True] * 3, waited
        again_ms = [int(one) for one in told if one]  # for which SQLite waits after the first one has failed
        assert again_ms
        assert max(again_ms) < 3000
        assert stored(path) == ["r"]

    @pytest.mark.parametrize(("method", "begins"), [("save", "INSERT"), ("claim", "BEGIN IMMEDIATE")])
    async def test_a_lock_that_ends_in_time_costs_nothing(
        self, path: Path, spy: Spy, method: str, begins: str
    ) -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(path, busy_timeout_s=30) as journal:
                spy.statements.clear()
                with raw(path) as other:
                    other.execute("BEGIN IMMEDIATE")
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(getattr(journal, method), record(record_id="r"))
                        while not any(one.startswith(begins) for one in spy.statements):
                            await anyio.sleep(0)
                        other.execute("COMMIT")
        assert stored(path) == ["r"]

    async def test_later_locks_are_waited_for_as_long_as_asked(self, path: Path, spy: Spy) -> None:
        """And not for what was left of it when the file was opened."""
        with anyio.fail_after(30):
            async with SqliteJournal(path, busy_timeout_s=20):
                assert spy.connections[-1].execute("PRAGMA busy_timeout").fetchone() == (20_000,)

    async def test_a_file_locked_by_another_process_cannot_be_opened(self, path: Path) -> None:
        await write(path, record())
        with raw(path) as other:
            other.execute("BEGIN EXCLUSIVE")
            before = path.read_bytes()
            with pytest.raises(JournalLockedError, match=str(path)):
                await opened(path)
            assert path.read_bytes() == before
            other.execute("COMMIT")
        await opened(path)

    async def test_a_new_file_locked_by_another_process_stays_empty(self, path: Path) -> None:
        path.touch(0o600)
        with raw(path) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(JournalLockedError):
                await opened(path)
            other.execute("ROLLBACK")
        assert path.read_bytes() == b""
        await opened(path)

    async def test_all_who_open_it_are_told_why_it_cannot_be(self, path: Path) -> None:
        path.write_bytes(b"something else")
        journal = SqliteJournal(path)
        failed: list[JournalError] = []

        async def open_it() -> None:
            with pytest.raises(JournalCorruptError) as caught:
                await journal.open()
            failed.append(caught.value)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(open_it)
            assert len({id(error) for error in failed}) == 3
            path.unlink()
            async with journal:
                await journal.save(record())


def header(**fields: int) -> bytes:
    """The first page of a database of ours, with other numbers in its header."""
    page = bytearray(4096)
    with closing(sqlite_connect(":memory:")) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("CREATE TABLE theirs (x)")
        page[:] = connection.serialize()[:4096]
    struct.pack_into(">I", page, 60, fields.get("user_version", 1))
    struct.pack_into(">I", page, 68, fields.get("application_id", APPLICATION_ID))
    return bytes(page) + bytes(4096)


class TestHostileFiles(OneLoop):
    FILES: Final[dict[str, tuple[bytes, type[JournalError], str]]] = {
        "text": (b"[client]\nurl = ...\n" * 50, JournalCorruptError, "move it away"),
        "a single byte": (b"S", JournalCorruptError, "move it away"),
        "a cut-off magic": (b"SQLite format 3\0", JournalCorruptError, "move it away"),
        "zeros": (bytes(8192), JournalCorruptError, "move it away"),
        "another program's": (header(application_id=77), JournalSchemaError, "use another path"),
        "nobody's": (header(application_id=0, user_version=0), JournalSchemaError, "use another path"),
        "a newer version's": (header(user_version=1000), JournalSchemaError, "upgrade mcp-tasks-client or"),
    }

    @pytest.mark.parametrize(("content", "error", "advice"), FILES.values(), ids=FILES)
    @pytest.mark.parametrize("wal", [False, True])
    async def test_what_is_not_ours_is_refused_and_left_as_it_is(
        self, path: Path, content: bytes, error: type[JournalError], advice: str, wal: bool
    ) -> None:
        if wal and len(content) > 20:  # as such a file looks like in write-ahead mode
            content = content[:18] + b"\2\2" + content[20:]
        path.write_bytes(content)
        path.chmod(0o644)
        before = contents(path.parent)

        with pytest.raises(error, match=advice) as caught:
            await opened(path)

        assert type(caught.value) is error
        assert str(path) in str(caught.value)
        assert contents(path.parent) == before

    @pytest.mark.parametrize(("application_id", "version"), [(77, 0), (APPLICATION_ID, 1000)])
    async def test_a_log_that_is_not_ours_is_left_beside_its_file(
        self, tmp_path: Path, application_id: int, version: int
    ) -> None:
        """To open such a file as SQLite does would move the log into the file."""
        theirs, path = tmp_path / "theirs.sqlite3", tmp_path / "crashed" / "journal.sqlite3"
        path.parent.mkdir()
        with raw(theirs) as connection:
            connection.execute(f"PRAGMA application_id = {application_id}")
            connection.execute(f"PRAGMA user_version = {version}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE theirs (x)")
            for suffix in ("", "-wal"):
                left = path.with_name(path.name + suffix)
                left.write_bytes(theirs.with_name(theirs.name + suffix).read_bytes())
        before = contents(path.parent)
        assert len(before) == 2

        with pytest.raises(JournalSchemaError):
            await opened(path)

        assert contents(path.parent) == before

    async def test_a_folder_is_refused(self, path: Path) -> None:
        path.mkdir(0o755)
        with pytest.raises(JournalError, match="is not a file; give the path of one"):
            await opened(path)
        assert list(path.iterdir()) == []

    @posix_only
    async def test_a_pipe_is_refused_without_waiting_for_its_other_end(self, path: Path) -> None:
        os.mkfifo(path)
        with pytest.raises(JournalError, match="is not a file"):
            await opened(path)

    async def test_a_file_with_two_names_is_refused(self, path: Path) -> None:
        """SQLite names the log after the file: what is committed under one name is lost for the other."""
        await write(path, record(record_id="r"))
        other = path.with_name("other.sqlite3")
        other.hardlink_to(path)
        before = contents(path.parent)
        for name in (path, other):
            with pytest.raises(JournalError, match=r"2 names \(hard links\).*remove all names but one"):
                await opened(name)
        assert contents(path.parent) == before
        other.unlink()
        await opened(path)

    async def test_a_file_where_a_folder_should_be_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"content")
        for path in (tmp_path / "file" / "journal.sqlite3", tmp_path / "file" / "a" / "journal.sqlite3"):
            with pytest.raises(JournalError, match="cannot be opened for writing") as caught:
                await opened(path)
            assert type(caught.value) is JournalError
        assert (tmp_path / "file").read_bytes() == b"content"

    async def test_an_empty_file_becomes_ours(self, path: Path) -> None:
        path.touch()
        await write(path, record(record_id="r"))
        assert stored(path) == ["r"]

    async def test_a_file_cut_short_is_damaged(self, path: Path) -> None:
        await write(path, *[record(state=observing("x" * 2_000)) for _ in range(50)])
        os.truncate(path, 5 * 4096)
        before = contents(path.parent)

        with pytest.raises(JournalCorruptError):
            await opened(path)

        assert contents(path.parent) == before

    async def test_a_checkpoint_cut_short_is_no_damage(self, path: Path) -> None:
        """The first page may say more than the file holds; the write-ahead log has the rest."""
        given = [record(state=observing("x" * 2_000)) for _ in range(50)]
        copy = path.with_name("copy.sqlite3")
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                for one in given:
                    await journal.save(one)
                before, log = path.read_bytes(), path.with_name(path.name + "-wal").read_bytes()
            copy.write_bytes(path.read_bytes()[:4096] + before[4096:])
            copy.with_name(copy.name + "-wal").write_bytes(log)
            async with SqliteJournal(copy) as journal:
                assert await journal.records(SCOPE) == given


@posix_only
class TestRights(OneLoop):
    @pytest.fixture(autouse=True)
    def generous_umask(self) -> Iterator[None]:
        before = os.umask(0)
        yield
        os.umask(before)

    async def test_files_and_new_folders_are_the_users_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "newer" / "journal.sqlite3"
        tmp_path.chmod(0o755)
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                await journal.save(record())
                rights = {file.name: mode(file) for file in path.parent.iterdir()}

        names = ("journal.sqlite3", "journal.sqlite3-wal", "journal.sqlite3-shm")
        assert rights == dict.fromkeys(names, 0o600)
        assert [mode(folder) for folder in (path.parent, path.parent.parent, tmp_path)] == [
            0o700,
            0o700,
            0o755,
        ]

    async def test_it_is_never_open_to_others_not_even_empty(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[int] = []
        monkeypatch.setattr(Path, "chmod", lambda file, mode: seen.append(mode))

        await opened(path)

        assert seen == []
        assert mode(path) == 0o600

    async def test_rights_that_are_too_wide_are_taken_away(self, path: Path) -> None:
        await write(path, record(record_id="r"))
        copy = path.with_name("copy.sqlite3")
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                await journal.save(record(record_id="s"))
                for suffix in ("", "-wal"):  # as a crash would leave them
                    left = copy.with_name(copy.name + suffix)
                    left.write_bytes(path.with_name(path.name + suffix).read_bytes())
                    left.chmod(0o664)
            async with SqliteJournal(copy):
                rights = {file.name: mode(file) for file in path.parent.glob("copy*")}

        assert len(rights) == 3
        assert set(rights.values()) == {0o600}
        assert stored(copy) == ["r", "s"]

    async def test_a_folder_that_others_can_write_to_is_warned_of_once(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        await opened(path)
        assert not caplog.records
        path.parent.chmod(0o777)
        for _ in range(2):
            await opened(path)
        (told,) = caplog.records
        assert f"every user of this machine can write to {path.parent}" in told.getMessage()
        assert told.levelno == logging.WARNING

    @pytest.mark.parametrize("kind", ["nfs4", "9p", "virtiofs", "fuse.sshfs", "ext4", "tmpfs", None])
    async def test_a_file_system_that_is_shared_with_other_machines_is_warned_of_once(
        self,
        path: Path,
        kind: str | None,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        device = path.parent.stat().st_dev
        mounts = path.parent / "mountinfo"
        if kind is not None:
            mounts.write_text(
                "22 1 0:1 / / rw,relatime shared:1 - overlay overlay rw\n"
                f"36 22 {os.major(device)}:{os.minor(device)} / /data rw - {kind} there rw,sync\n"
            )
        monkeypatch.setattr(sqlite_file, "_MOUNTS", mounts)
        for _ in range(2):
            await opened(path)
        told = [one.getMessage() for one in caplog.records]
        assert len(told) == (kind not in ("ext4", "tmpfs", None))
        named = (str(kind), str(path.parent), "PostgresJournal")
        assert all(name in one for one in told for name in named)

    async def test_a_symbolic_link_leads_to_the_file_it_names(self, tmp_path: Path) -> None:
        link, target = tmp_path / "link", tmp_path / "elsewhere" / "journal.sqlite3"
        link.symlink_to(target)

        await write(link, record(record_id="r"))

        assert stored(target) == ["r"]
        assert mode(target) == 0o600
        target.chmod(0o644)
        await opened(link)
        assert mode(target) == 0o600

    @pytest.mark.parametrize("what", ["file", "folder", "owner"])
    def test_what_may_not_be_written_is_refused(self, what: str) -> None:
        """By a child that gives up its privileges, as nothing is forbidden to root."""
        if what == "owner" and os.getuid() != 0:
            pytest.skip("only root can give a file to somebody else")
        body = """
import tempfile
with tempfile.TemporaryDirectory() as elsewhere:  # loads what is loaded late, while it can be read
    async with SqliteJournal(elsewhere + "/journal.sqlite3"):
        pass
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65_534)
    os.setuid(65_534)
try:
    await SqliteJournal(path).open()
except JournalError as error:
    print(type(error).__name__, str(error).replace(path, "PATH").partition(";")[0], sep="|")
"""
        # Not in tmp_path, whose parents are closed to all but root.
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            path = folder / "journal.sqlite3"
            anyio.run(write, path, record())
            path.chmod({"file": 0o400, "folder": 0o600, "owner": 0o666}[what])
            folder.chmod(0o500 if what == "folder" else 0o700)
            if os.getuid() == 0:
                os.chown(folder, 65_534, 65_534)
                os.chown(path, 0 if what == "owner" else 65_534, 65_534)
            before = contents(folder)

            told = " ".join(run_child(path, body))
            assert told.startswith("JournalError|the journal PATH cannot be opened for writing (")
            assert contents(folder) == before


class TestVersions(OneLoop):
    async def test_the_file_itself_says_whose_it_is_while_it_is_in_use(self, path: Path) -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                await journal.save(record())
                # The log holds what was saved; the first page must not depend on it.
                page = path.read_bytes()[:100]

        assert page.startswith(b"SQLite format 3\0")
        assert struct.unpack_from(">I", page, 60) == (VERSION,)
        assert struct.unpack_from(">I", page, 68) == (APPLICATION_ID,)

    async def test_a_file_of_an_unpublished_version_is_refused_with_a_word_and_left_as_it_is(
        self, path: Path
    ) -> None:
        with raw(path) as connection:
            connection.execute("CREATE TABLE records (generation TEXT)")
            connection.execute(f"PRAGMA application_id = {int.from_bytes(b'MCPT', 'big')}")
            connection.execute("PRAGMA user_version = 3")
        before = contents(path.parent)
        with pytest.raises(JournalSchemaError, match=r"before the first published one .* use another path"):
            await opened(path)
        assert contents(path.parent) == before

    async def test_the_schema_is_part_of_the_package(self) -> None:
        assert "CREATE TABLE records" in schema_sql()
        assert int.from_bytes(b"MCPJ", "big") == APPLICATION_ID


def plan(connection: sqlite3.Connection, statement: str, *, rows: int = 1) -> list[str]:
    """The steps by which SQLite executes a statement."""
    filled = STATEMENTS(statement, rows=rows)
    values = defaultdict(lambda: "[1]")
    marks = [1.0] * rows * len(filled.columns)
    query = f"EXPLAIN QUERY PLAN {filled.text}"
    found = connection.execute(query, marks or values).fetchall()
    return [step[3] for step in found]


MANY_MORE: Final = """
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
    INSERT INTO records SELECT NULL, 'done ' || i, endpoint, principal, tool, NULL, NULL,
    owner, fence, :created_at, updated_at, 1.0, state, task_id, status, 0,
    NULL, NULL, NULL, NULL, NULL, scope, NULL
    FROM records JOIN n WHERE sequence = 1
"""
"""Records that are over, like the first one."""


class TestQueries(OneLoop):
    @pytest.mark.parametrize(
        ("statement", "step"),
        [
            ("pending", "SEARCH records USING INDEX records_pending (scope=?)"),
            ("free", "SEARCH records USING INDEX records_pending (scope=?)"),
            ("by_task_id", "SEARCH records USING INDEX records_by_task (scope=? AND task_id=?)"),
            ("all", "SEARCH records USING INDEX records_by_task (scope=?)"),
            ("latest", "SEARCH records USING INDEX records_by_scope (scope=? AND created_at<?)"),
            ("latest_pending", "SEARCH records USING INDEX records_pending (scope=? AND created_at<?)"),
            ("asking", "SEARCH stored USING INDEX records_asking (scope=?)"),
            ("mine", "SEARCH records USING INDEX records_pending (scope=?)"),
            ("record", "SEARCH records USING INDEX sqlite_autoindex_records_1 (record_id=?)"),
        ],
    )
    async def test_each_finds_its_rows_by_an_index(self, path: Path, statement: str, step: str) -> None:
        await write(path)
        with raw(path) as connection:
            steps = plan(connection, statement)
        assert steps[0] == step
        # The pending ones come out of the index in their order; the others are sorted.
        if statement == "pending":
            assert len(steps) == 1

    @pytest.mark.parametrize("rows", [1, 16])
    @pytest.mark.parametrize(
        "statement",
        ["save_known", "forget_delivered", "deliver", "remove", "by_id", "instruct", "heed", "standing"],
    )
    async def test_given_rows_are_found_by_their_ids(self, path: Path, statement: str, rows: int) -> None:
        await write(path)
        with raw(path) as connection:
            steps = " ".join(plan(connection, statement, rows=rows))
        assert re.search(
            r"SEARCH (stored|records) USING INDEX sqlite_autoindex_records_1 \(record_id=\?\)", steps
        )
        assert not re.search(r"SCAN (stored|records|instruction)\b", steps)

    async def test_instructions_are_found_by_their_records(self, path: Path) -> None:
        await write(path)
        with raw(path) as connection:
            for statement in ("instruction", "instructions"):
                steps = " ".join(plan(connection, statement, rows=16))
                assert "SEARCH stored USING INDEX" in steps, statement
                assert "SCAN stored" not in steps, statement

    async def test_what_a_call_was_made_with_is_written_once(self, path: Path) -> None:
        given = record(idempotency_key="order-42", label="a", application="a", origin=Origin("a", "a", 1))
        changed = replace(given, state=observing(), label="b", application="b", origin=None, tool="b")
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                await journal.claim(given)
                await journal.save(changed, known=True)
                assert await journal.records(SCOPE) == [replace(given, state=changed.state)]

    async def test_what_is_old_is_found_by_indexes(self, path: Path) -> None:
        await write(path)
        expected = {
            "prune_delivered": {"records_delivered (delivered_at<?)", "records_expiring (expires_at<?)"},
            "prune_expired": {"records_expiring (expires_at<?)"},
            "delivered_since": {"records_delivered (delivered_at>?)"},
        }
        with raw(path) as connection:
            for statement, indexes in expected.items():
                steps = " ".join(plan(connection, statement))
                assert set(re.findall(r"records_(?:delivered|expiring) \(.*?\)", steps)) == indexes
                assert "SCAN" not in steps.replace("SCAN json_each", "")
            (owners,) = plan(connection, "owners")
            assert "COVERING INDEX records_by_owner" in owners, "which what was delivered is not in"

    async def test_the_pending_ones_cost_nothing_for_the_finished_ones(self, path: Path) -> None:
        """Counted in steps of SQLite's machine, not in time."""
        await write(path, *[record(state=observing()) for _ in range(3)])
        with raw(path) as connection:
            few = {which: steps(connection, "pending", in_scope=which) for which in (True, False)}
            connection.execute(MANY_MORE, {"created_at": 1_800_000_000.25})
            assert {which: steps(connection, "pending", in_scope=which) for which in few} == few
            assert steps(connection, "all", in_scope=True) > 2000

    async def test_the_last_ones_cost_nothing_for_the_older_ones(self, path: Path) -> None:
        """Likewise."""
        await write(path, *[record(created_at=9.0, state=finished(), delivered_at=9.0) for _ in range(5)])
        with raw(path) as connection:
            few = {which: steps(connection, "latest", in_scope=which) for which in (True, False)}
            connection.execute(MANY_MORE, {"created_at": 1.0})
            assert {which: steps(connection, "latest", in_scope=which) for which in few} == few
            assert steps(connection, "all", in_scope=True) > 2000

    async def test_people_can_look_at_it_with_any_sqlite_shell(self, path: Path) -> None:
        await write(
            path,
            record(idempotency_key="order-42", state=observing("task-1")),
            record(idempotency_key="Bücher\0", state=finished(), delivered_at=9.0),
        )
        with raw(path) as connection:
            rows = connection.execute(
                "SELECT endpoint, tool, idempotency_key, task_id, status, pending, due_at FROM records"
            ).fetchall()

        assert rows == [
            ("https://mcp.example/", "report", "order-42", "task-1", "working", 1, 2.5),
            ("https://mcp.example/", "report", r"B\xfccher\x00", None, "completed", 0, None),
        ]


def steps(connection: sqlite3.Connection, statement: str, *, in_scope: bool) -> int:
    counted = 0

    def step() -> None:
        nonlocal counted
        counted += 1

    query = STATEMENTS(statement, in_scope=in_scope).text
    arguments = defaultdict(lambda: None, scope=scope_digest(SCOPE), before_at=math.inf, limit=5)
    connection.execute(query, arguments).fetchall()  # reads the schema, the first time
    connection.set_progress_handler(step, 1)
    connection.execute(query, arguments).fetchall()
    connection.set_progress_handler(None, 0)
    return counted


class TestEnvironment(OneLoop):
    async def test_a_sqlite_that_is_too_old_is_refused_with_a_word(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 32, 3))
        with pytest.raises(JournalError, match=r"needs 3\.33 or newer; use another build of Python"):
            await opened(path)
        with pytest.raises(JournalError, match=r"needs 3\.33 or newer"):
            MemoryJournal()
        assert not path.exists()

    def test_a_journal_in_memory_serves_until_the_interpreter_has_ended(self, path: Path) -> None:
        body = """
import atexit
from mcp_tasks_client import MemoryJournal
def use():
    try:
        anyio.run(journal.records, SCOPE)
        print("served", flush=True)
    except BaseException as error:
        print(type(error).__name__, flush=True)
atexit.register(use)  # functions of the exit run in the opposite order
journal = MemoryJournal()
await journal.open()
"""
        assert run_child(path, body.replace("journal = ", "global journal\njournal = ")) == ["served"]

    async def test_a_lease_source_that_fails_at_the_end_does_not_keep_the_file_open(
        self, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(thread, "_CLOSING_S", 1000.0)

        class Fails(Source):
            def end(self) -> bool:
                raise RuntimeError("no end")

        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                journal.keep_renewing(Fails())
        assert "no end" in caplog.text


class TestPath(OneLoop):
    def test_without_a_path_it_is_the_users_own(self) -> None:
        state = platformdirs.user_state_path("mcp-tasks-client", appauthor=False)
        assert SqliteJournal().path == state / "journal.sqlite3"

    def test_a_relative_path_stays_where_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        journal = SqliteJournal("journal.sqlite3")
        monkeypatch.chdir("/")
        assert journal.path == tmp_path / "journal.sqlite3"
        assert repr(journal) == f"SqliteJournal({str(tmp_path / 'journal.sqlite3')!r})"

    @pytest.mark.parametrize("name", ["a b?mode=memory&x=%20#é.db", "file:x?mode=ro", "no\\suffix"])
    async def test_any_name_is_taken_literally(self, tmp_path: Path, name: str) -> None:
        await write(tmp_path / name, record(record_id="r"))
        assert [file.name for file in tmp_path.iterdir()] == [name]
        assert stored(tmp_path / name) == ["r"]

    def test_memory_is_the_other_journals(self) -> None:
        with pytest.raises(ValueError, match=r"use MemoryJournal\(\)"):
            SqliteJournal(":memory:")

    @pytest.mark.parametrize("busy_timeout_s", [-1.0, float("nan"), float("inf"), 1e9])
    def test_a_timeout_must_be_a_time(self, busy_timeout_s: float) -> None:
        with pytest.raises(ValueError, match="busy_timeout_s must be between 0 and"):
            SqliteJournal("journal.sqlite3", busy_timeout_s=busy_timeout_s)

    async def test_an_argument_may_be_a_path_or_a_journal(self, tmp_path: Path) -> None:
        memory = MemoryJournal()
        assert choose_journal(memory) is memory
        chosen = choose_journal(tmp_path / "journal.sqlite3")
        assert chosen.identity == tmp_path / "journal.sqlite3"
        assert choose_journal(None).identity == SqliteJournal().path
        with pytest.raises(TypeError, match="must be a path, a Journal or None, not int"):
            choose_journal(7)  # type: ignore[arg-type]
