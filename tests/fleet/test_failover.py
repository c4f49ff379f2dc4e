"""A real failover: the primary dies, its streaming standby is promoted, and the journal goes on there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import psycopg
import pytest
from anyio import to_thread

from mcp_tasks_client import JournalError, PostgresJournal, TaskRecord, TasksClient
from mcp_tasks_client.testing import completed, text_result, working
from mcp_tasks_client.testing.samples import SCOPE, finished, observing, record
from tests._results import text
from tests.postgres import PostgresServer, programs, running_postgres
from tests.scripted_session import ScriptedSession

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

LIMIT_S: Final = 30.0


class Pair:
    """A primary and its standby.

    Attributes:
        dsn: How to connect to whichever takes writes.
    """

    def __init__(self, primary: PostgresServer, standby: Path) -> None:
        self.primary = primary
        self._standby = f"host={standby} user=postgres dbname=postgres"
        self.dsn = f"host={primary.data},{standby} user=postgres dbname=postgres"

    def run(self, statement: str, *, on_standby: bool = False) -> list[tuple[Any, ...]]:
        with psycopg.connect(
            self._standby if on_standby else self.primary.dsn, autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby half a second later."""
        self.primary.stop("immediate")
        time.sleep(0.5)
        assert self.run("SELECT pg_promote()", on_standby=True) == [(True,)]

    def cut_off(self) -> None:
        """Have the standby receive nothing any more of what is committed from now on."""
        ((now,),) = self.run("SELECT pg_current_wal_lsn()")
        until(lambda: self.run(f"SELECT pg_last_wal_replay_lsn() >= '{now}'", on_standby=True) == [(True,)])
        self.run("ALTER SYSTEM SET primary_conninfo = ''", on_standby=True)
        self.run("SELECT pg_reload_conf()", on_standby=True)
        until(lambda: self.run("SELECT 1 FROM pg_stat_wal_receiver", on_standby=True) == [])


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A new one."""
    if not request.config.getoption("--long"):
        pytest.skip("starts two servers for each test; --long runs it")
    with running_postgres() as primary, standby_of(primary) as data:
        both = Pair(primary, data)
        until(lambda: both.run("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'") == [(1,)])
        yield both


@contextmanager
def standby_of(primary: PostgresServer) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="mcp-standby-"))
    binaries, user = programs(folder)
    data = folder / "data"
    data.mkdir()
    data.chmod(0o700)
    if user:
        os.chown(data, user["user"], user["group"])
    copy = [
        binaries / "pg_basebackup",
        "-D",
        "data",
        "-R",
        "-c",
        "fast",
        "-h",
        primary.data,
        "-U",
        "postgres",
    ]
    subprocess.run(copy, check=True, cwd=folder, **user)
    (data / ".s.PGSQL.5432.lock").unlink()  # that of the primary's socket, which lies beside its data
    with (data / "postgresql.auto.conf").open("a") as file:
        file.write(f"unix_socket_directories = '{data}'\n")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([binaries / "postgres", "-D", "data"], cwd=folder, stderr=log, **user)
    try:
        yield data
    finally:
        server.send_signal(signal.SIGQUIT)
        server.wait(LIMIT_S)
        shutil.rmtree(folder)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def test_with_synchronous_replication_nothing_is_lost_and_calls_go_on(pair: Pair) -> None:
    pair.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
    pair.run("SELECT pg_reload_conf()")
    await to_thread.run_sync(
        until, lambda: pair.run("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'") == [(1,)]
    )
    written: list[TaskRecord] = []
    task = working("task-1", poll_interval_ms=1000)
    steps = [*([task] * 4), completed("task-1", text_result("done"))]
    session = ScriptedSession(calls=[task], gets={"task-1": steps})
    is_over = False

    async def write() -> None:
        while not is_over:
            given = record(state=observing(), owner="a/1", created_at=float(len(written)))
            await journal.save(given)
            given = replace(given, updated_at=9.0, state=finished())
            await journal.save(given, known=True)
            written.append(given)

    with anyio.fail_after(60):
        journal = PostgresJournal(pair.dsn)
        async with TasksClient(session, journal=PostgresJournal(pair.dsn)) as client, journal:
            handle = await client.start_tool("tool", idempotency_key="order-42")
            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(write)
                await anyio.sleep(0.5)
                before = len(written)
                await to_thread.run_sync(pair.fail_over)
                await anyio.sleep(1.0)
                is_over = True
            assert 0 < before < len(written)
            found = {one.record_id: one for one in await journal.records(SCOPE)}
            assert found == {one.record_id: one for one in written}
            assert text(await handle.result()) == "done"
        assert len(session.log("tools/call")) == 1


async def test_a_task_whose_commit_did_not_reach_the_standby_is_told_and_can_be_attached(pair: Pair) -> None:
    """With asynchronous replication."""
    task = working("task-1", poll_interval_ms=1000)
    session = ScriptedSession(calls=[task], gets={"task-1": [task, completed("task-1", text_result("done"))]})
    with anyio.fail_after(60):
        async with TasksClient(session, journal=PostgresJournal(pair.dsn)) as client:
            await to_thread.run_sync(pair.cut_off)
            handle = await client.start_tool("tool", idempotency_key="order-42")
            await to_thread.run_sync(pair.fail_over)
            with pytest.raises(JournalError, match=r"set back \(by a failover.* attach its ID"):
                await handle.result()
            again = await client.attach("task-1")
            assert text(await again.result()) == "done"
        assert len(session.log("tools/call")) == 1
