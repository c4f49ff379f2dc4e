"""A process among all that may share a journal: which one it is, and whether it still lives."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

from ..journal.base import Lease
from ..machine.record import Origin

__all__ = ["Process"]

_COMMAND: Final = "mcp-tasks"
"""The name of our own command, also as ``python -m mcp_tasks_client``."""

_CLOCK_STEP_S: Final = 0.0 if sys.platform == "linux" else 2.0
"""Seconds by which the start of a process may seem to move, where only the wall clock tells it."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process among all that may share a journal."""

    host: str
    boot: str
    pids: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> Self:
        """The process that we are."""
        return cls(*_current(os.getpid()))

    @property
    def origin(self) -> Origin:
        """The origin that the records of its calls bear. The program is that of the process that we are."""
        return Origin(_program(), self.host.partition(":")[0], self.pid)

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is of this very process."""
        return Process(lease.host, lease.boot, lease.pids, lease.pid, lease.started) == self

    def sees_alive(self, lease: Lease) -> bool | None:
        """Whether the process of a lease lives; ``None`` if that cannot be seen from here."""
        if lease.host != self.host:
            return None
        if lease.boot != self.boot:
            return False  # the host has been started again since
        if lease.pids != self.pids:
            return None
        import psutil  # imported on use: only a client that finds another process's task looks at processes

        with suppress(psutil.NoSuchProcess):
            same = abs(_started(lease.pid) - lease.started) <= _CLOCK_STEP_S
            return same and psutil.Process(lease.pid).status() != psutil.STATUS_ZOMBIE
        return False


@cache
def _current(pid: int) -> tuple[str, str, str, int, float]:
    node = uuid.getnode()
    # Without a network card the number is drawn by chance, for each process anew, and says so by a bit.
    host = socket.gethostname() if node >> 40 & 1 else f"{socket.gethostname()}:{node:012x}"
    boot = pids = ""
    with suppress(OSError):  # only Linux tells
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        pids = str(Path("/proc/self/ns/pid").readlink())
    return host, boot, pids, pid, _started(pid)


def _program() -> str:
    """The name that people would call this program: the module of ``python -m``, else its script."""
    module = getattr(sys.modules.get("__main__"), "__spec__", None)
    if module is not None:
        name = str(module.name).removesuffix(".__main__")
        return _COMMAND if name == __package__.partition(".")[0] else name
    script = Path(sys.argv[0] if sys.argv else "").name
    return script if script not in ("", "-c") else Path(sys.executable or "python").name


def _started(pid: int) -> float:
    """When a process began: seconds since the machine did, where that is told, else since the epoch.

    A wall clock that is set must not make a process another one.

    Raises:
        psutil.NoSuchProcess: It has ended.
    """
    with suppress(OSError):  # only Linux tells; and there, no such process
        # The name, which comes second and in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    import psutil  # as above

    return psutil.Process(pid).create_time()
