"""Tasks that a server has us run, without clock and journal: what is asked, what comes of it, replies."""

from __future__ import annotations

import base64
import json
import math
from datetime import datetime
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tasks_client import ReceivePolicy
from mcp_tasks_client.old.demands import (
    AskedCancel,
    AskedGet,
    AskedList,
    AskedResult,
    AskedTask,
    RefusedError,
    concerns,
    offered,
    read_request,
)
from mcp_tasks_client.old.journal.base import TaskRecord, dump_state, load_state
from mcp_tasks_client.old.received import (
    CREATION,
    RESULT,
    admit,
    cancelled,
    completed,
    created,
    creation,
    expires_at,
    failed,
    needed_for,
    owed,
    owing,
    page,
    paid,
    question,
    received_scope,
    repeated,
    result,
    shown,
    told,
    visible,
)
from mcp_tasks_client.old.wire import RpcError

from ._requirements import requirement

RELATED: Final = "io.modelcontextprotocol/related-task"
NOW: Final = 1_800_000_000.0
BOTH: Final = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
ANSWER: Final = {"action": "accept", "content": {"name": "Ada"}}


def message(method: str, params: Any = None, request_id: Any = 0) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def elicitation(task: Any, **params: Any) -> dict[str, Any]:
    return message("elicitation/create", {"message": "?", "requestedSchema": {}, "task": task, **params})


def asked(task: Any, request_id: Any = 0, **params: Any) -> AskedTask:
    found = read_request(request_id, elicitation(task, **params))
    assert isinstance(found, AskedTask)
    return found


def record(
    task: Any = None, *, name: str = "1", at: float = NOW, policy: ReceivePolicy | None = None, **params: Any
) -> TaskRecord:
    return created(
        asked(task if task is not None else {}, **params),
        record_id=f"record-{name}",
        task_id=f"task-{name}",
        party="session:s",
        scope=received_scope("http://server", ""),
        at=at,
        policy=policy or ReceivePolicy(),
    )


def refusal(error: pytest.ExceptionInfo[RefusedError]) -> int | None:
    return error.value.error.code


# ── what is asked ─────────────────────────────────────────────────────────────────────────────


@requirement("2025:receive-capability")
@pytest.mark.parametrize(
    ("capabilities", "requests"),
    [
        (BOTH, {"elicitation": {"create": {}}, "sampling": {"createMessage": {}}}),
        ({"sampling": {}}, {"sampling": {"createMessage": {}}}),
    ],
)
def test_declared_is_what_there_are_callbacks_for(capabilities: Any, requests: Any) -> None:
    assert offered(capabilities) == {"tasks": {"list": {}, "cancel": {}, "requests": requests}}


@requirement("2025:receive-capability")
@pytest.mark.parametrize("capabilities", [{}, {"roots": {}}])
def test_nothing_is_declared_where_nobody_could_be_asked(capabilities: Any) -> None:
    assert offered(capabilities) == {}
    assert not concerns(message("tasks/list"), capabilities)


@requirement("2025:receive-undeclared")
@pytest.mark.parametrize(
    ("said", "capabilities", "ours"),
    [
        (elicitation({}), BOTH, True),
        (elicitation(None), BOTH, False),
        (message("elicitation/create", {"message": "?"}), BOTH, False),
        (message("elicitation/create", []), BOTH, False),
        (elicitation({}), {"sampling": {}}, False),
        (message("roots/list", {"task": {}}), BOTH, False),
        (message("tasks/get", {"taskId": "1"}), BOTH, True),
        (message("tasks/list"), BOTH, True),
        (message("tasks/else"), BOTH, False),
        (message("ping"), BOTH, False),
    ],
)
def test_a_task_is_made_only_of_what_was_declared_and_asked_for(
    said: Any, capabilities: Any, ours: bool
) -> None:
    assert concerns(said, capabilities) is ours


def test_the_host_is_asked_without_the_wish_for_a_task() -> None:
    found = asked({"ttl": 5}, _meta={RELATED: {"taskId": "theirs"}})
    assert "task" not in found.request["params"]
    assert found.request["params"]["message"] == "?"
    assert found.related == "theirs"


@pytest.mark.parametrize(
    ("task", "ttl_ms"),
    [
        ({}, None),
        ({"ttl": 0}, None),
        ({"ttl": 60_000}, 60_000),
        ({"ttl": 0.5}, 0.5),
        ({"ttl": None}, math.inf),
    ],
)
def test_a_time_to_live_is_read(task: Any, ttl_ms: float | None) -> None:
    assert asked(task).ttl_ms == ttl_ms


@pytest.mark.parametrize(
    "task", ["yes", [], True, {"ttl": -1}, {"ttl": "60"}, {"ttl": True}, {"ttl": math.nan}]
)
def test_a_wish_that_makes_no_sense_is_refused(task: Any) -> None:
    with pytest.raises(RefusedError) as error:
        asked(task)
    assert refusal(error) == -32602


@requirement("2025:receive-task-id")
def test_the_task_is_named_by_the_params_and_not_by_a_mark() -> None:
    params = {"taskId": "this", "_meta": {RELATED: {"taskId": "other"}}}
    assert read_request(1, message("tasks/get", params)) == AskedGet("this")
    assert read_request(1, message("tasks/result", params)) == AskedResult("this")
    assert read_request(1, message("tasks/cancel", params)) == AskedCancel("this")


@requirement("2025:receive-errors")
@pytest.mark.parametrize("params", [None, [], {}, {"taskId": 5}, {"taskId": ""}])
def test_a_request_that_names_no_task_is_refused(params: Any) -> None:
    with pytest.raises(RefusedError) as error:
        read_request(1, message("tasks/get", params))
    assert refusal(error) == -32602


def forged(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@requirement("2025:receive-errors")
@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "next",
        "é",
        5,
        {},
        forged([1.0]),
        forged([1, "a"]),
        forged([math.inf, "a"]),
        forged([1.0, 2]),
        forged("ab"),
        forged([1.0, "a"]) + "\n",
        base64.urlsafe_b64encode(b"[" * 100_000).decode(),
        base64.urlsafe_b64encode(b'[1.0,"a"]').decode(),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
    ],
)
def test_a_cursor_that_was_never_given_out_is_refused(cursor: Any) -> None:
    with pytest.raises(RefusedError) as error:
        read_request(1, message("tasks/list", {"cursor": cursor}))
    assert refusal(error) == -32602


def test_a_request_that_comes_again_is_the_same_only_with_its_id_and_while_it_goes_on() -> None:
    task = record({})
    assert repeated(asked({}), [task]) is task
    assert repeated(asked({}, request_id="0"), [task]) is None
    assert repeated(asked({}, message="other"), [task]) is None
    assert repeated(asked({}), [completed(task, ANSWER, NOW)]) is None


# ── states ────────────────────────────────────────────────────────────────────────────────────


@requirement("2025:receive-lifecycle", "2025:receive-ttl")
@pytest.mark.parametrize(
    ("age_s", "interval_ms"), [(-60.0, 1000), (0.0, 1000), (2.0, 1000), (10.0, 5000), (3600.0, 10_000)]
)
def test_the_server_is_told_to_look_more_rarely_at_what_takes_its_time(
    age_s: float, interval_ms: int
) -> None:
    """For one server loses what it asks while nobody listens, as while a client is started again."""
    made = record()
    at = made.created_at + age_s
    assert shown(made, at)["pollInterval"] == interval_ms
    assert shown(completed(made, ANSWER, at), at)["pollInterval"] == 1000
    assert shown(made)["pollInterval"] == 1000


def test_a_task_begins_as_working_with_its_times_and_in_whole_milliseconds() -> None:
    task = shown(record({"ttl": 1500.2}))
    assert task == {
        "taskId": "task-1",
        "status": "working",
        "createdAt": "2027-01-15T08:00:00.000Z",
        "lastUpdatedAt": "2027-01-15T08:00:00.000Z",
        "ttl": 1501,
        "pollInterval": 1000,
    }
    assert all(type(task[name]) is int for name in ("ttl", "pollInterval"))


@requirement("2025:receive-ttl")
@pytest.mark.parametrize(
    ("task", "ttl_ms"), [({}, 2000), ({"ttl": 1}, 1), ({"ttl": 9000}, 5000), ({"ttl": None}, 5000)]
)
def test_a_time_to_live_has_a_default_and_a_limit(task: Any, ttl_ms: int) -> None:
    made = record(task, policy=ReceivePolicy(default_ttl_ms=2000, max_ttl_ms=5000))
    assert shown(made)["ttl"] == ttl_ms
    assert expires_at(made) == NOW + ttl_ms / 1000


@requirement("2025:receive-lifecycle", "2025:receive-result")
@pytest.mark.parametrize(
    ("ended", "status", "said"),
    [
        (completed(record(), ANSWER, NOW + 1), "completed", None),
        (failed(record(), RpcError(-5, "no", {"why": 1}), NOW + 1), "failed", "no"),
        (cancelled(record(), NOW + 1), "cancelled", "The task was cancelled by request."),
    ],
)
def test_a_task_ends_once_and_says_how(ended: TaskRecord, status: str, said: str | None) -> None:
    task = shown(ended)
    assert (task["status"], task.get("statusMessage")) == (status, said)
    assert datetime.fromisoformat(task["lastUpdatedAt"]) > datetime.fromisoformat(task["createdAt"])
    with pytest.raises(RefusedError, match=f"already in terminal status '{status}'") as error:
        cancelled(ended, NOW + 2)
    assert refusal(error) == -32602
    with pytest.raises(AssertionError):
        completed(ended, ANSWER, NOW + 2)


def test_a_state_comes_back_from_a_journal_as_it_was() -> None:
    for one in (record(), completed(record(), ANSWER, NOW), failed(record(), RpcError(1, "", None), NOW)):
        back = one.with_state(load_state(dump_state(one.state)))
        assert (shown(back), owed(back), expires_at(back)) == (shown(one), owed(one), expires_at(one))
        assert not one.finished or result(back) == result(one)
    assert question(record())["method"] == "elicitation/create"


@requirement("2025:receive-limits")
def test_there_are_limits_to_what_is_worked_on_and_to_what_is_kept() -> None:
    policy = ReceivePolicy(max_working=1, max_kept=2)
    over = completed(record(), ANSWER, NOW)
    admit([over], policy)
    for records in ([record()], [over, over]):
        with pytest.raises(RefusedError, match="Too many tasks") as error:
            admit(records, policy)
        assert refusal(error) == -32600


@pytest.mark.parametrize(
    "options",
    [{"max_working": 0}, {"page_size": -1}, {"max_ttl_ms": math.inf}, {"max_ttl_ms": 5, "default_ttl_ms": 6}],
)
def test_limits_that_are_none_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        ReceivePolicy(**options)


@requirement("2025:receive-isolation", "2025:receive-errors")
def test_a_task_is_seen_in_its_session_and_in_its_time() -> None:
    task = record({"ttl": 1000})
    assert visible(task, "session:s", NOW + 0.9) is task
    for found, party, now, said in (
        (None, "session:s", NOW, "not found"),
        (task, "session:t", NOW, "not found"),
        (task, "session:t", NOW + 1, "not found"),
        (task, "session:s", NOW + 1, "expired"),
    ):
        with pytest.raises(RefusedError, match=said) as error:
            visible(found, party, now)
        assert refusal(error) == -32602


# ── replies ───────────────────────────────────────────────────────────────────────────────────


@requirement("2025:receive-marks")
def test_a_result_is_marked_with_its_task_and_a_snapshot_is_not() -> None:
    done = completed(record(), {**ANSWER, "_meta": {"own": 1}}, NOW)
    assert result(done) == {**ANSWER, "_meta": {"own": 1, RELATED: {"taskId": "task-1"}}}
    assert "_meta" not in shown(done)
    assert "_meta" not in page([done], None, 1)
    assert creation(record()) == {"task": shown(record())}
    mark = {RELATED: {"taskId": "theirs"}}
    assert creation(record(_meta=mark)) == {"task": shown(record()), "_meta": mark}


@requirement("law:1")
def test_what_is_owed_to_the_server_is_kept_with_the_task_until_it_is_paid() -> None:
    one = record(_meta={RELATED: {"taskId": "theirs"}})
    assert owed(one) == [(0, CREATION)]
    both = owing(owing(one, "0", RESULT), "0", RESULT)
    assert owed(both) == [(0, CREATION), ("0", RESULT)]
    assert (owed(paid(both, 0)), owed(paid(both, "0"))) == ([("0", RESULT)], [(0, CREATION)])
    assert owed(told(both)) == [("0", RESULT)]
    many = one
    for number in range(1, 200):
        many = owing(many, number, RESULT)
    assert [number for number, _ in owed(many)] == [*range(100, 200)]
    done = completed(both, ANSWER, NOW)
    assert (owed(done), result(told(done))) == (owed(both), result(done))
    assert (shown(told(both)), needed_for(told(both))) == (shown(one), "theirs")


@requirement("2025:receive-result")
def test_what_the_question_would_have_been_answered_with_is_the_result() -> None:
    error = RpcError(-1, "User rejected sampling request", {"why": "private"})
    assert result(failed(record(), error, NOW)) == error
    assert result(cancelled(record(), NOW)) == RpcError(-32603, "The task was cancelled.", None)


@requirement("2025:receive-list")
@given(st.data(), st.lists(st.sampled_from([0.0, 0.25, 1.0]), max_size=12), st.integers(1, 4))
def test_paging_shows_each_task_that_stands_once_whatever_comes_and_goes(
    data: st.DataObject, ages: list[float], size: int
) -> None:
    standing = [record(name=f"{n}", at=NOW - age) for n, age in enumerate(ages)]
    passing = [record(name=f"x{n}", at=NOW - 0.5) for n in range(3)]
    seen: list[str] = []
    after = None
    while True:
        now_there = standing + data.draw(st.lists(st.sampled_from(passing), unique_by=id))
        reply = page(data.draw(st.permutations(now_there)), after, size)
        assert len(reply["tasks"]) <= size
        seen += [task["taskId"] for task in reply["tasks"]]
        if "nextCursor" not in reply:
            break
        following = read_request(1, message("tasks/list", {"cursor": reply["nextCursor"]}))
        assert isinstance(following, AskedList)
        after = following.after
    assert len(seen) == len(set(seen))
    assert {one.task_id for one in standing} <= set(seen)
