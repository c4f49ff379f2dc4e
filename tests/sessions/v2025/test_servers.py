"""``TasksClient`` at real servers of 2025-11-25, on both official SDKs."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import httpx
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import (
    MissingCapabilityError,
    TaskCancelledError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClient,
)
from tests._forked import Program
from tests._requirements import requirement
from tests._results import text
from tests.kit.person import Person
from tests.legacy_servers import LegacyProgram, LegacyServer

from .host_process import CALLS

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 30.0
RELATED: Final = "io.modelcontextprotocol/related-task"
HOST: Final = Path(__file__).parent / "host_process.py"
NAMES: Final = "Ada and Ada"


@pytest.fixture(params=[("asyncio", "python"), ("trio", "node")], ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """An event loop and a server. Neither knows of the other, so that each of them is met once."""
    loop, server = request.param
    return loop, server


@pytest.fixture
def anyio_backend(pair: tuple[str, str]) -> str:
    return pair[0]


@pytest.fixture
def server(request: pytest.FixtureRequest, pair: tuple[str, str]) -> LegacyServer:
    found = request.getfixturevalue(f"legacy_{pair[1]}_server")
    assert isinstance(found, LegacyServer)
    return found


@pytest.fixture
def program(request: pytest.FixtureRequest, pair: tuple[str, str]) -> LegacyProgram:
    found = request.getfixturevalue(f"legacy_{pair[1]}_program")
    assert isinstance(found, LegacyProgram)
    return found


def session_of(server: LegacyServer) -> str:
    """The MCP session of the latest call."""
    session_id = server.witness("tools/call")[-1].session_id
    assert session_id is not None
    return session_id


def sent(server: LegacyServer, method: str) -> list[Any]:
    return server.witness(method, session_id=session_of(server))


def answers(server: LegacyServer) -> list[Any]:
    return [one for one in server.witness(session_id=session_of(server)) if one.result is not None]


async def test_what_hosts_do_with_a_session_besides_calls_is_passed_on(server: LegacyServer) -> None:
    async with Person().client(server.url) as client:
        said = await client.initialize()
        assert said.protocol_version == "2025-11-25"
        assert said.capabilities.tools is not None
        assert said.server_info.name != server.url, "it is what the server calls itself"
        assert "slow" in [tool.name for tool in (await client.list_tools()).tools]
        pings = len(server.witness("ping"))
        await client.send_ping()
        assert len(server.witness("ping")) == pings + 1


# ── results ───────────────────────────────────────────────────────────────────────────────────


@requirement("2025:tool-support", "2025:capability")
async def test_a_host_may_want_tasks_always_or_never_and_for_how_long(server: LegacyServer) -> None:
    async with Person().client(server.url) as client:
        handle = await client.start_tool("plain")
        assert text(await handle.result()) == "plain"
        assert handle.task_id is None
    async with Person().client(server.url, task_preference="never") as client:
        handle = await client.start_tool("slow", {"duration_ms": 50})
        assert text(await handle.result()) == "rested"
        assert handle.task_id is None
    async with Person().client(server.url, task_preference="always", task_ttl_s=5.0) as client:
        assert (await client.start_tool("slow", {"duration_ms": 50})).task_id is not None
        assert server.witness("tools/call")[-1].params["task"] == {"ttl": 5000}  # type: ignore[index]
        with pytest.raises(MissingCapabilityError, match='task_preference is "auto"'):
            await client.call_tool("plain")


@requirement("2025:tool-support", "2025:result", "2025:poll-on", "2025:track")
@pytest.mark.parametrize("tool", ["slow", "must"])
async def test_a_tool_that_takes_a_while_returns_its_result(server: LegacyServer, tool: str) -> None:
    async with Person().client(server.url) as client:
        handle = await client.start_tool(tool, {"duration_ms": 200})
        result = await handle.result()
    assert result.meta == {RELATED: {"taskId": handle.task_id}}
    assert all(RELATED not in (one.params or {}).get("_meta", {}) for one in sent(server, "tasks/get"))


@requirement("2025:failed")
@pytest.mark.parametrize("how", ["message", "result", "completed"])
async def test_a_task_that_fails_says_why_or_returns_what_the_tool_did(
    server: LegacyServer, how: str
) -> None:
    async with Person().client(server.url) as client:
        if how == "message":
            with pytest.raises(TaskFailedError) as caught:
                await client.call_tool("fails", {"how": how})
            assert "quota exceeded" in (str(caught.value) + str(caught.value.status_message))
        else:
            assert (await client.call_tool("fails", {"how": how})).is_error


@requirement("2025:poll-interval")
async def test_polls_keep_the_pace_that_the_server_sets(server: LegacyServer) -> None:
    async with Person().client(server.url) as client:
        handle = await client.start_tool("slow", {"duration_ms": 60_000, "hint_ms": 300})
        while len(polls := sent(server, "tasks/get")) < 3:
            await anyio.sleep(0.02)
        await handle.cancel()
    times = [one.at for one in (*sent(server, "tools/call"), *polls)]
    assert all(later - earlier >= 0.29 for earlier, later in pairwise(times))


@requirement("2025:notifications")
async def test_an_end_that_the_server_tells_of_is_not_waited_for(server: LegacyServer) -> None:
    async with Person().client(server.url) as client:
        result = await client.call_tool("slow", {"duration_ms": 600, "hint_ms": 60_000})
        assert text(result) == "rested"
    assert sent(server, "tasks/get") == []


async def test_the_handle_says_what_the_model_is_to_be_told_meanwhile(server: LegacyServer) -> None:
    async with Person().client(server.url) as client:
        handle = await client.start_tool("immediate", {"duration_ms": 300, "hint_ms": 100})
        told = handle.immediate_response
        assert told is not None
        await handle.refresh()
        assert handle.immediate_response == told
        await handle.result()


@requirement("2025:progress")
@pytest.mark.parametrize("where", ["session", "result"])
async def test_the_progress_of_a_task_is_told_with_its_updates(server: LegacyServer, where: str) -> None:
    async with Person().client(server.url) as client:
        handle = await client.start_tool("progresses", {"where": where, "duration_ms": 150})
        told = [task.progress["message"] async for task in handle.updates() if task.progress is not None]
        assert text(await handle.result()) == "progressed"
    assert told == sorted(told)
    # A server tells it on the stream of tasks/result only to a client that has one open.
    assert told or where == "result"


# ── questions ─────────────────────────────────────────────────────────────────────────────────


@requirement("2025:input-required", "2025:any-stream", "2025:marked-answers")
@pytest.mark.parametrize(("tool", "said"), [("asks", "Hello, Ada"), ("samples", "4")])
async def test_a_question_inside_a_task_is_answered_by_the_host(
    server: LegacyServer, tool: str, said: str
) -> None:
    person = Person()
    async with person.client(server.url) as client:
        handle = await client.start_tool(tool, {"hint_ms": 50})
        assert text(await handle.result()) == said
    assert len(person.asked) == 1
    assert [one.result["_meta"][RELATED] for one in answers(server)] == [{"taskId": handle.task_id}]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("alike", [True, False])
async def test_two_questions_are_each_asked_once(server: LegacyServer, together: bool, alike: bool) -> None:
    person, arguments = Person(), {"together": together, "alike": alike, "hint_ms": 50}
    async with person.client(server.url) as client:
        for _ in range(3):
            assert text(await client.call_tool("asks_twice", arguments)) == NAMES
    assert len(person.asked) == 6


@requirement("2025:input-required")
async def test_a_task_may_ask_in_branches_that_know_nothing_of_each_other(server: LegacyServer) -> None:
    """TypeScript's server says that such a task works as soon as any of its questions has an answer."""
    asked: list[tuple[str, str]] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        kind = params.message.rstrip("?").split()[-1]
        asked.append((context.task.task_id, kind))
        await anyio.sleep({"cat": 0.0, "kitten": 0.0, "dog": 0.1}[kind])
        return ElicitResult(action="accept", content={"name": kind})

    async with Person().client(server.url, elicitation=elicit) as client, anyio.create_task_group() as calls:

        async def call(stagger_ms: int) -> None:
            arguments = {"stagger_ms": stagger_ms, "duration_ms": 50, "hint_ms": 300}
            handle = await client.start_tool("asks_in_branches", arguments)
            assert text(await handle.result()) == "cat, kitten and dog"
            kinds = [kind for task_id, kind in asked if task_id == handle.task_id]
            assert sorted(kinds) == ["cat", "dog", "kitten"]

        for stagger_ms in (0, 10, 60, 120):
            calls.start_soon(call, stagger_ms)


@requirement("2025:input-required")
@pytest.mark.parametrize("stays", ["nobody", "another client"])
async def test_what_is_asked_while_nobody_waits_is_asked_of_whoever_waits_next(
    server: LegacyServer, tmp_path: Path, stays: str
) -> None:
    person, journal = Person(), tmp_path / "journal.sqlite3"
    call = "asks_twice", {"together": False, "duration_ms": 1500, "hint_ms": 100}

    async def until_answered(client: TasksClient) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client.call_tool, *call, idempotency_key="k"))
            while not (person.asked and answers(server)):
                await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()

    async def after(client: TasksClient) -> None:
        await anyio.sleep(2.0)  # the server asks meanwhile
        assert len(person.asked) == 1, "nobody is asked for a call that nobody waits for"
        assert text(await client.call_tool(*call, idempotency_key="k")) == NAMES

    async with person.client(server.url, journal) as client:
        await until_answered(client)
        if stays == "another client":
            async with person.client(server.url, journal) as other:
                await after(other)
    if stays == "nobody":
        async with person.client(server.url, journal) as client:
            await after(client)
    assert len(person.asked) == 2


@requirement("2025:cancel", "2025:cancelled-is-gone")
async def test_a_cancelled_task_ends_and_its_question_is_not_answered(server: LegacyServer) -> None:
    asked = anyio.Event()

    async def think(context: Any, params: Any) -> ElicitResult:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError("it is not answered")

    async with Person().client(server.url, elicitation=think) as client:
        handle = await client.start_tool("asks", {"hint_ms": 50})
        await asked.wait()
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await handle.result()
        assert not answers(server)
        assert text(await client.call_tool("plain")) == "plain", "the session lives on"


@requirement("2025:cancel")
async def test_cancelling_what_is_over_already_brings_its_real_end(server: LegacyServer) -> None:
    async with Person().client(server.url) as client:
        handle = await client.start_tool("slow", {"duration_ms": 0, "hint_ms": 500, "finish_first": True})
        await handle.cancel()
        assert text(await handle.result()) == "rested"


# ── after a crash ─────────────────────────────────────────────────────────────────────────────


def run_until_killed(*arguments: str | Path) -> None:
    """Run a host until it says that it has reached the point, and kill it there."""
    with Program(HOST, *arguments, text=True) as process:
        try:
            assert process.stdout.readline() == "reached\n"
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("stop", "tool", "asks_again"),
    [
        ("task-created", "asks", 1),
        ("answer-committed", "asks", 0),
        ("question-open", "asks_twice", 2),
        ("answer-sent", "asks_one_by_one", 1),
    ],
)
async def test_another_process_goes_on_where_one_was_killed(
    server: LegacyServer, tmp_path: Path, stop: str, tool: str, asks_again: int
) -> None:
    journal, person = tmp_path / "journal.sqlite3", Person()
    run = partial(run_until_killed, server.url, journal, stop, tool)
    with anyio.fail_after(LIMIT_S):
        await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
    expected = "Hello, Ada" if tool == "asks" else NAMES
    async with person.client(server.url, journal) as client:
        (handle,) = await client.resume()
        assert text(await handle.result()) == expected
        name, arguments = CALLS[tool]
        assert text(await client.call_tool(name, arguments, idempotency_key="k")) == expected
    assert len(person.asked) == asks_again
    assert len(sent(server, "tools/call")) == 1


@requirement("2025:lost-session")
async def test_a_session_that_the_server_forgot_is_begun_anew_and_its_tasks_are_said_to_be_lost(
    program: LegacyProgram, tmp_path: Path
) -> None:
    with program.listening(tmp_path / "log") as server:
        async with Person().client(server.url) as client:
            handle = await client.start_tool("slow", {"duration_ms": 60_000, "hint_ms": 200})
            headers = {"Mcp-Session-Id": session_of(server), "Accept": "text/event-stream"}
            await anyio.to_thread.run_sync(
                partial(httpx.delete, server.url, headers=headers, trust_env=False)
            )
            assert text(await client.call_tool("plain")) == "plain"
            with pytest.raises(TaskNotFoundError, match="ended the session that the task was made in"):
                await handle.result()
            assert text(await client.call_tool("slow", {"duration_ms": 100})) == "rested"


async def test_a_task_is_attached_by_its_bare_id_in_the_same_session(server: LegacyServer) -> None:
    async with Person().client(server.url) as client:
        handle = await client.start_tool("slow", {"duration_ms": 400, "hint_ms": 100})
        assert handle.task_id is not None
        assert text(await (await client.attach(handle.task_id)).result()) == "rested"
    async with Person().client(server.url) as other:
        with pytest.raises(TaskNotFoundError):  # both servers bind a task to its session
            await (await other.attach(handle.task_id)).result()
