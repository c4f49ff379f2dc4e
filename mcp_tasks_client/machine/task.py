"""A tool call, and above all its task, from ``tools/call`` to its end.

Theory of operation
===================

One call is one machine. ``advance(state, event, policy)`` gives the state that follows an event, and the
actions to be done; nothing here does anything itself. Events carry the time and the jitter, so a history can
be replayed exactly.

::

    Calling ──► Finished            a plain result, or a JSON-RPC error
       │  ▲
       │  └──── Gathering           the server asks first, or has no slot; then the call is sent again
       ├──────► OutcomeUnknown      the reply is lost; back to ``Calling`` only when the caller allows it
       └──────► Observing ──► Finished

``Observing`` is where a task spends its life. Three small lives run inside it side by side, and
none of them ever waits for another:

- the *pace*: ``due_at`` is when the next ``tasks/get`` may go; every snapshot and every
  failure sets it anew and emits ``Wake``; ``Tick`` is the alarm going off. Before ``quiet_until``, which a
  ``Retry-After`` sets, nothing is sent at all;
- the *questions*: ``open → asking → answered → sending → acknowledged``, one per key for the life
  of the task. Answers go together, and only to questions of the latest snapshot. An answer that is
  acknowledged goes again, ever more seldom, while snapshots go on to list its question. A refused answer is
  ``rejected``: not an error yet, since the task may have moved on. If it is refused twice, and a snapshot
  that was asked for after each refusal still asks, the question opens again;
- the *cancellation*: ``no → requested → sending → acknowledged``. It silences questions, not
  polling; a request that did not get through is sent again with the next poll. A cancellation that comes
  before there is a task is remembered in ``Calling`` and sent when there is one.

Rules that hold for every step, and that the tests check on every step of every history:

1. ``Save`` stands before every action that relies on the change. An action before its
   ``Save`` could be forgotten by a crash and then be repeated differently.
   ``SendAnswers`` has a ``Save`` in its own step: an owner that was overtaken may hold an answer that was
   refused meanwhile, and must not send it.
2. A step whose outcome is not worth keeping has no ``Save``: an unchanged poll, or one more that failed.
3. ``Ask`` is emitted once per key, and again while there is no answer: by the first snapshot after
   ``Resumed``, when the question was withdrawn and is open again, and when its answer was refused.
4. ``Finish`` and ``Park`` end the driving of a call. Finished is forever; parked is until ``Resumed``.

Events that cannot happen in a state raise :class:`ImpossibleEventError`: our mistake, never theirs.
A violation of the protocol by the *server* is reported once per kind, by ``Report``, and survived.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Final, assert_never

from ..policy import PollPolicy, ttl_passed
from ..protocol.replies import read_rpc_error
from ..protocol.task import UNKNOWN, Task
from . import actions as act
from . import events as ev
from .before_task import ImpossibleEventError, Step, advance_before_task, count_failure, park_unanswered
from .input_requests import (
    MAX_OPEN,
    Questions,
    acknowledge,
    answer,
    ask_open,
    collect_answers,
    dispute,
    doubt,
    find_disputed,
    find_excess,
    find_new,
    find_refused,
    find_swapped,
    has_lost,
    has_undelivered,
    is_answered,
    is_reused,
    mark_rejected,
    mark_sending,
    mark_unsent,
    open_refused,
    reopen,
    take_back,
    watch_acknowledged,
)
from .pacing import (
    due_after_cancel,
    due_after_cut,
    due_after_failure,
    due_after_poll,
    due_after_reply,
    due_after_restart,
    due_no_sooner,
    quiet_left,
)
from .replacing import replace
from .running_time import find_took_s, find_wait_began
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
    State,
    Violated,
)

__all__ = ["advance"]

_PAST_TTL: Final = "past_ttl"
_LONG_PAST_S: Final = 60.0
"""A task that works on is told of as much later as its ``ttlMs`` was long, and so many seconds at least."""

_PATIENCE: Final = 5
"""Unchanged snapshots of a task that waits, without a question, before that is reported."""


def advance(state: State, event: ev.Event, policy: PollPolicy) -> Step:
    """The next state, and the actions, in order.

    Raises:
        ImpossibleEventError: The event cannot happen in this state.
    """
    match state:
        case Calling() | OutcomeUnknown() if isinstance(event, ev.TaskCreated):
            return _create(state, event, policy)
        case Calling() | Gathering() | OutcomeUnknown():
            return advance_before_task(state, event, policy)
        case Observing():
            return _observing(state, event, policy)
        case Finished():
            return _finished(state, event)
        case _:
            assert_never(state)


def _create(before: Calling | OutcomeUnknown, event: ev.TaskCreated, policy: PollPolicy) -> Step:
    state = Observing(
        task=event.task, received_at=event.now, due_at=event.now, session_data=event.session_data
    )
    if event.attached:
        return state, (act.Save(), act.Wake(0.0))
    seed = ev.Observed(task=event.task, now=event.now, jitter=event.jitter, session_data=event.session_data)
    if not before.cancel_wanted:
        return _observe(state, seed, policy, seed=True)
    # The host gave the call up while tools/call was in flight. The server is told now.
    after, actions = _observe(replace(state, cancel="requested"), seed, policy, seed=True)
    if not isinstance(after, Observing):
        return after, actions
    after, cancel = _send_cancel(after, event.now)
    return after, (*actions, *cancel)


def _observing(state: Observing, event: ev.Event, policy: PollPolicy) -> Step:
    match event:
        case ev.Tick():
            # Due again only after a whole interval, should we be stopped before the reply.
            state = due_after_poll(state, event.now, event.jitter, policy)
            if state.questions:
                state = replace(state, questions=dispute(take_back(state.questions, "unsent")))
            state, send = _send_answers(state, event.now)
            state, cancel = _send_cancel(state, event.now)
            actions = (*cancel, *send, act.Poll())
            return state, _saving(actions) if send else actions
        case ev.Observed():
            return _observe(state, event, policy)
        case ev.Notified():
            return _notify(state, event)
        case ev.PollFailed():
            return _fail(state, event, policy)
        case ev.PollCut():
            return due_after_cut(state, event.now, policy), ()
        case ev.TaskMissing():
            expired = ttl_passed(state.received_at, state.ttl_ms, event.now, policy)
            if not expired and not state.missing and state.task.status != UNKNOWN:
                # A reply has shown the task. One of several servers may not have heard of it.
                why = "the server says that it does not know the task, and is asked once more"
                failed = ev.PollFailed(why=why, now=event.now, jitter=event.jitter)
                return _fail(replace(state, missing=True), failed, policy)
            if event.denied is not None and not expired:
                return _refuse(
                    replace(state, missing=False), ev.ObservationRefused(error=event.denied, now=event.now)
                )
            return _finish(Gone(why="expired" if expired else "not_found", message=event.message), state)
        case ev.ObservationRefused():
            return _refuse(state, event)
        case ev.AnswerReady():
            questions = answer(state.questions, event.key, event.answer, event.now, event.refusals)
            if questions == state.questions:
                return state, ()  # not the first answer
            state = replace(state, questions=questions)
            if event.held:
                return state, (act.Save(),)
            state, send = _send_answers(state, event.now)
            return state, (act.Save(), *send)
        case ev.AnswerUnavailable() if is_answered(state.questions, event.key, event.refusals):
            return state, ()  # it has an answer
        case ev.AnswerUnavailable():
            if state.cancel != "no" or event.key not in state.outstanding:
                # This answer is of no use any longer.
                return replace(state, questions=reopen(state.questions, event.key)), ()
            return park_unanswered(state, event)
        case ev.UpdateAcknowledged():
            questions = acknowledge(state.questions, event.keys)
            kept = state.session_data if event.session_data is None else event.session_data
            return replace(state, questions=questions, session_data=kept), (act.Save(),)
        case ev.UpdateFailed():
            unsent = mark_unsent(state.questions, event.keys, untaken=event.untaken)
            return _fail(replace(state, questions=unsent), event, policy)
        case ev.UpdateRefused():
            refused = mark_rejected(state.questions, event.keys, event.words)
            return replace(state, questions=refused), (act.Save(),)
        case ev.CancelRequested():
            state, send_cancel = _send_cancel(replace(state, cancel="requested"), event.now)
            return state, (act.Save(), act.StopAsking(), *send_cancel)
        case ev.CancelAcknowledged():
            state = due_after_cancel(replace(state, cancel="acknowledged"), event.now)
            return state, (act.Save(), act.StopAsking(), act.Wake(state.wait_s))
        case ev.CancelRejected():
            # The next poll tells whether the task is over. If it goes on, the wish is sent again.
            state = due_after_cancel(_doubt_cancel(state), event.now)
            return state, (act.Wake(state.wait_s),)
        case ev.CancelFailed():
            # Unless another one has got through meanwhile.
            return _fail(_doubt_cancel(state), event, policy)
        case ev.Resumed():
            return _resume(state, event, policy)
        case _:
            raise ImpossibleEventError(state, event)


def _refuse(state: Observing, event: ev.ObservationRefused) -> Step:
    """Park a task that the server does not let us look at."""
    untaken = mark_unsent(state.questions, event.untaken, untaken=True)
    questions = reopen(doubt(take_back(untaken, "unsent")))
    failure = count_failure(state.failure, str(event.error), event.now)
    state = replace(state, questions=questions, failure=failure)
    return state, (act.StopAsking(), act.Park(event.error))


def _finished(state: Finished, event: ev.Event) -> Step:
    match event:
        case ev.CallBegun() | ev.CallAgain() | ev.CallRefused() | ev.CallLost():
            raise ImpossibleEventError(state, event)
        case ev.CallReturned() | ev.CallFailed() | ev.InputAsked() | ev.TaskCreated():
            raise ImpossibleEventError(state, event)
        case _:
            # An event that was under way when the task ended has nothing left to change.
            return state, ()


def _observe(state: Observing, event: ev.Observed, policy: PollPolicy, *, seed: bool = False) -> Step:
    """Take a snapshot. A violation is reported and survived: the rest of the snapshot is used.

    The snapshot of a creation (``seed``) is always news. It may be terminal without saying how:
    one poll is then still needed.
    """
    seen, task = state.task, event.task
    if task.task_id != seen.task_id:
        return _look_again(
            state, event, policy, {"another_task_id": "tasks/get answered with another taskId"}
        )
    excess = find_excess(state.questions, task.input_requests or {})
    if excess is not None:
        # Not taken into the state, so that the journal does not grow with a server's inventions.
        task = task.model_copy(update={"input_requests": None})
    reports = {} if seed else _violations(seen, task)
    if not task.known_status:
        reports["unknown_status"] = f"{task.status!r} is none of the specification's statuses"

    changed = seed or not task.same_as(seen)
    before = state
    state = replace(
        state,
        task=task,
        poll_interval_ms=task.poll_interval_ms or state.poll_interval_ms,
        ttl_ms=task.ttl_ms if "ttl_ms" in task.model_fields_set else state.ttl_ms,
        session_data=event.session_data if event.session_data is not None else state.session_data,
        unchanged=0 if changed else state.unchanged + 1,
        missing=False,
        failure=state.failure if has_undelivered(state.questions) else None,
    )
    saved = seed or _matters(before, state)
    outcome = _outcome_of(task, seed=seed)
    if outcome is not None:
        fresh_reports = [text for kind, text in reports.items() if kind not in state.reported]
        return _finish(_timed(outcome, state, event.now), state, tuple(map(act.Report, fresh_reports)))
    if task.status == "working" and _past_ttl_s(state, event.now) > policy.past_ttl_s:
        why = "the server still calls it working, and PollPolicy.past_ttl_s is over"
        return _finish(Gone(why="expired", message=why), state)

    fresh: Questions = ()
    if task.status == "input_required":
        requests = task.input_requests
        if requests is None and excess is None and not seed:
            reports["no_input_requests"] = "input_required came without inputRequests"
        elif requests == {} and state.unchanged >= _PATIENCE:
            # Servers of an older version may have sent it to another client, or on a stream that broke.
            reports["unheard"] = "the task waits for an answer, and no question of it was heard"
        # A host that gave the task up is spared its questions.
        if state.cancel == "no":
            waits_from = find_wait_began(before, task, event.now)
            fresh = find_new(state.questions, requests or {}, event.now, waits_from)
        if state.questions and is_reused(state.questions, requests or {}):
            reports["key_reused"] = "an input key was used again for a different request"
    if excess is not None and task.status == "input_required" and state.cancel == "no":
        state, actions = _look_again(state, event, policy, reports)
        known = {q.key for q in state.questions}
        fresh_keys = (key for key in event.task.input_requests or () if key not in known)
        park = act.Park(act.Unanswered(tuple(islice(fresh_keys, MAX_OPEN)), excess))
        return state, (act.Save(), *actions, act.StopAsking(), park)
    if fresh:
        state = replace(state, questions=state.questions + fresh)
        saved = True
    state, actions = _look_again(state, event, policy, reports, saved=saved, first=seed)
    if saved:
        actions = (act.Save(), *actions)
    if changed or fresh:
        actions = (*actions, act.Publish(task))
    if state.cancel != "no" or not state.questions:
        return state, actions
    return _attend_to_questions(state, event.now, actions)


def _violations(seen: Task, task: Task) -> dict[str, str]:
    """How the change from one snapshot to the next breaks the protocol, by the kind of violation."""
    reports: dict[str, str] = {}
    if seen.terminal and not task.terminal:
        reports["left_terminal_status"] = f"the status went from {seen.status} back to {task.status}"
    if not task.created_with(seen):
        reports["created_at_changed"] = f"createdAt went from {seen.created_at} to {task.created_at}"
    return reports


def _matters(before: Observing, after: Observing) -> bool:
    """Whether a snapshot has changed anything that an action depends on after a crash.

    A new ``statusMessage`` does not: a server that reports its progress must not set the disk's pace.
    """
    return (
        after.task.status != before.task.status
        or after.task.input_requests != before.task.input_requests
        or after.ttl_ms != before.ttl_ms
        or after.poll_interval_ms != before.poll_interval_ms
        or after.session_data != before.session_data
        or (after.failure is None) != (before.failure is None)
    )


def _attend_to_questions(state: Observing, now: float, actions: tuple[act.Action, ...]) -> Step:
    """Ask the open questions, send the answers; park where neither can go on."""
    watched = watch_acknowledged(state.questions, state.outstanding, state.wait_s)
    if has_lost(state.questions, watched) and "answer_lost" not in state.reported:
        state = replace(state, reported=(*state.reported, "answer_lost"))
        actions = (*actions, act.Report("an answer was acknowledged, and its question is still asked"))
    state = replace(state, questions=watched)
    swapped = find_swapped(state.questions, state.outstanding)
    if swapped:
        # An answer that was given, or is being given, was meant for the first question.
        why = "the server asks something else now, behind the key of an earlier question"
        return state, (*actions, act.StopAsking(), act.Park(act.Unanswered(swapped, why)))
    judged = open_refused(state.questions, state.outstanding)
    if judged != state.questions:
        state, actions = replace(state, questions=judged), _saving(actions)
    disputed = find_disputed(judged, state.outstanding)
    refused = disputed or find_refused(judged, state.outstanding)
    if refused:
        doubtful = ", which it may have taken before" if disputed else ""
        why = f"the server refused the answer{doubtful}: {refused[0].refusal}"
        unanswered = act.Unanswered(tuple(q.key for q in refused), why)
        return state, (*actions, act.StopAsking(), act.Park(unanswered))
    questions, asks = ask_open(state.questions, state.outstanding)
    state, send = _send_answers(replace(state, questions=questions), now)
    return state, (*(_saving(actions) if send else actions), *asks, *send)


def _saving(actions: tuple[act.Action, ...]) -> tuple[act.Action, ...]:
    return actions if act.Save() in actions else (act.Save(), *actions)


def _notify(state: Observing, event: ev.Notified) -> Step:
    """Take a snapshot that came unasked. It only adds: polls keep their pace, and settle any doubt."""
    seen, task = state.task, event.task
    if task.task_id != seen.task_id:
        return state, ()
    outcome = _outcome_of(task, seed=True)
    if outcome is not None:
        state = replace(state, task=task)
        return _finish(_timed(outcome, state, event.now), state)
    # An end without its outcome is not believed, nor a snapshot that may be older than the last one.
    if task.terminal or seen.terminal or task.older_than(seen):
        return state, ()
    state, saved = _keep_session_data(state, event)
    if find_excess(state.questions, task.input_requests or {}) is not None:
        return state, saved  # a poll says the same, and parks
    fresh: Questions = ()
    if task.status == "input_required" and state.cancel == "no":
        waits_from = find_wait_began(state, task, event.now)
        fresh = find_new(state.questions, task.input_requests or {}, event.now, waits_from)
    if task.same_as(seen) or ("input_required" in (seen.status, task.status) and not fresh):
        return state, saved  # an answer may be on its way
    state = replace(state, task=task, unchanged=0, questions=state.questions + fresh)
    questions, asks = ask_open(state.questions, state.outstanding)
    saved = (act.Save(),) if fresh or task.status != seen.status else saved
    return replace(state, questions=questions), (*saved, act.Publish(task), *asks)


def _keep_session_data(state: Observing, event: ev.Notified) -> tuple[Observing, tuple[act.Action, ...]]:
    listed = event.task.input_requests or {}
    if any(q.stage == "acknowledged" and q.key in listed for q in state.questions):
        return state, ()  # it is older than the acknowledgement, which brought newer data
    if event.session_data in (None, state.session_data):
        return state, ()
    return replace(state, session_data=event.session_data), (act.Save(),)


def _look_again(
    state: Observing,
    event: ev.Observed,
    policy: PollPolicy,
    reports: dict[str, str],
    *,
    saved: bool = False,
    first: bool = False,
) -> tuple[Observing, tuple[act.Action, ...]]:
    """Report the new violations, and set the next poll at the server's pace."""
    fresh = {kind: text for kind, text in reports.items() if kind not in state.reported}
    told = tuple(map(act.Report, fresh.values()))
    if state.task.status == "working" and _PAST_TTL not in state.reported:
        ttl_s, past_s = (state.ttl_ms or 0) / 1000, _past_ttl_s(state, event.now)
        if past_s > max(ttl_s, _LONG_PAST_S):
            fresh[_PAST_TTL] = f"is still working {past_s:.0f} seconds after its ttlMs, and is polled on"
            told = (*told, act.Report(fresh[_PAST_TTL], is_violation=False))
    if fresh:
        state = replace(state, reported=(*state.reported, *fresh))
    state = due_after_reply(state, event.now, event.jitter, policy, saved=saved, first=first)
    return state, (*told, act.Wake(state.wait_s))


def _past_ttl_s(state: Observing, now: float) -> float:
    """Seconds since the end of the task's time-to-live; less than 0 before that."""
    return -math.inf if state.ttl_ms is None else now - state.received_at - state.ttl_ms / 1000


def _fail(
    state: Observing, event: ev.PollFailed | ev.UpdateFailed | ev.CancelFailed, policy: PollPolicy
) -> Step:
    """A request failed in a way that may pass."""
    before, state = state, replace(state, failure=count_failure(state.failure, event.why, event.now))
    failed = due_after_failure(state, event.now, event.jitter, event.retry_after_s, policy)
    # The polls of a task whose other requests failed keep their own time, if that is later.
    state = failed if isinstance(event, ev.PollFailed) else due_no_sooner(failed, state, event.now)
    if isinstance(event, ev.CancelFailed):
        state = replace(state, failure=before.failure)  # the task is seen all the same
    # Back-off can start over after a crash; a wait that the server asked for cannot. And a reader of the
    # journal can see since when requests fail.
    begins = state.failure is not None and before.failure is None
    saved = (act.Save(),) if event.retry_after_s is not None or begins else ()
    return state, (*saved, act.Wake(state.wait_s))


def _resume(state: Observing, event: ev.Resumed, policy: PollPolicy) -> Step:
    """Take up a call: send the answers, and keep the pace that was set. The next snapshot asks."""
    questions = reopen(doubt(state.questions))
    state = _doubt_cancel(replace(state, questions=questions))
    state = due_after_restart(state, event.now, event.jitter, policy, exact=event.due_is_exact)
    # Saved, so that a host that crashes again and again still gets to its poll. The alarm is set before
    # anything is sent, since the reply may ask for a later one.
    begin = act.Save(), act.Wake(state.wait_s)
    if state.cancel != "no":
        state, send_cancel = _send_cancel(state, event.now)
        return state, (*begin, *send_cancel)
    if find_swapped(state.questions, state.outstanding):
        return state, begin  # the next snapshot says whether it is still so
    state, send = _send_answers(state, event.now)
    return state, (*begin, *send)


def _send_answers(state: Observing, now: float) -> tuple[Observing, tuple[act.Action, ...]]:
    """Send the answers that are ready, unless the server is to be left alone. The next tick tries again."""
    if not state.questions:
        return state, ()
    ready = collect_answers(state.questions, state.outstanding)
    held_back = (
        state.cancel != "no"
        or quiet_left(state, now) > 0
        or bool(find_swapped(state.questions, state.outstanding))
    )
    if not ready or held_back:
        return state, ()
    return replace(state, questions=mark_sending(state.questions, ready)), (act.SendAnswers(ready),)


def _send_cancel(state: Observing, now: float) -> tuple[Observing, tuple[act.Action, ...]]:
    """Send ``tasks/cancel``, unless the server is to be left alone."""
    if state.cancel != "requested" or quiet_left(state, now) > 0:
        return state, ()
    return replace(state, cancel="sending"), (act.SendCancel(),)


def _doubt_cancel(state: Observing) -> Observing:
    """A cancellation that was on its way may not have arrived, and has to be sent again."""
    return replace(state, cancel="requested") if state.cancel == "sending" else state


def _outcome_of(task: Task, *, seed: bool) -> Outcome | None:
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


def _timed(outcome: Outcome, state: Observing, now: float) -> Outcome:
    """An outcome that says how long the task ran, if it is the result of a tool that did its work.

    An older server calls a task failed whose tool raised.
    """
    if not isinstance(outcome, Completed) or outcome.result.get("isError") is True:
        return outcome
    return replace(outcome, took_s=find_took_s(state, now))


def _finish(
    outcome: Outcome, state: Observing, reports: tuple[act.Report, ...] = ()
) -> tuple[Finished, tuple[act.Action, ...]]:
    """The end, and who has to hear of it."""
    # The payload is in the outcome; a second copy of a large result would be written with it.
    task = state.task.model_copy(update={"result": None, "error": None, "input_requests": None})
    published = (act.Publish(state.task),) if state.task.terminal else ()
    finished = Finished(outcome=outcome, task=task)
    return finished, (act.Save(), act.StopAsking(), *reports, *published, act.Finish())
