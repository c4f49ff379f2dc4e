"""A server that refuses a connection: for good, or for now. In whatever language it says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import anyio
import psycopg
import pytest
from anyio import to_thread

from mcp_tasks_client import PostgresJournal
from mcp_tasks_client.errors import JournalError
from mcp_tasks_client.journal.postgres import database, refusal
from mcp_tasks_client.testing.samples import SCOPE, record
from tests.postgres import PostgresServer, running_german_postgres, running_postgres

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

SCHEMA: Final = "refusals"
RULES: Final = "local all pw,lim scram-sha-256\nlocal all shut reject\n"


@pytest.fixture(scope="module", params=["English", "German"])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    running = running_postgres if request.param == "English" else running_german_postgres
    with running() as server:
        rules = server.data / "pg_hba.conf"
        rules.write_text(f"{RULES}{rules.read_text()}")
        run(server, "SELECT pg_reload_conf()")
        for user, options in {"pw": "", "lim": "CONNECTION LIMIT 0", "shut": ""}.items():
            run(server, f"CREATE ROLE {user} LOGIN PASSWORD 'first' {options}")
            run(server, f"GRANT CREATE ON DATABASE postgres TO {user}")
        yield server


def run(server: PostgresServer, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


async def test_the_server_speaks_its_language(server: PostgresServer, request: pytest.FixtureRequest) -> None:
    with pytest.raises(psycopg.OperationalError) as raised:
        psycopg.connect(f"{server.dsn} user=pw password=wrong")
    says = "fehlgeschlagen" if "German" in request.node.name else "authentication failed"
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("user=pw password=wrong", "refuses the user .* password="),
        ("user=pw", "refuses the user .* password="),
        ("user=nobody_knows", "refuses the user"),
        ("user=shut password=first", "refuses the user"),
        ("dbname=none", "no such database .* name another one"),
        ("options='-c lock_timeout=x'", "could not be read or written"),
    ],
)
async def test_what_is_refused_for_good_is_told_at_once(server: PostgresServer, given: str, why: str) -> None:
    began = time.monotonic()
    with anyio.fail_after(25), pytest.raises(JournalError, match=why):
        await PostgresJournal(f"{server.dsn} {given}", schema=SCHEMA, outage_s=30.0).open()
    assert time.monotonic() - began < 20.0


async def test_a_wrong_password_is_told_at_once_also_where_libpq_does_not_tell_the_code(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on other systems than Linux."""
    monkeypatch.setattr(refusal, "_ask_again", lambda address: None)
    with anyio.fail_after(25), pytest.raises(JournalError, match="refuses the user"):
        await PostgresJournal(f"{server.dsn} user=pw password=forgotten", schema=SCHEMA, outage_s=30.0).open()


async def test_too_many_connections_are_waited_for(server: PostgresServer) -> None:
    """After the password was taken."""
    address = f"{server.dsn} user=lim password=first"
    with anyio.fail_after(30):
        journal = PostgresJournal(address, schema=f"{SCHEMA}_lim", outage_s=20.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(journal.open)
            await anyio.sleep(1.0)
            await to_thread.run_sync(run, server, "ALTER ROLE lim CONNECTION LIMIT 10")
        await journal.save(given := record())
        assert await journal.records(SCOPE) == [given]
        run(server, "ALTER ROLE lim CONNECTION LIMIT 0")
        await journal.aclose()
        with pytest.raises(JournalError, match="cannot be reached"):
            await PostgresJournal(address, schema=f"{SCHEMA}_lim", outage_s=0.5).open()


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_a_restart_is_waited_for(server: PostgresServer, how: Literal["fast", "immediate"]) -> None:
    with anyio.fail_after(40):
        async with PostgresJournal(server.dsn, schema=SCHEMA, outage_s=20.0) as journal:
            await journal.save(first := record(created_at=1.0))
            await to_thread.run_sync(server.stop, how)
            threading.Timer(0.5, server.start).start()
            await journal.save(second := record(created_at=2.0))
            assert {first.record_id, second.record_id} <= {
                one.record_id for one in await journal.records(SCOPE)
            }


async def test_a_password_that_is_refused_later_is_told_at_once(server: PostgresServer) -> None:
    answers = ["first"]
    journal = PostgresJournal(
        f"{server.dsn} user=pw", password=lambda: answers[0], schema=f"{SCHEMA}_pw", outage_s=30.0
    )
    with anyio.fail_after(30):
        async with journal:
            await journal.save(record())
            answers[0] = "second"
            run(server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'pw'")
            for _ in range(2):
                began = time.monotonic()
                with pytest.raises(JournalError, match="refuses the user"):
                    await journal.save(record())
                assert time.monotonic() - began < 20.0
            answers[0] = "first"
            await until_saved(journal)


async def until_saved(journal: PostgresJournal) -> None:
    """A refusal is kept for two seconds at most."""
    while True:
        try:
            await journal.save(record())
        except JournalError:
            await anyio.sleep(0.1)
        else:
            return


async def test_what_libpq_tells_is_kept_by_its_words(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it is asked, some memory is lost."""
    asked: list[str] = []
    ask: Callable[[str], Any] = refusal._ask_again

    def ask_once(address: str) -> Any:
        asked.append(address)
        return ask(address)

    monkeypatch.setattr(refusal, "_REASONS", {})
    monkeypatch.setattr(refusal, "_ask_again", ask_once)
    for _ in range(3):
        with pytest.raises(psycopg.errors.InvalidPassword):
            database.connect(f"{server.dsn} user=pw password=wrong")
    assert len(asked) == 1
