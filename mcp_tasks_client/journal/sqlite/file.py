"""The journal's SQLite file: made, recognised and proven writable.

``application_id`` says that a file is a journal and ``user_version`` which version of ``schema.sql`` made it.
Both are only written in rollback-journal mode, by a process that has the file to itself, so that the first
page of the file is right even beside a write-ahead log. That page is looked at before anything is done:
another program's file, another version's, and a file that is no database at all stay byte for byte as they
are.

A file is not searched for damage when it is opened. Damage that SQLite meets raises
:class:`JournalCorruptError`; a log whose middle is damaged ends there, as SQLite reads it.

Free pages are given back to the disk (``auto_vacuum = INCREMENTAL``).
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import cache, lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, Final

from ...errors import JournalCorruptError, JournalError, JournalLockedError, JournalSchemaError

__all__ = [
    "APPLICATION_ID",
    "check_readable",
    "check_sqlite",
    "close_untouched",
    "connect",
    "damaged",
    "explain",
    "find_dangers",
    "find_file_system",
    "find_missing_right",
    "give_back",
    "identity",
    "identity_of_log",
    "read_unwritable",
    "schema_sql",
    "sidecars",
    "version_of",
]

logger = logging.getLogger("mcp_tasks_client")

APPLICATION_ID: Final = 0x4D43504A
"""``MCPJ``, at byte 68 of the file."""

VERSION: Final = 1
"""The version of ``schema.sql``. None was published yet: until then, a change edits version 1."""

_UNPUBLISHED: Final = 0x4D435054
"""``MCPT``: files that were made while 0.1 and 0.2 were written, in schemas of their own."""

_NEEDED: Final = (3, 33)
"""The version of SQLite that has ``UPDATE … FROM``."""

_SMALLEST: Final = 512
_LOG_HEADER: Final = 32
_RETRY_S: Final = 0.01
_GIVEN_BACK_AT_ONCE: Final = 1000
_SIDECARS: Final = ("", "-wal", "-shm", "-journal")
_LOG_KEPT: Final = 4 * 1024 * 1024
"""Bytes of the log that stay on the disk once they are moved into the file: about as many as SQLite moves at
once. A reader that takes its time makes the log grow without bound."""

_MOUNTS: Final = Path("/proc/self/mountinfo")
_SHARED: Final = (
    "9p",
    "afs",
    "ceph",
    "cifs",
    "fuse",
    "gluster",
    "lustre",
    "nfs",
    "smb",
    "vboxsf",
    "virtiofs",
)
"""Beginnings of the names of file systems that other machines may have too."""

# Closing any descriptor of a file drops all of the process's locks on it, SQLite's included. So
# a file that is made here is closed before anything else of ours can open it.
_making = threading.Lock()


@cache
def schema_sql() -> str:
    """The SQL that makes the tables of a journal."""
    return (resources.files(__package__) / "schema.sql").read_text(encoding="utf-8")


@cache
def _added() -> tuple[str, ...]:
    return tuple(one for one in _statements(schema_sql()) if "CREATE TABLE IF NOT EXISTS" in one)


def check_sqlite() -> None:
    """Refuse a SQLite that is too old for the statements.

    Raises:
        JournalError: It is.
    """
    if sqlite3.sqlite_version_info < _NEEDED:
        raise JournalError(
            f"this Python has SQLite {sqlite3.sqlite_version}, and a journal needs "
            f"{'.'.join(map(str, _NEEDED))} or newer; use another build of Python, or a PostgresJournal"
        )


def connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection that is ready for use, after a first committed write.

    Makes the file (0600) and missing folders (0700) if need be.

    Args:
        path: Absolute.
        busy_timeout_s: Seconds to wait for other processes, here in all and later at each lock.

    Raises:
        JournalError: The file is refused; the message says why.
        sqlite3.Error: See :func:`explain`.
        OSError: Likewise.
    """
    check_sqlite()
    deadline = time.monotonic() + busy_timeout_s
    # SQLite follows symbolic links, and names the files that it puts beside after their target.
    target = Path(os.path.realpath(path))
    while True:
        try:
            _make(target)
            _look(target)
            _tighten(target)
            return _prepare(target, busy_timeout_s, deadline)
        except sqlite3.OperationalError as error:
            # A change of the journal mode does not wait for a lock; it fails at once.
            if not _is_lock(error) or time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_S)


def find_missing_right(path: Path) -> JournalError | None:
    """The error for a right to write an existing journal that this process lacks; ``None`` if it lacks none.

    Raises:
        JournalError: There is no journal, or it cannot be seen.
    """
    try:
        size = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        size = 0
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    if size == 0:
        logs = _logs(path)
        if logs and logs[0].name.endswith("-wal"):
            raise _orphaned(path, logs[0])
        raise JournalError(
            f"there is no journal at {path}, and an inbox makes none; check the path, or first make a "
            "call over this journal, which makes it"
        )
    for file in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
        if file.exists() and not os.access(file, os.W_OK):
            return _read_only(path, f"this process has no right to write the file {file.name}")
        if not file.exists() and not os.access(path.parent, os.W_OK):
            return _read_only(path, f"this process has no right to write to the folder {path.parent}")
    return None


def check_readable(path: Path) -> None:
    """Check a file that this process may only read, as :func:`connect` checks one to write.

    Raises:
        JournalError: The file is refused.
        sqlite3.Error: See :func:`explain`.
        OSError: Likewise.
    """
    check_sqlite()
    if not os.access(path, os.R_OK):
        raise _unreadable(path, os.strerror(errno.EACCES))
    _look(path, writes=False)


def read_unwritable(path: Path, busy_timeout_s: float, read: Callable[[sqlite3.Connection], None]) -> None:
    """Read a file that this process may not write, over a connection that is made for it.

    Beside a log, SQLite reads the commits in the log, by the index (-shm) that its writers share. Without a
    log the file is complete, but SQLite would make a log to read it, which a writer of another user could not
    open. So SQLite is told that the file does not change. A file that has changed all the same is read once
    more.

    Args:
        path: Of the file.
        busy_timeout_s: Seconds to wait for a lock.
        read: Reads. It may be called several times, and the last time counts.

    Raises:
        sqlite3.Error: See :func:`explain`.
    """
    while True:
        state = _state_without_log(path)
        with closing(
            _open(path, "mode=ro" if state is None else "mode=ro&immutable=1", timeout_s=busy_timeout_s)
        ) as connection:
            read(connection)
        if state == _state_without_log(path):
            return


def _state_without_log(path: Path) -> tuple[int, ...] | None:
    """Changes with each write of the file; ``None`` if there is a log beside it."""
    if any(path.with_name(path.name + suffix).exists() for suffix in ("-wal", "-journal")):
        return None
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def identity(path: Path) -> tuple[int, int] | None:
    """Tells the file at ``path`` from another put in its place; ``None`` if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def identity_of_log(path: Path) -> tuple[object, ...]:
    """Tells the write-ahead log of the file at ``path``, and its index, from others put in their place."""
    return tuple(identity(path.with_name(path.name + suffix)) for suffix in ("-wal", "-shm"))


def give_back(connection: sqlite3.Connection, *, keep: int) -> bool:
    """Give free pages back to the disk, some at once; true if there are more of them.

    Args:
        connection: In no transaction.
        keep: Pages that may stay. Nothing is done before there are twice as many, since new records
            need some soon.
    """
    try:
        free = _pragma(connection, "freelist_count")
        if free <= 2 * keep:
            return False
        pages = min(free - keep, _GIVEN_BACK_AT_ONCE)
        # Not by execute(), which takes the first step of such a statement and no more: one page.
        connection.executescript(f"PRAGMA incremental_vacuum({pages})")
    except sqlite3.Error as error:  # as of a lock: there will be another time
        logger.debug("free pages of the journal were not given back: %s", error)
        return False
    return bool(free - pages > 2 * keep)


def explain(error: Exception, path: Path | str, *, writes: bool = True) -> JournalError:
    """The error to raise for one of SQLite's or the system's, with what to do next.

    Always a new one, since each caller of a failed commit raises its own. ``writes`` is false where the file
    is only read.
    """
    inaccessible = _unwritable if writes else _unreadable
    if isinstance(error, JournalError):
        return type(error)(str(error))
    match getattr(error, "sqlite_errorcode", 0):
        case sqlite3.SQLITE_IOERR_SHMSIZE:  # of a full disk, where the log's index is made
            return _full(path, str(error))
        case sqlite3.SQLITE_IOERR_SHORT_READ:  # of a file that was cut, in newer versions
            return damaged(path, str(error))
    match _code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return JournalLockedError(
                f"the journal {path} is held by another process ({error}); "
                "wait until it is done or stop it, or give this one a journal of its own"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged(path, str(error))
        case sqlite3.SQLITE_FULL:
            return _full(path, str(error))
        case sqlite3.SQLITE_CONSTRAINT:
            return JournalError(
                f"the journal {path} refuses the record ({error}): another one holds its idempotency key; "
                "call with that key to have its result"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return inaccessible(path, str(error))
    if isinstance(error, OSError):
        return inaccessible(path, error.strerror or str(error))
    return JournalError(
        f"the journal {path} could not be read or written ({type(error).__name__}: {error}); "
        "check its disk, and try again or use another path"
    )


def damaged(path: Path | str, why: str) -> JournalCorruptError:
    """The error for a file that is damaged, or no database."""
    return JournalCorruptError(
        f"the journal {path} is damaged or no database at all ({why}); "
        "restore it from a backup, or move it away with all that lies beside it to begin an empty one"
    )


def _orphaned(path: Path, log: Path) -> JournalCorruptError:
    # SQLite would delete the log, and all that was committed to it.
    return JournalCorruptError(
        f"the journal {path} is missing or empty, but its log {log} is there and was left as it is; "
        "put the file back beside its log, or move the log away to begin an empty journal"
    )


def _full(path: Path | str, why: str) -> JournalError:
    return JournalError(f"there is no room left for the journal {path} ({why}); make some and try again")


def _unwritable(path: Path | str, why: str) -> JournalError:
    return JournalError(
        f"the journal {path} cannot be opened for writing ({why}); "
        "check who owns it and its folder, or give another path by journal="
    )


def _unreadable(path: Path | str, why: str) -> JournalError:
    return JournalError(
        f"the journal {path} cannot be read ({why}); have its owner let this process read the file, its "
        "folder, and its log if there is one (-wal and -shm), or give another path by journal="
    )


def _read_only(path: Path, why: str) -> JournalError:
    return JournalError(
        f"the journal {path} may only be read here: {why}; have its owner give that right, or answer, cancel "
        "and acknowledge in a process that has it"
    )


def _code(error: Exception) -> int:
    """SQLite's primary error code; 0 for an error that is not SQLite's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_lock(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def _make(path: Path) -> None:
    """Make an empty file where there is none, never readable by others, not even for a moment."""
    with _making:
        logs = _logs(path)  # asked first: a process that makes the file meanwhile makes its log later
        if path.exists():
            return
        if logs:
            raise _orphaned(path, logs[0])
        # Path.mkdir(parents=True) would give the folders in between the default mode.
        for folder in reversed([p for p in path.parents if not p.exists()]):
            folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _logs(path: Path) -> list[Path]:
    """The files beside it that hold changes of it, the write-ahead log first."""
    beside = (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal"))
    return [log for log in beside if _size(log) > _LOG_HEADER]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # not there, or not for us to see; opening will tell
        return 0


def _look(path: Path, *, writes: bool = True) -> None:
    """Refuse a file that is not ours, before SQLite could change it or put anything beside it."""
    logs = _logs(path)  # asked first: a log that appears later is of a process that writes at this moment
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise JournalError(f"the journal {path} is not a file; give the path of one")
    if found.st_nlink > 1:
        raise JournalError(
            f"the journal {path} has {found.st_nlink} names (hard links), and what is committed under one is "
            "lost for another; remove all names but one, or make a copy"
        )
    for danger in find_dangers(path):
        _warn(danger)
    if writes and not os.access(path, os.W_OK):  # SQLite would open it nevertheless, and put a log beside it
        raise _unwritable(path, os.strerror(errno.EACCES))
    if 0 < found.st_size < _SMALLEST:  # SQLite takes a single byte for an empty file
        raise damaged(path, f"{found.st_size} bytes")
    # A crash while the file is made leaves a rollback journal beside an empty file, and no other log.
    if found.st_size == 0 and logs and logs[0].name.endswith("-wal"):
        raise _orphaned(path, logs[0])
    # Not by open() and read(): closing the file would drop the locks of a connection that this
    # process has to it already, and the next process to close would then delete the write-ahead
    # log under that connection. SQLite closes a file only when that is safe.
    with closing(_open(path, "mode=ro&immutable=1", timeout_s=0)) as connection:
        try:
            version_of(connection, path)
        except sqlite3.DatabaseError as error:
            # A checkpoint that was cut short looks like damage without the write-ahead log.
            if _code(error) != sqlite3.SQLITE_CORRUPT:
                raise
        # SQLite reads a page of which a part is missing as if it ended in zeros.
        if not logs and found.st_size % _pragma(connection, "page_size"):
            raise damaged(path, f"{found.st_size} bytes, the last page is cut short")


def find_dangers(path: Path) -> Iterator[str]:
    """The dangers to a file where it lies, each a sentence with its remedy."""
    folder = path.parent
    if os.name != "nt" and folder.stat().st_mode & stat.S_IWOTH:
        yield (
            f"every user of this machine can write to {folder} and so can replace the journal in it; "
            "take that right away, or keep the journal in a folder of your own"
        )
    kind = find_file_system(path)
    if kind is not None and kind.startswith(_SHARED) and kind != "fuseblk":
        yield (
            f"the journal's folder {folder} is in a file system ({kind}) that other machines may have too, "
            "where locks of SQLite may not hold; put the journal on a local disk, or use a PostgresJournal"
        )


def find_file_system(path: Path) -> str | None:
    """The kind of the file system that a file is in; only Linux tells."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}" if hasattr(os, "major") else ""
    with suppress(OSError):
        for line in _MOUNTS.read_text(errors="replace").splitlines():
            mount, _, system = line.partition(" - ")
            if mount.split()[2:3] == [number]:
                return system.partition(" ")[0]
    return None


@lru_cache(maxsize=1024)
def _warn(danger: str) -> None:
    logger.warning("%s", danger)


def sidecars(path: Path) -> list[Path]:
    """The file, and those that SQLite puts beside it, there or not."""
    return [path.with_name(path.name + suffix) for suffix in _SIDECARS]


def _tighten(path: Path) -> None:
    """Take the rights of other users from the file and its sidecars, so that mode 0600 is left at most."""
    for file in sidecars(path):
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(file.stat().st_mode)
            if mode & 0o077:
                file.chmod(mode & 0o600)


def _prepare(path: Path, busy_timeout_s: float, deadline: float) -> sqlite3.Connection:
    connection = _open(path, "mode=rw", timeout_s=max(0.0, deadline - time.monotonic()))
    try:
        version = version_of(connection, path)
        connection.execute("PRAGMA synchronous = FULL")
        _pragma(connection, f"journal_size_limit = {_LOG_KEPT}")
        connection.execute("PRAGMA cache_size = -256")  # in KiB; the system has the pages in memory already
        connection.execute("PRAGMA fullfsync = ON")  # on macOS a plain fsync stops at the drive's cache
        if version == 0:
            _make_tables(connection, path)
        for statement in _added():  # tables that a file of an earlier version may lack
            connection.execute(statement)
        if (mode := _pragma(connection, "journal_mode = WAL")) != "wal":
            raise JournalError(
                f"the journal {path} cannot have a write-ahead log here (SQLite stays in mode {mode}); "
                "put it on a local disk"
            )
        connection.execute(
            "INSERT OR REPLACE INTO meta VALUES ('opened_at', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"
        )
        _pragma(connection, f"busy_timeout = {round(busy_timeout_s * 1000)}")
    except BaseException:
        close_untouched(connection, path)
        raise
    return connection


def close_untouched(connection: sqlite3.Connection, path: Path) -> None:
    """Close, and leave a write-ahead log that was found beside the file where it is.

    The last connection to close moves the log into the file and deletes it, which is not for us to do
    to a file that we refuse. A second one keeps the first from being the last, and one that may only
    read cannot move anything.
    """
    with ExitStack() as stack:
        stack.callback(connection.close)
        if _logs(path):
            with suppress(sqlite3.Error):
                reader = stack.enter_context(closing(_open(path, "mode=ro", timeout_s=0)))
                stack.callback(connection.close)  # before the reader; closing twice does no harm
                _pragma(reader, "user_version")  # takes the lock that it keeps until it closes


def _open(path: Path, query: str, *, timeout_s: float) -> sqlite3.Connection:
    # mode=rw and not rwc, for SQLite would make the file with the rights that umask leaves.
    connection = sqlite3.connect(
        f"{path.as_uri()}?{query}", uri=True, isolation_level=None, timeout=timeout_s
    )
    # Damaged text is found when its row is read, so that the error can name the record_id.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    return connection


def _pragma(connection: sqlite3.Connection, pragma: str) -> Any:
    return connection.execute(f"PRAGMA {pragma}").fetchone()[0]


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The file's ``user_version``; 0 for an empty one, which becomes ours."""
    # In one statement, for another process may be making the file between two.
    application_id, version, tables = connection.execute(
        """SELECT (SELECT application_id FROM pragma_application_id),
            (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_master)"""
    ).fetchone()
    if (application_id, version, tables) == (0, 0, 0):
        return 0
    if application_id == _UNPUBLISHED:
        raise JournalSchemaError(
            f"the journal {path} was made by a version before the first published one and was left as it is; "
            "finish its tasks with that version, then move the file away, or use another path"
        )
    if application_id != APPLICATION_ID:
        raise JournalSchemaError(
            f"{path} is another program's database (application_id {application_id:#x}) "
            "and was left as it is; use another path"
        )
    if version < 1:  # set in the transaction that made the file ours
        raise damaged(path, f"schema version {version}")
    if version > VERSION:
        raise JournalSchemaError(
            f"the journal {path} was written by a newer version (schema {version}, not {VERSION}) "
            "and was left as it is; upgrade mcp-tasks-client or use another path"
        )
    return int(version)


def _make_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Make an empty file a journal, in one transaction, while no other process has it open."""
    _pragma(connection, "journal_mode = DELETE")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("BEGIN EXCLUSIVE")
    try:
        if version_of(connection, path) == 0:  # another process may have made it meanwhile
            for statement in _statements(schema_sql()):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # none is open if SQLite gave it up itself
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    # executescript() would commit the transaction that it runs in.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
