"""A server of whichever generation: spoken to in the newer one, and in the older one where it knows no other.

Which one, it is asked before the first call, and before a task is observed of which it is not known. A task
stays with the generation that it was made in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint
from mcp_types import Tool

from ..errors import SessionError
from ..inputs import Inputs
from ..receiver import Receiver
from ..wire import PROTOCOL_VERSION, CallReply, Created, JSONObject, Task
from .base import Leaving, Session, TaskRef, ToolCall
from .catalogue import OtherVersionError
from .http import HttpSession
from .http_peer import HttpPeer
from .peer import Told
from .shapes_2025_11_25 import CORE_TASKS_VERSION
from .task_wish import TaskWish
from .tasks_2025_11_25 import CoreTasksSession

__all__ = ["AnyGenerationSession", "session_at"]

_KNOWN: Final = frozenset({PROTOCOL_VERSION, CORE_TASKS_VERSION})


class AnyGenerationSession(Session):
    """One of two sessions, as the server turns out.

    Args:
        newer: For 2026-07-28; closed with this one.
        older: For 2025-11-25, over the same channel.
    """

    def __init__(self, newer: HttpSession, older: CoreTasksSession) -> None:
        self._newer = newer
        self._older = older
        self._now: Session = newer
        self._deciding = anyio.Lock()

    def __repr__(self) -> str:
        return repr(self._now)

    @property
    def endpoint(self) -> str:
        """The same in both."""
        return self._newer.endpoint

    @property
    def calls_in_flight(self) -> int | None:
        """How many ``tools/call`` it sends at once, at most."""
        return self._newer.calls_in_flight

    async def tool(self, name: str) -> Tool | None:
        """The tool's description, as the server lists it; ``None`` if it lists none of that name.

        Raises:
            SessionError: The server could not be asked, or speaks neither generation.
        """
        try:
            return await self._now.tool(name)
        except OtherVersionError as error:
            return await (await self._fallen_back(error)).tool(name)

    def listed(self, name: str) -> Tool | None:
        """The same, where the list is there."""
        return self._now.listed(name)

    def forget_tools(self) -> None:
        """Have the next question about a tool fetch the list again."""
        self._now.forget_tools()

    async def call(self, call: ToolCall, leaving: Leaving = checkpoint) -> CallReply:
        """Send ``tools/call`` once. Never repeats it, whatever happens.

        Raises:
            SessionError: No result. ``not_executed`` is set if nothing can have happened.
        """
        try:
            return await self._now.call(call, leaving)
        except OtherVersionError as error:  # raised before the call leaves
            return await (await self._fallen_back(error)).call(call, leaving)

    async def before_call(self) -> str | None:
        """Where the older generation would look for a task whose ID is lost with the reply.

        Raises:
            SessionError: The server could not be reached.
        """
        return await (await self._decided()).before_call()

    async def created_since(self, memo: str | None, since: float) -> Sequence[Created]:
        """The tasks that may have come of a call, by what the server lists.

        Raises:
            SessionError: The server could not be asked.
        """
        session = self._older if memo is not None else await self._decided()
        return await session.created_since(memo, since)

    async def get(self, ref: TaskRef) -> Task:
        """Send ``tasks/get`` once.

        Raises:
            SessionError: No snapshot; its code is -32602 if the server does not know the task.
        """
        return await (await self._session_of(ref)).get(ref)

    async def update(self, ref: TaskRef, answers: Mapping[str, JSONObject]) -> None:
        """Have the server get these answers, once.

        Raises:
            SessionError: No acknowledgement.
        """
        await (await self._session_of(ref)).update(ref, answers)

    def takes_each_answer(self, ref: TaskRef) -> bool:
        """Whether the generation does that the task was made in."""
        return self._made_in(ref).takes_each_answer(ref)

    async def cancel(self, ref: TaskRef) -> None:
        """Send ``tasks/cancel`` once.

        Raises:
            SessionError: No acknowledgement.
        """
        await (await self._session_of(ref)).cancel(ref)

    async def listen(
        self, task_ids: Sequence[str], agreed: Callable[[frozenset[str]], None], heard: Callable[[Task], None]
    ) -> None:
        """Have the server tell of tasks, as the generation that is spoken has it.

        Raises:
            SessionError: Refused, broken, or silent for too long.
        """
        await (await self._decided()).listen(task_ids, agreed, heard)

    def may_agree(self, ref: TaskRef) -> bool:
        """Whether the generation has that which the task was made in."""
        return self._made_in(ref).may_agree(ref)

    def told(self, task_id: str) -> Task | None:
        """What was said of a task of the older generation by itself."""
        return self._older.told(task_id)

    def attend(self, ref: TaskRef, *, inherited: bool) -> None:
        """Begin to take back what waits for a task of the older generation."""
        if ref.generation == CORE_TASKS_VERSION:
            self._older.attend(ref, inherited=inherited)

    def let_go(self, task_id: str) -> anyio.Event | None:
        """Keep nothing of a task that nobody observes any more."""
        return self._older.let_go(task_id)

    async def retire(self) -> None:
        """Have nothing wait any more at a server of the older generation."""
        await self._older.retire()

    async def watch(self, heard: Callable[[Task], None]) -> None:
        """Keep open what the older generation needs open. Never returns."""
        await self._older.watch(heard)

    async def aclose(self) -> None:
        """Close both."""
        await self._newer.aclose()

    def _made_in(self, ref: TaskRef) -> Session:
        """The one of the generation that a task was made in; of the one that is spoken, if nobody says."""
        made_in = {PROTOCOL_VERSION: self._newer, CORE_TASKS_VERSION: self._older}
        return made_in.get(ref.generation, self._now)

    async def _session_of(self, ref: TaskRef) -> Session:
        return self._made_in(ref) if ref.generation in _KNOWN else await self._decided()

    async def _decided(self) -> Session:
        """The one that the server turns out to need."""
        if self._now is self._newer and not self._newer.spoken:
            try:
                await self._newer.discover()
            except OtherVersionError as error:
                return await self._fallen_back(error)
        return self._now

    async def _fallen_back(self, error: OtherVersionError) -> Session:
        async with self._deciding:
            if self._now is self._newer:
                try:
                    await self._older.connect()
                except SessionError as other:
                    if other.retryable:
                        raise
                    raise error from other  # it speaks neither, or is no MCP server at all
                # One that says no more than a status may be a gateway's, at a loss for a moment.
                if error.code is not None or not await self._newer_after_all():
                    self._now = self._older
            return self._now

    async def _newer_after_all(self) -> bool:
        try:
            await self._newer.discover()
        except OtherVersionError:
            return False
        return True


def session_at(
    url: str,
    *,
    inputs: Inputs,
    wish: TaskWish | None = None,
    receiver: Callable[[str], Receiver] | None = None,
    **options: Any,
) -> AnyGenerationSession:
    """A session at a URL, in whichever generation its server speaks.

    Args:
        url: The server's MCP endpoint, ``http`` or ``https``.
        inputs: Answers questions, as far as that is not the driver's business.
        wish: Whether the older generation is asked for tasks.
        receiver: Makes who runs what the server wants as a task, by the server's name in the journal.
        options: Those of :class:`HttpSession`.

    Raises:
        ValueError: As :class:`HttpSession`.
        TypeError: As :class:`HttpSession`.
    """
    newer = HttpSession(url, capabilities=inputs.capabilities, **options)

    def peer(session_id: str | None, told: Told) -> HttpPeer:
        max_bytes = newer.limits.max_response_bytes
        return HttpPeer(newer.channel, newer.headers, told, max_bytes=max_bytes, session_id=session_id)

    older = CoreTasksSession(
        peer,
        endpoint=newer.endpoint,
        inputs=inputs,
        client_info=newer.client_info,
        limits=newer.limits,
        wish=wish or TaskWish(),
        receiver=receiver(newer.endpoint) if receiver is not None else None,
    )
    return AnyGenerationSession(newer, older)
