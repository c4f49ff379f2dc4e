"""``mcp-tasks ls``: the calls in the journal, of all servers and programs."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

import mcp_tasks_client as tasks
from mcp_tasks_client.estimate import format_span
from mcp_tasks_client.foreign_text import one_line
from mcp_tasks_client.progress import STYLES

from .journal import ApplicationOption, JournalOption, KeysOption, PrincipalOption, SchemaOption, Where
from .lines import short_id
from .output import Output
from .running import run
from .seen import SeenCall, look_at
from .watching import watch_calls

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["draw_calls", "ls"]


def ls(
    all_: Annotated[
        bool,
        typer.Option(
            "--all",
            "-a",
            help="Also calls whose outcome was received. Those without a key are forgotten then.",
        ),
    ] = False,
    state: Annotated[str | None, typer.Option(help="Only calls in this state, such as working.")] = None,
    server: Annotated[
        str | None, typer.Option(help="Only calls at a server whose name has this text.")
    ] = None,
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None,
    label: Annotated[str | None, typer.Option(help="Only calls of this label.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many calls, the newest.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on, and show each change. Ctrl-C ends it.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="A JSON array; under --watch an object for each change, one a line."),
    ] = False,
    journal: JournalOption = None,
    schema: SchemaOption = None,
    keys: KeysOption = None,
    principal: PrincipalOption = None,
    application: ApplicationOption = None,
) -> None:
    """List the calls of all servers and programs.

    Without --all: those that are not over, or whose outcome nobody has received. The newest is the last.

    With --watch the list goes on. A terminal shows it anew, and elsewhere each change is a line. A call that
    leaves the list is shown once more, as it stands then; one that the journal has no more is `forgotten`.
    """
    where, output = Where(journal, schema, keys, principal, application), Output(as_json=json)

    def is_wanted(seen: SeenCall) -> bool:
        record = seen.record
        return (
            (all_ or seen.is_open)
            and state in (None, seen.state)
            and (server is None or server in record.scope.endpoint)
            and tool in (None, record.tool)
        )

    nothing = "The journal has no such call." if all_ else "No call is open."

    def draw(calls: Sequence[SeenCall]) -> Iterator[RenderableType]:
        from rich.text import Text

        return draw_calls(calls, _rows_on_screen()) if calls else iter([Text(nothing)])

    async def main() -> None:
        async with where.inbox() as inbox:
            find = partial(_find_calls, inbox, is_wanted, label, limit)
            if watch:
                await watch_calls(inbox, find, draw, output)
                return
            calls = await find()
        if json:
            output.document([one.document() for one in calls])
        elif calls and sys.stdout.isatty():
            most = _rows_on_screen() if limit is None else None
            output.draw(*draw_calls(calls, most, ": --limit shows them"))
        elif calls:
            output.text("\n".join(align_calls(calls)))
        else:
            output.note(nothing)

    run(main, output, where)


async def _find_calls(
    inbox: tasks.Inbox, is_wanted: Callable[[SeenCall], bool], label: str | None, limit: int | None
) -> list[SeenCall]:
    """The newest calls that are wanted, oldest first.

    Raises:
        JournalError: The journal could not be read.
    """
    seen = await look_at(inbox, await inbox.records(label=label))
    wanted = [one for one in seen if is_wanted(one)]
    return wanted if limit is None else wanted[-limit:]


def draw_calls(
    calls: Sequence[SeenCall], most: int | None = None, hint: str = ""
) -> Iterator[RenderableType]:
    """A table of calls.

    Args:
        calls: Oldest first.
        most: How many are shown, the newest; ``None`` is all.
        hint: Says how the others are seen.
    """
    from rich.table import Table
    from rich.text import Text

    left_out = 0 if most is None else max(0, len(calls) - most)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS:
        # Where there is no room, rich narrows the columns that it may wrap, and leaves the others whole.
        table.add_column(name, no_wrap=name in ("ID", "STATE", "AGE"))
    for seen in calls[left_out:]:
        styles = ("", STYLES.get(seen.state, ""), "", "", "", "")
        cells = zip(_cells(seen, is_short=True), styles, strict=True)
        table.add_row(*(Text(cell, style, no_wrap=True, overflow="ellipsis") for cell, style in cells))
    yield table
    if left_out:
        yield Text(f"… and {left_out} more, which are older{hint}")


def align_calls(calls: Sequence[SeenCall]) -> Iterator[str]:
    """The same table for a file or a pipe: each cell whole, and without rich, which takes time."""
    rows = [_COLUMNS, *map(_cells, calls)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


_COLUMNS: Final = ("ID", "STATE", "CALL", "SERVER", "AGE", "")


def _cells(seen: SeenCall, *, is_short: bool = False) -> tuple[str, ...]:
    """The columns of a call. Where room is short, an address has no scheme."""
    record = seen.record
    age = format_span((record.delivered_at or time.time()) - record.created_at)
    server = one_line(record.scope.endpoint)
    if is_short:
        server = server.removeprefix("https://").removeprefix("http://")
    return short_id(record.record_id), seen.state, seen.title, server, age, seen.note()


def _rows_on_screen() -> int:
    """How many rows a table may have in a terminal, with its header and a line below it."""
    return max(1, shutil.get_terminal_size().lines - 4)
