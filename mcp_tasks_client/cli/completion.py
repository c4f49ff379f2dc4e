"""What the shell offers behind TAB: IDs of calls and of questions, each with words that tell them apart."""

from __future__ import annotations

from collections.abc import Iterator

import typer

import mcp_tasks_client as tasks
from mcp_tasks_client.foreign_text import one_line

from .journal import Where

__all__ = ["complete_question", "complete_record"]

_MOST = 50


def complete_record(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """The IDs of the newest calls that begin so."""
    with tasks.BlockingInbox(_where(context).name_journal()) as inbox:
        for record in reversed(inbox.records(limit=500)):
            if record.record_id.startswith(incomplete):
                words = f"{record.tool or 'task'} {record.label or ''}"
                yield record.record_id, one_line(f"{words} {record.status}", 60)


def complete_question(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """The IDs of the open questions that begin so."""
    with tasks.BlockingInbox(_where(context).name_journal()) as inbox:
        for question in inbox.questions()[:_MOST]:
            if question.question_id.startswith(incomplete):
                yield question.question_id, one_line(f"{question.tool} {question.label or ''}", 60)


def _where(context: typer.Context) -> Where:
    """The journal that the line names so far."""
    given = context.params
    return Where(given.get("journal"), given.get("schema"), given.get("keys"))
