"""What a session hears unasked, for calls that are driven in their callers' own tasks.

Nothing runs beside those calls, so :meth:`Session.run` runs in the task of one of them. When that call ends,
another one takes the running over.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final

import anyio
from anyio.abc import TaskGroup

from .push import Push
from .requests import Requests
from .runner import Runner

__all__ = ["Listening"]


class Listening:
    """Runs ``session.run`` for as long as there are calls, once.

    Args:
        runner: Drives the calls.
        requests: Makes events of what is heard.
    """

    def __init__(self, runner: Runner, requests: Requests) -> None:
        self._runner = runner
        self._requests = requests
        self._turn: Final = anyio.Lock()

    def joined(self) -> AbstractAsyncContextManager[None]:
        """Take part while one call is driven: listen, or be ready to take over."""
        return _Part(self)

    async def run(self, tasks: TaskGroup) -> None:
        """Listen when it is one's turn."""
        async with self._turn:
            push = Push(self._runner.store, self._requests, self._runner, tasks)
            self._runner.on_observe = push.add
            for call in list(self._runner.store.live.values()):
                push.add(call)
            await push.run()


class _Part(AbstractAsyncContextManager[None]):
    """The part of one call."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> None:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._listening.run, self._tasks)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tasks.cancel_scope.cancel()
        # Without the block's own exception, which would come back wrapped in a group.
        await self._tasks.__aexit__(None, None, None)
