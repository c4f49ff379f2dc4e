"""A server of 2025-11-25 in the test's own process, whose every reply and stream the test decides.

It is reached over HTTP (``OlderServer`` is a handler of ``httpx.MockTransport``) or over the streams of a
transport of the SDK (``OlderServer.transport``).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
import httpx

from mcp_tasks_client import Clock, ObservedTasks, Session, SystemClock
from mcp_tasks_client.hosts.relay.messages import make_message, read_message
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import RpcError
from mcp_tasks_client.questions.callbacks import Callbacks, Inputs
from mcp_tasks_client.questions.context import CallContext
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.sessions.http.transport import Request, Response
from mcp_tasks_client.sessions.http.transport_httpx import HttpxTransport
from mcp_tasks_client.sessions.v2025.core_session import session_over
from tests._observed import Observed

__all__ = [
    "LIMIT_S",
    "RELATED",
    "TASK",
    "TASKS",
    "Arrived",
    "Noting",
    "OlderServer",
    "Reply",
    "Stream",
    "as_app",
    "question",
    "refusal",
    "text",
]

TASK: Final = "task-1"
RELATED: Final = "io.modelcontextprotocol/related-task"
LIMIT_S: Final = 60.0

TASKS: Final[JSONObject] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}

Reply: TypeAlias = "JSONObject | RpcError | httpx.Response | Stream | Exception | None"


def text(said: str) -> JSONObject:
    return {"content": [{"type": "text", "text": said}]}


def refusal(code: int, message: str, status: int = 200, request_id: object = None) -> httpx.Response:
    error = {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
    return httpx.Response(status, json=error)


def question(
    request_id: object,
    message: str = "Name?",
    *,
    task_id: str | None = TASK,
    method: str = "elicitation/create",
) -> JSONObject:
    """A request of the server's, with the mark of its task."""
    params: JSONObject = {"message": message, "requestedSchema": {"type": "object", "properties": {}}}
    if task_id is not None:
        params["_meta"] = {RELATED: {"taskId": task_id}}
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


class Stream:
    """An event stream that the test writes, and that ends when the test says so."""

    def __init__(self, request_id: object = None) -> None:
        self.request_id = request_id
        self.closed_by_client = anyio.Event()
        self._written: list[bytes] = []
        self._ended = False
        self._news = anyio.Event()

    def event(
        self, message: JSONObject | None, *, event_id: str | None = None, retry_ms: int | None = None
    ) -> None:
        lines = [f"id: {event_id}"] if event_id is not None else []
        lines += [f"retry: {retry_ms}"] if retry_ms is not None else []
        lines += [f"data: {json.dumps(message) if message is not None else ''}"]
        self._written.append("\n".join([*lines, "", ""]).encode())
        self._tell()

    def reply(self, result: JSONObject) -> None:
        self.event({"jsonrpc": "2.0", "id": self.request_id, "result": result})
        self.end()

    def end(self) -> None:
        self._ended = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def response(self) -> httpx.Response:
        async def content() -> AsyncIterator[bytes]:
            try:
                yield b": open\n\n"
                while self._written or not self._ended:
                    if self._written:
                        yield self._written.pop(0)
                    else:
                        await self._news.wait()
            finally:
                self.closed_by_client.set()

        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, content=content())


@dataclass(frozen=True, slots=True)
class Arrived:
    """One request, notification or answer of the client's; a GET has the method ``GET``."""

    method: str
    session_id: str | None
    message: Mapping[str, Any]
    headers: Mapping[str, str] = field(repr=False)

    @property
    def params(self) -> JSONObject:
        params = self.message.get("params")
        return params if isinstance(params, dict) else {}


class Noting(HttpxTransport):
    """Notes with which context each message of the client's is sent."""

    def __init__(self, client: httpx.AsyncClient, sent: list[tuple[str, CallContext | None]]) -> None:
        super().__init__(httpx, client, None, max_idle=1)
        self._sent = sent

    async def send(self, url: httpx.URL, request: Request) -> Response:
        message = json.loads(request.content) if request.content else {}
        self._sent.append((message.get("method", "answer") if message else request.verb, request.context))
        return await super().send(url, request)


class OlderServer:
    """The server.

    Attributes:
        task: Its task, as ``tasks/get`` shows it.
        result: What the task ends with.
        version: The version of the protocol that it speaks.
        capabilities: Those that it declares.
        replies: How each method is answered. A result, an error, a response, a stream, or an exception;
            ``None`` is no answer. Over the streams of a transport, an event stream is no answer either.
        arrived: What the client has sent.
        answers: What the server was answered, by the ID of its request.
        gone: Over HTTP: responses to any request in a session that has ended, by its ID.
        contexts: Over HTTP: with which context each message of the client's was sent.
        results: Over HTTP: the streams of the ``tasks/result`` that have come.
        metadata: Over a transport: what the SDK has noted of each message.
        entered: How often the transport was entered.
        left: How often it was left.
    """

    def __init__(self) -> None:
        self.task: JSONObject = {"taskId": TASK, "status": "working", "ttl": 60_000, "pollInterval": 50}
        self.result = text("done")
        self.version = "2025-11-25"
        self.capabilities: JSONObject = {"tasks": TASKS}
        self.gone: dict[str | None, httpx.Response] = {}
        self.arrived: list[Arrived] = []
        self.answers: dict[Any, Any] = {}
        self.contexts: list[tuple[str, CallContext | None]] = []
        self.results: list[Stream] = []
        self.metadata: list[Any] = []
        self.entered = self.left = 0
        self.server_stream: Stream | None = None
        self.sessions = itertools.count(1)
        self.replies: dict[str, Callable[[Arrived], Reply]] = {
            "initialize": lambda arrived: {
                "protocolVersion": self.version,
                "capabilities": self.capabilities,
                "serverInfo": {"name": "s", "version": "1"},
            },
            "tools/list": lambda arrived: {
                "tools": [
                    {"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}
                    for name, support in (("plain", "forbidden"), ("slow", "required"))
                ]
            },
            "tools/call": lambda arrived: {"task": self.task} if "task" in arrived.params else text("plain"),
            "tasks/get": lambda arrived: self.task,
            "tasks/result": self._result,
            "tasks/cancel": lambda arrived: {**self.task, "status": "cancelled"},
            "ping": lambda arrived: {},
            "GET": lambda arrived: self.server_stream or httpx.Response(405),
            "DELETE": lambda arrived: httpx.Response(200),
            "answer": lambda arrived: httpx.Response(202),
            "notifications/cancelled": lambda arrived: httpx.Response(202),
            "notifications/initialized": lambda arrived: httpx.Response(202),
            "notifications/tasks/status": lambda arrived: httpx.Response(202),
        }
        self._news = anyio.Event()
        self._send: Any = None

    def of(self, method: str) -> list[Arrived]:
        """What has come of a method; ``answer`` is a reply of the client's."""
        return [one for one in self.arrived if one.method == method]

    async def until(self, holds: Callable[[], Any]) -> None:
        """Return once something holds. It is looked at whenever a message has come."""
        while not holds():
            with anyio.move_on_after(0.005):  # it may be about something else than messages
                await self._news.wait()

    async def wait_for(self, method: str, count: int = 1) -> list[Arrived]:
        """What has come of a method, once there is so much."""
        await self.until(lambda: len(self.of(method)) >= count)
        return self.of(method)

    async def wait_for_result(self, count: int = 1) -> Stream:
        """The stream of the latest ``tasks/result``, once there are so many."""
        await self.wait_for("tasks/result", count)
        return self.results[-1]

    def _result(self, arrived: Arrived) -> Reply:
        if self.task["status"] in ("completed", "failed", "cancelled"):
            return self.result
        self.results.append(Stream(arrived.message["id"]))
        return self.results[-1]

    def _note(self, arrived: Arrived) -> None:
        self.arrived.append(arrived)
        if arrived.method == "answer":
            self.answers[arrived.message["id"]] = arrived.message.get("error", arrived.message.get("result"))
        self._news.set()
        self._news = anyio.Event()

    # ── over HTTP ─────────────────────────────────────────────────────────────────────────────

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        await anyio.lowlevel.checkpoint()
        message = json.loads(request.content) if request.content else {}
        method = request.method if not message else message.get("method", "answer")
        arrived = Arrived(method, request.headers.get("mcp-session-id"), message, request.headers)
        self._note(arrived)
        if arrived.session_id in self.gone:
            return self.gone[arrived.session_id]
        said = self.replies[method](arrived)
        if said is None:
            await anyio.sleep_forever()
        if isinstance(said, Exception):
            raise said
        if isinstance(said, RpcError):
            return refusal(said.code, said.message, request_id=message["id"])
        if isinstance(said, Stream):
            said.request_id = message.get("id")
            return said.response()
        if isinstance(said, httpx.Response):
            return said
        headers = {"mcp-session-id": f"s{next(self.sessions)}"} if method == "initialize" else {}
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": said}
        return httpx.Response(200, json=reply, headers=headers)

    @asynccontextmanager
    async def session(
        self,
        observed: ObservedTasks | None = None,
        *,
        inputs: Inputs | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> AsyncIterator[Session]:
        """A session at the server, which runs as it does in a client."""
        preference = {"task_preference": "auto", "task_ttl_s": 60.0, "receive": None, **options}
        inputs = inputs or Callbacks()
        with anyio.fail_after(LIMIT_S):
            async with httpx.AsyncClient(transport=httpx.MockTransport(self)) as client:
                noting = Noting(client, self.contexts)
                http = HttpSession("http://server.example/mcp", http_client=noting)
                session = session_over(http, inputs=inputs, clock=clock or SystemClock(), **preference)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(session.run, observed or Observed())
                    await anyio.wait_all_tasks_blocked()
                    yield session
                    tasks.cancel_scope.cancel()

    # ── over the streams of a transport of the SDK ────────────────────────────────────────────

    async def say(self, message: JSONObject | Exception) -> None:
        """Send a message to the client."""
        with suppress(anyio.ClosedResourceError):  # it has hung up
            await self._send(message if isinstance(message, Exception) else make_message(message))

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[tuple[Any, ...]]:
        """A transport with the server at its end."""
        to_client, client_reads = anyio.create_memory_object_stream[Any](0)
        client_writes, from_client = anyio.create_memory_object_stream[Any](0)

        async def serve() -> None:
            async for message in from_client:
                said = read_message(message)
                self.metadata.append(message.metadata)
                self._note(Arrived(said.get("method", "answer"), None, said, {}))
                if "method" in said and "id" in said:
                    reply = self.replies[said["method"]](self.arrived[-1])
                    if isinstance(reply, RpcError):
                        error = {"code": reply.code, "message": reply.message, "data": reply.data}
                        await self.say({"id": said["id"], "error": error})
                    elif isinstance(reply, dict):
                        await self.say({"id": said["id"], "result": reply})

        self._send, self.hang_up = to_client.send, to_client.close
        self.entered += 1
        async with to_client, client_reads, client_writes, from_client, anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            try:
                yield client_reads, client_writes, lambda: "the-session"
            finally:
                self.left += 1
                tasks.cancel_scope.cancel()


def as_app(server: OlderServer) -> Any:
    """The server as an ASGI application. Its responses are whole before they begin."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                await send({"type": f"{(await receive())['type']}.complete"})
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        request = httpx.Request(
            scope["method"], "http://server.example/mcp", headers=scope["headers"], content=body
        )
        response = await server(request)
        content = await response.aread()
        headers = [one for one in response.headers.raw if one[0].lower() != b"content-length"]
        headers.append((b"content-length", b"%d" % len(content)))
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return app
