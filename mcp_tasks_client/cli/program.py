"""The command line as a whole: its verbs, and the errors of a line."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

import mcp_tasks_client as tasks

from . import (
    answer,
    bridge,
    call,
    cancel,
    doctor,
    drive,
    login,
    logout,
    ls,
    prune,
    questions,
    show,
    tools,
    wait,
)
from .exits import CommandError, Exit
from .output import Output, fail_to_write
from .server import name_command

__all__ = ["run_program"]

app = typer.Typer(
    name="mcp-tasks",
    epilog=f"Exit codes: {', '.join(f'{one.value} {one.name}'.lower().replace('_', ' ') for one in Exit)}.",
    rich_markup_mode=None,  # help in plain text, shown without loading rich
    pretty_exceptions_enable=False,
)
for verb in (
    call.call,
    tools.tools,
    ls.ls,
    show.show,
    wait.wait,
    questions.questions,
    answer.answer,
    cancel.cancel,
    drive.drive,
    prune.prune,
    login.login,
    logout.logout,
    doctor.doctor,
    bridge.bridge,
):
    app.command()(verb)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        Output().text(tasks.__version__)
        raise typer.Exit


@app.callback()
def mcp_tasks(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit."),
    ] = False,
) -> None:
    """Call tools of MCP servers, and see their tasks through: what runs, why, and with which outcome."""


def run_program(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code. ``arguments`` are those after the name of the program."""
    arguments = _take_command_out(arguments or ["--help"])
    output = Output(as_json="--json" in arguments)
    try:
        code = app(list(arguments), prog_name="mcp-tasks", standalone_mode=False)
    except typer.TyperException as error:  # the line makes no sense
        with suppress(OSError):  # stderr is closed
            output.fail(CommandError(Exit.USAGE, error.format_message(), next=f"{_verb(arguments)} --help"))
        return Exit.USAGE
    except OSError as error:  # of the help, or the version
        return fail_to_write(error, output)
    except typer.Abort:
        return Exit.INTERRUPTED
    return code if isinstance(code, int) else Exit.RESULT


def _take_command_out(arguments: Sequence[str]) -> Sequence[str]:
    """Put the command behind ``--``, which starts a server, where the line has a URL otherwise.

    It is taken out before the arguments are parsed, since it has options of its own.
    """
    if "--" not in arguments or arguments[0] not in (
        "call",
        "tools",
        "drive",
        "doctor",
        "wait",
        "cancel",
        "bridge",
    ):
        return arguments
    at = arguments.index("--")
    verb, given, command = arguments[0], arguments[1:at], name_command(arguments[at + 1 :])
    named = ["--server", command] if verb in ("wait", "cancel") else [command]
    return [verb, *named, *given]


def _verb(arguments: Sequence[str]) -> str:
    """The beginning of the line, for which there is help."""
    known = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    return f"mcp-tasks {arguments[0]}" if arguments and arguments[0] in known else "mcp-tasks"
