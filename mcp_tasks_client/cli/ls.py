"""``mcp-tasks ls``: the calls in the journal, of all servers and programs."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import mcp_tasks_client as tasks
from mcp_tasks_client.foreign_text import one_line

from .journal import ApplicationOption, JournalOption, KeysOption, PrincipalOption, SchemaOption, Where
from .lines import short_id
from .output import Output
from .running import run
from .seen import SeenCall, look_at
from .times import span

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["draw_calls", "find_calls", "ls"]


def ls(
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also calls whose outcome was received.")] = False,
    state: Annotated[str | None, typer.Option(help="Only calls in this state, such as working.")] = None,
    server: Annotated[
        str | None, typer.Option(help="Only calls at a server whose name has this text.")
    ] = None,
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None,
    label: Annotated[str | None, typer.Option(help="Only calls of this label.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many calls, the newest.")] = None,
    json: Annotated[bool, typer.Option("--json", help="A JSON array.")] = False,
    journal: JournalOption = None,
    schema: SchemaOption = None,
    keys: KeysOption = None,
    principal: PrincipalOption = None,
    application: ApplicationOption = None,
) -> None:
    """List calls that are open, or whose outcome nobody has received; the newest last."""
    where, output = Where(journal, schema, keys, principal, application), Output(as_json=json)

    def is_wanted(seen: SeenCall) -> bool:
        record = seen.record
        return (
            (all_ or seen.is_open)
            and state in (None, seen.state)
            and (server is None or server in record.scope.endpoint)
            and tool in (None, record.tool)
        )

    async def main() -> None:
        async with where.inbox() as inbox:
            calls = await find_calls(inbox, is_wanted, label, limit)
        if json:
            output.document([one.document() for one in calls])
        elif calls:
            output.draw(*draw_calls(calls, limit))
        else:
            output.note("No call is open." if not all_ else "The journal has no such call.")

    run(main, output, where)


async def find_calls(
    inbox: tasks.Inbox, is_wanted: Callable[[SeenCall], bool], label: str | None, limit: int | None
) -> list[SeenCall]:
    """The newest calls that are wanted, oldest first.

    Raises:
        JournalError: The journal could not be read.
    """
    seen = await look_at(inbox, await inbox.records(label=label))
    wanted = [one for one in seen if is_wanted(one)]
    return wanted if limit is None else wanted[-limit:]


def draw_calls(calls: Sequence[SeenCall], limit: int | None = None) -> Iterator[RenderableType]:
    """A table of calls. In a terminal it is no higher than the screen, unless a limit is given."""
    left_out = 0
    if limit is None and sys.stdout.isatty():
        left_out = max(0, len(calls) - max(1, shutil.get_terminal_size().lines - 4))
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("ID", "STATE", "CALL", "SERVER", "AGE", ""):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for seen in calls[left_out:]:
        record = seen.record
        age = span((record.delivered_at or time.time()) - record.created_at)
        cells = (
            short_id(record.record_id),
            seen.state,
            seen.title,
            one_line(record.scope.endpoint),
            age,
            seen.note(),
        )
        table.add_row(
            *(Text(cell, style=_style_of(seen) if at == 1 else "") for at, cell in enumerate(cells))
        )
    yield table
    if left_out:
        yield Text(f"… and {left_out} more, which are older: --limit shows them")


_STYLES = {"input_required": "yellow", "outcome_unknown": "red", "failed": "red", "completed": "green"}


def _style_of(seen: SeenCall) -> str:
    return _STYLES.get(seen.state, "")
