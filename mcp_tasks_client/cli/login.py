"""``mcp-tasks login``: log in at a server, in a browser."""

from __future__ import annotations

import sys
from typing import Annotated

import anyio
import typer

from mcp_tasks_client.foreign_text import one_line

from .exits import CommandError, Exit
from .journal import Where
from .lines import make_line
from .oauth import log_in
from .output import Output
from .running import run
from .server import ServerArgument, read_login_server
from .times import exact, iso

__all__ = ["login"]

_LONGEST_URL = 8_000


def login(
    server: ServerArgument,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Open no browser. The URL is on stderr in any case.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long the user may take.", min=0.0)
    ] = 300.0,
    json: Annotated[bool, typer.Option("--json", help="A JSON object.")] = False,
) -> None:
    """Log in at a server, in a browser on this machine.

    The token is kept in a file of the user's alone. Every verb sends it to this server and to no other one,
    and renews it. A credential in the line, or in an mcp.json, is used in its place.
    """
    output = Output(as_json=json)

    async def main() -> None:
        target = read_login_server(server)
        again = make_line("login", target.name)

        async def visit(page: str) -> None:
            output.note("Log in on this page:")
            output.next(one_line(page, _LONGEST_URL))
            if not no_browser and sys.stdin.isatty() and sys.stderr.isatty():
                import webbrowser  # on use, as all that only a login needs

                await anyio.to_thread.run_sync(webbrowser.open, page, abandon_on_cancel=True)

        try:
            made = await log_in(target.login_file(), target.headers, visit, timeout)
        except CommandError as error:
            if error.exit in (Exit.TIMED_OUT, Exit.CREDENTIAL_REFUSED, Exit.UNREACHABLE):
                error.next = again
            raise
        if json:
            told = {"expires_at": iso(made.expires_at), "renews": made.renews}
            output.document({"server": target.name, **told})
            return
        until = "" if made.expires_at is None else f" The token expires at {exact(made.expires_at)}"
        renewed = ", and is renewed by itself." if made.renews else "."
        output.text(f"You are logged in at {target.name}.{until}{renewed if until else ''}")

    run(main, output, Where())
