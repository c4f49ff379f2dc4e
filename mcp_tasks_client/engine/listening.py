"""What a session hears unasked, for calls that are driven in their callers' own tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from ..own_task import OwnTask
from .push import Push
from .requests import Requests
from .runner import Runner

__all__ = ["Listening"]


class Listening:
    """Runs ``session.run`` for as long as there are calls, once.

    It has a task of its own. In that of a caller it would be cut when his call ends, and what a server says
    just then, it may say only once.

    Args:
        runner: Drives the calls.
        requests: Makes events of what is heard.
    """

    def __init__(self, runner: Runner, requests: Requests) -> None:
        self._runner = runner
        self._requests = requests
        self._calls = 0
        self._task: OwnTask | None = None
        self._turn = anyio.Lock()  # a new listening waits until the one before has ended

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Take part while one call is driven. The first begins the listening, and the last ends it."""
        self._calls += 1
        task = self._task
        if task is None:
            task = self._task = OwnTask(self._listen())
            task.start()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._task = None
                await task.leave()

    @asynccontextmanager
    async def _listen(self) -> AsyncIterator[None]:
        async with self._turn, anyio.create_task_group() as tasks:
            push = Push(self._runner.store, self._requests, self._runner, tasks)
            self._runner.on_observe = push.add
            for call in list(self._runner.store.live.values()):
                push.add(call)
            tasks.start_soon(push.run)
            yield
            tasks.cancel_scope.cancel()
