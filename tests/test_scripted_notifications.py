"""The scripted server's streams of notifications: as they should be, and in every way in which they are not.

Over both of its faces, on its clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from mcp_tasks_client import ConnectionLostError, SessionError
from mcp_tasks_client.old.sessions.base import INVALID_PARAMS, Session, TaskRef
from mcp_tasks_client.old.sessions.http import HttpSession
from mcp_tasks_client.old.testing import (
    Delayed,
    ErrorReply,
    Fault,
    Garbled,
    HttpError,
    LostReply,
    LostRequest,
    ManualClock,
    Notifies,
    ScriptedServer,
    Stale,
    Stalled,
    ask,
    complete,
    fail,
    hint,
    vanish,
    work,
)
from mcp_tasks_client.old.wire import JSONObject, Task

from ._streaming import StreamingTransport
from .test_listening_sessions import Ear
from .test_scripted_server import ADA, DONE, HEADERS, META, NAME, URL, post, served, start

pytestmark = pytest.mark.anyio

LISTEN = "subscriptions/listen"
Opened = Callable[[], AbstractAsyncContextManager[Session]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> ScriptedServer:
    server = ScriptedServer(clock=clock)
    server.notifies = Notifies()
    server.tool("tool", [work(10, "building"), ask("name", NAME), work(5), complete(DONE)])
    server.tool("short", [work(10), complete(DONE)])
    server.tool("endless", [work(math.inf)])
    return server


@pytest.fixture(params=["memory", "app"])
def opened(request: pytest.FixtureRequest, server: ScriptedServer) -> Opened:
    """A session with either face."""

    @asynccontextmanager
    async def open_session() -> AsyncIterator[Session]:
        with anyio.fail_after(30):
            if request.param == "memory":
                yield server.session()
                return
            async with httpx.AsyncClient(transport=StreamingTransport(server.app), trust_env=False) as client:
                yield HttpSession(URL, http_client=client)

    return open_session


class Listener(Ear):
    """Listens for the length of a block, or until the stream is over."""

    def __init__(self, session: Session, *refs: TaskRef) -> None:
        super().__init__()
        self.error: SessionError | None = None
        self.returned = False
        self._session = session
        self._refs = refs
        self._group = anyio.create_task_group()

    async def __aenter__(self) -> Listener:
        await self._group.__aenter__()
        self._group.start_soon(self._listen)
        with anyio.fail_after(5):
            await self.until(1)
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(*exc_info)

    @property
    def over(self) -> bool:
        return self.returned or self.error is not None

    @property
    def statuses(self) -> list[str]:
        return [task.status for task in self.tasks]

    async def _listen(self) -> None:
        try:
            await self.listen(self._session, [ref.task_id for ref in self._refs])
            self.returned = True
        except SessionError as error:
            self.error = error


# ── a server that keeps its word ──────────────────────────────────────────────────────────────


async def test_by_default_the_server_knows_no_notifications(server: ScriptedServer, opened: Opened) -> None:
    server.notifies = None
    async with opened() as session:
        ref = await start(session)
        ear = Ear()
        with pytest.raises(SessionError) as caught:
            await ear.listen(session, [ref.task_id])
    error = caught.value
    assert (error.code, error.http_status, error.retryable, error.not_executed) == (-32601, 404, False, True)
    assert ear.told == []
    assert server.witness.listenings == []
    assert server.witness.log(LISTEN)[0].error == -32601


async def test_each_change_is_told_when_it_happens_with_all_that_a_poll_would_bring(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    async with opened() as session:
        ref = await start(session)
        async with Listener(session, ref) as ear:
            assert ear.told == [frozenset([ref.task_id])]
            await clock.advance(9.9)
            assert ear.tasks == []
            await clock.advance(0.1)
            assert ear.tasks[-1].status == "input_required"
            assert ear.tasks[-1].input_requests == {"name": NAME}
            await session.update(ref, {"name": ADA})
            assert len(ear.tasks) == 1
            await clock.advance(60)
            assert ear.statuses == ["input_required", "working", "completed"]
            assert ear.tasks[-1].result == DONE
            assert ear.tasks[-1].same_as(await session.get(ref))
            assert not ear.over
    (listening,) = server.witness.listenings
    assert listening.task_ids == listening.agreed == (ref.task_id,)
    assert [(one.at, one.task_id, one.status) for one in listening.sent] == [
        (10.0, ref.task_id, "input_required"),
        (10.1, ref.task_id, "working"),
        (15.1, ref.task_id, "completed"),
    ]
    assert (listening.began_at, listening.ended_at, listening.ending) == (0.0, 70.0, "left")
    assert server.witness.log("tasks/get", ref.task_id)[0].at == 70.0


async def test_a_failure_a_cancellation_and_a_partial_answer_are_told(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    server.tool("fails", [work(1), fail(-32000, "no disk", {"free": 0})])
    server.tool("asks", [ask({"a": NAME, "b": NAME}), complete(DONE)], settle_s=2)
    async with opened() as session:
        failing, endless, asking = [await start(session, name) for name in ("fails", "endless", "asks")]
        async with Listener(session, failing, endless, asking) as ear:
            await clock.advance(1)
            assert ear.tasks[-1].error == {"code": -32000, "message": "no disk", "data": {"free": 0}}
            await session.cancel(endless)
            await session.update(asking, {"a": ADA})
            await clock.advance(0.1)
            assert ear.told[-1] == (endless.task_id, "cancelled")
            await clock.advance(2)
            assert ear.told[-1] == (asking.task_id, "input_required")
            assert ear.tasks[-1].input_requests == {"b": NAME}
            # Whoever answers it.
            await server.session().update(asking, {"b": ADA})
            await clock.advance(2)
            assert ear.told[-1] == (asking.task_id, "completed")
    assert len(ear.tasks) == 4


async def test_only_what_can_be_seen_is_told(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    slower = hint(poll_interval_ms=7000)
    server.tool("steps", [work(1), work(1), work(1, "on"), work(1, "on"), slower, work(math.inf, "on")])
    async with opened() as session:
        ref = await start(session, "steps")
        await start(session, "short")
        async with Listener(session, ref) as ear:
            await session.get(ref)
            await clock.advance(100)
            told = [(task.task_id, task.status_message, task.poll_interval_ms) for task in ear.tasks]
            assert told == [(ref.task_id, "on", 1000), (ref.task_id, "on", 7000)]


async def test_what_has_happened_before_the_stream_begins_is_not_told(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    async with opened() as session:
        ref = await start(session, "short")
        await clock.advance(20)
        async with Listener(session, ref) as ear:
            await clock.advance(20)
            assert ear.told == [frozenset([ref.task_id])]


async def test_each_stream_tells_of_its_own_tasks(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    async with opened() as session:
        one, two = await start(session, "short"), await start(session, "short")
        async with Listener(session, one) as first, Listener(session, one, two) as second:
            await clock.advance(10)
            assert first.told == [frozenset([one.task_id]), (one.task_id, "completed")]
            assert second.told == [
                frozenset([one.task_id, two.task_id]),
                (one.task_id, "completed"),
                (two.task_id, "completed"),
            ]


async def test_tasks_that_are_unknown_or_gone_are_not_agreed_to_and_not_told_of(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    server.tool("vanishes", [work(20), vanish()])
    server.tool("expires", [work(math.inf)], ttl_ms=20_000)
    server.tool("expired", [work(math.inf)], ttl_ms=5_000)
    async with opened() as session:
        refs = [await start(session, name) for name in ("vanishes", "expires", "endless", "expired")]
        await clock.advance(10)
        async with Listener(session, *refs, TaskRef("nobody's"), refs[2]) as ear:
            assert ear.told == [frozenset(ref.task_id for ref in refs[:3])]
            await clock.advance(20)
            await session.cancel(refs[2])
            await clock.advance(1)
            assert ear.told[1:] == [(refs[2].task_id, "cancelled")]
    assert server.witness.listenings[0].agreed == tuple(ref.task_id for ref in refs[:3])


async def test_a_request_state_that_came_with_a_notification_counts(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    server.tool("stateful", [work(10), ask("name", NAME), complete(DONE)], request_state=True)
    async with opened() as session:
        ref = await start(session, "stateful")
        async with Listener(session, ref) as ear:
            await clock.advance(10)
            assert ear.tasks[0].request_state not in (None, ref.request_state)
            await session.update(TaskRef(ref.task_id, ear.tasks[0].request_state), {"name": ADA})
            await clock.advance(10)
            assert ear.statuses == ["input_required", "completed"]
    server.witness.check()


async def test_a_notification_is_no_reply_that_a_stale_one_could_repeat(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    async with opened() as session:
        ref = await start(session, "short")
        async with Listener(session, ref) as ear:
            await session.get(ref)
            await clock.advance(10)
            assert ear.statuses == ["completed"]
            server.misbehave("tasks/get", Stale())
            assert (await session.get(ref)).status == "working"


async def test_a_shorter_hint_that_was_told_makes_a_poll_no_early_one(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    server.tool("hurries", [work(10), hint(poll_interval_ms=2000), work(math.inf)], poll_interval_ms=60_000)
    server.tool("dawdles", [work(10), hint(poll_interval_ms=60_000), work(math.inf)], poll_interval_ms=2000)
    async with opened() as session:
        hurries, dawdles = await start(session, "hurries"), await start(session, "dawdles")
        async with Listener(session, hurries, dawdles):
            await clock.advance(12)
            await session.get(dawdles)
            server.misbehave("tasks/get", LostReply())
            with pytest.raises(ConnectionLostError):
                await session.get(hurries)
            await clock.advance(2)
            await session.get(hurries)
            server.witness.check()
            await clock.advance(1)
            await session.get(hurries)
    assert [early.task_id for early in server.witness.early_polls] == [hurries.task_id]


async def test_a_stream_lives_for_days(server: ScriptedServer, clock: ManualClock, opened: Opened) -> None:
    server.tool("slow", [work(48 * 3600), complete(DONE)])
    async with opened() as session:
        ref = await start(session, "slow")
        async with Listener(session, ref) as ear:
            await clock.advance(48 * 3600)
            assert ear.statuses == ["completed"]
            assert not ear.over


# ── a server that does not ────────────────────────────────────────────────────────────────────


async def test_a_server_may_agree_to_some_only(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    server.notifies = Notifies(at_most=2)
    async with opened() as session:
        refs = [await start(session, "short") for _ in range(3)]
        async with Listener(session, *refs) as ear:
            await clock.advance(20)
            assert ear.told[0] == {ref.task_id for ref in refs[:2]}
            assert {task.task_id for task in ear.tasks} == ear.told[0]


@pytest.mark.parametrize("how", [Notifies(at_most=0), Notifies(silent=True)])
async def test_a_server_may_acknowledge_and_stay_silent(
    server: ScriptedServer, clock: ManualClock, opened: Opened, how: Notifies
) -> None:
    server.notifies = how
    async with opened() as session:
        ref = await start(session)
        async with Listener(session, ref) as ear:
            await clock.advance(3600)
            await session.cancel(ref)
            await clock.advance(3600)
            assert ear.told == [frozenset([ref.task_id] if how.silent else [])]
            assert not ear.over
    assert server.witness.listenings[0].sent == []


async def test_a_server_may_acknowledge_nothing_and_end_in_order(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    server.notifies = Notifies(at_most=0, ends_after=0)
    async with opened() as session:
        ref, ear = await start(session), Ear()
        await ear.listen(session, [ref.task_id])
    assert ear.told == [frozenset()]
    assert server.witness.listenings[0].ending == "in order"


async def test_a_server_may_end_in_order_or_break_after_some_notifications(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    for how, ending in ((Notifies(ends_after=2), "in order"), (Notifies(breaks_after=2), "broken")):
        server.notifies = how
        async with opened() as session:
            refs = [await start(session, "short") for _ in range(3)]
            async with Listener(session, *refs) as ear:
                await clock.advance(9)
                assert not ear.over
                await clock.advance(1)
                assert ear.statuses == ["completed"] * 2
                assert ear.over
        assert ear.returned == (ending == "in order")
        if ending == "broken":
            assert isinstance(ear.error, ConnectionLostError)
            assert (ear.error.retryable, ear.error.not_executed) == (True, False)
            assert "was lost: ReadError" in str(ear.error)
        listening = server.witness.listenings[-1]
        assert (listening.ending, listening.ended_at, len(listening.sent)) == (ending, clock.monotonic(), 2)


async def test_a_server_may_break_after_some_time(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    server.notifies = Notifies(breaks_after_s=30)
    async with opened() as session:
        ref = await start(session)
        await clock.advance(5)
        async with Listener(session, ref) as ear:
            await clock.advance(29)
            assert not ear.over
            await clock.advance(1)
            assert isinstance(ear.error, ConnectionLostError)
    assert ear.statuses == ["input_required"]
    assert (server.witness.listenings[0].ending, server.witness.listenings[0].ended_at) == ("broken", 35.0)


async def test_a_server_may_use_the_older_name(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    server.notifies = Notifies(method="notifications/tasks/status")
    async with opened() as session:
        ref = await start(session, "short")
        async with Listener(session, ref) as ear:
            await clock.advance(10)
            assert ear.statuses == ["completed"]


async def test_a_server_may_send_each_twice_out_of_order_to_the_wrong_client_or_without_payload(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    server.tool("chatty", [*(work(10, str(n)) for n in range(4)), fail(-1, "no")])
    told: dict[str, list[Task]] = {}
    refs: dict[str, TaskRef] = {}
    for name, how in {
        "well": Notifies(),
        "twice": Notifies(twice=True),
        "swapped": Notifies(swapped=True),
        "foreign": Notifies(foreign=["x", "y"]),
        "empty": Notifies(payloads=False),
    }.items():
        server.notifies = how
        async with opened() as session:
            refs[name] = await start(session, "chatty")
            async with Listener(session, refs[name]) as ear:
                await clock.advance(100)
                told[name] = ear.tasks
        assert len(server.witness.listenings[-1].sent) == len(ear.tasks)

    def words(name: str) -> list[str | None]:
        return [task.status_message for task in told[name]]

    assert words("well") == words("empty") == ["1", "2", "3", "no"]
    assert words("twice") == ["1", "1", "2", "2", "3", "3", "no", "no"]
    assert words("swapped") == ["2", "1", "no", "3"]
    assert words("foreign") == ["1"] * 3 + ["2"] * 3 + ["3"] * 3 + ["no"] * 3
    assert [task.task_id for task in told["foreign"][9:]] == ["x", "y", refs["foreign"].task_id]
    assert (told["foreign"][9].error, told["foreign"][9].status) == ({"code": -1, "message": "no"}, "failed")
    assert (told["well"][-1].error is None, told["empty"][-1].error) == (False, None)


async def test_a_last_one_that_is_held_back_is_lost(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    server.notifies = Notifies(swapped=True)
    async with opened() as session:
        ref = await start(session, "short")
        async with Listener(session, ref) as ear:
            await clock.advance(100)
            assert ear.tasks == []


async def test_a_snapshot_may_lack_its_result_and_its_questions(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    server.notifies = Notifies(payloads=False)
    async with opened() as session:
        ref = await start(session)
        async with Listener(session, ref) as ear:
            await clock.advance(10)
            await session.update(ref, {"name": ADA})
            await clock.advance(10)
            assert ear.statuses == ["input_required", "working", "completed"]
            assert [(task.input_requests, task.result) for task in ear.tasks] == [(None, None)] * 3


@pytest.mark.parametrize(
    "fault",
    [
        HttpError(503, retry_after_s=5),
        HttpError(401),
        ErrorReply(-32603),
        ErrorReply(-32602, http_status=400),
        Garbled(),
        LostRequest(),
        LostReply(),
    ],
    ids=lambda fault: type(fault).__name__,
)
async def test_a_fault_comes_before_the_stream_and_is_in_memory_what_it_is_over_http(
    server: ScriptedServer, clock: ManualClock, fault: Fault
) -> None:
    errors = []
    async with httpx.AsyncClient(transport=StreamingTransport(server.app), trust_env=False) as client:
        for session in (server.session(), HttpSession(URL, http_client=client)):
            ref, ear = await start(session, "short"), Ear()
            server.misbehave(LISTEN, fault)
            with anyio.fail_after(5), pytest.raises(SessionError) as caught:
                await ear.listen(session, [ref.task_id])
            assert ear.told == []
            errors.append(caught.value)
            # And then all is well.
            async with Listener(session, ref) as listener:
                await clock.advance(10)
                assert listener.statuses == ["completed"]
    memory, http = errors
    assert str(memory) == str(http)
    assert type(memory) is type(http)
    assert memory.__dict__ == http.__dict__
    assert len(server.witness.listenings) == 2


async def test_a_delayed_acknowledgement_is_followed_by_what_has_happened_meanwhile(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    server.misbehave(LISTEN, Delayed(20))
    async with opened() as session, anyio.create_task_group() as group:
        ref, ear = await start(session, "short"), Ear()
        group.start_soon(ear.listen, session, [ref.task_id])
        await clock.advance(19)
        assert ear.told == []
        await clock.advance(1)
        assert ear.told == [frozenset([ref.task_id]), (ref.task_id, "completed")]
        group.cancel_scope.cancel()
    assert server.witness.listenings[0].began_at == server.witness.log(LISTEN)[0].answered_at == 20.0


# ── how it ends in memory ─────────────────────────────────────────────────────────────────────


async def test_in_memory_an_acknowledgement_is_waited_for_as_long_as_over_http(
    server: ScriptedServer, clock: ManualClock
) -> None:
    session = server.session()
    ref = await start(session)
    server.misbehave(LISTEN, Stalled())
    errors: list[SessionError] = []

    async def listen() -> None:
        with pytest.raises(ConnectionLostError) as caught:
            await Ear().listen(session, [ref.task_id])
        errors.append(caught.value)

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        await clock.advance(29)
        assert errors == []
        await clock.advance(1)
    assert errors[0].retryable


async def test_in_memory_silence_without_a_sign_of_life_is_a_broken_stream_after_five_minutes(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.notifies = Notifies(ping_s=None)
    session = server.session()
    ref = await start(session, "short")
    async with Listener(session, ref) as ear:
        await clock.advance(309)
        assert ear.statuses == ["completed"]
        assert not ear.over
        await clock.advance(1)
        assert isinstance(ear.error, ConnectionLostError)
    assert "fell silent" in str(ear.error)
    assert (server.witness.listenings[0].ending, server.witness.listenings[0].ended_at) == ("left", 310.0)


async def test_in_memory_a_server_that_hangs_up_and_a_session_that_is_closed_end_it(
    server: ScriptedServer,
) -> None:
    session = server.session()
    ref = await start(session)
    async with Listener(session, ref) as ear:
        session.hang_up()
        await anyio.wait_all_tasks_blocked()
        assert isinstance(ear.error, ConnectionLostError)
        assert not ear.error.retryable
    with pytest.raises(ConnectionLostError, match="hung up"):
        await Ear().listen(session, [ref.task_id])
    session.reconnect()
    async with Listener(session, ref) as ear:
        await session.aclose()
        await anyio.wait_all_tasks_blocked()
        assert isinstance(ear.error, ConnectionLostError)
        assert ear.error.retryable
    assert [one.ending for one in server.witness.listenings] == ["broken", "broken"]


async def test_a_stream_that_nobody_listens_to_is_left_alone(
    server: ScriptedServer, clock: ManualClock, opened: Opened
) -> None:
    async with opened() as session:
        ref = await start(session, "short")
        async with Listener(session, ref):
            await clock.advance(5)
        await anyio.wait_all_tasks_blocked()
        assert server.witness.listenings[0].ending == "left"
        assert not server._desk._streams
        await session.cancel(ref)
        await clock.advance(5)
    assert (server.witness.listenings[0].ended_at, server.witness.listenings[0].sent) == (5.0, [])


# ── on the wire ───────────────────────────────────────────────────────────────────────────────


async def events(server: ScriptedServer, *task_ids: str) -> list[str]:
    """What comes over HTTP, of a stream that ends."""
    message = {"jsonrpc": "2.0", "id": 7, "method": LISTEN, "params": params(list(task_ids))}
    with anyio.fail_after(5):
        response = await post(server, message, HEADERS | {"Mcp-Method": LISTEN})
    assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")
    return response.text.split("\n\n")


def messages(events: list[str]) -> list[JSONObject]:
    return [json.loads(event.partition("data: ")[2]) for event in events if "data: " in event]


def params(task_ids: object, meta: JSONObject = META) -> JSONObject:
    return {"notifications": {"taskIds": task_ids}, "_meta": meta}


async def test_the_stream_on_the_wire(server: ScriptedServer, clock: ManualClock) -> None:
    server.notifies = Notifies(ends_after=1, method="notifications/tasks/status", ping_s=4)
    ref = await start(server.session(), "short")
    came: list[str] = []

    async def ask_for_it() -> None:
        came.extend(await events(server, ref.task_id))

    async with anyio.create_task_group() as group:
        group.start_soon(ask_for_it)
        await clock.advance(10)
    acknowledged, told, result = messages(came)
    assert came.count(": ping") == 2
    meta = {"io.modelcontextprotocol/subscriptionId": 7}
    assert acknowledged == {
        "jsonrpc": "2.0",
        "method": "notifications/subscriptions/acknowledged",
        "params": {"notifications": {"taskIds": [ref.task_id]}, "_meta": meta},
    }
    assert told["method"] == "notifications/tasks/status"
    assert "id" not in told
    assert told["params"] == {
        "taskId": ref.task_id,
        "status": "completed",
        "createdAt": "2027-01-15T08:00:00.000Z",
        "lastUpdatedAt": "2027-01-15T08:00:10.000Z",
        "ttlMs": None,
        "pollIntervalMs": 1000,
        "result": DONE,
        "_meta": meta,
    }
    assert result == {"jsonrpc": "2.0", "id": 7, "result": {"resultType": "complete", "_meta": meta}}
    server.witness.check()


async def test_an_acknowledgement_of_nothing_names_no_tasks(server: ScriptedServer) -> None:
    server.notifies = Notifies(at_most=0, ends_after=0)
    acknowledged, _ = messages(await events(server, "task-1"))
    assert acknowledged["params"]["notifications"] == {}


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (params([], {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}), -32021),
        (params("task-1"), INVALID_PARAMS),
        (params([1]), INVALID_PARAMS),
        ({"_meta": META}, INVALID_PARAMS),
    ],
)
async def test_a_request_that_cannot_be_granted_is_refused(
    server: ScriptedServer, asked: JSONObject, code: int
) -> None:
    message = {"jsonrpc": "2.0", "id": 7, "method": LISTEN, "params": asked}
    response = await post(server, message, HEADERS | {"Mcp-Method": LISTEN})
    assert response.json()["error"]["code"] == code
    assert server.witness.listenings == []


@pytest.mark.parametrize("field", ["at_most", "ends_after", "breaks_after", "breaks_after_s", "ping_s"])
def test_what_makes_no_sense_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Notifies(**{field: -1})


async def test_over_real_sockets_a_task_is_told_of_until_the_stream_ends_breaks_or_is_left() -> None:
    server = ScriptedServer()
    # Nothing happens unless it is asked for, however long a busy machine takes.
    server.tool("tool", [ask("name", NAME), ask("again", NAME), complete(DONE)])
    with served(server) as url, anyio.fail_after(30):
        session = HttpSession(url)
        for how, ending in (
            (Notifies(ends_after=2), "in order"),
            (Notifies(breaks_after=2), "broken"),
            (Notifies(ping_s=0.01), "left"),
        ):
            server.notifies = how
            ref = await start(session)
            async with Listener(session, ref) as ear:
                for count, key in ((2, "name"), (3, "again")):
                    await session.update(ref, {key: ADA})
                    await ear.until(count)
                while ending != "left" and not ear.over:
                    await anyio.sleep(0.01)
            assert ear.statuses == ["input_required", "completed"]
            assert ear.returned == (ending == "in order")
            assert isinstance(ear.error, ConnectionLostError) == (ending == "broken")
            while server.witness.listenings[-1].ending is None:
                await anyio.sleep(0.01)
            assert server.witness.listenings[-1].ending == ending
        await session.aclose()
    server.witness.tolerance_s = math.inf
    server.witness.check()
