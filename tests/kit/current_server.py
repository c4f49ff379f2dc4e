"""A server of 2026-07-28 whose every reply the test decides: in this process, or at a loopback port.

A reply may be wrong on purpose, which is why the server is not built with the SDK's own one. Where a server
keeps to the protocol, tests take ``mcp_tasks_client.testing.ScriptedServer``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import anyio
from anyio.abc import ByteStream, SocketAttribute
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse

from mcp_tasks_client.policy import PollPolicy

__all__ = [
    "ACKNOWLEDGED",
    "DISCOVERED",
    "DONE",
    "DROP",
    "LIMIT_S",
    "NEVER",
    "QUESTION",
    "QUICK",
    "RESULT",
    "TASK_ID",
    "TOOL",
    "WORKING",
    "Answer",
    "CurrentServer",
    "Fault",
    "Http",
    "Made",
    "asking",
    "at_loopback",
    "completed",
    "in_memory",
    "working",
]

LIMIT_S: Final = 60.0
"""Seconds that a test may wait for anything."""

TASK_ID: Final = "task-0123456789abcdef"
RESULT: Final[dict[str, Any]] = {"content": [{"type": "text", "text": "done"}], "structuredContent": {"n": 1}}
TOOL: Final[dict[str, Any]] = {
    "name": "tool",
    "inputSchema": {"type": "object"},
    "outputSchema": {"type": "object", "required": ["n"]},
}
QUICK: Final = PollPolicy(
    floor_s=0.001, ceiling_s=0.001, jitter=0.0, backoff_floor_s=0.001, backoff_ceiling_s=0.01
)
QUESTION: Final[dict[str, Any]] = {
    "method": "elicitation/create",
    "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
}
ACKNOWLEDGED: Final[dict[str, Any]] = {"resultType": "complete"}
DISCOVERED: Final[dict[str, Any]] = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
    "ttlMs": 0,
    "cacheScope": "public",
}


def working(task_id: str = TASK_ID, **fields: Any) -> dict[str, Any]:
    """A task in ``working``, as the reply to ``tools/call`` or to a poll. Fields are named as on the wire."""
    return _task("working", task_id, fields)


def completed(task_id: str = TASK_ID, result: dict[str, Any] | None = None) -> dict[str, Any]:
    """A task with a result, as the reply to a poll."""
    return _task("completed", task_id, {"result": RESULT if result is None else result})


def asking(**questions: dict[str, Any]) -> dict[str, Any]:
    """A task that asks, as the reply to ``tools/call`` or to a poll."""
    return _task("input_required", TASK_ID, {"inputRequests": questions})


def _task(status: str, task_id: str, fields: dict[str, Any]) -> dict[str, Any]:
    at = "2026-07-28T00:00:00Z"
    times = {"createdAt": at, "lastUpdatedAt": at, "ttlMs": None, "pollIntervalMs": 1}
    return {"resultType": "task", "taskId": task_id, "status": status, **times, **fields}


WORKING: Final = working()
DONE: Final = completed()
NEVER: Final[dict[str, Any]] = {}
"""A step that the server never replies to."""


@dataclass(eq=False)
class Fault(Exception):  # noqa: N818  # a reply like others, which is raised
    """A JSON-RPC error as the reply."""

    code: int
    message: str
    data: Any = None


@dataclass(eq=False)
class Http(Exception):  # noqa: N818  # likewise
    """Bytes as the reply, after which the connection is closed; in memory there is no reply.

    Attributes:
        status: With reason.
        body: As it is.
        headers: Besides the length.
        length: Of the body, ``None`` if it is true.
    """

    status: str
    body: bytes = b""
    headers: Sequence[str] = ()
    length: int | None = None


DROP: Final = Http("")
"""No reply: the connection is closed."""

Answer: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
Step: TypeAlias = dict[str, Any] | Exception | Callable[[str, dict[str, Any]], dict[str, Any]]
Made: TypeAlias = Callable[..., Any]
"""Makes a client of the SDK or of FastMCP."""


class CurrentServer:
    """Makes a task of each call, and completes it at the second poll, unless the test says otherwise.

    Args:
        calls: Replies to ``tools/call``; the last one is repeated.
        gets: Replies to ``tasks/get``, of whatever task; the last one is repeated.
        tool: Its only tool.

    Attributes:
        replies: How each method is answered: by a step, or by several, of which the last one is repeated. A
            step is a reply, or makes one of the method and the params.
        received: Every request, in order.
        waiting: Set when the server has stopped answering, at a step that is :data:`NEVER`.
        pause_s: Seconds before each reply.
    """

    def __init__(
        self,
        *,
        calls: Sequence[Step] = (WORKING,),
        gets: Sequence[Step] = (WORKING, DONE),
        tool: dict[str, Any] = TOOL,
    ) -> None:
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.waiting = anyio.Event()
        self.pause_s = 0.0
        self.replies: dict[str, Step | list[Step]] = {
            "server/discover": DISCOVERED,
            "tools/call": [*calls],
            "tasks/get": [*map(_as_snapshot, gets)],
            "tasks/update": ACKNOWLEDGED,
            "tasks/cancel": ACKNOWLEDGED,
        }
        self.list_tool(tool)
        self._news = anyio.Event()

    def list_tool(self, tool: dict[str, Any]) -> None:
        """List this tool from now on."""
        listed = {**ACKNOWLEDGED, "tools": [tool], "ttlMs": 0, "cacheScope": "public"}
        self.replies["tools/list"] = listed

    @property
    def methods(self) -> list[str]:
        """The method of each request, in order."""
        return [method for method, _ in self.received]

    @property
    def counts(self) -> Counter[str]:
        """How many requests of each method there were."""
        return Counter(self.methods)

    @property
    def requests(self) -> list[tuple[str, dict[str, Any]]]:
        """The requests about calls and tasks: without those for the version and the tools."""
        others = ("server/discover", "tools/list", "notifications/")
        return [one for one in self.received if not one[0].startswith(others)]

    async def wait_for(self, method: str, count: int) -> None:
        """Return once there were so many requests of a method."""
        while self.counts[method] < count:
            await self._news.wait()

    def take(self, method: str, params: dict[str, Any]) -> dict[str, Any] | Exception:
        """The reply to a request."""
        self.received.append((method, params))
        self._news.set()
        self._news = anyio.Event()
        steps = self.replies.get(method, Fault(-32601, "Method not found"))
        if isinstance(steps, list):
            steps = steps.pop(0) if len(steps) > 1 else steps[0]
        return steps(method, params) if callable(steps) else steps

    async def __call__(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer a request, by raising where the reply is no result."""
        step = self.take(method, params)
        await anyio.sleep(self.pause_s)
        if isinstance(step, Exception):
            raise step
        if not step:
            self.waiting.set()
            await anyio.sleep_forever()
        return step


def _as_snapshot(step: Step) -> Step:
    """A task as the reply to a poll."""
    if not isinstance(step, dict) or "taskId" not in step:
        return step
    return {**step, "resultType": "complete"}


@asynccontextmanager
async def in_memory(answer: Answer) -> AsyncIterator[Any]:
    """A transport for ``mcp.Client``, whose other end answers."""

    async def reply(request: JSONRPCRequest, writer: Any) -> None:
        message: JSONRPCResponse | JSONRPCError
        try:
            result = await answer(request.method, dict(request.params or {}))
            message = JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result)
        except Fault as fault:
            data = ErrorData(code=fault.code, message=fault.message, data=fault.data)
            message = JSONRPCError(jsonrpc="2.0", id=request.id, error=data)
        except Http:
            return
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the client may have gone
            await writer.send(SessionMessage(message))

    async def serve(reader: Any, writer: Any) -> None:
        async with anyio.create_task_group() as requests:
            async for received in reader:
                if isinstance(received.message, JSONRPCRequest):  # what it is notified of, it ignores
                    requests.start_soon(reply, received.message, writer)

    async with (
        create_client_server_memory_streams() as (client, (reader, writer)),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(serve, reader, writer)
        yield client
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def at_loopback(answer: Answer, heads: list[str] | None = None) -> AsyncIterator[str]:
    """A server over HTTP/1.1 for the length of the block; its URL. Notes requests' heads, in lower case."""
    heads = [] if heads is None else heads
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, lambda stream: _connection(stream, answer, heads))
            yield f"http://127.0.0.1:{port}/mcp"
            tasks.cancel_scope.cancel()


async def _connection(stream: ByteStream, answer: Answer, heads: list[str]) -> None:
    async with stream:
        try:
            while True:
                message = await _request(stream, heads)
                reply = await _reply(message, answer)
                await stream.send(reply)
        except Http as last:
            if last is not DROP:
                with anyio.CancelScope(shield=True):
                    await stream.send(_response(last))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass


async def _request(stream: ByteStream, heads: list[str]) -> dict[str, Any]:
    buffer = b""
    while b"\r\n\r\n" not in buffer:
        buffer += await stream.receive()
    head, _, body = buffer.partition(b"\r\n\r\n")
    heads.append(head.decode().lower())
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
    while len(body) < length:
        body += await stream.receive()
    message: dict[str, Any] = json.loads(body) if body else {}
    return message


async def _reply(message: Mapping[str, Any], answer: Answer) -> bytes:
    if message.get("id") is None:
        return _response(Http("202 Accepted"))
    envelope: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        envelope["result"] = await answer(message["method"], message.get("params") or {})
    except Fault as fault:
        data = {} if fault.data is None else {"data": fault.data}
        envelope["error"] = {"code": fault.code, "message": fault.message, **data}
    return _response(Http("200 OK", json.dumps(envelope).encode(), ["Content-Type: application/json"]))


def _response(reply: Http) -> bytes:
    length = len(reply.body) if reply.length is None else reply.length
    head = [f"HTTP/1.1 {reply.status}", *reply.headers, f"Content-Length: {length}", "", ""]
    return "\r\n".join(head).encode() + reply.body
