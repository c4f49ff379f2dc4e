"""A small host, to be killed: it writes down whatever it gets to know."""

from __future__ import annotations

import faulthandler
import itertools
import json
import logging
import math
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

import anyio
import httpx2
from mcp import ClientSession, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, CreateMessageResult, ElicitResult, TextContent

from mcp_tasks_client import (
    InputContext,
    PollPolicy,
    ReceivePolicy,
    SessionError,
    Task,
    TaskHandle,
    TasksClient,
    TasksClientError,
    TasksTransport,
    WaitTimeoutError,
)

__all__ = ["ALIKE", "AS_TASK", "CALLS", "RELATED", "SAYS", "Life", "Way", "live", "mark", "thought"]

Event: TypeAlias = Literal[
    "created",
    "asked",
    "withdrawn",
    "answered",
    "cancels",
    "stops",
    "closes",
    "result",
    "resumed",
    "error",
    "down",
]
Way: TypeAlias = Literal["url", "transport", "resume"]
"""``TasksClient(url)``, or a session of the SDK's over ``TasksTransport(...)``; and
``TasksClient(url).resume()`` for what the last one has left."""

POLL: Final = PollPolicy(backoff_floor_s=0.1, backoff_ceiling_s=1.0)

HTTP_S: Final = 300.0
"""Seconds of silence after which a request of the SDK's is given up."""

_SLICES: Final = 12
"""Times that somebody impatient stops to wait, before waiting to the end."""

_CLOSES: Final = 3
"""The same of a client that is closed."""

RELATED: Final = "io.modelcontextprotocol/related-task"
SAYS: Final = "says"
"""In place of the message that a sampling does not have."""

ALIKE: Final = "pet"
"""What is asked for twice in the same words. Each answer has a number: there are to be two."""

AS_TASK: Final = {
    "asks": "asks as task",
    "together": "asks as task",
    "samples": "samples as task",
    "one by one": "samples as task",
    "alike": "asks as task",
    "alike together": "samples as task",
    "branches": "asks as task",
}
"""In their place, with a question that the host is to make a task of."""

CALLS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "asks": ("asks", {}, "Hello, {}-name"),
    "together": ("asks_twice", {"together": True}, "{0}-cat and {0}-dog"),
    "one by one": ("asks_twice", {"together": False}, "{0}-cat and {0}-dog"),
    "alike": ("asks_twice", {"together": False, "alike": True}, "{0}-pet and {0}-pet"),
    "alike together": ("asks_twice", {"together": True, "alike": True}, "{0}-pet and {0}-pet"),
    "branches": ("asks_in_branches", {"stagger_ms": 100}, "{0}-cat, {0}-kitten and {0}-dog"),
    "samples": ("samples", {}, "{}-says"),
    "slow": ("slow", {}, "rested"),
    "asks as task": ("asks_as_task_inside", {}, "{}-name"),
    "samples as task": ("samples_as_task_inside", {}, "{}-says"),
}
"""By what is seen of them: a tool, its arguments, and the text of the result with the task's mark in it."""


def mark(task_id: str) -> str:
    """By which what is answered for a task can be told from all else."""
    return task_id[-8:]


def thought(task_id: str, message: str) -> str:
    """What is answered to a question; no other one has this answer, but for those that are alike."""
    return f"{mark(task_id)}-{message.rstrip('?').split()[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What one process is to do."""

    way: Way
    url: str
    journal: str
    log: str
    life: int
    calls: tuple[str, ...]
    duration_ms: int
    cancel_after_s: float | None
    """Of the first of them; ``None`` for not at all."""

    looks_ms: int
    """Between the looks of the server at what it has us run."""

    seed: int
    impatient: bool = False
    """Whether callers stop to wait, and wait again."""

    reopens: bool = False
    """Whether it closes its client now and then, and goes on with another."""

    two: bool = False
    """Whether it has two clients over one journal, and goes now to one of them and now to the other."""

    debug: str | None = None

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def live(life: Life) -> None:
    """Run one process."""
    faulthandler.enable()  # so that one that dies of itself says where
    if life.debug is not None:
        logging.basicConfig(
            filename=life.debug, level=logging.DEBUG, format="%(asctime)s %(name)s %(message)s"
        )
    anyio.run(StormHost(life).live)


class StormHost:
    """One process.

    Args:
        life: What it is to do.
    """

    def __init__(self, life: Life) -> None:
        self._life = life
        self._log = os.open(life.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._thinks = random.Random(f"{life.seed} {life.life}")
        self._created: set[str] = set()
        self._moods = random.Random(f"moods {life.seed} {life.life}")
        self._asked = itertools.count()
        self._closed = 0

    async def live(self) -> None:
        """Do what is to be done."""
        match self._life.way:
            case "url":
                while not await self._live_with_a_client():
                    self._note("closes", -1)
            case "resume":
                async with (
                    TasksClient(self._life.url, **self._own, **self._answers) as client,
                    anyio.create_task_group() as tasks,
                ):
                    for handle in await client.resume():
                        tasks.start_soon(self._see_through, handle)
            case "transport":
                try:
                    await self._live_with_a_session()
                except Exception as error:
                    # The SDK's session ends for what it cannot send, with an error of its own choice.
                    self._note("down", -1, f"{type(error).__name__}: {error}")
                else:  # it may have ended all the same, if what it could not send was a notification
                    self._note("closes", -1)

    async def _live_with_a_client(self) -> bool:
        """Call all, with one client. Returns whether it came to the end of that."""
        for_s = self._moods.uniform(0.2, 2.0) if self._life.reopens and self._closed < _CLOSES else math.inf
        self._closed += 1
        async with AsyncExitStack() as opened:
            clients = [
                await opened.enter_async_context(
                    TasksClient(self._life.url, **self._own, **self._answers, receive=self._receive)
                )
                for _ in range(1 + self._life.two)
            ]
            with anyio.move_on_after(for_s) as limited:
                await self._call_all(*clients)
        return not limited.cancelled_caught

    async def _live_with_a_session(self) -> None:
        async with self._session(**self._own, **self._answers, on_update=self._updated) as session:
            await self._call_all(session)

    @property
    def _own(self) -> dict[str, Any]:
        return {"journal": self._life.journal, "poll": POLL}

    @property
    def _receive(self) -> ReceivePolicy:
        return ReceivePolicy(poll_interval_ms=self._life.looks_ms)

    @property
    def _answers(self) -> dict[str, Any]:
        return {"elicitation": self._elicit, "sampling": self._sample}

    @asynccontextmanager
    async def _session(self, **tasks: Any) -> AsyncIterator[ClientSession]:
        """A session of the SDK's over a transport of ours."""
        session_ids: list[str] = []

        async def note_session(response: httpx2.Response) -> None:
            session_ids.extend(response.headers.get_list("mcp-session-id"))

        async with httpx2.AsyncClient(event_hooks={"response": [note_session]}, timeout=HTTP_S) as http:
            transport = TasksTransport(
                streamable_http_client(self._life.url, http_client=http, terminate_on_close=False),
                endpoint=self._life.url,
                session_id=lambda: session_ids[-1] if session_ids else None,
                **tasks,
            )
            answers: dict[str, Any] = {
                "elicitation_callback": self._elicit,
                "sampling_callback": self._sample,
            }
            async with transport as (read, write, *_), ClientSession(read, write, **answers) as session:
                await session.initialize()
                yield session

    # ── calls ──

    async def _call_all(self, *clients: TasksClient | ClientSession) -> None:
        async with anyio.create_task_group() as tasks:
            for number, call in enumerate(self._life.calls):
                tool, arguments, _ = CALLS[call]
                arguments = {**arguments, "duration_ms": self._life.duration_ms}
                ours = [client for client in clients if isinstance(client, TasksClient)]
                if ours:
                    tasks.start_soon(self._call, ours, number, tool, arguments)
                for client in clients:
                    if isinstance(client, ClientSession):
                        tasks.start_soon(self._call_plainly, client, number, tool, arguments)

    async def _call(
        self, clients: list[TasksClient], number: int, tool: str, arguments: dict[str, Any]
    ) -> None:
        after_s, key = self._life.cancel_after_s if number == 0 else None, f"k{number}"
        try:
            if self._life.impatient and after_s is None:
                self._note("result", number, text_of(await self._in_slices(clients, number, tool, arguments)))
                return
            handle = await self._moods.choice(clients).start_tool(tool, arguments, idempotency_key=key)
            self._note("created", number, mark(handle.task_id or ""))
            with anyio.move_on_after(math.inf if after_s is None else after_s):
                self._note("result", number, text_of(await handle.result()))
                return
            self._note("cancels", number)
            with suppress(SessionError):  # it goes on to be cancelled
                await handle.cancel()
            self._note("result", number, text_of(await handle.result()))
        except TasksClientError as error:
            self._note("error", number, f"{type(error).__name__}: {error}")

    async def _in_slices(
        self, clients: list[TasksClient], number: int, tool: str, arguments: dict[str, Any]
    ) -> CallToolResult:
        """As somebody waits who has something else to do now and then."""
        key, created = f"k{number}", False
        for seconds in [*(self._moods.uniform(0.05, 0.6) for _ in range(_SLICES)), None]:
            client = self._moods.choice(clients)
            try:
                result = await client.call_tool(tool, arguments, timeout=seconds, idempotency_key=key)
            except WaitTimeoutError:
                result = None
                self._note("stops", number)
            ids = {one.idempotency_key: one.task_id for one in await client.records()}
            task_id = ids.get(key)
            if task_id is not None and not created:
                created = True
                self._note("created", number, mark(task_id))
            if result is not None:
                return result
            await anyio.sleep(self._moods.choice((0.0, 0.0, 0.05, 0.3)))
        raise AssertionError("the last one waits to the end")

    async def _call_plainly(
        self, session: ClientSession, number: int, tool: str, arguments: dict[str, Any]
    ) -> None:
        """As a host does that knows nothing of tasks."""
        try:
            self._note("result", number, text_of(await session.call_tool(tool, arguments)))
        except MCPError as error:
            self._note("error", number, f"MCPError: {error}")

    def _updated(self, task: Task) -> None:
        """What such a host cannot see: that a task has been made of its call."""
        if task.task_id not in self._created:
            self._created.add(task.task_id)
            self._note("created", -1, mark(task.task_id))

    async def _see_through(self, handle: TaskHandle) -> None:
        whose = f"{handle.tool} {mark(handle.task_id or '')}"
        try:
            self._note("resumed", -1, f"{whose} {text_of(await handle.result())}")
        except TasksClientError as error:
            self._note("resumed", -1, f"{whose} {type(error).__name__}: {error}")

    # ── questions ──

    async def _elicit(self, context: Any, params: Any) -> ElicitResult:
        said = await self._thought(context, params, params.message)
        return ElicitResult(action="accept", content={"name": said})

    async def _sample(self, context: Any, params: Any) -> CreateMessageResult:
        content = TextContent(type="text", text=await self._thought(context, params, SAYS))
        return CreateMessageResult(role="assistant", content=content, model="m")

    async def _thought(self, context: Any, params: Any, message: str) -> str:
        assert isinstance(context, InputContext), "a session's own callbacks are not told of a task"
        # What is a task of ours is marked with the server's.
        task_id = params.meta[RELATED]["taskId"] if context.task is None else context.task.task_id
        said = thought(task_id, message)
        if said.endswith(ALIKE):
            said += f"#{self._life.life}.{next(self._asked)}"
        self._note("asked", -1, said)
        try:
            await anyio.sleep(self._thinks.choice((0.0, 0.0, 0.1, 0.4)))
        except anyio.get_cancelled_exc_class():
            self._note("withdrawn", -1, said)
            raise
        self._note("answered", -1, said)
        return said

    def _note(self, event: Event, call: int, text: str = "") -> None:
        line = {"at": time.monotonic(), "life": self._life.life, "event": event, "call": call, "text": text}
        os.write(self._log, json.dumps(line).encode() + b"\n")


def text_of(result: Any) -> str:
    """The text of a result; or of what a task of ours came to, as the server tells it again."""
    answer = (result.structured_content or {}).get("result", {}).get("content")
    return str(result.content[0].text if answer is None else answer.get("name") or answer.get("text"))


if __name__ == "__main__":
    live(Life(**json.loads(sys.argv[1])))
