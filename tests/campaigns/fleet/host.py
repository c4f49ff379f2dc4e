"""A replica, on a host of its own as far as others can tell: it adopts calls, and answers what they ask.

``python -m tests.campaigns.fleet.host URL DSN LOG LIFE``. It prints ``ready``, writes down what it gets to
know, and hands over what it has at SIGTERM, upon which it ends.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
from mcp_types import ElicitResult

from mcp_tasks_client import PostgresJournal, TasksClient
from mcp_tasks_client.engine.environment import Environment
from mcp_tasks_client.engine.process import Process

from ..adopting import adopt_all
from ..torture.evidence import LIFE_HEADER, Log

__all__ = ["LEASE_S", "LIMIT", "environment"]

LEASE_S: Final = 6.0
LIMIT: Final = 25
"""How many calls a replica sees to at once, so that there is something left for others."""

THINKS_S: Final = 0.3
"""How long an answer takes, so that some who think are interrupted."""


def environment(host: str) -> Environment:
    return Environment(process=replace(Process.current(), host=host), lease_s=LEASE_S)


async def main(url: str, dsn: str, path: str, life: str) -> None:
    log = Log(Path(path))

    async def answer(context: Any, params: Any) -> ElicitResult:
        question = str(params.message)
        log.write("asked", intent=question.partition(":")[0], question=question)
        await anyio.sleep(THINKS_S)
        text = f"life {life} to {question}"
        log.write("answered", intent=question.partition(":")[0], question=question, text=text)
        return ElicitResult(action="accept", content={"name": text})

    # No TLS: reading the system's certificates takes longer than some of these processes live.
    http = httpx.AsyncClient(verify=False, trust_env=False)
    client = TasksClient(
        url,
        journal=PostgresJournal(dsn),
        elicitation=answer,
        http_client=http,
        headers={LIFE_HEADER: life},
        environment=environment(f"host-{life}"),
    )
    with anyio.open_signal_receiver(signal.SIGTERM) as told_to_stop:
        async with http, client, anyio.create_task_group() as tasks:
            tasks.start_soon(adopt_all, client, log, LIMIT)
            async for _ in told_to_stop:
                tasks.cancel_scope.cancel()
                break


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
