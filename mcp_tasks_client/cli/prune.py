"""``mcp-tasks prune``: forget calls that are long over."""

from __future__ import annotations

from typing import Annotated

import typer

from .exits import CommandError, Exit
from .journal import JournalOption, KeysOption, SchemaOption, Where
from .output import Output
from .running import run
from .times import read_span

__all__ = ["prune"]


def prune(
    older_than: Annotated[
        str,
        typer.Option(metavar="7d|36h|30m", help="How long ago the outcome was received; a minute at least."),
    ] = "7d",
    json: Annotated[bool, typer.Option("--json", help="A JSON object.")] = False,
    journal: JournalOption = None,
    schema: SchemaOption = None,
    keys: KeysOption = None,
) -> None:
    """Forget calls whose outcome was received long ago.

    Tasks that their servers keep no longer are forgotten as well. Programs do so by themselves while they
    run. An idempotency key is free once its call is forgotten: the same line then makes a new call.
    """
    where, output = Where(journal, schema, keys), Output(as_json=json)

    async def main() -> None:
        try:
            older_than_s = read_span(older_than)
        except ValueError as error:
            raise CommandError(Exit.USAGE, f"--older-than {error}") from None
        async with where.inbox() as inbox:
            count = await inbox.prune(older_than_s)
        if json:
            output.document({"forgotten": count})
        else:
            output.text("1 call is forgotten." if count == 1 else f"{count} calls are forgotten.")

    run(main, output, where)
