"""What is done to a fleet: each disturbance is a function, and goes on until the function returns.

Times are in leases, so that a campaign is the same with any lease.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeAlias

import psycopg

from tests.postgres import PostgresServer

from .fleet import Fleet

__all__ = ["EACH_ROUND", "OF_A_REPLICA", "OF_THE_DATABASE", "TWINS"]

LONGER: Final = (1.3, 2.5)
"""Leases that most disturbances last: long enough for others to take over."""

TWINS: Final = "twins"
"""No disturbance, but a state of the fleet: some hosts have equal names and network cards."""

OfReplica: TypeAlias = Callable[[Fleet, int, random.Random], None]
OfDatabase: TypeAlias = Callable[[Fleet, random.Random], None]

# ── of one replica ────────────────────────────────────────────────────────────────────────────


def suspended(fleet: Fleet, life: int, chance: random.Random) -> None:
    """SIGSTOP at any moment, for less than a lease or more."""
    with fleet.disturbing("suspended", life):
        fleet.signal(life, signal.SIGSTOP)
        fleet.last(chance.uniform(0.5, LONGER[1]) * fleet.lease_s, life)
        fleet.signal(life, signal.SIGCONT)


def suspended_in_a_look(fleet: Fleet, life: int, chance: random.Random) -> None:
    """SIGSTOP between two statements of a look of ``adopt()``."""
    times = fleet.count(life, "stopping") + 1
    fleet.signal(life, signal.SIGUSR1)
    if fleet.wait_for_word(life, "stopping", times, 1.5 * fleet.lease_s):
        with fleet.disturbing("suspended in a look", life):
            fleet.last(chance.uniform(*LONGER) * fleet.lease_s, life)
            fleet.signal(life, signal.SIGCONT)


def cut_off(fleet: Fleet, life: int, chance: random.Random) -> None:
    """Connections to the database are cut, and new ones are refused."""
    with fleet.disturbing("cut off", life):
        fleet.way[life].refuse()
        _last_and_mend(fleet, life, chance)


def swallowed(fleet: Fleet, life: int, chance: random.Random) -> None:
    """Connections to the database stand, but nothing passes on them."""
    with fleet.disturbing("swallowed", life):
        fleet.way[life].swallow()
        _last_and_mend(fleet, life, chance)


def half_open(fleet: Fleet, life: int, chance: random.Random) -> None:
    """The database has seen the end of connections that stand for the replica. New ones would work."""
    with fleet.disturbing("half open", life):
        fleet.way[life].half_open()
        _last_and_mend(fleet, life, chance)


def reply_lost(fleet: Fleet, life: int, chance: random.Random) -> None:
    """The reply to a renewal is lost, as a rule the first one after the lease had run out.

    Then connections are refused: for a moment, or until the renewal is given up where ``outage_s`` is short.
    """
    with fleet.disturbing("reply lost", life):
        way = fleet.way[life]
        if chance.random() < 0.75:
            way.refuse()
            fleet.last(1.2 * fleet.lease_s, life)
            way.mend()
        if fleet.runs(life) and way.lose_reply(fleet.lease_s):
            fleet.last(chance.choice((0.0, 0.7)) * fleet.lease_s, life)
        if fleet.runs(life):
            way.mend()


def left_open(fleet: Fleet, life: int, chance: random.Random) -> None:
    """The connection breaks inside a transaction that writes, and the database does not notice it."""
    with fleet.disturbing("transaction left open", life):
        if fleet.way[life].leave_open(fleet.lease_s):
            fleet.last(LONGER[1] * fleet.lease_s, life)
        if fleet.runs(life):
            fleet.way[life].mend()


def _last_and_mend(fleet: Fleet, life: int, chance: random.Random) -> None:
    fleet.last(chance.uniform(*LONGER) * fleet.lease_s, life)
    if fleet.runs(life):
        fleet.way[life].mend()


def killed(fleet: Fleet, life: int, chance: random.Random) -> None:
    """SIGKILL."""
    with fleet.disturbing("killed", life):
        fleet.kill(life)


def told_to_stop(fleet: Fleet, life: int, chance: random.Random) -> None:
    """SIGTERM: it hands over what it has."""
    with fleet.disturbing("told to stop", life):
        fleet.stop(life)


OF_A_REPLICA: Final[dict[str, OfReplica]] = {
    "killed": killed,
    "told to stop": told_to_stop,
    "suspended": suspended,
    "suspended in a look": suspended_in_a_look,
    "cut off": cut_off,
    "swallowed": swallowed,
    "half open": half_open,
    "reply lost": reply_lost,
    "transaction left open": left_open,
}
"""What is done to one replica."""

# ── of the database, and so of all ────────────────────────────────────────────────────────────


def connections_cut(fleet: Fleet, chance: random.Random) -> None:
    """The database ends all connections of journals."""
    dsn = fleet.database.dsn
    with fleet.disturbing("connections cut"), psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'mcp-tasks-client'"
        )


def restarted(fleet: Fleet, chance: random.Random) -> None:
    """The database is away for up to two seconds, and loses what was under way."""
    with fleet.disturbing("database restarted"):
        fleet.database.stop(chance.choice(("fast", "immediate")))
        time.sleep(chance.uniform(0.0, 2.0))
        fleet.database.start()


def away(fleet: Fleet, chance: random.Random) -> None:
    """The database is away for longer than a lease. All replicas have seen the others' leases before."""
    with fleet.disturbing("database away"):
        fleet.database.stop("fast")
        fleet.last(chance.uniform(1.1, 1.5) * fleet.lease_s)
        fleet.database.start()


def rows_locked(fleet: Fleet, chance: random.Random) -> None:
    """A forgotten session holds the rows of ten calls."""
    with (
        fleet.disturbing("rows locked"),
        _forgotten_session(
            fleet.database,
            "SELECT FROM mcp_tasks_client.records WHERE delivered_at IS NULL "
            "ORDER BY random() LIMIT 10 FOR UPDATE",
        ),
    ):
        fleet.last(chance.uniform(1.1, 1.8) * fleet.lease_s)


def table_locked(fleet: Fleet, chance: random.Random) -> None:
    """A forgotten session holds a whole table."""
    table = chance.choice(("records", "leases"))
    with (
        fleet.disturbing(f"table locked: {table}"),
        _forgotten_session(fleet.database, f"LOCK TABLE mcp_tasks_client.{table}"),
    ):
        fleet.last(chance.uniform(1.1, 1.8) * fleet.lease_s)


@contextmanager
def _forgotten_session(database: PostgresServer, statement: str) -> Iterator[None]:
    with psycopg.connect(database.dsn) as connection, suppress(psycopg.Error):
        connection.execute(statement.encode())
        yield
        connection.rollback()


OF_THE_DATABASE: Final[dict[str, OfDatabase]] = {
    "connections cut": connections_cut,
    "database restarted": restarted,
    "database away": away,
    "rows locked": rows_locked,
    "table locked": table_locked,
}
"""What is done to the database. One of these at a time."""

EACH_ROUND: Final = {
    "killed": 4,
    "told to stop": 2,
    "suspended": 2,
    "suspended in a look": 2,
    "cut off": 1,
    "swallowed": 1,
    "half open": 1,
    "reply lost": 2,
    "transaction left open": 1,
    "connections cut": 1,
    "database restarted": 1,
    "database away": 1,
    "rows locked": 1,
    "table locked": 1,
}
"""How often each is done, in an order by chance, and then again."""
