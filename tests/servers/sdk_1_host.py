"""A host on mcp 1.x, in an environment of its own, whose session is above a :class:`TasksTransport`.

``sdk_1_host.py SCENARIO SERVER BACKEND`` prints one line of JSON: what the scenario brought. SERVER is JSON:
a URL, or the list of a command that speaks over stdio. BACKEND is the event loop: asyncio or trio.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import McpError
from mcp.shared.session import RequestResponder

if not __package__:  # run as a script: Python has put this folder on its path, and not the repository
    sys.path[0] = str(Path(__file__).parents[2])

from mcp_tasks_client import MemoryJournal, PollPolicy, SqliteJournal, TasksClient, TasksTransport
from mcp_tasks_client.machine.record import Scope

LIMIT_S = 30.0
POLL = PollPolicy(floor_s=0.01, jitter=0.0)
FOREVER = {"duration_ms": 3_600_000}


class PersonOn1:
    """The host's callbacks, and what they were asked."""

    def __init__(self, *, hesitates: bool = False) -> None:
        self.asked: list[str] = []
        self.hesitates = hesitates
        self.unanswered: list[str] = []

    async def handle(self, message: Any) -> None:
        """Gets what is not answered, besides notifications."""
        if isinstance(message, RequestResponder):
            self.unanswered.append(message.request.root.method)
        elif isinstance(message, Exception):
            self.unanswered.append(repr(message))

    async def elicit(self, context: Any, params: Any) -> Any:
        self.asked.append(params.message)
        if self.hesitates:
            await anyio.sleep_forever()
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(self, context: Any, params: Any) -> Any:
        self.asked.append("model")
        four = types.TextContent(type="text", text="4")
        return types.CreateMessageResult(role="assistant", content=four, model="m")


@asynccontextmanager
async def connected(server: Any, host: PersonOn1, **options: Any) -> AsyncIterator[ClientSession]:
    if isinstance(server, str):
        inner: Any = streamable_http_client(server)
    else:
        inner = stdio_client(StdioServerParameters(command=server[0], args=server[1:]))
    options = {"endpoint": "a-server", "journal": MemoryJournal(), "poll": POLL, **options}
    callbacks: dict[str, Any] = {
        "elicitation_callback": host.elicit,
        "sampling_callback": host.sample,
        "message_handler": host.handle,
    }
    async with (
        TasksTransport(inner, **options) as (read, write, *_),
        ClientSession(read, write, **callbacks) as session,
    ):
        await session.initialize()
        yield session


async def outcome(call: Awaitable[types.CallToolResult]) -> Any:
    try:
        result = await call
    except McpError as error:
        return [error.error.code, error.error.message]
    return result.structuredContent or result.content[0].text  # type: ignore[union-attr]


async def calls_tools(server: Any) -> Any:
    host, brought, progress = PersonOn1(), {}, []

    async def progressed(done: float, total: float | None, message: str | None) -> None:
        progress.append(message)

    async with connected(server, host) as session:
        before = [tool.name for tool in (await session.list_tools()).tools]
        for tool in ("plain", "slow", "must", "asks", "samples", "asks_twice"):
            brought[tool] = await outcome(session.call_tool(tool))
        await session.call_tool("progresses", {"where": "session"}, progress_callback=progressed)
        failed = [await outcome(session.call_tool("fails", {"how": how})) for how in ("message", "result")]
        created = await session.experimental.call_tool_as_task("asks", {})
        own = await session.experimental.get_task_result(created.task.taskId, types.CallToolResult)
        brought["own"] = own.content[0].text  # type: ignore[union-attr]
        after = [tool.name for tool in (await session.list_tools()).tools]
    return {
        **brought,
        "same": before == after,
        "failed": failed,
        "progress": progress,
        "asked": sorted(host.asked),
        "unanswered": host.unanswered,
    }


async def cancels(server: Any) -> Any:
    """A host that takes a call back, as the protocol has it."""
    async with (
        connected(server, PersonOn1(), on_abandon="cancel") as session,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(session.call_tool, "slow", FOREVER)
        await anyio.wait_all_tasks_blocked()
        (request_id,) = session._response_streams
        await until_status(session, "working")
        params = types.CancelledNotificationParams(requestId=request_id)
        await session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
        await until_status(session, "cancelled")
        tasks.cancel_scope.cancel()
    return "cancelled"


async def converts(server: Any) -> Any:
    """A host that calls tools with a client of ours, and returns what its own SDK has for a class."""
    async with TasksClient(server, journal=MemoryJournal()) as client:
        result = await client.call_tool("typed", {"name": "Oslo"})
    own = types.CallToolResult.model_validate(
        result.model_dump(by_alias=True, mode="json", exclude_unset=True)
    )
    assert isinstance(own.content[0], types.TextContent)
    return own.structuredContent


async def until_status(session: ClientSession, status: str) -> None:
    while status not in [task.status for task in (await session.experimental.list_tasks()).tasks]:
        await anyio.sleep(0.02)


async def dies(server: Any) -> Any:
    """A host that is killed while somebody thinks about an answer."""
    url, path = server
    host, journal = PersonOn1(hesitates=True), SqliteJournal(path)
    async with (
        connected(url, host, endpoint=url, journal=journal) as session,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(session.call_tool, "asks")
        scope = Scope(url, "")
        while not host.asked or not [one for one in await journal.records(scope) if one.state.questions]:
            await anyio.sleep(0.01)
        print("reached", flush=True)
        await anyio.sleep_forever()


SCENARIOS = {scenario.__name__: scenario for scenario in (calls_tools, cancels, converts, dies)}


async def main(name: str, server: str) -> None:
    warnings.filterwarnings("error", category=UserWarning)
    with anyio.fail_after(LIMIT_S):
        print(json.dumps(await SCENARIOS[name](json.loads(server))))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:3], backend=sys.argv[3])
