"""Who drives what: a client by its name in the records, a process by its lease.

An *owner* is one client; the journal lets it write only what it took last. A *lease* stands for
the whole process, in each journal that it uses, and is renewed in one write however many tasks
and clients there are. An owner is gone when its client has ended, its process has, or, where
that cannot be seen from here, its lease has run out.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
import uuid
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Self

from .clock import Clock
from .journal.base import Journal, Judge, Lease

__all__ = ["LEASE_S", "Place", "Tenure"]

LEASE_S: Final = 30.0
"""Seconds after which a process that has not renewed its lease is taken for gone, if it cannot be seen."""

_RENEWALS: Final = 3
"""Renewals in the time of a lease, so that one may fail."""

_CLOCK_STEP_S: Final = 0.0 if sys.platform == "linux" else 2.0
"""Seconds by which the beginning of a process may seem to move, where only the wall clock tells it.

In a container that is started again at once, the next process has the number of the last.
"""

_TENURES: Final[dict[int, Tenure]] = {}
"""By the identity of the journal, which lives as long as there are clients that use it."""

_ENDED: Final[dict[Hashable, set[str]]] = {}
"""By the journal, the names of what has ended here while it could not be written."""

_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Place:
    """A process among all that may share a journal."""

    host: str
    boot: str
    pids: str
    pid: int
    started: float

    @classmethod
    def here(cls) -> Self:
        """The process that we are."""
        return cls(*_here(os.getpid()))

    def lives(self, lease: Lease) -> bool | None:
        """Whether the process of a lease lives; ``None`` if that cannot be seen from here."""
        if lease.host != self.host:
            return None
        if lease.boot != self.boot:
            return False  # the host has been started again since
        if lease.pids != self.pids:
            return None
        import psutil  # imported on use: only who finds another process's task looks at processes

        with suppress(psutil.NoSuchProcess):
            same = abs(_started(lease.pid) - lease.started) <= _CLOCK_STEP_S
            return same and psutil.Process(lease.pid).status() != psutil.STATUS_ZOMBIE
        return False

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is of this very process."""
        return Place(lease.host, lease.boot, lease.pids, lease.pid, lease.started) == self


class _Sighting(NamedTuple):
    """Of a lease, in our own monotonic time but for the first, which is what the lease said."""

    renewed_at: float
    at: float
    until: float


class Tenure:
    """What this process holds in one journal, for all of its clients there.

    Args:
        journal: Where the lease is kept.
        place: ``None`` is the process that we are.
        lease_s: Seconds that a lease lasts.

    Attributes:
        renew_s: Seconds after which it is renewed.
        lapses: How often it had run out by then.
    """

    def __init__(self, journal: Journal, place: Place | None, lease_s: float) -> None:
        self.renew_s = lease_s / _RENEWALS
        self.lapses = 0
        self._lease_s = lease_s
        self._journal = journal
        self._place = place or Place.here()
        self._lease_id = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._owners: set[str] = set()
        self._renewed_at: float | None = None
        self._sightings: dict[str, _Sighting] = {}

    @classmethod
    def enter(
        cls, journal: Journal, place: Place | None = None, lease_s: float = LEASE_S
    ) -> tuple[Tenure, str]:
        """This process's tenure in a journal, and in it a name for one more client."""
        with _lock:
            tenure = _TENURES.setdefault(id(journal), cls(journal, place, lease_s))
            owner = f"{tenure._lease_id}/{next(tenure._numbers)}"
            tenure._owners.add(owner)
            return tenure, owner

    def leave(self, owner: str) -> None:
        """End a client: what it still owns is anybody's, and so is the lease after the last one."""
        with _lock:
            self._owners.discard(owner)
            last = not self._owners
            if last:
                _TENURES.pop(id(self._journal), None)
            if self._renewed_at is not None:
                _ENDED.setdefault(self._journal.identity, set()).update([owner, self._lease_id][: 1 + last])

    @property
    def ended(self) -> frozenset[str]:
        """Names that the journal is still to let go of, for this process."""
        with _lock:
            return frozenset(_ENDED.get(self._journal.identity, ()))

    def let_go(self, names: frozenset[str]) -> None:
        """Note that the journal has."""
        with _lock:
            left = _ENDED.pop(self._journal.identity, set()) - names
            if left:
                _ENDED[self._journal.identity] = left

    @property
    def enrolled(self) -> bool:
        """Whether the journal holds our lease."""
        return self._renewed_at is not None

    def due(self, clock: Clock) -> bool:
        """Whether it is time to renew it, and no other client has just done so."""
        return self._renewed_at is not None and not 0 <= clock.time() - self._renewed_at < self.renew_s / 2

    def expires_before(self, time: float) -> bool:
        """Whether the lease that the journal holds runs out before a time (wall clock, seconds)."""
        return self._renewed_at is not None and self._renewed_at + self._lease_s < time

    async def renew(self, clock: Clock) -> None:
        """Write the lease anew, or for the first time."""
        now, place = clock.time(), self._place
        lease = Lease(
            lease_id=self._lease_id,
            host=place.host,
            boot=place.boot,
            pids=place.pids,
            pid=place.pid,
            started=place.started,
            renewed_at=now,
            expires_at=now + self._lease_s,
        )
        kept = await self._journal.renew(lease)
        self.lapses += self._renewed_at is not None and not kept
        self._renewed_at = now

    def judge(self, clock: Clock) -> Judge:
        """Says of an owner whether it is gone."""
        now, at = clock.time(), clock.monotonic()

        def gone(owner: str, lease: Lease | None) -> bool:
            if lease is None:
                return True
            if self._place.holds(lease):
                return not any(owner in tenure._owners for tenure in list(_TENURES.values()))
            lives = self._place.lives(lease)
            if lives is not None:
                return not lives
            # The journal may have been waited for since the clock was read, or we may have been suspended.
            return self._has_run_out(lease, now, at, max(0.0, clock.time() - now))

        return gone

    def _has_run_out(self, lease: Lease, now: float, at: float, since_s: float) -> bool:
        """Whether nothing was heard of a process for as long as its lease lasts.

        Only the wall clock is common to us and to it. Who looks on goes by its own time, in which a
        host that sleeps does not age, nor one whose clock is set.
        """
        seen = self._sightings.get(lease.lease_id)
        if seen is not None and seen.renewed_at == lease.renewed_at:
            until = seen.until
        else:
            lasts_s = lease.expires_at - lease.renewed_at
            until = at + min(since_s + lasts_s, lease.expires_at - now)
            if seen is not None:  # then it was renewed since, whatever the wall clock says
                until = max(until, seen.at + lasts_s)
        self._sightings[lease.lease_id] = _Sighting(lease.renewed_at, at + since_s, until)
        return until < at


@cache
def _here(pid: int) -> tuple[str, str, str, int, float]:
    node = uuid.getnode()
    # Without a network card the number is drawn by chance, for each process anew, and says so by a bit.
    host = socket.gethostname() if node >> 40 & 1 else f"{socket.gethostname()}:{node:012x}"
    boot = pids = ""
    with suppress(OSError):  # only Linux tells
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        pids = str(Path("/proc/self/ns/pid").readlink())
    return host, boot, pids, pid, _started(pid)


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


def _forget() -> None:
    _TENURES.clear()
    _ENDED.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    # A child drives nothing of what its parent did.
    os.register_at_fork(after_in_child=_forget)
