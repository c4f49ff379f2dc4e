"""The host's client as our session, in whichever generation its connection was negotiated.

That is the host's doing, and may be another one when it connects again; so it is looked at with each verb.
A task stays with the generation that it was made in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import anyio
from anyio.lowlevel import checkpoint
from mcp import ClientSession
from mcp_types import Tool

from ..errors import RemoteProtocolError
from ..inputs import Inputs
from ..wire import CallReply, Created, JSONObject, Task
from .base import Leaving, Session, TaskRef, ToolCall
from .host_tasks import HostTasksSession
from .limits import Limits
from .sdk import SdkSession
from .sdk_line import SdkLine
from .shapes_2025_11_25 import CORE_TASKS_VERSION
from .task_wish import TaskWish

__all__ = ["HostSession"]


class HostSession(Session):
    """One of two sessions over the host's, as that was negotiated.

    Args:
        current: The host's session as it is now. What it raises says why there is none.
        endpoint: The server's name in the journal.
        inputs: Answers questions.
        ephemeral: Whether the server's tasks end with the connection, as with stdio.
        limits: ``None`` are those over a host's session.
        wish: Whether 2025-11-25 is asked for tasks.
    """

    def __init__(
        self,
        current: Callable[[], ClientSession],
        *,
        endpoint: str,
        inputs: Inputs,
        ephemeral: bool = False,
        limits: Limits | None = None,
        wish: TaskWish | None = None,
    ) -> None:
        self._current = current
        limits = limits or Limits.of_host()
        self._newer = SdkSession(
            current,
            endpoint=endpoint,
            ephemeral=ephemeral,
            tasks_in_flight=limits.tasks_in_flight,
            calls_in_flight=limits.calls_in_flight,
            task_timeout_s=limits.task_timeout_s,
        )
        self._older = HostTasksSession(
            partial(SdkLine, current),
            endpoint=endpoint,
            inputs=inputs,
            limits=limits,
            wish=wish,
        )

    def __repr__(self) -> str:
        return f"<HostSession {self.endpoint}>"

    @property
    def endpoint(self) -> str:
        """As given."""
        return self._newer.endpoint

    @property
    def ephemeral(self) -> bool:
        """As given."""
        return self._newer.ephemeral

    async def tool(self, name: str) -> Tool | None:
        """The tool's description, as the server lists it; ``None`` if it lists none of that name.

        Raises:
            SessionError: The server could not be asked.
        """
        return await self._spoken().tool(name)

    def listed(self, name: str) -> Tool | None:
        """The same, where the list is there."""
        return self._spoken().listed(name)

    def forget_tools(self) -> None:
        """Have the next question about a tool fetch the list again."""
        self._newer.forget_tools()
        self._older.forget_tools()

    async def call(self, call: ToolCall, leaving: Leaving = checkpoint) -> CallReply:
        """Send ``tools/call`` once. Never repeats it, whatever happens.

        Raises:
            SessionError: No result. ``not_executed`` is set if nothing can have happened.
        """
        return await self._spoken().call(call, leaving)

    async def before_call(self) -> str | None:
        """Where the older generation would look for a task whose ID is lost with the reply.

        Raises:
            SessionError: The server could not be reached.
        """
        return await self._spoken().before_call()

    async def created_since(self, memo: str | None, since: float) -> Sequence[Created]:
        """The tasks that may have come of a call, by what the server lists.

        Raises:
            SessionError: The server could not be asked.
        """
        return await self._spoken().created_since(memo, since)

    async def get(self, ref: TaskRef) -> Task:
        """Send ``tasks/get`` once.

        Raises:
            SessionError: No snapshot; its code is -32602 if the server does not know the task.
        """
        return await self._session_of(ref).get(ref)

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        """Have the server get these answers, once.

        Raises:
            SessionError: No acknowledgement.
        """
        await self._session_of(ref).update(ref, answers)

    def takes_each_answer(self, ref: TaskRef) -> bool:
        """Whether the generation does that the task was made in."""
        return self._made_in(ref).takes_each_answer(ref)

    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once.

        Raises:
            SessionError: No acknowledgement.
        """
        await self._session_of(ref).cancel(ref)

    async def listen(
        self, task_ids: Sequence[str], agreed: Callable[[frozenset[str]], None], heard: Callable[[Task], None]
    ) -> None:
        """Have the server tell of tasks, as the generation that is spoken has it.

        Raises:
            SessionError: Refused, broken, or silent for too long.
        """
        await self._spoken().listen(task_ids, agreed, heard)

    def may_agree(self, ref: TaskRef) -> bool:
        """Whether the generation has that which the task was made in."""
        return self._made_in(ref).may_agree(ref)

    def told(self, task_id: str) -> Task | None:
        """What was said of a task of the older generation by itself."""
        return self._older.told(task_id)

    def attend(self, ref: TaskRef, *, inherited: bool) -> None:
        """Begin to take back what waits for a task of the older generation, if that is spoken."""
        if ref.generation == self._version() == CORE_TASKS_VERSION:
            self._older.attend(ref, inherited=inherited)

    def let_go(self, task_id: str) -> anyio.Event | None:
        """Keep nothing of a task that nobody observes any more."""
        return self._older.let_go(task_id)

    async def retire(self) -> None:
        """Have nothing wait any more at a server of the older generation."""
        await self._older.retire()

    async def watch(self, heard: Callable[[Task], None]) -> None:
        """Return when there was a connection and there is none. Another one instead goes on."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._older.watch, heard)
            await self._newer.watch(heard)
            tasks.cancel_scope.cancel()

    async def aclose(self) -> None:
        """Give the host's callbacks back; its session stays as it is."""
        await self._older.aclose()

    def _version(self) -> str | None:
        try:
            return self._current().protocol_version
        except RuntimeError:
            return None  # there is no connection, as either session will say

    def _spoken(self) -> Session:
        return self._older if self._version() == CORE_TASKS_VERSION else self._newer

    def _session_of(self, ref: TaskRef) -> Session:
        version = self._version()
        if ref.generation == CORE_TASKS_VERSION and version not in (CORE_TASKS_VERSION, None):
            raise RemoteProtocolError(
                f"The task was made in MCP {CORE_TASKS_VERSION}, and the connection was negotiated at "
                f"{version}: the server was upgraded since. The task is out of reach; only new calls can be "
                "made.",
                not_executed=True,
            )
        return self._made_in(ref)

    def _made_in(self, ref: TaskRef) -> Session:
        is_older = (ref.generation or self._version()) == CORE_TASKS_VERSION
        return self._older if is_older else self._newer
