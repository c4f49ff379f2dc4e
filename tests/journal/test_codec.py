"""What is private in a journal goes through the host's codec, and what cannot be decoded is kept."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from sqlite3 import connect
from typing import Any, Final, Protocol

import anyio
import psycopg
import pytest
from cryptography.fernet import Fernet
from mcp_types import ElicitResult

from mcp_tasks_client import (
    Codec,
    FernetCodec,
    Inbox,
    Instruction,
    Journal,
    PostgresJournal,
    SqliteJournal,
    TaskHandle,
    TasksClient,
)
from mcp_tasks_client.errors import JournalCodecError
from mcp_tasks_client.journal.codec import decoded, encoded
from mcp_tasks_client.journal.copy.__main__ import main as copy
from mcp_tasks_client.journal.row import Row
from mcp_tasks_client.protocol.text import digest
from mcp_tasks_client.testing.samples import SCOPE, finished, observing, record, with_key
from tests._results import text
from tests.engine.world import TASK, World
from tests.real_server import RealServer

pytestmark = pytest.mark.anyio

OLD, NEW = Fernet.generate_key(), Fernet.generate_key()
RIGHT, WRONG = FernetCodec(OLD), FernetCodec(NEW)

ANSWER: Final = Instruction("answer: name", '{"action":"accept"}', 1_800_000_002.0)
CANCEL: Final = Instruction("cancel", "", 1_800_000_003.0)


class Stored(Protocol):
    """A journal's medium: what it holds, whoever looks, and journals that keep it."""

    def __call__(self, codec: Codec | None) -> Journal: ...

    def rows(self, table: str) -> list[tuple[Any, ...]]: ...

    def everything(self) -> bytes: ...


class File:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, codec: Codec | None) -> SqliteJournal:
        return SqliteJournal(self.path, codec=codec)

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        with closing(connect(self.path)) as connection:
            return connection.execute(f"SELECT * FROM {table}").fetchall()

    def everything(self) -> bytes:
        return b"".join(file.read_bytes() for file in self.path.parent.iterdir())


class Database:
    def __init__(self, dsn: str, schema: str) -> None:
        self.dsn, self.schema = dsn, schema

    def __call__(self, codec: Codec | None) -> PostgresJournal:
        return PostgresJournal(self.dsn, schema=self.schema, codec=codec)

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(f"SELECT * FROM {self.schema}.{table}".encode()).fetchall()

    def everything(self) -> bytes:
        tables = "meta", "records", "instructions", "durations", "leases", "writers"
        return repr([self.rows(table) for table in tables]).encode()


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request: pytest.FixtureRequest, path: Path) -> Stored:
    if request.param == "sqlite":
        path = path.parent / "alone" / path.name
        path.parent.mkdir()
        return File(path)
    request.getfixturevalue("postgres_journal")  # empties the schema
    return Database(request.getfixturevalue("postgres"), request.getfixturevalue("schema"))


# ── what stays in clear ───────────────────────────────────────────────────────────────────────────


ASKED, GIVEN = "Which version of purple-otter?", "secret-7.3.1"
RETURNED: Final = "purple-otter secret-7.3.1 is deployed"
DIGEST: Final = digest({"service": "purple-otter"})
IN_CLEAR: Final = "order-42", "the otter's label", "payroll", "ada", "deploy", "input_required"


@pytest.mark.parametrize("codec", [RIGHT, None], ids=["encrypted", "in clear"])
async def test_no_argument_question_answer_or_result_of_a_call_is_stored_in_clear(
    stored: Stored, codec: Codec | None, real_server: RealServer
) -> None:
    seen = b""
    with anyio.fail_after(30):
        async with (
            TasksClient(
                real_server.url,
                journal=stored(codec),
                elicitation="later",
                principal="ada",
                application="payroll",
            ) as client,
            Inbox(stored(codec)) as inbox,
        ):
            handle = await client.start_tool(
                "deploy",
                {"service": "purple-otter"},
                idempotency_key="order-42",
                label="the otter's label",
            )
            await until_asked(handle)
            seen += stored.everything()
            (question,) = await inbox.questions()
            assert question.params is not None
            await inbox.answer(
                question.question_id, ElicitResult(action="accept", content={"version": GIVEN})
            )
            seen += stored.everything()
            async for _ in handle.updates():
                pass
            seen += stored.everything()
            assert text(await handle.result()) == RETURNED
        seen += stored.everything()

    for name in (*IN_CLEAR, str(handle.task_id)):
        assert name.encode() in seen, name
    for private in (ASKED, GIVEN, RETURNED, DIGEST, "purple-otter"):
        assert (private.encode() in seen) is (codec is None), private


async def until_asked(handle: TaskHandle) -> None:
    async for task in handle.updates():
        if task.status == "input_required":
            return
    raise AssertionError("it asks nothing")


async def test_every_private_column_is_encoded_and_no_other(stored: Stored) -> None:
    """Whoever adds a column to a row decides here which kind it is."""
    given = record(
        state=observing(), arguments_digest="ab" * 32, idempotency_key="order-42", label="l", owner="a/1"
    )
    with anyio.fail_after(30):
        async with stored(RIGHT) as journal:
            await journal.save(given)
            await journal.instruct(given.record_id, ANSWER)
            await journal.instruct(given.record_id, CANCEL)
            (row,), instructions = stored.rows("records"), stored.rows("instructions")
    in_clear = Row.of(given)
    assert [
        name
        for name in Row._fields
        if getattr(in_clear, name) is not None and getattr(in_clear, name) not in row
    ] == ["arguments_digest", "state"]
    assert [value in instructions[0] for value in (given.record_id, *ANSWER)] == [
        True,
        True,
        False,
        True,
        True,
    ]
    assert [value in instructions[1] for value in (given.record_id, *CANCEL)] == [True] * 5


async def test_what_fernet_stores_is_a_token_that_any_other_program_can_read(path: Path) -> None:
    given = record(state=observing(), arguments_digest="ab" * 32)
    with anyio.fail_after(30):
        async with SqliteJournal(path, codec=RIGHT) as journal:
            await journal.save(given)
    with closing(connect(path)) as connection:
        ((state, arguments),) = connection.execute("SELECT state, arguments_digest FROM records")
    assert Fernet(OLD).decrypt(state.removeprefix("\\=")).decode() == Row.of(given).state
    assert Fernet(OLD).decrypt(arguments.removeprefix("\\=")).decode() == "ab" * 32


# ── what cannot be decoded ────────────────────────────────────────────────────────────────────────


MISMATCHES: Final = {
    "another key": (RIGHT, WRONG, "cannot decode .* give it the key"),
    "no codec": (RIGHT, None, "is encoded; give the journal the codec="),
    "a codec too many": (
        None,
        RIGHT,
        "was stored without a codec; give .*copy --encrypt",
    ),
}


@pytest.mark.parametrize(("wrote", "reads", "advice"), MISMATCHES.values(), ids=MISMATCHES)
async def test_what_another_codec_has_stored_is_passed_over_told_of_and_kept(
    stored: Stored,
    wrote: Codec | None,
    reads: Codec | None,
    advice: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs = [
        record(
            state=observing(f"task-{n}"), idempotency_key=f"order-{n}", created_at=float(n), owner="gone/1"
        )
        for n in range(3)
    ]
    ours = record(state=observing("ours"), created_at=10.0)
    first, *_ = theirs
    with anyio.fail_after(30):
        # One process has both open at the same time: they share a thread, and keep to their codecs.
        async with stored(wrote) as their_journal, stored(reads) as our_journal:
            for one in theirs:
                await their_journal.save(one)
            await our_journal.save(ours)
            await their_journal.instruct(first.record_id, ANSWER)
            before = stored.rows("records"), stored.rows("instructions")

            for _ in range(2):
                assert await ids(our_journal) == [ours.record_id]
                (taken,) = await our_journal.take_pending(SCOPE, "b/1", {"gone/1", "b/1/left"}, limit=1)
                assert taken.record.record_id == ours.record_id
                await our_journal.release("b/1")
            told, *more = caplog.records
            assert len(more) < len(theirs)
            assert told.getMessage().startswith("left out of ")
            assert repr(first.record_id) in told.getMessage()
            asking: list[Callable[[], Awaitable[object]]] = [
                lambda: our_journal.by_id(first.record_id),
                lambda: our_journal.by_task_id(SCOPE, "task-0"),
                lambda: our_journal.claim(record(idempotency_key="order-0")),
                lambda: our_journal.take(first.record_id, "b/1", {"gone/1"}),
                lambda: our_journal.instruct(first.record_id, ANSWER._replace(body='{"action":"decline"}')),
            ]
            for ask in asking:
                with pytest.raises(JournalCodecError, match=advice):
                    await ask()
            assert await our_journal.instructions(first.record_id) == []

            after = stored.rows("records"), stored.rows("instructions")
            assert kept(after[0], theirs) == kept(before[0], theirs)
            assert after[1] == before[1]
            assert [one.state for one in await their_journal.records(SCOPE)] == [one.state for one in theirs]
            assert await their_journal.instructions(first.record_id) == [ANSWER]
            assert [
                one.record.record_id for one in await their_journal.take_pending(SCOPE, "c/1", {"gone/1"})
            ] == [one.record_id for one in theirs]


async def ids(journal: Journal) -> list[str]:
    return [one.record_id for one in await journal.records(SCOPE)]


def kept(rows: list[tuple[Any, ...]], records: list[Any]) -> list[set[Any]]:
    """The rows of these records, but for the fence that counts who has had them."""
    given = {one.record_id for one in records}
    return [
        {value for value in row if not isinstance(value, int)} for row in rows if given & {*map(str, row)}
    ]


async def test_a_call_whose_record_cannot_be_decoded_is_not_made_again(path: Path) -> None:
    world = World()
    with anyio.fail_after(30):
        async with world.client(journal=SqliteJournal(path, codec=RIGHT)) as client:
            handle = await client.start_tool("tool", idempotency_key="order-42")
            assert handle.task_id == TASK
        async with world.client(journal=SqliteJournal(path, codec=WRONG)) as client:
            with pytest.raises(JournalCodecError, match="give it the key"):
                await client.call_tool("tool", idempotency_key="order-42")
            assert await client.resume() == []
            other = await client.start_tool("tool", idempotency_key="order-43")  # which goes on
            assert other.task_id == TASK
        assert len(world.server.log("tools/call")) == 2
        async with world.client(journal=SqliteJournal(path, codec=FernetCodec(NEW, OLD))) as client:
            assert len(await client.resume()) == 2


class Broken:
    """A codec of a host's that fails in the way it is told."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def encode(self, value: bytes) -> Any:
        if self.broken == "encode":
            raise KeyError("no such key")
        return value.decode() if self.broken == "encode to text" else zlib.compress(value)

    def decode(self, value: bytes) -> Any:
        if self.broken == "decode" and b"bad" in zlib.decompress(value):
            raise KeyError("no such key")
        if self.broken == "decode to noise" and b"bad" in zlib.decompress(value):
            return b"\xff\xfe"
        if self.broken == "decode to text" and b"bad" in zlib.decompress(value):
            return "{}"
        return zlib.decompress(value)


@pytest.mark.parametrize("broken", ["decode", "decode to noise", "decode to text"])
async def test_a_codec_that_fails_to_decode_withholds_that_record_alone(stored: Stored, broken: str) -> None:
    bad, good = record(state=observing("bad")), record(state=observing("good"))
    with anyio.fail_after(30):
        async with stored(codec := Broken()) as journal:
            for one in (bad, good):
                await journal.save(one)
            await journal.instruct(good.record_id, ANSWER._replace(name="a", body='"bad"'))
            await journal.instruct(good.record_id, ANSWER)
            codec.broken = broken
            assert await journal.records(SCOPE) == [good]
            assert [one.record.task_id for one in await journal.take_pending(SCOPE, "a/1")] == ["good"]
            assert await journal.instructions(good.record_id) == [ANSWER]
            with pytest.raises(JournalCodecError, match=f"{bad.record_id!r} \\((KeyError|Unicode|Attr)"):
                await journal.by_id(bad.record_id)
            codec.broken = ""
            assert [one.state for one in await journal.records(SCOPE)] == [bad.state, good.state]


@pytest.mark.parametrize("broken", ["encode", "encode to text"])
async def test_a_codec_that_fails_to_encode_stores_nothing(stored: Stored, broken: str) -> None:
    given = record(state=observing())
    with anyio.fail_after(30):
        async with stored(codec := Broken()) as journal:
            await journal.save(given)
            codec.broken = broken
            writes: list[Callable[[], Awaitable[object]]] = [
                lambda: journal.save(replace(given, state=finished())),
                lambda: journal.save(replace(given, state=finished()), known=True),
                lambda: journal.claim(record()),
                lambda: journal.instruct(given.record_id, ANSWER),
            ]
            for write in writes:
                with pytest.raises(
                    JournalCodecError, match=r"cannot encode a record .*, so it was not stored"
                ):
                    await write()
            assert await journal.records(SCOPE) == [given]
            assert await journal.instructions(given.record_id) == []
            codec.broken = ""
            await journal.save(replace(given, state=finished()))


@pytest.mark.parametrize("broken", ["encode", "encode to text"])
async def test_a_codec_that_never_encodes_is_found_when_the_journal_is_opened(
    stored: Stored, broken: str
) -> None:
    """Before a call is sent whose task could not be stored."""
    with pytest.raises(JournalCodecError, match="cannot encode"):
        await stored(Broken(broken)).open()


async def test_a_look_for_one_readable_call_among_many_others_takes_that_one_alone(stored: Stored) -> None:
    async with stored(WRONG) as theirs, stored(RIGHT) as journal:
        others = [record(state=observing(), created_at=float(n)) for n in range(30)]
        for one in others:
            await theirs.save(one)
        await journal.save(given := record(state=observing(), created_at=99.0))
        taken = await journal.take_pending(SCOPE, "a/1", limit=1)
        assert [one.record.record_id for one in taken] == [given.record_id]
        assert [(one.owner, one.fence) for one in await theirs.records(SCOPE)] == [(None, 0)] * len(others)


# ── keys that change ──────────────────────────────────────────────────────────────────────────────


async def test_a_new_key_encrypts_and_an_old_one_still_decrypts(stored: Stored) -> None:
    kept, changed = (record(state=observing(f"task-{n}"), arguments_digest="ab" * 32) for n in range(2))
    with anyio.fail_after(30):
        async with stored(FernetCodec(OLD)) as before:
            for one in (kept, changed):
                await before.save(one)
            await before.instruct(kept.record_id, ANSWER)
        async with stored(FernetCodec(NEW, OLD)) as during:
            assert await during.records(SCOPE) == [kept, changed]
            assert await during.instructions(kept.record_id) == [ANSWER]
            for one in await during.records(SCOPE):
                if one == changed:
                    await during.save(one)
        async with stored(FernetCodec(NEW.decode())) as after:
            assert await after.records(SCOPE) == [changed]
            with pytest.raises(JournalCodecError):
                await after.by_id(kept.record_id)


def test_a_codec_of_fernet_needs_keys_and_shows_none() -> None:
    with pytest.raises(ValueError, match="needs a key"):
        FernetCodec()
    with pytest.raises(ValueError, match="32 url-safe base64"):
        FernetCodec("secret")
    assert OLD.decode() not in repr(RIGHT)


# ── a journal that moves ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_copy_is_encoded_as_it_was(
    postgres: str, postgres_journal: Any, schema: str, path: Path
) -> None:
    given = record(state=observing(), arguments_digest="ab" * 32)
    with anyio.fail_after(30):
        async with SqliteJournal(path, codec=RIGHT) as file:
            await file.save(given)
            await file.instruct(given.record_id, ANSWER)
        assert copy([str(path), postgres, "--schema", schema]) == 0
        async with PostgresJournal(postgres, schema=schema, codec=RIGHT) as database:
            assert await database.records(None) == [given]
            assert await database.instructions(given.record_id) == [ANSWER]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_copy_can_be_encrypted_get_another_key_and_be_decrypted(path: Path) -> None:
    given = record(state=finished(), arguments_digest="ab" * 32, idempotency_key="order-42", delivered_at=5.0)
    asking = record(state=observing())
    old, new = path.with_name("old.keys"), path.with_name("new.keys")
    old.write_bytes(OLD + b"\n")
    new.write_bytes(NEW + b"\n" + OLD + b"\n")
    files = [path, *(path.with_name(f"{name}.sqlite3") for name in ("first", "second", "third"))]
    with anyio.fail_after(30):
        async with SqliteJournal(path) as journal:
            for one in (given, asking):
                await journal.save(one)
            await journal.instruct(asking.record_id, ANSWER)
        steps = (
            ["--encrypt", str(old)],
            ["--decrypt", str(old), "--encrypt", str(new)],
            ["--decrypt", str(new)],
        )
        for source, target, options in zip(files, files[1:], steps, strict=False):
            assert copy([str(source), str(target), *options]) == 0
        for file, codec in zip(files, (None, FernetCodec(OLD), FernetCodec(NEW), None), strict=True):
            async with SqliteJournal(file, codec=codec) as journal:
                assert await journal.records(None) == [given, asking]
                assert await with_key(journal, SCOPE, "order-42") == given
                assert await journal.instructions(asking.record_id) == [ANSWER]


def test_a_copy_with_the_wrong_keys_copies_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def write() -> None:
        async with SqliteJournal(path, codec=RIGHT) as journal:
            for _ in range(3):
                await journal.save(record(state=observing()))

    anyio.run(write)
    wrong, none, target = (path.with_name(name) for name in ("wrong.keys", "none.keys", "target.sqlite3"))
    wrong.write_bytes(NEW)
    none.touch()
    for options in (["--decrypt", str(wrong)], ["--encrypt", str(wrong)]):
        assert copy([str(path), str(target), *options]) == 1
        assert "record 'record-" in capsys.readouterr().err
        with closing(connect(target)) as connection:
            assert connection.execute("SELECT count(*) FROM records").fetchone() == (0,)
    for keys, why in ((none, "needs a key"), (path.with_name("nowhere"), "No such file")):
        with pytest.raises(SystemExit):
            copy([str(path), str(target), "--encrypt", str(keys)])
        assert why in capsys.readouterr().err


# ── one kind is never taken for the other ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("private", ["\\=", "\\=gAAAA", "=", "{}", "x" * 100_000, "\\\\="])
def test_no_text_in_clear_is_taken_for_an_encoded_one(private: str) -> None:
    given = record(state=observing(), arguments_digest=private)
    assert Row.of(given).record() == given
    assert Row.of(given, RIGHT).record(RIGHT) == given


def test_what_is_empty_stays_so() -> None:
    """The body of an instruction that was heeded is emptied by the database."""
    for nothing in ("", None):
        assert encoded(nothing, RIGHT) == nothing
        for codec in (RIGHT, None):
            assert decoded(nothing, codec, "r") == nothing


# ── a page of those that can be read ──────────────────────────────────────────────────────────────


async def test_a_record_that_cannot_be_decoded_takes_no_place_in_a_page(stored: Stored) -> None:
    with anyio.fail_after(30):
        async with stored(RIGHT) as mine, stored(WRONG) as others:
            given = [record(record_id=f"{number:02}", created_at=float(number)) for number in range(12)]
            for number, one in enumerate(given):
                await (mine if number % 5 == 0 else others).save(one)
            assert await mine.records(SCOPE, limit=2) == [given[5], given[10]]
            assert await mine.records(SCOPE, limit=2, before=given[5]) == [given[0]]
            assert await mine.records(SCOPE, limit=1, before=given[10]) == [given[5]]
            assert (
                await others.records(SCOPE, limit=7) == [one for one in given if one not in given[::5]][-7:]
            )
