"""The library with one of its guarantees broken: what the simulation has to notice.

Each mutant is a change of one place, made for as long as its block lasts. Laws 9 and 11 have none: a history
has one endpoint and one principal, and its servers stay within all bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from mcp_tasks_client import MemoryJournal
from mcp_tasks_client.engine import call_store, prompts, requests, runner
from mcp_tasks_client.engine.adoption import Adoption
from mcp_tasks_client.engine.call_store import CallStore
from mcp_tasks_client.engine.cancellation import Cancellation
from mcp_tasks_client.engine.endpoint import Endpoint
from mcp_tasks_client.engine.engine import Engine
from mcp_tasks_client.engine.idempotency import Idempotency
from mcp_tasks_client.engine.live_call import LiveCall
from mcp_tasks_client.engine.observer import ObservedSteps, Point
from mcp_tasks_client.engine.process_lease import ProcessLease
from mcp_tasks_client.engine.push import Push
from mcp_tasks_client.engine.requests import Requests
from mcp_tasks_client.errors import SessionError
from mcp_tasks_client.journal.row import Row
from mcp_tasks_client.machine import input_requests, pacing
from mcp_tasks_client.machine import task as machine
from mcp_tasks_client.machine.actions import Forget, Save
from mcp_tasks_client.machine.events import (
    AnswerReady,
    AnswerUnavailable,
    CancelAcknowledged,
    CancelRequested,
    Event,
    Notified,
    Observed,
    PollFailed,
    TaskCreated,
    TaskMissing,
)
from mcp_tasks_client.machine.states import Completed, Observing
from mcp_tasks_client.questions import question as questions
from mcp_tasks_client.questions.question import CANCEL, question_id, record_of
from mcp_tasks_client.sessions.base import TaskRef
from mcp_tasks_client.sessions.http.headers import HostHeaders
from mcp_tasks_client.sessions.http.replies import ReplyReader

from . import world

__all__ = ["MUTANTS"]

Mutant = Callable[[], AbstractContextManager[Any]]

MUTANTS: Final[dict[str, Mutant]] = {}


def mutant(make: Mutant) -> Mutant:
    MUTANTS[make.__name__] = make
    return make


# ── what a gateway does ───────────────────────────────────────────────────────────────────────


@mutant
def an_id_that_comes_back_as_text_is_another() -> AbstractContextManager[Any]:
    def is_ours(self: Any, message: Any) -> bool:
        return bool(message.get("id") == self._request_id)

    def refuse(self: Any, message: Any) -> Any:
        if not self._is_ours(message):
            raise self._malformed("a reply to another request, or to none")
        return self._read_reply(message)

    mutated = ExitStack()
    mutated.enter_context(patch.object(ReplyReader, "_is_ours", is_ours))
    mutated.enter_context(patch.object(ReplyReader, "_read_only_reply", refuse))
    return mutated


@mutant
def a_credential_that_expired_is_not_renewed() -> AbstractContextManager[Any]:
    return patch.object(
        HostHeaders, "may_change", property(lambda self: False, lambda self, may: None), create=True
    )


# ── what is journaled, and when ───────────────────────────────────────────────────────────────


def _without(*points: Point) -> AbstractContextManager[Any]:
    """These commits are passed by without being made."""
    pass_by = ObservedSteps.__call__

    def lazy(self: Any, call: Any, point: Point, work: Any, *args: Any, **kwargs: Any) -> Any:
        async def nothing(*_: Any, **__: Any) -> Any:
            return args[0] if point == "commit: claim" else None

        return pass_by(self, call, point, nothing if point in points else work, *args, **kwargs)

    return patch.object(ObservedSteps, "__call__", lazy)


def _late(which: Callable[[Event], bool]) -> AbstractContextManager[Any]:
    """What these events change is written with the next one's."""
    apply = CallStore.apply

    async def act_first(self: Any, call: LiveCall, event: Event) -> Any:
        if not which(event) or not call.ours:
            return await apply(self, call, event)
        state, actions = machine.advance(call.record.state, event, self._policy)
        call.record = replace(call.record, state=state)
        return tuple(one for one in actions if not isinstance(one, Save | Forget))

    return patch.object(CallStore, "apply", act_first)


@mutant
def the_task_id_is_not_journaled() -> AbstractContextManager[Any]:
    return _without("commit: TaskCreated")


@mutant
def a_reply_that_could_not_be_committed_is_dropped() -> AbstractContextManager[Any]:
    return patch.object(CallStore, "_note_uncommitted", lambda self, call, event: None)


@mutant
def the_intent_is_not_journaled() -> AbstractContextManager[Any]:
    return _without("commit: claim")


@mutant
def answers_are_not_journaled() -> AbstractContextManager[Any]:
    return _without("commit: instruct", "commit: AnswerReady")


@mutant
def the_delivery_is_not_journaled() -> AbstractContextManager[Any]:
    return patch.object(MemoryJournal, "deliver", lambda self, at, fences, keep_until: None)


@mutant
def the_outcome_is_delivered_before_it_is_journaled() -> AbstractContextManager[Any]:
    return _late(lambda event: isinstance(event, Observed))


@mutant
def acting_comes_before_the_commit() -> AbstractContextManager[Any]:
    return _late(lambda event: isinstance(event, AnswerReady | TaskCreated))


@mutant
def what_nobody_has_had_is_forgotten() -> AbstractContextManager[Any]:
    async def prune(self: Any, before: float, now: float, gone: Any) -> int:
        old = [row.record_id for _, row in self._rows.values() if row.updated_at < before]
        for record_id in old:
            self._forget(record_id)
        return len(old)

    return patch.object(MemoryJournal, "prune", prune)


@mutant
def what_was_had_just_now_is_forgotten() -> AbstractContextManager[Any]:
    return patch.object(call_store, "_SPARED_S", 0.0)


@mutant
def an_outcome_that_nobody_has_is_not_found_again() -> AbstractContextManager[Any]:
    make = Row.of

    def make_row(record: Any) -> Row:
        row = make(record)
        return row._replace(pending=int(row.due_at is not None))

    return patch.object(Row, "of", make_row)


# ── who drives what ───────────────────────────────────────────────────────────────────────────


@mutant
def a_late_owner_may_write() -> AbstractContextManager[Any]:
    async def save(self: Any, record: Any, *, known: bool = False, heeded: Any = None) -> None:
        with self._lock:
            self._store(Row.of(record))

    return patch.object(MemoryJournal, "save", save)


@mutant
def the_lease_is_never_renewed() -> AbstractContextManager[Any]:
    return patch.object(ProcessLease, "due", lambda self: None)


@mutant
def every_other_owner_is_taken_for_gone() -> AbstractContextManager[Any]:
    async def gone(self: Any, journal: Any, *names: str, of_process: bool = False) -> set[str]:
        return set(await journal.owners(*names))

    return patch.object(ProcessLease, "gone", gone)


@mutant
def nobody_is_ever_taken_for_gone() -> AbstractContextManager[Any]:
    async def gone(self: Any, journal: Any, *names: str, of_process: bool = False) -> set[str]:
        return set()

    return patch.object(ProcessLease, "gone", gone)


@mutant
def what_was_released_is_still_driven() -> AbstractContextManager[Any]:
    def release_only(self: Any, live: LiveCall) -> None:
        self.tasks.start(partial(self.store.release, live))

    return patch.object(Engine, "stop", release_only)


@mutant
def what_is_not_driven_any_more_is_not_released() -> AbstractContextManager[Any]:
    async def nothing(self: Any, call: LiveCall, **options: Any) -> None: ...

    return patch.object(CallStore, "release", nothing)


# ── what is taken up ──────────────────────────────────────────────────────────────────────────


def _take_pending(change: Callable[[Any, dict[str, Any]], None]) -> AbstractContextManager[Any]:
    """Another way to take what is pending. It gets the journal, and may change the options."""
    take = MemoryJournal.take_pending

    async def changed(self: Any, scope: Any, owner: str, gone: Any = (), **options: Any) -> Any:
        options["gone"] = gone
        change(self, options)
        return await take(self, scope, owner, **options)

    return patch.object(MemoryJournal, "take_pending", changed)


@mutant
def one_more_than_the_limit_is_taken() -> AbstractContextManager[Any]:
    def one_more(journal: Any, options: dict[str, Any]) -> None:
        if options["limit"] is not None:
            options["limit"] += 1

    return _take_pending(one_more)


@mutant
def what_is_unfinished_takes_no_room() -> AbstractContextManager[Any]:
    look = Adoption._look

    async def roomy(self: Any) -> None:
        limit = self._limit
        if limit is not None:
            self._limit += sum(not call.over for call in self._taken.values())
        try:
            await look(self)
        finally:
            self._limit = limit

    return patch.object(Adoption, "_look", roomy)


@mutant
def what_others_hold_is_taken_up() -> AbstractContextManager[Any]:
    def everybody(journal: Any, options: dict[str, Any]) -> None:
        options["gone"] = [row.owner for _, row in journal._rows.values() if row.owner is not None]

    return _take_pending(everybody)


@mutant
def what_was_released_is_not_taken_up() -> AbstractContextManager[Any]:
    def leave_them(journal: Any, options: dict[str, Any]) -> None:
        released = [row.record_id for _, row in journal._rows.values() if row.owner is None]
        options["leave"] = [*options["leave"], *released]

    return _take_pending(leave_them)


@mutant
def what_another_application_has_made_is_taken_up() -> AbstractContextManager[Any]:
    return _take_pending(lambda journal, options: options.update(application="a"))


@mutant
def what_is_to_be_left_alone_is_taken() -> AbstractContextManager[Any]:
    return _take_pending(lambda journal, options: options.update(leave=()))


@mutant
def what_comes_free_later_is_not_adopted() -> AbstractContextManager[Any]:
    look = Adoption._look

    async def once(self: Any) -> None:
        await look(self)
        self._look_at = math.inf

    return patch.object(Adoption, "_look", once)


@mutant
def what_was_adopted_is_adopted_again() -> AbstractContextManager[Any]:
    look = Adoption._look

    async def again(self: Any) -> None:
        had = list(self._taken.values())
        await look(self)
        self._found += [self._make(call) for call in had if call.record.finished]

    return patch.object(Adoption, "_look", again)


# ── tools/call ────────────────────────────────────────────────────────────────────────────────


@mutant
def tools_call_is_repeated() -> AbstractContextManager[Any]:
    call = Requests.call

    async def twice(self: Any, live: Any, send: Any, before_send: Any) -> Any:
        event, error = await call(self, live, send, before_send)
        if isinstance(error, SessionError) and error.retryable:
            event, error = await call(self, live, send, before_send)
        return event, error

    return patch.object(Requests, "call", twice)


@mutant
def a_lost_call_is_sent_again_without_leave() -> AbstractContextManager[Any]:
    decide = Idempotency._decide

    async def boldly(self: Any, live: LiveCall, on_unknown: Any) -> None:
        await decide(self, live, "resend")

    return patch.object(Idempotency, "_decide", boldly)


@mutant
def a_refused_resend_forgets_the_first_call() -> AbstractContextManager[Any]:
    advance = machine.advance

    def forgetful(state: Any, event: Event, policy: Any) -> Any:
        state, actions = advance(state, event, policy)
        return (replace(state, again=False) if getattr(state, "again", False) else state), actions

    return patch.object(call_store, "advance", forgetful)


# ── the pace ──────────────────────────────────────────────────────────────────────────────────


@mutant
def the_hint_is_ignored() -> AbstractContextManager[Any]:
    return patch.object(pacing, "poll_delay", lambda hint, unchanged, policy, jitter, first=False: 0.25)


@mutant
def retry_after_is_ignored() -> AbstractContextManager[Any]:
    later = pacing.due_after_failure
    return patch.object(
        machine,
        "due_after_failure",
        lambda state, now, jitter, _, policy: later(state, now, jitter, None, policy),
    )


@mutant
def a_tick_polls_though_told_to_wait() -> AbstractContextManager[Any]:
    return patch.object(runner, "quiet_left", lambda state, now: 0.0)


@mutant
def a_restart_forgets_when_the_next_poll_is_due() -> AbstractContextManager[Any]:
    def at_once(state: Any, now: float, jitter: float, policy: Any, *, exact: bool) -> Any:
        return replace(state, due_at=now, wait_s=0.0)

    return patch.object(machine, "due_after_restart", at_once)


# ── what a poll tells ─────────────────────────────────────────────────────────────────────────


@mutant
def a_poll_that_fails_ends_the_task() -> AbstractContextManager[Any]:
    get = Requests.get

    async def give_up(self: Any, call: Any) -> tuple[Event, Exception | None]:
        event, error = await get(self, call)
        if isinstance(event, PollFailed):
            event = TaskMissing(message="", now=event.now)
        return event, error

    return patch.object(Requests, "get", give_up)


@mutant
def a_result_is_cut_short() -> AbstractContextManager[Any]:
    read = machine._outcome_of

    def cut(task: Any, *, seed: bool) -> Any:
        outcome = read(task, seed=seed)
        if not isinstance(outcome, Completed):
            return outcome
        (content,) = outcome.result["content"]
        return replace(outcome, result={"content": [{**content, "text": content["text"][:5]}]})

    return patch.object(machine, "_outcome_of", cut)


# ── questions ─────────────────────────────────────────────────────────────────────────────────


@mutant
def each_poll_asks_anew() -> AbstractContextManager[Any]:
    return patch.object(machine, "find_new", _find_answered_too)


def _find_answered_too(known: Any, requests: Any, now: float) -> Any:
    asking = {question.key for question in known if question.stage == "asking"}
    return tuple(one for one in input_requests.find_new((), requests, now) if one.key not in asking)


@mutant
def forms_come_all_at_once() -> AbstractContextManager[Any]:
    return patch.object(prompts, "_ELICITATION", "none")


@mutant
def what_nobody_answers_is_declined() -> AbstractContextManager[Any]:
    ask = Requests.ask

    async def decline(self: Any, call: Any, one: Any) -> Event:
        event = await ask(self, call, one)
        if isinstance(event, AnswerUnavailable) and one.request.get("method") == "elicitation/create":
            return AnswerReady(key=one.key, answer={"action": "decline"}, now=self._clock.time())
        return event

    return patch.object(Requests, "ask", decline)


@mutant
def an_answer_that_was_not_acknowledged_is_asked_for_again() -> AbstractContextManager[Any]:
    def reopen(asked: Any, *stages: str) -> Any:
        return tuple(replace(q, stage="open", answer=None) if q.stage in stages else q for q in asked)

    return patch.object(machine, "take_back", reopen)


@mutant
def an_answer_that_was_acknowledged_and_lost_is_not_sent_again() -> AbstractContextManager[Any]:
    return patch.object(machine, "watch_acknowledged", lambda questions, *_: questions)


# ── answers from outside ──────────────────────────────────────────────────────────────────────


def _instruct(change: Callable[[Any, str, Any, Any], Any]) -> AbstractContextManager[Any]:
    """Another way to leave an instruction: it gets what stands, and returns what is told."""
    instruct = MemoryJournal.instruct

    async def changed(self: Any, record_id: str, instruction: Any) -> Any:
        standing = await instruct(self, record_id, instruction)
        return None if standing is None else change(self, record_id, instruction, standing)

    return patch.object(MemoryJournal, "instruct", changed)


@mutant
def the_last_answer_counts() -> AbstractContextManager[Any]:
    def overwrite(journal: Any, record_id: str, instruction: Any, standing: Any) -> Any:
        if not standing.heeded:
            journal._instructions[record_id][instruction.name] = instruction
        return instruction

    return _instruct(overwrite)


@mutant
def whoever_is_late_is_told_that_it_counts() -> AbstractContextManager[Any]:
    return _instruct(lambda journal, record_id, instruction, standing: instruction)


@mutant
def an_answer_is_marked_as_heeded_before_it_is_part_of_the_state() -> AbstractContextManager[Any]:
    find = CallStore._find_first_answer

    async def mark(self: Any, call: LiveCall, event: AnswerReady) -> Any:
        found = await find(self, call, event)
        await self.journal.save(call.record, known=True, heeded=found[1])
        return found

    return patch.object(CallStore, "_find_first_answer", mark)


@mutant
def the_callback_answers_though_another_was_first() -> AbstractContextManager[Any]:
    find = CallStore._find_first_answer

    async def insist(self: Any, call: LiveCall, event: AnswerReady) -> Any:
        return event, (await find(self, call, event))[1]

    return patch.object(CallStore, "_find_first_answer", insist)


@mutant
def what_has_become_part_of_the_state_is_left_in_the_journal() -> AbstractContextManager[Any]:
    save = CallStore._save

    async def unmarked(self: Any, *args: Any, heeded: str | None = None, **options: Any) -> Any:
        return await save(self, *args, **options)

    return patch.object(CallStore, "_save", unmarked)


@mutant
def nobody_who_drives_is_told_of_answers() -> AbstractContextManager[Any]:
    return patch.object(LiveCall, "instruct", lambda self: None)


@mutant
def whoever_answers_sends_it_too() -> AbstractContextManager[Any]:
    take = Endpoint.take_answer

    async def send(self: Any, name: str, answer: Any) -> None:
        await take(self, name, answer)
        record = await self.engine.journal.by_id(record_of(name))
        if record is not None and isinstance(record.state, Observing):
            key = next(q.key for q in record.state.questions if question_id(record.record_id, q) == name)
            ref = TaskRef(record.state.task.task_id, record.state.session_data)
            with suppress(SessionError):
                await self.session.update(ref, {key: answer})

    return patch.object(Endpoint, "take_answer", send)


@mutant
def whoever_takes_a_call_up_does_not_read_what_was_left() -> AbstractContextManager[Any]:
    async def nothing(self: Any, call: LiveCall) -> None: ...

    return patch.object(runner.Runner, "catch_up", nothing)


@mutant
def a_callback_is_not_withdrawn_when_another_has_answered() -> AbstractContextManager[Any]:
    return patch.object(LiveCall, "withdraw", lambda self, key: None)


@mutant
def a_question_that_is_asked_anew_has_its_old_name() -> AbstractContextManager[Any]:
    name = questions.question_id

    def old_name(record_id: str, asked: Any) -> str:
        return name(record_id, replace(asked, asked_at=0.0, digest=""))

    stack = ExitStack()
    for module in (questions, requests, world):
        stack.enter_context(patch.object(module, "question_id", old_name))
    return stack


@mutant
def a_cancel_from_outside_is_forgotten() -> AbstractContextManager[Any]:
    wish = Cancellation.wish

    async def forget(self: Any, call: LiveCall, *, by_instruction: bool = False) -> bool:
        if not by_instruction:
            return await wish(self, call)
        await self._store.forget_instruction(call, CANCEL)
        return False

    return patch.object(Cancellation, "wish", forget)


# ── cancellation ──────────────────────────────────────────────────────────────────────────────


def _heedless(step: str) -> AbstractContextManager[Any]:
    """A step that is taken as if nobody had wished to cancel."""
    take = getattr(machine, step)

    def heedless(state: Any, *args: Any, **options: Any) -> Any:
        after, actions = take(replace(state, cancel="no"), *args, **options)
        return (replace(after, cancel=state.cancel) if hasattr(after, "cancel") else after), actions

    return patch.object(machine, step, heedless)


@mutant
def a_cancel_is_sent_before_it_is_journaled() -> AbstractContextManager[Any]:
    return _late(lambda event: isinstance(event, CancelRequested))


@mutant
def a_cancel_while_the_call_is_in_flight_is_not_journaled() -> AbstractContextManager[Any]:
    wish = Cancellation._wish

    async def shrug(self: Any, call: LiveCall, instruction: str | None) -> bool:
        return call.attempt is None and await wish(self, call, instruction)

    return patch.object(Cancellation, "_wish", shrug)


@mutant
def a_cancel_before_there_is_a_task_is_forgotten() -> AbstractContextManager[Any]:
    create = machine._create
    return patch.object(
        machine,
        "_create",
        lambda before, event, policy: create(
            replace(before, cancel_wanted=False) if hasattr(before, "cancel_wanted") else before,
            event,
            policy,
        ),
    )


@mutant
def whoever_resumes_forgets_the_wish_to_cancel() -> AbstractContextManager[Any]:
    resume = machine._resume
    return patch.object(
        machine, "_resume", lambda state, event, policy: resume(replace(state, cancel="no"), event, policy)
    )


@mutant
def a_cancel_that_was_lost_is_not_said_again() -> AbstractContextManager[Any]:
    cancel = Requests.cancel

    async def once(self: Any, call: Any) -> Any:
        _, error = await cancel(self, call)
        return CancelAcknowledged(now=self._clock.time()), error

    return patch.object(Requests, "cancel", once)


@mutant
def a_cancel_under_retry_after_is_dropped() -> AbstractContextManager[Any]:
    send = machine._send_cancel

    def drop(state: Any, now: float) -> Any:
        after, actions = send(state, now)
        return (
            (replace(after, cancel="acknowledged"), ()) if after.cancel == "requested" else (after, actions)
        )

    return patch.object(machine, "_send_cancel", drop)


@mutant
def questions_stay_up_after_a_cancel() -> AbstractContextManager[Any]:
    return patch.object(LiveCall, "stop_asking", lambda self: None)


@mutant
def a_cancelled_task_asks_on() -> AbstractContextManager[Any]:
    return _heedless("_observe")


@mutant
def a_cancelled_task_is_answered() -> AbstractContextManager[Any]:
    return _heedless("_send_answers")


@mutant
def who_goes_away_cancels_nothing() -> AbstractContextManager[Any]:
    async def nothing(self: Any, live: LiveCall) -> None: ...

    return patch.object(Cancellation, "cancel_abandoned", nothing)


@mutant
def who_goes_away_from_a_dropped_in_call_cancels_nothing() -> AbstractContextManager[Any]:
    cancel, see = Cancellation.cancel_abandoned, Endpoint.see_task_through
    dropped_in: set[Any] = set()

    async def cancel_others(self: Any, call: LiveCall) -> None:
        if self._store not in dropped_in:
            await cancel(self, call)

    async def note(self: Any, *args: Any, **options: Any) -> Any:
        dropped_in.add(self._store)
        return await see(self, *args, **options)

    stack = ExitStack()
    stack.enter_context(patch.object(Cancellation, "cancel_abandoned", cancel_others))
    stack.enter_context(patch.object(Endpoint, "see_task_through", note))
    return stack


# ── what the server tells by itself ───────────────────────────────────────────────────────────


def _while_notified(name: str, change: Callable[..., Any]) -> AbstractContextManager[Any]:
    """A change of the machine that lasts while it makes sense of a notification."""
    take = machine._notify

    def changed(state: Any, event: Any) -> Any:
        with patch.object(machine, name, change):
            return take(state, event)

    return patch.object(machine, "_notify", changed)


@mutant
def an_end_that_is_told_is_delivered_before_it_is_journaled() -> AbstractContextManager[Any]:
    return _late(lambda event: isinstance(event, Notified))


@mutant
def an_end_that_is_told_without_its_result_is_believed() -> AbstractContextManager[Any]:
    outcome_of = machine._outcome_of
    return _while_notified("_outcome_of", lambda task, *, seed: outcome_of(task, seed=False))


@mutant
def each_notification_asks_anew() -> AbstractContextManager[Any]:
    return _while_notified("find_new", _find_answered_too)


@mutant
def a_cancelled_task_asks_what_it_is_told() -> AbstractContextManager[Any]:
    return _heedless("_notify")


@mutant
def what_is_told_of_another_task_is_believed() -> AbstractContextManager[Any]:
    deliver = Push.deliver

    def believe(self: Any, snapshot: Any) -> None:
        for task_id in self.refs():
            task = snapshot.task.model_copy(update={"task_id": task_id})
            deliver(self, replace(snapshot, task=task))

    return patch.object(Push, "deliver", believe)


@mutant
def what_is_told_of_is_not_polled() -> AbstractContextManager[Any]:
    deliver = Push.deliver

    def wait_for_more(self: Any, snapshot: Any) -> None:
        deliver(self, snapshot)
        call = self._by_task.get(snapshot.task.task_id)
        if call is not None:
            call.due = math.inf

    return patch.object(Push, "deliver", wait_for_more)
