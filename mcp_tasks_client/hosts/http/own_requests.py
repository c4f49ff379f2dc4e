"""Our own requests over the transport of a host's client, with the host's headers, beneath its auth.

Thousands of calls share one session, so each request of ours has the host's request that it serves as its
context, and takes the headers from there. They are kept nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final
from weakref import WeakSet

import httpx

from ...errors import ConnectionLostError
from ...protocol import RequestId
from ...protocol.text import digest
from ...questions.context import CallContext
from ...sessions.http.transport import CONNECT_S, Request, Response, Transport, failures_of_httpx
from ...sessions.http.transport_httpx import WRITE_S, HttpxResponse, body_class
from ...sessions.request_errors import CREDENTIAL_STATUSES

__all__ = ["HostRequest", "InnerTransport"]

_OF_ONE_REQUEST: Final = frozenset(
    {"content-length", "content-type", "content-encoding", "transfer-encoding", "connection"}
    | {"accept", "accept-encoding", "last-event-id", "mcp-session-id", "mcp-protocol-version"}
    | {"mcp-method", "mcp-name", "idempotency-key"}
)
"""Headers that describe the host's own request, so that ours do not repeat them."""

_ARGUMENTS: Final = "mcp-param-"

_OF_A_USER: Final = re.compile(
    "auth|key|token|cookie|secret|credential|user|tenant|account|customer|org|principal"
)
"""Found in the names of headers that may tell one user of a host from another. It is not found in those of
headers of tracing, which differ with each request."""

_RECORD: Final = "mcp_tasks_client.record_id"
"""The extension of an httpx request with the record of the call that it continues if it is sent again."""

_DEFAULT_TIMEOUTS: Final = {"connect": 5.0, "read": 5.0, "write": 5.0, "pool": 5.0}
"""The default time-outs of httpx. A client with these gets ours, as if its host had chosen none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostRequest(CallContext):
    """The host's request that is being served, over HTTP.

    Attributes:
        request: The request of httpx or httpx2.
        headers: Sent with each request of ours.
        url: The URL of the request.
        user: Equal for requests that go with the same credential: a digest of the headers that may tell users
            apart. It is stored nowhere.
    """

    request: Any = field(repr=False)
    headers: Sequence[tuple[str, str]] = field(repr=False)
    url: str
    user: str = field(repr=False)

    @classmethod
    def of(cls, request: Any, *, is_one_user: bool = False) -> HostRequest:
        """Read a request of httpx or httpx2.

        ``is_one_user``: all requests are of one user, though their credentials differ.
        """
        headers = [
            (name, value)
            for name, value in request.headers.multi_items()
            if name not in _OF_ONE_REQUEST and not name.startswith(_ARGUMENTS)
        ]
        of_a_user = sorted(one for one in headers if _OF_A_USER.search(one[0]))
        user = "" if is_one_user else digest(of_a_user)
        return cls(request=request, headers=headers, url=str(request.url), user=user)

    @property
    def was_refused(self) -> bool:
        """Whether an auth flow sends this request again, with a new credential of the same user."""
        return _RECORD in self.request.extensions

    @property
    def record_id(self) -> str | None:
        """The record of the call that this request continues, if it was refused and is sent again."""
        record_id: str | None = self.request.extensions.get(_RECORD)
        return record_id

    def note_refusal(self, record_id: str | None) -> None:
        """Note on the host's request which call it continues if an auth flow sends it again."""
        self.request.extensions[_RECORD] = record_id

    def name(self, request_id: RequestId | None) -> Hashable:
        """A name that tells a JSON-RPC request from those of other sessions, servers and users, if it can."""
        return self.url, self.user, self.request.headers.get("mcp-session-id"), request_id


class InnerTransport(Transport):
    """Sends requests through a host's transport, ``inner``, which is left open."""

    def __init__(self, library: ModuleType, inner: Any) -> None:
        self.failures = failures_of_httpx(library)
        self._library: Any = library
        self._inner = inner
        self._body = body_class(library)
        self._accepted: WeakSet[HostRequest] = WeakSet()

    @property
    def closed(self) -> bool:
        """Never closed: :class:`HttpCalls` ends its calls before it closes the host's transport."""
        return False

    def has_accepted(self, host: HostRequest) -> bool:
        """True if a server has taken the credential of a host's request, in a request of ours."""
        return host in self._accepted

    async def send(self, url: httpx.URL, request: Request) -> Response:
        """Send a request with the headers and time-outs of the host's request that is its context."""
        host = request.context
        if not isinstance(host, HostRequest):
            raise ConnectionLostError(
                "A request was not sent: no request of the host's is served, so there is no credential.",
                retryable=True,
                not_executed=True,
            )
        ours = {name.lower() for name in request.headers}
        headers = [(name, value) for name, value in host.headers if name not in ours]
        headers += [*request.headers.items(), ("Content-Length", str(len(request.content)))]
        extensions = host.request.extensions  # such as the name for TLS, and the host's time-outs
        timeout = extensions.get("timeout") or _DEFAULT_TIMEOUTS
        if timeout == _DEFAULT_TIMEOUTS:
            timeout = {"connect": CONNECT_S, "read": request.silence_s, "write": WRITE_S, "pool": None}
        sent = self._library.Request(
            request.verb,
            str(url),
            headers=headers,
            stream=self._body(request.content),
            extensions={**extensions, "timeout": dict(timeout)},
        )
        sent.read()  # so that a transport of the host's may look at its content
        response = await self._inner.handle_async_request(sent)
        if response.status_code not in CREDENTIAL_STATUSES:
            self._accepted.add(host)
        return HttpxResponse(response)

    async def aclose(self) -> None:
        """Leave the host's transport open."""
