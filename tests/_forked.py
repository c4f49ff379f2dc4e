"""Programs that run in a process of their own and begin with everything imported.

Hundreds of processes belong to a run of the tests. Most would spend nearly all of their time on importing
the same packages. So one process imports those for all, opens nothing, and is forked for each program:
``python -m tests._forked``. It ends with the process that started it. For programs of another interpreter
it starts such a process there.

``python -I -S tests/_forked.py ADDRESS PROGRAM ...`` runs a program with its own standard streams,
for whoever starts commands.

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
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import connection
from pathlib import Path
from typing import IO, Any, Final, NoReturn, Self

__all__ = ["Program", "fork_for_all", "make_command"]

ROOT: Final = Path(__file__).parents[1]

ADDRESS: Final = "MCP_TASKS_FORKS_AT"
"""The variable that says where the process listens, for all that are started later."""

IMPORTED: Final = (
    "aiohttp",
    "anyio._backends._asyncio",
    "anyio._backends._trio",
    "httpcore",
    "httpcore2",
    "importlib.resources",
    "jsonschema",
    "jsonschema_rs",
    "mcp.client.streamable_http",
    "mcp_tasks_client.blocking",
    "mcp_tasks_client.cli.program",
    "mcp_tasks_client.inbox",
    "mcp_tasks_client.journal.sqlite.journal",
    "mcp_tasks_client.sessions.by_url.discovery",
    "mcp_tasks_client.sessions.v2025",
    "prompt_toolkit",
    "rich.table",
    "sqlite3",
)
"""What the programs import on use. It would take most of their time."""

PROGRAMS: Final = {
    "1": ("tests.servers.legacy_python", "tests.servers.sdk_1_clients", "tests.servers.sdk_1_host"),
    "2": (
        "mcp_tasks_client.bridge.stdio",
        "tests.campaigns.bridges.host",
        "tests.campaigns.fleet.host",
        "tests.campaigns.torture.host",
        "tests.campaigns.torture.server",
        "tests.campaigns.storm.host",
        "tests.crossings.host",
        "tests.fleet.replica",
        "tests.servers.fastmcp_server",
    ),
}
"""The programs, by the version of the SDK that they are for."""


class Program:
    """A program that runs, as ``subprocess.Popen`` shows one.

    Its standard input and output are pipes. It is killed if this process ends before it, or drops this
    object. One thread at a time may wait for it.

    Args:
        command: What follows ``python``: ``-m`` and a module, ``-c`` and a source, or a script; arguments.
        interpreter: The Python that runs it.
        cwd: The folder that it runs in; ours if ``None``.
        stderr: Where it writes its errors; where we write ours if ``None``.
        text: Its pipes carry text. Otherwise bytes.

    Attributes:
        returncode: How it ended, once somebody has waited for that; as in ``subprocess``.
    """

    def __init__(
        self,
        *command: object,
        interpreter: str | Path = sys.executable,
        cwd: Path | None = None,
        stderr: IO[bytes] | None = None,
        text: bool = False,
    ) -> None:
        mode = "" if text else "b"
        its_input, our_output = os.pipe()
        our_input, its_output = os.pipe()
        self.args = [*map(str, command)]
        self.stdin: IO[Any] = os.fdopen(our_output, f"w{mode}")
        self.stdout: IO[Any] = os.fdopen(our_input, f"r{mode}")
        self.returncode: int | None = None
        streams = [its_input, its_output, 2 if stderr is None else stderr.fileno()]
        self._line, self.pid = _order(_address(interpreter), self.args, streams, cwd or Path.cwd())
        os.close(its_input)
        os.close(its_output)

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
            if not connection.wait([self._line], timeout):  # select() refuses descriptors above 1023
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int.from_bytes(_receive(self._line, 4), signed=True)
            self._line.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and the line has not told of it yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:  # the program may wait for the block that failed
            self.kill()
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


def _order(
    address: str, command: Sequence[str], streams: Sequence[int], cwd: Path
) -> tuple[socket.socket, int]:
    """Have a program started. Gives the line to its end, which also ends it, and its process ID."""
    order = {"command": command, "cwd": str(cwd), "env": {**os.environ}}
    line = _connect(address)
    _send(line, order, streams)
    return line, int.from_bytes(_receive(line, 4))


def _connect(address: str) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.connect(address)
    return line


def _send(line: socket.socket, message: Any, files: Sequence[int] = ()) -> None:
    data = json.dumps(message).encode()
    socket.send_fds(line, [len(data).to_bytes(4)], files)
    line.sendall(data)


def make_command(*command: object, interpreter: str | Path = sys.executable) -> list[str]:
    """A command that runs a program as one of the forked, for whoever starts commands.

    Its standard streams are those of the command. It is killed if the command is, and ends it.
    """
    return [sys.executable, "-I", "-S", __file__, _address(interpreter), *map(str, command)]


def fork_for_all() -> None:
    """Start the process that is forked, for this process and all that it starts later.

    It imports nothing before the first program is to run.
    """
    folder = tempfile.TemporaryDirectory(prefix="mcp-tasks-forks-")
    os.environ[ADDRESS] = f"{folder.name}/socket"
    with _listen(os.environ[ADDRESS]) as listener:
        process = subprocess.Popen(
            _make_server_command(sys.executable, listener),
            cwd=ROOT,
            stdin=subprocess.PIPE,  # its end tells the process that we are gone
            pass_fds=[listener.fileno()],
            start_new_session=True,  # a Ctrl-C in the terminal is for pytest alone
        )

    @atexit.register
    def end() -> None:
        process.communicate()
        folder.cleanup()


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(1000)
    return listener


def _make_server_command(interpreter: str, listener: socket.socket) -> list[str]:
    return [interpreter, "-m", "tests._forked", str(listener.fileno())]


def _address(interpreter: str | Path) -> str:
    if ADDRESS not in os.environ:
        fork_for_all()
    if str(interpreter) == sys.executable:
        return os.environ[ADDRESS]
    with _connect(os.environ[ADDRESS]) as line:
        _send(line, {"interpreter": str(interpreter)})
        address = json.loads(_receive(line, int.from_bytes(_receive(line, 4))))
    assert isinstance(address, str)
    return address


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
    elsewhere: dict[str, str] = {}
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
                    try:
                        order, files = _take_order(line)
                    except (RuntimeError, ValueError):  # whoever ordered it was killed meanwhile
                        line.close()
                        continue
                    if "interpreter" in order:
                        with line:
                            _send(line, _fork_elsewhere(order["interpreter"], elsewhere))
                        continue
                    _import_all()
                    pid = os.fork()
                    if not pid:
                        _become(files, lines.values())
                        line.close()
                        return order
                    for file in files:
                        os.close(file)
                    with suppress(BrokenPipeError):  # killed meanwhile; the end of its line is read next
                        line.sendall(pid.to_bytes(4))
                    lines[pid] = line
                    ready.register(line, selectors.EVENT_READ, pid)
                elif key.data in lines:  # which says nothing more: whoever ordered it has ended
                    os.kill(key.data, signal.SIGKILL)
                    ready.unregister(key.fileobj)


def _take_order(line: socket.socket) -> tuple[Mapping[str, Any], list[int]]:
    size, files, _, _ = socket.recv_fds(line, 4, 3)
    order: Mapping[str, Any] = json.loads(_receive(line, int.from_bytes(size)))
    return order, files


def _fork_elsewhere(interpreter: str, started: dict[str, str]) -> str:
    """Where another interpreter's process listens, which shares our standard input."""
    if interpreter not in started:
        address = f"{os.environ[ADDRESS]}-{len(started)}"
        with _listen(address) as listener:
            listener.set_inheritable(True)
            os.posix_spawn(interpreter, _make_server_command(interpreter, listener), os.environ)
        started[interpreter] = address
    return started[interpreter]


@cache
def _import_all() -> None:
    from importlib.metadata import version  # which takes longer than all that is imported above

    for name in (*IMPORTED, *PROGRAMS[version("mcp").partition(".")[0]]):
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
    # The objects that Python made for the streams know of the files that were there then.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    for line in lines:
        line.close()


def _tell_who_has_ended(lines: dict[int, socket.socket]) -> Iterator[socket.socket]:
    with suppress(ChildProcessError):  # there are no more
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid not in lines:  # the process of another interpreter
                continue
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


def run_here(address: str, *command: str) -> NoReturn:
    """Run a program with our standard streams, and end as it ends."""
    line, _ = _order(address, command, [0, 1, 2], Path.cwd())
    os._exit(int.from_bytes(_receive(line, 4), signed=True) & 0xFF)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run_here(*sys.argv[1:])
    ordered = serve(socket.socket(fileno=int(sys.argv[1])))
    if ordered is not None:
        carry_out(**ordered)
