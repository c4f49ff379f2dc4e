"""``mcp-tasks show``: one call whole, and why nothing happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

import mcp_tasks_client as tasks
from mcp_tasks_client.foreign_text import one_line

from .completion import complete_record
from .journal import JournalOption, KeysOption, PrincipalOption, SchemaOption, Where, find_record
from .output import Output, as_sent, read_result
from .running import run
from .seen import SeenCall, look_at, message_of
from .times import ahead, exact

__all__ = ["show", "tell"]


def show(
    id: Annotated[
        str, typer.Argument(help="Of the call; a beginning is enough.", autocompletion=complete_record)
    ],
    json: Annotated[bool, typer.Option("--json", help="A JSON object.")] = False,
    journal: JournalOption = None,
    schema: SchemaOption = None,
    keys: KeysOption = None,
    principal: PrincipalOption = None,
) -> None:
    """Show one call whole, and why nothing happens."""
    where, output = Where(journal, schema, keys, principal), Output(as_json=json)

    async def main() -> None:
        async with where.inbox() as inbox:
            record = await find_record(inbox, id)
            (seen,) = await look_at(inbox, [record])
            outcome = await inbox.outcome(record)
            estimate = await inbox.estimate(record)
        if json:
            output.document({**seen.document(), "estimate": _numbers(estimate), **_document_of(outcome)})
        else:
            output.text("\n".join(tell(seen, outcome, where, estimate)))

    run(main, output, where)


def _document_of(outcome: Any) -> dict[str, Any]:
    if isinstance(outcome, tasks.TasksClientError):
        return {"result": None, "error": str(outcome)}
    return {"result": None if outcome is None else as_sent(outcome), "error": None}


def _numbers(estimate: tasks.Estimate) -> dict[str, Any] | None:
    """The usual duration of such calls, for programs; ``None`` while too few are known."""
    if estimate.half_s is None:
        return None
    return {"calls": estimate.calls, "half_s": estimate.half_s, "nine_of_ten_s": estimate.nine_of_ten_s}


def tell(seen: SeenCall, outcome: Any, where: Where, estimate: tasks.Estimate | None = None) -> Iterator[str]:
    """A call in lines for people. ``outcome`` is a result, an error, or ``None`` while there is neither."""
    rows = dict(_rows(seen))
    if estimate is not None and estimate.text and not seen.record.finished:
        rows["Estimate"] = str(estimate)
    width = max(map(len, rows))
    for name, value in rows.items():
        yield f"{name:<{width}}  {value}"
    for reason in seen.reasons(where):
        yield ""
        yield reason
    for question in seen.questions:
        yield ""
        yield f"Question {question.question_id}: {message_of(question)}"
        if question.refused is not None:
            yield f"The server has refused the last answer: {one_line(question.refused)}"
    if isinstance(outcome, tasks.TasksClientError):
        yield ""
        yield str(outcome)
    elif outcome is not None:
        yield ""
        yield "Result" if not outcome.is_error else "Error of the tool"
        yield read_result(outcome)


def _rows(seen: SeenCall) -> Iterator[tuple[str, str]]:
    record = seen.record
    yield "Call", record.record_id
    yield "Tool", seen.title
    yield "State", seen.state
    if seen.status_message is not None:
        yield "Server says", seen.status_message
    yield "Server", one_line(record.scope.endpoint)
    if record.scope.principal:
        yield "On behalf of", one_line(record.scope.principal)
    if record.application is not None:
        yield "Application", one_line(record.application)
    if record.origin is not None:
        origin = record.origin
        yield "Made by", one_line(f"{origin.program} on {origin.host}, process {origin.pid}")
    if record.idempotency_key is not None:
        yield "Key", one_line(record.idempotency_key)
    if not record.finished:
        yield "Driven", "by a living process" if seen.is_driven else "by nobody"
    yield "Made", exact(record.created_at)
    if record.finished:
        yield "Ended", exact(record.updated_at)
    if record.delivered_at is not None:
        yield "Received", exact(record.delivered_at)
    if record.expires_at is not None:
        yield "Server keeps it", f"until {exact(record.expires_at)} ({ahead(record.expires_at)})"
    if record.last_failure is not None:
        name = "No room since" if record.status == "gathering" else "Not reached since"
        yield name, f"{exact(record.last_failure.since)}, {record.last_failure.count} requests"
