"""The server behind a relay as one :class:`Session`."""

from __future__ import annotations

from collections.abc import Callable

from ...callbacks import Callbacks, Inputs
from ...engine.environment import Clock
from ...policy import ReceivePolicy
from ...sessions.base import Limits
from ..connection import Connection, Hear
from ..receiver import Receiver
from ..session import CoreTasksSession
from ..task_preference import TaskPreference

__all__ = ["HostTasksSession"]


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
        super().__init__(
            lambda hear, session_id: connect(hear),
            endpoint=endpoint,
            limits=limits,
            client_info={},  # the host has introduced itself
            inputs=inputs,
            receiver=receiver,
            preference=preference,
            clock=clock,
        )
