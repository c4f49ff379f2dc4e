"""``mcp-tasks bridge``: a server for a host that knows nothing of tasks, in front of one that makes them."""

from __future__ import annotations

import asyncio
import getpass
import json
import logging
import os
import secrets
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import mcp_tasks_client as tasks

from .exits import CommandError, Exit, reading_options
from .journal import JournalOption, KeysOption, PrincipalOption, SchemaOption, Where
from .output import Output
from .running import SIGTERM, run
from .server import BearerOption, HeaderEnvOption, HeaderOption, Server, ServerArgument, read_server

__all__ = ["bridge"]

_LEAVE_S: Final = 1.0
"""Seconds for letting go of the calls. The journal has them: a process that ends at once loses nothing."""


class Asked(StrEnum):
    """The ways to ask a person: by the host, or by ``mcp-tasks answer``."""

    HOST = "host"
    INBOX = "inbox"


def bridge(
    server: ServerArgument,
    answer_within: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Answer a call that takes longer, with a reference to its result. 0 is never. Without it, "
            "by the host.",
            show_default=False,
        ),
    ] = None,
    questions: Annotated[
        Asked,
        typer.Option(
            help="`host` asks by the host, where it can; `inbox` leaves questions to `mcp-tasks answer`."
        ),
    ] = Asked.HOST,
    repeat_new: Annotated[
        list[str] | None,
        typer.Option(
            "--repeat-new",
            metavar="TOOL",
            help="A tool, or a pattern such as 'send_*', that runs again each time that it is called.",
        ),
    ] = None,
    application: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The name of the calls in the journal. Without it, that of the host."
        ),
    ] = None,
    http: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve hosts that take a URL, at this port of 127.0.0.1, in place of stdin and stdout. "
            "0 takes a free port. The URL and the token that hosts have to show are written to stderr.",
            show_default=False,
        ),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE",
            help="The environment variable with the token for --http. Without it, each start has a new "
            "token.",
        ),
    ] = None,
    log_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the log goes. Without it, to stderr.")
    ] = None,
    header: HeaderOption = None,
    bearer_env: BearerOption = None,
    header_env: HeaderEnvOption = None,
    journal: JournalOption = None,
    schema: SchemaOption = None,
    keys: KeysOption = None,
    principal: PrincipalOption = None,
) -> None:
    """Give a host that knows nothing of tasks a server of its own, whose calls outlive the host.

    The line is the command of the host's MCP entry. The host speaks to it over stdin and stdout.

    With --http, one process serves any number of hosts that take a URL. Each host's calls are its own, by the
    name that the host gives itself.

    A server that is a command stands behind the rest: mcp-tasks bridge -- COMMAND [ARG].
    """
    where, output = Where(journal, schema, keys, principal or _user_name()), Output()
    token = _read_token(http, token_env)

    async def main() -> Exit | None:
        try:
            from mcp_tasks_client.bridge import Options, serve_streams
            from mcp_tasks_client.bridge.http import listen, serve_socket, url_of
            from mcp_tasks_client.bridge.stdio import open_stdio
        except ImportError:
            raise CommandError(
                Exit.USAGE, "mcp-tasks bridge needs mcp, of the extra [bridge]: pip install mcp"
            ) from None
        target = read_server(server, header, bearer_env, header_env)

        def connect(application: str, **callbacks: Any) -> tuple[tasks.TasksClient, tasks.Inbox]:
            try:
                client = target.make_client(
                    where, lives_long=True, application=application, output_schema="off", **callbacks
                )
            except CommandError as error:
                raise ValueError(str(error)) from error  # each request is answered with its words
            inbox = tasks.Inbox(
                where.name_journal(),
                endpoint=client.endpoint,
                principal=where.principal,
                application=application,
            )
            return client, inbox

        logging.getLogger("mcp_tasks_client").setLevel(logging.INFO)
        with reading_options():  # older versions of typer let NaN pass
            options = Options(
                application=application,
                answer_within_s=answer_within,
                questions=questions.value,
                new_for=repeat_new or (),
                memory=_memory(where),
                line_for=partial(where.line, "answer"),
            )
        # A command, and a server in a file, are named by words that mean another server in another folder.
        name = target.url if isinstance(target, Server) else f"{target.folder}\0{server}"
        if http is None:
            # No client is made yet: the host has a reply before the imports of a client.
            async with open_stdio(at_end=partial(_leave_soon, Exit.RESULT)) as (read, write):
                await _until_stopped(serve_streams(connect, name, read, write, options))
            return None

        target.make_client(where)  # options that make no sense are told now
        try:
            listening = listen(http)
        except OSError as error:
            raise CommandError(Exit.USAGE, f"Port {http} of 127.0.0.1 cannot be used: {error}") from error
        with listening:
            _tell_entry(output, url_of(listening), token if token_env is None else f"${{{token_env}}}")
            await _until_stopped(serve_socket(connect, name, listening, options, token=token))
        return None

    _log_to(log_file)
    run(main, output, where)


async def _until_stopped(serving: Coroutine[Any, Any, None]) -> None:
    """Serve until the hosts are gone, or a signal cancels it. Calls are let go within a bounded time."""
    task = asyncio.ensure_future(serving)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError as error:
        _leave_soon(Exit.TERMINATED if SIGTERM in error.args else Exit.INTERRUPTED)
        task.cancel()
        await asyncio.wait([task])
        raise


def _leave_soon(code: Exit) -> None:
    """End the process in a moment, if letting go of the calls takes longer. Nothing is lost by it."""
    timer = threading.Timer(_LEAVE_S, os._exit, [code])
    timer.daemon = True
    timer.start()


def _read_token(http: int | None, token_env: str | None) -> str:
    """The token that hosts have to show.

    Raises:
        BadParameter: The options make no sense, or the variable holds no token.
    """
    if token_env is None:
        return secrets.token_urlsafe(32)
    if http is None:
        raise typer.BadParameter("It is for --http.", param_hint="--token-env")
    token = os.environ.get(token_env, "")
    if not token or not all("!" <= one <= "~" for one in token):
        raise typer.BadParameter(
            f"The variable {token_env} has to hold a token of visible ASCII characters.",
            param_hint="--token-env",
        )
    return token


def _tell_entry(output: Output, url: str, token: str) -> None:
    """Write the entry for a host's configuration, in one line."""
    headers = {"Authorization": f"Bearer {token}"}
    entry = {"mcpServers": {"bridge": {"type": "http", "url": url, "headers": headers}}}
    output.note(f"The bridge listens at {url}. An entry for hosts:")
    output.next(json.dumps(entry))


def _user_name() -> str:
    """The user on whose behalf the host calls, so that users of one database have calls of their own."""
    with suppress(Exception):  # a container may know no name of its user
        return getpass.getuser()
    return ""


def _memory(where: Where) -> Path:
    """The folder for the introductions of servers: beside the journal, if that is a file."""
    made = where.name_journal()
    if isinstance(made, tasks.SqliteJournal):
        return Path(f"{made.path}.servers")
    from platformdirs import user_cache_path

    return user_cache_path("mcp-tasks-client") / "servers"


def _log_to(file: Path | None) -> None:
    """Have the log written.

    Raises:
        BadParameter: The file cannot be opened.
    """
    handler: logging.Handler
    try:
        handler = (
            logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file, encoding="utf-8")
        )
    except OSError as error:
        raise typer.BadParameter(f"The file cannot be opened: {error}", param_hint="--log-file") from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
