"""Real hosts of mcp 1.x and 2.x above a :class:`TasksTransport`, at real servers of 2025-11-25.

What every way in has in common, ``tests/crossings/test_doors.py`` shows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx2
import mcp
import pytest
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from mcp_tasks_client import MemoryJournal, PollPolicy, TasksClient, TasksTransport
from tests._forked import Program, make_command
from tests._legacy_installs import python_with_legacy_sdk
from tests._requirements import requirement
from tests._results import text
from tests.kit.person import Person
from tests.legacy_servers import LegacyProgram, LegacyServer, installed
from tests.real_server import RealServer

# On trio the SDK's own stream for this generation leaves generators of httpx2 unclosed, which warns.
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)]

LIMIT_S: Final = 30.0
HOST_ON_1: Final = Path(__file__).parents[2] / "servers" / "sdk_1_host.py"
QUICK: Final = PollPolicy(floor_s=0.01, jitter=0.0)
FOREVER: Final = {"duration_ms": 3_600_000}
NAME: Final = "What is your name?"


@pytest.mark.parametrize("hides", [False, True])
async def test_a_host_that_skips_tools_with_tasks_need_not_see_which_they_are(
    legacy_program: LegacyProgram, hides: bool
) -> None:
    command, *arguments = legacy_program.stdio()
    inner = stdio_client(StdioServerParameters(command=command, args=arguments))
    transport = TasksTransport(
        inner, endpoint="s", journal=MemoryJournal(), poll=QUICK, hide_task_support=hides
    )
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(transport) as client:
            listed = {tool.name: tool.execution for tool in (await client.list_tools()).tools}
            assert text(await client.call_tool("slow")) == "rested"
    says_so = listed["slow"] is not None and listed["slow"].task_support is not None
    assert says_so != hides


async def test_a_session_whose_id_cannot_be_seen_is_told_of(
    legacy_server: LegacyServer, caplog: pytest.LogCaptureFixture
) -> None:
    transport = TasksTransport(
        streamable_http_client(legacy_server.url), endpoint=legacy_server.url, journal=MemoryJournal()
    )
    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(transport) as client:
            assert text(await client.call_tool("slow", {"hint_ms": 50})) == "rested"
    (said,) = [record.message for record in caplog.records if "session_id=" in record.message]
    assert "cannot be seen" in said


async def test_a_call_ends_when_the_server_has_ended_the_session(legacy_server: LegacyServer) -> None:
    inner = streamable_http_client(legacy_server.url, terminate_on_close=False)
    transport = TasksTransport(inner, endpoint="s", journal=MemoryJournal(), poll=QUICK)
    before = len(legacy_server.witness("tasks/get"))

    async def end_it() -> None:
        while not (polls := legacy_server.witness("tasks/get")[before:]):
            await anyio.sleep(0.01)
        async with httpx2.AsyncClient(trust_env=False) as other:
            await other.delete(legacy_server.url, headers={"Mcp-Session-Id": polls[-1].session_id or ""})

    with anyio.fail_after(LIMIT_S):
        async with mcp.Client(transport, **Person().sdks) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(end_it)
            with pytest.raises(mcp.MCPError, match="ended the session"):
                await client.call_tool("slow", FOREVER)


class RefusingGateway(httpx2.AsyncHTTPTransport):
    """On the way to a server, which does not let the first answer to a question through."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[Any] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        said = json.loads(await request.aread() or b"{}")
        if "method" not in said and "result" in said:
            self.answered.append(said["id"])
            if len(self.answered) == 1:
                return httpx2.Response(503, request=request)
        return await super().handle_async_request(request)


async def test_an_answer_that_a_gateway_refuses_is_sent_once_more_and_nobody_is_asked_again(
    legacy_server: LegacyServer,
) -> None:
    host, gateway = Person(), RefusingGateway()
    async with httpx2.AsyncClient(transport=gateway, timeout=LIMIT_S) as http:
        inner: Any = streamable_http_client(legacy_server.url, http_client=http)
        transport = TasksTransport(inner, endpoint="s", journal=MemoryJournal(), poll=QUICK)
        with anyio.fail_after(LIMIT_S):
            async with mcp.Client(transport, **host.sdks) as client:
                assert text(await client.call_tool("asks")) == "Hello, Ada"
                assert text(await client.call_tool("slow")) == "rested"
    assert host.asked == [NAME]
    assert len(gateway.answered) == 2


# ── hosts on mcp 1.x, in an environment of their own ──────────────────────────────────────────


@pytest.fixture(scope="session")
def host_on_1() -> Path:
    return installed(python_with_legacy_sdk)


@pytest.fixture(params=[("http", "python"), ("stdio", "node")], ids="-".join)
def address(request: pytest.FixtureRequest) -> Any:
    """Each way and each server once: how a server is reached does not depend on which it is."""
    way, kind = request.param
    if way == "stdio":
        program: LegacyProgram = request.getfixturevalue(f"legacy_{kind}_program")
        return program.stdio()
    server: LegacyServer = request.getfixturevalue(f"legacy_{kind}_server")
    return server.url


async def play(host_on_1: Path, scenario: str, address: Any) -> Any:
    program = [HOST_ON_1, scenario, json.dumps(address), "asyncio"]
    with anyio.fail_after(LIMIT_S):
        done = await anyio.run_process(make_command(*program, interpreter=host_on_1), check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@requirement("2025:progress")
async def test_a_session_on_1_above_the_transport_needs_to_know_nothing_of_tasks(
    host_on_1: Path, address: Any
) -> None:
    brought = await play(host_on_1, "calls_tools", address)
    (code, _), said = brought.pop("failed")
    assert (code, said) == (-32603, "the tool said no")
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
            NAME,
            NAME,
            "model",
        ],
        "unanswered": [],
    }


async def test_a_call_that_a_session_on_1_takes_back_is_cancelled(host_on_1: Path, address: Any) -> None:
    assert await play(host_on_1, "cancels", address) == "cancelled"


async def test_a_result_of_our_client_becomes_one_of_the_hosts_own_sdk(
    host_on_1: Path, real_server: RealServer
) -> None:
    assert await play(host_on_1, "converts", real_server.url) == {"name": "Oslo", "inhabitants": 137_000}


async def test_what_a_killed_session_on_1_leaves_is_resumed_by_url(
    host_on_1: Path, legacy_server: LegacyServer, tmp_path: Path
) -> None:
    host, journal = Person(), tmp_path / "journal.sqlite3"
    where = json.dumps([legacy_server.url, str(journal)])
    program = [HOST_ON_1, "dies", where, "asyncio"]
    with anyio.fail_after(LIMIT_S):
        await anyio.to_thread.run_sync(run_and_kill, host_on_1, program)
        async with TasksClient(legacy_server.url, journal=journal, elicitation=host.elicit) as client:
            (handle,) = await client.resume()
            assert text(await handle.result()) == "Hello, Ada"
    assert host.asked == [NAME]


def run_and_kill(interpreter: Path, program: Sequence[object]) -> None:
    """Run a program until it says that it has reached its point; kill it there."""
    with Program(*program, interpreter=interpreter, text=True) as process:
        try:
            assert process.stdout.readline().strip() == "reached"
        finally:
            process.kill()
