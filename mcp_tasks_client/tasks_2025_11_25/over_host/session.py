"""The server behind a relay as one :class:`Session`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from ...callbacks import Callbacks, Inputs
from ...engine.environment import Clock
from ...policy import ReceivePolicy
from ...protocol import JSONObject
from ...sessions.base import Limits
from ..connection import Connection, Hear
from ..receiver import Receiver
from ..session import CoreTasksSession
from ..task_preference import TaskPreference

__all__ = ["HostTasksSession"]


@dataclass(frozen=True, slots=True)
class _Host:
    """What :class:`CoreTasksSession` needs to know of a way to a server."""

    endpoint: str
    limits: Limits
    client_info: JSONObject = field(default_factory=dict)
    """Empty, because the host has introduced itself."""


class HostTasksSession(CoreTasksSession):
    """A server of 2025-11-25 in the MCP session of a host.

    Args:
        connect: Makes the connection, which takes what the server sends on its own account.
        endpoint: The server's name in the journal.
        limits: Bounds of the requests.
        inputs: Answers the server's questions.
        preference: Whether to ask for tasks.
        clock: By which everything waits.
    """

    def __init__(
        self,
        connect: Callable[[Hear], Connection],
        *,
        endpoint: str,
        limits: Limits,
        inputs: Inputs,
        preference: TaskPreference,
        clock: Clock,
    ) -> None:
        # What the server has a client run as tasks is the business of the host's session.
        receiver = Receiver(Callbacks(), ReceivePolicy(), clock)
        host = cast(Any, _Host(endpoint, limits))
        super().__init__(host, inputs=inputs, receiver=receiver, preference=preference, clock=clock)
        self._connect_host = connect

    def _connect(self, hear: Hear, session_id: str | None) -> Connection:
        return self._connect_host(hear)
