"""A client on the clock of the server that it talks to."""

from __future__ import annotations

import math
from typing import Any

from ..client import TasksClient
from ..clock import Clock
from ..points import Probe
from ..sessions.base import Session

__all__ = ["scripted_client"]


def scripted_client(
    session: Session, *, clock: Clock | None = None, probe: Probe | None = None, **options: Any
) -> TasksClient:
    """A client of a scripted server, on the server's clock.

    Args:
        session: A :class:`ScriptedSession`, ``server.session()``, or any other.
        clock: ``None`` is the session's own, where it has one.
        probe: Told of each commit and each send, such as a :class:`FaultPlan`.
        options: Those of :class:`TasksClient`; give a journal, or it is the user's own.
    """
    client = TasksClient(session, **options)
    client._engine.clock = clock or getattr(session, "clock", None)
    client._engine.probe = probe
    # Renewed by such a clock, a lease would make it stop every ten seconds of its hours.
    client._engine.lease_s = math.inf
    return client
