"""Journals to test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from mcp_tasks_client.journal.base import Journal
from mcp_tasks_client.journal.memory import MemoryJournal
from mcp_tasks_client.journal.sqlite import SqliteJournal
from tests.journal.files import Spy, spy_on


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


@pytest.fixture(params=["memory", "sqlite"])
def make_journal(request: pytest.FixtureRequest, tmp_path: Path, empty_file: bytes) -> Callable[[], Journal]:
    if request.param == "memory":
        return MemoryJournal
    path = tmp_path / "journal.sqlite3"
    path.write_bytes(empty_file)
    return lambda: SqliteJournal(path)


@pytest.fixture
async def journal(make_journal: Callable[[], Journal]) -> AsyncIterator[Journal]:
    with anyio.fail_after(30):
        async with make_journal() as opened:
            yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return spy_on(monkeypatch)
