"""``TasksClient(client)``: which options are whose, and calls over a host's own client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import anyio
import fastmcp
import mcp
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, ElicitResult

from mcp_tasks_client import Environment, InputContext, MemoryJournal, Scope, SqliteJournal, TasksExtension
from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import (
    ConnectionLostError,
    MissingCapabilityError,
    OutcomeUnknownError,
    RemoteProtocolError,
    TaskFailedError,
)
from mcp_tasks_client.hosts.sdk.over_client import OverClient
from mcp_tasks_client.hosts.shared_options import SharedOptions
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.protocol import JSONObject
from tests.kit.current_server import (
    DONE,
    LIMIT_S,
    NEVER,
    QUESTION,
    QUICK,
    RESULT,
    TASK_ID,
    WORKING,
    CurrentServer,
    Fault,
    Http,
    Made,
    asking,
    at_loopback,
    completed,
    in_memory,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]

URL: Final = "http://127.0.0.1:1/mcp"
FORM: Final[JSONObject] = {"type": "object", "properties": {"by": {"type": "string"}}}


@pytest.fixture(autouse=True)
def bounded(anyio_backend: object) -> None:
    """Parametrises what is not asynchronous as well; every wait is inside a ``fail_after``."""


def of(client: Any, **options: Any) -> OverClient:
    return OverClient.of(client, SharedOptions(**options))


def client_in_memory(server: Any, **options: Any) -> mcp.Client:
    ours = TasksExtension(journal=MemoryJournal(), endpoint="a-server", poll=QUICK)
    return mcp.Client(in_memory(server), extensions=[ours], **options)


# ── options ───────────────────────────────────────────────────────────────────────────────────────


def test_an_option_that_is_not_given_is_the_extensions(made: Made) -> None:
    theirs = TasksExtension(
        journal=MemoryJournal(),
        endpoint="their-server",
        principal="alice",
        poll=PollPolicy(polls_in_flight=3),
        on_abandon="cancel",
        environment=Environment(),
    )
    over = of(made(URL, extensions=[theirs]))
    assert over.engine.journal.identity == theirs.engine.journal.identity
    assert over.engine.policy is theirs.engine.policy
    assert over.scope == Scope("their-server", "alice")
    assert over.engine.on_abandon == "cancel"
    assert over.engine.environment is theirs.engine.environment
    assert over.session.limits.tasks_in_flight == 3


def test_an_option_that_is_given_wins_also_with_the_value_of_a_default(made: Made) -> None:
    theirs = TasksExtension(
        journal=MemoryJournal(), endpoint="their-server", principal="alice", on_abandon="cancel"
    )
    journal, poll, environment = MemoryJournal(), PollPolicy(), Environment()
    over = of(
        made(URL, extensions=[theirs]),
        journal=journal,
        endpoint="ours",
        principal="",
        poll=poll,
        on_abandon="detach",
        environment=environment,
    )
    assert over.engine.journal.identity == journal.identity
    assert (over.engine.policy, over.engine.environment) == (poll, environment)
    assert over.scope == Scope("ours", "")
    assert over.engine.on_abandon == "detach"


def test_no_journal_is_made_where_the_extension_has_one(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    client = made(URL, extensions=[TasksExtension(journal=MemoryJournal())])
    bare = made(URL)
    monkeypatch.setattr(SqliteJournal, "__init__", lambda *_: pytest.fail("a journal was made"))
    of(client)
    of(bare, journal=MemoryJournal())


def test_a_server_is_named_by_its_url_its_command_or_its_host(made: Made) -> None:
    over = partial(of, journal=MemoryJournal())
    assert over(made(URL)).scope == Scope(URL, "")
    assert over(made(URL), endpoint="mine").scope == Scope("mine", "")
    assert not over(made(URL)).session.ephemeral
    assert over(mcp.Client(StdioServerParameters(command="server"))).session.ephemeral
    for nowhere in (mcp.Client(in_memory(CurrentServer())), ClientSession.__new__(ClientSession)):
        with pytest.raises(ValueError, match=r"TasksClient\(client, endpoint="):
            over(nowhere)


async def test_a_given_callback_wins_over_the_extensions_and_that_over_the_clients() -> None:
    def answering(name: str) -> Callable[..., Any]:
        async def elicit(context: Any, params: Any) -> ElicitResult:
            return ElicitResult(action="accept", content={"by": name})

        return elicit

    context = InputContext(tool="tool", key="k", task=None)
    bare = TasksExtension(journal=MemoryJournal(), endpoint="a-server")
    theirs = TasksExtension(journal=MemoryJournal(), endpoint="a-server", elicitation=answering("extension"))
    question = {**QUESTION, "params": {**QUESTION["params"], "requestedSchema": FORM}}
    by: list[str] = []
    for extension, given in ((bare, None), (theirs, None), (theirs, answering("given"))):
        client = mcp.Client(
            in_memory(CurrentServer()), extensions=[extension], elicitation_callback=answering("client")
        )
        async with client:
            inputs = of(client, elicitation=given).inputs
            by.append((await inputs.answer(context, question))["content"]["by"])
    assert by == ["client", "extension", "given"]


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────

REFUSED_BY_THE_SDK: Final[dict[str, JSONObject]] = {
    "requestState that is a number": {"requestState": 5},
    "an unknown input request": {"inputRequests": {"k": {"method": "nope"}}},
    "metadata that is text, with content": {"_meta": "x", "content": []},
}


@pytest.mark.parametrize("changes", REFUSED_BY_THE_SDK.values(), ids=REFUSED_BY_THE_SDK)
async def test_not_even_what_the_sdk_refuses_costs_the_task(changes: JSONObject) -> None:
    server = CurrentServer(calls=[{**WORKING, **changes}])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server) as client, TasksClient(client) as tasks:
            result = await tasks.call_tool("tool")
    assert result.structured_content == {"n": 1}


async def test_we_check_a_result_and_the_sdk_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def validate(session: ClientSession, name: str, result: CallToolResult) -> None:
        raise AssertionError("the SDK has checked it")

    monkeypatch.setattr(ClientSession, "validate_tool_result", validate)
    server = CurrentServer(gets=[DONE, completed(result={**RESULT, "structuredContent": {"m": 1}})])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server) as client, TasksClient(client) as tasks:
            assert (await tasks.call_tool("tool")).structured_content == {"n": 1}
            with pytest.raises(RemoteProtocolError, match="output schema"):
                await tasks.call_tool("tool")


async def test_a_reply_that_says_nothing_of_a_keyed_call_leaves_its_outcome_unknown(made: Made) -> None:
    server = CurrentServer(calls=[Http("503 Service Unavailable"), WORKING])
    ours = TasksExtension(journal=MemoryJournal(), poll=QUICK)
    with anyio.fail_after(LIMIT_S):
        async with (
            at_loopback(server) as url,
            made(url, extensions=[ours]) as client,
            TasksClient(client) as tasks,
        ):
            for _ in range(2):
                with pytest.raises(OutcomeUnknownError):
                    await tasks.call_tool("tool", idempotency_key="k")
            assert server.counts["tools/call"] == 1
            again = await tasks.call_tool("tool", idempotency_key="k", on_unknown="resend")
    assert again.structured_content == {"n": 1}
    assert server.counts["tools/call"] == 2


@pytest.mark.parametrize(
    "fault", [Fault(-32602, "No such tool", {"name": "tool"}), Fault(-32603, "Boom")], ids=str
)
async def test_an_error_that_the_server_answers_a_call_with_is_kept_as_it_is(fault: Fault) -> None:
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(CurrentServer(calls=[fault])) as client, TasksClient(client) as tasks:
            for key in (None, "k"):
                with pytest.raises(TaskFailedError) as caught:
                    await tasks.call_tool("tool", idempotency_key=key)
                told = (caught.value.code, caught.value.message, caught.value.data)
                assert told == (fault.code, fault.message, fault.data)


async def test_questions_go_to_the_clients_own_callback_also_over_a_bare_session() -> None:
    asked: list[str] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={})

    server = CurrentServer(gets=[{**asking(k=QUESTION), "pollIntervalMs": 300}, DONE])
    ours = TasksExtension(journal=MemoryJournal(), endpoint="a-server", poll=QUICK)
    with anyio.fail_after(LIMIT_S):
        async with (
            at_loopback(server) as url,
            streamable_http_client(url) as (read, write),
            ClientSession(
                read,
                write,
                elicitation_callback=elicit,
                extensions={ours.identifier: ours.settings()},
                result_claims={ours.identifier: ours.claims()},
            ) as session,
        ):
            await session.discover()
            async with TasksClient(session) as tasks:  # which finds the extension by the session's claims
                assert (await tasks.call_tool("tool")).structured_content == {"n": 1}
    assert asked == ["?"]


# ── connections ───────────────────────────────────────────────────────────────────────────────────


async def test_a_client_that_closes_under_a_tasks_client_parks_what_is_under_way() -> None:
    server = CurrentServer(gets=[WORKING, NEVER])
    host = client_in_memory(server)
    with anyio.fail_after(LIMIT_S):
        async with TasksClient(host) as tasks:
            async with host:
                handle = await tasks.start_tool("tool")
                await server.waiting.wait()
            with pytest.raises(ConnectionLostError, match=r"resume\(\)"):
                await handle.result()
        assert handle.task_id == TASK_ID


async def test_a_client_may_be_connected_after_the_tasks_client_is_opened() -> None:
    host = client_in_memory(CurrentServer())
    with anyio.fail_after(LIMIT_S):
        async with TasksClient(host) as tasks:
            with pytest.raises(ConnectionLostError, match="not connected"):
                await tasks.call_tool("tool")
            async with host:
                assert (await tasks.call_tool("tool")).structured_content == {"n": 1}


async def test_over_an_older_connection_the_first_call_names_the_two_ways_that_are_left() -> None:
    older = mcp.Client(
        MCPServer("older"),
        mode="legacy",
        extensions=[TasksExtension(journal=MemoryJournal(), endpoint="a-server")],
    )
    with anyio.fail_after(LIMIT_S):
        async with older as client, TasksClient(client) as tasks:
            for key in (None, "k"):
                with pytest.raises(RemoteProtocolError, match=r"TasksTransport.*TasksClient\(url\)"):
                    await tasks.call_tool("tool", idempotency_key=key)
            assert await tasks.records() == []


async def test_a_callback_that_no_server_would_ask_is_refused_on_opening() -> None:
    async def elicit(context: Any, params: Any) -> ElicitResult:
        raise AssertionError

    options: Any = {"journal": MemoryJournal(), "endpoint": "a-server"}
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(MCPServer("older"), mode="legacy", elicitation_callback=elicit) as client:
            with pytest.raises(MissingCapabilityError, match=r"elicitation and roots.*TasksTransport"):
                TasksClient(client, elicitation=elicit, roots=elicit, **options)
            async with TasksClient(client, **options) as tasks:
                assert await tasks.records() == []


@pytest.mark.parametrize("wrapped", ["the client", "its session"])
async def test_a_client_that_a_framework_has_made_without_the_extension_has_durable_tasks(
    wrapped: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Once `fastmcp_tasks` was imported anywhere, every fastmcp.Client has its extension.
    monkeypatch.setattr("fastmcp.client.extension_hooks._internal_client_extension_factories", [])
    asked: list[str] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={})

    asks = {**asking(k=QUESTION), "pollIntervalMs": 300}
    server = CurrentServer(calls=[WORKING, {**RESULT, "resultType": "complete"}], gets=[asks, DONE])
    options: Any = {"journal": MemoryJournal(), "endpoint": "a-server", "poll": QUICK}
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, made(url) as client:
            given = client if wrapped == "the client" else client.session
            async with TasksClient(given, elicitation=elicit, **options) as tasks:
                assert (await tasks.call_tool("tool")).structured_content == {"n": 1}
            # What the framework sends itself is as before, so that it is not answered with a task.
            await client.session.call_tool("tool", {})
    assert asked == ["?"], "though the client itself declares no elicitation"
    ours, theirs = (params["_meta"] for method, params in server.received if method == "tools/call")
    capabilities = "io.modelcontextprotocol/clientCapabilities"
    assert ours[capabilities].keys() >= {"elicitation", "extensions"}
    assert theirs[capabilities] == {}


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # FastMCP's client knows no other
async def test_ours_takes_the_place_of_fastmcps_own_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastmcp_tasks.client import _build_tasks_client_extension as own

    monkeypatch.setattr("fastmcp.client.extension_hooks._internal_client_extension_factories", [own])
    server, journal, seen = CurrentServer(gets=[DONE]), MemoryJournal(), list[str]()
    ours = TasksExtension(journal=journal, poll=QUICK, on_update=lambda task: seen.append(task.status))
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            async with fastmcp.Client(url, extensions=[ours]) as client:
                assert (await client.call_tool("tool")).structured_content == {"n": 1}
            assert seen[-1] == "completed"
            # FastMCP's declares the same capability, so a TasksClient works beside it as well.
            async with fastmcp.Client(url) as client, TasksClient(client, journal=journal) as tasks:
                assert (await tasks.call_tool("tool")).structured_content == {"n": 1}
