"""Servers behind the bridge: one set of tools at each version, reached without sockets.

===========  ==============================================================
``plain``    answers at once, with fields that no version knows
``work``     makes a task, if it can
``must``     refuses to be called without one
``bad``      a task that ends in a result with ``isError``
``fails``    a task that ends in a JSON-RPC error with data
``asks``     asks for a name
===========  ==============================================================
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import httpcore
import httpx

from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.testing import ScriptedServer, ask, complete, fail, form, reply, work
from tests.kit.current_server import CurrentServer, Fault
from tests.kit.older_server import TASKS, Arrived, OlderServer, Stream, question

__all__ = ["DATA", "RICH", "SERVERS", "URL", "Wire", "behind", "replying", "scripted"]

URL: Final = "http://server.test/mcp"
SERVERS: Final = ("2026-07-28", "2025-11-25", "no tasks")

RICH: Final[JSONObject] = {
    "content": [
        {
            "type": "text",
            "text": "done",
            "x-block": {"a": [1]},
            "annotations": {"priority": 0.5, "x-note": True},
        },
        {"type": "text", "text": "more", "_meta": {"x.test/block": 1}},
    ],
    "structuredContent": {"n": 1, "deep": {"x-own": [None, 1.5]}},
    "isError": False,
    "x-top": {"b": [{"c": None}]},
    "_meta": {"x.test/result": {"d": 1}},
}
"""A result with unknown fields at each level."""

BAD: Final[JSONObject] = {"content": [{"type": "text", "text": "no"}], "isError": True}
DATA: Final[JSONObject] = {"retryAfter": 7, "deep": [1]}
SUPPORT: Final = {"plain": "forbidden", "must": "required"}
TOOLS: Final = ("plain", "work", "must", "bad", "fails", "asks")


class Wire(httpx.AsyncBaseTransport):
    """The way to a server, on which a test holds up, loses and refuses requests.

    Attributes:
        sent: The method and the params of each request, in order.
        headers: Of each of them.
        given_up: The tools of which a call was given up before its reply.
        server: The kind of server at its end.
        is_away: Whether no connection comes about.
        refused: How many requests found no connection.
        lost: The tools of which the reply to a call is lost.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, server: str = "2026-07-28") -> None:
        self._inner = inner
        self.server = server
        self._held: dict[str, anyio.Event] = {}
        self.sent: list[tuple[str, JSONObject]] = []
        self.headers: list[httpx.Headers] = []
        self.given_up: list[str] = []
        self.is_away = False
        self.refused = 0
        self.lost: set[str] = set()

    def hold(self, name: str) -> None:
        """Hold up requests of a method, or calls of a tool, from now on."""
        self._held[name] = anyio.Event()

    def let_go(self, name: str) -> None:
        """Let what was held go on."""
        self._held.pop(name).set()

    def calls(self, tool: str) -> list[JSONObject]:
        """The params of the calls of a tool."""
        return [params for params in self.of("tools/call") if params["name"] == tool]

    def of(self, method: str) -> list[JSONObject]:
        """The params of the requests of a method."""
        return [params for name, params in self.sent if name == method]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        message = json.loads(await request.aread() or b"{}")
        method, params = message.get("method", ""), message.get("params", {})
        tool = params.get("name", "") if method == "tools/call" else ""
        self._refuse_while_away()
        self.sent.append((method, params))
        self.headers.append(request.headers)
        try:
            for name in (method, tool):
                if name in self._held:
                    await self._held[name].wait()
        except BaseException:
            self.given_up.append(tool or method)
            raise
        self._refuse_while_away()
        response = await self._inner.handle_async_request(request)
        if tool in self.lost:
            raise httpx.ReadError("the connection broke")
        return response

    def _refuse_while_away(self) -> None:
        if self.is_away:
            self.refused += 1
            # As httpx raises it, since it is only believed where httpcore says so.
            raise httpx.ConnectError("refused") from httpcore.ConnectError()


@asynccontextmanager
async def behind(server: str) -> AsyncIterator[Wire]:
    """The tools at a server of a version."""
    inner: httpx.AsyncBaseTransport
    if server == "2026-07-28":
        inner = httpx.ASGITransport(scripted().app)
    else:
        inner = httpx.MockTransport(_OlderTools(makes_tasks=server != "no tasks"))
    async with inner:
        yield Wire(inner, server)


def replying(replies: Mapping[str, Any]) -> Wire:
    """A server of 2026-07-28 that has these replies; see :class:`CurrentServer`."""
    server = CurrentServer()
    server.replies |= replies

    async def answer(request: httpx.Request) -> httpx.Response:
        message = json.loads(request.content)
        if "id" not in message:
            return httpx.Response(202)
        envelope = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            envelope["result"] = await server(message["method"], message.get("params", {}))
        except Fault as fault:
            envelope["error"] = {"code": fault.code, "message": fault.message, "data": fault.data}
        return httpx.Response(200, json=envelope)

    return Wire(httpx.MockTransport(answer))


def scripted() -> ScriptedServer:
    """The tools at 2026-07-28."""
    server = ScriptedServer(endpoint=URL)
    server.tool("plain", [reply(RICH)], output_schema={"type": "object"})
    for name in ("work", "must"):
        server.tool(name, [work(0.01, "half way"), complete(RICH)], poll_interval_ms=1)
    server.tool("bad", [work(0.01), complete(BAD)], poll_interval_ms=1)
    server.tool("fails", [work(0.01), fail(-32050, "quota exceeded", DATA)], poll_interval_ms=1)

    def greet(answers: Any) -> JSONObject:
        return _greeting(answers["name"])

    steps = [ask("name", form("Who?", name="string")), complete(greet)]
    server.tool("asks", steps, poll_interval_ms=1, settle_s=0.0)
    return server


def _greeting(answer: JSONObject) -> JSONObject:
    said = answer["content"]["name"] if answer["action"] == "accept" else answer["action"]
    return {"content": [{"type": "text", "text": f"hello {said}"}]}


class _Replies(dict[str, Callable[[Arrived], Any]]):
    def __missing__(self, method: str) -> Callable[[Arrived], Any]:
        return lambda arrived: _refusal(arrived, -32601, "Method not found")


class _OlderTools(OlderServer):
    """The tools at 2025-11-25."""

    def __init__(self, *, makes_tasks: bool) -> None:
        super().__init__()
        self.capabilities = {"tools": {}, **({"tasks": TASKS} if makes_tasks else {})}
        self._makes_tasks = makes_tasks
        self._tasks: dict[str, dict[str, Any]] = {}
        self._asking: dict[Any, tuple[Stream, str | None]] = {}
        self.replies = _Replies(
            {
                **self.replies,
                "tools/list": self._list,
                "tools/call": self._call,
                "tasks/get": self._get,
                "tasks/result": self._end,
                "tasks/cancel": self._cancel,
                "answer": self._take,
            }
        )

    def _list(self, arrived: Arrived) -> JSONObject:
        tools = []
        for name in TOOLS:
            support = SUPPORT.get(name, "optional")
            execution = {"execution": {"taskSupport": support}} if self._makes_tasks else {}
            schema = {"outputSchema": {"type": "object"}} if name == "plain" else {}
            tools.append({"name": name, "inputSchema": {"type": "object"}, **execution, **schema})
        return {"tools": tools}

    def _call(self, arrived: Arrived) -> Any:
        name = arrived.params["name"]
        if "task" not in arrived.params:
            if name == "must" and self._makes_tasks:
                return _refusal(arrived, -32601, "it needs a task")
            return self._finish(name, arrived, None)
        task_id = f"task-{len(self._tasks) + 1}"
        self._tasks[task_id] = {"tool": name, "polls": 0, "status": "working"}
        return {"task": self._shown(task_id)}

    def _shown(self, task_id: str) -> JSONObject:
        status = self._tasks[task_id]["status"]
        return {
            "taskId": task_id,
            "status": status,
            "ttl": 60_000,
            "pollInterval": 1,
            **({"statusMessage": "half way"} if status == "working" else {}),
        }

    def _get(self, arrived: Arrived) -> JSONObject:
        task_id = arrived.params["taskId"]
        task = self._tasks[task_id]
        task["polls"] += 1
        if task["status"] == "working" and task["polls"] > 1:
            ends = {"asks": "input_required", "bad": "failed", "fails": "failed"}
            task["status"] = ends.get(task["tool"], "completed")
        return self._shown(task_id)

    def _end(self, arrived: Arrived) -> Any:
        task_id = arrived.params["taskId"]
        end = self._finish(self._tasks[task_id]["tool"], arrived, task_id)
        if not isinstance(end, dict):
            return end
        related = {"io.modelcontextprotocol/related-task": {"taskId": task_id}}
        return {**end, "_meta": {**end.get("_meta", {}), **related}}

    def _cancel(self, arrived: Arrived) -> JSONObject:
        task_id = arrived.params["taskId"]
        self._tasks[task_id]["status"] = "cancelled"
        return self._shown(task_id)

    def _finish(self, tool: str, arrived: Arrived, task_id: str | None) -> Any:
        match tool:
            case "bad":
                return BAD
            case "fails":
                return _refusal(arrived, -32050, "quota exceeded", DATA)
            case "asks" if task_id is None or "answer" not in self._tasks[task_id]:
                stream, request_id = Stream(arrived.message["id"]), f"q{len(self._asking)}"
                self._asking[request_id] = (stream, task_id)
                asked = question(request_id, "Who?", task_id=task_id)
                asked["params"]["requestedSchema"] = form("Who?", name="string")["params"]["requestedSchema"]
                stream.event(asked)
                return stream
            case "asks" if task_id is not None:
                return _greeting(self._tasks[task_id]["answer"])
            case _:
                return RICH

    def _take(self, arrived: Arrived) -> httpx.Response:
        stream, task_id = self._asking[arrived.message["id"]]
        said = arrived.message.get("result", {"action": "cancel"})
        if task_id is not None:
            self._tasks[task_id] |= {"status": "completed", "answer": said}
        stream.reply(_greeting(said))
        return httpx.Response(202)


def _refusal(arrived: Arrived, code: int, message: str, data: Any = None) -> httpx.Response:
    error = {"code": code, "message": message, **({} if data is None else {"data": data})}
    return httpx.Response(200, json={"jsonrpc": "2.0", "id": arrived.message["id"], "error": error})
