"""A host whose event loop is closed under its open client, with a call waiting. See ``test_closed_loop.py``.

The argument is JSON: ``url``; ``journal``, the path of a file, the DSN of a database, or ``memory``;
``schema`` of the database; ``keeps``, what global variables of the host refer to; ``left``, how the
loop is left. After each line of its standard input, the host repeats the call in a new loop, and prints its
result.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from mcp_tasks_client import (
    BlockingTasksClient,
    Inbox,
    Journal,
    MemoryJournal,
    PostgresJournal,
    SqliteJournal,
    TasksClient,
    TasksClientError,
)
from tests._results import text
from tests.kit.current_server import LIMIT_S, QUICK

KEPT = list[object]()


class SoftTimeLimitError(Exception):
    """Such as Celery's, which is raised wherever the main thread is."""


class Host:
    """The host, by what it was told."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.journal: Journal | None = self.make_journal()
        if options["keeps"] != "nothing":
            KEPT.append(self.journal)

    def make_journal(self) -> Journal:
        match self.options:
            case {"journal": "memory"}:
                return MemoryJournal()
            case {"schema": schema, "journal": dsn}:
                return PostgresJournal(dsn, schema=schema)
            case _:
                return SqliteJournal(self.options["journal"])

    def make_client(self, make: Any = TasksClient) -> Any:
        journal = self.make_journal() if self.journal is None else self.journal
        client = make(self.options["url"], journal=journal, poll=QUICK)
        if self.options["keeps"] == "client":
            KEPT.append(client)
        return client

    async def call_and_raise(self, client: TasksClient, error: BaseException) -> None:
        """Raise once a call has a task, which is waited for."""
        has_task = asyncio.Event()
        inbox = Inbox(self.journal)
        await client.__aenter__()
        await inbox.__aenter__()
        if self.options["keeps"] == "client":
            KEPT.append(inbox)
        calling = asyncio.ensure_future(
            client.call_tool("tool", idempotency_key="key", on_update=lambda task: has_task.set())
        )
        await has_task.wait()
        if self.options["keeps"] == "client":
            KEPT.append(calling)
        raise error

    def leave(self) -> None:
        """Have a client open and a call waiting, and leave the loop."""
        match self.options["left"]:
            case "closed":
                loop = asyncio.new_event_loop()
                with suppress(SoftTimeLimitError):
                    loop.run_until_complete(self.call_and_raise(self.make_client(), SoftTimeLimitError()))
                loop.close()
            case "KeyboardInterrupt" | "SystemExit" as name:
                error = {"KeyboardInterrupt": KeyboardInterrupt(), "SystemExit": SystemExit()}[name]
                with suppress(KeyboardInterrupt, SystemExit):
                    asyncio.run(self.call_and_raise(self.make_client(), error))
            case "thread":
                self.leave_thread()
        if self.options["keeps"] == "nothing":
            self.journal = None

    def leave_thread(self) -> None:
        """The same, where the loop is that of a blocking client, and host's code ends it."""

        async def end_thread(task: object) -> None:
            raise SystemExit

        client = self.make_client(BlockingTasksClient)
        with client:
            for _ in range(2):
                with pytest.raises(TasksClientError, match="event loop was ended"):
                    client.call_tool("tool", idempotency_key="key", on_update=end_thread)

    async def repeat(self) -> str:
        with anyio.fail_after(LIMIT_S):
            for client in [one for one in KEPT if isinstance(one, TasksClient)]:
                await self.use_and_close(client)
            async with self.make_client() as client:
                return text(await client.call_tool("tool", idempotency_key="key"))

    async def use_and_close(self, client: TasksClient) -> None:
        """A client whose loop has closed says so, and closing it waits for nothing."""
        with pytest.raises(TasksClientError, match="closed"):
            await client.call_tool("tool", idempotency_key="key")
        await client.__aexit__(None, None, None)

    def say(self, work: Callable[[], Any]) -> None:
        try:
            said = work()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        print(str(said).replace("\n", " "), flush=True)


if __name__ == "__main__":
    host = Host(json.loads(sys.argv[1]))
    host.leave()
    print("left", flush=True)
    for _ in sys.stdin:
        host.say(lambda: asyncio.run(host.repeat()))
