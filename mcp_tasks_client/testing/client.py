"""A client on the clock of the scripted server that it talks to."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..aio.clock import Clock, SystemClock
from ..engine.environment import Environment
from ..engine.observer import Observer
from ..sessions.base import Session

if TYPE_CHECKING:
    from ..client import TasksClient

__all__ = ["scripted_client"]


def scripted_client(
    session: Session,
    *,
    clock: Clock | None = None,
    jitter: Callable[[], float] = random.random,
    observer: Observer | None = None,
    **options: Any,
) -> TasksClient:
    """A client of a scripted server, on the server's clock.

    Args:
        session: ``server.session()``, or any other.
        clock: ``None`` is the session's attribute ``clock``, where it has one, or else the system's.
        jitter: Draws fractions from 0 to 1, by which waits of the client's own choice become longer.
        observer: Told of each step, such as a :class:`FaultPlan`.
        options: Those of :class:`~mcp_tasks_client.TasksClient`. Give a journal, or it is the user's own.
    """
    # Not imported with this module: a server, a clock and a witness need no client.
    from ..client import TasksClient

    clock = clock or getattr(session, "clock", None) or SystemClock()
    # A lease that is renewed by a manual clock would stop it every ten seconds of its hours.
    environment = Environment(clock=clock, jitter=jitter, observer=observer, lease_s=math.inf)
    return TasksClient(session, environment=environment, **options)
