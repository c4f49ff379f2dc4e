"""What is done for a session beside what its host asks for: of which nothing depends."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from ..clock import being_stopped
from ..errors import SessionError

__all__ = ["Background"]

logger = logging.getLogger("mcp_tasks_client")


class Background:
    """Runs it, from when a session is heard until it is not any more."""

    def __init__(self) -> None:
        self._tasks: TaskGroup | None = None

    @property
    def runs(self) -> bool:
        """Whether anything is done at all just now."""
        return self._tasks is not None

    async def run(self, work: Callable[..., Awaitable[None]] | None = None, *args: object) -> None:
        """Do what is given here, and what is to be begun. Never returns."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            if work is not None:
                self.begin(work, *args)
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    def begin(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Begin something, unless nothing is done just now."""
        if self._tasks is not None:
            self._tasks.start_soon(_safely, work, *args)


async def _safely(work: Callable[..., Awaitable[None]], *args: object) -> None:
    """Whatever goes wrong here is no reason for anything else to end; polls tell what there is."""
    try:
        await work(*args)
    except SessionError as error:
        logger.info("A stream of the server's ended: %s", error)
    except anyio.get_cancelled_exc_class():
        if being_stopped():
            raise
    except Exception as error:
        logger.warning("What the server says could not be heard: %s: %s", type(error).__name__, error)
