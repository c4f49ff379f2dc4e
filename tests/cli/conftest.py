"""The command over a journal of each kind."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.kit.command import Command


@pytest.fixture
def schema(postgres: str) -> Iterator[str]:
    """A schema of this test's own, which is not made yet."""
    name = f"cli_{uuid.uuid4().hex[:12]}"
    yield name
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE'.encode())


@pytest.fixture
def over_file(tmp_path: Path) -> Command:
    """The command over a new file."""
    return Command(tmp_path / "journal.sqlite3")


@pytest.fixture(params=["sqlite", "postgres"])
def command(request: pytest.FixtureRequest) -> Command:
    """The command over a new journal of either kind."""
    if request.param == "sqlite":
        return request.getfixturevalue("over_file")  # type: ignore[no-any-return]  # found by name
    dsn, name = request.getfixturevalue("postgres"), request.getfixturevalue("schema")
    return Command(str(dsn), MCP_TASKS_SCHEMA=str(name))
