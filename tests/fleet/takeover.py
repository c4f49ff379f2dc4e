"""How long it takes until another replica polls what one has had that was killed, or told to stop."""

from __future__ import annotations

import random
import signal
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import anyio

from mcp_tasks_client import TasksClient
from tests.postgres import PostgresServer
from tests.real_server import RealServer, running_server

from .commits import percentile
from .replica import LIMIT_S, Replica, journal_of, replica

__all__ = ["rows"]

LEASE_S: Final = 6.0
ROUNDS: Final = 12
TASKS: Final = 8
POLLED_S: Final = 0.1
"""For so long a poll that was sent before a kill may be on its way."""


def rows(server: PostgresServer, size: float) -> list[list[str]]:
    """The table: from the signal to the first poll by another replica, in leases, and for one of 30 s."""
    table = [["from the signal to the first poll by another", "p50", "p99", "of a lease of 30 s: p50", "p99"]]
    chance = random.Random(1)
    for name, number in (("killed", signal.SIGKILL), ("told to stop", signal.SIGTERM)):
        taken = list[float]()
        for _ in range(max(1, round(ROUNDS * size))):
            # A new server each time, which has not seen many polls.
            with tempfile.TemporaryDirectory() as folder, running_server(Path(folder, "log")) as mcp_server:
                taken += anyio.run(_one_round, server.dsn, mcp_server, number, chance.random())
        p50, p99 = (percentile(taken, share) / LEASE_S for share in (0.5, 0.99))
        cells = [f"{p50:.2f} leases", f"{p99:.2f} leases", f"{30 * p50:.0f} s", f"{30 * p99:.0f} s"]
        table.append([f"{name}, {len(taken)} tasks", *cells])
    return table


async def _one_round(dsn: str, server: RealServer, number: int, moment: float) -> list[float]:
    """Seconds of each task."""
    schema = f"takeover_{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:

        def begin(host: str) -> Replica:
            return stack.enter_context(replica(dsn, schema, server.url, host, "adopt", str(LEASE_S)))

        first = begin("first")
        await first.until(lambda: first.said)
        async with TasksClient(server.url, journal=journal_of(dsn, schema), elicitation="later") as client:
            handles = [
                await client.start_tool("ask_name", {"seconds": 3 * LEASE_S}, idempotency_key=str(one))
                for one in range(TASKS)
            ]
            task_ids = [str(handle.task_id) for handle in handles]
        await first.until(lambda: len(first.words("adopted")) == TASKS)
        second = begin("second")
        await second.until(lambda: second.said)
        await anyio.sleep(LEASE_S * moment)  # so that leases and looks of both are in any state
        first.process.send_signal(number)
        told_at = time.monotonic()
        await second.until(lambda: len(second.words("adopted")) == TASKS)
        with anyio.fail_after(LIMIT_S):
            while not {*task_ids} <= (since := _first_polls(server, told_at)).keys():
                await anyio.sleep(0.2)
    return [since[task_id] - told_at for task_id in task_ids]


def _first_polls(server: RealServer, told_at: float) -> dict[str | None, float]:
    """When each task was polled for the first time by whoever has it now."""
    polls = [one for one in server.witness(method="tasks/get") if one.at > told_at + POLLED_S]
    return {poll.subject: poll.at for poll in reversed(polls)}
