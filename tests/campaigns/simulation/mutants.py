"""The library with one of its guarantees broken: what the simulation has to notice.

Each mutant replaces one part of a history (:mod:`.parts`): a journal, a session, a client, the options of a
client, or a pure function of the machine or of questions. No mutant reaches into the engine, so that each one
stands when the engine is rebuilt. Laws 9 and 11 have no mutant: a history has one endpoint and one principal,
and its servers stay within all bounds.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import anyio
import httpx

from mcp_tasks_client import (
    Environment,
    InputContext,
    Instruction,
    Journal,
    Lease,
    LeaseSource,
    Listener,
    MemoryJournal,
    ObservedTasks,
    Observer,
    Point,
    PollPolicy,
    Question,
    QuestionWithdrawnError,
    Scope,
    SessionError,
    Snapshot,
    Taken,
    Task,
    TaskHandle,
    TaskRecord,
    TaskRef,
    TasksClient,
    TasksClientError,
    ToolCall,
)
from mcp_tasks_client.machine import Step, input_requests
from mcp_tasks_client.machine.actions import Ask, Forget, Poll, Save, SendAnswers, Wake
from mcp_tasks_client.machine.events import (
    AnswerReady,
    AnswerUnavailable,
    CallFailed,
    CallReturned,
    CancelFailed,
    CancelRequested,
    Event,
    InputAsked,
    Notified,
    ObservationRefused,
    Observed,
    PollFailed,
    Resumed,
    TaskCreated,
    TaskMissing,
    Tick,
    UpdateFailed,
)
from mcp_tasks_client.machine.states import Calling, Completed, Finished, Observing, State, questions_of
from mcp_tasks_client.questions.question import CANCEL, as_heeded, question_id, to_wire

from ..shared_journal import ProcessJournal
from ..virtual_time import VirtualProcess
from . import history
from .parts import Advance, Options, Parts, advancing, rebound
from .process import ANSWERING, Line, Process
from .seams import DroppedIn

__all__ = ["MUTANTS"]

Make: TypeAlias = Callable[[], Parts]

MUTANTS: Final[dict[str, Parts]] = {}


def mutant(make: Make) -> Make:
    MUTANTS[make.__name__] = make()
    return make


# ── what a gateway does ───────────────────────────────────────────────────────────────────────


@mutant
def an_id_that_comes_back_as_text_is_another() -> Parts:
    class TakesNoText(httpx.AsyncBaseTransport):
        def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
            self._inner = inner

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            response = await self._inner.handle_async_request(request)
            sent = json.loads(request.content).get("id")
            if f'"id":"{sent}"' in (await response.aread()).decode().replace(" ", ""):
                return httpx.Response(200, json={"jsonrpc": "2.0", "method": "notifications/message"})
            return response

    return Parts(transport=TakesNoText)


@mutant
def a_credential_that_expired_is_not_renewed() -> Parts:
    return Parts(headers=lambda ask: ask())


# ── what is journaled, and when ───────────────────────────────────────────────────────────────


class HoldsBack(ProcessJournal):
    """A journal that only remembers some records. They die with the process, unless they are stored again."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._held: dict[str, TaskRecord] = {}
        self._unknown: set[str] = set()
        """Records that the disk does not have, though the engine has stored them."""

    def hold_back(self, record: TaskRecord, *, known: bool) -> None:
        self._held[record.record_id] = record
        if not known:
            self._unknown.add(record.record_id)

    async def save(
        self, record: TaskRecord, *, known: bool = False, heeded: Instruction | None = None
    ) -> None:
        self._held.pop(record.record_id, None)
        known = known and record.record_id not in self._unknown
        self._unknown.discard(record.record_id)
        await super().save(record, known=known, heeded=heeded)

    async def remove(self, record: TaskRecord) -> None:
        self._held.pop(record.record_id, None)
        self._unknown.discard(record.record_id)
        await super().remove(record)

    async def by_id(self, record_id: str) -> TaskRecord | None:
        return self._held.get(record_id) or await super().by_id(record_id)


def _without_save(*events: type[Event]) -> Parts:
    """The machine orders no commit for these events. The next commit writes what they have changed."""

    def act_first(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        state, actions = advance(state, event, policy)
        if isinstance(event, events):
            actions = tuple(one for one in actions if not isinstance(one, Save | Forget))
        return state, actions

    return advancing(act_first)


@mutant
def the_task_id_is_not_journaled() -> Parts:
    class WithoutTheFirst(HoldsBack):
        async def save(
            self, record: TaskRecord, *, known: bool = False, heeded: Instruction | None = None
        ) -> None:
            standing = await self.by_id(record.record_id)
            if record.task_id is not None and (standing is None or standing.task_id is None):
                self.hold_back(record, known=known)
            else:
                await super().save(record, known=known, heeded=heeded)

    return Parts(journal=WithoutTheFirst)


@mutant
def a_reply_that_could_not_be_committed_is_dropped() -> Parts:
    taken = deque[Event](maxlen=1000)

    def take_once(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        if any(event is before for before in taken):
            return state, ()  # it comes again, since its commit has failed
        if isinstance(event, CallFailed | CallReturned | InputAsked | TaskCreated):
            taken.append(event)
        return advance(state, event, policy)

    return advancing(take_once)


@mutant
def the_intent_is_not_journaled() -> Parts:
    class Claims(HoldsBack):
        async def claim(self, record: TaskRecord) -> TaskRecord:
            self.hold_back(record, known=False)
            return record

    return Parts(journal=Claims)


@mutant
def answers_are_not_journaled() -> Parts:
    class WithoutAnswers(HoldsBack):
        async def save(
            self, record: TaskRecord, *, known: bool = False, heeded: Instruction | None = None
        ) -> None:
            if heeded is None or heeded.name == CANCEL:
                await super().save(record, known=known, heeded=heeded)
            else:
                self.hold_back(record, known=known)

        async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
            if instruction.name == CANCEL:
                return await super().instruct(record_id, instruction)
            return instruction

    return Parts(journal=WithoutAnswers)


@mutant
def the_delivery_is_not_journaled() -> Parts:
    class NeverDelivers(ProcessJournal):
        def deliver(self, at: float, fences: Mapping[str, int], *, keep_until: float | None = None) -> None:
            pass

    return Parts(journal=NeverDelivers)


@mutant
def the_outcome_is_delivered_before_it_is_journaled() -> Parts:
    return _without_save(Observed)


@mutant
def acting_comes_before_the_commit() -> Parts:
    return _without_save(AnswerReady, TaskCreated)


@mutant
def what_nobody_has_had_is_forgotten() -> Parts:
    class ForgetsAll(MemoryJournal):
        async def prune(self, before: float, now: float, gone: Collection[str] = ()) -> int:
            old = [record for record in await self.records(None) if record.updated_at < before]
            for record in old:
                await self.remove(record)
            return len(old)

    return Parts(disk=ForgetsAll)


@mutant
def what_was_had_just_now_is_forgotten() -> Parts:
    class Hasty(MemoryJournal):
        async def prune(self, before: float, now: float, gone: Collection[str] = ()) -> int:
            return await super().prune(before + history.SPARED_S, now, gone)

    return Parts(disk=Hasty)


@mutant
def an_outcome_that_nobody_has_is_not_found_again() -> Parts:
    class FindsTasks(MemoryJournal):
        async def take_pending(self, *args: Any, leave: Collection[str] = (), **options: Any) -> list[Taken]:
            ended = [record.record_id for record in await self.records(None, pending=True) if record.finished]
            taken = await super().take_pending(*args, leave=[*leave, *ended], **options)
            return [one for one in taken if not one.record.finished]

    return Parts(disk=FindsTasks)


# ── who drives what ───────────────────────────────────────────────────────────────────────────


@mutant
def a_late_owner_may_write() -> Parts:
    class Lax(ProcessJournal):
        async def save(
            self, record: TaskRecord, *, known: bool = False, heeded: Instruction | None = None
        ) -> None:
            standing = await self.by_id(record.record_id)
            if standing is None or standing.fence == record.fence:
                await super().save(record, known=known, heeded=heeded)
            else:
                await self._records.save(replace(record, fence=standing.fence), known=True, heeded=heeded)
                self._note_saved(record, heeded)

    return Parts(journal=Lax)


@mutant
def the_lease_is_never_renewed() -> Parts:
    class NeverRenews(ProcessJournal):
        def keep_renewing(self, source: LeaseSource) -> None:
            pass

    return Parts(journal=NeverRenews)


def _seeing(pid_lives: bool) -> Parts:
    """Every process sees every other one live, or dead."""

    def change(process: Process, options: Options) -> Options:
        before: Environment = options["environment"]
        assert isinstance(before.process, VirtualProcess)
        seeing = replace(before.process, sees=lambda pid: pid_lives)
        return {**options, "environment": replace(before, process=seeing)}

    return Parts(options=change)


@mutant
def every_other_owner_is_taken_for_gone() -> Parts:
    return _seeing(False)


@mutant
def nobody_is_ever_taken_for_gone() -> Parts:
    return _seeing(True)


@mutant
def what_was_released_is_still_driven() -> Parts:
    class ReleasesAtOnce(ProcessJournal):
        async def save(
            self, record: TaskRecord, *, known: bool = False, heeded: Instruction | None = None
        ) -> None:
            await super().save(replace(record, owner=None), known=known, heeded=heeded)

    return Parts(journal=ReleasesAtOnce)


@mutant
def what_is_not_driven_any_more_is_not_released() -> Parts:
    class KeepsAll(ProcessJournal):
        async def save(
            self, record: TaskRecord, *, known: bool = False, heeded: Instruction | None = None
        ) -> None:
            if record.owner is not None or record.finished:
                await super().save(record, known=known, heeded=heeded)

    return Parts(journal=KeepsAll)


# ── what is taken up ──────────────────────────────────────────────────────────────────────────


def _take_pending(change: Callable[[list[TaskRecord], dict[str, Any]], dict[str, Any]]) -> Parts:
    """The disk gives other pending records than it is asked for.

    Args:
        change: Gets all pending records, and the options. Returns the options that are changed.
    """

    class TakesOthers(MemoryJournal):
        async def take_pending(
            self, scope: Scope, owner: str, gone: Collection[str] = (), **options: Any
        ) -> list[Taken]:
            options["gone"] = gone
            options |= change(await self.records(scope, pending=True), options)
            return await super().take_pending(scope, owner, **options)

    return Parts(disk=TakesOthers)


@mutant
def one_more_than_the_limit_is_taken() -> Parts:
    def one_more(pending: list[TaskRecord], options: dict[str, Any]) -> dict[str, Any]:
        return {} if options["limit"] is None else {"limit": options["limit"] + 1}

    return _take_pending(one_more)


@mutant
def what_others_hold_is_taken_up() -> Parts:
    return _take_pending(lambda pending, options: {"gone": [one.owner for one in pending if one.owner]})


@mutant
def what_was_released_is_not_taken_up() -> Parts:
    def leave_them(pending: list[TaskRecord], options: dict[str, Any]) -> dict[str, Any]:
        return {"leave": [*options["leave"], *(one.record_id for one in pending if one.owner is None)]}

    return _take_pending(leave_them)


@mutant
def what_another_application_has_made_is_taken_up() -> Parts:
    return _take_pending(lambda pending, options: {"application": "a"})


@mutant
def what_is_to_be_left_alone_is_taken() -> Parts:
    return _take_pending(lambda pending, options: {"leave": ()})


class _Adopted(AsyncIterator[TaskHandle]):
    """Iterates over adopted calls, by a function that gives the next handle."""

    def __init__(self, take: Callable[[], Any]) -> None:
        self._take = take

    async def __anext__(self) -> TaskHandle:
        handle: TaskHandle = await self._take()
        return handle


@mutant
def what_is_unfinished_takes_no_room() -> Parts:
    class Roomy(TasksClient):
        def adopt(self, limit: int | None = None) -> AsyncIterator[TaskHandle]:
            adopt, given = super().adopt, itertools.count()
            return _Adopted(lambda: anext(adopt(None if limit is None else limit + next(given))))

    return Parts(client=Roomy)


@mutant
def what_comes_free_later_is_not_adopted() -> Parts:
    class LooksOnce(ProcessJournal):
        looks: float = math.inf

        async def take_pending(self, *args: Any, limit: int | None = None, **options: Any) -> list[Taken]:
            self.looks -= 1
            return await super().take_pending(*args, limit=limit if self.looks >= 0 else 0, **options)

    class AdoptsOnce(TasksClient):
        def __init__(self, server: Line, *, journal: LooksOnce, **options: Any) -> None:
            super().__init__(server, journal=journal, **options)
            self._looks_into = journal

        def adopt(self, limit: int | None = None) -> AsyncIterator[TaskHandle]:
            self._looks_into.looks = 1
            return super().adopt(limit)

    return Parts(journal=LooksOnce, client=AdoptsOnce)


@mutant
def what_was_adopted_is_adopted_again() -> Parts:
    class GivesTwice(TasksClient):
        def adopt(self, limit: int | None = None) -> AsyncIterator[TaskHandle]:
            adopted, had, again = super().adopt(limit), list[TaskHandle](), list[TaskHandle]()

            async def take() -> TaskHandle:
                if again:
                    return again.pop()
                handle = await anext(adopted)
                again.extend(one for one in had if one.done)
                had.append(handle)
                return handle

            return _Adopted(take)

    return Parts(client=GivesTwice)


# ── tools/call ────────────────────────────────────────────────────────────────────────────────


@mutant
def tools_call_is_repeated() -> Parts:
    class CallsTwice(Line):
        async def call(self, call: ToolCall, before_send: Any) -> Any:
            try:
                return await super().call(call, before_send)
            except SessionError as error:
                if not error.retryable:
                    raise
            return await super().call(call, before_send)

    return Parts(line=CallsTwice)


@mutant
def a_lost_call_is_sent_again_without_leave() -> Parts:
    class Bold(TasksClient):
        async def call_tool(self, *args: Any, **options: Any) -> Any:
            return await super().call_tool(*args, **{**options, "on_unknown": "resend"})

    return Parts(client=Bold)


@mutant
def a_refused_resend_forgets_the_first_call() -> Parts:
    def forgetful(advance: Advance, state: Any, event: Event, policy: PollPolicy) -> Step:
        state, actions = advance(state, event, policy)
        return (replace(state, again=False) if getattr(state, "again", False) else state), actions

    return advancing(forgetful)


# ── the pace ──────────────────────────────────────────────────────────────────────────────────


def _other_event(change: Callable[[State, Event], Event]) -> Parts:
    """The machine is told of other events."""

    def changed(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        return advance(state, change(state, event), policy)

    return advancing(changed)


def _state_before(*events: type[Event], change: Callable[[Observing], Observing]) -> Parts:
    """The machine takes these events from another state of the observed task."""

    def changed(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        if isinstance(state, Observing) and isinstance(event, events):
            state = change(state)
        return advance(state, event, policy)

    return advancing(changed)


@mutant
def the_hint_is_ignored() -> Parts:
    def without_hint(state: State, event: Event) -> Event:
        if not isinstance(event, TaskCreated | Observed | Notified):
            return event
        return replace(event, task=event.task.model_copy(update={"poll_interval_ms": None}))

    return _other_event(without_hint)


@mutant
def retry_after_is_ignored() -> Parts:
    def without_delay(state: State, event: Event) -> Event:
        failed = isinstance(event, PollFailed | UpdateFailed | CancelFailed)
        return replace(event, retry_after_s=None) if failed else event

    return _other_event(without_delay)


@mutant
def a_tick_polls_though_told_to_wait() -> Parts:
    def unheard(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        after, actions = advance(state, event, policy)
        if isinstance(after, Observing) and isinstance(event, UpdateFailed | CancelFailed):
            after = replace(after, quiet_until=0.0, quiet_s=0.0)  # only the next tick waits
        return after, actions

    return advancing(unheard)


@mutant
def a_restart_forgets_when_the_next_poll_is_due() -> Parts:
    def due_now(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        if isinstance(state, Observing) and isinstance(event, Resumed):
            state, event = replace(state, wait_s=0.0), replace(event, jitter=0.0, due_is_exact=True)
        return advance(state, event, policy)

    return advancing(due_now)


# ── what a poll tells ─────────────────────────────────────────────────────────────────────────


@mutant
def a_poll_that_fails_ends_the_task() -> Parts:
    def give_up(state: State, event: Event) -> Event:
        return TaskMissing(message="", now=event.now) if isinstance(event, PollFailed) else event

    return _other_event(give_up)


@mutant
def a_result_is_cut_short() -> Parts:
    def cut(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        after, actions = advance(state, event, policy)
        if isinstance(state, Observing) and isinstance(after, Finished):
            outcome = after.outcome
            if isinstance(outcome, Completed):
                (content,) = outcome.result["content"]
                result = {"content": [{**content, "text": content["text"][:5]}]}
                after = replace(after, outcome=replace(outcome, result=result))
        return after, actions

    return advancing(cut)


# ── questions ─────────────────────────────────────────────────────────────────────────────────


def _forget_answered(state: Observing) -> Observing:
    return replace(state, questions=tuple(one for one in state.questions if one.stage == "asking"))


@mutant
def each_poll_asks_anew() -> Parts:
    return _state_before(Observed, change=_forget_answered)


@mutant
def forms_come_all_at_once() -> Parts:
    def change(process: Process, options: Options) -> Options:
        async def show(context: InputContext, params: Any) -> None:
            """Let the next form come while a person still fills in this one."""
            question = context.question
            assert question is not None

            async def ask() -> None:
                with suppress(RuntimeError, TasksClientError):
                    answer = await process.ask(context, params)
                    if answer is not None:
                        await question.answer(answer)

            process.begin(ask)

        return options | {"elicitation": show} if "elicitation" in options else options

    return Parts(options=change)


@mutant
def what_nobody_answers_is_declined() -> Parts:
    def decline(state: State, event: Event) -> Event:
        if isinstance(event, AnswerUnavailable):
            for asked in questions_of(state):
                is_form = (asked.request or {}).get("method") == "elicitation/create"
                if asked.key == event.key and asked.unanswered and is_form:
                    return AnswerReady(key=event.key, answer={"action": "decline"}, now=asked.asked_at)
        return event

    return _other_event(decline)


@mutant
def an_answer_that_was_not_acknowledged_is_asked_for_again() -> Parts:
    def ask_again(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        stages: Collection[str] = ()
        if isinstance(event, Tick):
            stages = ("unsent",)
        elif isinstance(event, Resumed | ObservationRefused):
            stages = ("sending", "rejected", "disputed")
        if isinstance(state, Observing) and stages:
            questions = (
                replace(one, stage="open", answer=None) if one.stage in stages else one
                for one in state.questions
            )
            state = replace(state, questions=tuple(questions))
        return advance(state, event, policy)

    return advancing(ask_again)


@mutant
def an_answer_that_was_acknowledged_and_lost_is_not_sent_again() -> Parts:
    def believe(state: Observing) -> Observing:
        return replace(state, questions=tuple(replace(one, listed=0) for one in state.questions))

    return _state_before(Observed, change=believe)


# ── answers that are refused ──────────────────────────────────────────────────────────────────


def _earlier(before: str, then: str) -> Parts:
    """A look takes one fate of the earlier sends of a refused answer for another."""

    def mistake(state: Observing) -> Observing:
        questions = (
            replace(one, earlier=then) if one.stage == "disputed" and one.earlier == before else one  # type: ignore[arg-type]
            for one in state.questions
        )
        return replace(state, questions=tuple(questions))

    return _state_before(Observed, change=mistake)


@mutant
def an_answer_that_may_have_been_taken_is_opened_again() -> Parts:
    return _earlier("unknown", "refused")


@mutant
def a_question_opens_again_after_one_look() -> Parts:
    return _earlier("none", "refused")


@mutant
def one_refusal_by_a_replica_ends_the_wait() -> Parts:
    return _earlier("none", "unknown")


@mutant
def a_lost_reply_to_an_answer_is_forgotten() -> Parts:
    def forget(state: State, event: Event) -> Event:
        return replace(event, untaken=True) if isinstance(event, UpdateFailed) else event

    return _other_event(forget)


@mutant
def a_refused_answer_is_sent_again() -> Parts:
    def keep(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        after, actions = advance(state, event, policy)
        if not (isinstance(state, Observing) and isinstance(after, Observing)):
            return after, actions
        had = {one.key: one for one in state.questions}
        opened = {
            one.key for one in after.questions if one.key in had and one.refusals > had[one.key].refusals
        }
        questions = (
            replace(one, stage="answered", answer=had[one.key].answer) if one.key in opened else one
            for one in after.questions
        )
        actions = tuple(one for one in actions if not (isinstance(one, Ask) and one.key in opened))
        return replace(after, questions=tuple(questions)), actions

    return advancing(keep)


@mutant
def a_question_is_asked_without_end() -> Parts:
    return Parts(patched=lambda: patch.object(input_requests, "MAX_REFUSALS", 1_000))


@mutant
def a_question_that_opens_again_has_its_old_name() -> Parts:
    def old_name(record_id: str, asked: Any) -> str:
        return question_id(record_id, replace(asked, refusals=0))

    return Parts(patched=partial(rebound, question_id, old_name, history))


# ── answers from outside ──────────────────────────────────────────────────────────────────────


@mutant
def the_last_answer_counts() -> Parts:
    class KeepsTheLast(MemoryJournal):
        def __init__(self) -> None:
            super().__init__()
            self._last: dict[tuple[str, str], Instruction] = {}

        async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
            if await super().instruct(record_id, instruction) is None:
                return None
            self._last[record_id, instruction.name] = instruction
            return instruction

        async def instructions(self, record_id: str) -> list[Instruction]:
            left = await super().instructions(record_id)
            return [self._last.get((record_id, one.name), one) for one in left]

    return Parts(disk=KeepsTheLast)


@mutant
def whoever_is_late_is_told_that_it_counts() -> Parts:
    class TellsAll(MemoryJournal):
        async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
            return None if await super().instruct(record_id, instruction) is None else instruction

    return Parts(disk=TellsAll)


@mutant
def an_answer_is_marked_as_heeded_before_it_is_part_of_the_state() -> Parts:
    class MarksFirst(Observer):
        def __init__(self, inner: Observer, journal: Journal) -> None:
            self._inner, self._journal = inner, journal

        async def after(self, point: Point, record: TaskRecord | None) -> None:
            await self._inner.after(point, record)

        def failed(self, point: Point, record: TaskRecord | None, error: BaseException) -> None:
            self._inner.failed(point, record, error)

        async def before(self, point: Point, record: TaskRecord | None) -> None:
            if point == "commit: AnswerReady" and record is not None:
                for left in await self._journal.instructions(record.record_id):
                    await self._journal.save(record, known=True, heeded=as_heeded(left))
            await self._inner.before(point, record)

    def change(process: Process, options: Options) -> Options:
        marks = MarksFirst(process, process.journal)
        return {**options, "environment": replace(options["environment"], observer=marks)}

    return Parts(options=change)


@mutant
def the_callback_answers_though_another_was_first() -> Parts:
    class BelievesCallbacks(ProcessJournal):
        async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
            standing = await super().instruct(record_id, instruction)
            return standing if ANSWERING.get() is None else instruction

    return Parts(journal=BelievesCallbacks)


@mutant
def what_has_become_part_of_the_state_is_left_in_the_journal() -> Parts:
    class MarksNothing(ProcessJournal):
        async def save(
            self, record: TaskRecord, *, known: bool = False, heeded: Instruction | None = None
        ) -> None:
            await super().save(record, known=known)

    return Parts(journal=MarksNothing)


@mutant
def a_heeded_answer_forgets_whose_it_was() -> Parts:
    class Forgets(ProcessJournal):
        async def save(
            self, record: TaskRecord, *, known: bool = False, heeded: Instruction | None = None
        ) -> None:
            forgotten = None if heeded is None else heeded._replace(body="")
            await super().save(record, known=known, heeded=forgotten)

    return Parts(journal=Forgets)


@mutant
def an_answer_that_a_cancel_has_beaten_is_told_to_count() -> Parts:
    @contextmanager
    def unheard() -> Iterator[None]:
        try:
            yield
        except QuestionWithdrawnError as error:
            if "is being cancelled" not in str(error):
                raise

    class ToldToCount:
        def __init__(self, question: Question) -> None:
            self._question = question

        def __getattr__(self, name: str) -> Any:
            return getattr(self._question, name)

        async def answer(self, answer: Any) -> None:
            with unheard():
                await self._question.answer(answer)

    class TellsAll(TasksClient):
        async def questions(self) -> Any:
            return [ToldToCount(question) for question in await super().questions()]

        async def answer(self, name: str, answer: Any) -> None:
            with unheard():
                await super().answer(name, answer)

    return Parts(client=TellsAll)


@mutant
def nobody_who_drives_is_told_of_answers() -> Parts:
    class TellsNobody(ProcessJournal):
        def listen(self, listener: Listener) -> Callable[[], None]:
            return lambda: None

    return Parts(journal=TellsNobody)


@mutant
def whoever_answers_sends_it_too() -> Parts:
    class SendsItToo(TasksClient):
        def __init__(self, server: Line, **options: Any) -> None:
            super().__init__(server, **options)
            self._sends_by = server

        async def answer(self, name: str, answer: Any) -> None:
            await super().answer(name, answer)
            for record in await self.records():
                state = record.state
                for asked in state.questions if isinstance(state, Observing) else ():
                    if question_id(record.record_id, asked) == name:
                        ref = TaskRef(state.task.task_id, state.session_data)
                        with suppress(SessionError):
                            await self._sends_by.update(ref, {asked.key: to_wire(answer)})

    return Parts(client=SendsItToo)


@mutant
def whoever_takes_a_call_up_does_not_read_what_was_left() -> Parts:
    class ReadsLater(ProcessJournal):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._unread: set[str] = set()

        async def take(self, record_id: str, *args: Any) -> Taken | None:
            self._unread.add(record_id)
            return await super().take(record_id, *args)

        async def take_pending(self, *args: Any, **options: Any) -> list[Taken]:
            every = await super().take_pending(*args, **options)
            self._unread |= {taken.record.record_id for taken in every}
            return every

        async def instructions(self, record_id: str) -> list[Instruction]:
            left = await super().instructions(record_id)
            if record_id not in self._unread:
                return left
            self._unread.discard(record_id)
            return []

    return Parts(journal=ReadsLater)


@mutant
def a_host_whose_lease_has_run_out_goes_on() -> Parts:
    believed_s = 1.5 * history.LEASE_S  # longer than others believe; renewed before they judge it by chance

    class ShortLeases(MemoryJournal):
        async def renew(self, lease: Lease) -> bool:
            return await super().renew(replace(lease, expires_at=lease.renewed_at + history.LEASE_S))

    def change(process: Process, options: Options) -> Options:
        return options | {"environment": replace(options["environment"], lease_s=believed_s)}

    return Parts(disk=ShortLeases, options=change)


def _insisting(insists: Callable[[Process, str, str | None], bool]) -> Parts:
    """A callback goes on asking though it is cancelled.

    Args:
        insists: Gets the process, the server's key of the question, and the task's ID. Returns whether the
            callback goes on, by the reason of its cancellation.
    """

    def change(process: Process, options: Options) -> Options:
        async def insist(context: Any, params: Any) -> Any:
            over, scope = anyio.Event(), anyio.CancelScope()
            answers: list[Any] = []
            failed: list[Exception] = []

            async def ask() -> None:
                try:
                    with scope:
                        answers.append(await process.ask(context, params))
                except Exception as error:
                    failed.append(error)
                over.set()

            process.begin(ask)
            try:
                await over.wait()
            except anyio.get_cancelled_exc_class():
                task_id = context.task.task_id if context.task is not None else None
                if not insists(process, context.key, task_id):
                    scope.cancel()
                raise
            if failed:
                raise failed[0]
            ANSWERING.set(context.key)
            return answers[0]

        kinds = ("elicitation", "sampling", "roots")
        return {name: insist if name in kinds else given for name, given in options.items()}

    return Parts(options=change)


@mutant
def a_question_stands_though_the_lease_has_run_out() -> Parts:
    def has_run_out(process: Process, key: str, task_id: str | None) -> bool:
        heard = key in process.history.left or task_id in process.history.wished
        return process.late and process.history.plan.blind and not heard

    return _insisting(has_run_out)


@mutant
def a_callback_is_not_withdrawn_when_another_has_answered() -> Parts:
    return _insisting(lambda process, key, task_id: key in process.history.left)


@mutant
def a_question_that_is_asked_anew_has_its_old_name() -> Parts:
    def old_name(record_id: str, asked: Any) -> str:
        return question_id(record_id, replace(asked, asked_at=0.0, digest=""))

    return Parts(patched=partial(rebound, question_id, old_name, history))


@mutant
def a_cancel_from_outside_is_forgotten() -> Parts:
    def forget(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        if isinstance(event, CancelRequested) and event.by_instruction:
            return state, (Save(),)
        return advance(state, event, policy)

    return advancing(forget)


# ── cancellation ──────────────────────────────────────────────────────────────────────────────


def _heedless(*events: type[Event]) -> Parts:
    """These events are taken as if nobody had wished to cancel the task."""

    def heedless(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        if not (isinstance(state, Observing) and isinstance(event, events)):
            return advance(state, event, policy)
        after, actions = advance(replace(state, cancel="no"), event, policy)
        return (replace(after, cancel=state.cancel) if isinstance(after, Observing) else after), actions

    return advancing(heedless)


@mutant
def a_cancel_is_sent_before_it_is_journaled() -> Parts:
    return _without_save(CancelRequested)


@mutant
def a_cancel_while_the_call_is_in_flight_is_not_journaled() -> Parts:
    def shrug(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        if isinstance(state, Calling) and isinstance(event, CancelRequested):
            return state, ()
        return advance(state, event, policy)

    return advancing(shrug)


@mutant
def a_cancel_before_there_is_a_task_is_forgotten() -> Parts:
    def forget(advance: Advance, state: Any, event: Event, policy: PollPolicy) -> Step:
        if isinstance(event, TaskCreated) and getattr(state, "cancel_wanted", False):
            state = replace(state, cancel_wanted=False)
        return advance(state, event, policy)

    return advancing(forget)


@mutant
def whoever_resumes_forgets_the_wish_to_cancel() -> Parts:
    return _state_before(Resumed, change=lambda state: replace(state, cancel="no"))


@mutant
def a_cancel_that_was_lost_is_not_said_again() -> Parts:
    class CancelsOnce(Line):
        async def cancel(self, ref: TaskRef) -> None:
            with suppress(SessionError):
                await super().cancel(ref)

    return Parts(line=CancelsOnce)


@mutant
def a_cancel_under_retry_after_is_dropped() -> Parts:
    def drop(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        after, actions = advance(state, event, policy)
        sends = isinstance(event, TaskCreated | Tick | CancelRequested | Resumed)
        if sends and isinstance(after, Observing) and after.cancel == "requested":
            after = replace(after, cancel="acknowledged")  # it was not sent, to leave the server alone
        return after, actions

    return advancing(drop)


@mutant
def questions_stay_up_after_a_cancel() -> Parts:
    return _insisting(lambda process, key, task_id: task_id in process.history.wished)


@mutant
def a_cancelled_task_asks_on() -> Parts:
    return _heedless(Observed)


@mutant
def a_cancelled_task_is_answered() -> Parts:
    def send_too(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        after, actions = advance(state, event, policy)
        answering = isinstance(event, Tick | AnswerReady | Resumed)
        if answering and isinstance(state, Observing) and isinstance(after, Observing):
            other, instead = advance(replace(state, cancel="no"), event, policy)
            sends = tuple(one for one in instead if isinstance(one, SendAnswers))
            if sends and isinstance(other, Observing) and after.cancel != "no":
                polls = tuple(one for one in actions if isinstance(one, Poll))
                before = tuple(one for one in actions if not isinstance(one, Poll))
                return replace(after, questions=other.questions), (*before, *sends, *polls)
        return after, actions

    return advancing(send_too)


class _ClientThatDetaches(TasksClient):
    """A client that detaches an abandoned call, whatever it was told to do."""

    def __init__(self, server: Line, *, on_abandon: str, **options: Any) -> None:
        super().__init__(server, on_abandon="detach", **options)


class _DroppedInThatDetaches(DroppedIn):
    """The same, dropped in."""

    def __init__(self, session: Line, *, on_abandon: str, **options: Any) -> None:
        super().__init__(session, on_abandon="detach", **options)


@mutant
def who_goes_away_cancels_nothing() -> Parts:
    return Parts(client=_ClientThatDetaches, dropped_in=_DroppedInThatDetaches)


@mutant
def who_goes_away_from_a_dropped_in_call_cancels_nothing() -> Parts:
    return Parts(dropped_in=_DroppedInThatDetaches)


# ── what the server tells by itself ───────────────────────────────────────────────────────────


@mutant
def an_end_that_is_told_is_delivered_before_it_is_journaled() -> Parts:
    return _without_save(Notified)


@mutant
def an_end_that_is_told_without_its_result_is_believed() -> Parts:
    def believe(state: State, event: Event) -> Event:
        if not (isinstance(event, Notified) and _lacks_its_end(event.task)):
            return event
        return Observed(task=event.task, session_data=event.session_data, now=event.now, jitter=0.0)

    return _other_event(believe)


def _lacks_its_end(task: Task) -> bool:
    return task.status == "completed" and task.result is None


@mutant
def each_notification_asks_anew() -> Parts:
    return _state_before(Notified, change=_forget_answered)


@mutant
def a_cancelled_task_asks_what_it_is_told() -> Parts:
    return _heedless(Notified)


@mutant
def what_is_told_of_another_task_is_believed() -> Parts:
    class OfEachTask(ObservedTasks):
        def __init__(self, inner: ObservedTasks) -> None:
            self._inner = inner

        def refs(self) -> Mapping[str, TaskRef]:
            return self._inner.refs()

        async def changed(self) -> None:
            await self._inner.changed()

        def deliver(self, snapshot: Snapshot) -> None:
            for task_id in self.refs():
                task = snapshot.task.model_copy(update={"task_id": task_id})
                self._inner.deliver(replace(snapshot, task=task))

    class HearsOfEach(Line):
        async def run(self, observed: ObservedTasks) -> None:
            await super().run(OfEachTask(observed))

    return Parts(line=HearsOfEach)


@mutant
def what_is_told_of_is_not_polled() -> Parts:
    def wait_for_more(advance: Advance, state: State, event: Event, policy: PollPolicy) -> Step:
        after, actions = advance(state, event, policy)
        if isinstance(event, Notified) and isinstance(after, Observing):
            actions = (*actions, Wake(math.inf))
        return after, actions

    return advancing(wait_for_more)
