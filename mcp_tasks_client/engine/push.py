"""Snapshots that come unasked, passed on to the calls that they are about.

The session's :meth:`Session.run` delivers them; what it delivers only adds. Polls keep their pace, so a
server that goes silent costs nothing but latency.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup

from ..errors import DrivenElsewhereError, SessionError
from ..machine.states import Observing
from ..sessions.base import Snapshot, TaskRef
from .call_store import CallStore
from .live_call import LiveCall
from .requests import Requests
from .runner import Runner

__all__ = ["Push"]

logger = logging.getLogger("mcp_tasks_client")

_MOST_WAITING: Final = 8
"""Snapshots of one task that wait to be taken; whatever comes beyond is left to a poll."""


class Push:
    """The tasks that are observed at an endpoint, as the session sees them (``ObservedTasks``).

    Args:
        store: Knows the live calls.
        requests: Makes events of snapshots.
        runner: Takes the steps.
        tasks: Where the steps run.
    """

    def __init__(self, store: CallStore, requests: Requests, runner: Runner, tasks: TaskGroup) -> None:
        self._store = store
        self._requests = requests
        self._runner = runner
        self._tasks = tasks
        self._added = anyio.Event()
        self._by_task: WeakValueDictionary[str, LiveCall] = WeakValueDictionary()
        self._waiting: dict[str, list[Snapshot]] = {}

    async def run(self) -> None:
        """Have the session deliver what comes unasked, for as long as it does."""
        try:
            await self._requests.session.run(self)
        except SessionError as error:
            logger.info("Nothing more comes unasked; tasks are polled: %s", error)
        except Exception as error:
            logger.warning("Listening failed; tasks are polled: %s: %s", type(error).__name__, error)

    def add(self, call: LiveCall) -> None:
        """Observe the task of a call, which has just got one or is driven again."""
        if call.record.task_id is not None:
            self._by_task[call.record.task_id] = call
            self._added.set()

    # ── ObservedTasks ─────────────────────────────────────────────────────────────────────────

    def refs(self) -> Mapping[str, TaskRef]:
        """The tasks that are observed now, by their IDs."""
        return {
            task_id: call.ref
            for task_id, call in list(self._by_task.items())
            if call.driver is not None and isinstance(call.record.state, Observing)
        }

    async def changed(self) -> None:
        """Return when a task was added since this was last awaited."""
        await self._added.wait()
        self._added = anyio.Event()

    def deliver(self, snapshot: Snapshot) -> None:
        """Take a snapshot that came unasked."""
        task_id = snapshot.task.task_id
        call = self._by_task.get(task_id)
        if call is None or call.driver is None:
            return  # the next poll tells
        waiting = self._waiting.get(task_id)
        if waiting is None:
            self._waiting[task_id] = [snapshot]
            self._tasks.start_soon(self._take, call, task_id)
        elif len(waiting) < _MOST_WAITING:
            waiting.append(snapshot)

    async def _take(self, call: LiveCall, task_id: str) -> None:
        waiting = self._waiting[task_id]
        try:
            while waiting and call.driver is not None and isinstance(call.record.state, Observing):
                await self._runner.step(call, self._requests.notify(waiting.pop(0)))
        except DrivenElsewhereError:
            logger.info("Another client drives the task by now: %r", call.record)
        except Exception as error:
            call.park(error)
        finally:
            del self._waiting[task_id]
