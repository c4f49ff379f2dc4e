"""What importing the package does not load, because only some hosts need it, or only later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.kit.terminal import run_command, surroundings

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


@pytest.mark.parametrize(
    ("line", "unloaded"),
    [
        (["--help"], {"mcp_types", "pydantic", "rich", "prompt_toolkit", *LATE} - {"asyncio"}),
        # typer reads a verb's options by pydantic.
        (["call", "--help"], {"mcp_types", "rich", "prompt_toolkit", *LATE} - {"asyncio"}),
        (["ls"], {"aiohttp", "httpx", "jsonschema_rs", "mcp", "prompt_toolkit"}),
        (["show", "abc"], {"aiohttp", "httpx", "jsonschema_rs", "mcp", "prompt_toolkit", "rich"}),
    ],
    ids=["help", "help of a verb", "ls", "show"],  # those of a set would be in no order
)
def test_a_verb_loads_nothing_that_it_does_not_need(
    line: list[str], unloaded: set[str], tmp_path: Path
) -> None:
    program = """
import sys
from mcp_tasks_client.cli import main
main(sys.argv[1:])
sys.stdout.write("\\n" + " ".join(sys.modules))
"""
    run_command(tmp_path / "journal.sqlite3", "call", "http://127.0.0.1:9/mcp", "tool")  # makes a journal
    ran = subprocess.run(
        [sys.executable, "-c", program, *line],
        capture_output=True,
        text=True,
        env=surroundings(tmp_path / "journal.sqlite3"),
        timeout=60,
        check=True,
    )
    loaded = set(ran.stdout.splitlines()[-1].split())
    assert "mcp_tasks_client.cli.program" in loaded
    assert not loaded & unloaded


def test_completing_a_verb_loads_no_journal(tmp_path: Path) -> None:
    program = """
import sys
from mcp_tasks_client.cli import main
try:
    main([])
finally:
    sys.stderr.write("\\n" + " ".join(sys.modules))
"""
    words = {"_MCP_TASKS_COMPLETE": "complete_bash", "COMP_WORDS": "mcp-tasks que", "COMP_CWORD": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=surroundings(tmp_path / "journal.sqlite3", **words),
        timeout=60,
        check=False,
    )
    assert ran.stdout.split() == ["questions"]
    assert not {"rich", "sqlite3", "mcp_types", "aiohttp"} & set(ran.stderr.split())
