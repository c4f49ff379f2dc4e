"""The context of a call: a value of its caller that goes with every request for the call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ..protocol import JSONObject
from ..protocol.replies import Reply

__all__ = ["AskHost", "CallContext"]

AskHost: TypeAlias = Callable[[JSONObject], Awaitable[Reply]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class CallContext:
    """A value that goes with each request for one caller's call.

    A way in that serves requests of a host derives its own class, with the host's headers for instance. The
    rooms between the way in and its transport pass the value on, and read nothing of it. A transport may
    remember it weakly.
    """

    ask: AskHost | None = field(default=None, repr=False)
    """Asks the host; ``None`` if only the reply to the call can ask it."""
