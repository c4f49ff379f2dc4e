"""For how long a task has run: by the server's times, less the time in which somebody was asked."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from mcp_tasks_client import Scope, Task, TaskRecord
from mcp_tasks_client.machine import advance
from mcp_tasks_client.machine.events import AnswerReady, Event, Notified, Observed, Resumed, TaskCreated
from mcp_tasks_client.machine.record import dump_state, load_state
from mcp_tasks_client.machine.states import AskedQuestion, Calling, Completed, Finished, Observing, State
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.protocol.task import read_task

BEGAN: Final = 1_800_000_000.0
"""When the task was made, by the server's clock, and by ours."""

DONE: Final = {"content": []}
NAME: Final = {"method": "elicitation/create", "params": {"message": "Name?"}}
AGE: Final = {"method": "elicitation/create", "params": {"message": "Age?"}}


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(BEGAN + seconds, UTC).isoformat()


def snapshot(status: str, changed: float | None, **fields: Any) -> Task:
    times = {} if changed is None else {"createdAt": stamp(0), "lastUpdatedAt": stamp(changed)}
    return read_task({"taskId": "t", "status": status, **times, **fields})


class Life:
    """One call. Times are in seconds since the server made the task."""

    def __init__(self, changed: float | None = 0.0) -> None:
        self.state: State = Calling()
        self._feed(TaskCreated(task=snapshot("working", changed), now=BEGAN, jitter=0.0))

    def _feed(self, event: Event) -> None:
        self.state, _ = advance(self.state, event, PollPolicy())

    def sees(self, at: float, status: str, changed: float | None, **fields: Any) -> None:
        """A poll, and when the task has changed last by the server's word."""
        task = snapshot(status, changed, **fields)
        self._feed(Observed(task=task, now=BEGAN + at, jitter=0.0))

    def is_told(self, at: float, status: str, changed: float | None, **fields: Any) -> None:
        """A notification."""
        self._feed(Notified(task=snapshot(status, changed, **fields), now=BEGAN + at))

    def asked(self, at: float, changed: float | None, **requests: Any) -> None:
        self.sees(at, "input_required", changed, inputRequests=requests or {"name": NAME})

    def answers(self, at: float, key: str = "name") -> None:
        answer = {"action": "accept", "content": {}}
        self._feed(AnswerReady(key=key, answer=answer, now=BEGAN + at))

    def has(self, question: AskedQuestion) -> None:
        """A record of a version that wrote neither since when a question waits nor when it was answered."""
        assert isinstance(self.state, Observing)
        text = dump_state(replace(self.state, questions=(question,)))
        assert text.count('"waits_from":0.0,"answered_at":0.0,') == 1
        self.state = load_state(text.replace('"waits_from":0.0,"answered_at":0.0,', ""))

    def is_taken_over(self, at: float) -> None:
        """The process dies, and another one has what was saved."""
        self.state = load_state(dump_state(self.state))
        self._feed(Resumed(now=BEGAN + at, jitter=0.0, due_is_exact=False))

    def took_s(self, at: float, changed: float | None, **result: Any) -> float | None:
        self.sees(at, "completed", changed, result={**DONE, **result})
        return record(self.state).took_s

    def ran_s(self, at: float) -> float:
        return record(self.state).ran_s(BEGAN + at)


def record(state: State) -> TaskRecord:
    return TaskRecord(
        record_id="r", scope=Scope("s"), tool="build", state=state, created_at=0.0, updated_at=0.0
    )


def test_the_server_s_times_count_and_no_wait_between_polls() -> None:
    assert Life().took_s(30.0, changed=12.5) == 12.5


def test_the_time_in_which_no_client_ran_does_not_count() -> None:
    life = Life()
    life.is_taken_over(at=3600.0)
    assert life.took_s(3601.0, changed=12.5) == 12.5


@pytest.mark.parametrize("changed", [None, 0.0], ids=["no times", "a time that never moves"])
def test_our_own_clock_counts_where_the_server_s_times_say_nothing(changed: float | None) -> None:
    assert Life(changed).took_s(30.0, changed) == 30.0


def test_an_end_that_is_told_unasked_is_timed_too() -> None:
    life = Life()
    life.is_told(13.0, "completed", changed=12.5, result=DONE)
    assert record(life.state).took_s == 12.5


def test_the_time_in_which_somebody_was_asked_does_not_count() -> None:
    life = Life()
    life.asked(10.0, changed=10.0)
    life.answers(110.0)
    life.sees(112.0, "working", changed=110.0)
    assert life.took_s(120.0, changed=115.0) == 15.0


def test_it_is_known_to_the_process_that_takes_the_call_over() -> None:
    life = Life()
    life.asked(10.0, changed=10.0)
    life.answers(110.0)
    life.is_taken_over(at=500.0)
    assert life.took_s(501.0, changed=115.0) == 15.0


def test_a_question_that_came_while_no_client_ran_has_waited_from_then_on() -> None:
    life = Life()
    life.is_taken_over(at=1000.0)
    life.asked(1000.0, changed=10.0)
    life.answers(1100.0)
    assert life.took_s(1110.0, changed=1105.0) == 15.0


def test_a_question_that_is_told_unasked_and_late_has_waited_from_then_on_too() -> None:
    life = Life()
    life.is_told(1000.0, "input_required", changed=10.0, inputRequests={"name": NAME})
    assert life.ran_s(1010.0) == 10.0


def test_questions_that_wait_at_the_same_time_count_once() -> None:
    life = Life()
    life.asked(10.0, 10.0, name=NAME, age=AGE)
    life.answers(60.0, "name")
    life.answers(110.0, "age")
    assert life.took_s(120.0, changed=115.0) == 15.0


def test_questions_that_come_one_after_the_other_count_each() -> None:
    life = Life()
    life.asked(10.0, 10.0, name=NAME)
    life.answers(20.0, "name")
    life.sees(30.0, "working", 20.0)
    life.asked(50.0, 50.0, age=AGE)
    life.answers(70.0, "age")
    assert life.took_s(120.0, changed=115.0) == 85.0


def test_it_is_never_less_than_nothing() -> None:
    life = Life()
    life.asked(1.0, None)
    life.answers(110.0)
    assert life.took_s(120.0, changed=5.0) == 0.0
    assert Life().ran_s(-5.0) == 0.0


def test_a_task_that_went_on_without_an_answer_says_nothing() -> None:
    """Nobody knows since when the server does not wait any more."""
    life = Life()
    life.asked(10.0, changed=10.0)
    assert life.took_s(120.0, changed=115.0) is None


def test_an_answer_of_an_earlier_version_says_nothing() -> None:
    life = Life()
    life.has(AskedQuestion(key="name", digest="d", asked_at=BEGAN + 10.0, stage="acknowledged", answer={}))
    assert life.took_s(120.0, changed=115.0) is None


def test_a_question_of_an_earlier_version_waits_from_when_it_was_seen() -> None:
    life = Life()
    life.has(AskedQuestion(key="name", digest="d", asked_at=BEGAN + 10.0, request=NAME))
    assert life.ran_s(60.0) == 10.0
    life.answers(110.0)
    assert life.took_s(120.0, changed=115.0) == 15.0


def test_an_error_of_the_tool_is_not_timed() -> None:
    """A server of the older generation calls such a task failed, and most such calls end early."""
    assert Life().took_s(30.0, changed=12.5, isError=True) is None
    assert Life().took_s(30.0, changed=12.5, isError=False) == 12.5


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_no_other_end_is_timed(status: str) -> None:
    life = Life()
    life.sees(30.0, status, 12.5, error={"code": 1, "message": "no"})
    assert isinstance(life.state, Finished)
    assert record(life.state).took_s is None


def test_a_task_that_runs_has_run_since_it_was_made_and_stands_still_while_it_asks() -> None:
    life = Life()
    assert life.ran_s(7.0) == 7.0
    life.asked(10.0, changed=10.0)
    assert (life.ran_s(20.0), life.ran_s(90.0)) == (10.0, 10.0)
    life.answers(110.0)
    assert life.ran_s(115.0) == 15.0


def test_a_call_without_a_task_has_not_run_and_one_that_is_over_has_run_as_long_as_it_took() -> None:
    assert record(Calling()).ran_s(BEGAN) == 0.0
    assert record(Finished(outcome=Completed(result={}, took_s=7.0))).ran_s(BEGAN) == 7.0
    assert record(Finished(outcome=Completed(result={}))).ran_s(BEGAN) == 0.0


def test_a_time_that_has_not_moved_since_the_last_look_does_not_say_since_when_a_question_waits() -> None:
    life = Life()
    life.sees(5.0, "working", changed=5.0)
    life.asked(50.0, changed=5.0)
    assert life.ran_s(60.0) == 50.0
