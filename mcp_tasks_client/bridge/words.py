"""Texts of the bridge for models and persons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import mcp_tasks_client as tasks
from mcp_tasks_client.foreign_text import one_line

__all__ = ["describe_error", "interim", "joined", "listed", "no_such_call"]

_ENDED: Final = "ended, its result is waiting"


def interim(
    tool: str,
    reference: str,
    result_tool: str,
    status: str | None,
    answer_lines: Sequence[str],
    *,
    is_known: bool,
) -> str:
    """The text that a model gets in place of a result, while the work goes on.

    Args:
        tool: The name of the tool.
        reference: Of the call.
        result_tool: The name of the tool that waits for the result.
        status: The latest words of the server; ``None`` if there are none.
        answer_lines: The lines by which a person answers its open questions in a terminal.
        is_known: The server has made a task, so that later bridges know the reference.
    """
    shown = "" if not status else f" Its latest status: {one_line(status)}"
    told = [
        f"The call of {one_line(tool, 100)} is still running.{shown}",
        f'Do not call the tool again. Call {result_tool} with reference "{reference}" to wait for the '
        "result.",
    ]
    if not is_known:
        told.append(
            "The server has made no task of it yet: if this connection ends first, the result is lost."
        )
    told += [
        "The server asks a question that is meant for a person, and nobody was asked yet. Do not answer it "
        f"yourself. Tell the user: in a terminal, `{line}` answers it."
        for line in answer_lines
    ]
    return "\n".join(told)


def joined(tool: str) -> str:
    """The note behind the result of a call that was there before the request."""
    return (
        f"This is the result of the earlier, equal call of {one_line(tool, 100)}. The tool was not called a "
        "second time."
    )


def no_such_call(reference: str, list_tool: str | None) -> str:
    """The text for a reference that names no call.

    Args:
        reference: As the host gave it.
        list_tool: The name of the tool that lists the calls; ``None`` if the host has no such tool.
    """
    listed = "" if list_tool is None else f" {list_tool} lists the calls."
    return (
        f'There is no call with reference "{one_line(reference, 60)}": its result was received before, or '
        f"its bridge ended before the server had made a task of it.{listed}"
    )


def listed(
    records: Sequence[tuple[tasks.TaskRecord, Sequence[str]]], others: Sequence[tuple[str, str, bool]]
) -> str:
    """The calls of a host, for a model.

    Args:
        records: Those in the journal, each with the lines that answer its questions.
        others: The reference and the tool of those that are not in it, and whether they have ended.
    """
    lines = []
    for record, answer_lines in records:
        state = _ENDED if record.finished else one_line(record.status, 40)
        said = record.task.status_message if record.task is not None and not record.finished else None
        told = f" ({one_line(said, 200, task_id=record.task_id)})" if said else ""
        lines.append(_listed(record.record_id, record.tool or "?", f"{state}{told}"))
        lines += [f"  a person has to answer: {one}" for one in answer_lines]
    lines += [_listed(reference, tool, _ENDED if ended else "working") for reference, tool, ended in others]
    return "\n".join(lines) or "No call is running, and no result is waiting."


def _listed(reference: str, tool: str, state: str) -> str:
    return f'reference "{reference}": {one_line(tool, 100)}: {state}'


def describe_error(error: tasks.TasksClientError) -> str:
    """The message of an error, for a model and a log."""
    if isinstance(error, tasks.OutcomeUnknownError) or _may_have_run(error):
        return (
            f"{error} It is not known whether the tool has run. Do not call it again on your own: ask the "
            "user, or look at the effects first."
        )
    if isinstance(error, tasks.InputUnansweredError):
        return f"{error} Do not call the tool again: ask the user."
    if isinstance(error, tasks.JournalError) and _has_task(error):
        return f"{error} The server works on it all the same. Do not call the tool again: ask the user."
    if isinstance(error, tasks.CredentialRefusedError):
        return f"{error} A user logs in by `mcp-tasks login` and the URL of the server, in a terminal."
    return str(error)


def _may_have_run(error: tasks.TasksClientError) -> bool:
    lost = isinstance(error, tasks.SessionError) and error.code is None and not error.not_executed
    return lost and not _has_task(error)


def _has_task(error: tasks.TasksClientError) -> bool:
    return error.handle is not None and error.handle.reference["task_id"] is not None
