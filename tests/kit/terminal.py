"""The command in a real terminal: a pseudo-terminal, whose screen pyte draws; and without one."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, Final

import pyte

from tests._forked import make_command

from .current_server import LIMIT_S

__all__ = ["COMMAND", "Ran", "Terminal", "in_terminal", "run_command", "surroundings"]

COMMAND: Final = (sys.executable, "-m", "mcp_tasks_client")
LINES: Final = 24
_WHERE: Final = b"\x1b[6n"
_ERASES: Final = re.compile(rb"\x1b\[\d*[JK]")
COLUMNS: Final = 100


def surroundings(journal: Path | str, **more: str) -> dict[str, str]:
    """The environment of the command: its journal, and nothing that changes what it shows."""
    left_out = ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "LINES")
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**inherited, "TERM": "xterm-256color", "MCP_TASKS_JOURNAL": str(journal), **more}


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of the command without a terminal."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The one line of JSON on stderr."""
        (line,) = [one for one in self.err.splitlines() if one.startswith("{")]
        told: dict[str, Any] = json.loads(line)["error"]
        return told


def run_command(journal: Path | str, *arguments: str, given: str = "", **more: str) -> Ran:
    """Run the command to its end, with pipes in place of a terminal.

    Args:
        journal: A file, or the address of a database.
        arguments: Of the command.
        given: On its stdin.
        more: Further variables of its environment.
    """
    ran = subprocess.run(
        make_command(*COMMAND[1:], *arguments),  # forked: most of its time would be that of imports
        input=given,
        capture_output=True,
        text=True,
        env=surroundings(journal, **more),
        timeout=2 * LIMIT_S,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


class Terminal:
    """A program in a terminal, as a person has it before them.

    Attributes:
        pid: Of the program.
        raw: All that the program has written so far.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], master: int, slave: int, lines: int, columns: int
    ) -> None:
        self._process, self._master, self._slave = process, master, slave
        self._screen = pyte.HistoryScreen(columns, lines, history=2000)
        self._stream = pyte.ByteStream(self._screen)
        self._unread = b""
        self._answered = 0
        self.pid = process.pid
        self.raw = b""

    @property
    def lines(self) -> Sequence[str]:
        """The lines of the screen, and above them those that have left it."""
        above = [
            "".join(row[at].data for at in range(self._screen.columns)) for row in self._screen.history.top
        ]
        return [one.rstrip() for one in (*above, *self._screen.display)]

    @property
    def text(self) -> str:
        """All lines in one text, without those at the end that are empty."""
        return "\n".join(self.lines).rstrip()

    @property
    def echoes(self) -> bool:
        """True if the terminal shows what is typed, and sends it line by line, as a shell has it."""
        local = termios.tcgetattr(self._slave)[3]
        return bool(local & termios.ECHO and local & termios.ICANON)

    @property
    def foreground(self) -> int:
        """The process that has the terminal: of a shell, the command that it waits for."""
        return os.tcgetpgrp(self._master)

    def read(self, limit_s: float) -> bool:
        """Take what the program writes next. Returns False if that is nothing within the time.

        What erases something is left for the next time. So a reader that comes late sees it all the same.
        """
        if not self._unread:
            if not connection.wait([self._master], limit_s):
                return False
            try:
                self._unread = os.read(self._master, 65536)
            except OSError:  # nobody has the other side any more
                return False
        erases = _ERASES.search(self._unread, 1)
        end = len(self._unread) if erases is None else erases.start()
        written, self._unread = self._unread[:end], self._unread[end:]
        self.raw += written
        self._stream.feed(written)
        asked = self.raw.count(_WHERE)
        for _ in range(asked - self._answered):  # the program asks for the place of the cursor
            self.type(f"\x1b[{self._screen.cursor.y + 1};{self._screen.cursor.x + 1}R")
        self._answered = asked
        return bool(written)

    def see(self, *texts: str, limit_s: float = 2 * LIMIT_S) -> None:
        """Wait until the terminal shows all these texts, one after the other."""
        self.wait_until(lambda: _in_order(self.text, texts), limit_s, f"{texts}")

    def wait_until(
        self, condition: Callable[[], bool], limit_s: float = 2 * LIMIT_S, wanted: str = ""
    ) -> None:
        """Wait until a condition holds, and read on meanwhile."""
        deadline = time.monotonic() + limit_s
        while not condition():
            left = deadline - time.monotonic()
            assert left > 0, f"not seen: {wanted}\n{self.text}"
            self.read(min(left, 0.1))

    def type(self, keys: str) -> None:
        """Press keys. ``\\r`` is Enter."""
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.type("\x03")

    def kill(self) -> None:
        """End the program with SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, limit_s: float = 2 * LIMIT_S) -> int:
        """Wait until the program has ended, and take the rest of its words. Returns its exit code."""
        deadline = time.monotonic() + limit_s
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"does not end\n{self.text}"
            self.read(0.05)
        while self.read(0.05):
            pass
        return self._process.returncode


def _in_order(text: str, wanted: Sequence[str]) -> bool:
    at = 0
    for one in wanted:
        at = text.find(one, at)
        if at < 0:
            return False
        at += len(one)
    return True


@contextmanager
def in_terminal(
    journal: Path | str,
    *arguments: str,
    lines: int = LINES,
    columns: int = COLUMNS,
    stdout: int | None = None,
    program: Sequence[str] = COMMAND,
    more: Mapping[str, str] | None = None,
) -> Iterator[Terminal]:
    """The command in a terminal of its own, which is its controlling terminal.

    Args:
        journal: A file, or the address of a database.
        arguments: Of the command.
        lines: The height of the terminal.
        columns: Its width.
        stdout: A file descriptor to write results to, as with ``| jq``; ``None`` is the terminal.
        program: The command itself.
        more: Further variables of its environment.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        [*program, *arguments],
        stdin=slave,
        stdout=slave if stdout is None else stdout,
        stderr=slave,
        env=surroundings(journal, **(more or {})),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        yield Terminal(process, master, slave, lines, columns)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(master)
        os.close(slave)
