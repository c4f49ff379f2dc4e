"""A server that is a process, at both versions: started when needed, started again, and ended."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import pytest
from mcp_types import CallToolResult, ElicitResult

from mcp_tasks_client import (
    BlockingTasksClient,
    ConnectionLostError,
    MemoryJournal,
    PollPolicy,
    RemoteProtocolError,
    SqliteJournal,
    StdioServer,
    SystemClock,
    TaskCancelledError,
    TaskNotFoundError,
    TasksClient,
    ToolCall,
    WaitTimeoutError,
)
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import Returned
from mcp_tasks_client.questions.callbacks import Callbacks
from mcp_tasks_client.sessions.by_command.discovery import session_by_command
from mcp_tasks_client.sessions.stdio.lines import HEAD_BYTES, Line, LineSplitter
from mcp_tasks_client.sessions.stdio.stdio_session import StdioSession
from tests._forked import make_command
from tests._results import text
from tests.legacy_servers import LegacyProgram

pytestmark = pytest.mark.anyio

SERVERS: Final = Path(__file__).parents[2] / "servers"
VERSIONS: Final = ("2026-07-28", "2025-11-25")
LIMIT_S: Final = 120.0


async def answer(context: object, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


def scripted(*options: str, **more: Any) -> StdioServer:
    return StdioServer(sys.executable, ["-I", "-S", str(SERVERS / "scripted_stdio.py"), *options], **more)


@asynccontextmanager
async def opened(server: StdioServer, **options: Any) -> AsyncIterator[TasksClient]:
    options = {"journal": MemoryJournal(), "elicitation": answer, "poll": PollPolicy.eager(), **options}
    with anyio.fail_after(LIMIT_S):
        async with TasksClient(server, **options) as client:
            yield client


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def pid_of(client: TasksClient) -> int:
    return int(text(await client.call_tool("pid")))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await anyio.sleep(0.01)


# ── what any server does ──────────────────────────────────────────────────────────────────────────


async def test_tools_tasks_questions_and_cancels(version: str) -> None:
    async with opened(scripted(version)) as client:
        assert (await client.initialize()).protocol_version == version
        plain = await client.call_tool("plain")
        assert text(plain) == "1"
        assert (plain.model_extra or {})["unknown"] == {"kept": True}, "results pass as they are"
        assert text(await client.call_tool("fast")) == "done"
        assert text(await client.call_tool("ask_name")) == "Hello, Ada"
        handle = await client.start_tool("cancelable")
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await handle.result()


async def test_a_real_server_of_fastmcp() -> None:
    command, *arguments = make_command(SERVERS / "fastmcp_server.py", "--stdio")
    async with opened(StdioServer(command, arguments)) as client:
        assert (await client.initialize()).protocol_version == "2026-07-28"
        assert (await client.call_tool("plain", {"x": 2})).structured_content == {"result": 2}
        assert (await client.call_tool("must_task", {"n": 3})).structured_content == {"result": 3}
        assert (await client.call_tool("ask_name")).structured_content == {"result": "Hello, Ada"}
        handle = await client.start_tool("cancelable")
        assert handle.task_id is not None
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await handle.result()


async def test_real_servers_of_the_older_version(legacy_program: LegacyProgram) -> None:
    command, *arguments = legacy_program.stdio()
    async with opened(StdioServer(command, arguments)) as client:
        assert (await client.initialize()).protocol_version == "2025-11-25"
        assert text(await client.call_tool("plain")) == "plain"
        assert (await client.call_tool("must", {"n": 3})).structured_content == {"n": 3}
        assert text(await client.call_tool("asks")) == "Hello, Ada"
        handle = await client.start_tool("slow", {"duration_ms": 60_000})
        assert handle.task_id is not None
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await handle.result()


async def test_a_question_outside_of_tasks_goes_to_the_callback_at_the_older_version() -> None:
    async with opened(scripted("2025-11-25")) as client:
        assert text(await client.call_tool("ask_plainly")) == "Hello, Ada"


async def test_a_server_that_ends_unless_it_is_greeted_as_it_expects() -> None:
    async with opened(scripted("2025-11-25", "picky")) as client:
        assert text(await client.call_tool("fast")) == "done"
    async with opened(scripted("2025-11-25", "picky"), protocol="2025-11-25") as client:
        assert text(await client.call_tool("fast")) == "done"


async def test_a_client_without_an_event_loop_takes_a_command(version: str) -> None:
    def run() -> CallToolResult:
        with BlockingTasksClient(scripted(version), journal=MemoryJournal()) as client:
            return client.call_tool("fast")

    assert text(await anyio.to_thread.run_sync(run)) == "done"


def test_the_name_in_the_journal_is_that_of_the_other_way_in() -> None:
    server = StdioServer("/usr/bin/python", ["-m", "server", "--key", "s3cr3t"])
    name = StdioSession(server).endpoint
    assert name.startswith("stdio:python?sha256=")
    assert "s3cr3t" not in repr(server)
    mcp = pytest.importorskip("mcp.client.stdio")
    from mcp import Client

    from mcp_tasks_client.hosts.sdk.introspection import address_of

    command = mcp.StdioServerParameters(command=server.command, args=list(server.args))
    address = address_of(Client(command))
    assert address is not None
    assert address.endpoint == name


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: StdioServer("server", "argument"), "args must be a list"),
        (lambda: StdioServer(""), "command must name"),
        (lambda: StdioServer("server", start_timeout_s=0), "start_timeout_s"),
        (lambda: TasksClient(StdioServer("server"), headers={"a": "b"}), "for a server by its URL"),
    ],
)
def test_options_that_make_no_sense_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make()


# ── the life of the process ───────────────────────────────────────────────────────────────────────


async def test_the_process_starts_with_the_first_request_and_ends_with_the_client(version: str) -> None:
    async with opened(scripted(version)) as client:
        assert client._session.ephemeral
        pid = await pid_of(client)
        assert pid == await pid_of(client)
    assert not runs(pid)
    async with opened(StdioServer("no-such-command")):
        pass  # nothing was asked of it


async def test_a_process_that_does_not_end_is_killed_with_its_children(version: str) -> None:
    shell = scripted(version, "stubborn")
    line = " ".join([shell.command, *shell.args])
    async with opened(StdioServer("/bin/sh", ["-c", f"{line}; true"])) as client:
        pid = await pid_of(client)
        before = time.monotonic()
    assert time.monotonic() - before < LIMIT_S / 2
    with anyio.fail_after(LIMIT_S):  # the child of a shell is nobody's to wait for
        await until(lambda: not runs(pid) or is_zombie(pid))


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


async def test_a_process_that_is_killed_is_started_again_for_the_next_call(version: str) -> None:
    async with opened(scripted(version)) as client:
        first = await pid_of(client)
        handle = await client.start_tool("cancelable")
        os.kill(first, signal.SIGKILL)
        with pytest.raises(TaskNotFoundError, match="died with the server's process"):
            await handle.result()
        second = await pid_of(client)
        assert second != first
        assert text(await client.call_tool("fast")) == "done"
    assert not runs(second)


async def test_a_process_that_dies_of_a_call_says_why_and_the_next_call_has_another(version: str) -> None:
    async with opened(scripted(version)) as client:
        with pytest.raises(ConnectionLostError) as caught:
            await client.call_tool("die")
        assert not caught.value.not_executed
        assert "exit code 3, and said last: two | three | out of memory" in str(caught.value)
        assert text(await client.call_tool("plain")) == "1"


async def test_all_requests_under_way_are_told_that_the_process_has_ended(version: str) -> None:
    lost: list[ConnectionLostError] = []

    async def wait(client: TasksClient) -> None:
        with pytest.raises(ConnectionLostError) as caught:
            await client.call_tool("wait")
        lost.append(caught.value)

    async with opened(scripted(version)) as client:
        pid = await pid_of(client)
        async with anyio.create_task_group() as calls:
            for _ in range(20):
                calls.start_soon(wait, client)
            await anyio.wait_all_tasks_blocked()
            os.kill(pid, signal.SIGKILL)
    assert len(lost) == 20
    assert all("ended by signal 9" in str(error) for error in lost)


async def test_the_task_of_an_earlier_client_is_not_found(version: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal.sqlite3"
    async with opened(scripted(version), journal=SqliteJournal(journal)) as client:
        await client.start_tool("cancelable")
    async with opened(scripted(version), journal=SqliteJournal(journal)) as client:
        (handle,) = await client.resume()
        with pytest.raises(TaskNotFoundError, match="died with the server's process"):
            await handle.result()


async def test_a_caller_that_goes_away_leaves_a_process_that_answers(version: str) -> None:
    async with opened(scripted(version)) as client:
        pid = await pid_of(client)
        with anyio.move_on_after(0.05):
            await client.call_tool("wait")
        assert await pid_of(client) == pid
    assert not runs(pid)


# ── a server that does not start ──────────────────────────────────────────────────────────────────


async def test_a_command_that_does_not_exist_is_a_typed_error_to_each_request() -> None:
    async with opened(StdioServer("no-such-command")) as client:
        for _ in range(2):
            with pytest.raises(ConnectionLostError, match=r"did not start.*no-such-command") as caught:
                await client.call_tool("plain")
            assert caught.value.not_executed


async def test_a_process_that_ends_at_once_says_why(version: str) -> None:
    async with opened(scripted(version, "broken")) as client:
        with pytest.raises(ConnectionLostError, match="exit code 1, and said last: no licence") as caught:
            await client.call_tool("plain")
        assert caught.value.not_executed


async def test_a_process_that_never_answers_is_ended(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_process, started = anyio.open_process, list[int]()

    async def noting(*args: Any, **options: Any) -> anyio.abc.Process:
        process = await open_process(*args, **options)
        started.append(process.pid)
        return process

    monkeypatch.setattr(anyio, "open_process", noting)
    async with opened(scripted(version, "mute", start_timeout_s=1.0)) as client:
        for times in (1, 2):  # the second request starts it again
            with pytest.raises(ConnectionLostError, match="no answer within 1 seconds") as caught:
                await client.call_tool("plain")
            assert caught.value.not_executed
            assert len(started) == times
            assert not any(map(runs, started))


async def test_a_process_that_ends_at_once_is_told_from_one_of_another_version() -> None:
    async with opened(scripted("2025-11-25", "broken"), protocol="2025-11-25") as client:
        with pytest.raises(ConnectionLostError, match=r"did not start.*no licence"):
            await client.call_tool("plain")


async def test_the_first_call_of_a_process_may_take_longer_than_its_start(version: str) -> None:
    async with opened(scripted(version, start_timeout_s=5.0)) as client:
        with pytest.raises(ConnectionLostError):
            await client.call_tool("die")
        with pytest.raises(WaitTimeoutError):
            await client.call_tool("wait", timeout=6.0)


async def test_a_server_comes_back_by_itself(version: str, tmp_path: Path) -> None:
    program = tmp_path / "server"
    real = scripted(version)
    async with opened(StdioServer(str(program))) as client:
        with pytest.raises(ConnectionLostError, match="did not start"):
            await client.call_tool("plain")
        program.write_text(f"#!/bin/sh\nexec {real.command} {' '.join(real.args)}\n")
        program.chmod(0o700)
        assert text(await client.call_tool("plain")) == "1"


# ── what it writes ────────────────────────────────────────────────────────────────────────────────


async def test_rubbish_between_messages_is_passed_over(version: str) -> None:
    async with opened(scripted(version, "rubbish")) as client:
        assert text(await client.call_tool("ask_name")) == "Hello, Ada"


async def test_lines_of_stderr_are_in_the_log(version: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mcp_tasks_client")
    async with opened(scripted(version)) as client:
        with pytest.raises(ConnectionLostError):
            await client.call_tool("die")
    assert [record.levelname for record in caplog.records if "says: one" in record.getMessage()] == ["DEBUG"]


async def test_a_reply_that_is_too_large_fails_its_own_request_alone(version: str) -> None:
    policy: dict[str, Any] = {"receive": None, "task_preference": "auto", "task_ttl_s": 60.0}
    session = session_by_command(scripted(version), Callbacks(), PollPolicy(), SystemClock(), older=policy)
    session._native.process._max_bytes = 100_000
    with anyio.fail_after(LIMIT_S):
        fits = await session.call(ToolCall(name="large", arguments={"bytes": 90_000}), nothing)
        assert isinstance(fits, Returned)
        with pytest.raises(RemoteProtocolError, match="larger than 100000 bytes"):
            await session.call(ToolCall(name="large", arguments={"bytes": 1_000_000}), nothing)
        assert isinstance(await session.call(ToolCall(name="plain"), nothing), Returned)
        await session.aclose()


async def nothing() -> None:
    await anyio.lowlevel.checkpoint()


async def test_progress_goes_to_its_call_and_other_notifications_to_the_session() -> None:
    progress: list[JSONObject] = []
    others: list[JSONObject] = []
    session = StdioSession(scripted("2026-07-28"), tell=others.append)
    with anyio.fail_after(LIMIT_S):
        call = ToolCall(name="told", meta={"progressToken": "t"}, hear=progress.append)
        assert isinstance(await session.call(call, nothing), Returned)
        await session.aclose()
    assert [one["params"]["message"] for one in progress] == ["half"]
    assert [one["method"] for one in others] == ["notifications/tools/list_changed"]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_lines_are_split_wherever_the_bytes_are(size: int) -> None:
    long = b"x" * (HEAD_BYTES + 5000)
    data = b"one\n\n" + long + b"\ntwo\nthr" + b"ee"
    splitter, found = LineSplitter(HEAD_BYTES + 1), list[Line]()
    for start in range(0, len(data), size):
        found += splitter.feed(data[start : start + size])
    found += splitter.flush()
    assert [(line.content[:5], line.is_whole) for line in found] == [
        (b"one", True),
        (b"", True),
        (b"xxxxx", False),
        (b"two", True),
        (b"three", True),
    ]
    assert len(found[2].content) == HEAD_BYTES
