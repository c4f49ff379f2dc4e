"""The session over sockets: connections that break, stall, drip and flood; being cancelled and closed."""

from __future__ import annotations

import gc
import gzip
import json
import socket
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import anyio
import anyio.lowlevel
import httpx
import pytest

from mcp_tasks_client import Limits, TaskRef
from mcp_tasks_client.errors import ConnectionLostError, RemoteProtocolError, SessionError
from mcp_tasks_client.protocol.replies import Created
from mcp_tasks_client.sessions.http import body, replies, transport_aiohttp, transport_httpx
from mcp_tasks_client.sessions.http.http_session import HttpSession

from .scripted import send_call
from .sockets import (
    END,
    REF,
    SSE,
    TASK,
    Connection,
    Interrupted,
    also_over_httpx2,
    anyio_backend,
    chunk,
    connected,
    head,
    hurry,
    is_lost_reply,
    lost,
    over_a_given_client,
    serving,
    whole,
)

__all__ = ["anyio_backend"]

pytestmark = pytest.mark.anyio


@pytest.fixture
def patient_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the end of a stream may take longer to arrive than we wait for it.

    And a connection may be idle for longer than we keep it.
    """
    monkeypatch.setattr(body, "DRAIN_S", 8.0)
    monkeypatch.setattr(replies, "DRAIN_S", 8.0)
    for transport in (transport_aiohttp, transport_httpx):
        monkeypatch.setattr(transport, "KEEPALIVE_S", 60.0)


# ── the request ───────────────────────────────────────────────────────────────────────────────
@also_over_httpx2
async def test_the_request_on_the_wire() -> None:
    heads: list[bytes] = []

    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            heads.append(peer.head)
            await peer.send(whole(peer.result()))

    async with serving(script) as server, connected(server, headers={"X-Tenant": "t"}) as session:
        await session.get(TaskRef("tâche"))
    lines = heads[0].decode("ascii").split("\r\n")
    assert lines[0] == "POST /mcp HTTP/1.1"
    assert {
        line
        for line in lines[1:]
        if not line.lower().startswith(("host", "user-agent", "content-length", "connection: keep-alive"))
    } == {
        "X-Tenant: t",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        "Accept-Encoding: gzip, deflate",
        "MCP-Protocol-Version: 2026-07-28",
        "Mcp-Method: tasks/get",
        "Mcp-Name: =?base64?dMOiY2hl?=",
    }


@also_over_httpx2
async def test_a_server_that_is_not_there_has_executed_nothing() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        session = HttpSession(f"http://127.0.0.1:{unused.getsockname()[1]}/mcp")
        with anyio.fail_after(30), pytest.raises(ConnectionLostError) as caught:
            await session.get(REF)
        await session.aclose()
    assert caught.value.retryable
    assert caught.value.not_executed


# ── broken connections ────────────────────────────────────────────────────────────────────────
@also_over_httpx2
async def test_no_reply_at_all_is_a_lost_reply() -> None:
    async def close(peer: Connection, number: int) -> None:
        await peer.request()

    async def reset(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.reset()

    assert is_lost_reply(await lost(close))
    assert is_lost_reply(await lost(reset))


@also_over_httpx2
async def test_a_body_that_is_cut_off_is_a_lost_reply() -> None:
    async def json_cut(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(whole(peer.result())[:-9])

    async def chunks_cut(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(head(None), chunk(peer.result()[:-9]))

    async def events_cut(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(
            SSE, chunk(b'data: {"jsonrpc":"2.0","method":"notifications/tasks"}\n\n'), chunk(b"data: {")
        )

    for script in (json_cut, chunks_cut, events_cut):
        assert is_lost_reply(await lost(script))


async def test_a_stream_that_ends_in_order_but_without_the_response_is_a_lost_reply() -> None:
    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(b": ping\n\n"), END)
        await peer.closed_by_client()

    assert is_lost_reply(await lost(script))


async def test_a_broken_error_page_still_tells_its_status() -> None:
    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(head(1000, "retry-after: 30", status="429 Too Many Requests"), b"<html>")

    error = await lost(script)
    assert (error.http_status, error.retry_after_s, error.not_executed) == (429, 30.0, True)


# ── slow servers ──────────────────────────────────────────────────────────────────────────────
@also_over_httpx2
async def test_a_silent_server_is_given_up() -> None:
    requests = 0

    async def script(peer: Connection, number: int) -> None:
        nonlocal requests
        while await peer.request():
            requests += 1
            if requests == 1:
                await peer.send(whole(peer.result()))

    async with serving(script) as server, connected(server) as session:
        await hurry(session, 1.0)  # twice that in all, which a busy machine must not need
        with pytest.raises(SessionError) as caught:
            await session.get(REF)
    assert is_lost_reply(caught.value)
    assert "ReadTimeout" in str(caught.value) or "SocketTimeoutError" in str(caught.value)


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_server_that_drips_cannot_hold_a_poll_for_ever(kind: str) -> None:
    requests, closed = 0, anyio.Event()

    async def drip(peer: Connection, number: int) -> None:
        nonlocal requests
        while await peer.request():
            requests += 1
            if requests == 1:
                await peer.send(whole(peer.result()))
                continue
            await peer.send(head(None, kind=kind))
            try:
                while True:
                    await peer.send(chunk(b"\n"))
                    await anyio.sleep(0.01)
            finally:
                closed.set()

    async with serving(drip) as server, connected(server, tasks_in_flight=1) as session:
        await hurry(session, 0.5)
        # The second, where a busy machine has made a pause between two bytes.
        with pytest.raises(ConnectionLostError, match=r"no whole reply within 1 seconds|imeout") as caught:
            await session.get(REF)
        assert is_lost_reply(caught.value)
        await closed.wait()


async def test_a_call_may_take_as_long_as_it_shows_life() -> None:
    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            if peer.body["method"] != "tools/call":
                await peer.send(whole(peer.result()))
                continue
            await peer.send(SSE)
            for _ in range(10):
                await peer.send(chunk(b": still here\n\n"))
                await anyio.sleep(0.05)
            await peer.send(chunk(b"data: " + peer.result() + b"\n\n"), END)

    async with serving(script) as server, connected(server) as session:
        await session.tool("deploy")
        await hurry(session, 0.2)
        reply = await send_call(session)
    assert isinstance(reply, Created)


async def test_a_silent_call_is_given_up_as_of_unknown_outcome() -> None:
    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            if peer.body["method"] == "tools/call":
                await peer.closed_by_client()
                return
            await peer.send(whole(peer.result()))

    async with serving(script) as server, connected(server, call_read_timeout_s=0.1) as session:
        with pytest.raises(ConnectionLostError) as caught:
            await send_call(session)
    assert is_lost_reply(caught.value)


# ── too much ──────────────────────────────────────────────────────────────────────────────────


async def test_an_endless_body_is_refused() -> None:
    async def flood(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(head(None))
        while True:
            await peer.send(chunk(b" " * 1000))

    async def endless_line(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE)
        while True:
            await peer.send(chunk(b"data: " + b"x" * 1000))

    async def pings(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE)
        while True:
            await peer.send(chunk(b": ping\n\n") * 100)

    for script in (flood, endless_line, pings):
        error = await lost(script, max_response_bytes=100_000)
        assert type(error) is RemoteProtocolError
        assert "have the server answer with less" in str(error)


BOMB = gzip.compress(bytes(64 * 1024 * 1024))


async def test_a_bomb_is_refused_before_it_goes_off() -> None:
    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(whole(BOMB, "content-encoding: gzip"))
        await peer.closed_by_client()

    tracemalloc.start()
    try:
        error = await lost(script, max_response_bytes=1024 * 1024)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert type(error) is RemoteProtocolError
    assert "have the server answer with less" in str(error)
    assert peak < 8 * 1024 * 1024


async def test_a_compressed_body_of_which_nothing_comes_is_refused() -> None:
    """Empty blocks, and bytes after the end: both could go on for ever."""
    opening = zlib.compressobj(wbits=31)
    begun = opening.compress(b"") + opening.flush(zlib.Z_SYNC_FLUSH)

    async def empty_blocks(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(head(None, "content-encoding: gzip"), chunk(begun))
        while True:
            await peer.send(chunk(b"\x00\x00\x00\xff\xff" * 100))

    async def after_the_end(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(head(None, "content-encoding: gzip"), chunk(gzip.compress(b" ")))
        while True:
            await peer.send(chunk(b"x" * 500))

    for script in (empty_blocks, after_the_end):
        assert type(await lost(script, max_response_bytes=50_000)) is RemoteProtocolError


@also_over_httpx2
async def test_no_iteration_is_dropped_half_way() -> None:
    """trio warns of each asynchronous generator that is, and warnings are errors here."""

    async def too_large(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(whole(b" " * 100_000))

    async def damaged(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(head(None, "content-encoding: gzip"), chunk(b"no gzip"))
        await peer.closed_by_client()

    async def no_json(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(b"data: {\n\n"))
        await peer.closed_by_client()

    async def too_large_event(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(b"data: " + b"x" * 100_000))
        await peer.closed_by_client()

    async def more_to_come(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(b"data: " + peer.result() + b"\n\n"))
        await peer.closed_by_client()

    for script in (too_large, damaged, no_json, too_large_event, more_to_come):
        async with serving(script) as server, connected(server, max_response_bytes=50_000) as session:
            with suppress(SessionError):
                await session.get(REF)
            # The error, and with it the frames that hold the generators, is gone now.
            gc.collect()


@over_a_given_client
async def test_a_request_that_is_cancelled_while_its_body_leaves_drops_no_iteration() -> None:
    class Slow(httpx.AsyncBaseTransport):
        """Takes the body, and never gets to the end of it."""

        def __init__(self) -> None:
            self.sending = anyio.Event()

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            assert isinstance(request.stream, httpx.AsyncByteStream)
            async for _ in request.stream:
                self.sending.set()
                await anyio.sleep_forever()
            raise AssertionError("there was no body")

    transport = Slow()
    async with httpx.AsyncClient(transport=transport) as client:
        session = HttpSession("http://127.0.0.1/mcp", http_client=client)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.get, REF)
            with anyio.fail_after(30):
                await transport.sending.wait()
            tasks.cancel_scope.cancel()
        await session.aclose()
    gc.collect()


# ── connections are used again, or closed ─────────────────────────────────────────────────────
@also_over_httpx2
async def test_a_connection_is_used_again_after_any_reply_that_ended(patient_drain: None) -> None:
    async def script(peer: Connection, number: int) -> None:
        turns: Iterator[Callable[[], bytes]] = iter(
            [
                lambda: whole(peer.result()),
                lambda: SSE + chunk(b"data: " + peer.result() + b"\n\n") + END,
                lambda: whole(b"Moved", "location: /mcp/", status="307 Temporary Redirect"),
                lambda: whole(peer.result()),
                lambda: whole(b"Who are you?", status="401 Unauthorized"),
                lambda: whole(b"<html>", status="500 Internal Server Error"),
                lambda: whole(b"{"),
                lambda: whole(peer.result()),
            ]
        )
        while await peer.request():
            await peer.send(next(turns)())

    async with serving(script) as server, connected(server) as session:
        ended = []
        for _ in range(7):
            try:
                ended.append(type((await session.get(REF)).task).__name__)
            except SessionError as error:
                ended.append(type(error).__name__)
    assert ended == [
        "Task",
        "Task",
        "Task",
        "CredentialRefusedError",
        "SessionError",
        "RemoteProtocolError",
        "Task",
    ]
    assert server.connections == 1


async def test_a_stream_is_left_a_moment_to_end_after_the_response(patient_drain: None) -> None:
    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            await peer.send(SSE, chunk(b"data: " + peer.result() + b"\n\n"))
            await anyio.wait_all_tasks_blocked()
            await peer.send(END)

    async with serving(script) as server, connected(server) as session:
        await session.get(REF)
        await session.get(REF)
    assert server.connections == 1


@pytest.mark.parametrize("status", ["200 OK", "401 Unauthorized", "307 Temporary Redirect"])
async def test_a_server_that_does_not_end_its_reply_loses_the_connection(status: str) -> None:
    closed = anyio.Event()

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        if number > 1:
            await peer.send(whole(peer.result()))
            return
        event = b"data: " + peer.result() + b"\n\n"
        await peer.send(head(None, "location: /mcp/", status=status, kind="text/event-stream"), chunk(event))
        await peer.closed_by_client()
        closed.set()

    async with serving(script) as server, connected(server) as session:
        if status.startswith("401"):
            with pytest.raises(SessionError):
                await session.get(REF)
        else:
            assert (await session.get(REF)).task.task_id == REF.task_id
        await closed.wait()


async def test_a_connection_that_breaks_after_the_response_costs_nothing() -> None:
    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(b"data: " + peer.result() + b"\n\n"))
        await anyio.wait_all_tasks_blocked()
        await peer.reset()

    async with serving(script) as server, connected(server) as session:
        assert (await session.get(REF)).task.task_id == REF.task_id


@also_over_httpx2
async def test_our_own_client_allows_as_many_connections_as_the_session_does() -> None:
    """httpx's own limit is 100, and a request that waits for a connection is lost in the pool."""
    arrived, go = 0, anyio.Event()

    async def script(peer: Connection, number: int) -> None:
        nonlocal arrived
        while await peer.request():
            arrived += peer.body["method"] == "tools/call"
            if arrived == 110:
                go.set()
            if peer.body["method"] == "tools/call":
                await go.wait()
            await peer.send(whole(peer.result()))

    async with serving(script) as server, connected(server, calls_in_flight=110) as session:
        async with anyio.create_task_group() as group:
            for _ in range(110):
                group.start_soon(send_call, session)
        assert server.connections == 110 + 1, "one for what was asked before them"


@also_over_httpx2
@pytest.mark.parametrize("begun", [b"", SSE, SSE + chunk(b"data: {"), head(1000) + b"{"])
async def test_closing_the_session_ends_what_is_under_way(begun: bytes) -> None:
    arrived = anyio.Event()

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(begun)
        arrived.set()
        await peer.closed_by_client()

    errors: list[SessionError] = []

    async def poll(session: HttpSession) -> None:
        with pytest.raises(SessionError) as caught:
            await session.get(REF)
        errors.append(caught.value)

    async with serving(script) as server, connected(server) as session, anyio.create_task_group() as group:
        group.start_soon(poll, session)
        await arrived.wait()
        await anyio.wait_all_tasks_blocked()
        await session.aclose()
    assert is_lost_reply(errors[0])


# ── being cancelled ───────────────────────────────────────────────────────────────────────────
@also_over_httpx2
async def test_a_cancelled_request_closes_its_connection_and_frees_its_slot() -> None:
    arrived, closed = anyio.Event(), anyio.Event()

    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            if number > 1:
                await peer.send(whole(peer.result()))
                continue
            arrived.set()
            await peer.send(head(1000), b"{")
            await peer.closed_by_client()
            closed.set()

    async with serving(script) as server, connected(server, tasks_in_flight=1) as session:
        async with anyio.create_task_group() as group:
            group.start_soon(session.get, REF)
            await arrived.wait()
            group.cancel_scope.cancel()
        await closed.wait()
        assert (await session.get(REF)).task.task_id == REF.task_id


@over_a_given_client
async def test_a_reply_is_returned_although_closing_its_response_fails() -> None:
    class BrokenEnd(httpx.AsyncByteStream):
        def __init__(self, text: str) -> None:
            self._text = text

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield self._text.encode()

        async def aclose(self) -> None:
            raise OSError("close")

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            reply = {"jsonrpc": "2.0", "id": json.loads(request.content)["id"], "result": TASK}
            return httpx.Response(200, stream=BrokenEnd(json.dumps(reply)))

    async with httpx.AsyncClient(transport=Transport()) as client:
        session = HttpSession("http://server.example", http_client=client)
        with anyio.fail_after(30):
            assert (await session.get(REF)).task.task_id == REF.task_id


def interrupted(kind: str, n: int, scope: anyio.CancelScope) -> Interrupted:
    """A server that answers in two pieces, as JSON or as an event stream."""

    def respond(request: httpx.Request) -> list[bytes]:
        body = json.loads(request.content)
        values = {
            "server/discover": {"supportedVersions": ["2026-07-28"]},
            "tools/list": {"tools": [{"name": "deploy", "inputSchema": {}}]},
        }
        text = json.dumps({"jsonrpc": "2.0", "id": body["id"], "result": values.get(body["method"], TASK)})
        if kind == "text/event-stream":
            text = f": ping\n\ndata: {text}\n\n: bye\n\n"
        half = len(text) // 2
        return [text[:half].encode(), text[half:].encode()]

    return Interrupted(kind, respond, n, scope)


async def poll(session: HttpSession) -> object:
    return await session.get(REF)


async def first_call(session: HttpSession) -> object:
    return await send_call(session)


@over_a_given_client
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("request_", [poll, first_call])
async def test_cancelled_at_any_point_nothing_stays_open_and_no_slot_is_lost(
    kind: str, request_: Callable[[HttpSession], Awaitable[object]]
) -> None:
    cancelled = 0
    for n in range(1, 100):
        with anyio.CancelScope() as scope, anyio.fail_after(30):
            transport = interrupted(kind, n, scope)
            client = httpx.AsyncClient(transport=transport)
            session = HttpSession(
                "http://server.example",
                http_client=client,
                limits=Limits(tasks_in_flight=1, calls_in_flight=1),
            )
            await request_(session)
        with anyio.fail_after(30):
            assert transport.open == 0
            cancelled += scope.cancelled_caught
            await request_(session)
            await client.aclose()
        if not scope.cancel_called:
            break
    # Sending and two chunks; from then on the reply is there.
    assert cancelled >= 3
    assert n > cancelled


@over_a_given_client
async def test_a_reply_that_has_arrived_is_returned_although_its_reader_is_cancelled() -> None:
    """A task ID is never lost: the end of the stream is waited for under a shield."""
    with anyio.CancelScope() as scope, anyio.fail_after(30):
        transport = interrupted("text/event-stream", 0, scope)
        client = httpx.AsyncClient(transport=transport)
        session = HttpSession("http://server.example", http_client=client)
        await session.tool("deploy")
        # The request, the two halves of the body (the second ends the response), then the end.
        transport._left = 4
        reply = await send_call(session)
    assert scope.cancel_called
    assert isinstance(reply, Created)
    await client.aclose()
