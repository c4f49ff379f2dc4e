"""Calls found again: after a restart, by a task's ID, by a reference from elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..machine.events import TaskCreated
from ..machine.record import TaskRecord, TaskReference
from ..protocol.task import UNKNOWN, Task
from ..protocol.text import digest
from .call_store import CallStore
from .environment import Environment
from .live_call import LiveCall
from .record_maker import RecordMaker, check_label

__all__ = ["Recovery"]


class Recovery:
    """Finds the journal's records of one endpoint and principal. Makes the records of tasks that are new."""

    def __init__(self, store: CallStore, maker: RecordMaker, environment: Environment) -> None:
        self._store = store
        self._maker = maker
        self._scope = maker.scope
        self._environment = environment

    async def take_pending(self, delivered_within_s: float | None = None) -> Sequence[LiveCall]:
        """Take all that is pending, free, of no other application, and not looked after here. Oldest first.

        ``delivered_within_s``: find besides the outcomes that were delivered in so many seconds and are kept.
        """
        free = await self.take_free()
        delivered = [] if delivered_within_s is None else await self._delivered(delivered_within_s)
        # An outcome that was delivered here meanwhile is not handed out again, unless it is asked for.
        undelivered = [call for call in free if call.record.delivered_at is None]
        return [*delivered, *(call for call in undelivered if not call.looked_after)]

    async def take_free(self, limit: int | None = None, leave: Collection[str] = ()) -> Sequence[LiveCall]:
        """Take the calls that are pending, free, and of no other application. Oldest first, with ours.

        ``limit`` is how many at most. ``leave`` has the ``record_id`` of records that are left alone.
        """
        with self._store.registry.remembering():
            pending = await self._store.owning.take_pending(
                self._scope, self._maker.application, limit, leave
            )
        unsaved = [
            call for call in self._store.registry.unsaved if call not in pending and call.next_send is None
        ]
        # An outcome that was delivered here a moment ago is no longer pending.
        return [call for call in (*unsaved, *pending) if call.record.delivered_at is None]

    async def _delivered(self, within_s: float) -> Sequence[LiveCall]:
        since = self._environment.clock.time() - within_s
        with self._store.registry.remembering():
            records = await self._store.journal.records(self._scope, delivered_since=since)
            ours = (None, self._maker.application)
            return [self._store.registry.live_of(record) for record in records if record.application in ours]

    async def find(self, wanted: str | TaskReference, label: str | None) -> LiveCall:
        """The live call of a task that is known by its ID or reference.

        The label is for its record, if there is none yet.

        Raises:
            ValueError: It is neither a task ID nor a reference; or the reference is another scope's, or there
                is nothing to find by it; or the label is none.
        """
        check_wanted(wanted)
        check_label(label)
        if isinstance(wanted, str):
            task_id, tool, record_id = wanted, None, None
        else:
            if (wanted["endpoint"], wanted["principal"]) != (self._scope.endpoint, self._scope.principal):
                raise ValueError(
                    f"the reference belongs to endpoint {wanted['endpoint']!r} and principal "
                    f"{wanted['principal']!r}; attach it with a client for those"
                )
            task_id, tool, record_id = wanted["task_id"] or "", wanted["tool"], wanted["record_id"]
        with self._store.registry.remembering():
            if record_id is not None and record_id in self._store.registry.live:
                return self._store.registry.live[record_id]
            known = await self._store.journal.by_task_id(self._scope, task_id) if task_id else None
            if known is None and record_id:
                known = await self._store.journal.by_id(record_id)
            if known is not None and known.scope == self._scope and (record_id is not None or not known.gone):
                return self._store.registry.live_of(known)
            if task_id:
                return self._attach(task_id, tool, known, label)
        raise ValueError(
            "there is no task ID in the reference, and this journal holds nothing of its call; attach it "
            "with the journal that the call was made with"
        )

    async def find_record(self, record_id: str) -> LiveCall | None:
        """The live call of a record; ``None`` if there is none of that ID, or it is another scope's."""
        with self._store.registry.remembering():
            record = await self._store.journal.by_id(record_id)
            return (
                None
                if record is None or record.scope != self._scope
                else self._store.registry.live_of(record)
            )

    def _attach(self, task_id: str, tool: str | None, gone: TaskRecord | None, label: str | None) -> LiveCall:
        # The same for all who attach it at the same time, so that one client drives it.
        name = (self._scope.endpoint, self._scope.principal, task_id, gone.record_id if gone else None)
        record_id = digest(name)[:32]
        known = self._store.registry.live.get(record_id)
        if known is not None and not known.record.gone:
            return known
        self._store.registry.live.pop(record_id, None)  # not found then, and asked for again now
        # No status was ever received, so none is claimed.
        task = Task(task_id=task_id, status=UNKNOWN)
        now = self._environment.clock.time()
        first = TaskCreated(task=task, now=now, jitter=0.0, attached=True)
        record = self._maker.make(tool, now, label=label, record_id=record_id)
        return self._store.owning.new_call(record, first=first)


def check_wanted(wanted: object) -> None:
    """Refuse a value that is neither a task ID nor a reference.

    Raises:
        ValueError: It is something else.
    """
    if wanted == "":
        raise ValueError("a task ID cannot be empty")
    texts = TaskReference.__required_keys__
    if not isinstance(wanted, str) and not (
        isinstance(wanted, Mapping)
        and all(isinstance(wanted.get(name, 0), str | None) for name in texts)
        and None not in (wanted["endpoint"], wanted["principal"], wanted["record_id"])
    ):
        raise ValueError(
            "attach() takes a task ID, or a reference as handle.reference gives it: a dict with the texts "
            f"{', '.join(sorted(texts))}. It was given {type(wanted).__name__}"
            + (f" without {', '.join(sorted(texts - set(wanted)))}" if isinstance(wanted, Mapping) else "")
        )
