"""A host's session that says what it is told to, over a transport of ours to a server of 2025-11-25."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio

from mcp_tasks_client import MemoryJournal, TasksTransport
from mcp_tasks_client.hosts.relay.messages import make_message, read_message
from mcp_tasks_client.hosts.relay.relay import Relay
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.protocol import JSONObject
from tests.kit.older_server import TASK, OlderServer

LIMIT_S: Final = 30.0
MARK: Final = {"io.modelcontextprotocol/related-task": {"taskId": TASK}}
QUICK: Final = PollPolicy(floor_s=0.01, jitter=0.0, backoff_floor_s=0.01, call_grace_s=0.1)
FORM: Final = {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object", "properties": {}}}
RESULT: Final = {
    "content": [{"type": "text", "text": "done", "new": {"a": None}}],
    "isError": False,
    "_meta": {"seen": None},
    "more": [None, {"b": None}],
}


class HostSession:
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
    server: OlderServer, capabilities: JSONObject | None = None, **options: Any
) -> AsyncIterator[HostSession]:
    options = {"endpoint": "a-server", "journal": MemoryJournal(), "poll": QUICK, **options}
    transport = TasksTransport(server.transport(), **options)
    with anyio.fail_after(LIMIT_S):
        async with transport as (read, write, session_id), anyio.create_task_group() as tasks:
            assert session_id() == "the-session"
            session = HostSession(read, write)
            session.relay = transport._relay
            tasks.start_soon(session.run)
            params = {
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities or {},
                "clientInfo": {"name": "host", "version": "1"},
            }
            assert (await session.ask("initialize", params))["protocolVersion"] == server.version
            await session.say({"method": "notifications/initialized"})
            yield session
            tasks.cancel_scope.cancel()


def question(request_id: Any, **more: Any) -> JSONObject:
    return {"id": request_id, "method": "elicitation/create", "params": {**FORM, **more}}
