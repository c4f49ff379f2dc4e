"""Asks the host for what a server has us run, and journals what it says."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace

import anyio

from .clock import Clock
from .custody import Custody
from .errors import SessionError
from .inputs import InputContext, Inputs
from .journal.base import TaskRecord
from .received import completed, failed, needed_for, question, shown
from .sessions.peer import Peer
from .wire import RpcError

__all__ = ["Asking", "Run"]

logger = logging.getLogger("mcp_tasks_client")


class Run:
    """The asking of the host for one task.

    Attributes:
        record: The task.
        peer: Who is told of its end.
        scope: Ends the asking.
        begun: Whether it has begun.
        over: Set once nobody is asked any more, and what was said is journaled.
    """

    def __init__(self, record: TaskRecord, peer: Peer) -> None:
        self.record = record
        self.peer = peer
        self.scope = anyio.CancelScope()
        self.begun = False
        self.over = anyio.Event()


class Asking:
    """Who is being asked for which task.

    Args:
        inputs: Ask the host.
        clock: Tells when it has answered.
        timeout_s: Seconds that a notification may take.
    """

    def __init__(self, inputs: Inputs, clock: Clock, timeout_s: float) -> None:
        self._inputs = inputs
        self._clock = clock
        self._timeout_s = timeout_s
        self._runs: dict[str, Run] = {}

    def has(self, record: TaskRecord) -> bool:
        """Whether the host is asked for a task, or about to be."""
        return record.task_id in self._runs

    def of(self, task_id: str) -> Run | None:
        """The asking for a task, if there is one."""
        return self._runs.get(task_id)

    def expect(self, record: TaskRecord, peer: Peer) -> Run:
        """Note that the host is going to be asked for a task."""
        run = self._runs[str(record.task_id)] = Run(record, peer)
        return run

    def begins(self, run: Run) -> bool:
        """Whether the host is to be asked now, and not already."""
        if run.begun:
            return False
        run.begun = True
        if run.over.is_set():
            self.forget(run)
            return False
        return True

    def forget(self, run: Run) -> None:
        """Note that it is not."""
        del self._runs[str(run.record.task_id)]

    def stop(self, task_id: str) -> None:
        """End the asking for a task. What the host still says comes too late."""
        run = self._runs.get(task_id)
        if run is not None:
            run.scope.cancel()
            run.over.set()

    def stop_for(self, needed_for_it: str) -> None:
        """End the asking for whatever is needed for one of the server's own tasks."""
        for task_id in self.needed_for(needed_for_it):
            self.stop(task_id)

    def needed_for(self, task_id: str) -> list[str]:
        """The tasks of ours that one of the server's own needs, and that go on."""
        return [ours for ours, run in self._runs.items() if needed_for(run.record) == task_id]

    def goes_on(self, record: TaskRecord) -> None:
        """Note that a task has been taken from us, and given back as it is now."""
        run = self._runs.get(str(record.task_id))
        if run is not None:
            run.record = record

    async def see_through(self, run: Run, custody: Custody) -> None:
        """Ask the host, and journal what it says."""
        ended: TaskRecord | None = None
        in_time = False
        try:
            with run.scope:
                ended = await self._asked_host(run)
            if ended is not None:
                ended = replace(ended, owner=run.record.owner, fence=run.record.fence)
                in_time = await custody.end(ended)
        finally:
            self._runs.pop(str(run.record.task_id), None)
            run.over.set()
        if ended is not None and in_time:
            logger.info("The host has answered %r", ended)
            with suppress(SessionError):  # nobody relies on it
                await run.peer.notify("notifications/tasks/status", self._timeout_s, shown(ended))

    async def _asked_host(self, run: Run) -> TaskRecord:
        context = InputContext(tool=None, key=str(run.record.task_id), task=None)
        said = await self._inputs.reply(context, question(run.record))
        record, now = run.record, self._clock.time()
        return failed(record, said, now) if isinstance(said, RpcError) else completed(record, said, now)
