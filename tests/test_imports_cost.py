"""What importing the package does not load, because only some hosts need it, or only later."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

LATE: Final = {
    "aiohttp": "sessions by URL on asyncio",
    "asyncio": "the event loop of the host, if it is that one",
    "cryptography": "journals that are encrypted",
    "fastmcp": "hosts that have it",
    "httpx": "sessions by URL",
    "jsonschema_rs": "forms and output schemas, which most calls have none of",
    "mcp": "hosts that have it",
    "platformdirs": "a journal whose file nobody names",
    "psutil": "tasks of other processes",
    "pytest": "whoever tests a journal of their own",
    "sqlite3": "a journal in a file",
}
"""Who needs it. What our dependencies import by themselves is theirs."""


def test_importing_the_package_alone_loads_nothing() -> None:
    """The command shows its help, and completes words, before anything else is loaded."""
    program = "import sys, mcp_tasks_client; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert not {"anyio", "mcp_types", "pydantic", *LATE} & set(ran.stdout.split())


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("mcp_tasks_client", "BlockingTasksClient, Inbox, SqliteJournal, TasksClient"),
        ("mcp_tasks_client.testing", "*"),
    ],
)
def test_the_client_loads_nothing_that_is_needed_later_or_by_some_hosts_only(module: str, names: str) -> None:
    program = f"""
import sys, anyio.from_thread, mcp_types, pydantic
before = set(sys.modules)
from {module} import {names}
print(*sorted(set(sys.modules) - before))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(ran.stdout.split())
    assert module in loaded
    assert not {name: why for name, why in LATE.items() if name in loaded}
    assert not loaded & {"starlette", "uvicorn"}


@pytest.mark.parametrize(
    ("name", "needed", "remedy"),
    [
        ("TasksExtension", "mcp.client.extension", "pip install 'mcp>=2,<3'"),
        ("TasksTransport", "mcp", "pip install mcp"),
        ("PostgresJournal", "psycopg", "pip install 'psycopg[binary]'"),
        ("FernetCodec", "cryptography", "pip install cryptography"),
    ],
)
def test_a_name_that_needs_another_package_says_so_where_there_is_none(
    name: str, needed: str, remedy: str
) -> None:
    program = f"""
import sys
sys.modules["{needed.partition(".")[0]}"] = None  # as if it were not installed
from mcp_tasks_client import *
try:
    {name}()
except ImportError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.strip() == f"{name} needs {needed}: {remedy}"
