"""Journals that something went wrong with on the disk: a clear error or a full recovery, never silence.

The files are real, and where a crash matters a real process was killed. What SQLite itself cannot tell
from a healthy file is here too, with the most that can be said of it: a log that was cut short between
two commits, or is missing, reads as if what it lacks had never been; but never as half a commit.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from mcp_tasks_client import PollPolicy, TasksClient
from mcp_tasks_client.old.errors import JournalCorruptError, JournalError
from mcp_tasks_client.old.journal import sqlite_file
from mcp_tasks_client.old.journal.base import TaskRecord
from mcp_tasks_client.old.journal.sqlite import SqliteJournal
from mcp_tasks_client.old.journal.sqlite_file import scripts
from mcp_tasks_client.old.journal.sqlite_log import _ORDERS, _add, find_damage
from mcp_tasks_client.old.states import Completed
from mcp_tasks_client.old.testing import ScriptedSession, completed, text_result
from tests.test_journal_contract import SCOPE, finished, observing, record
from tests.test_sqlite_journal import SHORT_S, OneLoop, child, line, posix_only, raw

pytestmark = [pytest.mark.anyio, posix_only]

PAGE: Final = 4096
LOG_HEADER: Final = 32
FRAME: Final = 24 + PAGE
SEED: Final = 20_260_728
ADVICE: Final = ("restore", "put the file back", "use another path", "upgrade", "check its disk")

Files = dict[str, bytes]


def state(number: int) -> Any:
    match number % 3:
        case 0:
            return observing(f"task-{number}")
        case 1:  # every other one is larger than a page
            return finished(Completed(result=text_result("x" * (9_000 if number % 2 else 100))))
        case _:
            return observing(f"task-{number}", statusMessage="y" * 600)


def committed() -> list[TaskRecord]:
    """The records of :func:`write`, oldest first: what each of its syncs has promised."""
    return [
        record(
            record_id=f"record-{number:02}",
            idempotency_key=f"order-{number:02}" if number % 2 else None,
            state=state(number),
            created_at=1_000.0 + number,
        )
        for number in range(20)
    ]


IN_THE_FILE: Final = 12
"""How many of them were in the file itself before the log was begun."""

MIDWAY: Final = [f"waste-{number}" for number in range(9)]
"""What is removed again, first thing in the log, so that there are free pages."""


async def write(path: str) -> None:
    """Write all of it, close the file once in between, and leave it open."""
    given = committed()
    large = finished(Completed(result={"text": "z" * 3_000}))
    waste = [record(record_id=name, state=large) for name in MIDWAY]
    async with SqliteJournal(path) as journal:
        for one in waste:
            await journal.save(one)
        for one in given[:IN_THE_FILE]:
            await journal.save(one)
    journal = SqliteJournal(path)
    await journal.open()
    async with anyio.create_task_group() as tasks:  # one commit
        for one in waste:
            tasks.start_soon(journal.remove, one)
    for one in given[IN_THE_FILE:]:
        await journal.save(one)


def crashed_at(path: Path, body: str) -> Files:
    """What a process leaves that is killed when it says so."""
    with child(path, body) as process:
        assert line(process) == "reached"
        process.send_signal(signal.SIGKILL)
        process.wait()
    return files(path.parent)


def files(folder: Path) -> Files:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def lay(folder: Path, what: Files) -> Path:
    """Put files in a folder instead of what it held."""
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for name, content in what.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return folder / "journal"


def flipped(content: bytes, position: int, mask: int = 0xFF) -> bytes:
    changed = bytearray(content)
    changed[position] ^= mask
    return bytes(changed)


@dataclass(frozen=True)
class Left:
    """A journal's files.

    Attributes:
        crashed: As SIGKILL left them: the file and its log.
        index: The ``-shm`` that was there as well.
        clean: The one file that the next opening and closing made of them.
    """

    crashed: Files
    index: bytes
    clean: Files

    @property
    def log(self) -> bytes:
        return self.crashed["journal-wal"]

    @property
    def commits(self) -> list[int]:
        """For every frame of the log, 1 if a commit ends with it."""
        starts = range(LOG_HEADER, len(self.log), FRAME)
        return [int(struct.unpack_from(">I", self.log, start + 4)[0] > 0) for start in starts]

    def shows(self, place: int) -> bool:
        """Whether it can be told that a byte of the log has rotted."""
        frame, byte = divmod(place - LOG_HEADER, FRAME)
        ends = [at for at, ends in enumerate(self.commits[:-1]) if ends and at >= frame]
        if ends[:1] == [frame] and 8 <= byte < 24:
            del ends[0]  # nothing can be seen to follow it any more
        return place < LOG_HEADER or bool(ends)

    def promised(self, frames: int) -> list[str]:
        """What a log cut to so many frames still holds, together with its file."""
        commits = sum(self.commits[:frames])
        given = [one.record_id for one in committed()]
        # The first commit is that of opening, the second removes, each of the others adds one.
        waste = [] if commits >= 2 else MIDWAY
        return sorted([*waste, *given[: IN_THE_FILE + max(0, commits - 2)]])


@pytest.fixture(scope="session")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    path = tmp_path_factory.mktemp("left") / "journal"
    body = """
from tests.test_journal_damage import write
await write(path)
print("reached", flush=True)
os.read(0, 1)
"""
    crashed = crashed_at(path, body)
    index = crashed.pop("journal-shm")

    async def tidy() -> None:
        async with SqliteJournal(path):
            pass

    anyio.run(tidy)
    return Left(crashed, index, files(path.parent))


async def known(path: Path) -> list[str]:
    """The IDs of all that can be read, each one looked for in every way."""
    with anyio.fail_after(30):
        async with SqliteJournal(path, busy_timeout_s=SHORT_S) as journal:
            found = await journal.records(SCOPE)
            for one in found:
                if one.idempotency_key is not None:
                    assert await journal.by_key(SCOPE, one.idempotency_key) == one
                if one.task_id is not None:
                    assert await journal.by_task_id(SCOPE, one.task_id) == one
    return sorted(one.record_id for one in found)


async def records(path: Path, *, busy_timeout_s: float = SHORT_S) -> list[TaskRecord]:
    with anyio.fail_after(30):
        async with SqliteJournal(path, busy_timeout_s=busy_timeout_s) as journal:
            return await journal.records(SCOPE)


async def everything(path: Path) -> bool:
    """Whether all that was committed can be read, as it was committed."""
    return await records(path) == committed()


def durable(found: Files) -> Files:
    """Without the log's index, and without a log that is empty: neither holds anything of its own."""
    return {name: content for name, content in found.items() if name != "journal-shm" and content != b""}


def is_helpful(error: JournalError, path: Path) -> bool:
    """Whether an error names the file and says what to do about it."""
    return str(path) in str(error) and any(advice in str(error) for advice in ADVICE)


async def refused(path: Path) -> str:
    """Open it, see it refused as damaged and left byte for byte; return why."""
    before = files(path.parent)
    with pytest.raises(JournalCorruptError) as caught:
        await records(path)
    assert is_helpful(caught.value, path), caught.value
    assert durable(files(path.parent)) == durable(before)
    return str(caught.value)


async def missing(path: Path, *, untouched: bool = True) -> list[str]:
    """What was committed and is neither found, in whatever way it is looked for, nor an error to look for.

    Args:
        path: The journal, whose opening may be refused.
        untouched: Whether a refusal must leave the files byte for byte.
    """
    before = files(path.parent)
    journal = SqliteJournal(path, busy_timeout_s=SHORT_S)
    try:
        with anyio.fail_after(30):
            await journal.open()
    except JournalError as error:
        assert is_helpful(error, path), error  # noqa: PT017  # the error may come, and need not
        assert not untouched or durable(files(path.parent)) == durable(before)
        return []
    silent: list[str] = []
    with anyio.fail_after(30):
        async with journal:
            await journal.aclose()  # once for the opening above
            for one in committed():
                with contextlib.suppress(JournalError):
                    key = one.idempotency_key
                    found = None if key is None else await journal.by_key(SCOPE, key)
                    if key is not None and (found is None or found.record_id != one.record_id):
                        silent.append(f"{one.record_id} by its key")
            for pending in (False, True):
                with contextlib.suppress(JournalError):
                    listed = [one.record_id for one in await journal.records(SCOPE, pending=pending)]
                    expected = [one.record_id for one in committed() if one.pending or not pending]
                    silent += sorted(set(expected) - set(listed))
    return silent


class TestTruncation(OneLoop):
    async def test_the_file_may_not_be_cut_anywhere(self, left: Left, tmp_path: Path) -> None:
        whole = left.clean["journal"]
        assert len(whole) > 15 * PAGE
        cuts = {*range(PAGE, len(whole), PAGE), 1, 15, 99, 100, 511, 512, 513, 1_024, len(whole) - 1}
        cuts |= {random.Random(SEED).randrange(1, len(whole)) for _ in range(40)}
        for cut in sorted(cuts):
            await refused(lay(tmp_path / "cut", {"journal": whole[:cut]}))
        path = lay(tmp_path / "cut", {"journal": whole})
        assert await everything(path)

    async def test_the_file_may_not_be_cut_beside_its_log_either(self, left: Left, tmp_path: Path) -> None:
        """The log holds only some of the pages. It must survive the refusal."""
        whole = left.crashed["journal"]
        for cut in [0, 1, 511, 512, *range(PAGE, len(whole) // 2, PAGE), 5 * PAGE + 77]:
            path = lay(tmp_path / "cut", left.crashed | {"journal": whole[:cut]})
            await refused(path)
            path.write_bytes(whole)  # mended from a backup
            assert await everything(path)

    async def test_a_log_cut_anywhere_holds_every_commit_before_the_cut(
        self, left: Left, tmp_path: Path
    ) -> None:
        """As after a power failure, with which it is one: what was not synced yet is cut off."""
        frames = len(left.commits)
        assert 20 < frames < 120
        for frame in range(frames + 1):
            boundary = LOG_HEADER + frame * FRAME
            for cut in {boundary, boundary + (1, 23, 24, 2_000, FRAME - 1)[frame % 5]}:
                path = lay(tmp_path / "cut", left.crashed | {"journal-wal": left.log[:cut]})
                assert await known(path) == left.promised(frame), f"cut at {cut}"

    async def test_a_log_without_its_header_holds_nothing(self, left: Left, tmp_path: Path) -> None:
        for cut in (0, 1, 16, 31, 32):
            path = lay(tmp_path / "cut", left.crashed | {"journal-wal": left.log[:cut]})
            assert await known(path) == left.promised(0)


class TestFlippedBytes(OneLoop):
    async def test_in_the_files_header(self, left: Left, tmp_path: Path) -> None:
        for position in range(100):
            changed = flipped(left.clean["journal"], position, (0x80, 0x01)[position % 2])
            path = lay(tmp_path / "flipped", {"journal": changed})
            assert await missing(path) == [], f"byte {position}"

    async def test_at_the_head_of_every_page(self, left: Left, tmp_path: Path) -> None:
        """Tables, indexes, overflowing rows, free pages."""
        whole = left.clean["journal"]
        with raw(lay(tmp_path / "looked-at", left.clean)) as connection:
            assert connection.execute("PRAGMA freelist_count").fetchone()[0] > 2
        chance = random.Random(SEED)
        for start in range(PAGE, len(whole), PAGE):
            for position in range(start, start + 12):
                changed = flipped(whole, position, 1 << chance.randrange(8))
                path = lay(tmp_path / "flipped", {"journal": changed})
                assert await missing(path) == [], f"byte {position}"

    @pytest.mark.parametrize("with_log", [False, True])
    async def test_anywhere(self, left: Left, tmp_path: Path, with_log: bool) -> None:
        """What is changed inside of a row, and in no index, is read as it then is; the record is there."""
        given = left.crashed if with_log else left.clean
        chance = random.Random(SEED)
        for _ in range(40 if with_log else 160):
            position, mask = chance.randrange(len(given["journal"])), 1 << chance.randrange(8)
            changed = flipped(given["journal"], position, mask)
            path = lay(tmp_path / "flipped", given | {"journal": changed})
            assert await missing(path) == [], f"byte {position} ^ {mask}"

    async def test_in_an_index(self, left: Left, tmp_path: Path) -> None:
        """A key that its index does not show would be called a second time."""
        whole = left.clean["journal"]
        places = [at for at in range(len(whole)) if whole.startswith(b"order-07", at)]
        assert len(places) == 2  # in the table and in its index
        for place in places:
            await refused(lay(tmp_path / "flipped", {"journal": flipped(whole, place + 7, 0x01)}))

    async def test_in_the_log(self, left: Left, tmp_path: Path) -> None:
        """SQLite reads a log up to the first frame whose checksum is wrong, and takes that for its end.

        Behind it, a crash leaves no more than the last commit.
        """
        chance = random.Random(SEED)
        places = [LOG_HEADER + FRAME * 3 + byte for byte in range(24)]
        places += [chance.randrange(LOG_HEADER, len(left.log)) for _ in range(40)]
        for place in dict.fromkeys(places):  # a log that was looked through is not read again
            changed = flipped(left.log, place, 1 << chance.randrange(8))
            path = lay(tmp_path / f"flipped-{place}", left.crashed | {"journal-wal": changed})
            whole_frames = max(0, (place - LOG_HEADER) // FRAME)
            if left.shows(place):
                assert "is damaged at byte" in await refused(path)
            else:
                assert await known(path) == left.promised(whole_frames), f"byte {place}"


def chained(log: bytes, frame: bytearray) -> bytes:
    """A frame with the checksum that it has behind all of a log."""
    order = _ORDERS[int.from_bytes(log[:4])]
    at = 16 if len(log) > LOG_HEADER else LOG_HEADER - 8
    sums = struct.unpack_from(">2I", log, max(len(log) - FRAME, 0) + at)
    frame[16:24] = struct.pack(">2I", *_add(order, _add(order, sums, frame[:8]), frame[24:]))
    return bytes(frame)


class TestLogsThatHoldMoreThanIsRead(OneLoop):
    """SQLite stops at the first spoilt frame. A crash can have spoilt the last commit, and no other."""

    async def test_a_frame_spoilt_before_the_last_commit_is_damage(self, left: Left, tmp_path: Path) -> None:
        chance = random.Random(SEED)
        for frame in range(len(left.commits)):
            place = (
                LOG_HEADER + frame * FRAME + chance.choice((0, 8, 12, 16, 20, chance.randrange(24, FRAME)))
            )
            path = lay(tmp_path / "spoilt", left.crashed | {"journal-wal": flipped(left.log, place)})
            if left.shows(place):
                assert "holds commits that cannot be read" in await refused(path), f"byte {place}"
            else:
                assert await known(path) == left.promised(frame)
        assert not left.shows(place)

    async def test_a_spoilt_header_is_damage(self, left: Left, tmp_path: Path) -> None:
        for place in range(LOG_HEADER):
            path = lay(tmp_path / "spoilt", left.crashed | {"journal-wal": flipped(left.log, place, 0x10)})
            assert "is damaged at byte 0" in await refused(path)

    async def test_what_an_earlier_use_of_the_log_left_behind_is_no_damage(self, tmp_path: Path) -> None:
        body = """
journal = SqliteJournal(path)
await journal.open()
import sqlite3
for number in range(20):
    await journal.save(record(record_id=f"{number:02}"))
    if number == 15:
        sqlite3.connect(path, isolation_level=None).execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
print("reached", flush=True)
os.read(0, 1)
"""
        path = tmp_path / "journal"
        log = crashed_at(path, body)["journal-wal"]
        salts = [log[at : at + 8] for at in range(LOG_HEADER + 8, len(log), FRAME)]
        assert salts[0] == log[16:24] != salts[-1]
        assert await known(path) == [f"{number:02}" for number in range(20)]

    async def test_what_a_killed_transaction_left_behind_is_no_damage(self, tmp_path: Path) -> None:
        """More of it than of the commits after it, so that its end remains behind theirs."""
        path = tmp_path / "journal"
        body = """
import sqlite3
journal = SqliteJournal(path)
await journal.open()
await journal.save(record(record_id="before"))
other = sqlite3.connect(path, isolation_level=None)
other.execute("PRAGMA cache_size = 1")
other.execute("BEGIN IMMEDIATE")
other.execute("CREATE TABLE waste (x)")
for _ in range(50):
    other.execute("INSERT INTO waste VALUES (zeroblob(4000))")
print("reached", flush=True)
os.read(0, 1)
"""
        crashed = crashed_at(path, body)
        length = len(crashed["journal-wal"])
        body = """
journal = SqliteJournal(path)
await journal.open()
for number in range(3):
    await journal.save(record(record_id=f"{number}"))
print("reached", flush=True)
os.read(0, 1)
"""
        assert len(crashed_at(path, body)["journal-wal"]) == length > 40 * FRAME
        assert await known(path) == ["0", "1", "2", "before"]

    async def test_what_commits_that_failed_left_behind_is_no_damage(
        self, left: Left, tmp_path: Path
    ) -> None:
        """Each is written over the one before, from the same place; the last of them did not fail."""
        header, frames = left.log[:LOG_HEADER], left.log[LOG_HEADER:]
        before = left.commits.index(1) + 1
        after = left.commits.index(1, before) + 1
        kept = before * FRAME

        def commit(length: int, content: int) -> bytes:
            log = bytearray(header + frames[:kept])
            for number in range(length):
                frame = bytearray(frames[kept + number * FRAME :][:FRAME])
                frame[4:8] = (number + 1 == length).to_bytes(4)
                frame[FRAME - 1] ^= content
                log += chained(log, frame)
            return bytes(log)

        first, second = commit(after - before + 4, 1), commit(after - before + 2, 2)
        third = left.log[: LOG_HEADER + after * FRAME]
        log = third + second[len(third) :] + first[len(second) :]
        assert len(third) < len(second) < len(log) == len(first)
        path = lay(tmp_path / "failed", left.crashed | {"journal-wal": log})
        assert await known(path) == left.promised(after)

    async def test_a_log_that_has_just_gone_holds_no_damage(self, tmp_path: Path) -> None:
        assert find_damage(tmp_path / "journal-wal") is None

    async def test_a_log_that_is_being_written_is_no_damage(self, tmp_path: Path) -> None:
        """Nor one that is begun anew meanwhile."""
        path = tmp_path / "journal"
        body = """
import sqlite3
journal = SqliteJournal(path)
await journal.open()
print("ready", flush=True)
number = 0
while not select.select([0], [], [], 0)[0]:
    number += 1
    await journal.save(record(record_id=f"{number}"))
    if number % 50 == 0:
        sqlite3.connect(path, isolation_level=None).execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
await journal.aclose()
print(number)
"""
        with child(path, "import select\n" + body) as writer:
            assert line(writer) == "ready"
            for _ in range(20):
                await records(path, busy_timeout_s=20)
            assert writer.stdin is not None
            writer.stdin.write("x")
            writer.stdin.flush()
            number = int(line(writer))
        assert len(await records(path)) == number


class TestMisplacedFiles(OneLoop):
    async def test_a_log_without_its_file_is_kept_for_it(self, left: Left, tmp_path: Path) -> None:
        for alone in ({"journal-wal": left.log}, {"journal-wal": left.log, "journal": b""}):
            path = lay(tmp_path / "alone", alone)
            assert "put the file back beside its log" in await refused(path)
            path.write_bytes(left.crashed["journal"])
            assert await everything(path)

    async def test_a_log_that_holds_nothing_keeps_nobody_from_beginning(self, tmp_path: Path) -> None:
        for size in (0, LOG_HEADER):
            assert await known(lay(tmp_path / "alone", {"journal-wal": bytes(size)})) == []

    async def test_a_file_copied_without_its_log_is_as_it_was_before_the_log(
        self, left: Left, tmp_path: Path
    ) -> None:
        path = lay(tmp_path / "alone", {"journal": left.crashed["journal"]})
        assert await known(path) == left.promised(0)

    async def test_an_index_of_another_machine_is_made_anew(self, left: Left, tmp_path: Path) -> None:
        chance = random.Random(SEED)
        others = [
            left.index,
            bytes(len(left.index)),
            chance.randbytes(len(left.index)),
            left.index[:100],
            b"",
        ]
        for index in others:
            for given in (left.crashed, left.clean):
                assert await everything(lay(tmp_path / "indexed", given | {"journal-shm": index}))

    async def test_a_log_that_was_moved_into_the_file_already_does_no_harm(
        self, left: Left, tmp_path: Path
    ) -> None:
        path = lay(tmp_path / "twice", left.clean | {"journal-wal": left.log})
        assert await everything(path)

    @pytest.mark.parametrize("order", list(itertools.permutations(("", "-wal", "-shm"))), ids="".join)
    async def test_files_copied_while_somebody_writes_hold_all_that_was_there_before(
        self, tmp_path: Path, order: tuple[str, ...]
    ) -> None:
        """In whatever order, as long as the log is not moved into the file meanwhile."""
        path, elsewhere = tmp_path / "journal", tmp_path / "elsewhere"
        elsewhere.mkdir()
        body = """
journal = SqliteJournal(path)
await journal.open()
for number in range(10_000):
    await journal.save(record(record_id=f"{number:05}", idempotency_key=f"{number}"))
    print(number, flush=True)
    if number % 10 == 9:
        os.read(0, 1)  # leave, to copy one more file while these are being written
"""
        with child(path, body) as writer:
            assert writer.stdin is not None
            for suffix in order:
                writer.stdin.write("x")
                writer.stdin.flush()
                before = [int(line(writer)) for _ in range(10)][-1]
                if suffix == order[0]:
                    promised = before
                shutil.copyfile(f"{path}{suffix}", f"{elsewhere / 'journal'}{suffix}")
        found = await known(elsewhere / "journal")

        assert found == [f"{number:05}" for number in range(len(found))]
        assert len(found) > promised

    @pytest.mark.parametrize("first", ["", "-wal"])
    async def test_files_copied_around_a_checkpoint_are_refused_or_hold_all_that_was_there_before(
        self, tmp_path: Path, first: str
    ) -> None:
        """The log was moved into the file and begun anew between the two copies."""
        path, copy = tmp_path / "journal", tmp_path / "elsewhere" / "journal"
        copy.parent.mkdir()
        names = [f"{number:02}" for number in range(40)]
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                for number, name in enumerate(names):
                    if number == 20:
                        shutil.copyfile(f"{path}{first}", f"{copy}{first}")
                    if number == 30:
                        with raw(path) as other:
                            other.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                    task = observing(f"task-{name}", statusMessage="y" * (number * 37 % 900))
                    await journal.save(record(record_id=name, idempotency_key=name, state=task))
                second = "-wal" if first == "" else ""
                shutil.copyfile(f"{path}{second}", f"{copy}{second}")

        if first == "":  # the file lacks what the new log takes for granted
            await refused(copy)
        else:
            found = await known(copy)
            assert found == names[: len(found)]
            assert len(found) >= 20

    async def test_a_migration_that_was_killed_is_undone(self, left: Left, tmp_path: Path) -> None:
        body = """
from mcp_tasks_client.old.journal import sqlite_file
known = sqlite_file.scripts()
statements = sqlite_file._statements
def until_then(script):
    yield from statements(script)
    print("reached", flush=True)
    os.read(0, 1)
sqlite_file._statements = until_then
# So few pages that SQLite has to change the file before the end.
newer = "PRAGMA cache_size = 1; CREATE TABLE added (x); UPDATE records SET status = 'migrated', state = '';"
newer = newer.replace("; ", ";\\n")
sqlite_file.scripts = lambda: (*known, newer)
await SqliteJournal(path).open()
"""
        path = lay(tmp_path / "migrated", left.clean)
        crashed = crashed_at(path, body)
        assert sorted(crashed) == ["journal", "journal-journal"]
        assert crashed["journal"] != left.clean["journal"]

        assert await everything(path)
        with raw(path) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (len(scripts()),)

        whole, undo = crashed["journal"], crashed["journal-journal"]
        for alone in ({"journal-journal": undo}, {"journal-journal": undo[: len(undo) // 2]}):
            assert "put the file back" in await refused(lay(tmp_path / "alone", alone))
        chance = random.Random(SEED)
        for _ in range(25):
            place = chance.randrange(len(undo))
            path = lay(tmp_path / "undone", {"journal": whole, "journal-journal": flipped(undo, place)})
            # SQLite undoes what it can before anybody can look at the file.
            assert await missing(path, untouched=False) == [], f"byte {place}"


class Host:
    """A client over a scripted server, and what it does to that."""

    def __init__(self, path: Path) -> None:
        task_ids = [one.task_id for one in committed() if one.task_id is not None]
        self.session = ScriptedSession(
            calls=[text_result("called")],
            gets={task_id: [completed(task_id, text_result("done"))] for task_id in task_ids},
        )
        self.path = path
        # On real time, which has long come for every poll: a clock of ours would not wait for commits.
        self.client = TasksClient(
            self.session,
            journal=path,
            endpoint=SCOPE.endpoint,
            principal=SCOPE.principal,
            poll=PollPolicy.eager(),
        )

    async def refused(self, why: str) -> None:
        """Opened, it says why not; nothing was sent, and no file changed."""
        before = files(self.path.parent)
        with anyio.fail_after(30), pytest.raises(JournalError, match=why) as caught:
            async with self.client:
                pytest.fail("it was opened")
        assert str(self.path) in str(caught.value)
        assert self.session.sent == []
        assert durable(files(self.path.parent)) == durable(before)

    async def goes_on(self) -> None:
        """Opened, it has everything that was committed, and takes up what was not over."""
        with anyio.fail_after(30):
            async with self.client:
                assert await self.client.records() == committed()
                handles = await self.client.resume()
                for handle in handles:
                    await handle.result()
        assert len(handles) == sum(one.pending for one in committed())
        assert {sent.method for sent in self.session.sent} == {"tasks/get"}


class TestClients:
    async def test_a_damaged_file_stops_a_client_before_it_sends_anything(
        self, left: Left, tmp_path: Path
    ) -> None:
        whole = left.clean["journal"]
        host = Host(lay(tmp_path / "client", {"journal": whole[: 5 * PAGE]}))
        await host.refused("restore it from a backup")
        host.path.write_bytes(whole)
        await host.goes_on()

    async def test_a_log_without_its_file_stops_a_client_before_it_sends_anything(
        self, left: Left, tmp_path: Path
    ) -> None:
        host = Host(lay(tmp_path / "client", {"journal-wal": left.log}))
        await host.refused("put the file back beside its log")
        host.path.write_bytes(left.crashed["journal"])
        await host.goes_on()

    async def test_a_client_goes_on_where_a_killed_one_was(self, left: Left, tmp_path: Path) -> None:
        await Host(lay(tmp_path / "client", left.crashed | {"journal-shm": left.index})).goes_on()

    async def test_damage_met_later_stops_the_call_that_met_it_before_it_is_sent(
        self, left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a file too large to be looked through when it is opened."""
        monkeypatch.setattr(sqlite_file, "_LARGEST_CHECKED", 0)
        whole = left.clean["journal"]
        path = lay(tmp_path / "client", {"journal": whole})
        with raw(path) as connection:
            query = "SELECT rootpage FROM sqlite_master WHERE name = 'records_by_key'"
            (root,) = connection.execute(query).fetchone()
        path.write_bytes(whole[: (root - 1) * PAGE] + bytes(PAGE) + whole[root * PAGE :])
        host = Host(path)
        with anyio.fail_after(30):
            async with host.client:
                with pytest.raises(JournalCorruptError, match="restore it from a backup"):
                    await host.client.start_tool("tool", idempotency_key="order-01")
        assert host.session.sent == []


# ── media ─────────────────────────────────────────────────────────────────────────────────────

# What is mounted in it is seen by the child alone, and goes with it.
NAMESPACE: Final = ("unshare", "--mount", *(() if os.getuid() == 0 else ("--map-root-user",)))


@cache
def why_not_mounted() -> str:
    """Why nothing can be mounted here; empty if it can."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return "there is no unshare or no mount"
    command = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


async def on_a_read_only_mount(path: Path) -> None:
    await read_only(path, path.parent)


async def in_a_read_only_file(path: Path) -> None:
    await read_only(path, path)


async def read_only(path: Path, what: Path) -> None:
    on_a_small_disk(path)  # of our own: the flags of what others mounted may not be ours to change
    mount("--bind", what, what)
    mount("-o", "remount,bind,ro", what)
    host = Host(path)
    await host.refused("cannot be opened for writing")
    mount("-o", "remount,bind,rw", what)
    await host.goes_on()


def on_a_small_disk(path: Path) -> None:
    given = files(path.parent)
    mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", path.parent)
    lay(path.parent, given)


def fill(folder: Path) -> Path:
    """Leave no room on a folder's disk."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1_024))
    return filler


async def on_a_full_disk(path: Path) -> None:
    on_a_small_disk(path)
    filler = fill(path.parent)
    host = Host(path)
    await host.refused("no room left for the journal")
    filler.unlink()
    await host.goes_on()


async def on_a_disk_that_fills_up(path: Path) -> None:
    on_a_small_disk(path)
    host = Host(path)
    with anyio.fail_after(30):
        async with host.client:
            filler = fill(path.parent)
            with pytest.raises(JournalError, match="no room left for the journal"):
                await host.client.start_tool("tool", idempotency_key="new")
            assert host.session.sent == []
            assert await host.client.records() == committed()

            filler.unlink()
            await host.client.start_tool("tool", idempotency_key="new")
            assert [sent.method for sent in host.session.sent] == ["tools/call"]
            assert (await host.client.records())[: len(committed())] == committed()
    assert [one.idempotency_key for one in await records(path)][len(committed()) :] == ["new"]


LIVES: Final = {
    life.__name__: life
    for life in (on_a_read_only_mount, in_a_read_only_file, on_a_full_disk, on_a_disk_that_fills_up)
}


class TestMedia:
    @pytest.fixture(autouse=True)
    def mounting(self) -> None:
        if why := why_not_mounted():
            pytest.skip(f"nothing can be mounted here: {why}")

    @pytest.mark.parametrize("state", ["clean", "crashed"])
    @pytest.mark.parametrize("life", LIVES)
    def test_a_client_sends_nothing_and_goes_on_once_that_is_mended(
        self, left: Left, tmp_path: Path, life: str, state: str
    ) -> None:
        path = lay(tmp_path / "mounted", getattr(left, state))
        source = """
import anyio, pathlib, sys
from tests.test_journal_damage import LIVES
anyio.run(LIVES[sys.argv[1]], pathlib.Path(sys.argv[2]))
"""
        subprocess.run(
            [*NAMESPACE, sys.executable, "-W", "error", "-c", source, life, str(path)],
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))},
            timeout=60,
        )
