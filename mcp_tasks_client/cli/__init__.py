"""The command ``mcp-tasks``: calls, lists, waits for, answers and cancels what the journal holds."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Of the command line, without the name of the program; ``None`` is ``sys.argv``.

    Returns:
        The exit code; see :mod:`mcp_tasks_client.cli.exits`.
    """
    try:
        import prompt_toolkit  # noqa: F401  # the extra is whole or not there
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.stderr.write(f"mcp-tasks needs {error.name}: pip install 'mcp-tasks-client[cli]'\n")
        return 2
    from .program import run_program

    return run_program(sys.argv[1:] if arguments is None else list(arguments))
