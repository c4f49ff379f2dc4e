"""The journal in a PostgreSQL database: its options, and its parts put together."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from inspect import iscoroutinefunction
from typing import Final

from anyio import to_thread

from ..base import Journal
from ..codec import Codec
from ..examination import Examination
from ..medium import Medium, Timing
from ..row import escape
from ..sql import SqlJournal
from ..work import Work
from .clock import DatabaseClock
from .dialect import check_schema

__all__ = ["PostgresJournal"]

_LONGEST_OUTAGE_S: Final = 86_400.0


class PostgresJournal(SqlJournal):
    """A journal in a PostgreSQL database (13 or later), which the processes of many hosts may share.

    It needs the extra ``mcp-tasks-client[postgres]``. A coroutine that writes returns once the write is
    committed. Several event loops of one process may use one journal. All journals of a process that keep the
    same schema share one thread with a connection to write and read, and another one with a connection to
    listen and to renew leases. A process must not be forked while the journal is open.

    Leases and due times of all hosts go by the database's clock.

    Args:
        dsn: Where the database is, as libpq takes it: ``postgresql://user@host/database`` or
            ``host=… dbname=…``. Empty leaves it to the environment variables of libpq. Of several hosts it is
            the one that takes writes, also after a failover.
        password: Called for the password whenever a connection is made, in a thread, where it may block for
            some seconds: for one that changes, such as an IAM token. While it raises, the database counts as
            away. ``None`` leaves it to ``dsn``.
        schema: The schema that holds the journal's tables; it is made where it is not there. It may be a
            reserved word of SQL.
        outage_s: Seconds for which each read or write waits while the database is away, while another
            session has its row, or while the disk is full. A statement may take half of that, and a second
            at least. Closing a client takes ``3 * (outage_s + 5)`` seconds at most. Of several journals of a
            process that keep the same schema, this and ``password`` count of the one that opened it first.
        codec: Encodes results, questions, answers and digests of arguments before they are stored, such as a
            :class:`FernetCodec`; ``None`` stores them as they are. Each journal reads by its own codec alone.
        retention_s: Seconds for which the outcome of a keyed call is kept after it was delivered, and
            a task after its time-to-live.
        keep_delivered_s: Seconds for which the outcome of a call without a key is kept at least, once it was
            delivered to a host's own session; 0 forgets it at once.

    Raises:
        ValueError: ``schema`` is not a plain name of lower-case letters, digits and underscores, ``outage_s``
            is not between 0 and a day, or libpq cannot read ``dsn``.
        ImportError: psycopg is not installed.
    """

    _timing = Timing()

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
        # Imported on use, and psycopg with it: a journal elsewhere needs neither.
        from .database import SHORTEST_ANSWER_S, connect, describe, parse
        from .examining import examine_schema
        from .thread import PostgresThread

        self._identity = ("postgresql", parse(dsn), schema)
        self._clock = DatabaseClock.of(self._identity)
        name = describe(dsn, schema)
        # A work that waits is tried again over another connection before its time is over.
        reach = partial(connect, dsn, password, limit_s=max(SHORTEST_ANSWER_S, outage_s / 2))
        super().__init__(name, codec, retention_s=retention_s, keep_delivered_s=keep_delivered_s)
        self._examine = partial(examine_schema, reach, name, schema)
        self._make = partial(PostgresThread, self._identity, reach, name, schema, outage_s, self._timing)
        self._join = PostgresThread.joined

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

    async def open_existing(self) -> None:
        """Open the journal that is there; without the right to write it, for reading alone. Nothing is made.

        Raises:
            JournalError: There is no journal in the schema. Besides, as from :meth:`open`.
        """
        await self._open(existing=True)

    async def examine(self) -> Examination:
        """Examine the journal, over a connection of its own. Nothing is made or changed.

        The journal need not be open.
        """
        return await to_thread.run_sync(self._examine)

    def _enter(self, *, existing: bool) -> Medium:
        return self._join(self, self._identity, partial(self._make, existing=existing))

    async def follow(self, record_id: str) -> None:
        """Have listeners told when a call ends."""
        key = escape(record_id)
        work = Work(statements=("follow",), row={"record_id": key}, key=key, touches=(key,))
        await self._opened().run(work)
