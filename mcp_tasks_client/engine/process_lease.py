"""Owners and their leases: an owner is one client, and a lease stands for its whole process.

The journal lets an owner write only the records that it took last. The *lease* is kept once per process
and journal, however many clients and calls there are, and the journal itself renews it in time. An
owner is gone when its client has closed or was dropped, its process has ended, or, where the process cannot
be seen from here (another host, another container), when its lease has run out.

A process judges its own lease as the other processes do, by its own clock. Once the lease has run out, other
processes may have taken the calls of this one, and :mod:`.owning` asks the journal before each request.

The clients hold their lease, and so does the journal while it renews it. Nothing else does, so that a client
that was dropped without being closed leaves nothing behind.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import uuid
import weakref
from collections.abc import Callable, Collection, Hashable
from copy import copy
from functools import cache
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio

from ..aio.clock import Clock
from ..aio.uncut import running_loop
from ..journal.base import Journal, Lease
from .environment import Environment
from .process import Process

__all__ = ["ProcessLease"]

logger = logging.getLogger("mcp_tasks_client")

_RENEWALS: Final = 3
"""Renewals in the time of a lease, so that one may fail."""

_PRUNE_EVERY_S: Final = 600.0

_OF_PROCESS: Final = "~"

_lock = threading.Lock()


_LOOKS: Final = 3
"""Times that the leases are read, if reading takes long enough for other processes to renew theirs."""


class _Sighting(NamedTuple):
    """The lease of another process as it was seen last. ``at`` and ``until`` are by :meth:`Clock.elapsed`."""

    expires_at: float
    at: float
    until: float


class _Stored(NamedTuple):
    """Our lease as the journal has it: when its storing began, by the journal's clock and by our own."""

    renewed_at: float
    at: float


class _Store:
    """A lease on its way into the journal."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.error: Exception | None = None


class ProcessLease:
    """The lease of this process in one journal, shared by all of its clients there.

    Attributes:
        owners: The clients that hold it: by the name of each, whether it has ended without a word, because
            its event loop was closed. A finalizer may take one out at any time.
        tenure: Counts how often the lease has run out. Other processes may have taken a record that was
            taken under an earlier count.
        is_watched: Whether processes may share the journal that know of this one by its lease alone: the
            journal has a clock for several hosts, or holds the lease of a process that was looked for and
            cannot be seen from here.
    """

    def __init__(self, journal: Journal, process: Process, environment: Environment) -> None:
        self._key: tuple[Hashable, Process] = journal.identity, process
        self._process = process
        self._is_shared = self.is_watched = journal.clock is not None
        self._clock: Clock = environment.clock
        self._lease_s = environment.lease_s
        self._lease_id = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self.owners: dict[str, Callable[[], bool]] = {}
        self._ended: dict[str, None] = {}  # without a word, and the journal does not know it yet
        self.tenure = 0
        self._stored: _Stored | None = None
        self._latest: tuple[Lease | None, float] = None, 0.0  # on its way into the journal, and since when
        self._pruned_at = -math.inf
        # By event loop, weakly: one that was closed in the midst of a store is not waited for by the next.
        self._storing: WeakKeyDictionary[Any, _Store] = WeakKeyDictionary()
        self._sightings: dict[str, _Sighting] = {}

    @classmethod
    def join(cls, journal: Journal, environment: Environment) -> tuple[ProcessLease, str]:
        """The lease of this process in a journal, and under it the owner name of one more client."""
        process = environment.process or Process.current()
        with _lock:
            key = (journal.identity, process)
            lease = _LEASES.get(key)
            if lease is None:
                lease = _LEASES[key] = cls(journal, process, environment)
            if not lease.owners:  # so that nothing of theirs could be taken meanwhile
                lease._stored = None
            owner = f"{lease._lease_id}/{next(lease._numbers)}"
            lease.owners[owner] = _lives
            return lease, owner

    def watch(self, owner: str, client: object, has_ended: Callable[[], bool]) -> None:
        """Have a client end, without a word, once it is dropped or ``has_ended()``, which any thread asks."""
        self.owners[owner] = has_ended
        # It holds nothing but the names: a clock of the host's may know who keeps the client alive.
        weakref.finalize(client, _end, self.owners, self._ended, owner).atexit = False

    @staticmethod
    def name_for_process(owner: str) -> str:
        """The owner name of a record that a client leaves to its process.

        The lease covers the name, so that other processes leave the record alone. No client has the name, so
        that each client of this process may take the record.
        """
        return owner + _OF_PROCESS

    def leave(self, owner: str) -> tuple[str, ...]:
        """End a client. Returns the names to release in the journal: the last client gives up the lease."""
        names = (owner, self.name_for_process(owner))
        self.owners.pop(owner, None)
        return (*names, self._lease_id) if self.end() else names

    def end(self) -> bool:
        """Give up the lease, unless a client holds it. Returns whether it is given up."""
        with _lock:
            self._find_ended()
            if self.owners:
                return False
            if _LEASES.get(self._key) is self:  # else it was given up before, and there is a newer one
                del _LEASES[self._key]
            return True

    # ── renewing ──────────────────────────────────────────────────────────────────────────────

    @property
    def is_stored(self) -> bool:
        """True once a client that holds the lease has stored it."""
        return self._stored is not None

    @property
    def is_short(self) -> bool:
        """Whether the lease that the journal holds is missing, or runs out before its next renewal."""
        return self.left_s < self._renew_s

    @property
    def left_s(self) -> float:
        """Seconds until the lease that the journal holds runs out. Once it has, or without one, 0 or less."""
        stored = self._stored
        return -math.inf if stored is None else self._lease_s - self._age_s(stored)

    def _age_s(self, stored: _Stored) -> float:
        # The wall clock too: on some systems it alone counts on while the machine is suspended.
        return max(self._clock.elapsed() - stored.at, self._clock.time() - stored.renewed_at)

    def vouches_for(self, tenure: int) -> bool:
        """Whether no other process can have taken a record that was ours in this tenure."""
        return tenure == self.tenure and (not self.is_watched or self.left_s > 0)

    @property
    def lease_id(self) -> str:
        """The lease's name in the journal."""
        return self._lease_id

    async def enrol(self, journal: Journal) -> None:
        """Store a lease that lasts, before anything is owned. Of many callers at once, one stores it.

        Raises:
            JournalError: It could not be stored, also where another caller has tried.
        """
        # An event loop waits for its own stores only. A second loop stores the lease once more.
        here = running_loop()
        while self.is_short:
            store = self._storing.get(here)
            if store is None:
                await self._store(journal, here)
                continue  # a lease that has waited for the journal may be short again
            await store.ended.wait()
            if store.error is not None:
                raise copy(store.error)
            # Else it is stored; or the caller that stored it was cancelled, and another one has to.

    async def _store(self, journal: Journal, here: object) -> None:
        store = self._storing[here] = _Store()
        lease, is_first = self._lease(), self._stored is None
        try:
            had_lapsed = not await journal.renew(lease) and not is_first
        except Exception as error:
            store.error = error
            raise
        else:
            self.renewed(lease, had_lapsed=had_lapsed)
        finally:
            del self._storing[here]
            store.ended.set()

    def due(self) -> Lease | None:
        """The lease to store now; ``None`` while it is not time, or no client holds it."""
        stored = self._stored
        with _lock:
            self._find_ended()
            if not self.owners or stored is None:
                return None
        was_set_back = self._clock.time() < stored.renewed_at
        return self._lease() if was_set_back or self._age_s(stored) >= self._renew_s else None

    def ended(self) -> Collection[str]:
        """The names of the clients that have ended without a word, until :meth:`released` has them."""
        with _lock:
            self._find_ended()
        return [name for owner in list(self._ended) for name in (owner, self.name_for_process(owner))]

    def released(self, names: Collection[str]) -> None:
        """Note that the journal has released these."""
        for name in names:
            self._ended.pop(name, None)

    def _find_ended(self) -> None:
        for owner, has_ended in list(self.owners.items()):
            if has_ended():
                _end(self.owners, self._ended, owner)

    def renewed(self, lease: Lease, *, had_lapsed: bool) -> None:
        """Note that the journal has stored the lease."""
        # By our own clock too: after a lost reply the journal finds the lease that it has just stored itself.
        if had_lapsed or (self._stored is not None and self.left_s <= 0):
            self.tenure += 1
            logger.warning("The lease of this process had run out. Other processes may have taken its tasks.")
        latest, at = self._latest
        if lease == latest:
            self._stored = _Stored(lease.renewed_at, at)

    @property
    def _renew_s(self) -> float:
        return self._lease_s / _RENEWALS

    def _lease(self) -> Lease:
        at = self._clock.elapsed()
        now, process = self._clock.time(), self._process
        lease = Lease(
            lease_id=self._lease_id,
            host=process.host,
            boot=process.boot,
            pids=process.pids,
            pid=process.pid,
            started=process.started,
            renewed_at=now,
            expires_at=now + self._lease_s,
        )
        self._latest = lease, at
        return lease

    # ── forgetting old clients ────────────────────────────────────────────────────────────────

    def begin_prune(self) -> bool:
        """Whether the caller has to prune old records now: one client of all, once in ten minutes."""
        now = self._clock.monotonic()
        is_due = now - self._pruned_at >= _PRUNE_EVERY_S
        if is_due:
            self._pruned_at = now
        return is_due

    # ── judging others ────────────────────────────────────────────────────────────────────────

    async def gone(self, journal: Journal, *names: str, of_process: bool = False) -> set[str]:
        """The owners that are gone: among the names, or without names among all owners of records.

        A record that an open client has left to its process counts as gone, so that any client here may take
        it. With ``of_process`` it counts as owned, so that a prune keeps it.
        """
        owners = await self._read(journal, names)
        now, at = self._clock.time(), self._clock.elapsed()

        @cache
        def has_ended(lease: Lease) -> bool:
            # A journal that hosts share may hold the lease of a machine of the same name.
            is_elsewhere = self._is_shared and lease.boot != self._process.boot
            alive = None if is_elsewhere else self._process.sees_alive(lease)
            if alive is None:
                self.is_watched = True
                return self._has_run_out(lease, now, at)
            return not alive

        def is_gone(owner: str, lease: Lease | None) -> bool:
            if lease is None or not self._process.holds(lease):
                return lease is None or has_ended(lease)
            client = owner.removesuffix(_OF_PROCESS) if of_process else owner
            with _lock:
                return all(other.owners.get(client, _has_ended)() for other in _LEASES.values())

        return {owner for owner, lease in owners.items() if is_gone(owner, lease)}

    async def _read(self, journal: Journal, names: Collection[str]) -> dict[str, Lease | None]:
        """Owners and their leases, as the journal had them a moment ago; none if that cannot be had."""
        for _ in range(_LOOKS):
            began = self._clock.elapsed()
            owners = await journal.owners(*names)
            if self._clock.elapsed() - began <= self._renew_s:
                return owners
            # This process may have been suspended since the journal was read: living owners have renewed.
        return {}

    def _has_run_out(self, lease: Lease, now: float, at: float) -> bool:
        """Whether nothing was heard of a process for as long as its lease lasts.

        Only the wall clock is common to both processes. From the moment at which this process has seen a
        lease, it goes by its own clock: no lease runs out early because a wall clock is set. A lease that was
        renewed or extended since lasts from when this process looked before.

        Args:
            lease: As the journal has it.
            now: The present moment, in seconds since the epoch.
            at: The present moment, by :meth:`Clock.elapsed`.
        """
        lasts_s = lease.expires_at - lease.renewed_at
        seen = self._sightings.get(lease.lease_id)
        if seen is not None and seen.expires_at == lease.expires_at:
            until = seen.until
        else:
            until = at + min(lasts_s, lease.expires_at - now)
            if seen is not None:
                until = max(until, seen.at + lasts_s)
        if until < at:
            self._sightings.pop(lease.lease_id, None)
            return True
        self._sightings[lease.lease_id] = _Sighting(lease.expires_at, at, until)
        return False


def _lives() -> bool:
    return False


def _has_ended() -> bool:
    return True


def _end(owners: dict[str, Callable[[], bool]], ended: dict[str, None], owner: str) -> None:
    """Note that a client has ended without a word, unless it has left. Waits for no lock."""
    if owners.pop(owner, None) is not None:
        ended[owner] = None


_LEASES: Final[WeakValueDictionary[tuple[Hashable, Process], ProcessLease]] = WeakValueDictionary()
