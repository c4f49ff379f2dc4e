"""A replica in a process of its own, on a host of its own as far as others can tell.

``python -m tests.fleet.replica DSN SCHEMA URL HOST adopt [LEASE]`` adopts calls and sees them through, on a
lease of so many seconds, until SIGTERM; ``… HOST call KEY TOKEN`` calls a tool under a key. It says what it
does, a line for each.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import anyio
from mcp_types import ElicitResult

from mcp_tasks_client import Environment, PostgresJournal, TaskHandle, TasksClient, TasksClientError
from mcp_tasks_client.engine.process import Process
from tests._forked import Program

__all__ = ["LEASE_S", "LIMIT_S", "Replica", "journal_of", "replica"]

LEASE_S: Final = 3.0
LIMIT_S: Final = 30.0


class Replica:
    """A running replica, and what it has said: words, and when they came."""

    def __init__(self, process: Program) -> None:
        self.process = process
        self.said: list[tuple[float, list[str]]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.said.append((time.monotonic(), line.split()))

    def words(self, verb: str) -> list[str]:
        """What has followed a word until now, each time."""
        return [" ".join(words[1:]) for _, words in self.said if words[0] == verb]

    async def until(self, what: Any) -> None:
        """Return once the condition holds."""
        with anyio.fail_after(LIMIT_S):
            while not what():
                assert self.process.poll() is None or self._reader.is_alive() or what()
                await anyio.sleep(0.02)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)


@contextmanager
def replica(dsn: str, schema: str, url: str, host: str, *what: str) -> Iterator[Replica]:
    """Start one. It is killed at the end of the block if it still runs."""
    with Program("-m", __name__, dsn, schema, url, host, *what, text=True) as process:
        running = Replica(process)
        try:
            yield running
        finally:
            running.end()


def journal_of(dsn: str, schema: str) -> PostgresJournal:
    return PostgresJournal(dsn, schema=schema)


def on_host(name: str, lease_s: float = LEASE_S) -> Environment:
    """An environment on another host than all others."""
    return Environment(process=replace(Process.current(), host=name), lease_s=lease_s)


async def answer(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def see(handle: TaskHandle) -> None:
    try:
        async with handle.outcome() as result:
            print(f"done {handle.task_id} {result.content[0].text}", flush=True)  # type: ignore[union-attr]
    except TasksClientError as error:
        print(f"lost {handle.task_id} {type(error).__name__}", flush=True)


async def main(dsn: str, schema: str, url: str, host: str, what: str, *words: str) -> None:
    journal = journal_of(dsn, schema)
    environment = on_host(host, *map(float, words if what == "adopt" else ()))
    with anyio.open_signal_receiver(signal.SIGTERM) as told_to_stop:
        async with (
            TasksClient(url, journal=journal, elicitation=answer, environment=environment) as client,
            anyio.create_task_group() as tasks,
        ):
            if what == "call":
                print("ready", flush=True)
                key, token = words
                arguments = {"token": token, "seconds": 0.5}
                result = await client.call_tool("count", arguments, idempotency_key=key)
                print(f"done {result.content[0].text}", flush=True)  # type: ignore[union-attr]  # a text
                return
            tasks.start_soon(adopt, client)
            async for _ in told_to_stop:
                tasks.cancel_scope.cancel()
                break


async def adopt(client: TasksClient) -> None:
    async with anyio.create_task_group() as tasks:
        print("ready", flush=True)
        async for handle in client.adopt():
            print(f"adopted {handle.task_id}", flush=True)
            tasks.start_soon(see, handle)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
