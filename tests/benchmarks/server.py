"""A scripted MCP server that costs next to nothing: HTTP/1.1 by hand on asyncio, one process, no dependency.

Prints ``{"url": ...}`` once it listens, and ends when its stdin does. ``GET /witness`` gives what it saw as
JSON. It speaks as much of MCP 2026-07-28 as clients of tasks need, and takes its script from the arguments
of the call: the tool ``work`` becomes a task that is over after ``duration_ms``, and not before its
``polls``-th poll, with ``hint_ms`` as its hint, if that is given; the tool ``plain`` answers at once. Either
result is the time at which the call was answered, on the clock that all processes of a machine share.

Under the path ``/notifying`` it also answers ``subscriptions/listen``, and tells of the end of tasks.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

VERSION: Final = "2026-07-28"
TASKS: Final = "io.modelcontextprotocol/tasks"
TTL_MS: Final = 900_000

EARLY_S: Final = 0.001
"""A poll that comes so much before its time is early. The hint runs from the reply: no network excuses it."""

LISTEN: Final = "subscriptions/listen"
NOTIFYING: Final = "/notifying"
"""The path under which it is known; any other is that of a server which tells nothing by itself."""

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
MISSING_CAPABILITY: Final = -32021

_NUMBER: Final = {"type": "number"}
TOOLS: Final = [
    {"name": "plain", "inputSchema": {"type": "object"}},
    {
        "name": "work",
        "inputSchema": {
            "type": "object",
            "properties": {"duration_ms": _NUMBER, "hint_ms": _NUMBER, "polls": _NUMBER},
        },
    },
]
DISCOVERED: Final = {
    "resultType": "complete",
    "supportedVersions": [VERSION],
    "capabilities": {"tools": {"listChanged": False}, "extensions": {TASKS: {}}},
    "serverInfo": {"name": "benchmark", "version": "1"},
    "ttlMs": 0,
    "cacheScope": "private",
}


Write: TypeAlias = Callable[[bytes], None]


class RefusedError(Exception):
    """A JSON-RPC error; its arguments are the code and the message."""


class Task:
    """One task, as its call has scripted it."""

    __slots__ = ("created", "done_at", "due_at", "fields", "hint_s", "looks", "polled", "polls")

    def __init__(self, task_id: str, script: dict[str, Any], now: float) -> None:
        self.created = now
        self.done_at: float = now + script.get("duration_ms", 0) / 1000
        self.polls: int = script.get("polls", 0)
        self.hint_s = script.get("hint_ms", 0) / 1000  # without a hint no poll is early
        self.due_at = now + self.hint_s
        self.polled = 0
        self.looks = 0
        """Polls before the first hint was over."""
        at = datetime.now(UTC).isoformat()
        self.fields = {
            "taskId": task_id,
            "createdAt": at,
            "lastUpdatedAt": at,
            "ttlMs": TTL_MS,
        }
        if "hint_ms" in script:
            self.fields["pollIntervalMs"] = script["hint_ms"]

    def over(self, now: float) -> bool:
        return now >= self.done_at and self.polls <= 0

    def completed(self) -> dict[str, Any]:
        """The snapshot of its end."""
        return {**self.fields, "status": "completed", "result": _result(self.created)}


class Stream:
    """The reply to one ``subscriptions/listen``: it tells of each task when its time is over.

    Args:
        request_id: The request's.
        tasks: Those to tell of, by ID; one that is over already has no change to be told.
        told: Called with the ID of each task whose end has been told.
    """

    def __init__(self, request_id: Any, tasks: dict[str, Task], told: Callable[[str], None]) -> None:
        self._meta = {"io.modelcontextprotocol/subscriptionId": request_id}
        self._tasks = tasks
        self._told = told
        self._timers: list[asyncio.TimerHandle] = []

    def open(self, write: Write) -> None:
        """Acknowledge, and tell from now on."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        agreed = {"notifications": {"taskIds": list(self._tasks)}}
        write(head + self._event("notifications/subscriptions/acknowledged", agreed))
        loop, now = asyncio.get_running_loop(), time.monotonic()
        self._timers = [
            # The loop's clock is this very one.
            loop.call_at(task.done_at, self._tell, task_id, write)
            for task_id, task in self._tasks.items()
            if not task.over(now)
        ]

    def close(self) -> None:
        """Tell nothing more."""
        for timer in self._timers:
            timer.cancel()

    def _tell(self, task_id: str, write: Write) -> None:
        write(self._event("notifications/tasks", self._tasks[task_id].completed()))
        self._told(task_id)

    def _event(self, method: str, params: dict[str, Any]) -> bytes:
        message = {"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": self._meta}}
        event = b"data: %b\n\n" % json.dumps(message).encode()
        return b"%x\r\n%b\r\n" % (len(event), event)


class BenchmarkServer:
    """Answers requests, and counts them."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.tasks: dict[str, Task] = {}
        self.unfetched: set[str] = set()
        self._verbs = {
            "server/discover": lambda params: DISCOVERED,
            "tools/list": lambda params: {
                "resultType": "complete",
                "tools": TOOLS,
                "ttlMs": 0,
                "cacheScope": "private",
            },
            "tools/call": self._call,
            "tasks/get": self._get,
            "tasks/cancel": self._cancel,
        }

    def witness(self) -> dict[str, float]:
        """How often each method was used, and what was wrong with requests."""
        wrong = dict.fromkeys(("early", "missing_name", "missing_method"), 0)
        tasks = self.tasks.values()
        return {
            **wrong,
            **self.seen,
            "cpu_s": time.process_time(),
            "created": len(tasks),
            "unfetched": len(self.unfetched),
            "most_polls": max((task.polled for task in tasks), default=0),
            "most_looks": max((task.looks for task in tasks), default=0),
        }

    def answer(self, head: bytes, body: bytes) -> bytes | Stream:
        """The reply to one request, whole or yet to be opened; ``head`` is in lower case."""
        if head.startswith(b"get /witness "):
            return _reply(b"200 OK", json.dumps(self.witness()).encode())
        if not head.startswith(b"post "):
            return _reply(b"405 Method Not Allowed", b"")
        message = json.loads(body)
        method, params = message["method"], message.get("params", {})
        self.seen[method] += 1
        if "id" not in message:
            return _reply(b"202 Accepted", b"")
        self._check_headers(head, method, params)
        if method == LISTEN and head.startswith(b"post %b " % NOTIFYING.encode()):
            return self._listen(message["id"], params)
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            if method not in self._verbs:
                raise RefusedError(METHOD_NOT_FOUND, "Method not found")
            reply["result"] = self._verbs[method](params)
        except RefusedError as refused:
            code, words = refused.args
            reply["error"] = {"code": code, "message": words}
        return _reply(b"200 OK", json.dumps(reply).encode())

    def _check_headers(self, head: bytes, method: str, params: dict[str, Any]) -> None:
        if _header(head, b"mcp-method") != method.lower().encode():
            self.seen["missing_method"] += 1
        named = params.get("name") if method == "tools/call" else params.get("taskId")
        if named is not None and _header(head, b"mcp-name") != named.encode():
            self.seen["missing_name"] += 1

    def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        now = time.monotonic()
        if params["name"] == "plain":
            return _result(now)
        if params["name"] != "work":
            raise RefusedError(INVALID_PARAMS, "Unknown tool")
        capabilities = params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        if TASKS not in capabilities.get("extensions", {}):
            raise RefusedError(
                MISSING_CAPABILITY, "The tool makes tasks, which the client does not understand"
            )
        task_id = f"task-{len(self.tasks):08x}-0123456789abcdef"
        task = self.tasks[task_id] = Task(task_id, params.get("arguments") or {}, now)
        self.unfetched.add(task_id)
        return {"resultType": "task", "status": "working", **task.fields}

    def _get(self, params: dict[str, Any]) -> dict[str, Any]:
        task, now = self._task(params), time.monotonic()
        if now < task.due_at - EARLY_S:
            self.seen["early"] += 1
        if now < task.created + task.hint_s - EARLY_S:
            task.looks += 1
        task.due_at = now + task.hint_s
        task.polled += 1
        task.polls -= 1
        if not task.over(now):
            return {"resultType": "complete", "status": "working", **task.fields}
        self.unfetched.discard(params["taskId"])
        return {"resultType": "complete", **task.completed()}

    def _listen(self, request_id: Any, params: dict[str, Any]) -> Stream:
        wanted = dict.fromkeys(params["notifications"]["taskIds"])
        known = {task_id: self.tasks[task_id] for task_id in wanted if task_id in self.tasks}
        return Stream(request_id, known, self._told)

    def _told(self, task_id: str) -> None:
        self.seen["told"] += 1
        self.unfetched.discard(task_id)

    def _cancel(self, params: dict[str, Any]) -> dict[str, Any]:
        self._task(params)
        return {"resultType": "complete"}

    def _task(self, params: dict[str, Any]) -> Task:
        task = self.tasks.get(params["taskId"])
        if task is None:
            raise RefusedError(INVALID_PARAMS, "Unknown task")
        return task


class Connection(asyncio.Protocol):
    """HTTP/1.1 with ``Content-Length``, one request after the other. A stream is the last reply."""

    def __init__(self, server: BenchmarkServer) -> None:
        self._server = server
        self._pending = b""
        self._transport: asyncio.Transport | None = None
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._stream.close()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._pending += data
        while (end := self._pending.find(b"\r\n\r\n")) >= 0:
            head = self._pending[:end].lower()
            if b"\r\ntransfer-encoding:" in head:
                self._transport.write(_reply(b"411 Length Required", b""))
                self._transport.close()
                return
            stop = end + 4 + int(_header(head, b"content-length") or 0)
            if len(self._pending) < stop:
                return
            body, self._pending = self._pending[end + 4 : stop], self._pending[stop:]
            reply = self._server.answer(head, body)
            if isinstance(reply, Stream):
                self._stream = reply
                reply.open(self._transport.write)
            else:
                self._transport.write(reply)


def _result(answered_at: float) -> dict[str, Any]:
    text = {"type": "text", "text": repr(answered_at)}
    return {"resultType": "complete", "content": [text], "isError": False}


def _header(head: bytes, name: bytes) -> bytes:
    return head.partition(b"\r\n" + name + b":")[2].partition(b"\r\n")[0].strip()


def _reply(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


async def serve() -> None:
    """Listen on a free loopback port until stdin ends."""
    loop, ended, server = asyncio.get_running_loop(), asyncio.Event(), BenchmarkServer()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(ended.set)

    # The backlog is that of a client which opens thousands of connections at once.
    listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", backlog=4096)
    threading.Thread(target=wait_for_end, daemon=True).start()
    print(json.dumps({"url": f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"}), flush=True)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(serve())
