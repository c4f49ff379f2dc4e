"""A small host, to be killed: it writes down whatever it gets to know."""

from __future__ import annotations

import json
import os
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import anyio
from mcp_types import CreateMessageResult, ElicitResult, TextContent

from mcp_tasks_client import PollPolicy, SessionError, TasksClient, TasksClientError

__all__ = ["CALLS", "Life", "live", "mark"]

Event: TypeAlias = Literal["created", "asked", "answered", "cancels", "result", "error"]

POLL: Final = PollPolicy(backoff_floor_s=0.1, backoff_ceiling_s=1.0)
CALLS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "asks": ("asks", {}, "Hello, {}-name"),
    "together": ("asks_twice", {"together": True}, "{0}-cat and {0}-dog"),
    "one by one": ("asks_twice", {"together": False}, "{0}-cat and {0}-dog"),
    "samples": ("samples", {}, "{}-says"),
    "slow": ("slow", {}, "rested"),
}
"""By what is seen of them: a tool, its arguments, and the text of the result with the task's mark in it."""


def mark(task_id: str) -> str:
    """By which what is answered for a task can be told from all else."""
    return task_id[-8:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What one process is to do."""

    url: str
    journal: str
    log: str
    life: int
    calls: tuple[str, ...]
    duration_ms: int
    cancel_after_s: float | None
    """Of the first of them; ``None`` for not at all."""

    seed: int
    debug: str | None = None


def live(life: Life) -> None:
    """Run one process."""
    if life.debug is not None:
        import logging

        logging.basicConfig(
            filename=life.debug, level=logging.DEBUG, format="%(asctime)s %(name)s %(message)s"
        )
    anyio.run(_live, life)


async def _live(life: Life) -> None:
    log = os.open(life.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(event: Event, call: int, text: str = "") -> None:
        line = {"at": time.monotonic(), "life": life.life, "event": event, "call": call, "text": text}
        os.write(log, json.dumps(line).encode() + b"\n")

    thinks = random.Random(f"{life.seed} {life.life}")

    async def thought(context: Any, what: str) -> str:
        said = f"{mark(context.task.task_id)}-{what}"
        note("asked", -1, said)
        await anyio.sleep(thinks.choice((0.0, 0.0, 0.1, 0.4)))
        note("answered", -1, said)
        return said

    async def answer(context: Any, params: Any) -> ElicitResult:
        said = await thought(context, params.message.rstrip("?").split()[-1])
        return ElicitResult(action="accept", content={"name": said})

    async def sample(context: Any, params: Any) -> CreateMessageResult:
        content = TextContent(type="text", text=await thought(context, "says"))
        return CreateMessageResult(role="assistant", content=content, model="m")

    async def make(number: int) -> None:
        tool, arguments, _ = CALLS[life.calls[number]]
        arguments = {**arguments, "duration_ms": life.duration_ms}
        try:
            handle = await client.start_tool(tool, arguments, idempotency_key=f"k{number}")
            note("created", number, mark(handle.task_id))
            if life.cancel_after_s is not None and number == 0:
                with anyio.move_on_after(life.cancel_after_s):
                    result = await handle.result()
                    note("result", number, result.content[0].text)
                    return
                note("cancels", number)
                with suppress(SessionError):  # it goes on to be cancelled
                    await handle.cancel()
            result = await handle.result()
            note("result", number, result.content[0].text)
        except TasksClientError as error:
            note("error", number, f"{type(error).__name__}: {error}")

    async with (
        TasksClient(life.url, journal=life.journal, elicitation=answer, sampling=sample, poll=POLL) as client,
        anyio.create_task_group() as tasks,
    ):
        for number in range(len(life.calls)):
            tasks.start_soon(make, number)
