"""Our own requests over the transport of a host's client, with the host's headers, beneath its auth.

The headers are those of the host's request for whose sake a request of ours is sent, since thousands of
calls share one session. They come as its context, and are kept nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

import httpx

from ...protocol.text import digest
from ...sessions.http.transport import CONNECT_S, Request, Response, Transport, failures_of_httpx
from ...sessions.http.transport_httpx import WRITE_S, HttpxResponse, body_class
from ...sessions.request_errors import CREDENTIAL_STATUSES
from ..questions import HostContext

__all__ = ["HostRequest", "InnerTransport"]

_OF_ONE_REQUEST: Final = frozenset(
    {"content-length", "content-type", "content-encoding", "transfer-encoding", "connection"}
    | {"accept", "accept-encoding", "last-event-id", "mcp-session-id", "mcp-protocol-version"}
    | {"mcp-method", "mcp-name", "idempotency-key"}
)
"""Headers that say something of the host's own request, and nothing of the host."""

_ARGUMENTS: Final = "mcp-param-"

_OF_A_USER: Final = re.compile(
    "auth|key|token|cookie|secret|credential|user|tenant|account|customer|org|principal"
)
"""In the names of headers that may tell one user of a host from another. Headers of tracing, which differ
with each request, have none of these in their names."""

_NO_WISH: Final = {"connect": 5.0, "read": 5.0, "write": 5.0, "pool": 5.0}
"""The time-outs of a client whose maker said nothing of time-outs: not a wish that we could honour."""


@dataclass(slots=True, kw_only=True, eq=False)
class HostRequest(HostContext):
    """The host's request that is being served, over HTTP.

    Attributes:
        headers: That go with each request of ours.
        url: To which it goes.
        user: Equal for requests that go with the same credential: a digest of the headers that may tell users
            apart. It is stored nowhere.
        extensions: Of the host's request, such as the name for TLS.
        timeout: The host's time-outs, as httpx has them; ``None`` leaves them to us.
        refusal: Headers of the last reply that refused the credential; ``None`` if none did.
    """

    headers: Sequence[tuple[str, str]] = field(repr=False)
    url: str
    user: str = field(repr=False)
    extensions: Mapping[str, Any]
    timeout: Mapping[str, float | None] | None
    refusal: Mapping[str, str] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, request: Any, *, is_one_user: bool = False) -> HostRequest:
        """What a request of httpx or httpx2 says of the host.

        Args:
            request: The request.
            is_one_user: Whether all requests are of one user, whatever their credentials.
        """
        headers = [
            (name, value)
            for name, value in request.headers.multi_items()
            if name not in _OF_ONE_REQUEST and not name.startswith(_ARGUMENTS)
        ]
        timeout = request.extensions.get("timeout")
        return cls(
            headers=headers,
            url=str(request.url),
            user="" if is_one_user else digest(sorted(one for one in headers if _OF_A_USER.search(one[0]))),
            extensions=dict(request.extensions),
            timeout=None if timeout == _NO_WISH else timeout,
        )


class InnerTransport(Transport):
    """Sends requests through a host's transport.

    Args:
        library: The module ``httpx`` or ``httpx2``.
        inner: An ``AsyncBaseTransport`` of that library. Left open.
    """

    def __init__(self, library: ModuleType, inner: Any) -> None:
        self.failures = failures_of_httpx(library)
        self._library: Any = library
        self._inner = inner
        self._body = body_class(library)

    @property
    def closed(self) -> bool:
        """Never: who closes it ends its calls first."""
        return False

    async def send(self, url: httpx.URL, request: Request) -> Response:
        """Send a request as the host would, whose request is its context."""
        host = request.context
        if not isinstance(host, HostRequest):
            raise self._library.ConnectError("no request of the host's is served, so there is no credential")
        ours = {name.lower() for name in request.headers}
        headers = [(name, value) for name, value in host.headers if name not in ours]
        headers += [*request.headers.items(), ("Content-Length", str(len(request.content)))]
        silence_s = request.silence_s
        timeout = host.timeout or {"connect": CONNECT_S, "read": silence_s, "write": WRITE_S, "pool": None}
        sent = self._library.Request(
            request.verb,
            str(url),
            headers=headers,
            stream=self._body(request.content),
            extensions={**host.extensions, "timeout": dict(timeout)},
        )
        sent.read()  # so that a transport of the host's may look at its content
        response = await self._inner.handle_async_request(sent)
        if response.status_code in CREDENTIAL_STATUSES:
            challenge = response.headers.get("www-authenticate")
            host.refusal = {} if challenge is None else {"www-authenticate": challenge}
        return HttpxResponse(response)

    async def aclose(self) -> None:
        """Leave the host's transport open."""
