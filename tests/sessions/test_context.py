"""What a caller brings along comes with each request for its call, down to the HTTP transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel
import httpx
import pytest
from mcp_types import PROTOCOL_VERSION_META_KEY, ElicitResult

from mcp_tasks_client import (
    Environment,
    InputContext,
    MemoryJournal,
    Scope,
    Session,
    TaskRecord,
    TaskRef,
    ToolCall,
)
from mcp_tasks_client.engine.endpoint import Endpoint
from mcp_tasks_client.engine.live_call import LiveCall, Ours
from mcp_tasks_client.engine.owning import Owning
from mcp_tasks_client.engine.registry import Registry
from mcp_tasks_client.engine.requests import Requests
from mcp_tasks_client.engine.tool_result import read_result
from mcp_tasks_client.hosts.host_call import read_host_call
from mcp_tasks_client.hosts.host_calls import HostCalls
from mcp_tasks_client.hosts.shared_options import SharedOptions
from mcp_tasks_client.journal.guarded import GuardedJournal
from mcp_tasks_client.machine.actions import Ask, SendCall
from mcp_tasks_client.machine.events import TaskCreated
from mcp_tasks_client.machine.states import Calling, Observing
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import Created
from mcp_tasks_client.questions.callbacks import Callbacks, NoAnswerError
from mcp_tasks_client.questions.context import CallContext
from mcp_tasks_client.sessions.by_url.discovery import DiscoveringSession
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.testing import (
    ScriptedServer,
    ask,
    complete,
    form,
    text_result,
    work,
    working,
)
from tests.kit.older_server import TASK, Noting, OlderServer, Stream, question

from .._observed import Observed
from ..scripted_session import ScriptedSession

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Brought(CallContext):
    """A context that is told apart by its name."""

    name: str


ANSWER: JSONObject = {"action": "accept", "content": {"name": "Ada"}}


async def nothing() -> None:
    await anyio.lowlevel.checkpoint()


# ── the engine ────────────────────────────────────────────────────────────────────────────────


class Asked(Callbacks):
    """Has no answer, and notes what it was asked with."""

    with_context: CallContext | None = None

    async def answer(self, context: InputContext, request: JSONObject) -> JSONObject:
        self.with_context = context.context
        assert "brought" not in repr(context)
        raise NoAnswerError("nobody is here")


async def test_the_engine_passes_the_context_of_the_newest_of_those_who_wait() -> None:
    inputs, environment = Asked(), Environment()
    session = ScriptedSession(calls=[working(TASK)])
    owning = Owning(GuardedJournal(MemoryJournal()), Registry(), environment)
    requests = Requests(session, inputs, owning, environment)
    record = TaskRecord(
        record_id="r", scope=Scope("scripted"), tool="slow", state=Calling(), created_at=0.0, updated_at=0.0
    )
    call = LiveCall(
        record, Ours(1, 0), tool_call=ToolCall(name="slow", context=Brought("brought by the first"))
    )
    created, _ = await requests.call(call, SendCall(), nothing)
    assert isinstance(created, TaskCreated)
    call.audience.add(context=Brought("brought by the second"))
    await requests.call(call, SendCall(), nothing)
    call.record = replace(record, state=Observing(task=created.task, received_at=0.0, due_at=0.0))
    await requests.get(call)
    await requests.update(call, {"k": ANSWER})
    await requests.cancel(call)
    await requests.ask(call, Ask(key="k", request=form("?")), None)
    call.audience.remove(context=Brought("brought by the second"))
    await requests.get(call)
    assert [(sent.method, sent.context) for sent in session.sent] == [
        ("tools/call", Brought("brought by the first")),
        ("tools/call", Brought("brought by the second")),
        ("tasks/get", Brought("brought by the second")),
        ("tasks/update", Brought("brought by the second")),
        ("tasks/cancel", Brought("brought by the second")),
        ("tasks/get", Brought("brought by the first")),
    ]
    assert inputs.with_context == Brought("brought by the second")
    assert "brought" not in repr(session.sent)
    soon = anyio.current_time() + 9
    await read_result(text_result("x"), "slow", None, session, soon, Brought("brought by the third"))
    assert session.looked_up_with == [Brought("brought by the third")]


async def test_the_result_of_a_hosts_call_is_checked_by_a_list_that_is_asked_for_with_its_context() -> None:
    """A host's request is the context, and the list may be another user's without it."""
    session = ScriptedSession(calls=[{"resultType": "complete", **text_result("done")}])
    engine = SharedOptions(journal=MemoryJournal()).make_engine()
    params = {"name": "slow", "_meta": {PROTOCOL_VERSION_META_KEY: "2026-07-28"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    call = read_host_call(message, "", "")
    assert call is not None
    calls = HostCalls(engine)
    endpoint = Endpoint(engine, session, Callbacks(), Scope("scripted"))
    made = await calls.make(
        replace(call, tool_call=replace(call.tool_call, context=Brought("brought"))), endpoint, ()
    )
    assert made.reply == {"resultType": "complete", **text_result("done")}
    assert session.looked_up_with == [Brought("brought")]
    await calls.aclose()


# ── MCP 2026-07-28 over HTTP ──────────────────────────────────────────────────────────────────


@asynccontextmanager
async def over_http(sent: list[tuple[str, CallContext | None]]) -> AsyncIterator[HttpSession]:
    server = ScriptedServer()
    server.tool("slow", [work(0.0), ask("k", form("?", name="string")), complete(text_result("done"))])
    with anyio.fail_after(20):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app)) as client:

            async def doze(seconds: float) -> None:
                await anyio.lowlevel.checkpoint()

            session = HttpSession("http://server.test/mcp", http_client=Noting(client, sent), sleep=doze)
            yield session
            await session.aclose()


async def test_each_request_over_http_has_the_context_of_its_call() -> None:
    sent: list[tuple[str, CallContext | None]] = []
    async with over_http(sent) as session:
        created = await session.call(ToolCall(name="slow", context=Brought("call")), nothing)
        assert isinstance(created, Created)
        ref = TaskRef(created.task.task_id, created.session_data)
        await session.get(replace(ref, context=Brought("get")))
        await session.update(replace(ref, context=Brought("update")), {"k": ANSWER})
        await session.cancel(replace(ref, context=Brought("cancel")))
        await session.tool("slow", fresh=True, context=Brought("tool"))
        await session.ask("server/discover", {}, context=Brought("ask"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                session.run,
                Observed(
                    replace(ref, context=Brought("older")), TaskRef("other", None, Brought("newest observed"))
                ),
            )
            while sent[-1][0] != "subscriptions/listen":
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert sent[:9] == [
        ("server/discover", Brought("call")),
        ("tools/list", Brought("call")),
        ("tools/call", Brought("call")),
        ("tasks/get", Brought("get")),
        ("tasks/update", Brought("update")),
        ("tasks/cancel", Brought("cancel")),
        ("tools/list", Brought("tool")),
        ("server/discover", Brought("ask")),
        ("subscriptions/listen", Brought("newest observed")),
    ]


async def test_a_server_that_is_asked_for_its_version_first_is_asked_with_the_context_of_the_call() -> None:
    sent: list[tuple[str, CallContext | None]] = []
    async with over_http(sent) as http:

        def speak_other(http: HttpSession) -> Session:
            raise AssertionError("the server speaks 2026-07-28")

        session = DiscoveringSession(http, speak_other)
        await session.other(context=Brought("other"))
        await session.may_make_task("slow", context=Brought("may it"))
        await session.tool("slow", context=Brought("tool"))
        await session.ask("server/discover", {}, context=Brought("ask"))
    assert sent == [
        ("server/discover", Brought("other")),
        ("tools/list", Brought("tool")),
        ("server/discover", Brought("ask")),
    ]


# ── MCP 2025-11-25 over HTTP ──────────────────────────────────────────────────────────────────


async def test_each_request_at_2025_11_25_has_the_context_of_its_call() -> None:
    wire, observed = OlderServer(), Observed()
    wire.server_stream = Stream()
    async with wire.session(observed) as session:
        created = await session.call(ToolCall(name="slow", context=Brought("call")), nothing)
        assert isinstance(created, Created)
        await wire.wait_for("GET")
        assert set(wire.contexts) == {
            ("initialize", Brought("call")),
            ("notifications/initialized", Brought("call")),
            ("tools/list", Brought("call")),
            ("tools/call", Brought("call")),
            ("GET", Brought("call")),
        }
        wire.task = {**wire.task, "status": "input_required"}
        ref = TaskRef(created.task.task_id, created.session_data, Brought("first poll"))
        observed.observe(ref)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.get, ref)
            stream = await wire.wait_for_result()
            stream.event(question(0))
        asked = await observed.wait_until(lambda snapshot: bool(snapshot.task.input_requests))
        (key,) = asked.task.input_requests or {}
        await session.update(replace(observed.kept[TASK], context=Brought("update")), {key: ANSWER})
        wire.task = {**wire.task, "status": "working"}
        await session.get(replace(observed.kept[TASK], context=Brought("last poll")))
        assert await session.may_make_task("slow", context=Brought("unused: all is known"))
        await session.ask("server/discover", {}, context=Brought("ask"))
        await session.tool("slow", fresh=True, context=Brought("tool"))
        # The stream that a server closes is opened again for the sake of the newest task observed.
        wire.server_stream.end()
        observed.kept[TASK] = replace(observed.kept[TASK], context=Brought("observed now"))
        wire.server_stream = Stream()
        await wire.wait_for("GET", 2)
    assert [sent for sent in wire.contexts if sent[1] != Brought("call")] == [
        ("tasks/get", Brought("first poll")),
        ("tasks/result", Brought("first poll")),
        ("answer", Brought("update")),
        ("tasks/get", Brought("last poll")),
        ("ping", Brought("ask")),
        ("tools/list", Brought("tool")),
        ("GET", Brought("observed now")),
        ("notifications/cancelled", Brought("last poll")),
    ]


async def test_a_question_of_a_plain_call_at_2025_11_25_is_put_with_the_context_of_the_call() -> None:
    wire, inputs, stream = OlderServer(), Asked(), Stream()
    wire.replies["tools/call"] = lambda arrived: stream
    async with wire.session(Observed(), inputs=inputs) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(session.call, ToolCall(name="plain", context=Brought("call")), nothing)
        await wire.wait_for("tools/call")
        stream.event(question(0, task_id=None))
        await wire.wait_for("answer")
        stream.reply(text_result("done"))
    assert inputs.with_context == Brought("call")
    assert dict(wire.contexts)["answer"] == Brought("call")


async def refuse(context: object, params: object) -> ElicitResult:
    raise AssertionError("answered by the test's own inputs")


async def test_a_question_that_is_a_task_of_the_client_is_put_with_the_context_of_the_call() -> None:
    wire, inputs, stream = OlderServer(), Asked(elicitation=refuse), Stream()
    wire.replies["tools/call"] = lambda arrived: stream
    asked = question(0, task_id=None)
    asked["params"]["task"] = {"ttl": 60_000}
    async with wire.session(Observed(), inputs=inputs) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(session.call, ToolCall(name="plain", context=Brought("call")), nothing)
        await wire.wait_for("tools/call")
        stream.event(asked)
        await wire.wait_for("notifications/tasks/status")
        stream.reply(text_result("done"))
    assert inputs.with_context == Brought("call")
