"""What the server tells by itself: a shortcut where there is one, and missed by nobody where not."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import MemoryJournal, PollPolicy, TaskHandle, TaskRecord, TasksClient
from mcp_tasks_client.testing import (
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
    ask,
    complete,
    fail,
    form,
    scripted_client,
    text_result,
    work,
)
from mcp_tasks_client.wire import read_task

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
async def opened(server: ScriptedServer, **options: Any) -> AsyncIterator[TasksClient]:
    with anyio.fail_after(30):
        options = {"journal": MemoryJournal(), "poll": STEADY, **options}
        async with scripted_client(server.session(), **options) as client:
            yield client
    server.witness.check()


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
    monkeypatch.setattr("mcp_tasks_client.listener._MOST_IDS", 3)
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
            await clock.advance(5)
        assert listener._in_vain


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
