"""``subscriptions/listen`` at a scripted server: what it tells, when, and what it gets wrong on request."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from mcp_tasks_client import Session, Snapshot, TaskRef
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.sessions.base import INVALID_PARAMS
from mcp_tasks_client.sessions.http.http_session import HttpSession
from mcp_tasks_client.testing import (
    Delayed,
    HttpError,
    ManualClock,
    Notifies,
    ScriptedServer,
    Stale,
    ask,
    complete,
    fail,
    hint,
    vanish,
    work,
)
from tests._observed import Observed
from tests.testing.asking import ADA, DONE, HEADERS, META, NAME, get, post, serve, start

pytestmark = pytest.mark.anyio

LISTEN = "subscriptions/listen"


@pytest.fixture
def server(clock: ManualClock) -> ScriptedServer:
    server = ScriptedServer(clock=clock)
    server.notifies = Notifies()
    server.tool("tool", [work(10, "building"), ask("name", NAME), work(5), complete(DONE)])
    server.tool("short", [work(10), complete(DONE)])
    return server


class Listener(Observed):
    """Sees besides that what came unasked has the ``session_data`` that a poll would bring."""

    @property
    def statuses(self) -> list[str]:
        return [task.status for task in self.tasks]

    def deliver(self, snapshot: Snapshot) -> None:
        assert snapshot.session_data == snapshot.task.request_state
        super().deliver(snapshot)


@asynccontextmanager
async def listening(session: Session, *refs: TaskRef) -> AsyncIterator[Listener]:
    listener = Listener(*refs)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.run, listener)
            yield listener
            tasks.cancel_scope.cancel()


# ── what is told ──────────────────────────────────────────────────────────────────────────────


async def test_by_default_the_server_knows_no_notifications(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.notifies = None
    session = server.session()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.run, Listener(await start(session)))
            await clock.advance(10)  # run() returns
    assert server.witness.log(LISTEN)[0].error == -32601
    assert server.witness.listenings == []


async def test_each_change_is_told_when_it_happens_with_all_that_a_poll_would_bring(
    server: ScriptedServer, clock: ManualClock
) -> None:
    session = server.session()
    ref = await start(session)
    async with listening(session, ref) as listener:
        await clock.advance(9.9)
        assert listener.tasks == []
        await clock.advance(0.1)
        assert listener.tasks[-1].input_requests == {"name": NAME}
        await session.update(ref, {"name": ADA})
        await clock.advance(60)
        assert listener.statuses == ["input_required", "working", "completed"]
        assert listener.tasks[-1].same_as(await get(session, ref))
    (stream,) = server.witness.listenings
    assert stream.task_ids == stream.agreed == (ref.task_id,)
    assert [(one.at, one.task_id, one.status) for one in stream.sent] == [
        (10.0, ref.task_id, "input_required"),
        (10.1, ref.task_id, "working"),
        (15.1, ref.task_id, "completed"),
    ]
    assert (stream.ended_at, stream.ending) == (70.0, "left")


async def test_what_requests_change_is_told_whoever_sends_them(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("endless", [work(math.inf)])
    server.tool("asks", [ask({"a": NAME, "b": NAME}), complete(DONE)], settle_s=2)
    session, other = server.session(), server.session()
    endless, asking = await start(session, "endless"), await start(session, "asks")
    async with listening(session, endless, asking) as listener:
        await clock.advance(1)
        await other.cancel(endless)
        await other.update(asking, {"a": ADA})
        await clock.advance(2)
        assert [(task.task_id, task.status) for task in listener.tasks] == [
            (endless.task_id, "cancelled"),
            (asking.task_id, "input_required"),
        ]
        assert listener.tasks[-1].input_requests == {"b": NAME}


async def test_only_what_a_snapshot_shows_is_told_and_nothing_from_before_the_stream(
    server: ScriptedServer, clock: ManualClock
) -> None:
    slower = hint(poll_interval_ms=7000)
    server.tool("steps", [work(3), work(1), work(1, "on"), work(1, "on"), slower, work(math.inf, "on")])
    session = server.session()
    over, ref = await start(session, "short"), await start(session, "steps")
    server.misbehave(LISTEN, Delayed(1))
    async with listening(session, over, ref) as listener:
        await clock.advance(100)
        told = [(task.status_message, task.poll_interval_ms) for task in listener.tasks[:2]]
        assert told == [("on", 1000), ("on", 7000)]
        assert listener.statuses == ["working", "working", "completed"]
    async with listening(session, over, ref) as listener:
        await clock.advance(100)
        assert listener.tasks == []


async def test_tasks_that_are_unknown_or_gone_are_not_told_of(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("vanishes", [work(20), vanish()])
    server.tool("expires", [work(math.inf)], ttl_ms=20_000)
    session = server.session()
    refs = [await start(session, name) for name in ("vanishes", "expires", "tool")]
    async with listening(session, *refs, TaskRef("nobody's")) as listener:
        await clock.advance(30)
        assert [task.task_id for task in listener.tasks] == [refs[2].task_id]
    assert server.witness.listenings[0].agreed == tuple(ref.task_id for ref in refs)


async def test_a_task_that_is_added_gets_a_stream_that_has_it(
    server: ScriptedServer, clock: ManualClock
) -> None:
    session = server.session()
    first = await start(session, "short")
    async with listening(session, first) as listener:
        await clock.advance(5)
        second = await start(session, "short")
        listener.observe(second)
        await clock.advance(20)
        assert [task.task_id for task in listener.tasks] == [first.task_id, second.task_id]
    assert [stream.ending for stream in server.witness.listenings] == ["left", "left"]


async def test_a_request_state_that_came_with_a_notification_counts(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("stateful", [work(10), ask("name", NAME), complete(DONE)], request_state=True)
    session = server.session()
    ref = await start(session, "stateful")
    async with listening(session, ref) as listener:
        await clock.advance(10)
        state = listener.tasks[0].request_state
        assert state not in (None, ref.session_data)
        await session.update(TaskRef(ref.task_id, state), {"name": ADA})
    server.witness.check()


async def test_a_notification_is_no_reply_that_a_stale_one_could_repeat(
    server: ScriptedServer, clock: ManualClock
) -> None:
    session = server.session()
    ref = await start(session, "short")
    async with listening(session, ref) as listener:
        await session.get(ref)
        await clock.advance(10)
        assert listener.statuses == ["completed"]
        server.misbehave("tasks/get", Stale())
        assert (await get(session, ref)).status == "working"


async def test_a_shorter_interval_that_was_told_makes_a_poll_no_early_one(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("hurries", [work(10), hint(poll_interval_ms=2000), work(math.inf)], poll_interval_ms=60_000)
    session = server.session()
    ref = await start(session, "hurries")
    async with listening(session, ref):
        await clock.advance(12)
        await session.get(ref)
        server.witness.check()
        await clock.advance(1)
        await session.get(ref)
    assert [poll.at for poll in server.witness.early_polls] == [13.0]


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────


async def test_a_server_may_agree_to_some_tasks_only(server: ScriptedServer, clock: ManualClock) -> None:
    server.notifies = Notifies(at_most=1)
    session = server.session()
    refs = [await start(session, "short") for _ in range(3)]
    async with listening(session, *refs) as listener:
        await clock.advance(20)
        assert [task.task_id for task in listener.tasks] == [refs[0].task_id]


@pytest.mark.parametrize(
    ("how", "ending"), [(Notifies(ends_after=2), "in order"), (Notifies(breaks_after=2), "broken")]
)
async def test_a_stream_may_end_in_order_or_break_and_is_opened_again(
    server: ScriptedServer, clock: ManualClock, how: Notifies, ending: str
) -> None:
    server.notifies = how
    session = server.session()
    refs = [await start(session, "short") for _ in range(3)]
    async with listening(session, *refs) as listener:
        await clock.advance(10)
        assert listener.statuses == ["completed"] * 2
        assert [stream.ending for stream in server.witness.listenings] == [ending]
        await clock.advance(10)
        assert len(server.witness.listenings) == 2


async def test_a_fault_comes_before_the_stream(server: ScriptedServer, clock: ManualClock) -> None:
    server.misbehave(LISTEN, HttpError(503, retry_after_s=5))
    session = server.session()
    ref = await start(session, "short")
    async with listening(session, ref) as listener:
        await clock.advance(10)
        assert listener.statuses == ["completed"]
    assert [arrival.at for arrival in server.witness.log(LISTEN)] == [1.0, 6.0]


async def test_notifications_may_come_twice_for_others_without_payload_or_not_at_all(
    server: ScriptedServer, clock: ManualClock
) -> None:
    def distort(params: JSONObject) -> Iterator[JSONObject]:
        if params["statusMessage"] != "1":
            yield {**params, "taskId": "somebody's"}
            yield {name: value for name, value in params.items() if name != "error"}

    server.notifies = Notifies(method="notifications/tasks/status", distort=distort)
    server.tool("chatty", [work(5), work(5, "1"), work(5, "2"), fail(-1, "no")])
    session = server.session()
    ref = await start(session, "chatty")
    async with listening(session, ref) as listener:
        await clock.advance(100)
        told = [(task.task_id, task.status_message, task.error) for task in listener.tasks]
    error = {"code": -1, "message": "no"}
    assert told == [
        ("somebody's", "2", None),
        (ref.task_id, "2", None),
        ("somebody's", "no", error),
        (ref.task_id, "no", None),
    ]
    assert len(server.witness.listenings[0].sent) == 4


async def test_closing_the_session_ends_the_stream_and_the_run(
    server: ScriptedServer, clock: ManualClock
) -> None:
    session = server.session()
    ref = await start(session)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.run, Listener(ref))
            await clock.advance(5)
            await session.aclose()
            await clock.advance(5)
    assert [stream.ending for stream in server.witness.listenings] == ["broken"]


@pytest.mark.parametrize("make", [lambda: Notifies(at_most=-1), lambda: Notifies(ends_after=-1)])
def test_numbers_that_make_no_sense_are_refused(make: Callable[[], Notifies]) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        make()


# ── on the wire ───────────────────────────────────────────────────────────────────────────────


def params(task_ids: object, meta: JSONObject = META) -> JSONObject:
    return {"notifications": {"taskIds": task_ids}, "_meta": meta}


async def test_the_stream_on_the_wire(server: ScriptedServer, clock: ManualClock) -> None:
    server.notifies = Notifies(ends_after=1)
    ref = await start(server.session(), "short")
    message = {"jsonrpc": "2.0", "id": 7, "method": LISTEN, "params": params([ref.task_id])}
    events: list[str] = []

    async def listen() -> None:
        response = await post(server, message, HEADERS | {"Mcp-Method": LISTEN})
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")
        events.extend(response.text.split("\n\n"))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            await clock.advance(10)
    came = [json.loads(event.partition("data: ")[2]) for event in events if "data: " in event]
    meta = {"io.modelcontextprotocol/subscriptionId": 7}
    assert came == [
        {
            "jsonrpc": "2.0",
            "method": "notifications/subscriptions/acknowledged",
            "params": {"notifications": {"taskIds": [ref.task_id]}, "_meta": meta},
        },
        {
            "jsonrpc": "2.0",
            "method": "notifications/tasks",
            "params": {
                "taskId": ref.task_id,
                "status": "completed",
                "createdAt": "2027-01-15T08:00:00.000Z",
                "lastUpdatedAt": "2027-01-15T08:00:10.000Z",
                "ttlMs": None,
                "pollIntervalMs": 1000,
                "result": DONE,
                "_meta": meta,
            },
        },
        {"jsonrpc": "2.0", "id": 7, "result": {"resultType": "complete", "_meta": meta}},
    ]
    server.witness.check()


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (params([], {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}), -32021),
        (params("task-1"), INVALID_PARAMS),
        (params([1]), INVALID_PARAMS),
    ],
)
async def test_a_subscription_that_cannot_be_granted_is_refused(
    server: ScriptedServer, asked: JSONObject, code: int
) -> None:
    message = {"jsonrpc": "2.0", "id": 7, "method": LISTEN, "params": asked}
    response = await post(server, message, HEADERS | {"Mcp-Method": LISTEN})
    assert response.json()["error"]["code"] == code
    assert server.witness.listenings == []


async def test_over_real_sockets_a_task_is_told_of_until_the_stream_ends_breaks_or_is_left() -> None:
    server = ScriptedServer()
    # Nothing happens unless a request asks for it, so that a busy machine changes nothing.
    server.tool("tool", [ask("name", NAME), ask("again", NAME), complete(DONE)])

    async def no_pause(seconds: float) -> None:
        await anyio.sleep(0.01)

    with serve(server) as url, anyio.fail_after(30):
        session: Any = HttpSession(url, sleep=no_pause)
        for how, ending in (
            (Notifies(ends_after=2), "in order"),
            (Notifies(breaks_after=2), "broken"),
            (Notifies(), "left"),
        ):
            server.notifies = how
            ref = await start(session)
            began = len(server.witness.listenings)
            async with listening(session, ref) as listener:
                while len(server.witness.listenings) == began:
                    await anyio.sleep(0.01)
                for count, key in enumerate(("name", "again"), 1):
                    await session.update(ref, {key: ADA})
                    await listener.until(count)
            assert listener.statuses == ["input_required", "completed"]
            while server.witness.listenings[began].ending is None:
                await anyio.sleep(0.01)
            assert server.witness.listenings[began].ending == ending
        await session.aclose()
