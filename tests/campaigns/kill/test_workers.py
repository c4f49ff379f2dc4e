"""Real worker processes over one journal, one of them killed with SIGKILL: the other adopts what it had."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest

from mcp_tasks_client import TasksClient
from tests._forked import Program
from tests.real_server import RealServer

from .worker import LEASE_S

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

LIMIT_S: Final = 30.0


class Worker:
    """A running worker, and what it has said: words, and when they came."""

    def __init__(self, process: Program) -> None:
        self.process = process
        self.said: list[tuple[float, list[str]]] = []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.said.append((time.monotonic(), line.split()))

    def ids(self, verb: str) -> list[str]:
        return [words[1] for _, words in self.said if words[0] == verb]

    def when(self, *words: str) -> float:
        return next(at for at, said in self.said if said[: len(words)] == list(words))

    async def until(self, what: Any) -> None:
        with anyio.fail_after(LIMIT_S):
            while not what():
                await anyio.sleep(0.02)


@contextmanager
def worker(url: str, journal: Path, limit: int) -> Iterator[Worker]:
    with Program("-m", "tests.campaigns.kill.worker", url, journal, limit, text=True) as process:
        running = Worker(process)
        try:
            yield running
        finally:
            process.kill()
            process.wait(LIMIT_S)
            running.reader.join(LIMIT_S)


async def start(url: str, journal: Path, count: int, seconds: float) -> list[str]:
    """Start tools in a process that leaves them: ours."""
    async with TasksClient(url, journal=journal) as client:
        handles = [await client.start_tool("ask_name", {"seconds": seconds}) for _ in range(count)]
        return [str(handle.task_id) for handle in handles]


async def test_what_a_killed_worker_had_is_adopted_by_the_other_within_two_leases(
    real_server: RealServer, tmp_path: Path, anyio_backend: str
) -> None:
    url, journal = real_server.url, tmp_path / "journal.sqlite3"
    with worker(url, journal, 2) as first, worker(url, journal, 1) as second:
        await first.until(lambda: first.said and second.said)
        started = await start(url, journal, 3, seconds=2.0)
        await first.until(lambda: len(second.ids("adopted")) + len(first.ids("adopted")) == 3)
        theirs = first.ids("adopted")
        assert len(theirs) == 2, "its limit"
        assert not {*theirs} & {*second.ids("adopted")}, "what a living worker has"
        first.process.kill()
        killed_at = time.monotonic()
        await second.until(lambda: len(second.ids("done")) == 3)
        assert sorted(second.ids("done")) == sorted(started), "each once"
        assert first.ids("done") == []
        for one in theirs:
            assert second.when("adopted", one) - killed_at < 2 * LEASE_S
    for one in started:
        assert len(real_server.witness(one, "tools/call")) == 1
    async with TasksClient(url, journal=journal) as client:
        assert await client.resume() == []


async def test_workers_with_a_limit_share_what_there_is(
    real_server: RealServer, tmp_path: Path, anyio_backend: str
) -> None:
    url, journal = real_server.url, tmp_path / "journal.sqlite3"
    started = await start(url, journal, 8, seconds=0.5)
    with worker(url, journal, 2) as first, worker(url, journal, 2) as second:
        await first.until(lambda: len(first.ids("done")) + len(second.ids("done")) == 8)
        assert sorted([*first.ids("adopted"), *second.ids("adopted")]) == sorted(started), (
            "each by one of them"
        )
        assert first.ids("adopted")
        assert second.ids("adopted")
