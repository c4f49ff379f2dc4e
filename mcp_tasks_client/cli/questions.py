"""``mcp-tasks questions``: the questions of servers, of all calls, and the lines that answer."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

import mcp_tasks_client as tasks
from mcp_tasks_client.estimate import format_span
from mcp_tasks_client.foreign_text import one_line
from mcp_tasks_client.progress import title_of

from .journal import ApplicationOption, JournalOption, KeysOption, PrincipalOption, SchemaOption, Where
from .lines import short_question
from .output import Output
from .running import run
from .seen import document_of_question, message_of
from .times import ahead, exact

__all__ = ["questions"]


def questions(
    label: Annotated[str | None, typer.Option(help="Only of calls of this label.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many questions, the oldest.")] = None,
    json: Annotated[bool, typer.Option("--json", help="A JSON array.")] = False,
    journal: JournalOption = None,
    schema: SchemaOption = None,
    keys: KeysOption = None,
    principal: PrincipalOption = None,
    application: ApplicationOption = None,
) -> None:
    """List the questions that wait for an answer."""
    where, output = Where(journal, schema, keys, principal, application), Output(as_json=json)

    async def main() -> None:
        async with where.inbox() as inbox:
            found = (await inbox.questions(label=label))[:limit]
        if json:
            output.document([document_of_question(one) for one in found])
        elif found:
            _write(found, where, output, is_bounded=limit is None)
        else:
            output.note("No question is open.")

    run(main, output, where)


def _write(found: Sequence[tasks.Question], where: Where, output: Output, *, is_bounded: bool) -> None:
    """Write questions. In a terminal they are no higher than the screen, unless a limit is given."""
    told = [list(_tell(one, where)) for one in found]
    if not sys.stdout.isatty():
        output.text("\n".join(line for lines in told for line in lines))
        return
    size = shutil.get_terminal_size()
    room, shown = size.lines - 2, 0
    while shown < len(told) and (not is_bounded or shown == 0 or len(told[shown]) <= room):
        room -= len(told[shown])
        shown += 1
    from rich.text import Text

    lines = [line for lines in told[:shown] for line in lines]
    if left_out := len(told) - shown:
        lines.append(f"… and {left_out} more, which are newer: --limit shows them")
    texts = [Text(line) for line in lines]
    for text in texts:
        text.truncate(size.columns, overflow="ellipsis")
    output.draw(*texts)


def _tell(question: tasks.Question, where: Where) -> Iterator[str]:
    name = short_question(question.question_id)
    title = title_of(question.tool, question.label)
    waits = f"waits for {format_span(time.time() - question.asked_at)}"
    if question.expires_at is not None:
        waits += f", answer it until {exact(question.expires_at)} ({ahead(question.expires_at)})"
    yield f"{name}  {title}  {one_line(question.endpoint)}  {waits}"
    if not question.asks_person:
        yield f"  {one_line(question.method, 60)}, which the program of the call answers."
        return
    yield f"  {message_of(question)}"
    if (url := getattr(question.params, "url", None)) is not None:
        yield from (f"  {line}" for line in _tell_url(url))
    if question.refused is not None:
        yield f"  The server has refused the last answer: {one_line(question.refused)}"
    yield f"  {where.line('answer', name)}"


def _tell_url(url: str) -> Iterator[str]:
    """A URL that a server asks to visit: whole, its host by itself, and warnings."""
    from mcp_tasks_client.forms import read_url  # imported on use: most questions have no URL

    try:
        visit = read_url(url)
    except ValueError as error:
        yield str(error)
        return
    yield f"Visit {visit.url}"
    yield f"Its host is {visit.host}."
    yield from visit.warnings
