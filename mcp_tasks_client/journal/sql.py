"""The journal in a database: every method once, over the statements of ``statements.sql``.

:mod:`.sqlite` and :mod:`.postgres` say where the database is; :mod:`.sqlite.memory` has one in memory.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ..machine.record import Scope, TaskRecord
from .base import LEASES_KEPT_S, Asking, Instruction, Journal, Lease, LeaseSource, Listener, Taken
from .codec import Codec, check_codec, encoded
from .medium import Medium
from .row import (
    ASKING,
    Row,
    changing_columns,
    checked_fence,
    checked_time,
    columns_of,
    driven_elsewhere,
    duration_columns,
    escape,
    key_digest,
    not_open,
    read_instruction,
    read_instructions,
    read_rows,
    scope_digest,
    tool_digest,
    unescape,
    unescape_each,
)
from .work import Found, Work, release, renew_lease

__all__ = ["SqlJournal"]

_NO_LIMIT: Final = 2**63 - 1


class SqlJournal(Journal):
    """A journal whose records are rows of a database."""

    def __init__(
        self, name: object, codec: Codec | None, *, retention_s: float, keep_delivered_s: float
    ) -> None:
        self.retention_s = retention_s
        self.keep_delivered_s = keep_delivered_s
        self._name = name
        self._codec = codec
        self._lock = threading.Lock()
        self._users = 0
        self._medium: Medium | None = None  # while there are users

    # ── opening and closing ───────────────────────────────────────────────────────────────────

    @abstractmethod
    def _enter(self, *, existing: bool) -> Medium:
        """Count this journal in at its medium: the one that there is in this process, or a new one.

        Raises:
            JournalError: An ``existing`` one is wanted, and there is none.
        """

    async def open(self) -> None:
        """Open or make the medium, and commit a first write to it.

        Raises:
            JournalLockedError: Another process held the file for longer than an opening waits.
            JournalCorruptError: The file is damaged, or no database. It is left as it is.
            JournalSchemaError: The medium is another program's or of another version. It is left as it is.
            JournalCodecError: The codec does not decode its own values.
            JournalError: The medium cannot be reached, or cannot be written.
        """
        await self._open(existing=False)

    async def _open(self, *, existing: bool) -> None:
        check_codec(self._codec)
        with self._lock:
            medium = self._medium = self._medium or self._enter(existing=existing)
            self._users += 1
        try:
            await medium.wait_until_open(existing=existing)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Count one user less. The last one's leaving finishes every write.

        It also closes the medium, unless another journal of this process has it open.
        """
        medium = self._left()
        if medium is not None:
            await medium.leave(self)

    def aclose_soon(self) -> None:
        """Count one user less. Ten seconds after this process's last one has left, the medium is closed."""
        medium = self._left()
        if medium is not None:
            medium.leave_soon(self)

    def _left(self) -> Medium | None:
        """Count one user less. Returns the medium if that was the last one."""
        with self._lock:
            self._users = max(0, self._users - 1)
            if self._users:
                return None
            medium, self._medium = self._medium, None
            return medium

    def _opened(self) -> Medium:
        if self._medium is None:
            raise not_open(self._name)
        return self._medium

    # ── records ───────────────────────────────────────────────────────────────────────────────

    async def claim(self, record: TaskRecord) -> TaskRecord:
        """Store a new record, unless its key is taken; returns the one that stands."""
        columns = columns_of(record, self._codec)
        work = _about(
            columns, ("claim", "standing"), lambda found: Row._make(found[1][0]) if found[1] else None
        )
        while (standing := await self._opened().run(work)) is None:
            pass  # the record that had the key was forgotten between two statements
        is_given = standing == tuple(columns[name] for name in Row._fields)
        return record if is_given else standing.record(self._codec)

    async def save(
        self,
        record: TaskRecord,
        *,
        known: bool = False,
        heeded: Instruction | None = None,
        keep_until: float | None = None,
    ) -> None:
        """Store a record as it now is, new or not, and commit it."""
        row = changing_columns(record, self._codec) if known else columns_of(record, self._codec)
        if keep_until is not None:
            row["expires_at"] = checked_time(keep_until)
        heed: tuple[str, ...] = ()
        if heeded is not None:
            row["instruction_name"], heed = escape(heeded.name), ("heed",)
            row["instruction_body"] = encoded(escape(heeded.body), self._codec)

        medium, is_news = self._opened(), record.finished or record.status in ASKING

        def read(found: Found) -> None:
            if not found[0]:
                raise driven_elsewhere(record.tool)
            if is_news:
                medium.tell_watchers()

        duration = duration_columns(record)
        work = _about(row | duration, ("save_known" if known else "save", *heed), read)
        work.also = "note_duration" if duration else None
        work.again = ("save_known", *heed)
        await medium.run(work)

    def deliver(self, at: float, fences: Mapping[str, int], *, keep_until: float | None = None) -> None:
        """Note that hosts have had these outcomes: with the next write, within a second, or on closing."""
        times = {"at": checked_time(at), "keep_until": keep_until and checked_time(keep_until)}
        statements = ("deliver",) if keep_until is not None else ("forget_delivered", "deliver")
        medium = self._opened()
        rows = [{"record_id": escape(name), "fence": checked_fence(fence)} for name, fence in fences.items()]
        for row in rows:
            medium.run_unattended(_about({**row, **times}, statements))

    async def remove(self, record: TaskRecord) -> None:
        """Forget a record, if there is one and it was not taken since."""
        fence = checked_fence(record.fence)
        row = {"record_id": escape(record.record_id), "fence": fence, "key": key_digest(record)}
        await self._opened().run(_about(row, ("remove",)))

    async def by_id(self, record_id: str) -> TaskRecord | None:
        """The record of this ``record_id``."""
        row = await self._row(record_id)
        return None if row is None else row.record(self._codec)

    async def by_task_id(self, scope: Scope, task_id: str) -> TaskRecord | None:
        """The newest record of a task."""
        rows = await self._rows("by_task_id", scope=scope_digest(scope), task_id=escape(task_id))
        return rows[0].record(self._codec) if rows else None

    async def records(
        self,
        scope: Scope | None,
        *,
        pending: bool = False,
        delivered_since: float | None = None,
        endpoint: str | None = None,
        principal: str | None = None,
        label: str | None = None,
        application: str | None = None,
        limit: int | None = None,
        before: TaskRecord | float | None = None,
    ) -> list[TaskRecord]:
        """The records of a scope, oldest first; if only some are wanted, by an index of those alone."""
        values = _in_scope(scope)
        named = {"endpoint": endpoint, "principal": principal, "label": label, "application": application}
        if limit is not None or before is not None or any(text is not None for text in named.values()):
            values |= {name: escape(text) for name, text in named.items()}
            return await self._latest(values, pending, delivered_since, limit, before)
        statement = "pending" if pending else "all"
        if delivered_since is not None:
            statement, values["delivered_since"] = "delivered_since", checked_time(delivered_since)
        rows = await self._rows(statement, **values)
        if pending and statement != "pending":
            rows = [row for row in rows if row.pending]
        return [record for _, record in await read_rows(rows, self._name, self._codec)]

    async def _latest(
        self,
        values: dict[str, Any],
        pending: bool,
        delivered_since: float | None,
        limit: int | None,
        before: TaskRecord | float | None,
    ) -> list[TaskRecord]:
        """The last records of a scope, as many as are wanted, of those that can be read. Oldest first."""
        since = delivered_since and checked_time(delivered_since)
        values |= {"before_at": math.inf, "before_id": None}
        if isinstance(before, TaskRecord):
            values |= {"before_at": checked_time(before.created_at), "before_id": escape(before.record_id)}
        elif before is not None:
            values["before_at"] = checked_time(before)
        found: list[TaskRecord] = []
        while True:
            # A row that cannot be read, or was not delivered since, does not count.
            wanted = _NO_LIMIT if limit is None else limit - len(found)
            rows = await self._rows("latest_pending" if pending else "latest", **values, limit=wanted)
            kept = [row for row in rows if since is None or _is_since(row.delivered_at, since)]
            found += [record for _, record in await read_rows(kept, self._name, self._codec)]
            if len(rows) < wanted or len(found) == limit:
                return found[::-1]
            values |= {"before_at": rows[-1].created_at, "before_id": rows[-1].record_id}

    async def asking(self, scope: Scope | None) -> list[Asking]:
        """The records whose server asks something, each with its instructions, by one statement."""
        left: dict[str, list[str]] = {}
        rows: list[Row] = []
        for *columns, name in await self._read("asking", **_in_scope(scope)):
            row = Row._make(columns)
            if row.record_id not in left:
                left[row.record_id] = []
                rows.append(row)
            if name is not None:
                left[row.record_id].append(name)
        return [
            Asking(record, unescape_each(left[row.record_id], self._name))
            for row, record in await read_rows(rows, self._name, self._codec)
        ]

    async def prune(self, before: float, now: float, gone: Collection[str] = ()) -> int:
        """Forget old records, at most 10,000, and old leases."""
        values = {
            "before": checked_time(before),
            "now": checked_time(now),
            "leases_before": before - LEASES_KEPT_S,
            "gone": list(map(escape, gone)),
        }
        work = Work(
            statements=("prune_leases", "prune_delivered", "prune_expired"),
            values=values,
            read=lambda found: found[1][0][0] + found[2][0][0],
        )
        forgotten: int = await self._opened().run(work)
        return forgotten

    # ── owners ────────────────────────────────────────────────────────────────────────────────

    async def renew(self, lease: Lease) -> bool:
        """Store a lease; false if it had run out, or was not there."""
        was_kept: bool = await self._opened().run(renew_lease(lease))
        return was_kept

    def keep_renewing(self, source: LeaseSource) -> None:
        """Have the medium renew the lease, with its other writes or by itself."""
        self._opened().keep_renewing(source)

    async def owners(self, *names: str) -> dict[str, Lease | None]:
        """Owners, and their leases."""
        owning: Sequence[str] = names
        if not names:
            owning = unescape_each((owner for (owner,) in await self._read("owners")), self._name)
        lease_of = {name: name.rpartition("/")[0] for name in owning}
        found = await self._read("leases", lease_ids=list(map(escape, set(lease_of.values()))))
        leases = {lease.lease_id: lease for lease in map(self._lease, found) if lease is not None}
        return {name: leases.get(lease_id) for name, lease_id in lease_of.items()}

    def _lease(self, columns: Sequence[Any]) -> Lease | None:
        """A lease that was read; ``None`` if it is damaged, as if there was none."""
        texts = unescape_each(columns[:4], self._name)
        whole: list[Any] = [*texts, *columns[4:]]
        return Lease(*whole) if len(whole) == len(columns) else None

    async def take(self, record_id: str, owner: str, gone: Collection[str] = ()) -> Taken | None:
        """Become the owner of a record that is free."""
        key, mine, free = escape(record_id), escape(owner), list(map(escape, gone))
        while True:
            # A client that only follows the call of another looks often, and must not hold up writers.
            row = await self._row(record_id)
            if row is None:
                return None
            record = row.record(self._codec)  # a record that cannot be read is not taken
            if row.taken(mine, free) is row:
                return Taken(record, record.owner)
            taking = Work(
                statements=("owner_before", "take", "record"),
                values={"record_id": key, "owner": mine, "gone": free},
                again=("record",),
                read=partial(_read_take, mine, row),
            )
            taken = await self._opened().run(taking)
            if taken is not None:  # else another client was faster
                before, after = taken
                return Taken(after.record(self._codec), unescape(before))

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
        """Become the owner of the records that are pending, free and readable."""
        mine = escape(owner)
        where: dict[str, Any] = {
            "scope": scope_digest(scope),
            "owner": mine,
            "application": escape(application),
            "gone": [escape(one) for one in gone if one != owner],
        }
        # By ID. Looked up here and not in SQL, where a damaged row may have another ID than the one read.
        seen: dict[str, Row] = {}
        left_alone, taken = list(map(escape, leave)), 0
        while limit is None or taken < limit:
            asked_for = _NO_LIMIT if limit is None else limit - taken + len(seen)
            found = await self._rows("free", **where, leave=left_alone, limit=asked_for)
            page = [row for row in found if row.record_id not in seen]
            readable = [row.record_id for row, _ in await read_rows(page, self._name, self._codec)]
            if readable:
                taking = Work(
                    statements=("take_free",),
                    values={**where, "record_ids": readable},
                    again=("taken",),
                    read=lambda found: found[0][0][0],
                )
                taken += await self._opened().run(taking)
            seen |= {row.record_id: row for row in page}
            if len(found) < asked_for or not page:
                break  # else some cannot be read, or another client was faster
        rows = await self._rows("mine", **where)
        return [
            Taken(record, unescape(seen[row.record_id].owner) if row.record_id in seen else owner)
            for row, record in await read_rows(rows, self._name, self._codec)
        ]

    async def principals(
        self, endpoint: str, gone: Collection[str] = (), *, application: str | None = None
    ) -> list[str]:
        """The principals that have records at a server which are pending and free."""
        found = await self._read(
            "principals",
            endpoint=escape(endpoint),
            application=escape(application),
            gone=list(map(escape, gone)),
        )
        return unescape_each((principal for (principal,) in found), self._name)

    async def release(self, *names: str) -> None:
        """Release the records of these owners, and forget these leases."""
        medium = self._opened()
        for name in names:
            medium.stop_renewing(name)
        await medium.run(release(names))

    async def durations(self, scope: Scope, tool: str) -> list[float]:
        """How long the last tasks of a tool ran, the oldest first, by the key of their rows."""
        found = await self._read("durations", tool_key=tool_digest(scope, tool))
        return [float(took_s) for (took_s,) in found if isinstance(took_s, int | float)]

    # ── instructions ──────────────────────────────────────────────────────────────────────────

    async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
        """Leave an instruction, unless there is one of that name; returns the one that stands."""
        key, medium = escape(record_id), self._opened()
        row = {
            "record_id": key,
            "name": escape(instruction.name),
            "body": encoded(escape(instruction.body), self._codec),
            "at": checked_time(instruction.at),
        }

        def read(found: Found) -> Sequence[Any] | None:
            standing = found[1][0] if found[1] else None
            if standing is not None and (*standing[:2], standing[3]) == (row["name"], row["body"], 0):
                medium.tell((key,))
            return standing

        standing = await medium.run(_about(row, ("instruct", "instruction"), read))
        return None if standing is None else read_instruction(standing, key, self._codec)

    async def instructions(self, record_id: str) -> list[Instruction]:
        """The instructions of a record that are to be heeded, oldest first."""
        key = escape(record_id)
        work = _about({"record_id": key}, ("instructions",), lambda found: found[0], writes=False)
        return read_instructions(await self._opened().run(work), key, self._name, self._codec)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell of instructions, at once of those left in this process."""
        return self._opened().listen(listener)

    def watch(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Tell that calls may have asked or ended, at once of those saved in this process."""
        return self._opened().watch(watcher)

    # ── works ─────────────────────────────────────────────────────────────────────────────────

    async def _row(self, record_id: str) -> Row | None:
        work = _about({"record_id": escape(record_id)}, ("by_id",), lambda found: found[0], writes=False)
        rows = await self._opened().run(work)
        return Row._make(rows[0]) if rows else None

    async def _rows(self, statement: str, **values: Any) -> list[Row]:
        return [Row._make(row) for row in await self._read(statement, **values)]

    async def _read(self, statement: str, **values: Any) -> Sequence[Sequence[Any]]:
        work = Work(
            statements=(statement,),
            values=values,
            writes=False,
            read=lambda found: found[0],
        )
        rows: Sequence[Sequence[Any]] = await self._opened().run(work)
        return rows


def _is_since(at: float | None, since: float) -> bool:
    return at is not None and at >= since


def _in_scope(scope: Scope | None) -> dict[str, Any]:
    return {} if scope is None else {"scope": scope_digest(scope)}


def _about(
    row: dict[str, Any],
    statements: tuple[str, ...],
    read: Callable[[Found], Any] = lambda found: None,
    *,
    writes: bool = True,
) -> Work:
    """A work about one row, which one execution does for many."""
    record_id = row["record_id"]
    key = row.get("key")
    touches = (record_id,) if key is None else (record_id, key)
    return Work(statements=statements, row=row, key=record_id, touches=touches, read=read, writes=writes)


def _read_take(owner: str, seen: Row, found: Found) -> tuple[str | None, Row] | None:
    """The owner before, and the row as it is now; ``None`` if ``owner`` has not taken the record.

    If the reply to the take was lost, ``seen`` has the owner before.
    """
    before = found[0] if len(found) > 1 else [(seen.owner, seen.fence)]
    if not before or not found[-1]:
        return None
    owner_before, fence = before[0]
    row = Row._make(found[-1][0])
    return (owner_before, row) if row.owner == owner and row.fence == fence + 1 else None
