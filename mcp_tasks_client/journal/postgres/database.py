"""The database that a journal is kept in: connected to, recognised, given its tables, and its errors told.

A schema is a journal's if it has the table ``meta``, which also says which version of ``schema.sql`` made it.
Another program's schema and another version's stay as they are.
"""

from __future__ import annotations

import logging
import re
import selectors
from collections.abc import Callable
from contextlib import closing
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...errors import JournalError, JournalLockedError, JournalSchemaError

if TYPE_CHECKING:
    from psycopg.abc import PQGen

__all__ = [
    *("ENDS", "Connection", "NotEnrolled", "connect", "describe"),
    *("explain", "is_away", "is_lost", "make_tables", "parse", "send_all"),
]

VERSION: Final = 1
"""Of ``schema.sql``. No version of it was published yet: until then, a change edits version 1."""

NotEnrolled: TypeAlias = errors.DivisionByZero
"""The error of the statement ``begin``, which divides by zero on purpose: the writer is not in the table
``writers``, or this transaction of it was given up."""

ENDS: Final = (
    *(errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow),
    *(errors.IdleSessionTimeout, errors.IdleInTransactionSessionTimeout, errors.TransactionTimeout),
    # As after a failover, when the server that was the first is not any more.
    errors.ReadOnlySqlTransaction,
    NotEnrolled,
)
"""With these a server ends a connection, or there is nothing more to expect of it."""

_ANSWER_S: Final = 1.0
"""Seconds to wait for the reply over a second connection. A pool in transaction mode replies at once, since
the process that served the first connection is free again. One in session mode may have none left."""

T = TypeVar("T")

logger = logging.getLogger("mcp_tasks_client")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up on a reply after ``answer_s`` seconds."""

    answer_s: float | None = None
    """Seconds. The network may be alive where a server is suspended, or waits for its standby."""

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for an answer; see :meth:`psycopg.Connection.wait`.

        Raises:
            psycopg.OperationalError: It did not come in time. The connection is of no use any more.
        """
        return super().wait(gen, interval, self.answer_s if timeout is None else timeout)


_UNLESS_GIVEN: Final = {
    "application_name": "mcp-tasks-client",
    "client_encoding": "utf8",
    "connect_timeout": "5",
    # A server that is gone without a word is noticed after 15 seconds, and not after two hours.
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "15000",
    # Of several hosts the one that takes writes, also after a failover.
    "target_session_attrs": "read-write",
}

_SECRET: Final = ("password", "sslpassword", "oauth_client_secret")

_MAKING_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('mcp_tasks_client:' || %s, 0))"

_AWAY: Final = re.compile(
    r"the database system is (starting|shutting|in recovery|not (yet )?accepting)"
    r"|too many|remaining connection|terminating connection"
)
"""The words of a server that will take connections again."""

_REFUSED: Final = re.compile(r"authentication failed|no password supplied|role .* does not exist|pg_hba")
"""The words of a server that refuses the user or the password."""


def connect(
    dsn: str, password: Callable[[], str] | None = None, *, limit_s: float | None = 60.0
) -> Connection:
    """A connection that commits each statement, or each pipeline.

    Args:
        dsn: Where to, as libpq takes it.
        password: Called for the password; ``None`` is what ``dsn`` and libpq have.
        limit_s: Seconds after which an answer is waited for no longer, and after which the server ends a
            transaction, where it can (since version 17), so that a process that was suspended in the middle
            of one holds up nobody for longer. ``None`` is as long as it takes.

    Raises:
        JournalError: The address leads to a pool that gives each transaction another connection.
        psycopg.Error: See :func:`explain`.
    """
    given = conninfo_to_dict(dsn)
    unless_given = {name: value for name, value in _UNLESS_GIVEN.items() if name not in given}
    secret: dict[str, str] = {}
    if password is not None:
        try:
            secret = {"password": password()}
        except BaseException as error:  # in a thread of ours, where nobody would hear of it
            raise psycopg.OperationalError(f"password() raised {type(error).__name__}") from error
        if not isinstance(secret["password"], str):
            raise JournalError(f"password() returned no text, but {type(secret['password']).__name__}")
    address = make_conninfo(dsn, **unless_given, **secret)
    connection = Connection.connect(address, autocommit=True)
    connection.answer_s = limit_s
    try:
        if _is_shared(connection, address):  # before a setting of ours reaches other programs
            raise JournalError(
                "the address of the journal leads to a pool that gives each transaction another connection, "
                "such as PgBouncer in transaction mode; give the address of the database itself, or of a "
                "pool in session mode (a process needs two connections)"
            )
        with connection.pipeline():
            for name, value in (
                ("default_transaction_isolation", "read committed"),
                ("lock_timeout", "5s"),
                ("transaction_timeout", f"{limit_s or 0}s"),
            ):
                if name != "transaction_timeout" or connection.info.server_version >= 170_000:
                    connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            # Nothing may be acted on that the server could lose.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
    except BaseException:
        connection.close()
        raise
    return connection


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

    psycopg sends what the socket takes, and then waits for replies to all of it: for ever, where a burst is
    more than that.

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
                raise psycopg.OperationalError("the server takes nothing any more")
            if any(events & selectors.EVENT_READ for _, events in ready):
                connection.pgconn.consume_input()  # else the server waits for us to read


def make_tables(connection: Connection, schema: str) -> None:
    """Make the tables of a journal in a schema that has none, and the schema if it is not there.

    Raises:
        JournalSchemaError: The schema is another program's or another version's. It is left as it is.
        psycopg.Error: See :func:`explain`.
    """
    if _version(connection, schema) != 0:
        return
    with connection.transaction():
        connection.execute(_MAKING_LOCK, (schema,))
        if _version(connection, schema) != 0:  # another process has made them meanwhile
            return
        if not _is_there(connection, schema):
            connection.execute(f"CREATE SCHEMA {schema}".encode())
        script = (resources.files(__package__) / "schema.sql").read_text(encoding="utf-8")
        connection.execute(script.replace("{schema}", schema).encode())
        connection.execute(f"INSERT INTO {schema}.meta VALUES ('version', '{VERSION}')".encode())


def _is_there(connection: Connection, schema: str) -> bool:
    # CREATE SCHEMA IF NOT EXISTS asks for the right to create one before it looks.
    found = connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
    return found is not None


def _version(connection: Connection, schema: str) -> int:
    """The version of a schema; 0 where there is none yet."""
    found = connection.execute(
        """SELECT to_regclass(%s) IS NOT NULL, EXISTS (SELECT FROM pg_class
            JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = %s)""",
        (f"{schema}.meta", schema),
    ).fetchone()
    assert found is not None
    is_ours, has_tables = found
    if not is_ours:
        if has_tables:
            raise JournalSchemaError(
                f"the schema {schema} of the database holds another program's tables and was left as it is; "
                "give another name by schema="
            )
        return 0
    row = connection.execute(f"SELECT value FROM {schema}.meta WHERE name = 'version'".encode()).fetchone()
    version = 0 if row is None else int(row[0])
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
        ValueError: libpq cannot read it.
    """
    try:
        return frozenset(
            (name, value) for name, value in conninfo_to_dict(dsn).items() if name not in _SECRET
        )
    except psycopg.ProgrammingError as error:
        raise ValueError(f"dsn cannot be read ({_words(error)})") from None  # it may hold a password


def is_lost(connection: Connection, error: Exception) -> bool:
    """Whether an error means that this connection is of no use any more."""
    if connection.closed or connection.broken or isinstance(error, ENDS):
        return True
    # An error of psycopg itself, such as of a reply that is cut short, has no code of the server's.
    return isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith("08")


def is_away(error: Exception) -> bool:
    """Whether a connection that could not be made may be made later."""
    words = str(error)
    if not isinstance(error, psycopg.OperationalError) or "no password supplied" in words:
        return False
    return "FATAL" not in words or bool(_AWAY.search(words))


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
                f"the journal {name} is held by another process ({_words(error)}); try again"
            )
        case errors.InsufficientPrivilege():
            words = _words(error)
            remedy = "let the user create the schema, or have somebody create it and grant all rights in it"
            if "row-level security" in words:
                remedy = "give the principal= that the policy of the table shows to this connection"
            elif "for table" in words:
                remedy = "have the owner of the tables grant SELECT, INSERT, UPDATE and DELETE on all of them"
            return JournalError(f"the journal {name} may not be written by this user ({words}); {remedy}")
        case psycopg.OperationalError() if _REFUSED.search(str(error)):
            return JournalError(
                f"the database refuses the user of the journal {name} ({_words(error)}); "
                "see to the user and the password of the address, or to password="
            )
        case psycopg.OperationalError():
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
