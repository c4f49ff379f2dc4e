"""What a witness holds against a client, and what it does not."""

from __future__ import annotations

import math

import pytest

from mcp_tasks_client import TaskRef
from mcp_tasks_client.errors import ConnectionLostError
from mcp_tasks_client.sessions.base import INVALID_PARAMS
from mcp_tasks_client.testing import (
    ErrorReply,
    Fault,
    HttpError,
    LostReply,
    LostRequest,
    ManualClock,
    ScriptedServer,
    ask,
    ask_first,
    complete,
    hint,
    reply,
    work,
)
from tests.testing.asking import ADA, BOB, DONE, NAME, call, catch, refused, start

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("wait_s", "early"), [(0.0, True), (0.99, True), (0.9995, False), (1.0, False)])
@pytest.mark.parametrize("polls", [0, 1])
async def test_a_poll_before_the_hint_of_the_last_reply_is_early(
    server: ScriptedServer, clock: ManualClock, wait_s: float, early: bool, polls: int
) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session()
    ref = await start(session)
    for _ in range(polls):
        await clock.advance(1)
        await session.get(ref)
    await clock.advance(wait_s)
    await session.get(ref)
    assert [poll.not_before for poll in server.witness.early_polls] == ([polls + 1.0] if early else [])
    if early:
        with pytest.raises(AssertionError, match="too early"):
            server.witness.check()
    else:
        server.witness.check()


@pytest.mark.parametrize("fault", [LostRequest(), LostReply(), HttpError(500)])
async def test_a_poll_that_failed_counts_as_one(
    server: ScriptedServer, clock: ManualClock, fault: Fault
) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session()
    ref = await start(session)
    await clock.advance(1)
    server.misbehave("tasks/get", fault)
    await catch(session, "tasks/get", ref)
    await clock.advance(0.5)
    await session.get(ref)
    assert [poll.at for poll in server.witness.early_polls] == [1.5]


async def test_a_poll_whose_credential_was_refused_is_repeated_at_once_and_once(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session()
    ref = await start(session)
    await clock.advance(1)
    server.misbehave("tasks/get", HttpError(401), None, HttpError(401), HttpError(401))
    await catch(session, "tasks/get", ref)
    await session.get(ref)
    await clock.advance(1)
    await catch(session, "tasks/get", ref)
    await catch(session, "tasks/get", ref)
    assert server.witness.early_polls == []
    await session.get(ref)
    assert [poll.at for poll in server.witness.early_polls] == [2.0]


async def test_the_hint_that_counts_is_the_last_one_that_arrived(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool(
        "tool", [work(10), hint(poll_interval_ms=100), work(5), hint(poll_interval_ms=None), work(math.inf)]
    )
    session = server.session()
    ref = await start(session)
    await clock.advance(10)
    server.misbehave("tasks/get", LostReply())
    await catch(session, "tasks/get", ref)
    await clock.advance(0.5)
    await session.get(ref)  # nobody has heard of the shorter hint
    assert len(server.witness.early_polls) == 1
    await clock.advance(0.1)
    await session.get(ref)
    await clock.advance(5)
    await session.get(ref)
    await session.get(ref)  # no hint, no haste
    assert len(server.witness.early_polls) == 1


async def test_a_poll_before_a_retry_after_is_early(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("tool", [work(math.inf)], poll_interval_ms=None)
    session = server.session()
    ref = await start(session)
    server.misbehave("tasks/get", HttpError(503, retry_after_s=30))
    await catch(session, "tasks/get", ref)
    await session.get(ref)
    await clock.advance(29)
    await session.get(ref)
    assert [poll.at for poll in server.witness.early_polls] == [0.0, 29.0]
    await clock.advance(1)
    await session.get(ref)
    await clock.advance(0.1)
    await session.get(ref)
    assert len(server.witness.early_polls) == 2


async def test_the_retry_after_of_another_request_counts_for_polls_too_but_not_for_one_under_way(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("tool", [work(math.inf)], poll_interval_ms=None)
    session = server.session()
    ref = await start(session)
    server.misbehave("tasks/update", ErrorReply(-32000, "slow down", http_status=429, retry_after_s=30))
    await catch(session, "tasks/update", ref)
    await session.get(ref)
    assert server.witness.early_polls == []
    await clock.advance(1)
    await session.get(ref)
    assert [poll.not_before for poll in server.witness.early_polls] == [30.0]


async def test_a_retry_after_that_was_lost_does_not_count(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session()
    ref, other = await start(session), await start(session)
    server.misbehave("tasks/cancel", HttpError(503, retry_after_s=30))
    await catch(session, "tasks/cancel", other)
    await clock.advance(1)
    await session.get(ref)  # it was about another task
    server.witness.check()


async def test_answers_are_kept_by_question_and_must_not_differ(server: ScriptedServer) -> None:
    server.tool("tool", [ask("name", NAME), complete(DONE)])
    session = server.session()
    ref = await start(session)
    for fault, payload in ((LostRequest(), ADA), (None, ADA), (None, ADA)):
        server.misbehave("tasks/update", fault)
        try:
            await session.update(ref, {"name": payload})
        except ConnectionLostError:
            assert fault is not None
    assert server.witness.answers == {(ref.task_id, "name"): [ADA]}
    server.witness.check()
    await session.update(ref, {"name": BOB})
    assert server.witness.answers == {(ref.task_id, "name"): [ADA, BOB]}
    with pytest.raises(AssertionError, match="answered in 2 ways"):
        server.witness.check()


async def test_calls_are_counted_by_intent_as_far_as_they_ran(clock: ManualClock) -> None:
    server = ScriptedServer(clock=clock)
    server.tool("task", [work(math.inf)])
    server.tool("plain", [ask_first({}), reply(DONE)])
    session = server.session()
    ref = await start(session, "task", b=1, a=2)
    server.misbehave("tools/call", LostRequest(), LostReply())
    for _ in range(2):
        with pytest.raises(ConnectionLostError):
            await call(session, "task", arguments={"a": 2, "b": 1})
    await call(session, "plain")
    intent = ("task", '{"a":2,"b":1}')
    assert server.witness.calls == {intent: 2}
    assert server.witness.created[ref.task_id] == intent
    server.witness.check()
    with pytest.raises(AssertionError, match=r'task \{"a":2,"b":1\} ran 2 times'):
        server.witness.check(at_most_once=True)


async def test_the_host_may_say_what_an_intent_is(clock: ManualClock) -> None:
    server = ScriptedServer(clock=clock, identify=lambda tool, arguments: arguments["order"])
    server.tool("task", [reply(DONE)])
    for attempt in range(2):
        await call(server.session(), "task", arguments={"order": 42, "attempt": attempt})
    assert server.witness.calls == {42: 2}


async def test_everything_that_arrived_is_in_the_log(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("tool", [work(math.inf)])
    session = server.session()
    ref, other = await start(session, x=1), await start(session)
    await clock.advance(3)
    for one in (ref, other):
        await session.get(one)
    with refused(INVALID_PARAMS):
        await session.get(TaskRef("nobody"))
    calls, polls = server.witness.log("tools/call"), server.witness.log("tasks/get")
    assert calls[0].params == {"name": "tool", "arguments": {"x": 1}}
    assert [poll.task_id for poll in polls] == [ref.task_id, other.task_id, "nobody"]
    assert [poll.error for poll in polls] == [None, None, INVALID_PARAMS]
    assert [poll.at for poll in server.witness.log("tasks/get", ref.task_id)] == [3.0]
    assert polls[0].headers is None
