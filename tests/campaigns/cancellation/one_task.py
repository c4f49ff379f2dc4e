"""One tool that makes one task that asks one question, and a witness of all of it.

The server keeps its state over any number of clients, so that a second one goes on where the
first was stopped; :meth:`Setup.promises` is what can be held against both of them afterwards.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from mcp_types import CallToolResult, ElicitResult, Tool

from mcp_tasks_client import (
    ConnectionLostError,
    Environment,
    Instruction,
    Journal,
    JournalError,
    Limits,
    MemoryJournal,
    PollPolicy,
    Scope,
    Session,
    Snapshot,
    TaskRecord,
    TaskRef,
    TasksClient,
    ToolCall,
)
from mcp_tasks_client.machine.states import Observing
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.params import call_params, task_params
from mcp_tasks_client.protocol.replies import CallReply, read_call_reply
from mcp_tasks_client.protocol.task import read_task
from mcp_tasks_client.sessions.base import BeforeSend
from mcp_tasks_client.testing import cancelled, completed, input_required, working

from .loopback import Loopback
from .stops import LIMIT_S, QuickClock

__all__ = ["TASK_ID", "Doings", "InMemory", "OneTaskServer", "Setup", "SetupOverHttp"]

TASK_ID: Final = "task-0123456789abcdef"
HINT_S: Final = 1.0
HINT: Final[JSONObject] = {"poll_interval_ms": HINT_S * 1000}
RESULT: Final[JSONObject] = {"content": [{"type": "text", "text": "done"}], "structuredContent": {"n": 1}}
TOOL: Final[JSONObject] = {
    "name": "tool",
    "inputSchema": {"type": "object"},
    "outputSchema": {"type": "object", "required": ["n"]},
}
QUESTION: Final[JSONObject] = {
    "method": "elicitation/create",
    "params": {
        "message": "How many?",
        "requestedSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}


class OneTaskServer:
    """What happens at the server, whatever brings the requests there.

    The task works, asks, shows its question once more after the answer, as real servers do, works
    and completes.

    Args:
        clock: Stamps the polls.
        rounds: What ``tools/call`` wants before the task: ``"question"``, or ``"state"`` for a round
            that only hands out state.
        at_once: Whether ``tools/call`` returns the result instead of a task.
        brief: Leave out whatever is not needed to ask and to complete.
        paced: Whether to look out for polls that come too early.

    Attributes:
        calls: ``tools/call`` by the number of rounds before it.
        answers: All that ever came, by question.
    """

    def __init__(
        self,
        clock: QuickClock,
        *,
        rounds: Sequence[str] = (),
        at_once: bool = False,
        brief: bool = False,
        paced: bool = True,
    ) -> None:
        self.calls: Counter[int] = Counter()
        self.answers: defaultdict[str, list[JSONObject]] = defaultdict(list)
        self.created = False
        self.polls = 0
        self.cancels = 0
        self.early_polls: list[str] = []
        self.completed = False
        self._clock = clock
        self._rounds = rounds
        self._at_once = at_once
        self._paced = paced
        self._not_before = 0.0
        self._before_the_question = [] if brief else ["working"]
        self._after_the_answer = [] if brief else ["input_required", "working"]

    def handle(self, method: str, params: Mapping[str, Any]) -> JSONObject:
        """The result of a request."""
        match method:
            case "tools/call":
                return self._call(params)
            case "tasks/get":
                return self._get()
            case "tasks/update":
                self._take(params["inputResponses"])
                return {}
            case "tasks/cancel":
                self.cancels += 1
                return {}
            case "tools/list":
                return {"tools": [TOOL]}
            case "server/discover":
                return {"supportedVersions": ["2026-07-28"]}
            case _:
                raise AssertionError(f"no client should send {method}")

    def create(self) -> None:
        """Make the task, as if somebody had called the tool."""
        self.created = True

    def _call(self, params: Mapping[str, Any]) -> JSONObject:
        done = int(params.get("requestState", "0"))
        self.calls[done] += 1
        self._take(params.get("inputResponses", {}))
        if done < len(self._rounds):
            asked = {f"round-{done}": QUESTION} if self._rounds[done] == "question" else {}
            return {"resultType": "input_required", "inputRequests": asked, "requestState": str(done + 1)}
        if self._at_once:
            self.completed = True
            return RESULT
        self.create()
        self._not_before = self._clock.monotonic() + HINT_S
        return working(TASK_ID, **HINT)

    def _get(self) -> JSONObject:
        now = self._clock.monotonic()
        if self._paced and now < self._not_before - 1e-6:  # the wall clock's resolution
            self.early_polls.append(f"{self._not_before - now:.3f} s too early")
        self.polls += 1
        if self.cancels and not self.completed:
            return cancelled(TASK_ID)
        answered = "question" in self.answers
        script = self._after_the_answer if answered else self._before_the_question
        status = script.pop(0) if script else "completed" if answered else "input_required"
        self._not_before = now + HINT_S
        match status:
            case "working":
                return working(TASK_ID, **HINT)
            case "input_required":
                return input_required(TASK_ID, {"question": QUESTION}, **HINT)
            case _:
                self.completed = True
                return completed(TASK_ID, RESULT)

    def _take(self, answers: Mapping[str, JSONObject]) -> None:
        for key, answer in answers.items():
            self.answers[key].append(answer)


class Doings(Counter[str]):
    """What is under way, by kind.

    Attributes:
        frozen: Whether the server and the host have stopped in the middle of things, for good, so that
            whatever still waits for them is not over until it is cancelled.
    """

    frozen = False

    @contextmanager
    def one(self, kind: str) -> Iterator[None]:
        self[kind] += 1
        try:
            yield
        finally:
            self[kind] -= 1

    def now(self) -> frozenset[str]:
        return frozenset(+self)

    async def turn(self) -> None:
        """Let the event loop go on."""
        if self.frozen:
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()


class InMemory(Session):
    """The server, a few turns of the event loop away.

    Args:
        server: Where requests go.
        doings: Where they are noted.
        never_replies: Whether the reply to ``tools/call`` is lost, after some time.
    """

    def __init__(self, server: OneTaskServer, doings: Doings, *, never_replies: bool = False) -> None:
        self._server = server
        self._doings = doings
        self._never_replies = never_replies
        self.closed = False

    @property
    def endpoint(self) -> str:
        return "in-memory"

    @property
    def limits(self) -> Limits:
        return Limits()

    async def tool(self, name: str, *, fresh: bool = False, context: object = None) -> Tool | None:
        await self._send("tools/list", {})
        return Tool.model_validate(TOOL)

    async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
        await before_send()
        params = call_params(
            call.name,
            call.arguments,
            input_responses=call.input_responses,
            request_state=call.request_state,
        )
        return read_call_reply(await self._send("tools/call", params))

    async def get(self, ref: TaskRef) -> Snapshot:
        return Snapshot(read_task(await self._send("tasks/get", task_params(ref.task_id))))

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        await self._send("tasks/update", task_params(ref.task_id, input_responses=answers))

    async def cancel(self, ref: TaskRef) -> None:
        await self._send("tasks/cancel", task_params(ref.task_id))

    async def aclose(self) -> None:
        self.closed = True

    async def _send(self, method: str, params: JSONObject) -> JSONObject:
        # These are awaited even after the stop, for a time that is limited.
        patient = method in ("tools/call", "tasks/cancel", "tools/list")
        turn = anyio.lowlevel.checkpoint if patient else self._doings.turn
        with self._doings.one(method):
            await turn()
            reply = self._server.handle(method, params)
            await turn()
            await turn()
            if self._never_replies and method == "tools/call":
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                raise ConnectionLostError("The connection broke.", retryable=True)
        return reply


class SlowJournal(MemoryJournal):
    """Takes a while before it writes; cancelled then, it has written nothing, as the contract allows."""

    def __init__(self, doings: Doings) -> None:
        super().__init__()
        self._doings = doings

    async def claim(self, record: TaskRecord) -> TaskRecord:
        with self._doings.one("journal"):
            await anyio.lowlevel.checkpoint()
            return await super().claim(record)

    async def save(
        self, record: TaskRecord, *, known: bool = False, heeded: Instruction | None = None
    ) -> None:
        with self._doings.one("journal"):
            await anyio.lowlevel.checkpoint()
            await super().save(record, known=known, heeded=heeded)

    async def remove(self, record: TaskRecord) -> None:
        with self._doings.one("journal"):
            await anyio.lowlevel.checkpoint()
            await super().remove(record)


class NumberingPerson:
    """Answers questions, differently each time, so that an answer given twice can be told."""

    def __init__(self, doings: Doings) -> None:
        self.asked: list[str] = []
        self.answered: Counter[str] = Counter()
        self._doings = doings

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(context.key)
        content: dict[str, Any] = {"n": len(self.asked)}
        with self._doings.one("asking"):
            for _ in range(3):
                await self._doings.turn()
        self.answered[context.key] += 1
        return ElicitResult(action="accept", content=content)


class Setup:
    """One server, one person, one journal, and any number of clients one after the other.

    Attributes:
        outcomes: How often somebody got the outcome of the call.
        timeout: For the calls.

    Args:
        journal: Shared with other setups and kept open meanwhile; ``None`` is a :class:`SlowJournal`.
        endpoint: Tells this setup from others in the journal.
        server: Options of the :class:`OneTaskServer`.
        never_replies: Whether the reply to ``tools/call`` is lost.
        call_grace_s: See :class:`PollPolicy`.
        options: For the clients.
    """

    def __init__(
        self,
        *,
        journal: Journal | None = None,
        endpoint: str = "one-task",
        server: Mapping[str, Any] | None = None,
        never_replies: bool = False,
        call_grace_s: float = 2.0,
        **options: Any,
    ) -> None:
        # A journal of its own is a file, whose thread takes real time, while hours pass by this clock.
        self.clock = QuickClock() if journal is None else QuickClock(limit_s=math.inf)
        self.doings = Doings()
        self.server = OneTaskServer(self.clock, **(server or {}))
        self.host = NumberingPerson(self.doings)
        self.journal = journal or SlowJournal(self.doings)
        self.outcomes = 0
        self.timeout: float | None = None
        self._scope = Scope(endpoint)
        self._shares_journal = journal is not None
        self._never_replies = never_replies
        self._wanted_cancelled = False
        self._options = options | {"poll": PollPolicy(jitter=0.0, call_grace_s=call_grace_s)}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    def client(self) -> TasksClient:
        """A client of this setup, on its clock."""
        return TasksClient(
            self._server(),
            journal=self.journal,
            endpoint=self._scope.endpoint,
            elicitation=self.host.elicit,
            # A lease to be renewed would keep this clock going for ever.
            environment=Environment(clock=self.clock, lease_s=math.inf),
            **self._options,
        )

    def _server(self) -> Session | str:
        return InMemory(self.server, self.doings, never_replies=self._never_replies)

    def done(self, result: CallToolResult) -> None:
        """Take the outcome."""
        assert result.structured_content == RESULT["structuredContent"]
        self.outcomes += 1

    # ── what must hold ──

    def at_rest(self) -> None:
        """Nothing is under way: no request, no question, no commit."""
        assert not self.doings.now(), f"still under way: {sorted(self.doings.now())}"

    async def after_a_client(self) -> None:
        """What must hold whenever a client has been closed."""
        self.at_rest()
        if not self._shares_journal:
            with pytest.raises(JournalError, match="not open"):  # or the client has left it open
                await self.journal.records(self._scope)
        records = await self._records()
        assert len(records) <= 1, f"one call, many records: {records}"
        for record in records:
            assert record.finished or record.owner is None, f"{record} is not released"
            if isinstance(record.state, Observing):
                self._wanted_cancelled |= record.state.cancel != "no"
        # An outcome that was delivered under no key is forgotten.
        left = bool(records) or not self.outcomes
        if (
            left
            and self.server.created
            and (self.server.calls or self.server.polls)
            and not self._never_replies
        ):
            assert [record.task_id for record in records] == [TASK_ID], "the task ID is lost"

    async def at_the_end(self) -> None:
        """What must hold when all clients have been closed."""
        if self.server.calls and not self._never_replies:
            assert self.outcomes, "nobody ever got the outcome"
        pending = [record for record in await self._records() if record.pending]
        assert not pending, f"still to be delivered: {pending}"
        again = [key for key, times in self.host.answered.items() if times > 1]
        assert not again, f"asked again after the answer: {again}"
        for key, answers in self.server.answers.items():
            assert all(answer == answers[0] for answer in answers), f"two answers to {key}: {answers}"
        assert not self.server.early_polls, f"polled too early: {self.server.early_polls}"
        assert max(self.server.calls.values(), default=0) <= 1, f"called twice: {self.server.calls}"
        if self._wanted_cancelled:
            assert self.server.cancels, "the wish to cancel is lost"

    async def _records(self) -> list[TaskRecord]:
        async with self.journal:
            return await self.journal.records(self._scope)


class SetupOverHttp(Setup):
    """The same over real sockets.

    Args:
        served: The server's sockets.
        given: Whether the clients get an ``httpx.AsyncClient`` or have their own.
        options: Those of :class:`Setup`.
    """

    def __init__(self, served: Loopback, *, given: bool, **options: Any) -> None:
        # The clock does not wait for the server's thread, which therefore cannot tell what is early.
        super().__init__(server={"brief": True, "paced": False}, **options)
        self._served = served
        self._http_client = httpx.AsyncClient() if given else None
        served.begin(self.server.handle)
        if given:
            self._options["http_client"] = self._http_client

    def _server(self) -> Session | str:
        return self._served.url

    async def __aexit__(self, *error: object) -> None:
        if self._http_client is not None:
            await self._http_client.aclose()
        await self._no_connections()

    async def after_a_client(self) -> None:
        """As elsewhere, and no request or connection of its own is left at the server."""
        if self._http_client is None:
            await self._no_connections()
        assert await anyio.to_thread.run_sync(self._served.idle, LIMIT_S), "a request is still in progress"
        await super().after_a_client()

    async def _no_connections(self) -> None:
        assert await anyio.to_thread.run_sync(self._served.left_alone, LIMIT_S), "a connection is left"
