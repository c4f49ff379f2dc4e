"""What a task costs, and a replica that has nothing to do."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import Any, Final

import psutil
from mcp_types import ElicitResult

from mcp_tasks_client import MemoryJournal, PostgresJournal, TasksClient
from mcp_tasks_client.testing import ScriptedServer, ask, complete, form, text_result, work
from tests.postgres import PostgresServer

from .database import Spent, change, logged_statements
from .replica import replica

__all__ = ["of_a_task", "of_an_idle_replica"]

AT_ONCE: Final = (1, 100, 1000)
TASKS: Final = 2000
IDLE_S: Final = 30.0
LEASE_S: Final = 30.0
NOWHERE: Final = "http://127.0.0.1:9/mcp"
"""Nothing listens there. A replica without calls asks no server."""


async def _answer(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def _play(journal: Any, tasks: int, at_once: int) -> None:
    """See tasks through, each with a key, a question, two polls before it and two after, so many at once."""
    server = ScriptedServer(tolerance_s=3600)
    asked = ask("name", form("Your name?", name="string"))
    steps = [work(0.15), asked, work(0.15), complete(text_result("x" * 500))]
    server.tool("greet", steps, poll_interval_ms=100)
    numbers = iter(range(tasks))
    async with TasksClient(server.session(), journal=journal, elicitation=_answer) as client:

        async def calls() -> None:
            for number in numbers:
                await client.call_tool("greet", {"n": number}, idempotency_key=f"call-{number}")

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(calls())


def of_a_task(server: PostgresServer, size: float) -> list[list[str]]:
    """The table: for so many tasks at once, what each of them costs."""
    head = ["a task, of so many at once", "statements", "transactions", "WAL", "CPU of the server"]
    table = [[*head, "CPU of the replica", "more than in memory"]]
    for at_once in AT_ONCE:
        tasks = max(at_once, round((TASKS if at_once > 1 else 60) * size))
        began = time.process_time()
        asyncio.run(_play(MemoryJournal(), tasks, at_once))
        in_memory_s = time.process_time() - began
        spent, began = Spent(server), time.process_time()
        asyncio.run(_play(PostgresJournal(server.dsn, schema=f"spent_{at_once}"), tasks, at_once))
        replica_s = time.process_time() - began
        _, server_s, written, commits = spent.until_now()
        change(server, log_statement="'all'")
        before = logged_statements(server)
        asyncio.run(_play(PostgresJournal(server.dsn, schema=f"counted_{at_once}"), tasks, at_once))
        statements = logged_statements(server) - before
        change(server, log_statement="'none'")
        table.append(
            [
                f"{at_once:,}",
                f"{statements / tasks:.1f}",
                f"{commits / tasks:.2f}",
                f"{written / tasks / 1024:.1f} KB",
                f"{1e3 * server_s / tasks:.2f} ms",
                f"{1e3 * replica_s / tasks:.2f} ms",
                f"{1e3 * (replica_s - in_memory_s) / tasks:.2f} ms",
            ]
        )
    return table


def of_an_idle_replica(server: PostgresServer, size: float) -> list[list[str]]:
    """The table: what idle replicas cost, all together."""
    table = [
        ["idle replicas", "statements a second", "transactions a second", "CPU of one", "CPU of the server"]
    ]
    for count in (1, 10):
        with ExitStack() as stack:
            replicas = [
                stack.enter_context(
                    replica(server.dsn, f"idle_{count}", NOWHERE, f"host-{n}", "adopt", str(LEASE_S))
                )
                for n in range(count)
            ]
            deadline = time.monotonic() + 60
            while not all(one.said for one in replicas) and time.monotonic() < deadline:
                time.sleep(0.1)
            time.sleep(2)
            processes = [psutil.Process(one.process.pid) for one in replicas]
            before_s = sum(sum(one.cpu_times()[:2]) for one in processes)
            spent = Spent(server)
            time.sleep(IDLE_S * size)
            seconds, server_s, _, commits = spent.until_now()
            theirs_s = sum(sum(one.cpu_times()[:2]) for one in processes) - before_s
            change(server, log_statement="'all'")
            before, counted_at = logged_statements(server), time.monotonic()
            time.sleep(IDLE_S * size)
            statements = (logged_statements(server) - before) / (time.monotonic() - counted_at)
            change(server, log_statement="'none'")
        table.append(
            [
                f"{count}",
                f"{statements:.1f}",
                f"{commits / seconds:.2f}",
                f"{1e3 * theirs_s / seconds / count:.1f} ms/s",
                f"{1e3 * server_s / seconds:.1f} ms/s",
            ]
        )
    return table
