"""Whole lives, made up at random: a careless server, an impatient host, and a process that dies.

Each history is run on the machine alone. Whatever the machine wants done is put on a list of things
under way; chance decides what of it comes back, in which order, and when the process dies. A crash
replaces the state by the last one that was saved, as a journal would give it back. The laws are
checked on every step, so a broken one is found where it breaks; of all histories that break one the
shortest is shown.

Chance is a seeded generator with weights, not hypothesis: a law is worth something where questions,
failures and crashes meet, and uniformly chosen rules hardly ever got there.

``MCP_TASKS_HISTORIES=100000 pytest tests/machine/test_histories.py`` runs a longer campaign.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mcp_tasks_client import Task
from mcp_tasks_client.errors import ConnectionLostError
from mcp_tasks_client.machine import advance
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
from mcp_tasks_client.machine.input_requests import MAX_REFUSALS
from mcp_tasks_client.machine.record import dump_state, load_state
from mcp_tasks_client.machine.states import (
    AskedQuestion,
    Calling,
    Finished,
    Gathering,
    Observing,
    OutcomeUnknown,
    State,
)
from mcp_tasks_client.policy import PollPolicy, hint_s, poll_delay
from mcp_tasks_client.protocol.replies import read_url_requests
from mcp_tasks_client.protocol.task import read_task

HISTORIES = int(os.environ.get("MCP_TASKS_HISTORIES", "200"))
TASK_ID = "a-task-id-of-some-length"
CREATED_AT = "2026-11-20T23:11:37Z"
ROUNDING_S = 1e-6  # how far apart two sums of the same seconds may be
KEYS = ("name", "age", "town")


class Chance:
    """Draws whatever a server, a host or a network may come up with."""

    def __init__(self, seed: int) -> None:
        self.die = random.Random(seed)

    def one_in(self, times: int) -> bool:
        return self.die.randrange(times) == 0

    def pick(self, *values: Any) -> Any:
        return self.die.choice(values)

    def move(self, moves: dict[Callable[[], None], float]) -> Callable[[], None]:
        return self.die.choices(list(moves), list(moves.values()))[0]

    def seconds(self) -> float:
        return float(self.pick(0.0, 0.0, 0.5, 4.0, 30.0, 10_000.0))

    def jitter(self) -> float:
        return float(self.pick(0.0, 0.5, 1.0))

    def retry_after(self) -> float | None:
        return self.die.choice([None, None, 0.5, 120.0])

    def requests(self) -> dict[str, Any]:
        """Mostly what a key always means; now and then something else, which no server may do."""
        asked = self.die.sample(KEYS, self.pick(1, 1, 2, 3))
        return {k: self.pick("no object", {"ask": "other"}) if self.one_in(20) else {"ask": k} for k in asked}

    def urls(self) -> dict[str, Any]:
        """URLs that have to be visited before the call."""
        return read_url_requests({"elicitations": [{"url": "https://auth.test"}] * self.pick(1, 2)}) or {}

    def snapshot(self, *statuses: str) -> Task:
        raw: dict[str, Any] = {"taskId": TASK_ID, "status": self.pick(*statuses)}
        for name, *values in (
            ("pollIntervalMs", 5000, 5000, 60_000, 100, 0, None, "soon"),
            ("ttlMs", 60_000, 60_000, None),
            ("statusMessage", "a", "b"),
            ("createdAt", CREATED_AT, CREATED_AT, CREATED_AT, CREATED_AT, "2027-01-01"),
            ("lastUpdatedAt", "1", "2", "3"),
            ("vendor/x", 1, {"a": [None]}),
        ):
            if not self.one_in(3):
                raw[name] = self.pick(*values)
        if raw["status"] == "input_required" and not self.one_in(10):
            raw["inputRequests"] = self.requests()
        if raw["status"] == "completed" and not self.one_in(4):
            raw["result"] = {"content": [], "n": self.die.random()}
        if raw["status"] == "failed" and not self.one_in(4):
            raw["error"] = {"code": -32603, "message": "m", "data": [1]}
        if self.one_in(25):
            raw["taskId"] = "another-task-id"
        return read_task(raw)

    def going_on(self) -> Task:
        return self.snapshot("working", "input_required", "input_required", "input_required", "paused")

    def ended(self) -> Task:
        return self.snapshot("completed", "failed", "cancelled")


class History:
    """One call, everything that is under way for it, and a witness who remembers more than it may."""

    def __init__(self, seed: int, policy: PollPolicy, tally: Counter[tuple[str, str]]) -> None:
        self.chance = Chance(seed)
        self.policy = policy
        self.tally = tally
        self.told: list[str] = []
        self.state: State = Calling()
        self.saved = dump_state(self.state)  # the intent, under an idempotency key
        self.clock = 1_000_000.0
        self.elapsed = 0.0
        self.let_go()
        self.calling = True
        # What the witness remembers, over crashes too.
        self.sent = True
        self.asked: set[str] = set()
        self.given: dict[str, Any] = {}
        self.answers = 0
        self.acknowledged: set[str] = set()
        self.unsent: set[str] = set()
        self.sends: defaultdict[str, list[str]] = defaultdict(list)  # what became of each send of the answer
        self.looked_for: set[str] = set()  # refused before the poll that is under way
        self.looks: Counter[str] = Counter()  # the polls that showed a key, each sent after a refusal
        self.silent_until = 0.0
        self.first: dict[str, Any] = {}  # what was asked when a key was first seen
        self.last_poll: float | None = None

    @property
    def now(self) -> float:
        """What the local clock shows. It may be set back; the time that has really passed may not."""
        return self.clock + self.elapsed

    def let_go(self) -> None:
        """Drop what is under way, as the end of a drive or of the process does."""
        self.driven = False
        self.calling = False
        self.alarm: float | None = None
        self.polls = 0
        self.updates: list[dict[str, Any]] = []
        self.cancels = 0
        self.before_host: dict[str, int] = {}  # by key: how many answers were refused before

    def run(self) -> None:
        """Live until some time after the end, or for a hundred moves and then in good order."""
        late = 0
        for _ in range(100):
            self.chance.move(self.moves())()
            late += isinstance(self.state, Finished)
            if late > 4:
                return
        self.everybody_behaves()

    def moves(self) -> dict[Callable[[], None], float]:
        """What may happen next, and how likely it is."""
        moves: dict[Callable[[], None], float] = {
            self.time_passes: 0.5,
            self.the_clock_is_set_back: 0.1,
            self.the_process_dies: 0.4,
        }
        if isinstance(self.state, Observing | Gathering):
            moves[self.the_drive_stops_and_is_resumed] = 0.5 if self.driven else 5
        if isinstance(self.state, OutcomeUnknown):
            moves[self.the_caller_allows_a_second_call] = 5
        if isinstance(self.state, Calling) and self.calling:
            moves |= {
                self.the_call_becomes_a_task: 6,
                self.the_call_becomes_a_task_that_has_ended: 0.5,
                self.the_task_is_attached: 1,
                self.the_server_asks_first: 3,
                self.the_call_ends: 0.5,
                self.the_call_does_not_get_through: 1,
            }
        if self.alarm is not None and not self.polls:
            moves[self.the_alarm_goes_off] = 3
        if self.polls:
            moves |= {
                self.a_poll_is_answered: 4,
                self.a_poll_is_answered_as_before: 3,
                self.a_poll_is_answered_with_an_end: 0.2,
                self.a_poll_fails: 1,
                self.a_poll_is_refused: 0.2,
                self.a_poll_is_cut: 0.2,
            }
        if self.updates:
            moves[self.an_update_is_answered] = 4
        if self.before_host:
            moves |= {self.the_host_answers: 4, self.the_host_cannot_answer: 0.3}
        if self.cancels:
            moves[self.a_cancellation_is_acknowledged] = 2
        if self.driven and isinstance(self.state, Observing | Finished):
            moves |= {self.the_host_cancels: 0.1, self.a_snapshot_comes_unasked: 0.4}
        if isinstance(self.state, Calling) or (self.driven and isinstance(self.state, Gathering)):
            moves[self.the_host_cancels] = 1.5
        if self.driven and isinstance(self.state, Observing) and self.given:
            moves[self.an_answer_comes_twice] = 0.3
        if (
            self.driven
            and isinstance(self.state, Observing)
            and any(q.refusals for q in self.state.questions)
        ):
            moves[self.an_answer_comes_after_its_refusal] = 0.3
        if isinstance(self.state, Finished):
            moves[self.something_comes_too_late] = 5
        return moves

    # ── one step, and the laws ────────────────────────────────────────────────────────────────

    def feed(self, event: Event) -> None:
        held = isinstance(event, AnswerReady) and event.held
        before, self.driven = self.state, not (isinstance(event, CallRefused | PollCut) or held)
        self.told.append(repr(event))
        if isinstance(event, InputAsked | TaskCreated | CallAgain):
            # Keys are unique within one round, and within one task.
            self.asked, self.given, self.acknowledged, self.unsent = set(), {}, set(), set()
            self.sends.clear()
            self.looks.clear()
            self.silent_until, self.last_poll = 0.0, None
        if isinstance(event, Resumed):
            self.asked = set()  # whatever was before the host was withdrawn
        if isinstance(event, AnswerUnavailable):
            self.asked.discard(event.key)  # nobody answered; if it is still wanted, it is asked again
        if isinstance(event, InputAsked | CallAgain | CallRefused):
            self.sent = False  # answered, allowed a second time, or surely never begun
        if isinstance(event, Tick | Resumed):
            self.unsent = set()  # the wait is over
        if isinstance(event, AnswerReady) and open_keys(before).get(event.key) == event.refusals:
            self.given.setdefault(event.key, event.answer)
        after, actions = advance(before, event, self.policy)
        self.note_what_became_of_sends(before, event)
        self.check_what_opens_again(before, after)
        self.state = after
        self.driven = self.driven or any(isinstance(action, SendCall) for action in actions)

        if isinstance(before, Finished):
            assert (after, actions) == (before, ()), "something changed after the end"
        self.check_that_the_state_can_be_journaled()
        self.check_what_is_worth_a_commit(before, event, actions)
        self.check_that_questions_only_move_on(before)
        self.check_reports(before, actions)
        self.check_the_pace(before, event, actions)
        for action in actions:
            self.tally[type(event).__name__, type(action).__name__] += 1
            if isinstance(action, Save):
                self.saved = dump_state(after)
            self.check_that_it_was_committed_first(action)
            self.check_that_nobody_is_asked_twice(event, action)
            self.check_that_the_server_is_left_in_peace(action)
            self.act(action)
        if isinstance(event, PollFailed | UpdateFailed | CancelFailed) and event.retry_after_s is not None:
            self.silent_until = max(self.silent_until, self.elapsed + event.retry_after_s)
        if isinstance(event, CancelAcknowledged | CancelRejected):
            self.last_poll = None  # the task is looked at soon, whatever its hint
        if isinstance(event, UpdateFailed):
            self.unsent |= set(event.keys)
        if isinstance(event, UpdateAcknowledged):
            self.acknowledged |= set(event.keys)
        if isinstance(self.state, Observing):
            for q in self.state.questions:
                self.first.setdefault(q.key, (self.state.task.input_requests or {}).get(q.key))
        self.check_that_something_will_happen()

    def note_what_became_of_sends(self, before: State, event: Event) -> None:
        match event:
            case UpdateAcknowledged(keys=keys):
                became = "taken"
            case UpdateRefused(keys=keys):
                became = "refused"
            case UpdateFailed(keys=keys):
                became = "untaken" if event.untaken else "lost"
            case ObservationRefused(untaken=keys):
                became = "untaken"
            case Observed(task=task) if isinstance(before, Observing) and task.task_id == before.task.task_id:
                if task.status == "input_required":
                    self.looks.update(self.looked_for & set(task.input_requests or ()))
                return
            case _:
                return
        for key in keys:
            if self.sends[key][-1:] == ["on its way"]:
                self.sends[key][-1] = became

    def check_what_opens_again(self, before: State, after: State) -> None:
        """Only what the server has refused twice, and has not taken, and still asks at two looks."""
        count = {q.key: q.refusals for q in questions(before)}
        for q in questions(after):
            if q.refusals > count.get(q.key, 0):
                assert set(self.sends[q.key]) <= {"refused", "untaken"}, "it may have been taken"
                assert self.sends[q.key].count("refused") >= 2, "one of several servers may not know the task"
                assert self.looks[q.key] >= 2, "it was opened after one look"
                assert q.refusal
                assert q.unanswered
                del self.given[q.key], self.sends[q.key], self.looks[q.key]
                self.asked.discard(q.key)
                self.tally["Observed", "question opened again"] += 1

    def act(self, action: Action) -> None:
        match action:
            case Wake(after_s):
                self.alarm = self.elapsed + after_s
            case Poll():
                self.alarm = None
                self.last_poll = self.elapsed
                self.polls += 1
                self.looked_for = {key for key, became in self.sends.items() if became[-1:] == ["refused"]}
            case Ask(key, _, refusals):
                assert refusals < MAX_REFUSALS, "a question is asked without end"
                self.before_host[key] = refusals
            case StopAsking():
                self.before_host.clear()
            case SendAnswers(answers):
                self.updates.append(dict(answers))
                for key in answers:
                    self.sends[key].append("on its way")
            case SendCancel():
                self.cancels += 1
            case SendCall():
                assert not self.sent, "tools/call was repeated by itself"
                self.calling = self.sent = True
                if isinstance(self.state, Gathering):
                    self.feed(CallBegun())
            case Park():
                self.let_go()
            case Forget():
                self.calling = self.sent = True  # the host tries again; nothing was kept of the first time
            case Finish():
                self.alarm = None

    @property
    def observing(self) -> Observing:
        assert isinstance(self.state, Observing)
        return self.state

    def check_that_the_state_can_be_journaled(self) -> None:
        back, kept = load_state(dump_state(self.state)), kept_of(self.state)
        assert back == kept
        assert fields_set(back) == fields_set(kept)

    def check_that_it_was_committed_first(self, action: Action) -> None:
        """Whatever is done can be told from what was last saved, and would be done again the same."""
        saved = load_state(self.saved)
        match action:
            case Ask(key, request):
                assert [(q.request, q.answer) for q in questions(saved) if q.key == key] == [(request, None)]
            case SendAnswers(answers):
                assert saved == kept_of(self.state), "an owner that was overtaken would send it"
                kept = {q.key: q.answer for q in questions(saved)}
                assert {key: kept.get(key) for key in answers} == answers
            case SendCall():
                # The one action that may not be repeated: that it was sent is what must be known.
                assert saved == kept_of(self.state)
            case SendCancel():
                assert isinstance(saved, Observing)
                assert saved.cancel in ("requested", "sending")
            case Publish(task):
                assert isinstance(saved, Observing | Finished)
                assert saved.task is not None
                if isinstance(saved, Observing):
                    assert (saved.task.status, saved.ttl_ms) == (task.status, self.observing.ttl_ms)
                    assert saved.task.input_requests == task.input_requests, "a question would be lost"
                else:
                    assert saved.task.terminal
            case Finish():
                assert isinstance(saved, Finished)
                assert saved == kept_of(self.state)

    def check_what_is_worth_a_commit(self, before: State, event: Event, actions: tuple[Action, ...]) -> None:
        if isinstance(before, Observing) and isinstance(event, Observed):
            foreign = event.task.task_id != before.task.task_id
            news = isinstance(self.state, Finished) or not same_but_for_words(event.task, before.task)
            # A snapshot that came unasked gives no hint and no time-to-live; the poll that repeats it does.
            news = news or (before.poll_interval_ms, before.ttl_ms, before.failure) != (
                self.observing.poll_interval_ms,
                self.observing.ttl_ms,
                self.observing.failure,
            )
            # An answer that goes again, and a question that opens again.
            news = news or questions(self.state) != questions(before)
            if foreign or not news:
                assert Save() not in actions
        if isinstance(before, Observing) and isinstance(event, PollFailed) and event.retry_after_s is None:
            assert (Save() in actions) == (before.failure is None), "a server that fails set the disk's pace"
        assert actions.count(Save()) <= 1

    def check_that_nobody_is_asked_twice(self, event: Event, action: Action) -> None:
        match action:
            case Ask(key):
                assert key not in self.given, "an answered question was asked again"
                assert key not in self.asked, "a question was asked twice"
                self.asked.add(key)
            case SendAnswers(answers):
                assert answers
                assert not self.unsent & set(answers), "a failed update was repeated without back-off"
                assert answers == {key: self.given[key] for key in answers}, "an answer is not the first one"
                assert isinstance(self.state, Observing)
                outstanding = set(self.state.task.input_requests or {})
                assert set(answers) <= outstanding, "an answer was sent to what is not asked"
                assert not open_keys(self.state).keys() & outstanding, "a part of the answers was sent"
        if isinstance(action, Ask | SendAnswers) and isinstance(self.state, Observing):
            assert self.state.cancel == "no"

    def check_that_questions_only_move_on(self, before: State) -> None:
        """No key is ever lost, no answer ever changes, and what came home stays so.

        An answer that was acknowledged goes again only while the server goes on asking.
        """
        if isinstance(before, Observing) and isinstance(self.state, Observing):
            after = {q.key: q for q in self.state.questions}
            for q in before.questions:
                assert q.key in after, "a question was forgotten"
                now = after[q.key]
                assert now.digest == q.digest
                if q.stage not in ("open", "asking") and now.stage != "acknowledged" and not now.unanswered:
                    assert now.answer is not None
                    assert now.answer == q.answer
                    assert q.stage != "acknowledged" or now.listed >= 5
                if now.unanswered and not q.unanswered:
                    assert now.refusals == q.refusals + 1

    def check_reports(self, before: State, actions: tuple[Action, ...]) -> None:
        told = sum(isinstance(action, Report) for action in actions)
        if isinstance(before, Observing) and isinstance(self.state, Observing):
            assert len(set(self.state.reported)) == len(self.state.reported)
            assert told == len(self.state.reported) - len(before.reported)

    def check_the_pace(self, before: State, event: Event, actions: tuple[Action, ...]) -> None:
        assert (Poll() in actions) == (isinstance(event, Tick) and isinstance(before, Observing))
        wakes = [action.after_s for action in actions if isinstance(action, Wake)]
        assert len(wakes) <= 1
        if not wakes:
            return
        assert isinstance(self.state, Observing)
        assert self.state.wait_s == wakes[0] >= 0
        assert abs(self.state.due_at - (self.now + wakes[0])) < ROUNDING_S
        hint = hint_s(self.state.poll_interval_ms) or 0.0
        match event:
            case TaskCreated(attached=True):
                assert wakes == [0.0]
            case Resumed():
                assert isinstance(before, Observing)
                interval = poll_delay(before.poll_interval_ms, 0, self.policy, 0.0)
                interval = max(interval, 0.0 if before.poll_interval_ms else 1.0)
                assert wakes[0] <= max(
                    before.wait_s, before.quiet_s, interval * (1 + self.policy.jitter) + ROUNDING_S
                )
            case CancelAcknowledged() | CancelRejected():
                assert wakes[0] <= max(5.0, self.observing.quiet_s)
            case PollFailed() | UpdateFailed() | CancelFailed():
                assert wakes[0] >= max(hint, event.retry_after_s or 0.0, self.policy.backoff_floor_s)
            case _:
                assert wakes[0] >= (hint / 16 if self.policy.early_looks else hint)

    def check_that_the_server_is_left_in_peace(self, action: Action) -> None:
        """By the time that has really passed, over stops, crashes and clocks that were set back."""
        if isinstance(action, Poll | SendAnswers | SendCancel):
            assert self.elapsed >= self.silent_until - ROUNDING_S, "a Retry-After was not waited for"
        if isinstance(action, Poll) and self.last_poll is not None and not self.policy.early_looks:
            assert isinstance(self.state, Observing)
            hint = hint_s(self.state.poll_interval_ms) or self.policy.floor_s
            assert self.elapsed >= self.last_poll + hint - ROUNDING_S, "two polls came too close"

    def check_that_something_will_happen(self) -> None:
        if self.driven and isinstance(self.state, Observing):
            assert self.alarm is not None or self.polls, "a task was left without a next poll"
        if self.driven and isinstance(self.state, Gathering):
            assert self.before_host, "a round was left with nothing to wait for"

    # ── before the task ───────────────────────────────────────────────────────────────────────

    def the_call_becomes_a_task(self) -> None:
        self.calling = False
        self.feed(TaskCreated(task=self.chance.going_on(), now=self.now, jitter=self.chance.jitter()))

    def the_call_becomes_a_task_that_has_ended(self) -> None:
        self.calling = False
        self.feed(TaskCreated(task=self.chance.ended(), now=self.now, jitter=self.chance.jitter()))

    def the_task_is_attached(self) -> None:
        self.calling = False
        stub = read_task({"taskId": TASK_ID, "status": "working"})
        self.feed(TaskCreated(task=stub, now=self.now, jitter=self.chance.jitter(), attached=True))

    def the_server_asks_first(self) -> None:
        self.calling = False
        state_only = self.chance.one_in(4)
        if self.chance.one_in(3):
            self.feed(InputAsked(requests=self.chance.urls(), request_state=None, now=0.0))
            return
        self.feed(
            InputAsked(requests={} if state_only else self.chance.requests(), request_state="s", now=0.0)
        )

    def the_call_ends(self) -> None:
        self.calling = False
        self.feed(self.chance.pick(CallReturned(result={}), CallFailed(code=1, message="m", data=None)))

    def the_call_does_not_get_through(self) -> None:
        self.calling = False
        limited = CallRefused(limited=True, now=self.now, jitter=self.chance.jitter())
        self.feed(
            self.chance.pick(CallLost(), CallLost(), CallRefused(), CallRefused(for_good=True), limited)
        )

    def the_caller_allows_a_second_call(self) -> None:
        self.feed(CallAgain())

    # ── what comes back while there is a task ─────────────────────────────────────────────────

    def the_alarm_goes_off(self) -> None:
        assert self.alarm is not None
        assert isinstance(self.state, Observing)
        self.elapsed = max(self.elapsed, self.alarm) + self.chance.seconds()
        self.alarm = None
        self.feed(Tick(now=self.now, jitter=self.chance.jitter()))

    def a_poll_is_answered(self) -> None:
        self.polls -= 1
        self.feed(Observed(task=self.chance.going_on(), now=self.now, jitter=self.chance.jitter()))

    def a_snapshot_comes_unasked(self) -> None:
        task = self.chance.pick(self.chance.going_on, self.chance.going_on, self.chance.ended)()
        self.feed(Notified(task=task, now=self.now))

    def a_poll_is_cut(self) -> None:
        self.let_go()  # what cuts a poll off is the end of the drive
        self.feed(PollCut(now=self.now))

    def a_poll_is_answered_as_before(self) -> None:
        self.polls -= 1
        if isinstance(self.state, Observing):
            stamp = self.chance.die.random()
            again = {**self.state.task.to_wire(), "lastUpdatedAt": f"{stamp}", "_meta": {"n": stamp}}
            self.feed(Observed(task=read_task(again), now=self.now, jitter=self.chance.jitter()))

    def a_poll_is_answered_with_an_end(self) -> None:
        self.polls -= 1
        self.feed(Observed(task=self.chance.ended(), now=self.now, jitter=self.chance.jitter()))

    def a_poll_fails(self) -> None:
        self.polls -= 1
        retry_after_s = self.chance.retry_after()
        self.feed(
            PollFailed(why="no", now=self.now, jitter=self.chance.jitter(), retry_after_s=retry_after_s)
        )

    def a_poll_is_refused(self) -> None:
        self.polls -= 1
        refused = ObservationRefused(error=ConnectionLostError("no"), now=self.now)
        self.feed(self.chance.pick(refused, refused, TaskMissing(message="m", now=self.now)))

    def an_update_is_answered(self) -> None:
        keys = tuple(self.updates.pop(self.chance.die.randrange(len(self.updates))))
        jitter, retry_after_s = self.chance.jitter(), self.chance.retry_after()
        acknowledged = UpdateAcknowledged(keys=keys)
        failed = UpdateFailed(why="no", keys=keys, now=self.now, jitter=jitter, retry_after_s=retry_after_s)
        failed = replace(failed, untaken=self.chance.one_in(3))
        ended = ObservationRefused(error=ConnectionLostError("no"), now=self.now)
        ended = replace(ended, untaken=self.chance.pick((), keys))
        refused = UpdateRefused(keys=keys, words="m")
        self.feed(self.chance.pick(acknowledged, failed, refused, refused, refused, refused, ended))

    # ── the host ──────────────────────────────────────────────────────────────────────────────

    def the_host_answers(self) -> None:
        key = self.chance.pick(*self.before_host)
        refusals = self.before_host.pop(key)
        self.answers += 1  # a person asked twice need not say the same
        action = self.chance.pick("accept", "accept", "decline")
        answer = {"n": self.answers, "action": action}
        self.feed(AnswerReady(key=key, answer=answer, now=self.now, refusals=refusals))

    def an_answer_comes_twice(self) -> None:
        self.answers += 1
        key = self.chance.pick(*self.given)
        self.feed(AnswerReady(key=key, answer={"n": self.answers}, now=self.now, refusals=self.refusals(key)))

    def an_answer_comes_after_its_refusal(self) -> None:
        key = self.chance.pick(*[q.key for q in questions(self.state) if q.refusals])
        late = {"key": key, "refusals": self.refusals(key) - 1}
        before, self.answers = self.state, self.answers + 1
        ready = AnswerReady(answer={"n": self.answers}, now=self.now, **late)
        self.feed(self.chance.pick(ready, AnswerUnavailable(why="no", **late)))
        assert self.state == before

    def an_answer_is_left(self) -> None:
        """Nobody drives the call, and will not before this is part of its state."""
        left = open_keys(self.state)
        if isinstance(self.state, Observing) and left:
            key = self.chance.pick(*left)
            self.answers += 1
            answer = {"n": self.answers}
            self.feed(AnswerReady(key=key, answer=answer, now=self.now, refusals=left[key], held=True))

    def refusals(self, key: str) -> int:
        return next((q.refusals for q in questions(self.state) if q.key == key), 0)

    def the_host_cannot_answer(self) -> None:
        key = self.chance.pick(*self.before_host)
        self.feed(AnswerUnavailable(key=key, why="no callback", refusals=self.before_host[key]))

    def the_host_cancels(self) -> None:
        self.feed(CancelRequested(now=self.now))

    def a_cancellation_is_acknowledged(self) -> None:
        self.cancels -= 1
        failed = CancelFailed(
            why="no", now=self.now, jitter=self.chance.jitter(), retry_after_s=self.chance.retry_after()
        )
        self.feed(self.chance.pick(CancelAcknowledged(now=self.now), CancelRejected(now=self.now), failed))

    # ── time, stops and starts ────────────────────────────────────────────────────────────────

    def time_passes(self) -> None:
        self.elapsed += self.chance.seconds()

    def the_clock_is_set_back(self) -> None:
        self.clock -= self.chance.seconds()
        self.last_poll = None  # how long ago it was, a later process cannot tell

    def time_passes_while_nobody_drives(self) -> None:
        self.elapsed += 0.01 + self.chance.seconds()  # a new process takes a moment to start
        if self.chance.one_in(6):
            self.the_clock_is_set_back()

    def the_drive_stops_and_is_resumed(self) -> None:
        self.let_go()
        self.saved = dump_state(self.state)  # an orderly end brings the record up to date
        self.time_passes_while_nobody_drives()
        if self.chance.one_in(4):
            self.an_answer_is_left()
        self.feed(Resumed(now=self.now, jitter=self.chance.jitter()))

    def the_process_dies(self) -> None:
        self.let_go()
        self.told.append("† the process dies")
        self.state = load_state(self.saved)
        self.time_passes_while_nobody_drives()
        if isinstance(self.state, Observing) and self.state.due_at > self.now:
            # Saved with one jitter, polled by another: within that fraction a poll may come early.
            self.last_poll = None
        if self.chance.one_in(4):
            self.an_answer_is_left()
        match self.state:
            case Observing() | Gathering():
                self.feed(Resumed(now=self.now, jitter=self.chance.jitter(), due_is_exact=False))
            case Calling():
                self.feed(CallLost())

    def everybody_behaves(self) -> None:
        """From here on the server is orderly, the host answers, and nothing gets lost: it must end."""
        for _ in range(200):
            if isinstance(self.state, Finished):
                return
            self.an_orderly_move()
        raise AssertionError("nothing was in the way of an end, and none came")

    def an_orderly_move(self) -> None:
        if isinstance(self.state, OutcomeUnknown):
            self.the_caller_allows_a_second_call()
        elif isinstance(self.state, Calling):
            self.calling = False
            self.feed(TaskCreated(task=self.orderly_snapshot(), now=self.now, jitter=1.0))
        elif not self.driven:
            if max(open_keys(self.state).values(), default=0) >= MAX_REFUSALS:
                self.an_answer_is_left()  # nobody is asked any more
            self.feed(Resumed(now=self.now, jitter=1.0))
        elif self.before_host:
            self.the_host_answers()
        elif self.updates:
            self.feed(UpdateAcknowledged(keys=tuple(self.updates.pop())))
        elif self.cancels:
            self.a_cancellation_is_acknowledged()
        elif self.polls:
            self.polls -= 1
            self.feed(Observed(task=self.orderly_snapshot(), now=self.now, jitter=1.0))
        else:
            assert self.alarm is not None
            self.the_alarm_goes_off()

    def orderly_snapshot(self) -> Task:
        """What the server still wants to know, and the end once it knows all."""
        task_id = self.state.task.task_id if isinstance(self.state, Observing) else TASK_ID
        raw: dict[str, Any] = {"taskId": task_id, "createdAt": CREATED_AT, "pollIntervalMs": 5000}
        asked = {key: self.first.get(key, {"ask": key}) for key in KEYS if key not in self.acknowledged}
        if isinstance(self.state, Observing) and self.state.cancel != "no":
            return read_task(raw | {"status": "cancelled"})
        if asked:
            return read_task(raw | {"status": "input_required", "inputRequests": asked})
        return read_task(raw | {"status": "completed", "result": {"content": []}})

    def something_comes_too_late(self) -> None:
        late = (
            Resumed(now=self.now, jitter=self.chance.jitter()),
            PollFailed(why="no", now=self.now, jitter=self.chance.jitter(), retry_after_s=1.0),
            UpdateRefused(keys=KEYS, words="m"),
            TaskMissing(message="m", now=self.now),
            AnswerReady(key="name", answer={}, now=1.0),
            ObservationRefused(error=ConnectionLostError("no"), now=self.now),
        )
        self.feed(self.chance.pick(*late))
        assert load_state(self.saved) == kept_of(self.state), "the end that was saved is another one"


def questions(state: State) -> tuple[AskedQuestion, ...]:
    return state.questions if isinstance(state, Observing | Gathering) else ()


def open_keys(state: State) -> dict[str, int]:
    """The questions without an answer, and how many answers to each were refused."""
    return {q.key: q.refusals for q in questions(state) if q.stage in ("open", "asking")}


NAMED = {"taskId", "status", "statusMessage", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
NAMED |= {"inputRequests", "result", "error", "requestState"}


def kept_of(state: State) -> State:
    """``state`` as a journal keeps it: without what the protocol does not name of a snapshot."""
    if not isinstance(state, Observing | Finished) or state.task is None:
        return state
    named = {name: value for name, value in state.task.to_wire().items() if name in NAMED}
    return replace(state, task=Task.model_validate(named))


def same_but_for_words(task: Task, other: Task) -> bool:
    """Whether nothing differs that is worth a commit."""
    names = ("status", "ttlMs", "pollIntervalMs", "inputRequests")
    one, two = task.to_wire(), other.to_wire()
    return task.task_id == other.task_id and all(one.get(n, ...) == two.get(n, ...) for n in names)


def fields_set(state: State) -> set[str]:
    task = state.task if isinstance(state, Observing | Finished) else None
    return set(task.model_fields_set) if task else set()


REACHED = {
    "Ask": {"InputAsked", "TaskCreated", "Observed", "Resumed"},
    "Finish": {"CallReturned", "CallFailed", "TaskCreated", "InputAsked", "CancelRequested", "Observed"}
    | {"TaskMissing"},
    "Forget": {"CallRefused"},
    "Park": {"AnswerUnavailable", "ObservationRefused", "Observed"},
    "Poll": {"Tick"},
    "Publish": {"TaskCreated", "Observed"},
    "Report": {"TaskCreated", "Observed"},
    "Save": {
        "AnswerReady",
        "CallBegun",
        "CallLost",
        "CallAgain",
        "PollFailed",
        "UpdateAcknowledged",
        "UpdateRefused",
    },
    "SendAnswers": {"AnswerReady", "Tick", "Resumed", "Observed"},
    "question opened again": {"Observed"},
    "SendCall": {"AnswerReady", "InputAsked", "CallAgain"},
    "SendCancel": {"TaskCreated", "CancelRequested", "Resumed", "Tick"},
    "Wake": {"TaskCreated", "Observed", "PollFailed", "UpdateFailed", "CancelFailed", "CancelAcknowledged"}
    | {"CancelRejected", "Resumed"},
}
"""Which events must have led to which actions, or chance has missed what these tests are for."""


@pytest.mark.parametrize(
    "policy",
    [PollPolicy(), PollPolicy.eager(), PollPolicy(wait_for_slot_s=10.0)],
    ids=["default", "eager", "patient"],
)
def test_no_history_breaks_a_law(policy: PollPolicy) -> None:
    tally: Counter[tuple[str, str]] = Counter()
    broken: list[tuple[list[str], Exception]] = []
    for seed in range(HISTORIES):
        history = History(seed, policy, tally)
        try:
            history.run()
        except Exception as law:
            broken.append(([f"seed {seed}", *history.told], law))
    if broken:
        told, error = min(broken, key=lambda one: len(one[0]))
        pytest.fail(
            f"{len(broken)} of {HISTORIES} histories break a law.\n" + "\n".join([*told, repr(error)])
        )
    missed = [(event, action) for action in REACHED for event in REACHED[action] if not tally[event, action]]
    assert not missed
