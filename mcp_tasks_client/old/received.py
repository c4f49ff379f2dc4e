"""Tasks that a server of 2025-11-25 has us run: their states, and the replies about them. Pure.

The server asks for an elicitation or a sampling *as a task*, gets a task at once, and comes back for the
result. Such a task is only ever ``working`` until it has ended: we need nothing from the server for it.

It is a journal's record like any other, of a scope of its own: observed while the host is being asked, and
finished with the answer. Besides what the protocol wants to be told, it holds in which session it was made,
for it is of no concern to any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Final

from .demands import INVALID_PARAMS, AskedTask, Position, RefusedError, cursor
from .journal.base import Scope, TaskRecord
from .sessions.shapes_2025_11_25 import CORE_TASKS_VERSION, id_text, marked, related_task
from .states import Cancelled, Completed, Failed, Finished, Gone, Observing, Outcome, Question
from .wire import JSONObject, RequestId, RpcError, Task, digest

__all__ = [
    "CREATION",
    "INTERNAL_ERROR",
    "RESULT",
    "ReceivePolicy",
    "abandoned",
    "admit",
    "cancelled",
    "completed",
    "created",
    "creation",
    "expires_at",
    "failed",
    "made_in",
    "needed_for",
    "owed",
    "owing",
    "owing_these",
    "page",
    "paid",
    "question",
    "received_scope",
    "repeated",
    "result",
    "shown",
    "told",
    "visible",
    "was_abandoned",
]

CREATION: Final = "creation"
RESULT: Final = "tasks/result"
"""What can be owed to a request: the task that it has become, or what another of its kind is told."""

INTERNAL_ERROR: Final = -32603
_INVALID_REQUEST: Final = -32600

_LONGEST_INTERVAL_MS: Final = 10_000.0
_LARGEST_TTL_MS: Final = 2**53 - 1
_MOST_OWED: Final = 100
"""Replies about one task that are journaled as owed, at most; the latest."""

_OWED: Final = "owed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivePolicy:
    """Limits of the tasks that a server of 2025-11-25 may have its client run.

    Raises:
        ValueError: One is not positive, or the default time-to-live is beyond the longest.
    """

    default_ttl_ms: int = 3_600_000
    """Milliseconds from its creation for which a task is kept where the server does not say."""

    max_ttl_ms: int = 86_400_000
    """The same, at most, whatever the server says."""

    max_working: int = 32
    """Tasks of one session that the host is being asked for at once, at most."""

    max_kept: int = 1000
    """Tasks of one session that are kept at once, at most, those that have ended among them."""

    poll_interval_ms: int = 1000
    """What the server is told to wait between its looks; more, up to ten seconds, once a task is older."""

    page_size: int = 100
    """Tasks in one reply to ``tasks/list``, at most."""

    max_requests: int = 1000
    """Requests about tasks that are being answered at once, at most; those that wait for an end count."""

    max_requests_per_s: int = 100
    """Requests about tasks in one session in a second, at most; ten times as many may come at once."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value <= _LARGEST_TTL_MS:
                raise ValueError(f"{name} must be more than 0, and a number, got {value}")
        if self.default_ttl_ms > self.max_ttl_ms:
            raise ValueError(f"default_ttl_ms must be at most max_ttl_ms, got {self.default_ttl_ms}")


# ── states ────────────────────────────────────────────────────────────────────────────────────


def received_scope(endpoint: str, principal: str) -> Scope:
    """Where the journal keeps what a server has us run, apart from what we have it run."""
    return Scope(f"{endpoint}#received", principal)


def created(
    asked: AskedTask,
    *,
    record_id: str,
    task_id: str,
    party: str,
    scope: Scope,
    at: float,
    policy: ReceivePolicy,
) -> TaskRecord:
    """The record of a new task, which the server has yet to be told of.

    Args:
        asked: What the server wants.
        record_id: Of the record; random.
        task_id: Of the task; a secret, for whoever knows it and comes in the same session has its answer.
        party: The session that it is made in.
        scope: Where the journal keeps it.
        at: Wall clock, seconds since the epoch.
        policy: The limits.
    """
    marks: JSONObject = {} if asked.related is None else marked({}, asked.related)
    ttl_ms = math.ceil(min(asked.ttl_ms or policy.default_ttl_ms, policy.max_ttl_ms))
    task = Task(
        task_id=task_id,
        status="working",
        created_at=_iso(at),
        last_updated_at=_iso(at),
        ttl_ms=ttl_ms,
        poll_interval_ms=policy.poll_interval_ms,
        request_state=party,
        **{**marks, _OWED: [[asked.request_id, CREATION]]},
    )
    to_ask = Question(key=task_id, digest=digest(asked.request), stage="asking", request=asked.request)
    return TaskRecord(
        record_id=record_id,
        scope=scope,
        tool=asked.method,
        arguments_digest=asked.digest,
        state=Observing(task=task, received_at=at, due_at=at + ttl_ms / 1000, questions=(to_ask,)),
        created_at=at,
        updated_at=at,
        generation=CORE_TASKS_VERSION,
    )


def completed(record: TaskRecord, answer: JSONObject, at: float) -> TaskRecord:
    """The task with the host's answer."""
    return _ended(record, Completed(result=answer), "completed", None, at)


def failed(record: TaskRecord, error: RpcError, at: float) -> TaskRecord:
    """The task that has no answer, but an error."""
    outcome = Failed(code=error.code, message=error.message, data=error.data, status_message=error.message)
    return _ended(record, outcome, "failed", error.message, at)


def cancelled(record: TaskRecord, at: float) -> TaskRecord:
    """The task that the server does not want any more.

    Raises:
        RefusedError: It has ended.
    """
    said = "The task was cancelled by request."
    return _given_up(record, Cancelled(status_message=said), said, at)


def abandoned(record: TaskRecord, at: float) -> TaskRecord:
    """The task that was needed for one of the server's own which was cancelled.

    Raises:
        RefusedError: It has ended.
    """
    said = "The task that this was needed for was cancelled."
    return _given_up(record, Gone(why="not_found", message=said), said, at)


def was_abandoned(record: TaskRecord) -> bool:
    """Whether nobody is to be told anything about a task."""
    return isinstance(record.state, Finished) and isinstance(record.state.outcome, Gone)


def _given_up(record: TaskRecord, outcome: Outcome, message: str, at: float) -> TaskRecord:
    if record.finished:
        status = shown(record)["status"]
        raise RefusedError(INVALID_PARAMS, f"Cannot cancel task: already in terminal status {status!r}")
    ended = _ended(record, outcome, "cancelled", message, at)
    return replace(ended, delivered_at=expires_at(record))  # there is nothing to come back for


def _ended(record: TaskRecord, outcome: Outcome, status: str, message: str | None, at: float) -> TaskRecord:
    # The only way out of working, and none leads out of what is finished.
    assert isinstance(record.state, Observing), "a task ends once"
    changes = {"status": status, "last_updated_at": _iso(at)}
    task = record.state.task.model_copy(
        update=changes if message is None else {**changes, "status_message": message}
    )
    return replace(record, state=Finished(outcome=outcome, task=task), updated_at=at)


def made_in(record: TaskRecord) -> str:
    """The session that a task was made in."""
    return str(_task(record).request_state)


def needed_for(record: TaskRecord) -> str | None:
    """The server's own task that one is needed for, if it has said so."""
    return related_task(_task(record).model_extra or {})


def owed(record: TaskRecord) -> list[tuple[RequestId, str]]:
    """The requests about a task for whose replies the server waits, as far as is known, and their kinds."""
    return [(request_id, kind) for request_id, kind in (_task(record).model_extra or {}).get(_OWED, ())]


def owing(record: TaskRecord, request_id: RequestId, kind: str) -> TaskRecord:
    """The task with one more of them."""
    these = [*owed(paid(record, request_id)), (request_id, kind)]
    return owing_these(these[-_MOST_OWED:], record)


def paid(record: TaskRecord, request_id: RequestId) -> TaskRecord:
    """The task without one."""
    rest = [one for one in owed(record) if id_text(one[0]) != id_text(request_id)]
    return owing_these(rest, record)


def told(record: TaskRecord) -> TaskRecord:
    """The task that the server knows of, for it has asked about it."""
    return owing_these([one for one in owed(record) if one[1] != CREATION], record)


def owing_these(these: Sequence[tuple[RequestId, str]], record: TaskRecord) -> TaskRecord:
    """The task with these and no other."""
    assert isinstance(record.state, Observing | Finished)
    task = _task(record).model_copy(update={_OWED: [list(one) for one in these]})
    return replace(record, state=replace(record.state, task=task))


def expires_at(record: TaskRecord) -> float:
    """Wall clock, in seconds, from which on a task is forgotten."""
    ttl_ms = _task(record).ttl_ms
    assert ttl_ms is not None, "each task of ours has one"
    return record.created_at + ttl_ms / 1000


def question(record: TaskRecord) -> JSONObject:
    """What the host is to be asked for a task that has not ended."""
    assert isinstance(record.state, Observing), "nobody is asked after the end"
    asked = record.state.questions[0].request
    assert asked is not None, "it is kept for as long as the task goes on"
    return asked


def repeated(asked: AskedTask, records: Sequence[TaskRecord]) -> TaskRecord | None:
    """The task that was made of the same request before, if it goes on.

    Args:
        asked: What the server wants.
        records: Those of the session.
    """
    # One server may give the next request the ID of the last, once that has its answer.
    same = (record for record in records if record.arguments_digest == asked.digest and not record.finished)
    return next(same, None)


def admit(records: Sequence[TaskRecord], policy: ReceivePolicy) -> None:
    """Allow for one more task.

    Args:
        records: Those of the session.
        policy: The limits.

    Raises:
        RefusedError: There are too many.
    """
    working = sum(not record.finished for record in records)
    if working >= policy.max_working:
        raise RefusedError(
            _INVALID_REQUEST, f"Too many tasks: {working} are being worked on; wait for one to end"
        )
    if len(records) >= policy.max_kept:
        raise RefusedError(
            _INVALID_REQUEST, f"Too many tasks: {len(records)} are kept; ask for shorter ones (ttl)"
        )


def visible(record: TaskRecord | None, party: str, now: float) -> TaskRecord:
    """The record, for the session that it was made in.

    Raises:
        RefusedError: There is no such task, as far as this session may know; or its time is over.
    """
    if record is None or made_in(record) != party:
        raise RefusedError(INVALID_PARAMS, "Failed to retrieve task: Task not found")
    if expires_at(record) <= now:
        raise RefusedError(INVALID_PARAMS, "Failed to retrieve task: Task has expired")
    return record


# ── replies ───────────────────────────────────────────────────────────────────────────────────


def shown(record: TaskRecord, at: float | None = None) -> JSONObject:
    """A task as the protocol has it.

    Args:
        record: The task.
        at: The time, by which the server is told to look ever more rarely at what takes its time: one server
            loses whatever it asks while nobody listens. ``None`` tells the shortest interval.
    """
    task = _task(record)
    message = {} if task.status_message is None else {"statusMessage": task.status_message}
    assert task.ttl_ms is not None, "each task of ours has one"
    assert task.poll_interval_ms is not None, "each task of ours has one"
    return {
        "taskId": task.task_id,
        "status": task.status,
        **message,
        "createdAt": task.created_at,
        "lastUpdatedAt": task.last_updated_at,
        "ttl": int(task.ttl_ms),  # integers on the wire, or one server refuses the whole task
        "pollInterval": int(_interval_ms(record, task.poll_interval_ms, at)),
    }


def _interval_ms(record: TaskRecord, shortest_ms: float, at: float | None) -> float:
    age_ms = 0.0 if at is None or record.finished else (at - record.created_at) * 1000
    return max(shortest_ms, min(age_ms / 2, _LONGEST_INTERVAL_MS))


def creation(record: TaskRecord) -> JSONObject:
    """The reply to the question that has become a task."""
    reply, related = {"task": shown(record)}, needed_for(record)
    return reply if related is None else marked(reply, related)


def result(record: TaskRecord) -> JSONObject | RpcError:
    """What the question would have been answered with, had it been a plain one. The task has ended.

    Source: 2025-11-25, "Result Retrieval", and "Associating Task-Related Messages" for the mark (MUST).
    """
    assert isinstance(record.state, Finished), "there is none before"
    match record.state.outcome:
        case Completed(result=answer):
            return marked(answer, _task(record).task_id)
        case Failed(code=code, message=message, data=data):
            return RpcError(code, message, data)
        case _:
            return RpcError(INTERNAL_ERROR, "The task was cancelled.", None)


def page(
    records: Sequence[TaskRecord], after: Position | None, size: int, at: float | None = None
) -> JSONObject:
    """The reply to ``tasks/list``: each task that stands is in one page, whatever comes and goes meanwhile.

    Args:
        records: Those of the session, in any order.
        after: The place of the last one of the page before.
        size: Tasks in a page, at most.
        at: The time, as for :func:`shown`.
    """
    places = sorted((record.created_at, record.record_id, shown(record, at)) for record in records)
    rest = [place for place in places if after is None or place[:2] > after]
    reply: JSONObject = {"tasks": [task for _, _, task in rest[:size]]}
    return {**reply, "nextCursor": cursor(rest[size - 1][:2])} if len(rest) > size else reply


def _task(record: TaskRecord) -> Task:
    assert isinstance(record.state, Observing | Finished)
    assert record.state.task is not None, "each of ours has one"
    return record.state.task


def _iso(at: float) -> str:
    """A time as ISO 8601."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
