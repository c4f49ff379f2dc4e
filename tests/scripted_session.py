"""A session that plays a list of replies for each method, for what no scripted server would say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
from mcp_types import Tool

from mcp_tasks_client import Clock, Limits, Session, Snapshot, TaskRef, ToolCall
from mcp_tasks_client.errors import SessionError
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import CallReply, Created, read_call_reply
from mcp_tasks_client.protocol.task import read_task
from mcp_tasks_client.questions.context import CallContext
from mcp_tasks_client.sessions.base import INVALID_PARAMS, BeforeSend

__all__ = ["STALL", "ScriptedSession", "Sent"]

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
    session_data: str | None = None
    context: CallContext | None = field(default=None, repr=False)


class ScriptedSession(Session):
    """Plays its scripts in memory, and logs what was sent.

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
        self.looked_up_with: list[CallContext | None] = []
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

    @property
    def limits(self) -> Limits:
        """The defaults."""
        return Limits()

    async def tool(
        self, name: str, *, fresh: bool = False, context: CallContext | None = None
    ) -> Tool | None:
        """The tool as given."""
        self.looked_up_with.append(context)
        return self.tools.get(name)

    async def call(self, call: ToolCall, before_send: BeforeSend) -> CallReply:
        """Play the next step of ``calls``."""
        await before_send()
        self._log("tools/call", call=call, session_data=call.request_state, context=call.context)
        reply = read_call_reply(await self._play(self.calls))
        if isinstance(reply, Created):
            self.gets.setdefault(reply.task.task_id, [reply.task.to_wire()])
        return reply

    async def get(self, ref: TaskRef) -> Snapshot:
        """Play the next step of the task's script."""
        self._log_task("tasks/get", ref)
        task = read_task(await self._play(self._known(ref)))
        return Snapshot(task, task.request_state)

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> str | None:
        """Play the next step of ``updates``."""
        self._log_task("tasks/update", ref, answers=dict(answers))
        self._known(ref)
        await self._play(self.updates)
        return None

    async def cancel(self, ref: TaskRef) -> None:
        """Play the next step of ``cancels``."""
        self._log_task("tasks/cancel", ref)
        self._known(ref)
        await self._play(self.cancels)

    async def aclose(self) -> None:
        """Note that it was closed."""
        self.closed = True

    def _log_task(self, method: str, ref: TaskRef, **what: Any) -> None:
        told = {"session_data": ref.session_data, "context": ref.context}
        self._log(method, task_id=ref.task_id, **told, **what)

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
