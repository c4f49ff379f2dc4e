"""The life of one tool call, told in examples.

Jitter is 0 unless a test is about it, so that every wait is a plain number. The sentences of the
machine's theory of operation come first, then the questions, then what a restart makes of it all,
and at the end a table of every event in every state.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from typing import Any, Final, get_args

import pytest

from mcp_tasks_client import LastFailure, Task
from mcp_tasks_client.errors import CredentialRefusedError, SessionError
from mcp_tasks_client.machine import MAX_ROUNDS, ImpossibleEventError, advance, input_requests
from mcp_tasks_client.machine.actions import (
    Action,
    Ask,
    Finish,
    Forget,
    Park,
    Poll,
    Publish,
    Report,
    Save,
    SendAnswers,
    SendCall,
    SendCancel,
    StopAsking,
    Unanswered,
    Wake,
)
from mcp_tasks_client.machine.events import (
    AnswerReady,
    AnswerUnavailable,
    CallAgain,
    CallBegun,
    CallFailed,
    CallLost,
    CallRefused,
    CallReturned,
    CancelAcknowledged,
    CancelFailed,
    CancelRejected,
    CancelRequested,
    Event,
    InputAsked,
    Notified,
    ObservationRefused,
    Observed,
    PollCut,
    PollFailed,
    Resumed,
    TaskCreated,
    TaskMissing,
    Tick,
    UpdateAcknowledged,
    UpdateFailed,
    UpdateRefused,
)
from mcp_tasks_client.machine.input_requests import (
    MAX_OPEN,
    MAX_QUESTIONS,
    MAX_REFUSALS,
    MAX_SIZE,
    TOLD_AT_MOST,
)
from mcp_tasks_client.machine.record import dump_state, load_state
from mcp_tasks_client.machine.states import (
    AskedQuestion,
    Calling,
    Cancelled,
    Completed,
    Failed,
    Finished,
    Gathering,
    Gone,
    Observing,
    Outcome,
    OutcomeUnknown,
    State,
    Violated,
)
from mcp_tasks_client.policy import PollPolicy
from mcp_tasks_client.protocol.replies import read_url_requests
from mcp_tasks_client.protocol.task import read_task

from .._requirements import requirement

TASK_ID = "hfWcnM9nILV_1MI9AytuHXEJLNNwF6lE8HXmpazeV2c"
CREATED_AT = "2026-11-20T23:11:37Z"
RESULT = {"content": [{"type": "text", "text": "6"}], "structuredContent": {"n": 6}, "vendor/x": [None]}
NAME = {"method": "elicitation/create", "params": {"message": "Name?"}}
AGE = {"method": "elicitation/create", "params": {"message": "Age?"}}
ADA = {"action": "accept", "content": {"name": "Ada"}}
BOB = {"action": "accept", "content": {"name": "Bob"}}
ACCEPTED = {"action": "accept"}
FAILED = LastFailure(message="no", count=3, since=1.0)


def snapshot(status: str = "working", **fields: Any) -> Task:
    """A task as servers send it: a hint of five seconds and a time-to-live of fifteen minutes."""
    raw = {
        "taskId": TASK_ID,
        "status": status,
        "createdAt": CREATED_AT,
        "ttlMs": 900_000,
        "pollIntervalMs": 5000,
        **fields,
    }
    return read_task({key: value for key, value in raw.items() if value is not ...})


def url_requests(*names: str) -> dict[str, Any]:
    """As the session reads the data of the error."""
    entries = [{"mode": "url", "message": name, "url": f"https://auth.test/{name}"} for name in names]
    return read_url_requests({"elicitations": entries}) or {}


class Life:
    """One call, and the hands that feed it. The clock moves when it is told to."""

    def __init__(self, state: State | None = None, policy: PollPolicy | None = None) -> None:
        self.state: State = state or Calling()
        self.policy = policy or PollPolicy()
        self.now = 1_000_000.0
        self.saved: str | None = None

    def feed(self, event: Event) -> tuple[Action, ...]:
        self.state, actions = advance(self.state, event, self.policy)
        if Save() in actions:
            self.saved = dump_state(self.state)
        return actions

    def created(self, status: str = "working", **fields: Any) -> tuple[Action, ...]:
        return self.feed(TaskCreated(task=snapshot(status, **fields), now=self.now, jitter=0.0))

    def sees(self, status: str = "working", **fields: Any) -> tuple[Action, ...]:
        return self.feed(Observed(task=snapshot(status, **fields), now=self.now, jitter=0.0))

    def asked(self, **requests: Any) -> tuple[Action, ...]:
        return self.sees("input_required", inputRequests=requests)

    def poll_fails(self, retry_after_s: float | None = None) -> tuple[Action, ...]:
        return self.feed(PollFailed(why="no", now=self.now, jitter=0.0, retry_after_s=retry_after_s))

    def update_fails(self, *keys: str, retry_after_s: float | None = None) -> tuple[Action, ...]:
        return self.feed(
            UpdateFailed(why="no", keys=keys, now=self.now, jitter=0.0, retry_after_s=retry_after_s)
        )

    def acknowledged(self, *keys: str) -> tuple[Action, ...]:
        return self.feed(UpdateAcknowledged(keys=keys))

    def refused(self, *keys: str, words: str = "Not that") -> tuple[Action, ...]:
        return self.feed(UpdateRefused(keys=keys, words=words))

    def cancels(self) -> tuple[Action, ...]:
        return self.feed(CancelRequested(now=self.now))

    def cancel_fails(self, retry_after_s: float | None = None) -> tuple[Action, ...]:
        return self.feed(CancelFailed(why="no", now=self.now, jitter=0.0, retry_after_s=retry_after_s))

    def asked_once_more(self, **requests: Any) -> tuple[Action, ...]:
        """A poll that is sent now, and its reply."""
        self.ticks()
        return self.asked(**requests)

    def answers(self, key: str, answer: dict[str, Any] = ADA) -> tuple[Action, ...]:
        return self.feed(AnswerReady(key=key, answer=answer, now=self.now))

    def ticks(self) -> tuple[Action, ...]:
        return self.feed(Tick(now=self.now, jitter=0.0))

    def urls(self, *names: str) -> tuple[Action, ...]:
        """The call is refused until these were visited."""
        return self.feed(InputAsked(requests=url_requests(*names), request_state=None, now=0.0))

    def limited(self, retry_after_s: float | None = None) -> tuple[Action, ...]:
        """The call is refused for want of a slot."""
        refused = CallRefused(limited=True, why="HTTP 429", retry_after_s=retry_after_s, now=self.now)
        return self.feed(refused)

    def missing(self) -> tuple[Action, ...]:
        return self.feed(TaskMissing(message="Task not found", now=self.now))

    def resumes(self, *, jitter: float = 0.0) -> tuple[Action, ...]:
        return self._taken_up(Resumed(now=self.now, jitter=jitter))

    def crashes(self, *, jitter: float = 0.0) -> tuple[Action, ...]:
        """The process dies, and another one takes up what was saved."""
        assert self.saved is not None
        self.state = load_state(self.saved)
        return self._taken_up(Resumed(now=self.now, jitter=jitter, due_is_exact=False))

    def _taken_up(self, event: Resumed) -> tuple[Action, ...]:
        """What there is to do after a resume, once the new owner and due time are saved."""
        saved, *actions = self.feed(event)
        assert saved == Save()
        return tuple(actions)

    @property
    def observing(self) -> Observing:
        assert isinstance(self.state, Observing)
        return self.state

    def stage(self, key: str) -> str:
        questions = self.state.questions if isinstance(self.state, Observing | Gathering) else ()
        return {q.key: q.stage for q in questions}[key]


def working(policy: PollPolicy | None = None, **fields: Any) -> Life:
    """A life that has just become a task."""
    life = Life(policy=policy)
    life.created(**fields)
    return life


def asking(**requests: Any) -> Life:
    """A life in which the server has just asked something."""
    life = working()
    life.asked(**(requests or {"name": NAME}))
    return life


def sending(key: str = "name", answer: dict[str, Any] = ADA) -> Life:
    """A life whose one answer is on its way."""
    life = asking(**{key: NAME})
    life.answers(key, answer)
    return life


def only(kind: type[Action], actions: tuple[Action, ...]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def ended(life: Life) -> Outcome:
    """The end, without how long the task ran, which ``test_running_time.py`` is about."""
    assert isinstance(life.state, Finished)
    outcome = life.state.outcome
    return replace(outcome, took_s=None) if isinstance(outcome, Completed) else outcome


# ── before the task ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "result", [RESULT, {**RESULT, "isError": True}, {}], ids=["plain", "isError", "empty"]
)
def test_a_plain_result_is_the_end_and_passed_on_unchanged(result: dict[str, Any]) -> None:
    life = Life()
    outcome = Completed(result=result)
    assert life.feed(CallReturned(result=result)) == (Save(), Finish())
    assert life.state == Finished(outcome=outcome)


def test_a_json_rpc_error_is_the_end_and_keeps_code_message_and_data() -> None:
    life = Life()
    outcome = Failed(code=-32603, message="Boom", data={"a": 1})
    assert life.feed(CallFailed(code=-32603, message="Boom", data={"a": 1})) == (Save(), Finish())
    assert life.state == Finished(outcome=outcome)


def test_a_call_that_surely_did_not_run_is_forgotten() -> None:
    life = Life()
    assert life.feed(CallRefused()) == (Forget(),)
    assert life.state == Calling()


def test_a_lost_reply_leaves_the_outcome_unknown_and_nothing_is_sent_again() -> None:
    life = Life()
    assert life.feed(CallLost()) == (Save(),)
    assert life.state == OutcomeUnknown()


def test_a_call_of_unknown_outcome_is_sent_again_only_when_the_caller_says_so() -> None:
    life = Life(OutcomeUnknown())
    assert life.feed(CallAgain()) == (Save(), SendCall())
    assert life.state == Calling(again=True)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_refused_call_takes_nothing_back_of_what_an_earlier_one_may_have_done(rounds: int) -> None:
    life = Life(OutcomeUnknown())
    life.feed(CallAgain())
    for _ in range(rounds):
        life.feed(InputAsked(requests={"name": NAME}, request_state="s", now=0.0))
        life.answers("name")
        life.feed(CallBegun())
    assert life.feed(CallRefused(for_good=True)) == (Save(),)
    assert life.state == OutcomeUnknown()


def test_a_call_lost_in_a_later_round_starts_over_without_the_old_answers() -> None:
    life = Life()
    life.feed(InputAsked(requests={"name": NAME}, request_state="s", now=0.0))
    life.answers("name")
    life.feed(CallBegun())
    life.feed(CallLost())
    assert life.feed(CallAgain()) == (Save(), SendCall())
    assert life.state == Calling(round=0, again=True)


# ── rounds of questions before the task ───────────────────────────────────────────────────────


def test_a_server_that_asks_first_has_each_question_put_to_the_host() -> None:
    life = Life()
    actions = life.feed(InputAsked(requests={"name": NAME, "age": AGE}, request_state="s", now=0.0))
    assert actions == (Save(), Ask("name", NAME), Ask("age", AGE))
    assert isinstance(life.state, Gathering)


@requirement("mrtr:answers")
def test_the_call_goes_again_with_every_answer_and_the_state_once_the_last_question_is_answered() -> None:
    life = Life()
    life.feed(InputAsked(requests={"name": NAME, "age": AGE}, request_state="s", now=0.0))
    assert life.answers("age", BOB) == (Save(),)
    send = SendCall({"name": ADA, "age": BOB}, "s")
    assert life.answers("name", ADA) == (Save(), send)
    assert life.crashes() == (send,), "not sent yet, so nobody is asked again"
    gathered = life.state
    assert isinstance(gathered, Gathering)
    assert life.feed(CallBegun()) == (Save(),)
    assert life.state == Calling(round=1, gathered=gathered)


def test_a_second_answer_to_the_same_question_before_the_task_changes_nothing() -> None:
    life = Life()
    life.feed(InputAsked(requests={"name": NAME, "age": AGE}, request_state=None, now=0.0))
    life.answers("name", ADA)
    assert life.answers("name", BOB) == ()
    assert life.answers("age", BOB) == (Save(), SendCall({"name": ADA, "age": BOB}, None))


def test_a_question_that_somebody_has_answered_does_not_park_the_call_for_want_of_an_answer() -> None:
    life = Life()
    life.feed(InputAsked(requests={"name": NAME, "age": AGE}, request_state=None, now=0.0))
    life.answers("name", ADA)
    assert life.feed(AnswerUnavailable(key="name", why="the callback raised")) == ()
    life = sending()
    assert life.feed(AnswerUnavailable(key="name", why="the callback raised")) == ()


def test_a_second_answer_to_the_last_question_before_the_task_does_not_send_the_call_twice() -> None:
    life = Life()
    life.feed(InputAsked(requests={"name": NAME}, request_state=None, now=0.0))
    assert life.answers("name", ADA) == (Save(), SendCall({"name": ADA}, None))
    assert not only(SendCall, life.answers("name", BOB))


def test_an_answer_nobody_can_give_parks_the_call_before_the_task() -> None:
    life = Life()
    life.feed(InputAsked(requests={"name": NAME}, request_state=None, now=0.0))
    cause = RuntimeError()
    actions = life.feed(AnswerUnavailable(key="name", why="no callback", cause=cause))
    assert actions == (StopAsking(), Park(Unanswered(("name",), "no callback", cause)))
    assert life.stage("name") == "open"


def test_a_resumed_round_asks_only_what_has_no_answer_yet() -> None:
    life = Life()
    life.feed(InputAsked(requests={"name": NAME, "age": AGE}, request_state=None, now=0.0))
    life.answers("name")
    assert life.resumes() == (Ask("age", AGE),)
    assert life.crashes() == (Ask("age", AGE),)


def test_a_round_that_was_not_even_read_keeps_its_answers_for_the_next_try() -> None:
    life = Life()
    life.feed(InputAsked(requests={"name": NAME}, request_state="s", now=0.0))
    life.answers("name")
    life.feed(CallBegun())
    assert life.feed(CallRefused()) == (Save(),)
    assert life.resumes() == (SendCall({"name": ADA}, "s"),)


def test_a_round_that_the_server_will_not_have_is_forgotten() -> None:
    life = Life()
    life.feed(InputAsked(requests={"name": NAME}, request_state="s", now=0.0))
    life.answers("name")
    life.feed(CallBegun())
    assert life.feed(CallRefused(for_good=True)) == (Forget(),)


def test_a_round_with_nothing_but_state_is_repeated_after_a_pause() -> None:
    life = Life()
    actions = life.feed(InputAsked(requests={}, request_state="s", now=0.0))
    send = SendCall(request_state="s", after_s=0.25)
    assert actions == (Save(), send)
    assert life.crashes() == (send,)
    gathered = life.state
    assert isinstance(gathered, Gathering)
    assert life.feed(CallBegun()) == (Save(),)
    assert life.state == Calling(round=1, gathered=gathered)


def test_a_later_round_may_ask_again_under_the_same_key() -> None:
    life = Life()
    life.feed(InputAsked(requests={"name": NAME}, request_state="1", now=0.0))
    life.answers("name")
    life.feed(CallBegun())
    assert life.feed(InputAsked(requests={"name": NAME}, request_state="2", now=0.0)) == (
        Save(),
        Ask("name", NAME),
    )
    assert life.answers("name", BOB) == (Save(), SendCall({"name": BOB}, "2"))


def test_a_request_that_is_no_object_is_put_to_the_host_as_an_empty_one() -> None:
    life = Life()
    assert life.feed(InputAsked(requests={"odd": "name?"}, request_state=None, now=0.0)) == (
        Save(),
        Ask("odd", {}),
    )


@pytest.mark.parametrize("requests", [{}, {"name": NAME}], ids=["state only", "questions"])
def test_a_server_that_asks_for_ever_is_stopped_after_the_last_round(requests: dict[str, Any]) -> None:
    life = Life()
    for _ in range(MAX_ROUNDS):
        life.feed(InputAsked(requests=requests, request_state="s", now=0.0))
        if requests:
            life.answers("name")
        life.feed(CallBegun())
        assert isinstance(life.state, Calling)
    actions = life.feed(InputAsked(requests=requests, request_state="s", now=0.0))
    outcome = Violated(message="The server put the call off 32 times and never began it.")
    assert actions == (Save(), Finish())
    assert ended(life) == outcome


# ── URLs that have to be visited before the call ──────────────────────────────────────────────


def test_the_call_goes_again_as_it_was_once_every_url_is_accepted() -> None:
    life = Life()
    first, second = url_requests("a", "b").items()
    assert life.urls("a", "b") == (Save(), Ask(*first), Ask(*second))
    assert life.answers(first[0], ACCEPTED) == (Save(),)
    assert life.answers(second[0], ACCEPTED) == (Save(), SendCall())
    life.feed(CallBegun())
    assert life.urls("a") == (Save(), Ask(*first)), "the server asks again"


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_a_url_that_is_declined_parks_the_call_since_nothing_can_be_told_to_the_server(action: str) -> None:
    life = Life()
    life.urls("a", "b")
    one, other = url_requests("a", "b")
    life.answers(one, ACCEPTED)
    stop, parked = life.answers(other, {"action": action})
    assert stop == StopAsking()
    assert parked == Park(Unanswered((other,), parked.reason.why, None, declined=True))  # type: ignore[union-attr]
    assert action in parked.reason.why  # type: ignore[union-attr]
    assert life.answers(one, {"action": action}) == (), "it was accepted"


@pytest.mark.parametrize("how", ["resumes", "crashes"])
def test_a_call_that_waited_for_a_url_goes_again_at_once_when_it_is_taken_up(how: str) -> None:
    """The URL may have been visited meanwhile, or be out of date."""
    life = Life()
    life.urls("a")
    assert getattr(life, how)() == (SendCall(after_s=0.25),)
    assert life.answers(next(iter(url_requests("a"))), {"action": "decline"}) == (), "too late"


def test_a_url_keeps_what_the_refused_round_had_answered() -> None:
    life = Life()
    life.feed(InputAsked(requests={"name": NAME}, request_state="s", now=0.0))
    life.answers("name")
    life.feed(CallBegun())
    life.urls("a")
    again = SendCall({"name": ADA}, "s", 0.25)
    assert life.answers(next(iter(url_requests("a"))), ACCEPTED) == (Save(), again)
    assert life.crashes() == (replace(again, after_s=0.0),)


def test_a_server_that_wants_visits_for_ever_is_called_ever_more_seldom_until_the_call_parks() -> None:
    """A callback may accept at once, though the visit takes a while. Nothing has run, and the key stays."""
    life, waits = Life(), []
    (key,) = url_requests("a")
    for _ in range(MAX_ROUNDS):
        life.urls("a")
        waits += [one.after_s for one in only(SendCall, life.answers(key, ACCEPTED))]
        life.feed(CallBegun())
    assert waits[:6] == [0.0, 0.25, 0.5, 1.0, 2.0, 4.0]
    assert waits[-1] == 60.0
    saved, parked = life.urls("a")
    assert saved == Save()
    assert isinstance(parked, Park)
    assert life.resumes() == (SendCall(after_s=0.25),)
    life.feed(CallBegun())
    assert only(Ask, life.urls("a")), "from the beginning"


def test_a_key_under_which_a_url_is_never_visited_stays_usable() -> None:
    life = Life()
    for _ in range(MAX_ROUNDS + 1):
        life.urls("a")
        life.answers(next(iter(url_requests("a"))), {"action": "decline"})
        life.resumes()
        life.feed(CallBegun())
    assert isinstance(life.state, Calling)


# ── waiting for a slot ────────────────────────────────────────────────────────────────────────


def patient(wait_for_slot_s: float = 60.0, **options: Any) -> Life:
    return Life(policy=PollPolicy(wait_for_slot_s=wait_for_slot_s, **options))


def test_without_a_wish_to_wait_a_call_without_a_slot_is_forgotten() -> None:
    life = Life()
    assert life.limited(retry_after_s=0.1) == (Forget(),)
    assert life.state == Calling()


def test_a_call_without_a_slot_goes_again_with_a_back_off() -> None:
    life = patient()
    for wait_s in (1.0, 2.0, 4.0):
        assert life.limited() == (Save(), SendCall(after_s=wait_s))
        life.now += wait_s
        assert life.feed(CallBegun()) == (Save(),)
        assert isinstance(life.state, Calling)
        assert life.state.round == 0, "no round of questions"
        assert life.state.gathered is not None
        assert life.state.gathered.failure is not None
    assert life.state.gathered.failure == LastFailure(message="HTTP 429", count=3, since=life.now - 7.0)


def test_a_retry_after_counts_up_to_the_longest_wait() -> None:
    assert patient().limited(retry_after_s=30.0) == (Save(), SendCall(after_s=30.0))
    assert patient().limited(retry_after_s=0.1) == (Save(), SendCall(after_s=1.0)), "the back-off counts too"
    assert patient(longest_wait_s=5.0).limited(retry_after_s=30.0) == (Save(), SendCall(after_s=5.0))


def test_no_wait_goes_beyond_what_the_caller_allows_in_all() -> None:
    life = patient(10.0)
    assert life.limited(retry_after_s=11.0) == (Forget(),)
    for retry_after_s in (6.0, 4.0):
        life.limited(retry_after_s=retry_after_s)
        life.feed(CallBegun())
    assert life.limited() == (Forget(),)


def test_the_wait_is_bounded_over_rounds_of_questions_as_well() -> None:
    life = patient(10.0)
    life.limited(retry_after_s=6.0)
    life.feed(CallBegun())
    life.feed(InputAsked(requests={"name": NAME}, request_state="s", now=0.0))
    assert life.answers("name") == (Save(), SendCall({"name": ADA}, "s"))
    life.feed(CallBegun())
    assert life.limited(retry_after_s=6.0) == (Save(),), "what was answered is kept"
    assert life.resumes() == (SendCall({"name": ADA}, "s"),)
    life.feed(CallBegun())
    assert life.limited(retry_after_s=6.0) == (Save(), SendCall({"name": ADA}, "s", 6.0)), "another caller's"


def test_a_process_that_dies_while_it_waits_leaves_a_call_that_certainly_did_not_run() -> None:
    life = patient()
    life.limited(retry_after_s=30.0)
    life.now += 10.0
    assert life.crashes() == (SendCall(after_s=20.0),), "the due time counts"
    life.now -= 1000.0
    assert life.crashes() == (SendCall(after_s=30.0),), "a clock that was set back makes no longer wait"
    assert life.cancels() == (Save(), StopAsking(), Finish())
    assert ended(life) == Cancelled()


def test_a_resent_call_that_waits_for_a_slot_stays_one_that_may_have_run() -> None:
    life = patient()
    life.feed(CallLost())
    life.feed(CallAgain())
    assert life.limited() == (Save(), SendCall(after_s=1.0))
    life.feed(CallBegun())
    assert life.limited(retry_after_s=100.0) == (Save(),)
    assert life.state == OutcomeUnknown()


def test_a_call_that_is_to_be_cancelled_waits_for_no_slot() -> None:
    life = patient()
    life.cancels()
    assert life.limited() == (Save(), Finish())
    assert ended(life) == Cancelled()


def test_a_call_may_become_a_task_after_the_last_round() -> None:
    life = Life(Calling(round=MAX_ROUNDS))
    life.created()
    assert isinstance(life.state, Observing)


# ── the task is there ─────────────────────────────────────────────────────────────────────────


def test_a_created_task_is_saved_first_and_the_hint_counts_before_the_first_poll() -> None:
    life = Life()
    assert life.created() == (Save(), Wake(5.0), Publish(snapshot()))
    expected = Observing(
        task=snapshot(),
        received_at=life.now,
        due_at=life.now + 5.0,
        wait_s=5.0,
        poll_interval_ms=5000,
        ttl_ms=900_000,
    )
    assert life.state == expected


def test_a_created_task_without_a_hint_is_polled_after_the_floor() -> None:
    assert only(Wake, Life().created(pollIntervalMs=...)) == [Wake(0.026)]


def test_a_task_attached_by_its_id_is_polled_at_once() -> None:
    life = Life()
    task = read_task({"taskId": TASK_ID, "status": "working"})
    assert life.feed(TaskCreated(task=task, now=life.now, jitter=0.5, attached=True)) == (Save(), Wake(0.0))
    assert life.state == Observing(task=task, received_at=life.now, due_at=life.now)


def test_a_task_that_is_born_with_a_question_asks_it() -> None:
    actions = Life().created("input_required", inputRequests={"name": NAME})
    assert [type(action) for action in actions] == [Save, Wake, Publish, Ask]
    assert actions[-1] == Ask("name", NAME)


def test_a_task_may_be_born_in_input_required_without_saying_what_it_asks() -> None:
    actions = Life().created("input_required")
    assert [type(action) for action in actions] == [Save, Wake, Publish]


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_task_that_is_born_ended_is_polled_once_more_for_what_it_ended_with(status: str) -> None:
    life = Life()
    assert life.created(status) == (Save(), Wake(5.0), Publish(snapshot(status)))
    assert isinstance(life.state, Observing)


@pytest.mark.parametrize(
    ("status", "fields", "outcome"),
    [
        ("completed", {"result": RESULT}, Completed(result=RESULT)),
        ("failed", {"error": {"code": 1, "message": "m"}}, Failed(code=1, message="m")),
        ("cancelled", {"statusMessage": "why"}, Cancelled(status_message="why")),
    ],
)
def test_a_task_that_is_born_with_its_end_is_over_at_once(
    status: str, fields: dict[str, Any], outcome: Outcome
) -> None:
    life = Life()
    actions = life.created(status, **fields)
    assert actions == (Save(), StopAsking(), Publish(snapshot(status, **fields)), Finish())
    assert ended(life) == outcome


def test_a_task_born_completed_ends_with_the_result_that_the_poll_brings() -> None:
    life = Life()
    life.created("completed")
    assert Finish() in life.sees("completed", result=RESULT)
    assert ended(life) == Completed(result=RESULT)


# ── the pace ──────────────────────────────────────────────────────────────────────────────────


def test_a_tick_polls_and_changes_nothing() -> None:
    life = working()
    before = life.state
    assert life.ticks() == (Poll(),)
    assert life.state == before


def test_an_unchanged_task_is_not_worth_a_commit() -> None:
    life = working()
    assert life.sees() == (Wake(5.0),)


def test_a_new_last_updated_at_alone_is_no_change() -> None:
    life = working(lastUpdatedAt="2026-11-20T23:11:37Z")
    assert life.sees(lastUpdatedAt="2026-11-20T23:12:37Z", _meta={"at": 1}, resultType="complete") == (
        Wake(5.0),
    )


@pytest.mark.parametrize(
    "fields", [{"status": "paused"}, {"ttlMs": 1_000_000}, {"pollIntervalMs": 6000}, {"inputRequests": {}}]
)
def test_a_changed_task_is_saved_before_it_is_shown(fields: dict[str, Any]) -> None:
    life = working()
    actions = life.sees(**fields)
    assert (actions[0], actions[-1]) == (Save(), Publish(snapshot(**fields)))
    assert life.observing.task == snapshot(**fields)


def test_a_time_to_live_that_is_taken_back_after_a_reply_without_one_is_saved() -> None:
    life = working()
    assert Save() not in life.sees(ttlMs=...)
    assert Save() in life.sees(ttlMs=None)
    assert Save() not in life.sees(ttlMs=...)


@pytest.mark.parametrize("fields", [{"statusMessage": "step 1/4"}, {"progress": {"progress": 1}}])
def test_progress_alone_is_shown_and_costs_no_commit(fields: dict[str, Any]) -> None:
    """A server that reports its progress must not set the disk's pace."""
    life = working()
    assert life.sees(**fields) == (Wake(5.0), Publish(snapshot(**fields)))
    assert life.observing.task == snapshot(**fields)
    assert told(life, statusMessage="step 2/4") == (Publish(snapshot(statusMessage="step 2/4")),)


def test_what_the_session_needs_for_the_task_is_saved_and_nothing_does_not_take_it_back() -> None:
    life = working()
    for data, saved in (("a", True), (None, False), ("a", False), ("b", True)):
        event = Observed(task=snapshot(), now=life.now, jitter=0.0, session_data=data)
        assert (Save() in life.feed(event)) == saved
    assert life.observing.session_data == "b"
    life = Life()
    life.feed(TaskCreated(task=snapshot(), now=0.0, jitter=0.0, session_data="born"))
    assert life.observing.session_data == "born"


def test_the_due_time_is_counted_from_the_reply() -> None:
    life = working()
    life.now += 7.0
    life.sees()
    assert (life.observing.due_at, life.observing.wait_s) == (life.now + 5.0, 5.0)


@requirement("poll:respect-interval")
@pytest.mark.parametrize(("hint", "wait"), [(60_000, 60.0), (100, 0.1), (1_800_000, 905.0)])
def test_a_hint_that_changes_counts_from_then_on_but_no_further_than_the_task_s_time(
    hint: int, wait: float
) -> None:
    life = working()
    assert only(Wake, life.sees(pollIntervalMs=hint)) == [Wake(wait)]
    assert life.sees(pollIntervalMs=hint) == (Wake(wait),)


@pytest.mark.parametrize("hint", [..., None, 0, -1, "soon"])
def test_a_reply_without_a_usable_hint_does_not_take_the_last_one_back(hint: Any) -> None:
    life = working()
    assert only(Wake, life.sees(pollIntervalMs=hint)) == [Wake(5.0)]
    assert only(Wake, life.sees(pollIntervalMs=hint)) == [Wake(5.0)]


@pytest.mark.parametrize("ttl_ms", [None, 2**53])
def test_no_hint_and_no_retry_after_holds_a_task_longer_than_the_longest_wait(ttl_ms: Any) -> None:
    life = Life()
    assert only(Wake, life.created(pollIntervalMs=2**63, ttlMs=ttl_ms)) == [Wake(3600.0)]
    assert life.sees(pollIntervalMs=2**63, ttlMs=ttl_ms) == (Wake(3600.0),)
    assert life.poll_fails(retry_after_s=10.0**12) == (Save(), Wake(3600.0))
    assert life.crashes() == (Wake(3600.0),)
    life.now += 3600.0
    assert life.ticks() == (Poll(),)
    assert life.observing.wait_s == 3600.0


@pytest.mark.parametrize(
    ("ttl_ms", "age_s", "wait_s"),
    [(60_000, 0.0, 65.0), (10_000, 0.0, 60.0), (900_000, 880.0, 60.0), (60_000, 65.0, 1800.0)],
)
def test_a_task_whose_time_ends_is_looked_at_soon_after_it(ttl_ms: int, age_s: float, wait_s: float) -> None:
    life = Life()
    life.created(ttlMs=ttl_ms)
    life.now += age_s
    assert only(Wake, life.sees(ttlMs=ttl_ms, pollIntervalMs=1_800_000)) == [Wake(wait_s)]


def test_the_end_of_a_task_s_time_does_not_cut_a_retry_after_short() -> None:
    life = sending()
    life.sees("input_required", inputRequests={"name": NAME}, ttlMs=60_000)
    life.update_fails("name", retry_after_s=120.0)
    assert only(Wake, life.asked(name=NAME)) == [Wake(120.0)]


def test_without_any_hint_the_wait_grows_while_nothing_changes_and_starts_over_when_something_does() -> None:
    life = working(pollIntervalMs=...)
    waits = [only(Wake, life.sees(pollIntervalMs=...))[0].after_s for _ in range(30)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (0.026, 30.0)
    life.sees(pollIntervalMs=..., statusMessage="news")
    assert life.observing.unchanged == 0
    assert only(Wake, life.sees("paused", pollIntervalMs=...)) == [Wake(0.026)]


def test_jitter_is_added_to_the_waits_of_our_own_and_a_tenth_of_it_to_the_server_s_first() -> None:
    policy = PollPolicy(jitter=0.2)
    life = Life(policy=policy)
    (first,) = only(Wake, life.feed(TaskCreated(task=snapshot(), now=life.now, jitter=0.5)))
    assert first.after_s == pytest.approx(5.05)
    life.now += first.after_s
    assert life.feed(Observed(task=snapshot(), now=life.now, jitter=0.5)) == (Wake(5.0),)
    assert only(Wake, life.feed(PollFailed(why="no", now=life.now, jitter=0.5))) == [Wake(5.5)]
    life = working(policy, pollIntervalMs=...)
    hintless = Observed(task=snapshot(pollIntervalMs=...), now=life.now, jitter=0.5)
    waits = [only(Wake, life.feed(hintless))[0].after_s for _ in range(30)]
    assert waits[-1] == pytest.approx(33.0)
    assert waits[0] == pytest.approx(0.026)  # but to the shortest ones, which have no need of it


def test_an_eager_client_looks_early_and_then_keeps_the_server_s_pace() -> None:
    life = Life(policy=PollPolicy.eager())
    waits = only(Wake, life.created(pollIntervalMs=16_000))
    for _ in range(5):
        waits += only(Wake, life.sees(pollIntervalMs=16_000))
    assert [wake.after_s for wake in waits] == [1.0, 1.0, 2.0, 4.0, 16.0, 16.0]


def test_an_eager_client_looks_no_more_after_a_restart() -> None:
    """How many looks a crash has cost is not journaled."""
    life = Life(policy=PollPolicy.eager())
    life.created(pollIntervalMs=16_000)
    life.crashes()
    assert only(Wake, life.sees(pollIntervalMs=16_000)) == [Wake(16.0)]


def test_an_eager_client_looks_no_more_once_a_poll_has_failed() -> None:
    life = Life(policy=PollPolicy.eager())
    assert only(Wake, life.created(pollIntervalMs=16_000)) == [Wake(1.0)]
    assert only(Wake, life.poll_fails()) == [Wake(16.0)]
    assert only(Wake, life.sees(pollIntervalMs=16_000)) == [Wake(16.0)]


def test_failing_polls_are_repeated_with_back_off_that_never_undercuts_the_hint() -> None:
    life = working()
    waits = [wake.after_s for _ in range(8) for wake in only(Wake, life.poll_fails())]
    assert waits == [5.0, 5.0, 5.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert life.observing.due_at == life.now + 60.0


def test_what_keeps_a_task_from_being_seen_is_known_and_since_when() -> None:
    life = working()
    assert life.observing.failure is None
    for number in range(1, 4):
        life.feed(PollFailed(why=f"HTTP 50{number}", now=life.now + number, jitter=0.0))
    assert life.observing.failure == LastFailure(message="HTTP 503", count=3, since=life.now + 1)
    life.ticks()
    life.sees()
    assert life.observing.failure is None


def test_only_the_first_of_several_failures_and_the_end_of_them_are_saved() -> None:
    """A server that fails must not set the disk's pace, but whoever reads the journal sees since when."""
    life = working()
    assert [Save() in life.poll_fails() for _ in range(4)] == [True, False, False, False]
    assert [Save() in life.sees() for _ in range(2)] == [True, False]
    assert Save() not in life.cancel_fails(), "the task is seen all the same"
    assert life.observing.failure is None


def test_what_parks_a_task_is_its_last_failure_too() -> None:
    life = working()
    life.feed(ObservationRefused(error=CredentialRefusedError("HTTP 401"), now=life.now))
    assert life.observing.failure == LastFailure(message="HTTP 401", count=1, since=life.now)
    life.resumes()
    assert life.observing.failure is None


def test_of_an_error_only_the_first_characters_are_kept() -> None:
    life = working()
    life.feed(PollFailed(why="x" * 10_000, now=life.now, jitter=0.0))
    assert life.observing.failure == LastFailure(message="x" * 500, count=1, since=life.now)


def test_a_last_failure_says_when_the_first_one_was_by_universal_time() -> None:
    failure = LastFailure(message="HTTP 503.", count=3, since=1_000_000_000.5)
    assert (
        str(failure) == "since 2001-09-09T01:46:40+00:00, requests fail (3 so far). The last one: HTTP 503."
    )


def test_a_poll_that_succeeds_ends_the_back_off() -> None:
    life = working()
    for _ in range(5):
        life.poll_fails()
    life.ticks()
    assert only(Wake, life.sees()) == [Wake(5.0)]
    assert only(Wake, life.poll_fails()) == [Wake(5.0)]


def test_what_the_server_asked_for_is_saved_and_outlives_a_crash() -> None:
    life = working()
    assert life.poll_fails(retry_after_s=120.0) == (Save(), Wake(120.0))
    life.now += 20.0
    assert life.crashes() == (Wake(100.0),)


# ── the ends ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "result", [RESULT, {**RESULT, "isError": True}, {}], ids=["plain", "isError", "empty"]
)
def test_a_completed_task_ends_with_the_server_s_result_unchanged(result: dict[str, Any]) -> None:
    life = working()
    last, outcome = snapshot("completed", result=result), Completed(result=result)
    assert life.sees("completed", result=result) == (Save(), StopAsking(), Publish(last), Finish())
    assert ended(life) == outcome


def test_the_end_is_saved_without_a_second_copy_of_the_payload() -> None:
    life = asking()
    life.sees(
        "completed", result=RESULT, inputRequests={"name": NAME}, error={"code": 1}, statusMessage="done"
    )
    assert isinstance(life.state, Finished)
    task = life.state.task
    assert task is not None
    assert (task.result, task.error, task.input_requests) == (None, None, None)
    assert (task.task_id, task.status, task.status_message) == (TASK_ID, "completed", "done")


@requirement("ttl:backstop")
def test_a_task_that_works_long_after_its_time_to_live_is_told_of_once() -> None:
    """As much later as that was long; and it is no violation of the protocol."""
    life = Life()
    life.created()
    life.now += 1_800.0
    assert only(Report, life.sees()) == []
    life.now += 1.0
    (report,) = only(Report, life.sees())
    assert "901 seconds after its ttlMs" in report.said
    assert not report.is_violation
    life.now += 1.0
    assert only(Report, life.sees()) == []


@requirement("ttl:backstop")
def test_a_policy_may_end_a_task_that_works_after_its_time_to_live() -> None:
    life = Life(policy=PollPolicy(jitter=0.0, past_ttl_s=100.0))
    life.created()
    life.now += 1_000.0
    assert only(Finish, life.sees()) == []
    life.now += 1.0
    assert only(Finish, life.sees()) == [Finish()]
    outcome = ended(life)
    assert isinstance(outcome, Gone)
    assert outcome.why == "expired"


@pytest.mark.parametrize(
    "fields", [{}, {"result": None}, {"result": "6"}, {"result": [6]}, {"error": {"code": 1}}]
)
def test_completed_without_a_result_is_a_violation_and_no_empty_success(fields: dict[str, Any]) -> None:
    life = working()
    actions = life.sees("completed", **fields)
    outcome = Violated(message="The task is completed, but the reply holds no result.")
    assert actions[-1] == Finish()
    assert ended(life) == outcome


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        (
            {
                "error": {"code": -32050, "message": "quota", "data": {"retryAfter": 7}},
                "statusMessage": "quota exceeded",
            },
            Failed(code=-32050, message="quota", data={"retryAfter": 7}, status_message="quota exceeded"),
        ),
        ({"error": {"code": 0, "message": "m"}}, Failed(code=0, message="m")),
        ({"statusMessage": "died"}, Failed(code=None, message="died", status_message="died")),
        (
            {"error": {"code": 5}, "statusMessage": "died"},
            Failed(code=5, message="died", status_message="died"),
        ),
        ({"error": "boom"}, Failed(code=None, message="boom")),
        ({"error": ["full", 7]}, Failed(code=None, message='["full", 7]')),
        ({"error": {"reason": "full"}}, Failed(code=None, message='{"reason": "full"}')),
        ({}, Failed(code=None, message="")),
    ],
)
def test_a_failed_task_keeps_code_message_data_and_status_message(
    fields: dict[str, Any], outcome: Failed
) -> None:
    life = working()
    assert life.sees("failed", **fields)[-1] == Finish()
    assert ended(life) == outcome


def test_a_cancelled_task_ends_as_cancelled_whoever_cancelled_it() -> None:
    life = working()
    assert life.sees("cancelled", statusMessage="by an operator")[-1] == Finish()
    assert ended(life) == Cancelled(status_message="by an operator")


@requirement("ttl:backstop")
@pytest.mark.parametrize(
    ("ttl_ms", "age_s", "why"),
    [
        (900_000, 10.0, "not_found"),
        (900_000, 894.9, "not_found"),
        (900_000, 895.0, "expired"),
        (900_000, 10**6, "expired"),
        (None, 10**9, "not_found"),
        (..., 10**9, "not_found"),
    ],
)
def test_a_task_the_server_no_longer_knows_is_expired_only_if_its_time_had_passed(
    ttl_ms: Any, age_s: float, why: Any
) -> None:
    life = working(ttlMs=ttl_ms)
    life.now += age_s
    outcome = Gone(why=why, message="Task not found")
    if why == "not_found":
        assert life.missing() == (Save(), Wake(5.0)), "one of several servers may not have heard of it"
    assert life.missing() == (Save(), StopAsking(), Finish())
    assert ended(life) == outcome


def test_a_task_that_is_missing_for_a_credential_that_may_be_another_one_is_parked_and_not_over() -> None:
    life, denied = working(), SessionError("not to this credential")
    missing = TaskMissing(message="Task not found", now=life.now, denied=denied)
    assert life.feed(missing) == (Save(), Wake(5.0)), "one of several servers may not have heard of it"
    assert life.feed(missing) == (StopAsking(), Park(denied))
    assert not isinstance(life.state, Finished)


def test_a_task_that_was_not_found_once_goes_on_and_has_a_second_look_each_time() -> None:
    life = working()
    for _ in range(3):
        assert life.missing() == (Save(), Wake(5.0))
        assert life.sees()[-1] == Wake(5.0)
    life.missing()
    life.missing()
    assert ended(life) == Gone(why="not_found", message="Task not found")


def test_a_task_of_any_status_that_was_shown_has_a_second_look() -> None:
    life = working()
    life.sees("queued")
    assert life.missing() == (Save(), Wake(5.0))


def test_a_task_that_nobody_has_shown_is_not_found_at_once() -> None:
    life = Life()
    life.feed(TaskCreated(task=snapshot("unknown"), now=life.now, jitter=0.0, attached=True))
    life.missing()
    assert ended(life) == Gone(why="not_found", message="Task not found")


@pytest.mark.parametrize(
    ("ttl_ms", "why"), [(60_000, "expired"), (7_200_000, "not_found"), (None, "not_found"), (..., "expired")]
)
def test_the_latest_time_to_live_counts_and_an_absent_one_changes_nothing(ttl_ms: Any, why: str) -> None:
    life = working()
    life.sees(ttlMs=ttl_ms)
    life.now += 900.0 if ttl_ms is ... else 100.0
    life.missing()
    if why == "not_found":
        life.missing()
    assert ended(life) == Gone(why=why, message="Task not found")  # type: ignore[arg-type]  # parametrised


@pytest.mark.parametrize("junk", ["soon", -1, True])
def test_a_time_to_live_that_makes_no_sense_does_not_take_the_last_one_back(junk: object) -> None:
    life = working()
    life.sees(ttlMs=junk)
    life.now += 1000.0
    life.missing()
    assert ended(life) == Gone(why="expired", message="Task not found")


def test_a_refused_credential_parks_at_once_and_the_task_lives_on() -> None:
    life = asking()
    error = CredentialRefusedError("401")
    assert life.feed(ObservationRefused(error=error, now=life.now)) == (StopAsking(), Park(error))
    assert life.stage("name") == "open"


def test_a_refused_observation_leaves_answers_on_their_way_to_be_sent_again() -> None:
    life = sending()
    life.feed(ObservationRefused(error=CredentialRefusedError("401"), now=life.now))
    assert life.stage("name") == "answered"
    assert SendAnswers({"name": ADA}) in life.resumes()


# ── what a server must not do: reported once, and survived ────────────────────────────────────


def test_another_task_id_is_reported_once_and_its_snapshot_is_not_used() -> None:
    life = working()
    complaint = Report("tasks/get answered with another taskId")
    assert life.sees("completed", taskId="another", result=RESULT) == (complaint, Wake(5.0))
    assert life.sees("completed", taskId="another", result=RESULT) == (Wake(5.0),)
    assert life.observing.task == snapshot()


def test_a_status_that_comes_back_from_the_end_is_reported_once_and_followed() -> None:
    life = Life()
    life.created("completed")
    complaint = Report("the status went from completed back to working")
    assert life.sees() == (Save(), complaint, Wake(5.0), Publish(snapshot()))
    assert life.sees() == (Wake(5.0),)
    assert Finish() in life.sees("completed", result=RESULT)
    assert ended(life) == Completed(result=RESULT)


def test_a_created_at_that_changes_is_reported_once_and_is_no_news() -> None:
    life = working()
    complaint = Report(f"createdAt went from {CREATED_AT} to 2027-01-01")
    assert life.sees(createdAt="2027-01-01") == (complaint, Wake(5.0))
    assert life.sees(createdAt="2028-01-01") == (Wake(5.0),)


@pytest.mark.parametrize(
    "same",
    [
        *(
            ...,
            "2026-11-20T23:11:37.000000+00:00",
            "2026-11-21T00:11:37+01:00",
            "2026-11-20T23:11:37",
            "soon",
        ),
        *("2026-11-20T23:11:37.004+00:00", "2026-11-20T23:11:36.998Z"),  # FastMCP 3 finds it anew each time
    ],
)
def test_a_created_at_that_is_missing_or_the_same_instant_is_no_violation(same: Any) -> None:
    assert working().sees(createdAt=same) == (Wake(5.0),)


def test_an_unknown_status_is_reported_once_kept_and_polled_on() -> None:
    life = working()
    complaint = Report("'paused' is none of the specification's statuses")
    assert life.sees("paused") == (Save(), complaint, Wake(5.0), Publish(snapshot("paused")))
    life.sees()
    assert not only(Report, life.sees("paused"))
    assert not only(Report, life.sees("halted")), "or a server that makes up words would fill the journal"
    assert life.observing.reported == ("unknown_status",)


def test_input_required_without_requests_is_reported_once() -> None:
    life = working()
    assert only(Report, life.sees("input_required")) == [Report("input_required came without inputRequests")]
    assert life.sees("input_required") == (Wake(5.0),)
    assert not only(Report, working().sees("input_required", inputRequests={}))


@pytest.mark.parametrize(("ttl_s", "said_after_s"), [(900, 1800), (20, 80)])
def test_a_task_that_works_long_past_its_time_to_live_is_told_of_once(ttl_s: int, said_after_s: int) -> None:
    life = working(ttlMs=ttl_s * 1000)
    life.now += said_after_s
    assert not only(Report, life.sees(ttlMs=ttl_s * 1000))
    life.now += 1
    (told,) = only(Report, life.sees(ttlMs=ttl_s * 1000))
    assert (told.is_violation, "seconds after its ttlMs" in told.said) == (False, True)
    life.now += 1000
    assert not only(Report, life.sees(ttlMs=ttl_s * 1000))
    assert life.observing.reported == ("past_ttl",)


@requirement("ttl:backstop")
def test_a_policy_may_end_a_task_that_works_past_its_time_to_live() -> None:
    life = working(PollPolicy(past_ttl_s=100.0))
    life.now += 1000
    life.sees()
    assert isinstance(life.state, Observing)
    life.now += 1
    life.sees()
    outcome = ended(life)
    assert isinstance(outcome, Gone)
    assert outcome.why == "expired"


def test_a_task_that_waits_for_an_answer_to_a_question_that_was_never_heard_is_reported_once() -> None:
    life = working()
    reports = [only(Report, life.sees("input_required", inputRequests={})) for _ in range(10)]
    complaint = Report("the task waits for an answer, and no question of it was heard")
    assert reports == [[]] * 5 + [[complaint]] + [[]] * 4
    life = working()
    for _ in range(10):
        assert complaint not in life.asked(name=NAME)


def test_a_violation_in_the_last_snapshot_is_reported_before_the_end() -> None:
    life = working()
    actions = life.sees("completed", result=RESULT, createdAt="2027-01-01")
    assert [type(action) for action in actions] == [Save, StopAsking, Report, Publish, Finish]


@pytest.mark.parametrize(
    "odd",
    [
        {"taskId": "another"},
        {"createdAt": "2027-01-01"},
        {"status": "paused"},
        {"status": "input_required"},
        {"status": "input_required", "inputRequests": {"name": AGE}},
    ],
    ids=lambda odd: "-".join(odd),
)
def test_a_violation_is_not_reported_again_after_a_park(odd: dict[str, Any]) -> None:
    life = asking()
    assert only(Report, life.sees(**odd))
    life.resumes()
    assert not only(Report, life.sees(**odd))


# ── questions: nobody is asked twice ──────────────────────────────────────────────────────────


def test_a_question_is_saved_before_it_is_asked() -> None:
    life = working()
    actions = life.asked(name=NAME)
    shown = snapshot("input_required", inputRequests={"name": NAME})
    assert actions == (Save(), Wake(5.0), Publish(shown), Ask("name", NAME))


@requirement("input:dedupe")
def test_a_second_poll_with_the_same_key_asks_nobody_again() -> None:
    life = asking()
    assert life.asked(name=NAME) == (Wake(5.0),)
    life.answers("name")
    assert life.asked(name=NAME) == (Wake(5.0),)
    life.acknowledged("name")
    assert life.asked(name=NAME) == (Wake(5.0),)


def test_a_key_that_comes_back_after_it_was_gone_asks_nobody_again() -> None:
    life = asking()
    life.sees()
    assert not only(Ask, life.asked(name=NAME))


def test_an_answer_is_saved_before_it_is_sent() -> None:
    life = asking()
    assert life.answers("name") == (Save(), SendAnswers({"name": ADA}))
    assert life.stage("name") == "sending"


def test_an_acknowledged_answer_is_saved_as_such_and_its_private_parts_are_dropped() -> None:
    life = sending()
    assert life.acknowledged("name") == (Save(),)
    (question,) = life.observing.questions
    assert (question.stage, question.request, question.answer) == ("acknowledged", None, ADA)
    life.sees("completed", result=RESULT)
    assert isinstance(life.state, Finished), "no question is kept of what is over"


def test_what_the_session_knows_is_saved_with_the_acknowledgement() -> None:
    life = sending()
    before = life.observing.session_data
    assert life.acknowledged("name") == (Save(),)
    assert life.observing.session_data == before
    life = sending()
    assert life.feed(UpdateAcknowledged(keys=("name",), session_data="answered")) == (Save(),)
    assert life.observing.session_data == "answered"


@pytest.mark.parametrize("crash", [False, True])
def test_an_answer_that_the_server_acknowledged_and_lost_goes_again_unchanged_and_ever_more_seldom(
    crash: bool,
) -> None:
    life = sending()
    life.acknowledged("name")
    if crash:
        life.crashes()
        assert not only(SendAnswers, life.resumes()), "it was acknowledged"
    sent, told = list[int](), list[Report]()
    for listed in range(1, 25):
        actions = life.asked(name=NAME)
        told += only(Report, actions)
        assert not only(Ask, actions)
        if only(SendAnswers, actions):
            assert only(SendAnswers, actions) == [SendAnswers({"name": ADA})]
            sent.append(listed)
            life.acknowledged("name")
    assert sent == [5, 10, 20]
    assert told == [Report("an answer was acknowledged, and its question is still asked")]
    life.sees()
    again = [only(SendAnswers, life.asked(name=NAME)) for _ in range(5)]
    assert again == [[]] * 4 + [[SendAnswers({"name": ADA})]], "it is asked once more, as after a rollback"


def test_an_answer_that_goes_again_goes_apart_from_the_first_one_to_another_question() -> None:
    """A server that refuses the one must not refuse the other with it."""
    life = sending()
    life.acknowledged("name")
    for _ in range(4):
        life.asked(name=NAME)
    assert only(Ask, life.asked(name=NAME, age=AGE)) == [Ask("age", AGE)]
    assert life.answers("age", BOB)[-1] == SendAnswers({"age": BOB})
    life.acknowledged("age")
    assert only(SendAnswers, life.asked(name=NAME, age=AGE)) == [SendAnswers({"name": ADA})]


@pytest.mark.parametrize("answered", [False, True])
def test_a_question_is_the_same_one_whatever_its_metadata(answered: bool) -> None:
    life = asking()
    if answered:
        life.answers("name")
        life.acknowledged("name")
    params = {"message": "Name?", "mode": "form", "_meta": {"traceparent": "00-1"}}
    assert not only(Park, life.asked(name={**NAME, "params": params}))


def test_a_server_that_refuses_an_answer_for_the_second_time_has_it() -> None:
    life = sending()
    life.acknowledged("name")
    for _ in range(5):
        life.asked(name=NAME)
    assert life.stage("name") == "sending"
    life.feed(UpdateRefused(keys=("name",), words="answered already"))
    assert life.stage("name") == "acknowledged"
    assert not only(Park, life.asked(name=NAME))


@requirement("input:answer-once", "update:continue-observing")
def test_an_acknowledgement_may_come_before_the_status_moves() -> None:
    life = sending()
    life.acknowledged("name")
    assert life.asked(name=NAME) == (Wake(5.0),)
    assert life.ticks() == (Poll(),)
    assert life.sees() == (Save(), Wake(5.0), Publish(snapshot()))


def test_a_second_answer_to_the_same_question_changes_nothing() -> None:
    life = sending()
    assert life.answers("name", BOB) == ()
    life.update_fails("name")
    assert life.ticks() == (Save(), SendAnswers({"name": ADA}), Poll())


def test_an_answer_to_a_question_nobody_asked_is_not_sent() -> None:
    life = asking()
    assert life.answers("another") == ()
    assert life.stage("name") == "asking"


def test_a_tick_while_an_answer_is_on_its_way_does_not_send_it_again() -> None:
    assert sending().ticks() == (Poll(),)


def test_nothing_is_sent_while_a_question_is_open_and_one_update_carries_all() -> None:
    life = asking(name=NAME, age=AGE)
    assert life.answers("age", BOB) == (Save(),)
    assert life.ticks() == (Poll(),)
    assert life.answers("name", ADA) == (Save(), SendAnswers({"name": ADA, "age": BOB}))


def test_a_second_key_that_appears_while_the_first_is_open_is_asked_and_both_go_together() -> None:
    life = asking()
    assert only(Ask, life.asked(name=NAME, age=AGE)) == [Ask("age", AGE)]
    assert life.answers("name") == (Save(),)
    assert life.answers("age", BOB) == (Save(), SendAnswers({"name": ADA, "age": BOB}))


def test_a_second_key_that_appears_while_the_first_answer_waits_for_its_retry_is_sent_along() -> None:
    life = sending()
    life.update_fails("name")
    assert only(Ask, life.asked(name=NAME, age=AGE)) == [Ask("age", AGE)]
    life.now += 5.0
    assert life.ticks() == (Poll(),)
    assert life.answers("age", BOB) == (Save(), SendAnswers({"name": ADA, "age": BOB}))


def test_a_second_key_that_appears_while_the_first_answer_is_on_its_way_goes_alone() -> None:
    life = sending()
    life.asked(name=NAME, age=AGE)
    assert life.answers("age", BOB) == (Save(), SendAnswers({"age": BOB}))


def test_a_second_key_that_appears_after_the_first_was_acknowledged_goes_alone() -> None:
    life = sending()
    life.acknowledged("name")
    assert only(Ask, life.asked(name=NAME, age=AGE)) == [Ask("age", AGE)]
    assert life.answers("age", BOB) == (Save(), SendAnswers({"age": BOB}))


def test_the_next_poll_is_no_sooner_than_what_another_process_would_have_read_in_the_journal() -> None:
    life = working(pollIntervalMs=...)
    for _ in range(30):
        life.sees(pollIntervalMs=...)
    life.now += 30.0
    life.feed(Tick(now=life.now, jitter=1.0))
    (wake,) = only(Wake, life.sees(pollIntervalMs=...))
    assert wake.after_s == pytest.approx(33.0)


def test_a_key_used_again_while_the_answer_is_on_its_way_is_reported_once_and_not_asked() -> None:
    life = sending()
    actions = life.asked(name=AGE)
    assert only(Report, actions) == [Report("an input key was used again for a different request")]
    assert not only(Ask, actions)
    assert life.asked(name=AGE) == (Wake(5.0),)


def test_a_key_used_again_after_its_answer_was_acknowledged_parks_the_call() -> None:
    """Else it would be polled without end: nobody is asked twice, and no answer is there for this one."""
    life = sending()
    life.acknowledged("name")
    actions = life.asked(name=AGE)
    assert only(Report, actions) == [Report("an input key was used again for a different request")]
    assert not only(Ask, actions) + only(SendAnswers, actions)
    why = "the server asks something else now, behind the key of an earlier question"
    assert actions[-2:] == (StopAsking(), Park(Unanswered(("name",), why)))


@pytest.mark.parametrize("given", [False, True])
def test_an_answer_never_goes_to_another_question_behind_the_same_key(given: bool) -> None:
    other = {"method": "elicitation/create", "params": {"message": "Delete everything?"}}
    life = asking(name=NAME, age=AGE)
    if given:
        life.answers("name")
    actions = life.asked(name=other, age=AGE)
    why = "the server asks something else now, behind the key of an earlier question"
    assert actions[-2:] == (StopAsking(), Park(Unanswered(("name",), why)))
    assert life.answers("age", BOB) == (Save(),)
    assert life.crashes() == (Wake(5.0),)
    assert only(Park, life.asked(name=other, age=AGE))
    life.asked(name=NAME, age=AGE)  # it was a slip
    assert only(SendAnswers, life.resumes()) == ([SendAnswers({"name": ADA, "age": BOB})] if given else [])


def test_reused_keys_are_reported_once_however_many_there_are() -> None:
    life = asking(name=NAME, age=AGE)
    assert len(only(Report, life.asked(name=AGE, age=NAME))) == 1
    assert life.observing.reported == ("key_reused",)


def test_a_request_whose_fields_come_in_another_order_is_the_same_request() -> None:
    life = asking()
    assert not only(Report, life.asked(name=dict(reversed(NAME.items()))))


def test_requests_outside_of_input_required_are_not_asked() -> None:
    life = working()
    assert not only(Ask, life.sees("working", inputRequests={"name": NAME}))
    assert not only(Ask, life.sees("paused", inputRequests={"name": NAME}))


def test_more_open_questions_than_a_call_may_have_park_it_and_are_not_kept() -> None:
    life = asking(**{f"k{n}": NAME for n in range(60)})
    many = {f"k{n}": NAME for n in range(MAX_OPEN + 1)}
    actions = life.asked(**many)
    assert [type(action) for action in actions] == [Save, Wake, StopAsking, Park]
    assert actions[-1].reason.keys == tuple(f"k{n}" for n in range(60, MAX_OPEN + 1))  # type: ignore[union-attr]
    assert len(life.observing.questions) == 60
    assert life.observing.task.input_requests is None
    assert len(only(Ask, life.resumes())) == 0, "the next snapshot says what is still asked"
    assert told(life, "input_required", inputRequests=many) == ()
    assert only(Ask, life.asked(k0=NAME)) == [Ask("k0", NAME)], "it was withdrawn"
    assert life.asked(**{f"k{n}": NAME for n in range(MAX_OPEN)})


def test_a_call_with_more_questions_in_all_than_are_remembered_is_parked() -> None:
    life = working()
    asked = tuple(
        AskedQuestion(key=f"k{n}", digest="d", stage="acknowledged") for n in range(MAX_QUESTIONS - 1)
    )
    life.state = replace(life.observing, questions=asked)
    assert only(Ask, life.asked(last=NAME)) == [Ask("last", NAME)]
    life.answers("last")
    life.acknowledged("last")
    assert only(Park, life.asked(one_more=NAME))
    assert len(life.observing.questions) == MAX_QUESTIONS


def _form_of(fields: int) -> dict[str, Any]:
    one = {"type": "string", "enum": ["a", "b"]}
    schema = {"type": "object", "properties": {f"p{n}": one for n in range(fields)}}
    return {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": schema}}


TOO_LARGE = {
    "many values": _form_of(MAX_SIZE // 4),
    "a long text": {"method": "elicitation/create", "params": {"message": "x" * (200 * MAX_SIZE)}},
    "deep": reduce(lambda inner, _: {"not": inner}, range(200), dict[str, Any]()),
}


@pytest.mark.parametrize("request_", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_question_that_is_too_large_is_refused_before_it_is_hashed_journaled_or_asked(
    request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    life = working()
    with monkeypatch.context() as patched:
        patched.setattr(input_requests, "digest", None)
        actions = life.asked(form=request_)
        assert told(life, "input_required", inputRequests={"form": request_}) == ()
    assert [type(action) for action in actions] == [Save, Wake, StopAsking, Park]
    park = actions[-1]
    assert isinstance(park, Park)
    assert isinstance(park.reason, Unanswered)
    assert park.reason.keys == ("form",)
    assert "too large" in park.reason.why
    assert life.saved is not None
    assert len(life.saved) < 1000
    before = Life()
    before.feed(InputAsked(requests={"form": request_}, request_state=None, now=0.0))
    assert isinstance(ended(before), Violated)
    assert len(only(Ask, working().asked(form=_form_of(MAX_SIZE // 5 - 100)))) == 1


def test_ten_thousand_questions_are_counted_and_none_of_them_is_hashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(input_requests, "digest", None)
    many = {f"k{n}": NAME for n in range(10_000)}
    life = working()
    assert only(Park, life.asked(**many))
    life.cancels()
    life.asked(**many)
    assert life.observing.task.input_requests is None, "nor kept when nobody is to be asked any more"


def test_what_the_server_asks_still_is_compared_and_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    life = asking(name=NAME, age=AGE)
    monkeypatch.setattr(input_requests, "digest", None)
    assert life.asked(name=dict(NAME), age=dict(AGE)) == (Wake(5.0),)
    life.answers("age")


def test_a_question_with_a_number_that_differs_from_itself_is_the_same_question() -> None:
    life = Life()
    life.created("input_required", inputRequests={"n": {"method": "m", "params": {"x": float("nan")}}})
    assert only(Park, life.asked(n={"method": "m", "params": {"x": float("nan")}})) == []


def test_a_server_that_asks_too_much_before_it_begins_has_its_call_ended() -> None:
    life = Life()
    event = InputAsked(requests={f"k{n}": NAME for n in range(MAX_OPEN + 1)}, request_state=None, now=0.0)
    assert life.feed(event) == (Save(), Finish())
    why = "the server asks more than 100 questions at once, or 1000 of one call"
    assert ended(life) == Violated(message=f"The call was not begun: {why}.")
    event = InputAsked(requests={f"k{n}": NAME for n in range(MAX_OPEN)}, request_state=None, now=0.0)
    assert len(only(Ask, Life().feed(event))) == MAX_OPEN


def test_a_question_without_a_usable_answer_parks_and_stays_open() -> None:
    life = asking()
    cause = ValueError("no")
    actions = life.feed(AnswerUnavailable(key="name", why="the callback raised", cause=cause))
    assert actions == (StopAsking(), Park(Unanswered(("name",), "the callback raised", cause)))
    assert life.stage("name") == "open"
    assert not only(Ask, life.resumes()), "the server may have forgotten the task"
    assert only(Ask, life.asked(name=NAME)) == [Ask("name", NAME)]


# ── questions: an update that does not get through ────────────────────────────────────────────


def test_a_failed_update_goes_again_with_the_next_poll_and_the_very_same_answers() -> None:
    life = sending()
    assert life.update_fails("name") == (Save(), Wake(5.0))
    assert life.stage("name") == "unsent"
    assert life.ticks() == (Save(), SendAnswers({"name": ADA}), Poll())


def test_a_failing_update_backs_off_and_heeds_retry_after() -> None:
    life = Life()
    life.created("input_required", inputRequests={"name": NAME}, pollIntervalMs=...)
    life.answers("name")
    life.now += 10.0
    waits = []
    for retry_after_s in (None, None, None, 90.0):
        (wake,) = only(Wake, life.update_fails("name", retry_after_s=retry_after_s))
        waits.append(wake.after_s)
        life.now += wake.after_s
        life.ticks()
    assert waits == [1.0, 2.0, 4.0, 90.0]


def test_an_update_that_fails_while_polls_get_through_backs_off_all_the_same() -> None:
    life = Life()
    life.created("input_required", inputRequests={"name": NAME}, pollIntervalMs=20)
    life.answers("name")
    waits = []
    for _ in range(4):
        (wake,) = only(Wake, life.update_fails("name"))
        waits.append(wake.after_s)
        life.now += wake.after_s
        assert SendAnswers({"name": ADA}) in life.ticks()
        assert only(Wake, life.sees("input_required", inputRequests={"name": NAME}, pollIntervalMs=20))
    assert waits == [1.0, 2.0, 4.0, 8.0]
    life.acknowledged("name")
    assert life.sees(pollIntervalMs=200)[1] == Wake(0.2)


def test_a_failed_update_never_brings_the_next_poll_forward() -> None:
    life = sending()
    life.poll_fails(retry_after_s=300.0)
    life.now += 1.0
    assert life.update_fails("name") == (Wake(299.0),)


def test_a_failed_update_takes_back_only_its_own_keys() -> None:
    life = sending()
    life.asked(name=NAME, age=AGE)
    life.answers("age", BOB)
    life.update_fails("age")
    assert (life.stage("name"), life.stage("age")) == ("sending", "unsent")


def test_a_late_word_about_an_answer_that_is_not_on_its_way_changes_nothing() -> None:
    life = sending()
    life.acknowledged("name")
    before = life.state
    life.acknowledged("name")
    life.refused("name")
    assert life.state == before


def test_an_answer_that_is_refused_twice_and_still_waited_for_each_time_opens_its_question_again() -> None:
    life = sending()
    assert life.refused("name", words="never heard of") == (Save(),)
    assert life.stage("name") == "rejected"
    once_more = (Save(), Wake(5.0), SendAnswers({"name": ADA}))
    assert life.asked_once_more(name=NAME) == once_more, "one of several servers may not know the task"
    assert life.refused("name", words="no such version") == (Save(),)
    assert life.asked_once_more(name=NAME) == (Save(), Wake(5.0), Ask("name", NAME, 1))
    (question,) = life.observing.questions
    assert (question.refusals, question.refusal, question.answer) == (1, "no such version", None)


def refused_twice(life: Life, key: str = "name", **requests: Any) -> tuple[Action, ...]:
    """The answer on its way is refused, and once more after a look. The actions of the second look."""
    life.refused(key)
    life.asked_once_more(**(requests or {key: NAME}))
    life.refused(key)
    return life.asked_once_more(**(requests or {key: NAME}))


def opened_again() -> Life:
    """A life whose one answer was refused for good."""
    life = sending()
    assert only(Ask, refused_twice(life))
    return life


def test_a_new_answer_to_a_question_that_is_open_again_is_committed_and_sent_in_place_of_the_old_one() -> (
    None
):
    life = opened_again()
    bob = AnswerReady(key="name", answer=BOB, now=life.now, refusals=1)
    assert life.feed(bob) == (Save(), SendAnswers({"name": BOB}))
    life.acknowledged("name")
    assert not only(SendAnswers, life.asked_once_more(name=NAME))


def test_the_words_and_the_count_of_refusals_survive_a_crash_before_the_question_is_asked_again() -> None:
    life = opened_again()
    life.crashes()
    assert life.asked(name=NAME) == (Wake(5.0), Ask("name", NAME, 1))
    assert life.observing.questions[0].refusal == "Not that"


def test_an_answer_to_an_earlier_asking_comes_too_late() -> None:
    life = opened_again()
    before = life.state
    assert life.answers("name", BOB) == ()
    assert life.feed(AnswerUnavailable(key="name", why="")) == ()
    assert life.state == before


def test_a_question_is_asked_a_bounded_number_of_times_and_may_be_answered_all_the_same() -> None:
    life = sending()
    for refusals in range(1, MAX_REFUSALS):
        assert only(Ask, refused_twice(life)) == [Ask("name", NAME, refusals)]
        life.feed(AnswerReady(key="name", answer=ADA, now=life.now, refusals=refusals))
    why = "the server refused the answer: Not that"
    parked = (Save(), Wake(5.0), StopAsking(), Park(Unanswered(("name",), why)))
    assert refused_twice(life) == parked
    life.resumes()
    assert life.asked(name=NAME) == (Wake(5.0), *parked[2:])
    told(life, "input_required", inputRequests={"name": NAME, "age": AGE})
    assert life.stage("name") == "open"
    left = AnswerReady(key="name", answer=BOB, now=life.now, refusals=MAX_REFUSALS, held=True)
    assert life.feed(left) == (Save(),)


def test_an_answer_that_is_left_for_a_parked_call_is_sent_for_the_first_time_when_it_is_resumed() -> None:
    life = asking()
    life.feed(AnswerReady(key="name", answer=ADA, now=life.now, held=True))
    assert only(SendAnswers, life.crashes()) == [SendAnswers({"name": ADA})]
    assert only(Ask, refused_twice(life)), "no earlier send can have been taken"


LOSSES: Final[dict[str, Callable[[Life], object]]] = {
    "the reply is lost": lambda life: life.update_fails("name"),
    "the process dies": lambda life: life.crashes(),
    "its session refuses meanwhile": lambda life: (
        life.feed(ObservationRefused(error=CredentialRefusedError("401"), now=life.now)),
        life.resumes(),
    ),
}


@pytest.mark.parametrize("refused_before", [False, True], ids=["at first", "after a refusal"])
@pytest.mark.parametrize("loss", LOSSES)
def test_an_answer_whose_earlier_send_may_have_been_taken_stays_and_the_call_parks(
    loss: str, refused_before: bool
) -> None:
    life = sending()
    if refused_before:
        life.refused("name")
        life.asked_once_more(name=NAME)
    LOSSES[loss](life)
    life.ticks()
    assert life.stage("name") == "sending"
    life.refused("name")
    why = "the server refused the answer, which it may have taken before: Not that"
    parked = (StopAsking(), Park(Unanswered(("name",), why)))
    assert life.asked_once_more(name=NAME)[-2:] == parked
    assert life.resumes() == (Wake(5.0), SendAnswers({"name": ADA}))


@pytest.mark.parametrize("parks", [False, True])
def test_an_answer_that_surely_did_not_arrive_before_may_be_refused(parks: bool) -> None:
    life = sending()
    if parks:
        refused = CredentialRefusedError("401")
        life.feed(ObservationRefused(error=refused, now=life.now, untaken=("name",)))
        assert only(SendAnswers, life.resumes())
    else:
        life.feed(UpdateFailed(why="no", keys=("name",), now=life.now, jitter=0.0, untaken=True))
        life.ticks()
    assert only(Ask, refused_twice(life))


def test_a_record_of_an_earlier_version_does_not_say_what_became_of_its_answer() -> None:
    life = asking()
    life.feed(AnswerReady(key="name", answer=ADA, now=life.now, held=True))
    written = json.loads(dump_state(life.state))
    for name in ("earlier", "refusals"):
        del written["questions"][0][name]
    life.state = load_state(json.dumps(written))
    assert only(SendAnswers, life.resumes())
    life.refused("name")
    assert only(Park, life.asked_once_more(name=NAME))


def test_a_snapshot_that_was_on_its_way_when_the_answer_was_refused_proves_nothing() -> None:
    life = sending()
    life.ticks()
    life.refused("name")
    assert life.asked(name=NAME) == (Wake(5.0),)
    life.ticks()
    assert only(SendAnswers, life.asked(name=NAME))
    life.ticks()
    life.refused("name")
    assert life.asked(name=NAME) == (Wake(5.0),)


def test_a_refused_answer_is_forgiven_when_the_task_has_moved_on() -> None:
    life = sending()
    life.refused("name")
    assert life.sees() == (Save(), Wake(5.0), Publish(snapshot()))
    assert Finish() in life.sees("completed", result=RESULT)
    assert ended(life) == Completed(result=RESULT)


def test_a_refused_answer_is_not_sent_again_by_a_tick_or_a_restart() -> None:
    life = sending()
    life.refused("name")
    assert life.crashes() == (Wake(5.0),)
    assert life.ticks() == (Poll(),)
    assert only(SendAnswers, life.asked(name=NAME))


def test_answers_that_were_refused_together_go_again_one_by_one() -> None:
    """A wrong answer of one person does not have another person asked again."""
    life = asking(name=NAME, age=AGE)
    life.answers("name")
    life.answers("age", BOB)
    life.refused("name", "age")
    assert only(SendAnswers, life.asked_once_more(name=NAME, age=AGE)) == [SendAnswers({"name": ADA})]
    life.acknowledged("name")
    assert only(SendAnswers, life.ticks()) == [SendAnswers({"age": BOB})]
    life.refused("age")
    life.asked(name=NAME, age=AGE)
    assert only(Ask, life.asked_once_more(age=AGE)) == [Ask("age", AGE, 1)]
    assert life.stage("name") == "acknowledged"


def test_a_new_question_beside_a_refused_answer_is_saved_and_asked() -> None:
    life = sending()
    life.refused("name")
    actions = life.asked_once_more(name=NAME, age=AGE)
    assert only(Ask, actions) == [Ask("age", AGE)]
    assert not only(SendAnswers, actions)
    assert only(SendAnswers, life.answers("age", BOB)) == [SendAnswers({"age": BOB})]
    assert only(SendAnswers, life.ticks()) == [SendAnswers({"name": ADA})]


def test_a_refusal_of_a_megabyte_is_not_kept() -> None:
    life = sending()
    life.refused("name", words="x" * 1_000_000)
    assert len(life.observing.questions[0].refusal) == TOLD_AT_MOST


# ── cancellation ──────────────────────────────────────────────────────────────────────────────


def test_a_wish_to_cancel_is_saved_before_it_is_sent_and_withdraws_the_questions() -> None:
    life = asking()
    assert life.cancels() == (Save(), StopAsking(), SendCancel())
    assert life.observing.cancel == "sending"


def test_an_acknowledged_cancellation_is_saved_and_the_task_may_still_end_otherwise() -> None:
    life = working()
    life.cancels()
    assert life.feed(CancelAcknowledged(now=life.now)) == (Save(), StopAsking(), Wake(5.0))
    assert life.observing.cancel == "acknowledged"
    assert Finish() in life.sees("completed", result=RESULT)
    assert ended(life) == Completed(result=RESULT)


@pytest.mark.parametrize(
    ("hint_ms", "since_s", "wait_s"), [(3_000_000, 0.0, 5.0), (5000, 2.0, 3.0), (100, 1.0, 0.0)]
)
def test_a_look_is_due_within_five_seconds_of_an_acknowledged_cancellation(
    hint_ms: int, since_s: float, wait_s: float
) -> None:
    life = working(pollIntervalMs=hint_ms)
    life.cancels()
    life.now += since_s
    assert life.feed(CancelAcknowledged(now=life.now)) == (Save(), StopAsking(), Wake(wait_s))
    assert life.crashes()[0].after_s >= wait_s  # type: ignore[union-attr]  # a Wake


def test_an_acknowledged_cancellation_does_not_end_a_silence() -> None:
    life = working()
    life.cancels()
    life.poll_fails(retry_after_s=60.0)
    assert life.feed(CancelAcknowledged(now=life.now)) == (Save(), StopAsking(), Wake(60.0))


@pytest.mark.parametrize("crashes", [False, True])
def test_a_cancellation_that_comes_before_there_is_a_task_is_saved_and_sent_when_there_is_one(
    crashes: bool,
) -> None:
    life = Life()
    assert life.cancels() == (Save(),)
    if crashes:
        assert life.saved is not None
        life.state = load_state(life.saved)
    assert life.state == Calling(cancel_wanted=True)
    actions = life.created("input_required", inputRequests={"name": NAME})
    assert [type(action) for action in actions] == [Save, Wake, Publish, SendCancel]
    assert life.observing.cancel == "sending"
    assert life.crashes() == (Wake(5.0), SendCancel())


def test_a_cancellation_before_the_task_is_late_for_a_task_that_is_born_with_its_end() -> None:
    life = Life()
    life.cancels()
    assert life.created("completed", result=RESULT)[-1] == Finish()
    assert ended(life) == Completed(result=RESULT)


def test_a_cancellation_is_remembered_though_the_reply_is_lost_and_sent_when_it_comes_late() -> None:
    for cancel_first in (True, False):
        life = Life()
        if cancel_first:
            life.cancels()
        life.feed(CallLost())
        if not cancel_first:
            assert life.cancels() == (Save(),)
        assert life.saved is not None
        life.state = load_state(life.saved)
        assert SendCancel() in life.created()
        assert life.observing.cancel == "sending"


def test_a_call_that_is_to_be_cancelled_is_not_begun_again_by_a_server_that_asks_first() -> None:
    life = Life()
    life.cancels()
    actions = life.feed(InputAsked(requests={"name": NAME}, request_state="s", now=0.0))
    assert actions == (Save(), Finish())
    assert ended(life) == Cancelled()


@pytest.mark.parametrize("again", [False, True])
def test_a_refused_call_that_was_to_be_cancelled_is_over_unless_an_earlier_one_may_have_run(
    again: bool,
) -> None:
    life = Life(Calling(again=again))
    life.cancels()
    if again:
        assert life.feed(CallRefused()) == (Save(),)
        assert life.state == OutcomeUnknown(cancel_wanted=True)
    else:
        assert life.feed(CallRefused()) == (Save(), Finish())
        assert ended(life) == Cancelled()


def test_a_call_that_is_cancelled_while_its_answers_are_collected_is_over() -> None:
    life = Life()
    life.feed(InputAsked(requests={"name": NAME}, request_state="s", now=0.0))
    assert life.cancels() == (Save(), StopAsking(), Finish())
    assert ended(life) == Cancelled()


@requirement("poll:until-terminal")
@pytest.mark.parametrize("acknowledged", [False, True])
def test_cancelling_silences_questions_but_not_polling(acknowledged: bool) -> None:
    life = working()
    life.cancels()
    if acknowledged:
        life.feed(CancelAcknowledged(now=life.now))
    actions = life.asked(name=NAME)
    assert [type(action) for action in actions] == [Save, Wake, Publish]
    assert life.ticks() == (Poll(),)
    assert not only(Ask, life.resumes())


def test_an_answer_that_was_given_while_the_host_cancelled_is_kept_but_not_sent() -> None:
    life = asking()
    life.cancels()
    assert life.answers("name") == (Save(),)
    assert life.ticks() == (Poll(),)


def test_a_second_wish_to_cancel_is_sent_again() -> None:
    life = working()
    life.cancels()
    assert SendCancel() in life.cancels()


def test_a_cancellation_that_did_not_get_through_is_said_again_with_the_next_poll() -> None:
    life = working()
    life.cancels()
    assert life.ticks() == (Poll(),)  # one is on its way
    assert life.cancel_fails() == (Wake(5.0),)
    assert life.ticks() == (SendCancel(), Poll())


def test_a_retry_after_to_a_cancellation_silences_the_polls_as_well() -> None:
    life = working()
    life.cancels()
    assert life.cancel_fails(retry_after_s=60.0) == (Save(), Wake(60.0))
    life.now += 60.0
    assert life.ticks() == (SendCancel(), Poll())


def test_a_wish_to_cancel_waits_for_the_end_of_a_silence() -> None:
    life = working()
    life.poll_fails(retry_after_s=60.0)
    assert life.cancels() == (Save(), StopAsking())
    assert life.crashes() == (Wake(60.0),)
    life.now += 60.0
    assert life.ticks() == (SendCancel(), Poll())


def test_a_cancellation_of_a_task_that_the_server_did_not_know_is_said_again_if_the_task_goes_on() -> None:
    life = working(pollIntervalMs=3_000_000)
    life.cancels()
    assert life.feed(CancelRejected(now=life.now)) == (Wake(5.0),)
    assert life.ticks() == (SendCancel(), Poll())


@pytest.mark.parametrize("rejected", [False, True])
def test_a_cancellation_that_fails_after_another_got_through_is_not_said_again(rejected: bool) -> None:
    life = working()
    life.cancels()
    life.cancels()
    life.feed(CancelAcknowledged(now=life.now))
    if rejected:
        life.feed(CancelRejected(now=life.now))
    else:
        life.cancel_fails()
    assert life.ticks() == (Poll(),)


def test_a_rejected_answer_does_not_stop_the_polling_of_a_task_the_host_has_cancelled() -> None:
    life = sending()
    life.refused("name")
    life.cancels()
    assert life.asked_once_more(name=NAME) == (Wake(5.0),)


def test_a_callback_that_fails_while_the_host_cancels_does_not_stop_the_polling() -> None:
    life = asking()
    life.cancels()
    assert not only(Park, life.feed(AnswerUnavailable(key="name", why="withdrawn")))


# ── resumed ───────────────────────────────────────────────────────────────────────────────────


def test_a_due_time_in_the_future_counts_on_resume() -> None:
    life = working()
    life.now += 2.0
    assert life.resumes() == (Wake(3.0),)
    assert life.observing.due_at == life.now + 3.0


def test_a_due_time_in_the_future_counts_after_a_crash_as_well() -> None:
    life = working()
    life.now += 2.0
    assert life.crashes() == (Wake(3.0),)


def test_even_the_last_moment_before_the_due_time_is_waited_for() -> None:
    life = working()
    life.now += 4.5
    assert life.resumes() == (Wake(0.5),)


def test_a_due_time_of_just_now_has_passed() -> None:
    life = working()
    life.now += 5.0
    assert life.crashes() == (Wake(5.0),)


def test_a_due_time_that_passed_in_good_order_is_polled_at_once_with_a_little_spread() -> None:
    life = working()
    life.now += 60.0
    assert life.resumes() == (Wake(0.0),)
    life.now += 60.0
    assert life.resumes(jitter=1.0) == (Wake(0.1),)


def test_the_spread_of_a_resumed_fleet_never_exceeds_the_interval_itself() -> None:
    life = working(pollIntervalMs=100)
    life.now += 60.0
    (wake,) = only(Wake, life.resumes(jitter=1.0))
    assert wake.after_s == pytest.approx(0.1 * 0.1)


def test_a_due_time_that_passed_before_a_crash_waits_a_whole_interval_since_the_last_poll_may_be_recent() -> (
    None
):
    life = working()
    life.now += 60.0
    assert life.crashes() == (Wake(5.0),)


def test_after_a_crash_a_task_without_a_hint_waits_the_floor() -> None:
    life = working(pollIntervalMs=...)
    life.now += 60.0
    assert life.crashes() == (Wake(1.0),)


def test_a_clock_that_was_set_back_delays_the_next_poll_by_no_more_than_was_ever_asked_for() -> None:
    life = working()
    life.now -= 86_400.0
    assert life.resumes() == (Wake(5.0),)
    assert life.observing.due_at == life.now + 5.0


def test_a_clock_that_was_set_back_keeps_a_long_wait_no_longer_than_itself() -> None:
    life = working()
    life.poll_fails(retry_after_s=120.0)
    life.now -= 86_400.0
    assert life.crashes() == (Wake(120.0),)


@pytest.mark.parametrize("crash", [False, True])
def test_an_open_question_is_asked_again_as_it_was_once_a_poll_has_shown_that_it_is_open(crash: bool) -> None:
    """Nobody is asked about a task that the server has forgotten meanwhile."""
    life = asking(name=NAME, age=AGE)
    life.answers("name")
    assert not only(Ask, life.crashes() if crash else life.resumes())
    assert only(Ask, life.asked(name=NAME, age=AGE)) == [Ask("age", AGE)]
    assert not only(Ask, life.asked(name=NAME, age=AGE))


@pytest.mark.parametrize("lost", ["in good order", "by a crash"])
def test_an_answer_that_was_not_acknowledged_goes_again_exactly_as_it_was(lost: str) -> None:
    life = sending()
    actions = life.resumes() if lost == "in good order" else life.crashes()
    assert actions == (Wake(5.0), SendAnswers({"name": ADA}))
    assert life.answers("name", BOB) == ()
    assert life.crashes() == (Wake(5.0), SendAnswers({"name": ADA}))


def test_an_acknowledged_answer_is_neither_asked_nor_sent_after_a_crash() -> None:
    life = sending()
    life.acknowledged("name")
    assert life.crashes() == (Wake(5.0),)
    assert life.asked(name=NAME) == (Wake(5.0),)


def test_a_cancellation_nobody_acknowledged_is_sent_again_and_the_questions_stay_silent() -> None:
    life = asking()
    life.cancels()
    assert life.resumes() == (Wake(5.0), SendCancel())
    assert life.crashes() == (Wake(5.0), SendCancel())


def test_an_acknowledged_cancellation_is_not_sent_again() -> None:
    life = asking()
    life.cancels()
    life.feed(CancelAcknowledged(now=life.now))
    assert life.crashes() == (Wake(5.0),)


def test_an_answer_is_not_sent_on_resume_once_the_host_has_cancelled() -> None:
    life = sending()
    life.cancels()
    assert life.crashes() == (Wake(5.0), SendCancel())


def test_back_off_starts_over_on_resume() -> None:
    life = working(pollIntervalMs=...)
    for _ in range(6):
        life.poll_fails()
    life.resumes()
    assert only(Wake, life.poll_fails()) == [Wake(1.0)]


def test_a_resume_is_saved_before_anything_is_done() -> None:
    assert sending().feed(Resumed(now=0.0, jitter=0.0))[0] == Save()


# ── one thing at a time would be easy: what happens side by side ──────────────────────────────


def test_the_retry_after_of_an_update_outlives_a_crash() -> None:
    life = sending()
    life.update_fails("name", retry_after_s=120.0)
    assert only(Wake, life.crashes()) == [Wake(120.0)]


def test_the_retry_after_of_an_update_outlives_the_reply_to_a_poll_sent_beside_it() -> None:
    life = sending()
    life.ticks()
    life.update_fails("name", retry_after_s=120.0)
    (wake,) = only(Wake, life.asked(name=NAME))
    assert wake.after_s >= 120.0


def test_an_update_is_not_repeated_before_its_retry_after_because_another_answer_is_ready() -> None:
    life = sending()
    life.asked(name=NAME, age=AGE)
    life.update_fails("name", retry_after_s=120.0)
    assert not only(SendAnswers, life.answers("age", BOB))


def test_an_update_is_not_repeated_before_its_retry_after_because_the_drive_is_resumed() -> None:
    life = sending()
    life.update_fails("name", retry_after_s=120.0)
    assert not only(SendAnswers, life.resumes())


def test_an_eager_client_looks_no_more_once_an_update_was_rate_limited() -> None:
    life = Life(policy=PollPolicy.eager())
    life.created("input_required", pollIntervalMs=16_000, inputRequests={"name": NAME})
    life.answers("name")
    life.update_fails("name", retry_after_s=1.0)
    assert only(Wake, life.asked(name=NAME)) == [Wake(16.0)]


def test_stopping_to_wait_while_a_poll_is_on_its_way_does_not_bring_the_next_poll_forward() -> None:
    life = working()
    life.now += 5.0
    assert life.ticks() == (Poll(),)
    life.now += 0.05
    (wake,) = only(Wake, life.resumes())
    assert wake.after_s > 4.0


def test_a_clock_that_was_set_back_does_not_stretch_the_retry_of_an_update() -> None:
    life = sending()
    life.now -= 86_400.0
    assert life.update_fails("name") == (Save(), Wake(5.0))


def test_a_host_that_keeps_crashing_gets_to_its_poll_all_the_same() -> None:
    life = working()
    life.now += 60.0
    assert only(Wake, life.crashes()) == [Wake(5.0)]
    life.now += 4.0
    assert only(Wake, life.crashes()) == [Wake(1.0)]


def test_a_question_the_server_no_longer_asks_does_not_hold_back_the_answer_to_another() -> None:
    life = asking()
    life.asked(age=AGE)
    assert SendAnswers({"age": BOB}) in life.answers("age", BOB)


def test_an_answer_the_server_no_longer_waits_for_is_not_sent_along_with_one_it_waits_for() -> None:
    life = sending()
    life.update_fails("name")  # the reply was lost, but the server had taken the answer
    life.asked(age=AGE)
    assert life.answers("age", BOB) == (Save(), SendAnswers({"age": BOB}))


def test_a_forgiven_answer_is_not_sent_again_when_the_drive_is_resumed() -> None:
    life = sending()
    life.refused("name")
    life.sees()  # the task has moved on
    assert life.resumes() == (Wake(5.0),)


def test_the_questions_of_an_attached_snapshot_are_saved_before_they_are_asked() -> None:
    life = Life()
    task = snapshot("input_required", inputRequests={"name": NAME})
    life.feed(TaskCreated(task=task, now=life.now, jitter=0.0, attached=True))
    actions = life.asked(name=NAME)
    assert actions.index(Save()) < actions.index(Ask("name", NAME))


def test_a_silence_ends_with_its_wait_even_if_the_clock_was_set_back_meanwhile() -> None:
    life = sending()
    (wake,) = only(Wake, life.update_fails("name", retry_after_s=120.0))
    life.now += wake.after_s - 86_400.0
    assert life.ticks() == (Save(), SendAnswers({"name": ADA}), Poll())
    assert only(Wake, life.asked(name=NAME)) == [Wake(5.0)]


def test_a_failed_update_is_not_repeated_by_the_reply_to_a_poll_that_was_under_way() -> None:
    life = sending()
    life.ticks()
    life.update_fails("name")
    assert not only(SendAnswers, life.asked(name=NAME))


def test_a_failed_update_is_not_repeated_at_once_because_another_answer_is_ready() -> None:
    life = sending()
    life.asked(name=NAME, age=AGE)
    life.update_fails("name")
    assert not only(SendAnswers, life.answers("age", BOB))


def test_a_callback_that_fails_for_a_question_the_server_has_dropped_does_not_stop_the_polling() -> None:
    life = asking()
    life.sees()  # the server went on without an answer
    assert not only(Park, life.feed(AnswerUnavailable(key="name", why="the form was closed")))


def test_an_answer_that_waited_for_another_goes_once_the_server_has_dropped_that_other() -> None:
    life = asking(name=NAME, age=AGE)
    assert life.answers("age", BOB) == (Save(),)
    assert only(SendAnswers, life.asked(age=AGE)) == [SendAnswers({"age": BOB})]


def test_a_dropped_question_whose_callback_failed_is_asked_again_alone_when_the_server_wants_it_again() -> (
    None
):
    life = asking(name=NAME, age=AGE)
    life.asked(age=AGE)
    life.feed(AnswerUnavailable(key="name", why="the form was closed"))
    assert only(Ask, life.asked(name=NAME, age=AGE)) == [Ask("name", NAME)]


def test_a_late_answer_counts_after_a_park_and_still_waits_for_the_others() -> None:
    life = asking(name=NAME, age=AGE)
    life.feed(AnswerUnavailable(key="name", why="no callback"))
    assert life.answers("age", BOB) == (Save(),)
    assert life.stage("age") == "answered"
    life.resumes()
    assert only(Ask, life.asked(name=NAME, age=AGE)) == [Ask("name", NAME)]


def test_a_task_the_host_has_cancelled_collects_no_more_questions() -> None:
    life = working()
    life.cancels()
    life.asked(name=NAME)
    assert life.observing.questions == ()


def test_nothing_is_sent_even_in_the_last_moment_of_a_silence() -> None:
    life = asking()
    life.poll_fails(retry_after_s=120.0)
    life.now += 119.5
    assert life.answers("name") == (Save(),)
    life.now += 0.5
    assert life.ticks() == (Save(), SendAnswers({"name": ADA}), Poll())


def test_the_longer_one_of_two_silences_counts() -> None:
    life = sending()
    life.update_fails("name", retry_after_s=120.0)
    life.now += 20.0
    assert life.poll_fails(retry_after_s=10.0) == (Save(), Wake(100.0))
    assert life.crashes() == (Wake(100.0),)


def test_a_silence_does_not_begin_again_with_every_restart_after_the_clock_was_set_back() -> None:
    life = working()
    life.poll_fails(retry_after_s=120.0)
    life.now -= 86_400.0
    assert life.crashes() == (Wake(120.0),)
    life.now += 100.0
    assert life.crashes() == (Wake(20.0),)


def test_a_silence_that_is_left_after_a_crash_is_no_reason_to_poll_before_a_whole_interval() -> None:
    """As a clock that was set back leaves it: the next poll is overdue, a silence is not over."""
    life = working()
    life.state = replace(life.observing, due_at=life.now - 1.0, quiet_until=life.now + 86_400.0, quiet_s=1.0)
    life.saved = dump_state(life.state)
    assert life.crashes() == (Wake(5.0),)


def test_after_a_poll_that_was_cut_a_whole_interval_passes_since_the_server_may_have_seen_it_last() -> None:
    life = working()
    life.now += 5.0
    life.ticks()
    life.now += 3.0
    assert life.feed(PollCut(now=life.now)) == ()
    assert life.resumes() == (Wake(5.0),)


def test_after_the_first_poll_of_an_attached_task_was_cut_its_hint_is_not_known_and_the_next_one_waits() -> (
    None
):
    life = working(pollIntervalMs=...)
    life.ticks()
    life.feed(PollCut(now=life.now))
    assert life.resumes() == (Wake(1.0),)


# ── what the server tells by itself ───────────────────────────────────────────────────────────

EARLIER, LATER = "2026-11-21T10:00:00Z", "2026-11-21T12:00:01.5+02:00"


def told(life: Life, status: str = "working", **fields: Any) -> tuple[Action, ...]:
    return life.feed(Notified(task=snapshot(status, **fields), now=life.now))


def test_what_the_session_wants_to_know_again_is_saved_though_no_question_is_new() -> None:
    life, asks = working(), snapshot("input_required", inputRequests={"name": NAME})
    life.feed(Notified(task=asks, now=life.now, session_data="first"))
    before = life.observing
    assert before.session_data == "first"
    second = Notified(task=asks, now=life.now, session_data="second")
    assert life.feed(second) == (Save(),)
    assert life.observing == replace(before, session_data="second")
    assert life.feed(second) == ()
    assert life.feed(Notified(task=asks, now=life.now)) == ()
    assert life.observing.session_data == "second"


def test_what_is_told_of_the_time_before_an_acknowledgement_brings_no_session_data_back() -> None:
    life = working()
    asks = snapshot("input_required", inputRequests={"name": NAME})
    life.feed(Notified(task=asks, now=life.now, session_data="asks"))
    life.feed(AnswerReady(key="name", answer=ADA, now=life.now))
    life.feed(UpdateAcknowledged(keys=("name",), session_data="answered"))
    assert life.observing.session_data == "answered"
    assert life.feed(Notified(task=asks, now=life.now, session_data="asks")) == ()
    assert life.observing.session_data == "answered"
    life.feed(Notified(task=snapshot("working"), now=life.now, session_data="later"))
    assert life.observing.session_data == "later"


def test_an_end_that_is_told_with_its_outcome_is_the_end() -> None:
    for status, fields, outcome in (
        ("completed", {"result": RESULT}, Completed(result=RESULT)),
        ("cancelled", {}, Cancelled()),
        ("failed", {"error": {"code": -32000, "message": "no"}}, Failed(code=-32000, message="no")),
    ):
        life = working()
        *_, published, finish = told(life, status, **fields)
        assert isinstance(published, Publish)
        assert published.task.status == status
        assert finish == Finish()
        assert ended(life) == outcome
        assert isinstance(life.state, Finished)
        assert life.state.task is not None
        assert life.state.task.status == status


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_an_end_that_is_told_without_its_outcome_is_left_to_the_next_poll(status: str) -> None:
    life = working()
    before = life.observing
    assert told(life, status) == ()
    assert life.state == before


def test_news_that_is_told_is_shown_and_moves_no_poll() -> None:
    life = working()
    due_at = life.observing.due_at
    life.now += 3.0
    actions = told(life, statusMessage="half of it")
    assert [type(action) for action in actions] == [Publish]
    assert life.observing.due_at == due_at
    assert life.observing.task.status_message == "half of it"
    assert told(life, statusMessage="half of it") == ()  # twice
    assert [type(action) for action in told(life, "paused")] == [Save, Publish]


def test_a_question_that_is_told_is_saved_before_it_is_asked_and_asked_once() -> None:
    life = working()
    actions = told(life, "input_required", inputRequests={"name": NAME})
    assert [type(action) for action in actions] == [Save, Publish, Ask]
    assert told(life, "input_required", inputRequests={"name": NAME}) == ()
    actions = told(life, "input_required", inputRequests={"name": NAME, "age": AGE})
    assert [action.key for action in only(Ask, actions)] == ["age"]


def test_what_is_told_late_takes_back_neither_a_question_nor_its_answer() -> None:
    life = sending()
    before = life.observing
    assert told(life) == ()
    assert told(life, "input_required", inputRequests={"name": NAME}, statusMessage="late") == ()
    assert life.state == before


def test_what_is_told_of_an_earlier_time_is_not_believed() -> None:
    life = working(lastUpdatedAt=LATER, statusMessage="second")
    assert told(life, lastUpdatedAt=EARLIER, statusMessage="first") == ()
    assert told(life, "input_required", lastUpdatedAt=EARLIER, inputRequests={"name": NAME}) == ()
    assert told(life, lastUpdatedAt="yesterday", statusMessage="third") != ()
    assert told(working(lastUpdatedAt=EARLIER), lastUpdatedAt=LATER, statusMessage="second") != ()


def test_of_a_cancelled_task_nothing_is_asked_that_is_told() -> None:
    life = working()
    life.feed(CancelRequested(now=life.now))
    assert told(life, "input_required", inputRequests={"name": NAME}) == ()


def test_what_is_told_of_another_task_changes_nothing() -> None:
    life = working()
    before = life.observing
    assert told(life, "completed", taskId="another", result=RESULT) == ()
    assert life.state == before


# ── every event in every state ────────────────────────────────────────────────────────────────

TABLE = """
                     calling            gathering          outcome_unknown  observing  finished
CallBegun            -                  calling            -                -          -
CallReturned         finished           -                  finished         -         -
CallFailed           finished           -                  finished         -         -
CallRefused          calling|gathering|outcome_unknown - outcome_unknown  -         -
CallLost             outcome_unknown    -                  outcome_unknown  -         -
CallAgain            -                  -                  calling          -          -
InputAsked           gathering          -                  gathering        -         -
TaskCreated          observing|finished -                  observing|finished -         -
Tick                 -                  -                  -                observing  finished
Observed             -                  -                  -                observing|finished finished
Notified             -                  -                  -                observing|finished finished
PollFailed           -                  -                  -                observing  finished
PollCut              -                  -                  -                observing  finished
TaskMissing          -                  -                  -                observing|finished finished
ObservationRefused   -                  -                  -                observing  finished
AnswerReady          calling            gathering          outcome_unknown  observing  finished
AnswerUnavailable    calling            gathering          outcome_unknown  observing  finished
UpdateAcknowledged   -                  -                  -                observing  finished
UpdateFailed         -                  -                  -                observing  finished
UpdateRefused        -                  -                  -                observing  finished
CancelRequested      calling            finished           outcome_unknown  observing  finished
CancelAcknowledged   -                  -                  -                observing  finished
CancelRejected       -                  -                  -                observing  finished
CancelFailed         -                  -                  -                observing  finished
Resumed              -                  gathering          outcome_unknown  observing  finished
"""
"""Which states an event can lead to; a dash where it cannot happen. The machine's whole shape."""


def read_table() -> dict[tuple[str, str], frozenset[str]]:
    header, *rows = (line.split() for line in TABLE.strip().splitlines())
    return {
        (event, state): frozenset() if cell == "-" else frozenset(cell.split("|"))
        for event, *cells in rows
        for state, cell in zip(header, cells, strict=True)
    }


def sample_states() -> list[State]:
    open_, other = (
        AskedQuestion(key="name", digest="d", request=NAME),
        AskedQuestion(key="age", digest="e", request=AGE),
    )
    base = Observing(task=snapshot(), received_at=0.0, due_at=0.0)
    answered = tuple(
        AskedQuestion(key=stage, digest="d", stage=stage, answer=ADA)
        for stage in ("answered", "sending", "acknowledged", "rejected", "disputed")
    )
    return [
        Calling(),
        Gathering(round=0, request_state=None, questions=(open_,)),
        Gathering(round=0, request_state=None, questions=(open_, other)),
        Calling(again=True),
        OutcomeUnknown(),
        base,
        replace(base, task=snapshot("completed"), poll_interval_ms=5000.0, failure=FAILED),
        replace(base, questions=(open_, *answered)),
        replace(base, questions=answered, cancel="requested"),
        replace(base, cancel="sending", missing=True),
        replace(base, cancel="acknowledged"),
        Finished(outcome=Completed(result={}), task=snapshot("completed")),
        Finished(outcome=Failed(code=1, message="")),
    ]


def sample_events() -> list[Event]:
    at: dict[str, Any] = {"now": 1.0, "jitter": 0.0}
    return [
        CallReturned(result=RESULT),
        CallFailed(code=1, message="", data=None),
        CallRefused(),
        CallRefused(limited=True, **at),
        CallLost(),
        CallAgain(),
        CallBegun(),
        InputAsked(requests={"name": NAME}, request_state=None, now=0.0),
        InputAsked(requests={}, request_state="s", now=0.0),
        TaskCreated(task=snapshot(), **at),
        TaskCreated(task=snapshot(), attached=True, **at),
        TaskCreated(task=snapshot("cancelled"), **at),
        Tick(now=1.0, jitter=0.0),
        *[
            Observed(task=snapshot(s), **at)
            for s in ("working", "input_required", "paused", "completed", "failed")
        ],
        Observed(task=snapshot(taskId="another"), **at),
        Observed(task=snapshot("input_required", inputRequests={"disputed": NAME, "new": AGE}), **at),
        *[
            Notified(task=snapshot(s, inputRequests={"new": AGE}), now=1.0)
            for s in ("working", "input_required", "completed", "cancelled")
        ],
        Notified(task=snapshot(taskId="another"), now=1.0),
        PollFailed(why="no", **at),
        PollCut(now=1.0),
        TaskMissing(message="", now=1.0),
        ObservationRefused(error=CredentialRefusedError("401"), now=1.0),
        AnswerReady(key="name", answer=ADA, now=1.0),
        AnswerUnavailable(key="name", why=""),
        UpdateAcknowledged(keys=("sending",)),
        UpdateFailed(why="no", keys=("sending",), **at),
        UpdateRefused(keys=("sending",), words=""),
        CancelRequested(now=0.0),
        CancelAcknowledged(now=1.0),
        CancelRejected(now=1.0),
        CancelFailed(why="no", now=1.0, jitter=0.0, retry_after_s=9.0),
        Resumed(**at),
        Resumed(due_is_exact=False, **at),
    ]


def test_the_table_names_every_event_and_every_state() -> None:
    states = {member.__dataclass_fields__["kind"].default for member in get_args(State)}
    events = {member.__name__ for member in get_args(Event)}
    assert set(read_table()) == {(event, state) for event in events for state in states}
    assert {type(state) for state in sample_states()} == set(get_args(State))
    assert {type(event) for event in sample_events()} == set(get_args(Event))


def test_every_event_in_every_state_leads_where_the_table_says_or_is_impossible() -> None:
    reached: dict[tuple[str, str], set[str]] = {pair: set() for pair in read_table()}
    for state in sample_states():
        for event in sample_events():
            with suppress(ImpossibleEventError):
                after, actions = advance(state, event, PollPolicy(wait_for_slot_s=60.0))
                assert {type(action) for action in actions} <= set(get_args(Action))
                reached[type(event).__name__, state.kind].add(after.kind)
    assert reached == read_table()


def test_an_impossible_event_is_our_mistake_and_the_message_names_it_without_showing_data() -> None:
    assert issubclass(ImpossibleEventError, AssertionError)
    with pytest.raises(ImpossibleEventError, match=r"^CallReturned cannot happen in Observing$"):
        working().feed(CallReturned(result=RESULT))


def test_once_finished_nothing_changes_whatever_arrives_late() -> None:
    for state in sample_states():
        for event in sample_events():
            if isinstance(state, Finished) and read_table()[type(event).__name__, "finished"]:
                assert advance(state, event, PollPolicy()) == (state, ())
