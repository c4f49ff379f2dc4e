"""The contract of a journal: the little that must survive a crash, and how it is kept.

A journal holds one :class:`TaskRecord` per call. It is told *that* a record is to be kept,
never why; every decision is the machine's. Implementations share one contract test suite,
``tests/test_journal_contract.py``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import Annotated, Any, Final, NamedTuple, Self, TypeAlias

from pydantic import Field, TypeAdapter

from ..states import Completed, Failed, Finished, Gone, Observing, State
from ..wire import PROTOCOL_VERSION, Task, redact, shorten

__all__ = ["Journal", "Judge", "Lease", "Scope", "Taken", "TaskRecord", "dump_state", "load_state"]


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose records: never read or sent beyond the endpoint and principal they were made for."""

    endpoint: str
    principal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """What the journal knows of one call.

    Times are local wall clock, in seconds since the epoch. ``repr`` shortens the task ID.
    """

    record_id: str
    """Ours, and random."""

    scope: Scope
    tool: str | None
    """``None`` for a task attached by its bare ID."""

    arguments_digest: str | None = None
    """SHA-256 of the canonical arguments; the arguments themselves are not stored."""

    idempotency_key: str | None = None
    state: State = field(repr=False)
    created_at: float
    updated_at: float
    delivered_at: float | None = None
    """When the outcome was handed to the host; ``None`` while it was not."""

    generation: str = PROTOCOL_VERSION
    """The protocol version whose tasks this is one of; empty if it was attached by its bare ID."""

    owner: str | None = None
    """The client that drives it, or drove it when it died; ``None`` once it was let go of."""

    fence: int = 0
    """Grows whenever it is taken, so that a late owner can be told from the present one."""

    def with_state(self, state: State) -> TaskRecord:
        """The same record in another state."""
        return self._but(state, self.owner, self.updated_at)

    def stamped(self, owner: str | None, updated_at: float) -> TaskRecord:
        """The same record, written by this owner at this time."""
        return self._but(self.state, owner, updated_at)

    def _but(self, state: State, owner: str | None, updated_at: float) -> TaskRecord:
        # Every poll makes one or two, and ``replace`` takes thrice as long.
        return TaskRecord(
            record_id=self.record_id,
            scope=self.scope,
            tool=self.tool,
            arguments_digest=self.arguments_digest,
            idempotency_key=self.idempotency_key,
            state=state,
            created_at=self.created_at,
            updated_at=updated_at,
            delivered_at=self.delivered_at,
            generation=self.generation,
            owner=owner,
            fence=self.fence,
        )

    @property
    def task(self) -> Task | None:
        """The latest snapshot, its result or error included; ``None`` before there is a task."""
        match self.state:
            case Observing():
                return self.state.task
            case Finished(task=Task() as task, outcome=Completed(result=result)):
                return task.model_copy(update={"result": result})
            case Finished(task=Task() as task, outcome=Failed() as failed):
                error = {"code": failed.code, "message": failed.message, "data": failed.data}
                return task.model_copy(update={"error": error})
            case Finished():
                return self.state.task
            case _:
                return None

    @property
    def task_id(self) -> str | None:
        """The server's task ID. Whoever knows it can act on the task."""
        task = self.state.task if isinstance(self.state, Observing | Finished) else None
        return task.task_id if task else None

    @property
    def kept(self) -> bool:
        """Whether a journal has a use for it: a plain call without a key has nothing to be found by."""
        return self.idempotency_key is not None or self.task_id is not None

    @property
    def status(self) -> str:
        """A task's status in the specification's words, else where the call stands.

        ``calling``, ``gathering`` and ``outcome_unknown`` before there is a task;
        ``not_found``, ``expired`` and ``violated`` for ends that are no status.
        """
        match self.state:
            case Observing():
                return self.state.task.status
            case Finished(outcome=outcome):
                return outcome.why if outcome.kind == "gone" else outcome.kind
            case _:
                return self.state.kind

    @property
    def finished(self) -> bool:
        """Whether the call is over, delivered or not."""
        return isinstance(self.state, Finished)

    @property
    def gone(self) -> bool:
        """Whether the server did not know the task when it was last asked."""
        return isinstance(self.state, Finished) and isinstance(self.state.outcome, Gone)

    @property
    def pending(self) -> bool:
        """Whether there is a task to watch, or an outcome that nobody has received yet."""
        return isinstance(self.state, Observing) or (self.finished and self.delivered_at is None)

    def __repr__(self) -> str:
        task_id = shorten(self.task_id) if self.task_id else None
        status = redact(self.status, self.task_id)
        return (
            f"TaskRecord(tool={self.tool!r}, task_id={task_id!r}, status={status!r}, "
            f"idempotency_key={self.idempotency_key!r})"
        )


@dataclass(frozen=True, slots=True)
class Lease:
    """A process's word that it is there for what its clients own.

    Times are wall clock, in seconds since the epoch.
    """

    lease_id: str
    """Random. The owners that it covers are called ``lease_id/1``, ``lease_id/2`` and so on."""

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


LEASES_KEPT_S: Final = 7 * 86_400.0
"""Seconds for which a lease is kept after it has run out, at least."""


class Taken(NamedTuple):
    """A record that somebody wanted to own."""

    record: TaskRecord
    """As it now stands; its ``owner`` says whether it was taken."""

    before: str | None
    """Its owner until now; ``None`` if the last one let go of it in good order."""

    lease: Lease | None
    """What that owner's process had last said, if it is known."""


Judge: TypeAlias = Callable[[str, Lease | None], bool]
"""Whether an owner is gone, going by the lease that covers it; ``None`` if there is none."""


class Journal(ABC):
    """Where records are kept, and who drives them.

    Every method is safe to call from several tasks at once. A method that writes returns when
    what it wrote would survive the death of the process and, where the medium can promise it,
    of the machine. Being cancelled while waiting does not undo a write.

    Opening counts: a journal may be shared by several clients of one process, and closes with
    the last of them.

    Attributes:
        retention_s: Seconds for which an outcome is kept after it was delivered, and with it its
            idempotency key.

    Raises:
        JournalError: From every method: the journal could not be read or written. The
            subclasses say why. What was stored before is untouched.
    """

    retention_s: float = 7 * 86_400.0

    @property
    def identity(self) -> Hashable:
        """Equal for journals that keep the same records."""
        return id(self)

    @abstractmethod
    async def open(self) -> None:
        """Make ready, and prove that it can be written to, before anything is sent anywhere."""

    @abstractmethod
    async def aclose(self) -> None:
        """Finish every write that was asked for, then let go. Never raises for what was stored."""

    @abstractmethod
    async def claim(self, record: TaskRecord) -> TaskRecord:
        """Store a new record, unless its scope already has one with the same idempotency key.

        Atomic, also between processes.

        Returns:
            The record that stands: the one given, or the one that was there.
        """

    @abstractmethod
    async def save(self, record: TaskRecord, *, known: bool = False) -> None:
        """Store a record as it now is, new or not (by ``record_id``).

        Args:
            record: What to store.
            known: It was stored before, so that it is not new but forgotten if it is not there.

        Raises:
            DrivenElsewhereError: It was taken since, its fence is not the stored one's; or another
                has brought it to its end, and it was forgotten. Nothing is stored.
        """

    @abstractmethod
    async def deliver(self, at: float, fences: Mapping[str, int]) -> None:
        """Note that hosts have had these outcomes, in one write. Nobody owns them any more.

        Nothing happens to one that was forgotten, taken since, delivered before, or is no outcome.

        Args:
            at: Wall clock, in seconds since the epoch.
            fences: Of each record, by its ``record_id``, as its owner knows it.
        """

    @abstractmethod
    async def remove(self, record: TaskRecord) -> None:
        """Forget a record. Nothing happens if there is none, or it was taken since."""

    @abstractmethod
    async def by_key(self, scope: Scope, idempotency_key: str) -> TaskRecord | None:
        """The record of an idempotency key."""

    @abstractmethod
    async def by_task_id(self, scope: Scope, task_id: str) -> TaskRecord | None:
        """The newest record of a task, compared byte for byte."""

    @abstractmethod
    async def records(self, scope: Scope, *, pending: bool = False) -> list[TaskRecord]:
        """The records of a scope, oldest first.

        Args:
            scope: Endpoint and principal.
            pending: Only those with a task to watch or an outcome not yet delivered. The cost is
                then that of the pending ones, however many others there are.
        """

    @abstractmethod
    async def prune(self, before: float) -> int:
        """Forget the records, of any scope, whose outcome was delivered before a time.

        And leases that had run out :data:`LEASES_KEPT_S` before it: a process that is stopped may
        come back.

        Args:
            before: Wall clock, in seconds since the epoch.

        Returns:
            How many were forgotten. A call forgets at most some thousands, so as to be short.
        """

    # ── who drives what ───────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def renew(self, lease: Lease) -> bool:
        """Store a process's lease, new or not.

        Returns:
            False if it had run out or was not there, so that others may have taken what it covers.
        """

    @abstractmethod
    async def take(self, record_id: str, owner: str, gone: Judge) -> Taken | None:
        """Become the owner of a record, unless it has another one who is not gone.

        Of a record whose outcome was delivered there is nothing left to own. Atomic, also between
        processes. The fence grows, whoever had it before.

        Returns:
            The record as it now stands; ``None`` if there is none.
        """

    @abstractmethod
    async def take_pending(self, scope: Scope, owner: str, gone: Judge) -> list[Taken]:
        """Become the owner of all records of a scope that are pending and free.

        Like :meth:`take` for each, in one write.

        Returns:
            Those that it took, and those that it had already, oldest first.
        """

    @abstractmethod
    async def release(self, *names: str) -> None:
        """Let go of the outcomes that these owners have, and forget the leases of these names.

        Whatever is unfinished gets an owner whom no lease covers, and who is therefore gone. To be
        let go of in good order it has to be saved, with the time when it is due.
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


_TaggedState: TypeAlias = Annotated[State, Field(discriminator="kind")]


@cache
def _states() -> TypeAdapter[State]:
    """Built on use: it takes longer than the rest of this module, and who only imports it needs none."""
    return TypeAdapter(_TaggedState)


_JSON: Final = json.JSONEncoder(separators=(",", ":"))  # made once: json.dumps would make one each time


def dump_state(state: State) -> str:
    """A state as JSON text in plain ASCII.

    ASCII, because a server's strings may hold lone surrogates, which no encoding can carry.
    """
    # Unset fields of a snapshot stay unset: an absent ttlMs and a null one differ.
    return _JSON.encode(_states().dump_python(state, by_alias=True, exclude_unset=True))


def load_state(text: str) -> State:
    """The state that :func:`dump_state` wrote, in this version or an earlier one.

    Raises:
        ValueError: The text is not a state.
    """
    raw: Any = json.loads(text)
    return _states().validate_python(raw, by_alias=True, by_name=False)
