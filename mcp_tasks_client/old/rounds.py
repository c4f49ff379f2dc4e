"""Before there is a task: ``tools/call``, and its further rounds where the server asks first.

The part of the machine that comes before :mod:`machine`'s; the theory of operation is there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from .events import (
    Action,
    AnswerReady,
    AnswerUnavailable,
    CallAgain,
    CallBegun,
    CallFailed,
    CallLost,
    CallNoted,
    CallRefused,
    CallReturned,
    Event,
    Finish,
    Forget,
    InputAsked,
    Park,
    Resumed,
    Save,
    SendCall,
    StopAsking,
    Unanswered,
)
from .questions import answered, answers, asking, question, reopened
from .states import (
    Calling,
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


def calling(state: Calling, event: Event) -> Step:
    """A call under way."""
    match event:
        case CallNoted():
            return replace(state, memo=event.memo), (Save(),)
        case CallReturned():
            return _ended(Completed(result=event.result))
        case CallFailed():
            return _ended(Failed(code=event.code, message=event.message, data=event.data))
        case CallRefused():
            if state.gathered is not None and not event.for_good:
                return state.gathered, (Save(),)
            # That one came to nothing takes nothing back of what an earlier one may have done.
            return (OutcomeUnknown(), (Save(),)) if state.again else (state, (Forget(),))
        case CallLost():
            return OutcomeUnknown(memo=state.memo), (Save(),)
        case InputAsked():
            return _asked_first(state, event)
        case AnswerReady() | AnswerUnavailable():
            return state, ()  # of a prompt that was withdrawn and could not be stopped
        case _:
            raise ImpossibleEventError(state, event)


def _asked_first(state: Calling, event: InputAsked) -> Step:
    if state.round == MAX_ROUNDS:
        return _ended(Violated(message=f"The server put the call off {MAX_ROUNDS} times and never began it."))
    questions, asks = asking(
        tuple(question(key, request) for key, request in event.requests.items()), event.requests
    )
    gathering = Gathering(
        round=state.round, request_state=event.request_state, questions=questions, again=state.again
    )
    return gathering, (Save(), *asks, *_next_round(gathering))


def gathering(state: Gathering, event: Event) -> Step:
    """Answers for the next round are being collected."""
    match event:
        case AnswerReady():
            questions = answered(state.questions, event.key, event.answer)
            if questions == state.questions:
                return state, ()  # not the first answer, so there is nothing to send for it either
            state = replace(state, questions=questions)
            return state, (Save(), *_next_round(state))
        case AnswerUnavailable():
            return unanswered(state, event)
        case CallBegun():
            # From here on it is a call again: were its reply lost, the outcome would be unknown.
            return Calling(round=state.round + 1, gathered=state, again=state.again), (Save(),)
        case Resumed():
            questions = reopened(state.questions)
            questions, asks = asking(questions, [q.key for q in questions])
            state = replace(state, questions=questions)
            return state, (Save(), *asks, *_next_round(state))
        case _:
            raise ImpossibleEventError(state, event)


def _next_round(state: Gathering) -> tuple[Action, ...]:
    if not state.questions:
        # The server only handed out state; it is given a moment before it is asked again.
        return (SendCall(request_state=state.request_state, after_s=_STATE_ONLY_DELAY_S),)
    ready = answers(state.questions, [q.key for q in state.questions])
    return (SendCall(ready, state.request_state),) if ready else ()


def outcome_unknown(state: OutcomeUnknown, event: Event) -> Step:
    """A call whose reply is lost."""
    match event:
        case CallAgain():
            return Calling(again=True), (Save(), SendCall())
        case CallReturned() | CallFailed() | InputAsked():
            return calling(Calling(again=True), event)
        case CallLost() | CallRefused():
            return state, ()
        case AnswerReady() | AnswerUnavailable():
            return state, ()  # likewise late
        case _:
            raise ImpossibleEventError(state, event)


def unanswered(state: StateT, event: AnswerUnavailable) -> tuple[StateT, tuple[Action, ...]]:
    """A question that is still wanted has no answer: the drive is parked."""
    parked = Park(Unanswered((event.key,), event.why, event.cause))
    return replace(state, questions=reopened(state.questions)), (StopAsking(), parked)


def _ended(outcome: Outcome) -> Step:
    return Finished(outcome=outcome), (Save(), Finish(outcome))
