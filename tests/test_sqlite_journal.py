"""What only the journal on disk promises: durability, one file for many processes, and care with files."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import anyio
import platformdirs
import pytest
from anyio import from_thread, to_thread

from mcp_tasks_client.errors import JournalCorruptError, JournalError, JournalLockedError, JournalSchemaError
from mcp_tasks_client.journal import sqlite_file
from mcp_tasks_client.journal.base import TaskRecord
from mcp_tasks_client.journal.sqlite import _ALL, _BY_KEY, _BY_TASK, _PENDING, SqliteJournal
from mcp_tasks_client.journal.sqlite_file import APPLICATION_ID, scripts
from mcp_tasks_client.states import Completed, Finished
from tests.test_journal_contract import SCOPE, finished, observing, record

pytestmark = pytest.mark.anyio

posix_only = pytest.mark.skipif(os.name == "nt", reason="Windows has neither these rights nor these signals")
SHORT_S: Final = 0.05
"""A busy timeout for tests in which the lock is never released."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as any other program would see it."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        yield connection


def stored(path: Path) -> list[str]:
    with raw(path) as connection:
        return [row[0] for row in connection.execute("SELECT record_id FROM records ORDER BY sequence")]


async def written(path: Path, *records: TaskRecord) -> None:
    with anyio.fail_after(30):
        async with SqliteJournal(path) as journal:
            for one in records:
                await journal.save(one)


async def opened(path: Path, busy_timeout_s: float = SHORT_S) -> None:
    """Open and close, bounded."""
    with anyio.fail_after(30):
        async with SqliteJournal(path, busy_timeout_s=busy_timeout_s):
            pass


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that a folder holds: names, rights and bytes."""
    return {file.name: (file.stat().st_mode, file.read_bytes()) for file in folder.iterdir()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@dataclass
class Spy:
    """The connections that journals make, and the statements they run."""

    connections: list[sqlite3.Connection] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda statement: None

    @property
    def commits(self) -> int:
        return self.statements.count("COMMIT")

    def __call__(self, statement: str) -> None:
        self.statements.append(statement)
        self.before(statement)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    spy, connect = Spy(), sqlite3.connect

    def spied(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = connect(*args, **kwargs, check_same_thread=False)
        connection.set_trace_callback(spy)
        spy.connections.append(connection)
        return connection

    monkeypatch.setattr(sqlite_file.sqlite3, "connect", spied)
    return spy


PREAMBLE: Final = """
import os, sys, anyio
from mcp_tasks_client.errors import JournalError
from mcp_tasks_client.journal.sqlite import SqliteJournal
from tests.test_journal_contract import SCOPE, finished, observing, record
path = sys.argv[1]
"""


@contextmanager
def child(path: Path, body: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that runs ``body``, an async function's, with the journal's ``path``."""
    lines = "\n    ".join(body.strip().splitlines())
    source = f"{PREAMBLE}\nasync def main():\n    {lines}\n\nanyio.run(main)\n"
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", source, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))},
    )
    with process:
        # What blocks on the child below ends with the child, and the child ends here at the latest.
        deadline = threading.Timer(60, process.kill)
        deadline.start()
        try:
            yield process
        finally:
            deadline.cancel()
            process.kill()


def run_child(path: Path, body: str) -> list[str]:
    with child(path, body) as process:
        output, _ = process.communicate()
        assert process.returncode == 0
    return output.split()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


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

    @pytest.mark.parametrize("write", ["save", "claim", "remove"])
    async def test_nobody_is_woken_before_the_commit(self, path: Path, spy: Spy, write: str) -> None:
        committing, go_on, returned = anyio.Event(), threading.Event(), anyio.Event()

        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal, from_thread.BlockingPortal() as portal:

                def before(statement: str) -> None:
                    if statement == "COMMIT":
                        portal.start_task_soon(committing.set)
                        go_on.wait(30)

                async def call() -> None:
                    await getattr(journal, write)("r" if write == "remove" else record(record_id="r"))
                    returned.set()

                spy.before = before
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call)
                    try:
                        await committing.wait()
                        await anyio.wait_all_tasks_blocked()
                        assert not returned.is_set()
                    finally:
                        go_on.set()
                    await returned.wait()

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

    async def test_readers_need_no_transaction(self, path: Path, spy: Spy) -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(path, busy_timeout_s=SHORT_S) as journal:
                await journal.save(given := record(state=observing()))
                spy.statements.clear()
                with raw(path) as other:
                    other.execute("BEGIN EXCLUSIVE")
                    assert await journal.records(SCOPE, pending=True) == [given]
                assert not [one for one in spy.statements if one.startswith("BEGIN")]

    async def test_a_cancelled_write_is_finished_by_closing(self, path: Path) -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await journal.save(record(record_id="r"))

        assert stored(path) == ["r"]
        assert "mcp-tasks-journal" not in {thread.name for thread in threading.enumerate()}

    def test_a_loop_that_has_closed_is_not_waited_for(self, path: Path, spy: Spy) -> None:
        """The write lands, and the journal serves the next loop."""
        committing, go_on, given = threading.Event(), threading.Event(), record()

        def before(statement: str) -> None:
            if statement == "COMMIT":
                committing.set()
                go_on.wait(30)

        journal = SqliteJournal(path)

        async def abandon() -> None:
            with anyio.fail_after(30):
                await journal.open()
                spy.before = before
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(journal.save, given)
                    await to_thread.run_sync(committing.wait, 30)
                    tasks.cancel_scope.cancel()

        async def go_on_elsewhere() -> list[TaskRecord]:
            with anyio.fail_after(30):
                records = await journal.records(SCOPE)
                await journal.aclose()
            return records

        for backend in ("asyncio", "trio"):
            anyio.run(abandon, backend=backend)
            spy.before = lambda statement: None
            go_on.set()
            assert anyio.run(go_on_elsewhere, backend=backend) == [given]
            committing.clear()
            go_on.clear()

    @posix_only
    def test_a_journal_that_nobody_closed_does_not_keep_the_process(self, path: Path) -> None:
        body = """
await SqliteJournal(path).open()
print("end")
"""
        assert run_child(path, body) == ["end"]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_a_fork_cannot_use_its_parents_journal(self, path: Path) -> None:
        body = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside a thread: that is the point
journal = SqliteJournal(path)
await journal.open()
pid = os.fork()
try:
    await journal.save(record(record_id="r"))
    print("saved", flush=True)
except JournalError as error:
    print("refused" if "before a fork" in str(error) else error, flush=True)
await journal.aclose()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
"""
        assert sorted(run_child(path, body)) == ["refused", "saved"]
        assert stored(path) == ["r"]


class TestFailures:
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
                with paused(spy):
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(journal.save, record(record_id="first"))
                        for one in good[:2]:
                            tasks.start_soon(journal.save, one)
                        tasks.start_soon(refused)
                        tasks.start_soon(refused)
                        for one in good[2:]:
                            tasks.start_soon(journal.save, one)

        assert spy.commits - before <= 3
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
                assert await journal.records(SCOPE) == [await by_id(journal, "before")]
                connection.execute("PRAGMA max_page_count = 1000000")
                await journal.save(record(record_id="after", state=big))

        assert len(failed) == 5
        assert all("no room left" in message and str(path) in message for message in failed)
        assert stored(path) == ["before", "after"]

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

    async def test_a_row_that_cannot_be_read_names_its_record(self, path: Path) -> None:
        damages = [
            "state = '{}'",
            "state = 'nonsense'",
            "state = x'00ff'",
            "state = CAST(x'ff' AS TEXT)",
            f"state = '{'[' * 100_000}'",
            "created_at = 'yesterday'",
            "tool = CAST(x'ff' AS TEXT)",
        ]
        for damage in damages:
            await written(path, record(record_id="r", idempotency_key="order-42", state=observing()))
            with raw(path) as connection:
                connection.execute(f"UPDATE records SET {damage}")
            with anyio.fail_after(30):
                async with SqliteJournal(path) as journal:
                    reads: list[Callable[[], Awaitable[object]]] = [
                        lambda: journal.by_key(SCOPE, "order-42"),
                        lambda: journal.by_task_id(SCOPE, "task-1"),
                        lambda: journal.records(SCOPE),
                        lambda: journal.records(SCOPE, pending=True),
                        lambda: journal.claim(record(idempotency_key="order-42")),
                    ]
                    for read in reads:
                        with pytest.raises(JournalCorruptError, match="record 'r' cannot be read"):
                            await read()
                    await journal.save(record(record_id="r", state=observing()))
                    assert (await by_id(journal, "r")).task_id == "task-1"

    async def test_an_error_about_a_row_does_not_quote_it(self, path: Path) -> None:
        await written(path, record(state=observing()))
        with raw(path) as connection:
            connection.execute("""UPDATE records SET state = '{"kind": "observing", "task": "my secret"}'""")

        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                with pytest.raises(JournalCorruptError) as caught:
                    await journal.records(SCOPE)

        assert "my secret" not in str(caught.value)
        assert caught.value.__cause__ is None

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


async def by_id(journal: SqliteJournal, record_id: str) -> TaskRecord:
    (found,) = [one for one in await journal.records(SCOPE) if one.record_id == record_id]
    return found


@contextmanager
def paused(spy: Spy) -> Iterator[None]:
    """Hold the first commit for a moment, so that what is asked for meanwhile shares the second."""
    ...
    yield
