"""Journals to test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from mcp_tasks_client import PostgresJournal, SqliteJournal
from mcp_tasks_client.journal import statements
from tests.journal.files import Spy, spy_on
from tests.journal.sql_mutants import broken


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A journal without records. Making one for each test would take most of the suite's time."""

    async def make() -> None:
        with anyio.fail_after(30):
            async with SqliteJournal(file):
                pass

    file = tmp_path_factory.mktemp("empty") / "journal.sqlite3"
    anyio.run(make)
    return file.read_bytes()


@pytest.fixture(scope="session")
def schema(postgres: str) -> Iterator[str]:
    """A schema of this process's own."""
    name = f"test_{uuid.uuid4().hex}"
    yield name
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


@pytest.fixture
def postgres_journal(postgres: str, schema: str) -> Callable[[], PostgresJournal]:
    """Makes journals in a schema that is empty."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        for table in ("records", "leases", "instructions", "durations") if exists(connection, schema) else ():
            connection.execute(f"DELETE FROM {schema}.{table}".encode())
    return lambda: PostgresJournal(postgres, schema=schema)


def exists(connection: psycopg.Connection[Any], schema: str) -> bool:
    return connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (schema,)).fetchone() == (True,)


@pytest.fixture(scope="session", autouse=True)
def mutant() -> Iterator[None]:
    """The statements of both databases are broken as the environment says."""
    name = os.environ.get("MCP_TASKS_TEST_MUTANT")
    if name is None:
        yield
        return
    texts = {folder: broken(dict(statements.texts(folder)), name) for folder in ("sqlite", "postgres")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statements, "texts", lambda folder: texts[folder])
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return spy_on(monkeypatch)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """PostgreSQL encodes by what encodes for SQLite, so that only ``--long`` shows it once more."""
    if not config.getoption("--long"):
        left_out = {item for item in items if "TestEncryptedPostgres" in item.nodeid}
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
