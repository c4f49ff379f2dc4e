"""``mcp-tasks logout``: forget the login at a server."""

from __future__ import annotations

from typing import Annotated

import typer

import mcp_tasks_client as tasks

from .journal import Where
from .oauth import revoke
from .output import Output
from .running import run
from .server import ServerArgument, read_login_server

__all__ = ["logout"]


def logout(
    server: ServerArgument,
    json: Annotated[bool, typer.Option("--json", help="A JSON object.")] = False,
) -> None:
    """Forget the login at a server, and have the server forget it.

    The file is removed in any case. The server is told if it has said where, and is waited for some seconds.
    """
    output = Output(as_json=json)

    async def main() -> None:
        target = read_login_server(server)
        file, made = target.login_file(), None
        async with file.locked():
            try:
                made = file.read()
                is_readable = True
            except tasks.CredentialRefusedError:
                is_readable = False
            removed = file.remove()
        revoked = False if not is_readable else None if made is None else await revoke(made)
        if json:
            output.document({"server": target.name, "removed": removed, "revoked": revoked})
        elif not removed:
            output.text(f"There was no login at {target.name}.")
        else:
            output.text(f"You are logged out at {target.name}. {_tell(revoked)}")

    run(main, output, Where())


def _tell(revoked: bool | None) -> str:
    match revoked:
        case True:
            return "The server has forgotten the token."
        case False:
            return "The server could not be told: there the token is good until it expires."
        case None:
            return "The server does not say how to be told: there the token is good until it expires."
