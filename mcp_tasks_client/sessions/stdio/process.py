"""One process and its standard streams, from its start to its end."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from ...foreign_text import one_line
from .lines import Line, LineSplitter
from .stdio_server import StdioServer

__all__ = ["ServerProcess"]

logger = logging.getLogger("mcp_tasks_client")

_ON_WINDOWS: Final = (
    "APPDATA HOMEDRIVE HOMEPATH LOCALAPPDATA PATH PATHEXT PROCESSOR_ARCHITECTURE SYSTEMDRIVE SYSTEMROOT TEMP "
    "USERNAME USERPROFILE"
)
_ELSEWHERE: Final = "HOME LOGNAME PATH SHELL TERM USER"
_INHERITED: Final = (_ON_WINDOWS if sys.platform == "win32" else _ELSEWHERE).split()
"""The variables that a process has without being given them, as the official SDK has it."""

_TO_END_S: Final = 1.0
_TO_TERMINATE_S: Final = 0.5
_TO_DIE_S: Final = 0.5
"""Seconds for the end of a process whose stdin is closed, then of one that is terminated, and of one that is
killed. Most hosts give a server of their own two seconds in all."""

_LOOK_S: Final = 0.01
"""Seconds between two looks whether the process has ended. A wait for it would also wait for its children."""

_DRAIN_S: Final = 0.2
"""Seconds for the last lines of stderr, which a child may hold open."""

_LAST_WORDS: Final = 3
_LONGEST_WORDS: Final = 200
_LONGEST_ERROR_LINE: Final = 10_000

_CLOSED: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, OSError)


class ServerProcess:
    """A process. :meth:`run` is its life.

    Args:
        server: How it is started.
        name: The server's, for the log.
        max_line_bytes: Bytes of one line of its stdout, at most.
        take: Called with each line of its stdout. Must not raise.

    Attributes:
        over: Set when nothing more is sent to it: it has closed a stream, or is being stopped.
        ended: Set when it has ended, or could not be started.
        was_started: Whether there was a process.
        how: How it has ended, for people; empty before that.
    """

    def __init__(
        self, server: StdioServer, name: str, max_line_bytes: int, take: Callable[[Line], None]
    ) -> None:
        self.over = anyio.Event()
        self.ended = anyio.Event()
        self.was_started = False
        self.how = ""
        self._server = server
        self._name = name
        self._take = take
        self._lines = LineSplitter(max_line_bytes)
        # A message is handed over whole, so that a caller that goes away leaves no half of one.
        self._outbox, self._sending = anyio.create_memory_object_stream[bytes](0)
        self._last_words = deque[str](maxlen=_LAST_WORDS)

    async def run(self) -> None:
        """Start the process, carry its lines, and return when it has ended."""
        server = self._server
        try:
            try:
                process = await anyio.open_process(
                    [server.command, *server.args],
                    env={name: os.environ[name] for name in _INHERITED if name in os.environ}
                    | dict(server.env or {}),
                    cwd=server.cwd,
                    start_new_session=True,  # Ctrl-C is for the host; and its children can be ended with it
                )
            except (OSError, ValueError) as error:
                self.how = one_line(str(error))
                return
            self.was_started = True
            await self._carry(process)
        finally:
            self.over.set()
            self._outbox.close()
            self._sending.close()
            self.ended.set()

    async def send(self, line: bytes) -> bool:
        """Hand over a line, without its end. Returns whether the process was there for it."""
        with suppress(*_CLOSED):
            await self._outbox.send(line)
            return True
        return False

    def stop(self) -> None:
        """Have the process end."""
        self.over.set()

    async def _carry(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        read, errors_read = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as group:
            try:
                group.start_soon(self._write, process.stdin)
                group.start_soon(self._read, process.stdout, read)
                group.start_soon(self._read_errors, process.stderr, errors_read)
                await self.over.wait()
            finally:
                self._sending.close()
                with anyio.CancelScope(shield=True):
                    code = await _end(process, read)
                    with anyio.move_on_after(_DRAIN_S):
                        await errors_read.wait()
                    self.how = self._tell(code)
                    group.cancel_scope.cancel()
                    with anyio.move_on_after(_TO_DIE_S):
                        await process.aclose()

    async def _write(self, stdin: ByteSendStream) -> None:
        try:
            with suppress(*_CLOSED):
                async for line in self._sending:
                    await stdin.send(line + b"\n")
        finally:
            self.over.set()

    async def _read(self, stdout: ByteReceiveStream, read: anyio.Event) -> None:
        try:
            with suppress(*_CLOSED):
                while True:
                    for line in self._lines.feed(await stdout.receive()):
                        self._take(line)
            for line in self._lines.flush():
                self._take(line)
        finally:
            read.set()
            self.over.set()

    async def _read_errors(self, stderr: ByteReceiveStream, read: anyio.Event) -> None:
        lines = LineSplitter(_LONGEST_ERROR_LINE)
        try:
            with suppress(*_CLOSED):
                while True:
                    for line in lines.feed(await stderr.receive()):
                        self._hear_error(line)
            for line in lines.flush():
                self._hear_error(line)
        finally:
            read.set()

    def _hear_error(self, line: Line) -> None:
        words = one_line(line.content.decode(errors="replace"), _LONGEST_WORDS)
        if words:
            self._last_words.append(words)
            logger.debug("%s says: %s", self._name, words)

    def _tell(self, code: int | None) -> str:
        how = "it does not end" if code is None else f"it ended with exit code {code}"
        if code is not None and code < 0:
            how = f"it ended by signal {-code}"
        return f"{how}, and said last: {' | '.join(self._last_words)}" if self._last_words else how


async def _end(process: Process, closed: anyio.Event) -> int | None:
    """Have a process end, as MCP says: by the end of its stdin, and by force if need be.

    ``closed`` is set when the last writer of its stdout has gone. A child that has it open is ended as well.
    """
    assert process.stdin is not None
    with suppress(*_CLOSED):
        await process.stdin.aclose()
    if not await _has_ended(process, closed, _TO_END_S):
        _signal_all(process, signal.SIGTERM)
        if not await _has_ended(process, closed, _TO_TERMINATE_S):
            _signal_all(process, getattr(signal, "SIGKILL", signal.SIGTERM))
            await _has_ended(process, closed, _TO_DIE_S)
    return process.returncode


async def _has_ended(process: Process, closed: anyio.Event, within_s: float) -> bool:
    with anyio.move_on_after(within_s):
        await closed.wait()
        while process.returncode is None:  # noqa: ASYNC110  # no event tells
            await anyio.sleep(_LOOK_S)
        return True
    return False


def _signal_all(process: Process, number: int) -> None:
    """Send a signal to the group of a process, some process of which lives."""
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, number)
