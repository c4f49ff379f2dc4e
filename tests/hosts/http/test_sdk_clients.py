"""Clients of the official SDK at real servers, with a transport of ours beneath or around their own.

What every way in has in common, ``tests/crossings/test_doors.py`` shows, on trio as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, get_args

import anyio
import anyio.to_thread
import httpx
import pytest
from mcp.shared.exceptions import MCPError

from mcp_tasks_client import MemoryJournal, TasksClient, tasks_http_client
from tests._forked import Program
from tests._requirements import requirement
from tests._results import text
from tests.kit.json_rpc_host import OLDER, JsonRpcHost
from tests.kit.person import Person
from tests.legacy_servers import LegacyServer
from tests.real_server import RealServer

from .sdk_client import LIMIT_S, Way, client_at, pending

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)]

WAYS: Final = get_args(Way)


# ── a server of 2026-07-28 ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("way", "asks"), [*((way, "transport") for way in WAYS), ("beneath, legacy", "host")]
)
async def test_a_client_gets_the_results_of_tasks_whatever_it_negotiated(
    real_server: RealServer, way: Way, asks: str
) -> None:
    person, journal = Person(), MemoryJournal()
    async with client_at(real_server.url, person, journal, way=way, asks=asks) as client:
        assert text(await client.call_tool("must_task", {"n": 7})) == "7"
        assert text(await client.call_tool("slow", {"seconds": 0.2})) == "rested"
        assert text(await client.call_tool("plain", {"x": 3})) == "3"
        assert (await client.call_tool("typed", {})).structured_content == {
            "name": "Bern",
            "inhabitants": 137_000,
        }
        assert text(await client.call_tool("ask_name", {})) == "Hello, Ada"
        assert text(await client.call_tool("ask_many", {})) == "XL and red: yes"
        assert text(await client.call_tool("ask_plainly", {})) == "2 kg of item:tea"
        assert text(await client.call_tool("ask_then_task", {})) == "tea, after a question"
        refused = await client.call_tool("fail_tool", {})
        assert (refused.is_error, text(refused)) == (True, "the tool said no")
        with pytest.raises(MCPError) as failed:
            await client.call_tool("fail_rpc", {})
        assert (failed.value.code, failed.value.data) == (-32050, {"retryAfter": 7})
    assert len(person.asked) == len(["name", "colour", "size", "sure", "amount", "name"])
    assert await pending(real_server.url, journal) == []


@pytest.mark.parametrize("way", WAYS)
async def test_calls_may_be_made_together(real_server: RealServer, way: Way) -> None:
    person, said = Person(), list[str]()
    async with client_at(real_server.url, person, way=way) as client, anyio.create_task_group() as calls:

        async def call(tool: str, arguments: dict[str, Any]) -> None:
            said.append(text(await client.call_tool(tool, arguments)))

        for _ in range(4):
            calls.start_soon(call, "slow", {"seconds": 0.2})
            calls.start_soon(call, "ask_name", {})
    assert sorted(said) == ["Hello, Ada"] * 4 + ["rested"] * 4
    assert len(person.asked) == 4


def run_until_asked(*arguments: str | Path) -> None:
    """Run a host until it is asked, and kill it there."""
    with Program("-m", "tests.hosts.http.host_process", *arguments, text=True) as process:
        try:
            assert process.stdout.readline() == "asked\n"
        finally:
            process.kill()


# ── a server of the older generation ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("asks", ["host", "transport"])
async def test_at_a_server_of_the_older_generation_too(legacy_server: LegacyServer, asks: str) -> None:
    person, journal = Person(), MemoryJournal()
    async with client_at(legacy_server.url, person, journal, asks=asks) as client:
        said = {
            tool: text(await client.call_tool(tool, {"hint_ms": 50}))
            for tool in ("plain", "slow", "asks", "samples")
        }
        assert said == {"plain": "plain", "slow": "rested", "asks": "Hello, Ada", "samples": "4"}
        assert text(await client.call_tool("asks_twice", {"hint_ms": 50})) == "Ada and Ada"
    assert len(person.asked) == 4
    assert await pending(legacy_server.url, journal) == []


@requirement("2025:any-stream")
async def test_calls_that_ask_on_the_stream_of_the_session_may_follow_one_another_at_once(
    legacy_server: LegacyServer,
) -> None:
    """Both servers allow one such stream a session. What they say while there is none, they do not repeat."""
    person = Person()
    async with client_at(legacy_server.url, person) as client:
        for _ in range(20):
            assert text(await client.call_tool("asks_aside", {"hint_ms": 5})) == "Hello, Ada"
    assert len(person.asked) == 20


async def test_calls_at_such_a_server_may_be_made_together(legacy_server: LegacyServer) -> None:
    person, said = Person(), list[str]()
    async with client_at(legacy_server.url, person) as client, anyio.create_task_group() as calls:

        async def call(tool: str, hint_ms: int) -> None:
            said.append(text(await client.call_tool(tool, {"hint_ms": hint_ms})))

        for hint_ms in (50, 100, 150):
            for tool in ("slow", "asks"):
                calls.start_soon(call, tool, hint_ms)
    assert sorted(said) == ["Hello, Ada"] * 3 + ["rested"] * 3
    assert len(person.asked) == 3


async def test_a_plain_tool_of_such_a_server_is_called_in_the_host_s_own_session(
    legacy_server: LegacyServer,
) -> None:
    async with client_at(legacy_server.url, Person()) as client:
        await client.call_tool("plain", {})
        (plain,) = [one for one in legacy_server.witness("tools/call") if one.params["name"] == "plain"][-1:]
        await client.call_tool("slow", {})
        slow = legacy_server.witness("tools/call")[-1]
    assert plain.session_id != slow.session_id


async def test_a_client_that_knows_nothing_but_json_rpc(legacy_server: LegacyServer) -> None:
    journal = MemoryJournal()
    http = tasks_http_client(library="httpx", journal=journal, trust_env=False, elicitation=Person().elicit)
    with anyio.fail_after(LIMIT_S):
        async with http:
            assert isinstance(http, httpx.AsyncClient)
            host = JsonRpcHost(http, url=legacy_server.url, version=OLDER)
            assert await host.text("slow", {"hint_ms": 50}) == "rested"
            assert await host.text("asks", {"hint_ms": 50}) == "Hello, Ada"


async def test_a_question_that_a_killed_host_has_left_at_such_a_server_is_asked_by_url(
    legacy_server: LegacyServer, tmp_path: Path
) -> None:
    journal, person = tmp_path / "journal.sqlite3", Person()
    with anyio.fail_after(LIMIT_S):
        await anyio.to_thread.run_sync(run_until_asked, legacy_server.url, journal, "asks")
        async with TasksClient(legacy_server.url, journal=journal, elicitation=person.elicit) as client:
            (handle,) = await client.resume()
            assert text(await handle.result()) == "Hello, Ada"
