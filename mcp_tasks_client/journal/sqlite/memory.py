"""The journal in memory: for tests, and for hosts that need not survive a crash."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from typing import Any, Final

from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from ...errors import DrivenElsewhereError
from ..base import Journal, LeaseSource
from ..medium import Medium
from ..row import unescape
from ..sql import SqlJournal
from ..work import Job, Work, note_results, release

__all__ = ["MemoryJournal"]


_SAVES: Final = (("save",), ("save_known",))


class MemoryJournal(SqlJournal):
    """A journal in memory, gone with the process.

    It is a database of SQLite in memory, so that it gives back copies, and refuses and forgets the same as
    ``SqliteJournal``. Closing it forgets nothing; opening it again shows the same records. Several event
    loops may use it at once.

    Args:
        retention_s: Seconds for which the outcome of a keyed call is kept after it was delivered, and
            a task after its time-to-live.
        keep_delivered_s: Seconds for which the outcome of a call without a key is kept at least, once it was
            delivered to a host's own session; 0 forgets it at once.
    """

    def __init__(
        self,
        *,
        retention_s: float = Journal.retention_s,
        keep_delivered_s: float = Journal.keep_delivered_s,
    ) -> None:
        super().__init__("in memory", None, retention_s=retention_s, keep_delivered_s=keep_delivered_s)
        self._memory = _Memory()
        # Not at exit, when a thread of the host may still use it.
        weakref.finalize(self, self._memory.close).atexit = False

    def _enter(self, *, existing: bool) -> Medium:
        return self._memory

    async def aclose(self) -> None:
        """Count one user less. The records stay for the next opening of this object."""
        self.aclose_soon()


class _Memory(Medium):
    """A database in memory. Works are carried out at once, in the caller's own task."""

    def __init__(self) -> None:
        import sqlite3  # imported on use: most hosts keep a file, or a database elsewhere

        from .execution import STATEMENTS, execute
        from .file import check_sqlite, explain, schema_sql

        check_sqlite()
        self._execute, self._explain = execute, explain
        self._instructed = STATEMENTS("instructed").text
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.executescript(schema_sql())
        self._lock = threading.Lock()  # two event loops may use the journal
        self._sources: dict[str, LeaseSource] = {}  # by lease_id
        self._listeners: dict[object, Callable[[Collection[str]], object]] = {}
        self._watchers: dict[object, Callable[[], object]] = {}

    def close(self) -> None:
        """Forget everything."""
        self._connection.close()

    async def wait_until_open(self, *, existing: bool) -> None:
        """Return: it is open."""

    async def leave(self, journal: object) -> None:
        """Return: nothing is queued."""

    def leave_soon(self, journal: object) -> None:
        """Return: the records stay."""

    async def run(self, work: Work) -> Any:
        """Carry a work out. The caller's cancellation is raised after it."""
        result = self._carry_out(work)
        # Drivers wait for saves most often, and other tasks run soon enough.
        await (checkpoint_if_cancelled() if work.statements[:1] in _SAVES else checkpoint())
        return result

    def run_unattended(self, work: Work) -> None:
        """Carry a write out."""
        self._carry_out(work)

    def _carry_out(self, work: Work) -> Any:
        job = Job(work, None)
        try:
            with self._lock:
                found = self._execute(self._connection, [job])
        except Exception as error:
            raise self._explain(error, "in memory") from error
        assert found is not None, "one work is executed by itself"
        note_results([job], found)
        if isinstance(job.error, DrivenElsewhereError):
            raise job.error
        if job.error is not None:
            raise self._explain(job.error, "in memory") from job.error
        return job.result

    def keep_renewing(self, source: LeaseSource) -> None:
        """Hold on to the source. Nothing is renewed, since no other process can see this journal."""
        self._sources[source.lease_id] = source
        names = source.ended()
        if names:
            self._carry_out(release(names))
            source.released(names)

    def stop_renewing(self, lease_id: str) -> None:
        """Forget the source of a lease."""
        self._sources.pop(lease_id, None)

    def listen(self, listener: Callable[[Collection[str]], object]) -> Callable[[], None]:
        """Tell of the records that have instructions, at once of those that have some now."""
        token = object()
        with self._lock:
            self._listeners[token] = listener
            left = [unescape(key) for (key,) in self._connection.execute(self._instructed)]
        if left:
            listener(left)

        def stop() -> None:
            self._listeners.pop(token, None)

        return stop

    def tell(self, record_ids: Collection[str]) -> None:
        """Tell the listeners of these records."""
        told = [unescape(record_id) for record_id in record_ids]
        for listener in list(self._listeners.values()):
            listener(told)

    def watch(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Tell that calls may have asked or ended."""
        token = object()
        self._watchers[token] = watcher

        def stop() -> None:
            self._watchers.pop(token, None)

        return stop

    def tell_watchers(self) -> None:
        """Tell the watchers."""
        for watcher in list(self._watchers.values()):
            watcher()
