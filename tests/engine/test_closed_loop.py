"""An event loop that is closed under an open client: what the client owned is free, here and elsewhere.

The host is a process of its own, ``closed_loop_host.py``, which lives on meanwhile.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process

from mcp_tasks_client import Journal, PostgresJournal, SqliteJournal, TasksClient
from tests._results import text
from tests.kit.current_server import DONE, LIMIT_S, QUICK, WORKING, CurrentServer, at_loopback

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture(params=["sqlite", "postgres"])
def kept_in(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[], Journal], dict[str, str]]:
    """How this process, and the host, have the journal."""
    if request.param == "sqlite":
        path = tmp_path / "journal.sqlite3"
        return lambda: SqliteJournal(path), {"journal": str(path)}
    dsn, schema = (
        request.getfixturevalue("postgres"),
        f"closed_{tmp_path.name}"[:60].lower().replace("-", "_"),
    )
    return lambda: PostgresJournal(dsn, schema=schema), {"journal": dsn, "schema": schema}


class Host:
    """The process of the host, whose loop was left."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._said = b""

    async def hear(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        while b"\n" not in self._said:
            self._said += await self._process.stdout.receive()
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    async def repeat(self) -> str:
        """What comes of the call when the host repeats it in a new loop."""
        assert self._process.stdin is not None
        await self._process.stdin.send(b"\n")
        return await self.hear()


@asynccontextmanager
async def left(server: CurrentServer, **options: str) -> AsyncIterator[tuple[Host, str]]:
    """A host that has left its loop while its call waited for a task, and the server's URL."""
    with anyio.fail_after(2 * LIMIT_S):
        async with at_loopback(server) as url:
            given = json.dumps({"url": url, "keeps": "client", "left": "closed", **options})
            command = [sys.executable, "-m", "tests.engine.closed_loop_host", given]
            process = await anyio.open_process(command, stderr=None)
            try:
                host = Host(process)
                assert await host.hear() == "left"
                server.replies["tasks/get"] = {**DONE, "resultType": "complete"}
                yield host, url
            finally:
                process.kill()
                await process.aclose()


def at_work() -> CurrentServer:
    return CurrentServer(gets=[WORKING])


@pytest.mark.parametrize("keeps", ["client", "journal", "nothing"])
async def test_a_call_whose_loop_was_closed_ends_in_another_process_under_its_key(
    kept_in: tuple[Callable[[], Journal], dict[str, str]], keeps: str
) -> None:
    make_journal, options = kept_in
    server = at_work()
    async with (
        left(server, keeps=keeps, **options) as (_, url),
        TasksClient(url, journal=make_journal(), poll=QUICK) as client,
    ):
        assert text(await client.call_tool("tool", idempotency_key="key")) == "done"
    assert server.counts["tools/call"] == 1


@pytest.mark.parametrize("keeps", ["client", "journal", "nothing"])
@pytest.mark.parametrize("kept_in", ["sqlite", "postgres"], indirect=True)
async def test_a_call_whose_loop_was_closed_ends_in_a_new_loop_under_its_key(
    kept_in: tuple[Any, dict[str, str]], keeps: str
) -> None:
    server = at_work()
    async with left(server, keeps=keeps, **kept_in[1]) as (host, _):
        assert await host.repeat() == "done"
    assert server.counts["tools/call"] == 1


@pytest.mark.parametrize("keeps", ["client", "journal"])
async def test_so_it_does_where_the_journal_is_in_memory(keeps: str) -> None:
    server = at_work()
    async with left(server, keeps=keeps, journal="memory") as (host, _):
        assert await host.repeat() == "done"
    assert server.counts["tools/call"] == 1


@pytest.mark.parametrize("how", ["KeyboardInterrupt", "SystemExit", "thread"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_call_whose_loop_was_ended_by_an_exception_ends_under_its_key(
    tmp_path: Path, how: str, where: str
) -> None:
    server, path = at_work(), tmp_path / "journal.sqlite3"
    async with left(server, left=how, journal=str(path)) as (host, url):
        if where == "here":
            assert await host.repeat() == "done"
        else:
            async with TasksClient(url, journal=path, poll=QUICK) as client:
                assert text(await client.call_tool("tool", idempotency_key="key")) == "done"
    assert server.counts["tools/call"] == 1
