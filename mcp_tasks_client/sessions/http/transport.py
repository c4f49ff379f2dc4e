"""The seam to an HTTP library: send one request, and give the response as it begins.

There are two implementations. ``transport_httpx`` uses the host's own httpx or httpx2 client, with
everything that the host has set up in it. ``transport_aiohttp`` costs a third of the CPU and is taken
where the host has set up nothing. Neither reads a meaning into a reply.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import httpx

from ...questions.context import CallContext

__all__ = [
    "CLOSE_S",
    "CONNECT_S",
    "JUST_USED_S",
    "KEEPALIVE_S",
    "Errors",
    "Failures",
    "Request",
    "Response",
    "Transport",
    "failures_of_httpx",
]

CONNECT_S: Final = 10.0
"""Seconds that opening a connection may take."""

CLOSE_S: Final = 5.0
"""Seconds that closing a response, or all connections, may take."""

# Servers drop idle connections after 5 seconds (uvicorn, Node). A request on a connection that
# is being dropped has an unknown outcome, so ours are dropped before.
KEEPALIVE_S: Final = 4.0

JUST_USED_S: Final = 0.5
"""Seconds that a connection may have been idle before a request that is never repeated."""

_NOT_SENT: Final = frozenset(
    {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"}
)
"""In httpcore and in httpx, which raises its own from that of httpcore."""

_CORES: Final = frozenset({"httpcore", "httpcore2"})

Errors: TypeAlias = tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """The exceptions that an HTTP library raises, by their meanings. The first match counts."""

    not_sent: Callable[[Exception], bool]
    """Whether an exception says that the request surely never left."""

    unsendable: Errors = ()
    """The request is not valid HTTP. The exception's text quotes the offending header."""

    decoding: Errors = ()
    """A hook read the body before us, and the body does not match its ``Content-Encoding``."""

    bad_url: Errors

    by_status: Errors = ()
    """Raised by a hook for a status. Its ``.response`` is the library's."""

    lost: Errors
    """Anything else that ends a request or its response."""

    describe: Callable[[Exception], str] = str
    """The text of an exception, without the URL, whose query may be a credential."""

    as_cause: Callable[[Exception], Exception] = lambda error: error
    """The exception, or a replacement that does not hold the request with all its headers."""


def failures_of_httpx(library: object) -> Failures:
    """The exceptions of the module ``httpx``, or of ``httpx2``, which kept the names."""

    def named(*names: str) -> Errors:
        return tuple(getattr(library, name) for name in names)

    return Failures(
        not_sent=_never_left,
        unsendable=named("LocalProtocolError"),
        decoding=named("DecodingError"),
        bad_url=(*named("InvalidURL"), UnicodeError),
        by_status=named("HTTPStatusError"),
        # ssl.SSLError: anyio passes it through where a TLS record, or a client certificate, is refused.
        lost=(*named("HTTPError"), ssl.SSLError),
    )


def _never_left(error: Exception) -> bool:
    """Whether httpcore says that the request never left.

    Transports over other libraries raise the same classes also for a server that hangs up without a reply.
    """
    cause = error.__cause__
    name, package = type(cause).__name__, type(cause).__module__.partition(".")[0]
    return name == type(error).__name__ and name in _NOT_SENT and package in _CORES


class Response(ABC):
    """A response whose body has yet to come.

    Attributes:
        status: HTTP status.
    """

    __slots__ = ("status",)

    status: int

    @abstractmethod
    def header(self, name: str) -> str:
        """A header's value, ``""`` if it is absent. Several of one name are joined by ``", "``."""

    @property
    def content(self) -> bytes | None:
        """The whole body, decompressed, if a hook of the host's has read it already."""
        return None

    @abstractmethod
    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, still compressed. May be called once."""

    @abstractmethod
    async def aclose(self) -> None:
        """Give the connection back if the body was read to its end, and close it if not. Never raises."""


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. A redirect within the origin sends it again."""

    content: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    silence_s: float
    """Seconds without a byte before the request is given up, unless the host's own client says otherwise."""

    verb: str = "POST"
    context: CallContext | None = field(default=None, repr=False)
    """The context of the call for whose sake the request is made; ``None`` if there is none."""

    once: bool = False
    """Whether it is never repeated. Some servers drop connections after a second, so it needs one that was
    just used, or a new one."""


class Transport(ABC):
    """Sends requests to one origin.

    Attributes:
        failures: The exceptions of the transport and its responses.
    """

    failures: Failures

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the transport can send nothing, since it was closed."""

    @abstractmethod
    async def send(self, url: httpx.URL, request: Request) -> Response:
        """Send a request once, and follow no redirect.

        Raises:
            Exception: One of ``failures``.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections, unless the HTTP client is the host's."""
