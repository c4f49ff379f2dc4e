"""The database of a journal: connecting, recognising a schema, making tables, explaining errors.

A schema is a journal's if it has the table ``meta``, which also says which version of ``schema.sql`` made it.
Another program's schema and another version's stay as they are.
"""

from __future__ import annotations

import json
import re
import selectors
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg import errors, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...errors import JournalError, JournalLockedError, JournalSchemaError
from .refusal import CONNECT_S, told_by_code

if TYPE_CHECKING:
    from psycopg.abc import PQGen

__all__ = [
    *("SHORTEST_ANSWER_S", "Backend", "Connection", "NotEnrolled", "check_tables", "connect", "describe"),
    *(
        "end_backend",
        "explain",
        "find_missing_right",
        "is_lost",
        "make_tables",
        "may_pass",
        "parse",
        "send_all",
        "version_of",
    ),
]

VERSION: Final = 1
"""The version of ``schema.sql``. None was published yet: until then, a change edits version 1."""

NotEnrolled: TypeAlias = errors.DivisionByZero
"""The error of the statement ``begin``, which divides by zero on purpose: the writer is not in the table
``writers``, or this transaction of it was given up."""

_ENDS: Final = ("08", "57P", "25006", "25P")
"""The codes with which a server ends a connection, or refuses all writes, as after a failover."""

_MAY_PASS: Final = (*_ENDS, "40", "53", "55P03", "57014", "58")
"""The codes of faults that may pass: a server that is away, a lock, a time limit, a full disk. An error
without a code is one of the connection."""

_ANSWER_S: Final = 1.0
"""Seconds to wait for the reply over a second connection. A pool in transaction mode replies at once, since
the process that served the first connection is free again. One in session mode may have none left."""

T = TypeVar("T")


class Backend(NamedTuple):
    """The process of the server that serves a connection."""

    pid: int
    started: str
    """When it was started, since a PID is used again."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up on a reply after ``answer_s`` seconds."""

    answer_s: float | None = None
    """Seconds. The network may be alive where a server is suspended, or waits for its standby."""

    backend: Backend | None = None
    """``None`` behind a pool, which itself sees to a process whose client is gone."""

    @contextmanager
    def answering_within(self, limit_s: float) -> Iterator[None]:
        """Give up on a reply sooner, within the block."""
        usual_s = self.answer_s
        self.answer_s = limit_s if usual_s is None else min(limit_s, usual_s)
        try:
            yield
        finally:
            self.answer_s = usual_s

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for an answer; see :meth:`psycopg.Connection.wait`.

        Raises:
            psycopg.OperationalError: It did not come in time. The connection is useless then.
        """
        return super().wait(gen, interval, self.answer_s if timeout is None else timeout)


_UNLESS_GIVEN: Final = {
    "application_name": "mcp-tasks-client",
    "client_encoding": "utf8",
    # A server that is gone without a word is noticed after 15 seconds, and not after two hours.
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "15000",
    # Of several hosts the one that takes writes, also after a failover.
    "target_session_attrs": "read-write",
}

_PORTS: Final = re.compile(r"[\d,]*")
"""One for each host, in an address."""

_SECRET: Final = ("password", "sslpassword", "oauth_client_secret")

_MAKING_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('mcp_tasks_client:' || %s, 0))"

_SETTINGS: Final = {
    "default_transaction_isolation": "read committed",
    # Floats travel as text.
    "extra_float_digits": "1",
    # A row that another process has is waited for by trying again, so that nobody else waits behind.
    "lock_timeout": "100ms",
    "idle_session_timeout": "0",
    # A client that is gone without a word is noticed, and its rows are free.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "15000",
}
"""The settings of each session, as far as the server knows them."""

_LIMITS: Final = {
    # Sooner than we give up: the connection is kept.
    "statement_timeout": 0.8,
    "idle_in_transaction_session_timeout": 1.0,
    "transaction_timeout": 1.0,
}
"""Settings of each session that limit one transaction, each by a part of the time for an answer."""

_SHORTEST_CONNECT_S: Final = 2.0
"""The least that libpq knows."""

SHORTEST_ANSWER_S: Final = 1.0
"""The least seconds to wait for a reply."""


def connect(
    dsn: str, password: Callable[[], str] | None = None, *, limit_s: float | None = 15.0
) -> Connection:
    """A connection that commits each statement, or each pipeline.

    Args:
        dsn: The address, as libpq takes it.
        password: Called for the password; ``None`` leaves it to ``dsn`` and libpq.
        limit_s: Seconds to wait for an answer. The server ends a statement or a transaction by then, so that
            a process that was suspended in the middle of one holds up no other for longer. ``None``: replies
            have no limit; a lock is waited for five seconds.

    Raises:
        JournalError: The address leads to a pool that gives each transaction another connection.
        psycopg.Error: See :func:`may_pass` and :func:`explain`.
    """
    given = conninfo_to_dict(dsn)
    connect_s = min(CONNECT_S, max(_SHORTEST_CONNECT_S, limit_s or CONNECT_S))
    defaults = {**_UNLESS_GIVEN, "connect_timeout": str(round(connect_s))}
    unless_given = {name: value for name, value in defaults.items() if name not in given}
    secret: dict[str, str] = {}
    if password is not None:
        try:
            secret = {"password": password()}
        except BaseException as error:  # in a thread of ours, where nobody would hear of it
            raise psycopg.OperationalError(f"password() raised {type(error).__name__}") from error
        if not isinstance(secret["password"], str):
            raise JournalError(f"password() returned no text, but {type(secret['password']).__name__}")
    address = make_conninfo(dsn, **unless_given, **secret)
    try:
        connection = Connection.connect(address, autocommit=True)
    except psycopg.OperationalError as error:
        raise told_by_code(error, address) from None
    connection.answer_s = limit_s
    try:
        if _is_shared(connection, address):  # before a setting of ours reaches other programs
            raise JournalError(
                "the address of the journal leads to a pool that gives each transaction another connection, "
                "such as PgBouncer in transaction mode; give the address of the database itself, or of a "
                "pool in session mode (a process needs two connections)"
            )
        _set_up(connection, limit_s)
        if connection.info.backend_pid == _backend(connection):
            connection.backend = _own_backend(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: Connection, limit_s: float | None) -> None:
    """Make the settings of a session, so that no default of a role, database or server counts."""
    limits = {name: f"{round(1000 * part * (limit_s or 0))}ms" for name, part in _LIMITS.items()}
    settings = {**_SETTINGS, **limits}
    if limit_s is None:
        settings["lock_timeout"] = "5s"
    # The server must not lose a commit that was acted on.
    connection.execute(
        """SELECT set_config(name, given.value, false)
        FROM json_each_text(%s::json) AS given (name, value) JOIN pg_settings USING (name)
        UNION ALL SELECT set_config('synchronous_commit', 'on', false)
        WHERE current_setting('synchronous_commit') = 'off'""",
        (json.dumps(settings),),
    )
    with suppress(psycopg.errors.InvalidParameterValue):  # not on every system
        connection.execute(
            "SELECT set_config(name, '5s', false) FROM pg_settings "
            "WHERE name = 'client_connection_check_interval'"
        )


_BACKEND: Final = (
    "SELECT pid, to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') FROM pg_stat_activity "
)


def _own_backend(connection: Connection) -> Backend | None:
    found = connection.execute(f"{_BACKEND} WHERE pid = pg_backend_pid()".encode()).fetchone()
    return None if found is None or found[1] is None else Backend(*found)


def end_backend(connection: Connection, backend: Backend | None) -> None:
    """End the server's process behind a lost connection, and with it the locks that it holds.

    The server may notice late that the client is gone. A user without the right to do this waits for that.
    """
    if backend is None:
        return
    with suppress(psycopg.errors.InsufficientPrivilege):
        connection.execute(
            f"SELECT pg_terminate_backend(pid) FROM ({_BACKEND}) AS live (pid, started) "
            "WHERE pid = %s AND started = %s".encode(),
            backend,
        )


def _is_shared(connection: Connection, address: str) -> bool:
    """Whether this connection to a pool and another one are answered by the same process of the server."""
    backend = _backend(connection)
    if backend == connection.info.backend_pid:
        return False  # there is no pool
    with closing(psycopg.connect(address, autocommit=True)) as other, selectors.DefaultSelector() as selector:
        other.pgconn.send_query(b"SELECT pg_backend_pid()")
        selector.register(other, selectors.EVENT_READ)
        if not selector.select(_ANSWER_S):
            return False  # a pool in session mode, which has no connection left
        found = other.pgconn.get_result()
        other_backend = found and found.get_value(0, 0)
    return str(backend).encode() == other_backend or backend != _backend(connection)


def _backend(connection: Connection) -> int:
    (found,) = connection.execute("SELECT pg_backend_pid()").fetchall()
    return int(found[0])


def send_all(connection: Connection) -> None:
    """Send the rest of a pipeline, before its replies are waited for.

    psycopg sends as much as the socket takes, and then waits for all replies: for ever, if a burst is larger
    than that.

    Raises:
        psycopg.Error: The connection is lost.
    """
    if not connection.pgconn.flush():
        return  # as nearly always
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while connection.pgconn.flush():
            ready = selector.select(connection.answer_s)
            if not ready:
                raise psycopg.OperationalError("the server has stopped reading")
            if any(events & selectors.EVENT_READ for _, events in ready):
                connection.pgconn.consume_input()  # else the server waits for us to read


def make_tables(connection: Connection, schema: str) -> None:
    """Make the tables of a journal that a schema lacks, and the schema if it is not there.

    Raises:
        JournalSchemaError: The schema is another program's or another version's. It is left as it is.
        psycopg.Error: See :func:`explain`.
    """
    if version_of(connection, schema) != 0 and _has_all(connection, schema):
        return
    script = (resources.files(__package__) / "schema.sql").read_text(encoding="utf-8")
    script = script.replace("{schema}.", f'"{schema}".').replace("{schema}", schema)
    with connection.transaction():
        connection.execute(_MAKING_LOCK, (schema,))
        if version_of(connection, schema) != 0:  # another process or an earlier version has made them
            for statement in () if _has_all(connection, schema) else _ADDED.findall(script):
                connection.execute(statement.encode())
            return
        if not _is_there(connection, schema):
            connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
        connection.execute(script.encode())
        connection.execute(f"INSERT INTO \"{schema}\".meta VALUES ('version', '{VERSION}')".encode())


def check_tables(connection: Connection, schema: str, name: str) -> None:
    """Check that a schema has the tables of a journal.

    Raises:
        JournalError: It has none.
        JournalSchemaError: As from :func:`make_tables`.
        psycopg.Error: See :func:`explain`.
    """
    if version_of(connection, schema) == 0:
        raise JournalError(
            f"there is no journal {name}, and an inbox makes none; check the address and schema=, or first "
            "make a call over this journal, which makes it"
        )


def find_missing_right(connection: Connection, schema: str, name: str) -> JournalError | None:
    """The error for rights that every writer needs and the user lacks; ``None`` if there are none.

    Raises:
        psycopg.Error: See :func:`explain`.
    """
    lacked, user, read_only = connection.execute(
        """SELECT string_agg(kind, ', '), current_user, current_setting('transaction_read_only')
        FROM unnest(ARRAY['INSERT', 'UPDATE', 'DELETE']) AS kind
        WHERE NOT has_table_privilege(%s, kind)""",
        (f'"{schema}".writers',),
    ).fetchall()[0]
    if lacked is not None:
        return JournalError(
            f"the journal {name} may only be read here: the user {user} has no right to {lacked} in the "
            f"schema {schema}; grant SELECT, INSERT, UPDATE and DELETE on its tables, or answer, cancel and "
            "acknowledge as a user who has them"
        )
    if read_only == "on":
        return JournalError(
            f"the journal {name} may only be read here: the sessions of the user {user} are read-only; take "
            "default_transaction_read_only away, or answer, cancel and acknowledge as another user"
        )
    return None


def _is_there(connection: Connection, schema: str) -> bool:
    # CREATE SCHEMA IF NOT EXISTS asks for the right to create one before it looks.
    found = connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
    return found is not None


_ADDED: Final = re.compile(r"^CREATE TABLE IF NOT EXISTS [^;]+;", re.MULTILINE)
"""The tables that a journal of an earlier version may lack."""


def _has_all(connection: Connection, schema: str) -> bool:
    """Whether a journal has the tables that were added."""
    # IF NOT EXISTS asks for the right to create a table before it looks.
    found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{schema}".durations',)).fetchone()
    return found == (True,)


def version_of(connection: Connection, schema: str) -> int:
    """The version of a schema; 0 where there is none yet."""
    found = connection.execute(
        """SELECT bool_or(relname = 'meta'), bool_or(relname = 'writers')
        FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = %s""",
        (schema,),
    ).fetchone()
    if found in (None, (None, None)):
        return 0
    row: tuple[Any, ...] | None = None
    if found == (True, True):
        meta = f"SELECT value FROM \"{schema}\".meta WHERE name = 'version'"
        with suppress(errors.UndefinedColumn):
            row = connection.execute(meta.encode()).fetchone()
    if row is None or not str(row[0]).isdecimal():
        raise JournalSchemaError(
            f"the schema {schema} of the database holds another program's tables and was left as it is; "
            "give another name by schema="
        )
    version = int(row[0])
    if version > VERSION:
        raise JournalSchemaError(
            f"the journal in the schema {schema} was written by a newer version (schema {version}, not "
            f"{VERSION}) and was left as it is; upgrade mcp-tasks-client or use another schema"
        )
    return version


def describe(dsn: str, schema: str) -> str:
    """The name of a journal in messages: nothing secret."""
    given = conninfo_to_dict(dsn)
    where = [f"{name} {given[name]}" for name in ("dbname", "host", "port", "service") if given.get(name)]
    return " ".join([schema, *(["in"] if where else []), *where])


def parse(dsn: str) -> frozenset[tuple[str, object]]:
    """The parts of an address that tell one database from others: nothing secret.

    Raises:
        ValueError: It makes no sense. The words do not quote it, since any part may be that of a password.
    """
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        given = None
    # After a slash that is not encoded, libpq takes the password for the port.
    if given is None or not _PORTS.fullmatch(str(given.get("port", ""))):
        raise ValueError(
            "dsn cannot be read: give host=… dbname=…, or postgresql://user@host/database, where special "
            "characters in the name and the password of the user are percent-encoded (%2F is a slash)"
        )
    return frozenset((name, value) for name, value in given.items() if name not in _SECRET)


def is_lost(connection: Connection, error: Exception) -> bool:
    """Whether an error means that this connection is useless."""
    if connection.closed or connection.broken or isinstance(error, NotEnrolled):
        return True
    if (connection.pgconn.transaction_status, connection.pgconn.pipeline_status) != _READY:
        return True  # such as after an error at COMMIT, where psycopg expects none
    # An error of psycopg itself, such as of a reply that is cut short, has no code of the server's.
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return str(sqlstate).startswith(_ENDS)


_READY: Final = (pq.TransactionStatus.IDLE, pq.PipelineStatus.OFF)


def may_pass(error: Exception) -> bool:
    """Whether a connection or a transaction that failed by this error may succeed later."""
    if isinstance(error, NotEnrolled):
        return True
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return str(sqlstate).startswith(_MAY_PASS)


def explain(error: Exception, name: str) -> JournalError:
    """The error to raise for one of the database's, with what to do next. Always a new one."""
    match error:
        case JournalError():
            return type(error)(str(error))
        case errors.UniqueViolation():
            return JournalError(
                f"the journal {name} refuses the record ({_words(error)}): another one holds its idempotency "
                "key; call with that key to have its result"
            )
        case errors.LockNotAvailable() | errors.DeadlockDetected():
            return JournalLockedError(
                f"the journal {name} is held by another session of the database ({_words(error)}); "
                "end what holds it (pg_locks, pg_stat_activity), then try again"
            )
    match (getattr(error, "sqlstate", None) or "")[:2]:
        case "28":
            return JournalError(
                f"the database refuses the user of the journal {name} ({_words(error)}); "
                "see to the user and the password of the address, or to password="
            )
        case "3D" | "3F":
            return JournalError(
                f"there is no such database for the journal {name} ({_words(error)}); "
                "make it, or name another one in the address"
            )
        case "42" if isinstance(error, errors.InsufficientPrivilege):
            return JournalError(
                f"the journal {name} may not be written by this user ({_words(error)}); let the user create "
                "the schema, or have somebody create it and grant all rights in it; where others own the "
                "tables, have them grant SELECT, INSERT, UPDATE and DELETE; under row-level security, give "
                "the principal= that the policy shows to this connection"
            )
        case "53" if isinstance(error, errors.DiskFull):
            return JournalError(
                f"the disk of the database is full, so that the journal {name} is not written "
                f"({_words(error)}); make room there, then try again"
            )
        case "53" | "54" | "58":
            return JournalError(
                f"the database has not enough room or memory for the journal {name} ({_words(error)}); "
                "see to the server, then try again"
            )
        case "57" if isinstance(error, errors.QueryCanceled):
            return JournalError(
                f"the database has taken too long with the journal {name}, and gave up ({_words(error)}); "
                "see what keeps it busy (pg_stat_activity), or raise outage_s, whose half each statement has"
            )
    if may_pass(error):
        return JournalError(
            f"the journal {name} cannot be reached ({_words(error)}); "
            "see that the database runs and takes connections, then try again"
        )
    return JournalError(
        f"the journal {name} could not be read or written ({type(error).__name__}: {_words(error)}); "
        "see what the database's log says of it"
    )


def _words(error: Exception) -> str:
    """The first line of a database's words; the next ones may quote the values that were to be written."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    return str(primary or error).partition("\n")[0]
