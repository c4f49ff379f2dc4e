"""The faults of one request on its way to a server and back.

Each fault tells whether the server acts on the request, and has a substitute for the reply. In memory that is
the exception that a session over HTTP would raise. Over HTTP it is the status, the body or the broken
connection itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..protocol import JSONObject

__all__ = [
    "Delayed",
    "ErrorReply",
    "Fault",
    "Garbled",
    "HttpError",
    "LostReply",
    "LostRequest",
    "RefusedError",
    "Reply",
    "Stale",
    "Stalled",
    "Unheeded",
    "Unreachable",
    "delay_s",
    "retry_after",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Base of all faults."""

    acted: bool = True
    """Whether the server carries the request out, with or without the client's knowledge."""


@dataclass(frozen=True, slots=True)
class LostRequest(Fault):
    """The connection breaks before the request arrives. To a client it looks like :class:`LostReply`."""

    acted: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class LostReply(Fault):
    """The server acts, and the connection breaks before the reply has arrived."""

    acted: bool = field(default=True, init=False)


@dataclass(frozen=True, slots=True)
class Unreachable(Fault):
    """No connection comes about, so that the client knows that nothing was sent.

    A real socket has accepted the connection already, so over one it is a :class:`LostRequest`.
    """

    acted: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True)
class Delayed(Fault):
    """The server acts at once, and its reply takes so many seconds of the server's clock."""

    seconds: float
    acted: bool = field(default=True, init=False)


@dataclass(frozen=True, slots=True)
class Stalled(Fault):
    """The connection stays open without a reply until the client gives the request up."""


@dataclass(frozen=True, slots=True)
class Stale(Fault):
    """``tasks/get`` is answered with an earlier snapshot, as by a replica that lags behind.

    Other methods are answered as always.
    """

    back: int = 1
    """How many replies ago. 1 repeats the last one, and no snapshot is older than the creation."""

    acted: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.back < 1:
            raise ValueError(f"back counts replies, so it is at least 1, got {self.back}")


@dataclass(frozen=True, slots=True)
class Unheeded(Fault):
    """``tasks/update`` or ``tasks/cancel`` is acknowledged, and forgotten.

    Other methods are answered as always.
    """

    acted: bool = field(default=True, init=False)


@dataclass(frozen=True, slots=True)
class HttpError(Fault):
    """An HTTP status without a JSON-RPC reply, as from a gateway."""

    status: int
    retry_after_s: float | None = None
    acted: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 599:
            raise ValueError(f"status must be an HTTP error, from 400 to 599, got {self.status}")


@dataclass(frozen=True, slots=True)
class ErrorReply(Fault):
    """A JSON-RPC error."""

    code: int
    message: str = "Internal error"
    data: Any = None
    http_status: int = 200
    retry_after_s: float | None = None
    acted: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Garbled(Fault):
    """A page of HTML with status 200, as from a captive portal."""

    acted: bool = field(default=False, kw_only=True)


Reply: TypeAlias = JSONObject | ErrorReply | HttpError | Garbled | LostRequest | LostReply | Unreachable
"""A JSON-RPC result, or one of the faults that a client can see."""


class RefusedError(Exception):
    """The server itself answers with a JSON-RPC error, as the protocol has it."""

    def __init__(self, code: int, message: str, data: Any = None, *, http_status: int = 200) -> None:
        super().__init__(message)
        self.reply = ErrorReply(code, message, data, http_status)


def delay_s(fault: Fault | None) -> float:
    """Seconds by which a fault delays the reply."""
    match fault:
        case Delayed(seconds):
            return seconds
        case Stalled():
            return math.inf
        case _:
            return 0.0


def retry_after(seconds: float | None) -> dict[str, str]:
    """The ``Retry-After`` header that asks for so many seconds; none for ``None``."""
    return {} if seconds is None else {"retry-after": f"{seconds:.3f}".rstrip("0").rstrip(".")}
