"""The journal in a PostgreSQL database: what the processes of many hosts share.

One thread writes over one connection (:mod:`.writer`), so that asyncio and trio are served alike. The
statements are in ``queries.sql``, the tables in ``schema/``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final

from ...machine.record import Scope, TaskRecord
from ..base import LEASES_KEPT_S, Instruction, Journal, Lease, Taken
from ..codec import Codec, encoded
from ..row import (
    Row,
    checked_time,
    driven_elsewhere,
    escape,
    read_instruction,
    read_instructions,
    read_rows,
    unescape,
)
from ..threaded import ThreadedJournal
from .clock import DatabaseClock
from .queries import check_schema
from .stored import key_digest, scope_digest, to_columns
from .work import Found, Work, row_json

if TYPE_CHECKING:
    from .writer import PostgresThread  # noqa: F401  # named as text, in the base class

__all__ = ["PostgresJournal"]

_CHANGING: Final = (
    *("record_id", "fence", "owner", "updated_at", "delivered_at", "state"),
    *("task_id", "status", "pending", "due_at", "expires_at"),
)
"""What the statement ``save_known`` needs of a row."""

_LONGEST_OUTAGE_S: Final = 86_400.0


class PostgresJournal(ThreadedJournal["PostgresThread"]):
    """A journal in a PostgreSQL database (13 or later), which the processes of many hosts may share.

    It needs the extra ``mcp-tasks-client[postgres]``. A coroutine that writes returns once the write is
    committed. Several event loops of one process may use one journal. All journals of a process that keep the
    same schema share one thread, with one connection to write and read and one to listen. A process must not
    be forked while the journal is open.

    Leases and due times of all hosts go by the database's clock.

    Args:
        dsn: Where the database is, as libpq takes it: ``postgresql://user@host/database`` or
            ``host=… dbname=…``. Empty is what the environment variables of libpq say. Of several hosts it is
            the one that takes writes, also after a failover.
        password: Called for the password whenever a connection is made, in a thread, where it may block for
            some seconds: for one that changes, such as an IAM token. While it raises, the database counts as
            away. ``None`` is what ``dsn`` says.
        schema: The schema that holds the journal's tables; it is made where it is not there.
        outage_s: Seconds for which each read or write waits while the database is away. Of several journals
            of a process that keep the same schema, this and ``password`` count of the one that opened it
            first.
        codec: Encodes results, questions, answers and digests of arguments before they are stored, such as a
            :class:`FernetCodec`; ``None`` stores them as they are. Each journal reads what its own codec can.
        retention_s: Seconds for which the outcome of a keyed call is kept after it was delivered, and
            a task after its time-to-live.
        keep_delivered_s: Seconds for which the outcome of a call without a key is kept at least, once it was
            delivered to a host's own session; 0 forgets it at once.

    Raises:
        ValueError: ``schema`` is not a plain name of lower-case letters, digits and underscores, ``outage_s``
            is not between 0 and a day, or libpq cannot read ``dsn``.
        ImportError: psycopg is not installed.
    """

    def __init__(
        self,
        dsn: str = "",
        *,
        password: Callable[[], str] | None = None,
        schema: str = "mcp_tasks_client",
        outage_s: float = 30.0,
        codec: Codec | None = None,
        retention_s: float = Journal.retention_s,
        keep_delivered_s: float = Journal.keep_delivered_s,
    ) -> None:
        check_schema(schema)
        if password is not None and (not callable(password) or iscoroutinefunction(password)):
            raise TypeError(
                "password must be a function that returns the password, and no coroutine function"
            )
        if not 0 <= outage_s <= _LONGEST_OUTAGE_S:
            raise ValueError(f"outage_s must be between 0 and {_LONGEST_OUTAGE_S}, not {outage_s}")
        self.retention_s = retention_s
        self.keep_delivered_s = keep_delivered_s
        # Imported on use, and psycopg with it: who keeps a journal elsewhere needs neither.
        from .database import connect, describe, parse
        from .writer import PostgresThread

        self._identity = ("postgresql", parse(dsn), schema)
        self._clock = DatabaseClock.of(self._identity)
        name, reach = describe(dsn, schema), partial(connect, dsn, password)
        make = partial(PostgresThread, self._identity, reach, name, schema, outage_s, _renew, _end_leases)
        super().__init__(name, partial(PostgresThread.joined, self._identity, make), codec)

    @property
    def identity(self) -> Hashable:
        """Equal for journals in the same schema of the same database."""
        return self._identity

    @property
    def clock(self) -> Callable[[], float | None]:
        """Tells the database's time."""
        return self._clock.time

    def __repr__(self) -> str:
        return f"PostgresJournal({self._name})"

    # ── records ───────────────────────────────────────────────────────────────────────────────

    async def claim(self, record: TaskRecord) -> TaskRecord:
        """Store a new record, unless its key is taken; returns the one that stands."""
        row = Row.of(record, self._codec)
        stored = to_columns(row)
        work = Work(
            statements=("claim", "standing"),
            row=row_json(stored),
            key=row.record_id,
            touches=_touched(stored),
            read=lambda found: Row._make(found[1][0]) if found[1] else None,
        )
        while (standing := await self._do(work)) is None:
            pass  # the record that had the key was forgotten between two statements
        return record if standing == row else standing.record(self._codec)

    async def save(self, record: TaskRecord, *, known: bool = False, heeded: str | None = None) -> None:
        """Store a record as it now is, new or not, and commit it."""
        row = Row.of(record, self._codec)
        stored = to_columns(row)
        values = {name: stored[name] for name in _CHANGING} if known else stored
        again: tuple[str, ...] = ("save_known",)
        if heeded is not None:
            values, again = {**values, "heeded": escape(heeded)}, ("save_known", "heed")

        def read(found: Found) -> None:
            if not found[0]:
                raise driven_elsewhere(record.tool)

        await self._do(
            Work(
                statements=("save_known" if known else "save", *again[1:]),
                again=again,
                row=row_json(values),
                key=row.record_id,
                touches=_touched(stored),
                read=read,
            )
        )

    def deliver(self, at: float, fences: Mapping[str, int], *, keep_until: float | None = None) -> None:
        """Note that hosts have had these outcomes: with the next write, within a second, or on closing."""
        checked_time(at)
        writer = self._opened()
        for record_id, fence in fences.items():
            key = escape(record_id)
            values = {"record_id": key, "fence": fence, "at": at, "keep_until": keep_until}
            statements = ("deliver",) if keep_until is not None else ("forget_delivered", "deliver")
            writer.put_unattended(Work(statements=statements, row=row_json(values), key=key, touches=(key,)))

    async def remove(self, record: TaskRecord) -> None:
        """Forget a record, if there is one and it was not taken since."""
        stored = to_columns(Row.of(record))
        values = {name: stored[name] for name in ("record_id", "fence")}
        await self._do(Work(statements=("remove",), row=row_json(values), touches=_touched(stored)))

    async def by_id(self, record_id: str) -> TaskRecord | None:
        """The record of this ``record_id``."""
        return await self._find("by_id", record_id=escape(record_id))

    async def by_key(self, scope: Scope, idempotency_key: str) -> TaskRecord | None:
        """The record of an idempotency key."""
        return await self._find("by_key", key=key_digest(scope, idempotency_key))

    async def by_task_id(self, scope: Scope, task_id: str) -> TaskRecord | None:
        """The newest record of a task."""
        return await self._find("by_task_id", task_id=escape(task_id), scope=scope_digest(scope))

    async def records(
        self,
        scope: Scope | None,
        *,
        pending: bool = False,
        asking: bool = False,
        delivered_since: float | None = None,
    ) -> list[TaskRecord]:
        """The records of a scope, oldest first; if only some are wanted, by an index of those alone."""
        values: dict[str, Any] = {} if scope is None else {"scope": scope_digest(scope)}
        statement = "asking" if asking else "pending" if pending else "all"
        if delivered_since is not None:
            assert not pending, "what is pending was not delivered"
            statement, values["delivered_since"] = "delivered_since", delivered_since
        rows = await self._rows(statement, in_scope=scope is not None, **values)
        return [record for _, record in await read_rows(rows, self._name, self._codec)]

    async def prune(self, before: float, now: float, gone: Collection[str] = ()) -> int:
        """Forget what is old, at most 10,000 records, and old leases."""
        values = {
            "before": before,
            "now": now,
            "leases_before": before - LEASES_KEPT_S,
            "gone": list(map(escape, gone)),
        }
        work = Work(
            statements=("prune_leases", "prune_writers", "prune_delivered", "prune_expired"),
            values=values,
            read=lambda found: found[2][0][0] + found[3][0][0],
        )
        forgotten: int = await self._do(work)
        return forgotten

    # ── who drives what ───────────────────────────────────────────────────────────────────────

    async def renew(self, lease: Lease) -> bool:
        """Store a lease; false if it had run out, or was not there."""
        was_kept: bool = await self._do(_renew(lease))
        return was_kept

    async def owners(self, *names: str) -> dict[str, Lease | None]:
        """Owners, and their leases."""
        owners: dict[str, Lease | None] = await self._do(
            Work(
                statements=("owners_named" if names else "owners",),
                values={"names": list(map(escape, names))},
                writes=False,
                read=lambda found: {unescape(owner): _lease(lease) for owner, *lease in found[0]},
            )
        )
        return owners

    async def take(self, record_id: str, owner: str, gone: Collection[str] = ()) -> Taken | None:
        """Become the owner of a record that is free."""
        key, mine, free = escape(record_id), escape(owner), list(map(escape, gone))
        taking = Work(
            statements=("take",),
            values={"record_id": key, "owner": mine, "gone": free},
            read=lambda found: found[0][0] if found[0] else None,
        )
        while True:
            # Who only follows the call of another looks often, and must not hold up those who write.
            row = await self._find_row("by_id", record_id=key)
            if row is None:
                return None
            if row.delivered_at is not None or not (row.owner in (None, mine) or row.owner in free):
                return Taken(row.record(self._codec), unescape(row.owner))
            row.record(self._codec)  # what cannot be read is not taken
            taken = await self._do(taking)
            if taken is not None:  # else another one was faster
                before, *columns = taken
                return Taken(Row._make(columns).record(self._codec), unescape(before))

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
        """Become the owner of whatever is pending, free and can be read."""
        mine = escape(owner)
        where: dict[str, Any] = {
            "scope": scope_digest(scope),
            "owner": mine,
            "application": escape(application),
            "gone": list(map(escape, gone)),
        }
        before: dict[str, str | None] = {}
        seen = list(map(escape, leave))
        while limit is None or len(before) < limit:
            room = None if limit is None else limit - len(before)
            page = await self._rows("free", **where, leave=seen, limit=room)
            readable = [row.record_id for row, _ in await read_rows(page, self._name, self._codec)]
            if readable:
                taking = Work(
                    statements=("take_free",),
                    values={**where, "record_ids": readable},
                    again=("taken",),
                    read=lambda found: dict(found[0]),
                )
                before |= await self._do(taking)
            if room is None or len(page) < room:
                break
            seen += (row.record_id for row in page)  # not to be read, or another one was faster
        rows = await self._rows("mine", **where)
        read = await read_rows(rows, self._name, self._codec)
        return [Taken(record, unescape(before.get(row.record_id, mine))) for row, record in read]

    async def release(self, *names: str) -> None:
        """Release what these owners have, and forget these leases."""
        writer = self._opened()
        for name in names:
            writer.stop_renewing(name)
        escaped = list(map(escape, names))
        values = {"owners": escaped, "lease_ids": escaped}
        await self._do(Work(statements=("release", "end_leases"), values=values))

    # ── instructions ──────────────────────────────────────────────────────────────────────────

    async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
        """Leave an instruction, unless there is one of that name; returns the one that stands."""
        key, writer = escape(record_id), self._opened()
        values = {
            "record_id": key,
            "name": escape(instruction.name),
            "body": encoded(escape(instruction.body), self._codec),
            "at": checked_time(instruction.at),
        }

        def read(found: Found) -> Sequence[Any] | None:
            if found[0]:
                writer.tell((key,))
            return found[1][0] if found[1] else None

        standing: Sequence[Any] | None = await self._do(
            Work(
                statements=("instruct", "instruction"),
                row=row_json(values),
                key=key,
                touches=(key,),
                read=read,
            )
        )
        return None if standing is None else read_instruction(standing, key, self._codec)

    async def instructions(self, record_id: str) -> list[Instruction]:
        """The instructions of a record that are to be heeded, oldest first."""
        key = escape(record_id)
        found = await self._do(
            Work(
                statements=("instructions",),
                values={"record_id": key},
                writes=False,
                read=lambda found: found[0],
            )
        )
        return read_instructions(found, key, self._name, self._codec)

    async def follow(self, record_id: str) -> None:
        """Have listeners told when a call ends."""
        key = escape(record_id)
        row = row_json({"record_id": key})
        await self._do(Work(statements=("follow",), row=row, key=key, touches=(key,)))

    async def _find(self, statement: str, **values: Any) -> TaskRecord | None:
        row = await self._find_row(statement, **values)
        return None if row is None else row.record(self._codec)

    async def _rows(self, statement: str, *, in_scope: bool = True, **values: Any) -> list[Row]:
        rows: list[Row] = await self._do(
            Work(
                statements=(statement,),
                values=values,
                in_scope=in_scope,
                writes=False,
                read=lambda found: [Row._make(row) for row in found[0]],
            )
        )
        return rows

    async def _find_row(self, statement: str, **values: Any) -> Row | None:
        rows = await self._rows(statement, **values)
        return rows[0] if rows else None

    async def _do(self, work: Work) -> Any:
        writer = self._opened()
        return await writer.put(work).wait(writer.explain)


def _touched(stored: Mapping[str, Any]) -> tuple[str, ...]:
    return (stored["record_id"],) if stored["key"] is None else (stored["record_id"], stored["key"])


def _lease(found: Sequence[Any]) -> Lease | None:
    if found[0] is None:
        return None
    lease = Lease(*found)
    texts = {name: unescape(getattr(lease, name)) for name in ("lease_id", "host", "boot", "pids")}
    return replace(lease, **texts)


def _renew(lease: Lease) -> Work:
    values = {
        name: escape(value) if isinstance(value, str) else value for name, value in asdict(lease).items()
    }
    return Work(
        statements=("lease", "renew"),
        row=row_json(values),
        key=values["lease_id"],
        touches=(f"lease {values['lease_id']}",),
        read=lambda found: bool(found[0]) and found[0][0][0] >= lease.renewed_at,
    )


def _end_leases(lease_ids: list[str]) -> Work:
    return Work(statements=("end_leases",), values={"lease_ids": list(map(escape, lease_ids))})
