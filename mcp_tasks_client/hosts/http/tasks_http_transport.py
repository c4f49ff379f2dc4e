"""Durable tasks under a host's HTTP client: a transport of httpx or httpx2 that makes ``tools/call`` itself.

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

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, cast

import anyio
from mcp_types import INTERNAL_ERROR

from ...callbacks import Callbacks, ElicitationCallback, RootsCallback, SamplingCallback
from ...engine.cancellation import OnAbandon
from ...engine.engine import Engine
from ...engine.environment import Environment
from ...engine.live_call import OnUpdate
from ...engine.outcome import as_rpc_error
from ...engine.progress import Progress
from ...errors import CredentialRefusedError, IdempotencyConflictError, SessionError
from ...handle import detached
from ...journal.base import Journal
from ...journal.sqlite import choose_journal
from ...policy import PollPolicy
from ...protocol import JSONObject, RequestId
from ...protocol.replies import RpcError, id_in
from ...sessions.http.transport_httpx import library_of
from ...uncut import run_to_its_end
from ..host_call import HostCall, as_event, encode_reply, questions_for, read_host_call, read_message
from ..host_calls import HostCalls, Made
from .own_requests import HostRequest, InnerTransport
from .reply_stream import Questions, ReplyStream
from .servers import Server, Servers

if TYPE_CHECKING:
    import httpx
    import httpx2

    class _AnyTransport(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):  # type: ignore[misc]
        """What type checkers see, since the library is known only where an instance is made."""
else:
    _AnyTransport = object

__all__ = ["TasksHttpTransport"]

logger = logging.getLogger("mcp_tasks_client")


_WORDS: Final = (b"tools/call", b"initialize", b"notifications/cancelled", b"mcp-tasks-client-")
"""One of these stands in each message that is of interest here."""

_RECORD: Final = "mcp_tasks_client.record_id"
"""The extension of an httpx request that names the record of its call, should an auth flow send it again."""


class TasksHttpTransport(_AnyTransport):
    """A transport of httpx or httpx2 that sees the tasks of ``tools/call`` through.

    Each ``tools/call`` that passes is made here, over ``inner``, in the caller's own task: with the host's
    headers and time-outs, beneath its auth and event hooks. If the server makes a task of it, the task is
    journaled, and the reply to the host is its result. What a crash leaves unfinished,
    ``TasksClient(url).resume()`` takes up. The host may have negotiated any version of the protocol. A call
    that need not become a task at a server that offers them only in an older version, and any call while the
    server cannot be asked for its version, passes as it is.

    The journal is opened for the first call. Closing the client ends the calls that still wait; their tasks
    go on.

    The credential of the host's request goes with each request for its task. If the server refuses it
    meanwhile, the host's auth flow gets that as the reply, and the request that it sends next goes on with
    the same task. Where an event stream has begun by then, a session at 2026-07-28 is told to call again, and
    an older one gets an error. An auth that signs the body of a request cannot serve others; give that one to
    ``inner``. Cookies that the server sets in replies to our own requests do not reach the host's client.

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
        poll: Latency against load.
        elicitation: Answers ``elicitation/create``.
        sampling: Answers ``sampling/createMessage``.
        roots: Answers ``roots/list``.
        on_abandon: What happens to the task of a call that the host cancels: ``"detach"`` or ``"cancel"``.
        environment: Clock, jitter and process, for tests, and who observes calls; ``None`` is the real ones.

    Raises:
        TypeError: ``inner`` is a transport of neither library, or ``journal`` none of the above.
        ValueError: ``on_abandon`` is neither word.
    """

    def __new__(cls, inner: Any, **options: Any) -> Self:
        """An instance that is a transport of the library that ``inner`` is of."""
        library = library_of(inner, "AsyncBaseTransport")
        if library is None:
            raise TypeError(
                "inner must be an asynchronous transport of httpx or httpx2, such as "
                f"httpx2.AsyncHTTPTransport(), not {type(inner).__name__}"
            )
        made: Self = object.__new__(_shell(cast("Any", cls), library, "AsyncBaseTransport"))
        return made

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport | httpx2.AsyncBaseTransport,
        *,
        journal: Journal | str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        principal: str = "",
        poll: PollPolicy | None = None,
        elicitation: ElicitationCallback | None = None,
        sampling: SamplingCallback | None = None,
        roots: RootsCallback | None = None,
        on_abandon: OnAbandon = "detach",
        environment: Environment | None = None,
    ) -> None:
        library = library_of(inner, "AsyncBaseTransport")
        assert library is not None, "__new__ has looked"
        self._library: Any = library
        self._inner: Any = inner
        self._principal = principal
        self._environment = environment or Environment()
        self._callbacks: Callbacks | None = None
        if elicitation or sampling or roots:
            self._callbacks = Callbacks(elicitation=elicitation, sampling=sampling, roots=roots)
        self._engine = Engine(
            journal=choose_journal(journal),
            policy=poll or PollPolicy(),
            on_abandon=on_abandon,
            handle_of=detached,
            environment=self._environment,
        )
        self._calls = HostCalls(self._engine, asks_host=self._callbacks is None)
        requests = InnerTransport(library, inner)
        self._servers = Servers(self._engine, requests, self._callbacks, endpoint, principal)
        self._questions = Questions()
        self._under_way: dict[object, list[Callable[[], object]]] = {}
        self._call_ended = anyio.Event()
        self._closed = False

    # ── traffic ───────────────────────────────────────────────────────────────────────────────

    async def handle_async_request(self, request: Any) -> Any:
        """Make the call that a request is, or pass the request on."""
        message = await _message_of(request)
        if message is not None:
            match message.get("method"):
                case "tools/call":
                    headers = request.headers
                    version = headers.get("mcp-protocol-version", "")
                    call = read_host_call(message, version, headers.get("accept", ""))
                    if call is not None and not self._closed:
                        return await self._serve(request, call)
                case "initialize":
                    self._servers.note_declared(self._read_host(request), message)
                case "notifications/cancelled":
                    # The server does not know the request, since a call of ours stands for it.
                    if self._abandon(request, message):
                        return self._library.Response(202)
                case None:
                    if self._questions.take(message):
                        return self._library.Response(202)
        return await self._inner.handle_async_request(request)

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
        try:
            await self._close()
        finally:
            await self._inner.__aexit__(exc_type, exc_value, traceback)

    async def aclose(self) -> None:
        """End the calls that still wait, and close the inner transport. Their tasks go on."""
        try:
            await self._close()
        finally:
            await self._inner.aclose()

    async def _close(self) -> None:
        self._closed = True
        await run_to_its_end(self._end_calls)

    async def _end_calls(self) -> None:
        for cancels in list(self._under_way.values()):
            for cancel in cancels:
                cancel()
        while self._under_way:
            self._call_ended = anyio.Event()
            await self._call_ended.wait()
        await self._calls.aclose()
        await self._servers.aclose()

    # ── one call ──────────────────────────────────────────────────────────────────────────────

    async def _serve(self, request: Any, call: HostCall) -> Any:
        host = self._read_host(request)
        server = self._servers.find(host, call)
        try:
            self._servers.check_key(host, call, is_renewed=_RECORD in request.extensions)
            if not await server.takes(call, host):
                return await self._inner.handle_async_request(request)
        except CredentialRefusedError as error:
            return self._respond(_refused(request, host, call, error))
        except (IdempotencyConflictError, SessionError) as error:
            return self._respond(_Reply(encode_reply(call.request_id, as_rpc_error(error))))
        make = partial(self._make_reply, request, host, call, server)
        asks = self._callbacks is None and not call.is_current and bool(server.inputs.capabilities)
        if call.reads_events and (call.progress_token is not None or asks or not call.reads_json):
            return await self._stream(request, host, call, make, asks=asks)
        reply: _Reply | None = None
        with anyio.CancelScope() as scope, self._note_under_way(self._name_call(request, call), scope.cancel):
            reply = await make(None)
        return self._respond(reply or self._end_early(request, call))

    async def _stream(
        self,
        request: Any,
        host: HostRequest,
        call: HostCall,
        make: Callable[[ReplyStream | None], Any],
        *,
        asks: bool,
    ) -> Any:
        """The reply as an event stream; or as JSON, if the call has ended before there was any event."""
        replies: list[_Reply] = []
        is_begun = False
        stream: ReplyStream

        async def work() -> None:
            with self._note_under_way(self._name_call(request, call), stream.cancel):
                host.ask = partial(self._questions.ask, stream) if asks else None
                reply = await make(stream)
                record_id = request.extensions.get(_RECORD)
                if is_begun and reply.status != 200 and call.is_current and record_id is not None:
                    # A status comes too late. The session calls again, and then its auth flow gets it.
                    again = questions_for({}, state=None, record_id=record_id)
                    reply = _Reply(encode_reply(call.request_id, again))
                replies.append(reply)

        stream = ReplyStream(work, self._environment.clock)
        body = self._make_body(stream, lambda: replies[0] if replies else _abandoned(call))
        try:
            await stream.start()
        except BaseException:
            await body.aclose()
            raise
        if stream.over and not stream.begun and call.reads_json:
            return self._respond(replies[0] if replies else self._end_early(request, call))
        is_begun = True
        headers = {"content-type": "text/event-stream", "cache-control": "no-store"}
        return self._library.Response(200, headers=headers, stream=body)

    async def _make_reply(
        self, request: Any, host: HostRequest, call: HostCall, server: Server, stream: ReplyStream | None
    ) -> _Reply:
        """Make the call, and see it through to what the host is told. Raises nothing of its own."""
        tool_call, listeners = replace(call.tool_call, context=host), list[OnUpdate]()
        if stream is not None and call.progress_token is not None:
            progress = Progress(call.progress_token, stream.send)
            listeners.append(progress.tell)
            if not server.is_older:
                meta = {**(tool_call.meta or {}), "progressToken": call.progress_token}
                tool_call = replace(tool_call, meta=meta, hear=progress.hear)
        server.calls += 1
        try:
            made = await self._calls.make(
                call,
                tool_call,
                server.endpoint,
                record_id=request.extensions.get(_RECORD, call.record_id),
                listeners=listeners,
            )
        except CredentialRefusedError as error:
            return _refused(request, host, call, error)
        finally:
            server.calls -= 1
        return _Reply(encode_reply(call.request_id, made.reply), made=made)

    def _respond(self, reply: _Reply) -> Any:
        headers = {
            **reply.headers,
            "content-type": "application/json",
            "content-length": str(len(reply.body)),
        }
        body = self._make_body(None, lambda: reply)
        return self._library.Response(reply.status, headers=headers, stream=body)

    def _make_body(self, stream: ReplyStream | None, last: Callable[[], _Reply]) -> _Body:
        body: _Body = _shell(_Body, self._library, "AsyncByteStream")(self._calls, stream, last)
        return body

    # ── calls under way ───────────────────────────────────────────────────────────────────────

    @contextmanager
    def _note_under_way(self, name: object, cancel: Callable[[], object]) -> Iterator[None]:
        """Note how to end a call, for as long as it is under way."""
        cancels = self._under_way.setdefault(name, [])
        cancels.append(cancel)
        try:
            yield
        finally:
            cancels.remove(cancel)
            if not cancels:
                del self._under_way[name]
            self._call_ended.set()

    def _abandon(self, request: Any, message: JSONObject) -> bool:
        """End the call that the host has given up by a notification. Returns whether there is one.

        Two sessions of a host without session IDs may use one JSON-RPC ID at the same time. Nobody can tell
        then whose call is given up, so that both go on.
        """
        request_id = id_in(message.get("params"), "requestId")
        cancels = self._under_way.get(self._name_request(request, request_id), [])
        if len(cancels) == 1:
            cancels[0]()
        return bool(cancels)

    def _name_call(self, request: Any, call: HostCall) -> object:
        """The name under which a host can give a call up. At 2026-07-28 it closes the response instead."""
        return object() if call.is_current else self._name_request(request, call.request_id)

    def _name_request(self, request: Any, request_id: RequestId | None) -> object:
        """What tells a request from those of other sessions, servers and users, as far as can be told."""
        host = self._read_host(request)
        return host.url, host.user, request.headers.get("mcp-session-id"), request_id

    def _read_host(self, request: Any) -> HostRequest:
        # A principal says whose all requests are.
        return HostRequest.of(request, is_one_user=bool(self._principal))

    def _end_early(self, request: Any, call: HostCall) -> _Reply:
        if self._closed:
            raise self._library.ReadError(
                "The client was closed under a call. If there is a task, it goes on: "
                "TasksClient(url).resume() takes it up.",
                request=request,
            )
        return _abandoned(call)


@dataclass(frozen=True, slots=True)
class _Reply:
    """What the host is told."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    made: Made | None = None
    """To be delivered or dropped."""


class _Body(AsyncIterator[bytes]):
    """The body of a reply. That the host has read it is what delivers the outcome."""

    def __init__(self, calls: HostCalls, stream: ReplyStream | None, last: Callable[[], _Reply]) -> None:
        self._calls = calls
        self._stream = stream
        self._last = last
        self._is_read = False

    async def __anext__(self) -> bytes:
        if self._is_read:
            raise StopAsyncIteration
        event = await self._stream.next() if self._stream is not None else None
        if event is not None:
            return event
        self._is_read = True
        body = self._last().body
        return body if self._stream is None else as_event(body)

    async def aclose(self) -> None:
        """End the call, if it has not ended, and note what has become of its outcome."""
        if self._stream is not None and not self._stream.over:
            await self._stream.stop()
        made = self._last().made
        if made is not None and self._is_read:
            self._calls.deliver(made)
        elif made is not None:
            await self._calls.drop(made)


@cache
def _shell(cls: Any, library: ModuleType, base: str) -> type[Any]:
    """``cls`` as a class of one of the libraries, since their clients want instances of their own."""
    named = {"__doc__": cls.__doc__, "__module__": cls.__module__}
    return type(cls.__name__, (cls, getattr(library, base)), named)


async def _message_of(request: Any) -> JSONObject | None:
    """The JSON-RPC message in a request, if it may be of interest. Other bodies are left unread."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method != "POST" or kind != "application/json":
        return None
    content: bytes = await request.aread()
    return read_message(content) if any(word in content for word in _WORDS) else None


def _abandoned(call: HostCall) -> _Reply:
    """What nobody waits for any more."""
    error = RpcError(INTERNAL_ERROR, "The host has given the call up. If there is a task, it goes on.", None)
    return _Reply(encode_reply(call.request_id, error))


def _refused(request: Any, host: HostRequest, call: HostCall, error: CredentialRefusedError) -> _Reply:
    """The refusal of a credential, for the host's auth flow, which may send the request again."""
    reference = error.handle.reference if error.handle is not None else None
    record_id = call.record_id
    if reference is not None and reference["task_id"] is not None:
        record_id = reference["record_id"]
    request.extensions[_RECORD] = record_id
    body = encode_reply(call.request_id, as_rpc_error(error))
    return _Reply(body, error.http_status or 401, host.refusal or {})
