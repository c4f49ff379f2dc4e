"""Snapshots that come unasked, passed on to the calls that they are about.

The session's :meth:`Session.run` delivers them; its snapshots only add. Polls keep their pace, so a
server that goes silent costs nothing but latency.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import anyio

from ..aio.own_task import OwnTasks
from ..aio.uncut import run_to_its_end
from ..errors import DrivenElsewhereError, SessionError
from ..machine.states import Observing
from ..sessions.base import Snapshot, TaskRef
from .live_call import LiveCall
from .performer import Performer
from .requests import Requests

__all__ = ["Push"]

logger = logging.getLogger("mcp_tasks_client")

_MOST_WAITING: Final = 8
"""Snapshots of one task that wait to be taken; further ones are left to a poll."""


class Push:
    """The tasks that are observed at an endpoint, as the session sees them (``ObservedTasks``).

    The session is heard in a task of its own. In the task of a call it would be cut when that call ends, and
    a server may send that message only once.
    """

    def __init__(self, requests: Requests, tasks: OwnTasks, performer: Performer) -> None:
        self._requests = requests
        self._tasks = tasks
        self._performer = performer
        self._users = 0
        self._hearing: anyio.CancelScope | None = None
        self._heard = anyio.Lock()  # a new hearing waits until the one before has ended
        self._added = anyio.Event()
        self._by_task: WeakValueDictionary[str, LiveCall] = WeakValueDictionary()
        self._waiting: dict[str, list[Snapshot]] = {}

    def join(self) -> None:
        """Have the session heard until :meth:`leave`."""
        self._users += 1
        if self._hearing is None:
            self._hearing = self._tasks.start(self._hear)

    async def leave(self) -> None:
        """Need the session no longer. The last one to leave ends the hearing."""
        self._users -= 1
        if not self._users and self._hearing is not None:
            self._hearing.cancel()
            self._hearing = None
            await run_to_its_end(self._wait_for_end)

    async def _hear(self) -> None:
        async with self._heard:
            try:
                await self._requests.session.run(self)
            except SessionError as error:
                logger.info("Nothing more comes unasked; tasks are polled: %s", error)
            except Exception as error:
                logger.warning("Listening failed; tasks are polled: %s: %s", type(error).__name__, error)

    async def _wait_for_end(self) -> None:
        async with self._heard:
            pass

    def add(self, call: LiveCall) -> None:
        """Observe the task of a call, which has just got one or is driven again."""
        if call.record.task_id is not None:
            self._by_task[call.record.task_id] = call
            self._added.set()

    # ── ObservedTasks ─────────────────────────────────────────────────────────────────────────

    def refs(self) -> Mapping[str, TaskRef]:
        """The tasks that are observed now, by their IDs."""
        return {
            task_id: call.make_ref()
            for task_id, call in list(self._by_task.items())
            if call.is_driven and isinstance(call.record.state, Observing)
        }

    async def changed(self) -> None:
        """Return when a task was added since this was last awaited."""
        await self._added.wait()
        self._added = anyio.Event()

    def deliver(self, snapshot: Snapshot) -> None:
        """Take a snapshot that came unasked."""
        task_id = snapshot.task.task_id
        call = self._by_task.get(task_id)
        if call is None or not call.is_driven:
            return  # the next poll tells
        waiting = self._waiting.get(task_id)
        if waiting is None:
            self._waiting[task_id] = [snapshot]
            self._tasks.start(partial(self._take, call, task_id))
        elif len(waiting) < _MOST_WAITING:
            waiting.append(snapshot)

    async def _take(self, call: LiveCall, task_id: str) -> None:
        waiting = self._waiting[task_id]
        try:
            while waiting and call.is_driven and isinstance(call.record.state, Observing):
                await self._performer.step(call, self._requests.notify(waiting.pop(0)))
        except DrivenElsewhereError:
            logger.info("Another client drives the task by now: %r", call.record)
        except Exception as error:
            call.park(error)
        finally:
            del self._waiting[task_id]
