"""A call as the verbs see it: its record, its driver, its open questions; in JSON and in words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mcp_tasks_client as tasks
from mcp_tasks_client.estimate import format_span
from mcp_tasks_client.foreign_text import one_line, redact
from mcp_tasks_client.progress import CallLine, line_of, note_of, state_of, title_of

from .journal import Where
from .lines import short_id, short_question
from .output import as_sent
from .times import ahead, iso

__all__ = ["SeenCall", "document_of_question", "look_at", "message_of"]


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call, as it stands in the journal."""

    record: tasks.TaskRecord
    questions: Sequence[tasks.Question]
    is_driven: bool

    @property
    def is_open(self) -> bool:
        """True if the call is not over, or its outcome was not received."""
        return not self.record.finished or self.record.delivered_at is None

    @property
    def state(self) -> str:
        """The state of the call, in a word."""
        return state_of(self.record, self.questions, is_driven=self.is_driven)

    @property
    def title(self) -> str:
        """The tool, and the label of the call if it has one."""
        return title_of(self.record.tool, self.record.label)

    @property
    def status_message(self) -> str | None:
        """The server's words on the task."""
        task = self.record.task
        if task is None or task.status_message is None:
            return None
        return one_line(task.status_message, task_id=task.task_id)

    def reasons(self, where: Where) -> Iterator[str]:
        """The reasons why nothing happens, or the next event: a sentence each, with the line that helps."""
        record, name = self.record, short_id(self.record.record_id)
        if record.finished:
            if record.delivered_at is None:
                yield f"Nobody has received the outcome yet: {where.line('wait', name)}"
            return
        for question in self.questions:
            yield f"It waits for an answer: {where.line('answer', short_question(question.question_id))}"
        if record.last_failure is not None:
            failure = record.last_failure
            said = "had no room for the call" if record.status == "gathering" else "not been reached"
            span = format_span(time.time() - failure.since)
            yield f"The server has {said} for {span}: {one_line(failure.message, task_id=record.task_id)}"
        if not self.is_driven:
            yield from self._reasons_undriven(where, name)
        elif record.due_at is not None:
            yield f"Next look {ahead(record.due_at)}."

    def _reasons_undriven(self, where: Where, name: str) -> Iterator[str]:
        if self.state == "outcome_unknown":
            yield "Its program ended before the server had replied. The tool may have run."
        else:
            yield f"No living process drives it, so nobody polls: {where.line('wait', name)}"

    def note(self, now: float | None = None) -> str:
        """The note of a list beside the call, in one line. ``None`` is the time now."""
        if self.record.finished:
            return "" if self.record.delivered_at is not None else "not received"
        return note_of(
            self.record, time.time() if now is None else now, self.questions, is_driven=self.is_driven
        )

    def line(self, now: float) -> CallLine:
        """The call in one line, of which the time 0 leaves the times out."""
        line = line_of(self.record, now, questions=self.questions, is_driven=self.is_driven)
        return replace(line, note=self.note(now))

    def document(self) -> dict[str, Any]:
        """The call for programs. The ID of the task is a credential, and not part of it."""
        record, failure = self.record, self.record.last_failure
        task, origin = record.task, record.origin
        return {
            "record": record.record_id,
            "state": self.state,
            "tool": record.tool,
            "label": record.label,
            "key": record.idempotency_key,
            "endpoint": record.scope.endpoint,
            "principal": record.scope.principal,
            "application": record.application,
            "origin": None
            if origin is None
            else {"program": origin.program, "host": origin.host, "pid": origin.pid},
            "driven": self.is_driven,
            "created_at": iso(record.created_at),
            "updated_at": iso(record.updated_at),
            "delivered_at": iso(record.delivered_at),
            "expires_at": iso(record.expires_at),
            "next_look_at": iso(record.due_at),
            "status_message": None
            if task is None or task.status_message is None
            else redact(task.status_message, task.task_id),
            "failure": None
            if failure is None
            else {
                "message": redact(failure.message, record.task_id),
                "count": failure.count,
                "since": iso(failure.since),
            },
            "questions": [document_of_question(one) for one in self.questions],
        }


def document_of_question(question: tasks.Question) -> dict[str, Any]:
    """A question for programs, with its params as the server sent them."""
    params = question.params
    return {
        "question": question.question_id,
        "record": question.record_id,
        "tool": question.tool,
        "label": question.label,
        "endpoint": question.endpoint,
        "principal": question.principal,
        "method": question.method,
        "params": None
        if params is None
        else as_sent(params, without={"meta"}),  # which may hold the ID of the task
        "refused": question.refused,
        "asked_at": iso(question.asked_at),
        "expires_at": iso(question.expires_at),
    }


def message_of(question: tasks.OpenQuestion, task_id: str | None = None) -> str:
    """The words of a question, in one line. The task's ID is shortened, if it is given."""
    message = getattr(question.params, "message", None)
    return one_line(message, task_id=task_id) if message else one_line(question.method, 60)


async def look_at(
    inbox: tasks.Inbox, records: Sequence[tasks.TaskRecord], questions: Sequence[tasks.Question] | None = None
) -> list[SeenCall]:
    """See calls as they stand.

    Args:
        inbox: Open.
        records: As the inbox returned them just now.
        questions: All that are open; ``None`` asks the inbox.

    Raises:
        JournalError: The journal could not be read.
    """
    if questions is None:
        questions = await inbox.questions()
    asked: dict[str, list[tasks.Question]] = {}
    for question in questions:
        asked.setdefault(question.record_id, []).append(question)
    return [
        SeenCall(
            one,
            asked.get(one.record_id, ()),
            not one.finished and await inbox.is_driven(one),
        )
        for one in records
    ]
