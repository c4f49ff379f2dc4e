"""A scripted MCP server that costs next to nothing: HTTP/1.1 by hand on asyncio, one process, no dependency.

Prints ``{"url": ...}`` once it listens, and ends when its stdin does. ``GET /witness`` gives what it saw as
JSON. It speaks as much of MCP 2026-07-28 as clients of tasks need, and takes its script from the arguments
of the call: the tool ``work`` becomes a task that is over after ``duration_ms``, and not before its
``polls``-th poll, with ``hint_ms`` as its hint; the tool ``plain`` answers at once. Either result is the
time at which the call was answered, on the clock that all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Final

VERSION: Final = "2026-07-28"
TASKS: Final = "io.modelcontextprotocol/tasks"
TTL_MS: Final = 900_000

EARLY_S: Final = 0.001
"""A poll that comes so much before its time is early. The hint runs from the reply: no network excuses it."""

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


class RefusedError(Exception):
    """A JSON-RPC error; its arguments are the code and the message."""


class Task:
    """One task, as its call has scripted it."""

    __slots__ = ("created", "done_at", "due_at", "fields", "hint_s", "polls")

    def __init__(self, task_id: str, script: dict[str, Any], now: float) -> None:
        self.created = now
        self.done_at = now + script.get("duration_ms", 0) / 1000
        self.polls = script.get("polls", 0)
        self.hint_s = script.get("hint_ms", 1000) / 1000
        self.due_at = now + self.hint_s
        at = datetime.now(UTC).isoformat()
        self.fields = {
            "taskId": task_id,
            "createdAt": at,
            "lastUpdatedAt": at,
            "ttlMs": TTL_MS,
            "pollIntervalMs": script.get("hint_ms", 1000),
        }


class Server:
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

    def witness(self) -> dict[str, int]:
        """How often each method was used, and what was wrong with requests."""
        wrong = dict.fromkeys(("early", "missing_name", "missing_method"), 0)
        return {**wrong, **self.seen, "created": len(self.tasks), "unfetched": len(self.unfetched)}

    def answer(self, head: bytes, body: bytes) -> bytes:
        """The whole reply to one request; ``head`` is in lower case."""
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
        task.due_at = now + task.hint_s
        task.polls -= 1
        if now < task.done_at or task.polls > 0:
            return {"resultType": "complete", "status": "working", **task.fields}
        self.unfetched.discard(params["taskId"])
        return {
            "resultType": "complete",
            "status": "completed",
            **task.fields,
            "result": _result(task.created),
        }

    def _cancel(self, params: dict[str, Any]) -> dict[str, Any]:
        self._task(params)
        return {"resultType": "complete"}

    def _task(self, params: dict[str, Any]) -> Task:
        task = self.tasks.get(params["taskId"])
        if task is None:
            raise RefusedError(INVALID_PARAMS, "Unknown task")
        return task


class Connection(asyncio.Protocol):
    """HTTP/1.1 with ``Content-Length``, one request after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._pending = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

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
            self._transport.write(self._server.answer(head, body))


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
    loop, ended, server = asyncio.get_running_loop(), asyncio.Event(), Server()

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
