"""The command line as a whole: its verbs and its edge."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from . import answer, call, cancel, doctor, ls, prune, questions, show, wait
from .exits import CommandError, Exit
from .output import Output

__all__ = ["run_program"]

app = typer.Typer(
    name="mcp-tasks",
    help="Call tools of MCP servers, and see their tasks through: what runs, why, and with which outcome.",
    no_args_is_help=True,
    rich_markup_mode=None,  # help in plain text, shown without loading rich
    pretty_exceptions_enable=False,
)
for verb in (
    call.call,
    ls.ls,
    show.show,
    wait.wait,
    questions.questions,
    answer.answer,
    cancel.cancel,
    prune.prune,
    doctor.doctor,
):
    app.command()(verb)


def run_program(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code. ``arguments`` are those after the name of the program."""
    try:
        code = app(list(arguments), prog_name="mcp-tasks", standalone_mode=False)
    except typer.TyperException as error:  # the line makes no sense
        output = Output(as_json="--json" in arguments)
        if message := error.format_message():
            output.fail(CommandError(Exit.USAGE, message, next=f"{_verb(arguments)} --help"))
        return Exit.USAGE
    except typer.Abort:
        return Exit.INTERRUPTED
    return code if isinstance(code, int) else Exit.RESULT


def _verb(arguments: Sequence[str]) -> str:
    """The beginning of the line, for which there is help."""
    known = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    return f"mcp-tasks {arguments[0]}" if arguments and arguments[0] in known else "mcp-tasks"


if __name__ == "__main__":
    sys.exit(run_program(sys.argv[1:]))
