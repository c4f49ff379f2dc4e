"""What every journal promises, whatever it keeps its records in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_tasks_client.journal.base import Journal
from mcp_tasks_client.journal.memory import MemoryJournal
from mcp_tasks_client.journal.sqlite.journal import SqliteJournal
from mcp_tasks_client.testing.journal_contract import JournalContract
from tests._requirements import requirement

# A journal made in another way, such as with a codec, is one more class with a fixture of its own.


@requirement("law:3", "law:5")
class TestMemory(JournalContract):
    @pytest.fixture
    def make_journal(self) -> Callable[[], Journal]:
        journal = MemoryJournal()
        return lambda: journal


@requirement("law:3", "law:5")
class TestSqlite(JournalContract):
    @pytest.fixture
    def make_journal(self, path: Path, empty_file: bytes) -> Callable[[], Journal]:
        path.write_bytes(empty_file)
        return lambda: SqliteJournal(path)


@requirement("law:3", "law:5")
class TestPostgres(JournalContract):
    @pytest.fixture
    def make_journal(self, postgres_journal: Callable[[], Journal]) -> Callable[[], Journal]:
        return postgres_journal
