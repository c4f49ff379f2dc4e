"""The package with one of its guarantees broken: what the simulation has to notice.

Each mutant is a change of one place, made for as long as its block lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

import anyio

from mcp_tasks_client import (
    commits,
    drive,
    driver,
    engine,
    idempotency,
    listener,
    machine,
    outcomes,
    owners,
    pace,
    questions,
    scheduler,
)
from mcp_tasks_client.old.commits import Commits
from mcp_tasks_client.old.errors import SessionError
from mcp_tasks_client.old.events import (
    Action,
    AnswerReady,
    CancelAcknowledged,
    CancelRequested,
    Event,
    Notified,
    Observed,
    TaskCreated,
    UpdateAcknowledged,
)
from mcp_tasks_client.old.journal import sqlite
from mcp_tasks_client.old.points import Passage, Point

__all__ = ["MUTANTS"]

Mutant = Callable[[], AbstractContextManager[Any]]

MUTANTS: Final[dict[str, Mutant]] = {}


def mutant(make: Mutant) -> Mutant:
    MUTANTS[make.__name__] = make
    return make


def _without(*points: Point) -> AbstractContextManager[Any]:
    """These commits are passed by without being made."""
    pass_by = Passage.__call__

    async def lazy(self: Any, point: Point, work: Any, *args: Any) -> Any:
        async def nothing(*_: Any) -> Any:
            return args[0] if point is Point.CLAIM else None

        return await pass_by(self, point, nothing if point in points else work, *args)

    return patch.object(Passage, "__call__", lazy)


@mutant
def the_task_id_is_not_journaled() -> AbstractContextManager[Any]:
    return _without(Point.TASK_CREATED)


@mutant
def the_intent_is_not_journaled() -> AbstractContextManager[Any]:
    return _without(Point.CLAIM)


@mutant
def answers_are_not_journaled() -> AbstractContextManager[Any]:
    return _without(Point.ANSWER_READY)


@mutant
def the_delivery_is_not_journaled() -> AbstractContextManager[Any]:
    return _without(Point.DELIVERED)


@mutant
def the_outcome_is_delivered_before_it_is_journaled() -> AbstractContextManager[Any]:
    return _behind(lambda event: isinstance(event, Observed))


@mutant
def acting_comes_before_the_commit() -> AbstractContextManager[Any]:
    return _behind(lambda event: isinstance(event, AnswerReady | TaskCreated))


@mutant
def a_cancel_is_sent_before_it_is_journaled() -> AbstractContextManager[Any]:
    return _behind(lambda event: isinstance(event, CancelRequested))


@mutant
def whoever_resumes_forgets_the_wish_to_cancel() -> AbstractContextManager[Any]:
    resume = machine._resume
    return patch.object(
        machine,
        "_resume",
        lambda state, event, policy: resume(replace(state, cancel="no"), event, policy),
    )


@mutant
def a_cancel_that_was_lost_is_not_said_again() -> AbstractContextManager[Any]:
    cancel = driver.Driver.cancel

    async def once(self: Any, drive: Any) -> Any:
        _, error = await cancel(self, drive)
        return CancelAcknowledged(), error

    return patch.object(driver.Driver, "cancel", once)


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
    return patch.object(drive.Drive, "stop_asking", lambda self: None)


@mutant
def a_cancelled_task_asks_on() -> AbstractContextManager[Any]:
    return _heedless("_observe")


@mutant
def a_cancelled_task_is_answered() -> AbstractContextManager[Any]:
    return _heedless("_send")


def _heedless(step: str) -> AbstractContextManager[Any]:
    """A step that is taken as if nobody had wished to cancel."""
    take = getattr(machine, step)

    def heedless(state: Any, *args: Any, **options: Any) -> Any:
        after, actions = take(replace(state, cancel="no"), *args, **options)
        return (replace(after, cancel=state.cancel) if hasattr(after, "cancel") else after), actions

    return patch.object(machine, step, heedless)


@mutant
def what_nobody_has_had_is_forgotten() -> AbstractContextManager[Any]:
    prune = sqlite._PRUNE.replace("delivered_at < ?", "coalesce(delivered_at, updated_at) < ?")
    return patch.object(sqlite, "_PRUNE", prune)


@mutant
def what_was_had_just_now_is_forgotten() -> AbstractContextManager[Any]:
    return patch.object(commits, "_SPARED_S", 0.0)


@mutant
def who_goes_away_cancels_nothing() -> AbstractContextManager[Any]:
    async def nothing(self: Any, drive: Any) -> None: ...

    return patch.object(engine.Engine, "_cancel_abandoned", nothing)


def _behind(which: Callable[[Event], bool]) -> AbstractContextManager[Any]:
    """What these events change is written with the next one's."""
    feed = Commits.feed

    async def early(self: Any, drive: Any, event: Event) -> tuple[Action, ...]:
        if not which(event) or not drive.owned:
            return await feed(self, drive, event)
        state, actions = machine.advance(drive.record.state, event, self._policy)
        drive.record = replace(drive.record, state=state)
        return tuple(one for one in actions if not isinstance(one, commits.Save | commits.Forget))

    return patch.object(Commits, "feed", early)


@mutant
def each_poll_asks_anew() -> AbstractContextManager[Any]:
    def forgetful(known: Any, requests: Any) -> Any:
        fresh, reports = questions.new_questions((), requests)
        return tuple(q for q in fresh if q.key not in {k.key for k in known if k.stage == "asking"}), reports

    return patch.object(machine, "new_questions", forgetful)


@mutant
def an_answer_that_was_not_acknowledged_is_asked_for_again() -> AbstractContextManager[Any]:
    def reopened(asked: Any, *stages: str) -> Any:
        return tuple(replace(q, stage="open", answer=None) if q.stage in stages else q for q in asked)

    return patch.object(machine, "unsent", reopened)


@mutant
def an_update_that_was_lost_is_not_sent_again() -> AbstractContextManager[Any]:
    update = driver.Driver.update

    async def once(self: Any, drive: Any, answers: Any) -> Event:
        await update(self, drive, answers)
        return UpdateAcknowledged(keys=tuple(answers))

    return patch.object(driver.Driver, "update", once)


@mutant
def the_hint_is_ignored() -> AbstractContextManager[Any]:
    return patch.object(pace, "poll_delay", lambda hint, unchanged, policy, jitter, first=False: 0.25)


@mutant
def retry_after_is_ignored() -> AbstractContextManager[Any]:
    later = pace.after_failure
    return patch.object(
        machine,
        "after_failure",
        lambda state, now, jitter, _, policy: later(state, now, jitter, None, policy),
    )


@mutant
def a_restart_forgets_when_the_next_poll_is_due() -> AbstractContextManager[Any]:
    def at_once(state: Any, now: float, jitter: float, policy: Any, *, exact: bool) -> Any:
        return replace(state, due_at=now, wait_s=0.0)

    return patch.object(machine, "after_restart", at_once)


@mutant
def a_late_owner_may_write() -> AbstractContextManager[Any]:
    return patch.object(sqlite, "_SAVE_KNOWN", sqlite._SAVE_KNOWN.replace("fence = ?", "? IS NOT NULL"))


@mutant
def the_lease_is_never_renewed() -> AbstractContextManager[Any]:
    return patch.object(owners.Tenure, "due", lambda self, clock: False)


@mutant
def every_other_owner_is_taken_for_gone() -> AbstractContextManager[Any]:
    return patch.object(owners.Tenure, "judge", lambda self, clock: lambda owner, lease: True)


@mutant
def nobody_is_ever_taken_for_gone() -> AbstractContextManager[Any]:
    return patch.object(owners.Tenure, "judge", lambda self, now: lambda owner, lease: False)


@mutant
def tools_call_is_repeated() -> AbstractContextManager[Any]:
    call = driver.Driver.call

    async def twice(self: Any, drive: Any, send: Any, leaving: Any) -> Any:
        event, error = await call(self, drive, send, leaving)
        if isinstance(error, SessionError) and error.retryable:
            event, error = await call(self, drive, send, leaving)
        return event, error

    return patch.object(driver.Driver, "call", twice)


@mutant
def a_lost_call_is_sent_again_without_leave() -> AbstractContextManager[Any]:
    lost = idempotency.Intents._lost

    async def bold(self: Any, drive: Any, on_unknown: Any) -> None:
        await lost(self, drive, "resend")

    return patch.object(idempotency.Intents, "_lost", bold)


@mutant
def a_refused_resend_forgets_the_first_call() -> AbstractContextManager[Any]:
    @contextmanager
    def patched() -> Iterator[None]:
        advance = machine.advance

        def forgetful(state: Any, event: Event, policy: Any) -> Any:
            state, actions = advance(state, event, policy)
            return (replace(state, again=False) if getattr(state, "again", False) else state), actions

        with patch.object(commits, "advance", forgetful):
            yield

    return patched()


@mutant
def an_outcome_that_nobody_has_is_not_found_again() -> AbstractContextManager[Any]:
    pending = sqlite._PENDING.replace("pending = 1", "pending = 1 AND due_at IS NOT NULL")
    return patch.object(sqlite, "_PENDING", pending)


@mutant
def what_was_let_go_of_is_still_asked() -> AbstractContextManager[Any]:
    def keep_asking(self: Any, drive: Any) -> None:
        drive.running = drive.following = False
        drive.pulse()
        self.afterwards.release(drive)

    return patch.object(scheduler.Scheduler, "_let_go", keep_asking)


# ── what the server tells by itself ───────────────────────────────────────────────────────────


@mutant
def an_end_that_is_told_is_delivered_before_it_is_journaled() -> AbstractContextManager[Any]:
    return _behind(lambda event: isinstance(event, Notified))


@mutant
def an_end_that_is_told_without_its_result_is_believed() -> AbstractContextManager[Any]:
    return _while_notified("outcome_of", lambda task, *, seed: outcomes.outcome_of(task, seed=False))


@mutant
def each_notification_asks_anew() -> AbstractContextManager[Any]:
    new = questions.new_questions
    return _while_notified(
        "new_questions",
        lambda known, requests: new(tuple(one for one in known if one.stage == "asking"), requests),
    )


@mutant
def a_notification_forgets_what_was_answered() -> AbstractContextManager[Any]:
    take = machine._notified

    def forgetful(state: Any, event: Any) -> Any:
        return take(replace(state, questions=()), event)

    return patch.object(machine, "_notified", forgetful)


@mutant
def a_cancelled_task_asks_what_it_is_told() -> AbstractContextManager[Any]:
    return _heedless("_notified")


@mutant
def what_is_told_of_another_task_is_believed() -> AbstractContextManager[Any]:
    ears = listener.Listener._ears

    def credulous(self: Any, stream: Any) -> Any:
        def heard(task: Any) -> None:
            for task_id, one in list(self._drives.items()):
                if one.running:
                    stream.notified += 1
                    self._told(one, task.model_copy(update={"task_id": task_id}))

        return ears(self, stream)[0], heard

    return patch.object(listener.Listener, "_ears", credulous)


@mutant
def what_is_listened_for_is_not_polled() -> AbstractContextManager[Any]:
    def patience(self: Any, drive: Any, after_s: float) -> float:
        return math.inf if self._stream is not None and self.tells(drive) else after_s

    return patch.object(listener.Listener, "patience", patience)


@mutant
def who_was_refused_listens_again() -> AbstractContextManager[Any]:
    listen = listener.Listener._listen

    async def on_and_on(self: Any, streams: Any) -> None:
        while True:
            await listen(self, streams)
            self._stream = None
            await self._clock.wait(anyio.Event(), 1.0)

    return patch.object(listener.Listener, "_listen", on_and_on)


@mutant
def who_listens_does_so_without_a_pause() -> AbstractContextManager[Any]:
    return patch.multiple(listener, _FIRST_S=0.0, _AGAIN_S=0.0)


def _while_notified(name: str, change: Callable[..., Any]) -> AbstractContextManager[Any]:
    """A change of the machine that lasts while it makes sense of a notification."""
    take = machine._notified

    def changed(state: Any, event: Any) -> Any:
        with patch.object(machine, name, change):
            return take(state, event)

    return patch.object(machine, "_notified", changed)
