"""One journal that several processes share. What a process had not committed dies with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol

from anyio.lowlevel import checkpoint

from mcp_tasks_client import (
    Asking,
    Instruction,
    Journal,
    JournalError,
    Lease,
    LeaseSource,
    Listener,
    MemoryJournal,
    Scope,
    Taken,
    TaskRecord,
)

from .virtual_time import ProcessClock

__all__ = ["CUT_OFF_S", "LOOK_S", "ProcessJournal", "Trouble", "Watch"]

Trouble = Callable[[], JournalError | None]
"""Asked before each write: what the disk says to it, if anything."""

CUT_OFF_S: Final[ContextVar[tuple[float, float]]] = ContextVar("cut_off_s", default=(0.0, 0.0))
"""Seconds for which a process is cut off from its journal before it leaves an instruction, and after."""

LOOK_S: Final = 5.0
"""Seconds between two times that a journal writes of its own accord."""


class Watch(Protocol):
    """Who is told of what is done to records."""

    def enrolled(self, lease: Lease) -> None:
        """A process stored its lease."""

    def saved(self, record: TaskRecord, fence: int | None, heeded: Instruction | None = None) -> None:
        """A record was stored, over one with that fence if there was one.

        ``heeded`` is the instruction that has become part of its state, if one has.
        """

    def removed(self, record: TaskRecord) -> None:
        """A record is no more, since its call was not made."""

    def taken(self, taken: Taken, *, pending: bool) -> None:
        """A record changed its owner; ``pending``: among all that were free."""

    def forgotten(self, record: TaskRecord) -> None:
        """A record was pruned."""

    def instructed(self, record_id: str, instruction: Instruction) -> None:
        """An instruction was left, the first of its name."""


class ProcessJournal(Journal):
    """The journal as one process has it open.

    It is the contract and nothing else: a write is durable when its coroutine returns. ``deliver`` is
    durable with the next write, or some seconds later, or never if the process is killed first.

    Args:
        records: What all processes share; open.
        clock: The process's. A process that is killed reads and writes nothing any more.
        trouble: Lets writes fail.
        watch: Told what each write does to a record.
        fences: The fence of each record as it was stored last; shared by all processes.
        away: Lets reads and writes fail.
        hears_late: It hears of what other processes leave as late as a journal may, for which
            :meth:`write_now_and_then` has to run.
        shown: The clock that all go by who share the journal; ``None`` if each goes by its own.
    """

    def __init__(
        self,
        records: MemoryJournal,
        clock: ProcessClock,
        trouble: Trouble = lambda: None,
        watch: Watch | None = None,
        fences: dict[str, int] | None = None,
        *,
        away: Trouble = lambda: None,
        hears_late: bool = False,
        shown: Callable[[], float] | None = None,
    ) -> None:
        self._records = records
        self._shown = shown
        self._away = away
        self._clock = clock
        self._trouble = trouble
        self._watch = watch
        self._fences = {} if fences is None else fences
        self._hears_late = hears_late
        self._listeners: set[Listener] = set()
        self._instructed: set[str] = set()
        self._users = 0
        self._sources: set[LeaseSource] = set()
        self._delivered: list[tuple[float, Mapping[str, int], float | None]] = []

    @property
    def identity(self) -> Hashable:
        return id(self._records)

    @property
    def clock(self) -> Callable[[], float] | None:
        return self._shown

    async def write_now_and_then(self) -> None:
        """What a journal does of its own accord.

        Tell of what others have left, renew the lease in time, and write what was delivered.
        """
        while True:
            await self._clock.sleep(LOOK_S)
            self._tell(self._instructed.copy())
            self._instructed.clear()
            if self._trouble() is None and self._away() is None:
                self._flush()
                for source in list(self._sources):
                    names = source.ended()
                    if names:
                        await self._records.release(*names)
                        source.released(names)
                    lease = source.due()
                    if lease is not None:
                        source.renewed(lease, had_lapsed=not await self._records.renew(lease))

    # ── the contract ──────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        await self._clock.pass_on()
        self._users += 1

    async def aclose(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._sources.clear()
            if not self._clock.killed and self._trouble() is None:
                self._flush()

    async def claim(self, record: TaskRecord) -> TaskRecord:
        await self._write()
        standing = await self._records.claim(record)
        if standing == record:
            self._note_saved(record)
        return standing

    async def save(
        self,
        record: TaskRecord,
        *,
        known: bool = False,
        heeded: Instruction | None = None,
        keep_until: float | None = None,
    ) -> None:
        await self._write()
        await self._records.save(record, known=known, heeded=heeded, keep_until=keep_until)
        self._note_saved(record, heeded)

    def deliver(self, at: float, fences: Mapping[str, int], *, keep_until: float | None = None) -> None:
        self._delivered.append((at, dict(fences), keep_until))

    async def remove(self, record: TaskRecord) -> None:
        await self._write()
        await self._records.remove(record)
        if self._watch is not None:
            self._watch.removed(record)

    async def by_id(self, record_id: str) -> TaskRecord | None:
        await self._read()
        return await self._records.by_id(record_id)

    async def by_task_id(self, scope: Scope, task_id: str) -> TaskRecord | None:
        await self._read()
        return await self._records.by_task_id(scope, task_id)

    async def records(
        self,
        scope: Scope | None,
        **wanted: Any,
    ) -> list[TaskRecord]:
        await self._read()
        return await self._records.records(scope, **wanted)

    async def asking(self, scope: Scope | None) -> list[Asking]:
        await self._read()
        return await self._records.asking(scope)

    async def prune(self, before: float, now: float, gone: Collection[str] = ()) -> int:
        await self._write()
        there = [await self._records.by_id(record_id) for record_id in self._fences]
        found = await self._records.prune(before, now, gone)
        for record in there if found else ():
            if record is not None and await self._records.by_id(record.record_id) is None:
                del self._fences[record.record_id]
                if self._watch is not None:
                    self._watch.forgotten(record)
        return found

    async def renew(self, lease: Lease) -> bool:
        await self._write()
        if self._watch is not None:
            self._watch.enrolled(lease)
        return await self._records.renew(lease)

    def keep_renewing(self, source: LeaseSource) -> None:
        self._sources.add(source)

    async def owners(self, *names: str) -> dict[str, Lease | None]:
        await self._read()
        return await self._records.owners(*names)

    async def take(self, record_id: str, owner: str, gone: Collection[str] = ()) -> Taken | None:
        await self._write()
        taken = await self._records.take(record_id, owner, gone)
        if taken is not None and taken.record.owner == owner:
            self._note_taken(taken, pending=False)
        return taken

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
        await self._write()
        every = await self._records.take_pending(
            scope, owner, gone, application=application, limit=limit, leave=leave
        )
        for taken in every:
            self._note_taken(taken, pending=True)
        return every

    async def release(self, *names: str) -> None:
        await self._write()
        await self._records.release(*names)

    async def instruct(self, record_id: str, instruction: Instruction) -> Instruction | None:
        before_s, after_s = CUT_OFF_S.get()
        if before_s:
            await self._clock.sleep(before_s)
        await self._write()
        standing = await self._records.instruct(record_id, instruction)
        if after_s and standing is not None:  # the reply is lost, and the work is done again
            self._note_instructed(record_id, standing, instruction)
            await self._clock.sleep(after_s)
            await self._read()
            return await self._records.instruct(record_id, instruction)
        self._note_instructed(record_id, standing, instruction)
        return standing

    def _note_instructed(
        self, record_id: str, standing: Instruction | None, instruction: Instruction
    ) -> None:
        if standing == instruction and self._watch is not None:
            self._watch.instructed(record_id, instruction)
        if standing == instruction:
            self._tell({record_id})

    async def instructions(self, record_id: str) -> list[Instruction]:
        await self._read()
        return await self._records.instructions(record_id)

    def listen(self, listener: Listener) -> Callable[[], None]:
        if not self._hears_late:
            return self._records.listen(listener)
        if not self._listeners:
            self._stop = self._records.listen(self._instructed.update)
        self._listeners.add(listener)
        # Weakly, since a listener that is dropped with its client calls it, and the journal knows the client.
        listen_no_more = weakref.WeakMethod(self._listen_no_more)

        def stop() -> None:
            if (here := listen_no_more()) is not None:
                here(listener)

        return stop

    def _listen_no_more(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        if not self._listeners:
            self._stop()

    def _tell(self, record_ids: Collection[str]) -> None:
        for listener in list(self._listeners) if record_ids else ():
            listener(record_ids)

    # ── what stands behind it ─────────────────────────────────────────────────────────────────

    async def _read(self) -> None:
        await checkpoint()
        await self._clock.pass_on()
        if not self._users:
            raise JournalError("the journal is not open")
        trouble = self._away()
        if trouble is not None:
            raise trouble

    async def _write(self) -> None:
        await self._read()
        trouble = self._trouble()
        if trouble is not None:
            raise trouble
        self._flush()

    def _flush(self) -> None:
        for at, fences, keep_until in self._delivered:
            self._records.deliver(at, fences, keep_until=keep_until)
        self._delivered.clear()

    def _note_saved(self, record: TaskRecord, heeded: Instruction | None = None) -> None:
        fence = self._fences.get(record.record_id)
        self._fences[record.record_id] = record.fence
        if self._watch is not None:
            self._watch.saved(record, fence, heeded)

    def _note_taken(self, taken: Taken, *, pending: bool) -> None:
        self._fences[taken.record.record_id] = taken.record.fence
        if self._watch is not None:
            self._watch.taken(taken, pending=pending)
