"""What the server tells by itself: a shortcut where there is one, and missed by nobody where not."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import anyio
import pytest
from mcp_types import ElicitResult, ListRootsResult

from mcp_tasks_client import MemoryJournal, PollPolicy, TaskHandle, TaskRecord, TasksClient
from mcp_tasks_client.old.drive import Drive
from mcp_tasks_client.old.hearsay import Hearsay
from mcp_tasks_client.old.journal.base import Scope
from mcp_tasks_client.old.states import Calling, Observing
from mcp_tasks_client.old.testing import (
    Delayed,
    ErrorReply,
    Garbled,
    HttpError,
    LostReply,
    ManualClock,
    Notifies,
    ScriptedServer,
    Stale,
    Stalled,
    Step,
    ask,
    complete,
    fail,
    form,
    scripted_client,
    text_result,
    work,
)
from mcp_tasks_client.old.testing.session import ServerSession
from mcp_tasks_client.old.wire import Task, read_task

from ._requirements import requirement

pytestmark = pytest.mark.anyio

HINT_S = 5.0
DONE = text_result("done")
STEADY = PollPolicy(jitter=0.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> ScriptedServer:
    server = ScriptedServer(clock=clock)
    server.notifies = Notifies()
    options = {"poll_interval_ms": 1000 * HINT_S, "ttl_ms": None}
    server.tool("half a minute", [work(32), complete(DONE)], **options)
    server.tool("quarter of an hour", [work(902), complete(DONE)], **options)
    return server


@asynccontextmanager
async def opened(
    server: ScriptedServer, *, session: ServerSession | None = None, **options: Any
) -> AsyncIterator[TasksClient]:
    with anyio.fail_after(30):
        options = {"journal": MemoryJournal(), "poll": STEADY, **options}
        async with scripted_client(session or server.session(), **options) as client:
            yield client
    server.witness.check()


class Between:
    """Stands between a server and its client: holds notifications back, and tells others.

    Attributes:
        session: For the client.
        passes: Whether a notification gets through.
        late_s: Seconds that it takes.
        tell: Tells the client what its server has not said; as often as it is called without a checkpoint,
            as if it had come in one packet.
    """

    def __init__(self, server: ScriptedServer) -> None:
        self.session = server.session()
        self.passes: Callable[[Task], bool] = lambda task: True
        self.late_s = 0.0
        self.tell: Callable[[Task], None] = _nobody
        self._listen = self.session.listen
        self.session.listen = self._between  # type: ignore[method-assign]

    async def _between(
        self, task_ids: Sequence[str], agreed: Callable[[frozenset[str]], None], heard: Callable[[Task], None]
    ) -> None:
        self.tell = heard
        async with anyio.create_task_group() as on_the_way:

            async def arrive(task: Task) -> None:
                await self.session.clock.wait(anyio.Event(), self.late_s)
                heard(task)

            def leave(task: Task) -> None:
                if self.passes(task):
                    if self.late_s:
                        on_the_way.start_soon(arrive, task)
                    else:
                        heard(task)

            await self._listen(task_ids, agreed, leave)
            on_the_way.cancel_scope.cancel()


def _nobody(task: Task) -> None:
    raise AssertionError("nobody listens")


def told(handle: TaskHandle, clock: ManualClock, ago_s: float = 0.0, **fields: object) -> Task:
    """What a server may tell of a task: as it was seen last but for these fields, and changed so long ago."""
    assert handle.task is not None
    changed = datetime.fromtimestamp(clock.time() - ago_s, UTC).isoformat()
    return read_task({**handle.task.to_wire(), "lastUpdatedAt": changed, **fields})


def polls(server: ScriptedServer, handle: TaskHandle) -> list[float]:
    """When a task was polled, in seconds since the first call."""
    began = server.witness.log("tools/call")[0].at
    return [round(one.at - began, 1) for one in server.witness.log("tasks/get", handle.task_id)]


def listens(server: ScriptedServer) -> int:
    return len(server.witness.log("subscriptions/listen"))


@requirement("law:4")
async def test_an_end_that_is_told_is_seen_at_once_and_hardly_polled_for(
    server: ScriptedServer, clock: ManualClock
) -> None:
    async with opened(server) as client:
        handle = await client.start_tool("half a minute")
        await clock.advance(32)
        assert handle.done
        assert (await handle.result()).content[0].text == "done"  # type: ignore[union-attr]
    assert polls(server, handle) == [5.0, 15.0]
    assert listens(server) == 1


async def test_an_error_that_is_told_is_the_outcome(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("fails", [work(3), fail(-32000, "no")], poll_interval_ms=1000 * HINT_S)
    async with opened(server) as client:
        handle = await client.start_tool("fails")
        await clock.advance(3.1)
        assert handle.done
    assert polls(server, handle) == []


async def test_a_server_that_has_proved_itself_is_polled_as_seldom_as_the_policy_says(
    server: ScriptedServer, clock: ManualClock
) -> None:
    async with opened(server, poll=PollPolicy(jitter=0.0, backstop_s=200.0)) as client:
        await client.start_tool("half a minute")
        handle = await client.start_tool("quarter of an hour")
        await clock.advance(902)
        assert handle.done
    assert polls(server, handle) == [5.0, 15.0, 35.0, 235.0, 435.0, 635.0, 835.0]


@requirement("law:1", "law:3")
async def test_what_was_said_before_it_was_known_whose_it_is_is_told_to_who_begins_to_observe_it(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint is not said again, and a poll may be far away."""
    said, asked = set[str](), anyio.Event()
    who = form("Who?", name="string")

    async def answer(context: object, params: object) -> ElicitResult:
        asked.set()
        return ElicitResult(action="accept", content={"name": "Ada"})

    def asks(task_id: str) -> Task | None:
        task = {"taskId": task_id, "status": "input_required", "ttlMs": None, "inputRequests": {"who": who}}
        return read_task(task) if task_id in said else None

    call = ServerSession.call

    async def called(self: ServerSession, *args: Any) -> Any:
        created = await call(self, *args)
        said.add(created.task.task_id)
        return created

    monkeypatch.setattr(ServerSession, "told", lambda self, task_id: asks(task_id))
    monkeypatch.setattr(ServerSession, "call", called)
    server.tool("asks", [ask("who", who), complete(DONE)], poll_interval_ms=3600_000, ttl_ms=None)
    async with opened(server, elicitation=answer) as client:
        handle = await client.start_tool("asks")
        await clock.advance(1)
        (record,) = await client.records()
        assert record.task_id == handle.task_id
        assert isinstance(record.state, Observing)
        assert [question.key for question in record.state.questions] == ["who"]
        assert asked.is_set()


@requirement("law:1", "law:3", "law:8")
@pytest.mark.parametrize("said", ["a question", "an end", "what is known", "how far it is"])
async def test_what_is_said_of_a_task_that_nobody_observes_any_more_is_journaled(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """A hint is not said again. It comes to whoever goes on with the task, which may be another process."""
    tell, unheard, asked = list[Callable[[Task], None]](), anyio.Event(), list[object]()
    taken, take = list[str](), MemoryJournal.take

    async def watch(self: object, heard: Callable[[Task], None]) -> None:
        tell.append(heard)
        await anyio.sleep_forever()

    async def counted(self: MemoryJournal, record_id: str, *args: Any) -> Any:
        taken.append(record_id)
        return await take(self, record_id, *args)

    async def answer(context: object, params: object) -> ElicitResult:
        asked.append(params)
        return ElicitResult(action="accept", content={"name": "Ada"})

    monkeypatch.setattr(ServerSession, "watch", watch)
    monkeypatch.setattr(ServerSession, "let_go", lambda self, task_id: unheard)
    monkeypatch.setattr(MemoryJournal, "take", counted)
    server.tool("asks", [work(7200), complete(DONE)], poll_interval_ms=3600_000, ttl_ms=None)
    async with opened(server, elicitation=answer) as client:
        with anyio.move_on_after(0.1):
            await client.call_tool("asks", idempotency_key="k")
        await clock.advance(0.05)
        (record,) = await client.records()
        assert record.owner is not None, "what is just being said is to be journaled"
        await clock.advance(3601)  # nor is a poll of it to come
        client._engine.scheduler.afterwards.write_again()  # as now and then
        gc.collect()
        (record,) = await client.records()
        assert isinstance(record.state, Observing)
        assert record.owner is None
        fields = {"status": "input_required", "inputRequests": {"who": form("Who?", name="string")}}
        if said == "an end":
            fields = {"status": "completed", "result": DONE}
        if said == "what is known":
            fields = {}
        if said == "how far it is":
            fields = {"statusMessage": "half"}
        for _ in range(3):
            tell[0](read_task({**record.state.task.to_wire(), **fields}))
            await anyio.wait_all_tasks_blocked()
        (record,) = await client.records()
        assert record.owner is None
        assert record.finished == (said == "an end")
        if isinstance(record.state, Observing):
            assert [question.key for question in record.state.questions] == ["who"] * (said == "a question")
        assert len(taken) == (said in ("a question", "an end")), "what nobody needs is not written"
        assert asked == [], "nobody is asked for what nobody waits for"
        unheard.set()
        if said == "an end":
            result = await client.call_tool("asks", idempotency_key="k")
            assert result.content[0].text == "done"  # type: ignore[union-attr]


@requirement("law:4", "law:5")
async def test_a_client_that_is_closed_has_others_go_on_at_once_whatever_is_still_heard(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerSession, "let_go", lambda self, task_id: anyio.Event())
    server.tool("slow", [work(7200), complete(DONE)], poll_interval_ms=3600_000, ttl_ms=None)
    journal = MemoryJournal()
    async with opened(server, journal=journal) as other:
        async with opened(server, journal=journal) as client:
            await client.start_tool("slow", idempotency_key="observed")
            with anyio.move_on_after(0.1):
                await client.call_tool("slow", idempotency_key="just let go of")
        assert [record.owner for record in await other.records()] == [None, None], "and due when it was"


@requirement("law:1", "law:3", "law:8")
async def test_a_task_that_is_journaled_when_nobody_waits_for_it_any_more_is_let_go_of_as_any_other(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it at the server by then is known to whoever goes on with it, and taken back in time."""
    let_go, save, gives_up = list[str](), MemoryJournal.save, anyio.CancelScope()
    reached, go = anyio.Event(), anyio.Event()

    def waits(self: object, task_id: str) -> Task | None:
        return read_task({"taskId": task_id, "status": "working", "ttlMs": None, "requestState": "waits"})

    async def saved(self: MemoryJournal, record: TaskRecord, **options: Any) -> None:
        if record.task_id is not None:
            reached.set()
            await go.wait()
        await save(self, record, **options)

    async def call() -> None:
        with gives_up:
            await client.call_tool("slow", idempotency_key="k")

    monkeypatch.setattr(ServerSession, "told", waits)
    monkeypatch.setattr(ServerSession, "let_go", lambda self, task_id: let_go.append(task_id))
    monkeypatch.setattr(MemoryJournal, "save", saved)
    server.tool("slow", [work(7200), complete(DONE)], poll_interval_ms=3600_000, ttl_ms=None)
    async with opened(server) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await reached.wait()
        gives_up.cancel()
        await anyio.wait_all_tasks_blocked()
        go.set()
        await clock.advance(1)
        (record,) = await client.records()
        assert isinstance(record.state, Observing)
        assert record.state.request_state == "waits"
        assert let_go == [record.task_id]
        assert record.owner is None


async def test_of_two_calls_that_have_one_task_one_that_runs_is_told() -> None:
    task = read_task({"taskId": "t", "status": "working", "ttlMs": None})

    def call(*, observed: bool) -> Drive:
        state = Observing(task=task, received_at=0.0, due_at=0.0) if observed else Calling()
        record = TaskRecord(
            record_id="r", scope=Scope("e", ""), tool="tool", state=state, created_at=0.0, updated_at=0.0
        )
        return Drive(record)

    told: list[Drive] = []
    hearsay = Hearsay(ScriptedServer().session(), told=lambda drive, task: told.append(drive))
    first, second = call(observed=True), call(observed=True)
    first.running = True
    for drive in (first, first, second, call(observed=False)):
        hearsay.add(drive)
    hearsay.heard(task)
    first.running = False
    hearsay.heard(task)
    hearsay.add(second)
    hearsay.heard(task)
    assert told == [first, first, second]


@requirement("law:5")
async def test_what_is_said_of_a_task_that_another_client_has_by_now_is_no_loss_of_the_first_ones(
    server: ScriptedServer,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = MemoryJournal()
    monkeypatch.setattr(ServerSession, "let_go", lambda self, task_id: anyio.Event())
    server.tool("slow", [work(7200), complete(DONE)], poll_interval_ms=3600_000, ttl_ms=None)
    async with opened(server, journal=journal) as other:
        async with opened(server, journal=journal) as client:
            with anyio.move_on_after(0.1):
                await client.call_tool("slow", idempotency_key="k")
            await clock.advance(1)
            handle = await other.start_tool("slow", idempotency_key="k")
            await clock.advance(1)
            asks = {"status": "input_required", "inputRequests": {"who": form("Who?", name="string")}}
            assert handle.task is not None
            client._engine.scheduler.performer.hearsay.heard(read_task({**handle.task.to_wire(), **asks}))
            await anyio.wait_all_tasks_blocked()
        await clock.advance(1)
        (record,) = await other.records()
        assert isinstance(record.state, Observing)
        assert record.state.questions == ()
    assert [one.levelname for one in caplog.records if "another client's now" in one.message] == ["WARNING"]
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


@requirement("law:3")
async def test_each_answer_to_what_is_told_goes_by_itself_where_the_server_takes_it(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerSession, "takes_each_answer", lambda self, ref: True)
    typed = anyio.Event()

    async def answer(context: object, params: object) -> ElicitResult:
        await typed.wait()
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def roots(context: object) -> ListRootsResult:
        return ListRootsResult(roots=[])

    both = ask({"who": form("Who?", name="string"), "where": {"method": "roots/list"}})
    server.tool("asks", [work(7), both, work(4), complete(DONE)], poll_interval_ms=3600 * 1000)
    async with opened(server, elicitation=answer, roots=roots) as client:
        handle = await client.start_tool("asks")
        await clock.advance(7.5)
        assert [[*one.params["inputResponses"]] for one in server.witness.log("tasks/update")] == [["where"]]
        typed.set()
        await clock.advance(5)
        assert handle.done


async def test_a_question_that_is_told_is_asked_at_once_and_once(
    server: ScriptedServer, clock: ManualClock
) -> None:
    asked: list[float] = []

    async def answer(context: object, params: object) -> ElicitResult:
        asked.append(clock.monotonic())
        return ElicitResult(action="accept", content={"name": "Ada"})

    question = ask("who", form("Who?", name="string"))
    server.tool("asks", [work(7), question, work(4), complete(DONE)], poll_interval_ms=1000 * HINT_S)
    server.notifies = Notifies(twice=True)
    async with opened(server, elicitation=answer) as client:
        handle = await client.start_tool("asks")
        await clock.advance(11.1)
        assert handle.done
    assert asked == [pytest.approx(7.0, abs=0.1)]
    assert len(server.witness.log("tasks/update")) == 1


@pytest.mark.parametrize(
    "notifies",
    [
        None,
        Notifies(at_most=0),
        Notifies(at_most=0, ends_after=0),
        Notifies(ends_after=0),
        Notifies(breaks_after=0),
        Notifies(breaks_after_s=3.0),
    ],
    ids=["refused", "agreed to nothing", "nothing and ended", "ended", "broken", "broken later"],
)
async def test_where_nothing_is_told_it_costs_one_attempt_and_nothing_else(
    server: ScriptedServer, clock: ManualClock, notifies: Notifies | None
) -> None:
    server.notifies = notifies
    async with opened(server) as client:
        handles = [await client.start_tool("half a minute") for _ in range(2)]
        await clock.advance(60)
        assert all(handle.done for handle in handles)
    assert polls(server, handles[0]) == [5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0]
    assert listens(server) == 1


async def test_a_stream_on_which_the_server_agreed_to_nothing_is_let_go_of(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.notifies = Notifies(at_most=0)
    session = server.session()
    async with opened(server, session=session) as client:
        await client.start_tool("half a minute")
        await clock.advance(10)
        assert listens(server) == 1
        assert not session._streams


@pytest.mark.parametrize(
    "reply", [HttpError(500), HttpError(401), Garbled(), LostReply(), ErrorReply(-32602, "no")], ids=repr
)
async def test_where_the_attempt_fails_it_is_not_made_again(
    server: ScriptedServer, clock: ManualClock, reply: Any
) -> None:
    server.misbehave("subscriptions/listen", reply)
    async with opened(server) as client:
        handle = await client.start_tool("half a minute")
        await clock.advance(60)
        assert handle.done
    assert polls(server, handle) == [5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0]
    assert listens(server) == 1


async def test_a_server_that_promises_and_says_nothing_is_believed_until_the_first_poll_that_shows_it(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.notifies = Notifies(silent=True)
    async with opened(server) as client:
        first = await client.start_tool("half a minute")
        await clock.advance(2)
        second = await client.start_tool("quarter of an hour")
        await clock.advance(58)
        assert first.done
        await clock.advance(1000)
        assert second.done
    assert polls(server, first) == [5.0, 15.0, 35.0]
    times = [one - 2 for one in polls(server, second)]
    assert times[:2] == [5.0, 15.0]
    apart = [round(later - earlier, 1) for earlier, later in pairwise(times[3:])]
    assert set(apart) == {HINT_S}
    assert listens(server) == 2  # the second task came later


async def test_a_stream_that_breaks_after_it_was_of_use_is_opened_again_and_polls_keep_the_pace_meanwhile(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.notifies = Notifies(breaks_after=1)
    async with opened(server) as client:
        await client.start_tool("half a minute")
        handle = await client.start_tool("quarter of an hour")
        await clock.advance(32)
        server.notifies = Notifies()
        await clock.advance(870.5)
        assert handle.done
    assert listens(server) == 2
    assert len(polls(server, handle)) < 40


async def test_a_stream_that_breaks_for_good_leaves_the_polls_at_the_servers_pace(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.notifies = Notifies(breaks_after=1)
    async with opened(server) as client:
        await client.start_tool("half a minute")
        handle = await client.start_tool("quarter of an hour")
        await clock.advance(31)
        server.notifies = None
        await clock.advance(900)
        assert handle.done
    assert listens(server) == 2
    late = [one for one in polls(server, handle) if one > 60]
    assert [later - earlier for earlier, later in pairwise(late)] == pytest.approx(
        [HINT_S] * (len(late) - 1), abs=0.2
    )


async def test_tasks_that_come_later_are_listened_for_too_on_one_stream(
    server: ScriptedServer, clock: ManualClock
) -> None:
    async with opened(server) as client:
        handles = []
        for _ in range(10):
            handles.append(await client.start_tool("half a minute"))
            await clock.advance(0.5)
        await clock.advance(30)
        assert all(handle.done for handle in handles[:7])
        await clock.advance(3)
        assert all(handle.done for handle in handles)
    assert all(len(polls(server, handle)) <= 5 for handle in handles)
    assert listens(server) <= 6
    left = [one for one in server.witness.listenings if one.ended_at is None]
    assert len(left) == 0


async def test_of_more_tasks_than_a_stream_holds_the_others_are_polled(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_tasks_client.old.listener._MOST_IDS", 3)
    async with opened(server) as client:
        handles = [await client.start_tool("half a minute") for _ in range(5)]
        await clock.advance(40)
        assert all(handle.done for handle in handles)
    asked = [one.task_ids for one in server.witness.listenings]
    assert all(len(ids) <= 3 for ids in asked)
    assert sorted(len(server.witness.log("tasks/get", handle.task_id)) for handle in handles)[-1] == 7


@pytest.mark.parametrize(
    "notifies",
    [
        Notifies(method="notifications/tasks/status"),
        Notifies(twice=True),
        Notifies(swapped=True),
        Notifies(foreign=["somebody-else's"]),
        Notifies(payloads=False),
        Notifies(twice=True, swapped=True, foreign=["a", "b"]),
    ],
    ids=["older name", "twice", "swapped", "foreign", "without payloads", "all of it"],
)
async def test_however_they_come_the_outcome_is_the_same(
    server: ScriptedServer, clock: ManualClock, notifies: Notifies
) -> None:
    server.notifies = notifies
    asked: list[str] = []

    async def answer(context: Any, params: object) -> ElicitResult:
        asked.append(context.key)
        return ElicitResult(action="accept", content={"name": "Ada"})

    steps = [
        work(8, "first"),
        ask("one", form("One?", name="string")),
        work(3, "second"),
        work(3, "third"),
        ask("two", form("Two?", name="string")),
        work(9, "last"),
        complete(DONE),
    ]
    server.tool("asks", steps, poll_interval_ms=1000 * HINT_S)
    async with opened(server, elicitation=answer) as client:
        handle = await client.start_tool("asks", idempotency_key="k")
        await clock.advance(120)
        assert (await handle.result()).content[0].text == "done"  # type: ignore[union-attr]
    assert len(asked) == 2
    server.witness.check(at_most_once=True)


async def test_what_changed_before_the_agreement_is_found_by_the_poll_after_it(
    server: ScriptedServer, clock: ManualClock
) -> None:
    """A stream tells of changes, not of what is."""
    server.tool("quick", [work(0.1), complete(DONE)], poll_interval_ms=1000 * HINT_S)
    async with opened(server) as client:
        await client.start_tool("half a minute")
        handle = await client.start_tool("quick")
        await clock.advance(5.1)
        assert handle.done
    assert polls(server, handle) == [5.0]


async def test_calls_that_end_at_once_are_not_listened_for(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("short", [work(0.1), complete(DONE)], poll_interval_ms=100)
    async with opened(server) as client:
        for _ in range(3):
            handle = await client.start_tool("short")
            await clock.advance(0.2)
            assert handle.done
    assert listens(server) == 0


async def test_a_server_that_never_answers_the_attempt_holds_nothing_up(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.misbehave("subscriptions/listen", Stalled())
    async with opened(server) as client:
        handle = await client.start_tool("half a minute")
        await clock.advance(35.1)
        assert handle.done
    assert polls(server, handle) == [5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0]


async def test_a_cancellation_is_told_of_as_well(server: ScriptedServer, clock: ManualClock) -> None:
    async with opened(server) as client:
        handle = await client.start_tool("quarter of an hour")
        await clock.advance(17)
        await handle.cancel()
        await clock.advance(0.1)
        assert handle.done
    assert polls(server, handle) == [5.0, 15.0]


async def test_after_a_restart_the_server_is_asked_again_and_polled_at_its_pace_until_then(
    server: ScriptedServer, clock: ManualClock
) -> None:
    journal = MemoryJournal()
    async with opened(server, journal=journal) as client:
        await client.start_tool("quarter of an hour")
        await clock.advance(100)
    async with opened(server, journal=journal) as client:
        (handle,) = await client.resume()
        await clock.advance(6)
        assert polls(server, handle) == [5.0, 15.0, 35.0, 75.0, 100.0, 105.0]
        await clock.advance(800)
        assert handle.done
    assert listens(server) == 2


async def test_what_ended_while_nobody_waited_is_seen_at_once_by_whoever_waits_again(
    server: ScriptedServer, clock: ManualClock
) -> None:
    """While it is not driven, nothing that is told of it is heard."""
    async with opened(server) as client, anyio.create_task_group() as tasks:
        await client.start_tool("half a minute")
        given_up = anyio.CancelScope()
        tasks.start_soon(call, client, given_up, "quarter of an hour")
        await clock.advance(300)
        given_up.cancel()
        await clock.advance(700)
        began = clock.monotonic()
        result: list[float] = []
        tasks.start_soon(again, client, result, clock)
        await clock.advance(10)
        assert result
        assert result[0] - began <= HINT_S


async def call(client: TasksClient, scope: anyio.CancelScope, tool: str) -> None:
    with scope:
        await client.call_tool(tool, idempotency_key="again")


async def again(client: TasksClient, result: list[float], clock: ManualClock) -> None:
    await client.call_tool("quarter of an hour", idempotency_key="again")
    result.append(clock.monotonic())


@pytest.mark.parametrize("payloads", [True, False])
async def test_what_is_told_while_a_poll_is_under_way_is_not_undone_by_its_reply(
    server: ScriptedServer, clock: ManualClock, payloads: bool
) -> None:
    server.notifies = Notifies(payloads=payloads)
    options = {"poll_interval_ms": 1000 * HINT_S, "ttl_ms": None}
    server.tool("proves itself", [work(3), work(50_000, "on"), complete(DONE)], **options)
    question = ask("who", form("Who?", name="string"))
    server.tool("asks", [work(65.5), question, work(1), complete(DONE)], **options)

    async def answer(context: object, params: object) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with opened(server, elicitation=answer) as client:
        await client.start_tool("proves itself")
        handle = await client.start_tool("asks")
        await clock.advance(60)
        assert polls(server, handle) == [5.0]
        # The reply to the next poll is made before the question is told, and comes after it.
        server.on_request = lambda request: Delayed(1.0) if request.at < clock.monotonic() + 1 else None
        await clock.advance(6)
        assert polls(server, handle) == [5.0, 65.0]
        server.on_request = None
        await clock.advance(2 * HINT_S + 1)
        assert handle.done


async def test_a_stream_that_is_refused_a_task_leaves_it_to_the_polls(
    server: ScriptedServer, clock: ManualClock
) -> None:
    options = {"poll_interval_ms": 1000 * HINT_S, "ttl_ms": None}
    server.tool("proves itself", [work(3), work(50_000, "on"), complete(DONE)], **options)
    server.tool("five minutes", [work(300), complete(DONE)], **options)
    async with opened(server, poll=PollPolicy(jitter=0.0, backstop_s=600.0)) as client:
        await client.start_tool("proves itself")
        handle = await client.start_tool("five minutes")
        await clock.advance(100)
        server.notifies = Notifies(at_most=1)
        await client.start_tool("proves itself")
        await clock.advance(201 + HINT_S)
        assert handle.done


async def test_a_stream_that_breaks_again_and_again_is_opened_more_and_more_rarely(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.notifies = Notifies(breaks_after=1)
    steps = [work(1, f"{number}") for number in range(600)]
    server.tool("chatty", [*steps, complete(DONE)], poll_interval_ms=1000 * HINT_S, ttl_ms=None)
    async with opened(server) as client:
        await client.start_tool("chatty")
        await clock.advance(500)
    assert 5 <= listens(server) <= 16


async def test_of_many_notifications_that_come_at_once_the_last_is_enough(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.notifies = Notifies(twice=True)
    steps = [work(0.001, f"{number}") for number in range(200)]
    server.tool("chatty", [work(2), *steps, complete(DONE)], poll_interval_ms=1000 * HINT_S)
    async with opened(server) as client:
        handle = await client.start_tool("chatty")
        await clock.advance(3)
        assert handle.done
    assert polls(server, handle) == []


async def test_an_end_is_not_forgotten_for_what_is_told_right_after_it(
    server: ScriptedServer, clock: ManualClock
) -> None:
    async with opened(server) as client:
        handle = await client.start_tool("half a minute")
        assert handle.task is not None
        assert handle._drive is not None
        ended = read_task({**handle.task.to_wire(), "status": "completed", "result": {"content": []}})
        tell = client._engine.scheduler.performer._told
        tell(handle._drive, ended)
        tell(handle._drive, handle.task)
        await clock.advance(0)
        assert handle.done


async def test_what_is_told_while_an_earlier_notification_is_being_saved_is_heard_after_it(
    server: ScriptedServer, clock: ManualClock
) -> None:
    class Slow(MemoryJournal):
        async def save(self, record: TaskRecord, *, known: bool = False) -> None:
            await clock.wait(anyio.Event(), 0.5)
            await super().save(record, known=known)

    steps = [work(3, "a"), work(0.1, "b"), work(0.1, "c"), complete(DONE)]
    server.tool("quick at its end", steps, poll_interval_ms=1000 * HINT_S)
    async with opened(server, journal=Slow()) as client, anyio.create_task_group() as tasks:
        handles: list[TaskHandle] = []

        async def start() -> None:
            handles.append(await client.start_tool("quick at its end"))

        tasks.start_soon(start)
        await clock.advance(4.5)
        assert handles[0].done


async def test_a_notification_that_comes_a_moment_after_the_poll_that_found_the_same_is_no_silence(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool(
        "chatty", [work(3, "a"), work(7, "b"), work(900, "c"), complete(DONE)], poll_interval_ms=60_000
    )
    async with opened(server) as client:
        drive = (await client.start_tool("chatty"))._drive
        assert drive is not None
        await clock.advance(9.99)
        listener = client._engine.scheduler.performer.listener
        for silences in range(3):
            assert not listener._in_vain
            assert listener._silences == max(0, silences - 1)
            listener.doubt(drive)
            await clock.advance(1)
            if silences == 2:
                listener.doubt(drive)
            await clock.advance(4)
        assert listener._in_vain
        assert listener._doubts == {}, "or it would be held for ever"


async def test_an_end_that_is_told_during_a_poll_stops_the_poll_which_others_wait_for(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("told", [work(6), complete(DONE)], poll_interval_ms=1000 * HINT_S)
    server.tool("waits", [work(60), complete(DONE)], poll_interval_ms=8000)
    policy = PollPolicy(jitter=0.0, polls_in_flight=1)
    async with scripted_client(server.session(), journal=MemoryJournal(), poll=policy) as client:
        told = await client.start_tool("told")
        waits = await client.start_tool("waits")
        server.misbehave("tasks/get", Stalled())
        await clock.advance(HINT_S + 0.5)
        assert told._drive is not None
        assert told._drive.polling
        await clock.advance(4)
        assert told.done
        assert len(server.witness.log("tasks/get", waits.task_id)) == 1


async def test_two_calls_with_one_task_are_both_polled(server: ScriptedServer, clock: ManualClock) -> None:
    """What is told of it is told to one of them. The server sees the polls of both, and is not asked here."""
    async with scripted_client(server.session(), journal=MemoryJournal(), poll=STEADY) as client:
        first = await client.start_tool("quarter of an hour")
        assert first.task_id is not None
        session = client._engine._session
        keep = session.call

        async def same(made: Any, leaving: Any) -> Any:
            reply = await keep(made, leaving)
            reply.task.__dict__["task_id"] = first.task_id
            return reply

        session.call = same  # type: ignore[method-assign]
        second = await client.start_tool("quarter of an hour")
        assert second.task_id == first.task_id
        await clock.advance(903 + HINT_S)
        assert first.done
        assert second.done


def test_a_backstop_is_more_than_nothing() -> None:
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="backstop_s must be more than 0"):
            PollPolicy(backstop_s=wrong)


async def test_a_stale_snapshot_changes_nothing(server: ScriptedServer, clock: ManualClock) -> None:
    server.misbehave("tasks/get", Stale())
    async with opened(server) as client:
        handle = await client.start_tool("half a minute")
        await clock.advance(33)
        assert handle.done


# ── several at once ───────────────────────────────────────────────────────────────────────────


async def test_a_question_is_asked_at_once_though_an_older_snapshot_comes_right_behind_it(
    server: ScriptedServer, clock: ManualClock
) -> None:
    asked: list[float] = []

    async def answer(context: object, params: object) -> ElicitResult:
        asked.append(clock.monotonic())
        return ElicitResult(action="accept", content={"name": "Ada"})

    question = form("Who?", name="string")
    steps = [work(40), ask("who", question), work(1), complete(DONE)]
    server.tool("asks", steps, poll_interval_ms=1000 * HINT_S, ttl_ms=None)
    between = Between(server)
    between.passes = lambda task: False
    async with opened(server, session=between.session, elicitation=answer) as client:
        handle = await client.start_tool("asks")
        await clock.advance(40.1)
        between.tell(told(handle, clock, status="input_required", inputRequests={"who": question}))
        between.tell(told(handle, clock, ago_s=1.0, statusMessage="a step before it"))
        await clock.advance(0.1)
        assert asked == [pytest.approx(40.1)]
        await clock.advance(60)
        assert handle.done
    assert len(asked) == 1


async def test_an_end_that_is_told_in_short_and_then_in_full_is_seen_at_once(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("long", [work(100), complete(DONE)], poll_interval_ms=600_000, ttl_ms=None)
    between = Between(server)
    between.passes = lambda task: False
    async with opened(server, session=between.session) as client:
        handle = await client.start_tool("long")
        await clock.advance(100)
        between.tell(told(handle, clock, status="completed"))
        between.tell(told(handle, clock, status="completed", result=DONE))
        await clock.advance(0)
        assert handle.done
        assert (await handle.result()).content[0].text == "done"  # type: ignore[union-attr]
    assert polls(server, handle) == []


async def test_of_much_progress_that_is_told_at_once_only_the_last_is_heard(
    server: ScriptedServer, clock: ManualClock
) -> None:
    class Counting(MemoryJournal):
        saved = 0

        async def save(self, record: TaskRecord, *, known: bool = False) -> None:
            self.saved += 1
            await super().save(record, known=known)

    journal, between = Counting(), Between(server)
    async with opened(server, session=between.session, journal=journal) as client:
        handle = await client.start_tool("quarter of an hour")
        await clock.advance(20)
        before = journal.saved
        for number in range(1000):
            between.tell(told(handle, clock, statusMessage=f"{number}"))
        await clock.advance(0)
        assert handle.task is not None
        assert handle.task.status_message == "999"
    assert journal.saved - before <= 3  # the client's last words are one of them


async def test_of_much_that_does_not_fit_little_is_kept_and_the_task_is_polled_at_the_servers_pace(
    server: ScriptedServer, clock: ManualClock
) -> None:
    between, kept = Between(server), 0
    async with opened(server, session=between.session) as client:
        await client.start_tool("half a minute")
        handle = await client.start_tool("quarter of an hour")
        await clock.advance(40)
        assert polls(server, handle)[-1] == 35.0

        def let_go(_: object) -> None:
            nonlocal kept
            kept -= 1

        watched = []
        for number in range(4000):
            # A question that is not said, and then the task as it was: no two in a row are alike.
            status = "working" if number % 2 else "input_required"
            one, kept = told(handle, clock, status=status), kept + 1
            watched.append(weakref.ref(one, let_go))
            between.tell(one)
            del one
        assert kept < 400
        await clock.advance(HINT_S)
        assert polls(server, handle)[-1] > 35.0


async def test_of_many_questions_that_are_told_one_by_one_at_once_each_is_asked_within_an_interval(
    server: ScriptedServer, clock: ManualClock
) -> None:
    asked: list[str] = []

    async def answer(context: Any, params: object) -> ElicitResult:
        asked.append(context.key)
        return ElicitResult(action="accept", content={"name": "Ada"})

    questions = {f"{number}": form("Who?", name="string") for number in range(50)}
    steps = [work(40), ask(questions), work(1), complete(DONE)]
    server.tool("asks", steps, poll_interval_ms=1000 * HINT_S, ttl_ms=None)
    between = Between(server)
    between.passes = lambda task: False
    async with opened(server, session=between.session, elicitation=answer) as client:
        handle = await client.start_tool("asks")
        await clock.advance(40.1)
        for number in range(1, 51):
            some = dict(list(questions.items())[:number])
            between.tell(told(handle, clock, status="input_required", inputRequests=some))
        await clock.advance(HINT_S)
    assert sorted(asked) == sorted(questions)


# ── a wall clock that jumps ───────────────────────────────────────────────────────────────────

HASTENINGS = pytest.mark.parametrize("by", ["a newer stream", "what is not believed"])


async def hasten(
    client: TasksClient, between: Between, handle: TaskHandle, clock: ManualClock, by: str
) -> None:
    """Have a task polled at the server's pace once more, though it is told of."""
    if by == "a newer stream":
        await client.start_tool("quarter of an hour")
    else:
        between.tell(told(handle, clock, status="completed"))


@HASTENINGS
async def test_however_often_a_poll_is_hastened_it_comes_when_it_was_planned_though_the_clock_was_set_back(
    server: ScriptedServer, clock: ManualClock, by: str
) -> None:
    between = Between(server)
    async with opened(server, session=between.session) as client:
        await client.start_tool("half a minute")
        handle = await client.start_tool("quarter of an hour")
        await clock.advance(40)
        clock.jump(-3600)
        for _ in range(15):
            await hasten(client, between, handle, clock, by)
            await clock.advance(HINT_S - 1)
    since = [35.0, *(one for one in polls(server, handle) if one > 35.0), 100.0]
    assert max(later - earlier for earlier, later in pairwise(since)) <= 2 * HINT_S


@HASTENINGS
async def test_no_poll_is_hastened_to_before_its_time_though_the_clock_was_set_forward(
    server: ScriptedServer, clock: ManualClock, by: str
) -> None:
    server.tool("long", [work(40_000), complete(DONE)], poll_interval_ms=3_600_000, ttl_ms=None)
    between = Between(server)
    async with opened(server, session=between.session) as client:
        handle = await client.start_tool("long")
        await clock.advance(300)
        clock.jump(7200)
        await hasten(client, between, handle, clock, by)
        await clock.advance(600)
        assert polls(server, handle) == []
        await clock.advance(2701)
    assert polls(server, handle) == [3600.0]


# ── polls that somebody waits for ─────────────────────────────────────────────────────────────


async def test_a_refresh_takes_one_interval_although_the_task_is_told_of(
    server: ScriptedServer, clock: ManualClock
) -> None:
    took: list[float] = []

    async def refresh() -> None:
        began = clock.monotonic()
        await handle.refresh()
        took.append(clock.monotonic() - began)

    async with opened(server) as client, anyio.create_task_group() as tasks:
        await client.start_tool("half a minute")
        handle = await client.start_tool("quarter of an hour")
        await clock.advance(40)
        assert polls(server, handle)[-1] == 35.0
        for wait_s in (60, 17, 90):
            tasks.start_soon(refresh)
            await clock.advance(wait_s)
    assert len(took) == 3
    assert max(took) <= HINT_S


async def test_tasks_are_polled_as_soon_as_their_stream_breaks_though_the_next_one_still_has_to_wait(
    server: ScriptedServer, clock: ManualClock
) -> None:
    steps = [work(1, f"{number}") for number in range(900)]
    server.tool("chatty", [*steps, complete(DONE)], poll_interval_ms=1000 * HINT_S, ttl_ms=None)
    server.notifies = Notifies(breaks_after=1)
    async with opened(server) as client:
        await client.start_tool("chatty")
        with anyio.fail_after(20):
            while listens(server) < 7:  # by then a minute, or nearly, is between two of them
                await clock.advance(1)
            server.notifies = Notifies(breaks_after_s=20.0)
            handle = await client.start_tool("quarter of an hour")
            while listens(server) < 8:
                await clock.advance(1)
        await clock.advance(10)
        await client.start_tool("chatty")
        await clock.advance(10 + 2.5 * HINT_S)
        broken = server.witness.listenings[7]
        assert broken.ending == "broken"
        assert listens(server) == 8
        assert broken.ended_at is not None
        since = [one.at - broken.ended_at for one in server.witness.log("tasks/get", handle.task_id)]
    assert [one for one in since if one >= 0] == pytest.approx([0.0, HINT_S, 2 * HINT_S], abs=0.1)


# ── whether a server keeps its word ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("others", ["chatty", "calm"])
async def test_a_server_that_tells_of_some_tasks_only_is_not_listened_to_after_the_second_silence(
    server: ScriptedServer, clock: ManualClock, others: str
) -> None:
    options = {"poll_interval_ms": 1000 * HINT_S, "ttl_ms": None}
    server.tool("chatty", [*(work(1, f"{number}") for number in range(900)), complete(DONE)], **options)
    server.tool("calm", [work(3), work(900, "on"), complete(DONE)], **options)
    server.tool("not told of", [*(work(70, f"{number}") for number in range(9)), complete(DONE)], **options)
    between = Between(server)
    async with opened(server, session=between.session) as client:
        handle = await client.start_tool("not told of")
        between.passes = lambda task: task.task_id != handle.task_id
        await client.start_tool(others)
        await clock.advance(124)
        assert polls(server, handle) == [5.0, 65.0]
        await clock.advance(46)
        (listening,) = server.witness.listenings
        assert listening.ended_at is None  # one may have been lost
        await clock.advance(150)
        assert listening.ended_at is not None
    late = [one for one in polls(server, handle) if one > 260]
    assert [round(later - earlier, 1) for earlier, later in pairwise(late)] == [HINT_S] * 11


async def test_a_server_that_tells_a_moment_after_the_polls_have_seen_it_is_listened_to_on(
    server: ScriptedServer, clock: ManualClock
) -> None:
    options = {"poll_interval_ms": 1000 * HINT_S, "ttl_ms": None}
    steps = [work(3), work(61.5, "proves itself"), *(work(60, f"{number}") for number in range(9))]
    server.tool("changes", [*steps, complete(DONE)], **options)
    between = Between(server)
    between.late_s = 1.0
    async with opened(server, session=between.session) as client:
        handle = await client.start_tool("changes")
        await clock.advance(300)
        (listening,) = server.witness.listenings
        assert listening.ended_at is None
    # From the second on each found a change that was half a second old, and told half a second later.
    assert polls(server, handle) == [5.0, 65.0, 125.0, 185.0, 245.0]


@pytest.mark.parametrize(
    "step",
    [complete(DONE), ask("who", form("Who?", name="string"))],
    ids=["an end", "a question"],
)
async def test_a_server_that_tells_everything_without_payloads_is_listened_to_on(
    server: ScriptedServer, clock: ManualClock, step: Step
) -> None:
    async def answer(context: object, params: object) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    server.notifies = Notifies(payloads=False)
    steps = [work(20), step] if step == complete(DONE) else [work(20), step, work(5), complete(DONE)]
    server.tool("short", steps, poll_interval_ms=1000 * HINT_S)
    async with opened(server, elicitation=answer) as client:
        handle = await client.start_tool("quarter of an hour")
        short = await client.start_tool("short")
        await clock.advance(600)
        assert short.done
        (listening,) = server.witness.listenings
        assert listening.ended_at is None
    assert len(polls(server, handle)) <= 15


async def test_after_a_stream_that_lasted_the_next_one_is_opened_as_soon_as_ever(
    server: ScriptedServer, clock: ManualClock
) -> None:
    """Something between here and the server may end each connection after some minutes."""
    server.notifies = Notifies(breaks_after_s=600.0)
    steps = [work(10, f"{number}") for number in range(900)]
    server.tool("chatty", [*steps, complete(DONE)], poll_interval_ms=1000 * HINT_S, ttl_ms=None)
    async with opened(server) as client:
        await client.start_tool("chatty")
        await clock.advance(3100)
        pauses = [
            later.began_at - (earlier.ended_at or math.inf)
            for earlier, later in pairwise(server.witness.listenings)
        ]
    assert len(pauses) == 5
    assert all(0.9 < pause < 1.5 for pause in pauses)
