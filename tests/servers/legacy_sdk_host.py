"""A host on the SDK's last 1.x, in an environment of its own, which calls tools through ``TasksClient``.

``legacy_sdk_host.py SCENARIO SERVER BACKEND`` prints one line of JSON: what the scenario brought. SERVER is
JSON: a URL, or the list of a command that speaks over stdio. BACKEND is the event loop: asyncio or trio.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import httpx
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import McpError
from mcp.shared.memory import create_connected_server_and_client_session
from mcp.shared.message import SessionMessage
from mcp.shared.session import RequestResponder
from pydantic import ValidationError

if not __package__:  # run as a script: Python has put this folder on its path, and not the repository
    sys.path[0] = str(Path(__file__).parents[2])

from mcp_tasks_client import (
    MemoryJournal,
    PollPolicy,
    SqliteJournal,
    TasksClient,
    TasksClientError,
    TasksTransport,
)
from mcp_tasks_client.old.journal.base import Scope
from mcp_tasks_client.old.sessions import answering, sdk_1
from mcp_tasks_client.old.sessions.faults import Faults
from mcp_tasks_client.old.sessions.host_peer import HostPeer
from mcp_tasks_client.old.sessions.sdk_1 import Line1

LIMIT_S = 30.0
POLL = PollPolicy(floor_s=0.01, jitter=0.0)
FOREVER = {"duration_ms": 3_600_000}
NOW = "2025-11-25T10:00:00Z"
STATUS = {"taskId": "t", "status": "working", "createdAt": NOW, "lastUpdatedAt": NOW, "ttl": 1}


class Host:
    """The host's callbacks, and what they were asked."""

    def __init__(self, *, hesitates: bool = False) -> None:
        self.asked: list[str] = []
        self.hesitates = hesitates
        self.prompted = anyio.Event()
        self.unanswered: list[str] = []

    async def handle(self, message: Any) -> None:
        """Gets what is not answered, besides notifications."""
        if isinstance(message, RequestResponder):
            self.unanswered.append(message.request.root.method)

    async def elicit(self, context: Any, params: Any) -> Any:
        self.asked.append(params.message)
        self.prompted.set()
        if self.hesitates:
            await anyio.sleep_forever()
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(self, context: Any, params: Any) -> Any:
        self.asked.append("model")
        four = types.TextContent(type="text", text="4")
        return types.CreateMessageResult(role="assistant", content=four, model="m")

    @property
    def callbacks(self) -> dict[str, Any]:
        return {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "message_handler": self.handle,
        }


def streams_to(server: Any) -> Any:
    """The transport to a server; itself, if it is one."""
    if isinstance(server, str):
        return streamable_http_client(server)
    if isinstance(server, list):
        return stdio_client(StdioServerParameters(command=server[0], args=server[1:]))
    return server


@asynccontextmanager
async def connected(server: Any, host: Host) -> AsyncIterator[ClientSession]:
    async with (
        streams_to(server) as (read, write, *_),
        ClientSession(read, write, **host.callbacks) as session,
    ):
        await session.initialize()
        yield session


def ours(session: ClientSession, journal: MemoryJournal | None = None) -> TasksClient:
    return TasksClient(session, journal=journal or MemoryJournal(), endpoint="a-server", poll=POLL)


async def outcome(result: Awaitable[Any]) -> Any:
    try:
        whole = await result
    except TasksClientError as error:
        return [type(error).__name__, str(error)]
    return whole.structured_content or whole.content[0].text


def insides(session: ClientSession) -> dict[str, Any]:
    kept = {name: value for name, value in vars(session).items() if name != "_request_id"}
    return {**kept, "_in_flight": dict(session._in_flight)}


async def tools(server: Any) -> Any:
    host, brought = Host(), {}
    async with connected(server, host) as session:
        before = insides(session)
        async with ours(session) as durable:
            for tool in ("plain", "slow", "must", "asks", "samples"):
                brought[tool] = await outcome(durable.call_tool(tool))
            brought["tasks"] = [r.tool for r in await durable.records() if r.task_id and r.generation]
            brought["meanwhile"] = (await session.call_tool("plain")).content[0].text  # type: ignore[union-attr]
        brought["restored"] = insides(session) == before
    return {**brought, "asked": host.asked, "unanswered": host.unanswered}


@asynccontextmanager
async def above(server: Any, host: Host, **options: Any) -> AsyncIterator[ClientSession]:
    """A session above a transport of ours."""
    inner = streams_to(server)
    options = {"endpoint": "a-server", "journal": MemoryJournal(), "poll": POLL, **options}
    async with (
        TasksTransport(inner, **options) as (read, write, *_),
        ClientSession(read, write, **host.callbacks) as session,
    ):
        await session.initialize()
        yield session


async def said_by(call: Awaitable[types.CallToolResult]) -> Any:
    try:
        result = await call
    except McpError as error:
        return [error.error.code, error.error.message]
    return result.structuredContent or result.content[0].text  # type: ignore[union-attr]


async def above_tools(server: Any) -> Any:
    host, brought, progress, journal = Host(), {}, [], MemoryJournal()

    async def progressed(done: float, total: float | None, message: str | None) -> None:
        progress.append(message)

    async with above(server, host, journal=journal) as session:
        before = [tool.name for tool in (await session.list_tools()).tools]
        for tool in ("plain", "slow", "must", "asks", "samples", "asks_twice"):
            brought[tool] = await said_by(session.call_tool(tool))
        await session.call_tool("progresses", {"where": "session"}, progress_callback=progressed)
        failed = [await said_by(session.call_tool("fails", {"how": how})) for how in ("message", "result")]
        created = await session.experimental.call_tool_as_task("asks", {})
        own = await session.experimental.get_task_result(created.task.taskId, types.CallToolResult)
        brought["own"] = await said_by(done_with(own))
        after = [tool.name for tool in (await session.list_tools()).tools]
    return {
        **brought,
        "same": before == after,
        "failed": failed,
        "progress": progress,
        "asked": sorted(host.asked),
        "unanswered": host.unanswered,
        "tasks": len(await kept_in(journal)),
    }


async def done_with(result: Any) -> Any:
    return result


async def kept_in(journal: MemoryJournal) -> Any:
    async with journal:
        return await journal.records(Scope("a-server", ""))


async def above_cancels(server: Any) -> Any:
    """A call that the host takes back, as one does that keeps to the protocol."""
    async with above(server, Host(), on_abandon="cancel") as session, anyio.create_task_group() as tasks:
        tasks.start_soon(session.call_tool, "slow", FOREVER)
        await anyio.wait_all_tasks_blocked()
        (request_id,) = session._response_streams
        seen = await statuses(session, "working")
        params = types.CancelledNotificationParams(requestId=request_id)
        await session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
        seen += await statuses(session, "cancelled")
        tasks.cancel_scope.cancel()
    return seen


async def above_dies(server: Any) -> Any:
    """A host that is killed while somebody thinks about an answer."""
    url, path = server
    host, journal = Host(hesitates=True), SqliteJournal(path)
    async with above(url, host, endpoint=url, journal=journal) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(session.call_tool, "asks")
        while not host.asked or not await questions_in(url, journal):
            await anyio.sleep(0.01)
        print("reached", flush=True)
        await anyio.sleep_forever()


async def questions_in(url: str, journal: SqliteJournal) -> Any:
    return [one for record in await journal.records(Scope(url, "")) for one in record.state.questions]


async def statuses(session: ClientSession, until: str) -> Any:
    """How the tasks of a server are that has no other client, once one is as it is said."""
    while True:
        found = [task.status for task in (await session.experimental.list_tasks()).tasks]
        if until in found:
            return found
        await anyio.sleep(0.02)


async def both(server: Any) -> Any:
    host = Host()
    sdk_1._MOST_ANSWERED = 1  # type: ignore[misc]  # to see that it is kept to
    async with connected(server, host) as session, ours(session) as durable:
        brought = await outcome(durable.call_tool("asks_twice"))
        return [brought, sorted(host.asked), len(session._in_flight)]


async def fails(server: Any) -> Any:
    async with connected(server, Host()) as session, ours(session) as durable:
        return [await outcome(durable.call_tool("fails", {"how": how})) for how in ("message", "result")]


async def cancels(server: Any) -> Any:
    host = Host(hesitates=True)
    async with connected(server, host) as session, ours(session) as durable:
        handle = await durable.start_tool("asks")
        await host.prompted.wait()
        await handle.cancel()
        return [await outcome(handle.result()), await outcome(durable.call_tool("slow"))]


async def reopens(server: Any) -> Any:
    host, journal = Host(hesitates=True), MemoryJournal()
    async with connected(server, host) as session:
        async with ours(session, journal) as durable:
            await durable.start_tool("asks")
            await host.prompted.wait()
        host.hesitates = False
        async with ours(session, journal) as durable:
            (handle,) = await durable.resume()
            return await outcome(handle.result())


async def reconnects(server: Any) -> Any:
    journal = MemoryJournal()
    async with connected(server, Host()) as session, ours(session, journal) as durable:
        await durable.start_tool("slow", FOREVER)
    async with connected(server, Host()) as session, ours(session, journal) as durable:
        (handle,) = await durable.resume()
        return await outcome(handle.result())


async def loses_its_session(server: Any) -> Any:
    async with (
        streamable_http_client(server) as (read, write, session_id),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        async with ours(session) as durable:
            handle = await durable.start_tool("slow", FOREVER)
            async with httpx.AsyncClient(trust_env=False) as other:
                await other.delete(server, headers={"Mcp-Session-Id": session_id() or ""})
            return await outcome(handle.result())


async def asks_plainly(server: Any) -> Any:
    """A question of no task, of a server in this process, while we see to the session."""
    host, asking = Host(), Server[Any, Any]("asking")

    @asking.list_tools()  # type: ignore[untyped-decorator]
    async def list_tools() -> list[types.Tool]:
        return [types.Tool(name="ask", inputSchema={"type": "object"})]

    @asking.call_tool()  # type: ignore[untyped-decorator]
    async def call_tool(name: str, arguments: Any) -> list[types.TextContent]:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        answer = await asking.request_context.session.elicit("Name?", schema)
        return [types.TextContent(type="text", text=str((answer.content or {})["name"]))]

    async with (
        create_connected_server_and_client_session(asking, elicitation_callback=host.elicit) as session,
        ours(session) as durable,
    ):
        return [await outcome(durable.call_tool("ask")), host.asked]


async def asks_for_the_hosts_own_task(server: Any) -> Any:
    host = Host()
    async with connected(server, host) as session, ours(session) as durable:
        handle = await durable.start_tool("slow", FOREVER)
        created = await session.experimental.call_tool_as_task("asks", {})
        result = await session.experimental.get_task_result(created.task.taskId, types.CallToolResult)
        await handle.cancel()
        listed = [record.tool for record in await durable.records(listed=True)]
        return [await outcome(done(result)), host.asked, len(await durable.records()), listed]


async def raises_for_its_own_task(server: Any) -> Any:
    """What the host's callback raises is the session's to deal with, as if we were not there."""
    host = Host()

    async def raising(context: Any, params: Any) -> Any:
        raise ValueError("the user's terminal is gone")

    host.elicit = raising  # type: ignore[method-assign]
    async with connected(server, host) as session, ours(session) as durable:
        await durable.start_tool("slow", FOREVER)
        created = await session.experimental.call_tool_as_task("asks", {})
        with anyio.move_on_after(0.5), suppress(ValidationError):  # the SDK's server fails without a result
            await session.experimental.get_task_result(created.task.taskId, types.CallToolResult)
        return await said_by(session.call_tool("plain"))


async def is_told_nothing_of_what_we_give_up(server: Any) -> Any:
    """A host that lets its session end with the first error that it is told of."""
    host, errors = Host(hesitates=True), list[str]()

    async def handle(message: Any) -> None:
        if isinstance(message, Exception):
            errors.append(str(message))
            raise message

    host.handle = handle  # type: ignore[method-assign]
    async with connected(server, host) as session:
        async with ours(session) as durable:
            await durable.start_tool("asks")
            await host.prompted.wait()
        await anyio.sleep(0.3)
        return [await said_by(session.call_tool("plain")), errors]


async def done(result: Any) -> Any:
    return SimpleNamespace(structured_content=None, content=result.content)


class Gateway(httpx.AsyncHTTPTransport):
    """On the way to a server. It does not find it, when it is asked for it with the first answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        said = json.loads(await request.aread() or b"{}")
        if "method" not in said and "result" in said:
            self.answers += 1
            if self.answers == 1:
                return httpx.Response(404, request=request)
        return await super().handle_async_request(request)


async def is_refused(server: Any) -> Any:
    """An answer that does not get through, and then does."""
    url, way = server
    answering._AGAIN_S = 0.2  # type: ignore[misc]  # what is waited for is a matter of seconds
    host, gateway, call = Host(), Gateway(), ("asks_twice", {"together": False})
    async with httpx.AsyncClient(transport=gateway, timeout=LIMIT_S) as http:
        inner = streamable_http_client(url, http_client=http)
        if way == "under":
            async with above(inner, host) as session:
                said = await said_by(session.call_tool(*call))
        else:
            async with connected(inner, host) as session, ours(session) as durable:
                said = await outcome(durable.call_tool(*call))
    return [said, host.asked, gateway.answers]


class Hand:
    """A server that is a pair of streams, with one task.

    Attributes:
        task: As it is now.
        answers: To what was asked, by the question's ID.
        answered: Called with each such ID.
        errors: With which methods are refused.
    """

    def __init__(self) -> None:
        self.task = {**STATUS, "status": "input_required", "ttl": 60_000, "pollInterval": 1}
        self.answers: list[list[Any]] = []
        self.errors: dict[str, dict[str, Any]] = {}
        self.answered: Callable[[Any], Awaitable[None]] = self._nothing
        self._to_host, self._host_reads = anyio.create_memory_object_stream[Any](100)
        self._host_writes, self._from_host = anyio.create_memory_object_stream[Any](100)

    async def _nothing(self, request_id: Any) -> None:
        pass

    @asynccontextmanager
    async def session(self, host: Host) -> AsyncIterator[ClientSession]:
        streams = self._to_host, self._host_reads, self._host_writes, self._from_host
        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            for stream in streams:
                await stack.enter_async_context(stream)
            tasks.start_soon(self._serve)
            async with ClientSession(self._host_reads, self._host_writes, **host.callbacks) as session:
                await session.initialize()
                yield session
            tasks.cancel_scope.cancel()

    async def say(self, message: dict[str, Any]) -> None:
        whole = types.JSONRPCMessage.model_validate({"jsonrpc": "2.0", **message})
        await self._to_host.send(SessionMessage(whole))

    async def ask(self, request_id: str, text: str = "Name?") -> None:
        mark = {"io.modelcontextprotocol/related-task": {"taskId": "t"}}
        form = {"message": text, "requestedSchema": {"type": "object", "properties": {}}, "_meta": mark}
        await self.say({"id": request_id, "method": "elicitation/create", "params": form})

    async def was_heard(self) -> None:
        await self.say({"id": "heard", "method": "ping"})
        await until(lambda: "heard" in [request_id for request_id, _ in self.answers])

    def _reply(self, method: str) -> Any:
        tool = {"name": "asks", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
        return {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tasks": {"requests": {"tools": {"call": {}}}}, "tools": {}},
                "serverInfo": {"name": "s", "version": "1"},
            },
            "tools/list": {"tools": [tool]},
            "tools/call": {"task": self.task},
            "tasks/get": self.task,
        }.get(method)

    async def _serve(self) -> None:
        async for whole in self._from_host:
            said = whole.message.model_dump(exclude_none=True)
            if "method" not in said:
                self.answers.append([said["id"], said.get("result", {}).get("action")])
                await self.answered(said["id"])
            elif said["method"] in self.errors:
                await self.say({"id": said["id"], "error": self.errors[said["method"]]})
            elif (reply := self._reply(said["method"])) is not None:
                await self.say({"id": said["id"], "result": reply})


async def until(happened: Callable[[], bool]) -> None:
    while not happened():
        await anyio.sleep(0.01)


async def crossed(server: Any) -> Any:
    """A question that is taken back when it has its answer, and asked again."""
    host, hand = Host(), Hand()

    async def answered(request_id: str) -> None:
        if request_id == "q":
            await hand.say({"method": "notifications/cancelled", "params": {"requestId": "q"}})
            await hand.ask("again")

    hand.answered = answered
    async with hand.session(host) as session, ours(session) as durable:
        await durable.start_tool("asks")
        await hand.ask("q")
        await until(lambda: ["again", "accept"] in hand.answers)
    return [host.asked, hand.answers]


async def moves_on(server: Any) -> Any:
    """Questions under the ID of one that is open, one of them plain; and one left open by the task's end."""
    host, hand = Host(hesitates=True), Hand()
    async with hand.session(host) as session, ours(session) as durable:
        await durable.start_tool("asks")
        await hand.ask("q", "A?")
        await until(lambda: host.asked == ["A?"])
        host.hesitates = False
        await hand.ask("q", "B?")
        await until(lambda: ["q", "accept"] in hand.answers)
        host.hesitates = True
        await hand.ask("taken", "C?")
        await until(lambda: host.asked == ["A?", "B?", "C?"])
        host.hesitates = False
        form = {"message": "the host's own", "requestedSchema": {"type": "object", "properties": {}}}
        await hand.say({"id": "taken", "method": "elicitation/create", "params": form})
        await until(lambda: ["taken", "accept"] in hand.answers)
        host.hesitates = True
        await hand.ask("last", "D?")
        await until(lambda: host.asked[-1] == "D?")
        hand.task["status"] = "cancelled"
        await until(lambda: "last" not in session._in_flight)
        await hand.was_heard()
    return [hand.answers, list(session._in_flight)]


async def is_denied(server: Any) -> Any:
    """A session, in the SDK's word for an HTTP 404; and one of a tool's own, in a server's words."""
    hand, said, ended = Hand(), list[Any](), {"code": 32600, "message": "Session terminated"}
    hand.errors["tools/call"] = {"code": -32001, "message": "Session not found"}
    async with hand.session(Host()) as session, ours(session) as durable:
        said.append(await outcome(durable.call_tool("asks")))
        hand.errors = {"tools/call": ended, "ping": ended}
        said.append(await outcome(durable.call_tool("asks")))
    return said


async def takes_back(server: Any) -> Any:
    """What either side gives up, at a server that is a pair of streams."""
    host, seen = Host(hesitates=True), []
    to_host, host_reads = anyio.create_memory_object_stream[Any](100)
    host_writes, from_host = anyio.create_memory_object_stream[Any](100)
    session = ClientSession(host_reads, host_writes, **host.callbacks)
    mark = {"io.modelcontextprotocol/related-task": {"taskId": "t"}}
    form = {"message": "Name?", "requestedSchema": {"type": "object", "properties": {}}, "_meta": mark}
    question = {"id": "q", "method": "elicitation/create", "params": form}
    taken_back = {"method": "notifications/cancelled", "params": {"requestId": "q"}}

    async def say(message: dict[str, Any]) -> None:
        whole = types.JSONRPCMessage.model_validate({"jsonrpc": "2.0", **message})
        await to_host.send(SessionMessage(whole))

    async def next_said() -> dict[str, Any]:
        said: dict[str, Any] = (await from_host.receive()).message.model_dump(exclude_none=True)
        return said

    async with to_host, host_reads, host_writes, from_host, session, anyio.create_task_group() as tasks:
        line = Line1(lambda: session)
        peer = HostPeer(line, lambda peer, message: seen.append(message["method"]))
        tasks.start_soon(partial(peer.request, "tasks/get", {"taskId": "t"}, LIMIT_S, task_id="t"))
        asked = await next_said()
        await say({"id": asked["id"], "result": {"taskId": "t", "status": "input_required"}})
        await say({"method": "notifications/tasks/status", "params": STATUS})
        await say(question)
        await say(taken_back)
        await say({"id": "after", "method": "ping"})
        heard = [await next_said()]
        with anyio.CancelScope() as giving_up:
            tasks.start_soon(give_up_at, from_host, giving_up, heard)
            await peer.request("tasks/result", {"taskId": "t"}, LIMIT_S, task_id="t")
        heard.append(await next_said())
        peer.leave()
    said = [one.get("method", one.get("id")) for one in heard]
    return [seen, said, heard[-1]["params"]["requestId"], host.asked]


async def gives_up(server: Any) -> Any:
    """What is given up as its reply comes, at every turn of the loop around that: the session lives."""
    return [await given_up_after(turns) for turns in 4 * [*range(-1, 12)]]


async def given_up_after(turns: int) -> Any:
    """Give a request up so many turns of the loop after its reply has come, or just before."""
    to_host, host_reads = anyio.create_memory_object_stream[Any](100)
    host_writes, from_host = anyio.create_memory_object_stream[Any](100)

    async def reply(request_id: int, giving_up: anyio.CancelScope | None = None) -> None:
        await from_host.receive()
        message = types.JSONRPCMessage.model_validate({"jsonrpc": "2.0", "id": request_id, "result": {}})
        if giving_up is not None and turns < 0:
            giving_up.cancel()
        to_host.send_nowait(SessionMessage(message))
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        if giving_up is not None:
            giving_up.cancel()

    session = ClientSession(host_reads, host_writes)
    async with to_host, host_reads, host_writes, from_host, session, anyio.create_task_group() as tasks:
        line = Line1(lambda: session)
        with anyio.CancelScope() as scope:
            tasks.start_soon(reply, 0, scope)
            await line.send("tasks/get", {}, LIMIT_S, Faults("tasks/get"))
        tasks.start_soon(reply, 1)
        try:
            return await line.send("ping", {}, LIMIT_S, Faults("ping"))
        except TasksClientError as error:
            return str(error)


async def give_up_at(stream: Any, scope: anyio.CancelScope, heard: list[Any]) -> None:
    heard.append((await stream.receive()).message.model_dump(exclude_none=True))
    scope.cancel()


SCENARIOS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    scenario.__name__: scenario
    for scenario in (
        tools,
        above_tools,
        above_cancels,
        above_dies,
        both,
        fails,
        cancels,
        reopens,
        reconnects,
        loses_its_session,
        asks_plainly,
        asks_for_the_hosts_own_task,
        raises_for_its_own_task,
        is_told_nothing_of_what_we_give_up,
        is_refused,
        crossed,
        moves_on,
        is_denied,
        takes_back,
        gives_up,
    )
}


async def main(name: str, server: str) -> None:
    with anyio.fail_after(LIMIT_S):
        print(json.dumps(await SCENARIOS[name](json.loads(server))))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:3], backend=sys.argv[3])
