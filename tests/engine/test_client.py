"""What a host can rely on: the client over a session that plays replies, on a manual clock.

Behaviour is the specification's where a docstring says so; otherwise it is ours.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
import pytest
from mcp_types import ElicitResult, ErrorData, Tool

from mcp_tasks_client.client import TasksClient
from mcp_tasks_client.errors import (
    ConnectionLostError,
    CredentialRefusedError,
    IdempotencyConflictError,
    InputUnansweredError,
    JournalError,
    MissingCapabilityError,
    OutcomeUnknownError,
    RemoteProtocolError,
    SessionError,
    TaskCancelledError,
    TaskExpiredError,
    TaskFailedError,
    TaskNotFoundError,
    TasksClientError,
    WaitTimeoutError,
)
from mcp_tasks_client.journal.sqlite.memory import MemoryJournal
from mcp_tasks_client.machine.actions import Ask
from mcp_tasks_client.machine.record import TaskRecord
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import CallReply
from mcp_tasks_client.protocol.task import Task
from mcp_tasks_client.questions.callbacks import InputContext
from mcp_tasks_client.sessions.base import BeforeSend, ToolCall
from mcp_tasks_client.testing import (
    cancelled,
    completed,
    failed,
    input_required,
    scripted_client,
    text_result,
    working,
)
from tests._requirements import requirement
from tests._results import text
from tests.engine.world import ASK, DONE, LOST, NO_JITTER, TASK, YES, Asked, World
from tests.kit.probed_journal import ProbedJournal
from tests.scripted_session import STALL, ScriptedSession

pytestmark = pytest.mark.anyio

ASK_TEXT: JSONObject = {
    "method": "elicitation/create",
    "params": {
        "message": "Which?",
        "requestedSchema": {"type": "object", "properties": {"n": {"type": "string"}}},
    },
}


# ── results ───────────────────────────────────────────────────────────────────────────────────


async def test_a_plain_result_is_returned_and_costs_no_record() -> None:
    world = World(calls=[text_result("at once")])
    async with world.client() as client:
        assert text(await world.call(client)) == "at once"
        assert await client.records() == []


@requirement("create:either-result", "poll:until-terminal")
async def test_a_task_is_polled_until_it_completes_and_its_result_is_returned() -> None:
    world = World(gets={TASK: [working(TASK), working(TASK), DONE]})
    async with world.client() as client:
        assert text(await world.call(client)) == "done"
    assert len(world.polled_at()) == 3


@requirement("law:6")
async def test_the_servers_result_is_passed_on_unchanged() -> None:
    raw = text_result("no", is_error=True) | {"x-new": {"a": 1}, "_meta": {"k": "v"}}
    raw["content"][0]["x-inner"] = 2
    world = World(gets={TASK: [completed(TASK, raw)]})
    async with world.client() as client:
        result = await world.call(client)
    assert result.is_error
    assert result.model_extra == {"x-new": {"a": 1}}
    assert result.content[0].model_extra == {"x-inner": 2}
    assert result.meta == {"k": "v"}


async def test_completed_without_a_result_is_a_protocol_violation_that_carries_the_handle() -> None:
    world = World(gets={TASK: [{"taskId": TASK, "status": "completed"}]})
    async with world.client() as client:
        with pytest.raises(RemoteProtocolError, match="no result") as caught:
            await world.call(client)
    assert caught.value.handle is not None
    assert caught.value.handle.task_id == TASK


async def test_a_terminal_creation_without_a_result_is_polled_once() -> None:
    seed = {**DONE, "resultType": "task"}
    del seed["result"]
    world = World(calls=[seed])
    async with world.client() as client:
        assert text(await world.call(client)) == "done"
    assert len(world.polled_at()) == 1


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ({"content": [], "structuredContent": {"n": "x"}}, 'not of type "integer"'),
        ({"content": []}, "no structuredContent"),
        ({"isError": False}, "content"),
    ],
)
async def test_a_result_that_is_not_what_the_tool_promised_is_an_error_and_is_kept(
    result: dict[str, Any], problem: str
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tool = Tool(name="tool", input_schema={"type": "object"}, output_schema=schema)
    world = World(gets={TASK: [completed(TASK, result)]}, tools=[tool])
    async with world.client() as client:
        with pytest.raises(RemoteProtocolError, match=problem) as caught:
            await world.call(client)
        assert caught.value.handle is not None
        assert caught.value.handle.task is not None
        assert caught.value.handle.task.result == result
        assert caught.value.data == result


async def test_a_tool_error_is_not_checked_against_the_output_schema() -> None:
    tool = Tool(name="tool", input_schema={"type": "object"}, output_schema={"type": "object"})
    world = World(gets={TASK: [completed(TASK, text_result("no", is_error=True))]}, tools=[tool])
    async with world.client() as client:
        assert (await world.call(client)).is_error


# ── ends that are no result ───────────────────────────────────────────────────────────────────


async def test_a_failed_task_keeps_code_message_data_and_status_message() -> None:
    world = World(gets={TASK: [failed(TASK, -32050, "quota", {"retryAfter": 7}, status_message="why")]})
    async with world.client() as client:
        with pytest.raises(TaskFailedError) as caught:
            await world.call(client)
    error = caught.value
    assert (error.code, error.message, error.data) == (-32050, "quota", {"retryAfter": 7})
    assert error.status_message == "why"
    assert error.handle is not None


async def test_a_json_rpc_error_to_the_call_itself_is_the_same_error() -> None:
    refused = SessionError("no", code=-32602, remote_message="unknown tool", data=[1], not_executed=True)
    world = World(calls=[refused])
    async with world.client() as client:
        with pytest.raises(TaskFailedError) as caught:
            await world.call(client)
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32602, "unknown tool", [1])


async def test_a_cancelled_task_is_an_error_of_its_own_and_never_a_cancellation() -> None:
    world = World(gets={TASK: [cancelled(TASK, status_message="by admin")]})
    async with world.client() as client:
        with pytest.raises(TaskCancelledError, match="by admin") as caught:
            await world.call(client)
    assert not isinstance(caught.value, anyio.get_cancelled_exc_class())


@requirement("ttl:backstop")
@pytest.mark.parametrize(
    ("ttl_ms", "expected"),
    [(None, TaskNotFoundError), (10_000, TaskExpiredError), (10**9, TaskNotFoundError)],
)
async def test_an_unknown_task_is_expired_if_its_time_to_live_says_so(
    ttl_ms: int | None, expected: type[Exception]
) -> None:
    """Law 7; the record of a key stays either way."""
    seed = working(TASK, poll_interval_ms=20_000, ttl_ms=ttl_ms)
    world = World(calls=[seed], gets={TASK: [SessionError("?", code=-32602, remote_message="not found")]})
    async with world.client() as client:
        with pytest.raises(expected) as caught:
            await world.call(client, idempotency_key="k")
        assert type(caught.value) is expected
        assert len(await client.records()) == 1


@requirement("ttl:backstop")
@pytest.mark.parametrize(("ttl_ms", "lines"), [(None, 0), (600_000, 1), (10_000, 1), (3_000_000, 0)])
async def test_of_a_task_that_works_long_after_its_time_to_live_the_log_says_so_once(
    ttl_ms: int | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is polled on, for a server may let a task live longer than it has said."""
    at_work = working(TASK, poll_interval_ms=20_000, ttl_ms=ttl_ms)
    world = World(calls=[at_work], gets={TASK: [*[at_work] * 170, DONE]})
    async with world.client() as client:
        assert text(await world.call(client)) == "done"
    said = [one.getMessage() for one in caplog.records if "ttlMs" in one.getMessage()]
    assert len(said) == lines
    assert all("is still working" in one and TASK not in one for one in said)


@requirement("ttl:backstop")
@pytest.mark.parametrize(("status", "ended_at"), [("working", 120.0), ("input_required", None)])
async def test_a_policy_may_give_up_a_task_that_works_after_its_time_to_live(
    status: str, ended_at: float | None
) -> None:
    """A person may still answer, so that a task which asks is no such task."""
    at_work = working(TASK, poll_interval_ms=20_000, ttl_ms=10_000)
    later = at_work if status == "working" else input_required(TASK, {"k": ASK}, ttl_ms=10_000)
    world = World(calls=[at_work], gets={TASK: [later]})
    policy = PollPolicy(jitter=0.0, past_ttl_s=100.0)
    async with world.client(poll=policy, elicitation=Asked(STALL)) as client:
        handle = await client.start_tool("tool", idempotency_key="k")
        await world.clock.advance(600)
        assert handle.done == (ended_at is not None)
        if ended_at is not None:
            with pytest.raises(TaskExpiredError, match="past_ttl_s"):
                await handle.result()
            assert world.polled_at()[-1] == ended_at
            assert [record.status for record in await client.records()] == ["expired"]


# ── the pace ──────────────────────────────────────────────────────────────────────────────────


@requirement("poll:respect-interval")
async def test_the_hint_at_creation_counts_before_the_first_poll_and_may_change_later() -> None:
    gets = [working(TASK, poll_interval_ms=3000), working(TASK), working(TASK, poll_interval_ms=0), DONE]
    world = World(calls=[working(TASK, poll_interval_ms=5000)], gets={TASK: gets})
    async with world.client() as client:
        await world.call(client)
    assert world.polled_at() == [5.0, 8.0, 11.0, 14.0]


@pytest.mark.parametrize("hint", [None, 0, -5, "soon", True])
async def test_without_a_usable_hint_the_wait_grows_while_nothing_changes(hint: object) -> None:
    seed = {**working(TASK), "pollIntervalMs": hint}
    world = World(calls=[seed], gets={TASK: [*[seed] * 6, DONE]})
    async with world.client() as client:
        await world.call(client)
    assert world.polled_at() == pytest.approx([0.026, 0.052, 0.096, 0.171, 0.299, 0.516, 0.733], abs=0.001)


@pytest.mark.parametrize(("hint", "first"), [("2500", 2.5), (2500.5, 2.5005), (10**9, 3600.0)])
async def test_a_hint_counts_whatever_its_type_up_to_the_longest_wait(hint: object, first: float) -> None:
    world = World(calls=[{**working(TASK), "pollIntervalMs": hint}])
    async with world.client() as client:
        await world.call(client, within=4000)
    (polled,) = world.polled_at()
    assert first <= polled <= 1.004 * first


@requirement("law:7")
async def test_observation_ends_only_by_an_end_and_failed_polls_back_off() -> None:
    busy = SessionError("busy", retryable=True, http_status=429, retry_after_s=30.0)
    world = World(gets={TASK: [LOST, LOST, busy, LOST, DONE]}, calls=[working(TASK, poll_interval_ms=1500)])
    async with world.client() as client:
        assert text(await world.call(client)) == "done"
    assert world.polled_at() == [1.5, 3.0, 5.0, 35.0, 43.0]


async def test_a_timeout_shorter_than_the_hint_polls_nothing_and_carries_the_handle() -> None:
    world = World(calls=[working(TASK, poll_interval_ms=3_600_000)])
    async with world.client() as client:
        with pytest.raises(WaitTimeoutError) as caught:
            await client.call_tool("tool", timeout=0.05)
        assert isinstance(caught.value, TimeoutError)
        handle = caught.value.handle
        assert handle is not None
        assert world.polled_at() == []
        await world.during(handle.result, 7200)
        assert text(await handle.result()) == "done"


async def test_eager_looks_sooner_a_few_times_and_gives_up_at_the_first_failure() -> None:
    eager = PollPolicy(jitter=0.0, early_looks=4)
    world = World(calls=[working(TASK, poll_interval_ms=16_000)], gets={TASK: [working(TASK)] * 5 + [DONE]})
    async with world.client(poll=eager) as client:
        await world.call(client)
    assert world.polled_at() == [1.0, 2.0, 4.0, 8.0, 24.0, 40.0]
    world = World(calls=[working(TASK, poll_interval_ms=16_000)], gets={TASK: [LOST, DONE]})
    async with world.client(poll=eager) as client:
        await world.call(client)
    assert world.polled_at() == [1.0, 17.0]


# ── questions ─────────────────────────────────────────────────────────────────────────────────


@requirement("input:dedupe", "input:answer-once", "input:fulfil", "update:continue-observing")
async def test_a_question_is_asked_once_however_often_the_server_shows_it() -> None:
    """The acknowledgement comes before the status moves, so the key shows up again."""
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [asking, asking, asking, working(TASK), asking, DONE]})
    asked = Asked()
    async with world.client(elicitation=asked) as client:
        await world.call(client)
    assert asked.keys == ["k"]
    assert [sent.answers for sent in world.server.log("tasks/update")] == [
        {"k": {"action": "accept", "content": {"n": 3}}}
    ]


async def test_a_question_that_is_to_be_asked_again_while_it_is_answered_is_answered_once() -> None:
    world = World(gets={TASK: [input_required(TASK, {"k": ASK}), DONE]})
    asked: list[str] = []

    async def answer(context: InputContext, params: Any) -> ElicitResult:
        asked.append(context.key)
        (call,) = client._engine.store.registry.live.values()
        call.put_aside(Ask(key="k", request=ASK))
        await anyio.lowlevel.checkpoint()
        return YES

    async with world.client(elicitation=answer) as client:
        assert text(await world.call(client)) == "done"
    assert asked == ["k"]


async def test_an_answer_that_has_no_utf_8_form_is_not_journaled() -> None:
    world = World(gets={TASK: [input_required(TASK, {"k": ASK_TEXT}), DONE]})
    answer = ElicitResult(action="accept", content={"n": "\ud800"})
    async with world.client(elicitation=Asked(answer)) as client:
        with pytest.raises(InputUnansweredError, match="surrogate"):
            await world.call(client)
    assert not world.server.log("tasks/update")


async def test_several_questions_are_asked_in_order_and_answered_together() -> None:
    both = input_required(TASK, {"a": ASK, "b": ASK})
    world = World(gets={TASK: [both, both, input_required(TASK, {"c": ASK}), DONE]})
    asked = Asked()
    async with world.client(elicitation=asked) as client:
        await world.call(client)
    assert asked.keys == ["a", "b", "c"]
    assert [list(sent.answers) for sent in world.server.log("tasks/update")] == [["a", "b"], ["c"]]


async def test_a_failed_update_is_repeated_with_the_same_answers_until_acknowledged() -> None:
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [asking, asking, asking, DONE]}, updates=[LOST, LOST, {}])
    asked = Asked(YES, ElicitResult(action="decline"))
    async with world.client(elicitation=asked) as client:
        await world.call(client)
    sent = [s.answers for s in world.server.log("tasks/update")]
    assert sent == [{"k": {"action": "accept", "content": {"n": 3}}}] * 3
    assert asked.keys == ["k"]


async def test_a_refused_answer_to_a_task_that_moved_on_is_no_error() -> None:
    refusal = SessionError("no", code=-32602, remote_message="no such request")
    world = World(gets={TASK: [input_required(TASK, {"k": ASK}), DONE]}, updates=[refusal])
    async with world.client(elicitation=Asked()) as client:
        assert text(await world.call(client)) == "done"


async def test_an_answer_of_the_wrong_shape_is_an_error_with_the_servers_message() -> None:
    refusal = SessionError("no", code=-32602, remote_message="Invalid request parameters")
    world = World(gets={TASK: [input_required(TASK, {"k": ASK})]}, updates=[refusal])
    async with world.client(elicitation=Asked()) as client:
        with pytest.raises(InputUnansweredError, match="Invalid request parameters") as caught:
            await world.call(client)
    assert caught.value.keys == ("k",)


@requirement("input:trust")
@pytest.mark.parametrize(
    ("callback", "said"),
    [
        (None, "no elicitation callback"),
        (Asked(RuntimeError("boom")), "raised RuntimeError: boom"),
        (Asked("yes"), "returned str"),
        (Asked(ErrorData(code=-1, message="not now")), "not now"),
        (Asked(ElicitResult(action="accept", content={})), "requestedSchema"),
    ],
)
async def test_without_a_usable_answer_the_error_carries_the_handle_and_the_task_stays(
    callback: Any, said: str
) -> None:
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [asking, asking, DONE]})
    async with world.client(elicitation=callback) as client:
        with pytest.raises(InputUnansweredError, match=said) as caught:
            await world.call(client)
        assert caught.value.keys == ("k",)
        assert caught.value.handle is not None
        assert world.server.log("tasks/update") == []
        polls = len(world.polled_at())
        await world.clock.advance(3600)
        assert len(world.polled_at()) == polls, "a parked task is not polled"
    asked = Asked()
    async with world.client(elicitation=asked) as client:
        (handle,) = await client.resume()
        await world.during(handle.result, 3600)
        assert text(await handle.result()) == "done"
    assert asked.keys == ["k"]


async def test_what_a_callback_raised_is_the_cause() -> None:
    world = World(gets={TASK: [input_required(TASK, {"k": ASK})]})
    async with world.client(elicitation=Asked(RuntimeError("boom"))) as client:
        with pytest.raises(InputUnansweredError) as caught:
            await world.call(client)
    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_a_callback_that_hangs_is_ended_by_the_timeout_and_the_task_stays_resumable() -> None:
    world = World(calls=[working(TASK, poll_interval_ms=1)], gets={TASK: [input_required(TASK, {"k": ASK})]})
    world.server.clock = None
    async with scripted_client(
        world.server, journal=world.journal, elicitation=Asked(STALL), poll=NO_JITTER
    ) as client:
        with pytest.raises(WaitTimeoutError):
            await client.call_tool("tool", timeout=0.2)
    assert (await world.only_record()).status == "input_required"


async def test_a_prompt_is_withdrawn_when_the_task_ends_without_it() -> None:
    withdrawn = anyio.Event()

    async def hanging(context: Any, params: Any) -> NoReturn:
        try:
            while True:
                await anyio.sleep_forever()
        finally:
            withdrawn.set()

    world = World(gets={TASK: [input_required(TASK, {"k": ASK}), DONE]})
    async with world.client(elicitation=hanging) as client:
        assert text(await world.call(client)) == "done"
        await withdrawn.wait()


@requirement("mrtr:answers")
async def test_questions_before_the_task_are_answered_by_calling_again() -> None:
    first = {"resultType": "input_required", "inputRequests": {"k": ASK}, "requestState": "s1"}
    second = {"resultType": "input_required", "requestState": "s2"}
    world = World(calls=[first, second, working(TASK, poll_interval_ms=1000)])
    asked = Asked()
    async with world.client(elicitation=asked) as client:
        assert text(await world.call(client)) == "done"
    calls = [sent.call for sent in world.server.log("tools/call")]
    assert [call and (dict(call.input_responses), call.request_state) for call in calls] == [
        ({}, None),
        ({"k": {"action": "accept", "content": {"n": 3}}}, "s1"),
        ({}, "s2"),
    ]
    assert asked.keys == ["k"]


async def test_an_earlier_drafts_request_state_is_echoed_in_the_tasks_later_requests() -> None:
    gets = [input_required(TASK, {"k": ASK}, request_state="r2"), working(TASK), DONE]
    world = World(calls=[working(TASK, request_state="r1")], gets={TASK: gets})
    async with world.client(elicitation=Asked()) as client:
        await world.call(client)
    assert [sent.session_data for sent in world.server.log("tasks/get")] == ["r1", "r2", "r2"]
    assert [sent.session_data for sent in world.server.log("tasks/update")] == ["r2"]


# ── violations ────────────────────────────────────────────────────────────────────────────────


async def test_violations_are_reported_once_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    other = working("another-task-id-000")
    moved = {**working(TASK), "createdAt": "2001-01-01T00:00:00Z"}
    odd = {**working(TASK), "status": "pondering"}
    world = World(gets={TASK: [other, other, moved, moved, odd, odd, DONE]})
    with caplog.at_level(logging.WARNING, "mcp_tasks_client"):
        async with world.client() as client:
            assert text(await world.call(client)) == "done"
    said = [r.getMessage() for r in caplog.records]
    assert len([m for m in said if "another taskId" in m]) == 1
    assert len([m for m in said if "createdAt" in m]) == 1
    assert len([m for m in said if "pondering" in m]) == 1
    assert len(said) == 3
    assert not any(TASK in m for m in said)


async def test_a_key_used_again_for_another_request_is_reported_and_parks_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = {**ASK, "params": {**ASK["params"], "message": "Something else?"}}  # type: ignore[dict-item]  # a literal of mixed values
    world = World(gets={TASK: [input_required(TASK, {"k": ASK}), input_required(TASK, {"k": other}), DONE]})
    asked = Asked()
    with caplog.at_level(logging.WARNING, "mcp_tasks_client"):
        async with world.client(elicitation=asked) as client:
            with pytest.raises(InputUnansweredError, match="asks something else now") as parked:
                await world.call(client)
    assert parked.value.keys == ("k",)
    assert asked.keys == ["k"]
    assert ["key was used again" in r.getMessage() for r in caplog.records] == [True]


async def test_last_updated_at_that_moves_at_every_poll_is_harmless() -> None:
    def at(n: int) -> dict[str, Any]:
        return {**working(TASK, poll_interval_ms=1000), "lastUpdatedAt": f"2026-07-28T00:00:{n:02}Z"}

    world = World(gets={TASK: [at(5), at(3), at(9), DONE]})
    saves: list[str] = []
    keep = world.journal.save

    async def counting(record: TaskRecord, **options: Any) -> None:
        saves.append(record.status)
        await keep(record, **options)

    world.journal.save = counting  # type: ignore[method-assign]  # counts the commits
    async with world.client() as client:
        await world.call(client)
    assert saves == ["working", "completed"], "created, finished; no poll in between"


# ── refusals and losses ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "refusal",
    [
        CredentialRefusedError("HTTP 401", http_status=401, not_executed=True),
        MissingCapabilityError("-32021", code=-32021, not_executed=True),
        RemoteProtocolError("redirected elsewhere"),
    ],
)
async def test_a_refusal_ends_the_wait_at_once_and_the_record_stays(refusal: SessionError) -> None:
    world = World(gets={TASK: [refusal, DONE]})
    async with world.client() as client:
        with pytest.raises(type(refusal)) as caught:
            await world.call(client)
        assert caught.value.handle is not None
        assert caught.value.handle.task_id == TASK
        assert not (await world.only_record()).finished
        await world.during(caught.value.handle.result, 3600)


async def test_tools_call_is_never_repeated() -> None:
    world = World(calls=[LOST, text_result("second")])
    async with world.client() as client:
        with pytest.raises(ConnectionLostError):
            await world.call(client)
    assert len(world.server.log("tools/call")) == 1


async def test_an_unkeyed_call_that_is_lost_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World(calls=[LOST])
    with caplog.at_level(logging.WARNING, "mcp_tasks_client"):
        async with world.client() as client:
            with pytest.raises(ConnectionLostError):
                await world.call(client)
    assert "may have run" in caplog.text


# ── idempotency keys ──────────────────────────────────────────────────────────────────────────


@requirement("persist:task-ids")
async def test_a_key_joins_an_unfinished_call_also_in_another_client() -> None:
    world = World(gets={TASK: [working(TASK), DONE]})
    async with world.client() as client:
        with pytest.raises(WaitTimeoutError):
            await client.call_tool("tool", {"a": 1}, idempotency_key="order-42", timeout=0.05)
    async with world.client() as client:
        assert text(await world.call(client, arguments={"a": 1}, idempotency_key="order-42")) == "done"
    assert len(world.server.log("tools/call")) == 1


async def test_a_key_replays_a_finished_result_without_a_request() -> None:
    world = World(calls=[text_result("once")])
    async with world.client() as client:
        first = await world.call(client, idempotency_key="k")
        again = await world.call(client, idempotency_key="k")
    assert first == again
    assert len(world.server.sent) == 1


async def test_calls_with_one_key_at_the_same_time_are_one_call() -> None:
    world = World()
    results: list[str] = []
    async with world.client() as client:

        async def call() -> None:
            results.append(text(await client.call_tool("tool", idempotency_key="k")))

        async def both() -> None:
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(call)

        await world.during(both, 60)
    assert results == ["done"] * 5
    assert len(world.server.log("tools/call")) == 1


async def test_a_key_belongs_to_one_tool_and_one_set_of_arguments() -> None:
    world = World(calls=[text_result("x")])
    async with world.client() as client:
        await client.call_tool("tool", {"a": 1, "b": 2}, idempotency_key="k")
        await client.call_tool("tool", {"b": 2, "a": 1}, idempotency_key="k")
        with pytest.raises(IdempotencyConflictError, match="other arguments"):
            await client.call_tool("tool", {"a": 1}, idempotency_key="k")
        with pytest.raises(IdempotencyConflictError, match="the tool 'tool'"):
            await client.call_tool("other", {"a": 1, "b": 2}, idempotency_key="k")
    async with world.client(principal="somebody else") as client:
        await client.call_tool("other", {}, idempotency_key="k")


async def test_a_lost_reply_under_a_key_is_an_unknown_outcome_until_resent_on_purpose() -> None:
    world = World(calls=[LOST, text_result("again")])
    async with world.client() as client:
        with pytest.raises(OutcomeUnknownError) as caught:
            await world.call(client, idempotency_key="k")
        assert isinstance(caught.value.__cause__, ConnectionLostError)
        assert caught.value.record is not None
        assert (await world.only_record()).status == "outcome_unknown"
    async with world.client() as client:
        with pytest.raises(OutcomeUnknownError):
            await world.call(client, idempotency_key="k")
        assert len(world.server.log("tools/call")) == 1
        assert text(await world.call(client, idempotency_key="k", on_unknown="resend")) == "again"


@pytest.mark.parametrize("code", [None, -32000, -32602])
async def test_a_refused_call_leaves_no_record_and_the_key_can_be_used_again(code: int | None) -> None:
    refused = SessionError("later", code=code, retryable=True, http_status=429, not_executed=True)
    world = World(calls=[refused, text_result("now")])
    async with world.client() as client:
        with pytest.raises(SessionError) as caught:
            await world.call(client, idempotency_key="k")
        assert caught.value.retryable
        assert await client.records() == []
        assert text(await world.call(client, idempotency_key="k")) == "now"


async def test_under_a_key_the_intent_is_journaled_before_the_call_is_sent() -> None:
    world = World()
    seen: list[str] = []

    async def call(call: Any, before_send: BeforeSend) -> Any:
        seen.append((await world.only_record()).status)
        return await ScriptedSession.call(world.server, call, before_send)

    world.server.call = call  # type: ignore[method-assign]  # looks into the journal at that moment
    async with world.client() as client:
        await world.call(client, idempotency_key="k")
    assert seen == ["calling"]


@requirement("law:1")
async def test_commit_then_act_an_answer_is_journaled_before_it_is_sent() -> None:
    world = World(gets={TASK: [input_required(TASK, {"k": ASK}), DONE]})
    seen: list[object] = []

    async def update(ref: Any, answers: Any) -> None:
        state = (await world.only_record()).state
        seen.append(state.questions[0].answer)  # type: ignore[union-attr]  # an Observing, by construction
        await ScriptedSession.update(world.server, ref, answers)

    world.server.update = update  # type: ignore[method-assign]  # looks into the journal at that moment
    async with world.client(elicitation=Asked()) as client:
        await world.call(client)
    assert seen == [{"action": "accept", "content": {"n": 3}}]


# ── stopping to wait ──────────────────────────────────────────────────────────────────────────


async def test_cancelling_the_caller_stops_polling_at_once_and_cancels_nothing() -> None:
    world = World(gets={TASK: [working(TASK)]})
    async with world.client() as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "tool")
            await world.clock.advance(3.5)
            tasks.cancel_scope.cancel()
        await world.clock.advance(3600)
        assert world.polled_at() == [1.0, 2.0, 3.0]
        assert world.server.log("tasks/cancel") == []
        assert (await world.only_record()).pending


async def test_on_abandon_cancel_sends_tasks_cancel() -> None:
    world = World(gets={TASK: [working(TASK)]})
    async with world.client(on_abandon="cancel") as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "tool")
            await world.clock.advance(1.5)
            tasks.cancel_scope.cancel()
        assert [sent.task_id for sent in world.server.log("tasks/cancel")] == [TASK]


async def test_the_cancel_of_an_abandoned_call_is_bounded() -> None:
    world = World(gets={TASK: [working(TASK)]}, cancels=[STALL])
    policy = PollPolicy(jitter=0.0, cancel_timeout_s=0.05)
    async with world.client(on_abandon="cancel", poll=policy) as client:
        with pytest.raises(WaitTimeoutError):
            await client.call_tool("tool", timeout=0.05)


async def test_a_call_in_flight_is_left_a_moment_so_that_its_task_id_is_journaled() -> None:
    world = World()
    reply, sent = anyio.Event(), anyio.Event()

    async def slow(call: Any, before_send: BeforeSend) -> Any:
        await before_send()
        sent.set()
        await reply.wait()
        return await ScriptedSession.call(world.server, call, before_send)

    world.server.call = slow  # type: ignore[method-assign]  # a reply on its way
    async with world.client() as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "tool")
            await sent.wait()
            tasks.cancel_scope.cancel()
        assert await client.records() == []
        reply.set()
    record = await world.only_record()
    assert record.task_id == TASK
    assert record.pending


async def test_a_call_that_is_abandoned_before_it_leaves_was_never_made() -> None:
    world = World()
    stalls = [True]

    async def call(call: Any, before_send: BeforeSend) -> Any:
        if stalls[0]:
            await anyio.sleep_forever()  # as a tools/list may that does not answer
        return await ScriptedSession.call(world.server, call, before_send)

    world.server.call = call  # type: ignore[method-assign]  # asks for something first
    async with world.client() as client:
        with pytest.raises(WaitTimeoutError) as caught:
            await client.call_tool("tool", timeout=0.2, idempotency_key="k")
        while await client.records():
            await anyio.lowlevel.checkpoint()
        assert world.server.log("tools/call") == []
        stalls[0] = False
        assert text(await world.call(client, idempotency_key="k")) == "done"
        assert len(world.server.log("tools/call")) == 1
        assert caught.value.handle is not None


async def test_a_call_that_never_left_is_made_when_its_handle_is_awaited() -> None:
    world = World()
    stalls = [True]

    async def call(call: Any, before_send: BeforeSend) -> Any:
        if stalls[0]:
            await anyio.sleep_forever()
        return await ScriptedSession.call(world.server, call, before_send)

    world.server.call = call  # type: ignore[method-assign]  # asks for something first
    async with world.client() as client:
        with pytest.raises(WaitTimeoutError) as caught:
            await client.call_tool("tool", timeout=0.01)
        stalls[0] = False
        assert caught.value.handle is not None
        await world.during(caught.value.handle.result, 3600)
        assert text(await caught.value.handle.result()) == "done"
        assert len(world.server.log("tools/call")) == 1


@pytest.mark.parametrize("key", ["k", None])
async def test_after_the_grace_a_call_in_flight_is_of_unknown_outcome(
    key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(calls=[STALL])
    with caplog.at_level(logging.WARNING, "mcp_tasks_client"):
        async with world.client(poll=PollPolicy(call_grace_s=0.05)) as client:
            with pytest.raises(WaitTimeoutError):
                await client.call_tool("tool", timeout=0.05, idempotency_key=key)
    if key is None:
        assert "may have run" in caplog.text
    else:
        assert (await world.only_record()).status == "outcome_unknown"


@requirement("cancel:tasks-cancel")
async def test_handle_cancel_sends_tasks_cancel_and_the_result_says_cancelled() -> None:
    """``notifications/cancelled`` MUST NOT be used for it."""
    world = World(gets={TASK: [input_required(TASK, {"k": ASK}), cancelled(TASK)]})
    async with world.client(elicitation=Asked(STALL)) as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(1.5)
        await handle.cancel()
        with pytest.raises(TaskCancelledError):
            await world.during(handle.result, 60)
        await handle.cancel()
    assert [sent.method for sent in world.server.sent] == [
        "tools/call",
        "tasks/get",
        "tasks/cancel",
        "tasks/get",
    ]


async def test_a_cancel_while_the_server_is_to_be_left_alone_is_told_afterwards() -> None:
    limited = SessionError("slow down", retryable=True, http_status=429, retry_after_s=60.0)
    world = World(gets={TASK: [limited, cancelled(TASK)]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(2)
        await handle.cancel()
        assert world.server.log("tasks/cancel") == []
        with pytest.raises(TaskCancelledError):
            await world.during(handle.result, 120)
    assert [sent.at >= 61.0 for sent in world.server.log("tasks/cancel")] == [True]


async def test_a_cancel_that_nobody_here_will_tell_says_so() -> None:
    """A parked task is not polled, so that nothing is told after the ``Retry-After`` either."""
    limited = SessionError("slow down", retryable=True, http_status=429, retry_after_s=60.0)
    asks = {**input_required(TASK, {"k": ASK}, poll_interval_ms=1000), "resultType": "task"}
    world = World(calls=[asks], gets={TASK: [limited, cancelled(TASK)]})
    may_fail = anyio.Event()

    async def fails(context: Any, params: Any) -> NoReturn:
        await may_fail.wait()
        raise RuntimeError("nobody is there")

    async with world.client(elicitation=fails) as client:
        handle = await client.start_tool("tool")
        await world.clock.advance(2)
        may_fail.set()
        await world.clock.advance(1)
        with pytest.raises(SessionError, match="to be left alone") as caught:
            await handle.cancel()
        assert caught.value.retry_after_s == pytest.approx(58, abs=1)
        assert caught.value.handle is not None
        assert caught.value.handle.task_id == TASK
        await world.clock.advance(0)
        record = await world.only_record()
        assert (record.owner, record.state.cancel) == (None, "requested")  # type: ignore[union-attr]
        (resumed,) = await client.resume()
        with pytest.raises(TaskCancelledError):
            await world.during(resumed.result, 120)
    assert len(world.server.log("tasks/cancel")) == 1


async def test_an_abandoned_call_is_cancelled_later_if_the_server_is_to_be_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limited = SessionError("slow down", retryable=True, http_status=429, retry_after_s=60.0)
    world = World(gets={TASK: [limited, cancelled(TASK)]})
    async with world.client(on_abandon="cancel") as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "tool")
            await world.clock.advance(2)
            tasks.cancel_scope.cancel()
        assert "Resuming it cancels it" in caplog.text
    async with world.client() as client:
        (handle,) = await client.resume()
        with pytest.raises(TaskCancelledError):
            await world.during(handle.result, 120)
    assert len(world.server.log("tasks/cancel")) == 1


async def test_a_cancel_that_came_too_late_gives_the_result() -> None:
    world = World()
    async with world.client() as client:
        handle = await client.start_tool("tool")
        await handle.cancel()
        await world.during(handle.result, 60)
        assert text(await handle.result()) == "done"


# ── handles, updates, resume, attach ──────────────────────────────────────────────────────────


async def test_a_started_tool_is_observed_in_the_background() -> None:
    world = World(gets={TASK: [working(TASK), DONE]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        assert (handle.task_id, handle.tool, handle.done) == (TASK, "tool", False)
        await world.clock.advance(10)
        assert handle.done
        assert text(await handle) == "done"
        assert text(await handle.result()) == "done"


async def test_updates_show_each_change_and_end_with_the_final_snapshot() -> None:
    steps = [working(TASK, status_message=m) for m in ("one", "one", "two")]
    world = World(gets={TASK: [*steps, DONE]})
    seen: list[tuple[str, str | None]] = []
    async with world.client() as client:
        handle = await client.start_tool("tool")

        async def follow() -> None:
            seen.extend([(task.status, task.status_message) async for task in handle.updates()])

        await world.during(follow, 60)
    assert seen == [("working", None), ("working", "one"), ("working", "two"), ("completed", None)]


async def test_on_update_is_told_and_its_errors_do_not_end_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[str] = []

    async def on_update(task: Task) -> None:
        seen.append(task.status)
        raise RuntimeError("a bug in the host")

    world = World()
    async with world.client() as client:
        assert text(await world.call(client, on_update=on_update)) == "done"
        assert text(await world.call(client, on_update=lambda task: seen.append(task.status))) == "done"
    assert seen == ["working", "completed"] * 2
    assert "a bug in the host" in caplog.text


async def test_on_update_has_returned_from_the_end_before_the_call_does() -> None:
    seen: list[str] = []

    async def on_update(task: Task) -> None:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        seen.append(task.status)

    world = World()
    async with world.client() as client:
        await world.call(client, on_update=on_update)
        assert seen == ["working", "completed"]


async def test_refresh_waits_for_the_next_poll_at_the_servers_pace() -> None:
    world = World(gets={TASK: [working(TASK, status_message="half"), DONE]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        seen: list[Task] = []

        async def refresh() -> None:
            seen.append(await handle.refresh())

        await world.during(refresh, 1.5)
        assert seen[0].status_message == "half"
        assert world.polled_at() == [1.0]


@requirement("persist:task-ids")
async def test_resume_takes_up_every_unfinished_task_and_undelivered_outcome() -> None:
    other = "task-fedcba9876543210"
    world = World(
        calls=[working(TASK, poll_interval_ms=1000), working(other, poll_interval_ms=5000)],
        gets={TASK: [DONE], other: [working(other), completed(other, text_result("later"))]},
    )
    async with world.client() as client:
        await client.start_tool("first", idempotency_key="1")
        await client.start_tool("second", idempotency_key="2")
        await world.clock.advance(2)
    assert world.polled_at() == [1.0]
    async with world.client() as client:
        assert [record.tool for record in await client.records(pending=True)] == ["first", "second"]
        first, second = await client.resume()
        assert first.done
        assert text(await first) == "done"
        assert not second.done
        await world.during(second.result, 60)
        assert text(await second) == "later"
        assert [h.task_id for h in await client.resume()] == []
        assert await client.records(pending=True) == []
    async with world.client() as client:
        assert await client.resume() == []
        assert [record.status for record in await client.records()] == ["completed", "completed"]


async def test_resume_leaves_what_another_client_of_the_process_drives_until_that_one_closes() -> None:
    world = World(gets={TASK: [input_required(TASK, {"k": ASK})]})
    asked = Asked(STALL)
    async with world.client(elicitation=asked) as first:
        await first.start_tool("tool")
        await world.clock.advance(2)
        async with world.client(elicitation=asked) as second:
            assert await second.resume() == []
            await world.clock.advance(60)
        assert asked.keys == ["k"]
    async with world.client(elicitation=Asked(STALL)) as third:
        (handle,) = await third.resume()
        assert handle.task_id == TASK


@requirement("law:5")
@pytest.mark.parametrize("verb", ["resume", "attach"])
async def test_a_task_has_one_owner_at_a_time_though_two_clients_take_it_up_at_once(verb: str) -> None:
    world = World(gets={TASK: [input_required(TASK, {"k": ASK})]})
    async with world.client() as client:
        await client.start_tool("tool")
    asked = Asked(STALL)

    async def take_up(client: TasksClient) -> None:
        if verb == "resume":
            await client.resume()
            return
        with suppress(TasksClientError):  # or its handle's result says who is at it
            await client.attach(TASK)

    async with world.client(elicitation=asked) as first, world.client(elicitation=asked) as second:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_up, first)
            tasks.start_soon(take_up, second)
        await world.clock.advance(10)
        assert asked.keys == ["k"]
        assert len(world.polled_at()) <= 12


@pytest.mark.parametrize("verb", ["call_tool", "start_tool", "attach"])
async def test_what_another_client_drives_is_followed_to_its_end(verb: str) -> None:
    world = World(gets={TASK: [input_required(TASK, {"k": ASK}), working(TASK), DONE]})
    asked = Asked(YES)
    async with world.client(elicitation=asked) as first, world.client(elicitation=Asked()) as second:
        results: list[str] = []

        async def follow() -> None:
            if verb == "call_tool":
                results.append(text(await second.call_tool("tool", idempotency_key="k")))
            elif verb == "start_tool":
                handle = await second.start_tool("tool", idempotency_key="k")
                results.append(text(await handle))
            else:
                results.append(text(await (await second.attach(TASK)).result()))

        await first.start_tool("tool", idempotency_key="k")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await world.clock.advance(10)
        assert results == ["done"]
    assert asked.keys == ["k"]
    assert len(world.server.log("tools/call")) == 1
    assert len(world.polled_at()) == 3


async def test_a_call_that_another_client_follows_is_taken_up_when_that_one_lets_go() -> None:
    asking = input_required(TASK, {"k": ASK})
    world = World(gets={TASK: [asking, asking, DONE]})
    asked = Asked(YES)
    async with world.client(elicitation=asked) as second:
        async with anyio.create_task_group() as tasks:
            results: list[str] = []

            async def follow() -> None:
                results.append(text(await second.call_tool("tool", idempotency_key="k")))

            async with world.client(elicitation=Asked(STALL)) as first:
                await first.start_tool("tool", idempotency_key="k")
                tasks.start_soon(follow)
                await world.clock.advance(1.5)
                assert asked.keys == [], "while the first client is at it"
            await world.clock.advance(10)
        assert results == ["done"]
    assert asked.keys == ["k"]


async def test_a_call_that_is_refused_to_the_client_that_made_it_is_made_by_the_one_that_followed() -> None:
    world = World(calls=[{"resultType": "complete", **text_result("done")}])
    async with world.client() as second, anyio.create_task_group() as tasks:
        results: list[str] = []

        async def follow() -> None:
            results.append(text(await second.call_tool("tool", idempotency_key="k")))

        async with world.client() as first:
            release = anyio.Event()

            async def refused(call: ToolCall, before_send: BeforeSend) -> CallReply:
                await before_send()
                await release.wait()
                raise SessionError("busy", not_executed=True)

            world.server.call, calls = refused, world.server.call  # type: ignore[method-assign]

            async def call() -> None:
                with pytest.raises(SessionError, match="busy"):
                    await first.call_tool("tool", idempotency_key="k")

            async with anyio.create_task_group() as calling:
                calling.start_soon(call)
                await world.clock.advance(0)
                tasks.start_soon(follow)
                await world.clock.advance(1)
                world.server.call = calls  # type: ignore[method-assign]
                release.set()
            await world.clock.advance(2)
        assert results == ["done"]
    assert len(world.server.log("tools/call")) == 1


async def test_records_of_another_endpoint_or_principal_are_never_touched() -> None:
    world = World(gets={TASK: [working(TASK)]})
    async with world.client() as client:
        await client.start_tool("tool")
    async with world.client(principal="other") as client:
        assert await client.resume() == []
        assert await client.records() == []
    async with world.client(endpoint="https://elsewhere.example/mcp") as client:
        assert await client.resume() == []


async def test_after_a_restart_the_stored_due_time_counts() -> None:
    world = World(calls=[working(TASK, poll_interval_ms=60_000)])
    async with world.client() as client:
        await client.start_tool("tool")
        await world.clock.advance(20)
    async with world.client() as client:
        (handle,) = await client.resume()
        await world.during(handle.result, 120)
    assert world.polled_at() == [60.0]


async def test_attach_by_reference_and_by_bare_id() -> None:
    world = World(gets={TASK: [working(TASK), DONE]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
        reference = handle.reference
    async with world.client() as client:
        again = await client.attach(reference)
        assert again.tool == "tool"
        await world.during(again.result, 60)
    fresh = World(gets={TASK: [DONE]})
    async with fresh.client() as client:
        handle = await client.attach(TASK)
        assert handle.tool is None
        assert (await fresh.only_record()).task_id == TASK
        assert text(await handle) == "done"


async def test_attach_refuses_what_is_not_of_this_endpoint() -> None:
    world = World()
    async with world.client() as client:
        handle = await client.start_tool("tool")
        with pytest.raises(ValueError, match="endpoint"):
            await client.attach({**handle.reference, "endpoint": "elsewhere"})
        with pytest.raises(ValueError, match="empty"):
            await client.attach("")


async def test_attaching_an_unknown_task_says_so_in_its_result() -> None:
    world = World(gets={})
    async with world.client() as client:
        handle = await client.attach("nobody-knows-this-one")
        with pytest.raises(TaskNotFoundError):
            await handle.result()


# ── the client itself ─────────────────────────────────────────────────────────────────────────


async def test_an_exception_in_the_block_comes_out_as_it_is() -> None:
    world = World()
    with pytest.raises(KeyError):
        async with world.client():
            raise KeyError("the host's own")


async def test_after_the_block_everything_says_that_the_client_is_closed() -> None:
    world = World(gets={TASK: [working(TASK)]})
    async with world.client() as client:
        handle = await client.start_tool("tool")
    assert world.server.closed
    for use in (client.call_tool, client.start_tool):
        with pytest.raises(TasksClientError, match="closed"):
            await use("tool")
    for use_handle in (handle.result, handle.refresh, handle.cancel):
        with pytest.raises(TasksClientError, match="closed"):
            await use_handle()
    with pytest.raises(TasksClientError, match="opened once"):
        async with client:
            pass


class SlowToOpen(MemoryJournal):
    """Takes its time to open, and counts who has it open."""

    def __init__(self) -> None:
        super().__init__()
        self.is_opening = anyio.Event()
        self.users = 0

    async def open(self) -> None:
        self.is_opening.set()
        await anyio.sleep(0.05)
        await super().open()
        self.users += 1

    async def aclose(self) -> None:
        self.users -= 1
        await super().aclose()


def test_an_event_loop_that_ends_while_a_client_opens_closes_the_journal() -> None:
    """``asyncio.run`` cancels every task, also the one in which the client has everything open."""
    journals: list[SlowToOpen] = []

    async def leave_early() -> None:
        journals.append(SlowToOpen())
        client = TasksClient(ScriptedSession(), journal=journals[0])
        opening = asyncio.ensure_future(client.__aenter__())
        await journals[0].is_opening.wait()
        assert not opening.done()

    asyncio.run(leave_early())
    assert journals[0].users == 0


async def test_before_the_block_the_client_says_how_to_open_it() -> None:
    with pytest.raises(TasksClientError, match="async with"):
        await TasksClient(ScriptedSession(), journal=MemoryJournal()).call_tool("tool")


async def test_nonsense_is_refused_before_anything_is_sent() -> None:
    world = World()
    async with world.client() as client:
        for arguments in ({"a": object()}, {"a": float("nan")}, {"a": b"\xff"}):
            with pytest.raises(ValueError, match="JSON"):
                await client.call_tool("tool", arguments)
        with pytest.raises(ValueError, match="on_unknown"):
            await client.call_tool("tool", on_unknown="retry")  # type: ignore[arg-type]  # on purpose
        with pytest.raises(ValueError, match="empty"):
            await client.call_tool("tool", idempotency_key="")
    with pytest.raises(ValueError, match="on_abandon"):
        TasksClient(world.server, on_abandon="explode")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError, match="URL"):
        TasksClient(3)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError, match="journal"):
        TasksClient(world.server, journal=3)  # type: ignore[arg-type]  # on purpose
    assert world.server.sent == []


async def test_a_callback_whose_exception_has_no_text_parks_the_call_like_any_other() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def raise_mute(context: Any, params: Any) -> Any:
        raise MuteError

    world = World(gets={TASK: [input_required(TASK, {"k": ASK}), DONE]})
    async with world.client(elicitation=raise_mute) as client:
        error = await world.error_of(lambda: client.call_tool("tool"))
        assert isinstance(error, InputUnansweredError)
        assert "MuteError" in str(error)
        await error.questions[0].accept({"n": 3})
        assert error.handle is not None
        await world.during(error.handle.result, 60)


async def test_a_full_disk_costs_neither_a_task_id_nor_an_answer() -> None:
    world = World(gets={TASK: [input_required(TASK, {"k": ASK}), DONE]})
    world.journal = journal = ProbedJournal()
    asked = Asked()

    async def fill_then_answer(context: Any, params: Any) -> Any:
        journal.refuses = ("claim", "save")
        return await asked(context, params)

    async with world.client(elicitation=fill_then_answer) as client:
        journal.refuses = ("claim", "save")
        with pytest.raises(JournalError):
            await client.call_tool("tool", idempotency_key="k")
        assert world.server.sent == [], "nothing is sent that could not be remembered"
        with pytest.raises(JournalError) as caught:
            await client.call_tool("tool")
        assert caught.value.handle is not None
        assert caught.value.handle.task_id == TASK
        journal.refuses = ()
        with pytest.raises(JournalError):
            await world.during(caught.value.handle.result, 60)
        assert world.server.log("tasks/update") == []
        journal.refuses = ()
        await world.during(caught.value.handle.result, 60)
        assert text(await caught.value.handle.result()) == "done"
    assert asked.keys == ["k"]


async def test_the_handle_of_a_call_that_was_refused_says_that_it_was_taken_back() -> None:
    busy = SessionError("429", retryable=True, not_executed=True)
    world = World(calls=[busy])
    async with world.client() as client:
        with pytest.raises(SessionError) as caught:
            await world.call(client)
        with pytest.raises(TasksClientError, match="taken back before it was sent"):
            await caught.value.handle.result()
