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

__all__ = ["CALLS", "Life", "live"]

Event: TypeAlias = Literal["created", "asked", "answered", "cancels", "result", "error"]

POLL: Final = PollPolicy(backoff_floor_s=0.1, backoff_ceiling_s=1.0)
CALLS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "asks": ("asks", {}, "Hello, {}-name"),
    "together": ("asks_twice", {"together": True}, "{0}-cat and {0}-dog"),
    "one by one": ("asks_twice", {"together": False}, "{0}-cat and {0}-dog"),
    "samples": ("samples", {}, "{}-says"),
    "slow": ("slow", {}, "rested"),
}
"""By what is seen of them: a tool, its arguments, and the text of the result with the lane's name in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What one process is to do."""

    url: str
    journal: str
    log: str
    lane: str
    life: int
    call: str
    duration_ms: int
    cancel_after_s: float | None
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

    def note(event: Event, text: str = "") -> None:
        line = {"at": time.monotonic(), "life": life.life, "event": event, "text": text}
        os.write(log, json.dumps(line).encode() + b"\n")

    thinks = random.Random(f"{life.lane} {life.life}")

    async def answer(context: Any, params: Any) -> ElicitResult:
        whose = params.message.rstrip("?").split()[-1]
        note("asked", whose)
        await anyio.sleep(thinks.choice((0.0, 0.0, 0.1, 0.4)))
        note("answered", whose)
        return ElicitResult(action="accept", content={"name": f"{life.lane}-{whose}"})

    async def sample(context: Any, params: Any) -> CreateMessageResult:
        note("asked", "says")
        await anyio.sleep(thinks.choice((0.0, 0.0, 0.1, 0.4)))
        note("answered", "says")
        content = TextContent(type="text", text=f"{life.lane}-says")
        return CreateMessageResult(role="assistant", content=content, model="m")

    tool, arguments, _ = CALLS[life.call]
    arguments = {**arguments, "duration_ms": life.duration_ms}
    try:
        async with TasksClient(
            life.url, journal=life.journal, elicitation=answer, sampling=sample, poll=POLL
        ) as client:
            handle = await client.start_tool(tool, arguments, idempotency_key="k")
            note("created")
            if life.cancel_after_s is not None:
                with anyio.move_on_after(life.cancel_after_s):
                    result = await handle.result()
                    note("result", result.content[0].text)
                    return
                note("cancels")
                with suppress(SessionError):  # it goes on to be cancelled
                    await handle.cancel()
            result = await handle.result()
            note("result", result.content[0].text)
    except TasksClientError as error:
        note("error", f"{type(error).__name__}: {error}")
