"""The generation before, 2025-11-25: the same calls, at real servers on both official SDKs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import httpx
import pytest
from mcp_types import CreateMessageResult, ElicitResult, TextContent

from mcp_tasks_client import (
    MemoryJournal,
    MissingCapabilityError,
    OutcomeUnknownError,
    RemoteProtocolError,
    TaskCancelledError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClient,
    WaitTimeoutError,
)
from mcp_tasks_client.old.points import Passage, Point, Probe
from mcp_tasks_client.old.sessions.catalogue import OtherVersionError
from mcp_tasks_client.old.sessions.http import HttpSession
from mcp_tasks_client.old.sessions.http_peer import HttpPeer
from mcp_tasks_client.old.sessions.shapes_2025_11_25 import Memo
from mcp_tasks_client.old.states import Observing

from ._requirements import requirement
from .legacy_servers import LegacyProgram, LegacyServer
from .servers.core_tasks_host import CALLS
from .strict_server import StrictProcess
from .test_kill import live_and_die

pytestmark = pytest.mark.anyio

LIMIT_S: Final = 30.0
RELATED: Final = "io.modelcontextprotocol/related-task"
HOST: Final = Path(__file__).parent / "servers" / "core_tasks_host.py"


@pytest.fixture(params=[("asyncio", "python"), ("trio", "node")], ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """An event loop and a server. Neither knows of the other, so that each of them is met once."""
    loop, server = request.param
    return loop, server


@pytest.fixture
def anyio_backend(pair: tuple[str, str]) -> str:
    return pair[0]


@pytest.fixture
def legacy_server(request: pytest.FixtureRequest, pair: tuple[str, str]) -> LegacyServer:
    server = request.getfixturevalue(f"legacy_{pair[1]}_server")
    assert isinstance(server, LegacyServer)
    return server


@pytest.fixture
def legacy_program(request: pytest.FixtureRequest, pair: tuple[str, str]) -> LegacyProgram:
    program = request.getfixturevalue(f"legacy_{pair[1]}_program")
    assert isinstance(program, LegacyProgram)
    return program


class Host:
    """Answers what it is asked, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.sampled = 0

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        await anyio.lowlevel.checkpoint()
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(self, context: Any, params: Any) -> CreateMessageResult:
        self.sampled += 1
        return CreateMessageResult(role="assistant", model="m", content=TextContent(type="text", text="four"))

    @asynccontextmanager
    async def client(self, url: str, journal: Any = None, **options: Any) -> AsyncIterator[TasksClient]:
        callbacks = {"elicitation": self.elicit, "sampling": self.sample}
        with anyio.fail_after(LIMIT_S):
            async with TasksClient(url, journal=journal or MemoryJournal(), **callbacks, **options) as client:
                yield client


def text(result: Any) -> str:
    content: str = result.content[0].text
    return content


def sent(server: LegacyServer, session_id: str | None, method: str) -> list[Any]:
    return server.witness(method, session_id=session_id)


def session_of(task: Any) -> str:
    session_id = Memo.read(task.request_state).session_id
    assert session_id is not None
    return session_id


# ── results ───────────────────────────────────────────────────────────────────────────────────


@requirement("2025:tool-support", "2025:capability")
async def test_a_tool_without_task_support_is_called_plainly(legacy_server: LegacyServer) -> None:
    async with Host().client(legacy_server.url) as client:
        handle = await client.start_tool("plain")
        assert text(await handle.result()) == "plain"
        assert handle.task_id is None
        assert await client.records() == []


@requirement("2025:tool-support")
async def test_a_host_may_want_tasks_always_or_never_and_for_how_long(legacy_server: LegacyServer) -> None:
    async with Host().client(legacy_server.url, task_preference="never") as client:
        handle = await client.start_tool("slow", {"duration_ms": 50})
        assert text(await handle.result()) == "rested"
        assert handle.task_id is None
    async with Host().client(legacy_server.url, task_preference="always") as client:
        assert (await client.start_tool("slow", {"duration_ms": 50})).task_id is not None
        with pytest.raises(MissingCapabilityError, match='task_preference is "auto"') as caught:
            await client.call_tool("plain")
        assert caught.value.not_executed
    async with Host().client(legacy_server.url, task_ttl_s=5.0) as client:
        handle = await client.start_tool("slow", {"duration_ms": 50})
        assert (await handle.result()).content
        assert legacy_server.witness("tools/call")[-1].params["task"] == {"ttl": 5000}
    with pytest.raises(ValueError, match="task_preference must be"):
        TasksClient(legacy_server.url, task_preference="often")  # type: ignore[arg-type]  # what hosts do


@requirement("law:3", "law:8", "2025:input-required")
async def test_who_stopped_waiting_between_two_questions_is_asked_the_second(
    legacy_server: LegacyServer,
) -> None:
    host = Host()
    async with host.client(legacy_server.url) as client:
        with pytest.raises(WaitTimeoutError) as caught:
            await client.call_tool("asks_twice", {"together": False, "duration_ms": 1500}, timeout=0.75)
        assert caught.value.handle is not None
        result = await caught.value.handle.result(timeout=LIMIT_S)
    assert text(result) == "Ada and Ada"


@requirement("law:3", "law:8", "2025:input-required")
@pytest.mark.parametrize("leaves", ["the call", "the client"])
async def test_what_is_asked_while_nobody_waits_is_asked_of_whoever_waits_next(
    legacy_server: LegacyServer, leaves: str
) -> None:
    host, journal, call = Host(), MemoryJournal(), ("asks_twice", {"together": False, "duration_ms": 1500})
    async with host.client(legacy_server.url, journal) as client:
        with pytest.raises(WaitTimeoutError):
            await client.call_tool(*call, idempotency_key="k", timeout=1.0)
        if leaves == "the call":
            await anyio.sleep(2.0)  # the server asks meanwhile
            result = await client.call_tool(*call, idempotency_key="k")
    if leaves == "the client":
        await anyio.sleep(2.0)
        async with host.client(legacy_server.url, journal) as client:
            result = await client.call_tool(*call, idempotency_key="k")
    assert text(result) == "Ada and Ada"


@requirement("2025:tool-support", "2025:result", "2025:poll-on", "2025:track", "law:6")
@pytest.mark.parametrize("tool", ["slow", "must"])
async def test_a_tool_that_takes_a_while_returns_its_result(legacy_server: LegacyServer, tool: str) -> None:
    async with Host().client(legacy_server.url) as client:
        handle = await client.start_tool(tool, {"duration_ms": 200})
        result = await handle.result()
        (record,) = await client.records()
    assert handle.task_id is not None
    assert result.meta == {RELATED: {"taskId": handle.task_id}}
    assert record.generation == "2025-11-25"
    assert record.status == "completed"
    (call,) = (one for one in legacy_server.witness("tools/call") if call_made(legacy_server, one, handle))
    assert call.params["task"]["ttl"] > 0


def call_made(server: LegacyServer, call: Any, handle: Any) -> bool:
    return bool(call.session_id == session_of(handle.task))


@requirement("2025:failed")
@pytest.mark.parametrize("how", ["message", "result", "completed"])
async def test_a_task_that_fails_says_why_or_returns_what_the_tool_did(
    legacy_server: LegacyServer, how: str
) -> None:
    async with Host().client(legacy_server.url) as client:
        if how == "message":
            with pytest.raises(TaskFailedError) as caught:
                await client.call_tool("fails", {"how": how})
            assert "quota exceeded" in (str(caught.value) + str(caught.value.status_message))
        else:
            assert (await client.call_tool("fails", {"how": how})).is_error


@requirement("2025:poll-interval", "law:4")
async def test_polls_keep_the_pace_that_the_server_sets(legacy_server: LegacyServer) -> None:
    async with Host().client(legacy_server.url) as client:
        handle = await client.start_tool("slow", {"duration_ms": 1000, "hint_ms": 300})
        await handle.result()
    session_id = session_of(handle.task)
    (call,) = sent(legacy_server, session_id, "tools/call")
    polls = sent(legacy_server, session_id, "tasks/get")
    assert 1 <= len(polls) <= 4
    times = [call.at, *(poll.at for poll in polls)]
    assert all(later - earlier >= 0.29 for earlier, later in pairwise(times))


@requirement("2025:unmarked-requests")
async def test_requests_for_a_task_bear_no_mark_of_it(legacy_server: LegacyServer) -> None:
    async with Host().client(legacy_server.url) as client:
        handle = await client.start_tool("asks")
        await handle.result()
    session_id = session_of(handle.task)
    for method in ("tasks/get", "tasks/result"):
        for request in sent(legacy_server, session_id, method):
            assert RELATED not in (request.params or {}).get("_meta", {})


@requirement("2025:notifications")
async def test_an_end_that_the_server_tells_of_is_not_waited_for(legacy_server: LegacyServer) -> None:
    async with Host().client(legacy_server.url) as client:
        handle = await client.start_tool("slow", {"duration_ms": 1500, "hint_ms": 60_000})
        assert text(await handle.result()) == "rested"
    assert sent(legacy_server, session_of(handle.task), "tasks/get") == []


async def test_the_handle_says_what_the_model_is_to_be_told_meanwhile(legacy_server: LegacyServer) -> None:
    async with Host().client(legacy_server.url) as client:
        handle = await client.start_tool("immediate", {"duration_ms": 300, "hint_ms": 100})
        told = handle.immediate_response
        assert told is not None
        await handle.refresh()
        assert handle.immediate_response == told
        await handle.result()


# ── questions ─────────────────────────────────────────────────────────────────────────────────


@requirement("2025:input-required", "2025:any-stream", "2025:marked-answers", "law:3")
async def test_a_question_inside_a_task_is_answered_by_the_host(legacy_server: LegacyServer) -> None:
    host = Host()
    async with host.client(legacy_server.url) as client:
        handle = await client.start_tool("asks", {"hint_ms": 50})
        assert text(await handle.result()) == "Hello, Ada"
    assert len(host.asked) == 1
    (answer,) = (
        one
        for one in legacy_server.witness(session_id=session_of(handle.task))
        if one.result is not None and "action" in one.result
    )
    assert answer.result["_meta"][RELATED] == {"taskId": handle.task_id}


@requirement("law:3")
@pytest.mark.parametrize("together", [True, False])
async def test_two_questions_are_each_asked_once(legacy_server: LegacyServer, together: bool) -> None:
    host = Host()
    async with host.client(legacy_server.url) as client:
        for _ in range(3):
            result = await client.call_tool("asks_twice", {"together": together, "hint_ms": 50})
            assert text(result) == "Ada and Ada"
    assert len(host.asked) == 6


@requirement("law:1", "law:3", "2025:input-required")
async def test_a_task_may_ask_in_branches_that_know_nothing_of_each_other(
    legacy_server: LegacyServer,
) -> None:
    """One server says that such a task works as soon as any of its questions has an answer."""
    asked: list[tuple[str, str]] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        kind = params.message.rstrip("?").split()[-1]
        asked.append((context.task.task_id, kind))
        await anyio.sleep({"cat": 0.0, "kitten": 0.0, "dog": 0.25}[kind])
        return ElicitResult(action="accept", content={"name": kind})

    host = Host()
    host.elicit = elicit  # type: ignore[method-assign]  # to tell the questions apart
    async with host.client(legacy_server.url) as client:

        async def call(stagger_ms: int) -> None:
            arguments = {"stagger_ms": stagger_ms, "duration_ms": 50, "hint_ms": 500}
            handle = await client.start_tool("asks_in_branches", arguments)
            assert text(await handle.result()) == "cat, kitten and dog"
            kinds = [kind for task_id, kind in asked if task_id == handle.task_id]
            assert sorted(kinds) == ["cat", "dog", "kitten"]

        async with anyio.create_task_group() as calls:
            for stagger_ms in (0, 10, 60, 120, 200):
                calls.start_soon(call, stagger_ms)


@requirement("law:1", "law:3", "2025:input-required")
async def test_a_question_that_a_server_hides_is_heard_after_a_while(
    legacy_server: LegacyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that is asked while nothing waits, and the answer to another is on its way."""
    monkeypatch.setattr("mcp_tasks_client.old.sessions.pauses._REST_S", 0.5)
    answer, host, left, asked_at = HttpPeer.answer, Host(), anyio.Event(), dict[str, float]()

    async def elicit(context: Any, params: Any) -> ElicitResult:
        asked_at[params.message.rstrip("?").split()[-1]] = anyio.current_time()
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def far_away(self: HttpPeer, *args: Any) -> None:
        if not left.is_set():
            await anyio.sleep(0.6)
            left.set()
        await answer(self, *args)

    monkeypatch.setattr(HttpPeer, "answer", far_away)
    host.elicit = elicit  # type: ignore[method-assign]  # to know when it is asked
    async with host.client(legacy_server.url) as client:
        arguments = {"stagger_ms": 400, "duration_ms": 3000, "hint_ms": 50}
        assert text(await client.call_tool("asks_in_branches", arguments)) == "Ada, Ada and Ada"
    assert asked_at["dog"] < asked_at["kitten"] - 1.0


@requirement("law:3", "2025:input-required")
async def test_of_two_questions_the_server_has_the_first_answer_before_the_second_is_given(
    legacy_server: LegacyServer,
) -> None:
    """Each is a request with a time limit of its own, which is a minute at one of the servers."""
    host = Host()
    answer = host.elicit

    async def think(context: Any, params: Any) -> ElicitResult:
        while host.asked and not said(context.task):
            await anyio.sleep(0.05)
        return await answer(context, params)

    def said(task: Any) -> list[Any]:
        entries = legacy_server.witness(session_id=session_of(task))
        return [one for one in entries if one.result is not None and "action" in one.result]

    host.elicit = think  # type: ignore[method-assign]  # to answer late
    async with host.client(legacy_server.url) as client:
        handle = await client.start_tool("asks_twice", {"hint_ms": 50})
        assert text(await handle.result()) == "Ada and Ada"
    assert len(said(handle.task)) == 2


@requirement("2025:input-required")
async def test_a_sampling_inside_a_task_is_answered_by_the_host(legacy_server: LegacyServer) -> None:
    host = Host()
    async with host.client(legacy_server.url) as client:
        assert text(await client.call_tool("samples")) == "four"
    assert host.sampled == 1


@requirement("law:3", "2025:input-required")
async def test_the_second_of_two_questions_is_answered_over_another_client_in_its_time(
    legacy_server: LegacyServer,
) -> None:
    """One server says that it works, once the first has its answer."""
    first, second, journal = Host(), Host(), MemoryJournal()
    answer, typed = first.elicit, second.elicit
    asked = anyio.Event()

    async def answers_once(context: Any, params: Any) -> ElicitResult:
        if first.asked:
            asked.set()
            await anyio.sleep_forever()
        return await answer(context, params)

    async def answers_late(context: Any, params: Any) -> ElicitResult:
        await anyio.sleep(0.5)  # some polls
        return await typed(context, params)

    first.elicit = answers_once  # type: ignore[method-assign]  # to leave one of them open
    second.elicit = answers_late  # type: ignore[method-assign]
    async with first.client(legacy_server.url, journal) as client:
        handle = await client.start_tool("asks_twice", {"hint_ms": 50})
        await asked.wait()
        polls = len(sent(legacy_server, session_of(handle.task), "tasks/get"))
        while len(sent(legacy_server, session_of(handle.task), "tasks/get")) < polls + 2:
            await anyio.sleep(0.05)
    async with second.client(legacy_server.url, journal) as client:
        (handle,) = await client.resume()
        assert text(await handle.result()) == "Ada and Ada"
    assert sorted(first.asked + second.asked) == [
        f"What is the name of your {pet}?" for pet in ("cat", "dog")
    ]


@requirement("2025:cancel", "law:8")
async def test_a_cancelled_task_ends_and_its_question_is_not_answered(legacy_server: LegacyServer) -> None:
    asked = anyio.Event()

    async def think(context: Any, params: Any) -> ElicitResult:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError("it is not answered")

    with anyio.fail_after(LIMIT_S):
        async with TasksClient(legacy_server.url, journal=MemoryJournal(), elicitation=think) as client:
            handle = await client.start_tool("asks", {"hint_ms": 50})
            await asked.wait()
            await handle.cancel()
            with pytest.raises(TaskCancelledError):
                await handle.result()
            # The session lives on.
            assert text(await client.call_tool("plain")) == "plain"
    answers = legacy_server.witness(session_id=session_of(handle.task))
    assert not [one for one in answers if one.result is not None]


@requirement("2025:cancel")
async def test_cancelling_what_is_over_already_brings_its_real_end(legacy_server: LegacyServer) -> None:
    async with Host().client(legacy_server.url) as client:
        # Over when it is created, and not polled yet.
        handle = await client.start_tool("slow", {"duration_ms": 0, "hint_ms": 1500, "finish_first": True})
        await handle.cancel()
        assert text(await handle.result()) == "rested"


async def test_a_wait_that_ends_leaves_the_task_to_be_awaited_again(legacy_server: LegacyServer) -> None:
    async with Host().client(legacy_server.url) as client:
        with pytest.raises(WaitTimeoutError) as caught:
            await client.call_tool("slow", {"duration_ms": 700, "hint_ms": 100}, timeout=0.2)
        assert caught.value.handle is not None
        assert text(await caught.value.handle.result()) == "rested"


@requirement("2025:progress")
@pytest.mark.parametrize("where", ["session", "result"])
async def test_how_far_a_task_is_is_told_with_its_updates(legacy_server: LegacyServer, where: str) -> None:
    arguments = {"where": where, "duration_ms": 200}
    async with Host().client(legacy_server.url) as client:
        handle = await client.start_tool("progresses", arguments)
        told = [task.progress["message"] async for task in handle.updates() if task.progress is not None]
        assert text(await handle.result()) == "progressed"
    assert told == sorted(told)
    assert set(told) <= {"step 1", "step 2", "step 3"}
    # A server tells of it on tasks/result only to who waits there, and nobody does before it asks or ends.
    assert told or where == "result"


# ── callers that go away ──────────────────────────────────────────────────────────────────────


class AtOnce(Host):
    """Answers before anybody can stop to wait."""

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        return ElicitResult(action="accept", content={"name": "Ada"})


@requirement("law:3", "law:8")
async def test_what_is_asked_while_a_caller_stops_to_wait_is_asked_when_it_waits_again(
    legacy_server: LegacyServer,
) -> None:
    """Neither server asks again, and some ask just between two waits of one that comes and goes."""
    host, brought = AtOnce(), list[str]()
    async with host.client(legacy_server.url) as client:

        async def call(number: int) -> None:
            arguments = {"together": False, "duration_ms": 140 + 20 * number, "hint_ms": 200}
            options: dict[str, Any] = {"idempotency_key": f"slices {number}"}
            for _ in range(15):
                with suppress(WaitTimeoutError):
                    await client.call_tool("asks_twice", arguments, timeout=0.1 + 0.01 * number, **options)
                    break
            brought.append(text(await client.call_tool("asks_twice", arguments, **options)))

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(call, number)
    assert brought == ["Ada and Ada"] * 8
    assert len(host.asked) == 16, "no prompt is withdrawn, for none is up for any time"


@requirement("law:1", "law:3", "law:8")
async def test_what_is_asked_while_nobody_waits_comes_to_another_process(
    legacy_server: LegacyServer, tmp_path: Path
) -> None:
    """It waits at the server until then: nothing of the first one's does, that could be handed it."""
    host, arguments = AtOnce(), {"together": False, "duration_ms": 1000, "hint_ms": 200}
    async with host.client(legacy_server.url, tmp_path / "journal.sqlite3") as client:
        with pytest.raises(WaitTimeoutError):
            await client.call_tool("asks_twice", arguments, idempotency_key="k", timeout=0.8)
        (record,) = await client.records()
        await anyio.sleep(1.5)  # the server asks meanwhile
        assert len(host.asked) == 1, "nobody is asked for what nobody waits for"
        assert [one.fence for one in await client.records()] == [record.fence], "nor is anything journaled"
        async with host.client(legacy_server.url, tmp_path / "journal.sqlite3") as other:
            assert text(await other.call_tool("asks_twice", arguments, idempotency_key="k")) == "Ada and Ada"
    assert len(host.asked) == 2


@requirement("law:1", "law:3", "law:8")
@pytest.mark.parametrize("hint_ms", [150, 500])
async def test_a_client_that_only_goes_on_with_a_task_journals_what_is_asked_while_nobody_waits(
    legacy_server: LegacyServer, tmp_path: Path, hint_ms: int
) -> None:
    """It has made no call, and need not know more of the server than that task."""
    journal, host = tmp_path / "journal.sqlite3", AtOnce()
    arguments = {"together": False, "duration_ms": 1000, "hint_ms": hint_ms}
    call, options = ("asks_twice", arguments), {"idempotency_key": "k"}
    async with host.client(legacy_server.url, journal) as client:
        await client.start_tool(*call, **options)
    sessions = len(legacy_server.witness("initialize"))
    async with host.client(legacy_server.url, journal) as client:
        while not host.asked:
            with pytest.raises(WaitTimeoutError):
                await client.call_tool(*call, timeout=0.7, **options)
        await anyio.sleep(1.5)  # the server asks the second one meanwhile
    assert len(legacy_server.witness("initialize")) == sessions, "nothing is begun to hear of a task"
    async with host.client(legacy_server.url, journal) as client:
        assert text(await client.call_tool(*call, **options)) == "Ada and Ada"
    assert len(host.asked) == 2


class Held(Probe):
    """Holds up the commit of a task's creation, as a slow disk does."""

    def __init__(self) -> None:
        self.reached, self.go = anyio.Event(), anyio.Event()

    async def before(self, point: Point) -> None:
        if point is Point.TASK_CREATED:
            self.reached.set()
            await self.go.wait()

    async def after(self, point: Point) -> None:
        pass


@requirement("law:1", "law:3", "law:8")
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("asked", ["before", "after"])
async def test_what_is_asked_while_a_task_of_which_nobody_waits_is_journaled_comes_to_who_waits_next(
    legacy_server: LegacyServer, tmp_path: Path, stays: bool, asked: str
) -> None:
    journal, host, held = tmp_path / "journal.sqlite3", AtOnce(), Held()
    call, options = ("asks", {"hint_ms": 150}), {"idempotency_key": "k"}

    async def asked_next() -> None:
        async with host.client(legacy_server.url, journal) as other:
            assert text(await other.call_tool(*call, **options)) == "Hello, Ada"

    gives_up = anyio.CancelScope()

    async def begin(client: TasksClient) -> None:
        with gives_up:
            await client.call_tool(*call, **options)

    async with host.client(legacy_server.url, journal) as client:
        client._engine.scheduler.driver.commits._passing = Passage(held)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begin, client)
            await held.reached.wait()
            if asked == "before":
                await anyio.sleep(0.3)
            gives_up.cancel()
            await anyio.wait_all_tasks_blocked()
            held.go.set()
        if stays:
            await asked_next()
    await asked_next()
    assert len(host.asked) == 1


@requirement("law:1", "law:3")
@pytest.mark.parametrize("hint_ms", [200, 20_000])
async def test_a_question_is_in_the_journal_as_soon_as_it_is_heard(
    legacy_node_server: LegacyServer, monkeypatch: pytest.MonkeyPatch, hint_ms: int
) -> None:
    """That server asks at once, as most do, and once; the other one waits for a poll."""
    for name in ("listener._FIRST_S", "listener._MOMENT_S", "sessions.hints._INSIST_S"):
        monkeypatch.setattr(f"mcp_tasks_client.{name}", 3600.0)
    asked = anyio.Event()

    async def elicit(context: Any, params: Any) -> ElicitResult:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    server, journal = legacy_node_server, MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with TasksClient(server.url, journal=journal, elicitation=elicit) as client:
            handle = await client.start_tool("asks", {"hint_ms": hint_ms})
            await asked.wait()
            (record,) = await client.records()
            assert isinstance(record.state, Observing)
            assert len(record.state.questions) == 1
            assert Memo.read(record.state.request_state).retrieval is not None
            assert sent(server, session_of(handle.task), "tasks/get") == []
            await handle.cancel()


# ── after a crash ─────────────────────────────────────────────────────────────────────────────


@requirement("law:1", "law:2", "law:3")
@pytest.mark.parametrize(
    ("stop", "tool", "asks_again"),
    [
        ("task-created", "slow", 0),
        ("task-created", "asks", 1),
        ("question-open", "asks", 1),
        ("answer-committed", "asks", 0),
        ("answer-sent", "asks", 0),
        ("question-open", "asks_twice", 2),
        ("answer-sent", "asks_one_by_one", 1),
    ],
)
async def test_another_process_goes_on_where_one_was_killed(
    legacy_server: LegacyServer, tmp_path: Path, stop: str, tool: str, asks_again: int
) -> None:
    journal, host = tmp_path / "journal.sqlite3", Host()
    live = partial(live_and_die, legacy_server.url, journal, stop, tool, script=HOST)
    await anyio.to_thread.run_sync(live)
    async with host.client(legacy_server.url, journal) as client:
        (handle,) = await client.resume()
        expected = {"slow": "rested", "asks": "Hello, Ada"}.get(tool, "Ada and Ada")
        assert text(await handle.result()) == expected
        name, arguments = CALLS.get(tool, (tool, {"duration_ms": 300}))
        assert text(await client.call_tool(name, arguments, idempotency_key="k")) == expected
    assert len(host.asked) == asks_again
    calls = sent(legacy_server, session_of(handle.task), "tools/call")
    assert len(calls) == 1


@requirement("law:1", "law:3", "law:8")
async def test_what_is_asked_between_a_kill_and_the_next_process_comes_to_that(
    legacy_server: LegacyServer, tmp_path: Path
) -> None:
    """A server hands a question to a request that waits, though the process is dead that made it."""
    journal, host = tmp_path / "journal.sqlite3", Host()
    live = partial(live_and_die, legacy_server.url, journal, "at-rest", "asks_soon_after", script=HOST)
    await anyio.to_thread.run_sync(live)
    await anyio.sleep(1.5)  # the server asks meanwhile
    async with host.client(legacy_server.url, journal) as client:
        (handle,) = await client.resume()
        assert text(await handle.result()) == "Ada and Ada"
    assert host.asked == ["What is the name of your dog?"]


@requirement("law:1", "law:3", "law:4")
async def test_an_answer_that_a_killed_process_had_is_sent_before_a_poll_is_due(
    legacy_server: LegacyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.sessions.answering._POLL_S", 0.1)
    journal, host = tmp_path / "journal.sqlite3", Host()
    stop = ("answer-committed", "asks_unhurriedly")
    await anyio.to_thread.run_sync(partial(live_and_die, legacy_server.url, journal, *stop, script=HOST))
    async with host.client(legacy_server.url, journal) as client:
        (handle,) = await client.resume()
        session_id = session_of(handle.task)
        heard = partial(legacy_server.witness, session_id=session_id)
        polls = len(sent(legacy_server, session_id, "tasks/get"))
        while not any(one.verb == "POST" and one.method is None for one in heard()):
            await anyio.sleep(0.05)
        assert len(sent(legacy_server, session_id, "tasks/get")) == polls
        assert text(await handle.result()) == "Hello, Ada"
    assert host.asked == []


@requirement("law:2", "2025:list")
async def test_a_task_whose_id_was_lost_in_a_crash_is_found_in_the_servers_list(
    legacy_server: LegacyServer, tmp_path: Path
) -> None:
    journal = tmp_path / "journal.sqlite3"
    live = partial(live_and_die, legacy_server.url, journal, "reply-lost", "slow", script=HOST)
    await anyio.to_thread.run_sync(live)
    async with Host().client(legacy_server.url, journal) as client:
        (record,) = await client.records()
        assert record.status == "calling"
        result = await client.call_tool("slow", {"duration_ms": 300}, idempotency_key="k")
        assert text(result) == "rested"
        (record,) = await client.records()
    assert record.task is not None
    assert len(sent(legacy_server, session_of(record.task), "tools/call")) == 1


@requirement("law:2", "2025:list")
async def test_of_two_calls_that_were_lost_each_finds_its_own_task(
    legacy_server: LegacyServer, tmp_path: Path
) -> None:
    journal = tmp_path / "journal.sqlite3"
    live = partial(live_and_die, legacy_server.url, journal, "replies-lost", "slow", script=HOST)
    await anyio.to_thread.run_sync(live)
    async with Host().client(legacy_server.url, journal) as client:
        for key in ("k", "other"):
            result = await client.call_tool("slow", {"duration_ms": 300}, idempotency_key=key)
            assert text(result) == "rested"
        tasks = {record.task_id for record in await client.records()}
    assert len(tasks) == 2


@requirement("law:2", "2025:list")
async def test_a_task_that_may_be_another_calls_is_not_taken_for_the_one_that_was_lost(
    legacy_server: LegacyServer, tmp_path: Path
) -> None:
    journal = tmp_path / "journal.sqlite3"
    live = partial(live_and_die, legacy_server.url, journal, "reply-lost", "slow_for_a_minute", script=HOST)
    await anyio.to_thread.run_sync(live)
    name, arguments = CALLS["slow_for_a_minute"]
    async with Host().client(legacy_server.url, journal) as client:
        with pytest.raises(OutcomeUnknownError):
            await client.call_tool(name, arguments, idempotency_key="k")


@requirement("2025:lost-session")
async def test_a_session_that_the_server_forgot_is_begun_anew_and_its_tasks_are_said_to_be_lost(
    legacy_program: LegacyProgram, tmp_path: Path
) -> None:
    with legacy_program.listening(tmp_path / "log") as server:
        async with Host().client(server.url) as client:
            handle = await client.start_tool("slow", {"duration_ms": 60_000, "hint_ms": 200})
            headers = {"Mcp-Session-Id": session_of(handle.task), "Accept": "text/event-stream"}
            httpx.delete(server.url, headers=headers, trust_env=False)
            with pytest.raises(TaskNotFoundError, match="ended the session that the task was made in"):
                await handle.result()
            assert text(await client.call_tool("plain")) == "plain"
            assert text(await client.call_tool("slow", {"duration_ms": 100})) == "rested"


async def test_finding_out_the_generation_harms_nobody(
    legacy_python_program: LegacyProgram, tmp_path: Path
) -> None:
    with legacy_python_program.listening(tmp_path / "log", "--as-shipped") as server:
        async with Host().client(server.url) as client:
            assert text(await client.call_tool("slow", {"duration_ms": 50})) == "rested"
            probe = HttpSession(server.url)
            with pytest.raises(OtherVersionError):
                await probe.discover()
            await probe.aclose()
            assert text(await client.call_tool("slow", {"duration_ms": 50})) == "rested"
        verbs = {one.verb for one in server.witness()}
    assert "DELETE" not in verbs


@requirement("2025:lost-session")
async def test_a_call_finds_that_its_session_is_gone_and_is_made_in_a_new_one(
    legacy_program: LegacyProgram, tmp_path: Path
) -> None:
    with legacy_program.listening(tmp_path / "log") as server:
        async with Host().client(server.url) as client:
            assert text(await client.call_tool("plain")) == "plain"
            (session_id,) = {one.session_id for one in server.witness("tools/call")}
            assert session_id is not None
            headers = {"Mcp-Session-Id": session_id, "Accept": "text/event-stream"}
            httpx.delete(server.url, headers=headers, trust_env=False)
            assert text(await client.call_tool("plain")) == "plain"
            assert text(await client.call_tool("slow", {"duration_ms": 50})) == "rested"


@requirement("2025:upgraded")
async def test_a_task_of_before_an_upgrade_is_said_to_be_out_of_reach(
    legacy_server: LegacyServer, strict_server: StrictProcess
) -> None:
    journal = MemoryJournal()
    async with journal:
        async with Host().client(legacy_server.url, journal, endpoint="here") as client:
            await client.start_tool("slow", {"duration_ms": 60_000})
        async with Host().client(strict_server.url, journal, endpoint="here") as client:
            (handle,) = await client.resume()
            with pytest.raises(RemoteProtocolError, match=r"does not speak MCP 2025-11-25.*upgraded"):
                await handle.result()
            (record,) = await client.records()
    assert record.status == "working"
    assert record.generation == "2025-11-25"


async def test_a_bare_id_is_looked_for_in_the_generation_that_the_server_speaks(
    legacy_server: LegacyServer,
) -> None:
    async with Host().client(legacy_server.url) as client:
        handle = await client.start_tool("slow", {"duration_ms": 400, "hint_ms": 100})
    assert handle.task_id is not None
    async with Host().client(legacy_server.url) as other:
        attached = await other.attach(handle.task_id)
        with pytest.raises(TaskNotFoundError):
            await attached.result()  # both servers bind it to the session that it was made in


async def test_a_task_is_attached_by_its_bare_id_whatever_the_generation(legacy_server: LegacyServer) -> None:
    async with Host().client(legacy_server.url) as client:
        handle = await client.start_tool("slow", {"duration_ms": 400, "hint_ms": 100})
        assert handle.task_id is not None
        other = await client.attach(handle.task_id)
        assert text(await other.result()) == "rested"
