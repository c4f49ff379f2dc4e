"""A world with one tool that makes one task that asks one question, and a witness of all of it.

The server keeps its state over any number of clients, so that a second one goes on where the
first was stopped; :meth:`World.promises` is what can be held against both of them afterwards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import anyio.lowlevel
from mcp_types import CallToolResult, ElicitResult, Tool

from mcp_tasks_client import MemoryJournal, PollPolicy, TasksClient
from mcp_tasks_client.journal.base import Journal, Scope, TaskRecord
from mcp_tasks_client.sessions.base import Session, TaskRef, ToolCall
from mcp_tasks_client.testing import cancelled, completed, input_required, working
from mcp_tasks_client.wire import CallReply, JSONObject, Task, call_params, read_call_reply, read_task, task_params

from ._stops import QuickClock

__all__ = ["TASK_ID", "Server", "World"]

TASK_ID: Final = "task-0123456789abcdef"
ENDPOINT: Final = "one-task"
HINT_S: Final = 1.0
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


class Server:
    """What happens at the server, whatever brings the requests there.

    The task works, asks, shows its question once more after the answer, as real servers do, works
    and completes.

    Args:
        clock: Stamps the polls.
        rounds: What ``tools/call`` wants before the task: ``"question"``, or ``"state"`` for a round
            that only hands out state.
        at_once: Whether ``tools/call`` returns the result instead of a task.
    """

    def __init__(self, clock: QuickClock, *, rounds: Sequence[str] = (), at_once: bool = False) -> None:
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
        self._not_before = 0.0
        self._polls_since_answer = 0

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
        return self._paced(working(TASK_ID, poll_interval_ms=HINT_S * 1000))

    def _get(self) -> JSONObject:
        now = self._clock.monotonic()
        if now < self._not_before - 1e-6:  # the wall clock's resolution
            self.early_polls.append(f"{self._not_before - now:.3f} s too early")
        self.polls += 1
        if self.cancels and not self.completed:
            return cancelled(TASK_ID)
        if self.polls == 1:
            return self._paced(working(TASK_ID, poll_interval_ms=HINT_S * 1000))
        self._polls_since_answer += "question" in self.answers
        if self._polls_since_answer < 2:
            return self._paced(input_required(TASK_ID, {"question": QUESTION}, poll_interval_ms=HINT_S * 1000))
        if self._polls_since_answer == 2:
            return self._paced(working(TASK_ID, poll_interval_ms=HINT_S * 1000))
        self.completed = True
        return completed(TASK_ID, RESULT)

    def _paced(self, reply: JSONObject) -> JSONObject:
        self._not_before = self._clock.monotonic() + HINT_S
        return reply

    def _take(self, answers: Mapping[str, JSONObject]) -> None:
        for key, answer in answers.items():
            self.answers[key].append(answer)


class Doings(Counter[str]):
    """What is under way, by kind."""

    @contextmanager
    def one(self, kind: str) -> Iterator[None]:
        self[kind] += 1
        try:
            yield
        finally:
            self[kind] -= 1

    def now(self) -> frozenset[str]:
        return frozenset(+self)


class InMemory(Session):
    """The server, a few turns of the event loop away.

    Args:
        server: Where requests go.
        doings: Where they are noted.
        stalls: Methods that the server executes and never answers.
    """

    def __init__(self, server: Server, doings: Doings, stalls: Sequence[str] = ()) -> None:
        self._server = server
        self._doings = doings
        self._stalls = stalls

    @property
    def endpoint(self) -> str:
        return ENDPOINT

    async def tool(self, name: str) -> Tool | None:
        await self._send("tools/list", {})
        return Tool.model_validate(TOOL)

    async def call(self, call: ToolCall) -> CallReply:
        params = call_params(
            call.name,
            call.arguments,
            input_responses=call.input_responses,
            request_state=call.request_state,
        )
        return read_call_reply(await self._send("tools/call", params))

    async def get(self, ref: TaskRef) -> Task:
        return read_task(await self._send("tasks/get", task_params(ref.task_id)))

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        await self._send("tasks/update", task_params(ref.task_id, input_responses=answers))

    async def cancel(self, ref: TaskRef) -> None:
        await self._send("tasks/cancel", task_params(ref.task_id))

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def _send(self, method: str, params: JSONObject) -> JSONObject:
        with self._doings.one(method):
            await anyio.lowlevel.checkpoint()
            reply = self._server.handle(method, params)
            if method in self._stalls:
                await anyio.sleep_forever()
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
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

    async def save(self, record: TaskRecord) -> None:
        with self._doings.one("journal"):
            await anyio.lowlevel.checkpoint()
            await super().save(record)

    async def remove(self, record_id: str) -> None:
        with self._doings.one("journal"):
            await anyio.lowlevel.checkpoint()
            await super().remove(record_id)


class Host:
    """Answers questions, differently each time, so that an answer given twice can be told."""

    def __init__(self, doings: Doings) -> None:
        self.asked: list[str] = []
        self.answered: Counter[str] = Counter()
        self.asked_again: list[str] = []
        self._doings = doings

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        if self.answered[context.key]:
            self.asked_again.append(context.key)
        self.asked.append(context.key)
        content: dict[str, Any] = {"n": len(self.asked)}
        with self._doings.one("asking"):
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
        self.answered[context.key] += 1
        return ElicitResult(action="accept", content=content)


@dataclass(frozen=True, kw_only=True)
class Before:
    """What the journal and the server knew when a client had been closed."""

    records: list[TaskRecord]
    created: bool


class World:
    """One server, one host, one journal, and any number of clients one after the other."""

    def __init__(
        self,
        *,
        journal: Journal | None = None,
        session: Session | None = None,
        rounds: Sequence[str] = (),
        at_once: bool = False,
        stalls: Sequence[str] = (),
        call_grace_s: float = 2.0,
        **options: Any,
    ) -> None:
        self.clock = QuickClock()
        self.doings = Doings()
        self.server = Server(self.clock, rounds=rounds, at_once=at_once)
        self.host = Host(self.doings)
        self.journal = journal or SlowJournal(self.doings)
        self.results: list[CallToolResult] = []
        self.timeout: float | None = None
        self._stalls = stalls
        self._policy = PollPolicy(jitter=0.0, call_grace_s=call_grace_s)
        self._options = options

    def client(self) -> TasksClient:
        """A client of this world, on its clock."""
        return self._timed(InMemory(self.server, self.doings, self._stalls))

    def _timed(self, server: Session | str, **options: Any) -> TasksClient:
        client = TasksClient(
            server,
            journal=self.journal,
            endpoint=ENDPOINT,
            elicitation=self.host.elicit,
            poll=self._policy,
            **self._options,
            **options,
        )
        client._clock = self.clock
        return client

    async def records(self) -> list[TaskRecord]:
        """What the journal holds."""
        async with self.journal:
            return await self.journal.records(Scope(ENDPOINT))

    def at_rest(self) -> None:
        """Nothing is under way: no request, no question, no commit."""
        assert self.doings.now() == frozenset(), f"still under way: {sorted(self.doings.now())}"

    async def let_go(self) -> None:
        """What must hold whenever a client has been closed, however it was."""
        self.at_rest()
        records = await self.records()
        owned = [record for record in records if record.owner is not None and not record.finished]
        assert owned == [], "nobody drives it any more, and its record says that somebody does"
        if self.server.created and not self.server.calls:
            return  # attached: not ours before we wrote it down
        if self.server.created:
            assert [record.task_id for record in records] == [TASK_ID], "the task ID is lost"

    def promises(self) -> None:
        """What must hold at the end of all clients together."""
        assert self.host.asked_again == [], "asked again after it was answered"
        for key, answers in self.server.answers.items():
            assert all(answer == answers[0] for answer in answers), f"two answers to {key}: {answers}"
        assert self.server.early_polls == [], f"polls before their time: {self.server.early_polls}"
        assert max(self.server.calls.values(), default=0) <= 1, f"tools/call by round: {self.server.calls}"
