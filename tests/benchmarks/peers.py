"""Ways to call a tool, each with the same verbs: ``call`` and ``poll``, between ``open`` and ``aclose``.

``call`` returns what the tool said, whether the server answered at once or with a task; ``poll`` has one
task polled again and again. To compare with another client, add a class, and its name to ``PEERS``. What a
peer needs is imported when it is opened, so that no peer's process holds another's modules.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from mcp_types import CallToolResult, Request
from pydantic import TypeAdapter

from .server import TASKS, VERSION

if TYPE_CHECKING:
    import fastmcp
    import mcp

    from mcp_tasks_client import Journal, PollPolicy, TasksClient, TasksExtension

__all__ = ["PEERS", "Peer"]

Arguments: TypeAlias = dict[str, Any]

RAW: Final[Any] = TypeAdapter(dict[str, Any])
"""A result as it came. The SDK takes it, and is typed for models only."""


class RawRequest(Request[dict[str, Any], str]):
    """Any request of the SDK's, its params as they are."""


class TaskRequest(RawRequest):
    """One of ``tasks/*``; the SDK sends its task ID as ``Mcp-Name``."""

    name_param = "taskId"


class Peer(ABC):
    """One client.

    Args:
        url: The server's.
        folder: An empty one, for what the client keeps.
        idles: It may wait for longer than the hint. Otherwise it sleeps between requests no longer than that.
    """

    shortest_hint_ms: ClassVar[float] = 0.001
    """The shortest hint that the client can read, for what is to be measured without idling.

    A process that sleeps between requests finds the caches cold: with 20 ms in between, the same request was
    seen to take twice the CPU, whoever made it.
    """

    def __init__(self, url: str, folder: Path, *, idles: bool = True) -> None:
        self.url = url
        self.folder = folder
        self.idles = idles
        self.stack = AsyncExitStack()

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def call(self, tool: str, arguments: Arguments) -> str:
        """Call a tool, see its task through if there is one, and return what it said."""

    async def poll(self, times: int) -> None:
        """Have one task polled so often, without idling; the call that makes it is part of this."""
        await self.call("work", {"hint_ms": self.shortest_hint_ms, "polls": times})

    async def aclose(self) -> None:
        """Disconnect."""
        await self.stack.aclose()

    def journal_operations(self) -> Counter[str]:
        """What the journal was asked to do so far, by the method's name; empty if there is none."""
        return Counter()

    async def unfinished(self) -> int:
        """How many calls are kept that are not over."""
        return 0


class Ours(Peer):
    """This package by URL, with a journal in a file."""

    def __init__(self, url: str, folder: Path, *, idles: bool = True) -> None:
        super().__init__(url, folder, idles=idles)
        self.journal = self.make_journal()

    def make_journal(self) -> Journal:
        from .commits import counting_journal

        return counting_journal(self.folder / "journal.sqlite3")

    def policy(self) -> PollPolicy | None:
        from mcp_tasks_client import PollPolicy

        # By default a poll waits for 26 ms at least, also where the hint is shorter.
        return None if self.idles else PollPolicy(floor_s=0.000_001, ceiling_s=0.000_001)

    async def open(self) -> None:
        from mcp_tasks_client import TasksClient

        client = TasksClient(self.url, journal=self.journal, poll=self.policy())
        self.client: TasksClient = await self.stack.enter_async_context(client)

    async def call(self, tool: str, arguments: Arguments) -> str:
        return _text(await self.client.call_tool(tool, arguments))

    def journal_operations(self) -> Counter[str]:
        return Counter(getattr(self.journal, "operations", {}))

    async def unfinished(self) -> int:
        return sum(not record.finished for record in await self.client.records())


class OursInMemory(Ours):
    """This package without a journal that lasts."""

    def make_journal(self) -> Journal:
        from mcp_tasks_client import MemoryJournal

        return MemoryJournal()


class OursUnjittered(Ours):
    """This package without jitter: what is left of the lag is that of our own loop and journal."""

    def policy(self) -> PollPolicy | None:
        from mcp_tasks_client import PollPolicy

        return PollPolicy(jitter=0.0)


class OursEager(Ours):
    """This package as it is when latency counts for more than load."""

    def policy(self) -> PollPolicy | None:
        from mcp_tasks_client import PollPolicy

        return PollPolicy.eager()


class OursInMcp(Ours):
    """``TasksExtension`` dropped into ``mcp.Client``, whose ``call_tool`` is called."""

    async def open(self) -> None:
        self.host: mcp.Client | fastmcp.Client[Any] = await self.stack.enter_async_context(self.make_host())

    def make_host(self) -> mcp.Client | fastmcp.Client[Any]:
        import mcp

        return mcp.Client(self.url, extensions=[self.make_extension()])

    def make_extension(self) -> TasksExtension:
        from mcp_tasks_client import TasksExtension

        return TasksExtension(journal=self.journal, endpoint=self.url, poll=self.policy())

    async def call(self, tool: str, arguments: Arguments) -> str:
        return _text(await self.host.call_tool(tool, arguments))

    async def unfinished(self) -> int:
        # Asked by another client over the same connection: the one that is measured has no such verb.
        from mcp_tasks_client import TasksClient

        async with TasksClient(self.host) as client:
            return sum(not record.finished for record in await client.records())


class OursInFastMCP(OursInMcp):
    """``TasksExtension`` dropped into ``fastmcp.Client``, without FastMCP's own tasks."""

    def make_host(self) -> mcp.Client | fastmcp.Client[Any]:
        import fastmcp

        return fastmcp.Client(self.url, extensions=[self.make_extension()])


class OursOverMcp(OursInMcp):
    """``TasksClient(client)`` over a connected ``mcp.Client``."""

    async def open(self) -> None:
        await super().open()
        from mcp_tasks_client import TasksClient

        self.client = await self.stack.enter_async_context(TasksClient(self.host, poll=self.policy()))

    async def call(self, tool: str, arguments: Arguments) -> str:
        return _text(await self.client.call_tool(tool, arguments))


class OursUnderMcp(OursInMcp):
    """``TasksHttpTransport`` under the HTTP client of an ``mcp.Client``, whose ``call_tool`` is called."""

    def make_host(self) -> mcp.Client | fastmcp.Client[Any]:
        import mcp
        from mcp.client.streamable_http import streamable_http_client

        from mcp_tasks_client import tasks_http_client

        http = tasks_http_client(journal=self.journal, poll=self.policy())
        self.stack.push_async_callback(http.aclose)
        return mcp.Client(streamable_http_client(self.url, http_client=http))

    async def unfinished(self) -> int:
        from mcp_tasks_client import TasksClient

        async with TasksClient(self.url, journal=self.journal) as client:
            return sum(not record.finished for record in await client.records())


class FastMCP(Peer):
    """FastMCP's client. Its tasks extension sees tasks through behind ``call_tool``."""

    shortest_hint_ms = 1  # it reads whole numbers only

    async def open(self) -> None:
        import fastmcp
        import fastmcp_tasks  # noqa: F401  # its import is what gives every FastMCP client the extension

        self.client = await self.stack.enter_async_context(fastmcp.Client(self.url))

    async def call(self, tool: str, arguments: Arguments) -> str:
        return _text(await self.client.call_tool(tool, arguments))

    async def poll(self, times: int) -> None:
        from fastmcp_tasks import call_tool_task

        # Its own loop sleeps for 20 ms at least, and would be charged for the idling.
        script = {"hint_ms": self.shortest_hint_ms, "polls": times}
        task = await call_tool_task(self.client, "work", script)
        while (await task.status()).status == "working":
            pass


class HandLoop(Peer):
    """A loop that keeps to the hint, over two verbs that tell how a request is sent."""

    async def call(self, tool: str, arguments: Arguments) -> str:
        reply = await self.send_call(tool, arguments)
        if reply.get("resultType") == "task":
            while reply["status"] == "working":
                await asyncio.sleep(reply["pollIntervalMs"] / 1000)
                reply = await self.send_get(reply["taskId"])
            if reply["status"] != "completed":
                raise RuntimeError(f"the task ended as {reply['status']}")
            reply = reply["result"]
        return _text(CallToolResult.model_validate(reply))

    @abstractmethod
    async def send_call(self, tool: str, arguments: Arguments) -> dict[str, Any]:
        """The result of one ``tools/call``."""

    @abstractmethod
    async def send_get(self, task_id: str) -> dict[str, Any]:
        """The result of one ``tasks/get``."""


class OverHttpx(HandLoop):
    """The loop over bare httpx."""

    _headers: ClassVar = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
    }
    _meta: ClassVar = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "by hand", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}},
    }

    async def open(self) -> None:
        self._ids = itertools.count(1)
        await self.connect()

    async def connect(self) -> None:
        import httpx

        self._http = await self.stack.enter_async_context(httpx.AsyncClient(timeout=60))

    async def send_call(self, tool: str, arguments: Arguments) -> dict[str, Any]:
        return await self._send("tools/call", tool, {"name": tool, "arguments": arguments})

    async def send_get(self, task_id: str) -> dict[str, Any]:
        return await self._send("tasks/get", task_id, {"taskId": task_id})

    async def _send(self, method: str, named: str, params: dict[str, Any]) -> dict[str, Any]:
        message = {
            "jsonrpc": "2.0",
            "id": next(self._ids),
            "method": method,
            "params": {**params, "_meta": self._meta},
        }
        headers = {**self._headers, "Mcp-Method": method, "Mcp-Name": named}
        reply = await self.post(json.dumps(message).encode(), headers)
        result = json.loads(reply)["result"]
        assert isinstance(result, dict)
        return result

    async def post(self, content: bytes, headers: dict[str, str]) -> bytes:
        """The body of the response."""
        return (await self._http.post(self.url, content=content, headers=headers)).content


class OverAiohttp(OverHttpx):
    """The loop over bare aiohttp."""

    async def connect(self) -> None:
        import aiohttp

        timeout = aiohttp.ClientTimeout(60)
        self._aiohttp = await self.stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))

    async def post(self, content: bytes, headers: dict[str, str]) -> bytes:
        async with self._aiohttp.post(self.url, data=content, headers=headers) as response:
            return await response.read()


class OverSdk(HandLoop):
    """The loop over the official SDK's session."""

    async def open(self) -> None:
        from mcp import ClientSession
        from mcp.client.streamable_http import streamable_http_client

        streams = await self.stack.enter_async_context(streamable_http_client(self.url))
        session = ClientSession(streams[0], streams[1], extensions={TASKS: {}})
        self._session = await self.stack.enter_async_context(session)
        await self._session.discover()
        await self._session.list_tools()

    async def send_call(self, tool: str, arguments: Arguments) -> dict[str, Any]:
        request = RawRequest(method="tools/call", params={"name": tool, "arguments": arguments})
        return await self._raw(request)

    async def send_get(self, task_id: str) -> dict[str, Any]:
        request = TaskRequest(method="tasks/get", params={"taskId": task_id})
        return await self._raw(request)

    async def _raw(self, request: RawRequest) -> dict[str, Any]:
        result = await self._session.send_request(request, RAW)
        assert isinstance(result, dict)
        return result


def _text(result: Any) -> str:
    text = result.content[0].text
    assert isinstance(text, str)
    return text


PEERS: Final[dict[str, type[Peer]]] = {
    "ours": Ours,
    "ours-memory": OursInMemory,
    "ours-unjittered": OursUnjittered,
    "ours-eager": OursEager,
    "in-mcp": OursInMcp,
    "in-fastmcp": OursInFastMCP,
    "over-mcp": OursOverMcp,
    "http-transport": OursUnderMcp,
    "fastmcp": FastMCP,
    "mcp": OverSdk,
    "httpx": OverHttpx,
    "aiohttp": OverAiohttp,
}
"""Every peer by the name that the command line knows it by."""
