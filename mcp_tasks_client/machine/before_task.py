"""Before there is a task: ``tools/call``, and its further rounds where the server asks first.

The theory of operation is in :mod:`mcp_tasks_client.machine.task`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias, TypeVar, assert_never

from .actions import Action, Finish, Forget, Park, Save, SendCall, StopAsking, Unanswered
from .events import (
    AnswerReady,
    AnswerUnavailable,
    CallAgain,
    CallBegun,
    CallFailed,
    CallLost,
    CallRefused,
    CallReturned,
    CancelRequested,
    Event,
    InputAsked,
    Resumed,
)
from .input_requests import answer, ask_open, collect_answers, find_excess, find_new, reopen
from .states import (
    Calling,
    Cancelled,
    Completed,
    Failed,
    Finished,
    Gathering,
    Observing,
    Outcome,
    OutcomeUnknown,
    State,
    Violated,
)

__all__ = ["MAX_ROUNDS", "ImpossibleEventError", "Step", "advance_before_task", "park_unanswered"]

MAX_ROUNDS: Final = 32
"""Rounds of questions before a task or a result, at most; a server that asks forever is stopped."""

_STATE_ONLY_DELAY_S: Final = 0.25
"""Seconds before the next round when the server asked nothing and only handed out state."""

Step: TypeAlias = tuple[State, tuple[Action, ...]]
StateT = TypeVar("StateT", Gathering, Observing)


class ImpossibleEventError(AssertionError):
    """An event arrived in a state where it cannot happen: a defect of this package."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{type(event).__name__} cannot happen in {type(state).__name__}")


def advance_before_task(state: Calling | Gathering | OutcomeUnknown, event: Event) -> Step:
    """The next state of a call that has no task yet, and what to do, in order.

    Raises:
        ImpossibleEventError: The event cannot happen in this state.
    """
    match state:
        case Calling():
            return _calling(state, event)
        case Gathering():
            return _gathering(state, event)
        case OutcomeUnknown():
            return _outcome_unknown(state, event)
        case _:
            assert_never(state)


def _calling(state: Calling, event: Event) -> Step:
    match event:
        case CallReturned():
            return _end(Completed(result=event.result))
        case CallFailed():
            return _end(Failed(code=event.code, message=event.message, data=event.data))
        case CallRefused() if state.cancel_wanted:
            return _give_up(state)
        case CallRefused():
            if state.gathered is not None and not event.for_good:
                return state.gathered, (Save(),)
            # The refusal of this request says nothing about an earlier one, whose reply was lost.
            return (OutcomeUnknown(), (Save(),)) if state.again else (state, (Forget(),))
        case CallLost():
            return OutcomeUnknown(cancel_wanted=state.cancel_wanted), (Save(),)
        case InputAsked():
            return _gather(state, event)
        case CancelRequested():
            return replace(state, cancel_wanted=True), (Save(),)
        case AnswerReady() | AnswerUnavailable():
            return state, ()  # of a prompt that was withdrawn and could not be stopped
        case _:
            raise ImpossibleEventError(state, event)


def _gather(state: Calling, event: InputAsked) -> Step:
    """The server asks before it begins."""
    if state.cancel_wanted:
        return _give_up(state)
    if state.round == MAX_ROUNDS:
        return _end(Violated(message=f"The server put the call off {MAX_ROUNDS} times and never began it."))
    excess = find_excess((), event.requests)
    if excess is not None:
        return _end(Violated(message=f"The call was not begun: {excess}."))
    questions, asks = ask_open(find_new((), event.requests), event.requests)
    gathering = Gathering(
        round=state.round, request_state=event.request_state, questions=questions, again=state.again
    )
    return gathering, (Save(), *asks, *_next_round(gathering))


def _gathering(state: Gathering, event: Event) -> Step:
    match event:
        case AnswerReady():
            questions = answer(state.questions, event.key, event.answer)
            if questions == state.questions:
                return state, ()  # not the first answer, so there is nothing to send for it either
            state = replace(state, questions=questions)
            return state, (Save(), *_next_round(state))
        case AnswerUnavailable():
            return park_unanswered(state, event)
        case CallBegun():
            # From here on it is a call again: were its reply lost, the outcome would be unknown.
            return Calling(round=state.round + 1, gathered=state, again=state.again), (Save(),)
        case CancelRequested():
            after, actions = _give_up(state)
            return after, (Save(), StopAsking(), *(a for a in actions if not isinstance(a, Save)))
        case Resumed():
            questions = reopen(state.questions)
            questions, asks = ask_open(questions, [q.key for q in questions])
            state = replace(state, questions=questions)
            return state, (Save(), *asks, *_next_round(state))
        case _:
            raise ImpossibleEventError(state, event)


def _next_round(state: Gathering) -> tuple[Action, ...]:
    if not state.questions:
        # The server only handed out state; it is given a moment before it is asked again.
        return (SendCall(request_state=state.request_state, after_s=_STATE_ONLY_DELAY_S),)
    ready = collect_answers(state.questions, [q.key for q in state.questions])
    return (SendCall(ready, state.request_state),) if ready else ()


def _outcome_unknown(state: OutcomeUnknown, event: Event) -> Step:
    match event:
        case CallAgain():
            return Calling(again=True), (Save(), SendCall())
        case CallReturned() | CallFailed() | InputAsked():
            # A reply that came, or could be committed, only now.
            return _calling(Calling(again=True, cancel_wanted=state.cancel_wanted), event)
        case CancelRequested():
            return replace(state, cancel_wanted=True), (Save(),)
        case CallLost() | CallRefused():
            return state, ()
        case AnswerReady() | AnswerUnavailable():
            return state, ()  # likewise late
        case _:
            raise ImpossibleEventError(state, event)


def park_unanswered(state: StateT, event: AnswerUnavailable) -> tuple[StateT, tuple[Action, ...]]:
    """A question that the server waits for has no answer: the call is parked."""
    parked = Park(Unanswered((event.key,), event.why, event.cause))
    return replace(state, questions=reopen(state.questions)), (StopAsking(), parked)


def _give_up(state: Calling | Gathering) -> Step:
    """The host wants the call cancelled, and it has not begun: nothing runs, unless an earlier send did."""
    return (OutcomeUnknown(cancel_wanted=True), (Save(),)) if state.again else _end(Cancelled())


def _end(outcome: Outcome) -> Step:
    return Finished(outcome=outcome), (Save(), Finish())
