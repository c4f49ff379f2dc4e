"""A server by the command that starts it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["StdioServer"]


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A server that is a process of its own client, and speaks MCP over stdin and stdout.

    ``TasksClient(StdioServer("python", ["server.py"]))`` starts the process with its first request, and again
    with the next request after the process has ended. The tasks of a process end with it: they are not found
    then. When the client closes, stdin is closed. A process that does not end within a second, or leaves a
    child that has stdout open, is terminated with its process group, and killed half a second later.

    The version of the protocol is found out as for a server by URL. A ``tools/call`` that makes no task may
    take as long as the process lives. Lines of stdout that are no JSON-RPC are passed over. The lines of
    stderr go to the log, at the level DEBUG, and the last ones are in the error of a process that has ended.

    Args:
        command: The program.
        args: Its arguments. They are in the journal as a digest only.
        env: Variables besides the few that each process has of ours: ``HOME``, ``LOGNAME``, ``PATH``,
            ``SHELL``, ``TERM``, ``USER``, and their like on Windows.
        cwd: The folder that it runs in; ``None`` is ours.
        start_timeout_s: Seconds in which a process gives its first answer. Some are downloaded before.

    Raises:
        TypeError: ``args`` is a text.
        ValueError: ``command`` is empty, or ``start_timeout_s`` is not positive.
    """

    command: str
    args: Sequence[str] = field(default=(), repr=False)
    env: Mapping[str, str] | None = field(default=None, repr=False)
    cwd: str | os.PathLike[str] | None = None
    start_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if isinstance(self.args, str):
            raise TypeError("args must be a list of texts, one for each argument")
        if not self.command:
            raise ValueError("command must name the program that is the server")
        if not self.start_timeout_s > 0:
            raise ValueError(f"start_timeout_s must be more than 0 seconds, got {self.start_timeout_s}")
