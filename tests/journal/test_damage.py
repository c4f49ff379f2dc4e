"""Journals that something went wrong with on the disk: a clear error or a full recovery, no half commit.

The files are real, and where a crash matters a real process was killed. What SQLite itself cannot tell
from a healthy file is here too, with the most that can be said of it: a log that was cut short, has
rotted in the middle or is missing reads as if what it lacks had never been.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from mcp_tasks_client import SqliteJournal, TaskRecord
from mcp_tasks_client.errors import JournalCorruptError, JournalError
from mcp_tasks_client.machine.states import Completed
from mcp_tasks_client.testing.samples import SCOPE, finished, observing, record, with_key
from tests.journal.files import SHORT_S, OneLoop, child, line, posix_only, raw

pytestmark = [pytest.mark.anyio, posix_only]

PAGE: Final = 4096
LOG_HEADER: Final = 32
FRAME: Final = 24 + PAGE
SEED: Final = 20_260_728
ADVICE: Final = (
    *("restore", "put the file back", "use another path", "give another path", "upgrade", "check its disk"),
)

Files = dict[str, bytes]


def state(number: int) -> Any:
    match number % 3:
        case 0:
            return observing(f"task-{number}")
        case 1:  # every other one is larger than a page
            return finished(Completed(result={"text": "x" * (9_000 if number % 2 else 100)}))
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
    waste = [record(record_id=name, state=large, delivered_at=1.0) for name in MIDWAY]
    async with SqliteJournal(path) as journal:
        for one in waste:
            await journal.save(one)
        for one in given[:IN_THE_FILE]:
            await journal.save(one)
    journal = SqliteJournal(path)
    await journal.open()
    assert await journal.prune(2.0, 2.0) == len(waste)  # one commit
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
from tests.journal.test_damage import write
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
                    assert await with_key(journal, SCOPE, one.idempotency_key) == one
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
        """The log holds only some of the pages; that of the others is missed where it is looked for."""
        whole = left.crashed["journal"]
        for cut in (0, 1, 511):
            path = lay(tmp_path / "cut", left.crashed | {"journal": whole[:cut]})
            await refused(path)
            path.write_bytes(whole)  # mended from a backup
            assert await everything(path)
        for cut in (512, *range(PAGE, len(whole) // 2, PAGE), 5 * PAGE + 77):
            path = lay(tmp_path / "cut", left.crashed | {"journal": whole[:cut]})
            with pytest.raises(JournalCorruptError) as caught:
                await records(path)
            assert is_helpful(caught.value, path), caught.value

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
    async def test_in_the_files_header_is_refused_or_harmless(self, left: Left, tmp_path: Path) -> None:
        for position in range(100):
            changed = flipped(left.clean["journal"], position, (0x80, 0x01)[position % 2])
            path = lay(tmp_path / "flipped", {"journal": changed})
            refusal: JournalError | None = None
            try:
                assert await everything(path), f"byte {position}"
            except JournalError as error:
                refusal = error
            assert refusal is None or is_helpful(refusal, path), refusal

    async def test_in_the_log_leaves_every_commit_before_it(self, left: Left, tmp_path: Path) -> None:
        """SQLite reads a log up to the first frame whose checksum is wrong, and takes that for its end."""
        chance = random.Random(SEED)
        places = [LOG_HEADER + FRAME * 3 + byte for byte in range(24)]
        places += [chance.randrange(LOG_HEADER, len(left.log)) for _ in range(40)]
        for place in places:
            changed = flipped(left.log, place, 1 << chance.randrange(8))
            path = lay(tmp_path / "flipped", left.crashed | {"journal-wal": changed})
            assert await known(path) == left.promised((place - LOG_HEADER) // FRAME), f"byte {place}"

    @pytest.mark.parametrize("name", ["records_by_key", "records"])
    async def test_in_a_page_that_is_met_later_is_an_error_then(
        self, left: Left, tmp_path: Path, name: str
    ) -> None:
        """A key that is not found would be called a second time."""
        whole = left.clean["journal"]
        path = lay(tmp_path / "later", {"journal": whole})
        with raw(path) as connection:
            query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
            (root,) = connection.execute(query, (name,)).fetchone()
        path.write_bytes(whole[: (root - 1) * PAGE] + bytes(PAGE) + whole[root * PAGE :])
        with anyio.fail_after(30):
            async with SqliteJournal(path) as journal:
                calls: list[Callable[[], Awaitable[object]]] = [
                    lambda: journal.claim(record(idempotency_key="order-01")),
                ]
                for call in calls:
                    with pytest.raises(JournalCorruptError, match="restore it from a backup") as caught:
                        await call()
                    assert is_helpful(caught.value, path)


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
        path = lay(tmp_path / "twice", left.crashed)
        with raw(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
            moved = path.read_bytes()
        assert moved != left.crashed["journal"]
        assert await everything(lay(tmp_path / "twice", {"journal": moved, "journal-wal": left.log}))

    @pytest.mark.parametrize("order", [("", "-wal", "-shm"), ("-shm", "-wal", "")], ids="".join)
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
            with pytest.raises(JournalCorruptError):
                await records(copy)
        else:
            found = await known(copy)
            assert found == names[: len(found)]
            assert len(found) >= 20


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
    on_a_small_disk(path)  # of our own: the flags of what others mounted may not be ours to change
    mount("--bind", path.parent, path.parent)
    mount("-o", "remount,bind,ro", path.parent)
    await refuses(path, "cannot be opened for writing")
    mount("-o", "remount,bind,rw", path.parent)
    assert await everything(path)


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
    await refuses(path, "no room left for the journal")
    filler.unlink()
    assert await everything(path)


async def on_a_disk_that_fills_up(path: Path) -> None:
    on_a_small_disk(path)
    with anyio.fail_after(30):
        async with SqliteJournal(path) as journal:
            filler = fill(path.parent)
            new = record(idempotency_key="new")
            with pytest.raises(JournalError, match="no room left for the journal"):
                await journal.claim(new)
            assert await journal.records(SCOPE) == committed()
            filler.unlink()
            assert await journal.claim(new) == new
    assert await records(path) == [*committed(), new]


async def refuses(path: Path, why: str) -> None:
    """Opening says why not, and no file changes."""
    before = files(path.parent)
    with pytest.raises(JournalError, match=why) as caught:
        await records(path)
    assert str(path) in str(caught.value)
    assert durable(files(path.parent)) == durable(before)


LIVES: Final = {
    life.__name__: life for life in (on_a_read_only_mount, on_a_full_disk, on_a_disk_that_fills_up)
}


class TestMedia:
    @pytest.mark.parametrize("life", LIVES)
    def test_a_journal_goes_on_once_its_disk_is_mended(self, left: Left, tmp_path: Path, life: str) -> None:
        if why := why_not_mounted():
            pytest.skip(f"nothing can be mounted here: {why}")
        path = lay(tmp_path / "mounted", left.crashed)
        source = """
import anyio, pathlib, sys
from tests.journal.test_damage import LIVES
anyio.run(LIVES[sys.argv[1]], pathlib.Path(sys.argv[2]))
"""
        subprocess.run(
            [*NAMESPACE, sys.executable, "-W", "error", "-c", source, life, str(path)],
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))},
            timeout=60,
        )
