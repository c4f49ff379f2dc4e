"""The server's questions, put to the host by its own session, where the transport has no callback."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import Environment, Inbox, MemoryJournal, SqliteJournal
from mcp_tasks_client.engine.process import Process
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.testing import ask as asking
from mcp_tasks_client.testing import complete, form, text_result
from tests.kit.json_rpc_host import (
    OLDER,
    URL,
    JsonRpcHost,
    OlderJsonRpcHost,
    asking_server,
    count,
    hosted,
    recorded,
    resume,
)
from tests.kit.probed_journal import ProbedJournal

pytestmark = pytest.mark.anyio

KEY: Final = {"mcp-tasks-client/idempotency-key": "k"}


def accept(name: str, value: str = "Ada") -> JSONObject:
    return {"action": "accept", "content": {name: value}}


async def ask(host: JsonRpcHost, tool: str, **params: Any) -> JSONObject:
    """A call that the host is asked about: the result of that round."""
    result: JSONObject = (await host.call(tool, **params))["result"]
    assert result["resultType"] == "input_required", result
    assert result["inputRequests"], "never a round without questions"
    return result


async def go_on(
    host: JsonRpcHost, tool: str, asked: JSONObject, answers: Mapping[str, JSONObject], **params: Any
) -> JSONObject:
    state = {"requestState": asked["requestState"]} if "requestState" in asked else {}
    return await host.call(tool, inputResponses=answers, **state, **params)


def text(answer: JSONObject) -> str:
    return str(answer["result"]["content"][0]["text"])


# ── at 2026-07-28 ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("meta", [{}, {"progressToken": 1}])
async def test_a_task_that_asks_is_a_round_of_the_call_and_the_answer_goes_to_the_task(
    meta: JSONObject,
) -> None:
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal) as host:
        asked = await ask(host, "asks", meta=meta)
        assert asked["inputRequests"]["name"]["params"]["message"] == "Who?"
        assert text(await go_on(host, "asks", asked, {"name": accept("name")}, meta=meta)) == "done"
        assert await recorded(journal, pending=True) == []
    (update,) = server.witness.log("tasks/update")
    assert update.params["inputResponses"] == {"name": accept("name")}
    assert count(server, "tools/call") == 1
    server.witness.check()


async def test_a_host_that_accepts_a_form_as_it_stands_gives_the_defaults_of_its_required_fields() -> None:
    server = asking_server()
    who = form("Who?", name={"type": "string", "default": "Ada"})
    server.tool("asks", [asking("name", who), complete(text_result("done"))], poll_interval_ms=1)
    async with hosted(server) as host:
        asked = await ask(host, "asks")
        assert text(await go_on(host, "asks", asked, {"name": {"action": "accept"}})) == "done"
    (update,) = server.witness.log("tasks/update")
    assert update.params["inputResponses"] == {"name": accept("name")}
    async with hosted(server) as client:
        older = OlderJsonRpcHost(client, {"elicitation/create": {"result": {"action": "accept"}}})
        client.version = OLDER
        await older.initialize()
        assert text(await older.call("asks")) == "done"
    (_, update) = server.witness.log("tasks/update")
    assert update.params["inputResponses"] == {"name": accept("name")}


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_what_was_typed_into_a_form_that_the_host_does_not_accept_goes_nowhere(action: str) -> None:
    server, typed = asking_server(), {"action": action, "content": {"name": "Ada"}}
    async with hosted(server) as host:
        asked = await ask(host, "asks")
        assert text(await go_on(host, "asks", asked, {"name": typed})) == "done"
    async with hosted(server) as client:
        older = OlderJsonRpcHost(client, {"elicitation/create": {"result": typed}})
        client.version = OLDER
        await older.initialize()
        assert text(await older.call("asks")) == "done"
    for update in server.witness.log("tasks/update"):
        assert update.params["inputResponses"] == {"name": {"action": action}}


async def test_the_host_is_asked_only_what_it_has_not_answered() -> None:
    server = asking_server()
    async with hosted(server) as host:
        first = await ask(host, "asks_twice")
        assert set(first["inputRequests"]) == {"a", "b"}
        second = await ask(
            host, "asks_twice", inputResponses={"a": accept("a")}, requestState=first["requestState"]
        )
        assert set(second["inputRequests"]) == {"b"}
        third = await go_on(host, "asks_twice", second, {"b": accept("b")})
        assert set(third["result"]["inputRequests"]) == {"c"}
        assert text(await go_on(host, "asks_twice", third["result"], {"c": accept("c")})) == "done"
    sent = [set(update.params["inputResponses"]) for update in server.witness.log("tasks/update")]
    assert sent == [{"a", "b"}, {"c"}]


@pytest.mark.parametrize(
    "wrong",
    [{"action": "accept", "content": {"name": 7}}, {"action": "accept"}, {"action": "perhaps"}, {}],
)
async def test_an_answer_that_is_none_to_its_question_is_refused_and_another_one_taken(
    wrong: JSONObject,
) -> None:
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal) as host:
        asked = await ask(host, "asks")
        refused = await go_on(host, "asks", asked, {"name": wrong})
        assert refused["error"]["code"] == -32602
        assert "The answer to 'name' was not taken" in refused["error"]["message"]
        assert text(await go_on(host, "asks", asked, {"name": accept("name")})) == "done"
    (update,) = server.witness.log("tasks/update")
    assert update.params["inputResponses"] == {"name": accept("name")}


async def test_the_refusal_of_an_answer_shows_no_task_id() -> None:
    """Some servers have the task ID in the key of a question."""
    server = asking_server(new_task_id=lambda: "task-0123456789abcdef")
    question = asking("task-0123456789abcdef:1", form("Who?", name="string"))
    server.tool("tool", [question, complete(text_result("done"))], poll_interval_ms=1)
    async with hosted(server) as host:
        asked = await ask(host, "tool")
        refused = await go_on(host, "tool", asked, {"task-0123456789abcdef:1": {"action": "accept"}})
    assert "was not taken" in refused["error"]["message"]
    assert "task-0123456789abcdef" not in refused["error"]["message"]


async def test_the_first_answer_stays() -> None:
    server = asking_server()
    async with hosted(server) as host:
        first = await ask(host, "asks_twice")
        await ask(
            host, "asks_twice", inputResponses={"a": accept("a", "first")}, requestState=first["requestState"]
        )
        answers = {"a": accept("a", "second"), "b": accept("b")}
        await ask(host, "asks_twice", inputResponses=answers, requestState=first["requestState"])
    (update,) = server.witness.log("tasks/update")
    assert update.params["inputResponses"]["a"] == accept("a", "first")


@pytest.mark.parametrize("tool", ["asks", "asks_first"])
@pytest.mark.parametrize("comes_back", ["with an answer of its own", "under its key"])
async def test_a_question_before_the_host_is_answered_from_outside_and_the_host_gets_the_result(
    tool: str, comes_back: str
) -> None:
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal) as host, Inbox(journal) as inbox:
        asked = await ask(host, tool, meta=KEY)
        (question,) = await inbox.questions()
        assert (question.tool, question.method) == (tool, "elicitation/create")
        await question.accept({"name": "Bob"})
        assert await inbox.questions() == []
        if comes_back == "under its key":
            done = await host.call(tool, meta=KEY)
        else:
            done = await go_on(host, tool, asked, {"name": accept("name")}, meta=KEY)
        assert text(done) == "done"
    updates = [update.params["inputResponses"] for update in server.witness.log("tasks/update")]
    again = [call.params.get("inputResponses") for call in server.witness.log("tools/call")][1:]
    assert [*updates, *again] == [{"name": accept("name", "Bob")}]


async def test_a_call_that_was_cancelled_from_outside_takes_no_answer_of_the_host() -> None:
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal) as host, Inbox(journal) as inbox:
        asked = await ask(host, "asks")
        (record,) = await inbox.records()
        await inbox.cancel(record)
        assert "error" in await go_on(host, "asks", asked, {"name": accept("name")})
    assert count(server, "tasks/update") == 0
    assert count(server, "tasks/cancel") == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio has no cancellation but that of scopes
async def test_answers_that_came_together_stay_together_whatever_cuts_the_call() -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def cut_the_call() -> None:
        """Natively, in the commit of its first answer."""
        tasks.pop().cancel()
        await anyio.lowlevel.checkpoint()

    server, journal = asking_server(), ProbedJournal()
    journal.after("save", cut_the_call, when=lambda *_, **__: tasks)
    async with hosted(server, journal) as host:
        asked = await ask(host, "asks_twice")
        answers = {"a": accept("a"), "b": accept("b")}
        cut = asyncio.create_task(go_on(host, "asks_twice", asked, answers))
        tasks.append(cut)
        with pytest.raises(asyncio.CancelledError):
            await cut
        again = await go_on(host, "asks_twice", asked, {})
        assert set(again["result"]["inputRequests"]) == {"c"}, "nobody is asked for what was said"


async def test_an_answer_that_comes_twice_at_once_is_one_answer() -> None:
    server, said = asking_server(), list[str]()
    async with hosted(server) as host:
        asked = await ask(host, "asks")

        async def answer() -> None:
            said.append(text(await go_on(host, "asks", asked, {"name": accept("name")})))

        async with anyio.create_task_group() as calls:
            for _ in range(3):
                calls.start_soon(answer)
    assert said == ["done"] * 3
    assert count(server, "tasks/update") == count(server, "tools/call") == 1


@pytest.mark.parametrize("where", ["this process", "another process", "another process, later"])
async def test_while_the_host_asks_its_person_only_its_own_process_may_ask_again(
    tmp_path: Path, where: str
) -> None:
    server, path, asked = asking_server(), tmp_path / "journal.sqlite3", list[str]()
    here = Process.current()
    # Another process of this host, which sees by its number that this one is alive.
    process = here if where == "this process" else replace(here, pid=os.getppid())

    async def elicit(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def resumed() -> list[str]:
        environment = Environment(process=process)
        return await resume(server, SqliteJournal(path), elicitation=elicit, environment=environment)

    async with hosted(server, SqliteJournal(path)) as host:
        question = await ask(host, "asks")
        if where == "another process":
            assert await resumed() == []
            assert text(await go_on(host, "asks", question, {"name": accept("name")})) == "done"
        if where == "this process":
            assert await resumed() == ["done"], "should the host never answer"
    if where == "another process, later":
        assert await resumed() == ["done"]
    assert len(asked) == (where != "another process")


async def test_another_process_takes_the_answer(tmp_path: Path) -> None:
    server, path = asking_server(), tmp_path / "journal.sqlite3"
    async with hosted(server, SqliteJournal(path)) as host:
        asked = await ask(host, "asks")
    async with hosted(server, SqliteJournal(path)) as host:
        assert text(await go_on(host, "asks", asked, {"name": accept("name")})) == "done"
    assert count(server, "tools/call") == 1


async def test_a_host_that_never_answers_leaves_the_question_to_whoever_resumes() -> None:
    async def elicit(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal) as host:
        asked = await ask(host, "asks")
        assert await resume(server, journal, elicitation=elicit) == ["done"]
        late = await go_on(host, "asks", asked, {"name": accept("name", "Eve")})
        assert "There is no such call any more" in late["error"]["message"]
    (update,) = server.witness.log("tasks/update")
    assert update.params["inputResponses"] == {"name": accept("name")}


@pytest.mark.parametrize(
    "change",
    [
        {"tool": "plain"},
        {"arguments": {"x": 1}},
        {"state": "mcp-tasks-client:"},
        {"state": "mcp-tasks-client:ab"},
    ],
)
async def test_an_answer_to_another_call_is_refused(change: JSONObject) -> None:
    server = asking_server()
    async with hosted(server) as host:
        asked = await ask(host, "asks")
        state = change.get("state", asked["requestState"])
        failed = await host.call(
            change.get("tool", "asks"),
            change.get("arguments"),
            requestState=state,
            inputResponses={"name": accept("name")},
        )
        assert failed["error"]["code"] == -32603
    assert not count(server, "tasks/update")


async def test_the_answers_of_one_principal_are_nobody_else_s() -> None:
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal, principal="ada") as host:
        asked = await ask(host, "asks")
    async with hosted(server, journal, principal="eve") as host:
        failed = await go_on(host, "asks", asked, {"name": accept("name")})
    assert failed["error"]["code"] == -32603
    assert not count(server, "tasks/update")


async def test_half_of_a_character_is_no_answer_and_may_be_answered_again() -> None:
    server = asking_server()
    async with hosted(server) as host:
        asked = await ask(host, "asks")
        refused = await go_on(host, "asks", asked, {"name": accept("name", "\ud800")})
        assert "surrogate" in refused["error"]["message"]
        assert text(await go_on(host, "asks", asked, {"name": accept("name")})) == "done"


@pytest.mark.parametrize("meta", [{}, KEY], ids=["no key", "key"])
async def test_a_server_that_asks_before_it_begins_asks_the_host_as_well(meta: JSONObject) -> None:
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal) as host:
        asked = await ask(host, "asks_first", meta=meta)
        assert len(await recorded(journal)) == len(meta), "nothing is kept of a call without key and task"
        done = await go_on(host, "asks_first", asked, {"name": accept("name")}, meta=meta)
        assert text(done) == "done"
    assert count(server, "tools/call") == 2
    server.witness.check()


async def test_a_host_that_declares_no_answer_to_the_question_gets_an_error_that_says_so() -> None:
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal, host_options={"capabilities": {}}) as host:
        failed = await host.call("asks")
        assert "elicitation/create" in failed["error"]["message"]
        assert "give the session a callback" in failed["error"]["message"]
        failed = await host.call("asks_model")
        assert "sampling/createMessage" in failed["error"]["message"]
        assert len(await recorded(journal, pending=True)) == 2


async def test_the_server_is_told_what_the_host_declares() -> None:
    server = asking_server()
    async with hosted(server) as host:
        await host.call("plain")
    (call,) = server.witness.log("tools/call")
    declared = call.params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert declared == {**host.capabilities, "extensions": {"io.modelcontextprotocol/tasks": {}}}
    assert call.params["_meta"]["io.modelcontextprotocol/clientInfo"] == {"name": "a host", "version": "1"}


async def test_a_callback_of_the_transport_answers_instead_of_the_host() -> None:
    asked: list[str] = []

    def elicit(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with hosted(asking_server(), elicitation=elicit) as host:
        assert await host.text("asks") == "done"
        failed = await host.call("asks_model")
        assert "pass sampling=..." in failed["error"]["message"]
    assert asked == ["Who?"]


# ── before 2026-07-28, on the stream ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("tool", ["asks", "asks_first"])
async def test_a_host_of_an_older_version_is_asked_on_the_stream_of_its_call(tool: str) -> None:
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal, host_options={"version": OLDER}) as host:
        older = OlderJsonRpcHost(host, {"elicitation/create": {"result": accept("name")}})
        await older.initialize()
        assert text(await older.call(tool)) == "done"
        assert await recorded(journal, pending=True) == []
    assert [one["params"]["message"] for one in older.asked] == ["Who?"]
    assert not [said for said in server.witness.broken() if "initialize" not in said]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ({"error": {"code": -1, "message": "nobody at home"}}, "nobody at home"),
        ({"result": {"action": "accept", "content": {"name": 7}}}, "name"),
        ({"result": {"action": "accept"}}, "name"),
        ({"result": {}}, "action"),
    ],
)
async def test_a_refusal_or_a_wrong_answer_of_the_host_leaves_the_task_waiting(
    reply: JSONObject, told: str
) -> None:
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal, host_options={"version": OLDER}) as host:
        older = OlderJsonRpcHost(host, {"elicitation/create": reply})
        await older.initialize()
        failed = await older.call("asks")
        assert told in failed["error"]["message"]
        assert [record.owner for record in await recorded(journal, pending=True)] == [None]
    assert count(server, "tasks/update") == 0


async def test_a_session_that_declared_no_callback_is_not_asked() -> None:
    server = asking_server()
    async with hosted(server, host_options={"version": OLDER}) as host:
        failed = await OlderJsonRpcHost(host, {}).call("asks")
    assert "give the session a callback" in failed["error"]["message"]


async def test_a_host_is_told_that_a_question_was_answered_elsewhere_and_its_late_answer_goes_nowhere() -> (
    None
):
    server, journal = asking_server(), MemoryJournal()
    async with hosted(server, journal) as client, Inbox(journal) as inbox:
        client.version = OLDER
        older = OlderJsonRpcHost(client, {})
        await older.initialize()
        heard = list[JSONObject]()
        body = json.dumps(client.body("asks"))
        async with client.client.stream("POST", URL, content=body, headers=client.headers) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                message = json.loads(line[6:])
                heard.append(message)
                if message.get("method") == "elicitation/create":
                    (question,) = await inbox.questions()
                    await question.answer(ElicitResult(action="accept", content={"name": "Ada"}))
                if message.get("method") == "notifications/cancelled":
                    late = {"jsonrpc": "2.0", "id": heard[0]["id"], "result": accept("name", "secret")}
                    reply = await client.client.post(URL, content=json.dumps(late), headers=client.headers)
                    assert reply.status_code == 202
    methods = [message["method"] for message in heard if "method" in message]
    assert methods == ["elicitation/create", "notifications/cancelled"]
    assert heard[1]["params"]["requestId"] == heard[0]["id"]
    (update,) = server.witness.log("tasks/update")
    assert update.params["inputResponses"] == {"name": accept("name")}
