"""What becomes of a task at a scripted server: its steps, its questions, its end."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mcp_tasks_client import TaskRef
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import Created, InputRequired, Returned
from mcp_tasks_client.sessions.base import INVALID_PARAMS
from mcp_tasks_client.testing import (
    ManualClock,
    ScriptedServer,
    Step,
    abort,
    ask,
    ask_first,
    complete,
    fail,
    hint,
    reply,
    text_result,
    vanish,
    work,
)
from tests.testing.asking import ADA, BOB, DONE, NAME, call, get, refused, start

pytestmark = pytest.mark.anyio


async def test_a_task_is_wherever_its_timeline_is(server: ScriptedServer, clock: ManualClock) -> None:
    greeting = complete(lambda answers: text_result(f"Hello, {answers['name']['content']['name']}"))
    server.tool("tool", [work(30, "building"), ask("name", NAME), work(5), greeting], ttl_ms=60_000)
    session = server.session()
    ref = await start(session)

    first = await get(session, ref)
    assert (first.status, first.status_message) == ("working", "building")
    assert (first.poll_interval_ms, first.ttl_ms) == (1000, 60_000)
    assert first.created_at == first.last_updated_at == "2027-01-15T08:00:00.000Z"
    await clock.advance(29.9)
    assert (await get(session, ref)).status == "working"

    await clock.advance(0.1)
    asking = await get(session, ref)
    assert asking.status == "input_required"
    assert asking.input_requests == {"name": NAME}
    assert asking.last_updated_at == "2027-01-15T08:00:30.000Z"

    await session.update(ref, {"name": ADA})
    await clock.advance(5)
    assert (await get(session, ref)).status == "working"
    await clock.advance(0.1)
    done = await get(session, ref)
    assert done.status == "completed"
    assert done.result == text_result("Hello, Ada")


async def test_the_same_question_shows_until_its_answer_has_settled(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("tool", [ask("name", NAME), complete(DONE)], settle_s=2)
    session = server.session()
    ref = await start(session)
    before = await get(session, ref)
    await session.update(ref, {"name": ADA})
    assert (await get(session, ref)).input_requests == before.input_requests
    await clock.advance(1.9)
    assert (await get(session, ref)).input_requests == before.input_requests
    await clock.advance(0.1)
    assert (await get(session, ref)).status == "completed"


async def test_a_partial_answer_leaves_the_rest_pending(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("tool", [ask({"a": NAME, "b": NAME}), complete(DONE)])
    session = server.session()
    ref = await start(session)
    await session.get(ref)
    await session.update(ref, {"a": ADA})
    await clock.advance(1)
    assert (await get(session, ref)).input_requests == {"b": NAME}
    await session.update(ref, {"b": BOB})
    await clock.advance(1)
    assert (await get(session, ref)).status == "completed"
    assert server.witness.questions_answered == {(ref.task_id, "a"), (ref.task_id, "b")}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"action": "accept", "content": {"name": 3}}, "string"),
        ({"action": "accept", "content": {}}, "required"),
        ({"action": "accept"}, "required"),
        ({"roots": []}, "no answer to elicitation/create"),
    ],
)
async def test_an_answer_of_the_wrong_shape_is_refused_and_the_task_waits_on(
    server: ScriptedServer, clock: ManualClock, bad: JSONObject, why: str
) -> None:
    server.tool("tool", [ask({"a": NAME, "b": NAME}), complete(DONE)])
    session = server.session()
    ref = await start(session)
    with refused(INVALID_PARAMS, f"answer to b .*{why}"):
        await session.update(ref, {"a": ADA, "b": bad})
    await clock.advance(1)
    assert set((await get(session, ref)).input_requests or ()) == {"a", "b"}
    assert server.witness.questions_answered == set()


@pytest.mark.parametrize(
    ("request_", "good"),
    [
        (NAME, {"action": "decline"}),
        ({"method": "roots/list"}, {"roots": [{"uri": "file:///tmp"}]}),
        (
            {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}},
            {"role": "assistant", "content": {"type": "text", "text": "4"}, "model": "m"},
        ),
    ],
)
async def test_every_kind_of_question_takes_its_kind_of_answer(
    server: ScriptedServer, clock: ManualClock, request_: JSONObject, good: JSONObject
) -> None:
    server.tool("tool", [ask("key", request_), complete(DONE)])
    session = server.session()
    ref = await start(session)
    await session.update(ref, {"key": good})
    await clock.advance(1)
    assert (await get(session, ref)).status == "completed"


@pytest.mark.parametrize("after_s", [1, 100])
async def test_answers_to_a_task_that_has_moved_on_are_refused_unless_it_is_lenient(
    server: ScriptedServer, clock: ManualClock, after_s: float
) -> None:
    steps: list[Step] = [ask("a", NAME), ask("b", NAME), work(10), complete(DONE)]
    server.tool("strict", steps)
    server.tool("lenient", steps, late_answers=True)
    session = server.session()
    strict, lenient = await start(session, "strict"), await start(session, "lenient")
    for ref in (strict, lenient):
        await session.update(ref, {"a": ADA})
        await session.update(ref, {"a": ADA})  # not settled yet, so not late
    await clock.advance(1)
    if after_s == 100:
        for ref in (strict, lenient):
            await session.update(ref, {"b": ADA})
    await clock.advance(after_s)
    await session.update(lenient, {"a": BOB})
    with refused(INVALID_PARAMS, "does not wait"):
        await session.update(strict, {"a": BOB})


async def test_what_is_not_asked_is_acknowledged_and_ignored(server: ScriptedServer) -> None:
    server.tool("tool", [ask("a", NAME), complete(DONE)])
    session = server.session()
    ref = await start(session)
    await session.update(ref, {})
    await session.update(ref, {"nonsense": {"any": "thing"}})
    assert (await get(session, ref)).input_requests == {"a": NAME}
    assert server.witness.unasked == {(ref.task_id, "nonsense")}
    assert server.witness.questions_answered == set()
    with pytest.raises(AssertionError, match="never asked 'nonsense'"):
        server.witness.check()


async def test_the_first_answer_counts(server: ScriptedServer, clock: ManualClock) -> None:
    result = complete(lambda answers: text_result(answers["a"]["content"]["name"]))
    server.tool("tool", [ask("a", NAME), result])
    session = server.session()
    ref = await start(session)
    await session.update(ref, {"a": ADA})
    await session.update(ref, {"a": BOB})
    await clock.advance(1)
    assert (await get(session, ref)).result == text_result("Ada")


async def test_a_cancel_is_acknowledged_before_the_task_ends(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("tool", [work(math.inf)], settle_s=2)
    session = server.session()
    ref = await start(session)
    await session.cancel(ref)
    assert (await get(session, ref)).status == "working"
    await clock.advance(2)
    assert (await get(session, ref)).status == "cancelled"
    await session.cancel(ref)
    assert (await get(session, ref)).status == "cancelled"


@pytest.mark.parametrize("options", [{"cancellable": False}, {"settle_s": 11}])
async def test_a_task_may_complete_although_it_was_cancelled(
    server: ScriptedServer, clock: ManualClock, options: dict[str, Any]
) -> None:
    server.tool("tool", [work(10), complete(DONE)], **options)
    session = server.session()
    ref = await start(session)
    await session.cancel(ref)
    await clock.advance(10)
    assert (await get(session, ref)).status == "completed"
    await clock.advance(10)
    assert (await get(session, ref)).status == "completed"


async def test_a_cancelled_question_is_over(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool("tool", [ask("a", NAME), complete(DONE)])
    session = server.session()
    ref = await start(session)
    await session.cancel(ref)
    await clock.advance(1)
    assert (await get(session, ref)).status == "cancelled"
    with refused(INVALID_PARAMS):
        await session.update(ref, {"a": ADA})


async def test_a_task_may_fail_and_may_be_cancelled_by_the_server(server: ScriptedServer) -> None:
    server.tool("failing", [fail(-32050, "quota", {"left": 0})])
    server.tool("aborted", [abort("out of paper")])
    session = server.session()
    failed = await get(session, await start(session, "failing"))
    assert failed.error == {"code": -32050, "message": "quota", "data": {"left": 0}}
    assert (failed.status, failed.status_message) == ("failed", "quota")
    aborted = await get(session, await start(session, "aborted"))
    assert (aborted.status, aborted.status_message) == ("cancelled", "out of paper")


async def test_a_task_that_vanishes_is_unknown_to_every_verb(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("tool", [work(5), vanish()])
    session = server.session()
    ref = await start(session)
    assert (await get(session, ref)).status == "working"
    await clock.advance(4.95)
    await session.cancel(ref)  # too late to take effect
    await clock.advance(1)
    for verb in (session.get(ref), session.update(ref, {}), session.cancel(ref)):
        with refused(INVALID_PARAMS, "not found"):
            await verb


async def test_the_time_to_live_deletes_the_task_unless_it_is_extended_in_time(
    server: ScriptedServer, clock: ManualClock
) -> None:
    server.tool("short", [work(math.inf)], ttl_ms=10_000)
    server.tool("done", [complete(DONE)], ttl_ms=10_000)
    server.tool("extended", [work(9), hint(ttl_ms=60_000), work(math.inf)], ttl_ms=10_000)
    server.tool("too late", [work(11), hint(ttl_ms=60_000), work(math.inf)], ttl_ms=10_000)
    session = server.session()
    refs = {name: await start(session, name) for name in ("short", "done", "extended", "too late")}
    await clock.advance(9.9)
    for ref in refs.values():
        await session.get(ref)
    await clock.advance(10)
    assert (await get(session, refs.pop("extended"))).ttl_ms == 60_000
    for ref in refs.values():
        with refused(INVALID_PARAMS, "expired"):
            await session.get(ref)


async def test_hints_may_change(server: ScriptedServer, clock: ManualClock) -> None:
    server.tool(
        "tool", [work(5), hint(poll_interval_ms=250), work(5), hint(poll_interval_ms=None), complete(DONE)]
    )
    session = server.session()
    ref = await start(session)
    seen = []
    for _ in range(3):
        seen.append((await get(session, ref)).poll_interval_ms)
        await clock.advance(5)
    assert seen == [1000, 250, None]


async def test_a_task_that_is_over_at_its_creation_has_its_result_in_a_poll_only(
    server: ScriptedServer,
) -> None:
    server.tool("tool", [complete(DONE)])
    session = server.session()
    created = await call(session, "tool")
    assert isinstance(created, Created)
    assert (created.task.status, created.task.result) == ("completed", None)
    assert (await get(session, TaskRef(created.task.task_id))).result == DONE


# ── before there is a task ────────────────────────────────────────────────────────────────────


async def test_rounds_come_before_the_task_and_their_answers_reach_it(server: ScriptedServer) -> None:
    both = complete(lambda answers: text_result(" and ".join(answers)))
    server.tool("tool", [ask_first("a", NAME), ask_first({}), both])
    session = server.session()
    first = await call(session, "tool", arguments={"x": 1})
    assert isinstance(first, InputRequired)
    assert first.requests == {"a": NAME}
    second = await call(
        session, arguments={"x": 1}, input_responses={"a": ADA}, request_state=first.request_state
    )
    assert isinstance(second, InputRequired)
    assert second.requests == {}
    third = await call(session, "tool", arguments={"x": 1}, request_state=second.request_state)
    assert isinstance(third, Created)
    assert (await get(session, TaskRef(third.task.task_id))).result == text_result("a")
    assert server.witness.calls.total() == 1
    assert server.witness.answers == {(first.request_state, "a"): [ADA]}
    assert server.witness.questions_answered == {(first.request_state, "a")}


@pytest.mark.parametrize(
    "change",
    [
        {"request_state": "another"},
        {"arguments": {"x": 2}},
        {"name": "other"},
        {"input_responses": {}},
        {"input_responses": {"a": ADA, "b": ADA}},
        {"input_responses": {"a": {"action": "accept", "content": {}}}},
    ],
)
async def test_a_round_takes_back_only_what_it_handed_out(
    server: ScriptedServer, change: dict[str, Any]
) -> None:
    for name in ("tool", "other"):
        server.tool(name, [ask_first("a", NAME), reply(DONE)])
    session = server.session()
    first = await call(session, "tool", arguments={"x": 1})
    assert isinstance(first, InputRequired)
    good: dict[str, Any] = {
        "name": "tool",
        "arguments": {"x": 1},
        "input_responses": {"a": ADA},
        "request_state": first.request_state,
    }
    with refused(INVALID_PARAMS):
        await call(session, **{**good, **change})
    assert server.witness.calls.total() == 0
    assert isinstance(await call(session, **good), Returned)


async def test_a_plan_may_be_made_of_the_arguments(server: ScriptedServer) -> None:
    def plan(arguments: JSONObject) -> list[Step]:
        return [reply(text_result(arguments["text"]))]

    server.tool("echo", plan)
    returned = await call(server.session(), "echo", arguments={"text": "hi"})
    assert isinstance(returned, Returned)
    assert returned.result == text_result("hi")


async def test_an_unknown_tool_is_invalid_params(server: ScriptedServer) -> None:
    with refused(INVALID_PARAMS, "Unknown tool"):
        await call(server.session(), "nobody")


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([], "last step"),
        ([work(5)], "last step"),
        ([complete(DONE), work(5), complete(DONE)], "no step can follow complete"),
        ([work(math.inf), complete(DONE)], "no step can follow work"),
        ([work(5), ask_first("a", NAME), complete(DONE)], "stands before all other"),
        ([work(5), reply(DONE)], "answers at once"),
        ([ask("a", NAME), ask("a", NAME), complete(DONE)], "used once"),
    ],
)
def test_steps_that_cannot_be_taken_are_refused(steps: list[Step], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ScriptedServer().tool("tool", steps)


async def test_a_task_with_a_request_state_is_unknown_without_one_of_its_own(
    server: ScriptedServer,
) -> None:
    server.tool("tool", [work(math.inf)], request_state=True)
    session = server.session()
    ref = await start(session)
    later = await session.get(ref)
    assert later.session_data not in (None, ref.session_data)
    await session.get(TaskRef(ref.task_id, later.session_data))
    await session.get(ref)  # a reply may have been lost, so an older one is fine
    server.witness.early_polls.clear()
    server.witness.check()
    for state in (None, "forged"):
        with refused(INVALID_PARAMS, "requestState"):
            await session.get(TaskRef(ref.task_id, state))
    assert server.witness.lost_states == [ref.task_id] * 2
    with pytest.raises(AssertionError, match="without its requestState"):
        server.witness.check()
