"""A small host in a process of its own, to be killed: it writes down whatever it gets to know.

Its calls go through a ``TasksClient``, or through an ``mcp.Client`` whose HTTP client or transport sees the
tasks through, or each through an ``mcp.Client``, an extension and a journal object of its own. Whichever it
is, a ``TasksClient`` resumes what others left.

Run as a module with a :class:`Part` as JSON. It prints ``ready`` before it opens its client, then the kind
of each line of its log. Unless it is the last one it goes on until it is killed.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypeAlias

import anyio
import httpx
from mcp_types import CallToolResult, ElicitResult, TextContent

from mcp_tasks_client import (
    Environment,
    Inbox,
    OutcomeUnknownError,
    PollPolicy,
    SessionError,
    SqliteJournal,
    Task,
    TaskHandle,
    TasksClient,
    TasksExtension,
    TasksTransport,
    idempotency_key,
    tasks_http_client,
)
from mcp_tasks_client.machine.states import Gathering, Observing

from .evidence import LIFE_HEADER, Log
from .stops import CALL_SENT, IN_THE_BLOCK, RESULT_COMMITTED, StopAt

if TYPE_CHECKING:
    import mcp

__all__ = ["Part", "Through", "call_of", "stopped_key"]

Through: TypeAlias = Literal["client", "http", "transport", "extension"]
"""How a host makes its calls: by a ``TasksClient``; by an ``mcp.Client`` over ``tasks_http_client`` or a
``TasksTransport``; or by an ``mcp.Client`` with a ``TasksExtension`` for each call."""

TOOLS: Final = ("greet", "rest", "survey", "first", "quick", "nap")
UNKEYED_TOOLS: Final = ("greet", "rest", "survey", "nap")
CALLS_AT_ONCE: Final = 5
MOST_UNKEYED: Final = 6
BURST: Final = 8
LONGEST_PATIENCE_S: Final = 0.3
KEPT_S: Final = 600.0
"""Seconds for which an outcome that was passed to a host's own session can be had again."""

MOST_RESUMES: Final = 3
"""What was left is found by the first, and what others let go of meanwhile by the next."""

LONGEST_PROMPT_S: Final = 0.1
KEEPALIVE_S: Final = 3.0
LIMIT_S: Final = 60.0
POLL: Final = PollPolicy(backoff_floor_s=0.1, backoff_ceiling_s=0.4)
META_KEY: Final = "mcp-tasks-client/idempotency-key"
WRITTEN_S: Final = 1.5
"""Seconds in which a journal has written by itself what it writes a little later."""

MAY_RESEND: Final = 'on_unknown="resend"'
"""In the message of each error that says that an outcome is unknown."""


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

    leaves: float = 0.0
    """Which share of the questions it leaves to others; at 1.0 by ``elicitation="later"``."""

    backend: str = "asyncio"
    through: Through = "client"
    stop: str | None = None
    """The named stop at which it holds its only call; ``None`` has it do all that a host does."""

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


def stopped_key(life: int) -> str:
    """The key, or only the name, of the call that a process holds at a stop: one that asks."""
    return f"stop-{life}-0"


class Call(Protocol):
    """How a host makes a call. ``seen`` is told when there is something to see of its task."""

    async def __call__(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        key: str | None = None,
        on_unknown: Literal["raise", "resend"] = "raise",
        seen: Callable[[], None] | None = None,
    ) -> CallToolResult:
        """Make it.

        Raises:
            OutcomeUnknownError: It has a key, and its reply was lost.
            SessionError: It has no key, and its reply was lost.
        """
        ...


class TortureHost:
    """Calls, answers, resumes, and keeps a log of it."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.log = Log(Path(part.log))
        self.chance = random.Random(part.seed)
        self.answers = 0
        self.clients = 0
        self.client: TasksClient | None = None
        self.stop = None if part.stop is None else StopAt(part.stop, stopped_key(part.life), self.log)
        # No TLS: reading the system's certificates takes longer than most of these processes live. And no
        # connection that the server may be about to drop.
        self.http = httpx.AsyncClient(
            verify=False, trust_env=False, limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S)
        )

    async def live(self) -> None:
        """Everything that there is to do, as long as it may."""
        async with self.opened() as client:
            if self.part.stop is not None:
                await self.call_and_stop(client)
            async with self.calling(client) as call:
                await self.bring_home(client, call)
                if not self.part.last:
                    await anyio.sleep_forever()
            for _ in range(MOST_RESUMES):
                if not await self.resumed(client):
                    break
            for handle in await client.resume(delivered_within_s=KEPT_S):  # to a session that had given up
                await self.guarded(self.await_resumed, handle, "kept")
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
            elicitation=self.callback(),
            http_client=self.http,
            headers={LIFE_HEADER: str(self.part.life)},
            poll=POLL,
            environment=Environment(observer=self.stop),
        )
        return self.client

    @asynccontextmanager
    async def calling(self, client: TasksClient) -> AsyncIterator[Call]:
        """How calls are made, for as long as it is open."""
        if self.part.through == "client":
            yield by_client(client)
            return
        # Imported by this way only, since it takes as long again as all that the other way needs.
        import httpx2
        import mcp
        from mcp.client.streamable_http import streamable_http_client

        if self.part.through == "extension":
            yield by_extensions(self.with_extension)
            return
        if self.part.through == "transport":
            headers = {LIFE_HEADER: str(self.part.life)}
            async with httpx2.AsyncClient(
                headers=headers, verify=False, trust_env=False, timeout=LIMIT_S
            ) as plain:
                transport = TasksTransport(
                    streamable_http_client(self.part.url, http_client=plain),
                    endpoint=self.part.url,
                    journal=SqliteJournal(self.part.journal),
                    elicitation=self.callback(),
                    poll=POLL,
                )
                async with mcp.Client(transport) as session:
                    await session.list_tools()  # else the SDK does so while it holds a result
                    yield by_session(session, by_client(client))
            return
        http = tasks_http_client(
            journal=SqliteJournal(self.part.journal),
            elicitation=self.callback(),
            headers={LIFE_HEADER: str(self.part.life)},
            poll=POLL,
            verify=False,
            trust_env=False,
            limits=httpx2.Limits(keepalive_expiry=KEEPALIVE_S),
        )
        async with http, mcp.Client(streamable_http_client(self.part.url, http_client=http)) as session:
            await session.list_tools()  # else the SDK does so while it holds a result
            yield by_session(session)

    @asynccontextmanager
    async def with_extension(self, seen: Callable[[], None] | None) -> AsyncIterator[mcp.Client]:
        """A client of its own, with all that frameworks make for each call."""
        import httpx2
        import mcp
        from mcp.client.streamable_http import streamable_http_client

        extension = TasksExtension(
            journal=SqliteJournal(self.part.journal),
            endpoint=self.part.url,
            elicitation=self.callback(),
            on_update=None if seen is None else lambda task: seen(),
            poll=POLL,
        )
        headers = {LIFE_HEADER: str(self.part.life)}
        http = httpx2.AsyncClient(headers=headers, verify=False, trust_env=False, timeout=LIMIT_S)
        async with (
            http,
            mcp.Client(
                streamable_http_client(self.part.url, http_client=http), extensions=[extension]
            ) as client,
        ):
            await client.list_tools()  # else the SDK does so while it holds a result
            yield client

    async def bring_home(self, client: TasksClient, call: Call) -> None:
        """What others left, calls under keys that others have as well, and calls of our own."""
        async with anyio.create_task_group() as tasks:
            handles = await self.look(client)
            for handle in handles:
                tasks.start_soon(self.guarded, self.await_resumed, handle)
            keys = list(self.part.keys)
            self.chance.shuffle(keys)
            for _ in range(CALLS_AT_ONCE):
                tasks.start_soon(self.call_keyed, call, keys)
            if not self.part.last:
                tasks.start_soon(self.call_unkeyed, call)
                for number in range(BURST):
                    tasks.start_soon(self.guarded, self.in_burst, call, number)

    async def guarded(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            await work(*args)
        except Exception as error:
            self.log.write("error", text=f"{work.__name__}: {type(error).__name__}: {error}")

    async def call_and_stop(self, client: TasksClient) -> None:
        """One call, which the process holds at its stop. Only one whose reply is lost has a key."""
        stop = self.stop
        assert stop is not None

        async def see(task: Task) -> None:
            if stop.stop == RESULT_COMMITTED and task.terminal:
                await stop.reach()

        its, keyed = call_of(stop.intent), stop.stop == CALL_SENT
        self.log.write("begun", intent=stop.intent, keyed=keyed)
        if stop.stop == IN_THE_BLOCK:
            handle = await client.start_tool(its.tool, its.arguments, label=stop.intent)
            async with handle.outcome():
                await anyio.sleep(WRITTEN_S)
                await stop.reach()
        result = await client.call_tool(
            its.tool,
            its.arguments,
            idempotency_key=stop.intent if keyed else None,
            label=stop.intent,
            on_update=see,
        )
        # The driver polls while an answer is held at its stop. If the kill comes late, the call has ended.
        self.delivered(result, "call")

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

    async def await_resumed(self, handle: TaskHandle, by: str = "resume") -> None:
        self.delivered(await handle.result(), by, task_id=handle.task_id)

    async def look_for_more(self, client: TasksClient) -> None:
        for record in await client.records():
            if record.status != "outcome_unknown" and (not record.finished or record.delivered_at is None):
                self.log.write("left", text=f"{record!r}, key {record.idempotency_key}")
        async with Inbox(self.part.journal) as inbox:
            for question in await inbox.questions():
                self.log.write("left", text=f"{question!r} without an answer")

    # ── calling ──

    async def call_keyed(self, call: Call, keys: list[str]) -> None:
        while keys:
            await self.guarded(self.keyed, call, keys.pop())

    async def keyed(self, call: Call, key: str) -> None:
        its = call_of(key)
        self.log.write("begun", intent=key, keyed=True)
        try:
            result = await call(its.tool, its.arguments, key=key)
        except OutcomeUnknownError:
            self.log.write("unknown", intent=key, keyed=True)
            if not its.resend:
                return
            self.log.write("resend", intent=key, keyed=True)
            try:
                result = await call(its.tool, its.arguments, key=key, on_unknown="resend")
            except OutcomeUnknownError:
                self.log.write("unknown", intent=key, keyed=True)
                return
        self.delivered(result, "key")

    async def call_unkeyed(self, call: Call) -> None:
        for number in range(MOST_UNKEYED):
            await self.guarded(self.unkeyed, call, f"plain-{self.part.life}-{number}")

    async def in_burst(self, call: Call, number: int) -> None:
        """One of many calls at once. Every other one is given up, beneath an extension once it is a task:

        before that, the SDK gives up the request as well.
        """
        intent, patience_s = f"burst-{self.part.life}-{number}", self.chance.uniform(0.0, LONGEST_PATIENCE_S)
        with anyio.CancelScope() as scope:

            def lose_patience() -> None:
                if number % 2:
                    scope.deadline = anyio.current_time() + patience_s

            if self.part.through != "extension":
                lose_patience()
            await self.unkeyed(call, intent, lose_patience)
        if scope.cancelled_caught:
            self.log.write("given up", intent=intent)

    async def unkeyed(self, call: Call, intent: str, then: Callable[[], None] = lambda: None) -> None:
        seen: list[str] = []

        def note() -> None:
            if not seen:
                seen.append(intent)
                self.log.write("task", intent=intent)
                then()

        arguments = {"intent": intent, "seconds": self.chance.uniform(0.0, 0.1)}
        self.log.write("begun", intent=intent)
        try:
            result = await call(self.chance.choice(UNKEYED_TOOLS), arguments, seen=note)
        except SessionError:
            self.log.write("lost", intent=intent)
            return
        self.delivered(result, "call")

    def delivered(self, result: CallToolResult, by: str, *, task_id: str | None = None) -> None:
        (block,) = result.content
        assert isinstance(block, TextContent)
        self.log.write("delivered", by=by, task_id=task_id, **json.loads(block.text))

    # ── answering ──

    def callback(self) -> Any:
        """What another client asks: a callback of its own, or nobody."""
        if self.part.leaves == 1.0:
            return "later"
        self.clients += 1
        client = self.clients

        async def answer(context: Any, params: Any) -> ElicitResult | None:
            return await self.answer(client, context, params)

        return answer

    async def answer(self, client: int, context: Any, params: Any) -> ElicitResult | None:
        """After a moment answer, each time differently, or leave it to others."""
        intent = params.message.partition(":")[0]
        asked = {
            "intent": intent,
            "client": client,
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
        if self.chance.random() < self.part.leaves:
            self.log.write("put off", **asked)
            return None
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


def by_client(client: TasksClient) -> Call:
    """Calls of a ``TasksClient``."""

    async def call(
        tool: str,
        arguments: dict[str, Any],
        *,
        key: str | None = None,
        on_unknown: Literal["raise", "resend"] = "raise",
        seen: Callable[[], None] | None = None,
    ) -> CallToolResult:
        see = None if seen is None else lambda task: seen()
        return await client.call_tool(
            tool, arguments, idempotency_key=key, on_unknown=on_unknown, on_update=see
        )

    return call


def by_session(session: mcp.Client, resend: Call | None = None) -> Call:
    """Calls of the official SDK's client, which sees nothing of a task but its progress and its result.

    Args:
        session: The client.
        resend: Makes the calls that are sent again, where a key can only be in the metadata, which cannot say
            so. ``None`` where a key is given by context.
    """
    from mcp.shared.exceptions import MCPError

    async def call(
        tool: str,
        arguments: dict[str, Any],
        *,
        key: str | None = None,
        on_unknown: Literal["raise", "resend"] = "raise",
        seen: Callable[[], None] | None = None,
    ) -> CallToolResult:
        if resend is not None and on_unknown == "resend":
            return await resend(tool, arguments, key=key, on_unknown=on_unknown, seen=seen)

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            if seen is not None:
                seen()

        # With a progress callback the reply is an event stream, and without one JSON.
        hears = progress if seen is not None else None
        meta: Any = {META_KEY: key} if key is not None and resend is not None else None
        under_key = key is not None and resend is None
        try:
            with idempotency_key(key, on_unknown=on_unknown) if under_key else nullcontext():
                return await session.call_tool(tool, arguments, progress_callback=hears, meta=meta)
        except MCPError as error:
            if MAY_RESEND in error.message:
                raise OutcomeUnknownError(error.message) from error
            if key is None:
                raise SessionError(error.message) from error
            raise

    return call


def by_extensions(
    opened: Callable[[Callable[[], None] | None], AbstractAsyncContextManager[mcp.Client]],
) -> Call:
    """Calls of clients that are made for one call each.

    Args:
        opened: A client with an extension of its own, which is told who wants to see something of the task.
    """

    async def call(
        tool: str,
        arguments: dict[str, Any],
        *,
        key: str | None = None,
        on_unknown: Literal["raise", "resend"] = "raise",
        seen: Callable[[], None] | None = None,
    ) -> CallToolResult:
        failure: Exception
        async with opened(seen) as client:
            try:
                if key is None:
                    return await by_session(client)(tool, arguments)
                async with TasksClient(client) as durable:
                    return await by_client(durable)(tool, arguments, key=key, on_unknown=on_unknown)
            except Exception as error:
                failure = error
        raise failure  # out here, or the client's own task group would wrap it

    return call


async def main(part: Part) -> None:
    host = TortureHost(part)
    with anyio.fail_after(LIMIT_S):
        await host.live()


if __name__ == "__main__":
    mine = Part.load(sys.argv[1])
    if mine.through != "client":  # or most kills would meet the imports
        import mcp.client.streamable_http
    print("ready", flush=True)
    anyio.run(main, mine, backend=mine.backend)
