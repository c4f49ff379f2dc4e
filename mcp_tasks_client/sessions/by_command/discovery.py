"""The session of a server by its command, native or of an older version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...aio.clock import Clock
from ...errors import SessionError
from ...policy import PollPolicy
from ...protocol import JSONObject
from ...questions.callbacks import Inputs
from ..base import Limits, Session
from ..by_url.discovery import DiscoveringSession
from ..stdio.pipe import NotStartedError
from ..stdio.stdio_server import StdioServer
from ..stdio.stdio_session import StdioSession

__all__ = ["session_by_command"]


def session_by_command(
    server: StdioServer,
    inputs: Inputs,
    policy: PollPolicy,
    clock: Clock,
    *,
    older: dict[str, Any],
    endpoint: str | None = None,
    tell: Callable[[JSONObject], None] | None = None,
    asks_version: bool = True,
) -> DiscoveringSession[StdioSession]:
    """The session of a server that is a process. Nothing is started yet.

    ``tell`` is told of each message of the server's that comes unasked.
    """

    def speak_other(stdio: StdioSession) -> Session:
        # Loaded only for a server that turns out to need it.
        from ..v2025.core_session import session_over_stdio

        return session_over_stdio(stdio, inputs=inputs, clock=clock, **older)

    stdio = StdioSession(
        server,
        endpoint=endpoint,
        capabilities=inputs.capabilities,
        limits=Limits(tasks_in_flight=policy.polls_in_flight),
        tell=tell,
        sleep=clock.sleep,
    )
    return DiscoveringSession(stdio, speak_other, asks_version=asks_version, is_unclear=_may_want_initialize)


def _may_want_initialize(error: SessionError) -> bool:
    """True if a process has ended over a first message that was not ``initialize``, as those of rmcp do."""
    return isinstance(error, NotStartedError) and error.may_want_initialize
