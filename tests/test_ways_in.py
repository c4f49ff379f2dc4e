"""One contract over every way in: whichever client a host holds, tasks are the same."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mcp
import pytest
from mcp import StdioServerParameters
from mcp.client.extension import UnexpectedClaimedResult

from mcp_tasks_client import (
    ConnectionLostError,
    InputUnansweredError,
    MemoryJournal,
    MissingCapabilityError,
    RemoteProtocolError,
    SessionError,
    SqliteJournal,
    TaskCancelledError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClient,
    TasksExtension,
    WaitTimeoutError,
)
from mcp_tasks_client.old.extension import ClaimedTask
from mcp_tasks_client.old.journal.base import Scope

from ._requirements import requirement
from ._versions import SDK_STARTS_COMMANDS
from ._ways import Door, Opened, host_client, made_client
from ._ways_hosts import LIMIT_S, WAYS, Host, Way
from ._ways_servers import Case, Real, Strict, cutting, relayed
from .real_server import RealServer
from .strict_server import SCRIPT as STRICT_SCRIPT
from .strict_server import StrictProcess
from .test_kill import live_and_die

pytestmark = pytest.mark.anyio

INVALID_PARAMS = -32602

HTTP = [way for way in WAYS if way.over_http]
DOORS = [("strict", way) for way in WAYS] + [("real", way) for way in HTTP]


@pytest.fixture(scope="module")
def servers(real_server: RealServer, strict_server: StrictProcess) -> Iterator[dict[str, Strict | Real]]:
    with relayed() as relay:
        yield {"strict": Strict(strict_server, relay), "real": Real(real_server)}


def doors(
    *,
    strict: bool = True,
    real: bool = True,
    modes: str = "native dropped wrapped",
    kinds: str = "",
) -> pytest.MarkDecorator:
    """Parametrise a test over ways into the servers, on each event loop that matters."""
    cases = [
        pytest.param(loop, (server, way), id=f"{loop}-{server}-{way}")
        for loop in ("asyncio", "trio")
        for server, way in DOORS
        if way.mode in modes.split()
        and (way.kind in kinds.split() or not kinds)
        and {"strict": strict, "real": real}[server]
        # FastMCP's client runs on asyncio only. To the real server both loops are the same client,
        # and it is the slower of the two.
        and (loop == "asyncio" or (way.kind != "fastmcp-http" and (server == "strict" or not strict)))
    ]
    return pytest.mark.parametrize(("anyio_backend", "door"), cases, indirect=True)


@pytest.fixture
def door(request: pytest.FixtureRequest, servers: dict[str, Strict | Real]) -> Door:
    name, way = request.param
    return Door(way, servers[name])


def content(result: Any) -> Any:
    assert not result.is_error, result
    return result.structured_content


def takes(way: Way, case: Case) -> bool:
    """Whether a host can make the call on this way."""
    # A bare session answers no question that comes before the task; its host would do that.
    asks_first = case.tool in ("ask_first", "ask_then_task")
    return not asks_first or str(way) != "session-http-dropped"


# ── results ──


@doors()
async def test_a_result_is_what_the_server_made_whether_or_not_it_took_a_task(door: Door) -> None:
    async with door.opened() as opened:
        for case in door.server.plain:
            assert content(await opened.call(case.tool, case.arguments)) == case.expected, case


@doors()
async def test_status_messages_reach_the_host_in_order(door: Door) -> None:
    said: list[str] = []
    slow = door.server.slow
    async with door.opened() as opened:
        assert content(await opened.call(slow.tool, slow.arguments, said=said)) == slow.expected
    assert said
    assert said == sorted(set(said)), "each once, oldest first"


@doors()
async def test_a_tool_error_is_a_result_and_a_json_rpc_failure_keeps_everything(door: Door) -> None:
    async with door.opened() as opened:
        result = await opened.call(door.server.tool_error.tool, door.server.tool_error.arguments)
        with pytest.raises(TaskFailedError) as caught:
            await opened.call(door.server.rpc_failure.tool, door.server.rpc_failure.arguments)
    assert result.is_error
    assert "the tool said no" in result.content[0].text
    error = caught.value
    assert (error.code, error.message, error.data) == (-32050, "quota exceeded", {"retryAfter": 7})
    assert error.handle is not None
    assert error.handle.task_id is not None


# ── questions ──


def forms_first(asked: Sequence[str]) -> list[str]:
    """The forms first."""
    return sorted(asked, key=lambda one: one in ("model", "roots"))


@requirement("law:10")
@doors()
async def test_the_hosts_own_callbacks_answer_one_form_after_the_other(door: Door) -> None:
    host = Host()
    async with door.opened(host) as opened:
        for case in door.server.asking:
            if takes(door.way, case):
                host.asked.clear()
                assert content(await opened.call(case.tool, case.arguments)) == case.expected, case
                assert sorted(host.asked) == sorted(case.asks)
                # In the order in which they came; FastMCP shuffles those that it asks together.
                assert forms_first(host.asked) == forms_first(case.asks) or isinstance(door.server, Real)
    assert host.at_once == 1, "of forms; what a model is asked does not wait for a person"


@doors(real=False, modes="dropped wrapped")
async def test_callbacks_of_the_extension_win_over_the_clients(door: Door) -> None:
    theirs, ours = Host(), Host(name="Grace")
    case = door.server.question
    async with door.opened(theirs, extension_host=ours) as opened:
        assert "Grace" in str(content(await opened.call(case.tool, case.arguments)))
    assert (theirs.asked, ours.asked) == ([], list(case.asks))


@doors()
async def test_a_question_that_the_host_refuses_parks_the_task_until_somebody_answers(door: Door) -> None:
    case = door.server.refused_question
    host = Host(refuses=True)
    async with door.opened(host) as opened:
        with pytest.raises(InputUnansweredError, match="nobody at home") as caught:
            await opened.call(case.tool, case.arguments)
        assert len(caught.value.keys) == 1
        assert caught.value.handle is not None
        host.refuses = False
        async with opened.durable() as durable:
            (handle,) = await durable.resume()
            assert handle.task_id == caught.value.handle.task_id
            assert content(await handle.result()) == case.expected
    assert host.asked == [*case.asks] * 2


@requirement("law:8")
@doors(real=False)
async def test_a_caller_that_is_cancelled_leaves_no_prompt_and_a_task_to_resume(door: Door) -> None:
    hesitant, case = Host(hesitates=True), door.server.question
    async with door.opened(hesitant) as opened:
        async with anyio.create_task_group() as calls:
            calls.start_soon(opened.call, case.tool, case.arguments)
            await hesitant.prompted.wait()
            calls.cancel_scope.cancel()
        await hesitant.withdrawn.wait()
        hesitant.hesitates = False
        async with opened.durable() as durable:
            (handle,) = await durable.resume()
            assert content(await handle.result()) == case.expected
    assert hesitant.asked == [*case.asks] * 2


# ── ending otherwise ──


@doors()
async def test_cancelling_through_a_handle(door: Door) -> None:
    async with door.opened() as opened, opened.durable() as durable:
        handle = await durable.start_tool(door.server.endless)
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await handle.result()


@doors()
async def test_an_unknown_task(door: Door) -> None:
    async with door.opened(refusals=[INVALID_PARAMS]) as opened, opened.durable() as durable:
        handle = await durable.attach("no-such-task-was-ever-made")
        lost = "died with the server's process" if door.way.kind == "mcp-stdio" else "lost it in a restart"
        with pytest.raises(TaskNotFoundError, match=lost):
            await handle.result()


@doors(real=False)
async def test_a_result_that_breaks_the_tools_promise_is_an_error_and_stays_in_the_journal(
    door: Door,
) -> None:
    # The SDK checks what the extension hands back; it does so with an error of its own.
    dropped = door.way.mode == "dropped"
    async with door.opened() as opened:
        if str(door.way) == "session-http-dropped":
            # Nobody checks but the host: it has `session.validate_tool_result` for that.
            assert content(await opened.call("bad_result")) == {"polls": "many"}
        else:
            with pytest.raises(RuntimeError if dropped else RemoteProtocolError, match="many"):
                await opened.call("bad_result")
        async with opened.durable() as durable:
            (record,) = await durable.records()
    assert record.task is not None
    assert record.task.result is not None
    assert record.task.result["structuredContent"] == {"polls": "many"}


# ── time-outs, and connections that come and go ──


@requirement("law:2", "law:8")
@doors()
async def test_a_time_out_leaves_a_task_that_the_next_connection_brings_home(door: Door) -> None:
    case, hesitant, host = door.server.question, Host(hesitates=True), Host()
    async with door.opened(hesitant) as opened:
        with pytest.raises(WaitTimeoutError) as caught:
            # Nobody answers, so it is over in any case; the task must have been made by then.
            await opened.call(case.tool, case.arguments, timeout=1.0)
    assert caught.value.handle is not None
    gone = door.way.kind == "mcp-stdio"
    # The open question is put at once, and may be answered before the first look at the task.
    refusals = {INVALID_PARAMS} if gone else set[int]()
    async with door.opened(host, refusals=refusals) as opened, opened.durable() as durable:
        (handle,) = await durable.resume()
        assert handle.task_id == caught.value.handle.task_id
        if gone:
            with pytest.raises(TaskNotFoundError, match="died with the server's process"):
                await handle.result()
        else:
            assert content(await handle.result()) == case.expected
    assert host.asked == list(case.asks) or gone


@requirement("law:2")
@doors(modes="native wrapped")
async def test_a_key_stands_for_one_call(door: Door) -> None:
    case = door.server.question
    before = door.server.calls(door.way)
    for _ in range(2):
        async with door.opened() as opened:
            assert opened.ours is not None
            for _ in range(2):
                result = await opened.ours.call_tool(case.tool, case.arguments, idempotency_key="k")
                assert content(result) == case.expected
    assert door.server.calls(door.way) == before + 1


def by_kind(*kinds: str) -> pytest.MarkDecorator:
    """Parametrise a test over host clients, wrapped, on the loops that they run on."""
    cases = [
        pytest.param(loop, ("strict", way), id=f"{loop}-{way.kind}")
        for loop in ("asyncio", "trio")
        for way in WAYS
        if way.mode == "wrapped"
        and (way.kind in kinds or not kinds)
        and (loop == "asyncio" or way.kind != "fastmcp-http")  # FastMCP's client runs on asyncio only
    ]
    return pytest.mark.parametrize(("anyio_backend", "door"), cases, indirect=True)


@by_kind("mcp-http", "mcp-stdio", "mcp-in-process", "fastmcp-http")
async def test_a_client_that_closes_under_a_tasks_client_parks_what_is_under_way(door: Door) -> None:
    extension = TasksExtension(journal=door.journal, endpoint="s")

    def client() -> Any:
        return made_client(door.way, door.server.address(door.way), Host(), extension)

    with anyio.fail_after(LIMIT_S):
        host = client()
        async with TasksClient(host) as durable:
            async with host:
                handle = await durable.start_tool(door.server.endless)
            with pytest.raises(ConnectionLostError, match="resume"):
                await handle.result()
        async with client() as host, TasksClient(host) as durable:
            (found,) = await durable.resume()
            assert found.task_id == handle.task_id
            await found.cancel()
            gone = door.way.kind == "mcp-stdio"
            with pytest.raises(TaskNotFoundError if gone else TaskCancelledError):
                await found.result()


@pytest.fixture
def no_extension_of_fastmcps(monkeypatch: pytest.MonkeyPatch) -> None:
    # Once `fastmcp_tasks` was imported anywhere, every fastmcp.Client has its extension.
    monkeypatch.setattr("fastmcp.client.extension_hooks._internal_client_extension_factories", [])


@pytest.mark.usefixtures("no_extension_of_fastmcps")
@by_kind()
async def test_a_client_made_without_the_extension_is_told_so_and_nothing_is_called(door: Door) -> None:
    before = door.server.calls(door.way)
    with anyio.fail_after(LIMIT_S):
        async with (
            host_client(door.way, door.server.address(door.way), Host(), None) as client,
            TasksClient(client, endpoint="s", journal=MemoryJournal()) as durable,
        ):
            for tool in ("echo", "slow"):
                with pytest.raises(MissingCapabilityError, match=r"extensions=\[TasksExtension\(\)\]"):
                    await durable.call_tool(tool, {"text": "hi"})
            with pytest.raises(MissingCapabilityError):
                await durable.start_tool("slow", idempotency_key="k")
            assert await durable.records() == []
    assert door.server.calls(door.way) == before


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # FastMCP's client knows no other
@pytest.mark.usefixtures("no_extension_of_fastmcps")
async def test_ours_takes_the_place_of_fastmcps_own_extension(
    strict_server: StrictProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = importlib.import_module("fastmcp_tasks.client")._build_tasks_client_extension
    monkeypatch.setattr("fastmcp.client.extension_hooks._internal_client_extension_factories", [own])
    way, journal = Way("fastmcp-http", "dropped"), MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with host_client(way, strict_server.url, Host(), TasksExtension(journal=journal)) as client:
            assert (await client.call_tool("slow")).structured_content == {"polls": 2}
            async with TasksClient(client) as durable:
                assert len(await durable.records()) == 1
        # It declares the same capability, so a TasksClient of ours works beside it as well.
        async with (
            host_client(way, strict_server.url, Host(), None) as client,
            TasksClient(client, journal=journal) as durable,
        ):
            assert (await durable.call_tool("slow")).structured_content == {"polls": 2}
            assert len(await durable.records()) == 2


@by_kind("mcp-in-process", "session-http")
async def test_a_server_without_an_address_needs_a_name(door: Door) -> None:
    address = door.server.address(door.way)
    with anyio.fail_after(LIMIT_S):
        with pytest.raises(ValueError, match=r'TasksExtension\(endpoint="my-server"\)'):
            async with host_client(door.way, address, Host(), TasksExtension(journal=door.journal)):
                raise AssertionError("unreachable")
        async with host_client(door.way, address, Host(), None) as client:
            with pytest.raises(ValueError, match=r'TasksClient\(client, endpoint="my-server"\)'):
                TasksClient(client, journal=door.journal)


@by_kind("session-http")
async def test_a_bare_sessions_own_call_tool_names_the_task_that_it_refuses(door: Door) -> None:
    extension = TasksExtension(journal=door.journal, endpoint="s")
    with anyio.fail_after(LIMIT_S):
        async with (
            host_client(door.way, door.server.address(door.way), Host(), extension) as session,
            TasksClient(session) as durable,
        ):
            with pytest.raises(UnexpectedClaimedResult) as caught:
                await session.call_tool("slow")
            assert isinstance(caught.value.result, ClaimedTask)
            assert caught.value.result.task_id is not None
            handle = await durable.attach(caught.value.result.task_id)
            assert content(await handle.result()) == {"polls": 2}


@by_kind()
async def test_callbacks_of_the_tasks_client_win_over_all_others(door: Door) -> None:
    theirs, extensions, ours, case = Host(), Host(), Host(name="Grace"), door.server.question
    async with (
        door.opened(theirs, extension_host=extensions) as opened,
        TasksClient(opened.client, **ours.ours) as durable,
    ):
        assert "Grace" in str(content(await durable.call_tool(case.tool)))
    assert (theirs.asked, extensions.asked, ours.asked) == ([], [], list(case.asks))


@by_kind()
async def test_callbacks_that_the_client_has_not_are_not_declared_so_a_strict_server_makes_no_task(
    door: Door,
) -> None:
    # The SDK declares what it has callbacks for itself, and stamps that over anything we could say.
    extension = TasksExtension(journal=door.journal, endpoint="s", **Host().ours)
    with anyio.fail_after(LIMIT_S):
        async with (
            host_client(door.way, door.server.address(door.way), None, extension) as client,
            TasksClient(client) as durable,
        ):
            with pytest.raises(MissingCapabilityError, match="callbacks for itself"):
                await durable.call_tool("ask")
            assert await durable.records() == []


@by_kind("mcp-http", "fastmcp-http", "session-http")
async def test_arguments_that_belong_into_headers_go_there_too(door: Door) -> None:
    async with door.opened() as opened:
        for region in ("eu-west", "Tōkyō"):
            assert content(await opened.call("header_arg", {"region": region})) == {"region": region}


# ── what the SDK does with a connection that breaks ──


async def test_the_native_way_polls_on_through_a_broken_connection(strict_server: StrictProcess) -> None:
    with anyio.fail_after(LIMIT_S), cutting(strict_server.url, b'"tasks/get"') as (url, cut):
        async with TasksClient(url, journal=MemoryJournal()) as client:
            assert content(await client.call_tool("slow")) == {"polls": 2}
        assert cut.is_set()


@doors(real=False, modes="dropped wrapped", kinds="mcp-http fastmcp-http session-http")
async def test_the_sdk_ends_the_whole_client_when_a_connection_breaks_and_the_next_one_resumes(
    door: Door,
) -> None:
    extension = TasksExtension(journal=door.journal, endpoint="s")
    with anyio.fail_after(LIMIT_S), cutting(door.server.address(door.way), b'"tasks/get"') as (url, cut):

        async def called() -> None:
            async with host_client(door.way, url, Host(), extension) as client:
                if door.way.mode == "dropped":
                    await Opened(door.way, client, None).call("slow")
                else:
                    async with TasksClient(client) as durable:
                        await Opened(door.way, client, durable).call("slow")

        with pytest.raises(Exception, match=r"Exceptions from|unhandled errors|disconnected"):
            await called()
        assert cut.is_set()
        async with (
            host_client(door.way, url, Host(), extension) as client,
            TasksClient(client) as durable,
        ):
            (handle,) = await durable.resume()
            assert content(await handle.result()) == {"polls": 2}


# ── the older generation ──


# On trio the SDK's own stream for the older generation leaves generators of httpx2 unclosed, which warns.
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("kind", ["mcp-http", "fastmcp-http", "session-http"])
async def test_at_a_server_without_core_tasks_calls_of_2025_11_25_are_plain(
    real_server: RealServer, kind: Any
) -> None:
    way, extension = Way(kind, "dropped"), TasksExtension(journal=MemoryJournal(), endpoint="old")
    before = len(real_server.witness())
    with anyio.fail_after(LIMIT_S):
        async with host_client(way, real_server.url, Host(), extension, mode="legacy") as client:
            assert (client if kind == "session-http" else client.session).protocol_version == "2025-11-25"
            for tool in ("plain", "fast"):
                assert content(await client.call_tool(tool, {"x": 7})) == {"result": 7}
            async with TasksClient(client) as durable:
                for tool in ("plain", "fast"):
                    assert content(await durable.call_tool(tool, {"x": 7})) == {"result": 7}
                    keyed = await durable.call_tool(tool, {"x": 7}, idempotency_key=tool)
                    assert content(keyed) == {"result": 7}
                assert [record.task_id for record in await durable.records()] == [None, None]
                handle = await durable.attach("a-task-of-which-generation")
                with pytest.raises(SessionError, match="not available at protocol version '2025-11-25'"):
                    await handle.result()
    arrived = real_server.witness()[before:]
    # It is the server that says so, since the ID alone does not.
    assert [entry.method for entry in arrived if (entry.method or "").startswith("tasks/")] == ["tasks/get"]
    assert "io.modelcontextprotocol/tasks" not in str([entry.meta for entry in arrived])


# ── a real stdio server, which dies ──


@pytest.mark.skipif(not SDK_STARTS_COMMANDS, reason="before 2.1 the SDK's client takes no command")
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # starting Python twice is slow
async def test_a_stdio_servers_tasks_die_with_its_process(tmp_path: Path) -> None:
    command = StdioServerParameters(command=sys.executable, args=[str(STRICT_SCRIPT), "stdio"])
    for first in (True, False):
        with anyio.fail_after(LIMIT_S):
            extension = TasksExtension(journal=tmp_path / "journal.sqlite3")
            async with mcp.Client(command, extensions=[extension]) as client, TasksClient(client) as durable:
                if first:
                    assert content(await client.call_tool("slow")) == {"polls": 2}
                    await durable.start_tool("endless")
                else:
                    (handle,) = await durable.resume()
                    with pytest.raises(TaskNotFoundError, match="died with the server's process"):
                        await handle.result()


# ── several at once, and one after the other ──


@requirement("law:1")
async def test_clients_of_all_kinds_share_one_file_in_one_process(
    anyio_backend_name: str, servers: dict[str, Strict | Real], tmp_path: Path
) -> None:
    ways = [way for way in WAYS if anyio_backend_name == "asyncio" or way.kind != "fastmcp-http"]
    path, server = tmp_path / "journal.sqlite3", servers["strict"]
    scopes: set[Scope] = set()

    async def both(way: Way) -> None:
        async with Door(way, server).opened(journal=path) as opened:
            async with anyio.create_task_group() as calls:
                for case in (server.question, server.slow):
                    calls.start_soon(one, opened, case)
            async with opened.durable() as durable:
                scopes.update([record.scope for record in await durable.records()])

    async def one(opened: Opened, case: Case) -> None:
        assert content(await opened.call(case.tool, case.arguments)) == case.expected

    async with anyio.create_task_group() as clients:
        for way in ways:
            clients.start_soon(both, way)
    with anyio.fail_after(LIMIT_S):
        async with SqliteJournal(path) as journal:
            records = [record for scope in scopes for record in await journal.records(scope)]
    commands = any(way.kind == "mcp-stdio" for way in ways)
    assert len(scopes) == 2 + commands, "the URL, the command, and the name of those that have neither"
    assert len(records) == 2 * len(ways)
    assert all(record.finished and record.owner is None for record in records)


STOPS = [
    ("mcp", "task-created", 0, "Grace"),
    ("mcp", "answer-committed", 1, "Ada"),
    ("mcp", "update-sent", 1, "Ada"),
    ("fastmcp", "answer-committed", 1, "Ada"),
]
HOST_PROCESS = Path(__file__).parent / "servers" / "host_process.py"


@requirement("law:1", "law:2", "law:3", "persist:task-ids")
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # each costs the start of a process
@pytest.mark.parametrize(("kind", "stop", "first", "greeted"), STOPS)
async def test_what_a_killed_host_began_the_native_client_brings_home(
    real_server: RealServer, tmp_path: Path, kind: str, stop: str, first: int, greeted: str
) -> None:
    journal, host = tmp_path / "journal.sqlite3", Host(name="Grace")

    def killed() -> list[str]:
        return live_and_die(real_server.url, journal, stop, kind, script=HOST_PROCESS)

    said = await anyio.to_thread.run_sync(killed)
    with anyio.fail_after(LIMIT_S):
        async with TasksClient(real_server.url, journal=journal, **host.ours) as client:
            (record,) = await client.records()
            (handle,) = await client.resume()
            assert content(await handle.result()) == {"result": f"Hello, {greeted}"}
    assert (said.count("asked"), len(host.asked)) == (first, 1 - first), "asked once overall"
    assert handle.task_id == record.task_id, "the same task"
    assert len(real_server.witness(handle.task_id, "tools/call")) == 1


@requirement("law:1", "law:2", "law:3", "persist:task-ids")
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # each costs the start of a process
@pytest.mark.parametrize(
    ("kind", "stop", "asked", "greeted"),
    [
        ("mcp-http", "question-open", 1, "Grace"),
        ("fastmcp-http", "answer-committed", 0, "Ada"),
        ("session-http", "answer-committed", 0, "Ada"),
    ],
)
async def test_what_a_killed_native_client_began_any_other_brings_home(
    real_server: RealServer, tmp_path: Path, kind: Any, stop: str, asked: int, greeted: str
) -> None:
    journal, host = tmp_path / "journal.sqlite3", Host(name="Grace")
    await anyio.to_thread.run_sync(live_and_die, real_server.url, journal, stop)
    extension = TasksExtension(
        # A bare session cannot know its URL; this is the name that the others derive from it.
        journal=journal,
        endpoint=real_server.url if kind == "session-http" else None,
    )
    with anyio.fail_after(LIMIT_S):
        async with (
            host_client(Way(kind, "wrapped"), real_server.url, host, extension) as client,
            TasksClient(client) as durable,
        ):
            (record,) = await durable.records()
            (handle,) = await durable.resume()
            assert content(await handle.result()) == {"result": f"Hello, {greeted}"}
            # What was begun under a key is found under it on this way as well.
            again = await durable.call_tool("ask_name", {"seconds": 0.3}, idempotency_key="k")
            assert content(again) == {"result": f"Hello, {greeted}"}
    assert len(host.asked) == asked
    assert handle.task_id == record.task_id, "the same task"
    assert len(real_server.witness(handle.task_id, "tools/call")) == 1
