"""The command ``mcp-tasks``: makes, lists, waits for, answers and cancels the calls of a journal."""

from __future__ import annotations

import io
import os
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
    _open_missing_streams()
    _buffer_output()
    for needed in ("prompt_toolkit", "rich", "typer"):  # of one extra, which is whole or not there
        if find_spec(needed) is None:
            sys.stderr.write(f"mcp-tasks needs {needed}: install the package with its extra [cli]\n")
            return 2
    from .program import run_program

    return run_program(sys.argv[1:] if arguments is None else list(arguments))


def _buffer_output() -> None:
    """Buffer a stdout that is not, as under ``PYTHONUNBUFFERED``.

    Python does not notice there that a pipe or a disk took less than it was given, and the outcome of a call
    would count as received.
    """
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), sys.stdout.encoding, sys.stdout.errors)


def _open_missing_streams() -> None:
    """Replace the standard streams that the command was started without, as under ``>&-``.

    Otherwise a file such as the journal could get the number of one, and be written to as that stream. A
    missing stdout fails when it is written: else the outcome of a call would count as received.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
