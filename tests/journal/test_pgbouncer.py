"""The journal in PostgreSQL behind a real PgBouncer, which is skipped where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from psycopg.conninfo import conninfo_to_dict

from mcp_tasks_client import Instruction, PostgresJournal
from mcp_tasks_client.errors import JournalError
from mcp_tasks_client.testing.samples import observing, record
from tests.journal.test_instructions import Heard
from tests.postgres import NOBODY

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    pytest.mark.skipif(
        PROGRAM is None, reason="PgBouncer is not installed (Debian: apt-get install pgbouncer)"
    ),
]


@contextmanager
def pgbouncer(postgres: str, mode: str, size: int = 20, clients: int = 100) -> Iterator[str]:
    """How to connect to a pool in front of the server."""
    server: dict[str, Any] = conninfo_to_dict(postgres)
    given = " ".join(f"{name}={server[name]}" for name in ("host", "port", "user") if name in server)
    assert PROGRAM is not None
    folder = Path(tempfile.mkdtemp(prefix="mcp-pgbouncer-"))  # a short path, as sockets need
    (folder / "settings.ini").write_text(
        f"""[databases]
        tasks = {given} dbname={server["dbname"]}
        [pgbouncer]
        pool_mode = {mode}
        default_pool_size = {size}
        max_client_conn = {clients}
        auth_type = any
        listen_port = 6432
        listen_addr =
        unix_socket_dir = {folder}
        logfile = {folder}/log
        """
    )
    folder.chmod(0o777)  # it refuses to run as root, as the server does
    user: dict[str, Any] = {} if os.geteuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with subprocess.Popen([PROGRAM, "--quiet", str(folder / "settings.ini")], **user) as running:
        try:
            deadline = time.monotonic() + 20
            while not (folder / ".s.PGSQL.6432").exists():
                assert running.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield f"host={folder} port=6432 user=someone dbname=tasks"
        finally:
            running.kill()
    shutil.rmtree(folder)


async def test_a_pool_in_session_mode_serves(postgres: str, schema: str) -> None:
    with pgbouncer(postgres, "session") as pooled, anyio.fail_after(30):
        async with PostgresJournal(pooled, schema=schema) as journal:
            heard = Heard()
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(journal.save, record())
            await journal.save(given := record(state=observing()))
            stop = journal.listen(heard)
            await journal.instruct(given.record_id, Instruction("answer", "{}", 7.0))
            assert await heard.wait_for(given.record_id)
            stop()


async def test_a_pool_in_transaction_mode_is_refused(postgres: str, schema: str) -> None:
    with (
        pgbouncer(postgres, "transaction") as pooled,
        anyio.fail_after(30),
        pytest.raises(JournalError, match=r"transaction mode; give the address of the database itself"),
    ):
        await PostgresJournal(pooled, schema=schema).open()


async def test_a_pool_in_session_mode_that_has_one_connection_left_serves(postgres: str, schema: str) -> None:
    with pgbouncer(postgres, "session", size=1) as pooled, anyio.fail_after(30):
        async with PostgresJournal(pooled, schema=schema) as journal:
            await journal.save(record())


async def test_a_pool_that_takes_no_more_clients_is_away(postgres: str, schema: str) -> None:
    """It says so in words of its own, and with a code that means nothing."""
    with pgbouncer(postgres, "session", clients=2) as pooled, anyio.fail_after(30):
        first = PostgresJournal(pooled, schema=schema, outage_s=15.0)
        second = PostgresJournal(f"{pooled} options=''", schema=schema, outage_s=15.0)
        await first.open()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second.open)
            await anyio.sleep(1.0)
            await first.aclose()
        await second.save(record())
        await second.aclose()
        with pytest.raises(JournalError, match="no more connections allowed"):
            async with (
                PostgresJournal(pooled, schema=schema),
                PostgresJournal(f"{pooled} options=''", schema=schema, outage_s=0.5),
            ):
                pass


async def test_a_pool_in_session_mode_ends_what_a_lost_connection_has_begun(
    postgres: str, schema: str
) -> None:
    """We end no process of the server behind it, which may serve another client by now."""
    with pgbouncer(postgres, "session") as pooled, anyio.fail_after(30):
        async with PostgresJournal(pooled, schema=schema) as journal:
            await journal.save(record())
            medium = journal._medium
            assert medium is not None
            assert medium._connection.backend is None
            medium._connection.pgconn.finish()
            await journal.save(given := record())
            assert await journal.by_id(given.record_id) == given
