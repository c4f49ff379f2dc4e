"""``subscriptions/listen``: streams that tell, stall and break, and for how long one is kept open."""

from __future__ import annotations

import gc
import gzip
import itertools
import json
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from mcp_tasks_client import TaskRef
from mcp_tasks_client.errors import (
    ConnectionLostError,
    CredentialRefusedError,
    RemoteProtocolError,
    SessionError,
)
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.sessions.http import body, replies, subscription
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.sessions.http.subscription import DeclinedError, Subscription, keep_subscribed

from ..._observed import Observed
from .sockets import (
    END,
    REF,
    SSE,
    Connection,
    Interrupted,
    also_over_httpx2,
    anyio_backend,
    chunk,
    connected,
    head,
    hurry,
    is_lost_reply,
    over_a_given_client,
    serving,
    whole,
)

__all__ = ["anyio_backend"]

pytestmark = pytest.mark.anyio

IDS = ("task-0123456789", "task-9876543210")


def observing(*task_ids: str) -> Observed:
    return Observed(*map(TaskRef, task_ids))


async def listen(session: HttpSession, observed: Observed) -> None:
    await session._listen(Subscription(frozenset(observed.kept), observed))


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


async def read(*stream: bytes, **options: Any) -> list[tuple[str, str]]:
    """What a stream delivers that ends in order."""

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, *map(chunk, stream), chunk(ends(peer)), END)
        await peer.closed_by_client()

    observed = observing(*IDS)
    async with serving(script) as server, connected(server, **options) as session:
        await listen(session, observed)
    return observed.seen


async def fail(*sent: bytes, **options: Any) -> tuple[list[tuple[str, str]], SessionError]:
    """What a server delivers that sends this and closes the connection, and how the stream fails."""

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(*sent)

    observed = observing(*IDS)
    async with serving(script) as server, connected(server, **options) as session:
        with pytest.raises(SessionError) as caught:
            await listen(session, observed)
    return observed.seen, caught.value


# ── one stream ────────────────────────────────────────────────────────────────────────────────


@also_over_httpx2
async def test_the_request_on_the_wire() -> None:
    seen: list[Connection] = []

    async def script(peer: Connection, number: int) -> None:
        seen.append(peer)
        await peer.request()
        await peer.send(SSE, chunk(ack() + ends(peer)), END)

    async with serving(script) as server, connected(server, headers={"X-Tenant": "t"}) as session:
        await listen(session, observing(*IDS))
    (peer,) = seen
    assert peer.body["method"] == "subscriptions/listen"
    assert peer.body["params"]["notifications"] == {"taskIds": list(IDS)}
    capabilities = peer.body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert "io.modelcontextprotocol/tasks" in capabilities["extensions"]
    lines = peer.head.decode("ascii").split("\r\n")[1:]
    own = ("host", "user-agent", "content-length", "connection: keep-alive")
    assert {line for line in lines if not line.lower().startswith(own)} == {
        "X-Tenant: t",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        "Accept-Encoding: identity",
        "MCP-Protocol-Version: 2026-07-28",
        "Mcp-Method: subscriptions/listen",
    }


@also_over_httpx2
async def test_snapshots_are_delivered_in_order_and_as_they_come() -> None:
    go = anyio.Event()

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack()), chunk(tells("working")))
        await go.wait()
        await peer.send(chunk(tells("completed", requestState="s") + tells("failed", IDS[1])))
        await peer.send(chunk(ends(peer)), END)
        await peer.closed_by_client()

    observed = observing(*IDS)
    async with serving(script) as server, connected(server) as session, anyio.create_task_group() as group:
        group.start_soon(listen, session, observed)
        await observed.until(1)
        assert observed.seen == [(IDS[0], "working")]
        go.set()
    assert observed.seen[1:] == [(IDS[0], "completed"), (IDS[1], "failed")]
    assert [one.session_data for one in observed.delivered] == [None, "s", None]


async def test_both_names_of_the_notification_are_read_and_other_messages_are_ignored() -> None:
    assert await read(
        b": hello\n\n",
        b"id: 0\ndata:\n\n",
        b"event: chat\ndata: no JSON\n\n",
        tells("working", "before the acknowledgement, and nobody's"),
        ack(),
        notification("notifications/tasks/status", snapshot()),
        notification("notifications/tools/list_changed", {}),
        notification("notifications/tasks", {"taskId": IDS[0]}),
        notification("notifications/tasks", "working"),
        event(rpc(method="notifications/tasks")),
        event(rpc(method="notifications/tasks", id=7, params=snapshot("failed"))),
        ack([]),  # only the first counts
        tells("completed"),
    ) == [
        ("before the acknowledgement, and nobody's", "working"),
        (IDS[0], "working"),
        (IDS[0], "completed"),
    ]


@pytest.mark.parametrize(
    "params",
    [
        {"notifications": {"taskIds": []}},
        {"notifications": {"taskIds": ["a stranger's"]}},
        {"notifications": {"taskIds": None}},
        {"notifications": {"taskIds": IDS[0]}},
        {"notifications": {"taskIds": [IDS[0], 1]}},
        {"notifications": {"toolsListChanged": True}},
        {"notifications": []},
        {},
        [],
        None,
    ],
)
def test_an_acknowledgement_without_any_of_our_tasks_declines_the_subscription(params: object) -> None:
    message = {"method": "notifications/subscriptions/acknowledged", "params": params}
    with pytest.raises(DeclinedError):
        Subscription(frozenset(IDS), observing()).take(message)


def test_an_acknowledgement_of_some_of_our_tasks_is_one() -> None:
    one = Subscription(frozenset(IDS), observing())
    params = {"notifications": {"taskIds": [IDS[1], "a stranger's"]}}
    one.take({"method": "notifications/subscriptions/acknowledged", "params": params})
    assert one.acknowledged


async def test_a_reply_without_an_acknowledgement_before_it_declines_the_subscription() -> None:
    async def stream(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(tells()), chunk(ends(peer)), END)

    async def plain(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(whole(peer.result({"resultType": "complete"})))

    for script in (stream, plain):
        async with serving(script) as server, connected(server) as session:
            with pytest.raises(DeclinedError):
                await listen(session, observing(*IDS))


async def test_a_server_that_declines_is_hung_up_on() -> None:
    closed = anyio.Event()

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack([])))
        await peer.closed_by_client()
        closed.set()

    async with serving(script) as server, connected(server) as session:
        with pytest.raises(DeclinedError):
            await listen(session, observing(*IDS))
        await closed.wait()
        gc.collect()


REFUSAL = {"code": -32601, "message": f"Method not found for {IDS[0]} and {IDS[1]}"}


@pytest.mark.parametrize("request_id", [1, None])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_is_raised_as_that_of_any_other_request(stream: bool, request_id: int | None) -> None:
    message = rpc(id=request_id, error=REFUSAL)
    if stream:
        _, error = await fail(SSE, chunk(ack()), chunk(event(message)), END)
    else:
        _, error = await fail(whole(message, status="404 Not Found"))
        assert error.http_status == 404
    assert (error.code, error.retryable, error.not_executed) == (-32601, False, True)
    assert not any(one in str(error) for one in IDS), "whoever knows a task's ID can act on it"


async def test_what_is_no_stream_of_messages_is_refused() -> None:
    stream = head(None, status="503 Service Unavailable", kind="text/event-stream")
    seen, error = await fail(stream, chunk(ack()), chunk(tells()), END)
    assert (seen, error.http_status, error.retryable) == ([], 503, True)
    _, error = await fail(whole(b"Who are you?", status="401 Unauthorized"))
    assert isinstance(error, CredentialRefusedError)
    compressed = head(None, "content-encoding: gzip", kind="text/event-stream")
    seen, error = await fail(compressed, chunk(gzip.compress(ack())), END)
    assert seen == []
    assert "Content-Encoding that was not asked for" in str(error)
    seen, error = await fail(SSE, chunk(ack()), chunk(event(b"no JSON")), chunk(tells()), END)
    assert seen == []
    assert type(error) is RemoteProtocolError


@pytest.mark.parametrize("stray", [b"[]", rpc(id=99, result={}), b'{"id": 1, "result": {}}'])
async def test_a_message_of_nobody_is_passed_over(stray: bytes) -> None:
    assert len(await read(ack(), event(stray), tells())) == 1


async def test_an_event_that_is_too_large_is_refused_and_a_long_stream_is_not() -> None:
    _, error = await fail(
        SSE, chunk(ack()), chunk(tells(statusMessage="x" * 1200)), END, max_response_bytes=1000
    )
    assert "have the server answer with less" in str(error)
    assert len(await read(ack(), *[tells(statusMessage="x" * 500)] * 20, max_response_bytes=1000)) == 20


async def test_a_stream_that_ends_without_the_result_is_lost() -> None:
    for stream in (
        [chunk(ack()), chunk(tells()), END],
        [chunk(ack()), chunk(tells())],
        [chunk(ack()), chunk(tells()), chunk(tells("completed")[:-9]), END],
        [chunk(ack()), chunk(tells()), b"ffff\r\ndata: {"],
    ):
        seen, error = await fail(SSE, *stream)
        assert seen == [(IDS[0], "working")]
        assert is_lost_reply(error)


@also_over_httpx2
async def test_closing_the_session_ends_it() -> None:
    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack() + tells()))
        await peer.closed_by_client()

    errors: list[SessionError] = []

    async def read_on(session: HttpSession) -> None:
        with pytest.raises(SessionError) as caught:
            await listen(session, observed)
        errors.append(caught.value)

    observed = observing(*IDS)
    async with serving(script) as server, connected(server) as session:
        async with anyio.create_task_group() as group:
            group.start_soon(read_on, session)
            await observed.until(1)
            await session.aclose()
        assert is_lost_reply(errors[0])
        with pytest.raises(ConnectionLostError, match="session is closed"):
            await listen(session, observed)


@also_over_httpx2
async def test_a_server_that_does_not_acknowledge_is_given_up() -> None:
    async def nothing(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.closed_by_client()

    async def nothing_but_comments(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE)
        while True:
            await peer.send(chunk(b": ping\n\n"))
            await anyio.sleep(0.02)

    for script in (nothing, nothing_but_comments):
        async with serving(script) as server, connected(server, task_timeout_s=0.1) as session:
            with pytest.raises(ConnectionLostError, match="fell silent") as caught:
                await listen(session, observing(*IDS))
        assert is_lost_reply(caught.value)


async def test_a_stream_that_falls_silent_counts_as_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert subscription._SILENCE_S == 300.0
    monkeypatch.setattr(subscription, "_SILENCE_S", 0.2)

    async def drips(peer: Connection, number: int) -> None:
        """Bytes of a line that never ends are no sign of life."""
        await peer.request()
        await peer.send(SSE, chunk(ack() + tells()), chunk(b"data: "))
        while True:
            await peer.send(chunk(b"x"))
            await anyio.sleep(0.05)

    observed = observing(*IDS)
    async with serving(drips) as server, connected(server) as session:
        with pytest.raises(ConnectionLostError, match="fell silent"):
            await listen(session, observed)
    assert observed.seen == [(IDS[0], "working")]


async def test_a_comment_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "_SILENCE_S", 3.0)  # longer than a busy machine stands still
    signs = itertools.cycle([b": ping\n", b"\n", b"id: 1\r", b"data:\n\n"])

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(whole(peer.result()))
        await peer.request()
        await peer.send(SSE, chunk(ack()))
        for sign in itertools.islice(signs, 10):
            await peer.send(chunk(sign))
            await anyio.sleep(0.35)
        await peer.send(chunk(tells()), chunk(ends(peer)), END)

    observed = observing(*IDS)
    # Nor does the time-out of other requests end it.
    async with serving(script) as server, connected(server) as session:
        await hurry(session, 1.5)
        await listen(session, observed)
    assert observed.seen == [(IDS[0], "working")]


async def test_a_subscription_takes_no_place_of_a_poll() -> None:
    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            if peer.body["method"] == "subscriptions/listen":
                await peer.send(SSE, chunk(ack() + tells()))
                await peer.closed_by_client()
                return
            await peer.send(whole(peer.result()))

    observed = observing(*IDS)
    async with (
        serving(script) as server,
        connected(server, tasks_in_flight=1, calls_in_flight=1) as session,
        anyio.create_task_group() as group,
    ):
        for _ in range(3):
            group.start_soon(listen, session, observed)
        await observed.until(3)
        assert (await session.get(REF)).task.task_id == REF.task_id
        group.cancel_scope.cancel()


@also_over_httpx2
async def test_a_connection_is_used_again_after_a_stream_that_ended_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine the end of the stream may arrive later than we wait for it.
    monkeypatch.setattr(replies, "DRAIN_S", 8.0)
    monkeypatch.setattr(body, "DRAIN_S", 8.0)

    async def script(peer: Connection, number: int) -> None:
        while await peer.request():
            if peer.body["method"] == "subscriptions/listen":
                await peer.send(SSE, chunk(ack()), chunk(ends(peer)))
                await anyio.wait_all_tasks_blocked()
                await peer.send(END)
            else:
                await peer.send(whole(peer.result()))

    async with serving(script) as server, connected(server) as session:
        await listen(session, observing(*IDS))
        await session.get(REF)
        await listen(session, observing(*IDS))
    assert server.connections == 1


@also_over_httpx2
@pytest.mark.parametrize("sent", [b"", SSE, SSE + chunk(ack()), SSE + chunk(ack()) + chunk(b"data: {")])
async def test_cancelling_closes_the_connection(sent: bytes) -> None:
    arrived, closed = anyio.Event(), anyio.Event()

    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(sent)
        arrived.set()
        await peer.closed_by_client()
        closed.set()

    async with serving(script) as server, connected(server) as session:
        async with anyio.create_task_group() as group:
            group.start_soon(listen, session, observing(*IDS))
            await arrived.wait()
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        await closed.wait()
        gc.collect()  # trio warns of each iteration that was dropped half-way, and warnings are errors here


async def test_cancelling_while_the_server_floods_closes_the_connection() -> None:
    closed = anyio.Event()

    async def flood(peer: Connection, number: int) -> None:
        await peer.request()
        await peer.send(SSE, chunk(ack()))
        try:
            while True:
                await peer.send(chunk(b": ping\n\n" * 100) + chunk(tells()))
        finally:
            closed.set()

    observed = observing(*IDS)
    async with serving(flood) as server, connected(server) as session:
        async with anyio.create_task_group() as group:
            group.start_soon(listen, session, observed)
            await observed.until(50)
            group.cancel_scope.cancel()
        await closed.wait()
        gc.collect()


@over_a_given_client
async def test_cancelled_at_any_point_nothing_stays_open() -> None:
    def respond(request: httpx.Request) -> list[bytes]:
        return [ack()[:20], ack()[20:], tells() * 2, event(rpc(id=1, result={}))]

    cancelled = 0
    for n in range(1, 100):
        observed = observing(*IDS)
        with anyio.CancelScope() as scope, anyio.fail_after(30):
            transport = Interrupted("text/event-stream", respond, n, scope)
            client = httpx.AsyncClient(transport=transport)
            await listen(HttpSession("http://server.example", http_client=client), observed)
        await client.aclose()
        gc.collect()
        assert transport.open == 0
        cancelled += scope.cancelled_caught
        if not scope.cancel_called:
            break
    # The request and four pieces; from then on it has ended in order.
    assert cancelled == 5
    assert n > cancelled


# ── one stream after the other ────────────────────────────────────────────────────────────────


class Streams:
    """Opens streams that end as scripted, one outcome each; further streams stay open."""

    def __init__(self, *outcomes: SessionError | DeclinedError | str) -> None:
        self._outcomes = list(outcomes)
        self.opened: list[frozenset[str]] = []
        self.cancelled = 0
        self.slept: list[float] = []
        self.stays_open = anyio.Event()

    async def open(self, subscription: Subscription) -> None:
        self.opened.append(subscription.task_ids)
        await anyio.lowlevel.checkpoint()
        if not self._outcomes:
            self.stays_open.set()
            self.stays_open = anyio.Event()
            try:
                await anyio.sleep_forever()
            finally:
                self.cancelled += 1
        match self._outcomes.pop(0):
            case Exception() as error:
                raise error
            case "delivers":
                subscription.take({"method": "notifications/tasks", "params": snapshot()})
                raise lost()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await anyio.lowlevel.checkpoint()


def lost(retry_after_s: float | None = None) -> SessionError:
    return ConnectionLostError("broken", retryable=True, retry_after_s=retry_after_s)


on_both_loops = pytest.mark.parametrize("anyio_backend", ["asyncio-aiohttp", "trio-httpx"], indirect=True)


async def keep(streams: Streams, observed: Observed) -> bool:
    """Keep subscribed until a stream stays open, or until no more is opened: whether it has returned."""
    returned = False

    async def run() -> None:
        nonlocal returned
        await keep_subscribed(streams.open, observed, streams.sleep)
        returned = True
        group.cancel_scope.cancel()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await streams.stays_open.wait()
            group.cancel_scope.cancel()
    return returned


@on_both_loops
async def test_no_stream_is_opened_before_a_task_has_been_observed_for_a_moment() -> None:
    observed, streams = observing(), Streams()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(keep_subscribed, streams.open, observed, streams.sleep)
            await anyio.wait_all_tasks_blocked()
            assert (streams.opened, streams.slept) == ([], [])
            stays_open = streams.stays_open
            observed.observe(TaskRef("a"))
            await stays_open.wait()
            group.cancel_scope.cancel()
    assert (streams.opened, streams.slept) == ([frozenset("a")], [1.0])


@on_both_loops
@pytest.mark.parametrize(
    "outcome",
    [
        DeclinedError(),
        SessionError("no such method", code=-32601, http_status=404),
        SessionError("internal", code=-32603, retryable=True, http_status=500),
        SessionError("bare", http_status=404, retryable=True),
        SessionError("bare", http_status=405),
        SessionError("bare", http_status=501, retryable=True),
        CredentialRefusedError("no", http_status=401),
        ConnectionLostError("closed", not_executed=True),
    ],
)
async def test_a_refusal_ends_it_for_good(outcome: SessionError | DeclinedError) -> None:
    streams = Streams(outcome)
    assert await keep(streams, observing("a"))
    assert len(streams.opened) == 1


@on_both_loops
async def test_a_broken_stream_is_opened_again_with_growing_pauses() -> None:
    gateway = SessionError("bad gateway", code=-32601, retryable=True, http_status=502)
    streams = Streams(*[lost()] * 7, gateway, "ends in order")
    assert not await keep(streams, observing("a"))
    assert streams.slept == [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]


@on_both_loops
async def test_a_stream_that_delivered_something_is_opened_again_soon() -> None:
    streams = Streams(lost(), lost(), "delivers", lost(retry_after_s=90.0), lost(retry_after_s=1e9))
    assert not await keep(streams, observing("a"))
    assert streams.slept == [1, 1, 2, 1, 90, 3600]


@on_both_loops
async def test_a_new_task_leads_to_one_new_stream_in_place_of_the_old() -> None:
    observed, streams = observing("a"), Streams()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(keep_subscribed, streams.open, observed, streams.sleep)
            await streams.stays_open.wait()
            stays_open = streams.stays_open
            observed.observe(TaskRef("b"))
            observed.observe(TaskRef("c"))
            await stays_open.wait()
            assert streams.cancelled == 1
            observed.observe(TaskRef("a"))  # which the stream names already
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert streams.opened == [frozenset("a"), frozenset("abc")]
    assert streams.slept == [1, 1, 0, 1], "at most one a second"


@on_both_loops
async def test_a_stream_names_a_thousand_tasks_at_most() -> None:
    observed, streams = observing(*map(str, range(1200))), Streams()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(keep_subscribed, streams.open, observed, streams.sleep)
            await streams.stays_open.wait()
            observed.observe(TaskRef("one more"))
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert streams.opened == [frozenset(map(str, range(1000)))]


async def test_a_session_runs_it() -> None:
    async def script(peer: Connection, number: int) -> None:
        await peer.request()
        if number == 1:
            await peer.send(SSE, chunk(ack() + tells()))
            return
        await peer.send(whole(rpc(id=peer.body["id"], error=REFUSAL)))

    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    observed = observing(*IDS)
    async with serving(script) as server, connected(server, sleep=sleep) as session:
        await session.run(observed)
    assert observed.seen == [(IDS[0], "working")]
    assert slept == [1.0, 1.0]
