"""A small host in a process of its own, to be killed: it writes down whatever it gets to know.

Run as a module with a :class:`Part` as JSON. It prints ``ready`` before it opens its client, then the kind
of each line of its log, and ends when its stdin closes. Unless it is the last one it goes on until it is
killed.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import anyio
import httpx
from mcp_types import CallToolResult, ElicitResult, TextContent

from mcp_tasks_client import (
    OutcomeUnknownError,
    PollPolicy,
    SessionError,
    SqliteJournal,
    Task,
    TaskHandle,
    TasksClient,
)
from mcp_tasks_client.machine.states import Gathering, Observing

from .evidence import LIFE_HEADER, Log

__all__ = ["Part", "call_of"]

TOOLS: Final = ("greet", "rest", "survey", "first", "quick", "nap")
UNKEYED_TOOLS: Final = ("greet", "rest", "survey", "nap")
CALLS_AT_ONCE: Final = 5
MOST_UNKEYED: Final = 6
MOST_RESUMES: Final = 3
"""What was left is found by the first, and what others let go of meanwhile by the next."""

LONGEST_PROMPT_S: Final = 0.1
KEEPALIVE_S: Final = 3.0
LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one process is to do."""

    url: str
    journal: str
    log: str
    life: int
    seed: int
    keys: list[str]
    last: bool = False
    """Bring everything home, and end."""

    backend: str = "asyncio"

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Self:
        """What :meth:`dump` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class KeyedCall:
    """What a key stands for, in whichever process."""

    tool: str
    arguments: dict[str, Any]
    resend: bool
    """Whether the tool may run twice."""


def call_of(key: str) -> KeyedCall:
    """The call of a key; the number at its end decides."""
    number = int(key.rpartition("-")[2])
    seconds = (number * 7 % 10) * 0.01
    return KeyedCall(TOOLS[number % len(TOOLS)], {"intent": key, "seconds": seconds}, number % 4 < 2)


class Host:
    """Calls, answers, resumes, and keeps a log of it."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.log = Log(Path(part.log))
        self.chance = random.Random(part.seed)
        self.answers = 0
        self.client: TasksClient | None = None
        # No TLS: reading the system's certificates takes longer than most of these processes live. And no
        # connection that the server may be about to drop.
        self.http = httpx.AsyncClient(
            verify=False, trust_env=False, limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S)
        )

    async def live(self) -> None:
        """Everything that there is to do, as long as it may."""
        async with self.opened() as client:
            await self.bring_home(client)
            if not self.part.last:
                await anyio.sleep_forever()
            for _ in range(MOST_RESUMES):
                if not await self.resumed(client):
                    break
            await self.look_for_more(client)
        async with self.opened() as client:
            for handle in await client.resume():
                self.log.write("left", text=f"{handle!r} was returned by resume(), after all was delivered")
        await self.http.aclose()
        self.log.write("done")

    def opened(self) -> TasksClient:
        self.client = TasksClient(
            self.part.url,
            journal=SqliteJournal(self.part.journal),
            elicitation=self.answer,
            http_client=self.http,
            headers={LIFE_HEADER: str(self.part.life)},
            poll=PollPolicy(backoff_floor_s=0.1, backoff_ceiling_s=0.4),
        )
        return self.client

    async def bring_home(self, client: TasksClient) -> None:
        """What others left, calls under keys that others have as well, and calls of our own."""
        async with anyio.create_task_group() as tasks:
            handles = await self.look(client)
            for handle in handles:
                tasks.start_soon(self.guarded, self.await_resumed, handle)
            keys = list(self.part.keys)
            self.chance.shuffle(keys)
            for _ in range(CALLS_AT_ONCE):
                tasks.start_soon(self.call_keyed, client, keys)
            if not self.part.last:
                tasks.start_soon(self.call_unkeyed, client)

    async def guarded(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            await work(*args)
        except Exception as error:
            self.log.write("error", text=f"{work.__name__}: {type(error).__name__}: {error}")

    # ── finding again ──

    async def look(self, client: TasksClient) -> Sequence[TaskHandle]:
        self.log.write("resuming")
        handles = await client.resume()
        self.log.write("resumed", text=f"{len(handles)} handles")
        return handles

    async def resumed(self, client: TasksClient) -> bool:
        """Whether there was anything."""
        handles = await self.look(client)
        for handle in handles:
            await self.guarded(self.await_resumed, handle)
        return bool(handles)

    async def await_resumed(self, handle: TaskHandle) -> None:
        self.delivered(await handle.result(), "resume", task_id=handle.task_id)

    async def look_for_more(self, client: TasksClient) -> None:
        for record in await client.records():
            if record.status != "outcome_unknown" and (not record.finished or record.delivered_at is None):
                self.log.write("left", text=f"{record!r}, key {record.idempotency_key}")

    # ── calling ──

    async def call_keyed(self, client: TasksClient, keys: list[str]) -> None:
        while keys:
            await self.guarded(self.keyed, client, keys.pop())

    async def keyed(self, client: TasksClient, key: str) -> None:
        call = call_of(key)
        self.log.write("begun", intent=key, keyed=True)
        try:
            result = await client.call_tool(call.tool, call.arguments, idempotency_key=key)
        except OutcomeUnknownError:
            self.log.write("unknown", intent=key, keyed=True)
            if not call.resend:
                return
            self.log.write("resend", intent=key, keyed=True)
            try:
                result = await client.call_tool(
                    call.tool, call.arguments, idempotency_key=key, on_unknown="resend"
                )
            except OutcomeUnknownError:
                self.log.write("unknown", intent=key, keyed=True)
                return
        self.delivered(result, "key")

    async def call_unkeyed(self, client: TasksClient) -> None:
        for number in range(MOST_UNKEYED):
            await self.guarded(self.unkeyed, client, f"plain-{self.part.life}-{number}")

    async def unkeyed(self, client: TasksClient, intent: str) -> None:
        seen: list[str] = []

        def note(task: Task) -> None:
            if not seen:
                seen.append(task.task_id)
                self.log.write("task", intent=intent, task_id=task.task_id)

        arguments = {"intent": intent, "seconds": self.chance.uniform(0.0, 0.1)}
        self.log.write("begun", intent=intent)
        try:
            result = await client.call_tool(self.chance.choice(UNKEYED_TOOLS), arguments, on_update=note)
        except SessionError:
            self.log.write("lost", intent=intent)
            return
        self.delivered(result, "call")

    def delivered(self, result: CallToolResult, by: str, *, task_id: str | None = None) -> None:
        (block,) = result.content
        assert isinstance(block, TextContent)
        self.log.write("delivered", by=by, task_id=task_id, **json.loads(block.text))

    # ── answering ──

    async def answer(self, context: Any, params: Any) -> ElicitResult:
        """Answer after a moment, each time differently."""
        intent = params.message.partition(":")[0]
        asked = {
            "intent": intent,
            "question": params.message,
            "key": context.key,
            "task_id": context.task.task_id if context.task is not None else None,
        }
        self.log.write(
            "asked", committed=await self.committed(intent, asked["task_id"], context.key), **asked
        )
        try:
            await anyio.sleep(self.chance.uniform(0.0, LONGEST_PROMPT_S))
        except anyio.get_cancelled_exc_class():
            self.log.write("withdrawn", **asked)
            raise
        self.answers += 1
        words = f"answer {self.answers} of life {self.part.life}"
        self.log.write("answered", text=words, **asked)
        return ElicitResult(
            action="accept", content=dict.fromkeys(params.requested_schema["required"], words)
        )

    async def committed(self, intent: str, task_id: str | None, key: str) -> bool:
        """Whether the journal has an answer to this question at this very moment."""
        assert self.client is not None
        for record in await self.client.records():
            same = record.task_id == task_id if task_id is not None else record.idempotency_key == intent
            if same and isinstance(record.state, Gathering | Observing):
                stages = [question.stage for question in record.state.questions if question.key == key]
                return any(stage not in ("open", "asking") for stage in stages)
        return False


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


async def main(part: Part) -> None:
    host = Host(part)
    with anyio.fail_after(LIMIT_S):
        await host.live()


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    mine = Part.load(sys.argv[1])
    print("ready", flush=True)
    anyio.run(main, mine, backend=mine.backend)
