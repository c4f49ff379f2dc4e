"""The journal in a SQLite file, and the choice of a journal by the argument ``journal``."""

from __future__ import annotations

import os
from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import Final

from anyio import to_thread

from ...errors import JournalError
from ..base import Journal
from ..codec import Codec
from ..examination import Examination
from ..medium import Medium, Timing
from ..sql import SqlJournal

__all__ = ["SqliteJournal", "choose_journal"]

_LONGEST_TIMEOUT_S: Final = 86_400.0


class SqliteJournal(SqlJournal):
    """A journal in a SQLite file, which any number of processes may share.

    A coroutine that writes returns once the write is synced to the disk. Several event loops of one
    process may use one journal. All journals of a process that keep the same file share one thread and one
    connection, so that one for each call costs hardly more than one for all. A process must not be forked
    while the file is open.

    Args:
        path: The file; it and missing folders are made for the user alone. ``None`` is
            ``mcp-tasks-client/journal.sqlite3`` in the user's folder for state.
        busy_timeout_s: Seconds to wait while another process writes. Of several journals of a process that
            have the file open, the one counts that opened it first.
        codec: Encodes results, questions, answers and digests of arguments before they are stored, such as a
            :class:`FernetCodec`; ``None`` stores them as they are. Each journal reads by its own codec alone.
        retention_s: Seconds for which the outcome of a keyed call is kept after it was delivered, and
            a task after its time-to-live.
        keep_delivered_s: Seconds for which the outcome of a call without a key is kept at least, once it was
            delivered to a host's own session; 0 forgets it at once.

    Raises:
        ValueError: ``path`` is ``":memory:"``, or ``busy_timeout_s`` is not between 0 and a day.
        JournalError: There is no ``path``, and no home folder, as in some containers.
    """

    _timing = Timing()

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        busy_timeout_s: float = 5.0,
        codec: Codec | None = None,
        retention_s: float = Journal.retention_s,
        keep_delivered_s: float = Journal.keep_delivered_s,
    ) -> None:
        if not 0 <= busy_timeout_s <= _LONGEST_TIMEOUT_S:
            raise ValueError(
                f"busy_timeout_s must be between 0 and {_LONGEST_TIMEOUT_S}, not {busy_timeout_s}"
            )
        if path == ":memory:":
            raise ValueError("SqliteJournal keeps a file; use MemoryJournal() for one in memory")
        self._path = Path(_users_own() if path is None else path).absolute()
        self._file = Path(os.path.realpath(self._path))
        self._busy_timeout_s = busy_timeout_s
        super().__init__(self._path, codec, retention_s=retention_s, keep_delivered_s=keep_delivered_s)
        # Here, since opening happens in an event loop, and fails with a JournalError or not at all.
        # Imported on use, and SQLite with it: a PostgresJournal needs neither.
        from .thread import SqliteThread, thread_of_existing

        self._make = partial(SqliteThread, self._file, busy_timeout_s, self._timing)
        self._make_existing = partial(thread_of_existing, self._file, busy_timeout_s, self._timing)
        self._join = SqliteThread.joined

    @property
    def path(self) -> Path:
        """The file, as an absolute path."""
        return self._path

    @property
    def identity(self) -> Hashable:
        """Equal for journals in the same file."""
        return self._file

    def __repr__(self) -> str:
        return f"SqliteJournal({str(self._path)!r})"

    async def open_existing(self) -> None:
        """Open the file that is there; without the right to write it, for reading alone. Nothing is made.

        Raises:
            JournalError: There is no journal. Besides, as from :meth:`open`.
        """
        await self._open(existing=True)

    async def examine(self) -> Examination:
        """Examine the file. Nothing is made or changed.

        All of it is read, to find damage. The journal need not be open.
        """
        from .examining import examine_file

        return await to_thread.run_sync(examine_file, self._file, self._busy_timeout_s)

    def _enter(self, *, existing: bool) -> Medium:
        return self._join(self, self._file, self._make_existing if existing else self._make)


def _users_own() -> Path:
    """The user's default file.

    Raises:
        JournalError: The user has no home folder.
    """
    import platformdirs  # imported on use: it is only needed where no file is named

    try:
        return platformdirs.user_state_path("mcp-tasks-client", appauthor=False) / "journal.sqlite3"
    except RuntimeError as error:
        raise JournalError(
            f"there is no home folder for the journal ({error}); give a path that lasts, by journal="
        ) from error


def choose_journal(journal: Journal | str | os.PathLike[str] | None) -> Journal:
    """The journal that an argument stands for: itself, a file, or the user's own if ``None``.

    Raises:
        TypeError: It is none of these.
        ValueError: It is the address of a database, or another URL.
        JournalError: It is ``None``, and the user has no home folder.
    """
    if isinstance(journal, Journal):
        return journal
    if isinstance(journal, str) and "://" in journal:  # without the address, which may hold a password
        raise ValueError("journal is the path of a file; for a database give a PostgresJournal(address)")
    if journal is None or isinstance(journal, str | os.PathLike):
        return SqliteJournal(journal)
    raise TypeError(f"journal must be a path, a Journal or None, not {type(journal).__name__}")
