"""What every journal promises, whatever it keeps its records in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from cryptography.fernet import Fernet

from mcp_tasks_client import FernetCodec, Journal, MemoryJournal, PostgresJournal, SqliteJournal
from mcp_tasks_client.testing.journal_contract import JournalContract
from tests.journal.files import OneLoop

CODEC: Final = FernetCodec(Fernet.generate_key())


class TestMemory(JournalContract):
    shared = False

    @pytest.fixture
    def make_journal(self) -> Callable[[], Journal]:
        journal = MemoryJournal()
        return lambda: journal


class TestSqlite(JournalContract):
    @pytest.fixture
    def make_journal(self, path: Path, empty_file: bytes) -> Callable[[], Journal]:
        path.write_bytes(empty_file)
        return lambda: SqliteJournal(path)


class TestEncryptedSqlite(OneLoop, JournalContract):
    @pytest.fixture
    def make_journal(self, path: Path, empty_file: bytes) -> Callable[[], Journal]:
        path.write_bytes(empty_file)
        return lambda: SqliteJournal(path, codec=CODEC)


class TestEncryptedPostgres(OneLoop, JournalContract):
    @pytest.fixture
    def make_journal(self, postgres_journal: object, postgres: str, schema: str) -> Callable[[], Journal]:
        return lambda: PostgresJournal(postgres, schema=schema, codec=CODEC)


class TestPostgres(JournalContract):
    @pytest.fixture
    def make_journal(self, postgres_journal: Callable[[], Journal]) -> Callable[[], Journal]:
        return postgres_journal
