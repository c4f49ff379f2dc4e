"""What is final by URL is final where the SDK sends, though the SDK hides it; and the record is found."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import fastmcp
import mcp
import pydantic
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from mcp_tasks_client import (
    Limits,
    MemoryJournal,
    RemoteProtocolError,
    SessionError,
    TasksClient,
    TasksClientError,
    TasksExtension,
    TasksTransport,
    tasks_http_client,
)
from mcp_tasks_client.protocol.replies import RpcError
from mcp_tasks_client.sessions import request_errors
from tests.hosts.relay._host_session import connected
from tests.kit.current_server import (
    DONE,
    LIMIT_S,
    QUICK,
    RESULT,
    WORKING,
    CurrentServer,
    Http,
    at_loopback,
)
from tests.kit.older_server import OlderServer

pytestmark = [
    pytest.mark.anyio,
    # On trio the SDK leaves generators of httpx2 to the garbage collector.
    pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True),
]

JSON: Final = ["Content-Type: application/json"]
EVENTS: Final = ["Content-Type: text/event-stream"]
UNREAD: Final = {
    "half a surrogate pair": '"\\ud800"',
    "half a surrogate pair before another escape": '"\\ud800\\u0041"',
    "5,000 digits": "9" * 5000,
    "300 levels": "[" * 300 + "]" * 300,
}
"""Values in JSON that our reader takes, and that the SDK's does not."""


def raw(text: str, *, events: bool = False) -> Http:
    """A reply of the server's, as JSON that no encoder would write."""
    body = f'{{"jsonrpc": "2.0", "id": 0, "result": {text}}}'
    return (
        Http("200 OK", f"data: {body}\n\n".encode(), EVENTS)
        if events
        else Http("200 OK", body.encode(), JSON)
    )


def snapshot(value: str) -> str:
    """A completed task, as JSON, in whose result a value stands as it is."""
    text = json.dumps({**DONE, "resultType": "complete", "result": {**RESULT, "_meta": {"odd": 0}}})
    return text.replace('"odd": 0', f'"odd": {value}')


@asynccontextmanager
async def calling(way: str, url: str, journal: MemoryJournal) -> AsyncIterator[Any]:
    """The ``call_tool`` of a host."""
    given: Any = {"journal": journal, "poll": QUICK}
    client: Any
    if way == "TasksClient(url)":
        client = TasksClient(url, **given)
    elif way == "mcp.Client":
        client = mcp.Client(url, extensions=[TasksExtension(**given)])
    elif way == "fastmcp.Client":
        client = fastmcp.Client(url, extensions=[TasksExtension(**given)])
    elif way == "TasksTransport":
        client = mcp.Client(TasksTransport(streamable_http_client(url), endpoint=url, **given))
    elif way == "TasksClient(client)":
        async with mcp.Client(url) as theirs, TasksClient(theirs, **given) as ours:
            yield ours.call_tool
        return
    else:
        http_client = tasks_http_client(trust_env=False, **given)
        async with http_client, mcp.Client(streamable_http_client(url, http_client=http_client)) as above:
            yield above.call_tool
        return
    async with client:
        yield client.call_tool


OVER_SDK: Final = ("mcp.Client", "fastmcp.Client", "TasksClient(client)", "TasksTransport")
WAYS: Final = ("TasksClient(url)", "tasks_http_client", *OVER_SDK)


async def resume(url: str, journal: MemoryJournal) -> list[Any]:
    """What is left, as a client by URL gets it: results, or errors."""
    ends: list[Any] = []
    async with TasksClient(url, journal=journal, poll=QUICK) as client:
        for handle in await client.resume():
            try:
                ends.append(await handle.result())
            except TasksClientError as error:
                ends.append(error)
    return ends


# ── JSON that only the SDK's parser refuses ───────────────────────────────────────────────────────


@pytest.mark.parametrize("events", [False, True], ids=["JSON", "events"])
@pytest.mark.parametrize("value", UNREAD.values(), ids=UNREAD)
@pytest.mark.parametrize("way", OVER_SDK)
async def test_a_result_that_the_sdk_cannot_read_is_an_end_the_second_time_and_found_by_url(
    way: str, value: str, events: bool
) -> None:
    server, journal = CurrentServer(gets=[raw(snapshot(value), events=events)]), MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            async with calling(way, url, journal) as call_tool:
                with pytest.raises((RemoteProtocolError, MCPError)) as caught:
                    await call_tool("tool", {})
            assert "the SDK of the host's session cannot read" in str(caught.value)
            assert server.counts["tasks/get"] == 2
            server.replies["tasks/get"] = raw(snapshot(value))
            (found,) = await resume(url, journal)
    if isinstance(found, RemoteProtocolError):
        assert "nested" in str(found), "too deep for a schema, and said so at once"
    else:
        assert found.structured_content == RESULT["structuredContent"]
    assert server.counts["tools/call"] == 1


@pytest.mark.parametrize("way", OVER_SDK)
async def test_an_unreadable_text_between_others_is_survived(way: str) -> None:
    unread, passing = raw(snapshot(UNREAD["5,000 digits"])), Http("503 Service Unavailable")
    server = CurrentServer(gets=[unread, WORKING, unread, passing, unread, DONE])
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, calling(way, url, MemoryJournal()) as call_tool:
            assert (await call_tool("tool", {})).content[0].text == "done"


# ── a status, a redirect ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", WAYS)
async def test_a_redirect_to_another_server_is_an_end_at_once(way: str) -> None:
    elsewhere = Http("307 Temporary Redirect", headers=["Location: http://127.0.0.1:9/mcp"])
    server, journal = CurrentServer(gets=[elsewhere]), MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            async with calling(way, url, journal) as call_tool:
                with pytest.raises(
                    (RemoteProtocolError, MCPError), match=r"redirected.*http://127\.0\.0\.1:9"
                ):
                    await call_tool("tool", {})
            assert server.counts["tasks/get"] == 1
            server.replies["tasks/get"] = DONE
            assert len(await resume(url, journal)) == 1


@pytest.mark.parametrize("status", ["400 Bad Request", "410 Gone", "403 Forbidden"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_status_that_is_final_by_url_is_final_over_the_sdk_after_a_while(
    way: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_errors, "_LONG_ENOUGH", (5, 0.02))
    server, journal = CurrentServer(gets=[Http(status)]), MemoryJournal()
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url:
            async with calling(way, url, journal) as call_tool:
                with pytest.raises((SessionError, MCPError)) as caught:
                    await call_tool("tool", {})
            polls = server.counts["tasks/get"]
            server.replies["tasks/get"] = DONE
            assert len(await resume(url, journal)) == 1
    if way in OVER_SDK:
        assert polls >= 5
        assert "Server returned an error response" in str(caught.value)
        assert "TasksClient(url).resume()" in str(caught.value)
    else:
        assert (polls, status[:3] in str(caught.value)) == (1, True)
    assert server.counts["tools/call"] == 1


@pytest.mark.parametrize("way", OVER_SDK)
async def test_a_server_that_is_away_for_less_than_that_is_waited_for(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, html = Http("503 Service Unavailable"), Http("200 OK", b"<html>", ["Content-Type: text/html"])
    server = CurrentServer(gets=[*[away] * 20, *[html] * 5, Http("404 Not Found"), DONE])
    with anyio.fail_after(LIMIT_S):
        async with at_loopback(server) as url, calling(way, url, MemoryJournal()) as call_tool:
            assert (await call_tool("tool", {})).content[0].text == "done"


# ── at 2025-11-25, over the streams of a transport ────────────────────────────────────────────────


def refusal_of_pydantic(value: str) -> pydantic.ValidationError:
    """What the SDK catches as it reads a value in JSON."""
    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(Any).validate_json(value)
    return caught.value


@pytest.mark.parametrize("value", UNREAD.values(), ids=UNREAD)
@pytest.mark.parametrize("sdk", ["2.x", "1.x", "1.x, and it says nothing"])
async def test_an_older_result_that_the_sdk_cannot_read_is_an_end(
    sdk: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_errors, "_LONG_ENOUGH", (5, 0.02))
    limits = Limits(task_timeout_s=LIMIT_S if sdk == "2.x" else 0.3)
    monkeypatch.setattr("mcp_tasks_client.hosts.relay.tasks_transport.make_limits", lambda policy: limits)
    server = OlderServer()
    server.task |= {"status": "completed", "pollInterval": 1}

    def unread(arrived: Any) -> RpcError | None:
        if sdk == "2.x":
            return RpcError(-32700, f"Failed to parse JSON response: {refusal_of_pydantic(value)}", None)
        if sdk == "1.x":
            tasks.start_soon(server.say, refusal_of_pydantic(value))
        return None

    server.replies["tasks/result"] = unread
    async with anyio.create_task_group() as tasks, connected(server, poll=QUICK) as session:
        reply = await session.ask("tools/call", {"name": "slow", "arguments": {}})
    assert len(server.of("tasks/get")) == (5 if "nothing" in sdk else 2)
    assert ("none came within" if "nothing" in sdk else "SDK of the host's session") in reply.message
    assert len(server.of("tools/call")) == 1
