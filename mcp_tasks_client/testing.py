"""For the tests of hosts, and for ours: time that obeys, and a server that plays a script.

A host that uses this package can test its own handling of hour-long tasks, questions and faults in
microseconds::

    clock = ManualClock()
    server = ScriptedSession(
        clock=clock,
        calls=[working("t1", poll_interval_ms=60_000)],
        gets={"t1": [working("t1"), completed("t1", text_result("done"))]},
    )
    async with scripted_client(server, journal=MemoryJournal()) as client:
        handle = await client.start_tool("anything")
        await clock.advance(120)
        assert (await handle.result()).content[0].text == "done"

Both are under the contract tests that the real ones pass.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
from mcp_types import Tool

from .client import TasksClient
from .clock import Clock
from .errors import SessionError
from .sessions.base import INVALID_PARAMS, Leaving, Session, TaskRef, ToolCall
from .wire import CallReply, Created, JSONObject, Task, read_call_reply, read_task

__all__ = [
    "STALL",
    "ManualClock",
    "ScriptedSession",
    "Sent",
    "cancelled",
    "completed",
    "failed",
    "input_required",
    "scripted_client",
    "text_result",
    "working",
]


class ManualClock(Clock):
    """Stands still until told to advance.

    Wall time and monotonic time go together unless :meth:`jump` sets the wall clock, as an
    administrator or a time server may.
    """

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = 0.0
        self._epoch = start
        self._waiting: list[tuple[float, int, anyio.Event]] = []
        self._order = itertools.count()

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._epoch + self._now

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    async def wait(self, event: anyio.Event, timeout_s: float | None) -> None:
        """Wait for the event, which passing time sets as well."""
        if timeout_s is not None:
            heapq.heappush(self._waiting, (self._now + timeout_s, next(self._order), event))
        await event.wait()

    async def advance(self, seconds: float) -> None:
        """Let time pass, stopping at each moment that somebody waits for.

        Returns when everything that this set in motion waits again. What a thread does (a SQLite
        commit) is not waited for.
        """
        end = self._now + seconds
        await _settled()
        while self._waiting and self._waiting[0][0] <= end:
            due, _, event = heapq.heappop(self._waiting)
            self._now = max(self._now, due)
            event.set()
            await _settled()
        self._now = end

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back; the monotonic time does not notice."""
        self._epoch += seconds


async def _settled() -> None:
    # anyio asks only ten times a second on asyncio; after a few turns there is mostly nothing to ask.
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()


STALL: Final = object()
"""A step that never answers."""

Step: TypeAlias = Any
"""An object of the wire (a dict), an exception to raise, or :data:`STALL`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request that reached the scripted server."""

    method: str
    at: float
    """The clock's monotonic seconds."""

    task_id: str | None = None
    call: ToolCall | None = None
    answers: Mapping[str, JSONObject] = field(default_factory=dict)
    request_state: str | None = None


class ScriptedSession(Session):
    """A server that plays a script, in memory, and keeps a witness log.

    Each script is a list of steps; the last one is repeated.

    Args:
        clock: Stamps the log.
        calls: Replies to ``tools/call``, as they would come on the wire.
        gets: Replies to ``tasks/get``, by task ID. Other IDs are unknown to the server (-32602).
        updates: Replies to ``tasks/update``; an empty dict acknowledges.
        cancels: Replies to ``tasks/cancel``.
        tools: What ``tools/list`` would list.
        endpoint: As in the journal.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        calls: Sequence[Step] = (),
        gets: Mapping[str, Sequence[Step]] | None = None,
        updates: Sequence[Step] = ({},),
        cancels: Sequence[Step] = ({},),
        tools: Sequence[Tool] = (),
        endpoint: str = "scripted",
    ) -> None:
        self.sent: list[Sent] = []
        self.calls = list(calls)
        self.gets = {task_id: list(steps) for task_id, steps in (gets or {}).items()}
        self.updates = list(updates)
        self.cancels = list(cancels)
        self.tools = {tool.name: tool for tool in tools}
        self.clock = clock
        self.closed = False
        self._endpoint = endpoint

    @property
    def endpoint(self) -> str:
        """As given."""
        return self._endpoint

    def log(self, method: str) -> list[Sent]:
        """The requests of one method, oldest first."""
        return [sent for sent in self.sent if sent.method == method]

    async def tool(self, name: str) -> Tool | None:
        """The tool as given."""
        return self.tools.get(name)

    async def call(self, call: ToolCall, leaving: Leaving = anyio.lowlevel.checkpoint) -> CallReply:
        """Play the next step of ``calls``."""
        await leaving()
        self._log("tools/call", call=call, request_state=call.request_state)
        reply = read_call_reply(await self._play(self.calls))
        if isinstance(reply, Created):
            self.gets.setdefault(reply.task.task_id, [reply.task.to_wire()])
        return reply

    async def get(self, ref: TaskRef) -> Task:
        """Play the next step of the task's script."""
        self._log("tasks/get", task_id=ref.task_id, request_state=ref.request_state)
        return read_task(await self._play(self._known(ref)))

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        """Play the next step of ``updates``."""
        self._log("tasks/update", task_id=ref.task_id, answers=dict(answers), request_state=ref.request_state)
        self._known(ref)
        await self._play(self.updates)

    async def cancel(self, ref: TaskRef) -> None:
        """Play the next step of ``cancels``."""
        self._log("tasks/cancel", task_id=ref.task_id, request_state=ref.request_state)
        self._known(ref)
        await self._play(self.cancels)

    async def aclose(self) -> None:
        """Note that it was closed."""
        self.closed = True

    def _log(self, method: str, **what: Any) -> None:
        at = self.clock.monotonic() if self.clock is not None else anyio.current_time()
        self.sent.append(Sent(method=method, at=at, **what))

    def _known(self, ref: TaskRef) -> list[Step]:
        if ref.task_id not in self.gets:
            raise SessionError("Unknown task", code=INVALID_PARAMS, remote_message="Task not found")
        return self.gets[ref.task_id]

    async def _play(self, steps: list[Step]) -> Any:
        await anyio.lowlevel.checkpoint()
        if not steps:
            raise AssertionError("the script has no step for this request")
        step = steps.pop(0) if len(steps) > 1 else steps[0]
        if step is STALL:
            await anyio.sleep_forever()
        if isinstance(step, BaseException):
            raise step
        return step


def scripted_client(session: ScriptedSession, **options: Any) -> TasksClient:
    """A client of a scripted server, on the server's clock.

    Args:
        session: The server.
        options: Those of :class:`TasksClient`; give a journal, or it is the user's own.
    """
    client = TasksClient(session, **options)
    client._engine.clock = session.clock
    # Renewed by such a clock, a lease would make it stop every ten seconds of its hours.
    client._engine.lease_s = math.inf
    return client


def working(task_id: str, **fields: Any) -> JSONObject:
    """A snapshot in ``working``, and a creation result too. Fields in snake_case."""
    return _snapshot(task_id, "working", fields)


def input_required(task_id: str, requests: JSONObject, **fields: Any) -> JSONObject:
    """A snapshot that asks."""
    return _snapshot(task_id, "input_required", {"input_requests": requests, **fields})


def completed(task_id: str, result: JSONObject, **fields: Any) -> JSONObject:
    """A snapshot with a result."""
    return _snapshot(task_id, "completed", {"result": result, **fields})


def failed(task_id: str, code: int, message: str, data: Any = None, **fields: Any) -> JSONObject:
    """A snapshot with a JSON-RPC error."""
    error = {"code": code, "message": message, "data": data}
    return _snapshot(task_id, "failed", {"error": error, **fields})


def cancelled(task_id: str, **fields: Any) -> JSONObject:
    """A snapshot in ``cancelled``."""
    return _snapshot(task_id, "cancelled", fields)


def text_result(text: str, *, is_error: bool = False) -> JSONObject:
    """A tool result of one text."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _snapshot(task_id: str, status: str, fields: JSONObject) -> JSONObject:
    made = "2026-07-28T00:00:00Z"
    times = {"created_at": made, "last_updated_at": made, "ttl_ms": None}
    task = Task.model_validate({"task_id": task_id, "status": status, **times, **fields})
    return {"resultType": "task" if status == "working" else "complete", **task.to_wire()}
