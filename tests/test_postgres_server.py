"""The PostgreSQL server that a run of the tests shares."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .postgres import PostgresServer, _take_part, _until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tests start no PostgreSQL here")


def test_a_server_that_is_being_removed_is_not_taken_for_one_that_runs(tmp_path: Path) -> None:
    assert _take_part(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_server_and_its_folder_end_with_the_last_of_its_users() -> None:
    server = PostgresServer.started()
    folder = server.data.parent
    other = _take_part(folder)
    assert other is not None
    server.leave()
    assert server.pid
    other.close()
    _until(lambda: not folder.exists())
