"""Before there is a task: ``tools/call``, and its further rounds.

A call that certainly did not run goes again from ``Gathering``, for one of three reasons: the server asks
first (``input_required``), it wants URLs to be visited first (``-32042``), or it has no slot (HTTP 429).
Answers to the first go with the call. A visit to a URL has no answer that could be sent: either it is
accepted, or the call parks.

The theory of operation is in :mod:`mcp_tasks_client.machine.task`.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar, assert_never

from ..policy import PollPolicy, backoff_delay, growing_delay
from ..protocol.replies import is_url_key
from . import actions as act
from . import events as ev
from .input_requests import (
    TOLD_AT_MOST,
    Questions,
    answer,
    ask_open,
    find_excess,
    find_new,
    is_answered,
    reopen,
)
from .replacing import replace
from .states import (
    Calling,
    Cancelled,
    Completed,
    Failed,
    Finished,
    Gathering,
    LastFailure,
    Observing,
    Outcome,
    OutcomeUnknown,
    State,
    Violated,
)

__all__ = [
    "MAX_ROUNDS",
    "ImpossibleEventError",
    "Step",
    "advance_before_task",
    "count_failure",
    "park_unanswered",
]

MAX_ROUNDS: Final = 32
"""Rounds of questions before a task or a result, at most; a server that asks forever is stopped."""

_STATE_ONLY_DELAY_S: Final = 0.25
"""Seconds before the next round when the server asked nothing and only handed out state."""

_LONGEST_VISIT_S: Final = 60.0
"""Seconds before a call goes again for which URLs were visited, at most. They grow from time to time."""

Step: TypeAlias = tuple[State, tuple[act.Action, ...]]
StateT = TypeVar("StateT", Gathering, Observing)


class ImpossibleEventError(AssertionError):
    """An event arrived in a state where it cannot happen: a defect of this package."""

    def __init__(self, state: State, event: ev.Event) -> None:
        super().__init__(f"{type(event).__name__} cannot happen in {type(state).__name__}")


def advance_before_task(
    state: Calling | Gathering | OutcomeUnknown, event: ev.Event, policy: PollPolicy
) -> Step:
    """The next state of a call that has no task yet, and the actions, in order.

    Raises:
        ImpossibleEventError: The event cannot happen in this state.
    """
    match state:
        case Calling():
            return _calling(state, event, policy)
        case Gathering():
            return _gathering(state, event)
        case OutcomeUnknown():
            return _outcome_unknown(state, event, policy)
        case _:
            assert_never(state)


def _calling(state: Calling, event: ev.Event, policy: PollPolicy) -> Step:
    match event:
        case ev.CallReturned():
            return _end(Completed(result=event.result))
        case ev.CallFailed():
            return _end(Failed(code=event.code, message=event.message, data=event.data))
        case ev.CallRefused() if state.cancel_wanted:
            return _give_up(state)
        case ev.CallRefused():
            before = state.gathered or _begun_anew(state)
            waiting = _wait_for_slot(before, event, policy) if event.limited else None
            if waiting is not None:
                return waiting, (act.Save(), *_next_round(waiting, event.now))
            if (before.questions or before.request_state is not None) and not event.for_good:
                return replace(before, failure=None, waited_s=0.0), (act.Save(),)
            # The refusal of this request says nothing about an earlier one, whose reply was lost.
            return (OutcomeUnknown(), (act.Save(),)) if state.again else (state, (act.Forget(),))
        case ev.CallLost():
            return OutcomeUnknown(cancel_wanted=state.cancel_wanted), (act.Save(),)
        case ev.InputAsked():
            return _gather(state, event)
        case ev.CancelRequested():
            return replace(state, cancel_wanted=True), (act.Save(),)
        case ev.AnswerReady() | ev.AnswerUnavailable():
            return state, ()  # of a prompt that was withdrawn and could not be stopped
        case _:
            raise ImpossibleEventError(state, event)


def _gather(state: Calling, event: ev.InputAsked) -> Step:
    """The server asks before it begins."""
    if state.cancel_wanted:
        return _give_up(state)
    wants_visits = any(map(is_url_key, event.requests))
    if state.round == MAX_ROUNDS and state.gathered is not None and wants_visits:
        why = f"the server wants URLs to be visited, though they were, {MAX_ROUNDS} times"
        return state.gathered, (act.Save(), act.Park(act.Unanswered(tuple(event.requests), why)))
    if state.round == MAX_ROUNDS:
        return _end(Violated(message=f"The server put the call off {MAX_ROUNDS} times and never began it."))
    excess = find_excess((), event.requests)
    if excess is not None:
        return _end(Violated(message=f"The call was not begun: {excess}."))
    questions, asks = ask_open(find_new((), event.requests, event.now), event.requests)
    gathering = replace(state.gathered or _begun_anew(state), round=state.round + 1, failure=None, due_at=0.0)
    if wants_visits:
        # The same call goes again, with the same answers and state.
        gathering = replace(gathering, questions=(*_without_urls(gathering.questions), *questions))
    else:
        gathering = replace(gathering, questions=questions, request_state=event.request_state)
    return gathering, (act.Save(), *asks, *_next_round(gathering))


def _begun_anew(state: Calling) -> Gathering:
    """From where the first round is sent again."""
    return Gathering(round=state.round, request_state=None, questions=(), again=state.again)


def _wait_for_slot(state: Gathering, event: ev.CallRefused, policy: PollPolicy) -> Gathering | None:
    """The call goes again when the server may have a slot; ``None`` if that takes too long."""
    failure = count_failure(state.failure, event.why, event.now)
    wait_s = backoff_delay(None, failure.count, event.retry_after_s, policy, event.jitter)
    waited_s = state.waited_s + wait_s
    if waited_s > policy.wait_for_slot_s:
        return None
    return replace(state, failure=failure, waited_s=waited_s, due_at=event.now + wait_s)


def count_failure(last: LastFailure | None, why: str, now: float) -> LastFailure:
    """One more request has failed, since one last got through."""
    last = last or LastFailure(message="", count=0, since=now)
    return replace(last, message=why[:TOLD_AT_MOST], count=last.count + 1)


def _gathering(state: Gathering, event: ev.Event) -> Step:
    match event:
        case ev.AnswerReady():
            questions = answer(state.questions, event.key, event.answer, event.now)
            if questions == state.questions:
                return state, ()  # not the first answer, so there is nothing to send for it either
            action = event.answer.get("action")
            if is_url_key(event.key) and action != "accept":
                why = f"a URL has to be visited before the call, and the answer was {action!r}"
                return park_unanswered(state, ev.AnswerUnavailable(key=event.key, why=why, declined=True))
            state = replace(state, questions=questions)
            return state, (act.Save(), *_next_round(state))
        case ev.AnswerUnavailable() if is_answered(state.questions, event.key):
            return state, ()  # it has an answer
        case ev.AnswerUnavailable():
            return park_unanswered(state, event)
        case ev.CallBegun():
            # From here on it is a call again: were its reply lost, the outcome would be unknown.
            return Calling(round=state.round, gathered=state, again=state.again), (act.Save(),)
        case ev.CancelRequested():
            after, actions = _give_up(state)
            return after, (act.Save(), act.StopAsking(), *(a for a in actions if not isinstance(a, act.Save)))
        case ev.Resumed():
            questions = _without_urls(reopen(state.questions))
            if len(questions) < len(state.questions):
                # They may have been visited meanwhile, or be out of date. The server tells anew.
                state = replace(state, round=0)
            questions, asks = ask_open(questions, [q.key for q in questions])
            state = replace(state, questions=questions)
            return state, (act.Save(), *asks, *_next_round(state, event.now))
        case _:
            raise ImpossibleEventError(state, event)


def _next_round(state: Gathering, now: float = 0.0) -> tuple[act.Action, ...]:
    if any(question.unanswered for question in state.questions):
        return ()
    answers = {q.key: q.answer or {} for q in _without_urls(state.questions)}
    # A clock that was set back makes no wait longer than all of them together. A server that only handed out
    # state is given a moment.
    slot_s = max(0.0, min(state.due_at - now, state.waited_s))
    if state.round > 1 and len(answers) < len(state.questions):
        # A person may have agreed to a visit that takes a while.
        slot_s = growing_delay(_STATE_ONLY_DELAY_S, state.round - 1, _LONGEST_VISIT_S)
    after_s = slot_s if state.questions else max(slot_s, _STATE_ONLY_DELAY_S)
    return (act.SendCall(answers, state.request_state, after_s),)


def _without_urls(questions: Questions) -> Questions:
    return tuple(question for question in questions if not is_url_key(question.key))


def _outcome_unknown(state: OutcomeUnknown, event: ev.Event, policy: PollPolicy) -> Step:
    match event:
        case ev.CallAgain():
            return Calling(again=True), (act.Save(), act.SendCall())
        case ev.CallReturned() | ev.CallFailed() | ev.InputAsked():
            # A reply that came, or could be committed, only now.
            return _calling(Calling(again=True, cancel_wanted=state.cancel_wanted), event, policy)
        case ev.CancelRequested():
            return replace(state, cancel_wanted=True), (act.Save(),)
        case ev.CallLost() | ev.CallRefused():
            return state, ()
        case ev.AnswerReady() | ev.AnswerUnavailable() | ev.Resumed():
            return state, ()  # likewise late: the call was cancelled just before
        case _:
            raise ImpossibleEventError(state, event)


def park_unanswered(state: StateT, event: ev.AnswerUnavailable) -> tuple[StateT, tuple[act.Action, ...]]:
    """A question that the server waits for has no answer: the call is parked."""
    parked = act.Park(act.Unanswered((event.key,), event.why, event.cause, event.declined))
    return replace(state, questions=reopen(state.questions)), (act.StopAsking(), parked)


def _give_up(state: Calling | Gathering) -> Step:
    """The host wants the call cancelled, and it has not begun: nothing runs, unless an earlier send did."""
    return (OutcomeUnknown(cancel_wanted=True), (act.Save(),)) if state.again else _end(Cancelled())


def _end(outcome: Outcome) -> Step:
    return Finished(outcome=outcome), (act.Save(), act.Finish())
