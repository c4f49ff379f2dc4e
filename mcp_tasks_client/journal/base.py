"""The contract of a journal: the little that must survive a crash, and how it is kept.

A journal holds one :class:`TaskRecord` per call. It is told *that* a record is to be kept,
never why; every decision is the machine's. Implementations share one contract test suite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self, TypeAlias

from ..machine.record import Scope, TaskRecord

__all__ = ["LEASES_KEPT_S", "Instruction", "Journal", "Lease", "LeaseSource", "Listener", "Taken"]

LEASES_KEPT_S: Final = 7 * 86_400.0
"""Seconds for which a lease is kept after it has run out: a process that is suspended may come back."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The word of a process that it is there for what its clients own.

    Times are wall clock, in seconds since the epoch.
    """

    lease_id: str
    """Random. The owners that the lease covers are called ``lease_id/1``, ``lease_id/2`` and so on."""

    host: str
    boot: str
    """Tells the runs of one host apart; empty where that cannot be known."""

    pids: str
    """Tells the spaces of process numbers on one host apart, as of containers; empty if there is one."""

    pid: int
    started: float
    """When the process began, by its operating system."""

    renewed_at: float
    expires_at: float

    def covers(self, owner: str) -> bool:
        """Whether the owner is one of this lease."""
        return owner.rpartition("/")[0] == self.lease_id


class LeaseSource(Protocol):
    """What a journal asks for the lease to renew. Called from any thread."""

    @property
    def lease_id(self) -> str:
        """Which lease it is."""

    def due(self) -> Lease | None:
        """The lease to store now; ``None`` while it is not time, or nobody holds it any more."""

    def renewed(self, lease: Lease, *, had_lapsed: bool) -> None:
        """The journal has stored the lease. ``had_lapsed``: the one before had run out, or was not there."""

    def end(self) -> bool:
        """Give the lease up, unless a client holds it: the journal closes. Returns whether it is given up."""


class Taken(NamedTuple):
    """A record that somebody wanted to own."""

    record: TaskRecord
    """As it now stands; its ``owner`` says whether it was taken."""

    before: str | None
    """Its owner until now; ``None`` if the last one released it in good order."""


class Instruction(NamedTuple):
    """What somebody who does not drive a call wants done about it."""

    name: str
    """What it is about, such as one question. The first of a name is the one that counts."""

    body: str
    """JSON text; empty once it was heeded."""

    at: float
    """When it was left, in seconds since the epoch."""

    heeded: bool = False
    """Whether it is part of the record's state."""


Listener: TypeAlias = Callable[[Collection[str]], object]
"""Told the ``record_id`` of each record that has instructions to heed. Called from any thread."""


class Journal(ABC):
    """Where records are kept, and who drives them.

    Every method is safe to call from several tasks at once. A coroutine that writes returns when
    what it wrote would survive the death of the process and, where the medium can promise it,
    of the machine. Being cancelled while waiting does not undo a write.

    Opening counts: a journal may be shared by several clients of one process, and closes with
    the last of them.

    A stored record that cannot be read is logged and left as it is. It withholds no other record;
    asked for by its own key or task ID, it raises :class:`JournalCorruptError`, or
    :class:`JournalCodecError` where a codec is missing or cannot decode it.

    Attributes:
        retention_s: Seconds for which the outcome of a keyed call is kept after it was delivered, and
            a task after its time-to-live.
        keep_delivered_s: Seconds for which the outcome of a call without a key is kept at least, once it was
            delivered to a host's own session; 0 forgets it at once.

    Raises:
        JournalError: From every method: the journal could not be read or written. The
            subclasses say why. What was stored before is untouched.
    """

    retention_s: float = 7 * 86_400.0
    keep_delivered_s: float = 600.0

    @property
    def identity(self) -> Hashable:
        """Equal for journals that keep the same records."""
        return id(self)

    @property
    def clock(self) -> Callable[[], float | None] | None:
        """Tells the time that all who share the journal go by, wherever they are.

        It returns seconds since the epoch, or ``None`` while it is not known, as before the journal was
        opened. It does not hold the journal. The default is ``None``: they go by the clock of their machine.
        """
        return None

    @abstractmethod
    async def open(self) -> None:
        """Make ready, and prove that it can be written to, before anything is sent anywhere."""

    @abstractmethod
    async def aclose(self) -> None:
        """Finish every write that was asked for, then close with the last user.

        Never raises for what was stored.
        """

    def aclose_soon(self) -> None:  # noqa: B027  # a journal without a thread of its own just stays open
        """Like :meth:`aclose`, without waiting: the last user's leaving closes some seconds later.

        For those who may come back in a moment, so that the medium is not opened anew for each call.
        The default leaves the journal open.
        """

    @abstractmethod
    async def claim(self, record: TaskRecord) -> TaskRecord:
        """Store a new record, unless its scope already has one with the same idempotency key.

        Atomic, also between processes.

        Returns:
            The record that stands, which is the one given or the one that was there.
        """

    @abstractmethod
    async def save(self, record: TaskRecord, *, known: bool = False, heeded: str | None = None) -> None:
        """Store a record as it now is, new or not (by ``record_id``).

        The instructions of a record that has ended are forgotten.

        Args:
            record: What to store.
            known: It was stored before, so that it is not new but forgotten if it is not there.
            heeded: The name of an instruction that the state has become by. It is marked as heeded, and its
                body is forgotten.

        Raises:
            DrivenElsewhereError: It was taken since (its fence is not the stored one), or another
                has brought it to its end, and it was forgotten. Nothing is stored.
        """

    @abstractmethod
    def deliver(self, at: float, fences: Mapping[str, int], *, keep_until: float | None = None) -> None:
        """Note that hosts have had these outcomes. Returns at once; nobody owns them any more.

        Nothing happens to a record that was forgotten, taken since, delivered before, or has no outcome.

        A journal that outlives the process writes this with what it writes next, within seconds, or on
        closing. Every method of the same journal sees it from now on. A crash before the write makes the
        outcome be delivered again, and so does a write that fails, which is logged.

        Args:
            at: Wall clock, in seconds since the epoch.
            fences: Of each record, by its ``record_id``, as its owner knows it.
            keep_until: When a record without an idempotency key may be forgotten, by the wall clock; ``None``
                forgets it now.
        """

    @abstractmethod
    async def remove(self, record: TaskRecord) -> None:
        """Forget a record. Nothing happens if there is none, or it was taken since."""

    @abstractmethod
    async def by_id(self, record_id: str) -> TaskRecord | None:
        """The record of this ``record_id``."""

    @abstractmethod
    async def by_key(self, scope: Scope, idempotency_key: str) -> TaskRecord | None:
        """The record of an idempotency key."""

    @abstractmethod
    async def by_task_id(self, scope: Scope, task_id: str) -> TaskRecord | None:
        """The newest record of a task, compared byte for byte."""

    @abstractmethod
    async def records(
        self,
        scope: Scope | None,
        *,
        pending: bool = False,
        asking: bool = False,
        delivered_since: float | None = None,
    ) -> list[TaskRecord]:
        """The records of a scope that can be read, oldest first.

        Args:
            scope: Endpoint and principal; ``None`` is all scopes.
            pending: Only those with a task to observe or an outcome not yet delivered. The cost is
                then that of the pending ones, however many others there are.
            asking: Only those whose server asks something, at the same cost.
            delivered_since: Only those that were delivered at or after this time, by the wall clock.
        """

    @abstractmethod
    async def prune(self, before: float, now: float, gone: Collection[str] = ()) -> int:
        """Forget what is old, of any scope.

        Records whose outcome was delivered before a time, or was kept until now; tasks whose time-to-live had
        passed before that time, unless they have an owner who is not gone; and leases that had run out
        ``LEASES_KEPT_S`` before it.

        Args:
            before: Wall clock, in seconds since the epoch.
            now: Likewise.
            gone: Owners who are gone; see :meth:`owners`.

        Returns:
            How many records were forgotten. A call forgets at most some thousands, so as to be short.
        """

    # ── who drives what ───────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def renew(self, lease: Lease) -> bool:
        """Store the lease of a process, new or not.

        Returns:
            False if it had run out or was not there, so that others may have taken what it covers.
        """

    @abstractmethod
    def keep_renewing(self, source: LeaseSource) -> None:
        """Renew the lease of this process whenever ``source`` says that it is due.

        The source is held on to until the lease is released or the journal closes. As long as it is, whoever
        comes next in this process finds the lease. A journal that no other process can see does no more.
        """

    @abstractmethod
    async def owners(self, *names: str) -> dict[str, Lease | None]:
        """Owners, each with the lease that covers it; ``None`` if there is none.

        Who is gone is judged by that, outside of the journal. An owner who was gone stays so: each client has
        a name of its own, and whoever comes back finds its fences overtaken.

        Args:
            names: Of these only, whether or not they own anything. Without names, of all who own a record.
        """

    @abstractmethod
    async def take(self, record_id: str, owner: str, gone: Collection[str] = ()) -> Taken | None:
        """Become the owner of a record, unless it has another one who is not gone.

        Of a record whose outcome was delivered there is nothing left to own. Atomic, also between
        processes. The fence grows, whoever had it before.

        Args:
            record_id: Which record.
            owner: Who takes it.
            gone: Owners who are gone; see :meth:`owners`.

        Returns:
            The record as it now stands; ``None`` if there is none.
        """

    @abstractmethod
    async def take_pending(
        self,
        scope: Scope,
        owner: str,
        gone: Collection[str] = (),
        *,
        application: str | None = None,
        limit: int | None = None,
        leave: Collection[str] = (),
    ) -> list[Taken]:
        """Become the owner of all records of a scope that are pending and free, and can be read.

        Like :meth:`take` for each, in one write.

        Args:
            scope: Endpoint and principal.
            owner: Who takes them.
            gone: Owners who are gone; see :meth:`owners`.
            application: Records of other applications are left alone. Those of none are anybody's.
            limit: How many it takes at most, the oldest; ``None`` is all. What it had already does not count.
            leave: The ``record_id`` of records that are not to be taken.

        Returns:
            Those that it took, and those that it had already, oldest first.
        """

    @abstractmethod
    async def release(self, *names: str) -> None:
        """Release the outcomes that these owners have, and forget the leases of these names.

        Whatever is unfinished gets an owner whom no lease covers, and who is therefore gone. To be
        released in good order it has to be saved, with the time when it is due.
        """

    # ── instructions ──────────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
        """Leave an instruction for whoever drives a call, unless there is one of that name, heeded or not.

        Atomic, also between processes.

        Returns:
            The one that stands, which is the one given or the one that was there; ``None`` if there is no
            such record, or it has ended.
        """

    @abstractmethod
    async def instructions(self, record_id: str) -> list[Instruction]:
        """The instructions of a record that are to be heeded, oldest first."""

    @abstractmethod
    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell of instructions that are to be heeded: within this process at once, of others within seconds.

        Those that there are already are told of too, within seconds. A listener may hear of one several
        times, and of records that are not its own. It is told until the function that is returned is called.
        """

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
