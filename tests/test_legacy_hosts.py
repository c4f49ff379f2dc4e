"""A host's own client over a connection of 2025-11-25: core tasks, through the session that the host has.

The servers are real ones, on both official SDKs. What no server does on demand is in ``test_host_peer``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import fastmcp
import httpx
import httpx2
import mcp
import pytest
from fastmcp.client.transports import StdioTransport
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from mcp_tasks_client import (
    ConnectionLostError,
    MemoryJournal,
    MissingCapabilityError,
    PollPolicy,
    TaskCancelledError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClient,
    TasksExtension,
    TasksTransport,
)
from mcp_tasks_client.old.journal.base import Scope
from tests.legacy_servers import LegacyProgram, LegacyServer, installed

from ._legacy_installs import python_with_legacy_sdk
from ._requirements import requirement
from ._versions import SDK_STARTS_COMMANDS
from ._ways import host_client
from ._ways_hosts import Host, Way
from .test_kill import run_and_kill

# On trio the SDK's own stream for this generation leaves generators of httpx2 unclosed, which warns.
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)]

LIMIT_S: Final = 30.0
HOST_ON_1: Final = Path(__file__).parent / "servers" / "legacy_sdk_host.py"
QUICK: Final = PollPolicy(floor_s=0.01, jitter=0.0)
FOREVER: Final = {"duration_ms": 3_600_000}

Connected = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture(params=["mcp-http", "fastmcp-http", "session-http"])
def connected(request: pytest.FixtureRequest, legacy_server: LegacyServer) -> Connected:
    """Connects a client of each kind to each of the servers over HTTP."""

    @asynccontextmanager
    async def connect(host: Host, extension: TasksExtension | None = None) -> AsyncIterator[Any]:
        with anyio.fail_after(LIMIT_S):
            way = Way(request.param, "wrapped")
            mode = "legacy" if way.kind == "session-http" else "auto"  # a session does not find out itself
            async with host_client(way, legacy_server.url, host, extension, mode=mode) as client:
                assert session_of(client).protocol_version == "2025-11-25"
                yield client

    return connect


def ours(client: Any, journal: MemoryJournal | None = None, **options: Any) -> TasksClient:
    return TasksClient(client, journal=journal or MemoryJournal(), endpoint="a-server", poll=QUICK, **options)


def session_of(client: Any) -> mcp.ClientSession:
    session = client if isinstance(client, mcp.ClientSession) else client.session
    assert isinstance(session, mcp.ClientSession)
    return session


def callbacks_of(client: Any) -> list[Any]:
    session: Any = session_of(client)
    return [
        session._elicitation_callback,
        session._sampling_callback,
        session._list_roots_callback,
        session._dispatcher._on_notify_intercept,
    ]


def text(result: Any) -> str:
    return str(result.content[0].text)


async def test_tools_are_called_as_tasks_where_they_allow_it(connected: Connected) -> None:
    async with connected(Host()) as client, ours(client) as durable:
        assert text(await durable.call_tool("plain")) == "plain"
        assert text(await durable.call_tool("slow")) == "rested"
        assert (await durable.call_tool("must", {"n": 3})).structured_content == {"n": 3}
        records = {record.tool: record for record in await durable.records()}
        assert "plain" not in records or records["plain"].task_id is None
        assert records["slow"].task_id is not None
        assert records["must"].generation == "2025-11-25"


async def test_a_task_that_is_over_when_it_is_made_returns_its_result(connected: Connected) -> None:
    async with connected(Host()) as client, ours(client) as durable:
        assert text(await durable.call_tool("slow", {"finish_first": True})) == "rested"


async def test_the_hosts_own_callbacks_answer_each_question_once(connected: Connected) -> None:
    host = Host()
    async with connected(host) as client, ours(client) as durable:
        assert text(await durable.call_tool("asks")) == "Hello, Ada"
        assert text(await durable.call_tool("samples")) == "4"
        assert text(await durable.call_tool("asks_twice")) == "Ada and Ada"
        assert host.asked[:2] == ["What is your name?", "model"]
        both = [f"What is the name of your {whose}?" for whose in ("cat", "dog")]
        assert sorted(host.asked[2:]) == both


async def test_callbacks_of_our_own_come_before_the_hosts(connected: Connected) -> None:
    theirs, given = Host(), Host(name="Grace")
    async with connected(theirs) as client, ours(client, elicitation=given.elicit) as durable:
        assert text(await durable.call_tool("asks")) == "Hello, Grace"
    assert theirs.asked == []


async def test_a_client_without_our_extension_will_do(connected: Connected) -> None:
    async with connected(Host()) as client, ours(client) as durable:
        handle = await durable.start_tool("must")
        assert (await handle.result()).structured_content == {"n": 1}


async def test_whether_tasks_are_asked_for_is_a_preference(connected: Connected) -> None:
    async with connected(Host()) as client:
        async with ours(client, task_preference="never") as plainly:
            assert text(await plainly.call_tool("slow")) == "rested"
            assert [record for record in await plainly.records() if record.task_id] == []
        async with ours(client, task_preference="always") as always:
            with pytest.raises(MissingCapabilityError, match="task_preference"):
                await always.call_tool("plain")
        with pytest.raises(ValueError, match="task_preference"):
            ours(client, task_preference="often")


async def test_with_the_extension_call_tool_is_a_plain_call(connected: Connected) -> None:
    journal = MemoryJournal()
    extension = TasksExtension(journal=journal, endpoint="a-server", poll=QUICK)
    async with connected(Host(), extension) as client:
        assert text(await client.call_tool("slow")) == "rested"
        options = {"raise_on_error": False} if isinstance(client, fastmcp.Client) else {}
        refused = await client.call_tool("must", **options)
        assert getattr(refused, "is_error", None)  # it must be called as a task
        async with TasksClient(client) as durable:
            assert await durable.records() == []
            assert (await durable.call_tool("must")).structured_content == {"n": 1}


async def test_what_the_host_does_with_its_client_meanwhile_is_unchanged(connected: Connected) -> None:
    async with connected(Host(hesitates=True)) as client, ours(client) as durable:
        handle = await durable.start_tool("slow", FOREVER)
        assert text(await client.call_tool("plain")) == "plain"
        assert text(await client.call_tool("slow")) == "rested"
        await handle.cancel()


async def test_when_our_client_closes_everything_is_as_it_was(connected: Connected) -> None:
    async with connected(Host()) as client:
        before = callbacks_of(client)
        async with ours(client) as durable, ours(client) as another:
            await durable.call_tool("asks")
            await another.call_tool("asks")
            assert not set(map(id, callbacks_of(client))) & set(map(id, before[:3]))
        assert callbacks_of(client) == before


async def test_a_failure_is_told(connected: Connected) -> None:
    async with connected(Host()) as client, ours(client) as durable:
        with pytest.raises(TaskFailedError) as failed:
            await durable.call_tool("fails")
        assert failed.value.code == -32603
        result = await durable.call_tool("fails", {"how": "result"})
        assert result.is_error
        assert text(result) == "the tool said no"


async def test_a_task_can_be_cancelled(connected: Connected) -> None:
    async with connected(Host()) as client, ours(client) as durable:
        handle = await durable.start_tool("slow", FOREVER)
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await handle.result()
        assert text(await client.call_tool("plain")) == "plain"


async def test_a_question_of_a_cancelled_task_is_not_answered_and_the_session_lives(
    connected: Connected,
) -> None:
    host = Host(hesitates=True)
    async with connected(host) as client, ours(client) as durable:
        handle = await durable.start_tool("asks")
        await host.prompted.wait()
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await handle.result()
        assert text(await durable.call_tool("slow")) == "rested"


async def test_a_question_waits_for_the_next_client_over_the_same_session(connected: Connected) -> None:
    host, journal = Host(hesitates=True), MemoryJournal()
    async with connected(host) as client:
        async with ours(client, journal) as durable:
            await durable.start_tool("asks")
            await host.prompted.wait()
        host.hesitates = False
        async with ours(client, journal) as durable:
            (handle,) = await durable.resume()
            assert text(await handle.result()) == "Hello, Ada"
    assert host.asked == ["What is your name?"] * 2  # the first prompt was withdrawn


async def test_a_task_of_a_session_that_is_gone_is_not_found_and_why_is_said(connected: Connected) -> None:
    journal = MemoryJournal()
    async with connected(Host()) as client, ours(client, journal) as durable:
        await durable.start_tool("slow", FOREVER)
    async with connected(Host()) as client, ours(client, journal) as durable:
        (handle,) = await durable.resume()
        with pytest.raises(TaskNotFoundError, match="the session that the task was made in has ended"):
            await handle.result()


async def test_a_session_that_the_server_has_ended_is_named_as_the_reason(
    connected: Connected, legacy_server: LegacyServer
) -> None:
    async with connected(Host()) as client, ours(client) as durable:
        handle = await durable.start_tool("slow", FOREVER)
        session_id = legacy_server.witness("tools/call")[-1].session_id
        async with httpx.AsyncClient(trust_env=False) as other:
            await other.delete(legacy_server.url, headers={"Mcp-Session-Id": session_id or ""})
        with pytest.raises(ConnectionLostError, match="ended the session"):
            await handle.result()
        with pytest.raises(ConnectionLostError, match="ended the session"):
            await durable.call_tool("plain")


@pytest.mark.skipif(not SDK_STARTS_COMMANDS, reason="before 2.1 the SDK's client takes no command")
@pytest.mark.parametrize("kind", ["mcp", "fastmcp"])
async def test_over_stdio_it_is_the_same(legacy_program: LegacyProgram, kind: str) -> None:
    command, *arguments = legacy_program.stdio()
    host, client = Host(), None
    if kind == "mcp":
        parameters = StdioServerParameters(command=command, args=arguments)
        client = mcp.Client(parameters, **host.sdks)
    else:
        transport = StdioTransport(command, arguments, keep_alive=False)
        client = fastmcp.Client(transport, **host.fastmcps)
    with anyio.fail_after(LIMIT_S):
        async with client, TasksClient(client, journal=MemoryJournal(), poll=QUICK) as durable:
            for tool, said in {
                "plain": "plain",
                "slow": "rested",
                "asks": "Hello, Ada",
                "samples": "4",
            }.items():
                assert text(await durable.call_tool(tool)) == said
            handle = await durable.start_tool("slow", FOREVER)
            await handle.cancel()
            with pytest.raises(TaskCancelledError):
                await handle.result()
    assert host.asked == ["What is your name?", "model"]


@pytest.mark.skipif(not SDK_STARTS_COMMANDS, reason="before 2.1 the SDK's client takes no command")
async def test_a_stdio_servers_tasks_die_with_its_process(
    legacy_program: LegacyProgram,
) -> None:
    command, *arguments = legacy_program.stdio()
    parameters, journal = StdioServerParameters(command=command, args=arguments), MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(parameters) as client, TasksClient(client, journal=journal) as durable:
            await durable.start_tool("slow", FOREVER)
        async with mcp.Client(parameters) as client, TasksClient(client, journal=journal) as durable:
            (handle,) = await durable.resume()
            with pytest.raises(TaskNotFoundError):
                await handle.result()


async def test_a_client_on_2_above_our_transport_knows_nothing_of_tasks(
    legacy_program: LegacyProgram,
) -> None:
    command, *arguments = legacy_program.stdio()
    host, inner = Host(), stdio_client(StdioServerParameters(command=command, args=arguments))
    transport = TasksTransport(inner, endpoint="s", journal=MemoryJournal(), poll=QUICK)
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(transport, **host.sdks) as client:
            said = {tool: text(await client.call_tool(tool)) for tool in ("plain", "slow", "asks", "samples")}
    assert said == {"plain": "plain", "slow": "rested", "asks": "Hello, Ada", "samples": "4"}
    assert host.asked == ["What is your name?", "model"]


@requirement("law:1", "law:2", "law:3")
async def test_what_a_client_on_2_has_left_above_our_transport_is_taken_up_by_its_url(
    legacy_server: LegacyServer,
) -> None:
    hesitant, host, journal = Host(hesitates=True), Host(), MemoryJournal()
    inner = streamable_http_client(legacy_server.url, terminate_on_close=False)
    transport = TasksTransport(inner, endpoint=legacy_server.url, journal=journal, poll=QUICK)
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(transport, **hesitant.sdks) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "asks")
            await hesitant.prompted.wait()
            while not [one for one in await left_in(journal, legacy_server.url) if one.state.questions]:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        async with TasksClient(legacy_server.url, journal=journal, elicitation=host.elicit) as durable:
            (handle,) = await durable.resume()
            assert text(await handle.result()) == "Hello, Ada"
    assert host.asked == ["What is your name?"]


async def test_a_call_above_our_transport_ends_when_the_server_has_ended_the_session(
    legacy_server: LegacyServer,
) -> None:
    inner = streamable_http_client(legacy_server.url, terminate_on_close=False)
    transport = TasksTransport(inner, endpoint="s", journal=MemoryJournal(), poll=QUICK)

    before = len(legacy_server.witness("tasks/get"))

    async def end_it() -> None:
        while not (polls := legacy_server.witness("tasks/get")[before:]):
            await anyio.sleep(0.01)
        async with httpx.AsyncClient(trust_env=False) as other:
            await other.delete(legacy_server.url, headers={"Mcp-Session-Id": polls[-1].session_id or ""})

    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(transport, **Host().sdks) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(end_it)
            with pytest.raises(mcp.MCPError, match="ended the session"):
                await client.call_tool("slow", FOREVER)


class Gateway(httpx2.AsyncHTTPTransport):
    """On the way to a server, with a way of its own with the first answer to a question."""

    def __init__(self, answers: str) -> None:
        super().__init__()
        self.answers = answers
        self.seen: list[Any] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        said = json.loads(await request.aread() or b"{}")
        if "method" not in said and "result" in said:
            self.seen.append(said["id"])
            if len(self.seen) == 1 and self.answers == "refused":
                return httpx2.Response(503, request=request)
            if self.answers == "doubled":
                await (await super().handle_async_request(request)).aclose()
        return await super().handle_async_request(request)


@requirement("law:3")
@pytest.mark.parametrize("answers", ["refused", "doubled"])
@pytest.mark.parametrize("way", ["over the session", "under the session"])
async def test_an_answer_that_a_gateway_refuses_is_said_again_and_one_that_comes_twice_does_no_harm(
    legacy_server: LegacyServer, monkeypatch: pytest.MonkeyPatch, answers: str, way: str
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.answering._AGAIN_S", 0.2)
    host, gateway, journal = Host(), Gateway(answers), MemoryJournal()
    async with httpx2.AsyncClient(transport=gateway, timeout=LIMIT_S) as http:
        inner: Any = streamable_http_client(legacy_server.url, http_client=http)
        with anyio.fail_after(LIMIT_S):
            if way == "under the session":
                transport = TasksTransport(inner, endpoint="s", journal=journal, poll=QUICK)
                async with mcp.Client(transport, **host.sdks) as client:
                    names = text(await client.call_tool("asks_twice", {"together": False}))
                    assert text(await client.call_tool("slow")) == "rested"
            else:
                async with mcp.Client(inner, mode="legacy", **host.sdks) as client, ours(client) as durable:
                    names = text(await durable.call_tool("asks_twice", {"together": False}))
                    assert text(await durable.call_tool("slow")) == "rested"
    assert names == "Ada and Ada"
    assert host.asked == ["What is the name of your cat?", "What is the name of your dog?"]
    assert len(gateway.seen) == (3 if answers == "refused" else 2)


async def left_in(journal: MemoryJournal, endpoint: str) -> Any:
    return await journal.records(Scope(endpoint, ""))


# ── hosts on the SDK's 1.x, in an environment of their own ──


@pytest.fixture(scope="session")
def host_on_1() -> Path:
    return installed(python_with_legacy_sdk)


@pytest.fixture(params=[("http", "python"), ("stdio", "node")], ids="-".join)
def address(request: pytest.FixtureRequest) -> Any:
    """Each way and each server once: how it is spoken to does not depend on who is spoken to."""
    way, kind = request.param
    if way == "stdio":
        program: LegacyProgram = request.getfixturevalue(f"legacy_{kind}_program")
        return program.stdio()
    server: LegacyServer = request.getfixturevalue(f"legacy_{kind}_server")
    return server.url


@pytest.fixture
def on_1(host_on_1: Path) -> Callable[..., Awaitable[Any]]:
    async def play(scenario: str, address: Any = None, backend: str = "asyncio") -> Any:
        options = [scenario, json.dumps(address), backend]
        command = [str(host_on_1), "-W", "error::UserWarning", str(HOST_ON_1), *options]
        with anyio.fail_after(LIMIT_S):
            done = await anyio.run_process(command, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    return play


async def test_a_host_on_1_has_tasks_and_answers_their_questions(on_1: Any, address: Any) -> None:
    assert await on_1("tools", address) == {
        "plain": "plain",
        "slow": "rested",
        "must": {"n": 1},
        "asks": "Hello, Ada",
        "samples": "4",
        "tasks": ["slow", "must", "asks", "samples"],
        "meanwhile": "plain",
        "restored": True,
        "asked": ["What is your name?", "model"],
        "unanswered": [],
    }


async def test_a_host_on_1_is_asked_two_things_at_once(on_1: Any, address: Any) -> None:
    both = [f"What is the name of your {whose}?" for whose in ("cat", "dog")]
    assert await on_1("both", address) == ["Ada and Ada", both, 1], "and one is kept in mind"


async def test_a_host_on_1_is_told_of_failures(on_1: Any, address: Any) -> None:
    failed, said = await on_1("fails", address)
    assert failed[0] == "TaskFailedError"
    assert said == "the tool said no"


async def test_a_host_on_1_can_cancel_and_goes_on(on_1: Any, address: Any) -> None:
    cancelled, rested = await on_1("cancels", address)
    assert cancelled[0] == "TaskCancelledError"
    assert rested == "rested"


async def test_a_host_on_1_finds_its_question_again_over_the_same_session(on_1: Any, address: Any) -> None:
    assert await on_1("reopens", address) == "Hello, Ada"


async def test_a_host_on_1_that_connects_again_is_told_that_the_session_has_ended(
    on_1: Any, legacy_server: LegacyServer
) -> None:
    kind, message = await on_1("reconnects", legacy_server.url)
    assert kind == "TaskNotFoundError"
    assert "the session that the task was made in has ended" in message


async def test_a_host_on_1_whose_session_the_server_has_ended_is_told_so(
    on_1: Any, legacy_server: LegacyServer
) -> None:
    kind, message = await on_1("loses_its_session", legacy_server.url)
    assert kind == "ConnectionLostError"
    assert "ended the session" in message


async def test_a_host_on_1_answers_what_belongs_to_no_task_itself(on_1: Any) -> None:
    assert await on_1("asks_plainly") == ["Ada", ["Name?"]]


async def test_a_host_on_1_answers_for_tasks_of_its_own_itself(
    on_1: Any, legacy_server: LegacyServer
) -> None:
    said, asked, records, listed = await on_1("asks_for_the_hosts_own_task", legacy_server.url)
    assert (said, asked, records) == ("Hello, Ada", ["What is your name?"], 1)
    assert listed == ["slow", None], "the server lists the host's own as well"


async def test_what_a_callback_of_a_host_on_1_raises_does_not_end_its_session(
    on_1: Any, legacy_server: LegacyServer
) -> None:
    assert await on_1("raises_for_its_own_task", legacy_server.url) == "plain"


async def test_a_host_on_1_is_told_nothing_of_what_we_give_up(on_1: Any, legacy_server: LegacyServer) -> None:
    assert await on_1("is_told_nothing_of_what_we_give_up", legacy_server.url) == ["plain", []]


@requirement("law:3")
@pytest.mark.parametrize("way", ["over", "under"])
async def test_an_answer_of_a_host_on_1_that_a_gateway_refuses_is_said_again(
    on_1: Any, legacy_server: LegacyServer, way: str
) -> None:
    # Any other status of 400 and more ends the session there, as is noticed.
    assert await on_1("is_refused", [legacy_server.url, way]) == [
        "Ada and Ada",
        ["What is the name of your cat?", "What is the name of your dog?"],
        3,
    ]


@requirement("law:3")
async def test_an_answer_of_a_host_on_1_that_a_withdrawal_has_crossed_is_kept_for_the_next_asking(
    on_1: Any,
) -> None:
    assert await on_1("crossed") == [["Name?"], [["q", "accept"], ["again", "accept"]]]


@requirement("law:3", "2025:cancelled-is-gone")
async def test_what_a_host_on_1_need_not_answer_any_more_is_not_answered_and_makes_room(on_1: Any) -> None:
    answers, in_flight = await on_1("moves_on")
    assert answers == [["q", "accept"], ["taken", "accept"], ["heard", None]]
    assert in_flight == []


async def test_of_a_host_on_1_a_session_is_denied_in_its_sdks_words_alone(on_1: Any) -> None:
    of_the_tool, of_the_session = await on_1("is_denied")
    assert of_the_tool[0] == "TaskFailedError"
    assert of_the_session[0] == "ConnectionLostError"
    assert "ended the session" in of_the_session[1]


async def test_over_a_host_on_1_both_sides_are_told_what_the_other_has_given_up(on_1: Any) -> None:
    seen, heard, request_id, asked = await on_1("takes_back")
    assert seen == ["notifications/tasks/status", "elicitation/create", "notifications/cancelled"]
    assert heard == ["after", "tasks/result", "notifications/cancelled"]
    assert request_id == 1  # the first was tasks/get
    assert asked == []


@pytest.mark.parametrize("loop", ["asyncio", "trio"])  # they take turns in different orders
async def test_what_a_host_on_1_gives_up_as_its_reply_comes_does_not_end_its_session(
    on_1: Any, loop: str
) -> None:
    assert await on_1("gives_up", None, loop) == [{}] * 52


# ── under hosts on 1.x, as their transport ──


@requirement("2025:progress")
async def test_a_session_on_1_above_our_transport_knows_nothing_of_tasks(on_1: Any, address: Any) -> None:
    brought = await on_1("above_tools", address)
    failed = brought.pop("failed")
    assert brought == {
        "plain": "plain",
        "slow": "rested",
        "must": {"n": 1},
        "asks": "Hello, Ada",
        "samples": "4",
        "asks_twice": "Ada and Ada",
        "own": "Hello, Ada",
        "same": True,
        "progress": ["step 1", "step 2", "step 3"],
        "asked": [
            "What is the name of your cat?",
            "What is the name of your dog?",
            "What is your name?",
            "What is your name?",
            "model",
        ],
        "unanswered": [],
        "tasks": 8,
    }
    (code, _), said = failed
    assert code == -32603
    assert said == "the tool said no"


async def test_what_a_session_on_1_takes_back_is_cancelled(on_1: Any, address: Any) -> None:
    assert (await on_1("above_cancels", address))[-1] == "cancelled"


@requirement("law:1", "law:2", "law:3")
async def test_what_a_killed_session_on_1_has_left_above_our_transport_is_taken_up_by_its_url(
    host_on_1: Path, legacy_server: LegacyServer, tmp_path: Path
) -> None:
    host, journal = Host(), tmp_path / "journal.sqlite3"
    where = json.dumps([legacy_server.url, str(journal)])
    command = [host_on_1, HOST_ON_1, "above_dies", where, "asyncio"]
    await anyio.to_thread.run_sync(run_and_kill, command)
    with anyio.fail_after(LIMIT_S):
        async with TasksClient(legacy_server.url, journal=journal, elicitation=host.elicit) as client:
            (handle,) = await client.resume()
            assert text(await handle.result()) == "Hello, Ada"
    assert host.asked == ["What is your name?"]
