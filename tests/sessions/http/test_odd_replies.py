"""Replies that gateways and servers have spoilt, and whose meaning is plain all the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import httpx2
import pytest

from mcp_tasks_client import (
    CredentialRefusedError,
    MemoryJournal,
    SessionError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClient,
    tasks_http_client,
)
from mcp_tasks_client.hosts.call_options import META_KEY
from mcp_tasks_client.sessions.oddities import note_oddity
from tests.kit.json_rpc_host import QUICK, JsonRpcHost
from tests.kit.ways import result_of

from .sockets import END, SSE, Connection, SocketServer, anyio_backend, chunk, head, serving, whole

__all__ = ["anyio_backend"]

pytestmark = [
    pytest.mark.anyio,
    # The SDK's transport leaves a body that it has read to the garbage collector, which trio tells.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]

TASK: Final = {"resultType": "task", "taskId": "task-0123456789", "status": "working", "pollIntervalMs": 1}
DONE: Final = {**TASK, "resultType": "complete", "status": "completed", "result": {"content": []}}

Call: TypeAlias = Callable[..., Awaitable[Any]]
Replies: TypeAlias = dict[str, Callable[[Connection], bytes]]


@asynccontextmanager
async def by_url(server: SocketServer) -> AsyncIterator[Call]:
    async with TasksClient(server.url, journal=MemoryJournal(), poll=QUICK) as client:

        async def call(key: str | None = None) -> Any:
            result = await client.call_tool("deploy", idempotency_key=key)
            return result.model_dump(by_alias=True, mode="json", exclude_none=True)

        yield call


@asynccontextmanager
async def beneath(server: SocketServer) -> AsyncIterator[Call]:
    transport = httpx2.AsyncHTTPTransport()
    async with tasks_http_client(transport=transport, journal=MemoryJournal(), poll=QUICK) as client:
        host = JsonRpcHost(client, url=server.url)

        async def call(key: str | None = None) -> Any:
            meta = {} if key is None else {META_KEY: key}
            return result_of(await host.call("deploy", meta=meta))

        yield call


in_each_way = pytest.mark.parametrize("way", [by_url, beneath])


def answering(replies: Replies) -> Callable[[Connection, int], Awaitable[None]]:
    """Answers these methods with these bytes, and then closes the connection."""

    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            method = peer.body["method"]
            if method in replies:
                await peer.send(replies[method](peer))
                return
            await peer.send(whole(peer.result(DONE if method == "tasks/get" else TASK)))

    return script


def message(peer: Connection, **fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": peer.body["id"], **fields}).encode()


def error_of(code: object) -> Callable[[Connection], bytes]:
    return lambda peer: whole(message(peer, error={"code": code, "message": "no"}))


@pytest.fixture(autouse=True)
def no_oddities_yet() -> None:
    note_oddity.cache_clear()


# ── integers ──────────────────────────────────────────────────────────────────────────────────


@in_each_way
async def test_an_error_code_that_comes_as_a_float_ends_the_polls(way: Any) -> None:
    async with serving(answering({"tasks/get": error_of(-32602.0)})) as server, way(server) as call:
        with pytest.raises((TaskNotFoundError, SessionError), match=r"(does )?not know"):
            await call()


@in_each_way
async def test_a_keyed_call_that_is_refused_by_a_code_as_a_float_has_not_run(way: Any) -> None:
    async with serving(answering({"tools/call": error_of(-32602.0)})) as server, way(server) as call:
        with pytest.raises((TaskFailedError, SessionError)) as caught:
            await call("key")
        assert getattr(caught.value, "code", None) == -32602


# ── replies under another ID, and bodies that break off after the reply ───────────────────────


def under(request_id: object, framing: bytes = END) -> Callable[[Connection], bytes]:
    def reply(peer: Connection) -> bytes:
        event = b"data: " + message(peer, id=request_id, result=TASK) + b"\n\n"
        return SSE + chunk(event) + framing

    return reply


def body_without_its_end(peer: Connection) -> bytes:
    return head(None) + chunk(message(peer, result=TASK))


def event_without_its_end(peer: Connection) -> bytes:
    return SSE + chunk(b"data: " + message(peer, result=TASK))


def body_shorter_than_said(peer: Connection) -> bytes:
    body = message(peer, result=TASK)
    return head(len(body) + 2) + body


@in_each_way
@pytest.mark.parametrize(
    ("spoilt", "oddity"),
    [
        (under("01"), "another JSON-RPC ID"),
        (under(None), "another JSON-RPC ID"),
        (under("foreign"), "another JSON-RPC ID"),
        (under(7_000, framing=b""), "another JSON-RPC ID"),
        (body_without_its_end, "breaks off"),
        (event_without_its_end, "breaks off"),
        (body_shorter_than_said, "breaks off"),
    ],
)
async def test_a_task_is_not_lost_where_its_reply_is_plain(
    way: Any, spoilt: Callable[[Connection], bytes], oddity: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(answering({"tools/call": spoilt})) as server, way(server) as call:
        assert (await call())["content"] == []
    assert len([line for line in caplog.messages if oddity in line]) == 1


@in_each_way
async def test_two_replies_under_other_ids_are_none(way: Any) -> None:
    def two(peer: Connection) -> bytes:
        events = [b"data: " + message(peer, id=i, result=TASK) + b"\n\n" for i in ("a", "b")]
        return SSE + chunk(b"".join(events)) + END

    async with serving(answering({"tools/call": two})) as server, way(server) as call:
        with pytest.raises(SessionError, match="lost"):
            await call()


@in_each_way
async def test_a_body_that_breaks_off_within_its_reply_is_lost(way: Any) -> None:
    def half(peer: Connection) -> bytes:
        return head(None) + chunk(message(peer, result=TASK)[:-1])

    async with serving(answering({"tools/call": half})) as server, way(server) as call:
        with pytest.raises(SessionError, match="lost"):
            await call()


# ── statuses ──────────────────────────────────────────────────────────────────────────────────


async def test_a_path_at_which_there_is_no_server_is_told() -> None:
    async def nothing(peer: Connection, number: int) -> None:
        while await peer.request():
            await peer.send(whole(b"Not Found", status="404 Not Found"))

    async with serving(nothing) as server, by_url(server) as call:
        with pytest.raises(
            SessionError, match=r"HTTP 404 .* Check the path of the URL, often /mcp\."
        ) as caught:
            await call()
    assert not isinstance(caught.value, CredentialRefusedError)
    assert "Try again later" not in str(caught.value)
