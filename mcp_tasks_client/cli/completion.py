"""The words that the shell offers behind TAB: IDs of calls and of questions, each with its call in words.

A shell may read the words as code: typer quotes them for zsh in part, and zsh evaluates them once more. So no
character stays that means something to a shell.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import typer

import mcp_tasks_client as tasks
from mcp_tasks_client.progress import title_of

from .exits import CommandError
from .journal import Where

__all__ = ["complete_question", "complete_record"]

_MOST_RECORDS: Final = 500
_MOST_QUESTIONS: Final = 50
_LONGEST_WORDS: Final = 60


def complete_record(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """The IDs of the newest calls that begin so; none where the journal cannot be read."""
    with suppress(tasks.TasksClientError, CommandError), _inbox(context) as inbox:
        for record in reversed(inbox.records(limit=_MOST_RECORDS)):
            if record.record_id.startswith(incomplete):
                words = f"{title_of(record.tool, record.label)} {record.status}"
                yield record.record_id, _plain(words)


def complete_question(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """The IDs of the open questions that begin so; none where the journal cannot be read."""
    with suppress(tasks.TasksClientError, CommandError), _inbox(context) as inbox:
        for question in inbox.questions()[:_MOST_QUESTIONS]:
            if question.question_id.startswith(incomplete):
                yield question.question_id, _plain(title_of(question.tool, question.label))


def _plain(words: str) -> str:
    """The letters and digits of a text, and of its signs those that mean nothing to a shell."""
    kept = "".join(one if one.isalnum() or one in ".,_-" else " " for one in words)
    return " ".join(kept.split())[:_LONGEST_WORDS]


def _inbox(context: typer.Context) -> tasks.BlockingInbox:
    """The calls that the verb sees, by the options that stand in the line so far."""
    given = context.params
    where = Where(given.get("journal"), given.get("schema"), given.get("keys"))
    return tasks.BlockingInbox(where.name_journal(), principal=given.get("principal"))
