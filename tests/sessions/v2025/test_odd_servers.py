"""Servers that know 2025-11-25 in their own way, as a client by URL meets them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import httpx
import pytest

from mcp_tasks_client import (
    CredentialRefusedError,
    Journal,
    MemoryJournal,
    MissingCapabilityError,
    PollPolicy,
    RemoteProtocolError,
    TaskNotFoundError,
    TasksClient,
    TasksHttpTransport,
)
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.sessions.oddities import note_oddity
from tests._requirements import requirement
from tests._results import text
from tests.kit.json_rpc_host import JsonRpcHost
from tests.kit.older_server import LIMIT_S, TASK, Arrived, OlderServer, Stream, refusal
from tests.kit.older_server import text as said

pytestmark = pytest.mark.anyio

URL: Final = "http://server.example/mcp"
QUICK: Final = PollPolicy(floor_s=0.001, ceiling_s=0.001, jitter=0.0)
NO_SUCH_TASK: Final = "Task not found"
EXTENSION: Final = "io.modelcontextprotocol/tasks"


@pytest.fixture
def wire() -> OlderServer:
    """A server whose task ends with the second poll."""
    wire = OlderServer()
    wire.task["pollInterval"] = 1
    wire.replies["server/discover"] = lambda arrived: refusal(-32600, "Unsupported protocol version", 400)
    wire.replies["tasks/get"] = lambda arrived: (
        wire.task | ({"status": "completed"} if len(wire.of("tasks/get")) > 1 else {})
    )
    wire.replies["tasks/result"] = lambda arrived: said("done")
    return wire


@asynccontextmanager
async def by_url(
    wire: OlderServer, journal: Journal | None = None, **options: Any
) -> AsyncIterator[TasksClient]:
    with anyio.fail_after(LIMIT_S):
        async with httpx.AsyncClient(transport=httpx.MockTransport(wire)) as http:
            options = {"journal": journal or MemoryJournal(), "poll": QUICK, **options}
            async with TasksClient(URL, http_client=http, **options) as client:
                yield client


def methods(wire: OlderServer) -> list[str]:
    return [one.method for one in wire.arrived]


def forever(arrived: Arrived) -> JSONObject:
    return {"taskId": TASK, "status": "working", "pollInterval": 1}


# ── a refusal of what the server does not know ────────────────────────────────────────────────


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_refuses_what_it_does_not_know_is_asked_once_by_initialize(
    wire: OlderServer, status: int
) -> None:
    wire.replies["server/discover"] = lambda arrived: httpx.Response(
        status, headers={"WWW-Authenticate": 'Bearer realm="mcp"'}
    )
    async with by_url(wire) as client:
        assert text(await client.call_tool("slow")) == "done"
        assert text(await client.call_tool("plain")) == "plain"
    assert methods(wire).count("server/discover") == 1
    assert methods(wire).count("initialize") == 1


async def test_such_a_server_serves_a_host_over_its_http_client_as_well(wire: OlderServer) -> None:
    wire.replies["server/discover"] = lambda arrived: httpx.Response(401)
    transport = TasksHttpTransport(httpx.MockTransport(wire), journal=MemoryJournal(), poll=QUICK)
    with anyio.fail_after(LIMIT_S):
        async with httpx.AsyncClient(transport=transport) as http:
            assert await JsonRpcHost(http, url=URL).text("slow") == "done"


@pytest.mark.parametrize(
    ("challenge", "tried"),
    [('Bearer realm="mcp", error="invalid_token"', 0), ('Bearer realm="mcp"', 1), ("", 1)],
)
async def test_a_credential_that_is_refused_stays_refused(
    wire: OlderServer, challenge: str, tried: int
) -> None:
    refused = httpx.Response(401, headers={"WWW-Authenticate": challenge} if challenge else {})
    wire.replies["server/discover"] = wire.replies["initialize"] = lambda arrived: refused
    async with by_url(wire) as client:
        with pytest.raises(CredentialRefusedError, match="server/discover") as caught:
            await client.call_tool("slow")
        assert caught.value.challenge == challenge
        assert methods(wire).count("initialize") == tried
        # Nothing was decided: the next call asks again.
        wire.replies["server/discover"] = lambda arrived: {"supportedVersions": ["2026-07-28"]}
        assert text(await client.call_tool("plain")) == "plain"


async def test_a_server_that_lets_everybody_initialize_has_still_refused_the_credential(
    wire: OlderServer,
) -> None:
    """Also where it lets everybody ``ping``, as gateways do."""
    wire.replies["server/discover"] = wire.replies["tools/list"] = lambda arrived: httpx.Response(401)
    async with by_url(wire) as client:
        with pytest.raises(CredentialRefusedError, match="server/discover"):
            await client.call_tool("slow")
        assert methods(wire)[-1] == "DELETE", "what was begun in vain is ended"
        # The credential is good now, and the server speaks 2026-07-28.
        wire.replies |= OlderServer().replies
        wire.replies["server/discover"] = lambda arrived: {"supportedVersions": ["2026-07-28"]}
        assert text(await client.call_tool("plain")) == "plain"
    assert methods(wire).count("initialize") == 1
    assert wire.of("tools/call")[-1].session_id is None


# ── a server that has tasks in the older version only ─────────────────────────────────────────


@pytest.fixture
def both(wire: OlderServer) -> OlderServer:
    """As mcp-go 1.0 beta: 2026-07-28 without the extension, core tasks at 2025-11-25."""
    wire.replies["server/discover"] = lambda arrived: {
        "supportedVersions": ["2026-07-28", "2025-11-25"],
        "capabilities": {"tools": {}},
    }
    older = wire.replies["tools/call"]
    wire.replies["tools/call"] = lambda arrived: (
        refusal(-32601, "tool requires task augmentation", 200, arrived.message["id"])
        if arrived.params["name"] == "slow" and "task" not in arrived.params
        else older(arrived)
    )
    return wire


async def test_a_tool_that_needs_the_older_version_says_how_to_call_it(both: OlderServer) -> None:
    async with by_url(both) as client:
        assert text(await client.call_tool("plain")) == "plain"
        with pytest.raises(MissingCapabilityError, match=r'TasksClient.*protocol="2025-11-25"') as caught:
            await client.call_tool("slow", idempotency_key="k")
        assert caught.value.not_executed
        assert await client.records() == []
    assert len(both.of("tools/call")) == 1


async def test_the_older_version_can_be_asked_for(both: OlderServer) -> None:
    async with by_url(both, protocol="2025-11-25") as client:
        assert text(await client.call_tool("slow")) == "done"
    assert "server/discover" not in methods(both)


async def test_a_tool_that_requires_a_task_is_called_where_there_is_the_extension(both: OlderServer) -> None:
    both.replies["server/discover"] = lambda arrived: {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}, "extensions": {EXTENSION: {}}},
    }
    both.replies["tools/call"] = lambda arrived: said("at once")
    async with by_url(both) as client:
        assert text(await client.call_tool("slow")) == "at once"


async def test_a_task_of_the_older_version_is_resumed_by_who_asks_for_that(both: OlderServer) -> None:
    journal = MemoryJournal()
    both.replies["tasks/get"] = forever
    async with by_url(both, journal, protocol="2025-11-25") as client:
        await client.start_tool("slow")
    async with by_url(both, journal) as client:
        (handle,) = await client.resume()
        with pytest.raises(RemoteProtocolError, match='protocol="2025-11-25"'):
            await handle.result()
    both.replies["tasks/get"] = lambda arrived: {"taskId": TASK, "status": "completed"}
    async with by_url(both, journal, protocol="2025-11-25") as client:
        (handle,) = await client.resume()
        assert text(await handle.result()) == "done"


def test_a_version_that_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match="protocol"):
        TasksClient(URL, protocol="2026-07-28")  # type: ignore[arg-type]


# ── a reference without its journal ───────────────────────────────────────────────────────────


async def test_a_task_of_an_unknown_session_is_not_found_and_nobody_is_told_to_call_again(
    wire: OlderServer,
) -> None:
    wire.replies["tasks/get"] = lambda arrived: (
        forever(arrived)
        if arrived.session_id == "s1"
        else refusal(-32602, NO_SUCH_TASK, 200, arrived.message["id"])
    )
    async with by_url(wire) as client:
        reference = (await client.start_tool("slow")).reference
    async with by_url(wire) as elsewhere:
        handle = await elsewhere.attach(reference)
        with pytest.raises(TaskNotFoundError, match="MCP session that is not known here") as caught:
            await handle.result()
    assert "new call" not in str(caught.value)


# ── the end of a session ──────────────────────────────────────────────────────────────────────


@requirement("2025:lost-session")
@pytest.mark.parametrize("denied", [1, 2])
async def test_a_session_is_over_once_it_is_denied_to_two_polls_in_a_row(
    wire: OlderServer, denied: int
) -> None:
    """One of several replicas, or a gateway, may deny it by mistake. No other session knows the task."""
    polls = itertools.count(1)

    def poll(arrived: Arrived) -> JSONObject | httpx.Response:
        if arrived.session_id != "s1":
            return refusal(-32602, NO_SUCH_TASK, 200, arrived.message["id"])
        number = next(polls)
        if 2 <= number < 2 + denied:
            return refusal(-32001, "Session not found", 404)
        return forever(arrived) | ({"status": "completed"} if number > 4 else {})

    wire.replies["tasks/get"] = poll
    async with by_url(wire) as client:
        if denied == 1:
            assert text(await client.call_tool("slow")) == "done"
        else:
            with pytest.raises(TaskNotFoundError, match="ended the session that the task was made in"):
                await client.call_tool("slow")


@pytest.mark.parametrize("tool", ["plain", "slow"])
async def test_a_session_in_which_nothing_lives_is_ended(wire: OlderServer, tool: str) -> None:
    async with by_url(wire) as client:
        await client.call_tool(tool)
        assert not wire.of("DELETE")
    assert [one.session_id for one in wire.of("DELETE")] == ["s1"]
    assert methods(wire)[-1] == "DELETE"


async def test_a_session_whose_server_ends_none_is_left(wire: OlderServer) -> None:
    wire.replies["DELETE"] = lambda arrived: httpx.Response(405)
    async with by_url(wire) as client:
        await client.call_tool("plain")
    assert len(wire.of("DELETE")) == 1


async def test_a_server_that_does_not_answer_holds_nobody_up(wire: OlderServer) -> None:
    class Silent(OlderServer):
        async def __call__(self, request: httpx.Request) -> httpx.Response:
            if request.method == "DELETE":
                self.asked = True
                await anyio.sleep_forever()
            return await super().__call__(request)

    silent = Silent()
    silent.replies |= wire.replies
    async with by_url(silent) as client:
        await client.call_tool("plain")
    assert silent.asked


async def test_a_session_is_left_to_whoever_needs_it_for_an_unfinished_task(wire: OlderServer) -> None:
    wire.replies["tasks/get"] = forever
    journal = MemoryJournal()
    async with by_url(wire, journal) as client:
        await client.start_tool("slow")
    assert not wire.of("DELETE")
    async with by_url(wire, journal) as client:
        (handle,) = await client.resume()
        wire.replies["tasks/get"] = lambda arrived: {"taskId": TASK, "status": "completed"}
        assert text(await handle.result()) == "done"
    assert {one.session_id for one in wire.of("tasks/get")} == {"s1"}


async def test_a_session_in_which_a_task_was_found_is_left_to_the_next_process(wire: OlderServer) -> None:
    """As at servers that know their tasks in every session. The journal names the one where it was found."""
    wire.replies["tasks/get"] = forever
    async with by_url(wire) as client:
        handle = await client.attach(TASK)
        assert (await handle.refresh()).status == "working"
    assert not wire.of("DELETE")


async def test_a_session_is_left_if_the_reply_to_a_call_was_lost(wire: OlderServer) -> None:
    wire.replies["tools/call"] = lambda arrived: httpx.ReadError("broken")
    async with by_url(wire) as client:
        with pytest.raises(Exception, match="lost"):
            await client.call_tool("plain")
    assert not wire.of("DELETE")


async def test_a_session_is_left_while_the_end_of_its_task_is_not_journaled(
    wire: OlderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process asks for the result in that session."""
    journal = MemoryJournal()
    async with by_url(wire, journal) as client:
        handle = await client.start_tool("slow")

        async def fail(*args: Any, **options: Any) -> Any:
            raise OSError("disk full")

        monkeypatch.setattr(MemoryJournal, "save", fail)
        with pytest.raises(Exception, match="disk full"):
            await handle.result()
    assert wire.of("tasks/result")
    assert not wire.of("DELETE")
    monkeypatch.undo()
    async with by_url(wire, journal) as client:
        (handle,) = await client.resume()
        assert text(await handle.result()) == "done"


async def test_over_a_host_s_http_client_a_session_of_ours_is_ended_as_well(wire: OlderServer) -> None:
    transport = TasksHttpTransport(httpx.MockTransport(wire), journal=MemoryJournal(), poll=QUICK)
    with anyio.fail_after(LIMIT_S):
        async with httpx.AsyncClient(transport=transport, headers={"Authorization": "Bearer a"}) as http:
            assert await JsonRpcHost(http, url=URL).text("slow") == "done"
    (ended,) = wire.of("DELETE")
    assert (ended.session_id, ended.headers["authorization"]) == ("s1", "Bearer a")


# ── replies under other IDs ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reply_id", ["01", None, "foreign"])
async def test_the_only_reply_of_a_stream_is_its_own_whatever_its_id(
    wire: OlderServer, reply_id: object, caplog: pytest.LogCaptureFixture
) -> None:
    def reply_under_another(arrived: Arrived) -> Stream:
        stream = Stream(reply_id)
        stream.reply({"task": dict(wire.task)})
        return stream

    note_oddity.cache_clear()
    wire.replies["tools/call"] = reply_under_another
    async with by_url(wire) as client:
        assert text(await client.call_tool("slow")) == "done"
    assert len([line for line in caplog.messages if "another JSON-RPC ID" in line]) == 1
