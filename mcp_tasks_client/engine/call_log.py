"""The life of each call in the log: one line for each turn that it takes, with fields in ``extra``.

A line is written after its commit. A call that is not journaled leaves no line: one without a key and a task.
"""

from __future__ import annotations

import logging
from typing import Final

from ..errors import InputUnansweredError, TasksClientError
from ..machine.events import (
    AnswerReady,
    CallLost,
    CallRefused,
    CancelRequested,
    Event,
    Observed,
    Resumed,
    TaskCreated,
    UpdateRefused,
)
from ..machine.record import TaskRecord
from ..machine.states import OutcomeUnknown
from ..protocol.text import name_tool, quote, shorten

__all__ = ["log_commit", "log_delivery", "log_late_answer", "log_left", "log_park", "log_question"]

logger = logging.getLogger("mcp_tasks_client")

_EXPECTED_ENDS: Final = ("completed", "failed", "cancelled")


def log_commit(before: TaskRecord, after: TaskRecord, event: Event) -> None:
    """Log a committed event of a call: the record before the event, and the record now."""
    match event:
        case TaskCreated(attached=True):
            _log("attached", after, "was attached")
        case TaskCreated():
            _log("created", after, "was created")
        case AnswerReady():
            _log("answered", after, "has an answer to its question")
        case UpdateRefused(words=words):
            _log("refused", after, f"has an answer that the server refuses: {words}", logging.WARNING)
        case CancelRequested():
            _log("cancelling", after, "is to be cancelled")
        case Resumed(due_is_exact=False):
            _log("taken over", after, "is taken over; its earlier driver is gone")
        case Resumed():
            _log("resumed", after, "is resumed")
        case CallLost():
            _log("lost", after, "has lost the reply to tools/call; the tool may have run", logging.WARNING)
        case CallRefused() if after.last_failure is not None:
            _log("waiting", after, f"waits for a slot: {after.last_failure}")
            return
    if before.last_failure is None and after.last_failure is not None:
        _log("unreachable", after, f"is not seen: {after.last_failure}", logging.WARNING)
    if after.finished:
        expected = after.status in _EXPECTED_ENDS
        _log("ended", after, f"has ended: {after.status}", logging.INFO if expected else logging.WARNING)
    elif before.last_failure is not None and after.last_failure is None and isinstance(event, Observed):
        _log("reachable", after, "is seen again")


def log_question(record: TaskRecord, method: str) -> None:
    """Log that a question is put to the host. The method is that of the question: ``elicitation/create``."""
    _log("asked", record, f"waits for an answer of the host: {method}")


def log_left(record: TaskRecord) -> None:
    """Log that the host leaves a question to a later answer."""
    _log("left", record, "has a question that the host leaves for a later answer")


def log_late_answer(record: TaskRecord) -> None:
    """Log that an answer of the host is not used, because another answer came first."""
    _log("late answer", record, "has another answer already; the host's comes too late and is not sent")


def log_doubt(record: TaskRecord, error: Exception) -> None:
    """Log that nothing is sent for a call until the journal confirms that no other process drives it."""
    why = f"is not polled: the lease of this process has run out, and the journal cannot be read: {error}"
    _log("in doubt", record, why, logging.WARNING)


def log_park(record: TaskRecord, error: Exception) -> None:
    """Log why a call is no longer driven, though it has not ended."""
    if isinstance(record.state, OutcomeUnknown):
        return  # it was told when the reply was lost
    # The host decides who answers, and when its client closes.
    expected = isinstance(error, InputUnansweredError) or type(error) is TasksClientError
    _log("parked", record, f"is parked: {error}", logging.INFO if expected else logging.WARNING)


def log_delivery(record: TaskRecord) -> None:
    """Log that the host has the outcome of a call."""
    _log("delivered", record, "was delivered")


def _log(event: str, record: TaskRecord, said: str, level: int = logging.INFO) -> None:
    if not (record.kept and logger.isEnabledFor(level)):
        return
    task = None if record.task_id is None else shorten(record.task_id)
    tool = name_tool(record.tool)
    extra = {
        "mcp_event": event,
        "mcp_tool": record.tool,
        "mcp_task": task,
        "mcp_status": quote(record.status, record.task_id),
        "mcp_record": record.record_id,
        "mcp_endpoint": record.scope.endpoint,
        "mcp_principal": record.scope.principal,
    }
    call = f"The call of {tool}" if task is None else f"Task {task} of {tool}"
    logger.log(level, "%s %s", call, quote(said, record.task_id), extra=extra)
