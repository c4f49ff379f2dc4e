"""Programs that run in a process of their own and begin with everything imported.

Hundreds of processes belong to a run of the tests. Most would spend nearly all of their time on importing
the same packages. So one process imports those for all, opens nothing, and is forked for each program:
``python -m tests._forked``. It ends with the process that started it.

A program is run as Python runs it: as ``__main__``, with its own arguments, folder and environment, and to
the interpreter's end. What is about the start of a process (the cost of an import, an example, a page) has
an interpreter of its own instead.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, Self

__all__ = ["Program", "fork_for_all"]

ROOT: Final = Path(__file__).parents[1]

ADDRESS: Final = "MCP_TASKS_FORKS_AT"
"""The variable that says where the process listens, for all that are started later."""

IMPORTED: Final = (
    "tests.campaigns.fleet.host",
    "tests.campaigns.torture.host",
    "tests.campaigns.torture.server",
    "tests.campaigns.storm.host",
    "tests.crossings.host",
    "tests.fleet.replica",
    "tests.servers.fastmcp_server",
    # What those import on use. It would take most of their time.
    "aiohttp",
    "anyio._backends._asyncio",
    "anyio._backends._trio",
    "httpcore",
    "httpcore2",
    "importlib.resources",
    "jsonschema",
    "jsonschema_rs",
    "mcp.client.streamable_http",
    "mcp_tasks_client.journal.sqlite.journal",
    "mcp_tasks_client.tasks_2025_11_25",
    "sqlite3",
)


class Program:
    """A program that runs, as ``subprocess.Popen`` shows one.

    Its standard input and output are pipes. It is killed if this process ends before it, or drops this
    object. One thread at a time may wait for it.

    Args:
        command: What follows ``python``: ``-m`` and a module, ``-c`` and a source, or a script; arguments.
        cwd: The folder that it runs in; ours if ``None``.
        stderr: Where it writes its errors; where we write ours if ``None``.
        text: Its pipes carry text. Otherwise bytes.

    Attributes:
        returncode: How it ended, once somebody has waited for that; as in ``subprocess``.
    """

    def __init__(
        self,
        *command: object,
        cwd: Path | None = None,
        stderr: IO[bytes] | None = None,
        text: bool = False,
    ) -> None:
        order = {"command": [*map(str, command)], "cwd": str(cwd or Path.cwd()), "env": {**os.environ}}
        mode = "" if text else "b"
        its_input, our_output = os.pipe()
        our_input, its_output = os.pipe()
        self.args = order["command"]
        self.stdin: IO[Any] = os.fdopen(our_output, f"w{mode}")
        self.stdout: IO[Any] = os.fdopen(our_input, f"r{mode}")
        self.returncode: int | None = None
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(_address())
        errors = 2 if stderr is None else stderr.fileno()
        message = json.dumps(order).encode()
        socket.send_fds(self._line, [len(message).to_bytes(4)], [its_input, its_output, errors])
        self._line.sendall(message)
        os.close(its_input)
        os.close(its_output)
        self.pid = int.from_bytes(_receive(self._line, 4))

    def poll(self) -> int | None:
        """How it ended; ``None`` while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: It runs for longer than so many seconds.
        """
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int.from_bytes(_receive(self._line, 4), signed=True)
            self._line.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.wait()


def _receive(line: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = line.recv(size - len(received))
        if not part:
            raise RuntimeError("the process that is forked for the tests' programs has ended")
        received += part
    return bytes(received)


def fork_for_all() -> None:
    """Start the process that is forked, for this process and all that it starts later.

    It imports nothing before the first program is to run.
    """
    folder = tempfile.TemporaryDirectory(prefix="mcp-tasks-forks-")
    address = f"{folder.name}/socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(1000)
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(listener.fileno())],
            cwd=ROOT,
            stdin=subprocess.PIPE,  # its end tells the process that we are gone
            pass_fds=[listener.fileno()],
            start_new_session=True,  # a Ctrl-C in the terminal is for pytest alone
        )
    os.environ[ADDRESS] = address

    @atexit.register
    def end() -> None:
        process.communicate()
        folder.cleanup()


def _address() -> str:
    if ADDRESS not in os.environ:
        fork_for_all()
    return os.environ[ADDRESS]


# ── the process that is forked ──


def serve(listener: socket.socket) -> Mapping[str, Any] | None:
    """Fork for each order that comes, until standard input ends, which ends all programs.

    Returns:
        The order, in the process that is to carry it out; ``None`` at the end.
    """
    signals, waker = socket.socketpair()
    signals.setblocking(False)
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    lines: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as ready, listener, signals, waker:
        for source in (sys.stdin, listener, signals):
            ready.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is sys.stdin:
                    for pid in lines:
                        os.kill(pid, signal.SIGKILL)
                    return None
                if key.fileobj is signals:
                    signals.recv(4096)
                    for line in _tell_who_has_ended(lines):
                        if line in ready.get_map():
                            ready.unregister(line)
                        line.close()
                elif key.fileobj is listener:
                    line, _ = listener.accept()
                    order, files = _take_order(line)
                    pid = os.fork()
                    if not pid:
                        _become(files, lines.values())
                        line.close()
                        return order
                    for file in files:
                        os.close(file)
                    line.sendall(pid.to_bytes(4))
                    lines[pid] = line
                    ready.register(line, selectors.EVENT_READ, pid)
                elif key.data in lines:  # which says nothing more: whoever ordered it has ended
                    os.kill(key.data, signal.SIGKILL)
                    ready.unregister(key.fileobj)


def _take_order(line: socket.socket) -> tuple[Mapping[str, Any], list[int]]:
    _import_all()
    size, files, _, _ = socket.recv_fds(line, 4, 3)
    order: Mapping[str, Any] = json.loads(_receive(line, int.from_bytes(size)))
    return order, files


@cache
def _import_all() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or the first look for garbage would copy all of it for each program


def _become(files: list[int], lines: Iterable[socket.socket]) -> None:
    """Let go of what is not the program's."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for line in lines:
        line.close()


def _tell_who_has_ended(lines: dict[int, socket.socket]) -> Iterator[socket.socket]:
    with suppress(ChildProcessError):  # there are no more
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            line = lines.pop(pid)
            with suppress(OSError):  # nobody waits for it any more
                line.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, signed=True))
            yield line


def carry_out(command: list[str], cwd: str, env: Mapping[str, str]) -> None:
    """Run a program as Python does."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    what, *arguments = command
    if what == "-m":
        name, *sys.argv[1:] = arguments
        sys.modules.pop(name, None)  # runpy warns of a module that is there already
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif what == "-c":
        source, *sys.argv[1:] = arguments
        sys.argv[0] = "-c"
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(source, main.__dict__)
    else:
        sys.argv[:] = command
        sys.path[0] = str(Path(what).parent)
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    ordered = serve(socket.socket(fileno=int(sys.argv[1])))
    if ordered is not None:
        carry_out(**ordered)
