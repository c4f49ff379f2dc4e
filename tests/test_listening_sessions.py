"""``subscriptions/listen`` of the native session, over sockets: streams that tell, split, stall and break."""

from __future__ import annotations

import gc
import gzip
import itertools
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from mcp_tasks_client.old.errors import (
    ConnectionLostError,
    CredentialRefusedError,
    RemoteProtocolError,
    SessionError,
)
from mcp_tasks_client.old.sessions import listening
from mcp_tasks_client.old.sessions.base import Session, TaskRef
from mcp_tasks_client.old.sessions.http import HttpSession
from mcp_tasks_client.old.testing import ScriptedSession
from mcp_tasks_client.old.wire import JSONObject, Task

from .test_http_sockets import (
    END,
    SSE,
    Connection,
    also_over_httpx2,
    anyio_backend,
    chunk,
    connected,
    head,
    is_lost_reply,
    over_a_given_client,
    serving,
    whole,
)

__all__ = ["anyio_backend"]

pytestmark = pytest.mark.anyio

IDS = ("task-0123456789", "task-9876543210")
REF = TaskRef(IDS[0])


class Ear:
    """What a listener was told, in order: what was agreed as a set, a snapshot as its ID and status."""

    def __init__(self) -> None:
        self.told: list[frozenset[str] | tuple[str, str]] = []
        self.tasks: list[Task] = []
        self.by: set[anyio.TaskInfo] = set()
        self._more = anyio.Event()

    def agreed(self, task_ids: frozenset[str]) -> None:
        self._tell(task_ids)

    def heard(self, task: Task) -> None:
        self.tasks.append(task)
        self._tell((task.task_id, task.status))

    def _tell(self, one: frozenset[str] | tuple[str, str]) -> None:
        self.told.append(one)
        self.by.add(anyio.get_current_task())
        self._more.set()
        self._more = anyio.Event()

    async def until(self, count: int) -> None:
        while len(self.told) < count:
            await self._more.wait()

    async def listen(self, session: Session, task_ids: Sequence[str] = IDS) -> None:
        await session.listen(task_ids, self.agreed, self.heard)


def rpc(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}, ensure_ascii=False).encode()


def event(message: bytes) -> bytes:
    return b"event: message\ndata: " + message + b"\n\n"


def notification(method: str, params: object) -> bytes:
    return event(rpc(method=method, params=params))


def ack(task_ids: object = IDS) -> bytes:
    return notification("notifications/subscriptions/acknowledged", {"notifications": {"taskIds": task_ids}})


def snapshot(status: str = "working", task_id: str = IDS[0], **fields: object) -> JSONObject:
    return {"taskId": task_id, "status": status, **fields}


def tells(status: str = "working", task_id: str = IDS[0], **fields: object) -> bytes:
    return notification("notifications/tasks", snapshot(status, task_id, **fields))


def ends(peer: Connection) -> bytes:
    return event(peer.result({"resultType": "complete"}))


async def heard(*stream: bytes, over: bool = True, **options: Any) -> list[Any]:
    """What a listener is told by a stream, which ends in order if it is to be over."""

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, *map(chunk, stream), *([chunk(ends(peer)), END] if over else []))
        await peer.closed_by_client()

    ear = Ear()
    async with serving(script) as server, connected(server, **options) as session:
        await ear.listen(session)
    return ear.told


async def failed(*sent: bytes, **options: Any) -> tuple[list[Any], SessionError]:
    """What a listener is told by a server that sends this and closes the connection, and how it fails."""

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(*sent)

    ear = Ear()
    async with serving(script) as server, connected(server, **options) as session:
        with pytest.raises(SessionError) as caught:
            await ear.listen(session)
    return ear.told, caught.value


# ── what is asked, and what is told ───────────────────────────────────────────────────────────
@also_over_httpx2
async def test_the_request_on_the_wire() -> None:
    seen: list[Connection] = []

    async def script(peer: Connection, number: int) -> None:
        seen.append(peer)
        await peer.request()
        await peer.send(SSE, chunk(ends(peer)), END)

    async with serving(script) as server, connected(server, headers={"X-Tenant": "t"}) as session:
        await Ear().listen(session)
    (peer,) = seen
    assert peer.body["method"] == "subscriptions/listen"
    assert peer.body["params"]["notifications"] == {"taskIds": list(IDS)}
    capabilities = peer.body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert "io.modelcontextprotocol/tasks" in capabilities["extensions"]
    lines = peer.head.decode("ascii").split("\r\n")
    assert {
        line
        for line in lines[1:]
        if not line.lower().startswith(("host", "user-agent", "content-length", "connection: keep-alive"))
    } == {
        "X-Tenant: t",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        "Accept-Encoding: identity",
        "MCP-Protocol-Version: 2026-07-28",
        "Mcp-Method: subscriptions/listen",
    }


@also_over_httpx2
async def test_what_is_told_is_passed_on_in_order_and_as_it_comes() -> None:
    go = anyio.Event()

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack()), chunk(tells("working")))
        await go.wait()
        result = {"content": [{"type": "text", "text": "done"}]}
        await peer.send(chunk(tells("completed", result=result) + tells("failed", IDS[1])))
        await peer.send(chunk(ends(peer)), END)
        await peer.closed_by_client()

    ear = Ear()
    async with serving(script) as server, connected(server) as session, anyio.create_task_group() as group:
        group.start_soon(ear.listen, session)
        await ear.until(2)
        assert ear.told == [frozenset(IDS), (IDS[0], "working")]
        go.set()
    assert ear.told[2:] == [(IDS[0], "completed"), (IDS[1], "failed")]
    assert ear.tasks[1].result == {"content": [{"type": "text", "text": "done"}]}


async def test_the_callbacks_run_in_the_task_that_listens() -> None:
    own: list[anyio.TaskInfo] = []

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack() + tells() + ends(peer)), END)

    ear = Ear()
    async with serving(script) as server, connected(server) as session:
        own.append(anyio.get_current_task())
        await ear.listen(session)
    assert ear.by == set(own)


async def test_the_older_name_is_heard_too_and_other_messages_are_ignored() -> None:
    told = await heard(
        b": hello\n\n",
        b"id: 0\ndata:\n\n",
        b"retry: 10\n\n",
        b"event: chat\ndata: no JSON\n\n",
        ack(),
        notification("notifications/tasks/status", snapshot()),
        notification("notifications/tools/list_changed", {}),
        notification("notifications/tasks", {"taskId": IDS[0]}),
        notification("notifications/tasks", "working"),
        event(rpc(method="notifications/tasks")),
        event(rpc(method="notifications/tasks", id=7, params=snapshot("failed"))),
        tells("completed"),
    )
    assert told == [frozenset(IDS), (IDS[0], "working"), (IDS[0], "completed")]


async def test_a_snapshot_before_the_acknowledgement_and_one_of_a_foreign_task_are_passed_on() -> None:
    told = await heard(tells(), ack(), tells("working", "nobody's"))
    assert told == [(IDS[0], "working"), frozenset(IDS), ("nobody's", "working")]


@pytest.mark.parametrize(
    ("params", "agreed"),
    [
        ({"notifications": {"taskIds": [*IDS]}}, {*IDS}),
        ({"notifications": {"taskIds": [IDS[1]]}}, {IDS[1]}),
        ({"notifications": {"taskIds": [IDS[1], "a stranger's"]}}, {IDS[1]}),
        ({"notifications": {"taskIds": []}}, set()),
        ({"notifications": {"taskIds": None}}, set()),
        ({"notifications": {"taskIds": IDS[0]}}, set()),
        ({"notifications": {"taskIds": [IDS[0], 1]}}, set()),
        ({"notifications": {"taskIds": [IDS[0], {}]}}, set()),
        ({"notifications": {"toolsListChanged": True}}, set()),
        ({"notifications": []}, set()),
        ({}, set()),
        ([], set()),
        (None, set()),
    ],
)
async def test_agreed_is_what_the_acknowledgement_names_of_what_was_asked(
    params: object, agreed: set[str]
) -> None:
    told = await heard(notification("notifications/subscriptions/acknowledged", params))
    assert told == [frozenset(agreed)]


async def test_only_the_first_acknowledgement_counts() -> None:
    assert await heard(ack([IDS[0]]), ack(), tells()) == [frozenset([IDS[0]]), (IDS[0], "working")]


async def test_a_stream_that_ends_in_order_without_an_acknowledgement_has_agreed_to_nothing() -> None:
    assert await heard() == [frozenset()]


async def test_a_reply_that_is_no_stream_ends_it_in_order() -> None:
    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(whole(peer.result({"resultType": "complete"})))

    ear = Ear()
    async with serving(script) as server, connected(server) as session:
        await ear.listen(session)
    assert ear.told == [frozenset()]


async def test_a_session_that_cannot_listen_agrees_to_nothing() -> None:
    ear = Ear()
    await ScriptedSession().listen(IDS, ear.agreed, ear.heard)
    assert ear.told == [frozenset()]


# ── refusals ──────────────────────────────────────────────────────────────────────────────────

REFUSAL = {"code": -32601, "message": f"Method not found for {IDS[0]} and {IDS[1]}"}


@pytest.mark.parametrize("request_id", [1, None])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_is_raised_as_that_of_any_other_request(stream: bool, request_id: int | None) -> None:
    message = rpc(id=request_id, error=REFUSAL)
    if stream:
        told, error = await failed(SSE, chunk(ack()), chunk(event(message)), END)
        assert told == [frozenset(IDS)]
    else:
        told, error = await failed(whole(message, status="404 Not Found"))
        assert told == []
        assert error.http_status == 404
    assert (error.code, error.retryable, error.not_executed) == (-32601, False, True)
    # Whoever knows a task's ID can act on it.
    assert "task-" in str(error)
    assert not any(one in str(error) for one in IDS)


async def test_an_event_stream_with_an_error_status_is_no_stream_to_follow() -> None:
    stream = head(None, status="503 Service Unavailable", kind="text/event-stream")
    told, error = await failed(stream, chunk(ack()), chunk(tells()), END)
    assert told == []
    assert (error.http_status, error.retryable) == (503, True)


async def test_a_refused_credential_is_told() -> None:
    _, error = await failed(whole(b"Who are you?", status="401 Unauthorized"))
    assert isinstance(error, CredentialRefusedError)


async def test_a_redirect_within_the_origin_is_followed() -> None:
    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(whole(b"", "location: /mcp/", status="308 Permanent Redirect"))
        await peer.request()
        assert peer.head.startswith(b"POST /mcp/ ")
        await peer.send(SSE, chunk(ack()), chunk(ends(peer)), END)

    ear = Ear()
    async with serving(script) as server, connected(server) as session:
        await ear.listen(session)
    assert ear.told == [frozenset(IDS)]


@pytest.mark.parametrize("encoding", ["gzip", "br"])
async def test_a_compressed_stream_is_refused(encoding: str) -> None:
    compressed = head(None, f"content-encoding: {encoding}", kind="text/event-stream")
    told, error = await failed(compressed, chunk(gzip.compress(ack())), END)
    assert told == []
    assert type(error) is RemoteProtocolError
    assert "Content-Encoding that was not asked for" in str(error)


@pytest.mark.parametrize(
    "message",
    [b"no JSON", b"[]", b"1", rpc(id=99, result={}), rpc(id=1, result=None), b'{"id": 1, "result": {}}'],
)
async def test_a_stream_with_something_else_in_it_cannot_be_used(message: bytes) -> None:
    told, error = await failed(SSE, chunk(ack()), chunk(event(message)), chunk(tells()), END)
    assert told == [frozenset(IDS)]
    assert type(error) is RemoteProtocolError


# ── wherever the bytes are split ──────────────────────────────────────────────────────────────


class Pieces(httpx.AsyncBaseTransport):
    """Answers with a stream in pieces, from memory."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async def body() -> AsyncIterator[bytes]:
            for piece in self._pieces:
                yield piece

        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body())


async def in_pieces(pieces: Sequence[bytes], **client_options: Any) -> list[Task]:
    ear = Ear()
    async with httpx.AsyncClient(transport=Pieces(pieces), **client_options) as client:
        session = HttpSession("http://server.example", http_client=client)
        await ear.listen(session)
    assert ear.told[0] == frozenset(IDS)
    return ear.tasks


WORDS = "größer 🐢\u2028\u0085\x0b"
DONE = event(rpc(id=1, result={}))
LONG_STREAM = (
    b"\xef\xbb\xbfdata:" + ack().partition(b"data: ")[2] + b": ping\n\n"
    # One event over two lines of data, the second in the middle of an object.
    + b'data: {"jsonrpc": "2.0", "method": "notifications/tasks", "params": {"taskId": "t",\ndata\n'
    + b'data: "status": "working"}}\nid: 7\n\n'
    + tells("working", statusMessage=WORDS)
    + tells("completed", statusMessage=WORDS * 2)
    + DONE
)  # fmt: skip


@over_a_given_client
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
async def test_a_stream_means_the_same_wherever_it_is_split(line_end: bytes) -> None:
    stream = LONG_STREAM.replace(b"\n", line_end)
    whole_ = await in_pieces([stream])
    assert [task.status_message for task in whole_] == [None, WORDS, WORDS * 2]
    # One may come without the blank line that ends it.
    assert await in_pieces([stream.rstrip(b"\r\n")]) == whole_
    assert await in_pieces([stream[i : i + 1] for i in range(len(stream))]) == whole_
    assert (
        await in_pieces([piece for i in range(len(stream)) for piece in (stream[i : i + 1], b"")]) == whole_
    )
    # Beside whatever means something to a stream, a line, JSON or UTF-8; a letter means as much as the next.
    marks = re.finditer(rb"[^a-z]", stream)
    for i in sorted({side for mark in marks for side in mark.span()} - {0, len(stream)}):
        assert await in_pieces([stream[:i], stream[i:]]) == whole_, f"split at {i}"


@also_over_httpx2
async def test_a_stream_may_come_byte_by_byte_over_a_socket() -> None:
    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE)
        for byte in (ack() + tells(statusMessage=WORDS)).replace(b"\n", b"\r\n") + ends(peer):
            await peer.send(chunk(bytes([byte])))
            await anyio.lowlevel.checkpoint()
        await peer.send(END)

    ear = Ear()
    async with serving(script) as server, connected(server) as session:
        await ear.listen(session)
    assert ear.told == [frozenset(IDS), (IDS[0], "working")]
    assert ear.tasks[0].status_message == WORDS


@over_a_given_client
async def test_what_a_hook_of_the_hosts_has_read_already_is_told_all_the_same() -> None:
    async def read(response: httpx.Response) -> None:
        await response.aread()

    tasks = await in_pieces([LONG_STREAM], event_hooks={"response": [read]})
    assert [task.status for task in tasks] == ["working", "working", "completed"]
    with pytest.raises(ConnectionLostError):
        await in_pieces([LONG_STREAM.removesuffix(DONE)], event_hooks={"response": [read]})


# ── broken connections ────────────────────────────────────────────────────────────────────────


async def test_a_stream_that_ends_without_the_result_is_lost() -> None:
    for stream in (
        [chunk(ack()), chunk(tells()), END],
        [chunk(ack()), chunk(tells())],
        [chunk(ack()), chunk(tells()), chunk(tells("completed")[:-9])],
        [chunk(ack()), chunk(tells()), chunk(tells("completed")[:-9]), END],
        [chunk(ack()), chunk(tells()), b"ffff\r\ndata: {"],
    ):
        told, error = await failed(SSE, *stream)
        assert told == [frozenset(IDS), (IDS[0], "working")]
        assert is_lost_reply(error)


@also_over_httpx2
async def test_a_connection_that_is_reset_is_lost() -> None:
    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack()))
        await ear.until(1)
        await peer.reset()

    ear = Ear()
    async with serving(script) as server, connected(server) as session:
        with pytest.raises(ConnectionLostError) as caught:
            await ear.listen(session)
    assert is_lost_reply(caught.value)


@also_over_httpx2
async def test_closing_the_session_ends_it_and_none_begins_after_it() -> None:
    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack()))
        await peer.closed_by_client()

    errors: list[SessionError] = []

    async def listen(session: HttpSession) -> None:
        with pytest.raises(SessionError) as caught:
            await ear.listen(session)
        errors.append(caught.value)

    ear = Ear()
    async with serving(script) as server, connected(server) as session:
        async with anyio.create_task_group() as group:
            group.start_soon(listen, session)
            await ear.until(1)
            await session.aclose()
        assert is_lost_reply(errors[0])
        with pytest.raises(ConnectionLostError, match="session is closed"):
            await ear.listen(session)
    assert server.connections == 1


# ── too much ──────────────────────────────────────────────────────────────────────────────────


async def test_a_stream_may_be_longer_than_any_one_event() -> None:
    pings = [b": " + b"x" * 600 + b"\n\n"] * 10
    told = await heard(ack(), *[tells(statusMessage="x" * 500)] * 20, *pings, max_response_bytes=1000)
    assert len(told) == 21


async def test_an_event_that_is_too_large_is_refused() -> None:
    piece = b"x" * 600
    for stream in (
        [b"data: ", piece, piece],
        [b": ", piece, piece],
        [b"data: " + piece + b"\n", b"data: " + piece + b"\n"],
        [b"data\n" * 1200],
        [tells(statusMessage="x" * 1200)],
    ):
        told, error = await failed(SSE, chunk(ack()), *map(chunk, stream), max_response_bytes=1000)
        assert told == [frozenset(IDS)]
        assert type(error) is RemoteProtocolError
        assert "raise max_response_bytes" in str(error)


async def test_an_endless_event_is_refused_before_it_ends() -> None:
    async def endless(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack()), chunk(b"data: "))
        while True:
            await peer.send(chunk(b"x" * 1000))

    ear = Ear()
    async with serving(endless) as server, connected(server, max_response_bytes=100_000) as session:
        with pytest.raises(RemoteProtocolError, match="raise max_response_bytes"):
            await ear.listen(session)


# ── silence ───────────────────────────────────────────────────────────────────────────────────
@also_over_httpx2
async def test_a_server_that_does_not_answer_is_given_up() -> None:
    async def nothing(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.closed_by_client()

    async def no_acknowledgement(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(tells()))
        await peer.closed_by_client()

    async def nothing_but_pings(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE)
        while True:
            await peer.send(chunk(b": ping\n\n"))
            await anyio.sleep(0.05)

    for script in (nothing, no_acknowledgement, nothing_but_pings):
        ear = Ear()
        async with serving(script) as server, connected(server, task_timeout_s=0.2) as session:
            with pytest.raises(ConnectionLostError, match="fell silent") as caught:
                await ear.listen(session)
        assert is_lost_reply(caught.value)
        assert frozenset() not in ear.told


async def test_a_stream_that_falls_silent_counts_as_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "LISTEN_SILENCE_S", 0.3)

    async def silent(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack()))
        await peer.closed_by_client()

    async def drips(peer: Connection, number: int) -> None:
        """Bytes of a line that never ends are no sign of life."""
        await peer.request()
        await peer.send(SSE, chunk(ack()), chunk(b"data: "))
        while True:
            await peer.send(chunk(b"x"))
            await anyio.sleep(0.05)

    for script in (silent, drips):
        ear = Ear()
        async with serving(script) as server, connected(server) as session:
            with pytest.raises(ConnectionLostError, match="fell silent") as caught:
                await ear.listen(session)
        assert is_lost_reply(caught.value)
        assert ear.told == [frozenset(IDS)]


async def test_a_ping_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "LISTEN_SILENCE_S", 1.0)

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack()))
        for ping in itertools.islice(itertools.cycle([b": ping\n", b"\n", b"id: 1\r", b"data:\n\n"]), 24):
            await peer.send(chunk(ping))
            await anyio.sleep(0.1)
        await peer.send(chunk(tells()), chunk(ends(peer)), END)

    ear = Ear()
    # Neither does the time for other requests end it.
    async with serving(script) as server, connected(server, task_timeout_s=1.0) as session:
        await ear.listen(session)
    assert ear.told == [frozenset(IDS), (IDS[0], "working")]


# ── beside other requests, and being cancelled ────────────────────────────────────────────────


async def test_listening_takes_no_place_of_a_poll_or_a_call() -> None:
    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            if peer.body["method"] == "subscriptions/listen":
                await peer.send(SSE, chunk(ack()))
                await peer.closed_by_client()
                return
            await peer.send(whole(peer.result()))

    ears = [Ear(), Ear(), Ear()]
    async with (
        serving(script) as server,
        connected(server, tasks_in_flight=1, calls_in_flight=1) as session,
        anyio.create_task_group() as group,
    ):
        for ear in ears:
            group.start_soon(ear.listen, session)
        for ear in ears:
            await ear.until(1)
        assert (await session.get(REF)).task_id == REF.task_id
        group.cancel_scope.cancel()


@also_over_httpx2
async def test_a_connection_is_used_again_after_a_stream_that_ended_in_order() -> None:
    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            if peer.body["method"] == "subscriptions/listen":
                await peer.send(SSE, chunk(ack()), chunk(ends(peer)))
                await anyio.wait_all_tasks_blocked()
                await peer.send(END)
            else:
                await peer.send(whole(peer.result()))

    async with serving(script) as server, connected(server) as session:
        await Ear().listen(session)
        await session.get(REF)
        await Ear().listen(session)
    assert server.connections == 1


@also_over_httpx2
@pytest.mark.parametrize("sent", [b"", SSE, SSE + chunk(ack()), SSE + chunk(ack()) + chunk(b"data: {")])
async def test_who_stops_listening_closes_the_connection(sent: bytes) -> None:
    arrived, closed = anyio.Event(), anyio.Event()

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(sent)
        arrived.set()
        await peer.closed_by_client()
        closed.set()

    ear = Ear()
    async with serving(script) as server, connected(server) as session:
        async with anyio.create_task_group() as group:
            group.start_soon(ear.listen, session)
            await arrived.wait()
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        await closed.wait()
        gc.collect()  # trio warns of each iteration that was dropped half-way, and warnings are errors here


async def test_who_stops_listening_while_the_server_floods_is_let_go() -> None:
    closed = anyio.Event()

    async def flood(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack()))
        try:
            while True:
                await peer.send(chunk(b": ping\n\n" * 100) + chunk(tells()))
        finally:
            closed.set()

    ear = Ear()
    async with serving(flood) as server, connected(server) as session:
        async with anyio.create_task_group() as group:
            group.start_soon(ear.listen, session)
            await ear.until(100)
            group.cancel_scope.cancel()
        await closed.wait()
        gc.collect()


async def test_an_error_of_a_callback_ends_it_and_closes_the_connection() -> None:
    closed = anyio.Event()

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack()), chunk(tells() * 3))
        await peer.closed_by_client()
        closed.set()

    def heard(task: Task) -> None:
        raise LookupError("of the callback")

    async with serving(script) as server, connected(server) as session:
        with pytest.raises(LookupError, match="of the callback"):
            await session.listen(IDS, Ear().agreed, heard)
        await closed.wait()
        gc.collect()


class Interrupted(httpx.AsyncBaseTransport):
    """Cancels a scope at the ``n``-th point where a stream waits, and counts what stays open."""

    def __init__(self, n: int, scope: anyio.CancelScope) -> None:
        self._left = n
        self._scope = scope
        self.open = 0

    async def wait(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()
        await anyio.lowlevel.checkpoint()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await self.wait()
        self.open += 1
        return httpx.Response(
            200, headers={"content-type": "text/event-stream"}, stream=InterruptedBody(self)
        )


class InterruptedBody(httpx.AsyncByteStream):
    def __init__(self, transport: Interrupted) -> None:
        self._transport = transport

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in (ack()[:20], ack()[20:], tells() * 2, event(rpc(id=1, result={}))):
            await self._transport.wait()
            yield piece
        await self._transport.wait()

    async def aclose(self) -> None:
        await self._transport.wait()
        self._transport.open -= 1


@over_a_given_client
async def test_cancelled_at_any_point_nothing_stays_open_and_nothing_is_told_afterwards() -> None:
    cancelled = 0
    for n in range(1, 100):
        ear = Ear()
        with anyio.CancelScope() as scope, anyio.fail_after(5):
            transport = Interrupted(n, scope)
            client = httpx.AsyncClient(transport=transport)
            await ear.listen(HttpSession("http://server.example", http_client=client))
        told = list(ear.told)
        with anyio.fail_after(5):
            await client.aclose()
        gc.collect()
        assert transport.open == 0
        assert told == ear.told == [frozenset(IDS), *[(IDS[0], "working")] * 2][: len(told)]
        cancelled += scope.cancelled_caught
        if not scope.cancel_called:
            break
    # The request and four pieces; from then on it has ended in order.
    assert cancelled == 5
    assert n > cancelled
