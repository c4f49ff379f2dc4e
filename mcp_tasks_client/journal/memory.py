"""The journal that forgets: for tests, and for hosts that need not survive a crash."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from ..errors import JournalError
from ..machine.record import Scope, TaskRecord
from .base import LEASES_KEPT_S, Instruction, Journal, Lease, LeaseSource, Listener, Taken
from .row import ASKING, Row, checked_time, driven_elsewhere, escape, not_open, read_rows, unescape

__all__ = ["MemoryJournal"]

_Scope: TypeAlias = tuple[str, str]
_Key: TypeAlias = tuple[str, str, str | None]


class MemoryJournal(Journal):
    """A journal in memory, gone with the process.

    It keeps rows as ``SqliteJournal`` does, so that what it gives back is always a copy and
    what has no JSON form is refused here as well. Closing it forgets nothing; opening it again
    shows the same records. Several event loops may use it at once.

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
        self.retention_s = retention_s
        self.keep_delivered_s = keep_delivered_s
        self._lock = threading.Lock()
        self._users = 0
        self._arrivals = 0
        # By record_id, with the order of arrival, which decides between equal created_at.
        self._rows: dict[str, tuple[int, Row]] = {}
        self._keys: dict[_Key, str] = {}
        self._pending: defaultdict[_Scope, set[str]] = defaultdict(set)
        self._leases: dict[str, Lease] = {}
        self._sources: dict[str, LeaseSource] = {}  # by lease_id
        self._instructions: defaultdict[str, dict[str, Instruction]] = defaultdict(dict)  # by record_id, name
        self._listeners: set[Listener] = set()

    async def open(self) -> None:
        """Count one more user."""
        with self._lock:
            self._users += 1

    async def aclose(self) -> None:
        """Count one user less. The records stay, for whoever opens this object again."""
        self.aclose_soon()

    def aclose_soon(self) -> None:
        """Count one user less."""
        with self._lock:
            self._users = max(0, self._users - 1)

    async def claim(self, record: TaskRecord) -> TaskRecord:
        """Store a new record, unless its key is taken; returns the one that stands."""
        row = Row.of(record)
        with self._lock:
            self._check_open()
            standing = self._row(self._keys.get(_key(row), row.record_id))
            if standing is None:
                self._store(row)
        await checkpoint()  # after the write, which being cancelled does not undo
        return record if standing is None else standing.record()

    async def save(self, record: TaskRecord, *, known: bool = False, heeded: str | None = None) -> None:
        """Store a record as it now is, new or not."""
        row = Row.of(record)
        with self._lock:
            self._check_open()
            if self._keys.get(_key(row), row.record_id) != row.record_id:
                raise JournalError(
                    "the journal refuses the record: another one holds its idempotency key; "
                    "read that one by its key"
                )
            standing = self._row(row.record_id) or (None if known else row)
            if standing is None or standing.fence != row.fence:
                raise driven_elsewhere(record.tool)
            self._store(row)
            left = self._instructions.get(row.record_id, {})
            if heeded in left:
                left[heeded] = left[heeded]._replace(body="", heeded=True)
        await checkpoint_if_cancelled()

    def deliver(self, at: float, fences: Mapping[str, int], *, keep_until: float | None = None) -> None:
        """Note that hosts have had these outcomes."""
        checked_time(at)
        with self._lock:
            self._check_open()
            for record_id, fence in fences.items():
                row = self._row(escape(record_id))
                if row is None or row.fence != fence or not row.undelivered:
                    continue
                delivered = row.delivered(at, keep_until)
                if delivered is None:
                    self._forget(row.record_id)
                else:
                    self._store(delivered)

    async def remove(self, record: TaskRecord) -> None:
        """Forget a record, if there is one and it was not taken since."""
        with self._lock:
            self._check_open()
            standing = self._row(escape(record.record_id))
            if standing is not None and standing.fence == record.fence:
                self._forget(standing.record_id)
        await checkpoint()

    async def by_id(self, record_id: str) -> TaskRecord | None:
        """The record of this ``record_id``."""
        with self._lock:
            self._check_open()
            found = self._row(escape(record_id))
        await checkpoint()
        return None if found is None else found.record()

    async def by_key(self, scope: Scope, idempotency_key: str) -> TaskRecord | None:
        """The record of an idempotency key."""
        key = (*_scope(scope), escape(idempotency_key))
        with self._lock:
            self._check_open()
            found = self._row(self._keys.get(key))
        await checkpoint()
        return None if found is None else found.record()

    async def by_task_id(self, scope: Scope, task_id: str) -> TaskRecord | None:
        """The newest record of a task. Looks through all records."""
        escaped = escape(task_id)
        with self._lock:
            self._check_open()
            found = [row for row in self._in_order(_scope(scope), self._rows) if row.task_id == escaped]
        await checkpoint()
        return found[-1].record() if found else None

    async def records(
        self,
        scope: Scope | None,
        *,
        pending: bool = False,
        asking: bool = False,
        delivered_since: float | None = None,
    ) -> list[TaskRecord]:
        """The records of a scope that can be read, oldest first."""
        key = None if scope is None else _scope(scope)
        with self._lock:
            self._check_open()
            scopes = self._pending if key is None else [key]
            of_scopes = [record_id for one in scopes for record_id in self._pending.get(one, ())]
            found = self._in_order(key, of_scopes if pending else self._rows)
        if asking:
            found = [row for row in found if row.status in ASKING]
        if delivered_since is not None:
            found = [row for row in found if (row.delivered_at or -math.inf) >= delivered_since]
        await checkpoint()
        return [record for _, record in await read_rows(found, self.identity)]

    async def prune(self, before: float, now: float, gone: Collection[str] = ()) -> int:
        """Forget what is old. Looks through all records."""
        free = {None, *map(escape, gone)}
        with self._lock:
            self._check_open()
            old = [
                record_id
                for record_id, (_, row) in self._rows.items()
                if row.is_old(before, now) and (row.delivered_at is not None or row.owner in free)
            ]
            for record_id in old:
                self._forget(record_id)
            for lease in list(self._leases.values()):
                if lease.expires_at < before - LEASES_KEPT_S:
                    del self._leases[lease.lease_id]
        await checkpoint()
        return len(old)

    # ── who drives what ───────────────────────────────────────────────────────────────────────

    async def renew(self, lease: Lease) -> bool:
        """Store a lease; false if it had run out, or was not there."""
        with self._lock:
            self._check_open()
            before = self._leases.get(lease.lease_id)
            self._leases[lease.lease_id] = lease
        await checkpoint()
        return before is not None and before.expires_at >= lease.renewed_at

    def keep_renewing(self, source: LeaseSource) -> None:
        """Hold on to the source. Nothing is renewed, since no other process can see this journal."""
        self._sources[source.lease_id] = source

    async def owners(self, *names: str) -> dict[str, Lease | None]:
        """Owners, and their leases. Without names it looks through all records."""
        with self._lock:
            self._check_open()
            owning = {unescape(row.owner) for _, row in self._rows.values() if row.owner is not None}
            found = {name: self._leases.get(name.rpartition("/")[0]) for name in names or owning}
        await checkpoint()
        return found

    async def take(self, record_id: str, owner: str, gone: Collection[str] = ()) -> Taken | None:
        """Become the owner of a record that is free."""
        with self._lock:
            self._check_open()
            before = self._row(escape(record_id))
            after = None if before is None else before.taken(escape(owner), set(map(escape, gone)))
            if after is not None and after is not before:
                self._store(after)
        await checkpoint()
        return None if before is None or after is None else Taken(after.record(), unescape(before.owner))

    async def take_pending(
        self,
        scope: Scope,
        owner: str,
        gone: Collection[str] = (),
        *,
        application: str | None = None,
        limit: int | None = None,
        leave: Collection[str] = (),
    ) -> list[Taken]:
        """Become the owner of whatever is pending and free."""
        key, escaped, free = _scope(scope), escape(owner), set(map(escape, gone))
        with self._lock:
            self._check_open()
            rows = self._in_order(key, self._pending.get(key, ()))
            owner_before: dict[Row, str | None] = {}
            left, left_alone = math.inf if limit is None else limit, set(map(escape, leave))
            for row in rows:
                if row.application not in (None, escape(application)):
                    continue
                if row.owner == escaped:
                    owner_before[row] = row.owner
                elif left > 0 and row.record_id not in left_alone:
                    after = row.taken(escaped, free)
                    if after is not row:
                        self._store(after)
                        owner_before[after] = row.owner
                        left -= 1
        read = await read_rows(owner_before, self.identity)
        return [Taken(record, unescape(owner_before[row])) for row, record in read]

    async def release(self, *names: str) -> None:
        """Release what these owners have, and forget these leases."""
        escaped = set(map(escape, names))
        with self._lock:
            self._check_open()
            for _, row in list(self._rows.values()):
                if row.owner in escaped:
                    self._store(row._replace(owner=None if row.undelivered else f"{row.owner}/left"))
            for name in names:
                self._leases.pop(name, None)
                self._sources.pop(name, None)
        await checkpoint()

    # ── instructions ──────────────────────────────────────────────────────────────────────────

    async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
        """Leave an instruction, unless there is one of that name; returns the one that stands."""
        checked_time(instruction.at)
        key = escape(record_id)
        with self._lock:
            self._check_open()
            row = self._row(key)
            standing = None
            if row is not None and not row.ended:
                standing = self._instructions[key].setdefault(escape(instruction.name), instruction)
            listeners = list(self._listeners)
        if standing is instruction:
            for listener in listeners:
                listener((record_id,))
        await checkpoint()
        return standing

    async def instructions(self, record_id: str) -> list[Instruction]:
        """The instructions of a record that are to be heeded, oldest first."""
        with self._lock:
            self._check_open()
            found = list(self._instructions.get(escape(record_id), {}).values())
        await checkpoint()
        return [instruction for instruction in found if not instruction.heeded]

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell of instructions that are to be heeded."""
        with self._lock:
            self._check_open()
            self._listeners.add(listener)
            waiting = [
                unescape(record_id)
                for record_id, left in self._instructions.items()
                if any(not instruction.heeded for instruction in left.values())
            ]
        if waiting:
            listener(waiting)
        return lambda: self._listeners.discard(listener)

    def _check_open(self) -> None:
        if not self._users:
            raise not_open()

    def _row(self, record_id: str | None) -> Row | None:
        found = None if record_id is None else self._rows.get(record_id)
        return None if found is None else found[1]

    def _store(self, row: Row) -> None:
        arrival = self._take_out(row.record_id)
        if row.ended:
            self._instructions.pop(row.record_id, None)
        if arrival is None:
            arrival = self._arrivals
            self._arrivals += 1
        self._rows[row.record_id] = arrival, row
        if row.idempotency_key is not None:
            self._keys[_key(row)] = row.record_id
        if row.pending:
            self._pending[row.endpoint, row.principal].add(row.record_id)

    def _forget(self, record_id: str) -> int | None:
        self._instructions.pop(record_id, None)
        return self._take_out(record_id)

    def _take_out(self, record_id: str) -> int | None:
        arrival, row = self._rows.pop(record_id, (None, None))
        if row is not None:
            self._keys.pop(_key(row), None)
            self._pending[row.endpoint, row.principal].discard(record_id)
        return arrival

    def _in_order(self, scope: _Scope | None, record_ids: Iterable[str]) -> list[Row]:
        entries = [self._rows[record_id] for record_id in record_ids]
        mine = [(n, row) for n, row in entries if scope in (None, (row.endpoint, row.principal))]
        return [row for _, row in sorted(mine, key=lambda entry: (entry[1].created_at, entry[0]))]


def _scope(scope: Scope) -> _Scope:
    return escape(scope.endpoint), escape(scope.principal)


def _key(row: Row) -> _Key:
    return row.endpoint, row.principal, row.idempotency_key
