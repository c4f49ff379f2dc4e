"""Dropped into the SDK's clients: a call is seen through in its caller's own task, and no task is lost.

Servers are the tests' own, in this process or at a loopback port, where it matters what they say; and one
FastMCP server in a process of its own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import fastmcp
import mcp
import pytest
from fastmcp.client.elicitation import ElicitResult as FastMCPElicitResult
from mcp import ClientSession, StdioServerParameters
from mcp.client.extension import ClaimContext, ResultClaim, UnexpectedClaimedResult
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, ElicitResult, ErrorData
from pydantic import ValidationError

from mcp_tasks_client import (
    Clock,
    Environment,
    Journal,
    MemoryJournal,
    Scope,
    SqliteJournal,
    TaskRecord,
    TasksExtension,
    idempotency_key,
)
from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import (
    ConnectionLostError,
    InputUnansweredError,
    JournalError,
    JournalLockedError,
    RemoteProtocolError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClientError,
    WaitTimeoutError,
)
from tests.kit.current_server import (
    DISCOVERED,
    DONE,
    DROP,
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
    working,
)
from tests.kit.probed_journal import ProbedJournal
from tests.real_server import RealServer

pytestmark = [
    pytest.mark.anyio,
    # The SDK's transport leaves a body that it gave up to the garbage collector, which trio tells.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]

ENDPOINT: Final = "a-server"
ACCEPTED: Final = ElicitResult(action="accept", content={})


def extension(journal: Journal, **options: Any) -> TasksExtension:
    given: dict[str, Any] = {"endpoint": ENDPOINT, "poll": QUICK} | options
    return TasksExtension(journal=journal, **given)


def client_in_memory(server: Any, journal: Journal, **options: Any) -> mcp.Client:
    return mcp.Client(in_memory(server), extensions=[extension(journal)], **options)


async def recorded(journal: Journal, endpoint: str = ENDPOINT) -> list[TaskRecord]:
    async with journal:
        return await journal.records(Scope(endpoint))


async def unfinished(journal: Journal, endpoint: str = ENDPOINT) -> list[str | None]:
    return [record.task_id for record in await recorded(journal, endpoint) if not record.finished]


async def resume(client: Any, *references: Any) -> list[CallToolResult]:
    """The results of what is unfinished, or of the tasks that references name."""
    async with TasksClient(client) as tasks:
        handles = [await tasks.attach(one) for one in references] or await tasks.resume()
        return [await handle.result() for handle in handles]


async def resume_elsewhere(journal: Journal, server: CurrentServer | None = None) -> None:
    """Have another client bring home the one task that is left."""
    server = server or CurrentServer(gets=[DONE])
    async with client_in_memory(server, journal) as client:
        (result,) = await resume(client)
    assert result.structured_content == {"n": 1}
    assert server.counts["tools/call"] == 0


@pytest.fixture(autouse=True)
def bounded(anyio_backend: object) -> None:
    """Parametrises what is not asynchronous as well; every wait is inside a ``fail_after``."""


# ── what a server can make of the reply ───────────────────────────────────────────────────────────

JSON: Final = ["Content-Type: application/json"]
ODD: Final[dict[str, dict[str, Any]]] = {
    "nothing but an ID": {"status": ...},
    "a status that is null": {"status": None},
    "a new status": {"status": "dreaming"},
    "metadata": {"_meta": {"progressToken": [1], "x": None}},
    "content that is none": {"content": 5, "isError": "maybe", "structuredContent": "x"},
    "fields of its own": {"result": [], "error": 1, "taskid": 2, "raw": 3, "_raw": 4},
}


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
async def test_whatever_a_created_task_looks_like_it_is_journaled_first_and_seen_through(
    changes: dict[str, Any],
) -> None:
    reply = {name: value for name, value in {**WORKING, **changes}.items() if value is not ...}
    journal, server = MemoryJournal(), CurrentServer(calls=[reply])
    before_polls: list[list[str | None]] = []

    async def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "tasks/get":
            before_polls.append(await unfinished(journal))
        return await server(method, params)

    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(answer, journal) as client:
            result = await client.call_tool("tool")
    assert result.structured_content == {"n": 1}
    assert before_polls == [[TASK_ID]] * 2


async def test_what_the_sdk_refuses_never_reaches_us() -> None:
    """A known gap: the SDK checks against the core protocol before it looks for claims."""
    journal, server = MemoryJournal(), CurrentServer(calls=[{**WORKING, "_meta": "x"}])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            with pytest.raises(ValidationError):
                await client.call_tool("tool")
    assert await recorded(journal) == []


async def test_a_task_without_an_id_is_a_breach_of_the_protocol() -> None:
    server = CurrentServer(calls=[{**WORKING, "taskId": 7}])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, MemoryJournal()) as client:
            with pytest.raises(RemoteProtocolError, match="taskId"):
                await client.call_tool("tool")


async def test_a_claimed_result_that_a_host_did_not_expect_names_its_task(made: Made) -> None:
    server, journal = CurrentServer(gets=[DONE]), MemoryJournal()
    ours = extension(journal)
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, made(url, extensions=[ours]) as client:
            with pytest.raises(UnexpectedClaimedResult) as caught:
                await client.session.call_tool("tool")
            assert await recorded(journal) == [], "nobody drives it"
            (result,) = await resume(client, caught.value.result.task_id)  # type: ignore[attr-defined]  # a ClaimedTask
    assert result.structured_content == {"n": 1}


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # FastMCP's client knows no other
@pytest.mark.parametrize(
    "created", [WORKING, {"resultType": "task", "taskId": TASK_ID}], ids=["whole", "bare"]
)
async def test_fastmcps_own_handle_follows_a_task_that_our_extension_has_claimed(
    created: dict[str, Any],
) -> None:
    from fastmcp_tasks import call_tool_task

    server, journal = CurrentServer(calls=[created]), MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with (
            at_loopback(server) as url,
            fastmcp.Client(url, extensions=[extension(journal)]) as client,
        ):
            handle = await call_tool_task(client, "tool")
            assert handle.task_id == TASK_ID
            assert (await handle.result()).structured_content == {"n": 1}
            assert await recorded(journal) == [], "nobody else drives it"
            # The client's other calls are ours, whatever the task looks like.
            assert (await client.call_tool("tool")).structured_content == {"n": 1}
    assert server.counts["tools/call"] == 2


async def test_the_sdk_checks_a_result_once_and_refuses_it_in_its_own_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks, validate = list[str](), ClientSession.validate_tool_result

    async def counted(session: ClientSession, name: str, result: CallToolResult) -> None:
        checks.append(name)
        await validate(session, name, result)

    monkeypatch.setattr(ClientSession, "validate_tool_result", counted)
    wrong = completed(result={**RESULT, "structuredContent": {"m": 1}})
    server = CurrentServer(gets=[DONE, wrong])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, MemoryJournal()) as client:
            await client.call_tool("tool")
            with pytest.raises(RuntimeError, match="Invalid structured content"):
                await client.call_tool("tool")
    assert checks == ["tool"] * 2
    assert server.counts["tools/list"] == 1


# ── what it costs ─────────────────────────────────────────────────────────────────────────────────


def counting(journal_type: type[Journal], *arguments: Any) -> tuple[Journal, Counter[str]]:
    """A journal of a type, and how often each of its operations is asked for."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        def call(self: Journal, *args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return getattr(journal_type, name)(self, *args, **kwargs)

        return call

    names = [name for name in vars(Journal) if not name.startswith("_") and callable(getattr(Journal, name))]
    counted_type = type("Counting", (journal_type,), {name: counted(name) for name in names})
    return counted_type(*arguments), counts


async def test_a_task_is_journaled_for_the_principal_that_the_extension_was_given() -> None:
    journal = MemoryJournal()
    theirs = extension(journal, principal="ada")
    async with mcp.Client(in_memory(CurrentServer(gets=[DONE])), extensions=[theirs]) as client:
        await client.call_tool("tool")
    async with journal:
        assert [record.tool for record in await journal.records(Scope(ENDPOINT, "ada"))] == ["tool"]
        assert await journal.records(Scope(ENDPOINT)) == []


async def test_calls_share_one_opening_of_the_file_and_cost_three_operations_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[object]()
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def counted_connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(arguments)
        return connect(*arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", counted_connect)
    journal, counts = counting(SqliteJournal, tmp_path / "journal.sqlite3")
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(CurrentServer(gets=[DONE]), journal) as client:
            await client.call_tool("tool")
            at_first, connections = counts.copy(), len(opened)
            for _ in range(4):
                await client.call_tool("tool")
    each = counts - at_first
    opened_again = each.pop("open")
    del each["aclose_soon"]
    for touches_no_file in ("keep_renewing", "listen"):
        del each[touches_no_file], at_first[touches_no_file]
    assert connections == len(opened), "the file was opened once"
    assert opened_again == 4 * 2, "which only counts: to drive a call, and to deliver its outcome"
    assert sum(each.values()) <= 4 * 3, each
    # And to enrol, and to prune, once a process; each opening is counted, and each closing.
    assert sum(at_first.values()) <= 3 + 2 + 6, at_first


async def test_nothing_runs_beside_a_call(anyio_backend_name: str) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("asyncio counts tasks")
    server = CurrentServer(gets=[WORKING, NEVER])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, MemoryJournal()) as client:
            await client.list_tools()
            idle = len(asyncio.all_tasks())
            call = asyncio.create_task(client.call_tool("tool"))
            await server.waiting.wait()
            # The call's own, the one that drives it, and one in which the test's server waits.
            assert len(asyncio.all_tasks()) == idle + 3
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert len(asyncio.all_tasks()) == idle + 1


# ── faults ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_poll_that_fails_does_not_end_the_drive(made: Made) -> None:
    faults = [Http("503 Service Unavailable"), Http("404 Not Found"), Fault(-32603, "Boom")]
    server, ours = CurrentServer(gets=[WORKING, *faults, WORKING, DONE]), extension(MemoryJournal())
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, made(url, extensions=[ours]) as client:
            result = await client.call_tool("tool", {})
    assert result.structured_content == {"n": 1}
    assert (server.counts["tasks/get"], server.counts["tools/call"]) == (6, 1)


async def test_a_key_that_has_no_effect_is_told(caplog: pytest.LogCaptureFixture) -> None:
    server = CurrentServer()
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, MemoryJournal()) as client:
            with idempotency_key("order-42"):
                await client.call_tool("tool")
    assert [message for message in caplog.messages if "TasksClient(client)" in message]
    assert "order-42" not in caplog.text


async def test_a_task_that_the_server_does_not_know_ends_the_call_with_its_handle() -> None:
    server = CurrentServer(gets=[WORKING, Fault(-32602, "Unknown task")])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, MemoryJournal()) as client:
            with pytest.raises(TaskNotFoundError) as caught:
                await client.call_tool("tool")
    assert caught.value.handle is not None
    assert caught.value.handle.task_id == TASK_ID


async def test_a_client_that_is_left_while_a_call_waits_leaves_the_task_for_a_later_one() -> None:
    journal, server = MemoryJournal(), CurrentServer(gets=[WORKING, NEVER])
    ended: list[TasksClientError] = []

    async def wait(client: mcp.Client) -> None:
        try:
            await client.call_tool("tool")
        except TasksClientError as error:
            ended.append(error)

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as callers, client_in_memory(server, journal) as client:
            callers.start_soon(wait, client)
            await server.waiting.wait()
        (error,) = ended
        assert isinstance(error, ConnectionLostError)
        assert error.handle is not None
        assert error.handle.task_id == TASK_ID
        assert await unfinished(journal) == [TASK_ID]
        await resume_elsewhere(journal)


@pytest.mark.parametrize(
    "fault", [DROP, Http("200 OK", b"{", JSON, length=500)], ids=["no reply", "half a reply"]
)
async def test_a_connection_that_breaks_ends_the_client_and_not_the_task(made: Made, fault: Http) -> None:
    """A decision of the SDK's: its HTTP transport ends the client with what broke the connection."""
    journal, server = MemoryJournal(), CurrentServer(gets=[WORKING, fault, DONE])
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            with pytest.raises(
                Exception, match=r"Exceptions from|unhandled errors|disconnected|peer closed|failed"
            ):
                async with made(url, extensions=[extension(journal)]) as client:
                    await client.call_tool("tool", {})
            assert await unfinished(journal) == [TASK_ID]
            async with made(url, extensions=[extension(journal)]) as client:
                (result,) = await resume(client)
    assert result.structured_content == {"n": 1}
    assert server.counts["tools/call"] == 1


STDIO_SERVER: Final = """
import json, os, sys
known = False
for line in sys.stdin:
    message = json.loads(line)
    method, reply = message.get("method"), {"jsonrpc": "2.0", "id": message.get("id")}
    if "id" not in message:
        continue
    if method == "server/discover":
        reply["result"] = DISCOVERED
    elif method == "tools/list":
        reply["result"] = {"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "public"}
    elif method == "tools/call":
        known, reply["result"] = True, WORKING
    elif known:
        os._exit(1)
    else:
        reply["error"] = {"code": -32602, "message": "Unknown task"}
    print(json.dumps(reply), flush=True)
"""


async def test_a_stdio_server_that_dies_takes_its_task_with_it_and_that_is_told(tmp_path: Path) -> None:
    script, journal = tmp_path / "server.py", MemoryJournal()
    script.write_text(f"DISCOVERED = {DISCOVERED!r}\nWORKING = {WORKING!r}\n{STDIO_SERVER}")
    command = StdioServerParameters(command=sys.executable, args=["-S", str(script)])
    shared = TasksExtension(journal=journal, poll=QUICK)
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(command, extensions=[shared]) as client:
            with pytest.raises(ConnectionLostError) as caught:
                await client.call_tool("tool")
        assert caught.value.handle is not None
        endpoint = caught.value.handle.reference["endpoint"]
        assert endpoint.startswith("stdio")
        assert await unfinished(journal, endpoint) == [TASK_ID]
        async with mcp.Client(command, extensions=[shared]) as client:
            with pytest.raises(TaskNotFoundError, match="died with the server's process"):
                await resume(client)


# ── the journal fails ─────────────────────────────────────────────────────────────────────────────


async def attach(client: mcp.Client, error: JournalError) -> None:
    """Go on with what an error tells, once the journal is mended."""
    assert error.handle is not None
    reference = json.loads(json.dumps(error.handle.reference))
    assert reference["task_id"] == TASK_ID
    (result,) = await resume(client, reference)
    assert result.structured_content == {"n": 1}


async def test_a_journal_that_has_no_place_costs_a_task_neither_its_id_nor_its_result(tmp_path: Path) -> None:
    obstacle = tmp_path / "journals"
    obstacle.write_text("a file where the folder should be")
    journal, server = SqliteJournal(obstacle / "journal.sqlite3"), CurrentServer()
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            with pytest.raises(JournalError) as caught:
                await client.call_tool("tool")
            assert server.counts["tasks/get"] == 0
            obstacle.unlink()
            await attach(client, caught.value)


async def test_a_journal_that_is_locked_costs_a_task_neither_its_id_nor_its_result(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    journal, server = SqliteJournal(path, busy_timeout_s=0.05), CurrentServer()
    assert await recorded(journal) == []  # makes the file
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                with pytest.raises(JournalLockedError) as caught:
                    await client.call_tool("tool")
            assert server.counts["tasks/get"] == 0
            await attach(client, caught.value)


async def test_a_journal_that_has_no_room_costs_a_task_neither_its_id_nor_its_result() -> None:
    journal, server = ProbedJournal("save"), CurrentServer()
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            with pytest.raises(JournalError) as caught:
                await client.call_tool("tool")
            assert server.counts["tasks/get"] == 0
            journal.refuses = ()
            await attach(client, caught.value)


async def test_what_one_call_could_not_commit_a_later_call_commits_as_soon_as_there_is_room() -> None:
    journal = ProbedJournal("save")
    server = CurrentServer(calls=[working(f"task-{n}") for n in range(3)], gets=[NEVER])
    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(server, journal) as client:
            for _ in range(2):  # the second call tries to commit the first one's task as well
                with pytest.raises(JournalError):
                    await client.call_tool("tool")
            journal.refuses = ()
            async with anyio.create_task_group() as callers:
                callers.start_soon(client.call_tool, "tool")
                await server.waiting.wait()
                callers.cancel_scope.cancel()
    assert sorted(map(str, await unfinished(journal))) == ["task-0", "task-1", "task-2"]


# ── several clients and calls ─────────────────────────────────────────────────────────────────────


async def test_one_extension_keeps_the_tasks_of_two_servers_apart(made: Made) -> None:
    journal = MemoryJournal()
    shared = TasksExtension(journal=journal, poll=QUICK)
    servers = [CurrentServer(calls=[working(f"task-{n}")], gets=[NEVER]) for n in range(2)]
    with anyio.fail_after(LIMIT_S):
        async with (
            at_loopback(servers[0]) as first,
            at_loopback(servers[1]) as second,
            made(first, extensions=[shared]) as one,
            made(second, extensions=[shared]) as other,
            anyio.create_task_group() as callers,
        ):
            for client, server in zip((one, other), servers, strict=True):
                callers.start_soon(client.call_tool, "tool", {})
                await server.waiting.wait()
            callers.cancel_scope.cancel()
    assert await unfinished(journal, first) == ["task-0"]
    assert await unfinished(journal, second) == ["task-1"]


class ManyTasks(CurrentServer):
    """A task for each call, whose result is its number; counts the polls that are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = self.most = self.made = 0
        self.polls: Counter[str] = Counter()

    async def __call__(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "tools/call":
            self.made += 1
            return working(f"task-{params['arguments']['n']}")
        if method != "tasks/get":
            return await super().__call__(method, params)
        task_id = params["taskId"]
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(20):  # for them to overlap
            await anyio.lowlevel.checkpoint()
        self.under_way -= 1
        self.polls[task_id] += 1
        number = int(task_id.removeprefix("task-"))
        done = completed(task_id, {"content": [], "structuredContent": {"n": number}})
        return {**(working(task_id) if self.polls[task_id] < 3 else done), "resultType": "complete"}


@pytest.mark.parametrize("at_port", [True, False], ids=["http", "in memory"])
async def test_many_calls_at_once_share_a_cap_and_get_each_their_own_result(at_port: bool) -> None:
    server, got = ManyTasks(), dict[int, Any]()
    policy = replace(QUICK, polls_in_flight=4)

    async def call(client: mcp.Client, n: int) -> None:
        got[n] = (await client.call_tool("tool", {"n": n})).structured_content

    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            transport = url if at_port else in_memory(server)
            made = mcp.Client(transport, extensions=[extension(MemoryJournal(), poll=policy)])
            async with made as client, anyio.create_task_group() as callers:
                for n in range(50):
                    callers.start_soon(call, client, n)
    assert got == {n: {"n": n} for n in range(50)}
    assert 1 < server.most <= 4
    assert server.made == 50


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # FastMCP's client knows no other
async def test_clones_of_a_client_share_its_extension_at_the_same_time(tmp_path: Path) -> None:
    server, got = ManyTasks(), dict[int, Any]()
    journal, counts = counting(SqliteJournal, tmp_path / "journal.sqlite3")
    shared = TasksExtension(journal=journal, poll=QUICK)

    async def call(client: Any, n: int) -> None:
        async with client.new() as clone:
            got[n] = (await clone.call_tool("tool", {"n": n})).structured_content

    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, anyio.create_task_group() as callers:
            client: Any = fastmcp.Client(url, extensions=[shared])
            for n in range(8):
                callers.start_soon(call, client, n)
    assert got == {n: {"n": n} for n in range(8)}
    assert counts["open"] == counts["aclose_soon"], "the journal is closed as often as it was opened"
    with closing(sqlite3.connect(tmp_path / "journal.sqlite3")) as file:
        assert file.execute("SELECT count(*) FROM leases").fetchone() == (1,)


async def test_a_session_that_is_closed_is_not_kept_alive_by_the_extension(made: Made) -> None:
    shared = extension(MemoryJournal())
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(CurrentServer()) as url:
            client = made(url, extensions=[shared])
            async with client:
                await client.call_tool("tool", {})
                session = weakref.ref(client.session)
            await anyio.lowlevel.checkpoint()
            gc.collect()
            assert session() is None


@pytest.mark.parametrize("kind", [mcp.Client, fastmcp.Client], ids=["mcp", "fastmcp"])
def test_a_server_in_this_process_needs_a_name_when_its_client_is_made(kind: Any) -> None:
    server: Any = fastmcp.FastMCP("here") if kind is fastmcp.Client else in_memory(CurrentServer())
    with pytest.raises(ValueError, match=r"TasksExtension\(endpoint="):
        kind(server, extensions=[TasksExtension(journal=MemoryJournal())])
    kind(server, extensions=[TasksExtension(journal=MemoryJournal(), endpoint="a")])


async def test_over_an_older_connection_calls_are_plain() -> None:
    server = MCPServer("older")
    server.add_tool(lambda: "done", name="tool")
    older = mcp.Client(server, mode="legacy", extensions=[extension(MemoryJournal())])
    with anyio.fail_after(LIMIT_S):
        async with older as client:
            assert client.session.protocol_version == "2025-11-25"
            assert not (await client.call_tool("tool")).is_error


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="on_abandon"):
        TasksExtension(journal=MemoryJournal(), on_abandon="forget")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError, match="journal"):
        TasksExtension(journal=7)  # type: ignore[arg-type]  # on purpose


# ── questions and messages ────────────────────────────────────────────────────────────────────────


async def test_a_question_reaches_the_clients_own_callback_and_the_answer_the_server(made: Made) -> None:
    server, asked = CurrentServer(gets=[{**asking(k=QUESTION), "pollIntervalMs": 300}, DONE]), list[str]()
    ours = extension(MemoryJournal())

    async def sdks(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ACCEPTED

    async def fastmcps(message: str, response_type: Any, params: Any, context: Any) -> Any:
        asked.append(message)
        return FastMCPElicitResult(action="accept", content={})

    callback = {"elicitation_callback": sdks} if made is mcp.Client else {"elicitation_handler": fastmcps}
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, made(url, extensions=[ours], **callback) as client:
            result = await client.call_tool("tool", {})
    assert result.structured_content == {"n": 1}
    assert asked == ["?"]
    updates = [params for method, params in server.received if method == "tasks/update"]
    assert [update["inputResponses"] for update in updates] == [{"k": {"action": "accept", "content": {}}}]


async def test_a_callback_of_the_extension_wins_over_the_clients() -> None:
    asked: list[str] = []

    async def theirs(context: Any, params: Any) -> ElicitResult:
        asked.append("theirs")
        return ACCEPTED

    async def ours(context: Any, params: Any) -> ElicitResult:
        asked.append(f"ours, of {context.tool}")
        return ACCEPTED

    server = CurrentServer(gets=[{**asking(k=QUESTION), "pollIntervalMs": 300}, DONE])
    made = extension(MemoryJournal(), elicitation=ours)
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(in_memory(server), extensions=[made], elicitation_callback=theirs) as client:
            await client.call_tool("tool")
    assert asked == ["ours, of tool"]


async def test_a_question_that_the_host_refuses_parks_the_task_until_somebody_answers() -> None:
    answers: list[ElicitResult | ErrorData] = [ErrorData(code=-1, message="nobody at home"), ACCEPTED]

    async def elicit(context: Any, params: Any) -> ElicitResult | ErrorData:
        return answers.pop(0)

    server = CurrentServer(gets=[asking(k=QUESTION)])

    async def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
        answered = method == "tasks/get" and server.counts["tasks/update"]
        return completed() | {"resultType": "complete"} if answered else await server(method, params)

    with anyio.fail_after(LIMIT_S):
        async with client_in_memory(answer, MemoryJournal(), elicitation_callback=elicit) as client:
            with pytest.raises(InputUnansweredError, match="nobody at home") as caught:
                await client.call_tool("tool")
            assert caught.value.handle is not None
            assert caught.value.handle.task_id == TASK_ID
            (result,) = await resume(client)
    assert result.structured_content == {"n": 1}


async def test_status_messages_are_told_to_the_calls_own_progress_callback_and_to_on_update(
    made: Made,
) -> None:
    says = ["one", "one", None, "two"]
    server = CurrentServer(gets=[*(working(statusMessage=words) for words in says), DONE])
    told, seen = list[tuple[float, float | None, str | None]](), list[str]()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    updating = extension(MemoryJournal(), on_update=lambda task: seen.append(task.status))
    name = "progress_callback" if made is mcp.Client else "progress_handler"
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, made(url, extensions=[updating]) as client:
            await client.call_tool("tool", {}, **{name: progress})
    assert [message for _, _, message in told] == ["one", "two"]
    assert [total for _, total, _ in told] == [None, None]
    assert told[0][0] < told[1][0], "progress must increase"
    assert seen[-1] == "completed"


# ── stopped ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("on_abandon", ["detach", "cancel"])
@pytest.mark.parametrize("how", ["scope", "move_on_after", "Task.cancel", "wait_for", "asyncio.timeout"])
async def test_a_call_that_is_cancelled_leaves_its_task_as_on_abandon_says(
    made: Made, how: str, on_abandon: Any, anyio_backend_name: str
) -> None:
    native = how not in ("scope", "move_on_after")
    if native and anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation but that of scopes")
    if how == "asyncio.timeout" and sys.version_info < (3, 11):
        pytest.skip("there is none before 3.11")
    journal, server = MemoryJournal(), CurrentServer(gets=[WORKING, NEVER, WORKING, DONE])
    ours = extension(journal, on_abandon=on_abandon)
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, made(url, extensions=[ours]) as client:
            await stopped(how, lambda: client.call_tool("tool", {}), server.waiting)
            assert await unfinished(journal) == [TASK_ID]
            assert server.counts["tasks/get"] == 2
            assert server.counts["tasks/cancel"] == (on_abandon == "cancel")
            (result,) = await resume(client)
    assert result.structured_content == {"n": 1}
    assert server.counts["tools/call"] == 1


async def stopped(how: str, call: Callable[[], Any], waiting: anyio.Event) -> None:
    """Make a call and stop it in one of the ways there are, once the server has stopped answering."""
    match how:
        case "scope":
            async with anyio.create_task_group() as callers:
                callers.start_soon(call)
                await waiting.wait()
                callers.cancel_scope.cancel()
        case "move_on_after":
            with anyio.move_on_after(LIMIT_S) as scope:

                async def hurry() -> None:
                    await waiting.wait()
                    scope.deadline = anyio.current_time()

                async with anyio.create_task_group() as watching:
                    watching.start_soon(hurry)
                    await call()
            assert scope.cancelled_caught
        case "Task.cancel":
            task = asyncio.ensure_future(call())
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        case "wait_for":
            task = asyncio.ensure_future(call())
            await waiting.wait()  # its deadline cannot be moved once it waits
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0.01)
        case "asyncio.timeout":
            timeout = asyncio.timeout(LIMIT_S)
            hurrying = asyncio.ensure_future(waiting.wait())
            hurrying.add_done_callback(lambda _: timeout.reschedule(0))
            with pytest.raises(TimeoutError):
                async with timeout:
                    await call()
    assert waiting.is_set()


@pytest.mark.parametrize("on_abandon", ["detach", "cancel"])
async def test_a_call_that_takes_longer_than_it_was_given_says_how_to_go_on(
    made: Made, on_abandon: Any
) -> None:
    journal, server = MemoryJournal(), CurrentServer(gets=[working(pollIntervalMs=60_000)])
    ours = extension(journal, on_abandon=on_abandon)
    option = "read_timeout_seconds" if made is mcp.Client else "timeout"
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, made(url, extensions=[ours]) as client:
            with pytest.raises(WaitTimeoutError, match=r"resume\(\)") as caught:
                await client.call_tool("tool", {}, **{option: 2.0})
    assert caught.value.handle is not None
    assert caught.value.handle.reference["task_id"] == TASK_ID
    assert await unfinished(journal) == [TASK_ID]
    assert server.counts["tasks/cancel"] == (on_abandon == "cancel")


@pytest.mark.parametrize("excludes", [False, True])
async def test_the_time_in_which_somebody_is_asked_counts_as_the_extension_was_told(excludes: bool) -> None:
    async def slow(context: Any, params: Any) -> ElicitResult:
        await anyio.sleep(1.5)
        return ACCEPTED

    server = CurrentServer(gets=[{**asking(k=QUESTION), "pollIntervalMs": 1600}, DONE])
    ours = extension(MemoryJournal(), elicitation=slow, timeout_excludes_questions=excludes)
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(in_memory(server), extensions=[ours]) as client:
            with nullcontext() if excludes else pytest.raises(WaitTimeoutError):
                await client.call_tool("tool", {}, read_timeout_seconds=1.0)


class Handing(TasksExtension):
    """Notes when the SDK hands over a task: from then on it must not be lost."""

    handed_over = False

    def claims(self) -> Sequence[ResultClaim[Any]]:
        (claim,) = super().claims()

        async def noted(claimed: Any, context: ClaimContext) -> CallToolResult:
            self.handed_over = True
            return await claim.resolve(claimed, context)

        return (replace(claim, resolve=noted),)


class Instant(Clock):
    """A clock by which every wait is over at once."""

    def __init__(self) -> None:
        self._now = 0.0

    def time(self) -> float:
        return 1_800_000_000.0 + self._now

    def monotonic(self) -> float:
        return self._now

    async def wait(self, event: Any, timeout_s: float | None) -> None:
        if timeout_s is None:
            await event.wait()
        else:
            self._now += timeout_s
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("natively", [False, True], ids=["by a scope", "natively"])
async def test_a_call_that_is_stopped_at_any_moment_has_lost_no_task_and_asks_nobody_twice(
    natively: bool, anyio_backend_name: str
) -> None:
    if natively and anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation but that of scopes")
    outcomes: Counter[str] = Counter()
    with anyio.fail_after(LIMIT_S):
        while not outcomes["not stopped"]:
            outcomes[await stopped_after(outcomes.total(), natively)] += 1
    assert all(outcomes[when] for when in ("before there was a task", "with a task", "with an answer")), (
        outcomes
    )


async def stopped_after(turns: int, natively: bool) -> str:
    """Stop a call after so many turns of the event loop, and have it resumed; says when that was."""
    asked, results = list[str](), list[CallToolResult]()
    server, journal = CurrentServer(gets=[asking(k=QUESTION)]), ProbedJournal()
    for _ in range(2):
        journal.before("open", anyio.lowlevel.checkpoint)
    done = anyio.Event()

    async def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "tasks/get" and server.counts["tasks/update"]:
            done.set()
            return {**DONE, "resultType": "complete"}
        return await server(method, params)

    async def elicit(context: Any, params: Any) -> ElicitResult:
        await anyio.lowlevel.checkpoint()
        asked.append("asked")  # and no moment is left in which the answer could be lost
        return ACCEPTED

    async def call(client: mcp.Client) -> None:
        results.append(await client.call_tool("tool"))

    handing = Handing(journal=journal, endpoint=ENDPOINT, environment=Environment(clock=Instant()))
    async with mcp.Client(in_memory(answer), extensions=[handing], elicitation_callback=elicit) as client:
        await client.list_tools()
        if natively:
            task = asyncio.ensure_future(call(client))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        else:
            async with anyio.create_task_group() as callers:
                callers.start_soon(call, client)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                callers.cancel_scope.cancel()
        if results:
            return "not stopped"
        if not handing.handed_over:
            return "before there was a task"
        assert journal._users == 0, "opened as often as closed"
        was_asked = bool(asked)
        if done.is_set() and not await recorded(journal):
            return "with a result"  # which was delivered to the SDK, and that was stopped
        results = await resume(client)
        assert [result.structured_content for result in results] == [{"n": 1}]
        assert asked == ["asked"]
        assert server.counts["tools/call"] == 1
    return "with an answer" if was_asked else "with a task"


# ── a real server ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # the same client on both
async def test_at_a_real_server_a_host_that_knows_of_no_tasks_gets_every_result(
    made: Made, real_server: RealServer
) -> None:
    host: dict[str, Any]
    if made is mcp.Client:
        host = {"elicitation_callback": lambda context, params: sdks(params)}
    else:
        host = {"elicitation_handler": lambda message, kind, params, context: fastmcps(params)}

    async def sdks(params: Any) -> ElicitResult:
        return ElicitResult(
            action="accept", content=dict.fromkeys(params.requested_schema["properties"], "Ada")
        )

    async def fastmcps(params: Any) -> Any:
        return FastMCPElicitResult(action="accept", content=(await sdks(params)).content)

    expected = {
        "plain": {"result": 1},
        "fast": {"result": 1},
        "must_task": {"result": 1},
        "typed": {"name": "Bern", "inhabitants": 137_000},
        "ask_name": {"result": "Hello, Ada"},
        "ask_many": {"result": "Ada and Ada: Ada"},
        "ask_plainly": {"result": "Ada of item:tea"},
    }
    journal, got = MemoryJournal(), dict[str, Any]()

    async def call(client: Any, tool: str) -> None:
        got[tool] = (await client.call_tool(tool, {})).structured_content

    with anyio.fail_after(LIMIT_S):
        async with made(real_server.url, extensions=[TasksExtension(journal=journal)], **host) as client:
            async with anyio.create_task_group() as callers:
                for tool in expected:
                    callers.start_soon(call, client, tool)
            with pytest.raises(TaskFailedError) as failed:
                await client.call_tool("fail_rpc", {})
    assert got == expected
    assert (failed.value.code, failed.value.data) == (-32050, {"retryAfter": 7})
    assert await unfinished(journal, real_server.url) == []
