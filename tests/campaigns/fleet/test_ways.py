"""The ways to the database do to connections what the campaign counts on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from .ways import Way, Ways

LIMIT_S: Final = 30.0
SHORT_S: Final = 0.3
WRITES: Final = '[{"fence":1}]'
RENEWS: Final = '[{"renewed_at":1}]'
IS_FREE: Final = "SELECT pg_try_advisory_lock(42), pg_advisory_unlock_all()"


@pytest.fixture
def way(postgres: str) -> Iterator[Way]:
    socket = Path(str(conninfo_to_dict(postgres)["host"]), ".s.PGSQL.5432")
    if not socket.exists():
        pytest.skip("the ways of the campaign lead to the socket of a database on this machine")
    with Ways(socket) as ways:
        way = ways.new()
        yield way
        way.close()


def connect(way: Way, limit_s: int = 30) -> psycopg.Connection[Any]:
    return psycopg.connect(way.dsn, autocommit=True, connect_timeout=limit_s)


def answers(connection: psycopg.Connection[Any], limit_s: float = LIMIT_S) -> bool:
    """Whether a reply comes in time. An error is one."""
    came = threading.Event()

    def ask() -> None:
        with suppress(psycopg.Error):
            connection.execute("SELECT 1")
        came.set()

    threading.Thread(target=ask, daemon=True).start()
    return came.wait(limit_s)


def test_an_open_way_passes_everything_on(way: Way) -> None:
    with connect(way) as connection:
        assert connection.execute("SELECT repeat('a', 100000)").fetchone() == ("a" * 100_000,)


def test_a_refused_way_cuts_connections_and_takes_none_until_it_is_mended(way: Way) -> None:
    connection = connect(way)
    way.refuse()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connect(way)
    way.mend()
    with connect(way) as connection:
        assert answers(connection)


def test_nobody_else_gets_the_port_of_a_refused_way(way: Way) -> None:
    way.refuse()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", int(conninfo_to_dict(way.dsn)["port"])))
    way.mend()


def test_on_a_swallowed_way_nothing_passes_until_it_is_mended(way: Way) -> None:
    connection = connect(way)
    way.swallow()
    assert not answers(connection, SHORT_S)
    with pytest.raises(psycopg.OperationalError, match="timeout"):
        connect(way, limit_s=2)
    way.mend()
    with connect(way) as connection:
        assert answers(connection)


def test_on_a_half_open_way_new_connections_work_and_old_ones_seem_to_stand(way: Way) -> None:
    old = connect(way)
    way.half_open()
    assert not answers(old, SHORT_S)
    with connect(way) as connection:
        assert answers(connection)
    way.mend()


def repeat(write: Callable[[], object], until: Callable[[], object]) -> None:
    """Write until it fails, while the way waits for a write."""
    waiting = threading.Thread(target=until)
    waiting.start()
    with suppress(psycopg.OperationalError):
        while waiting.is_alive():
            write()
    waiting.join()


def test_a_renewal_is_committed_whose_reply_is_lost(way: Way, postgres: str) -> None:
    lost: list[bool] = []
    with psycopg.connect(postgres, autocommit=True) as other, connect(way) as connection:
        other.execute("CREATE TABLE lost (value text)")
        try:
            repeat(
                lambda: connection.execute("INSERT INTO lost VALUES (%s)", [RENEWS]),
                lambda: lost.append(way.lose_reply(LIMIT_S)),
            )
            assert lost == [True]
            assert other.execute("SELECT count(*) > 0 FROM lost").fetchone() == (True,)
            with pytest.raises(psycopg.OperationalError, match="refused"):
                connect(way)
        finally:
            other.execute("DROP TABLE lost")


def test_a_transaction_that_is_left_open_keeps_its_locks_until_the_way_is_mended(
    way: Way, postgres: str
) -> None:
    left: list[bool] = []

    def lock() -> None:
        with connect(way) as connection, connection.pipeline() as pipeline:
            connection.execute("SELECT pg_advisory_xact_lock(42), %s", [WRITES])
            connection.pgconn.flush()  # so that the end comes by itself, as that of the journal
            pipeline.sync()

    with psycopg.connect(postgres, autocommit=True) as other:
        repeat(lock, lambda: left.append(way.leave_open(LIMIT_S)))
        assert left == [True]
        while other.execute(IS_FREE).fetchone() == (True, ""):
            pass  # the database has not read it yet
        assert other.execute(IS_FREE).fetchone() == (False, "")
        way.mend()
        while other.execute(IS_FREE).fetchone() != (True, ""):
            pass
