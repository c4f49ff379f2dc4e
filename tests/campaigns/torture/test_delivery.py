"""Two services over one journal, killed again and again. Their store fails half of the time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import anyio
import pytest

from mcp_tasks_client import Inbox
from tests._forked import Program
from tests.real_server import RealServer

from .service import journal_at, make_client, make_table, read

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

LIMIT_S: Final = 240.0
USERS: Final = ("", "ada", "bob")
CALLS: Final = [
    *(
        (f"{user}-{number}", "slow", {"seconds": number % 4}, "completed")
        for user in USERS
        for number in range(6)
    ),
    *((f"{user}-asks", "ask_name", {"seconds": 1.0}, "completed") for user in USERS),
    *((f"{user}-fails", "fail_rpc", {}, "failed") for user in USERS),
    *((f"{user}-cancelled", "cancelable", {}, "cancelled") for user in USERS),
]
"""Their keys, tools, arguments and how they end."""


@pytest.fixture(params=["sqlite", "postgres"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "journal.sqlite3")
    return str(request.getfixturevalue("postgres"))


def kills(rounds: int) -> Iterator[float]:
    """Seconds that a service lives before it is killed."""
    chance = random.Random(7)
    yield from (chance.uniform(0.5, 2.5) for _ in range(rounds))


async def test_each_end_is_stored_once_by_its_key_however_often_services_die_and_their_store_fails(
    real_server: RealServer, tmp_path: Path, journal: str, anyio_backend: str, request: pytest.FixtureRequest
) -> None:
    url, database = real_server.url, str(tmp_path / "ends.sqlite3")
    make_table(database)
    since = real_server.mark()
    for user in USERS:
        async with make_client(url, journal, user) as client:
            for key, tool, arguments, status in CALLS:
                if key.partition("-")[0] == user:
                    handle = await client.start_tool(tool, arguments, idempotency_key=key)
                    if status == "cancelled":
                        await handle.cancel()

    async def serve(lives_s: list[float]) -> None:
        """Run a service, and begin it anew each time that it is killed. The last one lives on."""
        for life_s in [*lives_s, LIMIT_S]:
            with Program(
                "-m", "tests.campaigns.torture.service", url, journal, database, text=True
            ) as process:
                try:
                    await anyio.sleep(life_s)
                finally:
                    process.kill()
                    process.wait()

    lives = list(kills(60 if request.config.getoption("--long") else 10))
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            for service in (lives[::2], lives[1::2]):
                tasks.start_soon(serve, service)
            async with Inbox(journal_at(journal)) as inbox:
                while await inbox.records(pending=True):
                    await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()
    stored = {key: (principal, status) for _, principal, key, status, _ in read(database, "ends")}
    assert stored == {key: (key.partition("-")[0], status) for key, _, _, status in CALLS}
    # An end comes again only if the store has failed, or the service was killed before the acknowledgement.
    asked = read(database, "asked")
    assert {record_id for record_id, _ in asked} == {record_id for record_id, *_ in read(database, "ends")}
    has_stored = Counter(record_id for record_id, fault in asked if not fault)
    assert sum(times - 1 for times in has_stored.values()) <= 50 * len(lives)
    made = Counter(one.subject for one in real_server.witness(method="tools/call", since=since))
    assert made == Counter(tool for _, tool, _, _ in CALLS), "each tool was called once for each key"
