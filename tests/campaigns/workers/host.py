"""A worker, or somebody who answers, in a process of its own: it writes down what it gets to know.

``python -m tests.campaigns.workers.host work|answer URL JOURNAL LOG LIFE``. It prints ``ready``, and ends
when its standard input closes. A worker adopts calls, sees them through, and leaves every question to others.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Final

import anyio
import httpx

from mcp_tasks_client import AlreadyAnsweredError, Question, QuestionWithdrawnError, TaskHandle, TasksClient
from mcp_tasks_client.engine.environment import Environment

from ..kill.host import _end_with_parent
from ..torture.evidence import LIFE_HEADER, Log

__all__ = ["LEASE_S"]

LEASE_S: Final = 5.0
_LOOK_S: Final = 0.1
_ATTEMPTS: Final = 50


async def work(client: TasksClient, log: Log) -> None:
    async def see(handle: TaskHandle) -> None:
        async with handle.outcome() as result:
            told = json.loads(result.content[0].text)  # type: ignore[union-attr]  # a text
            log.write("delivered", task_id=handle.task_id, **told)

    async with anyio.create_task_group() as tasks:
        print("ready", flush=True)
        async for handle in client.adopt():
            log.write("resumed", task_id=handle.task_id)
            tasks.start_soon(see, handle)


async def answer(client: TasksClient, log: Log, life: str) -> None:
    """Answer whatever anybody asks, each time otherwise; see that nothing asks again."""
    answered: set[str] = set()
    print("ready", flush=True)
    while True:
        for question in await client.questions():
            if question.question_id in answered:
                log.write("error", text=f"{question.question_id} is asked again")
            else:
                await answer_one(question, log, f"answer {len(answered)} of {life}")
                answered.add(question.question_id)
        await anyio.sleep(_LOOK_S)


async def answer_one(question: Question, log: Log, words: str) -> None:
    message = question.params.message  # type: ignore[union-attr]  # a form
    try:
        await question.accept({"name": words})
    except (AlreadyAnsweredError, QuestionWithdrawnError):
        return
    log.write("answered", intent=message.partition(":")[0], question=question.question_id, text=words)


async def main(what: str, url: str, journal: str, path: str, life: str) -> None:
    log, environment = Log(Path(path)), Environment(lease_s=LEASE_S)
    # No TLS: reading the system's certificates takes longer than most of these processes live.
    http = httpx.AsyncClient(verify=False, trust_env=False)
    client = TasksClient(
        url,
        journal=journal,
        elicitation="later",
        http_client=http,
        headers={LIFE_HEADER: life},
        environment=environment,
    )
    async with http, client:
        await (work(client, log) if what == "work" else answer(client, log, life))


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    anyio.run(main, *sys.argv[1:])
