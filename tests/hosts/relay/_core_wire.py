"""A server and a host's session that say what they are told to, with a transport of ours between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeAlias

import anyio

from mcp_tasks_client.hosts.relay.messages import make_message, read_message
from mcp_tasks_client.hosts.relay.relay import Relay
from mcp_tasks_client.hosts.relay.tasks_transport import TasksTransport
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import RpcError

LIMIT_S: Final = 4.0
TASK: Final = "task-1"
MARK: Final = {"io.modelcontextprotocol/related-task": {"taskId": TASK}}
QUICK: Final = PollPolicy(floor_s=0.01, jitter=0.0, backoff_floor_s=0.01, call_grace_s=0.1)
TASKS: Final[JSONObject] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
FORM: Final = {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object", "properties": {}}}
RESULT: Final = {
    "content": [{"type": "text", "text": "done", "new": {"a": None}}],
    "isError": False,
    "_meta": {"seen": None},
    "more": [None, {"b": None}],
}

Reply: TypeAlias = JSONObject | RpcError | None


class Wire:
    """A server at the end of a transport, whose every reply can be another.

    Attributes:
        arrived: What has come, in order.
        metadata: What the SDK has noted of each.
        task: The task that there is, as it is now.
        answers: What the server was answered, by the ID of its request.
    """

    def __init__(self) -> None:
        self.arrived: list[JSONObject] = []
        self.metadata: list[Any] = []
        self.answers: dict[Any, Any] = {}
        self.task: JSONObject = {"taskId": TASK, "status": "working", "ttl": 60_000, "pollInterval": 10}
        self.capabilities: JSONObject = {"tasks": TASKS}
        self.version = "2025-11-25"
        self.replies: dict[str, Callable[[JSONObject], Reply]] = {
            "initialize": lambda params: {
                "protocolVersion": self.version,
                "capabilities": self.capabilities,
                "serverInfo": {"name": "s", "version": "1"},
            },
            "tools/list": lambda params: {
                "tools": [
                    {"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}
                    for name, support in (("plain", "forbidden"), ("slow", "required"))
                ]
            },
            "tools/call": lambda params: {"task": self.task} if "task" in params else {"content": []},
            "tasks/get": lambda params: self.task,
            "tasks/result": lambda params: RESULT if self.task["status"] == "completed" else None,
            "tasks/cancel": self._cancelled,
            "ping": lambda params: {},
        }
        self.entered = self.left = 0
        self._send: Any = None

    def of(self, method: str) -> list[JSONObject]:
        """The requests and notifications of a method, in order."""
        return [one for one in self.arrived if one.get("method") == method]

    async def say(self, message: JSONObject) -> None:
        await self._send(message)

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            await anyio.sleep(0.005)

    def _cancelled(self, params: JSONObject) -> JSONObject:
        self.task["status"] = "cancelled"
        return self.task

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[tuple[Any, ...]]:
        to_client, client_reads = anyio.create_memory_object_stream[Any](0)
        client_writes, from_client = anyio.create_memory_object_stream[Any](0)

        async def send(message: Any) -> None:
            said = message if isinstance(message, Exception) else make_message(message)
            with suppress(anyio.ClosedResourceError):  # it has hung up
                await to_client.send(said)

        async def serve() -> None:
            async for message in from_client:
                said = read_message(message)
                self.metadata.append(message.metadata)
                self.arrived.append(said)
                if "method" not in said:
                    self.answers[said["id"]] = said.get("error", said.get("result"))
                elif "id" in said:
                    reply = self.replies[said["method"]](said.get("params") or {})
                    if isinstance(reply, RpcError):
                        error = {"code": reply.code, "message": reply.message, "data": reply.data}
                        await send({"id": said["id"], "error": error})
                    elif reply is not None:
                        await send({"id": said["id"], "result": reply})

        self._send, self.hang_up = send, to_client.close
        self.entered += 1
        async with to_client, client_reads, client_writes, from_client, anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            try:
                yield client_reads, client_writes, lambda: "the-session"
            finally:
                self.left += 1
                tasks.cancel_scope.cancel()


class Session:
    """What a host's session does, as far as it matters: it numbers its requests, and reads what comes.

    Attributes:
        heard: What came besides replies.
        relay: What stands between it and the server.
        ended: Set once nothing comes any more.
    """

    relay: Relay

    def __init__(self, read: Any, write: Any) -> None:
        self.heard: list[Any] = []
        self.ended = anyio.Event()
        self.asleep = False
        self._read, self._write = read, write
        self._next_id = 0
        self._replies: dict[Any, Any] = {}
        self._came = anyio.Event()

    async def run(self) -> None:
        with suppress(anyio.ClosedResourceError):
            async for message in self._read:
                if self.asleep:
                    await anyio.sleep_forever()
                self._take(message if isinstance(message, Exception) else read_message(message))
        self.ended.set()

    def _take(self, said: Any) -> None:
        if isinstance(said, dict) and "method" not in said:
            assert said["id"] not in self._replies, "answered twice"
            self._replies[said["id"]] = said.get("error", said.get("result"))
        else:
            self.heard.append(said)
        self._came.set()
        self._came = anyio.Event()

    async def say(self, message: JSONObject) -> None:
        await self._write.send(make_message(message))

    async def send(self, method: str, params: JSONObject | None = None) -> int:
        self._next_id += 1
        await self.say(
            {"id": self._next_id, "method": method, **({} if params is None else {"params": params})}
        )
        return self._next_id

    async def reply_to(self, request_id: int) -> Any:
        while request_id not in self._replies:
            await self._came.wait()
        return self._replies[request_id]

    async def ask(self, method: str, params: JSONObject | None = None) -> Any:
        return await self.reply_to(await self.send(method, params))

    async def hears(self, method: str) -> JSONObject:
        while True:
            for one in self.heard:
                if isinstance(one, dict) and one["method"] == method:
                    self.heard.remove(one)
                    return one
            await self._came.wait()


@asynccontextmanager
async def connected(
    wire: Wire, capabilities: JSONObject | None = None, **options: Any
) -> AsyncIterator[Session]:
    options = {"endpoint": "a-server", "journal": MemoryJournal(), "poll": QUICK, **options}
    transport = TasksTransport(wire.transport(), **options)
    with anyio.fail_after(LIMIT_S):
        async with transport as (read, write, session_id), anyio.create_task_group() as tasks:
            assert session_id() == "the-session"
            session = Session(read, write)
            session.relay = transport._relay
            tasks.start_soon(session.run)
            params = {
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities or {},
                "clientInfo": {"name": "host", "version": "1"},
            }
            assert (await session.ask("initialize", params))["protocolVersion"] == wire.version
            await session.say({"method": "notifications/initialized"})
            yield session
            tasks.cancel_scope.cancel()


def question(request_id: Any, **more: Any) -> JSONObject:
    return {"id": request_id, "method": "elicitation/create", "params": {**FORM, **more}}
