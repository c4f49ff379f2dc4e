"""An inbox makes nothing, and needs no right to write: a file, a folder or a role that may only be read."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import psycopg
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import (
    BlockingInbox,
    Inbox,
    Instruction,
    Journal,
    JournalError,
    MemoryJournal,
    PostgresJournal,
    SqliteJournal,
    TaskRecord,
)
from mcp_tasks_client.journal.sqlite import journal as sqlite_journal
from mcp_tasks_client.journal.sqlite.file import read_unwritable
from mcp_tasks_client.machine.states import AskedQuestion
from mcp_tasks_client.testing.samples import finished, observing, record
from tests.journal.files import SHORT_S, child, contents, line, posix_only, raw

pytestmark = pytest.mark.anyio

NOBODY: Final = 65_534
ASK: Final = {
    "method": "elicitation/create",
    "params": {"message": "Name?", "requestedSchema": {"type": "object", "properties": {}}},
}


def asking(record_id: str = "asks") -> TaskRecord:
    """A call whose question waits for an answer."""
    state = observing(status="input_required", inputRequests={"k": ASK})
    questions = (AskedQuestion(key="k", digest="d", asked_at=1.0, request=ASK),)
    return record(record_id=record_id, state=replace(state, questions=questions))


async def written(journal: Journal, *records: TaskRecord) -> None:
    with anyio.fail_after(30):
        async with journal:
            for one in records:
                await journal.save(one)


# ── nothing is made ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("there", ["nothing", "no folder", "an empty file", "a file in place of a folder"])
async def test_where_no_journal_is_an_inbox_says_so_and_makes_none(tmp_path: Path, there: str) -> None:
    path = tmp_path / "journal.sqlite3"
    if there == "no folder":
        path = tmp_path / "mistyped" / "journal.sqlite3"
    elif there == "an empty file":
        path.touch()
    elif there == "a file in place of a folder":
        path.write_text("A note.")
        path /= "journal.sqlite3"
    before = contents(tmp_path)
    inbox = Inbox(path)
    for _ in range(2):
        with anyio.fail_after(30), pytest.raises(JournalError) as caught:
            await inbox.__aenter__()
        assert str(caught.value).startswith(f"there is no journal at {path}, and an inbox makes none")
    assert contents(tmp_path) == before


async def test_the_users_own_journal_is_not_made_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own" / "journal.sqlite3"
    monkeypatch.setattr(sqlite_journal, "_users_own", lambda: path)
    with anyio.fail_after(30), pytest.raises(JournalError, match=f"no journal at {path}"):
        await Inbox().__aenter__()
    assert list(tmp_path.iterdir()) == []
    await written(SqliteJournal(path), record(record_id="r"))
    with anyio.fail_after(30):
        async with Inbox() as inbox:
            assert [one.record_id for one in await inbox.records()] == ["r"]


async def test_a_journal_that_was_made_a_moment_ago_is_found(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    with anyio.fail_after(30):
        async with SqliteJournal(path) as journal, Inbox(path) as inbox:
            await journal.save(given := record())
            assert await inbox.records() == [given]
        async with Inbox(path) as inbox:
            assert await inbox.records() == [given]
        async with MemoryJournal() as memory, Inbox(memory) as inbox:
            assert await inbox.records() == []


def test_without_an_event_loop_it_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    with pytest.raises(JournalError, match="an inbox makes none"), BlockingInbox(path):
        pass
    assert list(tmp_path.iterdir()) == []
    anyio.run(written, SqliteJournal(path), asking())
    with BlockingInbox(path) as inbox:
        (question,) = inbox.questions()
        question.decline()
        assert inbox.questions() == []


async def test_a_log_without_its_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    path.with_name(f"{path.name}-wal").write_bytes(b"what was committed" * 100)
    before = contents(tmp_path)
    with anyio.fail_after(30), pytest.raises(JournalError, match="missing or empty, but its log"):
        await Inbox(path).__aenter__()
    assert contents(tmp_path) == before


async def test_an_inbox_that_has_left_nothing_waits_for_no_writer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor when it is closed: a page may open one for each request."""
    path = tmp_path / "journal.sqlite3"
    caplog.set_level(logging.WARNING, "mcp_tasks_client")
    with anyio.fail_after(30):
        async with SqliteJournal(path, busy_timeout_s=SHORT_S) as journal:
            await journal.save(asking())
            with raw(path) as other:
                other.execute("BEGIN IMMEDIATE")
                async with Inbox(path) as inbox:
                    assert len(await inbox.questions()) == 1
    assert caplog.records == []


# ── a file or a folder that may only be read ──────────────────────────────────────────────────────

READS: Final = """
import tempfile
from mcp_tasks_client import Inbox, TasksClient
with tempfile.TemporaryDirectory() as elsewhere:  # loads what is loaded late, while it can be read
    other = elsewhere + "/journal.sqlite3"
    async with SqliteJournal(other) as journal, Inbox(other) as inbox:
        await journal.save(record())
        await inbox.records(), await inbox.questions()
    import mcp_types
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65_534)
    os.setuid(65_534)
def say(*words):
    print(*words, sep="|", flush=True)
try:
    async with Inbox(path) as inbox:
        while True:
            say(*[one.record_id for one in await inbox.records()])
            questions = await inbox.questions()
            say(*[one.record_id for one in questions])
            if not sys.stdin.readline().strip():
                break
        for write in (questions[0].decline, lambda: inbox.prune(60)):
            try:
                await write()
                say("written")
            except JournalError as error:
                say(str(error).replace(path, "PATH").partition(";")[0])
except JournalError as error:
    say("refused", str(error).replace(path, "PATH").partition(";")[0])
"""

RIGHTS: Final = {
    "file": (0o400, 0o700),
    "folder": (0o600, 0o500),
    "both": (0o400, 0o500),
    "another user's": (0o644, 0o755),
}
NO_FILE: Final = (
    "the journal PATH may only be read here: this process has no right to write the file journal.sqlite3"
)
NO_FOLDER: Final = "the journal PATH may only be read here: this process has no right to write to the folder "


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not in tmp_path, whose parents are closed to all but root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder
        folder.chmod(0o700)


def close_to_writers(folder: Path, what: str) -> dict[str, tuple[int, bytes]]:
    """Take the right to write from a user who is not root. Returns what the folder then holds."""
    of_files, of_folder = RIGHTS[what]
    if what == "another user's" and os.getuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    owner = 0 if what == "another user's" else NOBODY
    for file in (*folder.iterdir(), folder):
        if os.getuid() == 0:
            os.chown(file, owner, owner)
        file.chmod(of_folder if file == folder else of_files)
    return contents(folder)


@posix_only
@pytest.mark.parametrize("what", RIGHTS)
def test_a_journal_that_nobody_has_open_is_read_without_the_right_to_write(folder: Path, what: str) -> None:
    path = folder / "journal.sqlite3"
    anyio.run(written, SqliteJournal(path), record(record_id="r", state=finished()), asking())
    before = close_to_writers(folder, what)
    with child(path, READS) as process:
        assert line(process) == "r|asks"
        assert line(process) == "asks"
        process.stdin.write("\n")
        process.stdin.flush()
        for _ in range(2):
            assert line(process).startswith(NO_FOLDER if what == "folder" else NO_FILE)
        process.wait()
    assert contents(folder) == before, "nothing is made, changed or left beside it"


@posix_only
@pytest.mark.parametrize("what", RIGHTS)
async def test_a_journal_that_a_living_process_writes_is_read_as_it_is_then(folder: Path, what: str) -> None:
    path = folder / "journal.sqlite3"
    with anyio.fail_after(60):
        async with SqliteJournal(path) as journal:
            await journal.save(record(record_id="r", state=finished()))
            close_to_writers(folder, what)
            with child(path, READS) as process:
                assert await anyio.to_thread.run_sync(line, process) == "r"
                assert await anyio.to_thread.run_sync(line, process) == ""
                await journal.save(asking())
                process.stdin.write("again\n")
                process.stdin.flush()
                assert await anyio.to_thread.run_sync(line, process) == "r|asks"
                assert await anyio.to_thread.run_sync(line, process) == "asks"
                process.stdin.write("\n")
                process.stdin.flush()
                told = [await anyio.to_thread.run_sync(line, process) for _ in range(2)]
                if what == "folder":  # the writer has made the log, which may be written
                    assert told == ["written", "written"]
                else:
                    assert all(one.startswith(NO_FILE) for one in told)
                await anyio.to_thread.run_sync(process.wait)
            await journal.save(record(record_id="later"))
            assert [one.record_id for one in await journal.records(None)] == ["r", "asks", "later"]


@posix_only
@pytest.mark.parametrize("what", RIGHTS)
def test_what_a_process_had_committed_when_it_was_killed_is_read(folder: Path, what: str) -> None:
    path = folder / "journal.sqlite3"
    body = """
journal = SqliteJournal(path)
await journal.open()
await journal.save(record(record_id="killed", state=observing()))
print("done", flush=True)
os.read(0, 1)
"""
    with child(path, body) as process:
        assert line(process) == "done"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert {file.name for file in folder.iterdir()} > {path.name}
    before = close_to_writers(folder, what)
    with child(path, READS) as process:
        assert line(process) == "killed"
    assert contents(folder).keys() == before.keys()


@posix_only
async def test_a_writer_that_comes_and_goes_is_seen(folder: Path) -> None:
    path = folder / "journal.sqlite3"
    with anyio.fail_after(60):
        await written(SqliteJournal(path), record(record_id="r"))
        close_to_writers(folder, "both")
        with child(path, READS) as process:
            assert await anyio.to_thread.run_sync(line, process) == "r"
            assert await anyio.to_thread.run_sync(line, process) == ""
            folder.chmod(0o700)
            path.chmod(0o600)
            await written(SqliteJournal(path), asking())
            process.stdin.write("again\n")
            process.stdin.flush()
            assert await anyio.to_thread.run_sync(line, process) == "r|asks"


def test_a_file_that_changes_while_it_is_read_is_read_once_more(tmp_path: Path) -> None:
    """By a writer that has come and gone meanwhile, or is still there."""
    path, found = tmp_path / "journal.sqlite3", list[int]()
    anyio.run(written, SqliteJournal(path), record())
    for stays in (False, True):
        found.clear()
        with ExitStack() as stack:

            def read(connection: sqlite3.Connection, stays: bool = stays, stack: ExitStack = stack) -> None:
                (count,) = connection.execute("SELECT count(*) FROM records").fetchone()
                found.append(count)
                if len(found) == 1:
                    with raw(path) as other:
                        other.execute(COPY)
                        if stays:
                            stack.enter_context(raw(path)).execute(COPY)

            read_unwritable(path, 1.0, read)
        assert found == ([2, 4] if stays else [1, 2])


COPY: Final = """
    INSERT INTO records SELECT NULL, record_id || '+' || (SELECT count(*) FROM records), endpoint, principal,
    tool, arguments_digest, NULL, owner, fence, created_at, updated_at, delivered_at, state, task_id, status,
    pending, due_at, expires_at, label, application, origin, scope, NULL FROM records LIMIT 1
"""


@posix_only
def test_a_file_that_may_not_be_read_is_told(folder: Path) -> None:
    path = folder / "journal.sqlite3"
    anyio.run(written, SqliteJournal(path), record())
    close_to_writers(folder, "file")
    path.chmod(0o000)
    with child(path, READS) as process:
        assert line(process).startswith("refused|the journal PATH cannot be read (Permission denied)")


@posix_only
def test_another_programs_file_is_refused_without_the_right_to_write_too(folder: Path) -> None:
    path = folder / "journal.sqlite3"
    path.write_bytes(b"This is no database." * 100)
    close_to_writers(folder, "both")
    with child(path, READS) as process:
        assert line(process).startswith("refused|the journal PATH is damaged or no database at all")


@posix_only
def test_a_client_beside_an_inbox_that_may_only_read_is_told_that_it_may_not_write(folder: Path) -> None:
    path = folder / "journal.sqlite3"
    anyio.run(written, SqliteJournal(path), record(record_id="r"))
    close_to_writers(folder, "both")
    body = (
        READS.partition("try:\n    async with")[0]
        + """
async with Inbox(path) as inbox:
    for _ in range(2):
        try:
            await SqliteJournal(path).open()
        except JournalError as error:
            say(str(error).replace(path, "PATH").partition(";")[0])
    say(*[one.record_id for one in await inbox.records()])
"""
    )
    with child(path, body) as process:
        assert line(process).startswith(NO_FILE)
        assert line(process).startswith(NO_FILE)
        assert line(process) == "r"


async def test_an_inbox_shares_what_a_client_of_its_process_has_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a new opening would find no right to write."""
    path = tmp_path / "journal.sqlite3"
    with anyio.fail_after(30):
        async with SqliteJournal(path) as journal:
            await journal.save(asking())
            monkeypatch.setattr(os, "access", lambda *_: False)
            async with Inbox(path) as inbox:
                (question,) = await inbox.questions()
                await question.decline()
            assert [one.name for one in await journal.instructions("asks")] == [question.question_id]


async def test_an_inbox_that_may_only_read_tells_of_new_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite3"
    await written(SqliteJournal(path), asking())
    monkeypatch.setattr(os, "access", lambda _, right: right != os.W_OK)
    with anyio.fail_after(30):
        async with Inbox(path) as inbox:
            questions = inbox.asked()
            first = await anext(questions)
            with raw(path) as other:
                other.execute(COPY)
            second = await anext(questions)
            assert (first.record_id, second.record_id) == ("asks", "asks+1")
            with pytest.raises(JournalError, match="may only be read here"):
                await second.decline()


async def test_a_journal_of_somebody_elses_is_opened_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    """One that knows nothing of reading alone, and counts its users in its own way."""

    class Theirs(MemoryJournal):
        users = 0

        async def open(self) -> None:
            await super().open()
            self.users += 1

    caplog.set_level(logging.WARNING, "mcp_tasks_client")
    journal = Theirs()
    async with Inbox(journal) as inbox:
        assert journal.users == 1
        assert await inbox.records() == []
    assert caplog.records == []


# ── a role that may only read ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def own_schema(postgres: str) -> Iterator[str]:
    name = f"own_{uuid.uuid4().hex}"
    yield name
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


@contextmanager
def reader_of(postgres: str, schema: str) -> Iterator[str]:
    """The address of a user who has SELECT alone."""
    user = f"reader_{schema}"[:60]
    with psycopg.connect(postgres, autocommit=True) as connection:
        for statement in (
            f"CREATE ROLE {user} LOGIN",
            f"GRANT USAGE ON SCHEMA {schema} TO {user}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {user}",
        ):
            connection.execute(statement.encode())
        yield psycopg.conninfo.make_conninfo(postgres, user=user)
        connection.execute(f"DROP OWNED BY {user}".encode())
        connection.execute(f"DROP ROLE {user}".encode())


async def test_a_role_that_may_only_read_has_an_inbox(
    postgres: str, own_schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mcp_tasks_client")
    with anyio.fail_after(60):
        async with PostgresJournal(postgres, schema=own_schema) as journal:
            await journal.save(given := asking())
            with reader_of(postgres, own_schema) as address:
                theirs = PostgresJournal(address, schema=own_schema)
                async with Inbox(theirs) as inbox:
                    assert await inbox.records() == [given]
                    assert await inbox.record(given.record_id) == given
                    assert not await inbox.is_driven(given)
                    (question,) = await inbox.questions()
                    writes: list[Callable[[], Any]] = [
                        question.decline,
                        lambda: inbox.answer(question.question_id, ElicitResult(action="cancel")),
                        lambda: inbox.cancel(given),
                        inbox.prune,
                    ]
                    for write in writes:
                        with pytest.raises(
                            JournalError, match="no right to INSERT, UPDATE, DELETE"
                        ) as caught:
                            await write()
                        assert "may only be read here" in str(caught.value)
                    await journal.instruct(given.record_id, Instruction(question.question_id, "{}", 7.0))
                    assert await inbox.questions() == []
                    with pytest.raises(JournalError, match="may only be read here"):
                        await PostgresJournal(address, schema=own_schema).open()
                    assert await inbox.records() == [given]
    assert caplog.records == []


async def test_sessions_that_are_read_only_have_an_inbox(postgres: str, own_schema: str) -> None:
    options = "-c default_transaction_read_only=on"
    address = psycopg.conninfo.make_conninfo(postgres, target_session_attrs="any", options=options)
    with anyio.fail_after(60):
        async with PostgresJournal(postgres, schema=own_schema) as journal:
            await journal.save(given := asking())
        async with Inbox(PostgresJournal(address, schema=own_schema)) as inbox:
            (question,) = await inbox.questions()
            with pytest.raises(JournalError, match="are read-only; take default_transaction_read_only away"):
                await question.decline()
            assert await inbox.records() == [given]


async def test_in_a_schema_without_a_journal_an_inbox_makes_none(postgres: str, own_schema: str) -> None:
    with (
        anyio.fail_after(30),
        pytest.raises(JournalError, match=r"there is no journal .* an inbox makes none"),
    ):
        await Inbox(PostgresJournal(postgres, schema=own_schema)).__aenter__()
    with psycopg.connect(postgres) as connection:
        found = connection.execute("SELECT to_regnamespace(%s)", (own_schema,)).fetchone()
    assert found == (None,)
    with anyio.fail_after(30):
        async with PostgresJournal(postgres, schema=own_schema) as journal, Inbox(journal) as inbox:
            assert await inbox.records() == []
        async with Inbox(PostgresJournal(postgres, schema=own_schema)) as inbox:
            assert await inbox.records() == []
