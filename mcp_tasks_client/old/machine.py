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
  sets it anew and emits ``Wake``; ``Tick`` is the alarm going off. Before ``quiet_until``, which a
  ``Retry-After`` sets, nothing is sent at all;
- the *questions*: ``open → asking → answered → sending → acknowledged``, one per key for the life
  of the task. Answers go together, or each by itself where the server takes them so, and only to
  what the latest snapshot asks. A refused answer is ``rejected``: not an error yet, since the task
  may have moved on; it becomes one when a snapshot that was asked for after the refusal still asks;
- the *cancellation*: ``no → requested → sending → acknowledged``. It silences questions, not
  polling; what did not get through is said again with the next poll.

Rules that hold for every step, and that the tests check on every step of every history:

1. ``Save`` stands before every action that relies on what changed. An action before its
   ``Save`` could be forgotten by a crash and then be repeated differently.
2. A step whose outcome is not worth keeping (an unchanged poll, a failed one) has no ``Save``.
3. ``Ask`` is emitted once per key, and again only after ``Resumed``, while there is no answer.
4. ``Finish`` and ``Park`` end a drive. Finished is forever; parked is until ``Resumed``.

Events that cannot happen in a state raise :class:`ImpossibleEventError`: our mistake, never theirs.
What the *server* does against the protocol is reported once, by ``Report``, and survived.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

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
    CancelAcknowledged,
    CancelFailed,
    CancelRequested,
    Event,
    InputAsked,
    Notified,
    ObservationRefused,
    Observed,
    Park,
    Poll,
    PollCut,
    PollFailed,
    Publish,
    Report,
    Resumed,
    Save,
    SendAnswers,
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
from .outcomes import finish, outcome_of
from .pace import after_cut, after_failure, after_poll, after_reply, after_restart, later, quiet
from .policy import PollPolicy, ttl_passed
from .questions import (
    answered,
    answers,
    asking,
    back,
    closed,
    disputed,
    new_questions,
    rejected,
    reopened,
    sending,
    sent,
    swapped,
    undelivered,
    unsent,
)
from .rounds import MAX_ROUNDS, ImpossibleEventError, Step, calling, gathering, outcome_unknown, unanswered
from .states import (
    Calling,
    Finished,
    Gathering,
    Gone,
    Observing,
    OutcomeUnknown,
    Question,
    State,
)
from .wire import JSONObject, Task

__all__ = ["MAX_ROUNDS", "ImpossibleEventError", "advance"]


def advance(state: State, event: Event, policy: PollPolicy) -> Step:
    """The next state, and what to do, in order.

    Raises:
        ImpossibleEventError: The event cannot happen in this state.
    """
    match state:
        case Calling():
            return _created(event, policy) if isinstance(event, TaskCreated) else calling(state, event)
        case Gathering():
            return gathering(state, event)
        case OutcomeUnknown():
            if isinstance(event, TaskCreated):  # a reply that could not be committed for too long
                return _created(event, policy)
            return outcome_unknown(state, event)
        case Observing():
            return _observing(state, event, policy)
        case Finished():
            return _finished(state, event)
        case _:
            assert_never(state)


# ── while there is a task ─────────────────────────────────────────────────────────────────────


def _created(event: TaskCreated, policy: PollPolicy) -> Step:
    state = Observing(task=event.task, received_at=event.now, due_at=event.now)
    if event.attached:
        return state, (Save(), Wake(0.0))
    seed = Observed(task=event.task, now=event.now, jitter=event.jitter)
    return _observe(state, seed, policy, seed=True)


def _observing(state: Observing, event: Event, policy: PollPolicy) -> Step:
    match event:
        case Tick() if event.due_at not in (None, state.due_at):
            return state, ()  # set while something was being committed, which has set another alarm
        case Tick():
            # Due again only after a whole interval, should we be stopped before the reply.
            state = after_poll(state, event.now, event.jitter, policy)
            if state.questions:
                state = replace(state, questions=disputed(unsent(state.questions, "unsent")))
            state, send = _send(state, event.now)
            state, cancel = _send_cancel(state, event.now)
            return state, (*cancel, *send, Poll())
        case Observed():
            return _observe(state, event, policy)
        case Notified():
            return _notified(state, event)
        case PollFailed():
            return _failed(state, event, policy)
        case PollCut():
            return after_cut(state, event.now, policy), ()
        case TaskMissing():
            expired = ttl_passed(state.received_at, state.ttl_ms, event.now, policy)
            return finish(Gone(why="expired" if expired else "not_found", message=event.message), state)
        case ObservationRefused():
            questions = reopened(unsent(state.questions, "sending"))
            return replace(state, questions=questions), (StopAsking(), Park(event.error))
        case AnswerReady():
            questions = answered(state.questions, event.key, event.answer)
            state, send = _send(replace(state, questions=questions), event.now)
            return state, (Save(), *send)
        case AnswerUnavailable():
            if state.cancel != "no" or event.key not in _outstanding(state):
                # Nobody waits for this answer any more.
                return replace(state, questions=reopened(state.questions, event.key)), ()
            return unanswered(state, event)
        case UpdateAcknowledged():
            return replace(state, questions=sent(state.questions, event.keys, closed)), (Save(),)
        case UpdateFailed():
            return _failed(replace(state, questions=sent(state.questions, event.keys, back)), event, policy)
        case UpdateRejected():
            refused = sent(state.questions, event.keys, rejected(event.message))
            return replace(state, questions=refused), (Save(),)
        case CancelRequested():
            state, send_cancel = _send_cancel(replace(state, cancel="requested"), event.now)
            return state, (Save(), StopAsking(), *send_cancel)
        case CancelAcknowledged():
            return replace(state, cancel="acknowledged"), (Save(),)
        case CancelFailed():
            # Unless another one has got through meanwhile.
            return _failed(_uncertain(state), event, policy)
        case Resumed():
            return _resume(state, event, policy)
        case _:
            raise ImpossibleEventError(state, event)


def _finished(state: Finished, event: Event) -> Step:
    match event:
        case CallBegun() | CallReturned() | CallFailed() | CallRefused() | CallLost() | CallAgain():
            raise ImpossibleEventError(state, event)
        case CallNoted() | InputAsked() | TaskCreated():
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
        singly=event.singly,
        failures=state.failures if undelivered(state.questions) else 0,
    )
    outcome = outcome_of(task, seed=seed)
    if outcome is not None:
        fresh_reports = [text for kind, text in reports.items() if kind not in state.reported]
        return finish(outcome, state, tuple(map(Report, fresh_reports)))

    fresh: tuple[Question, ...] = ()
    if task.status == "input_required":
        if task.input_requests is None and not seed:
            reports["no_input_requests"] = "input_required came without inputRequests"
        fresh, reused = new_questions(state.questions, task.input_requests or {})
        reports |= reused
        # A host that gave the task up is not bothered with its questions any more.
        fresh = fresh if state.cancel == "no" else ()
    news = changed or bool(fresh)
    if fresh:
        state = replace(state, questions=state.questions + fresh)
    state, actions = _again(state, event, policy, reports, news=news, first=seed)
    if news:
        actions = (Save(), *actions, Publish(task))
    if state.cancel != "no":
        return state, actions
    if not state.questions:
        return state, actions
    other = swapped(state.questions, _outstanding(state))
    if other:
        # Whoever answered, or is about to, meant the first question.
        why = "the server asks something else now, behind the key of an earlier question"
        return state, (*actions, StopAsking(), Park(Unanswered(other, why)))
    refused = [q for q in state.questions if q.stage == "disputed" and q.key in _outstanding(state)]
    if refused:
        # No accident of timing: asked after the refusal, the task still waits for the same question.
        why = f"the server rejected the answer: {refused[0].refusal}"
        return state, (*actions, StopAsking(), Park(Unanswered(tuple(q.key for q in refused), why)))
    questions, asks = asking(state.questions, _outstanding(state))
    state, send = _send(replace(state, questions=questions), event.now)
    return state, (*actions, *asks, *send)


def _notified(state: Observing, event: Notified) -> Step:
    """What the server says unasked. The polls keep their time, and whatever is in doubt is left to them."""
    seen, task = state.task, event.task
    if task.task_id != seen.task_id:
        return state, ()
    outcome = outcome_of(task, seed=True)
    if outcome is not None:
        return finish(outcome, state)
    # Of an end that does not say how, and of what may be older than what we have seen, nothing is believed.
    if task.terminal or seen.terminal or task.older_than(seen):
        return state, ()
    if task.same_as(seen):
        return _kept(state, task)  # one that was told before it may have come in between
    fresh: tuple[Question, ...] = ()
    missed = False
    if task.status == "input_required" and state.cancel == "no":
        requests = task.input_requests or {}
        fresh, _ = new_questions(state.questions, requests)
        if event.singly:
            # A poll that was answered before it was asked may have come after we were told of it.
            untold = requests.keys() - _outstanding(state)
            missed = any(q.key in untold and q.unanswered for q in state.questions)
    if (seen.status == "input_required" or task.status == "input_required") and not (fresh or missed):
        return _kept(state, task)  # an answer may be on its way
    state, _ = _kept(state, task)
    questions = state.questions + fresh
    state = replace(state, task=task, unchanged=0, singly=event.singly, questions=questions)
    questions, asks = asking(state.questions, _outstanding(state))
    return replace(state, questions=questions), (Save(), Publish(task), *asks)


def _kept(state: Observing, task: Task) -> tuple[Observing, tuple[Action, ...]]:
    """Keep what the session wants to know again, and nothing else."""
    if task.request_state in (None, state.request_state):
        return state, ()
    return replace(state, request_state=task.request_state), (Save(),)


def _again(
    state: Observing,
    event: Observed,
    policy: PollPolicy,
    reports: dict[str, str],
    *,
    news: bool = False,
    first: bool = False,
) -> tuple[Observing, tuple[Action, ...]]:
    """Report what there is to report, and set the next poll at the server's pace."""
    fresh = {kind: text for kind, text in reports.items() if kind not in state.reported}
    if fresh:
        state = replace(state, reported=(*state.reported, *fresh))
    state = after_reply(state, event.now, event.jitter, policy, news=news, first=first)
    return state, (*map(Report, fresh.values()), Wake(state.wait_s))


def _failed(state: Observing, event: PollFailed | UpdateFailed | CancelFailed, policy: PollPolicy) -> Step:
    """A request failed in a way that may pass."""
    failed = after_failure(state, event.now, event.jitter, event.retry_after_s, policy)
    # The polls of a task whose other requests failed keep their own time, if that is later.
    state = failed if isinstance(event, PollFailed) else later(failed, state, event.now)
    # Back-off can start over after a crash; what the server asked for cannot.
    saved = (Save(),) if event.retry_after_s is not None else ()
    return state, (*saved, Wake(state.wait_s))


def _resume(state: Observing, event: Resumed, policy: PollPolicy) -> Step:
    """Take up a drive: ask what is open, send what is answered, keep the pace that was set."""
    # A rejected answer goes again as well: it never changes, but the server may have.
    questions = reopened(unsent(state.questions, "sending", "rejected", "disputed"))
    state = _uncertain(replace(state, questions=questions))
    state = after_restart(state, event.now, event.jitter, policy, exact=event.due_is_exact)
    # Saved, so that a host that crashes again and again still gets to its poll.
    begin, wake = Save(), Wake(state.wait_s)
    if state.cancel != "no":
        state, send_cancel = _send_cancel(state, event.now)
        return state, (begin, *send_cancel, wake)
    if swapped(state.questions, _outstanding(state)):
        return state, (begin, wake)  # the next snapshot says whether it is still so
    questions, asks = asking(state.questions, _outstanding(state))
    state, send = _send(replace(state, questions=questions), event.now)
    return state, (begin, *asks, *send, wake)


def _outstanding(state: Observing) -> JSONObject:
    """What the server waits for, by its latest snapshot."""
    return (state.task.input_requests or {}) if state.task.status == "input_required" else {}


def _send(state: Observing, now: float) -> tuple[Observing, tuple[Action, ...]]:
    """Send what is ready, unless the server is to be left alone. The next tick tries again."""
    ready = answers(state.questions, _outstanding(state), singly=state.singly)
    held_back = state.cancel != "no" or quiet(state, now) > 0 or swapped(state.questions, _outstanding(state))
    if not ready or held_back:
        return state, ()
    return replace(state, questions=sending(state.questions, ready)), (SendAnswers(ready),)


def _send_cancel(state: Observing, now: float) -> tuple[Observing, tuple[Action, ...]]:
    """Say that the task is to be cancelled, unless the server is to be left alone."""
    if state.cancel != "requested" or quiet(state, now) > 0:
        return state, ()
    return replace(state, cancel="sending"), (SendCancel(),)


def _uncertain(state: Observing) -> Observing:
    """A cancellation that was on its way may not have arrived, and has to be said again."""
    return replace(state, cancel="requested") if state.cancel == "sending" else state
