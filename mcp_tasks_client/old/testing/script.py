"""A session that plays a script: one list of replies for each verb, in order, whatever is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
from mcp_types import Tool

from ..clock import Clock
from ..errors import SessionError
from ..sessions.base import INVALID_PARAMS, Leaving, Session, TaskRef, ToolCall
from ..wire import CallReply, Created, JSONObject, Task, read_call_reply, read_task

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
