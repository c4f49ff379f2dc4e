"""What a record says of its call, and what it keeps to itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcp_tasks_client import LastFailure, Scope, TaskRecord, digest_arguments
from mcp_tasks_client.machine.record import dump_state, reference_of
from mcp_tasks_client.machine.states import (
    AskedQuestion,
    Calling,
    Completed,
    Failed,
    Finished,
    Gathering,
    Gone,
    Observing,
    Outcome,
    State,
    questions_of,
)
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.task import read_task

TASK_ID = "a-task-with-a-very-long-id-that-nobody-may-see"


def snapshot(**fields: object) -> JSONObject:
    return {"taskId": TASK_ID, "status": "working", "createdAt": "x", "lastUpdatedAt": "x", **fields}


def record(state: State) -> TaskRecord:
    return TaskRecord(
        record_id="r", scope=Scope("server"), tool="deploy", state=state, created_at=1.0, updated_at=1.0
    )


def finished(outcome: Outcome) -> TaskRecord:
    return record(Finished(outcome=outcome, task=read_task(snapshot())))


def observing(**fields: object) -> TaskRecord:
    task = read_task(snapshot(**fields))
    return record(Observing(task=task, ttl_ms=task.ttl_ms, received_at=10.0, due_at=11.0))


def test_before_there_is_a_task_a_record_has_none_and_is_kept_for_its_key_alone() -> None:
    plain = record(Calling())
    assert (plain.task, plain.task_id, plain.status) == (None, None, "calling")
    assert (plain.kept, plain.finished, plain.pending, plain.gone) == (False, False, False, False)
    assert replace(plain, idempotency_key="order-42").kept


def test_a_result_is_that_of_a_completed_call_as_it_came() -> None:
    assert finished(Completed(result={"unknown": 1})).result == {"unknown": 1}
    assert finished(Failed(code=-1, message="")).result is None
    assert record(Calling()).result is None


def test_arguments_are_equal_as_json_is() -> None:
    assert digest_arguments({"a": 1, "b": 2}) == digest_arguments({"b": 2.0, "a": 1})
    assert digest_arguments({"a": 1}) != digest_arguments({"a": True})


def test_an_observed_task_is_pending_and_expires_when_its_ttl_says_so() -> None:
    assert observing(ttlMs=5000).expires_at == 15.0
    assert observing().expires_at is None
    assert finished(Completed(result={})).expires_at is None
    assert observing().pending
    assert observing().task == read_task(snapshot())
    assert observing().status == "working"


def test_an_observed_task_says_when_it_is_polled_next() -> None:
    assert observing().due_at == 11.0
    assert finished(Completed(result={})).due_at is None
    assert record(Calling()).due_at is None


def test_only_what_gathers_answers_and_a_task_have_questions() -> None:
    asked = (AskedQuestion(key="name", digest="d"),)
    assert questions_of(Gathering(round=0, request_state=None, questions=asked)) == asked
    state = observing().state
    assert isinstance(state, Observing)
    assert questions_of(replace(state, questions=asked)) == asked
    assert questions_of(Calling(gathered=Gathering(round=0, request_state=None, questions=asked))) == ()


def test_what_fails_is_known_of_an_observed_task_and_of_a_call_without_a_slot() -> None:
    failure = LastFailure(message="HTTP 503", count=2, since=1.0)
    state = observing().state
    assert isinstance(state, Observing)
    assert record(replace(state, failure=failure)).last_failure == failure
    assert record(Calling()).last_failure is None
    waits = Gathering(round=0, request_state=None, questions=(), failure=failure)
    assert record(waits).last_failure == failure


def test_the_snapshot_of_a_finished_call_has_its_outcome() -> None:
    done, failed = (
        finished(Completed(result={"content": []})),
        finished(Failed(code=-1, message="no", data=2)),
    )
    gone = finished(Gone(why="not_found", message=""))
    assert done.task is not None
    assert done.task.result == {"content": []}
    assert failed.task is not None
    assert failed.task.error == {"code": -1, "message": "no", "data": 2}
    assert gone.task is not None
    assert gone.task.error is None
    assert [one.status for one in (done, failed, gone)] == ["completed", "failed", "not_found"]
    assert [one.gone for one in (done, failed, gone)] == [False, False, True]


def test_an_outcome_is_pending_until_it_was_delivered() -> None:
    done = finished(Completed(result={}))
    assert done.pending
    assert not replace(done, delivered_at=2.0).pending


def test_a_reference_has_what_finds_the_call_again() -> None:
    whole = {"endpoint": "server", "principal": "", "tool": "deploy", "task_id": TASK_ID, "record_id": "r"}
    assert reference_of(observing()) == whole
    assert reference_of(record(Calling()), TASK_ID) == whole
    assert reference_of(record(Calling())) == {**whole, "task_id": None}


def test_the_representation_shortens_the_task_id() -> None:
    assert TASK_ID not in repr(observing())
    assert "deploy" in repr(observing())
    assert "task_id=None" in repr(record(Calling()))


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        dump_state(Finished(outcome=Completed(result={"x": object()}), task=None))
