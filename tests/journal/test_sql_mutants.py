"""Proof that the tests of the journals would tell: each of their guards, broken, turns one red.

``--long`` runs the tests for each mutant. The short form sees that every mutant still fits its statement.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from mcp_tasks_client.journal.statements import texts

from .sql_mutants import broken, mutants_of

HERE: Final = Path(__file__).parent
TESTS: Final = {
    "sqlite": (
        "test_contract.py::TestSqlite",
        "test_copy.py",
        "test_durations.py",
        "test_sql.py",
        "test_sqlite.py",
    ),
    "postgres": (
        "test_contract.py::TestPostgres",
        "test_copy.py",
        "test_durations.py",
        "test_sql.py",
        "test_postgres.py",
        "test_postgres_outage.py",
    ),
}
OTHER: Final = {"sqlite": "postgres", "postgres": "sqlite"}


@pytest.mark.parametrize(
    ("dialect", "mutant"), [(dialect, mutant) for dialect in TESTS for mutant in mutants_of(dialect)]
)
def test_a_broken_guard_is_noticed(dialect: str, mutant: str, request: pytest.FixtureRequest) -> None:
    assert broken(texts(dialect), mutant) != texts(dialect)
    if not request.config.getoption("--long"):
        return
    server, only = request.getfixturevalue("postgres"), f"not trio and not {OTHER[dialect]}"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", "-k", only]
        + [str(HERE / name) for name in TESTS[dialect]],
        env={**os.environ, "MCP_TASKS_TEST_MUTANT": mutant, "MCP_TASKS_TEST_POSTGRES": server},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 1, f"no test tells:\n{ran.stdout[-2000:]}"
    assert "FAILED" in ran.stdout or "ERROR" in ran.stdout
