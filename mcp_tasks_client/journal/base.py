"""The contract of a journal: the little that must survive a crash, and how it is kept.

A journal holds one :class:`TaskRecord` per call. It is told *that* a record is to be kept,
never why; every decision is the machine's. Implementations share one contract test suite,
:mod:`mcp_tasks_client.testing.journal_contract`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self, TypeAlias

from ..machine.record import Scope, TaskRecord

__all__ = [
    *("LEASES_KEPT_S", "LEFT", "Asking", "Instruction", "Journal", "Lease", "LeaseSource", "Listener"),
    "Taken",
]

LEASES_KEPT_S: Final = 7 * 86_400.0
"""Seconds for which a lease is kept after it has run out, since a suspended process may come back."""

LEFT: Final = "/left"
"""Ends the name of the owner of a call whose owner was released without it; see :meth:`Journal.release`."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The claim of a process, for a limited time, to the records that its clients own.

    A journal stores it by its ``lease_id``, gives all of it back as it was, and looks at three fields: that
    one and the two last. Times are in seconds since the epoch, by :attr:`Journal.clock` where there is one,
    else by the wall clock of the process.
    """

    lease_id: str
    """Random. The owners that the lease covers are called ``lease_id/1``, ``lease_id/2`` and so on."""

    host: str
    """The machine that the process runs on, by an ID of its own or by its name."""

    boot: str
    """Tells the runs of one host apart; empty where that cannot be known."""

    pids: str
    """Tells the spaces of process numbers on one host apart, as of containers; empty if there is one."""

    pid: int
    started: float
    """When the process began, by its operating system."""

    renewed_at: float
    """When the process renewed it last."""

    expires_at: float
    """When it runs out, unless it is renewed."""


class LeaseSource(Protocol):
    """A journal asks it for the lease to renew. It may be called from any thread, and never waits."""

    @property
    def lease_id(self) -> str:
        """The ``lease_id`` of the lease."""

    def due(self) -> Lease | None:
        """The lease to store now; ``None`` until it is due, and once no client holds it."""

    def renewed(self, lease: Lease, *, had_lapsed: bool) -> None:
        """The journal has stored the lease, and the write is committed.

        Args:
            lease: The one that :meth:`due` returned.
            had_lapsed: Whether the stored one had run out or was not there; see :meth:`Journal.renew`.
        """

    def ended(self) -> Collection[str]:
        """The names of owners that have ended without a release: they were dropped, or their loop was closed.

        The journal releases them as :meth:`Journal.release` does, after all writes that were asked for by
        now, and then calls :meth:`released`.
        """

    def released(self, names: Collection[str]) -> None:
        """The journal has released these, and the write is committed."""

    def end(self) -> bool:
        """Give the lease up, unless a client holds it: the journal closes with its last user.

        Returns:
            Whether it is given up. The journal then forgets the lease.
        """


class Taken(NamedTuple):
    """A record that a client has tried to take."""

    record: TaskRecord
    """As it now stands; its ``owner`` says whether it was taken."""

    before: str | None
    """Its owner until now; ``None`` if the last one released it in good order."""


class Asking(NamedTuple):
    """A record whose server asks something, and its instructions, both at one moment."""

    record: TaskRecord
    left: Sequence[str]
    """The names of the instructions that are to be heeded, in the order in which they were left."""


class Instruction(NamedTuple):
    """The wish of a client that does not drive a call, for the client that does."""

    name: str
    """Its subject, such as one question. Any text. A record keeps the first instruction of each name."""

    body: str
    """JSON text. Once the instruction was heeded, a digest of its answer; see :meth:`Journal.save`."""

    at: float
    """When it was left, in seconds since the epoch."""

    heeded: bool = False
    """True once the instruction is part of the record's state."""


Listener: TypeAlias = Callable[[Collection[str]], object]
"""Told the ``record_id`` of each record that has instructions to heed.

It may be called from any thread, takes no time, and raises nothing.
"""


class Journal(ABC):
    """Keeps records, and the owner of each.

    A coroutine that writes is one transaction. All of it is written or nothing, and other processes see all
    of it or nothing. It returns when the write would survive the death of the process and, where the medium
    can promise it, of the machine. Being cancelled, even before it has begun to wait, does not undo the
    write: the cancellation is raised after it. A write that fails may have been made nevertheless, as when
    the connection is lost meanwhile. The caller repeats the write unchanged, or reads the record.

    Every method is safe to call from several tasks at once, and from event loops in several threads. Writes
    of one record take effect in the order in which they were called.

    A record that is read is equal to the one that was written, and a copy of it: neither changes with the
    other. There is one exception: of a server's snapshot the fields are dropped that the protocol does not
    name. A text may be any ``str``, also with NUL or a lone surrogate in it, and is compared byte for byte.
    :class:`~mcp_tasks_client.journal.row.Row` is one way to keep all that.

    A journal decides nothing by a clock. All times are given to it, in seconds since the epoch, and compared
    with each other.

    Opening counts: a journal may be shared by several clients of one process, and closes with
    the last of them. While it is not open, every method raises :class:`JournalError`.

    A stored record that cannot be read is logged and left as it is. It withholds no other record;
    asked for by its own ID or that of its task, it raises :class:`JournalCorruptError`, or
    :class:`JournalCodecError` where a codec is missing or cannot decode it.

    Attributes:
        retention_s: Seconds for which the outcome of a keyed call is kept after it was delivered, and
            a task after its time-to-live. The engine prunes by it.
        keep_delivered_s: Seconds for which the outcome of a call without a key is kept at least, once it was
            delivered to a host's own session; 0 forgets it at once. The engine delivers by it.

    Raises:
        JournalError: From every method: the journal could not be read or written. The
            subclasses say why. An error of any other class, such as a database's own, is raised to hosts as
            a JournalError.
        TypeError: A value that should be text is not, or one of a record has no JSON form. Nothing is stored.
        ValueError: A time is not finite, or a fence is not between 0 and ``2**63 - 1``. Nothing is stored.
    """

    retention_s: float = 7 * 86_400.0
    keep_delivered_s: float = 600.0

    @property
    def identity(self) -> Hashable:
        """Equal for journals of one process that keep the same records.

        Their clients share one lease. The default is the object itself.
        """
        return id(self)

    @property
    def clock(self) -> Callable[[], float | None] | None:
        """Tells the time by which all processes of the journal go, on any host.

        It returns seconds since the epoch, or ``None`` while it is not known, as before the journal was
        opened. It holds no reference to the journal. The default is ``None``: each goes by its machine's
        clock.
        """
        return None

    @abstractmethod
    async def open(self) -> None:
        """Count one more user. For the first, make ready, and prove that it can be written to.

        Nothing is sent anywhere before that.

        Raises:
            JournalSchemaError: The medium is of another program, or of a newer version.
            JournalLockedError: Other processes have held it for too long.
        """

    async def open_existing(self) -> None:
        """Open the journal that is there, as :meth:`open` does. No right to write is needed.

        Nothing is made. Without the right to write, each write raises a
        :class:`JournalError` that says which right is missing. The default is :meth:`open`.

        Raises:
            JournalError: There is no journal. Besides, as from :meth:`open`.
        """
        await self.open()

    @abstractmethod
    async def aclose(self) -> None:
        """Count one user less, and finish every write that was asked for. With the last user it closes.

        It does so also while it is cancelled. It raises no error of a write, and does nothing if the journal
        is not open. The next opening finds all that was written.
        """

    def aclose_soon(self) -> None:  # noqa: B027  # a journal without a thread of its own just stays open
        """Like :meth:`aclose`, without waiting: the last user's leaving closes some seconds later.

        For users that may come back in a moment, so that the medium is not opened anew for each call. The
        default leaves the journal open.
        """

    @abstractmethod
    async def claim(self, record: TaskRecord) -> TaskRecord:
        """Store a new record, unless its scope already has one with the same idempotency key.

        Nor is it stored if there is one of its ``record_id``, so that a claim may be repeated. Of many claims
        at once, also in other processes, one stores its record, and all return that one. Records without a
        key stand beside each other.

        Returns:
            The record that stands, which is the one given or the one that was there.
        """

    @abstractmethod
    async def save(
        self,
        record: TaskRecord,
        *,
        known: bool = False,
        heeded: Instruction | None = None,
        keep_until: float | None = None,
    ) -> None:
        """Store a record as it now is, new or not (by ``record_id``).

        The fence is compared and the record written in one transaction. A save changes neither fence nor
        order of arrival. The instructions of a record that has ended are forgotten with it.

        Args:
            record: Stored by its ``record_id``.
            known: It was stored before, so that it is not new but forgotten if it is not there. The fields
                that a call begins with are then stored already, and the same: scope, key, tool, digest,
                label, application, origin and ``created_at``.
            heeded: An instruction that has led to this state. In the same transaction the stored one of its
                name is marked as heeded, and gets its body: a digest of an answer, which is private.
            keep_until: When a delivered record without an idempotency key may be forgotten, as with
                :meth:`deliver`.

        Raises:
            DrivenElsewhereError: It was taken since (its fence is not the stored one), or it is known and not
                there: another owner has brought it to its end, and it was forgotten. Nothing is stored.
            JournalError: Another record of the scope holds its idempotency key. Nothing is stored.
        """

    @abstractmethod
    def deliver(self, at: float, fences: Mapping[str, int], *, keep_until: float | None = None) -> None:
        """Note that hosts have had these outcomes, and release the records. Returns at once.

        ``delivered_at`` and ``updated_at`` are then ``at``, and ``owner`` is ``None``. A record with an
        idempotency key stays until it is pruned. Nothing happens to a record that was forgotten, taken since
        (its fence is not the given one), delivered before, or has no outcome.

        A journal that outlives the process writes this with its next write, within seconds, or on closing.
        Every method of the same journal sees it from now on. A crash before the write makes the outcome be
        delivered again, and so does a write that fails, which is logged.

        Args:
            at: When, in seconds since the epoch.
            fences: Of each record, by its ``record_id``, as its owner knows it.
            keep_until: When a record without an idempotency key may be forgotten, likewise; ``None``
                forgets it now.
        """

    @abstractmethod
    async def remove(self, record: TaskRecord) -> None:
        """Forget a record, with its instructions. Its key is free then.

        Nothing happens if there is none, or it was taken since: its fence is not the stored one.
        """

    @abstractmethod
    async def by_id(self, record_id: str) -> TaskRecord | None:
        """The record of this ``record_id``; ``None`` if there is none."""

    @abstractmethod
    async def by_task_id(self, scope: Scope, task_id: str) -> TaskRecord | None:
        """The record of a task in this scope, ended or not; ``None`` if there is none.

        Of several it is the newest by ``created_at``, and of equal age the one that arrived last.
        """

    @abstractmethod
    async def records(
        self,
        scope: Scope | None,
        *,
        pending: bool = False,
        delivered_since: float | None = None,
        endpoint: str | None = None,
        principal: str | None = None,
        label: str | None = None,
        application: str | None = None,
        limit: int | None = None,
        before: TaskRecord | float | None = None,
    ) -> list[TaskRecord]:
        """The records of a scope that can be read, oldest first.

        In the order of ``created_at``, and of equal age in that of their arrival. Only records are returned
        that meet all conditions.

        Args:
            scope: Endpoint and principal; ``None`` is all scopes.
            pending: Only those with a task to observe or an outcome not yet delivered
                (:attr:`TaskRecord.pending`). The cost is then that of the pending ones, however many others
                there are.
            delivered_since: Only those that were delivered at or after this time, in seconds since the epoch.
            endpoint: Only those at this server.
            principal: Only those on behalf of this principal.
            label: Only those of exactly this label.
            application: Only those of this application, and those of none.
            limit: At most this many, 1 at least: the last of those that meet all other conditions and can be
                read, still oldest first. The last ones of a scope, or of all, cost the same however many
                others there are.
            before: Only those that come before this record in that order; or, as a time, those that were made
                before it. A record that was forgotten stands for its ``created_at``.
        """

    @abstractmethod
    async def asking(self, scope: Scope | None) -> list[Asking]:
        """The records of a scope whose server asks something, with the names of their instructions.

        By :attr:`TaskRecord.status`: ``input_required`` or ``gathering``. Oldest first, as :meth:`records`.
        Records and instructions are read at one moment: an instruction is among them, or it is part of the
        record's state. The cost is that of the records that ask.

        Args:
            scope: Endpoint and principal; ``None`` is all scopes.
        """

    @abstractmethod
    async def prune(self, before: float, now: float, gone: Collection[str] = ()) -> int:
        """Forget old records, of any scope.

        A record is old if its outcome was delivered before ``before``, or was kept after its delivery until a
        time before ``now``. Unless it has an owner that is not gone, so is a task whose time-to-live had
        passed before ``before`` (:attr:`TaskRecord.expires_at`), and a call of which nothing can have run: it
        is in state ``gathering``, was never answered, and was saved before ``before``. ``statements.sql``
        says all this in SQL. Leases are forgotten that had run out ``LEASES_KEPT_S`` before ``before``.

        Args:
            before: In seconds since the epoch.
            now: Likewise.
            gone: Owners that are gone; see :meth:`owners`.

        Returns:
            How many records were forgotten. A call forgets at most some thousands, so as to be short. It is
            repeated until it returns 0.
        """

    # ── owners ────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def renew(self, lease: Lease) -> bool:
        """Store the lease of a process, new or not (by ``lease_id``).

        Returns:
            Whether it was there and had not run out, its stored ``expires_at`` being no earlier than the new
            ``renewed_at``. If not, others may have taken the records of its owners.
        """

    @abstractmethod
    def keep_renewing(self, source: LeaseSource) -> None:
        """Renew the lease of this process whenever ``source`` says that it is due.

        A journal that other processes see asks ``source.due()`` about once a second, in a thread of its own,
        since an event loop may be busy for longer than a lease lasts. It stores a lease that is due as
        :meth:`renew` does, and then calls ``source.renewed``. Likewise it releases ``source.ended()``. If
        either fails, it asks again later. A database that locks rows has the renewal wait for no other write
        and no row of another.

        The source is held on to until the lease is released or the journal closes. Until then the next client
        of this process shares the lease. A journal that no other process can see keeps the source and renews
        nothing.
        Before the last user's closing forgets a lease, it asks ``source.end()``. A source that is given again
        is the same one.
        """

    @abstractmethod
    async def owners(self, *names: str) -> dict[str, Lease | None]:
        """Owners, each with the lease that covers it, run out or not; ``None`` if there is none.

        The lease ``a`` covers the owners ``a/1``, ``a/2`` and so on.
        By the lease the engine judges whether an owner is gone. An owner that was gone stays so: each client
        has a name of its own, and a process that comes back finds the fences of its records overtaken.

        Args:
            names: The owners to return, whether or not each owns a record. Without names, all that own a
                record of any scope.
        """

    @abstractmethod
    async def take(self, record_id: str, owner: str, gone: Collection[str] = ()) -> Taken | None:
        """Become the owner of a record, unless it has another one that is not gone.

        A record whose outcome was delivered is not taken. Of many takers at once, also in other processes,
        one takes it. The fence grows by one, also if ``owner`` had the record before. Nothing else changes.

        Args:
            record_id: The ID of the record.
            owner: The taker.
            gone: Owners that are gone; see :meth:`owners`.

        Returns:
            The record as it now stands, taken or not; ``None`` if there is none.
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

        Like :meth:`take` for each that has no owner or one that is gone, in one transaction. A record that
        another process is taking at the moment is passed over. One that ``owner`` has already keeps its
        fence.

        Args:
            scope: Endpoint and principal.
            owner: The taker.
            gone: Owners that are gone; see :meth:`owners`.
            application: Records of other applications are left alone. Those of none are anybody's.
            limit: How many it takes at most, the oldest; ``None`` is all. Those that it had do not count.
            leave: The ``record_id`` of records that are not to be taken.

        Returns:
            Those that it took, and those that it had already, oldest first.
        """

    async def principals(
        self, endpoint: str, gone: Collection[str] = (), *, application: str | None = None
    ) -> list[str]:
        """The principals that have records at a server which :meth:`take_pending` would take, in any order.

        The default reads all pending records.

        Args:
            endpoint: The server's name.
            gone: Owners that are gone; see :meth:`owners`.
            application: Records of other applications do not count.
        """
        return list(
            {
                record.scope.principal
                for record in await self.records(None, pending=True)
                if record.scope.endpoint == endpoint
                and record.application in (None, application)
                and (record.owner is None or record.owner in gone)
            }
        )

    @abstractmethod
    async def release(self, *names: str) -> None:
        """Release the outcomes that these owners have, and forget the leases of these names.

        An outcome that was not delivered has no owner then. Every other record of theirs gets the owner
        ``<name>/left``, which no lease covers, and which is therefore gone. A call is released in good order
        by a :meth:`save` without an owner, which also stores when the call is due. Fences stay.

        Args:
            names: Of owners and of leases, in any order. Those that are unknown are passed over.
        """

    # ── instructions ──────────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
        """Leave an instruction for the client that drives a call, unless there is one of that name.

        Of many that are left under one name at once, also by other processes, one stands, and all return that
        one. An instruction that was heeded keeps its name taken. None is left once a :meth:`save` has ended
        the call: of the two, one comes after the other. Listeners are told.

        Returns:
            The one that stands, which is the one given or the one that was there; ``None`` if there is no
            such record, or it has ended.
        """

    @abstractmethod
    async def instructions(self, record_id: str) -> list[Instruction]:
        """The instructions of a record that are to be heeded, in the order in which they were left."""

    @abstractmethod
    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell of instructions that are to be heeded: within this process at once, of others within seconds.

        Those that there are already are told of too, within seconds. A listener may hear of one several
        times, and of records that are not its own. It is told until the function that is returned is called.
        That waits for nothing, not even for a lock, since a finalizer may call it. It may be called again.
        """

    def watch(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Tell that calls may have asked something, or ended.

        Within this process it tells at once, of others within seconds, until the function that is returned is
        called. The watcher may be called from any thread, takes no time and raises nothing. The function
        waits for nothing, as that of :meth:`listen`. The default never tells: a watcher's owner also looks
        by itself every few seconds.
        """
        return lambda: None

    async def follow(self, record_id: str) -> None:
        """Have listeners told when a call ends that another client drives, perhaps in another process.

        It leaves no instruction to be heeded. Nothing happens if there is no such record, or it has ended. A
        journal that cannot do that does nothing, as the default. The engine also looks by itself at the calls
        that it follows.
        """
        return

    async def durations(self, scope: Scope, tool: str) -> list[float]:
        """How long the last 50 tasks of a tool ran that have completed, in seconds, the oldest first.

        The transaction of the :meth:`save` that ends a task which was observed (:attr:`TaskRecord.due_at`)
        notes :attr:`TaskRecord.took_s`, if the record has that and a tool. A second save of the end notes
        nothing. The note stays when the record is forgotten. It may be left out if another process is noting
        a task of the same tool. A journal may keep none, as the default: its clients go on without estimates.
        """
        return []

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
