"""Durable tasks under a host's HTTP client: a transport of httpx or httpx2 that takes ``tools/call``.

::

    inner = httpx2.AsyncHTTPTransport()
    http_client = httpx2.AsyncClient(transport=TasksHttpTransport(inner), timeout=30)
    async with mcp.Client(streamable_http_client(url, http_client=http_client)) as client:
        result = await client.call_tool("deploy", {"service": "web"})

The host's session sends ``tools/call`` and waits for the reply, as it always does. The call is made here, at
the version in which the server offers tasks, whichever the session has negotiated, and its result is the
reply. All other traffic passes as it is.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, cast

from ...aio.own_task import OwnTasks
from ...aio.uncut import run_to_its_end
from ...engine.engine import OnAbandon
from ...engine.environment import Environment
from ...engine.tool_result import OutputSchema
from ...journal.base import Journal
from ...policy import PollPolicy
from ...protocol import JSONObject
from ...protocol.replies import id_in
from ...questions.callbacks import ElicitationCallback, RootsCallback, SamplingCallback
from ...sessions.http.transport_httpx import class_in, library_of
from ..call_options import without_options
from ..host_call import encode_message, read_host_call, read_message, refuse_unread
from ..shared_options import SharedOptions
from .http_calls import HttpCalls
from .own_requests import HostRequest, InnerTransport
from .servers import Servers

if TYPE_CHECKING:
    import httpx
    import httpx2

    class _AnyTransport(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):  # type: ignore[misc]  # Request differs
        """The base class for type checkers, since the library is known only where an instance is made."""
else:
    _AnyTransport = object

__all__ = ["TasksHttpTransport"]

_WORDS: Final = (b"tools/call", b"initialize", b"notifications/cancelled", b"mcp-tasks-client-")
"""Each message that is read here contains one of these."""

_JSON: Final = "application/json"
_BEFORE_JSON: Final = b" \t\r\n\0\xef\xbb\xbf\xff\xfe"
"""Bytes that may come before JSON in any of its encodings."""

_OF_THE_BODY: Final = frozenset({"content-length", "transfer-encoding"})


class TasksHttpTransport(_AnyTransport):
    """A transport of httpx or httpx2 that sees the tasks of ``tools/call`` through.

    Each ``tools/call`` that passes is made here, over ``inner``, in the caller's own task: with the host's
    headers and time-outs, beneath its auth and event hooks. If the server makes a task of it, the task is
    journaled, and the reply to the host is its result. ``TasksClient(url).resume()`` takes up calls that a
    crash leaves unfinished. The host may have negotiated any version of the protocol. A call that need not
    become a task at a server that offers them only in an older version, and any call while the server cannot
    be asked for its version, passes as it is.

    The journal is opened for the first call. Closing the client ends the calls that still wait; their tasks
    go on.

    The credential of the host's request goes with each request for its task. If the server refuses it
    meanwhile, the host's auth flow gets that as the reply, and the request that it sends next goes on with
    the same task. Where an event stream has begun by then, or the credential was renewed before, a session at
    2026-07-28 is told to call again, and an older one gets an error. An auth that signs the body of a request
    cannot serve others; give that one to ``inner``. Cookies that the server sets in replies to our own
    requests do not reach the host's client.

    Several users may share a client: sessions and lists of tools are apart by credential, and without a
    ``principal`` an idempotency key is refused to another credential than it first came with. Records are not
    apart: give users whose keys others could guess a client with a ``principal`` each.

    A reply is JSON where the host accepts that; but an event stream, with progress and comments, where the
    host asks for progress, or can be asked itself. Without a callback here, the server's questions go to the
    host: at 2026-07-28 in an ``input_required`` result, before that as requests on the event stream. With
    one, all go to the callbacks here.

    An error that no server has sent is a JSON-RPC error -32603, whose message says what to do next.

    Args:
        inner: The library's own transport, such as ``httpx2.AsyncHTTPTransport()``. Closed with this one.
        journal: ``None`` is the user's default SQLite file; a path is another file; a
            :class:`Journal` is used as it is.
        endpoint: The server's name in the journal; ``None`` derives it from the URL of each request.
        principal: On whose behalf; records of one principal are never used for another.
        application: Names the program in the journal, as for :class:`TasksClient`.
        poll: Latency against load.
        elicitation: Answers ``elicitation/create``.
        sampling: Answers ``sampling/createMessage``.
        roots: Answers ``roots/list``.
        on_abandon: A call that the host cancels leaves its task (``"detach"``) or cancels it (``"cancel"``).
        output_schema: How to treat a result that does not match its tool's output schema: ``"raise"`` an
            error that has it, ``"warn"`` in the log, or ``"off"``, without a look at the schema.
        environment: Clock, jitter and process, for tests, and an observer; ``None`` is the real ones.

    Raises:
        TypeError: ``inner`` is a transport of neither library, or ``journal`` none of the above.
        ValueError: ``on_abandon`` or ``output_schema`` is no word for it, or ``application`` is no name.
    """

    def __new__(cls, inner: Any, **options: Any) -> Self:
        """An instance that is also a transport of ``inner``'s library."""
        library = library_of(inner, "AsyncBaseTransport")
        if library is None:
            raise TypeError(
                "inner must be an asynchronous transport of httpx or httpx2, such as "
                f"httpx2.AsyncHTTPTransport(), not {type(inner).__name__}"
            )
        made: Self = object.__new__(class_in(library, "AsyncBaseTransport", cast("Any", cls)))
        return made

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport | httpx2.AsyncBaseTransport,
        *,
        journal: Journal | str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        principal: str = "",
        application: str | None = None,
        poll: PollPolicy | None = None,
        elicitation: ElicitationCallback | None = None,
        sampling: SamplingCallback | None = None,
        roots: RootsCallback | None = None,
        on_abandon: OnAbandon = "detach",
        output_schema: OutputSchema = "raise",
        environment: Environment | None = None,
    ) -> None:
        library = library_of(inner, "AsyncBaseTransport")
        assert library is not None, "__new__ has looked"
        self._library: Any = library
        self._inner: Any = inner
        self._is_one_user = bool(principal)  # a principal is the user of all requests
        options = SharedOptions(
            journal=journal,
            endpoint=endpoint,
            principal=principal,
            application=application,
            elicitation=elicitation,
            sampling=sampling,
            roots=roots,
            poll=poll,
            on_abandon=on_abandon,
            output_schema=output_schema,
            environment=environment,
        )
        engine = options.make_engine()
        asked = options.callbacks if options.callbacks.capabilities else None
        self._servers = Servers(engine, InnerTransport(library, inner), asked, endpoint, principal)
        self._calls = HttpCalls(library, engine, self._servers)
        self._closing = OwnTasks()

    # ── traffic ───────────────────────────────────────────────────────────────────────────────

    async def handle_async_request(self, request: Any) -> Any:
        """Make the call in a request, or pass the request on."""
        content, is_json = await _body_of(request), _kind_of(request) == _JSON
        message = read_message(content) if is_json else None
        if message is not None:
            host = HostRequest.of(request, is_one_user=self._is_one_user)
            match message.get("method"):
                case "tools/call":
                    headers = request.headers
                    version = headers.get("mcp-protocol-version", "")
                    call = read_host_call(message, version, headers.get("accept", ""))
                    response = None if call is None else await self._calls.respond_to(host, call)
                    if response is not None:
                        return response
                    request = self._passing(request, message)
                case "initialize":
                    self._servers.note_declared(host, message)
                case "notifications/cancelled":
                    # The server does not know the request, since a call of ours stands for it.
                    if self._calls.abandon(host, id_in(message.get("params"), "requestId")):
                        return self._library.Response(202)
                case None:
                    if self._calls.take_reply(message):
                        return self._library.Response(202)
        elif content:
            refused = refuse_unread(content, request.headers.get("accept", ""), is_json=is_json)
            if refused is not None:
                host = HostRequest.of(request, is_one_user=self._is_one_user)
                return await self._calls.respond_to(host, refused)
        return await self._inner.handle_async_request(request)

    def _passing(self, request: Any, message: JSONObject) -> Any:
        """The host's request as it goes to the server."""
        params = message.get("params")
        passing = without_options(params) if isinstance(params, dict) else None
        if passing is None:
            return request
        headers = [one for one in request.headers.multi_items() if one[0] not in _OF_THE_BODY]
        content, extensions = encode_message({**message, "params": passing}), request.extensions
        return self._library.Request(
            "POST", request.url, headers=headers, content=content, extensions=extensions
        )

    async def __aenter__(self) -> Self:
        """Enter the inner transport. Nothing is opened yet."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """End the calls that still wait, and leave the inner transport."""
        await self._close(partial(self._inner.__aexit__, exc_type, exc_value, traceback))

    async def aclose(self) -> None:
        """End the calls that still wait, and close the inner transport. Their tasks go on.

        Awaited by code of a call, such as a callback, it returns at once, and the closing goes on.
        """
        await self._close(self._inner.aclose)

    async def _close(self, close_inner: Callable[[], Awaitable[None]]) -> None:
        async def close() -> None:
            try:
                await self._calls.aclose()
            finally:
                await close_inner()

        if self._calls.awaits_caller():
            self._closing.start(close)
            return
        await run_to_its_end(self._closing.wait)
        await close()


async def _body_of(request: Any) -> bytes:
    """The body of a request, if it may be of interest; else empty. A stream is read only if it is JSON."""
    if request.method != "POST":
        return b""
    if _kind_of(request) == _JSON:
        content: bytes = await request.aread()
        # Names that are escaped, or in UTF-16, cannot be found.
        is_opaque = b"\\" in content or b"\0" in content
        return content if is_opaque or any(word in content for word in _WORDS) else b""
    try:
        content = request.content
    except RuntimeError:  # it is streamed
        return b""
    return content if content[:16].strip(_BEFORE_JSON)[:1] in (b"{", b"[") else b""


def _kind_of(request: Any) -> str:
    kind: str = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind
