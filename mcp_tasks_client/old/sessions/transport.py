"""What a session needs of an HTTP library: one request, and the response as it begins.

There are two ways to send one: :mod:`.over_httpx`, which is httpx's and httpx2's own client with all
that a host may have set up in it, and :mod:`.over_aiohttp`, which costs a third of it and is taken
where the host has set up nothing. What a reply means is the business of neither.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import httpx

__all__ = [
    "CLOSE_S",
    "CONNECT_S",
    "KEEPALIVE_S",
    "OF_HTTPX",
    "Errors",
    "Failures",
    "Request",
    "Response",
    "Transport",
    "of_httpx",
]

CONNECT_S: Final = 10.0
"""Seconds that a connection may take to come about."""

CLOSE_S: Final = 5.0
"""Seconds that letting go of a response, or of all connections, may take."""

# Servers drop idle connections after 5 seconds (uvicorn, Node). A request on a connection that
# is being dropped has an unknown outcome, so ours are dropped before.
KEEPALIVE_S: Final = 4.0

Errors: TypeAlias = tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """What a library raises, by what it means. The first that matches counts."""

    not_sent: Errors
    """The request surely never left."""

    unsendable: Errors = ()
    """It is no valid HTTP request. The text quotes the header that was wrong."""

    decoding: Errors = ()
    """Somebody read the body before us, and it does not match its ``Content-Encoding``."""

    bad_url: Errors
    by_status: Errors = ()
    """Raised by a hook for a status; ``.response`` is the library's."""

    lost: Errors
    """Anything else that ends a request, or its reply."""

    words: Callable[[Exception], str] = str
    """What an error says, without the URL, whose query may be a credential."""

    cause: Callable[[Exception], Exception] = lambda error: error
    """The error, or one in its place that does not hold the request with all its headers."""


def of_httpx(library: object) -> Failures:
    """The failures of httpx, or of its successor, which kept the names.

    Args:
        library: The module ``httpx`` or ``httpx2``.
    """

    def named(*names: str) -> Errors:
        return tuple(getattr(library, name) for name in names)

    return Failures(
        not_sent=named("ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"),
        unsendable=named("LocalProtocolError"),
        decoding=named("DecodingError"),
        bad_url=(*named("InvalidURL"), UnicodeError),
        by_status=named("HTTPStatusError"),
        # ssl.SSLError: anyio passes it through where a TLS record, or a client certificate, is refused.
        lost=(*named("HTTPError"), ssl.SSLError),
    )


OF_HTTPX: Final = of_httpx(httpx)


class Response(ABC):
    """A response whose body has yet to come.

    Attributes:
        status: HTTP status.
    """

    __slots__ = ("status",)

    status: int

    @abstractmethod
    def header(self, name: str) -> str:
        """A field's value, ``""`` if it is absent; several of one name are joined by ``", "``."""

    @property
    def content(self) -> bytes | None:
        """The body, if a hook of the host's has read and decompressed it already."""
        return None

    @abstractmethod
    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it came, still compressed. Asked for once."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of it, and of its connection unless the body was read to its end. Never raises."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready to be sent, and sent again where it is redirected."""

    content: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    read_timeout_s: float
    """Seconds of silence before it is given up, unless the host's own client says otherwise."""

    verb: str = "POST"


class Transport(ABC):
    """Sends requests to one origin.

    Attributes:
        failures: What it and its responses raise.
    """

    failures: Failures

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""

    @abstractmethod
    async def send(self, url: httpx.URL, request: Request) -> Response:
        """Send a request, once, and follow no redirect.

        Raises:
            Exception: One of ``failures``.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close what is ours."""
