"""The command ``mcp-tasks``: calls, lists, waits for, answers and cancels what the journal holds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Of the command line, without the name of the program; ``None`` is ``sys.argv``.

    Returns:
        The exit code; see :mod:`mcp_tasks_client.cli.exits`.
    """
    for needed in ("prompt_toolkit", "rich", "typer"):  # of one extra, which is whole or not there
        if find_spec(needed) is None:
            sys.stderr.write(f"mcp-tasks needs {needed}, of the extra [cli]: pip install {needed}\n")
            return 2
    from .program import run_program

    return run_program(sys.argv[1:] if arguments is None else list(arguments))
