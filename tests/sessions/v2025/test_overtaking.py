"""Questions that come before the reply to the ``tools/call`` whose task asks, as FastMCP 3 sends them.

Such a question comes on the GET stream, without a mark, and the reply over another connection.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, Final

import anyio
import httpx
import httpx2
import pytest
from anyio.abc import TaskGroup
from mcp_types import ElicitResult

from mcp_tasks_client import MemoryJournal, TaskRef, TasksClient, TasksHttpTransport, ToolCall
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import Created, Returned
from mcp_tasks_client.questions.callbacks import Callbacks
from mcp_tasks_client.sessions.v2025 import connection
from mcp_tasks_client.testing.clock import ManualClock
from tests._observed import Observed
from tests._requirements import requirement
from tests.kit.json_rpc_host import LIMIT_S, OLDER, QUICK, URL, JsonRpcHost, OlderJsonRpcHost
from tests.kit.older_server import TASK, OlderServer, Stream, question, refusal, text

pytestmark = pytest.mark.anyio

COLOR: Final = "Color?"
ANSWER: Final[JSONObject] = {"action": "accept", "content": {}}
UNMARKED: Final = question("q", COLOR, task_id=None)


async def nothing() -> None:
    pass


async def decline(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="decline")


@pytest.fixture
def wire() -> OlderServer:
    wire = OlderServer()
    wire.server_stream = Stream()
    return wire


# ── whose a question is ───────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def called(
    wire: OlderServer, tool: str, **options: Any
) -> AsyncIterator[tuple[Observed, Stream, list[Any], TaskGroup]]:
    """A call whose reply does not come before the test says so; what is observed, and the call's end."""
    observed, call, ends = Observed(), Stream(), list[Any]()
    wire.replies["tools/call"] = lambda arrived: call
    async with wire.session(observed, **options) as session, anyio.create_task_group() as tasks:

        async def make() -> None:
            ends.append(await session.call(ToolCall(name=tool), nothing))

        tasks.start_soon(make)
        await wire.wait_for("tools/call")
        yield observed, call, ends, tasks


@requirement("2025:any-stream")
@pytest.mark.parametrize("answered", ["by nobody", "by a callback"])
@pytest.mark.parametrize(
    ("marked", "where"),
    [(False, "stream of the session"), (True, "stream of the session"), (True, "stream of the call")],
)
async def test_a_question_waits_for_the_task_that_asks_it(
    wire: OlderServer, answered: str, where: str, *, marked: bool
) -> None:
    inputs = Callbacks() if answered == "by nobody" else Callbacks(elicitation=decline)
    clock = ManualClock()
    async with called(wire, "slow", inputs=inputs, clock=clock) as (observed, call, ends, _):
        assert wire.server_stream is not None
        stream = call if where == "stream of the call" else wire.server_stream
        stream.event(question("q", COLOR) if marked else UNMARKED)
        await anyio.wait_all_tasks_blocked()
        if marked:
            await clock.advance(10 * connection.CREATION_S)
        call.reply({"task": wire.task})
        await anyio.wait_all_tasks_blocked()
        (created,) = ends
        assert isinstance(created, Created)
        observed.observe(TaskRef(TASK, created.session_data))
        asked = await observed.wait_until(lambda snapshot: bool(snapshot.task.input_requests))
        (request,) = (asked.task.input_requests or {}).values()
        assert request["params"]["message"] == COLOR
    assert wire.of("answer") == [], "it is the task's, and not answered beside it"


@pytest.mark.parametrize("method", ["elicitation/create", "notifications/tasks/status"])
async def test_a_task_that_no_call_has_made_is_neither_asked_about_nor_believed(
    wire: OlderServer, method: str
) -> None:
    """As one of another client in the same MCP session. Whoever waits for it answers."""
    observed = Observed()
    async with wire.session(observed, inputs=Callbacks(elicitation=decline)) as session:
        await session.call(ToolCall(name="plain"), nothing)
        assert wire.server_stream is not None
        told = {**wire.task, "taskId": "another", "status": "input_required"}
        wire.server_stream.event(
            question("q", COLOR, task_id="another")
            if method == "elicitation/create"
            else {"jsonrpc": "2.0", "method": method, "params": told}
        )
        wire.server_stream.event({"jsonrpc": "2.0", "id": "p", "method": "ping"})
        await wire.wait_for("answer")
    assert wire.answers == {"p": {}}
    assert observed.delivered == []


async def test_a_plain_call_is_not_waited_for(wire: OlderServer) -> None:
    inputs = Callbacks(elicitation=decline)
    async with called(wire, "plain", inputs=inputs, clock=ManualClock()) as (_, call, ends, _tasks):
        assert wire.server_stream is not None
        wire.server_stream.event(UNMARKED)
        await wire.wait_for("answer")
        call.reply(text("plain"))
    assert wire.answers == {"q": {"action": "decline"}}
    assert ends == [Returned(text("plain"))]


async def test_a_question_without_a_mark_on_the_stream_of_a_call_is_that_calls(wire: OlderServer) -> None:
    """It is answered at once, although the call may make a task."""
    inputs = Callbacks(elicitation=decline)
    async with called(wire, "slow", inputs=inputs, clock=ManualClock()) as (_, call, _ends, _tasks):
        call.event(UNMARKED)
        await wire.wait_for("answer")
        call.reply({"task": wire.task})
    assert wire.answers == {"q": {"action": "decline"}}


async def test_a_call_that_makes_no_task_in_time_is_taken_for_the_one_that_asks(wire: OlderServer) -> None:
    clock, inputs = ManualClock(), Callbacks(elicitation=decline)
    async with called(wire, "slow", inputs=inputs, clock=clock) as (_, call, _ends, _tasks):
        assert wire.server_stream is not None
        wire.server_stream.event(UNMARKED)
        await anyio.wait_all_tasks_blocked()
        await clock.advance(connection.CREATION_S - 0.1)
        assert wire.of("answer") == []
        await clock.advance(0.2)
        await wire.wait_for("answer")
        call.reply({"task": wire.task})
    assert wire.answers == {"q": {"action": "decline"}}


async def test_a_question_that_is_withdrawn_while_it_waits_is_asked_nobody(wire: OlderServer) -> None:
    async with called(wire, "slow", inputs=Callbacks(elicitation=decline)) as (observed, call, ends, _):
        assert wire.server_stream is not None
        wire.server_stream.event(UNMARKED)
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "q"}}
        wire.server_stream.event(cancelled)
        await anyio.wait_all_tasks_blocked()
        call.reply({"task": wire.task})
        await anyio.wait_all_tasks_blocked()
        (created,) = ends
        assert not created.task.input_requests
    assert not any(snapshot.task.input_requests for snapshot in observed.delivered)
    assert wire.of("answer") == []


async def test_no_more_than_some_questions_wait(wire: OlderServer) -> None:
    clock, inputs = ManualClock(), Callbacks(elicitation=decline)
    async with called(wire, "slow", inputs=inputs, clock=clock) as (_, call, _ends, _tasks):
        assert wire.server_stream is not None
        for number in range(connection.MOST_WAITING + 1):
            wire.server_stream.event(question(number, f"{COLOR} {number}", task_id=None))
        await wire.wait_for("answer")
        assert len(wire.answers) == 1, "one of them does not wait"
        call.reply({"task": wire.task})


# ── calls, one after the other, at every way in ───────────────────────────────────────────────────


class Asking:
    """A server whose every task asks on the GET stream before its ``tools/call`` is answered.

    Args:
        events: Whether the reply to ``tools/call`` is an event stream.
    """

    def __init__(self, *, events: bool) -> None:
        self.wire = wire = OlderServer()
        wire.server_stream = Stream()
        self._events = events
        self._numbers = itertools.count(1)
        self._questions: dict[str, str] = {}
        wire.replies["server/discover"] = lambda arrived: refusal(-32600, "Unsupported protocol version", 400)
        wire.replies["tasks/get"] = lambda arrived: self._task(arrived.params["taskId"])
        wire.replies["tasks/result"] = lambda arrived: text(arrived.params["taskId"])

    def _task(self, task_id: str) -> JSONObject:
        answered = self._questions[task_id] in self.wire.answers
        return {**self.wire.task, "taskId": task_id, "status": "completed" if answered else "working"}

    async def __call__(self, request: Any) -> Any:
        """Answer a request of either library."""
        if b'"tools/call"' in request.content:
            number = next(self._numbers)
            task_id, asked = f"task-{number}", f"q{number}"
            self._questions[task_id] = asked
            assert self.wire.server_stream is not None
            self.wire.server_stream.event(question(asked, COLOR, task_id=None))
            await anyio.wait_all_tasks_blocked()  # the client has read it
            created, reply = {"task": self._task(task_id)}, Stream(json.loads(request.content)["id"])
            if self._events:
                reply.reply(created)
            self.wire.replies["tools/call"] = lambda arrived: reply if self._events else created
        headers = list(request.headers.items())
        said = await self.wire(httpx.Request(request.method, URL, headers=headers, content=request.content))
        library: Any = httpx if isinstance(request, httpx.Request) else httpx2
        headers = list(said.headers.items())
        return library.Response(said.status_code, headers=headers, stream=Relayed(library, said))


def Relayed(library: Any, said: httpx.Response) -> Any:  # noqa: N802  # a class of either library
    """The body of a response, as a stream of the other library."""

    class Body(library.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in said.stream:  # type: ignore[union-attr]
                yield chunk

        async def aclose(self) -> None:
            await said.aclose()

    return Body()


async def by_url(server: Asking, count: int) -> list[str]:
    """With a callback."""
    asked: list[str] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        asked.append(f"{params.message} {context.task.task_id}")
        return ElicitResult(**ANSWER)

    async with httpx.AsyncClient(transport=httpx.MockTransport(server)) as http_client:
        options: Any = {"http_client": http_client, "journal": MemoryJournal(), "poll": QUICK}
        async with TasksClient(URL, elicitation=elicit, **options) as client:
            for number in range(1, count + 1):
                result = await client.call_tool("slow", {})
                assert result.content[0].text == f"task-{number}"  # type: ignore[union-attr]
    assert asked == [f"{COLOR} task-{number}" for number in range(1, count + 1)]
    return asked


async def by_url_later(server: Asking, count: int) -> list[str]:
    """Without a callback: the questions stand in the handle."""
    asked: list[str] = []
    async with httpx.AsyncClient(transport=httpx.MockTransport(server)) as http_client:
        options: Any = {"http_client": http_client, "journal": MemoryJournal(), "poll": QUICK}
        async with TasksClient(URL, elicitation="later", **options) as client:
            for _ in range(count):
                handle = await client.start_tool("slow", {})
                while not (questions := await handle.questions()):  # nothing tells of one
                    await anyio.sleep(0.001)
                asked.append(questions[0].params.message)
                await questions[0].accept({})
                await handle.result()
    return asked


async def beneath(library: ModuleType, server: Asking, count: int) -> list[str]:
    """Under the HTTP client of a host that has no callback here, and answers on the reply's stream."""
    lib: Any = library
    transport = TasksHttpTransport(lib.MockTransport(server), journal=MemoryJournal(), poll=QUICK)
    async with lib.AsyncClient(transport=transport) as client:
        host = OlderJsonRpcHost(
            JsonRpcHost(client, version=OLDER), {"elicitation/create": {"result": ANSWER}}
        )
        await host.initialize()
        for number in range(1, count + 1):
            reply = await host.call("slow")
            assert reply["result"]["content"][0]["text"] == f"task-{number}", reply
    return [request["params"]["message"] for request in host.asked]


WAYS: Final[dict[str, Callable[[Asking, int], Awaitable[list[str]]]]] = {
    "TasksClient(url), a callback": by_url,
    "TasksClient(url), later": by_url_later,
    "TasksHttpTransport, httpx": lambda server, count: beneath(httpx, server, count),
    "TasksHttpTransport, httpx2": lambda server, count: beneath(httpx2, server, count),
}


@requirement("2025:any-stream")
@pytest.mark.parametrize("events", [False, True], ids=["JSON", "events"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_every_call_of_a_session_has_its_question_put_to_its_own_host(
    way: Callable[[Asking, int], Awaitable[list[str]]], events: bool
) -> None:
    server = Asking(events=events)
    with anyio.fail_after(LIMIT_S):
        asked = await way(server, 4)
    assert len(asked) == 4
    assert {name: answer.get("action") for name, answer in server.wire.answers.items()} == {
        f"q{number}": "accept" for number in range(1, 5)
    }
    assert len(server.wire.of("tools/call")) == 4
