"""A :class:`TasksTransport` between a host's session and a server that say what they are told to."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp.shared.message import ClientMessageMetadata
from mcp_types import ElicitResult, ErrorData

from mcp_tasks_client import MemoryJournal, Scope, TasksTransport
from mcp_tasks_client.hosts.relay import core_router, core_server
from mcp_tasks_client.hosts.relay.messages import make_message
from mcp_tasks_client.machine.states import Observing
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import RpcError
from mcp_tasks_client.sessions.v2025.session_data import SentAnswer, SessionData
from tests._requirements import requirement
from tests.kit.older_server import TASK, TASKS, Arrived, OlderServer, text

from ._host_session import FORM, LIMIT_S, MARK, QUICK, RESULT, HostSession, connected, question

pytestmark = pytest.mark.anyio

PLAIN = text("plain")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> OlderServer:
    # How long a poll waits for a question is shown elsewhere.
    monkeypatch.setattr("mcp_tasks_client.sessions.v2025.core_session._QUESTION_S", 0.05)
    server = OlderServer()
    server.task["pollInterval"] = 10
    server.result = RESULT
    return server


async def accept(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={})


# ── what passes ───────────────────────────────────────────────────────────────────────────────


async def test_what_is_no_business_of_ours_passes_both_ways(server: OlderServer) -> None:
    server.replies["ping"] = lambda arrived: {"pong": None}
    server.replies["resources/list"] = lambda arrived: RpcError(-32601, "no", {"why": None})
    async with connected(server) as session:
        assert await session.ask("ping") == {"pong": None}
        assert await session.ask("resources/list", {"cursor": None}) == RpcError(-32601, "no", {"why": None})
        assert server.of("resources/list")[0].params == {"cursor": None}
        await session.say({"method": "notifications/roots/list_changed"})
        await server.say({"method": "notifications/message", "params": {"level": "info", "data": 1}})
        assert (await session.hears("notifications/message"))["params"]["data"] == 1
        broken = ValueError("not JSON")
        await server.say(broken)  # type: ignore[arg-type]  # as transports tell of what they could not read
        await server.say({"method": "notifications/message", "params": {"level": "info", "data": 2}})
        await session.hears("notifications/message")
        assert broken in session.heard
    assert server.of("notifications/roots/list_changed")
    assert (server.entered, server.left) == (1, 1)


async def test_a_plain_call_goes_as_the_host_has_sent_it(server: OlderServer) -> None:
    params = {"name": "plain", "arguments": {"a": None}, "_meta": {"progressToken": 7}}
    async with connected(server) as session:
        assert await session.ask("tools/call", params) == PLAIN
    (call,) = server.of("tools/call")
    assert call.params == params
    assert isinstance(call.message["id"], int)


@pytest.mark.parametrize(
    "wrong", [{"arguments": [1]}, {"arguments": "{}"}, {"_meta": {"progressToken": [1]}}]
)
async def test_a_call_that_a_server_would_refuse_is_refused_and_not_made(
    server: OlderServer, wrong: Any
) -> None:
    async with connected(server) as session:
        said = await session.ask("tools/call", {"name": "slow", **wrong})
    assert said.code == -32602
    assert "The request is not as MCP has it" in said.message
    assert server.of("tools/call") == []


async def test_a_keyed_call_that_makes_no_task_is_made_once_and_its_key_stays_here(
    server: OlderServer,
) -> None:
    params = {"name": "plain", "arguments": {}, "_meta": {"mcp-tasks-client/idempotency-key": "order-42"}}
    async with connected(server) as session:
        first = await session.ask("tools/call", params)
        assert (first, await session.ask("tools/call", params)) == (PLAIN, first)
    (call,) = server.of("tools/call")
    assert "order-42" not in str(call)


@pytest.mark.parametrize(("version", "capabilities"), [("2025-06-18", {"tasks": TASKS}), ("2025-11-25", {})])
async def test_where_there_are_no_tasks_every_call_is_plain(
    server: OlderServer, version: str, capabilities: JSONObject
) -> None:
    server.version, server.capabilities = version, capabilities
    async with connected(server) as session:
        assert await session.ask("tools/call", {"name": "slow", "arguments": {}}) == PLAIN
    assert "task" not in server.of("tools/call")[0].params


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
@pytest.mark.parametrize("of_the_hosts", [{}, {"task": {"ttl": 1000}}], ids=["plain", "a task of the host's"])
async def test_a_call_that_passes_leaves_its_label_and_its_key_here(
    server: OlderServer, version: str, of_the_hosts: JSONObject
) -> None:
    server.version = version
    for name in ("label", "idempotency-key") if version < "2025-11-25" or of_the_hosts else ("label",):
        params = {"name": "plain", "_meta": {f"mcp-tasks-client/{name}": "secret", "x": None}, **of_the_hosts}
        async with connected(server) as session:
            await session.ask("tools/call", params)
        *_, call = server.of("tools/call")
        assert call.params == {**params, "_meta": {"x": None}}


async def test_a_call_is_not_hindered_by_a_list_that_cannot_be_had(server: OlderServer) -> None:
    server.replies["tools/list"] = lambda arrived: RpcError(-32603, "broken", None)
    async with connected(server) as session:
        assert await session.ask("tools/call", {"name": "slow", "arguments": {}}) == PLAIN


@pytest.mark.parametrize("capabilities", [{}, {"tasks": TASKS}])
async def test_a_call_does_not_wait_for_a_list_that_does_not_come(
    server: OlderServer, capabilities: JSONObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_server, "_LIST_S", 0.1 if capabilities else LIMIT_S)
    server.capabilities = capabilities
    server.replies["tools/list"] = lambda arrived: None
    async with connected(server) as session:
        assert await session.ask("tools/call", {"name": "slow", "arguments": {}}) == PLAIN


async def test_a_task_of_the_hosts_own_is_the_hosts(server: OlderServer) -> None:
    async with connected(server, {"elicitation": {}}) as session:
        created = await session.ask("tools/call", {"name": "slow", "task": {"ttl": 1000}})
        assert created == {"task": server.task}
        await server.say(question("q", _meta=MARK))
        assert (await session.hears("elicitation/create"))["id"] == "q"
        await session.say({"id": "q", "result": {"action": "decline"}})
        await server.say({"method": "notifications/tasks/status", "params": server.task})
        assert (await session.hears("notifications/tasks/status"))["params"]["taskId"] == TASK
        await server.until(lambda: server.answers)
        assert server.answers == {"q": {"action": "decline"}}


async def test_what_a_server_wants_as_a_task_of_the_hosts_is_the_hosts(server: OlderServer) -> None:
    async with connected(server, {"elicitation": {}}) as session:
        await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: server.of("tasks/get"))
        await server.say(question("q", _meta=MARK, task={"ttl": 1}))
        assert (await session.hears("elicitation/create"))["id"] == "q"


async def test_what_the_sdk_notes_of_a_message_stays_with_it(server: OlderServer) -> None:
    transport = TasksTransport(server.transport(), endpoint="s", journal=MemoryJournal())
    with anyio.fail_after(LIMIT_S):
        async with transport as (_, write, *_):
            message = make_message({"id": 1, "method": "initialize", "params": {}})
            message.metadata = noted = object()
            await write.send(message)
            await server.until(lambda: server.arrived)
    assert server.metadata == [noted]


async def test_a_host_that_reads_nothing_for_a_while_keeps_nobody_from_polling(server: OlderServer) -> None:
    async with connected(server) as session:
        await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: server.of("tasks/get"))
        session.asleep = True
        for number in range(3):
            params = {"level": "info", "data": number}
            await server.say({"method": "notifications/message", "params": params})
        polls = len(server.of("tasks/get"))
        await server.until(lambda: len(server.of("tasks/get")) > polls + 2)


# ── calls ─────────────────────────────────────────────────────────────────────────────────────


async def test_the_result_of_a_task_is_the_reply_and_nothing_of_it_is_changed(server: OlderServer) -> None:
    journal = MemoryJournal()
    params = {"name": "slow", "arguments": {"x": [None]}, "_meta": {"progressToken": 3, "a/b": 1}}
    async with connected(server, journal=journal, principal="ada") as session:
        request_id = await session.send("tools/call", params)
        await server.until(lambda: len(server.of("tasks/get")) > 1)
        (record,) = await journal.records(Scope("a-server", "ada"))
        assert record.task_id == TASK
        await server.say({"method": "notifications/tasks/status", "params": server.task})
        server.task["status"] = "completed"
        assert await session.reply_to(request_id) == RESULT
        assert session.heard == [], "the host has no such task"
    (call,) = server.of("tools/call")
    ttl = call.params.pop("task")
    assert ttl["ttl"] > 0
    assert call.params == params
    async with journal:
        assert await journal.records(Scope("a-server", "ada"), pending=True) == [], "it was read"


@pytest.mark.parametrize("leaves", [True, False], ids=["has-left", "does-not-read"])
async def test_a_result_that_the_host_has_not_read_is_not_delivered(
    server: OlderServer, leaves: bool
) -> None:
    journal = MemoryJournal()
    async with connected(server, journal=journal) as session:
        await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: server.of("tasks/get"))
        if leaves:
            await session._read.aclose()
        else:
            session.asleep = True
            await server.say({"method": "notifications/message", "params": {"level": "info", "data": 1}})
        server.task["status"] = "completed"
        await server.until(lambda: server.of("tasks/result"))
        await anyio.wait_all_tasks_blocked()
    async with journal:
        (record,) = await journal.records(Scope("a-server", ""))
    assert record.finished
    assert record.delivered_at is None


async def test_a_call_that_goes_on_by_a_token_of_the_sdks_is_not_made_again(server: OlderServer) -> None:
    async with connected(server) as session:
        call = {"id": 99, "method": "tools/call", "params": {"name": "slow"}}
        message = make_message(call)
        message.metadata = ClientMessageMetadata(resumption_token="event-17")
        await session._write.send(message)
        assert await session.reply_to(99) == PLAIN
    assert [one.message["id"] for one in server.of("tools/call")] == [99]


async def test_an_error_of_the_servers_is_the_reply_as_it_was_said(server: OlderServer) -> None:
    server.replies["tools/call"] = lambda arrived: RpcError(-32042, "first this", {"urls": [None]})
    async with connected(server) as session:
        said = await session.ask("tools/call", {"name": "slow", "arguments": {}})
    assert said == RpcError(-32042, "first this", {"urls": [None]})


async def test_what_no_server_has_said_tells_what_to_do_next(server: OlderServer) -> None:
    async with connected(server) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: server.of("tasks/get"))
        server.replies["tasks/get"] = lambda arrived: RpcError(-32602, "no such task", None)
        said = await session.reply_to(request_id)
    assert said.code == -32603
    assert "does not know the task" in said.message


async def test_a_host_says_for_how_long_a_task_is_to_be_kept(server: OlderServer) -> None:
    async with connected(server, task_ttl_s=5.0) as session:
        server.task["status"] = "completed"
        assert await session.ask("tools/call", {"name": "slow"}) == RESULT
    assert server.of("tools/call")[0].params["task"] == {"ttl": 5000}


async def test_where_nothing_but_tasks_is_wanted_another_tool_is_not_called(server: OlderServer) -> None:
    async with connected(server, task_preference="always") as session:
        said = await session.ask("tools/call", {"name": "plain"})
    assert "was not called" in said.message
    assert not server.of("tools/call")


@pytest.mark.parametrize("on_abandon", ["cancel", "detach"])
async def test_a_call_that_is_taken_back_gets_no_reply(server: OlderServer, on_abandon: str) -> None:
    async with connected(server, on_abandon=on_abandon) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: server.of("tasks/get"))
        await session.say({"method": "notifications/cancelled", "params": {"requestId": request_id}})
        await server.until(lambda: on_abandon == "detach" or server.of("tasks/cancel"))
        await session.ask("ping")
        assert request_id not in session._replies
    assert not server.of("notifications/cancelled"), "the server has never heard of that request"
    assert len(server.of("tasks/cancel")) == (1 if on_abandon == "cancel" else 0)


async def test_a_host_that_gives_one_id_to_two_calls_keeps_its_connection(server: OlderServer) -> None:
    async with connected(server) as session:
        for _ in range(2):
            await session.say({"id": 77, "method": "tools/call", "params": {"name": "slow"}})
        await server.until(lambda: len(server.of("tools/call")) == 2)
        await session.say({"method": "notifications/cancelled", "params": {"requestId": 77}})
        await server.until(lambda: not session.relay._calls)
        server.task["status"] = "completed"
        assert await session.reply_to(77) == RESULT
        await anyio.wait_all_tasks_blocked()
        assert await session.ask("ping") == {}


@pytest.mark.parametrize("request_id", [[1], {}, None, 1.5])
async def test_a_host_that_takes_back_what_no_request_can_be_keeps_its_connection(
    server: OlderServer, request_id: Any
) -> None:
    async with connected(server) as session:
        await session.say({"method": "notifications/cancelled", "params": {"requestId": request_id}})
        assert await session.ask("ping") == {}
    assert server.of("notifications/cancelled"), "as it is no business of ours"


async def test_a_call_that_is_taken_back_at_once_is_not_made(server: OlderServer) -> None:
    async with connected(server) as session:
        for _ in range(10):
            request_id = await session.send("tools/call", {"name": "slow"})
            await session.say({"method": "notifications/cancelled", "params": {"requestId": request_id}})
        await session.ask("ping")
        await anyio.wait_all_tasks_blocked()
    assert not server.of("tools/call")
    assert not server.of("notifications/cancelled")


async def test_a_call_that_is_waited_for_when_the_transport_is_left_is_abandoned(server: OlderServer) -> None:
    async with connected(server, on_abandon="cancel") as session:
        await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: server.of("tasks/get"))
    assert len(server.of("tasks/cancel")) == 1
    assert server.left == 1


@pytest.mark.parametrize("hint_ms", [10, 3_600_000])
async def test_a_call_that_waits_when_the_connection_ends_is_journaled(
    server: OlderServer, hint_ms: int
) -> None:
    journal = MemoryJournal()
    server.task["pollInterval"] = hint_ms
    async with connected(server, journal=journal) as session:
        await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: server.of("tools/call"))
        await anyio.wait_all_tasks_blocked()
        server.hang_up()
        await session.ended.wait()
        await server.until(lambda: not session.relay._calls)
    async with journal:
        (record,) = await journal.records(Scope("a-server", ""))
    assert not record.finished


async def test_who_has_called_is_told_how_the_task_goes(server: OlderServer) -> None:
    told: list[Any] = []
    async with connected(server, on_update=told.append) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: told)
        server.task["status"] = "completed"
        await session.reply_to(request_id)
    assert [task.status for task in told] == ["working", "completed"]


# ── requests of ours ──


# ── questions ─────────────────────────────────────────────────────────────────────────────────


@requirement("2025:marked-answers")
async def test_a_question_of_a_task_is_asked_of_the_hosts_session_and_answered_with_the_mark(
    server: OlderServer,
) -> None:
    async with connected(server, {"elicitation": {}}) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: server.of("tasks/get"))
        server.task["status"] = "input_required"
        await server.until(lambda: server.of("tasks/result"))
        for _ in range(2):  # over two streams
            await server.say(question("q", _meta=MARK))
        asked = await session.hears("elicitation/create")
        assert asked["params"] == FORM, "no task of the session's"
        await session.say({"id": asked["id"], "result": {"action": "accept", "content": {}}})
        await server.until(lambda: server.answers)
        server.task["status"] = "completed"
        assert await session.reply_to(request_id) == RESULT
        assert session.heard == []
    assert server.answers == {"q": {"action": "accept", "content": {}, "_meta": MARK}}


async def test_a_question_that_names_no_task_is_the_hosts_and_is_not_journaled(server: OlderServer) -> None:
    """FastMCP 3 asks so, and says that the task works. The page of that version says what it means."""
    journal = MemoryJournal()
    async with connected(server, {"elicitation": {}}, journal=journal) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: server.of("tasks/get"))
        await server.say(question("q"))
        asked = await session.hears("elicitation/create")
        assert asked["id"] == "q", "as the server has sent it"
        (record,) = await journal.records(Scope("a-server", ""))
        assert not getattr(record.state, "questions", ())
        await session.say({"id": "q", "result": {"action": "accept", "content": {}}})
        await server.until(lambda: server.answers)
        server.task["status"] = "completed"
        assert await session.reply_to(request_id) == RESULT


async def test_no_more_than_some_questions_wait_for_a_task(
    server: OlderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_router, "MOST_WAITING", 2)
    server.replies["tools/call"] = lambda arrived: None
    async with connected(server, {"elicitation": {}}) as session:
        await session.send("tools/call", {"name": "slow"})
        await server.wait_for("tools/call")
        for number in range(3):
            await server.say(question(number, _meta=MARK))
            await anyio.wait_all_tasks_blocked()
        assert (await session.hears("elicitation/create"))["id"] == 2, "the last one does not wait"
        assert session.heard == []


@pytest.mark.parametrize(
    "ends", ["the connection breaks", "the host goes", "all is stopped", "the server takes it back"]
)
async def test_what_was_asked_before_the_session_ended_can_be_answered_by_another_process(
    server: OlderServer, ends: str
) -> None:
    """It goes back to the session, where the server waits for just that, unless it has taken it back."""
    journal, prompted, everything = MemoryJournal(), anyio.Event(), anyio.CancelScope()

    async def ask(context: Any, params: Any) -> ElicitResult:
        prompted.set()
        await anyio.sleep_forever()
        raise AssertionError("never")

    with everything:
        async with connected(server, elicitation=ask, journal=journal) as session:
            await session.send("tools/call", {"name": "slow"})
            server.task["status"] = "input_required"
            await server.until(lambda: server.of("tasks/result"))
            await server.say(question("q", _meta=MARK))
            await prompted.wait()
            if ends == "the server takes it back":
                await server.say({"method": "notifications/cancelled", "params": {"requestId": "q"}})
                looks = len(server.of("tasks/get"))
                await server.until(lambda: len(server.of("tasks/get")) > looks + 3)
            if ends == "all is stopped":
                everything.cancel()
                await anyio.sleep_forever()
            elif ends != "the host goes":
                server.hang_up()
                await session.ended.wait()
    async with journal:
        (record,) = await journal.records(Scope("a-server", ""))
    assert isinstance(record.state, Observing)
    (open_question,) = record.state.questions
    kept = SessionData.read(record.state.session_data).open
    asked = [(open_question.key, "q")] if ends != "the server takes it back" else []
    assert [(one.key, one.request_id) for one in kept] == asked


async def test_an_answer_that_may_have_been_lost_is_journaled_for_another_process(
    server: OlderServer,
) -> None:
    """The SDK tells nobody whether it arrived, and its session ends with what it cannot send."""
    journal = MemoryJournal()
    async with connected(server, elicitation=accept, journal=journal) as session:
        await session.send("tools/call", {"name": "slow"})
        server.task |= {"status": "input_required", "pollInterval": 60_000}
        await server.until(lambda: server.of("tasks/result"))
        await server.say(question("q", _meta=MARK))
        await server.until(lambda: server.answers)
        server.hang_up()
        await session.ended.wait()
    async with journal:
        (record,) = await journal.records(Scope("a-server", ""))
    assert isinstance(record.state, Observing)
    assert SessionData.read(record.state.session_data).sent == SentAnswer("q", server.answers["q"])


async def test_calls_without_a_reply_hold_up_no_other(server: OlderServer) -> None:
    server.replies["tools/call"] = lambda arrived: None
    async with connected(server) as session:
        for _ in range(70):  # which the session may have given up, without a word
            await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: len(server.of("tools/call")) == 70)


async def test_an_answer_without_effect_is_said_again(
    server: OlderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[str] = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        prompts.append(params.message)
        return await accept(context, params)

    async with connected(server, elicitation=ask) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        server.task["status"] = "input_required"
        await server.until(lambda: server.of("tasks/result"))
        await server.say(question("q", _meta=MARK))
        await server.until(lambda: server.answers)
        first = server.answers.pop("q")
        await server.until(lambda: server.answers)
        assert server.answers == {"q": first}
        server.task["status"] = "completed"
        assert await session.reply_to(request_id) == RESULT
    assert prompts == ["Name?"]


async def test_what_can_be_answered_here_is_declared_and_answered_here(server: OlderServer) -> None:
    async with connected(server, {"roots": {"listChanged": True}}, elicitation=accept) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        server.task["status"] = "input_required"
        await server.until(lambda: server.of("tasks/result"))
        await server.say(question(0, _meta=MARK))
        await server.until(lambda: server.answers)
        server.task["status"] = "completed"
        await session.reply_to(request_id)
        assert session.heard == []
    declared = server.of("initialize")[0].params["capabilities"]
    assert declared == {"roots": {"listChanged": True}, "elicitation": {"form": {}, "url": {}}}


@pytest.mark.parametrize("method", ["elicitation/create", "roots/list"])
async def test_what_only_we_have_declared_is_answered_here_though_no_task_asks_for_it(
    server: OlderServer, method: str
) -> None:
    async with connected(server, {"roots": {}}, elicitation=accept, roots=accept) as session:
        await server.say({**question("q"), "method": method})
        if method == "roots/list":
            assert (await session.hears(method))["id"] == "q"
        else:
            await server.until(lambda: server.answers)
            assert server.answers == {"q": {"action": "accept", "content": {}}}


async def test_a_question_that_comes_over_two_streams_is_asked_once(server: OlderServer) -> None:
    asked: list[str] = []
    answering = anyio.Event()

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        await answering.wait()
        return await accept(context, params)

    async with connected(server, elicitation=ask) as session:
        for _ in range(2):
            await server.say(question("q"))
        await session.ask("ping")
        answering.set()
        await server.until(lambda: server.answers)
    assert asked == ["Name?"]


@pytest.mark.parametrize(
    ("said", "code"), [(ValueError("no"), -32603), (ErrorData(code=-1, message="no"), -1)]
)
async def test_what_cannot_be_answered_here_is_refused(server: OlderServer, said: Any, code: int) -> None:
    async def refusing(context: Any, params: Any) -> Any:
        if isinstance(said, Exception):
            raise said
        return said

    async with connected(server, elicitation=refusing):
        await server.say(question("q"))
        await server.until(lambda: server.answers)
    assert server.answers["q"].code == code


async def test_what_we_answer_in_the_hosts_place_does_not_go_to_what_has_taken_its_id(
    server: OlderServer,
) -> None:
    asked, thought = anyio.Event(), anyio.Event()

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.set()
        with anyio.CancelScope(shield=True):
            await thought.wait()
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with connected(server, {"sampling": {}}, elicitation=ask) as session:
        await server.say(question("q"))
        await asked.wait()
        await server.say({"id": "q", "method": "sampling/createMessage", "params": {}})
        await session.hears("sampling/createMessage")
        thought.set()
        await session.ask("ping")
        assert server.answers == {}


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ({"error": {"code": -1, "message": "nobody at home"}}, "nobody at home"),
        ({"result": {"action": "perhaps"}}, "action"),
        ({"result": {}}, "action"),
    ],
)
async def test_a_question_that_the_host_refuses_or_answers_wrongly_leaves_the_task_waiting(
    server: OlderServer, reply: Any, told: str
) -> None:
    async with connected(server, {"elicitation": {}}) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        server.task["status"] = "input_required"
        await server.until(lambda: server.of("tasks/result"))
        await server.say(question("q", _meta=MARK))
        asked = await session.hears("elicitation/create")
        await session.say({"id": asked["id"], **reply})
        said = await session.reply_to(request_id)
        assert server.answers == {}
    assert said.code == -32603
    assert told in said.message


async def test_a_question_that_the_server_takes_back_is_taken_back_from_the_host(server: OlderServer) -> None:
    async with connected(server, {"elicitation": {}}) as session:
        await session.send("tools/call", {"name": "slow"})
        server.task["status"] = "input_required"
        await server.until(lambda: server.of("tasks/result"))
        await server.say(question("q", _meta=MARK))
        asked = await session.hears("elicitation/create")
        await server.say({"method": "notifications/cancelled", "params": {"requestId": "q"}})
        server.task["status"] = "cancelled"
        cancelled = {
            (await session.hears("notifications/cancelled"))["params"]["requestId"] for _ in range(2)
        }
        assert cancelled == {asked["id"], "q"}, "the host knows the first, and ignores the other"
        await session.say({"id": asked["id"], "result": {"action": "decline"}})  # too late
        await session.ask("ping")
    assert server.answers == {}


async def test_a_late_reply_to_a_request_of_ours_is_nobodys(server: OlderServer) -> None:
    async with connected(server) as session:
        request_id = await session.send("tools/call", {"name": "slow"})
        server.task["status"] = "input_required"
        await server.until(lambda: server.of("tasks/result"))
        server.task["status"] = "completed"
        (waiting, *_) = server.of("tasks/result")
        await session.reply_to(request_id)
        await server.say({"id": waiting.message["id"], "result": {}})
        await session.ask("ping")
        assert waiting.message["id"] not in session._replies


# ── what goes wrong here ──────────────────────────────────────────────────────────────────────


async def test_a_fault_of_ours_costs_the_host_one_call_and_not_its_connection(
    server: OlderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(server) as session:
        monkeypatch.setattr("mcp_tasks_client.hosts.host_calls.HostCalls.make", None)
        said = await session.ask("tools/call", {"name": "slow"})
        assert "TypeError" in said.message
        monkeypatch.setattr(core_router, "read_related_task", None)
        await server.say(question("q", _meta=MARK))
        assert (await session.hears("elicitation/create"))["id"] == "q"


async def test_a_host_that_reads_no_more_does_not_end_what_we_say_on_leaving(server: OlderServer) -> None:
    async with TasksTransport(
        server.transport(), endpoint="s", journal=MemoryJournal(), poll=QUICK, on_abandon="cancel"
    ) as (read, write, *_):
        session = HostSession(read, write)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.run)
            params = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "host", "version": "1"},
            }
            await session.ask("initialize", params)
            await session.send("tools/call", {"name": "slow"})
            await server.until(lambda: server.of("tasks/get"))
            tasks.cancel_scope.cancel()
        read.close()
        write.close()
        await server.say({"method": "notifications/message", "params": {"level": "info", "data": 1}})
    assert len(server.of("tasks/cancel")) == 1


async def test_a_url_names_the_server_as_it_does_for_every_other_way_in(server: OlderServer) -> None:
    journal = MemoryJournal()
    url = "https://user:secret@Server.Example:443/mcp#x"
    async with connected(server, endpoint=url, journal=journal) as session:
        await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: server.of("tasks/get"))
        assert await journal.records(Scope("https://server.example/mcp", ""))


# ── the connection ────────────────────────────────────────────────────────────────────────────


async def test_a_question_that_comes_before_its_task_is_known_is_a_question_of_that_task(
    server: OlderServer,
) -> None:
    server.replies["tools/call"] = lambda arrived: None
    async with connected(server, {"elicitation": {}}) as session:
        await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: server.of("tools/call"))
        await server.say(question("q", _meta=MARK))
        await session.ask("ping")
        assert session.heard == []
        assert server.answers == {}
        server.task["status"] = "input_required"
        await server.say({"id": server.of("tools/call")[0].message["id"], "result": {"task": server.task}})
        asked = await session.hears("elicitation/create")
        assert asked["id"] != "q", "it is asked by way of the journal"
        await session.say({"id": asked["id"], "result": {"action": "accept", "content": {}}})
        await server.until(lambda: server.answers)
    assert server.answers == {"q": {"action": "accept", "content": {}, "_meta": MARK}}


@requirement("2025:lost-session")
async def test_a_keyed_call_that_is_denied_with_its_session_was_not_made(server: OlderServer) -> None:
    params = {"name": "slow", "arguments": {}, "_meta": {"mcp-tasks-client/idempotency-key": "order-42"}}
    make = server.replies["tools/call"]
    server.replies["tools/call"] = lambda arrived: RpcError(-32600, "Session terminated", None)
    async with connected(server) as session:
        refused = await session.ask("tools/call", params)
        assert "has not read tools/call" in refused.message
        server.replies["tools/call"] = make
        server.task["status"] = "completed"
        assert await session.ask("tools/call", params) == RESULT


@pytest.mark.parametrize("code", [32600, -32600], ids=["of mcp 1.x", "of mcp 2.x"])
@pytest.mark.parametrize("denied", [1, 2])
async def test_a_session_has_ended_once_it_is_denied_to_two_polls_in_a_row(
    server: OlderServer, code: int, denied: int
) -> None:
    denial = RpcError(code, "Session terminated", None)

    def poll(arrived: Arrived) -> Any:
        if len(server.of("tasks/get")) <= denied:
            return denial
        server.task["status"] = "completed"
        return server.task

    server.replies["tasks/get"] = poll
    async with connected(server) as session:
        reply = await session.reply_to(await session.send("tools/call", {"name": "slow"}))
    if denied > 1:
        assert reply.code == -32603
        assert "ended the session" in reply.message
    else:
        assert reply == RESULT


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-32603, "Server returned an error response"),
        (-32000, "SSE stream ended without a response"),
        (-32600, "Unexpected content type: text/html"),
    ],
)
async def test_an_error_that_the_sdk_made_up_is_a_lost_reply_and_the_poll_is_repeated(
    server: OlderServer, code: int, message: str
) -> None:
    async with connected(server) as session:
        server.replies["tasks/get"] = lambda arrived: RpcError(code, message, None)
        request_id = await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: len(server.of("tasks/get")) > 1)
        server.task["status"] = "completed"
        server.replies["tasks/get"] = lambda arrived: server.task
        assert await session.reply_to(request_id) == RESULT


async def test_a_result_that_is_too_large_for_the_sdk_ends_the_call_by_what_to_raise(
    server: OlderServer,
) -> None:
    words = "SSE stream failed: Server-sent event exceeded the 1048576 byte limit."
    async with connected(server) as session:
        server.replies["tasks/result"] = lambda arrived: RpcError(-32000, words, None)
        server.task["status"] = "completed"
        reply = await session.reply_to(await session.send("tools/call", {"name": "slow"}))
    assert reply.code == -32603
    assert "larger than 1048576 bytes; raise max_sse_event_size" in reply.message


@pytest.mark.parametrize(
    ("given", "known"), [(None, "the-session"), ("mine", "mine"), (lambda: "mine", "mine")]
)
async def test_the_id_of_the_mcp_session_is_journaled_for_another_process(
    server: OlderServer, given: Any, known: str
) -> None:
    journal = MemoryJournal()
    async with connected(server, journal=journal, session_id=given) as session:
        await session.send("tools/call", {"name": "slow"})
        await server.until(lambda: server.of("tasks/get"))
        (record,) = await journal.records(Scope("a-server", ""))
    assert isinstance(record.state, Observing)
    assert SessionData.read(record.state.session_data).session_id == known
