"""The life of one tool call, from ``tools/call`` to its end: states, events, actions.

Theory of operation
===================

One call is one machine. ``advance(state, event, policy)`` says what a state becomes when
something happened and what has to be done about it; nothing here does anything itself. Events
carry the time and the jitter, so a history can be replayed exactly.

::

    Calling ──► Finished            a plain result, or a JSON-RPC error
       │  ▲
       │  └──── Gathering           multi round-trip: the server asks first, then we call again
       ├──────► OutcomeUnknown      the reply never came (keyed calls only)
       └──────► Observing ──► Finished

``Observing`` is where a task spends its life. Three small lives run inside it side by side, and
none of them ever waits for another:

- the *pace*: ``due_at`` is when the next ``tasks/get`` may go; every reply and every failure
  sets it anew and emits ``Wake``; ``Tick`` is the alarm going off;
- the *questions*: ``open → answered → sending → acknowledged``, one per key for the life of the
  task. A refused answer is ``rejected``: not an error yet, since the task may have moved on; it
  becomes one when the next snapshot still asks;
- the *cancellation*: ``no → requested → acknowledged``. It silences questions, not polling.

Rules that hold for every step, and that the tests check on every step of every history:

1. ``Save`` stands before every action that relies on what changed. An action before its
   ``Save`` could be forgotten by a crash and then be repeated differently.
2. A step whose outcome is not worth keeping (an unchanged poll, a failed one) has no ``Save``.
3. ``Ask`` is emitted once per key, and again only by ``Resumed``, while there is no answer.
4. ``Finish`` and ``Park`` end a drive. Finished is forever; parked is until ``Resumed``.

Events that cannot happen in a state raise :class:`ImpossibleEventError`: our mistake, never theirs.
What the *server* does against the protocol is reported once, by ``Report``, and survived.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias, assert_never

from .events import (
    Action,
    AnswerReady,
    AnswerUnavailable,
    CallAgain,
    CallFailed,
    CallLost,
    CallRefused,
    CallReturned,
    CancelAcknowledged,
    CancelRequested,
    Event,
    Finish,
    Forget,
    InputAsked,
    ObservationRefused,
    Observed,
    Park,
    Poll,
    PollFailed,
    Publish,
    Report,
    Resumed,
    Save,
    SendAnswers,
    SendCall,
    SendCancel,
    StopAsking,
    TaskCreated,
    TaskMissing,
    Tick,
    Unanswered,
    UpdateAcknowledged,
    UpdateFailed,
    UpdateRejected,
    Wake,
)
from .policy import PollPolicy, backoff_delay, early_look, poll_delay, ttl_passed
from .questions import (
    answered,
    answers,
    asks,
    back,
    closed,
    new_questions,
    question,
    rejected,
    restaged,
    some,
    unsent,
)
from .states import (
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
    Question,
    State,
    Violated,
)
from .wire import Task, read_rpc_error

MAX_ROUNDS: Final = 32
"""Rounds of questions before a task or a result, at most; a server that asks forever is stopped."""

_STATE_ONLY_DELAY_S: Final = 0.25
"""Seconds before the next round when the server asked nothing and only handed out state."""

Step: TypeAlias = tuple[State, tuple[Action, ...]]


class ImpossibleEventError(AssertionError):
    """An event arrived in a state where it cannot happen: a defect of this package."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{type(event).__name__} cannot happen in {type(state).__name__}")


def advance(state: State, event: Event, policy: PollPolicy) -> Step:
    """The next state, and what to do, in order.

    Raises:
        ImpossibleEventError: The event cannot happen in this state.
    """
    match state:
        case Calling():
            return _calling(state, event, policy)
        case Gathering():
            return _gathering(state, event)
        case OutcomeUnknown():
            return _outcome_unknown(state, event)
        case Observing():
            return _observing(state, event, policy)
        case Finished():
            return _finished(state, event)
        case _:
            assert_never(state)


# ── before the task ───────────────────────────────────────────────────────────────────────────


def _calling(state: Calling, event: Event, policy: PollPolicy) -> Step:
    match event:
        case CallReturned():
            return _finish(Completed(result=event.result))
        case CallFailed():
            return _finish(Failed(code=event.code, message=event.message, data=event.data))
        case CallRefused():
            return state, (Forget(),)
        case CallLost():
            return OutcomeUnknown(), (Save(),)
        case InputAsked():
            return _asked_first(state, event)
        case TaskCreated():
            return _created(event, policy)
        case _:
            raise ImpossibleEventError(state, event)


def _asked_first(state: Calling, event: InputAsked) -> Step:
    if state.round == MAX_ROUNDS:
        return _finish(Violated(message=f"The server asked for input {MAX_ROUNDS} times and never began."))
    if not event.requests:
        later = SendCall(request_state=event.request_state, after_s=_STATE_ONLY_DELAY_S)
        return Calling(round=state.round + 1), (Save(), later)
    questions = tuple(question(key, request) for key, request in event.requests.items())
    gathering = Gathering(round=state.round, request_state=event.request_state, questions=questions)
    return gathering, (Save(), *asks(questions))


def _gathering(state: Gathering, event: Event) -> Step:
    match event:
        case AnswerReady():
            questions = answered(state.questions, event.key, event.answer)
            if some(questions, "open"):
                return replace(state, questions=questions), (Save(),)
            # From here on it is a call again: were its reply lost, the outcome would be unknown,
            # and a state that still held the answers would invite to send them a second time.
            send = SendCall(answers(questions), state.request_state)
            return Calling(round=state.round + 1), (Save(), send)
        case AnswerUnavailable():
            return state, (StopAsking(), Park(Unanswered((event.key,), event.why, event.cause)))
        case Resumed():
            return state, asks(state.questions)
        case _:
            raise ImpossibleEventError(state, event)


def _outcome_unknown(state: OutcomeUnknown, event: Event) -> Step:
    match event:
        case CallAgain():
            return Calling(), (Save(), SendCall())
        case _:
            raise ImpossibleEventError(state, event)


def _created(event: TaskCreated, policy: PollPolicy) -> Step:
    state = Observing(task=event.task, received_at=event.now, due_at=event.now)
    if event.attached:
        return state, (Save(), Wake(0.0))
    seed = Observed(task=event.task, now=event.now, jitter=event.jitter)
    return _observe(state, seed, policy, seed=True)


# ── while there is a task ─────────────────────────────────────────────────────────────────────


def _observing(state: Observing, event: Event, policy: PollPolicy) -> Step:
    match event:
        case Tick():
            state, send = _send(state)
            return state, (*send, Poll())
        case Observed():
            return _observe(state, event, policy)
        case PollFailed():
            return _poll_failed(state, event, policy)
        case TaskMissing():
            expired = ttl_passed(state.received_at, state.ttl_ms, event.now, policy)
            return _finish(Gone(why="expired" if expired else "not_found", message=event.message), state)
        case ObservationRefused():
            state = replace(state, questions=unsent(state.questions, "sending"))
            return state, (StopAsking(), Park(event.error))
        case AnswerReady():
            state, send = _send(replace(state, questions=answered(state.questions, event.key, event.answer)))
            return state, (Save(), *send)
        case AnswerUnavailable():
            return state, (StopAsking(), Park(Unanswered((event.key,), event.why, event.cause)))
        case UpdateAcknowledged():
            return replace(state, questions=restaged(state.questions, event.keys, closed)), (Save(),)
        case UpdateFailed():
            return _update_failed(state, event, policy)
        case UpdateRejected():
            refused = restaged(state.questions, event.keys, rejected(event.message))
            return replace(state, questions=refused), (Save(),)
        case CancelRequested():
            return replace(state, cancel="requested"), (Save(), StopAsking(), SendCancel())
        case CancelAcknowledged():
            return replace(state, cancel="acknowledged"), (Save(),)
        case Resumed():
            return _resume(state, event, policy)
        case _:
            raise ImpossibleEventError(state, event)


def _finished(state: Finished, event: Event) -> Step:
    match event:
        case CallReturned() | CallFailed() | CallRefused() | CallLost() | CallAgain():
            raise ImpossibleEventError(state, event)
        case InputAsked() | TaskCreated():
            raise ImpossibleEventError(state, event)
        case _:
            # Whatever was still under way when the task ended has nothing left to change.
            return state, ()


def _observe(state: Observing, event: Observed, policy: PollPolicy, *, seed: bool = False) -> Step:
    """What a snapshot means. A violation is reported and survived; what can be used of it is used.

    The snapshot of a creation (``seed``) is always news. It may be terminal without saying how:
    one poll is then still needed.
    """
    seen, task = state.task, event.task
    if task.task_id != seen.task_id:
        return _again(state, event, policy, {"another_task_id": "tasks/get answered with another taskId"})
    reports: dict[str, str] = {}
    if seen.terminal and not task.terminal:
        reports["left_terminal_status"] = f"the status went from {seen.status} back to {task.status}"
    if None not in (seen.created_at, task.created_at) and seen.created_at != task.created_at:
        reports["created_at_changed"] = f"createdAt went from {seen.created_at} to {task.created_at}"
    if not task.known_status:
        reports[f"unknown_status:{task.status}"] = f"{task.status!r} is none of the specification's statuses"

    changed = seed or not task.same_as(seen)
    state = replace(
        state,
        task=task,
        poll_interval_ms=task.poll_interval_ms or state.poll_interval_ms,
        ttl_ms=task.ttl_ms if "ttl_ms" in task.model_fields_set else state.ttl_ms,
        request_state=task.request_state if task.request_state is not None else state.request_state,
        unchanged=0 if changed else state.unchanged + 1,
        failures=0,
    )
    outcome = _outcome(task, seed=seed)
    if outcome is not None:
        return _finish(outcome, state, _reported(state, reports)[1])

    asked: tuple[Question, ...] = ()
    if task.status == "input_required":
        if task.input_requests is None and not seed:
            reports["no_input_requests"] = "input_required came without inputRequests"
        asked, reused = new_questions(state.questions, task.input_requests or {})
        # A host that gave the task up is not bothered with its questions any more.
        asked = asked if state.cancel == "no" else ()
        reports |= reused
        state = replace(state, questions=state.questions + asked)
    refused = [q for q in state.questions if q.stage == "rejected" and q.key in (task.input_requests or {})]

    state, actions = _again(state, event, policy, reports)
    if changed:
        actions = (Save(), *actions, Publish(task))
    if refused:
        # The refusal was no accident of timing: the task still waits for the same question.
        why = f"the server rejected the answer: {refused[0].refusal}"
        return state, (*actions, StopAsking(), Park(Unanswered(tuple(q.key for q in refused), why)))
    return state, (*actions, *asks(asked))


def _outcome(task: Task, *, seed: bool) -> Outcome | None:
    """How the task ended, or ``None``: it has not, or a seed does not say how and a poll will."""
    match task.status:
        case "completed" if task.result is not None:
            return Completed(result=task.result)
        case "completed" if not seed:
            return Violated(message="The task is completed, but the reply holds no result.")
        case "failed" if task.error is not None or not seed:
            error = read_rpc_error(task.error)
            return Failed(
                code=error.code,
                message=error.message or task.status_message or "",
                data=error.data,
                status_message=task.status_message,
            )
        case "cancelled":
            return Cancelled(status_message=task.status_message)
        case _:
            return None


def _again(
    state: Observing, event: Observed, policy: PollPolicy, reports: dict[str, str]
) -> tuple[Observing, tuple[Action, ...]]:
    """Set the next poll, at the server's pace."""
    state, reported = _reported(state, reports)
    look = early_look(state.poll_interval_ms, state.looks, policy)
    if look is not None:
        state = replace(state, looks=state.looks + 1)
    wait = look or poll_delay(state.poll_interval_ms, state.unchanged, policy, event.jitter)
    return _due(state, event.now, wait), (*reported, Wake(wait))


def _poll_failed(state: Observing, event: PollFailed, policy: PollPolicy) -> Step:
    failures = state.failures + 1
    wait = backoff_delay(state.poll_interval_ms, failures, event.retry_after_s, policy, event.jitter)
    # A server in trouble gets no early looks any more.
    state = _due(replace(state, failures=failures, looks=policy.early_looks), event.now, wait)
    # Back-off can start over after a crash; what the server asked for cannot.
    saved = (Save(),) if event.retry_after_s is not None else ()
    return state, (*saved, Wake(wait))


def _update_failed(state: Observing, event: UpdateFailed, policy: PollPolicy) -> Step:
    failures = state.failures + 1
    wait = backoff_delay(state.poll_interval_ms, failures, event.retry_after_s, policy, event.jitter)
    # The next tick carries the answers again. A wish to be left alone holds for polls as well.
    wait = max(wait, state.due_at - event.now)
    again = restaged(state.questions, event.keys, back)
    state = _due(replace(state, questions=again, failures=failures), event.now, wait)
    return state, (Wake(wait),)


def _resume(state: Observing, event: Resumed, policy: PollPolicy) -> Step:
    """Take up a drive: ask what is open, send what is answered, keep the pace that was set."""
    # A rejected answer goes again as well: it never changes, but the server may have.
    state = replace(state, questions=unsent(state.questions, "sending", "rejected"), failures=0)
    # A clock that was set back must not park the task for longer than was ever asked for.
    wait = min(state.due_at - event.now, state.wait_s)
    if wait <= 0:
        interval = poll_delay(state.poll_interval_ms, 0, policy, event.jitter)
        spread = policy.jitter * event.jitter * min(interval, 1.0)
        wait = spread if event.due_is_exact else interval
    state = _due(state, event.now, wait)
    if state.cancel != "no":
        cancel = (SendCancel(),) if state.cancel == "requested" else ()
        return state, (*cancel, Wake(wait))
    state, send = _send(state)
    return state, (*asks(state.questions), *send, Wake(wait))


def _due(state: Observing, now: float, wait_s: float) -> Observing:
    return replace(state, due_at=now + wait_s, wait_s=wait_s)


def _finish(
    outcome: Outcome, state: Observing | None = None, reports: tuple[Report, ...] = ()
) -> tuple[Finished, tuple[Action, ...]]:
    if state is None:
        return Finished(outcome=outcome), (Save(), Finish(outcome))
    # The payload is in the outcome; a second copy of a large result would be written with it.
    task = state.task.model_copy(update={"result": None, "error": None, "input_requests": None})
    published = (Publish(state.task),) if state.task.terminal else ()
    return Finished(outcome=outcome, task=task), (Save(), StopAsking(), *reports, *published, Finish(outcome))


def _reported(state: Observing, reports: dict[str, str]) -> tuple[Observing, tuple[Report, ...]]:
    fresh = {kind: text for kind, text in reports.items() if kind not in state.reported}
    return replace(state, reported=(*state.reported, *fresh)), tuple(map(Report, fresh.values()))


def _send(state: Observing) -> tuple[Observing, tuple[Action, ...]]:
    """Send what is answered, once nothing is open: a server need not accept a partial set."""
    ready = answers(state.questions)
    if state.cancel != "no" or some(state.questions, "open") or not ready:
        return state, ()
    sending = tuple(replace(q, stage="sending") if q.key in ready else q for q in state.questions)
    return replace(state, questions=sending), (SendAnswers(ready),)
