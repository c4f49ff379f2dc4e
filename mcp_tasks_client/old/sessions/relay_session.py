"""A server of 2025-11-25 as the messages of a host's session pass: what a relay is for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import anyio

from ..inputs import Inputs
from ..wire import JSONObject, RequestId, RpcError, Task
from .faults import Faults
from .host_tasks import HostTasksSession
from .limits import Limits
from .lines import Line
from .relay import Relay
from .task_wish import TaskWish

__all__ = ["RelayLine", "RelaySession"]


class RelayLine(Line):
    """A host's session, as its messages pass.

    Args:
        relay: Where they do.

    Raises:
        ConnectionLostError: There is no session.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.board = relay.board

    @property
    def is_up(self) -> bool:
        """Whether it is connected. It is always the same."""
        return not self._relay.over.is_set()

    @property
    def introduction(self) -> JSONObject:
        """What the server said of itself in the handshake."""
        return self._relay.introduction

    def new_request_id(self) -> RequestId | None:
        """An ID that none of the host's requests has."""
        return self._relay.new_request_id()

    async def send(
        self,
        method: str,
        params: JSONObject,
        timeout_s: float | None,
        faults: Faults,
        request_id: RequestId | None = None,
    ) -> JSONObject:
        """Send a request, and return its result.

        Raises:
            SessionError: No result.
        """
        return await self._relay.request(method, params, timeout_s, faults, request_id)

    async def take_back(self, request_id: RequestId) -> None:
        """Tell the server that nobody waits for a reply any more."""
        await self._relay.take_back(request_id)

    async def say_again(self, request_id: RequestId, answer: JSONObject | RpcError) -> None:
        """Answer a request of the server's once more."""
        await self._relay.answer(request_id, answer)


class RelaySession(HostTasksSession):
    """A server reached by way of a relay.

    Args:
        relay: Which one.
        endpoint: The server's name in the journal.
        inputs: Answers questions.
        limits: ``None`` are those over a host's session.
        wish: Whether to ask for tasks.
    """

    def __init__(
        self,
        relay: Relay,
        *,
        endpoint: str,
        inputs: Inputs,
        limits: Limits | None = None,
        wish: TaskWish | None = None,
    ) -> None:
        super().__init__(
            partial(RelayLine, relay),
            endpoint=endpoint,
            inputs=inputs,
            limits=limits,
            wish=wish,
        )
        self._relay = relay
        self._ended = False

    async def makes_task(self, name: str) -> bool:
        """Whether a call of this tool asks for a task.

        Raises:
            MissingCapabilityError: It cannot, and nothing else is wanted.
            SessionError: The server could not be asked.
        """
        await self._peers.now()
        if self._wish.prefer != "always" and not self._peers.makes_tasks:
            return False
        await self._catalogue.to_call(name)
        return self._as_task(name)

    async def watch(self, heard: Callable[[Task], None]) -> None:
        """Return once there is no connection any more; there will be no other."""
        if not self._ended:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(super().watch, heard)
                await self._relay.over.wait()
                tasks.cancel_scope.cancel()
            self._ended = True
        else:
            await anyio.sleep_forever()
