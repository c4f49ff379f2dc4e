"""Calls found again: after a restart, by a task's ID, by a reference from elsewhere."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import anyio

from .drive import Drive
from .events import TaskCreated
from .handle import TaskReference
from .journal.base import Journal, Scope, TaskRecord
from .journal.failures import typed
from .machine import advance
from .scheduler import Scheduler
from .states import Calling
from .wire import PROTOCOL_VERSION, Created, Task, digest

__all__ = ["Recovery"]


class Recovery:
    """Takes up what the journal holds of one endpoint and principal.

    Args:
        scheduler: Where the calls are driven.
        journal: What holds them.
        scope: Whose they are.
    """

    def __init__(self, scheduler: Scheduler, journal: Journal, scope: Scope) -> None:
        self._scheduler = scheduler
        self._journal = journal
        self._scope = scope

    async def resume(self) -> Sequence[Drive]:
        """Take up all that is pending and free."""
        with self._scheduler.lookup():
            drives = await self._scheduler.to_its_end(self._take_pending)
        self._scheduler.check_open()
        return drives

    async def _take_pending(self) -> Sequence[Drive]:
        pending = await self._scheduler.driver.commits.take_pending(
            self._scope, lambda record: self._scheduler.register(Drive(record))
        )
        afterwards = self._scheduler.afterwards
        for drive in pending:
            afterwards.taken(drive)
        # A call that was never sent is not sent for having been resumed.
        unsaved = (one for one in afterwards.unsaved if one not in pending and one.pending is None)
        drives = [*unsaved, *pending]
        drives = [drive for drive in drives if not afterwards.was_delivered(drive)]
        async with anyio.create_task_group() as tasks:
            for drive in drives:
                # Together, so that their commits share one write to the disk.
                tasks.start_soon(self._keep, drive)
        # What was delivered meanwhile, by a handle that there was already, is not handed out again.
        return [drive for drive in drives if not afterwards.was_delivered(drive)]

    async def _keep(self, drive: Drive) -> None:
        if self._scheduler.closed:
            await self._scheduler.driver.commits.release(drive)
        else:
            await self._scheduler.keep(drive)

    async def attach(self, wanted: str | TaskReference) -> Drive:
        """Drive a task that is known by its ID or reference.

        Raises:
            ValueError: The reference is another scope's, or there is nothing to find by it.
        """
        with self._scheduler.lookup():
            found = await self._find(wanted)
            if isinstance(found, TaskRecord):
                drive = self._scheduler.register(Drive(found))
            else:
                drive = self._attached(*found)
        await self._scheduler.keep(drive)
        if not isinstance(found, TaskRecord):
            # Nothing is known of it yet, so a first look is taken; an error waits for result().
            drive.refreshing += 1
            try:
                while not drive.polls and not drive.over:
                    await drive.change()
            finally:
                drive.refreshing -= 1
        return drive

    async def _find(
        self, wanted: str | TaskReference
    ) -> TaskRecord | tuple[str, str | None, TaskRecord | None]:
        """The record; or the task ID and tool of a task that is new, and its record if it was gone."""
        if isinstance(wanted, str):
            task_id, tool, record_id = wanted, None, None
        else:
            if (wanted["endpoint"], wanted["principal"]) != (self._scope.endpoint, self._scope.principal):
                raise ValueError(
                    f"the reference belongs to endpoint {wanted['endpoint']!r} and principal "
                    f"{wanted['principal']!r}; attach it with a client for those"
                )
            task_id, tool, record_id = wanted["task_id"] or "", wanted["tool"], wanted["record_id"]
        if task_id:
            with typed:
                known = await self._journal.by_task_id(self._scope, task_id)
            if known is None or (known.gone and record_id is None):
                return task_id, tool, known  # what the server did not know, it may know again
            return known
        if record_id is not None and record_id in self._scheduler.drives:
            return self._scheduler.drives[record_id].record  # its call is under way
        for record in await self.records() if record_id is not None else ():
            if record.record_id == record_id:
                return record
        raise ValueError("there is no task ID in it, and the journal holds nothing of such a call")

    def _attached(self, task_id: str, tool: str | None, gone: TaskRecord | None) -> Drive:
        # The same for all who attach it at the same time, so that one of them gets to drive it.
        name = (self._scope.endpoint, self._scope.principal, task_id, gone.record_id if gone else None)
        record_id = digest(name)[:32]
        if record_id in self._scheduler.drives:
            return self._scheduler.drives[record_id]
        # No status was ever received, so none is claimed.
        return self.drive_of(Task(task_id=task_id, status="unknown"), tool, attached_as=record_id)

    def drive_of(self, task: Task, tool: str | None, *, attached_as: str | None = None) -> Drive:
        """A drive that begins with a task, which it journals first."""
        driver = self._scheduler.driver
        now = driver.clock.time()
        record = TaskRecord(
            record_id=attached_as or secrets.token_hex(16),
            scope=self._scope,
            tool=tool,
            state=Calling(),
            created_at=now,
            updated_at=now,
            # Of one that is known by its ID alone, the server has to be asked.
            generation="" if attached_as else PROTOCOL_VERSION,
        )
        drive = Drive(record, ours=True)
        jitter = 0.0 if attached_as else driver.jitter()
        drive.unsaved.append(TaskCreated(task=task, now=now, jitter=jitter, attached=attached_as is not None))
        return self._scheduler.register(drive)

    async def records(self, *, pending: bool = False, listed: bool = False) -> list[TaskRecord]:
        """What the journal knows of this endpoint and principal, oldest first; and what the server lists."""
        self._scheduler.check_open()
        await self._scheduler.afterwards.note()
        others = await self._scheduler.driver.session.created_since(None, 0.0) if listed else ()
        with typed:
            known = await self._journal.records(self._scope, pending=pending)
            held = await self._journal.records(self._scope) if others else ()
        ids = {record.task_id for record in held}
        # Nobody has had what became of those.
        return [*known, *(self._listed(one) for one in others if one.task.task_id not in ids)]

    def _listed(self, created: Created) -> TaskRecord:
        """A task of the server's that the journal does not hold. What it was called for, nobody tells."""
        driver = self._scheduler.driver
        now = driver.clock.time()
        seen = TaskCreated(task=created.task, now=now, jitter=0.0)
        return TaskRecord(
            record_id=digest((self._scope.endpoint, self._scope.principal, created.task.task_id))[:32],
            scope=self._scope,
            tool=None,
            state=advance(Calling(), seen, driver.policy)[0],
            created_at=now,
            updated_at=now,
            generation=created.generation,
        )
